"""Parts of a tensor along one axis: cut out, put between zeros, joined."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.ops import TABLE
from vtrain.prove.circuit.values import Tensor
from vtrain.prove.steps.builder import Emitters, StepBuilder
from vtrain.wire.graph import Node, Ref

I64 = npt.NDArray[np.int64]


def _count(shape: tuple[int, ...], start: int = 0) -> I64:
    return np.arange(start, start + np.prod(shape, dtype=np.int64)).reshape(shape)


def _move(node: Node, *places: I64) -> Any:
    """The node's law of the places of elements in place of their values."""
    return TABLE[node.op].law(node.attrs, places)


def _emit_slice(s: StepBuilder, ref: Ref, node: Node) -> None:
    x = s.tensor(node.inputs[0])
    s.values[ref] = s.b.take(x, _move(node, _count(x.shape)))


def _emit_pad(s: StepBuilder, ref: Ref, node: Node) -> None:
    """The zeros are one constant, before the elements."""
    x = s.tensor(node.inputs[0])
    s.values[ref] = s.b.take(s.b.concat([s.b.constant(0), x]), _move(node, _count(x.shape, 1)))


def _emit_concat(s: StepBuilder, ref: Ref, node: Node) -> None:
    parts: list[Tensor] = [s.tensor(item) for item in node.inputs]
    starts = np.cumsum([0, *(part.size for part in parts)]).tolist()
    places = [_count(part.shape, start) for part, start in zip(parts, starts, strict=False)]
    s.values[ref] = s.b.take(s.b.concat(parts), _move(node, *places))


EMITTERS: Final[Emitters] = {
    "slice": _emit_slice,
    "pad": _emit_pad,
    "concat": _emit_concat,
}
