"""Circuits of whole steps hold of what the law says, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.prove.forging import at, find_broken, forge
from tests.prove.step_law import (
    DECAYS,
    STATES,
    Statement,
    conclude,
    evaluate,
    is_true,
    make_circuit,
    make_graph,
    make_statement,
)
from tests.prove.tamper import compute_late, find_uncaught
from tests.prove.tile_steps import with_node
from tests.prove.uses import count_cells
from tests.tasks import make_tiny_task
from vtrain.commit.kzg_layout import state_names
from vtrain.errors import CircuitError
from vtrain.ops.base import attr_int
from vtrain.prove.backend.cost import estimate
from vtrain.prove.backend.settings import count_blocks, count_usable
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.steps.builder import AFTER, BATCH, BEFORE, LOSS, RATE, Size
from vtrain.prove.steps.circuits import MAX_INNER_COLUMNS, build_step_circuit, build_with
from vtrain.prove.steps.emit.optimizer import bound_kept_momentum
from vtrain.spec.field import SCALAR_FIELD
from vtrain.spec.number import NUMPY_DTYPES, SATURATION, STORAGE, rs, rs_int
from vtrain.wire.graph import Node, Ref, StepGraph

LARGE = Size(4, 2**30)
losses = pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
both = pytest.mark.parametrize("clamps", [True, False], ids=["clamps", "plain"])
slow_losses = pytest.mark.parametrize(
    "loss", ["mse", pytest.param("cross_entropy", marks=pytest.mark.slow)]
)
"""For what would be the same with a softmax, and takes long."""
LOSSES_AND_DECAYS = [("cross_entropy", "some"), *(("mse", decay) for decay in DECAYS)]
decays = pytest.mark.parametrize(("loss", "decay"), LOSSES_AND_DECAYS)


def broken(loss: str, decay: str, clamps: bool, statement: Statement, **more: object) -> list[str]:
    circuit = make_circuit(loss, decay, clamps)
    return find_broken(circuit, statement.given, statement.parameters, **more)  # type: ignore[arg-type]


def with_late(circuit: Circuit, vectors: dict[str, Ints], statement: Statement) -> dict[str, Ints]:
    """With the inverses that a solver would compute for these."""
    late = compute_late(circuit, vectors, statement.parameters)
    assert late is not None
    return {**vectors, **late}


def find_place(graph: StepGraph, state: str) -> slice:
    """Where a state tensor is in ``before`` and ``after``."""
    start = 0
    for name in state_names(graph):
        size = graph.type_of(graph.states()[name]).size
        if name == state:
            return slice(start, start + size)
        start += size
    raise AssertionError(state)


@decays
@pytest.mark.parametrize("state", STATES)
def test_true_steps_hold_whatever_saturates(loss: str, decay: str, state: str) -> None:
    assert broken(loss, decay, True, make_statement(loss, decay, state)) == []


@decays
@pytest.mark.parametrize("state", STATES)
def test_without_clamps_only_steps_that_saturate_are_lost(
    loss: str, decay: str, state: str
) -> None:
    found = broken(loss, decay, False, make_statement(loss, decay, state))
    assert bool(found) == (state not in ("fresh", "trained", "zero"))


ALTERED = [(BEFORE, 12), (AFTER, 12), (BATCH, 12), (LOSS, 2), (RATE, 2)]


@decays
@both
def test_one_altered_element_holds_only_where_the_law_agrees(
    loss: str, clamps: bool, decay: str
) -> None:
    graph, honest = make_graph(loss, decay), make_statement(loss, decay)
    rng = np.random.default_rng(1)
    disagreed = []
    for name, count in ALTERED:
        for _ in range(count if loss == "mse" else count // 2):
            index = int(rng.integers(honest.get(name).size))
            value = int(honest.get(name)[index]) + int(rng.choice([-1, 1, 2, -257, 2**9]))
            statement = honest.altered(name, index, value)
            if is_true(graph, statement) != (not broken(loss, decay, clamps, statement)):
                disagreed.append((name, index, value))
    assert not disagreed


@slow_losses
@both
def test_two_altered_elements_hold_only_where_the_law_agrees(loss: str, clamps: bool) -> None:
    """Alterations that belong together: a state's element before and after, or two that cancel."""
    graph, honest = make_graph(loss, "some"), make_statement(loss, "some")
    rng = np.random.default_rng(2)
    agreed, disagreed = set(), []
    for _ in range(24):
        delta = int(rng.choice([-1, 1, 2, 1 << 12]))
        index = int(rng.integers(honest.given[BEFORE].size))
        first = str(rng.choice([BEFORE, AFTER]))
        second = AFTER if first == BEFORE else str(rng.choice([AFTER, LOSS]))
        other = index
        if first == AFTER:
            other = int(rng.integers(honest.get(second).size))
        statement = honest
        for name, place, change in ((first, index, delta), (second, other, delta)):
            sign = -1 if first == AFTER and name == second else 1
            value = int(statement.get(name)[place]) + sign * change
            statement = statement.altered(name, place, value)
        true = is_true(graph, statement)
        agreed.add(true)
        if true != (not broken(loss, "some", clamps, statement)):
            disagreed.append((first, index, second, other, delta))
    assert not disagreed
    assert agreed == {True, False}


NO_INTEGERS = {
    "a half": pow(2, -1, SCALAR_FIELD),
    "a 16th": pow(16, -1, SCALAR_FIELD),
    "a third": pow(3, -1, SCALAR_FIELD),
    "the middle of the field": SCALAR_FIELD // 2,
}


@slow_losses
@both
@pytest.mark.parametrize("what", NO_INTEGERS)
@pytest.mark.parametrize("name", [BEFORE, AFTER, BATCH, LOSS])
def test_nothing_committed_to_is_a_fraction(loss: str, clamps: bool, what: str, name: str) -> None:
    honest = make_statement(loss, "some")
    circuit = make_circuit(loss, "some", clamps)
    vectors = forge(circuit, honest.given, honest.parameters)
    for index in range(0, honest.get(name).size, 97):
        value = (int(honest.get(name)[index]) + NO_INTEGERS[what]) % SCALAR_FIELD
        if name == LOSS:
            assert broken(loss, "some", clamps, honest.altered(name, index, value))
            continue
        altered = vectors[name].copy()
        altered[index] = value
        # The hints of the honest value: those of a fraction mean nothing.
        assert circuit.find_broken(with_late(circuit, {**vectors, name: altered}, honest)), index


@slow_losses
@both
@pytest.mark.parametrize(
    ("name", "value"), [(BEFORE, 2**31), (BEFORE, -(2**31) - 1), (BATCH, 256), (BATCH, -1)]
)
def test_what_no_dtype_holds_is_refused(loss: str, clamps: bool, name: str, value: int) -> None:
    graph, honest = make_graph(loss, "some"), make_statement(loss, "some")
    places = [find_place(graph, state).start for state in state_names(graph)]
    circuit = make_circuit(loss, "some", clamps)
    vectors = forge(circuit, honest.given, honest.parameters)
    held = ("before/", "momentum/", "batch/", "x/prepared", "w1", "w2")
    for index in places if name == BEFORE else [0, 5]:
        altered = vectors[name].copy()
        altered[index] = value
        # The hints of the honest value: those of this one mean nothing, or cannot be computed.
        found = circuit.find_broken(with_late(circuit, {**vectors, name: altered}, honest))
        assert any(item.startswith(held) for item in found), index


@losses
@pytest.mark.parametrize("weight", ["w1", "w2"])
def test_weights_are_integers_though_only_their_operands_are_held(loss: str, weight: str) -> None:
    """w + 2^-e, where the remainders of operand and update hide the fraction: scaled by 2^e, they
    are integers."""
    graph, honest = make_graph(loss, "some"), make_statement(loss, "some")
    circuit = make_circuit(loss, "some", clamps=False)
    vectors = forge(circuit, honest.given, honest.parameters)
    state = graph.states()[f"param/{weight}"]
    shift = next(
        attr_int(node.attrs, "shift")
        for node in graph.nodes
        if node.op == "rescale" and node.inputs == (state,)
    )
    place = find_place(graph, f"param/{weight}")
    parts = {name: start for name, start, _ in circuit.parts("limbs")}
    operand = parts[f"{weight}/remainder/scaled"]
    update = parts[f"param/{weight}/next/remainder/scaled"]
    [rate_shift] = [
        attr_int(node.attrs, "shift")
        for node in graph.nodes
        if node.op == "sgd_update" and node.inputs[0] == state
    ]
    assert rate_shift < 16  # one limb
    grown = 1 << 16 - rate_shift + rate_shift - (16 - shift)
    size = place.stop - place.start
    index = next(i for i in range(size) if vectors["limbs"][update + i] + grown <= 1 << 16)
    before, limbs = vectors[BEFORE].copy(), vectors["limbs"].copy()
    before[place.start + index] += pow(1 << 16 - shift, -1, SCALAR_FIELD)
    limbs[operand + index] += 1
    limbs[update + index] += grown
    found = circuit.find_broken({**vectors, BEFORE: before, "limbs": limbs})
    assert found == [f"{weight}/from above"]


def list_hinted(loss: str) -> list[str]:
    """Nodes with hints of their own, as outputs or as masks."""
    graph = make_graph(loss, "some")
    hints = {name for name, _, _ in make_circuit(loss, "some", True).parts("hints")}
    return [
        node.name
        for node in graph.nodes
        if node.name in hints
        or f"{node.name}/mask" in hints
        or node.op in ("momentum", "sgd_update")
    ]


GROUPED = {
    "loss/max": "loss/softmax",
    "loss/exp": "loss/softmax",
    "loss/sum": "loss/softmax",
    "loss/probabilities": "loss/softmax",
}


@pytest.mark.parametrize(
    ("loss", "name"),
    [(loss, name) for loss in ("cross_entropy", "mse") for name in list_hinted(loss)],
)
@both
def test_every_node_is_held_by_conditions_of_its_own(loss: str, name: str, clamps: bool) -> None:
    """One element of a node's output is false, and all that follows is the law's: state after,
    loss, hints.  Nothing but this node's own conditions can tell."""
    if loss == "cross_entropy" and not (clamps or name.startswith("loss")):
        return  # as with the other loss
    graph, honest = make_graph(loss, "some"), make_statement(loss, "some")
    inputs = {**honest.given, **honest.parameters}
    [index] = [i for i, node in enumerate(graph.nodes) if node.name == name]
    node, found = graph.nodes[index], evaluate(graph, inputs)
    true = found[Ref(index)].astype(np.int64)
    circuit = make_circuit(loss, "some", clamps)
    masked = f"{name}/mask" in {hint for hint, _, _ in circuit.parts("hints")}
    passed = found[node.inputs[0]].reshape(-1).astype(np.int64)
    # Where a mask passes 0, turning it round changes nothing.
    places = np.flatnonzero(passed) if masked else np.arange(true.size)
    for place, delta in ((int(places[0]), 1), (int(places[-1]), -1)):
        false, changes = true.copy(), {}
        flat = false.reshape(-1)
        if masked:
            flat[place] = 0 if flat[place] else passed[place]
            changes = {f"{name}/mask": at(place, lambda value: 1 - value)}
        else:
            flat[place] += delta if abs(flat[place] + delta) <= _most(node) else -delta
            if node.op not in ("momentum", "sgd_update"):
                changes = {name: at(place, int(flat[place]))}
        kept = false.astype(NUMPY_DTYPES[node.outputs[0].dtype])
        statement = conclude(graph, inputs, {name: kept})
        names = find_broken(circuit, statement.given, statement.parameters, changes)
        assert names, place
        own = GROUPED.get(name, name)
        others = [item for item in names if not item.removeprefix("ones: ").startswith(own)]
        assert not others or others == ["no witness"], place


def _most(node: Node) -> int:
    dtype = node.outputs[0].dtype
    return 2**62 if dtype == "i64" else SATURATION[dtype][1]


@pytest.mark.parametrize("decay", DECAYS)
def test_a_momentum_clamps_where_it_can(decay: str) -> None:
    """The law of the largest momenta and gradients says where: no other circuit has the cells."""
    graph = make_graph("mse", decay)
    hints = {name for name, _, _ in make_circuit("mse", decay, True).parts("hints")}
    most = SATURATION["i32"][1]
    found, expected = {}, {}
    for node in graph.nodes:
        if node.op == "momentum":
            lost, shift = attr_int(node.attrs, "decay"), attr_int(node.attrs, "shift")
            kind = graph.type_of(node.inputs[1])
            reached = [
                abs(v - rs_int(v * lost, 16) + rs_int(g, shift))
                for v in STORAGE["i32"]
                for g in (kind.lo, kind.hi)
            ]
            expected[node.name] = max(reached) > most
            found[node.name] = f"{node.name}/excess" in hints
    assert found == expected
    assert set(found.values()) == {decay in ("most", "all")}


@pytest.mark.parametrize("lost", [0, 1, 2, 255, 6554, 1 << 15, 40_000, (1 << 16) - 1, 1 << 16])
def test_no_momentum_keeps_more_of_itself_than_the_largest(lost: int) -> None:
    lo, hi = STORAGE["i32"]
    rng = np.random.default_rng(lost)
    near = np.arange(1 << 17)
    values = np.concatenate([lo + near, hi - near, rng.integers(lo, hi, 1 << 17)])
    kept = values - rs(values * lost, 16)
    assert np.abs(kept).max() == bound_kept_momentum(lost)


@pytest.mark.parametrize("digit", ["high", "low"])
def test_what_a_momentum_loses_is_a_share_of_itself(digit: str) -> None:
    """The digits of another momentum, and all that follows from these."""
    name, decay = "momentum/w1/next", DECAYS["some"]
    graph, honest = make_graph("mse", "some"), make_statement("mse", "some")
    inputs = {**honest.given, **honest.parameters}
    place = find_place(graph, "momentum/w1").start
    value = int(honest.given[BEFORE][place])
    other = value + (1 << 16 if digit == "high" else 100)
    assert digit == "high" or value & 0xFFFF < 65000
    lost = rs_int(other * decay, 16) - rs_int(value * decay, 16)
    false = evaluate(graph, inputs)[ref_of(graph, name)].copy()
    false[0, 0] -= lost
    statement = conclude(graph, inputs, {name: false})
    changes = {
        f"{name}/{digit}": at(0, lambda limb: limb + (1 if digit == "high" else 100)),
    }
    circuit = make_circuit("mse", "some", True)
    found = find_broken(circuit, statement.given, statement.parameters, changes)
    assert found == [f"{name}/parts"]


@slow_losses
@both
def test_private_values_are_as_they_must_be(loss: str, clamps: bool) -> None:
    statement = make_statement(loss, "some")
    circuit = make_circuit(loss, "some", clamps)
    vectors = forge(circuit, statement.given, statement.parameters)
    changes = ("one more", "a third more")
    tried, uncaught = find_uncaught(
        circuit,
        vectors,
        statement.parameters,
        changes=changes,
        spots=1,
        whole=False,
        late=False,
    )
    assert tried > 50
    assert not uncaught


@decays
@both
def test_no_committed_value_is_without_a_condition(loss: str, decay: str, clamps: bool) -> None:
    """What no cell but that of its vector holds could have any value."""
    cells, _ = count_cells(make_circuit(loss, decay, clamps))
    assert {name: min(counts) > 1 for name, counts in cells.items()} == dict.fromkeys(cells, True)


def test_labels_beyond_the_classes_are_not_provable() -> None:
    """The law takes the nearest class for them; the circuit holds of none."""
    graph, honest = make_graph("cross_entropy", "some"), make_statement("cross_entropy", "some")
    inputs = {**honest.given, **honest.parameters}
    inputs[BATCH] = inputs[BATCH].copy()
    inputs[BATCH][-1] = 4
    statement = conclude(graph, inputs)
    assert is_true(graph, statement)
    assert broken("cross_entropy", "some", True, statement)


# --- graphs that are legal and not vtrain's own


def rewire(graph: StepGraph, name: str, **changes: object) -> StepGraph:
    [index] = [i for i, node in enumerate(graph.nodes) if node.name == name]
    return with_node(graph, index, **changes)


def ref_of(graph: StepGraph, name: str) -> Ref:
    [index] = [i for i, node in enumerate(graph.nodes) if node.name == name]
    return Ref(index)


@both
def test_a_state_that_is_kept_is_tied_to_what_it_was(clamps: bool) -> None:
    """A frozen bias: its next value is not made by an optimizer."""
    graph = make_graph("mse", "some")
    kept = rewire(graph, "next/param/b1", inputs=(graph.states()["param/b1"],))
    place = find_place(kept, "param/b1").start
    honest = make_statement("mse", "some")
    with pytest.raises(CircuitError):
        # Its optimizer's node makes no state any more.
        build_with(kept, LARGE, clamps=clamps)
    frozen = rewire(graph, "next/momentum/b1", inputs=(graph.states()["momentum/b1"],))
    frozen = rewire(frozen, "next/param/b1", inputs=(graph.states()["param/b1"],))
    nodes = [
        node if node.name not in ("momentum/b1/next", "param/b1/next") else _harmless(node)
        for node in frozen.nodes
    ]
    frozen = StepGraph(tuple(nodes))
    statement = conclude(frozen, {**honest.given, **honest.parameters})
    circuit = build_with(frozen, LARGE, clamps=clamps)
    assert statement.given[AFTER][place] == statement.given[BEFORE][place]
    assert not find_broken(circuit, statement.given, statement.parameters)
    false = statement.altered(AFTER, place, int(statement.given[AFTER][place]) + 1)
    assert find_broken(circuit, false.given, false.parameters) == ["next/param/b1"]


def _harmless(node: Node) -> Node:
    """In place of a node of a bias's update: the bias as it was, which nobody reads."""
    attrs = {"perm": (0,)}
    return replace(node, op="transpose", attrs=attrs, inputs=node.inputs[:1])


def test_loss_of_the_record_is_the_only_loss() -> None:
    graph = make_graph("cross_entropy", "some")
    record = graph.nodes[graph.find("record")]
    for name in ("loss/sum", "rate"):
        inputs = (*record.inputs[:2], ref_of(graph, name), record.inputs[3])
        with pytest.raises(CircuitError, match="loss"):
            build_with(rewire(graph, "record", inputs=inputs), LARGE, clamps=False)


def test_row_nodes_belong_to_a_softmax() -> None:
    """A sum of rows that is divided by nowhere is tied to nothing."""
    graph = make_graph("cross_entropy", "some")
    rows = graph.nodes[ref_of(graph, "loss/rows").node]
    spare = replace(graph.nodes[ref_of(graph, "loss/sum").node], name="spare")
    [at_rows] = [i for i, node in enumerate(graph.nodes) if node is rows]
    # In place of a node that is not of the circuit, and nothing but hashes reads.
    [spot] = [i for i, node in enumerate(graph.nodes) if node.name == "digest/param/b1"]
    assert spot > at_rows
    with pytest.raises(CircuitError, match="softmax"):
        build_with(with_node(graph, spot, **vars_of(spare)), LARGE, clamps=False)


def vars_of(node: Node) -> dict[str, object]:
    return {name: getattr(node, name) for name in ("op", "name", "inputs", "attrs", "outputs")}


def test_the_rate_is_that_of_the_steps_own_number() -> None:
    graph = make_graph("mse", "some")
    late = rewire(graph, "rate", inputs=(ref_of(graph, "step/next"),))
    with pytest.raises(CircuitError, match="rate"):
        build_with(late, LARGE, clamps=False)


@pytest.mark.parametrize("kind", ["cnn"])
def test_other_models_are_refused(kind: str) -> None:
    with pytest.raises(CircuitError, match="no circuit for the operator"):
        build_with(make_tiny_task(kind).graph, LARGE, clamps=False)


@pytest.mark.parametrize(("k", "columns"), [(17, 3), (18, 2)])
def test_the_columns_chosen_take_the_least_memory(k: int, columns: int) -> None:
    graph = make_tiny_task("wide").graph
    chosen = build_step_circuit(graph, k, "step-clamps")
    assert (chosen.inner_columns, count_blocks(chosen, k)) == (columns, 1)
    for others in range(1, MAX_INNER_COLUMNS + 1):
        other = build_with(graph, Size(others, count_usable(k)), clamps=True)
        assert estimate(chosen, k).memory <= estimate(other, k).memory


def test_cells_fit_in_the_columns_chosen() -> None:
    graph = make_tiny_task(loss="mse").graph
    for name in ("step", "step-clamps"):
        circuit = build_step_circuit(graph, 17, name)
        assert circuit.inner_columns == 1
        assert circuit.cells <= 1 << 17
    with pytest.raises(CircuitError, match="17"):
        build_step_circuit(graph, 16)
    with pytest.raises(CircuitError, match="none of"):
        build_step_circuit(graph, 17, "stairs")
