"""The referee held to ``tests/vectors/statements.json``."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from vtrain import _core
from vtrain.dispute.statement import decode_ruling
from vtrain.errors import RefusalError

ROOT = Path(__file__).resolve().parents[2]
ENTRIES: list[dict[str, Any]] = json.loads((ROOT / "tests/vectors/statements.json").read_text())


def splice(entry: dict[str, Any], change: dict[str, Any]) -> bytes:
    data = bytes.fromhex(entry["statement"])
    middle = bytes.fromhex(change["middle"])
    return data[: change["head"]] + middle + data[len(data) - change["tail"] :]


def test_file_is_what_the_rules_give() -> None:
    command = [sys.executable, "-m", "tests.vectors.generate_statements", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def check_ruling(entry: dict[str, Any]) -> None:
    """That the referee rules on a statement as it is written beside it."""
    ruling = asdict(decode_ruling(_core.referee_judge(bytes.fromhex(entry["statement"]))))
    wanted = entry["ruling"]
    assert sum(wanted["right"]) == 1
    assert ruling == {
        **wanted,
        "after": bytes.fromhex(wanted["after"]),
        "right": tuple(wanted["right"]),
    }


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_ruling(entry: dict[str, Any]) -> None:
    check_ruling(entry)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_ruling_follows_the_claims(entry: dict[str, Any]) -> None:
    for change in entry["also"]:
        ruling = decode_ruling(_core.referee_judge(splice(entry, change)))
        assert ruling.right == tuple(change["right"])
        assert ruling.after.hex() == entry["ruling"]["after"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_refusals_name_the_part(entry: dict[str, Any]) -> None:
    assert len(entry["refused"]) > 10
    for change in entry["refused"]:
        with pytest.raises(RefusalError) as caught:
            _core.referee_judge(splice(entry, change))
        assert caught.value.where == change["where"]
