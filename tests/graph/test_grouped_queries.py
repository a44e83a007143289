"""Queries in groups that share keys and values, in each form that torch exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graph.test_onnx_import import (
    assert_same_function,
    export_by_torch,
    make,
    node,
    run_integers,
    weights,
)
from vtrain.errors import ModelError
from vtrain.graph.onnx_import import import_onnx

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
attend: Any = torch.nn.functional.scaled_dot_product_attention
PLACES, HEADS, SHARED, SIZE = 5, 4, 2, 4


def expand(k: Any) -> Any:
    batch, heads, places, size = k.shape
    copies = HEADS // SHARED
    whole = k[:, :, None].expand(batch, heads, copies, places, size)
    return whole.reshape(batch, heads * copies, places, size)


def interleave(k: Any) -> Any:
    return k.repeat_interleave(HEADS // SHARED, dim=1)


class Grouped(nn.Module):  # type: ignore[misc]
    """Causal attention of four heads of queries and two of keys and values."""

    def __init__(self, share: Callable[[Any], Any] | None) -> None:
        super().__init__()
        self.q = nn.Linear(8, HEADS * SIZE, bias=False)
        self.k, self.v = (nn.Linear(8, SHARED * SIZE, bias=False) for _ in "kv")
        self.share = share

    def forward(self, x: Any) -> Any:
        batch, places, _ = x.shape
        q, k, v = (
            part(x).view(batch, places, -1, SIZE).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        if self.share is None:
            y = attend(q, k, v, is_causal=True, enable_gqa=True)
        else:
            y = attend(q, self.share(k), self.share(v), is_causal=True)
        return y.transpose(1, 2).reshape(batch, places, -1)


@pytest.mark.parametrize("places", [1, PLACES])
@pytest.mark.parametrize(
    ("share", "dynamo"),
    [(expand, False), (expand, True), (interleave, False), (interleave, True), (None, True)],
)  # torch's older exporter refuses enable_gqa itself
def test_grouped_queries_that_torch_exports(
    share: Callable[[Any], Any] | None, dynamo: bool, places: int
) -> None:
    torch.manual_seed(3)
    network, x = Grouped(share).eval(), torch.rand(3, places, 8) * 2 - 1
    proto = onnx.load_from_string(export_by_torch(network, x, dynamo=dynamo, symbolic=True))
    model = assert_same_function(proto, x.numpy())
    expected = network(x).detach().numpy()
    assert np.abs(run_integers(model, x.numpy()) - expected).max() < 1e-3 * np.abs(expected).max()


def test_a_row_that_is_hidden_in_whole_is_refused() -> None:
    """Its softmax would be of no place at all: torch has no number for it."""
    hidden = np.triu(np.full((PLACES, PLACES), -np.inf, np.float32), 1)
    hidden[0] = -np.inf
    nodes = [
        node("MatMul", "x w", "q"),
        node("Transpose", "q", "k", perm=[0, 2, 1]),
        node("MatMul", "q k", "s"),
        node("Add", "s mask", "m"),
        node("Softmax", "m", "p", axis=-1),
        node("MatMul", "p q", "y"),
    ]
    tensors = {"w": weights(8, 8), "mask": hidden}
    with pytest.raises(ModelError, match="each place attend to itself"):
        import_onnx(make(nodes, ["n", PLACES, 8], tensors))
    tensors["mask"] = np.triu(np.full((PLACES, PLACES), -np.inf, np.float32), 1)
    assert_same_function(make(nodes, ["n", PLACES, 8], tensors), weights(2, PLACES, 8))
