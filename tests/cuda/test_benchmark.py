"""``benchmarks/gpu.py`` without a GPU: what it says there, its course, its figures on the CPU."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cuda.host_device import REPOSITORY, HostDevice
from vtrain.engines.cuda.kernels import Kernels
from vtrain.errors import KernelError, RunError

SAID = ("seconds", "kernel")
SCRIPT = REPOSITORY / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def gpu() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module("gpu")
        for name in ("gpu", "_harness", "_language"):
            sys.modules.pop(name)


def start(*arguments: str, program: Sequence[str] = (str(SCRIPT),)) -> Any:
    return subprocess.run(
        [sys.executable, *program, *arguments], capture_output=True, text=True, check=False
    )


def hide(*names: str) -> list[str]:
    """A program that runs the benchmark on a machine on which ``names`` are not installed."""
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in names)
    path, script = str(SCRIPT.parent), str(SCRIPT)
    run = f"sys.path.insert(0, {path!r}); runpy.run_path({script!r}, run_name='__main__')"
    return ["-c", f"import sys, runpy; {hidden}{run}"]


def test_without_the_extra_the_command_is_told(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "gpu.json"
    program = hide("cuda", "cuda.bindings")
    done = start("--json", "--out", str(out), program=program)
    assert done.returncode == 3, done.stderr
    assert "pip install 'vtrain[cuda]'" in done.stderr
    assert "[missing-extra]" in done.stderr
    report = json.loads(done.stdout)
    assert {target["value"] for target in report["targets"].values()} == {None}
    assert json.loads(out.read_text())["figures"] == report["figures"]
    # What another machine found is not replaced by nothing.
    out.write_text("found elsewhere")
    assert start("--quick", "--out", str(out), program=program).returncode == 3
    assert out.read_text() == "found elsewhere"


@pytest.mark.parametrize("lack", ["nvrtc", "driver", "torch", "torch's GPU"])
def test_what_is_missing_is_named(lack: str, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def refuse(error: type[Exception]) -> Callable[[], None]:
        def fail() -> None:
            raise error(f"no {lack}", where="engine cuda")  # type: ignore[call-arg]

        return fail

    monkeypatch.setattr(gpu, "load_nvrtc", lambda: None)
    monkeypatch.setattr(gpu, "load_driver", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu.find_missing() == ""
    if lack == "nvrtc":
        monkeypatch.setattr(gpu, "load_nvrtc", refuse(gpu.MissingExtraError))
        assert gpu.find_missing() == "engine cuda: no nvrtc [missing-extra]"
    elif lack == "driver":
        monkeypatch.setattr(gpu, "load_driver", refuse(RunError))
        assert gpu.find_missing() == "engine cuda: no driver [run]"
    elif lack == "torch":
        monkeypatch.setattr(gpu, "find_spec", lambda name: None)
        assert "pip install torch [missing-extra]" in gpu.find_missing()
    else:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert "finds no GPU [run]" in gpu.find_missing()


def test_help_says_what_exit_codes_mean() -> None:
    done = start("--help")
    assert done.returncode == 0
    for said in ("--quick", "--out", "eight minutes", "3 there is no GPU"):
        assert said in " ".join(done.stdout.split())


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def make_course(gpu: Any) -> tuple[Any, Clock]:
    clock = Clock()
    return gpu.Course(HostDevice(), True, clock), clock


def test_the_parts_fit_eight_minutes_and_give_every_target(gpu: Any) -> None:
    for parts in (gpu.PARTS, gpu.GPT_PARTS):
        assert sum(part.seconds for part in parts) <= gpu.MOST_SECONDS <= 470
        assert sum(part.seconds for part in parts if part.is_quick) <= 240
    begun = tuple(start for part in (*gpu.PARTS, *gpu.GPT_PARTS) for start in part.targets)
    assert all(name.startswith(begun) for name in gpu.LIMITS)


def test_a_result_follows_every_part(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One that fails costs its own targets; one for which time is short is left out."""
    course, clock = make_course(gpu)

    def succeed(course: Any) -> None:
        clock.seconds += 300
        course.values["BLAKE3 of 4 GiB, GB/s"] = 350.0

    def fail(course: Any) -> None:
        clock.seconds += 100
        raise KernelError("no", where="matmul.cu")

    parts = [
        gpu.Part("good", 300, succeed, ("BLAKE3",)),
        gpu.Part("bad", 10, fail, ("cnn step",)),
        gpu.Part("long", 60, succeed, ("mlp step",)),
        gpu.Part("short", 40, lambda course: None, ()),
    ]
    results = list(gpu.run_parts(course, parts))
    assert [sum(t["value"] is not None for t in r.targets.values()) for r in results] == [1] * 4
    assert [result.met for result in results] == [True, False, False, False]
    last = results[-1]
    assert last.targets["BLAKE3 of 4 GiB, GB/s"]["met"]
    assert last.targets["cnn step, time over torch fp32"]["met"] is False
    assert last.targets["mlp step, time over torch fp32"]["met"] is None
    assert last.figures["bad: failed"] == "KernelError: matmul.cu: no [kernel]"
    assert last.figures["left out for lack of time"] == ["long"]
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == [
        "good",
        "bad",
        "short",
    ]


@pytest.mark.parametrize("how", ["warned", "disabled"])
def test_figures_of_fallbacks_fail_their_targets(
    how: str, gpu: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that failed is named, and what was measured in its place meets no target."""
    course, _ = make_course(gpu)
    step, torch = "mlp step", "mlp step, time over torch fp32"

    def fall_back(course: Any) -> None:
        if how == "warned":
            warnings.warn("kernel matmul_x gives wrong bits", gpu.KernelWarning, stacklevel=1)
            warnings.warn("something else", UserWarning, stacklevel=1)
        else:
            course._kernels._checker.disabled = frozenset({"matmul_x"})

    def compare(course: Any) -> None:
        course.values |= {torch: 0.1, "BLAKE3 of 4 GiB, GB/s": 999.0}

    parts = [
        gpu.Part("step", 1, fall_back, (step,)),
        gpu.Part("theirs", 1, compare, (step,)),
        gpu.Part("hash", 1, lambda course: None, ("BLAKE3",), serves=False),
    ]
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        *_, last = gpu.run_parts(course, parts)
    assert [str(one.message) for one in others] == ["something else"] * (how == "warned")
    assert last.targets[torch] == {"limit": 1.0, "value": 0.1, "met": False}
    assert last.targets["BLAKE3 of 4 GiB, GB/s"]["met"]
    assert not last.met
    if how == "warned":
        said = ["kernel matmul_x gives wrong bits"]
        assert last.figures["kernels that did not serve"] == said
    else:
        assert last.figures["disabled kernels"] == ["matmul_x"]


def test_ten_calls_share_the_cost_of_an_event_pair(gpu: Any) -> None:
    """A launch would add 10 to 15 us to what is timed by itself."""

    class Counting(HostDevice):
        pairs, replays = 0, 0

        def record(self, work: Callable[[], None]) -> Callable[[], None]:
            def replay() -> None:
                self.replays += 1

            return replay

        def time(self, work: Callable[[], None]) -> float:
            self.pairs, self.replays = self.pairs + 1, 0
            work()
            return 1e-5 + self.replays * 1e-3

    device = Counting()
    found = gpu.Bench(device, [], {}).time(rounds=4)
    assert (device.pairs, device.replays, found["n"]) == (4, 10, 4)
    assert found["median"] == pytest.approx(1.001e-3)


def test_the_compiled_baseline_is_one_graph(gpu: Any) -> None:
    """Whatever breaks the graph is an error; both models of the benchmark have none."""
    torch = pytest.importorskip("torch")
    shapes = {"mlp": (4, 12), "cnn": (2, 3, 8, 8)}
    models = {"mlp": gpu.make_mlp((12, 8, 8, 5)), "cnn": gpu.make_cnn(8, (4, 6), 1, 5)}
    for name, model in models.items():
        network = gpu.make_torch(model)
        x = torch.rand(*shapes[name])
        assert torch.equal(gpu.compile_torch(network, "eager")(x), network(x))

    class Broken(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            torch._dynamo.graph_break()
            return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        gpu.compile_torch(Broken(), "eager")(torch.rand(3))


def test_what_the_sanitizer_watches_is_small_and_a_call_of_its_own(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    def make(device: Any, **options: Any) -> Kernels:
        made.append(options)
        return Kernels(device, fast=False)

    monkeypatch.setattr(gpu, "Kernels", make)
    monkeypatch.setattr(gpu, "make_cnn", lambda *given: gpu.make_mlp((192, 6, 10)))
    device = HostDevice()
    gpu.run_sanitized(device)
    device.close()
    assert [options["large"] for options in made] == [False]
    assert not any("sanitizer" in part.name for part in gpu.PARTS)
    done = start("sanitize", program=hide("cuda", "cuda.bindings"))
    assert done.returncode == 3
    assert "pip install 'vtrain[cuda]'" in done.stdout


def test_a_machine_without_git_is_described(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert gpu.harness.describe_machine()["commit"] == "unknown"


def test_what_ends_it_leaves_what_was_found(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    target = "{'a': harness.at_least(2, 1)}"
    program = (
        f"import sys, os; sys.path.insert(0, {str(SCRIPT.parent)!r}); import _harness as harness\n"
        f"def measure(quick):\n    yield harness.Result({{'n': 1}}, {target})\n    os._exit(9)\n"
        "harness.main('x', measure)"
    )
    assert start("--out", str(out), program=["-c", program]).returncode == 9
    report = json.loads(out.read_text())
    assert (report["figures"], report["met"]) == ({"n": 1}, True)
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_products_are_checked_and_timed(
    gpu: Any, host_device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def multiply(a: Any, b: Any) -> Any:
        return a.astype(np.int64) @ b.astype(np.int64)

    monkeypatch.setattr(gpu, "multiply_exactly", multiply)
    found = gpu.measure_products(host_device, 64, 1)
    assert found.keys() == {f"{name}, {what}" for name in ("i16", "i8") for what in SAID}
    assert found["i16, kernel"] == "matmul_mma_i16_i16"
    monkeypatch.setattr(gpu, "multiply_exactly", lambda a, b: multiply(a, b) + 1)
    with pytest.raises(KernelError, match="wrong product"):
        gpu.measure_products(host_device, 64, 1)


def test_hashes_are_checked_and_timed(
    gpu: Any, host_device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu.measure_hash(host_device, 5000, 2)["n"] == 2
    monkeypatch.setattr(gpu, "compute_tensor_digest", lambda data: bytes(32))
    with pytest.raises(KernelError, match="wrong digest"):
        gpu.measure_hash(host_device, 5000, 2)


def test_steps_are_calibrated_on_the_device_and_timed(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, opened = HostDevice(), list[Any]()

    class Seen(gpu.DeviceEvaluator):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened.append(options["device"])

    monkeypatch.setattr(gpu, "DeviceEvaluator", Seen)
    model = gpu.make_mlp((12, 8, 5))
    commits = (gpu.NEVER, 1, 3)
    kernels = Kernels(device, fast=False)
    found = gpu.measure_step(device, kernels, model, 16, 5, commits, 2)
    assert opened == [device]
    assert {f"ours, committing {when}" for when in ("never", "every 1", "every 3")} <= found.keys()
    assert found["device memory, GB"] > 0
    assert "matmul" in found["phases, seconds a step"]
    device.close()


def test_steps_of_a_gpt_are_calibrated_on_the_device_and_timed(gpu: Any) -> None:
    device = HostDevice()
    sizes = gpu.language.Sizes(1, 8, 2, 6, 4, 12, 500)
    found = gpu.measure_language_step(device, Kernels(device, fast=False), sizes, 2)
    assert found["ours"]["n"] == 5
    assert {"batched_matmul", "scatter_add"} <= found["phases, seconds a step"].keys()
    device.close()


def test_the_baseline_of_a_gpt_has_its_sizes_and_is_one_graph(gpu: Any) -> None:
    torch = pytest.importorskip("torch")
    sizes = gpu.language.Sizes(2, 8, 2, 6, 4, 12, 500)
    network = gpu.make_torch_gpt(sizes)
    ids = torch.randint(0, 12, (4, 6))
    assert torch.equal(gpu.compile_torch(network, "eager")(ids), network(ids))
    assert network(ids).shape == (4, 6, 12)
    assert len(network.blocks) == 2
    assert network.places.weight.shape == (6, 8)


def test_roots_are_compared(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of the benchmark on the host; one wrong record is seen."""
    monkeypatch.setattr(gpu, "make_cnn", lambda *given: gpu.make_mlp((192, 6, 10)))
    monkeypatch.setattr(gpu, "make_mlp", partial_mlp(gpu))
    monkeypatch.setattr(gpu, "Kernels", lambda device, **options: Kernels(device, fast=False))
    device = HostDevice()
    assert set(gpu.check_roots(device, 4).values()) == {1.0}
    run_steps = gpu.run_steps

    def forget(session: Any, state: Any, steps: int) -> list[Any]:
        records: list[Any] = run_steps(session, state, steps)
        return records[1:] if session.name == "cuda" else records

    monkeypatch.setattr(gpu, "run_steps", forget)
    assert set(gpu.check_roots(device, 4).values()) == {0.0}
    device.close()


def partial_mlp(gpu: Any) -> Callable[[Sequence[int]], Any]:
    """Smaller than that of the benchmark."""
    make = gpu.make_mlp
    return lambda sizes: make((12, 8, 10))
