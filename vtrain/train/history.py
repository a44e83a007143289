"""What a run says of itself while it goes on: a line of JSON for each step.

``history.jsonl`` in the run directory is for people and tools.  It is no part of the commitments,
the manifest does not list it, and no check reads it.  Losses stand in the run's log as well, so
that a run without the file has a history too.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, Final

from vtrain.commit.files import open_file, read_file, storing, write_atomic
from vtrain.commit.log import iterate_log
from vtrain.errors import EncodingError, VtrainWarning
from vtrain.limits import LIMITS
from vtrain.train.deliver import compute_mean_loss
from vtrain.train.layout import RunPaths
from vtrain.train.signed import read_graph, read_task
from vtrain.wire.json_text import decode_json
from vtrain.wire.record import MAX_STEPS


@dataclass(frozen=True)
class Entry:
    """One step: what is not known of it, or was not measured in it, is None.

    ``loss`` is the mean of the step's batch (nats a label, for MSE squared error a sample);
    ``learning_rate`` that of the task file; ``seconds`` what the step took, evaluation and waiting
    for checkpoints left out, and ``tokens_per_second`` is there where samples are sequences of
    labels.  At checkpoints ``saturation`` is the share of elements, in millionths, that the site
    ``saturated`` clamped since the one before, the worst of all sites.  ``test_loss`` and
    ``test_accuracy`` are there in steps after which the run was evaluated.
    """

    step: int
    loss: float
    learning_rate: float | None = None
    seconds: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    saturation: float | None = None
    saturated: str | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None

    def to_dict(self) -> dict[str, int | float | str]:
        """What is known, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def measures(self) -> dict[str, float]:
        """The numbers that are known, but for the step."""
        return {
            name: value
            for name, value in self.to_dict().items()
            if name != "step" and not isinstance(value, str)
        }


_NUMBERS: Final = tuple(
    field.name for field in fields(Entry) if field.name not in ("step", "saturated")
)
_WIDTH, _HEIGHT, _COLUMNS = 360, 80, 200
"""Of the picture of a notebook."""


class HistoryFile:
    """``history.jsonl`` of a run that goes on after ``begun`` steps, open for the lines that come.

    What the file has of later steps is of a process that was interrupted, and is dropped, as those
    steps are done again.
    """

    def __init__(self, path: Path, begun: int) -> None:
        self._path = path
        found = read_file(path, LIMITS.log_bytes, root=path.parent) if path.exists() else b""
        lines = found.splitlines(keepends=True)
        kept = b"".join(line for line in lines if 0 < _find_step(line) <= begun)
        if kept != found:
            write_atomic(path, [kept])
        with storing(path):
            # Without a buffer: whoever reads it has each line, and closing writes nothing.
            self._file: IO[bytes] = path.open("ab", buffering=0)

    def append(self, entry: Entry) -> None:
        """Write a line, for whoever reads it now.

        Where the system refuses, the run goes on without its history, which nothing depends on: a
        VtrainWarning says so, once.
        """
        if self._file.closed:
            return
        try:
            self._file.write(json.dumps(entry.to_dict()).encode() + b"\n")
        except OSError as error:
            self._file.close()
            warnings.warn(
                f"{self._path} cannot be written from step {entry.step} on ({error.strerror}): the "
                "run goes on without its history",
                VtrainWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _find_step(line: bytes) -> int:
    """The step of a line; 0 for what is no line of a history."""
    try:
        return _decode_line(line, "").step if line.endswith(b"\n") else 0
    except EncodingError:
        return 0


def read_history(run: Path) -> tuple[Entry, ...]:
    """The steps of a run directory, in their order, be it still written.

    Losses are those of the log as it is; all else is what ``history.jsonl`` says, where that is
    there.  Nothing of it is checked: `vtrain verify` does so, of the log.  RunError when ``run`` is
    no run directory, NotProducedError or EncodingError for files that are missing or malformed.
    """
    paths = RunPaths(run)
    paths.require_run()
    task = read_task(paths)
    graph = read_graph(paths, task)
    known = _read_lines(paths) if paths.history.exists() else {}
    entries: list[Entry] = []
    if not paths.log.exists():
        return ()
    with open_file(paths.log, LIMITS.log_bytes, root=paths.root, growing=True) as file:
        try:
            for record in iterate_log(file):
                loss = compute_mean_loss(graph, record.loss, task.batch)
                entry = known.get(record.step, Entry(record.step, loss))
                entries.append(replace(entry, loss=loss))
        except EncodingError:
            if not entries:
                raise
            # The last record may be half written; what is before it stands.
    return tuple(entries)


def _read_lines(paths: RunPaths) -> dict[int, Entry]:
    """The entries of the file by step; of a line that is still written nothing."""
    with open_file(paths.history, LIMITS.log_bytes, root=paths.root, growing=True) as file:
        lines = file.read(file.size).split(b"\n")[:-1]
    where = str(paths.history)
    entries = [_decode_line(line, f"{where}: line {i + 1}") for i, line in enumerate(lines)]
    return {entry.step: entry for entry in entries}


def _decode_line(line: bytes, where: str) -> Entry:
    """EncodingError for what is no entry; what it says besides those known here is passed over."""
    value = decode_json(line, where)
    if not isinstance(value, dict):
        raise EncodingError("is no object", where=where)
    step = value.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 < step <= MAX_STEPS:
        raise EncodingError("has no step", where=where)
    numbers = {name: _take_number(value, name, where) for name in _NUMBERS}
    loss = numbers.pop("loss")
    if loss is None:
        raise EncodingError("has no loss", where=where)
    site = value.get("saturated")
    if site is not None and not isinstance(site, str):
        raise EncodingError("is no text", where=f"{where}: saturated")
    return Entry(step=step, loss=loss, saturated=site, **numbers)


def _take_number(value: Mapping[str, Any], name: str, where: str) -> float | None:
    found = value.get(name)
    if found is None:
        return None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    # An integer of JSON may be beyond every float.
    if not is_number or not -1e300 < found < 1e300 or not math.isfinite(found):
        raise EncodingError("is no finite number", where=f"{where}: {name}")
    return float(found)


def draw_losses(entries: Sequence[Entry]) -> str:
    """The losses of a run as a small picture in SVG, for notebooks; empty for no run."""
    if not entries:
        return ""
    width = -(-len(entries) // _COLUMNS)
    parts = [entries[start : start + width] for start in range(0, len(entries), width)]
    means = [sum(entry.loss for entry in part) / len(part) for part in parts]
    least, most = min(means), max(means)
    across, up = _WIDTH / max(len(means) - 1, 1), _HEIGHT / ((most - least) or 1.0)
    points = " ".join(f"{i * across:.1f},{(most - y) * up + 4:.1f}" for i, y in enumerate(means))
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT + 8}" role="img">'
        f"<title>loss, from {entries[0].loss:.4g} to {entries[-1].loss:.4g}</title>"
        f'<polyline points="{points}" fill="none" stroke="#1f6feb"/></svg>'
        f"<div>loss {entries[0].loss:.4g} to {entries[-1].loss:.4g}</div>"
    )
