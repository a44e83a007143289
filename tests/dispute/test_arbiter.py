"""The arbiter: each trap of hosting games in a process of one's own, as an attack."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.dispute.arena import BONDS, CLOCKS, Actor, make_key
from tests.dispute.log_claims import (
    BROKEN,
    HONEST,
    LIAR,
    STEPS,
    Hands,
    LogPlayer,
    bond,
    get_task,
    make_claim,
    make_log,
)
from tests.tasks import make_tiny_task
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.demo.lies import Lies, LyingProvider, LyingSession, add_one
from vtrain.dispute import arbiter as module
from vtrain.dispute.arbiter import Arbiter, make_settlement
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import find_verdict, sign, start
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.market import (
    BondClaim,
    MemoryMarket,
    Notice,
    Settlement,
    compute_credits,
)
from vtrain.dispute.players import Player
from vtrain.dispute.problems import (
    BondRefusedError,
    BusyError,
    NotFoundError,
    ServiceFaultError,
    TermsError,
)
from vtrain.dispute.receipts import Chain, Event, to_moves
from vtrain.dispute.state import Game
from vtrain.dispute.transcript import replay
from vtrain.engines.registry import open_session
from vtrain.errors import MoveRefusedError, SignatureError, StorageError, VtrainError
from vtrain.wire import structs
from vtrain.wire.claim import Claim, SignedClaim
from vtrain.wire.dispute import MAX_MOVE, Genesis, Reveal, SignedMove, decode_move

HOST, THIRD, FOURTH = map(make_key, (9, 3, 4))
KEYS = (LIAR, HONEST, THIRD, FOURTH)
GAP = 5_000


# --- markets and clocks that can be told to misbehave


class Bank(MemoryMarket):
    """A market that remembers its calls, and has something happen before or after some of them."""

    def __init__(self, money: int = 10_000) -> None:
        super().__init__({public_key(key): money for key in KEYS})
        self.calls: list[str] = []
        self.before: dict[str, list[Callable[[], None]]] = {}
        self.after: dict[str, list[Callable[[], None]]] = {}

    def _note(self, call: str, do: Callable[[], None]) -> None:
        self.calls.append(call)
        for step in _next(self.before, call):
            step()
        do()
        for step in _next(self.after, call):
            step()

    def open(self, game: bytes, genesis: Genesis) -> None:
        self._note("open", lambda: super(Bank, self).open(game, genesis))

    def cancel(self, game: bytes) -> None:
        self._note("cancel", lambda: super(Bank, self).cancel(game))

    def lock(self, bond: BondClaim) -> None:
        self._note("lock", lambda: super(Bank, self).lock(bond))

    def release(self, bond: BondClaim) -> None:
        self._note("release", lambda: super(Bank, self).release(bond))

    def settle(self, settlement: Settlement) -> None:
        self._note("settle", lambda: super(Bank, self).settle(settlement))

    @property
    def total(self) -> int:
        return sum(self.balances.values())

    def get(self, key: PrivateKey) -> int:
        return self.balances[public_key(key)]


def _next(steps: dict[str, list[Callable[[], None]]], call: str) -> list[Callable[[], None]]:
    return [steps[call].pop(0)] if steps.get(call) else []


def fail(error: Exception) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


class Table:
    """An arbiter with a bank and a clock, and a game about the liar's claim."""

    def __init__(self, bank: Bank | None = None) -> None:
        self.bank, self.hands = bank or Bank(), Hands()
        self.kept: list[Event] = []
        self.failing: list[Exception] = []
        self.arbiter = self.start()

    def start(self) -> Arbiter:
        return Arbiter(HOST, self.bank, self.hands, gap=GAP, record=self.record)

    def record(self, events: Sequence[Event]) -> None:
        if self.failing:
            raise self.failing.pop(0)
        self.kept.extend(events)

    def open(self, signed: SignedClaim | None = None) -> bytes:
        task = get_task()
        signed = signed or make_claim(make_log(BROKEN))
        return self.arbiter.open(task.spec, task.graph, signed, clocks=CLOCKS, bonds=BONDS)

    def play(self, game: bytes, players: Sequence[Actor]) -> Game:
        """To the end and its settlement."""
        while (wait := self.arbiter.tick()) is not None:
            moves = [move for player in players for move in player.moves(self.arbiter.game(game))]
            for move in moves:
                self.hands.at += 1
                with suppress(MoveRefusedError):  # overtaken by the one before
                    self.arbiter.submit(move)
            self.hands.at += 0 if moves else wait
        return self.arbiter.game(game)


@pytest.fixture
def table() -> Table:
    return Table()


# --- opening


def test_a_claim_of_one_step_is_nothing_that_anybody_ordered(table: Table) -> None:
    with pytest.raises(TermsError, match="of 1 steps and not of all 40") as caught:
        table.open(make_claim(make_log(steps=1)))
    assert caught.value.where == "claim.log_size"
    with pytest.raises(TermsError):
        table.open(make_claim(make_log(steps=STEPS - 1)))
    assert table.bank.calls == []


def test_a_game_for_nothing_has_to_be_meant(table: Table) -> None:
    task, claim = get_task(), make_claim(make_log())
    with pytest.raises(TermsError, match="make_bonds") as caught:
        table.arbiter.open(task.spec, task.graph, claim)
    assert caught.value.where == "bonds.log"
    for level in ("log", "trace", "terms"):
        bonds = replace(BONDS, **{level: 0})
        with pytest.raises(TermsError):
            table.arbiter.open(task.spec, task.graph, claim, bonds=bonds)
    assert table.bank.calls == []
    game = table.arbiter.open(task.spec, task.graph, claim, clocks=CLOCKS, free=True)
    table.arbiter.submit(bond(table.arbiter.game(game), HONEST, make_log(loss=1).root))
    assert table.bank.calls == ["open"]
    assert table.bank.total == 40_000


def test_a_claim_has_one_game_and_blocks_no_other(table: Table) -> None:
    first = table.open(make_claim(make_log(loss=1)))
    assert table.open(make_claim(make_log(loss=1))) == first
    others = [
        table.open(make_claim(make_log(loss=2))),
        table.open(make_claim(make_log(loss=1), run=b"s" * 32)),
        table.open(make_claim(make_log(loss=1), key=THIRD)),
    ]
    assert len({first, *others}) == 4
    assert table.bank.calls == ["open"] * 4
    assert table.arbiter.game(first).genesis.host == public_key(HOST)


def test_two_threads_that_open_a_claim_open_one_game(table: Table) -> None:
    found: list[bytes] = []
    other = threading.Thread(target=lambda: found.append(table.open()))
    table.bank.before["open"] = [other.start]
    found.append(table.open())
    other.join()
    assert found[0] == found[1]
    assert table.bank.calls == ["open"]


def test_a_claim_that_nobody_signed_opens_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And has no graph checked, which takes long."""
    signed = make_claim(make_log(BROKEN))
    monkeypatch.setattr(module, "make_genesis", lambda *_, **__: pytest.fail("it was checked"))
    with pytest.raises(SignatureError):
        table.open(replace(signed, signature=bytes(64)))
    assert table.bank.calls == []


def test_a_game_that_the_market_refuses_may_come_again(table: Table) -> None:
    table.bank.before["open"] = [fail(BondRefusedError("nobody pays for it", where="task"))]
    with pytest.raises(BondRefusedError):
        table.open()
    assert table.bank.calls == ["open"]
    assert table.arbiter.game(table.open()).moves == 0


def test_a_game_that_is_refused_late_blocks_nothing(table: Table) -> None:
    table.failing = [StorageError("the disk is full", where="db")]
    with pytest.raises(StorageError):
        table.open()
    assert table.bank.calls == ["open", "cancel"]
    assert not table.bank.games
    table.open()
    assert len(table.bank.games) == 1


def test_an_opening_is_cancelled_until_the_market_has_heard_of_it(table: Table) -> None:
    table.failing = [StorageError("the disk is full", where="db")]
    table.bank.before["cancel"] = [fail(OSError("no route"))]
    with pytest.raises(StorageError):
        table.open()
    assert len(table.bank.games) == 1
    assert table.arbiter.tick() is None
    assert not table.bank.games


def test_an_opening_that_nobody_knows_the_end_of_is_cancelled(table: Table) -> None:
    table.bank.after["open"] = [fail(OSError("timed out"))]
    with pytest.raises(BusyError, match="timed out") as caught:
        table.open()
    assert caught.value.where == "market.open"
    assert not table.bank.games


def test_the_window_begins_when_everything_is_ready(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checking a graph may take long, and is not done in anybody's time."""

    def check_slowly(*args: Any, **kwargs: Any) -> Genesis:
        table.hands.at += 4_000
        return make_genesis(*args, **kwargs)

    monkeypatch.setattr(module, "make_genesis", check_slowly)
    game = table.arbiter.game(table.open())
    assert game.genesis.opened == game.now == 4_000


# --- bonds


def test_a_bond_is_locked_before_it_counts(table: Table) -> None:
    game = table.arbiter.game(table.open())
    stood: list[bool] = []
    look = table.arbiter.game
    table.bank.after["lock"] = [
        lambda: stood.append((game.id, public_key(HONEST)) in look(game.id).stands)
    ]
    receipt = table.arbiter.submit(bond(game, HONEST, make_log().root)).receipt
    assert stood == [False]
    assert (receipt.kind, receipt.sequence, receipt.service) == ("move", 2, public_key(HOST))
    assert table.bank.get(HONEST) == 10_000 - BONDS.log
    (lock,) = table.bank.locked.values()
    assert (lock.bond.level, lock.bond.about, lock.bond.amount) == ("log", game.id, BONDS.log)
    assert lock.bond.key == receipt.digest


def test_a_bond_without_money_is_no_bond() -> None:
    table = Table(Bank(money=BONDS.log - 1))
    game = table.arbiter.game(table.open())
    with pytest.raises(BondRefusedError, match=f"needs {BONDS.log}"):
        table.arbiter.submit(bond(game, HONEST, make_log().root))
    assert (game.id, public_key(HONEST)) not in table.arbiter.game(game.id).stands
    assert table.bank.total == 4 * (BONDS.log - 1)


def test_what_the_rules_refuse_never_gets_to_the_market(table: Table) -> None:
    game = table.arbiter.game(table.open())
    signed = bond(game, HONEST, make_log().root)
    with pytest.raises(SignatureError):
        table.arbiter.submit(replace(signed, signature=bytes(64)))
    with pytest.raises(VtrainError):
        table.arbiter.submit(replace(signed, move=b"nonsense"))
    with pytest.raises(MoveRefusedError, match="not asked for"):
        table.arbiter.submit(sign(game.id, b"x" * 32, Reveal(()), HONEST))
    with pytest.raises(MoveRefusedError, match="bytes"):
        table.arbiter.submit(replace(signed, move=bytes(MAX_MOVE + 1)))
    with pytest.raises(NotFoundError):
        table.arbiter.submit(replace(signed, game=bytes(32)))
    table.arbiter.submit(signed)
    with pytest.raises(MoveRefusedError, match="already"):
        table.arbiter.submit(bond(game, HONEST, make_log(loss=5).root))
    assert table.bank.calls == ["open", "lock"]


def test_the_same_bond_twice_is_one_bond(table: Table) -> None:
    game = table.arbiter.game(table.open())
    signed = bond(game, HONEST, make_log().root)
    assert table.arbiter.submit(signed) == table.arbiter.submit(signed)
    assert table.bank.calls == ["open", "lock"]
    assert len(table.bank.locked) == 1
    table.hands.at += CLOCKS.join + 1
    # Also when no bond is taken any more.
    assert table.arbiter.submit(signed).receipt.sequence == 2
    assert table.bank.get(HONEST) == 10_000 - BONDS.log


def test_two_threads_with_the_same_bond_pay_it_once(table: Table) -> None:
    """One copy of a move is refused after its lock, and must not undo that of the other.

    The second copy gets its chance to lock while the first one is about to.  This market locks a
    key once, however often it is asked to.
    """
    second_locked, released = threading.Event(), threading.Event()
    game = table.arbiter.game(table.open())
    signed, receipts = bond(game, HONEST, make_log().root), list[bytes]()
    main = threading.current_thread()

    def record(events: Sequence[Event]) -> None:
        if threading.current_thread() is main:
            raise StorageError("the disk is full", where="db")

    def submit() -> None:
        receipts.append(table.arbiter.submit(signed).receipt.digest)

    def let_second_in() -> None:
        other.start()
        second_locked.wait(timeout=0.3)

    def lock_second() -> None:
        for lock in table.bank.locked.values():
            lock.count = 1
        second_locked.set()
        released.wait(timeout=10)

    other = threading.Thread(target=submit)
    table.arbiter._record = record
    table.bank.after["lock"] = [let_second_in, lock_second]
    table.bank.after["release"] = [released.set]
    with pytest.raises(StorageError):
        table.arbiter.submit(signed)
    other.join()
    assert len(receipts) == 1
    assert (game.id, public_key(HONEST)) in table.arbiter.game(game.id).stands
    assert [lock.bond.key for lock in table.bank.locked.values()] == receipts
    assert table.bank.get(HONEST) == 10_000 - BONDS.log


def test_many_threads_with_one_bond_have_one_receipt(table: Table) -> None:
    game = table.arbiter.game(table.open())
    signed, found = bond(game, HONEST, make_log().root), list[object]()
    threads = [
        threading.Thread(target=lambda: found.append(table.arbiter.submit(signed)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert all(receipt == found[0] for receipt in found)
    assert table.bank.calls == ["open", "lock"]


def test_a_bond_that_is_refused_after_its_lock_is_given_back(table: Table) -> None:
    """The window closes while the market thinks; another's bond stays where it is."""
    game = table.arbiter.game(table.open())
    table.arbiter.submit(bond(game, THIRD, make_log(loss=1).root))

    def close_window() -> None:
        table.hands.at += CLOCKS.join + 1

    table.bank.before["lock"] = [close_window]
    with pytest.raises(MoveRefusedError, match="no new claims"):
        table.arbiter.submit(bond(game, HONEST, make_log().root))
    assert table.bank.calls[-2:] == ["lock", "release"]
    assert table.bank.get(HONEST) == 10_000
    assert table.bank.get(THIRD) == 10_000 - BONDS.log


def test_a_bond_that_the_market_fails_to_give_back_is_given_back_later(table: Table) -> None:
    game = table.arbiter.game(table.open())
    signed = bond(game, HONEST, make_log().root)
    table.failing = [StorageError("the disk is full", where="db")]
    table.bank.before["release"] = [fail(OSError("no route"))]
    with pytest.raises(StorageError):
        table.arbiter.submit(signed)
    assert table.bank.get(HONEST) == 10_000 - BONDS.log
    table.arbiter.tick()
    assert table.bank.get(HONEST) == 10_000


def test_a_release_that_fails_while_a_game_is_let_go_is_not_forgotten(table: Table) -> None:
    """It fails between the tick's look at the game and its letting go of it."""
    arbiter = table.arbiter
    game = table.open()
    table.hands.at += CLOCKS.join + 1
    hosted = arbiter._games[game]
    claim = BondClaim(bytes(32), game, public_key(HONEST), "log", game, bytes(32), BONDS.log)
    table.bank.lock(claim)
    table.bank.before["release"] = [fail(OSError("no route"))]
    thread = threading.Thread(target=arbiter._release, args=(hosted, claim))

    class Slow(dict[bytes, Any]):
        def pop(self, *key: Any) -> Any:
            if not thread.ident:
                thread.start()
                thread.join(0.3)
            return super().pop(*key)

    arbiter._live = Slow(arbiter._live)
    arbiter.tick()
    thread.join()
    assert hosted.last == "settled"
    assert arbiter.tick() is None
    assert hosted.unreleased == {}
    assert table.bank.calls.count("release") == 2


def test_a_late_release_is_not_of_a_bond_that_came_again(table: Table) -> None:
    game = table.arbiter.game(table.open())
    signed = bond(game, HONEST, make_log().root)
    table.failing = [StorageError("the disk is full", where="db")]
    table.bank.before["release"] = [fail(OSError("no route")), fail(OSError("no route"))]
    with pytest.raises(StorageError):
        table.arbiter.submit(signed)
    with pytest.raises(BusyError):
        table.arbiter.submit(signed)
    table.arbiter.submit(signed)
    table.arbiter.tick()
    assert table.bank.get(HONEST) == 10_000 - BONDS.log
    assert [lock.count for lock in table.bank.locked.values()] == [1]


def test_a_lock_that_nobody_knows_the_end_of_is_given_back(table: Table) -> None:
    game = table.arbiter.game(table.open())
    signed = bond(game, HONEST, make_log().root)
    table.bank.after["lock"] = [fail(OSError("timed out"))]
    with pytest.raises(BusyError, match="timed out"):
        table.arbiter.submit(signed)
    assert table.bank.get(HONEST) == 10_000
    table.arbiter.submit(signed)
    assert table.bank.get(HONEST) == 10_000 - BONDS.log


def test_a_slow_market_holds_up_nobody_else(table: Table) -> None:
    game = table.arbiter.game(table.open())
    done: list[object] = []

    def move_meanwhile() -> None:
        def move() -> None:
            done.append(table.arbiter.submit(bond(game, THIRD, make_log(loss=1).root)))
            done.append(table.arbiter.tick())

        other = threading.Thread(target=move)
        other.start()
        other.join(timeout=10)
        assert len(done) == 2

    table.bank.before["lock"] = [move_meanwhile]
    table.arbiter.submit(bond(game, HONEST, make_log().root))
    assert len(done) == 2


def test_a_slow_opening_stops_no_clock(table: Table) -> None:
    game, done = table.open(), list[int]()
    table.failing = [StorageError("the disk is full", where="db")]
    table.bank.before["cancel"] = [fail(OSError("no route"))]
    with pytest.raises(StorageError):
        table.open(make_claim(make_log(loss=1)))

    def tick_meanwhile() -> None:
        def tick() -> None:
            table.hands.at += CLOCKS.join + 1
            table.arbiter.tick()
            done.append(table.arbiter.game(game).ends)

        other = threading.Thread(target=tick)
        other.start()
        other.join(timeout=10)

    table.bank.before["open"] = [tick_meanwhile]
    table.open(make_claim(make_log(loss=2)))
    assert done == [CLOCKS.join]


# --- sub-claims


@cache
def make_provider(false_step: int = 0, by: int = 5) -> EngineProvider:
    task = make_tiny_task("mlp", steps=5, commit_every=2, checkpoint_every=2)
    if not false_step:
        return EngineProvider(task, open_session("cpu", task.graph, task.samples))
    update = next(i for i, node in enumerate(task.graph.nodes) if node.op == "sgd_update")
    return LyingProvider(task, LyingSession(task, Lies({(false_step, update): add_one(by)})))


def open_false(table: Table) -> bytes:
    """A game about a run that is false in step 3."""
    task, log = make_tiny_task("mlp", steps=5, commit_every=2, checkpoint_every=2), false().log()
    claim = Claim(b"r" * 32, public_key(LIAR), task.task_id, log.size, log.root)
    signed = sign_claim(claim, LIAR)
    return table.arbiter.open(task.spec, task.graph, signed, clocks=CLOCKS, bonds=BONDS)


def false() -> EngineProvider:
    return make_provider(3)


def test_a_free_sub_claim_needs_no_lock_and_the_end_is_paid_by_the_rules(table: Table) -> None:
    game = open_false(table)
    players = [Player(false(), LIAR), Player(make_provider(), HONEST), Player(false(), THIRD)]
    end = table.play(game, players)
    verdict = find_verdict(end)
    assert verdict is not None
    assert verdict.standing == make_provider().log().root
    assert verdict.solver is not None
    assert verdict.solver.reason == "refuted"
    settled = table.bank.settled[game].settled
    assert [found.amount for found in settled.outcomes].count(0) >= 3
    assert table.bank.calls == ["open", "lock", "lock", "settle"]
    # The third party's bond is the honest one's, who did all the work.
    assert (table.bank.get(HONEST), table.bank.get(THIRD)) == (11_000, 9_000)
    assert table.bank.total == 40_000
    assert not table.bank.locked
    settlement = make_settlement(end)
    assert settlement == table.bank.settled[game]
    assert set(settlement.work) == {public_key(HONEST)}


def play_until_sides(table: Table, game: bytes, players: Sequence[Player]) -> Game:
    """Until sub-claims are asked for, none of them being made."""
    while not (now := table.arbiter.game(game)).sides:
        moves = [move for player in players for move in player.moves(now)]
        for move in moves:
            table.arbiter.submit(move)
        table.hands.at += 1 if moves else 500
    return now


def make_sub_claim(game: Game, key: PrivateKey) -> SignedMove:
    """The true trace, as a player signs it who backs the true log."""
    moves = Player(make_provider(), HONEST).moves(game)
    made = next(move for move in moves if move.about in game.sides)
    return sign(game.id, made.about, decode_move(made.move), key)


def test_a_sub_claim_of_a_stranger_costs_what_the_genesis_says(table: Table) -> None:
    game = open_false(table)
    players = [Player(false(), LIAR), Player(make_provider(), HONEST)]
    now = play_until_sides(table, game, players)
    table.arbiter.submit(make_sub_claim(now, FOURTH))
    assert table.bank.get(FOURTH) == 10_000 - BONDS.trace
    table.arbiter.submit(make_sub_claim(now, HONEST))
    assert table.bank.get(HONEST) == 10_000 - BONDS.log
    assert table.bank.calls == ["open", "lock", "lock"]


def test_a_bond_that_has_become_free_is_given_back(table: Table) -> None:
    """While the market locks the bond of a sub-claim, its party bonds the claim above it."""
    game = open_false(table)
    players = [Player(false(), LIAR), Player(make_provider(), HONEST)]
    now = play_until_sides(table, game, players)
    root = make_provider().log().root
    table.bank.after["lock"] = [lambda: void(table.arbiter.submit(bond(now, FOURTH, root)))]
    table.arbiter.submit(make_sub_claim(now, FOURTH))
    assert table.bank.calls == ["open", "lock", "lock", "lock", "release"]
    assert table.bank.get(FOURTH) == 10_000 - BONDS.log
    held = {lock.bond.level for lock in table.bank.locked.values()}
    assert held == {"log"}


def void(found: object) -> None:
    """A call for what it does."""


# --- the end


def play_log_game(table: Table) -> bytes:
    game = table.open()
    players = [LogPlayer(LIAR, make_log(BROKEN)), LogPlayer(HONEST, make_log())]
    table.play(game, [*players, LogPlayer(THIRD, make_log(BROKEN))])
    return game


def test_a_market_that_fails_at_the_end_pays_once(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.bank.before["settle"] = [fail(OSError("no route")), fail(RuntimeError("a defect"))]
    table.bank.after["settle"] = [fail(OSError("timed out"))]  # it has paid
    game = play_log_game(table)
    assert table.bank.calls.count("settle") == 4
    assert [record.exc_info is not None for record in caplog.records] == [True] * 3
    table.hands.at += 10_000
    assert table.arbiter.tick() is None
    assert table.bank.calls.count("settle") == 4
    assert (table.bank.get(HONEST), table.bank.get(THIRD)) == (11_000, 9_000)
    assert [event.signed.receipt.kind for event in table.arbiter.transcript(game)][-2:] == [
        "verdict",
        "settled",
    ]


def test_a_market_that_fails_in_one_game_settles_the_others(table: Table) -> None:
    games = [table.open(), table.open(make_claim(make_log(loss=1)))]
    table.bank.before["settle"] = [fail(OSError("no route"))]
    table.hands.at += CLOCKS.join + 1
    assert table.arbiter.tick() == module.RETRY
    assert [game in table.bank.settled for game in games] == [False, True]
    assert table.arbiter.tick() is None
    assert all(game in table.bank.settled for game in games)


def test_two_threads_settle_once(table: Table) -> None:
    """Another tick comes while the market is paying."""
    game = table.open()
    table.hands.at += CLOCKS.join + 1

    def tick_meanwhile() -> None:
        other = threading.Thread(target=table.arbiter.tick)
        other.start()
        other.join()

    table.bank.before["settle"] = [tick_meanwhile]
    assert table.arbiter.tick() is None
    assert table.bank.calls.count("settle") == 1
    assert game in table.bank.settled


def test_a_game_that_waits_for_a_release_is_not_settled_again(table: Table) -> None:
    """A bond that was never accepted goes back at the end; releasing it late does nothing more."""
    game = table.arbiter.game(table.open())
    table.failing = [StorageError("the disk is full", where="db")]
    table.bank.before["release"] = [fail(OSError("no route"))] * 2
    with pytest.raises(StorageError):
        table.arbiter.submit(bond(game, HONEST, make_log().root))
    table.hands.at += CLOCKS.join + 1
    assert table.arbiter.tick() is not None
    assert table.bank.get(HONEST) == 10_000
    assert table.arbiter.tick() is None
    assert table.bank.calls == ["open", "lock", "release", "release", "settle", "release"]
    assert table.bank.get(HONEST) == 10_000
    assert len(table.arbiter.transcript(game.id)) == 3


def test_what_is_settled_and_could_not_be_recorded_is_not_paid_again(table: Table) -> None:
    game = table.open()
    table.bank.after["settle"] = [
        lambda: table.failing.append(StorageError("the disk is full", where="db"))
    ]
    table.hands.at += CLOCKS.join + 1
    assert table.arbiter.tick() is not None
    assert table.arbiter.tick() is None
    assert table.bank.calls.count("settle") == 1
    assert table.kept[-1].signed.receipt.kind == "settled"
    assert table.arbiter.transcript(game) == tuple(table.kept)


def test_a_verdict_that_could_not_be_recorded_comes_later(table: Table) -> None:
    game = table.open()
    table.hands.at += CLOCKS.join + 1
    table.failing = [StorageError("the disk is full", where="db")]
    assert table.arbiter.tick() is not None
    assert table.bank.calls == ["open"]
    assert table.arbiter.tick() is None
    assert table.arbiter.game(game).ends == CLOCKS.join


def test_a_settled_game_can_be_forgotten_and_its_claim_is_not(table: Table) -> None:
    game = table.open()
    with pytest.raises(MoveRefusedError, match="not settled"):
        table.arbiter.forget(game)
    table.hands.at += CLOCKS.join + 1
    assert table.arbiter.tick() is None
    table.arbiter.forget(game)
    for ask in (table.arbiter.game, table.arbiter.transcript, table.arbiter.forget):
        with pytest.raises(NotFoundError):
            ask(game)
    assert table.open() == game
    assert table.bank.calls.count("open") == 1
    with pytest.raises(MoveRefusedError, match="or was"):  # it would be settled again
        table.arbiter.resume(get_task().graph, table.kept[:-1])
    assert table.bank.calls.count("settle") == 1


def test_a_transcript_leads_to_the_same_verdict(table: Table) -> None:
    game = play_log_game(table)
    events = table.arbiter.transcript(game)
    chain = Chain(game, public_key(HOST))
    for event in events:
        chain.extend(event)
    genesis = structs.decode(Genesis, events[0].body, "genesis")
    found = find_verdict(replay(genesis, get_task().graph, to_moves(events)))
    assert found == find_verdict(table.arbiter.game(game))
    assert structs.encode(found) == events[-2].body
    with pytest.raises(NotFoundError):
        table.arbiter.transcript(bytes(32))


def test_a_settlement_needs_a_verdict(table: Table) -> None:
    with pytest.raises(NotFoundError):
        make_settlement(table.arbiter.game(table.open()))


def test_a_market_that_cannot_be_told_is_told_nothing(table: Table) -> None:
    def notify(notice: Notice) -> None:
        raise OSError("no route")

    table.bank.notify = notify  # type: ignore[method-assign]
    game = play_log_game(table)
    assert game in table.bank.settled


class Unreliable(Bank):
    """A market of which a third of the calls fail, before they did anything or afterwards."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)  # noqa: S311 - no secret

    def _note(self, call: str, do: Callable[[], None]) -> None:
        fate = self.random.random()
        if fate < 1 / 6:
            raise OSError(f"{call}: no route")
        super()._note(call, do)
        if fate < 1 / 3:
            raise OSError(f"{call}: timed out")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_the_money_is_paid_by_the_rules(seed: int) -> None:
    """Market and disk fail at random, and every move comes from two threads, again and again."""
    bank = Unreliable(seed)
    table, rng = Table(bank), random.Random(seed)  # noqa: S311
    record = table.record

    def fail_to_record(events: Sequence[Event]) -> None:
        if rng.random() < 1 / 4:
            raise StorageError("the disk is full", where="db")
        record(events)

    table.arbiter = Arbiter(HOST, bank, table.hands, gap=GAP, record=fail_to_record)

    def submit(signed: SignedMove) -> None:
        with suppress(VtrainError):
            table.arbiter.submit(signed)

    game = b""
    while not game:
        with suppress(BusyError, StorageError):
            game = table.open()
    logs = {LIAR: make_log(BROKEN), HONEST: make_log(), THIRD: make_log(BROKEN)}
    players = [LogPlayer(key, log) for key, log in logs.items()]
    known = table.arbiter.transcript(game)[0].body
    now = start(structs.decode(Genesis, known, "genesis"), get_task().graph)
    while (wait := table.arbiter.tick()) is not None:
        with suppress(StorageError):
            now = table.arbiter.game(game)
        threads = [
            threading.Thread(target=submit, args=(move,))
            for player in players
            for move in player.moves(now)
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        table.hands.at += 1 if threads else wait
    settled = bank.settled[game].settled
    paid = compute_credits({public_key(key): 10_000 for key in KEYS}, settled)
    assert dict(bank.balances) == paid
    assert not bank.locked
    assert list(bank.games) == [game]
    chain = Chain(game, public_key(HOST))
    for event in table.kept:
        chain.extend(event)
    assert table.arbiter.transcript(game) == tuple(table.kept)


# --- time


def test_a_clock_that_jumps_costs_nobody_the_game(table: Table) -> None:
    game = table.open()
    table.arbiter = Arbiter(HOST, table.bank, table.hands, gap=CLOCKS.join // 4)
    game = table.open()
    opened = table.arbiter.game(game).now
    table.hands.at += 10 * 24 * 3_600_000
    assert table.arbiter.game(game).now == opened + CLOCKS.join // 4
    table.hands.at -= 20 * 24 * 3_600_000
    assert table.arbiter.game(game).now == opened + CLOCKS.join // 4
    table.hands.at += 7
    assert table.arbiter.now == opened + CLOCKS.join // 4 + 7
    table.arbiter.submit(bond(table.arbiter.game(game), HONEST, make_log().root))
    times = [event.signed.receipt.at for event in table.arbiter.transcript(game)]
    assert times == sorted(times)


def test_time_goes_on_as_long_as_it_is_asked_in_time(table: Table) -> None:
    """Whoever does as ``tick`` says has games of exactly their length."""
    game, ticks = table.open(), 0
    clocks = replace(CLOCKS, join=60_000)
    task = get_task()
    claim = make_claim(make_log(loss=3))
    longer = table.arbiter.open(task.spec, task.graph, claim, clocks=clocks, bonds=BONDS)
    assert table.arbiter.next_deadline() == CLOCKS.join + 1
    while (wait := table.arbiter.tick()) is not None:
        assert wait <= GAP
        table.hands.at += wait
        ticks += 1
    assert table.arbiter.game(game).ends == CLOCKS.join
    assert table.arbiter.game(longer).ends == 60_000
    assert table.hands() == 1_000_000 + 60_001
    assert table.arbiter.next_deadline() is None
    assert ticks < 60


def test_a_game_shows_what_time_has_done_without_a_tick(table: Table) -> None:
    game = table.open()
    table.hands.at += CLOCKS.join + 1
    assert table.arbiter.game(game).over
    assert table.arbiter.transcript(game)[-1].signed.receipt.kind == "verdict"
    with pytest.raises(MoveRefusedError, match="over"):
        table.arbiter.submit(bond(table.arbiter.game(game), HONEST, make_log().root))
    table.arbiter.tick()
    assert game in table.bank.settled


# --- after a crash


def test_a_game_goes_on_after_a_crash(table: Table) -> None:
    game = table.open()
    signed = bond(table.arbiter.game(game), HONEST, make_log().root)
    table.hands.at += 300
    receipt = table.arbiter.submit(signed)
    table.hands.at += 3_600_000
    table.arbiter = table.start()
    assert table.arbiter.resume(get_task().graph, table.kept) == game
    assert table.arbiter.game(game).now == 300
    assert table.arbiter.submit(signed) == receipt
    assert table.open() == game
    with pytest.raises(MoveRefusedError, match="already"):
        table.arbiter.resume(get_task().graph, table.kept)
    players = [LogPlayer(LIAR, make_log(BROKEN)), LogPlayer(HONEST, make_log())]
    table.play(game, players)
    assert table.bank.get(HONEST) == 10_000
    assert table.bank.calls == ["open", "lock", "settle"]
    # And once more, when all is over.
    table.arbiter = table.start()
    table.arbiter.resume(get_task().graph, table.kept)
    assert table.arbiter.tick() is None
    assert table.bank.calls.count("settle") == 1


def test_only_an_unbroken_record_of_this_host_is_gone_on_from(table: Table) -> None:
    game = play_log_game(table)
    assert game
    graph = get_task().graph
    with pytest.raises(ServiceFaultError, match="does not follow"):
        table.start().resume(graph, [table.kept[0], *table.kept[2:]])
    other = Arbiter(THIRD, table.bank, table.hands)
    with pytest.raises(SignatureError):
        other.resume(graph, table.kept)
    with pytest.raises(VtrainError):
        table.start().resume(graph, [])
