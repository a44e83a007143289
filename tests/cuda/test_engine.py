"""``--engine cuda`` from outside: what it says where something is missing, and whole runs."""

from __future__ import annotations

import builtins
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import vtrain
from tests.conftest import pytest_collection_modifyitems
from tests.cuda.host_device import HostDevice
from tests.cuda.test_selfcheck import BrokenDevice
from tests.tasks import make_tiny_task
from vtrain import cli
from vtrain.attest.keys import generate_key
from vtrain.audit import verify as auditing
from vtrain.audit.verify import verify
from vtrain.engines import registry
from vtrain.engines.cuda import gpu, session
from vtrain.engines.cuda.selfcheck import KernelWarning
from vtrain.engines.registry import EngineWarning, open_session, resolve_engine
from vtrain.errors import DeviceError, KernelError, MissingExtraError, RunError, VtrainError
from vtrain.train import task as tasks
from vtrain.train.runner import train


@pytest.fixture
def key(tmp_path: Path) -> Ed25519PrivateKey:
    return generate_key(tmp_path / "key.pem")


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No verdicts of other runs."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")


@pytest.fixture
def known(passed: tuple[str, bytes], nothing_cached: None, tmp_path: Path) -> None:
    """But those of one that tried the kernels."""
    name, content = passed
    folder = tmp_path / "home" / ".cache" / "vtrain" / "cuda"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)


def use_device(monkeypatch: pytest.MonkeyPatch, device: HostDevice) -> None:
    """Let the engine have ``device`` for its GPU."""
    monkeypatch.setattr(session, "_open_device", lambda: device)


def refuse(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: object, **__: object) -> Any:
        raise error

    return raise_it


def test_auto_takes_a_gpu_that_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "has_driver", lambda: True)
    monkeypatch.setattr(gpu, "find_obstacle", lambda: None)
    use_device(monkeypatch, device := HostDevice())
    assert resolve_engine("auto") == "cuda"
    with pytest.raises(RunError, match="is none of auto, cpu, cuda, numpy"):
        resolve_engine("gpu")
    device.close()


def test_auto_says_once_why_it_does_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    old = DeviceError("the NVIDIA driver is of CUDA 12.8", where="engine cuda")
    monkeypatch.setattr(gpu, "has_driver", lambda: True)
    monkeypatch.setattr(gpu, "find_obstacle", lambda: old)
    with pytest.warns(EngineWarning, match=r"takes cpu: engine cuda: the NVIDIA driver is of CUDA"):
        assert resolve_engine("auto") == "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_engine("auto") == "cpu"
    registry._has_gpu.cache_clear()
    monkeypatch.setattr(gpu, "find_obstacle", lambda: None)
    full = KernelError("out of memory (CUDA_ERROR_OUT_OF_MEMORY); nothing was begun")
    monkeypatch.setattr(session, "_open_device", refuse(full))
    with pytest.warns(EngineWarning, match="takes cpu: out of memory"):
        assert resolve_engine("auto") == "cpu"


def test_auto_says_nothing_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ctypes", SimpleNamespace(CDLL=refuse(OSError("no such file"))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_engine("auto") == "cpu"
    assert "there is no NVIDIA driver" in str(gpu.find_obstacle())


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
    monkeypatch.setattr(gpu, "has_driver", lambda: True)
    assert isinstance(gpu.find_obstacle(), MissingExtraError)


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
    with pytest.raises(DeviceError, match="no NVIDIA driver on this machine"):
        gpu.load_driver()
    monkeypatch.setattr(bindings, "driver", NoDevice(), raising=False)
    with pytest.raises(DeviceError, match="finds no NVIDIA GPU: `nvidia-smi` must list one"):
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
    assert (gpu.find_obstacle() is None) == serves
    if version < gpu.OLDEST:
        with pytest.raises(
            DeviceError, match=r"is of CUDA 12\.8: kernels need one of CUDA 13 \(580"
        ):
            gpu.load_driver()


@pytest.mark.parametrize("obstacle", [None, DeviceError("the driver is old")])
def test_gpu_tests_are_skipped_for_the_reason_that_the_engine_has(
    obstacle: VtrainError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: dict[str, list[pytest.MarkDecorator]] = {"gpu": [], "slow": []}
    items: list[Any] = [
        SimpleNamespace(
            path=Path("test_any.py"),
            get_closest_marker=lambda name, own=own: name if name == own else None,
            add_marker=found.append,
        )
        for own, found in marks.items()
    ]
    monkeypatch.setattr(gpu, "find_obstacle", lambda: obstacle)
    pytest_collection_modifyitems(items)
    assert marks["slow"] == []
    reasons = [mark.kwargs["reason"] for mark in marks["gpu"]]
    assert reasons == ([] if obstacle is None else [f"no GPU that can be used: {obstacle}"])


LACKS = [
    MissingExtraError("something is missing: do this", where="engine cuda"),
    DeviceError("something is missing: do this", where="engine cuda"),
    KernelError("something is missing: do this", where="engine cuda"),
]


@pytest.mark.parametrize("lack", LACKS, ids=lambda error: error.code)
def test_an_audit_that_lacks_its_engine_says_so_at_once(
    lack: VtrainError,
    tmp_path: Path,
    key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No verdict: neither the run nor who asked is at fault."""
    train(make_tiny_task(steps=10), tmp_path / "run", key=key, engine="cpu")
    monkeypatch.setattr(session, "_open_device", refuse(lack))
    monkeypatch.setattr(auditing, "check_structure", refuse(AssertionError("has begun")))
    assert cli.run(["verify", str(tmp_path / "run"), "--engine", "cuda"]) == 3
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err == f"vtrain verify: {lack}\n"


def read_all(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path, and every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("lack", LACKS, ids=lambda error: error.code)
@pytest.mark.parametrize("place", ["device", "session"])
def test_a_run_that_lacks_its_engine_stays_as_it_is(
    place: str,
    lack: VtrainError,
    tmp_path: Path,
    key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its claim, with what lies in the log beyond it, and nothing where there was none."""
    task, out = make_tiny_task(steps=20), tmp_path / "run"
    train(task, out, key=key, engine="cpu", steps=10)
    with (out / "log.bin").open("ab") as log:
        log.write(b"of a process that was killed")
    before = read_all(out)
    assert "claim.cbor" in before
    if place == "device":
        monkeypatch.setattr(session, "_open_device", refuse(lack))
    else:
        use_device(monkeypatch, HostDevice())
        monkeypatch.setattr(session.CudaSession, "__init__", refuse(lack))
    for folder in (out, tmp_path / "fresh"):
        with pytest.raises(type(lack), match="something is missing: do this"):
            train(task, folder, key=key, engine="cuda")
    assert read_all(out) == before
    assert not (tmp_path / "fresh").exists()


def test_a_finished_run_needs_no_engine_and_claims_none(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, out = make_tiny_task(steps=10), tmp_path / "run"
    first = train(task, out, key=key, engine="numpy")
    before = read_all(out)
    monkeypatch.setattr(session, "_open_device", refuse(LACKS[0]))
    again = train(task, out, key=key, engine="cuda")
    assert (first.engine, again.engine, again.resumed_from) == ("numpy", "", 10)
    assert read_all(out) == before
    # One that lost a checkpoint is not finished: it is done anew from there, or not touched.
    (out / "checkpoints" / f"{10:012d}.safetensors").unlink()
    before = read_all(out)
    with pytest.raises(MissingExtraError):
        train(task, out, key=key, engine="cuda")
    assert read_all(out) == before


def test_an_audit_whose_device_fails_is_inconclusive(
    tmp_path: Path, key: Ed25519PrivateKey, known: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make_tiny_task(steps=10), tmp_path / "run", key=key, engine="cpu")
    use_device(monkeypatch, HostDevice())

    def fail(self: session.CudaSession) -> Any:
        raise KernelError("an illegal memory access", where="device CPU")

    monkeypatch.setattr(session.CudaSession, "step", fail)
    assert cli.run(["verify", str(tmp_path / "run"), "--engine", "cuda"]) == 3


def test_a_run_moves_between_engines_and_ends_in_the_same_root(
    tmp_path: Path, key: Ed25519PrivateKey, known: None, monkeypatch: pytest.MonkeyPatch
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
    tmp_path: Path, key: Ed25519PrivateKey, known: None, monkeypatch: pytest.MonkeyPatch
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
    before = read_all(tmp_path / "run")
    with pytest.raises(DeviceError, match=r"a step needs .* GB more of device memory"):
        train(task, tmp_path / "run", key=key, engine="cuda")
    assert read_all(tmp_path / "run") == before
    resumed = train(task, tmp_path / "run", key=key, engine="cpu")
    assert resumed.resumed_from == 20
    assert resumed.root == train(task, tmp_path / "whole", key=key, engine="cpu").root


def test_the_self_check_is_repeated_as_asked(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that breaks in the middle of `vtrain train --selfcheck-every 4`."""
    task = make_tiny_task(steps=20, commit_every=1, checkpoint_every=10)
    device = BrokenDevice(("sum_parts",), 3)
    device.broken = False
    use_device(monkeypatch, device)
    done: list[int] = []

    def watch(step: int, steps: int, loss: float, rate: float) -> None:
        done.append(step)
        device.broken = step >= 8

    with pytest.warns(KernelWarning, match="kernel sum_parts gives wrong bits"):
        summary = vtrain.train(
            task, tmp_path / "run", key=key, engine="cuda", selfcheck_every=4, progress=watch
        )
    assert len(done) == 20
    assert summary.root == train(task, tmp_path / "whole", key=key, engine="cpu").root


def test_the_command_shows_a_warning_as_one_line(
    tmp_path: Path,
    key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """And in the report."""
    task, words = tmp_path / "task.toml", ("--key", str(tmp_path / "key.pem"), "--json")
    task.touch()
    monkeypatch.setattr(tasks, "load_task", lambda path, srs: path)
    monkeypatch.setattr(tasks, "compile_task", lambda file, open_key: make_tiny_task(steps=10))
    use_device(monkeypatch, BrokenDevice(("sum_parts",), 3))
    orders = ["train", str(task), "--out", str(tmp_path / "run"), "--engine", "cuda", *words]
    assert cli.run(orders) == 0
    shown = capfd.readouterr()
    [line] = shown.err.splitlines()
    assert line.startswith("warning: kernel sum_parts gives wrong bits on ")
    assert json.loads(shown.out)["warnings"] == [line.removeprefix("warning: ")]
    assert json.loads(shown.out)["engine"] == "cuda"


@pytest.mark.parametrize(
    ("engine", "every", "reason"),
    [
        ("cpu", 5, "engine cuda, which this engine does not have"),
        ("numpy", 1, "engine cuda, which this engine does not have"),
        ("cuda", -1, "negative"),
    ],
)
def test_a_self_check_is_repeated_where_there_is_one(
    engine: str, every: int, reason: str, tmp_path: Path, key: Ed25519PrivateKey
) -> None:
    with pytest.raises(RunError, match=reason):
        vtrain.train(
            make_tiny_task(), tmp_path / "run", key=key, engine=engine, selfcheck_every=every
        )
    assert not (tmp_path / "run").exists()
