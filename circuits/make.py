"""Write what people read of the circuits: ``python circuits/make.py``.  A test compares.

A folder for each circuit over tiles: README.md (statement, layout), circuit.onnx and settings.json
(pinned settings of ezkl), columns.json (what a verifier computes), circuit.json (digests).
``--keys SRS`` sets up every circuit over an SRS, which takes minutes, and writes the digests of the
verifying keys to keys.json; ``--export DIR`` also writes the keys themselves, with the circuits.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vtrain.prove.backend.columns import describe_columns
from vtrain.prove.backend.cost import estimate
from vtrain.prove.backend.ezkl import EZKL_VERSION, Limits
from vtrain.prove.backend.keys import default_cache, load_verifying_key
from vtrain.prove.backend.settings import BLINDING, PinnedCircuit, pin
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import ANSWERS, COLUMNS
from vtrain.prove.export import export_circuits, list_digests, list_files
from vtrain.prove.setup import ReadyCircuit
from vtrain.prove.tiles import circuits

HERE = Path(__file__).resolve().parent
KEYS = HERE / "keys.json"
LABEL = "vtrain srs generate --k 15 --seed 00"
Keys = dict[str, dict[str, dict[str, Any]]]
"""SRS -> circuit -> digests of the circuit ("circuit") and of its verifying key ("key"), and the
bytes of a proof ("proof_length")."""


@dataclass(frozen=True)
class Entry:
    """A circuit to show: its name, the circuit at its k, the text of its statement."""

    name: str
    circuit: Circuit
    k: int
    statement: str


def find_entries() -> Iterator[Entry]:
    """Every circuit over tiles."""
    for name, build in circuits.TILE_CIRCUITS.items():
        text = inspect.getdoc(_unwrap(build)) or ""
        yield Entry(name, circuits.build_tile_circuit(name), circuits.TILE_K, text)


def _unwrap(build: Callable[..., Any]) -> Callable[..., Any]:
    return build.func if isinstance(build, partial) else build


def render(entry: Entry, keys: Keys) -> dict[str, bytes]:
    """The files of a circuit, by name."""
    pinned = pin(entry.circuit, entry.k)
    artefacts = list_files(pinned)
    current = {srs: made for srs, made in keys.items() if _is_current(entry.name, pinned, made)}
    size = estimate(entry.circuit, entry.k)
    columns = "\n".join(
        f"| {index} | `{name}` | {_count(entry.circuit, name)} | {_describe(entry.circuit, name)} |"
        for index, name in enumerate(entry.circuit.columns)
    )
    span = entry.circuit.span
    limbs = f"limbs of {span} values" if span else "without limbs and table"
    readme = f"""# {entry.name}

{entry.statement}

## Layout

k = {entry.k}, {entry.circuit.inner_columns} inner columns, {entry.circuit.cells} cells,
{limbs}. A proof begins with one KZG commitment (64 bytes) a column, in this
order; there are no public instances. Values of a column are followed by the elements that hide
them.

| | column | elements | |
|---|---|---|---|
{columns}

{_describe_computed(entry)}

Written by `circuits/make.py` from `vtrain/prove`.
"""
    facts = {
        "cells": entry.circuit.cells,
        "circuit": pinned.digest.hex(),
        "ezkl": EZKL_VERSION,
        "files": list_digests(artefacts),
        "inner_columns": entry.circuit.inner_columns,
        "k": entry.k,
        "keys": {srs: made[entry.name]["key"] for srs, made in current.items()},
        "memory_estimate": size.memory,
        "proof_length": next(
            (made[entry.name].get("proof_length") for made in current.values()), None
        ),
    }
    return {
        "README.md": readme.encode(),
        "circuit.json": (json.dumps(facts, indent=2) + "\n").encode(),
        **artefacts,
    }


def _describe_computed(entry: Entry) -> str:
    """What a verifier computes, in words; the integers stand in columns.json."""
    told = describe_columns(entry.circuit, entry.k, BLINDING)
    rows = []
    for part in told["computed"]:
        extent = " x ".join(map(str, part.get("shape", [part["length"]])))
        rows.append(f"| `{part['name']}` | {part['kind']} | {extent} |")
    length = entry.circuit.length("challenge")
    drawn = "it is one element"
    if length > 1:
        drawn += f", from which and from the map the verifier computes {length - 1} more"
    ones, zeros = told["answers"]["ones"], told["answers"]["zeros"]
    settled = ", ".join(f"`{name}`" for name in told["settled"])
    return "\n".join(
        [
            f"The challenge is drawn from the commitments to {settled}; {drawn}. The columns "
            f"`{ANSWERS}` hold {ones} ones, then {zeros} zeros. The columns `computed` hold, in "
            "this order (`columns.json` has the integers):",
            "",
            "| part | kind | elements |",
            "|---|---|---|",
            *rows,
        ]
    )


_WHOSE = {"computed": "computed by the verifier", "late": "private", "private": "private"}
_WHAT = {
    "limbs": "limbs, each in its range, masks among them",
    "hints": "hints, pinned down by the conditions",
    "public": "constants and parameters",
    "challenge": "the challenge, drawn from the commitments above, and what follows from it",
    "late": "inverses",
}


def _count(circuit: Circuit, name: str) -> str:
    """How many values a column has, and what hides them."""
    hiding = circuit.size(name) - circuit.length(name)
    return f"{circuit.length(name)} + {hiding}" if hiding else f"{circuit.length(name)}"


def _describe(circuit: Circuit, name: str) -> str:
    if name in circuit.given:
        return "given: compared with the run's commitments"
    column = name.partition(" ")[0]
    if column == ANSWERS:
        ones = any(wanted.any() for wanted in circuit.compute_answers().values())
        return f"computed by the verifier: {'ones, then zeros' if ones else 'zeros'}"
    groups = [_WHAT[group] for group in COLUMNS[column] if circuit.length(group)]
    return f"{_WHOSE[column]}: {'; '.join(groups)}"


def read_keys() -> Keys:
    """The keys that were made, also those of circuits that have changed since."""
    found: Keys = json.loads(KEYS.read_text()) if KEYS.exists() else {}
    return found


def _is_current(name: str, pinned: PinnedCircuit, found: dict[str, dict[str, Any]]) -> bool:
    return found.get(name, {}).get("circuit") == pinned.digest.hex()


def make_keys(srs: Path, label: str, cache: Path, folder: Path | None) -> None:
    """Set up every circuit over an SRS, note the digests of the keys, and export them."""
    limits = Limits(memory=24 << 30, seconds=1800)
    keys, ready = read_keys(), []
    for entry in find_entries():
        pinned = pin(entry.circuit, entry.k)
        if folder is None and _is_current(entry.name, pinned, keys.get(label, {})):
            continue
        made = load_verifying_key(pinned, srs, cache, limits)
        ready.append(ReadyCircuit(entry.name, entry.circuit, pinned, made))
        keys.setdefault(label, {})[entry.name] = {
            "circuit": pinned.digest.hex(),
            "key": made.vk_digest.hex(),
            "proof_length": made.proof_length,
        }
        KEYS.write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n")
    if folder is not None:
        export_circuits(folder, ready)


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=Path, metavar="SRS")
    parser.add_argument("--label", default=LABEL)
    parser.add_argument("--cache", type=Path, metavar="DIR", default=default_cache())
    parser.add_argument("--export", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    if arguments.keys is not None:
        make_keys(arguments.keys, arguments.label, arguments.cache, arguments.export)
    elif arguments.export is not None:
        parser.error("--export needs --keys SRS")
    keys = read_keys()
    for entry in find_entries():
        folder = HERE / entry.name
        folder.mkdir(exist_ok=True)
        for name, data in render(entry, keys).items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
