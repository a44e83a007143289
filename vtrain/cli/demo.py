"""``vtrain demo``: the main job from end to end, and three cheats caught."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    VtrainCommand,
    engine_option,
    json_option,
    make_console,
    print_styled,
    print_title,
    show_progress,
)

if TYPE_CHECKING:
    from rich.console import Console

    from vtrain.attest.keys import PrivateKey
    from vtrain.train.deliver import Evaluation
    from vtrain.train.task import TaskFile
    from vtrain.wire.report import Report

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist" / "mlp.toml"
"""Where a checkout has the task of the demo; an installed wheel has no examples."""

CHEAT_STEPS = 60
CHEAT_EVERY = 20
CHEAT_AT = 33
"""The dishonest runs are short: 60 steps, a checkpoint every 20, step 33 false."""


@dataclass(frozen=True)
class _Caught:
    """What became of one dishonest run."""

    cheat: str
    report: Report

    @property
    def located(self) -> bool:
        """Whether the audit called it fraud and named the very step."""
        reason = self.report.reason
        return (
            self.report.verdict == "fraud"
            and reason is not None
            and reason.where == f"step {CHEAT_AT}"
        )


@click.command("demo", cls=VtrainCommand)
@click.option(
    "--task",
    type=click.Path(dir_okay=False, path_type=Path),
    default=EXAMPLE,
    help="Another task to show it with.  [default: examples/mnist/mlp.toml of the checkout]",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the run directories in the new folder DIR.",
)
@engine_option
@json_option
def command(task: Path, keep: Path | None, engine: str, as_json: bool) -> int:
    """Train a real model and verify it; then cheat in three ways, and see each caught.

    \b
    1. A solver trains an MLP on 9,000 MNIST images in exact integers and signs a claim.
    2. An auditor checks the structure and replays randomly drawn segments.
    3. The model is evaluated on 1,000 test images.
    4. Three dishonest solvers do one false step each and sign as properly as the first.
    """
    from vtrain.errors import RunError
    from vtrain.train.task import load_task, profile_task

    if not task.exists():
        raise RunError(
            "is missing: an installed wheel has no examples; run the demo from a checkout, or name "
            "a task file with --task",
            where=str(task),
        )
    file = load_task(task)
    if not file.exponents:
        file = replace(file, exponents=profile_task(file).exponents)
    console = make_console()
    console.quiet = as_json
    with _choose_folder(keep) as folder:
        from vtrain.attest.keys import generate_key

        key = generate_key(folder / "solver.pem")
        honest, evaluation = _show_honest(file, folder, key, engine, console)
        caught = _show_cheats(file, folder, key, engine, console)
    good = honest.verdict == "verified" and all(case.located for case in caught)
    if as_json:
        print_json(_to_dict(honest, evaluation, caught, good))
    elif good:
        console.print(
            "\n[bold green]All as it should be:[/] the honest run is verified, each cheat caught."
        )
    else:
        console.print("\n[bold red]Something is wrong:[/] see above.")
    return 0 if good else 3


@contextmanager
def _choose_folder(keep: Path | None) -> Iterator[Path]:
    from vtrain.commit.files import storing

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="vtrain-demo-") as name:
            yield Path(name)
        return
    with storing(keep):
        keep.mkdir(parents=True)
    yield keep


def _show_honest(
    file: TaskFile, folder: Path, key: PrivateKey, engine: str, console: Console
) -> tuple[Report, Evaluation | None]:
    from vtrain.audit.verify import verify
    from vtrain.report.terminal import print_report
    from vtrain.train.data import load_samples
    from vtrain.train.deliver import evaluate_run
    from vtrain.train.runner import train
    from vtrain.train.task import compile_task

    run = folder / "honest"
    print_title(console, "1. An honest solver trains")
    task = compile_task(file)
    with show_progress() as progress:
        summary = train(
            task,
            run,
            key=key,
            engine=engine,
            progress=lambda done, steps, loss, rate: progress("training", done, steps),
        )
    speed = summary.steps * file.batch / summary.seconds
    print_styled(
        console,
        f"{summary.steps} steps of {file.batch} samples in {summary.seconds:.1f} s "
        f"({speed:,.0f} samples/s), {summary.engine} engine, every step committed to",
    )
    print_styled(console, f"root {summary.root.hex()}")
    print_title(console, "2. An auditor verifies")
    with show_progress() as progress:
        report = verify(run, task_id=task.task_id, engine=engine, progress=progress)
    print_report(report, console)
    print_title(console, "3. The model")
    evaluation = None
    if file.test is not None:
        evaluation = evaluate_run(run, load_samples(file.test))
        rate = evaluation.accuracy
        share = "" if rate is None else f", {100 * rate:.1f} % right"
        count = evaluation.count
        print_styled(console, f"{count} test samples: loss {evaluation.loss:.4f}{share}")
    return report, evaluation


def _show_cheats(
    file: TaskFile, folder: Path, key: PrivateKey, engine: str, console: Console
) -> list[_Caught]:
    from vtrain.audit.verify import verify
    from vtrain.demo.cheats import CHEATS, train_falsely
    from vtrain.train.task import compile_task

    print_title(console, "4. Three dishonest solvers")
    short = replace(file, steps=CHEAT_STEPS, commit_every=1, checkpoint_every=CHEAT_EVERY)
    task = compile_task(short)
    caught = []
    for number, (name, cheat) in enumerate(CHEATS.items(), start=1):
        run = folder / f"cheat-{number}"
        train_falsely(task, run, key=key, cheat=cheat, step=CHEAT_AT, engine=engine)
        report = verify(run, all_=True, task_id=task.task_id, engine=engine)
        case = _Caught(name, report)
        caught.append(case)
        reason = report.reason
        place = reason.where if reason is not None else "nowhere"
        colour = "green" if case.located else "red"
        what = f"{name}, in step {CHEAT_AT} of {CHEAT_STEPS}"
        print_styled(console, f"{what}: {report.verdict}, at {place}", colour)
        if reason is not None:
            print_styled(console, f"  {reason.detail}", "dim")
    return caught


def _to_dict(
    honest: Report, evaluation: Evaluation | None, caught: list[_Caught], good: bool
) -> dict[str, Any]:
    from vtrain.report.json import report_to_dict

    return {
        "good": good,
        "honest": report_to_dict(honest),
        "accuracy": None if evaluation is None else evaluation.accuracy,
        "loss": None if evaluation is None else evaluation.loss,
        "cheats": [
            {"cheat": case.cheat, "step": CHEAT_AT, **report_to_dict(case.report)}
            for case in caught
        ],
    }
