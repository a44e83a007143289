"""The device on the CPU sees what a GPU would be silent about, and builds each library once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.host_device import KERNELS, REPOSITORY, HostDevice, HostDeviceError, build
from vtrain.engines.cuda.device import Call, Pointer, Slot

SOURCE = r"""
#include "law.cuh"

extern "C" __global__ void fill(i64 count, i64* out, i64 value) {
    const i64 i = INDEX();
    if (i < count) out[i] = value;
}
extern "C" __global__ void write_at(i64* out, i64 place) { out[place] = 1; }
extern "C" __global__ void shift(i64* out, i64 value, i64 by) { out[0] = value >> by; }
extern "C" __global__ void grow(i64* out, i64 value) { out[INDEX()] = value + (i64)threadIdx.x; }
extern "C" __global__ void divide_by(i64* out, i64 value, i64 by) { out[0] = value / by; }
extern "C" __global__ void store_odd(i64* out) { *(i64*)((char*)out + 4) = 1; }

#define INSTANCE(name, T) \
    extern "C" __global__ void __launch_bounds__(256) name(i64 count, T* out) { \
        const i64 i = INDEX();                                                 \
        if (i < count) out[i] = (T)i;                                          \
    }
INSTANCE(count_i16, i16)
INSTANCE(count_i64, i64)

extern "C" __global__ void mirror(i64* out) {
    SHARED_BYTES(bytes);
    i64* const values = (i64*)bytes;
    values[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[HostDevice]:
    device = HostDevice()
    device.add_source("host_device_test.cu", SOURCE)
    yield device
    device.close()


@pytest.fixture
def out(device: HostDevice) -> Iterator[int]:
    """Memory for 64 integers."""
    address = device.allocate(512)
    yield address
    device.free(address)


def launch(
    device: HostDevice, kernel: str, *slots: Slot, threads: int = 1, shared: int = 0
) -> None:
    call = Call("host_device_test.cu", kernel, (1, 1, 1), (threads, 1, 1), slots, shared)
    device.launch(call)


def read(device: HostDevice, address: int, count: int) -> list[int]:
    return [int(x) for x in np.frombuffer(device.read(address, 8 * count), np.int64)]


@pytest.mark.parametrize(
    "slots",
    [(Pointer(4096), Pointer(4096), 7), (3, 4, 7), (3, Pointer(4096)), (3, Pointer(4096), 7, 7)],
)
def test_arguments_must_be_those_of_the_kernel(device: HostDevice, slots: tuple[Slot, ...]) -> None:
    with pytest.raises(HostDeviceError, match="takes 'ipi', is launched with"):
        launch(device, "fill", *slots)


def test_integers_of_all_64_bits_arrive(device: HostDevice, out: int) -> None:
    for value in (-(2**63), -1, 2**63 - 1):
        launch(device, "fill", 2, Pointer(out), value, threads=32)
        assert read(device, out, 2) == [value, value]


def test_kernels_made_by_a_macro_are_found(device: HostDevice, out: int) -> None:
    launch(device, "count_i64", 64, Pointer(out), threads=64)
    assert read(device, out, 64) == list(range(64))
    launch(device, "count_i16", 4, Pointer(out), threads=32)
    assert np.frombuffer(device.read(out, 8), np.int16).tolist() == [0, 1, 2, 3]


def test_dynamic_shared_memory_is_shared(device: HostDevice, out: int) -> None:
    launch(device, "mirror", Pointer(out), threads=64, shared=512)
    assert read(device, out, 64) == list(range(63, -1, -1))


def test_unknown_kernel_is_refused(device: HostDevice) -> None:
    with pytest.raises(HostDeviceError, match="no kernel nothing"):
        launch(device, "nothing")
    with pytest.raises(HostDeviceError, match="no kernel nothing"):
        device.prepare([("add.cu", "add"), ("add.cu", "nothing")])


@pytest.mark.parametrize(("threads", "shared"), [(0, 0), (1025, 0), (1, 227 * 1024 + 1)])
def test_launch_that_no_gpu_takes_is_refused(
    device: HostDevice, out: int, threads: int, shared: int
) -> None:
    with pytest.raises(HostDeviceError, match="cannot have"):
        launch(device, "fill", 1, Pointer(out), 1, threads=threads, shared=shared)


@pytest.mark.parametrize("place", [-1, 64, -512, 500])
def test_writing_beside_an_allocation_is_seen(place: int) -> None:
    device = HostDevice()
    device.add_source("host_device_test.cu", SOURCE)
    address = device.allocate(512)
    launch(device, "write_at", Pointer(address), 63)
    device.synchronize()
    launch(device, "write_at", Pointer(address), place)
    with pytest.raises(HostDeviceError, match="beside an allocation of 512 bytes"):
        device.synchronize()
    with pytest.raises(HostDeviceError, match="beside an allocation of 512 bytes"):
        device.free(address)


@pytest.mark.parametrize(
    ("kernel", "numbers", "message"),
    [
        ("grow", (2**63 - 3,), r"signed sum overflows, first in block \(0, 0, 0\) thread \(3, 0"),
        ("shift", (5, 64), "shift by a count"),
        ("divide_by", (5, 0), "division by zero"),
        ("store_odd", (), "not aligned"),
    ],
)
def test_what_cpp_leaves_undefined_is_an_error(
    device: HostDevice, out: int, kernel: str, numbers: tuple[int, ...], message: str
) -> None:
    threads = 8 if kernel == "grow" else 1
    with pytest.raises(HostDeviceError, match=message):
        launch(device, kernel, Pointer(out), *numbers, threads=threads)
    launch(device, "fill", 1, Pointer(out), 5)
    assert read(device, out, 1) == [5]


def test_memory_has_an_end_and_accesses_have_bounds() -> None:
    device = HostDevice(memory_bytes=1000)
    address = device.allocate(900)
    assert device.memory() == (100, 1000)
    with pytest.raises(HostDeviceError, match="200 bytes asked, 100 are free"):
        device.allocate(200)
    for attempt in (
        lambda: device.write(address, bytes(901)),
        lambda: device.read(address + 1, 900),
        lambda: device.zero(address - 1, 2),
        lambda: device.copy(address, address + 450, 451),
    ):
        with pytest.raises(HostDeviceError, match="not in one allocation"):
            attempt()
    assert device.read(address, 2) != bytes(2), "new memory holds garbage"
    device.free(address)
    with pytest.raises(HostDeviceError, match="nothing is allocated"):
        device.free(address)


def test_processes_build_one_library_at_once(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tests.cuda.host_device import KERNELS, Library, build
path = build("add.cu", (KERNELS / "add.cu").read_text(), KERNELS, Path({str(tmp_path)!r}))
print(path.name, Library(path).kinds("add"))
"""
    command = [sys.executable, "-c", program]
    running = [
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    (built,) = tmp_path.iterdir()
    assert said == {f"{built.name} ipiipiip\n"}


def test_library_is_built_anew_when_a_source_or_a_header_changes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        shutil.copytree(KERNELS, folder)
    (folders[1] / "law.cuh").write_text((KERNELS / "law.cuh").read_text() + "// changed\n")
    text = (KERNELS / "relu.cu").read_text()
    cache = tmp_path / "cache"
    first = build("relu.cu", text, folders[0], cache)
    made = first.stat().st_mtime_ns
    assert build("relu.cu", text, folders[0], cache) == first
    assert first.stat().st_mtime_ns == made
    assert build("relu.cu", text, folders[1], cache) != first
    assert build("relu.cu", text + "// changed\n", folders[0], cache) != first
    with pytest.raises(HostDeviceError, match=r"relu\.cu:\d+"):
        build("relu.cu", text.replace(";", ""), folders[0], cache)
    assert len(list(cache.iterdir())) == 3, "nothing is left of a build that failed"
