"""Attention as torch writes it into ONNX files, and its gradients, against torch."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's own documentation calls it

from tests.graph.float_model import FloatModel
from tests.graph.test_autodiff import Parts, make_calibrated
from tests.graph.test_onnx_import import assert_same_function, make, node
from vtrain.errors import ModelError
from vtrain.graph.model import (
    AddWeight,
    Concat,
    Layer,
    Linear,
    MatMul,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from vtrain.graph.onnx_import import import_onnx
from vtrain.wire.graph import Ref

PLACES, FEATURES, HEADS = 6, 8, 2
Tensor = torch.Tensor


class Attention(nn.Module):
    """As a decoder has it; ``how`` is what computes the middle."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.c_attn = nn.Linear(FEATURES, 3 * FEATURES)
        self.c_proj = nn.Linear(FEATURES, FEATURES)
        mask = torch.tril(torch.ones(PLACES, PLACES))
        self.register_buffer("bias", mask.view(1, 1, PLACES, PLACES))

    def forward(self, x: Tensor) -> Tensor:
        batch, places, features = x.size()
        parts = self.c_attn(x).split(features, dim=2)
        q, k, v = (
            part.view(batch, places, HEADS, features // HEADS).transpose(1, 2) for part in parts
        )
        y = self.attend(q, k, v).transpose(1, 2).contiguous().view(batch, places, features)
        return torch.as_tensor(self.c_proj(y))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.how == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.how == "sdpa, all":
            return F.scaled_dot_product_attention(q, k, v)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        hidden = self.bias[:, :, :PLACES, :PLACES] == 0  # type: ignore[index]
        return F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v


class Grouped(nn.Module):
    """Four heads of queries, two by two with one head of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        batch, places, _ = x.shape
        q = self.q(x).view(batch, places, 4, 2).transpose(1, 2)
        k, v = self.kv(x).view(batch, places, 4, 2).transpose(1, 2).split(2, dim=1)
        k, v = (
            part[:, :, None].expand(batch, 2, 2, places, 2).reshape(batch, 4, places, 2)
            for part in (k, v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, places, FEATURES)


def export(
    model: nn.Module, *, dynamo: bool, fixed: bool, opset: int | None = None
) -> onnx.ModelProto:
    x = torch.randn(3, PLACES, FEATURES)
    options: dict[str, Any] = {"dynamo": dynamo, "opset_version": opset}
    if not fixed and dynamo:
        options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
    if not fixed and not dynamo:
        options |= {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    data: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), (x,), data, **options)
    return onnx.load_from_string(data.getvalue())


@pytest.mark.parametrize("how", ["sdpa", "sdpa, all", "masked_fill"])
@pytest.mark.parametrize(
    ("dynamo", "fixed"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_attention_of_torch_is_imported(how: str, dynamo: bool, fixed: bool) -> None:
    torch.manual_seed(1)
    x = np.random.default_rng(2).uniform(-1, 1, (3, PLACES, FEATURES)).astype(np.float32)
    model = assert_same_function(export(Attention(how), dynamo=dynamo, fixed=fixed), x)
    (softmax,) = (layer for layer in model.layers if isinstance(layer, Softmax))
    assert softmax.window == (None if how == "sdpa, all" else PLACES)
    assert (softmax.multiplier, softmax.exponent) == (1, 1)  # 1 / sqrt(4)
    moved = [layer for layer in model.layers if isinstance(layer, Transpose)]
    assert len(moved) == 4, "the keys are not moved twice"


@pytest.mark.parametrize(
    ("dynamo", "fixed"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_heads_that_share_keys_are_imported(dynamo: bool, fixed: bool) -> None:
    torch.manual_seed(1)
    x = np.random.default_rng(3).uniform(-1, 1, (3, PLACES, FEATURES)).astype(np.float32)
    model = assert_same_function(export(Grouped(), dynamo=dynamo, fixed=fixed), x)
    copied = [layer for layer in model.layers if isinstance(layer, Concat)]
    assert [layer.inputs[0] == layer.inputs[1] for layer in copied] == [True, True]


@pytest.mark.parametrize("how", ["sdpa", "sdpa, all"])
def test_attention_of_opset_23_is_imported(how: str) -> None:
    torch.manual_seed(1)
    x = np.random.default_rng(2).uniform(-1, 1, (3, PLACES, FEATURES)).astype(np.float32)
    exported = export(Attention(how), dynamo=True, fixed=True, opset=23)
    assert "Attention" in {node.op_type for node in exported.graph.node}
    assert_same_function(exported, x)


@pytest.mark.parametrize(
    ("heads", "keys", "attributes", "mask"),
    [
        (2, 2, {"is_causal": 1}, None),
        (2, 2, {"scale": 0.3}, None),
        (4, 2, {"is_causal": 1, "scale": 0.25}, None),
        (4, 1, {}, np.tril(np.ones((PLACES, PLACES), bool))),
        (2, 1, {}, np.where(np.tri(PLACES) > 0, 0, -np.inf).astype(np.float32)),
        (
            2,
            2,
            {"is_causal": 1},
            np.tri(PLACES, k=1).astype(bool) & ~np.tri(PLACES, k=-3, dtype=bool),
        ),
    ],
)
def test_the_operator_attention(
    heads: int, keys: int, attributes: dict[str, Any], mask: Any
) -> None:
    rng = np.random.default_rng(4)
    size = FEATURES // heads
    tensors = {
        name: rng.uniform(-1, 1, (FEATURES, count * size)).astype(np.float32)
        for name, count in (("wq", heads), ("wk", keys), ("wv", keys))
    }
    inputs = "q k v"
    if mask is not None:
        tensors["mask"], inputs = mask, "q k v mask"
    nodes = [
        *(node("MatMul", f"x w{part}", part) for part in "qkv"),
        node("Attention", inputs, q_num_heads=heads, kv_num_heads=keys, **attributes),
    ]
    proto = make(nodes, ["n", PLACES, FEATURES], tensors, opset=23)
    proto.ir_version = 10
    x = rng.uniform(-1, 1, (3, PLACES, FEATURES)).astype(np.float32)
    assert_same_function(proto, x)


@pytest.mark.parametrize(
    ("attributes", "inputs", "complaint"),
    [
        ({}, "x x x", "needs q_num_heads and kv_num_heads"),
        ({"q_num_heads": 3, "kv_num_heads": 2}, "x x x", "8 features for 3 heads"),
        ({"q_num_heads": 4, "kv_num_heads": 2}, "x x x", "do not fit each other"),
        ({"q_num_heads": 2, "kv_num_heads": 2, "softcap": 2.0}, "x x x", "softcap must be 0"),
        ({"q_num_heads": 2, "kv_num_heads": 2}, "x x x x", "the mask must be a constant"),
        ({"q_num_heads": 2, "kv_num_heads": 2}, "x x x odd", "no other is supported"),
    ],
)
def test_other_attention_is_refused(
    attributes: dict[str, Any], inputs: str, complaint: str
) -> None:
    tensors = {"odd": np.triu(np.ones((PLACES, PLACES), bool))}
    nodes = [node("Attention", inputs, **attributes)]
    with pytest.raises(ModelError) as caught:
        import_onnx(make(nodes, ["n", PLACES, FEATURES], tensors, opset=23))
    assert caught.value.where == "node the_Attention (Attention)"
    assert complaint in caught.value.message


def make_attention(window: int | None, multiplier: int, exponent: int) -> Parts:
    layers: list[Layer] = [
        AddWeight("placed", "image", "positions"),
        Linear("h", "placed", "w1", "b1", True),
        *(
            layer
            for number, name in enumerate("qkv")
            for layer in (
                Slice(name, "h", 2, 8 * number, 8 * (number + 1)),
                Reshape(f"{name}_heads", name, (5, 2, 4)),
                Transpose(f"{name}_turned", f"{name}_heads", (0, 2, 1, 3)),
            )
        ),
        MatMul("scores", "q_turned", "k_turned", transpose_right=True),
        Softmax("p", "scores", multiplier, exponent, window),
        MatMul("mixed", "p", "v_turned"),
        Transpose("back", "mixed", (0, 2, 1, 3)),
        Reshape("flat", "back", (40,)),
        Linear("out", "flat", "w2", "b2", True),
    ]
    params: Mapping[str, tuple[int, ...]] = {
        "positions": (5, 8),
        "w1": (24, 8),
        "b1": (24,),
        "w2": (3, 40),
        "b2": (3,),
    }
    return (5, 8), layers, dict(params)


@pytest.mark.parametrize(
    ("window", "multiplier", "exponent"),
    [(None, 1, 1), (5, 1, 1), (2, 1, 1), (5, 46341, 16), (5, 3, 0)],
)
def test_gradients_of_attention(window: int | None, multiplier: int, exponent: int) -> None:
    """Forward within what 14 fraction bits leave; backward within a hundredth of torch's."""
    run = make_calibrated(make_attention(window, multiplier, exponent), margin=1)
    twin = FloatModel(run.model, run.operands(), run.pinned())
    gradients = twin.gradients(run.named("image"), run.seed())
    assert twin.rounding["p"] < 2.0**-10
    p = run.named("p")
    assert np.abs(p.sum(axis=-1) - 1).max() < 5 * 2.0**-14
    place = np.arange(5)[:, None] - np.arange(5)
    hidden = (place < 0) | (place >= (window or 5)) if window else np.zeros((5, 5), bool)
    assert not p[..., hidden].any()
    for name, gradient in gradients.items():
        off = np.linalg.norm(run.gradient(name) - gradient)
        assert off < 0.01 * np.linalg.norm(gradient), (name, off / np.linalg.norm(gradient))
    run.session.step()
    assert run.session.saturation() == {}


@pytest.mark.parametrize(("multiplier", "exponent"), [(46341, 16), (1, 1), (1, 0)])
def test_fine_gradients_of_queries_and_keys(multiplier: int, exponent: int) -> None:
    """They are nearer to torch's by far, also where the margin takes most of their bits: int16 and
    what it leaves are multiplied apart."""
    off: dict[bool, float] = {}
    for fine in (False, True):
        run = make_calibrated(make_attention(5, multiplier, exponent), margin=5, fine=fine)
        twin = FloatModel(run.model, run.operands(), run.pinned())
        expected = twin.gradients(run.named("image"), run.seed())
        # Of queries and keys: what comes before the scores.
        off[fine] = float(np.linalg.norm((run.gradient("w1") - expected["w1"])[:16]))
        # Before any rounding of ours, but that of what reaches the softmax.
    assert off[True] < 0.5 * off[False]
    for name in ("scores", "q", "k"):
        left, second = (run.node(f"{name}/acc/grad_{part}") for part in ("left", "second"))
        lost = run.session.evaluate(left).astype(np.float64)
        unit = 2.0 ** (
            run.graph.type_of(Ref(left)).exponent - run.graph.type_of(Ref(second)).exponent
        )
        assert np.abs(run.session.evaluate(second) * unit - lost).max() <= max(unit / 2, 0)
        assert np.abs(lost).max() > 0
    run.session.step()
    assert run.session.saturation() == {}
