"""The exact product through the binding: every path and thread count, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtrain import _core
from vtrain.errors import GraphError

LIMIT = 32639
PATHS = _core.gemm_paths()


def draw(random: np.random.Generator, rows: int, cols: int, bits: int) -> _core.Int16Matrix:
    """Evenly distributed values of so many bits."""
    low = -(1 << (bits - 1))
    return random.integers(low, -low, (rows, cols), dtype=np.int16, endpoint=bits < 16)


def multiply(a: _core.Int16Matrix, b: _core.Int16Matrix) -> np.ndarray:
    """The product in numpy's int64, which wraps nowhere near these sums."""
    return a.astype(np.int64) @ b.astype(np.int64)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("path", PATHS)
@settings(deadline=None, max_examples=40)
@given(
    m=st.integers(0, 40),
    n=st.integers(0, 70),
    k=st.integers(0, 600),
    transposes=st.tuples(st.booleans(), st.booleans()),
    bits=st.tuples(st.integers(1, 16), st.integers(1, 16)),
    seed=st.integers(0, 2**32),
)
def test_every_path_is_exact(
    path: str,
    threads: int,
    m: int,
    n: int,
    k: int,
    transposes: tuple[bool, bool],
    bits: tuple[int, int],
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    a, b = draw(random, m, k, bits[0]), draw(random, k, n, bits[1])
    expected = multiply(a, b)
    a = np.ascontiguousarray(a.T) if transposes[0] else a
    b = np.ascontiguousarray(b.T) if transposes[1] else b
    assert np.array_equal(_core.gemm_i64(a, b, *transposes, path=path, threads=threads), expected)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shift", [-2, 0, 1, 17, 63, 64])
def test_rescaling_rounds_half_up_saturates_and_counts(path: str, relu: bool, shift: int) -> None:
    random = np.random.default_rng(shift + 2)
    a, b = draw(random, 19, 45, 13), draw(random, 45, 35, 14)
    bias = random.integers(-(1 << 30), 1 << 30, 35)
    exact = (multiply(a, b) + bias).astype(object)
    scaled = exact * 2**-shift if shift <= 0 else (exact + 2 ** (shift - 1)) // 2**shift
    beyond = int((abs(scaled) > LIMIT).sum())
    expected = np.clip(scaled, 0 if relu else -LIMIT, LIMIT).astype(np.int16)
    out, saturated = _core.gemm_rescale_i16(a, b, shift, bias, relu, path=path)
    assert np.array_equal(out, expected)
    assert saturated == beyond


def test_the_output_can_be_given() -> None:
    a = np.full((3, 4), 2, np.int16)
    out = np.full((3, 3), -1, np.int64)
    assert _core.gemm_i64(a, a, transpose_b=True, out=out) is out
    assert (out == 16).all()


def test_what_does_not_fit_is_refused() -> None:
    a = np.zeros((3, 4), np.int16)
    with pytest.raises(GraphError, match="4 columns but B has 3 rows"):
        _core.gemm_i64(a, a)
    with pytest.raises(GraphError, match="no path is named"):
        _core.gemm_i64(a, a, transpose_b=True, path="abacus")
    with pytest.raises(GraphError, match="the output is 2 x 3, the product 3 x 3"):
        _core.gemm_i64(a, a, transpose_b=True, out=np.zeros((2, 3), np.int64))
    with pytest.raises(GraphError, match="the bias has 2 entries for 3 columns"):
        _core.gemm_rescale_i16(a, a, 1, np.zeros(2, np.int64), transpose_b=True)
    with pytest.raises(TypeError, match="not C-contiguous"):
        _core.gemm_i64(a.T, a)
