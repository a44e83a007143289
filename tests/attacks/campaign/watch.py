"""Commands in processes of their own, watched: how long, how large, what they said, how they ended.

A process is forked.  It then either calls the command line in place (imported once, before: quick)
or executes a fresh interpreter.  The latter writes a mark into a pipe as its first deed, before it
imports anything: without the mark Python itself could not start, and nothing is vtrain's fault.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LIMIT_SECONDS: Final = 10.0
LIMIT_MEMORY: Final = 1 << 30
STOP_MEMORY: Final = 3 << 29
"""What takes more is ended at once: the machine is not the experiment."""
MAX_OUTPUT: Final = 1 << 22
MARK_HANDLE: Final = 3
LAUNCH: Final = (
    f"import os; os.write({MARK_HANDLE}, b'1'); os.close({MARK_HANDLE}); "
    "from vtrain.cli import main; main()"
)
ROOT: Final = Path(__file__).resolve().parents[3]

Auditor = Callable[[Sequence[str]], None]
"""Does what the command with these arguments does, and ends like it (SystemExit)."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended: ``code`` as of a shell (negative: the signal), ``memory`` the bytes
    by which its peak is above what it was forked with."""

    code: int
    out: bytes
    err: bytes
    seconds: float
    memory: int
    hung: bool = False
    bloated: bool = False
    started: bool = True

    @property
    def report(self) -> dict[str, Any] | None:
        """The one JSON object on stdout, if that is what is there."""
        try:
            value = json.loads(self.out)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    @property
    def verdict(self) -> str:
        """verified, fraud, inconclusive, conditional; error; or none."""
        report = self.report or {}
        if "error" in report:
            return "error"
        verdict = report.get("verdict")
        return verdict if isinstance(verdict, str) else "none"


def call_command_line(arguments: Sequence[str]) -> None:
    """What the installed command does."""
    from vtrain.cli import main

    sys.argv = ["vtrain", *arguments]
    main()


class Child:
    """A command under way."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        auditor: Auditor | None = None,
        prepare: Callable[[], None] = lambda: None,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """``auditor`` is called in a fork of this process; without it a new interpreter starts.

        ``prepare`` is called in the new process before that: limits are set there.
        """
        self._pipes = {name: os.pipe() for name in ("out", "err", "mark")}
        self._began = time.monotonic()
        # A fork begins with the memory of this process, and its peak is never less.
        self._inherited = _measure_memory(os.getpid())
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(arguments, auditor, prepare, environment or {}, folder)
        for _, writer in self._pipes.values():
            os.close(writer)
        for reader, _ in self._pipes.values():
            os.set_blocking(reader, False)
        self._data = {name: bytearray() for name in self._pipes}
        self._direct = auditor is not None

    def _become(
        self,
        arguments: Sequence[str],
        auditor: Auditor | None,
        prepare: Callable[[], None],
        environment: Mapping[str, str],
        folder: Path | None,
    ) -> None:
        code = 120
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            handles = [null, *(self._pipes[name][1] for name in ("out", "err", "mark"))]
            high = [os.dup(handle) for handle in handles]
            for number, handle in enumerate(high):
                os.dup2(handle, number)
            os.closerange(MARK_HANDLE + 1, max(high) + 1)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.environ.update(environment)
            if folder is not None:
                os.chdir(folder)
            if auditor is None:
                prepare()
                interpreter = [sys.executable, "-c", LAUNCH, *arguments]
                os.execve(sys.executable, interpreter, os.environ)  # noqa: S606 - no shell wanted
            os.close(MARK_HANDLE)
            # The streams of before know of other files: of ones perhaps that can be sought in.
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            prepare()
            code = _call(auditor, arguments)
        except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on
            with suppress(BaseException):
                traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
            with suppress(BaseException):
                sys.stderr.flush()
            os._exit(code)

    def send(self, number: int) -> None:
        """Send a signal, if there still is somebody."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(
        self, limit: float = LIMIT_SECONDS, until: Callable[[float], bool] = lambda _: False
    ) -> Outcome:
        """Wait for the end, for ``limit`` seconds at most.

        ``until`` is called now and then with the seconds gone by; it does its part of an attack.
        """
        hung = bloated = False
        pause, status, usage = 0.001, 0, None
        while usage is None:
            self._drain(pause)
            pause = min(pause * 1.5, 0.02)
            done, status, found = os.wait4(self.pid, os.WNOHANG)
            gone = time.monotonic() - self._began
            if done:
                usage = found
                break
            until(gone)
            hung = gone > limit
            bloated = _measure_memory(self.pid) - self._inherited > STOP_MEMORY
            if hung or bloated:
                self._kill()
                _, status, usage = os.wait4(self.pid, 0)
        seconds = time.monotonic() - self._began
        self._kill()  # what it left behind
        self._drain(0)
        for reader, _ in self._pipes.values():
            os.close(reader)
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Outcome(
            code=os.waitstatus_to_exitcode(status),
            out=bytes(self._data["out"]),
            err=bytes(self._data["err"]),
            seconds=seconds,
            memory=max(0, peak - self._inherited),
            hung=hung,
            bloated=bloated,
            started=self._direct or bool(self._data["mark"]),
        )

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _drain(self, pause: float) -> None:
        readers = {reader: name for name, (reader, _) in self._pipes.items()}
        ready, _, _ = select.select(list(readers), [], [], pause)
        full = False
        for reader in ready:
            data = self._data[readers[reader]]
            with suppress(BlockingIOError):
                block = os.read(reader, 1 << 16)
                full |= bool(block)
                if len(data) < MAX_OUTPUT:
                    data += block
        if full:
            self._drain(0)
        elif ready and pause:
            time.sleep(pause)  # closed pipes are always ready


def _call(auditor: Auditor, arguments: Sequence[str]) -> int:
    try:
        auditor(arguments)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - as Python itself ends
        traceback.print_exc()
        return 1
    return 0


def _measure_memory(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * resource.getpagesize() if len(fields) > 1 else 0


def run(arguments: Sequence[str], *, limit: float = LIMIT_SECONDS, **options: Any) -> Outcome:
    """A command from its beginning to its end."""
    return Child(arguments, **options).wait(limit)


def make_environment(folder: Path) -> dict[str, str]:
    """Variables of every command: one thread, a home and temporaries in ``folder``."""
    for name in ("home", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder / "tmp"),
        "XDG_CONFIG_HOME": str(folder / "home"),
    }
