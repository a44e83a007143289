"""Schedules of tasks: the exact rate of each step, beside the curves that they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from vtrain.errors import TaskError
from vtrain.ops import TABLE
from vtrain.train.optimizers import compute_rates, parse_optimizer
from vtrain.train.schedule import MOST_PIECES
from vtrain.train.table import Table
from vtrain.wire.graph import Attrs

STEPS = 100_000
PEAK = 0.003


def parse(schedule: dict[str, object], rate: object = Decimal(str(PEAK))) -> Table:
    return Table(
        {"optimizer": {"kind": "adamw", "learning_rate": rate}, "schedule": schedule},
        ("optimizer", "schedule"),
        "",
    )


def find_rates(schedule: dict[str, object], steps: int = STEPS) -> Callable[[int], float]:
    """The rate of a step as the law has it."""
    table = parse_optimizer(parse(schedule), steps)
    rates = compute_rates(table, 1)
    op = TABLE["schedule_linear" if rates.linear else "schedule"]
    attrs: Attrs = {"starts": rates.starts, "rates": rates.rates, "exponent": rates.exponent}
    op.infer(
        attrs,
        [TABLE["state"].infer({"name": "step", "dtype": "i64", "shape": (), "exponent": 0}, [])],
    )
    return lambda t: int(op.law(attrs, [np.asarray(t, np.int64)])) * 2.0**-rates.exponent


def warm(t: int, warmup: int) -> float:
    return PEAK * min(1.0, (t + 1) / warmup) if warmup else PEAK


def cosine(t: int, warmup: int, end: float, steps: int = STEPS) -> float:
    if t < warmup:
        return warm(t, warmup)
    along = min(1.0, (t - warmup) / (steps - warmup))
    return end + (PEAK - end) * (1 + math.cos(math.pi * along)) / 2


def drop(t: int, at: tuple[int, ...]) -> float:
    return PEAK * 0.1 ** sum(step <= t for step in at)


END = 0.0003
CURVES: dict[str, tuple[dict[str, object], Callable[[int], float]]] = {
    "constant": ({}, lambda t: PEAK),
    "a warm-up": ({"warmup": 1000}, lambda t: warm(t, 1000)),
    "a warm-up of one step": ({"warmup": 1}, lambda t: PEAK),
    "steps": (
        {"kind": "step", "at": [30_000, 30_001, 60_000]},
        lambda t: drop(t, (30_000, 30_001, 60_000)),
    ),
    "steps after a warm-up": (
        {"kind": "step", "at": [1000, 1001, 60_000], "warmup": 1000},
        lambda t: warm(t, 1000) if t < 1000 else drop(t, (1000, 1001, 60_000)),
    ),
    "linear": ({"kind": "linear"}, lambda t: PEAK * max(0.0, 1 - t / STEPS)),
    "linear until": (
        {"kind": "linear", "until": 500, "end": Decimal(str(END)), "warmup": 10},
        lambda t: warm(t, 10) if t < 10 else PEAK + (END - PEAK) * min(1.0, (t - 10) / 490),
    ),
    "cosine": ({"kind": "cosine"}, lambda t: cosine(t, 0, 0.0)),
    "cosine after a warm-up": (
        {"kind": "cosine", "warmup": 2000, "end": Decimal(str(END))},
        lambda t: cosine(t, 2000, END),
    ),
    "a short cosine": (
        {"kind": "cosine", "warmup": 3, "until": 40},
        lambda t: cosine(t, 3, 0.0, 40),
    ),
    "a cosine of few lines": (
        {"kind": "cosine", "until": 2 * MOST_PIECES + 1},
        lambda t: cosine(t, 0, 0.0, 2 * MOST_PIECES + 1),
    ),
    "wsd": (
        {"kind": "wsd", "warmup": 1000, "decay": 20_000},
        lambda t: warm(t, 1000) if t < 80_000 else PEAK * max(0.0, (STEPS - t) / 20_000),
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_rates_are_near_their_curve(name: str) -> None:
    """Within 2.5 * 10^-5 of the largest rate: of lines 2.2, of 16-bit mantissas the rest."""
    schedule, curve = CURVES[name]
    rate = find_rates(schedule)
    near = [0, 1, 2, 3, 9, 10, 11, 39, 40, 41, 498, 499, 500, 501, 513]
    ends = [at + by for at in (1000, 30_000, 60_000, 80_000, STEPS) for by in (-2, -1, 0, 1)]
    for t in [*near, *ends, *range(0, STEPS, 997), 2**40]:
        assert rate(t) == pytest.approx(curve(t), abs=2.5e-5 * PEAK), t


def test_a_long_cosine_has_few_entries() -> None:
    table = parse_optimizer(parse({"kind": "cosine"}), 10**9)
    assert len(compute_rates(table, 1).starts) == MOST_PIECES + 1
    assert table.curve.knots[-1] == (10**9, Fraction(0))
    middle = dict(table.curve.knots)[10**9 // 2]
    assert abs(middle - Fraction(PEAK).limit_denominator(10**6) / 2) < Fraction(1, 10**20)


@pytest.mark.parametrize(
    ("schedule", "where", "message"),
    [
        ({"kind": "cosin"}, "schedule.kind", "must be one of constant, step"),
        ({"kind": "onecycle"}, "schedule.kind", 'take "cosine" with warmup'),
        ({"kind": 3}, "schedule.kind", "must be one of"),
        ({"kind": "cosine", "epochs": 3}, "schedule.epochs", "unknown key"),
        (
            {"kind": "cosine", "warmup_steps": 3},
            "schedule.warmup_steps",
            "it is called warmup here",
        ),
        ({"kind": "cosine", "warmup": STEPS}, "schedule.warmup", "must end before step 100000"),
        ({"kind": "cosine", "warmup": -1}, "schedule.warmup", "must be an integer"),
        ({"kind": "linear", "end": 1}, "schedule.end", "between 0 and learning_rate"),
        ({"kind": "linear", "end": -1}, "schedule.end", "between 0 and learning_rate"),
        ({"kind": "wsd"}, "schedule.decay", "is missing"),
        (
            {"kind": "wsd", "decay": 99_001, "warmup": 1000},
            "schedule.decay",
            "longer than the 99000",
        ),
        ({"kind": "step"}, "schedule.at", "is missing"),
        ({"kind": "step", "at": []}, "schedule.at", "list of rising steps"),
        ({"kind": "step", "at": [5, 5]}, "schedule.at", "list of rising steps"),
        ({"kind": "step", "at": [0]}, "schedule.at", "list of rising steps"),
        ({"kind": "step", "at": [5], "warmup": 6}, "schedule.at", "after the warm-up"),
        ({"kind": "step", "at": [True]}, "schedule.at", "list of rising steps"),
        ({"kind": "step", "at": [5], "factor": 2}, "schedule.factor", "must lie in"),
    ],
)
def test_impossible_schedules_are_refused(
    schedule: dict[str, object], where: str, message: str
) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        parse_optimizer(parse(schedule), STEPS)
    assert caught.value.where == where


def test_a_list_of_rates_has_no_schedule_beside_it() -> None:
    with pytest.raises(TaskError, match="must be one number") as caught:
        parse_optimizer(parse({"kind": "cosine"}, [[0, 1], [5, 2]]), STEPS)
    assert caught.value.where == "optimizer.learning_rate"
