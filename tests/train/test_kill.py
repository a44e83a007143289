"""Real processes: killed at random moments, out of disk, and two in one folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests import forked
from tests.kzg import add_kzg, make_key, place_secrets
from tests.tasks import make_tiny_task
from tests.train.test_runner import check_run
from tests.train.worker import work
from vtrain.errors import RunError
from vtrain.train.layout import RunPaths, read_manifest
from vtrain.train.runner import train

KILLS = 6
AHEAD = 7


@dataclass(frozen=True)
class Worker:
    """A process that trains, and what it tells."""

    process: ForkServerProcess
    told: Connection

    def allow_steps(self, steps: int) -> None:
        """Let it do so many, where it holds after each."""
        for _ in range(steps):
            self.told.send(None)

    def read(self) -> str:
        found = self.told.recv()
        assert isinstance(found, str)
        return found

    def read_last(self) -> str:
        """The last that it tells, and its end."""
        last = ""
        with suppress(EOFError):
            while True:
                last = self.read()
        self.process.join()
        return last

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def working(out: Path, task: dict[str, Any], **orders: Any) -> Iterator[Worker]:
    """A worker, dead at the latest when the block ends."""
    ours, theirs = Pipe()
    worker = Worker(forked.start(work, {"out": str(out), "task": task, **orders}, theirs), ours)
    theirs.close()
    try:
        yield worker
    finally:
        worker.kill()
        ours.close()


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
        with working(out, kwargs, hold=True, **orders) as worker:
            assert worker.read() == "ready"
            lines = int(rng.integers(40))
            # Some steps more than are waited for: the kill comes anywhere in them, but before the
            # end of the run however slow this process is.
            worker.allow_steps(lines + AHEAD)
            last = "0"
            for _ in range(lines):
                last = worker.read()
            worker.kill()
            assert worker.process.exitcode == -9
        killed_at.append(int(last))
    with working(out, kwargs, **orders) as worker:
        assert worker.read_last() == f"done {(whole.kzg_root or whole.root).hex()}"
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
    with working(out, kwargs, engine="numpy", file_limit=limit) as worker:
        last = worker.read_last()
        assert worker.process.exitcode == 1
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
    with working(tmp_path, kwargs, engine="numpy", hold=True) as worker:
        assert [worker.read() for _ in range(2)] == ["ready", "1"]
        with pytest.raises(RunError, match="another process trains into this folder"):
            train(task, tmp_path, key=key)
        with working(tmp_path, kwargs, engine="numpy") as other:
            assert other.read_last().startswith("error run")
        worker.allow_steps(20)
        assert worker.read_last().startswith("done")
    check_run(tmp_path, task, train(task, tmp_path, key=key))
