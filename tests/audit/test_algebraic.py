"""An audit by traces: honest ones pass, and every single wrong value is caught and named."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.audit.runs import KEY, failed, read_leaves, reason_of, sign_again, write_leaves
from tests.audit.spoil import Spoiler
from tests.tasks import make_tiny_task
from vtrain import _core, cli
from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.traces import compute_traces_digest
from vtrain.audit import algebraic
from vtrain.audit.algebraic import (
    AlgebraicAudit,
    AlgebraicSubject,
    draw_steps,
    make_traces_pin,
    verify_algebraic,
)
from vtrain.audit.pin import make_pin
from vtrain.audit.structure import check_structure
from vtrain.audit.traces import TraceChecker, WrongValue, choose_arithmetic
from vtrain.bench.alone import STATUS, measure_alone
from vtrain.commit.traces import TraceFolder
from vtrain.dispute.refutation import compose_refutation
from vtrain.dispute.statement import decode_ruling
from vtrain.engines.cpu import CpuSession
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import RunError, SignatureError, StorageError
from vtrain.graph.evaluate import apply_node
from vtrain.graph.step import STEP_STATE
from vtrain.graph.values import PRODUCTS
from vtrain.spec.algebraic import PRIME, REPETITIONS, compute_vector
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.train import signed as evidence
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask
from vtrain.train.traces import write_traces
from vtrain.wire import structs
from vtrain.wire.claim import decode_signed_claim
from vtrain.wire.record import StepRecord, decode_record, encode_record
from vtrain.wire.report import Report
from vtrain.wire.traces import SignedTensorTraces, decode_signed_tensor_traces

Array = npt.NDArray[Any]
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
SEED = b"drawn after"


@dataclass(frozen=True)
class Case:
    """A run with the traces of some of its steps."""

    task: CompiledTask
    run: Path
    traces: Path


def make_case(task: CompiledTask, folder: Path, steps: tuple[int, ...]) -> Case:
    train(task, folder / "run", key=KEY)
    write_traces(folder / "run", steps, key=KEY, out=folder / "traces")
    return Case(task, folder / "run", folder / "traces")


@pytest.fixture(scope="module")
def case(task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Two steps between state roots: the traces of steps 3 and 4, and of 11 and 12."""
    return make_case(task, tmp_path_factory.mktemp("mlp"), (4, 11))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """What else there is to be multiplied, each in a single step."""
    tasks = {
        "cnn": make_tiny_task("cnn", steps=2, commit_every=1, checkpoint_every=1),
        "gpt": make_tiny_task("gpt", steps=2, commit_every=1, checkpoint_every=1),
    }
    return {
        name: make_case(task, tmp_path_factory.mktemp(name), (2,)) for name, task in tasks.items()
    }


@pytest.fixture
def spoiler(case: Case, tmp_path: Path) -> Spoiler:
    return Spoiler(case.run, case.traces, tmp_path / "traces")


def verify(case: Case, folder: Path | None = None, **given: Any) -> Report:
    given = {"steps": (4,), "pin": pin_of(case.run)} | given
    audit = AlgebraicAudit(folder=folder or case.traces, **given)
    return verify_algebraic(case.run, audit)


def pin_of(run: Path) -> Any:
    return make_pin(decode_signed_claim((run / "claim.cbor").read_bytes()))


# --- honest traces


@pytest.mark.parametrize("engine", ["cpu", "numpy"])
def test_an_honest_trace_is_verified(case: Case, engine: str) -> None:
    report = verify(case, steps=(4, 12), engine=engine)
    assert report.verdict == "verified", report.reason
    assert report.segments == ((3, 4), (11, 12))
    said = " ".join(report.strength.checked)
    assert "4 of 12 steps, in 2 of 6 stretches" in said
    assert "below 2^-60" in said


@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_other_products_are_checked_too(wide: dict[str, Case], name: str) -> None:
    """Convolutions, and the stacks of attention."""
    case = wide[name]
    ops = {node.op for node in case.task.graph.nodes}
    assert ("batched_matmul" in ops) == (name == "gpt")
    assert ("im2col" in ops) == (name == "cnn")
    for engine in ("cpu", "numpy"):
        report = verify(case, steps=(2,), derived=True, engine=engine)
        assert report.verdict == "verified", report.reason


def test_all_steps_are_drawn_by_a_seed_that_came_after(case: Case, tmp_path: Path) -> None:
    drawn = draw_steps(case.run, SEED, 2)
    write_traces(case.run, drawn, key=KEY, out=tmp_path / "traces")
    report = verify(case, tmp_path / "traces", steps=None, sample=2, seed=SEED)
    assert report.verdict == "verified", report.reason
    assert report.traced is not None
    assert report.traced.steps == drawn
    assert report.traced.randomness.value == SEED
    assert report.randomness is not None
    assert report.randomness.fresh
    assert "for the vectors" in report.randomness.source
    assert report.detections[0].probability * 6 == 2
    late = verify(case, tmp_path / "traces", steps=None, sample=2, seed=SEED, pin=None)
    assert late.verdict == "conditional"
    assert verify(case, pin=None).verdict == "conditional"  # steps that were named


def test_the_solver_owes_what_a_fresh_draw_picks(case: Case) -> None:
    report = verify_algebraic(
        case.run,
        AlgebraicAudit(folder=case.traces, pin=pin_of(case.run), sample=5),
        random=lambda size: bytes([9]) * size,
    )
    assert report.verdict == "inconclusive"
    reason = reason_of(report)
    assert reason.name == "trace"
    owed = re.search(
        r"traces of these steps: (.*) \(vtrain trace RUN --step (.*?)\)", reason.detail
    )
    assert owed is not None
    assert owed[2] == owed[1].replace(", ", ",")
    assert owed[2].count(",") > 0
    assert (bytes([9]) * 32).hex() in reason.detail
    # A claim that is kept only now may be another, made to be missed: the one drawn for is named.
    assert f"--claim {pin_of(case.run).digest.hex()} --seed" in reason.detail


def test_what_is_held_may_be_little(case: Case, wide: dict[str, Case]) -> None:
    """Values are read again where not all fit; nothing else changes."""
    for found, step in ((case, 4), (wide["gpt"], 2)):
        for held in (0, 1 << 60):
            wrong, checker = check(found, step, held_bytes=held)
            assert wrong is None
            folder = TraceFolder(found.traces)
            (trace,) = (item for item in folder.read_claim().traces.traces if item.step == step)
            stop = checker.find_stop(trace, folder.read_leaves(trace))
            assert stop == (None if held else (0, 0))  # whole steps, or none of them


def test_memory_is_that_of_a_few_tensors(tmp_path: Path) -> None:
    """Of a trace many times as large: the buffers of whole steps, and what Python holds where it
    goes node by node, beside the samples and what was there before."""
    task = make_tiny_task("gpt", batch=128, steps=2, commit_every=1, checkpoint_every=1)
    case = make_case(task, tmp_path, (2,))
    sizes = [node.outputs[0].byte_length for node in task.graph.nodes]
    few = 8 * max(sizes)
    assert sum(sizes) > 4 * few
    assert CpuSession(task.graph, task.samples).check_memory < few
    assert check(case, 2)[0] is None
    # What is imported and kept for good is there by now.
    tracemalloc.start()
    try:
        wrong, _ = check(case, 2, held_bytes=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert wrong is None
    assert peak < few


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not tell a process's memory")
def test_a_process_that_checks_has_no_buffers_of_steps(tmp_path: Path) -> None:
    """Those that its engine came with make room for the check's; beside both, samples."""
    task = make_tiny_task(
        "wide", batch=8192, samples=8192, steps=2, commit_every=1, checkpoint_every=1
    )
    case = make_case(task, tmp_path, (2,))
    session = CpuSession(task.graph, task.samples)
    both = session.memory + session.check_memory
    assert both > 30e6
    peak = measure_alone(
        "algebraic", case.run, every=1, engine="cpu", threads=1, beside=case.traces
    )
    assert peak is not None
    assert peak < both


@pytest.mark.parametrize("name", ["gpt", "cnn"])
def test_steps_go_on_after_a_check(wide: dict[str, Case], name: str) -> None:
    found = wide[name]
    folder, graph = TraceFolder(found.traces), found.task.graph
    (trace,) = folder.read_claim().traces.traces[-1:]
    leaves = folder.read_leaves(trace)
    vectors = [compute_vector(b"any", bytes(32), 0, 4096)]
    checked, stepped = (CpuSession(graph, found.task.samples) for _ in range(2))
    state = {
        name: folder.read_chunk(leaves[ref.node], graph.type_of(ref))
        for name, ref in graph.states().items()
    }
    for session in (checked, stepped):
        session.load_state(state)
    stepped.step()
    kinds, digests = graph.nodes, b"".join(leaves[: len(graph.nodes)])
    read = partial(_read_chunk, folder, leaves, kinds)
    assert checked.check(digests, vectors, read) is None
    for _ in range(2):
        assert checked.step() == stepped.step()
    assert all((checked.read_state()[key] == stepped.read_state()[key]).all() for key in state)


def _read_chunk(folder: TraceFolder, leaves: Any, nodes: Any, index: int) -> Array:
    return folder.read_chunk(leaves[index], nodes[index].outputs[0])


def check(case: Case, step: int, *, folder: Path | None = None, held_bytes: int = 1 << 60,
          store: Any = None) -> tuple[WrongValue | None, TraceChecker]:  # fmt: skip
    """The first wrong value of a trace, without all that an audit does besides."""
    task, root = case.task, TraceFolder(folder or case.traces)
    signed = root.read_claim().traces
    trace = next(trace for trace in signed.traces if trace.step == step)
    vectors = [compute_vector(b"any", compute_traces_digest(signed), 0, 4096)]
    arithmetic = choose_arithmetic("cpu")
    checker = TraceChecker(task.graph, task.samples, store or root, vectors, arithmetic, held_bytes)
    return checker.check(trace, root.read_leaves(trace)), checker


# --- single wrong values


def change(kind: str, element: int) -> Callable[[Array], Array] | None:
    def apply(value: Array) -> Array:
        flat = value.reshape(-1)
        info = np.iinfo(value.dtype)
        if kind == "permuted":
            other = np.flatnonzero(flat != flat[element])
            if len(other):
                flat[[element, other[0]]] = flat[[other[0], element]]
            return value
        old = int(flat[element])
        new = {"+1": old + 1, "-1": old - 1, "sign": -old, "+p": old + PRIME, "-p": old - PRIME}
        if info.min <= new[kind] <= info.max:
            flat[element] = new[kind]
        return value

    return apply


FAULTS = ("+1", "-1", "sign", "+p", "-p", "permuted")


def list_faults(spoiler: Spoiler, seed: int) -> Iterator[tuple[int, int, str, int]]:
    """(node, offset, kind of fault, element), by operator and dtype: of products every kind, of
    what is done again two."""
    rng = np.random.default_rng(seed)
    steps = spoiler.trace.size // len(spoiler.graph.nodes)
    strata: dict[tuple[str, str], list[int]] = {}
    for index, node in enumerate(spoiler.graph.nodes):
        if node.op != "state":  # of the first step it is told by the log: a test of its own
            strata.setdefault((node.op, node.outputs[0].dtype), []).append(index)
    for (op, _), nodes in strata.items():
        for kind in FAULTS if op in PRODUCTS else rng.choice(FAULTS, 2, replace=False).tolist():
            index = int(rng.choice(nodes))
            size = spoiler.graph.nodes[index].outputs[0].size
            yield index, int(rng.integers(steps)), kind, int(rng.integers(size))


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_every_single_wrong_value_is_caught(
    case: Case, wide: dict[str, Case], tmp_path: Path, name: str
) -> None:
    """Node, chunk and element are named, and a referee says so too."""
    found = wide.get(name, case)
    spoiler = Spoiler(found.run, found.traces, tmp_path / "traces")
    subject = make_subject(found)
    tried: Counter[str] = Counter()
    for index, offset, kind, element in list_faults(spoiler, seed=len(name)):
        apply = change(kind, element)
        assert apply is not None
        honest = spoiler.read(index, offset)
        value = apply(honest.copy())
        places = np.flatnonzero(value.reshape(-1) != honest.reshape(-1))
        if not len(places):
            continue
        tried[kind] += 1
        spoiler.sign(spoiler.alter(spoiler.leaves(), index, apply, offset))
        trace, leaves = spoiler.trace.step, spoiler.folder.read_leaves(spoiler.trace)
        wrong, checker = check(found, trace, folder=spoiler.folder.root)
        # Whole steps stop at the same place.
        assert checker.find_stop(spoiler.trace, leaves) == (offset, index)
        restore(spoiler, found)
        assert wrong is not None, (index, kind)
        assert (wrong.index, wrong.offset, wrong.step) == (index, offset, spoiler.first + offset)
        assert wrong.element == places[0]
        width = value.itemsize
        assert wrong.chunk == int(places[0]) * width // 1024
        assert wrong.claimed == value.reshape(-1)[places[0]]
        assert wrong.computed == honest.reshape(-1)[places[0]]
        assert judge(wrong, subject)
    assert all(tried[kind] for kind in FAULTS)


def restore(spoiler: Spoiler, case: Case) -> None:
    spoiler.folder.write_leaves(
        spoiler.trace.step, TraceFolder(case.traces).read_leaves(spoiler.trace)
    )


def make_subject(case: Case) -> AlgebraicSubject:
    found = check_structure(case.run)
    assert found.signed is not None
    claim = compute_claim_digest(found.signed.claim)
    task = case.task
    return AlgebraicSubject(
        RunPaths(case.run), found, task.spec, task.graph, task.samples, found.records, claim
    )


def judge(wrong: WrongValue, subject: AlgebraicSubject) -> bool:
    """Whether a referee finds, block by block, that the right value comes out and no other."""
    statements = list(compose_refutation(wrong, subject))
    for statement in statements:
        ruling = decode_ruling(_core.referee_judge(statement))
        if not ruling.right[0] or ruling.right[1]:
            return False
    assert ruling.blocks == len(statements)
    width = NUMPY_DTYPES[wrong.node.outputs[0].dtype].itemsize
    assert wrong.computed is not None
    if ruling.blocks > 1:
        return True
    return ruling.after == wrong.computed.to_bytes(width, "little", signed=wrong.computed < 0)


def test_an_element_of_several_blocks_has_a_statement_for_each(tmp_path: Path) -> None:
    """A gradient over more of a batch than 32 chunks hold; and what the command writes of it."""
    task = make_tiny_task("wide", steps=1, batch=40, commit_every=1, checkpoint_every=1)
    found = make_case(task, tmp_path, (1,))
    spoiler = Spoiler(found.run, found.traces, tmp_path / "spoiled")
    shapes = {i: n.outputs[0].size for i, n in enumerate(task.graph.nodes) if n.op == "matmul"}
    index = max(shapes, key=shapes.__getitem__)
    apply = change("-p", 1234)
    assert apply is not None
    spoiler.sign(spoiler.alter(spoiler.leaves(), index, apply))
    wrong, _ = check(found, 1, folder=spoiler.folder.root)
    assert wrong is not None
    assert judge(wrong, make_subject(found))
    statements = tmp_path / "statements"
    arguments = [
        "verify",
        found.run,
        "--mode",
        "algebraic",
        "--steps",
        1,
        "--statements",
        statements,
    ]
    assert cli.run([*map(str, arguments), "--traces", str(spoiler.folder.root)]) == 10
    files = sorted(statements.iterdir())
    assert [path.name for path in files] == ["block-000000.cbor", "block-000001.cbor"]
    composed = compose_refutation(wrong, make_subject(found))
    assert [path.read_bytes() for path in files] == list(composed)
    assert cli.run(["referee", str(files[-1])]) == 0


def test_commands(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The solver's and the auditor's, and what is no way to call them."""
    key, kept, out = tmp_path / "key.pem", tmp_path / "kept", tmp_path / "traces"
    pem = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    key.write_bytes(pem)
    run = str(case.run)
    assert cli.run(["claim", run, "--out", str(kept)]) == 0
    trace = ["trace", run, "--key", str(key), "--out", str(out)]
    draw = ["--seed", SEED.hex()]
    assert cli.run([*trace, "--sample", "1", *draw]) == 0
    verify = ["verify", run, "--mode", "algebraic", "--traces", str(out)]
    capsys.readouterr()
    assert cli.run([*verify, "--samples", "1", *draw, "--claim", str(kept), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["traced"]["randomness"]["value"] == SEED.hex()
    assert cli.run([*verify, "--samples", "1", *draw]) == 4
    assert cli.run([*verify, "--samples", "6", "--derived"]) == 3  # the others are owed
    for bad in (
        trace,
        [*trace, "--step", "1", "--sample", "1", *draw],
        [*trace, "--sample", "1"],
        [*trace, "--step", "13"],
        [*verify, "--steps", "1", "--samples", "1"],
        [*verify, "--samples", "0"],
        [*verify, "--private"],
        [*verify, "--all"],
        [*verify, "--derived", "--challenge", "00"],
        ["verify", run, "--derived"],
    ):
        assert cli.run(bad) == 2, bad


def test_nothing_in_a_run_keeps_its_claim_from_being_pinned(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(case.run, tmp_path / "run"))
    for folder in ("traces", "proofs"):
        (run / folder).mkdir()
        (run / folder / "traces.cbor").write_bytes(b"\xa0")
    kept = tmp_path / "kept"
    assert cli.run(["claim", str(run), "--out", str(kept), "--json"]) == 0
    said = capsys.readouterr()
    assert not {"traces", "trace_claim"} & json.loads(said.out).keys()
    for folder in ("traces", "proofs"):
        assert f"{folder}/traces.cbor is not shown" in said.err
    assert kept.read_bytes() == (run / "claim.cbor").read_bytes()


def test_a_verdict_does_not_wait_for_what_follows_from_it(case: Case, spoiler: Spoiler) -> None:
    """Fraud is found, and no statement about it can be written."""
    matmul = next(i for i, node in enumerate(spoiler.graph.nodes) if node.op == "matmul")
    apply = change("+1", 3)
    assert apply is not None
    spoiler.sign(spoiler.alter(spoiler.leaves(), matmul, apply))
    file = spoiler.folder.claim / "below a file"
    arguments = ["verify", case.run, "--mode", "algebraic", "--steps", 4, "--statements", file]
    assert cli.run([*map(str, arguments), "--traces", str(spoiler.folder.root)]) == 10


def test_a_fault_is_a_verdict(case: Case, spoiler: Spoiler) -> None:
    """From the signed traces to the report: a product, an update, and multiples of the prime."""
    graph = spoiler.graph
    matmul = max(i for i, node in enumerate(graph.nodes) if node.op == "matmul")
    update = next(i for i, node in enumerate(graph.nodes) if node.op == "sgd_update")
    for index, kind in ((matmul, "+1"), (matmul, "-p"), (update, "-1")):
        apply = change(kind, 3)
        assert apply is not None
        spoiler.sign(spoiler.alter(spoiler.leaves(), index, apply, 1))
        report = verify(case, spoiler.folder.root)
        restore(spoiler, case)
        assert report.verdict == "fraud"
        reason = reason_of(report)
        assert (reason.name, reason.fault) == ("algebraic", "solver")
        assert reason.where == f"step 4, node {index}, chunk 0, element 3"
        assert graph.nodes[index].name in reason.detail


def test_a_false_step_that_is_false_throughout_is_caught_where_it_begins(
    case: Case, tmp_path: Path
) -> None:
    """A log that goes on from an altered gradient, and a trace that fits it: nothing is wrong with
    any value but the one."""
    run = Path(shutil.copytree(case.run, tmp_path / "run"))
    graph = case.task.graph
    target = max(i for i, node in enumerate(graph.nodes) if node.op == "matmul")
    folder = sign_lie(case, run, tmp_path, lie(case, run, tmp_path / "traces", target))
    report = verify_algebraic(run, AlgebraicAudit(folder=folder, steps=(12,)))
    assert report.verdict == "fraud"
    assert convict(report) == [("algebraic", f"step 11, node {target}, chunk 0, element 0")]


def convict(report: Report) -> list[tuple[str, str]]:
    """The checks that convict the solver, and where."""
    return [(check.name, check.where) for check in failed(report) if check.fault == "solver"]


def sign_lie(
    case: Case, run: Path, out: Path, told: tuple[list[StepRecord], list[bytes], Path]
) -> Path:
    """A run that goes on from what :func:`lie` made, and the folder of traces that fit it."""
    records, leaves, folder = told
    log = read_leaves(run)
    write_leaves(run, [*log[:10], *map(encode_record, records)])
    sign_again(run)
    spoiler = Spoiler(run, case.traces, out / "signed")
    for path in (folder / "chunks").iterdir():
        spoiler.folder.chunk(bytes.fromhex(path.name)).write_bytes(path.read_bytes())
    spoiler.honest = replace(spoiler.honest, traces=spoiler.honest.traces[1:])
    spoiler.sign(leaves)
    return spoiler.folder.root


def find_hidden(first: int, second: int) -> tuple[int, int]:
    """Two numbers below 2^31 in size, not both zero, whose sum weighted by these residues is a
    multiple of the prime: half-way through Euclid's algorithm (Thue's lemma)."""
    ratio = first * pow(second, -1, PRIME) % PRIME
    (old, rest), (old_factor, factor) = (PRIME, ratio), (0, 1)
    while rest * rest > PRIME:
        old, rest, quotient = rest, old % rest, old // rest
        old_factor, factor = factor, old_factor - quotient * factor
    assert (factor * first - rest * second) % PRIME == 0
    return factor, -rest


def test_what_one_vector_hides_the_other_shows(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors that follow from what is signed are two: whoever tries statements until the first
    hides a false product has no such luck with the second.  All else fits the product.

    Here the vectors are the same whatever is signed, as no one can wait for 2^61 tries.
    """
    run = Path(shutil.copytree(case.run, tmp_path / "run"))
    graph = case.task.graph
    target = max(i for i, node in enumerate(graph.nodes) if node.op == "matmul")
    kind = graph.nodes[target].outputs[0]
    vectors = [compute_vector(b"known before", b"", i, 4096) for i in range(REPETITIONS)]
    errors = find_hidden(*map(int, vectors[0][:2]))

    def alter(value: Array) -> None:
        for column, error in enumerate(errors):
            value[0, column] += error
        assert kind.lo <= value.min() <= value.max() <= kind.hi, "no range tells"

    folder = sign_lie(case, run, tmp_path, lie(case, run, tmp_path / "traces", target, alter))
    monkeypatch.setattr(algebraic, "compute_vector", lambda _, __, i, length: vectors[i][:length])
    for engine in ("cpu", "numpy"):
        audit = AlgebraicAudit(folder=folder, steps=(12,), derived=True, engine=engine)
        with monkeypatch.context() as patch:
            patch.setattr(algebraic, "REPETITIONS", 1)
            alone = verify_algebraic(run, audit)
        assert convict(alone) == []
        assert [c.status for c in alone.checks if c.name == "algebraic"] == ["passed"]
        both = verify_algebraic(run, audit)
        assert convict(both) == [("algebraic", f"step 11, node {target}, chunk 0, element 0")]
        assert both.verdict == "fraud"


def test_derived_vectors_are_the_first_two_of_what_is_signed(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def look(*given: Any) -> TraceChecker:
        seen.append(given[3])
        return TraceChecker(*given)

    monkeypatch.setattr(algebraic, "TraceChecker", look)
    assert verify(case, derived=True).verdict == "verified"
    assert verify(case).verdict == "verified"
    digest = compute_traces_digest(TraceFolder(case.traces).read_claim().traces)
    derived, drawn = seen
    assert (len(derived), len(drawn)) == (2, 1)
    for i, vector in enumerate(derived):
        assert np.array_equal(vector, compute_vector(b"", digest, i, len(vector)))


def add_one(value: Array) -> None:
    value.reshape(-1)[0] += 1


def lie(
    case: Case, run: Path, out: Path, target: int, alter: Callable[[Array], None] = add_one
) -> tuple[list[StepRecord], list[bytes], Path]:
    """Steps 11 and 12 done from an altered gradient: records, digests, and the folder of values."""
    graph, samples = case.task.graph, case.task.samples
    task, folder = case.task.spec, TraceFolder(out)
    folder.make()
    session = NumpySession(graph, samples)
    root = decode_record(read_leaves(run)[7]).state_root
    session.load_state(evidence.read_state(RunPaths(run), graph, 8, root))
    for _ in range(2):
        session.step()
    state, leaves, records = session.read_state(), [], []
    for step in (11, 12):
        values: list[Array] = []
        for index, node in enumerate(graph.nodes):
            value = apply_node(node, [values[ref.node] for ref in node.inputs], state, samples)
            if (step, index) == (11, target):
                value = value.copy()
                alter(value)
            values.append(value)
            leaves.append(folder.write_chunk(np.asarray(value, order="C")))
        state = {name: values[ref.node] for name, ref in graph.next_states().items()}
        assert int(state[STEP_STATE]) == step
        ref = graph.nodes[graph.find("record")].inputs
        root = values[ref[3].node].tobytes() if step % task.commit_every == 0 else b""
        records.append(
            StepRecord(step, values[ref[1].node].tobytes(), int(values[ref[2].node]), root)
        )
    return records, leaves, out


def test_a_wrong_state_before_is_named(case: Case, spoiler: Spoiler) -> None:
    """Step 3 begins where no checkpoint is; step 1 where there is one."""
    states = [i for i, node in enumerate(spoiler.graph.nodes) if node.op == "state"]
    apply = change("+1", 0)
    assert apply is not None
    spoiler.sign(spoiler.alter(spoiler.leaves(), states[1], apply))
    report = verify(case, spoiler.folder.root)
    assert report.verdict == "fraud"
    assert "states that are not those after step 2" in reason_of(report).detail


def test_a_wrong_state_with_a_checkpoint_has_a_statement(case: Case, tmp_path: Path) -> None:
    write_traces(case.run, (5,), key=KEY, out=tmp_path / "honest")
    spoiler = Spoiler(case.run, tmp_path / "honest", tmp_path / "traces")
    node = [i for i, node in enumerate(spoiler.graph.nodes) if node.op == "state"][1]
    apply = change("+1", 2)
    assert apply is not None
    spoiler.sign(spoiler.alter(spoiler.leaves(), node, apply))
    seen: list[WrongValue] = []

    def look(wrong: WrongValue, subject: AlgebraicSubject) -> str:
        seen.append(wrong)
        assert judge(wrong, subject)
        return "looked at"

    report = verify(case, spoiler.folder.root, steps=(5,), on_wrong=look)
    assert reason_of(report).where == f"step 5, node {node}, chunk 0, element 2"
    assert reason_of(report).detail.endswith("; looked at")
    assert len(seen) == 1


def test_a_task_that_begins_out_of_range_is_not_the_solvers_fault(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state before step 1 is the task's own; any later one has the solver's signature."""
    write_traces(case.run, (2, 4), key=KEY, out=tmp_path / "honest")
    monkeypatch.setattr(TraceChecker, "is_base", lambda *given: True)
    for step, fault in ((2, "task"), (4, "solver")):
        spoiler = Spoiler(case.run, tmp_path / "honest", tmp_path / fault)
        spoiler.honest = replace(
            spoiler.honest, traces=tuple(t for t in spoiler.honest.traces if t.step == step)
        )
        index, below = next(
            (i, node.outputs[0].lo - 1)
            for i, node in enumerate(spoiler.graph.nodes)
            if node.op == "state"
            and node.outputs[0].lo > np.iinfo(NUMPY_DTYPES[node.outputs[0].dtype]).min
        )
        spoiler.sign(
            spoiler.alter(spoiler.leaves(), index, partial(np.full_like, fill_value=below))
        )
        report = verify(case, spoiler.folder.root, steps=(step,))
        reason = reason_of(report)
        assert (reason.name, reason.fault) == ("algebraic", fault)
        assert report.verdict == {"task": "inconclusive", "solver": "fraud"}[fault]


# --- what was signed, and when


def test_a_signature_of_another_convicts_nobody(case: Case, spoiler: Spoiler) -> None:
    spoiler.sign(spoiler.leaves(), key=OTHER)
    report = verify(case, spoiler.folder.root)
    assert report.verdict == "inconclusive"
    assert (reason_of(report).name, reason_of(report).fault) == ("trace", "nobody")
    assert "not what the solver signed" in reason_of(report).detail
    with pytest.raises(SignatureError):
        write_traces(case.run, (4,), key=OTHER, out=spoiler.folder.root)


def test_the_trace_of_another_run_convicts_nobody(case: Case, spoiler: Spoiler) -> None:
    spoiler.sign(spoiler.leaves(), claim=bytes(32))
    report = verify(case, spoiler.folder.root)
    assert report.verdict == "inconclusive"
    assert "is of another claim" in reason_of(report).detail


def test_the_trace_of_another_step_is_fraud(case: Case, spoiler: Spoiler) -> None:
    """It is signed as that of step 4, and ends in the record of another."""
    other = TraceFolder(case.traces).read_leaves(spoiler.honest.traces[1])
    spoiler.sign(other)
    report = verify(case, spoiler.folder.root)
    assert report.verdict == "fraud"
    assert reason_of(report).name == "trace"
    assert reason_of(report).where == "step 3"
    assert "does not end in the record" in reason_of(report).detail


def test_a_trace_of_another_length_is_fraud(case: Case, spoiler: Spoiler) -> None:
    spoiler.sign(spoiler.leaves()[1:])
    report = verify(case, spoiler.folder.root)
    assert report.verdict == "fraud"
    assert "values, not" in reason_of(report).detail


def test_a_trace_signed_after_the_draw_is_refused(case: Case, spoiler: Spoiler) -> None:
    """Vectors that the solver knew are worth nothing: the auditor holds what was signed before."""
    kept = make_traces_pin(copy_of(case.traces, spoiler.folder.root.parent / "kept.cbor"))
    good = verify(case, traces_pin=kept, challenge=SEED)
    assert good.verdict == "verified", good.reason
    foreseen = verify(case, challenge=SEED)
    assert foreseen.verdict == "conditional"
    for report, words in ((good, "that were pinned before"), (foreseen, "vectors that was given")):
        assert report.randomness is not None
        assert report.randomness.source.endswith(words)
    for report, known in ((good, False), (foreseen, True)):
        assert known == ("did not know the randomness" in " ".join(report.strength.checked))
    # A fault that the one vector does not see.
    graph = spoiler.graph
    matmul = next(
        i for i, n in enumerate(graph.nodes) if n.op == "matmul" and n.outputs[0].shape[-1] > 1
    )
    spoiler.sign(spoiler.alter(spoiler.leaves(), matmul, lambda value: value + 1))
    for pin in (kept, make_traces_pin(kept.digest)):
        report = verify(case, spoiler.folder.root, traces_pin=pin, challenge=SEED)
        reason = reason_of(report)
        assert reason.name == "trace"
        assert "as pinned" in reason.detail
        assert report.verdict == ("fraud" if pin.kept else "inconclusive")
    with pytest.raises(RunError, match="pins nothing"):
        verify(case, traces_pin=make_traces_pin(case.traces / "traces.cbor"))
    with pytest.raises(RunError, match="leave one out"):
        verify(case, challenge=SEED, derived=True)


def test_what_somebody_else_wrote_of_traces_convicts_nobody(
    case: Case, spoiler: Spoiler, tmp_path: Path
) -> None:
    """Another root for a step, signed by nobody, by another, or about another claim."""
    own = decode_signed_tensor_traces((case.traces / "traces.cbor").read_bytes())
    first, *rest = own.traces.traces
    lie = replace(own.traces, traces=(replace(first, root=bytes(32)), *rest))
    about_another = replace(lie, claim=bytes(32))
    forged = [
        SignedTensorTraces(lie, own.signature),
        SignedTensorTraces(lie, OTHER.sign(compute_traces_digest(lie))),
        SignedTensorTraces(about_another, KEY.sign(compute_traces_digest(about_another))),
    ]
    honest = SignedTensorTraces(lie, KEY.sign(compute_traces_digest(lie)))
    for kept, verdict in [*((kept, "inconclusive") for kept in forged), (honest, "fraud")]:
        (tmp_path / "kept.cbor").write_bytes(structs.encode(kept))
        pin = make_traces_pin(tmp_path / "kept.cbor")
        report = verify(case, traces_pin=pin, challenge=SEED)
        assert (report.verdict, reason_of(report).where) == (verdict, "traces/traces.cbor")
    inside = copy_of(case.traces, case.run / "kept.cbor")
    try:
        with pytest.raises(RunError, match="pins nothing"):
            verify(case, traces_pin=make_traces_pin(inside))
    finally:
        inside.unlink()


def copy_of(traces: Path, out: Path) -> Path:
    return Path(shutil.copy(traces / "traces.cbor", out))


# --- what is missing


def test_what_is_kept_back_is_owed(case: Case, spoiler: Spoiler) -> None:
    product = next(i for i, node in enumerate(spoiler.graph.nodes) if node.op == "matmul")
    path = spoiler.folder.chunk(spoiler.leaves()[product])
    honest = path.read_bytes()
    for spoiled in (None, honest[:-1], honest + b"\0", bytes(len(honest))):
        path.unlink()
        if spoiled is not None:
            path.write_bytes(spoiled)
        report = verify(case, spoiler.folder.root)
        path.write_bytes(honest)
        assert report.verdict == "inconclusive"
        reason = reason_of(report)
        assert (reason.name, reason.fault) == ("algebraic", "nobody")
        assert f"node {product}, {spoiler.graph.nodes[product].name}" in reason.detail
        assert "the solver owes it" in reason.detail
    spoiler.folder.leaves(4).write_bytes(bytes(32 * spoiler.trace.size))
    assert "the solver owes them" in reason_of(verify(case, spoiler.folder.root)).detail
    signed = spoiler.folder.claim.read_bytes()
    spoiler.folder.leaves(4).write_bytes(bytes(32 * spoiler.trace.size - 1))
    short = verify(case, spoiler.folder.root)
    spoiler.folder.leaves(4).unlink()
    missing = verify(case, spoiler.folder.root)
    spoiler.folder.claim.write_bytes(signed[:-1])
    for report in (short, missing, verify(case, spoiler.folder.root)):
        assert report.verdict == "inconclusive"
        assert reason_of(report).detail.endswith("; the solver owes it")


def test_values_that_are_done_again_are_not_read(case: Case, spoiler: Spoiler) -> None:
    """An auditor fetches products and the state before, and nothing else."""
    leaves, read = spoiler.leaves(), []

    class Counting(TraceFolder):
        def read_chunk(self, digest: bytes, kind: Any) -> Array:
            read.append(digest)
            return super().read_chunk(digest, kind)

    assert check(case, 4, store=Counting(case.traces))[0] is None
    nodes = spoiler.graph.nodes
    expected = [
        leaves[offset * len(nodes) + i]
        for offset in (0, 1)
        for i, node in enumerate(nodes)
        if node.op == "matmul" or (node.op == "state" and not offset)
    ]
    assert read == expected


def test_a_false_digest_convicts_also_where_its_bytes_are_kept_back(
    case: Case, spoiler: Spoiler
) -> None:
    index = next(i for i, node in enumerate(spoiler.graph.nodes) if node.op == "rescale")
    apply = change("+1", 1)
    assert apply is not None
    leaves = spoiler.alter(spoiler.leaves(), index, apply)
    spoiler.folder.chunk(leaves[index]).unlink()
    spoiler.sign(leaves)
    report = verify(case, spoiler.folder.root)
    assert report.verdict == "fraud"
    assert reason_of(report).where == f"step 3, node {index}"
    assert "did not produce its bytes" in reason_of(report).detail


def test_bytes_that_cannot_be_opened_shield_no_false_digest(case: Case, spoiler: Spoiler) -> None:
    """A file that its owner lets nobody read, say, is as good as none."""
    index = next(i for i, node in enumerate(spoiler.graph.nodes) if node.op == "rescale")
    apply = change("+1", 1)
    assert apply is not None
    leaves = spoiler.alter(spoiler.leaves(), index, apply)
    spoiler.sign(leaves)

    class Closed(TraceFolder):
        def read_chunk(self, digest: bytes, kind: Any) -> Array:
            if digest == leaves[index]:
                raise StorageError("Permission denied", where=digest.hex())
            return super().read_chunk(digest, kind)

    root = spoiler.folder.root
    wrong, _ = check(case, 4, folder=root, store=Closed(root))
    assert wrong is not None
    assert (wrong.index, wrong.element, wrong.fault) == (index, None, "solver")


def test_traces_of_a_run_are_taken_as_they_lie(case: Case, tmp_path: Path) -> None:
    """As every other folder of a run: a link leads to what is none of the solver's business."""
    run = Path(shutil.copytree(case.run, tmp_path / "run"))
    (run / "traces").symlink_to(case.traces)
    report = verify_algebraic(run, AlgebraicAudit(steps=(4,), pin=pin_of(run)))
    assert report.verdict == "inconclusive"
    assert (reason_of(report).name, reason_of(report).where) == ("trace", "traces")
    assert "but a link" in reason_of(report).detail
    key = tmp_path / "key.pem"
    key.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert cli.run(["trace", str(run), "--key", str(key), "--step", "4"]) == 2


def test_traces_are_signed_with_the_own_key_unless_told(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key, out = tmp_path / "key.pem", tmp_path / "traces"
    monkeypatch.setattr("vtrain.attest.own.find_own_key", lambda: key)
    words = ["trace", str(case.run), "--out", str(out), "--step", "4"]
    assert cli.run(words) == 2
    assert str(key) in capsys.readouterr().err
    key.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert cli.run(words) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["steps"] == "4"


def test_a_solver_signs_nothing_that_its_log_does_not_say(case: Case, tmp_path: Path) -> None:
    run = Path(shutil.copytree(case.run, tmp_path / "run"))
    leaves = read_leaves(run)
    record = decode_record(leaves[8])
    write_leaves(
        run, [*leaves[:8], encode_record(replace(record, loss=record.loss + 1)), *leaves[9:]]
    )
    sign_again(run)
    with pytest.raises(RunError, match="does not come out"):
        write_traces(run, (9,), key=KEY, out=tmp_path / "traces")
    assert not (tmp_path / "traces" / "traces.cbor").exists()
    with pytest.raises(RunError, match="steps 1 to 12"):
        write_traces(run, (13,), key=KEY, out=tmp_path / "traces")


def test_traces_stay_where_others_are_added(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "traces"
    one = write_traces(case.run, (12,), key=KEY, out=out)
    two = write_traces(case.run, (1, 12, 2), key=KEY, out=out)
    assert [trace.step for trace in one.traces.traces] == [12]
    assert [trace.step for trace in two.traces.traces] == [2, 12]
    assert two.traces.traces[1] == one.traces.traces[0]
    run = Path(shutil.copytree(case.run, tmp_path / "run"))
    write_leaves(run, read_leaves(run)[:10])
    sign_again(run)
    with pytest.raises(RunError, match="another claim"):
        write_traces(run, (1,), key=KEY, out=out)
