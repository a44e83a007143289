"""What was shown to stop a service, or to cost others: each of it, against the service itself."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from tests.dispute.arena import make_key
from tests.dispute.service.conftest import Bench
from tests.dispute.service.live import Skipping, serving
from tests.dispute.service.logs import (
    BONDS,
    CLOCKS,
    HONEST,
    LEAST,
    SERVICE_KEY,
    get_documents,
    get_graph,
    make_bond,
    make_log,
    make_log_genesis,
    make_opening,
    make_players,
    spoil,
)
from tests.dispute.service.postgres import PostgresServer
from vtrain.attest.keys import public_key
from vtrain.commit import database
from vtrain.dispute import game as rules
from vtrain.dispute.client import DisputeClient, Follower
from vtrain.dispute.client import connect as connect_client
from vtrain.dispute.market import MemoryMarket
from vtrain.dispute.problems import BusyError, TermsError, find_refusal
from vtrain.dispute.receipts import SignedReceipt
from vtrain.dispute.service import webhooks
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.limits import LIMITS
from vtrain.dispute.service.protocol import Connections
from vtrain.dispute.service.settler import Settler
from vtrain.dispute.service.store import Store
from vtrain.dispute.service.transport import TimedTransport
from vtrain.dispute.service.webhooks import Courier
from vtrain.errors import MoveRefusedError, SignatureError, StorageError, VtrainError
from vtrain.wire import structs
from vtrain.wire.dispute import SignedMove

DEADLINE = 60.0


def open_game(service: GameService, number: int = 0, **more: Any) -> bytes:
    return service.open_game(make_opening(make_log_genesis(number, **more)))[0].receipt.game


def submit(service: GameService, signed: SignedMove) -> Future[SignedReceipt]:
    return service.submit_move(signed.game, structs.encode(signed))


# --- moves


def sign(signed: SignedMove, number: int, move: bytes) -> SignedMove:
    key = make_key(number)
    unsigned = replace(signed, party=public_key(key), move=move)
    return replace(unsigned, signature=key.sign(rules.compute_move_digest(unsigned)))


def test_what_is_refused_is_not_decoded_and_reaches_no_writer(
    service: GameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = open_game(service)
    bond = make_bond(game, make_log().root, HONEST)
    submit(service, bond).result()
    bomb = b"\x99\xff\xff" + b"\x80" * 65535
    refused = [
        (sign(bond, 5, bomb), MoveRefusedError),  # longer than any bond
        (sign(replace(bond, about=bytes(32)), 5, bomb), MoveRefusedError),  # not asked for
        (sign(bond, 2, bond.move + b"\0"), MoveRefusedError),  # bonded already
        (spoil(sign(bond, 5, bond.move)), SignatureError),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(rules, "decode_move", lambda *_: pytest.fail("was decoded"))
        patch.setattr(service._writer, "submit", lambda *_: pytest.fail("reached the writer"))
        for signed, error in refused:
            with pytest.raises(error):
                submit(service, signed)
    with monkeypatch.context() as patch:
        patch.setattr(service._writer, "submit", lambda *_: pytest.fail("reached the writer"))
        with pytest.raises(VtrainError) as caught:  # in the thread that brings it
            submit(service, sign(bond, 5, b"\x80"))
        assert find_refusal(caught.value)


# --- money


def test_the_same_bond_twice_keeps_the_first_ones_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two copies at once the second finds the writer busy, and its lock is released."""
    party = public_key(HONEST)
    market = bench.market = MemoryMarket({party: 100})
    service = bench.start()
    game = open_game(service, bonds=BONDS)
    bond = make_bond(game, make_log().root, HONEST)
    go_on, first = threading.Event(), service._writer._run

    def hold(works: Any) -> list[Any]:
        assert go_on.wait(DEADLINE)
        return first(works)

    with monkeypatch.context() as patch:
        patch.setattr(service._writer, "_run", hold)
        accepted = submit(service, bond)
        submit_to_writer = service._writer.submit
        patch.setattr(service._writer, "submit", _refuse_busy)
        with pytest.raises(BusyError):
            submit(service, bond)
        patch.setattr(service._writer, "submit", submit_to_writer)
        go_on.set()
        assert accepted.result().receipt.sequence == 2
    assert [lock.count for lock in market.locked.values()] == [1]
    assert market.balances[party] == 0


def _refuse_busy(_work: object) -> None:
    raise BusyError("too many moves wait", where="service")


def test_a_bond_that_is_refused_late_is_released(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    market = bench.market = MemoryMarket({public_key(HONEST): 100})
    service = bench.start(replace(LIMITS, bonds=0))
    game = open_game(service, bonds=BONDS)
    with pytest.raises(VtrainError) as caught:
        submit(service, make_bond(game, make_log().root, HONEST)).result()
    assert find_refusal(caught.value)
    assert not market.locked
    assert market.balances[public_key(HONEST)] == 100


def test_bonds_of_nothing_are_refused_unless_told_otherwise(url: str) -> None:
    with (
        closing(Store(url)) as store,
        closing(GameService(store, SERVICE_KEY, MemoryMarket())) as service,
    ):
        with pytest.raises(TermsError) as caught:
            open_game(service)
        assert caught.value.where == "bonds.log"
        open_game(service, bonds=BONDS)


def test_a_market_that_fails_keeps_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raised may have happened: it is undone, and the same is tried again."""
    market = bench.market = MemoryMarket({public_key(HONEST): 100})
    service = bench.start()
    lock, begin = market.lock, market.open

    def fail_late(call: Any) -> Any:
        def failing(*arguments: Any) -> None:
            call(*arguments)
            raise OSError("the line is dead")

        return failing

    with monkeypatch.context() as patch:
        patch.setattr(market, "open", fail_late(begin))
        with pytest.raises(BusyError, match="market failed"):
            open_game(service, bonds=BONDS)
    assert not market.games
    game = open_game(service, bonds=BONDS)
    bond = make_bond(game, make_log().root, HONEST)
    with monkeypatch.context() as patch:
        patch.setattr(market, "lock", fail_late(lock))
        with pytest.raises(BusyError, match="market failed"):
            submit(service, bond)
    assert not market.locked
    assert submit(service, bond).result().receipt.sequence == 2


def test_a_game_that_is_refused_late_is_cancelled(bench: Bench) -> None:
    market = bench.market = MemoryMarket()
    service = bench.start(replace(LIMITS, games=1))
    first = open_game(service)
    assert open_game(service) == first
    with pytest.raises(BusyError):
        open_game(service, 1)
    assert dict(market.games) == {first: 1}


# --- settlement and webhooks


@contextmanager
def dripping() -> Iterator[str]:
    """A receiver that answers a byte at a time, for ever."""
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            while not stop.wait(0.02):
                try:
                    connection.sendall(b"H")
                except OSError:
                    return

    def accept(server: socket.socket) -> None:
        while not stop.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=drip, args=(connection,)))
            threads[-1].start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threads.append(threading.Thread(target=accept, args=(server,)))
        threads[0].start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        finally:
            stop.set()
            with socket.create_connection(server.getsockname()):
                pass
            for thread in threads:
                thread.join(DEADLINE)


def test_a_receiver_that_drips_holds_up_nobody(
    bench: Bench, service: GameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT", 1.5)
    arrived, settled = threading.Event(), threading.Event()
    monkeypatch.setattr(bench.market, "settle", lambda _: settled.set())

    class Through(httpx.BaseTransport):
        """To the receiver that drips by network, to the other by hand."""

        inner = TimedTransport(webhooks.TIMEOUT)

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.port == 9:
                arrived.set()
                return httpx.Response(204)
            return self.inner.handle_request(request)

    with dripping() as slow, ExitStack() as stack:
        courier = Courier(service, bench.store(service), allow_private=True, transport=Through())
        stack.enter_context(closing(courier))
        settler = stack.enter_context(closing(Settler(service)))
        for _ in range(8):
            courier.add_hook(slow)
        courier.add_hook("http://127.0.0.1:9/")
        open_game(service)
        courier.start()
        settler.start()
        bench.pass_time(service, CLOCKS.join + 1)
        assert settled.wait(DEADLINE)
        assert arrived.wait(DEADLINE)
        assert not any(hook.trouble for hook in courier.list_hooks()), "waited for the slow ones"
        courier.deliver()
        troubles = [hook.trouble for hook in courier.list_hooks()]
        assert all(troubles[:8])
        assert not troubles[8]


def test_a_date_that_jumps_back_stops_no_webhook(bench: Bench, service: GameService) -> None:
    now, status, requests = [10**12], [500], list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(status[0])

    with closing(
        Courier(
            service,
            bench.store(service),
            now=lambda: now[0],
            resolve=lambda host, port: ["93.184.215.14"],
            transport=httpx.MockTransport(answer),
        )
    ) as courier:
        courier.add_hook("https://market.example/")
        open_game(service)
        courier.deliver()
        now[0] -= 10**10  # months
        status[0] = 204
        courier.deliver()
    assert len(requests) == 2


# --- connections


def test_idle_connections_give_way(tmp_path: Path) -> None:
    limits = replace(LIMITS, least=LEAST, connections=12, connections_each=8)
    with serving(f"sqlite:///{tmp_path}/g.db", SERVICE_KEY, limits=limits) as url:
        port = int(url.rpartition(":")[2])
        with ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client = stack.enter_context(connect_client(url))
            game = client.open(make_log_genesis(), *get_documents()).receipt.game
            client.move(make_bond(game, make_log().root, HONEST))


def test_bodies_that_do_not_come_take_no_turn(tmp_path: Path) -> None:
    limits = replace(LIMITS, least=LEAST, bodies_each=1 << 30, bodies=1 << 30)
    with serving(f"sqlite:///{tmp_path}/g.db", SERVICE_KEY, limits=limits) as url:
        port = int(url.rpartition(":")[2])
        head = "POST /v1/games HTTP/1.1\r\nHost: h\r\nContent-Type: application/cbor\r\n"
        with ExitStack() as stack:
            for _ in range(32):
                slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                slow.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode())
            client = stack.enter_context(connect_client(url))
            client.open(make_log_genesis(), *get_documents())


def test_bodies_of_one_address_are_bounded(tmp_path: Path) -> None:
    limits = replace(LIMITS, least=LEAST, bodies_each=1 << 20)
    with serving(f"sqlite:///{tmp_path}/g.db", SERVICE_KEY, limits=limits) as url:
        headers = {"Content-Type": "application/cbor"}
        response = httpx.post(f"{url}/v1/games", content=bytes(2 << 20), headers=headers)
        assert response.status_code == 429
        assert response.headers["retry-after"]


def test_openings_of_one_address_are_bounded(tmp_path: Path) -> None:
    limits = replace(LIMITS, least=LEAST, opening_burst=2, opening_seconds=1e6)
    with serving(f"sqlite:///{tmp_path}/g.db", SERVICE_KEY, limits=limits) as url:
        headers = {"Content-Type": "application/cbor"}
        codes = [
            httpx.post(
                f"{url}/v1/games", content=make_opening(make_log_genesis(n)), headers=headers
            ).status_code
            for n in range(3)
        ]
    assert codes == [201, 201, 429]


class FakeConnection:
    """What ``Connections`` sees of a protocol."""

    def __init__(self, known: Any, address: str) -> None:
        self._known, self.address = known, address
        self.since, self.busy, self.trusted, self.dropped = 0.0, False, False, False
        known.add(self)

    def drop(self) -> None:
        self._known.remove(self)
        self.dropped = True


def test_who_gives_way() -> None:
    now = [0.0]
    known: Any = Connections(
        most=5, each=3, head=10, whole=100, clock=lambda: now[0], proxies=frozenset({"proxy"})
    )

    def connect(address: str, **state: bool) -> FakeConnection:
        now[0] += 1
        found = FakeConnection(known, address)
        vars(found).update(state)
        return found

    trusted = connect("a", trusted=True)
    busy = connect("a", busy=True)
    idle = connect("a")
    fourth = connect("a")
    assert [each.dropped for each in (trusted, busy, idle, fourth)] == [False, False, True, False]
    proxied = [connect("proxy") for _ in range(4)]
    assert len([each for each in proxied if each.dropped]) == 1, "six are too many in all"
    assert not trusted.dropped
    now[0] += 50
    known.sweep()
    assert not busy.dropped, "its request has the whole time"
    assert fourth.dropped
    now[0] += 60
    known.sweep()
    assert busy.dropped


# --- what is not to be read in a log


def test_no_secret_in_a_log(
    bench: Bench,
    service: GameService,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A statement that fails has its parameters in its text: a hook's secret, a party's move."""
    with closing(Courier(service, bench.store(service), allow_private=True)) as courier:
        secret, word = b"\x07" * 32, "".join(["hun", "ter2"])
        monkeypatch.setattr("secrets.token_bytes", lambda _: secret)
        with bench.store(service).write() as connection:
            connection.execute(text("ALTER TABLE hooks RENAME COLUMN trouble TO other"))
        with pytest.raises(StorageError) as caught:
            courier.add_hook(f"http://127.0.0.1:9/?token={word}")
        logging.getLogger("vtrain.dispute").error("failed", exc_info=caught.value)
    logged = caplog.text
    assert "failed" in logged
    for hidden in (word, secret.hex(), repr(secret), "\\x07\\x07"):
        assert hidden not in logged


# --- several processes, PostgreSQL


def test_a_process_reads_what_another_wrote(bench: Bench) -> None:
    """Whoever asks one process for what follows an event of another's gets no fault for it."""
    one, other = bench.start(), bench.start()
    game = open_game(one)
    assert other.page(game, 0, 10).time.time.sequence == 1
    submit(one, make_bond(game, make_log().root, HONEST)).result()
    stale = other.page(game, 1, 10)
    assert (stale.events, stale.time.time.sequence) == ((), 1)
    ahead = other.page(game, 2, 10)
    assert (ahead.events, ahead.time.time.sequence) == ((), 2)
    with pytest.raises(VtrainError, match="no such event"):
        other.page(game, 3, 10)


def test_times_of_two_processes_are_of_one_history(bench: Bench) -> None:
    """A time that one says is never after an event that the other adds later."""
    services = [bench.start(), bench.start()]
    game = open_game(services[0])
    for number in range(2, 12):
        bench.hands.ticks += 137
        times = [service.page(game, 0, 256).time.time for service in services]
        service = services[number % 2]
        bond = make_bond(game, number.to_bytes(32, "big"), make_key(number))
        receipt = submit(service, bond).result().receipt
        assert receipt.at >= max(time.at for time in times)
        services[number % 3 % 2].beat()


def test_a_commit_of_which_nobody_knows(
    bench: Bench, service: GameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is stored and its commit fails: the move is there, once."""
    game = open_game(service)
    bond = make_bond(game, make_log().root, HONEST)
    keep = service._clock.keep

    def fail(now: int, ticks: int) -> None:
        raise StorageError("the connection is lost", where="database")

    with monkeypatch.context() as patch:
        patch.setattr(service._clock, "keep", fail)
        with pytest.raises(StorageError):
            submit(service, bond).result()
        patch.setattr(service._clock, "keep", keep)
        receipt = submit(service, bond).result()
        assert receipt.receipt.sequence == 2
        assert submit(service, bond).result() == receipt
    page = service.page(game, 0, 10)
    assert [event.signed.receipt.sequence for event in page.events] == [1, 2]


@pytest.fixture
def postgres_bench(postgres: PostgresServer) -> Iterator[Bench]:
    with closing(Bench(postgres.make_database())) as found:
        yield found


def test_a_lock_that_is_never_given_back(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stands still in mid-transaction stops the others for a while, not for good."""
    monkeypatch.setattr(database, "LOCK_SECONDS", 1)
    monkeypatch.setattr(database, "IDLE_SECONDS", 3)
    service, frozen = postgres_bench.start(), postgres_bench.start()
    game = open_game(service)
    bond = make_bond(game, make_log().root, HONEST)
    with pytest.raises(StorageError):  # once it wakes up, all that it did is undone
        _freeze(postgres_bench, frozen, service, bond)


def _freeze(bench: Bench, frozen: GameService, service: GameService, bond: SignedMove) -> None:
    with bench.store(frozen).write() as connection:
        connection.execute(text("SELECT clock FROM service FOR UPDATE"))
        with pytest.raises(StorageError, match="lock timeout"):
            submit(service, bond).result(DEADLINE)
        assert insist(service, bond).receipt.sequence == 2
        connection.execute(text("SELECT 1"))


def insist(service: GameService, signed: SignedMove) -> SignedReceipt:
    """The receipt, once the database is there."""
    until = time.monotonic() + DEADLINE
    while True:
        try:
            return submit(service, signed).result(DEADLINE)
        except StorageError:
            assert time.monotonic() < until


def test_connections_that_are_cut(postgres_bench: Bench) -> None:
    service = postgres_bench.start()
    game = open_game(service)
    cut = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    other = postgres_bench.start()
    for number in range(2, 8):
        with postgres_bench.store(other).read() as connection:
            connection.execute(cut)
        bond = make_bond(game, number.to_bytes(32, "big"), make_key(number))
        assert insist(service, bond).receipt.sequence == number
    assert len(service.page(game, 0, 20).events) == 7


@pytest.mark.slow
def test_two_servers_on_one_database(postgres: PostgresServer) -> None:
    """Each party is at a server of its own; every receipt and time is of one history."""
    db = postgres.make_database()
    limits = replace(LIMITS, least=LEAST, beat=20)
    clocks = replace(LEAST, join=LIMITS.gap, trace=100, terms=100, budget=600_000, grace=60_000)
    clock = Skipping()
    with (
        serving(db, SERVICE_KEY, limits=limits, ticks=clock) as one,
        serving(db, SERVICE_KEY, limits=limits, ticks=clock) as other,
        closing(DisputeClient(one)) as first,
        closing(DisputeClient(other)) as second,
    ):
        game = first.open(make_log_genesis(clocks=clocks), *get_documents()).receipt.game
        parties = [
            (client, Follower(client, game, graph=get_graph()), player)
            for client, player in zip((first, second), make_players(), strict=True)
        ]
        until, waits = time.monotonic() + DEADLINE, True
        while not all(follower.verdict for _, follower, _ in parties):
            assert time.monotonic() < until
            if waits and len(parties[0][1].game.stands) == 2:
                waits = False
                clock.skip(clocks.join)
            for client, follower, player in parties:
                follower.poll(0.05)
                for signed in player.moves(follower.game):
                    client.move(signed)
        assert parties[0][1].verdict == parties[1][1].verdict
        assert parties[0][1].events[:-1] == parties[1][1].events[: len(parties[0][1].events) - 1]
