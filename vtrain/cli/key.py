"""``vtrain key``: the keys that sign claims, moves, receipts and reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import VtrainCommand, json_option, print_pairs
from vtrain.errors import SignatureError

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

    key = generate_key(path) if kind == "ed25519" else generate_bls_key(path)
    _print(_describe(path, key), as_json)


@command.command("show", cls=VtrainCommand)
@click.argument("path", required=False, type=click.Path(dir_okay=False, path_type=Path))
@json_option
def show(path: Path | None, as_json: bool) -> None:
    """Print the public key that belongs to the key file PATH, or to your own key.

    The public key alone is on stdout, so that $(vtrain key show) is it; what else there is to say
    is on stderr.
    """
    from vtrain.attest.keys import load_signing_key
    from vtrain.attest.own import find_own_key

    if path is None:
        path = find_own_key()
        if not path.exists():
            raise SignatureError(
                "you have no key of your own yet: `vtrain train` makes one on first use, and "
                "`vtrain key new PATH` makes one anywhere",
                where=str(path),
            )
    pairs = _describe(path, load_signing_key(path))
    if as_json:
        _print(pairs, as_json)
        return
    echo(pairs.pop("public"))
    for label, value in pairs.items():
        echo(f"{label}  {value}", err=True)


def _print(pairs: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json({**pairs, "solver": pairs["public"]} if "possession" not in pairs else pairs)
    else:
        print_pairs(pairs)


def _describe(path: Path, key: PrivateKey | BlsSecret) -> dict[str, str]:
    from vtrain.attest.bls import prove_possession
    from vtrain.attest.keys import BlsSecret, public_key

    pairs = {"key": str(path)}
    if isinstance(key, BlsSecret):
        made = prove_possession(key.scalar)
        pairs |= {"public": made.public.hex(), "possession": made.possession.hex()}
    else:
        pairs["public"] = public_key(key).hex()
    return pairs
