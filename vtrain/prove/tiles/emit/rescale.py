"""Rounding shifts with saturation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.ops.base import attr_int, attr_text
from vtrain.prove.tiles.builder import THIN, Emitters, TileBuilder, require_range, wanted_grid
from vtrain.prove.tiles.circuits import WIDE_REACH, rescale_limbs, rescale_parameters
from vtrain.prove.tiles.grid import Array
from vtrain.prove.tiles.statements import (
    StepFacts,
    TileContents,
    TiledValue,
    TileStatement,
    add,
    round_exactly,
)
from vtrain.spec.number import SATURATION
from vtrain.wire.graph import Node, Ref


def rescale(
    s: TileBuilder,
    name: str,
    node: Node,
    x: TiledValue | Callable[[StepFacts], TiledValue],
    dtype: str,
    multiplier: int,
    offset: int,
    shift: int,
    ref: Ref | None = None,
) -> TiledValue:
    """sat(rs(x multiplier + offset, shift)), shift >= 0; the node's output where ``ref`` is it.

    x may depend on the step, but for its blocks.
    """
    find_x = (lambda facts: x) if isinstance(x, TiledValue) else x
    grid = find_x(StepFacts(1, 0)).grid
    if offset and grid.size != grid.rows * grid.columns:
        raise CircuitError(
            "has an offset, and its input is cut into blocks with gaps between rows, which the "
            "offset would fill: rescale without one",
            where=node.name,
        )

    def compute(contents: TileContents, block: int) -> Array:
        found = find_x(contents.facts).at(block)
        offsets = offset * grid.mask(block)
        rounded = round_exactly(contents.combine(found), multiplier, offsets, shift)
        return rounded if dtype == "i64" else np.clip(rounded, *SATURATION[dtype])

    y = s.tensor(name, grid, compute) if ref is None else s.commit(ref, grid)
    limbs = _find_limbs(shift, node)

    def make(block: int, facts: StepFacts) -> TileStatement:
        given = {"x": find_x(facts).at(block), "y": y.at(block)}
        rows, columns = grid.extent(block)
        parameters = rescale_parameters(
            s.side,
            limbs,
            multiplier=multiplier,
            offset=offset,
            shift=shift,
            rows=rows,
            columns=columns,
        )
        return TileStatement(node.name, f"rescale-{dtype}-{limbs}", given, parameters)

    s.family(grid.count, make)
    return y


def _find_limbs(shift: int, node: Node) -> int:
    try:
        return rescale_limbs(shift)
    except CircuitError as error:
        raise CircuitError(error.message, where=node.name) from None


def _emit_rescale(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    x, wanted = s.value(node.inputs[0]), wanted_grid(s, ref)
    if THIN * wanted.count <= x.grid.count:
        x = s.value_in(node.inputs[0], wanted)
    dtype = attr_text(node.attrs, "dtype")
    multiplier, shift = attr_int(node.attrs, "multiplier"), attr_int(node.attrs, "shift")
    if shift <= 0:
        # The factor is exact and part of the operand.
        x = add((multiplier << -shift, x))
        if dtype == "i64":
            return x
        multiplier, shift = 1, 0
    elif dtype == "i64":
        require_range(s, node, ref, WIDE_REACH)
    return rescale(s, node.name, node, x, dtype, multiplier, 0, shift, ref)


EMITTERS: Final[Emitters] = {
    "rescale": _emit_rescale,
}
