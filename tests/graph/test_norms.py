"""Norms as torch writes them into ONNX files, and the vectors that its exporter stores once."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from tests.exhaustive import spare
from tests.graph.test_attention import FEATURES, PLACES, export
from tests.graph.test_onnx_import import FC, I64, Tensors, assert_same_function, make, node
from vtrain.errors import ModelError
from vtrain.graph.model import LayerNorm, Model, RMSNorm
from vtrain.graph.onnx_import import import_onnx
from vtrain.graph.weights import export_onnx

Tensor = torch.Tensor
UNIT = 2**24


class ByHand(nn.Module):
    """RMSNorm as models of before torch had it write it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean + 0.001))


class Blocks(nn.Module):
    """Two norms of equal initial weights, and two products with biases of zero."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList(make_norm(kind) for _ in range(2))
        self.products = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(2))
        for product in self.products:
            nn.init.zeros_(product.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for norm, product in zip(self.norms, self.products, strict=True):
            x = x + product(norm(x))
        return x


def make_norm(kind: str) -> nn.Module:
    match kind:
        case "layer":
            return nn.LayerNorm(FEATURES)
        case "layer, no bias":
            return nn.LayerNorm(FEATURES, bias=False)
        case "layer, plain":
            return nn.LayerNorm(FEATURES, elementwise_affine=False)
        case "rms":
            return nn.RMSNorm(FEATURES, eps=0.001)
        case _:
            return ByHand(FEATURES)


def make_x() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    drawn = np.random.default_rng(2).uniform(-1, 1, (3, PLACES, FEATURES))
    return drawn.astype(np.float32)


def export_blocks(kind: str, dynamo: bool, opset: int) -> onnx.ModelProto:
    torch.manual_seed(1)
    return export(Blocks(kind), dynamo=dynamo, fixed=False, opset=opset)


CASES = [
    (kind, dynamo, opset)
    for kind in ("layer", "layer, no bias", "layer, plain", "rms", "by hand")
    for dynamo, opset in ((False, 17), (True, 18), (True, 23))
    if (kind, dynamo) != ("rms", False)  # which that exporter does not know
]


@pytest.mark.parametrize(
    ("kind", "dynamo", "opset"),
    spare(CASES, lambda case: case[1:] != (True, 18) or case[0] == "rms"),
)
def test_norms_of_torch_are_imported(kind: str, dynamo: bool, opset: int) -> None:
    proto = export_blocks(kind, dynamo, opset)
    model = assert_same_function(proto, make_x())
    norms = [layer for layer in model.layers if isinstance(layer, LayerNorm | RMSNorm)]
    assert {type(norm) for norm in norms} == {LayerNorm if "layer" in kind else RMSNorm}
    assert len(norms) == 2
    weights = {norm.weight for norm in norms}
    assert weights == {None} if kind == "layer, plain" else len(weights - {None}) == 2
    assert len(model.params) == 4 + 2 * (kind != "layer, plain") + 2 * (kind == "layer")


@pytest.mark.parametrize(
    ("kind", "dynamo", "opset"), spare(CASES, lambda case: case[1:] != (True, 18))
)
def test_each_vector_is_exported_with_its_own_values(kind: str, dynamo: bool, opset: int) -> None:
    """Vectors that the file has once are trained apart, and the file then has both."""
    original = export_blocks(kind, dynamo, opset).SerializeToString()
    model = import_onnx(original)
    params = {
        name: (master + (number + 1) * UNIT // 8).astype(np.int32) if master.ndim == 1 else master
        for number, (name, master) in enumerate(model.params.items())
    }
    exported = export_onnx(original, model, params)
    onnx.checker.check_model(onnx.load_from_string(exported))
    again = import_onnx(exported)
    assert by_use(again, again.params) == by_use(model, params)
    session = onnxruntime.InferenceSession(exported)
    found = session.run(None, {session.get_inputs()[0].name: make_x()})[0]
    assert np.abs(found - run_floats(kind, list(by_use(model, params)))).max() < 1e-4


def by_use(model: Model, params: object) -> list[tuple[float, ...]]:
    """The values of the vectors in the order of their first use."""
    assert isinstance(params, dict)
    return [tuple(params[n] / UNIT) for n in model.params if model.params[n].ndim == 1]


def run_floats(
    kind: str, vectors: list[tuple[float, ...]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    torch.manual_seed(1)
    blocks = Blocks(kind)
    rest = [torch.tensor(vector) for vector in vectors]
    with torch.no_grad():
        for norm, product in zip(blocks.norms, blocks.products, strict=True):
            for parameter in (*norm.parameters(), *list(product.parameters())[1:]):
                parameter.copy_(rest.pop(0))
        assert not rest
        return np.asarray(blocks(torch.from_numpy(make_x())).numpy())


def test_a_layer_that_is_used_twice_stays_one() -> None:
    tensors = {"w": np.eye(5, dtype=np.float32), "b": np.zeros(5, np.float32)}
    nodes = [node("Gemm", "x w b", "h"), node("Gemm", "h w b", "g"), node("Gemm", "g v b")]
    model = import_onnx(make(nodes, ["n", 5], {**tensors, "v": tensors["w"] * 2}))
    assert list(model.params) == ["w", "b", "v", "b/2"]


SQUARES = [node("Gemm", "x w b", "h"), node("Pow", "h two", "q")]
MEAN = [*SQUARES, node("ReduceMean", "q", "m", axes=[-1], keepdims=1)]
TWO: Tensors = {
    "two": np.array(2.0, np.float32),
    "e": np.array(0.01, np.float32),
    "k": np.array([1], I64),
}


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        ([*MEAN, node("Relu", "m")], "only a norm of rows may have one"),
        ([*MEAN, node("Reciprocal", "m")], "only supported of the root"),
        ([*SQUARES, node("Sqrt", "q")], "only supported of the mean of the squares"),
        ([*MEAN, node("Mul", "h m")], "only 'h' itself can be divided"),
        ([*MEAN, node("Sqrt", "m", "s"), node("Div", "q s")], "only 'h' itself can be divided"),
        ([*MEAN, node("Sqrt", "m", "s"), node("Div", "two s")], "must be 1"),
        ([*MEAN, node("Sqrt", "m", "s"), node("Add", "s e")], "must add an epsilon"),
        ([node("Gemm", "x w b", "h"), node("Pow", "h e")], "only supported with exponent 2"),
    ],
)
def test_what_is_no_norm_is_refused(nodes: list[onnx.NodeProto], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        import_onnx(make(nodes, ["n", 5], {**FC, **TWO}))
