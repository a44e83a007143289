"""The examples run as their pages say, and come to what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vtrain import _core
from vtrain.dispute.statement import decode_ruling

pytestmark = pytest.mark.slow


def run(repository: Path, script: str, *arguments: object) -> str:
    """What an example prints; it must end by itself and well."""
    command = [sys.executable, repository / "examples" / script, *arguments]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_dispute_over_http_finds_the_cheat(repository: Path, tmp_path: Path) -> None:
    statement = tmp_path / "statement.cbor"
    out = run(repository, "dispute/run.py", "--statement", statement)
    place = r"step 87, node 40, chunk \d+, element (\d+), block (\d+)"
    fell = re.search(rf"(?m)^The solver's claim fell: refuted at {place}$", out)
    assert fell, out
    assert "That node is 'fc1/acc/grad_b', a matmul of shape (16, 784)." in out
    assert "What stands is the root of the honest run." in out
    assert "replayed here: the same verdict." in out
    ruling = decode_ruling(_core.referee_judge(statement.read_bytes()))
    assert sum(ruling.right) == 1
    element, block = fell.groups()
    what = f"node fc1/acc/grad_b (matmul) element {element} block {block} of {ruling.blocks} step 0"
    assert ruling.what == what
    assert f"judged     {what}" in out


def test_a_market_settles_by_verdicts(repository: Path) -> None:
    out = run(repository, "marketplace/three_deliveries.py")
    ledgers = [
        {name: int(amount) for name, amount in re.findall(r"(\w+) (\d+)", line)}
        for line in out.splitlines()
        if line.startswith("   client ")
    ]
    assert all(sum(ledger.values()) == 2500 and ledger["escrow"] == 0 for ledger in ledgers)
    begin, believed, attacked, false = ledgers
    assert begin["solver"] == begin["client"] == 500
    assert (believed["solver"], believed["client"]) == (600, 400)
    assert attacked["solver"] > believed["solver"] + 100 - 1
    assert attacked["mallory"] < 500 > attacked["trudy"]
    assert attacked["alice"] == 500
    assert false["client"] == attacked["client"]
    assert false["solver"] < attacked["solver"] - 49
    assert false["alice"] >= 550
    assert false["trudy"] < attacked["trudy"]
    assert "fell: refuted at step 7," in out


def test_the_python_api(repository: Path) -> None:
    out = run(repository, "python_api.py")
    assert "three stretches replayed: verified" in out
    assert "one bit of the log flipped: inconclusive" in out
