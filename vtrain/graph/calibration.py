"""Fixing the exponents: run the step while building it, and watch the accumulators.

The rule is that of a static exponent: at each site E = bitlen(max |acc|) - f_acc, taken before the
shift, f = 15 - margin - E, and a site keeps the least f of the calibration steps.  The run then
restarts from its initial state.  Everything is integer, so anyone can reproduce the exponents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.errors import TaskError
from vtrain.graph.builder import GraphBuilder
from vtrain.graph.evaluate import apply_node
from vtrain.spec.samples import Samples
from vtrain.wire.graph import AttrValue, Ref

OPERAND_BITS = 15
EXPONENT_LIMIT = 60
"""Exponents stay within +-60."""


class _Meter:
    """An exponent policy that looks at the values of the very graph being built."""

    def __init__(self, margin: int) -> None:
        self.margin = margin
        self.exponents: dict[str, int] = {}
        self.seen: set[str] = set()
        self.value_of: Callable[[Ref], npt.NDArray[Any]]

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        largest = int(np.abs(self.value_of(source).astype(np.int64)).max(initial=0))
        self.seen.add(site)
        if largest > 0:
            measured = OPERAND_BITS - self.margin - (largest.bit_length() - exponent)
            measured = max(-EXPONENT_LIMIT, min(EXPONENT_LIMIT, measured))
            self.exponents[site] = min(self.exponents.get(site, measured), measured)
        return self.exponents.get(site, min(OPERAND_BITS, exponent))


class _EagerBuilder(GraphBuilder):
    """Evaluates each node, by its law, as soon as it is emitted."""

    def __init__(
        self, policy: _Meter, state: Mapping[str, npt.NDArray[Any]], samples: Samples
    ) -> None:
        super().__init__(policy)
        self._state = state
        self._samples = samples
        self._values: list[npt.NDArray[Any]] = []
        policy.value_of = self.value_of

    def value_of(self, ref: Ref) -> npt.NDArray[Any]:
        return self._values[ref.node]

    def emit(self, op: str, name: str, inputs: Sequence[Ref], /, **attrs: AttrValue) -> Ref:
        ref = super().emit(op, name, inputs, **attrs)
        node = self.nodes[ref.node]
        values = [self._values[source.node] for source in inputs]
        self._values.append(apply_node(node, values, self._state, self._samples))
        return ref

    def next_state(self) -> dict[str, npt.NDArray[Any]]:
        return {name: self._values[ref.node] for name, ref in self.graph().next_states().items()}


@dataclass(frozen=True)
class Calibration:
    """``exponents`` by site, and the sites that saw nothing but zeros in every step."""

    exponents: Mapping[str, int]
    silent: tuple[str, ...]


def calibrate(
    emit_step: Callable[[GraphBuilder], None],
    state: Mapping[str, npt.NDArray[Any]],
    samples: Samples,
    *,
    steps: int,
    margin: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Exponents of every site from ``steps`` steps of training from ``state``.

    ``margin`` is the number of bits kept free for what those steps did not show.  TaskError when
    there is nothing to calibrate on.
    """
    if steps < 1 or not 0 <= margin <= 12:
        raise TaskError("needs at least one step and a margin of 0 to 12 bits", where="calibration")
    meter = _Meter(margin)
    for done in range(steps):
        builder = _EagerBuilder(meter, state, samples)
        emit_step(builder)
        state = builder.next_state()
        progress(done + 1)
    silent = tuple(sorted(meter.seen - set(meter.exponents)))
    graph = builder.graph()
    exponents = {
        node.name: meter.exponents.get(node.name, node.outputs[0].exponent)
        for node in graph.nodes
        if node.name in meter.seen
    }
    return Calibration(exponents, silent)
