"""Webhooks: signed, in order, repeated until they arrive, and never into the private network."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

import httpx
import pytest

from tests.dispute.service.conftest import Bench
from tests.dispute.service.logs import HONEST, make_bond, make_log, make_log_genesis, make_opening
from vtrain.dispute.problems import NotFoundError, RequestError, TooLargeError
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.limits import LIMITS
from vtrain.dispute.service.webhooks import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MAX_ATTEMPTS,
    Courier,
    compute_pause,
    is_global,
    resolve,
    sign_body,
    verify_body,
)
from vtrain.wire import structs

PUBLIC = "93.184.215.14"


class Receiver:
    """Keeps what it is sent; answers as it is told."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.answer: Callable[[httpx.Request], httpx.Response] = lambda _: httpx.Response(204)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answer(request)

    def events(self) -> list[tuple[int, str]]:
        found = [json.loads(request.content) for request in self.requests]
        return [(event["sequence"], event["kind"]) for event in found]


class Desk:
    """A courier on a clock that the test turns."""

    def __init__(self, bench: Bench, service: GameService, addresses: list[str]) -> None:
        self.now, self.receiver, self.addresses = 1_000_000, Receiver(), addresses
        self.courier = Courier(
            service,
            bench.store(service),
            now=lambda: self.now,
            resolve=lambda host, port: self.addresses,
            transport=httpx.MockTransport(self.receiver),
        )


def open_game(service: GameService, number: int = 0) -> bytes:
    return service.open_game(make_opening(make_log_genesis(number)))[0].receipt.game


def join(service: GameService, game: bytes) -> None:
    signed = make_bond(game, make_log().root, HONEST)
    service.submit_move(game, structs.encode(signed)).result()


def test_events_arrive_signed_and_in_order(bench: Bench, service: GameService) -> None:
    desk = Desk(bench, service, [PUBLIC])
    with closing(desk.courier) as courier:
        hook = courier.add_hook("https://market.example/hook?a=1")
        only = courier.add_hook("http://market.example:8080/", bytes(32))
        game = open_game(service)
        join(service, game)
        courier.deliver()
        assert desk.receiver.events() == [(1, "opened"), (2, "move")]
        courier.deliver()
        assert len(desk.receiver.requests) == 2
        for request in desk.receiver.requests:
            # To the address that was resolved, under the name that it was resolved from.
            assert request.url == f"https://{PUBLIC}/hook?a=1"
            assert request.headers["host"] == "market.example"
            assert request.extensions["sni_hostname"] == "market.example"
            signature = request.headers["vtrain-signature"]
            assert verify_body(hook.secret, signature, request.content)
            assert not verify_body(only.secret, signature, request.content)
            assert not verify_body(hook.secret, signature, request.content + b" ")
        courier.remove_hook(only.number)
        with pytest.raises(NotFoundError):
            courier.remove_hook(only.number)


def test_failures_are_repeated_with_growing_pauses(bench: Bench, service: GameService) -> None:
    desk = Desk(bench, service, [PUBLIC])
    with closing(desk.courier) as courier:
        courier.add_hook("https://market.example/")
        game = open_game(service)
        desk.receiver.answer = lambda _: httpx.Response(500)
        courier.deliver()
        courier.deliver()
        assert len(desk.receiver.requests) == 1
        desk.now += FIRST_PAUSE
        courier.deliver()
        desk.now += FIRST_PAUSE
        courier.deliver()
        assert len(desk.receiver.requests) == 2
        join(service, game)
        desk.receiver.answer = lambda _: httpx.Response(200)
        desk.now += FIRST_PAUSE
        courier.deliver()
        assert desk.receiver.events() == [(1, "opened")] * 3 + [(2, "move")]
        assert [hook.attempts for hook in courier.list_hooks()] == [0]


def test_the_queue_survives_a_restart(bench: Bench, service: GameService) -> None:
    desk = Desk(bench, service, [PUBLIC])
    with closing(desk.courier) as courier:
        courier.add_hook("https://market.example/")
        open_game(service)
    bench.stop(service)
    again = bench.start()
    desk = Desk(bench, again, [PUBLIC])
    with closing(desk.courier) as courier:
        courier.deliver()
        assert desk.receiver.events() == [(1, "opened")]


def test_a_hook_that_never_answers_is_given_up(bench: Bench, service: GameService) -> None:
    desk = Desk(bench, service, [PUBLIC])

    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("nobody there")

    desk.receiver.answer = fail
    with closing(desk.courier) as courier:
        courier.add_hook("https://market.example/")
        open_game(service)
        for _ in range(MAX_ATTEMPTS + 3):
            courier.deliver()
            desk.now += LONGEST_PAUSE
        assert len(desk.receiver.requests) == MAX_ATTEMPTS
        (hook,) = courier.list_hooks()
        assert (hook.due, hook.trouble) == (-1, "ConnectTimeout")


def test_redirects_are_not_followed(bench: Bench, service: GameService) -> None:
    desk = Desk(bench, service, [PUBLIC])
    desk.receiver.answer = lambda _: httpx.Response(302, headers={"Location": "http://127.0.0.1/"})
    with closing(desk.courier) as courier:
        courier.add_hook("https://market.example/")
        open_game(service)
        courier.deliver()
        assert [request.url.host for request in desk.receiver.requests] == [PUBLIC]
        assert courier.list_hooks()[0].trouble == "answered with 302"


PRIVATE = [
    *("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("224.0.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1"),
    *("64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1", "255.255.255.255", "0.0.0.1"),
    *("::127.0.0.1", "::10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::10.0.0.1"),
    *("2002:a00:1::1", "2001:0:7f00:1::", "2001:0:5db8:d70e::80ff:fffe", "::ffff:10.0.0.1"),
    *("64:ff9b::a9fe:a9fe", "240.0.0.1", "192.0.2.1"),
]


def test_private_addresses_are_refused(bench: Bench, service: GameService) -> None:
    desk = Desk(bench, service, [])
    with closing(desk.courier) as courier:
        for number, address in enumerate(PRIVATE):
            assert not is_global(address)
            desk.addresses = [PUBLIC, address]
            with pytest.raises(RequestError, match="private"):
                courier.add_hook("https://market.example/")
            desk.addresses = [PUBLIC]
            hook = courier.add_hook("https://market.example/")
            desk.addresses = [address]  # the name leads elsewhere later
            open_game(service, number)
            courier.deliver()
            assert desk.receiver.requests == [], address
            (told,) = courier.list_hooks()
            assert "private" in told.trouble, address
            courier.remove_hook(hook.number)


@pytest.mark.parametrize(
    "address", [PUBLIC, "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::93.184.215.14"]
)
def test_global_addresses(address: str) -> None:
    assert is_global(address)


@pytest.mark.parametrize(
    "bad",
    ["", "x", "ftp://h/", "http://", "http://u:p@h/", "http://h/#f", "http://h/" + "a" * 2048],
)
def test_urls_that_are_no_hooks(bench: Bench, service: GameService, bad: str) -> None:
    desk = Desk(bench, service, [PUBLIC])
    with closing(desk.courier) as courier, pytest.raises(RequestError):
        courier.add_hook(bad)


def test_there_are_only_so_many(bench: Bench, service: GameService) -> None:
    desk = Desk(bench, service, [PUBLIC])
    with closing(desk.courier) as courier:
        for _ in range(LIMITS.hooks):
            courier.add_hook("https://market.example/")
        with pytest.raises(TooLargeError):
            courier.add_hook("https://market.example/")


def test_pauses() -> None:
    assert [compute_pause(n) for n in (1, 2, 3)] == [1_000, 2_000, 4_000]
    assert compute_pause(1000) == LONGEST_PAUSE


def test_signature_header() -> None:
    header = sign_body(b"secret", 5, b"body")
    assert header.startswith("t=5,v1=")
    assert verify_body(b"secret", header, b"body")
    for bad in ("", "t=", "t=x,v1=", header.replace("5", "6"), header[:-1]):
        assert not verify_body(b"secret", bad, b"body")


def test_names_that_do_not_resolve() -> None:
    assert resolve("127.0.0.1", 80) == ["127.0.0.1"]
    with pytest.raises(RequestError):
        resolve("a..b", 80)
