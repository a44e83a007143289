#!/usr/bin/env python3
"""A validator for BOINC's script_validator: whether a job's run is what its task says.

Called with the output file of one job it says whether that is valid, called with those of two jobs
whether they are equivalent; exit code 0 is yes.  Each output file is a tar archive of a run
directory.  What was agreed on is in vtrain_validate.json beside this script:

    {"task_id": "<64 hex digits>", "segments": 3, "most_bytes": 1000000000}
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import vtrain
from vtrain.errors import RunError, VtrainError
from vtrain.wire.report import Report

MOST_FILES = 10_000


def unpack(archive: Path, folder: Path, most_bytes: int) -> None:
    """The files of an archive that a stranger made; RunError for what is no archive of a run."""
    left, files = most_bytes, 0
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                # A folder may say that it has fewer bytes than none, to make room for a file.
                left, files = left - abs(member.size), files + 1
                if left < 0 or files > MOST_FILES:
                    raise RunError(f"has more than {most_bytes} bytes or {MOST_FILES} files")
                if not (member.isfile() or member.isdir()):
                    raise RunError("has a link, or what is no file", where=member.name[:200])
                tar.extract(member, folder, filter="data")
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise RunError(f"is no archive of a run: {error}", where=str(archive)) from None


def check(archive: Path, settings: dict[str, object], segments: int) -> Report:
    """The audit of the run in an archive: its structure, and so many segments done again."""
    with tempfile.TemporaryDirectory() as name:
        unpack(archive, Path(name), int(str(settings["most_bytes"])))
        task_id = bytes.fromhex(str(settings["task_id"]))
        return vtrain.verify(name, task_id=task_id, samples=segments)


def main(files: list[str]) -> int:
    """0 for a valid output, and for two that are equivalent."""
    settings = json.loads(Path(__file__).with_suffix(".json").read_text())
    try:
        if len(files) == 1:
            report = check(Path(files[0]), settings, int(settings["segments"]))
            reason = report.reason
            said = report.verdict if reason is None else f"{report.verdict}: {reason.detail}"
            print(f"{files[0]}: {said}", file=sys.stderr)
            return 0 if report else 1
        if len(files) == 2:
            # Both were found valid: two honest runs of one task have the same log, bit for bit.
            first, second = (check(Path(file), settings, 0) for file in files)
            same = bool(first and second) and (first.steps, first.log_root) == (
                second.steps,
                second.log_root,
            )
            return 0 if same else 1
        print(__doc__, file=sys.stderr)
        return 2
    except VtrainError as error:
        print(f"{' '.join(files)}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
