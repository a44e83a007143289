"""Importing forward passes: what is accepted computes the same, what is not is refused by place."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from vtrain.errors import ModelError
from vtrain.graph import onnx_file
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.evaluate import apply_node
from vtrain.graph.model import Conv, Layer, Linear, Masks, Model, emit_forward
from vtrain.graph.onnx_import import NEWEST_OPSET, OLDEST_OPSET, OPERATORS, import_onnx
from vtrain.graph.weights import export_onnx
from vtrain.limits import LIMITS, Limits
from vtrain.spec.number import MASTER_EXPONENT
from vtrain.spec.samples import Samples
from vtrain.train.new_task import write_new_task
from vtrain.train.task import list_sites, load_task
from vtrain.wire.graph import Ref
from vtrain.wire.task import DataSpec

Floats = npt.NDArray[np.float32]
RNG = np.random.default_rng(20)
INPUT_EXPONENT = 12
COUNTER = "the step"
NO_SAMPLES = Samples(DataSpec(b"", 1, "u8", (1,), 0, "u8", (1,), 0), np.zeros((1, 2), np.uint8))


def weights(*shape: int) -> Floats:
    return RNG.uniform(-0.5, 0.5, shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    """Inputs and outputs are separated by blanks; "-" is an omitted one."""
    names, made = (
        ["" if name == "-" else name for name in text.split()] for text in (inputs, outputs)
    )
    return helper.make_node(op, names, made, f"the_{op}", **attributes)


def make(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str | None],
    tensors: Mapping[str, npt.NDArray[Any]] | None = None,
    *,
    opset: int = 17,
    output: str = "y",
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (tensors or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 23 else 10)


def run_integers(model: Model, x: Floats) -> npt.NDArray[np.float64]:
    """The integer forward pass of float samples, back in float, in ONNX order."""
    return fix_integers(model, x)(x)


def fix_integers(model: Model, x: Floats) -> Callable[[Floats], npt.NDArray[np.float64]]:
    """The same of any samples, at exponents that ``x`` gives."""
    return Integers(model, x).run


class Integers:
    """The integer forward pass of a model, at exponents that ``x`` gives; with ``drops`` as in
    training, where layers drop values."""

    def __init__(self, model: Model, x: Floats, *, drops: bool = False) -> None:
        self._state: dict[str, npt.NDArray[Any]] = dict(model.params)
        if drops:
            self._state[COUNTER] = np.asarray(3, np.int64)
        self._exponent = 0 if model.takes_ids else INPUT_EXPONENT
        self._state["x"] = self._round(x)
        ends: list[Ref] = []

        def emit(b: GraphBuilder) -> None:
            def read(name: str, dtype: str, exponent: int) -> Ref:
                shape = self._state[name].shape
                return b.emit("state", f"in/{name}", (), name=name, dtype=dtype, shape=shape,
                              exponent=exponent)  # fmt: skip

            params = {name: read(name, "i32", MASTER_EXPONENT) for name in model.params}
            samples = read("x", "i32", self._exponent)
            masks = Masks(read(COUNTER, "i64", 0), bytes(8)) if drops else None
            if not model.takes_ids:
                samples = b.rescale("x16", samples, INPUT_EXPONENT)
            ends.append(emit_forward(b, model, samples, params, masks))

        found = calibrate(emit, self._state, NO_SAMPLES, steps=1, margin=1).exponents
        builder = GraphBuilder(FixedExponents(found))
        emit(builder)
        self.nodes = builder.nodes
        self._end, self._out = ends[-1], builder.type_of(ends[-1]).exponent

    def _round(self, x: Floats) -> npt.NDArray[np.int32]:
        return np.round(np.ldexp(x.astype(np.float64), self._exponent)).astype(np.int32)

    def evaluate(self, x: Floats) -> list[npt.NDArray[Any]]:
        """The output of every node."""
        state = {**self._state, "x": self._round(x)}
        values: list[npt.NDArray[Any]] = []
        for graph_node in self.nodes:
            inputs = [values[ref.node] for ref in graph_node.inputs]
            values.append(apply_node(graph_node, inputs, state, NO_SAMPLES))
        return values

    def run(self, x: Floats) -> npt.NDArray[np.float64]:
        """The output in float, in ONNX order."""
        return np.ldexp(self.evaluate(x)[self._end.node].astype(np.float64), -self._out)


def assert_same_function(proto: onnx.ModelProto, x: Floats, *, reference: bool = False) -> Model:
    """onnxruntime in float32, or ONNX's own ``reference``, and our integers agree to a thousandth
    of the largest output."""
    model = import_onnx(proto)
    assert_close(run_integers(model, x), run_floats(proto, x, reference=reference))
    return model


def run_floats(proto: onnx.ModelProto, x: Floats, *, reference: bool = False) -> Floats:
    nameless = onnx.ModelProto()
    nameless.CopyFrom(proto)
    for graph_node in nameless.graph.node:
        graph_node.name = ""  # onnxruntime wants names to be unique
    if reference:
        (out,) = ReferenceEvaluator(nameless).run(None, {"x": x})
    else:
        session = onnxruntime.InferenceSession(nameless.SerializeToString())
        (out,) = session.run(None, {session.get_inputs()[0].name: x})
    return np.asarray(out)


def assert_close(found: npt.NDArray[np.float64], expected: Floats) -> None:
    assert found.shape == expected.shape
    worst, largest = np.abs(found - expected).max(), np.abs(expected).max()
    assert worst < 1e-3 * largest, f"{worst} off, where {largest} is the largest"


def constant(name: str, value: npt.NDArray[Any]) -> onnx.NodeProto:
    return node("Constant", "", name, value=numpy_helper.from_array(value))


I64 = np.int64
Tensors = dict[str, npt.NDArray[Any]]
FC: Tensors = {"w": weights(5, 4), "b": weights(4)}

# A case is the nodes between x [batch, 5] and y, and the stored tensors.
VECTOR_CASES: dict[str, tuple[list[onnx.NodeProto], Tensors]] = {
    "gemm": ([node("Gemm", "x w b")], FC),
    "gemm transB": ([node("Gemm", "x w b", transB=1)], {"w": weights(4, 5), "b": weights(4)}),
    "gemm without bias": ([node("Gemm", "x w")], FC),
    "gemm, bias left empty": ([node("Gemm", "x w -")], FC),
    "gemm, bias as a row": ([node("Gemm", "x w b")], {"w": weights(5, 4), "b": weights(1, 4)}),
    "matmul": ([node("MatMul", "x w")], FC),
    "matmul and bias": ([node("MatMul", "x w", "h"), node("Add", "h b")], FC),
    "bias and matmul": ([node("MatMul", "x w", "h"), node("Add", "b h")], FC),
    "matmul of a transposed weight": (
        [node("Transpose", "w", "wt", perm=[1, 0]), node("MatMul", "x wt")],
        {"w": weights(4, 5)},
    ),
    "gemm of a transposed weight": (
        [node("Transpose", "w", "wt"), node("Gemm", "x wt b", transB=1)],
        FC,
    ),
    "weights as constants": (
        [constant("w", FC["w"]), constant("b", FC["b"]), node("Gemm", "x w b")],
        {},
    ),
    "weight by another name": ([node("Identity", "w", "v"), node("Gemm", "x v b")], FC),
    "one weight twice": (
        [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r w")],
        {"w": weights(5, 5)},
    ),
    "with and without bias": (
        [
            node("MatMul", "x w", "h"),
            node("Add", "h b", "i"),
            node("Relu", "i", "r"),
            node("Add", "h r"),
        ],
        FC,
    ),
    "identity and dropout": (
        [
            node("Gemm", "x w b", "h"),
            node("Identity", "h", "i"),
            node("Dropout", "i", "d m"),
            node("Relu", "d"),
        ],
        FC,
    ),
    "dropout told that this is inference": (
        [node("Gemm", "x w b", "h"), node("Dropout", "h ratio training")],
        {**FC, "ratio": np.array(0.3, np.float32), "training": np.array(False)},
    ),
    "output by another name": ([node("Gemm", "x w b", "h"), node("Identity", "h")], FC),
    "a value added to itself": ([node("Gemm", "x w b", "h"), node("Add", "h h")], FC),
    "a product of two values": (
        [node("Gemm", "x w b", "h"), node("Relu", "h", "r"), node("Mul", "h r")],
        FC,
    ),
    "a dead end": ([node("Gemm", "x w b"), node("Relu", "x", "unused")], FC),
    "flatten of a vector": ([node("Flatten", "x", "f"), node("Gemm", "f w b")], FC),
    "reshape to the same": (
        [node("Reshape", "x s", "f"), node("Gemm", "f w b")],
        {**FC, "s": np.array([0, 0], I64)},
    ),
}

SEQUENCE = np.array([0, 6, 4], I64)
"""To [batch, 6, 4], of 24 features."""
ROWS: Tensors = {"w": weights(5, 24), "s": SEQUENCE, "half": np.array([0.125], np.float32)}


def ints(*values: int) -> npt.NDArray[Any]:
    return np.array(values, I64)


def on_rows(
    *nodes: onnx.NodeProto, **tensors: npt.NDArray[Any]
) -> tuple[list[onnx.NodeProto], Tensors]:
    """Nodes from "r", [batch, 6, 4], to y."""
    start = [node("MatMul", "x w", "flat"), node("Reshape", "flat s", "r")]
    return [*start, *nodes], {**ROWS, **tensors}


VECTOR_CASES |= {
    "part of an axis": on_rows(node("Slice", "r a b c"), a=ints(1, -3), b=ints(5, 4), c=ints(1, 2)),
    "part, of all the batch": on_rows(
        node("Slice", "r a b c d"), a=ints(0, 2), b=ints(2**63 - 1, 2**31), c=ints(0, -2),
        d=ints(1, 1),
    ),
    "halves": on_rows(node("Split", "r", "a b", axis=1), node("Mul", "a b")),
    "uneven parts": on_rows(
        node("Split", "r n", "a b", axis=-1), node("Concat", "b a r", axis=2), n=ints(1, 3)
    ),
    "joined, of two exponents": on_rows(
        node("Mul", "r half", "q"), node("Concat", "r q", "c", axis=1), node("Relu", "c")
    ),
    "zeros around": on_rows(node("Pad", "r n"), n=ints(0, 1, 0, 0, 2, 3)),
    "axes swapped": on_rows(node("Transpose", "r", perm=[0, 2, 1])),
    "an axis more and less": on_rows(
        node("Unsqueeze", "r k", "u"), node("Transpose", "u", "t", perm=[0, 3, 2, 1]),
        node("Squeeze", "t k2"), k=ints(1), k2=ints(-1),
    ),
    "products of rows": on_rows(
        node("Transpose", "r", "t", perm=[0, 2, 1]), node("MatMul", "r t")
    ),
    "heads": on_rows(
        node("Reshape", "r heads", "f"),
        node("Transpose", "f", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "f", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "q k", "scores"),
        node("Div", "scores eight", "d"),
        node("MatMul", "d q", "o"),
        node("Transpose", "o", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back s2"),
        s2=SEQUENCE, heads=ints(0, 6, 2, 2), eight=np.array(1.4142135, np.float32),
    ),
    "by a constant, and by 1": on_rows(
        node("Mul", "half r", "q"), node("Div", "q one", "p"), node("Mul", "p p"),
        one=np.array(1.0, np.float32),
    ),
    "copies": on_rows(node("Unsqueeze", "r k", "u"), node("Expand", "u e", "v"),
                      node("Reshape", "v f"), k=ints(2), e=ints(1, 6, 3, 4), f=ints(0, 18, 4)),
    "tiles": on_rows(node("Tile", "r n"), n=ints(1, 2, 3)),
    "a softmax inside": on_rows(node("Softmax", "r", "p", axis=-1), node("MatMul", "p v"),
                                v=weights(4, 3)),
    "attention with all before it": on_rows(
        node("Transpose", "r", "t", perm=[0, 2, 1]), node("MatMul", "r t", "q"),
        node("Mul", "q half", "scaled"), node("Where", "mask scaled hide", "m"),
        node("Softmax", "m", "p", axis=2), node("MatMul", "p r"),
        mask=np.tril(np.ones((1, 6, 6), bool)), hide=np.array(-np.inf, np.float32),
    ),
    "attention with two before it, by a mask that is added": on_rows(
        node("Transpose", "r", "t", perm=[0, 2, 1]), node("MatMul", "r t", "q"),
        node("Add", "hide q", "m"), node("Softmax", "m", "p", axis=-1), node("MatMul", "p r"),
        hide=np.where(np.tri(6) - np.tri(6, k=-3) > 0, 0, -3e38).astype(np.float32),
    ),
    "a mask that hides nothing": on_rows(
        node("Where", "mask r hide", "m"), node("Softmax", "m", "p"), node("MatMul", "p v"),
        v=weights(4, 2), mask=np.ones((6, 4), bool), hide=np.array(-np.inf, np.float32),
    ),
    "positions": on_rows(node("Add", "r p"), p=weights(6, 4)),
    "positions with an axis for the batch": on_rows(node("Add", "p r"), p=weights(1, 6, 4)),
    "a bias of all places, after a product": on_rows(node("Add", "r p"), p=weights(4)),
}  # fmt: skip

STEEP: Tensors = {"w": 4 * weights(5, 4), "b": weights(4)}
"""Values of some units, so that a function by table is right to a thousandth of the largest."""
VECTOR_CASES |= {
    "sigmoid": ([node("Gemm", "x w b", "h"), node("Sigmoid", "h")], STEEP),
    "tanh": ([node("Gemm", "x w b", "h"), node("Tanh", "h")], STEEP),
    "silu, as a product": (
        [node("Gemm", "x w b", "h"), node("Sigmoid", "h", "s"), node("Mul", "h s")], STEEP
    ),
    "silu, the sigmoid first, and read again": (
        [node("Gemm", "x w b", "h"), node("Sigmoid", "h", "s"), node("Mul", "s h", "m"),
         node("Add", "m s")],
        STEEP,
    ),
    "a sigmoid of another value": (
        [node("Gemm", "x w b", "h"), node("Relu", "h", "r"), node("Sigmoid", "r", "s"),
         node("Mul", "h s")],
        STEEP,
    ),
    "a gated linear unit": (
        [node("MatMul", "x w", "h"), node("MatMul", "x v", "u"), node("Sigmoid", "h", "s"),
         node("Mul", "h s", "g"), node("Mul", "g u")],
        {"w": 4 * weights(5, 4), "v": weights(5, 4)},
    ),
}  # fmt: skip


def own(*shape: int) -> Floats:
    """Weights that leave those of other cases as they are."""
    return np.random.default_rng(shape).uniform(-0.5, 0.5, shape).astype(np.float32)


NORM_CASES: dict[str, tuple[list[onnx.NodeProto], Tensors]] = {
    "layer norm": (
        [node("Gemm", "x w b", "h"), node("LayerNormalization", "h g c")],
        {**FC, "g": own(4) + 1, "c": own(4)},
    ),
    "layer norm without bias": (
        [node("LayerNormalization", "x g", "h", epsilon=0.01, axis=1), node("Gemm", "h w b")],
        {**FC, "g": own(5) + 1},
    ),
    "layer norm without parameters": (
        [
            constant("g", np.ones(5, np.float32)),
            constant("c", np.zeros(5, np.float32)),
            node("LayerNormalization", "x g c", "h"),
            node("Gemm", "h w b"),
        ],
        FC,
    ),
    "layer norm with a bias alone": (
        [
            constant("g", np.ones(5, np.float32)),
            node("LayerNormalization", "x g c", "h"),
            node("Gemm", "h w b"),
        ],
        {**FC, "c": own(5)},
    ),
}
VECTOR_CASES |= NORM_CASES
TWO: Tensors = {"w": own(5, 4), "v": own(4, 5).T.copy(), "two": np.array(2, np.float32)}
A_AND_B = [node("MatMul", "x w", "a"), node("MatMul", "x v", "b")]
ROOT = [
    *A_AND_B, node("Pow", "a two", "squares"), node("ReduceMean", "squares", "mean", axes=[-1]),
    node("Add", "mean e", "more"), node("Sqrt", "more", "root"),
]  # fmt: skip
VECTOR_CASES |= {
    "a difference": ([*A_AND_B, node("Sub", "a b")], TWO),
    "a sum with a negative": ([*A_AND_B, node("Neg", "a", "m"), node("Add", "m b")], TWO),
    "a negative beside another": (
        [*A_AND_B, node("Neg", "a", "m"), node("Concat", "m b", axis=1)], TWO
    ),
    "a difference of what was negative twice": (
        [*A_AND_B, node("Neg", "a", "m"), node("Neg", "m", "p"), node("Sub", "b p")], TWO
    ),
    "a norm by hand": ([*ROOT, node("Div", "a root")], {**TWO, "e": np.array(1e-3, np.float32)}),
    "a norm by a reciprocal, with a scale": (
        [*ROOT, node("Reciprocal", "root", "i"), node("Mul", "i a", "n"), node("Mul", "n g")],
        {**TWO, "e": np.array(1e-3, np.float32), "g": own(4) + 1},
    ),
    "what is a float already": (
        [*A_AND_B, node("Cast", "a", "c", to=TensorProto.FLOAT), node("Mul", "c b")], TWO
    ),
    "rows that nothing hides whole": on_rows(
        node("Where", "mask r hide", "m"), node("Softmax", "m", "p"), node("IsNaN", "p", "lost"),
        node("Where", "lost zero p", "q"), node("MatMul", "q v"),
        v=own(4, 2), zero=np.array(0, np.float32), mask=np.ones((6, 4), bool),
        hide=np.array(-np.inf, np.float32),
    ),
}  # fmt: skip

KERNEL, BIAS = weights(3, 2, 3, 3), weights(3)
CONV: Tensors = {"w": KERNEL, "b": BIAS}

# From x [batch, 2, 6, 6] to y.
IMAGE_CASES: dict[str, tuple[list[onnx.NodeProto], Tensors]] = {
    "conv": ([node("Conv", "x w b")], CONV),
    "conv without bias": ([node("Conv", "x w")], CONV),
    "conv, every attribute": (
        [
            node(
                "Conv",
                "x w b",
                group=1,
                dilations=[1, 1],
                strides=[2, 1],
                pads=[1, 0, 2, 1],
                kernel_shape=[3, 3],
                auto_pad="NOTSET",
            )
        ],
        CONV,
    ),
    "conv 1x2": ([node("Conv", "x w b", strides=[1, 2])], {"w": weights(3, 2, 1, 2), "b": BIAS}),
    "conv valid": ([node("Conv", "x w b", auto_pad="VALID")], CONV),
    "conv same upper": (
        [node("Conv", "x w b", auto_pad="SAME_UPPER", strides=[2, 1])],
        {"w": weights(3, 2, 4, 3), "b": BIAS},
    ),
    "conv same lower": (
        [node("Conv", "x w b", auto_pad="SAME_LOWER", strides=[1, 2])],
        {"w": weights(3, 2, 4, 3), "b": BIAS},
    ),
    "max pool": (
        [node("Conv", "x w b", "c"), node("MaxPool", "c", kernel_shape=[2, 2], strides=[2, 2])],
        CONV,
    ),
    "max pool, padded": (
        [
            node("Conv", "x w b", "c"),
            node("MaxPool", "c", kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1]),
        ],
        CONV,
    ),
    "average pool": (
        [node("Conv", "x w b", "c"), node("AveragePool", "c", kernel_shape=[2, 2], strides=[2, 2])],
        CONV,
    ),
    "average pool 3x3, padded": (
        [
            node("Conv", "x w b", "c"),
            node("AveragePool", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
        ],
        CONV,
    ),
    "global average pool": ([node("Conv", "x w b", "c"), node("GlobalAveragePool", "c")], CONV),
    "reduce mean": ([node("Conv", "x w b", "c"), node("ReduceMean", "c", axes=[2, 3])], CONV),
    "reduce mean, axes dropped": (
        [node("Conv", "x w b", "c"), node("ReduceMean", "c", axes=[-1, -2], keepdims=0)],
        CONV,
    ),
    "mean over the places of a sequence": (
        [
            node("Conv", "x w b", "c"),
            node("Reshape", "c s", "r"),
            node("Transpose", "r", "t", perm=[0, 2, 1]),
            node("ReduceMean", "t", "m", axes=[1], keepdims=0),
            node("Gemm", "m v"),
        ],
        {**CONV, "s": np.array([0, 3, 16], I64), "v": weights(3, 4)},
    ),
    "mean over channels": (
        [node("Conv", "x w b", "c"), node("ReduceMean", "c", axes=[-3], keepdims=1)],
        CONV,
    ),
    "mean over channels and columns": (
        [node("Conv", "x w b", "c"), node("ReduceMean", "c", axes=[3, 1], keepdims=0)],
        CONV,
    ),
    "flatten": (
        [node("Conv", "x w b", "c"), node("Flatten", "c", "f"), node("Gemm", "f v")],
        {**CONV, "v": weights(48, 4)},
    ),
    "flatten from the end": (
        [node("Conv", "x w b", "c"), node("Flatten", "c", "f", axis=-3), node("Gemm", "f v")],
        {**CONV, "v": weights(48, 4)},
    ),
    "reshape to image and back": (
        [
            node("Reshape", "x s", "i"),
            node("Conv", "i w b", "c"),
            node("Reshape", "c t", "f"),
            node("Gemm", "f v"),
        ],
        {
            "w": weights(3, 8, 3, 3),
            "b": BIAS,
            "s": np.array([-1, 8, 3, 3], I64),
            "t": np.array([0, -1], I64),
            "v": weights(3, 4),
        },
    ),
    "view with the batch from the shape": (
        [
            node("Conv", "x w b", "c"),
            node("Shape", "c", "s"),
            constant("zero", np.array(0, I64)),
            node("Gather", "s zero", "n"),
            constant("axes", np.array([0], I64)),
            node("Unsqueeze", "n axes", "n1"),
            node("Constant", "", "rest", value_ints=[-1]),
            node("Concat", "n1 rest", "t", axis=0),
            node("Reshape", "c t", "f"),
            node("Gemm", "f v"),
        ],
        {**CONV, "v": weights(48, 4)},
    ),
    "channels joined, and others left": (
        [
            node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
            node("Concat", "x c", "j", axis=1),
            node("Slice", "j a e k", "p"),
            node("Pad", "p n", "i"),
            node("Conv", "i v"),
        ],
        {
            **CONV,
            "a": np.array([1, 1], I64),
            "e": np.array([4, 9], I64),
            "k": np.array([1, 3], I64),
            "n": np.array([0, 0, 1, 0, 0, 0, 0, 2], I64),
            "v": weights(2, 3, 3, 3),
        },
    ),
    "residual": (
        [
            node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
            node("Relu", "c", "r"),
            node("Add", "r x"),
        ],
        {"w": weights(2, 2, 3, 3), "b": weights(2)},
    ),
}
GROUPS = {"w": own(4, 1, 3, 2), "b": own(4)}
WIDE: Tensors = {"w": 2 * own(3, 2, 3, 3), "b": own(3)}
"""Values of some units, so that bounds are reached."""
IMAGE_CASES |= {
    "conv by channels": ([node("Conv", "x w b", group=2, pads=[1, 0, 1, 1])], GROUPS),
    "conv in groups": (
        [node("Conv", "x v", "c"), node("Conv", "c w b", group=2, strides=[2, 1])],
        {"v": own(4, 2, 1, 1), "w": own(6, 2, 2, 3), "b": own(6)},
    ),
    "dilated conv": ([node("Conv", "x w b", dilations=[2, 1], pads=[2, 1, 2, 1])], CONV),
    "dilated conv, every attribute": (
        [node("Conv", "x w b", dilations=[1, 3], group=2, strides=[1, 2], pads=[0, 3, 2, 3],
              kernel_shape=[3, 2])],
        GROUPS,
    ),
    "dilated conv valid": (
        [node("Conv", "x w", dilations=[2, 2], auto_pad="VALID")], CONV
    ),
    "leaky relu": ([node("Conv", "x w b", "c"), node("LeakyRelu", "c", alpha=0.2)], CONV),
    "leaky relu without a slope": (
        [node("Conv", "x w b", "c"), node("LeakyRelu", "c", alpha=0.0)], CONV
    ),
    "clip": (
        [node("Conv", "x w b", "c"), node("Clip", "c lo hi")],
        {**WIDE, "lo": np.array(-1, np.float32), "hi": np.array(0.75, np.float32)},
    ),
    "clip at 0 and above": (
        [node("Conv", "x w b", "c"), node("Clip", "c lo hi")],
        {**WIDE, "lo": np.array(0, np.float32), "hi": np.array(2, np.float32)},
    ),
    "clip above, and at 0": (
        [node("Conv", "x w b", "c"), node("Clip", "c - hi", "d"), node("Clip", "d - zero")],
        {**WIDE, "hi": np.array(1.5, np.float32), "zero": np.array(0, np.float32)},
    ),
    "clip that is a relu, and one that is nothing": (
        [node("Conv", "x w b", "c"), node("Clip", "c lo hi", "d"), node("Clip", "d lo far")],
        {**WIDE, "lo": np.array(0, np.float32), "hi": np.array(3.4028235e38, np.float32),
         "far": np.array(100, np.float32)},
    ),
    "elu": ([node("Conv", "x w b", "c"), node("Elu", "c", alpha=0.75)], WIDE),
    "transposed conv": (
        [node("Conv", "x w b", "c"), node("ConvTranspose", "c v", "d", strides=[2, 2]),
         node("ConvTranspose", "d u e", strides=[2, 1], pads=[1, 0, 1, 1],
              output_padding=[1, 0])],
        {**CONV, "v": own(3, 2, 2, 2), "u": own(2, 4, 3, 2), "e": own(4)},
    ),
    "numbers added and taken away": (
        [node("Conv", "x w b", "c"), constant("three", np.array(3, np.float32)),
         constant("half", np.array([0.5], np.float32)), node("Add", "c three", "d"),
         node("Sub", "d half", "e"), node("Sub", "three e", "f"), node("Mul", "f minus")],
        {**CONV, "minus": np.array(-1.5, np.float32)},
    ),
    "gates of channels": (
        [node("Conv", "x w b", "c"), node("GlobalAveragePool", "c", "m"),
         node("Sigmoid", "m", "s"), node("Mul", "s c", "g"), node("Sub", "g m")],
        CONV,
    ),
    "global max pool": ([node("Conv", "x w b", "c"), node("GlobalMaxPool", "c")], CONV),
    "instance norm": (
        [node("Conv", "x w b", "c"), node("InstanceNormalization", "c g e", epsilon=1e-3)],
        {**CONV, "g": own(3) + 1, "e": own(3)},
    ),
    "instance norm of rows": (
        [node("Reshape", "x s", "r"), node("InstanceNormalization", "r g e", "n"),
         node("Reshape", "n t")],
        {"s": ints(0, 4, 18), "t": ints(0, 2, 6, 6), "g": own(4) + 1, "e": own(4)},
    ),
}  # fmt: skip


TABLE, POSITIONS = weights(7, 4), weights(3, 4)
# A case is the nodes between the numbers x [batch, 3] and y, and the stored tensors.
ID_CASES: dict[str, tuple[list[onnx.NodeProto], Tensors]] = {
    "embedding": ([node("Gather", "t x")], {"t": TABLE}),
    "embedding, positions and a layer": (
        [node("Gather", "t x", "e"), node("Gather", "p i", "q"), node("Add", "e q", "h"),
         node("MatMul", "h w")],
        {"t": TABLE, "p": POSITIONS, "i": np.arange(3, dtype=I64), "w": weights(4, 5)},
    ),
    "tied table": (
        [node("Gather", "t x", "h"), node("Transpose", "t", "w"), node("MatMul", "h w")],
        {"t": TABLE},
    ),
    "tied table, stored twice": (
        [node("Gather", "t x", "h"), node("MatMul", "h w")],
        {"t": TABLE, "w": TABLE.T.copy()},
    ),
    "a mask of an id that no sample has": (
        [node("Gather", "t x", "h"), node("Transpose", "h", "k", perm=[0, 2, 1]),
         node("MatMul", "h k", "s"), node("Equal", "x nine", "pads"), node("Not", "pads", "kept"),
         node("Unsqueeze", "kept one", "rows"), node("Where", "rows s hide", "m"),
         node("Softmax", "m", "p"), node("MatMul", "p h")],
        {"t": TABLE, "nine": np.array(9, I64), "one": np.array([1], I64),
         "hide": np.array(-np.inf, np.float32)},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A model of the nodes between x [batch, ``shape``] and y, which is held against onnxruntime,
    or against ONNX's own ``reference`` where that has what onnxruntime has not."""

    nodes: Sequence[onnx.NodeProto]
    tensors: Tensors
    shape: Sequence[int]
    kind: int = TensorProto.FLOAT
    opset: int = 17
    reference: bool = False

    def make(self) -> onnx.ModelProto:
        shape: list[int | str | None] = ["n", *self.shape]
        return make(self.nodes, shape, self.tensors, kind=self.kind, opset=self.opset)

    def draw(self) -> Floats:
        """Samples, of ids below 7 or of floats."""
        rng, shape = np.random.default_rng(len(self.nodes)), (3, *self.shape)
        if self.kind != TensorProto.FLOAT:
            return rng.integers(0, 7, shape).astype(helper.tensor_dtype_to_np_dtype(self.kind))
        return rng.uniform(-1, 1, shape).astype(np.float32)

    def check(self) -> Model:
        return assert_same_function(self.make(), self.draw(), reference=self.reference)


RUNS = {"q": own(5, 8), "v": own(5, 8), "k": own(5, 8), "back": ints(0, 2, 4)}
ROTATED = np.outer(np.arange(2), np.array([1.0, 0.1]))
EXAMPLES: dict[str, Example] = {
    **{name: Example(*case, [5]) for name, case in VECTOR_CASES.items()},
    **{f"{name}, of an image": Example(*case, [2, 6, 6]) for name, case in IMAGE_CASES.items()},
    **{f"{name}, ids": Example(*case, [3], TensorProto.INT64) for name, case in ID_CASES.items()},
    "ids of 32 bits": Example(*ID_CASES["embedding"], [3], TensorProto.INT32),
    "gelu": Example([node("Gemm", "x w b", "h"), node("Gelu", "h")], STEEP, [5], opset=20),
    "swish": Example(
        [node("Gemm", "x w b", "h"), node("Swish", "h", alpha=1.0)], STEEP, [5], opset=24,
        reference=True,
    ),
    "a norm of groups": Example(
        [node("Conv", "x v", "c"), node("GroupNormalization", "c g e", num_groups=2)],
        {"v": own(4, 2, 1, 1), "g": own(4) + 1, "e": own(4)}, [2, 6, 6], opset=21,
    ),
    "a norm of roots": Example(
        [node("Gemm", "x w b", "h"), node("RMSNormalization", "h g")],
        {**FC, "g": own(4) + 1}, [5], opset=23, reference=True,
    ),
    "lines": Example(
        [
            node("Conv", "x v i", "c", kernel_shape=[3], dilations=[2], pads=[1, 2], group=2),
            node("MaxPool", "c", "m", kernel_shape=[3], strides=[2], auto_pad="SAME_UPPER"),
            node("ConvTranspose", "m t", "g", strides=[2], pads=[1, 0], output_padding=[1]),
            node("AveragePool", "g", "a", kernel_shape=[2]), node("Conv", "a u", "h"),
            node("GlobalAveragePool", "h", "e"), node("GlobalMaxPool", "g", "n"),
            node("Add", "e n"),
        ],
        {"v": own(4, 1, 3), "i": own(4), "t": own(4, 3, 3), "u": own(3, 3, 2)}, [2, 9],
    ),
    "attention": Example(
        [
            *(node("MatMul", f"x {name}", f"{name}_flat") for name in "qkv"),
            *(node("Reshape", f"{name}_flat back", f"{name}_rows") for name in "qkv"),
            node("Attention", "q_rows k_rows v_rows", q_num_heads=2, kv_num_heads=2, is_causal=1),
        ],
        RUNS, [5], opset=23,
    ),
    "rotary positions": Example(
        [
            node("MatMul", "x q", "flat"), node("Reshape", "flat back", "rows"),
            node("RotaryEmbedding", "rows cos sin places", num_heads=1),
        ],
        {
            "q": RUNS["q"], "back": RUNS["back"], "places": np.array([[0, 1]] * 3),
            "cos": np.cos(ROTATED).astype(np.float32), "sin": np.sin(ROTATED).astype(np.float32),
        },
        [5], opset=23, reference=True,
    ),
}  # fmt: skip
"""By name: every ONNX operator that is imported is in one."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_models_compute_what_onnxruntime_computes(name: str) -> None:
    example = EXAMPLES[name]
    model = example.check()
    assert model.takes_ids == (example.kind != TensorProto.FLOAT)
    if model.takes_ids:
        assert len(model.params) == (3 if "positions" in name else 1)


def test_every_operator_is_in_an_example() -> None:
    """But for the one whose statistics are state (``tests/train/test_batch_norm_tasks.py``), and
    those that join masks (``test_documents.py``)."""
    found = {item.op_type for example in EXAMPLES.values() for item in example.nodes}
    assert set(OPERATORS) - found == {"And", "BatchNormalization", "Or"}


def test_a_table_that_is_stored_twice_is_exported_twice() -> None:
    nodes, tensors = ID_CASES["tied table, stored twice"]
    proto = make(nodes, ["n", 3], tensors, kind=TensorProto.INT64)
    model = import_onnx(proto)
    assert model.copies == {"w": "t"}
    masters = {"t": model.params["t"] + 2**20}
    exported = onnx.load_from_string(export_onnx(proto.SerializeToString(), model, masters))
    found = {t.name: numpy_helper.to_array(t) for t in exported.graph.initializer}
    assert np.array_equal(found["w"], found["t"].T)
    assert np.allclose(found["t"], TABLE + 2**-4, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", "x")], "only a Gather"),
        ([node("Gather", "t x", axis=1)], "axis must be 0"),
        ([node("Gather", "t i")], "all rows of the table"),
        ([node("Gather", "x t")], "shape of a value"),
    ],
)
def test_numbers_are_for_tables_alone(nodes: list[onnx.NodeProto], message: str) -> None:
    tensors: Tensors = {"t": TABLE, "i": np.arange(3, dtype=I64)}
    with pytest.raises(ModelError, match=message):
        import_onnx(make(nodes, ["n", 3], tensors, kind=TensorProto.INT64))


def test_group_norms_of_an_older_opset_are_refused() -> None:
    example = replace(EXAMPLES["a norm of groups"], opset=20)
    with pytest.raises(ModelError, match="a scale for each group: export with opset 21"):
        import_onnx(example.make())


@pytest.mark.parametrize("batch", ["n", None, 1, 3])
@pytest.mark.parametrize("shape", [[0, -1], [-1, 10], [0, 10]])
def test_batch_may_be_symbolic_unknown_or_any_number(batch: Any, shape: list[int]) -> None:
    tensors: Tensors = {"w": weights(10, 4), "s": np.array(shape, I64)}
    nodes = [node("Reshape", "x s", "f"), node("MatMul", "f w")]
    assert import_onnx(make(nodes, [batch, 2, 5], tensors)).input_shape == (2, 5)


def test_reshape_may_name_a_fixed_batch() -> None:
    tensors: Tensors = {"w": weights(10, 4), "s": np.array([3, -1], I64)}
    nodes = [node("Reshape", "x s", "f"), node("MatMul", "f w")]
    assert import_onnx(make(nodes, [3, 2, 5], tensors)).layers[0].name == "f"
    with pytest.raises(ModelError, match=r"the_Reshape.*keep the batch"):
        import_onnx(make(nodes, [4, 2, 5], tensors))


@pytest.mark.parametrize("opset", range(OLDEST_OPSET, NEWEST_OPSET + 1))
def test_every_opset_since_the_oldest(opset: int) -> None:
    nodes, tensors = IMAGE_CASES["residual"]
    assert len(import_onnx(make(nodes, ["n", 2, 6, 6], tensors, opset=opset)).layers) == 3


@pytest.mark.parametrize("opset", [OLDEST_OPSET - 1, NEWEST_OPSET + 1])
def test_other_opsets_are_refused(opset: int) -> None:
    with pytest.raises(ModelError, match=f"opset {opset}"):
        import_onnx(make([node("Gemm", "x w b")], ["n", 5], FC, opset=opset))


def test_params_in_order_of_first_use_and_in_step_graph_layout() -> None:
    tensors = {
        "unused": weights(2),
        "fc": weights(48, 4),
        "conv_bias": BIAS,
        "conv": KERNEL,
        "fc_bias": weights(1, 4),
    }
    nodes = [
        node("Conv", "x conv conv_bias", "c"),
        node("Flatten", "c", "f"),
        node("Gemm", "f fc fc_bias"),
    ]
    model = import_onnx(make(nodes, ["n", 2, 6, 6], tensors))
    shapes = {name: value.shape for name, value in model.params.items()}
    expected = {"conv": (3, 3, 3, 2), "conv_bias": (3,), "fc": (48, 4), "fc_bias": (4,)}
    assert list(shapes.items()) == list(expected.items())
    masters = np.floor(KERNEL.astype(np.float64) * 2**24 + 0.5).astype(np.int32)
    assert np.array_equal(model.params["conv"], masters.transpose(0, 2, 3, 1))
    assert [layer.name for layer in model.layers] == ["c", "f", "y"]
    assert isinstance(model.layers[0], Conv)
    assert isinstance(model.layers[2], Linear)
    assert not model.layers[2].transposed


HALF = 2.0**-25
"""Half a unit of a master weight."""


@pytest.mark.parametrize(
    ("dtype", "value", "mantissa"),
    [
        (np.float32, 1.0, 2**24),
        (np.float32, -1.0, -(2**24)),
        (np.float32, HALF, 1),
        (np.float32, -HALF, 0),
        (np.float32, np.nextafter(np.float32(HALF), np.float32(0)), 0),
        (np.float32, -3 * HALF, -1),
        (np.float32, 1e-45, 0),
        (np.float32, np.nextafter(np.float32(128), np.float32(0)), 2**31 - 128),
        (np.float64, 128 - 2 * HALF, 2**31 - 1),
        (np.float64, -128 + 2 * HALF, -(2**31) + 1),
        (np.float64, 5e-324, 0),
        (np.float16, 0.5, 2**23),
        (np.float16, 2.0**-24, 1),
    ],
)
@pytest.mark.parametrize("raw", [True, False])
def test_float_to_master_rounds_half_up(
    dtype: type[np.floating[Any]], value: float, mantissa: int, raw: bool
) -> None:
    proto = make([node("MatMul", "x w")], ["n", 1], {"w": np.array([[value]], dtype)})
    if not raw:
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        if dtype is np.float16:
            tensor.int32_data.append(int(np.array(value, np.float16).view(np.uint16)))
        else:
            (tensor.float_data if dtype is np.float32 else tensor.double_data).append(value)
    assert import_onnx(proto).params["w"].tolist() == [[mantissa]]


@pytest.mark.parametrize("raw", [True, False])
def test_bfloat16_is_read(raw: bool) -> None:
    proto = make([node("MatMul", "x w")], ["n", 1])
    tensor = proto.graph.initializer.add(name="w", data_type=TensorProto.BFLOAT16, dims=[1, 2])
    patterns = np.array([0x3FC0, 0xBE80], "<u2")  # 1.5 and -0.25
    if raw:
        tensor.raw_data = patterns.tobytes()
    else:
        tensor.int32_data.extend(patterns.tolist())
    assert import_onnx(proto).params["w"].tolist() == [[3 * 2**23, -(2**22)]]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (np.nan, "is not finite"),
        (np.inf, "is not finite"),
        (-np.inf, "is not finite"),
        (128.0, "does not fit"),
        (-128.0, "does not fit"),
        (1e300, "does not fit"),
    ],
)
def test_weights_that_are_no_masters_are_refused_by_index(value: float, complaint: str) -> None:
    w = np.zeros((5, 4))
    w[3, 1] = value
    with pytest.raises(ModelError, match=rf"initialiser w: element \[3, 1\] {complaint}") as caught:
        import_onnx(make([node("MatMul", "x w")], ["n", 5], {"w": w}))
    assert caught.value.where == "initialiser w"


def fc(**attributes: Any) -> list[onnx.NodeProto]:
    return [node("Gemm", "x w b", **attributes)]


def after_fc(op: str, inputs: str = "h", outputs: str = "y", **more: Any) -> list[onnx.NodeProto]:
    return [node("Gemm", "x w b", "h"), node(op, inputs, outputs, **more)]


def conv(**attributes: Any) -> list[onnx.NodeProto]:
    return [node("Conv", "x k", **attributes)]


def pool(op: str, **attributes: Any) -> list[onnx.NodeProto]:
    return [node("Conv", "x k", "c"), node(op, "c", **{"kernel_shape": [2, 2], **attributes})]


TENSORS: Tensors = {
    "w": weights(72, 4),
    "b": weights(4),
    "k": weights(3, 2, 3, 3),
    "u": weights(2, 3, 3, 3),
    "scalar": weights(),
    "quarter": np.array(0.25, np.float32),
    "all": np.array(1, np.float32),
    "nearly": np.array(1 - 2**-14 + 2**-16, np.float32),
    "hardly": np.array(2**-17, np.float32),
    "matrix": weights(4, 4),
    "i": np.array([0, 1], I64),
    "long": np.zeros(99, I64),
    "nothing": weights(72, 0),
    "line": np.array([-1, 12, 6], I64),
    "true": np.array(True),
    "minus": np.array(-0.5, np.float32),
    "zero": np.array(0, np.float32),
    "large": np.array(1e12, np.float32),
    "two": np.array([3, 4], I64),
    "first": np.array([0], I64),
    "one": np.array([1], I64),
    "one2": np.array([2], I64),
    "two1": np.array([-1], I64),
    "ninth": np.array([9], I64),
    "hide": np.array(-np.inf, np.float32),
    "causal": np.tril(np.ones((6, 6), bool)),
    "later": np.triu(np.ones((6, 6), bool)),
    "wrong": np.ones((5, 5), bool),
    "many": np.ones((3, 1, 6, 6), bool),
    "half": np.where(np.tril(np.ones((6, 6))) > 0, 0.5, -np.inf).astype(np.float32),
}
FLAT = node("Flatten", "x", "x1")

# From x [batch, 2, 6, 6]; the place and a word of the complaint.
REFUSED: list[tuple[list[onnx.NodeProto], str, str]] = [
    ([node("LeakyRelu", "x", alpha=-0.1)], "the_LeakyRelu", "alpha must be at least 0"),
    ([node("LeakyRelu", "x", alpha=float("nan"))], "the_LeakyRelu", "alpha is nan"),
    ([node("Elu", "x", alpha=0.0)], "the_Elu", "alpha must be above 0, is 0.0"),
    ([node("ConvTranspose", "x u", group=2)], "the_ConvT", "groups are not supported"),
    ([node("ConvTranspose", "x u", dilations=[2, 1])], "the_ConvT", "dilations must be 1"),
    ([node("ConvTranspose", "x k")], "the_ConvT", "weight is for 3 channels, input has 2"),
    ([node("ConvTranspose", "x u", output_padding=[1, 0])], "the_ConvT", "below the strides"),
    ([node("ConvTranspose", "x u", pads=[3, 0, 0, 0])], "the_ConvT", "smaller than the kernel"),
    ([node("ConvTranspose", "x u", auto_pad="VALID")], "the_ConvT", "must have pads"),
    ([node("Clip", "x quarter")], "the_Clip", "the bounds 0.25 and inf must be"),
    ([node("Clip", "x zero zero")], "the_Clip", "must be below and above 0, or one of them 0"),
    ([node("Clip", "x x")], "the_Clip", "must be a constant"),
    ([node("InstanceNormalization", "x b b")], "the_Inst", "must have shape [2], one has [4]"),
    ([node("InstanceNormalization", "x i i", epsilon=-1.0)], "the_Inst", "at least 0, is -1.0"),
    ([node("BatchNormalization", "x i i i")], "the_Batch", "needs 5 inputs, has 4"),
    ([node("BatchNormalization", "x i i i i")], "the_Batch", "Export the model in training mode"),
    (
        [node("BatchNormalization", "x two two two b", training_mode=1)],
        "the_Batch",
        "running statistics must have shape [2], 'b' has [4]",
    ),
    (
        [node("BatchNormalization", "x two two two i", training_mode=1, momentum=1.0)],
        "the_Batch",
        "momentum must be",
    ),
    ([node("Erf", "x")], "the_Erf (Erf)", "export with opset 20 or later"),
    ([node("Softplus", "x")], "the_Softplus (Softplus)", "not supported"),
    ([node("Gelu", "x", approximate="none please")], "the_Gelu", "none or tanh, is 'none please'"),
    ([node("Swish", "x", alpha=1.5)], "the_Swish", "alpha must be 1, is 1.5"),
    ([node("Tanh", "w")], "the_Tanh", "a value computed from the model's input"),
    ([node("Sigmoid", "x", alpha=0.5)], "the_Sigmoid", "unknown attributes ['alpha']"),
    ([node("LRN", "x", size=3)], "the_LRN", "not supported"),
    ([node("If", "x")], "the_If", "not supported"),
    ([node("Cast", "x", to=7)], "the_Cast", "to no float"),
    ([node("Softmax", "x")], "the_Softmax", "the task's loss brings this"),
    ([node("LogSoftmax", "x")], "the_LogSoftmax", "the task's loss brings this"),
    (
        [helper.make_node("Relu", ["x"], ["y"], domain="com.example")],
        "node y (Relu)",
        "domain 'com.example'",
    ),
    ([node("Relu", "x", alpha=1.0)], "the_Relu", "unknown attributes ['alpha']"),
    ([node("Relu", "x x")], "the_Relu", "needs 1 to 1 inputs"),
    ([node("Relu", "x", "y z")], "the_Relu", "one output"),
    ([node("Relu", "x", "-")], "the_Relu", "one output"),
    ([node("Relu", "-")], "the_Relu", "needs 1 to 1 inputs"),
    ([node("Relu", "x", "x")], "the_Relu", "name 'x' is taken"),
    ([node("Relu", "x", "w")], "the_Relu", "name 'w' is taken"),
    ([node("Relu", "x"), node("Relu", "y")], "the_Relu", "name 'y' is taken"),
    ([node("Relu", "y")], "the_Relu", "cycle"),
    ([node("Relu", "z"), node("Relu", "x", "z")], "the_Relu", "before it is made"),
    ([node("Relu", "elsewhere")], "the_Relu", "which nothing makes"),
    ([node("Relu", "w")], "the_Relu", "must be a value computed"),
    (fc(alpha=0.5), "the_Gemm", "alpha"),
    (fc(beta=2.0), "the_Gemm", "beta"),
    (fc(transA=1), "the_Gemm", "transA"),
    (fc(), "the_Gemm", "needs [batch, features], has [batch, 2, 6, 6]"),
    ([FLAT, node("Gemm", "x1 w b", transB=1)], "the_Gemm", "weight is for 4 features"),
    ([FLAT, node("Gemm", "x1 k")], "the_Gemm", "weight has shape [3, 2, 3, 3]"),
    ([FLAT, node("Gemm", "x1 nothing")], "the_Gemm", "empty"),
    ([FLAT, node("Gemm", "x1 x1")], "the_Gemm", "must be a constant"),
    ([FLAT, node("Gemm", "x1 w scalar")], "the_Gemm", "bias must have shape [4]"),
    ([FLAT, node("Gemm", "x1 w matrix")], "the_Gemm", "bias must have shape [4]"),
    ([FLAT, node("Gemm", "w x1")], "the_Gemm", "must be a value computed"),
    ([FLAT, *fc()[:0], node("MatMul", "x1 i")], "the_MatMul", "weight has shape [2]"),
    ([FLAT, node("Gemm", "x1 w b", "h"), node("Add", "h matrix")], "the_Add", "last axes"),
    ([node("Add", "x k")], "the_Add", "has the shape of the last axes"),
    ([node("Mul", "x k")], "the_Mul", "a constant of one element"),
    ([node("Mul", "x w")], "the_Mul", "a constant of one element"),
    ([node("Mul", "x i")], "the_Mul", "a constant of one element"),
    ([node("Mul", "x zero")], "the_Mul", "above 0, is 0.0"),
    ([node("Mul", "x zero")], "the_Mul", "above 0, is 0.0"),
    ([node("Mul", "x large")], "the_Mul", "is beyond 2^-33 to 65535"),
    ([node("Div", "x large")], "the_Div", "is beyond 2^-33 to 65535"),
    ([node("Div", "x zero")], "the_Div", "divides by 0"),
    ([node("Div", "x x")], "the_Div", "must be a constant"),
    ([FLAT, node("MatMul", "x1 x1")], "the_MatMul", "needs matrices"),
    ([FLAT, node("MatMul", "x x1")], "the_MatMul", "needs matrices"),
    ([node("Slice", "x one one one")], "the_Slice", "is empty"),
    ([node("Slice", "x i")], "the_Slice", "needs starts and ends"),
    ([node("Slice", "x i two one")], "the_Slice", "differ in length"),
    ([node("Slice", "x one one2 one two1")], "the_Slice", "steps must be 1"),
    ([node("Slice", "x one one2 first")], "the_Slice", "the batch must stay"),
    ([node("Slice", "x one one2 ninth")], "the_Slice", "there is no axis 9"),
    ([node("Split", "x", "y z", axis=0)], "the_Split", "the batch must stay"),
    ([node("Split", "x i", "y z", axis=1)], "the_Split", "cannot split 2 into [0, 1]"),
    ([node("Split", "x", "y z v", axis=1)], "the_Split", "cannot split 2 into [1, 1, 0]"),
    ([node("Split", "x", "y z", axis=1, num_outputs=3)], "the_Split", "num_outputs"),
    ([node("Pad", "x i")], "the_Pad", "has 2 pads for 4 axes"),
    ([node("Pad", "x", pads=[1] + [0] * 7)], "the_Pad", "the batch must stay"),
    ([node("Pad", "x", pads=[0, -1] + [0] * 6)], "the_Pad", "negative pads"),
    ([node("Pad", "x", pads=[0, 1] + [0] * 6, value=1.0)], "the_Pad", "other values than 0"),
    ([node("Pad", "x", pads=[0, 1] + [0] * 6, mode="edge")], "the_Pad", "mode must be constant"),
    ([node("Squeeze", "x one")], "the_Squeeze", "are not all of extent 1"),
    ([node("Squeeze", "x")], "the_Squeeze", "must name its axes"),
    ([node("Unsqueeze", "x first")], "the_Unsqueeze", "the batch must stay"),
    ([node("Unsqueeze", "x one")], "graph", "no weights to train"),
    ([node("Concat", "x x", axis=0)], "the_Concat", "the batch must stay"),
    ([FLAT, node("Concat", "x x1", axis=1)], "the_Concat", "shapes differ beside axis 1"),
    ([node("Concat", "x w", axis=1)], "the_Concat", "must be a value"),
    ([node("Concat", "x x")], "the_Concat", "must name its axis"),
    ([node("Transpose", "x", perm=[1, 0, 2, 3])], "the_Transpose", "the batch must stay"),
    ([node("Transpose", "x")], "the_Transpose", "the batch must stay"),
    ([node("Transpose", "x", perm=[0, 2, 2, 1])], "the_Transpose", "is no permutation"),
    ([node("Add", "w b")], "the_Add", "two constants"),
    ([FLAT, node("Add", "x x1")], "the_Add", "shapes differ"),
    (conv(group=2), "the_Conv", "2 groups of 2 channels to 3"),
    (conv(group=0), "the_Conv", "0 groups of 2 channels"),
    (conv(dilations=[4, 1]), "the_Conv", "larger than the padded image"),
    (conv(dilations=[0, 1]), "the_Conv", "dilations are"),
    (conv(dilations=[1]), "the_Conv", "dilations are"),
    (conv(kernel_shape=[2, 2]), "the_Conv", "kernel_shape"),
    (conv(kernel_shape=[3]), "the_Conv", "height and width"),
    (conv(strides=[0, 1]), "the_Conv", "strides"),
    (conv(strides=[1, 1, 1]), "the_Conv", "strides"),
    (conv(pads=[-1, 0, 0, 0]), "the_Conv", "negative"),
    (conv(pads=[3, 0, 0, 0]), "the_Conv", "pad must be smaller"),
    (conv(pads=[0, 0]), "the_Conv", "pads"),
    (conv(auto_pad="SAME"), "the_Conv", "auto_pad is 'SAME'"),
    (conv(auto_pad="VALID", pads=[1, 1, 1, 1]), "the_Conv", "both pads and auto_pad"),
    (conv(group="1"), "the_Conv", "of another type"),
    ([FLAT, node("Conv", "x1 k")], "the_Conv", "needs [batch, channels, height, width]"),
    ([node("Reshape", "x line", "x1"), node("Conv", "x1 k")], "the_Conv", "weight has shape"),
    (
        [
            node("Reshape", "x line", "x1"),
            node("MaxPool", "x1", kernel_shape=[2], pads=[1, 1, 1, 1]),
        ],
        "the_MaxPool",
        "attribute pads is [1, 1, 1, 1], of a line it has 2",
    ),
    ([node("Conv", "x w")], "the_Conv", "weight has shape"),
    ([node("Conv", "x k", "c"), node("Conv", "c k")], "the_Conv", "weight is for 2 channels"),
    ([node("Conv", "x k b")], "the_Conv", "bias must have shape [3]"),
    ([node("Transpose", "k", "kt", perm=[1, 0, 2, 3])], "the_Transpose", "constant matrix"),
    (pool("MaxPool", ceil_mode=1), "the_MaxPool", "ceil_mode"),
    (pool("MaxPool", dilations=[2, 2]), "the_MaxPool", "dilations"),
    (pool("MaxPool", kernel_shape=[9, 9]), "the_MaxPool", "larger than the padded image"),
    (pool("MaxPool", kernel_shape=[2**60, 2**60]), "the_MaxPool", "larger than the padded image"),
    (
        pool("MaxPool", kernel_shape=[2**40, 2**40], pads=[2**40 - 1] * 4),
        "the_MaxPool",
        "elements",
    ),
    ([node("MaxPool", "x", "y i2", kernel_shape=[2, 2])], "the_MaxPool", "indices"),
    ([node("MaxPool", "x")], "the_MaxPool", "height and width"),
    (pool("AveragePool", ceil_mode=1), "the_AveragePool", "ceil_mode"),
    (pool("AveragePool", pads=[1, 1, 1, 1]), "the_AveragePool", "count_include_pad"),
    (pool("AveragePool", auto_pad="SAME_UPPER"), "the_AveragePool", "count_include_pad"),
    ([node("ReduceMean", "x", axes=[0, 2])], "the_ReduceMean", "without the batch"),
    ([node("ReduceMean", "x", axes=[1, 2, 3], keepdims=0)], "the_ReduceMean", "one axis more"),
    ([node("ReduceMean", "x", axes=[2, -2])], "the_ReduceMean", "without the batch"),
    ([node("ReduceMean", "x")], "the_ReduceMean", "must be named"),
    ([node("ReduceMean", "x", axes=[2, 7])], "the_ReduceMean", "without the batch"),
    ([node("Flatten", "x", axis=2)], "the_Flatten", "axis must be 1"),
    ([node("Reshape", "x i")], "the_Reshape", "cannot reshape"),
    ([node("Reshape", "x long")], "the_Reshape", "short list"),
    ([node("Reshape", "x x")], "the_Reshape", "must be a constant"),
    ([node("Reshape", "x b")], "initialiser b", "not an integer tensor"),
    ([node("Dropout", "x all true")], "the_Dropout", "1 - 2^-14, is 1.0"),
    ([node("Dropout", "x nearly true")], "the_Dropout", "1 - 2^-14, is 0.99995"),
    ([node("Dropout", "x hardly true")], "the_Dropout", "from 2^-16"),
    ([node("Dropout", "x minus true")], "the_Dropout", "is -0.5"),
    ([node("Dropout", "x x true")], "the_Dropout", "must be a constant"),
    ([node("Dropout", "x w true")], "the_Dropout", "a constant of one element"),
    ([node("Dropout", "x half x")], "the_Dropout", "must be a constant"),
    ([node("Dropout", "x half i")], "the_Dropout", "must be one boolean"),
    ([node("Dropout", "x quarter true", "d m"), node("Relu", "m")], "the_Relu", "must be a value"),
    ([node("Constant", "", "c", value_float=1.0)], "the_Constant", "tensor or integers"),
    ([node("Gather", "x i", "g")], "the_Gather", "shape of a value"),
    ([node("Unsqueeze", "k i")], "output y", "not a value"),
    ([node("Where", "x i w")], "the_Where", "only supported as a mask"),
    ([node("Where", "true x x")], "the_Where", "only supported as a mask"),
    ([node("Where", "true x zero")], "the_Where", "must be minus infinity"),
    ([node("Where", "later x hide"), node("Softmax", "y", "z")], "the_Where", "no other is"),
    ([node("Where", "wrong x hide")], "the_Where", "does not fit"),
    ([node("Where", "many x hide")], "the_Where", "not one of queries and keys alone"),
    ([node("Where", "causal x hide")], "output y", "not a value"),
    ([node("Where", "causal x hide", "h"), node("Relu", "h")], "the_Relu", "only a Softmax"),
    ([node("Add", "x half")], "the_Add", "is 0 elsewhere"),
    ([node("Expand", "x two")], "the_Expand", "cannot expand"),
    ([node("Expand", "x long")], "the_Expand", "short list"),
    ([node("Tile", "x i")], "the_Tile", "has 2 counts"),
    ([node("Softmax", "x", axis=1)], "the_Softmax", "axis must be the last, is 1"),
    ([node("Softmax", "x w")], "the_Softmax", "needs 1 to 1 inputs"),
    ([node("Softmax", "w")], "the_Softmax", "must be a value computed"),
    ([node("Shape", "x", "s"), node("Add", "s s", "t")], "the_Add", "the extent of the batch"),
    ([node("Shape", "x", "s"), node("Cast", "s", "t", to=16)], "the_Cast", "to another type"),
    ([node("Shape", "x", "s"), node("Gather", "s ninth", "t")], "the_Gather", "out of bounds"),
    ([node("Relu", "x")], "graph", "no weights to train"),
    ([node("Relu", "x", "z")], "output y", "not a value"),
]


@pytest.mark.parametrize(("nodes", "where", "complaint"), REFUSED)
def test_what_is_not_supported_is_refused_by_name_and_place(
    nodes: list[onnx.NodeProto], where: str, complaint: str
) -> None:
    with pytest.raises(ModelError) as caught:
        import_onnx(make(nodes, ["n", 2, 6, 6], TENSORS))
    assert where in caught.value.where
    assert complaint in caught.value.message


def reshaped(*shape: int, allowzero: int = 0) -> list[onnx.NodeProto]:
    return [
        constant("s", np.array(shape, I64)),
        node("Reshape", "x s", "f", **({"allowzero": 1} if allowzero else {})),
        node("Gemm", "f w b"),
    ]


@pytest.mark.parametrize(
    "shape", [(-1,), (72, -1), (-1, 36), (-1, -1), (0, -1, -1), (0, 70), (0, -2), (0, 2, 6, 6, 0)]
)
def test_reshapes_that_lose_the_batch_or_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="the_Reshape"):
        import_onnx(make(reshaped(*shape), ["n", 2, 6, 6], TENSORS))


def test_reshape_with_allowzero_has_no_copied_extents() -> None:
    with pytest.raises(ModelError, match="the_Reshape"):
        import_onnx(make(reshaped(0, 72, allowzero=1), ["n", 2, 6, 6], TENSORS))
    model = import_onnx(make(reshaped(-1, 72, allowzero=1), ["n", 2, 6, 6], TENSORS))
    assert model.layers[0].name == "f"


def edit_shape(*extents: int | None) -> Callable[[onnx.ModelProto], None]:
    def edit(proto: onnx.ModelProto) -> None:
        shape = proto.graph.input[0].type.tensor_type.shape
        del shape.dim[:]
        for extent in extents:
            axis = shape.dim.add()
            if extent is not None:
                axis.dim_value = extent

    return edit


def edit(statement: str) -> Callable[[onnx.ModelProto], None]:
    """An edit of ``m``, its graph ``g`` and its first initialiser ``t``, as one expression."""
    code = compile(statement, "edit", "exec")

    def apply(proto: onnx.ModelProto) -> None:
        exec(  # noqa: S102 - the statements are those of the table below
            code, {"m": proto, "g": proto.graph, "t": proto.graph.initializer[0], "helper": helper}
        )

    return apply


HOSTILE: dict[str, tuple[Callable[[onnx.ModelProto], None], str, str]] = {
    "no shape": (
        edit("g.input[0].type.tensor_type.ClearField('shape')"),
        "input x",
        "has no shape",
    ),
    "no axes": (edit_shape(), "input x", "has 0 axes"),
    "batch alone": (edit_shape(None), "input x", "batch axis and at least one more"),
    "symbolic features": (edit_shape(None, None), "input x", "only the batch may be symbolic"),
    "negative extent": (edit_shape(1, -5), "input x", "below 1"),
    "zero extent": (edit_shape(1, 0), "input x", "below 1"),
    "negative batch": (edit_shape(-1, 5), "input x", "below 1"),
    "huge extents": (edit_shape(1, 2**62, 2**62), "input x", "elements"),
    "many axes": (edit_shape(*[1] * 99), "input x", "99 axes"),
    "integers as input": (edit("g.input[0].type.tensor_type.elem_type = 7"), "node", "a Gather"),
    "texts as input": (edit("g.input[0].type.tensor_type.elem_type = 8"), "input x", "floats"),
    "sequence as input": (
        edit("g.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1"),
        "input x",
        "floats",
    ),
    "no input": (edit("del g.input[:]"), "graph", "one input"),
    "two inputs": (edit("g.input.add(name='z')"), "graph", "one input"),
    "nameless input": (edit("g.input[0].name = ''"), "input", "no name"),
    "no output": (edit("del g.output[:]"), "graph", "one output"),
    "two outputs": (edit("g.output.add(name='z')"), "graph", "one output"),
    "output of another shape": (
        edit("g.output[0].type.tensor_type.shape.dim.add().dim_value = 9"),
        "output y",
        "declares shape",
    ),
    "no graph": (edit("m.ClearField('graph')"), "ONNX file", "no graph"),
    "no opset": (edit("del m.opset_import[:]"), "ONNX file", "standard operators once"),
    "two opsets": (edit("m.opset_import.add(version=9)"), "ONNX file", "standard operators once"),
    "functions": (edit("m.functions.add(name='Gemm')"), "ONNX file", "functions"),
    "sparse": (edit("g.sparse_initializer.add()"), "ONNX file", "sparse"),
    "nameless initialiser": (edit("t.name = ''"), "initialiser", "no name"),
    "two of a name": (edit("g.initializer.add().CopyFrom(t)"), "initialiser w", "is taken"),
    "external data": (edit("t.data_location = 1"), "initialiser w", "outside the file"),
    "external path": (
        edit("t.external_data.add(key='location', value='/etc/passwd')"),
        "initialiser w",
        "outside the file",
    ),
    "segment": (edit("t.segment.begin = 0"), "initialiser w", "segment"),
    "negative dims": (edit("t.dims[0] = -5"), "initialiser w", "negative"),
    "huge dims": (edit("t.dims[0] = 2**62"), "initialiser w", "elements"),
    "zero and huge": (edit("t.dims[:] = [2**40, 0]"), "initialiser w", "elements"),
    "many dims": (edit("t.dims.extend([1] * 99)"), "initialiser w", "axes"),
    "too little data": (edit("t.raw_data = t.raw_data[:-1]"), "initialiser w", "bytes of data"),
    "too much data": (edit("t.raw_data += b'\\0'"), "initialiser w", "bytes of data"),
    "no data": (edit("t.ClearField('raw_data')"), "initialiser w", "20 elements, has 0"),
    "integers as weights": (edit("t.data_type = 6"), "initialiser w", "not a float tensor"),
    "unknown data type": (edit("t.data_type = 99"), "initialiser w", "not a float tensor"),
    "attribute twice": (
        edit("[g.node[0].attribute.append(helper.make_attribute('transB', 0)) for _ in 'ab']"),
        "the_Gemm",
        "twice",
    ),
    "attribute by reference": (
        edit("g.node[0].attribute.add(name='transB', type=2, ref_attr_name='z')"),
        "the_Gemm",
        "another type",
    ),
    "subgraph": (
        edit("g.node[0].attribute.add(name='body', type=5)"),
        "the_Gemm",
        "unknown attributes",
    ),
    "long name": (edit("g.node[0].output[0] = 'y' * 5000"), "ONNX file", "longer than"),
    "weight as bias too": (edit("g.node[0].input[2] = 'w'"), "the_Gemm", "bias must have shape"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_place(name: str) -> None:
    change, where, complaint = HOSTILE[name]
    proto = make([node("Gemm", "x w b")], ["n", 5], FC)
    change(proto)
    with pytest.raises(ModelError) as caught:
        import_onnx(proto.SerializeToString())
    assert where in caught.value.where
    assert complaint in caught.value.message


def test_one_tensor_in_two_roles_is_refused() -> None:
    nodes = [node("Gemm", "x w", "h"), node("Gemm", "h v w")]
    tensors = {"w": weights(1, 4), "v": weights(4, 4)}
    with pytest.raises(ModelError, match="initialiser w: is used in two ways"):
        import_onnx(make(nodes, ["n", 1], tensors))
    nodes = [node("Gemm", "x w w")]
    with pytest.raises(ModelError, match="both weight and bias"):
        import_onnx(make(nodes, ["n", 1], {"w": weights(1, 4)}))


def test_names_that_are_not_utf8_are_refused() -> None:
    data = make([node("Relu", "x", "hhhhhh"), *fc()], ["n", 5], FC).SerializeToString()
    with pytest.raises(ModelError, match="not UTF-8"):
        import_onnx(data.replace(b"hhhhhh", b"\xff\xfe\xfd\xfc\xfb\xfa"))


def test_too_many_nodes_are_refused() -> None:
    nodes = [node("Relu", "x", f"n{i}") for i in range(LIMITS.onnx_nodes)]
    with pytest.raises(ModelError, match="more than 20000 nodes"):
        import_onnx(make([*nodes, *fc()], ["n", 5], FC))


@pytest.mark.parametrize("data", [b"\xff", b"garbage", b"\x0a\xff\xff\xff\xff\x0f", b"\x08"])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="is not an ONNX file"):
        import_onnx(data)


def test_empty_file_is_refused() -> None:
    with pytest.raises(ModelError, match="has no graph"):
        import_onnx(b"")


def test_files_are_read_from_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make([node("Gemm", "x w b")], ["n", 5], FC).SerializeToString())
    assert list(import_onnx(path).params) == ["w", "b"]
    with pytest.raises(ModelError, match=r"missing\.onnx"):
        import_onnx(tmp_path / "missing.onnx")
    monkeypatch.setattr(onnx_file, "limits_here", lambda: Limits(onnx_bytes=10))
    with pytest.raises(ModelError, match="more than the 10 "):
        import_onnx(path)
    with pytest.raises(ModelError, match="larger than 10 bytes"):
        import_onnx(path.read_bytes())


def test_initialisers_listed_as_inputs_are_no_inputs() -> None:
    proto = make([node("Gemm", "x w b")], ["n", 5], FC)
    for name, value in FC.items():
        proto.graph.input.append(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape)
        )
    assert import_onnx(proto).input == "x"


# --- torch's exporters


def make_perceptron() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 10, bias=False)
    )


def make_residual() -> Any:
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 4, 3, padding=1)
            self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.pool = nn.MaxPool2d(2)
            self.average = nn.AvgPool2d(2)
            self.everywhere = nn.AdaptiveAvgPool2d(1)
            self.head = nn.Linear(4, 10)

        def forward(self, x: Any) -> Any:
            x = self.pool(torch.relu(self.first(x)))
            x = self.average(torch.relu(self.second(x) + x))
            x = self.everywhere(x)
            return self.head(x.view(x.size(0), -1))

    return Residual()


def export_by_torch(network: Any, x: Any, *, dynamo: bool, symbolic: bool) -> bytes:
    import torch

    shapes: dict[str, Any] = {}
    if symbolic:
        batch = {0: torch.export.Dim("batch")} if dynamo else {0: "batch"}
        shapes = {"dynamic_shapes": (batch,)} if dynamo else {"dynamic_axes": {"x": batch}}
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own deprecations
        torch.onnx.export(
            network, (x,), file, dynamo=dynamo, input_names=["x"], verbose=False, **shapes
        )
    return bytes(file.getvalue())


def make_causal() -> Any:
    """A stack of dilated convolutions over one axis."""
    from torch import nn

    return nn.Sequential(
        *(nn.Flatten(1, 2), nn.Conv1d(8, 4, 2, dilation=2), nn.ReLU()),
        *(nn.Conv1d(4, 4, 3, padding=1, groups=2), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 5)),
    )


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("make_network", [make_perceptron, make_residual, make_causal])
def test_models_that_torch_exports(
    make_network: Callable[[], Any], dynamo: bool, symbolic: bool
) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(7)
    network = make_network().eval()
    x = torch.rand(3, 1, 8, 8) * 2 - 1
    proto = onnx.load_from_string(export_by_torch(network, x, dynamo=dynamo, symbolic=symbolic))
    model = assert_same_function(proto, x.numpy())
    expected = network(x).detach().numpy()
    assert np.abs(run_integers(model, x.numpy()) - expected).max() < 1e-3 * np.abs(expected).max()
    trained = sorted(p.numel() for p in network.parameters())
    assert sorted(value.size for value in model.params.values()) == trained


@pytest.mark.parametrize("merged", ["weight.original0 and 0.param", ""])
def test_parameters_that_torch_computes_of_several_are_told(tmp_path: Path, merged: str) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(5, 4)
    if merged:
        layer = torch.nn.utils.parametrizations.weight_norm(layer)
    data = export_by_torch(
        torch.nn.Sequential(layer), torch.rand(2, 3, 5), dynamo=True, symbolic=False
    )
    assert merged in import_onnx(data).merged
    (tmp_path / "model.onnx").write_bytes(data)
    np.save(tmp_path / "x.npy", np.zeros((8, 3, 5), np.float32))
    np.save(tmp_path / "y.npy", np.zeros((8, 3), np.uint8))
    task = tmp_path / "task.toml"
    write_new_task(tmp_path / "model.onnx", [tmp_path / "x.npy", tmp_path / "y.npy"], task)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        list_sites(load_task(task))
    told = [str(one.message) for one in heard if "it is trained as one" in str(one.message)]
    assert len(told) == bool(merged)


def test_layers_name_the_values_of_the_file() -> None:
    nodes, tensors = IMAGE_CASES["residual"]
    layers: tuple[Layer, ...] = import_onnx(make(nodes, ["n", 2, 6, 6], tensors)).layers
    assert [layer.name for layer in layers] == ["c", "r", "y"]
