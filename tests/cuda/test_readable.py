"""The readable kernel of every operator gives the bits of its law, on the CPU."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.cuda.host_device import KERNELS, HostDevice, HostDeviceError
from tests.cuda.single import claim, run_case, run_launches, to_node
from tests.engines.operator_cases import CASES, Attrs, Case, Draw
from tests.ops.test_vectors import read_attr, read_cases, read_inputs
from vtrain.engines.cuda.device import Device
from vtrain.engines.cuda.lowering import LOWERINGS, lower
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.spec.number import count_saturated

COMMON = settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def assert_follows_law(device: Device, case: Case) -> None:
    expected = case.expected()
    found = run_case(device, case, claim(expected))
    where = f"{case.op} {case.attrs}"
    np.testing.assert_array_equal(found.output, expected, err_msg=where, strict=True)
    unclamped = TABLE[case.op].unclamped
    clamped = 0
    if unclamped is not None:
        with np.errstate(over="ignore"):
            exact = unclamped(case.attrs, list(case.inputs))
        clamped = count_saturated(exact, claim(expected).dtype)
    assert found.saturated == clamped, where


def test_every_operator_is_lowered() -> None:
    assert set(LOWERINGS) == {*TABLE, "largest"}


@pytest.mark.parametrize("op", TABLE)
def test_every_operator_has_a_file_with_its_readable_kernel(
    op: str, host_device: HostDevice
) -> None:
    assert (KERNELS / f"{op}.cu").is_file()
    kinds = host_device.library(f"{op}.cu").kinds(op)
    assert kinds[0] == "i", "the number of outputs comes first"
    assert "p" in kinds


def check_drawn(device: Device, op: str, how: settings) -> None:
    @how
    @given(st.data())
    def check(data: st.DataObject) -> None:
        case = CASES[op](Draw(data))
        # A token may have hundreds of places: a large output takes seconds and shows no more.
        assume(op != "one_hot" or case.inputs[0].size * attr_int(case.attrs, "depth") < 2**19)
        assert_follows_law(device, case)

    check()


@pytest.mark.parametrize("op", TABLE)
def test_operator_follows_its_law(op: str, host_device: HostDevice) -> None:
    check_drawn(host_device, op, COMMON)


def check_vectors(device: Device, op: str) -> None:
    for content in read_cases(op):
        attrs = {key: read_attr(value) for key, value in content["attrs"].items()}
        assert_follows_law(device, Case(op, attrs, tuple(read_inputs(content))))


@pytest.mark.parametrize("op", TABLE)
def test_operator_follows_the_vectors(op: str, host_device: HostDevice) -> None:
    check_vectors(host_device, op)


def check_shifts(device: Device) -> None:
    powers = 2 ** np.arange(63, dtype=np.int64)
    near = np.concatenate([powers + step for step in (-1, 0, 1)])
    x = np.concatenate([near, -near, [-(2**63), 2**63 - 1]])
    for shift in range(-62, 65):
        for dtype in ("i16", "i32", "i64"):
            attrs: Attrs = {
                "dtype": dtype, "multiplier": 1, "multiplier_exponent": 0, "shift": shift
            }  # fmt: skip
            assert_follows_law(device, Case("rescale", attrs, (x,)))


def test_every_shift_rounds_as_the_law_does(host_device: HostDevice) -> None:
    check_shifts(host_device)


def check_all(device: Device, op: str, how: settings) -> None:
    check_vectors(device, op)
    if op == "rescale":
        check_shifts(device)
    check_drawn(device, op, how)


@pytest.mark.gpu
@pytest.mark.parametrize("op", TABLE)
def test_a_gpu_follows_the_law(op: str, gpu: Device) -> None:
    check_all(gpu, op, COMMON)


# --- launches of many blocks


def test_every_thread_of_many_blocks_counts(host_device: HostDevice) -> None:
    x = np.full(70_001, 2**40, np.int64)
    x[::7] = -5
    attrs: Attrs = {"dtype": "i16", "multiplier": 1, "multiplier_exponent": 0, "shift": 0}
    case = Case("rescale", attrs, (x,))
    result = run_case(host_device, case, claim(case.expected()))
    assert result.saturated == 70_001 - 10_001
    assert_follows_law(host_device, case)


def test_no_thread_writes_beyond_the_count(host_device: HostDevice) -> None:
    """The device looks at what lies behind the output: a block has more threads than it needs."""
    for count in (1, 255, 256, 257):
        x = np.arange(count, dtype=np.int16)
        assert_follows_law(host_device, Case("relu", {}, (x,)))


def test_sample_that_is_not_there_is_zeros(host_device: HostDevice) -> None:
    samples = np.arange(1, 7, dtype=np.int32).reshape(3, 2)
    index = np.array([2, 3, -1, 0, 2**62], np.int64)
    attrs: Attrs = {"part": "x", "dtype": "i32", "exponent": 0, "shape": (2,)}
    case = Case("gather_samples", attrs, (index, samples))
    node, (indices,) = to_node(case, claim(np.zeros((5, 2), np.int32)))
    launches = lower(node, [replace(indices, lo=0, hi=2)])
    result = run_launches(host_device, launches, case.inputs, node.outputs[0])
    assert result.output.tolist() == [[5, 6], [0, 0], [0, 0], [1, 2], [0, 0]]


# --- these tests see faults


FAULTS = [
    ("rescale", "law.cuh", "+ ((x >> (shift - 1)) & 1)", ""),
    ("rescale", "law.cuh", "if (shift >= 64) return 0;", ""),
    ("rescale", "law.cuh", "-32639, 32639", "-32640, 32639"),
    ("rescale", "law.cuh", "-2147483647, 2147483647", "-2147483647 - 1, 2147483647"),
    ("rescale", "law.cuh", "narrow != value", "narrow > value"),
    ("rescale", "law.cuh", "(i64)((u64)a * (u64)b)", "a * b"),
    ("normalize", "law.cuh", "(i64)((u64)a + (u64)b)", "a + b"),
    ("one_hot", "one_hot.cu", "1 << 14", "1 << 13"),
    ("add", "add.cu", "shift_left(b, shift_b)", "shift_left(b, shift_a)"),
    ("sub", "sub.cu", "i >= count", "i >= count - 1"),
    ("reshape", "reshape.cu", "if (i >= count) return;", ""),
    ("relu", "law.cuh", "case I16: return ((const i16*)", "case I16: return ((const u16*)"),
    ("relu_grad", "relu_grad.cu", "output > 0", "output >= 0"),
    ("increment", "increment.cu", "1ll << 40", "(1ll << 40) + 1"),
    ("add_bias", "add_bias.cu", "i % columns", "0"),
    ("column_sum", "column_sum.cu", "row = 0", "row = 1"),
    ("matmul", "matmul.cu", "k = 0", "k = 1"),
    ("transpose", "transpose.cu", "rest /= axes[2 * axis];", ""),
    ("im2col", "window.cuh", "y >= height", "y > height"),
    ("col2im", "window.cuh", "x % stride_x != 0", "false"),
    ("max_pool", "window.cuh", "BELOW_INT16 = -32768", "BELOW_INT16 = 0"),
    ("max_pool_grad", "max_pool_grad.cu", "value > most", "value >= most"),
    ("sum_pool", "sum_pool.cu", "pixel >= 0", "pixel > 0"),
    ("sum_pool_grad", "window.cuh", "y / stride_y >= rows", "false"),
]
"""Operator, file, what stands there, and what a mistake might put in its place."""


@pytest.mark.slow
@pytest.mark.parametrize(("op", "file", "right", "wrong"), FAULTS)
def test_fault_is_seen(op: str, file: str, right: str, wrong: str, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    shutil.copytree(KERNELS, folder)
    if op == "matmul":
        # The fast kernels behind the readable one take long to compile.
        text = (folder / "matmul.cu").read_text()
        (folder / "matmul.cu").write_text(text[: text.index("\n}\n") + 3])
    text = (folder / file).read_text()
    assert right in text
    (folder / file).write_text(text.replace(right, wrong))
    device = HostDevice(folder=folder, cache_folder=tmp_path / "cache")
    once = settings(COMMON, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, HostDeviceError)):
        check_all(device, op, once)
