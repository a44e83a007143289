"""Circuits and keys as files, for whoever verifies proofs without this code (docs/format.md, 4b).

A circuit is ``circuit.onnx``, ``settings.json`` and ``columns.json``, which its digest is over: the
last is what a verifier compares a proof's commitments with.  Over one SRS there is a verifying key
``vk`` as well.  All but the key is the same everywhere and made without ezkl.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from blake3 import blake3

from vtrain.commit.files import (
    compute_entry,
    making_folder,
    read_entry,
    read_file,
    storing,
    write_atomic,
)
from vtrain.errors import NotProducedError, StorageError
from vtrain.limits import LIMITS
from vtrain.prove.backend.columns import encode_json
from vtrain.prove.backend.ezkl import EZKL_VERSION
from vtrain.prove.backend.settings import PinnedCircuit
from vtrain.prove.setup import ReadyCircuit

INDEX: Final = "index.json"


def list_files(pinned: PinnedCircuit) -> dict[str, bytes]:
    """The files of a circuit by name, all but the key."""
    return {
        "circuit.onnx": pinned.onnx,
        "settings.json": pinned.settings,
        "columns.json": pinned.columns,
    }


def list_digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """The plain BLAKE3 of each file, by name."""
    return {name: blake3(data).hexdigest() for name, data in files.items()}


def export_circuits(folder: Path, circuits: Iterable[ReadyCircuit]) -> None:
    """Write circuits and keys into the new folder ``folder``: one for each, and an index.

    All of it or nothing.  A folder that has just these files stays as it is; StorageError for one
    that has others, and where a file cannot be written.
    """
    files: dict[str, bytes] = {}
    index = {}
    for ready in circuits:
        made = list_files(ready.pinned)
        made["vk"] = read_file(ready.keys.vk, LIMITS.verifying_key_bytes, error=StorageError)
        digests = list_digests(made)
        if digests["vk"] != ready.keys.vk_digest.hex():
            raise StorageError("is not the key that was made", where=str(ready.keys.vk))
        files |= {f"{ready.name}/{name}": data for name, data in made.items()}
        index[ready.name] = {
            "circuit": ready.pinned.digest.hex(),
            "key": ready.keys.vk_digest.hex(),
            "srs": ready.keys.srs.hex(),
            "k": ready.pinned.k,
            "proof_length": ready.keys.proof_length,
            "files": digests,
        }
    files[INDEX] = encode_json({"ezkl": EZKL_VERSION, "circuits": index})
    _write_folder(folder, files)


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    with storing(folder):
        folder = folder.resolve()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not _holds(folder, files):
                raise StorageError("holds something else: name a new folder", where=str(folder))
            return
    with making_folder(folder) as making:
        for name, data in files.items():
            path = making / name
            with storing(path):
                path.parent.mkdir(exist_ok=True)
            write_atomic(path, [data])


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether a folder has just these files."""
    if not folder.is_dir():
        return False
    found = {
        str(Path(place, name).relative_to(folder))
        for place, _, names in os.walk(folder)
        for name in names
    }
    try:
        return found == set(files) and all(
            read_entry(folder / name, len(data), root=folder) == compute_entry([data])
            for name, data in files.items()
        )
    except NotProducedError:
        return False
