"""The ``vtrain`` command: one file a command, imported only when that command is called.

Exit codes are the same everywhere: 0 done or verified, 10 fraud found, 2 bad input or usage, 3
inconclusive, which includes what this machine cannot do (memory, an extra, a driver or a GPU is
missing), 4 verified only under an assumption that the caller did not accept, 130 interrupted, 143
terminated.  1 is left to the unexpected: whatever ends a process may leave a 1 behind, so that it
must not be a verdict.

This module needs nothing but Python itself, so that a machine on which an import fails (for lack of
memory, say) is told so in the form that was asked for.
"""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from vtrain.printable import cut, make_printable

_begun = False
"""Whether the one JSON object of a command is on its way: another is not begun after it."""
_FEW_PROCESSES: Final = 512

EXIT_UNEXPECTED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INCONCLUSIVE: Final = 3
EXIT_INTERRUPTED: Final = 130

COMPLETE: Final = "_VTRAIN_COMPLETE"
"""The variable by which a shell asks click for completions (`vtrain completion`)."""

_LACKING: Final = frozenset(
    {
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.EAGAIN,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
    }
)
"""What the system says when it has no more of something: memory, descriptors, threads, disk."""
_LOADER: Final = ("annot allocate memory", "failed to map segment", "cannot create shared object")
"""What the dynamic loader says when there is no memory for a library."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv`` if None) and return its exit code.

    With ``--json`` every exit but that of a killed process has one JSON object on stdout.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # A stream that the caller closed is None: what is said to it goes nowhere.
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that has no place in its character set
            stream.reconfigure(errors="backslashreplace")
    _spare_threads()
    global _begun  # noqa: PLW0603 - whether stdout has its one object is a matter of the process
    _begun = False
    try:
        from vtrain.cli.root import invoke

        return invoke(words)
    except KeyboardInterrupt as error:
        return _end(words, EXIT_INTERRUPTED, "interrupted", "interrupted", error)
    except SystemExit as error:
        if COMPLETE in os.environ:
            return error.code if isinstance(error.code, int) else 0
        return EXIT_INCONCLUSIVE  # click's answer to a closed pipe: nobody reads the verdict
    except BaseException as error:  # noqa: BLE001 - a panic of the Rust core is no Exception
        if lacking := find_lack(error):
            what = f"this machine has not enough for it: {lacking}"
            return _end(words, EXIT_INCONCLUSIVE, "resources", what, error)
        if not isinstance(error, ImportError | SystemError):  # what a failed import may end in
            for line in traceback.format_exc().splitlines():
                echo(line, err=True)
        text = str(error).strip().partition("\n")[0]
        what = f"{type(error).__name__}: {text}" if text else type(error).__name__
        what += "; this is a defect in vtrain or in its installation, not a verdict"
        return _end(words, EXIT_UNEXPECTED, "unexpected", what, error)


def _spare_threads() -> None:
    """Where address space or processes are limited, numpy's BLAS gets one thread: it takes memory
    for each, and where one does not start it sends itself the signal of Ctrl-C."""
    memory = resource.getrlimit(resource.RLIMIT_AS)[0]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if memory != resource.RLIM_INFINITY or 0 <= processes < _FEW_PROCESSES:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def find_lack(error: BaseException | None) -> str:
    """What the machine had no more of, when that is behind an error; else nothing."""
    while error is not None:
        if isinstance(error, MemoryError):
            return "memory"
        if isinstance(error, OSError) and error.errno in _LACKING:
            return error.strerror or str(error)
        if isinstance(error, RuntimeError) and "start new thread" in str(error):
            return "threads"
        if isinstance(error, ImportError) and any(sign in str(error) for sign in _LOADER):
            return "memory"
        error = error.__cause__ or error.__context__
    return ""


def _end(words: list[str], code: int, name: str, message: str, error: BaseException) -> int:
    """Say how a command ended that did not say so itself."""
    notes = getattr(error, "__notes__", ())
    try:
        say("vtrain", [message, *notes])
        if "--json" in words:
            print_error(name, "nobody", "; ".join((message, *notes)), "")
    except OSError:  # nobody can be told: a full disk, a closed pipe
        sys.stdout = sys.stderr = io.StringIO()
    return code


def echo(text: object = "", *, err: bool = False) -> None:
    """Print a line on stdout, or on stderr: all that a command says goes through here, for
    whatever it quotes may be a stranger's.

    A line of its own, without what a terminal obeys, and of a bounded length.
    """
    stream = sys.stderr if err else sys.stdout
    stream.write(make_printable(str(text)) + "\n")
    stream.flush()


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object, in ASCII: the only one of a command."""
    global _begun  # noqa: PLW0603
    _begun = True
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
    sys.stdout.flush()


def say(command: str, lines: Sequence[str]) -> None:
    """Lines on stderr, each with the name of the command."""
    for line in lines:
        echo(f"{command}: {line}", err=True)


def print_error(code: str, fault: str, message: str, where: str) -> None:
    """Print an error as the JSON object of its command, unless one is on its way already."""
    if _begun:
        return
    error = {"code": code, "fault": fault, "message": cut(message), "where": cut(where)}
    print_json({"error": error})


def main() -> NoReturn:
    """Entry point of the installed command."""
    sys.exit(run())
