"""The traps of ezkl 23.0.5: a change of ezkl's, for better or worse, fails a test here.

docs/proofs.md lists them.  A test that fails after an upgrade of ezkl means: look at the trap anew,
and at every circuit, before the new version is let in.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.prove.circuits import LIMITS, Circuit, node, read_element, write_model
from tests.prove.copies import Cell, read_cycles
from tests.prove.step_law import make_graph
from vtrain.errors import ProofError, ProverError, SrsError
from vtrain.prove.backend.ezkl import (
    Call,
    CallFailedError,
    ProofShape,
    encode_element,
    encode_proof,
    read_proof,
    run_ezkl,
    verify_proof,
)
from vtrain.prove.backend.srs import check_srs, generate_srs
from vtrain.prove.circuit.circuit import Circuit as OurCircuit
from vtrain.prove.steps.circuits import STEP_CIRCUITS, build_step_circuit
from vtrain.prove.tiles.circuits import TILE_CIRCUITS, build_tile_circuit
from vtrain.wire.proof import LEAST_STEP_K

K = 8
SHAPE = ProofShape(3840, 0)
Cycles = list[frozenset[Cell]]
INSTANCES = 7
"""The column of public values in the circuits here, the last of those without Freivalds."""


def add_one(witness: dict[str, Any]) -> None:
    values = witness["outputs"][-1]
    values[0] = encode_element(read_element(values[0]) + 1)


# --- 1. The built-in Freivalds einsum is not linked to the rest of the circuit.


def matmul_and_relu(circuit: Circuit, *, disable_freivalds: bool) -> Cycles:
    write_model(
        circuit.folder / "model.onnx",
        [node("MatMul", ["x", "y"], ["product"]), node("Relu", ["x"], ["mask"])],
        {"x": [2, 2], "y": [2, 2]},
        {"product": [2, 2], "mask": [2, 2]},
    )
    circuit.build(k=K, disable_freivalds=disable_freivalds)
    return read_cycles(Path(circuit.at("pk")), K)


def count_digit_links(cycles: Cycles) -> int:
    """Cycles of an input and an output cell of the plain gates, as in digit decompositions."""
    return sum(
        len(cycle) == 2 and {column // 2 for column, _ in cycle} == {0, 2} for cycle in cycles
    )


def test_trap_1_product_of_builtin_freivalds_is_unconstrained(circuit: Circuit) -> None:
    cycles = matmul_and_relu(circuit, disable_freivalds=False)
    own_columns = [cycle for cycle in cycles if any(column > INSTANCES for column, _ in cycle)]
    assert own_columns, "the built-in Freivalds no longer has columns of its own"
    public = [cycle for cycle in cycles if any(column == INSTANCES for column, _ in cycle)]
    assert len(public) == 8
    # The product reaches the public values, yet none of the columns in which it is checked.
    assert not [cycle for cycle in public if cycle in own_columns]
    assert count_digit_links(cycles) == 0, "digit decompositions are linked again beside Freivalds"


def test_trap_1_without_it_product_and_digits_are_linked(circuit: Circuit) -> None:
    cycles = matmul_and_relu(circuit, disable_freivalds=True)
    assert max(column for cycle in cycles for column, _ in cycle) == INSTANCES
    assert count_digit_links(cycles) > 0
    assert circuit.settings()["run_args"]["disable_freivalds"] is True
    circuit.witness([1, 2, 3, 4], [5, 6, 7, 8])
    assert circuit.mock()
    circuit.alter_witness(add_one)
    with pytest.raises(ProverError, match="Equality constraint not satisfied"):
        circuit.mock()


# --- 2. Div leaves its quotient free (read in ezkl's source; its API takes no false quotient).

USED = frozenset(
    {
        *("Add", "Concat", "Einsum", "Gather", "Identity", "Mul", "Pow", "ReduceProd", "ReduceSum"),
        *("Reshape", "Slice", "Sub", "Transpose"),
    }
)
"""Operators whose constraints were looked at: none divides, rounds, shifts, compares or casts."""


def build_any(name: str) -> OurCircuit:
    if name in STEP_CIRCUITS:
        return build_step_circuit(make_graph("cross_entropy", "some"), LEAST_STEP_K, name)
    return build_tile_circuit(name, 4)


@pytest.mark.parametrize("name", [*STEP_CIRCUITS, *TILE_CIRCUITS])
def test_no_circuit_has_an_operator_that_was_not_looked_at(name: str) -> None:
    nodes = onnx.load_from_string(build_any(name).to_onnx()).graph.node
    assert {node.op_type for node in nodes} <= USED
    assert sum(node.op_type == "Pow" for node in nodes) <= 1, "the one look-up"
    equations = {
        attribute.s.decode()
        for node in nodes
        if node.op_type == "Einsum"
        for attribute in node.attribute
    }
    assert equations <= {"i,i->", "ij,i->j", "ij,j->i"}, "no matrix product of ezkl's"


# --- 3. Integer operators that do something else, and prove it.


def test_trap_3_matmul_integer_gives_zeros_and_proves_them(circuit: Circuit) -> None:
    write_model(
        circuit.folder / "model.onnx",
        [node("MatMulInteger", ["x", "y"], ["z"])],
        {"x": [2, 2], "y": [2, 2]},
        {"z": [2, 2]},
        dtype=TensorProto.INT8,
        out_dtype=TensorProto.INT32,
    )
    circuit.build(k=K)
    assert circuit.witness([1, 2, 3, 4], [5, 6, 7, 8]) == [[0, 0, 0, 0]]  # 19 22 43 50
    assert circuit.verify(circuit.prove()) is True


@pytest.mark.parametrize(
    ("divisor", "given", "stated"),
    [(4, [7, -7, 12, 13], [7, -7, 12, 13]), (5, [7, -7, 12, 13], [0, 0, 0, 0])],
)
def test_trap_3_div_proves_what_is_no_quotient(
    circuit: Circuit, divisor: int, given: list[int], stated: list[int]
) -> None:
    write_model(
        circuit.folder / "model.onnx",
        [node("Div", ["x", "divisor"], ["z"])],
        {"x": [4]},
        {"z": [4]},
        {"divisor": float(divisor)},
    )
    circuit.build(k=K)
    assert circuit.witness(given) == [stated]
    assert circuit.verify(circuit.prove()) is True


def test_trap_3_bit_shift_shifts_nothing(circuit: Circuit) -> None:
    write_model(
        circuit.folder / "model.onnx",
        [node("BitShift", ["x", "bits"], ["z"], direction="RIGHT")],
        {"x": [4]},
        {"z": [4]},
        {"bits": np.uint64(2)},
        dtype=TensorProto.UINT64,
        out_dtype=TensorProto.UINT64,
    )
    circuit.build(k=K)
    assert circuit.witness([4, 8, 12, 100]) == [[4, 8, 12, 100]]  # 1 2 3 25
    assert circuit.mock()


def test_trap_3_mod_is_refused(circuit: Circuit) -> None:
    write_model(
        circuit.folder / "model.onnx",
        [node("Mod", ["x", "divisor"], ["z"], fmod=1)],
        {"x": [4]},
        {"z": [4]},
        {"divisor": 4.0},
    )
    with pytest.raises(ProverError):
        circuit.build(k=K)


def test_trap_3_round_is_half_to_even(circuit: Circuit) -> None:
    """The law rounds half up: of halves, -1.5 to -1, -0.5 to 0, 0.5 to 1 and 2.5 to 3."""
    write_model(
        circuit.folder / "model.onnx", [node("Round", ["x"], ["z"])], {"x": [4]}, {"z": [4]}
    )
    circuit.build(k=K, input_scale=1, decomp_base=128, decomp_legs=4)
    assert circuit.witness([-3, -1, 1, 5]) == [[-4, 0, 0, 4]]  # in halves
    assert circuit.mock()


# --- 4. verify compares polynomial commitments with nothing.


def test_trap_4_verify_knows_no_commitments(proven: Circuit, tmp_path: Path) -> None:
    """Proofs of two different inputs both hold; only the commitments tell them apart."""
    first = read_proof((proven.folder / "proof.json").read_bytes(), SHAPE)
    other = Circuit(tmp_path, proven.srs)
    for name in ("circuit", "vk", "pk", "settings.json"):
        (tmp_path / name).write_bytes((proven.folder / name).read_bytes())
    other.witness([1, 2, 3, 4], [10, 20, 30, 41])
    assert other.verify(other.prove()) is True
    second = read_proof((tmp_path / "proof.json").read_bytes(), SHAPE)
    assert first.commitments(2)[0] == second.commitments(2)[0]
    assert first.commitments(2)[1] != second.commitments(2)[1]

    values = ([1, 2, 3, 4], [11, 22, 33, 44])  # the outputs: x, x + y
    (*points,) = run_ezkl(
        [
            Call(
                "kzg_commit",
                {
                    "message": [encode_element(value) for value in tensor],
                    "vk_path": proven.at("vk"),
                    "settings_path": proven.at("settings.json"),
                    "srs_path": str(proven.srs),
                },
            )
            for tensor in values
        ],
        LIMITS,
    )
    recomputed = tuple(bytes.fromhex(x)[::-1] + bytes.fromhex(y)[::-1] for ((x, y),) in points)
    assert first.commitments(2) == recomputed


def test_trap_4_commitments_in_a_proof_are_authenticated(proven: Circuit) -> None:
    proof = read_proof((proven.folder / "proof.json").read_bytes(), SHAPE)
    swapped = proof.data[64:128] + proof.data[:64] + proof.data[128:]
    changed = replace(proof, data=swapped)
    with pytest.raises(CallFailedError):
        proven.verify(write(proven, encode_proof(changed)))


# --- 5. verify reads less than the proof file has in it.


def write(circuit: Circuit, data: bytes) -> Path:
    path = circuit.folder / "altered.json"
    path.write_bytes(data)
    return path


def test_trap_5_verify_takes_trailing_bytes_and_altered_copies(proven: Circuit) -> None:
    data = (proven.folder / "proof.json").read_bytes()
    fields = json.loads(data)
    fields["hex_proof"] = "0x00"
    fields["pretty_public_inputs"]["rescaled_outputs"] = [["1"]]
    fields["version"] = "none"
    longer = json.dumps(fields | {"proof": [*fields["proof"], 7]}).encode()
    assert proven.verify(write(proven, longer)) is True
    with pytest.raises(ProofError, match=f"has {SHAPE.length + 1} bytes, not {SHAPE.length}"):
        read_proof(longer, SHAPE)
    assert read_proof(json.dumps(fields).encode(), SHAPE) == read_proof(data, SHAPE)


# --- 6 and 7. A lookup range is no range check, and witnesses are not checked at all.


@pytest.fixture
def looked_up(circuit: Circuit) -> Circuit:
    """The range check of docs/proofs.md, small: x + 1 to a power that is 1 up to its limit."""
    write_model(
        circuit.folder / "model.onnx",
        [node("Pow", ["x", "power"], ["z"])],
        {"x": [1]},
        {"z": [1]},
        {"power": 0.03656013},
    )
    circuit.build(k=K, lookup_range=[1, 100])
    assert len(circuit.settings()["required_lookups"]) == 1
    return circuit


def test_trap_6_lookup_table_is_wider_than_its_range(looked_up: Circuit) -> None:
    assert looked_up.settings()["run_args"]["lookup_range"] == [1, 100]
    looked_up.witness([225])
    assert looked_up.mock()
    assert looked_up.verify(looked_up.prove()) is True


def test_trap_7_witness_of_an_illegal_input_is_made(looked_up: Circuit) -> None:
    looked_up.witness([10_000])
    with pytest.raises(ProverError):
        looked_up.mock()


# --- 8. An SRS is taken as it comes, and get_srs deletes what it does not know.


def test_trap_8_flipped_byte_of_an_srs_goes_unnoticed(proven: Circuit, tmp_path: Path) -> None:
    spoiled = Circuit(tmp_path, tmp_path / "spoiled.srs")
    generate_srs(spoiled.srs, K + 1)
    data = bytearray(spoiled.srs.read_bytes())
    data[4 + 64 * 511] ^= 1  # the last power, beyond those that this circuit uses
    spoiled.srs.write_bytes(data)
    (tmp_path / "model.onnx").write_bytes((proven.folder / "model.onnx").read_bytes())
    spoiled.build(k=K, visibility="polycommit")
    spoiled.witness([1, 2, 3, 4], [10, 20, 30, 40])
    assert spoiled.verify(spoiled.prove()) is True
    with pytest.raises(SrsError, match="point 511 is not on the curve"):
        check_srs(spoiled.srs)


def test_trap_8_get_srs_deletes_a_file_it_does_not_know(srs: Path, tmp_path: Path) -> None:
    import ezkl

    own = tmp_path / "own.srs"
    own.write_bytes(srs.read_bytes())

    async def get() -> None:
        await ezkl.get_srs(settings_path=None, logrows=K, srs_path=own)

    with pytest.raises(RuntimeError, match="hash does not match"):
        asyncio.run(get())
    assert not own.exists()
    with pytest.raises(ProverError, match="no such call is allowed"):
        run_ezkl([Call("get_srs", {"logrows": K, "srs_path": str(srs)})], LIMITS)
    assert srs.exists()


# --- 9. Lookup tables come from a cache that anybody may have filled.


def test_trap_9_spoiled_cache_changes_the_circuit_unless_it_is_empty(
    looked_up: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = looked_up.folder / "repository"
    program = "import sys, ezkl; ezkl.setup(*sys.argv[1:4], sys.argv[4])"

    def set_up_directly() -> bytes:
        names = ("circuit", "key", "proving-key")
        subprocess.run(
            [sys.executable, "-c", program, *map(looked_up.at, names), str(looked_up.srs)],
            env=os.environ | {"EZKL_REPO_PATH": str(cache), "RAYON_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
        )
        return looked_up.key_digest("key")

    clean = looked_up.key_digest()
    assert set_up_directly() == clean
    (table,) = cache.rglob("outputs")
    data = bytearray(table.read_bytes())
    data[len(data) // 2 // 32 * 32] ^= 1
    table.write_bytes(data)
    assert set_up_directly() != clean
    # The adapter gives every process an empty cache of its own, whatever the environment says.
    monkeypatch.setenv("EZKL_REPO_PATH", str(cache))
    assert looked_up.set_up() == clean


# --- Keys follow the settings, and gen_settings is not deterministic: settings are pinned as bytes.


def test_keys_of_a_recompiled_circuit_are_the_same_under_the_same_settings(
    looked_up: Circuit,
) -> None:
    first = looked_up.key_digest()
    looked_up.compile()
    assert looked_up.set_up() == first


def test_order_of_range_checks_in_the_settings_decides_the_key(looked_up: Circuit) -> None:
    """gen_settings writes them in an order that differs from run to run."""
    first, path = looked_up.key_digest(), Path(looked_up.at("settings.json"))
    settings = looked_up.settings()
    assert sorted(settings["required_range_checks"]) == [[-1, 1], [0, 255]]
    settings["required_range_checks"].reverse()
    path.write_text(json.dumps(settings))
    looked_up.compile()
    assert looked_up.set_up() != first


# --- 10. verify says no by an exception, never by False.


@pytest.mark.parametrize("at", [0, 63, 64, 2000, SHAPE.length - 1])
def test_trap_10_verify_raises_for_a_false_proof(proven: Circuit, at: int) -> None:
    proof = read_proof((proven.folder / "proof.json").read_bytes(), SHAPE)
    data = bytearray(proof.data)
    data[at] ^= 1
    changed = replace(proof, data=bytes(data))
    with pytest.raises(CallFailedError, match="RuntimeError"):
        proven.verify(write(proven, encode_proof(changed)))
    verdict = verify_proof(
        changed,
        settings=proven.folder / "settings.json",
        vk=proven.folder / "vk",
        srs=proven.srs,
        limits=LIMITS,
    )
    assert not verdict.holds
    assert "RuntimeError" in verdict.reason


# --- Which integers go through exactly.


def test_inputs_in_hexadecimal_are_exact_and_constants_only_to_24_bits(circuit: Circuit) -> None:
    write_model(
        circuit.folder / "model.onnx",
        [node("Mul", ["x", "one"], ["z"]), node("Add", ["y", "odd"], ["sum"])],
        {"x": [2], "y": [1]},
        {"z": [2], "sum": [1]},
        {"one": 1.0, "odd": float(2**24 + 1)},
    )
    circuit.build(k=K, decomp_legs=15, ignore_range_check_inputs_outputs=True)
    values = [2**55 + 1, -(2**200) - 1]
    assert circuit.witness(values, [0]) == [values, [2**24]]
