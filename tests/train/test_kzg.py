"""Runs with a KZG log: what is in it, resuming, faults at every call, the task file."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import vtrain
from tests.exhaustive import spare
from tests.kzg import (
    BLINDING,
    SECRETS,
    add_kzg,
    make_key,
    make_kzg_task,
    make_srs_fixture,
    place_secrets,
)
from tests.tasks import make_mlp_onnx, make_tiny_task
from tests.train.test_faults import InTurn, Killed, Saboteur, Watch, committed_steps
from tests.train.test_runner import check_run
from vtrain.commit.hiding import (
    derive_elements,
    derive_initial_key,
    derive_key,
    encode_elements,
    identify_key,
)
from vtrain.commit.kzg_log import KzgLog, encode_kzg_log, iterate_kzg_log
from vtrain.commit.state import compute_root_of_state
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import EncodingError, NotProducedError, RunError, StorageError, TaskError
from vtrain.prove.backend.kzg import CommitKey
from vtrain.spec.commitment import compute_task_id
from vtrain.train import background
from vtrain.train.data import gather_batch
from vtrain.train.kzg import KzgRecorder
from vtrain.train.layout import RunPaths, read_manifest
from vtrain.train.runner import RunSummary, train
from vtrain.train.signed import read_claim, read_kzg_record
from vtrain.train.store import open_run
from vtrain.train.task import CompiledTask, compile_task, load_task, profile_task, write_exponents
from vtrain.wire.claim import decode_signed_claim
from vtrain.wire.proof import CircuitPin, KzgRecord

srs = make_srs_fixture()


@pytest.fixture(scope="module")
def task(srs: Path) -> CompiledTask:
    return make_kzg_task(srs, steps=8, commit_every=1, checkpoint_every=2)


@pytest.fixture(scope="module")
def whole(
    task: CompiledTask, tmp_path_factory: pytest.TempPathFactory, key: Ed25519PrivateKey
) -> RunSummary:
    """An undisturbed run."""
    return train(task, place_secrets(tmp_path_factory.mktemp("whole")), key=key)


@pytest.fixture
def quick_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def read_records(run: Path) -> list[KzgRecord]:
    with RunPaths(run).kzg.open("rb") as file:
        return list(iterate_kzg_log(file))


def check_like(whole: RunSummary, task: CompiledTask, out: Path, summary: RunSummary) -> None:
    check_run(out, task, summary)
    for name in ("root", "log_root", "kzg_root"):
        assert getattr(summary, name) == getattr(whole, name)
    assert RunPaths(out).kzg.read_bytes() == RunPaths(whole.path).kzg.read_bytes()


@pytest.mark.parametrize("engine", ["cpu", "numpy"])
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_logs_the_commitments_to_its_tensors(
    tmp_path: Path, srs: Path, key: Ed25519PrivateKey, every: int, engine: str
) -> None:
    """Each made here on its own, from the law's engine, a column for each 184 values."""
    task = make_kzg_task(srs, every=every, steps=8)
    summary = train(task, place_secrets(tmp_path), key=key, engine=engine)
    check_run(tmp_path, task, summary)
    assert "kzg.bin" in read_manifest(RunPaths(tmp_path)).files
    records = read_records(tmp_path)
    assert [record.step for record in records] == list(range(every, 9, every))
    commit_key, session = make_key(srs), NumpySession(task.graph, task.samples)
    task_id, proof = compute_task_id(task.spec), task.spec.proof
    assert proof is not None

    def commit(key: bytes, *tensors: npt.NDArray[Any]) -> tuple[bytes, ...]:
        flat = [int(value) for tensor in tensors for value in tensor.ravel()]
        columns = [flat[i : i + 184] for i in range(0, len(flat), 184)]
        return tuple(
            commit_key.commit_scalars(encode_elements([*column, *derive_elements(key, number)]))
            for number, column in enumerate(columns)
        )

    def commit_state(step: int) -> tuple[tuple[bytes, ...], bytes]:
        state = session.read_state()
        root = compute_root_of_state(task.graph, state)
        found = derive_key(SECRETS.states, task_id, "state", step, root)
        if step == 0:
            found = derive_initial_key(proof, task.graph, state)
        tensors = (state[name] for name in sorted(state) if name != "step")
        return commit(found, *tensors), identify_key(found)

    session.load_state(task.initial_state)
    for step in range(1, 9):
        before, before_key = commit_state(step - 1)
        done = session.step()
        if step % every == 0:
            x, y = gather_batch(task.samples, task.spec.seed, task.spec.batch, step)
            found = derive_key(SECRETS.batches, task_id, "batch", step, done.batch_digest)
            after, after_key = commit_state(step)
            keys = before_key, identify_key(found), after_key
            expected = KzgRecord(step, before, commit(found, x, y), after, *keys)
            assert records[step // every - 1] == expected
    claim = decode_signed_claim(RunPaths(tmp_path).claim.read_bytes()).claim
    assert claim.kzg_root == KzgLog(every, records).root() == summary.kzg_root
    assert 0 < summary.kzg_seconds < summary.seconds


def test_a_task_without_kzg_has_no_trace_of_it(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    summary = train(make_tiny_task(steps=5), tmp_path, key=key)
    paths = RunPaths(tmp_path)
    assert not paths.kzg.exists()
    assert decode_signed_claim(paths.claim.read_bytes()).claim.kzg_root == b"" == summary.kzg_root
    with (
        open_run(tmp_path, make_tiny_task(steps=5)) as run,
        pytest.raises(RunError, match="without KZG"),
    ):
        run.append_kzg(KzgRecord(1, (), (), (), bytes(32), bytes(32), bytes(32)))


def test_the_recorder_gives_the_record_between_two_states(
    task: CompiledTask, whole: RunSummary, srs: Path
) -> None:
    """What a prover compares with."""
    session = NumpySession(task.graph, task.samples)
    session.load_state(task.initial_state)
    session.step()
    before = session.read_state()
    session.step()
    recorder = KzgRecorder(task.spec, task.graph, task.samples, make_key(srs), hiding=SECRETS)
    record = recorder.compute_record(2, before, session.read_state())
    assert record == read_records(whole.path)[1]
    paths = RunPaths(whole.path)
    claim = read_claim(paths).claim
    assert read_kzg_record(paths, task.spec, claim, 2) == record
    for step in (0, 9):
        with pytest.raises(NotProducedError, match=f"no commitments to step {step}"):
            read_kzg_record(paths, task.spec, claim, step)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("stops", [(2, 8), (1, 3, 4, 8), (6, 8)])
def test_a_run_in_parts_is_the_run_in_one(
    tmp_path: Path, srs: Path, key: Ed25519PrivateKey, every: int, stops: tuple[int, ...]
) -> None:
    task = make_kzg_task(srs, steps=8, commit_every=1, checkpoint_every=4, every=every)
    whole = train(task, place_secrets(tmp_path / "whole"), key=key)
    place_secrets(tmp_path / "out")
    for stop in stops:
        summary = train(task, tmp_path / "out", key=key, steps=stop)
        assert len(read_records(tmp_path / "out")) == stop // every
    check_like(whole, task, tmp_path / "out", summary)
    again = train(task, tmp_path / "out", key=key)
    assert (again.resumed_from, again.kzg_root) == (8, whole.kzg_root)


@pytest.mark.usefixtures("quick_sync")
@pytest.mark.parametrize(
    ("fault", "stride"),  # a disk that is full is in test_faults.py, as is a fault at each call
    spare([(None, 6), (None, 1), (errno.ENOSPC, 1)], (None, 6).__eq__),
    ids=["killed", "killed anywhere", "full disk"],
)
def test_a_run_survives_a_fault_at_every_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: Ed25519PrivateKey,
    task: CompiledTask,
    whole: RunSummary,
    fault: int | None,
    stride: int,
) -> None:
    monkeypatch.setattr(background, "ThreadPoolExecutor", InTurn)
    counter, counted = Saboteur(0, None), place_secrets(tmp_path / "counted")
    with counter.at_work(monkeypatch):
        train(task, counted, key=key, threads=1)
    for first in range(1, counter.calls + 1, stride):
        out = place_secrets(tmp_path / str(first))
        with (
            Saboteur(first, fault).at_work(monkeypatch),
            pytest.raises(Killed if fault is None else StorageError),
        ):
            train(task, out, key=key, threads=1)
        committed = committed_steps(out)
        summary = train(task, out, key=key, threads=1)
        assert summary.resumed_from >= committed
        check_like(whole, task, out, summary)
        shutil.rmtree(out)


def cut(run: RunPaths) -> None:
    run.kzg.write_bytes(run.kzg.read_bytes()[:-1])


def cut_all(run: RunPaths) -> None:
    run.kzg.write_bytes(b"")


def delete(run: RunPaths) -> None:
    run.kzg.unlink()


def delete_other(run: RunPaths) -> None:
    run.log.unlink()


def add(run: RunPaths) -> None:
    run.kzg.write_bytes(run.kzg.read_bytes() + b"torn")


@pytest.mark.parametrize(
    ("spoil", "resumed_from"), [(cut, 0), (cut_all, 0), (delete, 0), (delete_other, 0), (add, 8)]
)
def test_a_lost_part_of_the_log_is_computed_anew(
    tmp_path: Path,
    key: Ed25519PrivateKey,
    task: CompiledTask,
    whole: RunSummary,
    spoil: Callable[[RunPaths], None],
    resumed_from: int,
) -> None:
    out = Path(shutil.copytree(whole.path, tmp_path / "out"))
    spoil(RunPaths(out))
    summary = train(task, out, key=key)
    assert summary.resumed_from == resumed_from
    check_like(whole, task, out, summary)


def test_an_altered_log_is_refused(
    tmp_path: Path, key: Ed25519PrivateKey, task: CompiledTask, whole: RunSummary
) -> None:
    out = Path(shutil.copytree(whole.path, tmp_path / "out"))
    paths = RunPaths(out)
    data = bytearray(paths.kzg.read_bytes())
    data[100] ^= 1
    paths.kzg.write_bytes(bytes(data))
    with pytest.raises(EncodingError, match="delete it to redo the run") as caught:
        train(task, out, key=key)
    assert caught.value.where == str(paths.kzg)


def test_nothing_is_named_before_the_log_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Ed25519PrivateKey, task: CompiledTask
) -> None:
    watch = Watch(RunPaths(tmp_path))
    with watch.at_work(monkeypatch):
        train(task, tmp_path, key=key)
    assert watch.named[-3:] == [f"{8:012d}.safetensors", "manifest.json", "claim.cbor"]


class OtherKey:
    """A key that says it is another."""

    def __init__(self, key: CommitKey, **changes: Any) -> None:
        self._key = key
        self.srs = replace(key.srs, sha256=changes.get("srs", key.srs.sha256))
        self.k = changes.get("k", key.k)
        self.blinding = changes.get("blinding", key.blinding)

    def commit_many(
        self, arrays: Iterable[npt.NDArray[Any]], hiding: Iterable[bytes], *, threads: int = 0
    ) -> list[bytes]:
        return self._key.commit_many(arrays, hiding, threads=threads)


@pytest.mark.parametrize(
    ("changes", "where"),
    [({"srs": bytes(32)}, "proof.srs"), ({"k": 9}, "proof.k"), ({"blinding": 4}, "proof.blinding")],
)
def test_another_key_is_refused(
    tmp_path: Path,
    srs: Path,
    key: Ed25519PrivateKey,
    task: CompiledTask,
    changes: dict[str, Any],
    where: str,
) -> None:
    with pytest.raises(TaskError) as caught:
        train(replace(task, kzg=OtherKey(make_key(srs), **changes)), tmp_path / "out", key=key)
    assert caught.value.where == where
    with pytest.raises(TaskError, match="none was opened"):
        train(replace(task, kzg=None), tmp_path / "out", key=key)
    assert not (tmp_path / "out").exists()


def test_false_initial_commitments_are_refused(
    tmp_path: Path, key: Ed25519PrivateKey, task: CompiledTask
) -> None:
    assert task.spec.proof is not None
    proof = replace(task.spec.proof, initial=task.spec.proof.initial[::-1])
    false = replace(task, spec=replace(task.spec, proof=proof))
    with pytest.raises(TaskError) as caught:
        train(false, tmp_path / "out", key=key)
    assert caught.value.where == "proof.initial"


# --- the task file

TASK = """
[task]
name = "kzg"
seed = 3
steps = 4
batch = 4
checkpoint_every = 2
{commitments}

[model]
onnx = "mlp.onnx"
loss = "cross_entropy"

[data]
kind = "npz"
path = "data.npz"

[data.prepare]
scale = "1/255"

[optimizer]
learning_rate = 0.1
"""
KZG = 'commitments = ["blake3", "kzg"]'
PROOF = '\n[proof]\ncircuit = "step"\nsrs = "srs"\nk = 8\n'


@pytest.fixture(scope="module")
def files(srs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A folder with what a task file names, and the exponents of the task."""
    folder = tmp_path_factory.mktemp("task")
    make_key(srs)
    shutil.copy(srs, folder / "srs")
    (folder / "mlp.onnx").write_bytes(make_mlp_onnx())
    samples = make_tiny_task("mlp").samples
    np.savez(folder / "data.npz", x=samples.part("x"), y=samples.part("y"))
    path = folder / "plain.toml"
    path.write_text(TASK.format(commitments=""))
    write_exponents(path, profile_task(load_task(path)).exponents)
    return folder, dict(load_task(path).exponents)


def write_task(files: tuple[Path, dict[str, int]], commitments: str, proof: str) -> Path:
    folder, exponents = files
    path = folder / "task.toml"
    path.write_text(TASK.format(commitments=commitments) + proof)
    write_exponents(path, exponents)
    return path


def test_a_task_file_with_kzg(
    files: tuple[Path, dict[str, int]], tmp_path: Path, key: Ed25519PrivateKey
) -> None:
    circuits = f'every = 2\n[proof.circuits.step]\ncircuit = "{"ab" * 32}"\nkey = "{"CD" * 32}"\n'
    path = write_task(files, KZG, PROOF + circuits)
    compiled = vtrain.compile(path)
    proof, commit_key = compiled.spec.kzg, make_key(files[0] / "srs")
    assert proof is not None
    assert (proof.circuit, proof.k, proof.blinding, proof.every) == ("step", 8, BLINDING, 2)
    assert proof.srs == commit_key.srs.sha256
    assert proof.circuits == {"step": CircuitPin(b"\xab" * 32, b"\xcd" * 32)}
    bare = replace(proof, initial=(), circuits={})
    expected = add_kzg(replace(compiled, spec=replace(compiled.spec, proof=bare)), commit_key)
    assert expected.spec.proof is not None
    assert proof.initial == expected.spec.proof.initial
    summary = vtrain.train(path, tmp_path / "run", key=key)
    assert len(read_records(tmp_path / "run")) == 2
    assert summary.kzg_root


def test_circuits_may_be_pinned_and_nothing_logged(files: tuple[Path, dict[str, int]]) -> None:
    plain = compile_task(load_task(write_task(files, "", "")))
    assert plain.spec.proof is None
    pinned = vtrain.compile(write_task(files, 'commitments = ["blake3"]', PROOF)).spec
    assert pinned.kzg is None
    assert pinned.proof is not None
    assert pinned.proof.initial == ()
    assert replace(pinned, proof=None) == plain.spec


def test_the_srs_may_come_from_elsewhere(
    files: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    other = Path(shutil.copy(files[0] / "srs", tmp_path / "other"))
    sha256 = make_key(other).srs.sha256.hex()
    path = write_task(files, KZG, PROOF.replace('"srs"', '"lost"') + f'sha256 = "{sha256}"\n')
    with pytest.raises(TaskError, match="the file is missing") as caught:
        compile_task(load_task(path), CommitKey)
    assert caught.value.where == "proof.srs"
    assert compile_task(load_task(path, srs=other), CommitKey).spec.kzg is not None
    path = write_task(files, "", "")
    with pytest.raises(TaskError, match="yet an SRS was given"):
        load_task(path, srs=other)


@pytest.mark.parametrize(
    ("commitments", "proof", "where"),
    [
        (KZG, "", "proof"),
        ('commitments = "kzg"', PROOF, "task.commitments"),
        ('commitments = ["kzg"]', PROOF, "task.commitments"),
        ('commitments = ["kzg", "blake3"]', PROOF, "task.commitments"),
        (KZG, PROOF.replace('"step"', '"whole"'), "proof.circuit"),
        (KZG, PROOF.replace("8", "29"), "proof.k"),
        (KZG, PROOF.replace("k = 8", ""), "proof.k"),
        (KZG, PROOF.replace("8", "9"), "proof.srs"),
        (KZG, PROOF.replace('"srs"', '"mlp.onnx"'), "proof.srs"),
        (KZG, PROOF.replace('"step"', '"tiles"'), "proof.k"),
        (KZG, PROOF + "every = 0\n", "proof.every"),
        (KZG, PROOF + "blinding = 260\n", "proof.srs"),
        (KZG, PROOF + "blinding = 253\n", "proof.k"),
        (KZG, PROOF + f'sha256 = "{"0" * 64}"\n', "proof.srs"),
        (KZG, PROOF + 'sha256 = "0"\n', "proof.sha256"),
        (KZG, PROOF + "evry = 1\n", "proof.evry"),
        (KZG, PROOF + "circuits = 1\n", "proof.circuits"),
        (KZG, PROOF + "[proof.circuits]\nstep = 1\n", "proof.circuits.step"),
        (KZG, PROOF + '[proof.circuits.step]\nkey = "00"\n', "proof.circuits.step.circuit"),
        (
            KZG,
            PROOF + f'[proof.circuits.step]\ncircuit = "{"0" * 64}"\nkey = "0"\n',
            "proof.circuits.step.key",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_key(
    files: tuple[Path, dict[str, int]], commitments: str, proof: str, where: str
) -> None:
    path = write_task(files, commitments, proof)
    with pytest.raises(TaskError) as caught:
        vtrain.compile(path)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("circuit", "name", "message"),
    [
        ("step", "stepp", "unknown table, and step is missing: did you mean that?"),
        ("step", "step-clamp", "unknown table, and step-clamps is missing"),
        ("step", "square", "unknown table"),
        ("tiles", "step", "unknown table"),
        ("step", "step-clamps", ""),
        ("tiles", "square", ""),
    ],
)
def test_pins_are_of_circuits_that_there_are(
    files: tuple[Path, dict[str, int]], circuit: str, name: str, message: str
) -> None:
    """Else a typo is signed, and the task can never be proven."""
    pins = f'[proof.circuits.{name}]\ncircuit = "{"0" * 64}"\nkey = "{"1" * 64}"\n'
    path = write_task(files, KZG, PROOF.replace('"step"', f'"{circuit}"') + pins)
    if not message:
        proof = load_task(path).proof
        assert proof is not None
        assert [*proof.circuits] == [name]
        return
    with pytest.raises(TaskError) as caught:
        load_task(path)
    assert (caught.value.where, caught.value.message[: len(message)]) == (
        f"proof.circuits.{name}",
        message,
    )


def test_without_what_opens_it_no_srs_is_opened(files: tuple[Path, dict[str, int]]) -> None:
    with pytest.raises(TaskError) as caught:
        compile_task(load_task(write_task(files, KZG, PROOF)))
    assert caught.value.where == "proof.srs"


def test_the_whole_file_is_what_the_records_make(whole: RunSummary) -> None:
    data = RunPaths(whole.path).kzg.read_bytes()
    assert encode_kzg_log(read_records(whole.path)) == data
