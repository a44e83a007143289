"""Writes ``proofs.json``: proofs of tile circuits, what a verifier computes, and broken proofs.

``python -m tests.vectors.generate_proofs`` writes it and the verifying keys in ``proofs/``;
``--check`` compares and exits 1 when it differs.  All but the proofs follows from circuits/ and
``proof_rule.py``.  A proof is made anew (a minute for all) only where the one that is there is of
another statement, as proofs are random.  README.md documents the format.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from tests.vectors import kzg_rule, proof_rule
from tests.vectors.proof_rule import POINT, Statement
from vtrain.prove.backend.ezkl import Limits
from vtrain.prove.backend.keys import Keys, load_keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.circuit.values import Ints
from vtrain.prove.prover import prove
from vtrain.prove.tiles.circuits import (
    TILE_K,
    LinearMap,
    build_tile_circuit,
    linear_challenge,
    range_parameters,
)
from vtrain.prove.verifier import Expansion
from vtrain.wire.proof import HASHES, TILE, Hash

PATH: Final = Path(__file__).with_name("proofs.json")
KEYS: Final = Path(__file__).with_name("proofs")
SEED: Final = b"\0"
SRS: Final = "5d4fd3bfb387d1719d6c6f62f101ba25747bc07224c1ccdb77815bf442634d09"
"""SHA-256 of the SRS file of that seed."""
CLAIM: Final = bytes(range(32))
TAU: Final = (
    int.from_bytes(blake3(SEED, derive_key_context="vtrain 2026 srs tau v1").digest(64), "little")
    % kzg_rule.R
)
Json = dict[str, Any]
Array = npt.NDArray[np.int64]


def fill(number: int, lo: int, hi: int) -> Array:
    """The rule of README.md for the elements of a tile."""
    i = np.arange(TILE * TILE, dtype=np.int64)
    drawn = (2654435761 * i + 40503 * number) % 2**32
    return lo + drawn * (hi - lo + 1) // 2**32


@dataclass(frozen=True)
class Case:
    """A true statement about tiles."""

    circuit: str
    given: Mapping[str, Array]
    parameters: Mapping[str, Ints]
    image: LinearMap | None = None
    hash: Hash = "blake3"

    @property
    def name(self) -> str:
        """Which of the cases it is."""
        return f"{self.circuit}, {self.hash}"

    @property
    def key(self) -> bytes:
        """What hides the given tiles is derived from: the same statement has the same."""
        digests = [blake3(tile.astype("<i8").tobytes()).digest() for tile in self.given.values()]
        return blake3(b"".join(digests)).digest()

    @property
    def hiding(self) -> dict[str, list[int]]:
        """What hides each given tile."""
        return {
            name: kzg_rule.derive_elements(self.key, column)
            for column, name in enumerate(self.given)
        }

    @property
    def expansion(self) -> Expansion | None:
        if self.image is None:
            return None
        return partial(linear_challenge, TILE, image=self.image)

    def state(self) -> Statement:
        """It, as an outsider has it."""
        files, hiding = proof_rule.read_circuit(self.circuit), self.hiding
        return Statement(
            CLAIM,
            {
                name: proof_rule.commit(files, TAU, tile.tolist(), hiding[name])
                for name, tile in self.given.items()
            },
            {n: [int(item) for item in np.ravel(v)] for n, v in self.parameters.items()},
            None if self.image is None else list_image(self.image),
            self.hash,
        )


def list_image(image: LinearMap) -> tuple[list[int], list[int], list[int]]:
    """A map as three lists."""
    return image.outputs.tolist(), image.inputs.tolist(), image.factors.tolist()


def make_cases() -> list[Case]:
    """A product, by both hashes; a public map; a range with padding."""
    left, right = (fill(number, -32639, 32639) for number in (0, 1))
    product = (left.reshape(TILE, TILE) @ right.reshape(TILE, TILE)).reshape(-1)
    outputs, inputs, factors = (
        np.asarray(item, dtype=np.int64)
        for item in ([0, 0, 1, 128, 16383], [5, 16383, 5, 0, 300], [1, -3, 7, 1, 2**20])
    )
    x = fill(2, -127, 127)
    image = np.zeros_like(x)
    np.add.at(image, outputs, factors * x[inputs])
    rows, columns = 100, 7
    mask = (np.arange(TILE) < rows)[:, None] & (np.arange(TILE) < columns)[None, :]
    ranged = fill(3, -5, 20000) * mask.reshape(-1)
    tiles = {"a": left, "b": right, "c": product}
    return [
        Case("matmul-nn", tiles, {}),
        Case("matmul-nn", tiles, {}, hash="keccak256"),
        Case("linear", {"x": x, "y": image}, {}, LinearMap(outputs, inputs, factors)),
        Case(
            "range-1",
            {"x": ranged},
            range_parameters(TILE, lo=-5, hi=20000, rows=rows, columns=columns),
        ),
    ]


def edit(proof: bytes, at: int, put: bytes) -> list[Any]:
    """[at, cut, put]: bytes replaced by as many others."""
    if proof[at : at + len(put)] == put:
        raise ValueError("changes nothing")
    return [at, len(put), put.hex()]


def make_broken(case: Case, statement: Statement, proof: bytes) -> list[Json]:
    """The same with one thing changed, and the step that must find it."""
    files = proof_rule.read_circuit(case.circuit)
    names = [item["name"] for item in files.columns["columns"]]
    head = POINT * len(names)
    other = proof_rule.commit(files, TAU, [1, 2, 3])
    found: list[Json] = []

    def add(step: str, about: str, **changed: Any) -> None:
        found.append({"about": about, **changed, "step": step})

    length = len(proof)
    add("length", "a byte follows", proof=[[length, 0, "00"]])
    add("length", "the last byte is missing", proof=[[length - 1, 1, ""]])
    add("length", "nothing but commitments", proof=[[head, length - head, ""]])
    for name in statement.given:
        add("given", f"{name} is another tile", given={name: other.hex()})
        at = POINT * names.index(name)
        text = f"the proof begins with the commitment to another {name}"
        add("given", text, proof=[edit(proof, at, other)])
        text = f"both name another {name}, whose commitment the challenge is drawn from"
        add("computed", text, proof=[edit(proof, at, other)], given={name: other.hex()})
    for origin in ("private", "computed", "answers"):
        for name in files.names(origin):
            changed = [edit(proof, POINT * names.index(name), other)]
            step = "answers" if origin == "answers" else "computed"
            add(step, f"the commitment to {name} is of other values", proof=changed)
    add("computed", "another claim", claim=(b"\xff" + CLAIM[1:]).hex())
    add("computed", "another hash", hash=next(hash for hash in HASHES if hash != statement.hash))
    for name, values in statement.parameters.items():
        changed_values = [str(item) for item in [values[0] + 1, *values[1:]]]
        add("computed", f"another {name}", parameters={name: changed_values})
    if statement.image is not None:
        outputs, inputs, factors = statement.image
        other_map = [outputs, inputs, [factors[0] + 1, *factors[1:]]]
        add("computed", "another map", map=other_map)
    for at in (head, head + (length - head) // 2 | 31, length - 1):
        changed = [edit(proof, at, bytes([proof[at] ^ 1]))]
        add("proof", f"bit 0 of byte {at} is flipped", proof=changed)
    return found


def make_entry(case: Case, key: bytes, proof: bytes) -> Json:
    """The entry of a case, all of it by ``proof_rule``."""
    statement, files = case.state(), proof_rule.read_circuit(case.circuit)
    made = proof_rule.verify(files, TAU, statement, proof)
    if made.fails != "proof":
        raise ValueError(f"{case.circuit}: not a proof of the statement: {made.fails}")
    flat = b"".join(item.to_bytes(32, "little") for item in made.challenge)
    return {
        "circuit_name": case.circuit,
        "circuit": files.digest.hex(),
        "key": blake3(key).hexdigest(),
        **encode_statement(case, statement),
        "proof": proof.hex(),
        "before": {name: value.hex() for name, value in made.before.items()},
        "challenge": {
            "length": len(made.challenge),
            "first": [str(item) for item in made.challenge[:2]],
            "blake3": blake3(flat).hexdigest(),
        },
        "computed": {name: value.hex() for name, value in made.computed.items()},
        "answers": {name: value.hex() for name, value in made.answers.items()},
        "broken": make_broken(case, statement, proof),
    }


def encode_statement(case: Case, statement: Statement) -> Json:
    """What a proof is of."""
    return {
        "claim": statement.claim.hex(),
        "hash": statement.hash,
        "hiding_key": case.key.hex(),
        "given": {
            name: {
                "commitment": value.hex(),
                "blake3": blake3(case.given[name].astype("<i8").tobytes()).hexdigest(),
            }
            for name, value in statement.given.items()
        },
        "parameters": {
            name: [str(item) for item in values] for name, values in statement.parameters.items()
        },
        "map": None if statement.image is None else list(statement.image),
    }


def read_stored(cases: Sequence[Case]) -> dict[str, tuple[bytes, bytes]]:
    """Key and proof of each case by name, of those that are there and not of others."""
    if not PATH.is_file():
        return {}
    kept = {
        f"{entry['circuit_name']}, {entry.get('hash')}": entry
        for entry in json.loads(PATH.read_text())["cases"]
    }
    found = {}
    for case in cases:
        entry, path = kept.get(case.name), KEYS / f"{case.circuit}.vk"
        digest = proof_rule.read_circuit(case.circuit).digest.hex()
        same = encode_statement(case, case.state()) | {"circuit": digest}
        if entry and path.is_file() and all(entry[name] == same[name] for name in same):
            found[case.name] = path.read_bytes(), bytes.fromhex(entry["proof"])
    return found


def make_proofs(cases: Sequence[Case]) -> dict[str, tuple[bytes, bytes]]:
    """Keys and proofs by name, made now."""
    limits, made = Limits(memory=24 << 30, seconds=1800), {}
    with TemporaryDirectory() as name:
        srs = Path(name) / "srs"
        generate_srs(srs, TILE_K, seed=SEED)
        commit_key = CommitKey(srs, TILE_K, BLINDING)
        for case in cases:
            circuit = build_tile_circuit(case.circuit)
            pinned = pin(circuit, TILE_K)
            keys: Keys = load_keys(pinned, srs, Path(name) / "keys", limits)
            proof = prove(
                circuit,
                pinned,
                keys,
                given=case.given,
                hiding=case.hiding,
                count=lambda: None,
                parameters=case.parameters,
                srs=srs,
                commit_key=commit_key,
                limits=limits,
                expansion=case.expansion,
                claim=CLAIM,
                hash=case.hash,
            )
            made[case.name] = keys.vk.read_bytes(), proof.data
    return made


def encode(cases: Sequence[Case], found: Mapping[str, tuple[bytes, bytes]]) -> str:
    """The file."""
    whole = {
        "srs": {"k": TILE_K, "seed": SEED.hex(), "tau": str(TAU), "sha256": SRS},
        "cases": [make_entry(case, *found[case.name]) for case in cases],
    }
    return json.dumps(whole, indent=1) + "\n"


def main() -> int:
    """Write or compare the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check, cases = parser.parse_args().check, make_cases()
    found = read_stored(cases)
    missing = [case for case in cases if case.name not in found]
    if check:
        if missing or PATH.read_text() != encode(cases, found):
            sys.stderr.write(f"{PATH.name} is not what the rules give\n")
            return 1
        return 0
    found |= make_proofs(missing)
    KEYS.mkdir(exist_ok=True)
    for case in cases:
        (KEYS / f"{case.circuit}.vk").write_bytes(found[case.name][0])
    PATH.write_text(encode(cases, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
