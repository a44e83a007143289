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
from tests.prove.toy import CANCELLED, CHOSEN, GIVEN, PARAMETERS, Toy
from vtrain.errors import CircuitError
from vtrain.prove.backend.ezkl import Proof, Verification, verify_proof
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.verifier import (
    commit_known,
    commit_vector,
    derive_challenge,
    draw_challenge,
    verify,
)
from vtrain.spec.field import SCALAR_FIELD
from vtrain.wire.proof import Hash


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
    b = CircuitBuilder(2, 255, rows, masks=1)
    given, weights = b.vector("a", 5), b.powers("vector", 5)
    if limbs:
        b.zero("limbs", b.limb("limbs", (5,), lambda values: values[given]) - given.lin())
    hints = b.hint("hints", (7,), lambda values: np.arange(1, 8))
    b.nonzero("hints", hints)
    scaled = b.mul(given, b.parameter("factors", (5,))) if public else given
    b.require_zero("sum", b.dot(b.sub(scaled, b.slice(hints, 0, 5)), weights))
    return b.build()


@pytest.mark.parametrize("rows", [440, 8, 5])
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
    assert len(kinds) > 4 or rows == 440
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
    """With an element of its choice a false product passes."""
    given = GIVEN | {"c": GIVEN["c"] + CANCELLED}
    vectors = toy.assign(given, cheat=lambda x: [CHOSEN])
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
    points, claim, domain = [b"\1" * 64, b"\2" * 64], b"\4" * 32, "vtrain 2026 proof challenge v2"
    message = b"\3" * 32 + claim + b"\1" * 64 + b"\2" * 64
    stream = blake3(message, derive_key_context=domain).digest(length=48)
    found = derive_challenge(b"\3" * 32, points, claim=claim)
    assert found == int.from_bytes(stream, "little") % SCALAR_FIELD
    prefix = keccak256(domain.encode())
    high, low = (keccak256(half + prefix + message) for half in (b"\0", b"\1"))
    found = derive_challenge(b"\3" * 32, points, claim=claim, hash="keccak256")
    whole = int.from_bytes(high, "big") * 2**256 + int.from_bytes(low, "big")
    assert found == whole % SCALAR_FIELD


def keccak256(data: bytes) -> bytes:
    """Keccak written out, as the team that made it has it (keccak.team, "specs summary")."""
    state = [[0] * 5 for _ in range(5)]
    padded = bytearray(data) + b"\1" + bytes(-(len(data) + 1) % 136)
    padded[-1] |= 0x80
    for start in range(0, len(padded), 136):
        for i in range(17):
            lane = int.from_bytes(padded[start + 8 * i : start + 8 * i + 8], "little")
            state[i % 5][i // 5] ^= lane
        state = _permute(state)
    return b"".join(state[i][0].to_bytes(8, "little") for i in range(4))


def _permute(a: list[list[int]]) -> list[list[int]]:
    def turn(lane: int, by: int) -> int:
        return (lane << by % 64 | lane >> 64 - by % 64) & (1 << 64) - 1

    register = 1
    for _ in range(24):
        c = [column[0] ^ column[1] ^ column[2] ^ column[3] ^ column[4] for column in a]
        d = [c[x - 1] ^ turn(c[(x + 1) % 5], 1) for x in range(5)]
        a = [[lane ^ d[x] for lane in a[x]] for x in range(5)]
        x, y, current = 1, 0, a[1][0]
        for t in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            current, a[x][y] = a[x][y], turn(current, (t + 1) * (t + 2) // 2)
        for y in range(5):
            row = [a[x][y] for x in range(5)]
            for x in range(5):
                a[x][y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5])
        for bit in range(7):
            register = (register << 1 ^ (register >> 7) * 0x171) % 256
            if register & 2:
                a[0][0] ^= 1 << (1 << bit) - 1
    return a


def test_keccak_is_that_of_ethereum() -> None:
    """The digest of nothing is the code hash of an account without code (EIP-1052)."""
    empty = "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert keccak256(b"").hex() == empty


@pytest.mark.parametrize("hashed_by", ["blake3", "keccak256"])
def test_challenge_follows_all_that_precedes_it(hashed_by: Hash) -> None:
    a, b = b"\1" * 64, b"\2" * 64
    messages = [
        (bytes(32), b"", [a, b]),
        (b"\1" + bytes(31), b"", [a, b]),
        (bytes(32), bytes(32), [a, b]),
        (bytes(32), b"\1" + bytes(31), [a, b]),
        (bytes(32), b"", [a]),
        (bytes(32), b"", [b, a]),
    ]
    seen = {derive_challenge(c, p, claim=claim, hash=hashed_by) for c, claim, p in messages}
    assert len(seen) == len(messages)


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
