"""Publishing a run: everything that an auditor may ask for, in pieces that it can ask for alone.

The claim is written last: where it is, all else is.  Publishing again writes what has been added,
such as traces that an auditor asked for, or steps since; neither the claim of another run nor,
where there is none, a file of another's is ever replaced.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.traces import verify_traces
from vtrain.commit.files import open_file, read_file
from vtrain.commit.pieces import AHEAD, Form, Part, RowsForm, TensorForm, write_whole
from vtrain.commit.state import compute_state_leaves, compute_state_root
from vtrain.commit.store import FolderStore, Shelf, Sink
from vtrain.commit.traces import TRACES_FOLDER, TraceFolder, is_there
from vtrain.engines.base import State
from vtrain.errors import EncodingError, NotProducedError, RunError, SignatureError, StoreError
from vtrain.limits import LIMITS, limits_here
from vtrain.spec.commitment import compute_task_id
from vtrain.spec.samples import Samples, compute_row_length, compute_samples_length
from vtrain.train import signed as evidence
from vtrain.train.data import compute_samples_root, read_samples
from vtrain.train.layout import RunPaths
from vtrain.wire.claim import Claim, decode_signed_claim, encode_signed_claim
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord, decode_record
from vtrain.wire.structs import encode
from vtrain.wire.task import DataSpec, TaskSpec
from vtrain.wire.traces import SignedTensorTraces, decode_signed_tensor_traces

Progress = Callable[[str, int, int], None]
"""(what is published, how much is done, of how much)"""


def name_state(root: bytes) -> str:
    """The name of the digests of the tensors of the state under a root, 32 bytes each, in the order
    of the state tree."""
    return f"states/{root.hex()}"


def name_leaves(step: int) -> str:
    """The name of the leaves of the trace of a step."""
    return f"traces/step-{step:012d}.leaves"


TRACES_NAME = "traces/traces.cbor"
"""The name of what a solver signed of traces."""


def make_samples_form(data: DataSpec) -> Form:
    """How the samples of a task are cut; RunError for rows that no store has."""
    if data.windows is not None:
        return TensorForm(compute_samples_length(data))
    row = compute_row_length(data)
    if not 1 <= row <= LIMITS.row_bytes:
        raise RunError(
            f"has rows of {row} bytes; a published table has 1 to {LIMITS.row_bytes}",
            where="task.data",
        )
    return RowsForm(data.samples, row)


@dataclass(frozen=True)
class Summary:
    """What was published: the ``claim``'s digest, ``states`` (checkpoints), ``traces`` (intervals),
    whether the ``samples`` are among it, and the bytes of all of it, those that were there
    included."""

    claim: bytes
    states: int
    traces: int
    samples: bool
    bytes: int


def publish_run(
    run: Path,
    sink: Shelf,
    *,
    data: Path | None = None,
    samples: bool = True,
    threads: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Summary:
    """Publish the claimed ``run``: its claim, task, graph, logs, checkpoints and traces, its model,
    and unless ``samples`` is false its sample table, from ``data`` where the run is without.

    What is published is held against the claim first.  NotProducedError, EncodingError,
    SignatureError where something is missing or not what was signed for; RunError for a run that
    claims nothing, for a folder that holds a run or has links for its folders, for a store with a
    claim that this run does not go on from, and for one without a claim whose files are not those
    of this run; errors of ``sink``.
    """
    paths = RunPaths(run)
    paths.require_run()
    if isinstance(sink, FolderStore) and os.path.lexists(RunPaths(sink.root).manifest):
        raise RunError(
            "holds a run, whose claim and log this one's would replace: name a folder of its own",
            where=str(sink.root),
        )
    if isinstance(sink, FolderStore):
        sink.require_folders()
    signed = evidence.read_claim(paths)
    source = _Source(paths, signed.claim, threads)
    if not _has_claim(sink, source):
        _refuse_foreign(sink, source)
    with _writing(sink) as queue:
        work = _Work(queue, source, progress)
        states = work.publish_states()
        traces = work.publish_traces()
        has_samples = samples and work.publish_samples(data)
        work.publish_model()
        work.publish_files()
    # What leads to all else comes when all else is there.
    claim = encode_signed_claim(signed)
    sink.put(paths.claim.name, claim)
    digest = compute_claim_digest(signed.claim)
    return Summary(digest, states, traces, has_samples, queue.bytes + len(claim))


def _has_claim(sink: Shelf, source: _Source) -> bool:
    """Whether ``sink`` has a claim that this run goes on from.  RunError where it is not of this
    run, or of a log that this one's does not begin with: it would be gone, and whoever holds it
    could not audit it any more."""
    claim, name = source.claim, source.paths.claim.name
    where = sink.locate(name)
    fix = "publish to a place of its own, or remove what is there first"
    try:
        found = sink.find(name, LIMITS.claim_bytes)
        if found is None:
            return False
        there = decode_signed_claim(found).claim
    except StoreError:  # whether anything is there is not known
        raise
    except (EncodingError, NotProducedError) as error:
        raise RunError(
            f"is there, and is no claim that could be replaced: {error.message}; {fix}", where=where
        ) from None
    same = (there.run_id, there.solver, there.task_id) == (
        claim.run_id,
        claim.solver,
        claim.task_id,
    )
    if same and source.goes_on(there):
        return True
    of = "of this run, which it does not go on from" if same else "of another run"
    raise RunError(
        f"is the claim {compute_claim_digest(there).hex()} ({there.log_size} steps) {of}: "
        f"{compute_claim_digest(claim).hex()} ({claim.log_size} steps) would replace it and its "
        f"log; {fix}",
        where=where,
    )


def _refuse_foreign(sink: Shelf, source: _Source) -> None:
    """RunError where ``sink``, which has no claim, has a file of another content under a name that
    this run writes: it is somebody else's.  What an interrupted publication of this run left is
    not: files as they are now, a log that this one begins with, traces signed for this claim."""
    grows = {source.paths.log.name, source.paths.kzg.name}
    for name, data in itertools.chain(source.read_files(), source.read_trace_files()):
        try:
            found = sink.find(name, max(len(data), LIMITS.traces_bytes))
        except StoreError:
            raise
        except NotProducedError:  # it is larger, or no file
            found = b""
        if found is None or found == data or (name in grows and found and data.startswith(found)):
            continue
        if name == TRACES_NAME and _are_of_claim(found, source.claim):
            continue
        raise RunError(
            "is there, without a claim that says of which run, and has another content than this "
            "run's, which would replace it: publish to a place of its own, or remove what is there "
            "first",
            where=sink.locate(name),
        )


def _are_of_claim(traces: bytes, claim: Claim) -> bool:
    """Whether these bytes are what the solver signed of traces for its claim."""
    try:
        verify_traces(decode_signed_tensor_traces(traces), claim)
    except (EncodingError, SignatureError):
        return False
    return True


class _Source:
    """A run as its claim has it."""

    def __init__(self, paths: RunPaths, claim: Claim, threads: int) -> None:
        self.paths, self.claim, self.threads = paths, claim, threads
        self.task: TaskSpec = evidence.read_task(paths)
        if compute_task_id(self.task) != claim.task_id:
            raise EncodingError(
                "is not the task that the signed claim is about", where=str(paths.task)
            )
        self.graph: StepGraph = evidence.read_legal_graph(paths, self.task)
        self._leaves = evidence.read_leaves(paths, claim)
        self.records: list[StepRecord] = [decode_record(leaf) for leaf in self._leaves]

    def goes_on(self, kept: Claim) -> bool:
        """Whether the logs begin with those of a claim of this task."""

        def read_kzg() -> list[bytes] | None:
            kzg = self.task.kzg
            if kzg is None:
                return None
            leaves = evidence.read_kzg_leaves(self.paths, self.claim, kzg.every)
            return leaves[: kept.log_size // kzg.every]

        return kept.log_size <= len(self._leaves) and evidence.goes_on(kept, self._leaves, read_kzg)

    @property
    def checkpoints(self) -> list[int]:
        """Steps after which an audit may begin or end."""
        last = self.claim.log_size // self.task.commit_every * self.task.commit_every
        return [*range(0, last, self.task.checkpoint_every), last]

    def read_files(self) -> Iterator[tuple[str, bytes]]:
        """What is published as it lies in the run, by name."""
        paths, limits = self.paths, limits_here()
        files: Sequence[tuple[Path, int]] = [
            (paths.task, limits.task_bytes),
            (paths.graph, limits.graph_bytes),
            (paths.log, limits.log_bytes),
            *([(paths.kzg, limits.log_bytes)] if self.task.kzg is not None else []),
        ]
        for path, limit in files:
            yield path.name, read_file(path, limit, root=paths.root)

    @property
    def folder(self) -> TraceFolder:
        """Where the run's traces are."""
        return TraceFolder(self.paths.root / TRACES_FOLDER, self.threads)

    def read_traces(self) -> SignedTensorTraces | None:
        """What the solver signed of traces for this claim, None where there is nothing: leaves
        without it are nobody's, and are not published."""
        if not is_there(self.folder.root):
            return None
        signed = self.folder.read_claim()
        verify_traces(signed, self.claim)
        return signed

    def read_trace_files(self) -> Iterator[tuple[str, bytes]]:
        """What is published of traces beside their tensors, by name; NotProducedError."""
        signed = self.read_traces()
        if signed is None:
            return
        yield TRACES_NAME, encode(signed)
        for trace in signed.traces.traces:
            with _naming_remedy(self.paths, trace.step):
                leaves = self.folder.read_leaves(trace)
            yield name_leaves(trace.step), b"".join(leaves)

    def read_root(self, step: int) -> bytes:
        """The state root after so many steps."""
        return self.records[step - 1].state_root if step else self.task.initial_state_root


@contextmanager
def _naming_remedy(paths: RunPaths, step: int) -> Iterator[None]:
    """What is missing of a trace, or spoiled, is said with what writes it again."""
    try:
        yield
    except NotProducedError as error:
        command = f"`vtrain trace {paths.root} --step {step}`"
        spoiled = "remove it, and " if os.path.lexists(error.where) else ""
        message = f"{error.message}: {spoiled}{command} writes it again"
        raise NotProducedError(message, where=error.where) from None


class _Queue:
    """Writes several things at once, and counts them."""

    def __init__(self, sink: Sink, pool: ThreadPoolExecutor) -> None:
        self._sink, self._pool = sink, pool
        self._pending: deque[Future[None]] = deque()
        self.bytes = 0

    def put(self, name: str, data: bytes) -> None:
        if len(self._pending) == AHEAD:
            self._pending.popleft().result()
        self.bytes += len(data)
        self._pending.append(self._pool.submit(self._sink.put, name, data))

    def flush(self) -> None:
        """Wait for all that was put."""
        while self._pending:
            self._pending.popleft().result()


@contextmanager
def _writing(sink: Sink) -> Iterator[_Queue]:
    pool = ThreadPoolExecutor(AHEAD)
    try:
        queue = _Queue(sink, pool)
        yield queue
        queue.flush()
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass
class _Work:
    queue: _Queue
    source: _Source
    progress: Progress

    def __post_init__(self) -> None:
        self._done: set[bytes] = set()

    def publish_states(self) -> int:
        source, steps = self.source, self.source.checkpoints
        for count, step in enumerate(steps):
            self.progress("states", count, len(steps))
            root = source.read_root(step)
            state = evidence.read_state(source.paths, source.graph, step, root, source.threads)
            write_state(self.queue, source.graph, state, self._done, source.threads)
        return len(steps)

    def publish_traces(self) -> int:
        source = self.source
        folder = source.folder
        signed = source.read_traces()
        if signed is None:
            return 0
        kinds = [node.outputs[0] for node in source.graph.nodes]
        traces = signed.traces.traces
        for count, trace in enumerate(traces):
            self.progress("traces", count, len(traces))
            with _naming_remedy(source.paths, trace.step):
                leaves = folder.read_leaves(trace)
            for index, digest in enumerate(leaves):
                if digest not in self._done:
                    with _naming_remedy(source.paths, trace.step):
                        tensor = folder.read_chunk(digest, kinds[index % len(kinds)])
                    # Rows of what is large are read alone.
                    _write_tensor(self.queue, tensor, digest, self._done, grains=True)
            self.queue.put(name_leaves(trace.step), b"".join(leaves))
        self.queue.flush()
        self.queue.put(TRACES_NAME, encode(signed))
        return len(traces)

    def publish_samples(self, data: Path | None) -> bool:
        source = self.source
        path, root = (data, None) if data else (source.paths.samples, source.paths.root)
        if data is None and not path.is_file():
            return False
        form = make_samples_form(source.task.data)
        samples = read_samples(path, source.task.data, limits_here(), root=root)
        if compute_samples_root(samples) != source.task.data.root:
            raise EncodingError("are not the samples that the task pins", where=str(path))
        write_samples(self.queue, samples, form, self.progress)
        return True

    def publish_model(self) -> None:
        path, root = self.source.paths.model, self.source.paths.root
        with open_file(path, LIMITS.model_bytes, root=root) as file:

            def read(part: Part) -> bytes:
                file.seek(part.start)
                return file.read(part.size)

            found = write_whole(self.queue, TensorForm(file.size), read)
        if found != self.source.task.model_digest:
            raise NotProducedError("is not the file that the task names", where=str(path))

    def publish_files(self) -> None:
        for name, data in self.source.read_files():
            self.queue.put(name, data)


def write_state(
    sink: Sink, graph: StepGraph, state: State, done: set[bytes], threads: int = 0
) -> bytes:
    """Write a state, but for tensors whose digests are among those ``done``, and return its
    root."""
    exponents = {name: graph.type_of(ref).exponent for name, ref in graph.states().items()}
    leaves = compute_state_leaves(state, exponents, threads)
    for leaf in leaves:
        _write_tensor(sink, state[leaf.name], leaf.digest, done)
    root = compute_state_root(leaves)
    sink.put(name_state(root), b"".join(leaf.digest for leaf in leaves))
    return root


def _write_tensor(
    sink: Sink,
    tensor: npt.NDArray[Any],
    digest: bytes,
    done: set[bytes],
    *,
    grains: bool = False,
) -> None:
    """Write the tensor that has this digest, once; ``grains``: of one that is more than a piece,
    parts of its pieces are to be read too."""
    if digest not in done:
        data = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
        form = TensorForm(data.nbytes)
        write_whole(sink, form, _cut(data), grains=grains and not form.is_one)
        done.add(digest)


def write_samples(sink: Sink, samples: Samples, form: Form, progress: Progress) -> bytes:
    """Write samples, in parts that can be read alone, and return their root."""
    cut = _cut(samples.table.reshape(-1))

    def read(part: Part) -> bytes:
        progress("samples", part.start, form.length)
        return cut(part)

    return write_whole(sink, form, read, grains=True)


def _cut(data: npt.NDArray[np.uint8]) -> Callable[[Part], bytes]:
    return lambda part: data[part.start : part.stop].tobytes()
