"""``vtrain trace``: write and sign the values of steps, for an algebraic check."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    CleanCommand,
    HexBytes,
    engine_option,
    existing_folder,
    json_option,
    naming_option,
    print_pairs,
    show_progress,
    threads_option,
)
from vtrain.cli.proofs import StepsType


@click.command("trace", cls=CleanCommand)
@existing_folder("run")
@click.option("--step", "steps", type=StepsType(), help="Trace these steps, such as 3,7,20-24.")
@click.option(
    "--sample", type=click.IntRange(min=1), help="Trace what an auditor's seed draws: so many."
)
@click.option(
    "--seed", type=HexBytes(1, 64), metavar="HEX", help="The auditor's randomness, for --sample."
)
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The solver's key file, with which the run was signed.  [default: your own key, as of "
    "`vtrain train`]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where to write; what is signed there for the same claim stays.  [default: RUN/traces]",
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
    steps: tuple[int, ...] | None,
    sample: int | None,
    seed: bytes | None,
    key: Path | None,
    out: Path | None,
    data: Path | None,
    engine: str,
    threads: int,
    as_json: bool,
) -> int:
    """Write the values of steps of RUN, each tensor in a file named by its digest, and sign them.

    `vtrain verify RUN --mode algebraic` checks them: where products are wide, at a small part of
    what doing the steps again costs.  A step is traced with all steps after the last state root
    before it and up to the next.
    The auditor says which: it keeps your claim, then draws.
    """
    from vtrain.attest.keys import load_key
    from vtrain.attest.own import find_own_key
    from vtrain.attest.traces import compute_traces_digest
    from vtrain.commit.files import refuse_link
    from vtrain.commit.traces import TRACES_FOLDER
    from vtrain.train.traces import write_traces

    if (steps is None) == (sample is None) or (sample is None) != (seed is None):
        raise click.UsageError("name the steps by --step, or draw them by --sample and --seed")
    folder = out or run / TRACES_FOLDER
    if out is None:
        refuse_link(folder)
    if sample is not None and seed is not None:
        from vtrain.audit.algebraic import draw_steps

        steps = draw_steps(run, seed, sample)
    with show_progress(lines=True) as progress, naming_option("--out", folder):
        signed = write_traces(
            run,
            steps or (),
            key=load_key(key or find_own_key()),
            out=folder,
            data=data,
            engine=engine,
            threads=threads,
            progress=progress,
        )
    shown = {
        "folder": str(folder),
        "traces": compute_traces_digest(signed.traces).hex(),
        "steps": [trace.step for trace in signed.traces.traces],
        "values": sum(trace.size for trace in signed.traces.traces),
    }
    if as_json:
        print_json(shown)
    else:
        steps_shown = ", ".join(str(trace.step) for trace in signed.traces.traces)
        print_pairs({**shown, "steps": steps_shown})
    return 0
