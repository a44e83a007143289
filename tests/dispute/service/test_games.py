"""The service without HTTP: events, receipts, time, restarts, two writers, markets."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
from immutables import Map
from sqlalchemy import update

from tests.dispute.arena import make_key
from tests.dispute.service.conftest import Bench
from tests.dispute.service.logs import (
    BONDS,
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
    spoil,
)
from vtrain.attest.keys import public_key
from vtrain.dispute.game import find_verdict, sign
from vtrain.dispute.market import BondClaim, MemoryMarket
from vtrain.dispute.problems import (
    BondRefusedError,
    BusyError,
    ConflictError,
    NotFoundError,
    TermsError,
    TooLargeError,
)
from vtrain.dispute.receipts import (
    Chain,
    SignedReceipt,
    compute_body_digest,
    to_moves,
)
from vtrain.dispute.service import store as tables
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.limits import LIMITS
from vtrain.dispute.service.store import Store
from vtrain.dispute.state import Game, compute_game_id
from vtrain.dispute.transcript import replay
from vtrain.errors import (
    EncodingError,
    MoveRefusedError,
    SignatureError,
    StorageError,
    VtrainError,
)
from vtrain.wire import structs
from vtrain.wire.dispute import Bond, Bonds, Genesis, Reveal, SignedMove


def open_game(service: GameService, genesis: Genesis | None = None) -> bytes:
    signed, new = service.open_game(make_opening(genesis or make_log_genesis()))
    assert new
    return signed.receipt.game


def move(service: GameService, signed: SignedMove) -> SignedReceipt:
    return service.submit_move(signed.game, structs.encode(signed)).result()


def play_out(bench: Bench, service: GameService, game: bytes) -> None:
    """All moves of both, with the time that must pass between them."""
    while service.list_games(0, 100)[-1][2] is False:
        sent = [
            move(service, signed)
            for player in make_players()
            for signed in player.moves(service.state(game))
        ]
        if not sent:
            bench.pass_time(service, CLOCKS.join)


def replay_page(service: GameService, game: bytes) -> Game:
    page = service.page(game, 0, 256)
    assert not page.more
    chain = Chain(game, service.public)
    for event in page.events:
        chain.extend(event)
    genesis = structs.decode(Genesis, page.events[0].body, "genesis")
    return replay(genesis, get_graph(), to_moves(page.events))


def test_a_game_to_its_verdict(bench: Bench, service: GameService) -> None:
    game = open_game(service)
    with pytest.raises(NotFoundError, match="no verdict"):
        service.verdict(game)
    play_out(bench, service, game)
    verdict, event = service.verdict(game)
    assert verdict.standing == make_log().root
    assert verdict.solver is not None
    assert (verdict.solver.reason, verdict.solver.place.step) == ("malformed", BROKEN + 1)
    assert service.settle_games() == []
    assert service.settle_games() == []
    assert isinstance(bench.market, MemoryMarket)
    assert list(bench.market.settled) == [game]
    kinds = [event.signed.receipt.kind for event in service.page(game, 0, 256).events]
    assert kinds == ["opened", *["move"] * 7, "verdict", "settled"]
    replayed = replay_page(service, game)
    assert find_verdict(replayed) == verdict
    assert structs.encode(verdict) == event.body


def test_opening_twice_gives_the_first_answer(service: GameService) -> None:
    body = make_opening(make_log_genesis())
    first, new = service.open_game(body, "key")
    assert new
    assert service.open_game(body, "key") == (first, False)
    assert service.open_game(body) == (first, False)
    with pytest.raises(ConflictError):
        service.open_game(make_opening(make_log_genesis(1)), "key")
    assert len(service.list_games(0, 10)) == 1


def test_the_genesis_must_follow_from_the_task(service: GameService) -> None:
    genesis = make_log_genesis()
    for wrong in (
        replace(genesis, nodes=genesis.nodes + 1),
        replace(genesis, record_node=0),
        replace(genesis, samples=1),
        replace(genesis, commit_every=1),
        replace(genesis, initial_state_root=bytes(32)),
    ):
        with pytest.raises(EncodingError) as caught:
            service.open_game(make_opening(wrong))
        name = caught.value.where.removeprefix("genesis.")
        assert getattr(wrong, name) != getattr(genesis, name)
    with pytest.raises(SignatureError):
        service.open_game(make_opening(replace(genesis, signature=bytes(64))))
    with pytest.raises(VtrainError, match="another task"):
        service.open_game(make_opening(replace(genesis, task_id=bytes(32))))
    body = make_opening(genesis)
    for spoiled in (b"", body[:-1], body + b"\0"):
        with pytest.raises(EncodingError):
            service.open_game(spoiled)
    assert service.list_games(0, 10) == []


def test_clocks_that_nobody_could_keep_are_refused(service: GameService) -> None:
    clocks = replace(CLOCKS, join=LIMITS.least.join - 1)
    with pytest.raises(TermsError) as caught:
        service.open_game(make_opening(make_log_genesis(clocks=clocks)))
    assert caught.value.where == "genesis.clocks.join"


def test_refused_moves_leave_no_trace(service: GameService) -> None:
    game = open_game(service)
    good = make_bond(game, make_log().root, HONEST)
    body = structs.encode(good)
    for spoiled, error in (
        (structs.encode(spoil(good)), SignatureError),
        (structs.encode(replace(good, party=public_key(make_key(3)))), SignatureError),
        (structs.encode(replace(good, game=bytes(32))), MoveRefusedError),
        (body[:-1], EncodingError),
        (structs.encode(sign(game, bytes(32), Bond(bytes(32), b"", ()), HONEST)), MoveRefusedError),
        (structs.encode(sign(game, bytes(32), Reveal(()), HONEST)), MoveRefusedError),
    ):
        with pytest.raises(error):
            service.submit_move(game, spoiled).result()
    assert service.page(game, 0, 10).events[-1].signed.receipt.kind == "opened"
    assert move(service, good).receipt.sequence == 2


def test_no_such_game(service: GameService) -> None:
    genesis = make_log_genesis(5)
    signed = make_bond(compute_game_id(genesis), make_log().root, HONEST)
    with pytest.raises(NotFoundError):
        move(service, signed)


def test_the_same_move_takes_effect_once(service: GameService) -> None:
    game = open_game(service)
    signed = make_bond(game, make_log().root, HONEST)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: move(service, signed), range(32)))
    assert len(set(map(structs.encode, answers))) == 1
    assert service.load(game).sequence == 2
    assert answers[0].receipt.digest == compute_body_digest(structs.encode(signed))


def test_a_restart_keeps_everything(bench: Bench, service: GameService) -> None:
    game = open_game(service)
    bond = make_bond(game, make_log().root, HONEST)
    first = move(service, bond)
    bench.pass_time(service, 7_000)
    before = service.state(game)
    bench.stop(service)
    again = bench.start()
    assert again.state(game) == before
    assert move(again, bond) == first
    play_out(bench, again, game)
    assert find_verdict(replay_page(again, game)) == again.verdict(game)[0]


def test_time_stands_still_while_the_service_is_down(bench: Bench, service: GameService) -> None:
    game = open_game(service)
    bench.pass_time(service, 10_000)
    assert service.state(game).now == 10_000
    bench.hands.ticks += 3_000  # after the last heartbeat: lost with the crash
    bench.stop(service)
    bench.hands.ticks += 10**9
    again = bench.start()
    again.beat()
    assert again.state(game).now == 10_000
    bench.pass_time(again, 1_000)
    assert again.state(game).now == 11_000


def test_a_frozen_process_charges_no_player(bench: Bench, service: GameService) -> None:
    game = open_game(service)
    bench.hands.ticks += 10**9
    service.beat()
    assert service.state(game).now == LIMITS.gap


def test_time_alone_ends_games(bench: Bench, service: GameService) -> None:
    game = open_game(service, make_log_genesis(opened=12345))
    assert service.state(game).now == 12345
    bench.pass_time(service, CLOCKS.join)
    assert not service.state(game).over
    bench.pass_time(service, 1)
    verdict, event = service.verdict(game)
    assert verdict.standing == make_log(BROKEN).root
    assert verdict.solver is None
    assert event.signed.receipt.at == 12345 + CLOCKS.join + 1
    assert verdict.at == 12345 + CLOCKS.join
    assert find_verdict(replay_page(service, game)) == verdict


def test_two_services_on_one_database(bench: Bench) -> None:
    """Each writes, each sees what the other wrote, and no move is lost or doubled."""
    one, other = bench.start(), bench.start()
    clocks = replace(CLOCKS, budget=10**9)
    genesis = [make_log_genesis(i, arity=2, clocks=clocks) for i in range(6)]
    games = [open_game((one, other)[i % 2], g) for i, g in enumerate(genesis)]
    errors: list[BaseException] = []

    def run(service: GameService, player: LogPlayer) -> None:
        try:
            while not all(service.state(game).over for game in games):
                for game in games:
                    for signed in player.moves(service.state(game)):
                        # What is asked may be settled meanwhile, by the other's move.
                        with contextlib.suppress(MoveRefusedError):
                            move(service, signed)
                            assert move(other, signed) == move(one, signed)
                if player.broken < 0:  # once the honest player has joined all games
                    bench.hands.ticks += LIMITS.gap
                service.beat()  # which takes in what the other service wrote
        except BaseException as error:
            errors.append(error)
            raise

    liar, honest = make_players()
    threads = [
        threading.Thread(target=run, args=(one, liar)),
        threading.Thread(target=run, args=(other, honest)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for game in games:
        for service in (one, other):
            replayed = replay_page(service, game)
            assert find_verdict(replayed) == service.verdict(game)[0]
            assert replayed.moves == 19
            assert service.verdict(game)[0].standing == make_log().root


def test_games_beyond_the_cache_are_folded_anew(bench: Bench) -> None:
    service = bench.start(replace(LIMITS, cached=2))
    games = [open_game(service, make_log_genesis(i)) for i in range(5)]
    for game in games:
        move(service, make_bond(game, make_log().root, HONEST))
    assert [len(service.state(game).logs) for game in games] == [2] * 5
    assert len(service._cache) <= 2


def test_another_key_cannot_go_on_with_the_receipts(bench: Bench, service: GameService) -> None:
    store = bench.store(service)
    with pytest.raises(StorageError, match="another service key"):
        GameService(store, make_key(98), MemoryMarket())


def test_all_who_serve_a_database_agree_on_bonds(bench: Bench, service: GameService) -> None:
    """A service without the deposits would end games whose bonds are locked there for ever."""
    store = bench.store(service)
    with pytest.raises(StorageError, match="free of bonds: serve it so"):
        GameService(store, SERVICE_KEY, MemoryMarket())
    with store.write() as connection:
        connection.execute(update(tables.service).values(free=None))  # as before the column
    first = GameService(store, SERVICE_KEY, MemoryMarket())
    first.close()
    with pytest.raises(StorageError, match="with bonds, which are locked"):
        bench.start()


def test_games_with_bonds_are_not_taken_for_free(bench: Bench, service: GameService) -> None:
    open_game(service, replace(make_log_genesis(), bonds=Bonds(5, 5, 5)))
    with bench.store(service).write() as connection:
        connection.execute(update(tables.service).values(free=None))
    with pytest.raises(StorageError, match="bonds that are not settled"):
        bench.start()


def test_limits(bench: Bench) -> None:
    service = bench.start(replace(LIMITS, bonds=1, games=2))
    game = open_game(service)
    move(service, make_bond(game, make_log().root, HONEST))
    with pytest.raises(TooLargeError):
        move(service, make_bond(game, bytes(32), make_key(3)))
    open_game(service, make_log_genesis(1))
    with pytest.raises(BusyError):
        open_game(service, make_log_genesis(2))


def test_a_game_that_others_have_filled_takes_an_honest_bond(bench: Bench) -> None:
    bench.market = MemoryMarket({public_key(make_key(i)): 100 for i in range(2, 9)})
    service = bench.start(replace(LIMITS, bonds=2))
    game = open_game(service, make_log_genesis(bonds=BONDS))
    false = make_log(9).root
    for number in (3, 4):
        move(service, make_bond(game, false, make_key(number)))
    with pytest.raises(TooLargeError, match="claim has 2 bonds"):
        move(service, make_bond(game, false, make_key(5)))
    move(service, make_bond(game, make_log(7).root, make_key(6)))
    move(service, make_bond(game, make_log().root, HONEST))
    assert len(service.state(game).logs) == 4
    assert bench.market.balances[public_key(make_key(5))] == 100


@pytest.mark.parametrize(("amount", "price", "full"), [(0, 1, False), (1, 1, True), (0, 0, True)])
def test_a_bond_that_is_free_by_the_rules_always_has_room(
    bench: Bench, amount: int, price: int, full: bool
) -> None:
    service = bench.start(replace(LIMITS, bonds=1))
    game = service.state(open_game(service, make_log_genesis(bonds=Bonds(1, price, 1))))
    scope, side, root = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32
    after = replace(
        game,
        sides=game.sides.set(side, scope),
        stands=game.stands.set((scope, root), root).set((scope, side), root),
        backers=game.backers.set((scope, root), Map({bytes([i]) * 32: i for i in range(2)})),
    )
    claim = BondClaim(bytes(32), game.id, root, "trace", side, root, amount)
    with pytest.raises(TooLargeError) if full else nullcontext():
        service._check_room(after, claim)


def test_bonds_are_locked_first_and_settled_once(bench: Bench) -> None:
    honest, liar, poor = (public_key(make_key(i)) for i in (2, 4, 5))
    market = bench.market = MemoryMarket({honest: 100, liar: 100, poor: 99})
    service = bench.start()
    game = open_game(service, make_log_genesis(bonds=BONDS))
    with pytest.raises(BondRefusedError):
        move(service, make_bond(game, make_log(7).root, make_key(5)))
    move(service, make_bond(game, make_log(9).root, make_key(4)))
    with pytest.raises(MoveRefusedError):
        move(service, make_bond(game, make_log(8).root, make_key(4)))
    move(service, make_bond(game, make_log().root, HONEST))
    assert dict(market.balances) == {honest: 0, liar: 0, poor: 99}
    players = (*make_players(), LogPlayer(4, 9))
    while not service.list_games(0, 1)[0][2]:
        sent = [move(service, it) for p in players for it in p.moves(service.state(game))]
        if not sent:
            bench.pass_time(service, CLOCKS.join)
    assert service.settle_games() == []
    assert dict(market.balances) == {honest: 200, liar: 0, poor: 99}
    bench.stop(service)
    assert bench.start().settle_games() == []
    assert len(market.settled) == 1
    outcomes = market.settled[game].settled.outcomes
    assert [(o.party, bool(o.returned)) for o in outcomes] == [(liar, False), (honest, True)]


def test_a_settlement_that_fails_is_repeated_once_it_can(
    bench: Bench, service: GameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = open_game(service)
    bench.pass_time(service, CLOCKS.join + 1)
    calls: list[bytes] = []
    market = bench.market

    def fail(_settlement: object) -> None:
        raise BusyError("the bank is closed")

    with monkeypatch.context() as patch:
        patch.setattr(market, "settle", fail)
        assert [error.code for error in service.settle_games()] == ["busy"]
    monkeypatch.setattr(market, "settle", lambda it: calls.append(it.verdict.game))
    assert service.settle_games() == []
    assert service.settle_games() == []
    assert calls == [game]


def test_pages(service: GameService) -> None:
    game = open_game(service)
    for number in range(2, 12):
        root = number.to_bytes(32, "big")
        move(service, make_bond(game, root, make_key(number)))
    first = service.page(game, 0, 4)
    assert [event.signed.receipt.sequence for event in first.events] == [1, 2, 3, 4]
    assert first.more
    last = service.page(game, 10, 4)
    assert [event.signed.receipt.sequence for event in last.events] == [11]
    assert not last.more
    assert service.page(game, 11, 4).events == ()


def test_a_defect_answers_its_own_request_alone(
    service: GameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = open_game(service)
    signed = make_bond(game, make_log().root, HONEST)
    with monkeypatch.context() as patch:
        patch.setattr(GameService, "_append", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            move(service, signed)
    assert move(service, signed).receipt.sequence == 2


@pytest.mark.parametrize(
    "bad", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://h/d", "sqlite:////no/d/b"]
)
def test_databases_that_cannot_be_used(bad: str) -> None:
    with pytest.raises(StorageError):
        Store(bad)


def test_digest_of_games(service: GameService) -> None:
    genesis = make_log_genesis(3)
    assert open_game(service, genesis) == compute_game_id(genesis)
    assert service.document(compute_game_id(genesis), "genesis") == structs.encode(genesis)
    with pytest.raises(NotFoundError):
        service.document(bytes(32), "graph")
