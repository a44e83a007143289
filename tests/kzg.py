"""Tiny tasks that log KZG commitments, over an SRS made for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.srs import place_srs
from tests.tasks import make_tiny_task
from vtrain.commit.files import write_atomic
from vtrain.commit.hiding import derive_initial_key, identify_key
from vtrain.commit.kzg_log import StepCommitter
from vtrain.prove.backend.kzg import CommitKey
from vtrain.train.layout import RunPaths
from vtrain.train.task import CompiledTask
from vtrain.wire import structs
from vtrain.wire.hiding import Hiding
from vtrain.wire.proof import ProofSpec
from vtrain.wire.task import WITH_KZG

K, BLINDING = 8, 5
"""Columns of 184 values: the state of the tiny MLP has 344, a batch of four samples 68."""
SECRETS = Hiding(states=bytes(range(32)), batches=bytes(range(32, 64)))
"""Of runs whose logs are compared byte for byte."""
SECRET = SECRETS.batches
"""What hides the batches of runs whose owner signs them."""


def make_key(path: Path, k: int = K) -> CommitKey:
    """A key over the SRS in ``path``, which is made where it is not there; always the same one."""
    if not path.exists():
        place_srs(path, k, b"tests")
    return CommitKey(path, k, BLINDING)


def make_srs_fixture() -> Any:
    """A fixture of a module: the file in which :func:`make_key` makes its SRS."""

    @pytest.fixture(scope="module")
    def srs(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("srs") / "srs"

    return srs


def add_kzg(
    task: CompiledTask, key: CommitKey, every: int = 1, circuit: str = "step"
) -> CompiledTask:
    """``task``, logging KZG commitments every ``every`` steps."""
    proof = ProofSpec(circuit, key.srs.sha256, key.k, key.blinding, every, (), {})
    hiding = derive_initial_key(proof, task.graph, task.initial_state)
    initial = StepCommitter(proof, task.graph, key).commit_state(task.initial_state, hiding)
    proof = replace(proof, initial=initial, initial_key=identify_key(hiding))
    spec = replace(task.spec, commitments=WITH_KZG, proof=proof)
    return replace(task, spec=spec, kzg=key)


def make_kzg_task(
    path: Path, *, every: int = 1, steps: int = 12, commit_every: int = 2, checkpoint_every: int = 4
) -> CompiledTask:
    """The tiny MLP with KZG commitments over the SRS in ``path``."""
    task = make_tiny_task(
        steps=steps,
        commit_every=commit_every,
        checkpoint_every=checkpoint_every,
        samples=10,
        batch=4,
    )
    return add_kzg(task, make_key(path), every)


def place_secrets(run: Path, hiding: Hiding = SECRETS) -> Path:
    """``run``, a folder whose run is hidden by these secrets."""
    run.mkdir(parents=True, exist_ok=True)
    write_atomic(RunPaths(run).hiding, [structs.encode(hiding)], secret=True)
    return run
