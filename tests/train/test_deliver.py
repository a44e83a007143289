"""What is handed over does what was trained: measured by the law and by stock onnxruntime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import load_file

from tests.tasks import make_samples, make_tiny_task
from vtrain.audit.verify import verify
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import (
    DataError,
    EncodingError,
    ModelError,
    NotProducedError,
    RunError,
    VtrainError,
)
from vtrain.spec.commitment import compute_tensor_digest
from vtrain.spec.order import compute_batch_indices
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.train.deliver import (
    compute_mean_loss,
    evaluate,
    evaluate_run,
    export_run,
    read_weights,
)
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.signed import read_claimed_state

KINDS = [("mlp", "cross_entropy"), ("mlp", "mse"), ("cnn", "cross_entropy"), ("cnn", "mse")]


def take(samples: Samples, rows: slice | npt.NDArray[np.int64]) -> Samples:
    spec = samples.spec
    x, y = samples.part("x")[rows], samples.part("y")[rows]
    return build_samples(x, y, spec.x_exponent, spec.y_exponent)


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_a_batch_costs_what_its_step_recorded(kind: str, loss: str) -> None:
    task = make_tiny_task(kind, loss=loss)
    session = NumpySession(task.graph, task.samples)
    session.load_state(task.initial_state)
    for step in range(3):
        state = session.read_state()
        record = session.step()
        rows = compute_batch_indices(task.spec.seed, 60, task.spec.batch, step)
        found = evaluate(task.graph, state, take(task.samples, rows))
        assert found.count == task.spec.batch
        assert found.loss == compute_mean_loss(task.graph, record.loss, task.spec.batch)


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_samples_count_once_however_they_fall_into_batches(kind: str, loss: str) -> None:
    task = make_tiny_task(kind, loss=loss)
    whole = evaluate(task.graph, task.initial_state, task.samples)
    assert whole.count == 60
    for cut in (1, 13, 59):
        parts = [
            evaluate(task.graph, task.initial_state, take(task.samples, rows))
            for rows in (slice(0, cut), slice(cut, None))
        ]
        mean = sum(part.loss * part.count for part in parts) / 60
        # A sum of squares is rounded once a batch, to 16 fraction bits.
        assert mean == pytest.approx(whole.loss, abs=2**-16 if loss == "mse" else 1e-14)
        if loss == "mse":
            assert whole.accuracy is None
        else:
            right = [part.count * (part.accuracy or 0) for part in parts]
            assert sum(right) / 60 == pytest.approx(whole.accuracy)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_training_helps_and_the_export_agrees(
    tmp_path: Path, key: Ed25519PrivateKey, kind: str
) -> None:
    task = make_tiny_task(kind, steps=200, samples=200)
    train(task, tmp_path / "run", key=key, threads=1)
    shape = task.samples.spec.x_shape
    test = make_samples(shape, 100, seed=99)
    before, after = (evaluate_run(tmp_path / "run", test, step) for step in (0, None))
    assert before.accuracy is not None
    assert after.accuracy is not None
    assert after.accuracy > before.accuracy
    assert after.loss < before.loss

    onnx_path, safetensors_path = export_run(tmp_path / "run", tmp_path / "out" / "model")
    session = onnxruntime.InferenceSession(onnx_path, providers=["CPUExecutionProvider"])
    prepared = test.part("x").astype(np.float32) * np.float32(257 / 2 / 2**15)
    logits = session.run(None, {"x": prepared})[0].astype(np.float64)
    labels = test.part("y")
    assert np.mean(logits.argmax(axis=1) == labels) == pytest.approx(after.accuracy, abs=0.02)
    log_sums = np.log(np.exp(logits).sum(axis=1))
    loss = np.mean(log_sums - logits[np.arange(len(labels)), labels])
    assert loss == pytest.approx(after.loss, abs=0.01)

    _, _, state = read_claimed_state(RunPaths(tmp_path / "run"))
    weights = load_file(safetensors_path)
    assert {f"param/{name}" for name in weights} == {
        name for name in state if name.startswith("param/")
    }
    assert np.array_equal(weights["w1"], (state["param/w1"] / 2**24).astype(np.float32))


def test_samples_of_another_form_are_refused() -> None:
    task = make_tiny_task()
    x, y = task.samples.part("x"), task.samples.part("y")
    bad = {
        "x": [
            build_samples(x[:, :8], y),
            build_samples(x.astype(np.int16), y),
            build_samples(x, y, x_exponent=1),
        ],
        "y": [build_samples(x, y.astype(np.int32)), build_samples(x, y[:, None])],
    }
    for part, samples in bad.items():
        for one in samples:
            with pytest.raises(DataError) as caught:
                evaluate(task.graph, task.initial_state, one)
            assert caught.value.where == f"samples.{part}"
    with pytest.raises(DataError, match="label 4"):
        evaluate(task.graph, task.initial_state, build_samples(x, np.full_like(y, 4)))


def test_a_state_of_another_graph_is_refused() -> None:
    task, other = make_tiny_task(), make_tiny_task("cnn")
    with pytest.raises(RunError):
        evaluate(task.graph, other.initial_state, task.samples)


def test_a_checkpoint_that_is_not_there(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    task = make_tiny_task()
    train(task, tmp_path, key=key, steps=10, threads=1)
    paths = RunPaths(tmp_path)
    with pytest.raises(NotProducedError, match="commits to no state"):
        read_claimed_state(paths, 7)
    with pytest.raises(NotProducedError, match="claim is about 10 steps"):
        read_claimed_state(paths, 20)
    for step in (0, 10):
        paths.checkpoint(step).unlink()
    for asked in (None, 10):
        with pytest.raises(NotProducedError, match=r"checkpoint of step 10 is missing; .* none"):
            read_claimed_state(paths, asked)
    with pytest.raises(NotProducedError):
        read_claimed_state(RunPaths(tmp_path / "nowhere"))


def shift_step(paths: RunPaths) -> None:
    """A well-formed checkpoint in another's place."""
    shutil.copy(paths.checkpoint(10), paths.checkpoint(20))


def flip_in(name: str) -> Callable[[RunPaths], None]:
    def change(paths: RunPaths) -> None:
        content = bytearray((paths.root / name).read_bytes())
        content[-1] ^= 1
        (paths.root / name).write_bytes(content)

    return change


def drop_claim(paths: RunPaths) -> None:
    paths.claim.unlink()


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (shift_step, "checkpoints/000000000020.safetensors"),
        (flip_in("checkpoints/000000000020.safetensors"), "checkpoints/000000000020.safetensors"),
        (flip_in("log.bin"), "log.bin"),
        (flip_in("graph.cbor"), "graph.cbor"),
        (flip_in("task.cbor"), "task.cbor"),
        (flip_in("claim.cbor"), "claim"),
        (drop_claim, "claim.cbor"),
    ],
)
@pytest.mark.parametrize("step", [None, 20])
def test_only_what_the_signed_claim_commits_to_is_delivered(
    tmp_path: Path,
    key: Ed25519PrivateKey,
    damage: Callable[[RunPaths], None],
    where: str,
    step: int | None,
) -> None:
    task = make_tiny_task()
    train(task, tmp_path / "run", key=key, steps=20, threads=1)
    assert evaluate_run(tmp_path / "run", task.samples, step).count == 60
    damage(RunPaths(tmp_path / "run"))
    for deliver in (
        lambda: evaluate_run(tmp_path / "run", task.samples, step),
        lambda: export_run(tmp_path / "run", tmp_path / "out", step),
    ):
        with pytest.raises(VtrainError) as caught:
            deliver()
        assert where in caught.value.where
    assert not (tmp_path / "out").exists()


def test_an_export_needs_the_models_own_state(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    task, other = make_tiny_task(), make_tiny_task("cnn")
    digest = compute_tensor_digest(np.frombuffer(other.model, np.uint8))
    false = replace(task, spec=replace(task.spec, model_digest=digest), model=other.model)
    train(false, tmp_path / "run", key=key, steps=10, threads=1)
    with pytest.raises(RunError, match="not in the state"):
        export_run(tmp_path / "run", tmp_path / "out")
    RunPaths(tmp_path / "run").model.write_bytes(task.model)
    with pytest.raises(EncodingError, match="not the file that the task names"):
        export_run(tmp_path / "run", tmp_path / "out")


def test_a_run_whose_model_names_files_makes_nobody_read_them(
    tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stranger may make it: the task pins the file, and the weights are there too."""
    task = make_tiny_task("mlp", steps=10)
    several = tmp_path / "several.onnx"
    onnx.save(
        onnx.load_from_string(task.model), several, save_as_external_data=True,
        location="trap", size_threshold=0,
    )  # fmt: skip
    data = several.read_bytes()
    spec = replace(task.spec, model_digest=compute_tensor_digest(np.frombuffer(data, np.uint8)))
    run = tmp_path / "run"
    train(replace(task, spec=spec, model=data), run, key=key, threads=1)
    shutil.copy(tmp_path / "trap", run)
    opened: list[str] = []
    system_open = os.open

    def look(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(Path(path).name)
        return system_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", look)
    assert verify(run, all_=True).verdict == "verified"
    with pytest.raises(ModelError, match="initialiser w1: keeps its data outside the file"):
        export_run(run, tmp_path / "out")
    with pytest.raises(ModelError, match="initialiser w1: keeps its data outside the file"):
        read_weights(run)
    assert "model.onnx" in opened
    assert "trap" not in opened


def test_export_does_not_write_into_a_run(tmp_path: Path) -> None:
    (tmp_path / "task.cbor").write_bytes(b"")
    with pytest.raises(RunError, match="run directory"):
        export_run(tmp_path, tmp_path)
