"""The group of all commands, and how one of them is called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from vtrain.cli import EXIT_USAGE, echo, print_error

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COMMANDS: Final = {
    "bench": "measure what a task costs on this machine",
    "claim": "show what an auditor pins of a run, and keep it",
    "completion": "what completes commands and options in a shell",
    "demo": "train, verify and catch three cheats",
    "dispute": "open, join, play and watch a dispute",
    "estimate": "what a task would cost, before it is run",
    "eval": "loss and accuracy of a checkpoint",
    "export": "the trained model as float ONNX and safetensors",
    "graph": "the step graph in other formats",
    "init": "write a task file for a model and data",
    "inspect": "what a run directory says of itself, unverified",
    "key": "make and show solver keys",
    "plot": "loss, rate, saturation and time of runs as a picture",
    "profile": "calibrate the exponents of a task",
    "prove": "prove steps of a run, whole or tile by tile",
    "publish": "put a run where others can audit parts of it",
    "referee": "judge one leaf of a dispute",
    "report": "sign, verify and show reports of audits",
    "serve": "host disputes over HTTP",
    "srs": "check and make what proofs rest on",
    "task": "look at a task before anyone signs it",
    "trace": "write and sign the values of steps of a run",
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # click knows those that are imported
            name = error.command_name
            raise click.exceptions.NoSuchCommand(name, possibilities=_COMMANDS, ctx=ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=text)
            for name, text in sorted(_COMMANDS.items())
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


def _show_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from vtrain import __version__

        echo(f"vtrain, version {__version__}")
        ctx.exit()


@click.group(cls=_LateGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Training runs in exact integers, committed to and checkable by anyone.

    Exit codes: 0 done or verified, 10 fraud found, 2 bad input or usage, 3 inconclusive or not
    possible on this machine, 4 verified only under an assumption that was not accepted, 130
    interrupted (Ctrl-C), 143 terminated (SIGTERM), 1 anything unexpected.
    """


def _show_usage_error(error: click.ClickException) -> None:
    """What click says of a command line, on stderr: it quotes names of files as they are."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # whose message is the help
        for line in error.format_message().splitlines():
            echo(line, err=True)
        return
    if isinstance(error, click.UsageError) and error.ctx is not None:
        for line in error.ctx.get_usage().splitlines():
            echo(line, err=True)
        echo(f"Try '{error.ctx.command_path} -h' for help.", err=True)
    echo(f"Error: {error.format_message()}", err=True)


def invoke(words: list[str]) -> int:
    """Run one command line and return its exit code; what it cannot answer itself is raised."""
    try:
        result = cli.main(words, prog_name="vtrain", standalone_mode=False)
    except click.ClickException as error:
        _show_usage_error(error)
        if "--json" in words:
            context = getattr(error, "ctx", None)
            where = context.command_path if context is not None else ""
            print_error("usage", "user", error.format_message(), where)
        return EXIT_USAGE
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0
