"""KZG commitments from the command line: an SRS, a task that names it, a run, its audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.calls import TASK
from tests.kzg import place_secrets
from tests.tasks import make_mlp_onnx, make_samples
from vtrain import cli

PROOF = """
[proof]
circuit = "step"
srs = "lost.srs"
k = 10
every = 3
"""


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Run a command line: exit code, and the object that it prints."""

    def run(*arguments: object) -> tuple[int, Any]:
        capfd.readouterr()
        code = cli.run([*map(str, arguments), "--json"])
        return code, json.loads(capfd.readouterr().out)

    return run


def write_task(call: Callable[..., tuple[int, Any]], tmp_path: Path) -> tuple[Path, Path, str]:
    """An SRS, a task that names it by its hash, and the hash."""
    srs, task = tmp_path / "a.srs", tmp_path / "task.toml"
    made = call("srs", "generate", "--k", 10, "--out", srs)[1]
    (tmp_path / "model.onnx").write_bytes(make_mlp_onnx())
    samples = make_samples((16,), 60, 1)
    np.save(tmp_path / "x.npy", samples.part("x"))
    np.save(tmp_path / "y.npy", samples.part("y"))
    text = TASK.replace("[model]", 'commitments = ["blake3", "kzg"]\n[model]')
    sha256 = f'sha256 = "{made["sha256"]}"\n'
    task.write_text(text + PROOF + sha256)
    return srs, task, made["sha256"]


def test_train_and_verify_with_an_srs(call: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    other, run = tmp_path / "b.srs", tmp_path / "run"
    srs, task, sha256 = write_task(call, tmp_path)
    call("srs", "generate", "--k", 10, "--out", other)
    assert call("profile", task)[0] == 0, "profiling looks at no SRS"

    code, answer = call("train", task, "--out", run)
    assert (code, answer["error"]["where"]) == (2, "proof.srs")
    code, answer = call("train", task, "--out", run, "--srs", other)
    assert (code, answer["error"]["where"]) == (2, "proof.srs")
    code, answer = call("train", task, "--out", run, "--srs", srs)
    assert code == 0
    assert len(bytes.fromhex(answer["kzg_root"])) == 32
    assert 0 < answer["kzg_seconds"] <= answer["seconds"]
    assert [text.split(":")[0] for text in answer["warnings"]] == ["proof.k = 10"]

    assert call("inspect", run)[1]["kzg_root"] == answer["kzg_root"]

    code, report = call("verify", run, "--all", "--srs", srs)
    assert code == 0
    assert "kzg" in [check["name"] for check in report["checks"]]
    code, report = call("verify", run, "--all")
    assert code == 0
    assert "kzg" not in [check["name"] for check in report["checks"]]
    code, report = call("verify", run, "--all", "--srs", other)
    assert code == 3

    task.write_text(task.read_text().replace("lost.srs", "a.srs"))
    code, shown = call("task", "check", task)
    assert code == 0
    assert shown["commitments"] == ["blake3", "kzg"]
    assert (shown["proof"]["srs"], shown["proof"]["every"]) == (sha256, 3)
    assert shown["task_id"] == report["task_id"]


def test_disclosed_steps(call: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    """Their commitments are compared; those of the others stay hidden."""
    run, (srs, task, _) = tmp_path / "run", write_task(call, tmp_path)
    assert call("profile", task)[0] == 0
    assert call("train", task, "--out", run, "--srs", srs)[0] == 0
    (run / "hiding.key").rename(tmp_path / "hiding.key")
    told = tmp_path / "told.key"
    code, answer = call("prove", "disclose", run, "--steps", 3, "--out", told)
    assert (code, answer["error"]["where"]) == (2, str(run / "hiding.key"))
    assert "the keys follow from the solver's secrets" in answer["error"]["message"]
    code, report = call("verify", run, "--all", "--srs", srs)
    assert (code, report["reason"]["where"]) == (3, "step 3: before")
    (tmp_path / "hiding.key").rename(run / "hiding.key")
    code, answer = call("prove", "disclose", run, "--steps", "3-4", "--out", told)
    assert (code, answer["error"]["where"]) == (2, "step 4")
    assert not told.exists()
    code, answer = call("prove", "disclose", run, "--steps", "3,9", "--out", told)
    assert (code, answer) == (0, {"file": str(told), "steps": 2, "keys": 6})
    assert told.stat().st_mode & 0o777 == 0o600
    (run / "hiding.key").rename(tmp_path / "hiding.key")
    code, answer = call("prove", "disclose", run, "--steps", 3, "--out", told)
    assert (code, "exists already" in answer["error"]["message"]) == (2, True)
    code, answer = call("verify", run, "--all", "--hiding", told)
    assert (code, "--hiding has a meaning with --srs alone" in str(answer)) == (2, True)
    code, report = call("verify", run, "--all", "--srs", srs, "--hiding", told)
    assert (code, report["reason"]["where"]) == (3, "step 6: before")
    assert any("KZG commitments of 2 of 4 steps" in line for line in report["strength"]["checked"])
    place_secrets(run)
    told.unlink()
    code, answer = call("prove", "disclose", run, "--steps", 3, "--out", told)
    assert (code, "follows from other secrets" in answer["error"]["message"]) == (2, True)
