"""What a proof must be to show a statement, and that nothing else does."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from tests.prove.circuits import LIMITS
from tests.prove.toy import GIVEN, PARAMETERS, Toy
from vtrain.errors import CircuitError
from vtrain.prove.backend.ezkl import Proof, Verification, verify_proof
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.field import SCALAR_FIELD
from vtrain.prove.circuit.values import Ints
from vtrain.prove.verifier import (
    commit_known,
    commit_vector,
    derive_challenge,
    draw_challenge,
    verify,
)
from vtrain.wire import cbor


def check(
    toy: Toy,
    proof: bytes | None = None,
    expected: Mapping[str, bytes] | None = None,
    parameters: Mapping[str, Ints] = PARAMETERS,
    **other: Any,
) -> Verification:
    arguments: dict[str, Any] = {
        "pinned": toy.pinned,
        "keys": toy.keys,
        "commit_key": toy.commit_key,
        "claim": b"",
    }
    return verify(
        toy.circuit,
        proof=toy.proof if proof is None else proof,
        expected=toy.expected if expected is None else expected,
        parameters=parameters,
        limits=LIMITS,
        **(arguments | other),
    )


def test_proof_of_the_statement_holds(toy: Toy) -> None:
    assert check(toy) == Verification(True, "")


def test_proof_for_one_claim_serves_no_other(toy: Toy) -> None:
    verdict = check(toy, claim=b"\1" * 32)
    assert verdict == Verification(False, "commitment of computed is not the one computed")


@pytest.mark.parametrize("name", GIVEN)
def test_other_given_vectors_do_not_hold(toy: Toy, name: str) -> None:
    other = GIVEN[name].copy()
    other[3] += 1
    verdict = check(toy, expected=toy.expected | {name: toy.commit(other)})
    assert verdict == Verification(False, f"commitment of {name} is not the one expected")


def test_another_parameter_does_not_hold(toy: Toy) -> None:
    verdict = check(toy, parameters={"total": PARAMETERS["total"] + 1})
    assert verdict == Verification(False, "commitment of computed is not the one computed")


@pytest.mark.parametrize("change", [-64, -32, -1, 1, 32, 64])
def test_length_is_exact(toy: Toy, change: int) -> None:
    length = len(toy.proof) + change
    proof = (toy.proof + bytes(64))[:length]
    assert check(toy, proof).reason == f"the proof has {length} bytes, not {len(toy.proof)}"


def test_ezkl_takes_a_longer_proof(toy: Toy) -> None:
    """Else the length would not need to be exact."""
    paths = {"settings": toy.keys.settings, "vk": toy.keys.vk, "srs": toy.keys.verifier_srs}
    assert verify_proof(Proof(toy.proof + b"\0", ()), limits=LIMITS, **paths).holds
    assert not verify_proof(Proof(toy.proof[:-1], ()), limits=LIMITS, **paths).holds


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a", "commitment of a is not the one expected"),
        ("private", "commitment of computed is not the one computed"),
        ("computed", "commitment of computed is not the one computed"),
        ("answers", "commitment of answers is not the one computed"),
        ("late", "Failed to run verify"),
    ],
)
def test_every_commitment_is_compared_or_proven(toy: Toy, name: str, reason: str) -> None:
    """Another point of the curve in the place of each: one that commits to 0, 1, 2, 3."""
    at = 64 * toy.circuit.columns.index(name)
    proof = bytearray(toy.proof)
    proof[at : at + 64] = toy.commit(np.arange(4))
    verdict = check(toy, bytes(proof))
    assert not verdict.holds
    assert reason in verdict.reason


def make_cut_circuit(rows: int, limbs: bool, public: bool) -> Circuit:
    """Of every group but those left out; of columns of so few rows that all are cut."""
    b = CircuitBuilder(2, 255, rows)
    given, weights = b.vector("a", 5), b.challenge("weights", 5)
    if limbs:
        b.zero("limbs", b.limb("limbs", (5,), lambda values: values[given]) - given.lin())
    hints = b.hint("hints", (7,), lambda values: np.arange(1, 8))
    b.nonzero("hints", hints)
    scaled = b.mul(given, b.parameter("factors", (5,))) if public else given
    b.require_zero("sum", b.dot(b.sub(scaled, b.slice(hints, 0, 5)), weights))
    return b.build()


@pytest.mark.parametrize("rows", [500, 8, 5])
@pytest.mark.parametrize("limbs", [True, False])
@pytest.mark.parametrize("public", [True, False])
def test_every_column_is_settled_before_the_challenge_or_computed_or_late(
    toy: Toy, rows: int, limbs: bool, public: bool
) -> None:
    """Also those that groups go on in.  Prover and verifier could err in the same way unseen."""
    circuit = make_cut_circuit(rows, limbs, public)
    pinned = pin(circuit, toy.pinned.k)
    parameters = {"factors": np.ones(5, dtype=np.int64)} if public else {}
    points = {name: toy.commit(np.arange(i + 1)) for i, name in enumerate(circuit.columns)}

    def draw(commitments: Mapping[str, bytes]) -> tuple[int, ...]:
        return draw_challenge(circuit, pinned, commitments, claim=b"")

    kinds = {name: name.partition(" ")[0] for name in circuit.columns}
    assert len(kinds) > 4 or rows == 500
    moving = {name for name in kinds if draw({**points, name: bytes(64)}) != draw(points)}
    assert bool(circuit.length("public")) == (public or limbs)
    settled = {"a", "private", *(["computed"] if public or limbs else [])}
    assert moving == {name for name, kind in kinds.items() if kind in settled}
    own = commit_known(circuit, pinned, points, parameters, toy.commit_key, claim=b"")
    assert set(own) == {n for n, kind in kinds.items() if kind in ("computed", "answers")}
    late = {name for name, kind in kinds.items() if kind == "late"}
    assert moving | set(own) | late == set(kinds)


def test_values_of_another_length_have_no_columns(toy: Toy) -> None:
    vectors = toy.assign()
    for name in vectors:
        with pytest.raises(CircuitError, match=f"^{name}: has {len(vectors[name]) + 1} elements"):
            toy.circuit.lay_out({**vectors, name: np.append(vectors[name], 0)})
    for name in ("private", "private 0", "late 1", "answers", "zeros"):
        with pytest.raises(CircuitError, match=f"^{name}: is given twice or reserved"):
            CircuitBuilder().vector(name, 4)


def test_no_flipped_bit_holds(toy: Toy) -> None:
    draw = random.Random(1)  # noqa: S311 - which bits are tried
    for at in range(7, len(toy.proof), len(toy.proof) // 25):
        proof = bytearray(toy.proof)
        proof[at] ^= 1 << draw.randrange(8)
        assert not check(toy, bytes(proof)).holds, at


@pytest.mark.parametrize("fill", [b"\0", b"\1", b"\xff"])
def test_garbage_does_not_hold(toy: Toy, fill: bytes) -> None:
    assert not check(toy, fill * len(toy.proof)).holds
    head = toy.proof[: 64 * len(toy.circuit.columns)]
    assert not check(toy, head + fill * (len(toy.proof) - len(head))).holds
    assert not check(toy, b"").holds


# --- proofs that ezkl makes, and takes, of what is false


def test_challenge_of_the_provers_choice_does_not_hold(toy: Toy) -> None:
    """With zeros for a challenge any product passes."""
    given = GIVEN | {"c": GIVEN["c"] + np.array([1, -1, 0, 0])}
    rows = {
        index
        for name, start, stop in toy.circuit.parts("challenge")
        if name.startswith("second vector")
        for index in range(start, stop)
    }
    vectors = toy.assign(given, cheat=lambda x: [0 if i in rows else v for i, v in enumerate(x)])
    assert toy.circuit.find_broken(toy.assign(given)) == ["product"]
    assert toy.circuit.find_broken(vectors) == []
    expected = {name: toy.commit(values) for name, values in given.items()}
    verdict = check(toy, toy.prove_anything(vectors), expected)
    assert verdict == Verification(False, "commitment of computed is not the one computed")


def test_false_product_does_not_hold(toy: Toy) -> None:
    given = GIVEN | {"c": GIVEN["c"] + np.array([1, -1, 0, 0])}
    expected = {name: toy.commit(values) for name, values in given.items()}
    verdict = check(toy, toy.prove_anything(toy.assign(given)), expected)
    assert verdict == Verification(False, "commitment of answers is not the one computed")


def test_limb_out_of_range_does_not_hold(toy: Toy) -> None:
    given = GIVEN | {"b": np.array([128, -127, 5, 0]), "c": np.array([118, -127, 364, -381])}
    parameters = {"total": np.array([-26])}
    expected = {name: toy.commit(values) for name, values in given.items()}
    proof = toy.prove_anything(toy.assign(given, parameters=parameters))
    verdict = check(toy, proof, expected, parameters)
    assert verdict == Verification(False, "commitment of answers is not the one computed")


# --- what the caller must not mix up


def test_keys_of_another_circuit_are_refused(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(CircuitError, match="another circuit"):
        check(toy, keys=replace(toy.keys, circuit=bytes(32)))
    with pytest.raises(CircuitError, match="settings"):
        check(toy, pinned=replace(toy.pinned, settings=toy.pinned.settings + b" "))
    with pytest.raises(CircuitError, match="6 blinding factors"):
        check(toy, commit_key=CommitKey(toy.srs, toy.pinned.k, BLINDING + 1))
    other = tmp_path / "other.srs"
    generate_srs(other, toy.pinned.k)
    with pytest.raises(CircuitError, match="another SRS"):
        check(toy, commit_key=CommitKey(other, toy.pinned.k, BLINDING))


def test_expected_names_are_the_given_ones(toy: Toy) -> None:
    with pytest.raises(CircuitError, match="limbs"):
        check(toy, expected=toy.expected | {"limbs": bytes(64)})
    with pytest.raises(CircuitError, match=r"^b: "):
        check(toy, expected={name: toy.expected[name] for name in ("a", "c")})


# --- the parts


def test_challenge_is_that_of_the_spec() -> None:
    """Recomputed from its description."""
    named = {"x": b"\1" * 64, "a": b"\2" * 64}
    claim = b"\4" * 32
    drawn = derive_challenge(b"\3" * 32, named, 3, claim=claim)
    body = cbor.encode(
        {
            "circuit": b"\3" * 32,
            "claim": b"\4" * 32,
            "commitments": [["x", b"\1" * 64], ["a", b"\2" * 64]],
        }
    )
    stream = blake3(body, derive_key_context="vtrain 2026 proof challenge v1").digest(length=144)
    whole = [int.from_bytes(stream[at : at + 48], "little") for at in (0, 48, 96)]
    assert drawn == tuple(value % SCALAR_FIELD for value in whole)
    assert derive_challenge(b"\3" * 32, named, 2, claim=claim) == drawn[:2]


def test_challenge_follows_all_that_precedes_it() -> None:
    base = {"a": b"\1" * 64, "b": b"\2" * 64}
    seen = [
        derive_challenge(bytes(32), base, 1, claim=b""),
        derive_challenge(b"\1" + bytes(31), base, 1, claim=b""),
        derive_challenge(bytes(32), base, 1, claim=bytes(32)),
        derive_challenge(bytes(32), base, 1, claim=b"\1" + bytes(31)),
        derive_challenge(bytes(32), {"a": b"\1" * 64}, 1, claim=b""),
        derive_challenge(bytes(32), {"a": b"\1" * 64, "c": b"\2" * 64}, 1, claim=b""),
        derive_challenge(bytes(32), {"a": b"\2" * 64, "b": b"\1" * 64}, 1, claim=b""),
        derive_challenge(bytes(32), {"b": b"\2" * 64, "a": b"\1" * 64}, 1, claim=b""),
    ]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    "values",
    [
        [0],
        [127, -128],
        [128],
        [-(2**31), 2**31 - 1],
        [2**31],
        [-(2**63), 2**63 - 1],
        [2**63, -5],
        [-(2**200), SCALAR_FIELD - 1, SCALAR_FIELD + 3],
    ],
)
def test_commitments_of_integers_are_those_of_field_elements(toy: Toy, values: list[int]) -> None:
    scalars = b"".join((value % SCALAR_FIELD).to_bytes(32, "little") for value in values)
    expected = toy.commit_key.commit_scalars(scalars)
    assert commit_vector(toy.commit_key, np.array(values, dtype=object)) == expected
