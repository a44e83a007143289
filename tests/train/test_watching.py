"""Watching a run: its history, evaluation on the way, logs of experiments, and no other root."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import vtrain
from tests.cli.calls import TASK as TINY
from tests.tasks import make_mlp_onnx, make_samples
from vtrain.attest.keys import PrivateKey
from vtrain.errors import EncodingError, MissingExtraError, RunError, VtrainWarning
from vtrain.train import loggers, plot
from vtrain.train.history import Entry, read_history
from vtrain.train.layout import RunPaths
from vtrain.train.progress import Bar, Picture
from vtrain.train.watch import Callback, Start

SCHEDULE = """
[schedule]
kind = "linear"
warmup = 2
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> vtrain.CompiledTask:
    """Twelve steps, with a schedule and held-out samples."""
    folder = tmp_path_factory.mktemp("task")
    samples = make_samples((16,), 40, seed=3)
    np.save(folder / "x.npy", samples.part("x"))
    np.save(folder / "y.npy", samples.part("y"))
    (folder / "model.onnx").write_bytes(make_mlp_onnx(3))
    (folder / "task.toml").write_text(TINY + SCHEDULE)
    vtrain.profile(folder / "task.toml")
    return vtrain.compile(folder / "task.toml")


class Listener(Callback):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def begin(self, start: Start) -> None:
        self.heard.append((start.begun, start.target, start.name))

    def step(self, entry: Entry) -> None:
        self.heard.append(entry)

    def end(self) -> None:
        self.heard.append("end")


def read_lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in RunPaths(run).history.read_text().splitlines()]


def test_a_history_says_what_each_step_was(
    tmp_path: Path, key: PrivateKey, task: vtrain.CompiledTask
) -> None:
    listener = Listener()
    run = vtrain.train(task, tmp_path / "run", key=key, callbacks=[listener], eval_every=5)
    history = run.history
    assert [entry.step for entry in history] == list(range(1, 13))
    assert listener.heard == [(0, 12, "run"), *history, "end"]
    # 0.5 at its largest: two steps of warm-up, then a line to 0 at step 12.
    rates = [entry.learning_rate for entry in history]
    assert rates == pytest.approx([0.25, 0.5, *(0.05 * (12 - step) for step in range(2, 12))])
    assert all(entry.seconds and entry.samples_per_second for entry in history)
    assert all(entry.tokens_per_second is None for entry in history), "a label a sample"
    assert [e.step for e in history if e.saturation is not None] == [4, 8, 12], "checkpoints"
    measured = {entry.step: entry.test_loss for entry in history if entry.test_loss is not None}
    assert list(measured) == [5, 10, 12]
    last = vtrain.evaluate(run, task=task)
    assert (measured[12], history[-1].test_accuracy) == (last.loss, last.accuracy)
    assert read_lines(run.path) == [entry.to_dict() for entry in history]


def test_nothing_of_it_is_committed_to(
    tmp_path: Path, key: PrivateKey, task: vtrain.CompiledTask
) -> None:
    watched = vtrain.train(task, tmp_path / "a", key=key, eval_every=1, callbacks=[Listener()])
    alone = vtrain.train(task, tmp_path / "b", key=key)
    assert (watched.root, watched.log_root) == (alone.root, alone.log_root)
    RunPaths(alone.path).history.unlink()
    report = vtrain.verify(alone.path, all=True)
    assert report
    assert vtrain.verify(watched.path, all=True).strength == report.strength
    # What is in the log is known without the file, and nothing else is.
    bare = [Entry(entry.step, entry.loss) for entry in watched.history]
    assert list(read_history(alone.path)) == bare


def test_a_run_that_goes_on_drops_what_is_done_again(
    tmp_path: Path, key: PrivateKey, task: vtrain.CompiledTask
) -> None:
    class Stop(Callback):
        def step(self, entry: Entry) -> None:
            if entry.step == 7:
                raise KeyboardInterrupt

    listener = Listener()
    with pytest.raises(KeyboardInterrupt):
        vtrain.train(task, tmp_path / "run", key=key, callbacks=[Stop(), listener])
    assert listener.heard[-1] == "end", "whoever was told of a beginning is told of the end"
    assert len(read_lines(tmp_path / "run")) == 7
    with RunPaths(tmp_path / "run").history.open("a") as file:
        file.write('{"step": 3, "lo')  # as kill -9 leaves it
    run = vtrain.train(task, tmp_path / "run", key=key)
    assert run.resumed_from == 4
    assert [line["step"] for line in read_lines(run.path)] == list(range(1, 13))
    before = RunPaths(run.path).history.read_bytes()
    vtrain.train(task, tmp_path / "run", key=key)
    assert RunPaths(run.path).history.read_bytes() == before, "a finished run is left as it is"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "no object"),
        ('{"loss": 1}', "no step"),
        ('{"step": true, "loss": 1}', "no step"),
        ('{"step": 1}', "no loss"),
        ('{"step": 1, "loss": NaN}', "NaN is no number"),
        ('{"step": 1, "loss": 1e999}', "finite"),
        (f'{{"step": 1, "loss": {"9" * 400}}}', "finite"),
        ('{"step": 1, "loss": 1, "seconds": "2"}', "finite"),
        ('{"step": 1, "loss": 1, "saturated": 3}', "no text"),
        ("[" * 100, "nested"),
    ],
)
def test_lines_of_a_stranger_are_refused_by_their_number(
    tmp_path: Path, key: PrivateKey, task: vtrain.CompiledTask, line: str, reason: str
) -> None:
    run = vtrain.train(task, tmp_path / "run", key=key, steps=2)
    path = RunPaths(run.path).history
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(EncodingError, match=reason) as caught:
        read_history(run.path)
    assert "line 3" in caught.value.where


def test_evaluation_needs_held_out_data(
    tmp_path: Path, key: PrivateKey, task: vtrain.CompiledTask
) -> None:
    import dataclasses

    assert task.file is not None
    without = dataclasses.replace(task, file=dataclasses.replace(task.file, test=None))
    with pytest.raises(RunError, match=r"table \[test\]"):
        vtrain.train(without, tmp_path / "run", key=key, eval_every=1)
    with pytest.raises(RunError, match="negative"):
        vtrain.train(task, tmp_path / "run", key=key, eval_every=-1)
    assert not (tmp_path / "run").exists()


def test_tensorboard_reads_what_is_logged(
    tmp_path: Path, key: PrivateKey, task: vtrain.CompiledTask
) -> None:
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "events"
    for steps in (4, 12):  # the second call goes on, and purges what it does again
        logger = vtrain.TensorBoard(folder)
        vtrain.train(task, tmp_path / "run", key=key, callbacks=[logger], eval_every=6, steps=steps)
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.iterdir()):
        for event in read_events(path.read_bytes()):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, {})[event.step] = value.simple_value
    history = read_history(tmp_path / "run")
    assert found.keys() == {name for entry in history for name in entry.measures()}
    assert found["loss"] == pytest.approx({entry.step: entry.loss for entry in history})
    assert found["test_loss"].keys() == {4, 6, 12}


def read_events(data: bytes) -> list[Any]:
    """Events of a file as TensorBoard has it: length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    events, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        events.append(Event.FromString(data[at + 12 : at + 12 + length]))
        at += 16 + length
    return events


def read_logged(folder: Path) -> list[Any]:
    """Records of the one run that wandb wrote: blocks of 2^15 bytes, after a header of seven, with
    the checksum, length and kind (whole, first, middle, last) of each part of a record."""
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, whole, records = path.read_bytes(), 7, b"", []
    while at < len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            records.append(messages.Record.FromString(whole))
            whole = b""
    return records


def test_weights_and_biases_are_told_the_same(
    tmp_path: Path, key: PrivateKey, task: vtrain.CompiledTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the package itself, offline: what it wrote into a folder that was not there."""
    import wandb

    for name in ("MODE", "CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", "offline" if name == "MODE" else str(tmp_path / name))
    folder = tmp_path / "logs"
    settings = wandb.Settings(silent=True, x_disable_stats=True, console="off")
    logger = vtrain.WeightsAndBiases("project", folder=folder, tags=["one"], settings=settings)
    try:
        run = vtrain.train(task, tmp_path / "run", key=key, callbacks=[logger])
    finally:
        wandb.teardown()
    records = read_logged(folder)
    (begun,) = (record.run for record in records if record.HasField("run"))
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["task_id"] == task.task_id.hex()
    assert (begun.project, begun.display_name, [*begun.tags]) == ("project", "run", ["one"])
    logged = {
        record.history.step.num: {
            item.nested_key[0]: json.loads(item.value_json) for item in record.history.item
        }
        for record in records
        if record.HasField("history")
    }
    expected = {entry.step: entry.measures() for entry in run.history}
    assert {
        step: {name: values[name] for name in expected[step]} for step, values in logged.items()
    } == expected
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]


@pytest.mark.parametrize(
    ("make", "extra"), [("TensorBoard", "tensorboard"), ("WeightsAndBiases", "wandb")]
)
def test_a_missing_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, make: str, extra: str
) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf"vtrain\[{extra}\]"):
        getattr(vtrain, make)("there")


def test_a_picture_has_a_line_for_each_run_that_knows_something(
    tmp_path: Path, key: PrivateKey, task: vtrain.CompiledTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    one = vtrain.train(task, tmp_path / "a" / "run", key=key, eval_every=4)
    two = vtrain.train(task, tmp_path / "b" / "run", key=key, steps=6)
    RunPaths(two.path).history.unlink()  # of a run without its history the losses are known
    figure = vtrain.plot(one, two.path)
    loss, rate, clamped, time = figure.axes
    labels = [line.get_label() for line in loss.lines]
    assert labels == ["a/run", "b/run", "a/run, test"]
    assert [np.asarray(line.get_ydata()).tolist() for line in loss.lines[:2]] == [
        [entry.loss for entry in run.history] for run in (one, two)
    ]
    assert [len(panel.lines) for panel in (rate, clamped, time)] == [1, 1, 1]
    for name, head in (("p.png", b"\x89PNG"), ("p.svg", b"<?xml")):
        vtrain.plot(one, two, out=tmp_path / name)
        first = (tmp_path / name).read_bytes()
        assert first.startswith(head)
        vtrain.plot(one, two, out=tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
    with pytest.raises(RunError, match=r"no \.png and no \.svg"):
        vtrain.plot(one, out=tmp_path / "p.pdf")
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"vtrain\[plot\]"):
        vtrain.plot(one)


def test_a_history_that_cannot_be_written_stops_no_run(
    tmp_path: Path, key: PrivateKey, task: vtrain.CompiledTask
) -> None:
    class Fill(Callback):
        def step(self, entry: Entry) -> None:
            for link in Path("/proc/self/fd").iterdir() if entry.step == 2 else ():
                with suppress(OSError):
                    if link.samefile(RunPaths(folder).history):
                        with Path("/dev/full").open("wb") as full:
                            os.dup2(full.fileno(), int(link.name))

    folder = tmp_path / "run"
    with pytest.warns(VtrainWarning, match=r"from step 3 on .*without its history"):
        run = vtrain.train(task, folder, key=key, steps=4, callbacks=[Fill()])
    assert [entry.seconds is None for entry in run.history] == [False, False, True, True]
    assert vtrain.train(task, folder, key=key).history[-1].seconds is not None


def test_a_table_is_drawn_where_cells_run_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that import what notebooks are made with are no notebooks."""
    from types import SimpleNamespace

    from vtrain.train.progress import choose_display

    monkeypatch.setattr("sys.stderr", io.StringIO())
    for shell, drawn in (
        (None, False),
        (SimpleNamespace(), False),
        (SimpleNamespace(kernel=1), True),
    ):
        found = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "ipykernel", found)
        monkeypatch.setitem(sys.modules, "IPython", found)
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=print))
        assert (choose_display() is not None) == drawn


# --- what people see


class Screen:
    """What a notebook shows of one cell."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, data: dict[str, str], **options: object) -> Screen:
        self.shown.append(data["text/html"])
        return self

    def update(self, data: dict[str, str], **options: object) -> None:
        self.shown.append(data["text/html"])


@pytest.mark.parametrize("noun", ["samples", "tokens"])
def test_both_displays_say_what_counts_of_a_run(
    noun: str, task: vtrain.CompiledTask, tmp_path: Path
) -> None:
    seconds, screen = 0.0, Screen()
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, color_system=None, width=200)
    displays = (Bar(console, lambda: seconds), Picture(screen.display))
    for display in displays:
        display.begin(Start(task, tmp_path, 0, 12))
        for step in range(1, 4):
            seconds += 0.5
            display.step(
                Entry(
                    step=step,
                    loss=1.25,
                    seconds=0.5,
                    samples_per_second=8.0,
                    tokens_per_second=2048.0 if noun == "tokens" else None,
                    saturation=12.5 if step == 2 else None,  # at a checkpoint alone
                )
            )
        display.end()
    speed = "8" if noun == "samples" else "2,048"
    # Nine steps of half a second are left; the bar counts whole seconds.
    words = f"loss 1.2500  step 500 ms  {noun}/s {speed}  clamped 12.5 ppm"
    (last,) = re.findall(r"step 3/12 [^\r\n\x1b]*", drawn.getvalue())[-1:]
    assert words in last
    assert last.rstrip().endswith("0:00:05")
    page = re.sub(r"(<[^>]*>)+", "|", screen.shown[-1])
    for row in (
        "|steps|3 of 12|", "|loss|1.2500|", "|step|500 ms|", f"|{noun}/s|{speed}|",
        "|clamped|12.5 ppm|", "|time left|4.5 s|",
    ):  # fmt: skip
        assert row in page, row
