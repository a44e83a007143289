"""Doing a segment of a run again, and naming the first thing that comes out differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.engines.base import Session
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord

State = Mapping[str, npt.NDArray[Any]]

FIELDS = ("step", "batch_digest", "loss", "state_root")
"""Fields of a record in the order in which a step computes them."""


@dataclass(frozen=True)
class Difference:
    """The first record of a replayed segment that is not what the law gives.

    The false step is one of ``first`` .. ``step``: up to ``first`` - 1 the state is known to be
    right, since roots agree there (``first`` = ``step`` when every step commits to its state).
    """

    step: int
    field: str
    first: int
    claimed: str
    computed: str

    @property
    def where(self) -> str:
        """The place for a report: the step when it is certain, else the steps it may be."""
        if self.first == self.step:
            return f"step {self.step}"
        return f"steps {self.first} to {self.step}"

    def describe(self) -> str:
        """One sentence for a report."""
        text = f"{self.field} of step {self.step} is {self.computed}, the log claims {self.claimed}"
        if self.first < self.step:
            text += f"; the state was last right after step {self.first - 1}"
        return text


def replay_segment(
    session: Session,
    records: Sequence[StepRecord],
    start: int,
    end: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Difference | None:
    """Do steps ``start`` + 1 .. ``end`` in ``session``, which holds the state after ``start``.

    ``records[t - 1]`` is what the log claims of step t.  The first difference ends the replay;
    None when there is none.  The last step of a segment is one that commits to its state, so equal
    records mean equal final states.
    """
    right = start
    for step in range(start + 1, end + 1):
        computed, claimed = session.step(), records[step - 1]
        for field in FIELDS:
            ours, theirs = getattr(computed, field), getattr(claimed, field)
            if ours != theirs:
                first = step if field == "batch_digest" else right + 1
                return Difference(step, field, first, _show(theirs), _show(ours))
        if claimed.state_root:
            right = step
        progress(step - start)
    return None


def _show(value: int | bytes) -> str:
    if isinstance(value, int):
        return str(value)
    return value.hex() if value else "none"


def describe_state_difference(graph: StepGraph, computed: State, claimed: State) -> str:
    """Where two states of the same step differ: the tensor that a step computes first.

    Both fit ``graph``; the sentence is empty when they are equal.
    """
    after = graph.next_states()
    order = sorted(after, key=lambda name: graph.nodes[after[name].node].inputs[0])
    found = [name for name in order if not np.array_equal(computed[name], claimed[name])]
    if not found:
        return ""
    name = found[0]
    ours, theirs = computed[name], claimed[name]
    wrong = np.argwhere(np.atleast_1d(ours != theirs))
    index = tuple(int(i) for i in wrong[0]) if ours.ndim else ()
    others = f", and so do {', '.join(found[1:])}" if len(found) > 1 else ""
    place = f"[{', '.join(map(str, index))}]" if index else ""
    return (
        f"{name}{place} is {int(ours[index])}, the checkpoint has {int(theirs[index])}; "
        f"{len(wrong)} of its {ours.size} elements differ{others}"
    )
