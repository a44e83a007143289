"""What can go wrong around a run, at every single call to the system: nothing committed is lost.

``Saboteur`` stands between vtrain and the calls that change files.  From its chosen call on it
fails them all, as a full disk does, or "kills" the process there: no clean-up of ours runs, since
what it raises is no error that any code here catches.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.exhaustive import spare
from tests.tasks import make_tiny_task
from tests.train.test_runner import check_run
from vtrain.commit.kzg_log import iterate_kzg_log
from vtrain.commit.log import decode_log, encode_log
from vtrain.errors import EncodingError, RunError, StorageError
from vtrain.train import background
from vtrain.train.layout import RunPaths, read_manifest
from vtrain.train.runner import RunSummary, train

TASK = make_tiny_task(steps=8, commit_every=1, checkpoint_every=2, samples=20)
CALLS = ("open", "write", "fsync", "replace", "ftruncate", "unlink", "mkdir")


@pytest.fixture(autouse=True)
def quick_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power does not fail here, and waiting for the disk thousands of times takes minutes."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


class InTurn(Executor):
    """Does its work where it is submitted: checkpoints are then written in the steps' own thread,
    and every call to the system has its number in every run."""

    def __init__(self, threads: int, thread_name_prefix: str) -> None:
        pass

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - as a thread of the library does
            done.set_exception(error)
        return done


class Killed(BaseException):
    """What the process does not survive."""


class Saboteur:
    """Counts the calls that change files and fails those from number ``first`` (0: none) on."""

    def __init__(self, first: int, fault: int | None) -> None:
        self.calls = 0
        self._first = first
        self._fault = fault

    @contextmanager
    def at_work(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._wrap(name, getattr(os, name)))
            yield

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def sabotaged(*args: Any, **kwargs: Any) -> Any:
            reads = name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR)
            if not reads:
                self.calls += 1
                if 0 < self._first <= self.calls:
                    if name == "write":  # a part of it may get through
                        call(args[0], args[1][: len(args[1]) // 2])
                    if self._fault is None:
                        raise Killed
                    raise OSError(self._fault, os.strerror(self._fault))
            return call(*args, **kwargs)

        return sabotaged


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, key: Ed25519PrivateKey) -> RunSummary:
    """An undisturbed run of the same task."""
    return train(TASK, tmp_path_factory.mktemp("whole"), key=key)


def committed_steps(out: Path) -> int:
    """Steps that the folder holds for certain, by its own manifest."""
    paths = RunPaths(out)
    return read_manifest(paths).steps if paths.manifest.exists() else 0


def check_like(whole: RunSummary, out: Path, summary: RunSummary) -> None:
    check_run(out, TASK, summary)
    assert (summary.root, summary.log_root) == (whole.root, whole.log_root)
    assert RunPaths(out).log.read_bytes() == RunPaths(whole.path).log.read_bytes()


def count_calls(
    monkeypatch: pytest.MonkeyPatch, key: Ed25519PrivateKey, out: Path, steps: int | None = None
) -> int:
    saboteur = Saboteur(0, None)
    with saboteur.at_work(monkeypatch):
        train(TASK, out, key=key, engine="cpu", steps=steps)
    return saboteur.calls


@pytest.mark.parametrize(
    ("fault", "in_turn"),
    [(None, True), (None, False), (errno.ENOSPC, True)],
    ids=["killed", "killed in one of two threads", "full disk"],
)
@pytest.mark.parametrize("stride", spare([2, 1], (2).__eq__))
def test_a_run_survives_a_fault_at_every_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: Ed25519PrivateKey,
    whole: RunSummary,
    fault: int | None,
    in_turn: bool,
    stride: int,
) -> None:
    if in_turn:
        monkeypatch.setattr(background, "ThreadPoolExecutor", InTurn)
    calls = count_calls(monkeypatch, key, tmp_path / "counted")
    assert calls > 60
    for first in range(1, calls + 1, stride):
        out = tmp_path / str(first)
        with (
            Saboteur(first, fault).at_work(monkeypatch),
            pytest.raises(Killed if fault is None else StorageError) as caught,
        ):
            train(TASK, out, key=key, engine="cpu")
        if isinstance(caught.value, StorageError):
            assert os.strerror(errno.ENOSPC) in caught.value.message
            assert str(out) in caught.value.where
        committed = committed_steps(out)
        summary = train(TASK, out, key=key, engine="cpu")
        assert summary.resumed_from >= committed
        check_like(whole, out, summary)


def test_a_continued_run_survives_a_fault_at_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Ed25519PrivateKey, whole: RunSummary
) -> None:
    """From a claimed run of five steps, whose last checkpoint and claim give way to later ones."""
    begun = tmp_path / "begun"
    monkeypatch.setattr(background, "ThreadPoolExecutor", InTurn)
    train(TASK, begun, key=key, steps=5, engine="cpu")
    shutil.copytree(begun, tmp_path / "counted")
    calls = count_calls(monkeypatch, key, tmp_path / "counted")
    for first in range(1, calls + 1):
        out = tmp_path / str(first)
        shutil.copytree(begun, out)
        with Saboteur(first, None).at_work(monkeypatch), pytest.raises(Killed):
            train(TASK, out, key=key, engine="cpu")
        summary = train(TASK, out, key=key, engine="cpu")
        assert summary.resumed_from >= 4
        check_like(whole, out, summary)
        assert summary.run_id == read_manifest(RunPaths(begun)).run_id


class Watch:
    """Should the power fail, only what was synced is left: no file may get its name unsynced, no
    checkpoint or manifest before the logs up to it, and no claim before everything else.

    ``named`` has the files in the order in which they got their names.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.named: list[str] = []
        self._paths = paths
        self._unsynced: set[str] = set()
        self._durable = {str(paths.log): 0, str(paths.kzg): 0}

    @contextmanager
    def at_work(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            self._write, self._replace = os.write, os.replace
            patch.setattr(os, "write", self.write)
            patch.setattr(os, "fsync", self.sync)
            patch.setattr(os, "replace", self.replace)
            yield
        assert not self._unsynced

    def write(self, handle: int, data: memoryview) -> int:
        name = _name_of(handle)
        if name not in self._durable:
            self._unsynced.add(name)
        return self._write(handle, data)

    def sync(self, handle: int) -> None:
        name = _name_of(handle)
        self._unsynced.discard(name)
        if name in self._durable:
            self._durable[name] = os.fstat(handle).st_size

    def replace(self, source: Path, target: Path) -> None:
        paths = self._paths
        assert str(source) not in self._unsynced
        if target.parent == paths.checkpoints and target != paths.checkpoint(0):
            assert len(decode_log(self._kept(paths.log))) >= int(target.stem)
            if paths.kzg.exists():
                *_, last = iterate_kzg_log(io.BytesIO(self._kept(paths.kzg)))
                assert last.step >= int(target.stem)
        elif target == paths.manifest:
            files = json.loads(source.read_bytes())["files"]
            for log in {paths.log.name, paths.kzg.name} & files.keys():
                assert self._durable[str(paths.root / log)] >= files[log]["size"]
        elif target == paths.claim:
            assert self._kept(paths.log) == paths.log.read_bytes()
            assert not paths.kzg.exists() or self._kept(paths.kzg) == paths.kzg.read_bytes()
        assert not self._unsynced, "the folder of the file named before"
        self.named.append(target.name)
        self._unsynced.add(str(target.parent))
        self._replace(source, target)

    def _kept(self, path: Path) -> bytes:
        return path.read_bytes()[: self._durable[str(path)]]


def _name_of(handle: int) -> str:
    return str(Path(f"/proc/self/fd/{handle}").readlink())


def test_nothing_is_named_before_what_it_rests_on_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Ed25519PrivateKey
) -> None:
    watch = Watch(RunPaths(tmp_path))
    with watch.at_work(monkeypatch):
        train(TASK, tmp_path, key=key)
    assert watch.named[0] == "task.cbor"
    ends = [f"{step:012d}.safetensors" for step in (2, 4, 6, 8)]
    assert watch.named[-9:] == [*[x for end in ends for x in (end, "manifest.json")], "claim.cbor"]


@pytest.mark.parametrize("fault", [errno.EROFS, errno.EACCES, errno.EIO, errno.EDQUOT])
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Ed25519PrivateKey, fault: int
) -> None:
    train(TASK, tmp_path, key=key, steps=4, engine="cpu")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with (
        Saboteur(1, fault).at_work(monkeypatch),
        pytest.raises(StorageError, match=os.strerror(fault)),
    ):
        train(TASK, tmp_path, key=key, engine="cpu")
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Ed25519PrivateKey
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory"):
        train(TASK, tmp_path / "file" / "run", key=key)
    with pytest.raises(RunError, match="is no folder, and a run is one"):
        train(TASK, tmp_path / "file", key=key)


@pytest.fixture
def run(tmp_path: Path, key: Ed25519PrivateKey) -> RunPaths:
    """A run interrupted after its sixth step: checkpoints 0, 2, 4, 6 and no claim."""
    out = tmp_path / "run"
    train(TASK, out, key=key, steps=6, engine="cpu")
    paths = RunPaths(out)
    paths.claim.unlink()
    return paths


def resume(run: RunPaths, key: Ed25519PrivateKey) -> RunSummary:
    return train(TASK, run.root, key=key, engine="cpu")


def test_a_torn_log_is_computed_anew_at_every_length(
    run: RunPaths, key: Ed25519PrivateKey, whole: RunSummary
) -> None:
    log = RunPaths(whole.path).log.read_bytes()
    covered = run.log.stat().st_size  # what the manifest describes; less is not believed at all
    pristine = run.root.with_name("pristine")
    shutil.copytree(run.root, pristine)
    for length in range(0, len(log), 7):
        shutil.rmtree(run.root)
        shutil.copytree(pristine, run.root)
        run.log.write_bytes(log[:length])
        summary = resume(run, key)
        assert summary.resumed_from == (6 if length >= covered else 0)
        check_like(whole, run.root, summary)


def test_torn_bytes_after_the_log_are_cut(
    run: RunPaths, key: Ed25519PrivateKey, whole: RunSummary
) -> None:
    for tail in (b"\0", b"\x60\0\0", b"\xff" * 4, b"\x02\0\0\0\xa0\xa0"):
        with run.log.open("ab") as file:
            file.write(tail)
        assert resume(run, key).resumed_from >= 6
        check_like(whole, run.root, resume(run, key))


def test_an_altered_log_is_refused(run: RunPaths, key: Ed25519PrivateKey) -> None:
    log = run.log.read_bytes()
    for byte in range(0, len(log), 11):
        altered = bytearray(log)
        altered[byte] ^= 4
        run.log.write_bytes(altered)
        with pytest.raises(EncodingError, match="not the log that the manifest describes"):
            resume(run, key)
    records = decode_log(log)
    run.log.write_bytes(encode_log(records) + b"\0" * 100)
    assert resume(run, key).resumed_from == 6, "what comes after is only torn"


def test_a_deleted_log_is_redone(run: RunPaths, key: Ed25519PrivateKey, whole: RunSummary) -> None:
    run.log.unlink()
    summary = resume(run, key)
    assert summary.resumed_from == 0
    check_like(whole, run.root, summary)


def spoil_nothing(run: RunPaths) -> None:
    pass


def empty_last(run: RunPaths) -> None:
    run.checkpoint(6).write_bytes(b"")


def cut_last(run: RunPaths) -> None:
    os.truncate(run.checkpoint(6), 1000)


def flip_last(run: RunPaths) -> None:
    content = bytearray(run.checkpoint(6).read_bytes())
    content[-1] ^= 1
    run.checkpoint(6).write_bytes(content)


def flip_older(run: RunPaths) -> None:
    content = bytearray(run.checkpoint(4).read_bytes())
    content[-1] ^= 1
    run.checkpoint(4).write_bytes(content)


def delete_last(run: RunPaths) -> None:
    run.checkpoint(6).unlink()


def swap_last(run: RunPaths) -> None:
    six, four = run.checkpoint(6).read_bytes(), run.checkpoint(4).read_bytes()
    run.checkpoint(6).write_bytes(four)
    run.checkpoint(4).write_bytes(six)


def add_later(run: RunPaths) -> None:
    shutil.copy(run.checkpoint(6), run.checkpoint(8))


def replace_all(run: RunPaths) -> None:
    for step in (2, 4, 6):
        shutil.copy(run.checkpoint(0), run.checkpoint(step))


def delete_all(run: RunPaths) -> None:
    shutil.rmtree(run.checkpoints)


def folder_for_last(run: RunPaths) -> None:
    run.checkpoint(6).unlink()
    run.checkpoint(6).symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("spoil", "resumed_from"),
    [
        (spoil_nothing, 6),
        (empty_last, 4),
        (cut_last, 4),
        (flip_last, 4),
        (flip_older, 2),
        (delete_last, 4),
        (swap_last, 2),
        (add_later, 6),
        (replace_all, 0),
        (delete_all, 0),
        (folder_for_last, 4),
    ],
)
def test_a_bad_checkpoint_is_passed_over(
    run: RunPaths,
    key: Ed25519PrivateKey,
    whole: RunSummary,
    spoil: Callable[[RunPaths], None],
    resumed_from: int,
) -> None:
    spoil(run)
    summary = resume(run, key)
    assert summary.resumed_from == resumed_from
    check_like(whole, run.root, summary)


def test_what_lies_beyond_the_log_is_dropped(run: RunPaths, key: Ed25519PrivateKey) -> None:
    """Even when the run does not get there again."""
    run.checkpoint(6).write_bytes(b"")
    for step in (7, 8, 100):
        shutil.copy(run.checkpoint(4), run.checkpoint(step))
    leftover = run.checkpoints / ".000000000007.safetensors.tmp"
    leftover.touch()
    summary = train(TASK, run.root, key=key, steps=5, engine="cpu")
    assert summary.resumed_from == 4
    assert not leftover.exists()
    check_run(run.root, TASK, summary)


@pytest.mark.parametrize("name", ["graph.cbor", "model.onnx", "data/samples.bin"])
@pytest.mark.parametrize("content", [None, b"", b"something else"])
def test_files_that_the_task_gives_are_put_back(
    run: RunPaths, key: Ed25519PrivateKey, whole: RunSummary, name: str, content: bytes | None
) -> None:
    path = run.root / name
    path.unlink() if content is None else path.write_bytes(content)
    if name == "data/samples.bin" and content is None:
        assert not path.exists()
    check_like(whole, run.root, resume(run, key))


def test_a_damaged_manifest_is_named(run: RunPaths, key: Ed25519PrivateKey) -> None:
    run.manifest.write_bytes(run.manifest.read_bytes()[:-5])
    with pytest.raises(EncodingError) as caught:
        resume(run, key)
    assert str(run.manifest) in caught.value.where


def test_a_deleted_manifest_is_written_anew(
    run: RunPaths, key: Ed25519PrivateKey, whole: RunSummary
) -> None:
    first = resume(run, key)
    run.manifest.unlink()
    again = resume(run, key)
    check_like(whole, run.root, again)
    assert again.run_id == first.run_id, "the claim remembers it"


def test_a_damaged_task_is_named(run: RunPaths, key: Ed25519PrivateKey) -> None:
    run.task.write_bytes(run.task.read_bytes()[:-1])
    with pytest.raises(EncodingError):
        resume(run, key)
