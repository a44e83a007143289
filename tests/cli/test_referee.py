"""``vtrain referee``: rulings, refusals and garbage, as the command says them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vtrain import cli
from vtrain.cli.referee import SIDES
from vtrain.limits import LIMITS

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.run(["referee", *map(str, arguments)])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def entry(repository: Path) -> dict[str, Any]:
    entries = json.loads((repository / "tests/vectors/statements.json").read_text())
    return next(entry for entry in entries if entry["name"] == "second block of a matmul")


@pytest.fixture
def statement(entry: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "statement.cbor"
    path.write_bytes(bytes.fromhex(entry["statement"]))
    return path


def splice(statement: Path, change: dict[str, Any]) -> None:
    data = statement.read_bytes()
    middle = bytes.fromhex(change["middle"])
    statement.write_bytes(data[: change["head"]] + middle + data[len(data) - change["tail"] :])


def test_ruling(call: Call, entry: dict[str, Any], statement: Path) -> None:
    code, out, err = call(statement)
    assert (code, err) == (0, "")
    (right,) = (SIDES[side] for side in (0, 1) if entry["ruling"]["right"][side])
    assert out.splitlines() == [
        f"judged     {entry['ruling']['what']}",
        "counted    from 0: blocks 0 to 1, step 0 is the trace's first",
        f"comes out  {entry['ruling']['after']}",
        f"right      {right}",
    ]


def test_ruling_as_json(call: Call, entry: dict[str, Any], statement: Path) -> None:
    code, out, err = call(statement, "--json")
    assert (code, err) == (0, "")
    ruling = entry["ruling"]
    assert json.loads(out) == {
        **ruling,
        "right": [bool(side) for side in ruling["right"]],
        "sides": list(SIDES),
    }


def test_neither_is_right(call: Call, entry: dict[str, Any], statement: Path) -> None:
    (change,) = (change for change in entry["also"] if change["right"] == [0, 0])
    splice(statement, change)
    code, out, _ = call(statement)
    assert code == 0
    assert out.splitlines()[-1] == "right      neither claim"


def test_refused_statement(call: Call, entry: dict[str, Any], statement: Path) -> None:
    change = next(c for c in entry["refused"] if c["where"] == "inputs[1].chunks[0]")
    splice(statement, change)
    code, out, err = call(statement, "--json")
    assert code == 2
    error = json.loads(out)["error"]
    assert (error["code"], error["where"]) == ("refusal", "inputs[1].chunks[0]")
    assert err.startswith("vtrain referee: inputs[1].chunks[0]: the opening does not verify")


@pytest.mark.parametrize(
    ("garbage", "offset"), [(b"", 0), (b"\xff" * 40, 0), (b"no statement", 0), (bytes(3000), 1)]
)
def test_garbage(call: Call, tmp_path: Path, garbage: bytes, offset: int) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(garbage)
    code, out, err = call(path)
    assert (code, out) == (2, "")
    assert err.startswith(f"vtrain referee: byte {offset}: ")
    assert len(err.splitlines()) == 1


def test_a_file_that_is_too_long(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.truncate(LIMITS.statement_bytes + 1)
    code, out, err = call(path)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_no_file(call: Call, tmp_path: Path) -> None:
    code, out, _ = call(tmp_path / "none")
    assert (code, out) == (2, "")
