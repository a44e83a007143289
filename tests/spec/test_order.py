"""The sample order: a permutation of every epoch, one index at a time or by the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtrain import _core
from vtrain.errors import TaskError
from vtrain.spec import order

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "order.json").read_text())


@pytest.mark.parametrize("case", VECTORS["batches"])
def test_vectors(case: Any) -> None:
    seed, n, batch, step = int(case["seed"]), case["n"], case["batch"], int(case["step"])
    indices = order.compute_batch_indices(seed, n, batch, step)
    assert indices.dtype == np.int64
    assert indices.tolist() == case["indices"]
    assert _core.batch_indices(seed, n, batch, step).tolist() == case["indices"]


def test_every_epoch_is_a_permutation() -> None:
    for n in range(1, 301):
        two_epochs = _core.batch_indices(7, n, 2 * n, 0)
        for epoch in (two_epochs[:n], two_epochs[n:]):
            assert np.array_equal(np.sort(epoch), np.arange(n)), n
        assert np.array_equal(two_epochs, order.compute_batch_indices(7, n, 2 * n, 0)), n


@pytest.mark.parametrize("n", [4095, 4096, 4097, 65536, 65537, 250_000])
def test_large_epochs_are_permutations(n: int) -> None:
    epoch = _core.batch_indices(2**63 + 5, n, n, 3)
    assert np.bincount(epoch, minlength=n).tolist() == [1] * n
    assert not np.array_equal(epoch, np.arange(n))
    some = order.compute_batch_indices(2**63 + 5, n, 64, 3 * n // 64 + 1)
    offset = (3 * n // 64 + 1) * 64 - 3 * n
    assert np.array_equal(some, epoch[offset : offset + 64])


def test_epochs_and_seeds_differ() -> None:
    epochs = {tuple(order.compute_batch_indices(7, 50, 50, epoch)) for epoch in range(40)}
    seeds = {tuple(order.compute_batch_indices(seed, 50, 50, 0)) for seed in range(40)}
    assert len(epochs) == len(seeds) == 40
    # Each half of seed and epoch counts.
    base = order.compute_permuted_index(0, 0, 2**40, 5)
    for bit in (0, 31, 32, 63):
        assert order.compute_permuted_index(1 << bit, 0, 2**40, 5) != base
        assert order.compute_permuted_index(0, 1 << bit, 2**40, 5) != base


@given(
    st.integers(0, 2**64 - 1),
    st.integers(1, 2**48),
    st.integers(1, 12),
    st.integers(0, 2**59),
)
def test_a_batch_is_its_single_indices(seed: int, n: int, batch: int, step: int) -> None:
    indices = order.compute_batch_indices(seed, n, batch, step).tolist()
    assert indices == [
        order.compute_sample_index(seed, n, step * batch + slot) for slot in range(batch)
    ]
    assert indices == _core.batch_indices(seed, n, batch, step).tolist()
    assert all(0 <= index < n for index in indices)


def test_batches_tile_the_epochs() -> None:
    whole = order.compute_batch_indices(3, 10, 30, 0)
    sevens = [order.compute_batch_indices(3, 10, 7, step) for step in range(4)]
    assert np.array_equal(np.concatenate(sevens), whole[:28])


def test_the_start_of_an_epoch_is_spread_evenly() -> None:
    # 4000 draws of the first sample of ten: each expected 400 times, standard deviation 19.
    firsts = [order.compute_permuted_index(11, epoch, 10, 0) for epoch in range(4000)]
    counts = np.bincount(firsts, minlength=10)
    assert counts.min() > 300
    assert counts.max() < 500


@pytest.mark.parametrize(
    ("seed", "n", "batch", "step"),
    [
        (0, 0, 1, 0),
        (0, 2**48 + 1, 1, 0),
        (0, 5, 0, 0),
        (0, 5, 2**24 + 1, 0),
        (0, 5, 2, 2**62),
    ],
)
def test_what_has_no_order_is_refused(seed: int, n: int, batch: int, step: int) -> None:
    with pytest.raises(TaskError):
        order.compute_batch_indices(seed, n, batch, step)
    with pytest.raises(TaskError):
        _core.batch_indices(seed, n, batch, step)


def test_negative_and_oversized_arguments_are_refused() -> None:
    for seed, position in ((-1, 0), (2**64, 0), (0, -1), (0, 2**63)):
        with pytest.raises(TaskError):
            order.compute_sample_index(seed, 5, position)
    with pytest.raises(TaskError):
        order.compute_batch_indices(0, 5, 2, -1)
    for epoch, entry in ((0, 5), (0, -1), (-1, 0), (2**64, 0)):
        with pytest.raises(TaskError):
            order.compute_permuted_index(0, epoch, 5, entry)
