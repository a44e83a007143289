"""Tasks of models with dropout: trained, measured, verified, handed over; not proven."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import TensorProto, helper, numpy_helper

import vtrain
from tests.tasks import make_tiny_task
from vtrain.engines.registry import open_session
from vtrain.errors import CircuitError
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.prove.tiles.tiling import Tiling
from vtrain.spec.dropout import compute_draws
from vtrain.train.deliver import EXPORT_ONNX, evaluate, export_run
from vtrain.train.task import compile_task, load_task, profile_task, write_exponents

KEEP = 58982
TASK = make_tiny_task("dropout", steps=20, commit_every=5, optimizer="adamw")


def test_both_engines_train_by_the_masks_of_the_law() -> None:
    """Every step has masks of its own; the same ones go forward and back."""
    logs = []
    for engine in ("numpy", "cpu"):
        session = open_session(engine, TASK.graph, TASK.samples)
        session.load_state(TASK.initial_state)
        logs.append(([session.step() for _ in range(6)], session.read_state()))
    (law, state), (fast, other) = logs
    assert law == fast
    assert all(np.array_equal(values, other[name]) for name, values in state.items())
    masks = [i for i, node in enumerate(TASK.graph.nodes) if node.op == "dropout_mask"]
    readers = [[n for n in TASK.graph.nodes if i in {r.node for r in n.inputs}] for i in masks]
    assert [[n.op for n in found] for found in readers] == [["mul", "mul"]] * 2
    session = open_session("numpy", TASK.graph, TASK.samples)
    session.load_state(state)
    for site, index in enumerate(masks):
        mask = session.evaluate(index)
        draws = compute_draws(TASK.spec.seed, int(state["step"]), site, 0, mask.size)
        assert np.array_equal(mask.reshape(-1), np.where(draws < KEEP, 18205, 0))


def test_a_run_is_verified_and_what_is_handed_over_drops_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    vtrain.train(TASK, run, key=Ed25519PrivateKey.generate())
    assert vtrain.verify(run)
    session = open_session("cpu", TASK.graph, TASK.samples)
    session.load_state(TASK.initial_state)
    for _ in range(TASK.spec.steps):
        session.step()
    found = evaluate(TASK.graph, session.read_state(), TASK.samples)
    again = evaluate(TASK.graph, {**session.read_state(), "step": np.array(3)}, TASK.samples)
    assert found.loss == again.loss, "the masks of a step are in the measure"
    target, _ = export_run(run, tmp_path / "out")
    assert target.name == EXPORT_ONNX
    proto = onnx.load(target)
    assert "Dropout" not in {node.op_type for node in proto.graph.node}
    index = np.arange(TASK.samples.spec.samples)
    x, y = (TASK.samples.gather(part, index).astype(np.int64) for part in ("x", "y"))
    (logits,) = onnxruntime.InferenceSession(str(target)).run(None, {"x": x})
    top = logits.max(axis=-1, keepdims=True)
    log_total = top[..., 0] + np.log(np.exp(logits - top).sum(axis=-1))
    loss = (log_total - np.take_along_axis(logits, y[..., None], -1)[..., 0]).mean()
    assert abs(loss - found.loss) < 2e-3


PERCEPTRON = """
[task]
name = "dropped"
seed = 5
steps = 40
batch = 8
checkpoint_every = 20

[model]
onnx = "model.onnx"
loss = "cross_entropy"

[data]
kind = "npz"
path = "data.npz"

[data.prepare]
scale = "1/255"

[optimizer]
kind = "sgd"
momentum = 0.9
learning_rate = 0.05

[format]
calibration_steps = 8
"""


@pytest.fixture
def perceptron(tmp_path: Path) -> Path:
    """A task file of a perceptron that drops half of its hidden layer."""
    rng = np.random.default_rng(1)
    tensors = {
        "w": rng.uniform(-0.5, 0.5, (6, 16)), "b": np.zeros(16),
        "v": rng.uniform(-0.5, 0.5, (16, 3)), "ratio": np.array(0.5),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Dropout", ["r", "ratio", "training"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "dropped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [
            *(numpy_helper.from_array(v.astype(np.float32), name) for name, v in tensors.items()),
            numpy_helper.from_array(np.array(True), "training"),
        ],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    y = rng.integers(0, 3, 60).astype(np.uint8)
    x = rng.integers(0, 100, (60, 6)).astype(np.uint8)
    x[np.arange(60), y] += 150
    np.savez(tmp_path / "data.npz", x=x, y=y)
    path = tmp_path / "dropped.toml"
    path.write_text(PERCEPTRON)
    return path


def test_a_task_file_is_calibrated_with_its_masks(perceptron: Path) -> None:
    exponents = profile_task(load_task(perceptron)).exponents
    assert "d" in exponents
    write_exponents(perceptron, exponents)
    task = compile_task(load_task(perceptron))
    session = open_session("cpu", task.graph, task.samples)
    session.load_state(task.initial_state)
    losses = [session.step().loss for _ in range(160)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
    found = evaluate(task.graph, session.read_state(), task.samples)
    assert found.accuracy is not None
    assert found.accuracy > 0.9


def test_proofs_are_by_tiles_and_refused_as_a_whole_by_name(perceptron: Path) -> None:
    write_exponents(perceptron, profile_task(load_task(perceptron)).exponents)
    graph = compile_task(load_task(perceptron)).graph
    with pytest.raises(CircuitError, match="dropout_mask"):
        build_step_circuit(graph, 17, "step")
    assert len(Tiling(graph)) > 0
