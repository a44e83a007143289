"""Making runs, honest and not, and bringing them into a consistent false form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain import _core
from vtrain.attest.claims import sign_claim
from vtrain.commit.files import read_entry
from vtrain.commit.kzg_log import KZG_HEADER, iterate_kzg_frames
from vtrain.commit.log import LOG_HEADER, frame, iterate_frames
from vtrain.commit.openings import compute_root
from vtrain.commit.state import compute_root_of_state
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.step import STEP_STATE, Momentum, OneHot, StepPlan, emit_batch, emit_state_root
from vtrain.spec.commitment import compute_graph_root, compute_tensor_digest
from vtrain.spec.domains import KZG_LOG, RUN_LOG
from vtrain.spec.number import LOSS_EXPONENT
from vtrain.train.data import build_samples
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.train.task import CompiledTask
from vtrain.wire.claim import Claim, decode_signed_claim, encode_signed_claim
from vtrain.wire.report import Check, Report
from vtrain.wire.task import LAW_VERSION, TaskSpec

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def make_smallest_task(weights: Sequence[int] = (1, -1)) -> CompiledTask:
    """A legal task of few bytes, all of whose bits can be tried: it counts steps, keeps a weight
    as it is, and records the square of a label as its loss."""
    data = build_samples(np.array([[3], [5]], np.uint8), np.array([100, 7], np.int16))
    plan = StepPlan(data.spec, OneHot(1), "mse", Momentum(0, (0,), (0,), 0), 1, 1, 1)
    b = GraphBuilder(FixedExponents({}))
    t = b.emit("state", "t", (), name=STEP_STATE, dtype="i64", shape=(), exponent=0)
    w = b.emit("state", "w", (), name="w", dtype="i32", shape=(len(weights),), exponent=24)
    x, y = emit_batch(b, plan, t)
    digests = [b.emit("tensor_digest", name, (ref,)) for name, ref in (("dx", x), ("dy", y))]
    batch = b.emit("batch_digest", "batch", digests)
    loss = b.emit("square_sum", "loss", (y,), shift=-LOSS_EXPONENT)
    after = {STEP_STATE: b.emit("increment", "next", (t,)), "w": w}
    for name, ref in after.items():
        b.emit("next_state", f"{name}'", (ref,), name=name)
    record = (after[STEP_STATE], batch, loss, emit_state_root(b, after))
    b.emit("record", "record", record, commit_every=1)
    graph, model = b.graph(), b"a model that nobody looks into"
    state: dict[str, npt.NDArray[Any]] = {
        STEP_STATE: np.zeros((), np.int64),
        "w": np.array(weights, np.int32),
    }
    spec = TaskSpec(
        law=LAW_VERSION,
        graph_root=compute_graph_root(graph),
        initial_state_root=compute_root_of_state(graph, state),
        model_digest=compute_tensor_digest(np.frombuffer(model, np.uint8)),
        data=data.spec,
        exponents={},
        seed=1,
        steps=2,
        batch=1,
        commit_every=1,
        checkpoint_every=2,
        commitments=("blake3",),
    )
    return CompiledTask(spec, graph, data, state, model, "smallest")


def refit_manifest(run: Path) -> None:
    """Let the manifest list the files as they are: nothing in it is authority."""
    paths = RunPaths(run)
    manifest = read_manifest(paths)
    files = {name: read_entry(run / name) for name in manifest.files}
    paths.manifest.write_bytes(encode_manifest(replace(manifest, files=files)))


def read_leaves(run: Path) -> list[bytes]:
    """The log's leaves, undecoded."""
    with RunPaths(run).log.open("rb") as file:
        return [leaf for _, leaf in iterate_frames(file)]


def write_leaves(run: Path, leaves: Sequence[bytes]) -> None:
    """Replace the log, and refit the manifest; the claim stays as it is."""
    framed = b"".join(len(leaf).to_bytes(4, "little") + leaf for leaf in leaves)
    RunPaths(run).log.write_bytes(LOG_HEADER + framed)
    refit_manifest(run)


def read_kzg_leaves(run: Path) -> list[bytes]:
    """The leaves of the KZG log, undecoded."""
    with RunPaths(run).kzg.open("rb") as file:
        return [leaf for _, leaf in iterate_kzg_frames(file)]


def write_kzg_leaves(run: Path, leaves: Sequence[bytes]) -> None:
    """Replace the KZG log, and refit the manifest; the claim stays as it is."""
    RunPaths(run).kzg.write_bytes(KZG_HEADER + b"".join(map(frame, leaves)))
    refit_manifest(run)


def sign_again(run: Path, key: Ed25519PrivateKey = KEY) -> None:
    """Sign the logs as they are, as the solver would."""
    paths, leaves = RunPaths(run), read_leaves(run)
    tree = _core.MerkleTree(RUN_LOG)
    for leaf in leaves:
        tree.append(leaf)
    old = decode_signed_claim(paths.claim.read_bytes()).claim
    kzg_root = compute_root(KZG_LOG, read_kzg_leaves(run)) if paths.kzg.exists() else b""
    root = tree.root(len(leaves))
    claim = Claim(old.run_id, old.solver, old.task_id, len(leaves), root, kzg_root)
    paths.claim.write_bytes(encode_signed_claim(sign_claim(claim, key)))
    manifest = replace(read_manifest(paths), steps=len(leaves))
    paths.manifest.write_bytes(encode_manifest(manifest))


def failed(report: Report) -> list[Check]:
    """The checks that failed."""
    return [check for check in report.checks if check.status == "failed"]


def reason_of(report: Report) -> Check:
    """The check that the verdict rests on."""
    assert report.reason is not None
    return report.reason
