"""A small task, and what a command line came to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tasks import make_mlp_onnx, make_samples
from vtrain import cli

TASK = """
[task]
name = "tiny"
seed = 3
steps = 12
batch = 4
commit_every = 2
checkpoint_every = 4

[model]
onnx = "model.onnx"
loss = "cross_entropy"

[data]
kind = "npy"
x = "x.npy"
y = "y.npy"
count = 30

[data.prepare]
scale = "1/255"

[test]
kind = "npy"
x = "x.npy"
y = "y.npy"
start = 30

[optimizer]
kind = "sgd"
momentum = 0.9
learning_rate = 0.5

[format]
calibration_steps = 4
"""

Call = Callable[..., tuple[int, str, str]]
"""Runs a command line: exit code, stdout, stderr."""


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Run a command line: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


def write_task(folder: Path, steps: int = 12, hidden: int = 1) -> Path:
    """The task file in ``folder``, with its model and data, calibrated."""
    samples = make_samples((16,), 40, seed=3)
    np.save(folder / "x.npy", samples.part("x"))
    np.save(folder / "y.npy", samples.part("y"))
    (folder / "model.onnx").write_bytes(make_mlp_onnx(3, hidden=hidden))
    (folder / "task.toml").write_text(TASK.replace("steps = 12", f"steps = {steps}"))
    assert cli.run(["profile", str(folder / "task.toml")]) == 0
    return folder / "task.toml"


def parse(text: str) -> dict[str, Any]:
    value = json.loads(text)
    assert isinstance(value, dict)
    return value
