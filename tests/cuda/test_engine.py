"""``--engine cuda`` from outside: what it says where something is missing, and whole runs."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.cuda.host_device import HostDevice
from tests.cuda.test_selfcheck import BrokenDevice
from tests.tasks import make_tiny_task
from vtrain import cli
from vtrain.attest.keys import generate_key
from vtrain.audit.verify import verify
from vtrain.engines import registry
from vtrain.engines.cuda import gpu, session
from vtrain.engines.cuda.selfcheck import KernelWarning
from vtrain.engines.registry import open_session, resolve_engine
from vtrain.errors import KernelError, MissingExtraError, RunError
from vtrain.train.runner import train


@pytest.fixture
def key(tmp_path: Path) -> Ed25519PrivateKey:
    return generate_key(tmp_path / "key.pem")


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No verdicts of other runs, and none left behind."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    registry._has_gpu.cache_clear()
    yield
    registry._has_gpu.cache_clear()


def use_device(monkeypatch: pytest.MonkeyPatch, device: HostDevice) -> None:
    """Let the engine have ``device`` for its GPU."""
    monkeypatch.setattr(session, "_open_device", lambda: device)


def test_auto_takes_the_best_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, best in ((False, "cpu"), (True, "cuda")):
        registry._has_gpu.cache_clear()
        monkeypatch.setattr(gpu, "is_available", lambda found=available: found)
        assert resolve_engine("auto") == best
    with pytest.raises(RunError, match="is none of auto, cpu, cuda, numpy"):
        resolve_engine("gpu")


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_the_extra_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_tiny_task()
    without(monkeypatch, "cuda")
    session._open_device.cache_clear()
    with pytest.raises(MissingExtraError, match=r"-m pip install 'vtrain\[cuda\]'") as caught:
        open_session("cuda", task.graph, task.samples)
    assert caught.value.where == "engine cuda"
    assert not gpu.is_available()


class NoDevice:
    """The driver of a machine whose GPU is gone."""

    class CUresult:
        CUDA_SUCCESS, CUDA_ERROR_NO_DEVICE = 0, 100

    def cuInit(self, flags: int) -> tuple[int]:  # noqa: N802
        return (100,)


def test_without_driver_or_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = pytest.importorskip("cuda.bindings", reason="the cuda extra is not installed")

    class NoDriver(NoDevice):
        def cuInit(self, flags: int) -> tuple[int]:  # noqa: N802
            raise RuntimeError("libcuda.so.1 is not found")

    monkeypatch.setattr(bindings, "driver", NoDriver(), raising=False)
    with pytest.raises(RunError, match="no NVIDIA driver on this machine"):
        gpu.load_driver()
    monkeypatch.setattr(bindings, "driver", NoDevice(), raising=False)
    with pytest.raises(RunError, match="finds no NVIDIA GPU: `nvidia-smi` must list one"):
        gpu.load_driver()


class SomeDevice(NoDevice):
    """A driver of some version, with one GPU of some compute capability."""

    class CUdevice_attribute:  # noqa: N801
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 0
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 1

    def __init__(self, version: int, capability: tuple[int, int]) -> None:
        self.version, self.capability = version, capability

    def cuInit(self, flags: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return 0, self.version

    def cuDeviceGetCount(self) -> tuple[int, int]:  # noqa: N802
        return 0, 1

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:  # noqa: N802
        return 0, ordinal

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:  # noqa: N802
        return 0, self.capability[attribute]


@pytest.mark.parametrize(
    ("version", "capability", "serves"),
    [
        (13020, (9, 0), True),
        (13000, (7, 5), True),
        (13020, (99, 0), True),  # newer than the compiler
        (12080, (9, 0), False),
        (13020, (7, 0), False),
    ],
)
def test_a_gpu_that_cannot_serve_is_not_taken(
    version: int, capability: tuple[int, int], serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings = pytest.importorskip("cuda.bindings", reason="the cuda extra is not installed")
    monkeypatch.setattr(bindings, "driver", SomeDevice(version, capability), raising=False)
    monkeypatch.setattr(gpu, "ctypes", SimpleNamespace(CDLL=lambda name: None))
    assert gpu.is_available() == serves
    if version < gpu.OLDEST:
        with pytest.raises(RunError, match=r"is of CUDA 12\.8: kernels need one of CUDA 13 \(580"):
            gpu.load_driver()


@pytest.mark.parametrize("found", [MissingExtraError, RunError])
def test_an_audit_that_lacks_its_engine_says_so(
    found: type[Exception],
    tmp_path: Path,
    key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No verdict: neither the run nor who asked is at fault."""
    train(make_tiny_task(steps=10), tmp_path / "run", key=key, engine="cpu")

    def fail() -> HostDevice:
        raise found("something is missing: do this")

    monkeypatch.setattr(session, "_open_device", fail)
    assert cli.run(["verify", str(tmp_path / "run"), "--engine", "cuda"]) == 3
    assert "INCONCLUSIVE" in (shown := capfd.readouterr().out)
    assert "something is missing: do this" in shown


def test_an_audit_whose_device_fails_is_inconclusive(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make_tiny_task(steps=10), tmp_path / "run", key=key, engine="cpu")
    use_device(monkeypatch, HostDevice())

    def fail(self: session.CudaSession) -> Any:
        raise KernelError("an illegal memory access", where="device CPU")

    monkeypatch.setattr(session.CudaSession, "step", fail)
    assert cli.run(["verify", str(tmp_path / "run"), "--engine", "cuda"]) == 3


def test_a_run_moves_between_engines_and_ends_in_the_same_root(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_tiny_task("cnn", batch=4)
    use_device(monkeypatch, device := HostDevice())
    for steps, engine in ((10, "cuda"), (20, "cpu"), (40, "cuda")):
        mixed = train(task, tmp_path / "mixed", key=key, engine=engine, steps=steps)
    assert mixed.engine == "cuda"
    alone = train(task, tmp_path / "alone", key=key, engine="cpu")
    assert (mixed.root, mixed.log_root) == (alone.root, alone.log_root)
    report = verify(tmp_path / "mixed", all_=True, engine="cuda")
    assert report.exit_code == 0
    device.close()


def test_a_run_whose_device_fails_goes_on_from_its_checkpoint(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_tiny_task()
    device = HostDevice()
    steps = 0

    def fail(self: session.CudaSession) -> Any:
        nonlocal steps
        steps += 1
        if steps > 25:
            raise KernelError("an illegal memory access", where="device CPU")
        return real(self)

    real = session.CudaSession.step
    use_device(monkeypatch, device)
    monkeypatch.setattr(session.CudaSession, "step", fail)
    with pytest.raises(KernelError, match="illegal memory access"):
        train(task, tmp_path / "run", key=key, engine="cuda")
    monkeypatch.setattr(session.CudaSession, "step", real)
    resumed = train(task, tmp_path / "run", key=key, engine="cuda")
    assert resumed.resumed_from == 20
    assert resumed.root == train(task, tmp_path / "whole", key=key, engine="cpu").root


def test_memory_that_runs_out_leaves_a_run_that_can_go_on(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_tiny_task()
    use_device(monkeypatch, HostDevice())
    train(task, tmp_path / "run", key=key, engine="cuda", steps=20)
    # What passed the self-check is known by now: the next that asks for memory is the step.
    use_device(monkeypatch, HostDevice(memory_bytes=5000))
    with pytest.raises(RunError, match=r"a step needs .* GB more of device memory"):
        train(task, tmp_path / "run", key=key, engine="cuda")
    resumed = train(task, tmp_path / "run", key=key, engine="cpu")
    assert resumed.resumed_from == 20
    assert resumed.root == train(task, tmp_path / "whole", key=key, engine="cpu").root


def test_the_self_check_is_repeated_as_asked(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that breaks in the middle of `vtrain train --selfcheck-every 4`."""
    task = make_tiny_task(commit_every=1, checkpoint_every=10)
    device = BrokenDevice(("sum_parts",), 3)
    device.broken = False
    use_device(monkeypatch, device)
    done: list[int] = []

    def watch(step: int, steps: int, loss: float, rate: float) -> None:
        done.append(step)
        device.broken = step >= 8

    with pytest.warns(KernelWarning, match="kernel sum_parts gives wrong bits"):
        summary = train(
            task, tmp_path / "run", key=key, engine="cuda", selfcheck_every=4, progress=watch
        )
    assert len(done) == 40
    assert summary.root == train(task, tmp_path / "whole", key=key, engine="cpu").root
