"""One operator in a graph of its own: its backward rule against torch's autodiff, to the last bit.

Values are small and every site keeps the exponent that it has, so that no gradient is rounded: the
integers are the derivative, or the rule is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.facets.floats import FLOATS
from tests.ops.cases import Case
from vtrain.errors import GraphError
from vtrain.graph.autodiff import compute_gradients
from vtrain.graph.builder import GraphBuilder
from vtrain.ops import TABLE
from vtrain.spec.number import NUMPY_DTYPES, SATURATION
from vtrain.wire.graph import Node, Ref, TensorType

Array = npt.NDArray[Any]
CHOOSES = {"gather_rows": {1}}
"""Inputs that say which elements are meant, and have no gradient."""
MOST = 7
"""Largest absolute value of what goes in: no sum of a small case comes near a saturation."""


class _KeepExponents:
    def choose(self, site: str, source: Ref, exponent: int) -> int:
        return exponent


class _Builder(GraphBuilder):
    """Takes values from outside, of any type."""

    def __init__(self) -> None:
        super().__init__(_KeepExponents())
        self.given: dict[Ref, Array] = {}

    def give(self, name: str, kind: TensorType, values: Array) -> Ref:
        ref = Ref(len(self._nodes))
        self._nodes.append(Node(name, "given", {}, (), (kind,)))
        self.given[ref] = values.astype(NUMPY_DTYPES[kind.dtype])
        return ref

    def evaluate(self) -> list[Array]:
        values: list[Array] = []
        for index, node in enumerate(self._nodes):
            if node.op == "given":
                values.append(self.given[Ref(index)])
            else:
                inputs = [values[ref.node] for ref in node.inputs]
                values.append(np.asarray(TABLE[node.op].law(node.attrs, inputs)))
        return values

    def real(self, ref: Ref, values: Sequence[Array]) -> npt.NDArray[np.float64]:
        exponent = self.type_of(ref).exponent
        return np.ldexp(values[ref.node].astype(np.float64), -exponent)


def _small(kind: TensorType) -> TensorType:
    lo, hi = (0, MOST) if kind.dtype == "u8" else (-MOST, MOST)
    return replace(kind, lo=lo, hi=hi)


def find_wrong_gradients(op: str, case: Case, seed: int) -> list[str]:
    """What is wrong with the gradients of ``op`` at random small values; none where it refuses.

    With respect to all inputs at once, and to each by itself: a rule may leave out what nobody asks
    for, and must not leave out what somebody does.
    """
    rng = np.random.default_rng(seed)
    kinds = [_small(kind) for kind in case.types]
    arrays = [rng.integers(kind.lo, kind.hi, kind.shape, endpoint=True) for kind in kinds]
    everything = tuple(i for i in range(len(kinds)) if i not in CHOOSES.get(op, ()))
    wrong = []
    for wanted in {everything, *((i,) for i in everything)}:
        b = _Builder()
        inputs = [
            b.give(f"in{i}", kind, x) for i, (kind, x) in enumerate(zip(kinds, arrays, strict=True))
        ]
        try:
            out = b.emit(op, "it", inputs, **case.attrs)
        except GraphError:
            return []  # these attributes need other ranges
        shape = b.type_of(out).shape
        grad_kind = TensorType("i64", shape, int(rng.integers(-3, 9)), -MOST, MOST)
        grad = b.give("grad", grad_kind, rng.integers(-MOST, MOST, shape, endpoint=True))
        try:
            found = compute_gradients(b, out, grad, [inputs[i] for i in wanted])
        except GraphError as error:
            if "is not defined" in error.message:
                return []  # the rule says for itself which attributes it is not for
            return [f"gives no gradient: {error.message}"]
        values = b.evaluate()
        x = [torch.tensor(b.real(ref, values), requires_grad=True) for ref in inputs]
        y = FLOATS[op](case.attrs, x)
        wrong += _compare_values(b, out, values, y)
        y.backward(torch.tensor(b.real(grad, values)))  # type: ignore[no-untyped-call]
        for i in wanted:
            derivative = x[i].grad
            gradient = b.real(found[inputs[i]], values)
            if derivative is None or gradient.shape != derivative.shape:
                wrong.append(f"the gradient of input {i} has another shape than the input")
            elif not np.array_equal(gradient, derivative.numpy()):
                wrong.append(f"the gradient of input {i} is not the derivative")
    return wrong


def _compare_values(
    b: _Builder, out: Ref, values: Sequence[Array], expected: torch.Tensor
) -> list[str]:
    """The float definition says the same as the law, within half a unit where the law rounds."""
    kind = b.type_of(out)
    real = expected.detach().numpy()
    if real.shape != kind.shape:
        return ["the float definition has another shape than the law"]
    unit = 2.0**-kind.exponent
    most = SATURATION.get(kind.dtype, (0, 2**62))[1] * unit
    off = np.abs(np.clip(real, -most, most) - b.real(out, values))
    return [] if np.all(off <= unit / 2) else ["the float definition is not what the law computes"]
