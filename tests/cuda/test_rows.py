"""Rows, reductions and the sample order: tables, boundaries, fast kernels against the law.

That readable kernels follow the law is in ``test_readable.py``.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cuda.host_device import KERNELS, HostDevice
from tests.cuda.single import Array, claim, run_case, run_launches, to_node
from tests.engines.operator_cases import CASES, Attrs, Case, Draw
from vtrain.engines.cuda.kernels import CASES as SELFCHECKED
from vtrain.engines.cuda.launch import Launch, Output, one_thread_each
from vtrain.engines.cuda.lowering import FAST
from vtrain.ops import TABLE
from vtrain.spec.number import NUMPY_DTYPES

VECTORS = Path(__file__).resolve().parents[1] / "vectors"


def test_tables_are_what_the_law_generates() -> None:
    for name in ("tables", "curves"):
        render = runpy.run_path(str(KERNELS / f"generate_{name}.py"))["render"]
        assert (KERNELS / f"{name}.cuh").read_text() == render(), name


def lower_fast(case: Case, expected: Array) -> tuple[Launch, ...]:
    return FAST[case.op](*to_node(case, claim(expected)))


def assert_fast_follows_law(device: HostDevice, case: Case) -> tuple[str, ...]:
    """The kernels that did it."""
    expected = case.expected()
    launches = lower_fast(case, expected)
    found = run_launches(device, launches, case.inputs, claim(expected))
    np.testing.assert_array_equal(found.output, expected, err_msg=str(case.attrs), strict=True)
    return tuple(launch.kernel for launch in launches)


def test_every_fast_kernel_is_tried_before_it_serves() -> None:
    """A fast way without cases of the self-check would be used on trust."""
    assert set(SELFCHECKED) == set(FAST)


def numbers(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Large values of both signs, so that sums wrap and maxima are not at zero."""
    info = np.iinfo(NUMPY_DTYPES[dtype])
    rng = np.random.default_rng(seed)
    return rng.integers(info.min, info.max, shape, NUMPY_DTYPES[dtype], endpoint=True)


@pytest.mark.parametrize("op", sorted(FAST.keys() & TABLE))
def test_fast_kernels_follow_the_law(op: str, host_device: HostDevice) -> None:
    @settings(
        deadline=None,
        max_examples=25,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        case = CASES[op](Draw(data))
        if all(value.size > 0 for value in case.inputs):  # as graphs have it
            assert_fast_follows_law(host_device, case)

    check()


@pytest.mark.parametrize("op", ["row_max", "row_sum"])
@pytest.mark.parametrize(
    ("rows", "classes", "kernel"),
    [
        (1, 1, ""),
        (300, 8, ""),
        (9, 9, "_warps"),
        (1, 31, "_warps"),
        (7, 32, "_warps"),
        (8, 33, "_warps"),
        (17, 1000, "_warps"),
        (1, 4095, "_warps"),
        (2, 4096, "_blocks"),
        (3, 5001, "_blocks"),
    ],
)
def test_rows_of_boundary_lengths(
    op: str, rows: int, classes: int, kernel: str, host_device: HostDevice
) -> None:
    x = numbers("i32", (rows, classes), rows + classes)
    assert assert_fast_follows_law(host_device, Case(op, {}, (x,))) == (op + kernel,)


@pytest.mark.parametrize("classes", [5000, 5001])
@pytest.mark.parametrize("place", [0, 31, 32, 4095, 4096, 4999])
def test_the_maximum_is_found_wherever_it_is(
    place: int, classes: int, host_device: HostDevice
) -> None:
    x = np.full((2, classes), -(2**31), np.int32)
    x[1, place] = -(2**31) + 1
    assert_fast_follows_law(host_device, Case("row_max", {}, (x,)))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 4096, 4097, 40_000])
def test_sums_of_boundary_sizes(dtype: str, size: int, host_device: HostDevice) -> None:
    kernels = assert_fast_follows_law(
        host_device, Case("sum", {}, (numbers(dtype, (size,), size),))
    )
    assert kernels == (("sum_parts",) if size <= 4096 else ("sum_parts", "sum_parts"))


@pytest.mark.parametrize("dtype", ["i16", "i64"])
@pytest.mark.parametrize(
    ("rows", "columns", "launches"),
    [(1, 1, 1), (31, 33, 1), (33, 31, 1), (511, 5, 1), (512, 5, 2), (1000, 40, 2), (17_000, 2, 2)],
)
def test_column_sums_of_boundary_sizes(
    dtype: str, rows: int, columns: int, launches: int, host_device: HostDevice
) -> None:
    x = numbers(dtype, (rows, columns), rows)
    kernels = assert_fast_follows_law(host_device, Case("column_sum", {}, (x,)))
    assert kernels == ("column_sum_parts",) * launches


@pytest.mark.parametrize("size", [1, 255, 4096, 4097, 40_000])
@pytest.mark.parametrize("shift", [-3, 0, 1, 16, 64])
def test_square_sums_of_boundary_sizes(size: int, shift: int, host_device: HostDevice) -> None:
    attrs: Attrs = {"shift": shift}
    case = Case("square_sum", attrs, (numbers("i16", (size,), size),))
    assert_fast_follows_law(host_device, case)


ORDER = """
#include "philox.cuh"

extern "C" __global__ void order_probe(i64 count, i64 seed, i64 samples, i64 first, i64* out) {
    const i64 i = INDEX();
    if (i < count) out[i] = (i64)sample_at((u64)seed, (u64)samples, (u64)(first + i));
}
"""


def test_order_vectors(host_device: HostDevice) -> None:
    """Of positions far beyond those that a run's steps come to, too."""
    host_device.add_source("order_probe.cu", ORDER)
    for item in json.loads((VECTORS / "order.json").read_text())["batches"]:
        batch, step = item["batch"], int(item["step"])
        args = (int(item["seed"]), item["n"], batch * step, Output())
        launch = one_thread_each("order_probe.cu", "order_probe", batch, *args)
        output = claim(np.zeros(batch, np.int64))
        assert run_launches(host_device, [launch], [], output).output.tolist() == item["indices"]
        if step <= 2**40 and item["n"] <= 2**40:
            attrs: Attrs = {
                "seed": int(item["seed"]).to_bytes(8, "little"),
                "samples": item["n"],
                "batch": batch,
            }
            case = Case("sample_index", attrs, (np.asarray(step, np.int64),))
            assert run_case(host_device, case, output).output.tolist() == item["indices"]


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 16, 17, 64, 100])
def test_an_epoch_is_a_permutation(samples: int, host_device: HostDevice) -> None:
    attrs: Attrs = {"seed": b"\xff" * 8, "samples": samples, "batch": samples}
    case = Case("sample_index", attrs, (np.asarray(2**40, np.int64),))
    found = run_case(host_device, case, claim(np.zeros(samples, np.int64))).output
    assert sorted(found.tolist()) == list(range(samples))


@pytest.mark.parametrize("step", [-1, -(2**63), 2**40 + 1, 2**63 - 1])
def test_a_step_that_no_run_has_counts_as_the_nearest(step: int, host_device: HostDevice) -> None:
    attrs: Attrs = {"seed": bytes(8), "samples": 97, "batch": 5}
    output = claim(np.zeros(5, np.int64))
    nearest = Case("sample_index", attrs, (np.asarray(min(max(step, 0), 2**40), np.int64),))
    case = Case("sample_index", attrs, (np.asarray(step, np.int64),))
    found = run_case(host_device, case, output).output
    assert found.tolist() == nearest.expected().tolist()


def test_division_rounds_down(host_device: HostDevice) -> None:
    e = np.array([[-1, 1, -7, 7, -(2**31), 2**31 - 1]], np.int32)
    for total in (-5, 0, 1, 2, 3, 2**14, 2**15, 2**62, 2**63 - 1):
        case = Case("divide", {}, (e, np.array([total], np.int64)))
        expected = case.expected()
        found = run_case(host_device, case, claim(expected)).output
        np.testing.assert_array_equal(found, expected, err_msg=str(total), strict=True)


def test_logarithms_of_all_magnitudes(host_device: HostDevice) -> None:
    edges = [2**n + d for n in range(63) for d in (-1, 0, 1)]
    total = np.array([-1, 2**63 - 1, *edges], np.int64)
    z = np.zeros((total.size, 2), np.int32)
    case = Case("cross_entropy", {}, (z, z[:, 0], total, z[:, 0]))
    expected = case.expected()
    found = run_case(host_device, case, claim(expected)).output
    np.testing.assert_array_equal(found, expected, strict=True)


def test_exponentials_of_all_differences(host_device: HostDevice) -> None:
    z = -np.arange(-3, 33 * 1024, dtype=np.int32)[None, :]
    case = Case("exp2_diff", {}, (z, np.zeros(1, np.int32)))
    expected = case.expected()
    found = run_case(host_device, case, claim(expected)).output
    np.testing.assert_array_equal(found, expected, strict=True)
