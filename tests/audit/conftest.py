"""An honest run, trained once; each test gets a copy to spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.audit.runs import KEY
from tests.tasks import make_tiny_task
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask


@pytest.fixture(scope="session")
def task() -> CompiledTask:
    return make_tiny_task(steps=12, commit_every=2, checkpoint_every=4, samples=10, batch=4)


@pytest.fixture(scope="session")
def honest(task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest run of ``task``; not to be changed."""
    run = tmp_path_factory.mktemp("honest") / "run"
    train(task, run, key=KEY)
    return run


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """A copy of the honest run."""
    return Path(shutil.copytree(honest, tmp_path / "run"))
