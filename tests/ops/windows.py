"""Sliding windows to try operators on."""

from __future__ import annotations

from collections.abc import Callable

from vtrain.ops.layout import Window


def draw_window(
    integer: Callable[[int, int], int], *, most: int, least: int, slack: int
) -> tuple[Window, tuple[int, int]]:
    """A window, and the height and width of an image, padding aside, into which it fits.

    Kernel and strides are at most ``most``; the image is at least ``least`` high and wide, and at
    most ``slack`` larger than needed.  ``integer`` draws from a closed interval.
    """
    kernel = (integer(1, most), integer(1, most))
    strides = (integer(1, most), integer(1, most))
    top, left, bottom, right = (integer(0, kernel[axis % 2] - 1) for axis in range(4))
    needed = (kernel[0] - top - bottom, kernel[1] - left - right)
    height, width = (max(least, extent) + integer(0, slack) for extent in needed)
    return Window(kernel, strides, (top, left, bottom, right)), (height, width)
