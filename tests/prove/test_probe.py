"""What is tried before keys are made, and that circuits with one fault do not get any."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exhaustive import spare
from tests.prove.forging import draw_for
from tests.prove.step_law import make_graph, make_statement
from tests.prove.steps import LIMITS, K, make_proof_task, make_setup, open_key
from tests.prove.tamper import alterations
from tests.prove.tile_steps import with_node
from vtrain.errors import CircuitError, ProverError
from vtrain.prove.backend import keys as keys_module
from vtrain.prove.backend.keys import Keys, load_keys, load_verifying_key
from vtrain.prove.backend.settings import pin
from vtrain.prove.circuit import trial as circuit_module
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.trial import Trial
from vtrain.prove.circuit.values import Ints, Tensor, cut_vector
from vtrain.prove.runs import StepValues
from vtrain.prove.steps import probe as probe_module
from vtrain.prove.steps.builder import Size
from vtrain.prove.steps.circuits import STEP_CIRCUITS, build_step_circuit, build_with
from vtrain.prove.steps.prepare import prepare_circuit
from vtrain.prove.steps.probe import Probed, probe_step_circuit

Real = tuple[Mapping[str, Any], Mapping[str, Ints]]
LARGE = Size(3, 2**30)
names = pytest.mark.parametrize("name", STEP_CIRCUITS)
SHARES = 12


def make(name: str, loss: str = "mse", size: Size = LARGE) -> Circuit:
    """Built anew, with what faults a test has put in."""
    return build_with(make_graph(loss, "some"), size, clamps=STEP_CIRCUITS[name])


def real(loss: str = "mse", size: Size = LARGE) -> Real:
    statement = make_statement(loss, "some")
    given = {}
    for name, column in statement.given.items():
        for part, start, stop in cut_vector(name, column.size, size.rows):
            given[part] = column[start:stop]
    return given, statement.parameters


def probe(
    circuit: Circuit, name: str, loss: str = "mse", at_hand: Real | None = None, **options: Any
) -> Probed:
    return probe_step_circuit(make_graph(loss, "some"), circuit, name, at_hand, seed=3, **options)


@names
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_a_good_circuit_passes(loss: str, name: str) -> None:
    told: list[tuple[str, int, int]] = []
    circuit = make(name, loss)
    probed = probe(circuit, name, loss, real(loss), progress=lambda *report: told.append(report))
    groups = [circuit.parts(group) for group in ("limbs", "hints", "late")]
    parts = sum(len(list(group)) for group in groups)
    assert probed.statements == 4
    assert probed.changes > 2 * parts
    assert probed.false_nodes > 60
    total = told[0][2]
    assert told == [("probe", done, total) for done in range(total + 1)]


@names
def test_without_a_step_at_hand_one_is_drawn(name: str) -> None:
    """In columns so short that groups and given vectors are cut as well."""
    size = Size(3, 200)
    circuit = make(name, size=size)
    assert {"before 1", "private 1", "answers 1"} <= set(circuit.columns)
    for at_hand in (None, real(size=size)):
        probed = probe(circuit, name, at_hand=at_hand)
        assert probed.statements == 4
        assert probed.false_nodes > 60


def test_of_many_parts_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit, whole = make("step"), probe(make("step"), "step", at_hand=real())
    monkeypatch.setattr(probe_module, "MOST", 5)
    told: list[tuple[str, int, int]] = []
    some = probe(circuit, "step", at_hand=real(), progress=lambda *report: told.append(report))
    assert 0 < some.changes <= 5 * 12 < whole.changes
    assert told[-1] == ("probe", 14, 14)


@names
@pytest.mark.parametrize("node", ["h", "w1"])
@pytest.mark.parametrize(
    "called",
    spare(
        [
            "labels",
            "a/mask",
            "h/excess",
            "h/acc/excess",
            "h/excess/digit x",
            "h/remainder/scaled",
            "w2",
        ],
        {"labels", "h/excess", "w2"}.__contains__,
    ),
)
def test_names_that_nodes_may_have_blind_it_for_nothing(name: str, node: str, called: str) -> None:
    """They are refused where two parts would be called alike, and else not taken for another's."""
    graph, statement = make_graph("cross_entropy", "some"), make_statement("cross_entropy", "some")
    index = next(i for i, found in enumerate(graph.nodes) if found.name == node)
    renamed = with_node(graph, index, name=called)
    try:
        circuit = build_with(renamed, LARGE, clamps=STEP_CIRCUITS[name])
    except CircuitError as error:
        if "names two parts" not in error.message:
            raise
        return
    at_hand = statement.given, statement.parameters
    assert probe_step_circuit(renamed, circuit, name, at_hand, seed=3).false_nodes > 60


# --- one condition is missing


def drop(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """No condition of this name is required."""
    honest = CircuitBuilder.require_zero

    def require_zero(builder: CircuitBuilder, found: str, x: Tensor, degree: int = 0) -> None:
        if found != name:
            honest(builder, found, x, degree)

    monkeypatch.setattr(CircuitBuilder, "require_zero", require_zero)


DROPPED = [
    ("step", "mse", "h/acc", "node h/acc"),  # Freivalds' check
    ("step", "mse", "w1", "node w1"),  # rounding
    ("step", "mse", "h/i16/from above", r"h/i16/from above\[0\] \+1"),
    ("step", "mse", "h/clamped", r"node h: -?\d+ for -?\d+ in"),
    ("step", "mse", "a/mask", "node a: "),
    ("step", "mse", "a/sign", r"a/sign/digit 0\[0\] \+1"),
    ("step", "mse", "momentum/w1/next/parts", "node momentum/w1/next"),
    ("step", "mse", "param/b2/next", r"(before/param/b2|param/b2/next/remainder/scaled)\[0\] "),
    ("step", "mse", "logits/biased/grad_bias", "node logits/biased/grad_bias"),
    ("step", "mse", "loss", r"(loss|loss/remainder/scaled)\[0\] [+-]1"),
    ("step-clamps", "mse", "before/param/w1/i32", r"before/param/w1/i32.*\[0\] \+1"),
    ("step-clamps", "mse", "momentum/b1/next", r"before/momentum/b1\[0\] \+1"),
    ("step-clamps", "mse", "param/b1/next/clamped", "node param/b1/next"),
    ("step", "cross_entropy", "labels/labels", "node loss/grad: .* label of row"),
    ("step", "cross_entropy", "labels/boolean", "node loss/grad: .* label of row"),
    ("step", "cross_entropy", "labels/sums", "node loss/grad: .* label of row"),
    ("step", "cross_entropy", "loss/rows/chosen", "node loss/rows"),
    ("step", "cross_entropy", "loss/softmax/p/rest", "loss/softmax/p/rest"),
    ("step", "cross_entropy", "loss/softmax/maximum", "node loss/max"),
    ("step", "cross_entropy", "loss/softmax/exp/exp2", "loss/softmax/"),  # a sum of inverses
    ("step", "cross_entropy", "loss", r"loss\[0\] [+-]1"),
]


@pytest.mark.parametrize(("name", "loss", "condition", "message"), DROPPED)
def test_a_condition_that_is_missing_is_noticed(
    name: str, loss: str, condition: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert condition in make(name, loss).zero_names
    drop(monkeypatch, condition)
    circuit = make(name, loss)
    assert condition not in circuit.zero_names
    with pytest.raises(CircuitError, match="a false witness satisfies it, ") as caught:
        probe(circuit, name, loss, real(loss))
    assert caught.value.where == f"circuit {name}"
    caught.match(message)


def test_a_name_does_not_hide_a_condition_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limbs of a node that is called as the digits of another might be are not these digits."""
    drop(monkeypatch, "h/clamped")
    graph = make_graph("mse", "some")
    index = next(i for i, found in enumerate(graph.nodes) if found.name == "w1")
    renamed = with_node(graph, index, name="h/excess/digit x")
    circuit = build_with(renamed, LARGE, clamps=False)
    with pytest.raises(CircuitError, match="a false witness satisfies it, node h: "):
        probe_step_circuit(renamed, circuit, "step", real("mse"), seed=3)


def test_a_remainder_without_a_range_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Trial._list_broken

    def list_broken(trial: Trial, *arguments: Any) -> list[str]:
        found = honest(trial, *arguments)
        return [name for name in found if name != "ones: w2/remainder/scaled"]

    monkeypatch.setattr(Trial, "_list_broken", list_broken)
    with pytest.raises(CircuitError, match="node w2: "):
        probe(make("step"), "step", at_hand=real())


def test_inverses_that_are_none_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CircuitBuilder, "require_ones", lambda builder, x: None)
    with pytest.raises(CircuitError, match=r"x/prepared/inverses of .*\]"):
        probe(make("step"), "step", at_hand=real())


@pytest.mark.slow
@pytest.mark.parametrize("share", spare(range(SHARES), (0).__eq__))
@pytest.mark.parametrize(
    ("name", "loss", "redundant"),
    [
        ("step", "mse", set()),
        ("step-clamps", "mse", set()),
        # A label is one of the classes by its row alone; what only several false values at once
        # inside a softmax would show is for the tests of gadgets.
        (
            "step",
            "cross_entropy",
            {
                "batch/y/u8/from below",
                "loss/softmax/exp/cut",
                "loss/softmax/exp/cut parts",
                "a/grad/clamped",
            },
        ),
    ],
)
def test_whichever_condition_is_missing_is_noticed(
    name: str, loss: str, redundant: set[str], share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those named, of which something else must be false as well.

    What the first circuit has too is left out of it alone.  One run takes a share of them.
    """
    circuit, honest = make(name, loss), circuit_module._list_conditions
    first = honest(make("step", "mse")._b).values() if (name, loss) != ("step", "mse") else ()
    tried_before = {condition for _, condition in first}
    missed, tried = set(), 0
    own = {
        index: condition
        for index, (_, condition) in honest(circuit._b).items()
        if condition not in tried_before
    }
    for index, condition in list(own.items())[share::SHARES]:
        tried += 1

        def without(builder: CircuitBuilder, index: int = index) -> dict[int, tuple[int, str]]:
            return {key: value for key, value in honest(builder).items() if key != index}

        monkeypatch.setattr(circuit_module, "_list_conditions", without)
        try:
            probe(circuit, name, loss, real(loss))
        except CircuitError:
            continue
        missed.add(condition)
    assert missed <= redundant
    assert tried > len(redundant) / SHARES


# --- another law


def test_a_circuit_of_another_law_is_noticed() -> None:
    """All of a momentum lost, where the graph loses some; the other loss; too narrow a claim."""
    other = build_with(make_graph("mse", "all"), LARGE, clamps=False)
    with pytest.raises(CircuitError, match="does not hold of a true step from the step at hand: "):
        probe(other, "step", at_hand=real())
    with pytest.raises(CircuitError, match="does not hold of a true step from a random state"):
        probe(make("step"), "step-clamps", at_hand=real())


def test_a_hint_that_is_not_the_laws_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the circuit holds of it: with no condition left."""
    honest = CircuitBuilder.hint

    def hint(
        builder: CircuitBuilder, name: str, shape: Sequence[int], compute: Callable[..., Ints]
    ) -> Tensor:
        other = (lambda values: compute(values) * 0) if name == "h/acc/grad_b" else compute
        return honest(builder, name, shape, other)

    monkeypatch.setattr(CircuitBuilder, "hint", hint)
    monkeypatch.setattr(circuit_module, "_list_conditions", lambda builder: {})
    with pytest.raises(CircuitError, match="h/acc/grad_b: has not the law's integers in the step"):
        probe(make("step-clamps"), "step-clamps", at_hand=real())


def test_a_step_that_is_not_by_the_law_is_refused() -> None:
    given, parameters = real()
    false = {**parameters, "loss": parameters["loss"] + 1}
    with pytest.raises(CircuitError, match="the step at hand: is not by the law"):
        probe(make("step"), "step", at_hand=(given, false))


def test_it_can_be_cancelled() -> None:
    cancelled = threading.Event()

    def tell(what: str, done: int, total: int) -> None:
        if done == 7:
            cancelled.set()
        assert done <= 7

    with pytest.raises(ProverError, match="cancelled"):
        probe(make("step"), "step", at_hand=real(), progress=tell, cancelled=cancelled)


# --- altered elements, evaluated anew


@pytest.mark.parametrize("rows", [2**30, 200])
def test_what_is_evaluated_anew_is_what_would_be_evaluated_in_whole(rows: int) -> None:
    """The same conditions are named as for the whole witness; columns cut or not."""
    circuit = make("step-clamps", "cross_entropy", Size(3, rows))
    whole = make("step-clamps", "cross_entropy")
    given, parameters = real("cross_entropy", Size(3, rows))
    vectors = circuit.assign(given, parameters, draw_for(circuit))
    trial = Trial(circuit, vectors, parameters)
    at_hand = real("cross_entropy")[0]
    joined = whole.assign(at_hand, parameters, draw_for(whole))
    seen = set()
    options = {"changes": ("one more", "far above"), "spots": 1, "whole": False}
    for name, group, start, values in list(alterations(whole, joined, **options))[::6]:  # type: ignore[arg-type]
        place, at = group, start
        if group in at_hand:
            for part, first, stop in cut_vector(group, at_hand[group].size, rows):
                if first <= start < stop:
                    place, at = part, start - first
        altered = joined[group].copy()
        altered[start] = values[0]
        wanted = whole.find_broken({**joined, group: altered})
        assert set(trial.find_broken({(place, at): values}, ())) == set(wanted), name
        seen |= set(wanted)
    assert len(seen) > 30


def test_a_witness_that_does_not_hold_is_refused() -> None:
    circuit = make("step")
    given, parameters = real()
    false = {**given, "after": given["after"] + 1}
    vectors = circuit.assign(false, parameters, draw_for(circuit))
    with pytest.raises(CircuitError, match="the conditions do not hold: "):
        Trial(circuit, vectors, parameters)


# --- keys


@pytest.fixture(scope="module")
def srs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("srs") / "srs"
    open_key(path)
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of what makes keys; nothing is made."""
    calls: list[str] = []

    def make_none(folder: Path, *others: Any) -> None:
        calls.append(folder.name)
        raise ProverError("makes none")

    monkeypatch.setattr(keys_module, "_make", make_none)
    return calls


@pytest.mark.parametrize("proving", [True, False])
def test_a_faulty_circuit_gets_no_keys(
    srs: Path, tmp_path: Path, made: list[str], proving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_proof_task(srs)
    setup = make_setup(task.spec, srs, tmp_path / "cache")
    with pytest.raises(ProverError, match="makes none"):
        prepare_circuit(task.graph, setup, "step", proving=proving)
    assert len(made) == 1
    made.clear()
    drop(monkeypatch, "w1")
    with pytest.raises(CircuitError, match="a false witness satisfies it, node w1"):
        prepare_circuit(task.graph, setup, "step", proving=proving)
    assert not made
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_it_is_the_step_at_hand_that_is_tried(srs: Path, tmp_path: Path, made: list[str]) -> None:
    task = make_proof_task(srs)
    setup = make_setup(task.spec, srs, tmp_path / "cache")
    circuit = build_step_circuit(task.graph, K, "step")
    given = {name: np.zeros(circuit.length(name), dtype=object) for name in circuit.given}
    one = np.asarray([1], object)
    values = StepValues(1, given, {}, {"rate": one, "loss": one}, {})
    with pytest.raises(CircuitError, match="the step at hand: is not by the law"):
        prepare_circuit(task.graph, setup, "step", proving=True, values=values)
    assert not made


@pytest.mark.parametrize("load", [load_keys, load_verifying_key])
def test_keys_that_are_there_are_not_checked_again(
    srs: Path, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch, load: Any
) -> None:
    pinned = pin(make("step"), K)
    checks: list[int] = []
    with pytest.raises(ProverError, match="makes none"):
        load(pinned, srs, tmp_path, LIMITS, check=lambda: checks.append(len(made)))
    assert (checks, len(made)) == ([0], 1)
    keys = Keys(tmp_path, pinned.digest, bytes(32), bytes(32), 1)
    monkeypatch.setattr(keys_module, "_read", lambda *arguments: keys)
    assert load(pinned, srs, tmp_path, LIMITS, check=lambda: checks.append(9)) is keys
    assert checks == [0]
