"""What is committed to, as formulas: tensor digests; state, record, graph and trace roots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vtrain.spec import domains, merkle
from vtrain.wire.graph import StepGraph, encode_node
from vtrain.wire.opening import StateLeaf, encode_state_leaf
from vtrain.wire.record import StepRecord, encode_record
from vtrain.wire.task import TaskSpec, encode_task


def compute_tensor_digest(tensor: npt.NDArray[Any]) -> bytes:
    """Plain BLAKE3 of the little-endian row-major bytes: what ``b3sum`` prints of them."""
    little = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False)
    return blake3(np.ascontiguousarray(little).tobytes()).digest()


def compute_batch_digest(x_digest: bytes, y_digest: bytes) -> bytes:
    """H_batch(digest of x || digest of y), x and y the gathered raw samples of a step."""
    return domains.compute_domain_hash(domains.BATCH, x_digest + y_digest)


def compute_state_leaf(leaf: StateLeaf) -> bytes:
    """Leaf hash of one state tensor: what it is called, how it is read, and its digest."""
    return merkle.compute_leaf_hash(domains.STATE_TREE, encode_state_leaf(leaf))


def compute_state_root(leaf_hashes: Sequence[bytes]) -> bytes:
    """Root over the leaf hashes of all state tensors, in UTF-8 order of their unique names."""
    return merkle.compute_root_of_hashes(domains.STATE_TREE, leaf_hashes)


def compute_record_leaf(step: int, batch_digest: bytes, loss: int, state_root: bytes) -> bytes:
    """Leaf hash of a step record in the run log; ``state_root`` is empty between commitments."""
    record = StepRecord(step=step, batch_digest=batch_digest, loss=loss, state_root=state_root)
    return merkle.compute_leaf_hash(domains.RUN_LOG, encode_record(record))


def compute_graph_root(graph: StepGraph) -> bytes:
    """Root over the canonical encodings of the nodes, in execution order."""
    return merkle.compute_root(domains.GRAPH, [encode_node(node) for node in graph.nodes])


def compute_trace_root(digests: Sequence[bytes]) -> bytes:
    """Root over the digests of all node outputs of one step, in (node, output) order."""
    return merkle.compute_root(domains.TRACE, digests)


def compute_task_id(task: TaskSpec) -> bytes:
    """The task id: H_task(canonical encoding)."""
    return domains.compute_domain_hash(domains.TASK_ID, encode_task(task))
