"""What the private audits in this folder share: commands in fresh processes, and what is public."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vtrain.errors import RunError, VtrainError

VTRAIN = Path(sys.executable).with_name("vtrain")
PUBLIC = ("task.cbor", "graph.cbor", "log.bin", "kzg.bin", "claim.cbor")
"""What a solver publishes for a private audit, beside proofs/."""


def call(*arguments: object, code: int = 0) -> dict[str, Any]:
    """The answer of a command of vtrain, in a process of its own; RunError unless it exits with
    ``code``."""
    command = [str(VTRAIN), *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise RunError(f"exit code {done.returncode}: {done.stderr}", where=" ".join(command))
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@contextmanager
def stage(party: str, what: str) -> Iterator[None]:
    """Say who does what, and how long it took."""
    print(f"{party:<8}  {what}", flush=True)
    started = time.monotonic()
    yield
    print(f"{'':8}  {time.monotonic() - started:.0f} s", flush=True)


def say(what: str, party: str = "") -> None:
    """A line of what came of it."""
    print(f"{party:<8}  {what}", flush=True)


def keep_secrets(run: Path, other: Path) -> None:
    """Let a new run in the folder ``other`` be hidden by the secrets of ``run``."""
    other.mkdir()
    shutil.copy(run / "hiding.key", other)


def publish(run: Path, folder: Path) -> int:
    """Hand the auditor what is public of a run, proofs with it; how many bytes without them."""
    folder.mkdir(exist_ok=True)
    for name in PUBLIC:
        shutil.copy(run / name, folder / name)
    if (run / "proofs").exists():
        files = list((run / "proofs").glob("*.cbor"))
        (folder / "proofs").mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, folder / "proofs")
    return sum((folder / name).stat().st_size for name in PUBLIC)


def keep_claim(folder: Path) -> Path:
    """As the auditor, keep the claim of a run: before anything is drawn, and for good."""
    kept = folder.with_name(f"{folder.name}.claim")
    call("claim", folder, "--out", kept)
    return kept


def find_refusal(report: dict[str, Any], reason: str) -> str:
    """What a report has against a run: one check that failed, for this reason; else RunError."""
    failed = [check for check in report["checks"] if check["status"] == "failed"]
    shown = "; ".join(f"{check['where']}: {check['detail']}" for check in failed)
    if len(failed) != 1 or reason not in shown:
        raise RunError(f"is not refused because {reason}: {shown}", where=report["verdict"])
    return shown


def play_all(play: Callable[[Path], None]) -> None:
    """Call ``play`` with a folder that goes away, and say how long it took; exits on errors."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vtrain-zk-") as folder:
        try:
            play(Path(folder))
        except VtrainError as error:
            sys.exit(str(error))
    print(f"{time.monotonic() - started:.0f} s in all")
