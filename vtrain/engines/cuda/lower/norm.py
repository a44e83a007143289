"""Launches of the kernels of ``vtrain.ops.norm``: rows, their roots and their scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import THREADS, WARP, Arg, Launch, Operand, Output
from vtrain.engines.cuda.lower.common import Lowering, Types, file_of, launch, operand
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node

_SHORT_ROW: Final = 8
"""Up to here a thread a row is enough."""


def _by_warps(node: Node, rows: int, *args: Arg) -> tuple[Launch, ...]:
    grid = (-(-rows * WARP // THREADS), 1, 1)
    return (Launch(file_of(node), f"{node.op}_warps", grid, (THREADS, 1, 1), (rows, *args)),)


def _center_args(node: Node, inputs: Types) -> tuple[Arg, ...]:
    return (Operand(0), inputs[0].shape[-1], attr_int(node.attrs, "shift"), Output())


def _center(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, *_center_args(node, inputs))


def _fast_center(node: Node, inputs: Types) -> tuple[Launch, ...]:
    x = inputs[0]
    if x.shape[-1] <= _SHORT_ROW:
        return _center(node, inputs)
    return _by_warps(node, x.size // x.shape[-1], *_center_args(node, inputs))


def _of_both(node: Node, inputs: Types) -> tuple[Arg, ...]:
    """Both inputs and the length of a row."""
    return (*operand(0, inputs), *operand(1, inputs), inputs[0].shape[-1], Output())


def _pair(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """row_dot, row_scale, column_scale."""
    return launch(node, *_of_both(node, inputs))


def _fast_row_dot(node: Node, inputs: Types) -> tuple[Launch, ...]:
    if inputs[0].shape[-1] <= _SHORT_ROW:
        return _pair(node, inputs)
    return _by_warps(node, node.outputs[0].size, *_of_both(node, inputs))


def _inverse_root(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = (attr_int(node.attrs, name) for name in ("epsilon", "lift", "numerator"))
    return launch(node, Operand(0), *numbers, Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "center": _center,
    "row_dot": _pair,
    "inverse_root": _inverse_root,
    "row_scale": _pair,
    "column_scale": _pair,
}
"""Readable kernels."""

FAST: Final[Mapping[str, Lowering]] = {"center": _fast_center, "row_dot": _fast_row_dot}
"""Fast variants."""
