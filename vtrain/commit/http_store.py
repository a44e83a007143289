"""Reading over HTTP from servers that strangers run (extra ``store``).

Bodies are taken as they come: what is compressed is refused, not unpacked, and so is a length other
than the one due.  An answer has a deadline that grows with the bytes it may have, so that one which
drips ends too.  A redirect is followed by hand, to the host that the reader named or to a public
address alone, which is looked up once: what was looked at is what is connected to.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urljoin

from vtrain.commit.store import Place, Source, TransientError, parse_url, split_url
from vtrain.errors import MissingExtraError, NotProducedError, RunError, StoreError
from vtrain.limits import LIMITS, Limits

try:
    import httpcore

    from vtrain.commit.timed import Clock, Deadline, Resolve, TimedStream, look_up
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"httpcore is missing: {sys.executable} -m pip install 'vtrain[store]'",
        where="published runs (https://, s3:// and their kin)",
    ) from error

_CONNECTIONS: Final = 8
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_BUSY: Final = (429, 500, 502, 503, 504)
_ABSENT: Final = (403, 404, 410)
"""Object stores say 403 of what is not there to whoever may not list them."""
_CONTENT_RANGE: Final = re.compile(rb"bytes ([0-9]{1,19})-([0-9]{1,19})/(?:[0-9]{1,19}|\*)")
_LENGTH: Final = re.compile(rb"[0-9]{1,19}")
_LONGEST_URL: Final = 8192
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is given out.  The rest has site-local and IPv4-compatible addresses, and those
of translators, which not every Python calls private."""
_OF_A_CLOUD: Final = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "168.63.129.16/32")))
"""IPv4 addresses that look public and are those of what serves a machine its own secrets."""


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, also by the IPv4 address that an IPv6
    address may stand for."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None and not is_public(str(inner)):
            return False
        if found not in _UNICAST and found not in _NAT64:
            return False
    elif any(found in network for network in _OF_A_CLOUD):
        return False
    return found.is_global and not found.is_multicast


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, by the system."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(item[4][0]) for item in found]


class _Backend(httpcore.NetworkBackend):
    """Connects by the addresses that were looked at; to ``public`` ones alone, or any.

    A host that may be any keeps to what was first reached by its name: to public addresses, or to
    the one that is not.  Else whoever answers for the name could send a reader to a path of their
    choice on a machine within its network, by a redirect to the name that then leads there.
    """

    def __init__(self, deadline: Deadline, resolve: Resolve, *, public: bool) -> None:
        self._deadline, self._resolve = deadline, resolve
        self._public = public
        self._reached = ""
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        last: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in self._look_up(host, port, timeout)[:4]:
            left = self._deadline.bound(httpcore.ConnectTimeout, timeout)
            try:
                inner = self._inner.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
                continue
            self._reached = self._reached or address
            return TimedStream(inner, self._deadline)
        raise last

    def _look_up(self, host: str, port: int, timeout: float | None) -> list[str]:
        """The addresses that may be connected to; StoreError where they are not public, and must
        be."""
        reached = "" if self._public else self._reached
        if reached and not is_public(reached):
            return [reached]
        left = self._deadline.bound(httpcore.ConnectTimeout, timeout)
        try:
            found = look_up(self._resolve, host, port, left)
        except (OSError, UnicodeError) as error:  # the latter for what no name can be
            raise httpcore.ConnectError(f"{host} has no address: {error}") from error
        public = [address for address in found if is_public(address)]
        if self._public and len(public) < len(found):
            raise StoreError(
                "redirects to an address that is not public, which is refused: name that place "
                "yourself if you want it",
                where=host,
            )
        if reached and found and not public:
            raise StoreError(
                "leads to an address that is not public, and to a public one before: which is "
                "refused",
                where=host,
            )
        return public if reached else found


class HttpReader:
    """Gets URLs from the origin that its user named, and where that one redirects to."""

    def __init__(
        self,
        named: Place,
        limits: Limits = LIMITS,
        clock: Clock = time.monotonic,
        resolve: Resolve = resolve,
    ) -> None:
        self._origin = _find_origin(named)
        self._limits = limits
        self._deadline = Deadline(clock)
        context = ssl.create_default_context()
        self._pools = {
            public: httpcore.ConnectionPool(
                ssl_context=context,
                max_connections=_CONNECTIONS,
                max_keepalive_connections=_CONNECTIONS,
                keepalive_expiry=30.0,
                network_backend=_Backend(self._deadline, resolve, public=public),
            )
            for public in (False, True)
        }
        self.ranges = True

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.close()

    def stream(
        self, url: str, where: str, most: int, *, exact: bool, span: tuple[int, int] | None
    ) -> Iterator[bytes]:
        """The body of the answer, of at most ``most`` bytes, or ``exact``ly so many, or the
        ``span`` of it; ``where`` is what errors call it."""
        limits = self._limits
        due = most if span is None or not self.ranges else span[1]
        self._deadline.start(limits.store_grace_seconds + due / limits.store_least_rate)
        with _naming(where):
            for _ in range(limits.store_redirects + 1):
                answer = self._ask(url, span)
                try:
                    if answer.status not in _REDIRECTS:
                        yield from self._take(answer, most, exact=exact, span=span)
                        return
                    url = self._follow(url, _find_header(answer, b"location"))
                finally:
                    answer.close()
            raise StoreError(f"redirects more than {limits.store_redirects} times")

    def _ask(self, url: str, span: tuple[int, int] | None) -> httpcore.Response:
        place = split_url(url)
        headers = [
            (b"Host", _format_host(place).encode()),
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", b"vtrain"),
        ]
        if span is not None and self.ranges:
            headers.append((b"Range", b"bytes=%d-%d" % (span[0], span[0] + span[1] - 1)))
        request = httpcore.Request(
            b"GET",
            url.encode(),
            headers=headers,
            extensions={
                "timeout": {
                    "connect": self._limits.store_connect_seconds,
                    "pool": self._limits.store_grace_seconds,
                }
            },
        )
        public = _find_origin(place) != self._origin
        return self._pools[public].handle_request(request)

    def _take(
        self,
        answer: httpcore.Response,
        most: int,
        *,
        exact: bool,
        span: tuple[int, int] | None,
    ) -> Iterator[bytes]:
        _judge_status(answer, ranged=span is not None)
        skip, due, exact = 0, most, exact or span is not None
        if span is not None and answer.status == 206:
            due = span[1]
            found = _CONTENT_RANGE.fullmatch(_find_header(answer, b"content-range"))
            if found is None or (int(found[1]), int(found[2])) != (span[0], sum(span) - 1):
                raise StoreError("gives another range than the one asked for")
        elif span is not None:  # all of it: the server knows no ranges
            self.ranges = False
            skip = span[0]
        _judge_length(answer, due, exact=exact)
        left = due if span is None else span[1]
        for block in answer.iter_stream():
            gone = min(skip, len(block))
            skip -= gone
            rest = block[gone:] if span is None else block[gone : gone + left]
            left -= len(rest)
            if rest:
                yield rest
            if span is not None and not left:
                return

    def _follow(self, url: str, location: bytes) -> str:
        """Where a redirect leads; StoreError for where it may not."""
        try:
            target = urljoin(url, location.decode("ascii").strip())
            if not location or len(target) > _LONGEST_URL:
                raise ValueError("is none")
            place = split_url(target)
        except (ValueError, RunError):
            raise StoreError("redirects to what is no URL of a web server") from None
        if place.scheme not in ("http", "https"):
            raise StoreError(f"redirects to {place.scheme}://, which is refused")
        if split_url(url).scheme == "https" and place.scheme != "https":
            raise StoreError("redirects from https:// to http://, which is refused")
        return target.partition("#")[0]


class HttpStore(Source):
    """A folder of a web server."""

    def __init__(
        self,
        url: str,
        limits: Limits = LIMITS,
        clock: Clock = time.monotonic,
        resolve: Resolve = resolve,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(limits, sleep, clock)
        self._base = url.rstrip("/")
        self._reader = HttpReader(parse_url(url), limits, clock, resolve)

    @property
    def ranges(self) -> bool:  # type: ignore[override]
        """Until a server gives all of an object of which a part was asked for."""
        return self._reader.ranges

    def locate(self, name: str) -> str:
        return f"{self._base}/{name}"

    def stream(
        self, name: str, most: int, *, exact: bool = False, span: tuple[int, int] | None = None
    ) -> Iterator[bytes]:
        where = self.locate(name)
        return self._reader.stream(where, where, most, exact=exact, span=span)

    def close(self) -> None:
        self._reader.close()


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Errors of the connection, as ours, with the name of what was asked for."""
    try:
        yield
    except httpcore.TimeoutException as error:
        raise StoreError(
            f"takes longer than an answer of its size may: {str(error) or type(error).__name__}",
            where=where,
        ) from None
    except httpcore.NetworkError as error:
        raise TransientError(f"cannot be reached: {error}", where=where) from None
    except (httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
        raise TransientError(f"breaks the protocol: {error}", where=where) from None
    except (NotProducedError, StoreError) as error:
        raise type(error)(error.message, where=where) from None


def _judge_status(answer: httpcore.Response, *, ranged: bool) -> None:
    """Errors for an answer that is no object as it is."""
    if answer.status in _BUSY:
        raise TransientError(f"answers {answer.status}")
    if answer.status in _ABSENT:
        raise NotProducedError(f"the store does not have it (it answers {answer.status})")
    if answer.status != 200 and not (answer.status == 206 and ranged):
        raise StoreError(f"answers {answer.status}")
    if _find_header(answer, b"content-encoding") not in (b"", b"identity"):
        raise StoreError("is compressed, which is refused: it was asked for as it is")


def _judge_length(answer: httpcore.Response, due: int, *, exact: bool) -> None:
    """StoreError for an answer that says another length than the one due."""
    length = _find_header(answer, b"content-length")
    if not length:
        return
    said = int(length) if _LENGTH.fullmatch(length) else -1
    if said < 0 or said > due or (exact and said != due):
        raise StoreError(f"says that it has {length!r:.40} bytes, not {due}")


def _find_header(answer: httpcore.Response, name: bytes) -> bytes:
    """The value of a header, empty where there is none; StoreError where there are several."""
    found = [value for key, value in answer.headers if key.lower() == name]
    if len(found) > 1:
        raise StoreError(f"gives several headers {name.decode()}")
    return found[0].strip() if found else b""


def _find_origin(place: Place) -> tuple[str, str, int]:
    return place.scheme, place.host, place.port or (443 if place.scheme == "https" else 80)


def _format_host(place: Place) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    return host if place.port is None else f"{host}:{place.port}"
