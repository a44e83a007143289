"""Writes the audit vectors: run directories, honest and broken, each with what must be reported.

``python -m tests.vectors.generate_audit`` writes the folders below ``audit/``; ``--check`` compares
and exits 1 when one differs.  README.md documents the format.  A run is made by the law in numpy,
by encoders and trees, with one fixed (and public) key and run id.  What a case must give is written
down here by hand; ``tests/audit/test_vectors.py`` holds the auditor to it.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from types import MappingProxyType
from typing import Any, Final

import click
import numpy as np
import numpy.typing as npt
from blake3 import blake3
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from tests.attest.authority import make_authority
from tests.audit.runs import make_smallest_task
from tests.srs import place_srs
from tests.tasks import CONTEXT, make_bigram_onnx, make_tiny_task, make_tokens
from tests.vectors import generate_beacon, kzg_rule
from tests.vectors.generate_games import compile_model
from vtrain._core import MerkleTree
from vtrain.attest.claims import compute_claim_digest, sign_claim
from vtrain.attest.traces import compute_traces_digest
from vtrain.audit.algebraic import ALGEBRAIC_DOMAIN
from vtrain.audit.order import PUBLIC_CHECKS, STRUCTURE
from vtrain.audit.plan import REPLAY_DOMAIN, draw
from vtrain.cli import EXIT_USAGE
from vtrain.cli.root import cli
from vtrain.commit.checkpoint import encode_header
from vtrain.commit.files import FileEntry
from vtrain.commit.kzg_layout import batch_vectors, state_names, state_vectors
from vtrain.commit.kzg_log import KZG_HEADER, count_commitments
from vtrain.commit.log import LOG_HEADER, frame
from vtrain.commit.state import compute_root_of_state
from vtrain.demo.cheats import skip_step
from vtrain.engines.numpy_engine import NumpySession
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.evaluate import apply_node
from vtrain.graph.model import Linear, Model
from vtrain.graph.step import (
    Affine,
    Ids,
    Momentum,
    StepPlan,
    compute_initial_state,
    emit_step,
)
from vtrain.graph.values import PRODUCTS
from vtrain.prove.backend import keys as key_files
from vtrain.prove.backend.ezkl import EZKL_VERSION
from vtrain.prove.backend.keys import cut_srs
from vtrain.prove.backend.settings import pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.batches import make_order
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.prove.tiles.protocol import (
    compute_trace_claim_digest,
    draw_statements,
    find_leaves,
)
from vtrain.prove.tiles.protocol import draw_steps as draw_tile_steps
from vtrain.prove.tiles.statements import StepFacts
from vtrain.prove.tiles.tiling import Tiling
from vtrain.spec import domains, merkle
from vtrain.spec.algebraic import PRIME
from vtrain.spec.commitment import compute_graph_root, compute_task_id, compute_tensor_digest
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.train.layout import Manifest, encode_manifest
from vtrain.train.publish import make_samples_form, write_samples, write_state
from vtrain.train.task import CompiledTask
from vtrain.wire import cbor, structs
from vtrain.wire.batches import SignedBatches, batches_to_map, encode_batches
from vtrain.wire.bundle import BundleHeader, ProofBundle, decode_bundle, encode_bundle
from vtrain.wire.claim import Claim, SignedClaim, encode_signed_claim
from vtrain.wire.graph import Node, Ref, StepGraph, encode_graph
from vtrain.wire.hiding import Hiding, HidingKey, Kind
from vtrain.wire.proof import CircuitPin, KzgRecord, ProofSpec, decode_kzg_record, encode_kzg_record
from vtrain.wire.record import StepRecord, decode_record, encode_record
from vtrain.wire.task import (
    LAW_VERSION,
    WITH_KZG,
    BeaconRule,
    TaskSpec,
    Windows,
    describe_windows,
    encode_task,
)
from vtrain.wire.tiles import SignedTraceClaim, TileOpening, TileProof, TileTrace, TraceClaim
from vtrain.wire.traces import SignedTensorTraces, TensorTrace, TensorTraces

FOLDER: Final = Path(__file__).resolve().parent / "audit"
KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SOLVER: Final = KEY.public_key().public_bytes_raw()
RUN_ID: Final = bytes(range(100, 132))
SEED: Final = b"audit vectors"
POINT: Final = (1).to_bytes(32) + (2).to_bytes(32)
"""(1, 2) is on y^2 = x^3 + 3."""
NEGATIVE: Final = POINT[:32] + (
    21888242871839275222246405745257275088696311157297823662689037894645226208583 - 2
).to_bytes(32)
State = dict[str, npt.NDArray[Any]]


# --- runs


@dataclass
class Run:
    """A run in memory: all of it may be spoiled before :meth:`files` writes it down."""

    spec: TaskSpec
    graph: StepGraph
    model: bytes
    samples: bytes
    leaves: list[bytes]
    states: dict[int, State]
    kzg: list[bytes] | None = None
    claim: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    key: Ed25519PrivateKey = KEY
    after: list[Callable[[dict[str, bytes]], None]] = field(default_factory=list)
    """What is done to the files when all of them were made to fit, the manifest last."""
    late: list[Callable[[dict[str, bytes]], None]] = field(default_factory=list)
    """What is done after the manifest was made to fit."""

    def checkpoint(self, step: int) -> bytes:
        """The file of a checkpoint."""
        parts = [encode_header(self.graph)]
        order = sorted(
            self.graph.states().items(),
            key=lambda item: (-self.states[step][item[0]].itemsize, item[0].encode()),
        )
        return b"".join(parts + [self.states[step][name].tobytes() for name, _ in order])

    def make_claim(self) -> Claim:
        """The claim on the logs as they are."""
        fields: dict[str, Any] = {
            "run_id": RUN_ID,
            "solver": self.key.public_key().public_bytes_raw(),
            "task_id": compute_task_id(self.spec),
            "log_size": len(self.leaves),
            "log_root": merkle.compute_root(domains.RUN_LOG, self.leaves),
            "kzg_root": b"" if self.kzg is None else merkle.compute_root(domains.KZG_LOG, self.kzg),
        }
        return Claim(**fields | self.claim)

    def files(self) -> dict[str, bytes]:
        """Every file by its name."""
        claim = self.make_claim()
        out = {
            "task.cbor": encode_task(self.spec),
            "graph.cbor": encode_graph(self.graph),
            "model.onnx": self.model,
            "data/samples.bin": self.samples,
            "log.bin": LOG_HEADER + b"".join(map(frame, self.leaves)),
            "claim.cbor": encode_signed_claim(sign_claim(claim, self.key)),
        }
        if self.kzg is not None:
            out["kzg.bin"] = KZG_HEADER + b"".join(map(frame, self.kzg))
        for step in self.states:
            out[name_of(step)] = self.checkpoint(step)
        for change in self.after:
            change(out)
        listed = {
            name: FileEntry(len(data), blake3(data).digest())
            for name, data in sorted(out.items())
            if name != "claim.cbor"
        }
        fields: dict[str, Any] = {
            "run_id": claim.run_id,
            "task_id": claim.task_id,
            "software": "audit vectors",
            "engine": "numpy",
            "steps": claim.log_size,
            "counted_steps": claim.log_size,
            "saturation": {},
            "files": listed,
        }
        out["manifest.json"] = encode_manifest(Manifest(**fields | self.manifest))
        for change in self.late:
            change(out)
        return out

    # what cases do to a run

    def set_record(self, step: int, /, **changes: Any) -> None:
        """Another record, under the root that is signed."""
        record = decode_record(self.leaves[step - 1])
        self.leaves[step - 1] = encode_record(replace(record, **changes))

    def set_state(self, step: int, name: str, value: npt.NDArray[Any]) -> None:
        """Another state in a checkpoint, and its root in the log, or in the task for step 0."""
        self.states[step] = {**self.states[step], name: value}
        root = compute_root_of_state(self.graph, self.states[step])
        if step:
            self.set_record(step, state_root=root)
        else:
            self.spec = replace(self.spec, initial_state_root=root)

    def set_graph(self, graph: StepGraph) -> None:
        """Another graph, pinned by the task."""
        self.graph = graph
        self.spec = replace(self.spec, graph_root=compute_graph_root(graph))

    def change_node(self, op: str, /, **changes: Any) -> None:
        """Another node in place of the first with an operator."""
        nodes = list(self.graph.nodes)
        index = next(i for i, node in enumerate(nodes) if node.op == op)
        nodes[index] = replace(nodes[index], **changes)
        self.set_graph(StepGraph(tuple(nodes)))

    def patch(self, name: str, change: Callable[[bytes], bytes], *, hidden: bool = False) -> None:
        """Another content of a file; ``hidden``: the manifest is made to fit it."""

        def apply(files: dict[str, bytes]) -> None:
            files[name] = change(files[name])

        (self.after if hidden else self.late).append(apply)

    def drop(self, name: str, *, hidden: bool = False) -> None:
        """Leave a file out."""

        def apply(files: dict[str, bytes]) -> None:
            del files[name]

        (self.after if hidden else self.late).append(apply)


def name_of(step: int) -> str:
    """The file of a checkpoint."""
    return f"checkpoints/{step:012d}.safetensors"


def flip(data: bytes) -> bytes:
    """The lowest bit of the last byte changed."""
    return data[:-1] + bytes([data[-1] ^ 1])


def make_task(
    steps: int = 6,
    commit_every: int = 1,
    checkpoint_every: int = 2,
    weights: Sequence[int] = (1, -1),
) -> CompiledTask:
    """A step that counts, keeps its weight and records the square of a label."""
    small = make_smallest_task(weights)
    spec = replace(
        small.spec, steps=steps, commit_every=commit_every, checkpoint_every=checkpoint_every
    )
    nodes = tuple(
        replace(node, attrs={"commit_every": commit_every}) if node.op == "record" else node
        for node in small.graph.nodes
    )
    graph = StepGraph(nodes)
    spec = replace(spec, graph_root=compute_graph_root(graph))
    return replace(small, spec=spec, graph=graph)


def make_trained_task(batch: int = 2) -> CompiledTask:
    """A linear model of two inputs that learns: MSE, momentum, four steps of two samples, or of a
    larger ``batch``."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (5, 2), dtype=np.uint8)
    y = (x.astype(np.int16) @ np.array([[40], [-25]], np.int16)).astype(np.int16)
    data = build_samples(x, y, y_exponent=14)
    params = {"w": np.array([[1 << 22], [1 << 21]], np.int32)}
    model = Model("x", (2,), (Linear("out", "x", "w", None, False),), "out", params)
    plan = StepPlan(
        data=data.spec,
        prepare=Affine(multiplier=257, offset=0, shift=1, exponent=15),
        loss="mse",
        optimizer=Momentum(decay=6554, starts=(0, 2), rates=(40960, 20480), exponent=20),
        seed=3,
        batch=batch,
        commit_every=1,
    )
    builder = GraphBuilder(FixedExponents({"w": 14, "out": 13, "loss/grad": 13}))
    emit_step(builder, plan, model)
    graph, state = builder.graph(), compute_initial_state(params)
    onnx = b"a linear model of two inputs"
    spec = TaskSpec(
        law=LAW_VERSION,
        graph_root=compute_graph_root(graph),
        initial_state_root=compute_root_of_state(graph, state),
        model_digest=compute_tensor_digest(np.frombuffer(onnx, np.uint8)),
        data=data.spec,
        exponents={"w": 14, "out": 13, "loss/grad": 13},
        seed=3,
        steps=4,
        batch=batch,
        commit_every=1,
        checkpoint_every=2,
        commitments=("blake3",),
    )
    return CompiledTask(spec, graph, data, state, onnx, "linear")


def make_run(
    task: CompiledTask,
    cheat: Callable[[CompiledTask, Any], StepRecord] | None = None,
    false_step: int = 0,
) -> Run:
    """Do the steps by the law, but for one that is done by ``cheat``."""
    spec, session = task.spec, NumpySession(task.graph, task.samples)
    session.load_state(task.initial_state)
    leaves, states = [], {0: {name: np.asarray(v) for name, v in task.initial_state.items()}}
    for step in range(1, spec.steps + 1):
        if cheat is not None and step == false_step:
            record = cheat(task, session)
        else:
            record = session.step()
        leaves.append(encode_record(record))
        if step % spec.checkpoint_every == 0 or step == spec.steps:
            states[step] = {name: np.array(value) for name, value in session.read_state().items()}
    return Run(spec, task.graph, task.model, task.samples.table.tobytes(), leaves, states)


def make_kzg_run(every: int = 1) -> Run:
    """A run that logs KZG commitments: any points will do where nobody has the SRS."""
    task = make_task()
    proof = ProofSpec("step", bytes(range(32)), 8, 5, every, (POINT,), {})
    spec = replace(task.spec, commitments=WITH_KZG, proof=proof)
    state, batch = count_commitments(proof, task.graph, spec.data, spec.batch)
    assert (state, batch) == (1, 1)
    run = make_run(replace(task, spec=spec))
    points = [POINT if step % 2 else NEGATIVE for step in range(1, spec.steps + 2)]
    run.kzg = [
        encode_kzg_record(make_record(step, points[step - 1], (POINT,), points[step]))
        for step in range(every, spec.steps + 1, every)
    ]
    return run


def make_record(step: int, before: bytes, batch: tuple[bytes, ...], after: bytes) -> KzgRecord:
    """A record of states of one column, all of whose keys have the same id."""
    return KzgRecord(step, (before,), batch, (after,), *[bytes(32)] * 3)


TAU: Final = int.from_bytes(b"everybody knows this")


Forge = Callable[[int, str, list[int]], list[int]]
SECRETS: Final = Hiding(states=b"s" * 32, batches=b"b" * 32)
"""What hides the commitments of a run."""


def make_committed_run(
    forge: Forge = lambda step, part, values: values,
    initial: Callable[[list[int]], list[int]] = lambda values: values,
    file_k: int = 7,
    hiding: Hiding | None = SECRETS,
    initial_key: bytes = b"",
) -> tuple[Run, dict[str, bytes | str]]:
    """A run with true KZG commitments and its SRS file; ``forge`` and ``initial`` alter what is
    committed to, of a record (step, "batch" or "after") and of the task, and ``initial_key`` the id
    of its key.  ``hiding`` lies in the run, if there is any."""
    srs = kzg_rule.make_srs(TAU, file_k)
    proof = ProofSpec("step", hashlib.sha256(srs).digest(), 7, 5, 1, (POINT,), {})
    run = commit_run(make_task(), proof, TAU, forge, initial, initial_key)
    if hiding is not None:
        told = structs.encode(hiding)
        run.late.append(lambda files: files.update({"hiding.key": told}))
    return run, {"srs.bin": srs}


def commit_run(
    task: CompiledTask,
    proof: ProofSpec,
    tau: int,
    forge: Forge = lambda step, part, values: values,
    initial: Callable[[list[int]], list[int]] = lambda values: values,
    initial_key: bytes = b"",
) -> Run:
    """A run whose states and batches have one column each, committed to as ``proof`` says."""
    k, blinding = proof.k, proof.blinding

    def commit(values: list[int], key: bytes) -> bytes:
        return kzg_rule.commit(tau, k, blinding, values, kzg_rule.derive_elements(key, 0))

    def list_state(state: Mapping[str, Any]) -> list[int]:
        (column,) = state_vectors("step", task.graph, state, proof.usable)
        return [int(value) for value in column]

    start = list_state(task.initial_state)
    root = compute_root_of_state(task.graph, task.initial_state)
    tensors = [task.initial_state[name] for name in state_names(task.graph)]
    data = b"".join(tensor.tobytes() for tensor in tensors)
    key = kzg_rule.derive_own_key("step", k, proof.srs, "state", 0, root, data)
    initial_key = initial_key or kzg_rule.identify(key)
    proof = replace(proof, initial=(commit(initial(start), key),), initial_key=initial_key)
    spec = replace(task.spec, commitments=WITH_KZG, proof=proof)
    task_id = compute_task_id(spec)
    run = make_run(replace(task, spec=spec))
    session = NumpySession(task.graph, task.samples)
    session.load_state(task.initial_state)
    before, before_key, run.kzg = proof.initial[0], initial_key, []
    for step in range(1, spec.steps + 1):
        x, y = (session.evaluate(i) for i in find_gathers(task.graph))
        (column,) = batch_vectors("step", x, y, proof.usable)
        found = session.step().batch_digest
        key = kzg_rule.derive_key(SECRETS.batches, task_id, "batch", step, found)
        batch = commit(forge(step, "batch", [int(value) for value in column]), key)
        batch_key, state = kzg_rule.identify(key), session.read_state()
        found = compute_root_of_state(task.graph, state)
        key = kzg_rule.derive_key(SECRETS.states, task_id, "state", step, found)
        after = commit(forge(step, "after", list_state(state)), key)
        after_key = kzg_rule.identify(key)
        keys = before_key, batch_key, after_key
        run.kzg.append(encode_kzg_record(KzgRecord(step, (before,), (batch,), (after,), *keys)))
        before, before_key = after, after_key
    return run


def find_gathers(graph: StepGraph) -> list[int]:
    """The nodes that gather x and y."""
    nodes = {node.attrs.get("part"): i for i, node in enumerate(graph.nodes) if node.inputs}
    return [nodes[part] for part in "xy"]


# --- cases


@dataclass(frozen=True)
class Case:
    """A run, how it is audited, and what must be reported."""

    name: str
    about: str
    files: dict[str, bytes]
    verdict: str
    """Empty where the question is refused."""
    reason: tuple[str, str, str] | None
    """The check that the verdict rests on: name, fault, place."""
    arguments: tuple[str, ...]
    extra: dict[str, bytes | str] = field(default_factory=dict)
    """Files of the auditor's own, beside the run; a text is the target of a link."""
    links: dict[str, str] = field(default_factory=dict)
    place: str = "run"
    """What the run is: a folder, or a "store"."""
    checks: list[dict[str, str]] | None = None
    """Where they are given: the auditor is not asked, which would take long."""


def case(
    name: str,
    about: str,
    run: Run,
    verdict: str = "verified",
    reason: tuple[str, str, str] | None = None,
    arguments: Sequence[str] = ("--all",),
    **more: Any,
) -> Case:
    """A case; replays everything unless told otherwise."""
    return Case(name, about, run.files(), verdict, reason, tuple(arguments), **more)


def broken(
    name: str,
    about: str,
    spoil: Callable[[Run], object],
    reason: tuple[str, str, str],
    arguments: Sequence[str] = ("--all",),
    run: Run | None = None,
    **more: Any,
) -> Case:
    """A case whose verdict follows from the fault of what it rests on."""
    run = make_run(make_task()) if run is None else run
    spoil(run)
    verdict = "fraud" if reason[1] == "solver" else "inconclusive"
    return case(name, about, run, verdict, reason, arguments, **more)


def pin_of(run: Run) -> str:
    """The digest of the run's claim."""
    return compute_claim_digest(run.make_claim()).hex()


def keep(run: Run) -> bytes:
    """The signed claim of the run, as an auditor keeps it."""
    return encode_signed_claim(sign_claim(run.make_claim(), run.key))


def cut_run(run: Run, steps: int, every: int = 1) -> Run:
    """The same run, claimed after fewer steps, ``every`` of which has KZG commitments."""
    run.leaves = run.leaves[:steps]
    run.states = {step: state for step, state in run.states.items() if step <= steps}
    if run.kzg is not None:
        run.kzg = run.kzg[: steps // every]
    return run


def honest_cases() -> Iterator[Case]:
    """Runs of honest solvers, whole and as they may arrive."""
    run = make_run(make_task())
    yield case("honest", "everything is replayed", run)
    yield case("honest-structure", "no segment is asked for", run, arguments=("--samples", "0"))
    seed = ("--samples", "2", "--seed", SEED.hex())
    yield case(
        "honest-sampled",
        "two of three segments, drawn after the claim was pinned",
        run,
        arguments=(*seed, "--claim", pin_of(run)),
    )
    yield case(
        "honest-predictable",
        "two of three segments, drawn with a seed and no pin",
        run,
        "conditional",
        arguments=seed,
    )
    named = ("--all", "--solver", SOLVER.hex(), "--task-id", compute_task_id(run.spec).hex())
    yield case("honest-named", "solver and task are those asked for", run, arguments=named)
    yield case(
        "honest-trained",
        "a model that learns, with a rate that changes",
        make_run(make_trained_task()),
    )
    sparse = make_run(make_task(steps=7 - 1, commit_every=2, checkpoint_every=4))
    yield case("honest-sparse", "a state root every two steps, the last segment shorter", sparse)
    yield case("honest-kzg", "with a KZG log", make_kzg_run())
    yield case("honest-kzg-every", "with a KZG record every four steps", make_kzg_run(4))
    partial = cut_run(make_run(make_task()), 4)
    yield case("claimed-in-part", "four of six steps are claimed", partial)
    yield broken(
        "claimed-in-part-of-the-task",
        "four of six steps are claimed, and the task was asked for",
        lambda run: cut_run(run, 4),
        ("complete", "nobody", "claim.cbor"),
        ("--all", "--task-id", compute_task_id(run.spec).hex()),
    )
    yield broken(
        "claimed-nothing",
        "a claim of no steps",
        lambda run: cut_run(run, 0),
        ("checkpoints", "", "checkpoints"),
    )
    yield broken(
        "unfinished",
        "there is no claim yet",
        lambda run: run.drop("claim.cbor"),
        ("claim", "", "claim.cbor"),
    )
    run = make_run(make_task())
    run.late.append(lambda files: files.update({"notes.txt": b"?", "proofs/a.cbor": b"?"}))
    yield case("extra-files", "files that belong to no run are ignored", run)
    run = make_run(make_task())
    table = run.samples
    run.drop("data/samples.bin", hidden=True)
    arguments = ("--all", "--data", "samples.bin")
    yield case(
        "samples-brought",
        "the auditor has the samples",
        run,
        arguments=arguments,
        extra={"samples.bin": table},
    )
    yield broken(
        "samples-left-out",
        "nobody has the samples",
        lambda run: run.drop("data/samples.bin", hidden=True),
        ("samples", "nobody", "data/samples.bin"),
    )


def claim_cases() -> Iterator[Case]:
    """The claim, the pin, and whether the run is complete."""
    place = ("claim", "nobody", "claim.cbor")
    yield broken(
        "claim-trailing-byte",
        "claim.cbor has one byte more",
        lambda run: run.patch("claim.cbor", lambda data: data + b"\0"),
        place,
    )
    yield broken(
        "claim-signature",
        "a bit of the signature is another",
        lambda run: run.patch("claim.cbor", flip),
        place,
    )

    def forge(run: Run) -> None:
        neutral = (1).to_bytes(32, "little")
        run.claim = {"solver": neutral}
        claim = run.make_claim()
        run.claim = {}
        forged = encode_signed_claim(SignedClaim(claim, neutral + bytes(32)))
        run.patch("claim.cbor", lambda data: forged)

    yield broken(
        "claim-neutral-key",
        "signed by nobody, under the neutral point as key: OpenSSL takes it",
        forge,
        place,
    )
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    yield broken(
        "claim-another-solver",
        "another solver was asked for",
        lambda run: None,
        place,
        ("--all", "--solver", other.public_key().public_bytes_raw().hex()),
    )
    yield broken(
        "pin-another-digest",
        "the claim is not the one pinned by its digest",
        lambda run: None,
        place,
        ("--all", "--claim", bytes(32).hex()),
    )
    kept = make_run(make_task())
    kept.set_record(6, loss=1)
    arguments = ("--all", "--claim", "kept.cbor")
    yield broken(
        "pin-contradicted",
        "the auditor kept another claim of as many steps",
        lambda run: None,
        ("claim", "solver", "claim.cbor"),
        arguments,
        extra={"kept.cbor": keep(kept)},
    )
    yield broken(
        "pin-gone-on",
        "the run went on from the claim that was kept",
        lambda run: None,
        place,
        arguments,
        extra={"kept.cbor": keep(cut_run(make_run(make_task()), 4))},
    )
    fork = cut_run(make_run(make_task()), 4)
    fork.set_record(2, loss=1)
    yield broken(
        "pin-forked",
        "the claim that was kept is of four steps, of which this log has others",
        lambda run: None,
        ("claim", "solver", "claim.cbor"),
        arguments,
        extra={"kept.cbor": keep(fork)},
    )
    yield broken(
        "pin-shorter",
        "the claim that was kept is of more steps",
        lambda run: cut_run(run, 4),
        place,
        arguments,
        extra={"kept.cbor": keep(make_run(make_task()))},
    )
    another = make_run(make_task())
    another.claim = {"run_id": bytes(32)}
    yield broken(
        "pin-another-run",
        "the claim that was kept is of another run of the same task",
        lambda run: None,
        place,
        arguments,
        extra={"kept.cbor": keep(another)},
    )
    yield broken(
        "pin-forked-log-missing",
        "as pin-forked, but the run's log is not the one signed: nothing is proven",
        lambda run: run.patch("log.bin", flip),
        place,
        arguments,
        extra={"kept.cbor": keep(fork)},
    )
    yield broken(
        "complete-kzg-root",
        "a KZG root, though the task asks for no KZG log",
        lambda run: run.claim.update(kzg_root=bytes(32)),
        ("complete", "solver", "claim.kzg_root"),
    )
    yield broken(
        "complete-no-kzg-root",
        "no KZG root, though the task asks for a KZG log",
        lambda run: run.claim.update(kzg_root=b""),
        ("complete", "solver", "claim.kzg_root"),
        run=make_kzg_run(),
    )
    yield broken(
        "complete-too-many",
        "more steps are claimed than the task has",
        lambda run: run.leaves.append(
            encode_record(replace(decode_record(run.leaves[-1]), step=len(run.leaves) + 1))
        ),
        ("complete", "solver", "claim.log_size"),
    )
    yield broken(
        "complete-between-roots",
        "the last step claimed has no state root",
        lambda run: cut_run(run, 3),
        ("complete", "nobody", "claim.cbor"),
        run=make_run(make_task(commit_every=2)),
    )


def task_cases() -> Iterator[Case]:
    """Task, manifest, graph and legality, and the files."""
    yield broken(
        "task-another",
        "another task than the claim is about",
        lambda run: run.patch(
            "task.cbor", lambda data: encode_task(replace(run.spec, steps=8)), hidden=True
        ),
        ("task", "nobody", "task.cbor"),
    )
    yield broken(
        "task-not-asked-for",
        "another task was asked for",
        lambda run: None,
        ("task", "nobody", "task.cbor"),
        ("--all", "--task-id", bytes(32).hex()),
    )
    yield broken(
        "task-unknown-field",
        "task.cbor has a field more",
        lambda run: run.patch("task.cbor", lambda data: b"\xad" + data[1:] + b"\x61x\x00"),
        ("task", "nobody", "task.cbor"),
    )
    yield broken(
        "manifest-spaces",
        "manifest.json is JSON, not in its one form",
        lambda run: run.patch("manifest.json", lambda data: data.replace(b": ", b":  ", 1)),
        ("manifest", "nobody", "manifest.json"),
    )
    yield broken(
        "manifest-missing",
        "there is no manifest",
        lambda run: run.drop("manifest.json"),
        ("manifest", "nobody", "manifest.json"),
    )
    for name, value in (("run_id", bytes(32)), ("task_id", bytes(32)), ("steps", 5)):
        yield broken(
            f"index-{name.replace('_', '-')}",
            f"the manifest has another {name} than the claim",
            lambda run, name=name, value=value: run.manifest.update({name: value}),  # type: ignore[misc]
            ("index", "nobody", "manifest.json"),
        )
    yield broken(
        "files-model-digest",
        "the manifest lists another BLAKE3 of a file that the task does not bind so early",
        lambda run: run.manifest.update(
            files={**listed(run), "log.bin": FileEntry(len(run.files()["log.bin"]), bytes(32))}
        ),
        ("files", "nobody", "log.bin"),
    )
    yield broken(
        "files-unknown",
        "the manifest lists a file that no run has",
        lambda run: run.manifest.update(files={**listed(run), "x": FileEntry(0, bytes(32))}),
        ("files", "nobody", "manifest.json"),
    )
    yield broken(
        "files-unlisted",
        "the manifest does not list the log",
        lambda run: run.manifest.update(
            files={name: entry for name, entry in listed(run).items() if name != "log.bin"}
        ),
        ("files", "nobody", "log.bin"),
    )
    yield broken(
        "files-size",
        "the manifest lists a checkpoint with another size",
        lambda run: run.manifest.update(files={**listed(run), name_of(2): FileEntry(1, bytes(32))}),
        ("files", "nobody", name_of(2)),
    )
    yield broken(
        "files-link",
        "a file is a link to another file of the run, of the right content",
        lambda run: run.late.append(
            lambda files: files.update({"model.copy": files.pop("model.onnx")})
        ),
        ("files", "nobody", "model.onnx"),
        links={"model.onnx": "model.copy"},
    )
    yield broken(
        "model-another",
        "another ONNX file than the task names",
        lambda run: run.patch("model.onnx", flip, hidden=True),
        ("model", "nobody", "model.onnx"),
    )
    yield broken(
        "samples-another",
        "a bit of the samples is another",
        lambda run: run.patch("data/samples.bin", flip, hidden=True),
        ("samples", "nobody", "data/samples.bin"),
    )
    yield broken(
        "graph-another",
        "another graph than the task pins",
        lambda run: run.patch(
            "graph.cbor", lambda data: data.replace(b"momentum", b"m0mentum"), hidden=True
        ),
        ("graph", "nobody", "graph.cbor"),
        run=make_run(make_trained_task()),
    )


def listed(run: Run) -> dict[str, FileEntry]:
    """What the manifest of a run lists."""
    return {
        name: FileEntry(len(data), blake3(data).digest())
        for name, data in run.files().items()
        if name not in ("claim.cbor", "manifest.json")
    }


def legality_cases() -> Iterator[Case]:
    """Graphs and tasks that are not legal: pinned, signed, and nobody's fraud."""

    def illegal(
        name: str, about: str, place: str, spoil: Callable[[Run], object], run: Run | None = None
    ) -> Case:
        return broken(
            f"legality-{name}", about, spoil, ("legality", "task", place), ("--samples", "0"), run
        )

    def widen(run: Run) -> None:
        node = next(node for node in run.graph.nodes if node.op == "square_sum")
        run.change_node("square_sum", outputs=(replace(node.outputs[0], hi=2**61),))

    yield illegal(
        "range", "a node claims a wider range than is derived", "node loss (square_sum)", widen
    )
    yield illegal(
        "operator",
        "an operator that is none",
        "node loss (cube_sum)",
        lambda run: run.change_node("square_sum", op="cube_sum"),
    )
    yield illegal(
        "names",
        "two nodes have one name",
        "node w (square_sum)",
        lambda run: run.change_node("square_sum", name="w"),
    )
    yield illegal(
        "attribute",
        "an attribute is out of bounds",
        "node record (record)",
        lambda run: run.change_node("record", attrs={"commit_every": 0}),
    )

    def swap_leaves(run: Run) -> None:
        node = next(node for node in run.graph.nodes if node.op == "state_root")
        run.change_node("state_root", inputs=node.inputs[::-1])

    def leave_out(run: Run) -> None:
        node = next(node for node in run.graph.nodes if node.op == "state_root")
        run.change_node("state_root", inputs=node.inputs[:1])

    yield illegal(
        "leaf-order",
        "the leaves of the state root are in another order",
        "node leaf/w (state_leaf)",
        swap_leaves,
    )
    yield illegal(
        "uncovered-state",
        "the state root leaves a state out",
        "node state_root (state_root)",
        leave_out,
    )

    def digest_x_twice(run: Run) -> None:
        node = next(node for node in run.graph.nodes if node.op == "batch_digest")
        run.change_node("batch_digest", inputs=(node.inputs[0], node.inputs[0]))

    yield illegal(
        "batch", "the batch digest is of x twice", "node dx (tensor_digest)", digest_x_twice
    )

    def record_old_counter(run: Run) -> None:
        node = next(node for node in run.graph.nodes if node.op == "record")
        counter = run.graph.states()["step"]
        run.change_node("record", inputs=(counter, *node.inputs[1:]))

    yield illegal(
        "counter",
        "the record has the counter before the step",
        "node record (record)",
        record_old_counter,
    )

    def second_root(run: Run) -> None:
        nodes = list(run.graph.nodes)
        index = next(i for i, node in enumerate(nodes) if node.op == "state_root")
        more: Node = replace(nodes[index], name="another root")
        run.set_graph(StepGraph((*nodes, more)))

    yield illegal("two-roots", "there are two state roots", "graph", second_root)
    for name, place, change in (
        ("task-seed", "task.seed", {"seed": 2}),
        ("task-batch", "task.batch", {"batch": 2}),
        ("task-exponents", "task.exponents.nowhere", {"exponents": {"nowhere": 3}}),
    ):

        def respecify(run: Run, change: dict[str, Any] = change) -> None:
            run.spec = replace(run.spec, **change)

        yield illegal(
            name, f"the task's field {place} is not what its graph says", place, respecify
        )

    def no_point(run: Run) -> None:
        proof = run.spec.proof
        assert proof is not None
        run.spec = replace(run.spec, proof=replace(proof, initial=(bytes(64),)))

    yield illegal(
        "kzg-initial",
        "the commitment to the initial state is no point",
        "task.proof.initial",
        no_point,
        make_kzg_run(),
    )


def log_cases() -> Iterator[Case]:
    """The log, its records and its batches."""
    place = ("log", "nobody", "log.bin")
    yield broken(
        "log-cut",
        "log.bin ends within a record",
        lambda run: run.patch("log.bin", lambda data: data[:-1], hidden=True),
        place,
    )
    yield broken(
        "log-shorter",
        "log.bin has a record less",
        lambda run: run.patch(
            "log.bin", lambda data: LOG_HEADER + b"".join(map(frame, run.leaves[:-1])), hidden=True
        ),
        place,
    )
    yield broken(
        "log-header",
        "log.bin begins otherwise",
        lambda run: run.patch("log.bin", lambda data: b"V" + data[1:], hidden=True),
        place,
    )

    def set_loss(run: Run) -> None:
        changed = [*run.leaves]
        changed[2] = encode_record(replace(decode_record(changed[2]), loss=1))
        content = LOG_HEADER + b"".join(map(frame, changed))
        run.patch("log.bin", lambda data: content, hidden=True)

    yield broken("log-another-record", "a record is not the one signed", set_loss, place)

    def no_record(run: Run) -> None:
        run.leaves[3] = b"\xa0"

    yield broken(
        "records-no-record",
        "the solver signed a leaf that is no record",
        no_record,
        ("records", "solver", "step 4"),
    )
    yield broken(
        "records-step",
        "the solver signed a record of another step",
        lambda run: run.set_record(4, step=5),
        ("records", "solver", "step 4"),
    )
    yield broken(
        "records-no-root",
        "a state root is due and not there",
        lambda run: run.set_record(5, state_root=b""),
        ("records", "solver", "step 5"),
    )
    yield broken(
        "records-root-not-due",
        "a state root is there and not due",
        lambda run: run.set_record(3, state_root=bytes(32)),
        ("records", "solver", "step 3"),
        run=make_run(make_task(commit_every=2)),
    )
    first = decode_record(make_run(make_task()).leaves[0]).batch_digest
    second = decode_record(make_run(make_task()).leaves[1]).batch_digest
    assert first != second

    def swap(run: Run) -> None:
        run.set_record(1, batch_digest=second)
        run.set_record(2, batch_digest=first)

    yield broken(
        "batches-swapped", "two batches in the wrong order", swap, ("batches", "solver", "step 1")
    )
    yield broken(
        "batches-other-data",
        "a batch of samples that are not the task's",
        lambda run: run.set_record(6, batch_digest=bytes(32)),
        ("batches", "solver", "step 6"),
    )


def checkpoint_cases() -> Iterator[Case]:
    """Checkpoints: missing, spoiled, and false ones that the solver signed for."""
    for step, about in ((0, "first"), (2, "second"), (6, "last")):
        yield broken(
            f"checkpoint-missing-{step}",
            f"the {about} checkpoint is missing, also from the manifest",
            lambda run, step=step: run.drop(name_of(step), hidden=True),  # type: ignore[misc]
            ("checkpoints", "nobody", name_of(step)),
        )
    yield broken(
        "checkpoint-bit",
        "a bit of a checkpoint is another, and the manifest fits it",
        lambda run: run.patch(name_of(4), flip, hidden=True),
        ("checkpoints", "nobody", name_of(4)),
    )
    yield broken(
        "checkpoint-header",
        "a checkpoint's header has its tensors in another form: the same JSON, spaced otherwise",
        lambda run: run.patch(
            name_of(4), lambda data: data.replace(b"}}  ", b" }} ", 1), hidden=True
        ),
        ("checkpoints", "nobody", name_of(4)),
    )
    yield broken(
        "checkpoint-counter",
        "the solver signed a state that counts otherwise",
        lambda run: run.set_state(4, "step", np.asarray(5, np.int64)),
        ("checkpoints", "solver", name_of(4)),
    )
    yield broken(
        "checkpoint-range",
        "the solver signed a state with -2^31, to which nothing saturates",
        lambda run: run.set_state(4, "w", np.array([-(2**31), 0], np.int32)),
        ("checkpoints", "solver", name_of(4)),
    )
    yield broken(
        "checkpoint-initial-range",
        "the task's initial state has -2^31",
        lambda run: run.set_state(0, "w", np.array([-(2**31), 0], np.int32)),
        ("checkpoints", "task", name_of(0)),
        ("--samples", "0"),
    )


def replay_cases() -> Iterator[Case]:
    """False steps, consistent in everything but the arithmetic."""
    yield broken(
        "replay-loss",
        "the loss of a step is another",
        lambda run: run.set_record(3, loss=decode_record(run.leaves[2]).loss + 1),
        ("replay", "solver", "step 3"),
    )
    yield broken(
        "replay-weight",
        "a weight changes where the law leaves it",
        lambda run: run.set_state(4, "w", np.array([1, 0], np.int32)),
        ("replay", "solver", "step 4"),
    )
    sparse = make_run(make_task(commit_every=2))
    yield broken(
        "replay-weight-between-roots",
        "the same, where every second step has a state root",
        lambda run: run.set_state(4, "w", np.array([1, 0], np.int32)),
        ("replay", "solver", "steps 3 to 4"),
        run=sparse,
    )
    yield broken(
        "replay-skipped-step",
        "a model that learns, with one step left out: all that follows is computed from it",
        lambda run: None,
        ("replay", "solver", "step 3"),
        run=make_run(make_trained_task(), skip_step, 3),
    )

    def without_checkpoint(run: Run) -> None:
        run.set_record(5, loss=1)
        run.drop(name_of(4), hidden=True)

    yield broken(
        "replay-behind-a-missing-checkpoint",
        "a missing checkpoint shields nothing: the steps before it are done again",
        without_checkpoint,
        ("replay", "solver", "step 5"),
    )

    def nothing_to_begin_with(run: Run) -> None:
        run.set_record(1, loss=1)
        run.drop(name_of(0), hidden=True)

    yield broken(
        "replay-without-a-beginning",
        "the false step is before the first checkpoint that there is",
        nothing_to_begin_with,
        ("checkpoints", "nobody", name_of(0)),
    )
    missed = make_run(make_task())
    missed.set_record(3, loss=1)
    digest = compute_claim_digest(missed.make_claim())
    drawn = draw(SEED, digest, REPLAY_DOMAIN, 3, 3)
    # Steps 3 and 4 are segment 1: draw as many as miss it, or all that find it.
    few = drawn.index(1)
    for count, name, about in (
        (few, "missed", "the false step is not in the sample"),
        (few + 1, "found", "the false step is in the sample"),
    ):
        arguments = ("--samples", str(count), "--seed", SEED.hex(), "--claim", digest.hex())
        if not 0 < count < 3:
            continue
        yield case(
            f"replay-{name}",
            about,
            missed,
            "verified" if name == "missed" else "fraud",
            None if name == "missed" else ("replay", "solver", "step 3"),
            arguments,
        )


def kzg_cases() -> Iterator[Case]:
    """The KZG log."""

    def spoiled(name: str, about: str, place: str, change: Callable[[list[bytes]], object]) -> Case:
        run = make_kzg_run()
        assert run.kzg is not None
        change(run.kzg)
        return broken(
            f"kzg-{name}", about, lambda run: None, ("kzg_records", "solver", place), run=run
        )

    def put(step: int, record: KzgRecord) -> Callable[[list[bytes]], object]:
        return lambda leaves: leaves.__setitem__(step - 1, encode_kzg_record(record))

    yield broken(
        "kzg-log-cut",
        "kzg.bin ends within a record",
        lambda run: run.patch("kzg.bin", lambda data: data[:-1], hidden=True),
        ("kzg_log", "nobody", "kzg.bin"),
        run=make_kzg_run(),
    )
    yield broken(
        "kzg-log-missing",
        "there is no kzg.bin",
        lambda run: run.drop("kzg.bin"),
        ("files", "nobody", "kzg.bin"),
        run=make_kzg_run(),
    )
    good = make_record(2, NEGATIVE, (POINT,), POINT)
    yield spoiled("no-record", "a leaf is no record", "step 2", lambda x: x.__setitem__(1, b"\xa0"))
    yield spoiled("step", "a record is of another step", "step 2", put(2, replace(good, step=3)))
    yield spoiled(
        "count", "a commitment too many", "step 2", put(2, replace(good, batch=(POINT, POINT)))
    )
    yield spoiled(
        "no-point", "a commitment is no point", "step 2", put(2, replace(good, after=(b"\1" * 64,)))
    )
    yield spoiled(
        "infinity", "a commitment is 64 zeros", "step 2", put(2, replace(good, batch=(bytes(64),)))
    )
    yield spoiled(
        "chain",
        "a step does not go on from the one before",
        "step 2",
        put(2, replace(good, before=(POINT,))),
    )
    first = make_record(1, NEGATIVE, (POINT,), NEGATIVE)
    yield spoiled(
        "initial", "the first step does not begin with the task's state", "step 1", put(1, first)
    )


def list_keys(run: Run, steps: Sequence[int]) -> Hiding:
    """The keys of these steps, as their solver discloses them."""
    task_id, found = compute_task_id(run.spec), dict[tuple[Kind, int], bytes]()
    session = NumpySession(run.graph, make_task().samples)
    session.load_state(run.states[0])
    for step in range(1, run.spec.steps + 1):
        record = session.step()
        root = compute_root_of_state(run.graph, session.read_state())
        secret = SECRETS.batches
        found["batch", step] = kzg_rule.derive_key(
            secret, task_id, "batch", step, record.batch_digest
        )
        found["state", step] = kzg_rule.derive_key(SECRETS.states, task_id, "state", step, root)
    wanted = {(kind, at) for at in steps for kind, at in (("batch", at), ("state", at))}
    wanted |= {("state", at - 1) for at in steps if at > 1}
    keys = [HidingKey(kind, at, key) for (kind, at), key in sorted(found.items())]
    return Hiding(keys=tuple(item for item in keys if (item.kind, item.index) in wanted))


def hidden_cases() -> Iterator[Case]:
    """The auditor has the SRS, and is told of what hides the commitments: all, some or nothing."""
    alone = ("--all", "--srs", "srs.bin")
    given = (*alone, "--hiding", "keys.cbor")
    run, extra = make_committed_run(hiding=None)
    every = list_keys(run, range(1, run.spec.steps + 1))
    yield case(
        "honest-kzg-disclosed",
        "the auditor has the keys of all steps",
        run,
        arguments=given,
        extra={**extra, "keys.cbor": structs.encode(every)},
    )

    def hidden(
        name: str, about: str, hiding: bytes | None, place: str, inside: Hiding | None = None
    ) -> Case:
        run, extra = make_committed_run(hiding=inside)
        if hiding is not None:
            extra["keys.cbor"] = hiding
        arguments, reason = alone if hiding is None else given, ("kzg", "", place)
        return case(
            f"kzg-hidden-{name}", about, run, "inconclusive", reason, arguments, extra=extra
        )

    first = every.keys[0]
    assert (first.kind, first.index) == ("batch", 1)
    swapped = replace(every, keys=(replace(first, key=every.keys[1].key), *every.keys[1:]))
    owner = structs.encode(Hiding(batches=SECRETS.batches))
    yield hidden("all", "nothing is told", None, "step 1")
    yield hidden(
        "but-three", "the keys of step 3 are told", structs.encode(list_keys(run, [3])), "step 1"
    )
    yield hidden("but-batches", "the secret of the batches is told", owner, "step 1")
    yield hidden("swapped", "the key of another batch is told", structs.encode(swapped), "step 1")
    other = Hiding(states=b"t" * 32, batches=SECRETS.batches)
    yield hidden("secret", "another secret lies in the run", None, "step 1", other)
    yield hidden(
        "given",
        "of two files the one that is given counts",
        structs.encode(Hiding()),
        "step 1",
        SECRETS,
    )
    unsorted = structs.encode(replace(every, keys=every.keys[::-1]))
    yield hidden("unsorted", "the keys are not in order", unsorted, "")
    short = structs.encode(replace(SECRETS, states=b"s" * 31))
    yield hidden("short", "a secret has 31 bytes", short, "")
    yield hidden("file", "the file in the run is none", None, "", Hiding(states=b"s"))

    def add_one(step: int, part: str, values: list[int]) -> list[int]:
        return [values[0] + 1, *values[1:]] if (step, part) == (2, "batch") else values

    for name, about, told, verdict, reason in (
        (
            "batch-told",
            "a batch is false whose key is told, and states are not told",
            owner,
            "fraud",
            ("kzg", "solver", "step 2"),
        ),
        (
            "batch-not-told",
            "a batch is false, and its key is not told",
            structs.encode(Hiding(states=SECRETS.states)),
            "inconclusive",
            ("kzg", "", "step 1"),
        ),
    ):
        run, extra = make_committed_run(add_one, hiding=None)
        extra["keys.cbor"] = told
        yield case(f"kzg-hidden-{name}", about, run, verdict, reason, given, extra=extra)

    run, extra = make_committed_run()
    assert run.kzg is not None
    leaves = run.kzg
    third = decode_kzg_record(leaves[2])
    leaves[2] = encode_kzg_record(replace(third, batch_key=bytes(32)))
    yield case(
        "kzg-hidden-false-id",
        "a record says that another key hides the batch",
        run,
        "inconclusive",
        ("kzg", "", "step 3"),
        alone,
        extra=extra,
    )
    for name, about, step, key in (
        ("chain-key", "a step goes on with another key than the one before", 2, "before_key"),
        ("chain-key-after", "a step ends with another key than the next begins", 3, "after_key"),
        ("initial-key", "the first step begins with another key than the task", 1, "before_key"),
    ):
        run, extra = make_committed_run()
        assert run.kzg is not None
        at = step - 2 if key == "after_key" else step - 1
        changed: dict[str, Any] = {key: bytes(32)}
        record = replace(decode_kzg_record(run.kzg[at]), **changed)
        run.kzg[at] = encode_kzg_record(record)
        yield broken(
            f"kzg-{name}",
            about,
            lambda run: None,
            ("kzg_records", "solver", f"step {step}"),
            alone,
            run,
            extra=extra,
        )
    run, extra = make_committed_run(initial_key=bytes(32))
    yield case(
        "kzg-initial-key-forged",
        "the task says that another key hides its initial state",
        run,
        "inconclusive",
        ("kzg", "task", "task.proof.initial"),
        alone,
        extra=extra,
    )


def usage_cases() -> Iterator[Case]:
    """Questions that are refused: a claim that was kept must be one, and not be the run's own."""
    kept = keep(make_run(make_task()))
    for name, about, extra in (
        ("signature", "the signature of the claim that was kept does not hold", flip(kept)),
        ("trailing-byte", "the claim that was kept has one byte more", kept + b"\0"),
    ):
        files, arguments = make_run(make_task()).files(), ("--all", "--claim", "kept.cbor")
        yield Case(f"usage-{name}", about, files, "", None, arguments, {"kept.cbor": extra})
    yield Case(
        "usage-own-claim",
        "the claim that was kept is the run's own file",
        make_run(make_task()).files(),
        "",
        None,
        ("--all", "--claim", "run/claim.cbor"),
    )


def kept_kzg_cases() -> Iterator[Case]:
    """A claim that was kept of a run with a KZG log."""
    arguments = ("--all", "--claim", "kept.cbor")
    fork = cut_run(make_kzg_run(), 4)
    assert fork.kzg is not None
    fork.kzg[3] = encode_kzg_record(make_record(4, NEGATIVE, (POINT,), NEGATIVE))
    forked = {"kept.cbor": keep(fork)}
    without = cut_run(make_kzg_run(), 4)
    without.claim = {"kzg_root": b""}
    whole = {"kept.cbor": keep(cut_run(make_kzg_run(), 4))}

    def respecify(run: Run) -> None:
        other = encode_task(replace(run.spec, steps=8))
        run.patch("task.cbor", lambda data: other, hidden=True)

    for name, about, fault, spoil, extra in (
        ("forked", "has another KZG log", "solver", lambda run: None, forked),
        (
            "without",
            "has no KZG root",
            "solver",
            lambda run: None,
            {"kept.cbor": keep(without)},
        ),
        (
            "only-kept",
            "has a KZG root, which this one has not",
            "nobody",
            lambda run: run.claim.update(kzg_root=b""),
            whole,
        ),
        (
            "log-missing",
            "has another KZG log, but kzg.bin is not the one signed",
            "nobody",
            lambda run: run.patch("kzg.bin", flip, hidden=True),
            forked,
        ),
        ("task", "has another KZG log, but task.cbor is another", "nobody", respecify, forked),
        (
            "run-log-missing",
            "has another KZG log, but log.bin is not the one signed",
            "nobody",
            lambda run: run.patch("log.bin", flip, hidden=True),
            forked,
        ),
    ):
        yield broken(
            f"pin-kzg-{name}",
            f"the claim that was kept is of four steps and {about}",
            spoil,
            ("claim", fault, "claim.cbor"),
            arguments,
            make_kzg_run(),
            extra=extra,
        )


def order_cases() -> Iterator[Case]:
    """Two faults at once: which is looked at first, and what is passed over."""

    def two_records(run: Run) -> None:
        run.set_record(3, step=4)
        run.leaves[4] = b"\xa0"

    yield broken(
        "records-two-faults",
        "record 3 is of another step, record 5 is no record",
        two_records,
        ("records", "solver", "step 3"),
    )

    def two_kzg_records(run: Run) -> None:
        assert run.kzg is not None
        run.kzg[1] = encode_kzg_record(make_record(2, POINT, (POINT,), POINT))
        run.kzg[3] = b"\xa0"

    yield broken(
        "kzg-two-faults",
        "the KZG record of step 2 does not go on from the one before, that of step 4 is none",
        two_kzg_records,
        ("kzg_records", "solver", "step 2"),
        run=make_kzg_run(),
    )
    run = make_run(make_task())
    digest = compute_claim_digest(run.make_claim())
    assert sorted(draw(b"\0", digest, REPLAY_DOMAIN, 3, 2)) == [0, 2]
    yield broken(
        "replay-through-a-gap",
        "the first and the third segment are drawn, and the checkpoint between is missing",
        lambda run: run.drop(name_of(4), hidden=True),
        ("checkpoints", "nobody", name_of(4)),
        ("--samples", "2", "--seed", "00", "--claim", digest.hex()),
        run,
    )

    def no_beginning(run: Run) -> None:
        run.drop(name_of(0), hidden=True)
        run.drop(name_of(1), hidden=True)

    yield broken(
        "replay-segments-of-one-step",
        "a checkpoint after each step, of which the first two are missing",
        no_beginning,
        ("checkpoints", "nobody", name_of(0)),
        run=make_run(make_task(checkpoint_every=1)),
    )

    def seven_bad(run: Run) -> None:
        for step in (2, 6):
            run.set_state(step, "step", np.asarray(9, np.int64))
        for step in (0, 1, 3, 4, 5):
            run.patch(name_of(step), flip, hidden=True)

    yield broken(
        "checkpoint-seven",
        "seven checkpoints fail, two of them with states that the solver signed",
        seven_bad,
        ("checkpoints", "solver", name_of(2)),
        run=make_run(make_task(checkpoint_every=1)),
    )

    def six_files(run: Run) -> None:
        files = {name: entry for name, entry in listed(run).items() if name != "log.bin"}
        wrong = {name: FileEntry(files[name].size, bytes(32)) for name in ("graph.cbor",)}
        more = {name: FileEntry(0, bytes(32)) for name in ("a", "b", "n")}
        run.manifest["files"] = {**files, **wrong, **more, name_of(2): FileEntry(1, bytes(32))}

    yield broken(
        "files-six",
        "six files fail: one is not listed, three are none of a run, two are listed otherwise",
        six_files,
        ("files", "nobody", "log.bin"),
    )

    def unknown_task(run: Run) -> None:
        run.patch("task.cbor", lambda data: data + b"\0", hidden=True)
        run.patch("data/samples.bin", flip)
        run.patch(name_of(2), flip)

    yield broken(
        "files-unknown-task",
        "the task is unknown, and with it that there is a KZG log, and how large the rest is",
        unknown_task,
        ("task", "nobody", "task.cbor"),
        run=make_kzg_run(),
    )

    def third_checkpoint(run: Run) -> None:
        run.after.append(lambda files: files.update({name_of(3): files[name_of(2)]}))

    run = make_run(make_task())
    third_checkpoint(run)
    yield case("files-odd-checkpoint", "a checkpoint of a step that is due none is listed", run)
    run = make_run(make_task())
    table = run.samples
    run.manifest["files"] = {**listed(run), "data/samples.bin": FileEntry(1, bytes(32))}
    brought = ("--all", "--data", "samples.bin")
    yield case(
        "samples-brought-over",
        "the auditor has the samples: how the manifest lists the run's own is passed over",
        run,
        arguments=brought,
        extra={"samples.bin": table},
    )
    yield broken(
        "samples-brought-another",
        "the auditor has other samples",
        lambda run: None,
        ("samples", "nobody", "samples.bin"),
        brought,
        extra={"samples.bin": flip(table)},
    )
    yield broken(
        "unfinished-structure",
        "there is no claim yet, and no segment is asked for",
        lambda run: run.drop("claim.cbor"),
        ("claim", "", "claim.cbor"),
        ("--samples", "0"),
    )


def legality_order_cases() -> Iterator[Case]:
    """Graphs with two faults."""

    def illegal(
        name: str, about: str, place: str, spoil: Callable[[Run], object], run: Run | None = None
    ) -> Case:
        reason = ("legality", "task", place)
        return broken(f"legality-{name}", about, spoil, reason, ("--samples", "0"), run)

    def damage(run: Run) -> None:
        run.change_node("square_sum", op="cube_sum")
        run.patch(name_of(2), flip)

    yield illegal(
        "and-checkpoint",
        "without a legal graph a checkpoint that is not as listed is passed over",
        "node loss (cube_sum)",
        damage,
    )

    def rename(run: Run) -> None:
        run.change_node("square_sum", op="cube_sum")
        run.change_node("record", name="w")

    yield illegal(
        "node-by-node",
        "an operator that is none, and after it a name that is taken",
        "node loss (cube_sum)",
        rename,
    )

    def cross_states(run: Run) -> None:
        nodes = list(run.graph.nodes)
        at = {node.attrs["name"]: i for i, node in enumerate(nodes) if node.op == "next_state"}
        one, two = at["param/w"], at["momentum/w"]
        first, second = nodes[one], nodes[two]
        nodes[one] = replace(first, inputs=second.inputs, outputs=second.outputs)
        nodes[two] = replace(second, inputs=first.inputs, outputs=first.outputs)
        run.set_graph(StepGraph(tuple(nodes)))

    yield illegal(
        "two-states",
        "two states change their types: the one whose node comes first is named",
        "state param/w",
        cross_states,
        make_run(make_trained_task()),
    )

    def read_root(run: Run) -> None:
        nodes = list(run.graph.nodes)
        digest = next(node for node in nodes if node.op == "tensor_digest")
        root = next(i for i, node in enumerate(nodes) if node.op == "state_root")
        for name, index in (("of root", root), ("of record", len(nodes) - 1)):
            nodes.append(replace(digest, name=name, inputs=(Ref(index),)))
        run.set_graph(StepGraph(tuple(nodes)))

    yield illegal(
        "two-readers",
        "a node reads the state root, and one after it the record",
        "node of root (tensor_digest)",
        read_root,
    )

    def two_leaves(run: Run) -> None:
        nodes = list(run.graph.nodes)
        at = {node.name: i for i, node in enumerate(nodes)}
        first, second = at["leaf/step"], at["leaf/w"]
        nodes[first] = replace(nodes[first], inputs=(Ref(at["digest/step"] - 6),))
        nodes[second] = replace(nodes[second], attrs={**nodes[second].attrs, "name": "x"})
        run.set_graph(StepGraph(tuple(nodes)))

    yield illegal(
        "leaf-and-digest",
        "the first leaf reads the digest of another tensor, the second has another name",
        "node dy (tensor_digest)",
        two_leaves,
    )

    def swap_parts(run: Run) -> None:
        nodes = list(run.graph.nodes)
        x = next(i for i, node in enumerate(nodes) if node.op == "gather_samples")
        other = {x: x + 1, x + 1: x}
        nodes[x], nodes[x + 1] = nodes[x + 1], nodes[x]
        nodes = [
            replace(node, inputs=tuple(Ref(other.get(ref.node, ref.node)) for ref in node.inputs))
            for node in nodes
        ]
        run.set_graph(StepGraph(tuple(nodes)))
        data = replace(run.spec.data, x_exponent=1, y_exponent=1)
        run.spec = replace(run.spec, data=data)

    yield illegal(
        "task-data",
        "x and y have other exponents than in the graph, which gathers y first",
        "task.data.y",
        swap_parts,
    )

    def two_exponents(run: Run) -> None:
        run.spec = replace(run.spec, exponents={"aa": 1, "b": 1})

    yield illegal(
        "task-two-exponents",
        "two keys of exponents are no nodes: the one that comes first in the encoding is named",
        "task.exponents.b",
        two_exponents,
    )


def later_cases() -> Iterator[Case]:
    """Places with a colon, more than five failures, links, and files of the auditor's own."""

    def six_bad(run: Run) -> None:
        run.set_state(6, "step", np.asarray(9, np.int64))
        for step in (0, 1, 2, 3, 4):
            run.patch(name_of(step), flip, hidden=True)

    yield broken(
        "checkpoint-six",
        "six checkpoints fail, the sixth with a state that the solver signed: all are listed",
        six_bad,
        ("checkpoints", "solver", name_of(6)),
        run=make_run(make_task(checkpoint_every=1)),
    )
    yield broken(
        "legality-colon",
        "a node with a colon and a space in its name",
        lambda run: run.change_node("square_sum", op="cube_sum", name="a: b"),
        ("legality", "task", "node a"),
        ("--samples", "0"),
    )

    def move(run: Run, folder: str) -> None:
        def apply(files: dict[str, bytes]) -> None:
            for name in [name for name in files if name.startswith(f"{folder}/")]:
                files[name.replace(folder, f"{folder}.copy", 1)] = files.pop(name)

        run.late.append(apply)

    for folder, name in (("data", "data/samples.bin"), ("checkpoints", name_of(0))):
        yield broken(
            f"files-{folder}-link",
            f"the folder {folder} is a link to another folder of the run",
            lambda run, folder=folder: move(run, folder),  # type: ignore[misc]
            ("files", "nobody", name),
            links={folder: f"{folder}.copy"},
        )

    def list_more(run: Run) -> None:
        def apply(files: dict[str, bytes]) -> None:
            for step in ("1000000000000", "0000000000001"):
                files[f"checkpoints/{step}.safetensors"] = files[name_of(2)]

        run.after.append(apply)

    yield broken(
        "files-thirteen-digits",
        "a checkpoint of thirteen digits is listed, and one of which the first is 0",
        list_more,
        ("files", "nobody", "manifest.json"),
    )

    def long_frame(run: Run) -> None:
        run.leaves[3] = bytes(257)

    yield broken(
        "log-long-frame", "a record of 257 bytes", long_frame, ("log", "nobody", "log.bin")
    )
    run = make_run(make_task())
    table = run.samples
    brought = ("--all", "--data", "samples.bin")
    yield case(
        "samples-brought-by-link",
        "the samples that the auditor has are reached by a link",
        run,
        arguments=brought,
        extra={"samples.bin": "table.bin", "table.bin": table},
    )
    files = make_run(make_task()).files()
    yield Case("usage-no-data", "there is no file of samples", files, "", None, brought)
    srs = ("--all", "--srs", "srs.bin")
    files = make_kzg_run().files()
    yield Case("usage-no-srs", "there is no SRS file", files, "", None, srs)
    yield broken(
        "kzg-another-srs",
        "the SRS file is not the one that the task names",
        lambda run: None,
        ("kzg", "", ""),
        srs,
        make_kzg_run(),
        extra={"srs.bin": b"no SRS"},
    )


def committed_cases() -> Iterator[Case]:
    """The auditor has the SRS, and makes commitments of its own."""
    srs = ("--all", "--srs", "srs.bin")
    for name, about, file_k in (
        ("honest-kzg-compared", "the commitments are made again", 7),
        ("honest-kzg-larger-srs", "the SRS file is for a larger k than the task's", 8),
    ):
        run, extra = make_committed_run(file_k=file_k)
        yield case(name, about, run, arguments=srs, extra=extra)

    def add_one(at: int, what: str) -> Callable[[int, str, list[int]], list[int]]:
        def forge(step: int, part: str, values: list[int]) -> list[int]:
            return [values[0] + 1, *values[1:]] if (step, part) == (at, what) else values

        return forge

    for name, about, place, forge in (
        ("batch", "a record commits to another batch", "step 3", add_one(3, "batch")),
        ("after", "a record commits to another state after it", "step 2", add_one(2, "after")),
        (
            "shifted",
            "a record commits to a batch one value later",
            "step 1",
            lambda step, part, values: [0, *values] if (step, part) == (1, "batch") else values,
        ),
        (
            "zeros",
            "a record commits to a batch with a zero more, so that what hides it comes a row later",
            "step 1",
            lambda step, part, values: [*values, 0] if part == "batch" else values,
        ),
    ):
        run, extra = make_committed_run(forge)
        yield broken(
            f"kzg-forged-{name}",
            about,
            lambda run: None,
            ("kzg", "solver", place),
            srs,
            run,
            extra=extra,
        )
    run, extra = make_committed_run(initial=lambda values: [values[0] + 1, *values[1:]])
    yield broken(
        "kzg-initial-forged",
        "the task commits to another initial state than its own",
        lambda run: None,
        ("kzg", "task", "task.proof.initial"),
        srs,
        run,
        extra=extra,
    )
    run, extra = make_committed_run(add_one(2, "after"))
    yield case(
        "kzg-forged-unseen",
        "a record commits to another state, and no segment is asked for",
        run,
        arguments=("--samples", "0", "--srs", "srs.bin"),
        extra=extra,
    )
    run, extra = make_committed_run(add_one(2, "batch"))
    assert run.kzg is not None

    def lose(run: Run) -> None:
        record = decode_record(run.leaves[1])
        run.leaves[1] = encode_record(replace(record, loss=record.loss + 1))

    yield broken(
        "kzg-forged-and-loss",
        "the loss of a step is false, and so are its commitments",
        lose,
        ("replay", "solver", "step 2"),
        srs,
        run,
        extra=extra,
    )
    run, extra = make_committed_run()
    off_curve = bytearray(bytes(extra["srs.bin"]))  # type: ignore[arg-type]
    off_curve[4 + 64 * 128] ^= 1
    spoilt = bytes(off_curve)
    assert run.spec.proof is not None
    proof = replace(run.spec.proof, srs=hashlib.sha256(spoilt).digest())
    run.spec = replace(run.spec, proof=proof)
    yield broken(
        "kzg-srs-of-no-points",
        "the task names an SRS file of which a Lagrange point is off the curve",
        lambda run: None,
        ("kzg", "", ""),
        srs,
        run,
        extra={"srs.bin": spoilt},
    )


def remainder_cases() -> Iterator[Case]:
    """What is drawn where the last step claimed has no state root: of two segments, not three."""
    run = cut_run(make_run(make_task(commit_every=2)), 5)
    digest = compute_claim_digest(run.make_claim())
    seed = next(
        bytes([i])
        for i in range(256)
        if draw(bytes([i]), digest, REPLAY_DOMAIN, 2, 1)
        != draw(bytes([i]), digest, REPLAY_DOMAIN, 3, 1)
    )
    yield broken(
        "complete-between-roots-drawn",
        "the last step claimed has no state root, and one of the segments before it is drawn",
        lambda run: None,
        ("complete", "nobody", "claim.cbor"),
        ("--samples", "1", "--seed", seed.hex()),
        run,
    )


# --- runs with traces, and runs in stores: the values of some steps, and pieces


class Traces:
    """The traces of intervals of a run that are signed, and the bytes of tensors: all of it may be
    spoiled before :meth:`files` writes it down."""

    def __init__(self, run: Run, lasts: Sequence[int]) -> None:
        """By the law, from the initial state on."""
        self.run, self.nodes = run, run.graph.nodes
        self.every = run.spec.commit_every
        self.leaves: dict[int, list[bytes]] = {last: [] for last in lasts}
        self.chunks: dict[bytes, bytes] = {}
        self.sizes: dict[int, int] = {}
        self.claim, self.key = compute_claim_digest(run.make_claim()), run.key
        self.late: list[Callable[[dict[str, bytes]], None]] = []
        self.values: dict[tuple[int, str], npt.NDArray[Any]] = {}
        table = np.frombuffer(run.samples, np.uint8).reshape(run.spec.data.samples, -1)
        samples, state = Samples(run.spec.data, table), dict(run.states[0])
        for step in range(1, max(lasts) + 1):
            last = -(-step // self.every) * self.every
            first = last - self.every + 1
            values = [np.empty(0)] * len(self.nodes)
            for index, node in enumerate(self.nodes):
                inputs = [values[ref.node] for ref in node.inputs]
                values[index] = np.asarray(apply_node(node, inputs, state, samples), order="C")
                if last in self.leaves:
                    self.leaves[last].append(compute_tensor_digest(values[index]))
                    self.values[step, node.name] = values[index]
                    if node.op in PRODUCTS or (node.op == "state" and step == first):
                        self.put(values[index])
            state = {n: values[ref.node] for n, ref in run.graph.next_states().items()}

    def put(self, value: npt.NDArray[Any]) -> bytes:
        """Hold the bytes of a tensor; its digest."""
        digest = compute_tensor_digest(value)
        self.chunks[digest] = value.tobytes()
        return digest

    def find(self, name: str) -> int:
        """The number of a node."""
        return next(i for i, node in enumerate(self.nodes) if node.name == name)

    def set(self, step: int, name: str, change: Callable[[Any], Any], *, kept: bool = False) -> str:
        """Sign for another value of a node in a step, and give its bytes unless they are ``kept``
        back; the place of its first element."""
        value = self.values[step, name].copy()
        value.reshape(-1)[-1] = change(value.reshape(-1)[-1])
        digest = compute_tensor_digest(value) if kept else self.put(value)
        last, index = -(-step // self.every) * self.every, self.find(name)
        self.leaves[last][(step - last + self.every - 1) * len(self.nodes) + index] = digest
        place = f"step {step}, node {index}"
        element = value.size - 1
        return (
            place
            if kept
            else f"{place}, chunk {element * value.itemsize // 1024}, element " + (str(element))
        )

    def say(self) -> TensorTraces:
        """What is signed of these traces."""
        traces = tuple(
            TensorTrace(
                last, self.sizes.get(last, len(found)), merkle.compute_root(domains.TRACE, found)
            )
            for last, found in sorted(self.leaves.items())
        )
        return TensorTraces(self.claim, traces)

    def sign(self) -> bytes:
        """The file of it."""
        body = self.say()
        return structs.encode(SignedTensorTraces(body, self.key.sign(compute_traces_digest(body))))

    def files(self) -> dict[str, bytes]:
        """The files of the folder, by their names."""
        out = {"traces.cbor": self.sign()}
        for last, found in self.leaves.items():
            out[f"step-{last:012d}.leaves"] = b"".join(found)
        out |= {f"chunks/{digest.hex()}": data for digest, data in self.chunks.items()}
        for change in self.late:
            change(out)
        return out


def traced(
    name: str,
    about: str,
    spoil: Callable[[Traces], object],
    reason: tuple[str, str, str] | None,
    arguments: Sequence[str] = (),
    run: Run | None = None,
    lasts: Sequence[int] = (2,),
    **more: Any,
) -> Case:
    """A case of a run with the traces of some intervals, that is pinned."""
    run = make_run(make_trained_task()) if run is None else run
    traces = Traces(run, lasts)
    spoil(traces)
    chosen = arguments or ("--steps", ",".join(map(str, lasts)))
    asked = ("--mode", "algebraic", *chosen, "--claim", pin_of(run))
    run.late.append(
        lambda files: files.update({f"traces/{n}": data for n, data in traces.files().items()})
    )
    verdict = "verified" if reason is None else "inconclusive"
    if reason is not None and reason[1] == "solver":
        verdict = "fraud"
    return case(f"algebraic-{name}", about, run, verdict, reason, asked, **more)


def make_sparse_run(steps: int = 4) -> Run:
    """A run that learns, with a state root every two steps."""
    task = make_trained_task()
    nodes = [
        replace(node, attrs={"commit_every": 2}) if node.op == "record" else node
        for node in task.graph.nodes
    ]
    graph = StepGraph(tuple(nodes))
    spec = replace(task.spec, commit_every=2, steps=4, graph_root=compute_graph_root(graph))
    run = make_run(replace(task, spec=spec, graph=graph))
    return run if steps == 4 else cut_run(run, steps)


def algebraic_cases() -> Iterator[Case]:
    """Traces, honest and broken."""
    run = make_run(make_trained_task())
    digest = compute_claim_digest(run.make_claim())
    drawn = [index + 1 for index in draw(SEED, digest, ALGEBRAIC_DOMAIN, 4, 2)]
    yield traced(
        "honest",
        "two of four steps, drawn after the claim was pinned",
        lambda traces: None,
        None,
        ("--samples", "2", "--seed", SEED.hex()),
        lasts=drawn,
    )
    yield traced(
        "honest-derived",
        "an interval of two steps; the vectors follow from what is signed",
        lambda traces: None,
        None,
        ("--steps", "3", "--derived"),
        run=make_sparse_run(),
        lasts=(4,),
    )
    first = next(node.name for node in run.graph.nodes if node.op in PRODUCTS)
    done = next(node.name for node in run.graph.nodes if node.op == "rescale")

    def wrong(
        name: str,
        about: str,
        node: str,
        change: Callable[[Any], Any],
        *,
        step: int = 2,
        kept: bool = False,
        **more: Any,
    ) -> Case:
        places: list[str] = []
        found = traced(
            name,
            about,
            lambda traces: places.append(traces.set(step, node, change, kept=kept)),
            None,
            **more,
        )
        return replace(found, verdict="fraud", reason=("algebraic", "solver", places[0]))

    yield wrong("accumulator", "an accumulator is one more", first, lambda v: v + 1)
    yield wrong(
        "accumulator-modulus",
        "an accumulator is 2^61 - 1 more, which no vector shows",
        first,
        lambda v: v + PRIME,
    )
    yield wrong("pointwise", "a value that is done again is one more", done, lambda v: v + 1)
    yield wrong(
        "pointwise-kept-back",
        "a value that is done again is one more, and its bytes are not there",
        done,
        lambda v: v + 1,
        kept=True,
    )
    state = "param/w"
    base = run.graph.nodes[run.graph.states()[state].node].name
    yield wrong(
        "base",
        "a trace begins with another state, and the checkpoint before is there",
        base,
        lambda v: v + 1,
        step=3,
        lasts=(3,),
    )
    yield traced(
        "base-without-checkpoint",
        "a trace begins with another state, and no checkpoint is of the step before",
        lambda traces: traces.set(2, base, lambda v: v + 1),
        ("algebraic", "solver", "step 2"),
    )

    def begin_elsewhere(traces: Traces) -> None:
        traces.set(3, base, lambda value: value + 1)
        traces.run.drop(name_of(2), hidden=True)

    yield traced(
        "base-of-interval",
        "a trace of two steps begins with another state, and the checkpoint before is not there",
        begin_elsewhere,
        ("algebraic", "solver", "steps 3 to 4"),
        run=make_sparse_run(),
        lasts=(4,),
    )
    yield wrong(
        "state-in-interval",
        "the second step of an interval begins with another state than the first ended with",
        base,
        lambda v: v + 1,
        step=4,
        run=make_sparse_run(),
        lasts=(4,),
    )
    end = f"next/{state}"
    yield wrong("next-state", "the digest of a next state is not that of what it is", end, flip_bit)
    leaf = next(node.name for node in run.graph.nodes if node.op == "tensor_digest")
    yield wrong("digest", "a node that puts out a digest has another", leaf, flip_bit)

    def leave_range(traces: Traces, step: int) -> None:
        run = traces.run
        index = run.graph.states()[state].node
        value = run.states[step][state].copy()
        value[0, 0] = run.graph.nodes[index].outputs[0].lo - 1
        run.set_state(step, state, value)
        run.drop(name_of(step), hidden=True)
        traces.leaves[step + 1][index] = traces.put(value)
        traces.claim = compute_claim_digest(run.make_claim())

    for step, fault in ((0, "task"), (2, "solver")):
        yield traced(
            f"state-range-{fault}",
            f"the state after {step} steps is out of its range, and its checkpoint is not there",
            lambda traces, step=step: leave_range(traces, step),  # type: ignore[misc]
            ("algebraic", fault, f"step {step + 1}, node 1, chunk 0, element 0"),
            lasts=(step + 1,),
        )
    yield from trace_cases(run.graph, first, done)


def trace_cases(graph: StepGraph, first: str, done: str) -> Iterator[Case]:
    """What is signed, and what is missing; ``first`` is a product, ``done`` is done again."""
    yield traced(
        "kept-back",
        "the bytes of an accumulator are not there",
        lambda traces: traces.chunks.pop(traces.leaves[2][traces.find(first)]),
        ("algebraic", "nobody", "step 2"),
    )
    yield traced(
        "corrupt",
        "the bytes of an accumulator do not have the digest",
        lambda traces: traces.chunks.update(
            {(d := traces.leaves[2][traces.find(first)]): flip(traces.chunks[d])}
        ),
        ("algebraic", "nobody", "step 2"),
    )
    signed = ("trace", "nobody", "traces/traces.cbor")
    yield traced(
        "signature",
        "a bit of the signature is another",
        lambda traces: traces.late.append(
            lambda files: files.update({"traces.cbor": flip(files["traces.cbor"])})
        ),
        signed,
    )
    yield traced(
        "other-claim",
        "what is signed is of another claim",
        lambda traces: setattr(traces, "claim", bytes(32)),
        signed,
    )
    yield traced(
        "none",
        "nothing is signed",
        lambda traces: traces.late.append(lambda files: files.clear()),
        signed,
    )
    yield traced(
        "truncated",
        "the file of what is signed is cut off",
        lambda traces: traces.late.append(
            lambda files: files.update({"traces.cbor": files["traces.cbor"][:-1]})
        ),
        signed,
    )
    yield traced(
        "other-step", "another step is traced", lambda traces: None, signed, ("--steps", "3")
    )
    yield traced(
        "size",
        "the trace is signed with a leaf too few",
        lambda traces: (traces.leaves[2].pop(), None),
        ("trace", "solver", "step 2"),
    )
    yield traced(
        "leaves-cut",
        "the file of the leaves has half a leaf too few",
        lambda traces: traces.late.append(
            lambda files: files.update(
                {"step-000000000002.leaves": files["step-000000000002.leaves"][:-16]}
            )
        ),
        ("trace", "nobody", "traces/step-000000000002.leaves"),
    )
    yield traced(
        "leaves-others",
        "the leaves are not those under the root",
        lambda traces: traces.late.append(
            lambda files: files.update(
                {"step-000000000002.leaves": flip(files["step-000000000002.leaves"])}
            )
        ),
        ("trace", "nobody", "traces/step-000000000002.leaves"),
    )
    record = graph.nodes[graph.find("record")].name
    yield traced(
        "record",
        "the trace ends in another record than the log has",
        lambda traces: traces.set(4, record, flip_bit),
        ("trace", "solver", "step 4"),
        run=make_sparse_run(),
        lasts=(4,),
    )
    kept = Traces(make_run(make_trained_task()), (2,))
    kept.set(2, done, lambda v: v + 1)
    pinned = ("--steps", "2", "--trace-claim")
    yield traced(
        "pin-contradicted",
        "the auditor kept another signed trace of the step",
        lambda traces: None,
        ("trace", "solver", "traces/traces.cbor"),
        (*pinned, "kept.cbor"),
        extra={"kept.cbor": kept.sign()},
    )
    yield traced(
        "pin-another",
        "what is signed has not the digest pinned",
        lambda traces: None,
        signed,
        (*pinned, bytes(32).hex()),
    )
    yield traced(
        "no-samples",
        "nobody has the samples",
        lambda traces: traces.run.drop("data/samples.bin", hidden=True),
        ("samples", "nobody", "data/samples.bin"),
    )
    yield traced(
        "no-state",
        "the log commits to no state",
        lambda traces: None,
        ("complete", "nobody", "claim.cbor"),
        ("--samples", "1"),
        run=make_sparse_run(1),
    )


def flip_bit(value: Any) -> Any:
    """The lowest bit of an element changed."""
    return value ^ 1


class Objects(dict[str, bytes]):
    """What lies in a store."""

    def put(self, name: str, data: bytes) -> None:
        """Hold it."""
        self[name] = data


def publish(run: Run) -> Objects:
    """The objects of a run: piece by piece, whatever its files are."""
    out, files, done = Objects(), run.files(), set[bytes]()
    for state in run.states.values():
        write_state(out, run.graph, state, done)
    rows = -1 if run.spec.data.windows else run.spec.data.samples
    table = np.frombuffer(run.samples, np.uint8)
    samples = Samples(run.spec.data, table if rows < 0 else table.reshape(rows, -1))
    write_samples(out, samples, make_samples_form(run.spec.data), lambda what, done, total: None)
    names = ("task.cbor", "graph.cbor", "log.bin", "claim.cbor", "kzg.bin")
    out.update({name: files[name] for name in names if name in files})
    return out


def stored(
    name: str,
    about: str,
    spoil: Callable[[Objects, Run], object],
    reason: tuple[str, str, str] | None,
    arguments: Sequence[str] = ("--all",),
    run: Run | None = None,
    **more: Any,
) -> Case:
    """A case of a run in a store."""
    run = make_run(make_trained_task()) if run is None else run
    objects = publish(run)
    spoil(objects, run)
    verdict = "verified" if reason is None else "inconclusive"
    if reason is not None and reason[1] == "solver":
        verdict = "fraud"
    return Case(
        f"store-{name}",
        about,
        dict(objects),
        verdict,
        reason,
        tuple(arguments),
        place="store",
        **more,
    )


def keep_all(objects: Objects, run: Run) -> None:
    """What is done to a store where nothing is."""
    del objects, run


def store_cases() -> Iterator[Case]:
    """Stores, honest and broken."""

    def chunk(objects: Objects, run: Run, step: int) -> str:
        return f"chunks/{compute_tensor_digest(run.states[step]['param/w']).hex()}"

    def state(run: Run, step: int) -> str:
        return f"states/{compute_root_of_state(run.graph, run.states[step]).hex()}"

    def spoil(objects: Objects, name: str) -> None:
        objects[name] = flip(objects[name])

    run = make_run(make_trained_task())
    pin, every = pin_of(run), ("--samples", "2")
    yield stored("honest", "everything is replayed, from the first state on", keep_all, None)
    pinned = (*("--samples", "1", "--seed", SEED.hex()), "--claim", pin)
    yield stored("honest-drawn", "one of two segments is drawn", keep_all, None, pinned)
    yield stored("honest-structure", "no segment is asked for", keep_all, None, ("--samples", "0"))
    yield stored(
        "extra-piece",
        "objects that nobody asks for",
        lambda objects, run: objects.update({f"chunks/{bytes(32).hex()}": b"?", "notes.txt": b"?"}),
        None,
    )
    digest = compute_claim_digest(run.make_claim())
    first = next(
        bytes([i]) for i in range(256) if draw(bytes([i]), digest, REPLAY_DOMAIN, 2, 1) == (1,)
    )
    second = ("--samples", "1", "--seed", first.hex(), "--claim", pin)
    begins = ("checkpoints", "nobody", name_of(2))
    yield stored(
        "piece-withheld",
        "a tensor of the state that the segment begins with is not there",
        lambda objects, run: objects.pop(chunk(objects, run, 2)),
        begins,
        second,
    )
    yield stored(
        "piece-corrupt",
        "it has other bytes",
        lambda objects, run: spoil(objects, chunk(objects, run, 2)),
        begins,
        second,
    )
    yield stored(
        "piece-longer",
        "it has a byte more",
        lambda objects, run: objects.update(
            {(name := chunk(objects, run, 2)): objects[name] + b"\0"}
        ),
        begins,
        second,
    )
    yield stored(
        "state-withheld",
        "the digests of the state are not there",
        lambda objects, run: objects.pop(state(run, 2)),
        begins,
        second,
    )
    yield stored(
        "state-corrupt",
        "the digests of the state are others",
        lambda objects, run: spoil(objects, state(run, 2)),
        begins,
        second,
    )
    yield stored(
        "state-not-drawn",
        "a state that no segment begins with is not there",
        lambda objects, run: objects.pop(state(run, 0)),
        None,
        second,
    )

    def find_samples(run: Run) -> str:
        return f"chunks/{run.spec.data.root.hex()}"

    table = ("samples", "nobody", "data/samples.bin")
    yield stored(
        "samples-withheld",
        "the samples are not there",
        lambda objects, run: objects.pop(find_samples(run)),
        table,
        every,
    )
    yield stored(
        "samples-corrupt",
        "the samples have other bytes",
        lambda objects, run: spoil(objects, find_samples(run)),
        table,
        every,
    )
    yield stored(
        "samples-brought",
        "the samples are not there, and the auditor has them",
        lambda objects, run: objects.pop(find_samples(run)),
        None,
        ("--all", "--data", "samples.bin"),
        extra={"samples.bin": run.samples},
    )
    for name in ("task", "graph"):
        file = f"{name}.cbor"
        yield stored(
            f"{name}-another",
            f"{file} has other bytes",
            lambda objects, run, file=file: spoil(objects, file),  # type: ignore[misc]
            (name, "nobody", file),
        )
    yield stored(
        "log-cut",
        "log.bin is cut off",
        lambda objects, run: objects.update({"log.bin": objects["log.bin"][:-1]}),
        ("log", "nobody", "log.bin"),
    )
    yield stored(
        "empty",
        "there is nothing",
        lambda objects, run: objects.clear(),
        ("claim", "nobody", "claim.cbor"),
    )
    yield stored(
        "claim-signature",
        "a bit of the signature is another",
        lambda objects, run: spoil(objects, "claim.cbor"),
        ("claim", "nobody", "claim.cbor"),
    )
    yield stored(
        "claim-not-pinned",
        "the claim is not the one pinned",
        keep_all,
        ("claim", "nobody", "claim.cbor"),
        ("--all", "--claim", bytes(32).hex()),
    )
    yield from later_store_cases(find_samples)


def later_store_cases(find_samples: Callable[[Run], str]) -> Iterator[Case]:
    """Stores of false runs, and of traces."""
    run = make_run(make_trained_task())
    run.set_record(3, loss=decode_record(run.leaves[2]).loss + 1)
    yield stored(
        "loss", "the loss of a step is false", keep_all, ("replay", "solver", "step 3"), run=run
    )
    run = make_run(make_trained_task())
    run.set_record(3, batch_digest=bytes(32))
    yield stored(
        "batch",
        "the log commits to another batch",
        keep_all,
        ("batches", "solver", "step 3"),
        run=run,
    )

    def put_traces(traces: Traces) -> Callable[[Objects, Run], None]:
        def put(objects: Objects, run: Run) -> None:
            for name, data in traces.files().items():
                objects[name if name.startswith("chunks/") else f"traces/{name}"] = data

        return put

    pin = pin_of(make_run(make_trained_task()))
    algebraic = ("--mode", "algebraic", "--steps", "2", "--claim", pin)
    honest = Traces(make_run(make_trained_task()), (2,))
    yield stored("traces", "an algebraic check", put_traces(honest), None, algebraic)
    product = next(node.name for node in honest.nodes if node.op in PRODUCTS)
    broken_one = Traces(make_run(make_trained_task()), (2,))
    place = broken_one.set(2, product, lambda value: value + 1)
    yield stored(
        "traces-accumulator",
        "an accumulator is one more",
        put_traces(broken_one),
        ("algebraic", "solver", place),
        algebraic,
    )
    yield stored(
        "traces-none",
        "nothing is signed",
        keep_all,
        ("trace", "nobody", "traces/traces.cbor"),
        algebraic,
    )
    without = Traces(make_run(make_trained_task()), (2,))
    yield stored(
        "traces-no-samples",
        "an algebraic check, and the samples are not there",
        lambda objects, run: (put_traces(without)(objects, run), objects.pop(find_samples(run))),
        ("samples", "nobody", "data/samples.bin"),
        algebraic,
    )


def no_run_cases() -> Iterator[Case]:
    """Folders that have no file of a run, and such as have one."""
    files = make_run(make_task()).files()
    others = {name: files[name] for name in files if name.startswith(("checkpoints/", "data/"))}
    about = "the folder has samples and checkpoints, and nothing that says of which run"
    yield Case("usage-no-run", about, others | {"model.onnx": files["model.onnx"]}, "", None, ())
    yield Case(
        "only-log",
        "of a run nothing is there but its log",
        {"log.bin": files["log.bin"]},
        "inconclusive",
        ("claim", "nobody", "claim.cbor"),
        ("--all",),
    )


def language_cases() -> Iterator[Case]:
    """A transformer on windows of tokens: attention, norms, functions by table, dropout, AdamW."""

    def make_language_run() -> Run:
        task = make_tiny_task(
            "dropout", steps=4, batch=2, commit_every=2, checkpoint_every=2, optimizer="adamw"
        )
        return make_run(task)

    yield case("language-honest", "a transformer in training, with dropout", make_language_run())

    def alter_weight(run: Run) -> None:
        name = min(run.states[4])
        value = run.states[4][name].copy()
        value.flat[-1] += 1
        run.set_state(4, name, value)

    yield broken(
        "language-state",
        "its last state has an element of one tensor that is too great by 1",
        alter_weight,
        ("replay", "solver", "steps 3 to 4"),
        run=make_language_run(),
    )
    yield broken(
        "language-batch",
        "a step says that it took the windows of the one before",
        lambda run: run.set_record(3, batch_digest=decode_record(run.leaves[1]).batch_digest),
        ("batches", "solver", "step 3"),
        run=make_language_run(),
    )
    yield broken(
        "language-tokens",
        "a token of the file is another",
        lambda run: run.patch("data/samples.bin", lambda data: b"?" + data[1:], hidden=True),
        ("samples", "nobody", "data/samples.bin"),
        run=make_language_run(),
    )


# --- audits by proofs of whole steps


@cache
def make_proof_srs() -> bytes:
    """An SRS for few rows: circuits of whole steps have more."""
    return kzg_rule.make_srs(TAU, 7)


def make_proof_run(every: int = 1, task: CompiledTask | None = None, **changes: Any) -> Run:
    """A run of the linear model, or of another task, of whose commitments nobody but who has the
    tensors can say what they are of: so any points will do.  ``changes`` are of the task's
    ``proof``."""
    task = make_trained_task() if task is None else task
    proof = ProofSpec("step", hashlib.sha256(make_proof_srs()).digest(), 7, 5, every, (), {})
    proof = replace(proof, **changes)
    state, batch = count_commitments(proof, task.graph, task.spec.data, task.spec.batch)
    proof = replace(proof, initial=(POINT,) * state)
    spec = replace(task.spec, commitments=WITH_KZG, proof=proof)
    run = make_run(replace(task, spec=spec))
    points = [(POINT if step % 2 == 0 else NEGATIVE,) for step in range(spec.steps + 1)]
    run.kzg = [
        encode_kzg_record(
            KzgRecord(
                step,
                points[step - 1] * state,
                (POINT,) * batch,
                points[step] * state,
                *[bytes(32)] * 3,
            )
        )
        for step in range(every, spec.steps + 1, every)
    ]
    return run


PUBLIC: Final = frozenset({"task.cbor", "graph.cbor", "log.bin", "kzg.bin", "claim.cbor"})


def keep_public(files: dict[str, bytes]) -> None:
    """Leave out of a run what an auditor without the tensors has not."""
    for name in files.keys() - PUBLIC:
        del files[name]


def make_bundle(run: Run, step: int, **changes: Any) -> bytes:
    """What is true of the proof of a step, but for ``changes``, and zeros in place of the proof."""
    claim, proof = run.make_claim(), run.spec.proof
    assert proof is not None
    told = BundleHeader(
        kind="step",
        task_id=claim.task_id,
        run_id=claim.run_id,
        claim=compute_claim_digest(claim),
        step=step,
        name="step",
        index=0,
        circuit_name="step",
        circuit=b"c" * 32,
        key=b"k" * 32,
        srs=proof.srs,
        insecure=True,
        k=proof.k,
        ezkl="23.0.5",
        parameters={
            "rate": (40960 if step <= 2 else 20480,),
            "loss": (decode_record(run.leaves[step - 1]).loss,),
        },
    )
    return encode_bundle(ProofBundle(replace(told, **changes), bytes(640)))


def put_bundle(step: int, data: bytes) -> Callable[[dict[str, bytes]], None]:
    """Have a file where the proof of a step is looked for."""
    return lambda files: files.update({f"proofs/step-{step:012d}.cbor": data})


OWNER: Final = Ed25519PrivateKey.from_private_bytes(bytes([9]) * 32)
OWNED: Final = ("--batches", "batches.cbor", "--owner", OWNER.public_key().public_bytes_raw().hex())


def count_batch_columns(run: Run) -> int:
    """How many commitments a batch has in the KZG log."""
    assert run.kzg is not None
    return len(decode_kzg_record(run.kzg[0]).batch)


def sign_points(run: Run, points: Sequence[bytes], **changes: Any) -> SignedBatches:
    """What the owner of the data signs: a point for the columns of the batch of each step that is
    logged, of the task's order but for ``changes``."""
    order, columns = replace(make_order(run.spec), **changes), count_batch_columns(run)
    batches = tuple((point,) * columns for point in points)
    owner = OWNER.public_key().public_bytes_raw()
    unsigned = SignedBatches(order, batches, owner, bytes(64))
    message = domains.compute_domain_hash(domains.BATCHES, cbor.encode(batches_to_map(unsigned)))
    return replace(unsigned, signature=OWNER.sign(message))


def proven(
    name: str,
    about: str,
    run: Run,
    verdict: str,
    reason: tuple[str, str, str],
    arguments: Sequence[str] = ("--steps", "3"),
    *,
    srs: bytes | None = None,
    private: bool = True,
    **more: Any,
) -> Case:
    """A case of an audit by proofs, of step 3 unless told otherwise."""
    if private:
        run.late.insert(0, keep_public)
    mode = ("--mode", "proof", *(["--private"] if private else []), "--srs", "srs.bin")
    extra = {"srs.bin": make_proof_srs() if srs is None else srs, **more.pop("extra", {})}
    return case(name, about, run, verdict, reason, (*mode, *arguments), extra=extra, **more)


def proof_cases() -> Iterator[Case]:
    """Audits by proofs of whole steps, up to where circuits, keys and ezkl itself are needed."""

    def without(name: str, about: str, change: Callable[[Run], object], **more: Any) -> Case:
        run = make_proof_run()
        change(run)
        return proven(f"private-{name}", about, run, "inconclusive", **more)

    yield without(
        "missing",
        "public files alone, and no proof among them",
        lambda run: None,
        reason=("proof", "nobody", "step 3"),
    )
    yield without(
        "log",
        "a byte of the log is another",
        lambda run: run.patch("log.bin", flip),
        reason=("log", "nobody", "log.bin"),
    )
    yield without(
        "unfinished",
        "nothing is claimed yet",
        lambda run: run.drop("claim.cbor"),
        reason=("claim", "", "claim.cbor"),
    )
    yield without(
        "srs",
        "the SRS is of another secret",
        lambda run: None,
        reason=("srs", "nobody", "srs.bin"),
        srs=kzg_rule.make_srs(TAU + 1, 7),
    )
    small = kzg_rule.make_srs(TAU, 6)
    yield proven(
        "private-srs-small",
        "the task names an SRS that is too small for its k",
        make_proof_run(srs=hashlib.sha256(small).digest()),
        "inconclusive",
        ("proof", "", "srs.bin"),
        srs=small,
    )
    run = make_run(make_trained_task())
    yield proven(
        "private-no-kzg",
        "the task logs no KZG commitments: there is nothing to hold a proof against",
        run,
        "inconclusive",
        ("proof", "", "task.commitments"),
    )
    yield proven(
        "private-no-step",
        "of the two steps claimed none has commitments, which every third has",
        cut_run(make_proof_run(3), 2, every=3),
        "inconclusive",
        ("proof", "", ""),
        ("--samples", "1"),
    )
    yield proven(
        "private-no-record",
        "nothing was done of the task",
        cut_run(make_proof_run(), 0),
        "inconclusive",
        ("proofs", "", ""),
        ("--samples", "1"),
    )
    run = make_proof_run()
    run.late.append(put_bundle(3, make_bundle(run, 3)))
    yield proven(
        "private-few-rows",
        "all that is said of the proof is true; but no circuit of a step has so few rows",
        run,
        "inconclusive",
        ("proof", "nobody", "step 3"),
    )
    yield from owner_cases()


def owner_cases() -> Iterator[Case]:
    """Commitments to batches that the data's owner signed; and what is seen without a proof."""

    def owned(
        name: str,
        about: str,
        reason: tuple[str, str, str],
        change: Callable[[SignedBatches], SignedBatches] = lambda batches: batches,
        points: Sequence[bytes] = (POINT,) * 4,
        arguments: Sequence[str] = OWNED,
        **order: Any,
    ) -> Case:
        run = make_proof_run()
        signed = change(sign_points(run, points, **order))
        extra: dict[str, bytes | str] = {"batches.cbor": encode_batches(signed)}
        arguments = ("--steps", "3", *arguments)
        return proven(
            f"private-owner{name}", about, run, "inconclusive", reason, arguments, extra=extra
        )

    missing = ("proof", "nobody", "step 3")
    yield owned("", "the batches are those that the owner signed; the proof is missing", missing)
    other = (*OWNED[:3], SOLVER.hex())
    wrong = ("owner", "nobody", "batches")
    yield owned("-key", "another owner is asked for", wrong, arguments=other)
    yield owned(
        "-signature",
        "the owner's signature does not hold",
        wrong,
        lambda batches: replace(batches, signature=bytes(64)),
    )
    yield owned("-order", "the owner signed for another seed", wrong, seed=4)
    points = (POINT, POINT, POINT, NEGATIVE)
    about = "the batch of step 4 is not what the owner signed"
    yield owned("-batch", about, ("owner", "nobody", "step 4"), points=points)
    run = make_proof_run()
    run.late.append(put_bundle(2, make_bundle(run, 2, claim=bytes(32))))
    yield proven(
        "private-sample",
        "more steps are to be drawn than there are: all are looked at",
        run,
        "inconclusive",
        ("proof", "nobody", "step 1"),
        ("--samples", "9", "--seed", SEED.hex()),
    )
    run = make_proof_run()
    run.set_record(2, batch_digest=decode_record(run.leaves[0]).batch_digest)
    run.late.append(put_bundle(3, make_bundle(run, 3)))
    run.late.append(lambda files: files.update({"model.onnx": b"another"}))
    mode = ("--mode", "proof", "--private", "--srs", "srs.bin", "--steps", "3")
    yield case(
        "private-in-sight",
        "the whole run lies there: a false batch convicts also who is asked for proofs alone, and "
        "another model is no matter",
        run,
        "fraud",
        ("batches", "solver", "step 2"),
        mode,
        extra={"srs.bin": make_proof_srs()},
    )
    yield proven(
        "proof-tensors",
        "an audit by proofs that is not private, and the proof is missing",
        make_proof_run(),
        "inconclusive",
        missing,
        private=False,
    )
    for name, about, arguments in (
        ("steps", "a step that is not there", ("--steps", "5")),
        ("owner", "an owner, and nothing that was signed", ("--steps", "3", *OWNED[2:])),
        ("draw", "steps that are named, and a seed", ("--steps", "3", "--seed", "00")),
        ("none", "no proof is asked for", ("--samples", "0")),
    ):
        run = make_proof_run()
        run.late.append(keep_public)
        given = ("--mode", "proof", "--private", "--srs", "srs.bin", *arguments)
        srs: dict[str, bytes | str] = {"srs.bin": make_proof_srs()}
        yield Case(f"usage-proof-{name}", about, run.files(), "", None, given, srs)


# --- with a proof that holds

WHOLE: Final = Path(__file__).resolve().parent / "whole_step"
"""The files of the circuit of a whole step of the linear model, and a proof of its step 3."""
WHOLE_K: Final = 17
WHOLE_SRS: Final = "srs-17.bin"
"""What cases with a proof that holds call their SRS, which is no file of theirs: it is large."""
WHOLE_SEED: Final = b"\0"
WHOLE_TAU: Final = int(json.loads((WHOLE.parent / "proofs.json").read_text())["srs"]["tau"])
"""Of the same seed."""


@cache
def make_whole_proof_spec() -> ProofSpec:
    """What the task pins of its proofs: the SRS of this seed, and the circuit in ``WHOLE``."""
    pins = json.loads((WHOLE / "pins.json").read_text())
    pin = CircuitPin(bytes.fromhex(pins["circuit"]), bytes.fromhex(pins["key"]))
    srs = bytes.fromhex(pins["srs"])
    return ProofSpec("step", srs, WHOLE_K, 5, 1, (POINT,), {"step": pin})


@cache
def _commit_whole_run() -> Run:
    return commit_run(make_trained_task(), make_whole_proof_spec(), WHOLE_TAU)


def make_whole_run() -> Run:
    """The linear model's run with true commitments, of columns that a proof can be of."""
    run = _commit_whole_run()
    assert run.kzg is not None
    return replace(run, leaves=[*run.leaves], kzg=[*run.kzg], after=[], late=[])


def read_whole_bundle() -> ProofBundle:
    """The bundle of step 3, which is kept as long as it is of this claim: proofs are random."""
    bundle = decode_bundle((WHOLE / "step-3.cbor").read_bytes())
    if bundle.statement.claim != compute_claim_digest(make_whole_run().make_claim()):
        raise SystemExit("the proof is of another claim: --prove makes it anew, in minutes")
    return bundle


@cache
def make_whole_files() -> Path:
    """A folder, for as long as this process lives, with that SRS and the verifying key in a cache:
    made from ``WHOLE``, since a key takes long to be made."""
    folder = Path(mkdtemp(prefix="whole-step-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    srs, pins = folder / WHOLE_SRS, json.loads((WHOLE / "pins.json").read_text())
    place_srs(srs, WHOLE_K, WHOLE_SEED)
    small, identity = cut_srs(srs)
    assert identity.sha256.hex() == pins["srs"]
    pinned = pin(build_step_circuit(make_trained_task().graph, WHOLE_K), WHOLE_K)
    assert pinned.digest.hex() == pins["circuit"]
    stem = f"{pins['circuit']}-{pins['srs']}-{EZKL_VERSION}-verify"
    (folder / "keys" / stem).mkdir(parents=True)
    files = {"settings.json": pinned.settings, "srs": small, "vk": (WHOLE / "vk").read_bytes()}
    entries = {name: FileEntry(len(data), blake3(data).digest()) for name, data in files.items()}
    length = pins["proof_length"]
    files[key_files._MANIFEST] = key_files._encode_manifest(pinned, identity, length, entries)
    write_files(folder / "keys" / stem, files)
    return folder


def prove_whole_step() -> None:
    """Write ``WHOLE`` anew: circuit, key, and a proof of step 3."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        given = ["--srs", str(folder / "srs"), "--cache", str(folder / "keys")]
        made = generate_srs(folder / "srs", WHOLE_K, seed=WHOLE_SEED)
        write_files(folder / "first", make_run(make_trained_task()).files())
        export = ["--export", str(folder / "export")]
        cli.main(["prove", "setup", str(folder / "first"), *given, *export], standalone_mode=False)
        WHOLE.mkdir(exist_ok=True)
        for path in (folder / "export" / "step").iterdir():
            shutil.copy(path, WHOLE)
        index = json.loads((folder / "export" / "index.json").read_text())["circuits"]["step"]
        pins = {name: index[name] for name in ("circuit", "key", "proof_length")}
        text = json.dumps({**pins, "srs": made.sha256.hex()}, indent=1)
        (WHOLE / "pins.json").write_text(text + "\n")
        make_whole_proof_spec.cache_clear()
        _commit_whole_run.cache_clear()
        run = make_whole_run()
        write_files(folder / "run", run.files() | {"hiding.key": structs.encode(SECRETS)})
        step = ["--steps", "3"]
        cli.main(["prove", str(folder / "run"), *step, *given], standalone_mode=False)
        shutil.copy(folder / "run" / "proofs" / "step-000000000003.cbor", WHOLE / "step-3.cbor")


def whole(
    title: str,
    about: str,
    data: bytes | None = None,
    *,
    run: Run | None = None,
    step: int = 3,
    stated: int = 3,
    statuses: Mapping[str, Sequence[str]] = MappingProxyType({}),
    holds: bool = False,
    arguments: Sequence[str] = (),
    link: bytes = b"",
    private: bool = True,
    found: tuple[str, str] = ("proof", "nobody"),
    **changes: Any,
) -> Case:
    """A case with the proof that holds, which is said to be of the step ``stated`` and of other
    things by ``changes``, or with the file ``data`` in its place; ``step`` is asked for.
    ``link``: it is a link to a file of this content.  ``statuses``
    are of checks of the structure that do not pass: status, fault, and the place where it is not
    the check's own.  ``found`` is the check that fails in the end, unless the proof ``holds``; not
    ``private``: the whole run lies there, with what hides its commitments."""
    run, bundle, place = run or make_whole_run(), read_whole_bundle(), f"step {step}"
    told = replace(bundle, statement=replace(bundle.statement, step=stated, **changes))
    if private:
        run.late.insert(0, keep_public)
    links, extra = {}, dict[str, bytes | str]()
    if link:
        links = {f"proofs/step-{step:012d}.cbor": "../../proof.cbor"}
        extra = {"proof.cbor": link}
    else:
        run.late.append(put_bundle(step, data or encode_bundle(told)))
    checks = [
        {"name": rule.name, "status": status, "fault": fault, "place": next(iter(at), rule.place)}
        for rule in STRUCTURE
        if rule.name in PUBLIC_CHECKS or not private
        for status, fault, *at in (statuses.get(rule.name, ("passed", "")),)
    ]
    name, fault = ("proof", "") if holds else found
    status = "passed" if holds else "failed"
    checks.append({"name": "srs", "status": "passed", "fault": "", "place": ""})
    checks.append({"name": name, "status": status, "fault": fault, "place": place})
    failed = [check for check in checks if check["status"] == "failed"]
    first = next((check for check in failed if check["fault"] == "solver"), None)
    first = first or next((check for check in failed if check["fault"] == "task"), None)
    first = first or next(iter(failed), None)
    reason = (first["name"], first["fault"], first["place"]) if first else None
    verdict = "inconclusive" if first else "verified"
    if first and first["fault"] == "solver":
        verdict = "fraud"
    way = ("--private",) if private else ()
    mode = ("--mode", "proof", *way, "--srs", WHOLE_SRS, "--steps", str(step), *arguments)
    more: dict[str, Any] = {"extra": extra, "links": links, "checks": checks}
    kind = "private" if private else "proof"
    return case(f"{kind}-whole-{title}", about, run, verdict, reason, mode, **more)


def whole_cases() -> Iterator[Case]:
    """A proof that holds, and others in its place."""
    bundle = read_whole_bundle()
    good = encode_bundle(bundle)
    kept = compute_claim_digest(make_whole_run().make_claim()).hex()
    accepted = ("--allow-insecure-srs", "--claim", kept)
    about = "a proof that holds, of the step, for a claim that was pinned"
    yield whole("honest", about, good, holds=True, arguments=accepted)
    yield whole("end", "the last byte of the proof is another", flip_proof(bundle))
    yield whole("trailing-byte", "the file of the proof has a byte more", good + b"\0")
    yield whole("link", "the file of the proof is a link", link=good)
    run = make_whole_run()
    run.drop("kzg.bin")
    missing = {"kzg_log": ("failed", "nobody"), "kzg_records": ("not_done", "")}
    yield whole("no-records", "there is no KZG log", good, run=run, statuses=missing)
    run = make_whole_run()
    assert run.kzg is not None
    third, fourth = (decode_kzg_record(leaf) for leaf in run.kzg[2:4])
    run.kzg[2] = encode_kzg_record(replace(third, after=third.batch))
    run.kzg[3] = encode_kzg_record(replace(fourth, before=third.batch))
    claim = compute_claim_digest(run.make_claim())
    about = "the log has another state after the step than the one that the proof is of"
    yield whole("after", about, run=run, claim=claim)
    yield from statement_cases()


def statement_cases() -> Iterator[Case]:
    """The proof that holds, said to be of something else."""
    about = "said to be by a circuit that is none of whole steps"
    yield whole("circuit-name", about, circuit_name="linear")
    about = "said to be by a circuit of whole steps that the task does not pin"
    yield whole("not-pinned", about, circuit_name="step-clamps")
    yield whole("step", "the proof of step 3 lies where that of step 2 is looked for", step=2)
    yield whole("statement", "said to be of a statement of tiles", kind="tile")
    yield whole("name", "said to be of another statement", name="tile")
    yield whole("index", "said to be the second statement of the step", index=1)
    yield whole("claim", "said to be made for the claim of another", claim=bytes(32))
    yield whole("insecure", "the SRS is said to be of a ceremony", insecure=False)
    yield whole("ezkl", "said to be of another version of ezkl", ezkl="23.0.4")
    yield whole("key", "said to be for another verifying key than the task's", key=bytes(32))
    loss = decode_record(make_whole_run().leaves[2]).loss
    true = {"rate": (20480,), "loss": (loss,)}
    about = "of a loss that is one less than that in the log"
    yield whole("loss", about, parameters={**true, "loss": (loss - 1,)})
    about = "of the learning rate of the steps before"
    yield whole("rate", about, parameters={**true, "rate": (40960,)})
    yield whole("parameters", "of one parameter more", parameters={**true, "x": ()})


# --- what blind readers settled without a vector (docs/adr/0035-blind-readers.md)

TOKEN: Final = FOLDER.parent / "audit_token.json"
"""The claim's digest, the root certificate and the token of a run whose task names a beacon."""


def make_stamped_run(root: bytes) -> Run:
    """A run of a task that names quicknet, a delay, and the authority with this root (DER)."""
    chain = bytes.fromhex(generate_beacon.DRAND["chains"]["quicknet"]["hash"])
    rule = BeaconRule(chain, generate_beacon.DELAY, (hashlib.sha256(root).digest(),))
    task = make_task()
    return make_run(replace(task, spec=replace(task.spec, beacon=rule)))


def stamp_claim() -> None:
    """Write ``TOKEN`` anew, by a new authority of the tests' own."""
    authority = make_authority("a clock")
    root = authority.root.public_bytes(Encoding.DER)
    claim = compute_claim_digest(make_stamped_run(root).make_claim())
    token = authority.stamp(claim, datetime.fromtimestamp(generate_beacon.DUE, UTC))
    told = {"claim": claim.hex(), "root": root.hex(), "token": token.hex()}
    TOKEN.write_text(json.dumps(told, indent=1) + "\n")


def beacon_cases() -> tuple[Case, Case]:
    """A sample that a round of drand draws, for a claim that was there before it; and the same
    without the token that shows that it was.  The token is kept as long as it is of this claim: it
    is signed at random."""
    kept = {key: bytes.fromhex(text) for key, text in json.loads(TOKEN.read_text()).items()}
    run = make_stamped_run(kept["root"])
    if compute_claim_digest(run.make_claim()) != kept["claim"]:
        raise SystemExit("the token is of another claim: --stamp makes it anew")
    root = x509.load_der_x509_certificate(kept["root"]).public_bytes(Encoding.PEM)
    served = (json.dumps(generate_beacon.get_round("quicknet"), indent=1) + "\n").encode()
    files: dict[str, bytes | str] = {"round.json": served}
    dated = {"claim.tsr": kept["token"], "root.pem": root}
    named = ("--beacon", f"drand:{generate_beacon.ROUND}", "--beacon-file", "round.json")
    drawn = ("--samples", "1", "--claim", pin_of(run), *named)
    honest = case(
        "beacon-honest",
        "one of three segments, drawn by a round of drand: the task names chain, delay and "
        "authority, and the token shows that the claim came first",
        run,
        arguments=(*drawn, "--token", "claim.tsr", "--authority", "root.pem"),
        extra=files | dated,
    )
    about = "the same without a token: nothing shows that the claim came first"
    undated = case("beacon-no-token", about, run, "conditional", arguments=drawn, extra=files)
    return honest, undated


def settled_cases() -> Iterator[Case]:
    """Tensors of several pieces, algebraic audits that end conditional, a draw by a beacon."""
    pieces = make_run(make_task(2, weights=[i % 251 - 125 for i in range((1 << 18) + 257)]))
    yield stored("pieces", "a tensor of the state is of two pieces", keep_all, None, run=pieces)

    def withhold(objects: Objects, run: Run) -> None:
        del run
        objects.pop(max(objects, key=lambda name: len(objects[name])))

    about = "the first of two pieces of a tensor is not there"
    place = ("checkpoints", "nobody", name_of(0))
    yield stored("pieces-withheld", about, withhold, place, run=pieces)
    run = make_run(make_trained_task())
    algebraic = ("--mode", "algebraic", "--steps", "2")
    traces = {f"traces/{name}": data for name, data in Traces(run, (2,)).files().items()}
    run.late.append(lambda files: files.update(traces))
    about = "a step that is named, of a claim that was not pinned before"
    yield case("algebraic-named", about, run, "conditional", arguments=algebraic)
    honest, undated = beacon_cases()
    yield honest
    yield undated
    product = next(node.name for node in run.graph.nodes if node.op in PRODUCTS)
    places: list[str] = []
    found = traced(
        "derived-accumulator",
        "an accumulator is one more; the vectors follow from what is signed",
        lambda traces: places.append(traces.set(2, product, lambda value: value + 1)),
        None,
        ("--steps", "2", "--derived"),
    )
    yield replace(found, verdict="fraud", reason=("algebraic", "solver", places[0]))
    yield case(
        "algebraic-challenge-known",
        "the randomness of the vectors is given, for traces that were not pinned before",
        run,
        "conditional",
        arguments=(*algebraic, "--claim", pin_of(run), "--challenge", SEED.hex()),
    )


def ninth_cases() -> Iterator[Case]:
    """Stores with KZG commitments, with samples of the auditor's own that are others, and what is
    bad usage of a store and of a beacon."""
    srs = ("--srs", "srs.bin")
    run, extra = make_committed_run(hiding=None)
    keys = structs.encode(list_keys(run, range(1, run.spec.steps + 1)))
    told = {**extra, "keys.cbor": keys}
    every = ("--all", *srs, "--hiding", "keys.cbor")
    about = "KZG commitments, of a store"
    yield stored("kzg", about, keep_all, None, every, run=run, extra=told)
    about = "no segment is asked for, so that nobody looks at the initial state"
    alone = ("--samples", "0", *srs)
    yield stored("kzg-structure", about, keep_all, None, alone, run=run, extra=extra)
    false, more = make_committed_run(lambda *given: given[2], lambda v: [v[0] + 1, *v[1:]])
    about = "the task commits to another initial state, and no segment is asked for"
    yield stored("kzg-initial-structure", about, keep_all, None, alone, run=false, extra=more)
    place = ("kzg", "task", "task.proof.initial")
    about = "the task commits to another initial state than its own"
    yield stored("kzg-initial", about, keep_all, place, ("--all", *srs), run=false, extra=more)
    secrets = structs.encode(SECRETS)
    yield stored(
        "kzg-secrets",
        "what hides the commitments lies in the store, where nobody asks for it",
        lambda objects, run: objects.update({"hiding.key": secrets}),
        ("kzg", "", "step 1"),
        ("--all", *srs),
        run=make_committed_run()[0],
        extra=make_committed_run()[1],
    )
    run = make_run(make_trained_task())
    about = "the auditor has other samples than the store, whose are right"
    yield stored(
        "samples-brought-another",
        about,
        keep_all,
        ("samples", "nobody", "samples.bin"),
        ("--all", "--data", "samples.bin"),
        extra={"samples.bin": flip(run.samples)},
    )

    def refused(name: str, about: str, arguments: Sequence[str], **more: Any) -> Case:
        return replace(stored(name, about, keep_all, None, arguments, **more), verdict="")

    about = "the claim that is pinned is that of the store, a folder here"
    yield refused("usage-own-claim", about, ("--all", "--claim", "store/claim.cbor"))
    proof = ("--mode", "proof", *srs)
    yield refused("usage-proof", "proofs are asked for", proof, extra={"srs.bin": b"?"})
    files: dict[str, bytes | str] = dict.fromkeys(("a.tsr", "a.pem", "a.json"), b"?")
    small = make_run(make_task())
    for name, arguments in {
        "token": ("--token", "a.tsr", "--authority", "a.pem"),
        "chain": ("--chain", "a.json"),
        "file": ("--beacon-file", "a.json"),
    }.items():
        about = "something of a beacon is given, and no beacon"
        asked = ("--all", *arguments)
        yield case(f"usage-beacon-{name}", about, small, "", None, asked, extra=files)


def eleventh_cases() -> Iterator[Case]:
    """What an eleventh round of readers asked."""
    tokens = np.zeros((2 << 17) + 700, "<u8")  # of 2^17 to a piece
    near = np.frombuffer(make_tokens(1400, 7, dtype="u64").table, "<u8")
    tokens[:700], tokens[-700:] = near[:700], near[700:]
    table = np.frombuffer(tokens.tobytes(), np.uint8)
    windows = Windows("u64", len(tokens), CONTEXT, stride=5, shift=2 << 17)
    data = Samples(describe_windows(windows, compute_tensor_digest(table)), table)
    run = make_run(compile_model(make_bigram_onnx(), data, Ids(), 4, 8192))

    def withhold(objects: Objects, run: Run) -> None:
        pieces = objects[f"lists/{run.spec.data.root.hex()}"]
        assert len(pieces) == 3 * 32
        for name in (f"chunks/{pieces[32:64].hex()}", f"lists/{pieces[32:64].hex()}"):
            objects.pop(name)

    about = "the second of three pieces of the tokens, between all x and all y, is not there"
    yield stored("tokens-between-withheld", about, withhold, None, run=run)


def thirteenth_cases() -> Iterator[Case]:
    """What a thirteenth round of readers asked."""
    run, extra = make_committed_run(hiding=None)
    for name, about, more in (
        ("folder", "a folder lies in the run under the name of the file", "run/hiding.key/key"),
        ("link", "a link to the right file lies in the run", "keys.cbor"),
    ):
        yield case(
            f"kzg-hidden-{name}",
            about,
            run,
            "inconclusive",
            ("kzg", "", ""),
            ("--all", "--srs", "srs.bin"),
            links={"hiding.key": "../keys.cbor"} if name == "link" else {},
            extra={**extra, more: structs.encode(SECRETS)},
        )
    run, extra = make_committed_run()
    yield broken(
        "kzg-nothing-asked-no-samples",
        "no segment is asked for, and what one would need is not there",
        lambda run: run.drop("data/samples.bin", hidden=True),
        ("samples", "nobody", "data/samples.bin"),
        ("--samples", "0", "--srs", "srs.bin"),
        run,
        extra=extra,
    )
    run, extra = make_committed_run(hiding=None)
    every = list_keys(run, range(1, run.spec.steps + 1))
    false = HidingKey("state", 0, b"k" * 32)
    told = sorted([*every.keys, false], key=lambda key: (key.kind, key.index))
    yield case(
        "honest-kzg-disclosed-zero",
        "the auditor has the keys of all steps, and a false one of the initial state",
        run,
        arguments=("--all", "--srs", "srs.bin", "--hiding", "keys.cbor"),
        extra={**extra, "keys.cbor": structs.encode(replace(every, keys=tuple(told)))},
    )


def flip_proof(bundle: ProofBundle) -> bytes:
    """The bundle with the lowest bit of the last byte of its proof changed."""
    return encode_bundle(replace(bundle, proof=flip(bundle.proof)))


def open_cases() -> Iterator[Case]:
    """A proof of a run that lies there whole: the step is done again, and what the log commits to
    is held against the tensors, before the proof itself is looked at."""

    def tell(run: Run) -> Run:
        run.late.append(lambda files: files.update({"hiding.key": structs.encode(SECRETS)}))
        return run

    def opened(title: str, about: str, run: Run | None = None, **more: Any) -> Case:
        run = tell(make_whole_run() if run is None else run)
        claim = compute_claim_digest(run.make_claim())
        return whole(title, about, run=run, private=False, claim=claim, **more)

    kept = compute_claim_digest(make_whole_run().make_claim()).hex()
    accepted = ("--allow-insecure-srs", "--claim", kept)
    about = "a proof that holds, of a run that lies there whole, for a claim that was pinned"
    yield opened("honest", about, holds=True, arguments=accepted)
    run = make_whole_run()
    loss = decode_record(run.leaves[2]).loss + 1
    run.set_record(3, loss=loss)
    about = "the loss of the step is false in the log, and in what the proof is said to be of"
    parameters = {"rate": (20480,), "loss": (loss,)}
    yield opened("replay", about, run, found=("replay", "solver"), parameters=parameters)
    run = make_whole_run()
    assert run.kzg is not None
    third, fourth = (decode_kzg_record(leaf) for leaf in run.kzg[2:4])
    run.kzg[2] = encode_kzg_record(replace(third, after=third.batch))
    run.kzg[3] = encode_kzg_record(replace(fourth, before=third.batch))
    about = "the log commits to another state after the step than the tensors are"
    yield opened("kzg", about, run, found=("kzg", "solver"))
    run = make_whole_run()
    assert run.kzg is not None
    run.kzg[2] = encode_kzg_record(replace(third, after_key=bytes(32)))
    run.kzg[3] = encode_kzg_record(replace(fourth, before_key=bytes(32)))
    about = "the log says that another key hides the state after the step"
    yield opened("key-id", about, run)
    run = commit_run(
        make_trained_task(),
        make_whole_proof_spec(),
        WHOLE_TAU,
        initial=lambda values: [values[0] + 1, *values[1:]],
    )
    first = {"rate": (40960,), "loss": (decode_record(run.leaves[0]).loss,)}
    about = "the task, and with it the log, commits to another initial state than its own"
    task_id = run.make_claim().task_id
    told: dict[str, Any] = {"parameters": first, "task_id": task_id}
    yield opened("kzg-initial", about, run, step=1, stated=1, found=("kzg", "task"), **told)
    run = make_whole_run()
    run.drop("data/samples.bin", hidden=True)
    missing = {"samples": ("failed", "nobody"), "batches": ("not_done", "")}
    yield opened("no-samples", "nobody has the samples", run, statuses=missing)
    run = make_whole_run()
    run.drop(name_of(0), hidden=True)
    lost = {"checkpoints": ("failed", "nobody", name_of(0))}
    about = "no checkpoint from before the step is there"
    yield opened("no-checkpoint", about, run, step=1, stated=1, statuses=lost, parameters=first)
    run = make_whole_run()
    claim = compute_claim_digest(run.make_claim())
    about = "what hides the commitments is not told"
    yield whole("hidden", about, run=run, private=False, claim=claim)


def condition_cases() -> Iterator[Case]:
    """Conditions of the structure that no case above breaks by itself."""
    yield broken(
        "graph-trailing-byte",
        "graph.cbor has one byte more",
        lambda run: run.patch("graph.cbor", lambda data: data + b"\0", hidden=True),
        ("graph", "nobody", "graph.cbor"),
    )
    run = make_kzg_run()
    leaves = [] if run.kzg is None else [*run.kzg]
    shorter = KZG_HEADER + b"".join(map(frame, leaves[:-1]))
    yield broken(
        "kzg-log-shorter",
        "kzg.bin has a record less",
        lambda run: run.patch("kzg.bin", lambda data: shorter, hidden=True),
        ("kzg_log", "nobody", "kzg.bin"),
        run=run,
    )
    other = encode_kzg_record(replace(decode_kzg_record(leaves[1]), batch=(NEGATIVE,)))
    changed = KZG_HEADER + b"".join(map(frame, [leaves[0], other, *leaves[2:]]))
    yield broken(
        "kzg-log-another-record",
        "a record of kzg.bin is not the one signed",
        lambda run: run.patch("kzg.bin", lambda data: changed, hidden=True),
        ("kzg_log", "nobody", "kzg.bin"),
        run=make_kzg_run(),
    )
    run = make_kzg_run()
    assert run.kzg is not None
    run.kzg[1] = encode_kzg_record(make_record(2, bytes(64), (POINT,), POINT))
    yield broken(
        "kzg-before",
        "a commitment to the state before a step is 64 zeros",
        lambda run: None,
        ("kzg_records", "solver", "step 2"),
        run=run,
    )
    yield broken(
        "checkpoint-initial-counter",
        "the task's initial state counts from 1",
        lambda run: run.set_state(0, "step", np.asarray(1, np.int64)),
        ("checkpoints", "task", name_of(0)),
        ("--samples", "0"),
    )

    def keep_back(traces: Traces) -> None:
        index = traces.run.graph.states()["param/w"].node
        traces.chunks.pop(traces.leaves[2][index])

    yield traced(
        "state-kept-back",
        "the bytes of a state that the interval begins with are not there",
        keep_back,
        ("algebraic", "nobody", "step 2"),
    )


def rows_cases() -> Iterator[Case]:
    """Algebraic audits that look at one row, of 1 KiB, of each output of a node with a tensor of
    more than 1000 bytes."""
    step, product = 2, ""

    def by_rows(
        name: str, about: str, spoil: Callable[[Traces], str], fault: str, unit: int
    ) -> Case:
        run = make_run(make_trained_task(512))
        traces = Traces(run, (step,))
        for value in traces.values.values():
            traces.put(value)
        place = spoil(traces)
        digest = compute_traces_digest(traces.say())
        domain = f"algebraic rows of step {step}, node {traces.find(product)}"
        units = traces.values[step, product].nbytes // 1024
        seeds = (bytes([number]) for number in range(256))
        seed = next(seed for seed in seeds if draw(seed, digest, domain, units, 1) == (unit,))
        run.late.append(
            lambda files: files.update({f"traces/{n}": data for n, data in traces.files().items()})
        )
        verdict = {"solver": "fraud", "nobody": "inconclusive", "": "verified"}[fault]
        reason = ("algebraic", fault, place) if fault else None
        asked = ("--mode", "algebraic", "--steps", str(step), "--rows", "1", "--rows-above", "1000")
        held = ("--challenge", seed.hex(), "--trace-claim", digest.hex(), "--claim", pin_of(run))
        return case(f"algebraic-rows-{name}", about, run, verdict, reason, (*asked, *held))

    nodes = make_trained_task().graph.nodes
    product = next(node.name for node in nodes if node.op in PRODUCTS)
    yield by_rows("honest", "one row of each large value is looked at", lambda traces: "", "", 0)
    yield by_rows(
        "accumulator",
        "an accumulator is one more, in the row that is drawn",
        lambda traces: traces.set(step, product, lambda value: value + 1),
        "solver",
        3,
    )

    def keep_back(traces: Traces) -> str:
        traces.chunks.pop(traces.leaves[step][traces.find(product)])
        return f"step {step}"

    about = "the value of which a row is drawn is not there"
    yield by_rows("kept-back", about, keep_back, "nobody", 0)


# --- audits by tiles (docs/tiling.md, section 7)

TILE_K: Final = 15
TILE_SRS: Final = "srs-15.bin"
"""What cases in which commitments are made call their SRS, of ``WHOLE_SEED``: no file of theirs."""
TILE_DRAW: Final = b"first draw"
"""The randomness of the draw of a step; that of statements comes into being after it."""


@cache
def make_tile_srs() -> Path:
    """That SRS, in a folder for as long as this process lives."""
    folder = Path(mkdtemp(prefix="tiles-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place_srs(folder / TILE_SRS, TILE_K, WHOLE_SEED)
    return folder / TILE_SRS


def find_srs(name: str) -> Path | None:
    """The SRS file of cases that is no file of theirs; None for any other name."""
    if name == TILE_SRS:
        return make_tile_srs()
    return make_whole_files() / WHOLE_SRS if name == WHOLE_SRS else None


class Tiles:
    """What a solver signs of the tiles of a step that is drawn, and its answer to a statement that
    is drawn then: true but for the proof, and but for the tiles, which are all one point."""

    def __init__(self, srs: bytes | None = None, **proof: Any) -> None:
        """``srs`` is the digest of the file that the task names: that of ``make_proof_srs`` unless
        given.  ``proof`` is what else the task has otherwise."""
        named: dict[str, Any] = proof if srs is None else {**proof, "srs": srs}
        self.run = make_proof_run(circuit="tiles", k=TILE_K, **named)
        self.tiling = Tiling(self.run.graph)
        self.tree = MerkleTree(domains.TILES)
        for _ in range(self.tiling.leaf_count):
            self.tree.append(POINT)
        claim = self.run.make_claim()
        (self.step,) = draw_tile_steps(TILE_DRAW, claim, 1, 1)
        count = self.tree.size
        trace = TileTrace(self.step, self.tree.root(count), count)
        self.said = TraceClaim(compute_claim_digest(claim), TILE_DRAW, (trace,))

    @property
    def second(self) -> bytes:
        """A randomness that draws a statement about tiles of the trace, of what is signed now."""
        seeds = (bytes([number]) for number in range(256))
        return next(seed for seed in seeds if self.find_leaves(self.draw(seed)[1]))

    def draw(self, second: bytes) -> tuple[TileTrace, int]:
        """The statement drawn."""
        ((trace, number),) = draw_statements(second, self.said, self.tiling, 1)
        return trace, number

    def find_leaves(self, number: int) -> list[int]:
        """The leaves that a statement is about."""
        facts = StepFacts(self.step, decode_record(self.run.leaves[self.step - 1]).loss)
        return find_leaves(self.tiling, self.tiling.statement(number, facts))

    def sign(self, key: Ed25519PrivateKey = KEY) -> SignedTraceClaim:
        """What is signed, as it stands."""
        return SignedTraceClaim(self.said, key.sign(compute_trace_claim_digest(self.said)))

    def answer(self) -> tuple[str, TileProof]:
        """The file that is asked for, and what lies there."""
        trace, number = self.draw(self.second)
        openings = tuple(
            TileOpening(leaf, POINT, tuple(self.tree.inclusion_path(leaf, self.tree.size)))
            for leaf in self.find_leaves(number)
        )
        name = f"proofs/tile-{trace.step:012d}-{number:012d}.cbor"
        return name, TileProof(trace.step, number, openings, bytes(32))


def tiled(
    name: str,
    about: str,
    tiles: Tiles,
    files: Mapping[str, bytes],
    reason: tuple[str, str, str],
    arguments: Sequence[str] = (),
    srs: str = "srs.bin",
    **more: Any,
) -> Case:
    """A case of an audit by tiles, by public files alone, with these ``files`` of proofs."""
    run = tiles.run
    run.late.insert(0, keep_public)
    run.late.append(lambda out: out.update(files))
    draws = ("--trace-seed", TILE_DRAW.hex(), "--trace-samples", "1")
    second = ("--seed", tiles.second.hex(), "--samples", "1")
    mode = ("--mode", "proof", "--private", "--srs", srs, *draws, *second, *arguments)
    extra: dict[str, bytes | str] = {} if srs == TILE_SRS else {"srs.bin": make_proof_srs()}
    verdict = "fraud" if reason[1] == "solver" else "inconclusive"
    extra |= more.pop("extra", {})
    return case(f"tiles-{name}", about, run, verdict, reason, mode, extra=extra, **more)


SIGNED: Final = "proofs/traces.cbor"
"""Where what is signed of tiles lies."""


def tile_cases() -> Iterator[Case]:
    """Audits by tiles, up to where circuits and keys are needed."""
    place = ("tiles", "nobody", SIGNED)
    yield tiled("none", "nothing is signed of tiles", Tiles(), {}, place)
    tiles = Tiles()
    tiles.run.drop("kzg.bin")
    signed = structs.encode(tiles.sign())
    missing = ("kzg_log", "nobody", "kzg.bin")
    yield tiled("no-records", "there is no KZG log", tiles, {SIGNED: signed}, missing)
    yield refused_by_tiles()
    tiles = Tiles()
    signed = structs.encode(tiles.sign())
    about = "the file of what is signed has a byte more"
    yield tiled("trailing-byte", about, tiles, {SIGNED: signed + b"\0"}, place)
    tiles = Tiles()
    tiles.said = replace(tiles.said, claim=bytes(32))
    files = {SIGNED: structs.encode(tiles.sign())}
    yield tiled("other-claim", "what is signed is of another claim", tiles, files, place)
    tiles = Tiles()
    about = "a bit of the signature is another"
    files = {SIGNED: flip(structs.encode(tiles.sign()))}
    yield tiled("signature", about, tiles, files, place)
    yield from tile_pin_cases()
    tiles = Tiles()
    files = {SIGNED: structs.encode(tiles.sign())}
    about = "the SRS that the task names is too small for its k"
    yield tiled("srs-small", about, tiles, files, ("tiles", "nobody", "srs.bin"))
    yield from tile_answer_cases()
    tiles = Tiles()
    again = ("--seed", TILE_DRAW.hex())
    asked = tiled("usage", "both draws have one randomness", tiles, {}, place, again)
    yield replace(asked, name="usage-tiles-one-draw", verdict="", reason=None)


def refused_by_tiles() -> Case:
    """A legal graph that does not fall into statements."""
    tiles = Tiles()
    srs = hashlib.sha256(make_tile_srs().read_bytes()).digest()
    tiles.run = make_proof_run(task=make_task(), circuit="tiles", k=TILE_K, srs=srs)
    claim = tiles.run.make_claim()
    (step,) = draw_tile_steps(TILE_DRAW, claim, 1, 1)
    (trace,) = tiles.said.traces
    traces = (replace(trace, step=step),)
    tiles.said = replace(tiles.said, claim=compute_claim_digest(claim), traces=traces)
    return tiled(
        "refused-graph",
        "the graph is legal, and has a sum of squares that no circuit holds",
        tiles,
        {SIGNED: structs.encode(tiles.sign())},
        ("tiles", "nobody", "graph.cbor"),
        srs=TILE_SRS,
    )


def tile_pin_cases() -> Iterator[Case]:
    """An auditor who kept what was signed of tiles before the second draw."""
    pinned = ("--trace-claim", "kept.cbor")
    tiles, kept = Tiles(), Tiles()
    (trace,) = kept.said.traces
    another = replace(kept.said, traces=(replace(trace, root=bytes(32)),))
    other_step = replace(trace, step=trace.step % 4 + 1)
    elsewhere = replace(kept.said, traces=(other_step,))
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
    for name, about, fault, said, key in (
        ("contradicted", "the auditor kept another tree of the step", "solver", another, KEY),
        ("pin-of-another-key", "what was kept is signed by another", "nobody", another, stranger),
        ("pin-of-another-step", "what was kept is of another step", "nobody", elsewhere, KEY),
    ):
        tiles, kept.said = Tiles(), said
        yield tiled(
            name,
            about,
            tiles,
            {SIGNED: structs.encode(tiles.sign())},
            ("tiles", fault, SIGNED),
            pinned,
            extra={"kept.cbor": structs.encode(kept.sign(key))},
        )
    tiles = Tiles()
    yield tiled(
        "pin-another",
        "what is signed has not the digest pinned",
        tiles,
        {SIGNED: structs.encode(tiles.sign())},
        ("tiles", "nobody", SIGNED),
        ("--trace-claim", bytes(32).hex()),
    )


def tile_answer_cases() -> Iterator[Case]:
    """Answers: what is asked for is missing, or is of something else."""
    srs = hashlib.sha256(make_tile_srs().read_bytes()).digest()
    shown = ("tiles", "nobody", "proofs")

    def answered(
        name: str,
        about: str,
        *,
        reason: tuple[str, str, str] = shown,
        said: Callable[[TraceClaim], TraceClaim] = lambda said: said,
        proof: Callable[[TileProof], TileProof | bytes | None] = lambda proof: proof,
        **spec: Any,
    ) -> Case:
        tiles = Tiles(srs, **spec)
        tiles.said = said(tiles.said)
        files = {SIGNED: structs.encode(tiles.sign())}
        path, answer = tiles.answer()
        given = proof(answer)
        if given is not None:
            files[path] = given if isinstance(given, bytes) else structs.encode(given)
        if reason[2] == "":
            reason = (*reason[:2], path)
        return tiled(name, about, tiles, files, reason, srs=TILE_SRS)

    own = ("tiles", "nobody", "")
    yield answered("unanswered", "the answer is not there", reason=own, proof=lambda proof: None)
    yield answered(
        "answer-trailing-byte",
        "the file of the answer has a byte more",
        reason=own,
        proof=lambda proof: structs.encode(proof) + b"\0",
    )
    yield answered(
        "another-draw",
        "what is signed answers another draw of steps",
        said=lambda said: replace(said, randomness=b"another"),
    )
    yield answered(
        "count",
        "the tree is said to have a leaf more",
        said=lambda said: replace(
            said, traces=(replace(said.traces[0], count=said.traces[0].count + 1),)
        ),
    )
    yield answered(
        "another-statement",
        "the answer is to the statement after the one drawn",
        proof=lambda proof: replace(proof, statement=proof.statement + 1),
    )
    yield answered(
        "no-opening",
        "a tile that the statement is about is not opened",
        proof=lambda proof: replace(proof, openings=proof.openings[1:]),
    )
    yield answered(
        "another-tile",
        "a tile that is opened is not in the tree",
        proof=lambda proof: replace(
            proof,
            openings=(replace(proof.openings[0], commitment=NEGATIVE), *proof.openings[1:]),
        ),
    )
    yield no_point_of_tiles(srs)
    pins = {"mul": CircuitPin(bytes(32), bytes(32))}
    yield answered(
        "circuit-not-pinned",
        "the statement is of a circuit that the task does not pin",
        circuits=pins,
    )


def no_point_of_tiles(srs: bytes) -> Case:
    """A tree over what is no point, signed."""
    tiles = Tiles(srs)
    tiles.tree = MerkleTree(domains.TILES)
    for _ in range(tiles.tiling.leaf_count):
        tiles.tree.append(bytes(64))
    (trace,) = tiles.said.traces
    root = tiles.tree.root(tiles.tree.size)
    tiles.said = replace(tiles.said, traces=(replace(trace, root=root),))
    path, proof = tiles.answer()
    openings = tuple(replace(opening, commitment=bytes(64)) for opening in proof.openings)
    answer = structs.encode(replace(proof, openings=openings))
    files = {SIGNED: structs.encode(tiles.sign()), path: answer}
    about = "a tile is the point at infinity"
    return tiled("infinity", about, tiles, files, ("tiles", "nobody", "proofs"), srs=TILE_SRS)


GROUPS: Final = (
    honest_cases,
    claim_cases,
    task_cases,
    legality_cases,
    log_cases,
    checkpoint_cases,
    replay_cases,
    kzg_cases,
    usage_cases,
    kept_kzg_cases,
    order_cases,
    legality_order_cases,
    later_cases,
    committed_cases,
    remainder_cases,
    hidden_cases,
    no_run_cases,
    algebraic_cases,
    store_cases,
    language_cases,
    proof_cases,
    whole_cases,
    settled_cases,
    condition_cases,
    open_cases,
    tile_cases,
    rows_cases,
    ninth_cases,
    eleventh_cases,
    thirteenth_cases,
)
"""New cases come last: which are kept follows from the order."""


def place_of_case(index: int) -> str:
    """Every third case is in the folder that can be kept back."""
    return "kept" if index % 3 == 2 else "open"


def place_of(where: str, folder: Path) -> str:
    """What auditors must agree on of a place: a file, a step, a node, a field; the auditor's own
    files by their names in ``folder``."""
    return where.split(": ", maxsplit=1)[0].removeprefix(f"{folder}/")


def list_checks(report: Any, folder: Path) -> list[dict[str, str]]:
    """The checks of a report, in order, without words."""
    return [
        {
            "name": check["name"],
            "status": check["status"],
            "fault": check["fault"],
            "place": place_of(check["where"], folder),
        }
        for check in report["checks"]
    ]


def audit(folder: Path, arguments: Sequence[str], engine: str = "numpy") -> Any:
    """What ``vtrain verify --json`` says of a case; its files are named from its folder.  None
    where the question is refused as bad usage."""
    own = (".cbor", ".bin", ".json", ".tsr", ".pem")
    here = [str(folder / item) if item.endswith(own) else item for item in arguments]
    for index, name in enumerate(arguments):
        if (srs := find_srs(name)) is not None:
            here[index] = str(srs)
            here += ["--cache", str(srs.parent / "keys")]
    store = f"file://{folder.resolve()}/store"
    run = str(folder / "run") if (folder / "run").exists() else store
    command = ["verify", run, "--engine", engine, "--threads", "1", "--json"]
    result = CliRunner().invoke(cli, [*command, *here], standalone_mode=False)
    if result.return_value == EXIT_USAGE or isinstance(result.exception, click.UsageError):
        return None
    report = json.loads(result.stdout)
    assert result.return_value == report["exit_code"]
    return report


REFUSED: Final[Mapping[str, Any]] = {"verdict": "", "reason": None, "checks": [], "replayed": []}
"""In place of a report, where the question is bad usage."""


def write_files(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Files by their names, a text being the target of a link."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, str):
            path.symlink_to(data)
        else:
            path.write_bytes(data)


def make_case(item: Case) -> dict[str, bytes | str]:
    """Every file of a case.  The verdict and what it rests on are given by hand, and compared; the
    list of all checks is the auditor's own."""
    run = item.place
    out: dict[str, bytes | str] = {f"{run}/{name}": data for name, data in item.files.items()}
    out |= {f"{run}/{name}": target for name, target in item.links.items()}
    out |= item.extra
    reason = item.reason and dict(zip(("check", "fault", "place"), item.reason, strict=True))
    checks, replayed = item.checks, [{"first": 3, "last": 3}] if item.checks and not reason else []
    if checks is None:
        checks, replayed = ask(item, out, reason)
    expected = {
        "about": item.about,
        "arguments": list(item.arguments),
        "verdict": item.verdict or None,
        "reason": reason,
        "checks": checks,
        "replayed": replayed,
    }
    out["expected.json"] = (json.dumps(expected, indent=1, ensure_ascii=True) + "\n").encode()
    return out


def ask(
    item: Case, files: Mapping[str, bytes | str], reason: dict[str, str] | None
) -> tuple[list[dict[str, str]], Any]:
    """The auditor's checks and the steps replayed, where the verdict is the one that is due."""
    with TemporaryDirectory() as folder:
        write_files(Path(folder), files)
        report = audit(Path(folder), item.arguments) or REFUSED
        checks = list_checks(report, Path(folder))
    found = report["reason"]
    if found is not None:
        place = place_of(found["where"], Path(folder))
        found = {"check": found["name"], "fault": found["fault"], "place": place}
    if (report["verdict"], found) != (item.verdict, reason):
        raise SystemExit(f"{item.name}: {report['verdict']}, {found}; due is {reason}")
    return checks, report["replayed"]


def make_files() -> dict[str, bytes | str]:
    """Every file below ``audit/`` by its name; a text is the target of a link."""
    cases = [item for group in GROUPS for item in group()]
    assert len({item.name for item in cases}) == len(cases)
    return {
        f"{place_of_case(index)}/{item.name}/{name}": data
        for index, item in enumerate(cases)
        for name, data in make_case(item).items()
    }


def read_files() -> dict[str, bytes | str]:
    """What there is below ``audit/``, in the form of :func:`make_files`."""
    return {
        path.relative_to(FOLDER).as_posix(): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in FOLDER.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def list_stale() -> list[str]:
    """The files below ``audit/`` that are not what :func:`make_files` gives."""
    made, found = make_files(), read_files()
    return sorted(name for name in made.keys() | found.keys() if made.get(name) != found.get(name))


def main() -> int:
    """Write or compare every folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--prove", action="store_true", help="write whole_step/ anew, in minutes")
    parser.add_argument("--stamp", action="store_true", help="write audit_token.json anew")
    given = parser.parse_args()
    if given.prove:
        prove_whole_step()
    if given.stamp:
        stamp_claim()
    if given.check:
        stale = list_stale()
        for name in stale:
            sys.stderr.write(f"audit/{name} is not what the generator gives\n")
        return 1 if stale else 0
    made = make_files()
    shutil.rmtree(FOLDER, ignore_errors=True)
    write_files(FOLDER, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
