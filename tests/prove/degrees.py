"""What the nodes of a circuit are as polynomials in the challenge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import OPS, Node

Degrees = npt.NDArray[Any]
"""Python's integers: the degree of each element of a tensor."""


def _most(x: Degrees, axis: int | None = None) -> Degrees:
    return np.asarray(x.max(axis=axis, initial=0), dtype=object)


def _contract(node: Node, x: list[Degrees]) -> Degrees:
    matrix, vector = x
    if node.attrs["axis"] == 0:
        return _most(matrix + vector[:, None], 0)
    return _most(matrix + vector[None, :], 1)


_DEGREES: dict[str, Callable[[Node, list[Degrees]], Degrees]] = {
    "add": lambda node, x: np.maximum(x[0], x[1]),
    "sub": lambda node, x: np.maximum(x[0], x[1]),
    "mul": lambda node, x: x[0] + x[1],
    "dot": lambda node, x: _most(x[0] + x[1]).reshape(1),
    "sum": lambda node, x: _most(x[0]).reshape(1),
    "contract": _contract,
    "prod": lambda node, x: np.asarray(x[0].sum(axis=1), dtype=object),
}


def find_degrees(circuit: Circuit) -> Callable[[int], Degrees]:
    """The degree of each element of a node, where none is computed from ``late``: the challenge has
    1, what stood before it 0.  A power of the challenge has its exponent."""
    b = circuit._b
    known: dict[int, Degrees] = {}
    for group, parts in b._parts.items():
        for part in parts:
            degree = int(group == "challenge")
            known[part.tensor.index] = np.full(part.tensor.shape, degree, dtype=object)
    for tensor in b._given.values():
        known[tensor.index] = np.zeros(tensor.shape, dtype=object)

    def find(index: int) -> Degrees:
        pending = [index]
        while pending:
            current = pending[-1]
            node = b.nodes[current]
            missing = [item for item in node.inputs if item not in known]
            if current in known or not missing:
                pending.pop()
                inputs = [] if current in known else [known[item] for item in node.inputs]
                if current not in known:
                    known[current] = (_DEGREES.get(node.op) or OPS[node.op])(node, inputs)
            else:
                pending.extend(missing)
        return known[index]

    return find


def find_late(circuit: Circuit) -> set[int]:
    """The nodes that are computed from ``late``."""
    b = circuit._b
    found = {part.tensor.index for part in b._parts["late"]}
    for index, node in enumerate(b.nodes):
        if found.intersection(node.inputs):
            found.add(index)
    return found
