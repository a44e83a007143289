"""What the parties of a dispute send and sign, and how a game begins.

``vtrain.dispute.game`` says what the moves mean.  All of it is encoded by ``vtrain.wire.structs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from vtrain.errors import EncodingError
from vtrain.wire import cbor, structs
from vtrain.wire.opening import CHUNK_LENGTH, MAX_PATH
from vtrain.wire.record import MAX_STEPS
from vtrain.wire.structs import AtMost, Between, Count, Digest, LeftOut, Length
from vtrain.wire.task import MAX_SAMPLES, Windows

MAX_ARITY: Final = 256
MAX_GROUP: Final = 1 << 12
MAX_MOVE: Final = 4 << 20
"""Bytes of a move; one of a game with arity 16 has less than 100 KB."""
MAX_BOND: Final = 1 << 13
"""Bytes of a bond: the last leaf of its tree, with a path."""
MAX_NODE: Final = 1 << 18
MAX_ROW: Final = 1 << 20
MAX_CHUNKS: Final = 4096

Path = Annotated[tuple[Digest, ...], AtMost(MAX_PATH)]
"""Sibling hashes from a leaf upwards (RFC 9162), or chaining values (BLAKE3)."""

MAX_BONDS: Final = 1 << 22
"""Bonds of a game: with :data:`Amount` the sum of all of them is a number that can be written."""

Amount = Annotated[int, Between(0, 2**40)]
Milliseconds = Annotated[int, Between(0, 2**36)]
Clock = Annotated[int, Between(1, 2**36)]


@dataclass(frozen=True)
class Clocks:
    """Time limits of a game, in milliseconds of its injected clock.

    ``join``: for claims of the log, from the opening on; ``trace`` and ``terms``: for sub-claims,
    from when one is needed; ``budget``: of each claim and sub-claim, which runs only while
    something that is asked of it is overdue.  What is asked is due ``grace`` after it is asked, and
    later by ``answer`` (an opening: by ``opening``) for each live claim and sub-claim of the group;
    ``replay`` is what declared hardware takes to trace one commitment interval, by which the window
    for a trace and the first answer about a tensor grow with every rival.
    """

    join: Clock
    trace: Clock
    terms: Clock
    budget: Clock
    grace: Clock
    answer: Milliseconds
    opening: Milliseconds
    replay: Milliseconds


@dataclass(frozen=True)
class Bonds:
    """What a claim of each level is bonded with, in a unit of the market's: a fine one such as wei
    is too fine."""

    log: Amount
    trace: Amount
    terms: Amount


@dataclass(frozen=True)
class Genesis:
    """All that a game depends on; its hash is the game id.

    ``host`` is the key that receipts, times and the verdict are signed with: a bond for a game at
    one host is none at another. ``run_id`` .. ``signature`` are the solver's signed claim, which
    the game is about (and ``kzg_root``, which it has where the task asks for KZG commitments, and
    which no game touches); ``windows`` is there where the task's samples are windows of tokens, of
    whose bytes ``samples_root`` is then the plain BLAKE3; ``nodes``, ``record_node`` and
    ``leaf_bytes`` (of the longest opening) follow from the graph under ``graph_root``
    (``vtrain.dispute.genesis`` derives them and whoever joins a game compares); ``arity`` is the k
    of its k-ary bisections; at most ``group`` claims of the log play at once; ``opened`` is when it
    began; ``nonce`` tells apart games about one claim.
    """

    host: Digest
    run_id: Digest
    solver: Digest
    task_id: Digest
    log_size: Annotated[int, Between(1, 2**48)]
    log_root: Digest
    signature: Annotated[bytes, Length(64)]
    graph_root: Digest
    nodes: Annotated[int, Between(1, 2**24)]
    record_node: Count
    leaf_bytes: Annotated[int, Between(1, MAX_MOVE)]
    initial_state_root: Digest
    samples_root: Digest
    samples: Annotated[int, Between(1, MAX_SAMPLES)]
    commit_every: Annotated[int, Between(1, MAX_STEPS)]
    arity: Annotated[int, Between(2, MAX_ARITY)]
    group: Annotated[int, Between(2, MAX_GROUP)]
    clocks: Clocks
    bonds: Bonds
    opened: Annotated[int, Between(0, 2**53)]
    nonce: Digest
    kzg_root: Annotated[bytes, Length(32), LeftOut(b"")] = b""
    windows: Annotated[Windows | None, LeftOut(None)] = None


@dataclass(frozen=True)
class Bond:
    """Stand behind the claim ``root`` on a side; a new claim must come before its window closes.

    A sub-claim shows that it is bound to what the side claims: ``leaf`` is the last leaf's data (of
    a trace: the digest of the record's node in the last step; of terms: the last fold state) and
    ``path`` its inclusion.  A claim of the log has neither.
    """

    root: Digest
    leaf: Annotated[bytes, AtMost(1024)]
    path: Path


@dataclass(frozen=True)
class Reveal:
    """What a claim has under the range that is asked for: the frontier's items, left to right.

    An item is the hash of its range; of a single leaf, the leaf's data (a chunk alone is asked for
    by itself).
    """

    items: Annotated[tuple[Annotated[bytes, AtMost(CHUNK_LENGTH)], ...], AtMost(MAX_ARITY)]


@dataclass(frozen=True)
class NodeOpening:
    """A node of the step graph (``data``: its canonical encoding) with its place in graph_root."""

    index: Count
    data: Annotated[bytes, AtMost(MAX_NODE)]
    path: Path


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
    """Opens what the referee needs to recompute the block at which a dispute has arrived.

    ``log`` and ``trace`` are roots of claims that meet in the dispute, in which what is agreed is
    opened; ``inputs`` the node's inputs; ``state_leaf``: for a ``state`` node in the first step of
    the trace, its leaf in the state before; ``base``: the record that has that state's root, when
    it is not the initial state; ``terms`` and ``before``: the root of a fold in the dispute and the
    fold state before the block, where that is not the first; ``tokens``: the chunks of the tokens
    that are read, where samples are windows of them and ``rows`` has none.
    """

    log: Digest
    trace: Digest
    inputs: Annotated[tuple[InputOpening, ...], AtMost(65536)]
    rows: Annotated[tuple[Row, ...], AtMost(MAX_CHUNKS)]
    state_leaf: Member | None
    base: Member | None
    terms: Digest | None
    before: Member | None
    tokens: Annotated[tuple[Chunk, ...], AtMost(MAX_CHUNKS), LeftOut(())] = ()


@dataclass(frozen=True)
class SignedMove:
    """A move in a game, by the holder of the Ed25519 key ``party``.

    ``about`` is what it answers: a side (a :class:`Bond`; of the log, the game's id), what is asked
    of a claim (a :class:`Reveal`), or a dispute that has arrived at its block (an :class:`Open`):
    hashes of what is disputed there, so that no move of others makes this one stale.  The signature
    is over H_move(game, party, about, move).
    """

    game: Digest
    party: Digest
    about: Digest
    move: Annotated[bytes, AtMost(MAX_MOVE)]
    signature: Annotated[bytes, Length(64)]


Move = Bond | Reveal | Open

_KINDS: Final[dict[str, type[Bond] | type[Reveal] | type[Open]]] = {
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
