"""Choosing an engine by name."""

from __future__ import annotations

from functools import cache

from vtrain.engines.base import Session
from vtrain.engines.cpu import CpuSession
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import RunError
from vtrain.graph.calibration import LawEvaluator, OpenEvaluator
from vtrain.spec.samples import Samples
from vtrain.wire.graph import StepGraph

ENGINES = ("auto", "cpu", "cuda", "numpy")
"""What ``--engine`` takes; ``auto`` is the fastest that this machine has."""


def resolve_engine(name: str) -> str:
    """The engine that ``name`` stands for; RunError for an unknown one."""
    if name not in ENGINES:
        raise RunError(f"is none of {', '.join(ENGINES)}", where=f"engine {name}")
    if name != "auto":
        return name
    return "cuda" if _has_gpu() else "cpu"


@cache
def _has_gpu() -> bool:
    from vtrain.engines.cuda.gpu import is_available

    return is_available()


def open_session(
    engine: str, graph: StepGraph, samples: Samples, *, threads: int = 0, selfcheck_every: int = 0
) -> Session:
    """A session of ``engine`` on a legal graph.

    ``threads`` = 0 takes every core.  ``selfcheck_every`` has a meaning for ``cuda`` alone: after
    so many steps its kernels are compared with their readable twins again (0: only at first).
    RunError, MissingExtraError: what ``cuda`` lacks on this machine.
    """
    resolved = resolve_engine(engine)
    if resolved == "cuda":
        from vtrain.engines.cuda.session import open_cuda

        return open_cuda(graph, samples, check_every=selfcheck_every)
    if resolved == "numpy":
        return NumpySession(graph, samples)
    return CpuSession(graph, samples, threads=threads)


def choose_evaluator(engine: str) -> OpenEvaluator:
    """What calibrates with ``engine``: the GPU for ``cuda``, for all others the law itself.

    RunError for an unknown engine; opening it raises what ``cuda`` lacks on this machine.
    """
    if resolve_engine(engine) == "cuda":
        from vtrain.engines.cuda.calibration import open_evaluator

        return open_evaluator
    return LawEvaluator
