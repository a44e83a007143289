"""SRS files of seeds, which are the same each time: each is made once for all workers."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from vtrain.prove.backend.srs import generate_srs

_folders: list[Path] = []


def share_srs(folder: Path) -> None:
    """Keep the files in ``folder``, which other processes may use too, until this one ends."""
    _folders[:] = [folder]


def place_srs(path: Path, k: int, seed: bytes) -> None:
    """Put the SRS of that seed into the new file ``path``: a copy, which a test may spoil."""
    if not _folders:
        generate_srs(path, k, seed=seed)
        return
    kept = _folders[0] / f"{k}-{seed.hex()}.srs"
    with (_folders[0] / "srs.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            generate_srs(kept, k, seed=seed)
    shutil.copyfile(kept, path)
