"""Windows over images, as public maps of flat places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vtrain.ops.layout import Window
from vtrain.prove.tiles.builder import TileBuilder, wanted_grid
from vtrain.prove.tiles.grid import I64, TensorMap, Terms
from vtrain.prove.tiles.statements import TiledValue
from vtrain.wire.graph import Node, Ref


@dataclass(frozen=True)
class Frame:
    """Windows over an image, both by flat places; a window's place counts channels too."""

    window: Window
    image: tuple[int, ...]

    @cached_property
    def pooled(self) -> tuple[int, ...]:
        return self.window.pooled_shape(self.image)

    def find_pixels(self, places: I64, offset: I64 | int) -> tuple[I64, npt.NDArray[np.bool_]]:
        """(pixel that each window has at the offset, whether it is one and not padding)."""
        batch, row, column, channel = np.unravel_index(places, self.pooled)
        down, along = np.divmod(np.asarray(offset), self.window.kernel[1])
        y = row * self.window.strides[0] + down - self.window.pads[0]
        x = column * self.window.strides[1] + along - self.window.pads[1]
        _, height, width, channels = self.image
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        return ((batch * height + y) * width + x) * channels + channel, inside

    def find_windows(self, pixels: I64, offset: int) -> tuple[I64, npt.NDArray[np.bool_]]:
        """(window that has each pixel at the offset, whether there is one)."""
        batch, y, x, channel = np.unravel_index(pixels, self.image)
        down, along = divmod(offset, self.window.kernel[1])
        row, over = np.divmod(y + self.window.pads[0] - down, self.window.strides[0])
        column, beyond = np.divmod(x + self.window.pads[1] - along, self.window.strides[1])
        _, rows, columns, channels = self.pooled
        found = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        place = ((batch * rows + row) * columns + column) * channels + channel
        return place, found & (over == 0) & (beyond == 0)

    def find_first(self, places: I64) -> I64:
        """Offset of each window's first pixel."""
        first = np.full(places.shape, -1, dtype=np.int64)
        for offset in range(self.window.area):
            if np.all(first >= 0):
                break
            _, inside = self.find_pixels(places, offset)
            first = np.where((first < 0) & inside, offset, first)
        return first

    def windows_of(self, pixels: I64, offsets: Sequence[int]) -> tuple[I64, I64, I64]:
        """(number of the pixel in the list, window, offset) wherever a window has a pixel."""
        out = []
        for offset in offsets:
            place, found = self.find_windows(pixels, offset)
            out.append((np.flatnonzero(found), place[found], np.full(found.sum(), offset)))
        numbers, places, where = (np.concatenate(parts) for parts in zip(*out, strict=True))
        return numbers, places, where

    def split_patch(self, flat: I64) -> tuple[I64, I64]:
        """(window, offset) of elements of the matrix of patches."""
        channels, area = self.image[3], self.window.area
        place, within = np.divmod(flat, area * channels)
        offset, channel = np.divmod(within, channels)
        return place * channels + channel, offset

    def join_patch(self, places: I64, offset: I64) -> I64:
        """Inverse of :meth:`split_patch`."""
        place, channel = np.divmod(places, self.image[3])
        return (place * self.window.area + offset) * self.image[3] + channel


def image_of(s: TileBuilder, ref: Ref, node: Node, terms: Terms) -> TiledValue:
    """A node's output as the image of its first input."""
    x = s.value(node.inputs[0])
    relation = TensorMap(x.grid, wanted_grid(s, ref), terms)
    return s.image(f"{node.name}/parts", node.name, relation, x)
