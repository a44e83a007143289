"""``vtrain verify``: check a run and say how strong the check was."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli.common import (
    HexBytes,
    VtrainCommand,
    engine_option,
    existing_folder,
    json_option,
    make_console,
    show_progress,
    threads_option,
)


@click.command("verify", cls=VtrainCommand)
@existing_folder("run")
@click.option(
    "--samples",
    type=click.IntRange(min=0),
    help="How many segments between checkpoints to replay.  [default: 3]",
)
@click.option("--all", "all_", is_flag=True, help="Replay every step.")
@click.option(
    "--seed",
    type=HexBytes(1, 64),
    metavar="HEX",
    help="Draw the segments with this instead of fresh randomness; reported as predictable.",
)
@click.option(
    "--task-id",
    type=HexBytes(32, 32),
    metavar="HEX",
    help="The task that was agreed on, all of it; otherwise the run's own is taken as far as it is "
    "claimed, and the report says so.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The canonical sample table, for a run published without it.",
)
@engine_option
@threads_option
@json_option
def command(
    run: Path,
    samples: int | None,
    all_: bool,
    seed: bytes | None,
    task_id: bytes | None,
    data: Path | None,
    engine: str,
    threads: int,
    as_json: bool,
) -> int:
    """Check RUN: its structure always, then segments of it by doing them again.

    The structure check covers every file, the signature, the log, each batch digest and each
    checkpoint.  Then segments between checkpoints are drawn at random and replayed: the law is
    exact, so one different bit is proof of fraud.

    Exit code 0: verified.  1: fraud found.  2: bad usage.  3: inconclusive.
    """
    if all_ and samples is not None:
        raise click.UsageError("--all replays everything: --samples has no meaning")
    from vtrain.audit.verify import verify

    with show_progress() as progress:
        report = verify(
            run,
            samples=samples,
            all_=all_,
            seed=seed,
            task_id=task_id,
            data=data,
            engine=engine,
            threads=threads,
            progress=progress,
        )
    if as_json:
        from vtrain.report.json import format_report

        click.echo(format_report(report))
    else:
        from vtrain.report.terminal import print_report

        print_report(report, make_console())
    return report.exit_code
