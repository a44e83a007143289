"""Launches of the kernels of ``vtrain.ops.attention``: spans, and the gradient of a softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Operand, Output
from vtrain.engines.cuda.lower.common import Lowering, Types, launch, operand, output
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node


def _causal_spans(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, attr_int(node.attrs, "window"), Output())


def _keep_span(node: Node, inputs: Types) -> tuple[Launch, ...]:
    x, spans = inputs
    columns, fill = x.shape[1], attr_int(node.attrs, "fill")
    args = (*operand(0, inputs), columns, Operand(1), spans.shape[0], fill)
    return launch(node, *args, *output(node))


def _softmax_grad(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, Operand(0), Operand(1), inputs[0].shape[1], Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "causal_spans": _causal_spans,
    "keep_span": _keep_span,
    "softmax_grad": _softmax_grad,
}
"""Readable kernels."""
