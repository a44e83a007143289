"""Matrix products, biases, sums of columns."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.ops.base import attr_int
from vtrain.ops.linear import compute_matmul
from vtrain.prove.tiles.builder import Emitters, TileBuilder, require_range
from vtrain.prove.tiles.circuits import LinearMap
from vtrain.prove.tiles.emit.rescale import rescale
from vtrain.prove.tiles.grid import I64, Array, Grid, TensorMap, apply_map, make_pair, make_stack
from vtrain.prove.tiles.statements import (
    LINEAR,
    Combination,
    StepFacts,
    TileContents,
    TiledValue,
    TileStatement,
    add,
)
from vtrain.spec.number import SATURATION
from vtrain.wire.graph import Node, Ref


def _require_product(s: TileBuilder, node: Node) -> tuple[bool, bool]:
    """Which of the operands are transposed; CircuitError for what no circuit multiplies."""
    for item in node.inputs:
        require_range(s, node, item, SATURATION["i16"][1])
    ta, tb = (attr_int(node.attrs, f"transpose_{side}", 0, 1) == 1 for side in "ab")
    if ta and tb:
        raise CircuitError(
            "multiplies two transposes, and no circuit does: transpose the product of the two the "
            "other way round",
            where=node.name,
        )
    return ta, tb


def multiply_wide(a: Array, b: Array) -> Array:
    """The product of matrices of any type, within int64."""
    return np.asarray(np.asarray(a, dtype=np.int64) @ np.asarray(b, dtype=np.int64))


def multiply_matrices(
    s: TileBuilder,
    node: str,
    name: str,
    a: TiledValue,
    b: TiledValue,
    grid: Grid,
    *,
    ta: bool = False,
    tb: bool = False,
    compute_product: Callable[[Array, Array], Array] = compute_matmul,
) -> TiledValue:
    """Blocks of the product of two matrices are sums of products of blocks."""
    side = s.side
    inner = a.grid.count // a.grid.across if ta else a.grid.across

    def operands(number: int) -> tuple[Combination, Combination]:
        place, k = divmod(number, inner)
        i, j = divmod(place, grid.across)
        at_a = k * a.grid.across + i if ta else i * a.grid.across + k
        at_b = j * b.grid.across + k if tb else k * b.grid.across + j
        return a.at(at_a), b.at(at_b)

    def compute(contents: TileContents, number: int) -> Array:
        left, right = (contents.combine(item).reshape(side, side) for item in operands(number))
        product = compute_product(left.T if ta else left, right.T if tb else right)
        return product.reshape(-1)

    parts = s.tensor(name, grid, compute, count=grid.count * inner)
    circuit = f"matmul-{'t' if ta else 'n'}{'t' if tb else 'n'}"

    def make(number: int, facts: StepFacts) -> TileStatement:
        left, right = operands(number)
        given = {"a": left, "b": right, "c": parts.at(number)}
        return TileStatement(node, circuit, given)

    s.family(grid.count * inner, make)

    def at(block: int) -> Combination:
        numbers = range(block * inner, (block + 1) * inner)
        return tuple(item for number in numbers for item in parts.at(number))

    return TiledValue(grid, at)


def _emit_matmul(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    ta, tb = _require_product(s, node)
    a, b = (s.standard(item) for item in node.inputs)
    grid = s.own_grid(ref)
    return multiply_matrices(s, node.name, f"{node.name}/parts", a, b, grid, ta=ta, tb=tb)


def _emit_batched_matmul(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """Matrix by matrix, each cut into blocks of its own."""
    ta, tb = _require_product(s, node)
    shapes = [s.graph.type_of(item).shape for item in (*node.inputs, ref)]
    grids = [make_stack(shape, s.side) for shape in shapes]
    a, b = (s.value_in(item, grid) for item, grid in zip(node.inputs, grids[:2], strict=True))
    stack = prod(shapes[2][:-2])

    def take(x: TiledValue, shape: tuple[int, ...], number: int) -> TiledValue:
        grid = s.grid((shape[-2], shape[-1]))
        return TiledValue(grid, lambda block: x.at(number * grid.count + block))

    products = [
        multiply_matrices(
            s,
            node.name,
            f"{node.name}/parts {number}",
            take(a, shapes[0], number),
            take(b, shapes[1], number),
            s.grid((shapes[2][-2], shapes[2][-1])),
            ta=ta,
            tb=tb,
        )
        for number in range(stack)
    ]

    def at(block: int) -> Combination:
        number, inner = divmod(block, products[0].grid.count)
        return products[number].at(inner)

    return TiledValue(grids[2], at)


def _emit_add_bias(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """The bias, aligned, in every row of a block: in as many as the block has."""
    acc, bias = s.standard(node.inputs[0]), s.standard(node.inputs[1])
    shift, grid = attr_int(node.attrs, "shift"), acc.grid
    if shift > 0:
        aligned = rescale(s, f"{node.name}/aligned", node, bias, "i64", 1, 0, shift)
    else:
        aligned = add((1 << -shift, bias))
    # Blocks of whole height first, then the lower ones where they are less high.
    heights = sorted({grid.extent(block)[0] for block in (0, grid.count - 1)}, reverse=True)

    def find_pair(number: int) -> tuple[int, LinearMap]:
        kind, column = divmod(number, grid.across)
        rows, columns = heights[kind], grid.extent(column)[1]
        targets = (np.arange(rows)[:, None] * s.side + np.arange(columns)).reshape(-1)
        return column, make_pair(targets, targets % s.side)

    def compute(contents: TileContents, number: int) -> Array:
        block, pair = find_pair(number)
        return apply_map(pair, contents.combine(aligned.at(block)))

    count = len(heights) * grid.across
    rows = s.tensor(f"{node.name}/rows", grid, compute, count=count)

    def make(number: int, facts: StepFacts) -> TileStatement:
        block, pair = find_pair(number)
        given = {"x": aligned.at(block), "y": rows.at(number)}
        return TileStatement(node.name, LINEAR, given, linear=pair)

    s.family(count, make)

    def at(block: int) -> Combination:
        kind = heights.index(grid.extent(block)[0])
        return rows.at(kind * grid.across + block % grid.across)

    return add((1, acc), (1, TiledValue(grid, at)))


def emit_sum(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """``sum`` and ``column_sum``."""
    x = s.value(node.inputs[0])
    target = s.own_grid(ref)
    rows = x.grid.rows * x.grid.columns // target.columns

    def terms(flat: I64) -> tuple[I64, I64]:
        places = np.arange(rows)[:, None] * target.columns + flat
        return np.tile(np.arange(flat.size), rows), places.reshape(-1)

    relation = TensorMap(x.grid, target, terms)
    return s.image(f"{node.name}/parts", node.name, relation, x)


EMITTERS: Final[Emitters] = {
    "matmul": _emit_matmul,
    "batched_matmul": _emit_batched_matmul,
    "add_bias": _emit_add_bias,
    "column_sum": emit_sum,
}
