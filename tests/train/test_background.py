"""Checkpoints that are written while the run goes on: nothing is lost, and no error either."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.tasks import make_tiny_task
from tests.train.test_faults import InTurn
from tests.train.test_runner import check_run
from vtrain.cli.common import VtrainCommand
from vtrain.commit.files import compute_entry
from vtrain.commit.log import decode_log
from vtrain.engines.base import Snapshot, SnapshotSession, take_snapshot
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import KernelError, RunError, StorageError
from vtrain.train import background, runner
from vtrain.train.layout import RunPaths, read_manifest
from vtrain.train.lock import hold_lock
from vtrain.train.runner import train
from vtrain.train.store import RunDirectory
from vtrain.wire.record import StepRecord

TASK = make_tiny_task(steps=20, commit_every=1, checkpoint_every=5)
LONG = 60.0
"""Seconds after which a test has failed; no test that passes waits for them."""


class Stopped(BaseException):
    """Like KeyboardInterrupt: no error that any code here catches."""


class LateSession(NumpySession):
    """Its snapshots are there only ``later`` steps after they were taken, or when they are let."""

    def __init__(self, later: int | None = 2) -> None:
        super().__init__(TASK.graph, TASK.samples)
        self._later, self._done = later, 0
        self._waiting: list[tuple[int, threading.Event]] = []
        self.in_time = True

    def step(self) -> StepRecord:
        record = super().step()
        self._done += 1
        for due, event in self._waiting:
            if due <= self._done:
                event.set()
        return record

    def let(self) -> None:
        """Give out everything."""
        for _, event in self._waiting:
            event.set()

    def snapshot(self) -> Snapshot:
        state, event = self.read_state(), threading.Event()
        if self._later is None:
            self._waiting.append((TASK.spec.steps + 1, event))
        elif self._done + self._later <= TASK.spec.steps:
            self._waiting.append((self._done + self._later, event))
        else:
            event.set()

        def wait() -> dict[str, Any]:
            self.in_time &= event.wait(LONG)
            return state

        return wait


def use(monkeypatch: pytest.MonkeyPatch, session: NumpySession) -> None:
    monkeypatch.setattr(runner, "open_session", lambda *args, **kwargs: session)


def test_steps_go_on_while_a_checkpoint_is_written(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a run whose engine gives its state at once, byte for byte."""
    whole = train(TASK, tmp_path / "whole", key=key, engine="numpy")
    session = LateSession()
    use(monkeypatch, session)
    summary = train(TASK, tmp_path / "late", key=key, engine="numpy")
    assert session.in_time
    check_run(tmp_path / "late", TASK, summary)
    assert (summary.root, summary.log_root) == (whole.root, whole.log_root)
    for path in (tmp_path / "whole" / "checkpoints").iterdir():
        assert (tmp_path / "late" / "checkpoints" / path.name).read_bytes() == path.read_bytes()


def test_a_manifest_covers_the_log_of_its_own_step(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has two records more when the checkpoint is written, which the disk may lose."""
    session = LateSession()
    use(monkeypatch, session)

    def stop(done: int, steps: int, loss: float, rate: float) -> None:
        if done == 7:
            raise Stopped

    with pytest.raises(Stopped):
        train(TASK, tmp_path, key=key, engine="numpy", progress=stop)
    assert session.in_time
    paths = RunPaths(tmp_path)
    log, manifest = paths.log.read_bytes(), read_manifest(paths)
    entry = manifest.files["log.bin"]
    assert (manifest.steps, len(decode_log(log))) == (5, 7)
    assert len(decode_log(log[: entry.size])) == 5
    assert compute_entry([log[: entry.size]]) == entry
    monkeypatch.undo()
    summary = train(TASK, tmp_path, key=key, engine="cpu")
    assert summary.resumed_from == 5
    check_run(tmp_path, TASK, summary)


def test_a_run_that_is_stopped_finishes_its_checkpoint_before_it_unlocks(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on with the folder finds nobody else in it."""
    session = LateSession(later=None)
    use(monkeypatch, session)
    paths, messages = RunPaths(tmp_path), list[str]()
    wait, commit_at = ThreadPoolExecutor.shutdown, RunDirectory.commit_at

    def let_and_wait(self: ThreadPoolExecutor, *args: Any) -> None:
        session.let()
        wait(self, *args)

    def commit_and_look(self: RunDirectory, *args: Any) -> None:
        commit_at(self, *args)
        with pytest.raises(RunError) as caught, hold_lock(paths.lock):
            pass
        messages.append(caught.value.message)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", let_and_wait)
    monkeypatch.setattr(RunDirectory, "commit_at", commit_and_look)

    def stop(done: int, steps: int, loss: float, rate: float) -> None:
        if done == 7:
            raise Stopped

    with pytest.raises(Stopped):
        train(TASK, tmp_path, key=key, engine="numpy", progress=stop)
    assert read_manifest(paths).steps == 5
    assert session.in_time
    assert messages == ["another process trains into this folder"]
    monkeypatch.undo()
    assert train(TASK, tmp_path, key=key, engine="cpu").resumed_from == 5


class FailingSession(NumpySession):
    """The snapshot taken after ``step`` steps cannot be brought."""

    def __init__(self, step: int) -> None:
        super().__init__(TASK.graph, TASK.samples)
        self._failing = step

    def snapshot(self) -> Snapshot:
        state = self.read_state()

        def bring() -> dict[str, Any]:
            if int(state["step"]) == self._failing:
                raise KernelError("an illegal memory access", where="device Fake")
            return state

        return bring


@pytest.mark.parametrize(("step", "kept"), [(5, 0), (10, 5), (20, 15)])
def test_a_device_that_fails_beside_the_steps_ends_the_run(
    step: int,
    kept: int,
    tmp_path: Path,
    key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the last checkpoint too: no claim is signed over a log whose state is lost."""
    use(monkeypatch, FailingSession(step))
    with pytest.raises(KernelError, match="an illegal memory access"):
        train(TASK, tmp_path, key=key, engine="numpy")
    assert not RunPaths(tmp_path).claim.exists()
    monkeypatch.undo()
    summary = train(TASK, tmp_path, key=key, engine="cpu")
    assert summary.resumed_from == kept
    check_run(tmp_path, TASK, summary)


def fail_checkpoint(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """Fail the renaming of a checkpoint; the result counts how often that was done."""
    replace, failed = os.replace, list[Path]()

    def refuse(source: Path, target: Path) -> None:
        if target.stem == f"{step:012d}":
            failed.append(target)
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    return lambda: len(failed)


class Late(InTurn):
    """Does its work when somebody waits for it."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return LateFuture(lambda: super(Late, self).submit(work, *args, **kwargs))


class LateFuture(Future[Any]):
    def __init__(self, work: Callable[[], Future[Any]]) -> None:
        super().__init__()
        self._work = cache(work)

    def result(self, timeout: float | None = None) -> Any:
        return self._work().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._work().exception()


@pytest.mark.parametrize("executor", [InTurn, Late])
def test_a_run_is_the_same_whenever_its_checkpoints_are_written(
    executor: type[Executor],
    tmp_path: Path,
    key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "ThreadPoolExecutor", executor)
    check_run(tmp_path, TASK, train(TASK, tmp_path, key=key, engine="cpu"))


@pytest.mark.parametrize(("executor", "last"), [(ThreadPoolExecutor, 9), (InTurn, 5), (Late, 9)])
def test_a_disk_that_fails_beside_the_steps_is_told_by_one_of_the_next(
    executor: type[Executor],
    last: int,
    tmp_path: Path,
    key: Ed25519PrivateKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the first that begins when it has happened, at the latest where another is due."""
    monkeypatch.setattr(background, "ThreadPoolExecutor", executor)
    count = fail_checkpoint(monkeypatch, 5)
    done = list[int]()
    with pytest.raises(StorageError, match="No space left"):
        train(TASK, tmp_path, key=key, engine="cpu", progress=lambda *step: done.append(step[0]))
    assert count() == 1
    assert 5 <= max(done) <= last
    monkeypatch.undo()
    assert train(TASK, tmp_path, key=key, engine="cpu").resumed_from == 0


def test_an_error_beside_another_is_noted(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = LateSession()
    use(monkeypatch, session)
    fail_checkpoint(monkeypatch, 5)

    def stop(done: int, steps: int, loss: float, rate: float) -> None:
        if done == 6:
            session.let()
            raise Stopped

    with pytest.raises(Stopped) as caught:
        train(TASK, tmp_path, key=key, engine="numpy", progress=stop)
    [note] = caught.value.__notes__
    assert "No space left on device [storage]" in note


def test_a_command_shows_the_notes_of_its_error() -> None:
    @click.command("fail", cls=VtrainCommand)
    def fail() -> None:
        error = RunError("is too small", where="device")
        error.add_note("A checkpoint was not written: no space \x1b[2J")
        raise error

    shown = CliRunner().invoke(fail, standalone_mode=False).stderr
    assert [line.partition(": ")[2] for line in shown.splitlines()] == [
        "device: is too small [run]",
        "A checkpoint was not written: no space \\x1b[2J",
    ]


def test_an_engine_without_snapshots_is_read_at_once() -> None:
    session = NumpySession(TASK.graph, TASK.samples)
    session.load_state(TASK.initial_state)
    assert not isinstance(session, SnapshotSession)
    snapshot = take_snapshot(session)
    session.step()
    assert snapshot().keys() == TASK.initial_state.keys()
    for name, value in snapshot().items():
        assert value.tobytes() == TASK.initial_state[name].tobytes()
