"""``CudaDevice`` on a driver that is as late as it may be: its order, its waits, its arguments."""

from __future__ import annotations

import builtins
import ctypes
import gc
import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the cuda extra is not installed")

from cuda import bindings

from tests.cuda import test_calibration as calibration
from tests.cuda.fake_driver import OK, FakeCompiler, FakeDriver, Stream
from tests.cuda.host_device import HostDevice
from tests.cuda.test_selfcheck import make_small
from tests.cuda.test_session import compare_random, follow_the_law
from tests.engines.compare import assert_same_state, open_law
from tests.engines.steps import Step, make_step
from tests.tasks import make_tiny_task
from vtrain.attest.keys import generate_key
from vtrain.engines.base import State
from vtrain.engines.cuda import gpu
from vtrain.engines.cuda import session as session_module
from vtrain.engines.cuda.compile import OPTIONS
from vtrain.engines.cuda.device import Call, DeviceInfo, Memory, Pointer
from vtrain.engines.cuda.gpu import PIECE, CudaDevice
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.program import Program
from vtrain.engines.cuda.selfcheck import Clock, KernelWarning
from vtrain.engines.cuda.session import Accumulator, CudaSession, SkippedCheckWarning
from vtrain.errors import KernelError, RunError
from vtrain.graph.calibration import NodeEvaluator
from vtrain.train.runner import train

pytestmark = pytest.mark.filterwarnings("error::vtrain.engines.cuda.selfcheck.KernelWarning")


def finish_by_the_law(session: CudaSession, step: Step) -> None:
    """A step with the law's record, and the end of the session."""
    session.load_state(step.state)
    law = open_law(step)
    assert session.step() == law.step()
    session.close()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    sources: dict[str, str] = {}
    fake = FakeDriver(HostDevice(memory_bytes=2**28), sources)
    monkeypatch.setattr(bindings, "driver", fake, raising=False)
    monkeypatch.setattr(gpu, "Compiler", partial(FakeCompiler, sources))
    monkeypatch.setattr(gpu, "DeviceInfo", partial(DeviceInfo, emulated=True))
    return fake


@pytest.fixture
def device(driver: FakeDriver, tmp_path: Path) -> Iterator[CudaDevice]:
    found = CudaDevice(folder=tmp_path)
    found._info = replace(found.info, emulated=True)
    yield found
    found.close()
    assert driver.graphs == driver.captured == 0
    assert driver.device.memory().free == driver.device.memory().total


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the verdicts of the self-check are kept that passed on this driver."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_steps_and_traces_follow_the_law(kind: str, device: CudaDevice, kept: Path) -> None:
    step, kernels = make_step(kind), Kernels(device, folder=kept)
    session = CudaSession(step.graph, step.samples, device=device, kernels=kernels)
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
    assert found == calibration.calibrate_by(NodeEvaluator, steps=2)


def test_kernels_that_need_much_shared_memory_are_allowed_it(
    device: CudaDevice, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
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


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("reduces", [False, True])
def test_batches_are_prefetched_however_late(
    kind: str, reduces: bool, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "RESERVE", 2**62)
    step = make_step(kind)
    session = CudaSession(
        step.graph,
        step.samples,
        device=device,
        kernels=Kernels(device, fast=False),
        reduce=(lambda found: None) if reduces else None,
    )
    follow_the_law(session, step)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_prefetch_however_late(
    seed: int, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "RESERVE", 2**62)
    compare_random(seed, device, fast=False)


def open_readable(device: CudaDevice, step: Step, check_every: int = 0) -> CudaSession:
    kernels = Kernels(device, fast=False)
    session = CudaSession(
        step.graph, step.samples, device=device, kernels=kernels, check_every=check_every
    )
    session.load_state(step.state)
    return session


def test_a_snapshot_is_read_while_steps_are_done(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, in pieces of its own, beside the records that this one reads."""
    monkeypatch.setattr(session_module, "RESERVE", 2**20)
    monkeypatch.setattr(gpu, "PIECE", 1000)
    step = make_step("mlp")
    session, law = open_readable(device, step), open_law(step)
    for _ in range(4):
        assert session.step() == law.step()
        expected, found = law.read_state(), list[State]()
        snapshot = session.snapshot()
        thread = threading.Thread(target=lambda take=snapshot, to=found: to.append(take()))
        thread.start()
        for _ in range(3):
            assert session.step() == law.step()
        thread.join()
        [state] = found
        assert state.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(state[name], value, strict=True)
    session.close()


def test_a_run_writes_the_files_of_another_engine(
    device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "RESERVE", 2**20)
    monkeypatch.setattr(session_module, "_open_device", lambda: device)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    task, key = (
        make_tiny_task(steps=12, commit_every=2, checkpoint_every=4),
        generate_key(tmp_path / "key.pem"),
    )
    for engine in ("cuda", "cpu"):
        train(task, tmp_path / engine, key=key, engine=engine)
    for file in ("log.bin", *(f"checkpoints/{step:012d}.safetensors" for step in (4, 8, 12))):
        assert (tmp_path / "cuda" / file).read_bytes() == (tmp_path / "cpu" / file).read_bytes()


@pytest.mark.parametrize(("share", "fits"), [(0.5, True), (1.5, False)])
def test_a_self_check_that_has_no_room_beside_the_step_does_not_end_the_run(
    share: float, fits: bool, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has that of the step, or is left out with a warning that says what it lacks."""
    monkeypatch.setattr(session_module, "RESERVE", 2**20)
    step, done = make_step("mlp", margin=0), list[int]()
    loud = {name: x * 6 if name.startswith("param/") else x for name, x in step.state.items()}
    step = replace(step, state=loud)
    session, law = open_readable(device, step, check_every=2), open_law(step)
    need = int(session.memory_bytes * share)

    def check_again(kernels: Kernels, program: Program, **options: object) -> bool:
        device.free(device.allocate(need))
        done.append(1)
        return False

    monkeypatch.setattr(Kernels, "check_again", check_again)
    for _ in range(2):
        assert session.step() == law.step()
    snapshot, expected = session.snapshot(), law.read_state()
    other = device.allocate(device.memory().free - 1000)
    if fits:
        assert session.step() == law.step()
    else:
        message = r"self-check after step 2 was left out: .* needs 0\.\d+ GB of device memory, 0\."
        with pytest.warns(SkippedCheckWarning, match=message):
            assert session.step() == law.step()
    assert len(done) == int(fits)
    # Its place was given away, and it was finished before that.
    for name, value in snapshot().items():
        np.testing.assert_array_equal(value, expected[name])
    device.free(other)
    for _ in range(2):
        assert session.step() == law.step()
    assert len(done) == 1 + int(fits)
    assert session.saturation() == law.saturation() != {}
    assert_same_state(session, law)
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


@pytest.mark.parametrize("recorded", [False, True])
def test_what_is_forked_is_done_beside_the_queue(recorded: bool, device: CudaDevice) -> None:
    """After what was queued before, and not before somebody waits for it."""
    source, target, other, last = (device.allocate(4) for _ in range(4))
    device.write(target, bytes(4))
    device.write(other, b"othr")
    seen: list[bytes] = []

    def work() -> None:
        device.copy(source, other, 4)
        join = device.fork(partial(device.copy, target, source, 4))
        device.zero(other, 4)
        if not recorded:
            assert device.read(other, 4) == bytes(4)
            seen.append(ctypes.string_at(target, 4))
        join()
        device.copy(last, target, 4)

    for at in (b"1st.", b"2nd."):
        device.write(other, at)
        if recorded:
            device.record(work)()
        else:
            work()
        assert device.read(last, 4) == at
    assert seen == ([] if recorded else [bytes(4), b"1st."])
    for address in (source, target, other, last):
        device.free(address)


def test_who_waits_for_all_waits_for_what_is_forked(device: CudaDevice) -> None:
    """And that waits for what was queued before, whoever is asked first."""
    source, target = device.allocate(4), device.allocate(4)
    device.write(source, b"abcd")
    join = device.fork(partial(device.copy, target, source, 4))
    device.synchronize()
    assert ctypes.string_at(target, 4) == b"abcd"
    join()
    device.zero(source, 4)
    join = device.fork(partial(device.copy, target, source, 4))
    device.free(source)
    assert ctypes.string_at(target, 4) == bytes(4)
    join()
    device.free(target)


def test_a_fork_that_is_not_joined_cannot_be_recorded(
    device: CudaDevice, driver: FakeDriver
) -> None:
    address = device.allocate(4)
    device.write(address, b"abcd")

    def leave() -> None:
        device.fork(partial(device.zero, address, 4))

    def fail() -> None:
        device.zero(address, 4)
        raise KeyError("no")

    def fork_and_fail() -> None:
        device.fork(fail)

    def fork_and_join() -> None:
        device.fork(partial(device.zero, address, 2))()

    with pytest.raises(KernelError, match="CUDA_ERROR_STREAM_CAPTURE_UNJOINED"):
        device.record(leave)
    with pytest.raises(KeyError):
        device.record(fork_and_fail)
    assert driver.captured == 0
    device.record(fork_and_join)()
    assert device.read(address, 4) == b"\0\0cd"
    device.free(address)


def test_a_recording_that_is_forgotten_is_given_back(
    device: CudaDevice, driver: FakeDriver
) -> None:
    replay = device.record(lambda: None)
    assert driver.graphs == 1
    del replay
    assert driver.graphs == 0


def test_what_garbage_collection_frees_in_a_recording_waits_for_its_end(
    device: CudaDevice, driver: FakeDriver
) -> None:
    """A collection may come between any two launches, and free another session's memory."""
    kept = device.allocate(8)
    device.write(kept, bytes(range(8)))
    others = device.allocate(100), device.share(np.zeros((5, 20), np.uint8))
    forgotten = [device.record(lambda: None)]
    free = driver.device.memory().free

    def work() -> None:
        device.zero(kept, 4)
        for address in others:
            device.free(address)
        forgotten.clear()
        assert driver.graphs == 1
        assert driver.device.memory().free == free, "not yet"
        device.zero(kept + 6, 1)

    replay = device.record(work)
    assert driver.graphs == 1
    assert driver.device.memory().free == free + 100
    replay()
    assert device.read(kept, 8) == bytes([0, 0, 0, 0, 4, 5, 0, 7])
    device.free(kept)


def test_a_session_that_is_collected_in_a_recording_gives_its_memory_back_after_it(
    device: CudaDevice, driver: FakeDriver
) -> None:
    step, kept = make_step("mlp"), device.allocate(4)
    free = driver.device.memory().free
    kernels = Kernels(device, fast=False)
    cycle: list[object] = [CudaSession(step.graph, step.samples, device=device, kernels=kernels)]
    cycle.append(cycle)
    assert driver.graphs == 2
    del cycle

    def work() -> None:
        gc.collect()
        device.zero(kept, 4)

    replay = device.record(work)
    assert driver.graphs == 1
    assert driver.device.memory().free == free
    replay()
    assert device.read(kept, 4) == bytes(4)
    device.free(kept)


def test_another_thread_frees_when_the_recording_is_done(device: CudaDevice) -> None:
    """Garbage is collected in whatever thread allocates."""
    kept, other = device.allocate(4), device.allocate(4)
    threads = [threading.Thread(target=device.free, args=(other,))]

    def work() -> None:
        threads[0].start()
        device.zero(kept, 4)

    replay = device.record(work)
    threads[0].join()
    replay()
    assert device.read(kept, 4) == bytes(4)
    device.free(kept)


def test_a_graph_that_cannot_be_made_is_given_back(
    device: CudaDevice, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        failed = driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
        broken.setattr(FakeDriver, "cuGraphInstantiate", lambda self, graph, flags: (failed, None))
        with pytest.raises(KernelError, match="CUDA_ERROR_NOT_SUPPORTED"):
            device.record(lambda: None)
    assert driver.captured == 0


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


def test_a_recording_that_fails_leaves_the_stream_usable(
    device: CudaDevice, driver: FakeDriver
) -> None:
    other = device.allocate(4)

    def fail() -> None:
        device.zero(other, 4)
        device.free(other)
        raise KeyError("no")

    with pytest.raises(KeyError):
        device.record(fail)
    assert driver.captured == 0
    assert driver.device.memory().free == driver.device.memory().total
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


def test_too_much_memory_of_the_host_is_refused_with_need_and_supply(
    device: CudaDevice, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples that fit neither the device nor what of the host's memory may be pinned."""
    monkeypatch.setattr(gpu, "read_host_memory", lambda: Memory(3 * 10**9, 8 * 10**9))
    with pytest.raises(RunError) as caught:
        device.share(np.zeros((3, 10**8), np.uint8))
    message = "needs 0.300 GB of pinned host memory, 3.000 of 8.000 GB are available"
    assert (caught.value.message, caught.value.where) == (message, "device Fake")
    monkeypatch.undo()
    free, total = gpu.read_host_memory()
    assert 2**20 < free <= total < 2**50


def test_a_device_that_cannot_be_taken_speaks_of_no_checkpoint(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = driver.CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE
    monkeypatch.setattr(FakeDriver, "cuStreamCreate", lambda self, flags: (failed, None))
    with pytest.raises(KernelError) as caught:
        CudaDevice(folder=tmp_path)
    assert caught.value.message == "said so (CUDA_ERROR_DEVICE_UNAVAILABLE); nothing was begun"


@pytest.mark.parametrize("nbytes", [1, PIECE, 3 * PIECE - 3])
def test_what_is_read_later_is_read_beside_the_queue(nbytes: int, device: CudaDevice) -> None:
    """In another thread, while this one writes and reads elsewhere; as it was when it was asked."""
    rng = np.random.default_rng(nbytes)
    data, more = (rng.integers(0, 256, nbytes, dtype=np.uint8) for _ in range(2))
    address, other = device.allocate(nbytes), device.allocate(nbytes)
    device.write(other, data)
    device.copy(address, other, nbytes)
    finish = device.read_later(address, nbytes)
    found = list[bytearray]()
    thread = threading.Thread(target=lambda: found.append(finish()))
    thread.start()
    for _ in range(3):
        device.write(other, more)
        assert device.read(other, nbytes) == more.tobytes()
    thread.join()
    assert found == [bytearray(data.tobytes())]
    device.free(address)
    device.free(other)


def test_a_launch_that_fails_names_its_kernel(device: CudaDevice) -> None:
    call = Call("relu.cu", "relu", (1, 1, 1), (4096, 1, 1), (0, Pointer(0), 2, Pointer(0), 2))
    with pytest.raises(KernelError, match="last checkpoint") as caught:
        device.launch(call)
    assert caught.value.where == "relu.cu: relu"
    with pytest.raises(KernelError) as caught:
        device.launch(Call("relu.cu", "none", (1, 1, 1), (1, 1, 1), ()))
    assert caught.value.where == "relu.cu: none"


def test_a_gpu_that_is_not_there_is_told(driver: FakeDriver) -> None:
    with pytest.raises(RunError, match="the driver has 1 of them"):
        CudaDevice(3)


def test_the_device_says_what_it_is(device: CudaDevice) -> None:
    info = device.info
    assert (info.name, info.architecture, info.processors) == ("Fake", "sm_80", 4)
    assert info.uuid == bytes(range(16)).hex()
    assert info.driver == "CUDA 13.2"
    assert info.compiler == " ".join(("NVRTC 13.2", *OPTIONS))


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_bindings_without_nvml_open_the_device_all_the_same(
    error: type[Exception], driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before 13.2 have none; the driver is then named by the CUDA that it knows."""
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "cuda.bindings" and "nvml" in (args[2] or ()):
            raise error("cannot import name 'nvml'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    device = CudaDevice(folder=tmp_path)
    assert device.info.driver == "CUDA 13.2"
    device.close()


@pytest.mark.parametrize(
    ("architecture", "error", "what"),
    [
        ("compute_120", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "PTX for compute_120"),
        ("sm_120", "CUDA_ERROR_NO_BINARY_FOR_GPU", "machine code for sm_120"),
    ],
)
def test_kernels_that_the_driver_is_too_old_for_name_both_versions(
    architecture: str,
    error: str,
    what: str,
    driver: FakeDriver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = getattr(driver.CUresult, error)
    monkeypatch.setattr(gpu, "choose_architecture", lambda *capability: architecture)
    monkeypatch.setattr(FakeDriver, "cuModuleLoadData", lambda self, image: (failed, None))
    monkeypatch.setattr(FakeDriver, "cuDriverGetVersion", lambda self: (OK, 13000))
    device = CudaDevice(folder=tmp_path)
    with pytest.raises(KernelError) as caught:
        device.prepare([("relu.cu", "relu")])
    assert caught.value.where == "relu.cu"
    for said in ("knows CUDA 13.0", what, "NVRTC 13.2", "'nvidia-cuda-nvrtc==13.0.*'", error):
        assert said in caught.value.message
    device.close()


def test_a_changed_source_is_loaded_anew(device: CudaDevice) -> None:
    out = device.allocate(8)
    for number in (3, 4):
        kernel = f'extern "C" __global__ void put(i64* out) {{ out[0] = {number}; }}'
        text = f'#include "law.cuh"\n{kernel}\n'
        device.add_source("generated_put.cu", text)
        device.launch(Call("generated_put.cu", "put", (1, 1, 1), (1, 1, 1), (Pointer(out),)))
        assert device.read(out, 8) == number.to_bytes(8, "little")
    device.free(out)


@pytest.mark.filterwarnings("default::vtrain.engines.cuda.selfcheck.KernelWarning")
def test_kernels_that_did_not_compile_do_not_serve(
    device: CudaDevice, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their file has the readable kernel alone; the warning says what the compiler said."""
    step, look_up = make_step("mlp"), FakeDriver.cuModuleGetFunction

    def look(self: FakeDriver, module: str, name: bytes) -> Any:
        if name == b"sum_parts":
            return driver.CUresult.CUDA_ERROR_NOT_FOUND, None
        return look_up(self, module, name)

    monkeypatch.setattr(FakeDriver, "cuModuleGetFunction", look)
    failure = KernelError("does not compile:\nsum.cu(20): error: no", where="sum.cu:20")
    device._compiler.failures["sum.cu"] = failure
    said = r"kernel sum_parts does not run on Fake .*\(sum.cu:20: does not compile: sum.cu\(20\)"
    with pytest.warns(KernelWarning, match=said):
        session = CudaSession(step.graph, step.samples, device=device)
    finish_by_the_law(session, step)


def test_a_device_that_hangs_is_waited_for_no_longer(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, seconds = CudaDevice(folder=tmp_path), itertools.count(0, 20)
    step = make_step("mlp")
    busy = (driver.CUresult.CUDA_ERROR_NOT_READY,)
    queued = driver.cuStreamQuery
    launched: list[str] = []

    def query(self: FakeDriver, stream: Stream) -> Any:
        return busy if "sum_parts" in launched else queued(stream)

    def launch(call: Call) -> None:
        launched.append(call.kernel)
        do_launch(call)

    def wait(self: FakeDriver, stream: Stream) -> Any:
        assert "sum_parts" not in launched, "waits for ever"
        return OK, *synchronize(stream)[1:]

    do_launch, synchronize = device.launch, driver.cuStreamSynchronize
    monkeypatch.setattr(FakeDriver, "cuStreamQuery", query)
    monkeypatch.setattr(FakeDriver, "cuStreamSynchronize", wait)
    monkeypatch.setattr(device, "launch", launch)
    clock = Clock(lambda: float(next(seconds)), lambda seconds: None)
    chosen = Kernels(device, folder=tmp_path, clock=clock)
    with pytest.raises(KernelError, match=r"hangs on Fake .*start again"):
        CudaSession(step.graph, step.samples, device=device, kernels=chosen)
    with pytest.raises(KernelError, match="unusable for this process"):
        device.read(0, 1)
    device.free(0)
    device.close()


@pytest.mark.filterwarnings("default::vtrain.engines.cuda.selfcheck.KernelWarning")
def test_chains_that_do_not_compile_are_done_node_by_node(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiles = FakeCompiler.compile

    def compile_some(self: FakeCompiler, file: str, text: str | None = None) -> bytes:
        if text is not None:
            raise KernelError("does not compile:\nno such type", where=f"{file}:3")
        return compiles(self, file, text)

    monkeypatch.setattr(FakeCompiler, "compile", compile_some)
    step = make_step("mlp")
    with pytest.warns(KernelWarning, match="kernel chain_.* does not run on .*no such type"):
        session = CudaSession(step.graph, step.samples, device=device)
    used = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    assert not any(name.startswith("chain_") for name in used)
    finish_by_the_law(session, step)


def test_a_context_that_is_lost_is_left_alone(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call says the error again; the verdict is for the next process."""
    device, launched = CudaDevice(folder=tmp_path), list[str]()
    failed = driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    do_launch = device.launch

    def launch(call: Call) -> None:
        do_launch(call)
        launched.append(call.kernel)

    def spoil(name: str) -> None:
        works = getattr(FakeDriver, name)

        def call(self: FakeDriver, *arguments: Any) -> Any:
            lost = "sum_parts" in launched
            return (
                (failed, None)[: len(works(self, *arguments))] if lost else works(self, *arguments)
            )

        monkeypatch.setattr(FakeDriver, name, call)

    for name in ("cuStreamQuery", "cuStreamSynchronize", "cuCtxSetCurrent", "cuMemFree"):
        spoil(name)
    monkeypatch.setattr(device, "launch", launch)
    step = make_step("mlp")
    with pytest.raises(KernelError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        CudaSession(
            step.graph, step.samples, device=device, kernels=Kernels(device, folder=tmp_path)
        )
    assert caught.value.where == "kernel sum_parts"
    assert "start again: that is remembered" in caught.value.message
    device.close()
    [verdicts] = tmp_path.glob("selfcheck-*.json")
    assert "sum_parts" in json.loads(verdicts.read_text())["fatal"]
