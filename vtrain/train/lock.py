"""One writer for each folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vtrain.commit.files import storing
from vtrain.errors import RunError


@contextmanager
def hold_lock(
    path: Path, refusal: str = "another process trains into this folder"
) -> Iterator[None]:
    """Hold an exclusive ``flock`` on ``path``; the system drops it when the process dies.

    RunError, with the text of ``refusal``, when another process holds it; StorageError when the
    file cannot be made.
    """
    with storing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        with storing(path):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(refusal, where=str(path.parent)) from None
        yield
    finally:
        os.close(handle)
