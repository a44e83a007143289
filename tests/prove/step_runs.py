"""One run of whole steps for the modules that need one: made once a session, read by tests alone.

A module takes the fixtures under their names: ``srs, task, whole, bundle = step_runs.FIXTURES``.
Its ``srs`` is then of k = 17, in place of that of ``conftest``, which is too small for steps.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.prove.steps import make_bundle, make_proof_task, open_key, train_run
from vtrain.train.task import CompiledTask
from vtrain.wire.bundle import ProofBundle


@cache
def _make_srs(base: Path) -> Path:
    path = base / "step-runs.srs"
    open_key(path)
    return path


_make_task = cache(make_proof_task)


@cache
def _make_run(base: Path) -> Path:
    return train_run(_make_task(_make_srs(base)), base / "step-runs")


_make_bundle = cache(make_bundle)


# Each module has fixtures of its own by this, so that the session's one is kept by the cache.


@pytest.fixture(scope="session", name="srs")
def _srs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SRS for k = 17, the least for whole steps."""
    return _make_srs(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session", name="task")
def _task(srs: Path) -> CompiledTask:
    """The task that ``whole`` is of."""
    return _make_task(srs)


@pytest.fixture(scope="session", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all of its tensors, without proofs."""
    return _make_run(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session", name="bundle")
def _bundle(whole: Path, srs: Path) -> ProofBundle:
    """What is handed out as a proof of its step 5."""
    return _make_bundle(whole, srs, 5)


FIXTURES: Final = _srs, _task, _whole, _bundle
