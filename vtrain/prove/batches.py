"""Batches: whether a circuit can hold of them, and what their owner signs of them.

A private auditor sees commitments to batches in a run's log, and does not know whose samples they
are of.  Whoever owns the samples can say: the order of the samples is the task's own, so the
commitments to all batches are known before the run begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.commit.files import read_file, storing
from vtrain.commit.kzg_log import Committer
from vtrain.errors import CircuitError, EncodingError, TaskError
from vtrain.limits import LIMITS
from vtrain.spec.domains import BATCHES, compute_domain_hash
from vtrain.spec.samples import Samples
from vtrain.train.data import gather_batch
from vtrain.train.kzg import KzgRecorder
from vtrain.wire import cbor
from vtrain.wire.batches import (
    BatchOrder,
    SignedBatches,
    batches_to_map,
    decode_batches,
    encode_batches,
)
from vtrain.wire.graph import StepGraph
from vtrain.wire.hiding import Hiding
from vtrain.wire.task import TaskSpec

_NO_KZG: Final = (
    'asks for no KZG commitments, so there is nothing to sign: set commitments = ["blake3", "kzg"]'
)


def require_classes(
    task: TaskSpec, graph: StepGraph, samples: Samples, steps: Iterable[int]
) -> None:
    """CircuitError, naming the step and the label, where a batch has a label that is no class.

    The law takes such a label for the nearest class; the one-hot rows of circuits have no place for
    it.  ``vtrain train`` refuses such samples, but a run may come from elsewhere.
    """
    counts = [
        graph.type_of(node.inputs[0]).shape[1]
        for node in graph.nodes
        if node.op in {"cross_entropy", "sub_one_hot"}
    ]
    for step in steps if counts else ():
        _, labels = gather_batch(samples, task.seed, task.batch, step)
        wrong = labels[(labels < 0) | (labels >= min(counts))]
        if wrong.size:
            raise CircuitError(
                f"cannot be proven: its batch has the label {int(wrong.flat[0])}, which is none of "
                f"the {min(counts)} classes (0 to {min(counts) - 1})",
                where=f"step {step}",
            )


def make_order(task: TaskSpec) -> BatchOrder:
    """Which batches a task has; TaskError when it asks for no KZG commitments."""
    proof = task.kzg
    if proof is None:
        raise TaskError(_NO_KZG, where="task.commitments")
    return BatchOrder(
        data_root=task.data.root,
        seed=task.seed,
        batch=task.batch,
        steps=task.steps,
        every=proof.every,
        circuit=proof.circuit,
        srs=proof.srs,
        k=proof.k,
        blinding=proof.blinding,
        windows=task.data.windows,
    )


def _digest(batches: SignedBatches) -> bytes:
    return compute_domain_hash(BATCHES, cbor.encode(batches_to_map(batches)))


def sign_batches(
    task: TaskSpec,
    graph: StepGraph,
    samples: Samples,
    committer: Committer,
    key: PrivateKey,
    secret: bytes,
    *,
    threads: int = 0,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> SignedBatches:
    """Commit to every batch of ``task`` that is logged, and sign as the owner of the samples.

    ``secret`` (32 bytes) hides the batches; the solver needs it to log the same commitments.  Each
    solver has another: what proofs open of a column adds up over all that share it.  TaskError when
    ``committer`` is not of the task's SRS, k and blinding.
    """
    order = make_order(task)
    proof = task.kzg
    if proof is None:
        raise TaskError(_NO_KZG, where="task.commitments")
    by_step = KzgRecorder(task, graph, samples, committer, threads, Hiding(batches=secret))
    total = task.steps // proof.every
    commitments = []
    for index in range(total):
        progress("batches", index, total)
        commitments.append(by_step.commit_batch((index + 1) * proof.every).commitments)
    unsigned = SignedBatches(order, tuple(commitments), public_key(key), b"")
    signature = key.sign(_digest(unsigned))
    return SignedBatches(order, unsigned.commitments, unsigned.owner, signature)


def verify_batches(batches: SignedBatches, owner: bytes, task: TaskSpec) -> None:
    """SignatureError unless ``owner`` signed; EncodingError unless it is of ``task``'s batches."""
    if batches.owner != owner:
        raise EncodingError("is signed by another key than the owner's", where="batches.owner")
    verify_signature(owner, _digest(batches), batches.signature)
    if batches.order != make_order(task):
        raise EncodingError("is about other batches than the task's", where="batches")


def read_batches(path: Path) -> SignedBatches:
    """What a data owner handed over, the signature unchecked; NotProducedError, EncodingError."""
    with storing(path):
        data = read_file(path, LIMITS.batches_bytes)
    try:
        batches = decode_batches(data)
    except EncodingError as error:
        raise EncodingError(f"{error.where}: {error.message}", where=str(path)) from None
    if encode_batches(batches) != data:
        raise EncodingError("is not canonical", where=str(path))
    return batches


def index_batches(batches: SignedBatches) -> dict[int, tuple[bytes, ...]]:
    """Step -> commitments to its batch."""
    every = batches.order.every
    return {(i + 1) * every: found for i, found in enumerate(batches.commitments)}
