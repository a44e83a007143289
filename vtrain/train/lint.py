"""Everything that is wrong with a task file, at once, each thing with what mends it.

The one parser of task files stops at the first problem, which :mod:`vtrain.train.mending` mends, so
that it goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from vtrain.errors import DataError, Problem, TaskError, VtrainError, VtrainWarning
from vtrain.graph.model import Softmax
from vtrain.graph.onnx_file import read_onnx
from vtrain.graph.onnx_import import find_problems
from vtrain.train.data import DataSource, IdxSource, NpySource, TokenSource, load_samples
from vtrain.train.mending import (
    EXAMPLES,
    Tables,
    as_data,
    describe_sites,
    is_unknown,
    locate,
    mend_tables,
)
from vtrain.train.task import (
    TaskFile,
    compile_task,
    decode_toml,
    list_sites,
    parse_tables,
    read_task_text,
)


@dataclass
class Findings:
    """``problems`` keep a task from being trained; ``advice`` does not."""

    problems: list[Problem] = field(default_factory=list)
    advice: list[Problem] = field(default_factory=list)


def lint_task(path: Path, *, compile_all: bool = True) -> Findings:
    """Everything wrong with the task file at ``path``, and with what it names.

    Without ``compile_all`` ranges are not proven, which takes as long as `vtrain task check`.
    TaskError for a file that cannot be read as TOML at all: nothing else can be said of it.
    """
    found = Findings()
    text = read_task_text(path)
    file = _mend(decode_toml(text, path), text, path, found)
    if file is not None:
        _look_at_files(file, found, compile_all=compile_all)
    return found


# --- the tables


def _mend(values: dict[str, Any], text: str, path: Path, found: Findings) -> TaskFile | None:
    """What the file says when all that is wrong in it is mended; None where that was not found."""

    def check(tables: Tables) -> TaskFile:
        with _hearing(found):
            return parse_tables(tables, text, path)

    rest = Problem(str(path), "the rest", "was not looked at", "mend what stands above")
    return mend_tables(values, check, _describe, found.problems, rest)


def _describe(tables: Tables, error: TaskError) -> Problem:
    table, key = locate(tables, error.where)
    shown = ""
    if table is not None and key in table:
        value = table[key]
        shown = f"[{key}]" if isinstance(value, dict) else f"{key} = {_show(value)}"
    line = EXAMPLES.get(as_data(error.where), "")
    if error.meant and not is_unknown(error):
        fix = f'write {key} = "{error.meant}"' + (f" and {error.also}" if error.also else "")
    elif error.meant:
        fix = f"call it {error.meant}"
        if error.meant == "steps":
            fix = "write steps, which are epochs * samples / batch"
    elif is_unknown(error):
        fix = "leave it out (docs/tasks.md has all keys)"
    elif "multiple of commit_every" in error.message:
        fix = "choose a multiple, or leave commit_every out"
    elif line:
        fix = f"write, for one, {line}"
    else:
        fix = "correct it (docs/tasks.md), or leave it out"
    return Problem(error.where, shown or "the key", error.message, fix)


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_show, value))}]"
    return str(value) if isinstance(value, int | Decimal) else repr(value)


@contextmanager
def _hearing(found: Findings) -> Iterator[None]:
    """Warnings of ours are advice, each once."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield
    for warning in heard:
        if not isinstance(warning.message, VtrainWarning):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
            continue
        fix = warning.message.instead or "see docs/tasks.md"
        reason = str(warning.message).removesuffix(f"; {fix}")
        if reason not in (advice.reason for advice in found.advice):
            found.advice.append(Problem("task", "a warning", reason, fix))


# --- what the tables name


def _look_at_files(file: TaskFile, found: Findings, *, compile_all: bool) -> None:
    before = len(found.problems)

    def attempt(work: Callable[[], object], path: str, what: str, instead: str) -> None:
        try:
            with _hearing(found):
                work()
        except VtrainError as error:
            if path == "task" and isinstance(error, DataError):
                path, what = "data", _name_files(file.data)
                instead = "correct the file, or what [data] says"
            elif path == "task" and error.where.split(".")[0] == "data":
                place, what = error.where, _name_files(file.data)
                instead = "correct the file, or what [data] says"
                found.problems.append(Problem(place, what, error.message, instead))
                return
            place = f"{path}: {error.where}" if error.where else path
            found.problems.append(Problem(place, what, error.message, instead))

    _look_at_model(file, found)
    attempt(
        lambda: _load(file.data), "data", "the samples", "correct the file, or what [data] says"
    )
    if file.test is not None:
        test = file.test
        attempt(
            lambda: _load(test), "test", "held-out samples", "correct the file, or what [test] says"
        )
    if len(found.problems) > before:
        return  # what follows needs both
    sites: set[str] = set()
    attention = False

    def list_all() -> None:
        nonlocal sites, attention
        model, sites = list_sites(file)
        attention = any(isinstance(layer, Softmax) for layer in model.layers)

    attempt(list_all, "task", "model, data and optimizer together", "correct what is named")
    if len(found.problems) > before:
        return
    _advise(file, found, attention=attention)
    command = f"vtrain profile {file.path}"
    reason = describe_sites(file.exponents.keys(), sites)
    if reason:
        found.problems.append(Problem("exponents", "the table", reason, f"run `{command}`"))
    elif compile_all and len(found.problems) == 0:
        # The SRS is left to `task check`: opening it takes long, and is not of the file.
        plain = replace(file, proof=None, commitments=("blake3",))
        attempt(
            lambda: compile_task(plain), "task", "the step graph", f"run `{command}`, or see above"
        )


def _look_at_model(file: TaskFile, found: Findings) -> None:
    where = str(file.model)
    try:
        data = read_onnx(file.model, error=TaskError)
        for problem in find_problems(data):
            found.problems.append(
                Problem(
                    f"model.onnx: {problem.where}",
                    where,
                    problem.message,
                    "export the model without it (docs/tasks.md, Model)",
                )
            )
    except VtrainError as error:
        found.problems.append(
            Problem(
                "model.onnx",
                where if error.where in ("", "ONNX file") else error.where,
                error.message,
                "name the ONNX file of a forward pass, and leave its data where it says they are",
            )
        )


def _name_files(source: DataSource) -> str:
    """The files of samples, as a table names them."""
    if isinstance(source, IdxSource | NpySource):
        return f"{source.x}, {source.y}"
    return str(source.path)


def _load(source: DataSource) -> None:
    load_samples(source)


def _advise(file: TaskFile, found: Findings, *, attention: bool) -> None:
    if file.test is None:
        fix = "validation = 0.1 in [data]" if isinstance(file.data, TokenSource) else "a table"
        found.advice.append(
            Problem("test", "held-out data", "are not named: nothing tells how good it is", fix)
        )
    if attention and not (file.symmetric_gradients and file.fine_gradients):
        found.advice.append(
            Problem(
                "format",
                "attention",
                "drifts away from what floats would do",
                "gradient_margin = 1, symmetric_gradients = true, fine_gradients = true",
            )
        )
