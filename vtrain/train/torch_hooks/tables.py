"""What was read of a module, its optimizer, loss and samples, as the tables of a task file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np

from vtrain.graph.from_torch.module import Imported
from vtrain.graph.model import Embedding, Softmax
from vtrain.printable import cut
from vtrain.spec.samples import Samples
from vtrain.train.mending import Tables
from vtrain.train.torch_hooks.data import Loaded
from vtrain.train.torch_hooks.losses import Loss
from vtrain.train.torch_hooks.optimizers import Optimizer, exact, scale
from vtrain.train.written import MODEL_NAME

_CHECKPOINTS: Final = 100
"""Steps between checkpoints unless asked otherwise."""
_CALIBRATION: Final = 20
_ATTENTION_CALIBRATION: Final = 100
"""Steps of calibration unless asked otherwise, as many as the task has if that is between."""
_LEAST_DIGITS: Final = 60
_MOST_BITS: Final = 128
"""Of a whole number that is written as one."""


@dataclass(frozen=True)
class Settings:
    """What a task file says besides model, data, loss and optimizer.

    ``gradient_margin``, ``symmetric_gradients``, ``fine_gradients``, ``wide_sums`` and
    ``calibration_steps`` default to what transformers want where the module has attention, and else
    to those of a task file (docs/tasks.md).
    ``checkpoint_every`` is 100 or less.
    """

    name: str | None = None
    seed: int = 0
    commit_every: int = 1
    checkpoint_every: int | None = None
    clip_norm: float | None = None
    end_of_text: int | None = None
    attention_crosses: bool = False
    padding: int | None = None
    margin: int = 3
    gradient_margin: int | None = None
    symmetric_gradients: bool | None = None
    fine_gradients: bool | None = None
    wide_sums: bool | None = None
    calibration_steps: int | None = None


@dataclass(frozen=True)
class Parts:
    """What was read of the arguments; None of what was refused."""

    imported: Imported | None
    loss: Loss | None
    loaded: Loaded | None
    optimizer: Optimizer | None
    steps: int | None
    batch: int | None


def describe_task(
    parts: Parts,
    settings: Settings,
    vocabulary: int | None,
    exponents: Mapping[str, int] | None,
) -> Tables:
    """The tables of the task; what was refused is as if it were plain, so that the rest can be
    judged."""
    imported, loaded, loss = parts.imported, parts.loaded, parts.loss or Loss("cross_entropy")
    every = settings.commit_every
    known = every if type(every) is int and every > 0 else 1
    steps = known if parts.steps is None else parts.steps
    checkpoint = settings.checkpoint_every
    if checkpoint is None:
        checkpoint = -(-min(_CHECKPOINTS, steps) // known) * known
    layers = () if imported is None else imported.model.layers
    has_attention = any(isinstance(layer, Softmax) for layer in layers)
    margin = settings.gradient_margin  # by itself that of all
    if margin is None and has_attention:
        margin = 1
    symmetric, fine, wide = (
        has_attention if given is None else given
        for given in (settings.symmetric_gradients, settings.fine_gradients, settings.wide_sums)
    )
    calibrated = settings.calibration_steps
    if calibrated is None:
        # Gradients of attention grow long after the first steps.
        most = _ATTENTION_CALIBRATION if has_attention else _CALIBRATION
        calibrated = max(_CALIBRATION, min(most, steps))
    takes_ids = imported is not None and imported.model.takes_ids
    tables: Tables = {
        "task": {
            "name": settings.name,
            "seed": settings.seed,
            "steps": steps,
            "batch": parts.batch or 1,
            "commit_every": every,
            "checkpoint_every": checkpoint,
        },
        "model": {
            "onnx": MODEL_NAME,
            "loss": loss.kind,
            "ignore": loss.ignored if loaded is not None and loaded.has_ignored else None,
            "end_of_text": settings.end_of_text,
            # That it does not cross is what a task has that does not say.
            "attention_crosses": settings.attention_crosses or None,
            "padding": settings.padding,
        },
        "data": _describe_data(None if loaded is None else loaded.samples, imported, vocabulary),
        "data.prepare": {"kind": "ids" if takes_ids else "affine"},
        "optimizer": _describe_optimizer(parts, settings.clip_norm),
        "schedule": _describe_schedule(parts.optimizer),
        "format": {
            "margin": settings.margin,
            "gradient_margin": margin,
            "symmetric_gradients": symmetric,
            "fine_gradients": fine,
            "wide_sums": wide,
            "calibration_steps": calibrated,
        },
        "exponents": dict(sorted((exponents or {}).items())),
    }
    if loaded is not None and loaded.test is not None:
        tables["test"] = _describe_data(loaded.test, imported, vocabulary)
    return tables


def write_tables(tables: Tables) -> str:
    """The text of a task file."""
    lines: list[str] = []
    for name, table in tables.items():
        kept = {key: value for key, value in table.items() if value is not None}
        if kept:
            lines += ["", f"[{name}]"] if lines else [f"[{name}]"]
            lines += [f"{_format_key(key)} = {_format(value)}" for key, value in kept.items()]
    return "\n".join(lines) + "\n"


def _describe_data(
    samples: Samples | None, imported: Imported | None, vocabulary: int | None
) -> dict[str, Any]:
    """A table of the kind that the samples will be written as."""
    windows = None if samples is None else samples.spec.windows
    if windows is None:
        return {"kind": "npy", "x": "x.npy", "y": "y.npy"}
    return {
        "kind": "tokens",
        "path": "tokens.bin",
        "context": windows.context,
        "stride": windows.stride,
        "shift": windows.shift,
        "vocabulary": vocabulary or (1 if imported is None else count_rows(imported)),
    }


def count_rows(imported: Imported) -> int | None:
    """Of the tables that the module's input is looked up in; None where it is in none."""
    model = imported.model
    rows = (
        int(model.params[layer.weight].shape[0])
        for layer in model.layers
        if isinstance(layer, Embedding) and layer.input == model.input
    )
    return min(rows, default=None)


def compute_factor(parts: Parts) -> Fraction:
    """What torch's gradient is of the task's; 1 where that is not known."""
    if parts.loss is None or parts.loaded is None or parts.batch is None:
        return Fraction(1)
    places = parts.loaded.places
    return parts.loss.compute_factor(parts.batch, places, parts.loaded.counted or places)


def _describe_optimizer(parts: Parts, clip_norm: object) -> dict[str, Any]:
    optimizer, factor = parts.optimizer, compute_factor(parts)
    clipped = clip_norm
    if isinstance(clip_norm, int | float) and not isinstance(clip_norm, bool):
        clipped = exact(clip_norm) / factor if math.isfinite(clip_norm) else clip_norm
    elif isinstance(clip_norm, str):
        clipped = repr(clip_norm)  # no number, whatever it says
    if optimizer is None:
        return {"kind": "sgd", "learning_rate": 1, "clip_norm": clipped}
    scaled = scale(optimizer, factor)
    rates = optimizer.rates
    rate: Any = scaled["learning_rate"]
    if len(rates.levels) > 1:
        rate = [[step, exact(level) * rate / exact(rates.largest)] for step, level in rates.levels]
    elif rates.levels:
        rate = exact(rates.levels[0][1]) * rate / exact(rates.largest)
    undecayed: list[str] = []
    frozen: list[str] = []
    if parts.imported is not None:
        names = parts.imported.model.trained
        trained = {name for name in names if name in optimizer.trained & parts.imported.trainable}
        frozen = [name for name in names if name not in trained]
        undecayed = [name for name in names if name in trained - optimizer.decayed]
    return {
        "kind": optimizer.kind,
        "learning_rate": rate,
        **optimizer.numbers,
        **({"eps": scaled["eps"]} if "eps" in scaled else {}),
        "weight_decay": scaled["weight_decay"],
        "no_decay": [_escape(name) for name in undecayed] if scaled["weight_decay"] else None,
        "frozen": [_escape(name) for name in frozen] or None,
        "clip_norm": clipped,
    }


def _describe_schedule(optimizer: Optimizer | None) -> dict[str, Any]:
    points = () if optimizer is None else optimizer.rates.points
    if not points:
        return {}
    return {"kind": "points", "points": [[step, rate] for step, rate in points]}


def _escape(name: str) -> str:
    """A pattern that fits this name alone."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _format_key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _format(key)


def _format(value: Any) -> str:
    """A value as TOML has it; a fraction as a decimal if it is one, else as text.  What has no form
    in TOML is a text that the parser refuses."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > _MOST_BITS:
            return _quote(f"a number of {value.bit_length()} bits")
        case int() | np.integer():
            return str(int(value))
        case float() | np.floating() if not math.isfinite(value):
            return str(float(value))
        case float() | np.floating():
            return _format(exact(float(value)))
        case Fraction():
            return _format_fraction(value)
        case str():
            return _quote(value)
        case list() | tuple():
            return f"[{', '.join(map(_format, value))}]"
    return _quote(cut(repr(value)))


def _format_fraction(value: Fraction) -> str:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest != 1 or value.denominator.bit_length() > _LEAST_DIGITS * 3:
        return _quote(f"{value.numerator}/{value.denominator}")
    shift = 0
    while 10**shift % value.denominator:
        shift += 1
    digits = Decimal(value.numerator * (10**shift // value.denominator)).scaleb(-shift)
    text = f"{digits:f}" if shift < 20 else f"{digits:E}"
    return text if "." in text or "E" in text else f"{text}.0"


def _quote(text: str) -> str:
    """A basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    plain = "".join(
        char if char >= " " and char != "\x7f" else f"\\u{ord(char):04X}" for char in escaped
    )
    return f'"{plain}"'
