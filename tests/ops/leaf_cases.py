"""Nodes with all that their leaf rules may read: drawn, as vectors have them, and with garbage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.ops.cases import CASES, Array, Case, Draw
from vtrain.errors import RangeError
from vtrain.ops import TABLE
from vtrain.ops.base import State
from vtrain.ops.leaf import ArrayReader, Reader, RecordingReader, plan_fold, run_block
from vtrain.spec.commitment import compute_tensor_digest
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.wire import structs
from vtrain.wire.graph import Node, Ref, TensorType, decode_node
from vtrain.wire.task import Windows

Json = Any
FOLDER = Path(__file__).parent.parent / "vectors"


@dataclass(frozen=True)
class Leaf:
    """A node with all that its rule may read, and what its law gives."""

    node: Node
    types: tuple[TensorType, ...]
    arrays: tuple[Array, ...]
    rows: Array | None
    out: Array
    windows: Windows | None = None

    def digests(self) -> list[bytes]:
        return [compute_tensor_digest(array) for array in self.arrays]

    def reader(self) -> ArrayReader:
        return ArrayReader(self.arrays, self.digests(), self.rows, self.windows)

    def data(self) -> tuple[Array | None, tuple[int, int, int, int, int] | None]:
        """The samples as the Rust core takes them."""
        if self.windows is None or self.rows is None:
            return self.rows, None
        form = self.windows
        sizes = form.width, form.tokens, form.context, form.stride, form.shift
        return self.rows.reshape(1, -1), sizes


def make_node(op: str, case: Case) -> Node:
    """Legal by the ranges of the case; RangeError where those are too wide."""
    claim = TABLE[op].infer(case.attrs, case.types)
    return Node(op, op, case.attrs, tuple(Ref(i) for i in range(len(case.types))), (claim,))


def make_leaf(op: str, case: Case) -> Leaf:
    node = make_node(op, case)
    out = TABLE[op].law(case.attrs, case.arrays)
    if op == "state":
        return Leaf(node, node.outputs, case.arrays, None, out)
    if op == "gather_samples":
        return Leaf(node, case.types, case.arrays[:1], make_rows(case), out)
    return Leaf(node, case.types, case.arrays, None, out)


def make_rows(case: Case) -> Array:
    """Whole rows with the part of the case, which is x or y, and five bytes of the other part."""
    samples = case.arrays[1]
    part = np.frombuffer(samples.tobytes(), np.uint8).reshape(len(samples), -1)
    other = np.full((len(samples), 5), 0xA5, np.uint8)
    return np.hstack([part, other] if case.attrs["part"] == "x" else [other, part])


def run_fold(item: Leaf, element: int, inner: Reader) -> Iterator[tuple[State, RecordingReader]]:
    """After each block the state, and what was read for it."""
    fold = plan_fold(item.node, item.types)
    state = fold.init
    for block in range(fold.blocks):
        reader = RecordingReader(inner, item.types)
        state = run_block(item.node, item.types, element, block, state, reader)
        yield state, reader


def draw_leaf(op: str, data: st.DataObject) -> Leaf:
    case = CASES[op](Draw(data))
    try:
        return make_leaf(op, case)
    except RangeError:
        assume(False)
        raise


def draw_garbage(item: Leaf, data: st.DataObject) -> Leaf:
    """The same node with inputs of any value that their dtypes store."""
    d = Draw(data)
    full = [replace(t, lo=STORAGE[t.dtype][0], hi=STORAGE[t.dtype][1]) for t in item.types]
    return replace(item, arrays=tuple(d.values(t) for t in full))


@cache
def read_vectors() -> Json:
    return json.loads((FOLDER / "leaf.json").read_text())


def spread(position: int, claim: TensorType) -> Array:
    """Values by the formula of the vectors."""
    i = np.arange(claim.size, dtype=np.uint64)
    scattered = (i * np.uint64(2654435761) + np.uint64(40503 * position)) % np.uint64(2**32)
    steps = scattered * np.uint64(claim.hi - claim.lo + 1) >> np.uint64(32)
    values = steps.astype(np.int64) + claim.lo
    return values.astype(NUMPY_DTYPES[claim.dtype]).reshape(claim.shape)


def read_node(content: Json) -> tuple[Node, tuple[TensorType, ...]]:
    node = decode_node(bytes.fromhex(content["node"]), len(content["sources"]))
    sources = [decode_node(bytes.fromhex(source), 0) for source in content["sources"]]
    return node, tuple(source.outputs[0] for source in sources)


def read_long_fold(name: str) -> Leaf:
    content = next(item for item in read_vectors()["folds"] if item["name"] == name)
    node, types = read_node(content)
    arrays = tuple(spread(i, claim) for i, claim in enumerate(types))
    return make_leaf(node.op, Case(dict(node.attrs), types, arrays))


def read_operator_fold(content: Json) -> Leaf:
    cases = json.loads((FOLDER / "ops" / f"{content['op']}.json").read_text())["cases"]
    case = next(item for item in cases if item["name"] == content["case"])
    node, types = read_node(content)
    contents = [*case["inputs"], *([case["bound"]] if "bound" in case else [])]
    item = make_leaf(node.op, Case(dict(node.attrs), types, tuple(map(read_array, contents))))
    np.testing.assert_array_equal(item.out, read_array(case["output"]), strict=True)
    if "rows" not in content:
        return item
    rows = np.array([list(bytes.fromhex(row)) for row in content["rows"]], np.uint8)
    return replace(item, rows=rows)


def read_gather(content: Json) -> Leaf:
    node, types = read_node(content)
    index = np.array([int(i) for i in content["index"]], np.int64)
    rows = np.array([list(bytes.fromhex(row)) for row in content["rows"]], np.uint8)
    return Leaf(node, types, (index,), rows, np.array(content["values"]))


def read_windowed(content: Json) -> Leaf:
    node, types = read_node(content)
    index = np.array([int(i) for i in content["index"]], np.int64)
    tokens = np.frombuffer(bytes.fromhex(content["tokens"]), np.uint8)
    windows = structs.from_value(Windows, content["windows"], "windows")
    return Leaf(node, types, (index,), tokens, np.array(content["values"]), windows)


def read_array(content: Json) -> Array:
    values = [int(value) for value in content["values"]]
    return np.array(values, NUMPY_DTYPES[content["dtype"]]).reshape(content["shape"])
