"""Verifying a proof up to ezkl's own part, from docs/format.md, section 4b, and circuits/ alone.

Whoever knows tau needs no SRS file: commitments are those of ``kzg_rule``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from blake3 import blake3
from Crypto.Hash import keccak

from tests.vectors import kzg_rule
from vtrain.wire import cbor
from vtrain.wire.proof import Hash

CIRCUITS = Path(__file__).resolve().parents[2] / "circuits"
R = kzg_rule.R
POINT = 64
TILE = 128
CHALLENGE = "vtrain 2026 proof challenge v2"


@dataclass(frozen=True)
class Files:
    """What an outsider has of a circuit."""

    digest: bytes
    proof_length: int
    columns: Mapping[str, Any]

    def names(self, origin: str) -> list[str]:
        """The columns of one origin, in order."""
        return [item["name"] for item in self.columns["columns"] if item["origin"] == origin]


@cache
def read_circuit(name: str) -> Files:
    """The files of a circuit; its digest is computed from them."""
    folder = CIRCUITS / name
    facts = json.loads((folder / "circuit.json").read_text())
    material = {
        "columns": blake3((folder / "columns.json").read_bytes()).digest(),
        "ezkl": facts["ezkl"],
        "onnx": blake3((folder / "circuit.onnx").read_bytes()).digest(),
        "settings": blake3((folder / "settings.json").read_bytes()).digest(),
    }
    digest = blake3(cbor.encode(material), derive_key_context="vtrain 2026 circuit v2").digest()
    columns = json.loads((folder / "columns.json").read_text())
    return Files(digest, facts["proof_length"], columns)


@dataclass(frozen=True)
class Statement:
    """What is known before a proof is seen: ``given`` are commitments, ``image`` is linear's map as
    (outputs, inputs, factors), ``hash`` is what the task draws challenges by."""

    claim: bytes
    given: Mapping[str, bytes]
    parameters: Mapping[str, Sequence[int]]
    image: tuple[Sequence[int], Sequence[int], Sequence[int]] | None = None
    hash: Hash = "blake3"


@dataclass
class Computed:
    """What a verifier computes, and ``fails``: the first step that a proof does not pass, "proof"
    where all that is left is ezkl's own."""

    fails: str = ""
    before: dict[str, bytes] = field(default_factory=dict)
    challenge: list[int] = field(default_factory=list)
    computed: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)


@cache
def _commit(tau: int, k: int, blinding: int, values: tuple[int, ...]) -> bytes:
    return kzg_rule.commit(tau, k, blinding, values)


def commit(files: Files, tau: int, values: Sequence[int], hiding: Sequence[int] = ()) -> bytes:
    """The commitment to a column: its values, and behind them what hides them."""
    return _commit(tau, files.columns["k"], files.columns["blinding"], (*values, *hiding))


def verify(files: Files, tau: int, statement: Statement, proof: bytes) -> Computed:
    """All steps but the last."""
    found = Computed("length")
    if len(proof) != files.proof_length:
        return found
    order = [item["name"] for item in files.columns["columns"]]
    held = {name: proof[POINT * i : POINT * (i + 1)] for i, name in enumerate(order)}
    found.fails = "given"
    if any(held[name] != statement.given[name] for name in files.names("given")):
        return found
    found.before = _commit_computed(files, tau, statement, [0] * _count_challenge(files))
    found.challenge = draw(files, {**held, **found.before}, statement)
    found.computed = _commit_computed(files, tau, statement, found.challenge)
    answers = files.columns["answers"]
    found.answers = _commit_columns(
        files, tau, "answers", [1] * answers["ones"] + [0] * answers["zeros"]
    )
    found.fails = "computed"
    if any(held[name] != value for name, value in found.computed.items()):
        return found
    found.fails = "answers"
    if any(held[name] != value for name, value in found.answers.items()):
        return found
    found.fails = "proof"
    return found


def draw(files: Files, commitments: Mapping[str, bytes], statement: Statement) -> list[int]:
    """The elements of kind "challenge"."""
    settled = b"".join(commitments[name] for name in files.columns["settled"])
    message = files.digest + statement.claim + settled
    if statement.hash == "blake3":
        stream = blake3(message, derive_key_context=CHALLENGE).digest(length=48)
        drawn = int.from_bytes(stream, "little") % R
    else:
        domain = _keccak256(CHALLENGE.encode())
        high, low = (_keccak256(bytes([i]) + domain + message) for i in (0, 1))
        drawn = int.from_bytes(high + low, "big") % R
    return [drawn] if statement.image is None else _expand(drawn, *statement.image)


def _keccak256(data: bytes) -> bytes:
    return keccak.new(data=data, digest_bits=256).digest()


def _expand(
    drawn: int, outputs: Sequence[int], inputs: Sequence[int], factors: Sequence[int]
) -> list[int]:
    w = [0] * TILE**2
    for p, q, factor in zip(outputs, inputs, factors, strict=True):
        w[q] = (w[q] + factor * pow(drawn, TILE + 1 + p, R)) % R
    return [drawn, *w]


def _count_challenge(files: Files) -> int:
    parts = files.columns["computed"]
    return sum(part["length"] for part in parts if part["kind"] == "challenge")


def _commit_computed(
    files: Files, tau: int, statement: Statement, challenge: Sequence[int]
) -> dict[str, bytes]:
    """The columns ``computed``: constants and parameters as they stand, then the challenge."""
    values: list[int] = []
    for part in files.columns["computed"]:
        if part["kind"] == "constant":
            values += [int(item) for item in part["values"].split(" ")]
        elif part["kind"] == "parameter":
            values += statement.parameters[part["name"]]
    return _commit_columns(files, tau, "computed", [*values, *challenge])


def _commit_columns(files: Files, tau: int, origin: str, values: Sequence[int]) -> dict[str, bytes]:
    """The columns of one origin, which the values fill one after the other."""
    made, start = {}, 0
    for item in files.columns["columns"]:
        if item["origin"] == origin:
            stop = start + item["length"]
            made[item["name"]] = commit(files, tau, values[start:stop])
            start = stop
    if start != len(values):
        raise ValueError(f"{origin}: {len(values)} values for {start} places")
    return made
