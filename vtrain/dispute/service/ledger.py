"""A market that keeps deposits: what ``vtrain serve --deposits`` asks for bonds.

The operator enters what it received from a party, and what it paid out; a bond locks of that, and
the verdict gives back what stood, and shares what fell.  All of it is in a database of its own, one
transaction a call, so that nothing is counted twice or lost, whatever stops when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    String,
    Table,
    delete,
    func,
    insert,
    inspect,
    select,
    update,
)

from vtrain.commit.database import Database, make_metadata
from vtrain.dispute.market import BondClaim, Notice, Settlement, compute_credits
from vtrain.dispute.problems import BondRefusedError, ConflictError, RequestError
from vtrain.dispute.service import store
from vtrain.wire.dispute import Genesis

MIGRATIONS: Final = Path(__file__).parent / "ledger_migrations"
VERSIONS: Final = "ledger_version"
"""Table of the revision, so that one database can hold games and deposits."""
MOST: Final = 2**53
"""Of any balance: larger ones would not survive every JSON reader."""

metadata = make_metadata()
_Number = BigInteger().with_variant(Integer, "sqlite")

accounts = Table(
    "accounts",
    metadata,
    Column("party", LargeBinary(32), primary_key=True),
    Column("free", BigInteger, nullable=False),
)
"""What a party has that is not locked."""

entries = Table(
    "entries",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("party", LargeBinary(32), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("reference", String(300), nullable=False, unique=True),
)
"""What moved accounts, but for locks: the operator's entries ("operator:..."), and what a game came
to for each party, less what was locked ("game:...").  Never changed and never deleted."""

locks = Table(
    "locks",
    metadata,
    Column("key", LargeBinary(32), primary_key=True),
    Column("game", LargeBinary(32), nullable=False, index=True),
    Column("party", LargeBinary(32), nullable=False, index=True),
    Column("amount", BigInteger, nullable=False),
    Column("count", Integer, nullable=False),
)
"""Bonds of games that are not settled, and how often each was locked and not released."""

settled = Table("settled", metadata, Column("game", LargeBinary(32), primary_key=True))
"""Games that were settled."""


@dataclass(frozen=True)
class Balance:
    """What a party has: ``free``, and ``locked`` in games."""

    free: int
    locked: int


class Ledger:
    """A ``Market`` on the database at ``url``; StorageError for whatever fails in it."""

    def __init__(self, url: str) -> None:
        self._db = Database(url, partial(store.upgrade, MIGRATIONS))

    def close(self) -> None:
        """Close all connections."""
        self._db.close()

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """A transaction, one at a time over all processes."""
        with self._db.write() as connection:
            self._db.lock(connection)
            yield connection

    def enter(self, party: bytes, amount: int, reference: str) -> Balance:
        """Enter ``amount`` that the operator received, or (negative) pays out; what there is then.

        The same ``reference`` counts once: ConflictError when it was for something else, and
        RequestError when less is free than is to be paid out, or over MOST would be.
        """
        with self._write() as connection:
            name = f"operator:{reference}"
            known = connection.execute(select(entries).where(entries.c.reference == name)).first()
            if known is not None and (bytes(known.party), known.amount) != (party, amount):
                raise ConflictError("was used for another entry before", where="reference")
            if known is None:
                _pay(connection, party, amount, name)
            return _find_balance(connection, party)

    def find(self, party: bytes) -> Balance:
        """What a party has."""
        with self._db.read() as connection:
            return _find_balance(connection, party)

    # --- the market

    def open(self, game: bytes, genesis: Genesis) -> None:
        """Takes every game: the claim that it is about has no bond."""

    def cancel(self, game: bytes) -> None:
        """Nothing was done."""

    def lock(self, bond: BondClaim) -> None:
        """Take the amount from what is free; once, however often one bond is locked."""
        with self._write() as connection:
            same = locks.c.key == bond.key
            more = connection.execute(update(locks).where(same).values(count=locks.c.count + 1))
            if more.rowcount:
                return
            free = _find_balance(connection, bond.party).free
            if free < bond.amount:
                message = f"the bond is {bond.amount}, the deposit has {free}"
                raise BondRefusedError(message, where=bond.party.hex())
            _add(connection, bond.party, -bond.amount)
            connection.execute(
                insert(locks).values(
                    key=bond.key,
                    game=bond.game,
                    party=bond.party,
                    amount=bond.amount,
                    count=1,
                )
            )

    def release(self, bond: BondClaim) -> None:
        """Give the amount back once it is released as often as locked."""
        with self._write() as connection:
            same = locks.c.key == bond.key
            connection.execute(update(locks).where(same).values(count=locks.c.count - 1))
            gone = connection.execute(delete(locks).where(same, locks.c.count <= 0))
            if gone.rowcount:
                _add(connection, bond.party, bond.amount)

    def settle(self, settlement: Settlement) -> None:
        """Give back what stood and what belongs to no bond of the game, and share what fell."""
        game = settlement.verdict.game
        with self._write() as connection:
            if connection.execute(select(settled).where(settled.c.game == game)).first():
                return
            connection.execute(insert(settled).values(game=game))
            held: Counter[bytes] = Counter()
            for row in connection.execute(select(locks).where(locks.c.game == game)):
                held[bytes(row.party)] += row.amount
            connection.execute(delete(locks).where(locks.c.game == game))
            for party, amount in compute_credits(held, settlement.settled).items():
                _add(connection, party, held[party])
                _pay(connection, party, amount - held[party], f"game:{game.hex()}:{party.hex()}")

    def notify(self, notice: Notice) -> None:
        """Nothing to do."""


def has_deposits(connection: Connection) -> bool:
    """Does any party have anything in the database of a connection, if that has accounts at all?"""
    if not inspect(connection).has_table(accounts.name):
        return False
    held = select(accounts.c.party).where(accounts.c.free > 0), select(locks.c.party)
    return any(connection.execute(rows.limit(1)).first() for rows in held)


def _find_balance(connection: Connection, party: bytes) -> Balance:
    free = select(accounts.c.free).where(accounts.c.party == party)
    locked = select(func.coalesce(func.sum(locks.c.amount), 0)).where(locks.c.party == party)
    return Balance(
        int(connection.execute(free).scalar_one_or_none() or 0),
        int(connection.execute(locked).scalar_one()),
    )


def _pay(connection: Connection, party: bytes, amount: int, reference: str) -> None:
    """Move an account, on record."""
    if amount:
        _add(connection, party, amount)
    connection.execute(insert(entries).values(party=party, amount=amount, reference=reference))


def _add(connection: Connection, party: bytes, amount: int) -> None:
    free = _find_balance(connection, party).free + amount
    if not 0 <= free <= MOST:
        raise RequestError(f"would leave {free} of 0 to {MOST}", where="amount")
    same = accounts.c.party == party
    if connection.execute(update(accounts).where(same).values(free=free)).rowcount == 0:
        connection.execute(insert(accounts).values(party=party, free=free))
