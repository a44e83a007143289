"""Where the kernels' sources are: ``reference_kernels`` of a checkout, or its copy in a wheel."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from vtrain.errors import RunError

PACKAGE: Final = Path(__file__).resolve().parent
FOLDERS: Final = (PACKAGE / "reference_kernels", PACKAGE.parents[2] / "reference_kernels")
"""Looked at in this order; the first is where a wheel has them."""


@cache
def find_folder() -> Path:
    """The folder of the kernels; RunError if the installation lacks it."""
    for folder in FOLDERS:
        if (folder / "law.cuh").is_file():
            return folder
    raise RunError(
        "the sources of the CUDA kernels are missing: install vtrain anew",
        where=str(FOLDERS[0]),
    )


def list_kernel_files() -> list[Path]:
    """Every file that is compiled by itself, by name."""
    return sorted(find_folder().glob("*.cu"))


def compute_hash(folder: Path | None = None) -> str:
    """Digest of all sources, headers too: a changed byte anywhere gives another."""
    folder = find_folder() if folder is None else folder
    digest = hashlib.blake2b(digest_size=20)
    for path in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")]):
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
