"""Every operator in Rust gives the bits of its law, on every path, at one and two threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.operator_cases import CASES, Attrs, Case, Draw
from vtrain import _core
from vtrain.errors import EncodingError, GraphError
from vtrain.ops import TABLE

COMMON = settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def assert_follows_law(case: Case) -> None:
    expected = case.expected()
    node = case.encode(expected)
    paths = _core.gemm_paths() if case.op == "matmul" else ["auto"]
    for path in paths:
        for threads in (1, 2):
            found = _core.apply_node(node, case.inputs, threads, path)
            where = f"{case.op} {case.attrs} on {path} with {threads} threads"
            assert found.dtype == expected.dtype, where
            assert found.shape == expected.shape, where
            np.testing.assert_array_equal(found, expected, err_msg=where)


def test_every_operator_of_the_law_has_cases() -> None:
    assert set(CASES) == set(TABLE)


@pytest.mark.parametrize("op", sorted(CASES))
def test_operator_follows_its_law(op: str) -> None:
    @COMMON
    @given(st.data())
    def check(data: st.DataObject) -> None:
        assert_follows_law(CASES[op](Draw(data)))

    check()


def test_comparison_catches_one_unit_in_the_last_place() -> None:
    x = np.arange(-50, 50, dtype=np.int64)
    attrs: Attrs = {"dtype": "i16", "multiplier": 3, "multiplier_exponent": 0, "shift": 2}
    case = Case("rescale", attrs, (x,))
    expected = case.expected()
    altered = x.copy()
    altered[7] += 1
    found = _core.apply_node(case.encode(expected), [altered])
    assert np.flatnonzero(found != expected).tolist() == [7]
    assert abs(int(found[7]) - int(expected[7])) == 1


UNSHIFTED: Attrs = {"dtype": "i16", "multiplier": 1, "multiplier_exponent": 0}
PART: Attrs = {"axis": 1, "start": 1, "stop": 4}
PLAIN: Attrs = {"transpose_a": 0, "transpose_b": 0}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("nonsense", {}, (np.zeros(3, np.int16),)), "unknown operator"),
        (Case("relu", {}, (np.zeros(3, np.int32),)), "inputs must be"),
        (Case("relu", {}, ()), "inputs must be"),
        (Case("rescale", UNSHIFTED, (np.zeros(3, np.int64),)), "shift"),
        (Case("transpose", {"perm": (0, 0)}, (np.zeros((3, 3), np.int64),)), "permutation"),
        (Case("slice", PART, (np.zeros((3, 3), np.int8),)), "not there"),
        (Case("slice", {**PART, "axis": 2}, (np.zeros((3, 3), np.int8),)), "no axis 2"),
        (Case("concat", {"axis": 0}, (np.zeros(3, np.int8),)), "two tensors or more"),
        (Case("concat", {"axis": 0}, (np.zeros(3, np.int8), np.zeros(3, np.int16))), "differ"),
        (
            Case("concat", {"axis": 0}, (np.zeros((3, 1), np.int8), np.zeros((3, 2), np.int8))),
            "differ",
        ),
        (Case("batched_matmul", PLAIN, (np.zeros((3, 3), np.int16),) * 2), "stacks differ"),
        (Case("increment", {}, (np.zeros(3, np.int64),)), "scalar"),
        (
            Case("state", {"name": "w", "dtype": "i16", "shape": (3,), "exponent": 0}, ()),
            "not of the node's types",
        ),
    ],
)
def test_bad_nodes_are_refused_by_name(case: Case, message: str) -> None:
    node = case.encode(np.zeros(3, np.int16))
    with pytest.raises(GraphError, match=message) as caught:
        _core.apply_node(node, case.inputs)
    assert caught.value.where == f"node case ({case.op})"


def test_a_claimed_type_must_be_the_derived_one() -> None:
    x = np.zeros((2, 3), np.int16)
    for claim in (np.zeros((3, 2), np.int16), np.zeros((2, 3), np.int32)):
        with pytest.raises(GraphError, match="claims another output"):
            _core.apply_node(Case("relu", {}, (x,)).encode(claim), [x])


def test_a_sample_out_of_reach_is_refused() -> None:
    samples = np.zeros((4, 2), np.uint8)
    attrs: Attrs = {"part": "x", "dtype": "u8", "exponent": 0, "shape": (2,)}
    for index in (4, -1, 2**62):
        case = Case("gather_samples", attrs, (np.array([index]), samples))
        with pytest.raises(GraphError, match="no sample"):
            _core.apply_node(case.encode(samples[:1]), case.inputs)


def test_bytes_that_are_no_node_are_refused() -> None:
    with pytest.raises(EncodingError):
        _core.apply_node(b"\xff", [])
