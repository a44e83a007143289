"""A player's journal in a file: what was signed, before it was sent.

A player who crashes, or is started twice, says the same again and never contradicts itself.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from blake3 import blake3

from vtrain.errors import EncodingError, StorageError
from vtrain.wire import structs
from vtrain.wire.dispute import MAX_MOVE, SignedMove

_MAGIC: Final = b"vtrain journal 1\n"
_LENGTH: Final = 8
_HEAD: Final = _LENGTH + 32


class FileJournal:
    """Signed moves by position in the file ``path``, which one process at a time may use.

    Frames of a length (8 bytes, little-endian), the BLAKE3 of what follows and a SignedMove, synced
    to disk before ``keep`` returns.  What does not check at the end was never sent, and is cut off.
    StorageError when the file cannot be used, EncodingError when it is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._moves: dict[bytes, SignedMove] = {}
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._file = os.fdopen(handle, "r+b")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._read()
            except BaseException:
                self._file.close()
                raise
        except BlockingIOError as error:
            raise StorageError("another player uses this journal", where=str(path)) from error
        except OSError as error:
            raise StorageError(f"cannot use it: {error.strerror}", where=str(path)) from error

    def _read(self) -> None:
        start = self._file.read(len(_MAGIC))
        if start != _MAGIC:
            # Begun and not on disk in full: nothing was kept yet, nor sent.
            if start.rstrip(b"\0") not in (b"", _MAGIC[: len(start.rstrip(b"\0"))]):
                raise EncodingError("is no journal of moves", where=str(self._path))
            self._file.seek(0)
            self._file.write(_MAGIC)
            self._file.truncate()
            return
        sound = len(_MAGIC)
        while len(head := self._file.read(_HEAD)) == _HEAD:
            length = int.from_bytes(head[:_LENGTH], "little")
            if length > MAX_MOVE + 4096:
                break
            frame = self._file.read(length)
            if blake3(frame).digest() != head[_LENGTH:]:
                break
            signed = structs.decode(SignedMove, frame, f"{self._path}: byte {sound}")
            self._moves[signed.position] = signed
            sound += _HEAD + length
        self._file.truncate(sound)
        self._file.seek(sound)

    def find(self, position: bytes) -> SignedMove | None:
        """What was signed at this position before, if anything."""
        return self._moves.get(position)

    def keep(self, signed: SignedMove) -> None:
        """Store a move durably; StorageError when that fails."""
        frame = structs.encode(signed)
        try:
            head = len(frame).to_bytes(_LENGTH, "little") + blake3(frame).digest()
            self._file.write(head + frame)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(f"cannot write: {error.strerror}", where=str(self._path)) from error
        self._moves[signed.position] = signed

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()
