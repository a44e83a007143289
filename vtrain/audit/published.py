"""Audits of runs that lie in a store: what the draw asks for is brought here, and nothing else.

What is asked for follows from what is known already, and everything is held against it as it comes:

    claim          by its signature, and by the auditor's pin
    task           by the task id of the claim, before it is decoded
    graph          by the graph root of the task, before it is decoded
    logs           by their roots in the claim, before a record is decoded
    a state        its digests by the state root in the log, its tensors by these, piece by piece
    samples        by the root of the task, the rows of the steps drawn alone
    traces         by the solver's signature, their leaves by the roots signed, tensors by these

The claim, and what is signed of traces, have to be read before it is known who signed; both are
small.  The draw comes after the log: what a store serves then is fixed by the claim.  It can only
be kept back, and then there is no verdict.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain import _core
from vtrain.audit.structure import Evidence, FindingError, digest_batches, read_state
from vtrain.commit.checkpoint import encode_header, lay_out
from vtrain.commit.files import storing, write_atomic
from vtrain.commit.kzg_log import compute_most_kzg_bytes
from vtrain.commit.log import compute_most_bytes
from vtrain.commit.openings import compute_root
from vtrain.commit.pieces import HASH, TensorForm, read_units, read_whole, read_wholes
from vtrain.commit.state import compute_state_root
from vtrain.commit.store import FolderStore, Source, open_source
from vtrain.errors import EncodingError, NotProducedError, StoreError, VtrainError
from vtrain.limits import LIMITS, Limits, limits_here
from vtrain.spec.domains import GRAPH, TASK_ID, compute_domain_hash
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.train.data import PartialSamples
from vtrain.train.layout import RunPaths
from vtrain.train.publish import TRACES_NAME, make_samples_form, name_leaves, name_state
from vtrain.wire import cbor
from vtrain.wire.claim import SignedClaim
from vtrain.wire.graph import StepGraph, TensorType
from vtrain.wire.opening import StateLeaf
from vtrain.wire.record import StepRecord
from vtrain.wire.report import Check
from vtrain.wire.task import DataSpec, TaskSpec
from vtrain.wire.traces import SignedTensorTraces, TensorTrace, decode_signed_tensor_traces

Progress = Callable[[str, int, int], None]
_NEVER: Final = frozenset({"manifest", "index", "files", "model", "checkpoints"})
"""Checks of a folder that are not made of a store: an index vouches for nothing, the model is where
the task comes from, and checkpoints are looked at where the draw asks for them."""
_OF_ALL_SAMPLES: Final = frozenset({"samples", "batches"})


def list_sample_units(data: DataSpec, indices: Iterable[int]) -> list[tuple[int, int]]:
    """What of a sample table these samples are: rising (first unit, unit after the last), that do
    not overlap; rows of the table, or chunks of the tokens."""
    windows = data.windows
    if windows is None:
        spans = sorted({(index, index + 1) for index in indices})
    else:
        # Of x and of y: whatever lies between them is read by nobody.
        unit, reach = make_samples_form(data).unit, windows.context * windows.width
        starts = {
            (index * windows.stride + shift) * windows.width
            for index in indices
            for shift in (0, windows.shift)
        }
        spans = sorted({(start // unit, -(-(start + reach) // unit)) for start in starts})
    merged: list[tuple[int, int]] = []
    for first, end in spans:
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


class Published:
    """A run in the store ``source``, and the folder ``root`` of what was brought of it."""

    def __init__(
        self,
        source: Source,
        root: Path,
        *,
        limits: Limits | None = None,
        progress: Progress = lambda what, done, total: None,
    ) -> None:
        self.source, self.root = source, root
        self._limits = limits_here() if limits is None else limits
        self._progress = progress
        self._samples: PartialSamples | None = None
        with storing(root):
            for folder in (root, RunPaths(root).checkpoints):
                folder.mkdir(parents=True, exist_ok=True)

    @property
    def paths(self) -> RunPaths:
        """Where what was brought lies."""
        return RunPaths(self.root)

    @property
    def own(self) -> Path:
        """The folder of whoever published, where the store is one on this machine, else the folder
        of what was brought: a file in it pins nothing."""
        return self.source.root if isinstance(self.source, FolderStore) else self.root

    # --- the structure (``vtrain.audit.structure.Bringer``)

    def makes(self, rule: str, *, data: bool) -> bool:
        return rule not in _NEVER and (data or rule not in _OF_ALL_SAMPLES)

    def shorten(self, where: str) -> str:
        return self.source.shorten(where)

    def bring(self, rule: str, claim: SignedClaim | None, task: TaskSpec | None) -> None:
        match rule:
            case "claim":
                self._save(self.paths.claim, self._limits.claim_bytes)
            case "task":
                self._bring_task(claim)
            case "graph" if task is not None:
                self._bring_graph(task)
            case "log" if claim is not None:
                self._save(self.paths.log, compute_most_bytes(claim.claim.log_size))
            case "kzg_log" if claim is not None and task is not None and task.kzg is not None:
                most = compute_most_kzg_bytes(claim.claim.log_size // task.kzg.every)
                self._save(self.paths.kzg, most)

    def _save(self, path: Path, most: int) -> None:
        limit = self._limits.log_bytes if path in (self.paths.log, self.paths.kzg) else most
        self.source.save(path.name, path, min(most, limit))

    def _bring_task(self, claim: SignedClaim | None) -> None:
        if claim is None:
            raise NotProducedError("is not asked for: no claim says which it is")
        data = self.source.read("task.cbor", self._limits.task_bytes)
        found = compute_domain_hash(TASK_ID, data)
        if found != claim.claim.task_id:
            raise NotProducedError(
                f"is task {found.hex()}, the signed claim is about {claim.claim.task_id.hex()}",
                where=self.source.locate("task.cbor"),
            )
        write_atomic(self.paths.task, [data], durable=False)

    def _bring_graph(self, task: TaskSpec) -> None:
        data = self.source.read("graph.cbor", self._limits.graph_bytes)
        # By the heads of its nodes alone, so that no stranger's node is ever made.
        if compute_root(GRAPH, cbor.split_array(data)) != task.graph_root:
            raise NotProducedError(
                "is not the graph that the task pins", where=self.source.locate("graph.cbor")
            )
        write_atomic(self.paths.graph, [data], durable=False)

    # --- what the draw asks for

    def open_samples(self, evidence: Evidence) -> Evidence:
        """``evidence`` with samples that are still to be brought, unless the auditor has them."""
        looked_at = any(check.name == "samples" for check in evidence.checks)
        if looked_at or evidence.task is None or evidence.graph is None:
            return evidence
        try:
            self._samples = PartialSamples(evidence.task.data, self._limits)
            make_samples_form(evidence.task.data)
        except VtrainError as error:
            check = Check("samples", "failed", error.message, "data/samples.bin", "nobody")
            return replace(evidence, checks=(*evidence.checks, check))
        return replace(evidence, samples=self._samples.samples)

    def bring_segments(
        self, evidence: Evidence, bounds: Sequence[tuple[int, int]], threads: int
    ) -> tuple[Evidence, BroughtStates | None]:
        """``evidence`` with the samples that a replay of these segments (steps done before, and
        after) takes; and what brings the states that they begin with, None where it is not known
        what states are."""
        steps = [step for start, end in bounds for step in range(start + 1, end + 1)]
        evidence = self.bring_steps(evidence, steps)
        if evidence.task is None or evidence.graph is None:
            return evidence, None
        states = BroughtStates(self, evidence.task, evidence.graph, evidence.records, threads)
        return evidence, states

    def bring_steps(self, evidence: Evidence, steps: Sequence[int]) -> Evidence:
        """``evidence`` with the samples of these steps, and the checks of their batches; none where
        the auditor has all samples."""
        task, partial = evidence.task, self._samples
        if task is None or partial is None or not evidence.records:
            return evidence
        checks = list(evidence.checks)
        try:
            count = self._bring_rows(task, partial, steps)
        except VtrainError as error:
            owed = self.source.shorten(error.where)
            name = f"{owed}: " if owed else ""
            detail = (
                f"{name}{error.message}; whoever has the samples from elsewhere names them (--data)"
            )
            checks.append(Check("samples", "failed", detail, "data/samples.bin", "nobody"))
            return replace(evidence, checks=tuple(checks), samples=None)
        detail = f"the {count} of {task.data.samples} samples drawn have the task's root"
        checks.append(Check("samples", "passed", detail, "data/samples.bin"))
        wrong = [
            step
            for step in sorted(steps)
            if digest_batches(task, partial.samples, range(step - 1, step))
            != [evidence.records[step - 1].batch_digest]
        ]
        if wrong:
            detail = f"the log commits to another batch than that of step {wrong[0]}"
            checks.append(Check("batches", "failed", detail, f"step {wrong[0]}", "solver"))
        else:
            detail = f"{len(steps)} of {len(evidence.records)} batch digests recomputed"
            checks.append(Check("batches", "passed", detail, "log.bin"))
        return replace(evidence, checks=tuple(checks))

    def _bring_rows(self, task: TaskSpec, partial: PartialSamples, steps: Sequence[int]) -> int:
        data = task.data
        indices = {
            int(index)
            for step in steps
            for index in _core.batch_indices(task.seed, data.samples, task.batch, step - 1)
        }
        units, form = list_sample_units(data, indices), make_samples_form(data)
        total = sum(min(end * form.unit, form.length) - first * form.unit for first, end in units)
        tell = self._tell("fetch samples", total)
        for start, found in read_units(self.source, data.root, form, units, tell):
            partial.put(start, found)
        return len(indices)

    def bring_state(
        self, task: TaskSpec, graph: StepGraph, records: Sequence[StepRecord], step: int
    ) -> None:
        """Write the checkpoint of ``step``, piece by piece as it was compared."""
        root = records[step - 1].state_root if step else task.initial_state_root
        tensors = lay_out(graph)
        digests = self._read_digests(root, {name: kind for name, kind, _ in tensors})
        tell = self._tell(f"fetch state {step}", sum(size for _, _, size in tensors))
        wholes = [(digests[name], TensorForm(size)) for name, _, size in tensors]

        def give() -> Iterator[bytes]:
            yield encode_header(graph)
            yield from read_wholes(self.source, wholes, tell)

        write_atomic(self.paths.checkpoint(step), give(), durable=False)

    def _read_digests(self, root: bytes, kinds: Mapping[str, TensorType]) -> dict[str, bytes]:
        """The digests of the tensors of a state, by name, which were compared with its root."""
        name = name_state(root)
        data = self.source.read(name, HASH * len(kinds), exact=True)
        names = sorted(kinds, key=str.encode)
        found = {key: data[HASH * i : HASH * (i + 1)] for i, key in enumerate(names)}
        leaves = [
            StateLeaf(key, kind.dtype, kind.shape, kind.exponent, found[key])
            for key, kind in kinds.items()
        ]
        if compute_state_root(leaves) != root:
            raise NotProducedError(
                "the store serves other digests than those under the state root that the log has: "
                "whoever published the run owes them",
                where=self.source.locate(name),
            )
        return found

    def _tell(self, what: str, total: int) -> Callable[[int], None]:
        done = 0

        def tell(size: int) -> None:
            nonlocal done
            done += size
            self._progress(what, min(done, total), total)

        return tell

    def open_traces(self) -> PublishedTraces:
        """The traces in the store."""
        return PublishedTraces(self.source)

    # --- what a report says

    def describe(self, evidence: Evidence) -> tuple[str, str]:
        """What was fetched, and what was not looked at, each in a sentence."""
        traffic = self.source.traffic
        fetched = (
            f"{traffic.bytes} bytes in {traffic.requests} requests were fetched from the store, "
            "and held against the claim as they came"
        )
        # Of a log that is not the one claimed no record is known.
        claimed = f" ({len(evidence.records)} are claimed)" if evidence.records else ""
        left = (
            "what the store has beyond what was drawn: other checkpoints, the batches of other "
            f"steps{claimed}, the model that the task was made of, and whether all "
            "of it is there"
        )
        return fetched, left


class BroughtStates:
    """The states that segments of a run in a store begin with: each is brought when its segment's
    turn comes, and let go after it, so that one of them lies here at a time.

    A segment that begins where a replay of the one before came to asks for none.
    """

    def __init__(
        self,
        published: Published,
        task: TaskSpec,
        graph: StepGraph,
        records: tuple[StepRecord, ...],
        threads: int,
    ) -> None:
        self._published, self._task, self._graph = published, task, graph
        self._records, self._threads = records, threads
        self._faults: list[Check] = []
        self._here: int | None = None
        self._lacking = set[int]()
        """Steps whose states were asked for and not had: each is one fault."""
        self._good = 0

    def bring(self, step: int) -> frozenset[int]:
        """The state after ``step`` steps is here, and has its root: that step, or none where the
        store does not give it, which is asked once.  Another that was here is let go."""
        if self._here == step:
            return frozenset({step})
        if step in self._lacking:
            return frozenset()
        self.drop()
        paths = self._published.paths
        place = paths.name_of(paths.checkpoint(step))
        try:
            self._published.bring_state(self._task, self._graph, self._records, step)
            self._here = step
            read_state(paths, self._task, self._graph, self._records, step, self._threads)
            self._good += 1
            return frozenset({step})
        except FindingError as found:
            where = found.where or place
            self._faults.append(Check("checkpoints", "failed", found.detail, where, found.fault))
        except VtrainError as error:
            owed = self._published.shorten(error.where)
            where = f"{place}: {owed}" if owed else place
            self._faults.append(Check("checkpoints", "failed", error.message, where, "nobody"))
        self._lacking.add(step)
        self.drop()
        return frozenset()

    def drop(self) -> None:
        """Let go of the state that is here."""
        if self._here is not None:
            path = self._published.paths.checkpoint(self._here)
            with storing(path):
                path.unlink(missing_ok=True)
            self._here = None

    def conclude(self, evidence: Evidence) -> Evidence:
        """``evidence`` with the checks of the states that were asked for."""
        checks = list(self._faults)
        if not checks and self._good:
            count = f"{self._good} that the draw begins at"
            checks.append(
                Check("checkpoints", "passed", f"{count} have their roots", "checkpoints")
            )
        return replace(evidence, checks=(*evidence.checks, *checks))


class PublishedTraces:
    """Traces in a store, for whoever checks them: what ``vtrain.commit.traces.TraceFolder`` is of a
    folder."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._signed: SignedTensorTraces | None = None

    def locate_claim(self) -> str:
        """Where what is signed is, for messages."""
        return self._source.locate(TRACES_NAME)

    def locate_leaves(self, step: int) -> str:
        """Where the digests of a trace are, for messages."""
        return self._source.locate(name_leaves(step))

    def is_there(self) -> bool:
        """Whether something is signed; StoreError."""
        try:
            self.read_claim()
        except StoreError:
            raise
        except NotProducedError:
            return False
        return True

    def read_claim(self) -> SignedTensorTraces:
        """What is signed, its signature unchecked; it is read once.  NotProducedError,
        EncodingError."""
        if self._signed is None:
            data = self._source.read(TRACES_NAME, LIMITS.traces_bytes)
            try:
                self._signed = decode_signed_tensor_traces(data)
            except EncodingError as error:
                where = f"{self.locate_claim()}: {error.where}"
                raise EncodingError(error.message, where=where) from None
        return self._signed

    def read_leaves(self, trace: TensorTrace) -> list[bytes]:
        """The digests of a trace, as many as it says; whether they are under its root is for the
        caller.  NotProducedError."""
        size = HASH * trace.size
        if size > LIMITS.leaves_bytes:
            raise NotProducedError(
                f"would have {size} bytes, more than the {LIMITS.leaves_bytes} that are taken",
                where=self.locate_leaves(trace.step),
            )
        data = self._source.read(name_leaves(trace.step), size, exact=True)
        return [data[at : at + HASH] for at in range(0, size, HASH)]

    def holds(self, digest: bytes) -> bool:
        """A store is asked again for what was let go."""
        del digest
        return True

    def read_chunk(self, digest: bytes, kind: TensorType) -> npt.NDArray[Any]:
        """The tensor with this digest, each piece of which was compared; NotProducedError."""
        tensor = np.empty(kind.shape, NUMPY_DTYPES[kind.dtype])
        view, at = tensor.reshape(-1).view(np.uint8), 0
        for data in read_whole(self._source, digest, TensorForm(tensor.nbytes)):
            view[at : at + len(data)] = np.frombuffer(data, np.uint8)
            at += len(data)
        return tensor

    def read_parts(
        self, digest: bytes, kind: TensorType, wanted: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, bytes]]:
        """(first byte, bytes) of parts that have the chunks wanted of this tensor, each compared;
        NotProducedError."""
        return read_units(self._source, digest, TensorForm(kind.byte_length), wanted)


@contextmanager
def open_published(
    url: str,
    options: Mapping[str, str] | None = None,
    *,
    progress: Progress = lambda what, done, total: None,
    limits: Limits | None = None,
) -> Iterator[Published]:
    """The run published at ``url``, and a temporary folder for what is brought of it.

    RunError for a URL that is none; MissingExtraError; StorageError.
    """
    limits = limits_here() if limits is None else limits
    source = open_source(url, options, limits)
    try:
        with tempfile.TemporaryDirectory(prefix="vtrain-") as folder:
            yield Published(source, Path(folder) / "run", limits=limits, progress=progress)
    finally:
        source.close()
