"""The games of a service: moves in, events and receipts out.  No HTTP here.

State is a fold over a game's events, kept in memory while the game is in use.  One thread writes;
it gives a move its time within the transaction that stores it, and nobody hears of a move before
that is committed.  So whatever was answered is there after a crash, once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final

from blake3 import blake3
from sqlalchemy import Connection, func, insert, select, update

from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.dispute import game as rules
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.service import receipts, store
from vtrain.dispute.service.clock import ServiceClock, Ticks, count_monotonic
from vtrain.dispute.service.limits import LIMITS, Limits
from vtrain.dispute.service.market import BondClaim, Market, Notice, Outcome, Settlement
from vtrain.dispute.service.problems import (
    BusyError,
    ConflictError,
    NotFoundError,
    TermsError,
    TooLargeError,
)
from vtrain.dispute.service.receipts import (
    Event,
    EventKind,
    Opening,
    Page,
    Receipt,
    SignedReceipt,
    compute_body_digest,
    compute_receipt_digest,
    sign_receipt,
)
from vtrain.dispute.service.writer import Writer
from vtrain.dispute.state import Game, Verdict, compute_game_id
from vtrain.errors import EncodingError, MoveRefusedError, StorageError, VtrainError
from vtrain.wire import cbor, structs
from vtrain.wire.dispute import Bond, Clocks, Genesis, SignedMove, decode_move
from vtrain.wire.graph import decode_graph
from vtrain.wire.task import decode_task

MAX_OPENED: Final = 2**53
"""Of a genesis: later times would not survive every JSON reader."""
_MOVE_ITEMS: Final = cbor.Limits(depth=2, items=16)
_DUE: Final = 64
"""Games whose deadlines one transaction handles."""


@dataclass(frozen=True)
class Loaded:
    """A game as far as its events go."""

    game: Game
    base: int
    sequence: int = 0
    head: bytes = receipts.FIRST
    at: int = 0
    """Time of the last event."""

    def time(self, now: int) -> int:
        """The game's time when the service's is ``now``: never before its last event."""
        return max(now - self.base, self.at, self.game.now)


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
    notices: list[Notice] = field(default_factory=list)


class GameService:
    """Hosts games in ``db`` and signs receipts with ``key``.  Thread-safe.

    ``listen`` is called with the notices of every committed transaction.  StorageError when the
    database is of another service key: its chains of receipts could not go on.
    """

    def __init__(
        self,
        db: store.Store,
        key: PrivateKey,
        market: Market,
        *,
        limits: Limits = LIMITS,
        ticks: Ticks = count_monotonic,
    ) -> None:
        self._db, self._key, self.market, self.limits = db, key, market, limits
        self.public = public_key(key)
        self._cache: OrderedDict[bytes, Loaded] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._opening = threading.Lock()
        self._listeners: list[Callable[[Sequence[Notice]], None]] = []
        self._persisted = self._resume()
        self._clock = ServiceClock(ticks, self._persisted, limits.gap)
        self._writer = Writer(self._run, waiting=limits.queue, batch=limits.batch)

    def _resume(self) -> int:
        with self._db.write() as connection:
            row = connection.execute(select(store.service)).first()
            if row is None:
                connection.execute(insert(store.service).values(id=1, clock=0, key=self.public))
                return 0
            if bytes(row.key) != self.public:
                raise StorageError("is the database of another service key", where="db")
            return int(row.clock)

    def close(self) -> None:
        """Store what was accepted, then stop."""
        self._writer.close()

    def listen(self, listener: Callable[[Sequence[Notice]], None]) -> None:
        """Have ``listener`` called after each commit that has events; it must return at once."""
        self._listeners.append(listener)

    # --- writing

    def open_game(self, body: bytes, request: str = "") -> tuple[SignedReceipt, bool]:
        """Open the game of an encoded :class:`Opening`; (its first receipt, is it new?).

        The same game again, or the same idempotency key ``request``, gives the first answer;
        ConflictError for that key with another game.  TermsError for terms that this service does
        not host, and the errors of ``make_genesis``.
        """
        # Graphs are large and take long to check: one at a time.
        with self._opening:
            opening = structs.decode(Opening, body, "opening")
            genesis, game_id = opening.genesis, compute_game_id(opening.genesis)
            name = blake3(request.encode()).hexdigest() if request else None
            first = self._find_opened(game_id, name)
            if first is not None:
                return first, False
            self._check_terms(genesis)
            _check_genesis(opening)
            game = rules.start(genesis)
            self.market.open(game_id, genesis)
            return self._writer.submit(
                lambda batch: self._open(batch, opening, game, name)
            ).result()

    def _check_terms(self, genesis: Genesis) -> None:
        if genesis.opened > MAX_OPENED:
            raise TermsError(f"is over {MAX_OPENED}", where="genesis.opened")
        for part in fields(Clocks):
            least = getattr(self.limits.least, part.name)
            if getattr(genesis.clocks, part.name) < least:
                where = f"genesis.clocks.{part.name}"
                raise TermsError(f"is under {least} milliseconds", where=where)

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
            "bonds": 0,
            "settle": 0,
        }
        connection.execute(insert(store.games).values(**values))
        loaded = Loaded(game, batch.now - genesis.opened)
        loaded, receipt = self._append(batch, loaded, "opened", encoded, genesis.opened)
        self._store(batch, loaded)
        return receipt, True

    def submit_move(self, game_id: bytes, body: bytes) -> Future[SignedReceipt]:
        """Make the move that ``body`` encodes (a SignedMove); its receipt, once it is stored.

        The same bytes again give the first receipt.  What is wrong with the bytes or the signature
        is refused before anything of the game is touched: EncodingError, SignatureError;
        NotFoundError; MoveRefusedError by the rules; BondRefusedError by the market.
        """
        signed = decode_signed_move(body)
        if signed.game != game_id:
            raise MoveRefusedError("is of another game", where="game")
        verify_signature(signed.party, rules.compute_move_digest(signed), signed.signature)
        loaded = self.load(game_id)
        digest = compute_body_digest(body)
        if _is_stranger(loaded.game, signed.party) and len(body) > self.limits.stranger:
            raise TooLargeError(f"has more than {self.limits.stranger} bytes", where="move")
        bond = None
        if is_bond(signed.move):
            first = self._find_answer(game_id, digest)
            if first is not None:
                return _done(first)
            move = decode_move(signed.move)
            if isinstance(move, Bond):
                bond = BondClaim(digest, game_id, signed.party, move.tournament, move.root)
        if bond is not None:
            # Only what the rules allow now is worth locking; the writer asks them again.
            rules.apply(loaded.game, signed, loaded.time(self._persisted))
            self.market.lock(bond)
        try:
            future = self._writer.submit(
                lambda batch: self._move(batch, game_id, signed, body, digest, bond is not None)
            )
        except BusyError:
            if bond is not None:
                self.market.release(bond)
            raise
        if bond is not None:
            future.add_done_callback(self._releaser(bond))
        return future

    def _releaser(self, bond: BondClaim) -> Callable[[Future[SignedReceipt]], None]:
        def release(future: Future[SignedReceipt]) -> None:
            # After a failure of the database nobody knows whether the move is stored: the bond
            # stays until the same move comes again, or the game is settled.
            if isinstance(future.exception(), VtrainError) and not isinstance(
                future.exception(), StorageError
            ):
                self.market.release(bond)

        return release

    def _find_answer(self, game_id: bytes, digest: bytes) -> SignedReceipt | None:
        with self._db.read() as connection:
            return _find_answer(connection, game_id, digest)

    def _move(
        self,
        batch: _Batch,
        game_id: bytes,
        signed: SignedMove,
        body: bytes,
        digest: bytes,
        is_bond: bool,
    ) -> SignedReceipt:
        loaded = self._load(batch.connection, game_id, batch.loaded)
        at = loaded.time(batch.now)
        try:
            game = rules.apply(loaded.game, signed, at)
            if is_bond and _is_stranger(loaded.game, signed.party):
                self._count_bond(batch.connection, game_id)
        except VtrainError:
            first = _find_answer(batch.connection, game_id, digest)
            if first is None:
                raise
            return first
        loaded, receipt = self._append(batch, replace(loaded, game=game), "move", body, at)
        self._store(batch, self._conclude(batch, loaded))
        return receipt

    def _count_bond(self, connection: Connection, game_id: bytes) -> None:
        table = store.games
        counted = connection.execute(
            update(table)
            .where(table.c.id == game_id, table.c.bonds < self.limits.bonds)
            .values(bonds=table.c.bonds + 1)
        )
        if counted.rowcount != 1:
            raise TooLargeError(f"the game has {self.limits.bonds} bonds", where="game")

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
        table = store.games
        due = select(table.c.id).where(table.c.due <= batch.now).order_by(table.c.due).limit(_DUE)
        return [bytes(game_id) for game_id in batch.connection.execute(due).scalars()]

    def _time_out(self, game_id: bytes, batch: _Batch) -> None:
        loaded = self._load(batch.connection, game_id, batch.loaded)
        if loaded.game.over:
            return
        game = rules.advance(loaded.game, loaded.time(batch.now))
        self._store(batch, self._conclude(batch, replace(loaded, game=game)))

    def _conclude(self, batch: _Batch, loaded: Loaded) -> Loaded:
        """Add the verdict to a game that has come to one."""
        verdict = rules.find_verdict(loaded.game)
        if verdict is None:
            return loaded
        loaded, _ = self._append(batch, loaded, "verdict", structs.encode(verdict), loaded.game.now)
        return loaded

    def _append(
        self, batch: _Batch, loaded: Loaded, kind: EventKind, body: bytes, at: int
    ) -> tuple[Loaded, SignedReceipt]:
        """Store an event with its receipt."""
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
        batch.connection.execute(
            insert(store.events).values(
                game=receipt.game,
                sequence=receipt.sequence,
                kind=kind,
                at=at,
                body=body,
                digest=receipt.digest,
                receipt=structs.encode(signed),
            )
        )
        batch.notices.append(Notice(receipt.game, receipt.sequence, kind, at))
        head = compute_receipt_digest(receipt)
        return replace(loaded, sequence=receipt.sequence, head=head, at=at), signed

    def _store(self, batch: _Batch, loaded: Loaded) -> None:
        due = rules.find_deadline(loaded.game)
        batch.connection.execute(
            update(store.games)
            .where(store.games.c.id == loaded.game.id)
            .values(
                sequence=loaded.sequence,
                due=None if loaded.game.over or due is None else due[0] + loaded.base,
                settle=1 if loaded.game.over else 0,
            )
        )
        batch.loaded[loaded.game.id] = loaded

    def _run(self, works: Sequence[Callable[[_Batch], Any]]) -> list[Any]:
        """The writer's transaction."""
        results: list[Any] = []
        with self._db.write() as connection:
            row = connection.execute(select(store.service.c.clock).with_for_update()).scalar_one()
            batch = _Batch(connection, self._clock.beat(int(row)))
            connection.execute(update(store.service).values(clock=batch.now))
            for work in works:
                try:
                    results.append(work(batch))
                except StorageError:
                    raise
                except VtrainError as error:
                    results.append(error)
        self._persisted = max(self._persisted, batch.now)
        for game_id, loaded in batch.loaded.items():
            self._keep(game_id, loaded)
        if batch.notices:
            for listener in self._listeners:
                listener(batch.notices)
        return results

    # --- settlement

    def settle_games(self) -> list[VtrainError]:
        """Settle what has a verdict and is not settled yet; what the market raised, if anything."""
        with self._db.read() as connection:
            owed = select(store.games.c.id).where(store.games.c.settle == 1).limit(_DUE)
            ids = [bytes(game_id) for game_id in connection.execute(owed).scalars()]
        troubles = []
        for game_id in ids:
            try:
                self.market.settle(self._find_settlement(game_id))
                self._writer.submit(partial(self._settled, game_id)).result()
            except VtrainError as error:
                troubles.append(error)
        return troubles

    def _find_settlement(self, game_id: bytes) -> Settlement:
        loaded = self.load(game_id)
        verdict = rules.find_verdict(loaded.game)
        if verdict is None:
            raise NotFoundError("there is no verdict yet", where="verdict")
        table = store.events
        moves = select(table.c.body, table.c.digest).where(
            table.c.game == game_id, table.c.kind == "move"
        )
        with self._db.read() as connection:
            rows = connection.execute(moves.order_by(table.c.sequence)).all()
        outcomes = []
        for row in rows:
            signed = decode_signed_move(bytes(row.body))
            if is_bond(signed.move):
                outcomes.append(_find_outcome(loaded.game, signed, bytes(row.digest)))
        return Settlement(verdict, tuple(outcomes), loaded.game)

    def _settled(self, game_id: bytes, batch: _Batch) -> None:
        table = store.games
        done = batch.connection.execute(
            update(table).where(table.c.id == game_id, table.c.settle == 1).values(settle=2)
        )
        if done.rowcount == 1:
            loaded = self._load(batch.connection, game_id, batch.loaded)
            loaded, _ = self._append(batch, loaded, "settled", b"", loaded.time(batch.now))
            batch.connection.execute(
                update(table).where(table.c.id == game_id).values(sequence=loaded.sequence)
            )
            batch.loaded[game_id] = loaded

    # --- reading

    def info(self) -> Info:
        """The service's key, time and limits."""
        return Info(self.public, self._persisted, self.limits)

    def load(self, game_id: bytes) -> Loaded:
        """A game as of its last event; NotFoundError."""
        with self._db.read() as connection:
            loaded = self._load(connection, game_id, {})
        self._keep(game_id, loaded)
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
        event = _to_event(row)
        return structs.decode(Verdict, event.body, "verdict"), event

    def page(self, game_id: bytes, after: int, limit: int) -> Page:
        """Events of a game after a sequence number, as many as fit one answer; NotFoundError."""
        table = store.events
        persisted = self._persisted  # before reading: no event that the reading misses is earlier
        with self._db.read() as connection:
            loaded = self._load(connection, game_id, {})
            found = connection.execution_options(yield_per=16).execute(
                select(table.c.body, table.c.receipt)
                .where(table.c.game == game_id, table.c.sequence > after)
                .order_by(table.c.sequence)
                .limit(min(limit, self.limits.page))
            )
            events: list[Event] = []
            size = 0
            for row in found:
                size += len(row.body)
                if events and size > self.limits.page_bytes:
                    break
                events.append(_to_event(row))
            found.close()
        last = events[-1].signed.receipt.sequence if events else after
        more = int(last < loaded.sequence)
        # Until the last event is sent, no time after those that are is anything to go by.
        now = events[-1].signed.receipt.at if more and events else loaded.time(persisted)
        self._keep(game_id, loaded)
        return Page(game_id, now, more, tuple(events))

    def last_sequence(self, game_id: bytes) -> int:
        """Sequence of the last event of a game; NotFoundError."""
        with self._db.read() as connection:
            return _check_game(connection, game_id)

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
        """A game as of its last event in this transaction, folded on from what is known of it."""
        if game_id in newer:
            return newer[game_id]
        with self._cache_lock:
            loaded = self._cache.get(game_id)
        sequence = _check_game(connection, game_id)
        if loaded is None:
            row = connection.execute(
                select(store.games.c.genesis, store.games.c.base).where(store.games.c.id == game_id)
            ).one()
            genesis = structs.decode(Genesis, bytes(row.genesis), "genesis")
            loaded = Loaded(rules.start(genesis), row.base)
        if loaded.sequence < sequence:
            table = store.events
            rows = connection.execute(
                select(table.c.body, table.c.receipt)
                .where(table.c.game == game_id, table.c.sequence > loaded.sequence)
                .order_by(table.c.sequence)
            )
            for row in rows:
                loaded = _fold(loaded, _to_event(row))
        return loaded

    def _keep(self, game_id: bytes, loaded: Loaded) -> None:
        with self._cache_lock:
            known = self._cache.get(game_id)
            if known is None or known.sequence <= loaded.sequence:
                self._cache[game_id] = loaded
            self._cache.move_to_end(game_id)
            while len(self._cache) > self.limits.cached:
                self._cache.popitem(last=False)


def decode_signed_move(body: bytes) -> SignedMove:
    """A signed move from its canonical encoding, the move within left alone; EncodingError."""
    return structs.from_value(SignedMove, cbor.decode(body, _MOVE_ITEMS), "move")


_BOND_HEAD: Final = b"\xa2" + cbor.encode("kind") + cbor.encode("bond")


def _is_stranger(game: Game, party: bytes) -> bool:
    """Does it stand behind no claim of the game yet?  Whoever does is never kept from its own."""
    return all(tournament.backed_by(party) < 0 for tournament in game.tournaments)


def is_bond(move: bytes) -> bool:
    """Does this encoding of a move begin as that of a bond does?  Decodes nothing."""
    return move.startswith(_BOND_HEAD)


def _check_genesis(opening: Opening) -> None:
    """Make the genesis anew, as whoever joins the game does, and compare."""
    given = opening.genesis
    task, graph = decode_task(opening.task), decode_graph(opening.graph)
    made = make_genesis(
        task,
        graph,
        rules.get_claim(given),
        opened=given.opened,
        clocks=given.clocks,
        arity=given.arity,
        nonce=given.nonce,
    )
    if made != given:
        names = [part.name for part in fields(Genesis)]
        name = next(name for name in names if getattr(given, name) != getattr(made, name))
        raise EncodingError("is not what follows from task and graph", where=f"genesis.{name}")


def _find_outcome(game: Game, signed: SignedMove, key: bytes) -> Outcome:
    move = decode_move(signed.move)
    if not isinstance(move, Bond):
        raise EncodingError("is no bond", where="move")
    tournament = game.tournaments[move.tournament]
    entry = tournament.entries[tournament.find(move.root)]
    stands = entry.fall is None and signed.party not in game.barred
    return Outcome(BondClaim(key, game.id, signed.party, move.tournament, move.root), stands)


def _fold(loaded: Loaded, event: Event) -> Loaded:
    receipt, game = event.signed.receipt, loaded.game
    if receipt.kind == "move":
        game = rules.apply(game, decode_signed_move(event.body), receipt.at)
    elif receipt.kind == "verdict":
        game = rules.advance(game, receipt.at)
    return replace(
        loaded,
        game=game,
        sequence=receipt.sequence,
        head=compute_receipt_digest(receipt),
        at=receipt.at,
    )


def _to_event(row: Any) -> Event:
    return Event(bytes(row.body), structs.decode(SignedReceipt, bytes(row.receipt), "receipt"))


def _check_game(connection: Connection, game_id: bytes) -> int:
    """Sequence of the last event; NotFoundError when there is no such game."""
    sequence = connection.execute(
        select(store.games.c.sequence).where(store.games.c.id == game_id)
    ).scalar_one_or_none()
    if sequence is None:
        raise NotFoundError("there is no such game", where="game")
    return int(sequence)


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
    table = store.events
    return _first(
        connection.execute(
            select(table.c.receipt).where(table.c.game == game_id, table.c.digest == digest)
        ).scalar_one_or_none()
    )


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
