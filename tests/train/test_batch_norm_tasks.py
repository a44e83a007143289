"""Tasks of convolutional networks as torch has them, with BatchNorm: trained beside torch, measured
by the running statistics, verified, handed over; not in parts, and not of one value a channel."""

from __future__ import annotations

import io
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import load_file

import vtrain
from tests.graph.test_onnx_import import NO_SAMPLES, constant, make, node, own, run_integers
from vtrain.engines.registry import open_session
from vtrain.engines.saving import Saving
from vtrain.errors import GraphError, ModelError
from vtrain.graph.builder import GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.model import BatchNorm, GroupNorm, emit_forward
from vtrain.graph.norms import emit_normalized, use_mean
from vtrain.graph.onnx_import import find_problems, import_onnx
from vtrain.graph.step import param_state
from vtrain.spec.order import compute_batch_indices
from vtrain.train.deliver import evaluate, export_run
from vtrain.train.new_task import write_new_task
from vtrain.train.task import CompiledTask, compile_task, load_task, profile_task, write_exponents

torch = pytest.importorskip("torch")
STEPS, BATCH, SAMPLES, SEED = 20, 16, 96, 5
TASK = f"""
[task]
name = "convnet"
seed = {SEED}
steps = {STEPS}
batch = {BATCH}
commit_every = 5
checkpoint_every = 10

[model]
onnx = "model.onnx"
loss = "cross_entropy"

[data]
kind = "npz"
path = "data.npz"

[data.prepare]
scale = "1/64"
mean = 2

[optimizer]
kind = "sgd"
momentum = 0.9
learning_rate = 0.05

[format]
margin = 2
calibration_steps = 8
"""


def make_network() -> Any:
    """A block as in MobileNets, a dilated convolution, and a norm of a vector."""
    nn = torch.nn
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False),
        nn.BatchNorm2d(8, momentum=0.3, eps=1e-3), nn.LeakyReLU(0.1),
        nn.Conv2d(8, 12, 3, padding=2, dilation=2, groups=2), nn.Hardtanh(-2, 2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 10), nn.BatchNorm1d(10), nn.ReLU(),
        nn.Linear(10, 4),
    )  # fmt: skip


def export_training(network: Any, x: Any) -> bytes:
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        torch.onnx.export(
            network.train(), (x,), file, dynamo=False, input_names=["x"], verbose=False,
            training=torch.onnx.TrainingMode.TRAINING, dynamic_axes={"x": {0: "batch"}},
        )  # fmt: skip
    return bytes(file.getvalue())


def export(network: Any, *, dynamo: bool) -> bytes:
    """In the mode that the network is in, by the exporter's own choices."""
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (torch.rand(3, 2, 8, 8),), file, dynamo=dynamo, verbose=False)
    return bytes(file.getvalue())


def make_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, SAMPLES).astype(np.uint8)
    x = rng.integers(0, 200, (SAMPLES, 2, 8, 8)).astype(np.uint8)
    for at, label in enumerate(y):
        row, column = 4 * (label // 2), 4 * (label % 2)
        x[at, :, row : row + 4, column : column + 4] += 55
    return x, y


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> CompiledTask:
    folder = tmp_path_factory.mktemp("convnet")
    x, y = make_data()
    np.savez(folder / "data.npz", x=x, y=y)
    (folder / "model.onnx").write_bytes(export_training(make_network(), torch.zeros(2, 2, 8, 8)))
    path = folder / "task.toml"
    path.write_text(TASK)
    write_exponents(path, profile_task(load_task(path)).exponents)
    return compile_task(load_task(path))


def train_torch(network: Any, optimizer: Any, steps: range) -> list[float]:
    x, y = make_data()
    samples, labels = torch.tensor(x / 64 - 2), torch.tensor(y.astype(np.int64))
    losses = []
    for step in steps:
        rows = compute_batch_indices(SEED, SAMPLES, BATCH, step)
        loss = torch.nn.functional.cross_entropy(network(samples[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_is_that_of_torch(task: CompiledTask) -> None:
    session = open_session("cpu", task.graph, task.samples)
    session.load_state(task.initial_state)
    network = make_network().double().train()
    # The exporter has done a forward pass, which the file's statistics are of.
    for name, buffer in network.named_buffers():
        if "running" in name:
            buffer.copy_(torch.tensor(np.ldexp(session.read_state()[param_state(name)], -24)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)

    def advance(steps: range) -> tuple[list[float], list[float]]:
        found = [math.ldexp(session.step().loss, -16) * math.log(2) / BATCH for _ in steps]
        return found, train_torch(network, optimizer, steps)

    begin, expected = advance(range(3))
    assert np.allclose(begin, expected, rtol=2e-3)
    state = session.read_state()
    compared = 0
    for name, values in network.state_dict().items():
        if "running" in name:
            found = np.ldexp(state[param_state(name)].astype(np.float64), -24)
            wanted = values.numpy()
            assert np.abs(found - wanted).max() < 5e-3 * np.abs(wanted).max(), name
            assert f"momentum/{name}" not in state
            compared += 1
    assert compared == 6
    losses, expected = advance(range(3, STEPS))
    assert np.allclose(losses, expected, rtol=0.02, atol=0.01)
    assert losses[-1] < 0.7 * begin[0]


def test_a_run_is_verified_measured_and_handed_over(task: CompiledTask, tmp_path: Path) -> None:
    run = tmp_path / "run"
    vtrain.train(task, run, key=Ed25519PrivateKey.generate())
    assert vtrain.verify(run)
    session = open_session("numpy", task.graph, task.samples)
    session.load_state(task.initial_state)
    for _ in range(task.spec.steps):
        session.step()
    state = session.read_state()
    found = evaluate(task.graph, state, task.samples)
    still = {
        **state,
        param_state("1.running_var"): task.initial_state[param_state("1.running_var")],
    }
    assert abs(evaluate(task.graph, still, task.samples).loss - found.loss) > 1e-3
    target, tensors = export_run(run, tmp_path / "out")
    proto = onnx.load(target)
    norms = [node for node in proto.graph.node if node.op_type == "BatchNormalization"]
    assert [len(norm.output) for norm in norms] == [1, 1, 1]
    x, y = make_data()
    session_of_floats = onnxruntime.InferenceSession(str(target))
    (logits,) = session_of_floats.run(None, {"x": (x / 64 - 2).astype(np.float32)})
    network = make_network().eval()
    weights = {name: torch.tensor(value) for name, value in load_file(tensors).items()}
    assert not network.load_state_dict(weights, strict=False).unexpected_keys
    with torch.no_grad():
        same = network(torch.tensor(x / 64 - 2, dtype=torch.float32)).numpy()
    assert np.allclose(same, logits, atol=1e-4)
    loss = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(y).long()).item()
    assert abs(loss - found.loss) < 3e-3


@pytest.mark.parametrize("dynamo", [False, True])
def test_group_norms_of_torch(dynamo: bool) -> None:
    """Its exporters write them in parts, with the scale and the bias of channels at the end."""
    nn = torch.nn
    torch.manual_seed(4)
    network = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.GroupNorm(2, 6),
        nn.InstanceNorm2d(6),
    )  # fmt: skip
    with torch.no_grad():
        network[1].weight += torch.rand(6)
        network[3].bias += torch.rand(6)
    x = torch.rand(3, 2, 6, 6)
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network.eval(), (x,), file, dynamo=dynamo, verbose=False)
    model = import_onnx(bytes(file.getvalue()))
    norms = [layer for layer in model.layers if isinstance(layer, GroupNorm)]
    assert [norm.groups for norm in norms[:2]] == [3, 2]
    assert all(value.size == 6 for value in list(model.params.values())[2:])
    found, expected = run_integers(model, x.numpy()), network(x).detach().numpy()
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()


def make_folding(kind: str) -> Any:
    nn = torch.nn
    torch.manual_seed(5)
    if kind == "Gemm":
        return nn.Sequential(nn.Flatten(), nn.Linear(128, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3),
        nn.BatchNorm2d(6, affine=False), nn.Flatten(), nn.Linear(96, 4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "dynamo", "training", "nodes"),
    [
        ("Conv", False, False, "(Conv) and 1 more"),
        ("Conv", True, False, "(Conv) and 1 more"),
        ("Conv", True, True, "(Conv) and 1 more"),
        ("Gemm", True, False, "(Gemm)"),
    ],
)
def test_norms_that_an_exporter_folds_are_refused(
    task: CompiledTask, tmp_path: Path, kind: str, dynamo: bool, training: bool, nodes: str
) -> None:
    assert task.file is not None
    data = export(make_folding(kind).train(training), dynamo=dynamo)
    (tmp_path / "model.onnx").write_bytes(data)
    shutil.copy(task.file.path.parent / "data.npz", tmp_path)
    (tmp_path / "task.toml").write_text(TASK)
    with pytest.raises(ModelError, match=r"folds a BatchNorm .*TrainingMode.*fuse_conv") as caught:
        profile_task(load_task(tmp_path / "task.toml"))
    assert caught.value.where.endswith(nodes)
    assert [problem.where for problem in find_problems(data)] == [caught.value.where]
    with pytest.raises(ModelError, match="folds a BatchNorm"):
        write_new_task(tmp_path / "model.onnx", [tmp_path / "data.npz"], tmp_path / "new.toml")
    # What was trained by an earlier version is still exported.
    assert import_onnx(data).folded_norms == caught.value.where


@pytest.mark.parametrize("dynamo", [False, True])
def test_norms_that_the_module_has_folded_are_trained_without(dynamo: bool) -> None:
    network = make_folding("Conv").eval()
    fuse = torch.nn.utils.fusion.fuse_conv_bn_eval
    folded = torch.nn.Sequential(
        fuse(*network[:2]), network[2], fuse(*network[3:5]), *network[5:]
    ).eval()  # fmt: skip
    data = export(folded, dynamo=dynamo)
    assert (import_onnx(data).folded_norms, find_problems(data)) == ("", [])
    trained = export_training(make_folding("Conv"), torch.rand(3, 2, 8, 8))
    assert (import_onnx(trained).folded_norms, find_problems(trained)) == ("", [])


def test_statistics_of_a_batch_are_of_all_of_it(task: CompiledTask) -> None:
    with pytest.raises(GraphError, match=r"statistics of the whole batch.*GroupNorm") as caught:
        Saving(2).rewrite(task.graph)
    assert "(BatchNorm)" in str(caught.value)
    logs = []
    for saving in (Saving(), Saving(1, recompute=True)):
        graph = saving.rewrite(task.graph).graph
        session = open_session("cpu", graph, task.samples)
        session.load_state(task.initial_state)
        logs.append([session.step() for _ in range(5)])
    assert logs[0] == logs[1]


class _AnyExponent:
    def choose(self, site: str, source: Any, exponent: int) -> int:
        return 8


def norm(**attributes: Any) -> onnx.ModelProto:
    tensors = {"g": own(4), "e": own(4), "m": own(4), "v": own(4) + 1, "w": own(4, 4)}
    nodes = [
        node("MatMul", "x w", "h"),
        node("BatchNormalization", "h g e m v", training_mode=1, **attributes),
    ]
    return make(nodes, ["n", 4], tensors)


def test_a_batch_of_one_is_refused_by_name() -> None:
    model = import_onnx(norm())
    b = GraphBuilder(_AnyExponent())
    params = {
        name: b.emit("state", name, (), name=name, dtype="i32", shape=value.shape, exponent=24)
        for name, value in model.params.items()
    }
    x = b.emit("state", "x", (), name="x", dtype="i32", shape=(1, 4), exponent=12)
    with pytest.raises(ModelError, match="one value a channel in a batch of one") as caught:
        emit_forward(b, model, b.rescale("x16", x, 12), params)
    assert caught.value.where == "y"


def test_decay_and_form_of_the_variance_are_those_of_the_file() -> None:
    """ONNX says that the variance is the biased one, and torch takes the other."""
    (_, layer) = import_onnx(norm(momentum=0.75)).layers
    assert isinstance(layer, BatchNorm)
    assert (layer.share, layer.unbiased) == (2**14, False)
    proto = norm(momentum=0.0)
    proto.producer_name = "pytorch"
    (_, layer) = import_onnx(proto).layers
    assert isinstance(layer, BatchNorm)
    assert (layer.share, layer.unbiased) == (2**16, True)


def test_statistics_belong_to_one_norm() -> None:
    nodes = [
        node("BatchNormalization", "x g e m v", "h", training_mode=1),
        node("BatchNormalization", "h g e m v", training_mode=1),
    ]
    tensors = {"g": own(4), "e": own(4), "m": own(4), "v": own(4) + 1}
    with pytest.raises(ModelError, match="running statistic twice") as caught:
        import_onnx(make(nodes, ["n", 4], tensors))
    assert caught.value.where == "initialiser m"
    twice = [node("BatchNormalization", "x g m m v", training_mode=1)]
    with pytest.raises(ModelError, match="used in two ways"):
        import_onnx(make(twice, ["n", 4], tensors))


def test_vectors_of_equal_numbers_are_apart() -> None:
    """Exporters store the ones of a scale and of a variance once."""
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    nodes = [node("BatchNormalization", "x one zero zero one", training_mode=1)]
    model = import_onnx(make(nodes, ["n", 4], {"one": ones, "zero": zeros}))
    assert list(model.params) == ["one", "zero", "zero/2", "one/2"]
    assert model.statistics == {"zero/2", "one/2"}
    nodes = [constant("c", ones), node("BatchNormalization", "x c zero m v", training_mode=1)]
    tensors = {"zero": zeros, "m": own(4), "v": own(4)}
    assert list(import_onnx(make(nodes, ["n", 4], tensors)).params) == ["zero", "m", "v"]


@pytest.mark.parametrize("width", [200_000, 2**18])
def test_rows_as_long_as_batches_of_images(width: int) -> None:
    """Two channels of 200,000 places: no sum outgrows its bounds, forward or back."""
    rng = np.random.default_rng(2)
    x = rng.normal(3, 0.5, (2, width))
    state = {"x": np.round(np.ldexp(x, 12)).astype(np.int32)}

    def emit(b: GraphBuilder) -> None:
        rows = b.emit("state", "x", (), name="x", dtype="i32", shape=(2, width), exponent=12)
        y = emit_normalized(b, "n", b.rescale("x16", rows, 12), 1e-5, centred=True, site="y")
        block = b.blocks[y]
        b.differentiate({*block.inputs})
        ends.append((y, *block.backward(b, y, b.rescale_at_site("g", rows))))
        graphs.append(b.graph())

    ends: list[Any] = []
    graphs: list[Any] = []
    exponents = calibrate(emit, state, NO_SAMPLES, steps=1, margin=1).exponents
    assert exponents["y"] >= 10
    graph = graphs[-1]
    index = next(i for i, n in enumerate(graph.nodes) if n.op == "center")
    mean = np.round(x.mean(axis=1) * 2**24).astype(np.int32)
    deviations = use_mean(graph, index, state["x"].astype(np.int16), mean)
    wanted = (x - x.mean(axis=1, keepdims=True)) * width
    found = np.ldexp(deviations.astype(np.float64), -graph.nodes[index].outputs[0].exponent)
    assert np.abs(found - wanted).max() < 2e-4 * np.abs(wanted).max()
