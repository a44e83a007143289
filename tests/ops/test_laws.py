"""Each operator's law: the second definition's bits, the type inferred, and the range proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.exhaustive import draw
from tests.ops.cases import BOUND, CASES, DIGEST, Array, Case, Draw
from tests.ops.reference import DEFINITIONS, define
from vtrain.errors import GraphError, RangeError
from vtrain.ops import TABLE
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.graph import Attrs, TensorType

FEW = 20
PROPERTY = settings(
    max_examples=FEW,
    report_multiple_bugs=False,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def infer(op: str, attrs: Attrs, types: Sequence[TensorType]) -> TensorType:
    return TABLE[op].infer(attrs, types)


def check_law(op: str, case: Case, claim: TensorType) -> Array:
    """Hold the law of ``op`` to the type ``claim`` and to the second definition."""
    before = [array.copy() for array in case.arrays]
    out = TABLE[op].law(case.attrs, case.arrays)
    assert isinstance(out, np.ndarray)
    assert out.dtype == NUMPY_DTYPES[claim.dtype]
    assert out.shape == claim.shape
    assert claim.lo <= int(out.min())
    assert int(out.max()) <= claim.hi
    assert out.tolist() == define(op, case.attrs, case.arrays).tolist()
    assert all(map(np.array_equal, before, case.arrays)), "the law changed its input"
    return out


# --- the table


def test_no_operator_is_forgotten() -> None:
    assert set(CASES) == set(TABLE)
    assert {*DEFINITIONS, "tensor_digest"} == set(TABLE)


# --- the law


def check_drawn(op: str, data: st.DataObject) -> None:
    case = CASES[op](Draw(data))
    try:
        claim = infer(op, case.attrs, case.types)
    except RangeError:
        assume(False)
    check_law(op, case, claim)


@pytest.mark.parametrize("op", TABLE)
@draw(FEW, 60)
def test_law_range_and_definition(op: str, examples: int) -> None:
    @settings(PROPERTY, max_examples=examples)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        check_drawn(op, data)

    check()


def assert_fault_is_seen(op: str) -> None:
    """The property fails, found without the time that shrinking takes."""

    @settings(PROPERTY, phases=[Phase.generate])
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        check_drawn(op, data)

    with pytest.raises(AssertionError):
        check()


LOOSE = {
    "state",
    "increment",
    "sample_index",
    "dropout_mask",
    "gather_samples",
    "one_hot",
    "im2col",
    "col2im",
    "scatter_add",
    "relu_grad",
    "look_up",
    "max_pool_grad",
    "sum_pool",
    "sum_pool_grad",
    "exp2_diff",
    "divide",
    "causal_spans",
    "token_spans",
    "keep_span",
    "softmax_grad",
    "sub_one_hot",
    "logit_grad",
    "cross_entropy",
    "square_sum",
    "center",
    "momentum",
    "schedule",
    "schedule_linear",
    "capped_square",
    "adam_square",
    "adam_correction",
    "tensor_digest",
    "batch_digest",
    "state_leaf",
    "state_root",
    "record",
}
"""Operators whose range is that of other values too than constant inputs at the ends of theirs."""


@pytest.mark.parametrize("op", sorted(TABLE.keys() - LOOSE))
@PROPERTY
@given(data=st.data())
def test_ranges_are_no_wider_than_needed(op: str, data: st.DataObject) -> None:
    case = CASES[op](Draw(data))
    assume(len(case.types) > 0 and min(t.hi for t in case.types) > 0)
    assume(max(t.lo for t in case.types) <= 0)
    try:
        claim = infer(op, case.attrs, case.types)
    except RangeError:
        assume(False)
    outs = []
    for corner in product(*((t.lo, t.hi) for t in case.types)):
        arrays = [
            np.full(t.shape, value, NUMPY_DTYPES[t.dtype])
            for t, value in zip(case.types, corner, strict=True)
        ]
        outs.append(TABLE[op].law(case.attrs, arrays))
    assert (min(int(out.min()) for out in outs), max(int(out.max()) for out in outs)) == (
        claim.lo,
        claim.hi,
    )


@pytest.mark.parametrize("op", ["matmul", "rescale", "exp2_diff", "max_pool_grad", "momentum"])
def test_a_wrong_law_is_seen(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit in the last place of one element."""
    law = TABLE[op].law

    def wrong(attrs: Attrs, inputs: Sequence[Array]) -> Array:
        out = law(attrs, inputs).copy()
        out.flat[0] ^= 1
        return out

    monkeypatch.setattr("tests.ops.test_laws.TABLE", {**TABLE, op: replace(TABLE[op], law=wrong)})
    assert_fault_is_seen(op)


@pytest.mark.parametrize("op", ["matmul", "column_sum", "rescale", "sum_pool"])
def test_a_range_that_is_too_narrow_is_seen(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = TABLE[op].infer

    def wrong(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
        claim = inner(attrs, inputs)
        return replace(claim, hi=claim.hi - 1 if claim.hi > claim.lo else claim.hi)

    monkeypatch.setattr("tests.ops.test_laws.TABLE", {**TABLE, op: replace(TABLE[op], infer=wrong)})
    assert_fault_is_seen(op)


# --- laws at particular places


def test_long_products_are_exact() -> None:
    """Beyond 2^22 terms, where one float64 sum would not be: 2^23 products of 2^30 less a few."""
    k = 2**23
    a = np.full((1, k), -32768, np.int16)
    b = np.full((k, 1), -32768, np.int16)
    b[::3] = 32767
    minus = len(range(0, k, 3))
    expected = (k - minus) * 2**30 - minus * 32768 * 32767
    attrs: Attrs = {"transpose_a": 0, "transpose_b": 0}
    assert TABLE["matmul"].law(attrs, [a, b]).tolist() == [[expected]]


def test_softmax_of_equal_logits_is_uniform_and_sums_to_one() -> None:
    z = np.zeros((1, 4), np.int32)
    e = TABLE["exp2_diff"].law({}, [z, z.max(axis=1)])
    p = TABLE["divide"].law({}, [e, e.sum(axis=1, dtype=np.int64)])
    assert e.tolist() == [[65536] * 4]
    assert p.tolist() == [[4096] * 4]


def test_max_pool_gradient_goes_to_the_first_of_equals() -> None:
    attrs: Attrs = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}
    x = np.array([[5, 5], [5, 5]], np.int16).reshape(1, 2, 2, 1)
    out = TABLE["max_pool_grad"].law(attrs, [np.full((1, 1, 1, 1), 7, np.int16), x])
    assert out.ravel().tolist() == [7, 0, 0, 0]


def test_relu_has_no_gradient_at_zero() -> None:
    grad, output = np.array([3, 3, 3], np.int16), np.array([-1, 0, 1], np.int16)
    assert TABLE["relu_grad"].law({}, [grad, output]).tolist() == [0, 0, 3]


def test_labels_out_of_range_count_as_the_nearest() -> None:
    p, labels = np.zeros((3, 2), np.int16), np.array([-7, 1, 200], np.int64)
    out = TABLE["sub_one_hot"].law({}, [p, labels])
    assert out.tolist() == [[-(2**14), 0], [0, -(2**14)], [0, -(2**14)]]


# --- refusals that hold for every operator


def accepted_case(op: str, data: st.DataObject) -> Case:
    case = CASES[op](Draw(data))
    try:
        infer(op, case.attrs, case.types)
    except RangeError:
        assume(False)
    return case


@pytest.mark.parametrize("op", TABLE)
@settings(max_examples=5, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_forms_that_are_not_the_operators_are_refused(op: str, data: st.DataObject) -> None:
    case = accepted_case(op, data)

    def refused(attrs: Attrs, types: Sequence[TensorType]) -> None:
        with pytest.raises(GraphError):
            infer(op, attrs, types)

    refused({**case.attrs, "extra": 1}, case.types)
    for name, value in case.attrs.items():
        refused({key: other for key, other in case.attrs.items() if key != name}, case.types)
        for wrong in (1, "text", b"bytes", (1, 2, 3, 4, 5)):
            if type(wrong) is not type(value):
                refused({**case.attrs, name: wrong}, case.types)
        if isinstance(value, int) and op not in ("state_leaf",):
            refused({**case.attrs, name: 2**64}, case.types)
            refused({**case.attrs, name: -(2**63)}, case.types)
    if op == "concat":
        first = case.types[0]
        refused(case.attrs, [*case.types, replace(first, exponent=first.exponent + 1)])
        refused(case.attrs, [first])
    elif op != "state_root":
        refused(case.attrs, [*case.types, DIGEST])
        if case.types:
            refused(case.attrs, case.types[:-1])
    else:
        refused(case.attrs, [*case.types, replace(DIGEST, shape=(31,))])


WRONG_DTYPES = {
    "increment": "i32", "sample_index": "i32", "gather_samples": "i32", "im2col": "i32",
    "dropout_mask": "i32",
    "matmul": "i8", "add_bias": "i32", "relu": "i32", "relu_grad": "i64", "max_pool": "u8",
    "look_up": "i32", "max_pool_grad": "i64", "sum_pool": "i64", "row_max": "i64", "row_sum": "i16",
    "exp2_diff": "i64", "divide": "i64", "sub_one_hot": "i32", "logit_grad": "i64",
    "cross_entropy": "i64",
    "square_sum": "i32", "momentum": "i64", "sgd_update": "i64", "schedule": "i32",
    "schedule_linear": "i32", "clip_factor": "i32",
    "adam_mean": "i64", "adam_square": "i32", "adam_direction": "i64", "adam_correction": "i32",
    "batched_matmul": "i8", "softmax_grad": "i32", "batch_digest": "i8", "state_leaf": "i64",
    "state_root": "i16",
    "record": "i32",
    "center": "i32", "row_dot": "i64", "inverse_root": "i32",
}  # fmt: skip


@pytest.mark.parametrize(
    "op",
    sorted(TABLE.keys() - WRONG_DTYPES.keys() - {"state", "concat", "causal_spans", "keep_span"}),
)
@settings(max_examples=3, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_all_others_take_every_dtype(op: str, data: st.DataObject) -> None:
    case = accepted_case(op, data)
    for dtype in NUMPY_DTYPES:
        other = replace(case.types[0], dtype=dtype, lo=0, hi=1)
        infer(op, case.attrs, [other, *case.types[1:]])


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_what_is_joined_has_any_one_dtype(dtype: str) -> None:
    part = TensorType(dtype, (2, 3), 0, 0, 1)
    assert infer("concat", {"axis": 0}, [part, part]).dtype == dtype
    for other in NUMPY_DTYPES.keys() - {dtype}:
        with pytest.raises(GraphError, match="dtypes differ"):
            infer("concat", {"axis": 0}, [part, replace(part, dtype=other)])


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_spans_are_of_rows_of_any_dtype(dtype: str) -> None:
    rows, spans = TensorType(dtype, (4, 3), 5, 0, 1), TensorType("i32", (2, 2), 0, -9, 9)
    assert infer("keep_span", {"fill": 2}, [rows, spans]) == replace(rows, hi=2)
    with pytest.raises(GraphError):
        infer("keep_span", {"fill": 2}, [rows, replace(spans, dtype="i64")])


@pytest.mark.parametrize("op", WRONG_DTYPES)
@settings(max_examples=3, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_other_dtypes_are_refused(op: str, data: st.DataObject) -> None:
    case = accepted_case(op, data)
    assume(case.types)
    wrong = replace(case.types[0], dtype=WRONG_DTYPES[op], lo=0, hi=1)
    with pytest.raises(GraphError):
        infer(op, case.attrs, [wrong, *case.types[1:]])


def test_bound_operators_take_one_array_more() -> None:
    assert set(BOUND) <= set(TABLE)
