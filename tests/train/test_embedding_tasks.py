"""Tasks whose samples are whole numbers: a small language model with a tied table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import TensorProto, helper, numpy_helper

import vtrain
from vtrain.engines.registry import open_session
from vtrain.errors import CircuitError, DataError, TaskError
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.train.data import gather_batch
from vtrain.train.deliver import evaluate
from vtrain.train.task import CompiledTask, compile_task, load_task, profile_task, write_exponents

WORDS, PLACES, FEATURES = 12, 6, 8
TASK = """
[task]
name = "words"
seed = 5
steps = 80
batch = 8
checkpoint_every = 40

[model]
onnx = "model.onnx"
loss = "cross_entropy"

[data]
kind = "npz"
path = "data.npz"

[data.prepare]
kind = "{kind}"

[optimizer]
kind = "sgd"
momentum = 0.9
learning_rate = 0.03

[format]
calibration_steps = 80
"""


def make_model() -> onnx.ModelProto:
    """[batch, PLACES] numbers -> logits [batch, PLACES, WORDS], by a table that is read twice."""
    random = np.random.default_rng(1)
    tensors = {
        "table": random.uniform(-0.5, 0.5, (WORDS, FEATURES)),
        "positions": random.uniform(-0.1, 0.1, (PLACES, FEATURES)),
        "w": random.uniform(-0.5, 0.5, (FEATURES, FEATURES)),
    }
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"]),
        helper.make_node("Add", ["e", "positions"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["r", "turned"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n", PLACES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", PLACES, WORDS])],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_normed_model() -> onnx.ModelProto:
    """[batch, PLACES] numbers -> logits, by a table, and a norm of its rows."""
    random = np.random.default_rng(1)
    tensors = {
        "table": random.uniform(-0.5, 0.5, (WORDS, FEATURES)),
        "scale": random.uniform(0.5, 1.5, FEATURES),
        "w": random.uniform(-0.5, 0.5, (FEATURES, WORDS)),
    }
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"]),
        helper.make_node("RMSNormalization", ["e", "scale"], ["h"], epsilon=1e-5),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "normed",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n", PLACES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", PLACES, WORDS])],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def write_task(
    folder: Path,
    x: npt.NDArray[np.int16],
    kind: str = "ids",
    model: onnx.ModelProto | None = None,
) -> Path:
    (folder / "model.onnx").write_bytes((model or make_model()).SerializeToString())
    # The next word is that before, and three on.
    np.savez(folder / "data.npz", x=x, y=((x + 3) % WORDS).astype(np.int16))
    path = folder / "words.toml"
    path.write_text(TASK.format(kind=kind))
    return path


def draw() -> npt.NDArray[np.int16]:
    return np.random.default_rng(2).integers(0, WORDS, (40, PLACES)).astype(np.int16)


@pytest.fixture
def task(tmp_path: Path) -> CompiledTask:
    path = write_task(tmp_path, draw())
    write_exponents(path, profile_task(load_task(path)).exponents)
    return compile_task(load_task(path))


def test_both_engines_learn_the_same(task: CompiledTask) -> None:
    logs = []
    for engine in ("numpy", "cpu"):
        session = open_session(engine, task.graph, task.samples)
        session.load_state(task.initial_state)
        records = [session.step() for _ in range(240)]
        logs.append((records, session.read_state()))
    (law, state), (fast, other) = logs
    assert law == fast
    assert all(np.array_equal(values, other[name]) for name, values in state.items())
    losses = [record.loss for record in law]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert set(state) == {"step"} | {
        f"{kind}/{name}" for kind in ("param", "momentum") for name in ("table", "positions", "w")
    }
    found = evaluate(task.graph, state, task.samples)
    assert found.accuracy is not None
    assert found.accuracy > 0.7


def compute_gradients(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> dict[str, torch.Tensor]:
    """Torch's, of the mean loss of the model that has a norm right behind its table."""
    tensors = {
        tensor.name: torch.tensor(numpy_helper.to_array(tensor), requires_grad=True)
        for tensor in make_normed_model().graph.initializer
    }
    rows = tensors["table"][torch.tensor(x).long()]
    h = torch.nn.functional.rms_norm(rows, (FEATURES,), tensors["scale"], 1e-5)
    logits = (h @ tensors["w"]).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(y).long().flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: tensor.grad for name, tensor in tensors.items() if tensor.grad is not None}


@pytest.mark.parametrize(
    "more",
    ["", "fine_gradients = true", "symmetric_gradients = true"],
    ids=["int16", "int64", "int16, symmetric"],
)
@pytest.mark.parametrize("clip", ["", "clip_norm = 100"])
def test_a_norm_right_behind_a_table_is_trained(tmp_path: Path, more: str, clip: str) -> None:
    """Nothing rounds the gradient of RMSNorm, which has too many bits for its sum over places."""
    path = write_task(tmp_path, draw(), model=make_normed_model())
    text = path.read_text().replace("calibration_steps = 80", f"calibration_steps = 2\n{more}")
    path.write_text(text.replace("momentum = 0.9", f"momentum = 0.9\n{clip}"))
    write_exponents(path, profile_task(load_task(path)).exponents)
    task = compile_task(load_task(path))
    after = []
    for engine in ("numpy", "cpu"):
        session = open_session(engine, task.graph, task.samples)
        session.load_state(task.initial_state)
        session.step()
        after.append(session.read_state())
    assert all(np.array_equal(values, after[1][name]) for name, values in after[0].items())
    found = compute_gradients(*gather_batch(task.samples, 5, 8, 1))
    assert set(found) == {"table", "scale", "w"}
    for name, gradient in found.items():
        before, state = task.initial_state[f"param/{name}"], f"param/{name}"
        moved = (before.astype(np.int64) - after[0][state]) / 2.0**24
        wanted = 0.03 * gradient.numpy().astype(np.float64)
        assert np.linalg.norm(moved - wanted) < 2e-3 * np.linalg.norm(wanted), name


def test_a_run_is_verified(task: CompiledTask, tmp_path: Path) -> None:
    vtrain.train(task, tmp_path / "run", key=Ed25519PrivateKey.generate())
    assert vtrain.verify(tmp_path / "run")


def test_windows_of_tokens_enter_as_numbers(tmp_path: Path) -> None:
    path = write_task(tmp_path, draw())
    tokens = (3 * np.arange(400) % WORDS).astype("<u2")
    (tmp_path / "tokens.bin").write_bytes(tokens.tobytes())
    text = path.read_text().replace(
        'kind = "npz"\npath = "data.npz"',
        f'kind = "tokens"\npath = "tokens.bin"\ndtype = "u16"\ncontext = {PLACES}\n'
        f"vocabulary = {WORDS}",
    )
    path.write_text(text)
    write_exponents(path, profile_task(load_task(path)).exponents)
    task = compile_task(load_task(path))
    records = []
    for engine in ("numpy", "cpu"):
        session = open_session(engine, task.graph, task.samples)
        session.load_state(task.initial_state)
        records.append([session.step() for _ in range(40)])
    assert records[0] == records[1]
    assert records[0][-1].loss < records[0][0].loss
    path.write_text(text.replace(f"vocabulary = {WORDS}", f"vocabulary = {WORDS + 1}"))
    with pytest.raises(TaskError, match=f"a model with {WORDS} rows") as caught:
        profile_task(load_task(path))
    assert caught.value.where == "data.vocabulary"


def test_numbers_beyond_the_table_are_named(tmp_path: Path) -> None:
    x = draw()
    x[7, 2] = WORDS
    path = write_task(tmp_path, x)
    with pytest.raises(DataError, match=rf"id {WORDS} is not in") as caught:
        profile_task(load_task(path))
    assert caught.value.where == "sample 7, id [2]"


def test_floats_are_not_numbers(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="takes whole numbers") as caught:
        profile_task(load_task(write_task(tmp_path, draw(), "affine")))
    assert caught.value.where == "data.prepare"


def test_proofs_are_refused_by_name(task: CompiledTask) -> None:
    with pytest.raises(CircuitError, match="gather_rows"):
        build_step_circuit(task.graph, 17, "step")
