"""The GPT of the examples, small: from torch to a run that verifies, and back."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import vtrain
from tests.examples.plain import audit_plainly
from tests.examples.running import run
from tests.exhaustive import spare
from tests.prove.test_tile_runs import fake_circuits
from vtrain.attest.keys import generate_key
from vtrain.demo.cheats import CHEATS
from vtrain.engines.registry import open_session
from vtrain.graph.onnx_import import import_onnx
from vtrain.ops import TABLE
from vtrain.train.deliver import compute_mean_loss, export_run
from vtrain.train.task import CompiledTask

pytestmark = pytest.mark.slow

TASK = """
[task]
name = "small"
seed = 1
steps = 60
batch = 8
checkpoint_every = 4
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
[format]
symmetric_gradients = true
fine_gradients = true
"""


def load(repository: Path, name: str) -> ModuleType:
    """A copy of one of the example's files, of which no import knows."""
    path = repository / "examples" / "shakespeare" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure_loss(model: Path, ids: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]) -> float:
    """Nats a place of the ONNX file, in floats, over windows of the text."""
    session = onnxruntime.InferenceSession(model)
    windows = ids[: 64 * 17].reshape(64, 17).astype(np.int64)
    (logits,) = session.run(None, {session.get_inputs()[0].name: windows[:, :-1]})
    scores = torch.from_numpy(logits).reshape(-1, logits.shape[-1])
    labels = torch.from_numpy(np.ascontiguousarray(windows[:, 1:]).reshape(-1))
    return float(torch.nn.functional.cross_entropy(scores, labels))


@dataclass(frozen=True)
class Written:
    """A task file with its exponents, of a model of one block, and the text in numbers.  Tests only
    read them."""

    file: Path
    ids: np.ndarray[Any, Any]

    @property
    def model(self) -> Path:
        return self.file.with_suffix(".onnx")


@pytest.fixture(scope="module")
def written(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Of 16 features for 16 places."""
    gpt, folder = load(repository, "gpt"), tmp_path_factory.mktemp("gpt")
    for name, value in {"LAYERS": 1, "FEATURES": 16, "HEADS": 2, "CONTEXT": 16}.items():
        setattr(gpt, name, value)
    characters, ids = gpt.read_ids()
    assert (len(characters), ids.size) == (65, 1_115_394)
    ids.tofile(folder / "tokens.bin")
    torch.manual_seed(0)
    gpt.export(gpt.GPT(len(characters)).eval(), folder / "gpt.onnx")
    (folder / "gpt.toml").write_text(TASK)
    vtrain.profile(folder / "gpt.toml")
    return Written(folder / "gpt.toml", ids)


def train(file: Path, folder: Path) -> tuple[CompiledTask, Path]:
    task = vtrain.compile(file)
    generate_key(folder / "key.pem")
    key = vtrain.load_key(folder / "key.pem")
    return task, vtrain.train(task, folder / "run", key=key).path


def test_a_gpt_is_trained_verified_and_exported(
    written: Written, repository: Path, tmp_path: Path
) -> None:
    ids, model = written.ids, import_onnx(written.model)
    assert len(model.params) == 16, "the tables are one; norms and biases are apart"
    task, path = train(written.file, tmp_path)
    report = vtrain.verify(path, samples=3, task_id=task.task_id)
    assert report.verdict == "verified"
    assert audit_plainly(path, "--samples", "1")["verdict"] == "verified"
    exported, _ = export_run(path, tmp_path / "out")
    before = measure_loss(written.model, ids[20000:])
    after = measure_loss(exported, ids[20000:])
    assert before == pytest.approx(np.log(65), abs=0.1)
    assert after < before - 0.7

    def write(*options: object) -> str:
        return run(repository, "shakespeare/write.py", exported, "--count", 30, *options)

    prompt = "What light through yonder window"  # longer than the 16 places
    first, again = (write("--prompt", prompt, "--seed", 1) for _ in "ab")
    assert first == again
    assert first.startswith(prompt)
    assert len(first) == len(prompt) + 30 + 1
    assert write("--seed", 2) != write("--seed", 3)
    assert write("--temperature", 0, "--seed", 2) == write("--temperature", 0, "--seed", 3)


def test_cheats_are_caught_and_disputed(written: Written, repository: Path) -> None:
    short: tuple[object, ...] = ("--task", written.file, "--steps", 8, "--false-step", 7)
    out = run(repository, "shakespeare/cheats.py", *short)
    assert out.count("in step 7 of 8: fraud, at step 7") == len(CHEATS)
    out = run(repository, "dispute/run.py", *short, "--commit-every", 4)
    assert "The solver's claim fell: refuted at step 7, node " in out
    assert "That node is 'update/characters.weight', a rescale of shape (65, 16)." in out
    assert "What stands is the root of the honest run." in out
    assert "replayed here: the same verdict." in out


@pytest.mark.parametrize("real", spare([False, True], operator.not_))
def test_a_tile_of_a_step_is_proven(
    written: Written,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    real: bool,
) -> None:
    """Of whatever statement is drawn, to an auditor with public files alone; all is as it stands
    there, unless keys and ezkl are stand-ins."""
    if not real:
        fake_circuits(monkeypatch)
    arguments = ["tile.py", "--task", str(written.file), "--steps", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    load(repository, "tile").main()
    out = capsys.readouterr().out
    assert "statements say all of the step" in out
    assert "verifies it with public files alone: verified" in out
    assert "and of a proof with another end: inconclusive" in out
    assert "one false tile among the " in out


def test_torch_trains_with_the_masks_of_the_task(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What benchmarks/transformer.py compares: layer by layer the same masks, and then losses."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    shakespeare = importlib.import_module("_shakespeare")
    gpt = shakespeare.load_example("gpt")
    for name, value in {"FEATURES": 16, "HEADS": 2, "CONTEXT": 16}.items():
        monkeypatch.setattr(gpt, name, value)
    sizes = {table: {"context": 16} for table in ("data", "test")}
    sizes["test"] |= {"stride": 16, "count": 1000}
    settings = {
        **sizes,
        "schedule": {"warmup": 1},
        "optimizer": {"learning_rate": 0.01},
        "format": {"calibration_steps": 3},
    }
    both = shakespeare.Variant(steps=30, layers=1, dropout=0.25, settings=settings).open(tmp_path)
    task = both.compile()
    masks = [i for i, node in enumerate(task.graph.nodes) if node.op == "dropout_mask"]
    assert len(masks) == 4, "of embeddings, weights of attention, and both parts of the block"
    session = open_session("cpu", task.graph, task.samples)
    session.load_state(task.initial_state)
    network = both.variant.make_network()
    seen: list[tuple[int, ...]] = []
    compute = shakespeare.Masks.compute

    def watch(self: Any, step: int, site: int, shape: tuple[int, ...]) -> torch.Tensor:
        mask: torch.Tensor = compute(self, step, site, shape)
        node = task.graph.nodes[masks[site]]
        exact = TABLE[node.op].law(node.attrs, [np.asarray(step)])
        exponent = node.outputs[0].exponent
        assert exact.shape == shape
        assert np.array_equal(mask.numpy(), np.ldexp(exact.astype(np.float32), -exponent))
        seen.append((step, site))
        return mask

    monkeypatch.setattr(shakespeare.Masks, "compute", watch)
    train = both.make_torch_step(network)
    for step in range(3):
        wanted = float(train(step).detach())
        found = compute_mean_loss(task.graph, session.step().loss, task.spec.batch)
        assert abs(wanted - found) < 2e-3
    assert seen == [(step, site) for step in range(3) for site in range(4)]
    before = both.measure_torch(network)
    assert both.measure_torch(network) == before, "masks are in the measure"
