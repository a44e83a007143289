"""Tests marked ``gpu`` run each in a process of its own.

An illegal address destroys the context of its process, and a kernel that hangs is waited for by
whatever touches the device: one such test must not fail, or keep from ending, all that follow.  A
process that has not ended after its seconds (``@pytest.mark.gpu(seconds=...)``) is ended with all
that it started, and its kernels with it.

All of a run share one folder: what was compiled and what passed the self-check is done once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SECONDS = 120.0
"""Of a test that does not say another limit: compilers run in the first ones."""
FOLDER: Path | None = None
"""In the process of a test: where kernels and verdicts of the self-check are kept."""
TAIL = 4000
_SHARED = pytest.StashKey[Path]()
_CHILD = """
import sys
from pathlib import Path
from tests.cuda import alone
sys.exit(alone.run_here(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
"""


def home(config: pytest.Config) -> Path:
    """The folder that all tests of this run share; deleted at its end."""
    if _SHARED not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="vtrain-gpu-")
        config.add_cleanup(folder.cleanup)
        config.stash[_SHARED] = Path(folder.name)
    return config.stash[_SHARED]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Takes tests that are marked and not skipped; others go their usual way."""
    marker = item.get_closest_marker("gpu")
    if marker is None or FOLDER is not None or item.get_closest_marker("skip") is not None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in run_alone(item, float(marker.kwargs.get("seconds", SECONDS))):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def run_alone(item: pytest.Item, seconds: float) -> list[pytest.TestReport]:
    """The reports of a test from a process of its own; a failure where it did not end."""
    config, folder = item.config, home(item.config)
    found = folder / "reports.jsonl"
    found.unlink(missing_ok=True)
    _, _, inside = item.nodeid.partition("::")
    ini = [] if config.inipath is None else ["-c", str(config.inipath)]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(config.rootpath), *ini]
    command = [sys.executable, "-c", _CHILD, str(folder), str(found), *options]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*command, f"{item.path}::{inside}"],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = f"exit code {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            ended = f"no end after {seconds:.0f} seconds"
        finally:
            # Whatever it started, too.
            _kill(process)
        output.seek(0)
        said = output.read().decode(errors="replace")[-TAIL:]
    reports = _read_reports(config, found)
    if not any(report.when == "teardown" for report in reports):
        reports.append(_make_failure(item, f"its process: {ended}\n{said}"))
    return reports


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _read_reports(config: pytest.Config, path: Path) -> list[pytest.TestReport]:
    lines = path.read_text().splitlines() if path.exists() else []
    reports = []
    for line in lines:
        data = json.loads(line)
        if isinstance(data["longrepr"], list):  # where it was skipped, which JSON has no tuple for
            data["longrepr"] = tuple(data["longrepr"])
        report = config.hook.pytest_report_from_serializable(config=config, data=data)
        reports.append(report)
    return reports


def _make_failure(item: pytest.Item, why: str) -> pytest.TestReport:
    return pytest.TestReport(
        item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "failed", why, "call"
    )


class _Reporter:
    """Writes each report when it is made: what follows may be the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._config: pytest.Config | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config: Any = self._config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        with self._path.open("a") as file:
            file.write(f"{json.dumps(data, default=str)}\n")


def run_here(folder: Path, reports: Path, arguments: Sequence[str]) -> int:
    """pytest in the process of a test, which keeps its reports."""
    global FOLDER  # noqa: PLW0603 - set once, before any test is imported
    FOLDER = folder / ".cache" / "vtrain" / "cuda"
    FOLDER.mkdir(parents=True, exist_ok=True)
    return int(pytest.main(list(arguments), plugins=[_Reporter(reports)]))
