"""Runs: begun, stopped, resumed, finished; and folders that are not theirs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import vtrain
from tests.tasks import make_tiny_task
from vtrain.attest.claims import verify_claim
from vtrain.commit.checkpoint import read_checkpoint
from vtrain.commit.files import read_entry
from vtrain.commit.log import RunLog, decode_log
from vtrain.commit.state import compute_root_of_state
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import DataError, RunError, SignatureError, StorageError, TaskError
from vtrain.spec.samples import Samples
from vtrain.train.layout import RunPaths, read_manifest
from vtrain.train.runner import RunSummary, train
from vtrain.train.task import CompiledTask
from vtrain.wire.claim import decode_signed_claim
from vtrain.wire.graph import decode_graph
from vtrain.wire.task import decode_task

TASK = make_tiny_task(steps=20, commit_every=2, checkpoint_every=4)


def check_run(out: Path, task: CompiledTask, summary: RunSummary) -> None:
    """Everything in a run directory agrees with the task, the summary and itself."""
    paths = RunPaths(out)
    assert decode_task(paths.task.read_bytes()) == task.spec
    assert decode_graph(paths.graph.read_bytes()) == task.graph
    assert paths.model.read_bytes() == task.model
    records = decode_log(paths.log.read_bytes())
    assert len(records) == summary.steps
    signed = decode_signed_claim(paths.claim.read_bytes())
    verify_claim(signed)
    assert signed.claim.log_root == RunLog(records).root() == summary.log_root
    assert signed.claim.log_size == summary.steps
    assert (signed.claim.run_id, signed.claim.task_id) == (summary.run_id, summary.task_id)
    assert summary.root == records[-1].state_root
    for step in paths.list_checkpoints():
        state = read_checkpoint(paths.checkpoint(step), task.graph)
        expected = records[step - 1].state_root if step else task.spec.initial_state_root
        assert compute_root_of_state(task.graph, state) == expected
        assert int(state["step"]) == step
    every = task.spec.checkpoint_every
    due = {*range(0, summary.steps + 1, every), summary.steps}
    assert set(paths.list_checkpoints()) == due
    manifest = read_manifest(paths)
    assert (manifest.run_id, manifest.task_id) == (summary.run_id, summary.task_id)
    assert manifest.steps == summary.steps
    files = {paths.name_of(path) for path in out.rglob("*") if path.is_file()}
    own = {"claim.cbor", "manifest.json", "history.jsonl", ".lock"}
    if task.spec.kzg is not None:
        own.add("hiding.key")
        assert paths.hiding.stat().st_mode & 0o777 == 0o600
    assert files - set(manifest.files) == own
    for name, entry in manifest.files.items():
        assert read_entry(out / name) == entry, name


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_a_run(tmp_path: Path, key: Ed25519PrivateKey, kind: str, loss: str) -> None:
    task = make_tiny_task(kind, loss=loss, steps=10, checkpoint_every=5)
    seen: list[tuple[int, int, float, float]] = []
    summary = train(task, tmp_path / "a" / "run", key=key, progress=lambda *step: seen.append(step))
    check_run(tmp_path / "a" / "run", task, summary)
    assert (summary.steps, summary.resumed_from) == (10, 0)
    assert [step[:2] for step in seen] == [(step, 10) for step in range(1, 11)]
    assert all(loss > 0 and rate > 0 for _, _, loss, rate in seen)


def test_both_engines_write_the_same_log(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    for engine in ("numpy", "cpu"):
        summary = train(TASK, tmp_path / engine, key=key, engine=engine)
        check_run(tmp_path / engine, TASK, summary)
        assert summary.engine == read_manifest(RunPaths(tmp_path / engine)).engine == engine
    logs = [RunPaths(tmp_path / engine).log.read_bytes() for engine in ("numpy", "cpu")]
    assert logs[0] == logs[1]


def test_a_run_in_parts_is_the_run_in_one(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    whole = train(TASK, tmp_path / "whole", key=key)
    old: list[RunSummary] = []
    for steps in (2, 6, 8, 14, None):
        summary = train(TASK, tmp_path / "parts", key=key, steps=steps)
        assert summary.resumed_from == (old[-1].steps if old else 0)
        assert summary.steps == (steps or 20)
        check_run(tmp_path / "parts", TASK, summary)
        old.append(summary)
    assert len({summary.run_id for summary in old}) == 1
    assert (summary.root, summary.log_root) == (whole.root, whole.log_root)
    assert summary.run_id != whole.run_id
    log = RunLog(decode_log(RunPaths(tmp_path / "parts").log.read_bytes()))
    assert [log.root(summary.steps) for summary in old] == [summary.log_root for summary in old]


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    first = train(TASK, tmp_path, key=key)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = train(TASK, tmp_path, key=key)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert dataclasses.replace(again, seconds=0, resumed_from=0, engine="") == dataclasses.replace(
        first, seconds=0, resumed_from=0, engine=""
    )
    assert again.resumed_from == 20


def test_a_signed_run_stays_with_its_key(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    train(TASK, tmp_path, key=key)
    claim = RunPaths(tmp_path).claim.read_bytes()
    with pytest.raises(RunError, match="another key"):
        train(TASK, tmp_path, key=Ed25519PrivateKey.from_private_bytes(bytes(32)))
    assert RunPaths(tmp_path).claim.read_bytes() == claim


@pytest.mark.parametrize("steps", [0, -2, 3, 22])
def test_steps_must_end_at_a_commitment(tmp_path: Path, key: Ed25519PrivateKey, steps: int) -> None:
    with pytest.raises(RunError, match="multiple of 2"):
        train(TASK, tmp_path, key=key, steps=steps)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", [-1, 1025, 2**40])
def test_threads_beyond_reason_are_refused(
    tmp_path: Path, key: Ed25519PrivateKey, threads: int
) -> None:
    with pytest.raises(RunError) as caught:
        train(make_tiny_task(), tmp_path / "run", key=key, threads=threads)
    assert caught.value.where == f"threads {threads}"
    assert not (tmp_path / "run").exists()


def test_a_key_may_be_a_path_at_the_front_alone(tmp_path: Path) -> None:
    run, key = tmp_path / "run", str(tmp_path / "solver.pem")
    with pytest.raises(SignatureError, match="load_key"):
        train(make_tiny_task(), run, key=key)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=r"solver\.pem: cannot be read"):
        vtrain.train(make_tiny_task(), run, key=key)
    assert not run.exists()


def test_a_task_must_end_at_a_commitment(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    spec = dataclasses.replace(TASK.spec, steps=21)
    with pytest.raises(TaskError, match="multiple of commit_every"):
        train(dataclasses.replace(TASK, spec=spec), tmp_path, key=key)


def test_a_run_does_not_go_back(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    train(TASK, tmp_path, key=key, steps=8)
    claim = RunPaths(tmp_path).claim.read_bytes()
    with pytest.raises(RunError, match="has 8 steps already"):
        train(TASK, tmp_path, key=key, steps=4)
    assert RunPaths(tmp_path).claim.read_bytes() == claim


def test_another_task_is_refused(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    train(TASK, tmp_path, key=key, steps=4)
    other = make_tiny_task(steps=20, commit_every=2, checkpoint_every=4, seed=8)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="holds a run of task") as caught:
        train(other, tmp_path, key=key)
    assert TASK.task_id.hex() in str(caught.value)
    assert other.task_id.hex() in str(caught.value)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_folder_of_other_things_is_refused(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match="'thesis\\.tex' but"):
        train(TASK, tmp_path, key=key)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_data_that_does_not_match_its_root(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    table = TASK.samples.table.copy()
    table[17, 3] ^= 1
    task = dataclasses.replace(TASK, samples=Samples(TASK.samples.spec, table))
    with pytest.raises(DataError, match="not those that the task commits to"):
        train(task, tmp_path, key=key)
    other = make_tiny_task(samples=61)
    with pytest.raises(DataError):
        train(dataclasses.replace(TASK, samples=other.samples), tmp_path, key=key)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_or_a_state_that_the_task_does_not_pin(
    tmp_path: Path, key: Ed25519PrivateKey
) -> None:
    graph = make_tiny_task(steps=20, commit_every=4, checkpoint_every=4).graph
    with pytest.raises(TaskError) as caught:
        train(dataclasses.replace(TASK, graph=graph), tmp_path, key=key)
    assert caught.value.where == "graph_root"
    state = dict(TASK.initial_state)
    state["param/b1"] = state["param/b1"] + np.int32(1)
    with pytest.raises(TaskError) as caught:
        train(dataclasses.replace(TASK, initial_state=state), tmp_path, key=key)
    assert caught.value.where == "initial_state_root"


def test_data_can_be_left_out(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    train(TASK, tmp_path, key=key, steps=4, keep_data=False)
    assert not RunPaths(tmp_path).samples.exists()
    assert "data/samples.bin" not in read_manifest(RunPaths(tmp_path)).files
    summary = train(TASK, tmp_path, key=key)
    check_run(tmp_path, TASK, summary)
    assert np.fromfile(RunPaths(tmp_path).samples, np.uint8).size == TASK.samples.table.size


def test_saturation_is_counted_over_all_parts(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    task = make_tiny_task(steps=20, commit_every=2, checkpoint_every=4, margin=0)
    session = NumpySession(task.graph, task.samples)
    session.load_state(task.initial_state)
    for _ in range(20):
        session.step()
    expected = session.saturation()
    assert expected, "a margin of 0 bits must saturate"
    train(task, tmp_path, key=key, steps=6)
    summary = train(task, tmp_path, key=key)
    assert {site.site: site.count for site in summary.saturation} == expected
    manifest = read_manifest(RunPaths(tmp_path))
    assert (dict(manifest.saturation), manifest.counted_steps) == (expected, 20)
    sizes = {node.name: node.outputs[0].size for node in task.graph.nodes}
    for site in summary.saturation:
        assert site.ppm == pytest.approx(1e6 * site.count / (20 * sizes[site.site]))
    assert summary.warnings == tuple(site for site in summary.saturation if site.ppm > 100)
    ppm = [site.ppm for site in summary.saturation]
    assert ppm == sorted(ppm, reverse=True)
