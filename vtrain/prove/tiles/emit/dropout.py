"""Masks of dropout: public tiles, as their draws are."""

from __future__ import annotations

from typing import Final

import numpy as np

from vtrain.ops import TABLE
from vtrain.prove.tiles.builder import Emitters, TileBuilder
from vtrain.prove.tiles.grid import Array, cut_block
from vtrain.prove.tiles.statements import StepFacts, TiledValue
from vtrain.wire.graph import Node, Ref


def _emit_mask(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    grid = s.own_grid(ref)
    last: list[tuple[int, Array]] = []
    """The step that was drawn last, and its mask."""

    def compute(facts: StepFacts, block: int) -> Array:
        if not last or last[0][0] != facts.step:
            done = np.asarray(facts.step - 1, dtype=np.int64)
            last[:] = [(facts.step, np.asarray(TABLE[node.op].law(node.attrs, [done])))]
        return cut_block(last[0][1], grid, block)

    return s.public(node.name, grid, compute)


EMITTERS: Final[Emitters] = {"dropout_mask": _emit_mask}
