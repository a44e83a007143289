"""A proof file: what the proof is said to be of, and the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal

from vtrain.errors import EncodingError
from vtrain.wire import cbor
from vtrain.wire.fields import Fields
from vtrain.wire.proof import COMMITMENT_LENGTH, MAX_K, MAX_PROOF
from vtrain.wire.record import MAX_STEP

BUNDLE_VERSION: Final = 1
Kind = Literal["step", "tile"]
KINDS: Final[tuple[Kind, ...]] = ("step", "tile")

_MAX_NAME: Final = 256
_MAX_INDEX: Final = 1 << 40
_MAX_PARAMETERS: Final = 1 << 10
_MAX_VALUES: Final = 1 << 20


@dataclass(frozen=True)
class BundleHeader:
    """What a bundle says that its proof is of: nothing in it is believed, a verifier knows every
    field beforehand.

    ``task_id``, ``run_id`` and ``claim`` (digest of the signed claim) name the run, ``step`` its
    step (counted as in ``StepRecord``), ``name`` and ``index`` which of the step's statements;
    ``circuit_name`` and ``circuit`` (digest) the circuit, ``key`` its verifying key (BLAKE3),
    ``srs`` the SRS (SHA-256), which is ``insecure`` unless it is one of a ceremony; ``ezkl`` the
    version of the proof's format.  ``parameters`` are the integers, row-major, that the circuit
    takes as public.  The commitments are where the proof has them, in its first bytes.
    """

    kind: str
    task_id: bytes
    run_id: bytes
    claim: bytes
    step: int
    name: str
    index: int
    circuit_name: str
    circuit: bytes
    key: bytes
    srs: bytes
    insecure: bool
    k: int
    ezkl: str
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ProofBundle:
    """A statement and the bytes that are to prove it."""

    statement: BundleHeader
    proof: bytes


def find_difference(found: BundleHeader, expected: BundleHeader) -> str | None:
    """The first field in which a statement is not the one expected; none if it is."""
    for item in fields(BundleHeader):
        if getattr(found, item.name) != getattr(expected, item.name):
            return item.name
    return None


def encode_bundle(bundle: ProofBundle) -> bytes:
    """Canonical encoding of a proof file; EncodingError for an integer of more than 64 bits."""
    statement = bundle.statement
    parameters: dict[str, cbor.Value] = {
        name: list(values) for name, values in statement.parameters.items()
    }
    plain: dict[str, cbor.Value] = {
        item.name: getattr(statement, item.name)
        for item in fields(BundleHeader)
        if item.name not in ("insecure", "parameters")
    }
    return cbor.encode(
        plain
        | {
            "format": BUNDLE_VERSION,
            "insecure": int(statement.insecure),
            "parameters": parameters,
            "proof": bundle.proof,
        }
    )


def decode_bundle(data: bytes) -> ProofBundle:
    """Inverse of :func:`encode_bundle`; EncodingError names the byte or the field at fault."""
    taken = Fields(cbor.decode(data), "bundle")
    taken.int("format", BUNDLE_VERSION, BUNDLE_VERSION)
    statement = BundleHeader(
        kind=taken.choice("kind", KINDS),
        task_id=taken.bytes("task_id"),
        run_id=taken.bytes("run_id"),
        claim=taken.bytes("claim"),
        step=taken.int("step", 1, MAX_STEP),
        name=taken.text("name", _MAX_NAME),
        index=taken.int("index", 0, _MAX_INDEX),
        circuit_name=taken.text("circuit_name", _MAX_NAME),
        circuit=taken.bytes("circuit"),
        key=taken.bytes("key"),
        srs=taken.bytes("srs"),
        insecure=bool(taken.int("insecure", 0, 1)),
        k=taken.int("k", 1, MAX_K),
        ezkl=taken.text("ezkl", _MAX_NAME),
        parameters=_take_parameters(taken.map("parameters")),
    )
    proof = taken.blob("proof", MAX_PROOF)
    taken.done()
    if len(proof) < COMMITMENT_LENGTH:
        raise EncodingError(f"{len(proof)} bytes are no proof", where="bundle.proof")
    return ProofBundle(statement, proof)


def _take_parameters(taken: Fields) -> dict[str, tuple[int, ...]]:
    names = taken.names()
    if len(names) > _MAX_PARAMETERS:
        raise EncodingError(f"more than {_MAX_PARAMETERS}", where="bundle.parameters")
    found = {name: taken.ints(name, cbor.INT_MIN, cbor.INT_MAX, _MAX_VALUES) for name in names}
    if any(len(name.encode()) > _MAX_NAME for name in names):
        raise EncodingError(f"a name has at most {_MAX_NAME} bytes", where="bundle.parameters")
    return found
