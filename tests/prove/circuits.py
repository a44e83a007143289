"""Tiny circuits, made and proven through the adapter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vtrain.prove.backend.ezkl import Call, Limits, encode_element, run_ezkl
from vtrain.spec.field import SCALAR_FIELD

LIMITS = Limits(memory=8 << 30, seconds=120, threads=1)

Shape = Sequence[int]
node = helper.make_node


def write_model(
    path: Path,
    nodes: Iterable[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    constants: Mapping[str, Any] = {},
    dtype: int = TensorProto.DOUBLE,
    out_dtype: int = TensorProto.DOUBLE,
) -> None:
    """An ONNX file of opset 17, its inputs and outputs float64 unless said otherwise."""
    graph = helper.make_graph(
        list(nodes),
        "circuit",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, out_dtype, shape) for name, shape in outputs.items()],
        initializer=[
            numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)


def encode_inputs(*values: Any) -> str:
    """Integers, tensor by tensor, as ezkl takes them exactly."""
    rows = [[encode_element(int(item)) for item in np.ravel(value)] for value in values]
    return json.dumps({"input_data": rows})


def read_element(text: str) -> int:
    """The signed integer behind a field element in a witness file."""
    value = int.from_bytes(bytes.fromhex(text), "little")
    return value - SCALAR_FIELD if value > SCALAR_FIELD // 2 else value


@dataclass(frozen=True)
class Circuit:
    """A folder with a model, its settings, its keys and, in time, a witness and a proof."""

    folder: Path
    srs: Path

    def at(self, name: str) -> str:
        return str(self.folder / name)

    def build(self, *, k: int = 8, visibility: str = "public", **attributes: Any) -> Circuit:
        """Settings and keys of ``model.onnx``; ``attributes`` are of ``PyRunArgs``."""
        given = {
            "input_scale": 0,
            "param_scale": 0,
            "scale_rebase_multiplier": 1,
            "lookup_range": [-100, 100],
            "logrows": k,
            "num_inner_cols": 2,
            "input_visibility": "private",
            "output_visibility": visibility,
            "param_visibility": "fixed",
            "disable_freivalds": True,
            "decomp_base": 256,
            "decomp_legs": 2,
        }
        arguments = {
            "model": self.at("model.onnx"),
            "output": self.at("settings.json"),
            "py_run_args": given | attributes,
        }
        run_ezkl([Call("gen_settings", arguments)], LIMITS)
        self.compile()
        self.set_up()
        return self

    def compile(self) -> None:
        """The circuit of ``model.onnx`` under the settings as they are."""
        arguments = {
            "model": self.at("model.onnx"),
            "compiled_circuit": self.at("circuit"),
            "settings_path": self.at("settings.json"),
        }
        run_ezkl([Call("compile_circuit", arguments)], LIMITS)

    def set_up(self) -> bytes:
        """Keys of the compiled circuit; the SHA-256 of the verifying key."""
        arguments = {
            "model": self.at("circuit"),
            "vk_path": self.at("vk"),
            "pk_path": self.at("pk"),
            "srs_path": str(self.srs),
        }
        run_ezkl([Call("setup", arguments)], LIMITS)
        return self.key_digest()

    def key_digest(self, name: str = "vk") -> bytes:
        return hashlib.sha256((self.folder / name).read_bytes()).digest()

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.at("settings.json")).read_text())
        return found

    def witness(self, *values: Any) -> list[list[int]]:
        """Make a witness of these inputs; the outputs as ezkl computed them."""
        arguments = {
            "data": encode_inputs(*values),
            "model": self.at("circuit"),
            "output": self.at("witness.json"),
            "vk_path": self.at("vk"),
            "srs_path": str(self.srs),
        }
        (witness,) = run_ezkl([Call("gen_witness", arguments)], LIMITS)
        return [[read_element(item) for item in output] for output in witness["outputs"]]

    def alter_witness(self, change: Callable[[dict[str, Any]], None]) -> None:
        path = Path(self.at("witness.json"))
        witness = json.loads(path.read_text())
        change(witness)
        path.write_text(json.dumps(witness))

    def mock(self) -> bool:
        arguments = {"witness": self.at("witness.json"), "model": self.at("circuit")}
        (answer,) = run_ezkl([Call("mock", arguments)], LIMITS)
        return bool(answer)

    def prove(self) -> Path:
        path = self.folder / "proof.json"
        arguments = {
            "witness": self.at("witness.json"),
            "model": self.at("circuit"),
            "pk_path": self.at("pk"),
            "proof_path": str(path),
            "srs_path": str(self.srs),
        }
        run_ezkl([Call("prove", arguments)], LIMITS)
        return path

    def verify(self, proof: Path) -> Any:
        """What ezkl itself says of a proof file."""
        arguments = {
            "proof_path": str(proof),
            "settings_path": self.at("settings.json"),
            "vk_path": self.at("vk"),
            "srs_path": str(self.srs),
        }
        (answer,) = run_ezkl([Call("verify", arguments)], LIMITS)
        return answer
