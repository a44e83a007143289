"""Kernels with barriers run on the CPU as they would on a GPU, or fail if they could not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.cuda.host_device import HostDevice, HostDeviceError
from vtrain.engines.cuda.device import Call, Pointer, Slot

SOURCE = r"""
#include "law.cuh"

// out[i] = the value of the thread ``by`` places on, by way of shared memory.
extern "C" __global__ void rotate(i64 by, i64 forget, i64* out) {
    __shared__ i64 values[256];
    const i64 me = threadIdx.x;
    for (i64 round = 0; round < 3; round++) {
        values[me] = 1000 * round + me;
        if (!forget) __syncthreads();
        out[me] = values[(me + by) % blockDim.x];
        __syncthreads();
    }
}

// Half of the warps end before the others meet at a barrier.
extern "C" __global__ void leave_early(i64* out) {
    __shared__ i64 total;
    if (threadIdx.x / 32 % 2 == 1) return;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    atomicAdd(&total, (i64)threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = total;
}

// Every warp adds its lanes' numbers; lanes of odd warps do it in two halves.
extern "C" __global__ void add_lanes(i64* out) {
    const u32 lane = threadIdx.x % 32, odd = threadIdx.x / 32 % 2;
    const u32 mask = !odd ? 0xffffffffu : lane < 16 ? 0x0000ffffu : 0xffff0000u;
    i64 value = (i64)threadIdx.x * threadIdx.x;
    for (int bits = odd ? 8 : 16; bits > 0; bits /= 2) value += __shfl_xor_sync(mask, value, bits);
    out[threadIdx.x] = value;
}

// The first warp waits for the block, the others never come.
extern "C" __global__ void wait_forever(i64* out) {
    if (threadIdx.x < 32) __syncthreads();
    else __syncwarp(threadIdx.x % 2 == 0 ? 0xffffffffu : 0x55555555u);
    out[threadIdx.x] = 1;
}

extern "C" __global__ void count_up(i64 count, i64* out) {
    const i64 i = INDEX();
    if (i < count) out[i] = i;
}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[HostDevice]:
    device = HostDevice()
    device.add_source("fibers_test.cu", SOURCE)
    yield device
    device.close()


def run(
    device: HostDevice, kernel: str, threads: int, *arguments: int, blocks: int = 1
) -> list[int]:
    out = device.allocate(8 * threads * blocks)
    slots: tuple[Slot, ...] = (*arguments, Pointer(out))
    device.launch(Call("fibers_test.cu", kernel, (blocks, 1, 1), (threads, 1, 1), slots))
    values = np.frombuffer(device.read(out, 8 * threads * blocks), np.int64).tolist()
    device.free(out)
    return [int(value) for value in values]


@pytest.fixture(params=[False, True], ids=["forwards", "backwards"])
def backwards(request: pytest.FixtureRequest, device: HostDevice) -> Iterator[bool]:
    device.library("fibers_test.cu").run_backwards(request.param)
    yield bool(request.param)
    device.library("fibers_test.cu").run_backwards(False)


@pytest.mark.parametrize("by", [1, 31, 32, 100])
def test_barrier_shows_what_all_threads_wrote(device: HostDevice, backwards: bool, by: int) -> None:
    assert run(device, "rotate", 256, by, 0) == [2000 + (i + by) % 256 for i in range(256)]


def test_forgotten_barrier_is_seen_in_one_of_the_two_orders(device: HostDevice) -> None:
    right = [2000 + (i + 32) % 256 for i in range(256)]
    library = device.library("fibers_test.cu")
    wrong = []
    for last_first in (False, True):
        library.run_backwards(last_first)
        wrong.append(run(device, "rotate", 256, 32, 1) != right)
    library.run_backwards(False)
    assert any(wrong)


def test_threads_that_have_ended_are_not_waited_for(device: HostDevice, backwards: bool) -> None:
    present = [i for i in range(128) if i // 32 % 2 == 0]
    out = run(device, "leave_early", 128)
    assert [out[i] for i in present] == [sum(present)] * len(present)


def test_shuffles_stay_within_their_mask(device: HostDevice, backwards: bool) -> None:
    squares = np.arange(96, dtype=np.int64) ** 2
    expected = np.concatenate(
        [np.full(32, squares[:32].sum())]
        + [np.full(16, squares[start : start + 16].sum()) for start in (32, 48)]
        + [np.full(32, squares[64:].sum())]
    )
    assert run(device, "add_lanes", 96) == expected.tolist()


def test_deadlock_is_an_error_and_leaves_the_device_usable(device: HostDevice) -> None:
    with pytest.raises(HostDeviceError, match="wait at barriers"):
        run(device, "wait_forever", 64)
    assert run(device, "rotate", 256, 5, 0) == [2000 + (i + 5) % 256 for i in range(256)]


def test_kernel_without_barriers_fills_many_blocks(device: HostDevice) -> None:
    assert run(device, "count_up", 100, 250, blocks=3)[:250] == list(range(250))
