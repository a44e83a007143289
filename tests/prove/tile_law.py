"""What each circuit over tiles says, in plain integers: the meaning of a statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.ops import TABLE
from vtrain.prove.tiles.circuits import GATE_REACH
from vtrain.prove.tiles.grid import apply_map
from vtrain.prove.tiles.statements import LINEAR, ZERO, TileContents, TileStatement
from vtrain.spec.number import STORAGE, rs_int, saturate_int

Array = npt.NDArray[Any]
Tiles = Mapping[str, Array]


def holds(statement: TileStatement, contents: TileContents) -> bool:
    """Whether a statement is true of the contents of tiles."""
    made = make(statement, contents)
    return made is not None and all(
        np.array_equal(contents.combine(statement.given[name]), value)
        for name, value in made.items()
    )


def make(statement: TileStatement, contents: TileContents) -> Tiles | None:
    """What a statement says of the given vectors in ``MADE``, flat, by the others; None where it is
    false of those, whatever these are."""
    name, _, form = statement.circuit.partition("-")
    side = contents.tiling.side
    tiles = {
        key: contents.combine(parts).reshape(side, side)
        for key, parts in statement.given.items()
        if key not in MADE[name]
    }
    made = _LAWS[name](statement, form, tiles)
    return None if made is None else {key: value.reshape(-1) for key, value in made.items()}


def _mask(statement: TileStatement) -> Array:
    rows, columns = (np.asarray(statement.parameters[name], int) for name in ("rows", "columns"))
    return np.outer(rows, columns) > 0


def _number(statement: TileStatement, name: str, default: int = 1) -> int:
    value = statement.parameters.get(name)
    return default if value is None else int(value[0])


def _zero(statement: TileStatement, form: str, x: Tiles) -> Tiles | None:
    return None if x["x"].any() else {}


def _linear(statement: TileStatement, form: str, x: Tiles) -> Tiles:
    assert statement.linear is not None
    return {"y": apply_map(statement.linear, x["x"].reshape(-1))}


def _matmul(statement: TileStatement, form: str, x: Tiles) -> Tiles:
    a = x["a"].T if form[0] == "t" else x["a"]
    b = x["b"].T if form[1] == "t" else x["b"]
    return {"c": a @ b}


def _rescale(statement: TileStatement, form: str, x: Tiles) -> Tiles:
    dtype = form.partition("-")[0]
    shift = _number(statement, "unit").bit_length() - 1
    wide = x["x"].astype(object) * _number(statement, "multiplier")
    wide = wide + _mask(statement) * _number(statement, "offset", 0)
    rounded = [saturate_int(rs_int(int(w), shift), dtype) for w in wide.reshape(-1)]
    return {"y": np.asarray(rounded, dtype=object)}


def _gate(statement: TileStatement, form: str, x: Tiles) -> Tiles | None:
    within = bool((np.abs(x["x"]) <= GATE_REACH).all())
    return {"y": np.where(x["x"] > 0, x["g"], 0)} if within else None


def _mul(statement: TileStatement, form: str, x: Tiles) -> Tiles:
    return {"y": x["a"].astype(object) * x["b"]}


def _square(statement: TileStatement, form: str, x: Tiles) -> Tiles:
    made = np.zeros_like(x["x"])
    made[0, 0] = (x["x"] ** 2).sum()
    return {"s": made}


def _range(statement: TileStatement, form: str, x: Tiles) -> Tiles | None:
    lo, hi = _number(statement, "lo"), _number(statement, "hi")
    empty = not x["x"][~_mask(statement)].any()
    return {} if empty and bool(((x["x"] >= lo) & (x["x"] <= hi)).all()) else None


def _softmax(statement: TileStatement, form: str, x: Tiles) -> Tiles | None:
    rows = int(np.sum(statement.parameters["rows"]))
    counts = np.asarray(statement.parameters["away"])[:rows] == 0
    classes = int(counts.any(axis=0).sum())
    z = x["z"][:rows, :classes].astype(np.int32)
    labels = x["labels"][0, :rows]
    if not ((labels >= 0) & (labels < classes)).all():
        return None
    counts = counts[:, :classes]
    if not counts[np.arange(rows), labels].all():
        return None
    # Those that do not count are 2^32 below: no maximum, and their exponentials are 0.
    maximum = np.where(counts, z, STORAGE["i32"][0]).max(axis=1)
    e = np.where(counts, TABLE["exp2_diff"].law({}, [z, maximum]), 0).astype(np.int32)
    total = TABLE["row_sum"].law({}, [e])
    p = TABLE["divide"].law({}, [e, total])
    made = {
        "maximum": maximum,
        "exp": e,
        "sum": total,
        "p": p,
        "grad": TABLE["sub_one_hot"].law({}, [p, labels]),
        "loss": TABLE["cross_entropy"].law({}, [z, maximum, total, labels]),
    }
    return {name: _pad(value, x["z"]) for name, value in made.items()}


def _look_up(statement: TileStatement, form: str, x: Tiles) -> Tiles | None:
    rows = _read_table(_Table(statement.parameters))
    found = [rows.get(int(key)) for key in x["x"].reshape(-1)]
    return None if None in found else {"y": np.asarray(found, dtype=object)}


class _Table:
    """Parameters of a look-up, the same where they are the same object."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = parameters

    def __hash__(self) -> int:
        return id(self.parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Table) and self.parameters is other.parameters


@lru_cache(maxsize=4)
def _read_table(table: _Table) -> Mapping[int, int]:
    keys, entries = (table.parameters[name].tolist() for name in ("keys", "entries"))
    return dict(zip(keys, entries, strict=True))


def _pad(value: Array, tile: Array) -> Array:
    whole = np.zeros(tile.shape, dtype=value.dtype)
    matrix = value.reshape(1, -1) if value.ndim == 1 else value
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    return whole


_LAWS: dict[str, Callable[[TileStatement, str, Tiles], Tiles | None]] = {
    ZERO: _zero,
    LINEAR: _linear,
    "gate": _gate,
    "look": _look_up,
    "matmul": _matmul,
    "mul": _mul,
    "range": _range,
    "rescale": _rescale,
    "softmax": _softmax,
    "square": _square,
}

MADE = {
    "linear": {"y"},
    "look": {"y"},
    "matmul": {"c"},
    "rescale": {"y"},
    "gate": {"y"},
    "mul": {"y"},
    "square": {"s"},
    "softmax": {"maximum", "exp", "sum", "p", "grad", "loss"},
    "range": set[str](),
    ZERO: set[str](),
}
"""The given vectors that a circuit makes of the others."""
