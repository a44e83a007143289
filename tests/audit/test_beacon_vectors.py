"""tests/vectors/beacon.json: rounds of drand, and what they and a token give for a claim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vtrain.attest.timestamp import identify_root, load_roots
from vtrain.audit.beacon import (
    CHAINS,
    BeaconDraw,
    decode_beacon,
    decode_chain,
    draw_from_beacon,
    verify_beacon,
)
from vtrain.errors import BeaconError, TimestampError
from vtrain.spec.commitment import compute_task_id
from vtrain.wire.task import BeaconRule, decode_task

ROOT = Path(__file__).resolve().parents[2]
CONTENT = json.loads((ROOT / "tests" / "vectors" / "beacon.json").read_text())


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def read_rule(rule: dict[str, Any]) -> BeaconRule:
    authorities = tuple(map(bytes.fromhex, rule["authorities"]))
    return BeaconRule(bytes.fromhex(rule["chain"]), rule["delay"], authorities)


def test_the_file_is_what_the_generator_gives() -> None:
    command = [sys.executable, "-m", "tests.vectors.generate_beacon", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", CONTENT["chains"])
def test_chains(name: str) -> None:
    assert decode_chain(encode(CONTENT["chains"][name])) == CHAINS[name]


@pytest.mark.parametrize("case", CONTENT["rounds"], ids=lambda case: case["about"])
def test_rounds(case: dict[str, Any]) -> None:
    chain = CHAINS[case["chain"]]
    if case["randomness"] is None:
        with pytest.raises(BeaconError):
            verify_beacon(chain, decode_beacon(encode(case["round"])))
        return
    found = verify_beacon(chain, decode_beacon(encode(case["round"])))
    assert found.hex() == case["randomness"]


@pytest.mark.parametrize("case", CONTENT["texts"], ids=lambda case: case["about"])
def test_texts(case: dict[str, Any]) -> None:
    if case["holds"]:
        assert decode_beacon(case["text"].encode()) == decode_beacon(encode(CONTENT["round"]))
        return
    with pytest.raises(BeaconError):
        decode_beacon(case["text"].encode())


@pytest.mark.parametrize("case", CONTENT["root_files"], ids=lambda case: case["about"])
def test_root_files(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "roots"
    path.write_bytes(bytes.fromhex(case["file"]))
    if case["roots"] is None:
        with pytest.raises(TimestampError, match="is no certificate"):
            load_roots(path)
        return
    assert [identify_root(root).hex() for root in load_roots(path)] == case["roots"]


def test_the_task() -> None:
    case = CONTENT["task"]
    task = decode_task(bytes.fromhex(case["encoding"]))
    assert compute_task_id(task).hex() == case["task_id"]
    assert task.beacon == read_rule(case)


@pytest.mark.parametrize("case", CONTENT["draws"], ids=lambda case: str(case["token"]))
def test_draws(case: dict[str, Any]) -> None:
    beacon = decode_beacon(encode(CONTENT["round"]))
    given = BeaconDraw(beacon.round, beacon)
    if case["token"] is not None:
        root = bytes.fromhex(CONTENT["roots"][case["root"]])
        token = bytes.fromhex(CONTENT["tokens"][case["token"]])
        given = BeaconDraw(beacon.round, beacon, token, (root,))
    claim, rule = bytes.fromhex(CONTENT["claim"]), read_rule(case["rule"])
    if not case["draws"]:
        with pytest.raises((BeaconError, TimestampError)):
            draw_from_beacon(given, rule, claim, pinned=case["pinned"])
        return
    drawn = draw_from_beacon(given, rule, claim, pinned=case["pinned"])
    assert (drawn.predictable, drawn.chosen) == (case["predictable"], case["chosen"])
    assert drawn.value.hex() == CONTENT["round"]["randomness"]
    assert drawn.beacon is not None
    assert drawn.beacon.at == CONTENT["at"]
    if case["token"] is not None and case["root"] == "clock":
        assert drawn.beacon.authority == CONTENT["authority"]
