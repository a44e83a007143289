"""``vtrain train``: train a task and commit to every step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import (
    CleanCommand,
    accumulate_option,
    engine_option,
    existing_file,
    json_option,
    list_saturation,
    list_warnings,
    noting_interrupts,
    print_pairs,
    recompute_option,
    threads_option,
)

if TYPE_CHECKING:
    from vtrain.attest.keys import PrivateKey


@click.command("train", cls=CleanCommand)
@existing_file("task")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="RUN",
    help="The run directory; one that has a part of this run is gone on with.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Stop after so many steps, with a claim of what is done; call again to go on.",
)
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The solver's key file.  [default: your own, made on first use]",
)
@click.option(
    "--srs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The SRS file of a task with KZG commitments, instead of the one that TASK names.",
)
@click.option("--no-data", is_flag=True, help="Leave the samples out of the run directory.")
@click.option(
    "--batch-hiding",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What hides the batches that their owner signed: the file that `vtrain prove batches "
    "--hiding` made.",
)
@engine_option
@click.option(
    "--selfcheck-every",
    type=click.IntRange(min=1),
    metavar="N",
    help="Engine cuda alone: compare its fast kernels with their readable twins again every N "
    "steps; one that differs serves no more.",
)
@threads_option
@accumulate_option
@recompute_option
@json_option
def command(
    task: Path,
    out: Path,
    steps: int | None,
    key: Path | None,
    srs: Path | None,
    no_data: bool,
    batch_hiding: Path | None,
    engine: str,
    selfcheck_every: int | None,
    threads: int,
    accumulate: int,
    recompute: bool,
    as_json: bool,
) -> None:
    """Train TASK, write checkpoints and a log of every step into RUN, and sign the outcome.

    It may be killed at any moment: the same command goes on, and ends in the same root. What is in
    RUN stays as it is where the engine asked for cannot be used.
    """
    from vtrain.attest.keys import public_key
    from vtrain.commit.hiding import read_batch_secret
    from vtrain.engines.saving import Saving
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.train.layout import RunPaths
    from vtrain.train.runner import train
    from vtrain.train.task import compile_task, load_task

    compiled = compile_task(load_task(task, srs=srs), CommitKey)
    signer = load_or_make_key(key)
    with _show_training(out) as progress:
        summary = train(
            compiled,
            out,
            key=signer,
            engine=engine,
            steps=steps,
            threads=threads,
            selfcheck_every=selfcheck_every or 0,
            saving=Saving(accumulate, recompute),
            keep_data=not no_data,
            batch_secret=b"" if batch_hiding is None else read_batch_secret(batch_hiding),
            progress=progress,
        )
    pairs = {
        "run": str(summary.path),
        "task_id": summary.task_id.hex(),
        "run_id": summary.run_id.hex(),
        "solver": public_key(signer).hex(),
        "steps": summary.steps,
        "root": summary.root.hex(),
        "log_root": summary.log_root.hex(),
        **(
            {"kzg_root": summary.kzg_root.hex(), "secret": str(RunPaths(out).hiding)}
            if summary.kzg_root
            else {}
        ),
        "engine": summary.engine or None,
        "resumed_from": summary.resumed_from,
        "seconds": round(summary.seconds, 3),
        **({"kzg_seconds": round(summary.kzg_seconds, 3)} if summary.kzg_root else {}),
    }
    if as_json:
        sites = list_saturation(summary.saturation)
        print_json({**pairs, "saturation": sites, "warnings": list_warnings()})
    else:
        print_pairs({**pairs, "engine": summary.engine or "none: no step was left to do"})


def load_or_make_key(path: Path | None) -> PrivateKey:
    """The key in ``path``, or the user's own, which is made with a notice when there is none."""
    from vtrain.attest.keys import generate_key, load_key
    from vtrain.commit.files import storing

    if path is not None:
        return load_key(path)
    own = Path(click.get_app_dir("vtrain")) / "solver.pem"
    if own.exists():
        return load_key(own)
    with storing(own.parent):
        own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = generate_key(own)
    echo(f"made a solver key: {own} (keep it; it signs your claims)", err=True)
    return key


@contextmanager
def _show_training(out: Path) -> Iterator[Callable[[int, int, float, float], None]]:
    """A progress bar with loss and speed on stderr; nothing when that is no terminal.

    Whoever interrupts it is told after which step, and what goes on.
    """
    reached = "before its first step"
    with _show_bar() as show:

        def remember(done: int, steps: int, loss: float, rate: float) -> None:
            nonlocal reached
            reached = f"after step {done} of {steps}"
            show(done, steps, loss, rate)

        with noting_interrupts(
            lambda: (
                f"training into {out} stopped {reached}; the same command goes on from its "
                "last checkpoint, and ends in the same root"
            )
        ):
            yield remember


@contextmanager
def _show_bar() -> Iterator[Callable[[int, int, float, float], None]]:
    if not sys.stderr.isatty():
        yield lambda done, steps, loss, rate: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f} samples/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("training", total=None, loss=0.0, rate=0.0)

        def show(done: int, steps: int, loss: float, rate: float) -> None:
            bars.update(bar, completed=done, total=steps, loss=loss, rate=rate)

        yield show
