"""Rows of a softmax and what becomes of them: gradients, losses."""

from __future__ import annotations

from typing import Final

from vtrain.errors import CircuitError
from vtrain.ops.base import attr_int
from vtrain.prove.tiles.builder import Emitters, TileBuilder, require_range
from vtrain.prove.tiles.circuits import SOFTMAX_TILES, WIDE_REACH, softmax_parameters
from vtrain.prove.tiles.emit.linear import emit_sum
from vtrain.prove.tiles.emit.rescale import rescale
from vtrain.prove.tiles.grid import Array, make_scalar
from vtrain.prove.tiles.statements import (
    StepFacts,
    TileContents,
    TiledValue,
    TileStatement,
    add,
)
from vtrain.spec.number import SATURATION
from vtrain.wire.graph import Node, Ref

SOFTMAX_CLASSES: Final = (16, 128)


def _find_width(classes: int, node: str) -> int:
    """Most classes of the narrowest circuit that has room."""
    room = [most for most in SOFTMAX_CLASSES if classes <= most]
    if not room:
        raise CircuitError(f"a softmax of {classes} classes; at most 128", where=node)
    return room[0]


def emit_rows(s: TileBuilder, z: Ref) -> None:
    """The statements that tie together all that is made of the rows of ``z``."""
    found = s.rows[z]
    node = s.graph.nodes[z.node].name
    missing = {*SOFTMAX_TILES} - {"z", *found}
    if missing:
        raise CircuitError(f"a softmax without {min(missing)}", where=node)
    grid = s.own_grid(z)
    most = _find_width(grid.columns, node)
    values = {what: s.standard({**found, "z": z}[what]) for what in SOFTMAX_TILES}

    def make(block: int, facts: StepFacts) -> TileStatement:
        rows, columns = grid.extent(block)
        given = {what: value.at(block) for what, value in values.items()}
        parameters = softmax_parameters(s.side, most, rows=rows, classes=columns)
        return TileStatement(node, f"softmax-{most}", given, parameters)

    s.family(grid.count, make)


def _emit_softmax_part(s: TileBuilder, ref: Ref, node: Node) -> TiledValue:
    """An output of the rows' circuit, which ties all of them together."""
    match node.op:
        case "row_max":
            z, parts = node.inputs[0], {"maximum": ref}
        case "exp2_diff":
            z, parts = node.inputs[0], {"exp": ref, "maximum": node.inputs[1]}
        case "row_sum":
            z, parts = _find_logits(s, node, node.inputs[0]), {"sum": ref, "exp": node.inputs[0]}
        case "divide":
            e, total = node.inputs
            z, parts = _find_logits(s, node, e), {"p": ref, "exp": e, "sum": total}
        case "sub_one_hot":
            p, labels = node.inputs
            quotient = s.graph.nodes[p.node]
            if quotient.op != "divide":
                raise CircuitError("its input is no quotient of a softmax", where=node.name)
            z = _find_logits(s, node, quotient.inputs[0])
            parts = {"grad": ref, "p": p, "labels": labels}
        case _:
            z, maximum, total, labels = node.inputs
            parts = {"loss": ref, "maximum": maximum, "sum": total, "labels": labels}
    group = s.rows.setdefault(z, {})
    for what, part in parts.items():
        if group.setdefault(what, part) != part:
            raise CircuitError(f"its rows have another {what} already", where=node.name)
    return s.commit(ref, s.own_grid(ref))


def _find_logits(s: TileBuilder, node: Node, e: Ref) -> Ref:
    source = s.graph.nodes[e.node]
    if source.op != "exp2_diff":
        raise CircuitError("is of rows that are no exponentials", where=node.name)
    return source.inputs[0]


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
    "cross_entropy": _emit_softmax_part,
    "square_sum": _emit_square_sum,
    "sum": emit_sum,
}
