"""Which vectors of integers a step's KZG commitments are of.

A commitment binds the values of one *column*, in order, and zeros after them: not how many values
there were, their dtype, or where a tensor begins.  That follows from the graph and from the
layout here, which whoever compares commitments must apply to the same graph.

``step`` (few columns, for a circuit that is given a whole step): the values of all tensors, one
after the other, cut into columns that are full but for the last.

``tiles`` (for circuits over blocks of a fixed size): a tensor is a matrix [size / last extent, last
extent], a vector one row, a scalar one value; it is cut into blocks of 128 x 128, those of the
first 128 rows first, each a column of 16384 values, row by row, zeros where the matrix ends.

The *state* is all state tensors but the scalar counter ``step``, which a record has in the clear,
in UTF-8 order of their names.  The *batch* is x, then y: the gathered samples as they are committed
to, not yet prepared; under ``tiles`` x is a matrix [batch, values of a sample] and so is y, but
that y with one value a sample is one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.wire.graph import StepGraph
from vtrain.wire.proof import TILE
from vtrain.wire.task import DataSpec

Array = npt.NDArray[Any]

COUNTER: Final = "step"
"""The state tensor that is not committed to: the number of steps done."""


def state_names(graph: StepGraph) -> list[str]:
    """The state tensors that are committed to, in order."""
    return sorted((name for name in graph.states() if name != COUNTER), key=str.encode)


def state_vectors(
    kind: str, graph: StepGraph, state: Mapping[str, Array], usable: int
) -> list[Array]:
    """The columns of a state that fits ``graph``, as vectors of integers.

    ``kind`` is "step" or "tiles"; a column holds ``usable`` values (``ProofSpec.usable``).
    """
    tensors = [state[name] for name in state_names(graph)]
    if kind == "step":
        return _cut(tensors, usable)
    return [
        block for tensor in tensors for block in cut_blocks(tensor.reshape(matrix(tensor.shape)))
    ]


def batch_vectors(kind: str, x: Array, y: Array, usable: int) -> list[Array]:
    """The columns of a gathered batch; x and y are [batch, shape of a sample]."""
    if kind == "step":
        return _cut([x, y], usable)
    return [
        block for part in (x, y) for block in cut_blocks(part.reshape(batch_matrix(part.shape)))
    ]


def count_state(kind: str, graph: StepGraph, usable: int) -> int:
    """How many columns :func:`state_vectors` gives."""
    states = graph.states()
    shapes = [graph.type_of(states[name]).shape for name in state_names(graph)]
    if kind == "step":
        return _count_cut(shapes, usable)
    return sum(prod(blocks(shape)) for shape in shapes)


def count_batch(kind: str, data: DataSpec, batch: int, usable: int) -> int:
    """How many columns :func:`batch_vectors` gives."""
    shapes = [(batch, *data.x_shape), (batch, *data.y_shape)]
    if kind == "step":
        return _count_cut(shapes, usable)
    return sum(prod(blocks(batch_matrix(shape))) for shape in shapes)


def matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor as ``tiles`` sees it: the last extent makes a row."""
    columns = shape[-1] if shape else 1
    return prod(shape) // columns, columns


def blocks(shape: Sequence[int], side: int = TILE) -> tuple[int, int]:
    """(rows, columns) of blocks that ``tiles`` cuts a tensor of this shape into.

    Block (i, j), which holds rows 128 i .. and columns 128 j .. of :func:`matrix`, is number
    i * columns + j of the tensor's.  ``side`` is another extent of blocks than 128, for tests.
    """
    rows, columns = matrix(shape)
    return -(-rows // side), -(-columns // side)


def find_blocks(graph: StepGraph, name: str, side: int = TILE) -> range:
    """Which of a state's columns under ``tiles`` are the blocks of the state tensor ``name``."""
    states, start = graph.states(), 0
    for other in state_names(graph):
        count = prod(blocks(graph.type_of(states[other]).shape, side))
        if other == name:
            return range(start, start + count)
        start += count
    return range(0)


def batch_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of x or y under ``tiles``: [batch, values of a sample]; one row where a
    sample has one value."""
    values = prod(shape[1:])
    return (shape[0], values) if values > 1 else (1, shape[0])


def _cut(tensors: Sequence[Array], usable: int) -> list[Array]:
    # Of two dtypes numpy takes one that holds both; all that tensors have fit into i64.
    flat = np.concatenate([tensor.reshape(-1) for tensor in tensors])
    return [flat[start : start + usable] for start in range(0, flat.size, usable)]


def _count_cut(shapes: Sequence[Sequence[int]], usable: int) -> int:
    return -(-sum(prod(shape) for shape in shapes) // usable)


def cut_blocks(values: Array, side: int = TILE) -> list[Array]:
    """The blocks of a matrix, each flat, in the order of their numbers."""
    rows, columns = blocks(values.shape, side)
    padded = np.zeros((rows * side, columns * side), values.dtype)
    padded[: values.shape[0], : values.shape[1]] = values
    cut = padded.reshape(rows, side, columns, side).swapaxes(1, 2)
    return [block.reshape(-1) for row in cut for block in row]
