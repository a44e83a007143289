"""Exponents from measured accumulators: the rule, its margin, and what it does with silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import TaskError
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import Calibration, NodeEvaluator, calibrate
from vtrain.graph.legality import check_graph
from vtrain.graph.model import AveragePool, Conv, Linear, Model, Relu, Reshape
from vtrain.graph.step import Affine, Momentum, StepPlan, compute_initial_state, emit_step
from vtrain.ops import TABLE
from vtrain.ops.layout import Window
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.wire.graph import Attrs, Node, StepGraph, TensorType

CLASSES = 3
RNG = np.random.default_rng(2)


def draw(*shape: int) -> npt.NDArray[np.int32]:
    return (RNG.uniform(-0.5, 0.5, shape) * 2**24).astype(np.int32)


MODEL = Model(
    "image",
    (1, 8, 8),
    (
        Conv("c1", "image", "k", "kb", Window((3, 3), (1, 1), (1, 1, 1, 1))),
        Relu("r1", "c1"),
        AveragePool("a1", "r1", Window((3, 3), (3, 3), (0, 0, 1, 1))),
        Reshape("flat", "a1", (18,)),
        Linear("out", "flat", "w", "b", True),
    ),
    "out",
    {"k": draw(2, 3, 3, 1), "kb": draw(2), "w": draw(CLASSES, 18), "b": draw(CLASSES)},
)
SAMPLES = build_samples(
    RNG.integers(0, 256, (30, 1, 8, 8), dtype=np.uint8),
    RNG.integers(0, CLASSES, 30, dtype=np.uint8),
)
PLAN = StepPlan(
    data=SAMPLES.spec,
    prepare=Affine(257, 0, 1, exponent=15),
    loss="cross_entropy",
    optimizer=Momentum(decay=6554, starts=(0,), rates=(40000,), exponent=22),
    seed=1,
    batch=6,
    commit_every=1,
)


def run(steps: int = 3, margin: int = 3, model: Model = MODEL, plan: StepPlan = PLAN,
        samples: Samples = SAMPLES, gradient_margin: int | None = None) -> Calibration:  # fmt: skip
    return calibrate(
        lambda b: emit_step(b, plan, model),
        compute_initial_state(model.params),
        samples,
        steps=steps,
        margin=margin,
        gradient_margin=gradient_margin,
    )


def build(exponents: Mapping[str, int]) -> StepGraph:
    builder = GraphBuilder(FixedExponents(exponents))
    emit_step(builder, PLAN, MODEL)
    return builder.graph()


def largest_before_shift(graph: StepGraph, steps: int) -> dict[str, list[int]]:
    """For each site and step, the largest |accumulator * multiplier|, by the reference engine."""
    session = NumpySession(graph, SAMPLES)
    session.load_state(compute_initial_state(MODEL.params))
    found: dict[str, list[int]] = {}
    for _ in range(steps):
        for node in graph.nodes:
            if node.op == "rescale" and node.attrs["dtype"] == "i16":
                factor = node.attrs["multiplier"]
                assert isinstance(factor, int)
                values = session.evaluate(node.inputs[0].node).astype(np.int64)
                largest = int(np.abs(values).max()) * factor
                found.setdefault(node.name, []).append(largest)
        session.step()
    return found


def test_calibration_is_reproducible() -> None:
    assert run() == run()
    assert run().silent == ()


def test_the_rule_after_one_step() -> None:
    """f = 15 - margin - E, E = bitlen(max |acc|) - f_acc: `margin` bits stay free, and no more."""
    margin = 3
    exponents = run(steps=1, margin=margin).exponents
    graph = build(exponents)
    largest = largest_before_shift(graph, 1)
    assert set(largest) == set(exponents)
    for node in graph.nodes:
        if node.name in exponents:
            shift, factor = node.attrs["shift"], node.attrs["multiplier"]
            assert isinstance(shift, int)
            assert isinstance(factor, int)
            bits = largest[node.name][0].bit_length() - shift
            # A multiplier that is no power of two is counted as the next one.
            assert 15 - margin - (factor > 1) <= bits <= 15 - margin, node.name


def test_nothing_saturates_with_the_multiplier_of_an_average() -> None:
    """The multiplier of a mean over nine has 15 bits: they count."""
    graph = build(run(steps=2, margin=1).exponents)
    session = NumpySession(graph, SAMPLES)
    session.load_state(compute_initial_state(MODEL.params))
    session.step()
    session.step()
    # A pixel of 255 is 32767 once prepared, which the format holds to 32639.
    assert set(session.saturation()) <= {"x/prepared"}
    mean = next(i for i, node in enumerate(graph.nodes) if node.name == "a1")
    assert np.abs(session.evaluate(mean)).max() > 2**11, "and no bits are wasted either"


def test_a_site_keeps_the_least_of_all_steps() -> None:
    one, five = run(steps=1).exponents, run(steps=5).exponents
    assert all(five[site] <= one[site] for site in one)
    assert five != one


def test_margin_is_bits() -> None:
    """Of the first step, whose accumulators no margin touches, for sites that follow no other."""
    by_margin = [run(steps=1, margin=margin).exponents for margin in (0, 1, 5, 12)]
    for site in ("k", "w"):
        base = by_margin[0][site]
        assert [exponents[site] for exponents in by_margin] == [base, base - 1, base - 5, base - 12]


def test_gradients_have_a_margin_of_their_own() -> None:
    same, finer = (run(steps=1, gradient_margin=margin).exponents for margin in (3, 1))
    assert same == run(steps=1).exponents
    gained = {site: finer[site] - exponent for site, exponent in same.items()}
    gradients = {site for site in same if "grad" in site}
    assert {gained[site] for site in gradients} <= {1, 2, 3}, "what is measured has its rounding"
    assert 2 in {gained[site] for site in gradients}
    assert {gained[site] for site in same.keys() - gradients} == {0}


def test_halves_of_gradients_go_away_from_zero() -> None:
    """Where that is asked for, at each rounding after the loss; forward values stay as they are."""
    exponents = run(steps=1).exponents
    plain = build(exponents)
    builder = GraphBuilder(FixedExponents(exponents))
    emit_step(builder, replace(PLAN, symmetric_gradients=True), MODEL)
    check_graph(builder.graph())
    rounded = 0
    for node, before in zip(builder.graph().nodes, plain.nodes, strict=True):
        if node == before or node.op != "rescale":
            continue
        rounded += 1
        assert "grad" in node.name
        (out,) = node.outputs
        assert (out.exponent, out.dtype) == (before.outputs[0].exponent, "i16")
        half = 1 << (int(str(before.attrs["shift"])) - 1)
        x = np.array([-3 * half, -half, 0, half, 3 * half], np.int64)
        law = TABLE["rescale"].law
        assert law(node.attrs, [x]).tolist() == [-2, -1, 0, 1, 2]
        assert law(before.attrs, [x]).tolist() == [-1, 0, 0, 1, 2]
    assert rounded > 0


def test_silent_sites_are_named_and_get_an_exponent() -> None:
    """With dead weights nothing reaches the output, and no gradient comes back."""
    dead = {**MODEL.params, "w": np.zeros((CLASSES, 18), np.int32), "b": np.zeros(3, np.int32)}
    result = run(steps=1, model=replace(MODEL, params=dead))
    assert "w" in result.silent
    assert "out" in result.silent
    assert set(result.silent) <= set(result.exponents)
    policy = FixedExponents(result.exponents)
    emit_step(GraphBuilder(policy), PLAN, replace(MODEL, params=dead))
    assert policy.used == set(result.exponents), "every site is listed, silent or not"
    # One step later the weights have moved.
    assert "w" not in run(steps=2, model=replace(MODEL, params=dead)).silent


def test_exponents_are_bounded() -> None:
    """A value of one unit at 96 fraction bits."""

    def emit(b: GraphBuilder) -> None:
        t = b.emit("state", "step", (), name="step", dtype="i64", shape=(), exponent=0)
        tiny = after = b.emit("increment", "step/next", (t,))
        b.emit("next_state", "next/step", (after,), name="step")
        for i in range(3):
            tiny = b.rescale(f"finer{i}", tiny, 32 * (i + 1), dtype="i64", multiplier_exponent=32)
        b.rescale_at_site("tiny", tiny)

    state = {"step": np.zeros((), np.int64)}
    assert calibrate(emit, state, SAMPLES, steps=1, margin=3).exponents == {"tiny": 60}


@pytest.mark.parametrize(
    ("values", "largest"),
    [([-(2**63), 5], 2**63), ([2**63 - 1, 1 - 2**63], 2**63 - 1), ([-7, 6], 7), ([], 0)],
)
def test_magnitudes_are_exact(values: list[int], largest: int) -> None:
    """-2^63 too, of which int64 has no absolute value."""
    attrs: Attrs = {"name": "a", "dtype": "i64", "shape": (len(values),), "exponent": 0}
    evaluator = NodeEvaluator({"a": np.array(values, np.int64)}, SAMPLES)
    evaluator.evaluate(Node("a", "state", attrs, (), (TensorType("i64", (2,), 0, 0, 0),)))
    assert evaluator.largest(0) == largest


def test_progress_is_told_and_state_is_left_alone() -> None:
    state = compute_initial_state(MODEL.params)
    before = {name: value.copy() for name, value in state.items()}
    told: list[int] = []
    calibrate(
        lambda b: emit_step(b, PLAN, MODEL), state, SAMPLES, steps=3, margin=2, progress=told.append
    )
    assert told == [1, 2, 3]
    assert all(np.array_equal(before[name], value) for name, value in state.items())


@pytest.mark.parametrize(("steps", "margin"), [(0, 3), (-1, 3), (1, -1), (1, 13)])
def test_nonsense_is_refused(steps: int, margin: int) -> None:
    with pytest.raises(TaskError) as caught:
        run(steps=steps, margin=margin)
    assert caught.value.where == "calibration"


def test_the_margin_test_sees_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtrain.graph.calibration.OPERAND_BITS", 14)
    with pytest.raises(AssertionError):
        test_the_rule_after_one_step()


def test_values_are_those_of_the_reference_engine() -> None:
    """Calibration steps are training steps: after them, the state is the engine's."""
    exponents = run(steps=1).exponents
    graph = build(exponents)
    session = NumpySession(graph, SAMPLES)
    state: dict[str, Any] = compute_initial_state(MODEL.params)
    session.load_state(state)
    session.step()
    second = calibrate(
        lambda b: emit_step(b, PLAN, MODEL), session.read_state(), SAMPLES, steps=1, margin=3
    ).exponents
    both = run(steps=2).exponents
    assert both == {site: min(exponents[site], second[site]) for site in exponents}
