"""What each operator refuses, and why, before any step runs; beside it, what it does not."""

from __future__ import annotations

import pytest

from tests.ops.refusals import (
    BASE,
    LEGAL_DTYPES,
    OF_DTYPES,
    PLAIN,
    REFUSALS,
    Applied,
    Refusal,
    T,
)
from vtrain.errors import GraphError
from vtrain.ops import TABLE
from vtrain.ops.base import integer_type
from vtrain.wire.graph import Attrs


def name_of(case: Refusal) -> str:
    return f"{case.op}-{case.message}"


@pytest.mark.parametrize("case", REFUSALS, ids=name_of)
def test_refused(case: Refusal) -> None:
    with pytest.raises(GraphError) as caught:
        TABLE[case.op].infer(*case.refused)
    assert type(caught.value) is case.error
    assert case.message in caught.value.message


@pytest.mark.parametrize("case", REFUSALS, ids=name_of)
def test_what_is_near_is_legal(case: Refusal) -> None:
    check_legal(case.op, case.legal)
    check_inputs(case.refused)


def test_other_dtypes() -> None:
    for op, applied in LEGAL_DTYPES:
        check_legal(op, applied)
    assert {case.message.split()[0] for case in OF_DTYPES} == {"dtypes", "inputs", "needs", "step"}


def test_every_operator_has_a_legal_node() -> None:
    assert set(BASE) == set(TABLE)


def check_legal(op: str, applied: Applied) -> None:
    TABLE[op].infer(*applied)
    check_inputs(applied)


def check_inputs(applied: Applied) -> None:
    """Inputs are of types that outputs may have."""
    for x in applied[1]:
        assert integer_type(x.dtype, x.shape, x.exponent, x.lo, x.hi) == x
        assert x.lo <= x.hi


def test_the_largest_product_that_is_allowed() -> None:
    """Full int16 operands stay below 2^60 up to the longest sum there is."""
    k = 2**23
    wide = T("i16", 1, k, lo=-(2**15), hi=2**15 - 1)
    out = TABLE["matmul"].infer({**PLAIN, "transpose_b": 1}, (wide, wide))
    assert (out.lo, out.hi) == (-k * 2**15 * (2**15 - 1), k * 2**30)
    assert out.hi < 2**60


def test_every_kind_of_window_is_bounded_by_its_patches() -> None:
    """The largest window that is allowed costs no more memory than the largest tensor."""
    attrs: Attrs = {"kernel": (2**8, 2**8), "strides": (1, 1), "pads": (0, 0, 0, 0)}
    assert TABLE["sum_pool"].infer(attrs, (T("i16", 1, 2**8, 2**8, 2**16),)).size == 2**16
    with pytest.raises(GraphError, match="patches"):
        TABLE["sum_pool"].infer(attrs, (T("i16", 1, 2**9, 2**9, 2**9),))
