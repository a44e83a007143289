"""The audit vectors: ``vtrain verify`` reports of each run what is written down beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from blake3 import blake3

from tests.vectors.generate_audit import WHOLE, audit, list_checks, place_of
from vtrain.audit.order import ALGEBRAIC, PROOFS, RULES, STRUCTURE
from vtrain.wire import cbor
from vtrain.wire.report import EXIT_CODES

VECTORS = Path(__file__).parent.parent / "vectors"
SCHEMA = jsonschema_rs.validator_for(
    json.loads((VECTORS.parent.parent / "docs" / "report.schema.json").read_text())
)
CASES = sorted((VECTORS / "audit").glob("*/*/expected.json"))
ORDER = [rule.name for rule in RULES + ALGEBRAIC + PROOFS]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_files_are_what_the_generator_gives() -> None:
    command = [sys.executable, "-m", "tests.vectors.generate_audit", "--check"]
    root = VECTORS.parent.parent
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert (done.returncode, done.stderr) == (0, "")


def is_by_both(expected: Any) -> bool:
    """Values are checked by the law, and by the engine in another way."""
    return "algebraic" in expected["arguments"]


@pytest.mark.parametrize(
    ("path", "engine"),
    [
        pytest.param(path, engine, id=f"{path.parent.name}-{engine}")
        for path in CASES
        for engine in ("numpy", "cpu")
        if engine == "numpy" or is_by_both(read(path))
    ],
)
def test_the_verdict_and_its_place(path: Path, engine: str) -> None:
    expected = read(path)
    report = audit(path.parent, expected["arguments"], engine)
    if report is None:
        assert expected == {**expected, "verdict": None, "checks": [], "replayed": []}
        return
    reason = report["reason"]
    found = reason and {
        "check": reason["name"],
        "fault": reason["fault"],
        "place": place_of(reason["where"], path.parent),
    }
    assert (report["verdict"], found) == (expected["verdict"], expected["reason"])
    assert report["exit_code"] == EXIT_CODES[report["verdict"]]
    assert SCHEMA.is_valid(report)
    checks = list_checks(report, path.parent)
    assert checks == expected["checks"]
    assert report["replayed"] == expected["replayed"]
    names = list(dict.fromkeys(check["name"] for check in checks))
    if (path.parent / "store").exists():  # what is about the draw comes after it
        names = [name for name in names if name not in {"samples", "batches", "checkpoints"}]
    assert names == sorted(names, key=ORDER.index)


def test_the_files_of_the_circuit_have_the_digests_that_are_pinned() -> None:
    """As an outsider computes them (docs/format.md, "The files of a circuit")."""
    pins = read(WHOLE / "pins.json")
    names = {"columns": "columns.json", "onnx": "circuit.onnx", "settings": "settings.json"}
    digests = {key: blake3((WHOLE / name).read_bytes()).digest() for key, name in names.items()}
    material = cbor.encode({**digests, "ezkl": "23.0.5"})
    digest = blake3(material, derive_key_context="vtrain 2026 circuit v2")
    assert digest.hexdigest() == pins["circuit"]
    assert blake3((WHOLE / "vk").read_bytes()).hexdigest() == pins["key"]


def test_cases_are_enough() -> None:
    """Every check fails in one of them, for every fault that the table gives it."""
    assert len(CASES) > 70
    seen = {
        (check["name"], check["fault"])
        for path in CASES
        for check in read(path)["checks"]
        if check["status"] == "failed"
    }
    wanted = {
        (rule.name, condition.fault)
        for rule in STRUCTURE + ALGEBRAIC
        for condition in rule.conditions
    } | {("replay", "solver"), ("checkpoints", "task"), ("algebraic", "task")}
    wanted |= {(name, "nobody") for name in ("srs", "owner", "proof")}
    ended = {check["name"] for path in CASES for check in read(path)["checks"]}
    assert {rule.name for rule in PROOFS} <= ended
    # What only an auditor with little memory sees.
    assert wanted - seen == {("legality", "nobody")}
    kept = [path for path in CASES if path.parent.parent.name == "kept"]
    assert abs(3 * len(kept) - len(CASES)) <= 2


def test_no_place_is_the_readers_own() -> None:
    """Whoever has run, store and traces elsewhere reports the same places."""
    places = [check["place"] for path in CASES for check in read(path)["checks"]]
    assert not [place for place in places if place.startswith(("/", "file:"))]
    assert {place for place in places if place.startswith("traces/")}
