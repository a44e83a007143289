"""Columns of a step: every value in one place, in the order that the layout names."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from tests.tasks import make_tiny_task
from vtrain.commit.kzg_layout import (
    batch_vectors,
    blocks,
    count_batch,
    count_state,
    find_blocks,
    matrix,
    state_names,
    state_vectors,
)
from vtrain.train.data import gather_batch
from vtrain.wire.proof import TILE


@pytest.mark.parametrize("usable", [1, 7, 343, 344, 345, 10_000])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_step_is_one_vector_cut_into_columns(kind: str, usable: int) -> None:
    task = make_tiny_task(kind)
    rng = np.random.default_rng(1)
    state = {
        name: rng.integers(-9, 9, value.shape, np.int64).astype(value.dtype)
        for name, value in task.initial_state.items()
    }
    names = state_names(task.graph)
    assert names == sorted((name for name in state if name != "step"), key=str.encode)
    found = state_vectors("step", task.graph, state, usable)
    flat = np.concatenate([state[name].ravel() for name in names])
    assert np.array_equal(np.concatenate(found), flat)
    assert {len(column) for column in found[:-1]} <= {usable}
    assert 0 < len(found[-1]) <= usable
    assert len(found) == count_state("step", task.graph, usable)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_a_batch_is_x_then_y(loss: str) -> None:
    task = make_tiny_task("mlp", loss=loss)
    x, y = gather_batch(task.samples, task.spec.seed, task.spec.batch, 3)
    found = batch_vectors("step", x, y, 50)
    flat = [*x.ravel().tolist(), *y.ravel().tolist()]
    assert np.concatenate(found).tolist() == flat
    assert len(found) == count_batch("step", task.spec.data, task.spec.batch, 50)


@pytest.mark.parametrize(
    ("shape", "as_matrix", "cut"),
    [
        ((), (1, 1), (1, 1)),
        ((5,), (1, 5), (1, 1)),
        ((129,), (1, 129), (1, 2)),
        ((128, 128), (128, 128), (1, 1)),
        ((129, 257), (129, 257), (2, 3)),
        ((3, 5, 7, 130), (105, 130), (1, 2)),
    ],
)
def test_a_tensor_is_a_matrix_of_blocks(
    shape: tuple[int, ...], as_matrix: tuple[int, int], cut: tuple[int, int]
) -> None:
    assert matrix(shape) == as_matrix
    assert blocks(shape) == cut
    values = np.arange(1, prod(shape) + 1, dtype=np.int32).reshape(shape)
    found = batch_vectors("tiles", values.reshape(1, -1), np.zeros((1,), np.uint8), 16384)
    assert len(found) == -(-values.size // TILE) + 1, "a sample is one row"


def test_a_state_in_tiles() -> None:
    """Each value stands where its row and column say, zeros everywhere else."""
    task = make_tiny_task("wide")
    rng = np.random.default_rng(2)
    state = {
        name: rng.integers(1, 9, value.shape, np.int64).astype(value.dtype)
        for name, value in task.initial_state.items()
    }
    columns = state_vectors("tiles", task.graph, state, 16384)
    assert len(columns) == count_state("tiles", task.graph, 16384)
    seen = 0
    for name in state_names(task.graph):
        value, where = state[name], find_blocks(task.graph, name)
        rows, across = blocks(value.shape)
        assert len(where) == rows * across
        values = value.reshape(matrix(value.shape))
        for i in range(rows):
            for j in range(across):
                column = columns[where[i * across + j]]
                expected = np.zeros((TILE, TILE), np.int64)
                part = values[TILE * i : TILE * (i + 1), TILE * j : TILE * (j + 1)]
                expected[: part.shape[0], : part.shape[1]] = part
                assert np.array_equal(column, expected.ravel()), (name, i, j)
                seen += 1
    assert seen == len(columns)
    assert len(find_blocks(task.graph, "step")) == 0


def test_a_batch_in_tiles() -> None:
    task = make_tiny_task("wide")
    x, y = gather_batch(task.samples, task.spec.seed, task.spec.batch, 1)
    columns = batch_vectors("tiles", x, y, 16384)
    assert len(columns) == count_batch("tiles", task.spec.data, task.spec.batch, 16384) == 6
    last = np.zeros((TILE, TILE), np.int64)
    last[0, : len(y)] = y
    assert np.array_equal(columns[-1], last.ravel()), "labels are one row"
    second = np.zeros((TILE, TILE), np.int64)
    second[: len(x)] = x[:, TILE : 2 * TILE]
    assert np.array_equal(columns[1], second.ravel())


@pytest.mark.parametrize("shape", [(300, 200), (256, 256), (129, 385)])
def test_blocks_go_by_rows_and_are_read_by_rows(shape: tuple[int, int]) -> None:
    values = np.arange(1, prod(shape) + 1, dtype=np.int32).reshape(shape)
    *found, _ = batch_vectors("tiles", values, np.zeros((1,), np.uint8), 16384)
    rows, columns = blocks(shape)
    assert len(found) == rows * columns
    whole = np.zeros((rows * TILE, columns * TILE), np.int32)
    for number, block in enumerate(found):
        i, j = divmod(number, columns)
        part = block.reshape(TILE, TILE)
        whole[TILE * i : TILE * (i + 1), TILE * j : TILE * (j + 1)] = part
    assert np.array_equal(whole[: shape[0], : shape[1]], values)
    assert np.count_nonzero(whole) == values.size, "zeros beyond the matrix"
