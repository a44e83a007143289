"""Parts of a tensor along one axis: cut out, put between zeros, joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from vtrain.ops.base import attr_int
from vtrain.prove.tiles.builder import Emitters, TileBuilder, wanted_grid
from vtrain.prove.tiles.grid import I64, TensorMap, Terms
from vtrain.prove.tiles.statements import TiledValue, add
from vtrain.wire.graph import Node, Ref


def _move(shape: Sequence[int], axis: int, source: Sequence[int], offset: int) -> Terms:
    """Elements of the target come from ``offset`` places further along the axis of the source, and
    are 0 where the source has no such place."""

    def terms(flat: I64) -> tuple[I64, I64]:
        place = list(np.unravel_index(flat, tuple(shape)))
        place[axis] = place[axis] + offset
        inside = (place[axis] >= 0) & (place[axis] < source[axis])
        found = np.ravel_multi_index([along[inside] for along in place], tuple(source))
        return np.flatnonzero(inside), np.asarray(found, dtype=np.int64)

    return terms


def _emit_part(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """``slice`` and ``pad``."""
    x, axis = s.value(node.inputs[0]), attr_int(node.attrs, "axis")
    offset = (
        attr_int(node.attrs, "start") if node.op == "slice" else -attr_int(node.attrs, "before")
    )
    shape, source = s.graph.type_of(ref).shape, s.graph.type_of(node.inputs[0]).shape
    relation = TensorMap(x.grid, wanted_grid(s, ref), _move(shape, axis, source, offset))
    return s.image(f"{node.name}/parts", node.name, relation, x)


def _emit_concat(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """The sum of the inputs, each between zeros."""
    axis, begin = attr_int(node.attrs, "axis"), 0
    shape, grid = s.graph.type_of(ref).shape, wanted_grid(s, ref)
    images = []
    for number, item in enumerate(node.inputs):
        x, source = s.value(item), s.graph.type_of(item).shape
        relation = TensorMap(x.grid, grid, _move(shape, axis, source, -begin))
        images.append((1, s.image(f"{node.name}/part {number}", node.name, relation, x)))
        begin += source[axis]
    return add(*images)


EMITTERS: Final[Emitters] = {
    "slice": _emit_part,
    "pad": _emit_part,
    "concat": _emit_concat,
}
