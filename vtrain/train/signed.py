"""Reading what a claim signs: the claim itself, the log under its root, states under the log's.

An audit goes by these, and so does whoever takes delivery of a model.  Whoever runs a graph has it
from :func:`read_legal_graph`, or checks it as that does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vtrain import _core
from vtrain.attest.claims import verify_claim
from vtrain.commit.checkpoint import compute_checkpoint_size, read_checkpoint
from vtrain.commit.files import open_file, read_file, storing
from vtrain.commit.hiding import read_hiding
from vtrain.commit.kzg_log import iterate_kzg_frames
from vtrain.commit.log import iterate_frames
from vtrain.commit.openings import compute_root
from vtrain.commit.state import compute_root_of_state
from vtrain.engines.base import State
from vtrain.errors import EncodingError, NotProducedError, RunError, SignatureError
from vtrain.graph.legality import check_graph
from vtrain.limits import LIMITS, Limits, limits_here
from vtrain.spec.commitment import compute_graph_root, compute_task_id
from vtrain.spec.domains import KZG_LOG, RUN_LOG
from vtrain.train.layout import RunPaths
from vtrain.wire.claim import Claim, SignedClaim, decode_signed_claim, encode_signed_claim
from vtrain.wire.graph import StepGraph, decode_graph
from vtrain.wire.hiding import Hiding
from vtrain.wire.proof import KzgRecord, decode_kzg_record
from vtrain.wire.record import decode_record
from vtrain.wire.task import TaskSpec, decode_task, encode_task


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What is wrong with the bytes of a file is said with its name."""
    try:
        with storing(path):
            yield
    except (EncodingError, SignatureError) as error:
        where = f"{path}: {error.where}" if error.where else str(path)
        raise type(error)(error.message, where=where) from None


def read_claim(paths: RunPaths, limit: int = LIMITS.claim_bytes) -> SignedClaim:
    """The claim of a run, its signature checked; errors as of :func:`read_claim_file`."""
    if not os.path.lexists(paths.claim) and os.path.lexists(paths.manifest):
        raise NotProducedError(
            "the file is missing: the run is unfinished, and nothing is claimed of it; training it "
            "again (`vtrain train`) goes on and signs a claim at the end",
            where=str(paths.claim),
        )
    return read_claim_file(paths.claim, limit, root=paths.root)


def read_claim_file(
    path: Path, limit: int = LIMITS.claim_bytes, root: Path | None = None
) -> SignedClaim:
    """The signed claim in a file (of the run in ``root``, if any), its signature checked.

    NotProducedError when it is missing or larger than ``limit``, EncodingError when it is not
    canonical, SignatureError when the signature does not hold.
    """
    with _reading(path):
        data = read_file(path, limit, root=root)
        signed = decode_signed_claim(data)
        if encode_signed_claim(signed) != data:
            raise EncodingError("is not the encoding of the claim that it describes")
        verify_claim(signed)
        return signed


def read_task(paths: RunPaths, limit: int = LIMITS.task_bytes) -> TaskSpec:
    """The canonical task of a run; NotProducedError, EncodingError."""
    with _reading(paths.task):
        data = read_file(paths.task, limit, root=paths.root)
        task = decode_task(data)
        if encode_task(task) != data:
            raise EncodingError("is not the encoding of the task that it describes")
        return task


def read_graph(paths: RunPaths, task: TaskSpec, limit: int = LIMITS.graph_bytes) -> StepGraph:
    """The graph that ``task`` pins, its legality unchecked; NotProducedError, EncodingError."""
    with _reading(paths.graph):
        graph = decode_graph(read_file(paths.graph, limit, root=paths.root))
        if compute_graph_root(graph) != task.graph_root:
            raise EncodingError("is not the graph that the task pins")
        return graph


def check_size(graph: StepGraph, limits: Limits, where: str = "") -> None:
    """RunError, naming what is too large, for a legal graph that is more than is taken on here:
    the values of one step, or one state."""
    total = sum(output.byte_length for node in graph.nodes for output in node.outputs)
    for what, size, most in (
        ("a step needs", total, limits.step_bytes),
        ("a state has", compute_checkpoint_size(graph), limits.state_bytes),
    ):
        if size > most:
            raise RunError(
                f"{what} {size} bytes, the limit of this machine is {most}: more memory takes more",
                where=where,
            )


def read_legal_graph(paths: RunPaths, task: TaskSpec, limits: Limits | None = None) -> StepGraph:
    """The graph that ``task`` pins, fit to be run: legal, and within ``limits``, those of this
    machine unless given.

    NotProducedError, EncodingError; GraphError, naming the node, for one that is not legal;
    RunError as of :func:`check_size`.
    """
    limits = limits_here() if limits is None else limits
    graph = read_graph(paths, task, limits.graph_bytes)
    check_graph(graph)
    check_size(graph, limits, str(paths.graph))
    return graph


def read_leaves(paths: RunPaths, claim: Claim, limit: int | None = None) -> list[bytes]:
    """The leaves of the log that ``claim`` signs, undecoded; NotProducedError, EncodingError.

    ``limit``, here and below: the largest file, by default what this machine holds.
    """
    log = _Log(paths, paths.log, RUN_LOG, iterate_frames, claim.log_size, claim.log_root)
    return _read_log(log, limit)


def read_kzg_leaves(
    paths: RunPaths, claim: Claim, every: int, limit: int | None = None
) -> list[bytes]:
    """The leaves of the KZG log that ``claim`` signs, undecoded: one for each ``every`` steps.

    NotProducedError, EncodingError.
    """
    size = claim.log_size // every
    log = _Log(paths, paths.kzg, KZG_LOG, iterate_kzg_frames, size, claim.kzg_root)
    return _read_log(log, limit)


def goes_on(
    kept: Claim, leaves: Sequence[bytes], kzg_leaves: Callable[[], Sequence[bytes] | None]
) -> bool:
    """Whether logs begin with those that ``kept`` signs: the run log with these ``leaves``, at
    least as many, and, asked for only where that one does, the KZG log with those of its leaves
    that are of as many steps (None for a run without such a log)."""
    if compute_root(RUN_LOG, leaves[: kept.log_size]) != kept.log_root:
        return False
    found = kzg_leaves()
    return (b"" if found is None else compute_root(KZG_LOG, found)) == kept.kzg_root


def read_hiding_of(paths: RunPaths, given: Path | None) -> Hiding:
    """What is known of the keys behind a run's KZG commitments: from the file ``given``, else the
    solver's own where it lies in the run; NotProducedError, EncodingError."""
    if given is not None:
        return read_hiding(given)
    return read_hiding(paths.hiding, paths.root) if os.path.lexists(paths.hiding) else Hiding()


def read_kzg_record(paths: RunPaths, task: TaskSpec, claim: Claim, step: int) -> KzgRecord:
    """The KZG record of ``step``, of the log that ``claim`` signs: what a proof is compared with.

    That it is a record of ``task``, of as many points as the step has columns, is for an audit's
    structure check.  NotProducedError when nothing is logged of that step; EncodingError.
    """
    proof = task.kzg
    if proof is None or step % proof.every or not 1 <= step <= claim.log_size:
        raise NotProducedError(f"has no commitments to step {step}", where=str(paths.kzg))
    leaf = read_kzg_leaves(paths, claim, proof.every)[step // proof.every - 1]
    with _reading(paths.kzg):
        return decode_kzg_record(leaf)


@dataclass(frozen=True)
class _Log:
    """A log file, and the size and root that are signed for."""

    run: RunPaths
    path: Path
    domain: str
    frames: Callable[[BinaryIO], Iterator[tuple[str, bytes]]]
    size: int
    root: bytes


def _read_log(log: _Log, limit: int | None) -> list[bytes]:
    most = limits_here().log_bytes if limit is None else limit
    tree = _core.MerkleTree(log.domain)
    leaves: list[bytes] = []
    with _reading(log.path), open_file(log.path, most, root=log.run.root) as file:
        for _, leaf in log.frames(file):
            if len(leaves) == log.size:
                raise EncodingError(f"has more than the {log.size} records of the claim")
            leaves.append(leaf)
            tree.append(leaf)
        if len(leaves) != log.size:
            raise EncodingError(f"has {len(leaves)} records, the claim is about {log.size}")
        if tree.root(len(leaves)) != log.root:
            raise EncodingError("is not the log that the claim signs: its root differs")
    return leaves


def read_state(
    paths: RunPaths, graph: StepGraph, step: int, root: bytes, threads: int = 0
) -> State:
    """The state in the checkpoint of ``step``, which has the state root ``root``.

    NotProducedError when the file is missing; EncodingError when it is damaged or another state.
    """
    path = paths.checkpoint(step)
    state = read_checkpoint(path, graph, root=paths.root)
    if compute_root_of_state(graph, state, threads) != root:
        whose = f"the record of step {step}" if step else "the task"
        raise EncodingError(f"is not the state whose root {whose} has", where=str(path))
    return state


def read_claimed_state(
    paths: RunPaths, step: int | None = None
) -> tuple[TaskSpec, StepGraph, State]:
    """Task, graph and state after ``step`` steps (the last one claimed unless told), each
    held against the signed claim: claim -> task -> graph, claim -> log -> state.

    Who signed is not asked, nor whether the steps were done as the law has it: that is an audit.
    The graph is fit to be run: errors as of :func:`read_legal_graph`.  NotProducedError when
    something is missing or nobody claims that step, SignatureError and EncodingError when something
    is not what was signed for.
    """
    claim = read_claim(paths).claim
    task = read_task(paths)
    if compute_task_id(task) != claim.task_id:
        raise EncodingError("is not the task that the signed claim is about", where=str(paths.task))
    graph = read_legal_graph(paths, task)
    leaves = read_leaves(paths, claim)
    if step is None:
        step = claim.log_size  # and no older one for want of it: that would be another model
    if step > claim.log_size:
        raise NotProducedError(
            f"the claim is about {claim.log_size} steps, not {step}", where=str(paths.claim)
        )
    root = decode_record(leaves[step - 1]).state_root if step else task.initial_state_root
    if not root:
        raise NotProducedError(
            f"the log commits to no state after step {step}", where=f"step {step}"
        )
    if not os.path.lexists(paths.checkpoint(step)):
        there = [str(found) for found in paths.list_checkpoints() if found <= claim.log_size]
        raise NotProducedError(
            f"the checkpoint of step {step} is missing; there are those of the steps "
            f"{', '.join(there) or 'none'} (step=, --step)",
            where=str(paths.checkpoint(step)),
        )
    return task, graph, read_state(paths, graph, step, root)
