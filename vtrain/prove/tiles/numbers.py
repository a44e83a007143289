"""Numbers of a step that everybody computes from its number: rates, and what is made of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.commit.kzg_layout import COUNTER
from vtrain.ops import TABLE
from vtrain.wire.graph import Ref, StepGraph

CLOCKS: Final = frozenset({"schedule", "schedule_linear", "adam_correction"})
"""Operators whose output follows from the count of steps that they read."""
_MADE_OF: Final = frozenset({"mul", "rescale"})


class PublicNumbers:
    """The nodes whose output follows from the number of the step alone: what reads the counter of
    steps, and what ``mul`` and ``rescale`` make of such numbers.

    Another count than the counter may be any number, so that what follows from it does not belong
    here.
    """

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._order: dict[Ref, None] = {}
        self._last: tuple[int, dict[Ref, npt.NDArray[Any]]] = (0, {})
        for index, node in enumerate(graph.nodes):
            if node.op in CLOCKS:
                clock = graph.nodes[node.inputs[0].node]
                found = clock.op == "state" and clock.attrs["name"] == COUNTER
            else:
                found = node.op in _MADE_OF and all(item in self._order for item in node.inputs)
            if found:
                self._order[Ref(index)] = None

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._order

    def compute(self, ref: Ref, step: int) -> int:
        """The number in step ``step``, counted from 1."""
        if self._last[0] != step:
            values: dict[Ref, npt.NDArray[Any]] = {}
            for at in self._order:
                node = self._graph.nodes[at.node]
                inputs = [np.asarray(step - 1, dtype=np.int64)]
                if node.op in _MADE_OF:
                    inputs = [values[item] for item in node.inputs]
                values[at] = np.asarray(TABLE[node.op].law(node.attrs, inputs))
            self._last = step, values
        return int(self._last[1][ref])
