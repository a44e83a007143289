"""Circuits and keys as files, for whoever verifies proofs without this code (docs/format.md, 4b).

A circuit is ``circuit.onnx`` and ``settings.json``, which its digest is over, and ``columns.json``:
what a verifier compares a proof's commitments with.  Over one SRS there is a verifying key ``vk``
as well.  All but the key is the same everywhere and made without ezkl.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

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
from vtrain.prove.backend.ezkl import EZKL_VERSION
from vtrain.prove.backend.settings import BLINDING, PinnedCircuit
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import ANSWERS
from vtrain.prove.runs import ReadyCircuit
from vtrain.prove.tiles.circuits import count_drawn
from vtrain.prove.tiles.statements import LINEAR
from vtrain.wire.proof import TILE

INDEX: Final = "index.json"


def describe_columns(name: str, circuit: Circuit, k: int) -> dict[str, Any]:
    """What stands in ``columns.json`` of the circuit ``name``; integers of constants as text."""
    computed = [
        entry | {"values": " ".join(map(str, entry["values"]))} if "values" in entry else entry
        for entry in circuit.describe_computed()
    ]
    answers = sum(circuit.length(output) for output in circuit.outputs)
    return {
        "k": k,
        "blinding": BLINDING,
        "columns": [
            {
                "name": column,
                "length": circuit.length(column),
                "origin": _find_origin(column, circuit),
            }
            for column in circuit.columns
        ],
        "computed": computed,
        "settled": list(circuit.settled),
        "drawn": count_drawn(TILE) if name == LINEAR else circuit.length("challenge"),
        "answers": {"ones": circuit.ones, "zeros": answers - circuit.ones},
    }


def _find_origin(column: str, circuit: Circuit) -> str:
    """Who knows a column: one of "given", "private", "computed", "answers"."""
    if column in circuit.given:
        return "given"
    kind = column.partition(" ")[0]
    return kind if kind in ("computed", ANSWERS) else "private"


def render_circuit(name: str, circuit: Circuit, pinned: PinnedCircuit) -> dict[str, bytes]:
    """The files of a circuit by name, all but the key."""
    return {
        "circuit.onnx": pinned.onnx,
        "settings.json": pinned.settings,
        "columns.json": encode_json(describe_columns(name, circuit, pinned.k)),
    }


def encode_json(value: Any) -> bytes:
    """As in all files here: keys in the order given, an item of a list a line."""
    return (json.dumps(value, indent=1) + "\n").encode()


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
        made = render_circuit(ready.name, ready.circuit, ready.pinned)
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
