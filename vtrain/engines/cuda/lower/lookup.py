"""Launches of the kernels of ``vtrain.ops.lookup``: functions by table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Operand, Output
from vtrain.engines.cuda.lower.common import Lowering, Types, launch
from vtrain.ops.base import attr_int, attr_text
from vtrain.spec.curves import CURVE_NAMES
from vtrain.wire.graph import Attrs, Node


def number_of(attrs: Attrs) -> int:
    """The number by which kernels know the node's table."""
    return CURVE_NAMES.index(attr_text(attrs, "table", CURVE_NAMES))


def _look_up(node: Node, inputs: Types) -> tuple[Launch, ...]:
    shift = attr_int(node.attrs, "shift")
    return launch(node, Operand(0), number_of(node.attrs), shift, Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {"look_up": _look_up}
"""Readable kernels."""
