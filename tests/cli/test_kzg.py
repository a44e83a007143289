"""KZG commitments from the command line: an SRS, a task that names it, a run, its audit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.test_cli import TASK
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


def test_train_and_verify_with_an_srs(call: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    srs, other, task, run = (tmp_path / name for name in ("a.srs", "b.srs", "task.toml", "run"))
    made = [call("srs", "generate", "--k", 10, "--out", path)[1] for path in (srs, other)]
    (tmp_path / "model.onnx").write_bytes(make_mlp_onnx())
    samples = make_samples((16,), 60, 1)
    np.save(tmp_path / "x.npy", samples.part("x"))
    np.save(tmp_path / "y.npy", samples.part("y"))
    text = TASK.replace("[model]", 'commitments = ["blake3", "kzg"]\n[model]')
    sha256 = f'sha256 = "{made[0]["sha256"]}"\n'
    task.write_text(text + PROOF + sha256)
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
    assert (shown["proof"]["srs"], shown["proof"]["every"]) == (made[0]["sha256"], 3)
    assert shown["task_id"] == report["task_id"]
