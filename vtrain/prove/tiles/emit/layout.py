"""Other orders of the same elements: reshape, transpose, patches of images."""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from vtrain.ops.base import attr_ints
from vtrain.ops.layout import Window
from vtrain.prove.tiles.builder import Emitters, TileBuilder, wanted_grid
from vtrain.prove.tiles.emit.windows import Frame, image_of
from vtrain.prove.tiles.grid import I64, TensorMap
from vtrain.prove.tiles.statements import TiledValue
from vtrain.wire.graph import Node, Ref


def _emit_reshape(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """The same blocks."""
    return s.value(node.inputs[0])


def _emit_transpose(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    x = s.value(node.inputs[0])
    shape, out = s.graph.type_of(node.inputs[0]).shape, s.graph.type_of(ref).shape
    perm = attr_ints(node.attrs, "perm")
    steps = np.asarray([prod(shape[axis + 1 :]) for axis in perm], dtype=np.int64)

    def terms(flat: I64) -> tuple[I64, I64]:
        along = np.stack(np.unravel_index(flat, out))
        return np.arange(flat.size), np.asarray((along * steps[:, None]).sum(axis=0), np.int64)

    relation = TensorMap(x.grid, wanted_grid(s, ref), terms)
    return s.image(f"{node.name}/parts", node.name, relation, x)


def _emit_im2col(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    frame = Frame(Window.from_attrs(node.attrs), s.graph.type_of(node.inputs[0]).shape)

    def terms(flat: I64) -> tuple[I64, I64]:
        pixels, inside = frame.find_pixels(*frame.split_patch(flat))
        return np.flatnonzero(inside), pixels[inside]

    return image_of(s, ref, node, terms)


def _emit_col2im(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    frame = Frame(Window.from_attrs(node.attrs), attr_ints(node.attrs, "shape", 4))

    def terms(flat: I64) -> tuple[I64, I64]:
        numbers, places, offsets = frame.windows_of(flat, range(frame.window.area))
        return numbers, frame.join_patch(places, offsets)

    return image_of(s, ref, node, terms)


EMITTERS: Final[Emitters] = {
    "reshape": _emit_reshape,
    "transpose": _emit_transpose,
    "im2col": _emit_im2col,
    "col2im": _emit_col2im,
}
