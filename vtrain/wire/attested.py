"""What is signed of a training run in floats, which nobody can do again bit by bit.

A run of somebody else's loop is *attested*: its maker signs what it was given and what came out, so
that none of that can be changed afterwards.  That the steps between were done as they should be is
the maker's word, and stays it.  All of it is encoded by ``vtrain.wire.structs`` (docs/attested.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from vtrain.errors import EncodingError
from vtrain.wire import structs
from vtrain.wire.claim import SIGNATURE_LENGTH
from vtrain.wire.record import MAX_STEP
from vtrain.wire.structs import AtMost, Between, Digest, Length, LengthOrNone

ATTESTED_HEADER: Final = b"vtrain attested log\x00\x01"
"""What the file of records begins with: magic and version."""
MAX_RECORD: Final = 256
MAX_FILES: Final = 1 << 12
_MAX_NAME: Final = 1024


@dataclass(frozen=True)
class AttestedStep:
    """One step of the optimizer: the ``batch`` is the digest of what the model was given in it, in
    order, and ``checkpoint`` that of the listing of the checkpoint saved after it, empty where none
    was."""

    step: Annotated[int, Between(1, MAX_STEP)]
    batch: Digest
    checkpoint: Annotated[bytes, LengthOrNone(32)]


@dataclass(frozen=True)
class AttestedFile:
    """One file of a checkpoint: its path below the checkpoint's folder, with slashes, its size, and
    its plain BLAKE3."""

    name: Annotated[str, AtMost(_MAX_NAME)]
    size: Annotated[int, Between(0, 2**62)]
    digest: Digest


@dataclass(frozen=True)
class Listing:
    """The files of a checkpoint, by rising name."""

    files: Annotated[tuple[AttestedFile, ...], AtMost(MAX_FILES)]


@dataclass(frozen=True)
class Attestation:
    """What a run came to.  ``config`` is the plain BLAKE3 of config.json, ``initial`` and ``final``
    the digests of the weights before the first and after the last step, ``log_root`` the root of
    the tree over ``steps`` records."""

    run_id: Digest
    solver: Digest
    config: Digest
    initial: Digest
    final: Digest
    steps: Annotated[int, Between(0, MAX_STEP)]
    log_root: Digest


@dataclass(frozen=True)
class SignedAttestation:
    """The statement and the Ed25519 signature over its domain-separated hash."""

    attestation: Attestation
    signature: Annotated[bytes, Length(SIGNATURE_LENGTH)]


def decode_attestation(data: bytes) -> SignedAttestation:
    """Inverse of ``structs.encode``; EncodingError names the byte or the field.  The form alone is
    checked."""
    return structs.decode(SignedAttestation, data, "signed_attestation")


def decode_step(data: bytes) -> AttestedStep:
    """Inverse of ``structs.encode``; EncodingError names the byte or the field."""
    return structs.decode(AttestedStep, data, "attested_step")


def decode_listing(data: bytes) -> Listing:
    """Inverse of ``structs.encode``; EncodingError names the byte or the field, also where names do
    not rise, or are no paths below a folder."""
    listing = structs.decode(Listing, data, "listing")
    before = ""
    for index, file in enumerate(listing.files):
        where = f"listing.files[{index}].name"
        if "\0" in file.name or not {"", ".", ".."}.isdisjoint(file.name.split("/")):
            raise EncodingError("is no path below a folder", where=where)
        if file.name <= before:
            raise EncodingError("does not come after the one before", where=where)
        before = file.name
    return listing
