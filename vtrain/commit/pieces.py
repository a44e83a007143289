"""How what is large is cut into pieces, each held in a store under a name that says what it is.

A tensor digest is the root of BLAKE3's own tree, and the root of a sample table that of an RFC 9162
tree over its rows; both split at the largest power of two below their number of units.  So the
subtree over an aligned power of two of units is a *piece* that can be held against the root without
any other: its name is its hash in that tree, of a whole that is one piece the root itself.

    chunks/HEX    the bytes of the piece with this hash, of at most ``PIECE_BYTES`` (or one row)
    lists/HEX     the hashes, 32 bytes each, of the parts of what has this hash: of a whole its
                  pieces; of a piece of samples, or of a tensor of a trace that is more than one
                  piece, its grains, of at most ``GRAIN_BYTES`` (or one row)

How long each is follows from the form of the whole, which whoever reads it has from elsewhere.
Every piece is compared as it comes, and nothing of it is used before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import numpy as np

from vtrain import _core
from vtrain.commit.openings import compute_root_fixed
from vtrain.commit.store import Sink, Source
from vtrain.errors import NotProducedError
from vtrain.spec.blake3_tree import compute_chunk_count
from vtrain.spec.domains import SAMPLES
from vtrain.spec.merkle import compute_root_of_hashes
from vtrain.wire.opening import CHUNK_LENGTH

PIECE_BYTES: Final = 1 << 20
GRAIN_BYTES: Final = 1 << 13
HASH: Final = 32
AHEAD: Final = 8
"""Pieces that are asked for at once, and held until it is their turn."""

T = TypeVar("T")
U = TypeVar("U")


def name_chunk(value: bytes) -> str:
    """The name of the bytes of the piece with this hash."""
    return f"chunks/{value.hex()}"


def name_list(value: bytes) -> str:
    """The name of the hashes of the parts of what has this hash."""
    return f"lists/{value.hex()}"


@dataclass(frozen=True)
class Part:
    """The units ``first`` to before ``end`` of a whole: its bytes ``start`` to before ``stop``."""

    first: int
    end: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class Form(ABC):
    """A whole of ``length`` bytes in units of ``unit`` bytes, the last of which may be shorter,
    under the root of a tree over them."""

    length: int
    unit: int

    @property
    def units(self) -> int:
        """How many there are; nothing at all is one."""
        return max(1, -(-self.length // self.unit))

    @abstractmethod
    def compute_hash(self, data: bytes, first: int, *, whole: bool) -> bytes:
        """The hash of the part that is ``data`` and begins with unit ``first``; ``whole``: it is
        all there is."""

    @abstractmethod
    def join(self, hashes: Sequence[bytes], *, whole: bool) -> bytes:
        """The hash over parts that lie side by side, of which each but the last has the same power
        of two of units."""

    def cut(self, size: int) -> int:
        """Units of a part of at most ``size`` bytes: a power of two, at least one."""
        return 1 << max(0, (size // self.unit).bit_length() - 1)

    def list_parts(self, within: Part, units: int) -> list[Part]:
        """The parts of so many units that ``within`` falls into."""
        return [
            self.part(first, min(first + units, within.end))
            for first in range(within.first, within.end, units)
        ]

    def part(self, first: int, end: int) -> Part:
        """The part of these units."""
        return Part(first, end, first * self.unit, min(end * self.unit, self.length))

    @cached_property
    def pieces(self) -> list[Part]:
        """What a store holds, in order."""
        return self.list_parts(self.part(0, self.units), self.cut(PIECE_BYTES))

    def list_grains(self, piece: Part) -> list[Part]:
        """What of a piece can be read without the rest of it."""
        return self.list_parts(piece, self.cut(GRAIN_BYTES))

    @property
    def is_one(self) -> bool:
        """Whether it is one piece."""
        return self.units <= self.cut(PIECE_BYTES)


class TensorForm(Form):
    """The bytes that a tensor digest is of."""

    def __init__(self, length: int) -> None:
        super().__init__(length, CHUNK_LENGTH)

    @property
    def units(self) -> int:
        return compute_chunk_count(self.length)

    def compute_hash(self, data: bytes, first: int, *, whole: bool) -> bytes:
        return _core.chunk_part_value(data, first, whole)

    def join(self, hashes: Sequence[bytes], *, whole: bool) -> bytes:
        return _core.join_chunk_values(list(hashes), whole)


class RowsForm(Form):
    """A sample table of ``rows`` rows of ``row`` bytes, at least one of each."""

    def __init__(self, rows: int, row: int) -> None:
        super().__init__(rows * row, row)

    def compute_hash(self, data: bytes, first: int, *, whole: bool) -> bytes:
        del first, whole  # a subtree of RFC 9162 has one hash, wherever it stands
        return compute_root_fixed(SAMPLES, np.frombuffer(data, np.uint8).reshape(-1, self.unit), 1)

    def join(self, hashes: Sequence[bytes], *, whole: bool) -> bytes:
        del whole
        return compute_root_of_hashes(SAMPLES, hashes)


# --- whoever publishes


def write_whole(
    sink: Sink, form: Form, read: Callable[[Part], bytes], *, grains: bool = False
) -> bytes:
    """Write a whole, piece by piece as ``read`` gives them, and return its root; ``grains``: parts
    of its pieces are to be read too.  Errors of ``sink`` and ``read``."""
    hashes: list[bytes] = []
    for piece in form.pieces:
        data = read(piece)
        value = form.compute_hash(data, piece.first, whole=form.is_one)
        sink.put(name_chunk(value), data)
        parts = form.list_grains(piece) if grains else []
        if len(parts) > 1:
            small = [
                form.compute_hash(
                    data[part.start - piece.start : part.stop - piece.start],
                    part.first,
                    whole=False,
                )
                for part in parts
            ]
            sink.put(name_list(value), b"".join(small))
        hashes.append(value)
    if form.is_one:
        return hashes[0]
    root = form.join(hashes, whole=True)
    sink.put(name_list(root), b"".join(hashes))
    return root


# --- whoever reads


def read_piece_hashes(source: Source, root: bytes, form: Form) -> list[bytes]:
    """The hashes of the pieces of the whole under ``root``, which were compared with it;
    NotProducedError."""
    if form.is_one:
        return [root]
    return _read_list(source, root, form, len(form.pieces), whole=True)


def read_piece(source: Source, value: bytes, form: Form, piece: Part) -> bytes:
    """The bytes of a piece, compared with its hash; NotProducedError."""
    data = source.read(name_chunk(value), piece.size, exact=True)
    _compare(
        source, name_chunk(value), form.compute_hash(data, piece.first, whole=form.is_one), value
    )
    return data


def read_whole(
    source: Source, root: bytes, form: Form, told: Callable[[int], None] = lambda size: None
) -> Iterator[bytes]:
    """All pieces in order, each compared; NotProducedError.  ``told`` hears of their bytes."""
    return read_wholes(source, [(root, form)], told)


def read_wholes(
    source: Source,
    wholes: Sequence[tuple[bytes, Form]],
    told: Callable[[int], None] = lambda size: None,
) -> Iterator[bytes]:
    """:func:`read_whole` of several, one after the other."""
    lists = prefetch(lambda whole: read_piece_hashes(source, *whole), wholes)
    jobs = (
        (value, form, piece)
        for hashes, (_, form) in zip(lists, wholes, strict=True)
        for value, piece in zip(hashes, form.pieces, strict=True)
    )
    for data in prefetch(lambda job: read_piece(source, *job), jobs):
        told(len(data))
        yield data


def read_units(
    source: Source,
    root: bytes,
    form: Form,
    wanted: Sequence[tuple[int, int]],
    told: Callable[[int], None] = lambda size: None,
) -> Iterator[tuple[int, bytes]]:
    """(first byte, bytes) of parts that have the units wanted, given as rising (first, end) that do
    not overlap, each compared; NotProducedError.

    Of a piece of which less than half is wanted the grains alone are read, where the store gives
    parts of what it holds, and has their hashes; else the piece alone decides.
    """
    hashes = read_piece_hashes(source, root, form)
    per_piece = form.cut(PIECE_BYTES)
    spans: dict[int, list[tuple[int, int]]] = {}
    for first, end in wanted:
        for index in range(first // per_piece, -(-end // per_piece)):
            piece = form.pieces[index]
            spans.setdefault(index, []).append((max(first, piece.first), min(end, piece.end)))

    def read(job: tuple[int, list[tuple[int, int]]]) -> list[tuple[int, bytes]]:
        index, inside = job
        piece, value = form.pieces[index], hashes[index]
        runs = _find_runs(form, piece, inside)
        if (
            source.ranges
            and runs
            and 2 * sum(run[-1].stop - run[0].start for run in runs) < piece.size
        ):
            found = _read_runs(source, value, form, piece, runs)
            if found is not None:
                return found
        return [(piece.start, read_piece(source, value, form, piece))]

    for found in prefetch(read, spans.items()):
        for start, data in found:
            told(len(data))
            yield start, data


def _find_runs(form: Form, piece: Part, spans: Sequence[tuple[int, int]]) -> list[list[Part]]:
    """The grains that have the units of ``spans``, those that lie side by side together; none where
    the piece is one grain."""
    grains, per_grain = form.list_grains(piece), form.cut(GRAIN_BYTES)
    if len(grains) == 1:
        return []
    touched = sorted(
        {
            index
            for first, end in spans
            for index in range(
                (first - piece.first) // per_grain, -(-(end - piece.first) // per_grain)
            )
        }
    )
    runs: list[list[Part]] = []
    for index in touched:
        grain = grains[index]
        if runs and runs[-1][-1].end == grain.first:
            runs[-1].append(grain)
        else:
            runs.append([grain])
    return runs


def _read_runs(
    source: Source, value: bytes, form: Form, piece: Part, runs: list[list[Part]]
) -> list[tuple[int, bytes]] | None:
    """Parts of a piece; None where the store has no hashes of its grains, as of tensors that were
    published before there were such, or gives others: a list says nothing of the piece."""
    grains = form.list_grains(piece)
    try:
        hashes = _read_list(source, value, form, len(grains), whole=form.is_one)
    except NotProducedError:
        return None
    found = []
    for run in runs:
        start, size = run[0].start - piece.start, run[-1].stop - run[0].start
        data = source.read(name_chunk(value), piece.size, exact=True, span=(start, size))
        for grain in run:
            at = grain.start - run[0].start
            own = form.compute_hash(data[at : at + grain.size], grain.first, whole=False)
            due = hashes[(grain.first - piece.first) // form.cut(GRAIN_BYTES)]
            _compare(source, name_chunk(value), own, due)
        found.append((run[0].start, data))
    return found


def _read_list(source: Source, value: bytes, form: Form, count: int, *, whole: bool) -> list[bytes]:
    """The hashes of the parts of what has this hash, which they fold into; NotProducedError."""
    data = source.read(name_list(value), HASH * count, exact=True)
    hashes = [data[at : at + HASH] for at in range(0, len(data), HASH)]
    _compare(source, name_list(value), form.join(hashes, whole=whole), value)
    return hashes


def _compare(source: Source, name: str, found: bytes, due: bytes) -> None:
    if found != due:
        raise NotProducedError(
            "the store serves other bytes than those that the name is of: whoever published the "
            "run owes them",
            where=source.locate(name),
        )


def prefetch(work: Callable[[T], U], items: Iterable[T], ahead: int = AHEAD) -> Iterator[U]:
    """``work`` of each item, in order, of at most ``ahead`` at once."""
    pending: deque[Future[U]] = deque()
    pool = ThreadPoolExecutor(ahead)
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) == ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
