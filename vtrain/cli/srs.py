"""``vtrain srs``: the structured reference strings that proofs rest on."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    HexBytes,
    VtrainCommand,
    existing_file,
    json_option,
    print_pairs,
    show_progress,
    threads_option,
)
from vtrain.wire.report import EXIT_CODES


@click.group("srs")
def command() -> None:
    """Check and make the SRS files that proofs rest on (docs/proofs.md)."""


@command.command("check", cls=VtrainCommand)
@existing_file("file")
@click.option(
    "--allow-insecure-srs",
    is_flag=True,
    help="Exit with 0 for a sound file of unknown origin too: whoever made it can forge proofs.",
)
@threads_option
@json_option
def check(file: Path, allow_insecure_srs: bool, threads: int, as_json: bool) -> int:
    """Check that FILE is a list of powers of one number, and whether it is a public ceremony's.

    Exit code 0 for a file of the ceremony, 4 for a sound file that is none (insecure), 2 for a file
    that is no SRS.
    """
    from vtrain.prove.backend.srs import check_srs

    with show_progress() as progress:
        found = check_srs(file, threads=threads, progress=progress)
    _show(file, found.k, found.sha256, found.is_ceremony, as_json)
    trusted = found.is_ceremony or allow_insecure_srs
    return EXIT_CODES["verified" if trusted else "conditional"]


@command.command("generate", cls=VtrainCommand)
@click.option(
    "--k", required=True, type=click.IntRange(1, 28), help="Logarithm of the rows that it serves."
)
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The new file.",
)
@click.option(
    "--seed",
    type=HexBytes(1, 64),
    metavar="HEX",
    help="Make the file of this instead of fresh randomness; whoever has the seed can forge.",
)
@threads_option
@json_option
def generate(k: int, out: Path, seed: bytes | None, threads: int, as_json: bool) -> None:
    """Make an insecure SRS for tests and trials: this machine could forge proofs with it."""
    from vtrain.prove.backend.srs import generate_srs

    with show_progress() as progress:
        made = generate_srs(out, k, seed=seed, threads=threads, progress=progress)
    _show(out, made.k, made.sha256, made.is_ceremony, as_json)


def _show(file: Path, k: int, sha256: bytes, ceremony: bool, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "k": k, "sha256": sha256.hex(), "insecure": not ceremony})
        return
    origin = (
        "perpetual powers of tau, a public ceremony"
        if ceremony
        else "unknown: INSECURE, whoever made it can forge proofs"
    )
    print_pairs({"file": file, "k": k, "sha256": sha256.hex(), "origin": origin})
