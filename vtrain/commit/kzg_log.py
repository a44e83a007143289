"""The KZG log: KZG commitments to the tensors of steps, beside the run log.

Its records are no part of the step graph, since no leaf rule recomputes a sum over a curve
(docs/adr/0012).  One stands for each step that is a multiple of the task's ``proof.every``; the
root over all of them is signed together with that of the run log.  The file is framed as the run
log's (``vtrain.commit.log``), with a header of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import numpy as np
import numpy.typing as npt

from vtrain import _core
from vtrain.commit.hiding import derive_elements, encode_elements
from vtrain.commit.kzg_layout import batch_vectors, count_batch, count_state, state_vectors
from vtrain.commit.log import compute_most_bytes, frame, iterate_frames
from vtrain.errors import EncodingError
from vtrain.spec.domains import KZG_LOG
from vtrain.spec.field import BASE_FIELD
from vtrain.wire.graph import StepGraph
from vtrain.wire.proof import (
    COMMITMENT_LENGTH,
    MAX_COMMITMENTS,
    KzgRecord,
    ProofSpec,
    decode_kzg_record,
    encode_kzg_record,
)
from vtrain.wire.task import DataSpec

Array = npt.NDArray[Any]

KZG_HEADER: Final = b"vtrain kzg log\x00\x02"
"""Magic (15 bytes) and version (1 byte)."""
_MAX_RECORD: Final = 3 * MAX_COMMITMENTS * (COMMITMENT_LENGTH + 2) + 256


class Identity(Protocol):
    """Which SRS file it is."""

    @property
    def sha256(self) -> bytes:
        """SHA-256 of the file."""
        ...


class Committer(Protocol):
    """Commits to columns of integers over an SRS; ``vtrain.prove.backend.kzg.CommitKey`` is one."""

    @property
    def srs(self) -> Identity:
        """The SRS file."""
        ...

    @property
    def k(self) -> int:
        """Logarithm of the number of rows."""
        ...

    @property
    def blinding(self) -> int:
        """Number of blinding factors."""
        ...

    def commit_many(
        self, arrays: Iterable[Array], hiding: Iterable[bytes], *, threads: int = 0
    ) -> list[bytes]:
        """Commitments (64 bytes) to vectors of integers, each followed by its ``hiding`` elements
        (32 bytes each, little-endian), and zeros."""
        ...


OpenKey = Callable[[Path, int, int], Committer]
"""(SRS file, k, blinding) -> what commits by it; ``vtrain.prove.backend.kzg.CommitKey`` is one."""


class KzgLog:
    """The records of steps ``every``, 2 ``every``, ... and the Merkle tree over them."""

    def __init__(self, every: int, records: Iterable[KzgRecord] = ()) -> None:
        self.every: Final = every
        self._records: list[KzgRecord] = []
        self._tree = _core.MerkleTree(KZG_LOG)
        for record in records:
            self.append(record)

    @property
    def records(self) -> tuple[KzgRecord, ...]:
        """All records; ``records[i]`` is that of step (i + 1) * every."""
        return tuple(self._records)

    @property
    def last(self) -> KzgRecord | None:
        """The newest record."""
        return self._records[-1] if self._records else None

    def append(self, record: KzgRecord) -> None:
        """Append the record of the next step due; EncodingError for any other step."""
        due = (len(self._records) + 1) * self.every
        if record.step != due:
            raise EncodingError(
                f"expected step {due}, found {record.step}", where="kzg_record.step"
            )
        self._tree.append(encode_kzg_record(record))
        self._records.append(record)

    def root(self) -> bytes:
        """Root (32 bytes) of all records."""
        return self._tree.root(len(self._records))


def encode_kzg_frame(record: KzgRecord) -> bytes:
    """What appending ``record`` appends to the file."""
    return frame(encode_kzg_record(record))


def encode_kzg_log(records: Iterable[KzgRecord]) -> bytes:
    """The whole file."""
    return b"".join([KZG_HEADER, *map(encode_kzg_frame, records)])


def compute_most_kzg_bytes(records: int) -> int:
    """Bytes that the file of a KZG log of so many records has at most."""
    return compute_most_bytes(records, header=KZG_HEADER, longest=_MAX_RECORD)


def iterate_kzg_frames(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """(place, bytes) of each leaf of a KZG log file, undecoded: the bytes that its root binds."""
    return iterate_frames(stream, header=KZG_HEADER, longest=_MAX_RECORD)


def iterate_kzg_log(stream: BinaryIO) -> Iterator[KzgRecord]:
    """The records of a KZG log file; EncodingError names the record (from 0) and its byte."""
    for where, data in iterate_kzg_frames(stream):
        try:
            yield decode_kzg_record(data)
        except EncodingError as error:
            raise EncodingError(error.message, where=f"{where}: {error.where}") from error


def is_point(commitment: bytes) -> bool:
    """Whether 64 bytes are a finite point of BN254's first group: reduced, and on the curve.

    The group has prime order: a point on the curve is in it.
    """
    if len(commitment) != COMMITMENT_LENGTH:
        return False
    x, y = int.from_bytes(commitment[:32]), int.from_bytes(commitment[32:])
    return x < BASE_FIELD and y < BASE_FIELD and (y * y - x * x * x - 3) % BASE_FIELD == 0


class StepCommitter:
    """The KZG commitments that the steps of a task have, by ``key``.

    The one place where layout and key meet: training, audits and provers compute by it what a
    record must be.  EncodingError when ``key`` is not of the SRS, k and blinding in ``proof``.
    """

    def __init__(
        self, proof: ProofSpec, graph: StepGraph, key: Committer, threads: int = 0
    ) -> None:
        for name, ours, theirs in (
            ("srs", key.srs.sha256.hex(), proof.srs.hex()),
            ("k", key.k, proof.k),
            ("blinding", key.blinding, proof.blinding),
        ):
            if ours != theirs:
                raise EncodingError(f"is {ours}, the task has {theirs}", where=name)
        self._proof, self._graph, self._key, self._threads = proof, graph, key, threads

    def commit_state(self, state: Mapping[str, Array], key: bytes) -> tuple[bytes, ...]:
        """Commitments to a state that ``key`` hides, as in ``KzgRecord.before`` and ``after``."""
        proof = self._proof
        return self._commit(state_vectors(proof.circuit, self._graph, state, proof.usable), key)

    def commit_batch(self, x: Array, y: Array, key: bytes) -> tuple[bytes, ...]:
        """Commitments to a gathered batch that ``key`` hides, as in ``KzgRecord.batch``."""
        proof = self._proof
        return self._commit(batch_vectors(proof.circuit, x, y, proof.usable), key)

    def _commit(self, vectors: list[Array], key: bytes) -> tuple[bytes, ...]:
        columns = (np.ascontiguousarray(vector) for vector in vectors)
        hiding = (encode_elements(derive_elements(key, column)) for column in range(len(vectors)))
        return tuple(self._key.commit_many(columns, hiding, threads=self._threads))


def count_commitments(
    proof: ProofSpec, graph: StepGraph, data: DataSpec, batch: int
) -> tuple[int, int]:
    """How many commitments a state and a batch have."""
    return (
        count_state(proof.circuit, graph, proof.usable),
        count_batch(proof.circuit, data, batch, proof.usable),
    )
