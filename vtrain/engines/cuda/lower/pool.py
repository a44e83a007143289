"""Launches of the kernels of ``vtrain.ops.pool``: pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Output
from vtrain.engines.cuda.lower.common import Lowering, Types, launch, operand
from vtrain.engines.cuda.lower.layout import pack_window, patches, to_image
from vtrain.wire.graph import Node


def _sum_pool(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, *operand(0, inputs), pack_window(node, inputs[0].shape), Output())


def _max_pool_grad(node: Node, inputs: Types) -> tuple[Launch, ...]:
    window = pack_window(node, inputs[1].shape)
    return launch(node, *operand(0, inputs), *operand(1, inputs), window, Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "max_pool": patches,
    "max_pool_grad": _max_pool_grad,
    "sum_pool": _sum_pool,
    "sum_pool_grad": to_image,
}
"""Readable kernels."""
