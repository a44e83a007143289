"""The verifier of a circuit on a local Ethereum: what it accepts and what not."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
from vtrain.prove.backend.settings import count_blocks, count_usable, pin
from vtrain.prove.chain.evm import (
    GUARD,
    VERIFIER,
    Contract,
    EvmVerifier,
    amend,
    compile_contracts,
    encode_calldata,
    encode_parameters_calldata,
    encode_statement_calldata,
    export_evm,
    write_verifier,
)
from vtrain.prove.chain.size import MAX_CODE, estimate_code, tell_contract
from vtrain.prove.chain.statement import (
    STATEMENT,
    Binding,
    bind_circuit,
    commit_parameters,
    flatten_parameters,
    join_given,
    write_statement_verifier,
)
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit as OurCircuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.prover import prove
from vtrain.prove.setup import ProofSetup, ReadyCircuit
from vtrain.prove.tiles.circuits import build_tile_circuit
from vtrain.prove.verifier import keccak256, verify
from vtrain.spec.field import SCALAR_FIELD
from vtrain.wire.proof import CIRCUIT_NAMES, Hash, ProofSpec

pytest.importorskip("pyrevm", reason="pyrevm has no wheel for this Python")
from tests.prove.chain import Chain, Gas, Outcome, measure_gas
from tests.prove.forgery import forge_call

SOLC_LIMITS = Limits(memory=8 << 30, seconds=120)
CLAIM = b"\5" * 32
TWO_TENSORS = Binding(
    circuit=bytes(32),
    given=2,
    private=0,
    computed=0,
    late=0,
    answers=(),
    fixed=(),
    points=(),
    challenge=None,
    drawn_from_computed=False,
)
"""A circuit of ezkl's own, of two tensors that are committed to: all it has is given."""


SOLC = install_solc()


def export(
    circuit: Circuit,
    out: Path,
    solc: Path | None = SOLC,
    binding: Binding | None = TWO_TENSORS,
) -> EvmVerifier:
    return export_evm(
        settings=circuit.folder / "settings.json",
        vk=circuit.folder / "vk",
        srs=circuit.srs,
        out=out,
        limits=LIMITS,
        binding=binding,
        solc=solc,
    )


def export_keys(keys: Keys, srs: Path, out: Path, binding: Binding) -> EvmVerifier:
    return export_evm(
        settings=keys.settings,
        vk=keys.vk,
        srs=srs,
        out=out,
        limits=LIMITS,
        binding=binding,
        solc=SOLC,
    )


def ask(proof: bytes, given: bytes, parameters: bytes = b"", claim: bytes = CLAIM) -> bytes:
    return encode_statement_calldata(proof, claim=claim, given=given, parameters=parameters)


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


@cache
def compile_plain(source: str) -> Contract:
    return compile_contracts({VERIFIER: source}, SOLC, SOLC_LIMITS)[VERIFIER]


@dataclass(frozen=True)
class Deployed:
    """A circuit's verifier on a chain, alone and for statements."""

    made: EvmVerifier
    chain: Chain
    verifier: bytes
    statement: bytes
    proof: Proof
    """Of x = 1..4 and x + y = 11, 22, 33, 44."""
    zeros: Proof
    """Of x = 0 and y = 0."""

    def holds(self, proof: Proof) -> bool:
        """What both say, asked for the proof's own commitments."""
        alone = self.chain.call(self.verifier, encode_calldata(proof)).holds
        if not proof.instances:
            with_own = ask(proof.data, proof.data[:128])
            assert self.chain.call(self.statement, with_own).holds == alone
        return alone

    def bind(self, proof: Proof, *commitments: bytes) -> bool:
        return self.chain.call(self.statement, ask(proof.data, b"".join(commitments))).holds


@pytest.fixture(scope="module")
def deployed(proven: Circuit, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    made = export(proven, tmp_path_factory.mktemp("evm") / "out")
    chain = Chain()
    verifier, _ = chain.deploy(made.verifier.creation)
    statement, _ = chain.deploy(made.deploy_statement(verifier))
    other = Circuit(tmp_path_factory.mktemp("zeros"), proven.srs)
    for name in ("circuit", "vk", "pk", "settings.json"):
        (other.folder / name).symlink_to(proven.folder / name)
    other.witness([0] * 4, [0] * 4)
    other.prove()
    return Deployed(made, chain, verifier, statement, read(proven, made), read(other, made))


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
    made = export(circuit, circuit.folder / "out", binding=None)
    assert (made.instances, made.tensors, made.statement) == (2, 0, None)
    assert not (made.folder / f"{STATEMENT}.sol").exists()
    with pytest.raises(ProofError, match="the export knows no circuit"):
        made.deploy_statement(bytes(20))
    with pytest.raises(ProofError, match="with 0 columns, the circuit has 2"):
        export(circuit, circuit.folder / "another")
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
    """The contracts of a circuit with a vector of every kind."""

    toy: Toy
    proof: bytes
    """Of the toy's statement for ``CLAIM``, its challenge by keccak256."""
    binding: Binding
    made: EvmVerifier
    chain: Chain
    verifier: bytes
    statement: bytes

    def alone(self, proof: bytes) -> bool:
        return self.chain.call(self.verifier, encode_calldata(Proof(proof, ()))).holds

    def call(self, proof: bytes, at: bytes | None = None, **other: bytes) -> Outcome:
        """What the contract says of a proof, asked for the toy's statement but for ``other``."""
        given = other.get("given", join_given(self.toy.circuit, self.toy.expected))
        parameters = other.get("parameters", self.commit())
        data = ask(proof, given, parameters, other.get("claim", CLAIM))
        return self.chain.call(at or self.statement, data)

    def holds(self, proof: bytes, **other: bytes) -> bool:
        return self.call(proof, **other).holds

    def commit(self, parameters: Mapping[str, Ints] = PARAMETERS) -> bytes:
        return commit_parameters(self.toy.circuit, parameters, self.toy.commit_key)

    def verify(self, proof: bytes, **other: Any) -> bool:
        """What we say off chain."""
        arguments: dict[str, Any] = {
            "expected": self.toy.expected,
            "parameters": PARAMETERS,
            "claim": CLAIM,
            "hash": "keccak256",
        }
        toy = self.toy
        return verify(
            *(toy.circuit, toy.pinned, toy.keys, proof),
            commit_key=toy.commit_key,
            limits=LIMITS,
            **(arguments | other),
        ).holds

    def deploy(self, *bindings: Binding) -> list[bytes]:
        """The contracts for other bindings, over the same verifier."""
        code = self.made.verifier.deployed
        return self.deploy_texts(*(write_statement_verifier(item, code) for item in bindings))

    def deploy_changed(self, *changes: tuple[str, str]) -> list[bytes]:
        """The contract, each time with another part of its text replaced."""
        text = write_statement_verifier(self.binding, self.made.verifier.deployed)
        assert all(text.count(old) == 1 for old, _ in changes)
        return self.deploy_texts(*(text.replace(old, new) for old, new in changes))

    def deploy_texts(self, *texts: str) -> list[bytes]:
        whole = f"contract {STATEMENT} "
        sources = {
            f"Other{index}": text.replace(whole, f"contract Other{index} ")
            for index, text in enumerate(texts)
        }
        contracts = compile_contracts(sources, SOLC, SOLC_LIMITS).values()
        makers = (replace(self.made, statement=contract) for contract in contracts)
        return [self.chain.deploy(made.deploy_statement(self.verifier))[0] for made in makers]


@pytest.fixture(scope="module")
def deployed_toy(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> DeployedToy:
    binding = bind_circuit(toy.circuit, toy.pinned, toy.commit_key)
    made = export_keys(toy.keys, toy.srs, tmp_path_factory.mktemp("toy-evm") / "out", binding)
    chain = Chain()
    verifier, _ = chain.deploy(made.verifier.creation)
    statement, _ = chain.deploy(made.deploy_statement(verifier))
    proof = toy.prove(claim=CLAIM, hash="keccak256")
    return DeployedToy(toy, proof, binding, made, chain, verifier, statement)


def code_of(error: str) -> str:
    """What a revert for a reason of the contract shows."""
    return f"output: 0x{keccak256(f'{error}()'.encode())[:4].hex()}"


def test_proof_of_a_statement_holds_on_chain(deployed_toy: DeployedToy) -> None:
    toy = deployed_toy.toy
    assert deployed_toy.made.length == toy.keys.proof_length
    assert deployed_toy.made.tensors == len(toy.circuit.columns)
    assert deployed_toy.verify(deployed_toy.proof)
    assert deployed_toy.holds(deployed_toy.proof)


def test_contract_commits_to_few_parameters(deployed_toy: DeployedToy) -> None:
    circuit, chain = deployed_toy.toy.circuit, deployed_toy.chain
    for total in (-30, 0, 7, SCALAR_FIELD - 1):
        parameters = {"total": np.array([total], dtype=object)}
        values = flatten_parameters(circuit, parameters)
        output = chain.call(deployed_toy.statement, encode_parameters_calldata(values)).output
        expected = deployed_toy.commit(parameters)
        assert output == (32).to_bytes(32) + (64).to_bytes(32) + expected
    unreduced = bytearray(encode_parameters_calldata([0]))
    unreduced[-32:] = SCALAR_FIELD.to_bytes(32)
    for data in (*map(encode_parameters_calldata, ((), (1, 2))), bytes(unreduced)):
        assert code_of("WrongParameters") in chain.call(deployed_toy.statement, data).reason
    # Of more parameters a contract is told no points: who asks commits to them.
    [many] = deployed_toy.deploy(replace(deployed_toy.binding, points=()))
    assert deployed_toy.call(deployed_toy.proof, many).holds
    outcome = chain.call(many, encode_parameters_calldata([-30]))
    assert code_of("WrongParameters") in outcome.reason


def test_proof_of_another_statement_does_not_hold_on_chain(deployed_toy: DeployedToy) -> None:
    """Nor off chain."""
    toy, proof = deployed_toy.toy, deployed_toy.proof

    def require_refused(error: str, proof: bytes = proof, **other: bytes) -> None:
        assert code_of(error) in deployed_toy.call(proof, **other).reason, other

    for name, values in GIVEN.items():
        expected = toy.expected | {name: toy.commit(values + 1)}
        require_refused("WrongGiven", given=join_given(toy.circuit, expected))
        assert not deployed_toy.verify(proof, expected=expected)
    swapped = b"".join(toy.expected[name] for name in ("b", "a", "c"))
    for given in (b"", swapped, swapped[:128], join_given(toy.circuit, toy.expected) + bytes(64)):
        require_refused("WrongGiven", given=given)
    other = {"total": PARAMETERS["total"] + 1}
    require_refused("WrongComputed", parameters=deployed_toy.commit(other))
    assert not deployed_toy.verify(proof, parameters=other)
    x, y = deployed_toy.commit()[:32], deployed_toy.commit()[32:]
    order = 21888242871839275222246405745257275088696311157297823662689037894645226208583
    unreduced = (int.from_bytes(x) + order).to_bytes(32)
    for parameters in (b"", x, x + y + x + y, x + x, bytes(64), unreduced + y):
        require_refused("WrongParameters", parameters=parameters)
        outcome = deployed_toy.call(proof, parameters=parameters)
        assert outcome.gas < 200_000, "a precompile takes all gas for what is no point"
    require_refused("WrongComputed", parameters=toy.commit(np.arange(3)))
    require_refused("WrongComputed", claim=bytes(32))
    assert not deployed_toy.verify(proof, claim=bytes(32))
    assert not deployed_toy.verify(proof, hash="blake3")
    require_refused("WrongComputed", toy.proof)  # of no claim, its challenge by BLAKE3
    require_refused("WrongLength", proof[: 64 * len(toy.circuit.columns) - 1])
    with pytest.raises(CircuitError, match="limbs"):
        join_given(toy.circuit, toy.expected | {"limbs": bytes(64)})
    with pytest.raises(ProofError, match="claim: has 0 bytes, not 32"):
        deployed_toy.holds(proof, claim=b"")


def test_every_commitment_of_a_proof_counts_on_chain(deployed_toy: DeployedToy) -> None:
    toy, proof = deployed_toy.toy, deployed_toy.proof
    errors = {"a": "WrongGiven", "b": "WrongGiven", "c": "WrongGiven"}
    errors |= {"private": "WrongComputed", "computed": "WrongComputed", "answers": "WrongAnswers"}
    for index, name in enumerate(toy.circuit.columns):
        changed = bytearray(proof)
        changed[64 * index : 64 * index + 64] = toy.commit(np.arange(4))
        outcome = deployed_toy.call(bytes(changed))
        assert outcome.output is None, name
        assert code_of(errors[name]) in outcome.reason if name in errors else True
    for at in range(0, len(proof), 61):
        changed = bytearray(proof)
        changed[at] ^= 1
        assert not deployed_toy.holds(bytes(changed)), at


def test_contract_of_another_circuit_takes_no_proof(deployed_toy: DeployedToy) -> None:
    """The same verifier: only the digest, a constant or a column's place is another."""
    binding, proof = deployed_toy.binding, deployed_toy.proof
    point = deployed_toy.toy.commit_key.find_point(0)
    same, *others = deployed_toy.deploy(
        binding,
        replace(binding, circuit=bytes(32)),
        replace(binding, challenge=point),
        replace(binding, answers=(point,)),
        replace(binding, drawn_from_computed=False),
        replace(binding, given=2, private=2),
    )
    assert deployed_toy.call(proof, same).holds
    for other in others:
        assert deployed_toy.call(proof, other).output is None


def test_challenge_of_the_provers_choice_does_not_hold_on_chain(
    deployed_toy: DeployedToy,
) -> None:
    """A false product, with a challenge that does not see it: a verifier alone takes the proof, and
    so does the contract once what it draws is taken out."""
    toy = deployed_toy.toy
    given = GIVEN | {"c": GIVEN["c"] + CANCELLED}
    expected = {name: toy.commit(values) for name, values in given.items()}
    named = join_given(toy.circuit, expected)
    vectors = toy.assign(given, cheat=lambda x: [CHOSEN])
    proof = toy.prove_anything(vectors)
    assert deployed_toy.alone(proof)
    assert code_of("WrongComputed") in deployed_toy.call(proof, given=named).reason
    assert not deployed_toy.verify(proof, expected=expected)

    drawn = "addChallenge(computed, draw(claim, proof[:PRIVATE_END], drawn));"
    chosen = f"drawn; claim; addChallenge(computed, {CHOSEN});"
    compared = "if (keccak256(proof[PRIVATE_END:COMPUTED_END]) != keccak256(computed)) {"
    for weaker in deployed_toy.deploy_changed((drawn, chosen), (compared, "if (false) {")):
        assert deployed_toy.call(proof, weaker, given=named).holds


def test_public_values_beyond_one_column_are_named_by_two_points(toy: Toy, tmp_path: Path) -> None:
    """And no private ones: the challenge follows from ``given`` and both points."""
    length = count_usable(toy_module.K) + 20
    b = CircuitBuilder(2, toy_module.SPAN, count_usable(toy_module.K), masks=0)
    total, terms = b.vector("total", 1), b.parameter("terms", (length,))
    b.zero_sum("total", [(terms, None, 1), (total, None, -1)])
    b.zero("total again", total.lin() * 2 - total.lin() - total.lin())
    circuit = b.build()
    assert circuit.columns == ("total", "computed 0", "computed 1", "answers")
    pinned = pin(circuit, toy_module.K)
    keys = load_keys(pinned, toy.srs, tmp_path / "cache", LIMITS)
    parameters = {"terms": np.arange(length)}
    proof = prove(
        circuit,
        pinned,
        keys,
        given={"total": np.array([np.arange(length).sum()])},
        hiding={},
        count=lambda: None,
        parameters=parameters,
        srs=toy.srs,
        commit_key=toy.commit_key,
        limits=LIMITS,
        claim=CLAIM,
        hash="keccak256",
    ).data
    binding = bind_circuit(circuit, pinned, toy.commit_key)
    assert (binding.computed, binding.points, binding.fixed) == (2, (), ())
    made, chain = export_keys(keys, toy.srs, tmp_path / "out", binding), Chain()
    verifier, _ = chain.deploy(made.verifier.creation)
    statement, _ = chain.deploy(made.deploy_statement(verifier))
    public, given = commit_parameters(circuit, parameters, toy.commit_key), proof[:64]
    assert chain.call(statement, ask(proof, given, public)).holds
    first, second = public[:64], public[64:]
    other = toy.commit(np.arange(3))
    for wrong in (first, second + first, other + second, first + other):
        assert chain.call(statement, ask(proof, given, wrong)).output is None


def test_verifier_accepts_and_refuses_what_that_of_ezkl_does(deployed_toy: DeployedToy) -> None:
    """In the plain layout of a call; the name of the modulus makes no difference but in size."""
    toy, proof, chain = deployed_toy.toy, deployed_toy.proof, Chain()
    paths = {"settings": toy.keys.settings, "vk": toy.keys.vk, "srs": toy.srs}
    plain = compile_plain(write_verifier(**paths, limits=LIMITS))
    assert deployed_toy.made.verifier.size < 0.72 * plain.size
    address, _ = chain.deploy(plain.creation)
    changes = [(0, 0), *((at, 1) for at in range(31, len(proof), 95))]
    modulus = SCALAR_FIELD.to_bytes(32)
    proofs = [proof, bytes(len(proof)), proof[:-64] + bytes(64)]
    for at, change in changes:
        altered = bytearray(proof)
        altered[at] ^= change
        proofs.append(bytes(altered))
    evaluations = 64 * len(toy.circuit.columns)
    for at in range(evaluations, len(proof) - 128, 32 * 7):
        unreduced = int.from_bytes(proof[at : at + 32]) + int.from_bytes(modulus)
        if unreduced < 1 << 256:
            proofs.append(proof[:at] + unreduced.to_bytes(32) + proof[at + 32 :])
    said = [deployed_toy.alone(data) for data in proofs]
    theirs = [chain.call(address, encode_calldata(Proof(data, ()))).holds for data in proofs]
    assert said == theirs
    assert [data for data, holds in zip(proofs, said, strict=True) if holds] == [proof] * 2


# --- Commitments.


def test_proof_of_other_tensors_is_refused_only_for_a_statement(deployed: Deployed) -> None:
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
        outcome = deployed.chain.call(deployed.statement, ask(proof.data, x + z))
        assert outcome.output is None
    assert not deployed.bind(deployed.proof, x, z[:63])
    with_parameters = ask(deployed.proof.data, x + z, parameters=x)
    assert not deployed.chain.call(deployed.statement, with_parameters).holds


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


def test_statements_are_verified_over_the_code_exported_alone(
    deployed: Deployed, proven: Circuit
) -> None:
    chain = Chain()
    unguarded, _ = chain.deploy(compile_plain(write_plain(proven)).creation)
    for address in (unguarded, b"\x22" * 20, bytes(20)):
        with pytest.raises(RuntimeError, match=code_of("WrongVerifier")[8:]):
            chain.deploy(deployed.made.deploy_statement(address))
    with pytest.raises(ProofError, match="address: has 19 bytes"):
        deployed.made.deploy_statement(bytes(19))


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
    at_fixed, drawn = forged[100 : 100 + length], forged[132 + length : 132 + 2 * length]
    for data in (at_fixed, drawn):
        assert not deployed.chain.call(deployed.statement, ask(data, data[:128])).holds


def test_call_of_another_layout_is_seen_in_the_plain_one(deployed: Deployed) -> None:
    """Whatever the layout, all parts of a call are those that the contract compares."""
    proof, given = deployed.proof.data, deployed.proof.data[:128]
    plain = ask(proof, given)
    head, tails = plain[:4], plain[4 + 128 :]

    def lay_out(gap: int, given_at: int | None = None) -> bytes:
        offsets = [128 + gap, int.from_bytes(CLAIM), 128 + gap + 32 + len(proof)]
        offsets += [offsets[2] + 32 + len(given)]
        if given_at is not None:
            offsets[2] = given_at
        return head + b"".join(item.to_bytes(32) for item in offsets) + bytes(gap) + tails

    assert lay_out(0) == plain
    chain, address = deployed.chain, deployed.statement
    assert chain.call(address, lay_out(96)).holds
    # The commitments read from elsewhere: of a length that is none, or beyond the end.
    for at in (0, 128 + 32, 1 << 20, 1 << 255):
        assert not chain.call(address, lay_out(0, at)).holds
    for cut in (1, 32, 33, 64, len(proof)):
        assert not chain.call(address, plain[:-cut]).holds


def test_bytes_after_a_call_change_nothing(deployed: Deployed) -> None:
    data = encode_calldata(deployed.proof)
    assert deployed.chain.call(deployed.verifier, data + bytes(96)).holds
    assert not deployed.chain.call(deployed.verifier, data[:-1]).holds


def test_call_without_enough_gas_is_no_answer(deployed: Deployed) -> None:
    """Refused and short of gas look alike: a contract must not take either for a false proof."""
    data = ask(deployed.proof.data, deployed.proof.data[:128])
    gas = deployed.chain.call(deployed.statement, data).gas
    assert deployed.chain.call(deployed.statement, data, gas=gas - 50_000).output is None


# --- Gas and size.


def test_gas_is_what_the_documentation_states(deployed: Deployed) -> None:
    data = deployed.proof.data
    gas = measure_gas(deployed.made, deployed.proof, ask(data, data[:128]))
    assert isinstance(gas, Gas)
    assert gas.calldata == 4 + 4 * 32 + deployed.made.length
    assert 590_000 < gas.verify < 605_000
    assert gas.verify < gas.verify_statement < gas.verify + 20_000
    assert 2_150_000 < gas.deploy < 2_300_000
    assert gas.deploy_statement < 700_000
    with pytest.raises(RuntimeError, match="does not hold"):
        measure_gas(deployed.made, deployed.proof, ask(data, deployed.zeros.data[:128]))


def test_drawing_the_challenge_costs_little(deployed_toy: DeployedToy) -> None:
    given = join_given(deployed_toy.toy.circuit, deployed_toy.toy.expected)
    call = ask(deployed_toy.proof, given, deployed_toy.commit())
    gas = measure_gas(deployed_toy.made, Proof(deployed_toy.proof, ()), call)
    assert gas.verify < gas.verify_statement < gas.verify + 20_000


def make_wide_circuit(given: int, length: int) -> OurCircuit:
    """``given`` equal vectors of limbs, 3 inner columns."""
    b = CircuitBuilder(3, toy_module.SPAN, masks=0)
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
    binding = bind_circuit(circuit, pinned, toy.commit_key)
    made = export_keys(keys, toy.srs, tmp_path / "out", binding)
    assert made.verifier.size == pytest.approx(size, rel=0.02)
    assert made.verifier.fits == (gas is not None)
    assert estimate_code(circuit, toy_module.K).size == pytest.approx(made.verifier.size, rel=0.02)
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
        claim=CLAIM,
        hash="keccak256",
    )
    right = ask(proof.data, proof.data[: 64 * len(circuit.given)])
    assert measure_gas(made, proof, right).verify == pytest.approx(gas, rel=0.02)
    address, _ = chain.deploy(made.verifier.creation)
    for at in range(0, len(proof.data), 97):
        data = bytearray(proof.data)
        data[at] ^= 1
        assert not chain.call(address, encode_calldata(replace(proof, data=bytes(data)))).holds


# --- The command.

Export = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def export_command(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Export:
    """The command for a run whose task is for the toy, with the keys that are there: its exit code,
    what it shows, and what it says on stderr."""

    def run(*words: str, hash: Hash = "keccak256", circuit: OurCircuit | None = None) -> Any:
        circuit = circuit or toy.circuit
        spec = ProofSpec("tiles", toy.keys.srs, toy_module.K, 5, 1, (), {}, hash=hash)
        setup = ProofSetup(spec, toy.srs, tmp_path / "cache", LIMITS, 8 << 30)
        ready = ReadyCircuit("gate", circuit, toy.pinned, toy.keys)
        signed = SimpleNamespace(task=None, graph=None)
        monkeypatch.setattr("vtrain.cli.prove.open_run", lambda run: signed)
        monkeypatch.setattr("vtrain.cli.prove.make_setup", lambda task, **given: setup)
        monkeypatch.setattr("vtrain.prove.tiles.circuits.build_tile_circuit", lambda name: circuit)

        def make(*arguments: Any, **options: Any) -> ReadyCircuit:
            made.append(ready)
            return ready

        monkeypatch.setattr("vtrain.prove.setup.make_ready", make)
        named = ["--circuit", "gate", "--srs", str(toy.srs), "--solc", str(SOLC), "--json"]
        named += ["--out", str(tmp_path / "out")]
        code = cli.run(["prove", "export-evm", str(tmp_path), *named, *words])
        written = capsys.readouterr()
        return code, json.loads(written.out), " ".join(written.err.split())

    made: list[ReadyCircuit] = []
    run.made = made  # type: ignore[attr-defined]
    return run


def test_command_exports_for_a_run(
    deployed_toy: DeployedToy, export_command: Export, tmp_path: Path
) -> None:
    code, shown, said = export_command()
    assert (code, shown["fits"], shown["insecure"]) == (4, True, True)
    assert "the SRS is of no ceremony" in said
    for contract in (deployed_toy.made.verifier, deployed_toy.made.statement):
        assert contract is not None
        made = bytes.fromhex((tmp_path / f"out/{contract.name}.bin").read_text())
        assert made == contract.creation
    about = json.loads((tmp_path / "out/evm.json").read_text())
    assert about["circuit"] == deployed_toy.toy.pinned.digest.hex()
    code, _, said = export_command("--allow-insecure-srs")
    assert (code, "the folder exists" in said) == (2, True)


def test_command_names_what_no_contract_draws_before_keys_are_made(
    export_command: Export, tmp_path: Path
) -> None:
    code, _, said = export_command(hash="blake3")
    assert code == 2
    assert "proof.hash: is blake3, and contracts draw challenges by keccak256 alone" in said
    code, _, said = export_command(circuit=build_tile_circuit("linear", 4))
    assert code == 2
    assert "elements that the verifier computes from the challenge" in said
    code, shown, said = export_command("--max-code", "5000", "--allow-insecure-srs")
    assert (code, shown["fits"], shown["most_code"]) == (3, False, 5000)
    assert f"gate would have about {shown['code']} bytes of code, the most is 5000" in said
    assert "larger k" in said
    assert export_command.made == []  # type: ignore[attr-defined]
    assert not (tmp_path / "out").exists()


def test_tile_circuits_fit_as_the_page_says() -> None:
    """The limit lies where the estimate leaves no doubt: none is within its error of it."""
    circuits = {name: build_tile_circuit(name) for name in CIRCUIT_NAMES["tiles"]}
    for circuit in circuits.values():  # the contract draws from the beginning of a proof
        assert circuit.settled == circuit.columns[: len(circuit.settled)]

    def list_fitting(k: int) -> set[str]:
        sizes = {name: estimate_code(circuit, k) for name, circuit in circuits.items()}
        assert all(not 0.98 < about.size / MAX_CODE < 1.02 for about in sizes.values())
        return {name for name, about in sizes.items() if about.may_fit()}

    fit = {"gate", "linear", "matmul-nn", "matmul-nt", "matmul-tn", "mul", "square", "zero"}
    fit |= {"look-up"}
    fit |= {"range-1", "range-3", "softmax-16", "rescale-i16-0", "rescale-i64-1", "rescale-i64-2"}
    assert list_fitting(15) == fit
    assert list_fitting(16) == {*circuits} - {"softmax-128"}
    assert list_fitting(17) == {*circuits}
    for hash, name, words in (
        ("keccak256", "matmul-nn", "about 8359 bytes of code, the most is 24576"),
        ("keccak256", "softmax-128", ": too large"),
        ("keccak256", "linear", "no contract: challenge has 16384 elements that the verifier"),
        ("blake3", "matmul-nn", "no contract: proof.hash is blake3"),
    ):
        assert words in tell_contract(circuits[name], 15, hash)  # type: ignore[arg-type]


def test_command_says_what_does_not_fit_after_all(
    deployed_toy: DeployedToy, export_command: Export, tmp_path: Path
) -> None:
    size = deployed_toy.made.verifier.size
    code, shown, said = export_command("--max-code", str(size - 1), "--allow-insecure-srs")
    assert (code, shown["fits"], shown["code"]) == (3, False, size)
    assert f"Halo2Verifier has {size} bytes of code, the most is {size - 1}" in said
    assert "of no ceremony" not in said
    about = json.loads((tmp_path / "out/evm.json").read_text())
    assert about["contracts"][VERIFIER]["size"] == size


def test_code_beyond_the_limit_is_not_deployed() -> None:
    text = """// SPDX-License-Identifier: MIT
        pragma solidity ^0.8.0;
        contract Long { constructor(uint256 n) { assembly { return(0, n) } } }
    """
    made = compile_contracts({"Long": text}, SOLC, SOLC_LIMITS)["Long"]
    chain = Chain()
    chain.deploy(made.creation + MAX_CODE.to_bytes(32))
    assert replace(made, deployed=bytes(MAX_CODE)).fits
    with pytest.raises(RuntimeError, match="CreateContractSizeLimit"):
        chain.deploy(made.creation + (MAX_CODE + 1).to_bytes(32))
    assert not replace(made, deployed=bytes(MAX_CODE + 1)).fits


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
    assert made.statement is not None
    names = {"evm.json"}
    for contract in (made.verifier, made.statement):
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
