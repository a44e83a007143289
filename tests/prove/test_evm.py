"""The verifier of a circuit on a local Ethereum: what it accepts and what not."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.prove import toy as toy_module
from tests.prove.circuits import LIMITS, Circuit, node, write_model
from tests.prove.compiler import install_solc
from tests.prove.toy import CANCELLED, CHOSEN, GIVEN, PARAMETERS, Toy
from vtrain import cli
from vtrain.errors import (
    CircuitError,
    MissingExtraError,
    ProofError,
    ProverError,
    SrsError,
    StorageError,
)
from vtrain.prove.backend import srs as srs_module
from vtrain.prove.backend.ezkl import (
    Call,
    Limits,
    Proof,
    ProofShape,
    encode_element,
    read_proof,
    run_ezkl,
)
from vtrain.prove.backend.keys import Keys, load_keys
from vtrain.prove.backend.settings import count_blocks, pin
from vtrain.prove.chain import evm
from vtrain.prove.chain.evm import (
    BOUND,
    GUARD,
    MAX_CODE,
    VERIFIER,
    Contract,
    EvmVerifier,
    amend,
    compile_contracts,
    encode_bound_calldata,
    encode_calldata,
    export_evm,
    list_commitments,
    write_verifier,
)
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit as OurCircuit
from vtrain.prove.circuit.field import SCALAR_FIELD
from vtrain.prove.circuit.values import Ints
from vtrain.prove.prover import prove

pytest.importorskip("pyrevm", reason="pyrevm has no wheel for this Python")
from tests.prove.chain import Chain, Gas, measure_gas
from tests.prove.forgery import forge_call

SOLC_LIMITS = Limits(memory=8 << 30, seconds=120)
CLAIM = b"\5" * 32


SOLC = install_solc()


def export(circuit: Circuit, out: Path, solc: Path | None = SOLC) -> EvmVerifier:
    return export_evm(
        settings=circuit.folder / "settings.json",
        vk=circuit.folder / "vk",
        srs=circuit.srs,
        out=out,
        limits=LIMITS,
        solc=solc,
    )


def export_keys(keys: Keys, srs: Path, out: Path) -> EvmVerifier:
    return export_evm(
        settings=keys.settings, vk=keys.vk, srs=srs, out=out, limits=LIMITS, solc=SOLC
    )


def read(circuit: Circuit, made: EvmVerifier) -> Proof:
    shape = ProofShape(made.length, made.instances)
    return read_proof((circuit.folder / "proof.json").read_bytes(), shape)


def write_plain(circuit: Circuit) -> str:
    """The verifier as ezkl writes it."""
    return write_verifier(
        settings=circuit.folder / "settings.json",
        vk=circuit.folder / "vk",
        srs=circuit.srs,
        limits=LIMITS,
    )


def compile_plain(source: str) -> Contract:
    return compile_contracts({VERIFIER: source}, SOLC, SOLC_LIMITS)[VERIFIER]


@dataclass(frozen=True)
class Deployed:
    """A circuit's verifier on a chain, alone and bound to commitments."""

    made: EvmVerifier
    chain: Chain
    verifier: bytes
    bound: bytes
    proof: Proof
    """Of x = 1..4 and x + y = 11, 22, 33, 44."""
    zeros: Proof
    """Of x = 0 and y = 0."""

    def holds(self, proof: Proof) -> bool:
        """What both say, asked for the proof's own commitments."""
        alone = self.chain.call(self.verifier, encode_calldata(proof)).holds
        with_own = encode_bound_calldata(proof, [proof.data[:64], proof.data[64:128]])
        assert self.chain.call(self.bound, with_own).holds == alone
        return alone

    def bind(self, proof: Proof, *commitments: bytes) -> bool:
        return self.chain.call(self.bound, encode_bound_calldata(proof, commitments)).holds


@pytest.fixture(scope="module")
def deployed(proven: Circuit, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    made = export(proven, tmp_path_factory.mktemp("evm") / "out")
    chain = Chain()
    verifier, _ = chain.deploy(made.verifier.creation)
    bound, _ = chain.deploy(made.deploy_bound(verifier))
    other = Circuit(tmp_path_factory.mktemp("zeros"), proven.srs)
    for name in ("circuit", "vk", "pk", "settings.json"):
        (other.folder / name).symlink_to(proven.folder / name)
    other.witness([0] * 4, [0] * 4)
    other.prove()
    return Deployed(made, chain, verifier, bound, read(proven, made), read(other, made))


# --- Good proofs, bad proofs.


def test_proofs_hold_on_chain(deployed: Deployed) -> None:
    assert deployed.holds(deployed.proof)
    assert deployed.holds(deployed.zeros)


def test_call_data_are_those_of_ezkl(deployed: Deployed, proven: Circuit, tmp_path: Path) -> None:
    import ezkl

    # Its hints ask for an argument that it does not take.
    ezkl.encode_evm_calldata(proven.at("proof.json"), str(tmp_path / "data"))  # type: ignore[call-arg]
    of_its_own = bytes(32)  # the length of a key that this kind of verifier does not take
    assert (tmp_path / "data").read_bytes() == encode_calldata(deployed.proof) + of_its_own


def test_no_byte_of_a_proof_may_change(deployed: Deployed) -> None:
    data = deployed.proof.data
    ends = (0, 31, 63, 64, len(data) - 129, len(data) - 65, len(data) - 1)
    for at in sorted({*range(0, len(data), 101), *ends}):
        for bit in (0, 7):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            proof = replace(deployed.proof, data=bytes(changed))
            assert not deployed.holds(proof), f"bit {bit} of byte {at}"


@pytest.mark.parametrize("length", [128, 3808, 3839, 3841, 3872, 7680])
def test_proof_of_another_length_is_refused(deployed: Deployed, length: int) -> None:
    data = (deployed.proof.data * 2)[:length]
    assert not deployed.holds(replace(deployed.proof, data=data))
    padded = (deployed.proof.data + bytes(length))[:length]
    assert not deployed.holds(replace(deployed.proof, data=padded))


def test_public_value_that_the_circuit_lacks_is_refused(deployed: Deployed) -> None:
    assert not deployed.holds(replace(deployed.proof, instances=(0,)))


def test_public_values_are_bound(circuit: Circuit) -> None:
    write_model(
        circuit.folder / "model.onnx",
        [node("Add", ["x", "y"], ["z"])],
        {"x": [2], "y": [2]},
        {"z": [2]},
    )
    circuit.build(visibility="public")
    circuit.witness([1, 2], [10, 20])
    circuit.prove()
    made = export(circuit, circuit.folder / "out")
    assert (made.instances, made.tensors, made.bound) == (2, 0, None)
    assert not (made.folder / f"{BOUND}.sol").exists()
    with pytest.raises(ProofError, match="commits to nothing"):
        made.deploy_bound(bytes(20))
    proof, chain = read(circuit, made), Chain()
    assert proof.instances == (11, 22)
    address, _ = chain.deploy(made.verifier.creation)

    def holds(*instances: int) -> bool:
        return chain.call(address, encode_calldata(replace(proof, instances=instances))).holds

    assert holds(11, 22)
    for bad in ((12, 22), (11, 23), (22, 11), (11,), (11, 22, 0), (), (11 + SCALAR_FIELD, 22)):
        assert not holds(*bad), bad

    plain = write_plain(circuit)
    unguarded, _ = chain.deploy(compile_plain(plain).creation)
    forged = forge_call(plain, made.length, (7, 7))
    assert chain.call(unguarded, forged).holds
    assert not chain.call(address, forged).holds


# --- Circuits of ours.


@dataclass(frozen=True)
class DeployedToy:
    """The verifier of a circuit with a vector of every kind."""

    toy: Toy
    made: EvmVerifier
    chain: Chain
    verifier: bytes
    bound: bytes

    def alone(self, proof: bytes) -> bool:
        return self.chain.call(self.verifier, encode_calldata(Proof(proof, ()))).holds

    def bind(self, proof: bytes, commitments: Sequence[bytes]) -> bool:
        data = encode_bound_calldata(Proof(proof, ()), commitments)
        return self.chain.call(self.bound, data).holds

    def list(
        self,
        proof: bytes,
        expected: Mapping[str, bytes] | None = None,
        parameters: Mapping[str, Ints] = PARAMETERS,
        claim: bytes = b"",
    ) -> tuple[bytes, ...]:
        return list_commitments(
            self.toy.circuit,
            self.toy.pinned,
            Proof(proof, ()),
            expected=self.toy.expected if expected is None else expected,
            parameters=parameters,
            commit_key=self.toy.commit_key,
            claim=claim,
        )


@pytest.fixture(scope="module")
def deployed_toy(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> DeployedToy:
    made = export_keys(toy.keys, toy.srs, tmp_path_factory.mktemp("toy-evm") / "out")
    chain = Chain()
    verifier, _ = chain.deploy(made.verifier.creation)
    bound, _ = chain.deploy(made.deploy_bound(verifier))
    return DeployedToy(toy, made, chain, verifier, bound)


def test_proof_of_a_statement_holds_on_chain(deployed_toy: DeployedToy) -> None:
    toy = deployed_toy.toy
    assert deployed_toy.made.length == toy.keys.proof_length
    assert deployed_toy.made.tensors == len(toy.circuit.columns)
    right = deployed_toy.list(toy.proof)
    assert right == Proof(toy.proof, ()).commitments(len(toy.circuit.columns))
    assert deployed_toy.bind(toy.proof, right)


def test_proof_of_another_statement_does_not_hold_on_chain(deployed_toy: DeployedToy) -> None:
    toy = deployed_toy.toy
    for name, values in GIVEN.items():
        other = toy.expected | {name: toy.commit(values + 1)}
        assert not deployed_toy.bind(toy.proof, deployed_toy.list(toy.proof, other)), name
    total = {"total": PARAMETERS["total"] + 1}
    assert not deployed_toy.bind(toy.proof, deployed_toy.list(toy.proof, parameters=total))
    right = deployed_toy.list(toy.proof)
    for index, name in enumerate(toy.circuit.columns):
        proof = bytearray(toy.proof)
        proof[64 * index : 64 * index + 64] = toy.commit(np.arange(4))
        assert not deployed_toy.alone(bytes(proof)), name
        changed = (*right[:index], toy.commit(np.arange(4)), *right[index + 1 :])
        assert not deployed_toy.bind(toy.proof, changed), name
        assert not deployed_toy.bind(bytes(proof), changed), name
    another = deployed_toy.list(toy.proof, claim=b"\1" * 32)
    assert not deployed_toy.bind(toy.proof, another), "the proof is of no claim"
    with pytest.raises(CircuitError, match="limbs"):
        deployed_toy.list(toy.proof, toy.expected | {"limbs": bytes(64)})


def test_challenge_of_the_provers_choice_holds_for_whoever_asks_for_it(
    deployed_toy: DeployedToy,
) -> None:
    """A false product: the contracts draw no challenge, so that the caller must."""
    toy = deployed_toy.toy
    given = GIVEN | {"c": GIVEN["c"] + CANCELLED}
    vectors = toy.assign(given, cheat=lambda x: [CHOSEN])
    proof = toy.prove_anything(vectors)
    assert deployed_toy.alone(proof)
    expected = {name: toy.commit(values) for name, values in given.items()}
    its_own = Proof(proof, ()).commitments(len(toy.circuit.columns))
    assert deployed_toy.bind(proof, its_own)
    right = deployed_toy.list(proof, expected)
    differ = [
        name for name, a, b in zip(toy.circuit.columns, its_own, right, strict=True) if a != b
    ]
    assert differ == ["computed"]
    assert not deployed_toy.bind(proof, right)


def test_verifier_accepts_and_refuses_what_that_of_ezkl_does(deployed_toy: DeployedToy) -> None:
    """In the plain layout of a call; the name of the modulus makes no difference but in size."""
    toy, chain = deployed_toy.toy, Chain()
    paths = {"settings": toy.keys.settings, "vk": toy.keys.vk, "srs": toy.srs}
    plain = compile_plain(write_verifier(**paths, limits=LIMITS))
    assert deployed_toy.made.verifier.size < 0.72 * plain.size
    address, _ = chain.deploy(plain.creation)
    changes = [(0, 0), *((at, 1) for at in range(31, len(toy.proof), 95))]
    modulus = SCALAR_FIELD.to_bytes(32)
    proofs = [toy.proof, bytes(len(toy.proof)), toy.proof[:-64] + bytes(64)]
    for at, change in changes:
        altered = bytearray(toy.proof)
        altered[at] ^= change
        proofs.append(bytes(altered))
    evaluations = 64 * len(toy.circuit.columns)
    for at in range(evaluations, len(toy.proof) - 128, 32 * 7):
        unreduced = int.from_bytes(toy.proof[at : at + 32]) + int.from_bytes(modulus)
        if unreduced < 1 << 256:
            proofs.append(toy.proof[:at] + unreduced.to_bytes(32) + toy.proof[at + 32 :])
    said = [deployed_toy.alone(proof) for proof in proofs]
    theirs = [chain.call(address, encode_calldata(Proof(proof, ()))).holds for proof in proofs]
    assert said == theirs
    assert [proof for proof, holds in zip(proofs, said, strict=True) if holds] == [toy.proof] * 2


# --- Commitments.


def test_proof_of_other_tensors_is_refused_only_by_the_bound(deployed: Deployed) -> None:
    first, other = deployed.proof.commitments(2), deployed.zeros.commitments(2)
    assert set(first).isdisjoint(other)
    assert deployed.chain.call(deployed.verifier, encode_calldata(deployed.zeros)).holds
    assert not deployed.bind(deployed.zeros, *first)
    assert not deployed.bind(deployed.proof, *other)
    assert not deployed.bind(deployed.proof, first[0], other[1])
    assert not deployed.bind(deployed.proof, other[0], first[1])


def test_commitments_are_compared_in_order_and_number(deployed: Deployed) -> None:
    x, z = deployed.proof.commitments(2)
    assert deployed.bind(deployed.proof, x, z)
    third = deployed.proof.data[128:192]
    for bad in ((z, x), (x,), (z,), (), (x, z, third), (x, z, bytes(64))):
        assert not deployed.bind(deployed.proof, *bad)
    for short in (b"", x, deployed.proof.data[:127]):
        proof = replace(deployed.proof, data=short)
        outcome = deployed.chain.call(deployed.bound, encode_bound_calldata(proof, [x, z]))
        assert outcome.output is None
    with pytest.raises(ProofError, match=r"commitment 1: has 63 bytes, not 64"):
        encode_bound_calldata(deployed.proof, [x, z[:63]])


def test_commitments_recomputed_from_the_integers(deployed: Deployed, proven: Circuit) -> None:
    """The points of kzg_commit, whose coordinates are in little-endian hexadecimal."""
    keys = {
        "vk_path": proven.at("vk"),
        "settings_path": proven.at("settings.json"),
        "srs_path": str(proven.srs),
    }
    tensors = ([1, 2, 3, 4], [11, 22, 33, 44])
    calls = [
        Call("kzg_commit", {"message": [encode_element(value) for value in tensor]} | keys)
        for tensor in tensors
    ]
    points = [point for (point,) in run_ezkl(calls, LIMITS)]
    as_they_come = [bytes.fromhex(x) + bytes.fromhex(y) for x, y in points]
    turned = [bytes.fromhex(x)[::-1] + bytes.fromhex(y)[::-1] for x, y in points]
    assert not deployed.bind(deployed.proof, *as_they_come)
    assert deployed.bind(deployed.proof, *turned)


def test_bound_contract_compares_something(deployed: Deployed) -> None:
    none = replace(deployed.made, tensors=0).deploy_bound(deployed.verifier)
    with pytest.raises(RuntimeError, match="Revert"):
        deployed.chain.deploy(none)
    with pytest.raises(ProofError, match="address: has 19 bytes"):
        deployed.made.deploy_bound(bytes(19))


def test_bound_contract_over_no_contract_verifies_nothing(deployed: Deployed) -> None:
    nowhere, _ = deployed.chain.deploy(deployed.made.deploy_bound(b"\x22" * 20))
    data = encode_bound_calldata(deployed.proof, deployed.proof.commitments(2))
    assert not deployed.chain.call(nowhere, data).holds


# --- The layout of a call.


def test_verifier_as_ezkl_writes_it_takes_a_forged_call(
    deployed: Deployed, proven: Circuit
) -> None:
    """Should ezkl mend it, the second assertion fails: then the guard may go."""
    chain, length = Chain(), deployed.made.length
    plain = write_plain(proven)
    unguarded, _ = chain.deploy(compile_plain(plain).creation)
    forged = forge_call(plain, length)
    assert chain.call(unguarded, encode_calldata(deployed.proof)).holds
    assert chain.call(unguarded, forged).holds

    assert deployed.chain.call(deployed.verifier, forged).output is None
    bound, _ = chain.deploy(deployed.made.deploy_bound(unguarded))
    at_fixed, drawn = forged[100 : 100 + length], forged[132 + length : 132 + 2 * length]
    for data in (at_fixed, drawn):
        proof = Proof(data, ())
        own = encode_bound_calldata(proof, [data[:64], data[64:128]])
        assert not chain.call(bound, own).holds


def test_bytes_after_a_call_change_nothing(deployed: Deployed) -> None:
    data = encode_calldata(deployed.proof)
    assert deployed.chain.call(deployed.verifier, data + bytes(96)).holds
    assert not deployed.chain.call(deployed.verifier, data[:-1]).holds


def test_call_without_enough_gas_is_no_answer(deployed: Deployed) -> None:
    """Refused and short of gas look alike: a contract must not take either for a false proof."""
    data = encode_bound_calldata(deployed.proof, deployed.proof.commitments(2))
    gas = deployed.chain.call(deployed.bound, data).gas
    assert deployed.chain.call(deployed.bound, data, gas=gas - 50_000).output is None


# --- Gas and size.


def test_gas_is_what_the_documentation_states(deployed: Deployed) -> None:
    gas = measure_gas(deployed.made, deployed.proof, deployed.proof.commitments(2))
    assert isinstance(gas, Gas)
    assert gas.calldata == 4 + 4 * 32 + deployed.made.length
    assert 590_000 < gas.verify < 605_000
    assert gas.verify < gas.verify_bound < gas.verify + 10_000
    assert 2_150_000 < gas.deploy < 2_300_000
    assert gas.deploy_bound < 300_000
    with pytest.raises(RuntimeError, match="does not hold"):
        measure_gas(deployed.made, deployed.proof, deployed.zeros.commitments(2))


def make_wide_circuit(given: int, length: int) -> OurCircuit:
    """``given`` equal vectors of limbs, 3 inner columns."""
    b = CircuitBuilder(3, toy_module.SPAN)
    first, *others = [b.vector(f"v{index}", length) for index in range(given)]
    b.zero("range", b.limb("range", (length,), lambda values: values[first]) - first.lin())
    for index, other in enumerate(others):
        b.zero(f"same {index}", other.lin() - first.lin())
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "given", "length", "size", "gas"),
    [
        pytest.param(  # the columns of 784-32-10 with MSE, k = 17
            *(2, 8, 140, 16_100, 1_080_000), marks=pytest.mark.exhaustive
        ),
        (3, 8, 270, 20_300, 1_380_000),  # the most that fit
        pytest.param(  # the columns of rescale-i32-3
            *(5, 13, 420, 30_000, None), marks=pytest.mark.exhaustive
        ),
    ],
)
def test_whole_steps_fit_ethereum_in_three_blocks_of_columns(
    blocks: int, given: int, length: int, size: int, gas: int | None, toy: Toy, tmp_path: Path
) -> None:
    """Code and gas follow the columns alone, so that few rows do."""
    circuit = make_wide_circuit(given, length)
    assert count_blocks(circuit, toy_module.K) == blocks
    pinned = pin(circuit, toy_module.K)
    keys = load_keys(pinned, toy.srs, tmp_path / "cache", LIMITS)
    made = export_keys(keys, toy.srs, tmp_path / "out")
    assert made.verifier.size == pytest.approx(size, rel=0.02)
    assert made.verifier.fits == (gas is not None)
    # As ezkl writes it, even the smallest is too large.
    paths = {"settings": keys.settings, "vk": keys.vk, "srs": toy.srs}
    assert not compile_plain(write_verifier(**paths, limits=LIMITS)).fits
    chain = Chain()
    if gas is None:
        with pytest.raises(RuntimeError, match="CreateContractSizeLimit"):
            chain.deploy(made.verifier.creation)
        return
    proof = prove(
        circuit,
        pinned,
        keys,
        given={name: np.arange(length) % toy_module.SPAN for name in circuit.given},
        hiding={},
        count=lambda: None,
        parameters={},
        srs=toy.srs,
        commit_key=toy.commit_key,
        limits=LIMITS,
        claim=b"",
    )
    right = proof.commitments(len(circuit.columns))
    assert measure_gas(made, proof, right).verify == pytest.approx(gas, rel=0.02)
    address, _ = chain.deploy(made.verifier.creation)
    for at in range(0, len(proof.data), 97):
        data = bytearray(proof.data)
        data[at] ^= 1
        assert not chain.call(address, encode_calldata(replace(proof, data=bytes(data)))).holds


def test_command_says_what_does_not_fit(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evm, "MAX_CODE", 1000)
    words = ["prove", "export-evm", "--allow-insecure-srs", "--json"]
    words += ["--settings", str(toy.keys.settings), "--vk", str(toy.keys.vk)]
    words += ["--srs", str(toy.srs), "--solc", str(SOLC), "--out", str(tmp_path / "out")]
    assert cli.run(words) == 3
    written = capsys.readouterr()
    shown = json.loads(written.out)
    assert (shown["fits"], shown["most_code"]) == (False, 1000)
    assert f"{shown['code']} bytes of code, the most is 1000" in written.err
    assert "of no ceremony" not in written.err
    about = json.loads((tmp_path / "out/evm.json").read_text())
    assert about["contracts"][VERIFIER]["size"] == shown["code"]


def test_command_says_why_an_insecure_srs_is_not_enough(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prove", "export-evm", "--settings", str(toy.keys.settings)]
    words += ["--vk", str(toy.keys.vk), "--srs", str(toy.srs), "--solc", str(SOLC)]
    assert cli.run([*words, "--out", str(tmp_path / "out")]) == 4
    assert "the SRS is of no ceremony" in capsys.readouterr().err


def test_code_beyond_the_limit_is_not_deployed() -> None:
    text = """// SPDX-License-Identifier: MIT
        pragma solidity ^0.8.0;
        contract Long { constructor(uint256 n) { assembly { return(0, n) } } }
    """
    made = compile_contracts({"Long": text}, SOLC, SOLC_LIMITS)["Long"]
    chain = Chain()
    chain.deploy(made.creation + MAX_CODE.to_bytes(32))
    assert replace(made, size=MAX_CODE).fits
    with pytest.raises(RuntimeError, match="CreateContractSizeLimit"):
        chain.deploy(made.creation + (MAX_CODE + 1).to_bytes(32))
    assert not replace(made, size=MAX_CODE + 1).fits


# --- The export.


def test_export_says_what_it_was_made_of(deployed: Deployed, proven: Circuit) -> None:
    made = deployed.made
    about = json.loads((made.folder / "evm.json").read_text())
    sha256 = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in {
            "settings_sha256": proven.folder / "settings.json",
            "srs_sha256": proven.srs,
            "vk_sha256": proven.folder / "vk",
        }.items()
    }
    assert {name: about[name] for name in sha256} == sha256
    expected = {"ezkl": "23.0.5", "solc": "0.8.20", "k": 8, "insecure_srs": True}
    expected |= {"proof_bytes": 3840, "instances": 0, "tensors": 2}
    assert {name: about[name] for name in expected} == expected
    assert made.insecure
    assert "INSECURE" in made.verifier.source
    assert all(digest in made.verifier.source for digest in sha256.values())
    assert made.bound is not None
    names = {"evm.json"}
    for contract in (made.verifier, made.bound):
        files = {kind: f"{contract.name}.{kind}" for kind in ("sol", "abi.json", "bin")}
        names |= set(files.values())
        assert (made.folder / files["sol"]).read_text() == contract.source
        assert json.loads((made.folder / files["abi.json"]).read_text()) == contract.abi
        code = bytes.fromhex((made.folder / files["bin"]).read_text())
        assert code == contract.creation
        assert contract.fits
        assert about["contracts"][contract.name] == {
            "creation_sha256": hashlib.sha256(code).hexdigest(),
            "fits": True,
            "size": contract.size,
        }
    assert {path.name for path in made.folder.iterdir()} == names


def test_export_is_the_same_every_time_and_ezkl_runs_no_compiler(
    deployed: Deployed, proven: Circuit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself ezkl runs the compiler that it finds under the home directory or fetches."""
    planted = tmp_path / ".svm/0.8.20/solc-0.8.20"
    planted.parent.mkdir(parents=True)
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    planted.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    # solc comes from the PATH here.
    monkeypatch.setenv("PATH", f"{SOLC.parent}{os.pathsep}{os.environ['PATH']}")
    again = export(proven, tmp_path / "again", solc=None)
    assert replace(again, folder=deployed.made.folder) == deployed.made
    assert not (tmp_path / "ran").exists()


def test_process_that_exports_does_not_wind_down(
    proven: Circuit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all it needs; ezkl's threads crashed one interpreter in four that went on to its end.

    What an interpreter imports at its start, and runs at its end, shows which way it went.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, pathlib\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "(folder / 'began').touch()\n"
        "atexit.register((folder / 'ended').touch)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    arguments = {
        "vk_path": proven.at("vk"),
        "settings_path": proven.at("settings.json"),
        "sol_code_path": str(tmp_path / "verifier.sol"),
        "abi_path": str(tmp_path / "abi.json"),
        "srs_path": str(proven.srs),
        "reusable": False,
    }
    assert run_ezkl([Call("create_evm_verifier", arguments)], LIMITS) == [True]
    assert (tmp_path / "began").exists()
    assert not (tmp_path / "ended").exists()


def test_srs_of_a_ceremony_is_not_called_insecure(
    proven: Circuit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(proven.srs.read_bytes()).hexdigest()
    monkeypatch.setattr(srs_module, "CEREMONY", {8: digest})
    made = export(proven, tmp_path / "out")
    assert not made.insecure
    assert "INSECURE" not in made.verifier.source


def test_export_does_not_write_over_anything(proven: Circuit, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(StorageError, match="the folder exists"):
        export(proven, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_failed_export_leaves_nothing(proven: Circuit, tmp_path: Path) -> None:
    broken = Circuit(tmp_path, tmp_path / "short.srs")
    for name in ("vk", "settings.json"):
        (tmp_path / name).write_bytes((proven.folder / name).read_bytes())
    broken.srs.write_bytes(proven.srs.read_bytes()[:-1])
    with pytest.raises(SrsError):
        export(broken, tmp_path / "out")
    broken.srs.write_bytes(proven.srs.read_bytes())
    (tmp_path / "vk").write_bytes(b"no key")
    with pytest.raises(ProverError, match="create_evm_verifier"):
        export(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- The compiler.


def test_export_without_a_compiler_says_how_to_get_one(
    proven: Circuit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"npm install --global solc@0.8.20"):
        export(proven, tmp_path / "out", solc=None)


EMPTY = "contract C {}"
ANSWER = {
    "abi": [],
    "metadata": '{"compiler": {"version": "0.8.30+commit.x"}}',
    "evm": {"bytecode": {"object": ""}, "deployedBytecode": {"object": ""}},
}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo '{}'", "no answer of a compiler"),
        ("echo '[1]'", "no answer of a compiler"),
        ("echo out of order >&2; exit 1", "'out of order'"),
        (f"echo '{json.dumps({'contracts': {'C.sol': {'C': ANSWER}}})}'", "is 0.8.30, not 0.8.20"),
        ("exec tail -f /dev/null", "took more than 0.5 seconds"),
    ],
)
def test_other_compilers_are_refused(tmp_path: Path, script: str, message: str) -> None:
    solc = tmp_path / "solc"
    solc.write_text(f"#!/bin/sh\n{script}\n")
    solc.chmod(0o755)
    with pytest.raises(ProverError, match=message):
        compile_contracts({"C": EMPTY}, solc, replace(SOLC_LIMITS, seconds=0.5))


def test_compiler_that_is_not_there_and_text_that_is_no_contract(tmp_path: Path) -> None:
    with pytest.raises(ProverError, match="No such file"):
        compile_contracts({"C": EMPTY}, tmp_path / "solc", SOLC_LIMITS)
    with pytest.raises(ProverError, match="ParserError"):
        compile_contracts({"C": "contract"}, SOLC, SOLC_LIMITS)


def test_only_a_verifier_as_known_is_amended(proven: Circuit) -> None:
    plain = write_plain(proven)
    changed = amend(plain, ["a note"])
    assert changed.count(GUARD) == 1
    at = plain.index("let r := ")
    restored = changed.replace(f"            {GUARD}\n", "").replace("// a note\n", "")
    # Nothing is changed but the name of the modulus, and only where the variable has it.
    assert restored[:at] == plain[:at]
    assert restored[at:] == re.sub(r"\bR\b", "r", plain[at:])
    assert plain[at:].count(", R)") > 100
    again = "let y := 1\n"
    for text in (
        "",
        plain.replace("let success := true", "let success := 1"),
        plain + plain,
        plain.replace(f" R = {SCALAR_FIELD}", f" R = {SCALAR_FIELD - 1}"),
        plain.replace(f"let r := {SCALAR_FIELD}", f"let r := {SCALAR_FIELD - 1}"),
        *(
            plain[:at] + plain[at:].replace("// Return 1 as", f"{line}\n// Return 1 as")
            for line in ("r := 2", "success, r := f()", "r, success := f()")
        ),
    ):
        with pytest.raises(ProverError, match="wrote no verifier as known"):
            amend(text)
    assert amend(plain.replace("// Return 1 as", f"{again}// Return 1 as"))
