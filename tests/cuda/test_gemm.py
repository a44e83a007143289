"""Products on (emulated) tensor cores against exact products of numpy, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.cuda.host_device import KERNELS, HostDevice, HostDeviceError
from tests.exhaustive import spare, spare_mutants
from vtrain.engines.cuda import gemm
from vtrain.engines.cuda.device import Call, Pointer, Slot
from vtrain.engines.cuda.gemm import (
    LONGEST_SUM,
    TILE,
    Bytes,
    Choice,
    Epilogue,
    Factor,
    Narrow,
    count_cost,
    find_choice,
    plan_matmul,
)
from vtrain.engines.cuda.launch import Arg, Constant, Launch, Operand, Output, Saturated, Scratch
from vtrain.errors import GraphError
from vtrain.ops.layout import Window
from vtrain.spec.number import NUMPY_DTYPES, count_saturated, rs, saturate

Array = npt.NDArray[Any]
RANGES: Mapping[Bytes, tuple[int, int]] = {
    "i16": (-32768, 32767),
    "i8": (-128, 127),
    "u8": (0, 255),
}
MMA, WGMMA = "sm_80", "sm_90a"
SUMS = Operand(3)
"""Where tests have the int64 sums."""


@pytest.fixture(params=[False, True], ids=["forwards", "backwards"])
def backwards(request: pytest.FixtureRequest, host_device: HostDevice) -> Iterator[bool]:
    """Both orders of warps: a missing barrier shows in one of them."""
    host_device.library("matmul.cu").run_backwards(request.param)
    yield bool(request.param)
    host_device.library("matmul.cu").run_backwards(False)


@dataclass(frozen=True)
class Result:
    sums: Array
    narrow: Array
    saturated: int


def run(
    device: HostDevice,
    launches: Sequence[Launch] | None,
    inputs: Sequence[Array],
    outputs: int,
    dtype: str = "i16",
) -> Result:
    """Launch; results that nothing writes stay garbage."""
    assert launches is not None
    places: dict[Arg, int] = {}

    def place(data: Array) -> int:
        address = device.allocate(data.nbytes)
        device.write(address, data.reshape(-1).view(np.uint8))
        return address

    width = NUMPY_DTYPES[dtype].itemsize
    for i, value in enumerate(inputs):
        places[Operand(i)] = place(np.ascontiguousarray(value))
    places[SUMS] = device.allocate(8 * outputs)
    places[Output()] = device.allocate(width * outputs)
    places[Saturated()] = place(np.zeros(1, np.uint64))

    def resolve(arg: Arg) -> Slot:
        if isinstance(arg, int):
            return arg
        if arg not in places:
            if isinstance(arg, Constant):
                places[arg] = place(np.frombuffer(arg.data, np.uint8))
            else:
                assert isinstance(arg, Scratch)
                places[arg] = device.allocate(arg.nbytes)
        return Pointer(places[arg])

    for launch in launches:
        slots = tuple(resolve(arg) for arg in launch.args)
        shape = (launch.grid, launch.block)
        device.launch(Call(launch.file, launch.kernel, *shape, slots, launch.shared))
    result = Result(
        np.frombuffer(device.read(places[SUMS], 8 * outputs), np.int64),
        np.frombuffer(device.read(places[Output()], width * outputs), NUMPY_DTYPES[dtype]),
        int(np.frombuffer(device.read(places[Saturated()], 8), np.uint64)[0]),
    )
    for address in places.values():
        device.free(address)
    return result


def random(shape: tuple[int, ...], part: Bytes, seed: int) -> Array:
    """Values of the whole range, half of them near its ends."""
    rng = np.random.default_rng(seed)
    lo, hi = RANGES[part]
    wide = rng.integers(lo, hi, shape, endpoint=True)
    edges = rng.choice([lo, lo + 1, 0, 1, hi - 1, hi], shape)
    return np.where(rng.integers(0, 2, shape) == 1, edges, wide).astype(np.int16)


def factors(
    a: Array,
    b: Array,
    parts: tuple[Bytes, Bytes] = ("i16", "i16"),
    transposes: tuple[int, int] = (0, 0),
) -> tuple[Factor, Factor]:
    """The factors of ``a`` [.., m, k] and ``b`` [.., k, n], stored as the transposes say."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    left = Factor(Operand(0), "i16", m, k, not transposes[0], *RANGES[parts[0]])
    return left, Factor(Operand(1), "i16", n, k, bool(transposes[1]), *RANGES[parts[1]])


def multiply(
    device: HostDevice,
    a: Array,
    b: Array,
    architecture: str,
    *,
    parts: tuple[Bytes, Bytes] = ("i16", "i16"),
    transposes: tuple[int, int] = (0, 0),
    processors: int = 1,
) -> Array:
    """The int64 sums of ``a`` @ ``b``."""
    left, right = factors(a, b, parts, transposes)
    batch = a.shape[0] if a.ndim == 3 else 1
    launches = plan_matmul(
        left,
        right,
        Epilogue(SUMS),
        architecture,
        processors=processors,
        batch=batch,
        least_products=0,
    )
    stored = [
        np.swapaxes(x, -1, -2) if turned else x
        for x, turned in zip((a, b), transposes, strict=True)
    ]
    outputs = batch * a.shape[-2] * b.shape[-1]
    return run(device, launches, stored, outputs).sums.reshape(*a.shape[:-1], b.shape[-1])


def test_a_device_newer_than_the_compiler_has_tensor_cores_as_well() -> None:
    a, b = np.ones((64, 64)), np.ones((64, 64))

    def plan(architecture: str) -> tuple[Launch, ...] | None:
        return plan_matmul(*factors(a, b), Epilogue(SUMS), architecture, least_products=0)

    assert plan("compute_121") == plan("compute_121a") == plan("sm_80") is not None
    assert plan("sm_75") is None


def exact(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (7, 1, 129),
        (1, 127, 7),
        (127, 129, 128),
        (128, 128, 1),
        (129, 65, 127),
        (5, 64, 300),
    ],
)
def test_boundary_shapes(
    host_device: HostDevice, architecture: str, m: int, n: int, k: int
) -> None:
    a, b = random((m, k), "i16", m), random((k, n), "i16", n + 1)
    assert np.array_equal(multiply(host_device, a, b, architecture), exact(a, b))


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize("transposes", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_transposes(
    host_device: HostDevice, backwards: bool, architecture: str, transposes: tuple[int, int]
) -> None:
    # Tiles that are whole and aligned are packed in another way than those at the edges.
    a, b = random((136, 264), "i16", 1), random((264, 144), "i16", 2)
    product = multiply(host_device, a, b, architecture, transposes=transposes)
    assert np.array_equal(product, exact(a, b))


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize(
    "parts",
    [
        ("i16", "i8"),
        ("i16", "u8"),
        ("i8", "i16"),
        ("u8", "i16"),
        ("i8", "i8"),
        ("u8", "i8"),
        ("u8", "u8"),
    ],
)
def test_narrow_ranges(
    host_device: HostDevice, architecture: str, parts: tuple[Bytes, Bytes]
) -> None:
    n = 257 if parts == ("i8", "i8") else 70
    a, b = random((20, 260), parts[0], 3), random((260, n), parts[1], 4)
    assert np.array_equal(multiply(host_device, a, b, architecture, parts=parts), exact(a, b))


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_operands_stored_as_bytes(host_device: HostDevice, dtype: Bytes) -> None:
    a, b = random((20, 50), dtype, 3).astype(NUMPY_DTYPES[dtype]), random((50, 9), "i16", 4)
    left = Factor(Operand(0), dtype, 20, 50, True, *RANGES[dtype])
    right = Factor(Operand(1), "i16", 9, 50, False, *RANGES["i16"])
    launches = plan_matmul(left, right, Epilogue(SUMS), MMA, least_products=0)
    assert np.array_equal(run(host_device, launches, [a, b], 180).sums.reshape(20, 9), exact(a, b))


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize(
    "values",
    [(32639, 32639), (-32639, 32639), (-32768, -32768), (32767, -32768), (255, 255), (-1, 255)],
)
def test_extreme_values_over_many_steps(
    host_device: HostDevice, architecture: str, values: tuple[int, int]
) -> None:
    """Every sum at its largest: the emulation reports an int32 that overflows."""
    a = np.full((2, 1100), values[0], np.int16)
    b = np.full((1100, 3), values[1], np.int16)
    assert np.array_equal(multiply(host_device, a, b, architecture), exact(a, b))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize("k", spare([LONGEST_SUM, LONGEST_SUM + 1], LONGEST_SUM.__lt__))
@pytest.mark.parametrize("value", spare([-32768, -128 * 256 + 255, 255], lambda v: v < -32700))
def test_longest_sums(host_device: HostDevice, architecture: str, k: int, value: int) -> None:
    a, b = np.full((1, k), value, np.int16), np.full((k, 1), value, np.int16)
    assert multiply(host_device, a, b, architecture)[0, 0] == k * value**2


@pytest.mark.slow
@pytest.mark.parametrize("architecture", spare([MMA, WGMMA], WGMMA.__eq__))
def test_longer_sums_would_overflow(
    host_device: HostDevice, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm, "LONGEST_SUM", 2 * LONGEST_SUM)
    a = np.full((1, LONGEST_SUM + 2 * TILE), -128 * 256 + 255, np.int16)
    with pytest.raises(HostDeviceError, match="overflows"):
        multiply(host_device, a, a.T, architecture)


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
def test_batches(host_device: HostDevice, architecture: str) -> None:
    a, b = random((3, 20, 130), "i16", 5), random((3, 130, 11), "i16", 6)
    assert np.array_equal(multiply(host_device, a, b, architecture), exact(a, b))


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
def test_batch_of_one_shared_operand(host_device: HostDevice, architecture: str) -> None:
    a, b = random((3, 140, 30), "i16", 5), random((30, 11), "i16", 6)
    left = Factor(Operand(0), "i16", 140, 30, True, *RANGES["i16"])
    right = Factor(Operand(1), "i16", 11, 30, False, *RANGES["i16"], shared=True)
    launches = plan_matmul(left, right, Epilogue(SUMS), architecture, batch=3, least_products=0)
    sums = run(host_device, launches, [a, b], 3 * 140 * 11).sums
    assert np.array_equal(sums.reshape(3, 140, 11), exact(a, b))


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
def test_inner_axis_split_over_blocks(
    host_device: HostDevice, backwards: bool, architecture: str
) -> None:
    a, b = random((10, 1500), "i16", 7), random((1500, 12), "i16", 8)
    product = multiply(host_device, a, b, architecture, processors=132, transposes=(1, 0))
    assert np.array_equal(product, exact(a, b))


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize("processors", [1, 132])
@pytest.mark.parametrize(
    ("dtype", "multiplier", "shift", "bias_shift", "relu", "n"),
    [
        ("i16", 1, 24, 3, False, 67),
        ("i16", 40_000, 40, -4, True, 68),
        ("i16", 1, 16, 0, True, 3),
        ("i16", 3, 0, 64, False, 68),
        ("i32", 7, 9, 1, False, 66),
        ("i64", 5, -3, 1, True, 66),
        ("i16", 1, 64, 0, False, 8),
    ],
)
def test_epilogues(
    host_device: HostDevice,
    architecture: str,
    processors: int,
    dtype: str,
    multiplier: int,
    shift: int,
    bias_shift: int,
    relu: bool,
    n: int,
) -> None:
    a, b = random((18, 1050), "i16", 9), random((1050, n), "i16", 10)
    rng = np.random.default_rng(11)
    bias = rng.integers(-(2**31), 2**31, n).astype(np.int32)
    wide = rs((exact(a, b) + rs(bias, bias_shift)) * multiplier, shift)
    expected = saturate(wide, dtype)
    if relu:
        expected = np.maximum(expected, 0)
    narrow = Narrow(Output(), dtype, multiplier, shift, Saturated(), Operand(2), bias_shift, relu)
    for sums in (None, SUMS):
        launches = plan_matmul(
            *factors(a, b),
            Epilogue(sums, narrow),
            architecture,
            processors=processors,
            least_products=0,
        )
        result = run(host_device, launches, [a, b, bias], 18 * n, dtype)
        assert np.array_equal(result.narrow.reshape(18, n), expected)
        assert result.saturated == count_saturated(wide, dtype)
        if sums is not None:
            assert np.array_equal(result.sums.reshape(18, n), exact(a, b))


def narrow_by_law(
    sums: Array, bias: Array, multiplier: int, shift: int, bias_shift: int, relu: bool
) -> tuple[Array, int]:
    """int16 outputs, and how many of them were clamped."""
    wide = rs((sums + rs(bias, bias_shift)) * multiplier, shift)
    narrow = saturate(wide, "i16")
    return np.maximum(narrow, 0) if relu else narrow, count_saturated(wide, "i16")


RESCALINGS = [
    # Around the shifts from which on int16 goes out of registers, by multiplier; around the last
    # shift and the bounds of a bias's; and magnitudes that force the way by slab.
    *((1, shift, bias_shift, 3) for shift in (1, 2, 3, 16, 17) for bias_shift in (0, 5)),
    *((32769, shift, bias_shift, 40) for shift in (19, 20, 21, 30) for bias_shift in (0, 1)),
    *((32769, shift, bias_shift, 40) for shift in (31, 32, 45, 61, 62) for bias_shift in (-13, 1)),
    *((1, 20, bias_shift, 300) for bias_shift in (-21, -20, 31, 32, 64)),
    (2**30 - 1, 40, 31, 1),
    (2**31 - 1, 40, 31, 1),
    (0, 20, 0, 3),
]
"""Multiplier, shift, shift of the bias, terms."""


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize(("multiplier", "shift", "bias_shift", "k"), RESCALINGS)
def test_int16_from_registers_is_rounded_and_clamped_as_the_law_does(
    host_device: HostDevice,
    architecture: str,
    multiplier: int,
    shift: int,
    bias_shift: int,
    k: int,
) -> None:
    """Every lane's outputs and counts, at edges of rows and columns, whole tiles among them."""
    m, n = 133, 136
    a, b = random((m, k), "i16", shift), random((k, n), "i16", k)
    a[: m // 2] >>= 9  # half of the outputs are not clamped
    bias = np.random.default_rng(k).integers(-(2**31), 2**31, n).astype(np.int32)
    bias[::3] >>= 20
    bias[1] = -(2**31)
    for relu in (False, True):
        rest = (multiplier, shift, bias_shift, relu)
        expected, clamped = narrow_by_law(exact(a, b), bias, *rest)
        out, saturated = Output(), Saturated()
        narrow = Narrow(out, "i16", multiplier, shift, saturated, Operand(2), bias_shift, relu)
        launches = plan_matmul(
            *factors(a, b), Epilogue(None, narrow), architecture, least_products=0
        )
        result = run(host_device, launches, [a, b, bias], m * n)
        np.testing.assert_array_equal(result.narrow.reshape(m, n), expected)
        assert result.saturated == clamped


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize(
    "parts", [("i16", "i8"), ("i16", "u8"), ("i8", "i16"), ("u8", "i16"), ("i8", "i8")]
)
@pytest.mark.parametrize(("n", "shift"), [(8, 12), (264, 18), (264, 9)])
def test_int16_of_fewer_planes_from_registers(
    host_device: HostDevice, architecture: str, parts: tuple[Bytes, Bytes], n: int, shift: int
) -> None:
    a, b = random((19, 70), parts[0], n), random((70, n), parts[1], shift)
    expected, clamped = narrow_by_law(exact(a, b), np.zeros(n, np.int32), 1, shift, 0, False)
    narrow = Narrow(Output(), "i16", 1, shift, Saturated())
    launches = plan_matmul(
        *factors(a, b, parts), Epilogue(None, narrow), architecture, least_products=0
    )
    result = run(host_device, launches, [a, b], 19 * n)
    np.testing.assert_array_equal(result.narrow.reshape(19, n), expected)
    assert result.saturated == clamped


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize("value", [(-32768, -32768), (-32768, 32767), (32767, 32767), (255, 255)])
@pytest.mark.parametrize(
    ("multiplier", "k", "shift"),
    [(1, 5, 2), (1, 6, 2), (1, 1500, 31), (2**20, 4091, 31), (2**20, 4094, 31)],
)
def test_int16_of_the_largest_sums_from_registers(
    host_device: HostDevice,
    architecture: str,
    value: tuple[int, int],
    multiplier: int,
    k: int,
    shift: int,
) -> None:
    """Where the limits of what registers hold lie: the emulation reports what overflows."""
    a, b = np.full((2, k), value[0], np.int16), np.full((k, 8), value[1], np.int16)
    bias = np.full(8, -(2**31) if value[1] < 0 else 2**31 - 1, np.int32)
    for bias_shift in (0,) if multiplier > 1 else (-13, -6, 0):
        expected, clamped = narrow_by_law(exact(a, b), bias, multiplier, shift, bias_shift, False)
        narrow = Narrow(Output(), "i16", multiplier, shift, Saturated(), Operand(2), bias_shift)
        launches = plan_matmul(
            *factors(a, b), Epilogue(None, narrow), architecture, least_products=0
        )
        result = run(host_device, launches, [a, b, bias], 16)
        np.testing.assert_array_equal(result.narrow.reshape(2, 8), expected)
        assert result.saturated == clamped


@pytest.mark.slow
@pytest.mark.parametrize("architecture", spare([MMA, WGMMA], WGMMA.__eq__))
@pytest.mark.parametrize("value", spare([-128 * 256 + 255, 255, -32768], lambda v: v < -32700))
def test_int16_of_the_longest_sums_from_registers(
    host_device: HostDevice, architecture: str, value: int
) -> None:
    """Each byte sum as large as it can be, and what is added to it the most there may be."""
    a, b = np.full((1, LONGEST_SUM), value, np.int16), np.full((LONGEST_SUM, 8), value, np.int16)
    bias = np.full(8, 2**31 - 1, np.int32)
    for multiplier, shift in ((1, 32), (1, 44), (2**15, 45)):
        expected, clamped = narrow_by_law(exact(a, b), bias, multiplier, shift, -13, False)
        narrow = Narrow(Output(), "i16", multiplier, shift, Saturated(), Operand(2), -13)
        launches = plan_matmul(
            *factors(a, b), Epilogue(None, narrow), architecture, least_products=0
        )
        result = run(host_device, launches, [a, b, bias], 8)
        np.testing.assert_array_equal(result.narrow.reshape(1, 8), expected)
        assert result.saturated == clamped


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize("n", [2, 66, 135, 136, 200])
@pytest.mark.parametrize("parts", [("i16", "i16"), ("i8", "i8")])
def test_sums_from_registers_and_by_slab(
    host_device: HostDevice, architecture: str, n: int, parts: tuple[Bytes, Bytes]
) -> None:
    """Even numbers of columns go out of registers, odd ones by shared memory."""
    a, b = random((131, 40), parts[0], n), random((40, n), parts[1], 3)
    assert np.array_equal(multiply(host_device, a, b, architecture, parts=parts), exact(a, b))


@pytest.mark.parametrize("processors", [1, 9])
@pytest.mark.parametrize("n", [520, 519])
@pytest.mark.parametrize("k", spare([40, 300, 384], lambda k: k != 300))
def test_blocks_go_from_tile_to_tile(
    host_device: HostDevice, backwards: bool, n: int, k: int, processors: int
) -> None:
    """Out of registers and by slab, with a last step that is part of one, none, and no other."""
    m = 390
    a, b = random((m, k), "i16", n), random((k, n), "i16", k)
    launches = plan_matmul(
        *factors(a, b), Epilogue(SUMS), WGMMA, processors=processors, least_products=0
    )
    assert launches is not None
    assert launches[-1].grid == (max(processors, 8), 1, 1)
    sums = run(host_device, launches, [a, b], m * n).sums
    assert np.array_equal(sums.reshape(m, n), exact(a, b))
    narrow = Narrow(Output(), "i16", 1, 20, Saturated())
    launches = plan_matmul(
        *factors(a, b), Epilogue(None, narrow), WGMMA, processors=processors, least_products=0
    )
    expected, clamped = narrow_by_law(exact(a, b), np.zeros(n, np.int32), 1, 20, 0, False)
    result = run(host_device, launches, [a, b], m * n)
    assert np.array_equal(result.narrow.reshape(m, n), expected)
    assert result.saturated == clamped


@pytest.mark.parametrize("columns", [48, 130])
def test_blocks_gather_windows_from_tile_to_tile(
    host_device: HostDevice, backwards: bool, columns: int
) -> None:
    shape, window = (5, 16, 16, 16), Window((3, 3), (1, 1), (1, 1, 1, 1))
    image, weights = random(shape, "i16", 12), random((144, columns), "i16", 13)
    patches = window.patches(image).reshape(1280, 144)
    packed = pack_window(window, shape)
    left = Factor(Operand(0), "i16", 1280, 144, True, *RANGES["i16"], windows=packed)
    right = Factor(Operand(1), "i16", columns, 144, False, *RANGES["i16"])
    launches = plan_matmul(left, right, Epilogue(SUMS), WGMMA)
    assert "matmul_split_image" in kernels(launches)
    assert launches is not None
    assert launches[-1].grid == (8, 1, 1)
    sums = run(host_device, launches, [image, weights], 1280 * columns).sums
    assert np.array_equal(sums.reshape(1280, columns), exact(patches, weights))


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("transposes", [(0, 0), (1, 1)])
@pytest.mark.parametrize("extent", [128, 136, 130])
def test_bytes_are_packed_whole(
    host_device: HostDevice, dtype: Bytes, transposes: tuple[int, int], extent: int
) -> None:
    """Tiles of bytes that are whole and aligned, those at edges, and rows that are not aligned; as
    one plane, and as two beside an operand that is one."""
    a = random((extent, 2 * extent), dtype, 1).astype(NUMPY_DTYPES[dtype])
    for lo, hi in (RANGES[dtype], (-128, 127) if dtype == "i8" else (0, 255)):
        for other in ("i16", "i8"):
            b = random((2 * extent, 16), other, 2)
            left = Factor(Operand(0), dtype, extent, 2 * extent, not transposes[0], lo, hi)
            right = Factor(Operand(1), "i16", 16, 2 * extent, bool(transposes[1]), *RANGES[other])
            launches = plan_matmul(left, right, Epilogue(SUMS), MMA, least_products=0)
            stored = [x.T if turned else x for x, turned in zip((a, b), transposes, strict=True)]
            sums = run(host_device, launches, stored, extent * 16).sums
            assert np.array_equal(sums.reshape(extent, 16), exact(a, b))


@pytest.mark.parametrize("part", ["i8", "u8"])
def test_windows_of_bytes_are_packed_whole(host_device: HostDevice, part: Bytes) -> None:
    shape, window = (2, 12, 12, 16), Window((3, 3), (1, 1), (1, 1, 1, 1))
    image = random(shape, part, 12).astype(NUMPY_DTYPES[part])
    patches = window.patches(image).reshape(288, 144)
    weights = random((144, 10), "i16", 13)
    left = Factor(
        Operand(0), part, 288, 144, True, *RANGES[part], windows=pack_window(window, shape)
    )
    right = Factor(Operand(1), "i16", 10, 144, False, *RANGES["i16"])
    launches = plan_matmul(left, right, Epilogue(SUMS), MMA, least_products=0)
    sums = run(host_device, launches, [image, weights], 2880).sums
    assert np.array_equal(sums.reshape(288, 10), exact(patches, weights))


@pytest.mark.parametrize("processors", [1, 132])
@pytest.mark.parametrize(("part", "m", "n"), [("i16", 9, 130), ("i16", 64, 65), ("i8", 300, 15)])
def test_narrow_products_are_done_as_the_transpose(
    host_device: HostDevice, processors: int, part: Bytes, m: int, n: int
) -> None:
    a, b = random((2, m, 1050), part, 1), random((2, 1050, n), part, 2)
    left, right = factors(a, b, (part, part))
    launches = plan_matmul(left, right, Epilogue(SUMS), WGMMA, processors=processors, batch=2)
    assert launches is not None
    assert launches[-1].args[2:4] == (n, m)
    sums = run(host_device, launches, [a, b], 2 * m * n).sums
    assert np.array_equal(sums.reshape(2, m, n), exact(a, b))


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
def test_rescaling_without_bias(host_device: HostDevice, architecture: str) -> None:
    a, b = random((130, 40), "i16", 9), random((40, 130), "i16", 10)
    narrow = Narrow(Output(), "i16", 1, 16, Saturated())
    launches = plan_matmul(*factors(a, b), Epilogue(None, narrow), architecture, least_products=0)
    result = run(host_device, launches, [a, b], 130 * 130)
    wide = rs(exact(a, b), 16)
    assert np.array_equal(result.narrow.reshape(130, 130), saturate(wide, "i16"))
    assert result.saturated == count_saturated(wide, "i16") > 0


WINDOWS = [
    ((2, 7, 6, 3), Window((3, 3), (1, 1), (1, 1, 1, 1))),
    ((1, 9, 8, 8), Window((3, 2), (2, 3), (0, 1, 2, 0))),
    ((3, 5, 5, 16), Window((1, 1), (2, 2), (0, 0, 0, 0))),
    ((3, 8, 7, 32), Window((3, 3), (1, 1), (1, 1, 1, 1))),
    ((1, 9, 8, 48), Window((3, 2), (2, 3), (0, 1, 2, 0))),
]


def pack_window(window: Window, image: Sequence[int]) -> Constant:
    height, width, channels = image[1:]
    extent = window.output_extent(height, width)
    fields = (height, width, channels, *extent, *window.kernel, *window.strides, *window.pads[:2])
    return Constant(np.array(fields, np.int64).tobytes())


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
@pytest.mark.parametrize(("shape", "window"), WINDOWS)
@pytest.mark.parametrize("part", ["i16", "u8"])
def test_convolution_packs_windows_of_the_image(
    host_device: HostDevice,
    architecture: str,
    shape: tuple[int, ...],
    window: Window,
    part: Bytes,
) -> None:
    image = random(shape, part, 12)
    patches = window.patches(image)
    patches = patches.reshape(-1, patches.shape[3] * patches.shape[4])
    rows, features = patches.shape
    packed = pack_window(window, shape)
    # Forward: patches times weights; backward: gradient, transposed, times patches.
    weights = random((10, features), "i16", 13)
    left = Factor(Operand(0), "i16", rows, features, True, *RANGES[part], windows=packed)
    right = Factor(Operand(1), "i16", 10, features, True, *RANGES["i16"])
    launches = plan_matmul(left, right, Epilogue(SUMS), architecture)
    gathers = architecture == WGMMA and part == "i16" and shape[3] % 16 == 0
    assert ("matmul_split_image" in kernels(launches)) == gathers
    sums = run(host_device, launches, [image, weights], rows * 10).sums
    assert np.array_equal(sums.reshape(rows, 10), exact(patches, weights.T))

    gradient = random((rows, 10), "i16", 14)
    left = Factor(Operand(0), "i16", 10, rows, False, *RANGES["i16"])
    right = Factor(Operand(1), "i16", features, rows, False, *RANGES[part], windows=packed)
    launches = plan_matmul(left, right, Epilogue(SUMS), architecture)
    sums = run(host_device, launches, [gradient, image], features * 10).sums
    assert np.array_equal(sums.reshape(10, features), exact(gradient.T, patches))


MUTANTS = {
    "fragments of B exchanged": (
        "gemm_mma.cuh",
        "left[i], right[other][j]);",
        "left[i], right[other][j ^ 1]);",
    ),
    "rows of A exchanged": (
        "gemm_mma.cuh",
        "row0 + 16 * i + lane % 16",
        "row0 + 16 * i + (lane ^ 8) % 16",
    ),
    "lo hi forgotten": (
        "gemm_mma.cuh",
        "i32(&sum)[4] =",
        "if (plane < other) continue; i32(&sum)[4] =",
    ),
    "low bytes signed": (
        "gemm_mma.cuh",
        "constexpr bool LOW = false;",
        "constexpr bool LOW = true;",
    ),
    "copies not waited for": ("gemm_mma.cuh", "<MMA_STAGES - 2>()", "<MMA_STAGES - 1>()"),
    "steps without a barrier": ("gemm_mma.cuh", "- 2>();\n        __syncthreads();", "- 2>();"),
    "slabs before all have read": (
        "gemm_mma.cuh",
        "copy_async_wait<0>();\n    __syncthreads();",
        "",
    ),
    "rows in the same banks": ("gemm_mma.cuh", "row >> 1 & 3", "row & 3"),
    "inner places packed in another order": (
        "gemm_pack.cuh",
        "piece, eights[part][0]",
        "piece ^ 1, eights[part][0]",
    ),
    "high and low bytes exchanged": (
        "gemm_pack.cuh",
        "high ? 0x7531 : 0x6420",
        "high ? 0x6420 : 0x7531",
    ),
    "bytes with a sign that is none": ("gemm_pack.cuh", ": 0x4140,", ": 0x9180,"),
    "lanes that exchange the wrong words": (
        "gemm.cuh",
        "high ? words[i] : words[i + 2], 2)",
        "high ? words[i + 2] : words[i], 2)",
    ),
    "half of what rounding divides by forgotten": (
        "gemm.cuh",
        "(u32)multiplier + half)",
        "(u32)multiplier)",
    ),
    "a multiplier forgotten": ("gemm.cuh", "sum * (u32)multiplier", "sum"),
    "a bias that is not shifted": ("gemm.cuh", "(i64)biases[j][c] * bias_factor", "biases[j][c]"),
    "values beyond 32 bits": ("gemm.cuh", "shift < 31 ? shift + 31 : 62", "62"),
    "the first matrix of a stack alone": ("gemm_wgmma.cuh", "tile / own_tiles", "0 * tile"),
    "clamped ones beyond the edge counted": (
        "gemm.cuh",
        "count += 8 * j < left && ",
        "count += ",
    ),
    "rows beyond the edge": (
        "gemm_wgmma.cuh",
        "row + 8 * half < epilogue.m ? columns - begin : 0",
        "columns - begin",
    ),
    "tiles of B in other groups": ("gemm.cuh", "within % height", "within % 8"),
    "stages given back too early": ("gemm_wgmma.cuh", "wgmma_wait<1>();", "wgmma_wait<2>();"),
    "the last terms forgotten": ("gemm_wgmma.cuh", "% TILE + 31) / 32", "% TILE) / 32"),
    "slabs while others multiply": (
        "gemm_wgmma.cuh",
        "sync_multipliers();\n    static",
        "static",
    ),
    "stages that stay at the end of a tile": (
        "gemm_wgmma.cuh",
        "if (lane == 0) mbarrier_arrive(empty + 8 * (done % STAGES));",
        "",
    ),
    "steps that begin anew with each tile": (
        "gemm_wgmma.cuh",
        "done += (u32)full_steps;",
        "done = (u32)full_steps;",
    ),
    "bytes that come into slabs": (
        "gemm_wgmma.cuh",
        "mbarrier_wait(drained, (rounds - 1) & 1);",
        "rounds += 0;",
    ),
    "planes exchanged": ("gemm_wgmma.cuh", "left + plane * (PLANE", "left + (1 - plane) * (PLANE"),
    "rows of a descriptor": ("mma.cuh", "STRIDE = 8 * 128", "STRIDE = 4 * 128"),
    "inner places of a descriptor": ("gemm_wgmma.cuh", "+ 2 * part;", "+ 4 * part;"),
    "both warpgroups on the same rows": (
        "gemm_wgmma.cuh",
        "group * (64 * TILE)",
        "0 * (64 * TILE)",
    ),
    "a ring that never turns": ("gemm_wgmma.cuh", "& 1) ^ 1);", "& 1));"),
    "windows handed over too early": (
        "gemm_wgmma.cuh",
        "copy_async_wait<AHEAD>();",
        "copy_async_wait<AHEAD + 1>();",
    ),
    "windows that run over the image's edge": (
        "gemm_wgmma.cuh",
        " && (u32)x[i] + dx < width;",
        ";",
    ),
    "too few bytes expected": (
        "gemm_wgmma.cuh",
        "full + 8 * s, STAGE_BYTES)",
        "full + 8 * s, A_BYTES)",
    ),
}
"""What the tests must see: (file, text, what stands there instead)."""


def mutate(folder: Path, mutant: str) -> tuple[str, ...]:
    """Make ``folder`` one of kernels with the mutation in them, products of int16 alone, and those
    that it is in: compiling the others takes most of a test.  The architectures that have it."""
    file, old, new = MUTANTS[mutant]
    copytree(KERNELS, folder, dirs_exist_ok=True)
    text = (folder / file).read_text()
    assert old in text, f"nothing to mutate in {file}"
    (folder / file).write_text(text.replace(old, new))
    for name in ("gemm_mma.cuh", "gemm_wgmma.cuh"):
        text = (folder / name).read_text()
        others = r"^(WG)?MMA_PRODUCT\(matmul_(wg)?mma_(?!i16_i16,).*\n"
        (folder / name).write_text(re.sub(others, "", text, flags=re.MULTILINE))
    apart = {"gemm_mma.cuh": (MMA,), "gemm_wgmma.cuh": (WGMMA,)}
    if file not in apart:
        return MMA, WGMMA
    products = folder / "matmul.cu"
    [other] = apart.keys() - {file}
    include = f'#include "{other}"\n'
    assert include in products.read_text()
    products.write_text(products.read_text().replace(include, ""))
    return apart[file]


def agrees(device: HostDevice, architecture: str, m: int, n: int, k: int) -> bool:
    """Is a product right, and one whose kernel gathers windows?"""
    a, b = random((m, k), "i16", 17), random((k, n), "i16", 18)
    if not np.array_equal(multiply(device, a, b, architecture, transposes=(1, 1)), exact(a, b)):
        return False
    # An odd number of columns goes by slab; int16 out of registers, and bytes are another pack.
    odd = multiply(device, a[:70], b[:, :67], architecture)
    if not np.array_equal(odd, exact(a[:70], b[:, :67])):
        return False
    if not (narrow_agrees(device, architecture) and stack_agrees(device, architecture)):
        return False
    # Blocks that take several tiles, out of registers and by slab.
    for columns in (520, 519):
        c = random((40, columns), "i16", 19)
        d = random((390, 40), "i16", 20)
        if architecture == WGMMA and not np.array_equal(
            multiply(device, d, c, architecture), exact(d, c)
        ):
            return False
    return architecture == MMA or multiply_windows(device, processors=1)


def narrow_agrees(device: HostDevice, architecture: str) -> bool:
    """Are products right, of bytes in two planes each and of extremes, that are narrowed and
    clamped?"""
    bytes_ = random((130, 128), "u8", 1).astype(np.uint8), random((128, 40), "u8", 2)
    extremes = np.full((2, 8), -32768, np.int16), np.full((8, 8), -32768, np.int16)
    cases: list[tuple[tuple[Array, Array], Bytes, int, int, int]] = [
        (bytes_, "u8", 1, 14, 1),
        (bytes_, "u8", 32769, 29, -1),
        (extremes, "i16", 1, 1, 0),
    ]
    for (a, b), dtype, multiplier, shift, bias_shift in cases:
        (m, k), n = a.shape, b.shape[1]
        bias = np.where(np.arange(n) % 2, 2**30, 0).astype(np.int32)
        expected, clamped = narrow_by_law(exact(a, b), bias, multiplier, shift, bias_shift, False)
        left = Factor(Operand(0), dtype, m, k, True, *RANGES[dtype])
        right = Factor(Operand(1), "i16", n, k, False, *RANGES[dtype])
        narrow = Narrow(Output(), "i16", multiplier, shift, Saturated(), Operand(2), bias_shift)
        launches = plan_matmul(left, right, Epilogue(None, narrow), architecture, least_products=0)
        result = run(device, launches, [a, b, bias], m * n)
        if not np.array_equal(result.narrow.reshape(m, n), expected):
            return False
        if result.saturated != clamped:
            return False
    return True


def stack_agrees(device: HostDevice, architecture: str) -> bool:
    """Are the products of a stack of matrices right, tile after tile?"""
    a, b = random((3, 140, 40), "i16", 21), random((3, 40, 390), "i16", 22)
    launches = plan_matmul(*factors(a[0], b[0]), Epilogue(SUMS), architecture, batch=3)
    sums = run(device, launches, [a, b], 3 * 140 * 390).sums
    return np.array_equal(sums.reshape(3, 140, 390), a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", spare_mutants(MUTANTS))
def test_mutants_are_caught(tmp_path: Path, mutant: str) -> None:
    architectures = mutate(tmp_path / "kernels", mutant)
    device = HostDevice(folder=tmp_path / "kernels", cache_folder=tmp_path / "built")
    m, n, k = (1100, 200, 8) if "groups" in mutant else (144, 136, 392)
    right = True
    for architecture in architectures:
        for last_first in (False, True):
            device.library("matmul.cu").run_backwards(last_first)
            try:
                right = right and agrees(device, architecture, m, n, k)
            except HostDeviceError:
                right = False
    assert not right


def multiply_windows(device: HostDevice, processors: int) -> bool:
    """Is the product right whose kernel gathers windows?

    Blocks of 128 columns, images that do not end with a tile.
    """
    shape, window = (3, 10, 9, 64), Window((3, 3), (1, 1), (1, 1, 1, 1))
    image, weights = random(shape, "i16", 12), random((9 * 64, 70), "i16", 13)
    patches = window.patches(image).reshape(270, 9 * 64)
    packed = pack_window(window, shape)
    left = Factor(Operand(0), "i16", 270, 9 * 64, True, *RANGES["i16"], windows=packed)
    right = Factor(Operand(1), "i16", 70, 9 * 64, False, *RANGES["i16"])
    launches = plan_matmul(left, right, Epilogue(SUMS), WGMMA, processors=processors)
    assert kernels(launches)[-1] == "matmul_wgmma_windows_i16_i16"
    sums = run(device, launches, [image, weights], 270 * 70).sums
    return np.array_equal(sums.reshape(270, 70), exact(patches, weights))


@pytest.mark.parametrize("processors", [1, 132])
def test_windows_are_gathered_by_the_product(
    host_device: HostDevice, backwards: bool, processors: int
) -> None:
    """With 132 processors the inner axis is split."""
    assert multiply_windows(host_device, processors)


def test_windows_are_packed_where_gathering_failed() -> None:
    left = Factor(
        Operand(0), "i16", 168, 288, True, *RANGES["i16"], windows=pack_window(*WINDOWS[3][::-1])
    )
    right = factor("i16", 70, 288)
    disabled = {"matmul_wgmma_windows_i16_i16"}
    launches = plan_matmul(left, right, Epilogue(SUMS), WGMMA, disabled=disabled)
    assert kernels(launches)[0] == "matmul_pack_patches_along"
    assert kernels(launches)[-1] == "matmul_wgmma_i16_i16"


def test_grid_reaches_every_tile_of_a_large_product(host_device: HostDevice) -> None:
    """Tiles go in groups of 8 rows of tiles, the last group being short."""
    a, b = random((9 * TILE + 1, 4), "i8", 15), random((4, 2 * TILE + 1), "i8", 16)
    product = multiply(host_device, a, b, MMA, parts=("i8", "i8"))
    assert np.array_equal(product, exact(a, b))


def factor(part: Bytes, extent: int, inner: int) -> Factor:
    return Factor(Operand(0), "i16", extent, inner, True, *RANGES[part])


def kernels(launches: tuple[Launch, ...] | None) -> list[str]:
    return [] if launches is None else [launch.kernel for launch in launches]


def test_kernels_follow_architecture_and_ranges() -> None:
    wide, narrow = factor("i16", 256, 512), factor("i8", 256, 512)
    epilogue = Epilogue(SUMS)
    assert kernels(plan_matmul(wide, wide, epilogue, "sm_90a"))[-1] == "matmul_wgmma_i16_i16"
    assert kernels(plan_matmul(wide, narrow, epilogue, "sm_100a"))[-1] == "matmul_mma_i16_i8"
    assert kernels(plan_matmul(narrow, narrow, epilogue, "sm_86"))[-1] == "matmul_mma_i8_i8"
    assert plan_matmul(wide, wide, epilogue, "sm_75") is None
    disabled = {"matmul_wgmma_i16_i16"}
    found = plan_matmul(wide, wide, epilogue, "sm_90a", disabled=disabled)
    assert kernels(found)[-1] == "matmul_mma_i16_i16"
    disabled.add("matmul_mma_i16_i16")
    assert plan_matmul(wide, wide, epilogue, "sm_90a", disabled=disabled) is None


def test_small_products_are_left_to_the_readable_kernel() -> None:
    small = factor("i16", 10, 100)
    assert plan_matmul(small, small, Epilogue(SUMS), "sm_90a") is None


@pytest.mark.parametrize("inner", [LONGEST_SUM, LONGEST_SUM + 1, 2**23])
def test_no_block_adds_more_terms_than_int32_holds(inner: int) -> None:
    large = factor("i16", 8192, inner)
    launches = plan_matmul(large, large, Epilogue(SUMS), "sm_90a", processors=132)
    assert launches is not None
    product = next(launch for launch in launches if "wgmma" in launch.kernel)
    split = product.args[5]
    assert isinstance(split, int)
    inner_tiles = -(-inner // TILE)
    assert split * TILE <= LONGEST_SUM
    assert product.grid[1] * split >= inner_tiles > (product.grid[1] - 1) * split
    # 2 |hi lo| for all terms, the largest of the sums.
    assert split * TILE * 2 * 128 * 255 < 2**31


def test_few_outputs_are_split_until_the_device_is_busy() -> None:
    launches = plan_matmul(
        factor("i16", 64, 262_144),
        factor("i16", 576, 262_144),
        Epilogue(SUMS),
        "sm_90a",
        processors=132,
    )
    # As its transpose: 64 rows would leave half of every tile empty.
    assert kernels(launches) == [
        "matmul_pack_along",
        "matmul_pack_along",
        "matmul_clear",
        "matmul_wgmma_i16_i16_narrow",
    ]
    assert launches is not None
    blocks = launches[-1].grid[0] * launches[-1].grid[1]
    assert 100 <= blocks <= 132


@pytest.mark.parametrize("kernel", ["matmul_wgmma_i16_i16", "matmul_wgmma_i16_i16_narrow"])
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(("m", "n"), [(9, 70), (70, 9), (130, 65)])
def test_a_product_can_be_done_as_another_was(
    host_device: HostDevice, kernel: str, is_turned: bool, m: int, n: int
) -> None:
    a, b = random((m, 40), "i16", 1), random((40, n), "i16", 2)
    choice = Choice(kernel, is_turned)
    launches = plan_matmul(*factors(a, b), Epilogue(SUMS), WGMMA, least_products=0, choice=choice)
    assert launches is not None
    assert find_choice(launches) == choice
    sums = run(host_device, launches, [a, b], m * n).sums
    assert np.array_equal(sums.reshape(m, n), exact(a, b))


def test_what_cannot_be_done_as_another_was_is_not() -> None:
    wide = factor("i16", 256, 512)
    for kernel in ("matmul_wgmma_i8_i8", "matmul_wgmma_windows_i16_i16", "matmul_pack_along"):
        choice = Choice(kernel, is_turned=False)
        assert plan_matmul(wide, wide, Epilogue(SUMS), "sm_90a", choice=choice) is None
    choice = Choice("matmul_wgmma_i16_i16", is_turned=False)
    assert plan_matmul(wide, wide, Epilogue(SUMS), "sm_80", choice=choice) is None


def test_cost_counts_byte_products() -> None:
    wide, narrow = factor("i16", 4096, 4096), factor("i8", 4096, 4096)
    assert count_cost(wide, wide).operations == 4 * 2 * 4096**3
    assert count_cost(wide, narrow).operations == 2 * 2 * 4096**3
    assert count_cost(narrow, narrow, batch=3).operations == 3 * 2 * 4096**3


def test_refusals() -> None:
    with pytest.raises(GraphError, match="not i32"):
        Factor(Operand(0), "i32", 4, 4, True, 0, 1)
    with pytest.raises(GraphError, match="cannot hold"):
        Factor(Operand(0), "i8", 4, 4, True, 0, 128)
    with pytest.raises(GraphError, match="cannot hold"):
        Factor(Operand(0), "i16", 4, 4, True, -40_000, 1)
    with pytest.raises(GraphError, match="empty"):
        Factor(Operand(0), "i16", 4, 0, True, 0, 1)
    with pytest.raises(GraphError, match="inner extents"):
        plan_matmul(factor("i16", 4, 5), factor("i16", 4, 6), Epilogue(SUMS), "sm_80")
    one = factor("i16", 1, 1)
    with pytest.raises(GraphError, match="65535 matrices at most"):
        plan_matmul(one, one, Epilogue(SUMS), "sm_80", batch=65_536)
    assert plan_matmul(one, one, Epilogue(SUMS), "sm_80", batch=65_535, least_products=0)
    with pytest.raises(GraphError, match="takes the sums"):
        Epilogue(None)


@pytest.mark.parametrize("architecture", [MMA, WGMMA])
def test_stacks_of_matrices_that_leave_tiles_empty_are_for_readable_kernels(
    architecture: str,
) -> None:
    """64 products of many; and a single one, however little of its tile it fills."""

    def plan(rows: int, terms: int, columns: int, batch: int) -> tuple[Launch, ...] | None:
        left = Factor(Operand(0), "i16", rows, terms, True, *RANGES["i16"])
        right = Factor(Operand(1), "i16", columns, terms, False, *RANGES["i16"])
        return plan_matmul(left, right, Epilogue(SUMS), architecture, batch=batch)

    assert plan(128, 32, 128, 64) is not None
    assert plan(128, 128, 32, 64) is not None
    assert plan(16, 16, 16, 4096) is None
    assert plan(2, 2**14, 8, 2) is None
    assert plan(2, 2**14, 8, 1) is not None
