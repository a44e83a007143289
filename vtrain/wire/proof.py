"""What a task pins about proofs, and one step's entry in the log of KZG commitments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from vtrain.errors import EncodingError
from vtrain.wire import cbor
from vtrain.wire.fields import Fields
from vtrain.wire.record import MAX_STEP, MAX_STEPS

CIRCUITS: Final = ("step", "tiles")
"""How tensors are cut into columns (``vtrain.commit.kzg_layout``), which the circuits follow."""
CIRCUIT_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "step": ("step", "step-clamps"),
    "tiles": (
        *("matmul-nn", "matmul-nt", "matmul-tn", "mul"),
        *(f"rescale-i16-{n}" for n in range(5)),
        *(f"rescale-i32-{n}" for n in range(5)),
        *(f"rescale-i64-{n}" for n in range(1, 5)),
        *("gate", "softmax-16", "softmax-128", "square", "linear", "zero", "range-1", "range-3"),
        "look-up",
    ),
}
"""The circuits of each layout by name, so that who writes a task needs no circuits to pin some.

``vtrain.prove`` makes them; a test holds its names against these.
"""
LEAST_STEP_K: Final = 17
"""The least k of the circuits of whole steps, whose table has 2^16 entries.  A run may log with
less, but nothing can be proven of it."""
COMMITMENT_LENGTH: Final = 64
"""Bytes of a KZG commitment: x and y of a point of BN254's first group, big-endian."""
HIDING: Final = 64
"""Secret field elements behind the values of a column: its commitment and up to 63 openings by
proofs are together uniform, whatever the values are."""
KEY_LENGTH: Final = 32
"""Bytes of a key of hiding elements (``vtrain.commit.hiding``), and of its id."""
Hash = Literal["blake3", "keccak256"]
"""What the challenges of proofs are drawn by; contracts have the second."""
HASHES: Final[tuple[Hash, ...]] = ("blake3", "keccak256")
MAX_COMMITMENTS: Final = 1 << 13
"""Commitments to one state or batch."""
MAX_K: Final = 28
MAX_PROOF: Final = 1 << 20
"""Bytes of a proof; those of circuits in use have some thousands."""
MAX_BLINDING: Final = 1 << 10
TILE: Final = 128
"""Rows and columns of a block of a matrix in the layout ``tiles``."""

_MAX_CIRCUITS: Final = 256
_MAX_NAME: Final = 256


@dataclass(frozen=True)
class CircuitPin:
    """Digests (32 bytes) of a circuit and of its verifying key."""

    circuit: bytes
    key: bytes


@dataclass(frozen=True)
class ProofSpec:
    """What a task pins about proofs of its steps.

    ``circuit`` names the layout of the columns committed to; ``srs`` is the SHA-256 of the SRS file
    that the commitments are made with, in columns of 2^``k`` rows, of which ``blinding`` + 1 hold
    no values (``blinding`` is the number of blinding factors of halo2).  Every ``every`` steps the
    solver logs a :class:`KzgRecord`; ``initial`` are the commitments to the initial state, none
    where nothing is logged, and ``initial_key`` is the id of the key that hides it.  ``circuits``
    are the circuits that proofs may be of, by name, and ``hash`` draws their challenges.
    """

    circuit: str
    srs: bytes
    k: int
    blinding: int
    every: int
    initial: tuple[bytes, ...]
    circuits: Mapping[str, CircuitPin]
    initial_key: bytes = bytes(KEY_LENGTH)
    hash: Hash = "blake3"

    @property
    def usable(self) -> int:
        """How many values are put into one column: what hides them and two rows more stay free,
        since ezkl's circuits give a fuller tensor a second column
        (``vtrain.prove.backend.kzg``)."""
        return (1 << self.k) - self.blinding - 3 - HIDING


@dataclass(frozen=True)
class KzgRecord:
    """KZG commitments to one step: a leaf of the KZG log.

    ``step`` counts the steps done after it, as in ``StepRecord``.  ``before``, ``batch`` and
    ``after`` are the commitments (64 bytes each) to the columns of the state before the step, of
    the gathered batch, and of the state after it; ``before_key``, ``batch_key`` and ``after_key``
    are the ids (32 bytes each) of the keys that hide them.
    """

    step: int
    before: tuple[bytes, ...]
    batch: tuple[bytes, ...]
    after: tuple[bytes, ...]
    before_key: bytes
    batch_key: bytes
    after_key: bytes


def encode_kzg_record(record: KzgRecord) -> bytes:
    """Canonical encoding: the leaf data of the KZG log."""
    return cbor.encode(
        {
            "after": list(record.after),
            "after_key": record.after_key,
            "batch": list(record.batch),
            "batch_key": record.batch_key,
            "before": list(record.before),
            "before_key": record.before_key,
            "step": record.step,
        }
    )


def decode_kzg_record(data: bytes) -> KzgRecord:
    """Inverse of :func:`encode_kzg_record`; EncodingError names the byte or the field at fault.

    The form alone is checked, not that the commitments are points.
    """
    fields = Fields(cbor.decode(data), "kzg_record")
    record = KzgRecord(
        step=fields.int("step", 1, MAX_STEP),
        before=_take_commitments(fields, "before"),
        batch=_take_commitments(fields, "batch"),
        after=_take_commitments(fields, "after"),
        before_key=fields.bytes("before_key", KEY_LENGTH),
        batch_key=fields.bytes("batch_key", KEY_LENGTH),
        after_key=fields.bytes("after_key", KEY_LENGTH),
    )
    fields.done()
    return record


def proof_to_map(proof: ProofSpec) -> dict[str, cbor.Value]:
    """The map that stands in a task's encoding."""
    circuits: dict[str, cbor.Value] = {
        name: {"circuit": pin.circuit, "key": pin.key} for name, pin in proof.circuits.items()
    }
    return {
        "blinding": proof.blinding,
        "circuit": proof.circuit,
        "circuits": circuits,
        "every": proof.every,
        "hash": proof.hash,
        "initial": list(proof.initial),
        "initial_key": proof.initial_key,
        "k": proof.k,
        "srs": proof.srs,
    }


def proof_from_fields(fields: Fields) -> ProofSpec:
    """Inverse of :func:`proof_to_map`; EncodingError names the field at fault."""
    proof = ProofSpec(
        circuit=fields.choice("circuit", CIRCUITS),
        srs=fields.bytes("srs", 32),
        k=fields.int("k", 1, MAX_K),
        blinding=fields.int("blinding", 0, MAX_BLINDING),
        every=fields.int("every", 1, MAX_STEPS),
        initial=_take_commitments(fields, "initial"),
        circuits=_take_pins(fields.map("circuits")),
        initial_key=fields.bytes("initial_key", KEY_LENGTH),
        hash=fields.choice("hash", HASHES),
    )
    fields.done()
    check_proof(proof)
    return proof


def check_proof(proof: ProofSpec) -> None:
    """EncodingError for what contradicts itself, or pins a circuit without a name or with one too
    long."""
    least = TILE * TILE if proof.circuit == "tiles" else 1
    if proof.usable < least:
        raise EncodingError(
            f"leaves room for {max(proof.usable, 0)} values a column; {proof.circuit} need {least}",
            where="task.proof.k",
        )
    if len(proof.circuits) > _MAX_CIRCUITS:
        raise EncodingError(f"more than {_MAX_CIRCUITS}", where="task.proof.circuits")
    if not all(1 <= len(name.encode()) <= _MAX_NAME for name in proof.circuits):
        raise EncodingError(
            f"a circuit's name has 1 to {_MAX_NAME} bytes", where="task.proof.circuits"
        )


def _take_commitments(fields: Fields, name: str) -> tuple[bytes, ...]:
    return fields.byte_strings(name, COMMITMENT_LENGTH, MAX_COMMITMENTS)


def _take_pins(pins: Fields) -> dict[str, CircuitPin]:
    found = {}
    for name in pins.names():
        pin = pins.map(name)
        found[name] = CircuitPin(pin.bytes("circuit", 32), pin.bytes("key", 32))
        pin.done()
    return found
