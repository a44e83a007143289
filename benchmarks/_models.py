"""The example models on both sides: as a compiled task, and as their torch twin."""

from __future__ import annotations

import gzip
import importlib.util
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from vtrain.train.data import IdxSource, NpySource
from vtrain.train.task import CompiledTask, TaskFile, compile_task, profile_task

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "mnist"


def load_make_models() -> ModuleType:
    """examples/mnist/make_models.py as a module (examples are no package)."""
    spec = importlib.util.spec_from_file_location("make_models", EXAMPLES / "make_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_torch_model(model: onnx.ModelProto) -> torch.nn.Sequential:
    """The torch twin of an example model, with its weights."""
    nn = torch.nn
    layers: list[torch.nn.Module] = []
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        match node.op_type:
            case "Gemm":
                outer, inner = weights[node.input[1]].shape
                layer: Any = nn.Linear(inner, outer)
            case "Conv":
                outer, inner, *_ = weights[node.input[1]].shape
                layer = nn.Conv2d(inner, outer, 3, padding=1)
            case "Relu":
                layer = nn.ReLU()
            case "MaxPool":
                layer = nn.MaxPool2d(2)
            case _:
                layer = nn.Flatten()
        if node.op_type in ("Gemm", "Conv"):
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(weights[node.input[1]].copy()))
                layer.bias.copy_(torch.from_numpy(weights[node.input[2]].copy()))
        layers.append(layer)
    return nn.Sequential(*layers)


def compile_variant(
    file: TaskFile, model: onnx.ModelProto, **changes: Any
) -> tuple[TaskFile, CompiledTask]:
    """The example task with another model and other fields, calibrated anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        variant = replace(file, model=path, **changes)
        variant = replace(variant, exponents=profile_task(variant).exponents)
        return variant, compile_task(variant)


ONE_HOT_EXPONENT = 14


def write_one_hot(source: IdxSource, folder: Path) -> NpySource:
    """The same images with targets for a squared error: 1 at the label, else 0."""
    x, y = folder / "x.npy", folder / "y.npy"
    images, labels = (gzip.decompress(path.read_bytes()) for path in (source.x, source.y))
    np.save(x, np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28))
    one_hot = np.eye(10, dtype=np.int16) << ONE_HOT_EXPONENT
    np.save(y, one_hot[np.frombuffer(labels, np.uint8, offset=8)])
    return NpySource(x, y, y_exponent=ONE_HOT_EXPONENT)
