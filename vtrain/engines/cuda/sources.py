"""Where the kernels' sources are: ``reference_kernels`` of a checkout, or its copy in a wheel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from vtrain.errors import RunError

PACKAGE: Final = Path(__file__).resolve().parent
CHECKOUT: Final = PACKAGE.parents[2]


@cache
def find_folder() -> Path:
    """The folder of the kernels; RunError if the installation lacks it.

    A checkout's own comes first: installing it for development leaves a copy in the package, which
    does not follow when a kernel is changed.
    """
    ours, copied = CHECKOUT / "reference_kernels", PACKAGE / "reference_kernels"
    # Beside an installed package there may be anything, a pyproject.toml of somebody else's too.
    if (CHECKOUT / "pyproject.toml").is_file() and (ours / "law.cuh").is_file():
        return ours
    if not (copied / "law.cuh").is_file():
        raise RunError(
            "the sources of the CUDA kernels are missing: install vtrain anew", where=str(copied)
        )
    return copied


def list_kernel_files() -> list[Path]:
    """Every file that is compiled by itself, by name."""
    return sorted(find_folder().glob("*.cu"))


def compute_hash(folder: Path | None = None) -> str:
    """Digest of all sources, headers too: a changed byte anywhere gives another."""
    folder = find_folder() if folder is None else folder
    return _digest([*folder.glob("*.cu"), *folder.glob("*.cuh")])


def compute_launch_hash() -> str:
    """Digest of the modules that choose kernels, generate and launch them."""
    return _digest([*PACKAGE.glob("*.py"), *PACKAGE.glob("lower/*.py")])


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for path in sorted(paths):
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
