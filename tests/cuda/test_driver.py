"""``CudaDevice`` on a driver that is as late as it may be: its order, its waits, its arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the cuda extra is not installed")

from cuda import bindings

from tests.cuda import test_calibration as calibration
from tests.cuda.fake_driver import FakeCompiler, FakeDriver
from tests.cuda.host_device import HostDevice
from tests.engines.compare import assert_same_state, open_law
from tests.engines.steps import make_step
from vtrain.engines.cuda import dense, gpu
from vtrain.engines.cuda.device import Call, Pointer
from vtrain.engines.cuda.gpu import PIECE, CudaDevice
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.session import Accumulator, CudaSession
from vtrain.errors import KernelError, RunError
from vtrain.graph.calibration import LawEvaluator

pytestmark = pytest.mark.filterwarnings("error::vtrain.engines.cuda.selfcheck.KernelWarning")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    sources: dict[str, str] = {}
    fake = FakeDriver(HostDevice(memory_bytes=2**28), sources)
    monkeypatch.setattr(bindings, "driver", fake, raising=False)
    monkeypatch.setattr(gpu, "Compiler", partial(FakeCompiler, sources))
    return fake


@pytest.fixture
def device(driver: FakeDriver, tmp_path: Path) -> Iterator[CudaDevice]:
    found = CudaDevice(folder=tmp_path)
    yield found
    found.close()
    assert driver.graphs == 0
    assert driver.device.memory().free == driver.device.memory().total


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_steps_and_traces_follow_the_law(kind: str, device: CudaDevice) -> None:
    step = make_step(kind)
    session = CudaSession(step.graph, step.samples, device=device)
    law = open_law(step)
    session.load_state(step.state)
    for _ in range(7):
        assert session.step() == law.step()
    assert session.trace() == law.trace()
    assert_same_state(session, law)
    assert session.step() == law.step()
    assert session.saturation() == law.saturation()
    for node in (3, len(step.graph.nodes) - 1):
        np.testing.assert_array_equal(session.evaluate(node), law.evaluate(node))
    session.close()


def test_calibration_follows_the_law(device: CudaDevice) -> None:
    found = calibration.run(device, Kernels(device, fast=False), steps=2)
    assert found == calibration.calibrate_by(LawEvaluator, steps=2)


def test_kernels_that_need_much_shared_memory_are_allowed_it(
    device: CudaDevice, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "SMALL", (5, 9, 6))
    step = make_step("mlp", batch=3)
    kernels = Kernels(device, least_products=0)
    session = CudaSession(step.graph, step.samples, device=device, kernels=kernels)
    session.load_state(step.state)
    law = open_law(step)
    for _ in range(3):
        assert session.step() == law.step()
    assert kernels.disabled == frozenset()
    assert max(driver.largest_shared.values()) > 48 * 1024
    session.close()


def test_gradients_are_there_when_they_are_to_be_reduced(device: CudaDevice) -> None:
    """For whoever reads them without asking this device, such as a library on its own stream."""
    step, seen = make_step("mlp"), list[bool]()

    def look(found: Mapping[str, Accumulator]) -> None:
        for one in found.values():
            at_once = ctypes.string_at(one.address, one.count * 8)
            seen.append(at_once == device.read(one.address, one.count * 8))

    session = CudaSession(
        step.graph, step.samples, device=device, kernels=Kernels(device, fast=False), reduce=look
    )
    session.load_state(step.state)
    session.step()
    assert len(seen) > 1
    assert all(seen)
    session.close()


@pytest.mark.parametrize("nbytes", [1, 80, PIECE, PIECE + 1, 3 * PIECE - 3, 4 * PIECE])
def test_what_is_written_is_read_back(nbytes: int, device: CudaDevice) -> None:
    rng = np.random.default_rng(nbytes)
    data, more = (rng.integers(0, 256, nbytes, dtype=np.uint8) for _ in range(2))
    address, other = device.allocate(nbytes), device.allocate(nbytes)
    device.write(address, data)
    device.copy(other, address, nbytes)
    device.write(address, more.tobytes())
    assert device.read(other, nbytes) == data.tobytes()
    assert device.read(address, nbytes) == more.tobytes()
    device.zero(address, nbytes)
    assert device.read(address, nbytes) == bytes(nbytes)
    device.free(address)
    device.free(other)


def test_what_is_recorded_does_not_run_until_it_is_replayed(device: CudaDevice) -> None:
    address = device.allocate(1000)
    device.write(address, bytes([7]) * 1000)
    replay = device.record(lambda: device.zero(address, 500))
    assert device.read(address, 1000) == bytes([7]) * 1000
    replay()
    assert device.read(address, 1000) == bytes(500) + bytes([7]) * 500
    device.write(address, bytes([8]) * 1000)
    replay()
    assert device.read(address, 501) == bytes(500) + b"\x08"
    assert device.time(replay) == 1.5e-3
    device.free(address)


def test_a_recording_that_is_forgotten_is_given_back(
    device: CudaDevice, driver: FakeDriver
) -> None:
    replay = device.record(lambda: None)
    assert driver.graphs == 1
    del replay
    assert driver.graphs == 0


def test_memory_of_a_device_that_failed_is_forgotten_quietly(
    device: CudaDevice, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = device.allocate(10)
    with monkeypatch.context() as broken:
        failed = driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        broken.setattr(FakeDriver, "cuStreamSynchronize", lambda self, stream: (failed,))
        with pytest.raises(KernelError, match=r"said so \(CUDA_ERROR_ILLEGAL_ADDRESS\)") as caught:
            device.synchronize()
        assert caught.value.where == "device Fake"
        device.free(address)
    driver.device.free(address)


def test_a_recording_that_fails_leaves_the_stream_usable(device: CudaDevice) -> None:
    def fail() -> None:
        raise KeyError("no")

    with pytest.raises(KeyError):
        device.record(fail)
    address = device.allocate(4)
    device.write(address, b"abcd")
    assert device.read(address, 4) == b"abcd"
    device.free(address)


def test_shared_memory_of_the_host_is_read_by_kernels(device: CudaDevice) -> None:
    values = np.arange(-500, 500, dtype=np.int16)
    address = device.share(values.view(np.uint8))
    out = device.allocate(values.nbytes)
    slots = (1000, Pointer(address), 2, Pointer(out), 2)
    device.launch(Call("relu.cu", "relu", (4, 1, 1), (256, 1, 1), slots))
    found = np.frombuffer(device.read(out, values.nbytes), np.int16)
    np.testing.assert_array_equal(found, np.maximum(values, 0))
    device.free(address)
    device.free(out)


def test_too_much_memory_is_refused_with_need_and_supply(device: CudaDevice) -> None:
    with pytest.raises(RunError, match=r"needs 1\.000 GB of device memory, 0\.268 of 0\.268 GB"):
        device.allocate(10**9)


def test_a_launch_that_fails_names_its_kernel(device: CudaDevice) -> None:
    call = Call("relu.cu", "relu", (1, 1, 1), (4096, 1, 1), (0, Pointer(0), 2, Pointer(0), 2))
    with pytest.raises(KernelError, match="last checkpoint") as caught:
        device.launch(call)
    assert caught.value.where == "relu.cu: relu"
    with pytest.raises(KernelError) as caught:
        device.launch(Call("relu.cu", "none", (1, 1, 1), (1, 1, 1), ()))
    assert caught.value.where == "relu.cu: none"


def test_a_gpu_that_is_not_there_is_told(driver: FakeDriver) -> None:
    with pytest.raises(RunError, match="there are 1 GPUs"):
        CudaDevice(3)


def test_the_device_says_what_it_is(device: CudaDevice) -> None:
    info = device.info
    assert (info.name, info.architecture, info.processors) == ("Fake", "sm_80", 4)
    assert info.uuid == bytes(range(16)).hex()
    assert info.driver == "CUDA 13.2"
    assert info.compiler == "NVRTC 13.2 -std=c++17"


def test_a_changed_source_is_loaded_anew(device: CudaDevice) -> None:
    out = device.allocate(8)
    for number in (3, 4):
        kernel = f'extern "C" __global__ void put(i64* out) {{ out[0] = {number}; }}'
        text = f'#include "law.cuh"\n{kernel}\n'
        device.add_source("generated_put.cu", text)
        device.launch(Call("generated_put.cu", "put", (1, 1, 1), (1, 1, 1), (Pointer(out),)))
        assert device.read(out, 8) == number.to_bytes(8, "little")
    device.free(out)
