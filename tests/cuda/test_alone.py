"""Tests that crash, hang or spoil their process, each in one of its own: others are not touched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cuda import alone, test_gpu
from tests.cuda.host_device import REPOSITORY, HostDevice
from tests.engines.steps import make_step
from vtrain.engines.cuda import dense_cases
from vtrain.engines.cuda.selfcheck import Checker, Subject

INI = """
[pytest]
addopts = --strict-markers
markers = gpu(seconds=120): as in the project
"""
TESTS = """
import os, subprocess, sys, time
import pytest
from tests.cuda import alone

pytestmark = pytest.mark.gpu
SPOILT = []

def test_is_lost():
    SPOILT.append(1)
    os.abort()

def test_follows_untouched():
    assert SPOILT == []

@pytest.mark.gpu(seconds=6)
def test_hangs():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("child", "w") as file:
        file.write(str(child.pid))
    time.sleep(600)

@pytest.mark.parametrize("number", [1, 2])
def test_shares_what_passed(number):
    verdicts = alone.FOLDER / "verdicts"
    assert verdicts.exists() == (number == 2)
    verdicts.touch()

def test_is_wrong():
    assert 1 == 2, "one is two"

def test_is_left_out():
    pytest.skip("no such tool")

@pytest.fixture
def spoils():
    yield
    os._exit(0)

def test_dies_after_it_passed(spoils):
    pass

@pytest.mark.skip(reason="no GPU that can be used")
def test_is_skipped_aloud():
    pass
"""


def run(folder: Path) -> str:
    folder.mkdir()
    (folder / "pytest.ini").write_text(INI)
    (folder / "test_toys.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.cuda.alone", "-rA"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        # Ten processes of pytest, none of which needs another plugin.
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
    )
    return done.stdout + done.stderr


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_each_is_a_process_with_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "temporary"
    shared.mkdir()
    monkeypatch.setenv("TMPDIR", str(shared))
    begin = time.monotonic()
    said = run(tmp_path / "toys")
    assert time.monotonic() - begin < 120
    assert re.search(r"4 failed, 4 passed, 2 skipped", said), said
    for text in (
        "its process: exit code -6",
        "its process: no end after 6 seconds",
        "its process: exit code 0",
        "one is two",
        "no such tool",
        "no GPU that can be used",
    ):
        assert text in said
    # What all of them shared is gone at the end.
    assert list(shared.glob("vtrain-gpu-*")) == []
    # What hung ended with all that it started.
    assert not is_alive(int((tmp_path / "toys" / "child").read_text()))


def test_what_passed_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host_device: HostDevice
) -> None:
    """The sessions of ``test_gpu.py`` keep their verdicts in the folder that all share."""
    monkeypatch.setattr(alone, "FOLDER", tmp_path)
    monkeypatch.setattr(dense_cases, "SMALL", (5, 9, 6))
    tried: list[str] = []

    def passes(self: Checker, subject: Subject, *rest: Any) -> None:
        tried.append(subject.name)

    monkeypatch.setattr(Checker, "_find_fault", passes)
    step = make_step("mlp", batch=3)
    for _ in range(2):
        test_gpu.open_cuda(step, host_device).close()  # type: ignore[arg-type]
    assert len(tried) == len(set(tried)) > 3
