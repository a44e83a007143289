"""What the commands that make and check proofs share: steps, keys, limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtrain.cli import echo
from vtrain.cli.common import count, engine_option, json_option, threads_option
from vtrain.wire.proof import LEAST_STEP_K, MAX_K

if TYPE_CHECKING:
    from vtrain.prove.runs import SignedRun
    from vtrain.prove.setup import ProofSetup
    from vtrain.wire.task import TaskSpec

_MOST_STEPS = 10_000


class StepsType(click.ParamType[tuple[int, ...]]):
    """Steps such as 3,7,20-24."""

    name = "steps"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for part in str(value).split(","):
            first, _, last = part.partition("-")
            try:
                bounds = int(first), int(last or first)
            except ValueError:
                self.fail(f"{part!r} is neither a step nor a range of steps", param, ctx)
            if bounds[0] < 1:
                self.fail(f"{part!r}: steps count from 1", param, ctx)
            if not 0 <= bounds[1] - bounds[0] < _MOST_STEPS:
                self.fail(f"{part!r} is no range of at most {_MOST_STEPS} steps", param, ctx)
            found.extend(range(bounds[0], bounds[1] + 1))
        return tuple(found)


srs_option = click.option(
    "--srs",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The SRS file that the task pins (vtrain srs).",
)


def keys_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Keys: of which size, kept where, made within which limits."""
    for option in reversed(
        (
            click.option(
                "--k",
                type=click.IntRange(LEAST_STEP_K, MAX_K),
                help="Logarithm of the rows of whole steps, for a task that pins none.  "
                "[default: the SRS's own]",
            ),
            click.option(
                "--cache",
                type=click.Path(file_okay=False, path_type=Path),
                help="Where keys are kept.  [default: ~/.cache/vtrain/keys]",
            ),
            click.option(
                "--memory",
                type=click.IntRange(min=1),
                help="GiB that proving may take; what needs more is refused at once.  "
                "[default: this machine's]",
            ),
            click.option(
                "--timeout",
                type=click.IntRange(min=1),
                help="Seconds that setup or one proof may take.  [default: 7200]",
            ),
        )
    ):
        command = option(command)
    return command


def prover_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every command needs that computes a run's steps to prove something of them."""
    for option in reversed(
        (
            srs_option,
            keys_options,
            click.option(
                "--data",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="The canonical sample table, for a run without it.",
            ),
            engine_option,
            threads_option,
            json_option,
        )
    ):
        command = option(command)
    return command


def open_run(run: Path) -> SignedRun:
    """What is public of a finished run; RunError for one that is not signed yet."""
    from vtrain.errors import RunError
    from vtrain.prove.runs import read_run
    from vtrain.train.layout import RunPaths

    if not RunPaths(run).claim.exists():
        raise RunError(
            "holds no claim.cbor: proofs are of finished, signed runs (vtrain train ends with it)",
            where=str(run),
        )
    return read_run(run)


def tell_capped(asked: int, there: int, thing: str, which: str) -> None:
    """Say on stderr that fewer things were drawn than asked for, where there are no more."""
    if asked > there:
        found = f"{count(there, thing)} {which}"
        one, more = f"is {found}, it is drawn", f"are {found}, all of them are drawn"
        echo(f"--sample {asked}: there {one if there == 1 else more}", err=True)


def make_setup(task: TaskSpec, **given: Any) -> ProofSetup:
    """The setup from the options ``srs``, those of :func:`keys_options` and ``threads``.

    RunError for a ``--k`` that is not the task's; errors of :meth:`ProofSetup.for_task`.
    """
    from vtrain.errors import RunError
    from vtrain.limits import measure_memory
    from vtrain.prove.backend.ezkl import Limits
    from vtrain.prove.backend.keys import default_cache
    from vtrain.prove.setup import ProofSetup

    if task.proof is not None and given["k"] not in (None, task.proof.k):
        message = f"the task has k = {task.proof.k}: leave the option out"
        raise RunError(message, where=f"--k {given['k']}")
    memory = given["memory"] << 30 if given["memory"] else measure_memory()
    # Address space exceeds what is resident: stacks, buffers freed and kept.
    limits = Limits(memory=2 * memory, seconds=given["timeout"] or 7200, threads=given["threads"])
    cache = given["cache"] or default_cache()
    return ProofSetup.for_task(task, given["srs"], cache, limits, memory, given["k"])
