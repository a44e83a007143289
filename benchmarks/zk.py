"""What proofs cost: whole steps, tiles, KZG commitments; predicted and measured.

Whole steps are those of MNIST runs at batch 8: 784-16-10 and 784-32-10, with a squared error and
plain SGD or with cross-entropy and momentum.  k is the one of 17 to 19 that the least memory is
estimated for, with at most six columns of cells.  Tiles are 128 x 128 integers at k = 15, drawn at
random over the whole range that their circuit takes.  The SRS are made here, insecure: they serve
to measure.  Keys are thrown away after each circuit.

Counted are: *setup*, all of ``load_keys`` with nothing cached; *prove*, all of ``prove`` from
integers to a proof that our own verifier took, keys, SRS and circuit loaded (of it: the witness
with its commitments and our own look at every condition; ezkl's ``prove``; the verifier);
*verify*, all of ``verify`` in a process that has circuit, keys and SRS,
as an auditor's has after the first proof: public vectors computed and committed to, the challenge
drawn again, and ezkl in a fresh process.  Memory is the largest resident set of the process that
ezkl runs in; that of the process which waits for it stands beside it.  Every proof is made once,
but those of a matmul tile and of its baseline, of which the median counts; every verification is
repeated.  The baseline is the least that ezkl takes for a statement about three tiles at this k: a
circuit that commits to them and says of three elements that they add up.  A training step is the
engine's with its state root; a replay of it begins with reading and checking a checkpoint, as an
audit does.  All tiles of a step are counted from its graph, and their time is added up from that of
one proof a circuit.

Predicted, by the circuits' author, of whole steps before groups shared columns and ezkl took large
pages, and of the tile before tiles went from k = 16 to 15, on a slow host: 784-32-10 squared error
784,000 cells, k = 17, 40 s, 3.1 GB, 8,060 bytes, 0.14 s to verify; cross-entropy with momentum
898,000 cells, k = 18, 70 s, 4.4 GB, 5,950 bytes, 0.23 s; with clamps 1,514,000 cells, k = 18, 98 s,
5.7 GB, 7,830 bytes, 0.27 s. A matmul tile 49,400 cells, k = 15, 5.3 s, 0.3 GB, 3,008 bytes. KZG
commitments to 25,000 values 0.015 s.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import secrets
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import _harness as harness
import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from step import read_peak

from vtrain.audit.replay import replay_segment
from vtrain.audit.structure import read_state
from vtrain.commit.hiding import derive_elements, encode_elements
from vtrain.commit.kzg_layout import batch_vectors, state_vectors
from vtrain.commit.log import decode_log
from vtrain.engines.registry import open_session
from vtrain.ops import TABLE
from vtrain.prove.backend.cost import estimate, require_fits
from vtrain.prove.backend.ezkl import Limits
from vtrain.prove.backend.keys import load_keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, count_blocks, count_usable, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.prover import prove
from vtrain.prove.runs import StepSource, read_run
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.prove.tiles.circuits import (
    GATE_REACH,
    LOOK_UP,
    MAX_SHIFTS,
    SOFTMAX_TILES,
    TILE_CIRCUITS,
    TILE_K,
    TILE_ROWS,
    LinearMap,
    build_tile_circuit,
    linear_challenge,
    look_up_parameters,
    range_parameters,
    rescale_parameters,
    softmax_parameters,
)
from vtrain.prove.tiles.statements import LINEAR, StepFacts
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.verifier import Expansion, read_commitments, verify
from vtrain.spec.curves import whole_curve
from vtrain.spec.number import SATURATION, rs_int, saturate_int
from vtrain.train.data import IdxSource, gather_batch
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask, load_task
from vtrain.wire.graph import decode_graph, encode_graph
from vtrain.wire.hiding import Hiding
from vtrain.wire.proof import TILE, ProofSpec
from vtrain.wire.task import BLAKE3_ONLY

EXAMPLES = harness.ROOT / "examples"
STEP_KS = (17, 18, 19)
BATCH = 8
RUN_STEPS, PROVEN_STEP = 6, 4
STEP_COLUMNS: Final = 6
"""Most columns of cells of a whole step's circuit: more make proofs longer than 10,000 bytes."""
LIMITS: Final = Limits(memory=48 << 30, seconds=900)
GB = 1e9
KZG_VALUES = 25_000
KEY: Final = bytes(range(32))
"""Hides what is committed to."""
SHARE = 0.1
"""Of a run, what its KZG commitments may take where ``every`` is chosen by it."""

VERIFY_LIMIT = 0.3
PROOF_LIMIT = 10_000
TILE_LIMITS = (6.0, 1.0)
KZG_LIMIT = 0.2

LEAST: Final = "least of ezkl"
"""The baseline of a matmul tile."""
OFTEN: Final = 5
"""Proofs of a matmul tile and of its baseline."""
SAME: Final = {"matmul-nt": "matmul-nn", "matmul-tn": "matmul-nn"}
"""Circuits that are another but for transpositions, which cost nothing: not measured again."""

T = TypeVar("T")
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Step:
    """A whole step to prove: example model, loss, momentum, circuit; most seconds and GB."""

    kind: str
    model: str
    loss: str
    circuit: str
    limits: tuple[float, float]

    @property
    def label(self) -> str:
        """For tables."""
        optimizer = "plain SGD" if self.loss == "mse" else "momentum"
        return f"{self.model}, {self.loss}, {optimizer}, {self.circuit}"


_PLAIN, _WHOLE = (60.0, 8.0), (150.0, 18.0)
STEPS = (
    Step("tiny", "784-16-10", "mse", "step", _PLAIN),
    Step("small", "784-32-10", "mse", "step", _PLAIN),
    Step("tiny", "784-16-10", "cross_entropy", "step", _WHOLE),
    Step("small", "784-32-10", "cross_entropy", "step", _WHOLE),
    Step("small", "784-32-10", "cross_entropy", "step-clamps", _WHOLE),
)
PREDICTED: Final[Mapping[str, Mapping[str, float]]] = {
    STEPS[1].label: {
        "cells": 784_000,
        "k": 17,
        "prove, s": 40,
        "prove, GB": 3.1,
        "proof, bytes": 8060,
        "verify, s": 0.14,
    },
    STEPS[3].label: {
        "cells": 898_000,
        "k": 18,
        "prove, s": 70,
        "prove, GB": 4.4,
        "proof, bytes": 5950,
        "verify, s": 0.23,
    },
    STEPS[4].label: {
        "cells": 1_514_000,
        "k": 18,
        "prove, s": 98,
        "prove, GB": 5.7,
        "proof, bytes": 7830,
        "verify, s": 0.27,
    },
    "matmul-nn": {
        "cells": 49_400,
        "k": 15,
        "prove, s": 5.3,
        "prove, GB": 0.3,
        "proof, bytes": 3008,
    },
}
KZG_PREDICTED = 0.015


_PLACES = np.arange(TILE * TILE)
TRANSPOSE: Final = LinearMap(
    _PLACES, _PLACES.reshape(TILE, TILE).T.reshape(-1), np.ones_like(_PLACES)
)
"""The map of the linear tile; a sparser one takes the verifier less."""


# --- statements


@dataclass(frozen=True)
class Case:
    """A true statement and its circuit: of a step of ``graph`` (encoded), or over tiles."""

    circuit: str
    k: int
    given: Mapping[str, Ints]
    parameters: Mapping[str, Ints] = field(default_factory=dict)
    graph: bytes = b""

    @property
    def expansion(self) -> Expansion | None:
        """Of the challenge, which has to do with the map that a linear tile is of."""
        if self.circuit != LINEAR:
            return None
        return partial(linear_challenge, TILE, image=TRANSPOSE)

    def build(self) -> Circuit:
        """The circuit."""
        if self.circuit == LEAST:
            return build_least()
        if not self.graph:
            return build_tile_circuit(self.circuit)
        return build_step_circuit(decode_graph(self.graph), self.k, self.circuit)


def compile_step(step: Step, folder: Path) -> CompiledTask:
    """The task that a step is of."""
    from _models import compile_variant, load_make_models, write_one_hot

    file = load_task(EXAMPLES / "zk" / "task.toml")
    changes: dict[str, Any] = {
        "loss": step.loss,
        "batch": BATCH,
        "steps": RUN_STEPS,
        "checkpoint_every": 1,
        "commitments": BLAKE3_ONLY,
        "proof": None,
    }
    if step.loss == "mse":
        assert isinstance(file.data, IdxSource)
        changes |= {
            "optimizer": replace(file.optimizer, momentum=Fraction(0)),
            "data": write_one_hot(file.data, folder),
        }
    _, task = compile_variant(file, load_make_models().make_model(step.kind, 0), **changes)
    return task


def choose_k(task: CompiledTask, step: Step) -> int:
    """The k for which the least memory is estimated; CircuitError if there is not so much."""
    built = {k: build_step_circuit(task.graph, k, step.circuit) for k in STEP_KS}
    costs = {
        k: estimate(circuit, k)
        for k, circuit in built.items()
        if count_blocks(circuit, k) * circuit.inner_columns <= STEP_COLUMNS
    }
    best = min(costs, key=lambda k: costs[k].memory)
    require_fits(costs[best], read_available())
    return best


def read_available() -> int:
    """Bytes of memory that are there to be used."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not tell how much memory there is")


def make_step_case(task: CompiledTask, run: Path, circuit: str, k: int) -> Case:
    """What a run logged of one of its steps."""
    signed = read_run(run)
    spec = ProofSpec("step", bytes(32), k, BLINDING, 1, (), {})
    values = StepSource(signed, spec, Hiding()).values(PROVEN_STEP)
    return Case(circuit, k, values.given, values.parameters, encode_graph(task.graph))


def _draw_hiding(given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Elements that hide given vectors."""
    key = secrets.token_bytes(32)
    return {name: derive_elements(key, column) for column, name in enumerate(given)}


def _derive(columns: Sequence[Any]) -> Iterator[bytes]:
    """What hides the columns of a state or batch, derived as a run does it."""
    key = secrets.token_bytes(32)
    return (encode_elements(derive_elements(key, number)) for number in range(len(columns)))


def _tile(values: Array) -> Ints:
    """A matrix or a vector (one row) as a flat tile with zeros behind it."""
    matrix = np.atleast_2d(np.asarray(values, dtype=object))
    whole = np.zeros((TILE, TILE), dtype=object)
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    return whole.reshape(-1)


def make_tile_case(name: str) -> Case:
    """A random statement that the circuit ``name`` holds of."""
    family, _, form = name.partition("-")
    given, parameters = _TILE_CASES[family](form, np.random.default_rng(0))
    return Case(name, TILE_K, {key: _tile(value) for key, value in given.items()}, parameters)


Made = tuple[dict[str, Any], dict[str, Ints]]


def _make_matmul(form: str, rng: np.random.Generator) -> Made:
    _, most = SATURATION["i16"]
    a, b = rng.integers(-most, most + 1, (2, TILE, TILE))
    left, right = (x.T if letter == "t" else x for x, letter in zip((a, b), form, strict=True))
    return {"a": a, "b": b, "c": left @ right}, {}


def make_least_case() -> Case:
    """Tiles as of a product, of which c begins with the sum of what a and b begin with."""
    case = make_tile_case("matmul-nn")
    tiles = {name: values.copy() for name, values in case.given.items()}
    tiles["c"][0] = tiles["a"][0] + tiles["b"][0]
    return Case(LEAST, TILE_K, tiles)


def build_least() -> Circuit:
    """The baseline: three tiles committed to, and one equation."""
    b = CircuitBuilder(1, rows=TILE_ROWS)
    first = [b.slice(b.vector(name, TILE * TILE), 0, 1) for name in ("a", "b", "c")]
    b.require_zero("sum", b.sub(b.add(*first[:2]), first[2]))
    return b.build()


def _make_rescale(form: str, rng: np.random.Generator) -> Made:
    dtype, limbs = form.split("-")
    shift, multiplier = MAX_SHIFTS[int(limbs)], 3
    most = 1 << 40 if dtype == "i64" else SATURATION[dtype][1]
    # A quarter of all elements saturate.
    x = rng.integers(-(2**20), 2**20, (TILE, TILE)).astype(object) * (most << shift) // (9 << 18)
    y = [[saturate_int(rs_int(int(v) * multiplier, shift), dtype) for v in row] for row in x]
    extent = {"rows": TILE, "columns": TILE}
    parameters = rescale_parameters(TILE, int(limbs), multiplier=multiplier, shift=shift, **extent)
    return {"x": x, "y": np.asarray(y, dtype=object)}, parameters


def _make_look(form: str, rng: np.random.Generator) -> Made:
    """The longest table."""
    entries = whole_curve("tanh")
    x = rng.integers(0, len(entries), (TILE, TILE))
    return {"x": x - len(entries) // 2, "y": entries[x]}, look_up_parameters(entries)


def _make_gate(form: str, rng: np.random.Generator) -> Made:
    x, g = rng.integers(-GATE_REACH, GATE_REACH + 1, (2, TILE, TILE))
    return {"x": x, "g": g, "y": np.where(x > 0, g, 0)}, {}


def _make_square(form: str, rng: np.random.Generator) -> Made:
    x = rng.integers(-32639, 32640, (TILE, TILE))
    return {"x": x, "s": np.asarray([(x**2).sum()])}, {}


def _make_zero(form: str, rng: np.random.Generator) -> Made:
    return {"x": np.zeros((TILE, TILE), dtype=np.int64)}, {}


def _make_linear(form: str, rng: np.random.Generator) -> Made:
    lo, hi = SATURATION["i32"]
    x = rng.integers(lo, hi + 1, (TILE, TILE))
    return {"x": x, "y": x.T}, {}


def _make_range(form: str, rng: np.random.Generator) -> Made:
    lo, hi = (0, 255) if form == "1" else SATURATION["i32"]
    x = rng.integers(lo, hi + 1, (TILE, TILE))
    return {"x": x}, range_parameters(TILE, lo=lo, hi=hi, rows=TILE, columns=TILE)


def _make_softmax(form: str, rng: np.random.Generator) -> Made:
    most = int(form)
    z = rng.integers(-20_000, 20_000, (TILE, most)).astype(np.int32)
    labels = rng.integers(0, most, TILE)
    maximum = TABLE["row_max"].law({}, [z])
    exp = TABLE["exp2_diff"].law({}, [z, maximum])
    total = TABLE["row_sum"].law({}, [exp])
    p = TABLE["divide"].law({}, [exp, total])
    grad = TABLE["sub_one_hot"].law({}, [p, labels])
    loss = TABLE["cross_entropy"].law({}, [z, maximum, total, labels])
    tiles = (z, labels, maximum, exp, total, p, grad, loss)
    parameters = softmax_parameters(TILE, most, rows=TILE, classes=most)
    return dict(zip(SOFTMAX_TILES, tiles, strict=True)), parameters


def _make_mul(form: str, rng: np.random.Generator) -> Made:
    a, b = rng.integers(-32639, 32640, (2, TILE, TILE))
    return {"a": a, "b": b, "y": a * b}, {}


_TILE_CASES: Final[Mapping[str, Callable[[str, np.random.Generator], Made]]] = {
    "gate": _make_gate,
    "linear": _make_linear,
    "look": _make_look,
    "matmul": _make_matmul,
    "mul": _make_mul,
    "range": _make_range,
    "rescale": _make_rescale,
    "softmax": _make_softmax,
    "square": _make_square,
    "zero": _make_zero,
}


# --- a circuit


def run_alone(work: Callable[..., T], *arguments: object) -> T:
    """Call ``work`` in a process of its own: what its children used is then its own.

    It imports this module, and so not ``_models``, which would load torch.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(work, *arguments).result()


def read_usage() -> tuple[float, float]:
    """CPU-seconds of this process and its children, and the largest child's memory in GB.

    A child's begins with its parent's, here a few hundred MB.
    """
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return seconds, children.ru_maxrss * 1024 / GB


def set_up(case: Case, srs: Path, cache: Path) -> dict[str, Any]:
    """Make the keys of a circuit; figures of circuit and keys."""
    circuit = case.build()
    pinned = pin(circuit, case.k)
    cpu, _ = read_usage()
    begin = time.perf_counter()
    keys = load_keys(pinned, srs, cache, LIMITS)
    wall = time.perf_counter() - begin
    after, memory = read_usage()
    inner = circuit.inner_columns
    return {
        "k": case.k,
        "cells": circuit.cells,
        "rows": -(-circuit.cells // inner),
        "inner columns": inner,
        "committed columns": len(circuit.columns),
        "pk, MB": round(keys.pk.stat().st_size / 1e6),
        "vk, bytes": keys.vk.stat().st_size,
        "setup, s": round(wall, 2),
        "setup, CPU-s": round(after - cpu, 1),
        "setup, GB": round(memory, 2),
    }


class Stages:
    """When ``prove`` reported that it had done so much."""

    NAMES: Final = {"witness": 2, "ezkl prove": 3, "verify": 4}

    def __init__(self) -> None:
        self._times: dict[int, float] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.perf_counter()
        for count in range(done + 1):
            self._times.setdefault(count, now)

    def spent(self) -> dict[str, float]:
        """Seconds of each stage."""
        ends = [self._times[0], *(self._times[done] for done in self.NAMES.values())]
        return {
            name: round(end - start, 2)
            for name, start, end in zip(self.NAMES, ends, ends[1:], strict=False)
        }


def prove_and_verify(
    case: Case, srs: Path, cache: Path, proofs: int, rounds: int
) -> dict[str, Any]:
    """Prove it so often, and verify a proof ``rounds`` times; figures, with both spreads.

    What a proof's time is made of is told of the last one.
    """
    circuit = case.build()
    pinned = pin(circuit, case.k)
    keys = load_keys(pinned, srs, cache, LIMITS)
    commit_key = CommitKey(srs, case.k, BLINDING)
    walls = []
    cpu, _ = read_usage()
    for _ in range(proofs):
        stages = Stages()
        begin = time.perf_counter()
        proof = prove(
            circuit,
            pinned,
            keys,
            given=case.given,
            hiding={name: derive_elements(KEY, i) for i, name in enumerate(case.given)},
            count=lambda: None,
            parameters=case.parameters,
            srs=srs,
            commit_key=commit_key,
            limits=LIMITS,
            claim=b"",
            expansion=case.expansion,
            progress=stages,
        )
        walls.append(time.perf_counter() - begin)
    after, memory = read_usage()
    found = read_commitments(circuit, proof)

    def check() -> None:
        verdict = verify(
            circuit,
            pinned,
            keys,
            proof.data,
            expected={name: found[name] for name in circuit.given},
            parameters=case.parameters,
            commit_key=commit_key,
            limits=LIMITS,
            claim=b"",
            expansion=case.expansion,
        )
        assert verdict.holds, verdict.reason

    before, _ = read_usage()
    checks = harness.spread([harness.time_once(check) for _ in range(rounds)])
    checked, _ = read_usage()
    return {
        "prove, s": round(statistics.median(walls), 2),
        **{f"of it {name}": seconds for name, seconds in stages.spent().items()},
        "prove, CPU-s": round((after - cpu) / proofs, 1),
        "prove, GB": round(memory, 2),
        "beside it, GB": round(read_peak() / 1000, 2),
        "proof, bytes": len(proof.data),
        "verify, s": round(checks["median"], 3),
        "verify, CPU-s": round((checked - before) / rounds, 3),
        "verify spread": checks,
        "prove spread": harness.spread(walls),
    }


class Workshop:
    """Measures circuits in a folder, with an SRS for each k."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self._folder, self._rounds = folder, rounds

    def srs(self, k: int) -> Path:
        """The SRS of this k, made on first use."""
        path = self._folder / f"k{k}.srs"
        if not path.exists():
            generate_srs(path, k)
        return path

    def measure(self, case: Case, proofs: int = 1) -> dict[str, Any]:
        """Set up, prove, verify; the keys are then removed."""
        srs = self.srs(case.k)
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            row = run_alone(set_up, case, srs, Path(name))
            return row | run_alone(prove_and_verify, case, srs, Path(name), proofs, self._rounds)


# --- whole steps


def measure_baseline(task: CompiledTask, run: Path, seconds: float) -> tuple[float, float]:
    """Seconds of a training step, and of replaying one step from a checkpoint."""
    paths = RunPaths(run)
    records = decode_log(paths.log.read_bytes())
    session = open_session("cpu", task.graph, task.samples)
    start = PROVEN_STEP - 1

    def replay() -> None:
        session.load_state(read_state(paths, task.spec, task.graph, records, start))
        assert replay_segment(session, records, start, PROVEN_STEP) is None

    trainer = open_session("cpu", task.graph, task.samples)
    trainer.load_state(task.initial_state)
    compared = harness.compare(trainer.step, replay, seconds=seconds)
    return compared["ours"]["median"], compared["theirs"]["median"]


def measure_step(step: Step, workshop: Workshop, folder: Path, seconds: float) -> dict[str, Any]:
    """A row of figures."""
    folder.mkdir()
    task = compile_step(step, folder)
    k = choose_k(task, step)
    run = folder / "run"
    train(task, run, key=Ed25519PrivateKey.generate())
    training, replay = measure_baseline(task, run, seconds)
    row = workshop.measure(make_step_case(task, run, step.circuit, k))
    return {
        "step": step.label,
        **row,
        "training step, ms": round(1000 * training, 3),
        "replay, ms": round(1000 * replay, 3),
        "prove / training step": round(row["prove, s"] / training),
        "prove / replay": round(row["prove, s"] / replay),
    }


# --- tiles of a step


MODELS: Final = {"mlp": 64, "cnn": 64, "wide": 128}
"""Example model -> batch."""


def compile_example(kind: str, batch: int) -> CompiledTask:
    """An example model with a state root every step."""
    from _models import compile_variant, load_make_models

    file = load_task(EXAMPLES / "mnist" / ("cnn.toml" if kind == "cnn" else "mlp.toml"))
    changes = {"batch": batch, "commit_every": 1, "checkpoint_every": 1, "steps": 1_000_000}
    model = load_make_models().make_model(kind, 0)
    _, task = compile_variant(file, model, calibration_steps=5, **changes)
    return task


def count_statements(task: CompiledTask) -> tuple[Counter[str], int]:
    """Statements about a step by circuit, and how many tiles its trace has."""
    tiling = Tiling(task.graph)
    facts = StepFacts(1, 0)
    counts = Counter(tiling.statement(i, facts).circuit for i in range(len(tiling)))
    return counts, tiling.leaf_count


def plan_tiles(
    tasks: Mapping[str, CompiledTask],
    seconds: Mapping[str, float],
    commit: float,
    runs: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """What all tiles of a step take, by the seconds that a proof of each circuit takes, that a
    commitment to a tile takes, and that a training step takes (in ``runs``)."""
    rows = []
    for run in runs:
        task = tasks[run["model"]]
        counts, tiles = count_statements(task)
        needed = sum(n * seconds[name] for name, n in counts.items())
        rows.append(
            {
                "model": run["model"],
                "batch": run["batch"],
                "statements": counts.total(),
                "circuits": len(counts),
                "tiles of the trace": tiles,
                "committing to them, s": round(tiles * commit, 1),
                "proving all, hours": round(needed / 3600, 2),
                "proving all / training step": round(1000 * needed / run["training step, ms"]),
                "100 drawn at random, minutes": round(100 * needed / counts.total() / 60, 1),
            }
        )
    return rows


# --- KZG commitments


def measure_commitments(key: CommitKey, values: Array) -> harness.Spread:
    """Seconds to commit to a vector."""
    key.commit(values)
    return harness.spread([harness.time_once(lambda: key.commit(values)) for _ in range(25)])


def hide(columns: Sequence[Array]) -> list[bytes]:
    """What hides columns, derived anew as for each state and batch."""
    return [encode_elements(derive_elements(KEY, i)) for i in range(len(columns))]


def measure_run(kind: str, task: CompiledTask, key: CommitKey, rounds: int) -> dict[str, Any]:
    """What KZG commitments make of a run, with momentum, that has them at every step."""
    session = open_session("cpu", task.graph, task.samples)
    session.load_state(task.initial_state)
    for _ in range(PROVEN_STEP):
        session.step()
    usable = count_usable(key.k)
    state = state_vectors("step", task.graph, session.read_state(), usable)
    x, y = gather_batch(task.samples, task.spec.seed, task.spec.batch, PROVEN_STEP)
    batch = batch_vectors("step", x, y, usable)
    step, whole, some = (
        statistics.median(harness.time_once(work, calls) for _ in range(rounds))
        for work, calls in (
            (session.step, 20),
            (lambda: key.commit_many(state, hide(state)), 1),
            (lambda: key.commit_many(batch, hide(batch)), 1),
        )
    )
    values = sum(vector.size for vector in state)
    return {
        "model": kind,
        "batch": task.spec.batch,
        "parameters": values // 2,
        "values of the state": values,
        "values of the batch": sum(vector.size for vector in batch),
        "training step, ms": round(1000 * step, 3),
        "state, ms": round(1000 * whole, 1),
        "batch, ms": round(1000 * some, 1),
        "commitments / training step": round((whole + some) / step),
        f"every, for {SHARE:.0%} of a run": math.ceil((2 * whole + some) / (SHARE * step)),
    }


def find_limits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From where on only some steps can carry commitments, by the shortest step and the largest
    model."""
    shortest = min(row["training step, ms"] for row in rows)
    large = max(rows, key=lambda row: row["parameters"])
    each = large["state, ms"] / large["parameters"]
    batch = large["batch"] * large["state, ms"] / large["training step, ms"]
    return [
        {
            "figure": "committing to the state, ms a parameter (with its momentum)",
            "value": round(each, 6),
        },
        {
            "figure": "parameters for which that takes as long as the shortest of these steps",
            "value": math.ceil(shortest / each),
        },
        {"figure": "parameters for which it takes a second", "value": round(1000 / each)},
        {
            "figure": "batch with which the largest model's step takes as long as that",
            "value": round(batch),
        },
    ]


# --- all of it


def compare_predictions(rows: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Predicted and measured, side by side."""
    return [
        {"of": name, "figure": figure, "predicted": value, "measured": rows[name][figure]}
        for name, values in PREDICTED.items()
        if name in rows
        for figure, value in values.items()
    ]


def set_targets(step: Step, row: Mapping[str, Any]) -> dict[str, harness.Target]:
    """What a whole step is held against."""
    seconds, memory = step.limits
    return {
        f"{step.label}: prove, s": harness.at_most(row["prove, s"], seconds),
        f"{step.label}: peak memory, GB": harness.at_most(
            max(row["prove, GB"], row["setup, GB"]), memory
        ),
        f"{step.label}: verify, s": harness.at_most(row["verify, s"], VERIFY_LIMIT),
        f"{step.label}: proof, bytes": harness.at_most(row["proof, bytes"], PROOF_LIMIT),
    }


def measure(quick: bool) -> harness.Result:
    """All figures; ``quick``: the smallest step, a matmul tile and the commitments, in minutes."""
    steps = STEPS[:1] if quick else STEPS
    others = [n for n in TILE_CIRCUITS if n not in SAME and n != LOOK_UP]
    tiles = ["matmul-nn"] if quick else others
    step_rows: list[dict[str, Any]] = []
    tile_rows: list[dict[str, Any]] = []
    spreads: dict[str, harness.Spread] = {}
    targets: dict[str, harness.Target] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workshop = Workshop(folder, 5 if quick else 9)
        for index, step in enumerate(steps):
            row = measure_step(step, workshop, folder / str(index), 2.0)
            spreads[f"verify, {step.label}, s"] = row.pop("verify spread")
            del row["prove spread"]
            targets |= set_targets(step, row)
            step_rows.append(row)
        for circuit in (LEAST, *tiles):
            case = make_least_case() if circuit == LEAST else make_tile_case(circuit)
            often = OFTEN if circuit in (LEAST, "matmul-nn") else 1
            row = {"circuit": circuit, **workshop.measure(case, often)}
            spreads[f"verify, {circuit}, s"] = row.pop("verify spread")
            proofs = row.pop("prove spread")
            if often > 1:
                spreads[f"prove, {circuit}, s"] = proofs
            tile_rows.append({k: v for k, v in row.items() if not k.startswith("of it")})
        key = CommitKey(workshop.srs(STEP_KS[0]), STEP_KS[0], BLINDING)
        tile_key = CommitKey(workshop.srs(TILE_K), TILE_K, BLINDING)
    rng = np.random.default_rng(0)
    lo, hi = SATURATION["i32"]
    values = rng.integers(lo, hi + 1, (KZG_VALUES,), dtype=np.int32)
    spreads["commitment to 25,000 int32, s"] = commit = measure_commitments(key, values)
    tile = rng.integers(lo, hi + 1, TILE * TILE, dtype=np.int32)
    spreads["commitment to a tile, s"] = measure_commitments(tile_key, tile)
    models = {"tiny": BATCH, **MODELS}
    tasks = {kind: compile_example(kind, batch) for kind, batch in models.items()}
    runs = [measure_run(kind, task, key, 5 if quick else 15) for kind, task in tasks.items()]
    rows = {row["step"]: row for row in step_rows} | {row["circuit"]: row for row in tile_rows}
    figures: dict[str, Any] = {
        "predicted, and measured": [
            *compare_predictions(rows),
            {
                "of": "KZG",
                "figure": "25,000 int32, s",
                "predicted": KZG_PREDICTED,
                "measured": round(commit["median"], 4),
            },
        ],
        "whole steps": step_rows,
        "tiles": tile_rows,
        "a matmul tile and the least that ezkl takes for three tiles": [
            {
                "figure": figure,
                "matmul-nn": (ours := rows["matmul-nn"][figure]),
                "least": (least := rows[LEAST][figure]),
                "ratio": round(ours / least, 2),
            }
            for figure in ("setup, s", "prove, s", "prove, CPU-s", "prove, GB", "proof, bytes")
        ],
        "KZG commitments at every step": runs,
        "what follows for larger models": find_limits(runs),
        "repeated": spreads,
    }
    if not quick:
        spent = {row["circuit"]: row["prove, s"] for row in tile_rows}
        spent |= {name: spent[other] for name, other in SAME.items()}
        figures["a step by tiles"] = plan_tiles(
            tasks,
            spent,
            spreads["commitment to a tile, s"]["median"],
            [run for run in runs if run["model"] in MODELS],
        )
    matmul = rows["matmul-nn"]
    seconds, memory = TILE_LIMITS
    targets |= {
        "matmul tile: prove, s": harness.at_most(matmul["prove, s"], seconds),
        "matmul tile: peak memory, GB": harness.at_most(
            max(matmul["prove, GB"], matmul["setup, GB"]), memory
        ),
        "KZG commitments to 25,000 int32, s": harness.at_most(commit["median"], KZG_LIMIT),
    }
    return harness.Result(figures, targets)


def measure_look_up(quick: bool) -> harness.Result:
    """The circuit of functions by table, with the longest of them; one proof, or the median."""
    with tempfile.TemporaryDirectory() as name:
        workshop = Workshop(Path(name), 5 if quick else 9)
        row = workshop.measure(make_tile_case(LOOK_UP), 1 if quick else OFTEN)
    spreads = {f"{what}, {LOOK_UP}, s": row.pop(f"{what} spread") for what in ("verify", "prove")}
    kept = {key: value for key, value in row.items() if not key.startswith("of it")}
    figures = {"functions by table": [{"circuit": LOOK_UP, **kept}], "repeated": spreads}
    return harness.Result(figures, {})


if __name__ == "__main__":
    harness.main("zk", {"steps and tiles": measure, "look-up": measure_look_up})
