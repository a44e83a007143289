"""Digests and the signature of an attested run: see :mod:`vtrain.wire.attested`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.errors import SignatureError
from vtrain.spec.domains import (
    ATTESTATION,
    ATTESTED_BATCH,
    ATTESTED_LOG,
    ATTESTED_WEIGHTS,
    compute_domain_hash,
)
from vtrain.spec.merkle import compute_root
from vtrain.wire import cbor, structs
from vtrain.wire.attested import Attestation, SignedAttestation

Described = tuple[str, Sequence[int], npt.NDArray[np.uint8]]
"""A tensor of any framework: the name of its type, its shape, its bytes, little-endian and
row-major."""


def compute_weights_digest(tensors: Mapping[str, Described]) -> bytes:
    """The digest of named tensors, in the order of their names: 32 bytes."""
    leaves = [_describe(name, tensors[name]) for name in sorted(tensors)]
    return compute_domain_hash(ATTESTED_WEIGHTS, cbor.encode(leaves))


def compute_batch_digest(calls: Iterable[Mapping[str, Described]]) -> bytes:
    """The digest of what a model was given in one step: a call for each part of the batch, in their
    order, each of named tensors; 32 bytes."""
    leaves: list[cbor.Value] = [
        [_describe(name, call[name]) for name in sorted(call)] for call in calls
    ]
    return compute_domain_hash(ATTESTED_BATCH, cbor.encode(leaves))


def _describe(name: str, tensor: Described) -> cbor.Value:
    dtype, shape, data = tensor
    return {
        "name": name,
        "dtype": dtype,
        "shape": [int(extent) for extent in shape],
        "digest": blake3(data.data).digest(),
    }


def compute_attested_root(records: Sequence[bytes]) -> bytes:
    """Root of the tree over encoded records."""
    return compute_root(ATTESTED_LOG, records)


def compute_attestation_digest(attestation: Attestation) -> bytes:
    """What is signed, and what an auditor pins: 32 bytes."""
    return compute_domain_hash(ATTESTATION, structs.encode(attestation))


def sign_attestation(attestation: Attestation, key: PrivateKey) -> SignedAttestation:
    """Sign; SignatureError unless the attestation names the holder of ``key``."""
    if attestation.solver != public_key(key):
        raise SignatureError("names another solver than the key's", where="attestation.solver")
    return SignedAttestation(attestation, key.sign(compute_attestation_digest(attestation)))


def verify_attestation(signed: SignedAttestation) -> None:
    """SignatureError unless the attestation is signed by the solver that it names."""
    digest = compute_attestation_digest(signed.attestation)
    verify_signature(signed.attestation.solver, digest, signed.signature)


def describe_array(values: npt.NDArray[Any]) -> Described:
    """A tensor of numpy, as its bytes are."""
    plain = np.ascontiguousarray(values)
    return plain.dtype.name, values.shape, plain.reshape(-1).view(np.uint8)
