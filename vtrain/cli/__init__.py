"""The ``vtrain`` command: one file a command, imported only when that command is called.

Exit codes are the same everywhere: 0 done or verified, 1 fraud found, 2 bad input or usage, 3
inconclusive, which includes what this machine cannot do (an extra, a driver or a GPU is missing, a
GPU fails) and an internal failure: a crash must never look like a verdict.  An interrupted command
exits with 130, a terminated one with 143.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

import click

from vtrain import __version__
from vtrain.cli.common import echo, show_traceback, show_usage_error

EXIT_USAGE: Final = 2
EXIT_INCONCLUSIVE: Final = 3
EXIT_INTERRUPTED: Final = 130

_COMMANDS: Final = {
    "demo": "train, verify and catch three cheats",
    "dispute": "open, join, play and watch a dispute",
    "eval": "loss and accuracy of a checkpoint",
    "export": "the trained model as float ONNX and safetensors",
    "graph": "the step graph in other formats",
    "inspect": "what a run directory says of itself, unverified",
    "key": "make and show solver keys",
    "profile": "calibrate the exponents of a task",
    "prove": "prove steps of a run in zero knowledge",
    "referee": "judge one leaf of a dispute",
    "serve": "host disputes over HTTP",
    "srs": "check and make what proofs rest on",
    "task": "look at a task before anyone signs it",
    "train": "train a task and commit to every step",
    "verify": "check a run, whoever made it",
}
"""Command -> its line of help; ``vtrain.cli.NAME`` holds it under the name ``command``."""


class _LateGroup(click.Group):
    """Imports a command's module when the command is called, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        found = import_module(f"vtrain.cli.{cmd_name}").command
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_LateGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vtrain")
def cli() -> None:
    """Training runs in exact integers, committed to and checkable by anyone.

    Exit codes: 0 done or verified, 1 fraud found, 2 bad input or usage, 3 inconclusive or not
    possible on this machine, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM).
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv`` if None) and return its exit code."""
    code = EXIT_INCONCLUSIVE
    try:
        result = cli.main(arguments, prog_name="vtrain", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except click.ClickException as error:
        show_usage_error(error)
        code = EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        echo("interrupted", err=True)
        code = EXIT_INTERRUPTED
    except SystemExit:
        pass  # click's answer to a closed pipe: nobody reads the verdict, so there is none
    finally:
        if sys.exception() is not None:
            show_traceback()
            echo("vtrain failed; this is a defect in vtrain, not a verdict", err=True)
            return code  # noqa: B012 - the traceback is printed, and Python's own exit code is 1
    return code


def main() -> NoReturn:
    """Entry point of the installed command."""
    sys.exit(run())
