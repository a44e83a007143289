"""From a module, an optimizer, a loss and samples to a task, and from its run to the module."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn, optim
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import vtrain
from tests.exhaustive import spare
from tests.modules import (
    IMAGE,
    PLACES,
    VOCABULARY,
    Cnn,
    Gpt,
    make_gpt2,
    make_ids,
    make_llama,
    make_mlp,
)
from tests.torch_layers import LAYERS, list_layers, make_layer_case
from tests.zoo import CLOSE, MODELS, make_model, make_shared, walk
from tests.zoo import make_task as make_case_task
from vtrain.attest.keys import PrivateKey
from vtrain.errors import DataError, RunError, TaskError, UnsupportedError, VtrainWarning
from vtrain.graph.evaluate import apply_node
from vtrain.graph.from_torch.module import import_module
from vtrain.graph.update import find_clip_reach, param_state
from vtrain.ops.base import attr_int
from vtrain.train import written
from vtrain.train.deliver import evaluate, export_run
from vtrain.train.layout import RunPaths
from vtrain.train.runner import RunSummary
from vtrain.train.signed import read_claimed_state
from vtrain.train.task import CompiledTask

SAMPLES = 12


def make_rows(inputs: int = 5) -> torch.Tensor:
    return torch.sin(torch.arange(SAMPLES * inputs * 1.0) ** 1.5).view(SAMPLES, inputs)


def make_labels(classes: int = 3) -> torch.Tensor:
    return torch.arange(SAMPLES) * 7 % classes


def make_tokens(count: int = 120) -> np.ndarray[Any, Any]:
    """Each depends on the one before."""
    return (np.arange(count) ** 2 // 3 % VOCABULARY).astype(np.uint16)


def make_task(
    module: nn.Module, example: Any, data: Any, loss: Any, optimizer: Any, **more: Any
) -> CompiledTask:
    options = {"batch": 4, "steps": 4, "calibration_steps": 2} | more
    return vtrain.from_torch(module, example, data=data, loss=loss, optimizer=optimizer, **options)


def train_all(task: CompiledTask, folder: Path, key: PrivateKey) -> RunSummary:
    run = vtrain.train(task, folder, key=key, threads=1)
    assert vtrain.verify(folder, all=True, task_id=task.task_id, threads=1).verdict == "verified"
    return run


def measure(task: CompiledTask, run: RunSummary) -> float:
    _, graph, state = read_claimed_state(RunPaths(run.path), None)
    return evaluate(graph, state, task.samples).loss


# --- there and back


def make_language_case(module: nn.Module, **more: Any) -> tuple[Any, ...]:
    optimizer = optim.AdamW(module.parameters(), lr=0.01)
    return module, make_ids(2), make_tokens(), nn.CrossEntropyLoss(), optimizer, more


def make_case(name: str) -> tuple[Any, ...]:
    torch.manual_seed(3)
    if name == "cnn":
        images = (torch.rand(SAMPLES, *IMAGE) * 255).to(torch.uint8)
        module: nn.Module = nn.Sequential(nn.Conv2d(1, 1, 1), Cnn())
        with torch.no_grad():
            module[0].weight.fill_(1 / 255)  # type: ignore[index]
        optimizer = optim.SGD(module.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        scheduler = lr_scheduler.StepLR(optimizer, 5, 0.5)
        more = {"scheduler": scheduler}
        return (
            *(module, images[:2].float(), (images, make_labels()), functional.cross_entropy),
            *(optimizer, more),
        )
    if name == "gpt":
        # Tied, with dropout, and more positions than places; validation is held out.
        return make_language_case(Gpt(0.1, positions=PLACES + 2), validation=0.25)
    module = make_gpt2(resid_pdrop=0.1) if name == "gpt2" else make_llama()
    case = make_language_case(module, clip_norm=1.0)
    return (case[0], {"input_ids": case[1]}, *case[2:])


@pytest.mark.parametrize("name", spare(MODELS, lambda name: name == "ViTForImageClassification"))
def test_models_that_people_have_are_trained_verified_and_loaded(
    name: str, tmp_path: Path, key: PrivateKey
) -> None:
    walked = walk(make_model(name), tmp_path / "run", key)
    assert walked.module_loss == pytest.approx(walked.loss, abs=CLOSE)
    assert walked.onnx_loss == pytest.approx(walked.loss, abs=CLOSE)


def test_a_layer_in_two_places_is_trained_verified_and_exported_as_one(
    tmp_path: Path, key: PrivateKey
) -> None:
    torch.manual_seed(3)
    walked = walk(make_shared(), tmp_path / "run", key)
    assert walked.module_loss == pytest.approx(walked.loss, abs=CLOSE)
    assert walked.onnx_loss == pytest.approx(walked.loss, abs=CLOSE)
    trained, start = (walked.run.state_dict(step) for step in (None, 0))
    assert torch.equal(trained["2.weight"], trained["4.weight"])
    assert not torch.equal(trained["2.weight"], start["2.weight"])


@pytest.mark.parametrize(
    "name", spare(["cnn", "gpt", "gpt2", "llama"], lambda name: name in ("cnn", "gpt"))
)
def test_twenty_steps_are_verified_and_come_back_to_the_same_loss(
    name: str, tmp_path: Path, key: PrivateKey
) -> None:
    module, example, data, loss, optimizer, more = make_case(name)
    before = copy.deepcopy(module.state_dict())
    task = make_task(
        module, example, data, loss, optimizer, **more | {"steps": 20, "calibration_steps": 20}
    )
    # One task has one id, from Python or from the files.
    again = vtrain.compile(task.write(tmp_path / "task"))
    assert (again.task_id, again.spec) == (task.task_id, task.spec)
    run = train_all(again, tmp_path / "run", key)
    for part, value in module.state_dict().items():
        assert torch.equal(value, before[part]), "making a task changes no weight"
    found = run.state_dict()
    assert list(found) == list(before)
    assert any(not torch.equal(found[part], before[part]) for part in found)
    module.load_state_dict(found)
    samples = task.samples
    index = np.arange(samples.spec.samples)
    x, y = (torch.from_numpy(samples.gather(part, index)) for part in ("x", "y"))
    with torch.no_grad():
        given = module.eval()(x.float() if name == "cnn" else x)
    logits = getattr(given, "logits", given)
    expected = float(functional.cross_entropy(logits.flatten(0, -2), y.flatten().long()))
    assert measure(task, run) == pytest.approx(expected, abs=3e-3)
    _, safetensors = export_run(run.path, tmp_path / "out")
    stored = load_file(safetensors)
    assert sorted(stored) == sorted(found)
    assert all(np.array_equal(stored[part], found[part].numpy()) for part in found)


def test_every_layer_of_torch_is_tried_by_the_table() -> None:
    """benchmarks/imports.py makes it; here is one that cannot be had, by its path."""
    assert set(LAYERS) >= set(list_layers())
    with pytest.raises(UnsupportedError) as caught:
        make_case_task(make_layer_case("LSTM"))
    assert {problem.path for problem in caught.value.problems} == {"layer"}


def test_an_untrained_run_has_the_modules_weights_to_half_a_unit(
    tmp_path: Path, key: PrivateKey
) -> None:
    module = Gpt(0.0)
    module.register_buffer("count", torch.tensor([3, 4]))
    optimizer = optim.AdamW(module.parameters(), lr=0.01)
    task = make_task(module, make_ids(2), make_tokens(), nn.CrossEntropyLoss(), optimizer)
    vtrain.train(task, tmp_path / "run", key=key, threads=1)
    found = vtrain.state_dict(tmp_path / "run", step=0)
    for name, value in module.state_dict().items():
        assert found[name].dtype == value.dtype
        assert torch.all((found[name] - value).abs() <= 2.0**-25), name


# --- optimizers and losses do what torch's do


def train_by_torch(
    module: nn.Module,
    optimizer: optim.Optimizer,
    scheduler: Any,
    loss: Callable[..., Any],
    xy: tuple[torch.Tensor, torch.Tensor],
    steps: int,
) -> dict[str, torch.Tensor]:
    for _ in range(steps):
        optimizer.zero_grad()
        loss(module(xy[0]), xy[1]).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return module.state_dict()


def split_groups(module: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Decayed weights, plain biases, and the last layer with a rate of 0."""
    named = dict(module.named_parameters())
    last = [named.pop("5.weight"), named.pop("5.bias")]
    return [
        {"params": [p for p in named.values() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in named.values() if p.ndim == 1], "weight_decay": 0.0},
        {"params": last, "lr": 0.0},
    ]


OPTIMIZERS: dict[str, Callable[[nn.Module], optim.Optimizer]] = {
    "sgd": lambda m: optim.SGD(m.parameters(), lr=0.1),
    "nesterov": lambda m: optim.SGD(
        split_groups(m, 0.05), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.3
    ),
    "adamw": lambda m: optim.AdamW(
        split_groups(m, 0.5), lr=0.01, betas=(0.8, 0.95), eps=1e-12, weight_decay=0.3
    ),
    "adam": lambda m: optim.Adam(m.parameters(), lr=0.01, eps=1e-12),
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda optimizer: None,
    "warm-up and cosine": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.25, total_iters=3),
            lr_scheduler.CosineAnnealingLR(optimizer, 9),
        ],
        [3],
    ),
    "steps": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [4, 8], 0.3),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t) ** 0.5),
}
LOSSES: dict[str, tuple[Any, bool]] = {
    "cross-entropy": (nn.CrossEntropyLoss(), True),
    "ignoring": (nn.CrossEntropyLoss(ignore_index=1), True),
    "sum of errors": (nn.MSELoss(reduction="sum"), False),
    "mean of errors": (nn.MSELoss(), False),
}
PAIRS = [
    ("sgd", "none", "cross-entropy"),
    ("nesterov", "warm-up and cosine", "mean of errors"),
    ("adamw", "lambda", "sum of errors"),
    ("adam", "steps", "ignoring"),
]


@pytest.mark.parametrize(("kind", "schedule", "loss_name"), PAIRS)
def test_a_run_follows_torchs_own_loop(
    kind: str, schedule: str, loss_name: str, tmp_path: Path, key: PrivateKey
) -> None:
    torch.manual_seed(11)
    module = make_mlp()
    # Every step has the whole data, so that the order of samples is no matter.
    loss, has_classes = LOSSES[loss_name]
    x, steps = make_rows(), 12
    if has_classes:
        y = make_labels()
    else:
        y = torch.cos(x[:, :3])
        if loss_name.startswith("sum"):
            y = y / 8
    if loss_name == "ignoring":
        # Two labels of each sample, of which one is ignored.
        module = nn.Sequential(*make_mlp(outputs=6), nn.Unflatten(1, (2, 3)))
        y = torch.stack((torch.full_like(y, 1), y % 2 * 2), 1)
    optimizer = OPTIMIZERS[kind](module)
    scheduler = SCHEDULERS[schedule](optimizer)
    rates = [group["lr"] for group in optimizer.param_groups]
    task = make_task(
        *(module, x[:2], (x, y), loss, optimizer),
        scheduler=scheduler,
        batch=SAMPLES,
        steps=steps,
        gradient_margin=1,
    )
    assert [group["lr"] for group in optimizer.param_groups] == rates, "the scheduler is put back"
    run = vtrain.train(task, tmp_path / "run", key=key, threads=1)
    start = copy.deepcopy(module.state_dict())

    def compute_loss(logits: torch.Tensor, targets: torch.Tensor) -> Any:
        if loss_name == "ignoring":
            return loss(logits.flatten(0, 1), targets.flatten())
        return loss(logits, targets)

    expected = train_by_torch(module, optimizer, scheduler, compute_loss, (x, y), steps)
    found = run.state_dict()
    moved = max(float((expected[name] - start[name]).abs().max()) for name in start)
    assert moved > 0.02
    for name, value in expected.items():
        # In the mean: Adam takes as large a step of a gradient that is mostly rounding.
        assert float((found[name] - value).square().mean().sqrt()) < 0.02 * moved, name
    if len(optimizer.param_groups) == 3:
        # What has a rate of 0 is frozen: no state but the weights, which do not move.
        assert float((found["5.weight"] - start["5.weight"]).abs().max()) <= 2.0**-25
        assert task.file is not None
        assert set(task.file.optimizer.frozen) == {"5.weight", "5.bias"}
        assert task.file.optimizer.no_decay == ("0.bias", "2.bias")


def test_parameters_that_require_no_gradient_or_are_in_no_group_stay(
    tmp_path: Path, key: PrivateKey
) -> None:
    module = make_mlp()
    module[0].requires_grad_(False)
    optimizer = optim.AdamW(module[2].parameters(), lr=0.1)
    data = (make_rows(), make_labels())
    task = make_task(module, make_rows()[:2], data, nn.CrossEntropyLoss(), optimizer)
    found = train_all(task, tmp_path / "run", key).state_dict()
    for name, value in module.state_dict().items():
        assert (float((found[name] - value).abs().max()) > 2.0**-25) == name.startswith(
            ("2.", "4.")
        ), name


# --- everything that is wrong, at once


class Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 3), nn.Softplus(), nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def test_all_that_cannot_be_had_is_refused_in_one_error() -> None:
    module = Wrong()
    groups: list[dict[str, Any]] = [
        {"params": module.layers[0].parameters()},
        {"params": module.layers[2].parameters(), "lr": 0.1, "betas": (0.5, 0.9)},
    ]
    optimizer = optim.AdamW(groups, lr=0.01, amsgrad=True)
    with pytest.raises(UnsupportedError) as caught:
        make_task(
            module,
            torch.zeros(2, 5),
            torch.utils.data.DataLoader(torch.utils.data.TensorDataset(make_rows())),
            nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.ones(3)),
            optimizer,
            scheduler=lr_scheduler.ReduceLROnPlateau(optimizer),
        )
    found = [(problem.path, problem.what) for problem in caught.value.problems]
    assert found == [
        ("layers.1", "aten.softplus of Softplus"),
        ("loss", "CrossEntropyLoss, weight"),
        ("loss", "CrossEntropyLoss, label_smoothing"),
        ("data", "DataLoader"),
        ("scheduler", "ReduceLROnPlateau"),
        ("optimizer", "AdamW"),  # amsgrad
        ("optimizer", "AdamW"),  # betas
        ("optimizer", "AdamW"),  # rates
    ]
    text = str(caught.value)
    assert text.startswith("from_torch: cannot be had, for 8 reasons [unsupported]:")
    assert all(problem.reason in text for problem in caught.value.problems)
    assert all(problem.instead for problem in caught.value.problems)


def test_values_counts_and_layers_are_refused_in_one_error() -> None:
    """Samples that cannot be taken hide nothing else that is wrong, and nothing hides them."""
    module, rows, labels = Wrong(), make_rows(), make_labels()
    rows[2, 1] = math.nan
    optimizer = optim.RMSprop(module.parameters())
    given = (module, torch.zeros(2, 5))
    for data, test, expected in (
        ((rows, labels), None, [("data", "inputs")]),
        ((make_rows(), labels[1:]), (rows, labels), [("data", "samples"), ("test", "inputs")]),
        (FailingSet(), None, [("data", "sample 4 of FailingSet")]),
        ((rows[:0], labels[:0]), None, [("data", "samples")]),
    ):
        with pytest.raises(UnsupportedError) as caught:
            make_task(
                *given, data, nn.L1Loss(), optimizer, test=test, batch=0, steps=None, epochs=1.5
            )
        assert [(problem.path, problem.what) for problem in caught.value.problems] == [
            ("batch", "0"),
            ("epochs", "1.5"),
            ("layers.1", "aten.softplus of Softplus"),
            ("loss", "L1Loss"),
            *expected,
            ("optimizer", "RMSprop"),
        ]
        assert all(problem.instead for problem in caught.value.problems)


def test_what_is_no_module_is_refused_alone() -> None:
    optimizer = optim.SGD(make_mlp().parameters(), lr=0.1)
    for module, name in ((nn.Linear, "Linear"), (lambda x: x, "<lambda>"), (None, "NoneType")):
        with pytest.raises(UnsupportedError) as caught:
            make_task(module, torch.zeros(2, 5), (), "mse", optimizer)  # type: ignore[arg-type]
        (problem,) = caught.value.problems
        assert (problem.path, problem.what) == ("module", name)


@pytest.mark.parametrize("form", ["of probabilities", "in columns", "of more"])
def test_targets_that_are_no_classes_are_refused(form: str) -> None:
    module, labels = make_mlp(), make_labels()
    targets, instead = {
        "of probabilities": (functional.one_hot(labels, 3).float(), "targets.argmax(1)"),
        "in columns": (labels[:, None], "targets.reshape(...)"),
        "of more": (labels[:, None].expand(-1, 2), "targets.reshape(...)"),
    }[form]
    given = (module, torch.zeros(2, 5), (make_rows(), targets), nn.CrossEntropyLoss())
    with pytest.raises(UnsupportedError) as caught:
        make_task(*given, optim.SGD(module.parameters(), lr=0.1))
    (problem,) = caught.value.problems
    assert (problem.path, problem.what) == ("data", "targets")
    assert instead in problem.instead


def test_numbers_of_numpy_are_numbers() -> None:
    module = make_mlp()
    given = (module, torch.zeros(2, 5), (make_rows(), make_labels()), "cross_entropy")
    optimizer = optim.SGD(module.parameters(), lr=0.125)
    plain = make_task(*given, optimizer, clip_norm=0.5)
    numbers: dict[str, Any] = {"batch": np.int64(4), "steps": np.int32(4), "seed": np.uint8(0)}
    assert (
        make_task(*given, optimizer, clip_norm=np.float32(0.5), **numbers).task_id == plain.task_id
    )
    for wrong in ({"clip_norm": math.inf}, {"clip_norm": -1.0}, {"batch": SAMPLES + 1}):
        with pytest.raises(UnsupportedError) as caught:
            make_task(*given, optimizer, **wrong)
        assert [problem.path for problem in caught.value.problems] == [*wrong]


def test_a_schedule_for_epochs_is_told_that_it_counts_steps() -> None:
    module = make_mlp()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    given = (module, torch.zeros(2, 5), (make_rows(), make_labels()), "cross_entropy", optimizer)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 6)
    notes = make_task(*given, scheduler=scheduler, steps=None, epochs=2).notes
    assert any("stepped once a step, 6 times, and not once an epoch" in note for note in notes)
    assert not make_task(*given, scheduler=scheduler).notes


def test_labels_and_tokens_out_of_range_are_refused_with_all_else() -> None:
    module = make_mlp()
    with pytest.raises(UnsupportedError) as caught:
        make_task(
            *(module, torch.zeros(2, 5), (make_rows(), make_labels() + 1), nn.CrossEntropyLoss()),
            optim.RMSprop(module.parameters()),
            stride=0,
        )
    found = [(problem.path, problem.what, problem.reason) for problem in caught.value.problems]
    assert found[0][:2] == ("stride", "0")
    assert found[1] == ("data", "sample 2", "label 3 is not in [0, 3)")
    assert found[2][:2] == ("optimizer", "RMSprop")
    gpt = Gpt()
    tokens = make_tokens()
    tokens[7] = VOCABULARY
    with pytest.raises(UnsupportedError) as caught:
        make_task(gpt, make_ids(2), tokens, nn.CrossEntropyLoss(), optim.RMSprop(gpt.parameters()))
    first, second = caught.value.problems
    assert (first.path, first.what) == ("data", "tokens")
    assert first.reason == f"token 7 is {VOCABULARY}, not in [0, {VOCABULARY})"
    assert f"tokens from 0 to {VOCABULARY - 1}" in first.instead
    assert second.path == "optimizer"


def test_classes_before_places_are_moved_to_the_end(tmp_path: Path, key: PrivateKey) -> None:
    """As torch's cross-entropy has them: a class for each pixel."""
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    x = torch.sin(torch.arange(SAMPLES * 20.0) ** 1.5).view(SAMPLES, 1, 4, 5)
    y = (x[:, 0] > 0).long() + (x[:, 0] > 0.5).long()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    task = make_task(module, x[:2], (x, y), nn.CrossEntropyLoss(), optimizer)
    assert any("last axis" in note for note in task.notes)
    run = vtrain.train(task, tmp_path / "run", key=key, threads=1)
    module.load_state_dict(run.state_dict())
    with torch.no_grad():
        expected = float(functional.cross_entropy(module(x), y))
    assert measure(task, run) == pytest.approx(expected, abs=3e-3)


class Square(nn.Module):
    """Logits [batch, classes, places] of as many classes as places, from as many channels."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Conv1d(2, 4, 1)
        self.slopes = nn.PReLU(4)
        self.slopes.weight.data = torch.tensor([0.1, 0.9, 0.4, 1.5])
        self.norms = nn.Sequential(nn.GroupNorm(2, 4), self.slopes, nn.InstanceNorm1d(4))
        self.out = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norms(self.line(x)))  # type: ignore[no-any-return]


def test_as_many_channels_classes_and_places_are_told_apart(
    tmp_path: Path, key: PrivateKey
) -> None:
    torch.manual_seed(2)
    module = Square()
    x = torch.sin(torch.arange(SAMPLES * 8.0) ** 1.5).view(SAMPLES, 2, 4)
    y = (2 * x[:, 0] + 2).long().clip(0, 3)
    task = make_task(
        module, x[:2], (x, y), nn.CrossEntropyLoss(), optim.SGD(module.parameters(), lr=0.1)
    )
    assert any("are the first axis" in note for note in task.notes)
    run = vtrain.train(task, tmp_path / "run", key=key, threads=1)
    module.load_state_dict(run.state_dict())
    with torch.no_grad():
        expected = float(functional.cross_entropy(module(x), y))
    assert measure(task, run) == pytest.approx(expected, abs=3e-3)


def test_how_many_samples_a_step_has_is_asked_for_in_words() -> None:
    """Without ``batch=``: of a loader its own size is named."""
    module = make_mlp()
    rows = torch.utils.data.TensorDataset(make_rows(), make_labels())
    for data, place, fix in (
        (torch.utils.data.DataLoader(rows, batch_size=3), "data", "data=loader.dataset, batch=3"),
        (rows, "batch", "batch=32"),
    ):
        with pytest.raises(UnsupportedError) as caught:
            vtrain.from_torch(
                module,
                torch.zeros(2, 5),
                data=data,
                loss="cross_entropy",
                optimizer=optim.SGD(module.parameters(), lr=0.1),
                epochs=2,
            )
        (problem,) = caught.value.problems
        assert problem.path == place
        assert fix in problem.instead


def test_an_interrupted_calibration_leaves_all_as_it_was() -> None:
    module = Gpt(0.1)
    module.eval()
    optimizer = optim.AdamW(module.parameters(), lr=0.01)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 4)
    before = copy.deepcopy((module.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
    seen: list[str] = []

    def interrupt(what: str, done: int, total: int) -> None:
        seen.append(what)
        if what == "calibrating":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_task(
            *(module, make_ids(2), make_tokens(), "cross_entropy", optimizer),
            scheduler=scheduler,
            progress=interrupt,
        )
    assert seen[-1] == "calibrating"
    after = (module.state_dict(), optimizer.state_dict(), scheduler.state_dict())
    assert str(after) == str(before)
    assert not module.training


def test_a_batch_of_one_in_batch_norm_is_refused_by_its_path() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3))
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    data = (make_rows(), make_labels())
    with pytest.raises(UnsupportedError) as caught:
        make_task(module, make_rows()[:2], data, "cross_entropy", optimizer, batch=1)
    (problem,) = caught.value.problems
    assert problem.path == "0.1"
    assert "of BatchNorm1d" in problem.what
    assert "take a larger batch" in problem.reason
    assert "batch=2" in problem.instead


def test_a_task_whose_writing_was_interrupted_is_none_and_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make_mlp()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    data = (make_rows(), make_labels())
    task = make_task(module, make_rows()[:2], data, "cross_entropy", optimizer)
    whole = written._write_samples

    def interrupt(*args: Any) -> Any:
        whole(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(written, "_write_samples", interrupt)
        with pytest.raises(KeyboardInterrupt):
            task.write(tmp_path)
    assert not (tmp_path / "task.toml").exists()
    assert vtrain.compile(task.write(tmp_path)).task_id == task.task_id


def test_running_statistics_are_torchs(tmp_path: Path, key: PrivateKey) -> None:
    """With the unbiased variance, of a batch that is all there is."""
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=0.25), nn.Linear(4, 3))
    optimizer = optim.SGD(module.parameters(), lr=0.01)
    data = (make_rows(), make_labels())
    task = make_task(
        *(module, make_rows()[:2], data, nn.CrossEntropyLoss(), optimizer), batch=SAMPLES, steps=3
    )
    found = train_all(task, tmp_path / "run", key).state_dict()
    expected = train_by_torch(module, optimizer, None, nn.CrossEntropyLoss(), data, 3)
    biased = 1 - (1 - 0.75**3) / SAMPLES
    for name in ("1.running_mean", "1.running_var"):
        assert torch.allclose(found[name], expected[name], atol=2e-3), name
    # The biased variance would be further away.
    assert not torch.allclose(found["1.running_var"] * biased, expected["1.running_var"], atol=2e-3)
    assert int(found["1.num_batches_tracked"]) == 0
    assert any("num_batches_tracked" in note for note in task.notes)


def make_tuned(kind: str) -> nn.Sequential:
    """A network whose norms have seen data, and keep what they saw while the rest is trained."""
    torch.manual_seed(4)
    module = nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5), nn.BatchNorm1d(5), nn.ReLU()),
        nn.Linear(5, 3),
    )
    with torch.no_grad():
        for _ in range(20):
            module(make_pictures())
    for norm in (module[1], module[6]):
        norm.eval()
        norm.requires_grad_(kind == "scale and bias")
    module[0].requires_grad_(kind != "a backbone")
    return module


def make_pictures() -> torch.Tensor:
    return 3 * torch.sin(torch.arange(SAMPLES * 32.0) ** 1.5).view(SAMPLES, 2, 4, 4) + 1


@pytest.mark.parametrize("kind", ["a backbone", "statistics", "scale and bias"])
def test_norms_in_eval_mode_keep_their_statistics_while_the_rest_is_trained(
    kind: str, tmp_path: Path, key: PrivateKey
) -> None:
    module, x, y = make_tuned(kind), make_pictures(), make_labels()
    before = copy.deepcopy(module.state_dict())

    def make_optimizer() -> optim.Optimizer:
        trained = [one for one in module.parameters() if one.requires_grad]
        return optim.SGD(trained, lr=0.05, momentum=0.9)

    task = make_task(
        *(module, x[:2], (x, y), nn.CrossEntropyLoss(), make_optimizer()),
        batch=SAMPLES,
        steps=20,
        calibration_steps=20,
    )
    assert vtrain.compile(task.write(tmp_path / "task")).task_id == task.task_id
    run = train_all(task, tmp_path / "run", key)
    found = run.state_dict()
    expected = train_by_torch(module, make_optimizer(), None, nn.CrossEntropyLoss(), (x, y), 20)
    for name, value in expected.items():
        if "running" in name or "tracked" in name:
            assert torch.equal(found[name], before[name]), name
            continue
        moved = float((value - before[name]).abs().max())
        is_trained = module.get_parameter(name).requires_grad
        assert (moved > 1e-3) == is_trained, name
        assert float((found[name] - value).abs().max()) < 0.1 * moved + 2.0**-24, name
    module.load_state_dict(found)
    with torch.no_grad():
        logits = module.eval()(x)
    loss = float(functional.cross_entropy(logits, y))
    assert measure(task, run) == pytest.approx(loss, abs=3e-3)
    onnx_file, _ = vtrain.export(run, tmp_path / "out")
    session = onnxruntime.InferenceSession(onnx_file.read_bytes())
    (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert np.allclose(out, logits.numpy(), atol=1e-4)


def test_a_task_is_written_once_and_says_what_it_is(tmp_path: Path) -> None:
    module = make_mlp()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    task = make_task(
        *(module, make_rows()[:2], (make_rows(), make_labels()), "cross_entropy", optimizer),
        name='odd "name"\n',
        test=(make_rows()[:4] * 3, make_labels()[:4]),
        epochs=2,
        steps=None,
    )
    assert task.spec.steps == 2 * SAMPLES // 4
    assert any("held to them" in note for note in task.notes)
    assert len(repr(task)) < 200
    assert task.task_id.hex()[:16] in repr(task)
    path = task.write(tmp_path / "new" / "folder")
    again = vtrain.compile(path)
    assert (again.name, again.task_id) == ('odd "name"\n', task.task_id)
    with pytest.raises(RunError, match="not replaced"):
        task.write(path.parent)
    # A task of a file writes itself too.
    copied = vtrain.compile(again.write(tmp_path / "copy"))
    assert copied.task_id == task.task_id
    assert (tmp_path / "copy" / "test-x.npy").read_bytes() == (
        path.parent / "test-x.npy"
    ).read_bytes()


def test_the_examples_task_files_write_themselves(tmp_path: Path, repository: Path) -> None:
    """Of other kinds of data: IDX, with a preparation, and text."""
    for name in ("mnist/tiny.toml", "text/chars.toml"):
        task = vtrain.compile(repository / "examples" / name)
        again = vtrain.compile(task.write(tmp_path / name.partition("/")[0]))
        assert again.task_id == task.task_id


def test_exponents_may_be_given(tmp_path: Path) -> None:
    module = make_mlp()

    def make(exponents: Mapping[str, int] | None) -> CompiledTask:
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        data = (make_rows(), make_labels())
        return make_task(
            *(module, make_rows()[:2], data, "cross_entropy", optimizer), exponents=exponents
        )

    task = make(None)
    assert make(task.spec.exponents).task_id == task.task_id


def test_what_people_are_told_is_said_once_in_words_of_this_call() -> None:
    module = make_mlp()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    data, loss = (make_rows(), make_labels()), nn.CrossEntropyLoss()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # as in a script: one of a text at a line is enough
        make_task(module, torch.zeros(1, 5), data, loss, optimizer, scheduler=warm)
    (told,) = (one for one in caught if one.category is VtrainWarning)
    assert "; give vtrain.from_torch calibration_steps = 8" in str(told.message)
    assert "task.toml" not in str(told.message)
    assert Path(told.filename) == Path(__file__)
    with pytest.raises(UnsupportedError) as refused:
        make_task(module, torch.zeros(1, 5), data, loss, optimizer, exponents={})
    (problem,) = refused.value.problems
    assert (problem.path, problem.instead.partition(":")[0]) == (
        "exponents",
        "leave exponents= out",
    )


def make_regression(scale: float, clip_norm: float | None = 1.0, **more: Any) -> CompiledTask:
    torch.manual_seed(0)
    module = nn.Linear(12, 3)
    x, y = torch.randn(32, 12), torch.randn(32, 3) * scale
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    return make_task(
        *(module, x[:2], (x, y), nn.MSELoss(), optimizer), clip_norm=clip_norm, batch=32, **more
    )


def measure_clipped(task: CompiledTask) -> tuple[float, float]:
    """Norms of the gradients of the first step before and after they are clipped, as multiples of
    what they are clipped to."""
    values: list[np.ndarray[Any, Any]] = []
    names: dict[str, int] = {}
    for node in task.graph.nodes:
        inputs = [values[ref.node] for ref in node.inputs]
        names[node.name] = len(values)
        values.append(apply_node(node, inputs, task.initial_state, task.samples))
    limit = next(node for node in task.graph.nodes if node.op == "clip_factor").attrs["limit"]
    assert isinstance(limit, int)
    before, after = 0.0, 0.0
    for node in task.graph.nodes:
        if node.op == "capped_square":
            unit = 2.0 ** -attr_int(node.attrs, "shift") / limit
            clipped = values[names[node.name.removesuffix("/squares") + "/clipped"]]
            gradient = values[node.inputs[0].node]
            before += float(((gradient.astype(np.float64) * unit) ** 2).sum())
            after += float(((clipped.astype(np.float64) * unit) ** 2).sum())
    return math.sqrt(before), math.sqrt(after)


def test_how_far_gradients_are_clipped_is_said_and_so() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", VtrainWarning)
        plain = make_regression(1, clip_norm=None)
        near = make_regression(100)
    assert not any("clip_norm" in note for note in plain.notes)
    reach = find_clip_reach(near.graph)
    assert reach is not None
    assert reach.parameters == 39
    assert 2**9.5 <= reach.whole <= 2**10.5
    (note,) = [note for note in near.notes if "clip_norm" in note]
    assert f"up to {reach.whole:,.4g} times clip_norm" in note
    assert "within 1 % where gradients are at most 328 times" in note
    before, after = measure_clipped(near)
    assert 1 < before < reach.precise
    assert 0.99 <= after <= 1.001
    with pytest.warns(VtrainWarning, match=r"was ([\d,.e+]+) times clip_norm, and beyond") as told:
        far = make_regression(100, clip_norm=0.001)
    reach = find_clip_reach(far.graph)
    assert reach is not None
    assert f"beyond {reach.whole:,.4g} times it squares are held" in str(told[0].message)
    before, after = measure_clipped(far)
    assert before > reach.whole
    assert 5 < after <= before / reach.whole


def test_targets_that_torch_would_broadcast_are_noted() -> None:
    module = nn.Linear(5, 1)
    optimizer = optim.SGD(module.parameters(), lr=0.1)

    def note(y: torch.Tensor, loss: Any) -> list[str]:
        task = make_task(module, make_rows()[:2], (make_rows(), y), loss, optimizer)
        return [note for note in task.notes if "element by element" in note]

    y = make_rows()[:, 0]
    (told,) = note(y, nn.MSELoss())
    assert "targets are [batch] and the output is [batch, 1]" in told
    assert "broadcasts both to [4, 4]" in told
    assert note(y[:, None], nn.MSELoss()) == []
    assert note(y, "mse") == []


@pytest.mark.parametrize(
    ("given", "steps", "expected"),
    [(None, 4, 20), (None, 60, 60), (None, 5000, 100), (7, 5000, 7)],
)
def test_attention_is_calibrated_beyond_its_first_steps(
    given: int | None, steps: int, expected: int
) -> None:
    module = Gpt()
    optimizer = optim.AdamW(module.parameters(), lr=0.003)
    told: list[int] = []

    class StopError(Exception):
        pass

    def stop(what: str, done: int, total: int) -> None:
        if what == "calibrating":
            told.append(total)
            raise StopError

    with pytest.raises(StopError):
        vtrain.from_torch(
            *(module, make_ids()),
            data=make_tokens(),
            loss=nn.CrossEntropyLoss(),
            optimizer=optimizer,
            batch=4,
            steps=steps,
            progress=stop,
            calibration_steps=given,
        )
    assert told == [expected]


def test_samples_of_another_order_of_axes_are_refused() -> None:
    module = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    x, loss = torch.rand(SAMPLES, 6, 6, 3), nn.CrossEntropyLoss()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    example = torch.zeros(1, 3, 6, 6)
    good = x.permute(0, 3, 1, 2)
    cases: list[tuple[Any, Any, str]] = [
        ((x, make_labels()), None, "data: inputs: are [batch, 6, 6, 3], and the example is"),
        (TensorDataset(x, make_labels()), None, ".transpose(0, 3, 1, 2)"),
        ((good, make_labels()), (x, make_labels()), "test: inputs: are [batch, 6, 6, 3]"),
    ]
    for data, test, reason in cases:
        with pytest.raises(UnsupportedError) as caught:
            make_task(module, example, data, loss, optimizer, test=test)
        assert reason in str(caught.value)
    # Rows are in the order of the model, by docs/pytorch.md: the same samples, the same graph.
    rows = make_task(module, example, (good.flatten(1), make_labels()), loss, optimizer)
    assert (
        rows.spec.exponents
        == make_task(module, example, (good, make_labels()), loss, optimizer).spec.exponents
    )


def test_targets_of_another_order_of_axes_are_refused() -> None:
    module, x = nn.Linear(4, 3), torch.rand(SAMPLES, 5, 4)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    for data, reason in (
        ((x, torch.rand(SAMPLES, 3, 5)), "data: targets: are [batch, 3, 5], and the module's"),
        ((x.transpose(1, 2), torch.rand(SAMPLES, 5, 3)), "data: inputs: are [batch, 4, 5]"),
    ):
        with pytest.raises(UnsupportedError) as caught:
            make_task(module, torch.zeros(1, 5, 4), data, nn.MSELoss(), optimizer)
        assert reason in str(caught.value)


def test_a_task_file_whose_samples_have_other_axes_is_refused(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    data = (torch.rand(SAMPLES, 5, 4), torch.rand(SAMPLES, 5, 3))
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    task = make_task(module, torch.zeros(1, 5, 4), data, nn.MSELoss(), optimizer)
    path = task.write(tmp_path / "task")
    for name, where in (("y", "loss"), ("x", "data")):
        file = tmp_path / "task" / f"{name}.npy"
        np.save(file, np.load(file).transpose(0, 2, 1))
        with pytest.raises(TaskError, match="as many elements") as refused:
            vtrain.compile(path)
        assert refused.value.where == where


def test_test_data_are_checked_before_the_first_step(tmp_path: Path) -> None:
    module, x = make_mlp(), make_rows()
    given = (module, torch.zeros(2, 5), (x, make_labels()), nn.CrossEntropyLoss())
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    labels = make_labels()
    labels[4] = 7
    with pytest.raises(UnsupportedError, match="cannot be had") as caught:
        make_task(*given, optimizer, test=(x[:, :3], make_labels()))
    assert "test: inputs: are [batch, 3], and the example is [batch, 5]" in str(caught.value)
    with pytest.raises(UnsupportedError) as caught:
        make_task(*given, optimizer, test=(x, labels))
    assert "test: sample 4: label 7 is not in [0, 3). Instead: labels from 0 to 2" in str(
        caught.value
    )
    # Of a task file they are read when they are needed: before anything of the run is written.
    path = make_task(*given, optimizer, test=(x, make_labels())).write(tmp_path / "task")
    np.save(path.parent / "test-y.npy", labels.to(torch.int32).numpy())
    with pytest.raises(DataError, match="label 7 is not in") as wrong:
        vtrain.train(path, tmp_path / "run", eval_every=2)
    assert wrong.value.where == "test data: sample 4"
    assert not (tmp_path / "run").exists()


def test_tokens_to_measure_on_may_be_of_another_type() -> None:
    module = Gpt(0.0)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    given = (module, make_ids(2), make_tokens(), nn.CrossEntropyLoss(), optimizer)
    test = make_task(*given, test=make_tokens().astype(np.int64)).file
    assert test is not None
    assert test.held is not None
    assert test.held.test is not None
    assert test.held.test.spec.x_dtype == test.held.samples.spec.x_dtype
    with pytest.raises(UnsupportedError, match="cannot be had"):
        make_task(*given, test=make_tokens().astype(np.int64) + 2**20)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_files_have_float32_whatever_the_module_had(
    dtype: torch.dtype, tmp_path: Path, key: PrivateKey
) -> None:
    module = make_mlp().to(dtype)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    data = (make_rows(), make_labels())
    example = torch.zeros(2, 5, dtype=dtype)
    task = make_task(module, example, data, nn.CrossEntropyLoss(), optimizer)
    name = str(dtype).removeprefix("torch.")
    assert any(f"parameters are {name}" in note for note in task.notes)
    run = vtrain.train(task, tmp_path / "run", key=key, threads=1)
    onnx_file, tensors = vtrain.export(run, tmp_path / "out")
    _, _, state = read_claimed_state(RunPaths(run.path), None)
    found = load_file(tensors)
    assert {values.dtype for values in found.values()} == {np.dtype(np.float32)}
    exact = np.ldexp(state[param_state("0.weight")].astype(np.float64), -24)
    assert np.array_equal(found["0.weight"], exact.astype(np.float32))
    back = run.state_dict()
    assert {one.dtype for one in back.values()} == {
        torch.float32 if dtype == torch.bfloat16 else dtype
    }
    module.load_state_dict(back)
    # What runs models takes operands of one type alone.
    session = onnxruntime.InferenceSession(onnx_file.read_bytes())
    rows = make_rows()
    (out,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
    plain = copy.deepcopy(module).float()
    plain.load_state_dict({path: torch.from_numpy(one) for path, one in found.items()})
    assert np.allclose(out, plain(rows).detach().numpy(), atol=1e-5)


class FailingSet(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> Any:
        if number == 4:
            raise KeyError("four")
        return make_rows()[number], 0


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> Any:
        x = x.clone()
        x[:, 0] = 0
        return self.layer(x)


def make_short_case(module: nn.Module) -> dict[str, Any]:
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    cycle = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2, cycle_momentum=False)
    return {"optimizer": optimizer, "scheduler": cycle}


REFUSALS: dict[str, tuple[Callable[[nn.Module], dict[str, Any]], str]] = {
    "no batch": (lambda m: {"example_inputs": torch.zeros(5)}, "of shape [1, 5]"),
    "compiled": (lambda m: {"module": torch.compile(m)}, "model._orig_mod"),
    "parallel": (lambda m: {"module": nn.DataParallel(m)}, "model.module"),
    "whole numbers": (
        lambda m: {"example_inputs": torch.zeros(2, 5, dtype=torch.int64)},
        "only nn.Embedding reads them",
    ),
    "width": (
        lambda m: {"data": (make_rows(4), make_labels())},
        "data: inputs: are [batch, 4], and the example is [batch, 5]",
    ),
    "epochs": (lambda m: {"steps": None, "epochs": 1.5}, "epochs: 1.5: is no whole number"),
    "both": (lambda m: {"epochs": 2}, "steps, epochs: both are given"),
    "neither": (lambda m: {"steps": None}, "steps, epochs: neither is given"),
    "a file": (lambda m: {"data": "data.npy"}, "np.load"),
    "a loss": (lambda m: {"loss": "crossentropy"}, "Instead: 'cross_entropy' or 'mse'"),
    "schedule": (make_short_case, "scheduler: OneCycleLR: raised ValueError within the task's 4"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_refused_is_said_in_words_of_torch(case: str) -> None:
    make, words = REFUSALS[case]
    module = nn.Linear(5, 3)
    given: dict[str, Any] = {
        "module": module,
        "example_inputs": torch.zeros(2, 5),
        "data": (make_rows(), make_labels()),
        "loss": "cross_entropy",
        "optimizer": optim.SGD(module.parameters(), lr=0.1),
        "batch": 4,
        "steps": 4,
    }
    given |= make(module)
    with pytest.raises(UnsupportedError) as caught:
        vtrain.from_torch(given.pop("module"), given.pop("example_inputs"), **given)
    assert words in str(caught.value)


def test_data_that_cannot_be_taken_are_said_in_words_of_torch() -> None:
    module, x = nn.Linear(5, 3), make_rows()
    optimizer = optim.SGD(module.parameters(), lr=0.1)

    def make(data: Any) -> CompiledTask:
        return make_task(module, torch.zeros(2, 5), data, nn.CrossEntropyLoss(), optimizer)

    for data, words in (
        ((x, make_labels() - 1), "give nn.CrossEntropyLoss(ignore_index=-1)"),
        (FailingSet(), "data: sample 4 of FailingSet: raised KeyError"),
    ):
        with pytest.raises(UnsupportedError) as caught:
            make(data)
        assert words in str(caught.value)
    assert any("floats, all of them whole" in note for note in make((x, make_labels() * 1.0)).notes)


def test_a_line_that_overwrites_a_part_is_refused_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        import_module(Overwriting(), torch.zeros(2, 5))
    (problem,) = caught.value.problems
    assert "overwrites a part of a value" in problem.reason


def test_a_file_in_place_of_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    module = nn.Linear(5, 3)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    task = make_task(
        module, torch.zeros(2, 5), (make_rows(), make_labels()), "cross_entropy", optimizer
    )
    with pytest.raises(RunError, match="is no folder"):
        vtrain.train(task, tmp_path / "a.py")


def test_dir_has_what_the_package_offers() -> None:
    assert set(vtrain.__all__) <= set(dir(vtrain))
    assert not {"Any", "Path", "TYPE_CHECKING", "ModuleType"} & set(dir(vtrain))


def test_a_module_whose_training_diverges_is_told_so() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 40), nn.Linear(40, 40), nn.Linear(40, 3))
    optimizer = optim.SGD(module.parameters(), lr=0.9)
    data = (make_rows() * 9, make_rows(3))
    with pytest.raises(UnsupportedError, match="lower learning rate") as caught:
        make_task(module, data[0][:2], data, "mse", optimizer, steps=20, calibration_steps=20)
    (problem,) = caught.value.problems
    assert problem.path == "loss"
