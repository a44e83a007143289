"""Losses of torch.nn, or functions of torch.nn.functional, as those of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_OPTIONS: Final = ("weight", "label_smoothing", "ignore_index", "reduction")


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
    if isinstance(loss, partial) and not loss.args:
        options, loss = dict(loss.keywords), loss.func
    # A class of the user's own may compute something else, and so may a hook.
    if type(loss) is nn.CrossEntropyLoss:
        _check_plain(loss)
        return _read_cross_entropy({key: getattr(loss, key) for key in _OPTIONS})
    if type(loss) is nn.MSELoss:
        _check_plain(loss)
        return _read_mse({"reduction": loss.reduction})
    if loss is functional.cross_entropy:
        return _read_cross_entropy(options)
    if loss is functional.mse_loss:
        return _read_mse(options)
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    known = "nn.CrossEntropyLoss() or nn.MSELoss()"
    if isinstance(loss, str):
        known = f"{' or '.join(map(repr, LOSSES))}, {known}"
    raise UnsupportedError(
        [
            Problem(
                "loss",
                str(name),
                "is no loss that can be had",
                _INSTEAD.get(str(name), known),
            )
        ],
        where="from_torch",
    )


def _check_plain(loss: nn.Module) -> None:
    """Refuse hooks and a method of the instance's own: neither would be computed."""
    hooks = [key for key, value in vars(loss).items() if key.endswith("_hooks") and value]
    if "forward" in vars(loss) or any("state_dict" not in key for key in hooks):
        problem = Problem(
            "loss",
            type(loss).__name__,
            "has hooks, or a forward of its own, and a task computes the plain loss",
            f"nn.{type(loss).__name__}()",
        )
        raise UnsupportedError([problem], where="from_torch")


def _check_options(name: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse options that are not ``known``, but for those that are as they must be."""
    problems = [
        Problem("loss", f"{name}, {key}", "cannot be had", f"leave {key} out")
        for key, value in options.items()
        if key not in known and (key not in _PLAIN or value != _PLAIN[key])
    ]
    if problems:
        raise UnsupportedError(problems, where="from_torch")


def _read_mse(options: Mapping[str, Any]) -> Loss:
    _check_options("mse_loss", options, ("reduction",))
    return Loss("mse", reduction=_read_reduction(str(options.get("reduction", "mean"))))


def _read_cross_entropy(options: Mapping[str, Any]) -> Loss:
    _check_options("CrossEntropyLoss", options, ("ignore_index", "reduction"))
    reduction = _read_reduction(str(options.get("reduction", "mean")))
    return Loss("cross_entropy", int(options.get("ignore_index", -100)), reduction)


def _read_reduction(reduction: str) -> str:
    if reduction not in ("mean", "sum"):
        problem = Problem(
            "loss", f"reduction={reduction!r}", "is no number to train by", 'reduction="mean"'
        )
        raise UnsupportedError([problem], where="from_torch")
    return reduction
