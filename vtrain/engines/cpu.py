"""The cpu engine: Rust, many threads, exact int16 products, the same bits as the law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain import _core
from vtrain.engines.base import State, Trace, check_state
from vtrain.errors import GraphError
from vtrain.graph import evaluate
from vtrain.spec.samples import Samples
from vtrain.threads import check_threads
from vtrain.wire import cbor
from vtrain.wire.graph import Node, StepGraph, count_items, encode_graph, encode_node
from vtrain.wire.record import StepRecord

_BOUND = frozenset({"state", "gather_samples", "reshape", "next_state"})
"""Operators that compute nothing: they read a state or the samples, or have their input's elements,
which need no copy."""


def apply_node(
    node: Node,
    inputs: Sequence[npt.NDArray[Any]],
    state: State,
    samples: Samples,
    /,
    *,
    threads: int = 0,
) -> npt.NDArray[Any]:
    """:func:`vtrain.graph.evaluate.apply_node` by this engine: the same bits.

    ``threads`` = 0 takes every core.
    """
    if node.op in _BOUND:
        return evaluate.apply_node(node, inputs, state, samples)
    # Not ascontiguousarray: that would make a scalar a vector.
    arrays = [np.asarray(value, order="C") for value in inputs]
    out: npt.NDArray[Any] = _core.apply_node(encode_node(node), arrays, threads)
    return out


def check_size(graph: StepGraph) -> None:
    """GraphError for a graph of more items than the engine reads, before it is encoded."""
    most = cbor.LIMITS.items
    found = count_items(graph)
    if found > most:
        raise GraphError(
            f"has {len(graph.nodes)} nodes with {found} numbers, names and lists together, and the "
            f"cpu engine reads {most}: do the batch in fewer parts (--accumulate), or without "
            "--recompute",
            where="graph",
        )


class CpuSession:
    """``vtrain.engines.base.Session`` in Rust; needs a legal graph.

    ``threads`` = 0 takes every core; ``path`` forces an instruction set of the matrix product
    (``_core.gemm_paths()``, or "auto").  Neither changes a bit.  The GIL is free during a step.
    GraphError names a node that cannot be run, RunError a path that this machine lacks, or
    too many threads.
    """

    name = "cpu"

    def __init__(
        self, graph: StepGraph, samples: Samples, *, threads: int = 0, path: str = "auto"
    ) -> None:
        check_threads(threads)
        check_size(graph)
        spec = samples.spec
        self._graph = graph
        windows = spec.windows
        table = np.ascontiguousarray(samples.table)
        self._engine = _core.Engine(
            encode_graph(graph),
            table if windows is None else table.reshape(1, -1),
            (spec.x_dtype, spec.x_shape),
            (spec.y_dtype, spec.y_shape),
            threads,
            path,
            None
            if windows is None
            else (windows.width, windows.tokens, windows.stride, windows.shift),
        )

    def load_state(self, state: State) -> None:
        check_state(self._graph, state)
        for name, value in state.items():
            # Not ascontiguousarray: that would make a scalar a vector.
            self._engine.load_state(name, np.asarray(value, order="C"))

    def read_state(self) -> dict[str, npt.NDArray[Any]]:
        return dict(self._engine.read_state())

    def step(self) -> StepRecord:
        return StepRecord(*self._engine.step())

    def trace(self) -> Trace:
        record, digests = self._engine.trace()
        return Trace(StepRecord(*record), tuple(digests))

    def evaluate(self, node: int) -> npt.NDArray[Any]:
        return self._engine.evaluate([node])[0]

    def evaluate_all(self, nodes: Sequence[int]) -> list[npt.NDArray[Any]]:
        return self._engine.evaluate(nodes)

    def check(
        self,
        digests: bytes,
        vectors: Sequence[npt.NDArray[np.uint64]],
        read: Callable[[int], npt.NDArray[np.int64] | None],
    ) -> int | None:
        """Hold the values of the next step against the ``digests`` of all outputs, one after the
        other: the node that is wrong, or of which ``read`` has nothing; None where all is right.

        The state is taken to be right, and is that after the step then; else one must be loaded
        anew.  ``read`` gives the claimed output of a product, which it found to have its digest;
        products are checked by ``vectors`` (``vtrain.spec.algebraic``), all else is done again.
        """
        return self._engine.check(digests, vectors, read)

    @property
    def check_memory(self) -> int:
        """Bytes of all buffers that :meth:`check` uses."""
        return self._engine.check_memory

    def saturation(self) -> dict[str, int]:
        return dict(self._engine.saturation())

    @property
    def memory(self) -> int:
        """Bytes of all buffers that a step uses, known before the first: the state, the values of
        the step, and the blocks of rows that threads work on.  The packed operands of products come
        on top, at most 24 MiB, and so do the samples."""
        return self._engine.memory

    def start_profile(self) -> None:
        """Measure, from zero, where the time of the coming steps goes."""
        self._engine.start_profile()

    def profile(self) -> Mapping[str, float]:
        """Seconds spent by node name; nodes done together count under the last of them."""
        return dict(self._engine.profile())
