"""Matrix products, biases, sums of columns."""

from __future__ import annotations

from typing import Final

import numpy as np

from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.values import Lin, Tensor
from vtrain.prove.steps.builder import Emitters, StepBuilder, attr, bound_shift
from vtrain.wire.graph import Node, Ref


def _emit_matmul(s: StepBuilder, ref: Ref, node: Node) -> None:
    a, c = (s.tensor(item) for item in node.inputs)
    product = s.hint_output(ref, node)
    s.b.matmul(
        node.name,
        a,
        c,
        product.lin(),
        ta=bool(node.attrs["transpose_a"]),
        tb=bool(node.attrs["transpose_b"]),
    )
    s.values[ref] = product


def _emit_batched_matmul(s: StepBuilder, ref: Ref, node: Node) -> None:
    """Matrix by matrix."""
    a, c = (s.tensor(item) for item in node.inputs)
    product = s.hint_output(ref, node)
    count = int(np.prod(product.shape[:-2], dtype=np.int64))

    def take(x: Tensor, number: int) -> Tensor:
        size = x.size // count
        flat = s.b.reshape(x, (x.size,))
        return s.b.reshape(s.b.slice(flat, number * size, (number + 1) * size), x.shape[-2:])

    for number in range(count):
        s.b.matmul(
            f"{node.name}/{number}",
            take(a, number),
            take(c, number),
            take(product, number).lin(),
            ta=bool(node.attrs["transpose_a"]),
            tb=bool(node.attrs["transpose_b"]),
        )
    s.values[ref] = product


def _emit_add_bias(s: StepBuilder, ref: Ref, node: Node) -> None:
    acc, bias = node.inputs
    kind = s.type_of(bias)
    shift = attr(node.attrs, "shift")
    reach = bound_shift(kind.lo, kind.hi, shift)
    aligned = gadgets.rounding_shift(s.b, node.name, s.lin(bias), shift, reach=reach)
    shape = s.type_of(acc).shape
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    indices = np.tile(np.arange(kind.size), rows).reshape(shape)
    spread = tuple(
        (s.b.take(tensor, indices), weight, scalar) for tensor, weight, scalar in aligned.terms
    )
    s.values[ref] = s.lin(acc) + Lin(shape, spread, aligned.const)


def _emit_column_sum(s: StepBuilder, ref: Ref, node: Node) -> None:
    x = s.tensor(node.inputs[0])
    columns = x.shape[-1]
    total = s.hint_output(ref, node)
    matrix = s.b.reshape(x, (x.size // columns, columns))
    ones = np.ones(matrix.shape[0], dtype=np.int64)
    gadgets.weigh_rows(s.b, node.name, s.b.transpose(matrix), ones, 0, total)
    s.values[ref] = total


EMITTERS: Final[Emitters] = {
    "matmul": _emit_matmul,
    "batched_matmul": _emit_batched_matmul,
    "add_bias": _emit_add_bias,
    "column_sum": _emit_column_sum,
}
