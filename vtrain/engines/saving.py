"""Sessions that need less memory, on any engine: they run a rewritten step graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from vtrain.engines.base import Session, State, Trace
from vtrain.graph.rewrite import Rewritten, leave, recompute, split_batch
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord


@dataclass(frozen=True)
class Saving:
    """What a step does to need less memory; neither changes a bit.

    ``accumulate``: the batch is done in so many equal parts, whose gradients are added up exactly.
    ``recompute``: most values of the forward pass are computed again for the backward pass.
    """

    accumulate: int = 1
    recompute: bool = False

    def rewrite(self, graph: StepGraph) -> Rewritten:
        """The graph that a session runs; GraphError: the batch cannot be done in such parts."""
        first = recompute(graph) if self.recompute else leave(graph)
        second = split_batch(first.graph, self.accumulate)
        return Rewritten(
            second.graph,
            {
                name: first.sources[source]
                for name, source in second.sources.items()
                if source in first.sources
            },
        )


PLAIN = Saving()
"""Nothing saved: the graph as it is."""


class SavingSession:
    """A session on ``rewritten``, seen from outside as one on ``graph``.

    ``open_plain`` makes a session on the graph as it is, which has the values of its nodes: traces
    and single values take the memory that such a session takes.
    """

    def __init__(
        self,
        session: Session,
        sources: Mapping[str, str],
        open_plain: Callable[[], Session],
    ) -> None:
        self._session = session
        self._sources = sources
        self._open_plain = open_plain

    def load_state(self, state: State) -> None:
        self._session.load_state(state)

    def read_state(self) -> dict[str, npt.NDArray[Any]]:
        return self._session.read_state()

    def step(self) -> StepRecord:
        return self._session.step()

    def trace(self) -> Trace:
        plain = self._make_plain()
        found = plain.trace()
        self._session.load_state(plain.read_state())
        return found

    def evaluate(self, node: int) -> npt.NDArray[Any]:
        return self._make_plain().evaluate(node)

    def evaluate_all(self, nodes: Sequence[int]) -> list[npt.NDArray[Any]]:
        return self._make_plain().evaluate_all(nodes)

    def saturation(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for name, count in self._session.saturation().items():
            if name in self._sources:
                counts[self._sources[name]] += count
        return dict(counts)

    def _make_plain(self) -> Session:
        plain = self._open_plain()
        plain.load_state(self._session.read_state())
        return plain
