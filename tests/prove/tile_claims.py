"""What a solver could claim of a node, in place of what the law says of it.

The node is cut by itself, with the values that it has in one of the steps of ``tile_steps``.  Then
each of its tiles is claimed to be another, with all that statements make of it, and each of its
inputs to be at the ends of what it may be.  Where all statements are true of such a claim, they
leave the node open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.prove.tile_law import MADE, holds, make
from tests.prove.tile_steps import STEPS, choose_side, make_contents
from vtrain.errors import CircuitError
from vtrain.ops import TABLE
from vtrain.prove.tiles.grid import cut_block
from vtrain.prove.tiles.numbers import PublicNumbers
from vtrain.prove.tiles.statements import (
    OUTSIDE,
    StepFacts,
    Tile,
    TileContents,
    TiledValue,
    TileStatement,
)
from vtrain.prove.tiles.tiling import Tiling
from vtrain.wire.graph import Node, Ref

Array = npt.NDArray[Any]
ROOTS = ("before", "batch")
SIDES = (4, 8, 16, 32, 64)
HIGH = "/high"
"""How the name of a tensor ends of which values may have a choice: the first part of a range that
no circuit takes at once."""
MANY = 64
"""Statements about a node, above which its tiles are larger if they may be."""
OFF = (1, -1, 2, 1 << 10, -(1 << 16))
"""By how much a claim is off."""
_BOUNDED_X = ("range", "rescale", "gate", "look")
"""Circuits of which no x is true but the integers of a range."""


class Claim(TileContents):
    """The tiles that follow from the outputs of nodes, but for those that are claimed."""

    def __init__(
        self,
        tiling: Tiling,
        facts: StepFacts,
        outputs: Mapping[int, Array],
        claimed: Mapping[Tile, Array],
    ) -> None:
        super().__init__(tiling, facts, outputs)
        self._claimed = dict(claimed)

    def tile(self, tile: Tile) -> Array:
        found = self._claimed.get(tile)
        if found is not None:
            return found
        with np.errstate(invalid="ignore"):  # a root of what is negative is no root
            value = super().tile(tile)
        is_high = self.tiling.tensors[tile.tensor].name.endswith(HIGH)
        return np.maximum(value, 0) if is_high else value  # so that its range says nothing

    def is_believed(self, statements: Sequence[TileStatement]) -> bool:
        """Whether all ``statements``, in an order in which each has what it takes, are true: tiles
        that they make, and that nobody claims to be others, are what they make."""
        for statement in statements:
            made = make(statement, self)
            if made is None:
                return False
            for name, value in made.items():
                parts = statement.given[name]
                is_free = len(parts) == 1 and parts[0][0] == 1 and parts[0][1] not in self._claimed
                if is_free:
                    self._claimed[parts[0][1]] = _narrow(value)
                elif not np.array_equal(self.combine(parts), value):
                    return False
        return all(holds(statement, self) for statement in statements)


def _narrow(value: Array) -> Array:
    """int64 where that holds the values."""
    fits = all(-(2**63) <= int(item) < 2**63 for item in (value.min(), value.max()))
    return value.astype(np.int64) if fits else value


@dataclass(frozen=True)
class Alone:
    """Node ``index`` of the graph of ``tiling``, cut by itself; ``outputs`` are those of a step."""

    kind: str
    index: int
    tiling: Tiling
    facts: StepFacts
    outputs: Mapping[int, Array]

    @property
    def node(self) -> Node:
        return self.tiling.graph.nodes[self.index]

    @property
    def is_large(self) -> bool:
        """Whether fewer claims have to do."""
        return len(self.tiling) > MANY

    def list_statements(self) -> list[TileStatement]:
        """All of them: first those about the inputs, each about another node."""
        return [self.tiling.statement(i, self.facts) for i in range(len(self.tiling))]

    def find_tiles(self, *sources: str) -> Iterator[Tile]:
        for number, tensor in enumerate(self.tiling.tensors):
            if tensor.source in sources:
                yield from (Tile(number, block) for block in range(tensor.count))

    def claim(
        self, claimed: Mapping[Tile, Array], outputs: Mapping[int, Array] | None = None
    ) -> Claim:
        return Claim(self.tiling, self.facts, outputs or self.outputs, claimed)


def cut_alone(kind: str, index: int, side: int) -> Alone:
    """CircuitError for a node about which nothing is stated by itself."""
    contents = make_contents(kind, choose_side(kind))
    tiling = Tiling(contents.tiling.graph, side, only=index)
    return Alone(kind, index, tiling, contents.facts, contents.outputs)


def _cut_into_few(kind: str, index: int) -> Alone:
    for side in SIDES:
        alone = cut_alone(kind, index, side)
        if len(alone.tiling) <= MANY:
            break
    return alone


@cache
def list_alone(op: str) -> tuple[Alone, ...]:
    """Nodes of an operator, one for each row of circuits that nodes have statements of."""
    found: dict[tuple[str, ...], Alone] = {}
    seen = set()
    for kind in STEPS:
        graph = make_contents(kind, choose_side(kind)).tiling.graph
        for index, node in enumerate(graph.nodes):
            types = tuple(graph.type_of(ref) for ref in node.inputs)
            key = (*sorted((k, str(v)) for k, v in node.attrs.items() if k != "name"), types)
            if node.op != op or key in seen:
                continue
            seen.add(key)
            try:
                alone = _cut_into_few(kind, index)
            except CircuitError:
                continue
            mine = (s for s in alone.list_statements() if s.node == node.name)
            row = tuple(circuit for circuit, _ in groupby(map(_name_form, mine)))
            found.setdefault(row, alone)
    return tuple(found.values())


def _name_form(statement: TileStatement) -> str:
    """Two ranges one after the other are told apart by their ends."""
    ends = [
        str(statement.parameters[end][0] > 0) for end in ("lo", "hi") if end in statement.parameters
    ]
    return " ".join([statement.circuit, *ends])


def find_open(alone: Alone) -> Iterator[str]:
    """How a node is left open: a solver may supply what leads to another output than the law's."""
    name, statements = alone.node.name, alone.list_statements()
    honest = alone.claim({})
    if not all(holds(statement, honest) for statement in statements):
        yield f"says what the law does not: a statement about {name} is false"
        return
    for tensor in _find_unbounded(alone, statements):
        yield f"leaves {name} open: no statement says that {tensor} has integers of a range"
    for tile in alone.find_tiles(*ROOTS):
        if any(claim.is_believed(statements) for claim in _claim_roots(alone, honest, tile)):
            yield f"leaves {name} open: a tile of {_name(alone, tile)} may have any value"
    for what, claim in _claim_others(alone, statements):
        if claim.is_believed(statements):
            yield f"leaves {name} open: {what}, and every statement is true"
    others = (alone.claim({}, outputs) for outputs in _list_other_inputs(alone))
    for claim in (*others, *_answer_others(alone, statements)):
        if claim.is_believed(statements) and not _is_of_law(alone, claim):
            yield f"leaves {name} open: every statement is true of another output than the law's"


def _name(alone: Alone, tile: Tile) -> str:
    return alone.tiling.tensors[tile.tensor].name


def _add(contents: TileContents, tile: Tile, place: int, off: int) -> Array:
    value = contents.tile(tile).copy()
    value[place] += off
    return value


def _find_made(statements: Iterable[TileStatement]) -> Iterator[Tile]:
    """Tiles that a statement makes of others."""
    for statement in statements:
        for name in MADE[statement.circuit.partition("-")[0]]:
            for factor, tile in statement.given[name]:
                assert factor == 1
                yield tile


def _find_unbounded(alone: Alone, statements: Sequence[TileStatement]) -> list[str]:
    """Tensors that a solver may fill with elements of the field that are no integers of a range:
    what is said of them, such as that a product is a dividend, then has other solutions."""
    known = set(alone.find_tiles("public"))
    count = -1
    while count < len(known):
        count = len(known)
        for statement in statements:
            name = statement.circuit.partition("-")[0]
            if name in _BOUNDED_X:
                left = [
                    (factor, tile) for factor, tile in statement.given["x"] if tile not in known
                ]
                if len(left) == 1 and abs(left[0][0]) == 1:
                    known.add(left[0][1])
            made = set(_find_made([statement]))
            if {tile for parts in statement.given.values() for _, tile in parts} - made <= known:
                known |= made
    numbers = {tile.tensor for tile in alone.find_tiles("trace", "after", *ROOTS)}
    numbers -= {tile.tensor for tile in known}
    return [alone.tiling.tensors[number].name for number in sorted(numbers)]


def _claim_roots(alone: Alone, honest: TileContents, tile: Tile) -> Iterator[Claim]:
    """A state, or samples, beyond their type, and padding that is not zero."""
    kind, last = alone.node.outputs[0], alone.tiling.side**2 - 1
    now = honest.tile(tile)
    yield from (
        alone.claim({tile: _add(honest, tile, 0, end - int(now[0]))})
        for end in (kind.lo - 1, kind.hi + 1)
    )
    if alone.tiling.outputs[alone.index].grid.mask(tile.block)[last] == 0:
        yield alone.claim({tile: _add(honest, tile, last, 1)})


def _list_supplied(alone: Alone, statements: Sequence[TileStatement]) -> list[Tile]:
    """First tiles of tensors that no statement makes of others."""
    made = set(_find_made(statements))
    inputs = {alone.tiling.graph.nodes[ref.node].name for ref in alone.node.inputs}
    return [
        tile
        for tile in alone.find_tiles("trace", "after")
        if tile.block == 0
        and tile not in made
        and _name(alone, tile).removesuffix(HIGH) not in inputs
    ]


def _claim_others(alone: Alone, statements: Sequence[TileStatement]) -> Iterator[tuple[str, Claim]]:
    """Something else in a tile that a solver supplies, and all that it then supplies and statements
    make; of the inputs there are, and of others that one element is at an end of."""
    supplied = [
        tile for tile in _list_supplied(alone, statements) if not _name(alone, tile).endswith(HIGH)
    ]
    if not supplied:
        return
    places = (0,) if alone.is_large else (0, alone.tiling.side**2 - 1)
    others = islice(_list_inputs_at_ends(alone), 1 if alone.is_large else None)
    for outputs in (alone.outputs, *others):
        base = alone.claim({}, outputs)
        if not all(holds(statement, base) for statement in statements):
            continue
        for tile in supplied:
            for place in places:
                for off in _list_offs(statements, base, tile, place):
                    claimed = {tile: _add(base, tile, place, off)}
                    yield f"{_name(alone, tile)} may be {off} off", alone.claim(claimed, outputs)


def _answer_others(alone: Alone, statements: Sequence[TileStatement]) -> Iterator[Claim]:
    """Everything that a solver supplies is right, for another input than there is."""
    supplied = _list_supplied(alone, statements)
    if not supplied:
        return
    for ref in _list_inputs(alone):
        kind, now = alone.tiling.graph.type_of(ref), int(alone.outputs[ref.node].flat[0])
        bits = range(0, 60, 10 if alone.is_large else 2)
        for off in (sign << bit for bit in bits for sign in (1, -1)):
            if kind.lo <= now + off <= kind.hi:
                contents = alone.claim({}, _replace_first(alone, ref, now + off))
                yield alone.claim({tile: contents.tile(tile) for tile in supplied})


def _list_offs(
    statements: Sequence[TileStatement], base: TileContents, tile: Tile, place: int
) -> list[int]:
    """Some, and those with which what a statement is given is 0 or at an end of its range."""
    found = set(OFF)
    for statement in statements:
        ends = {0}
        if statement.circuit.startswith("range"):
            ends |= {int(statement.parameters[end][0]) for end in ("lo", "hi")}
        for parts in statement.given.values():
            factor = {other: factor for factor, other in parts}.get(tile)
            if factor is not None:
                now = int(base.combine(parts)[place])
                found |= {(end - now) // factor for end in ends if (end - now) % factor == 0}
    return sorted(found - {0}, key=abs)


def _list_inputs(alone: Alone) -> list[Ref]:
    """Those that statements are about, with values."""
    node, graph = alone.node, alone.tiling.graph
    if node.op == "gather_samples":
        return []  # of samples, which no node puts out
    numbers = PublicNumbers(graph)
    return [
        ref
        for ref in dict.fromkeys(node.inputs)
        if ref not in numbers
        and graph.nodes[ref.node].op not in OUTSIDE
        and graph.type_of(ref).size
    ]


def _list_inputs_at_ends(alone: Alone) -> Iterator[Mapping[int, Array]]:
    """One element of one input, or all of all as near to 0 as they may be."""
    refs, graph = _list_inputs(alone), alone.tiling.graph
    if not refs:
        return
    least = {ref: min(max(0, graph.type_of(ref).lo), graph.type_of(ref).hi) for ref in refs}
    yield _replace(alone, {ref: np.full_like(alone.outputs[ref.node], least[ref]) for ref in refs})
    for ref in refs:
        for value in sorted({graph.type_of(ref).lo, least[ref], graph.type_of(ref).hi}):
            yield _replace_first(alone, ref, value)


def _list_other_inputs(alone: Alone) -> Iterator[Mapping[int, Array]]:
    """One element of one input is at an end of what it may be, or near a number that the node
    itself names."""
    yield from _list_inputs_at_ends(alone)
    around = (0,) if alone.is_large else (-1, 0, 1)
    kinds = [alone.tiling.graph.type_of(ref) for ref in _list_inputs(alone)]
    shapes = [kind.shape for kind in (*kinds, alone.node.outputs[0])]
    named = {0, *_list_numbers([*alone.node.attrs.values(), *shapes])}
    for ref in _list_inputs(alone):
        kind = alone.tiling.graph.type_of(ref)
        near = {n + off for n in named for off in around}
        for value in sorted(n for n in near if kind.lo < n < kind.hi):
            yield _replace_first(alone, ref, value)


def _replace_first(alone: Alone, ref: Ref, value: int) -> Mapping[int, Array]:
    array = alone.outputs[ref.node].copy()
    array.flat[0] = value
    return _replace(alone, {ref: array})


def _replace(alone: Alone, inputs: Mapping[Ref, Array]) -> Mapping[int, Array]:
    """Outputs with other inputs; that of the node is the law's."""
    node, outputs = alone.node, {**alone.outputs, **{ref.node: x for ref, x in inputs.items()}}
    with np.errstate(over="ignore", invalid="ignore"):
        law = TABLE[node.op].law(node.attrs, [outputs[ref.node] for ref in node.inputs])
    return {**outputs, alone.index: np.asarray(law)}


def _list_numbers(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, int):
            yield value
        elif isinstance(value, tuple):
            yield from _list_numbers(value)


def _is_of_law(alone: Alone, claim: Claim) -> bool:
    value: TiledValue = alone.tiling.outputs[alone.index]
    law = claim.output(alone.index)
    return all(
        np.array_equal(claim.combine(value.at(block)), cut_block(law, value.grid, block))
        for block in range(value.grid.count)
    )
