"""The API over real HTTP: client, long polls, problems, limits, webhooks' operator."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.dispute.arena import make_key
from tests.dispute.service.live import TOKEN, serving
from tests.dispute.service.logs import (
    HONEST,
    LEAST,
    SERVICE_KEY,
    get_documents,
    make_bond,
    make_log,
    make_log_genesis,
    make_opening,
    make_players,
    spoil,
)
from vtrain.attest.keys import public_key
from vtrain.dispute.client import DisputeClient, Follower, connect
from vtrain.dispute.game import find_verdict, sign
from vtrain.dispute.problems import (
    BusyError,
    ForbiddenError,
    NotFoundError,
    ProblemError,
    RequestError,
    ServiceFaultError,
    TooLargeError,
)
from vtrain.dispute.receipts import Page
from vtrain.dispute.service.limits import LIMITS
from vtrain.dispute.state import compute_game_id
from vtrain.errors import MoveRefusedError, SignatureError
from vtrain.wire import structs
from vtrain.wire.dispute import Bond, Clocks, Genesis

QUICK = replace(LEAST, join=200, trace=200, terms=100, budget=60_000)
"""For games on the real clock that should end soon."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    db = tmp_path_factory.mktemp("http") / "games.db"
    limits = replace(LIMITS, least=LEAST, beat=20, opening=1 << 20, move=1 << 18)
    with serving(f"sqlite:///{db}", SERVICE_KEY, limits=limits) as url:
        yield url


@pytest.fixture
def client(base: str) -> Iterator[DisputeClient]:
    with connect(base, public_key(SERVICE_KEY)) as found:
        yield found


@pytest.fixture
def raw(base: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base) as found:
        yield found


def open_game(client: DisputeClient, number: int, clocks: Clocks = QUICK) -> Genesis:
    genesis = make_log_genesis(number, clocks=clocks)
    client.open(genesis, *get_documents())
    return genesis


def test_a_game_over_http(client: DisputeClient) -> None:
    genesis = open_game(client, 1, replace(QUICK, join=2000))
    game = compute_game_id(genesis)
    follower = Follower(client, game)
    while follower.verdict is None:
        sent = [client.move(it) for player in make_players() for it in player.moves(follower.game)]
        follower.poll(0 if sent else 1)
    while follower.events[-1].signed.receipt.kind != "settled":
        follower.poll(5)
    verdict, receipt = client.verdict(game)
    assert verdict == find_verdict(follower.game)
    assert verdict.standing == make_log().root
    assert receipt.receipt.kind == "verdict"
    view = client.view(game)
    assert view["verdict"]["standing"] == make_log().root.hex()
    assert view["claims"][0]["fall"]["place"] == "step 124"
    assert client.document(game, "task") == get_documents()[0]
    assert client.document(game, "graph") == get_documents()[1]
    assert game.hex() in [line["game"] for line in client.list_games()]


def test_events_wait_for_one(client: DisputeClient, base: str) -> None:
    genesis = open_game(client, 2, replace(QUICK, join=60_000))
    game = compute_game_id(genesis)
    asked = threading.Event()

    def wait() -> dict[str, object]:
        with connect(base) as other:
            asked.set()
            return other.events(game, after=1, wait=30)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(wait)
        assert asked.wait(60)
        client.move(make_bond(compute_game_id(genesis), make_log().root, HONEST))
        found = answer.result(timeout=60)
    assert [event["kind"] for event in found["events"]] == ["move"]  # type: ignore[attr-defined]
    assert client.events(game, after=2, wait=0.01)["events"] == []


def test_errors_come_back_as_themselves(client: DisputeClient) -> None:
    genesis = open_game(client, 3, replace(QUICK, join=60_000))
    game = compute_game_id(genesis)
    bond = make_bond(compute_game_id(genesis), make_log().root, HONEST)
    with pytest.raises(SignatureError):
        client.move(spoil(bond))
    with pytest.raises(MoveRefusedError) as caught:
        client.move(sign(game, bytes(32), Bond(bytes(32), b"", ()), HONEST))
    assert caught.value.where == "about"
    with pytest.raises(NotFoundError):
        client.verdict(game)
    with pytest.raises(NotFoundError):
        client.genesis(bytes(32))
    assert client.move(bond) == client.move(bond)


def test_opening_with_an_idempotency_key(client: DisputeClient) -> None:
    genesis = make_log_genesis(4)
    first = client.open(genesis, *get_documents(), idempotency_key="once")
    assert client.open(genesis, *get_documents(), idempotency_key="once") == first
    with pytest.raises(Exception, match="idempotency"):
        client.open(make_log_genesis(5), *get_documents(), idempotency_key="once")


@pytest.mark.parametrize(
    ("method", "path", "content", "kind", "status", "code"),
    [
        ("POST", "/v1/games", b"", "application/json", 422, "request"),
        ("POST", "/v1/games", b"\xff", "application/cbor", 400, "encoding"),
        ("POST", "/v1/games", bytes(1 << 21), "application/cbor", 413, "too-large"),
        (
            "POST",
            f"/v1/games/{'0' * 64}/moves",
            bytes(1 << 20),
            "application/cbor",
            413,
            "too-large",
        ),
        ("POST", f"/v1/games/{'0' * 64}/moves", b"\xa0", "application/cbor", 400, "encoding"),
        ("GET", f"/v1/games/{'0' * 64}", b"", "", 404, "not-found"),
        ("GET", "/v1/games/xyz", b"", "", 422, "request"),
        ("GET", f"/v1/games/{'0' * 64}/events?wait=1e9", b"", "", 422, "request"),
        ("GET", f"/v1/games/{'0' * 64}/events?wait=nan", b"", "", 422, "request"),
        ("GET", "/v1/games?after=-1", b"", "", 422, "request"),
        ("GET", "/nothing", b"", "", 404, "not-found"),
        ("DELETE", "/v1/games", b"", "", 405, "request"),
        ("GET", "/v1/webhooks", b"", "", 401, "forbidden"),
        ("POST", "/v1/webhooks", b"{}", "application/json", 401, "forbidden"),
    ],
)
def test_problems(
    raw: httpx.Client, method: str, path: str, content: bytes, kind: str, status: int, code: str
) -> None:
    headers = {"Content-Type": kind} if kind else {}
    response = raw.request(method, path, content=content, headers=headers)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem.keys() == {
        "type",
        "title",
        "status",
        "detail",
        "code",
        "where",
        "fault",
        "refusal",
    }


def test_a_body_without_a_length_is_bounded_too(raw: httpx.Client) -> None:
    parts = (bytes(1 << 16) for _ in range(1 << 10))
    headers = {"Content-Type": "application/cbor"}
    try:
        response = raw.post(f"/v1/games/{'0' * 64}/moves", content=parts, headers=headers)
    except httpx.TransportError:
        return  # the service hung up rather than read on
    assert response.status_code == 413


def test_the_operator_keeps_webhooks(raw: httpx.Client) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    made = raw.post("/v1/webhooks", content=b'{"url": "http://127.0.0.1:9/x"}', headers=headers)
    assert made.status_code == 201
    number, secret = made.json()["webhook"], made.json()["secret"]
    assert len(secret) == 64
    listed = raw.get("/v1/webhooks", headers=headers).json()["webhooks"]
    assert [hook["webhook"] for hook in listed] == [number]
    assert secret not in json.dumps(listed)
    assert raw.delete(f"/v1/webhooks/{number}", headers=headers).status_code == 204
    assert raw.delete(f"/v1/webhooks/{number}", headers=headers).status_code == 404
    for bad in (b"{", b'{"url": 5}', b'{"url": "ftp://x/"}', b'{"url": "http://u:p@x/"}'):
        assert raw.post("/v1/webhooks", content=bad, headers=headers).status_code == 422
    headers["Authorization"] = "Bearer wrong"
    assert raw.get("/v1/webhooks", headers=headers).json()["code"] == ForbiddenError.code


# --- what the client does not believe


def test_another_key_than_expected(base: str) -> None:
    with connect(base, public_key(make_key(98))) as client, pytest.raises(ServiceFaultError):
        open_game(client, 6)


class Liar(httpx.BaseTransport):
    """A service that alters what a true one answers."""

    def __init__(self, base: str) -> None:
        self._base = base
        self.alter: Callable[[Page], Page] = lambda page: page
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        body = response.read()
        if request.url.path.endswith("/transcript"):
            body = structs.encode(self.alter(structs.decode(Page, body, "page")))
        return httpx.Response(response.status_code, content=body)


def test_a_service_that_contradicts_its_receipts(client: DisputeClient, base: str) -> None:
    genesis = open_game(client, 7, replace(QUICK, join=60_000))
    game = compute_game_id(genesis)
    client.move(make_bond(compute_game_id(genesis), make_log().root, HONEST))
    client.move(make_bond(compute_game_id(genesis), bytes(32), make_key(3)))
    liar = Liar(base)
    follow = DisputeClient(base, public_key(SERVICE_KEY), transport=liar)
    Follower(follow, game).poll()

    def drop(page: Page) -> Page:
        return replace(page, events=(page.events[0], *page.events[2:]))

    def swap(page: Page) -> Page:
        one, two, three = page.events
        return replace(page, events=(one, replace(two, body=three.body), three))

    def delay(page: Page) -> Page:
        first, *_ = page.events
        receipt = replace(first.signed.receipt, at=first.signed.receipt.at + 1)
        return replace(
            page, events=(replace(first, signed=replace(first.signed, receipt=receipt)),)
        )

    for alter in (drop, swap, delay):
        liar.alter = alter
        with pytest.raises(ServiceFaultError):
            Follower(follow, game).poll()


def test_a_client_tries_again(base: str) -> None:
    calls: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        if len(calls) == 1:
            raise httpx.ConnectError("not there")
        if len(calls) == 2:
            return httpx.Response(503, json={"code": "busy", "detail": "later"})
        return httpx.Response(200, json={"service": "00" * 32})

    pauses: list[float] = []
    transport = httpx.MockTransport(answer)
    client = DisputeClient("http://h", transport=transport, pause=pauses.append)
    assert client.service == bytes(32)
    assert (len(calls), len(pauses)) == (3, 2)
    down = httpx.MockTransport(lambda _: httpx.Response(503, json={"code": "busy"}))
    with pytest.raises(BusyError):
        DisputeClient("http://h", transport=down, pause=pauses.append).info()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_answers_that_are_none(content: bytes) -> None:
    for status, error in ((200, ServiceFaultError), (400, ProblemError)):
        transport = httpx.MockTransport(lambda _: httpx.Response(status, content=content))  # noqa: B023
        with pytest.raises(error):
            DisputeClient("http://h", transport=transport).info()


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://h", "http://", "http://h:port"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(RequestError):
        DisputeClient(url)


def test_a_large_opening_is_refused_by_its_length(raw: httpx.Client) -> None:
    body = make_opening(make_log_genesis(8)) + bytes(1 << 20)
    response = raw.post("/v1/games", content=body, headers={"Content-Type": "application/cbor"})
    assert response.json()["code"] == TooLargeError.code


def test_a_database_that_goes_away(tmp_path: Path) -> None:
    db = tmp_path / "games.db"
    with serving(f"sqlite:///{db}", SERVICE_KEY) as url, httpx.Client(base_url=url) as raw:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{db}{suffix}").unlink(missing_ok=True)
        db.mkdir()
        response = raw.get("/v1/info")
        assert response.status_code == 200
        assert b"Traceback" not in raw.get("/v1/games").content
