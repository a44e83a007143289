"""Command lines that are run in this process, on a finished run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.calls import TASK, Call
from tests.tasks import make_mlp_onnx, make_samples
from vtrain import cli


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Run a command line: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated task file, a key and a finished run; not to be changed."""
    folder = tmp_path_factory.mktemp("cli")
    samples = make_samples((16,), 40, seed=3)
    np.save(folder / "x.npy", samples.part("x"))
    np.save(folder / "y.npy", samples.part("y"))
    (folder / "model.onnx").write_bytes(make_mlp_onnx(3))
    (folder / "task.toml").write_text(TASK)
    for arguments in (
        ("profile", folder / "task.toml"),
        ("key", "new", folder / "solver.pem"),
        ("train", folder / "task.toml", "--out", folder / "run", "--key", folder / "solver.pem"),
    ):
        assert cli.run([str(argument) for argument in arguments]) == 0
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(folder / "run", tmp_path / "run"))
