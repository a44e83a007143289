"""What the owner of data signs for private audits: KZG commitments to a task's batches."""

from __future__ import annotations

from dataclasses import dataclass

from vtrain.errors import EncodingError
from vtrain.wire import cbor
from vtrain.wire.claim import PUBLIC_KEY_LENGTH, SIGNATURE_LENGTH
from vtrain.wire.fields import Fields
from vtrain.wire.proof import CIRCUITS, COMMITMENT_LENGTH, MAX_BLINDING, MAX_COMMITMENTS, MAX_K
from vtrain.wire.record import MAX_STEP, MAX_STEPS
from vtrain.wire.task import Windows, take_windows, windows_to_map


@dataclass(frozen=True)
class BatchOrder:
    """Which batches, in which columns: those of the steps ``every``, 2 ``every`` ... ``steps``.

    ``data_root`` is that of the committed samples; ``seed`` and ``batch`` (size) fix which samples
    a step takes; ``circuit`` (layout), ``srs`` (SHA-256), ``k`` and ``blinding`` how they are
    committed to.  ``windows`` says how samples lie in the file of tokens that ``data_root`` is of,
    which binds no more than its bytes; None where samples are rows of a table.
    """

    data_root: bytes
    seed: int
    batch: int
    steps: int
    every: int
    circuit: str
    srs: bytes
    k: int
    blinding: int
    windows: Windows | None = None


@dataclass(frozen=True)
class SignedBatches:
    """The commitments of each batch in order, and the owner's Ed25519 signature over all of it."""

    order: BatchOrder
    commitments: tuple[tuple[bytes, ...], ...]
    owner: bytes
    signature: bytes


def batches_to_map(batches: SignedBatches) -> dict[str, cbor.Value]:
    """The map whose canonical encoding is hashed and signed; the key "windows" is left out where it
    is None."""
    order = batches.order
    value: dict[str, cbor.Value] = {
        "batch": order.batch,
        "blinding": order.blinding,
        "circuit": order.circuit,
        "commitments": [b"".join(items) for items in batches.commitments],
        "data_root": order.data_root,
        "every": order.every,
        "k": order.k,
        "owner": batches.owner,
        "seed": order.seed,
        "srs": order.srs,
        "steps": order.steps,
    }
    if order.windows is not None:
        value["windows"] = windows_to_map(order.windows)
    return value


def encode_batches(batches: SignedBatches) -> bytes:
    """Canonical encoding, with the signature."""
    return cbor.encode({"batches": batches_to_map(batches), "signature": batches.signature})


def decode_batches(data: bytes) -> SignedBatches:
    """Inverse of :func:`encode_batches`; EncodingError names the byte or the field at fault.

    The form alone is checked, not the signature.
    """
    outer = Fields(cbor.decode(data), "signed_batches")
    fields = outer.map("batches")
    signature = outer.bytes("signature", SIGNATURE_LENGTH)
    outer.done()
    order = BatchOrder(
        data_root=fields.bytes("data_root", 32),
        seed=fields.int("seed", 0, 2**64 - 1),
        batch=fields.int("batch", 1, 2**20),
        steps=fields.int("steps", 1, MAX_STEP),
        every=fields.int("every", 1, MAX_STEPS),
        circuit=fields.choice("circuit", CIRCUITS),
        srs=fields.bytes("srs", 32),
        k=fields.int("k", 1, MAX_K),
        blinding=fields.int("blinding", 0, MAX_BLINDING),
        windows=take_windows(fields),
    )
    commitments = []
    for item in fields.list("commitments"):
        if not isinstance(item, bytes) or not item or len(item) % COMMITMENT_LENGTH:
            fields.refuse("commitments", "is no list of commitments for each batch")
        if len(item) > MAX_COMMITMENTS * COMMITMENT_LENGTH:
            fields.refuse("commitments", "has too many commitments for one batch")
        starts = range(0, len(item), COMMITMENT_LENGTH)
        commitments.append(tuple(item[at : at + COMMITMENT_LENGTH] for at in starts))
    owner = fields.bytes("owner", PUBLIC_KEY_LENGTH)
    fields.done()
    if len(commitments) != order.steps // order.every:
        raise EncodingError(
            f"has {len(commitments)} batches, not {order.steps // order.every}",
            where="signed_batches.commitments",
        )
    return SignedBatches(order, tuple(commitments), owner, signature)
