"""The cpu engine against the law: whole steps, states, traces and counts, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.engines.compare import assert_same_state, name_difference, open_law
from tests.engines.random_batches import make_random_batch
from tests.engines.random_graphs import make_random_step
from tests.engines.steps import CENTRED, Step, make_step
from vtrain import _core
from vtrain.engines.cpu import CpuSession
from vtrain.errors import GraphError, RunError
from vtrain.ops import TABLE
from vtrain.ops.base import Saturating
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Attrs, Node, Ref, StepGraph
from vtrain.wire.record import StepRecord

KINDS = [
    ("mlp", "cross_entropy"),
    ("mlp", "mse"),
    ("wide", "cross_entropy"),
    ("cnn", "cross_entropy"),
    ("cnn", "mse"),
    ("attention", "cross_entropy"),
    ("gates", "cross_entropy"),
    ("convnet", "cross_entropy"),
    ("upnet", "cross_entropy"),
]
PATHS = [(path, threads) for path in _core.gemm_paths() for threads in (1, 2)]


def open_cpu(step: Step, threads: int = 2, path: str = "auto") -> CpuSession:
    session = CpuSession(step.graph, step.samples, threads=threads, path=path)
    session.load_state(step.state)
    return session


@pytest.mark.parametrize(("kind", "loss"), KINDS)
@pytest.mark.parametrize(("path", "threads"), PATHS)
def test_steps_follow_the_law(kind: str, loss: str, path: str, threads: int) -> None:
    step = make_step(kind, loss)
    cpu, law = open_cpu(step, threads, path), open_law(step)
    for _ in range(24 if kind == "mlp" else 6):
        assert cpu.step() == law.step()
    assert_same_state(cpu, law)
    assert cpu.saturation() == law.saturation()


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_traces_follow_the_law(kind: str, loss: str) -> None:
    step = make_step(kind, loss)
    cpu, law = open_cpu(step), open_law(step)
    for _ in range(3):
        assert cpu.step() == law.step()
        found, expected = cpu.trace(), law.trace()
        assert name_difference(step.graph, found, expected) == ""
        assert found == expected
        assert_same_state(cpu, law)
    assert cpu.saturation() == law.saturation()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_every_node_can_be_evaluated(kind: str) -> None:
    step = make_step(kind)
    cpu, law = open_cpu(step), open_law(step)
    cpu.step()
    law.step()
    for node in range(len(step.graph.nodes)):
        np.testing.assert_array_equal(cpu.evaluate(node), law.evaluate(node), strict=True)
    assert cpu.saturation() == law.saturation()
    assert_same_state(cpu, law)
    assert cpu.step() == law.step()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("threads", [1, 2])
def test_saturation_is_counted_where_nodes_are_merged(kind: str, threads: int) -> None:
    """With no margin and a large state, merged and single rescales saturate; none is missed."""
    step = make_step(kind, margin=0)
    loud = {
        name: value * 6 if name.startswith("param/") else value
        for name, value in step.state.items()
    }
    cpu, law = open_cpu(step, threads), open_law(step)
    cpu.load_state(loud)
    law.load_state(loud)
    for _ in range(4):
        assert cpu.step() == law.step()
    counts = cpu.saturation()
    assert counts == law.saturation()
    merged = "fc0" if kind == "mlp" else "c1/rows"
    assert counts[merged] > 0
    assert_same_state(cpu, law)


def make_overflowing_step(kind: str, batch: int) -> Step:
    """Every kind of node that saturates does so: samples, operands, velocities and weights.

    Without decay, a velocity at the end of its range is pushed beyond by half of all gradients.
    """
    step = make_step(kind, margin=0, batch=batch, decay=0, prepare=replace(CENTRED, shift=0))
    rng, most = np.random.default_rng(1), 2**31 - 1
    full = {
        name: np.asarray(rng.choice([-most, most], value.shape), np.int32)
        for name, value in step.state.items()
        if value.dtype == np.int32
    }
    return replace(step, state={**step.state, **full})


@pytest.mark.parametrize("kind", ["mlp", "wide", "cnn", "attention"])
@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_other_updates_follow_the_law(kind: str, optimizer: str) -> None:
    """States of int64, roots, the norm of all gradients, rates on lines; on two threads."""
    step = make_step(kind, optimizer=optimizer)
    cpu, law = open_cpu(step, 2), open_law(step)
    for _ in range(5):
        assert cpu.step() == law.step()
        assert cpu.saturation() == law.saturation()
    assert_same_state(cpu, law)
    assert cpu.trace() == law.trace()


@pytest.mark.parametrize(("kind", "batch"), [("mlp", 8), ("cnn", 8), ("wide", 512)])
@pytest.mark.parametrize(("path", "threads"), PATHS)
def test_every_kind_of_saturation_is_counted(
    kind: str, batch: int, path: str, threads: int
) -> None:
    step = make_overflowing_step(kind, batch)
    cpu, law = open_cpu(step, threads, path), open_law(step)
    for i in range(3):
        assert cpu.step() == law.step()
        counts = cpu.saturation()
        assert counts == law.saturation(), f"after {i + 1} steps"
    clamped = {node.op for node in step.graph.nodes if node.name in counts}
    assert clamped == {"normalize", "rescale", "momentum", "sgd_update"}
    # The weights' updates are done with the product, the biases' by themselves.
    for name in ("k1", "d1") if kind == "cnn" else ("w0", "b0"):
        assert counts[f"momentum/{name}/next"] > 0
        assert counts[f"param/{name}/next"] > 0
    assert_same_state(cpu, law)
    assert cpu.trace() == law.trace()
    assert cpu.saturation() == law.saturation()


@pytest.mark.parametrize("op", ["normalize", "rescale", "momentum", "sgd_update"])
def test_a_count_that_is_off_by_one_is_seen(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One clamped element more in each node of one kind."""
    row = TABLE[op]
    assert row.unclamped is not None
    inner = row.unclamped

    def wrong(attrs: Attrs, inputs: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        exact = inner(attrs, inputs).copy()
        within = np.flatnonzero(np.abs(exact) < 2**15 - 129)
        exact.flat[within[:1]] = 2**40
        return exact

    altered = replace(row, law=Saturating(wrong, lambda attrs: "i16"))
    # The values stay those of the law: `vtrain.graph.evaluate` has a table of its own.
    monkeypatch.setattr("vtrain.engines.numpy_engine.TABLE", {**TABLE, op: altered})
    step = make_step("mlp")
    cpu, law = open_cpu(step), open_law(step)
    assert cpu.step() == law.step()
    assert {node.op for node in step.graph.nodes if node.name in law.saturation()} == {op}
    assert cpu.saturation() != law.saturation()


def test_a_node_whose_output_nobody_reads_is_counted() -> None:
    """Engines may leave out what reaches neither record nor state, but for its count."""
    step = make_overflowing_step("mlp", 8)
    graph = step.graph
    by_name = {node.name: node for node in graph.nodes}
    copies = [
        replace(by_name[name], name=f"{name}/again")
        for name in ("x/prepared", "fc0", "momentum/w0/next", "param/w0/next")
    ]
    step = replace(step, graph=StepGraph((*graph.nodes, *copies)))
    cpu, law = open_cpu(step), open_law(step)
    assert cpu.step() == law.step()
    counts = cpu.saturation()
    assert counts == law.saturation()
    for node in copies:
        assert counts[node.name] == counts[node.name.removesuffix("/again")] > 0


def assert_steps_follow_the_law(step: Step, threads: int, traced: int, steps: int) -> None:
    """Steps, one of them with its trace, the state after each, and what was clamped."""
    cpu, law = open_cpu(step, threads=threads), open_law(step)
    with np.errstate(over="ignore"):
        for i in range(steps):
            if i == traced:
                found, expected = cpu.trace(), law.trace()
                assert name_difference(step.graph, found, expected) == ""
                assert found == expected
            else:
                assert cpu.step() == law.step()
            assert_same_state(cpu, law)
    assert cpu.saturation() == law.saturation()


@pytest.mark.parametrize("seed", range(120))
def test_random_graphs_follow_the_law(seed: int) -> None:
    assert_steps_follow_the_law(make_random_step(seed), 1 + seed % 2, traced=3, steps=5)


@pytest.mark.parametrize("seed", range(40))
def test_random_batches_follow_the_law(seed: int) -> None:
    step, _ = make_random_batch(seed)
    assert_steps_follow_the_law(step, 1 + seed % 2, traced=1, steps=3)


def test_random_graphs_have_every_operator() -> None:
    graphs = [make_random_step(seed).graph for seed in range(120)]
    graphs += [make_random_batch(seed)[0].graph for seed in range(40)]
    assert {node.op for graph in graphs for node in graph.nodes} == set(TABLE)


def test_random_graphs_reach_the_merged_updates() -> None:
    """The planner had much to merge and much to refuse, or the test above would show little."""
    merged = []
    for seed in range(120):
        step = make_random_step(seed)
        session = open_cpu(step)
        session.start_profile()
        session.step()
        spent, kept = session.profile(), {ref.node for ref in _next_values(step.graph)}
        for node in step.graph.nodes:
            if node.op == "sgd_update" and node.inputs[1].node in kept:
                velocity = step.graph.nodes[node.inputs[1].node]
                merged.append(velocity.op == "momentum" and spent[velocity.name] == 0)
    assert min(merged.count(True), merged.count(False)) > 10


def _next_values(graph: StepGraph) -> list[Ref]:
    return [node.inputs[0] for node in graph.nodes if node.op == "next_state"]


def test_an_mlp_step_is_merged_to_a_few_jobs() -> None:
    step = make_step("mlp")
    spent = open_cpu(step)
    spent.start_profile()
    spent.step()
    idle = {name for name, seconds in spent.profile().items() if seconds == 0}
    assert {"fc0/acc", "fc0/biased", "fc0", "fc0/acc/grad_b", "momentum/w0/next"} <= idle


def test_comparison_catches_one_unit_in_the_last_place() -> None:
    """The tests above would see a step that differs by one unit in one element."""
    step = make_step("mlp")
    altered = {name: value.copy() for name, value in step.state.items()}
    altered["momentum/w1"][3, 4] += 1
    cpu, law = open_cpu(step), open_law(step)
    cpu.load_state(altered)
    found, expected = cpu.trace(), law.trace()
    assert name_difference(step.graph, found, expected) == "momentum/w1 (state)"
    same = [a == b for a, b in zip(found.digests, expected.digests, strict=True)]
    names = [node.name for node in step.graph.nodes]
    assert same[names.index("param/w0/next")]
    assert not same[names.index("momentum/w1/next")]
    assert not same[names.index("state_root")]
    with pytest.raises(AssertionError):
        assert_same_state(cpu, law)


def test_comparison_catches_another_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that rounds down instead of half up parts from the engine at the first rescale."""
    step = make_step("mlp")
    monkeypatch.setattr(
        "vtrain.ops.rescale.rs", lambda x, shift: x >> shift if shift > 0 else x << -shift
    )
    found, expected = open_cpu(step).trace(), open_law(step).trace()
    assert name_difference(step.graph, found, expected) == "w0 (rescale)"


def test_threads_and_runs_give_the_same_bits() -> None:
    step = make_step("wide")
    sessions = [open_cpu(step, threads) for threads in (1, 2, 3, 0)]
    for _ in range(5):
        records = {session.step() for session in sessions}
        assert len(records) == 1


def test_sessions_run_in_parallel() -> None:
    """Two sessions on two Python threads do not disturb each other."""
    step = make_step("wide")
    expected = [open_cpu(step, 1).step()]
    found: list[StepRecord] = []

    def work() -> None:
        session = open_cpu(step)
        found.append(session.step())

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == expected * 4


def test_a_state_that_does_not_fit_is_refused() -> None:
    step = make_step("mlp")
    session = CpuSession(step.graph, step.samples)
    with pytest.raises(RunError, match="no state") as caught:
        session.step()
    assert caught.value.where == "state"
    with pytest.raises(RunError, match="missing tensors"):
        session.load_state({"step": np.zeros((), np.int64)})
    with pytest.raises(RunError, match="needs i32"):
        session.load_state({**step.state, "param/w0": np.zeros(3, np.int32)})
    session.load_state(step.state)
    assert session.step() == open_law(step).step()


def test_a_strided_state_is_read_in_its_order() -> None:
    step = make_step("mlp")
    turned = {
        name: np.asfortranarray(value) if value.ndim else value
        for name, value in step.state.items()
    }
    session = open_cpu(step)
    session.load_state(turned)
    assert session.step() == open_law(step).step()


def test_other_samples_are_refused() -> None:
    step, other = make_step("mlp"), make_step("wide")
    with pytest.raises(GraphError, match="samples of another form") as caught:
        CpuSession(step.graph, other.samples)
    assert caught.value.where == "node x (gather_samples)"


def test_samples_fewer_than_the_graph_says_are_refused() -> None:
    step = make_step("mlp")
    spec = step.samples.spec
    few = Samples(type(spec)(**{**spec.__dict__, "samples": 3}), step.samples.table[:3])
    session = open_cpu(Step(step.graph, few, step.state))

    def run() -> None:
        for _ in range(10):
            session.step()

    with pytest.raises(GraphError, match="no sample"):
        run()
    with pytest.raises(RunError, match="no state is loaded"):
        session.step()


def test_unknown_paths_are_refused() -> None:
    step = make_step("mlp")
    with pytest.raises(RunError, match="no path is named"):
        CpuSession(step.graph, step.samples, path="abacus")


def test_a_node_that_is_not_there_is_refused() -> None:
    session = open_cpu(make_step("mlp"))
    with pytest.raises(GraphError, match="no node"):
        session.evaluate(10**6)


def test_errors_name_the_node() -> None:
    step = make_step("mlp")
    nodes = list(step.graph.nodes)
    at = next(i for i, node in enumerate(nodes) if node.op == "relu")
    node = nodes[at]
    nodes[at] = Node(node.name, "sigmoid", node.attrs, node.inputs, node.outputs)
    with pytest.raises(GraphError, match="unknown operator") as caught:
        CpuSession(StepGraph(tuple(nodes)), step.samples)
    assert caught.value.where == f"node {node.name} (sigmoid)"
