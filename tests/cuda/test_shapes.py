"""The shapes of Hopper's product: clusters of two blocks, stages of half a tile.

Emulated, as all kernels are: a cluster's blocks take turns as its warps do, each with shared memory
and barriers of its own, and what reaches into a block that may not have begun, or has ended, is an
error.  What memory models allow beyond that is for a GPU to show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from tests.cuda.host_device import KERNELS, HostDevice, HostDeviceError, Library
from tests.cuda.test_gemm import (
    RANGES,
    SUMS,
    WGMMA,
    exact,
    factor,
    factors,
    kernels,
    multiply,
    multiply_windows,
    narrow_by_law,
    random,
    run,
)
from tests.exhaustive import spare_mutants
from vtrain.engines.cuda.device import Call, Pointer
from vtrain.engines.cuda.gemm import (
    PLAIN,
    SHAPE,
    SHAPES,
    TILE,
    Bytes,
    Choice,
    Epilogue,
    Factor,
    Narrow,
    Shape,
    plan_matmul,
)
from vtrain.engines.cuda.launch import Operand, Output, Saturated

DEEP, PAIR, DEEP_PAIR = SHAPES[1:]


def test_the_shape_that_serves_is_the_most_careful_one() -> None:
    assert SHAPE == PLAIN == Shape("", TILE, 1)


@pytest.fixture(params=SHAPES[1:], ids=[shape.name for shape in SHAPES[1:]])
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


@pytest.fixture(params=[False, True], ids=["forwards", "backwards"])
def device(
    request: pytest.FixtureRequest, shape: Shape, host_device: HostDevice
) -> Iterator[HostDevice]:
    """Both orders of warps, and so of a cluster's blocks."""
    for file in ("matmul.cu", shape.file):
        host_device.library(file).run_backwards(request.param)
    yield host_device
    for file in ("matmul.cu", shape.file):
        host_device.library(file).run_backwards(False)


SIZES = [
    # One tile and less, which leaves a block of a cluster without outputs; last steps of every
    # number of parts; an odd number of tiles of rows; narrow ones.
    *((1, 1, 1), (129, 40, 33), (130, 8, 64), (300, 200, 330), (257, 300, 95)),
    # Several tiles a block, out of registers and by slab, some with fewer steps than stages.
    *((390, 520, 40), (390, 519, 300), (650, 261, 640)),
]


@pytest.mark.parametrize(
    ("parts", "m", "n", "k"),
    [
        *((("i16", "i16"), *size) for size in SIZES),
        *((("i8", "i8"), *size) for size in SIZES[3:-1]),
        *(((kind, "i16"), 300, 200, 330) for kind in ("i8", "u8")),
        *((("i16", kind), 300, 200, 330) for kind in ("i8", "u8")),
    ],
)
def test_sums_are_exact(
    device: HostDevice, shape: Shape, parts: tuple[Bytes, Bytes], m: int, n: int, k: int
) -> None:
    a, b = random((m, k), parts[0], m), random((k, n), parts[1], n + 1)
    turned = (m % 2, k % 2)
    found = multiply(device, a, b, WGMMA, parts=parts, transposes=turned, shape=shape)
    assert np.array_equal(found, exact(a, b))


def test_kernels_tried_as_others_were_are_exact(device: HostDevice, shape: Shape) -> None:
    """As the self-check does it: with fewer rows and columns than the kernel is meant for."""
    for narrow in ("", "_narrow"):
        for m, n in ((9, 70), (130, 65), (260, 9)):
            a, b = random((m, 200), "i16", 1), random((200, n), "i16", 2)
            choice = Choice(f"matmul_wgmma_i16_i16{narrow}{shape.tail}", False)
            launches = plan_matmul(
                *factors(a, b),
                Epilogue(SUMS),
                WGMMA,
                least_products=0,
                choice=choice,
                shape=shape,
            )
            assert kernels(launches)[-1] == choice.kernel
            sums = run(device, launches, [a, b], m * n).sums
            assert np.array_equal(sums.reshape(m, n), exact(a, b))


@pytest.mark.parametrize("processors", [1, 131])
def test_sums_of_several_blocks_and_batches(
    device: HostDevice, shape: Shape, processors: int
) -> None:
    """An odd number of processors is no whole number of clusters."""
    a, b = random((2, 140, 1500), "i16", 7), random((2, 1500, 12), "i16", 8)
    found = multiply(device, a, b, WGMMA, processors=processors, shape=shape)
    assert np.array_equal(found, exact(a, b))


@pytest.mark.parametrize("processors", [1, 132])
def test_windows_are_gathered(device: HostDevice, shape: Shape, processors: int) -> None:
    assert multiply_windows(device, processors, shape)


@pytest.mark.parametrize(("n", "shift"), [(264, 18), (263, 18), (40, 9)])
def test_int16_is_rounded_and_counted(device: HostDevice, shape: Shape, n: int, shift: int) -> None:
    """Out of registers and by slab; what lies beyond the edge is not counted."""
    a, b = random((300, 70), "i16", n), random((70, n), "i16", shift)
    bias = np.random.default_rng(n).integers(-(2**31), 2**31, n).astype(np.int32)
    expected, clamped = narrow_by_law(exact(a, b), bias, 1, shift, 2, True)
    narrow = Narrow(Output(), "i16", 1, shift, Saturated(), Operand(2), 2, True)
    launches = plan_matmul(
        *factors(a, b), Epilogue(None, narrow), WGMMA, least_products=0, shape=shape
    )
    result = run(device, launches, [a, b, bias], 300 * n)
    np.testing.assert_array_equal(result.narrow.reshape(300, n), expected)
    assert result.saturated == clamped


# --- how they are planned


@pytest.mark.parametrize("processors", [1, 7, 131, 132])
@pytest.mark.parametrize("rows", [129, 256, 900, 8192])
def test_a_grid_is_whole_clusters(shape: Shape, processors: int, rows: int) -> None:
    for batch, inner in ((1, 512), (3, 300_000)):
        launches = plan_matmul(
            *(factor("i16", rows, inner), factor("i16", 900, inner), Epilogue(SUMS), WGMMA),
            processors=processors,
            batch=batch,
            shape=shape,
        )
        assert launches is not None
        product = launches[-1]
        assert (product.file, product.cluster) == (shape.file, shape.cluster)
        assert product.kernel == f"matmul_wgmma_i16_i16{shape.tail}"
        tiles = -(-rows // (TILE * shape.cluster)) * shape.cluster * 8
        assert product.grid[0] % shape.cluster == 0 < product.grid[0] <= tiles
        assert product.grid[0] <= max(processors, 8)
        assert {launch.cluster for launch in launches[:-1]} == {1}


def test_one_tile_of_rows_is_no_clusters_work() -> None:
    few, many = factor("i16", 128, 512), factor("i16", 900, 512)
    launches = plan_matmul(few, many, Epilogue(None, NARROW), WGMMA, shape=PAIR)
    assert kernels(launches)[-1] == "matmul_wgmma_i16_i16"
    launches = plan_matmul(few, many, Epilogue(None, NARROW), WGMMA, shape=DEEP)
    assert kernels(launches)[-1] == "matmul_wgmma_i16_i16_deep"


NARROW = Narrow(Output(), "i16", 1, 16, Saturated())


def test_a_shape_that_fails_gives_way(shape: Shape) -> None:
    """To the one that is known, then to the tensor cores of every GPU; tiles are packed for it."""
    wide = factor("i16", 512, 512)
    disabled: set[str] = set()
    found = []
    for _ in range(3):
        launches = plan_matmul(wide, wide, Epilogue(SUMS), WGMMA, disabled=disabled, shape=shape)
        assert launches is not None
        halved = {launch.args[-2] for launch in launches if "pack" in launch.kernel}
        found.append((launches[-1].kernel, launches[-1].cluster, halved))
        disabled.add(launches[-1].kernel)
    assert found == [
        (f"matmul_wgmma_i16_i16{shape.tail}", shape.cluster, {int(shape.inner < TILE)}),
        ("matmul_wgmma_i16_i16", 1, {0}),
        ("matmul_mma_i16_i16", 1, {0}),
    ]


def test_other_gpus_have_no_shapes(shape: Shape) -> None:
    wide = factor("i16", 512, 512)
    for architecture in ("sm_80", "sm_100a"):
        plain = plan_matmul(wide, wide, Epilogue(SUMS), architecture)
        shaped = plan_matmul(wide, wide, Epilogue(SUMS), architecture, shape=shape)
        assert kernels(plain) == kernels(shaped)


def test_files_say_what_the_planner_takes_them_for(shape: Shape) -> None:
    text = (KERNELS / shape.file).read_text()
    assert f"#define SHAPE_INNER {shape.inner}\n#define SHAPE_CLUSTER {shape.cluster}\n" in text
    assert f"#define SHAPED(name) name##{shape.tail}\n" in text


# --- what the emulation of a cluster sees

RANKS = """
#include "mma.cuh"
extern "C" __global__ void ranks(i64* out) {
    out[blockIdx.x] = cluster_rank();
}
extern "C" __global__ void early(i64* out) {
    SHARED_BYTES(shared);
    const u32 barrier = shared_address(shared);
    if (threadIdx.x == 0) mbarrier_init(barrier, 1);
    if (threadIdx.x == 0) mbarrier_arrive_mapped(map_to_block(barrier, 1 - cluster_rank()));
    cluster_sync();
}
extern "C" __global__ void late(i64* out) {
    SHARED_BYTES(shared);
    const u32 barrier = shared_address(shared);
    if (threadIdx.x == 0) mbarrier_init(barrier, 1);
    cluster_sync();
    if (threadIdx.x != 0) return;
    if (cluster_rank() == 1) mbarrier_wait(barrier, 0);
    mbarrier_arrive_mapped(map_to_block(barrier, 1 - cluster_rank()));
}
extern "C" __global__ void alone(i64* out) {
    if (cluster_rank() == 0) cluster_sync();
}
"""


def test_what_goes_wrong_between_blocks_is_an_error(host_device: HostDevice) -> None:
    host_device.add_source("ranks.cu", RANKS)
    out = host_device.allocate(32)
    call = Call("ranks.cu", "ranks", (4, 1, 1), (32, 1, 1), (Pointer(out),), 64, 2)
    host_device.launch(call)
    assert np.frombuffer(host_device.read(out, 32), np.int64).tolist() == [0, 1, 0, 1]
    for kernel, error in (
        ("early", "may not have begun"),
        ("late", "has ended"),
        ("alone", "wait at barriers"),
    ):
        with pytest.raises(HostDeviceError, match=error):
            host_device.launch(replace(call, kernel=kernel))
    for wrong in (replace(call, grid=(3, 1, 1)), replace(call, cluster=4)):
        with pytest.raises(HostDeviceError, match="in clusters of"):
            host_device.launch(wrong)
    host_device.free(out)


MUTANTS = {
    "barriers that the other block may not have": (
        PAIR,
        "        cluster_sync();\n    else\n        __syncthreads();",
        "        __syncthreads();",
    ),
    "a block that ends while the other goes on": (
        PAIR,
        "    if constexpr (CLUSTER > 1) cluster_sync();\n}",
        "}",
    ),
    "stages that one block gives back for both": (
        PAIR,
        "mbarrier_init(empty + 8 * s, 8 * CLUSTER)",
        "mbarrier_init(empty + 8 * s, 8)",
    ),
    "stages given back to oneself alone": (
        PAIR,
        "mbarrier_arrive_mapped(map_to_block(barrier, lane))",
        "mbarrier_arrive_mapped(map_to_block(barrier, cluster_rank()))",
    ),
    "slabs of the other block not waited for": (
        PAIR,
        "mbarrier_init(drained, 8 * CLUSTER)",
        "mbarrier_init(drained, 8)",
    ),
    "both bring the same half": (PAIR, "at = cluster_rank() * share;", "at = 0;"),
    "both take the same rows": (
        PAIR,
        "tile = blockIdx.x; tile < tiles; tile += gridDim.x)",
        "tile = blockIdx.x & ~1u; tile < tiles; tile += gridDim.x)",
    ),
    "bytes expected of this block's part alone": (
        PAIR,
        "full + 8 * s, STAGE_BYTES)",
        "full + 8 * s, A_BYTES + B_BYTES / CLUSTER)",
    ),
    "steps of whole tiles": (
        DEEP,
        "const i32 steps = (i32)((work.terms + STAGE_INNER - 1) / STAGE_INNER);",
        "const i32 steps = (i32)(work.end - work.first);",
    ),
    "windows in the places of whole rows": (
        DEEP,
        "packed_offset<STAGE_INNER>(threadIdx",
        "packed_offset<TILE>(threadIdx",
    ),
    "windows of the second half left out": (
        DEEP,
        "work.first * TILE + (i64)step * STAGE_INNER",
        "(work.first + step) * TILE",
    ),
    "columns of the other half": (
        DEEP,
        "from + plane * STAGE_PLANE_BYTES + part",
        "from + plane * PLANE_BYTES + part",
    ),
}
"""What the tests must see in gemm_wgmma.cuh: (shape, text, what stands there instead)."""


class Mutated(HostDevice):
    """Has the kernels of one file from another folder: compiling all would take long."""

    def __init__(self, file: str, folder: Path, cache_folder: Path) -> None:
        super().__init__()
        self._file = file
        self._other = HostDevice(folder=folder, cache_folder=cache_folder)

    def library(self, file: str) -> Library:
        return self._other.library(file) if file == self._file else super().library(file)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", spare_mutants(MUTANTS))
def test_mutants_are_caught(tmp_path: Path, mutant: str) -> None:
    shape, old, new = MUTANTS[mutant]
    folder = tmp_path / "kernels"
    copytree(KERNELS, folder)
    path = folder / "gemm_wgmma.cuh"
    text = path.read_text()
    assert old in text
    others = r"^WGMMA_PRODUCT\(matmul_wgmma_(?!i16_i16).*\n"
    path.write_text(re.sub(others, "", text.replace(old, new), flags=re.MULTILINE))
    device = Mutated(shape.file, folder, tmp_path / "built")
    right = True
    for last_first in (False, True):
        device.library(shape.file).run_backwards(last_first)
        try:
            right = right and is_right(device, shape)
        except HostDeviceError:
            right = False
    assert not right


def is_right(device: HostDevice, shape: Shape) -> bool:
    """Several tiles a block, out of registers, by slab and in narrow ones; and windows."""
    for m, n, k in ((390, 520, 600), (390, 519, 100), (300, 50, 330)):
        a, b = random((m, k), "i16", m), random((k, n), "i16", n)
        if not np.array_equal(multiply(device, a, b, WGMMA, shape=shape), exact(a, b)):
            return False
    return multiply_windows(device, 1, shape)


def test_what_is_right_is_not_caught(host_device: HostDevice, shape: Shape) -> None:
    assert is_right(host_device, shape)


def test_operands_in_bytes_are_packed_in_halves(host_device: HostDevice) -> None:
    """Stored as bytes or as int16, along the rows and across, whole tiles and parts of them."""
    for extent in (128, 130):
        for dtype in ("i8", "u8"):
            a = random((extent, 256), dtype, 1).astype(np.int8 if dtype == "i8" else np.uint8)
            b = random((256, 136), "i16", 2)
            for turned in (False, True):
                left = Factor(Operand(0), dtype, extent, 256, not turned, *RANGES[dtype])
                right = Factor(Operand(1), "i16", 136, 256, turned, *RANGES["i16"])
                launches = plan_matmul(
                    left, right, Epilogue(SUMS), WGMMA, least_products=0, shape=DEEP
                )
                stored = [a.T, b.T] if turned else [a, b]
                sums = run(host_device, launches, stored, extent * 136).sums
                assert np.array_equal(sums.reshape(extent, 136), exact(a, b))
