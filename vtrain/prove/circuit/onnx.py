"""Circuits as ONNX graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vtrain.errors import CircuitError
from vtrain.prove.circuit.values import Node, find_step_exponent


class Emitter:
    """Writes nodes of ONNX."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: Sequence[str], output: str, **attrs: Any) -> None:
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attrs))

    def constant(self, name: str, value: Any, dtype: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def emit(self, index: int, node: Node, names: Mapping[int, str]) -> None:
        """One node of ours as one of ONNX's."""
        x = [names.get(item, f"n{item}") for item in node.inputs]
        out = f"n{index}"
        match node.op:
            case "reshape":
                self.node(
                    "Reshape", [x[0], self.constant(f"{out}/shape", node.shape, np.int64)], out
                )
            case "transpose":
                self.node("Transpose", x, out, perm=[1, 0])
            case "slice":
                bounds = [
                    self.constant(f"{out}/{what}", [value], np.int64)
                    for what, value in (
                        ("start", node.attrs["start"]),
                        ("stop", node.attrs["stop"]),
                        ("axis", 0),
                    )
                ]
                self.node("Slice", [x[0], *bounds], out)
            case "take":
                indices = self.constant(f"{out}/indices", node.attrs["indices"], np.int64)
                self.node("Gather", [x[0], indices], out, axis=0)
            case "concat" | "beside":
                self.node("Concat", x, out, axis=int(node.op == "beside"))
            case "add" | "sub" | "mul":
                self.node(node.op.capitalize(), x, out)
            case "dot":
                self.node("Einsum", x, f"{out}/scalar", equation="i,i->")
                shape = self.constant(f"{out}/shape", [1], np.int64)
                self.node("Reshape", [f"{out}/scalar", shape], out)
            case "sum":
                axes = self.constant(f"{out}/axes", [0], np.int64)
                self.node("ReduceSum", [x[0], axes], out, keepdims=1)
            case "contract":
                equation = "ij,i->j" if node.attrs["axis"] == 0 else "ij,j->i"
                self.node("Einsum", x, out, equation=equation)
            case "prod":
                self.node("ReduceProd", x, out, axes=[1], keepdims=0)
            case "limb":
                step = find_step_exponent(node.attrs["span"])
                exponent = self.constant(f"{out}/exponent", step, np.float64)
                self.node("Pow", [x[0], exponent], out)
            case _:
                raise CircuitError("no such node", where=node.op)
