"""What a service signs: a receipt for every event of a game, times between events, refusals.

A receipt says that ``digest`` is event ``sequence`` of ``game``, at ``at``, after ``previous``.  A
time says that whatever follows event ``sequence``, whose receipt's digest is ``head``, is at ``at``
or later.  A refusal says that the move of this digest was refused then.  So two of these can show
that the service told two histories (:func:`is_contradiction`), and a receipt that is not in the
chain that a later one ends, that it dropped an event.  What a service can do unproven is not to
answer at all: docs/service.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.dispute.problems import ServiceFaultError
from vtrain.dispute.transcript import TimedMove
from vtrain.errors import EncodingError, SignatureError
from vtrain.spec.domains import RECEIPT, compute_domain_hash
from vtrain.wire import cbor, structs
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


class Kept(NamedTuple):
    """An event as it is stored: its body, and its signed receipt in canonical encoding."""

    body: bytes
    receipt: bytes


@dataclass(frozen=True)
class Time:
    """All that follows event ``sequence`` of a game is at ``at`` or later.

    ``head`` is :func:`compute_receipt_digest` of that event's receipt.
    """

    game: Digest
    sequence: Count
    head: Digest
    at: Count
    service: Digest


@dataclass(frozen=True)
class SignedTime:
    """A time and the Ed25519 signature over its digest."""

    time: Time
    signature: Annotated[bytes, Length(64)]


@dataclass(frozen=True)
class Refusal:
    """At ``at``, after event ``sequence``, the move with this ``digest`` was refused.

    ``digest`` is :func:`compute_body_digest` of the encoded SignedMove, ``code`` that of the error:
    whoever has the transcript and the move can hold it against the rules.
    """

    game: Digest
    digest: Digest
    sequence: Count
    at: Count
    code: Annotated[str, AtMost(64)]
    service: Digest


@dataclass(frozen=True)
class SignedRefusal:
    """A refusal and the Ed25519 signature over its digest."""

    refusal: Refusal
    signature: Annotated[bytes, Length(64)]


@dataclass(frozen=True)
class Page:
    """Part of a transcript: events, whether there are more, and a time.

    The time is the last that is known of the last event here, or of the one before the page.
    """

    game: Digest
    time: SignedTime
    more: Annotated[int, structs.Between(0, 1)]
    events: tuple[Event, ...]


Signed = SignedReceipt | SignedTime | SignedRefusal


def compute_body_digest(body: bytes) -> bytes:
    """H_receipt(body): what a receipt says of an event, and the idempotency key of a move."""
    return compute_domain_hash(RECEIPT, body)


def compute_receipt_digest(said: Receipt | Time | Refusal) -> bytes:
    """What is signed, and what the next receipt names: H_receipt(canonical encoding).

    The three have different fields, so that no encoding of one is one of another.
    """
    return compute_domain_hash(RECEIPT, structs.encode(said))


def sign_receipt(receipt: Receipt, key: PrivateKey) -> SignedReceipt:
    """SignatureError when the receipt names another service than the holder of ``key``."""
    return SignedReceipt(receipt, _sign(receipt, key))


def sign_time(time: Time, key: PrivateKey) -> SignedTime:
    """SignatureError when the time names another service than the holder of ``key``."""
    return SignedTime(time, _sign(time, key))


def sign_refusal(refusal: Refusal, key: PrivateKey) -> SignedRefusal:
    """SignatureError when the refusal names another service than the holder of ``key``."""
    return SignedRefusal(refusal, _sign(refusal, key))


def _sign(said: Receipt | Time | Refusal, key: PrivateKey) -> bytes:
    if said.service != public_key(key):
        raise SignatureError("names another service", where="service")
    return key.sign(compute_receipt_digest(said))


def get_content(signed: Signed) -> Receipt | Time | Refusal:
    """What is signed."""
    match signed:
        case SignedReceipt():
            return signed.receipt
        case SignedTime():
            return signed.time
        case SignedRefusal():
            return signed.refusal


def verify_signed(signed: Signed, service: bytes) -> None:
    """SignatureError unless ``service`` signed this."""
    said = get_content(signed)
    if said.service != service:
        raise SignatureError("is of another service", where="service")
    verify_signature(service, compute_receipt_digest(said), signed.signature)


def is_contradiction(first: Signed, second: Signed) -> bool:
    """Do these two prove that one service contradicts itself about one game?

    They do when both are signed and cannot both be of one history: two different receipts for one
    sequence, a receipt that does not follow the one before it, a time for another event than the
    receipt's, or an event before a time that was said of the event before it.
    """
    one, other = get_content(first), get_content(second)
    if (one.service, one.game) != (other.service, other.game):
        return False
    try:
        verify_signed(first, one.service)
        verify_signed(second, one.service)
    except SignatureError:
        return False
    return _contradict(one, other) or _contradict(other, one)


def _contradict(one: Receipt | Time | Refusal, other: Receipt | Time | Refusal) -> bool:
    """Can ``other``, which is no earlier, not come after ``one``?"""
    if other.sequence < one.sequence:
        return False
    match one, other:
        case Receipt(), Receipt() if one.sequence == other.sequence:
            return one != other
        case Receipt(), Receipt() if one.sequence + 1 == other.sequence:
            return other.previous != compute_receipt_digest(one) or other.at < one.at
        case Receipt(), Time() if one.sequence == other.sequence:
            return other.head != compute_receipt_digest(one) or other.at < one.at
        case Time(), Time() if one.sequence == other.sequence:
            return one.head != other.head
        case Time(), Receipt() if one.sequence + 1 == other.sequence:
            return other.previous != one.head or other.at < one.at
        case ((Receipt() | Time()), (Receipt() | Time())):
            return one.sequence < other.sequence and other.at < one.at
        case _:
            return False


class Chain:
    """What a service says of one game, checked as it comes; ``service`` is the key it must be by.

    ServiceFaultError, with what was signed as its proof, for whatever is not signed or does not go
    with what was said before.
    """

    def __init__(self, game: bytes, service: bytes) -> None:
        self._game, self._service = game, service
        self._last: SignedReceipt | None = None
        self._time: SignedTime | None = None
        self.sequence = 0
        self.head = FIRST
        self.at = 0
        """The latest time that was said, by receipt or by time."""

    def extend(self, event: Event) -> Receipt:
        """Take the next event."""
        receipt = event.signed.receipt
        where = f"event {self.sequence + 1}"
        self._check_signed(event.signed, where)
        if receipt.game != self._game:
            raise self._fault("is of another game", where, event.signed)
        if receipt.sequence != self.sequence + 1 or receipt.previous != self.head:
            raise self._fault("does not follow the event before it", where, event.signed)
        if receipt.at < self.at:
            raise self._fault("is before what was said before it", where, event.signed)
        if compute_body_digest(event.body) != receipt.digest:
            raise self._fault("the receipt is for other bytes", where, event.signed)
        self.sequence, self.at, self._last = receipt.sequence, receipt.at, event.signed
        self.head = compute_receipt_digest(receipt)
        return receipt

    def hear(self, signed: SignedTime) -> int:
        """Take a time, which must be about the last event; that time in milliseconds."""
        time, where = signed.time, f"time after event {self.sequence}"
        self._check_signed(signed, where)
        if time.game != self._game:
            raise self._fault("is of another game", where, signed)
        if (time.sequence, time.head) != (self.sequence, self.head):
            raise self._fault("is of another event", where, signed)
        # Of two times of one event the later holds; one that was said before is no lie.
        if time.at > self.at:
            self.at, self._time = time.at, signed
        return self.at

    def _check_signed(self, signed: SignedReceipt | SignedTime, where: str) -> None:
        try:
            verify_signed(signed, self._service)
        except SignatureError as error:
            raise ServiceFaultError(str(error), where=where) from error

    def _fault(self, message: str, where: str, signed: Signed) -> ServiceFaultError:
        held = (self._last, self._time, signed)
        proof = tuple(structs.encode(each) for each in held if each is not None)
        return ServiceFaultError(message, where=where, proof=proof)


def encode_page(game: bytes, time: SignedTime, more: bool, events: Sequence[Kept]) -> bytes:
    """``structs.encode`` of the page, without decoding what is encoded already."""
    page = structs.encode(Page(game, time, int(more), ()))
    empty = cbor.encode("events") + cbor.encode([])
    if not page.endswith(empty):
        raise EncodingError("a page does not end with its events", where="page")
    heads = cbor.encode([0] * len(events))[: -len(events)] if events else cbor.encode([])
    parts = [page[: -len(cbor.encode([]))], heads]
    for event in events:
        parts += (_BODY, cbor.encode(event.body), _SIGNED, event.receipt)
    return b"".join(parts)


_BODY: Final = b"\xa2" + cbor.encode("body")
_SIGNED: Final = cbor.encode("signed")


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
