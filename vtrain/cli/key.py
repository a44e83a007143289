"""``vtrain key``: the keys that sign claims, moves, receipts and reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vtrain.cli import print_json
from vtrain.cli.common import VtrainCommand, json_option, print_pairs

if TYPE_CHECKING:
    from vtrain.attest.keys import BlsSecret, PrivateKey

_path = click.argument("path", type=click.Path(dir_okay=False, path_type=Path))


@click.group("key")
def command() -> None:
    """Make and show keys: a solver's, a challenger's, a service's."""


@command.command("new", cls=VtrainCommand)
@_path
@click.option(
    "--kind",
    type=click.Choice(["ed25519", "bls"]),
    default="ed25519",
    show_default=True,
    help="bls keys sign reports alone (`vtrain report sign`), several with one signature.",
)
@json_option
def new(path: Path, kind: str, as_json: bool) -> None:
    """Make a key and write it to the new file PATH, readable by you alone."""
    from vtrain.attest.keys import generate_bls_key, generate_key

    _show(path, generate_key(path) if kind == "ed25519" else generate_bls_key(path), as_json)


@command.command("show", cls=VtrainCommand)
@_path
@json_option
def show(path: Path, as_json: bool) -> None:
    """Show the public key that belongs to the key file PATH."""
    from vtrain.attest.keys import load_signing_key

    _show(path, load_signing_key(path), as_json)


def _show(path: Path, key: PrivateKey | BlsSecret, as_json: bool) -> None:
    from vtrain.attest.bls import prove_possession
    from vtrain.attest.keys import BlsSecret, public_key

    pairs = {"key": str(path)}
    if isinstance(key, BlsSecret):
        made = prove_possession(key.scalar)
        pairs |= {"public": made.public.hex(), "possession": made.possession.hex()}
    else:
        pairs["public"] = public_key(key).hex()
    if as_json:
        print_json({**pairs, "solver": pairs["public"]} if "possession" not in pairs else pairs)
    else:
        print_pairs(pairs)
