"""What a task would cost, said before a run.

Two ways, and each estimate says which:

- *a short calibration* of the task itself on this machine: a few steps, one state root, one
  checkpoint, one step traced and checked, one dispute about a short run.  What a run, a replay, an
  audit by traces or a dispute takes is a multiple of these.
- *a cost model*, where doing it once would take minutes or another setting is asked for: rounds
  and bytes of a dispute from the sizes of the trees that it descends, a proof from the size of its
  keys and the time that this machine takes for a sum of curve points.  Its constants were fitted
  to measurements of the tasks that benchmarks/estimate.py names, which compares estimates of these
  and of others with what is then measured.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain import _core
from vtrain.bench.figures import Unit
from vtrain.bench.stages import (
    EVERY,
    find_gradient,
    measure_dispute,
    measure_trace,
    repeat,
    shorten,
)
from vtrain.commit.checkpoint import read_checkpoint, write_checkpoint
from vtrain.commit.log import encode_frame
from vtrain.commit.state import compute_root_of_state
from vtrain.engines.cpu import CpuSession
from vtrain.engines.registry import open_session
from vtrain.errors import VtrainError
from vtrain.graph.values import PRODUCTS
from vtrain.limits import measure_memory
from vtrain.ops.base import attr_int
from vtrain.spec.blake3_tree import compute_chunk_count
from vtrain.train.summary import measure_step
from vtrain.train.task import CompiledTask, TaskFile, compile_task
from vtrain.wire.graph import Node, Ref, encode_node
from vtrain.wire.record import StepRecord

How = Literal["calibration", "model"]
MEMORY_FIXED: Final = 1_200_000
MEMORY_PER_NODE: Final = 7_500
MOST_PACKED: Final = 24 << 20
"""Bytes of a process beyond its imports, its samples and its buffers: threads, what each node of a
graph takes, and the packed operands of products at most.  `benchmarks/estimate.py --part fit` has
the first two, of three tasks."""
MOST_READ: Final = 7
"""Of claimed products that a check reads: how many times the largest of them is taken, where there
are more, since what is let go is not used again at once."""


@dataclass(frozen=True)
class Estimated:
    """One estimate: ``what`` of a ``stage`` takes ``value`` in ``unit``, found so."""

    stage: str
    what: str
    unit: Unit
    value: float
    how: How


@dataclass(frozen=True)
class Estimates:
    """What things take each, what a run and its audits come to, and what cannot be had, with the
    reason."""

    each: tuple[Estimated, ...]
    all: tuple[Estimated, ...]
    skipped: Mapping[str, str]


def estimate_task(
    file: TaskFile, *, engine: str = "auto", threads: int = 0, seconds: float = 0.5
) -> Estimates:
    """Calibrate for a few steps, about ``seconds`` for each figure, and estimate.

    Errors of :func:`compile_task`; StorageError where temporary files have no room.
    """
    with tempfile.TemporaryDirectory(prefix="vtrain-estimate-") as name:
        found = _Calibration(
            lambda every: compile_task(shorten(file, every)), Path(name), engine, threads, seconds
        )
        each = [*found.estimate_run(), *found.estimate_trace(), *found.estimate_dispute(EVERY)]
        skipped: dict[str, str] = {}
        try:
            each += estimate_proof(found.task, threads)
        except VtrainError as error:
            skipped["proof"] = str(error)
        return Estimates(tuple(each), tuple(_add_up(file, each, found)), skipped)


class _Calibration:
    """What was measured of a task on this machine."""

    def __init__(
        self,
        compile_: Callable[[int], CompiledTask],
        folder: Path,
        engine: str,
        threads: int,
        seconds: float,
    ) -> None:
        self._compile, self.task = compile_, compile_(EVERY)
        self._folder, self._engine = folder, engine
        self._threads, self._seconds = threads, seconds
        task = self.task
        self._session = open_session(engine, task.graph, task.samples, threads=threads)
        self._records: list[StepRecord] = []

    # --- training, committing, replaying

    @cached_property
    def step(self) -> float:
        """Seconds of a step without a state root."""
        self._session.load_state(self.task.initial_state)
        self._records = [self._session.step() for _ in range(EVERY)]
        return measure_step(self._session.step, self._seconds, warm=0, least=2 * EVERY)

    @cached_property
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """A state after some steps: at first moments are zeros, which are stored once."""
        self.step  # noqa: B018 - steps were done
        return self._session.read_state()

    @cached_property
    def root(self) -> float:
        """Seconds of a state root."""
        graph, state = self.task.graph, self.state
        return repeat(lambda: compute_root_of_state(graph, state, self._threads), self._seconds)

    @cached_property
    def checkpoint(self) -> tuple[float, int]:
        """Seconds and bytes of a checkpoint."""
        graph, state = self.task.graph, self.state
        path = self._folder / "checkpoint"
        seconds = repeat(lambda: write_checkpoint(path, graph, state), self._seconds)
        return seconds, path.stat().st_size

    @cached_property
    def load(self) -> float:
        """Seconds to read a checkpoint, to hash it, and to begin from it."""
        graph = self.task.graph
        self.checkpoint  # noqa: B018 - written once

        def load() -> None:
            state = read_checkpoint(self._folder / "checkpoint", graph)
            compute_root_of_state(graph, state, self._threads)
            self._session.load_state(state)

        return repeat(load, self._seconds)

    def estimate_run(self) -> Iterator[Estimated]:
        """Of training, commitment and replay."""
        step, (written, length) = self.step, self.checkpoint
        session = CpuSession(self.task.graph, self.task.samples, threads=self._threads)
        memory = self._count_memory(session.memory)
        record = len(encode_frame(self._records[-1]))  # which has a root
        yield Estimated("training", "step", "s", step, "calibration")
        yield Estimated("training", "memory", "bytes", memory, "model")
        yield Estimated("commitment", "state root", "s", self.root, "calibration")
        yield Estimated("commitment", "checkpoint", "s", written, "calibration")
        yield Estimated("commitment", "checkpoint", "bytes", length, "calibration")
        yield Estimated("commitment", "record", "bytes", record, "calibration")
        replayed = step + (self.load + self.root) / EVERY
        yield Estimated("replay", "step", "s", replayed, "calibration")
        yield Estimated("replay", "read for an interval", "bytes", length, "calibration")
        yield Estimated("replay", "memory", "bytes", memory, "model")

    def _count_memory(self, buffers: int) -> int:
        """Bytes of a process that holds the samples, the graph and so many bytes of buffers, and
        packs the operands of products."""
        graph = self.task.graph

        def measure_operand(ref: Ref) -> int:
            # Patches are read from the image, and never lie there themselves.
            node = graph.nodes[ref.node]
            return graph.type_of(node.inputs[0] if node.op == "im2col" else ref).byte_length

        nodes = [node for node in graph.nodes if node.op in PRODUCTS]
        packed = max((sum(map(measure_operand, node.inputs)) for node in nodes), default=0)
        held = MEMORY_FIXED + MEMORY_PER_NODE * len(graph.nodes) + min(packed, MOST_PACKED)
        return self.task.samples.table.nbytes + buffers + held

    # --- traces

    def estimate_trace(self) -> Iterator[Estimated]:
        """Of one step traced, and checked."""
        found = measure_trace(
            self._compile(1),
            self._folder / "run",
            self._folder / "traces",
            key=Ed25519PrivateKey.generate(),
            engine=self._engine,
            threads=self._threads,
            seconds=self._seconds,
        )
        yield Estimated("algebraic", "trace of a step", "s", found.writing, "calibration")
        yield Estimated("algebraic", "trace of a step", "bytes", found.stored, "calibration")
        yield Estimated("algebraic", "check of a step", "s", found.checking, "calibration")
        yield Estimated("algebraic", "read for a step", "bytes", found.read, "calibration")
        session = CpuSession(self.task.graph, self.task.samples, threads=self._threads)
        # The state is read beside the buffers, and let go; then claimed products, one by one.
        products = [
            node.outputs[0].byte_length for node in self.task.graph.nodes if node.op in PRODUCTS
        ]
        read_bytes = max(
            sum(value.nbytes for value in self.state.values()),
            min(sum(products), MOST_READ * max(products, default=0)),
        )
        memory = self._count_memory(session.check_memory) + read_bytes
        yield Estimated("algebraic", "memory", "bytes", memory, "model")

    # --- a dispute

    @cached_property
    def traced(self) -> float:
        """Seconds of a step of which the digests of all values are computed."""
        self._session.load_state(self.task.initial_state)
        return measure_step(self._session.trace, self._seconds / 2, warm=1, least=2)

    @cached_property
    def _challenger(self) -> float:
        """Seconds of an honest challenger where a root is committed to every few steps."""
        played = measure_dispute(
            self.task,
            2 * EVERY,
            engine=self._engine,
            threads=self._threads,
            seconds=self._seconds,
        )
        return played.thinking

    def estimate_dispute(self, commit_every: int) -> Iterator[Estimated]:
        """Of a game about the largest gradient in the last step of an interval of so many, whose
        last term is said to be wrong."""
        graph = self.task.graph
        node = graph.nodes[find_gradient(graph)]
        sources = [encode_node(graph.nodes[ref.node]) for ref in node.inputs]
        terms, block, _ = _core.leaf_fold(encode_node(node), sources)
        blocks = -(-terms // block)
        trace = len(graph.nodes) * commit_every
        chunks = compute_chunk_count(node.outputs[0].byte_length)
        descents = [2 * commit_every, trace, chunks, blocks]
        rounds = sum(-(-_count_bits(size) // _BITS) for size in descents) + DISPUTE.more_rounds
        reveals = _measure_descent(2 * commit_every, DISPUTE.record)
        reveals += _measure_descent(trace) + _measure_descent(chunks) + DISPUTE.chunk
        reveals += DISPUTE.bond + DISPUTE.item * _count_bits(trace)
        if blocks > 1:
            reveals += DISPUTE.bond + _measure_descent(blocks)
        opened = self._measure_opening(node, terms - (blocks - 1) * block)
        opened += DISPUTE.opening + 3 * DISPUTE.item * _count_bits(trace)
        more = (commit_every - EVERY) * (self.traced + self.step)
        yield Estimated("dispute", "challenger", "s", self._challenger + more, "calibration")
        yield Estimated("dispute", "rounds", "count", rounds, "model")
        yield Estimated("dispute", "all moves", "bytes", 2 * reveals + opened, "model")

    def _measure_opening(self, node: Node, terms: int) -> int:
        """Bytes of the chunks that so many terms of a product read, with their paths."""
        opened = 0
        for side, ref in zip("ab", node.inputs, strict=True):
            kind = self.task.graph.type_of(ref)
            along = attr_int(node.attrs, f"transpose_{side}", 0, 1) == (side == "b")
            stride = kind.byte_length // kind.size * (1 if along else kind.shape[-1])
            count = min(terms, math.ceil(terms * stride / 1024))
            path = DISPUTE.item * _count_bits(compute_chunk_count(kind.byte_length))
            opened += count * (min(1024, kind.byte_length) + path)
        return opened


_BITS: Final = 4
"""Levels of a binary tree that an answer goes down, where games cut in 16 parts."""


def _count_bits(size: int) -> int:
    """Levels of a binary tree of so many leaves."""
    return (size - 1).bit_length()


def _measure_descent(size: int, last: int = 0) -> int:
    """Bytes that one side says on the way down a tree of so many leaves; those of the last level
    have ``last`` bytes each."""
    said, bits = 0, _count_bits(size)
    while bits > 0:
        parts = min(1 << min(_BITS, bits), size)
        bits -= _BITS
        said += DISPUTE.answer + parts * (last if last and bits <= 0 else DISPUTE.item)
    return said


@dataclass(frozen=True)
class DisputeModel:
    """Constants of a dispute: rounds beside those of descents (a claim of the trace's root and one
    of the fold's, the chunk itself, the opening); bytes of an answer, of a hash or a record in it,
    of a chunk, of a bond, of an opening beside its chunks."""

    more_rounds: int
    answer: int
    item: int
    record: int
    chunk: int
    bond: int
    opening: int


DISPUTE: Final = DisputeModel(
    more_rounds=4, answer=230, item=34, record=85, chunk=1257, bond=270, opening=270
)

# --- proofs


@dataclass(frozen=True)
class ProofModel:
    """Of a proof by a key of so many GB, as ``vtrain.prove.backend.cost`` counts them: keys and
    proof take so many times the seconds of this machine's curve (:func:`measure_curve`) for each GB
    but the first ``spared``; the check that for each GB, and a fixed time; memory as many bytes as
    the key has, times ``memory``, but for some."""

    spared: float
    keys: float
    proof: float
    check: float
    check_fixed: float
    memory: float
    memory_spared: float


POINTS_K: Final = 13
PROOF: Final = ProofModel(
    spared=0.02,
    keys=896.0,
    proof=833.0,
    check=1.7,
    check_fixed=0.11,
    memory=2.35,
    memory_spared=0.09e9,
)
"""Fitted to three circuits of benchmarks/zk.py: a matmul tile and whole steps of 784-16-10 and
784-32-10 with plain SGD."""


def measure_curve(threads: int = 0) -> float:
    """Seconds of a commitment to 2^13 scalars, by points of this moment."""
    secret = _core.SrsSecret((0x5EED).to_bytes(32, "little"), POINTS_K, threads)
    points = _core.G1Points(secret.powers(0, 1 << POINTS_K, threads), 0, threads)
    rng = np.random.default_rng(0)
    scalars = rng.integers(0, 2**63, (1 << POINTS_K, 4), np.int64).astype("<i8")
    scalars[:, 3] >>= 3  # below the order of the curve
    data = scalars.tobytes()
    return repeat(lambda: points.combine(data, threads), 0.3)


def estimate_proof(task: CompiledTask, threads: int = 0) -> Iterator[Estimated]:
    """Of a proof of a step; MissingExtraError without the extra zk, CircuitError where there is no
    circuit for the model."""
    from vtrain.bench.proofs import plan_proof
    from vtrain.prove.backend.ezkl import require_extra

    require_extra("ezkl")
    plan = plan_proof(task.graph, measure_memory())
    what = "step" if plan.is_whole else "tile of a product"
    curve = measure_curve(threads)
    key = plan.cost.proving_key / 1e9

    model: How = "model"
    work = max(key - PROOF.spared, 0) * curve
    memory = PROOF.memory * key * 1e9 - PROOF.memory_spared
    check = PROOF.check_fixed + PROOF.check * key * curve
    yield Estimated("proof", f"keys for a {what}", "s", PROOF.keys * work, model)
    yield Estimated("proof", f"proof of a {what}", "s", PROOF.proof * work, model)
    yield Estimated("proof", f"check of a {what}", "s", check, model)
    yield Estimated("proof", "memory", "bytes", memory, model)
    if not plan.is_whole:
        name = "statements that a step falls into"
        yield Estimated("proof", name, "count", plan.statements, model)


# --- a run and its audits


def _add_up(file: TaskFile, each: list[Estimated], found: _Calibration) -> Iterator[Estimated]:
    """What a run of the task as it is comes to, and one interval of each kind of audit."""
    value = {(item.stage, item.what, item.unit): item.value for item in each}
    steps, commits = file.steps, file.steps // file.commit_every
    checkpoints = math.ceil(file.steps / file.checkpoint_every)
    step, root = value["training", "step", "s"], value["commitment", "state root", "s"]
    seconds = steps * step + commits * root
    seconds += checkpoints * value["commitment", "checkpoint", "s"]
    stored = checkpoints * value["commitment", "checkpoint", "bytes"]
    stored += steps * value["commitment", "record", "bytes"]
    interval = min(file.commit_every, steps)
    segment = min(file.checkpoint_every, steps)
    replay = segment * step + segment // interval * root + found.load
    calibration: How = "calibration"
    yield Estimated("training", f"all {steps:,} steps", "s", seconds, calibration)
    yield Estimated("training", "run directory, without samples", "bytes", stored, calibration)
    text = f"a segment of {segment:,} steps"
    yield Estimated("replay", text, "s", replay, calibration)
    text = f"an interval of {interval:,} steps"
    for what, name in (("trace of a step", "traced"), ("check of a step", "checked")):
        one = value["algebraic", what, "s"]
        yield Estimated("algebraic", f"{text}, {name}", "s", interval * one, calibration)
    stored = interval * value["algebraic", "trace of a step", "bytes"]
    yield Estimated("algebraic", f"{text}, at most", "bytes", stored, calibration)
    for item in found.estimate_dispute(interval):
        if item.what == "challenger":
            seconds = item.value + (segment - interval) * step
            yield Estimated("dispute", f"challenger, {text}", "s", seconds, "model")
