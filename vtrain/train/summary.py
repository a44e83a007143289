"""A task for people: what its graph is made of, how many parameters, how much memory and time."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vtrain.engines.registry import measure_step_memory, open_session, resolve_engine
from vtrain.graph.update import PARAM_PREFIX
from vtrain.graph.values import PRODUCTS
from vtrain.printable import format_seconds
from vtrain.wire.graph import Node, StepGraph

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask

_MEASURED: Final = 0.2
"""Seconds that steps are done for."""
_MOST_STEPS: Final = 20
MOST_MULTIPLICATIONS: Final = 10**9
"""Of a step that is done only to show how long it takes: some tenths of a second on two cores."""
_SHOWN: Final = 8


@dataclass(frozen=True)
class TaskSummary:
    """``parameters`` are numbers of weights, of which ``trained`` have a gradient; ``operators``
    how many nodes have each; ``multiplications`` those of the products of one step;
    ``step_memory`` what a step of the cpu engine takes (docs/cli.md, task check)."""

    nodes: int
    operators: Mapping[str, int]
    parameters: int
    trained: int
    multiplications: int
    step_memory: int


@dataclass(frozen=True)
class Estimate:
    """How long a step takes here, and all of a task, by doing some of its steps now."""

    engine: str
    step_seconds: float
    steps: int

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.step_seconds * self.steps

    def __str__(self) -> str:
        return (
            f"{format_seconds(self.step_seconds)} a step, {format_seconds(self.seconds)} for all "
            f"{self.steps:,} ({self.engine} engine, measured now)"
        )


def summarize(task: CompiledTask) -> TaskSummary:
    """What can be said of a task without doing a step of it."""
    graph = task.graph
    sizes = {
        name: graph.type_of(ref).size
        for name, ref in graph.states().items()
        if name.startswith(PARAM_PREFIX)
    }
    changed = {
        str(node.attrs["name"])
        for node in graph.nodes
        if node.op == "next_state" and graph.nodes[node.inputs[0].node].op != "state"
    }
    return TaskSummary(
        nodes=len(graph.nodes),
        operators=dict(Counter(node.op for node in graph.nodes).most_common()),
        parameters=sum(sizes.values()),
        trained=sum(size for name, size in sizes.items() if name in changed),
        multiplications=sum(_count(graph, node) for node in graph.nodes if node.op in PRODUCTS),
        step_memory=measure_step_memory(graph, task.samples),
    )


def _count(graph: StepGraph, node: Node) -> int:
    """(MK)(KN)(MN) = (MKN)^2, and so for each of a stack."""
    sizes = [graph.type_of(ref).size for ref in node.inputs[:2]] + [node.outputs[0].size]
    stack = math.prod(node.outputs[0].shape[:-2])
    return math.isqrt(math.prod(size // stack for size in sizes)) * stack if stack else 0


def estimate(task: CompiledTask, *, engine: str = "auto", threads: int = 0) -> Estimate:
    """Do some steps of a task, which nothing is kept of, and say how long all of them take.

    MissingExtraError, DeviceError or KernelError for an engine that this machine lacks.
    """
    name = resolve_engine(engine)
    session = open_session(name, task.graph, task.samples, threads=threads)
    session.load_state(task.initial_state)
    step = measure_step(session.step, _MEASURED, warm=1, least=1, most=_MOST_STEPS)
    return Estimate(name, step, task.spec.steps)


def measure_step(
    step: Callable[[], object], seconds: float, *, warm: int, least: int, most: int = 2**63
) -> float:
    """The median time of a step, in seconds, of ``least`` to ``most`` steps, about ``seconds`` long
    in all; ``warm`` steps come before: the first reaches for memory and starts threads."""
    for _ in range(warm):
        step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or (len(times) < most and time.perf_counter() < end):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def describe(task: CompiledTask) -> dict[str, str]:
    """Labels and values: what a notebook shows of a task.

    Some steps are done to say how long it takes, unless they take long themselves.
    """
    spec, found = task.spec, summarize(task)
    operators = [f"{count} {name}" for name, count in list(found.operators.items())[:_SHOWN]]
    more = len(found.operators) - _SHOWN
    frozen = found.parameters - found.trained
    quick = found.multiplications <= MOST_MULTIPLICATIONS
    return {
        "task id": task.task_id.hex(),
        "steps": f"{spec.steps:,} of {spec.batch} samples, of {spec.data.samples:,}",
        "parameters": f"{found.parameters:,}" + (f", {frozen:,} of them frozen" if frozen else ""),
        "graph": f"{found.nodes:,} nodes: {', '.join(operators)}"
        + (f" and {more} kinds more" if more > 0 else ""),
        "products": f"{found.multiplications:,} multiplications a step",
        "memory of a step": f"{found.step_memory / 2**20:,.1f} MiB (cpu engine)",
        "time": str(estimate(task, engine="cpu")) if quick else "task.estimate() measures it",
        "checkpoints": f"every {spec.checkpoint_every:,} steps: what an audit replays at a time",
        "notes": "; ".join(task.notes),
    }
