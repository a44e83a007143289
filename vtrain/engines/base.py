"""What every engine offers: a session that holds a run's state and advances it step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from vtrain.errors import RunError
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord

State = Mapping[str, npt.NDArray[Any]]
"""Recurrent tensors by name, as the graph's ``state`` nodes declare them."""

Snapshot = Callable[[], State]
"""A state that was taken, by a call that waits until it is there; from any thread."""


@dataclass(frozen=True)
class Trace:
    """Digests of every node's output in one step, in node order, and the record of the step."""

    record: StepRecord
    digests: tuple[bytes, ...]


class Session(Protocol):
    """One engine bound to one step graph and one dataset.  Not thread-safe."""

    def load_state(self, state: State) -> None:
        """Replace the whole state; RunError names a tensor that does not fit the graph."""
        ...

    def read_state(self) -> dict[str, npt.NDArray[Any]]:
        """A copy of the state, by name."""
        ...

    def step(self) -> StepRecord:
        """Do one step and return its record."""
        ...

    def trace(self) -> Trace:
        """Do one step without fusion and return the digest of every node's output."""
        ...

    def evaluate(self, node: int) -> npt.NDArray[Any]:
        """Output of node ``node`` in the next step, without advancing the state."""
        ...

    def evaluate_all(self, nodes: Sequence[int]) -> list[npt.NDArray[Any]]:
        """:meth:`evaluate` of each of ``nodes``, doing the step once."""
        ...

    def saturation(self) -> dict[str, int]:
        """Elements clamped so far, by node name; nodes that never saturated are left out."""
        ...


@runtime_checkable
class SnapshotSession(Session, Protocol):
    """A session that brings a copy of its state to the host while it does further steps."""

    def snapshot(self) -> Snapshot:
        """The state as it is now; RunError, KernelError of the call if it could not be brought."""
        ...


def take_snapshot(session: Session) -> Snapshot:
    """The state as it is now: read at once, where the session cannot do it beside its steps."""
    if isinstance(session, SnapshotSession):
        return session.snapshot()
    state = session.read_state()
    return lambda: state


def check_state(graph: StepGraph, state: State) -> None:
    """RunError unless ``state`` has just the tensors that ``graph`` declares."""
    declared = graph.states()
    if set(state) != set(declared):
        missing, extra = sorted(set(declared) - set(state)), sorted(set(state) - set(declared))
        raise RunError(f"missing tensors {missing}, unknown tensors {extra}", where="state")
    for name, ref in declared.items():
        tensor, value = graph.type_of(ref), state[name]
        if value.dtype != NUMPY_DTYPES[tensor.dtype] or value.shape != tensor.shape:
            raise RunError(
                f"needs {tensor.dtype} {tensor.shape}, has {value.dtype} {value.shape}",
                where=f"state.{name}",
            )
        out_of_range = value.size > 0 and (
            int(np.min(value)) < tensor.lo or int(np.max(value)) > tensor.hi
        )
        if out_of_range:
            raise RunError(
                f"has elements outside [{tensor.lo}, {tensor.hi}]", where=f"state.{name}"
            )
