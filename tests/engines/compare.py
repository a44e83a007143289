"""The law's session beside an engine's: what the tests of every engine compare."""

from __future__ import annotations

import numpy as np

from tests.engines.steps import Step
from vtrain.engines.base import Session, Trace
from vtrain.engines.numpy_engine import NumpySession
from vtrain.wire.graph import StepGraph


def open_law(step: Step) -> NumpySession:
    """The numpy engine, with the step's state."""
    session = NumpySession(step.graph, step.samples)
    session.load_state(step.state)
    return session


def assert_same_state(found: Session, expected: Session) -> None:
    """Names, dtypes, shapes and values are the same."""
    mine, theirs = found.read_state(), expected.read_state()
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(mine[name], value, err_msg=name, strict=True)


def name_difference(graph: StepGraph, found: Trace, expected: Trace) -> str:
    """The first node whose digest differs, or ""."""
    pairs = zip(graph.nodes, found.digests, expected.digests, strict=True)
    return next((f"{node.name} ({node.op})" for node, a, b in pairs if a != b), "")
