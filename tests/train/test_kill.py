"""Real processes: killed at random moments, out of disk, and two in one folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.kzg import add_kzg, make_key, place_secrets
from tests.tasks import make_tiny_task
from tests.train.test_runner import check_run
from vtrain.errors import RunError
from vtrain.train.layout import RunPaths, read_manifest
from vtrain.train.runner import train

WORKER = Path(__file__).with_name("worker.py")
KILLS = 6
AHEAD = 7


@contextmanager
def working(out: Path, task: dict[str, Any], **orders: Any) -> Iterator[subprocess.Popen[str]]:
    """A worker process, dead at the latest when the block ends."""
    text = json.dumps({"out": str(out), "task": task, **orders})
    process = subprocess.Popen(
        [sys.executable, str(WORKER), text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def allow_steps(process: subprocess.Popen[str], steps: int) -> None:
    """Let a worker that holds after each step do so many."""
    stream: IO[str] | None = process.stdin
    if stream is not None:
        stream.write("\n" * steps)
        stream.flush()


def read_line(process: subprocess.Popen[str]) -> str:
    stream: IO[str] | None = process.stdout
    return "" if stream is None else stream.readline().strip()


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "kzg"), [("cpu", False), ("cpu", True)])
def test_a_run_killed_again_and_again(
    tmp_path: Path, key: Ed25519PrivateKey, engine: str, kzg: bool
) -> None:
    kwargs = {"steps": 480, "commit_every": 3, "checkpoint_every": 6}
    task, orders = make_tiny_task(**kwargs), {"engine": engine}
    if kzg:
        orders["srs"] = str(tmp_path / "srs")
        task = add_kzg(task, make_key(tmp_path / "srs"))
        for name in ("whole", "out"):
            place_secrets(tmp_path / name)
    whole = train(task, tmp_path / "whole", key=key)
    out, rng = tmp_path / "out", np.random.default_rng(len(engine))
    killed_at: list[int] = []
    while len(killed_at) < KILLS:
        with working(out, kwargs, hold=True, **orders) as process:
            assert read_line(process) == "ready"
            lines = int(rng.integers(40))
            # Some steps more than are waited for: the kill comes anywhere in them, but before the
            # end of the run however slow this process is.
            allow_steps(process, lines + AHEAD)
            last = "0"
            for _ in range(lines):
                last = read_line(process)
            process.kill()
            assert process.wait() == -9
        killed_at.append(int(last))
    with working(out, kwargs, **orders) as process:
        output, _ = process.communicate()
    assert output.splitlines()[-1] == f"done {(whole.kzg_root or whole.root).hex()}"
    assert max(killed_at) > 6, "no kill came after a checkpoint"
    summary = train(task, out, key=key)
    check_run(out, task, summary)
    assert (summary.resumed_from, summary.log_root) == (480, whole.log_root)
    assert RunPaths(out).log.read_bytes() == RunPaths(tmp_path / "whole").log.read_bytes()
    assert summary.kzg_root == whole.kzg_root


def test_a_process_out_of_disk(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    """The limit lets every file begin and stops the log on its way."""
    kwargs = {"steps": 300, "commit_every": 3, "checkpoint_every": 6}
    out, limit = tmp_path / "out", 16_000
    with working(out, kwargs, engine="numpy", file_limit=limit) as process:
        output, _ = process.communicate()
    assert process.returncode == 1
    last = output.splitlines()[-1]
    assert last.startswith("error storage")
    assert "File too large" in last
    assert str(out) in last
    committed = read_manifest(RunPaths(out)).steps
    assert committed > 100
    summary = train(make_tiny_task(**kwargs), out, key=key)
    assert summary.resumed_from >= committed
    whole = train(make_tiny_task(**kwargs), tmp_path / "whole", key=key)
    assert (summary.root, summary.log_root) == (whole.root, whole.log_root)
    check_run(out, make_tiny_task(**kwargs), summary)


def test_two_processes_in_one_folder(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    kwargs = {"steps": 20, "commit_every": 5, "checkpoint_every": 10}
    task = make_tiny_task(**kwargs)
    with working(tmp_path, kwargs, engine="numpy", hold=True) as process:
        assert [read_line(process) for _ in range(2)] == ["ready", "1"]
        with pytest.raises(RunError, match="another process trains into this folder"):
            train(task, tmp_path, key=key)
        with working(tmp_path, kwargs, engine="numpy") as other:
            output, _ = other.communicate()
        assert output.splitlines()[-1].startswith("error run")
        output, _ = process.communicate("\n" * 20)
        assert output.splitlines()[-1].startswith("done")
    check_run(tmp_path, task, train(task, tmp_path, key=key))
