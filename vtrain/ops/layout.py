"""Reordering without arithmetic: reshape, transpose, and the patches of a convolution.

Images are stored NHWC: a patch row is then kh * kw runs of contiguous channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vtrain.ops.base import (
    Array,
    Builder,
    LeafRule,
    Operator,
    Site,
    Stream,
    Types,
    adding,
    attr_ints,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
    to_index,
    to_place,
)
from vtrain.wire.graph import MAX_ELEMENTS, Attrs, Node, Ref, TensorType

MAX_WINDOW = 2**16
"""Most elements of a window in one channel."""


@dataclass(frozen=True)
class Window:
    """A sliding window over the two middle axes of an NHWC tensor.

    ``kernel`` and ``strides`` are (height, width); ``pads`` is (top, left, bottom, right).
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]

    KEYS = ("kernel", "pads", "strides")

    @staticmethod
    def from_attrs(attrs: Attrs) -> Window:
        """Read and check the attributes kernel, strides, pads."""
        kernel, strides = attr_ints(attrs, "kernel", 2), attr_ints(attrs, "strides", 2)
        pads = attr_ints(attrs, "pads", 4)
        require(min(kernel) >= 1 and min(strides) >= 1, "kernel and strides must be positive")
        require(max(strides) <= MAX_ELEMENTS, f"a stride is at most {MAX_ELEMENTS}")
        require(min(pads) >= 0, "pads must not be negative")
        fits = all(pads[axis] < kernel[axis] and pads[axis + 2] < kernel[axis] for axis in (0, 1))
        require(fits, "a pad must be smaller than the kernel: else a window is all padding")
        return Window(
            (kernel[0], kernel[1]), (strides[0], strides[1]), (pads[0], pads[1], pads[2], pads[3])
        )

    @property
    def area(self) -> int:
        """Elements in a window."""
        return self.kernel[0] * self.kernel[1]

    def output_extent(self, height: int, width: int) -> tuple[int, int]:
        """Windows down and across, rounded down (ONNX ceil_mode = 0); GraphError if none fits."""
        down = height + self.pads[0] + self.pads[2] - self.kernel[0]
        across = width + self.pads[1] + self.pads[3] - self.kernel[1]
        require(down >= 0 and across >= 0, "the window is larger than the padded image")
        return down // self.strides[0] + 1, across // self.strides[1] + 1

    def pooled_shape(self, image: Sequence[int]) -> tuple[int, int, int, int]:
        """[n, h, w, c] -> [n, windows down, windows across, c]; GraphError for what is no image.

        The padded image and all its patches are bounded as tensors are: an engine may store them.
        """
        require(len(image) == 4, f"needs an NHWC tensor, has shape {tuple(image)}")
        batch, height, width, channels = image
        require(min(image) >= 1, f"has an empty axis: {tuple(image)}")
        rows, columns = self.output_extent(height, width)
        require(self.area <= MAX_WINDOW, f"a window has at most {MAX_WINDOW} elements")
        top, left, bottom, right = self.pads
        padded = batch * (height + top + bottom) * (width + left + right) * channels
        patches = batch * rows * columns * self.area * channels
        require(
            max(padded, patches) <= MAX_ELEMENTS,
            f"padded image and patches have {padded} and {patches} elements, "
            f"more than {MAX_ELEMENTS}",
        )
        return batch, rows, columns, channels

    def pad(self, x: Array, value: int = 0) -> Array:
        """NHWC ``x`` with its two middle axes padded by ``value``."""
        top, left, bottom, right = self.pads
        return np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=value)

    def slices(self, extent: tuple[int, int]) -> list[tuple[slice, slice]]:
        """For each window offset in row-major order, the padded pixels it has in every window."""
        rows, columns = extent
        return [
            (
                slice(dy, dy + (rows - 1) * self.strides[0] + 1, self.strides[0]),
                slice(dx, dx + (columns - 1) * self.strides[1] + 1, self.strides[1]),
            )
            for dy in range(self.kernel[0])
            for dx in range(self.kernel[1])
        ]

    def patches(self, x: Array, value: int = 0) -> Array:
        """[batch, h, w, c] -> [batch, out_h, out_w, kh * kw, c], padding filled with ``value``."""
        extent = self.output_extent(x.shape[1], x.shape[2])
        padded = self.pad(x, value)
        return np.stack([padded[:, r, c] for r, c in self.slices(extent)], axis=3)

    def scatter_add(self, patches: Array, height: int, width: int) -> Array:
        """Adjoint of :meth:`patches`: int64 sums of the elements that came from each pixel."""
        batch, rows, columns, _, channels = patches.shape
        top, left, bottom, right = self.pads
        total = np.zeros((batch, height + top + bottom, width + left + right, channels), np.int64)
        for i, (r, c) in enumerate(self.slices((rows, columns))):
            total[:, r, c] += patches[:, :, :, i]
        return total[:, top : top + height, left : left + width]

    def find_pixel(self, image: Sequence[int], window: Sequence[int], offset: int) -> int | None:
        """Flat index of the pixel that a window has at ``offset``; None where that is padding.

        ``window`` is (batch, window row, window column, channel), as in the pooled shape.
        """
        batch, row, column, channel = window
        dy, dx = divmod(offset, self.kernel[1])
        y = row * self.strides[0] + dy - self.pads[0]
        x = column * self.strides[1] + dx - self.pads[1]
        inside = 0 <= y < image[1] and 0 <= x < image[2]
        return to_index((batch, y, x, channel), image) if inside else None

    def find_window(
        self, image: Sequence[int], pixel: int, offset: int
    ) -> tuple[int, int, int, int] | None:
        """The window that has the pixel with this flat index at ``offset``; None if none has."""
        batch, y, x, channel = to_place(pixel, image)
        dy, dx = divmod(offset, self.kernel[1])
        row, beyond_row = divmod(y + self.pads[0] - dy, self.strides[0])
        column, beyond_column = divmod(x + self.pads[1] - dx, self.strides[1])
        rows, columns = self.output_extent(image[1], image[2])
        found = 0 <= row < rows and 0 <= column < columns and not beyond_row and not beyond_column
        return (batch, row, column, channel) if found else None

    def overlap(self) -> int:
        """Most windows that contain one pixel."""
        down = -(-self.kernel[0] // self.strides[0])
        across = -(-self.kernel[1] // self.strides[1])
        return down * across


def _im2col_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    patches = Window.from_attrs(attrs).patches(inputs[0])
    batch, rows, columns, area, channels = patches.shape
    return patches.reshape(batch * rows * columns, area * channels)


def _im2col_leaf(site: Site, e: int) -> int:
    window, image = Window.from_attrs(site.attrs), site.types[0].shape
    batch, rows, columns, channels = window.pooled_shape(image)
    place = to_place(e, (batch, rows, columns, window.area, channels))
    pixel = window.find_pixel(image, (*place[:3], place[4]), place[3])
    return 0 if pixel is None else site.read(0, pixel)


def _im2col_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The patches of a convolution: each window of the image becomes a row.

    Row (s * oh + r) * ow + c is window (r, c) of sample s.  Column o * channels + i is channel i of
    the pixel at offset o of the window, counted row-major through the kernel.  Padding is 0.

    Attributes:
        pads: four integers, top, left, bottom, right; see windows.
        kernel: two integers, height and width; see windows.
        strides: two integers, down and across; see windows.
    Inputs: x i16 [n, h, w, channels].
    Output: i16 [n * oh * ow, kh * kw * channels], the exponent of x.
    Range: min(x.lo, 0) to max(x.hi, 0), with padding or without.
    """
    require_keys(attrs, *Window.KEYS)
    require_inputs(inputs, "i16")
    x = inputs[0]
    window = Window.from_attrs(attrs)
    batch, rows, columns, channels = window.pooled_shape(x.shape)
    shape = (batch * rows * columns, window.area * channels)
    return integer_type("i16", shape, x.exponent, min(x.lo, 0), max(x.hi, 0))


def _im2col_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    shape = b.type_of(node.inputs[0]).shape
    return (b.emit("col2im", f"{node.name}/grad_in", (grad,), shape=shape, **node.attrs),)


def _col2im_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    window = Window.from_attrs(attrs)
    batch, height, width, channels = attr_ints(attrs, "shape", 4)
    rows, columns = window.output_extent(height, width)
    patches = inputs[0].reshape(batch, rows, columns, window.area, channels)
    return window.scatter_add(patches, height, width)


def count_offsets(attrs: Attrs, types: Types) -> int:
    """Terms of a fold over the offsets of a window."""
    return Window.from_attrs(attrs).area


def scattered(attrs: Attrs, types: Types) -> Sequence[Stream]:
    """Each term reads one element of input 0, anywhere."""
    return [Stream(0, None)]


def _col2im_term(site: Site, e: int, offset: int) -> int:
    window, image = Window.from_attrs(site.attrs), attr_ints(site.attrs, "shape", 4)
    place = window.find_window(image, e, offset)
    if place is None:
        return 0
    batch, rows, columns, channels = window.pooled_shape(image)
    shape = (batch, rows, columns, window.area, channels)
    return site.read(0, to_index((*place[:3], offset, place[3]), shape))


_COL2IM_LEAF = LeafRule(adding(_col2im_term), count_offsets, scattered)


def _col2im_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The adjoint of ``im2col``: each pixel is the sum of the patch elements that came from it.

    A pixel that no window reaches is 0.  What would go to padding is dropped.

    Attributes:
        pads: four integers, top, left, bottom, right; see windows.
        shape: four integers, [n, h, w, channels] of the output.
        kernel: two integers, height and width; see windows.
        strides: two integers, down and across; see windows.
    Inputs: x any [n * oh * ow, kh * kw * channels].
    Output: i64 [n, h, w, channels], the exponent of x.
    Range: min(m * x.lo, 0) to max(m * x.hi, 0), with m = ceil(kh / sh) * ceil(kw / sw).
    """
    require_keys(attrs, "shape", *Window.KEYS)
    require_inputs(inputs, "int")
    columns_type = inputs[0]
    window = Window.from_attrs(attrs)
    shape = attr_ints(attrs, "shape", 4)
    batch, rows, columns, channels = window.pooled_shape(shape)
    expected = (batch * rows * columns, window.area * channels)
    require(columns_type.shape == expected, f"needs shape {expected}, has {columns_type.shape}")
    times = window.overlap()
    lo, hi = min(columns_type.lo * times, 0), max(columns_type.hi * times, 0)
    return integer_type("i64", shape, columns_type.exponent, lo, hi, "the sum")


def _reshape_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return inputs[0].reshape(attr_ints(attrs, "shape"))


def _reshape_leaf(site: Site, e: int) -> int:
    return site.read(0, e)


def _reshape_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The same elements, in row-major order, under another shape.

    Attributes:
        shape: integers, the extents of the output.
    Inputs: x any [...].
    Output: the dtype and the exponent of x.
    Range: that of x.
    Requires: both shapes have the same number of elements.
    """
    require_keys(attrs, "shape")
    require_inputs(inputs, "int")
    x = inputs[0]
    shape = attr_ints(attrs, "shape")
    out = integer_type(x.dtype, shape, x.exponent, x.lo, x.hi)
    require(out.size == x.size, f"cannot reshape {x.shape} to {shape}")
    return out


def _reshape_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    shape = b.type_of(node.inputs[0]).shape
    return (b.emit("reshape", f"{node.name}/grad_in", (grad,), shape=shape),)


def _transpose_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    # Not ascontiguousarray: that would make a scalar a vector.
    return np.array(inputs[0].transpose(attr_ints(attrs, "perm")), order="C")


def _transpose_leaf(site: Site, e: int) -> int:
    perm, x = attr_ints(site.attrs, "perm"), site.types[0]
    along = dict(zip(perm, to_place(e, site.out.shape), strict=True))
    return site.read(0, to_index([along[axis] for axis in range(len(perm))], x.shape))


def _transpose_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Axis i of the output is axis perm[i] of x.

    Attributes:
        perm: integers, a permutation of 0 .. rank - 1.
    Inputs: x any [...].
    Output: the dtype and the exponent of x; extent i is extent perm[i] of x.
    Range: that of x.
    """
    require_keys(attrs, "perm")
    require_inputs(inputs, "int")
    x = inputs[0]
    perm = attr_ints(attrs, "perm", len(x.shape))
    require(sorted(perm) == list(range(len(x.shape))), f"{perm} is not a permutation of the axes")
    return integer_type(x.dtype, [x.shape[axis] for axis in perm], x.exponent, x.lo, x.hi)


def _transpose_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    perm = attr_ints(node.attrs, "perm")
    inverse = tuple(perm.index(axis) for axis in range(len(perm)))
    return (b.emit("transpose", f"{node.name}/grad_in", (grad,), perm=inverse),)


OPERATORS = table(
    Operator("im2col", _im2col_law, _im2col_infer, _im2col_backward, leaf=pointwise(_im2col_leaf)),
    Operator("col2im", _col2im_law, _col2im_infer, leaf=_COL2IM_LEAF),
    Operator(
        "reshape", _reshape_law, _reshape_infer, _reshape_backward, leaf=pointwise(_reshape_leaf)
    ),
    Operator(
        "transpose",
        _transpose_law,
        _transpose_infer,
        _transpose_backward,
        leaf=pointwise(_transpose_leaf),
    ),
)
