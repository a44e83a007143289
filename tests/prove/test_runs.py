"""From run directories to statements: what is read, redone and refused before any work."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.runs import read_kzg_leaves, read_leaves, sign_again, write_leaves
from tests.kzg import place_secrets
from tests.prove import step_runs
from tests.prove import steps as made
from tests.prove.steps import (
    PLAIN,
    K,
    hiding_of,
    make_setup,
    open_key,
    train_run,
    uncounted,
)
from tests.tasks import make_tiny_task
from vtrain.commit.files import write_atomic
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import (
    CircuitError,
    EncodingError,
    NotProducedError,
    RunError,
    SrsError,
    VtrainError,
)
from vtrain.prove import runs as module
from vtrain.prove import setup as proof_setup
from vtrain.prove.backend.srs import CEREMONY, generate_srs
from vtrain.prove.proof_files import Item
from vtrain.prove.runs import StepDiffersError, StepSource, read_run
from vtrain.prove.setup import ProofSetup
from vtrain.prove.steps import prover as step_prover
from vtrain.prove.steps.circuits import STEP_CIRCUITS, build_step_circuit
from vtrain.prove.steps.prepare import prepare_circuit
from vtrain.prove.steps.prover import StepProver
from vtrain.prove.steps.statement import compute_parameters, expect, name_columns
from vtrain.prove.tiles.circuits import TILE_CIRCUITS
from vtrain.prove.verifier import commit_given
from vtrain.train.data import gather_batch
from vtrain.train.layout import RunPaths
from vtrain.train.task import CompiledTask
from vtrain.wire.graph import Node, Ref, StepGraph, TensorType
from vtrain.wire.proof import (
    CIRCUIT_NAMES,
    CIRCUITS,
    CircuitPin,
    KzgRecord,
    decode_kzg_record,
)
from vtrain.wire.record import decode_record, encode_record
from vtrain.wire.task import TaskSpec

srs, task, whole, _ = step_runs.FIXTURES


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


# --- what a claim signs


@pytest.mark.parametrize("name", ["task.cbor", "graph.cbor", "log.bin", "claim.cbor"])
def test_each_part_is_held_against_the_claim(run: Path, name: str) -> None:
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(VtrainError) as caught:
        read_run(run)
    assert name in caught.value.where
    (run / name).unlink()
    with pytest.raises(NotProducedError):
        read_run(run)


def test_a_task_that_is_not_the_claims(run: Path, tmp_path: Path) -> None:
    other = train_run(make_tiny_task(steps=5), tmp_path / "other")
    shutil.copy(other / "task.cbor", run / "task.cbor")
    with pytest.raises(EncodingError, match="is not the task that the signed claim is about"):
        read_run(run)


# --- statements


def test_columns_are_named_as_circuits_name_them() -> None:
    assert name_columns({"a": [1], "b": [2, 3]}) == {"a": 1, "b 0": 2, "b 1": 3}
    record = KzgRecord(3, (b"1",), (b"2", b"3"), (b"4",), b"", b"", b"")
    expected = {"before": b"1", "batch 0": b"2", "batch 1": b"3", "after": b"4"}
    assert expect(record) == expected


def test_parameters_are_those_of_the_steps_own_record(task: CompiledTask, whole: Path) -> None:
    """The rate is that of the step, counted from 0, by the schedule in the graph."""
    schedule = task.graph.nodes[task.graph.find("schedule")]
    attrs = {**schedule.attrs, "starts": (0, 3), "rates": (100, 50)}
    nodes = list(task.graph.nodes)
    nodes[task.graph.find("schedule")] = replace(schedule, attrs=attrs)
    graph = StepGraph(tuple(nodes))
    records = read_run(whole).records
    found = [compute_parameters(graph, record) for record in records]
    assert [item["rate"].tolist() for item in found] == [[100]] * 3 + [[50]] * 3
    assert [item["loss"].tolist() for item in found] == [[record.loss] for record in records]


@pytest.mark.parametrize("order", [(1, 2, 5, 6), (6, 2, 3), (5, 5), (4, 1)])
def test_values_are_those_of_the_steps_done_by_the_law(
    task: CompiledTask, whole: Path, srs: Path, order: tuple[int, ...]
) -> None:
    """In any order, from whatever checkpoint; each is also what the KZG log commits to."""
    signed = read_run(whole)
    setup, key = make_setup(signed.task, srs, whole), open_key(srs)
    source = StepSource(signed, setup.proof, hiding_of(signed), engine="numpy")
    records = [decode_kzg_record(leaf) for leaf in read_kzg_leaves(whole)]
    session = NumpySession(task.graph, task.samples)
    for step in order:
        session.load_state(task.initial_state)
        for _ in range(step):
            before = session.read_state()
            record = session.step()
        values = source.values(step)
        names = sorted(name for name in before if name != "step")
        flat = np.concatenate([before[name].ravel() for name in names])
        assert np.array_equal(values.given["before"], flat)
        x, y = gather_batch(task.samples, task.spec.seed, task.spec.batch, step)
        assert np.array_equal(values.given["batch"], np.concatenate([x.ravel(), y.ravel()]))
        assert values.parameters["loss"].tolist() == [record.loss]
        found = commit_given(key, values.given, values.hiding)
        assert found == expect(records[step - 1])


def test_steps_are_redone_from_the_last_checkpoint_before(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    class Counting(NumpySession):
        def step(self) -> Any:
            nonlocal steps
            steps += 1
            return super().step()

    monkeypatch.setattr(
        module, "open_session", lambda name, graph, samples, threads: Counting(graph, samples)
    )
    signed = read_run(run)
    source = StepSource(signed, PLAIN, hiding_of(signed))
    for step, wanted in ((2, 2), (3, 3), (5, 5), (6, 6), (2, 8)):
        source.state(step)
        # 3 and 6 are checkpoints, and from 2 on to 3 it is loaded.
        assert steps == {2: 2, 3: 2, 5: 4, 6: 4, 8: 6}[wanted], (step, steps)
    RunPaths(run).checkpoint(3).unlink()
    steps = 0
    StepSource(signed, PLAIN, hiding_of(signed)).state(5)
    assert steps == 5
    StepSource(signed, PLAIN, hiding_of(signed), checkpoints={0}).state(6)
    assert steps == 11
    with pytest.raises(NotProducedError, match="no checkpoint before step 6"):
        StepSource(signed, PLAIN, hiding_of(signed), checkpoints={6}).state(5)
    with pytest.raises(NotProducedError, match="no checkpoint"):
        StepSource(signed, PLAIN, hiding_of(signed), checkpoints=()).state(5)


def test_a_log_that_differs_is_named(run: Path) -> None:
    leaves = read_leaves(run)
    leaves[3] = encode_record(replace(decode_record(leaves[3]), loss=1))
    write_leaves(run, leaves)
    sign_again(run)
    source = StepSource(read_run(run), PLAIN, hiding_of(read_run(run)), engine="numpy")
    source.values(3)
    with pytest.raises(StepDiffersError) as caught:
        source.values(4)
    assert (caught.value.where, caught.value.fault) == ("step 4", "solver")
    for _ in range(2):
        with pytest.raises(StepDiffersError, match="step 4"):
            source.outputs(4, [0])
    signed = read_run(run)
    last = StepSource(signed, PLAIN, hiding_of(signed), engine="numpy", checkpoints={6})
    assert last.state(6)


@pytest.mark.parametrize("step", [0, 7])
def test_a_step_that_is_not_there(whole: Path, step: int) -> None:
    with pytest.raises(RunError, match=f"step {step}: is none .* the steps 1 to 6"):
        StepSource(read_run(whole), PLAIN, hiding_of(read_run(whole)), engine="numpy").values(step)


def test_samples_must_be_the_tasks(run: Path, tmp_path: Path) -> None:
    table = RunPaths(run).samples
    data = table.read_bytes()
    shutil.move(table, tmp_path / "table")
    with pytest.raises(NotProducedError):
        StepSource(read_run(run), PLAIN, hiding_of(read_run(run)))
    StepSource(read_run(run), PLAIN, hiding_of(read_run(run)), data=tmp_path / "table").values(1)
    write_atomic(tmp_path / "table", [data[:-1] + bytes([data[-1] ^ 1])])
    with pytest.raises(EncodingError, match="not the samples that the task pins"):
        StepSource(read_run(run), PLAIN, hiding_of(read_run(run)), data=tmp_path / "table")


# --- setups


def test_the_setup_is_the_tasks_or_follows_from_the_srs(
    task: CompiledTask, srs: Path, tmp_path: Path
) -> None:
    def make(spec: TaskSpec, path: Path, k: int | None = None) -> ProofSetup:
        return ProofSetup.for_task(spec, path, tmp_path, made.LIMITS, made.MEMORY, k)

    setup = make(task.spec, srs)
    assert setup.proof is task.spec.proof
    assert make(task.spec, srs, K) == setup
    assert setup.is_insecure
    assert setup.open_key().srs.sha256 == setup.proof.srs
    with pytest.raises(RunError, match="k 18: the task has 17"):
        make(task.spec, srs, 18)

    bare = make_tiny_task().spec
    free = make(bare, srs).proof
    assert (free.k, free.srs, free.every, free.circuits) == (K, setup.proof.srs, 1, {})
    assert make(bare, srs, 18).proof.k == 18
    with pytest.raises(SrsError, match="is for k up to 17, not 18"):
        make(bare, srs, 18).open_key()

    other = tmp_path / "other"
    generate_srs(other, 8)
    with pytest.raises(EncodingError, match=f"the task has {setup.proof.srs.hex()}"):
        make(task.spec, other)
    with pytest.raises(EncodingError, match="the task has"):
        replace(setup, srs=other, proof=replace(setup.proof, k=8)).open_key()
    other.write_bytes(b"\x08")
    with pytest.raises(SrsError):
        make(bare, other)
    for k in (17, 20):  # one of a ceremony for a larger k serves as well
        proof = replace(setup.proof, srs=bytes.fromhex(CEREMONY[k]))
        assert not replace(setup, proof=proof).is_insecure


def test_a_statement_names_run_step_and_circuit(whole: Path, srs: Path, tmp_path: Path) -> None:
    signed = read_run(whole)
    setup = make_setup(signed.task, srs, tmp_path)
    ready = made.make_ready(signed.graph, setup)
    statement = made.describe(signed, setup, ready, 4)
    claim = signed.signed.claim
    assert (statement.run_id, statement.task_id) == (claim.run_id, claim.task_id)
    assert (statement.step, statement.k, statement.insecure) == (4, K, True)
    assert (statement.circuit, statement.key) == (ready.pinned.digest, ready.keys.vk_digest)
    assert statement.parameters == {"loss": (signed.records[3].loss,), "rate": (40960,)}


def test_a_task_may_pin_the_circuits_that_there_are() -> None:
    """They are listed where tasks are read, which imports no circuit."""
    made = {"step": sorted(STEP_CIRCUITS), "tiles": sorted(TILE_CIRCUITS)}
    assert {kind: sorted(names) for kind, names in CIRCUIT_NAMES.items()} == made
    assert set(CIRCUIT_NAMES) == set(CIRCUITS)


# --- refusals before any work


@pytest.fixture
def no_ezkl(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_keys", "load_verifying_key"):
        monkeypatch.setattr(proof_setup, name, None)
    monkeypatch.setattr(step_prover, "prove", None)


@pytest.mark.usefixtures("no_ezkl")
def test_what_does_not_fit_is_refused_with_the_estimate(
    whole: Path, srs: Path, tmp_path: Path
) -> None:
    signed = read_run(whole)
    setup = replace(make_setup(signed.task, srs, tmp_path), memory=1 << 30)
    words = r"memory: \d+ cells in \d+ rows, \d+ committed columns: about 1\.\d GiB of memory"
    with pytest.raises(CircuitError, match=words):
        StepProver(signed, setup, engine="numpy")
    for proving in (True, False):
        with pytest.raises(CircuitError, match=words):
            prepare_circuit(signed.graph, setup, "step", proving=proving)


@pytest.mark.usefixtures("no_ezkl")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"circuits": {"step": CircuitPin(bytes(32), bytes(32))}}, "not the circuit that the task"),
        ({"blinding": 6}, "circuits have 5 blinding factors"),
        ({"k": 16}, "whole steps need k of 17"),
    ],
)
def test_a_circuit_that_is_not_the_tasks(
    whole: Path, srs: Path, tmp_path: Path, change: Mapping[str, Any], message: str
) -> None:
    signed = read_run(whole)
    setup = make_setup(signed.task, srs, tmp_path)
    setup = replace(setup, proof=replace(setup.proof, **change))
    with pytest.raises(CircuitError, match=message):
        prepare_circuit(signed.graph, setup, "step", proving=True)


def test_digests_are_told_of_what_is_not_pinned(
    whole: Path, srs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = read_run(whole)
    free = make_setup(signed.task, srs, tmp_path)
    ready = made.make_ready(signed.graph, free)
    right = CircuitPin(ready.pinned.digest, ready.keys.vk_digest)
    monkeypatch.setattr(proof_setup, "load_verifying_key", lambda *_, **__: ready.keys)

    def prepare(pin: CircuitPin) -> Any:
        setup = replace(free, proof=replace(free.proof, circuits={"step": pin}))
        return prepare_circuit(signed.graph, setup, "step", proving=False)

    assert prepare(right).pinned.digest == right.circuit
    for other, digest in (
        (replace(right, circuit=b"\1" * 32), right.circuit),
        (replace(right, key=b"\1" * 32), right.key),
    ):
        words = f"its digest is {digest.hex()}, the task has {'01' * 32}"
        with pytest.raises(CircuitError, match=words):
            prepare(other)


@pytest.mark.usefixtures("no_ezkl")
@pytest.mark.parametrize(
    "change", [{"circuit": "tiles"}, {"circuits": {"128": CircuitPin(bytes(32), bytes(32))}}]
)
def test_a_task_without_circuits_of_whole_steps(
    whole: Path, srs: Path, tmp_path: Path, change: Mapping[str, Any]
) -> None:
    signed = read_run(whole)
    setup = make_setup(signed.task, srs, tmp_path)
    setup = replace(setup, proof=replace(setup.proof, **change))
    with pytest.raises(CircuitError, match="the task pins no circuit of whole steps"):
        StepProver(signed, setup, engine="numpy")


@pytest.mark.usefixtures("no_ezkl")
def test_a_step_that_no_circuit_holds_of(
    whole: Path, srs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were there one, the message names the conditions."""
    signed = read_run(whole)
    prover = StepProver(signed, make_setup(signed.task, srs, tmp_path), engine="numpy")
    honest = StepSource.values

    def false(source: StepSource, step: int) -> Any:
        values = honest(source, step)
        after = values.given["after"].copy()
        after[0] += 1
        return replace(values, given={**values.given, "after": after})

    monkeypatch.setattr(StepSource, "values", false)
    with pytest.raises(CircuitError, match="step 2: no circuit of step, step-clamps holds of it"):
        prover.prove(Item("step", 2), uncounted)


@pytest.mark.usefixtures("no_ezkl")
def test_a_step_hidden_by_other_secrets_is_not_proven(
    whole: Path, srs: Path, tmp_path: Path
) -> None:
    """It would take minutes and an opening, and no auditor would take the proof."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    place_secrets(run)
    signed = read_run(run)
    prover = StepProver(signed, make_setup(signed.task, srs, tmp_path), engine="numpy")
    with pytest.raises(RunError, match="the key of before at step 2 follows from other secrets"):
        prover.prove(Item("step", 2), uncounted)


# --- graphs that are legal, and not such as vtrain makes


def rewire(graph: StepGraph, op: str, change: Callable[[StepGraph, Node], Node]) -> StepGraph:
    """The first node of ``op`` changed."""
    index = next(i for i, node in enumerate(graph.nodes) if node.op == op)
    nodes = list(graph.nodes)
    nodes[index] = change(graph, nodes[index])
    return StepGraph(tuple(nodes))


def find(graph: StepGraph, op: str) -> Ref:
    return Ref(next(i for i, node in enumerate(graph.nodes) if node.op == op))


def swap_states(graph: StepGraph, node: Node) -> Node:
    """The new value of another state of the same type."""
    states = [name for name in graph.states() if graph.type_of(graph.states()[name]).size == 8]
    return replace(node, inputs=(graph.states()[states[0]], *node.inputs[1:]))


def other_rate(graph: StepGraph, node: Node) -> Node:
    return replace(node, inputs=(*node.inputs[:2], graph.states()["step"]))


def loose_quotient(graph: StepGraph, node: Node) -> Node:
    """Of the values themselves, in place of their powers."""
    return replace(node, inputs=(graph.nodes[node.inputs[0].node].inputs[0], node.inputs[1]))


def other_total(graph: StepGraph, node: Node) -> Node:
    z, maximum, _, labels = node.inputs
    return replace(node, inputs=(z, maximum, maximum, labels))


def counted(graph: StepGraph, node: Node) -> Node:
    return replace(node, inputs=(find(graph, "sample_index"), *node.inputs[1:]))


@pytest.mark.parametrize(
    ("op", "change", "message"),
    [
        ("momentum", swap_states, "does not make a state of what it was before"),
        ("sgd_update", swap_states, "does not make a state of what it was before"),
        ("sgd_update", other_rate, "is no value of the circuit"),
        ("divide", loose_quotient, "is no softmax"),
        ("cross_entropy", other_total, "is not of the sum of its rows' powers"),
        ("relu", counted, "is no value of the circuit"),
    ],
)
def test_a_value_tied_to_nothing_is_refused(
    op: str,
    change: Callable[[StepGraph, Node], Node],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By types already, as these graphs are small; and by what is built, whatever the types."""
    graph = rewire(make_tiny_task().graph, op, change)
    with pytest.raises(CircuitError, match="has no circuit: "):
        build_step_circuit(graph, K)
    claimed = [node.outputs[0] for node in graph.nodes]
    monkeypatch.setattr("vtrain.prove.steps.builder._derive_types", lambda graph: claimed)
    with pytest.raises(CircuitError, match=message):
        build_step_circuit(graph, K)


def test_a_giant_is_refused_before_a_tensor_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_tiny_task().graph
    nodes = list(graph.nodes)
    at = find(graph, "relu").node
    giant = TensorType("i16", (1 << 20, 1 << 20), 8, 0, 1)
    nodes[at] = replace(nodes[at], outputs=(giant,))
    monkeypatch.setattr("vtrain.prove.steps.circuits.build_with", None)
    with pytest.raises(CircuitError, match=r"a step of \d+ elements is too large for \d+ cells"):
        build_step_circuit(StepGraph(tuple(nodes)), K)


def test_honest_steps_are_far_from_being_giants() -> None:
    """The bound is no bound for what vtrain makes."""
    for kind in ("mlp", "wide"):
        graph = make_tiny_task(kind, batch=4).graph
        elements = sum(output.size for node in graph.nodes for output in node.outputs)
        assert 2 * elements < build_step_circuit(graph, K).cells
