"""Launches of the kernels of ``vtrain.ops.rescale``: changing exponents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Saturated
from vtrain.engines.cuda.lower.common import Lowering, Types, launch, operand, output
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node


def _rescale(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("multiplier", "shift")]
    return launch(node, *operand(0, inputs), *numbers, *output(node), Saturated())


LOWERINGS: Final[Mapping[str, Lowering]] = {"rescale": _rescale}
"""Readable kernels."""
