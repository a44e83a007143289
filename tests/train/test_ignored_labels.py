"""A task whose loss ignores some labels: from the file to a run that verifies, and its mean."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import vtrain
from tests.train.test_embedding_tasks import PLACES, WORDS, make_model
from vtrain.attest.keys import generate_key
from vtrain.errors import DataError, TaskError
from vtrain.graph.step import APART
from vtrain.train.data import load_samples
from vtrain.train.deliver import evaluate_run
from vtrain.train.task import load_task

TASK = """
[task]
name = "ignored"
seed = 5
steps = 300
batch = 8
checkpoint_every = 100
[model]
onnx = "model.onnx"
loss = "cross_entropy"
ignore = -32700
[data]
kind = "npz"
path = "data.npz"
[data.prepare]
kind = "ids"
[optimizer]
kind = "sgd"
momentum = 0.9
learning_rate = 0.1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Labels are the ids themselves, but that the first half of each sample is ignored."""
    x = np.random.default_rng(3).integers(0, WORDS, (40, PLACES), dtype=np.int32)
    y = x.copy()
    y[:, : PLACES // 2] = -32700
    np.savez(tmp_path / "data.npz", x=x, y=y)
    onnx.save(make_model(), tmp_path / "model.onnx")
    (tmp_path / "task.toml").write_text(TASK)
    return tmp_path / "task.toml"


def test_a_task_with_ignored_labels_is_trained_and_verified(file: Path) -> None:
    vtrain.profile(file)
    task = vtrain.compile(file)
    generate_key(file.parent / "key.pem")
    run = vtrain.train(task, file.parent / "run", key=vtrain.load_key(file.parent / "key.pem"))
    found, told = ({site.site for site in sites} for sites in (run.saturation, run.warnings))
    assert APART in found - told, "clamping a difference of which the sign counts is no fault"
    report = vtrain.verify(run.path, samples=2, task_id=task.task_id)
    assert report.verdict == "verified"
    samples = load_samples(load_task(file).data)
    before, after = (evaluate_run(run.path, samples, step) for step in (0, 300))
    ids, labels = samples.part("x").astype(np.int64), samples.part("y").astype(np.int64)
    session = onnxruntime.InferenceSession(file.parent / "model.onnx")
    (logits,) = session.run(None, {"x": ids})
    kept = labels != -32700
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    chosen = np.take_along_axis(shares, ids[..., None], axis=-1)[..., 0][kept]
    assert before.loss == pytest.approx(-np.log(chosen).mean(), rel=0.01), "of those that count"
    right = (logits.argmax(axis=-1) == ids)[kept].mean()
    assert before.accuracy == pytest.approx(right, abs=0.02)
    assert after.loss < before.loss - 0.7


def test_without_the_key_such_labels_are_refused(file: Path) -> None:
    file.write_text(TASK.replace("ignore = -32700\n", ""))
    with pytest.raises(DataError, match=r"label -32700 .* set ignore = -32700 in the table model"):
        vtrain.profile(file)


def test_other_labels_out_of_range_are_refused(file: Path) -> None:
    file.write_text(TASK.replace("-32700", "-1"))
    with pytest.raises(DataError, match="label -32700 is not in"):
        vtrain.profile(file)


def test_ignored_labels_are_of_the_cross_entropy(file: Path) -> None:
    file.write_text(TASK.replace('"cross_entropy"', '"mse"'))
    with pytest.raises(TaskError, match="cross_entropy alone ignores labels"):
        vtrain.profile(file)
    assert tomllib.loads(TASK)["model"]["ignore"] == -32700
