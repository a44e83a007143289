"""``vtrain train``: train a task and commit to every step."""

from __future__ import annotations

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
    naming_lint,
    noting_interrupts,
    print_pairs,
    recompute_option,
    threads_option,
)

if TYPE_CHECKING:
    from vtrain.attest.keys import PrivateKey
    from vtrain.train.watch import Callback


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
@click.option(
    "--eval-every",
    type=click.IntRange(min=1),
    metavar="N",
    help="Measure on the task's held-out data every N steps and after the last; no part of what is "
    "committed to.",
)
@click.option(
    "--tensorboard",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Log to DIR for TensorBoard (extra tensorboard).",
)
@click.option(
    "--wandb",
    metavar="PROJECT",
    help="Log for Weights & Biases, offline, beside RUN (extra wandb); `wandb sync` sends it.",
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
    eval_every: int | None,
    tensorboard: Path | None,
    wandb: str | None,
    threads: int,
    accumulate: int,
    recompute: bool,
    as_json: bool,
) -> None:
    """Train TASK, write checkpoints and a log of every step into RUN, and sign the outcome.

    It may be killed at any moment: the same command goes on, and ends in the same root. What is in
    RUN stays as it is where the engine asked for cannot be used.

    RUN/history.jsonl has a line of JSON for each step while it goes on: loss, learning rate, time,
    and where they were measured saturation and the loss of held-out data. `vtrain plot` draws it.
    """
    from vtrain.attest.keys import public_key
    from vtrain.commit.hiding import read_batch_secret
    from vtrain.engines.saving import Saving
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.train.layout import RunPaths
    from vtrain.train.runner import train
    from vtrain.train.task import compile_task, load_task

    with naming_lint(task):
        compiled = compile_task(load_task(task, srs=srs), CommitKey)
    for note in compiled.notes:
        echo(f"note: {note}", err=True)
    signer = load_or_make_key(key)
    callbacks = _make_callbacks(tensorboard, wandb, out)
    with _noting_where(out) as progress:
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
            callbacks=callbacks,
            eval_every=eval_every or 0,
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
    from vtrain.attest.own import load_or_make_key as load

    return load(path, lambda text: echo(text, err=True))


@contextmanager
def _noting_where(out: Path) -> Iterator[Callable[[int, int, float, float], None]]:
    """Whoever interrupts a run is told after which step, and what goes on."""
    reached = "before its first step"

    def remember(done: int, steps: int, _loss: float, _rate: float) -> None:
        nonlocal reached
        reached = f"after step {done} of {steps}"

    with noting_interrupts(
        lambda: (
            f"training into {out} stopped {reached}; the same command goes on from its "
            "last checkpoint, and ends in the same root"
        )
    ):
        yield remember


def _make_callbacks(tensorboard: Path | None, wandb: str | None, out: Path) -> list[Callback]:
    from vtrain.train.loggers import TensorBoard, WeightsAndBiases
    from vtrain.train.progress import choose_display

    shown = choose_display()
    callbacks: list[Callback] = [] if shown is None else [shown]
    if tensorboard is not None:
        callbacks.append(TensorBoard(tensorboard))
    if wandb is not None:
        callbacks.append(WeightsAndBiases(wandb, folder=out.parent))
    return callbacks
