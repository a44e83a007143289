"""What each circuit over tiles says, in plain integers: the meaning of a statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    tiles = {name: contents.combine(parts) for name, parts in statement.given.items()}
    name, _, form = statement.circuit.partition("-")
    side = contents.tiling.side
    return _LAWS[name](statement, form, {key: x.reshape(side, side) for key, x in tiles.items()})


def _mask(statement: TileStatement) -> Array:
    rows, columns = (np.asarray(statement.parameters[name], int) for name in ("rows", "columns"))
    return np.outer(rows, columns) > 0


def _number(statement: TileStatement, name: str, default: int = 1) -> int:
    value = statement.parameters.get(name)
    return default if value is None else int(value[0])


def _zero(statement: TileStatement, form: str, x: Tiles) -> bool:
    return not x["x"].any()


def _linear(statement: TileStatement, form: str, x: Tiles) -> bool:
    assert statement.linear is not None
    image = apply_map(statement.linear, x["x"].reshape(-1))
    return np.array_equal(image, x["y"].reshape(-1))


def _matmul(statement: TileStatement, form: str, x: Tiles) -> bool:
    a = x["a"].T if form[0] == "t" else x["a"]
    b = x["b"].T if form[1] == "t" else x["b"]
    return np.array_equal(a @ b, x["c"])


def _rescale(statement: TileStatement, form: str, x: Tiles) -> bool:
    dtype = form.partition("-")[0]
    shift = _number(statement, "unit").bit_length() - 1
    wide = x["x"].astype(object) * _number(statement, "multiplier")
    wide = wide + _mask(statement) * _number(statement, "offset", 0)
    return all(
        saturate_int(rs_int(int(w), shift), dtype) == int(y)
        for w, y in zip(wide.reshape(-1), x["y"].reshape(-1), strict=True)
    )


def _gate(statement: TileStatement, form: str, x: Tiles) -> bool:
    within = bool((np.abs(x["x"]) <= GATE_REACH).all())
    return within and np.array_equal(np.where(x["x"] > 0, x["g"], 0), x["y"])


def _mul(statement: TileStatement, form: str, x: Tiles) -> bool:
    return np.array_equal(x["a"].astype(object) * x["b"], x["y"])


def _square(statement: TileStatement, form: str, x: Tiles) -> bool:
    expected = np.zeros_like(x["s"])
    expected[0, 0] = (x["x"] ** 2).sum()
    return np.array_equal(expected, x["s"])


def _range(statement: TileStatement, form: str, x: Tiles) -> bool:
    lo, hi = _number(statement, "lo"), _number(statement, "hi")
    empty = not x["x"][~_mask(statement)].any()
    return empty and bool(((x["x"] >= lo) & (x["x"] <= hi)).all())


def _softmax(statement: TileStatement, form: str, x: Tiles) -> bool:
    rows = int(np.sum(statement.parameters["rows"]))
    counts = np.asarray(statement.parameters["away"])[:rows] == 0
    classes = int(counts.any(axis=0).sum())
    z = x["z"][:rows, :classes].astype(np.int32)
    labels = x["labels"][0, :rows]
    if not ((labels >= 0) & (labels < classes)).all():
        return False
    counts = counts[:, :classes]
    if not counts[np.arange(rows), labels].all():
        return False
    # Those that do not count are 2^32 below: no maximum, and their exponentials are 0.
    maximum = np.where(counts, z, STORAGE["i32"][0]).max(axis=1)
    e = np.where(counts, TABLE["exp2_diff"].law({}, [z, maximum]), 0).astype(np.int32)
    total = TABLE["row_sum"].law({}, [e])
    p = TABLE["divide"].law({}, [e, total])
    expected = {
        "maximum": maximum,
        "exp": e,
        "sum": total,
        "p": p,
        "grad": TABLE["sub_one_hot"].law({}, [p, labels]),
        "loss": TABLE["cross_entropy"].law({}, [z, maximum, total, labels]),
    }
    return all(_is_padded(value, x[name]) for name, value in expected.items())


def _look_up(statement: TileStatement, form: str, x: Tiles) -> bool:
    keys, entries = (statement.parameters[name].tolist() for name in ("keys", "entries"))
    rows = dict(zip(keys, entries, strict=True))
    return all(
        rows.get(int(key)) == int(entry)
        for key, entry in zip(x["x"].reshape(-1), x["y"].reshape(-1), strict=True)
    )


def _is_padded(value: Array, tile: Array) -> bool:
    whole = np.zeros_like(tile)
    matrix = value.reshape(1, -1) if value.ndim == 1 else value
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    return np.array_equal(whole, tile)


_LAWS: dict[str, Callable[[TileStatement, str, Tiles], bool]] = {
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
