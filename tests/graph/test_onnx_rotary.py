"""Rotary positions from ONNX files: as torch's exporters write them, and as one operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.reference
import pytest
from onnx import helper, numpy_helper

from tests.exhaustive import spare
from tests.graph.test_onnx_import import (
    assert_same_function,
    export_by_torch,
    make,
    node,
    run_integers,
    weights,
)
from vtrain.errors import ModelError
from vtrain.graph.model import Concat, Model, Modulate, find_constant_exponent
from vtrain.graph.onnx_import import import_onnx
from vtrain.graph.weights import compute_float_weights, export_onnx, export_safetensors

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
PLACES, HEADS, SIZE = 6, 2, 8
RATES = 10000.0 ** (-torch.arange(0, SIZE, 2) / SIZE)


def angles(places: int = PLACES) -> Any:
    return torch.outer(torch.arange(places).float(), RATES)


class Turned(nn.Module):  # type: ignore[misc]
    """Heads of a linear layer, turned; subclasses say how."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(16, 16)
        whole = torch.cat((angles(9), angles(9)), -1)
        self.register_buffer("cosines", whole.cos())
        self.register_buffer("sines", whole.sin())
        self.register_buffer("rates", RATES)

    def forward(self, x: Any) -> Any:
        batch, places, _ = x.shape
        heads = self.w(x).view(batch, places, HEADS, SIZE)
        return self.turn(heads, places).reshape(batch, places, 16)

    def by_halves(self, heads: Any, cosines: Any, sines: Any) -> Any:
        q = heads.transpose(1, 2)
        turned = torch.cat((-q[..., SIZE // 2 :], q[..., : SIZE // 2]), -1)
        return (q * cosines + turned * sines).transpose(1, 2)


class Stored(Turned):
    """Halves, by tables that are stored for more places than there are."""

    def turn(self, heads: Any, places: int) -> Any:
        return self.by_halves(heads, self.cosines[:places], self.sines[:places])


class Computed(Turned):
    """Halves, by tables that the file computes."""

    def turn(self, heads: Any, places: int) -> Any:
        whole = torch.cat((angles(), angles()), -1)
        return self.by_halves(heads, whole.cos(), whole.sin())


class ByRates(Turned):
    """Halves, by tables that the file computes of stored frequencies, as transformers do."""

    def turn(self, heads: Any, places: int) -> Any:
        numbers = torch.arange(places)[None]
        rates = self.rates[None, :, None].float().expand(numbers.shape[0], -1, 1)
        half = (rates @ numbers[:, None, :].float()).transpose(1, 2)
        whole = torch.cat((half, half), -1)
        return self.by_halves(heads, (whole.cos() * 1.0)[:, None], (whole.sin() * 1.0)[:, None])


class Strided(Turned):
    """Pairs of neighbours, by slices with steps."""

    def turn(self, heads: Any, places: int) -> Any:
        c, s = (t[:places, None, : SIZE // 2] for t in (self.cosines, self.sines))
        even, odd = heads[..., ::2], heads[..., 1::2]
        return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2)


class Normed(Stored):
    """Halves of heads that a norm without a scale has made, as norms of queries and keys do."""

    def by_halves(self, heads: Any, cosines: Any, sines: Any) -> Any:
        spread = heads.pow(2).mean(-1, keepdim=True)
        return super().by_halves(heads * torch.rsqrt(spread + 1e-5), cosines, sines)


class Paired(Turned):
    """Pairs of neighbours, by an axis of two, with one table of both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("both", torch.stack((angles(9).cos(), angles(9).sin()), -1))

    def turn(self, heads: Any, places: int) -> Any:
        table = self.both[:places, None]
        pairs = heads.unflatten(-1, (-1, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        c, s = table[..., 0], table[..., 1]
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


@pytest.mark.parametrize("symbolic", spare([False, True], True.__eq__))
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("kind", [Stored, Computed, ByRates, Normed, Strided, Paired])
def test_rotary_positions_that_torch_exports(
    kind: Callable[[], Any], dynamo: bool, symbolic: bool
) -> None:
    torch.manual_seed(7)
    network, x = kind().eval(), torch.rand(3, PLACES, 16) * 2 - 1
    proto = onnx.load_from_string(export_by_torch(network, x, dynamo=dynamo, symbolic=symbolic))
    model = assert_same_function(proto, x.numpy())
    expected = network(x).detach().numpy()
    assert np.abs(run_integers(model, x.numpy()) - expected).max() < 1e-3 * np.abs(expected).max()
    assert sorted(model.params[name].size for name in model.trained) == [16, 256]
    assert len(model.constants) in (2, 3), "those of a difference also with the other sign"
    found = {find_constant_exponent(model.params[name]) for name in model.constants}
    assert 14 in found <= {14, 15}, "a sine need not reach 1"


def test_signs_of_a_half_go_into_the_constant() -> None:
    torch.manual_seed(7)
    x = torch.rand(3, PLACES, 16)
    model = import_onnx(export_by_torch(Stored().eval(), x, dynamo=True, symbolic=True))
    kinds = [type(layer) for layer in model.layers]
    assert (kinds.count(Modulate), kinds.count(Concat)) == (2, 1)
    (table,) = (model.params[n] for n in model.constants if (model.params[n][0] == 0).all())
    expected = np.sin(angles().numpy())
    assert np.abs(np.ldexp(table[:, 4:], -24) - expected).max() < 2**-22
    assert np.abs(table[:, :4] + table[:, 4:]).max() <= 1, "ties are rounded up"


def test_constants_are_no_weights_of_the_file_that_is_exported() -> None:
    torch.manual_seed(7)
    x = torch.rand(3, PLACES, 16)
    original = export_by_torch(Stored().eval(), x, dynamo=True, symbolic=True)
    model = import_onnx(original)
    changed = {
        name: value if name in model.constants else value + 2**20
        for name, value in model.params.items()
    }
    assert sorted(compute_float_weights(model, changed)) == sorted(model.trained)
    again = import_onnx(export_onnx(original, model, changed))
    assert again.constants == model.constants
    for name, value in again.params.items():
        assert np.array_equal(value, changed[name]), name
    assert export_safetensors(original, model, changed)


# --- products with constants, node by node


def mul(table: npt.NDArray[Any], shape: list[int], **more: Any) -> onnx.ModelProto:
    """A linear layer [.., 8] -> [.., 8], times a table that the node ``Constant`` has."""
    stored = helper.make_node("Constant", [], ["t"], "c", value=numpy_helper.from_array(table))
    nodes = [stored, node("MatMul", "x w", "h"), node("Mul", "h t")]
    return make(nodes, ["n", *shape], {"w": weights(8, 8)}, **more)


@pytest.mark.parametrize(
    "dims", [(8,), (1, 8), (5, 8), (1, 5, 8), (3, 5, 1), (3, 1, 8), (3, 1, 1), (1, 3, 5, 8)]
)
def test_constants_are_spread_over_the_axes_before_theirs(dims: tuple[int, ...]) -> None:
    table = weights(*dims) * 3
    x = weights(2, 3, 5, 8)
    model = assert_same_function(mul(table, [3, 5, 8]), x)
    (constant,) = model.constants
    assert model.trained == ["w"]
    step = 2.0 ** -find_constant_exponent(model.params[constant])
    assert step / 2 <= np.abs(table).max() / 32639, "the worst error that is stated"


@pytest.mark.parametrize(
    ("largest", "exponent"),
    [(1.0, 14), (0.996, 15), (0.0, 24), (127.9, 7), (127.4, 8), (2**-15, 24)],
)
def test_exponents_of_constants(largest: float, exponent: int) -> None:
    master = np.array([0, -round(largest * 2**24)], np.int32)
    assert find_constant_exponent(master) == exponent


# --- what may be trained, or is no constant of the last axes


def refused(nodes: list[onnx.NodeProto], tensors: dict[str, Any], message: str) -> None:
    first = node("MatMul", "x w", "h")
    with pytest.raises(ModelError, match=message):
        import_onnx(make([first, *nodes], ["n", 5, 8], {"w": weights(8, 8), **tensors}))


def test_a_stored_tensor_that_may_be_trained_is_refused() -> None:
    told = "'t', which is stored and may be trained"
    refused([node("Mul", "h t")], {"t": weights(5, 8)}, told)
    refused([node("Mul", "h t")], {"t": weights(5, 8), "other": weights(5, 8)}, told)
    ones = {"t": np.ones((5, 8), np.float32), "b": np.zeros((5, 8), np.float32)}
    refused([node("Mul", "h t"), node("Add", "y b", "z")], ones, told)
    through = [node("Reshape", "t five", "s"), node("Mul", "h s")]
    refused(through, {"t": weights(8, 5), "five": np.array([5, 8])}, told)


def test_constants_that_do_not_fit_are_refused() -> None:
    for dims, message in (
        ((2, 1, 5, 8), "is not the same for all of the batch"),
        ((1, 1, 1, 5, 8), "is not the same for all of the batch"),
        ((4, 8), "does not fit"),
    ):
        with pytest.raises(ModelError, match=message):
            import_onnx(mul(weights(*dims), [3, 5, 8]))
    for value in (np.inf, np.nan, 128.0):
        with pytest.raises(ModelError, match="not finite, or 128 or more"):
            import_onnx(mul(np.full((5, 8), value, np.float32), [3, 5, 8]))


@pytest.mark.parametrize(
    ("starts", "ends", "steps", "fits"),
    [
        (0, 8, 2, True),
        (1, 2**40, 2, True),
        (3, 8, 4, True),
        (2, 8, 2, False),
        (0, 7, 2, False),
        (0, 8, 3, False),
        (7, -9, -1, False),
    ],
)
def test_slices_with_steps(starts: int, ends: int, steps: int, fits: bool) -> None:
    whole = {
        name: np.array([value])
        for name, value in (("s", starts), ("e", ends), ("a", 2), ("by", steps))
    }
    nodes = [node("MatMul", "x w", "h"), node("Slice", "h s e a by")]
    proto = make(nodes, ["n", 3, 8], {"w": weights(8, 8), **whole})
    if fits:
        assert_same_function(proto, weights(2, 3, 8))
        return
    with pytest.raises(ModelError, match="steps"):
        import_onnx(proto)


# --- the operator of opset 23


def rotary(
    shape: list[int | str], tables: tuple[int, ...], ids: Any = None, **attributes: Any
) -> onnx.ModelProto:
    half = tables[-1]
    found = np.outer(np.arange(tables[-2]), 100.0 ** (-np.arange(half) / half))
    stored = {"c": np.cos(found), "s": np.sin(found)}
    tensors = {name: value.reshape(tables).astype(np.float32) for name, value in stored.items()}
    more = "" if ids is None else " ids"
    tensors |= {} if ids is None else {"ids": np.array(ids)}
    nodes = [node("MatMul", "x w", "h"), node("RotaryEmbedding", f"h c s{more}", **attributes)]
    width = int(shape[-1])
    return make(nodes, shape, {"w": weights(width, width), **tensors}, opset=23)


ROTARY: dict[str, onnx.ModelProto] = {
    "heads": rotary([2, 3, 5, 8], (9, 4), [[0, 1, 2, 3, 4]] * 2),
    "heads, pairs": rotary([2, 3, 5, 8], (9, 4), [[0, 1, 2, 3, 4]] * 2, interleaved=1),
    "part of a head": rotary([2, 3, 5, 8], (9, 2), [[0, 1, 2, 3, 4]] * 2, rotary_embedding_dim=4),
    "heads in a row": rotary([2, 5, 8], (9, 2), [[4, 3, 2, 1, 0]] * 2, num_heads=2),
    "tables of the places": rotary([1, 3, 5, 8], (1, 5, 4)),
}


@pytest.mark.parametrize("case", ROTARY)
def test_the_operator_of_opset_23(case: str) -> None:
    proto = ROTARY[case]
    shape = [axis.dim_value for axis in proto.graph.input[0].type.tensor_type.shape.dim]
    x = weights(*shape)
    (expected,) = np.asarray(onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x}))
    model = import_onnx(proto)
    assert np.abs(run_integers(model, x) - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (rotary(["n", 5, 8], (9, 2), [[0, 1, 2, 3, 4]]), "needs num_heads"),
        (rotary(["n", 3, 5, 8], (9, 4), [[0, 1, 2, 3, 9]]), "beyond the 9 rows"),
        (rotary(["n", 3, 5, 8], (9, 4), [[0, 1, 2, 3, -1]]), "beyond the 9 rows"),
        (rotary(["n", 3, 5, 8], (9, 4), [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]), "same for all"),
        (rotary(["n", 3, 5, 8], (4, 4)), r"must give \[5, 4\]"),
        (rotary(["n", 3, 5, 8], (9, 4), [[0, 1, 2, 3, 4]], rotary_embedding_dim=10), "turns 10"),
    ],
)
def test_what_the_operator_cannot_have(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_onnx(proto)


def test_one_place_is_turned_by_nothing() -> None:
    """Of place 0 alone, cosines are 1 and sines 0: the layer is the identity but for rounding."""
    model = import_onnx(rotary(["n", 3, 1, 8], (9, 4), [[0]]))
    x = weights(2, 3, 1, 8)
    plain = import_onnx(make([node("MatMul", "x w")], ["n", 3, 1, 8], {"w": weights(8, 8)}))
    same: Model = replace(plain, params={"w": model.params["w"]})
    expected = run_integers(same, x)
    assert np.abs(run_integers(model, x) - expected).max() < 2e-4 * np.abs(expected).max()


def test_stored_tables_of_place_0_alone_are_refused() -> None:
    """They are ones and zeros, as scales and biases of a trained layer are at first."""
    ones = {"t": np.ones((1, 8), np.float32), "other": np.zeros((1, 8), np.float32)}
    proto = make([node("MatMul", "x w", "h"), node("Mul", "h t")], ["n", 1, 8],
                 {"w": weights(8, 8), **ones})  # fmt: skip
    with pytest.raises(ModelError, match="'t', which is stored and may be trained"):
        import_onnx(proto)
