"""Launches of the kernels of ``vtrain.ops.optimizer``: momentum, Adam, update, rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Operand, Output, Saturated, one_thread_each
from vtrain.engines.cuda.lower.common import Lowering, Types, file_of, integers, launch, operand
from vtrain.ops.base import attr_int, attr_ints
from vtrain.wire.graph import Node


def _momentum(node: Node, inputs: Types) -> tuple[Launch, ...]:
    decay, shift = attr_int(node.attrs, "decay"), attr_int(node.attrs, "shift")
    args = (Operand(0), Operand(1), decay, shift, Output(), Saturated())
    return (one_thread_each(file_of(node), node.op, inputs[0].size, *args),)


def _sgd_update(node: Node, inputs: Types) -> tuple[Launch, ...]:
    shift = attr_int(node.attrs, "shift")
    args = (Operand(0), Operand(1), Operand(2), shift, Output(), Saturated())
    return (one_thread_each(file_of(node), node.op, inputs[0].size, *args),)


def _schedule(node: Node, inputs: Types) -> tuple[Launch, ...]:
    starts, rates = attr_ints(node.attrs, "starts"), attr_ints(node.attrs, "rates")
    args = (Operand(0), integers(*starts), integers(*rates), len(starts), Output())
    return (one_thread_each(file_of(node), node.op, 1, *args),)


def _adam_mean(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("lift", "rate", "shift")]
    return launch(node, Operand(0), Operand(1), *numbers, Output(), Saturated())


def _adam_square(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("rate", "shift")]
    return launch(node, Operand(0), Operand(1), *numbers, Output())


def _adam_direction(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("shift", "epsilon")]
    return launch(node, Operand(0), Operand(1), *numbers, Output(), Saturated())


def _adam_correction(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("beta1", "beta2")]
    return launch(node, Operand(0), *numbers, Output())


def _sign(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, *operand(0, inputs), Output())


def _capped_square(node: Node, inputs: Types) -> tuple[Launch, ...]:
    numbers = [attr_int(node.attrs, name) for name in ("shift", "bits")]
    return launch(node, *operand(0, inputs), *numbers, Output())


def _clip_factor(node: Node, inputs: Types) -> tuple[Launch, ...]:
    return launch(node, Operand(0), attr_int(node.attrs, "limit"), Output())


def _scale_by(node: Node, inputs: Types) -> tuple[Launch, ...]:
    shift = attr_int(node.attrs, "shift")
    return launch(node, *operand(0, inputs), Operand(1), shift, Output())


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "momentum": _momentum,
    "sgd_update": _sgd_update,
    "schedule": _schedule,
    "schedule_linear": _schedule,
    "sign": _sign,
    "capped_square": _capped_square,
    "clip_factor": _clip_factor,
    "scale_by": _scale_by,
    "adam_mean": _adam_mean,
    "adam_square": _adam_square,
    "adam_direction": _adam_direction,
    "adam_correction": _adam_correction,
}
"""Readable kernels."""
