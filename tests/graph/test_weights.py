"""Exported float weights: the same file with other numbers, the same numbers after an import."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load

from vtrain.errors import ModelError
from vtrain.graph.model import Model
from vtrain.graph.onnx_import import import_onnx
from vtrain.graph.weights import export_onnx, export_safetensors

Params = dict[str, npt.NDArray[np.int32]]


def make_file(dtype: int = TensorProto.FLOAT) -> bytes:
    """A convolution [3, 2, 2, 1] and a matrix that comes as a Constant node, then a row as bias."""
    random = np.random.default_rng(5)

    def tensor(name: str, *shape: int) -> onnx.TensorProto:
        values = random.uniform(-1, 1, shape).astype(helper.tensor_dtype_to_np_dtype(dtype))
        return numpy_helper.from_array(values, name)

    nodes = [
        helper.make_node("Conv", ["x", "conv", "conv_bias"], ["c"]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Constant", [], ["fc"], value=tensor("", 18, 4)),
        helper.make_node("Gemm", ["f", "fc", "fc_bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", dtype, ["n", 2, 3, 3])],
        [helper.make_tensor_value_info("y", dtype, ["n", 4])],
        [tensor("conv", 3, 2, 2, 1), tensor("conv_bias", 3), tensor("fc_bias", 1, 4)],
        doc_string="kept",
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(proto.SerializeToString())


def change(model: Model, magnitude: int = 2**24) -> Params:
    random = np.random.default_rng(6)
    return {
        name: random.integers(-magnitude, magnitude, value.shape, np.int32, endpoint=True)
        for name, value in model.params.items()
    }


def assert_equal(found: Any, expected: Params) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def test_export_then_import_gives_the_same_masters() -> None:
    original = make_file()
    model = import_onnx(original)
    trained = change(model)
    assert_equal(import_onnx(export_onnx(original, model, trained)).params, trained)


def test_export_of_untouched_weights_keeps_values_within_half_a_unit() -> None:
    original = make_file()
    model = import_onnx(original)
    again = onnx.load_from_string(export_onnx(original, model, model.params))
    before = onnx.load_from_string(original).graph.initializer
    for old, new in zip(before, again.graph.initializer, strict=True):
        gap = np.abs(numpy_helper.to_array(old) - numpy_helper.to_array(new))
        assert gap.max() <= 2.0**-25


def test_export_changes_nothing_but_the_numbers() -> None:
    original = make_file()
    model = import_onnx(original)
    before = onnx.load_from_string(original)
    after = onnx.load_from_string(export_onnx(original, model, change(model)))
    assert after.graph.doc_string == "kept"
    for proto in (before, after):
        for tensor in (*proto.graph.initializer, proto.graph.node[2].attribute[0].t):
            tensor.ClearField("raw_data")
    assert before == after


def test_exported_file_runs_with_the_trained_weights() -> None:
    original = make_file()
    model = import_onnx(original)
    trained = change(model)
    session = onnxruntime.InferenceSession(export_onnx(original, model, trained))
    x = np.random.default_rng(7).uniform(-1, 1, (2, 2, 3, 3))
    (found,) = session.run(None, {"x": x.astype(np.float32)})
    w = {name: value / 2.0**24 for name, value in trained.items()}
    kernel = w["conv"]  # [O, kh, kw, I]
    image = np.stack(
        [
            np.einsum("ncij,oijc->no", x[:, :, row : row + 2, column : column + 1], kernel)
            for row in range(2)
            for column in range(3)
        ],
        axis=2,
    )
    flat = (image + w["conv_bias"][:, None]).reshape(2, 18)
    assert np.allclose(found, flat @ w["fc"] + w["fc_bias"], rtol=0, atol=1e-4)


def test_positions_that_are_gathered_are_exported() -> None:
    random = np.random.default_rng(9)
    places, features = 3, 2
    stored = [
        numpy_helper.from_array(random.uniform(-1, 1, shape).astype(np.float32), name)
        for name, shape in (("table", (5, features)), ("places", (places, features)))
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["all"], value_ints=[*range(places)]),
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Gather", ["places", "all"], ["positions"]),
            helper.make_node("Add", ["rows", "positions"], ["y"]),
        ],
        "test",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", places])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", places, features])],
        stored,
    )
    opset = [helper.make_opsetid("", 17)]
    original = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    model = import_onnx(original)
    trained = change(model)
    exported = export_onnx(original, model, trained)
    names = {tensor.name for tensor in onnx.load_from_string(exported).graph.initializer}
    assert names == {"table", "positions"}
    ids = np.array([[4, 0, 2]])
    (found,) = onnxruntime.InferenceSession(exported).run(None, {"ids": ids})
    w = {name: value / 2.0**24 for name, value in trained.items()}
    assert np.allclose(found, w["table"][ids] + w["positions"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("mantissa", "value"),
    [
        (2**24 + 1, 1.0),  # a tie: to even
        (2**24 + 3, 1.0 + 2.0**-22),
        (2**31 - 1, 128.0),
        (-(2**31) + 1, -128.0),
        (1, 2.0**-24),
    ],
)
def test_float32_is_rounded_to_nearest_even(mantissa: int, value: float) -> None:
    original = make_file()
    model = import_onnx(original)
    params = {name: np.full_like(master, mantissa) for name, master in model.params.items()}
    weights = load(export_safetensors(original, model, params))
    assert all((weight == np.float32(value)).all() for weight in weights.values())


@pytest.mark.parametrize("dtype", [TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_other_float_types_keep_their_type(dtype: int) -> None:
    original = make_file(dtype)
    model = import_onnx(original)
    exported = export_onnx(original, model, model.params)
    assert {tensor.data_type for tensor in onnx.load_from_string(exported).graph.initializer} == {
        dtype
    }
    again = import_onnx(exported).params
    # 8 bits of mantissa are the fewest; float64 holds every master weight.
    for name, value in model.params.items():
        gap = np.abs(again[name].astype(np.int64) - value)
        assert gap.max() <= (0 if dtype == TensorProto.DOUBLE else 2**16)


def test_typed_data_is_replaced_too() -> None:
    proto = onnx.load_from_string(make_file())
    bias = proto.graph.initializer[1]
    bias.float_data.extend(np.frombuffer(bias.raw_data, "<f4").tolist())
    bias.ClearField("raw_data")
    original = proto.SerializeToString()
    model = import_onnx(original)
    trained = change(model)
    assert_equal(import_onnx(export_onnx(original, model, trained)).params, trained)


def test_safetensors_have_onnx_layout_and_names() -> None:
    original = make_file()
    model = import_onnx(original)
    trained = change(model)
    weights = load(export_safetensors(original, model, trained))
    shapes = {name: value.shape for name, value in weights.items()}
    assert shapes == {"conv": (3, 2, 2, 1), "conv_bias": (3,), "fc": (18, 4), "fc_bias": (4,)}
    assert all(value.dtype == np.float32 for value in weights.values())
    expected = trained["conv"].transpose(0, 3, 1, 2) / 2.0**24
    assert np.array_equal(weights["conv"], expected)


def test_params_of_another_model_are_refused() -> None:
    original = make_file()
    model = import_onnx(original)
    missing = dict(model.params)
    del missing["fc"]
    wrong_shape = {**model.params, "fc": np.zeros((4, 18), np.int32)}
    wrong_dtype = {**model.params, "fc": np.zeros((18, 4), np.int64)}
    cases: list[tuple[dict[str, Any], str]] = [
        (missing, "has parameters"),
        ({**model.params, "more": np.zeros(1, np.int32)}, "has parameters"),
        (wrong_shape, "parameter fc: needs int32"),
        (wrong_dtype, "parameter fc: needs int32"),
    ]
    for params, complaint in cases:
        with pytest.raises(ModelError, match=complaint):
            export_onnx(original, model, params)
        with pytest.raises(ModelError, match=complaint):
            export_safetensors(original, model, params)


def test_another_original_is_refused() -> None:
    model = import_onnx(make_file())
    for edit, complaint in (
        (lambda graph: setattr(graph.initializer[0], "name", "other"), "not in the original"),
        (lambda graph: graph.initializer[0].dims.append(7), "another shape"),
        (lambda graph: setattr(graph.initializer[0], "data_type", 7), "not a float tensor"),
        (lambda graph: setattr(graph.initializer[0], "data_location", 1), "external_data=False"),
    ):
        proto = onnx.load_from_string(make_file())
        edit(proto.graph)
        with pytest.raises(ModelError, match=complaint):
            export_onnx(proto.SerializeToString(), model, model.params)


def load_example_models(repository: Path) -> Any:
    path = repository / "examples/mnist/make_models.py"
    spec = importlib.util.spec_from_file_location("make_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["mlp", "cnn", "tiny"])
def test_shipped_examples_are_those_of_seed_0(repository: Path, kind: str) -> None:
    proto = load_example_models(repository).make_model(kind, 0)
    shipped = repository / f"examples/mnist/{kind}.onnx"
    assert shipped.read_bytes() == proto.SerializeToString(deterministic=True)
    onnx.checker.check_model(proto, full_check=True)
    assert import_onnx(shipped).output == "logits"


def test_example_models_differ_by_seed(repository: Path) -> None:
    make_model = load_example_models(repository).make_model
    first, second = (import_onnx(make_model("tiny", seed)) for seed in (0, 1))
    assert not np.array_equal(first.params["logits.weight"], second.params["logits.weight"])
    shapes = [value.shape for value in import_onnx(make_model("wide", 0)).params.values()]
    assert shapes == [(512, 784), (512,), (512, 512), (512,), (10, 512), (10,)]
