"""An optimizer of torch.optim, and a scheduler of its rates, as the tables of a task.

The rates are those that the scheduler gives, step by step: it is asked for each and put back.  They
become steps, where they are, or else points with straight lines between.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from vtrain.errors import Problem, UnsupportedError
from vtrain.train.schedule import MOST_POINTS

MOST_LEVELS: Final = 64
"""Rates that are written as steps."""
CLOSE: Final = (2e-5, 1e-4, 5e-4)
"""How far a rate may be from the scheduler's, in parts of the largest: the first of these that
``MOST_POINTS`` do for."""
MOST_STEPS: Final = 1 << 22
"""Steps that a scheduler is asked for."""
_ALIKE: Final = ("lr", "weight_decay", "decoupled_weight_decay")
"""What may differ between groups, and is looked at by itself."""
_OFF: Final = {"maximize": False, "amsgrad": False, "dampening": 0}
_HOW: Final = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""How a step is computed, not what."""
_INSTEAD: Final = {
    "Adam": "torch.optim.AdamW, whose weight decay is apart from the gradient",
    "Adagrad": "torch.optim.AdamW",
    "Adadelta": "torch.optim.AdamW",
    "Adamax": "torch.optim.AdamW",
    "NAdam": "torch.optim.AdamW",
    "RAdam": "torch.optim.AdamW with a warm-up",
    "RMSprop": "torch.optim.AdamW with betas=(0, 0.99)",
    "LBFGS": "torch.optim.SGD with nesterov",
    "Muon": "torch.optim.AdamW",
}


@dataclass(frozen=True)
class Rates:
    """Of each step: ``levels`` from a step on, or factors of ``largest`` at ``points``, between
    which they lie on lines."""

    largest: float
    levels: tuple[tuple[int, float], ...] = ()
    points: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Optimizer:
    """``kind`` and its numbers as a task file has them; ``decayed`` and ``trained`` are names of
    parameters.  ``rates`` are those of every trained parameter."""

    kind: str
    numbers: Mapping[str, float | tuple[float, float] | bool]
    weight_decay: float
    rates: Rates
    trained: frozenset[str]
    decayed: frozenset[str]


def read_optimizer(
    module: nn.Module, optimizer: object, scheduler: object, steps: int
) -> Optimizer:
    """An ordinary instance of SGD, AdamW, or Adam without weight decay, before its first step.

    UnsupportedError lists everything that has no equal in a task.
    """
    if not isinstance(optimizer, optim.Optimizer):
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        problem = Problem(
            "optimizer",
            name,
            "is no instance of torch.optim.Optimizer",
            "torch.optim.AdamW(module.parameters(), lr=1e-3)",
        )
        raise UnsupportedError([problem], where="from_torch")
    problems: list[Problem] = []
    kind = type(optimizer).__name__
    groups = optimizer.param_groups
    # The groups of any other have other keys, and its state may be there from the beginning.
    is_known = type(optimizer) in (optim.SGD, optim.AdamW, optim.Adam)
    if not is_known:
        problems.append(_refuse(kind, "cannot be had", _INSTEAD.get(kind, "torch.optim.AdamW")))
    elif any(
        # Before torch 2.6 only the class told.
        group["weight_decay"] and not group.get("decoupled_weight_decay", kind == "AdamW")
        for group in groups
        if kind != "SGD"
    ):
        reason = "adds its weight decay to the gradient, by whose size it then divides"
        problems.append(_refuse(kind, reason, _INSTEAD["Adam"]))
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        reason = "has hooks, which change what a step does"
        problems.append(_refuse(kind, reason, "an optimizer without hooks"))
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        reason = "hooks of all optimizers are registered, which change what a step does"
        instead = "remove() what torch.optim.optimizer.register_optimizer_step_*_hook gave"
        problems.append(_refuse(kind, reason, instead))
    if not _has_own_step(optimizer):
        reason = "has a step that is not that of its class, which would not be called"
        instead = "leave optimizer.step as torch.optim has it"
        problems.append(_refuse(kind, reason, instead))
    if is_known and any(optimizer.state.values()):
        problems.append(
            _refuse(
                kind,
                "has state: steps were done with it, and a run begins without",
                "make a new optimizer of the module's parameters",
            )
        )
    problems += _check_finite(groups)
    rates = _read_rates(optimizer, scheduler, steps, problems)
    names = _name_parameters(module, groups, problems)
    live = [
        (group, named)
        for group, named, used in zip(groups, names, _find_live(rates), strict=True)
        if used
    ]
    if not live and not problems:
        problems.append(_refuse(kind, "has a learning rate of 0 everywhere", "give lr"))
    if not is_known:
        raise UnsupportedError(problems, where="from_torch")
    problems += _compare_groups(optimizer, [group for group, _ in live])
    decays = {float(group["weight_decay"]) for group, _ in live} - {0.0}
    if len(decays) > 1:
        reason = f"has groups with the weight decays {sorted(decays)}"
        problems.append(_refuse(kind, reason, "one weight decay, or 0 for a group"))
    curves = {tuple(rates[number]) for number in range(len(groups)) if any(rates[number])}
    if len(curves) > 1:
        reason = "has groups with different learning rates, and a step has one"
        problems.append(_refuse(kind, reason, "one rate for all groups, or 0 for a group"))
    if problems:
        raise UnsupportedError(problems, where="from_torch")
    return Optimizer(
        kind="sgd" if kind == "SGD" else "adamw",
        numbers=_read_numbers(kind, live[0][0]),
        weight_decay=max(decays, default=0.0),
        rates=draw_rates(next(iter(curves))),
        trained=frozenset(name for _, named in live for name in named),
        decayed=frozenset(name for group, named in live if group["weight_decay"] for name in named),
    )


def _has_own_step(optimizer: optim.Optimizer) -> bool:
    """Whether ``step`` is that of torch, under nothing but torch's own wrappers, as those by which
    schedulers count steps.  What the wrappers are called and marked with differs from version to
    version, and is copied by ``functools.wraps``: their code tells."""
    folder = Path(torch.__file__).parent
    step: Any = optimizer.step
    if getattr(step, "__self__", optimizer) is not optimizer:
        return False
    last = inspect.unwrap(type(optimizer).step)
    while True:
        step = getattr(step, "__func__", step)
        code = getattr(step, "__code__", None)
        if code is None or folder not in Path(code.co_filename).parents:
            return False
        if not hasattr(step, "__wrapped__"):
            return step is last
        step = step.__wrapped__


def _refuse(kind: str, reason: str, instead: str) -> Problem:
    return Problem("optimizer", kind, reason, instead)


def _check_finite(groups: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Numbers that are none: torch takes them, and trains to nothing."""
    return [
        Problem(f"optimizer.param_groups[{at}][{key!r}]", repr(value), "is not finite", "a number")
        for at, group in enumerate(groups)
        for key, value in group.items()
        for number in (value if isinstance(value, tuple) else (value,))
        if isinstance(number, float) and not math.isfinite(number)
    ]


def _find_live(rates: Sequence[Sequence[float]]) -> list[bool]:
    """Which groups ever have a rate above 0: any other is frozen."""
    return [any(of_group) for of_group in rates]


def _name_parameters(
    module: nn.Module, groups: Sequence[Mapping[str, Any]], problems: list[Problem]
) -> list[list[str]]:
    """Names of those of each group's parameters that require a gradient."""
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    strangers = sum(id(p) not in known for group in groups for p in group["params"])
    if strangers:
        problems.append(
            Problem(
                "optimizer",
                f"{strangers} parameters",
                "are none of the module's",
                "make the optimizer of module.parameters(), after the module is complete",
            )
        )
    return [
        [known[id(p)] for p in group["params"] if id(p) in known and p.requires_grad]
        for group in groups
    ]


def _compare_groups(
    optimizer: optim.Optimizer, groups: Sequence[Mapping[str, Any]]
) -> list[Problem]:
    """What differs between groups, and what is switched on, that a task has no word for.

    Keys that the optimizer has no default for are not read by its step: names of groups, and what
    schedulers keep there.
    """
    kind, problems = type(optimizer).__name__, []
    for key in sorted({*optimizer.defaults} - _HOW - {*_ALIKE}):
        values = [group.get(key) for group in groups]
        if any(value != values[0] for value in values):
            reason = f"has groups that differ in {key}: {values}"
            problems.append(_refuse(kind, reason, f"one {key} for all groups"))
        elif groups and key in _OFF and values[0] != _OFF[key]:
            reason = f"has {key}={values[0]}"
            problems.append(_refuse(kind, reason, f"{key}={_OFF[key]}"))
    return problems


def _read_numbers(
    kind: str, group: Mapping[str, Any]
) -> dict[str, float | tuple[float, float] | bool]:
    if kind == "SGD":
        found: dict[str, float | tuple[float, float] | bool] = {}
        if group["momentum"]:
            found["momentum"] = float(group["momentum"])
        if group["nesterov"]:
            found["nesterov"] = True
        return found
    one, two = group["betas"]
    return {"betas": (float(one), float(two)), "eps": float(group["eps"])}


def _read_rates(
    optimizer: optim.Optimizer, scheduler: object, steps: int, problems: list[Problem]
) -> list[list[float]]:
    """The learning rate of each step, for each group."""
    groups = optimizer.param_groups
    fixed = [[float(group.get("lr", 1.0))] * min(steps, 1) for group in groups]
    if scheduler is None:
        return fixed
    kind = type(scheduler).__name__
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        reason = "chooses rates by losses of the run, which nobody knows before"
        problems.append(Problem("scheduler", kind, reason, "a schedule by steps"))
        return fixed
    if not isinstance(scheduler, lr_scheduler.LRScheduler):
        reason = "is no scheduler of torch.optim.lr_scheduler"
        problems.append(Problem("scheduler", kind, reason, "one of these, or none"))
        return fixed
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        problems.append(
            Problem("scheduler", kind, "is of another optimizer", "make it of the one given")
        )
        return fixed
    if steps > MOST_STEPS:
        reason = f"would be asked for {steps} rates, more than {MOST_STEPS}"
        problems.append(Problem("scheduler", kind, reason, "a [schedule] of the task file"))
        return fixed
    try:
        found, changed = _ask(optimizer, scheduler, steps)
    except Exception as error:  # noqa: BLE001 - a schedule is anybody's code
        reason = f"raised {type(error).__name__} within the task's {steps} steps: {error}"
        problems.append(
            Problem("scheduler", kind, reason, "a schedule of as many steps as the task has")
        )
        return fixed
    cycled = ("betas", "momentum")
    problems += [
        Problem("scheduler", kind, f"changes {key} too", "cycle_momentum=False")
        if key in cycled
        else Problem("scheduler", kind, f"changes {key} too", f"leave {key} as it is")
        for key in changed
    ]
    if any(rate < 0 or not math.isfinite(rate) for of_group in found for rate in of_group):
        reason = "gives rates below 0, or infinite ones"
        problems.append(Problem("scheduler", kind, reason, "rates from 0 on for every step"))
    return found


def _ask(
    optimizer: optim.Optimizer, scheduler: lr_scheduler.LRScheduler, steps: int
) -> tuple[list[list[float]], list[str]]:
    """The rates of all steps, and what else changes; optimizer and scheduler are put back."""
    groups = optimizer.param_groups
    # A rate that is a tensor is changed where it lies.
    kept = [
        {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in groups
    ]
    state = copy.deepcopy(scheduler.state_dict())
    found: list[list[float]] = [[] for _ in groups]
    changed: dict[str, None] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no step of the optimizer came before
            for _ in range(steps):
                for rates, group, before in zip(found, groups, kept, strict=True):
                    rates.append(float(group["lr"]))
                    changed |= dict.fromkeys(
                        key
                        for key in ("betas", "momentum", "weight_decay", "eps")
                        if key in before and group[key] != before[key]
                    )
                scheduler.step()
    finally:
        scheduler.load_state_dict(state)
        for group, before in zip(groups, kept, strict=True):
            for key, value in before.items():
                if isinstance(value, torch.Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = value
    return found, [*changed]


def draw_rates(rates: Sequence[float]) -> Rates:
    """Few levels, which are the rates, or points that they are within :data:`CLOSE` of.

    UnsupportedError where more than ``MOST_POINTS`` would be needed.
    """
    largest = max(rates)
    levels = [(0, rates[0])]
    for step, rate in enumerate(rates):
        if rate != levels[-1][1]:
            levels.append((step, rate))
            if len(levels) > MOST_LEVELS:
                break
    if len(levels) <= min(MOST_LEVELS, max(len(rates) // 4, 1)) or len(levels) == 1:
        return Rates(largest, levels=tuple(levels))
    factors = [rate / largest for rate in rates]
    fits = (_fit(factors, close) for close in CLOSE)
    points = next((fit for fit in fits if len(fit) <= MOST_POINTS), None)
    if points is None:
        problem = Problem(
            "scheduler",
            f"{len(rates)} rates",
            f"take more than {MOST_POINTS} straight lines",
            "a schedule of fewer turns",
        )
        raise UnsupportedError([problem], where="from_torch")
    return Rates(largest, points=tuple(points))


def _fit(factors: Sequence[float], close: float) -> list[tuple[int, float]]:
    """Steps at which the factors stand as they are, such that lines between come ``close`` to all.

    From each such step the next is the furthest whose line passes by all between.
    """
    knots = [(0, factors[0])]
    start = 0
    while start < len(factors) - 1:
        low, high, end = -math.inf, math.inf, start + 1
        for step in range(start + 1, len(factors)):
            rise = (factors[step] - factors[start]) / (step - start)
            if low <= rise <= high:
                end = step
            room = close / (step - start)
            low, high = max(low, rise - room), min(high, rise + room)
            if low > high:
                break
        knots.append((end, factors[end]))
        if len(knots) > MOST_POINTS:
            break
        start = end
    return knots


def scale(optimizer: Optimizer, factor: Fraction) -> dict[str, Fraction]:
    """The numbers of a task whose gradient, times ``factor``, is the one that ``optimizer`` has in
    mind: learning rate, weight decay and epsilon, exactly."""
    rate, decay = exact(optimizer.rates.largest), exact(optimizer.weight_decay)
    if optimizer.kind == "sgd":
        return {"learning_rate": rate * factor, "weight_decay": decay / factor}
    eps = optimizer.numbers["eps"]
    return {
        "learning_rate": rate,
        "weight_decay": decay,
        "eps": exact(eps if isinstance(eps, float) else 0.0) / factor,
    }


def exact(number: float) -> Fraction:
    """The decimal that a float is written as: 0.1 is one tenth."""
    return Fraction(Decimal(repr(float(number))))
