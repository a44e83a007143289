"""Proofs are made of sound witnesses alone; what ezkl says of the others."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.prove.circuits import LIMITS
from tests.prove.mock import mock_many
from tests.prove.toy import GIVEN, PARAMETERS, Toy, make_long_circuit
from vtrain.errors import CircuitError, ProverError
from vtrain.prove import prover as module
from vtrain.prove.backend.ezkl import Call, Proof, Verification
from vtrain.prove.backend.keys import load_keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, count_usable, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.values import Ints
from vtrain.prove.prover import prove
from vtrain.prove.verifier import Expansion, commit_vector, verify
from vtrain.spec.field import SCALAR_FIELD
from vtrain.wire.proof import HIDING

Vectors = dict[str, Ints]


def prove_toy(toy: Toy, **other: Any) -> Any:
    arguments: dict[str, Any] = {
        "pinned": toy.pinned,
        "keys": toy.keys,
        "given": GIVEN,
        "hiding": {},
        "count": lambda: None,
        "parameters": PARAMETERS,
        "srs": toy.srs,
        "commit_key": toy.commit_key,
        "limits": LIMITS,
        "claim": b"",
    }
    return prove(toy.circuit, **(arguments | other))


def test_proof_is_of_the_vectors_and_progress_is_told(toy: Toy) -> None:
    seen: list[tuple[str, int, int]] = []
    proof = prove_toy(toy, progress=lambda *news: seen.append(news))
    assert proof.instances == ()
    assert len(proof.data) == toy.keys.proof_length
    found = dict(zip(toy.circuit.columns, proof.commitments(7), strict=True))
    assert {name: found[name] for name in GIVEN} == toy.expected
    assert seen[0] == ("witness", 0, 4)
    assert seen[-1] == ("verify", 4, 4)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"c": GIVEN["c"] + np.array([1, -1, 0, 0])}, "product"),
        ({"c": GIVEN["c"] + 1}, "product, total"),
        ({"b": np.array([128, -127, 5, 0])}, "ones: range"),
    ],
)
def test_false_statement_is_refused_by_name(
    toy: Toy, change: dict[str, Ints], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_ezkl", None)
    with pytest.raises(CircuitError, match="the conditions do not hold: ") as caught:
        prove_toy(toy, given=GIVEN | change)
    assert set(broken.split(", ")) <= set(caught.value.message.split(": ", 1)[1].split(", "))


def test_what_does_not_fit_is_refused(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(CircuitError, match="a: needs 4 integers"):
        prove_toy(toy, given=GIVEN | {"a": np.arange(3)})
    with pytest.raises(CircuitError, match="total: needs a parameter"):
        prove_toy(toy, parameters={})
    with pytest.raises(CircuitError, match="another circuit"):
        prove_toy(toy, keys=replace(toy.keys, circuit=bytes(32)))
    other = tmp_path / "other.srs"
    generate_srs(other, toy.pinned.k)
    with pytest.raises(CircuitError, match="another SRS"):
        prove_toy(toy, commit_key=CommitKey(other, toy.pinned.k, BLINDING))


def test_verifier_may_compute_more_from_the_challenge(toy: Toy, tmp_path: Path) -> None:
    """<w, x> = <u, y> for w = u = (c, c^2, c^3): x and y are the same."""
    b = CircuitBuilder(2, 255)
    x, y = b.vector("x", 3), b.vector("y", 3)
    difference = b.sub(b.dot(x, b.expanded("image", 3)), b.dot(y, b.powers("vector", 3)))
    b.require_zero("same", difference)
    circuit = b.build()
    pinned = pin(circuit, toy.pinned.k)
    keys = load_keys(pinned, toy.srs, tmp_path, LIMITS)
    shared: dict[str, Any] = {"parameters": {}, "commit_key": toy.commit_key, "limits": LIMITS}
    given = {"x": np.arange(3), "y": np.arange(3)}
    expected = {name: toy.commit(values) for name, values in given.items()}

    def expand(drawn: int) -> list[int]:
        return [drawn, *(pow(drawn, i + 1, SCALAR_FIELD) for i in range(3))]

    def judge(proof: bytes, expansion: Expansion | None) -> Verification:
        more = {"claim": b"", "expansion": expansion, **shared}
        return verify(circuit, pinned, keys, proof, expected=expected, **more)

    more = {"claim": b"", "expansion": expand, **shared}
    hidden: dict[str, Any] = {"given": given, "hiding": {}, "count": lambda: None}
    proof = prove(circuit, pinned, keys, srs=toy.srs, **hidden, **more).data
    assert judge(proof, expand).holds
    verdict = judge(proof, lambda drawn: [drawn, *expand(drawn)[:0:-1]])
    assert verdict.reason == "commitment of computed is not the one computed"
    for other in (None, lambda drawn: [drawn], lambda drawn: [0, *expand(drawn)[1:]]):
        with pytest.raises(CircuitError, match="not to itself and 3 more"):
            judge(proof, other)


def test_the_witness_is_in_no_file_that_has_a_name(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is weights and data: whoever kills the prover finds none of it."""
    seen: list[str] = []

    def look(calls: Sequence[Call], *arguments: Any, **named: Any) -> Any:
        seen.append(calls[0].arguments["witness"])
        assert json.loads(Path(seen[0]).read_bytes())["inputs"]
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        raise ProverError("killed", where="prove")

    monkeypatch.setattr(module, "run_ezkl", look)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ProverError, match="killed"):
        prove_toy(toy)
    assert not Path(seen[0]).exists()
    assert not list(tmp_path.iterdir())


def test_cancelled_proof_ends(toy: Toy) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(ProverError, match="cancelled"):
        prove_toy(toy, cancelled=cancelled)


def test_no_proof_leaves_that_our_verifier_refuses(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "verify", lambda *_, **__: Verification(False, "so it says"))
    with pytest.raises(ProverError, match="so it says"):
        prove_toy(toy)


def test_other_commitments_than_ezkls_are_noticed(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "commit_columns", lambda _, key, columns, **__: dict.fromkeys(columns, key.zero)
    )
    with pytest.raises(ProverError, match="a: ezkl committed to something else"):
        prove_toy(toy)


# --- mock


def alter(name: str, index: int, by: int) -> Callable[[Vectors], Vectors]:
    def change(vectors: Vectors) -> Vectors:
        changed = {key: value.copy() for key, value in vectors.items()}
        changed[name][index] += by
        return changed

    return change


FALSE = {
    "limb beyond the range": (alter("limbs", 0, 1), "answers has other values at 8"),
    "limb beyond the table": (alter("limbs", 0, 1000), "Lookup"),
    "limb below zero": (alter("limbs", 0, -300), "Lookup"),
    "limb of zero": (alter("limbs", 1, -1), "Lookup"),
    "limb of any size": (alter("limbs", 0, 2**200), "Lookup"),
    "product": (alter("c", 3, 1), "answers has other values at 33"),
    "not in the table": (alter("a", 0, 10), "answers has other values"),
    "count of a table's row": (alter("hints", 0, 1), "answers has other values at 34"),
    "inverse": (alter("late", 0, 1), "answers has other values at 20"),
    "parameter": (alter("public", -1, 1), "answers has other values at 36"),
}


def test_mock_refuses_every_false_witness_in_one_process(toy: Toy) -> None:
    honest = toy.assign()
    witnesses = [honest, *(change(honest) for change, _ in FALSE.values()), honest]
    first, *found, last = mock_many(toy.circuit, toy.pinned, witnesses, LIMITS)
    assert first == last == Verification(True, "")
    for (name, (_, reason)), verdict in zip(FALSE.items(), found, strict=True):
        assert not verdict.holds, name
        assert reason in verdict.reason, name


def test_mock_says_what_our_own_evaluation_says(toy: Toy) -> None:
    honest = toy.assign()
    assert toy.circuit.find_broken(honest) == []
    for name, (change, _) in FALSE.items():
        assert toy.circuit.find_broken(change(honest)), name


def test_circuit_that_does_not_compile_is_a_typed_error(toy: Toy) -> None:
    broken = replace(toy.pinned, onnx=b"no model")
    with pytest.raises(ProverError, match="compile_circuit"):
        mock_many(toy.circuit, broken, [toy.assign()], LIMITS)


# --- vectors that fill a column


def test_vector_may_fill_its_column(toy: Toy, tmp_path: Path) -> None:
    """The longest vector that is let in has one commitment, as everything here relies on."""
    circuit = make_long_circuit(count_usable(toy.pinned.k), 5)
    pinned = pin(circuit, toy.pinned.k)
    keys = load_keys(pinned, toy.srs, tmp_path, LIMITS)
    given = {"a": np.arange(count_usable(toy.pinned.k)) % 255}
    proof = prove(
        circuit,
        pinned,
        keys,
        given=given,
        hiding={},
        count=lambda: None,
        parameters={},
        srs=toy.srs,
        commit_key=toy.commit_key,
        limits=LIMITS,
        claim=b"",
    )
    assert proof.commitments(1)[0] == commit_vector(toy.commit_key, given["a"])


@pytest.mark.slow
def test_larger_srs_serves(toy: Toy, tmp_path: Path) -> None:
    larger = tmp_path / "larger.srs"
    generate_srs(larger, toy.pinned.k + 1)
    keys = load_keys(toy.pinned, larger, tmp_path, LIMITS)
    assert keys.vk_digest != toy.keys.vk_digest
    assert keys.proof_length == toy.keys.proof_length
    commit_key = CommitKey(larger, toy.pinned.k, BLINDING)
    prove_toy(toy, keys=keys, srs=larger, commit_key=commit_key)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_int16_product_from_end_to_end(tmp_path: Path) -> None:
    """A 16 x 16 product of int16 at k = 16, as tiles have it at k = 15."""
    b = CircuitBuilder(3, 65279)
    left, right, product = (b.reshape(b.vector(name, 256), (16, 16)) for name in "abc")
    b.matmul("product", left, right, product.lin())
    for name, x in (("a", left), ("b", right)):
        shifted = b.limb(name, x.shape, lambda values, x=x: values[x] + 32639)  # type: ignore[misc]
        b.zero(name, shifted - 32639 - x.lin())
    circuit, srs = b.build(), tmp_path / "k16.srs"
    generate_srs(srs, 16)
    pinned = pin(circuit, 16)
    keys = load_keys(pinned, srs, tmp_path, LIMITS)
    commit_key = CommitKey(srs, 16, BLINDING)
    values = np.random.default_rng(1).integers(-32639, 32640, (2, 16, 16))
    given = {"a": values[0], "b": values[1], "c": values[0] @ values[1]}
    shared: dict[str, Any] = {"parameters": {}, "commit_key": commit_key, "limits": LIMITS}
    shared["claim"] = bytes(32)
    hidden: dict[str, Any] = {"given": given, "hiding": {}, "count": lambda: None}
    proof = prove(circuit, pinned, keys, srs=srs, **hidden, **shared)
    expected = {name: commit_vector(commit_key, value) for name, value in given.items()}
    assert verify(circuit, pinned, keys, proof.data, expected=expected, **shared).holds
    other = expected | {"b": expected["a"]}
    assert not verify(circuit, pinned, keys, proof.data, expected=other, **shared).holds


# --- what hides columns


def draw_hiding(seed: int) -> dict[str, list[int]]:
    """Elements behind the given vectors of the toy."""
    rng = np.random.default_rng(seed)
    return {name: [int.from_bytes(rng.bytes(31)) for _ in range(HIDING)] for name in GIVEN}


def test_hidden_vectors_are_proven(toy: Toy) -> None:
    """What is expected of given vectors is the commitment to values and hiding elements."""
    hiding = draw_hiding(1)
    found = toy.circuit.columns
    made = [Proof(prove_toy(toy, hiding=hiding).data, ()).commitments(len(found)) for _ in "ab"]
    first, second = (dict(zip(found, commitments, strict=True)) for commitments in made)
    for name, values in GIVEN.items():
        whole = np.concatenate([values.astype(object), hiding[name]])
        assert first[name] == second[name] == commit_vector(toy.commit_key, whole)
        assert first[name] == commit_vector(toy.commit_key, values, hiding[name])
        assert first[name] != toy.expected[name]
    assert first["answers"] == second["answers"]
    for name in ("private", "computed", "late"):
        assert first[name] != second[name], name


def test_hiding_elements_are_of_given_vectors(toy: Toy) -> None:
    assert toy.circuit.hidden == ("a", "b", "c", "private", "late")
    sizes = {
        name: toy.circuit.size(name) - toy.circuit.length(name) for name in toy.circuit.columns
    }
    assert sizes == {name: HIDING * (name in toy.circuit.hidden) for name in sizes}
    vectors = toy.circuit.assign(GIVEN, PARAMETERS, lambda _: [7], hiding={"b": [5] * HIDING})
    columns = toy.circuit.lay_out(vectors)
    assert [*columns["a"][4:]] == [0] * HIDING
    assert [*columns["b"][4:]] == [5] * HIDING
    ends = [*columns["private"][-HIDING:], *columns["late"][-HIDING:]]
    assert len({*ends}) == 2 * HIDING
    assert max(ends) > SCALAR_FIELD >> 8
    assert toy.circuit.find_broken(vectors) == []
    for wrong in ({"private": [0] * HIDING}, {"d": [0] * HIDING}, {"a": [0]}):
        with pytest.raises(CircuitError, match="hiding elements"):
            toy.circuit.assign(GIVEN, PARAMETERS, lambda _: [7], hiding=wrong)


def test_hiding_elements_are_read_by_nothing(toy: Toy) -> None:
    """Nor are they behind what the verifier computes."""
    reads = {node.inputs: node for node in toy.circuit._b.nodes if node.inputs}
    for name in toy.circuit.hidden:
        readers = [node for inputs, node in reads.items() if toy.circuit._inputs[name] in inputs]
        assert [node.op for node in readers] == ["slice"], name
        assert readers[0].attrs == {"start": 0, "stop": toy.circuit.length(name)}
