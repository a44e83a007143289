"""Non-linearities by table: what large values become, what ONNX makes of them, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

from tests.engines.steps import make_step
from tests.graph.float_model import ACTIVATIONS as FLOATS
from tests.graph.test_onnx_import import (
    FC,
    assert_same_function,
    export_by_torch,
    make,
    node,
    run_integers,
)
from vtrain.errors import CircuitError
from vtrain.graph.activation import ACTIVATIONS, emit_activation, emit_elu
from vtrain.graph.autodiff import compute_gradients
from vtrain.graph.builder import GraphBuilder
from vtrain.graph.model import Activation
from vtrain.graph.onnx_import import import_onnx
from vtrain.ops import TABLE
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.prove.tiles.tiling import Tiling
from vtrain.wire.graph import Ref

Ints = npt.NDArray[Any]


class _Exponent:
    """Of every site."""

    def __init__(self, exponent: int) -> None:
        self._exponent = exponent

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        return self._exponent


def differentiate(kind: str, x: Ints, exponent: int) -> tuple[Ints, Ints]:
    """Values and slopes, as mantissas of ``exponent`` (of 14 if not gated) and of 14 bits."""
    y, slope, _ = run_block(lambda b, ref: emit_activation(b, "y", ref, kind), x, exponent)
    return y, slope


def run_block(
    emit: Callable[[GraphBuilder, Ref], Ref], x: Ints, exponent: int
) -> tuple[Ints, Ints, int]:
    """Values and slopes of a block as mantissas, and the exponent of these."""
    b = GraphBuilder(_Exponent(exponent))
    state: Any = {"name": "x", "dtype": "i32", "shape": x.shape, "exponent": exponent}
    wide = b.emit("state", "x", (), **state)
    narrow = b.rescale("narrow", wide, exponent)
    y = emit(b, narrow)
    ones = b.emit("relu", "seed", (narrow,))  # any int16 stands for the gradient, for now
    grad = compute_gradients(b, y, ones, [narrow])[narrow]
    values: list[Ints] = []
    for index, graph_node in enumerate(b.nodes):
        inputs = [values[ref.node] for ref in graph_node.inputs]
        if index == wide.node:
            values.append(x.astype(np.int32))
        elif index == ones.node:
            values.append(np.ones_like(x, np.int16))
        else:
            values.append(np.asarray(TABLE[graph_node.op].law(graph_node.attrs, inputs)))
    more = b.type_of(grad).exponent - b.type_of(ones).exponent
    return values[y.node], values[grad.node], more


@pytest.mark.parametrize(("alpha", "multiplier", "bits"), [(1.0, 1, 0), (0.75, 3, 2)])
@pytest.mark.parametrize("exponent", [9, 12])
def test_elu_is_torchs_to_half_a_thousandth(
    alpha: float, multiplier: int, bits: int, exponent: int
) -> None:
    """The exponential has 10 fraction bits of the base-2 logarithm: half a unit is 0.00034."""
    x = np.arange(-32639, 32640, 3)
    y, slope, more = run_block(lambda b, ref: emit_elu(b, "y", ref, multiplier, bits), x, exponent)
    floats = torch.tensor(x * 2.0**-exponent, requires_grad=True)
    exact = nn.functional.elu(floats, alpha)
    exact.sum().backward()  # type: ignore[no-untyped-call]
    errors = np.abs(y * 2.0**-exponent - exact.detach().numpy())
    assert errors.max() < 2.0 ** -(exponent + 1) + alpha * 5e-4
    assert errors[x >= 0].max() == 0
    assert floats.grad is not None
    assert np.abs(slope * 2.0**-more - floats.grad.numpy())[x != 0].max() < alpha * 5e-4
    assert np.array_equal(slope[x > 0], np.full((x > 0).sum(), 2**more))


@pytest.mark.parametrize("kind", [kind for kind, of in ACTIVATIONS.items() if of.gated])
@pytest.mark.parametrize("exponent", [0, 3, 7, 11])
def test_large_values_pass_or_vanish_without_an_error(kind: str, exponent: int) -> None:
    """x at its own exponent: nothing is held to a range, and beyond 13 nothing is rounded."""
    x = np.arange(-32639, 32640, 7)
    x = x[np.abs(x) * 2.0**-exponent >= 13]
    assert x.size > 100
    y, slope = differentiate(kind, x, exponent)
    assert np.array_equal(y, np.maximum(x, 0))
    assert np.array_equal(slope, np.where(x > 0, 2**14, 0))


@pytest.mark.parametrize("kind", ["sigmoid", "tanh"])
def test_limits_are_reached(kind: str) -> None:
    x = np.array([-(2**14), 2**14])  # +-16
    y, slope = differentiate(kind, x, 10)
    assert y.tolist() == [0 if kind == "sigmoid" else -(2**14), 2**14]
    assert slope.tolist() == [0, 0]


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("exponent", [2, 8, 12, 15])
def test_values_and_slopes_against_torch(kind: str, exponent: int) -> None:
    """Half a unit of rounding, and the worst errors of the tables (docs/format.md)."""
    x = np.arange(-32639, 32640, 11)
    y, slope = differentiate(kind, x, exponent)
    real = torch.tensor(x * 2.0**-exponent, requires_grad=True)
    out = FLOATS[kind](real)
    (expected,) = torch.autograd.grad(out.sum(), real)
    gated = ACTIVATIONS[kind].gated
    unit, off = (2.0**-exponent, 8.26 * 2.0**-14) if gated else (2.0**-14, 8.49 * 2.0**-14)
    allowed = off + (unit / 2 if gated else 0)
    assert np.abs(y * unit - out.detach().numpy()).max() <= allowed
    assert np.abs(slope * 2.0**-14 - expected.numpy()).max() <= 25.9 * 2.0**-14


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_one_gradient_of_the_whole(kind: str) -> None:
    """The nodes within are not asked: ``look_up`` has no rule of its own."""
    b = GraphBuilder(_Exponent(10))
    state: Any = {"name": "x", "dtype": "i32", "shape": (2,), "exponent": 12}
    x = b.rescale("x16", b.emit("state", "x", (), **state), 12)
    y = emit_activation(b, "y", x, kind)
    assert TABLE["look_up"].backward is None
    assert b.blocks[y].inputs == (x,)
    before = len(b.nodes)
    compute_gradients(b, y, x, [x])
    assert [made.op for made in b.nodes[before:]] == ["look_up", "mul"]
    assert b.nodes[before].attrs["table"] == ACTIVATIONS[kind].slope


# --- ONNX


@pytest.mark.parametrize(("form", "kind"), [("none", "gelu"), ("tanh", "gelu_tanh")])
def test_gelu_of_either_form(form: str, kind: str) -> None:
    nodes = [node("Gemm", "x w b", "h"), node("Gelu", "h", approximate=form)]
    x = np.random.default_rng(1).uniform(-4, 4, (9, 5)).astype(np.float32)
    model = assert_same_function(make(nodes, ["n", 5], FC, opset=20), x)
    assert model.layers[-1] == Activation("y", "h", kind)


def test_the_form_of_gelu_is_erf_unless_it_says_otherwise() -> None:
    nodes = [node("Gemm", "x w b", "h"), node("Gelu", "h")]
    assert import_onnx(make(nodes, ["n", 5], FC, opset=20)).layers[-1] == Activation(
        "y", "h", "gelu"
    )


def test_swish_of_opset_24() -> None:
    """Against ONNX's own reference: onnxruntime may not have the operator yet."""
    nodes = [node("Gemm", "x w b", "h"), node("Swish", "h", alpha=1.0)]
    proto = make(nodes, ["n", 5], FC, opset=24)
    x = np.random.default_rng(2).uniform(-4, 4, (9, 5)).astype(np.float32)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert isinstance(expected, np.ndarray)
    found = run_integers(import_onnx(proto), x)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_a_value_times_its_sigmoid_is_one_layer() -> None:
    nodes = [node("Gemm", "x w b", "h"), node("Sigmoid", "h", "s"), node("Mul", "s h")]
    model = import_onnx(make(nodes, ["n", 5], FC))
    assert model.layers[1:] == (Activation("y", "h", "silu"),)


NETWORKS = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
}


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_what_torch_exports(kind: str, dynamo: bool) -> None:
    """From opset 20 on it writes no parts of GELU."""
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(5, 7), NETWORKS[kind], nn.Linear(7, 3)).eval()
    x = torch.rand(9, 5) * 8 - 4
    file = export_by_torch(network, x, dynamo=dynamo, symbolic=True)
    model = assert_same_function(onnx.load_from_string(file), x.numpy())
    assert [getattr(layer, "kind", None) for layer in model.layers] == [None, kind, None]


# --- proofs


def test_proofs_of_such_steps_are_by_tiles_and_refused_as_a_whole_by_name() -> None:
    graph = make_step("gates").graph
    assert "look-up" in Tiling(graph, 8).circuits
    with pytest.raises(CircuitError, match="no circuit for the operator look_up") as caught:
        build_step_circuit(graph, 17, "step")
    assert caught.value.where == "silu/gate"
