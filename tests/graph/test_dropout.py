"""Dropout: from ONNX files of models in training, in steps, and nowhere in what is handed over."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.graph.test_onnx_import import (
    FC,
    Tensors,
    constant,
    make,
    node,
    run_integers,
)
from vtrain.graph.builder import GraphBuilder
from vtrain.graph.model import Dropout, Masks, emit_forward, find_mask_factor
from vtrain.graph.onnx_import import import_onnx
from vtrain.graph.weights import export_onnx
from vtrain.wire.graph import Node

TENTH, TRUE = np.array(0.1, np.float32), np.array(True)
RATIO = {"ratio": TENTH, "true": TRUE}

DROPOUT_CASES: dict[str, tuple[list[onnx.NodeProto], Tensors]] = {
    "a tenth": ([node("Gemm", "x w b", "h"), node("Dropout", "h ratio true")], {**FC, **RATIO}),
    "half, where no ratio is given": (
        [node("Gemm", "x w b", "h"), node("Dropout", "h - true", "d m"), node("Relu", "d")],
        {**FC, "true": TRUE},
    ),
    "constants of nodes, at two places": (
        [
            constant("ratio", np.array([0.25], np.float64)), constant("true", np.array([True])),
            node("Dropout", "x ratio true", "d"), node("Gemm", "d w b", "h"),
            node("Dropout", "h ratio true"),
        ],
        FC,
    ),
    "none, of a ratio of 0": (
        [node("Gemm", "x w b", "h"), node("Dropout", "h zero true")],
        {**FC, "zero": np.array(0, np.float32), "true": TRUE},
    ),
    "none at inference": (
        [node("Gemm", "x w b", "h"), node("Dropout", "h ratio false")],
        {**FC, "ratio": TENTH, "false": np.array(False)},
    ),
    "none where nothing says that this is training": (
        [node("Gemm", "x w b", "h"), node("Dropout", "h ratio")],
        {**FC, "ratio": TENTH},
    ),
}  # fmt: skip
"""Nodes between x [batch, 5] and y, and the stored tensors."""
KEPT = {"a tenth": [58982], "half, where no ratio is given": [32768],
        "constants of nodes, at two places": [49152, 49152]}  # fmt: skip


def find_kept(model: Any) -> list[int]:
    return [layer.keep for layer in model.layers if isinstance(layer, Dropout)]


@pytest.mark.parametrize("name", DROPOUT_CASES)
def test_files_of_models_in_training(name: str) -> None:
    """Layers have the names and shares of the file; the exported file has no Dropout that drops,
    and computes what the integers compute where nothing is dropped."""
    nodes, tensors = DROPOUT_CASES[name]
    proto = make(nodes, ["n", 5], tensors)
    model = import_onnx(proto)
    assert find_kept(model) == KEPT.get(name, [])
    exported = onnx.load_from_string(export_onnx(proto.SerializeToString(), model, model.params))
    assert all(len(item.input) == 1 for item in exported.graph.node if item.op_type == "Dropout")
    for item in exported.graph.node:
        item.name = ""  # onnxruntime wants names to be unique
    read = {value for item in exported.graph.node for value in item.input}
    assert {tensor.name for tensor in exported.graph.initializer} <= read
    again = import_onnx(exported)
    assert find_kept(again) == []
    assert again.params.keys() == model.params.keys()
    x = np.random.default_rng(3).uniform(-1, 1, (4, 5)).astype(np.float32)
    expected = onnxruntime.InferenceSession(exported.SerializeToString()).run(None, {"x": x})[0]
    found = run_integers(model, x)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_files_tell_of_dropout_that_they_do_not_have() -> None:
    def find_lost(name: str) -> str:
        nodes, tensors = DROPOUT_CASES[name]
        proto = make(nodes, ["n", 5], tensors)
        proto.graph.node[0].metadata_props.add(key="trace", value="return self.dropout(x)")
        return import_onnx(proto).lost_dropout

    assert find_lost("none at inference") == "node the_Dropout (Dropout), not in training"
    assert "not in training" in find_lost("none where nothing says that this is training")
    for name in ("a tenth", "none, of a ratio of 0"):
        assert find_lost(name) == ""


def test_metadata_of_torch_tell_of_dropout() -> None:
    proto = make([node("Gemm", "x w b")], ["n", 5], FC)
    assert import_onnx(proto).lost_dropout == ""
    text = "File model.py, line 5, in forward | return self.head(self.Dropout(x))"
    proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=text)
    found = import_onnx(proto).lost_dropout
    assert found == "the metadata 'pkg.torch.onnx.stack_trace' of node the_Gemm (Gemm)"


def test_a_file_of_torch_without_the_mode_is_of_attention_in_training() -> None:
    nodes, tensors = DROPOUT_CASES["none where nothing says that this is training"]
    proto = make(nodes, ["n", 5], tensors)
    proto.producer_name = "pytorch"
    model = import_onnx(proto)
    assert find_kept(model) == [58982]
    exported = onnx.load_from_string(export_onnx(proto.SerializeToString(), model, model.params))
    assert [item.op_type for item in exported.graph.node] == ["Gemm", "Identity"]


def test_constants_that_others_read_stay() -> None:
    nodes = [
        node("Gemm", "x w b", "h"),
        node("Dropout", "h ratio true", "d"),
        node("Mul", "d ratio"),
    ]
    proto = make(nodes, ["n", 5], {**FC, **RATIO})
    model = import_onnx(proto)
    exported = onnx.load_from_string(export_onnx(proto.SerializeToString(), model, model.params))
    kept = {tensor.name: numpy_helper.to_array(tensor) for tensor in exported.graph.initializer}
    assert kept.keys() == {"w", "b", "ratio"}


@pytest.mark.parametrize("keep", [4, 5, 7, 8, 9, 6554, 32767, 32768, 32769, 58982, 65535])
def test_the_factor_is_the_inverse_share_in_fifteen_bits(keep: int) -> None:
    value, exponent = find_mask_factor(keep)
    assert 2**14 <= value < 2**15
    assert 0 <= exponent <= 14
    assert abs(value * keep / 2 ** (16 + exponent) - 1) <= 2**-15


class _AnyExponent:
    def choose(self, site: str, source: object, exponent: int) -> int:
        return 8


def emit_masks(proto: onnx.ModelProto, x_shape: tuple[int, ...]) -> list[Node]:
    """The nodes of the masks of a forward pass in training."""
    model, b = import_onnx(proto), GraphBuilder(_AnyExponent())
    params = {
        name: b.emit("state", name, (), name=name, dtype="i32", shape=value.shape, exponent=24)
        for name, value in model.params.items()
    }
    t = b.emit("state", "t", (), name="t", dtype="i64", shape=(), exponent=0)
    x = b.emit("state", "x", (), name="x", dtype="i32", shape=x_shape, exponent=12)
    emit_forward(b, model, b.rescale("x16", x, 12), params, Masks(t, bytes(range(8))))
    masks = [item for item in b.nodes if item.op == "dropout_mask"]
    assert all(item.inputs == (t,) and item.attrs["seed"] == bytes(range(8)) for item in masks)
    return masks


def test_each_layer_has_a_site_of_its_own_and_a_mask_of_the_whole_batch() -> None:
    nodes, tensors = DROPOUT_CASES["constants of nodes, at two places"]
    masks = emit_masks(make(nodes, ["n", 5], tensors), (3, 5))
    assert [(m.name, m.attrs["site"], m.attrs["shape"]) for m in masks] == [
        ("d/mask", 0, (3, 5)),
        ("y/mask", 1, (3, 4)),
    ]


# --- torch's exporters


def make_network(scaled: bool) -> Any:
    """Dropout as layers, as a function, and, ``scaled``, by torch's attention."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812 - as torch's own documentation calls it

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.out = nn.Linear(8, 24), nn.Linear(8, 4)
            self.early, self.none = nn.Dropout(0.1), nn.Dropout(0.0)

        def forward(self, x: Any) -> Any:
            parts = self.attend(self.none(self.early(x))).split(8, dim=2)
            q, k, v = (part.view(x.shape[0], 4, 2, 4).transpose(1, 2) for part in parts)
            if scaled:
                p = 0.2 if self.training else 0.0
                y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
            else:
                scores = torch.softmax(q @ k.transpose(2, 3) / 2.0, dim=3)
                y = F.dropout(scores, 0.2, self.training) @ v
            return self.out(F.dropout(y.transpose(1, 2).flatten(2), 0.5, self.training))

    torch.manual_seed(3)
    return Network()


def export_training(network: Any, x: Any, *, dynamo: bool) -> bytes:
    import torch

    file: Any = io.BytesIO()
    more: dict[str, Any] = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    if not dynamo:
        more = {"training": torch.onnx.TrainingMode.TRAINING, "dynamic_axes": {"x": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own deprecations
        torch.onnx.export(
            network.train(), (x,), file, dynamo=dynamo, input_names=["x"], verbose=False, **more
        )
    return bytes(file.getvalue())


@pytest.mark.parametrize(
    ("dynamo", "scaled", "kept"),
    [
        (True, False, [58982, 52429, 32768]),
        (False, False, [58982, 52429, 32768]),
        (False, True, [58982, 52429, 32768]),
        # This exporter leaves out the dropout of torch's attention.
        (True, True, [58982, 32768]),
    ],
)
def test_models_in_training_that_torch_exports(dynamo: bool, scaled: bool, kept: list[int]) -> None:
    torch = pytest.importorskip("torch")
    network = make_network(scaled)
    x = torch.rand(3, 4, 8) * 2 - 1
    proto = onnx.load_from_string(export_training(network, x, dynamo=dynamo))
    model = import_onnx(proto)
    assert find_kept(model) == kept
    assert {"attend.bias", "out.bias"} <= model.params.keys()
    expected: npt.NDArray[Any] = network.eval()(x).detach().numpy()
    assert np.abs(run_integers(model, x.numpy()) - expected).max() < 2e-3 * np.abs(expected).max()
    exported = export_onnx(proto.SerializeToString(), model, model.params)
    (found,) = onnxruntime.InferenceSession(exported).run(None, {"x": x.numpy()})
    assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False])
def test_models_that_are_exported_in_use_drop_nothing(dynamo: bool) -> None:
    torch = pytest.importorskip("torch")
    network = make_network(False).eval()
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (torch.rand(3, 4, 8),), file, dynamo=dynamo, verbose=False)
    assert find_kept(import_onnx(bytes(file.getvalue()))) == []
