"""Write docs/cli.md from the commands' own help: ``python docs/make_cli.py``.  A test compares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from vtrain.cli.root import cli

INTRODUCTION = """# The command line

Written by `python docs/make_cli.py` from the commands' own help.

Exit codes, the same everywhere: 0 done or verified, 10 fraud found, 2 bad input or usage,
3 inconclusive (bytes missing or not those signed for) or not possible on this machine (memory,
disk, an extra that is not installed; for `--engine cuda` no driver, an old one, no GPU, one that
fails or has too little memory), 4 verified only under an assumption that was not accepted (a
predictable sample, an insecure SRS), 130 interrupted (Ctrl-C), 143 terminated (SIGTERM), 1 anything
unexpected.
Progress goes to stderr, and only on a terminal; elsewhere `vtrain prove` and `vtrain dispute` write
a line a stage.  `vtrain train` has a line of JSON for each step in RUN/history.jsonl besides.
`vtrain completion` has a shell complete all of this.
`--json` prints one object on stdout with every exit, wrong calls and interrupts included.
"""


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every command below ``command``, as the words that call it."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from walk(child, (*path, name))


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for path in walk(cli, ()):
        result = CliRunner().invoke(cli, [*path, "--help"], prog_name="vtrain")
        parts.append(f"## {' '.join(('vtrain', *path))}\n\n```\n{result.output.rstrip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (Path(__file__).parent / "cli.md").write_text(render())
