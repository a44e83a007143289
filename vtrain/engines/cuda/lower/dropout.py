"""Launches of the kernel of ``vtrain.ops.dropout``: masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Operand, Output
from vtrain.engines.cuda.lower.common import Lowering, Types, launch, read_seed
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node


def _dropout_mask(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("site", "keep", "value")]
    return launch(node, Operand(0), read_seed(node), *numbers, Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {"dropout_mask": _dropout_mask}
"""Readable kernels."""
