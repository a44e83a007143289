"""The secrets behind KZG commitments, as files have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from vtrain.errors import EncodingError
from vtrain.wire import structs
from vtrain.wire.proof import KEY_LENGTH
from vtrain.wire.record import MAX_STEP
from vtrain.wire.structs import AtMost, Between, Length, LengthOrNone

MAX_KEYS: Final = 1 << 16
"""Keys that one file discloses."""
Kind = Literal["batch", "state"]
"""What a key hides: a state, whose index is the number of steps done, or the batch of a step."""


@dataclass(frozen=True)
class HidingKey:
    """The key of one state or batch."""

    kind: Kind
    index: Annotated[int, Between(0, MAX_STEP)]
    key: Annotated[bytes, Length(KEY_LENGTH)]


@dataclass(frozen=True)
class Hiding:
    """What hides commitments, as far as whoever has it is told.

    A solver has two secrets, of which all ``keys`` follow: ``states`` is its own, ``batches`` that
    of the batches' owner where there is one, who has this one alone.  An auditor to whom some steps
    are disclosed has the ``keys`` of these alone.
    """

    states: Annotated[bytes, LengthOrNone(KEY_LENGTH)] = b""
    batches: Annotated[bytes, LengthOrNone(KEY_LENGTH)] = b""
    keys: Annotated[tuple[HidingKey, ...], AtMost(MAX_KEYS)] = ()


def decode_hiding(data: bytes) -> Hiding:
    """Inverse of ``structs.encode``; EncodingError, also for keys that are not in order."""
    found = structs.decode(Hiding, data, "hiding")
    places = [(item.kind, item.index) for item in found.keys]
    if places != sorted(set(places)):
        raise EncodingError("are not in order, one of each kind and index", where="hiding.keys")
    return found
