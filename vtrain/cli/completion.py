"""``vtrain completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import sys

import click

from vtrain.cli import COMPLETE
from vtrain.cli.common import VtrainCommand


@click.command("completion", cls=VtrainCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what has SHELL complete commands, options and files of vtrain.

    \b
    bash:  echo 'eval "$(vtrain completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(vtrain completion zsh)"' >> ~/.zshrc
    fish:  vtrain completion fish > ~/.config/fish/completions/vtrain.fish
    """
    from click.shell_completion import get_completion_class

    from vtrain.cli.root import cli

    found = get_completion_class(shell)
    if found is None:  # click has all of the choices
        raise click.UsageError(f"{shell} is not known")
    # Not by echo: a line of a script may be longer than what is shown of a stranger's text.
    sys.stdout.write(found(cli, {}, "vtrain", COMPLETE).source())
