"""One step's entry in the run log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vtrain.wire import cbor
from vtrain.wire.fields import Fields

MAX_STEP: Final = 2**48
MAX_STEPS: Final = 2**40
"""Of the longest run that the law takes: numbers of steps have more room in what is written."""


@dataclass(frozen=True)
class StepRecord:
    """What a solver commits to after each step: a leaf of the run log.

    ``step`` counts the steps done, from 1.  ``batch_digest`` (32 bytes) binds the gathered batch,
    ``loss`` is the integer loss of the law.  ``state_root`` (32 bytes) is the root of the state
    after the step, empty where the task asks for no commitment at this step.
    """

    step: int
    batch_digest: bytes
    loss: int
    state_root: bytes


def encode_record(record: StepRecord) -> bytes:
    """Canonical encoding: the leaf data of the run log."""
    return cbor.encode(
        {
            "batch_digest": record.batch_digest,
            "loss": record.loss,
            "state_root": record.state_root,
            "step": record.step,
        }
    )


def decode_record(data: bytes) -> StepRecord:
    """Inverse of :func:`encode_record`; EncodingError names the byte or the field at fault."""
    fields = Fields(cbor.decode(data), "record")
    record = StepRecord(
        step=fields.int("step", 1, MAX_STEP),
        batch_digest=fields.bytes("batch_digest"),
        loss=fields.int("loss", -(2**63), 2**63 - 1),
        state_root=fields.optional_bytes("state_root"),
    )
    fields.done()
    return record
