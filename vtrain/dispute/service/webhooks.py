"""The courier: events to webhooks, until they have arrived.

A webhook gets events in order, one a request, each again and again with growing pauses until it is
answered with 2xx; after ``MAX_ATTEMPTS`` the hook is given up.  Its queue is the table of events
itself, from its cursor on.  The body is JSON; ``Vtrain-Signature: t=T,v1=HEX`` is HMAC-SHA256 of
``T.BODY`` under the hook's secret, T being Unix time in seconds.

An address is resolved once for each request, which goes to exactly what was resolved; unless the
operator allows it, only global unicast addresses are taken, so that no hook reaches into the
service's own network.  Redirects are not followed.  A delivery takes ``TIMEOUT`` seconds in all,
however slowly the receiver answers, and each hook is served by itself: one that is slow holds up no
other.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

import httpx
from sqlalchemy import delete, exists, func, insert, or_, select, update

from vtrain.dispute.problems import NotFoundError, RequestError, TooLargeError
from vtrain.dispute.service import store
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.limits import Limits
from vtrain.dispute.service.rounds import Rounds
from vtrain.dispute.service.transport import TOTAL, TimedTransport

MAX_ATTEMPTS: Final = 16
FIRST_PAUSE: Final = 1_000
LONGEST_PAUSE: Final = 3_600_000
TIMEOUT: Final = 10.0
_HOOKS_AT_ONCE: Final = 16
_EVENTS_AT_ONCE: Final = 32
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.ip_network("::/96")
_LOG: Final = logging.getLogger("vtrain.dispute")

Now = Callable[[], int]
Resolve = Callable[[str, int], Sequence[str]]


@dataclass(frozen=True)
class Hook:
    """A webhook; ``game`` is empty for all games; ``trouble`` is the last failure."""

    number: int
    url: str
    secret: bytes
    game: bytes
    cursor: int
    attempts: int
    due: int
    trouble: str


def count_unix() -> int:
    """Milliseconds of Unix time."""
    return time.time_ns() // 1_000_000


def resolve(host: str, port: int) -> list[str]:
    """Addresses of a host; RequestError when it has none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RequestError(f"{host} does not resolve", where="url") from error
    return [str(address[0]) for *_, address in found]


def check_url(url: str) -> httpx.URL:
    """The URL of a webhook; RequestError unless it is an http or https URL without credentials."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise RequestError("is no URL", where="url") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or len(url) > 2048:
        raise RequestError("is no http or https URL of at most 2048 characters", where="url")
    if parsed.userinfo or parsed.fragment:
        raise RequestError("has credentials or a fragment", where="url")
    return parsed


def is_global(address: str) -> bool:
    """May anyone on the internet be at this address?

    An IPv6 address that carries an IPv4 address (mapped, compatible, NAT64, 6to4, Teredo's server
    and client) leads there, through whatever gateway there is: both must be global.  Mapped
    addresses and those of NAT64 count as the IPv4 address alone.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return _is_open(parsed)
    last = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    if parsed.ipv4_mapped is not None or parsed in _NAT64:
        return _is_open(last)
    inner = [last] if parsed in _COMPATIBLE else []
    inner += [parsed.sixtofour] if parsed.sixtofour is not None else []
    inner += parsed.teredo or ()
    return _is_open(parsed) and all(map(_is_open, inner))


def _is_open(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_global and not address.is_multicast and not address.is_reserved


def compute_pause(attempts: int) -> int:
    """Milliseconds to wait after so many failures in a row: doubled each time, up to an hour."""
    return min(FIRST_PAUSE << min(attempts - 1, 20), LONGEST_PAUSE)


def sign_body(secret: bytes, timestamp: int, body: bytes) -> str:
    """The value of ``Vtrain-Signature``; ``timestamp`` in seconds of Unix time."""
    mac = hmac.new(secret, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={mac}"


def verify_body(secret: bytes, header: str, body: bytes) -> bool:
    """For receivers: is this body signed?  They also judge the age of ``t``."""
    stamp, _, _ = header.removeprefix("t=").partition(",")
    return stamp.isdecimal() and hmac.compare_digest(sign_body(secret, int(stamp), body), header)


class Courier:
    """Delivers the events of ``service`` from threads of its own, once started."""

    def __init__(
        self,
        service: GameService,
        db: store.Store,
        *,
        allow_private: bool = False,
        now: Now = count_unix,
        resolve: Resolve = resolve,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._db, self._now = db, now
        self._allow_private, self._resolve = allow_private, resolve
        self._limits: Limits = service.limits
        self._client = httpx.Client(
            transport=transport or TimedTransport(TIMEOUT),
            timeout=TIMEOUT,
            follow_redirects=False,
            trust_env=False,
        )
        self._busy: dict[int, Future[None]] = {}
        """Hooks that are being served, by number."""
        self._pool = ThreadPoolExecutor(_HOOKS_AT_ONCE, "vtrain-webhook")
        self._rounds = Rounds(self._begin, "vtrain-courier")
        service.listen(lambda notices: self._rounds.wake())

    def start(self) -> None:
        """Begin to deliver."""
        self._rounds.start()

    def close(self) -> None:
        """Stop; what is not delivered waits for the next start."""
        self._rounds.close()
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    def deliver(self) -> None:
        """One round to its end: send each hook that is due its next events."""
        wait(self._begin())
        for done in self._begin_again():
            done.result()

    def _begin_again(self) -> list[Future[None]]:
        """What the last round has done, forgotten."""
        done = [future for future in self._busy.values() if future.done()]
        self._busy = {n: future for n, future in self._busy.items() if not future.done()}
        return done

    def _begin(self) -> list[Future[None]]:
        """Have each hook that is due, and not being served, served; what is under way."""
        for done in self._begin_again():
            error = done.exception()
            if error is not None:
                _LOG.error("delivery failed", exc_info=error)
        for hook in self._find_due():
            if hook.number not in self._busy:
                self._busy[hook.number] = self._pool.submit(self._serve, hook)
        return list(self._busy.values())

    def _find_due(self) -> list[Hook]:
        """Those with an event to send whose pause is over.

        A pause longer than any is one that an earlier date set: it is over, too.
        """
        table, now = store.hooks, self._now()
        waiting = exists().where(
            store.events.c.number > table.c.cursor,
            or_(table.c.game.is_(None), store.events.c.game == table.c.game),
        )
        due = or_(table.c.due <= now, table.c.due > now + LONGEST_PAUSE)
        query = select(table).where(table.c.due >= 0, due, waiting)
        with self._db.read() as connection:
            return [_to_hook(row) for row in connection.execute(query.order_by(table.c.number))]

    def _serve(self, hook: Hook) -> None:
        """Send a hook what it has not had, until it fails or has had its share of this round."""
        for _ in range(_EVENTS_AT_ONCE):
            found = self._next_event(hook)
            if found is None:
                return
            number, body = found
            trouble = self._post(hook, body)
            table = store.hooks
            if trouble:
                attempts = hook.attempts + 1
                given_up = attempts >= MAX_ATTEMPTS
                due = -1 if given_up else self._now() + compute_pause(attempts)
                values = {"attempts": attempts, "due": due, "trouble": trouble[:512]}
            else:
                values = {"attempts": 0, "due": 0, "trouble": "", "cursor": number}
            with self._db.write() as connection:
                # Unless another process has come further with it meanwhile.
                connection.execute(
                    update(table)
                    .where(table.c.number == hook.number, table.c.cursor == hook.cursor)
                    .values(**values)
                )
                row = connection.execute(select(table).where(table.c.number == hook.number)).first()
            if row is None or trouble or self._rounds.closed:
                return
            hook = _to_hook(row)
        self._rounds.wake()

    def _next_event(self, hook: Hook) -> tuple[int, bytes] | None:
        table = store.events
        query = select(
            table.c.number, table.c.game, table.c.sequence, table.c.kind, table.c.at, table.c.digest
        ).where(table.c.number > hook.cursor)
        if hook.game:
            query = query.where(table.c.game == hook.game)
        with self._db.read() as connection:
            row = connection.execute(query.order_by(table.c.number).limit(1)).first()
        if row is None:
            return None
        about = {
            "game": bytes(row.game).hex(),
            "sequence": row.sequence,
            "kind": row.kind,
            "at": row.at,
            "digest": bytes(row.digest).hex(),
        }
        return row.number, json.dumps(about, sort_keys=True).encode()

    def _post(self, hook: Hook, body: bytes) -> str:
        """Send one event; what went wrong, if anything."""
        try:
            url = check_url(hook.url)
            request = self._make_request(url, self._choose_address(url), hook.secret, body)
        except RequestError as error:
            return str(error)
        try:
            # The answer's body is not read: it could be endless.
            response = self._client.send(request, stream=True)
            response.close()
        except httpx.HTTPError as error:
            # Its text may quote the receiver, or the URL, in which there may be a secret.
            return type(error).__name__
        return "" if response.is_success else f"answered with {response.status_code}"

    def _choose_address(self, url: httpx.URL) -> str:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        addresses = self._resolve(url.host, port)
        for address in addresses:
            if not self._allow_private and not is_global(address):
                raise RequestError(f"{url.host} is at {address}, a private address", where="url")
        return addresses[0]

    def _make_request(
        self, url: httpx.URL, address: str, secret: bytes, body: bytes
    ) -> httpx.Request:
        # To the address itself, so that a second resolution cannot lead elsewhere; the name stays
        # in the Host header and in the TLS handshake, where certificates are checked against it.
        host = url.netloc.decode("ascii")
        return httpx.Request(
            "POST",
            url.copy_with(host=address.partition("%")[0]),
            headers={
                "Host": host,
                "Content-Type": "application/json",
                "Vtrain-Signature": sign_body(secret, self._now() // 1000, body),
            },
            content=body,
            extensions={
                "sni_hostname": url.host,
                "timeout": httpx.Timeout(TIMEOUT).as_dict(),
                TOTAL: TIMEOUT,
            },
        )

    # --- the operator's side

    def add_hook(self, url: str, game: bytes = b"") -> Hook:
        """A new hook, sent what happens from now on; TooLargeError when there are too many."""
        check_url(url)
        self._choose_address(httpx.URL(url))
        table = store.hooks
        with self._db.write() as connection:
            count = connection.execute(select(func.count()).select_from(table)).scalar_one()
            if count >= self._limits.hooks:
                raise TooLargeError(f"there are {count} webhooks already", where="webhooks")
            last = connection.execute(select(func.max(store.events.c.number))).scalar_one()
            (number,) = connection.execute(
                insert(table)
                .returning(table.c.number)
                .values(
                    url=url,
                    secret=secrets.token_bytes(32),
                    game=game or None,
                    cursor=last or 0,
                    attempts=0,
                    due=0,
                    trouble="",
                )
            ).one()
            row = connection.execute(select(table).where(table.c.number == number)).one()
        return _to_hook(row)

    def list_hooks(self) -> list[Hook]:
        """All hooks."""
        with self._db.read() as connection:
            query = select(store.hooks).order_by(store.hooks.c.number)
            return [_to_hook(row) for row in connection.execute(query)]

    def remove_hook(self, number: int) -> None:
        """NotFoundError when there is none."""
        with self._db.write() as connection:
            done = connection.execute(delete(store.hooks).where(store.hooks.c.number == number))
        if done.rowcount != 1:
            raise NotFoundError("there is no such webhook", where="webhook")


def _to_hook(row: Any) -> Hook:
    return Hook(
        number=row.number,
        url=row.url,
        secret=bytes(row.secret),
        game=bytes(row.game or b""),
        cursor=row.cursor,
        attempts=row.attempts,
        due=row.due,
        trouble=row.trouble,
    )
