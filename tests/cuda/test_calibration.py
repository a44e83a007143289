"""Calibration on the device: the kernel that it asks, and the same exponents as by the law."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.calls import TASK
from tests.cuda.host_device import HostDevice
from tests.cuda.single import Array, run_launches
from tests.cuda.test_selfcheck import BrokenDevice
from tests.graph.test_calibration import MODEL, PLAN, SAMPLES
from tests.tasks import make_mlp_onnx, make_samples
from vtrain import cli
from vtrain.engines.cuda import dense_cases, session
from vtrain.engines.cuda.calibration import DeviceEvaluator
from vtrain.engines.cuda.device import Device
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.lowering import FAST, lower
from vtrain.engines.cuda.selfcheck import KernelWarning
from vtrain.engines.registry import choose_evaluator
from vtrain.errors import DeviceError, RunError
from vtrain.graph.calibration import (
    Calibration,
    Evaluator,
    NodeEvaluator,
    OpenEvaluator,
    State,
    calibrate,
)
from vtrain.graph.step import compute_initial_state, emit_step
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Node, TensorType

OUT = TensorType("i64", (), 0, 0, 0)


def measure(device: HostDevice, values: Array, *, fast: bool) -> int:
    dtype = next(name for name, known in NUMPY_DTYPES.items() if known == values.dtype)
    tensor = TensorType(dtype, values.shape, 0, *STORAGE[dtype])
    node = Node("n", "largest", {}, (), (OUT,))
    launches = FAST["largest"](node, [tensor]) if fast else lower(node, [tensor])
    found = run_launches(device, launches, [values], OUT)
    return int(found.output.view(np.uint64))


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "i64"])
def test_the_largest_magnitude(dtype: str, fast: bool, host_device: HostDevice) -> None:
    lo, hi = STORAGE[dtype]
    rng = np.random.default_rng(4)
    # The largest is anywhere: first, last, in the middle; the least of a type has it alone.
    for size, place, extreme in [(1, 0, lo), (255, 254, hi), (4097, 4096, lo), (9000, 4500, hi)]:
        values = rng.integers(lo // 2, hi // 2, size, NUMPY_DTYPES[dtype])
        values[place] = extreme
        known = max(abs(int(value)) for value in values)
        assert measure(host_device, values, fast=fast) == known
    assert measure(host_device, np.zeros(0, NUMPY_DTYPES[dtype]), fast=fast) == 0


def run(device: Device, kernels: Kernels, steps: int = 3) -> Calibration:
    def open_evaluator(state: State, samples: Samples) -> Evaluator:
        return DeviceEvaluator(state, samples, device=device, kernels=kernels)

    return calibrate_by(open_evaluator, steps)


def calibrate_by(open_evaluator: OpenEvaluator, steps: int = 3) -> Calibration:
    return calibrate(
        lambda builder: emit_step(builder, PLAN, MODEL),
        compute_initial_state(MODEL.params),
        SAMPLES,
        steps=steps,
        margin=3,
        open_evaluator=open_evaluator,
    )


@pytest.mark.parametrize("fast", [False, True])
def test_exponents_are_those_of_the_law(fast: bool) -> None:
    device = BrokenDevice(())
    found = run(device, Kernels(device, fast=fast))
    assert found == calibrate_by(NodeEvaluator)
    assert ("largest_parts" in device.launched) is fast
    assert "tensor_digest" not in device.launched, "no hash is needed"
    assert device.memory().free == device.memory().total, "all is given back"
    device.close()


def test_products_are_those_of_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_cases, "SMALL", (5, 9, 6))
    device = BrokenDevice(())
    found = run(device, Kernels(device, least_products=0), steps=1)
    assert found == calibrate_by(NodeEvaluator, steps=1)
    assert "matmul_mma_i16_i16" in device.launched
    device.close()


def test_a_broken_kernel_measures_nothing() -> None:
    device = BrokenDevice(("largest_parts",), 3)
    with pytest.warns(KernelWarning, match="kernel largest_parts"):
        found = run(device, Kernels(device), steps=1)
    assert found == calibrate_by(NodeEvaluator, steps=1)
    device.close()


def test_values_do_not_pile_up() -> None:
    """What a step needs, many steps need."""
    needs = []
    for steps in (1, 4):
        device = Measured()
        run(device, Kernels(device, fast=False), steps)
        needs.append(device.most)
        device.close()
    assert needs[1] <= needs[0] * 1.2


class Measured(HostDevice):
    """Knows the most memory that was in use."""

    most = 0

    def allocate(self, nbytes: int) -> int:
        address = super().allocate(nbytes)
        self.most = max(self.most, self.memory().total - self.memory().free)
        return address


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A task file without exponents; verdicts of other runs are out of reach."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    samples = make_samples((16,), 40, seed=3)
    np.save(tmp_path / "x.npy", samples.part("x"))
    np.save(tmp_path / "y.npy", samples.part("y"))
    (tmp_path / "model.onnx").write_bytes(make_mlp_onnx(3))
    path = tmp_path / "task.toml"
    path.write_text(TASK)
    return path


def test_without_a_gpu_the_command_says_so_and_writes_nothing(
    task: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> HostDevice:
        raise DeviceError("there is no driver", where="engine cuda")

    monkeypatch.setattr(session, "_open_device", refuse)
    assert cli.run(["profile", str(task), "--engine", "cuda"]) == 3
    assert "there is no driver" in capfd.readouterr().err
    assert task.read_text() == TASK


def test_other_engines_calibrate_on_the_host() -> None:
    for engine in ("auto", "cpu", "numpy"):
        assert isinstance(choose_evaluator(engine)({}, SAMPLES), NodeEvaluator)
    with pytest.raises(RunError, match="is none of"):
        choose_evaluator("gpu")


def test_the_command_takes_the_engine(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = BrokenDevice(())
    monkeypatch.setattr(session, "_open_device", lambda: device)
    assert cli.run(["profile", str(task), "--engine", "cuda"]) == 0
    assert "largest_parts" in device.launched
    assert cli.run(["profile", str(task), "--engine", "numpy", "--check"]) == 0
    device.close()
