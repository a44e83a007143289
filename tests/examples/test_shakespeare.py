"""The GPT of the examples, small: from torch to a run that verifies, and back."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest
import torch

import vtrain
from vtrain.attest.keys import generate_key
from vtrain.graph.onnx_import import import_onnx
from vtrain.train.deliver import export_run

TASK = """
[task]
name = "small"
seed = 1
steps = 60
batch = 8
checkpoint_every = 20
[model]
onnx = "gpt.onnx"
loss = "cross_entropy"
[data]
kind = "tokens"
path = "tokens.bin"
dtype = "u16"
context = 16
vocabulary = 65
count = 20000
[data.prepare]
kind = "ids"
[optimizer]
kind = "adamw"
learning_rate = 0.01
no_decay = ["*.bias*", "*norm*"]
clip_norm = 1.0
[schedule]
kind = "cosine"
warmup = 10
"""


@pytest.fixture
def gpt(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's file, with one block of 16 features for 16 places."""
    spec = importlib.util.spec_from_file_location("gpt", repository / "examples/shakespeare/gpt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in {"LAYERS": 1, "FEATURES": 16, "HEADS": 2, "CONTEXT": 16}.items():
        monkeypatch.setattr(module, name, value)
    return module


def measure_loss(model: Path, ids: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]) -> float:
    """Nats a place of the ONNX file, in floats, over windows of the text."""
    session = onnxruntime.InferenceSession(model)
    windows = ids[: 64 * 17].reshape(64, 17).astype(np.int64)
    (logits,) = session.run(None, {session.get_inputs()[0].name: windows[:, :-1]})
    scores = torch.from_numpy(logits).reshape(-1, logits.shape[-1])
    labels = torch.from_numpy(np.ascontiguousarray(windows[:, 1:]).reshape(-1))
    return float(torch.nn.functional.cross_entropy(scores, labels))


def test_a_gpt_is_trained_verified_and_exported(gpt: ModuleType, tmp_path: Path) -> None:
    characters, ids = gpt.read_ids()
    assert (len(characters), ids.size) == (65, 1_115_394)
    ids.tofile(tmp_path / "tokens.bin")
    torch.manual_seed(0)
    gpt.export(gpt.GPT(len(characters)).eval(), tmp_path / "gpt.onnx")
    model = import_onnx(tmp_path / "gpt.onnx")
    assert len(model.params) == 16, "the tables are one; norms and biases are apart"
    (tmp_path / "gpt.toml").write_text(TASK)
    vtrain.profile(tmp_path / "gpt.toml")
    task = vtrain.compile(tmp_path / "gpt.toml")
    generate_key(tmp_path / "key.pem")
    key = vtrain.load_key(tmp_path / "key.pem")
    run = vtrain.train(task, tmp_path / "run", key=key)
    report = vtrain.verify(run.path, samples=3, task_id=task.task_id)
    assert report.verdict == "verified"
    exported, _ = export_run(run.path, tmp_path / "out")
    before = measure_loss(tmp_path / "gpt.onnx", ids[20000:])
    after = measure_loss(exported, ids[20000:])
    assert before == pytest.approx(np.log(65), abs=0.1)
    assert after < before - 0.7
