"""Tasks whose samples are whole numbers: a small language model with a tied table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import TensorProto, helper, numpy_helper

import vtrain
from vtrain.engines.registry import open_session
from vtrain.errors import CircuitError, DataError, TaskError
from vtrain.prove.steps.circuits import build_step_circuit
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


def write_task(folder: Path, x: npt.NDArray[np.int16], kind: str = "ids") -> Path:
    (folder / "model.onnx").write_bytes(make_model().SerializeToString())
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
