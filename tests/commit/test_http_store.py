"""Reading over HTTP: whatever a server does ends in a typed error, in bounded time and memory."""

from __future__ import annotations

import gzip
import threading
import time
import tracemalloc
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpcore
import pytest

from tests.stores import Misbehave, Site, answer, serving
from vtrain.commit import http_store, timed
from vtrain.commit.http_store import HttpStore, is_public
from vtrain.commit.store import open_sink, open_source, parse_url
from vtrain.errors import NotProducedError, RunError, StoreError, VtrainError
from vtrain.limits import LIMITS

DATA = bytes(range(256)) * 16
NAME = "chunks/00"
QUICK = replace(LIMITS, store_grace_seconds=1, store_least_rate=1 << 20)


def read(site: Site, name: str = NAME, **given: Any) -> bytes:
    store = HttpStore(site.url, QUICK, sleep=lambda seconds: None)
    try:
        return store.read(name, given.pop("most", len(DATA)), **given)
    finally:
        store.close()


def refuse(act: Misbehave, **given: Any) -> VtrainError:
    """What a store that does so is refused with."""
    site = Site({NAME: DATA}, misbehave={NAME: act})
    with serving(site), pytest.raises(StoreError) as error:
        read(site, **given)
    assert NAME in error.value.where
    assert error.value.code == "store"
    return error.value


@pytest.mark.parametrize("ranges", [True, False])
def test_objects_and_parts_of_them_are_read(ranges: bool) -> None:
    with serving(Site({NAME: DATA}, ranges=ranges)) as site:
        store = HttpStore(site.url)
        assert store.read(NAME, len(DATA), exact=True) == DATA
        assert store.read(NAME, len(DATA), exact=True, span=(100, 50)) == DATA[100:150]
        assert store.ranges == ranges
        assert store.traffic.bytes == len(DATA) + 50
        store.close()


def test_what_is_not_there_is_owed(tmp_path: Any) -> None:
    with serving(Site({})) as site:
        with pytest.raises(NotProducedError, match="owes it") as error:
            read(site)
        assert not isinstance(error.value, StoreError)
        assert len(site.asked) == 1  # it is not asked for again


# --- lengths


def pour(handler: BaseHTTPRequestHandler) -> None:
    """A body without end."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    block = bytes(1 << 16)
    try:
        while True:
            handler.wfile.write(b"10000\r\n" + block + b"\r\n")
    except OSError:
        handler.close_connection = True


def test_a_body_without_end_is_cut_where_it_must_end() -> None:
    tracemalloc.start()
    since = time.monotonic()
    assert "more than the 4096 bytes" in refuse(pour).message
    assert time.monotonic() - since < 10
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("length", [0, len(DATA) - 1, len(DATA) + 1, 1 << 60])
def test_a_length_that_is_wrong_is_refused_before_the_body(length: int) -> None:
    def say(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        handler.close_connection = True

    assert "says that it has" in refuse(say, exact=True).message


def test_a_body_that_ends_early_is_refused() -> None:
    asked = []

    def cut(handler: BaseHTTPRequestHandler) -> None:
        asked.append(1)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(DATA)))
        handler.end_headers()
        handler.wfile.write(DATA[:100])
        handler.close_connection = True

    assert "breaks the protocol" in refuse(cut, exact=True).message
    assert len(asked) == LIMITS.store_tries  # that may pass: it was asked again


def test_a_chunked_body_that_is_short_is_refused() -> None:
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"2\r\nab\r\n0\r\n\r\n")

    assert "gives 2 bytes, not 4096" in refuse(cut, exact=True).message


@pytest.mark.parametrize(
    "where", ["bytes 0-49/4096", "bytes 100-150/4096", "bytes */4096", "bytes 100-149", ""]
)
def test_a_range_other_than_the_one_asked_for_is_refused(where: str) -> None:
    def give(handler: BaseHTTPRequestHandler) -> None:
        headers = [("Content-Range", where)] if where else []
        answer(handler, 206, DATA[:50], *headers)

    assert "another range" in refuse(give, exact=True, span=(100, 50)).message


def test_a_range_that_was_not_asked_for_is_refused() -> None:
    def give(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, 206, DATA, ("Content-Range", "bytes 0-4095/4096"))

    assert "answers 206" in refuse(give, exact=True).message


# --- what unpacks to more


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "x-new"])
def test_what_is_compressed_is_refused_and_not_unpacked(encoding: str) -> None:
    bomb = gzip.compress(bytes(1 << 24))

    def give(handler: BaseHTTPRequestHandler) -> None:
        assert handler.headers["Accept-Encoding"] == "identity"
        answer(handler, 200, bomb, ("Content-Encoding", encoding))

    assert "is compressed" in refuse(give, most=len(bomb)).message


# --- time


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, each in time for itself."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(DATA)))
    handler.end_headers()
    site_over = handler.server.over  # type: ignore[attr-defined]
    try:
        for byte in DATA:
            if site_over.wait(0.05):
                break
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
    except OSError:
        pass
    handler.close_connection = True


def drip_headers(handler: BaseHTTPRequestHandler) -> None:
    """A header without end."""
    site_over = handler.server.over  # type: ignore[attr-defined]
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not site_over.wait(0.05):
            handler.wfile.write(b"a")
            handler.wfile.flush()
    except OSError:
        pass
    handler.close_connection = True


def hold_still(handler: BaseHTTPRequestHandler) -> None:
    """No answer at all."""
    handler.server.over.wait(60)  # type: ignore[attr-defined]
    handler.close_connection = True


@pytest.mark.parametrize("act", [drip, drip_headers, hold_still])
def test_an_answer_that_drips_ends_by_its_deadline(act: Misbehave) -> None:
    since = time.monotonic()
    assert "takes longer" in refuse(act, exact=True).message
    assert time.monotonic() - since < 10


def test_headers_without_end_are_refused() -> None:
    def pour_headers(handler: BaseHTTPRequestHandler) -> None:
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for i in range(1 << 20):
                handler.wfile.write(b"X-%d: %s\r\n" % (i, b"a" * 1000))
        except OSError:
            handler.close_connection = True

    tracemalloc.start()
    assert "breaks the protocol" in refuse(pour_headers).message
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_store_that_is_busy_is_asked_again(status: int) -> None:
    asked = []

    def fail(handler: BaseHTTPRequestHandler) -> None:
        asked.append(1)
        if len(asked) < 3:
            answer(handler, status, b"later")
        else:
            answer(handler, 200, DATA)

    with serving(Site({}, misbehave={NAME: fail})) as site:
        assert read(site) == DATA
    with serving(Site({}, misbehave={NAME: lambda handler: answer(handler, status, b"")})) as site:
        with pytest.raises(StoreError, match=f"answers {status}"):
            read(site)
        assert len(site.asked) == LIMITS.store_tries


# --- redirects


def redirect(target: str) -> Misbehave:
    return lambda handler: answer(handler, 302, b"", ("Location", target))


def test_a_redirect_on_the_same_host_is_followed() -> None:
    with serving(Site({"elsewhere": DATA}, misbehave={NAME: redirect("/elsewhere")})) as site:
        assert read(site) == DATA


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd",
        "ftp://example.org/x",
        "gopher://127.0.0.1:70/x",
        "data:text/plain,x",
        "http://user:secret@example.org/",
        "http://[::1",
        "http://example.org:port/",
        "http://exam ple.org/",
        "http://ex\u00e4mple.org/",
        "x" * 9000,
        "",
    ],
)
def test_a_redirect_to_what_is_no_web_server_is_refused(target: str) -> None:
    assert "redirects to" in refuse(redirect(target)).message


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "localhost",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",  # noqa: S104 - where a redirect leads
        "2130706433",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[fd00::1]",
        "[fe80::1]",
        "[64:ff9b::7f00:1]",
    ],
)
def test_a_redirect_to_an_address_that_is_not_public_is_refused(host: str) -> None:
    """Also on this machine, where another server answers."""
    with serving(Site({"x": DATA})) as inside:
        port = inside.url.rpartition(":")[2]
        found = refuse(redirect(f"http://{host}:{port}/x"))
        assert "not public" in found.message or "cannot be reached" in found.message
        assert not inside.asked


def test_the_address_that_was_looked_at_is_the_one_connected_to() -> None:
    """A name that leads to a public address when it is looked at, and here afterwards."""
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        if host == "rebind.example":
            return ["192.0.2.1" if asked.count(host) > 1 else "127.0.0.1"]
        return [host]

    with serving(Site({"x": DATA})) as inside:
        port = inside.url.rpartition(":")[2]
        act = redirect(f"http://rebind.example:{port}/x")
        with serving(Site({}, misbehave={NAME: act})) as site:
            store = HttpStore(site.url, QUICK, resolve=resolve, sleep=lambda seconds: None)
            with pytest.raises(StoreError, match="not public"):
                store.read(NAME, len(DATA))
            store.close()
        assert not inside.asked
        assert asked.count("rebind.example") == 1


def test_a_name_that_nobody_answers_for_takes_no_longer_than_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever answers for a name may take as long as they like, and asks of many names at once."""
    held = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        held.wait(60)
        return ["127.0.0.1"]

    limits = replace(QUICK, store_least_rate=1 << 30)
    since = time.monotonic()
    try:
        monkeypatch.setattr(timed, "_pending", threading.BoundedSemaphore(2))
        for _ in range(3):
            store = HttpStore(
                "http://slow.example", limits, resolve=resolve, sleep=lambda seconds: None
            )
            with pytest.raises(StoreError, match=r"takes too long to find|being looked up already"):
                store.read(NAME, len(DATA))
            store.close()
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("vtrain-look-up") == 2
    finally:
        held.set()
    assert time.monotonic() - since < 30
    with serving(Site({NAME: DATA})) as site:
        assert read(site) == DATA


def test_a_name_that_led_to_a_public_address_leads_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also the name that the reader gave: whoever answers for it could choose the path."""
    monkeypatch.setattr(http_store, "is_public", lambda address: address == "127.0.0.1")
    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect := Connect())

    def redirect_and_close(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, 302, b"", ("Location", "/admin?delete"), ("Connection", "close"))

    with serving(Site({}, misbehave={NAME: redirect_and_close})) as site:
        port = site.url.rpartition(":")[2]
        given = iter([["10.0.0.1", "127.0.0.1"], ["10.0.0.1"]])
        store = HttpStore(
            f"http://rebind.example:{port}", QUICK, resolve=lambda host, port: next(given)
        )
        with pytest.raises(StoreError, match="to a public one before"):
            store.read(NAME, len(DATA))
        store.close()
    assert connect.tried == ["10.0.0.1", "127.0.0.1"]


class Connect:
    """Connects to this machine alone."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self._inner = httpcore.SyncBackend.connect_tcp

    def __call__(self, host: str, *rest: Any) -> Any:
        self.tried.append(host)
        if host != "127.0.0.1":
            raise httpcore.ConnectError("is not here")
        return self._inner(httpcore.SyncBackend(), host, *rest)


def test_an_address_that_is_not_public_stays_the_one_of_its_name() -> None:
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1" if len(asked) == 1 else "8.8.8.8"]

    def close(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, 200, DATA, ("Connection", "close"))

    with serving(Site({}, misbehave={NAME: close})) as site:
        port = site.url.rpartition(":")[2]
        store = HttpStore(f"http://inside.example:{port}", QUICK, resolve=resolve)
        assert store.read(NAME, len(DATA)) == store.read(NAME, len(DATA)) == DATA
        store.close()
    assert len(site.asked) == 2
    assert asked == ["inside.example"]


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".example", ".example"])
def test_a_name_that_no_host_can_have_is_no_crash(host: str) -> None:
    assert "cannot be reached" in refuse(redirect(f"http://{host}/x")).message
    store = HttpStore(f"http://{host}", QUICK, sleep=lambda seconds: None)
    with pytest.raises(StoreError, match="cannot be reached"):
        store.read(NAME, len(DATA))
    store.close()


def test_connecting_to_many_addresses_ends_by_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def connect(self: Any, host: str, port: int, timeout: float, *rest: Any) -> None:
        now[0] += timeout
        raise httpcore.ConnectTimeout

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    store = HttpStore(
        "http://slow.example", LIMITS, clock=lambda: now[0], resolve=lambda *_: ["192.0.2.1"] * 4
    )
    with pytest.raises(StoreError, match="takes longer"):
        store.read(NAME, 0)
    store.close()
    assert now[0] <= LIMITS.store_grace_seconds


def test_redirects_in_a_circle_end() -> None:
    assert "more than 3 times" in refuse(redirect(f"/{NAME}")).message


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("::", False),
        ("::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::808:808", True),
        ("64:ff9b:1::7f00:1", False),
        ("::127.0.0.1", False),
        ("::ffff:0:127.0.0.1", False),
        ("fec0::2", False),
        ("192.0.0.192", False),
        ("168.63.129.16", False),
        ("fe80::1%eth0", False),
        ("nonsense", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) == public


# --- names


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/x",
        "nonsense://x",
        "http://",
        "s3://",
        "http://user:secret@example.org/",
        "http://example.org/?query",
        "http://example.org/#part",
        "http://example.org:port/",
        "http://[::1/",
        "http://example.org/a b",
        "file://host/folder",
    ],
)
def test_what_is_no_url_of_a_store_is_refused(url: str) -> None:
    with pytest.raises(RunError):
        open_source(url)


def test_nothing_is_published_to_a_web_server() -> None:
    with pytest.raises(RunError, match="takes no files"):
        open_sink("https://example.org/runs")


def test_a_url_is_read_into_its_parts() -> None:
    place = parse_url("http://Example.org:8080/a/b")
    assert (place.scheme, place.host, place.port, place.path) == (
        "http",
        "example.org",
        8080,
        "/a/b",
    )
