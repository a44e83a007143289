"""Writes the vectors of leaf rules, ``leaf.json``: states of folds, and what their blocks read.

``python tests/vectors/generate_leaf.py`` writes it from the rules in vtrain/ops alone; ``--check``
only compares and exits 1 when it differs.  README.md documents the format.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from files import write_or_compare  # type: ignore[import-not-found]  # beside this file
from generate import FOLDER, Json, fill  # type: ignore[import-not-found]
from generate_ops import OPERATORS, Case, format_json, window  # type: ignore[import-not-found]

from vtrain.ops import TABLE
from vtrain.ops.leaf import ArrayReader, RecordingReader, encode_state, finish, plan_fold, run_block
from vtrain.spec.commitment import compute_tensor_digest
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire import structs
from vtrain.wire.graph import Attrs, Node, Ref, TensorType, encode_node
from vtrain.wire.task import Windows

Array = npt.NDArray[Any]


def spread(position: int, tensor: TensorType) -> Array:
    """Values of the input at ``position`` that need no file: see README.md."""
    i = np.arange(tensor.size, dtype=np.uint64)
    scattered = (i * np.uint64(2654435761) + np.uint64(40503 * position)) & np.uint64(2**32 - 1)
    steps = scattered * np.uint64(tensor.hi - tensor.lo + 1) >> np.uint64(32)
    values = steps.astype(np.int64) + tensor.lo
    return values.astype(NUMPY_DTYPES[tensor.dtype]).reshape(tensor.shape)


def tensor(dtype: str, *shape: int, bits: int, exponent: int = 0) -> TensorType:
    """A type of values below 2^bits in magnitude."""
    return TensorType(dtype, shape, exponent, 1 - 2**bits, 2**bits - 1)


IMAGE, POOLED = (2, 12, 11, 120), (2, 10, 9, 120)
WIDE = window((7, 7), (1, 1), (2, 2, 2, 2))
FOLDS: dict[str, tuple[str, Attrs, list[TensorType]]] = {
    "forward": (
        "matmul",
        {"transpose_a": 0, "transpose_b": 1},
        [tensor("i16", 2, 9000, bits=15), tensor("i16", 2, 9000, bits=15)],
    ),
    "gradient of an input": (
        "matmul",
        {"transpose_a": 0, "transpose_b": 0},
        [tensor("i16", 2, 600, bits=15), tensor("i16", 600, 120, bits=15)],
    ),
    "weight gradient": (
        "matmul",
        {"transpose_a": 1, "transpose_b": 0},
        [tensor("i16", 300, 40, bits=15), tensor("i16", 300, 700, bits=15)],
    ),
    "columns": ("column_sum", {}, [tensor("i16", 10, 90, 64, bits=15)]),
    "rows": ("row_sum", {}, [tensor("i32", 3, 20000, bits=20)]),
    "maxima": ("row_max", {}, [tensor("i32", 3, 20000, bits=20)]),
    "sum": ("sum", {}, [tensor("i64", 70, 200, bits=30)]),
    "squares": ("square_sum", {"shift": 2}, [tensor("i16", 40000, bits=15, exponent=9)]),
    "deviations": ("center", {"shift": 3}, [tensor("i16", 2, 40000, bits=15)]),
    "dot": ("row_dot", {}, [tensor("i16", 2, 30000, bits=15), tensor("i32", 2, 30000, bits=30)]),
    "sum pool": ("sum_pool", WIDE, [tensor("i16", *IMAGE, bits=15)]),
    "max pool": ("max_pool", WIDE, [tensor("i16", *IMAGE, bits=15)]),
    "col2im": (
        "col2im",
        {**WIDE, "shape": (1, 12, 11, 20)},
        [tensor("i32", 90, 49 * 20, bits=30)],
    ),
    "sum pool gradient": (
        "sum_pool_grad",
        {**WIDE, "shape": IMAGE},
        [tensor("i32", *POOLED, bits=30)],
    ),
    "max pool gradient": (
        "max_pool_grad",
        window((3, 3), (1, 1), (0, 0, 0, 0)),
        [tensor("i16", *POOLED, bits=15), tensor("i16", *IMAGE, bits=2)],
    ),
    "scattered rows": (
        "scatter_add",
        {"rows": 3},
        [tensor("i16", 900, 90, bits=15), tensor("i32", 900, bits=2)],
    ),
    "stacks": (
        "batched_matmul",
        {"transpose_a": 1, "transpose_b": 0},
        [tensor("i16", 2, 300, 40, bits=15), tensor("i16", 2, 300, 60, bits=15)],
    ),
    "softmax gradient": (
        "softmax_grad",
        {},
        [tensor("i16", 2, 20000, bits=14, exponent=14), tensor("i16", 2, 20000, bits=12)],
    ),
    "spans of tokens": (
        "token_spans",
        {"before": 2**31 - 1, "after": 15000, "end_of_text": 5, "padding": 7},
        [tensor("i32", 2, 20000, bits=12)],
    ),
}
"""Folds of more than one block."""


def source_of(position: int, tensor: TensorType) -> str:
    """An encoded node that puts out ``tensor``: only its output's type counts."""
    return encode_node(Node(f"input {position}", "input", {}, (), (tensor,))).hex()


def make_fold(
    node: Node, sources: Sequence[TensorType], arrays: Sequence[Array], rows: Array | None
) -> Json:
    types = node.outputs if node.op == "state" else tuple(sources)
    fold = plan_fold(node, types)
    reader = ArrayReader(arrays, [compute_tensor_digest(array) for array in arrays], rows)
    size = node.outputs[0].size
    elements = []
    for element in sorted({0, size // 2, size - 1}):
        state, states, blocks = fold.init, b"", []
        for block in range(fold.blocks):
            recorder = RecordingReader(reader, types)
            state = run_block(node, types, element, block, state, recorder)
            states += encode_state(state)
            blocks.append({"chunks": recorder.chunks, "rows": recorder.rows})
        elements.append({"element": element, "states": states.hex(), "reads": blocks})
    return {
        "node": encode_node(node).hex(),
        "sources": [source_of(i, tensor) for i, tensor in enumerate(sources)],
        "terms": fold.terms,
        "block_length": fold.block_length,
        "width": fold.width,
        "elements": elements,
    }


def make_node(name: str, op: str, attrs: Attrs, types: Sequence[TensorType]) -> Node:
    refs = tuple(Ref(i) for i in range(len(types)))
    return Node(name, op, attrs, refs, (TABLE[op].infer(attrs, types),))


def make_row_table(case: Case) -> Array:
    """The bound samples as rows: with them, as the part that they are not, five bytes of fill."""
    part = np.frombuffer(case.bound.tobytes(), np.uint8).reshape(len(case.bound), -1)
    other = np.tile(np.frombuffer(fill(5), np.uint8), (len(part), 1))
    return np.hstack([part, other] if case.attrs["part"] == "x" else [other, part])


def make_operator_fold(op: str, case: Case) -> Json:
    node = make_node(case.name, op, case.attrs, case.types)
    arrays = [case.bound] if op == "state" else case.arrays
    rows = make_row_table(case) if op == "gather_samples" else None
    content = {"op": op, "case": case.name, **make_fold(node, case.types, arrays, rows)}
    if rows is not None:
        content["rows"] = [row.tobytes().hex() for row in rows]
    return content


def make_long_fold(name: str) -> Json:
    op, attrs, types = FOLDS[name]
    arrays = [spread(i, tensor) for i, tensor in enumerate(types)]
    return {
        "name": name,
        "op": op,
        **make_fold(make_node(name, op, attrs, types), types, arrays, None),
    }


GATHERS = [
    (part, dtype, shape, length)
    for part in ("x", "y")
    for dtype, shape, lengths in (("u8", (4,), (3, 4, 9)), ("i16", (2,), (3, 4, 7)))
    for length in lengths
]
"""Rows that are shorter than the part, just as long, and longer."""
INDICES = (1, -1, 0, 2, 2**62)
"""Indices into two rows."""


def make_gather(part: str, dtype: str, shape: tuple[int, ...], length: int) -> Json:
    attrs: Attrs = {"part": part, "dtype": dtype, "shape": shape, "exponent": 0}
    index = np.array(INDICES, np.int64)
    types = [TensorType("i64", index.shape, 0, -(2**59), 2**59)]
    rows = np.frombuffer(fill(2 * length), np.uint8).reshape(2, length) ^ np.uint8(0xA5)
    node = make_node("gather", "gather_samples", attrs, types)
    reader = ArrayReader([index], [compute_tensor_digest(index)], rows)
    values = [
        finish(node, types, run_block(node, types, element, 0, plan_fold(node, types).init, reader))
        for element in range(node.outputs[0].size)
    ]
    return {
        "node": encode_node(node).hex(),
        "sources": [source_of(0, types[0])],
        "index": list(map(str, INDICES)),
        "rows": [row.tobytes().hex() for row in rows],
        "values": values,
    }


WINDOWED = [
    (part, dtype, dict(zip(("tokens", "context", "stride", "shift"), sizes, strict=True)), extent)
    for part in ("x", "y")
    for dtype, sizes, extent in (
        ("u16", (698, 4, 3, 1), 5),
        ("u32", (351, 4, 3, 2), 3),
        ("u64", (130, 4, 1, 0), 4),
    )
]
"""Parts of one element more than a window has tokens, of one fewer, and of as many; the file of 16
bits ends with the last label."""
PLACES = (0, 1, 126, 170, 231, 232, -1, 2**62)
"""Samples by their indices: such that cross from one chunk to the next, the last, and none."""


def make_windowed(part: str, dtype: str, sizes: dict[str, int], extent: int) -> Json:
    windows = Windows(dtype, **sizes)
    attrs: Attrs = {"part": part, "dtype": "i32", "shape": (extent,), "exponent": 0}
    index = np.array(PLACES, np.int64)
    types = [TensorType("i64", index.shape, 0, -(2**59), 2**59)]
    data = np.frombuffer(fill(windows.byte_length), np.uint8) ^ np.uint8(0xA5)
    node = make_node("gather", "gather_samples", attrs, types)
    reader = ArrayReader([index], [compute_tensor_digest(index)], data, windows)
    values, reads = [], []
    for element in range(node.outputs[0].size):
        recorder = RecordingReader(reader, types)
        state = run_block(node, types, element, 0, plan_fold(node, types).init, recorder)
        values.append(finish(node, types, state))
        reads.append(recorder.tokens)
    return {
        "node": encode_node(node).hex(),
        "sources": [source_of(0, types[0])],
        "index": list(map(str, PLACES)),
        "windows": structs.to_value(windows),
        "tokens": data.tobytes().hex(),
        "values": values,
        "reads": reads,
    }


def make_file() -> Json:
    return {
        "operators": [make_operator_fold(op, case) for op in OPERATORS for case in OPERATORS[op]()],
        "folds": [make_long_fold(name) for name in FOLDS],
        "gathers": [make_gather(*gather) for gather in GATHERS],
        "windows": [make_windowed(*windowed) for windowed in WINDOWED],
    }


def main() -> int:
    """Write or compare the file."""
    return int(write_or_compare(FOLDER / "leaf.json", format_json(make_file()) + "\n", __doc__))


if __name__ == "__main__":
    sys.exit(main())
