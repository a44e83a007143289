"""Files that survive a crash, and files that strangers made.

Writing goes to a temporary file that is synced and renamed into place, so that a name always has
all of its bytes or none.

Reading a file whose name or content a stranger chose goes through :func:`open_file` or
:func:`read_file` alone; a test holds every room to that.  They take regular files, of at most so
many bytes, exactly as large as they say: what poses as a file (a pipe, a device, a file of the
system that has no size and no end) neither blocks nor feeds a reader for ever.  A run folder is
taken as it lies: with ``root`` a link in it is refused, be it the file or a folder on the way to
it, since it may lead to files that are none of the stranger's business.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vtrain.errors import NotProducedError, StorageError, VtrainError
from vtrain.limits import LIMITS

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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


def read_entry(
    path: Path, limit: int = LIMITS.samples_bytes, *, root: Path | None = None
) -> FileEntry:
    """Hash a file, block by block, by default up to the largest that a run has; errors as of
    :func:`open_file`."""
    with open_file(path, limit, root=root) as file:
        refuse_holes(file, path)
        return compute_entry(iter(lambda: file.read(_HASH_BLOCK), b""))


def write_all(handle: int, data: memoryview) -> None:
    """Write every byte; OSError as the system has it, after which a part may be written."""
    while data:
        data = data[os.write(handle, data) :]


def write_atomic(
    path: Path, chunks: Iterable[Chunk], *, durable: bool = True, secret: bool = False
) -> None:
    """Replace ``path`` by the concatenated chunks, durably: all of them or, on failure, none.

    Without ``durable`` that holds of a process that dies, and not of a machine: for what is checked
    when it is read, and can be had again.  A ``secret`` file is its owner's to read alone.
    StorageError names the path; a temporary file beside it is removed as far as that goes.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with storing(path):
        try:
            # What has the name is from an interrupted call, or a trap: a pipe, a link to elsewhere.
            temporary.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(temporary, flags, 0o600 if secret else 0o644)
            try:
                for chunk in chunks:
                    write_all(handle, _bytes_of(chunk))
                if durable:
                    os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(temporary, path)  # noqa: PTH105 - one way to name the calls that tests fail
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def making_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``path`` in the end: all of it or, on failure, nothing.

    Nothing is at ``path`` then but an empty folder.  What an interrupted call left is removed;
    StorageError.
    """
    making = path.with_name(f".{path.name}.tmp")
    with storing(making):
        if making.exists():
            shutil.rmtree(making)
        making.mkdir(parents=True)
    try:
        yield making
        with storing(path):
            making.rename(path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def remove_temporaries(folder: Path) -> None:
    """Remove what interrupted calls of :func:`write_atomic` left in ``folder``."""
    with storing(folder):
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)


class _Sized(io.RawIOBase):
    """A file of a known size: its bytes, and never one more.

    What ends early or goes on after its size is refused while it is read, whoever reads it.
    """

    def __init__(self, handle: int, size: int, path: Path, error: type[VtrainError] | None) -> None:
        self._handle, self._size, self._path, self._error = handle, size, path, error
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("negative seek position")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        want = min(len(view), max(0, self._size - self._at))
        if not want:
            return 0
        with _opening(self._path, self._error):
            os.lseek(self._handle, self._at, os.SEEK_SET)
            got = os.readv(self._handle, [view[:want]])
        if not got:
            _refuse(f"it ends at byte {self._at}, it said {self._size}", self._path, self._error)
        self._at += got
        return got

    def check_end(self) -> None:
        """That nothing follows."""
        with _opening(self._path, self._error):
            # Not one byte: files of the system refuse to be read by less than their records.
            more = os.pread(self._handle, _BUFFER, self._size)
        if more:
            message = f"it has more than the {self._size} bytes that it said: is it still written?"
            _refuse(message, self._path, self._error)

    def fileno(self) -> int:
        return self._handle


class BoundedFile(io.BufferedReader):
    """An open regular file of ``size`` bytes, for reading and seeking; see :func:`open_file`."""

    def __init__(self, raw: _Sized, size: int) -> None:
        super().__init__(raw, _BUFFER)
        self.size = size


@contextmanager
def open_file(
    path: Path,
    limit: int,
    *,
    root: Path | None = None,
    error: type[VtrainError] | None = None,
    growing: bool = False,
) -> Iterator[BoundedFile]:
    """Open a regular file of at most ``limit`` bytes, which says its size and has no byte more.

    ``root``: the run folder that the file lies in, on the way from which there may be no link; the
    folder itself may be reached by one.  ``growing``: what is appended meanwhile is passed over.

    NotProducedError when there is none of this name, when it is no regular file, larger, or not of
    the size that it says; StorageError when the system refuses.  All of these are an ``error``
    where that is given.
    """
    handle = _open_handle(path, root, error)
    try:
        found = os.fstat(handle)
        _require_regular(found.st_mode, path, error)
        size = found.st_size
        if size > limit:
            message = f"it has {size} bytes, more than the {limit} that this machine takes"
            _refuse(message, path, error)
        raw = _Sized(handle, size, path, error)
        with BoundedFile(raw, size) as file:
            yield file
        if not growing:
            raw.check_end()
    finally:
        os.close(handle)


def refuse_holes(file: BoundedFile, path: Path) -> None:
    """NotProducedError for a large file of which nearly nothing is stored: it costs its maker
    nothing, and its reader all that it says."""
    stored = os.fstat(file.fileno()).st_blocks * 512
    if file.size > LIMITS.unpacked_freely_bytes and stored * LIMITS.stored_ratio < file.size:
        message = f"it has {file.size} bytes, of which {stored} are stored: it is mostly holes"
        raise NotProducedError(message, where=str(path))


def read_file(
    path: Path, limit: int, *, root: Path | None = None, error: type[VtrainError] | None = None
) -> bytes:
    """All bytes of a regular file of at most ``limit``; errors as of :func:`open_file`."""
    with open_file(path, limit, root=root, error=error) as file:
        return file.read(file.size)


def read_text(path: Path, limit: int, *, error: type[VtrainError] | None = None) -> str:
    """The UTF-8 text of such a file; errors as of :func:`open_file`, for bytes that are no text
    too."""
    try:
        return read_file(path, limit, error=error).decode()
    except UnicodeDecodeError as fault:
        _refuse(f"it is not UTF-8 at byte {fault.start}", path, error)


def require_file(
    path: Path, *, root: Path | None = None, error: type[VtrainError] | None = None
) -> None:
    """See that ``path`` is a regular file, for what others open; errors as of :func:`open_file`."""
    os.close(_open_handle(path, root, error))


def refuse_link(folder: Path) -> None:
    """NotProducedError for a folder of a run that is a link: nothing is listed, written or removed
    where it leads."""
    if folder.is_symlink():
        _require_regular(stat.S_IFLNK, folder, None)


_BUFFER: Final = 1 << 16
_KINDS: Final = (
    (
        stat.S_ISLNK,
        "a link: a run folder is taken as it lies, and so is what a model names beside it: put "
        "what it leads to in its place",
    ),
    (stat.S_ISDIR, "a folder: name a file in it"),
    (stat.S_ISFIFO, "a pipe: save what it gives into a file, and name that"),
    (stat.S_ISSOCK, "a socket: save what it gives into a file, and name that"),
    (stat.S_ISCHR, "a device: save what it gives into a file, and name that"),
    (stat.S_ISBLK, "a device: save what it gives into a file, and name that"),
)


def _refuse(message: str, path: Path, error: type[VtrainError] | None) -> NoReturn:
    if error is None:
        raise NotProducedError(message, where=str(path))
    raise error(f"cannot be read: {message}", where=str(path))


def _require_regular(mode: int, path: Path, error: type[VtrainError] | None) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for test, kind in _KINDS if test(mode)), "something else")
        _refuse(f"it is not a regular file but {kind}", path, error)


@contextmanager
def _opening(path: Path, error: type[VtrainError] | None) -> Iterator[None]:
    """What the system says, as an error of ours."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        _refuse("the file is missing", path, error)
    except OSError as fault:
        reason = fault.strerror or str(fault)
        if error is not None or fault.errno == errno.ELOOP:  # a link that leads to itself
            _refuse(reason, path, error)
        raise StorageError(reason, where=str(path)) from fault


def _open_handle(path: Path, root: Path | None, error: type[VtrainError] | None) -> int:
    """Look, then open, so that a device is not even opened; what opened is looked at again."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with _opening(path, error):
        if root is None:
            _require_regular(path.stat().st_mode, path, error)
            handle = os.open(path, flags)
        else:
            handle = _open_below(path, root, flags | os.O_NOFOLLOW, error)
        try:
            _require_regular(os.fstat(handle).st_mode, path, error)
        except VtrainError:
            os.close(handle)
            raise
        return handle


def _open_below(path: Path, root: Path, flags: int, error: type[VtrainError] | None) -> int:
    if not path.is_relative_to(root) or ".." in path.relative_to(root).parts:
        _refuse(f"it is not below the run folder {root}", path, error)
    *folders, name = path.relative_to(root).parts
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        place = root
        for part in folders:
            place = place / part
            mode = os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                _require_regular(mode, place, error)
            inner = os.open(
                part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder
            )
            os.close(folder)
            folder = inner
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        _require_regular(mode, path, error)
        return os.open(name, flags, dir_fd=folder)
    finally:
        os.close(folder)


def _bytes_of(chunk: Chunk) -> memoryview:
    if isinstance(chunk, bytes):
        return memoryview(chunk)
    return chunk.reshape(-1).view(np.uint8).data
