"""The audit vectors: ``vtrain verify`` reports of each run what is written down beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from blake3 import blake3

from tests.vectors.generate_audit import WHOLE, audit, list_checks, list_stale, place_of
from vtrain.audit.order import ALGEBRAIC, PROOFS, REPLAY, RULES, STRUCTURE, Rule
from vtrain.wire import cbor
from vtrain.wire.report import EXIT_CODES

VECTORS = Path(__file__).parent.parent / "vectors"
SCHEMA = jsonschema_rs.validator_for(
    json.loads((VECTORS.parent.parent / "docs" / "report.schema.json").read_text())
)
CASES = sorted((VECTORS / "audit").glob("*/*/expected.json"))
ORDER = [*(rule.name for rule in RULES + ALGEBRAIC), "tiles"]
BY_PROOFS = [*(rule.name for rule in STRUCTURE + PROOFS), "tiles"]
"""Here ``replay`` and ``kzg`` stand in the place of ``proof``."""

SHOWN: dict[str, tuple[tuple[Rule, ...], dict[str, tuple[str, ...]]]] = {
    "structure": (
        STRUCTURE,
        {
            "claim": (
                "claim-trailing-byte",
                "claim-signature",
                "claim-another-solver",
                "pin-contradicted",
                "pin-another-digest",
            ),
            "task": ("task-unknown-field", "task-another", "task-not-asked-for"),
            "complete": (
                "complete-kzg-root",
                "complete-too-many",
                "complete-between-roots",
                "claimed-in-part-of-the-task",
            ),
            "manifest": ("manifest-spaces",),
            "index": ("index-run-id", "index-task-id", "index-steps"),
            "graph": ("graph-trailing-byte", "graph-another"),
            "legality": ("legality-range", "legality-task-seed", ""),
            "files": ("files-unlisted", "files-unknown", "files-size", "files-model-digest"),
            "model": ("model-another",),
            "samples": ("samples-left-out", "samples-another"),
            "log": ("log-cut", "log-shorter", "log-another-record"),
            "records": ("records-no-record", "records-step", "records-no-root"),
            "batches": ("batches-swapped",),
            "kzg_log": ("kzg-log-cut", "kzg-log-shorter", "kzg-log-another-record"),
            "kzg_records": (
                "kzg-no-record",
                "kzg-step",
                "kzg-before",
                "kzg-infinity",
                "kzg-no-point",
                "kzg-chain",
            ),
            "checkpoints": (
                "checkpoint-header",
                "checkpoint-bit",
                "checkpoint-range",
                "checkpoint-counter",
            ),
        },
    ),
    "replay": (
        REPLAY,
        {
            "kzg": ("kzg-initial-forged", "kzg-hidden-all", "kzg-forged-batch"),
            "replay": ("batches-other-data", "replay-loss", "replay-weight"),
        },
    ),
    "algebraic": (
        ALGEBRAIC,
        {
            "trace": (
                "algebraic-none",
                "algebraic-truncated",
                "algebraic-signature",
                "algebraic-pin-contradicted",
                "algebraic-pin-another",
                "algebraic-other-step",
                "algebraic-size",
                "algebraic-leaves-others",
                "algebraic-record",
            ),
            "algebraic": (
                "algebraic-base",
                "algebraic-state-kept-back",
                "algebraic-state-range-solver",
                "algebraic-state-in-interval",
                "algebraic-next-state",
                "algebraic-digest",
                "algebraic-kept-back",
                "algebraic-accumulator",
                "algebraic-pointwise",
            ),
        },
    ),
    "proofs": (
        PROOFS,
        {
            "proofs": (),
            "srs": ("private-srs",),
            "owner": (
                "private-owner-key",
                "private-owner-signature",
                "private-owner-order",
                "private-owner-batch",
            ),
            "sample": (),
            "proof": (
                "private-missing",
                "private-whole-circuit-name",
                "private-whole-claim",
                "private-few-rows",
                "private-whole-key",
                "private-whole-no-records",
                "proof-whole-no-checkpoint",
                "private-whole-end",
            ),
            "replay": ("proof-whole-replay",),
            "kzg": ("proof-whole-key-id", "proof-whole-kzg"),
        },
    ),
}
"""For each condition of each check, in order, a case in which it is the first of that check that
does not hold; an empty text where ``NOT_SHOWN`` says why there is none."""
NOT_SHOWN = {
    ("structure", "legality", 3): "only an auditor with little memory sees it",
}
SHOWN_AS = {
    ("replay", "kzg", 2): ("kzg", "not_done", ""),
    ("proofs", "kzg", 1): ("proof", "failed", "nobody"),
}
"""Conditions that end another check, or end it otherwise, as their words say."""
TASK_TOO = {
    ("checkpoints", 3): "checkpoint-initial-range",
    ("checkpoints", 4): "checkpoint-initial-counter",
    ("algebraic", 3): "algebraic-state-range-task",
    ("kzg", 2): "proof-whole-kzg-initial",
}
"""Conditions whose fault is the task's where they are about the initial state."""
TILES = {
    "1": "tiles-none",
    "2": "tiles-no-records",
    "3": "tiles-refused-graph",
    "4": "tiles-trailing-byte",
    "5": "tiles-signature",
    "6": "tiles-contradicted",
    "7": "tiles-pin-another",
    "8": "tiles-unanswered",
    "9": "tiles-another-draw",
    "10": "tiles-count",
    "12": "tiles-another-statement",
    "13": "tiles-another-tile",
    "13.2": "tiles-no-opening",
    "13.3": "tiles-another-tile",
    "13.4": "tiles-infinity",
    "13.5": "tiles-circuit-not-pinned",
}
"""The same of the rows of docs/tiling.md, section 7, and of the conditions of row 13."""
TILES_NOT_SHOWN = {
    "11": "no statement is drawn of none alone, and --samples 0 is bad usage: tile_answers.json",
    "13.1": "without as many commitments the KZG records are not established: tile_answers.json",
}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_files_are_what_the_generator_gives() -> None:
    assert list_stale() == []


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
    order = BY_PROOFS if "proof" in expected["arguments"] else ORDER
    assert names == sorted(names, key=order.index)


def test_the_files_of_the_circuit_have_the_digests_that_are_pinned() -> None:
    """As an outsider computes them (docs/format.md, "The files of a circuit")."""
    pins = read(WHOLE / "pins.json")
    names = {"columns": "columns.json", "onnx": "circuit.onnx", "settings": "settings.json"}
    digests = {key: blake3((WHOLE / name).read_bytes()).digest() for key, name in names.items()}
    material = cbor.encode({**digests, "ezkl": "23.0.5"})
    digest = blake3(material, derive_key_context="vtrain 2026 circuit v2")
    assert digest.hexdigest() == pins["circuit"]
    assert blake3((WHOLE / "vk").read_bytes()).hexdigest() == pins["key"]


def list_failures(name: str) -> list[tuple[str, str, str]]:
    """Name, status and fault of the checks of a case that did not pass."""
    (path,) = [path for path in CASES if path.parent.name == name]
    checks = read(path)["checks"]
    found = [(check["name"], check["status"], check["fault"]) for check in checks]
    return [check for check in found if check[1] != "passed"]


@pytest.mark.parametrize("table", SHOWN)
def test_every_condition_has_a_case_that_breaks_it(table: str) -> None:
    rules, cases = SHOWN[table]
    assert list(cases) == [rule.name for rule in rules]
    for rule in rules:
        shown = cases[rule.name]
        assert len(shown) == len(rule.conditions), rule.name
        assert len({*shown}) == len(shown), f"{rule.name}: a case shows one condition"
        for number, (condition, case) in enumerate(zip(rule.conditions, shown, strict=True), 1):
            at = (table, rule.name, number)
            assert (case == "") == (at in NOT_SHOWN), at
            wanted = SHOWN_AS.get(at, (rule.name, "failed", condition.fault))
            assert not case or wanted in list_failures(case), at
            if "the fault is the task's" in f"{condition.holds} {condition.where}":
                task = TASK_TOO[rule.name, number]
                assert (rule.name, "failed", "task") in list_failures(task), at


def test_every_row_about_tiles_has_a_case_that_breaks_it() -> None:
    page = (VECTORS.parent.parent / "docs" / "tiling.md").read_text()
    section = page.split("\n## 7. ")[1].split("\n## 8. ")[0]
    rows = re.findall(r"(?m)^\| (\d+) \|.*\| (.*?) \| (.*?) \|$", section)
    conditions = re.findall(r"(?m)^(\d)\. ", section)
    assert [number for number, _, _ in rows] == [str(i) for i in range(1, 14)]
    numbers = {number for number, _, _ in rows} | {f"13.{number}" for number in conditions}
    assert numbers == TILES.keys() | TILES_NOT_SHOWN.keys()
    for number, fault, place in rows:
        if number not in TILES:
            continue
        case = TILES[number]
        (path,) = [path for path in CASES if path.parent.name == case]
        check = read(path)["checks"][-1]
        assert (check["name"], check["status"]) == ("tiles", "failed"), number
        assert check["fault"] in fault, number
        assert place == "the file" or f"`{check['place']}`" in place, number
    for number in conditions:
        if f"13.{number}" in TILES:
            assert list_failures(TILES[f"13.{number}"]) == [("tiles", "failed", "nobody")]


def test_cases_are_enough() -> None:
    """Every check ends in one of them; a third is kept."""
    assert len(CASES) > 70
    ended = {check["name"] for path in CASES for check in read(path)["checks"]}
    assert {*ORDER, *BY_PROOFS} == ended
    kept = [path for path in CASES if path.parent.parent.name == "kept"]
    assert abs(3 * len(kept) - len(CASES)) <= 2


def test_no_place_is_the_readers_own() -> None:
    """Whoever has run, store and traces elsewhere reports the same places."""
    places = [check["place"] for path in CASES for check in read(path)["checks"]]
    assert not [place for place in places if place.startswith(("/", "file:"))]
    assert {place for place in places if place.startswith("traces/")}
