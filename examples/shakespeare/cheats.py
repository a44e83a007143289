"""Three dishonest solvers of gpt.toml, each caught at its step: cheats.py [--steps N].

Those of `vtrain demo`: a skipped step, one gradient element altered by one unit in the last place,
and a swapped batch.  Each signs a run that is honest in everything else; the auditor does all
steps again.  It needs what gpt.py writes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import vtrain
from vtrain.attest.keys import generate_key
from vtrain.audit.verify import verify
from vtrain.demo.cheats import CHEATS, train_falsely
from vtrain.errors import RunError, VtrainError
from vtrain.train.task import compile_task, load_task

TASK = Path(__file__).with_name("gpt.toml")
CHECKPOINT_EVERY = 5


def catch_all(task_file: Path, steps: int, step: int, folder: Path) -> None:
    """Train falsely by each cheat and audit it; RunError for one that is not caught at ``step``."""
    file = load_task(task_file)
    task = compile_task(
        replace(file, steps=steps, commit_every=1, checkpoint_every=CHECKPOINT_EVERY)
    )
    generate_key(folder / "solver.pem")
    key = vtrain.load_key(folder / "solver.pem")
    for number, (name, cheat) in enumerate(CHEATS.items(), start=1):
        run = folder / f"cheat-{number}"
        train_falsely(task, run, key=key, cheat=cheat, step=step)
        report = verify(run, all_=True, task_id=task.task_id)
        where = report.reason.where if report.reason else "nowhere"
        print(f"{name}, in step {step} of {steps}: {report.verdict}, at {where}", flush=True)
        if report.reason is None or (report.verdict, where) != ("fraud", f"step {step}"):
            raise RunError("is not caught where it was made", where=name)
        print(f"  {report.reason.detail}")


def main() -> None:
    """Everything in a folder that goes away."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", type=Path, default=TASK, help="a task file with its exponents")
    parser.add_argument("--steps", type=int, default=20, help="of each run")
    parser.add_argument("--false-step", type=int, default=13, help="the step that is false")
    given = parser.parse_args()
    if not 1 <= given.false_step <= given.steps:
        parser.error(f"--false-step: is none of the {given.steps} steps")
    with tempfile.TemporaryDirectory() as folder:
        try:
            catch_all(given.task, given.steps, given.false_step, Path(folder))
        except VtrainError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
