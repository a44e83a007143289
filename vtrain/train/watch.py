"""Hearing of a run while it goes on: its history, progress, evaluation, and who wants to be told.

Nothing here is a part of what is committed to: with it or without it, a run ends in the same root.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtrain.engines.base import Session
from vtrain.errors import RunError
from vtrain.spec.samples import Samples
from vtrain.train.deliver import check_fit, compute_mean_loss, count_labels, evaluate
from vtrain.train.history import Entry, HistoryFile
from vtrain.train.saturation import SiteSaturation
from vtrain.wire.record import StepRecord

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask

Progress = Callable[[int, int, float, float], None]
"""(steps done, steps in all, mean loss of the step for people, samples per second)."""


@dataclass(frozen=True)
class Start:
    """What is known before the first step of a call: it goes on after ``begun`` steps, up to
    ``target``, in the run directory ``path``."""

    task: CompiledTask
    path: Path
    begun: int
    target: int

    @property
    def name(self) -> str:
        """What people call the run."""
        return self.path.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        """What a log of experiments shows of a run besides its numbers."""
        spec = self.task.spec
        return {
            "task": self.task.name,
            "task_id": self.task.task_id.hex(),
            "seed": spec.seed,
            "steps": spec.steps,
            "batch": spec.batch,
            "samples": spec.data.samples,
        }


class Callback:
    """Hears of a run: whoever wants to overrides what it wants to hear.

    What a callback raises ends the call, as Ctrl-C does; what was committed by then stays valid.
    """

    def begin(self, start: Start) -> None:
        """Before the first step."""

    def step(self, entry: Entry) -> None:
        """After each step."""

    def end(self) -> None:
        """After the last step, or where the call ends otherwise."""


class Watch:
    """Tells of each step of one call: to the history, to ``progress``, to all ``callbacks``."""

    def __init__(
        self,
        task: CompiledTask,
        *,
        engine: str,
        callbacks: Sequence[Callback] = (),
        progress: Progress | None = None,
        eval_every: int = 0,
    ) -> None:
        """RunError for an ``eval_every`` that cannot be had; DataError for what the test data are
        not."""
        if eval_every < 0:
            raise RunError("is negative", where=f"eval_every {eval_every}")
        self._task, self._engine = task, engine
        self._callbacks, self._progress = callbacks, progress
        self._eval_every = eval_every
        self._test = _load_test(task) if eval_every else None
        self._labels = count_labels(task.graph)
        self._curve = None if task.file is None else task.file.optimizer.curve
        self._history: HistoryFile | None = None
        self._begun: list[Callback] = []
        self._first = self._target = 0
        self._started = 0.0

    def begin(self, path: Path, history: Path, begun: int, target: int) -> None:
        """The run in ``path`` goes on after ``begun`` steps, up to ``target``."""
        self._history = HistoryFile(history, begun)
        self._first, self._target = begun, target
        start = Start(self._task, path, begun, target)
        for callback in self._callbacks:
            self._begun.append(callback)
            callback.begin(start)
        self._started = time.perf_counter()

    def step(
        self,
        record: StepRecord,
        seconds: float,
        clamped: Sequence[SiteSaturation] | None,
        session: Session,
    ) -> None:
        """A step was done, in ``seconds``; ``clamped`` are the sites that clamped since the last
        checkpoint, None but at one."""
        batch, step = self._task.spec.batch, record.step
        loss = compute_mean_loss(self._task.graph, record.loss, batch)
        measured: dict[str, Any] = {}
        if clamped is not None:
            worst = clamped[0] if clamped else None
            measured["saturation"] = 0.0 if worst is None else round(worst.ppm, 3)
            measured["saturated"] = None if worst is None else worst.site
        if self._test is not None and (step % self._eval_every == 0 or step == self._target):
            state = session.read_state()
            found = evaluate(self._task.graph, state, self._test, engine=self._engine)
            measured["test_loss"], measured["test_accuracy"] = found.loss, found.accuracy
        speed = batch / max(seconds, 1e-9)
        entry = Entry(
            step=step,
            loss=loss,
            learning_rate=self._find_rate(step),
            seconds=round(seconds, 9),
            samples_per_second=speed,
            tokens_per_second=speed * self._labels if self._labels > 1 else None,
            **measured,
        )
        if self._history is not None:
            self._history.append(entry)
        for callback in self._callbacks:
            callback.step(entry)
        if self._progress is not None:
            passed = time.perf_counter() - self._started
            done = (step - self._first) * batch / max(passed, 1e-9)
            self._progress(step, self._target, loss, done)

    def _find_rate(self, step: int) -> float | None:
        return None if self._curve is None else float(self._curve.compute_rate(step - 1))

    def end(self) -> None:
        """No step follows: close what was opened, each callback even where another fails."""
        if self._history is not None:
            self._history.close()
        failed: BaseException | None = None
        while self._begun:
            try:
                self._begun.pop().end()
            except Exception as error:  # noqa: BLE001 - raised below, when all have heard of it
                failed = failed or error
        if failed is not None:
            raise failed


def _load_test(task: CompiledTask) -> Samples:
    """What a task is measured on; RunError where it has nothing."""
    from vtrain.train.written import load_test

    found = None if task.file is None else load_test(task.file)
    if found is None:
        raise RunError(
            "needs held-out data, and the task has none: give it a table [test], or "
            "validation = 0.1 in [data] of kind tokens (from Python: test=)",
            where="eval_every",
        )
    # Now, and not after so many steps: a run that ends there has no claim.
    check_fit(task.graph, found, "test data")
    return found
