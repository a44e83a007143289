"""The run directory while it is being written: begun, resumed and left consistent at any moment.

What makes a crash harmless: task.cbor comes first, so that a folder belongs to one task from the
start; a checkpoint is renamed into place only after the records up to it are durable; every file
but the log appears whole; and of the log only what the manifest covers is believed, up to the
newest good checkpoint: the rest is cut off and computed again, to the same bytes.  A log that lost
a part of what the manifest covers, or its manifest, is computed anew; one that differs from it was
altered, and is refused.  All of this is so for the log of KZG commitments too, where there is one:
the two are one log in two files.

A checkpoint may be written while records of later steps are appended (``vtrain.train.background``):
the manifest beside it covers the logs as they were at its own step.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
from blake3 import blake3

from vtrain import _core
from vtrain.attest.claims import generate_run_id
from vtrain.commit.checkpoint import (
    checkpoint_chunks,
    compute_checkpoint_size,
    read_checkpoint,
)
from vtrain.commit.files import (
    Chunk,
    FileEntry,
    compute_entry,
    read_entry,
    read_file,
    refuse_link,
    remove_temporaries,
    storing,
    sync_folder,
    write_all,
    write_atomic,
)
from vtrain.commit.hiding import derive_key, draw_hiding, identify_key, read_hiding
from vtrain.commit.kzg_log import (
    KZG_HEADER,
    KzgLog,
    encode_kzg_frame,
    encode_kzg_log,
    iterate_kzg_log,
)
from vtrain.commit.log import LOG_HEADER, RunLog, decode_log, encode_frame, encode_log
from vtrain.commit.state import compute_root_of_state
from vtrain.errors import (
    EncodingError,
    NotProducedError,
    RunError,
    SignatureError,
    StorageError,
)
from vtrain.limits import LIMITS, limits_here
from vtrain.spec.commitment import compute_task_id
from vtrain.train.data import Blocks
from vtrain.train.layout import Manifest, RunPaths, encode_manifest, read_manifest
from vtrain.train.lock import hold_lock
from vtrain.train.signed import goes_on, read_claim_file
from vtrain.wire import structs
from vtrain.wire.claim import Claim, SignedClaim, encode_signed_claim
from vtrain.wire.graph import encode_graph
from vtrain.wire.hiding import Hiding
from vtrain.wire.proof import KzgRecord, encode_kzg_record
from vtrain.wire.record import StepRecord, encode_record
from vtrain.wire.task import decode_task, encode_task

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask

State = Mapping[str, npt.NDArray[Any]]

SOFTWARE = f"vtrain {_core.__version__}"


@dataclass(frozen=True)
class Tally:
    """What the manifest says besides the files: see :class:`vtrain.train.layout.Manifest`."""

    engine: str
    counted_steps: int
    saturation: Mapping[str, int]


@dataclass(frozen=True)
class Mark:
    """The run at one of its steps, but for the state: what a checkpoint of it needs to know."""

    step: int
    logs: Mapping[str, FileEntry]
    tally: Tally


class _LogFile:
    """A log's file, cut to what is kept of it and open for appending."""

    def __init__(self, path: Path, header: bytes, kept: bytes) -> None:
        self._path = path
        if kept == header:  # new, or with nothing in it that stands
            write_atomic(path, [header])
        with storing(path):
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.ftruncate(self._handle, len(kept))
                os.fsync(self._handle)
            except OSError:
                os.close(self._handle)
                raise
        self._hasher, self._size = blake3(kept), len(kept)

    @property
    def entry(self) -> FileEntry:
        """Size and hash of what is in the file."""
        return FileEntry(self._size, self._hasher.digest())

    def append(self, data: bytes) -> None:
        with storing(self._path):
            write_all(self._handle, memoryview(data))
        self._hasher.update(data)
        self._size += len(data)

    def sync(self) -> None:
        with storing(self._path):
            os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


class RunDirectory:
    """A run directory, locked and brought to its newest good checkpoint.

    ``log`` holds the records up to there, ``kzg`` those of the KZG log (None where the task has
    none), ``state`` the tensors and ``hiding`` the secrets behind the KZG log; :meth:`append` and
    :meth:`commit` go on from there.  Made by :func:`open_run`.
    """

    def __init__(
        self, paths: RunPaths, task: CompiledTask, *, keep_data: bool, batch_secret: bytes = b""
    ) -> None:
        self.paths = paths
        self._task = task
        self._files: dict[str, FileEntry] = {}
        self._begin()
        remove_temporaries(paths.root)
        remove_temporaries(paths.checkpoints)
        self._place(paths.graph, [encode_graph(task.graph)])
        self._place(paths.model, [task.model])
        if keep_data or paths.samples.exists():
            self._make_folder(paths.samples.parent)
            remove_temporaries(paths.samples.parent)
            self._place(paths.samples, Blocks(task.samples.table))
        self._place(paths.checkpoint(0), checkpoint_chunks(task.graph, task.initial_state))
        self._manifest = read_manifest(paths) if paths.manifest.exists() else None
        self.run_id = self._recall_run_id()
        self.log, self.kzg, self.state = self._recover()
        self.hiding = Hiding() if self.kzg is None else self._keep_secrets(batch_secret)
        self._settle_checkpoints()
        self._logs = self._open_logs()

    @property
    def manifest(self) -> Manifest | None:
        """The manifest as last read or written; None before the first."""
        return self._manifest

    def close(self) -> None:
        """Close the logs; everything appended is with the operating system."""
        for file in self._logs.values():
            file.close()

    def append(self, record: StepRecord) -> None:
        """Append the next record to the log, not yet durable; EncodingError for another step."""
        self.log.append(record)
        self._logs[self.paths.log].append(encode_frame(record))

    def append_kzg(self, record: KzgRecord) -> None:
        """Append the next record to the KZG log, before or after that of its step in the log;
        EncodingError for a step that is not the next one due, RunError where nothing is logged."""
        if self.kzg is None:
            raise RunError("is of a task without KZG commitments", where=str(self.paths.root))
        self.kzg.append(record)
        self._logs[self.paths.kzg].append(encode_kzg_frame(record))

    def commit(self, state: State, tally: Tally) -> None:
        """Make the run durable up to its last record: logs, then checkpoint, then manifest."""
        self.commit_at(self.mark(tally), state)

    def mark(self, tally: Tally) -> Mark:
        """The run as it is after its last record."""
        logs = {self.paths.name_of(path): file.entry for path, file in self._logs.items()}
        return Mark(self.log.size, logs, tally)

    def commit_at(self, mark: Mark, state: State) -> None:
        """Make the run durable up to ``mark``, of which ``state`` is the state.

        Records may be appended meanwhile, by another thread; nothing else may be done.
        """
        for file in self._logs.values():
            file.sync()
        self._write(self.paths.checkpoint(mark.step), checkpoint_chunks(self._task.graph, state))
        self._prune(mark.step)
        self._write_manifest(mark)

    def write_manifest(self, tally: Tally) -> None:
        """Write the manifest for the logs as they are."""
        self._write_manifest(self.mark(tally))

    def _write_manifest(self, mark: Mark) -> None:
        self._manifest = Manifest(
            run_id=self.run_id,
            task_id=compute_task_id(self._task.spec),
            software=SOFTWARE,
            engine=mark.tally.engine,
            steps=mark.step,
            counted_steps=mark.tally.counted_steps,
            saturation=mark.tally.saturation,
            files={**self._files, **mark.logs},
        )
        write_atomic(self.paths.manifest, [encode_manifest(self._manifest)])

    def write_claim(self, signed: SignedClaim) -> None:
        """Write the claim, the last file of a run."""
        write_atomic(self.paths.claim, [encode_signed_claim(signed)])
        with storing(self.paths.earlier_claim):
            self.paths.earlier_claim.unlink(missing_ok=True)

    def read_claimant(self) -> bytes | None:
        """Public key that signed the claim that is there, or was; None for none or damaged ones."""
        return next((signed.claim.solver for signed in self._list_claims()), None)

    def _list_claims(self) -> Iterator[SignedClaim]:
        """The claim, and the one before it, as far as they are there and signed."""
        for path in (self.paths.claim, self.paths.earlier_claim):
            with suppress(StorageError, NotProducedError, EncodingError, SignatureError):
                yield read_claim_file(path, root=self.paths.root)

    def remove_claim(self) -> None:
        """Put the claim of a run that goes on aside: it says less than the log soon will, and what
        is signed next must not contradict it."""
        with storing(self.paths.claim):
            if os.path.lexists(self.paths.claim):
                os.replace(self.paths.claim, self.paths.earlier_claim)  # noqa: PTH105 - as elsewhere
                sync_folder(self.paths.root)

    def check_own_claim(self, solver: bytes) -> None:
        """EncodingError when the logs are not those that ``solver`` signed before, as far as that
        claim goes: they were altered since, and to sign them would convict their signer.

        A claim of another's, of another run or damaged says nothing here.
        """
        for signed in self._list_claims():
            claim = signed.claim
            own = (solver, self.run_id, compute_task_id(self._task.spec))
            if (claim.solver, claim.run_id, claim.task_id) != own:
                continue
            if claim.log_size <= self.log.size and not self._extends(claim):
                raise EncodingError(
                    f"is not the log of {claim.log_size} steps that you signed: it was altered "
                    f"since. Remove {self.paths.log.name}, manifest.json and the checkpoints, and "
                    "the same command does the run again",
                    where=str(self.paths.log),
                )

    def _extends(self, claim: Claim) -> bool:
        """Whether the logs begin with those that ``claim`` signs."""
        proof, kzg = self._task.spec.kzg, self.kzg

        def list_kzg() -> list[bytes] | None:
            if kzg is None or proof is None:
                return None
            due = claim.log_size // proof.every
            return [encode_kzg_record(record) for record in kzg.records[:due]]

        return goes_on(claim, [encode_record(record) for record in self.log.records], list_kzg)

    def _begin(self) -> None:
        """Make the folder this task's, or see that it is."""
        paths, content = self.paths, encode_task(self._task.spec)
        if not paths.task.exists():
            write_atomic(paths.task, [content])
        _refuse_other(paths, self._task)
        self._files[paths.name_of(paths.task)] = compute_entry([content])
        self._make_folder(paths.checkpoints)

    def _make_folder(self, path: Path) -> None:
        refuse_link(path)
        with storing(path):
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)

    def _write(self, path: Path, chunks: list[Chunk]) -> None:
        write_atomic(path, chunks)
        self._files[self.paths.name_of(path)] = compute_entry(chunks)

    def _place(self, path: Path, chunks: Iterable[Chunk]) -> None:
        """See that a file of known content is there; a missing or damaged one is written anew."""
        entry = compute_entry(chunks)
        if not path.exists() or not self._has(path, entry):
            write_atomic(path, chunks)
        self._files[self.paths.name_of(path)] = entry

    def _has(self, path: Path, entry: FileEntry | None) -> bool:
        """Whether the content of ``path`` is ``entry``; a file of another size is not read."""
        if entry is None or path.stat().st_size != entry.size:
            return False
        return read_entry(path, entry.size, root=self.paths.root) == entry

    def _recall_run_id(self) -> bytes:
        if self._manifest is not None:
            return self._manifest.run_id
        for signed in self._list_claims():  # the manifest was deleted; a claim made stays valid
            return signed.claim.run_id
        return generate_run_id()

    def _recover(self) -> tuple[RunLog, KzgLog | None, State]:
        """Records up to the newest checkpoint that has the root its record names, and its state."""
        records, proof = self._read_records(), self._task.spec.kzg
        kzg = self._read_kzg_records() if proof is not None else ()
        if proof is not None and len(kzg) < len(records) // proof.every:
            records = ()  # the one lost a part of what the other has
        found = self.paths.list_checkpoints()
        gap = self._find_gap(found[-1])
        for step in reversed(found):
            if not 0 < step <= min(len(records), gap):
                continue
            state = self._read_state(step)
            if state is None:
                continue
            if compute_root_of_state(self._task.graph, state) == records[step - 1].state_root:
                return RunLog(records[:step]), self._keep_kzg(kzg, step), state
        return RunLog(), self._keep_kzg(kzg, 0), self._task.initial_state

    def _keep_secrets(self, batch_secret: bytes) -> Hiding:
        """The secrets that the run has, or new ones where nothing is hidden by any yet."""
        path = self.paths.hiding
        if os.path.lexists(path):
            found = read_hiding(path, self.paths.root)
            if batch_secret and found.batches and batch_secret != found.batches:
                raise RunError(
                    "has another secret of batches than the one given: give that with which the "
                    "run began, or train into another folder",
                    where=str(path),
                )
            if not (found.states and found.batches and self._hides(found)):
                raise RunError(
                    "has other secrets than the run goes on with: put back the file that the run "
                    "began with, or train into another folder",
                    where=str(path),
                )
            return found
        if (self.kzg is not None and self.kzg.records) or self._signed_commitments():
            raise RunError(
                "is missing, and the run's commitments are hidden by it: put it back, or train "
                "into another folder",
                where=str(path),
            )
        made = draw_hiding(batch_secret)
        write_atomic(path, [structs.encode(made)], secret=True)
        return made

    def _hides(self, hiding: Hiding) -> bool:
        """Whether the newest records that tell it have the keys that follow from these secrets."""
        task_id = compute_task_id(self._task.spec)
        roots = [record.state_root for record in self.log.records]
        kzg = () if self.kzg is None else self.kzg.records
        for record in kzg[-1:]:
            digest = self.log.records[record.step - 1].batch_digest
            key = derive_key(hiding.batches, task_id, "batch", record.step, digest)
            if identify_key(key) != record.batch_key:
                return False
        places = [
            place
            for record in kzg
            for place in ((record.step - 1, record.before_key), (record.step, record.after_key))
            if place[0] and roots[place[0] - 1]
        ]
        for step, found in places[-1:]:
            key = derive_key(hiding.states, task_id, "state", step, roots[step - 1])
            if identify_key(key) != found:
                return False
        return True

    def _signed_commitments(self) -> bool:
        """Whether the solver signed commitments of this run, of which the log was lost since."""
        proof, task_id = self._task.spec.kzg, compute_task_id(self._task.spec)
        claims = (signed.claim for signed in self._list_claims())
        return proof is not None and any(
            (claim.run_id, claim.task_id) == (self.run_id, task_id)
            and claim.log_size >= proof.every
            for claim in claims
        )

    def _keep_kzg(self, records: tuple[KzgRecord, ...], step: int) -> KzgLog | None:
        proof = self._task.spec.kzg
        return None if proof is None else KzgLog(proof.every, records[: step // proof.every])

    def _find_gap(self, last: int) -> int:
        """The first step up to ``last`` whose checkpoint is due and lost or damaged, else ``last``:
        an audit of the finished run would miss it."""
        size, every = compute_checkpoint_size(self._task.graph), self._task.spec.checkpoint_every
        listed = self._manifest.files if self._manifest is not None else {}
        for step in range(every, last, every):
            path = self.paths.checkpoint(step)
            if not path.is_file() or path.stat().st_size != size:
                return step
            if not self._has(path, listed.get(self.paths.name_of(path))):
                return step
        return last

    def _read_state(self, step: int) -> State | None:
        try:
            path = self.paths.checkpoint(step)
            return read_checkpoint(path, self._task.graph, root=self.paths.root)
        except (EncodingError, NotProducedError):
            return None

    def _read_records(self) -> tuple[StepRecord, ...]:
        data = self._read_covered(self.paths.log)
        return tuple(decode_log(data)) if data else ()

    def _read_kzg_records(self) -> tuple[KzgRecord, ...]:
        data = self._read_covered(self.paths.kzg)
        return tuple(iterate_kzg_log(io.BytesIO(data))) if data else ()

    def _read_covered(self, path: Path) -> bytes:
        """The part of a log that the manifest covers, all of it or nothing: what lies beyond it,
        and a log that lost a part, might have been damaged unseen, and its solver would sign it."""
        if not path.exists():
            return b""
        data = read_file(path, limits_here().log_bytes, root=self.paths.root)
        name = self.paths.name_of(path)
        entry = self._manifest.files.get(name) if self._manifest is not None else None
        if entry is None or len(data) < entry.size:
            return b""
        if compute_entry([data[: entry.size]]) != entry:
            raise EncodingError(
                "is not the log that the manifest describes; delete it to redo the run",
                where=str(path),
            )
        return data[: entry.size]

    def _open_logs(self) -> dict[Path, _LogFile]:
        """The files of the logs, cut to the records kept and open for appending."""
        paths = self.paths
        files = {paths.log: _LogFile(paths.log, LOG_HEADER, encode_log(self.log.records))}
        if self.kzg is not None:
            try:
                kept = encode_kzg_log(self.kzg.records)
                files[paths.kzg] = _LogFile(paths.kzg, KZG_HEADER, kept)
            except StorageError:
                files[paths.log].close()
                raise
        return files

    def _settle_checkpoints(self) -> None:
        """Drop the checkpoints beyond the log, list the others as the manifest had them."""
        known = self._manifest.files if self._manifest is not None else {}
        for step in self.paths.list_checkpoints():
            path = self.paths.checkpoint(step)
            name = self.paths.name_of(path)
            if step > self.log.size:
                with storing(path):
                    path.unlink()
            elif step > 0:
                size = compute_checkpoint_size(self._task.graph)
                self._files[name] = known.get(name) or read_entry(path, size, root=self.paths.root)

    def _prune(self, step: int) -> None:
        """Drop the checkpoint at which an earlier ``--steps`` ended, unless it is due anyway."""
        for other in self.paths.list_checkpoints():
            if other != step and other % self._task.spec.checkpoint_every != 0:
                path = self.paths.checkpoint(other)
                with storing(path):
                    path.unlink(missing_ok=True)
                self._files.pop(self.paths.name_of(path), None)


def _refuse_foreign(paths: RunPaths) -> None:
    """RunError for a folder that has files but no run; nothing is put there, not even a lock."""
    known = {paths.lock.name, paths.hiding.name, f".{paths.task.name}.tmp"}
    foreign = sorted(path.name for path in paths.root.iterdir() if path.name not in known)
    if foreign and not paths.task.exists():
        raise RunError(f"holds {foreign[0]!r} but no run: name a new folder", where=str(paths.root))


def _refuse_other(paths: RunPaths, task: CompiledTask) -> None:
    """RunError for a folder that has a run of another task."""
    found = read_file(paths.task, LIMITS.task_bytes, root=paths.root)
    if found != encode_task(task.spec):
        theirs, ours = compute_task_id(decode_task(found)), compute_task_id(task.spec)
        raise RunError(
            f"holds a run of task {theirs.hex()}, this is task {ours.hex()}", where=str(paths.root)
        )


def _is_as_listed(root: Path, name: str, entry: FileEntry) -> bool:
    try:
        return read_entry(root / name, entry.size, root=root) == entry
    except NotProducedError:
        return False


def is_done(root: Path, task: CompiledTask, steps: int) -> bool:
    """Whether the run in ``root`` has ``steps`` steps or more: its manifest says so, and every file
    is as the manifest says.  Changes nothing and holds no lock.

    RunError when the folder has a run of another task, or files that are no run; StorageError when
    the system refuses to read; EncodingError for an altered manifest.
    """
    paths = RunPaths(root)
    with storing(root):
        if not root.is_dir():
            return False
        _refuse_foreign(paths)
        if not paths.task.exists():
            return False
        _refuse_other(paths, task)
        if not paths.manifest.exists():
            return False
        manifest = read_manifest(paths)
        return manifest.steps >= steps and all(
            _is_as_listed(root, name, entry) for name, entry in manifest.files.items()
        )


@contextmanager
def open_run(
    root: Path, task: CompiledTask, *, keep_data: bool = True, batch_secret: bytes = b""
) -> Iterator[RunDirectory]:
    """Begin a run of ``task`` in ``root``, or go on with the one there; locked until the end.

    ``keep_data`` False leaves the samples out of a new run.  ``batch_secret`` is that of the
    batches' owner, behind the KZG commitments to batches.  RunError when another process holds
    the folder, when it has a run of another task, of other secrets or without its own, or files
    that are no run; StorageError when the system refuses to read or write; EncodingError for a
    manifest or a log that was altered.
    """
    paths = RunPaths(root)
    if os.path.lexists(root) and not root.is_dir():
        raise RunError("is no folder, and a run is one: name another", where=str(root))
    with storing(root):
        root.mkdir(parents=True, exist_ok=True)
        sync_folder(root.parent)
        _refuse_foreign(paths)
    with hold_lock(paths.lock):
        with storing(root):
            run = RunDirectory(paths, task, keep_data=keep_data, batch_secret=batch_secret)
        try:
            yield run
        finally:
            run.close()
