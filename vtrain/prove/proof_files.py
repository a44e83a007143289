"""What is to be proven of a run, and where its proofs lie: ``RUN/proofs/``.

A file there is complete and is never replaced: what it shows is the verifier's to say.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from vtrain.commit.files import read_file, storing, write_atomic
from vtrain.errors import EncodingError
from vtrain.limits import LIMITS
from vtrain.wire import structs
from vtrain.wire.bundle import Kind
from vtrain.wire.record import MAX_STEP
from vtrain.wire.structs import Between, LeftOut

MAX_ITEM: Final = 64
"""Bytes of an encoded statement: its format's own."""


@dataclass(frozen=True)
class Item:
    """The whole of a step (``kind`` "step"), or one of the statements that its tiles make.

    ``step`` counts from 1, as in ``StepRecord``.  ``index`` is the number of the statement of the
    tiles; 0 for a whole step.
    """

    kind: Kind
    step: Annotated[int, Between(1, MAX_STEP)]
    index: Annotated[int, Between(0, 2**62), LeftOut(0)] = 0


def encode_item(statement: Item) -> bytes:
    """Canonical encoding; EncodingError for one that could not be decoded."""
    data = structs.encode(statement)
    decode_item(data)
    return data


def decode_item(data: bytes) -> Item:
    """Inverse of :func:`encode_item`; EncodingError names the byte or the field at fault."""
    if len(data) > MAX_ITEM:
        raise EncodingError(f"has {len(data)} bytes, more than {MAX_ITEM}", where="statement")
    statement = structs.decode(Item, data, "statement")
    if statement.kind == "step" and statement.index:
        raise EncodingError("a whole step has no index", where="statement.index")
    return statement


def read_proof_file(run: Path, statement: Item) -> bytes:
    """A statement's bundle; NotProducedError where there is none, or one that is too long."""
    return read_file(proof_path(run, statement), LIMITS.bundle_bytes, root=run)


def proof_path(run: Path, statement: Item) -> Path:
    """File of a statement's proof bundle in a run directory."""
    index = f"-{statement.index:012d}" if statement.kind == "tile" else ""
    return run / "proofs" / f"{statement.kind}-{statement.step:012d}{index}.cbor"


def find_missing(run: Path, statements: Iterable[Item]) -> list[Item]:
    """Those of ``statements`` of which no proof is in the run directory, in their order."""
    with storing(run / "proofs"):
        return [statement for statement in statements if not proof_path(run, statement).exists()]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an EncodingError of what is in the file ``path`` name that file."""
    try:
        yield
    except EncodingError as error:
        where = f"{path}: {error.where}" if error.where else str(path)
        raise EncodingError(error.message, where=where) from error


def write_proof_file(run: Path, statement: Item, bundle: bytes) -> bool:
    """Put a bundle into the run directory, all of it or none, unless the statement has one.

    Whether it was put there.  Processes on one machine take turns, so that of two proofs of a
    statement the first stays.  EncodingError for a bundle that is too long.
    """
    most = LIMITS.bundle_bytes
    if len(bundle) > most:
        raise EncodingError(f"has {len(bundle)} bytes, more than {most}", where="bundle")
    path = proof_path(run, statement)
    with storing(path.parent):
        path.parent.mkdir(exist_ok=True)
    with _turn(path.parent / ".lock"):
        if path.exists():
            return False
        write_atomic(path, [bundle])
    return True


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    with storing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        with storing(path):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
