"""Fixing the exponents: run the step while building it, and watch the accumulators.

The rule is that of a static exponent: at each site E = bitlen(max |acc|) - f_acc, taken before the
shift, f = 15 - margin - E, and a site keeps the least f of the calibration steps.  The run then
restarts from its initial state.  Everything is integer, so anyone can reproduce the exponents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from vtrain.errors import TaskError
from vtrain.graph.builder import GraphBuilder
from vtrain.graph.evaluate import Apply, apply_node
from vtrain.spec.samples import Samples
from vtrain.wire.graph import AttrValue, Node, Ref

OPERAND_BITS = 15
EXPONENT_LIMIT = 60
"""Exponents stay within +-60."""


class Evaluator(Protocol):
    """Does calibration steps node by node, each as soon as it is emitted; holds their values."""

    def evaluate(self, node: Node) -> None:
        """Compute the output of the next node of the step under way."""
        ...

    def largest(self, value: int) -> int:
        """Largest magnitude of the output of node number ``value``, 0 of no elements."""
        ...

    def advance(self, next_states: Mapping[str, Ref]) -> None:
        """End the step: these values are the state of the next one."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


State = Mapping[str, npt.NDArray[Any]]
OpenEvaluator = Callable[[State, Samples], Evaluator]


class NodeEvaluator:
    """:class:`Evaluator` that holds arrays, and computes each node by ``apply``: by its law, or by
    what gives the same bits sooner."""

    def __init__(self, state: State, samples: Samples, *, apply: Apply = apply_node) -> None:
        self._state = state
        self._samples = samples
        self._apply = apply
        self._values: list[npt.NDArray[Any]] = []

    def evaluate(self, node: Node) -> None:
        inputs = [self._values[source.node] for source in node.inputs]
        self._values.append(self._apply(node, inputs, self._state, self._samples))

    def largest(self, value: int) -> int:
        values = self._values[value]
        # Not by np.abs, which has no magnitude for the least of a type.
        return max(int(values.max(initial=0)), -int(values.min(initial=0)))

    def advance(self, next_states: Mapping[str, Ref]) -> None:
        self._state = {name: self._values[ref.node] for name, ref in next_states.items()}
        self._values = []

    def close(self) -> None:
        self._values = []


class _Meter:
    """An exponent policy that looks at the values of the very graph being built."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.margin = 0
        self.exponents: dict[str, int] = {}
        self.seen: set[str] = set()
        self._evaluator = evaluator

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        largest = self._evaluator.largest(source.node)
        self.seen.add(site)
        if largest > 0:
            measured = OPERAND_BITS - self.margin - (largest.bit_length() - exponent)
            measured = max(-EXPONENT_LIMIT, min(EXPONENT_LIMIT, measured))
            self.exponents[site] = min(self.exponents.get(site, measured), measured)
        return self.exponents.get(site, min(OPERAND_BITS, exponent))


class _EagerBuilder(GraphBuilder):
    """Has each node evaluated as soon as it is emitted."""

    def __init__(self, meter: _Meter, evaluator: Evaluator, margin: int, gradients: int) -> None:
        super().__init__(meter)
        meter.margin = margin
        self._meter = meter
        self._evaluator = evaluator
        self._gradients = gradients

    def differentiate(self, refs: Set[Ref]) -> None:
        super().differentiate(refs)
        # Whatever is emitted from here on is a gradient, or an update by one.
        self._meter.margin = self._gradients

    def emit(self, op: str, name: str, inputs: Sequence[Ref], /, **attrs: AttrValue) -> Ref:
        ref = super().emit(op, name, inputs, **attrs)
        self._evaluator.evaluate(self.nodes[ref.node])
        return ref


@dataclass(frozen=True)
class Calibration:
    """``exponents`` by site, and the sites that saw nothing but zeros in every step."""

    exponents: Mapping[str, int]
    silent: tuple[str, ...]


def calibrate(
    emit_step: Callable[[GraphBuilder], None],
    state: State,
    samples: Samples,
    *,
    steps: int,
    margin: int,
    gradient_margin: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
    open_evaluator: OpenEvaluator = NodeEvaluator,
) -> Calibration:
    """Exponents of every site from ``steps`` steps of training from ``state``.

    ``margin`` is the number of bits kept free for what those steps did not show, and
    ``gradient_margin`` that at the sites of gradients and updates (None: the same).  The evaluator
    changes no result.  TaskError when there is nothing to calibrate on.
    """
    gradients = margin if gradient_margin is None else gradient_margin
    if steps < 1 or not 0 <= margin <= 12 or not 0 <= gradients <= 12:
        raise TaskError("needs at least one step and a margin of 0 to 12 bits", where="calibration")
    with closing(open_evaluator(state, samples)) as evaluator:
        meter = _Meter(evaluator)
        for done in range(steps):
            builder = _EagerBuilder(meter, evaluator, margin, gradients)
            emit_step(builder)
            graph = builder.graph()
            evaluator.advance(graph.next_states())
            progress(done + 1)
    silent = tuple(sorted(meter.seen - set(meter.exponents)))
    exponents = {
        node.name: meter.exponents.get(node.name, node.outputs[0].exponent)
        for node in graph.nodes
        if node.name in meter.seen
    }
    return Calibration(exponents, silent)
