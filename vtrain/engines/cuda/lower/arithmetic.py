"""Launches of the kernels of ``vtrain.ops.arithmetic``: sums and products of two tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Output
from vtrain.engines.cuda.lower.common import Lowering, Types, launch, operand
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node


def _align(node: Node, inputs: Types) -> tuple[Launch, ...]:
    shift_a, shift_b = (attr_int(node.attrs, name) for name in ("shift_a", "shift_b"))
    return launch(node, *operand(0, inputs), shift_a, *operand(1, inputs), shift_b, Output())


def _mul(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, *operand(0, inputs), *operand(1, inputs), Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {"add": _align, "sub": _align, "mul": _mul}
"""Readable kernels."""
