"""Losses of torch.nn, or functions of torch.nn.functional, as those of a task."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Final

from torch import nn
from torch.nn import functional

from vtrain.errors import Problem, UnsupportedError
from vtrain.graph.step import LOSSES

_INSTEAD: Final = {
    "BCELoss": "two classes and nn.CrossEntropyLoss()",
    "BCEWithLogitsLoss": "two classes and nn.CrossEntropyLoss()",
    "NLLLoss": "a module that ends at its logits, and nn.CrossEntropyLoss()",
    "L1Loss": "nn.MSELoss()",
    "SmoothL1Loss": "nn.MSELoss()",
    "HuberLoss": "nn.MSELoss()",
}
_PLAIN: Final = {
    "weight": None,
    "label_smoothing": 0.0,
    "size_average": None,
    "reduce": None,
}
"""What these options must be."""


@dataclass(frozen=True)
class Loss:
    """``kind`` is the task's name of it, ``ignored`` a label that counts for nothing, and
    ``reduction`` torch's; None for the task's own, the mean over labels or samples."""

    kind: str
    ignored: int | None = None
    reduction: str | None = None

    def compute_factor(self, batch: int, places: int, counted: int) -> Fraction:
        """What torch's gradient is of the task's, for samples of so many ``places`` (labels, or
        elements of a target), of which so many are ``counted``."""
        if self.reduction is None:
            return Fraction(1)
        if self.kind == "mse":
            return Fraction(2, places) if self.reduction == "mean" else Fraction(2 * batch)
        return Fraction(places, counted) if self.reduction == "mean" else Fraction(batch * places)


def read_loss(loss: object) -> Loss:
    """A loss by its name, a module of torch.nn, or a function of torch.nn.functional.

    UnsupportedError for any other, and for options that have no equal here.
    """
    if isinstance(loss, str) and loss in LOSSES:
        return Loss(loss)
    options: dict[str, Any] = {}
    if isinstance(loss, partial):
        options, loss = dict(loss.keywords), loss.func
    if isinstance(loss, nn.CrossEntropyLoss):
        return _read_cross_entropy(vars(loss) | {"weight": loss.weight})
    if isinstance(loss, nn.MSELoss):
        return Loss("mse", reduction=_read_reduction(loss.reduction))
    if loss is functional.cross_entropy:
        return _read_cross_entropy(options)
    if loss is functional.mse_loss:
        return Loss("mse", reduction=_read_reduction(str(options.get("reduction", "mean"))))
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    raise UnsupportedError(
        [
            Problem(
                "loss",
                str(name),
                "is no loss that can be had",
                _INSTEAD.get(str(name), "nn.CrossEntropyLoss() or nn.MSELoss()"),
            )
        ],
        where="from_torch",
    )


def _read_cross_entropy(options: dict[str, Any]) -> Loss:
    problems = [
        Problem("loss", f"CrossEntropyLoss, {key}", "cannot be had", f"leave {key} out")
        for key, plain in _PLAIN.items()
        if options.get(key, plain) != plain
    ]
    if problems:
        raise UnsupportedError(problems, where="from_torch")
    reduction = _read_reduction(str(options.get("reduction", "mean")))
    return Loss("cross_entropy", int(options.get("ignore_index", -100)), reduction)


def _read_reduction(reduction: str) -> str:
    if reduction not in ("mean", "sum"):
        problem = Problem(
            "loss", f"reduction={reduction!r}", "is no number to train by", 'reduction="mean"'
        )
        raise UnsupportedError([problem], where="from_torch")
    return reduction
