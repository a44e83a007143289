"""Runs made to be judged wrongly: a forgery that passes, or an honest solver who is convicted."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.audit.runs import (
    KEY,
    failed,
    read_leaves,
    refit_manifest,
    sign_again,
    write_leaves,
)
from vtrain.attest.claims import sign_claim
from vtrain.audit.verify import verify
from vtrain.commit.checkpoint import read_checkpoint, write_checkpoint
from vtrain.commit.files import read_entry
from vtrain.engines.cpu import CpuSession
from vtrain.errors import GraphError
from vtrain.graph.legality import check_graph
from vtrain.limits import LIMITS
from vtrain.ops import TABLE
from vtrain.spec.commitment import compute_graph_root, compute_task_id
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.train.runner import train
from vtrain.train.signed import read_claimed_state
from vtrain.train.task import CompiledTask
from vtrain.wire.claim import decode_signed_claim, encode_signed_claim
from vtrain.wire.graph import AttrValue, Node, Ref, StepGraph, encode_graph
from vtrain.wire.record import StepRecord, decode_record, encode_record
from vtrain.wire.task import TaskSpec, encode_task


def adopt_task(run: Path, spec: TaskSpec) -> None:
    """Make ``run`` one of ``spec``, signed and listed by its solver."""
    paths = RunPaths(run)
    paths.task.write_bytes(encode_task(spec))
    old = decode_signed_claim(paths.claim.read_bytes()).claim
    claim = replace(old, task_id=compute_task_id(spec))
    paths.claim.write_bytes(encode_signed_claim(sign_claim(claim, KEY)))
    manifest = replace(read_manifest(paths), task_id=claim.task_id)
    paths.manifest.write_bytes(encode_manifest(manifest))
    refit_manifest(run)


def test_steps_after_the_last_state_root_are_not_verified_unseen(
    run: Path, task: CompiledTask
) -> None:
    """The log ends between two commitments: no replay reaches its last record, a forgery."""
    paths = RunPaths(run)
    session = CpuSession(task.graph, task.samples)
    session.load_state(read_checkpoint(paths.checkpoint(8), task.graph))
    session.step()
    session.step()
    paths.checkpoint(12).unlink()
    write_checkpoint(paths.checkpoint(10), task.graph, session.read_state())
    manifest = read_manifest(paths)
    files = dict(manifest.files)
    del files[paths.name_of(paths.checkpoint(12))]
    files[paths.name_of(paths.checkpoint(10))] = read_entry(paths.checkpoint(10))
    paths.manifest.write_bytes(encode_manifest(replace(manifest, files=files)))
    leaves = read_leaves(run)[:11]
    leaves[10] = encode_record(replace(decode_record(leaves[10]), loss=-12345))
    write_leaves(run, leaves)
    sign_again(run)
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    assert [check.where for check in failed(report)] == ["claim.cbor: claim.log_size"]


@pytest.mark.parametrize("held", [0, 1 << 30])
@pytest.mark.parametrize("engine", ["cpu", "numpy"])
def test_samples_that_are_changed_or_cut_during_the_audit_do_not_matter(
    run: Path, engine: str, held: int
) -> None:
    """The audit works on a copy, in memory or in a file of its own: a table that is cut while it is
    mapped would end the process."""
    paths = RunPaths(run)
    content = paths.samples.read_bytes()

    for damaged in (bytes(len(content)), b""):

        def damage(what: str, done: int, total: int, damaged: bytes = damaged) -> None:
            if what == "checkpoints" and done == 0:
                paths.samples.write_bytes(damaged)

        paths.samples.write_bytes(content)
        limits = replace(LIMITS, held_samples_bytes=held)
        report = verify(run, all_=True, engine=engine, progress=damage, limits=limits)
        assert paths.samples.read_bytes() == damaged
        assert report.verdict == "verified"


def test_a_batch_that_comes_out_differently_in_a_replay_convicts_nobody(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest was recomputed before, and was right: something is wrong on this side."""

    class Confused(CpuSession):
        def step(self) -> StepRecord:
            return replace(super().step(), batch_digest=bytes(32))

    monkeypatch.setattr(
        "vtrain.audit.verify.open_session",
        lambda engine, graph, samples, *, threads, saving: Confused(
            graph, samples, threads=threads
        ),
    )
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    assert [check.name for check in failed(report)] == ["replay"]


def test_a_checkpoint_that_the_audit_ignores_is_not_what_is_delivered(
    run: Path, task: CompiledTask
) -> None:
    """`verify` passes over a file of step 99; `export` and `eval` must not take it for the last."""
    paths = RunPaths(run)
    state = {
        name: np.array(value)
        for name, value in read_checkpoint(paths.checkpoint(12), task.graph).items()
    }
    state["step"][...] = 99
    write_checkpoint(paths.checkpoint(99), task.graph, state)
    assert verify(run, all_=True).verdict == "verified"
    assert int(read_claimed_state(paths)[2]["step"]) == 12


def add_nodes(
    task: CompiledTask, *extra: tuple[str, dict[str, AttrValue], tuple[int, ...]]
) -> StepGraph:
    """The task's graph with dead nodes at its end: operator, attributes, inputs."""
    nodes = list(task.graph.nodes)
    for op, attrs, inputs in extra:
        output = TABLE[op].infer(attrs, [nodes[at].outputs[0] for at in inputs])
        refs = tuple(Ref(at) for at in inputs)
        nodes.append(Node(f"extra {len(nodes)}", op, attrs, refs, (output,)))
    return StepGraph(tuple(nodes))


@pytest.mark.parametrize("stride", [2**33, 2**63, 2**64 - 1])
def test_no_legal_graph_is_beyond_an_engine(task: CompiledTask, stride: int) -> None:
    """The law takes any stride, the cpu engine none above 2^32: legality must draw the line."""
    prepared = next(i for i, node in enumerate(task.graph.nodes) if node.op == "normalize")
    size = task.graph.nodes[prepared].outputs[0].size
    count = len(task.graph.nodes)
    pool: dict[str, AttrValue] = {
        "kernel": (2, 2),
        "strides": (stride, stride),
        "pads": (0, 0, 0, 0),
    }
    with pytest.raises(GraphError):
        check_graph(
            add_nodes(
                task,
                ("reshape", {"shape": (1, 4, size // 4, 1)}, (prepared,)),
                ("max_pool", pool, (count,)),
            )
        )


def test_a_graph_that_the_engine_refuses_is_a_report(
    run: Path, task: CompiledTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise GraphError("not for this engine", where="node n")

    monkeypatch.setattr("vtrain.audit.verify.open_session", refuse)
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    assert report.reason is not None
    assert report.reason.name == "replay"


def test_a_dead_node_makes_another_task(run: Path, task: CompiledTask) -> None:
    """An honest-looking run of a graph with one more node is not a run of the task agreed on."""
    graph = add_nodes(task, ("tensor_digest", {}, (0,)))
    check_graph(graph)
    RunPaths(run).graph.write_bytes(encode_graph(graph))
    adopt_task(run, replace(task.spec, graph_root=compute_graph_root(graph)))
    assert verify(run, all_=True).verdict == "verified"
    report = verify(run, all_=True, task_id=task.task_id)
    assert report.verdict == "inconclusive"
    assert "task" in [check.name for check in failed(report)]


@pytest.mark.parametrize(
    "change",
    [
        {"commit_every": 1},
        {"commit_every": 12, "checkpoint_every": 12},
        {"seed": 8},
        {"batch": 2},
        {"checkpoint_every": 6},
        {"checkpoint_every": 2},
    ],
)
def test_a_task_that_contradicts_its_run_is_never_verified(
    run: Path, task: CompiledTask, change: dict[str, int]
) -> None:
    adopt_task(run, replace(task.spec, **change))  # type: ignore[arg-type]
    assert verify(run, all_=True).verdict == "inconclusive"


@pytest.mark.parametrize("steps", [6, 24])
def test_a_task_that_the_claim_is_not_about_verifies_and_convicts_nothing(
    run: Path, task: CompiledTask, steps: int
) -> None:
    """Of fewer steps it would make the honest claim one of too many, of more one of another task;
    the manifest says nothing against it."""
    RunPaths(run).task.write_bytes(encode_task(replace(task.spec, steps=steps)))
    refit_manifest(run)
    report = verify(run, all_=True)
    assert report.verdict == "inconclusive"
    assert [check.name for check in failed(report)] == ["task"]
    assert "the signed claim is about" in failed(report)[0].detail


def test_edges_of_the_intervals(tmp_path: Path, task: CompiledTask) -> None:
    """One step; a checkpoint interval far beyond the last step."""
    for number, change in enumerate(
        ({"steps": 2, "checkpoint_every": 2**40}, {"steps": 2, "checkpoint_every": 2})
    ):
        spec = replace(task.spec, **change)  # type: ignore[arg-type]
        out = tmp_path / str(number)
        train(replace(task, spec=spec), out, key=KEY)
        report = verify(out, all_=True, task_id=compute_task_id(spec))
        assert report.verdict == "verified"
        assert report.segments == ((1, 2),)


def hold_other_files(run: Path) -> None:
    (run / "CLAIM.CBOR").write_bytes(b"")
    (run / "checkpoints" / "000000000004.SAFETENSORS").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(run) + b"/\xff\x1b[2JVERIFIED")).write_bytes(b"")
    os.mkfifo(run / "pipe")


def test_what_is_no_part_of_the_run_does_not_matter(run: Path, task: CompiledTask) -> None:
    hold_other_files(run)
    assert verify(run, all_=True, task_id=task.task_id).verdict == "verified"


def test_a_run_of_links_is_no_run(run: Path, task: CompiledTask) -> None:
    """Every file is a link to one outside of the run."""
    outside = run.parent / "outside"
    outside.mkdir()
    for number, path in enumerate(sorted(path for path in run.rglob("*") if path.is_file())):
        target = outside / str(number)
        path.rename(target)
        path.symlink_to(target)
    assert verify(run, all_=True, task_id=task.task_id).verdict == "inconclusive"
