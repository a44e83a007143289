"""A step graph as standard integer ONNX operators: a third opinion, by anyone's runtime.

Everything from the batch on is lowered without loss; what has no ONNX form (sample order, hashes)
is cut away, and its place is an input or the end.  All arithmetic is int64 inside.  Where runtimes
differ or err we stay out: integer ``Div`` is only used on multiples of the divisor, and no index or
cast leaves its range.  Not used at all are ``BitShift`` (unsigned) and what onnxruntime 1.31 gets
wrong in int64: ``Min``, ``Max``, ``Clip``, ``Sign``, ``ReduceMax`` (some operands with equal upper
halves) and ``ReduceSum`` (sums in binary64).  So comparisons select, and sums are products with 1.

The lowerings stand here and not with each operator's law in ``vtrain.ops``, which needs only numpy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vtrain.errors import GraphError
from vtrain.ops.base import attr_int, attr_ints, attr_text
from vtrain.ops.facets import Facet, find_reason
from vtrain.ops.layout import Window
from vtrain.ops.optimizer import (
    BETA_EXPONENT,
    CORRECTION_EXPONENT,
    CORRECTION_MOST,
    DECAY_EXPONENT,
    FACTOR_EXPONENT,
    SQUARE_LIFT,
)
from vtrain.ops.pool import BELOW_INT16
from vtrain.ops.softmax import FINE_EXPONENT
from vtrain.ops.source import WIDE_STATE_BITS
from vtrain.spec.curves import CURVES, whole_curve
from vtrain.spec.dropout import DOMAIN, DRAW_BITS, PER_BLOCK
from vtrain.spec.number import (
    EXP2_EXPONENT,
    LOG2_EXPONENT,
    LOSS_EXPONENT,
    PROBABILITY_EXPONENT,
    SATURATION,
    exp2_table,
    log2_table,
)
from vtrain.spec.philox import MULTIPLIERS, ROUNDS, WEYL
from vtrain.wire.graph import Node, Ref, StepGraph, TensorType
from vtrain.wire.record import MAX_STEPS

OPSET = 18
IR_VERSION = 8

_ONNX_TYPES = {
    "u8": TensorProto.UINT8,
    "i8": TensorProto.INT8,
    "i16": TensorProto.INT16,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
}


def export_step_graph(graph: StepGraph, *, expose: Sequence[str] = ()) -> onnx.ModelProto:
    """Lower ``graph`` to ONNX opset 18, integers only.

    Inputs: ``state/NAME`` of each recurrent tensor, ``batch/x`` and ``batch/y`` as gathered.
    Outputs: ``next/NAME`` of each recurrent tensor, ``loss``, and ``node/NAME`` for each node named
    in ``expose``; all of the dtype and shape that the graph declares.  GraphError names a node that
    has no ONNX form and is asked for, or that what remains depends on.
    """
    lowering = _Lowering(graph)
    for index in range(len(graph.nodes)):
        lowering.lower(index)
    for name, ref in graph.next_states().items():
        lowering.put_out(f"next/{name}", ref)
    for node in graph.nodes:
        if node.op == "record":
            lowering.put_out("loss", node.inputs[2])
    indices = {node.name: index for index, node in enumerate(graph.nodes)}
    for name in expose:
        if name not in indices:
            raise GraphError("no such node", where=f"node {name}")
        lowering.put_out(f"node/{name}", Ref(indices[name]))
    return lowering.finish()


def is_lowered(op: str) -> bool:
    """Whether nodes of this operator are in the exported graph."""
    return find_reason(op, Facet.ONNX_EXPORT) is None


class _Lowering:
    """An ONNX graph under construction.  A value is the name of an int64 tensor."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[tuple[bytes, tuple[int, ...]], onnx.TensorProto] = {}
        self._values: dict[Ref, str] = {}
        self._prefix = ""
        self._count = 0

    def lower(self, index: int) -> None:
        """Add node ``index``, unless it is cut."""
        node = self._graph.nodes[index]
        self._prefix, self._count = f"{index}/{node.name}", 0
        if node.op == "state":
            self._values[Ref(index)] = self._take_in(f"state/{attr_text(node.attrs, 'name')}", node)
        elif node.op == "gather_samples":
            self._values[Ref(index)] = self._take_in(f"batch/{attr_text(node.attrs, 'part')}", node)
        elif is_lowered(node.op):
            inputs = [self._value_of(ref) for ref in node.inputs]
            types = [self._graph.type_of(ref) for ref in node.inputs]
            self._values[Ref(index)] = LOWERINGS[node.op](self, node, inputs, types)

    def _take_in(self, name: str, node: Node) -> str:
        tensor = node.outputs[0]
        self._inputs.append(
            helper.make_tensor_value_info(name, _ONNX_TYPES[tensor.dtype], tensor.shape)
        )
        return self.op("Cast", name, to=TensorProto.INT64)

    def _value_of(self, ref: Ref) -> str:
        if ref not in self._values:
            node = self._graph.nodes[ref.node]
            reason = find_reason(node.op, Facet.ONNX_EXPORT) or "it has no such output"
            raise GraphError(reason, where=f"node {node.name} ({node.op})")
        return self._values[ref]

    def put_out(self, name: str, ref: Ref) -> None:
        """Make the value ``ref`` an output of its declared dtype."""
        tensor = self._graph.type_of(ref)
        onnx_type = _ONNX_TYPES[tensor.dtype]
        value = self._value_of(ref)
        self._nodes.append(helper.make_node("Cast", [value], [name], name=name, to=onnx_type))
        self._outputs.append(helper.make_tensor_value_info(name, onnx_type, tensor.shape))

    def finish(self) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(
            self._nodes, "step", self._inputs, self._outputs, list(self._constants.values())
        )
        return helper.make_model(
            graph,
            producer_name="vtrain",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )

    # --- the few operations that all lowerings are made of

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """One ONNX node with one output."""
        self._count += 1
        name = f"{self._prefix}.{self._count}"
        self._nodes.append(helper.make_node(op_type, list(inputs), [name], name=name, **attributes))
        return name

    def const(self, value: int | Sequence[int] | npt.NDArray[np.int64]) -> str:
        """An int64 constant; equal ones are stored once."""
        array = np.array(value, dtype=np.int64)
        key = (array.tobytes(), array.shape)
        if key not in self._constants:
            name = f"constant.{len(self._constants)}"
            self._constants[key] = numpy_helper.from_array(array, name)
        return self._constants[key].name

    def add(self, a: str, b: str) -> str:
        return self.op("Add", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.op("Sub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.op("Mul", a, b)

    def times(self, x: str, factor: int) -> str:
        """x times a constant."""
        return x if factor == 1 else self.mul(x, self.const(factor))

    def floor_mod(self, x: str, divisor: str) -> str:
        """x - divisor * floor(x / divisor): ONNX's Mod has the sign of the divisor."""
        return self.op("Mod", x, divisor, fmod=0)

    def floor_div(self, x: str, divisor: str) -> str:
        """floor(x / divisor), divisor > 0: what is left is a multiple, so Div cannot round."""
        return self.op("Div", self.sub(x, self.floor_mod(x, divisor)), divisor)

    def rs(self, x: str, shift: int) -> str:
        """The rounding shift, for every int64 x (for shift <= 0: where the product fits).

        With h = floor(x / 2^(s-1)) it is floor((h + 1) / 2) = floor(h / 2) + (h mod 2), and nothing
        of that can overflow.
        """
        if shift <= 0:
            return self.times(x, 1 << -shift)
        if shift >= 64:
            return self.times(x, 0)
        half = x if shift == 1 else self.floor_div(x, self.const(1 << (shift - 1)))
        two = self.const(2)
        return self.add(self.floor_div(half, two), self.floor_mod(half, two))

    def at_least(self, x: str, lo: int) -> str:
        """max(x, lo)"""
        bound = self.const(lo)
        return self.op("Where", self.op("Less", x, bound), bound, x)

    def at_most(self, x: str, hi: int) -> str:
        """min(x, hi)"""
        bound = self.const(hi)
        return self.op("Where", self.op("Greater", x, bound), bound, x)

    def clamp(self, x: str, lo: int, hi: int) -> str:
        return self.at_most(self.at_least(x, lo), hi)

    def largest(self, x: str, axis: int) -> str:
        """Maximum over an axis, of values within int32."""
        narrow = self.op("Cast", x, to=TensorProto.INT32)
        found = self.op("ReduceMax", narrow, self.const([axis]), keepdims=0)
        return self.op("Cast", found, to=TensorProto.INT64)

    def saturate(self, x: str, dtype: str) -> str:
        return x if dtype == "i64" else self.clamp(x, *SATURATION[dtype])

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return self.op("Reshape", x, self.const(list(shape)))

    def unsqueeze(self, x: str, axis: int) -> str:
        return self.op("Unsqueeze", x, self.const([axis]))

    def split_pair(self, x: str) -> tuple[str, str]:
        """[..., 2] -> the first and the second of the last axis, [..., 1] each."""
        first, second = (
            self.op("Slice", x, *(self.const([value]) for value in (i, i + 1, -1))) for i in (0, 1)
        )
        return first, second

    def sum_last(self, x: str, count: int) -> str:
        """[..., count] -> [...], exact modulo 2^64."""
        return self.op("MatMul", x, self.const(np.ones(count, np.int64)))

    def sum_rows(self, x: str, count: int) -> str:
        """[..., count, n] -> [..., n], exact modulo 2^64."""
        return self.op("MatMul", self.const(np.ones(count, np.int64)), x)

    def count_true(self, x: str, count: int) -> str:
        """Booleans [..., count] -> how many are true [...]."""
        return self.sum_last(self.op("Cast", x, to=TensorProto.INT64), count)

    def gather(self, table: str, indices: str, axis: int = 0) -> str:
        return self.op("Gather", table, indices, axis=axis)

    def power_of_two(self, exponent: str) -> str:
        """2^exponent for exponents in [0, 62]."""
        return self.gather(self.const([1 << i for i in range(63)]), exponent)

    def one_hot(self, indices: str, depth: int) -> str:
        """Booleans [..., depth]: where the index is that of the position."""
        return self.op("Equal", self.unsqueeze(indices, -1), self.const(np.arange(depth)))

    # --- windows

    def patches(self, x: str, window: Window, image: Sequence[int], padding: int) -> str:
        """[n, h, w, c] -> [n, windows, area, c]."""
        batch, height, width, channels = image
        top, left, bottom, right = window.pads
        if any(window.pads):
            pads = self.const([0, top, left, 0, 0, bottom, right, 0])
            x = self.op("Pad", x, pads, self.const(padding))
        padded_width = width + left + right
        pixels = self.reshape(x, (batch, (height + top + bottom) * padded_width, channels))
        rows, columns = _window_pixels(window, height, width)
        return self.gather(pixels, self.const(rows * padded_width + columns), axis=1)

    def scatter_add(self, patches: str, window: Window, image: Sequence[int]) -> str:
        """[n, windows, area, c] -> [n, h, w, c]: each pixel's sum over the windows it is in.

        As a gather: each pixel has a list of the patch elements that came from it, and the lists
        are filled up with the index of an appended zero.
        """
        batch, height, width, channels = image
        top, left, _, _ = window.pads
        rows, columns = _window_pixels(window, height, width)
        sources: list[list[int]] = [[] for _ in range(height * width)]
        for element, (row, column) in enumerate(zip(rows.flat, columns.flat, strict=True)):
            y, x = int(row) - top, int(column) - left
            if 0 <= y < height and 0 <= x < width:
                sources[y * width + x].append(element)
        longest = max(map(len, sources))
        table = [source + [rows.size] * (longest - len(source)) for source in sources]
        flat = self.reshape(patches, (batch, rows.size, channels))
        padded = self.op("Pad", flat, self.const([0, 0, 0, 0, 1, 0]), self.const(0))
        chosen = self.gather(padded, self.const(np.array(table).reshape(-1, longest)), axis=1)
        return self.reshape(self.sum_rows(chosen, longest), image)


def _window_pixels(
    window: Window, height: int, width: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and column, in the padded image, of each element of each window: [windows, area]."""
    down, across = window.output_extent(height, width)
    y, x, dy, dx = np.indices((down, across, *window.kernel), dtype=np.int64)
    rows, columns = y * window.strides[0] + dy, x * window.strides[1] + dx
    return rows.reshape(-1, window.area), columns.reshape(-1, window.area)


Lower = Callable[[_Lowering, Node, Sequence[str], Sequence[TensorType]], str]
"""(graph, node, its input values, their types) -> its output value."""


def _next_state(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.op("Identity", x[0])


def _increment(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.at_most(g.add(x[0], g.const(1)), MAX_STEPS)


def _multiply_words(g: _Lowering, x: str, factor: int) -> tuple[str, str]:
    """Upper and lower 32 bits of the product of two words, the factor in halves: a product of two
    whole ones would not fit."""
    half, word = g.const(1 << 16), g.const(1 << 32)
    upper, lower = g.times(x, factor >> 16), g.times(x, factor & 0xFFFF)
    rest = g.add(g.mul(g.floor_mod(upper, half), half), lower)
    return g.add(g.floor_div(upper, half), g.floor_div(rest, word)), g.floor_mod(rest, word)


def _philox(g: _Lowering, counter: Sequence[str], key: tuple[int, int]) -> Sequence[str]:
    """The four words of a block; a counter's words may be one for all blocks."""
    words, (key_0, key_1) = list(counter), key
    for _ in range(ROUNDS):
        (high_0, low_0), (high_1, low_1) = (
            _multiply_words(g, word, factor)
            for word, factor in zip((words[0], words[2]), MULTIPLIERS, strict=True)
        )
        first = g.op("BitwiseXor", g.op("BitwiseXor", high_1, words[1]), g.const(key_0))
        third = g.op("BitwiseXor", g.op("BitwiseXor", high_0, words[3]), g.const(key_1))
        words = [first, low_1, third, low_0]
        key_0, key_1 = (key_0 + WEYL[0]) % 2**32, (key_1 + WEYL[1]) % 2**32
    return words


def _dropout_mask(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    shape, seed = node.outputs[0].shape, node.attrs["seed"]
    size = math.prod(shape)
    step, word, half = g.clamp(x[0], 0, MAX_STEPS), g.const(1 << 32), g.const(1 << DRAW_BITS)
    blocks = g.op("Range", g.const(0), g.const(-(-size // PER_BLOCK)), g.const(1))
    site = g.const(DOMAIN | attr_int(node.attrs, "site"))
    counter = (blocks, site, g.floor_mod(step, word), g.floor_div(step, word))
    low, high = (
        int.from_bytes(part, "little")
        for part in (bytes(seed)[:4], bytes(seed)[4:])  # type: ignore[arg-type]
    )
    words = _philox(g, counter, (low, high))
    halves = [part for item in words for part in (g.floor_mod(item, half), g.floor_div(item, half))]
    draws = g.op("Concat", *(g.unsqueeze(part, -1) for part in halves), axis=-1)
    flat = g.op("Slice", g.reshape(draws, (-1,)), g.const([0]), g.const([size]))
    kept = g.op("Less", flat, g.const(attr_int(node.attrs, "keep")))
    mask = g.op("Where", kept, g.const(attr_int(node.attrs, "value")), g.const(0))
    return g.reshape(mask, shape)


def _normalize(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    scaled = g.times(x[0], attr_int(node.attrs, "multiplier"))
    moved = g.add(scaled, g.const(attr_int(node.attrs, "offset")))
    return g.saturate(g.rs(moved, attr_int(node.attrs, "shift")), "i16")


def _one_hot(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    hot = g.one_hot(x[0], attr_int(node.attrs, "depth"))
    one = g.op("Where", hot, g.const(1 << PROBABILITY_EXPONENT), g.const(0))
    return g.reshape(one, node.outputs[0].shape)


def _im2col(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    patches = g.patches(x[0], Window.from_attrs(node.attrs), t[0].shape, 0)
    return g.reshape(patches, node.outputs[0].shape)


def _col2im(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.scatter_add(x[0], Window.from_attrs(node.attrs), attr_ints(node.attrs, "shape", 4))


def _reshape(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.reshape(x[0], node.outputs[0].shape)


def _transpose(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    perm = list(attr_ints(node.attrs, "perm"))
    # A scalar's permutation is the empty list, which the ONNX helper cannot write down.
    return g.op("Transpose", x[0], perm=perm) if perm else x[0]


def _slice(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    bounds = [g.const([attr_int(node.attrs, name)]) for name in ("start", "stop", "axis")]
    return g.op("Slice", x[0], *bounds)


def _pad(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    rank, axis = len(t[0].shape), attr_int(node.attrs, "axis")
    widths = np.zeros(2 * rank, np.int64)
    widths[axis], widths[rank + axis] = (attr_int(node.attrs, name) for name in ("before", "after"))
    return g.op("Pad", x[0], g.const(widths))


def _concat(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.op("Concat", *x, axis=attr_int(node.attrs, "axis"))


def _gather_rows(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.gather(x[0], g.clamp(x[1], 0, t[0].shape[0] - 1), axis=0)


def _scatter_add(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    rows, columns = node.outputs[0].shape
    ids = g.reshape(g.clamp(x[1], 0, rows - 1), (t[1].size, 1))
    zeros = g.const(np.zeros((rows, columns), np.int64))
    return g.op("ScatterND", zeros, ids, x[0], reduction="add")


def _matmul(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    a, b = (
        g.op("Transpose", value, perm=[1, 0]) if node.attrs[f"transpose_{side}"] else value
        for side, value in zip("ab", x, strict=True)
    )
    return g.op("MatMul", a, b)


def _batched_matmul(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    *stack, last, other = range(len(t[0].shape))
    turned = [*stack, other, last]
    a, b = (
        g.op("Transpose", value, perm=turned) if node.attrs[f"transpose_{side}"] else value
        for side, value in zip("ab", x, strict=True)
    )
    return g.op("MatMul", a, b)


def _add_bias(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.add(x[0], g.rs(x[1], attr_int(node.attrs, "shift")))


def _column_sum(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    width = t[0].shape[-1]
    return g.sum_rows(g.reshape(x[0], (-1, width)), t[0].size // width)


def _rescale(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    scaled = g.times(x[0], attr_int(node.attrs, "multiplier"))
    shifted = g.rs(scaled, attr_int(node.attrs, "shift"))
    return g.saturate(shifted, attr_text(node.attrs, "dtype"))


def _aligned(g: _Lowering, node: Node, x: Sequence[str]) -> tuple[str, str]:
    a, b = (
        g.times(value, 1 << attr_int(node.attrs, f"shift_{side}", 0, 62))
        for side, value in zip("ab", x, strict=True)
    )
    return a, b


def _add(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.add(*_aligned(g, node, x))


def _sub(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.sub(*_aligned(g, node, x))


def _mul(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.mul(x[0], x[1])


def _relu(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.at_least(x[0], 0)


def _relu_grad(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    zero = g.const(0)
    return g.op("Where", g.op("Greater", x[1], zero), x[0], zero)


def _look_up(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    name = attr_text(node.attrs, "table")
    last = CURVES[name].last
    j = g.clamp(g.rs(x[0], attr_int(node.attrs, "shift")), -last, last)
    return g.gather(g.const(whole_curve(name)), g.add(j, g.const(last)))


def _max_pool(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    patches = g.patches(x[0], Window.from_attrs(node.attrs), t[0].shape, BELOW_INT16)
    return g.reshape(g.largest(patches, 2), node.outputs[0].shape)


def _spread(g: _Lowering, grad: str, grad_type: TensorType) -> str:
    """[n, rows, columns, c] -> [n, windows, 1, c], to be broadcast over a window's elements."""
    batch, rows, columns, channels = grad_type.shape
    return g.reshape(grad, (batch, rows * columns, 1, channels))


def _max_pool_grad(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    window = Window.from_attrs(node.attrs)
    patches = g.patches(x[1], window, t[1].shape, BELOW_INT16)
    first = g.op("ArgMax", patches, axis=2, keepdims=1, select_last_index=0)
    position = g.const(np.arange(window.area).reshape(window.area, 1))
    won = g.op("Equal", first, position)
    routed = g.op("Where", won, _spread(g, x[0], t[0]), g.const(0))
    return g.scatter_add(routed, window, t[1].shape)


def _sum_pool(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    window = Window.from_attrs(node.attrs)
    patches = g.patches(x[0], window, t[0].shape, 0)
    return g.reshape(g.sum_rows(patches, window.area), node.outputs[0].shape)


def _sum_pool_grad(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    window = Window.from_attrs(node.attrs)
    shape = g.const([1, 1, window.area, 1])
    spread = g.op("Expand", _spread(g, x[0], t[0]), shape)
    return g.scatter_add(spread, window, attr_ints(node.attrs, "shape", 4))


def _row_max(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.largest(x[0], 1)


def _exp2_diff(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    one = 1 << LOG2_EXPONENT
    gap = g.sub(g.unsqueeze(x[1], 1), x[0])
    below = g.clamp(gap, 0, 31 * one)
    mantissa = g.gather(g.const(exp2_table()), g.floor_mod(below, g.const(one)))
    whole = g.floor_div(below, g.const(one))
    # The rounding shift by `whole` places: half a unit is 2^(whole - 1), and none at shift 0.
    unit = g.power_of_two(whole)
    half = g.floor_div(unit, g.const(2))
    power = g.floor_div(g.add(mantissa, half), unit)
    return g.op("Where", g.op("Less", gap, g.const(0)), g.const(0), power)


def _row_sum(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.sum_last(x[0], t[0].shape[1])


def _divide(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    divisor = g.unsqueeze(g.at_least(x[1], 1), 1)
    half = g.floor_div(divisor, g.const(2))
    scaled = g.times(x[0], 1 << PROBABILITY_EXPONENT)
    return g.floor_div(g.add(scaled, half), divisor)


def _causal_spans(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    end = np.arange(attr_int(node.attrs, "queries"), dtype=np.int64) + 1
    begin = np.maximum(end - attr_int(node.attrs, "window"), 0)
    return g.const(np.stack([begin, end], axis=1))


def _token_spans(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    places = t[0].shape[1]
    before, after, end_of_text, padding = (
        attr_int(node.attrs, name) for name in ("before", "after", "end_of_text", "padding")
    )
    place, all_of = np.arange(places, dtype=np.int64), g.const(places)
    is_end = g.unsqueeze(g.op("Equal", x[0], g.const(end_of_text)), 1)
    is_token = g.unsqueeze(g.op("Not", g.op("Equal", x[0], g.const(padding))), 1)

    def longest(chosen: str, among: npt.NDArray[np.bool_], values: npt.NDArray[np.int64]) -> str:
        """The largest, or 0, of the values of the places that are chosen, for each place."""
        allowed = g.op(
            "And", g.op("Cast", g.const(among.astype(np.int64)), to=TensorProto.BOOL), chosen
        )
        return g.largest(g.op("Where", allowed, g.const(values), g.const(0)), 2)

    earlier = place < place[:, None]
    everywhere = np.ones((places, places), np.bool_)
    start = longest(is_end, earlier, place + 1)
    stop = g.sub(all_of, longest(is_end, ~earlier, places - 1 - place))
    first = g.sub(all_of, longest(is_token, everywhere, places - place))
    last = longest(is_token, everywhere, place + 1)
    nearest = g.const(np.maximum(place + 1 - before, 0))
    furthest = g.const(np.minimum(place + after, places))
    begin, end = nearest, furthest
    for other in (start, first):
        begin = g.op("Where", g.op("Less", begin, other), other, begin)
    for other in (stop, last):
        end = g.op("Where", g.op("Less", other, end), other, end)
    return g.op("Concat", g.unsqueeze(begin, 2), g.unsqueeze(end, 2), axis=2)


def _keep_span(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    (rows, columns), count = t[0].shape, t[1].shape[0]
    place = g.const(np.arange(columns))
    begin, end = (g.reshape(side, (count, 1)) for side in g.split_pair(x[1]))
    inside = g.op("And", g.op("GreaterOrEqual", place, begin), g.op("Less", place, end))
    stacked = g.reshape(x[0], (rows // count, count, columns))
    kept = g.op("Where", inside, stacked, g.const(attr_int(node.attrs, "fill")))
    return g.reshape(kept, (rows, columns))


def _softmax_grad(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    p, grad = x
    total = g.unsqueeze(g.sum_last(g.mul(p, grad), t[0].shape[1]), 1)
    return g.mul(p, g.sub(g.times(grad, 1 << PROBABILITY_EXPONENT), total))


def _label_mask(g: _Lowering, labels: str, classes: int) -> str:
    return g.one_hot(g.clamp(labels, 0, classes - 1), classes)


def _sub_one_hot(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    mask = _label_mask(g, x[1], t[0].shape[1])
    one = g.op("Where", mask, g.const(1 << PROBABILITY_EXPONENT), g.const(0))
    return g.sub(x[0], one)


def _logit_grad(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    divisor = g.unsqueeze(g.at_least(x[1], 1), 1)
    half = g.floor_div(divisor, g.const(2))
    share = g.floor_div(g.add(g.times(x[0], 1 << FINE_EXPONENT), half), divisor)
    mask = _label_mask(g, x[2], t[0].shape[1])
    one = g.op("Where", mask, g.const(1 << FINE_EXPONENT), g.const(0))
    return g.sub(share, one)


def _cross_entropy(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    z, maximum, total, labels = x
    classes = t[0].shape[1]
    mask = _label_mask(g, labels, classes)
    chosen = g.sum_last(g.op("Where", mask, z, g.const(0)), classes)
    gap = g.times(g.sub(maximum, chosen), 1 << (LOSS_EXPONENT - LOG2_EXPONENT))
    log2 = _log2_q16(g, g.at_least(total, 1))
    return g.sub(g.add(gap, log2), g.const(EXP2_EXPONENT << LOSS_EXPONENT))


def _log2_q16(g: _Lowering, x: str) -> str:
    """Base-2 logarithm of a positive vector: how many powers of two it reaches, then the table."""
    powers = [1 << i for i in range(1, 63)]
    reached = g.op("GreaterOrEqual", g.unsqueeze(x, -1), g.const(powers))
    n = g.count_true(reached, len(powers))
    ten = g.const(10)
    up = g.power_of_two(g.at_least(g.sub(ten, n), 0))
    down = g.power_of_two(g.at_least(g.sub(n, ten), 0))
    index = g.floor_mod(g.floor_div(g.mul(x, up), down), g.const(1024))
    return g.add(g.times(n, 1 << LOSS_EXPONENT), g.gather(g.const(log2_table()), index))


def _square_sum(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    total = g.sum_last(g.reshape(g.mul(x[0], x[0]), (-1,)), t[0].size)
    return g.rs(total, attr_int(node.attrs, "shift"))


def _sum(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.sum_last(g.reshape(x[0], (-1,)), t[0].size)


def _center(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    width = t[0].shape[-1]
    total = g.unsqueeze(g.sum_last(x[0], width), -1)
    return g.rs(g.sub(g.times(x[0], width), total), attr_int(node.attrs, "shift"))


def _row_dot(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.sum_last(g.mul(*x), t[0].shape[-1])


def _inverse_root(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    v = g.add(g.at_least(x[0], 0), g.const(attr_int(node.attrs, "epsilon")))
    root = _integer_root(g, g.times(v, 4 ** attr_int(node.attrs, "lift")))
    return g.floor_div(g.const(attr_int(node.attrs, "numerator")), root)


def _integer_root(g: _Lowering, x: str) -> str:
    """The largest integer whose square is at most x, for 1 <= x < 2^62: bit by bit from above."""
    root = g.times(x, 0)
    for bit in reversed(range(31)):
        larger = g.add(root, g.const(1 << bit))
        root = g.op("Where", g.op("LessOrEqual", g.mul(larger, larger), x), larger, root)
    return root


def _row_scale(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.mul(x[0], g.unsqueeze(x[1], -1))


def _column_scale(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.mul(*x)


def _momentum(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    velocity, grad = x
    decayed = g.rs(g.times(velocity, attr_int(node.attrs, "decay")), DECAY_EXPONENT)
    pushed = g.add(velocity, g.rs(grad, attr_int(node.attrs, "shift")))
    return g.saturate(g.sub(pushed, decayed), "i32")


def _sgd_update(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    weight, velocity, rate = x
    step = g.rs(g.mul(velocity, rate), attr_int(node.attrs, "shift"))
    return g.saturate(g.sub(weight, step), "i32")


def _schedule(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    starts = attr_ints(node.attrs, "starts")
    begun = g.op("GreaterOrEqual", x[0], g.const(starts))
    last = g.at_least(g.sub(g.count_true(begun, len(starts)), g.const(1)), 0)
    return g.gather(g.const(attr_ints(node.attrs, "rates")), last)


def _blended(g: _Lowering, node: Node, old: str, new: str) -> str:
    """The moving average old + rs((new - old) * rate, shift)."""
    gap = g.times(g.sub(new, old), attr_int(node.attrs, "rate"))
    return g.add(old, g.rs(gap, attr_int(node.attrs, "shift")))


def _adam_mean(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    lifted = g.times(x[1], 1 << attr_int(node.attrs, "lift"))
    return g.saturate(_blended(g, node, x[0], lifted), "i32")


def _adam_square(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    lifted = g.times(g.mul(x[1], x[1]), 1 << SQUARE_LIFT)
    return _blended(g, node, g.clamp(x[0], 0, 1 << WIDE_STATE_BITS), lifted)


def _isqrt(g: _Lowering, x: str) -> str:
    """Floor of the square root of x >= 0: a guess in float64, which integers then correct."""
    guess = g.op("Cast", g.op("Sqrt", g.op("Cast", x, to=TensorProto.DOUBLE)), to=TensorProto.INT64)
    one = g.const(1)
    high = g.op("Greater", guess, g.floor_div(x, g.at_least(guess, 1)))
    root = g.sub(guess, g.op("Cast", high, to=TensorProto.INT64))
    more = g.add(root, one)
    low = g.op("LessOrEqual", more, g.floor_div(x, more))
    return g.add(root, g.op("Cast", low, to=TensorProto.INT64))


def _adam_direction(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    root = _isqrt(g, g.at_least(x[1], 0))
    divisor = g.add(root, g.const(attr_int(node.attrs, "epsilon")))
    numerator = g.times(x[0], 1 << attr_int(node.attrs, "shift"))
    return g.saturate(g.floor_div(numerator, divisor), "i32")


def _power(g: _Lowering, base: int, exponent: str) -> str:
    """base^exponent of 31 fraction bits, by the digits of an exponent of at most 41 bits."""
    power = g.const(1 << BETA_EXPONENT)
    for bit in reversed(range(MAX_STEPS.bit_length())):
        power = g.rs(g.mul(power, power), BETA_EXPONENT)
        digit = g.floor_mod(g.floor_div(exponent, g.const(1 << bit)), g.const(2))
        taken = g.rs(g.times(power, base), BETA_EXPONENT)
        power = g.op("Where", g.op("Equal", digit, g.const(1)), taken, power)
    return power


def _adam_correction(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    count = g.add(g.clamp(x[0], 0, MAX_STEPS), g.const(1))
    rest1, rest2 = (
        g.sub(g.const(1 << BETA_EXPONENT), _power(g, attr_int(node.attrs, beta), count))
        for beta in ("beta1", "beta2")
    )
    root = g.times(_isqrt(g, g.times(rest2, 1 << BETA_EXPONENT)), 1 << CORRECTION_EXPONENT)
    return g.at_most(g.floor_div(root, rest1), CORRECTION_MOST)


def _schedule_linear(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    starts, rates = attr_ints(node.attrs, "starts"), attr_ints(node.attrs, "rates")
    last = len(starts) - 1
    lengths = [end - start for start, end in itertools.pairwise(starts)] + [1]
    rises = [high - low for low, high in itertools.pairwise(rates)] + [0]
    now = g.clamp(x[0], 0, starts[-1])
    begun = g.count_true(g.op("GreaterOrEqual", now, g.const(starts)), last + 1)
    at = g.sub(begun, g.const(1))
    begin, length, rise, rate = (
        g.gather(g.const(values), at) for values in (starts, lengths, rises, rates)
    )
    twice = g.times(length, 2)
    climbed = g.add(g.times(g.mul(rise, g.sub(now, begin)), 2), length)
    return g.add(rate, g.floor_div(climbed, twice))


def _sign(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.op("Sign", x[0])


def _capped_square(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    aligned = g.rs(x[0], attr_int(node.attrs, "shift"))
    held = g.clamp(aligned, -(1 << 30), 1 << 30)
    return g.at_most(g.mul(held, held), 1 << attr_int(node.attrs, "bits"))


def _clip_factor(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    norm = _isqrt(g, g.at_least(x[0], 1))
    limit = g.const(attr_int(node.attrs, "limit") << FACTOR_EXPONENT)
    return g.at_most(g.floor_div(limit, norm), 1 << FACTOR_EXPONENT)


def _scale_by(g: _Lowering, node: Node, x: Sequence[str], t: Sequence[TensorType]) -> str:
    return g.rs(g.mul(x[0], x[1]), attr_int(node.attrs, "shift"))


LOWERINGS: dict[str, Lower] = {
    "next_state": _next_state,
    "increment": _increment,
    "dropout_mask": _dropout_mask,
    "normalize": _normalize,
    "one_hot": _one_hot,
    "im2col": _im2col,
    "col2im": _col2im,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "gather_rows": _gather_rows,
    "scatter_add": _scatter_add,
    "matmul": _matmul,
    "batched_matmul": _batched_matmul,
    "add_bias": _add_bias,
    "column_sum": _column_sum,
    "rescale": _rescale,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "relu": _relu,
    "look_up": _look_up,
    "relu_grad": _relu_grad,
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool_grad,
    "sum_pool": _sum_pool,
    "sum_pool_grad": _sum_pool_grad,
    "row_max": _row_max,
    "exp2_diff": _exp2_diff,
    "row_sum": _row_sum,
    "divide": _divide,
    "causal_spans": _causal_spans,
    "token_spans": _token_spans,
    "keep_span": _keep_span,
    "softmax_grad": _softmax_grad,
    "sub_one_hot": _sub_one_hot,
    "logit_grad": _logit_grad,
    "cross_entropy": _cross_entropy,
    "square_sum": _square_sum,
    "sum": _sum,
    "center": _center,
    "row_dot": _row_dot,
    "inverse_root": _inverse_root,
    "row_scale": _row_scale,
    "column_scale": _column_scale,
    "momentum": _momentum,
    "sgd_update": _sgd_update,
    "schedule": _schedule,
    "schedule_linear": _schedule_linear,
    "sign": _sign,
    "capped_square": _capped_square,
    "clip_factor": _clip_factor,
    "scale_by": _scale_by,
    "adam_mean": _adam_mean,
    "adam_square": _adam_square,
    "adam_direction": _adam_direction,
    "adam_correction": _adam_correction,
}
"""How each operator is lowered, by name; ``state`` and ``gather_samples`` are the inputs."""
