"""A folder with the values of traced steps: each tensor once, in a file named by its digest.

    traces.cbor                what the solver signed: ``vtrain.wire.traces.SignedTensorTraces``
    step-<12 digits>.leaves    the digests under the root of the trace of that step, 32 bytes each
    chunks/<64 hex digits>     the bytes of a tensor, of which this is the digest: what b3sum prints
    lists/<64 hex digits>      of a large tensor the hashes of its grains, 32 bytes each: parts of
                               8 KiB (``vtrain.commit.pieces``), which are read without the rest

The bytes may come later than the rest, or not at all: what is signed fixes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.commit.digest import compute_tensor_digest
from vtrain.commit.files import open_file, read_file, storing, write_atomic
from vtrain.commit.openings import compute_root
from vtrain.commit.pieces import GRAIN_BYTES, HASH, PIECE_BYTES, TensorForm
from vtrain.errors import EncodingError, NotProducedError
from vtrain.limits import LIMITS
from vtrain.spec.commitment import compute_record_leaf
from vtrain.spec.domains import TRACE
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire import structs
from vtrain.wire.graph import TensorType
from vtrain.wire.record import StepRecord
from vtrain.wire.traces import SignedTensorTraces, TensorTrace, decode_signed_tensor_traces

Tensor = npt.NDArray[Any]
DIGEST: Final = 32
"""Bytes of a digest."""
TRACES_FOLDER: Final = "traces"
"""Its name in a run, unless it is elsewhere."""


def compute_trace_root(leaves: Iterable[bytes]) -> bytes:
    """The root over the digests of a trace."""
    return compute_root(TRACE, leaves)


def compute_record_digest(record: StepRecord) -> bytes:
    """The digest of the output of a step's ``record`` node: how a trace names the step's record."""
    leaf = compute_record_leaf(record.step, record.batch_digest, record.loss, record.state_root)
    return compute_tensor_digest(np.frombuffer(leaf, np.uint8))


@dataclass(frozen=True)
class TraceFolder:
    """The folder ``root``, made by a stranger for whoever reads it.  Nothing is read yet."""

    root: Path
    threads: int = 0

    @property
    def claim(self) -> Path:
        """The file of what is signed."""
        return self.root / "traces.cbor"

    def leaves(self, step: int) -> Path:
        """The file of the digests under the root of the trace of ``step``."""
        return self.root / f"step-{step:012d}.leaves"

    def chunk(self, digest: bytes) -> Path:
        """The file of the tensor with this digest."""
        return self.root / "chunks" / digest.hex()

    def grains(self, digest: bytes) -> Path:
        """The file of the hashes of the grains of the tensor with this digest."""
        return self.root / "lists" / digest.hex()

    def is_there(self) -> bool:
        """Whether something is signed in it."""
        return os.path.lexists(self.claim)

    def locate_claim(self) -> str:
        """Where what is signed is, for messages."""
        return str(self.claim)

    def locate_leaves(self, step: int) -> str:
        """Where the digests of a trace are, for messages."""
        return str(self.leaves(step))

    # --- the solver

    def make(self) -> None:
        """Make the folder, unless it is there; StorageError."""
        with storing(self.root):
            for name in ("chunks", "lists"):
                (self.root / name).mkdir(parents=True, exist_ok=True)

    def write_chunk(self, tensor: Tensor) -> bytes:
        """Write a tensor, unless it is there, and return its digest; StorageError."""
        digest = compute_tensor_digest(tensor, self.threads)
        if tensor.nbytes > PIECE_BYTES:
            self._write_list(digest, tensor)
        path = self.chunk(digest)
        with storing(path):
            there = path.is_file() and path.stat().st_size == tensor.nbytes
        if not there:  # what is spoiled is found by whoever reads it, and can be made again
            write_atomic(path, [tensor], durable=False)
        return digest

    def _write_list(self, digest: bytes, tensor: Tensor) -> None:
        """Write the hashes of a tensor's grains."""
        form = TensorForm(tensor.nbytes)
        data, each = tensor.reshape(-1).view(np.uint8), form.cut(GRAIN_BYTES)
        hashes = (
            form.compute_hash(
                data[at : at + GRAIN_BYTES].tobytes(), at // GRAIN_BYTES * each, whole=False
            )
            for at in range(0, tensor.nbytes, GRAIN_BYTES)
        )
        write_atomic(self.grains(digest), [b"".join(hashes)], durable=False)

    def write_leaves(self, step: int, leaves: Sequence[bytes]) -> None:
        """Write the digests of a trace; StorageError."""
        write_atomic(self.leaves(step), leaves)

    def write_claim(self, signed: SignedTensorTraces) -> None:
        """Write what is signed; StorageError."""
        write_atomic(self.claim, [structs.encode(signed)])

    # --- whoever checks

    def read_claim(self) -> SignedTensorTraces:
        """What is signed, its signature unchecked; NotProducedError, EncodingError."""
        return read_claim(self.claim, self.root)

    def read_leaves(self, trace: TensorTrace) -> list[bytes]:
        """The digests of a trace, as many as it says; whether they are under its root is for the
        caller.  NotProducedError."""
        path, size = self.leaves(trace.step), DIGEST * trace.size
        if size > LIMITS.leaves_bytes:
            raise NotProducedError(
                f"would have {size} bytes, more than the {LIMITS.leaves_bytes} that are taken",
                where=str(path),
            )
        data = read_file(path, size, root=self.root)
        if len(data) != size:
            raise NotProducedError(f"has {len(data)} bytes, not {size}", where=str(path))
        return [data[at : at + DIGEST] for at in range(0, size, DIGEST)]

    def holds(self, digest: bytes, size: int | None = None) -> bool:
        """Whether a tensor with this digest seems to be there, of so many bytes where a ``size`` is
        given."""
        path = self.chunk(digest)
        return path.is_file() and (size is None or path.stat().st_size == size)

    def read_chunk(self, digest: bytes, kind: TensorType) -> Tensor:
        """The tensor with this digest, of this type; NotProducedError where it is missing, or is
        not what the digest is of."""
        path = self.chunk(digest)
        tensor = np.empty(kind.shape, NUMPY_DTYPES[kind.dtype])
        with open_file(path, tensor.nbytes, root=self.root) as file:
            if file.size != tensor.nbytes:
                raise NotProducedError(
                    f"has {file.size} bytes, not {tensor.nbytes}", where=str(path)
                )
            view = tensor.reshape(-1).view(np.uint8).data
            while view and (got := file.raw.readinto(view)):
                view = view[got:]
        if compute_tensor_digest(tensor, self.threads) != digest:
            raise NotProducedError("its bytes do not have the digest", where=str(path))
        return tensor

    def read_parts(
        self, digest: bytes, kind: TensorType, wanted: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, bytes]]:
        """(first byte, bytes) of parts that have the chunks wanted of this tensor, given as rising
        (first, end) that do not overlap, each compared; all of it where the hashes of its grains
        are not there, or not those of this tensor.  NotProducedError."""
        form, path = TensorForm(kind.byte_length), self.chunk(digest)
        hashes = self._read_list(digest, form)
        if hashes is None:
            yield 0, self.read_chunk(digest, kind).tobytes()
            return
        each = form.cut(GRAIN_BYTES)
        with open_file(path, form.length, root=self.root) as file:
            if file.size != form.length:
                raise NotProducedError(f"has {file.size} bytes, not {form.length}", where=str(path))
            done = 0
            for first, end in wanted:
                for grain in range(max(first // each, done), -(-end // each)):
                    part = form.part(grain * each, min((grain + 1) * each, form.units))
                    file.seek(part.start)
                    data = file.read(part.size)
                    found = form.compute_hash(data, part.first, whole=False)
                    if found != hashes[HASH * grain : HASH * (grain + 1)]:
                        raise NotProducedError(
                            f"its bytes from {part.start} on do not have the digest",
                            where=str(path),
                        )
                    yield part.start, data
                    done = grain + 1

    def _read_list(self, digest: bytes, form: TensorForm) -> bytes | None:
        """The hashes of a tensor's grains, which were compared with its digest; None where there
        are none."""
        if form.length <= PIECE_BYTES:
            return None
        size = HASH * -(-form.units // form.cut(GRAIN_BYTES))
        try:
            data = read_file(self.grains(digest), size, root=self.root)
        except NotProducedError:
            return None
        hashes = [data[at : at + HASH] for at in range(0, len(data), HASH)]
        if len(data) != size or form.join(hashes, whole=True) != digest:
            return None
        return data


def read_claim(path: Path, root: Path | None = None) -> SignedTensorTraces:
    """What a file says that is signed, its signature unchecked; NotProducedError, EncodingError."""
    data = read_file(path, LIMITS.traces_bytes, root=root)
    try:
        return decode_signed_tensor_traces(data)
    except EncodingError as error:
        where = f"{path}: {error.where}" if error.where else str(path)
        raise EncodingError(error.message, where=where) from None


def is_there(folder: Path) -> bool:
    """Whether something is signed in ``folder``."""
    return TraceFolder(folder).is_there()
