"""A run's history in logs of experiments: TensorBoard and Weights & Biases.

Both get the numbers of :class:`vtrain.train.history.Entry` under their names.  A run that goes on
after an interruption replaces what was logged of steps that are done again.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtrain.errors import MissingExtraError
from vtrain.train.watch import Callback, Start

if TYPE_CHECKING:
    from vtrain.train.history import Entry


class TensorBoard(Callback):
    """Writes a run into ``folder``, as `tensorboard --logdir` reads it (extra tensorboard).

    MissingExtraError without tensorboardX.
    """

    def __init__(self, folder: str | Path) -> None:
        _require("tensorboardX", "tensorboard")
        self._folder = Path(folder)
        self._writer: Any = None

    def begin(self, start: Start) -> None:
        from tensorboardX import SummaryWriter

        # What has been logged of later steps is of a process that was interrupted.
        purged = start.begun + 1 if start.begun else None
        # Names of files have seconds in them: two calls in one second must not share one.
        suffix = f".{start.begun}"
        self._writer = SummaryWriter(
            logdir=str(self._folder), purge_step=purged, filename_suffix=suffix
        )
        lines = (f"| {key} | {value} |" for key, value in start.config.items())
        self._writer.add_text("run", "\n".join(("| | |", "|-|-|", *lines)), start.begun)

    def step(self, entry: Entry) -> None:
        for name, value in entry.measures().items():
            self._writer.add_scalar(name, value, entry.step)

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases(Callback):
    """Logs a run to Weights & Biases (extra wandb), on this machine alone unless ``mode`` is
    "online": `wandb sync` sends what is in ``folder``.

    ``options`` are those of ``wandb.init``, as ``name`` and ``tags``.  MissingExtraError without
    wandb.
    """

    def __init__(
        self,
        project: str,
        *,
        folder: str | Path | None = None,
        mode: str = "offline",
        **options: Any,
    ) -> None:
        _require("wandb", "wandb")
        self._options = {"project": project, "mode": mode, **options}
        if folder is not None:
            self._options["dir"] = str(folder)
        self._run: Any = None

    def begin(self, start: Start) -> None:
        import wandb

        given = {"name": start.name, "config": start.config}
        if "dir" in self._options:  # wandb takes another folder where it is not there
            Path(self._options["dir"]).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(**(given | self._options))

    def step(self, entry: Entry) -> None:
        self._run.log(entry.measures(), step=entry.step)

    def end(self) -> None:
        if self._run is not None:
            self._run.finish()


def _require(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise MissingExtraError(
            f'needs {package}: pip install "vtrain[{extra}]"', where=f"log to {extra}"
        )
