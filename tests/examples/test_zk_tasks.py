"""The tasks of examples/zk whose steps are proven tile by tile: what their files promise."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from vtrain.prove.tiles.circuits import TILE_CIRCUITS, TILE_K
from vtrain.prove.tiles.statements import StepFacts
from vtrain.prove.tiles.tiling import Tiling
from vtrain.train.task import TaskFile, compile_task, load_task, profile_task


class Expected(NamedTuple):
    """What a step of a task falls into."""

    statements: int
    leaves: int
    state: int
    batch: int
    linear: int
    circuits: int


TASKS = {
    "mlp": Expected(statements=524, leaves=292, state=114, batch=8, linear=19, circuits=16),
    "cnn": Expected(statements=2113, leaves=2057, state=26, batch=8, linear=1335, circuits=17),
}


@pytest.fixture(scope="module")
def folder(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/ as run_tiles.py leaves it: with the model that is too large to lie there."""
    examples, made = repository / "examples", tmp_path_factory.mktemp("examples")
    (made / "mnist").symlink_to(examples / "mnist")
    (made / "zk").mkdir()
    for name in TASKS:
        (made / "zk" / f"tiles-{name}.toml").symlink_to(examples / "zk" / f"tiles-{name}.toml")
    command = [sys.executable, str(examples / "mnist" / "make_models.py"), "--kind", "wide"]
    subprocess.run([*command, "--out", str(made / "zk")], check=True)
    return made / "zk"


def load(folder: Path, name: str) -> TaskFile:
    return load_task(folder / f"tiles-{name}.toml")


@pytest.mark.parametrize("name", TASKS)
def test_a_task_asks_for_tiles_of_few_steps(folder: Path, name: str) -> None:
    file = load(folder, name)
    assert file.commitments == ("blake3", "kzg")
    assert file.proof is not None
    assert (file.proof.circuit, file.proof.k) == ("tiles", TILE_K)
    assert file.proof.every > 1
    assert file.steps % file.proof.every == 0


@pytest.mark.parametrize("name", TASKS)
def test_the_exponents_are_those_that_a_profile_finds(folder: Path, name: str) -> None:
    file = load(folder, name)
    assert dict(profile_task(file).exponents) == dict(file.exponents)


@pytest.mark.parametrize("name", TASKS)
def test_a_step_falls_into_the_statements_of_the_page(
    folder: Path, repository: Path, name: str
) -> None:
    """All of circuits that there are; how many of what, docs/proofs.md says."""
    expected = TASKS[name]
    task = replace(load(folder, name), commitments=("blake3",), proof=None)
    tiling = Tiling(compile_task(task).graph)
    facts = StepFacts(1, 0)
    counts = Counter(tiling.statement(i, facts).circuit for i in range(len(tiling)))
    assert counts.keys() <= TILE_CIRCUITS.keys()
    assert tiling.pinned_counts["before"] == tiling.pinned_counts["after"]
    assert expected == Expected(
        statements=counts.total(),
        leaves=tiling.leaf_count,
        state=tiling.pinned_counts["before"],
        batch=tiling.pinned_counts["batch"],
        linear=counts["linear"],
        circuits=len(counts),
    )
    page = (repository / "docs" / "proofs.md").read_text().replace(",", "")
    assert re.search(rf"(?m)^\| .* \| {expected.statements} \| {expected.leaves} \| ", page)


def test_the_audit_needs_two_proofs_to_exchange(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(repository / "examples" / "zk")
    script = importlib.import_module("run_tiles")
    monkeypatch.setattr(sys, "argv", ["run_tiles.py", "--samples", "1"])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert "an exchange takes two proofs" in capsys.readouterr().err
    assert {task.name for task in script.HERE.glob("tiles-*.toml")} == {
        f"tiles-{name}.toml" for name in TASKS
    }
