"""What a task refuses of the arguments of ``vtrain.from_torch``: all at once, with everything else,
each by the argument's name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import vtrain
from tests.modules import VOCABULARY, Gpt, make_ids, make_mlp
from tests.train.test_from_torch import SAMPLES, make_labels, make_rows, make_task, make_tokens
from vtrain.errors import Problem, UnsupportedError
from vtrain.train.task import CompiledTask

MakeOptimizer = Callable[[nn.Module], optim.Optimizer]


def make(optimizer: MakeOptimizer | None = None, **more: Any) -> CompiledTask:
    torch.manual_seed(0)
    module = make_mlp()
    given: dict[str, Any] = {"data": (make_rows(), make_labels()), "loss": nn.CrossEntropyLoss()}
    given |= more
    made = optim.SGD(module.parameters(), lr=0.1) if optimizer is None else optimizer(module)
    return make_task(
        *(module, torch.zeros(2, 5), given.pop("data"), given.pop("loss"), made), **given
    )


def find(optimizer: MakeOptimizer | None = None, **more: Any) -> list[Problem]:
    with pytest.raises(UnsupportedError) as caught:
        make(optimizer, **more)
    assert all(problem.reason and problem.instead for problem in caught.value.problems)
    return list(caught.value.problems)


def sgd(**options: Any) -> MakeOptimizer:
    return lambda module: optim.SGD(module.parameters(), **{"lr": 0.1} | options)


def adamw(**options: Any) -> MakeOptimizer:
    return lambda module: optim.AdamW(module.parameters(), **{"lr": 0.1} | options)


SETTINGS: dict[str, tuple[Any, str]] = {
    "seed": (-1, "in [0, 18446744073709551615]"),
    "name": (3, "must be text"),
    "commit_every": (0, "must be an integer"),
    "checkpoint_every": (0, "must be an integer"),
    "clip_norm": (math.nan, "must be a number"),
    "end_of_text": (3, "the module takes floats"),
    "padding": (2.5, "must be an integer"),
    "attention_crosses": (True, "needs end_of_text"),
    "margin": (99, "in [0, 12]"),
    "gradient_margin": ("1", "in [0, 12]"),
    "symmetric_gradients": (1, "must be True or False"),
    "fine_gradients": ("no", "must be True or False"),
    "wide_sums": (object(), "must be True or False"),
    "calibration_steps": (10**6000, "in [1, 10000]"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_argument_is_refused_by_its_name(name: str) -> None:
    value, reason = SETTINGS[name]
    (problem,) = find(**{name: value})
    assert problem.path == name
    assert reason in problem.reason
    assert problem.instead.startswith((f"{name}=", f"leave {name}= out"))


def test_all_arguments_are_refused_at_once() -> None:
    wrong = {name: value for name, (value, _) in SETTINGS.items() if name != "end_of_text"}
    problems = find(sgd(momentum=1.5, weight_decay=2.0), **wrong)
    assert {problem.path for problem in problems} == {
        *wrong,
        "optimizer.param_groups[0]['momentum']",
        "optimizer.param_groups[0]['weight_decay']",
    }
    assert len(problems) == len(wrong) + 2


def test_what_else_is_refused_hides_no_argument() -> None:
    """Neither the module, nor the loss, the data or the optimizer; nor do arguments hide these."""

    def freeze(module: nn.Module) -> optim.Optimizer:
        module.requires_grad_(False)
        return optim.AdamW(module.parameters(), lr=0.1)

    nan = (make_rows() * math.nan, make_labels())
    for more, optimizer, path, last in (
        ({"data": nan}, sgd(lr=1e-60), "data", "optimizer.param_groups[0]['lr']"),
        ({"data": (make_rows(), make_labels() + 1)}, freeze, "data", "optimizer"),
        ({"data": nan, "steps": None}, freeze, "data", "optimizer"),
        ({"loss": nn.L1Loss()}, sgd(momentum=1.0), "loss", "optimizer.param_groups[0]['momentum']"),
    ):
        problems = find(optimizer, seed=-1, margin=13, **more)
        paths = [problem.path for problem in problems]
        assert paths[0] == path
        assert paths[-1] == last
        assert {"seed", "margin"} <= {*paths}
    module = nn.Sequential(nn.Linear(5, 3), nn.Softplus())
    given = (module, torch.zeros(2, 5), (make_rows(), make_labels()), nn.CrossEntropyLoss())
    with pytest.raises(UnsupportedError) as caught:
        make_task(*given, optim.RMSprop(module.parameters()), batch=0, seed=-1, clip_norm=0)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["batch", "1", "optimizer", "seed", "clip_norm"]


NUMBERS: dict[str, tuple[MakeOptimizer, str, str]] = {
    "momentum": (sgd(momentum=1.0), "momentum", "must lie in [0, 1)"),
    "nesterov": (sgd(momentum=1.0, nesterov=True), "momentum", "must lie in [0, 1)"),
    "decay": (adamw(weight_decay=1.5), "weight_decay", "must lie in [0, 1]"),
    "a small decay": (adamw(weight_decay=1e-30), "weight_decay", "too small"),
    "epsilon": (adamw(eps=3.0), "eps", "must lie in [0, 1]"),
    "betas": (adamw(betas=(0.9, 0.9999999)), "betas", "must lie in [0, 0.999999]"),
    "a small rate": (sgd(lr=1e-60), "lr", "too small"),
    "a large rate": (sgd(lr=1e30), "lr", "too large"),
    "no rate": (sgd(lr=math.nan), "lr", "is not finite"),
    "an infinite decay": (sgd(weight_decay=math.inf), "weight_decay", "is not finite"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_of_an_optimizer_are_refused_by_their_group(case: str) -> None:
    optimizer, key, reason = NUMBERS[case]
    (problem,) = find(optimizer)
    assert problem.path == f"optimizer.param_groups[0]['{key}']"
    assert reason in problem.reason


def test_a_group_is_the_one_that_has_the_number() -> None:
    def split(module: nn.Module) -> optim.Optimizer:
        first, *rest = module.parameters()
        groups = [{"params": [first], "weight_decay": 0.0}, {"params": rest, "weight_decay": 1.5}]
        return optim.AdamW(groups, lr=0.1)

    (problem,) = find(split)
    assert problem.path == "optimizer.param_groups[1]['weight_decay']"
    assert problem.what == "1.5"


def test_a_decay_that_the_loss_multiplies_is_told_so() -> None:
    targets = (make_rows(), torch.rand(SAMPLES, 3))
    (problem,) = find(sgd(weight_decay=0.9), data=targets, loss=nn.MSELoss())
    assert problem.what == "0.9"
    assert problem.reason.startswith("counts as 1.35, by the mean that the loss takes")
    make(sgd(weight_decay=0.9), data=targets, loss=nn.MSELoss(reduction="sum"))


def test_nothing_to_train_is_refused() -> None:
    def freeze(module: nn.Module) -> optim.Optimizer:
        module.requires_grad_(False)
        return optim.AdamW(module.parameters(), lr=0.1)

    (problem,) = find(freeze)
    assert (problem.path, problem.what) == ("optimizer", "AdamW")
    assert "leaves no parameter to train" in problem.reason
    (problem,) = find(lambda module: optim.SGD(make_mlp().parameters(), lr=0.1))
    assert (problem.path, problem.what) == ("optimizer", "6 parameters")


def test_steps_that_no_commitment_ends_are_refused_by_what_was_given() -> None:
    for more, path, what in (
        ({"steps": 5}, "steps", "5"),
        ({"steps": None, "epochs": 1}, "epochs", "1"),
    ):
        (problem,) = find(commit_every=2, **more)
        assert (problem.path, problem.what) == (path, what)
        assert problem.instead == f"steps={4 if path == 'steps' else 2}, or commit_every=1"
    (problem,) = find(commit_every=2, checkpoint_every=3)
    assert problem.path == "checkpoint_every"
    assert "a multiple of 2" in problem.instead
    # By itself it is a multiple.
    assert make(commit_every=2).spec.checkpoint_every == 4


def test_exponents_are_held_against_the_sites_of_the_model() -> None:
    sites = dict(make().spec.exponents)
    cases: list[tuple[Any, list[str], str]] = [
        ({}, ["exponents"], "is empty"),
        (7, ["exponents"], "is no dict"),
        ({1: 2}, ["exponents"], "is no dict"),
        (sites | {"more": 3}, ["exponents"], "has more, which the model does not have"),
        (dict(list(sites.items())[1:]), ["exponents"], "lacks "),
        (dict.fromkeys(sites, 99), [f"exponents['{key}']" for key in sites], "in [-64, 64]"),
    ]
    for exponents, paths, reason in cases:
        problems = find(exponents=exponents)
        assert sorted(problem.path for problem in problems) == sorted(paths)
        assert reason in problems[0].reason
    assert make(exponents=sites).spec.exponents == sites


def test_arguments_of_another_kind_of_data_are_refused() -> None:
    problems = find(stride=2, vocabulary=9, columns=("x", "y"))
    assert [problem.path for problem in problems] == ["stride", "vocabulary", "columns"]
    gpt = Gpt()
    given = (gpt, make_ids(2), make_tokens(), nn.CrossEntropyLoss())
    optimizer = optim.SGD(gpt.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError) as caught:
        make_task(*given, optimizer, vocabulary=VOCABULARY + 1, end_of_text=VOCABULARY, seed=-1)
    found = {problem.path: problem for problem in caught.value.problems}
    assert set(found) == {"seed", "vocabulary", "end_of_text"}
    assert found["vocabulary"].instead == f"vocabulary={VOCABULARY}"


def test_ids_of_a_model_without_attention_are_refused_by_the_argument() -> None:
    module = nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Flatten(), nn.Linear(24, 3))
    data = (make_ids(SAMPLES), make_labels())
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError) as caught:
        make_task(
            *(module, make_ids(2), data, nn.CrossEntropyLoss(), optimizer), padding=0, seed=-1
        )
    found = {problem.path: problem for problem in caught.value.problems}
    assert set(found) == {"seed", "padding"}
    assert "has no attention" in found["padding"].reason
    assert "task file" not in found["padding"].reason


def test_a_curve_that_no_task_has_is_refused_with_the_arguments() -> None:
    def waver(module: nn.Module) -> optim.Optimizer:
        return optim.SGD(module.parameters(), lr=0.1)

    module = make_mlp()
    optimizer = waver(module)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda t: 1.0 + (t % 2))
    given = (module, torch.zeros(2, 5), (make_rows(), make_labels()), nn.CrossEntropyLoss())
    with pytest.raises(UnsupportedError) as caught:
        make_task(*given, optimizer, scheduler=scheduler, steps=4000, seed=-1)
    assert [problem.path for problem in caught.value.problems] == ["scheduler", "seed"]


def test_numbers_of_torch_and_numpy_are_those_of_python() -> None:
    plain = make(clip_norm=0.5)
    given: dict[str, Any] = {
        "clip_norm": torch.tensor(0.5),
        "margin": np.int8(3),
        "wide_sums": np.bool_(False),
        "seed": torch.tensor(0),
    }
    assert make(**given).task_id == plain.task_id


def test_the_package_says_it_the_same_way() -> None:
    module = make_mlp()
    with pytest.raises(vtrain.UnsupportedError) as caught:
        vtrain.from_torch(
            *(module, torch.zeros(2, 5)),
            data=(make_rows(), make_labels()),
            loss="cross_entropy",
            optimizer=optim.SGD(module.parameters(), lr=0.1),
            batch=4,
            steps=4,
            seed=-1,
            margin=13,
        )
    text = str(caught.value)
    assert text.startswith("from_torch: cannot be had, for 2 reasons [unsupported]:")
    assert "  margin: 13: must be an integer in [0, 12]. Instead: margin=3" in text
