"""Launches of the kernels of ``vtrain.ops.source``: where values come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import (
    DTYPE_CODES,
    Launch,
    Operand,
    Output,
    SampleForm,
    SamplePart,
    Saturated,
    one_thread_each,
)
from vtrain.engines.cuda.lower.common import (
    Lowering,
    Types,
    elementwise,
    file_of,
    launch,
    operand,
    output,
    read_seed,
)
from vtrain.ops.base import attr_int, attr_text
from vtrain.wire.graph import Node


def _state(node: Node, inputs: Types) -> tuple[Launch, ...]:
    # The recurrent tensor is what is bound: it has the type of the node's output.
    return launch(node, Operand(0), DTYPE_CODES[node.outputs[0].dtype], *output(node))


def _gather_samples(node: Node, inputs: Types) -> tuple[Launch, ...]:
    (index,), out = inputs, node.outputs[0]
    part = attr_text(node.attrs, "part")
    source = (
        SamplePart(part),
        SampleForm(part, "dtype"),
        SampleForm(part, "stride"),
        SampleForm(part, "start"),
        out.size // max(index.size, 1),
    )
    return launch(node, *operand(0, inputs), index.hi, *source, *output(node))


def _normalize(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("multiplier", "offset", "shift")]
    return launch(node, *operand(0, inputs), *numbers, *output(node), Saturated())


def _one_hot(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, *operand(0, inputs), attr_int(node.attrs, "depth"), *output(node))


def _sample_index(node: Node, inputs: Types) -> tuple[Launch, ...]:
    samples, batch = attr_int(node.attrs, "samples"), attr_int(node.attrs, "batch")
    args = (Operand(0), samples, read_seed(node), Output())
    return (one_thread_each(file_of(node), node.op, batch, *args),)


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "state": _state,
    "next_state": elementwise,
    "increment": elementwise,
    "gather_samples": _gather_samples,
    "normalize": _normalize,
    "one_hot": _one_hot,
    "sample_index": _sample_index,
}
"""Readable kernels."""
