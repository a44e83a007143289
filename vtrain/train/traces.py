"""The solver's side of checks of single steps: their values, node by node, and a signature.

A step's trace begins at the last state root before it, as in a dispute: it has the values of all
steps from there on, so that whoever checks it begins with a state that the log commits to.  Where
every step commits to its state, that is the step alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.attest.traces import sign_traces, verify_traces
from vtrain.commit.traces import (
    TraceFolder,
    compute_record_digest,
    compute_trace_root,
    is_there,
)
from vtrain.engines.registry import choose_apply, open_session
from vtrain.errors import EncodingError, NotProducedError, RunError, SignatureError
from vtrain.graph.values import VIEWS, list_last_uses
from vtrain.spec.commitment import compute_task_id
from vtrain.spec.samples import Samples
from vtrain.threads import check_threads
from vtrain.train import signed as evidence
from vtrain.train.data import compute_samples_root, read_samples
from vtrain.train.layout import RunPaths
from vtrain.wire.claim import Claim
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord, decode_record
from vtrain.wire.task import TaskSpec
from vtrain.wire.traces import SignedTensorTraces, TensorTrace, TensorTraces

State = Mapping[str, npt.NDArray[Any]]
Progress = Callable[[str, int, int], None]
"""(what is done, how much is done, of how much)"""


def find_interval(commit_every: int, last: int, step: int) -> tuple[int, int]:
    """The first and the last step of the trace that has ``step``: those between two state roots.

    ``last`` is the last step that has a state root; RunError for a step that is not up to it.
    """
    if not 1 <= step <= last:
        raise RunError(
            f"the run commits to the states of the steps 1 to {last}", where=f"step {step}"
        )
    end = -(-step // commit_every) * commit_every
    return end - commit_every + 1, end


def write_traces(
    run: Path,
    steps: Sequence[int],
    *,
    key: PrivateKey,
    out: Path,
    data: Path | None = None,
    engine: str = "auto",
    threads: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> SignedTensorTraces:
    """Write the values of the traces that have ``steps`` into the folder ``out``, and sign them.

    Traces that are signed there already, for the same claim, stay; of those asked for a file that
    is missing is written again.  ``data`` is the sample table of
    a run without it.  RunError for a step that the run does not have, or that does not come out as
    the log says: nothing is signed then; SignatureError when ``key`` is not the solver's;
    NotProducedError, EncodingError as of :func:`vtrain.train.signed.read_claimed_state`;
    StorageError.
    """
    check_threads(threads)
    source = _Source(run, data, engine, threads)
    if public_key(key) != source.claim.solver:
        raise SignatureError("the claim names another solver than the key's", where=str(run))
    folder = TraceFolder(out, threads)
    folder.make()
    done = {trace.step: trace for trace in _read_earlier(folder, source.claim)}
    intervals = sorted({source.find_interval(step) for step in steps})
    for first, last in intervals:
        if last not in done or not source.holds(folder, done[last]):
            done[last] = source.trace(first, last, folder, progress)
    traces = TensorTraces(
        compute_claim_digest(source.claim), tuple(done[step] for step in sorted(done))
    )
    signed = sign_traces(traces, source.claim, key)
    folder.write_claim(signed)
    return signed


def _read_earlier(folder: TraceFolder, claim: Claim) -> Sequence[TensorTrace]:
    """What is signed in the folder already: none where that is of another claim."""
    if not is_there(folder.root):
        return ()
    found = folder.read_claim()
    if found.traces.claim != compute_claim_digest(claim):
        raise RunError(
            "has the traces of another claim: name another folder", where=str(folder.root)
        )
    verify_traces(found, claim)
    return found.traces.traces


class _Source:
    """A run whose steps are done again, node by node."""

    def __init__(self, run: Path, data: Path | None, engine: str, threads: int) -> None:
        self._paths, self._engine, self._threads = RunPaths(run), engine, threads
        self.claim: Claim = evidence.read_claim(self._paths).claim
        self._task: TaskSpec = evidence.read_task(self._paths)
        if compute_task_id(self._task) != self.claim.task_id:
            where = str(self._paths.task)
            raise EncodingError("is not the task that the signed claim is about", where=where)
        self._graph: StepGraph = evidence.read_legal_graph(self._paths, self._task)
        leaves = evidence.read_leaves(self._paths, self.claim)
        self._records: list[StepRecord] = [decode_record(leaf) for leaf in leaves]
        self._samples = self._read_samples(data)
        self._apply = choose_apply("numpy" if engine == "numpy" else "cpu")
        self._record = self._graph.find("record")
        self._done = list_last_uses(self._graph)

    def _read_samples(self, data: Path | None) -> Samples:
        path = data or self._paths.samples
        root = None if data else self._paths.root
        samples = read_samples(path, self._task.data, root=root)
        if compute_samples_root(samples) != self._task.data.root:
            raise EncodingError("are not the samples that the task pins", where=str(path))
        return samples

    def find_interval(self, step: int) -> tuple[int, int]:
        """The first and the last step of the trace that has ``step``."""
        every = self._task.commit_every
        return find_interval(every, self.claim.log_size // every * every, step)

    def trace(self, first: int, last: int, folder: TraceFolder, progress: Progress) -> TensorTrace:
        """Write the values of the steps ``first`` to ``last``, and their digests."""
        state = self._read_state(first - 1)
        leaves: list[bytes] = []
        total = (last - first + 1) * len(self._graph.nodes)
        for step in range(first, last + 1):
            state = self._trace_step(
                state, leaves, folder, lambda: progress(f"trace of {last}", len(leaves), total)
            )
            claimed = self._records[step - 1]
            if leaves[self._record - len(self._graph.nodes)] != compute_record_digest(claimed):
                raise RunError("does not come out as the log says", where=f"step {step}")
        folder.write_leaves(last, leaves)
        return TensorTrace(last, total, compute_trace_root(leaves))

    def holds(self, folder: TraceFolder, trace: TensorTrace) -> bool:
        """Whether the files of a trace that was signed are there, as long as they should be; what
        is in the tensors is for whoever reads them."""
        try:
            leaves = folder.read_leaves(trace)
        except NotProducedError:
            return False
        if compute_trace_root(leaves) != trace.root:
            return False
        sizes = [node.outputs[0].byte_length for node in self._graph.nodes]
        return all(
            folder.holds(digest, sizes[index % len(sizes)]) for index, digest in enumerate(leaves)
        )

    def _trace_step(
        self, state: State, leaves: list[bytes], folder: TraceFolder, tell: Callable[[], None]
    ) -> State:
        start = len(leaves)
        values: dict[int, npt.NDArray[Any]] = {}
        for index, node in enumerate(self._graph.nodes):
            inputs = [values[ref.node] for ref in node.inputs]
            if node.op in VIEWS:
                value = inputs[0].reshape(node.outputs[0].shape)
                leaves.append(leaves[start + node.inputs[0].node])
            else:
                value = np.asarray(self._apply(node, inputs, state, self._samples), order="C")
                leaves.append(folder.write_chunk(value))
            values[index] = value
            for unused in self._done[index]:
                del values[unused]
            tell()
        return {name: values[ref.node] for name, ref in self._graph.next_states().items()}

    def _read_state(self, done: int) -> State:
        """The state after ``done`` steps, done again from the last checkpoint before."""
        there = [step for step in self._paths.list_checkpoints() if step <= done]
        if not there:
            raise NotProducedError(
                f"has no checkpoint before step {done + 1}", where=str(self._paths.checkpoints)
            )
        step = max(there)
        root = self._records[step - 1].state_root if step else self._task.initial_state_root
        state = evidence.read_state(self._paths, self._graph, step, root, self._threads)
        if step == done:
            return state
        session = open_session(self._engine, self._graph, self._samples, threads=self._threads)
        session.load_state(state)
        for at in range(step + 1, done + 1):
            if session.step() != self._records[at - 1]:
                raise RunError("does not come out as the log says", where=f"step {at}")
        return session.read_state()
