"""A host that lies with its own key: the client loses nothing, waits for nothing, and has proof."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace

import httpx
import pytest

from tests.dispute.arena import make_key
from tests.dispute.service.conftest import Bench
from tests.dispute.service.logs import (
    BROKEN,
    CLOCKS,
    HONEST,
    SERVICE_KEY,
    LogPlayer,
    get_graph,
    make_bond,
    make_log,
    make_log_genesis,
    make_opening,
    make_players,
)
from vtrain.attest.keys import public_key
from vtrain.dispute import client as clients
from vtrain.dispute.client import DisputeClient, Follower, play, watch
from vtrain.dispute.problems import (
    BusyError,
    ProblemError,
    ServiceFaultError,
    StallError,
    TermsError,
    attach_refusal,
    find_refusal,
    from_problem,
    to_problem,
)
from vtrain.dispute.receipts import (
    Event,
    EventKind,
    Page,
    Refusal,
    Signed,
    SignedReceipt,
    SignedRefusal,
    SignedTime,
    compute_body_digest,
    compute_receipt_digest,
    get_content,
    is_contradiction,
    sign_receipt,
    sign_refusal,
    sign_time,
    verify_signed,
)
from vtrain.dispute.service.games import GameService
from vtrain.errors import EncodingError, MoveRefusedError, VtrainError
from vtrain.wire import structs


class Host(httpx.BaseTransport):
    """A service without a network, which alters what it answers as it is told."""

    def __init__(self, service: GameService) -> None:
        self.service = service
        self.alter: Callable[[Page], Page] = lambda page: page
        self.refuse: Callable[[bytes, bytes], VtrainError | None] = lambda game, body: None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        game, what = request.url.path.removeprefix("/v1/games/").split("/")
        try:
            return httpx.Response(200, content=self._answer(bytes.fromhex(game), what, request))
        except VtrainError as error:
            problem = to_problem(error)
            return httpx.Response(problem["status"], content=json.dumps(problem).encode())

    def _answer(self, game: bytes, what: str, request: httpx.Request) -> bytes:
        if what == "moves":
            body = request.read()
            error = self.refuse(game, body)
            if error is not None:
                raise error
            return structs.encode(self.service.submit_move(game, body).result())
        if what == "transcript":
            page = self.service.page(game, int(request.url.params["after"]), 256)
            return structs.encode(self.alter(page))
        return self.service.document(game, what)


@pytest.fixture
def url(tmp_path: object) -> str:
    """SQLite alone: nothing here is about the database."""
    return f"sqlite:///{tmp_path}/games.db"


@pytest.fixture
def host(service: GameService) -> Host:
    return Host(service)


@pytest.fixture
def game(service: GameService) -> bytes:
    game = service.open_game(make_opening(make_log_genesis()))[0].receipt.game
    service.submit_move(game, structs.encode(make_bond(game, make_log().root, HONEST))).result()
    return game


def connect(host: Host, service: bytes | None = None) -> DisputeClient:
    return DisputeClient("http://host", service, transport=host, pause=lambda _: None)


def follow(host: Host, game: bytes) -> Follower:
    return Follower(connect(host), game)


def retime(page: Page, more: int, *, signed: bool = True) -> Page:
    """The page at a time that is later by ``more``, signed or not."""
    time = replace(page.time.time, at=page.time.time.at + more)
    told = sign_time(time, SERVICE_KEY) if signed else replace(page.time, time=time)
    return replace(page, time=told)


def decode_proof(error: ServiceFaultError) -> list[Signed]:
    found: list[Signed] = []
    for data in error.proof:
        kinds: tuple[type[Signed], ...] = (SignedReceipt, SignedTime, SignedRefusal)
        for kind in kinds:
            with suppress(EncodingError):
                found.append(structs.decode(kind, data, "proof"))
    return found


def ticking(step: float) -> Callable[[], float]:
    """A clock that goes on by ``step`` seconds whenever it is read."""
    counter = itertools.count()
    return lambda: next(counter) * step


def test_a_time_that_is_not_signed_ends_no_game(host: Host, game: bytes) -> None:
    follower = follow(host, game)
    host.alter = lambda page: retime(page, 10**9, signed=False)
    with pytest.raises(ServiceFaultError, match="signature"):
        follower.poll()
    assert follower.game.now < 10**9
    assert not follower.game.over


def test_a_signed_time_ends_no_game_without_a_signed_verdict(host: Host, game: bytes) -> None:
    """By it the honest claim may have fallen; only the host's verdict makes ``play`` return."""
    follower = follow(host, game)
    host.alter = lambda page: retime(page, 10**9)
    player = LogPlayer(2, -1)
    with pytest.raises(StallError, match="no verdict comes"):
        play(follower, connect(host), player, patience=60, clock=ticking(10))  # type: ignore[arg-type]
    assert follower.game.over
    assert follower.verdict is None


def test_an_event_before_a_signed_time_is_proof(
    host: Host, game: bytes, service: GameService
) -> None:
    follower = follow(host, game)
    host.alter = lambda page: retime(page, 10_000)
    follower.poll()
    host.alter = lambda page: page
    follower.poll()  # an older time is no lie, and takes nothing back
    assert follower.game.now >= 10_000
    service.submit_move(game, structs.encode(make_bond(game, bytes(32), make_key(3)))).result()
    with pytest.raises(ServiceFaultError, match="before what was said") as caught:
        follower.poll()
    said = decode_proof(caught.value)
    assert any(is_contradiction(one, other) for one, other in itertools.combinations(said, 2))


def test_another_history_is_proof(host: Host, game: bytes) -> None:
    follower = follow(host, game)
    follower.poll()
    other = replace(follower.events[1].signed.receipt, previous=bytes(32), sequence=3)
    body = b"a fork"
    forged = sign_receipt(replace(other, digest=compute_body_digest(body)), SERVICE_KEY)
    host.alter = lambda page: replace(page, events=(Event(body, forged),))
    with pytest.raises(ServiceFaultError, match="does not follow") as caught:
        follower.poll()
    said = decode_proof(caught.value)
    assert any(is_contradiction(one, other) for one, other in itertools.combinations(said, 2))


def test_a_host_restored_from_an_older_copy_denies_what_it_signed(host: Host, game: bytes) -> None:
    follower = follow(host, game)
    follower.poll()
    later = make_log_genesis(1)
    host.service.open_game(make_opening(later))
    follower._chain.sequence += 1  # as if the host had told of one more event
    with pytest.raises(ServiceFaultError, match="denies") as caught:
        follower.poll()
    assert caught.value.proof == (structs.encode(follower.events[-1].signed),)


def test_a_verdict_of_the_hosts_own(host: Host, game: bytes, bench: Bench) -> None:
    bench.pass_time(host.service, CLOCKS.join + CLOCKS.budget + 2 * CLOCKS.grace)
    true, _ = host.service.verdict(game)

    def forge(page: Page) -> Page:
        index = next(i for i, e in enumerate(page.events) if e.signed.receipt.kind == "verdict")
        event = page.events[index]
        body = structs.encode(replace(true, standing=make_log(BROKEN).root))
        receipt = replace(event.signed.receipt, digest=compute_body_digest(body))
        forged = Event(body, sign_receipt(receipt, SERVICE_KEY))
        return replace(page, events=(*page.events[:index], forged))

    host.alter = forge
    follower = follow(host, game)
    with pytest.raises(ServiceFaultError, match="not the verdict") as caught:
        watch(follower, clock=ticking(1))
    signed = structs.decode(Event, caught.value.proof[0], "proof").signed
    verify_signed(signed, public_key(SERVICE_KEY))
    host.alter = lambda page: page
    assert watch(follow(host, game), clock=ticking(1)) == true


def test_a_page_that_never_ends(host: Host, game: bytes) -> None:
    follower = follow(host, game)
    host.alter = lambda page: replace(page, events=(), more=1)
    with pytest.raises(ServiceFaultError, match="no page"):
        follower.poll()


def test_time_that_stands_still(host: Host, game: bytes) -> None:
    with pytest.raises(StallError, match="time stands still"):
        watch(follow(host, game), patience=60, clock=ticking(10))


def test_answers_without_end(host: Host, game: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def drain() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 20
            yield bytes(1 << 20)

    endless = httpx.MockTransport(lambda _: httpx.Response(200, content=drain()))
    with pytest.raises(ServiceFaultError, match="over"):
        DisputeClient("http://h", transport=endless).transcript(game)
    assert sent < 1 << 25
    bomb = gzip.compress(bytes(1 << 24))
    packed = httpx.MockTransport(
        lambda _: httpx.Response(200, content=bomb, headers={"Content-Encoding": "gzip"})
    )
    with pytest.raises(ServiceFaultError, match="compressed"):
        DisputeClient("http://h", transport=packed).transcript(game)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
def test_answers_that_drip(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte every 50 ms satisfies every limit on a single read."""
    monkeypatch.setattr(clients, "_ATTEMPTS", 1)
    stop = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(head or b"HTTP/1.1 200 OK\r\nX: ")
            while not stop.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        begin = time.monotonic()
        try:
            with pytest.raises(BusyError, match="does not answer"):
                DisputeClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.5).info()
            assert time.monotonic() - begin < 20
        finally:
            stop.set()
            thread.join()


# --- the host's key, and refusals


def test_a_game_of_another_host_is_not_hosted(service: GameService) -> None:
    genesis = make_log_genesis(host=public_key(make_key(98)))
    with pytest.raises(TermsError) as caught:
        service.open_game(make_opening(genesis))
    assert caught.value.where == "genesis.host"


def test_the_key_comes_from_the_genesis(host: Host, game: bytes) -> None:
    other = connect(host, public_key(make_key(98)))
    with pytest.raises(ServiceFaultError, match="another host"):
        Follower(other, game)


def test_a_refusal_is_signed(host: Host, game: bytes) -> None:
    client = connect(host)
    second = make_bond(game, bytes(32), HONEST)
    with pytest.raises(MoveRefusedError) as caught:
        client.move(second)
    ((signed, refused),) = client.refusals
    assert (signed, structs.encode(refused)) == (second, find_refusal(caught.value))
    said = refused.refusal
    assert (said.code, said.sequence, said.game) == ("move-refused", 2, game)
    assert said.digest == compute_body_digest(structs.encode(second))
    follower = Follower(client, game)
    follower.poll()
    assert not follower.is_wrongful(signed, refused)


def test_a_wrongful_refusal_is_proof_and_ends_nothing(
    host: Host, game: bytes, bench: Bench
) -> None:
    client, told = connect(host), list[str]()
    liar, _ = make_players()

    def refuse(game: bytes, body: bytes) -> VtrainError | None:
        error = MoveRefusedError("we do not like it", where="move")
        loaded = host.service.load(game)
        refusal = Refusal(
            game=game,
            digest=compute_body_digest(body),
            sequence=loaded.sequence,
            at=loaded.game.now,
            code=error.code,
            service=host.service.public,
        )
        attach_refusal(error, structs.encode(sign_refusal(refusal, SERVICE_KEY)))
        if client.refusals:
            bench.pass_time(host.service, CLOCKS.join + CLOCKS.budget + 2 * CLOCKS.grace)
        return error

    bench.pass_time(host.service, CLOCKS.join + 1)
    assert list(liar.moves(host.service.state(game)))
    host.refuse = refuse
    verdict = play(
        Follower(client, game, graph=get_graph()),
        client,
        LogPlayer(2, -1),  # type: ignore[arg-type]
        wait=0,
        clock=ticking(0),
        progress=lambda _, what: told.append(what),
    )
    assert any("against the rules" in what for what in told)
    follower = follow(host, game)
    follower.poll()
    assert all(follower.is_wrongful(*found) for found in client.refusals)
    assert verdict == follower.verdict


def test_what_is_refused_unsigned(host: Host, game: bytes) -> None:
    """A move that its party did not sign says nothing of that party."""
    bad = replace(make_bond(game, bytes(32), make_key(3)), signature=bytes(64))
    with pytest.raises(VtrainError) as caught:
        host.service.submit_move(game, structs.encode(bad))
    assert caught.value.code == "signature"
    assert find_refusal(caught.value) == b""


def test_what_contradicts_and_what_does_not(host: Host, game: bytes) -> None:
    first, second = (event.signed for event in host.service.page(game, 0, 2).events)
    time = host.service.page(game, 2, 1).time
    honest: list[Signed] = [first, second, time]
    for one, other in itertools.permutations(honest, 2):
        assert not is_contradiction(one, other)
    assert not is_contradiction(first, first)

    def lie(signed: SignedReceipt, **changed: object) -> SignedReceipt:
        return sign_receipt(replace(signed.receipt, **changed), SERVICE_KEY)  # type: ignore[arg-type]

    assert is_contradiction(first, lie(first, at=first.receipt.at + 1))
    assert is_contradiction(first, lie(second, previous=bytes(32)))
    late = sign_time(replace(time.time, at=time.time.at + 9), SERVICE_KEY)
    third = lie(second, sequence=3, previous=compute_receipt_digest(second.receipt))
    assert is_contradiction(late, third)
    assert is_contradiction(third, late) == is_contradiction(late, third)
    assert not is_contradiction(late, lie(third, at=get_content(late).at))
    forged = replace(lie(first, at=first.receipt.at + 1), signature=bytes(64))
    assert not is_contradiction(first, forged)
    assert is_contradiction(time, sign_time(replace(time.time, head=bytes(32)), SERVICE_KEY))


# --- what nobody signed, and what never ends


class Signer:
    """Adds events to pages as the host would sign them."""

    def __init__(self, host: Host, more: int) -> None:
        self.more, self._service = more, host.service
        host.service = self  # type: ignore[assignment]
        self.added: list[Event] = []
        host.alter = self._alter
        self.make: Callable[[int], tuple[EventKind, bytes] | None] = lambda count: None

    def page(self, game: bytes, after: int, most: int) -> Page:
        """As the service has it, and nothing more after what was added."""
        if not self.added:
            return self._service.page(game, after, most)
        return replace(self._service.page(game, 0, most), events=())

    def document(self, game: bytes, name: str) -> bytes:
        return self._service.document(game, name)

    def _alter(self, page: Page) -> Page:
        last = page.events[-1].signed if page.events else None
        if last is None and self.added:
            last = self.added[-1].signed
        made = self.make(len(self.added))
        if last is None or made is None:
            return page
        kind, body = made
        receipt = replace(
            last.receipt,
            sequence=last.receipt.sequence + 1,
            kind=kind,
            digest=compute_body_digest(body),
            previous=compute_receipt_digest(last.receipt),
        )
        event = Event(body, sign_receipt(receipt, SERVICE_KEY))
        self.added.append(event)
        head = compute_receipt_digest(receipt)
        at = max(receipt.at, page.time.time.at)
        time = replace(page.time.time, sequence=receipt.sequence, head=head, at=at)
        told = sign_time(time, SERVICE_KEY)
        return replace(page, events=(*page.events, event), time=told, more=self.more)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("body", [b"", b"x"])
def test_settled_before_the_verdict_is_proof(
    host: Host, game: bytes, more: int, body: bytes
) -> None:
    signer = Signer(host, more)
    signer.make = lambda count: ("settled", body) if count < 20 else None
    with pytest.raises(ServiceFaultError, match="without a verdict") as caught:
        follow(host, game).poll()
    event = structs.decode(Event, caught.value.proof[0], "proof")
    before = structs.decode(SignedReceipt, caught.value.proof[1], "proof")
    verify_signed(event.signed, public_key(SERVICE_KEY))
    assert before.receipt.kind == "move"


@pytest.mark.parametrize(
    ("kinds", "body", "what"),
    [
        (["settled"], b"x", "with a body"),
        (["settled", "settled"], b"", "after the end"),
        (["settled", "verdict"], b"", "after the end"),
        (["verdict"], None, "after the verdict"),
        (["settled"], b"", ""),
    ],
)
def test_what_comes_after_the_verdict(
    host: Host, game: bytes, bench: Bench, kinds: list[EventKind], body: bytes | None, what: str
) -> None:
    bench.pass_time(host.service, CLOCKS.join + CLOCKS.budget + 2 * CLOCKS.grace)
    verdict, _ = host.service.verdict(game)
    told = structs.encode(verdict) if body is None else body
    follower, signer = follow(host, game), Signer(host, 0)

    def alter(page: Page) -> Page:
        for kind in kinds:
            signer.make = lambda _, kind=kind: (kind, told)  # type: ignore[misc]
            page = signer._alter(page)
        return page

    host.alter = alter
    with pytest.raises(ServiceFaultError, match=what) if what else nullcontext():
        follower.poll()
    assert follower.verdict == verdict


def test_bonds_without_end_stall_when_time_stands_still(host: Host, game: bytes) -> None:
    """Each is signed by a key of its own, so all of them are by the rules."""
    signer = Signer(host, 1)

    def make(count: int) -> tuple[EventKind, bytes] | None:
        assert count < 500, "it goes on for ever"
        return "move", structs.encode(make_bond(game, make_log().root, make_key(1000 + count)))

    signer.make = make
    with pytest.raises(StallError, match="stands still"):
        watch(follow(host, game), patience=60, clock=ticking(10))
    signer.added = []
    player = LogPlayer(2, -1)
    with pytest.raises(StallError, match="stands still"):
        play(follow(host, game), connect(host), player, patience=60, clock=ticking(10))  # type: ignore[arg-type]


def test_a_poll_ends(host: Host, game: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_PAGES", 3)
    signer = Signer(host, 1)
    signer.make = lambda count: (
        "move",
        structs.encode(make_bond(game, make_log().root, make_key(1000 + count))),
    )
    follower = follow(host, game)
    assert len(follower.poll()) == 2 + 3
    assert follower.more


def answer(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, content=json.dumps({"code": code, "detail": "no"}).encode())


UNSIGNED = [
    answer(403, "signature"),
    answer(409, "service-fault"),
    answer(409, "verdict"),
    answer(409, "stall"),
    answer(409, "move-refused"),
    answer(404, "not-found"),
    httpx.Response(403, content=b"<html>"),
]


@pytest.mark.parametrize("what", ["moves", "transcript"])
@pytest.mark.parametrize("told", UNSIGNED)
def test_what_is_said_unsigned_ends_no_game(
    host: Host,
    game: bytes,
    bench: Bench,
    told: httpx.Response,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "_RETRY", 0)
    bench.pass_time(host.service, CLOCKS.join + 1)
    once, lies, asked = host.handle_request, 0, 0

    def lie(request: httpx.Request) -> httpx.Response:
        nonlocal lies, asked
        if request.url.path.endswith("transcript"):
            asked += 1
            if asked > 4:
                bench.pass_time(host.service, CLOCKS.budget + 2 * CLOCKS.grace)
        if request.url.path.endswith(what) and lies < 2:
            lies += 1
            return httpx.Response(told.status_code, content=told.content)
        return once(request)

    monkeypatch.setattr(host, "handle_request", lie)
    client = connect(host)
    follower = Follower(client, game, graph=get_graph())
    player = LogPlayer(2, -1)
    verdict = play(follower, client, player, wait=0, clock=ticking(0))  # type: ignore[arg-type]
    assert verdict == follower.verdict
    assert lies == 2


@pytest.mark.parametrize("told", UNSIGNED)
def test_what_is_said_unsigned_for_ever_is_a_stall(
    host: Host, game: bytes, told: httpx.Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_RETRY", 0)
    follower, once = follow(host, game), host.handle_request
    monkeypatch.setattr(
        host,
        "handle_request",
        lambda request: (
            httpx.Response(told.status_code, content=told.content)
            if request.url.path.endswith("transcript")
            else once(request)
        ),
    )
    with pytest.raises(StallError):
        play(follower, connect(host), LogPlayer(2, -1), patience=60, clock=ticking(10))  # type: ignore[arg-type]
    with pytest.raises(StallError):
        watch(follower, patience=60, clock=ticking(10))


def test_errors_that_are_nobody_elses_to_name() -> None:
    for code in ("verdict", "fraud", "service-fault", "stall", "inconclusive", "", "nonsense"):
        error = from_problem({"code": code, "detail": "no"})
        assert type(error) is ProblemError
        assert error.message == "no"
    assert type(from_problem({"code": "move-refused"})) is MoveRefusedError


@pytest.mark.parametrize("said", [{"games": 5}, {"games": [5]}, {}])
def test_a_list_of_games_that_is_none(said: dict[str, object]) -> None:
    lying = httpx.MockTransport(lambda _: httpx.Response(200, json=said))
    with pytest.raises(ServiceFaultError, match="list of games"):
        DisputeClient("http://h", transport=lying).list_games()
