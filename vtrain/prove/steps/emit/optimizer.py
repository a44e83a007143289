"""The update of parameters by their gradients."""

from __future__ import annotations

from typing import Final

from vtrain.errors import CircuitError
from vtrain.graph.step import STEP_STATE
from vtrain.ops.optimizer import DECAY_EXPONENT
from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.values import Lin, Tensor
from vtrain.prove.steps.builder import Emitters, StepBuilder, attr, bound_shift
from vtrain.spec.number import STORAGE, rs_int
from vtrain.wire.graph import Node, Ref


def _emit_momentum(s: StepBuilder, ref: Ref, node: Node) -> None:
    """V' = sat32(V + rs(g, s) - rs(V decay, 16)) = sat32(rs(g + 2^s (V - rs(V decay, 16)), s))."""
    b = s.b
    velocity, grad = node.inputs
    out = s.take_next(ref, node)
    name = s.state_of[velocity]
    decay, shift = attr(node.attrs, "decay"), attr(node.attrs, "shift")
    v, g = s.lin(velocity), s.lin(grad)
    grad_kind = s.type_of(grad)
    decayed = _decay(b, node.name, s.before[name], decay)
    whole = g * (1 << max(-shift, 0)) + (v - decayed) * (1 << max(shift, 0))
    reach = bound_shift(grad_kind.lo, grad_kind.hi, shift) + bound_kept_momentum(decay)
    _finish_state(s, node, whole, max(shift, 0), out, reach)
    s.values[ref] = out


def bound_kept_momentum(decay: int) -> int:
    """The largest |V - rs(V decay, 16)| of an int32 V, which has it at one of its ends.

    It never falls while V grows.  A momentum that loses enough has room for any gradient: no clamp.
    """
    return max(abs(v - rs_int(v * decay, DECAY_EXPONENT)) for v in STORAGE["i32"])


def _decay(b: CircuitBuilder, name: str, v: Tensor, decay: int) -> Lin:
    """rs(v decay, 16): with v = 2^16 hi + lo - 2^31, hi decay - 2^15 decay + rs(lo decay, 16).

    Where the decay is neither 0 nor 1, this shows that v is an integer of 32 bits.
    """
    if decay == 1 << DECAY_EXPONENT:
        return v.lin()
    if decay == 0:
        return v.lin() * 0
    offset = 1 << 31
    high = b.limb(f"{name}/high", v.shape, lambda values: values[v] + offset >> 16)
    low = b.limb(f"{name}/low", v.shape, lambda values: values[v] + offset & 0xFFFF)
    b.zero(f"{name}/parts", high * (1 << 16) + low - offset - v.lin())
    # lo decay + 2^15 < 2^32: the quotient is a limb.
    half = 1 << 15
    quotient = b.limb(f"{name}/decayed", v.shape, lambda values: values[low] * decay + half >> 16)
    rest = b.limb(
        f"{name}/decayed rest", v.shape, lambda values: values[low] * decay + half & 0xFFFF
    )
    b.zero(f"{name}/decayed", low * decay + half - quotient * (1 << 16) - rest)
    return high * decay - (decay << 15) + quotient


def _emit_sgd_update(s: StepBuilder, ref: Ref, node: Node) -> None:
    """w' = sat32(w - rs(V rate, s)) = sat32(rs(2^s w - V rate - 1, s)) for s > 0.

    For rs(-a - 1, s) = -rs(a, s): with a + h = 2^s q + r, -a - 1 + h = -2^s q + (2^s - 1 - r).
    """
    weight, velocity, _ = node.inputs
    out = s.take_next(ref, node)
    if s.value(node.inputs[2]) is not s.rate:
        raise CircuitError("is by another rate than the schedule's", where=node.name)
    shift = attr(node.attrs, "shift")
    v = s.tensor(velocity)
    step = v.times(s.rate)
    if shift > 0:
        whole = s.lin(weight) * (1 << shift) - step - 1
    else:
        whole = s.lin(weight) - step * (1 << -shift)
    kind, rate = s.type_of(velocity), s.type_of(node.inputs[2])
    most = max(-kind.lo, kind.hi) * max(abs(rate.lo), abs(rate.hi))
    reach = bound_shift(-most, most, shift) + (1 << 31)
    _finish_state(s, node, whole, max(shift, 0), out, reach)
    s.values[ref] = out


def _finish_state(
    s: StepBuilder, node: Node, whole: Lin, shift: int, out: Tensor, reach: int
) -> None:
    gadgets.saturating_shift(s.b, node.name, whole, shift, "i32", out, reach, clamps=s.clamps)


def _emit_schedule(s: StepBuilder, ref: Ref, node: Node) -> None:
    """The rate that the verifier computes: that of the step's own number."""
    if s.graph.find("schedule") != ref.node or s.state_of.get(node.inputs[0]) != STEP_STATE:
        raise CircuitError("is no rate of the step's own number", where=node.name)
    s.values[ref] = s.rate


EMITTERS: Final[Emitters] = {
    "schedule": _emit_schedule,
    "momentum": _emit_momentum,
    "sgd_update": _emit_sgd_update,
}
