"""What a task refuses of the arguments that it was made of, all at once.

The arguments become the tables of a task, and the parser of tables judges them, as it does those of
a file: what it refuses is told of the argument, mended in the tables, and the parser goes on.  What
else is refused may leave nothing that fits together; in its place stand plain samples, and a plain
optimizer, so that nothing hides anything.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from vtrain.errors import (
    DataError,
    GraphError,
    ModelError,
    Problem,
    RangeError,
    TaskError,
    VtrainError,
    gather,
)
from vtrain.printable import cut
from vtrain.train.mending import EXAMPLES, Tables, describe_sites, mend_tables
from vtrain.train.task import Held, decode_toml, list_sites, parse_tables
from vtrain.train.torch_hooks.data import Loaded, Wanted, load
from vtrain.train.torch_hooks.optimizers import exact
from vtrain.train.torch_hooks.tables import (
    Parts,
    Settings,
    compute_factor,
    count_rows,
    describe_task,
    write_tables,
)
from vtrain.train.written import TASK_NAME

_WORDS: Final = (
    (r"set ignore = (-?\d+) in the table model", r"give nn.CrossEntropyLoss(ignore_index=\1)"),
    (r"raise data\.vocabulary, or .*", "a model has a row for each id: correct the tokens"),
    (r'data\.prepare needs kind = "ids" or "one_hot"', "the module takes floats"),
    (r"leave model\.end_of_text and model\.padding out of the task file", "leave both out"),
    (r"must be true or false", "must be True or False"),
    (r'must be a number, or text like "1/255"', "must be a number"),
)
"""What a task file has for what is an argument here."""
_TORCH: Final = {"learning_rate": "lr"}
"""What torch calls keys of the table ``optimizer``."""
_ARGUMENTS: Final = ("task", "model", "format")
"""Tables whose keys are arguments."""
_OF_ARGUMENTS: Final = ("clip_norm", "vocabulary", "stride")
"""And keys of other tables."""
_OF_IDS: Final = ("end_of_text", "padding")
_SMALLER: Final = "a lower learning rate, if the first steps diverge, or smaller targets"
_REST: Final = Problem("", "the rest", "was not looked at", "mend what stands above, and try again")
_LONGEST: Final = 100
"""Characters of an argument that are shown."""
_STAND_INS: Final = 64
"""Samples, at most, that stand in for those that were refused."""


@dataclass(frozen=True)
class Arguments:
    """Arguments as they were given, of which the tables of a task are made."""

    settings: Settings
    optimizer: Any
    epochs: int | None
    vocabulary: int | None
    exponents: Any


def say_of_arguments(message: str) -> str:
    """What is said of a task file, said of arguments."""
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message


def check_arguments(parts: Parts, given: Arguments, problems: list[Problem]) -> None:
    """Add to ``problems`` all that a task cannot have of the arguments that its ``parts`` were read
    of.

    Errors as of :func:`vtrain.train.task.list_sites`, of what is no argument's.
    """
    exponents = given.exponents
    is_sites = isinstance(exponents, Mapping) and all(isinstance(key, str) for key in exponents)
    if exponents is not None and not is_sites:
        fix = "exponents=task.spec.exponents of an earlier task"
        problems.append(Problem("exponents", _write(exponents), "is no dict of sites", fix))
        given = replace(given, exponents=None)
    judged = parts if not problems else replace(parts, loaded=_stand_in(parts))
    imported, loaded = judged.imported, judged.loaded
    text = write_tables(describe_task(judged, given.settings, given.vocabulary, given.exponents))
    held = None
    if imported is not None and loaded is not None and judged.loss is not None:
        held = Held(imported.data, loaded.samples, loaded.test)
    sites: set[str] | None = None

    def check(tables: Tables) -> None:
        nonlocal sites
        file = parse_tables(tables, text, Path(TASK_NAME), held=held)
        if held is not None and imported is not None:
            sites = list_sites(file, imported.model)[1]

    def describe(tables: Tables, error: TaskError) -> Problem:
        return place_fault(error, judged, given)

    found: list[Problem] = []
    try:
        tables = decode_toml(text, Path(TASK_NAME))
        mend_tables(tables, check, describe, found, _REST, _list_examples(judged))
    except (ModelError, GraphError, DataError) as error:
        placed = place_error(error, judged, given)
        if placed is not None:
            found.append(placed)
        elif not problems:  # else it may follow from what was refused
            raise
    told = {problem.path for problem in problems}
    problems += [problem for problem in found if problem.path not in told]
    if sites is not None and given.exponents is not None:
        differ = describe_sites(given.exponents.keys(), sites)
        if differ:
            fix = "leave exponents= out: they are calibrated then"
            problems.append(Problem("exponents", "the dict", differ, fix))


def _stand_in(parts: Parts) -> Loaded | None:
    """A few samples of the forms that model and loss take, in place of those that were given."""
    if parts.imported is None or parts.loss is None:
        return None
    count = min(parts.batch or 1, _STAND_INS)
    model, output = parts.imported.model, parts.imported.output_shape
    has_classes = parts.loss.kind == "cross_entropy"
    x = np.zeros((count, *model.input_shape), np.int64 if model.takes_ids else np.float32)
    y = np.zeros((count, *(output[:-1] if has_classes else output)))
    wanted = Wanted(model.input_shape, model.takes_ids, has_classes, ignored=None)
    return gather([], lambda: load((x, y), None, wanted))


def _list_examples(parts: Parts) -> Mapping[str, str]:
    """Those of a file; of a vocabulary that of the model."""
    rows = None if parts.imported is None else count_rows(parts.imported)
    return {**EXAMPLES, **({"data.vocabulary": f"vocabulary = {rows}"} if rows else {})}


def place_error(error: VtrainError, parts: Parts, given: Arguments) -> Problem | None:
    """An error as a problem of the module's part or of the argument that it is of; None where that
    is not known."""
    if isinstance(error, TaskError):
        return place_fault(error, parts, given)
    if isinstance(error, RangeError) and error.where.startswith("node loss ("):
        reason = f"{error.message}, by the values that the first steps came to"
        return Problem("loss", "" if parts.loss is None else parts.loss.kind, reason, _SMALLER)
    if error.where == "model" and isinstance(error, ModelError):
        named = [key for key in _OF_IDS if getattr(given.settings, key) is not None]
        message = say_of_arguments(error.message)
        return Problem(", ".join(named), "the ids", message, "leave it out") if named else None
    return None if parts.imported is None else parts.imported.place(error)


def place_fault(error: TaskError, parts: Parts, given: Arguments) -> Problem:
    """What the parser refused, as a problem of the argument that it is of."""
    where, message = error.where, say_of_arguments(error.message)
    table, _, key = where.partition(".")
    if "multiple of commit_every" in message:
        return _place_count(key, message, parts, given)
    if table == "optimizer" and key in ("kind", "frozen", "no_decay"):
        fix = "requires_grad_(True) of what is to be trained, and an optimizer of these parameters"
        return Problem("optimizer", type(given.optimizer).__name__, message, fix)
    if table == "optimizer" and key != "clip_norm":
        return _place_number(key, message, parts, given)
    if table == "schedule":
        return Problem("scheduler", key, message, "a schedule of fewer turns, or none")
    if table == "exponents":
        shown = _write((given.exponents or {}).get(key))
        return Problem(f"exponents[{key!r}]", shown, message, "leave exponents= out")
    name = key if table in _ARGUMENTS or key in _OF_ARGUMENTS else where
    return Problem(name, _show(name, parts, given), message, _suggest(name, where, parts))


def _place_count(key: str, message: str, parts: Parts, given: Arguments) -> Problem:
    """A number of steps that is no multiple."""
    every = given.settings.commit_every
    if key != "steps":
        value = _show(key, parts, given)
        return Problem(key, value, message, f"a multiple of {every}, or commit_every=1")
    steps = parts.steps or 1
    whole = max(steps // every, 1) * every
    fix = f"steps={whole}, or commit_every=1"
    if given.epochs is None:
        return Problem("steps", str(steps), message, fix)
    return Problem("epochs", str(given.epochs), f"makes {steps} steps, which {message}", fix)


def _place_number(key: str, message: str, parts: Parts, given: Arguments) -> Problem:
    """A number of the optimizer, of the first group that has it."""
    name = _TORCH.get(key, key)
    groups = getattr(given.optimizer, "param_groups", [])
    number = next((at for at, group in enumerate(groups) if group.get(name)), 0)
    value = groups[number].get(name) if groups else None
    factor = compute_factor(parts)
    if key == "weight_decay" and factor != 1 and isinstance(value, float | int):
        scaled = float(exact(value) / factor)
        message = f"counts as {scaled:.6g}, by the mean that the loss takes, and {message}"
    fix = _suggest(name, f"optimizer.{key}", parts)
    return Problem(f"optimizer.param_groups[{number}][{name!r}]", _write(value), message, fix)


def _show(name: str, parts: Parts, given: Arguments) -> str:
    """An argument as it was given."""
    for owner in (given.settings, given, parts):
        if hasattr(owner, name):
            return _write(getattr(owner, name))
    return "as it is"


def _write(value: object) -> str:
    try:
        return cut(repr(value), _LONGEST)
    except ValueError:  # Python writes no number of thousands of digits
        return f"a {type(value).__name__}"


def _suggest(name: str, where: str, parts: Parts) -> str:
    """What would do instead: an example, or nothing."""
    line = _list_examples(parts).get(where)
    if line is None:
        return f"leave {name}= out"
    ((_, value),) = tomllib.loads(line).items()
    return f"{name}={value!r}"
