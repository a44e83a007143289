"""What a release leaves behind: ``python -m tests.releases.make`` writes the folder of its version.

Later releases verify it for ever, so a folder that is there is never written again.  Under ``runs``
are run directories, and what ``vtrain verify`` must say of them; ``statements.json``, ``games`` and
``proofs`` have the forms of ``tests/vectors``; ``report.json`` is a signed report, with its
auditor's key in ``auditor.txt``.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.audit.runs import KEY, read_leaves, sign_again, write_leaves
from tests.tasks import make_tiny_task
from tests.vectors.files import format_cases
from tests.vectors.generate_audit import audit, list_checks
from vtrain import __version__
from vtrain.attest.envelope import encode_envelope, make_statement, sign_payload
from vtrain.attest.keys import public_key
from vtrain.audit.verify import verify
from vtrain.report.document import (
    PREDICATE_TYPE,
    describe_subject,
    document_to_dict,
    make_document,
)
from vtrain.train.runner import train
from vtrain.wire.record import decode_record, encode_record
from vtrain.wire.task import LAW_VERSION

HERE: Final = Path(__file__).parent
VECTORS: Final = HERE.parent / "vectors"
RUNS: Final = (
    ("mlp", "sgd"),
    ("cnn", "sgd"),
    ("gpt", "adamw"),
    ("llama", "lion"),
    ("packed gpt", "adamw"),
)
GAMES: Final = ("product", "four", "first-state", "silent-terms", "samples")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def make_run(folder: Path, kind: str, optimizer: str, *, false_step: int = 0) -> None:
    """A run directory, and beside it what an audit of all steps says; of ``false_step`` the record
    has a false loss, under the solver's signature."""
    task = make_tiny_task(kind, optimizer=optimizer, steps=6, commit_every=2, checkpoint_every=4)
    run = folder / "run"
    train(task, run, key=KEY)
    if false_step:
        leaves = read_leaves(run)
        record = decode_record(leaves[false_step - 1])
        leaves[false_step - 1] = encode_record(replace(record, loss=record.loss + 1))
        write_leaves(run, leaves)
        sign_again(run, KEY)
    arguments = ["--all", "--task-id", task.task_id.hex(), "--solver", public_key(KEY).hex()]
    expected = {"arguments": arguments, **judge(folder, arguments)}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def judge(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """What must stay as it is of the report on ``folder / "run"``."""
    report = audit(folder, arguments)
    kept = ("verdict", "exit_code", "task_id", "root", "steps", "replayed")
    return {**{key: report[key] for key in kept}, "checks": list_checks(report, folder)}


def make_report(run: Path) -> bytes:
    """The signed report on a run, of a date that anybody knows."""
    date = datetime(2026, 11, 26, 12, tzinfo=UTC)
    report = verify(run, all_=True)
    document = make_document(report, date, __version__, LAW_VERSION)
    name, digests = describe_subject(report)
    payload = make_statement(name, digests, PREDICATE_TYPE, document_to_dict(document))
    return encode_envelope(sign_payload(payload, KEY))


def write(out: Path) -> None:
    for kind, optimizer in RUNS:
        make_run(out / "runs" / f"{kind.replace(' ', '-')}-{optimizer}", kind, optimizer)
    make_run(out / "runs" / "false-loss", "mlp", "sgd", false_step=3)
    (out / "report.json").write_bytes(make_report(out / "runs" / "mlp-sgd" / "run"))
    (out / "auditor.txt").write_text(public_key(KEY).hex() + "\n")
    entries = read(VECTORS / "statements.json")
    kept = [{key: entry[key] for key in ("name", "statement", "ruling")} for entry in entries]
    (out / "statements.json").write_text(format_cases({"statements": kept}))
    games, proofs = out / "games", out / "proofs"
    games.mkdir()
    for name in ("graph", *(f"game-{game}" for game in GAMES)):
        shutil.copyfile(VECTORS / "games" / f"{name}.json", games / f"{name}.json")
    proofs.mkdir()
    content = read(VECTORS / "proofs.json")
    for case in content["cases"]:
        name = f"{case['circuit_name']}.vk"
        shutil.copyfile(VECTORS / "proofs" / name, proofs / name)
    (proofs / "proofs.json").write_text(format_cases(content))


def main() -> int:
    out = HERE / __version__
    if out.exists():
        sys.stderr.write(f"{out} is there: what was released stays as it is\n")
        return 1
    with TemporaryDirectory(dir=HERE) as scratch:
        whole = Path(scratch) / "whole"
        whole.mkdir()
        write(whole)
        whole.rename(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
