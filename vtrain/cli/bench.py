"""``vtrain bench``: measure what a task costs on this machine."""

from __future__ import annotations

import os
import platform
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtrain.bench.figures import STAGES
from vtrain.cli import echo, print_json
from vtrain.cli.common import (
    CleanCommand,
    engine_option,
    existing_file,
    json_option,
    naming_option,
    print_pairs,
    show_progress,
    threads_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from vtrain.bench.bench import Measurements
    from vtrain.bench.stages import Prove

_MOST_SEEDS = 1000


class _Factors(click.ParamType[tuple[Fraction, ...]]):
    """Factors such as 1/2,1,2."""

    name = "factors"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Fraction, ...]:
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(Fraction(part) for part in str(value).split(","))
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value!r} is no list of factors such as 1/2,1,2", param, ctx)
        if min(found) <= 0:
            self.fail("factors are above 0", param, ctx)
        return found


class _Stages(click.ParamType[tuple[str, ...]]):
    """Stages, separated by commas."""

    name = "stages"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        found = tuple(str(value).split(","))
        for name in found:
            if name not in STAGES:
                self.fail(f"{name!r} is none of {', '.join(STAGES)}", param, ctx)
        return found


@click.command("bench", cls=CleanCommand)
@existing_file("task")
@click.option(
    "--sweep",
    type=click.Choice(["width", "depth", "batch"]),
    help="Measure sizes of it: hidden features, repeated layers, or samples in a batch times "
    "factors, each calibrated anew.",
)
@click.option(
    "--factors",
    type=_Factors(),
    metavar="LIST",
    help="Of --sweep.  [default: 1/2,1,2; of depth 1,2,3]",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, _MOST_SEEDS),
    default=3,
    show_default=True,
    help="How often all is measured, each time with another seed: what intervals of confidence are "
    "made of.",
)
@click.option(
    "--stages",
    type=_Stages(),
    default=STAGES,
    metavar="LIST",
    help=f"What is measured, of {','.join(STAGES)}.  [default: all]",
)
@click.option(
    "--proof",
    is_flag=True,
    help="Make and check a proof with each seed too, which takes minutes (extra zk).",
)
@engine_option
@threads_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write figures.csv, figures.json, table.md, table.tex and plots (.svg) into this folder.",
)
@json_option
def command(
    task: Path,
    sweep: Any,
    factors: tuple[Fraction, ...] | None,
    seeds: int,
    stages: tuple[str, ...],
    proof: bool,
    engine: str,
    threads: int,
    out: Path | None,
    as_json: bool,
) -> int:
    """Measure on this machine what TASK costs: to train, to commit to, to replay, to check by its
    traces, to dispute and to prove (docs/measuring.md).

    Time, memory and bytes are of single steps, roots, checkpoints and so on, whatever the task says
    of how often there are such; means over the seeds have intervals of 95 % confidence, and what is
    measured with one seed alone is said to be.
    """
    if factors is not None and sweep is None:
        raise click.UsageError("--factors are of a --sweep: name one")
    if stages == ("proof",) and not proof:
        raise click.UsageError("a proof takes minutes: ask for it with --proof")
    from vtrain.bench.bench import measure_task
    from vtrain.bench.stages import Setting
    from vtrain.train.task import load_task

    if not proof:
        stages = tuple(stage for stage in stages if stage != "proof")
    with show_progress(lines=True) as progress:
        setting = Setting(
            engine=engine, threads=threads, tell=lambda what: progress(f"bench: {what}", 0, 1)
        )
        measured = measure_task(
            load_task(task),
            sweep=sweep,
            factors=factors or (),
            seeds=seeds,
            stages=stages,
            setting=setting,
            open_prover=_open_prover(threads) if proof else None,
        )
    found = _describe(task, sweep, measured)
    if out is not None:
        with naming_option("--out", out):
            _write(out, task, measured, found)
    if as_json:
        print_json(found)
    else:
        _print(measured)
    return 0 if measured.rows else 3  # nothing of what was asked for could be done here


def _open_prover(threads: int) -> Callable[[Path], Prove]:
    def open_prover(folder: Path) -> Prove:
        from vtrain.bench.proofs import ProofBench

        return ProofBench(folder, threads)

    return open_prover


def _describe(task: Path, sweep: str | None, measured: Measurements) -> dict[str, Any]:
    """All of it as JSON."""
    from vtrain import _core
    from vtrain.bench.figures import list_rows

    return {
        "task": task.name,
        "sweep": sweep,
        "rows": list_rows(measured.rows),
        "skipped": dict(measured.skipped),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "instructions": _core.gemm_paths()[-1],
            "vtrain": _core.__version__,
        },
    }


def _write(out: Path, task: Path, measured: Measurements, found: dict[str, Any]) -> None:
    """The files of a bench."""
    import json

    from vtrain.bench.figures import TITLES, make_table, render_latex, render_markdown, write_csv
    from vtrain.bench.plots import draw, draw_bars
    from vtrain.commit.files import storing, write_atomic

    table, machine = make_table(measured.rows), found["machine"]
    caption = (
        f"What {task.stem} costs on {machine['cores']} cores ({machine['instructions']}): means "
        "with 95 % confidence."
    )
    files = {
        "figures.csv": write_csv(measured.rows),
        "figures.json": json.dumps(found, indent=2) + "\n",
        "table.md": render_markdown(table),
        "table.tex": render_latex(table, caption),
    }
    for unit, name in TITLES.items():
        picture = (draw if found["sweep"] else draw_bars)(measured.rows, unit)
        if picture is not None:
            files[f"{name}.svg"] = picture
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomic(out / name, [text.encode()])


def _print(measured: Measurements) -> None:
    """The table for a terminal: a part for each size."""
    from vtrain.bench.figures import describe_row

    sizes = dict.fromkeys((r.sweep, r.factor, r.parameters, r.batch) for r in measured.rows)
    for size in sizes:
        sweep, factor, parameters, batch = size
        title = f"{sweep} x {factor:g}: " if sweep else ""
        echo(f"{title}{parameters:,} parameters, batches of {batch}")
        rows = [r for r in measured.rows if (r.sweep, r.factor, r.parameters, r.batch) == size]
        print_pairs({f"  {row.stage}: {row.what}, {row.unit}": describe_row(row) for row in rows})
    for name, reason in measured.skipped:
        echo(f"not measured: {name}: {reason}", err=True)
