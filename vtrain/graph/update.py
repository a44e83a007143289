"""The update of a step: from the gradients of parameters to their new master weights.

Each optimizer is one class of integer constants with the nodes that it emits; which states it
keeps follows from those nodes.  Gradients are exact sums over a batch.  What the mean of them needs
is folded into constants, or drops out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vtrain.errors import GraphError
from vtrain.graph.builder import GraphBuilder
from vtrain.ops.base import attr_int
from vtrain.ops.optimizer import FACTOR_EXPONENT, SQUARE_LIFT
from vtrain.ops.source import SQUARES
from vtrain.spec.number import MASTER_EXPONENT, MOMENTUM_EXPONENT
from vtrain.wire.graph import Ref, StepGraph

MEAN_LIFT = 15
"""Fraction bits of a mean beyond those of its int16 gradients: as many as int32 holds."""
DIRECTION_EXPONENT = 24
"""Fraction bits of the direction of Adam, within +-128."""
CLIP_BITS = 17
"""Bits of the norm that gradients are clipped to."""
SQUARES_BITS = 59
"""Bits of the sum of all squares."""
RATE_BITS = 16
"""Bits of the mantissa of a learning rate, and of other factors."""
PARAM_PREFIX = "param/"
"""What names of states of parameters begin with."""

State = dict[str, npt.NDArray[np.signedinteger]]


def round_half_up(value: Fraction) -> int:
    """floor(value + 1/2)."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def floor_log2(value: Fraction) -> int:
    """The integer n with 2^n <= value < 2^(n+1), value > 0."""
    n = value.numerator.bit_length() - value.denominator.bit_length()
    return n if value >= Fraction(2) ** n else n - 1


def param_state(name: str) -> str:
    """State name of a parameter's master weights."""
    return f"{PARAM_PREFIX}{name}"


def momentum_state(name: str) -> str:
    """State name of a parameter's momentum."""
    return f"momentum/{name}"


def mean_state(name: str) -> str:
    """State name of a parameter's moving average of gradients."""
    return f"mean/{name}"


def square_state(name: str) -> str:
    """State name of a parameter's moving average of squared gradients."""
    return f"{SQUARES}{name}"


@dataclass(frozen=True)
class Scalar:
    """A factor: mantissa * 2^-exponent, the mantissa of 16 bits."""

    mantissa: int
    exponent: int


@dataclass(frozen=True)
class Share:
    """What a moving average takes of the new: rate / 2^shift."""

    rate: int
    shift: int


@dataclass(frozen=True)
class Rates:
    """The learning rate of each step: 16-bit mantissas at ``exponent``.

    Each holds from its start on; where it is ``linear``, it goes to the next on a straight line.
    """

    starts: tuple[int, ...]
    rates: tuple[int, ...]
    exponent: int
    linear: bool = False

    def emit(self, b: GraphBuilder, t: Ref) -> Ref:
        """The rate of step ``t``."""
        return b.emit(
            "schedule_linear" if self.linear else "schedule",
            "rate",
            (t,),
            starts=self.starts,
            rates=self.rates,
            exponent=self.exponent,
        )


@dataclass(frozen=True)
class Clip:
    """Clipping by the norm of all gradients together.

    ``norm`` is of the sum of gradients: that of the mean times ``count_terms``.
    """

    norm: Fraction

    def emit(self, b: GraphBuilder, gradients: Mapping[str, Ref]) -> dict[str, Ref]:
        """The gradients, times min(1, norm / their norm): a factor of 15 fraction bits.

        The norm is of gradients with as many fraction bits as give ``norm`` 17 bits.  Each square
        is held to what so many of them may add up to.  A gradient whose product with the factor may
        be beyond int64 goes without the bits below its upper 40.
        """
        gradients = {name: self._narrow(b, name, ref) for name, ref in gradients.items()}
        exponent = CLIP_BITS - 1 - floor_log2(self.norm)
        count = sum(b.type_of(ref).size for ref in gradients.values())
        bits = SQUARES_BITS - (count - 1).bit_length()
        totals = []
        for name, ref in gradients.items():
            shift = b.type_of(ref).exponent - exponent
            squares = b.emit("capped_square", f"{name}/squares", (ref,), shift=shift, bits=bits)
            totals.append(b.emit("sum", f"{name}/square_norm", (squares,)))
        total = totals[0]
        for other in totals[1:]:
            total = b.emit("add", "clip/square_norm", (total, other), shift_a=0, shift_b=0)
        limit = round_half_up(self.norm * Fraction(2) ** exponent)
        factor = b.emit("clip_factor", "clip/factor", (total,), limit=limit)
        return {
            name: b.emit("scale_by", f"{name}/clipped", (ref, factor), shift=FACTOR_EXPONENT)
            for name, ref in gradients.items()
        }

    def _narrow(self, b: GraphBuilder, name: str, ref: Ref) -> Ref:
        kind = b.type_of(ref)
        fits = max(-kind.lo, kind.hi) << FACTOR_EXPONENT < 1 << 63
        return ref if fits else b.narrow(f"{name}/unclipped", ref)


@dataclass(frozen=True)
class ClipReach:
    """How far the clipping of a graph goes, as multiples of the norm that it clips to.

    The square of an element that is above ``whole`` times that norm is held, so that gradients of R
    times the norm may be left as long as R / ``whole`` times it.  The factor is rounded down, by
    less than 1 % while gradients are at most ``precise`` times the norm.
    """

    whole: float
    precise: float
    parameters: int


def find_clip_reach(graph: StepGraph) -> ClipReach | None:
    """How far the gradients of a graph are clipped as they should be; None where they are not."""
    factors = [node for node in graph.nodes if node.op == "clip_factor"]
    squares = [node for node in graph.nodes if node.op == "capped_square"]
    if not factors or not squares:
        return None
    limit = attr_int(factors[0].attrs, "limit")
    bits = min(attr_int(node.attrs, "bits") for node in squares)
    count = sum(graph.type_of(node.inputs[0]).size for node in squares)
    return ClipReach(2.0 ** (bits / 2) / limit, (1 << FACTOR_EXPONENT) / 100, count)


@dataclass(frozen=True)
class Parameter:
    """A parameter that is trained: its master weights, and the exact sum of its gradients.

    ``early`` is a state of it that was read before the forward pass, if any.
    """

    name: str
    weight: Ref
    gradient: Ref
    decays: bool
    early: Ref | None


class Optimizer(Protocol):
    """Integer constants, and the nodes that apply them."""

    @property
    def schedule(self) -> Rates:
        """The learning rate of each step."""
        ...

    def read_early(self, b: GraphBuilder, name: str, weight: Ref) -> Ref | None:
        """Read a state of a parameter beside its weights, if its type is known beforehand."""
        ...

    def emit(
        self, b: GraphBuilder, t: Ref, rate: Ref, params: Sequence[Parameter]
    ) -> dict[str, Ref]:
        """The new states of ``params``, by name: their weights, and what is kept beside them."""
        ...

    def make_states(self, name: str, values: npt.NDArray[np.int32]) -> State:
        """What is kept beside the weights ``values``, before step 0: zeros."""
        ...


@dataclass(frozen=True)
class Momentum:
    """SGD with momentum.  ``decay`` = round(2^16 (1 - mu)).

    Rates are 16-bit mantissas at ``exponent``, each from its step in ``starts`` on; the factor
    1 / ``count_terms`` of the mean gradient is folded into them.  ``weight_decay`` has the inverse
    factor: weights times it are added to the sum of gradients.
    """

    decay: int
    starts: tuple[int, ...]
    rates: tuple[int, ...]
    exponent: int
    nesterov: bool = False
    weight_decay: Scalar | None = None
    linear: bool = False

    @property
    def schedule(self) -> Rates:
        return Rates(self.starts, self.rates, self.exponent, self.linear)

    def make_states(self, name: str, values: npt.NDArray[np.int32]) -> State:
        return {momentum_state(name): np.zeros_like(values)}

    def read_early(self, b: GraphBuilder, name: str, weight: Ref) -> Ref | None:
        return read_state(b, momentum_state(name), weight, "i32", MOMENTUM_EXPONENT)

    def emit(
        self, b: GraphBuilder, t: Ref, rate: Ref, params: Sequence[Parameter]
    ) -> dict[str, Ref]:
        """V = mu V + g; w -= rate V, or by Nesterov w -= rate (mu V + g)."""
        after: dict[str, Ref] = {}
        for param in params:
            state, velocity = momentum_state(param.name), param.early
            if velocity is None:
                raise GraphError("has no momentum", where=f"parameter {param.name}")
            gradient = self._add_decay(b, param)
            shift = b.type_of(gradient).exponent - MOMENTUM_EXPONENT
            velocity = b.emit(
                "momentum", f"{state}/next", (velocity, gradient), decay=self.decay, shift=shift
            )
            after[state] = direction = velocity
            if self.nesterov:
                # mu V + g again, of the new V.
                direction = b.emit(
                    "momentum",
                    f"{state}/ahead",
                    (velocity, gradient),
                    decay=self.decay,
                    shift=shift,
                )
            after[param_state(param.name)] = move(b, param.name, param.weight, direction, rate)
        return after

    def _add_decay(self, b: GraphBuilder, param: Parameter) -> Ref:
        """The gradient, and the weights' share in it."""
        factor = self.weight_decay
        if factor is None or not param.decays:
            return param.gradient
        exponent = b.type_of(param.gradient).exponent
        finest = max(exponent, MASTER_EXPONENT)
        share = b.rescale(
            f"{param.name}/decay",
            param.weight,
            finest,
            dtype="i64",
            multiplier=factor.mantissa,
            multiplier_exponent=factor.exponent,
        )
        return b.emit(
            "add",
            f"{param.name}/grad_decayed",
            (param.gradient, share),
            shift_a=finest - exponent,
            shift_b=0,
        )


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay.

    ``mean`` and ``square`` take 1 - beta1 and 1 - beta2 of the new; ``beta1`` and ``beta2`` have 31
    fraction bits.  ``epsilon`` is of the sum of gradients: that of the mean times ``count_terms``.
    """

    schedule: Rates
    mean: Share
    square: Share
    beta1: int
    beta2: int
    epsilon: Fraction
    weight_decay: Scalar | None = None

    def make_states(self, name: str, values: npt.NDArray[np.int32]) -> State:
        return {
            mean_state(name): np.zeros_like(values),
            square_state(name): np.zeros(values.shape, np.int64),
        }

    def read_early(self, b: GraphBuilder, name: str, weight: Ref) -> Ref | None:
        return None  # their exponents are those of the gradients

    def emit(
        self, b: GraphBuilder, t: Ref, rate: Ref, params: Sequence[Parameter]
    ) -> dict[str, Ref]:
        """w -= rate wd w, then w -= rate c u: u = m / (sqrt(v) + epsilon), c corrects the bias."""
        correction = b.emit(
            "adam_correction", "correction", (t,), beta1=self.beta1, beta2=self.beta2
        )
        product = b.emit("mul", "rate/product", (rate, correction))
        corrected = b.rescale("rate/corrected", product, self.schedule.exponent, dtype="i64")
        decay = emit_decay_rate(b, rate, self.weight_decay)
        after: dict[str, Ref] = {}
        for param in params:
            gradient = b.as_operand(param.gradient, f"update/{param.name}")
            mean, square = self._average(b, param, gradient)
            after |= {mean_state(param.name): mean, square_state(param.name): square}
            direction = self._divide(b, param.name, mean, square)
            weight = shrink(b, param, decay)
            after[param_state(param.name)] = move(b, param.name, weight, direction, corrected)
        return after

    def _average(self, b: GraphBuilder, param: Parameter, gradient: Ref) -> tuple[Ref, Ref]:
        tensor, kept = b.type_of(gradient), mean_state(param.name)
        mean = read_state(b, kept, gradient, "i32", tensor.exponent + MEAN_LIFT)
        mean = emit_mean(b, f"{kept}/next", mean, gradient, self.mean)
        state = square_state(param.name)
        square = read_state(b, state, gradient, "i64", 2 * tensor.exponent + SQUARE_LIFT)
        following = b.emit(
            "adam_square",
            f"{state}/next",
            (square, gradient),
            rate=self.square.rate,
            shift=self.square.shift,
        )
        return mean, following

    def _divide(self, b: GraphBuilder, name: str, mean: Ref, square: Ref) -> Ref:
        mean_exponent, root_exponent = b.type_of(mean).exponent, b.type_of(square).exponent // 2
        epsilon = round_half_up(self.epsilon * Fraction(2) ** root_exponent)
        return b.emit(
            "adam_direction",
            f"{name}/direction",
            (mean, square),
            epsilon=min(max(epsilon, 1), 1 << 31),
            shift=DIRECTION_EXPONENT - mean_exponent + root_exponent,
        )


@dataclass(frozen=True)
class Lion:
    """Lion (Chen et al. 2023), with decoupled weight decay.

    The direction is the sign of the mean that takes ``look`` = 1 - beta1 of the new; the mean that
    is kept takes ``mean`` = 1 - beta2 of it.
    """

    schedule: Rates
    look: Share
    mean: Share
    weight_decay: Scalar | None = None

    def make_states(self, name: str, values: npt.NDArray[np.int32]) -> State:
        return {mean_state(name): np.zeros_like(values)}

    def read_early(self, b: GraphBuilder, name: str, weight: Ref) -> Ref | None:
        return None  # its exponent is that of the gradient

    def emit(
        self, b: GraphBuilder, t: Ref, rate: Ref, params: Sequence[Parameter]
    ) -> dict[str, Ref]:
        """w -= rate wd w, then w -= rate sign(beta1 m + (1 - beta1) g)."""
        decay = emit_decay_rate(b, rate, self.weight_decay)
        after: dict[str, Ref] = {}
        for param in params:
            gradient = b.as_operand(param.gradient, f"update/{param.name}")
            state = mean_state(param.name)
            mean = read_state(b, state, gradient, "i32", b.type_of(gradient).exponent + MEAN_LIFT)
            ahead = emit_mean(b, f"{param.name}/ahead", mean, gradient, self.look)
            direction = b.emit("sign", f"{param.name}/direction", (ahead,))
            after[state] = emit_mean(b, f"{state}/next", mean, gradient, self.mean)
            weight = shrink(b, param, decay)
            after[param_state(param.name)] = move(b, param.name, weight, direction, rate)
        return after


def read_state(b: GraphBuilder, name: str, like: Ref, dtype: str, exponent: int) -> Ref:
    """The state tensor ``name`` of the shape of ``like``, as it is before the step."""
    shape = b.type_of(like).shape
    return b.emit("state", name, (), name=name, dtype=dtype, shape=shape, exponent=exponent)


def emit_mean(b: GraphBuilder, name: str, mean: Ref, gradient: Ref, share: Share) -> Ref:
    """The moving average ``mean`` with a share of an int16 gradient."""
    return b.emit(
        "adam_mean",
        name,
        (mean, gradient),
        lift=MEAN_LIFT,
        rate=share.rate,
        shift=share.shift,
    )


def emit_decay_rate(b: GraphBuilder, rate: Ref, factor: Scalar | None) -> Ref | None:
    """The learning rate times the weight decay, a mantissa of 16 bits; None where there is none."""
    if factor is None:
        return None
    exponent = b.type_of(rate).exponent + factor.exponent - RATE_BITS
    return b.rescale(
        "rate/decay",
        rate,
        exponent,
        dtype="i64",
        multiplier=factor.mantissa,
        multiplier_exponent=factor.exponent,
    )


def shrink(b: GraphBuilder, param: Parameter, decay: Ref | None) -> Ref:
    """The weights less ``decay`` times themselves."""
    if decay is None or not param.decays:
        return param.weight
    return b.emit(
        "sgd_update",
        f"{param_state(param.name)}/decayed",
        (param.weight, param.weight, decay),
        shift=b.type_of(decay).exponent,
    )


def move(b: GraphBuilder, name: str, weight: Ref, direction: Ref, rate: Ref) -> Ref:
    """The new weights: less ``rate`` times ``direction``."""
    shift = b.type_of(direction).exponent + b.type_of(rate).exponent - MASTER_EXPONENT
    return b.emit("sgd_update", f"{param_state(name)}/next", (weight, direction, rate), shift=shift)
