"""The test of the facets sees whatever is left out of what is stated about tiles of a node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.exhaustive import spare
from tests.prove.tile_claims import cut_alone, find_open, list_alone
from vtrain.errors import CircuitError
from vtrain.prove.tiles.builder import TileBuilder
from vtrain.prove.tiles.emit import EMITTERS
from vtrain.prove.tiles.statements import StepFacts
from vtrain.wire.graph import Node, StepGraph

IMPLIED: dict[str, set[int]] = {
    # A root q is held to its range by what says that q^2 is at most the radicand, and (q + 1)^2
    # above it.
    **{op: {0} for op in ("inverse_root", "adam_direction", "clip_factor")},
    # Tokens that a gate takes are within reach of each other.
    "token_spans": {0},
    # A divisor of 0 has no remainder below it.  And a sum that counts as 0 gives another quotient,
    # which nobody claims here together with it: those of logit_grad, which follow, do.
    "divide": {1, 2},
    # The tables say it: their keys end there.
    "exp2_diff": {2},
    "cross_entropy": {8, 10, 11},
    "logit_grad": {6},
}
"""Of what is stated about a node, by number, what may be left out without opening it."""
SLOW = ("cross_entropy", "exp2_diff", "logit_grad", "max_pool_grad", "row_max")


class _Forgetful:
    """Takes the place of ``TileBuilder.family``, and leaves out family ``left`` of those that are
    not about the ranges of the node's inputs."""

    def __init__(self, node: Node, graph: StepGraph, left: int) -> None:
        self._inputs = {graph.nodes[ref.node].name for ref in node.inputs}
        self._left, self.count, self._real = left, 0, TileBuilder.family

    def family(self, s: TileBuilder, count: int, make: Any) -> None:
        statement = make(0, StepFacts(1, 0))
        if statement.circuit.startswith("range") and statement.node in self._inputs:
            self._real(s, count, make)
            return
        self.count += 1
        if self.count != self._left + 1:
            self._real(s, count, make)


@pytest.mark.parametrize("op", spare(EMITTERS, lambda op: op not in SLOW))
def test_no_statement_can_be_left_out(op: str) -> None:
    """Of each row of statements that nodes of an operator have, every family in turn."""
    for alone in list_alone(op):
        unseen, left, count = set(), 0, 1
        while left < count:
            forgetful = _Forgetful(alone.node, alone.tiling.graph, left)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(TileBuilder, "family", lambda *args, f=forgetful: f.family(*args))
                try:
                    cut = cut_alone(alone.kind, alone.index, alone.tiling.side)
                    found = next(find_open(cut), "")
                except CircuitError:
                    found = "nothing else is stated"
            count = forgetful.count
            if not found:
                unseen.add(left)
            left += 1
        assert unseen <= IMPLIED.get(op, set()), alone.node.name
