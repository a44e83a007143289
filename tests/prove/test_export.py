"""Circuits and keys as files: all of them or none, and never over others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from tests.prove.steps import K
from tests.prove.toy import GIVEN, Toy
from tests.tasks import make_tiny_task
from vtrain.errors import StorageError
from vtrain.prove.backend.columns import describe_columns
from vtrain.prove.backend.settings import BLINDING
from vtrain.prove.export import export_circuits
from vtrain.prove.setup import ReadyCircuit
from vtrain.prove.steps.circuits import build_step_circuit

FILES = {"circuit.onnx", "columns.json", "settings.json", "vk"}


@pytest.fixture
def ready(toy: Toy) -> ReadyCircuit:
    return ReadyCircuit("toy", toy.circuit, toy.pinned, toy.keys)


def read(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_files_are_those_that_the_digests_are_of(
    ready: ReadyCircuit, toy: Toy, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    export_circuits(folder, [ready, replace(ready, name="again")])
    found = read(folder)
    assert set(found) == {f"{name}/{file}" for name in ("toy", "again") for file in FILES} | {
        "index.json"
    }
    index = json.loads(found["index.json"])
    assert index["ezkl"] == "23.0.5"
    entry = index["circuits"]["toy"]
    assert entry["files"] == {name: blake3(found[f"toy/{name}"]).hexdigest() for name in FILES}
    assert entry["circuit"] == toy.pinned.digest.hex()
    assert entry["key"] == entry["files"]["vk"] == toy.keys.vk_digest.hex()
    assert (entry["k"], entry["proof_length"]) == (toy.pinned.k, len(toy.proof))
    assert entry["srs"] == toy.commit_key.srs.sha256.hex()
    assert found["toy/circuit.onnx"] == toy.pinned.onnx
    assert found["toy/settings.json"] == toy.pinned.settings
    assert found["toy/columns.json"] == toy.pinned.columns


def test_columns_are_those_of_the_circuit(ready: ReadyCircuit, toy: Toy, tmp_path: Path) -> None:
    export_circuits(tmp_path / "out", [ready])
    told = json.loads((tmp_path / "out/toy/columns.json").read_text())
    assert {item["name"]: (item["length"], item["origin"]) for item in told["columns"]} == {
        **dict.fromkeys(GIVEN, (4, "given")),
        "private": (toy.circuit.length("private"), "private"),
        "computed": (toy.circuit.length("computed"), "computed"),
        "late": (toy.circuit.length("late"), "private"),
        "answers": (toy.circuit.length("answers"), "answers"),
    }
    assert [item["name"] for item in told["columns"]] == list(toy.circuit.columns)
    assert told["settled"] == list(toy.circuit.settled)
    parts = {item["name"]: item for item in told["computed"]}
    assert parts["total"] == {"name": "total", "length": 1, "kind": "parameter", "shape": [1]}
    assert parts["table/table 0"]["values"] == "-4 -3 -2 -1 0 1 2 3 4"
    assert sum(item["length"] for item in told["computed"]) == toy.circuit.length("computed")


def test_the_same_again_changes_nothing(ready: ReadyCircuit, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_circuits(tmp_path / "out", [ready])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    export_circuits(tmp_path / "out", [ready])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("what", ["altered", "missing", "more", "longer", "another", "a file"])
def test_what_is_there_is_not_written_over(ready: ReadyCircuit, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "out"
    export_circuits(folder, [replace(ready, name="other") if what == "another" else ready])
    path = folder / "toy/columns.json"
    match what:
        case "altered":
            path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
        case "missing":
            path.unlink()
        case "more":
            (folder / "mine").touch()
        case "longer":
            path.write_bytes(path.read_bytes() + b"\n")
        case "a file":
            folder.rename(tmp_path / "away")
            folder.touch()
    before = read(tmp_path)
    with pytest.raises(StorageError, match="holds something else: name a new folder"):
        export_circuits(folder, [ready])
    assert read(tmp_path) == before


def test_a_failure_leaves_nothing(
    ready: ReadyCircuit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(ready, keys=replace(ready.keys, vk_digest=bytes(32)))
    with pytest.raises(StorageError, match="is not the key that was made"):
        export_circuits(tmp_path / "out", [wrong])

    def fail(path: Path, chunks: object) -> None:
        raise StorageError("is full", where=str(path))

    monkeypatch.setattr("vtrain.prove.export.write_atomic", fail)
    with pytest.raises(StorageError, match="is full"):
        export_circuits(tmp_path / "out", [ready])
    assert list(tmp_path.iterdir()) == []


def test_what_an_interrupted_call_left_is_removed(ready: ReadyCircuit, tmp_path: Path) -> None:
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "half").touch()
    export_circuits(tmp_path / "out", [ready])
    assert set(tmp_path.iterdir()) == {tmp_path / "out"}
    assert "half" not in read(tmp_path / "out")


def test_columns_of_a_whole_step() -> None:
    circuit = build_step_circuit(make_tiny_task(samples=10, batch=4).graph, K)
    told = describe_columns(circuit, K, BLINDING)
    lengths = {item["name"]: item["length"] for item in told["columns"]}
    assert lengths == {name: circuit.length(name) for name in circuit.columns}
    values: list[int] = []
    for part in told["computed"]:
        if part["kind"] == "parameter":
            assert (part["name"], part["shape"]) in (("rate", [1]), ("loss", [1]))
            values.append({"rate": 7, "loss": 9}[part["name"]])
        elif part["kind"] == "constant":
            values += map(int, part["values"].split(" "))
    known = {"rate": np.array([7]), "loss": np.array([9])}
    assert values == circuit.compute_public(known).tolist()
    challenges = [item for item in told["computed"] if item["kind"] == "challenge"]
    assert [(item["name"], item["length"]) for item in challenges] == [("element", 1)]
    assert len(values) + 1 == lengths["computed"]
    hidden = {item["name"] for item in told["columns"] if item["origin"] in ("given", "private")}
    assert hidden == {*circuit.hidden}
    sizes = {name: circuit.size(name) - told["hiding"] * (name in hidden) for name in lengths}
    assert sizes == lengths
    assert sum(told["answers"].values()) == lengths["answers"]
