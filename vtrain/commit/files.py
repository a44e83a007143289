"""Files that survive a crash, and files that strangers made.

Writing goes to a temporary file that is synced and renamed into place, so that a name always has
all of its bytes or none.  Reading takes regular files only: what poses as a file in a run
directory from elsewhere (a pipe, a device) neither blocks nor feeds a reader for ever.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vtrain.errors import NotProducedError, StorageError

Chunk = bytes | npt.NDArray[Any]
"""Bytes, or an array whose C-contiguous memory is written as it is."""

_HASH_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and BLAKE3 (32 bytes) of a file's content."""

    size: int
    digest: bytes


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """An error of the operating system -> StorageError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise StorageError(error.strerror or str(error), where=str(path)) from error


def compute_entry(chunks: Iterable[Chunk]) -> FileEntry:
    """What the file made of ``chunks`` would have."""
    hasher, size = blake3(), 0
    for chunk in chunks:
        data = _bytes_of(chunk)
        hasher.update(data)
        size += len(data)
    return FileEntry(size, hasher.digest())


def read_entry(path: Path) -> FileEntry:
    """Hash a file, block by block; NotProducedError as of :func:`open_regular`."""
    with open_regular(path) as file, storing(path):
        return compute_entry(iter(lambda: file.read(_HASH_BLOCK), b""))


def write_all(handle: int, data: memoryview) -> None:
    """Write every byte; OSError as the system has it, after which a part may be written."""
    while data:
        data = data[os.write(handle, data) :]


def write_atomic(path: Path, chunks: Iterable[Chunk]) -> None:
    """Replace ``path`` by the concatenated chunks, durably: all of them or, on failure, none.

    StorageError names the path; a temporary file beside it is removed as far as that goes.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with storing(path):
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(temporary, flags, 0o644)
            try:
                for chunk in chunks:
                    write_all(handle, _bytes_of(chunk))
                os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(temporary, path)  # noqa: PTH105 - one way to name the calls that tests fail
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> None:
    """Remove what interrupted calls of :func:`write_atomic` left in ``folder``."""
    with storing(folder):
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading.

    NotProducedError when there is none of this name; StorageError when it cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NotProducedError("the file is missing", where=str(path)) from None
    except OSError as error:
        raise StorageError(error.strerror or str(error), where=str(path)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotProducedError("is not a regular file", where=str(path))
    with os.fdopen(handle, "rb") as file:
        yield file


def read_file(path: Path, limit: int) -> bytes:
    """All bytes of a regular file of at most ``limit``; NotProducedError for another."""
    with open_regular(path) as file, storing(path):
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise NotProducedError(f"has {size} bytes, more than {limit}", where=str(path))
        return file.read(size)


def _bytes_of(chunk: Chunk) -> memoryview:
    if isinstance(chunk, bytes):
        return memoryview(chunk)
    return chunk.reshape(-1).view(np.uint8).data
