"""``vtrain key``: the Ed25519 keys that sign claims, moves and receipts."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import print_json
from vtrain.cli.common import VtrainCommand, json_option, print_pairs

_path = click.argument("path", type=click.Path(dir_okay=False, path_type=Path))


@click.group("key")
def command() -> None:
    """Make and show keys: a solver's, a challenger's, a service's."""


@command.command("new", cls=VtrainCommand)
@_path
@json_option
def new(path: Path, as_json: bool) -> None:
    """Make a key and write it to the new file PATH, readable by you alone."""
    from vtrain.attest.keys import generate_key, public_key

    _show(path, public_key(generate_key(path)), as_json)


@command.command("show", cls=VtrainCommand)
@_path
@json_option
def show(path: Path, as_json: bool) -> None:
    """Show the public key that belongs to the key file PATH."""
    from vtrain.attest.keys import load_key, public_key

    _show(path, public_key(load_key(path)), as_json)


def _show(path: Path, public: bytes, as_json: bool) -> None:
    pairs = {"key": str(path), "public": public.hex()}
    if as_json:
        print_json({**pairs, "solver": public.hex()})
    else:
        print_pairs(pairs)
