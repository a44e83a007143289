"""Sessions that count, so that what an answer costs is told in steps and not by a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from vtrain.engines.base import Session, State, Trace
from vtrain.wire.record import StepRecord


@dataclass
class CountingSession:
    """``session``, counting the steps done and traced, the evaluations, and the bytes of those."""

    session: Session
    stepped: int = 0
    traced: int = 0
    evaluated: int = 0
    most_bytes: int = 0

    @property
    def done(self) -> int:
        """Steps, traced or not."""
        return self.stepped + self.traced

    def load_state(self, state: State) -> None:
        self.session.load_state(state)

    def read_state(self) -> dict[str, npt.NDArray[Any]]:
        return self.session.read_state()

    def saturation(self) -> dict[str, int]:
        return self.session.saturation()

    def step(self) -> StepRecord:
        self.stepped += 1
        return self.session.step()

    def trace(self) -> Trace:
        self.traced += 1
        return self.session.trace()

    def evaluate(self, node: int) -> npt.NDArray[Any]:
        return self.evaluate_all([node])[0]

    def evaluate_all(self, nodes: Sequence[int]) -> list[npt.NDArray[Any]]:
        self.evaluated += 1
        found = self.session.evaluate_all(nodes)
        self.most_bytes = max(self.most_bytes, sum(value.nbytes for value in found))
        return found
