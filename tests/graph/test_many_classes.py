"""Cross-entropy of many classes: gradients beside torch's, where 14 bits would have none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.engines.compare import assert_same_state
from tests.graph.test_autodiff import make_plan, make_run
from vtrain.engines.cpu import CpuSession
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import DataError, GraphError
from vtrain.graph.builder import FixedExponents
from vtrain.graph.calibration import calibrate
from vtrain.graph.model import Layer, Linear, Model, Relu, Scale
from vtrain.graph.step import (
    FEW_CLASSES,
    Affine,
    compute_initial_state,
    emit_step,
    find_ignored,
)
from vtrain.spec.samples import Samples
from vtrain.train.data import check_labels
from vtrain.wire.task import DataSpec

BATCH, FEATURES = 5, 6


def make_samples(labels: npt.NDArray[np.int32]) -> Samples:
    """As many samples as labels, each of bytes; a step of test_autodiff takes five of them."""
    spec = DataSpec(b"", len(labels), "u8", (FEATURES,), 8, "i32", (), 0)
    x = np.random.default_rng(1).integers(0, 256, (len(labels), FEATURES), dtype=np.uint8)
    table = np.concatenate([x, labels.reshape(-1, 1).view(np.uint8).reshape(-1, 4)], axis=1)
    return Samples(spec, table)


def make_model(classes: int, spread: float) -> Model:
    rng = np.random.default_rng(2)
    draw = {"w1": (8, FEATURES), "w2": (classes, 8), "b2": (classes,)}
    params = {
        name: np.round(rng.normal(0, 0.5 if name == "w1" else spread, shape) * 2**24).astype(
            np.int32
        )
        for name, shape in draw.items()
    }
    layers: list[Layer] = [
        Linear("fc", "image", "w1", None, True),
        Relu("r", "fc"),
        Linear("logits", "r", "w2", "b2", True),
    ]
    return Model("image", (FEATURES,), tuple(layers), "logits", params)


def run_step(model: Model, samples: Samples, ignored: int | None = None) -> Any:
    plan = make_plan(samples, "cross_entropy")
    plan = replace(plan, prepare=Affine(1, 0, 0, exponent=8), ignored=ignored)
    found = calibrate(
        lambda b: emit_step(b, plan, model),
        compute_initial_state(model.params),
        samples,
        steps=1,
        margin=1,
    )
    return make_run(model, samples, plan, FixedExponents(found.exponents))


def differentiate(
    model: Model, x: Any, labels: Any, ignored: int = -100
) -> tuple[float, dict[str, Any]]:
    """The loss in nats and the gradients, in torch's float32, of sums over the batch."""
    tensors = {
        name: torch.tensor(np.ldexp(value.astype(np.float64), -24), dtype=torch.float32)
        for name, value in model.params.items()
    }
    for tensor in tensors.values():
        tensor.requires_grad_()
    h = torch.relu(torch.tensor(x, dtype=torch.float32) @ tensors["w1"].T)
    logits = h @ tensors["w2"].T + tensors["b2"]
    loss = torch.nn.functional.cross_entropy(
        logits, torch.tensor(labels).long(), reduction="sum", ignore_index=ignored
    )
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), {
        name: tensor.grad.numpy() for name, tensor in tensors.items() if tensor.grad is not None
    }


@pytest.mark.parametrize("spread", [0.02, 1.0, 2.0])
@pytest.mark.parametrize("classes", [FEW_CLASSES + 1, 50_257, 128_256])
def test_gradients_of_many_classes_are_torchs(classes: int, spread: float) -> None:
    samples = make_samples(np.array([0, classes - 1, 7, classes // 2, 7], np.int32))
    model = make_model(classes, spread)
    run = run_step(model, samples)
    x, labels = run.named("x/prepared"), run.named("y").astype(np.int64)
    expected_loss, expected = differentiate(model, x, labels)
    loss = float(run.named("loss")) * np.log(2)
    assert loss == pytest.approx(expected_loss, rel=1e-3)
    assert set(expected) == {"w1", "w2", "b2"}
    for name, gradient in expected.items():
        error = run.gradient(name) - gradient
        assert np.linalg.norm(error) < 0.01 * np.linalg.norm(gradient), name
    # Of classes that are no label: their shares, which 14 fraction bits would mostly have as 0.
    others = np.ones(classes, np.bool_)
    others[labels] = False
    exact = run.named("loss/grad")
    shares = exact[:, others].sum(axis=0)
    error = shares - expected["b2"][others]
    assert np.linalg.norm(error) < 0.01 * np.linalg.norm(expected["b2"][others])
    assert np.abs(exact.sum(axis=1)).max() < classes * 2.0**-30, "1 at the label, to the last bit"


@pytest.mark.parametrize("classes", [50_257, 128_256])
def test_a_step_of_many_classes_has_the_laws_bits(classes: int) -> None:
    samples = make_samples(np.array([0, classes - 1, 7, classes // 2, 7], np.int32))
    model = make_model(classes, 1.0)
    run = run_step(model, samples)
    law, cpu = NumpySession(run.graph, samples), CpuSession(run.graph, samples, threads=2)
    for session in (law, cpu):
        session.load_state(compute_initial_state(model.params))
    assert cpu.step() == law.step()
    assert_same_state(cpu, law)
    assert cpu.saturation() == law.saturation()


def test_few_classes_keep_their_operators() -> None:
    for classes, op in ((FEW_CLASSES, "sub_one_hot"), (FEW_CLASSES + 1, "logit_grad")):
        samples = make_samples(np.arange(5, dtype=np.int32))
        run = run_step(make_model(classes, 0.02), samples)
        assert run.graph.nodes[run.node("loss/grad")].op == op


def test_the_gradient_of_many_classes_is_not_rounded_by_another_layer() -> None:
    model = make_model(FEW_CLASSES + 1, 0.02)
    scaled = replace(model, layers=(*model.layers, Scale("last", "logits", 3, 1)), output="last")
    with pytest.raises(GraphError, match="gradient of many classes"):
        run_step(scaled, make_samples(np.arange(5, dtype=np.int32)))


@pytest.mark.parametrize("ignored", [-100, 7, -(2**31)])
@pytest.mark.parametrize("classes", [9, 50_257])
def test_ignored_labels_have_no_loss_and_no_gradient(classes: int, ignored: int) -> None:
    samples = make_samples(np.array([0, ignored, 7, classes - 1, ignored], np.int32))
    model = make_model(classes, 0.5)
    run = run_step(model, samples, ignored)
    x, labels = run.named("x/prepared"), run.named("y").astype(np.int64)
    assert find_ignored(run.graph) == ignored
    expected_loss, expected = differentiate(model, x, labels, ignored)
    assert float(run.named("loss")) * np.log(2) == pytest.approx(expected_loss, rel=1e-3)
    for name, gradient in expected.items():
        error = run.gradient(name) - gradient
        assert np.linalg.norm(error) < 0.01 * np.linalg.norm(gradient), name
    rows = np.flatnonzero(labels == ignored)
    assert rows.size >= 2
    assert not run.named("loss/grad_counted")[rows].any()
    assert not run.named("loss/counted_rows")[rows].any()


@pytest.mark.parametrize("classes", [9, FEW_CLASSES + 1])
def test_a_batch_of_ignored_labels_changes_nothing(classes: int) -> None:
    run = run_step(make_model(classes, 0.5), make_samples(np.full(5, -100, np.int32)), -100)
    assert float(run.named("loss")) == 0
    assert not any(run.gradient(name).any() for name in ("w1", "w2", "b2"))


def test_no_label_is_ignored_that_is_near() -> None:
    """The square of the sign is 0 at the number alone, however far a label is."""
    labels = np.array([-101, -100, -99, 2**31 - 1, -(2**31)], np.int32)
    run = run_step(make_model(9, 0.5), make_samples(labels), -100)
    found = dict(zip(run.named("y").tolist(), run.named("loss/counted").tolist(), strict=True))
    assert found == {-101: 1, -100: 0, -99: 1, 2**31 - 1: 1, -(2**31): 1}


@pytest.mark.parametrize(
    ("label", "told"), [(-100, "set ignore = -100 in the table model"), (9, r"\[0, 9\)")]
)
def test_labels_out_of_range_are_refused_by_place(label: int, told: str) -> None:
    samples = make_samples(np.array([0, 1, label, 3], np.int32))
    with pytest.raises(DataError, match=told) as caught:
        check_labels(samples, 9)
    assert caught.value.where == "sample 2"
    check_labels(samples, 4, label)
