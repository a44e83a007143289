"""From a module, an optimizer, a loss and samples to a compiled task, in one call.

What is built is the text of a task file, which then goes the way of every task file: so the id is
that of the file that :meth:`vtrain.train.task.CompiledTask.write` writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from vtrain.engines.registry import choose_apply, choose_evaluator
from vtrain.errors import (
    DataError,
    GraphError,
    ModelError,
    Problem,
    TaskError,
    UnsupportedError,
    gather,
)
from vtrain.graph.from_torch.module import Imported, import_module
from vtrain.graph.model import Embedding, Softmax
from vtrain.graph.step import keeps_order
from vtrain.spec.samples import Samples
from vtrain.train.data import check_ids, check_labels
from vtrain.train.deliver import check_fit
from vtrain.train.task import CompiledTask, Held, TaskFile, compile_task, parse_task, profile_task
from vtrain.train.torch_hooks.data import Loaded, Wanted, load
from vtrain.train.torch_hooks.losses import Loss, read_loss
from vtrain.train.torch_hooks.optimizers import Optimizer, exact, read_optimizer, scale
from vtrain.train.written import MODEL_NAME, TASK_NAME

Progress = Callable[[str, int, int], None]
"""(what is being done, how much is done, of how much)"""

Module = nn.Module

_CHECKPOINTS: Final = 100
"""Steps between checkpoints unless asked otherwise."""
_CALIBRATION: Final = 20
_ATTENTION_CALIBRATION: Final = 100
"""Steps of calibration unless asked otherwise, as many as the task has if that is between."""
_LEAST_DIGITS: Final = 60


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


def from_torch(
    module: nn.Module,
    example_inputs: object,
    *,
    data: object,
    loss: object,
    optimizer: object,
    scheduler: object = None,
    batch: int | None,
    steps: int | None = None,
    epochs: int | None = None,
    test: object | None = None,
    validation: float | None = None,
    stride: int = 1,
    columns: tuple[str, str] | None = None,
    vocabulary: int | None = None,
    output: str | int | None = None,
    exponents: Mapping[str, int] | None = None,
    settings: Settings,
    progress: Progress = lambda what, done, total: None,
) -> CompiledTask:
    """See :func:`vtrain.from_torch`."""
    _require_module(module)
    problems: list[Problem] = _check_counts(batch=batch, steps=steps, epochs=epochs, stride=stride)
    miscounted = {problem.path for problem in problems}
    problems += _check_clip(settings.clip_norm)
    progress("reading the module", 0, 1)
    fast = choose_apply("auto")
    imported = gather(problems, lambda: import_module(module, example_inputs, output, apply=fast))
    found_loss = gather(problems, lambda: read_loss(loss))
    shape, takes_ids = _describe_example(example_inputs)
    wanted = Wanted(
        shape=shape,
        takes_ids=takes_ids,
        has_classes=found_loss is None or found_loss.kind == "cross_entropy",
        ignored=None if found_loss is None else found_loss.ignored,
        stride=1 if "stride" in miscounted else stride,
        columns=columns,
    )
    loaded = gather(problems, lambda: load(data, test, wanted, validation))
    if imported and loaded and found_loss:
        problems += _check_forms(shape, imported, found_loss, loaded)
        problems += _check_numbers(imported, found_loss, loaded, vocabulary)
        if _has_classes_first(imported, found_loss, loaded):
            imported = gather(
                problems,
                lambda: import_module(
                    module, example_inputs, output, classes_last=True, apply=fast
                ),
            )
    size, total = None, None
    if "batch" not in miscounted:
        size = gather(problems, lambda: _read_batch(batch, data))
    if not miscounted & {"steps", "epochs"}:
        total = gather(problems, lambda: _count_steps(steps, epochs, size, loaded))
    found = gather(problems, lambda: read_optimizer(module, optimizer, scheduler, total or 1))
    if found_loss is not None and loaded is not None:
        problems += _check_ignored(found_loss, loaded)
    progress("reading the module", 1, 1)
    if problems or size is None or not (imported and found_loss and loaded and total and found):
        raise UnsupportedError(problems, where="from_torch")
    text = _write_text(
        settings if settings.name else replace(settings, name=type(module).__name__),
        imported,
        found_loss,
        loaded,
        found,
        steps=total,
        batch=size,
        vocabulary=vocabulary,
        exponents=exponents,
    )
    held = Held(imported.data, loaded.samples, loaded.test)
    notes = (
        *imported.notes,
        *loaded.notes,
        *_note_loss(imported, found_loss, loaded, found),
        *_note_targets(imported, found_loss, loaded, size),
        *_note_schedule(scheduler, epochs, total),
    )
    try:
        file = parse_task(text, Path(TASK_NAME), held=held)
        if exponents is None:
            file = _calibrate(file, progress)
        task = compile_task(file)
        task = replace(task, notes=(*notes, *task.notes))
        if loaded.test is not None:
            check_fit(task.graph, loaded.test, "test")
        return task
    except (ModelError, GraphError) as error:
        problem = imported.place(error)
        if problem is None:
            raise
        raise UnsupportedError([problem], where="from_torch") from error
    except (TaskError, DataError) as error:
        where = error.where
        for table in _ARGUMENTS:
            where = where.removeprefix(table)
        raise type(error)(_in_words(error.message), where=where) from error


def _in_words(message: str) -> str:
    """What is said of a task file, said of arguments."""
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message


_WORDS: Final = (
    (r"set ignore = (-?\d+) in the table model", r"give nn.CrossEntropyLoss(ignore_index=\1)"),
    (r"raise data\.vocabulary, or .*", "a model has a row for each id: correct the tokens"),
)
"""What a task file has for what is an argument here."""
_ARGUMENTS: Final = ("task.", "model.", "format.", "optimizer.")


def _has_classes_first(imported: Imported, loss: Loss, loaded: Loaded) -> bool:
    """Whether the logits are [batch, classes, ...] of labels [batch, ...], as torch's cross-entropy
    takes them.

    Where the classes may be the last axis too, they are the first for a loss of torch, but of
    windows of tokens, whose models have the vocabulary last.
    """
    shape, windows = imported.output_shape, loaded.samples.spec.windows
    if loss.kind != "cross_entropy" or len(shape) < 2:
        return False
    labels = loaded.samples.part("y").shape[1:] if windows is None else (windows.context,)
    if labels != shape[1:]:
        return False
    return labels != shape[:-1] or (loss.reduction is not None and windows is None)


def _describe_example(example: object) -> tuple[tuple[int, ...], bool]:
    """The shape of one sample, and whether it is of whole numbers."""
    items = (
        [*example.values()]
        if isinstance(example, Mapping)
        else [*example]
        if isinstance(example, tuple | list)
        else [example]
    )
    tensor = next((item for item in items if isinstance(item, torch.Tensor)), None)
    if tensor is None:
        return (), False
    return tuple(tensor.shape[1:]), not tensor.dtype.is_floating_point


def _check_counts(**counts: object) -> list[Problem]:
    return [
        Problem(name, repr(count), "is no whole number from 1 on", f"a number as {name}=3")
        for name, count in counts.items()
        if count is not None
        and (isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1)
    ]


def _require_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        name = getattr(module, "__name__", type(module).__name__)
        fix = "an instance of one, with its weights as they are to begin"
        problem = Problem("module", name, "is no instance of torch.nn.Module", fix)
        raise UnsupportedError([problem], where="from_torch")


def _check_clip(clip_norm: float | None) -> list[Problem]:
    if clip_norm is None or 0 < clip_norm < math.inf:
        return []
    fix = "clip_norm=1.0, or None to clip nothing"
    return [Problem("clip_norm", repr(clip_norm), "is no number above 0", fix)]


def _read_batch(batch: int | None, data: object) -> int | None:
    """None where the samples are refused as they are, with the size of the batch: said already."""
    if batch is None and not isinstance(data, DataLoader):
        problem = Problem("batch", "None", "is how many samples a step has", "batch=32")
        raise UnsupportedError([problem], where="from_torch")
    return batch


def _count_steps(
    steps: int | None, epochs: int | None, batch: int | None, loaded: Loaded | None
) -> int:
    if (steps is None) == (epochs is None):
        given = "neither is given" if steps is None else "both are given"
        reason = "one of the two says how long to train"
        problem = Problem("steps, epochs", given, reason, "steps=1000, or epochs=3")
        raise UnsupportedError([problem], where="from_torch")
    if loaded is not None and batch is not None and batch > loaded.samples.spec.samples:
        reason = f"is more than the {loaded.samples.spec.samples} samples there are"
        problem = Problem("batch", str(batch), reason, "a smaller batch")
        raise UnsupportedError([problem], where="from_torch")
    if steps is not None:
        return steps
    if loaded is None or epochs is None or batch is None:
        return 1  # said already
    return epochs * loaded.samples.spec.samples // batch


def _check_forms(
    shape: tuple[int, ...], imported: Imported, loss: Loss, loaded: Loaded
) -> list[Problem]:
    """Samples whose axes are not those of the example, targets not those of the output: as many
    elements in another order are other values."""
    problems = []
    for where, samples in (("data", loaded.samples), ("test", loaded.test)):
        if samples is None or samples.spec.windows is not None:
            continue
        cases = [("inputs", samples.spec.x_shape, shape, "the example is")]
        problems += _check_labels_form(where, samples, imported.output_shape, loss)
        if loss.kind == "mse":
            targets = samples.spec.y_shape, imported.output_shape
            cases.append(("targets", *targets, "the module's output is"))
        problems += [
            Problem(
                where,
                what,
                f"are {_show_shape(found)}, and {noun} {_show_shape(wanted)}",
                _find_order(found, wanted),
            )
            for what, found, wanted, noun in cases
            if not keeps_order(found, wanted)
        ]
    return problems


def _check_labels_form(
    where: str, samples: Samples, output: tuple[int, ...], loss: Loss
) -> list[Problem]:
    """Classes that are not one number for each row of logits."""
    found = samples.part("y").shape[1:]
    if loss.kind != "cross_entropy" or not output or found in (output[:-1], output[1:]):
        return []
    reason = (
        f"are {_show_shape(found)} of an output {_show_shape(output)}, and the loss takes a class "
        f"for each place: {_show_shape(output[:-1])}"
    )
    fix = "targets.reshape(...) of that shape"
    if found == output:
        reason = f"are {_show_shape(found)} as the output is, as probabilities of classes are"
        fix = "the class of each place, as a whole number: targets.argmax(1)"
    return [Problem(where, "targets", reason, fix)]


def _check_numbers(
    imported: Imported, loss: Loss, loaded: Loaded, vocabulary: int | None
) -> list[Problem]:
    """Labels that are no class of the output, ids that the model has no row for."""
    shape, rows = imported.output_shape, _count_rows(imported)
    ignored = loss.ignored if loaded.has_ignored else None
    problems = []
    for where, samples in (("data", loaded.samples), ("test", loaded.test)):
        if samples is None:
            continue
        is_text = samples.spec.windows is not None
        try:
            if rows is not None:
                below = (vocabulary or rows) if is_text else rows
                noun = "tokens" if is_text else "ids"
                check_ids(samples, below)
            if loss.kind == "cross_entropy" and shape:
                below = shape[0 if _has_classes_first(imported, loss, loaded) else -1]
                noun = "tokens" if is_text else "labels"
                check_labels(samples, below, ignored)
        except DataError as error:
            reason, _, fix = _in_words(error.message).partition(": ")
            what = noun if is_text else error.where
            range_of = f"{noun} from 0 to {below - 1}"
            problems.append(Problem(where, what, reason, "; ".join(filter(None, (range_of, fix)))))
    return problems


def _show_shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(['batch', *map(str, shape)])}]"


def _find_order(found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """How to have one shape of another."""
    if sorted(found) != sorted(wanted):
        return "arrays of that shape, or rows of as many elements in that order"
    left = list(range(len(found)))
    axes = [left.pop(next(i for i, at in enumerate(left) if found[at] == e)) for e in wanted]
    order = ", ".join(str(axis) for axis in (0, *(1 + axis for axis in axes)))
    return f"its axes in that order: .transpose({order}) of numpy"


def _check_ignored(loss: Loss, loaded: Loaded) -> list[Problem]:
    """Torch's mean is over the labels that count, of which each batch has another number."""
    if loss.reduction != "mean" or not loaded.has_ignored or loaded.counted is not None:
        return []
    return [
        Problem(
            "loss",
            f"CrossEntropyLoss, ignore_index={loss.ignored}",
            "takes the mean over the labels that count, and their number differs from sample to "
            "sample: no step divides by a number that changes with the data",
            'reduction="sum", and a learning rate for that (AdamW needs none)',
        )
    ]


def _note_loss(imported: Imported, loss: Loss, loaded: Loaded, optimizer: Optimizer) -> list[str]:
    notes = []
    shape = imported.output_shape
    if loss.kind == "cross_entropy" and len(shape) > 1 and shape[1:] == shape[:-1]:
        first = _has_classes_first(imported, loss, loaded)
        notes.append(
            f"the classes are the {'first' if first else 'last'} axis of the output after the "
            f"batch, and by its shape {list(shape)} they could be another"
        )
    if loss.kind == "mse" and loss.reduction is not None and optimizer.kind == "sgd":
        notes.append(
            "the gradient of MSELoss is a multiple of the task's, output - target in the mean over "
            "samples: the learning rate has the factor"
        )
    if optimizer.kind == "adamw":
        notes.append(
            "eps is added to the root before the bias is taken out of it (docs/tasks.md): it "
            "counts for more than torch's in the first steps"
        )
    return notes


def _note_targets(imported: Imported, loss: Loss, loaded: Loaded, batch: int) -> list[str]:
    """Targets that torch's loss would not compare with the output one by one."""
    found, wanted = loaded.samples.spec.y_shape, imported.output_shape
    if loss.kind != "mse" or loss.reduction is None or found == wanted:
        return []
    try:
        both = np.broadcast_shapes((batch, *found), (batch, *wanted))
    except ValueError:
        does = "refuses them"
    else:
        if math.prod(both) == batch * math.prod(wanted):
            return []  # the same pairs
        does = f"broadcasts both to {list(both)} and compares all pairs (its UserWarning)"
    return [
        f"targets are {_show_shape(found)} and the output is {_show_shape(wanted)}: they are taken "
        f"element by element, where torch's MSELoss {does}; targets of the output's shape are the "
        "same to both"
    ]


def _note_schedule(scheduler: object, epochs: int | None, steps: int) -> list[str]:
    """A scheduler that a loop may step once an epoch."""
    if scheduler is None or epochs is None or steps <= epochs:
        return []
    return [
        f"{type(scheduler).__name__} is stepped once a step, {steps} times, and not once an epoch: "
        f"its numbers count steps, of which an epoch has {steps / epochs:.6g}"
    ]


def _calibrate(file: TaskFile, progress: Progress) -> TaskFile:
    total = file.calibration_steps
    calibration = profile_task(
        file,
        lambda done: progress("calibrating", done, total),
        open_evaluator=choose_evaluator("auto"),
    )
    return replace(file, exponents=dict(calibration.exponents))


# --- the text of the task file


def _write_text(
    settings: Settings,
    imported: Imported,
    loss: Loss,
    loaded: Loaded,
    optimizer: Optimizer,
    *,
    steps: int,
    batch: int,
    vocabulary: int | None,
    exponents: Mapping[str, int] | None,
) -> str:
    every = settings.commit_every
    checkpoint = settings.checkpoint_every or -(-min(_CHECKPOINTS, steps) // every) * every
    factor = loss.compute_factor(batch, loaded.places, loaded.counted or loaded.places)
    has_attention = any(isinstance(layer, Softmax) for layer in imported.model.layers)
    margin = settings.gradient_margin
    if margin is None:
        margin = 1 if has_attention else settings.margin
    symmetric, fine, wide = (
        has_attention if given is None else given
        for given in (settings.symmetric_gradients, settings.fine_gradients, settings.wide_sums)
    )
    calibrated = settings.calibration_steps
    if calibrated is None:
        # Gradients of attention grow long after the first steps.
        most = _ATTENTION_CALIBRATION if has_attention else _CALIBRATION
        calibrated = max(_CALIBRATION, min(most, steps))
    tables: dict[str, dict[str, Any]] = {
        "task": {
            "name": settings.name,
            "seed": settings.seed,
            "steps": steps,
            "batch": batch,
            "commit_every": every,
            "checkpoint_every": checkpoint,
        },
        "model": {
            "onnx": MODEL_NAME,
            "loss": loss.kind,
            "ignore": loss.ignored if loaded.has_ignored else None,
            "end_of_text": settings.end_of_text,
            "attention_crosses": settings.attention_crosses or None,
            "padding": settings.padding,
        },
        "data": _describe_data(loaded.samples, imported, vocabulary),
        "data.prepare": {"kind": "ids" if imported.model.takes_ids else "affine"},
        "optimizer": _describe_optimizer(optimizer, imported, factor, settings.clip_norm),
        "schedule": _describe_schedule(optimizer),
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
    if loaded.test is not None:
        tables["test"] = _describe_data(loaded.test, imported, vocabulary)
    lines: list[str] = []
    for name, table in tables.items():
        kept = {key: value for key, value in table.items() if value is not None}
        if kept:
            lines += ["", f"[{name}]"] if lines else [f"[{name}]"]
            lines += [f"{_format_key(key)} = {_format(value)}" for key, value in kept.items()]
    return "\n".join(lines) + "\n"


def _describe_data(samples: Samples, imported: Imported, vocabulary: int | None) -> dict[str, Any]:
    """A table of the kind that the samples will be written as."""
    windows = samples.spec.windows
    if windows is None:
        return {"kind": "npy", "x": "x.npy", "y": "y.npy"}
    return {
        "kind": "tokens",
        "path": "tokens.bin",
        "context": windows.context,
        "stride": windows.stride,
        "shift": windows.shift,
        "vocabulary": vocabulary or _count_rows(imported),
    }


def _count_rows(imported: Imported) -> int | None:
    """Of the tables that the module's input is looked up in; None where it is in none."""
    model = imported.model
    rows = (
        int(model.params[layer.weight].shape[0])
        for layer in model.layers
        if isinstance(layer, Embedding) and layer.input == model.input
    )
    return min(rows, default=None)


def _describe_optimizer(
    optimizer: Optimizer, imported: Imported, factor: Fraction, clip_norm: float | None
) -> dict[str, Any]:
    scaled = scale(optimizer, factor)
    rates = optimizer.rates
    names = imported.model.trained
    trained = {name for name in names if name in optimizer.trained & imported.trainable}
    rate: Any = scaled["learning_rate"]
    if len(rates.levels) > 1:
        rate = [[step, exact(level) * rate / exact(rates.largest)] for step, level in rates.levels]
    elif rates.levels:
        rate = exact(rates.levels[0][1]) * rate / exact(rates.largest)
    undecayed = [name for name in names if name in trained and name not in optimizer.decayed]
    return {
        "kind": optimizer.kind,
        "learning_rate": rate,
        **optimizer.numbers,
        **({"eps": scaled["eps"]} if "eps" in scaled else {}),
        "weight_decay": scaled["weight_decay"],
        "no_decay": [_escape(name) for name in undecayed] if scaled["weight_decay"] else None,
        "frozen": [_escape(name) for name in names if name not in trained] or None,
        "clip_norm": None if clip_norm is None else exact(clip_norm) / factor,
    }


def _describe_schedule(optimizer: Optimizer) -> dict[str, Any]:
    points = optimizer.rates.points
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
    """A value as TOML has it; a fraction as a decimal if it is one, else as text."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | np.integer():
            return str(int(value))
        case float() | np.floating():
            return _format(exact(float(value)))
        case Fraction():
            return _format_fraction(value)
        case str():
            return _quote(value)
        case list() | tuple():
            return f"[{', '.join(map(_format, value))}]"
    raise TypeError(f"{value!r} has no form in TOML")


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
