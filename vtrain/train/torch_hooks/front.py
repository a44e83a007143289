"""From a module, an optimizer, a loss and samples to a compiled task, in one call.

What is built is the text of a task file, which then goes the way of every task file: so the id is
that of the file that :meth:`vtrain.train.task.CompiledTask.write` writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

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
from vtrain.graph.step import keeps_order
from vtrain.spec.samples import Samples
from vtrain.train.data import check_ids, check_labels
from vtrain.train.deliver import check_fit
from vtrain.train.task import CompiledTask, Held, TaskFile, compile_task, parse_task, profile_task
from vtrain.train.torch_hooks.arguments import (
    Arguments,
    check_arguments,
    place_error,
    say_of_arguments,
)
from vtrain.train.torch_hooks.data import Loaded, Wanted, load
from vtrain.train.torch_hooks.losses import Loss, read_loss
from vtrain.train.torch_hooks.optimizers import Optimizer, read_optimizer
from vtrain.train.torch_hooks.tables import (
    Parts,
    Settings,
    count_rows,
    describe_task,
    write_tables,
)
from vtrain.train.written import TASK_NAME

Progress = Callable[[str, int, int], None]
"""(what is being done, how much is done, of how much)"""

Module = nn.Module


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
    settings = _take_numbers(settings)
    problems: list[Problem] = _check_counts(
        batch=batch, steps=steps, epochs=epochs, stride=stride, vocabulary=vocabulary
    )
    miscounted = {problem.path for problem in problems}
    stride = 1 if "stride" in miscounted else stride
    vocabulary = None if "vocabulary" in miscounted else vocabulary
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
        stride=stride,
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
    problems += _check_unused(data, loaded, stride=stride, vocabulary=vocabulary, columns=columns)
    size, total = None, None
    if "batch" not in miscounted:
        size = gather(problems, lambda: _read_batch(batch, data))
    if not miscounted & {"steps", "epochs"}:
        total = gather(problems, lambda: _count_steps(steps, epochs, size, loaded))
    found = gather(problems, lambda: read_optimizer(module, optimizer, scheduler, total or 1))
    problems += _check_ignored(found_loss, loaded)
    settings = settings if settings.name else replace(settings, name=type(module).__name__)
    parts = Parts(imported, found_loss, loaded, found, total, size)
    arguments = Arguments(settings, optimizer, epochs, vocabulary, exponents)
    check_arguments(parts, arguments, problems)
    progress("reading the module", 1, 1)
    if problems or size is None or not (imported and found_loss and loaded and total and found):
        raise UnsupportedError(problems, where="from_torch")
    notes = (
        *imported.notes,
        *loaded.notes,
        *_note_loss(imported, found_loss, loaded, found),
        *_note_targets(imported, found_loss, loaded, size),
        *_note_schedule(scheduler, epochs, total),
    )
    held = Held(imported.data, loaded.samples, loaded.test)
    try:
        return _compile(parts, arguments, held, notes, progress)
    except (TaskError, ModelError, GraphError) as error:
        placed = place_error(error, parts, arguments)
        if placed is None:
            raise
        raise UnsupportedError([placed], where="from_torch") from error
    except DataError as error:
        raise DataError(say_of_arguments(error.message), where=error.where) from error


def _compile(
    parts: Parts, arguments: Arguments, held: Held, notes: Sequence[str], progress: Progress
) -> CompiledTask:
    given = arguments.exponents
    tables = describe_task(parts, arguments.settings, arguments.vocabulary, given)
    file = parse_task(write_tables(tables), Path(TASK_NAME), held=held)
    if given is None:
        file = _calibrate(file, progress)
    task = compile_task(file)
    task = replace(task, notes=(*notes, *task.notes))
    if held.test is not None:
        check_fit(task.graph, held.test, "test")
    return task


def _take_numbers(settings: Settings) -> Settings:
    """Numbers of numpy and torch as those of Python."""
    found: dict[str, Any] = {one.name: getattr(settings, one.name) for one in fields(settings)}
    for name, value in found.items():
        if isinstance(value, np.generic | torch.Tensor) and math.prod(value.shape) == 1:
            found[name] = value.item()
    return replace(settings, **found)


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


def _check_unused(
    data: object, loaded: Loaded | None, *, stride: int, vocabulary: int | None, columns: object
) -> list[Problem]:
    """Arguments that say something of another kind of data than there is."""
    problems = []
    if loaded is not None and loaded.samples.spec.windows is None:
        reason = "is of windows of tokens, and data are samples as they are"
        problems += [
            Problem(name, repr(value), reason, f"leave {name}= out")
            for name, value, plain in (("stride", stride, 1), ("vocabulary", vocabulary, None))
            if value != plain
        ]
    if columns is not None and isinstance(data, tuple | list | np.ndarray | torch.Tensor):
        reason = "names columns of a dict or a dataset, and data has none"
        problems.append(Problem("columns", repr(columns), reason, "leave columns= out"))
    return problems


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
    shape, rows = imported.output_shape, count_rows(imported)
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
            reason, _, fix = say_of_arguments(error.message).partition(": ")
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


def _check_ignored(loss: Loss | None, loaded: Loaded | None) -> list[Problem]:
    """Torch's mean is over the labels that count, of which each batch has another number."""
    if loss is None or loaded is None:
        return []
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
