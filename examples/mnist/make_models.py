"""Write the example models with fresh weights: ``python examples/mnist/make_models.py --seed 0``.

Each is an ordinary ONNX file of a forward pass, as a framework would export it.  Weights are drawn
uniformly from +-sqrt(6 / fan in) (He et al. 2015, arXiv:1502.01852), biases are zero.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
PIXELS = 28 * 28
CLASSES = 10


class _Network:
    """A chain of layers under construction; ``value`` is the name of the last one's output."""

    def __init__(self, name: str, input_shape: Sequence[int], seed: int) -> None:
        self._name = name
        self._input_shape = input_shape
        self._random = np.random.Generator(np.random.Philox(seed))
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self.value = "x"

    def _add(self, op: str, name: str, *weights: str, **attributes: Any) -> None:
        self._nodes.append(
            helper.make_node(op, [self.value, *weights], [name], name=name, **attributes)
        )
        self.value = name

    def _weights(self, name: str, shape: tuple[int, ...]) -> tuple[str, str]:
        bound = np.sqrt(6 / np.prod(shape[1:]))
        weight = self._random.uniform(-bound, bound, shape).astype(np.float32)
        self._store(f"{name}.weight", weight)
        self._store(f"{name}.bias", np.zeros(shape[0], np.float32))
        return f"{name}.weight", f"{name}.bias"

    def _store(self, name: str, values: npt.NDArray[np.float32]) -> None:
        self._tensors.append(numpy_helper.from_array(values, name))

    def linear(self, name: str, inner: int, outer: int) -> None:
        self._add("Gemm", name, *self._weights(name, (outer, inner)), transB=1)

    def conv(self, name: str, inner: int, outer: int) -> None:
        """3x3, stride 1, same size."""
        weights = self._weights(name, (outer, inner, 3, 3))
        self._add("Conv", name, *weights, kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    def relu(self, name: str) -> None:
        self._add("Relu", name)

    def max_pool(self, name: str) -> None:
        """2x2, stride 2."""
        self._add("MaxPool", name, kernel_shape=[2, 2], strides=[2, 2])

    def flatten(self, name: str) -> None:
        self._add("Flatten", name, axis=1)

    def finish(self) -> onnx.ModelProto:
        float32 = TensorProto.FLOAT
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("x", float32, ["batch", *self._input_shape])],
            [helper.make_tensor_value_info(self.value, float32, ["batch", CLASSES])],
            self._tensors,
        )
        return helper.make_model(
            graph,
            producer_name="vtrain-examples",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )


def _make_perceptron(name: str, hidden: Sequence[int], seed: int) -> onnx.ModelProto:
    network = _Network(name, [PIXELS], seed)
    inner = PIXELS
    for number, outer in enumerate(hidden, start=1):
        network.linear(f"fc{number}", inner, outer)
        network.relu(f"relu{number}")
        inner = outer
    network.linear("logits", inner, CLASSES)
    return network.finish()


def _make_cnn(seed: int) -> onnx.ModelProto:
    network = _Network("cnn", [1, 28, 28], seed)
    inner = 1
    for number, outer in enumerate((8, 16), start=1):
        network.conv(f"conv{number}", inner, outer)
        network.relu(f"relu{number}")
        network.max_pool(f"pool{number}")
        inner = outer
    network.flatten("features")
    network.linear("logits", inner * 7 * 7, CLASSES)
    return network.finish()


_MODELS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "mlp": lambda seed: _make_perceptron("mlp", [128], seed),
    "cnn": _make_cnn,
    "tiny": lambda seed: _make_perceptron("tiny", [16], seed),
    "small": lambda seed: _make_perceptron("small", [32], seed),
    "wide": lambda seed: _make_perceptron("wide", [512, 512], seed),
    "large": lambda seed: _make_perceptron("large", [2048, 2048, 2048], seed),
}
SHIPPED = ("mlp", "cnn", "tiny")
"""Kinds that lie beside this file; "small" (784-32-10), "wide" (784-512-512-10) and "large"
(784-2048-2048-2048-10) are for the benchmarks and for examples/zk."""


def make_model(kind: str, seed: int) -> onnx.ModelProto:
    """The model ``kind``, one of ``_MODELS``, with weights drawn from ``seed``."""
    return _MODELS[kind](seed)


def main() -> None:
    """Write the shipped models, or another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--kind", choices=_MODELS, help="this one alone")
    arguments = parser.parse_args()
    for kind in (arguments.kind,) if arguments.kind else SHIPPED:
        data = make_model(kind, arguments.seed).SerializeToString(deterministic=True)
        (arguments.out / f"{kind}.onnx").write_bytes(data)


if __name__ == "__main__":
    main()
