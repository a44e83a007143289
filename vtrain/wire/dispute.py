"""What the parties of a dispute send and sign, and how a game begins.

``vtrain.dispute.game`` says what the moves mean.  All of it is encoded by ``vtrain.wire.structs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from vtrain.errors import EncodingError
from vtrain.wire import cbor, structs
from vtrain.wire.opening import CHUNK_LENGTH, MAX_PATH
from vtrain.wire.structs import AtMost, Between, Count, Digest, LeftOut, Length

MAX_ARITY: Final = 256
MAX_MOVE: Final = 4 << 20
"""Bytes of a move; one of a match with arity 16 has less than 100 KB."""
MAX_ACCUSED: Final = 1 << 16
"""Bytes of each of two contradicting moves: what makes them contradict has less than 10 KB."""
MAX_NODE: Final = 1 << 18
MAX_ROW: Final = 1 << 20
MAX_CHUNKS: Final = 4096

Path = Annotated[tuple[Digest, ...], AtMost(MAX_PATH)]
"""Sibling hashes from a leaf upwards (RFC 9162), or chaining values (BLAKE3)."""


@dataclass(frozen=True)
class Clocks:
    """Time limits of a game, in milliseconds of its injected clock.

    ``join``: for the first claims, from the opening on; ``trace`` and ``terms``: for the sub-claims
    of a nested tournament; ``match``: each side's budget for all its moves in a match; ``grace``:
    what a side has at least when a new move is asked of it.
    """

    join: Annotated[int, Between(1, 2**48)]
    trace: Annotated[int, Between(1, 2**48)]
    terms: Annotated[int, Between(1, 2**48)]
    match: Annotated[int, Between(1, 2**48)]
    grace: Annotated[int, Between(0, 2**48)]


@dataclass(frozen=True)
class Genesis:
    """All that a game depends on; its hash is the game id.

    ``run_id`` .. ``signature`` are the solver's signed claim, which the game is about (and
    ``kzg_root``, which it has where the task asks for KZG commitments, and which no game touches);
    ``nodes``
    and ``record_node`` follow from the graph under ``graph_root`` (``vtrain.dispute.genesis``
    derives them and whoever joins a game compares); ``arity`` is the k of its k-ary bisections;
    ``opened`` is when it began; ``nonce`` tells apart games about one claim.
    """

    run_id: Digest
    solver: Digest
    task_id: Digest
    log_size: Annotated[int, Between(1, 2**48)]
    log_root: Digest
    signature: Annotated[bytes, Length(64)]
    graph_root: Digest
    nodes: Annotated[int, Between(1, 2**24)]
    record_node: Count
    initial_state_root: Digest
    samples_root: Digest
    samples: Annotated[int, Between(1, 2**40)]
    commit_every: Annotated[int, Between(1, 2**40)]
    arity: Annotated[int, Between(2, MAX_ARITY)]
    clocks: Clocks
    opened: Count
    nonce: Digest
    kzg_root: Annotated[bytes, Length(32), LeftOut(b"")] = b""


@dataclass(frozen=True)
class Bond:
    """Stand behind the claim ``root`` of a tournament; a new claim must come before it closes.

    A sub-claim names the ``side`` of the parent match that it supports (0 or 1) and shows that it
    is bound to it: ``leaf`` is the last leaf's data (of a trace: the digest of the record's node
    in the last step; of terms: the last fold state) and ``path`` its inclusion.
    """

    tournament: Count
    root: Digest
    side: Annotated[int, Between(0, 1)]
    leaf: Annotated[bytes, AtMost(1024)]
    path: Path


@dataclass(frozen=True)
class NodeOpening:
    """A node of the step graph (``data``: its canonical encoding) with its place in graph_root."""

    index: Count
    data: Annotated[bytes, AtMost(MAX_NODE)]
    path: Path


@dataclass(frozen=True)
class Site:
    """The disputed node and, for each of its inputs, the node that puts it out."""

    node: NodeOpening
    sources: Annotated[tuple[NodeOpening, ...], AtMost(65536)]


@dataclass(frozen=True)
class Reveal:
    """What a claim has under the disputed range of its tree: the frontier's items, left to right.

    An item is the hash of its range; of a single leaf, the leaf's data (a chunk alone is revealed
    in a round of its own).  ``site`` comes with each side's first reveal of a tensor's chunks.
    """

    match: Count
    items: Annotated[tuple[Annotated[bytes, AtMost(CHUNK_LENGTH)], ...], AtMost(MAX_ARITY)]
    site: Site | None


@dataclass(frozen=True)
class Chunk:
    """A chunk of a tensor with its path in BLAKE3's tree."""

    index: Count
    chunk: Annotated[bytes, AtMost(CHUNK_LENGTH)]
    path: Path


@dataclass(frozen=True)
class InputOpening:
    """An input of the disputed node: its digest, where the trace has it, and the chunks needed."""

    digest: Digest
    path: Path
    chunks: Annotated[tuple[Chunk, ...], AtMost(MAX_CHUNKS)]


@dataclass(frozen=True)
class Row:
    """A committed sample (x bytes || y bytes) with its place under the data root."""

    index: Count
    row: Annotated[bytes, AtMost(MAX_ROW)]
    path: Path


@dataclass(frozen=True)
class Member:
    """Leaf ``index`` of a tree of ``size`` leaves, with its data."""

    data: Annotated[bytes, AtMost(65536)]
    index: Count
    size: Count
    path: Path


@dataclass(frozen=True)
class Open:
    """Opens what the referee needs to recompute the disputed block of a match.

    ``source``: for a ``state`` node beyond the first step of the trace, the ``next_state`` node it
    comes from.  ``state_leaf``: for one in the first step, its leaf in the state before; ``base``:
    the record that has that state's root, when it is not the initial state.  ``before``: the fold
    state before the block, where that is not the first.
    """

    match: Count
    inputs: Annotated[tuple[InputOpening, ...], AtMost(65536)]
    rows: Annotated[tuple[Row, ...], AtMost(MAX_CHUNKS)]
    source: NodeOpening | None
    state_leaf: Member | None
    base: Member | None
    before: Member | None


@dataclass(frozen=True)
class SignedMove:
    """A move at a position of a game, by the holder of the Ed25519 key ``party``.

    ``position`` names what is being answered (``vtrain.dispute.game``): it changes with no move of
    anyone else's elsewhere in the game, so that nobody can make an honest move stale.  The
    signature is over H_move(game, party, position, move).
    """

    game: Digest
    party: Digest
    position: Digest
    move: Annotated[bytes, AtMost(MAX_MOVE)]
    signature: Annotated[bytes, Length(64)]


@dataclass(frozen=True)
class Accuse:
    """Two moves of one party at one position that say different things; anyone may send it."""

    first: SignedMove
    second: SignedMove


Move = Bond | Reveal | Open | Accuse

_KINDS: Final[dict[str, type[Bond] | type[Reveal] | type[Open] | type[Accuse]]] = {
    "accuse": Accuse,
    "bond": Bond,
    "open": Open,
    "reveal": Reveal,
}
_NAMES: Final = {cls: name for name, cls in _KINDS.items()}


def encode_move(move: Move) -> bytes:
    """Canonical encoding of a move: its kind and its fields."""
    return cbor.encode({"kind": _NAMES[type(move)], "move": structs.to_value(move)})


def decode_move(data: bytes) -> Move:
    """Inverse of :func:`encode_move`; EncodingError names the byte or the field at fault."""
    if len(data) > MAX_MOVE:
        raise EncodingError(f"longer than {MAX_MOVE} bytes", where="move")
    value = cbor.decode(data)
    if not isinstance(value, dict) or value.keys() != {"kind", "move"}:
        raise EncodingError("a move is a map of kind and move", where="move")
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise EncodingError(f"unknown kind; known are {sorted(_KINDS)}", where="move.kind")
    return structs.from_value(_KINDS[kind], value["move"], kind)
