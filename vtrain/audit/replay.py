"""Doing a segment of a run again, and naming the first thing that comes out differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.engines.base import Session
from vtrain.errors import NotProducedError
from vtrain.train.kzg import Committed, KzgRecorder
from vtrain.wire.graph import StepGraph
from vtrain.wire.proof import KzgRecord
from vtrain.wire.record import StepRecord

State = Mapping[str, npt.NDArray[Any]]

FIELDS = ("step", "batch_digest", "loss", "state_root")
"""Fields of a record in the order in which a step computes them."""


@dataclass(frozen=True)
class Difference:
    """The first record of a replayed segment that is not what the law gives.

    The false step is one of ``first`` .. ``step``: up to ``first`` - 1 the state is known to be
    right, since roots agree there (``first`` = ``step`` when every step commits to its state).
    ``check`` names the check that found it.
    """

    step: int
    field: str
    first: int
    claimed: str
    computed: str
    check: str = "replay"

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


class KzgComparison:
    """Holds the KZG records of replayed steps against their tensors; ``count`` is how many so far.

    ``records[i]`` is that of step (i + 1) * ``every``.  ``hidden`` says of each part that was not
    compared, by step and part, why: its key was not disclosed, or what was is not its key.
    """

    def __init__(self, recorder: KzgRecorder, records: Sequence[KzgRecord], every: int) -> None:
        self._recorder, self._records, self._every = recorder, records, every
        self._before: Committed | None = None
        self.hidden: dict[tuple[int, str], str] = {}
        self.count = 0

    def begin(self, step: int, session: Session) -> None:
        """Look at the state from which ``step`` begins."""
        if self._recorder.is_due(step):
            self._before = _try(lambda: self._recorder.commit_before(step, session))

    def end(self, step: int, session: Session) -> tuple[str, int, str, str] | None:
        """(part, index, as claimed, as computed) of the first commitment to ``step`` that
        differs."""
        if not self._recorder.is_due(step):
            return None
        claimed = self._records[step // self._every - 1]
        computed = {
            "before": self._before,
            "batch": _try(lambda: self._recorder.commit_batch(step)),
            "after": _try(lambda: self._recorder.commit_state(step, session.read_state())),
        }
        before = len(self.hidden)
        for part, ours in computed.items():
            if ours is None:
                self.hidden[step, part] = "no key of it was given (the solver discloses keys)"
            elif ours.key != getattr(claimed, f"{part}_key"):
                self.hidden[step, part] = "its key, as given, is not the one in the log"
            else:
                pairs = zip(getattr(claimed, part), ours.commitments, strict=True)
                for index, (theirs, own) in enumerate(pairs):
                    if theirs != own:
                        return part, index, theirs.hex(), own.hex()
        self.count += len(self.hidden) == before
        return None


def _try(commit: Callable[[], Committed]) -> Committed | None:
    """None where the key is not known."""
    try:
        return commit()
    except NotProducedError:
        return None


def replay_segment(
    session: Session,
    records: Sequence[StepRecord],
    start: int,
    end: int,
    progress: Callable[[int], None] = lambda done: None,
    kzg: KzgComparison | None = None,
) -> Difference | None:
    """Do steps ``start`` + 1 .. ``end`` in ``session``, which holds the state after ``start``.

    ``records[t - 1]`` is what the log claims of step t.  The first difference ends the replay;
    None when there is none.  ``kzg`` compares the KZG records too.  The last step of a segment is
    one that commits to its state, so equal records mean equal final states.
    """
    right = start
    for step in range(start + 1, end + 1):
        if kzg is not None:
            kzg.begin(step, session)
        computed, claimed = session.step(), records[step - 1]
        for field in FIELDS:
            ours, theirs = getattr(computed, field), getattr(claimed, field)
            if ours != theirs:
                first = step if field == "batch_digest" else right + 1
                return Difference(step, field, first, _show(theirs), _show(ours))
        if claimed.state_root:
            right = step
        if kzg is not None and (found := kzg.end(step, session)) is not None:
            part, index, theirs, ours = found
            first = step if part == "batch" else min(right + 1, step)
            return Difference(step, f"KZG commitment {index} ({part})", first, theirs, ours, "kzg")
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
