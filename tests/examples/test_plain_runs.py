"""The tasks of the examples, cut to a few steps: the plain verifier audits their runs as we do.

Those of examples/shakespeare are in tests of their own, small.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vtrain
from tests.examples.plain import audit_plainly
from vtrain import cli
from vtrain.attest.keys import PrivateKey, generate_key, load_key
from vtrain.audit.algebraic import AlgebraicAudit, verify_algebraic
from vtrain.audit.verify import verify
from vtrain.demo.cheats import alter_gradient, train_falsely
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.srs import generate_srs
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask, compile_task, load_task
from vtrain.wire.report import Report

MISSING = ("proof", "failed", "step 2")
KEY = PrivateKey.from_private_bytes(bytes(range(32)))


def shorten(task: CompiledTask) -> CompiledTask:
    """The task, of two stretches between state roots, with a checkpoint after each."""
    every = task.spec.commit_every
    return replace(task, spec=replace(task.spec, steps=2 * every, checkpoint_every=every))


def compare(run: Path, *arguments: str, **options: Any) -> str:
    """The verdict of a replay on which both agree."""
    return agree(verify(run, **options), audit_plainly(run, *arguments))


def compare_values(run: Path) -> str:
    """The verdict of an algebraic check of step 2 on which both agree."""
    theirs = audit_plainly(run, "--mode", "algebraic", "--steps", "2")
    return agree(verify_algebraic(run, AlgebraicAudit(steps=(2,))), theirs)


def agree(ours: Report, theirs: Any) -> str:
    """The verdict of two reports that have the same checks with the same places."""
    told = [(c["name"], c["status"], c["where"].split(": ")[0]) for c in theirs["checks"]]
    assert told == [(c.name, c.status, c.where.split(": ")[0]) for c in ours.checks]
    assert theirs["verdict"] == ours.verdict
    return ours.verdict


@pytest.mark.parametrize("name", ["mnist/tiny", "mnist/mlp", "mnist/cnn", "text/chars"])
def test_it_audits_a_run_of_a_task_file(name: str, repository: Path, tmp_path: Path) -> None:
    task = shorten(vtrain.compile(repository / "examples" / f"{name}.toml"))
    train(task, tmp_path / "run", key=KEY)
    assert compare(tmp_path / "run", "--all", all_=True) == "verified"


def test_it_checks_values_and_a_store_of_a_task_file(repository: Path, tmp_path: Path) -> None:
    run, key = tmp_path / "run", tmp_path / "key.pem"
    generate_key(key)
    task = shorten(vtrain.compile(repository / "examples" / "mnist" / "cnn.toml"))
    train(task, run, key=load_key(key))
    assert cli.run(["trace", str(run), "--step", "2", "--key", str(key)]) == 0
    assert compare_values(run) == "conditional"
    store = tmp_path / "store"
    assert cli.run(["publish", str(run), str(store)]) == 0
    url = f"file://{store}"
    theirs = audit_plainly(url, "--all")
    assert agree(vtrain.verify(url, all=True), theirs) == "verified"
    product = next(node for node in task.graph.nodes if node.op == "matmul").outputs[0]
    for path in (run / "traces" / "chunks").iterdir():
        if path.stat().st_size == product.size * 8:
            path.write_bytes(bytes(product.size * 8))
    assert compare_values(run) == "inconclusive"


def test_it_convicts_a_false_run_of_a_task_file(repository: Path, tmp_path: Path) -> None:
    task = shorten(vtrain.compile(repository / "examples" / "mnist" / "cnn.toml"))
    train_falsely(task, tmp_path / "run", key=KEY, cheat=alter_gradient, step=2)
    assert compare(tmp_path / "run", "--all", all_=True) == "fraud"


def test_it_audits_a_run_with_kzg_commitments(repository: Path, tmp_path: Path) -> None:
    """That of examples/zk, in columns of few rows: the records, and not what they are of."""
    srs = tmp_path / "srs"
    generate_srs(srs, 9, seed=b"examples")
    file = load_task(repository / "examples" / "zk" / "task.toml", srs=srs)
    assert file.proof is not None
    file = replace(file, proof=replace(file.proof, k=9))
    train(shorten(compile_task(file, CommitKey)), tmp_path / "run", key=KEY)
    assert compare(tmp_path / "run", "--all", all_=True) == "verified"
    mode = ("--mode", "proof", "--private", "--srs", str(srs), "--steps", "2")
    report = audit_plainly(tmp_path / "run", *mode)
    last = [(check["name"], check["status"], check["where"]) for check in report["checks"][-3:]]
    assert last == [("kzg_records", "passed", "kzg.bin"), ("srs", "passed", ""), MISSING]


@pytest.mark.slow
def test_it_audits_a_run_of_a_module(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CNN with dropout and AdamW, from torch."""
    monkeypatch.syspath_prepend(repository / "examples")
    example = importlib.import_module("from_torch")
    torch.manual_seed(0)
    task = shorten(example.make_task(example.Net()))
    train(task, tmp_path / "run", key=KEY)
    assert compare(tmp_path / "run", "--all", all_=True) == "verified"
