"""Rows of a softmax and what becomes of them: gradients, losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.prove.tiles.builder import Emitters, TileBuilder, require_range
from vtrain.prove.tiles.circuits import SOFTMAX_TILES, WIDE_REACH, softmax_parameters
from vtrain.prove.tiles.emit.linear import emit_sum
from vtrain.prove.tiles.emit.rescale import rescale
from vtrain.prove.tiles.emit.rows import (
    MOST_COLUMNS,
    emit_cross_entropy,
    emit_divide,
    emit_exponentials,
    emit_logit_grad,
    emit_row_max,
    emit_row_sum,
    emit_sub_one_hot,
    is_apart,
)
from vtrain.prove.tiles.grid import Array, Grid, make_scalar
from vtrain.prove.tiles.statements import (
    StepFacts,
    TileContents,
    TiledValue,
    TileStatement,
    add,
)
from vtrain.spec.number import SATURATION
from vtrain.wire.graph import Node, Ref

if TYPE_CHECKING:
    from vtrain.prove.tiles.emit.attention import MaskedRows

SOFTMAX_CLASSES: Final = (16, MOST_COLUMNS)


_LEAST: Final = frozenset({"maximum", "exp", "sum"})
"""What is made of any rows that the circuit takes."""
_OF_LABELS: Final = frozenset({"labels", "grad", "loss"})
"""What is made of rows that are logits of classes, and not of those of attention."""


def emit_rows(s: TileBuilder, z: Ref) -> None:
    """The statements that tie together all that is made of the rows of ``z``.

    The circuit is one of a loss whose gradient has 14 bits.  What it takes and no node makes is
    made: shares and a gradient where ``logit_grad`` has more bits of it; a loss and labels, of
    which each is the first element that counts, for rows that have none, as those of attention.
    """
    found = s.rows[z]
    node, masked = s.graph.nodes[z.node].name, s.masked.get(z)
    missing = _LEAST - found.keys()
    if missing:
        raise CircuitError(
            f"is part of a softmax without its {min(missing)}, and the circuit ties all together: "
            "let the graph have the maximum, the exponentials and their sum",
            where=node,
        )
    if masked is not None and found.keys() & _OF_LABELS:
        raise CircuitError(
            "leaves out logits by spans, and is read by a loss, which the circuit has of whole "
            "rows alone: take the loss of logits without spans",
            where=node,
        )
    grid = s.own_grid(z)
    most = next(room for room in SOFTMAX_CLASSES if grid.columns <= room)
    refs = {**found, "z": z}
    values: dict[str, TiledValue] = {
        what: masked.inside if masked is not None and what == "z" else s.standard(refs[what])
        for what in SOFTMAX_TILES
        if what in refs
    }
    _supply(s, node, grid, values, masked)

    def make(block: int, facts: StepFacts) -> TileStatement:
        rows, columns = grid.extent(block)
        given = {what: values[what].at(block) for what in SOFTMAX_TILES}
        counts = None if masked is None else masked.cut_mask(block)
        parameters = softmax_parameters(s.side, most, rows=rows, classes=columns, counts=counts)
        return TileStatement(node, f"softmax-{most}", given, parameters)

    s.family(grid.count, make)


def _supply(
    s: TileBuilder,
    node: str,
    grid: Grid,
    values: dict[str, TiledValue],
    masked: MaskedRows | None,
) -> None:
    """The tensors that the circuit takes and ``values`` has not yet."""
    side, row = s.side, s.grid((1, grid.rows))

    def read(contents: TileContents, what: str, block: int) -> Array:
        """The live part of a tile: a matrix, or of a vector its elements."""
        rows, columns = grid.extent(block)
        tile = np.asarray(contents.combine(values[what].at(block))).reshape(side, side)
        return tile[:rows, :columns] if what in ("z", "exp", "p") else tile[0, :rows]

    def write(value: Array) -> Array:
        tile = np.zeros((side, side), dtype=np.int64)
        matrix = value.reshape(1, -1) if value.ndim == 1 else value
        tile[: matrix.shape[0], : matrix.shape[1]] = matrix
        return tile.reshape(-1)

    def compute_labels(facts: StepFacts, block: int) -> Array:
        tile = np.zeros((side, side), dtype=np.int64)
        if masked is not None:
            tile[0] = masked.cut_begins(block)
        return tile.reshape(-1)

    def compute(op: str, *names: str) -> Callable[[TileContents, int], Array]:
        """A block of what an operator makes of what has these names."""

        def find(contents: TileContents, block: int) -> Array:
            inputs = [read(contents, what, block) for what in names]
            return write(TABLE[op].law({}, inputs))

        return find

    if "labels" not in values:
        values["labels"] = s.public(f"{node}/label", row, compute_labels)
    for what, name, size, made in (
        ("p", "probability", grid, compute("divide", "exp", "sum")),
        ("grad", "gradient", grid, compute("sub_one_hot", "p", "labels")),
        ("loss", "loss", row, compute("cross_entropy", "z", "maximum", "sum", "labels")),
    ):
        if what not in values:
            values[what] = s.tensor(f"{node}/{name}", size, made)


def emit_masked_exponentials(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """The exponentials of rows that spans leave elements out of, 0 there: what the circuit of the
    rows makes, so that those before are no tensor."""
    source, spans = node.inputs
    z, maximum = s.graph.nodes[source.node].inputs
    if s.masked[z].source != spans or attr_int(node.attrs, "fill") != 0:
        raise CircuitError(
            "keeps exponentials by other spans than their logits, or fills them with another "
            "number than 0: keep both by the same spans",
            where=node.name,
        )
    _join(s, node, z, {"exp": ref, "maximum": maximum})
    return s.commit(ref, s.own_grid(ref))


_APART: Final[Emitters] = {
    "row_max": emit_row_max,
    "exp2_diff": emit_exponentials,
    "row_sum": emit_row_sum,
    "divide": emit_divide,
    "sub_one_hot": emit_sub_one_hot,
    "cross_entropy": emit_cross_entropy,
}


def _emit_softmax_part(s: TileBuilder, ref: Ref, node: Node) -> TiledValue | None:
    """An output of the rows' circuit, which ties all of them together; or a statement of its own
    where that does not take the rows."""
    if is_apart(s, node.inputs[0]):
        return _APART[node.op](s, ref, node)
    match node.op:
        case "row_max":
            z, parts = node.inputs[0], {"maximum": ref}
        case "exp2_diff":
            z, parts = node.inputs[0], {"exp": ref, "maximum": node.inputs[1]}
            masked = s.masked.get(z)
            if masked is not None:
                if not masked.is_lowest:
                    raise CircuitError(
                        "is of rows whose maximum may be what fills them: fill with the least of "
                        "their range, and leave a place in each row",
                        where=node.name,
                    )
                return None  # keep_span follows
        case "row_sum":
            z, parts = _find_logits(s, node, node.inputs[0]), {"sum": ref, "exp": node.inputs[0]}
        case "divide":
            e, total = node.inputs
            z, parts = _find_logits(s, node, e), {"p": ref, "exp": e, "sum": total}
        case "sub_one_hot":
            p, labels = node.inputs
            quotient = s.graph.nodes[p.node]
            if quotient.op != "divide":
                raise CircuitError(
                    f"takes the labels off {quotient.name}, which is no divide: only of the "
                    "quotient of a softmax has the circuit a gradient",
                    where=node.name,
                )
            z = _find_logits(s, node, quotient.inputs[0])
            parts = {"grad": ref, "p": p, "labels": labels}
        case _:
            z, maximum, total, labels = node.inputs
            parts = {"loss": ref, "maximum": maximum, "sum": total, "labels": labels}
    _join(s, node, z, parts)
    return s.commit(ref, s.own_grid(ref))


def _join(s: TileBuilder, node: Node, z: Ref, parts: Mapping[str, Ref]) -> None:
    """What is made of the rows of ``z``, each of one node."""
    group = s.rows.setdefault(z, {})
    for what, part in parts.items():
        if group.setdefault(what, part) != part:
            raise CircuitError(
                f"gives rows a second {what}, and the circuit has one of each: read the first",
                where=node.name,
            )


def _find_logits(s: TileBuilder, node: Node, e: Ref) -> Ref:
    source = s.graph.nodes[e.node]
    if source.op == "keep_span":
        source = s.graph.nodes[source.inputs[0].node]
        if source.op == "exp2_diff" and source.inputs[0] in s.masked:
            return source.inputs[0]
    elif source.op == "exp2_diff" and source.inputs[0] not in s.masked:
        return source.inputs[0]
    raise CircuitError(
        f"reads {s.graph.nodes[e.node].name}, where the circuit of a softmax has the output of an "
        "exp2_diff: give it that",
        where=node.name,
    )


def _emit_square_sum(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """The sums of squares of each block, then their sum, shifted."""
    require_range(s, node, node.inputs[0], SATURATION["i16"][1])
    x = s.value(node.inputs[0])
    scalar = s.grid((1, 1))

    def compute(contents: TileContents, block: int) -> Array:
        values = contents.combine(x.at(block))
        return make_scalar(s.side, int((values * values).sum()))

    parts = s.tensor(f"{node.name}/parts", scalar, compute, count=x.grid.count)
    s.family(
        x.grid.count,
        lambda block, facts: TileStatement(
            node.name, "square", {"x": x.at(block), "s": parts.at(block)}
        ),
    )
    total = TiledValue(
        scalar, lambda _: tuple((1, tile) for i in range(x.grid.count) for _, tile in parts.at(i))
    )
    shift = attr_int(node.attrs, "shift")
    if shift > 0:
        require_range(s, node, ref, WIDE_REACH)
        return rescale(s, node.name, node, total, "i64", 1, 0, shift)
    return add((1 << -shift, total))


EMITTERS: Final[Emitters] = {
    "row_max": _emit_softmax_part,
    "exp2_diff": _emit_softmax_part,
    "row_sum": _emit_softmax_part,
    "divide": _emit_softmax_part,
    "sub_one_hot": _emit_softmax_part,
    "logit_grad": emit_logit_grad,
    "cross_entropy": _emit_softmax_part,
    "square_sum": _emit_square_sum,
    "sum": emit_sum,
}
