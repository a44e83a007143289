"""Choosing an engine by name."""

from __future__ import annotations

from vtrain.engines.base import Session
from vtrain.engines.cpu import CpuSession
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import RunError
from vtrain.spec.samples import Samples
from vtrain.wire.graph import StepGraph

ENGINES = ("auto", "cpu", "numpy")
"""What ``--engine`` takes; ``auto`` is the fastest that this machine has."""


def resolve_engine(name: str) -> str:
    """The engine that ``name`` stands for; RunError for an unknown one."""
    if name not in ENGINES:
        raise RunError(f"is none of {', '.join(ENGINES)}", where=f"engine {name}")
    return "cpu" if name == "auto" else name


def open_session(engine: str, graph: StepGraph, samples: Samples, *, threads: int = 0) -> Session:
    """A session of ``engine`` on a legal graph; ``threads`` = 0 takes every core."""
    if resolve_engine(engine) == "numpy":
        return NumpySession(graph, samples)
    return CpuSession(graph, samples, threads=threads)
