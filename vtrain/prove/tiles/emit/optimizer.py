"""The update of parameters by their gradients."""

from __future__ import annotations

from math import isqrt
from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.ops.base import attr_int
from vtrain.ops.optimizer import DECAY_EXPONENT, FACTOR_EXPONENT, SQUARE_LIFT
from vtrain.prove.tiles.builder import Emitters, TileBuilder, require_range
from vtrain.prove.tiles.circuits import GATE_REACH, WIDE_REACH
from vtrain.prove.tiles.emit.activation import gate
from vtrain.prove.tiles.emit.integers import (
    cap,
    hold,
    link_quotient,
    make_masks,
    make_one,
    multiply,
    product,
    quotient_of,
    root,
    spread,
)
from vtrain.prove.tiles.emit.norm import require_no_negative
from vtrain.prove.tiles.emit.rescale import rescale
from vtrain.prove.tiles.grid import Array
from vtrain.prove.tiles.numbers import CLOCKS
from vtrain.prove.tiles.statements import (
    StepFacts,
    TileContents,
    TiledValue,
    add,
)
from vtrain.spec.number import SATURATION, rs_int
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
    if rate not in s.numbers:
        if s.graph.nodes[rate.node].op in CLOCKS:
            raise CircuitError(
                "has a rate that follows another counter than that of the steps: only a schedule "
                "of the steps is a public number",
                where=node.name,
            )
        raise CircuitError(
            f"has the rate of {s.graph.nodes[rate.node].name}, which is no schedule: only that of "
            "a schedule of the steps is a public number",
            where=node.name,
        )
    w = s.value(weight)
    v = s.value_in(velocity, w.grid)
    shift = attr_int(node.attrs, "shift")
    up, down = max(-shift, 0), max(shift, 0)

    def find_whole(facts: StepFacts) -> TiledValue:
        mantissa = s.numbers.compute(rate, facts.step)
        return add((1 << down, w), (-mantissa << up, v))

    offset = -1 if shift > 0 else 0
    return rescale(s, node.name, node, find_whole, "i32", 1, offset, down, ref)


def _emit_adam_mean(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """sat32(m + rs(d rate, shift)) with d = 2^lift g - m: sat32(rs(2^shift m + d rate, shift)), as
    2^shift m takes no part in the rounding."""
    m = s.value(node.inputs[0])
    g = s.value_in(node.inputs[1], m.grid)
    lift, rate, shift = (attr_int(node.attrs, name) for name in ("lift", "rate", "shift"))
    whole = add(((1 << shift) - rate, m), (rate << lift, g))
    return rescale(s, node.name, node, whole, "i32", 1, 0, shift, ref)


def _emit_adam_square(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """v + rs((2^16 g^2 - v) rate, shift), in the same way."""
    v = s.value(node.inputs[0])
    g = s.value_in(node.inputs[1], v.grid)
    rate, shift = attr_int(node.attrs, "rate"), attr_int(node.attrs, "shift")
    squares = product(s, f"{node.name}/squares", node, g, g)
    whole = add(((1 << shift) - rate, v), (rate << SQUARE_LIFT, squares))
    if shift == 0:
        return whole
    return rescale(s, node.name, node, whole, "i64", 1, 0, shift, ref)


def _emit_adam_direction(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """sat32(floor(2^shift m / (isqrt(v) + epsilon))): that the quotient is an integer, the
    statement that saturates it says."""
    mean, square = node.inputs
    m = s.value(mean)
    v = s.value_in(square, m.grid)
    shift, epsilon = attr_int(node.attrs, "shift"), attr_int(node.attrs, "epsilon")
    most = s.graph.type_of(square).hi
    masks = make_masks(s, node.name, m.grid)
    whole = add((1 << shift, m))
    divisor = add((1, root(s, f"{node.name}/root", node, v, most)), (epsilon, masks.one))
    name = f"{node.name}/quotient"
    quotient = s.tensor(name, m.grid, quotient_of(whole, divisor))
    link_quotient(s, name, node, whole, divisor, quotient, masks, isqrt(most) + epsilon)
    return rescale(s, node.name, node, quotient, "i32", 1, 0, 0, ref)


def _emit_sign(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """y in -1 .. 1 with x y >= y^2 and x (1 - y^2) = 0: x y >= 1 where y is not 0, and x = 0 where
    it is."""
    (source,) = node.inputs
    x, kind = s.value(source), s.graph.type_of(source)
    y = s.commit(ref, x.grid)
    hold(s, node.name, node, y, -1, 1)
    size = product(s, f"{node.name}/size", node, x, y)
    square = product(s, f"{node.name}/square", node, y, y)
    more, most = add((1, size), (-1, square)), max(-kind.lo, kind.hi, 0)
    hold(s, f"{node.name}/more", node, more, 0, most)
    one = make_one(s, node.name, x.grid)
    multiply(s, node, x, add((1, one), (-1, square)), None)
    return y


def _emit_capped_square(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """min(rs(x, shift)^2, 2^bits): saturating to int32 first changes nothing, as bits < 60."""
    (source,) = node.inputs
    x, kind = s.value(source), s.graph.type_of(source)
    bits, shift = attr_int(node.attrs, "bits"), attr_int(node.attrs, "shift")
    up, down = max(-shift, 0), max(shift, 0)
    aligned = rescale(s, f"{node.name}/aligned", node, add((1 << up, x)), "i32", 1, 0, down)
    ends = (abs(rs_int(end, shift)) for end in (kind.lo, kind.hi))
    most = min(max(ends), SATURATION["i32"][1]) ** 2
    square = product(s, f"{node.name}/square", node, aligned, aligned)
    if most <= 1 << bits:
        return square

    def compute(contents: TileContents, block: int) -> Array:
        return np.minimum(contents.combine(square.at(block)), 1 << bits)

    name = f"{node.name}/capped"
    y = s.tensor(name, x.grid, compute)
    one = make_one(s, node.name, x.grid)
    cap(s, name, node, square, y, 1 << bits, most, one)
    return y


def _emit_clip_factor(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """floor(2^15 limit / max(isqrt(s), limit)), which is 2^15 where the root is at most the limit,
    also where s is 0."""
    (source,) = node.inputs
    require_no_negative(s, node, source)
    total, limit = s.value(source), attr_int(node.attrs, "limit")
    most = max(s.graph.type_of(source).hi, 0)
    if max(isqrt(most), limit) > GATE_REACH:
        raise CircuitError(
            f"may have a norm above {GATE_REACH}, or has such a limit: clip by fewer fraction bits",
            where=node.name,
        )
    masks = make_masks(s, node.name, total.grid)
    norm = root(s, f"{node.name}/root", node, total, most)
    beyond = add((1, norm), (-limit, masks.one))
    above = gate(s, f"{node.name}/above", node, beyond, beyond)
    divisor = add((limit, masks.one), (1, above))
    whole = add((limit << FACTOR_EXPONENT, masks.one))
    name = f"{node.name}/quotient"
    factor = s.tensor(name, total.grid, quotient_of(whole, divisor))
    hold(s, name, node, factor, 0, 1 << FACTOR_EXPONENT)
    link_quotient(s, name, node, whole, divisor, factor, masks, max(isqrt(most), limit))
    return factor


def _emit_scale_by(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """rs(x factor, shift), of a factor that is committed to."""
    x, factor = (s.value(item) for item in node.inputs)
    shift = attr_int(node.attrs, "shift")
    if shift > 0:
        require_range(s, node, ref, WIDE_REACH)
    factors = spread(s, f"{node.name}/spread", node, factor, lambda flat: flat * 0, x.grid)
    whole = product(s, f"{node.name}/product", node, x, factors)
    if shift <= 0:
        return add((1 << -shift, whole))
    return rescale(s, node.name, node, whole, "i64", 1, 0, shift, ref)


EMITTERS: Final[Emitters] = {
    "momentum": _emit_momentum,
    "sgd_update": _emit_sgd_update,
    "adam_mean": _emit_adam_mean,
    "adam_square": _emit_adam_square,
    "adam_direction": _emit_adam_direction,
    "sign": _emit_sign,
    "capped_square": _emit_capped_square,
    "clip_factor": _emit_clip_factor,
    "scale_by": _emit_scale_by,
}
