"""Choosing an engine by name."""

from __future__ import annotations

import warnings
from functools import cache, partial

from vtrain.engines import cpu
from vtrain.engines.base import Session
from vtrain.engines.cpu import CpuSession
from vtrain.engines.numpy_engine import NumpySession
from vtrain.engines.saving import PLAIN, Saving, SavingSession
from vtrain.errors import RunError, VtrainError, VtrainWarning
from vtrain.graph import evaluate
from vtrain.graph.calibration import NodeEvaluator, OpenEvaluator
from vtrain.graph.evaluate import Apply
from vtrain.spec.samples import Samples
from vtrain.wire.graph import StepGraph

ENGINES = ("auto", "cpu", "cuda", "numpy")
"""What ``--engine`` takes; ``auto`` is the fastest that this machine has."""


class EngineWarning(VtrainWarning):
    """``auto`` took the CPU though there is an NVIDIA driver: the text says why."""


def check_engine(name: str) -> None:
    """RunError for an unknown engine; whether the machine has it is not looked at."""
    if name not in ENGINES:
        raise RunError(f"is none of {', '.join(ENGINES)}", where=f"engine {name}")


def resolve_engine(name: str) -> str:
    """The engine that ``name`` stands for, seen to be there: a GPU is opened for it.

    RunError for an unknown one; MissingExtraError, DeviceError, KernelError: what ``cuda`` lacks on
    this machine.  ``auto`` is then ``cpu``, with an EngineWarning where there is a driver.
    """
    check_engine(name)
    if name == "auto":
        return "cuda" if _has_gpu() else "cpu"
    if name == "cuda":
        _open_gpu()
    return name


@cache
def _has_gpu() -> bool:
    from vtrain.engines.cuda.gpu import find_obstacle, has_driver

    if not has_driver():
        return False
    try:
        obstacle = find_obstacle()
        if obstacle is None:
            _open_gpu()
    except VtrainError as error:
        obstacle = error
    if obstacle is not None:
        warnings.warn(
            f"this machine has an NVIDIA driver, but engine auto takes cpu: {obstacle}",
            EngineWarning,
            stacklevel=3,
        )
    return obstacle is None


def _open_gpu() -> None:
    """Open the first GPU, which stays open for the sessions of this process."""
    from vtrain.engines.cuda.session import open_kernels

    open_kernels()


def open_session(
    engine: str,
    graph: StepGraph,
    samples: Samples,
    *,
    threads: int = 0,
    selfcheck_every: int = 0,
    saving: Saving = PLAIN,
) -> Session:
    """A session of ``engine`` on a legal graph.

    ``threads`` = 0 takes every core.  ``selfcheck_every`` has a meaning for ``cuda`` alone: after
    so many steps its kernels are compared with their readable twins again (0: only at first).
    ``saving`` takes less memory, and changes no bit.
    MissingExtraError, DeviceError, KernelError: what ``cuda`` lacks on this machine; GraphError for
    a batch that cannot be done in the parts that ``saving`` asks for.
    """
    resolved = resolve_engine(engine)

    def open_on(graph: StepGraph) -> Session:
        return _open(resolved, graph, samples, threads, selfcheck_every)

    if saving == PLAIN:
        return open_on(graph)
    rewritten = saving.rewrite(graph)
    return SavingSession(open_on(rewritten.graph), rewritten.sources, lambda: open_on(graph))


def measure_step_memory(
    graph: StepGraph, samples: Samples, *, threads: int = 0, saving: Saving = PLAIN
) -> int:
    """``CpuSession.memory`` of a session that :func:`open_session` opens on the cpu engine.

    GraphError for a batch that cannot be done in the parts that ``saving`` asks for.
    """
    done = graph if saving == PLAIN else saving.rewrite(graph).graph
    return CpuSession(done, samples, threads=threads).memory


def _open(
    resolved: str, graph: StepGraph, samples: Samples, threads: int, selfcheck_every: int
) -> Session:
    if resolved == "cuda":
        from vtrain.engines.cuda.session import open_cuda

        return open_cuda(graph, samples, check_every=selfcheck_every)
    if resolved == "numpy":
        return NumpySession(graph, samples)
    return CpuSession(graph, samples, threads=threads)


def choose_evaluator(engine: str) -> OpenEvaluator:
    """What calibrates with ``engine``.

    RunError for an unknown engine; MissingExtraError, DeviceError, KernelError: what ``cuda`` lacks
    on this machine.
    """
    if resolve_engine(engine) == "cuda":
        from vtrain.engines.cuda.calibration import open_evaluator

        return open_evaluator
    return partial(NodeEvaluator, apply=choose_apply(engine))


def choose_apply(engine: str) -> Apply:
    """What computes single nodes with ``engine``: the law for ``numpy``, the cpu engine otherwise.

    RunError for an unknown engine.
    """
    check_engine(engine)
    return evaluate.apply_node if engine == "numpy" else cpu.apply_node
