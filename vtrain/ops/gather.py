"""Rows of a table by their numbers, and sums of rows that go back there: embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Builder,
    LeafRule,
    Operator,
    Site,
    Stream,
    Types,
    adding,
    attr_int,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.wire.graph import MAX_ELEMENTS, Attrs, Node, Ref, TensorType


def _numbers(ids: Array, rows: int) -> Array:
    """The law is total: a number outside [0, rows) counts as the nearest."""
    return np.clip(ids.astype(np.int64), 0, rows - 1)


def _read_number(site: Site, place: int, rows: int) -> int:
    return min(max(site.read(1, place), 0), rows - 1)


def _gather_rows_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x, ids = inputs
    return x[_numbers(ids, x.shape[0])]


def _gather_rows_leaf(site: Site, e: int) -> int:
    rows, columns = site.types[0].shape
    place, column = divmod(e, columns)
    return site.read(0, _read_number(site, place, rows) * columns + column)


def _gather_rows_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Rows of a table: row i of the output is row id[i] of x.

    Inputs: x any [rows, columns]; id any [n].
    Output: the dtype and the exponent of x, [n, columns].
    Range: that of x.
    Outside: an id below 0 counts as 0, one of rows or more as rows - 1.
    """
    require_keys(attrs)
    require_inputs(inputs, "int", "int")
    x, ids = inputs
    require(len(x.shape) == 2, f"needs rows and columns, has shape {x.shape}")
    require(len(ids.shape) == 1, f"needs a list of numbers, has shape {ids.shape}")
    return integer_type(x.dtype, (ids.size, x.shape[1]), x.exponent, x.lo, x.hi)


def _gather_rows_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    x, ids = node.inputs
    rows = b.type_of(x).shape[0]
    return (add_rows(b, f"{node.name}/grad_in", grad, ids, rows), None)


def add_rows(b: Builder, name: str, grad: Ref, ids: Ref, rows: int) -> Ref:
    """The gradient of a table of so many rows.  That of a root mean square norm comes unrounded,
    and has too many bits for its sum over all places."""
    terms = b.as_terms(grad, f"{name}_terms", b.type_of(grad).shape[0])
    return b.emit("scatter_add", name, (terms, ids), rows=rows)


def _scatter_add_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x, ids = inputs
    rows = attr_int(attrs, "rows")
    total = np.zeros((rows, x.shape[1]), np.int64)
    np.add.at(total, _numbers(ids, rows), x.astype(np.int64))
    return total


def _scatter_add_terms(attrs: Attrs, types: Types) -> int:
    return types[0].shape[0]


def _scatter_add_streams(attrs: Attrs, types: Types) -> Sequence[Stream]:
    return [Stream(0, types[0].shape[1]), Stream(1, 1)]


def _scatter_add_term(site: Site, e: int, term: int) -> int:
    rows, columns = site.out.shape
    row, column = divmod(e, columns)
    return site.read(0, term * columns + column) if _read_number(site, term, rows) == row else 0


_SCATTER_ADD_LEAF = LeafRule(adding(_scatter_add_term), _scatter_add_terms, _scatter_add_streams)


def _scatter_add_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The adjoint of ``gather_rows``: row r is the sum of the rows of x whose id is r.

    A row that no id names is 0.

    Attributes:
        rows: integer, 1 to 2^32, the rows of the output.
    Inputs: x any [n, columns]; id any [n].
    Output: i64 [rows, columns], the exponent of x.
    Range: min(n * x.lo, 0) to max(n * x.hi, 0).
    Outside: an id below 0 counts as 0, one of rows or more as rows - 1.
    """
    require_keys(attrs, "rows")
    require_inputs(inputs, "int", "int")
    x, ids = inputs
    rows = attr_int(attrs, "rows", 1, MAX_ELEMENTS)
    require(len(x.shape) == 2, f"needs rows and columns, has shape {x.shape}")
    require(ids.shape == x.shape[:1], "needs a number for each row")
    count = x.shape[0]
    lo, hi = min(count * x.lo, 0), max(count * x.hi, 0)
    return integer_type("i64", (rows, x.shape[1]), x.exponent, lo, hi, "the sum")


OPERATORS = table(
    Operator(
        "gather_rows",
        _gather_rows_law,
        _gather_rows_infer,
        _gather_rows_backward,
        leaf=pointwise(_gather_rows_leaf),
    ),
    Operator("scatter_add", _scatter_add_law, _scatter_add_infer, leaf=_SCATTER_ADD_LEAF),
)
