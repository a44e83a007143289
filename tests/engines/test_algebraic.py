"""Freivalds' check in Rust finds what the law finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtrain import _core
from vtrain.audit.traces import choose_arithmetic
from vtrain.errors import GraphError
from vtrain.ops.linear import compute_matmul
from vtrain.spec.algebraic import PRIME, compute_vector
from vtrain.wire.graph import Node, Ref, TensorType

Array = npt.NDArray[Any]
EXHAUSTIVE = pytest.mark.exhaustive
LAW, FAST = choose_arithmetic("numpy"), choose_arithmetic("cpu", 2)
EDGES = (-32768, -32639, -1, 0, 1, 32639, 32767)


def make_case(
    rng: np.random.Generator,
    stack: tuple[int, ...],
    m: int,
    k: int,
    n: int,
    turned: tuple[int, int],
) -> tuple[Node, list[Array], Array]:
    """A node, its inputs, and its right output."""

    def operand(rows: int, columns: int, turn: int) -> Array:
        shape = (*stack, columns, rows) if turn else (*stack, rows, columns)
        value = rng.integers(-32768, 32768, shape).astype(np.int16)
        edges = rng.random(shape) < 0.2
        value[edges] = rng.choice(EDGES, int(edges.sum()))
        return value

    a, b = operand(m, k, turned[0]), operand(k, n, turned[1])
    left = a.swapaxes(-1, -2) if turned[0] else a
    right = b.swapaxes(-1, -2) if turned[1] else b
    out = compute_matmul(left, right)
    bound = k * 2**30
    kind = TensorType("i64", out.shape, 0, -bound, bound)
    attrs = {"transpose_a": turned[0], "transpose_b": turned[1]}
    op = "batched_matmul" if stack else "matmul"
    return Node("product", op, attrs, (Ref(0), Ref(1)), (kind,)), [a, b], out


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    stack=st.sampled_from([(), (1,), (3,), (2, 2)]),
    extents=st.tuples(*[st.sampled_from([1, 2, 3, 4, 5, 8, 17, 64, 65])] * 3),
    turned=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_the_same_element_is_found(
    seed: int, stack: tuple[int, ...], extents: tuple[int, int, int], turned: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    node, inputs, out = make_case(rng, stack, *extents, turned)
    vectors = [compute_vector(seed.to_bytes(4, "little"), bytes(32), i, extents[2]) for i in (0, 1)]
    for arithmetic in (LAW, FAST):
        assert arithmetic.find_wrong(node, inputs, out, vectors) is None
    for off in (1, -1, PRIME, -PRIME, 2**62, -(2**62)):
        wrong, element = out.copy(), int(rng.integers(out.size))
        wrong.reshape(-1)[element] += off
        for arithmetic in (LAW, FAST):
            assert arithmetic.find_wrong(node, inputs, wrong, vectors) == element


@pytest.mark.parametrize(
    "extents",
    [
        (3, 70_000, 2),
        (9, 40, 1100),
        pytest.param((70, 3, 2100), marks=EXHAUSTIVE),
        pytest.param((1100, 2048, 3), marks=EXHAUSTIVE),
    ],
)
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_sums_beyond_a_block(extents: tuple[int, int, int], turned: tuple[int, int]) -> None:
    """More terms than one sum of int64 holds, more columns than are read at once; the largest
    operands that there are, so that a sum that overflows is seen."""
    m, k, n = extents
    rng = np.random.default_rng(m)
    node, inputs, out = make_case(rng, (), m, k, n, turned)
    largest = [np.full_like(value, -32768) for value in inputs]
    vectors = [np.full(n, PRIME - 1, np.uint64), compute_vector(b"", bytes(32), 0, n)]
    assert FAST.find_wrong(node, largest, np.full_like(out, k * 2**30), vectors) is None
    assert FAST.find_wrong(node, inputs, out, vectors) is None
    for element in (0, out.size // 2 + 1, out.size - 1):
        wrong = out.copy()
        wrong.reshape(-1)[element] -= 1
        assert FAST.find_wrong(node, inputs, wrong, vectors) == element


def test_what_is_no_product_is_refused() -> None:
    a, b = np.zeros((2, 3), np.int16), np.zeros((3, 4), np.int16)
    c, r = np.zeros((2, 4), np.int64), np.zeros(4, np.uint64)

    def find(a: Array, b: Array, c: Array, vectors: list[Array]) -> int | None:
        return _core.find_wrong_product(a, b, c, False, False, -1, 1, vectors)

    assert find(a, b, c, vectors=[r]) is None
    for bad in ((a, b, c.T.copy()), (a, b[:2].copy(), c), (a[None], b[None], c)):
        with pytest.raises(GraphError, match="extents"):
            find(*bad, vectors=[r])
    for vector in (r[:3].copy(), np.full(4, PRIME, np.uint64)):
        with pytest.raises(GraphError, match="4 residues"):
            find(a, b, c, vectors=[vector])
    with pytest.raises(TypeError, match="contiguous"):
        find(a.T.copy().T, b, c, vectors=[r])
