"""The cuda engine on a GPU: the bits of the other engines, and what only a device can show.

Without a GPU all of this is skipped; the other files of this folder run the same kernels and the
same session on the CPU.  Each test is a process (``alone.py``), and all share one folder of
compiled kernels and verdicts.  Parts that take less than ten minutes each: this file without the
slow tests, those (compute-sanitizer), ``test_gpu_random.py``, and ``test_readable.py -m gpu``.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.cuda import alone
from tests.cuda.test_session import KINDS, follow_the_law
from tests.engines.compare import assert_same_state, name_difference, open_law
from tests.engines.steps import Step, make_step
from tests.tasks import make_tiny_task
from vtrain.attest.keys import generate_key
from vtrain.audit.verify import verify
from vtrain.engines.cpu import CpuSession
from vtrain.engines.cuda.device import Call, Pointer
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.selfcheck import KernelWarning
from vtrain.engines.cuda.session import CudaSession
from vtrain.errors import KernelError, RunError
from vtrain.train.runner import train

if TYPE_CHECKING:
    from vtrain.engines.cuda.gpu import CudaDevice

pytestmark = pytest.mark.gpu
STEPS = 1000


@pytest.fixture
def device(gpu: CudaDevice) -> CudaDevice:
    return gpu


def open_cuda(
    step: Step, device: CudaDevice, *, fast: bool = True, large: bool = True
) -> CudaSession:
    """Products of any size on the tensor cores; a kernel that fails its self-check is an error.

    What passed once in this run of the tests is not tried anew."""
    kernels = Kernels(device, fast=fast, large=large, folder=alone.FOLDER, least_products=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelWarning)
        session = CudaSession(step.graph, step.samples, device=device, kernels=kernels)
    session.load_state(step.state)
    return session


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_thousand_steps_are_those_of_the_cpu(kind: str, device: CudaDevice) -> None:
    task = make_tiny_task(kind)
    cuda = open_cuda(Step(task.graph, task.samples, task.initial_state), device)
    cpu = CpuSession(task.graph, task.samples)
    cpu.load_state(task.initial_state)
    for _ in range(STEPS):
        assert cuda.step() == cpu.step()
    assert_same_state(cuda, cpu)
    assert cuda.saturation() == cpu.saturation()


@pytest.mark.parametrize("kind", ["gpt", "llama", "dropout", "packed gpt"])
@pytest.mark.parametrize("hosted", [False, True])
def test_language_models_train_as_on_the_cpu(
    kind: str, hosted: bool, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of tokens on the device or in the memory of the host, AdamW, clipping."""
    if hosted:
        monkeypatch.setattr("vtrain.engines.cuda.session.RESERVE", 2**62)
    task = make_tiny_task(kind, optimizer="adamw")
    cuda = open_cuda(Step(task.graph, task.samples, task.initial_state), device)
    cpu = CpuSession(task.graph, task.samples)
    cpu.load_state(task.initial_state)
    for _ in range(STEPS // 5):
        assert cuda.step() == cpu.step()
    assert_same_state(cuda, cpu)
    assert cuda.saturation() == cpu.saturation()
    found, expected = cuda.trace(), cpu.trace()
    assert name_difference(task.graph, found, expected) == ""
    assert found == expected
    assert cuda.step() == cpu.step()


@pytest.mark.parametrize(("kind", "loss"), [*KINDS, ("wide", "cross_entropy")])
@pytest.mark.parametrize("fast", [False, True])
def test_steps_and_traces_follow_the_law(
    kind: str, loss: str, fast: bool, device: CudaDevice
) -> None:
    step = make_step(kind, loss)
    cuda, law = open_cuda(step, device, fast=fast), open_law(step)
    for _ in range(6):
        assert cuda.step() == law.step()
    found, expected = cuda.trace(), law.trace()
    assert name_difference(step.graph, found, expected) == ""
    assert found == expected
    nodes = list(range(len(step.graph.nodes)))
    for mine, theirs in zip(cuda.evaluate_all(nodes), law.evaluate_all(nodes), strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
    assert cuda.step() == law.step()
    assert_same_state(cuda, law)
    assert cuda.saturation() == law.saturation()


def test_a_run_changes_its_engine_and_is_verified_by_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cpu, cuda, cpu at checkpoints; then cuda verifies it, and the root is the cpu's own."""
    assert alone.FOLDER is not None
    monkeypatch.setattr(Path, "home", partial(Path, alone.FOLDER.parents[2]))
    task = make_tiny_task("cnn")
    key = generate_key(tmp_path / "key.pem")
    for steps, engine in ((10, "cpu"), (20, "cuda"), (40, "cpu")):
        mixed = train(task, tmp_path / "mixed", key=key, engine=engine, steps=steps)
    single = train(task, tmp_path / "single", key=key, engine="cuda", selfcheck_every=10)
    assert mixed.root == single.root
    assert mixed.log_root == single.log_root
    for engine in ("cuda", "cpu"):
        assert verify(tmp_path / "mixed", all_=True, engine=engine).exit_code == 0


@pytest.mark.parametrize("nbytes", [1, 80, 2**20 + 1, 2**23, 2**23 + 1, 5 * 2**23 - 3])
def test_what_is_written_is_read_back(nbytes: int, device: CudaDevice) -> None:
    """Around the pieces in which copies are made."""
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    address, other = device.allocate(nbytes), device.allocate(nbytes)
    device.write(address, data)
    device.copy(other, address, nbytes)
    device.zero(address, nbytes)
    assert device.read(other, nbytes) == data.tobytes()
    assert device.read(address, nbytes) == bytes(nbytes)
    device.free(address)
    device.free(other)


def test_snapshots_are_read_while_steps_are_done(device: CudaDevice) -> None:
    """By another thread, and each as the state was when it was taken."""
    step = make_step("cnn")
    cuda, law = open_cuda(step, device), open_law(step)
    for _ in range(5):
        assert cuda.step() == law.step()
        expected, snapshot = law.read_state(), cuda.snapshot()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(snapshot)
            for _ in range(10):
                assert cuda.step() == law.step()
        for name, value in found.result().items():
            np.testing.assert_array_equal(value, expected[name], strict=True)
    cuda.close()


@pytest.mark.parametrize("nbytes", [1, 2**23 + 1, 5 * 2**23 - 3])
def test_what_is_read_later_is_read_beside_the_queue(nbytes: int, device: CudaDevice) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    address, other = device.allocate(nbytes), device.allocate(nbytes)
    device.write(other, data)
    device.copy(address, other, nbytes)
    finish = device.read_later(address, nbytes)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(finish)
        for _ in range(3):
            device.zero(other, nbytes)
            assert device.read(other, nbytes) == bytes(nbytes)
    assert found.result() == data.tobytes()
    device.free(address)
    device.free(other)


def test_garbage_that_is_collected_in_a_recording_spoils_nothing(device: CudaDevice) -> None:
    """The memory and the graphs of a session that nobody knows any more, and of the host's."""
    step = make_step("mlp")
    kept, shared = device.allocate(8), device.share(np.zeros((5, 20), np.uint8))
    device.write(kept, bytes(range(8)))
    cycle: list[object] = [open_cuda(step, device)]
    cycle.append(cycle)
    del cycle

    def work() -> None:
        device.zero(kept, 4)
        gc.collect()
        device.free(shared)
        device.zero(kept + 6, 1)

    def fail() -> None:
        device.zero(kept, 8)
        raise KeyError("no")

    replay = device.record(work)
    with pytest.raises(KeyError):
        device.record(fail)
    replay()
    assert device.read(kept, 8) == bytes([0, 0, 0, 0, 4, 5, 0, 7])
    device.free(kept)


def test_samples_in_the_memory_of_the_host_give_the_same_bits(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtrain.engines.cuda.session.RESERVE", 2**62)
    for kind in ("mlp", "cnn"):
        step = make_step(kind)
        follow_the_law(open_cuda(step, device), step)


def test_too_much_memory_is_refused_with_need_and_supply(device: CudaDevice) -> None:
    free, total = device.memory()
    assert 0 < free <= total
    with pytest.raises(RunError, match=r"needs \d+\.\d+ GB of device memory"):
        device.allocate(2 * total)


def test_the_device_says_what_it_is(device: CudaDevice) -> None:
    info = device.info
    assert info.architecture.startswith(("sm_", "compute_"))
    assert len(info.uuid) == 32
    assert info.name
    assert info.driver
    assert info.processors > 0


def test_a_launch_that_cannot_be_is_told(device: CudaDevice) -> None:
    call = Call("relu.cu", "relu", (1, 1, 1), (4096, 1, 1), (0, Pointer(0), 2, Pointer(0), 2))
    with pytest.raises(KernelError) as caught:
        device.launch(call)
    assert caught.value.where == "relu.cu: relu"
    with pytest.raises(KernelError):
        device.launch(Call("relu.cu", "none", (1, 1, 1), (1, 1, 1), ()))


SANITIZED = """
import sys
from pathlib import Path
from tests.cuda import alone
alone.FOLDER = Path(sys.argv[1])
from tests.cuda.test_gpu import open_cuda
from tests.engines.compare import open_law
from tests.engines.steps import make_step
from vtrain.engines.cuda import session
from vtrain.engines.cuda.gpu import CudaDevice

device = CudaDevice(folder=alone.FOLDER)
# With the second, samples stay in the memory of the host.
for kind, session.RESERVE in (("mlp", session.RESERVE), ("mlp", 2**62), ("cnn", 2**62)):
    step = make_step(kind, batch=3)
    # Large cases would take the sanitizer hours.
    cuda, law = open_cuda(step, device, large=False), open_law(step)
    for _ in range(4):
        assert cuda.step() == law.step()
    assert cuda.trace() == law.trace()
    cuda.snapshot()()
    cuda.close()
device.close()
"""


@pytest.mark.slow
@pytest.mark.gpu(seconds=190)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
def test_the_sanitizer_finds_nothing(tool: str, repository: Path) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on this machine")
    watched = [sys.executable, "-c", SANITIZED, str(alone.FOLDER)]
    done = subprocess.run(
        [sanitizer, "--tool", tool, "--error-exitcode", "9", *watched],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
