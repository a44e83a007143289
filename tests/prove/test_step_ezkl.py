"""ezkl agrees with our own evaluator about steps, and forgets no copy of a committed value."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.exhaustive import spare
from tests.prove.circuits import LIMITS
from tests.prove.copies import read_cycles
from tests.prove.forging import at, forge
from tests.prove.mock import mock_many
from tests.prove.step_law import conclude, evaluate, make_graph, make_statement
from tests.prove.tamper import tamperings
from tests.prove.uses import count_cells
from vtrain.prove.backend.keys import load_keys
from vtrain.prove.backend.settings import count_blocks, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.steps.builder import AFTER, BATCH, BEFORE, LOSS
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.spec.field import SCALAR_FIELD
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.graph import Ref

pytestmark = pytest.mark.slow

K = 17
PATIENT = replace(LIMITS, seconds=600)
Witness = dict[str, Ints]


def forge_node(loss: str, circuit: Circuit, name: str) -> Witness:
    """One element of a node's output is one more than the law says; the rest follows from it."""
    graph, honest = make_graph(loss, "some"), make_statement(loss, "some")
    inputs = {**honest.given, **honest.parameters}
    [index] = [i for i, node in enumerate(graph.nodes) if node.name == name]
    false = evaluate(graph, inputs)[Ref(index)].astype(np.int64).reshape(-1)
    false[0] += 1
    shape = graph.nodes[index].outputs[0].shape
    kept = false.reshape(shape).astype(NUMPY_DTYPES[graph.nodes[index].outputs[0].dtype])
    statement = conclude(graph, inputs, {name: kept})
    hinted = name in {hint for hint, _, _ in circuit.parts("hints")}
    changes = {name: at(0, int(false[0]))} if hinted else {}
    return forge(circuit, statement.given, statement.parameters, changes)


@pytest.mark.parametrize(
    ("loss", "name"),
    spare([("mse", "step"), ("cross_entropy", "step-clamps")], lambda case: case[0] != "mse"),
)
def test_ezkl_holds_of_what_we_hold_of(loss: str, name: str) -> None:
    graph, honest = make_graph(loss, "some"), make_statement(loss, "some")
    circuit = build_step_circuit(graph, K, name)
    true = forge(circuit, honest.given, honest.parameters)
    witnesses: dict[str, Witness] = {"true": true}
    if name == "step-clamps":
        clamped = make_statement(loss, "some", "mixed")
        witnesses["clamped"] = forge(circuit, clamped.given, clamped.parameters)
    for vector in (AFTER, LOSS):
        other = honest.altered(vector, 0, int(honest.get(vector)[0]) + 1)
        witnesses[f"{vector} and 1"] = forge(circuit, other.given, other.parameters)
    for vector in (BEFORE, BATCH):
        altered = true[vector].copy()
        altered[0] = (altered[0] + pow(2, -1, SCALAR_FIELD)) % SCALAR_FIELD
        witnesses[f"{vector} and a half"] = {**true, vector: altered}
    for op in ("matmul", "rescale", "sgd_update", "row_max"):
        made = [node.name for node in graph.nodes if node.op == op]
        witnesses |= {last: forge_node(loss, circuit, last) for last in made[-1:]}
    rng = np.random.default_rng(4)
    changes = ("one less", "zero", "half the field away")
    private = [
        tampering
        for tampering in tamperings(
            circuit, true, honest.parameters, changes=changes, spots=1, whole=False, late=False
        )
        if tampering.group in ("limbs", "hints", "late")
    ]
    for index in rng.choice(len(private), 5, replace=False):
        witnesses[private[index].name] = dict(private[index].vectors)
    ours = {key: not circuit.find_broken(vectors) for key, vectors in witnesses.items()}
    assert [key for key, holds in ours.items() if holds] == [
        key for key in ("true", "clamped") if key in witnesses
    ]
    verdicts = mock_many(circuit, pin(circuit, K), list(witnesses.values()), PATIENT)
    theirs = {key: it.holds for key, it in zip(witnesses, verdicts, strict=True)}
    assert theirs == ours


def test_limbs_beyond_the_table_are_refused_by_the_table_alone() -> None:
    """Every equation holds: a digit is carried from one limb to the next."""
    honest = make_statement("mse", "some")
    circuit = build_step_circuit(make_graph("mse", "some"), K, "step")
    true = forge(circuit, honest.given, honest.parameters)
    parts = {name: start for name, start, _ in circuit.parts("limbs")}
    low, high = parts["param/w1/next/i32/low"], parts["param/w1/next/i32/high"]
    witnesses = []
    for carried in (1, -1, 2):
        limbs = true["limbs"].copy()
        limbs[high] -= carried
        limbs[low] += 65535 * carried
        if 1 <= limbs[low] <= 1 << 16:  # the digits overlap by one
            continue
        assert circuit.find_broken({**true, "limbs": limbs}) == ["ones: param/w1/next/i32/low"]
        witnesses.append({**true, "limbs": limbs})
    assert len(witnesses) > 1
    for verdict in mock_many(circuit, pin(circuit, K), witnesses, LIMITS):
        assert not verdict.holds
        *_, places = verdict.reason.partition("answers has other values at ")
        found = [int(place) for place in places.split(", ") if place]
        assert found or "Lookup" in verdict.reason
        assert all(place < circuit.length("limbs") for place in found), "an equation, too"


def make_small_circuit(inner_columns: int) -> Circuit:
    """Every kind of node and of condition, with limbs for which few rows suffice."""
    b = CircuitBuilder(inner_columns, 255, masks=2)
    sizes = {"x": 6, "w": 6, "c": 4, "y": 4, "labels": 2, "total": 3, "big": 4}
    flat = {name: b.vector(name, size) for name, size in sizes.items()}
    x, w = b.reshape(flat["x"], (3, 2)), b.reshape(flat["w"], (2, 3))
    c, y = b.reshape(flat["c"], (2, 2)), b.reshape(flat["y"], (2, 2))
    b.matmul("product", x, w, c.lin(), ta=True, tb=True)
    gadgets.hold_range(b, "x", x, -60, 60)
    gadgets.saturating_shift(b, "shift", c.lin() * 3 + 1, 5, "i16", y, 1 << 20)
    squares = b.take(b.mul(flat["y"], flat["y"]), np.asarray([3, 1, 2, 0]))
    gadgets.gate(b, "gate", flat["c"], flat["y"], squares, 100)
    hot = gadgets.one_hot(b, "hot", flat["labels"], 3)
    ones = np.ones(2, dtype=np.int64)
    gadgets.weigh_rows(b, "sums", b.transpose(hot), ones, 0, flat["total"])
    gadgets.hold_saturated(b, "big", flat["big"], "i32")
    maximum = gadgets.spread(b, b.slice(flat["big"], 0, 2), 2)
    b.require_zero("maximum", b.product_of_all(b.sub(maximum, b.reshape(flat["big"], (2, 2)))))
    some = b.slice(flat["total"], 0, 2)
    b.member("member", (flat["labels"], some), (np.arange(4), np.arange(4)))
    rate = b.parameter("rate", (1,))
    b.zero("scaled", flat["c"].times(rate) - flat["c"].lin() * 2 + 5)
    return b.build()


@pytest.mark.parametrize(("inner_columns", "k", "blocks"), [(2, 10, 1), (5, 10, 1), (1, 9, 2)])
def test_every_value_is_bound_to_all_its_copies(
    tmp_path: Path, inner_columns: int, k: int, blocks: int
) -> None:
    """A column of the key for each of ours, and a cycle of cells for each value: as many as our own
    nodes say that must hold it.  A copy that is not bound could have any value (trap 1)."""
    circuit = make_small_circuit(inner_columns)
    assert count_blocks(circuit, k) == blocks
    srs = tmp_path / "srs"
    generate_srs(srs, k)
    keys = load_keys(pin(circuit, k), srs, tmp_path / "cache", LIMITS)
    assert keys.pk is not None
    cycles = read_cycles(keys.pk, k)
    cycle_of = {cell: cycle for cycle in cycles for cell in cycle}
    committed, inner = count_cells(circuit)
    inner.pop(1, None)  # products that fill up a row, which nothing is made of
    for column, name in enumerate(circuit.columns):
        found = [len(cycle_of.get((column, row), "1")) for row in range(circuit.length(name))]
        if blocks == 1:
            assert found == committed[name], name
        # ezkl repeats a cell where an operation goes on in another block: bound to it as well.
        assert all(map(operator.ge, found, committed[name])), name
        # An element that no condition speaks of would be alone.
        assert min(found) > 1, name
    ours = len(circuit.columns)
    columns = {column for cycle in cycles for column, _ in cycle}
    # Zeros that fill up a row, where a row has more than one cell, stand in a column of their own.
    constant = max(columns) if len(columns) > ours + 3 * inner_columns * blocks else None
    others = Counter(
        len(cycle)
        for cycle in cycles
        if not any(column < ours or column == constant for column, _ in cycle)
    )
    if blocks == 1:
        assert others == inner
    assert others.total() >= inner.total()
    # No two committed elements are bound to each other.
    assert all(sum(column < ours for column, _ in cycle) <= 1 for cycle in cycles)
