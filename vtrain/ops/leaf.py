"""Leaf rules at work: one output element recomputed block by block, from few chunks of its inputs.

A referee replays one block of one element's fold from opened chunks; a player runs whole folds over
whole arrays.  What a block depends on is what it reads (``RecordingReader``), so that no separate
declaration of it can be wrong.  Exact and slow; ``vtrain._core`` has the fast twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtrain.errors import DataError, EncodingError, GraphError
from vtrain.ops import TABLE
from vtrain.ops.base import Array, LeafRule, Reader, Site, State, Stream
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.wire.graph import Node, TensorType
from vtrain.wire.opening import CHUNK_LENGTH
from vtrain.wire.task import Windows

__all__ = [
    "MAX_CHUNKS", "ArrayReader", "Fold", "Reader", "RecordingReader", "decode_state",
    "encode_element", "encode_state", "finish", "plan_fold", "run_block",
]  # fmt: skip

MAX_CHUNKS = 32
"""Chunks that the terms of one block may touch."""
_ENTRY = 8
"""Bytes of one entry of a state."""


@dataclass(frozen=True)
class Fold:
    """The form of a node's fold, the same for all its elements.

    ``terms`` are cut into blocks of ``block_length`` (the last may be shorter); a state has
    ``width`` entries, at first ``init``.
    """

    terms: int
    block_length: int
    width: int
    init: State

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.terms // self.block_length)


def plan_fold(node: Node, types: Sequence[TensorType]) -> Fold:
    """The fold of ``node``, whose inputs are of ``types``; of a ``state``, its own output type.

    GraphError, or RangeError, for a node that is not legal with these inputs.
    """
    return _plan(_get_rule(node, types), node, types)


def _get_rule(node: Node, types: Sequence[TensorType]) -> LeafRule:
    where = f"node {node.name} ({node.op})"
    operator = TABLE.get(node.op)
    if operator is None:
        raise GraphError("unknown operator", where=where)
    inputs = () if node.op == "state" else types
    if node.outputs != (operator.infer(node.attrs, inputs),):
        raise GraphError("the output is not what its inputs give", where=where)
    if node.op == "state" and tuple(types) != node.outputs:
        raise GraphError("a state is read as it is", where=where)
    return operator.leaf


def _plan(rule: LeafRule, node: Node, types: Sequence[TensorType]) -> Fold:
    terms = rule.terms(node.attrs, types)
    block_length = _compute_block_length(rule, node, types, terms)
    return Fold(terms, block_length, len(rule.init), rule.init)


def _compute_block_length(
    rule: LeafRule, node: Node, types: Sequence[TensorType], terms: int
) -> int:
    """The most terms, at least one, that provably touch no more than ``MAX_CHUNKS`` chunks."""
    if rule.whole is not None and rule.whole(node.attrs, types) <= MAX_CHUNKS:
        return terms
    streams = rule.streams(node.attrs, types)

    def touched(count: int) -> int:
        return sum(_bound_chunks(stream, types[stream.input].dtype, count) for stream in streams)

    most, beyond = 1, terms + 1
    while beyond - most > 1:
        middle = (most + beyond) // 2
        most, beyond = (middle, beyond) if touched(middle) <= MAX_CHUNKS else (most, middle)
    return most


def _bound_chunks(stream: Stream, dtype: str, terms: int) -> int:
    """Most chunks that so many successive terms of a stream touch."""
    if stream.stride is None:
        return terms
    if stream.stride == 0:
        return 1
    span = (terms - 1) * stream.stride * NUMPY_DTYPES[dtype].itemsize
    return min(terms, span // CHUNK_LENGTH + 2)


def run_block(
    node: Node,
    types: Sequence[TensorType],
    element: int,
    block: int,
    state: State,
    reader: Reader,
) -> State:
    """The state after block ``block`` of output element ``element``, from the state before it.

    Exact: an entry may lie outside int64 (see :func:`encode_state`).  GraphError for an illegal
    node, or where there is no such element, block or state; what the reader raises passes.
    """
    rule, out = _get_rule(node, types), node.outputs[0]
    fold = _plan(rule, node, types)
    if not 0 <= element < out.size:
        raise GraphError(f"has no element {element}", where=f"node {node.name}")
    if not 0 <= block < fold.blocks:
        raise GraphError(f"has no block {block} in {fold.blocks}", where=f"node {node.name}")
    if len(state) != fold.width:
        raise GraphError(f"a state has {fold.width} entries", where=f"node {node.name}")
    site = Site(node.attrs, types, out, reader)
    start = block * fold.block_length
    for term in range(start, min(start + fold.block_length, fold.terms)):
        state = rule.step(site, element, term, state)
    return state


def finish(node: Node, types: Sequence[TensorType], state: State) -> int:
    """The value that the last state stands for; GraphError as :func:`plan_fold`."""
    return _get_rule(node, types).finish(node.attrs, state)


def encode_state(state: State) -> bytes:
    """Entries as int64, little-endian; no bytes when one does not fit: no claim is right then."""
    least, most = STORAGE["i64"]
    if not all(least <= entry <= most for entry in state):
        return b""
    return b"".join(entry.to_bytes(_ENTRY, "little", signed=True) for entry in state)


def decode_state(data: bytes, width: int) -> State:
    """Inverse of :func:`encode_state`; EncodingError unless there are ``width`` entries."""
    if len(data) != width * _ENTRY:
        raise EncodingError(
            f"{len(data)} bytes are not {width} entries of {_ENTRY}", where="fold state"
        )
    return tuple(
        int.from_bytes(data[at : at + _ENTRY], "little", signed=True)
        for at in range(0, len(data), _ENTRY)
    )


def encode_element(node: Node, value: int) -> bytes:
    """An output element as its tensor stores it; no bytes when the dtype cannot hold it."""
    dtype = node.outputs[0].dtype
    least, most = STORAGE[dtype]
    if not least <= value <= most:
        return b""
    return value.to_bytes(NUMPY_DTYPES[dtype].itemsize, "little", signed=least < 0)


class ArrayReader:
    """Reads whole arrays: one for each input (of a ``state``, the state itself).

    ``digests`` are the tensor digests of the arrays, ``rows`` the committed samples, uint8 [count,
    row length], or with ``windows`` the bytes of the tokens; all may be left out where the operator
    does not need them.
    """

    def __init__(
        self,
        arrays: Sequence[Array],
        digests: Sequence[bytes] = (),
        rows: npt.NDArray[np.uint8] | None = None,
        windows: Windows | None = None,
    ) -> None:
        self.windows = windows
        self._arrays = [array.reshape(-1) for array in arrays]
        self._digests = digests
        self._rows = rows

    def read(self, input: int, index: int) -> int:
        """DataError where there is no such input or element."""
        if not 0 <= input < len(self._arrays) or not 0 <= index < len(self._arrays[input]):
            raise DataError(f"there is no element {index}", where=f"input {input}")
        return int(self._arrays[input][index])

    def digest(self, input: int) -> bytes:
        """DataError where no digest was given."""
        if not 0 <= input < len(self._digests):
            raise DataError("its digest is not given", where=f"input {input}")
        return self._digests[input]

    def sample(self, index: int) -> bytes:
        """DataError where no samples were given."""
        if self._rows is None:
            raise DataError("are not given", where="samples")
        return self._rows[index].tobytes() if 0 <= index < len(self._rows) else b""

    def token(self, at: int) -> int:
        """DataError where no tokens were given, or there is none."""
        if self._rows is None or self.windows is None or not 0 <= at < self.windows.tokens:
            raise DataError(f"there is no token {at}", where="samples")
        width = self.windows.width
        return self.windows.read_token(self._rows[at * width : (at + 1) * width].tobytes(), 0)


class RecordingReader:
    """Passes reads on to ``inner`` and notes what they touch: chunks of inputs, rows of samples or
    chunks of tokens.

    ``types`` are those of the inputs.
    """

    def __init__(self, inner: Reader, types: Sequence[TensorType]) -> None:
        self._inner = inner
        self._per_chunk = [CHUNK_LENGTH // NUMPY_DTYPES[tensor.dtype].itemsize for tensor in types]
        self._chunks: list[set[int]] = [set() for _ in types]
        self._rows: set[int] = set()
        self._tokens: set[int] = set()

    @property
    def chunks(self) -> list[list[int]]:
        """For each input the indices of its chunks, ascending."""
        return [sorted(touched) for touched in self._chunks]

    @property
    def rows(self) -> list[int]:
        """Indices of rows that there are, ascending."""
        return sorted(self._rows)

    @property
    def tokens(self) -> list[int]:
        """Indices of chunks of the tokens, ascending."""
        return sorted(self._tokens)

    @property
    def windows(self) -> Windows | None:
        return self._inner.windows

    def read(self, input: int, index: int) -> int:
        value = self._inner.read(input, index)
        self._chunks[input].add(index // self._per_chunk[input])
        return value

    def digest(self, input: int) -> bytes:
        return self._inner.digest(input)

    def sample(self, index: int) -> bytes:
        row = self._inner.sample(index)
        if row:
            self._rows.add(index)
        return row

    def token(self, at: int) -> int:
        value, windows = self._inner.token(at), self._inner.windows
        if windows is not None:
            self._tokens.add(at * windows.width // CHUNK_LENGTH)
        return value
