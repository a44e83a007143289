"""Pools of the windows of an image.

A maximum over the pixels x_0, x_1, ... of a window is taken step by step, m_i = m_(i-1) +
gate(x_i - m_(i-1)), where x_i is the pixel at offset i; where that is padding it is the first
pixel of the window once more, which never wins.  The gradient goes back the same way:
gate(x_i - m_(i-1), r_i) is what pixel i takes of the gradient r_i that later pixels have left, so
that the first of equals gets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.ops.base import attr_ints
from vtrain.ops.layout import Window
from vtrain.prove.tiles.builder import Emitters, TileBuilder, require_range
from vtrain.prove.tiles.emit.activation import gate
from vtrain.prove.tiles.emit.windows import Frame, image_of
from vtrain.prove.tiles.grid import I64, TensorMap
from vtrain.prove.tiles.statements import TiledValue, add
from vtrain.spec.number import SATURATION
from vtrain.wire.graph import Node, Ref

MAX_WINDOW: Final = 64
"""Pixels of a window that a maximum is taken of: each is a step that follows from those before."""


@dataclass(frozen=True)
class Pool:
    """The steps of the maxima over the windows of an image: see the module's text."""

    frame: Frame
    gains: tuple[TiledValue, ...]
    """x_i - m_(i-1), from offset 1 on."""
    maxima: TiledValue


def _pool(s: TileBuilder, node: Node, source: Ref) -> Pool:
    """Made once for each image and window: the gradient follows the same steps."""
    window = Window.from_attrs(node.attrs)
    key = (source, window)
    if key not in s.pools:
        s.pools[key] = _make_pool(s, node, source, window)
    return s.pools[key]


def _make_pool(s: TileBuilder, node: Node, source: Ref, window: Window) -> Pool:
    require_range(s, node, source, SATURATION["i16"][1])
    if window.area > MAX_WINDOW:
        raise CircuitError(
            f"takes a maximum over {window.area} pixels: at most {MAX_WINDOW} fit the circuit, so "
            "pool in two steps, by smaller windows"
        )
    x, frame = s.value(source), Frame(window, s.graph.type_of(source).shape)
    grid = s.packed_grid(frame.pooled)

    def pick(offset: int) -> TiledValue:
        def terms(flat: I64) -> tuple[I64, I64]:
            pixels, inside = frame.find_pixels(flat, offset)
            first, _ = frame.find_pixels(flat, frame.find_first(flat))
            return np.arange(flat.size), np.where(inside, pixels, first)

        relation = TensorMap(x.grid, grid, terms)
        return s.image(f"{node.name}/pixel {offset}", node.name, relation, x)

    maximum, gains = pick(0), []
    for offset in range(1, window.area):
        gain = add((1, pick(offset)), (-1, maximum))
        won = gate(s, f"{node.name}/gain {offset}", node, gain, gain)
        gains.append(gain)
        maximum = add((1, maximum), (1, won))
    return Pool(frame, tuple(gains), maximum)


def _emit_max_pool(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    return _pool(s, node, node.inputs[0]).maxima


def _emit_max_pool_grad(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    pool = _pool(s, node, node.inputs[1])
    frame, left = pool.frame, s.value_in(node.inputs[0], pool.maxima.grid)
    target = s.value(node.inputs[1]).grid
    parts = []

    def scatter(offset: int, taken: TiledValue) -> TiledValue:
        def terms(flat: I64) -> tuple[I64, I64]:
            # A window that has a pixel again, as its first one, takes nothing for it.
            if offset:
                numbers, places, _ = frame.windows_of(flat, [offset])
                return numbers, places
            numbers, places, where = frame.windows_of(flat, range(frame.window.area))
            is_first = where == frame.find_first(places)
            return numbers[is_first], places[is_first]

        relation = TensorMap(taken.grid, target, terms)
        return s.image(f"{node.name}/to {offset}", node.name, relation, taken)

    for offset in range(frame.window.area - 1, 0, -1):
        gain = pool.gains[offset - 1]
        taken = gate(s, f"{node.name}/taken {offset}", node, gain, left)
        parts.append((1, scatter(offset, taken)))
        left = add((1, left), (-1, taken))
    parts.append((1, scatter(0, left)))
    return add(*parts)


def _emit_sum_pool(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    frame = Frame(Window.from_attrs(node.attrs), s.graph.type_of(node.inputs[0]).shape)

    def terms(flat: I64) -> tuple[I64, I64]:
        area = frame.window.area
        numbers = np.repeat(np.arange(flat.size), area)
        pixels, inside = frame.find_pixels(flat[numbers], np.tile(np.arange(area), flat.size))
        return numbers[inside], pixels[inside]

    return image_of(s, ref, node, terms)


def _emit_sum_pool_grad(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    frame = Frame(Window.from_attrs(node.attrs), attr_ints(node.attrs, "shape", 4))

    def terms(flat: I64) -> tuple[I64, I64]:
        numbers, places, _ = frame.windows_of(flat, range(frame.window.area))
        return numbers, places

    return image_of(s, ref, node, terms)


EMITTERS: Final[Emitters] = {
    "max_pool": _emit_max_pool,
    "max_pool_grad": _emit_max_pool_grad,
    "sum_pool": _emit_sum_pool,
    "sum_pool_grad": _emit_sum_pool_grad,
}
