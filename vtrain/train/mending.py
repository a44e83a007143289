"""All that the one parser of tasks would refuse of a task's tables, which stops at the first.

A problem is mended in a copy of the tables, as its fix says, and the parser goes on.  So a rule of
a task stands in one place, whether the task is a file or is made of a module.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, TypeVar

from vtrain.errors import Problem, TaskError

T = TypeVar("T")
Tables = dict[str, Any]
"""What a task file says, by its tables."""

_MOST_PROBLEMS: Final = 100
_MOST_TRIES: Final = 3
"""Times that one key is mended, before what follows it is left alone."""
_MOST_NAMES: Final = 5
EXAMPLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "task.name": 'name = "my-model"',
        "task.seed": "seed = 1",
        "task.steps": "steps = 1000",
        "task.batch": "batch = 32",
        "task.commit_every": "commit_every = 1",
        "task.checkpoint_every": "checkpoint_every = 100",
        "task.commitments": 'commitments = ["blake3"]',
        "model.onnx": 'onnx = "model.onnx"',
        "model.loss": 'loss = "cross_entropy"',
        "data.kind": 'kind = "npz"',
        "data.path": 'path = "data.npz"',
        "data.x": 'x = "x.npy"',
        "data.y": 'y = "y.npy"',
        "data.context": "context = 64",
        "data.stride": "stride = 1",
        "data.vocabulary": "vocabulary = 256",
        "data.dtype": 'dtype = "u16"',
        "data.prepare": "scale = 1",
        "data.validation": "validation = 0.1",
        "optimizer.kind": 'kind = "sgd"',
        "optimizer.learning_rate": "learning_rate = 0.1",
        "optimizer.momentum": "momentum = 0.9",
        "optimizer.betas": "betas = [0.9, 0.999]",
        "optimizer.eps": "eps = 1e-8",
        "optimizer.weight_decay": "weight_decay = 0.01",
        "optimizer.clip_norm": "clip_norm = 1.0",
        "schedule.kind": 'kind = "cosine"',
        "schedule.at": "at = [500, 800]",
        "schedule.decay": "decay = 100",
        "schedule.points": "points = [[0, 0.1], [100, 1]]",
        "proof.circuit": 'circuit = "tiles"',
        "proof.srs": 'srs = "kzg17.srs"',
        "proof.k": "k = 17",
        "beacon.chain": 'chain = "quicknet"',
        "format.margin": "margin = 3",
        "format.gradient_margin": "gradient_margin = 3",
        "format.calibration_steps": "calibration_steps = 20",
    }
)
"""How a key may be written, for those that must be there or are often wrong."""


def mend_tables(
    values: Mapping[str, Any],
    check: Callable[[Tables], T],
    describe: Callable[[Tables, TaskError], Problem],
    problems: list[Problem],
    rest: Problem,
    examples: Mapping[str, str] = EXAMPLES,
) -> T | None:
    """What ``check`` gives of the tables when all is mended that it raises TaskErrors for, each of
    which ``describe`` makes one of the ``problems``.

    None where that was not found: the last of the problems is then ``rest``.
    """
    tables = copy.deepcopy(dict(values))
    tries: dict[str, int] = {}
    while len(problems) < _MOST_PROBLEMS:
        try:
            return check(tables)
        except TaskError as error:
            where = error.where
            tries[where] = tries.get(where, 0) + 1
            if tries[where] == 1:
                problems.append(describe(tables, error))
            if tries[where] > _MOST_TRIES or not _repair(tables, error, tries[where], examples):
                break
    problems.append(rest)
    return None


def describe_sites(given: Collection[str], wanted: Collection[str]) -> str:
    """How the sites that exponents are given for differ from those that need some; "" if in
    nothing."""
    missing, extra = sorted({*wanted} - {*given}), sorted({*given} - {*wanted})
    if not missing and not extra:
        return ""
    if not given:
        return "is empty, and nothing is trained without exponents"
    lacks = f"lacks {_join(missing)}" if missing else ""
    has = f"has {_join(extra)}, which the model does not have" if extra else ""
    return " and ".join(filter(None, (lacks, has)))


def _join(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown + (f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "")


def is_unknown(error: TaskError) -> bool:
    """Whether it is of a key that nobody knows."""
    return error.message.startswith(("unknown key", "unknown table"))


def as_data(where: str) -> str:
    """A key of the table ``test`` is written as that of ``data``."""
    return f"data.{where.removeprefix('test.')}" if where.startswith("test.") else where


def locate(tables: Tables, where: str) -> tuple[Tables | None, str]:
    """The table in which the key of a place stands, or would stand, and the key."""
    head, _, rest = where.partition(".")
    if not rest:
        return tables, head
    table = tables.get(head)
    if not isinstance(table, dict):
        return None, rest
    if head == "exponents":  # names of sites have dots
        return table, rest
    inner, _, key = rest.partition(".")
    if not key:
        return table, rest
    below = table.get(inner)
    return (below, key) if isinstance(below, dict) else (None, key)


def _repair(tables: Tables, error: TaskError, attempt: int, examples: Mapping[str, str]) -> bool:
    """Mend the place of an error in the tables; whether anything was changed."""
    where = error.where
    head, _, rest = where.partition(".")
    if rest and not isinstance(tables.get(head), dict):
        tables[head] = {}
    table, key = locate(tables, where)
    if table is None:
        return False
    value = table.get(key)
    if is_unknown(error):
        table.pop(key, None)
        # Of epochs nothing follows for steps; all others go under the name that was meant.
        if error.meant and error.meant not in table and error.meant != "steps":
            table[error.meant] = value
        return True
    if "multiple of commit_every" in error.message and attempt == 1:
        return table.pop("commit_every", None) is not None
    if error.meant and attempt == 1:  # the keys beside it are judged by what was meant
        table[key] = error.meant
        return True
    known = as_data(where)
    if known in examples and attempt < _MOST_TRIES:
        line = tomllib.loads(examples[known], parse_float=Decimal)
        table[key] = line if where == "data.prepare" else line.get(key, value)
        return bool(table[key] != value)
    return table.pop(key, None) is not None
