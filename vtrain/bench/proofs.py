"""What a proof of a step takes: of the whole step where a circuit fits, else of one tile of one of
its products, with the count of statements that a step falls into.

It is done in a process of its own, whose children are those that ezkl runs in: what the system
says of their memory is not less than what their parent has.  The SRS is made here, and insecure: it
serves to measure.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from vtrain.bench.figures import Figure
from vtrain.commit.files import write_atomic
from vtrain.commit.hiding import derive_elements
from vtrain.errors import CircuitError, ProverError
from vtrain.graph.values import PRODUCTS
from vtrain.limits import measure_memory
from vtrain.prove.backend.cost import Estimate, estimate
from vtrain.prove.backend.ezkl import Limits, require_extra
from vtrain.prove.backend.keys import load_keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.proof_files import Item, proof_path
from vtrain.prove.prover import prove
from vtrain.prove.runs import StepSource, read_run
from vtrain.prove.setup import ProofSetup
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.prove.steps.prover import StepProver
from vtrain.prove.steps.verifier import StepVerifier
from vtrain.prove.tiles.circuits import TILE_K, build_tile_circuit
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.verifier import read_commitments, verify
from vtrain.spec.number import SATURATION
from vtrain.train.layout import RunPaths
from vtrain.train.signed import read_hiding_of, read_task
from vtrain.train.task import CompiledTask
from vtrain.wire.graph import StepGraph
from vtrain.wire.proof import LEAST_STEP_K, TILE

MOST_K: Final = 20
MOST_KEY: Final = 3 << 30
"""Rows, and bytes of a key, of whole steps: a proof by a larger one takes more than minutes."""
_SECONDS: Final = 7200
_STEP: Final = 1
_TILE_CIRCUIT: Final = "matmul-nn"
_KEYS: Final = "keys for a"
_MEMORY: Final = "memory"


@dataclass(frozen=True)
class Plan:
    """How a step is proven: by a circuit of all of it at 2^k rows, or by ``statements`` about
    tiles, of which the circuit is one of a product's."""

    circuit: Circuit
    k: int
    cost: Estimate
    statements: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the step."""
        return self.statements == 0


def plan_proof(graph: StepGraph, memory: int) -> Plan:
    """The circuit that takes least memory of those that fit ``memory`` bytes; CircuitError where a
    step can be proven neither whole nor by tiles."""
    found: Plan | None = None
    reason: CircuitError | None = None
    for k in range(LEAST_STEP_K, MOST_K + 1):
        try:
            circuit = build_step_circuit(graph, k)
        except CircuitError as error:
            reason = reason or error
            continue
        plan = Plan(circuit, k, estimate(circuit, k))
        if found is not None and plan.cost.memory >= found.cost.memory:
            break
        found = plan
    if found is not None and found.cost.memory <= memory and found.cost.proving_key <= MOST_KEY:
        return found
    if not any(node.op in PRODUCTS for node in graph.nodes):
        raise reason or CircuitError("has no product", where="graph")
    statements = len(Tiling(graph))
    circuit = build_tile_circuit(_TILE_CIRCUIT)
    return Plan(circuit, TILE_K, estimate(circuit, TILE_K), statements)


@dataclass(frozen=True)
class ProofBench:
    """Measures proofs in the folder ``folder``, where SRS and keys are kept while it lives: the
    circuit depends on no seed, and its keys are made for the first run that it is given."""

    folder: Path
    threads: int = 0

    def __call__(self, task: CompiledTask, run: Path) -> Sequence[Figure]:
        """The figures of the first step of ``run``: of keys and of memory, most of which may be
        theirs, only where keys were made for it.  MissingExtraError without the extra zk,
        CircuitError for a model that has no circuits."""
        require_extra("ezkl")
        plan = plan_proof(task.graph, measure_memory())
        given = [str(run), str(self.folder), self.threads, plan.k, plan.statements]
        code = "import sys; from vtrain.bench.proofs import answer; answer(sys.argv[1])"
        # -P: as in vtrain.bench.alone.
        command = [sys.executable, "-P", "-c", code, json.dumps(given)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode != 0:
            last = done.stderr.strip().rpartition("\n")[2]
            raise ProverError(f"the process that makes a proof failed: {last}", where="proof")
        return [Figure(**figure) for figure in json.loads(done.stdout)]


def answer(given: str) -> None:
    """What that process does: print the figures."""
    run, folder, threads, k, statements = json.loads(given)
    memory = measure_memory()
    srs, cache = Path(folder) / f"k{k}.srs", Path(folder) / "keys"
    if not srs.exists():
        generate_srs(srs, k, threads=threads)
    before = _list_keys(cache)
    limits = Limits(memory=2 * memory, seconds=_SECONDS, threads=threads)
    if statements:
        figures = list(_measure_tile(statements, srs, cache, limits))
    else:
        task = read_task(RunPaths(Path(run)))
        setup = ProofSetup.for_task(task, srs, cache, limits, memory, k)
        figures = list(_measure_step(Path(run), setup))
    if _list_keys(cache) == before:
        figures = [figure for figure in figures if not is_of_keys(figure)]
    sys.stdout.write(json.dumps([asdict(figure) for figure in figures]))


def _list_keys(cache: Path) -> set[str]:
    """What keys there are."""
    return {path.name for path in cache.glob("*")}


def is_of_keys(figure: Figure) -> bool:
    """Whether it is measured only where keys are made."""
    return figure.what.startswith(_KEYS) or figure.what == _MEMORY


class _Watch:
    """When the making of a proof began, after its keys were made."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.ready = self.begun

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "witness" and done == 0:
            self.ready = time.perf_counter()


def _measure_step(run: Path, setup: ProofSetup) -> Iterator[Figure]:
    signed = read_run(run)
    watch, prover = _Watch(), StepProver(signed, setup)
    bundle = prover.prove(Item("step", _STEP), lambda logged: None, watch)
    done = time.perf_counter()
    path = proof_path(run, Item("step", _STEP))
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, [bundle])

    def open_source() -> StepSource:
        hiding = read_hiding_of(signed.paths, None)
        return StepSource(signed, setup.proof, hiding, threads=setup.limits.threads)

    verifier = StepVerifier(signed, setup, None, open_source, lambda what, done, total: None)
    verifier.verify(_STEP)  # keys are made ready, and the steps before are done
    begin = time.perf_counter()
    verdict = verifier.verify(_STEP)
    seconds = time.perf_counter() - begin
    if not verdict.holds:
        raise ProverError(f"the proof does not hold: {verdict.reason}", where=f"step {_STEP}")
    setup_seconds = watch.ready - watch.begun
    yield from _name("step", setup_seconds, done - watch.ready, seconds, len(bundle))


def _measure_tile(statements: int, srs: Path, cache: Path, limits: Limits) -> Iterator[Figure]:
    """A product of two tiles of random numbers over the whole range of operands, one of so many
    statements that a step falls into."""
    circuit = build_tile_circuit(_TILE_CIRCUIT)
    pinned = pin(circuit, TILE_K)
    begin = time.perf_counter()
    keys = load_keys(pinned, srs, cache, limits)
    setup = time.perf_counter() - begin
    commit_key = CommitKey(srs, TILE_K, BLINDING, threads=limits.threads)
    _, most = SATURATION["i16"]
    a, b = np.random.default_rng(0).integers(-most, most + 1, (2, TILE, TILE)).astype(object)
    given = {name: x.reshape(-1) for name, x in {"a": a, "b": b, "c": a @ b}.items()}
    begin = time.perf_counter()
    proof = prove(
        circuit,
        pinned,
        keys,
        given=given,
        hiding={name: derive_elements(bytes(32), i) for i, name in enumerate(given)},
        count=lambda: None,
        parameters={},
        srs=srs,
        commit_key=commit_key,
        limits=limits,
        claim=b"",
    )
    proving = time.perf_counter() - begin
    found = read_commitments(circuit, proof)
    begin = time.perf_counter()
    verdict = verify(
        circuit,
        pinned,
        keys,
        proof.data,
        expected={name: found[name] for name in circuit.given},
        parameters={},
        commit_key=commit_key,
        limits=limits,
        claim=b"",
    )
    seconds = time.perf_counter() - begin
    if not verdict.holds:
        raise ProverError(f"the proof does not hold: {verdict.reason}", where=_TILE_CIRCUIT)
    yield from _name("tile of a product", setup, proving, seconds, len(proof.data))
    yield Figure("proof", "statements that a step falls into", "count", statements)


def _name(
    what: str, setup: float, proving: float, verifying: float, length: int
) -> Iterator[Figure]:
    yield Figure("proof", f"{_KEYS} {what}", "s", setup)
    yield Figure("proof", f"proof of a {what}", "s", proving)
    yield Figure("proof", f"check of a {what}", "s", verifying)
    yield Figure("proof", f"proof of a {what}", "bytes", length)
    # Of the process that ezkl runs in: the largest of all that this one waited for.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    yield Figure("proof", _MEMORY, "bytes", peak)
