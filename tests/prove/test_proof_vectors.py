"""Proofs in tests/vectors/proofs.json: our verifier and the plain rule say the same of each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from tests.prove.circuits import LIMITS
from tests.srs import place_srs
from tests.vectors import proof_rule
from vtrain.prove.backend.keys import Keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, pin
from vtrain.prove.backend.srs import identify_srs
from vtrain.prove.tiles.circuits import (
    LinearMap,
    build_tile_circuit,
    linear_challenge,
)
from vtrain.prove.verifier import verify
from vtrain.spec.field import SCALAR_FIELD
from vtrain.wire.proof import TILE

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
FILE = json.loads((VECTORS / "proofs.json").read_text())
TAU = int(FILE["srs"]["tau"])
CASES = {f"{case['circuit_name']}, {case['hash']}": case for case in FILE["cases"]}
Json = dict[str, Any]


@pytest.fixture(scope="module")
def srs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "srs"
    place_srs(path, FILE["srs"]["k"], bytes.fromhex(FILE["srs"]["seed"]))
    assert identify_srs(path).sha256.hex() == FILE["srs"]["sha256"]
    return path


@dataclass(frozen=True)
class Attempt:
    """A proof and what it is held against."""

    about: str
    statement: proof_rule.Statement
    proof: bytes
    step: str


def read_statement(case: Mapping[str, Any]) -> proof_rule.Statement:
    return proof_rule.Statement(
        bytes.fromhex(case["claim"]),
        {name: bytes.fromhex(item["commitment"]) for name, item in case["given"].items()},
        {name: [int(v) for v in values] for name, values in case["parameters"].items()},
        None if case["map"] is None else tuple(case["map"]),
        case["hash"],
    )


def apply(proof: bytes, edits: list[list[Any]]) -> bytes:
    for at, cut, put in edits:
        proof = proof[:at] + bytes.fromhex(put) + proof[at + cut :]
    return proof


def list_attempts(case: Json) -> Iterator[Attempt]:
    """The proof that holds, whose step is "", and those that do not."""
    good, proof = read_statement(case), bytes.fromhex(case["proof"])
    yield Attempt("as it is", good, proof, "")
    for broken in case["broken"]:
        points = {name: bytes.fromhex(item) for name, item in broken.get("given", {}).items()}
        numbers = {n: [int(v) for v in vs] for n, vs in broken.get("parameters", {}).items()}
        statement = replace(
            good,
            claim=bytes.fromhex(broken.get("claim", case["claim"])),
            given={**good.given, **points},
            parameters={**good.parameters, **numbers},
            image=tuple(broken["map"]) if "map" in broken else good.image,
            hash=broken.get("hash", case["hash"]),
        )
        yield Attempt(
            broken["about"], statement, apply(proof, broken.get("proof", [])), broken["step"]
        )


def test_files_are_what_the_rules_give() -> None:
    command = [sys.executable, "-m", "tests.vectors.generate_proofs", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", CASES)
def test_the_plain_rule_says_the_same(name: str) -> None:
    case = CASES[name]
    files = proof_rule.read_circuit(case["circuit_name"])
    assert files.digest.hex() == case["circuit"]
    for attempt in list_attempts(case):
        found = proof_rule.verify(files, TAU, attempt.statement, attempt.proof)
        assert found.fails == (attempt.step or "proof"), attempt.about
        if not attempt.step:
            assert {n: v.hex() for n, v in found.before.items()} == case["before"]
            flat = b"".join(item.to_bytes(32, "little") for item in found.challenge)
            assert blake3(flat).hexdigest() == case["challenge"]["blake3"]
            assert {n: v.hex() for n, v in found.computed.items()} == case["computed"]
            assert {n: v.hex() for n, v in found.answers.items()} == case["answers"]


def find_step(reason: str) -> str:
    """The step of docs/format.md that a reason of our verifier stands for."""
    if reason.startswith("the proof has "):
        return "length"
    if reason.endswith(" is not the one expected"):
        return "given"
    if reason.endswith(" is not the one computed"):
        return reason.removeprefix("commitment of ").split(" ")[0]
    return "proof"


@pytest.mark.parametrize("name", CASES)
def test_our_verifier_says_the_same(name: str, srs: Path, tmp_path: Path) -> None:
    check_proofs(CASES[name], FILE["srs"]["k"], VECTORS / "proofs", srs, tmp_path)


def check_proofs(case: Json, k: int, keys_folder: Path, srs: Path, scratch: Path) -> None:
    """That our verifier says of each proof of a case what is written beside it."""
    circuit = build_tile_circuit(case["circuit_name"])
    pinned = pin(circuit, k)
    key = (keys_folder / f"{case['circuit_name']}.vk").read_bytes()
    assert blake3(key).hexdigest() == case["key"]
    for file, data in (("vk", key), ("settings.json", pinned.settings)):
        (scratch / file).write_bytes(data)
    (scratch / "srs").hardlink_to(srs)
    commit_key = CommitKey(srs, pinned.k, BLINDING)
    length = len(case["proof"]) // 2
    keys = Keys(scratch, pinned.digest, commit_key.srs.sha256, blake3(key).digest(), length)
    shapes = {
        part["name"]: part["shape"]
        for part in circuit.describe_computed()
        if part["kind"] == "parameter"
    }
    for attempt in list_attempts(case):
        statement, expansion = attempt.statement, None
        if statement.image is not None:
            image = LinearMap(*(np.asarray(part, dtype=np.int64) for part in statement.image))
            expansion = partial(linear_challenge, TILE, image=image)
        verdict = verify(
            circuit,
            pinned,
            keys,
            attempt.proof,
            expected=statement.given,
            parameters={
                name: np.asarray(values, dtype=object).reshape(shapes[name])
                for name, values in statement.parameters.items()
            },
            commit_key=commit_key,
            limits=LIMITS,
            claim=statement.claim,
            expansion=expansion,
            hash=statement.hash,
        )
        assert verdict.holds == (not attempt.step), attempt.about
        if attempt.step:
            assert find_step(verdict.reason) == attempt.step, attempt.about


def test_constants_in_columns_are_those_of_the_verifier() -> None:
    """All of ``columns.json`` against what our verifier lays out, for every tile circuit."""
    for path in sorted(proof_rule.CIRCUITS.glob("*/columns.json")):
        name, told = path.parent.name, json.loads(path.read_text())
        circuit = build_tile_circuit(name)
        parts = [part for part in told["computed"] if part["kind"] != "challenge"]
        parameters, values = {}, list[int]()
        for part in parts:
            if part["kind"] == "parameter":
                drawn = np.arange(part["length"], dtype=object) - 5 + len(values)
                parameters[part["name"]] = drawn.reshape(part["shape"])
                values += drawn.tolist()
            else:
                values += map(int, part["values"].split(" "))
        assert values == circuit.compute_public(parameters).tolist(), name
        challenge = sum(p["length"] for p in told["computed"] if p["kind"] == "challenge")
        assert challenge == circuit.length("challenge")
        answers = np.concatenate(list(circuit.compute_answers().values())).tolist()
        assert answers == [1] * told["answers"]["ones"] + [0] * told["answers"]["zeros"]
        assert all(abs(value) < SCALAR_FIELD // 2 for value in values)
