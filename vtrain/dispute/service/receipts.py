"""Receipts: the service's signed word on every event of a game, chained.

A receipt says that ``digest`` is event ``sequence`` of ``game``, at ``at``, after ``previous``.  So
two receipts of one game with one sequence but different content prove that the service shows two
histories, and a receipt that is not in the chain that a later one ends proves that it dropped
an event.  What a service can do unproven is refuse or delay: docs/service.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.dispute.service.problems import ServiceFaultError
from vtrain.dispute.transcript import TimedMove
from vtrain.errors import SignatureError
from vtrain.spec.domains import RECEIPT, compute_domain_hash
from vtrain.wire import structs
from vtrain.wire.dispute import MAX_MOVE, Genesis, SignedMove
from vtrain.wire.structs import AtMost, Count, Digest, Length

EventKind = Literal["opened", "move", "verdict", "settled"]
"""Body of each: the genesis, the signed move, the verdict, nothing; all in canonical encoding."""

FIRST: Final = bytes(32)
"""``previous`` of the first receipt of a game."""


@dataclass(frozen=True)
class Opening:
    """What opens a game: its genesis, and the canonical task and graph that it follows from."""

    genesis: Genesis
    task: Annotated[bytes, AtMost(64 << 20)]
    graph: Annotated[bytes, AtMost(64 << 20)]


@dataclass(frozen=True)
class Receipt:
    """Event ``sequence`` (from 1) of a game; ``at`` is in milliseconds of the game's clock.

    ``digest`` is :func:`compute_body_digest` of the event's body, ``previous`` that of the receipt
    before it (:func:`compute_receipt_digest`), ``service`` the public key that signs.
    """

    game: Digest
    sequence: Count
    kind: EventKind
    at: Count
    digest: Digest
    previous: Digest
    service: Digest


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt and the Ed25519 signature over its digest."""

    receipt: Receipt
    signature: Annotated[bytes, Length(64)]


@dataclass(frozen=True)
class Event:
    """What happened in a game, with the receipt for it."""

    body: Annotated[bytes, AtMost(MAX_MOVE + 4096)]
    signed: SignedReceipt


@dataclass(frozen=True)
class Page:
    """Part of a transcript: events, the game's time, and whether there are more events."""

    game: Digest
    now: Count
    more: Annotated[int, structs.Between(0, 1)]
    events: tuple[Event, ...]


def compute_body_digest(body: bytes) -> bytes:
    """H_receipt(body): what a receipt says of an event, and the idempotency key of a move."""
    return compute_domain_hash(RECEIPT, body)


def compute_receipt_digest(receipt: Receipt) -> bytes:
    """What is signed, and what the next receipt names: H_receipt(canonical encoding)."""
    return compute_domain_hash(RECEIPT, structs.encode(receipt))


def sign_receipt(receipt: Receipt, key: PrivateKey) -> SignedReceipt:
    """SignatureError when the receipt names another service than the holder of ``key``."""
    if receipt.service != public_key(key):
        raise SignatureError("the receipt names another service", where="receipt.service")
    return SignedReceipt(receipt, key.sign(compute_receipt_digest(receipt)))


def verify_receipt(signed: SignedReceipt, service: bytes) -> None:
    """SignatureError unless ``service`` signed this receipt."""
    if signed.receipt.service != service:
        raise SignatureError("is of another service", where="receipt.service")
    verify_signature(service, compute_receipt_digest(signed.receipt), signed.signature)


def verify_two_histories(first: SignedReceipt, second: SignedReceipt) -> bool:
    """Do these prove that one service shows two histories of one game?"""
    one, other = first.receipt, second.receipt
    if (one.service, one.game, one.sequence) != (other.service, other.game, other.sequence):
        return False
    try:
        verify_receipt(first, one.service)
        verify_receipt(second, one.service)
    except SignatureError:
        return False
    return one != other


class Chain:
    """The receipts of one game, checked as they come; ``service`` is the key they must be by."""

    def __init__(self, game: bytes, service: bytes) -> None:
        self._game, self._service = game, service
        self.sequence = 0
        self.head = FIRST
        self.at = 0

    def extend(self, event: Event) -> Receipt:
        """Take the next event; ServiceFaultError when it is not that or not signed."""
        receipt = event.signed.receipt
        where = f"event {self.sequence + 1}"
        if receipt.game != self._game:
            raise ServiceFaultError("is of another game", where=where)
        if receipt.sequence != self.sequence + 1 or receipt.previous != self.head:
            raise ServiceFaultError("does not follow the event before it", where=where)
        if receipt.at < self.at:
            raise ServiceFaultError("is before the event before it", where=where)
        if compute_body_digest(event.body) != receipt.digest:
            raise ServiceFaultError("the receipt is for other bytes", where=where)
        try:
            verify_receipt(event.signed, self._service)
        except SignatureError as error:
            raise ServiceFaultError(str(error), where=where) from error
        self.sequence, self.at = receipt.sequence, receipt.at
        self.head = compute_receipt_digest(receipt)
        return receipt


def to_moves(events: Sequence[Event]) -> list[TimedMove]:
    """What :func:`vtrain.dispute.transcript.replay` replays; the verdict counts as time passing."""
    return [
        TimedMove(
            event.signed.receipt.at,
            structs.decode(SignedMove, event.body, "move")
            if event.signed.receipt.kind == "move"
            else None,
        )
        for event in events
        if event.signed.receipt.kind in ("move", "verdict")
    ]
