"""The update of parameters by their gradients."""

from __future__ import annotations

from typing import Final

import numpy as np

from vtrain.commit.kzg_layout import COUNTER
from vtrain.errors import CircuitError
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.ops.optimizer import DECAY_EXPONENT
from vtrain.prove.tiles.builder import Emitters, TileBuilder
from vtrain.prove.tiles.emit.rescale import rescale
from vtrain.prove.tiles.statements import StepFacts, TiledValue, add
from vtrain.wire.graph import Node, Ref


def _emit_momentum(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """V' = sat32(V + rs(g, s) - rs(V decay, 16)) = sat32(rs(g + 2^s (V - rs(V decay, 16)), s))."""
    v = s.value(node.inputs[0])
    g = s.value_in(node.inputs[1], v.grid)
    decay, shift = attr_int(node.attrs, "decay"), attr_int(node.attrs, "shift")
    up, down = max(-shift, 0), max(shift, 0)
    if decay == 1 << DECAY_EXPONENT:
        whole = add((1 << up, g))
    elif decay:
        decayed = rescale(s, f"{node.name}/decayed", node, v, "i64", decay, 0, DECAY_EXPONENT)
        whole = add((1 << up, g), (1 << down, v), (-1 << down, decayed))
    else:
        whole = add((1 << up, g), (1 << down, v))
    return rescale(s, node.name, node, whole, "i32", 1, 0, down, ref)


def _emit_sgd_update(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """w' = sat32(w - rs(V rate, s)) = sat32(rs(2^s w - V rate - 1, s)) for s > 0.

    For rs(-a - 1, s) = -rs(a, s): with a + h = 2^s q + r, -a - 1 + h = -2^s q + (2^s - 1 - r).
    """
    weight, velocity, rate = node.inputs
    schedule = s.graph.nodes[rate.node]
    if schedule.op != "schedule":
        raise CircuitError("its rate is not that of a schedule", where=node.name)
    clock = s.graph.nodes[schedule.inputs[0].node]
    if clock.op != "state" or clock.attrs["name"] != COUNTER:
        # Another count may be any number: statements take the rate for the step's own.
        raise CircuitError("its rate does not follow the counter of steps", where=node.name)
    w = s.value(weight)
    v = s.value_in(velocity, w.grid)
    shift = attr_int(node.attrs, "shift")
    up, down = max(-shift, 0), max(shift, 0)

    def find_whole(facts: StepFacts) -> TiledValue:
        done = np.asarray(facts.step - 1, dtype=np.int64)
        mantissa = int(TABLE["schedule"].law(schedule.attrs, [done]))
        return add((1 << down, w), (-mantissa << up, v))

    offset = -1 if shift > 0 else 0
    return rescale(s, node.name, node, find_whole, "i32", 1, offset, down, ref)


EMITTERS: Final[Emitters] = {
    "momentum": _emit_momentum,
    "sgd_update": _emit_sgd_update,
}
