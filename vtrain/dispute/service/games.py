"""The games of a service: moves in, events and receipts out.  No HTTP here.

State is a fold over a game's events, kept in memory while the game is in use.  One thread writes;
it gives a move its time within the transaction that stores it, and nobody hears of a move before
that is committed.  So whatever was answered is there after a crash, once.

A move is first made on the last committed state, in the thread that brings it: whatever is not
asked for, too long, not signed or against the rules is refused there, and the writer sees only what
would be accepted.

What is in memory is the database as of the last transaction of this process: each begins by taking
in what other processes have written since.  So reading asks the database for nothing that memory
has, and a time that is said holds for what is in memory with it.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final

from blake3 import blake3
from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.commit.database import storing
from vtrain.dispute import game as rules
from vtrain.dispute import receipts
from vtrain.dispute.arbiter import check_terms, describe_bond, make_settlement
from vtrain.dispute.clock import ServiceClock, Ticks, count_monotonic
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.market import BondClaim, Market, Notice
from vtrain.dispute.problems import (
    BondRefusedError,
    BusyError,
    ConflictError,
    NotFoundError,
    TermsError,
    TooLargeError,
    attach_refusal,
)
from vtrain.dispute.receipts import (
    Event,
    EventKind,
    Kept,
    Opening,
    Page,
    Receipt,
    Refusal,
    SignedReceipt,
    SignedTime,
    Time,
    compute_body_digest,
    compute_receipt_digest,
    sign_receipt,
    sign_refusal,
    sign_time,
)
from vtrain.dispute.service import store
from vtrain.dispute.service.ledger import has_deposits
from vtrain.dispute.service.limits import LIMITS, Limits
from vtrain.dispute.service.writer import Writer
from vtrain.dispute.state import DisputedGraph, Game, Verdict, compute_game_id
from vtrain.errors import EncodingError, MoveRefusedError, SignatureError, StorageError, VtrainError
from vtrain.wire import cbor, structs
from vtrain.wire.dispute import Clocks, Genesis, SignedMove
from vtrain.wire.graph import decode_graph
from vtrain.wire.task import decode_task

_MOVE_ITEMS: Final = cbor.Limits(depth=2, items=16)
_DUE: Final = 64
"""Games whose deadlines one transaction handles."""
_GRAPHS: Final = 64
"""Graphs that are kept in memory, which games share."""

# Made once: SQLAlchemy compiles a statement once for each that it is given.
_TAKE_TURN: Final = (
    update(store.service)
    .values(
        clock=case(
            (store.service.c.clock > bindparam("now"), store.service.c.clock),
            else_=bindparam("now"),
        ),
        turn=case(
            (store.service.c.writer == bindparam("me"), store.service.c.turn),
            else_=store.service.c.turn + 1,
        ),
        writer=bindparam("me"),
    )
    .returning(store.service.c.clock, store.service.c.turn)
)
"""Locks the row, has time go on, and tells whether another process wrote since."""
_ADD_EVENTS: Final = insert(store.events)
_SET_GAMES: Final = (
    update(store.games)
    .where(store.games.c.id == bindparam("game"))
    .values(sequence=bindparam("last"), due=bindparam("next"), settle=bindparam("owed"))
)
_FIND_DUE: Final = (
    select(store.games.c.id)
    .where(store.games.c.due <= bindparam("now"))
    .order_by(store.games.c.due)
    .limit(_DUE)
)
_FIND_EVENTS: Final = (
    select(store.events.c.body, store.events.c.receipt)
    .where(store.events.c.game == bindparam("game"), store.events.c.sequence > bindparam("after"))
    .order_by(store.events.c.sequence)
)
_FIND_ANSWER: Final = select(store.events.c.receipt).where(
    store.events.c.game == bindparam("game"), store.events.c.digest == bindparam("digest")
)


@dataclass(frozen=True)
class Loaded:
    """A game as far as its events go; ``tail`` are the last of them."""

    game: Game
    base: int
    sequence: int = 0
    head: bytes = receipts.FIRST
    at: int = 0
    """Time of the last event."""
    tail: tuple[Kept, ...] = ()

    def time(self, now: int) -> int:
        """The game's time when the service's is ``now``: never before its last event."""
        return max(now - self.base, self.at, self.game.now)


@dataclass(frozen=True)
class Offer:
    """A move that was brought: its body, and ``compute_body_digest`` of that."""

    signed: SignedMove
    body: bytes
    digest: bytes


@dataclass(frozen=True)
class Info:
    """What a service says of itself."""

    key: bytes
    clock: int
    limits: Limits


@dataclass
class _Batch:
    """A transaction: what it read and changed, for the cache once it is committed."""

    connection: Connection
    now: int
    loaded: dict[bytes, Loaded] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Events to store."""
    owed: dict[bytes, int] = field(default_factory=dict)
    """Of games that changed: is a settlement owed?"""
    notices: list[Notice] = field(default_factory=list)
    number: int = 0
    """Of the last event that other processes have written."""

    def find_answer(self, game_id: bytes, digest: bytes) -> SignedReceipt | None:
        """The receipt for these very bytes, if they were accepted before."""
        for row in self.rows:
            if (row["game"], row["digest"]) == (game_id, digest):
                return _first(row["receipt"])
        return _find_answer(self.connection, game_id, digest)


class GameService:
    """Hosts games in ``db`` and signs what it says with ``key``.  Thread-safe.

    Bonds of games cost something, unless they may be ``free``.
    ``listen`` is called with the notices of every committed transaction, other processes' among
    them.  StorageError when the database is of another service key, whose chains of receipts could
    not go on, or was served ``free`` and is not to be, or the other way round: bonds that were
    locked would never be settled.  So does one that holds deposits and was never served ``free``.
    """

    def __init__(
        self,
        db: store.Store,
        key: PrivateKey,
        market: Market,
        *,
        limits: Limits = LIMITS,
        free: bool = False,
        ticks: Ticks = count_monotonic,
    ) -> None:
        self._db, self._key, self.market, self.limits = db, key, market, limits
        self._free = free
        self.public = public_key(key)
        self._me, self._turn, self._number = secrets.token_bytes(16), -1, 0
        self._cache: OrderedDict[bytes, Loaded] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._changes = 0
        """How often games changed that this process did not change itself."""
        self._graphs: OrderedDict[bytes, DisputedGraph] = OrderedDict()
        self._opening = threading.Lock()
        self._listeners: list[Callable[[Sequence[Notice]], None]] = []
        self._connection: Connection | None = None
        """The writer's, between two transactions."""
        self._persisted = self._resume()
        self._clock = ServiceClock(ticks, self._persisted, limits.gap)
        self._writer = Writer(self._run, waiting=limits.queue, batch=limits.batch)

    def _resume(self) -> int:
        with self._db.write() as connection:
            self._db.lock(connection)  # of two that start at once the second finds the row
            row = connection.execute(select(store.service)).first()
            last = connection.execute(select(func.max(store.events.c.number))).scalar_one()
            self._number = int(last or 0)
            if self._free and (row is None or row.free is None) and has_deposits(connection):
                reason = (
                    "holds deposits: serve it with them, or take another database for free games"
                )
                raise StorageError(reason, where="db")
            if row is None:
                connection.execute(
                    insert(store.service).values(
                        id=1,
                        clock=0,
                        key=self.public,
                        writer=self._me,
                        turn=0,
                        free=self._free,
                    )
                )
                return 0
            if bytes(row.key) != self.public:
                raise StorageError("is the database of another service key", where="db")
            if row.free is None:
                if self._free and _has_bonds(connection):
                    raise StorageError("has games with bonds that are not settled", where="db")
                connection.execute(update(store.service).values(free=self._free))
            elif bool(row.free) != self._free:
                was = "free of bonds" if row.free else "with bonds, which are locked somewhere"
                raise StorageError(f"is the database of games {was}: serve it so", where="db")
            return int(row.clock)

    def close(self) -> None:
        """Store what was accepted, then stop."""
        self._writer.close()
        if self._connection is not None:
            self._connection.close()

    def listen(self, listener: Callable[[Sequence[Notice]], None]) -> None:
        """Have ``listener`` called after each commit that has events; it must return at once."""
        self._listeners.append(listener)

    # --- opening

    def open_game(self, body: bytes, request: str = "") -> tuple[SignedReceipt, bool]:
        """Open the game of an encoded :class:`Opening`; (its first receipt, is it new?).

        The same game again, or the same idempotency key ``request``, gives the first answer;
        ConflictError for that key with another game.  TermsError for terms that this service does
        not host, another host's key among them, and the errors of ``make_genesis``.
        """
        opening = structs.decode(Opening, body, "opening")
        genesis, game_id = opening.genesis, compute_game_id(opening.genesis)
        self._check_terms(genesis)
        name = blake3(request.encode()).hexdigest() if request else None
        # Graphs are large and take long to check: one at a time.
        with self._opening:
            first = self._find_opened(game_id, name)
            if first is not None:
                return first, False
            game = rules.start(genesis, self._check_genesis(opening))
            with self._undoing(lambda: self.market.cancel(game_id)):
                self.market.open(game_id, genesis)
            try:
                return self._writer.submit(
                    lambda batch: self._open(batch, opening, game, name)
                ).result()
            except VtrainError as error:
                # After a failure of the database nobody knows whether the game is stored.
                if not isinstance(error, StorageError):
                    self.market.cancel(game_id)
                raise

    def _check_terms(self, genesis: Genesis) -> None:
        if genesis.host != self.public:
            raise TermsError("is not the key of this service", where="genesis.host")
        for part in fields(Clocks):
            least = getattr(self.limits.least, part.name)
            if getattr(genesis.clocks, part.name) < least:
                where = f"genesis.clocks.{part.name}"
                raise TermsError(f"is under {least} milliseconds", where=where)

    def _check_genesis(self, opening: Opening) -> DisputedGraph:
        """Make the genesis anew, as whoever joins the game does, and compare; its graph."""
        given = opening.genesis
        task, graph = decode_task(opening.task), decode_graph(opening.graph)
        check_terms(task, given, free=self._free)
        made = make_genesis(
            task,
            graph,
            rules.get_claim(given),
            host=given.host,
            opened=given.opened,
            clocks=given.clocks,
            bonds=given.bonds,
            arity=given.arity,
            group=given.group,
            nonce=given.nonce,
        )
        if made != given:
            names = [part.name for part in fields(Genesis)]
            name = next(name for name in names if getattr(given, name) != getattr(made, name))
            raise EncodingError("is not what follows from task and graph", where=f"genesis.{name}")
        return self._share(given.graph_root, lambda: DisputedGraph(graph, given.graph_root))

    def _share(self, root: bytes, make: Callable[[], DisputedGraph]) -> DisputedGraph:
        """A graph, one in memory for all games about it."""
        with self._cache_lock:
            known = self._graphs.get(root)
        if known is None:
            known = make()
        with self._cache_lock:
            known = self._graphs.setdefault(root, known)
            self._graphs.move_to_end(root)
            while len(self._graphs) > _GRAPHS:
                self._graphs.popitem(last=False)
        return known

    def _find_opened(self, game_id: bytes, name: str | None) -> SignedReceipt | None:
        with self._db.read() as connection:
            return _find_opened(connection, game_id, name)

    def _open(
        self, batch: _Batch, opening: Opening, game: Game, name: str | None
    ) -> tuple[SignedReceipt, bool]:
        genesis, connection = opening.genesis, batch.connection
        first = _find_opened(connection, game.id, name)
        if first is not None:
            return first, False
        live = select(func.count()).where(store.games.c.due.is_not(None))
        if connection.execute(live).scalar_one() >= self.limits.games:
            raise BusyError(f"hosts {self.limits.games} games already", where="games")
        encoded = structs.encode(genesis)
        values = {
            "id": game.id,
            "genesis": encoded,
            "task": _put_document(connection, opening.task),
            "graph": _put_document(connection, opening.graph),
            "request": name,
            "base": batch.now - genesis.opened,
            "sequence": 0,
            "settle": 0,
        }
        connection.execute(insert(store.games).values(**values))
        loaded = Loaded(game, batch.now - genesis.opened)
        loaded, receipt = self._append(batch, loaded, "opened", encoded, genesis.opened)
        batch.loaded[game.id] = loaded
        return receipt, True

    # --- moves

    def submit_move(self, game_id: bytes, body: bytes) -> Future[SignedReceipt]:
        """``submit`` what ``read_move`` finds in a body."""
        return self.submit(self.read_move(game_id, body))

    def read_move(self, game_id: bytes, body: bytes) -> Offer:
        """The move that ``body`` encodes (a SignedMove), its content and signature left alone.

        EncodingError, MoveRefusedError.
        """
        signed = structs.from_value(SignedMove, cbor.decode(body, _MOVE_ITEMS), "move")
        if signed.game != game_id:
            raise MoveRefusedError("is of another game", where="game")
        return Offer(signed, body, compute_body_digest(body))

    def is_backed(self, offer: Offer) -> bool:
        """Does it answer for a claim that its party backs, as far as memory knows?

        Its signature has not been looked at.
        """
        loaded = self.find_loaded(offer.signed.game)
        if loaded is None:
            return False
        game, party = loaded.game, offer.signed.party
        if (game.id, party) in game.stands:
            return True
        question = game.asked.get(offer.signed.about)
        return question is not None and any(
            game.find_own(game.contests[contest], party) for contest, _ in question.where
        )

    def submit(self, offer: Offer) -> Future[SignedReceipt]:
        """Make a move; its receipt, once it is stored.

        The same bytes again give the first receipt.  SignatureError; NotFoundError; by the rules
        EncodingError, MoveRefusedError and RefusalError; BondRefusedError by the market.  What is
        signed by its party, but refused, has the service's signed word on that (``find_refusal``).
        """
        signed = offer.signed
        now = self._persisted  # before loading: no event that memory misses is earlier
        loaded = self.load(signed.game)
        at = loaded.time(now)
        try:
            after = rules.apply(loaded.game, signed, at)
        except SignatureError:
            raise
        except VtrainError as error:
            # Before the signature is looked at, the rules have refused what nobody asks for.
            verify_signature(signed.party, rules.compute_move_digest(signed), signed.signature)
            first = self._find_answer(signed.game, offer.digest)
            if first is not None:
                return _done(first)
            self._refuse(error, loaded, offer, at)
            raise
        bond = _find_bond(loaded.game, after, offer.signed)
        if bond is not None:
            try:
                with self._undoing(partial(self.market.release, bond)):
                    self.market.lock(bond)
            except BondRefusedError as error:
                self._refuse(error, loaded, offer, at)
                raise
        try:
            future = self._writer.submit(lambda batch: self._move(batch, offer, bond))
        except BusyError:
            if bond is not None:
                self.market.release(bond)
            raise
        if bond is not None:
            future.add_done_callback(self._releaser(bond))
        return future

    @contextmanager
    def _undoing(self, undo: Callable[[], None]) -> Iterator[None]:
        """What a market raises but BondRefusedError may have happened, and is undone.

        BusyError then: the same may be tried again.
        """
        try:
            yield
        except BondRefusedError:
            raise
        except Exception as error:
            undo()
            reason = f"the market failed: {type(error).__name__}"
            raise BusyError(reason, where="market") from error

    def _releaser(self, bond: BondClaim) -> Callable[[Future[SignedReceipt]], None]:
        def release(future: Future[SignedReceipt]) -> None:
            # After a failure of the database nobody knows whether the move is stored: the bond
            # stays until the game is settled.
            if isinstance(future.exception(), VtrainError) and not isinstance(
                future.exception(), StorageError
            ):
                self.market.release(bond)

        return release

    def _refuse(self, error: VtrainError, loaded: Loaded, offer: Offer, at: int) -> None:
        """Have the error carry the service's signed word that it refused the move."""
        if isinstance(error, StorageError | BusyError | SignatureError):
            return
        refusal = Refusal(
            game=loaded.game.id,
            digest=offer.digest,
            sequence=loaded.sequence,
            at=at,
            code=error.code,
            service=self.public,
        )
        attach_refusal(error, structs.encode(sign_refusal(refusal, self._key)))

    def _find_answer(self, game_id: bytes, digest: bytes) -> SignedReceipt | None:
        with self._db.read() as connection:
            return _find_answer(connection, game_id, digest)

    def _move(self, batch: _Batch, offer: Offer, locked: BondClaim | None) -> SignedReceipt:
        game_id = offer.signed.game
        loaded = self._load(batch.connection, game_id, batch.loaded)
        at = loaded.time(batch.now)
        try:
            # The signature has been looked at by ``submit``.
            game = rules.apply_verified(loaded.game, offer.signed, at)
            self._check_bond(loaded.game, game, offer, locked)
        except VtrainError as error:
            # Refused after all: something came between.  Perhaps this very move.
            first = batch.find_answer(game_id, offer.digest)
            if first is None:
                self._refuse(error, loaded, offer, at)
                raise
            return first
        loaded, receipt = self._append(batch, replace(loaded, game=game), "move", offer.body, at)
        batch.loaded[game_id] = self._conclude(batch, loaded)
        return receipt

    def _check_bond(
        self, before: Game, after: Game, offer: Offer, locked: BondClaim | None
    ) -> None:
        """Refuse a bond that the game has no room for, or for which too little is locked."""
        bond = describe_bond(before, after, offer.signed)
        if bond is None:
            return
        self._check_room(after, bond)
        if bond.amount and (locked is None or locked.amount < bond.amount):
            raise BusyError("needs a higher bond now; send it again", where="move")

    def _check_room(self, after: Game, bond: BondClaim) -> None:
        """Refuse one bond too many.

        Were all bonds of a game counted together, whoever filled it first would keep the honest
        out.  So they are counted for each claim: a claim that nobody has made yet always has room,
        and so do others when one is full; each claim is paid for, and all but one of them lose
        what was.  What is free by the rules was paid for above, and is not counted at all.  Where
        a level costs nothing, claims are as many as anybody likes: there all are counted together.
        """
        most = self.limits.bonds
        if not getattr(after.genesis.bonds, bond.level):
            if len(after.stands) > most + 1:  # the solver's, too
                raise TooLargeError(f"the game has {most} bonds", where="game")
            return
        scope = after.sides.get(bond.about, after.id)
        if bond.amount and len(after.backers[scope, bond.root]) > most:
            raise TooLargeError(f"the claim has {most} bonds", where="root")

    # --- time

    def beat(self) -> None:
        """Let time go on to now, whatever runs out with it, and persist it.

        What goes wrong in one game holds up no other; the first such failure is raised in the end.
        """
        due = self._writer.submit(self._find_due).result()
        answers = [self._writer.submit(partial(self._time_out, game_id)) for game_id in due]
        wait(answers)
        for answer in answers:
            answer.result()

    def _find_due(self, batch: _Batch) -> list[bytes]:
        found = batch.connection.execute(_FIND_DUE, {"now": batch.now}).scalars()
        return [bytes(game_id) for game_id in found]

    def _time_out(self, game_id: bytes, batch: _Batch) -> None:
        loaded = self._load(batch.connection, game_id, batch.loaded)
        if loaded.game.over:
            return
        game = rules.advance(loaded.game, loaded.time(batch.now))
        batch.loaded[game_id] = self._conclude(batch, replace(loaded, game=game))
        batch.owed.setdefault(game_id, int(game.over))

    def _conclude(self, batch: _Batch, loaded: Loaded) -> Loaded:
        """Add the verdict to a game that has come to one."""
        verdict = rules.find_verdict(loaded.game)
        if verdict is None:
            return loaded
        body = structs.encode(verdict)
        loaded, _ = self._append(batch, loaded, "verdict", body, loaded.game.now, owed=1)
        return loaded

    # --- the writer's transaction

    def _append(
        self, batch: _Batch, loaded: Loaded, kind: EventKind, body: bytes, at: int, owed: int = 0
    ) -> tuple[Loaded, SignedReceipt]:
        """Have an event stored with its receipt."""
        receipt = Receipt(
            game=loaded.game.id,
            sequence=loaded.sequence + 1,
            kind=kind,
            at=at,
            digest=compute_body_digest(body),
            previous=loaded.head,
            service=self.public,
        )
        signed = sign_receipt(receipt, self._key)
        encoded = structs.encode(signed)
        batch.rows.append(
            {
                "game": receipt.game,
                "sequence": receipt.sequence,
                "kind": kind,
                "at": at,
                "body": body,
                "digest": receipt.digest,
                "receipt": encoded,
            }
        )
        batch.owed[receipt.game] = owed
        batch.notices.append(Notice(receipt.game, receipt.sequence, kind, at))
        return self._extend(loaded, Kept(body, encoded), receipt), signed

    def _extend(self, loaded: Loaded, kept: Kept, receipt: Receipt) -> Loaded:
        """``loaded``, whose game is the one after the event already, with the event."""
        tail = (*loaded.tail, kept)[-self.limits.tail :]
        size = sum(len(each.body) for each in tail)
        while tail and size > self.limits.tail_bytes:
            size -= len(tail[0].body)
            tail = tail[1:]
        return replace(
            loaded,
            sequence=receipt.sequence,
            head=compute_receipt_digest(receipt),
            at=receipt.at,
            tail=tail,
        )

    def _run(self, works: Sequence[Callable[[_Batch], Any]]) -> list[Any]:
        """Do ``works`` in one transaction."""
        try:
            return self._transact(works)
        except BaseException:
            # Nobody knows whether a commit that failed is stored: memory starts anew.
            with self._cache_lock:
                self._cache.clear()
                self._changes += 1
            self._turn = -1
            raise

    def _transact(self, works: Sequence[Callable[[_Batch], Any]]) -> list[Any]:
        results: list[Any] = []
        with self._write() as connection:
            now, ticks = self._clock.read()
            row = connection.execute(_TAKE_TURN, {"now": now, "me": self._me}).one()
            batch = _Batch(connection, int(row.clock))
            if row.turn != self._turn:
                self._catch_up(batch)
            for work in works:
                try:
                    results.append(work(batch))
                except StorageError:
                    raise
                except VtrainError as error:
                    results.append(error)
            self._flush(batch)
        self._turn, self._number = int(row.turn), max(self._number, batch.number)
        self._clock.keep(batch.now, ticks)
        for game_id, loaded in batch.loaded.items():
            self._keep(game_id, loaded, written=True)
        self._persisted = max(self._persisted, batch.now)
        if batch.notices:
            for listener in self._listeners:
                listener(batch.notices)
        return results

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """A transaction on the writer's own connection, which is made anew when one fails."""
        with storing():
            connection = self._connection or self._db.connect()
            self._connection = None
            try:
                with connection.begin():
                    yield connection
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
            self._connection = connection

    def _catch_up(self, batch: _Batch) -> None:
        """Take in what other processes have written since this one's last transaction."""
        table = store.events
        query = select(table.c.number, table.c.game, table.c.sequence, table.c.kind, table.c.at)
        query = query.where(table.c.number > self._number).order_by(table.c.number)
        rows = batch.connection.execute(query).all()
        with self._cache_lock:
            known = {bytes(row.game): self._cache.get(bytes(row.game)) for row in rows}
            self._changes += 1
        for row in rows:
            game_id, batch.number = bytes(row.game), row.number
            loaded = known[game_id]
            if loaded is None or row.sequence > loaded.sequence:
                batch.notices.append(Notice(game_id, row.sequence, row.kind, row.at))
        for game_id, loaded in known.items():
            if loaded is not None:
                batch.loaded[game_id] = self._fold(batch.connection, game_id, loaded)

    def _flush(self, batch: _Batch) -> None:
        if batch.rows:
            batch.connection.execute(_ADD_EVENTS, batch.rows)
        if batch.owed:
            changed = [(batch.loaded[game_id], owed) for game_id, owed in batch.owed.items()]
            batch.connection.execute(
                _SET_GAMES,
                [
                    {
                        "game": loaded.game.id,
                        "last": loaded.sequence,
                        "next": _find_due(loaded),
                        "owed": owed,
                    }
                    for loaded, owed in changed
                ],
            )

    # --- settlement

    def settle_games(self) -> list[VtrainError]:
        """Settle what has a verdict and is not settled yet; what the market raised, if anything."""
        with self._db.read() as connection:
            owed = select(store.games.c.id).where(store.games.c.settle == 1).limit(_DUE)
            ids = [bytes(game_id) for game_id in connection.execute(owed).scalars()]
        troubles = []
        for game_id in ids:
            try:
                game = self.load(game_id).game
                self.market.settle(make_settlement(game))
                self._writer.submit(partial(self._settled, game_id)).result()
            except VtrainError as error:
                troubles.append(error)
        return troubles

    def _settled(self, game_id: bytes, batch: _Batch) -> None:
        owed = select(store.games.c.settle).where(store.games.c.id == game_id)
        if batch.connection.execute(owed).scalar_one() == 1 and batch.owed.get(game_id, 1) == 1:
            loaded = self._load(batch.connection, game_id, batch.loaded)
            at = loaded.time(batch.now)
            batch.loaded[game_id], _ = self._append(batch, loaded, "settled", b"", at, owed=2)

    # --- reading

    def info(self) -> Info:
        """The service's key, time and limits."""
        return Info(self.public, self._persisted, self.limits)

    def find_loaded(self, game_id: bytes) -> Loaded | None:
        """A game as memory has it, if it does; asks the database for nothing."""
        return self._cache.get(game_id)

    def is_at_hand(self, game_id: bytes, after: int) -> bool:
        """Does memory have all events after a sequence number?"""
        loaded = self.find_loaded(game_id)
        return loaded is not None and 0 <= loaded.sequence - after <= len(loaded.tail)

    def load(self, game_id: bytes) -> Loaded:
        """A game as of its last event; NotFoundError."""
        known = self._cache.get(game_id)
        if known is not None:
            return known
        with self._cache_lock:
            changes = self._changes
        with self._db.read() as connection:
            loaded = self._load(connection, game_id, {})
        self._keep(game_id, loaded, changes=changes)
        return loaded

    def state(self, game_id: bytes) -> Game:
        """A game now; NotFoundError.  Its time is persisted: nothing here is ever taken back."""
        now = self._persisted  # before reading: no event that the reading misses is earlier
        loaded = self.load(game_id)
        return rules.advance(loaded.game, loaded.time(now))

    def verdict(self, game_id: bytes) -> tuple[Verdict, Event]:
        """The verdict and its event; NotFoundError while the game goes on."""
        with self._db.read() as connection:
            _check_game(connection, game_id)
            table = store.events
            row = connection.execute(
                select(table.c.body, table.c.receipt).where(
                    table.c.game == game_id, table.c.kind == "verdict"
                )
            ).first()
        if row is None:
            raise NotFoundError("there is no verdict yet", where="verdict")
        event = _to_event(Kept(bytes(row.body), bytes(row.receipt)))
        return structs.decode(Verdict, event.body, "verdict"), event

    def page(self, game_id: bytes, after: int, limit: int) -> Page:
        """Events of a game after a sequence number, as many as fit one answer; NotFoundError."""
        _, data = self.encode_page(game_id, after, limit)
        return structs.decode(Page, data, "page")

    def encode_page(self, game_id: bytes, after: int, limit: int) -> tuple[int, bytes]:
        """How many events ``page`` has, and its canonical encoding."""
        now = self._persisted  # before reading: no event that the reading misses is earlier
        loaded = self.load(game_id)
        if after > loaded.sequence:
            loaded = self._find_later(game_id, after)
        missing = loaded.sequence - after
        found: list[Kept] = []
        if 0 < missing <= len(loaded.tail):
            found = self._fit(loaded.tail[-missing:], limit)
        elif missing > 0:
            about = {"game": game_id, "after": after}
            with self._db.read() as connection:
                rows = connection.execution_options(yield_per=16).execute(_FIND_EVENTS, about)
                kept = (Kept(bytes(row.body), bytes(row.receipt)) for row in rows)
                found = self._fit(kept, limit)
                rows.close()
            # What memory does not have yet is for the next page: its time is that of memory.
            found = found[:missing]
        time = self._sign_time(loaded, after, found, now)
        more = after + len(found) < loaded.sequence
        return len(found), receipts.encode_page(game_id, time, more, found)

    def _find_later(self, game_id: bytes, after: int) -> Loaded:
        """A game as of at least event ``after``, which another process may have written.

        NotFoundError when there is no such event.
        """
        with self._db.read() as connection:
            last = select(store.games.c.sequence).where(store.games.c.id == game_id)
            if connection.execute(last).scalar_one() < after:
                raise NotFoundError("there is no such event yet", where="after")
        self._writer.submit(lambda batch: None).result()  # which catches up
        return self.load(game_id)

    def _fit(self, events: Iterable[Kept], limit: int) -> list[Kept]:
        """As many of ``events`` as one answer may have."""
        found: list[Kept] = []
        size = 0
        for each in events:
            size += len(each.body)
            if found and (size > self.limits.page_bytes or len(found) >= limit):
                break
            found.append(each)
        return found[: self.limits.page]

    def _sign_time(self, loaded: Loaded, after: int, found: Sequence[Kept], now: int) -> SignedTime:
        """The game's time after a page's last event."""
        sequence, head, at = loaded.sequence, loaded.head, loaded.time(now)
        if found and after + len(found) < loaded.sequence:
            # Until the last event is sent, no time after those that are is anything to go by.
            last = _to_event(found[-1]).signed.receipt
            sequence, head, at = last.sequence, compute_receipt_digest(last), last.at
        return sign_time(Time(loaded.game.id, sequence, head, at, self.public), self._key)

    def document(self, game_id: bytes, name: str) -> bytes:
        """The canonical ``genesis``, ``task`` or ``graph`` of a game; NotFoundError."""
        column = {"genesis": store.games.c.genesis}.get(name, store.documents.c.data)
        query = select(column).where(store.games.c.id == game_id)
        if name != "genesis":
            link = store.games.c.task if name == "task" else store.games.c.graph
            query = query.where(store.documents.c.digest == link)
        with self._db.read() as connection:
            data = connection.execute(query).scalar_one_or_none()
        if data is None:
            raise NotFoundError("there is no such game", where="game")
        return bytes(data)

    def list_games(self, after: int, limit: int) -> list[tuple[int, bytes, bool]]:
        """Games after a number: (number, id, is over)."""
        table = store.games
        query = (
            select(table.c.number, table.c.id, table.c.settle)
            .where(table.c.number > after)
            .order_by(table.c.number)
            .limit(min(limit, self.limits.page))
        )
        with self._db.read() as connection:
            return [
                (row.number, bytes(row.id), row.settle > 0) for row in connection.execute(query)
            ]

    # --- the fold

    def _load(self, connection: Connection, game_id: bytes, newer: dict[bytes, Loaded]) -> Loaded:
        """A game as of its last event: as this transaction or memory has it, or from its events."""
        loaded = newer.get(game_id) or self._cache.get(game_id)
        if loaded is not None:
            return loaded
        row = connection.execute(
            select(store.games.c.genesis, store.games.c.base, store.documents.c.data).where(
                store.games.c.id == game_id, store.documents.c.digest == store.games.c.graph
            )
        ).first()
        if row is None:
            raise NotFoundError("there is no such game", where="game")
        genesis = structs.decode(Genesis, bytes(row.genesis), "genesis")
        root = genesis.graph_root
        graph = self._share(root, lambda: DisputedGraph(decode_graph(bytes(row.data)), root))
        return self._fold(connection, game_id, Loaded(rules.start(genesis, graph), row.base))

    def _fold(self, connection: Connection, game_id: bytes, loaded: Loaded) -> Loaded:
        """A game with the events that it has in the database beyond ``loaded``."""
        about = {"game": game_id, "after": loaded.sequence}
        for row in connection.execute(_FIND_EVENTS, about):
            kept = Kept(bytes(row.body), bytes(row.receipt))
            receipt, game = _to_event(kept).signed.receipt, loaded.game
            if receipt.kind == "move":
                game = rules.apply(game, structs.decode(SignedMove, kept.body, "move"), receipt.at)
            elif receipt.kind == "verdict":
                game = rules.advance(game, receipt.at)
            loaded = self._extend(replace(loaded, game=game), kept, receipt)
        return loaded

    def _keep(
        self, game_id: bytes, loaded: Loaded, *, written: bool = False, changes: int = -1
    ) -> None:
        """Have a game in memory, those that were written last for longest.

        One that was read, ``changes`` before, is not kept if other processes wrote meanwhile.
        """
        with self._cache_lock:
            known = self._cache.get(game_id)
            if written:
                self._cache[game_id] = loaded
                self._cache.move_to_end(game_id)
            elif known is None and changes == self._changes:
                self._cache[game_id] = loaded
                self._cache.move_to_end(game_id, last=False)
            while len(self._cache) > self.limits.cached:
                self._cache.popitem(last=False)


def _has_bonds(connection: Connection) -> bool:
    """Is there a game, not yet settled, whose bonds cost something?"""
    games = select(store.games.c.genesis)
    open_ = games.where(store.games.c.due.is_not(None) | (store.games.c.settle == 1))
    found = (structs.decode(Genesis, bytes(row.genesis), "db") for row in connection.execute(open_))
    return any(any(vars(genesis.bonds).values()) for genesis in found)


def _find_bond(before: Game, after: Game, signed: SignedMove) -> BondClaim | None:
    """The bond that a move made, if it did and costs anything."""
    bond = describe_bond(before, after, signed)
    return bond if bond is not None and bond.amount else None


def _find_due(loaded: Loaded) -> int | None:
    due = rules.find_deadline(loaded.game)
    return None if loaded.game.over or due is None else due + loaded.base


def _to_event(kept: Kept) -> Event:
    return Event(kept.body, structs.decode(SignedReceipt, kept.receipt, "receipt"))


def _check_game(connection: Connection, game_id: bytes) -> None:
    """NotFoundError when there is no such game."""
    query = select(store.games.c.number).where(store.games.c.id == game_id)
    if connection.execute(query).first() is None:
        raise NotFoundError("there is no such game", where="game")


def _find_opened(
    connection: Connection, game_id: bytes, request: str | None
) -> SignedReceipt | None:
    """The first receipt of a game, or of the one that this idempotency key opened."""
    if request is not None:
        known = connection.execute(
            select(store.games.c.id).where(store.games.c.request == request)
        ).scalar_one_or_none()
        if known is not None and bytes(known) != game_id:
            raise ConflictError("opened another game before", where="Idempotency-Key")
    table = store.events
    return _first(
        connection.execute(
            select(table.c.receipt).where(table.c.game == game_id, table.c.sequence == 1)
        ).scalar_one_or_none()
    )


def _find_answer(connection: Connection, game_id: bytes, digest: bytes) -> SignedReceipt | None:
    """The receipt for these very bytes, if they were accepted before."""
    about = {"game": game_id, "digest": digest}
    return _first(connection.execute(_FIND_ANSWER, about).scalar_one_or_none())


def _first(receipt: bytes | None) -> SignedReceipt | None:
    return None if receipt is None else structs.decode(SignedReceipt, bytes(receipt), "receipt")


def _put_document(connection: Connection, data: bytes) -> bytes:
    digest = blake3(data).digest()
    table = store.documents
    known = connection.execute(select(table.c.digest).where(table.c.digest == digest)).first()
    if known is None:
        connection.execute(insert(table).values(digest=digest, data=data))
    return digest


def _done(receipt: SignedReceipt) -> Future[SignedReceipt]:
    future: Future[SignedReceipt] = Future()
    future.set_result(receipt)
    return future
