"""How many cells must hold each value of a circuit, from the circuit's own nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Node

Labels = npt.NDArray[np.int64]
"""Which value each element of a tensor is."""

_FREE: dict[str, Callable[[Node, list[Labels]], Labels]] = {
    "reshape": lambda node, x: x[0].reshape(node.shape),
    "transpose": lambda node, x: x[0].T,
    "slice": lambda node, x: x[0][node.attrs["start"] : node.attrs["stop"]],
    "take": lambda node, x: x[0][node.attrs["indices"]],
    "concat": lambda node, x: np.concatenate(x),
    "beside": lambda node, x: np.concatenate(x, axis=1),
}
"""Nodes that compute nothing."""


def count_cells(circuit: Circuit) -> tuple[dict[str, list[int]], Counter[int]]:
    """Cells that hold each element of each committed column, by column; and of all other values,
    how many are held by so many cells.  What hides a column is left out: no other cell holds it.

    A committed element has a cell in its column, and one for each operand that it is; what a node
    computes has a cell as its result, and one for each operand that it is.  What ends in
    ``answers`` is an element of it.
    """
    labels: dict[int, Labels] = {}
    cells: list[int] = []

    def fresh(count: int) -> Labels:
        cells.extend([1] * count)
        return np.arange(len(cells) - count, len(cells))

    def use(operand: Labels, times: int = 1) -> None:
        for label in operand.reshape(-1).tolist():
            cells[label] += times

    for name, index in circuit._inputs.items():
        labels[index] = fresh(circuit.size(name))
    committed = len(cells)
    for index in circuit._order():
        if index in labels:
            continue
        node = circuit._b.nodes[index]
        x = [labels[item] for item in node.inputs]
        if node.op in _FREE:
            labels[index] = _FREE[node.op](node, x)
        elif node.op == "sum" and x[0].size == 1:
            labels[index] = x[0]
        else:
            size = int(np.prod(node.shape, dtype=np.int64))
            for operand in x:
                again = operand.size == 1 and node.op in ("add", "mul", "sub")
                again |= node.op == "contract" and operand is x[1]
                use(operand, size if again else 1)
            labels[index] = fresh(size).reshape(node.shape)
    ends = {name: labels[index].tolist() for name, index in circuit._outputs.items()}
    for outputs in ends.values():
        use(np.asarray(outputs))
    found = {
        name: labels[index][: circuit.length(name)].tolist()
        for name, index in circuit._inputs.items()
    }
    found |= ends
    seen = {label for outputs in ends.values() for label in outputs}
    inner = [cells[at] for at in range(committed, len(cells)) if at not in seen]
    return {name: [cells[at] for at in at_all] for name, at_all in found.items()}, Counter(inner)
