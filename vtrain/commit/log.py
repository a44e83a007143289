"""The run log: an append-only Merkle tree over step records, and its file.

The file is a header and then, for each record, its length (4 bytes, little-endian) and its
canonical encoding.  Appending a record appends to the file, so that a torn write can only spoil the
end: :func:`survey_log` says how much of a file stands.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from vtrain import _core
from vtrain.commit.openings import verify_inclusion
from vtrain.errors import EncodingError
from vtrain.limits import LIMITS
from vtrain.spec.domains import RUN_LOG
from vtrain.wire.opening import ConsistencyProof, InclusionProof
from vtrain.wire.record import StepRecord, decode_record, encode_record

LOG_HEADER: Final = b"vtrain run log\x00\x01"
"""Magic (15 bytes) and version (1 byte)."""

_LENGTH_BYTES: Final = 4
_MAX_RECORD: Final = 256
"""Bytes of one record; the largest that decodes has under 140."""


class RunLog:
    """The records of steps 1, 2, 3, ... and the Merkle tree over them."""

    def __init__(self, records: Iterable[StepRecord] = ()) -> None:
        self._records: list[StepRecord] = []
        self._tree = _core.MerkleTree(RUN_LOG)
        for record in records:
            self.append(record)

    @property
    def records(self) -> tuple[StepRecord, ...]:
        """All records; ``records[i]`` is that of step i + 1."""
        return tuple(self._records)

    @property
    def size(self) -> int:
        """Number of records."""
        return len(self._records)

    def append(self, record: StepRecord) -> None:
        """Append the record of the next step; EncodingError for any other step."""
        _check_step(record, self.size)
        self._tree.append(encode_record(record))
        self._records.append(record)

    def root(self, size: int | None = None) -> bytes:
        """Root (32 bytes) of the first ``size`` records, of all unless told."""
        return self._tree.root(self._size_or_all(size))

    def inclusion_proof(self, step: int, size: int | None = None) -> InclusionProof:
        """Proof that the record of ``step`` (from 1) is in the log of ``size`` records."""
        size = self._size_or_all(size)
        if not 1 <= step <= size:
            raise EncodingError(f"a log of {size} records has no step {step}", where="run log")
        return InclusionProof(step - 1, size, tuple(self._tree.inclusion_path(step - 1, size)))

    def consistency_proof(self, old_size: int, new_size: int | None = None) -> ConsistencyProof:
        """Proof that the log of ``old_size`` records is a prefix of that of ``new_size``."""
        new_size = self._size_or_all(new_size)
        if not 0 <= old_size <= new_size:
            raise EncodingError(f"{old_size} records are no prefix of {new_size}", where="run log")
        path = self._tree.consistency_path(old_size, new_size)
        return ConsistencyProof(old_size, new_size, tuple(path))

    def _size_or_all(self, size: int | None) -> int:
        if size is None:
            return self.size
        if not 0 <= size <= self.size:
            raise EncodingError(f"the log has {self.size} records, not {size}", where="run log")
        return size


def verify_record(root: bytes, record: StepRecord, proof: InclusionProof) -> bool:
    """Whether ``record`` is in the log of ``proof.size`` records under ``root``, at its step."""
    if record.step != proof.index + 1:
        return False
    return verify_inclusion(RUN_LOG, root, encode_record(record), proof)


def encode_frame(record: StepRecord) -> bytes:
    """What appending ``record`` appends to the file."""
    return frame(encode_record(record))


def frame(data: bytes) -> bytes:
    """A leaf of a log as it stands in a file."""
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def encode_log(records: Iterable[StepRecord]) -> bytes:
    """The whole file."""
    return b"".join([LOG_HEADER, *map(encode_frame, records)])


def iterate_log(stream: BinaryIO) -> Iterator[StepRecord]:
    """The records of a log file, one at a time; no more than one is held in memory.

    EncodingError names the record (from 0) and the byte of the file where its frame begins.
    """
    for index, (where, data) in enumerate(iterate_frames(stream)):
        try:
            record = decode_record(data)
            _check_step(record, index)
        except EncodingError as error:
            raise EncodingError(error.message, where=f"{where}: {error.where}") from error
        yield record


def iterate_frames(
    stream: BinaryIO, *, header: bytes = LOG_HEADER, longest: int = _MAX_RECORD
) -> Iterator[tuple[str, bytes]]:
    """(place, bytes) of each leaf of a log file, undecoded: the bytes that a log root binds.

    An auditor needs them: a root may be signed over leaves that are no records.  ``header`` and
    ``longest`` (bytes of a leaf) are those of another kind of log.  EncodingError also for many
    leaves that are shorter than any record: a file of holes would be millions of them.
    """
    found = stream.read(len(header))
    if found != header:
        kind = header[:-2].decode().removeprefix("vtrain ")
        reason = "is cut off" if header.startswith(found) else f"is not that of a {kind}"
        raise EncodingError(f"the header {reason}", where="byte 0")
    offset, index = len(header), 0
    while head := stream.read(_LENGTH_BYTES):
        where = f"record {index} at byte {offset}"
        if index >= LIMITS.short_records and offset < index * LIMITS.record_bytes:
            raise EncodingError(
                f"{index} records in {offset} bytes are more than a log has: one takes "
                f"{LIMITS.record_bytes} bytes and more",
                where=where,
            )
        length = int.from_bytes(head, "little")
        if len(head) == _LENGTH_BYTES and length > longest:
            raise EncodingError(f"a record of {length} bytes is too long", where=where)
        data = stream.read(length)
        if len(head) < _LENGTH_BYTES or len(data) < length:
            raise EncodingError("the file ends within the record", where=where)
        yield where, data
        offset += _LENGTH_BYTES + length
        index += 1


def compute_most_bytes(
    records: int, *, header: bytes = LOG_HEADER, longest: int = _MAX_RECORD
) -> int:
    """Bytes that the file of a log of so many records has at most."""
    return len(header) + records * (_LENGTH_BYTES + longest)


def decode_log(data: bytes) -> list[StepRecord]:
    """All records of a log file; EncodingError as of :func:`iterate_log`."""
    return list(iterate_log(io.BytesIO(data)))


@dataclass(frozen=True)
class LogSurvey:
    """What a log file comes to, up to its first fault: how many records, their root, and the last
    state root among them (empty where none has one).

    ``fault`` says why what follows is not valid, None when nothing follows.  A torn write is such a
    fault, and so is a changed byte: the log root tells them apart.
    """

    size: int
    root: bytes
    state_root: bytes
    fault: EncodingError | None


def survey_log(stream: BinaryIO) -> LogSurvey:
    """What is in a log file of any size before its first fault; never raises for any bytes.

    One record is held in memory at a time, and some 64 bytes of tree for each.
    """
    tree = _core.MerkleTree(RUN_LOG)
    size, state_root = 0, b""
    fault: EncodingError | None = None
    try:
        for record in iterate_log(stream):
            tree.append(encode_record(record))
            size += 1
            state_root = record.state_root or state_root
    except EncodingError as error:
        fault = error
    return LogSurvey(size, tree.root(size), state_root, fault)


def _check_step(record: StepRecord, size: int) -> None:
    if record.step != size + 1:
        raise EncodingError(f"expected step {size + 1}, found {record.step}", where="record.step")
