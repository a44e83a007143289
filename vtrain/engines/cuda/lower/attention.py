"""Launches of the kernels of ``vtrain.ops.attention``: spans, and the gradient of a softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from vtrain.engines.cuda.launch import (
    THREADS,
    WARP,
    Launch,
    Operand,
    Output,
    Scratch,
    one_thread_each,
)
from vtrain.engines.cuda.lower.common import (
    Lowering,
    Types,
    file_of,
    launch,
    operand,
    output,
)
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node


def _causal_spans(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, attr_int(node.attrs, "window"), Output())


def _token_spans(node: Node, inputs: Types) -> tuple[Launch, ...]:
    names = ("before", "after", "end_of_text", "padding")
    args = (attr_int(node.attrs, name) for name in names)
    return launch(node, *operand(0, inputs), inputs[0].shape[1], *args, Output())


def _keep_span(node: Node, inputs: Types) -> tuple[Launch, ...]:
    x, spans = inputs
    columns, fill = x.shape[1], attr_int(node.attrs, "fill")
    args = (*operand(0, inputs), columns, Operand(1), spans.shape[0], fill)
    return launch(node, *args, *output(node))


def _softmax_grad(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, Operand(0), Operand(1), inputs[0].shape[1], Output())


def sum_rows(rows: int, classes: int) -> tuple[Launch, ...]:
    """The sums of softmax_grad, one a row, as the output: a warp a row."""
    blocks = -(-rows * WARP // THREADS)
    args = (rows, Operand(0), Operand(1), classes, Output())
    return (Launch("softmax_grad.cu", "softmax_grad_sums", (blocks, 1, 1), (THREADS, 1, 1), args),)


def _fast_softmax_grad(node: Node, inputs: Types) -> tuple[Launch, ...]:
    """The sum of each row, then its elements."""
    rows, classes = inputs[0].shape
    sums = Scratch(8 * rows, "sums")
    then = (Operand(0), Operand(1), sums, classes, Output())
    return (
        *(
            replace(launch, args=tuple(sums if arg == Output() else arg for arg in launch.args))
            for launch in sum_rows(rows, classes)
        ),
        one_thread_each(file_of(node), "softmax_grad_apply", inputs[0].size, *then),
    )


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "causal_spans": _causal_spans,
    "token_spans": _token_spans,
    "keep_span": _keep_span,
    "softmax_grad": _softmax_grad,
}
"""Readable kernels."""

FAST: Final[Mapping[str, Lowering]] = {"softmax_grad": _fast_softmax_grad}
"""Fast variants."""
