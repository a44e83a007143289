"""The Llama of the examples, small: its gradient and its losses beside torch's, and back."""

from __future__ import annotations

import importlib.util
import operator
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import vtrain
from tests.examples.plain import audit_plainly
from tests.examples.test_shakespeare import measure_loss
from tests.exhaustive import spare
from vtrain.attest.keys import generate_key
from vtrain.graph.onnx_import import import_onnx
from vtrain.spec.order import compute_batch_indices
from vtrain.train.deliver import export_run

pytestmark = pytest.mark.slow

SIZES = {"LAYERS": 2, "FEATURES": 32, "HEADS": 4, "SHARED": 2, "HIDDEN": 48}
PLACES, BATCH, COUNT, SEED = 16, 8, 20000, 1
TASK = """
[task]
name = "small"
seed = {seed}
steps = {steps}
batch = {batch}
checkpoint_every = 2
[model]
onnx = "llama.onnx"
loss = "cross_entropy"
[data]
kind = "tokens"
path = "tokens.bin"
dtype = "u16"
context = {places}
vocabulary = 65
count = {count}
[data.prepare]
kind = "ids"
[optimizer]
{optimizer}
"""
FINE = "\nfine_gradients = true\nwide_sums = true"
SGD = 'kind = "sgd"\nlearning_rate = 0.5\nmomentum = 0\n[format]\ncalibration_steps = 3\nmargin = 0'
"""One step needs no free bits for what later ones bring."""
ADAM = f'kind = "adamw"\nlearning_rate = 0.003\nweight_decay = 0\n[format]{FINE}'


@pytest.fixture
def llama(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example's file, with two blocks of 32 features for 16 places."""
    folder = repository / "examples/shakespeare"
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("gpt", None)
    spec = importlib.util.spec_from_file_location("llama", folder / "llama.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in SIZES.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module.gpt, "CONTEXT", PLACES)
    yield module
    sys.modules.pop("gpt", None)


class Small:
    """The model, its file, and the text, in a folder of its own."""

    def __init__(self, llama: ModuleType, folder: Path) -> None:
        characters, self.ids = llama.read_ids()
        self.folder = folder
        self.ids.tofile(folder / "tokens.bin")
        torch.manual_seed(0)
        self.network = llama.Llama(len(characters)).eval()
        llama.export(self.network, folder / "llama.onnx")
        generate_key(folder / "key.pem")

    def train(self, optimizer: str, steps: int, name: str) -> Any:
        """The task and the run."""
        file = self.folder / f"{name}.toml"
        file.write_text(TASK.format(optimizer=optimizer, steps=steps, seed=SEED, batch=BATCH,
                                    places=PLACES, count=COUNT))  # fmt: skip
        vtrain.profile(file)
        task = vtrain.compile(file)
        key = vtrain.load_key(self.folder / "key.pem")
        return task, vtrain.train(task, self.folder / name, key=key)

    def loss(self, step: int) -> torch.Tensor:
        """torch's, of the windows that a step has."""
        index = compute_batch_indices(SEED, COUNT - PLACES, BATCH, step)
        windows = np.stack([self.ids[i : i + PLACES + 1] for i in index]).astype(np.int64)
        ids = torch.from_numpy(windows)
        logits = self.network(ids[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def read_weights(file: Path) -> dict[str, npt.NDArray[np.float64]]:
    model = import_onnx(file)
    return {name: np.ldexp(model.params[name].astype(np.float64), -24) for name in model.trained}


@pytest.mark.parametrize("fine", spare(["", FINE], operator.not_))
def test_one_step_is_torchs_gradient(fine: str, llama: ModuleType, tmp_path: Path) -> None:
    small = Small(llama, tmp_path)
    _, run = small.train(SGD + fine, 1, "sgd")
    exported, _ = export_run(run.path, tmp_path / "out")
    before, after = read_weights(tmp_path / "llama.onnx"), read_weights(exported)
    small.loss(0).backward()  # type: ignore[no-untyped-call]
    expected = [p.grad.numpy() for p in small.network.parameters() if p.grad is not None]
    found = [(before[name] - after[name]) / 0.5 for name in before]
    assert len(found) == len(expected) == 2 + 2 * 9 + 1
    unmatched, total = list(expected), 0.0
    for gradient in found:
        # The file has the products' weights transposed, and names them by numbers.
        distances = [
            min(
                float(np.linalg.norm(gradient - candidate) / np.linalg.norm(candidate))
                for candidate in (other, other.T)
                if candidate.shape == gradient.shape
            )
            if gradient.shape in (other.shape, other.shape[::-1])
            else np.inf
            for other in unmatched
        ]
        best = int(np.argmin(distances))
        # Those of queries and keys are two hundredths of the others here, and less exact for it.
        norm = float(np.linalg.norm(unmatched[best]))
        assert distances[best] < (0.05 if norm < 0.002 and not fine else 0.01)
        total += (distances[best] * norm) ** 2
        unmatched.pop(best)
    whole = sum(float(np.linalg.norm(gradient)) ** 2 for gradient in expected)
    assert total < 0.005**2 * whole


def test_a_llama_is_trained_as_by_torch_verified_and_exported(
    llama: ModuleType, tmp_path: Path
) -> None:
    small = Small(llama, tmp_path)
    task, run = small.train(ADAM, 30, "adam")
    report = vtrain.verify(run.path, samples=2, task_id=task.task_id)
    assert report.verdict == "verified"
    assert audit_plainly(run.path, "--samples", "1")["verdict"] == "verified"
    adam = torch.optim.AdamW(small.network.parameters(), 0.003, weight_decay=0)
    for step in range(30):
        adam.zero_grad()
        small.loss(step).backward()  # type: ignore[no-untyped-call]
        adam.step()
    exported, _ = export_run(run.path, tmp_path / "out")
    llama.export(small.network, tmp_path / "torch.onnx")
    rest = small.ids[COUNT:]
    before = measure_loss(tmp_path / "llama.onnx", rest)
    ours, torchs = (measure_loss(file, rest) for file in (exported, tmp_path / "torch.onnx"))
    assert before == pytest.approx(np.log(65), abs=0.1)
    assert ours < before - 0.8
    assert ours == pytest.approx(torchs, abs=0.01)
