"""``vtrain publish``: put a run where others can audit parts of it."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    CleanCommand,
    existing_folder,
    json_option,
    print_pairs,
    show_progress,
    store_option,
    threads_option,
)


@click.command("publish", cls=CleanCommand)
@existing_folder("run")
@click.argument("url")
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The canonical sample table, for a run without it.",
)
@click.option(
    "--no-samples",
    is_flag=True,
    help="Keep the samples back: an auditor then needs them from elsewhere (--data).",
)
@store_option
@threads_option
@json_option
def command(
    run: Path,
    url: str,
    data: Path | None,
    no_samples: bool,
    store_options: tuple[tuple[str, str], ...],
    threads: int,
    as_json: bool,
) -> int:
    """Put RUN at URL, cut into pieces that are named by what they are: `vtrain verify URL` fetches
    those that its draw asks for.

    URL is a folder (a path, or file://), which a web server may serve, or an object store (s3://,
    gs://, az://).  What was signed is held against the claim before it is put there.  What is
    there already stays: after `vtrain trace RUN`, publish again.  The solver's secrets and proofs
    are not put there.
    """
    from vtrain.commit.store import get_url, open_sink
    from vtrain.train.publish import publish_run

    if no_samples and data is not None:
        raise click.UsageError("--no-samples publishes none: --data has no meaning")
    sink = open_sink(url, dict(store_options))
    with show_progress() as progress:
        found = publish_run(
            run, sink, data=data, samples=not no_samples, threads=threads, progress=progress
        )
    shown = {
        "url": get_url(url),
        "claim": found.claim.hex(),
        "checkpoints": found.states,
        "traces": found.traces,
        "samples": found.samples,
        "bytes": found.bytes,
    }
    if as_json:
        print_json(shown)
    else:
        print_pairs({**shown, "samples": "yes" if found.samples else "no"})
    return 0
