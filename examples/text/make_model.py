"""Write chars.onnx, an MLP that predicts the next character: run this file.

Input: 16 characters, each one-hot over 128 ASCII codes; output: 128 logits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CONTEXT, DEPTH, HIDDEN = 16, 128, 32


def make_model(seed: int) -> onnx.ModelProto:
    """The model with weights drawn uniformly from +-sqrt(6 / fan in), biases zero.

    A one-hot input has one active element in 128, so its fan in is the context alone.
    """
    random = np.random.Generator(np.random.Philox(seed))
    layers = (("hidden", CONTEXT * DEPTH, HIDDEN, CONTEXT), ("logits", HIDDEN, DEPTH, HIDDEN))
    tensors, nodes, value = [], [], "x"
    for name, inner, outer, fan_in in layers:
        bound = np.sqrt(6 / fan_in)
        weight = random.uniform(-bound, bound, (outer, inner)).astype(np.float32)
        tensors.append(numpy_helper.from_array(weight, f"{name}.weight"))
        tensors.append(numpy_helper.from_array(np.zeros(outer, np.float32), f"{name}.bias"))
        inputs = [value, f"{name}.weight", f"{name}.bias"]
        nodes.append(helper.make_node("Gemm", inputs, [name], name=name, transB=1))
        value = name
        if name == "hidden":
            nodes.append(helper.make_node("Relu", [name], ["relu"], name="relu"))
            value = "relu"
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "chars",
        [helper.make_tensor_value_info("x", float32, ["batch", CONTEXT * DEPTH])],
        [helper.make_tensor_value_info("logits", float32, ["batch", DEPTH])],
        tensors,
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(
        graph, producer_name="vtrain-examples", ir_version=8, opset_imports=opset
    )


if __name__ == "__main__":
    target = Path(__file__).parent / "chars.onnx"
    target.write_bytes(make_model(0).SerializeToString(deterministic=True))
