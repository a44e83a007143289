"""The table ``optimizer`` of a task file, and the integer constants that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any, Final

from vtrain.errors import TaskError
from vtrain.graph.update import (
    RATE_BITS,
    AdamW,
    Clip,
    Lion,
    Momentum,
    Optimizer,
    Rates,
    Scalar,
    Share,
    floor_log2,
    round_half_up,
)
from vtrain.ops.optimizer import BETA_EXPONENT, DECAY_EXPONENT
from vtrain.spec.number import MASTER_EXPONENT, MOMENTUM_EXPONENT
from vtrain.train.names import refuse_choice
from vtrain.train.schedule import Curve, parse_schedule
from vtrain.train.table import Table, parse_number

_COMMON: Final = (*("kind", "learning_rate", "weight_decay", "no_decay", "frozen", "clip_norm"),)
_KEYS: Final = {
    "sgd": (*_COMMON, "momentum", "nesterov"),
    "adamw": (*_COMMON, "betas", "eps"),
    "lion": (*_COMMON, "betas"),
}
_DECAYS: Final = {"sgd": Fraction(0), "adamw": Fraction(1, 100), "lion": Fraction(0)}
"""Default weight decay: PyTorch's, and of Lion its authors'."""
_BETAS: Final = {
    "adamw": (Fraction(9, 10), Fraction(999, 1000)),
    "lion": (Fraction(9, 10), Fraction(99, 100)),
}
_MOST_BETA: Final = Fraction(999_999, 1_000_000)
_WORDS: Final = {
    "adam": ("adamw", "weight_decay = 0"),
    "nesterov": ("sgd", "nesterov = true"),
    "momentum": ("sgd", "momentum = 0.9"),
}
MOST_FACTOR_EXPONENT: Final = 32
"""Fraction bits of a multiplier that rescales, at most."""
_LEAST_SHIFT: Final = -62
_MOST_SHIFT: Final = 64
"""Shifts of an update."""
_MOST_LISTED: Final = 20
_MOST_NORM: Final = 10**9


@dataclass(frozen=True)
class OptimizerTable:
    """The table ``optimizer``.

    ``curve`` has the learning rates; ``no_decay`` and ``frozen`` are patterns of names of
    parameters.  ``momentum`` and ``nesterov`` are SGD's, ``betas`` Adam's and Lion's, ``eps``
    Adam's.
    """

    kind: str
    curve: Curve
    weight_decay: Fraction = Fraction(0)
    no_decay: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    clip_norm: Fraction | None = None
    momentum: Fraction = Fraction(0)
    nesterov: bool = False
    betas: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0))
    eps: Fraction = Fraction(0)

    @property
    def rates(self) -> tuple[tuple[int, Fraction], ...]:
        """Steps and their learning rates, between which ``curve`` says what holds."""
        return self.curve.knots


def parse_optimizer(top: Table, steps: int) -> OptimizerTable:
    """Read the tables ``optimizer`` and ``schedule`` of a run of ``steps``.

    TaskError names the key at fault.
    """
    values = top.mapping("optimizer")
    kind = _parse_kind(values.get("kind", "sgd"))
    for key in values:
        owners = [other for other, keys in _KEYS.items() if key in keys]
        if owners and kind not in owners:
            raise TaskError(
                f"is a key of {' and '.join(owners)}; kind is {kind}", where=f"optimizer.{key}"
            )
    table = top.table("optimizer", *_KEYS[kind])
    decay = table.number("weight_decay", _DECAYS[kind])
    if not 0 <= decay <= 1:
        raise TaskError("must lie in [0, 1]", where="optimizer.weight_decay")
    clip = table.number("clip_norm") if table.has("clip_norm") else None
    if clip is not None and not 0 < clip <= _MOST_NORM:
        raise TaskError("must be above 0 and at most 10^9", where="optimizer.clip_norm")
    return OptimizerTable(
        kind=kind,
        curve=_parse_curve(top, table, steps),
        clip_norm=clip,
        weight_decay=decay,
        no_decay=_parse_patterns(table, "no_decay"),
        frozen=_parse_patterns(table, "frozen"),
        **(_parse_sgd(table) if kind == "sgd" else _parse_betas(table, kind)),
    )


def _parse_kind(value: object) -> str:
    if not isinstance(value, str) or value not in _KEYS:
        refuse_choice(value, _KEYS, "optimizer.kind", _WORDS)
    return value


def _parse_curve(top: Table, table: Table, steps: int) -> Curve:
    rates = _parse_rates(table)
    if not top.has("schedule"):
        return Curve(rates, linear=False)
    if len(rates) > 1 or isinstance(table.value("learning_rate"), list):
        raise TaskError(
            "must be one number where there is a table [schedule]",
            where=table.place("learning_rate"),
        )
    return parse_schedule(top, rates[0][1], steps)


def _parse_rates(table: Table) -> tuple[tuple[int, Fraction], ...]:
    """``learning_rate``: a number, or a list of [first step, rate]."""
    where = table.place("learning_rate")
    value = table.value("learning_rate")
    pairs = value if isinstance(value, list) else [[0, value]]
    rates: list[tuple[int, Fraction]] = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int):
            raise TaskError("must be a number or a list of [first step, rate]", where=where)
        rates.append((pair[0], parse_number(pair[1], where)))
    starts = [start for start, _ in rates]
    if starts[:1] != [0] or starts != sorted(set(starts)) or any(rate < 0 for _, rate in rates):
        raise TaskError("first steps must increase from 0 and rates not be negative", where=where)
    return tuple(rates)


def _parse_patterns(table: Table, key: str) -> tuple[str, ...]:
    found = table.value(key) if table.has(key) else []
    if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
        raise TaskError('must be a list of names, as ["*.bias"]', where=table.place(key))
    return tuple(found)


def _parse_sgd(table: Table) -> dict[str, Any]:
    momentum = table.number("momentum", Fraction(0))
    if not 0 <= momentum < 1:
        raise TaskError("must lie in [0, 1)", where=table.place("momentum"))
    nesterov = table.boolean("nesterov", False)
    if nesterov and momentum == 0:
        raise TaskError("needs a momentum above 0", where=table.place("nesterov"))
    return {"momentum": momentum, "nesterov": nesterov}


def _parse_betas(table: Table, kind: str) -> dict[str, Any]:
    where = table.place("betas")
    betas = _BETAS[kind]
    if table.has("betas"):
        value = table.value("betas")
        if not isinstance(value, list) or len(value) != 2:
            raise TaskError("must be two numbers, as [0.9, 0.999]", where=where)
        betas = parse_number(value[0], where), parse_number(value[1], where)
    if not all(0 <= beta <= _MOST_BETA for beta in betas):
        raise TaskError("must lie in [0, 0.999999]", where=where)
    if kind == "lion":
        return {"betas": betas}
    eps = table.number("eps", Fraction(1, 10**8))
    if not 0 <= eps <= 1:
        raise TaskError("must lie in [0, 1]", where=table.place("eps"))
    return {"betas": betas, "eps": eps}


def choose_parameters(key: str, patterns: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    """Names of parameters that match one of ``patterns``; TaskError for one that none matches."""
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            listed = ", ".join(list(names)[:_MOST_LISTED])
            raise TaskError(
                f"no parameter is called {pattern!r}; there are {listed}"
                + (", ..." if len(names) > _MOST_LISTED else ""),
                where=f"optimizer.{key}",
            )
        chosen |= found
    if key == "frozen" and len(chosen) == len(names):
        raise TaskError("leaves no parameter to train", where="optimizer.frozen")
    return frozenset(chosen)


def compute_optimizer(table: OptimizerTable, terms: int) -> Optimizer:
    """Integer constants of an optimizer.

    ``terms`` are those of the loss in one batch (:func:`vtrain.graph.step.count_terms`), of whose
    gradients the graph has the sum.
    """
    if table.kind == "adamw":
        return AdamW(
            schedule=_check_shift(compute_rates(table, 1), 0),
            mean=compute_share(1 - table.betas[0]),
            square=compute_share(1 - table.betas[1]),
            beta1=round_half_up(table.betas[0] * 2**BETA_EXPONENT),
            beta2=round_half_up(table.betas[1] * 2**BETA_EXPONENT),
            epsilon=table.eps * terms,
            weight_decay=compute_factor(table.weight_decay),
        )
    if table.kind == "lion":
        # The sign of a mean has no fraction bits.
        return Lion(
            schedule=_check_shift(compute_rates(table, 1), -MASTER_EXPONENT),
            look=compute_share(1 - table.betas[0]),
            mean=compute_share(1 - table.betas[1]),
            weight_decay=compute_factor(table.weight_decay),
        )
    rates = _check_shift(compute_rates(table, terms), MOMENTUM_EXPONENT - MASTER_EXPONENT)
    return Momentum(
        decay=round_half_up((1 - table.momentum) * 2**DECAY_EXPONENT),
        starts=rates.starts,
        rates=rates.rates,
        exponent=rates.exponent,
        nesterov=table.nesterov,
        weight_decay=compute_factor(table.weight_decay * terms),
        linear=rates.linear,
    )


def compute_clip(table: OptimizerTable, terms: int) -> Clip | None:
    """What clips the sum of gradients of ``terms``, if anything."""
    return None if table.clip_norm is None else Clip(table.clip_norm * terms)


def compute_rates(table: OptimizerTable, terms: int) -> Rates:
    """Rate / terms at one exponent, 16-bit mantissas; the largest rate has its top bit set."""
    per_term = [rate / terms for _, rate in table.rates]
    largest = max(per_term)
    exponent = RATE_BITS - 1 - floor_log2(largest) if largest > 0 else 0
    rates = [round_half_up(rate * Fraction(2) ** exponent) for rate in per_term]
    if max(rates) >= 1 << RATE_BITS:  # rounded up to 2^16
        exponent -= 1
        rates = [round_half_up(rate * Fraction(2) ** exponent) for rate in per_term]
    starts = tuple(start for start, _ in table.rates)
    return Rates(starts, tuple(rates), exponent, table.curve.linear)


def _check_shift(rates: Rates, offset: int) -> Rates:
    """TaskError where no shift of the update takes such a rate."""
    if not _LEAST_SHIFT <= rates.exponent + offset <= _MOST_SHIFT:
        size = "small" if rates.exponent > 0 else "large"
        raise TaskError(f"is too {size} for master weights", where="optimizer.learning_rate")
    return rates


def compute_share(part: Fraction) -> Share:
    """1 - beta, above 0, as a 16-bit mantissa and a shift."""
    shift = RATE_BITS - 1 - floor_log2(part)
    return Share(round_half_up(part * 2**shift), shift)


def compute_factor(value: Fraction) -> Scalar | None:
    """A weight decay as a mantissa of at most 16 bits; None of 0."""
    if value == 0:
        return None
    exponent = min(RATE_BITS - 1 - floor_log2(value), MOST_FACTOR_EXPONENT)
    if exponent >= 0 and round_half_up(value * 2**exponent) >= 1 << RATE_BITS:
        exponent -= 1
    mantissa = round_half_up(value * Fraction(2) ** exponent)
    if mantissa == 0 or exponent < 0:
        size = "small" if mantissa == 0 else "large for so large a batch"
        raise TaskError(f"is too {size}", where="optimizer.weight_decay")
    return Scalar(mantissa, exponent)
