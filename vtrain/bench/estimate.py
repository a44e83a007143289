"""What a task would cost, said before a run.

Two ways, and each estimate says which:

- *a short calibration* on this machine: what ``vtrain bench`` measures, of one seed and for half
  the time, by the same code.  What a run, a replay, an audit by traces or a dispute takes is a
  multiple of these.
- *a cost model*, where doing it once would take minutes or another setting is asked for: rounds
  and bytes of a dispute from the sizes of the trees that it descends, a proof from the size of its
  keys and the time that this machine takes for a sum of curve points.  Its constants were fitted
  to measurements of the tasks that benchmarks/estimate.py names, which compares estimates of these
  and of others with what is then measured.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from vtrain import _core
from vtrain.bench.figures import Figure, Unit
from vtrain.bench.stages import EVERY, Setting, Subject, find_gradient, repeat, shorten
from vtrain.commit.log import decode_log, encode_frame
from vtrain.errors import VtrainError
from vtrain.limits import measure_memory
from vtrain.ops.base import attr_int
from vtrain.spec.blake3_tree import compute_chunk_count
from vtrain.spec.frontier import compute_ranges
from vtrain.train.task import CompiledTask, TaskFile, compile_task
from vtrain.wire.graph import Node, StepGraph, encode_node
from vtrain.wire.opening import CHUNK_LENGTH

How = Literal["calibration", "model"]
_TRACED: Final = 1 << 26
"""Bytes of values up to which a whole interval is traced; of a longer one as many steps as have
them, two at least."""
_PROCESSES: Final = 3
"""That memory is the median of, where there are no other seeds."""


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
        subject = Subject(
            lambda every: compile_task(shorten(file, every)),
            Path(name),
            Setting(engine=engine, threads=threads, seconds=seconds, processes=_PROCESSES),
        )
        figures = [*subject.train(), *subject.commit(), *subject.replay()]
        more = subject.measure(("algebraic", "dispute"))
        figures += more.figures
        skipped = dict(more.skipped)
        graph = subject.task.graph
        each = [Estimated(**asdict(figure), how="calibration") for figure in figures]
        if "dispute" not in skipped:
            # Of other intervals than the one that was played it is the model that tells.
            told = {(item.what, item.unit): item for item in estimate_game(graph, EVERY)}
            each = [told.get((item.what, item.unit), item) for item in each]
        try:
            each += estimate_proof(subject.task, threads)
        except VtrainError as error:
            skipped["proof"] = str(error)
        return Estimates(tuple(each), tuple(_add_up(file, figures, subject)), skipped)


# --- a dispute


def estimate_game(graph: StepGraph, commit_every: int) -> Iterator[Estimated]:
    """Of a game about the element in the middle of the largest gradient, in the last step of an
    interval of so many that is the second of a run, whose last term is said to be wrong."""
    index = find_gradient(graph)
    node = graph.nodes[index]
    kind = node.outputs[0]
    sources = [encode_node(graph.nodes[ref.node]) for ref in node.inputs]
    terms, block, _ = _core.leaf_fold(encode_node(node), sources)
    blocks = -(-terms // block)
    log, trace = 2 * commit_every, len(graph.nodes) * commit_every
    chunks = compute_chunk_count(kind.byte_length)
    chunk = kind.size // 2 * (kind.byte_length // kind.size) // CHUNK_LENGTH
    place = trace - len(graph.nodes) + index
    answers = [
        *_descend(log, log - 1, DISPUTE.record),
        *_descend(trace, place),
        *_descend(chunks, chunk),
        *_descend(blocks, blocks - 1),
    ]
    reveals = sum(answers) + DISPUTE.chunk + DISPUTE.bond + DISPUTE.item * _count_bits(trace)
    more = _MORE_ROUNDS
    if blocks > 1:
        reveals += DISPUTE.bond
        more += 1
    opened = _measure_opening(graph, node, terms - (blocks - 1) * block)
    opened += DISPUTE.opening + 3 * DISPUTE.item * _count_bits(trace)
    yield Estimated("dispute", "rounds", "count", len(answers) + more, "model")
    yield Estimated("dispute", "all moves", "bytes", 2 * reveals + opened, "model")


def _measure_opening(graph: StepGraph, node: Node, terms: int) -> int:
    """Bytes of the chunks that so many terms of a product read, with their paths."""
    opened = 0
    for side, ref in zip("ab", node.inputs, strict=True):
        kind = graph.type_of(ref)
        along = attr_int(node.attrs, f"transpose_{side}", 0, 1) == (side == "b")
        stride = kind.byte_length // kind.size * (1 if along else kind.shape[-1])
        count = min(terms, math.ceil(terms * stride / CHUNK_LENGTH))
        path = DISPUTE.item * _count_bits(compute_chunk_count(kind.byte_length))
        opened += count * (min(CHUNK_LENGTH, kind.byte_length) + path)
    return opened


_BITS: Final = 4
"""Levels of a binary tree that an answer goes down, where games cut in 16 parts."""
_MORE_ROUNDS: Final = 3
"""Beside those of descents: the trace's root, the chunk, the opening; where a fold has more than a
block, its root too."""


def _count_bits(size: int) -> int:
    """Levels of a binary tree of so many leaves."""
    return (size - 1).bit_length()


def _descend(size: int, leaf: int, last: int = 0) -> Iterator[int]:
    """Bytes of the answers that one side gives on the way down a tree of so many leaves to one of
    them; single leaves have ``last`` bytes each, where that is not 0."""
    start, end = 0, size
    while end - start > 1:
        ranges = compute_ranges(start, end, _BITS)
        leaves = sum(at + 1 == to for at, to in ranges)
        of_leaves = leaves * (last or DISPUTE.item)
        yield DISPUTE.answer + (len(ranges) - leaves) * DISPUTE.item + of_leaves
        start, end = next((at, to) for at, to in ranges if at <= leaf < to)


@dataclass(frozen=True)
class DisputeModel:
    """Bytes of an answer in a dispute, of a hash or a record in it, of a chunk, of a bond, of an
    opening beside its chunks."""

    answer: int
    item: int
    record: int
    chunk: int
    bond: int
    opening: int


DISPUTE: Final = DisputeModel(answer=230, item=34, record=85, chunk=1257, bond=270, opening=270)
"""Fitted to the games that `vtrain bench` plays of three tasks: tiny, mlp, gpt."""

# --- proofs


@dataclass(frozen=True)
class ProofModel:
    """Of a proof by a key of so many GB, as ``vtrain.prove.backend.cost`` counts them, on a machine
    that takes so many seconds for its curve (:func:`measure_curve`).

    Keys and proof take ``keys`` and ``proof`` curves times a power of the GB; the check so many
    curves for each GB, and a fixed time; memory is ``memory`` times the bytes of the key but the
    first ``memory_spared`` GB.
    """

    keys: float
    keys_power: float
    proof: float
    proof_power: float
    check: float
    check_fixed: float
    memory: float
    memory_spared: float

    def estimate_keys(self, key: float, curve: float) -> float:
        """Seconds to make a key of so many GB."""
        return float(self.keys * key**self.keys_power * curve)

    def estimate_proof(self, key: float, curve: float) -> float:
        """Seconds to prove by it."""
        return float(self.proof * key**self.proof_power * curve)

    def estimate_check(self, key: float, curve: float) -> float:
        """Seconds to check what is proven by it."""
        return self.check_fixed + self.check * key * curve

    def estimate_memory(self, key: float) -> float:
        """Bytes for a key of so many GB."""
        return self.memory * max(key - self.memory_spared, 0) * 1e9


POINTS_K: Final = 13
PROOF: Final = ProofModel(
    keys=1253.0,
    keys_power=1.214,
    proof=978.0,
    proof_power=1.045,
    check=1.7,
    check_fixed=0.11,
    memory=2.25,
    memory_spared=0.03,
)
"""Fitted to a tile of a product and to a whole step of 784-16-10 with cross-entropy and momentum;
check and memory to whole steps of 784-16-10 and 784-32-10 with plain SGD, and to a matmul tile."""


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
    keys, proof = PROOF.estimate_keys(key, curve), PROOF.estimate_proof(key, curve)
    check, memory = PROOF.estimate_check(key, curve), PROOF.estimate_memory(key)
    yield Estimated("proof", f"keys for a {what}", "s", keys, model)
    yield Estimated("proof", f"proof of a {what}", "s", proof, model)
    yield Estimated("proof", f"check of a {what}", "s", check, model)
    yield Estimated("proof", "memory", "bytes", memory, model)
    if not plan.is_whole:
        name = "statements that a step falls into"
        yield Estimated("proof", name, "count", plan.statements, model)


# --- a run and its audits


def _add_up(file: TaskFile, each: list[Figure], subject: Subject) -> Iterator[Estimated]:
    """What a run of the task as it is comes to, and one interval of each kind of audit."""
    value = {(item.stage, item.what, item.unit): item.value for item in each}
    step = value["training", "step", "s"]
    root = max(subject.committing - step, 0.0)
    written = value["commitment", "checkpoint", "s"]
    steps = file.steps
    # What a run of two intervals took, and what it has more of.
    more, commits = steps - 2 * EVERY, steps // file.commit_every - 2
    checkpoints = math.ceil(steps / file.checkpoint_every) - 2
    seconds = subject.running + more * subject.advancing
    seconds += commits * root + checkpoints * written
    stored = _measure_files(file, subject)
    interval = min(file.commit_every, steps)
    segment = min(file.checkpoint_every, steps)
    replay = segment * step + segment // interval * root + subject.loading
    calibration: How = "calibration"
    yield Estimated("training", f"all {steps:,} steps", "s", seconds, calibration)
    yield Estimated("training", "run directory, without samples", "bytes", stored, calibration)
    yield Estimated("replay", f"a segment of {segment:,} steps", "s", replay, calibration)
    text = f"an interval of {interval:,} steps"
    if ("algebraic", "check of a step", "s") in value:
        one = traced = subject.traced
        count = min(interval, max(2, _TRACED // one.stored))
        if interval > 1:
            traced = subject.trace(count)

        def go_on(first: float, all_: float) -> float:
            """That of the interval, if each step but the first takes as much as the next."""
            return first + (interval - 1) * (all_ - first) / max(count - 1, 1)

        seconds = go_on(one.writing, traced.writing) + (steps - 2 * count) * subject.reading
        yield Estimated("algebraic", f"{text}, traced", "s", seconds, calibration)
        seconds = go_on(one.checking, traced.checking)
        yield Estimated("algebraic", f"{text}, checked", "s", seconds, calibration)
        stored = round(go_on(one.stored, traced.stored))
        yield Estimated("algebraic", f"{text}, traced", "bytes", stored, calibration)
    if ("dispute", "challenger", "s") in value:
        if interval < EVERY:
            seconds = subject.play(interval).thinking
        else:  # a traced and a plain step more for each of its steps
            seconds = value["dispute", "challenger", "s"]
            seconds += (interval - EVERY) * (subject.tracing + step)
        yield Estimated("dispute", f"challenger, {text}", "s", seconds, calibration)
        for item in estimate_game(subject.task.graph, interval):
            yield Estimated("dispute", f"{item.what}, {text}", item.unit, item.value, item.how)


def _measure_files(file: TaskFile, subject: Subject) -> int:
    """Bytes of a run directory without its samples: those of the run of two intervals, where the
    task has more or fewer records, lines and checkpoints than that."""
    paths, every = subject.paths, 2 * EVERY
    sizes = {path: path.stat().st_size for path in paths.root.rglob("*") if path.is_file()}
    records = decode_log(paths.log.read_bytes())
    plain, rooted = (len(encode_frame(records[at])) for at in (0, EVERY - 1))
    checkpoint = sizes[paths.checkpoint(0)]
    commits = file.steps // file.commit_every
    found = sum(size for path, size in sizes.items() if path != paths.samples)
    found += (file.steps - every) * (plain + sizes[paths.history] // every)
    found += (commits - 2) * (rooted - plain)
    found += (math.ceil(file.steps / file.checkpoint_every) - 2) * checkpoint
    return found
