"""An arbiter: hosts games in this process, and sees to the order in which things must happen.

The rules (``vtrain.dispute.game``) say what a move does; whoever hosts a game between parties that
have money in it must also ask for that money in the right order, at the right time, once.  That is
here, for a program that has no need of HTTP and a database; the service does the same with both, by
the functions at the end of this file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from vtrain.attest.claims import compute_claim_digest, verify_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.clock import ServiceClock, Ticks, count_monotonic
from vtrain.dispute.game import (
    advance,
    apply,
    check_offer,
    find_deadline,
    find_verdict,
    get_claim,
    start,
)
from vtrain.dispute.genesis import DEFAULT_CLOCKS, FREE, make_genesis
from vtrain.dispute.market import BondClaim, Market, Notice, Settlement
from vtrain.dispute.money import count_work, list_outcomes
from vtrain.dispute.problems import BusyError, NotFoundError, TermsError
from vtrain.dispute.receipts import (
    FIRST,
    Chain,
    Event,
    EventKind,
    Receipt,
    SignedReceipt,
    compute_body_digest,
    compute_receipt_digest,
    sign_receipt,
    to_moves,
)
from vtrain.dispute.state import BondRecord, DisputedGraph, Game, compute_game_id
from vtrain.dispute.transcript import make
from vtrain.errors import EncodingError, MoveRefusedError, SignatureError, VtrainError
from vtrain.wire import structs
from vtrain.wire.claim import SignedClaim
from vtrain.wire.dispute import MAX_MOVE, Bonds, Clocks, Genesis, SignedMove
from vtrain.wire.graph import StepGraph
from vtrain.wire.task import TaskSpec

GAP: Final = 5_000
"""Milliseconds that the games' time goes on at most between two calls of an arbiter."""
RETRY: Final = 1_000
"""Milliseconds after which a market that failed is asked again."""
_TRIES: Final = 8

_LOG: Final = logging.getLogger("vtrain.dispute")


@dataclass
class _Hosted:
    """A game with its events; ``turn`` is held by whoever reads or changes it."""

    game: Game
    turn: threading.Condition = field(default_factory=threading.Condition)
    events: list[Event] = field(default_factory=list)
    answers: dict[bytes, SignedReceipt] = field(default_factory=dict)
    head: bytes = FIRST
    under_way: set[bytes] = field(default_factory=set)
    """Bonds that somebody has the market lock or release now."""
    unreleased: dict[bytes, BondClaim] = field(default_factory=dict)
    """Bonds that the market failed to release."""
    settling: bool = False
    paid: bool = False

    @property
    def last(self) -> EventKind | None:
        """What happened last."""
        return self.events[-1].signed.receipt.kind if self.events else None

    @property
    def done(self) -> bool:
        """Is there nothing more to do?"""
        return self.last == "settled" and not self.unreleased


class Arbiter:
    """Hosts games in this process: signs with ``key``, and has ``market`` hold the money.

    ``clock`` gives milliseconds and is the only time there is.  It may jump: games' time never goes
    back, and goes on by ``gap`` milliseconds at most between two calls, so that a process that was
    frozen, or a machine whose date was set, costs no player its clock.  So have :meth:`tick` called
    again after as long as it says, at the latest.

    ``record`` is given the events of each change, in order, before anybody hears of it, and while
    their game is held; what it raises refuses the change, and the market is told.  With what it
    stored, :meth:`resume` goes on after a crash; without it games are lost with the process.

    Thread-safe, with a lock for each game, and one for all openings; no lock of a game is held
    while the market is asked, so that a slow one holds up nobody but whoever's bond it looks at.
    One arbiter only may act for a market's games.
    """

    def __init__(
        self,
        key: PrivateKey,
        market: Market,
        clock: Ticks = count_monotonic,
        *,
        gap: int = GAP,
        record: Callable[[Sequence[Event]], None] = lambda events: None,
    ) -> None:
        self._key, self.market, self._record = key, market, record
        self.host = public_key(key)
        """The public key that receipts are by, which is in the genesis of every game."""
        self._clock, self._gap = ServiceClock(clock, 0, gap), gap
        self._timing, self._opening = threading.Lock(), threading.Lock()
        self._games: dict[bytes, _Hosted] = {}
        self._claims: dict[bytes, bytes] = {}
        self._forgotten: set[bytes] = set()
        self._live: dict[bytes, _Hosted] = {}
        self._uncancelled: list[bytes] = []

    # --- games

    def open(
        self,
        task: TaskSpec,
        graph: StepGraph,
        signed: SignedClaim,
        *,
        clocks: Clocks = DEFAULT_CLOCKS,
        bonds: Bonds = FREE,
        free: bool = False,
    ) -> bytes:
        """Open the game about a solver's claim: its id.

        The window for joining runs from now on, so whoever is to join from this process should have
        its provider ready.  The same claim again gives the same game, whatever ``clocks`` and
        ``bonds`` are given then, also when it is forgotten; another claim about the same task is
        another game.  TermsError for a claim that is not of the whole task, and for bonds of
        nothing unless it is said that the game is ``free``; SignatureError, BondRefusedError from
        the market, the errors of ``make_genesis``.
        """
        claim = compute_claim_digest(signed.claim)
        with self._opening:
            if claim in self._claims:
                return self._claims[claim]
            verify_claim(signed)  # before anything that takes long
            genesis = make_genesis(
                task, graph, signed, host=self.host, opened=0, clocks=clocks, bonds=bonds
            )
            check_terms(task, genesis, free=free)
            disputed = DisputedGraph(graph, genesis.graph_root)
            # What takes long is done: from here on the clock runs.
            genesis = replace(genesis, opened=self._read_clock())
            hosted = _Hosted(start(genesis, disputed))
            game = hosted.game.id
            notices = self._begin(hosted)
            self._games[game] = self._live[game] = hosted
            self._claims[claim] = game
        self._notify(notices)
        return game

    def _begin(self, hosted: _Hosted) -> list[Notice]:
        """Have the market open a game, and cancel it when it comes to nothing."""
        game, encoded = hosted.game, structs.encode(hosted.game.genesis)
        try:
            with _typed("open"):
                self.market.open(game.id, game.genesis)
        except VtrainError as error:
            if isinstance(error, BusyError):
                self._cancel(game.id)  # nobody knows how far it got
            raise
        try:
            with hosted.turn:
                return self._extend(hosted, game, [("opened", encoded)])
        except BaseException:
            self._cancel(game.id)
            raise

    def resume(self, graph: StepGraph, events: Sequence[Event]) -> bytes:
        """Go on with a game of which these are all ``events`` that were recorded: its id.

        The time between the last of them and now runs on nobody's clock.  MoveRefusedError when the
        game is hosted already; ServiceFaultError and SignatureError for events that are not an
        unbroken chain by this arbiter's key.
        """
        if not events:
            raise EncodingError("there is no event to go on from", where="events")
        genesis = structs.decode(Genesis, events[0].body, "genesis")
        game_id = compute_game_id(genesis)
        if genesis.host != self.host:
            raise SignatureError("is hosted by another key", where="genesis.host")
        chain = Chain(game_id, self.host)
        hosted = _Hosted(start(genesis, graph))
        for event in events:
            receipt = chain.extend(event)
            for entry in to_moves([event]):
                hosted.game = make(hosted.game, entry, f"event {receipt.sequence}")
            hosted.events.append(event)
            if receipt.kind == "move":
                hosted.answers[receipt.digest] = event.signed
        hosted.head = chain.head
        with self._timing:
            _, ticks = self._clock.read()
            self._clock.keep(chain.at, ticks)
        with self._opening:
            if game_id in self._games or game_id in self._forgotten:
                raise MoveRefusedError("is hosted here already, or was", where="game")
            self._games[game_id] = self._live[game_id] = hosted
            self._claims[compute_claim_digest(get_claim(genesis).claim)] = game_id
        return game_id

    def game(self, game: bytes) -> Game:
        """A game as it is now; NotFoundError."""
        hosted = self._find(game)
        with hosted.turn:
            notices = self._pass_time(hosted)
            found = hosted.game
        self._notify(notices)
        return found

    def transcript(self, game: bytes) -> tuple[Event, ...]:
        """All events of a game with their receipts; NotFoundError.

        ``vtrain.dispute.receipts`` has what checks and replays them.
        """
        hosted = self._find(game)
        with hosted.turn:
            return tuple(hosted.events)

    def forget(self, game: bytes) -> None:
        """Hold a game no more, and none of its events; NotFoundError.

        MoveRefusedError until it is settled.  Its claim stays known as long as this arbiter lives:
        it opens no other game, and the game cannot be resumed, hence not be settled again.  Another
        process knows it by its recorded events alone, which are to be kept.
        """
        hosted = self._find(game)
        with hosted.turn:
            if not hosted.done:
                raise MoveRefusedError("is not settled yet", where="game")
        with self._opening:
            self._forgotten.add(game)
            self._games.pop(game, None)

    # --- moves

    def submit(self, signed: SignedMove) -> SignedReceipt:
        """Make a move, now: its receipt.

        The same bytes again give the same receipt.  What has a bond to pay has it locked at the
        market first, and released when the move is refused after all.  NotFoundError for a game
        that is not here; MoveRefusedError, EncodingError and SignatureError by the rules;
        BondRefusedError by the market; BusyError when the market failed: send the same move again.
        """
        hosted = self._find(signed.game)
        if len(signed.move) > MAX_MOVE:
            raise MoveRefusedError(f"has more than {MAX_MOVE} bytes", where="move")
        body = structs.encode(signed)
        with hosted.turn:
            known = hosted.answers.get(compute_body_digest(body))
            if known is not None:
                return known
            notices = self._pass_time(hosted)
            game = hosted.game
        self._notify(notices)
        check_offer(game, signed)
        if is_answer(game, signed):
            return self._make(hosted, signed, body, None)
        return self._make_bond(hosted, signed, body)

    def _make_bond(self, hosted: _Hosted, signed: SignedMove, body: bytes) -> SignedReceipt:
        key = compute_body_digest(body)
        with _alone(hosted, key):
            for _ in range(_TRIES):
                with hosted.turn:
                    if key in hosted.answers:
                        return hosted.answers[key]
                    game, now = hosted.game, self._read_clock()
                # Only what the rules allow is worth asking the market for.
                bond = describe_bond(game, apply(game, signed, now), signed)
                self._lock(hosted, bond)
                try:
                    return self._make(hosted, signed, body, bond)
                except _OtherBondError:
                    self._release(hosted, bond)
                except BaseException:
                    self._release(hosted, bond)
                    raise
        raise BusyError("the bond changes all the time; send the move again", where="game")

    def _make(
        self, hosted: _Hosted, signed: SignedMove, body: bytes, bond: BondClaim | None
    ) -> SignedReceipt:
        """Apply a move for which ``bond`` is locked; _OtherBondError when it needs another now."""
        key = compute_body_digest(body)
        with hosted.turn:
            known = hosted.answers.get(key)
            if known is not None:
                return known
            after = apply(hosted.game, signed, self._read_clock())
            if describe_bond(hosted.game, after, signed) != bond:
                raise _OtherBondError("needs another bond than a moment ago", where="game")
            notices = self._extend(hosted, after, [("move", body), *_conclude(after)])
            receipt = hosted.answers[key]
        self._notify(notices)
        return receipt

    # --- time

    def tick(self) -> int | None:
        """Let time act on all games, and settle those that are over.

        Gives the milliseconds after which it is to be called again at the latest; None when no game
        is under way.  A failure of the market or of ``record`` is logged (``vtrain.dispute``), ends
        nothing, and is made good at a later call.
        """
        live = list(self._live.items())
        for _, hosted in live:  # all of them before the market, which may take long
            _attempt("time", hosted.game.id, partial(self._act, hosted))
        for game, hosted in live:
            self._release_late(hosted)
            _attempt("settlement", game, partial(self._settle, hosted))
            with hosted.turn:
                if hosted.done:
                    self._live.pop(game, None)
        # Whoever opens a game now may be waiting for the market, and time waits for nobody.
        if self._uncancelled and self._opening.acquire(blocking=False):
            try:
                for game in list(self._uncancelled):
                    self._cancel(game)
            finally:
                self._opening.release()
        return self._find_wait()

    def _find_wait(self) -> int | None:
        live = list(self._live.values())
        owed = any(hosted.unreleased or hosted.game.over for hosted in live)
        if not live and not self._uncancelled:
            return None
        wait = min(self._gap // 2, RETRY) if owed or self._uncancelled else self._gap // 2
        deadline = self.next_deadline()
        return max(1, wait if deadline is None else min(wait, deadline - self._read_clock()))

    def _act(self, hosted: _Hosted) -> None:
        with hosted.turn:
            notices = self._pass_time(hosted)
        self._notify(notices)

    def _release_late(self, hosted: _Hosted) -> None:
        """Release what the market failed to, but for what another thread is about to."""
        with hosted.turn:
            owed = list(hosted.unreleased.items())
        for key, bond in owed:
            with hosted.turn:
                if key in hosted.under_way:
                    continue
                hosted.under_way.add(key)
            with _ending(hosted, key):
                if key in hosted.unreleased:
                    self._release(hosted, bond)

    def next_deadline(self) -> int | None:
        """When time alone may change a game next, in milliseconds of :attr:`now`; None: never."""
        found = [find_deadline(hosted.game) for hosted in list(self._live.values())]
        return min((at for at in found if at is not None), default=None)

    @property
    def now(self) -> int:
        """The games' time, in milliseconds since this arbiter (or what it resumed) began."""
        return self._read_clock()

    def _read_clock(self) -> int:
        with self._timing:
            now, ticks = self._clock.read()
            self._clock.keep(now, ticks)
            return now

    def _pass_time(self, hosted: _Hosted) -> list[Notice]:
        """Let time act on a game, whose turn is held."""
        if hosted.game.over:
            return []
        after = advance(hosted.game, self._read_clock())
        return self._extend(hosted, after, _conclude(after))

    # --- events

    def _extend(
        self, hosted: _Hosted, after: Game, entries: Sequence[tuple[EventKind, bytes]]
    ) -> list[Notice]:
        """Add events to a game, whose turn is held, which make it ``after``; all or none."""
        added: list[Event] = []
        head = hosted.head
        for kind, body in entries:
            receipt = Receipt(
                game=after.id,
                sequence=len(hosted.events) + len(added) + 1,
                kind=kind,
                at=after.now,
                digest=compute_body_digest(body),
                previous=head,
                service=self.host,
            )
            head = compute_receipt_digest(receipt)
            added.append(Event(body, sign_receipt(receipt, self._key)))
        if added:
            self._record(added)
        hosted.game, hosted.head = after, head
        hosted.events.extend(added)
        receipts = [event.signed.receipt for event in added]
        for event, receipt in zip(added, receipts, strict=True):
            if receipt.kind == "move":
                hosted.answers[receipt.digest] = event.signed
        return [Notice(after.id, made.sequence, made.kind, made.at) for made in receipts]

    def _notify(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            _attempt("a notice", notice.game, partial(self.market.notify, notice))

    # --- money

    def _lock(self, hosted: _Hosted, bond: BondClaim | None) -> None:
        if bond is None or not bond.amount:
            return
        if bond.key in hosted.unreleased:
            # Released later, it would be the bond of a move that is accepted now.
            self._release(hosted, bond)
            if bond.key in hosted.unreleased:
                raise BusyError("the market fails; send the move again", where="market")
        try:
            with _typed("lock"):
                self.market.lock(bond)
        except BusyError:
            self._release(hosted, bond)  # nobody knows how far it got
            raise

    def _release(self, hosted: _Hosted, bond: BondClaim | None) -> None:
        """Give a bond back that this thread has locked, or have that done later."""
        if bond is None or not bond.amount:
            return
        released = _attempt("a release", bond.game, partial(self.market.release, bond))
        with hosted.turn:  # only now: the market may take long
            if released:
                hosted.unreleased.pop(bond.key, None)
            else:
                hosted.unreleased[bond.key] = bond
                self._live[bond.game] = hosted  # it may be settled, and not done with

    def _cancel(self, game: bytes) -> None:
        """Take back an opening that came to nothing; the lock of openings is held."""
        if game in self._uncancelled:
            self._uncancelled.remove(game)
        if not _attempt("cancelling", game, partial(self.market.cancel, game)):
            self._uncancelled.append(game)

    def _settle(self, hosted: _Hosted) -> None:
        """Settle a game that is over and not settled; what the market raises, until it does not."""
        with hosted.turn:
            if not hosted.game.over or hosted.settling or hosted.last == "settled":
                return
            hosted.settling = True
        try:
            if not hosted.paid:
                self.market.settle(make_settlement(hosted.game))
                hosted.paid = True
            with hosted.turn:
                after = advance(hosted.game, self._read_clock())
                notices = self._extend(hosted, after, [("settled", b"")])
        finally:
            with hosted.turn:
                hosted.settling = False
        self._notify(notices)

    def _find(self, game: bytes) -> _Hosted:
        hosted = self._games.get(game)
        if hosted is None:
            raise NotFoundError("there is no such game", where="game")
        return hosted


class _OtherBondError(MoveRefusedError):
    """The bond of a move is another than the one that was locked for it."""


@contextmanager
def _alone(hosted: _Hosted, key: bytes) -> Iterator[None]:
    """Have the market lock or release the bond ``key`` in no other thread meanwhile.

    So that each bond is locked once before it is released: one copy of a move never undoes what
    another has locked.
    """
    with hosted.turn:
        while key in hosted.under_way:
            hosted.turn.wait()
        hosted.under_way.add(key)
    with _ending(hosted, key):
        yield


@contextmanager
def _ending(hosted: _Hosted, key: bytes) -> Iterator[None]:
    """A bond is under way until the end of this."""
    try:
        yield
    finally:
        with hosted.turn:
            hosted.under_way.discard(key)
            hosted.turn.notify_all()


@contextmanager
def _typed(call: str) -> Iterator[None]:
    """Whatever a market raises that is no error of ours is a failure that may pass."""
    try:
        yield
    except VtrainError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise BusyError(f"the market failed ({why}); try again", where=f"market.{call}") from error


def _attempt(what: str, game: bytes, call: Callable[[], object]) -> bool:
    """Did it succeed?  What it raises is logged: a market's failure ends nothing of ours."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - a market may raise anything
        _LOG.error("%s failed in game %s", what, game.hex(), exc_info=error)
        return False
    return True


def _conclude(game: Game) -> list[tuple[EventKind, bytes]]:
    """The event of the verdict, if there is one."""
    verdict = find_verdict(game)
    return [] if verdict is None else [("verdict", structs.encode(verdict))]


# --- what every host of games needs, however it keeps them


def check_terms(task: TaskSpec, genesis: Genesis, *, free: bool = False) -> None:
    """TermsError unless a game is one to have money in.

    Its claim must be of the whole ``task``: one of fewer steps may well be true, and is nothing
    that anybody ordered.  Bonds must be above zero, unless the game is ``free``: false claims that
    cost nothing could be made until no honest party can answer them all.
    """
    if genesis.log_size != task.steps:
        message = f"is of {genesis.log_size} steps and not of all {task.steps} of the task"
        raise TermsError(message, where="claim.log_size")
    for level in ("log", "trace", "terms"):
        if not free and getattr(genesis.bonds, level) < 1:
            message = "costs nothing; give bonds (make_bonds), or say that the game is free"
            raise TermsError(message, where=f"bonds.{level}")


def is_answer(game: Game, signed: SignedMove) -> bool:
    """Is a move an answer to something that is asked?  Otherwise it can only be a bond.

    ``game`` is at the time of the move; nothing of the move is decoded.
    """
    return signed.about in game.asked


def describe_bond(before: Game, after: Game, signed: SignedMove) -> BondClaim | None:
    """The bond by which a move made ``after`` of ``before``; None when it was no bond.

    Its amount is what the genesis says for its level, and 0 for the sub-claim of a party whose
    claim above it has a bond already: there is nothing to lock then.
    """
    if after.bonds is before.bonds or after.bonds is None:
        return None
    bond = after.bonds.last
    if not isinstance(bond, BondRecord):
        return None
    return BondClaim(
        key=compute_body_digest(structs.encode(signed)),
        game=after.id,
        party=bond.party,
        level=bond.level,
        about=signed.about,
        root=bond.root,
        amount=bond.amount,
    )


def make_settlement(game: Game) -> Settlement:
    """What a market is to settle a game by; NotFoundError while it goes on."""
    verdict = find_verdict(game)
    if verdict is None:
        raise NotFoundError("there is no verdict yet", where="game")
    return Settlement(verdict, list_outcomes(game), count_work(game))
