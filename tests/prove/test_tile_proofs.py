"""Proofs of tiles by ezkl, from a run to an auditor's verdict: nothing here is a stand-in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tests.audit.runs import KEY, failed
from tests.prove.compiler import install_solc
from tests.prove.test_tile_runs import (
    FIRST,
    K,
    answer,
    audit,
    make_setup,
    make_task,
    open_prover,
    publish,
)
from tests.srs import place_srs
from vtrain.attest.claims import compute_claim_digest
from vtrain.prove.backend.ezkl import Proof
from vtrain.prove.chain.evm import encode_statement_calldata, export_evm
from vtrain.prove.chain.statement import bind_circuit, commit_parameters
from vtrain.prove.proof_files import Item, proof_path
from vtrain.prove.runs import read_run
from vtrain.prove.tiles.circuits import LinearMap
from vtrain.prove.tiles.protocol import draw_statements
from vtrain.prove.tiles.ready import TileCircuits
from vtrain.prove.tiles.statements import LINEAR, StepFacts, TileStatement
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.tiles.verifier import read_traces
from vtrain.prove.verifier import read_commitments
from vtrain.train.runner import train
from vtrain.wire import structs
from vtrain.wire.tiles import TileProof

pytestmark = pytest.mark.slow

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "proofs.json").read_text())

DRAWN = [LINEAR, "matmul-nt", "range-1"]
"""The circuits of the statements that are drawn: with a public map, with nothing public, with
parameters."""


@dataclass(frozen=True)
class Answered:
    """A run whose solver answered draws: what an auditor has, and the files by circuit."""

    public: Path
    srs: Path
    second: bytes
    statements: Mapping[str, Item]

    def verdict(self, public: Path) -> tuple[str, str]:
        """The auditor's verdict, and the detail of what failed."""
        options = {"traces": (FIRST, 1), "seed": self.second, "sample": len(DRAWN)}
        report = audit(public, self.srs, **options)
        return report.verdict, " ".join(check.detail for check in failed(report))

    def read(self, statement: Item) -> TileProof:
        path = proof_path(self.public, statement)
        return structs.decode(TileProof, path.read_bytes(), path.name)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Answered:
    folder = tmp_path_factory.mktemp("answered")
    run, srs = folder / "run", folder / "srs"
    place_srs(srs, K, bytes.fromhex(VECTORS["srs"]["seed"]))
    train(make_task(srs, hash="keccak256"), run, key=KEY, engine="numpy")
    prover = open_prover(run, srs)
    prover.claim_traces(FIRST, 1, KEY)
    said, facts = read_traces(run).trace_claim, StepFacts(1, 0)

    def draw(seed: bytes) -> list[tuple[str, Item]]:
        drawn = draw_statements(seed, said, prover.tiling, len(DRAWN))
        return [
            (prover.tiling.statement(index, facts).circuit, Item("tile", trace.step, index))
            for trace, index in drawn
        ]

    seeds = (number.to_bytes(4, "big") for number in count())
    second = next(seed for seed in seeds if sorted(name for name, _ in draw(seed)) == DRAWN)
    shutil.rmtree(run / "proofs")
    answer(run, srs, FIRST, second, 1, len(DRAWN))
    return Answered(publish(run, folder / "public"), srs, second, dict(draw(second)))


def test_an_auditor_verifies_real_proofs(answered: Answered) -> None:
    assert answered.verdict(answered.public) == ("verified", "")


def test_a_proof_of_another_statement_of_the_circuit_is_refused(
    answered: Answered, tmp_path: Path
) -> None:
    """A linear map, with the proof of the vectors: as long, of the same key."""
    public = Path(shutil.copytree(answered.public, tmp_path / "public"))
    item = answered.statements[LINEAR]
    good = answered.read(item)
    (case,) = (case for case in VECTORS["cases"] if case["circuit_name"] == LINEAR)
    setup = make_setup(read_run(public).task, answered.srs)
    circuits = TileCircuits(setup, setup.open_key(), b"", proving=False)
    assert circuits.ready(LINEAR).keys.vk_digest.hex() == case["key"]
    other = bytes.fromhex(case["proof"])
    assert len(other) == len(good.proof)
    proof_path(public, item).write_bytes(structs.encode(replace(good, proof=other)))
    verdict, detail = answered.verdict(public)
    assert (verdict, "is not the one expected" in detail) == ("inconclusive", True)


@pytest.mark.parametrize("circuit", DRAWN)
def test_a_proof_with_one_bit_flipped_is_refused(
    answered: Answered, tmp_path: Path, circuit: str
) -> None:
    """Behind the commitments, where ezkl alone can say so."""
    public = Path(shutil.copytree(answered.public, tmp_path / "public"))
    item = answered.statements[circuit]
    good = answered.read(item)
    data = bytearray(good.proof)
    data[-200] ^= 1
    proof_path(public, item).write_bytes(structs.encode(replace(good, proof=bytes(data))))
    verdict, detail = answered.verdict(public)
    assert verdict == "inconclusive"
    assert f"statement {item.index}: " in detail
    assert "Failed to run verify" in detail


def test_a_proof_is_bound_to_claim_map_and_parameters(answered: Answered) -> None:
    """What no commitment in the proof is of: everything else is as it was proven."""
    signed = read_run(answered.public)
    setup = make_setup(signed.task, answered.srs)
    key, claim = setup.open_key(), compute_claim_digest(signed.signed.claim)
    circuits = TileCircuits(setup, key, claim, proving=False)
    tiling = Tiling(signed.graph)

    def check(circuits: TileCircuits, name: str, statement: TileStatement, data: bytes) -> bool:
        ready = circuits.ready(name)
        found = read_commitments(ready.circuit, Proof(data, ()))
        expected = {given: found[given] for given in ready.circuit.given}
        return circuits.verify(statement, expected, data).holds

    others = TileCircuits(setup, key, bytes(32), proving=False)
    for name, item in answered.statements.items():
        statement, data = tiling.statement(item.index, StepFacts(1, 0)), answered.read(item).proof
        assert check(circuits, name, statement, data), name
        assert not check(others, name, statement, data), f"{name}: another solver's claim"
        if statement.linear is not None:
            image = statement.linear
            factors = image.factors.copy()
            factors[0] += 1
            other = replace(statement, linear=LinearMap(image.outputs, image.inputs, factors))
            assert not check(circuits, name, other, data), "another map"
        if "hi" in statement.parameters:
            wider = {**statement.parameters, "hi": np.asarray(statement.parameters["hi"]) + 1}
            assert not check(circuits, name, replace(statement, parameters=wider), data), "a range"


def test_proofs_of_tiles_hold_on_chain(answered: Answered, tmp_path: Path) -> None:
    """Of a product, which has nothing public, and of a range, whose parameters are many."""
    pytest.importorskip("pyrevm", reason="pyrevm has no wheel for this Python")
    from tests.prove.chain import Chain, measure_gas

    signed = read_run(answered.public)
    setup = make_setup(signed.task, answered.srs)
    key, claim = setup.open_key(), compute_claim_digest(signed.signed.claim)
    circuits = TileCircuits(setup, key, claim, proving=False)
    for name, most in (("matmul-nt", 520_000), ("range-1", 800_000)):
        item = answered.statements[name]
        parameters = Tiling(signed.graph).statement(item.index, StepFacts(1, 0)).parameters
        ready, proof = circuits.ready(name), answered.read(item).proof
        made = export_evm(
            settings=ready.keys.settings,
            vk=ready.keys.vk,
            srs=answered.srs,
            out=tmp_path / name,
            limits=setup.limits,
            binding=bind_circuit(ready.circuit, ready.pinned, key),
            solc=install_solc(),
        )
        own = {
            "claim": claim,
            "given": proof[: 64 * len(ready.circuit.given)],
            "parameters": commit_parameters(ready.circuit, parameters, key),
        }
        asked = encode_statement_calldata(proof, **own)
        assert measure_gas(made, Proof(proof, ()), asked).verify_statement < most
        chain = Chain()
        verifier, _ = chain.deploy(made.verifier.creation)
        statement, _ = chain.deploy(made.deploy_statement(verifier))
        point = key.find_point(1)
        for part, other in (
            ("claim", bytes(32)),
            ("given", point + own["given"][64:]),
            ("parameters", point),
            ("parameters", own["parameters"] + point),
        ):
            changed = encode_statement_calldata(proof, **(own | {part: other}))
            assert chain.call(statement, changed).output is None, part
        for at in range(0, len(proof), 131):
            data = bytearray(proof)
            data[at] ^= 1
            asked = encode_statement_calldata(bytes(data), **own)
            assert chain.call(statement, asked).output is None, at
