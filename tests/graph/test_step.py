"""The training step as a graph: what it contains, what it does, and which tasks it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.engines.steps import make_step
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import GraphError, RangeError, TaskError
from vtrain.graph.activation import LOG2_E, LOG2_E_EXPONENT
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.legality import check_graph
from vtrain.graph.model import Linear, Model, Relu
from vtrain.graph.step import (
    LOSSES,
    Affine,
    Momentum,
    OneHot,
    StepPlan,
    compute_initial_state,
    count_terms,
    emit_step,
    momentum_state,
    param_state,
)
from vtrain.spec.commitment import compute_batch_digest, compute_tensor_digest
from vtrain.spec.order import compute_batch_indices
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.wire.graph import StepGraph

RNG = np.random.default_rng(6)
PARAMS = {
    "w1": (RNG.uniform(-1, 1, (5, 8)) * 2**23).astype(np.int32),
    "b1": np.zeros(5, np.int32),
    "w2": (RNG.uniform(-1, 1, (3, 5)) * 2**23).astype(np.int32),
}
MODEL = Model(
    "image",
    (8,),
    (
        Linear("fc1", "image", "w1", "b1", True),
        Relu("r1", "fc1"),
        Linear("fc2", "r1", "w2", None, True),
    ),
    "fc2",
    PARAMS,
)
EXPONENTS = {"w1": 14, "fc1": 11, "w2": 14, "fc2": 11, "r1/grad": 13}
SAMPLES = build_samples(
    RNG.integers(0, 256, (20, 8), dtype=np.uint8), RNG.integers(0, 3, 20, dtype=np.uint8)
)
PLAN = StepPlan(
    data=SAMPLES.spec,
    prepare=Affine(257, 0, 1, exponent=15),
    loss="cross_entropy",
    optimizer=Momentum(decay=6554, starts=(0, 3), rates=(40000, 10000), exponent=22),
    seed=5,
    batch=4,
    commit_every=2,
)


def build(
    plan: StepPlan = PLAN, model: Model = MODEL, exponents: dict[str, int] = EXPONENTS
) -> StepGraph:
    builder = GraphBuilder(FixedExponents(exponents))
    emit_step(builder, plan, model)
    graph = builder.graph()
    check_graph(graph)
    return graph


def open_session(
    graph: StepGraph, samples: Samples = SAMPLES, model: Model = MODEL
) -> NumpySession:
    session = NumpySession(graph, samples)
    session.load_state(compute_initial_state(model.params))
    return session


def node(graph: StepGraph, name: str) -> int:
    return next(i for i, other in enumerate(graph.nodes) if other.name == name)


def test_the_initial_state() -> None:
    state = compute_initial_state(PARAMS)
    assert set(state) == {"step", *map(param_state, PARAMS), *map(momentum_state, PARAMS)}
    assert state["step"].shape == ()
    assert state["step"].dtype == np.int64
    assert not any(state[momentum_state(name)].any() for name in PARAMS)
    assert all(np.array_equal(state[param_state(name)], PARAMS[name]) for name in PARAMS)


def test_the_graph_declares_that_state() -> None:
    graph = build()
    state = compute_initial_state(PARAMS)
    assert set(graph.states()) == set(graph.next_states()) == set(state)
    for name, ref in graph.states().items():
        assert graph.type_of(ref).shape == state[name].shape


def test_log2_e_is_rounded_right() -> None:
    assert round(np.log2(np.e) * 2.0**LOG2_E_EXPONENT) == LOG2_E


def test_the_batch_is_what_order_and_samples_say() -> None:
    graph = build()
    session = open_session(graph)
    for t in range(7):  # a batch of four out of twenty: an epoch is five steps
        index = compute_batch_indices(PLAN.seed, 20, PLAN.batch, t)
        x, y = session.evaluate(node(graph, "x")), session.evaluate(node(graph, "y"))
        assert np.array_equal(x, SAMPLES.part("x")[index])
        assert np.array_equal(y, SAMPLES.part("y")[index])
        digest = compute_batch_digest(compute_tensor_digest(x), compute_tensor_digest(y))
        assert session.step().batch_digest == digest


def test_the_rate_follows_its_schedule() -> None:
    session = open_session(graph := build())
    rates = []
    for _ in range(5):
        rates.append(int(session.evaluate(node(graph, "rate"))))
        session.step()
    assert rates == [40000] * 3 + [10000] * 2


def test_training_lowers_the_loss() -> None:
    x = np.repeat(np.eye(3, 8, dtype=np.uint8) * 255, 8, axis=0)
    samples = build_samples(x, np.repeat(np.arange(3, dtype=np.uint8), 8))
    optimizer = Momentum(decay=6554, starts=(0,), rates=(40960,), exponent=20)
    session = open_session(build(replace(PLAN, data=samples.spec, optimizer=optimizer)), samples)
    losses = [session.step().loss for _ in range(60)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) / 4


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_node_outside_the_record_and_the_state(kind: str, loss: str) -> None:
    """All that a step does reaches its record or its next state."""
    graph = make_step(kind, loss).graph
    used = {ref.node for other in graph.nodes for ref in other.inputs}
    idle = [
        other.name
        for i, other in enumerate(graph.nodes)
        if i not in used and other.op not in ("next_state", "record")
    ]
    assert idle == []


def test_tokens_enter_as_one_hot() -> None:
    tokens = build_samples(
        RNG.integers(0, 4, (9, 2), dtype=np.uint8), RNG.integers(0, 3, 9, dtype=np.uint8)
    )
    plan = replace(PLAN, data=tokens.spec, prepare=OneHot(4))
    graph = build(plan)
    session = open_session(graph, tokens)
    x, prepared = session.evaluate(node(graph, "x")), session.evaluate(node(graph, "x/prepared"))
    assert prepared.shape == (4, 8)
    assert [np.flatnonzero(row).tolist() for row in prepared] == [
        [int(a), 4 + int(b)] for a, b in x
    ]


# --- refusals


def test_a_label_for_each_place_is_a_row_for_each_place() -> None:
    """A batch of 2 samples with 3 places each has the loss and the update of 6 samples of one."""
    x = RNG.integers(0, 256, (6, 8), dtype=np.uint8)
    y = RNG.integers(0, 3, 6, dtype=np.uint8)
    states, records = [], []
    for samples, model, batch in (
        (build_samples(x, y), MODEL, 6),
        (build_samples(x.reshape(2, 3, 8), y.reshape(2, 3)), replace(MODEL, input_shape=(3, 8)), 2),
    ):
        terms = count_terms("cross_entropy", samples.spec, batch)
        assert terms == 6
        sites = {"fc1/out_rows": 11, "fc2/out_rows": 11} if batch == 2 else {}
        plan = replace(PLAN, data=samples.spec, batch=batch)
        graph = build(plan, model=model, exponents={**EXPONENTS, **sites})
        session = NumpySession(graph, samples)
        session.load_state(compute_initial_state(PARAMS))
        records.append(session.step())
        states.append(session.read_state())
    assert records[0].loss == records[1].loss > 0
    for name, values in states[0].items():
        assert np.array_equal(values, states[1][name]), name


def test_labels_that_do_not_fit_the_loss() -> None:
    with pytest.raises(TaskError, match="a label") as caught:
        build(replace(PLAN, data=replace(SAMPLES.spec, y_shape=(2,))))
    assert caught.value.where == "loss"
    with pytest.raises(TaskError, match="targets as large") as caught:
        build(replace(PLAN, loss="mse"))
    assert caught.value.where == "loss"


def test_exponents_that_would_overflow_an_accumulator_are_refused_by_node() -> None:
    """A bias brought to 65 fraction bits would need 72 bits: the range analysis says so."""
    with pytest.raises(RangeError, match="aligned bias") as caught:
        build(exponents={**EXPONENTS, "w1": 50})
    assert caught.value.where == "node fc1/biased (add_bias)"


def test_sums_that_would_pass_two_to_the_sixty_are_refused() -> None:
    """Squared errors of full int16 outputs, 3 * 2^14 of them, in 16 fraction bits: 62 bits."""
    data = replace(SAMPLES.spec, y_dtype="i16", y_shape=(3,), y_exponent=0)
    plan = replace(PLAN, data=data, loss="mse")
    exponents = {**EXPONENTS, "fc2": 0, "loss/grad": 0}
    build(replace(plan, batch=2**12), exponents=exponents)
    with pytest.raises(RangeError, match="2\\^60") as caught:
        build(replace(plan, batch=2**14), exponents=exponents)
    assert caught.value.where == "node loss (square_sum)"


def test_an_exponent_out_of_reach_is_refused() -> None:
    data = replace(SAMPLES.spec, y_dtype="i16", y_shape=(3,), y_exponent=0)
    with pytest.raises(GraphError, match="shift") as caught:
        build(replace(PLAN, data=data, loss="mse"), exponents={**EXPONENTS, "loss/grad": -40})
    assert caught.value.where == "node loss (square_sum)"


def test_a_rate_that_overflows_is_refused() -> None:
    optimizer = Momentum(decay=6554, starts=(0,), rates=(65535,), exponent=-40)
    with pytest.raises(RangeError, match="the step") as caught:
        build(replace(PLAN, optimizer=optimizer))
    assert caught.value.where == "node param/w1/next (sgd_update)"


def test_a_batch_too_large_for_memory_is_refused() -> None:
    huge = replace(SAMPLES.spec, x_shape=(2**20,))
    model = replace(MODEL, input_shape=(2**20,))
    with pytest.raises(GraphError, match="elements") as caught:
        build(replace(PLAN, data=huge, batch=2**20), model)
    assert caught.value.where == "node x (gather_samples)"
