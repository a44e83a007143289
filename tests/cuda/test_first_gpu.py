"""``benchmarks/first_gpu.py`` on the host device, and with processes that crash, hang and lie."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cuda.host_device import REPOSITORY, HostDevice

SCRIPT = REPOSITORY / "benchmarks" / "first_gpu.py"
HOST = ("--sizes", "small", "--device", "tests.cuda.host_device:HostDevice")


@pytest.fixture(scope="module")
def first() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module("first_gpu")
        for name in ("first_gpu", "gpu", "_harness", "_language"):
            sys.modules.pop(name)


def start(*arguments: str, **environment: str) -> Any:
    """The script, as someone has it who has the wheels alone: no tool is on the PATH."""
    return subprocess.run(
        [sys.executable, "-u", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONPATH": str(REPOSITORY), "HOME": os.environ["HOME"], **environment},
    )


def test_every_part_on_the_host_device(first: Any, tmp_path: Path) -> None:
    """Without torch, git and a toolkit; each line is in the file and says where it comes from."""
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch')")
    out = tmp_path / "deep" / "first.json"
    path = os.pathsep.join((str(tmp_path), str(REPOSITORY)))
    done = start(*HOST, "--out", str(out), PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert out.read_text() == done.stdout
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all({"date", "commit", "part", "seconds", "device", "driver"} <= set(x) for x in lines)
    assert {line["commit"] for line in lines} == {"unknown"}
    assert {line["device"] for line in lines} == {"CPU"}
    ended = {line["part"]: line["status"] for line in lines if "status" in line}
    assert ended == {part.name: "ok" for part in first.list_parts(first.SMALL)}
    found = {name: value for line in lines for name, value in line.items()}
    assert found.keys() >= {"replay_us", "tera_products", "gb_per_second", "compile_seconds"}
    assert found["disabled"] == found["why"] == []
    steps = {line["part"]: line for line in lines if "steps" in line}
    for part in ("steps mlp", "steps cnn", "steps gpt", "steps llama"):
        assert steps[part]["steps"] == first.SMALL.steps
    assert steps["speed gpt"]["steps"] == first.SMALL.timed
    assert all(line["bits"] == "equal" for line in steps.values())
    assert all(line["cpu_ms"] > 0 and line["cuda_ms"] > 0 for line in steps.values())


def test_what_the_machine_lacks_is_named_in_one_line() -> None:
    program = "import sys, runpy; sys.modules['cuda'] = None; sys.modules['cuda.bindings'] = None"
    run = f"sys.argv[0] = {str(SCRIPT)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    program = f"{program}; sys.path.insert(0, {str(SCRIPT.parent)!r}); {run}"
    done = subprocess.run(
        [sys.executable, "-c", program, "--part", "open", "--folder", "x"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 3, done.stderr
    [line] = map(json.loads, done.stdout.splitlines())
    assert line["status"] == "missing"
    assert "pip install 'vtrain[cuda]'" in line["reason"]


ACTS = """
import json, os, sys, time
from pathlib import Path
name, folder = sys.argv[sys.argv.index("--part") + 1], sys.argv[sys.argv.index("--folder") + 1]
print(json.dumps({"device": "Toy", "driver": "1", "seconds": 0}), flush=True)
tried = Path(folder) / name
if name == "crashes":
    print("not for us", flush=True)
    sys.stderr.write("illegal address")
    sys.stderr.flush()
    os.kill(os.getpid(), 9)
if name == "hangs":
    if os.fork() == 0:
        time.sleep(600)
    time.sleep(600)
if name == "learns" and not tried.exists():
    tried.touch()
    os._exit(7)
print(json.dumps({"status": "wrong" if name == "lies" else "ok"}), flush=True)
"""


def run(first: Any, *names: str, most: float = 300) -> list[dict[str, Any]]:
    parts = [
        first.Part(name, 1.5 if name == "hangs" else 60, print, 3 if name == "learns" else 1)
        for name in names
    ]
    return list(first.run_all(parts, [], [sys.executable, "-c", ACTS], most))


def test_a_crash_or_a_hang_costs_one_line(first: Any) -> None:
    begin = time.monotonic()
    lines = run(first, "crashes", "hangs", "learns", "lies", "good")
    assert time.monotonic() - begin < 60
    ended = [(x["part"], x["try"], x["status"]) for x in lines if "status" in x]
    assert ended == [
        ("crashes", 1, "crashed"),
        ("hangs", 1, "hung"),
        ("learns", 1, "crashed"),
        ("learns", 2, "ok"),
        ("lies", 1, "wrong"),
        ("good", 1, "ok"),
    ]
    said = {line["part"]: line for line in lines if line.get("status") in ("crashed", "hung")}
    assert said["crashes"]["reason"] == "signal 9"
    assert said["crashes"]["stderr"] == "illegal address"
    assert said["hangs"]["reason"] == "has not ended after 2 seconds"
    assert said["learns"]["reason"] == "exit code 7"
    assert {line["device"] for line in lines} == {"Toy"}


def test_what_is_late_is_left_out(first: Any) -> None:
    [line] = run(first, "good", most=0)
    assert line["status"] == "left out"
    assert first.MOST_SECONDS < 360


def test_lines_come_as_they_are_known(first: Any) -> None:
    parts = [first.Part("hangs", 60, print)]
    lines = first.run_all(parts, [], [sys.executable, "-c", ACTS])
    begin = time.monotonic()
    assert next(lines)["device"] == "Toy"
    # Who stops listening ends the process.
    lines.close()
    assert time.monotonic() - begin < 30


def test_wrong_bits_are_counted_and_placed(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = np.zeros((3, 4), np.int64)
    found[1, 2] = found[2, 3] = 5
    with pytest.raises(first.WrongBitsError) as caught:
        first.require_equal(found, np.zeros_like(found), "sums")
    assert str(caught.value) == "sums: 2 of 12 differ, the first at (1, 2): 5, not 0"
    said: list[dict[str, Any]] = []
    device = HostDevice()
    desk = first.Desk(device, Path(), first.SMALL, lambda **line: said.append(line))
    monkeypatch.setattr(first, "compute_tensor_digest", lambda data: bytes(32))
    with pytest.raises(first.WrongBitsError, match="BLAKE3: 32 of 32 differ"):
        first.do_hash(desk)
    assert said == []


def test_what_is_disabled_is_told_with_the_reason(
    first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {}
    device = HostDevice()
    desk = first.Desk(device, Path(), first.SMALL, lambda **line: said.update(line))
    opens = first.open_cuda

    def open_warned(step: Any, device: Any, kernels: Any) -> Any:
        first.warnings.warn("kernel x gives wrong bits", first.KernelWarning, stacklevel=1)
        return opens(step, device, kernels)

    monkeypatch.setattr(first, "open_cuda", open_warned)
    with pytest.raises(first.WrongBitsError, match="do not serve: kernel x gives wrong bits"):
        first.do_steps(desk, "mlp")
    assert said["why"] == ["kernel x gives wrong bits"]
    assert said["bits"] == "equal"
    device.close()


def test_the_parts_without_wgmma_name_every_kernel_of_it(first: Any) -> None:
    text = (REPOSITORY / "reference_kernels" / "gemm_wgmma.cuh").read_text()
    written = {part.split(",")[0] for part in text.split("(matmul_wgmma_")[1:]}
    assert {f"matmul_wgmma_{name}" for name in written} <= first.MMA_ONLY
