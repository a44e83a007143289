"""Command lines that are run in this process, on a finished run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.calls import call, write_task
from vtrain import cli

__all__ = ["call"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated task file, a key and a finished run; not to be changed."""
    folder = tmp_path_factory.mktemp("cli")
    write_task(folder)
    for arguments in (
        ("key", "new", folder / "solver.pem"),
        ("train", folder / "task.toml", "--out", folder / "run", "--key", folder / "solver.pem"),
    ):
        assert cli.run([str(argument) for argument in arguments]) == 0
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(folder / "run", tmp_path / "run"))
