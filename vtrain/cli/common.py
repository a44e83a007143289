"""What the commands share: errors to exit codes, output as text or JSON, progress on a terminal."""

from __future__ import annotations

import os
import re
import shlex
import signal
import string
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from vtrain.cli import EXIT_INCONCLUSIVE, EXIT_USAGE, echo, find_lack, print_error, say
from vtrain.errors import (
    DataError,
    ModelError,
    RunError,
    StorageError,
    TaskError,
    VtrainError,
    VtrainWarning,
)
from vtrain.printable import make_printable

if TYPE_CHECKING:
    from rich.console import Console

    from vtrain.train.saturation import SiteSaturation

EXIT_TERMINATED = 128 + signal.SIGTERM

_INCONCLUSIVE = frozenset(
    {"busy", "device", "kernel", "missing-extra", "resources", "service-fault"}
)
"""Codes of errors that are nobody's bad input: a service is away or lies, or this machine cannot do
it: an extra, a driver, a GPU or memory is missing, a GPU fails."""

Progress = Callable[[str, int, int], None]
"""(what is being done, how much is done, of how much)"""


class VtrainCommand(click.Command):
    """A command whose VtrainError becomes one line on stderr and an exit code.

    With ``--json`` the error is also an object on stdout, so that a program reads one format.
    Warnings of vtrain's own are a line each, and :func:`list_warnings` has them.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _show_warnings(ctx.meta.setdefault(_WARNINGS, [])):
                return super().invoke(ctx)
        except VtrainError as error:
            say(ctx.command_path, [str(error), *getattr(error, "__notes__", ())])
            if ctx.params.get("as_json"):
                message = "; ".join((error.message, *getattr(error, "__notes__", ())))
                print_error(error.code, error.fault, message, error.where)
            lacks = error.code in _INCONCLUSIVE or find_lack(error)
            return EXIT_INCONCLUSIVE if lacks else EXIT_USAGE


_WARNINGS = "vtrain.warnings"


@contextmanager
def _show_warnings(shown: list[str]) -> Iterator[None]:
    """Every VtrainWarning as a line on stderr, without the place in the sources that Python adds;
    its text goes into ``shown``."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", VtrainWarning)
        others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, VtrainWarning):
                others(message, category, filename, lineno, file, line)
                return
            shown.append(make_printable(str(message)))
            echo(f"warning: {shown[-1]}", err=True)

        warnings.showwarning = show
        yield


def list_warnings() -> list[str]:
    """Texts of the warnings that the command under way has shown."""
    return list(click.get_current_context().meta[_WARNINGS])


def list_saturation(sites: Iterable[SiteSaturation]) -> list[dict[str, str | int | float]]:
    """Sites with their counts and rates as JSON has them."""
    return [{"site": site.site, "count": site.count, "ppm": round(site.ppm, 3)} for site in sites]


class TerminatedError(KeyboardInterrupt):
    """The process was told to end (SIGTERM)."""


class CleanCommand(VtrainCommand):
    """A command that SIGTERM interrupts as Ctrl-C does, so that it cleans up: exit code 143.

    By default the signal ends a process where it is, and what it made for a while stays behind.
    """

    def invoke(self, ctx: click.Context) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return super().invoke(ctx)  # Python has signals in the main thread alone
        before = signal.signal(signal.SIGTERM, _terminate)
        try:
            return super().invoke(ctx)
        except TerminatedError as error:
            notes = getattr(error, "__notes__", ())
            say("vtrain", ["terminated", *notes])
            if ctx.params.get("as_json"):
                print_error("terminated", "nobody", "; ".join(("terminated", *notes)), "")
            return EXIT_TERMINATED
        finally:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _terminate(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another must not disturb the cleaning up
    raise TerminatedError


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
engine_option = click.option(
    "--engine",
    type=click.Choice(["auto", "cpu", "cuda", "numpy"]),
    default="auto",
    show_default=True,
    help="Which engine computes the steps; all give the same bits. auto: cuda where there is a "
    "GPU that can be used, else cpu.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    help="Threads to use, at most 64 or four a core; 0 takes every core.",
)

accumulate_option = click.option(
    "--accumulate",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Do each batch in N equal parts and add their gradients up: less memory, the same bits.",
)
recompute_option = click.option(
    "--recompute",
    is_flag=True,
    help="Compute the forward pass again for the backward pass instead of keeping its values: less "
    "memory, more time, the same bits.",
)


def existing_folder(name: str) -> Callable[[Any], Any]:
    """An argument that is an existing folder."""
    return click.argument(name, type=click.Path(exists=True, file_okay=False, path_type=Path))


class RunPlace(click.ParamType["Path | str"]):
    """A run: an existing folder, or the URL of a store in which it was published."""

    name = "run"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        if isinstance(value, str) and "://" in value:
            return value
        kind = click.Path(exists=True, file_okay=False, path_type=Path)
        return Path(kind.convert(value, param, ctx))


class StoreOption(click.ParamType[tuple[str, str]]):
    """KEY=VALUE."""

    name = "option"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, rest = value.partition("=")
        if not equals or not re.fullmatch("[a-z][a-z0-9_]*", key):
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        return key, rest


store_option = click.option(
    "--store-option",
    "store_options",
    type=StoreOption(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Of an object store, as obstore has it, such as endpoint=https://HOST or region=R; may be "
    "given several times.  Keys come from where your other tools have them.",
)


def require_new(path: Path) -> None:
    """RunError where something is there already: what a command calls new replaces nothing."""
    if os.path.lexists(path):
        raise RunError("exists already, and is not replaced: name a new file", where=str(path))


def existing_file(name: str) -> Callable[[Any], Any]:
    """An argument that is an existing file."""
    return click.argument(name, type=click.Path(exists=True, dir_okay=False, path_type=Path))


class HexBytes(click.ParamType[bytes]):
    """Bytes given in hexadecimal, ``least`` to ``most`` of them."""

    name = "hex"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        if isinstance(value, bytes):
            return value
        digits = value.removeprefix("0x")
        wanted = f"{self._least}" if self._least == self._most else f"{self._least} to {self._most}"
        try:
            data = bytes.fromhex(digits)
        except ValueError:
            if set(digits) <= set(string.hexdigits):
                message = f"{value!r} has an odd number of hexadecimal digits, {len(digits)}"
                message += f": {wanted} bytes are asked for, of two digits each"
                self.fail(message, param, ctx)
            self.fail(f"{value!r} is not hexadecimal", param, ctx)
        if not self._least <= len(data) <= self._most:
            message = f"needs {wanted} bytes, has {len(data)}: two hexadecimal digits are a byte"
            self.fail(message, param, ctx)
        return data


class Share(click.ParamType["Fraction"]):
    """A number above 0 and at most 1, exactly: 0.99, 99% or 1/100."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fraction:
        if isinstance(value, Fraction):
            return value
        text, share = value.strip(), Fraction(0)
        if re.fullmatch(r"[0-9]{1,20}(?:\.[0-9]{1,20}|/[0-9]{1,20})?%?", text):
            with suppress(ZeroDivisionError):
                share = Fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if not 0 < share <= 1:
            message = f"{value!r} is no number above 0 and at most 1, such as 0.99 or 99%"
            self.fail(message, param, ctx)
        return share


def existing_path(option: str, text: str) -> Callable[[Any], Any]:
    """An option that names an existing file."""
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option(option, type=kind, metavar="FILE", help=text)


def token_options(command: Any) -> Any:
    """The options that date a claim: a token, its authority's root certificates, a chain."""
    for option in (
        existing_path(
            "--chain",
            "Of a beacon's chain that is not known here: what a relay serves as /CHAIN/info.",
        ),
        existing_path(
            "--authority",
            "Root certificates (PEM, DER) of the time-stamping authority that you trust.",
        ),
        existing_path(
            "--token",
            "Response of a time-stamping authority (RFC 3161) to the request of `vtrain claim "
            "--request`: it proves when the claim existed.",
        ),
    ):
        command = option(command)
    return command


def count(number: int, thing: str) -> str:
    """A number of things: "1 proof", "2 proofs"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def make_console() -> Console:
    """A console on stdout that colours nothing by itself, and wraps on a terminal alone."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def print_styled(console: Console, text: str, style: str = "") -> None:
    """Print a line of any text on a console, in a style of ours; it is not wrapped."""
    from rich.text import Text

    console.print(Text(make_printable(text), style), soft_wrap=True)


def print_title(console: Console, text: str) -> None:
    """Print a heading: a ruled line on a terminal, elsewhere a line without ornament."""
    if console.is_terminal:
        console.rule(f"[bold]{make_printable(text)}")
    else:
        console.print()
        print_styled(console, text)


_WIDEST_LABEL: Final = 60


def print_pairs(pairs: Mapping[str, object]) -> None:
    """Print labels and values, one pair a line."""
    width = min(_WIDEST_LABEL, max(map(len, pairs), default=0))
    for label, value in pairs.items():
        echo(f"{label:<{width}}  {value}")


@contextmanager
def show_progress(*, lines: bool = False) -> Iterator[Progress]:
    """Progress bars on stderr, one for each thing being done; nothing when that is no terminal.

    "step 5: prove" is the stage "prove" of the thing "step 5".  With ``lines``, where there is no
    terminal, a line for each stage that begins, with the seconds since the start.  Whoever
    interrupts it is told how far it was.
    """
    reached = ""
    with _show_stages(lines=lines) as show:

        def remember(what: str, done: int, total: int) -> None:
            nonlocal reached
            reached = f"{what}, {done} of {total}"
            show(what, done, total)

        with noting_interrupts(lambda: reached and f"it was at: {reached}"):
            yield remember


@contextmanager
def naming_option(option: str, *places: object) -> Iterator[None]:
    """A StorageError at one of ``places``, or below, has a note of the option that chooses it.

    Places are paths, or what an error has instead ("db", "database", "temporary folder"); None, for
    an option that was not given, is no place.
    """
    named = [str(place) for place in places if place is not None]
    try:
        yield
    except StorageError as error:
        if any(f"{error.where}/".startswith((f"{place}/", f"{place} ")) for place in named):
            error.add_note(f"give another place by {option}")
        raise


@contextmanager
def naming_lint(task: Path) -> Iterator[None]:
    """An error of a task file has a note of the command that lists all of its problems: this one is
    the first alone.  A file that is no TOML has no others, and exponents come last."""
    try:
        yield
    except (TaskError, ModelError, DataError) as error:
        if error.where != str(task) and not error.where.startswith("exponents."):
            command = f"vtrain task check --lint {shlex.quote(str(task))}"
            error.add_note(f"`{command}` lists every problem of the task, each with its fix")
        raise


@contextmanager
def noting_interrupts(describe: Callable[[], str]) -> Iterator[None]:
    """Have an interrupt carry a note of how far things were."""
    try:
        yield
    except KeyboardInterrupt as error:
        if note := describe():
            error.add_note(note)
        raise


@contextmanager
def _show_stages(*, lines: bool) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield _StageLines() if lines else lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            thing = what.partition(": ")[0]
            if thing not in tasks:
                tasks[thing] = bars.add_task("", total=total)
            bars.update(tasks[thing], description=make_printable(what), completed=done, total=total)

        yield show


class _StageLines:
    """A line on stderr for each stage that begins: what a log of a long command needs."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._last:
            self._last = what
            echo(f"{time.monotonic() - self._start:8.1f} s  {what}", err=True)
