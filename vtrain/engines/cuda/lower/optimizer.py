"""Launches of the kernels of ``vtrain.ops.optimizer``: momentum, update, schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.launch import Launch, Operand, Output, Saturated, one_thread_each
from vtrain.engines.cuda.lower.common import Lowering, Types, file_of, integers
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


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "momentum": _momentum,
    "sgd_update": _sgd_update,
    "schedule": _schedule,
}
"""Readable kernels."""
