"""Optimizers, schedulers, losses and data of torch: what becomes of them, and what is refused."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from vtrain.errors import TaskError, UnsupportedError
from vtrain.train.schedule import Curve, parse_schedule
from vtrain.train.table import Table
from vtrain.train.torch_hooks.data import Wanted, load
from vtrain.train.torch_hooks.losses import Loss, read_loss
from vtrain.train.torch_hooks.optimizers import CLOSE, Rates, draw_rates, read_optimizer

ROWS = np.arange(12, dtype=np.float64).reshape(4, 3) / 7 - 0.5
LABELS = np.array([0, 2, 1, 2])


def make_module() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))


def find_reasons(call: Callable[[], Any]) -> str:
    with pytest.raises(UnsupportedError) as caught:
        call()
    assert all(problem.instead for problem in caught.value.problems)
    return "\n".join(map(str, caught.value.problems))


# --- optimizers


def step_once(module: nn.Module) -> optim.Optimizer:
    optimizer = optim.AdamW(module.parameters(), lr=0.1)
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


def add_hook(module: nn.Module) -> optim.Optimizer:
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda optimizer, args, kwargs: None)
    return optimizer


def replace_step(module: nn.Module, *, before: bool = False, after: bool = False) -> Any:
    """A step of the user's under or over the wrapper of a scheduler, which marks it as its own."""
    optimizer: Any = optim.SGD(module.parameters(), lr=0.1)

    def replace() -> None:
        own = optimizer.step.__func__ if before else optimizer.step

        @functools.wraps(own)
        def step(*arguments: Any) -> Any:
            return own(*arguments)

        optimizer.step = types.MethodType(step, optimizer) if before else step

    if before:
        replace()
    lr_scheduler.StepLR(optimizer, 1)
    if after:
        replace()
    return optimizer


REFUSED_OPTIMIZERS: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "none": (lambda m: None, "is no instance of torch.optim.Optimizer"),
    "a class": (lambda m: optim.AdamW, "AdamW: is no instance"),
    "rmsprop": (lambda m: optim.RMSprop(m.parameters()), "Instead: torch.optim.AdamW with betas"),
    "lbfgs": (lambda m: optim.LBFGS(m.parameters()), "LBFGS: cannot be had"),
    "rprop": (lambda m: optim.Rprop(m.parameters()), "Rprop: cannot be had"),
    "adam": (lambda m: optim.Adam(m.parameters(), weight_decay=0.1), "adds its weight decay"),
    "adamw by the gradient": (
        lambda m: optim.AdamW(
            [{"params": m.parameters(), "decoupled_weight_decay": False, "weight_decay": 0.1}]
        ),
        "adds its weight decay",
    ),
    "hooked": (add_hook, "has hooks"),
    "a step over a scheduler's": (lambda m: replace_step(m, after=True), "has a step that is not"),
    "a step under it": (lambda m: replace_step(m, before=True), "has a step that is not"),
    "used": (step_once, "has state"),
    "dampening": (
        lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
        "has dampening=0.5. Instead: dampening=0",
    ),
    "maximize": (lambda m: optim.SGD(m.parameters(), lr=0.1, maximize=True), "has maximize=True"),
    "another's": (lambda m: optim.SGD(make_module().parameters(), lr=0.1), "4 parameters"),
    "no rate": (lambda m: optim.SGD(m.parameters(), lr=0.0), "a learning rate of 0 everywhere"),
    "two decays": (
        lambda m: optim.AdamW(
            [
                {"params": m.get_submodule("0").parameters(), "weight_decay": 0.1},
                {"params": m.get_submodule("1").parameters(), "weight_decay": 0.2},
            ]
        ),
        "the weight decays [0.1, 0.2]",
    ),
}


@pytest.mark.parametrize("case", REFUSED_OPTIMIZERS)
def test_optimizers_that_no_task_has_are_refused(case: str) -> None:
    make, reason = REFUSED_OPTIMIZERS[case]
    module = make_module()
    assert reason in find_reasons(lambda: read_optimizer(module, make(module), None, 10))


def test_hooks_of_all_optimizers_are_refused() -> None:
    module = make_module()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
        handle = register(lambda optimizer, args, kwargs: None)
        try:
            reasons = find_reasons(lambda: read_optimizer(module, optimizer, None, 10))
        finally:
            handle.remove()
        assert "hooks of all optimizers" in reasons


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW, optim.Adam])
def test_what_schedulers_put_around_a_step_is_taken(kind: Any) -> None:
    module = make_module()
    optimizer = kind(module.parameters(), lr=0.1)
    parts = [lr_scheduler.StepLR(optimizer, 1), lr_scheduler.ConstantLR(optimizer)]
    assert "step" in vars(optimizer)
    chained = lr_scheduler.ChainedScheduler(parts)
    assert read_optimizer(module, optimizer, chained, 4).trained


def test_what_an_optimizer_says_of_parameters() -> None:
    module = make_module()
    module.get_parameter("0.bias").requires_grad_(False)
    groups: list[dict[str, Any]] = [
        {"params": [module.get_parameter("0.weight"), module.get_parameter("0.bias")]},
        {"params": [module.get_parameter("1.weight")], "weight_decay": 0.0},
    ]
    optimizer = optim.SGD(groups, lr=0.1, momentum=0.5, weight_decay=0.25)
    found = read_optimizer(module, optimizer, None, 10)
    assert (found.kind, found.numbers, found.weight_decay) == ("sgd", {"momentum": 0.5}, 0.25)
    assert found.trained == {"0.weight", "1.weight"}
    assert found.decayed == {"0.weight"}
    assert found.rates == Rates(0.1, levels=((0, 0.1),))


def test_other_optimizers_have_that_reason_alone() -> None:
    """Adagrad has state from the beginning, and the groups of others have other keys."""
    module = make_module()
    optimizer = optim.Adagrad(module.parameters())
    assert find_reasons(lambda: read_optimizer(module, optimizer, None, 10)).count("Instead") == 1


def test_groups_may_have_names() -> None:
    module = make_module()
    groups: list[dict[str, Any]] = [
        {"params": [*module.get_submodule(name).parameters()], "name": name} for name in "01"
    ]
    assert len(read_optimizer(module, optim.SGD(groups, lr=0.1), None, 4).trained) == 4


def test_rates_that_are_tensors_are_put_back() -> None:
    module = make_module()
    optimizer = optim.AdamW(module.parameters(), lr=torch.tensor(0.125))
    rate = optimizer.param_groups[0]["lr"]
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    found = read_optimizer(module, optimizer, scheduler, 3).rates
    assert found.points[-1] == (2, 0.25) or found.levels[-1] == (2, 0.03125)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.125


def make_warm_cosine(optimizer: optim.Optimizer) -> lr_scheduler.LambdaLR:
    """As transformers.get_cosine_schedule_with_warmup has it."""

    def factor(step: int) -> float:
        if step < 100:
            return step / 100
        return max(0.0, 0.5 * (1 + math.cos(math.pi * (step - 100) / 900)))

    return lr_scheduler.LambdaLR(optimizer, factor)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "cosine": make_warm_cosine,
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.995),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 250),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=1000, cycle_momentum=False),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 1000, power=2.0),
}


def draw(curve: Curve, step: int) -> float:
    """The rate of a step, between whose knots it lies."""
    before = max(knot for knot in curve.knots if knot[0] <= step)
    after = min((knot for knot in curve.knots if knot[0] > step), default=before)
    if before == after or not curve.linear:
        return float(before[1])
    share = Fraction(step - before[0], after[0] - before[0])
    return float(before[1] + (after[1] - before[1]) * share)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_lines_come_close_to_every_rate_and_schedulers_are_put_back(name: str) -> None:
    module, steps = make_module(), 1000
    optimizer = optim.AdamW(module.parameters(), lr=0.1)
    scheduler = SCHEDULERS[name](optimizer)
    before = (optimizer.state_dict(), str(scheduler.state_dict()))
    rates = read_optimizer(module, optimizer, scheduler, steps).rates
    assert (optimizer.state_dict(), str(scheduler.state_dict())) == before
    assert rates.points
    top = Table(
        {"schedule": {"kind": "points", "points": [[s, Fraction(f)] for s, f in rates.points]}},
        ("schedule",),
        "",
    )
    curve = parse_schedule(top, Fraction(rates.largest), steps)
    close = CLOSE[1] if name == "restarts" else CLOSE[0]  # four turns take more lines
    optimizer.step()  # of no gradients; else torch warns
    for step in range(steps):
        expected = optimizer.param_groups[0]["lr"]
        assert abs(draw(curve, step) - expected) <= 1.01 * close * rates.largest, step
        scheduler.step()


def test_rates_in_steps_are_steps() -> None:
    assert draw_rates([0.1] * 30 + [0.01] * 30).levels == ((0, 0.1), (30, 0.01))
    assert draw_rates([0.1]).levels == ((0, 0.1),)
    jagged = [abs(math.sin(step * step)) for step in range(2000)]
    assert "straight lines" in find_reasons(lambda: draw_rates(jagged))


def test_schedulers_that_need_more_than_steps_are_refused() -> None:
    module = make_module()
    optimizer = optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    cases: list[tuple[Any, str]] = [
        (lr_scheduler.ReduceLROnPlateau(optimizer), "by losses of the run"),
        (lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10), "cycle_momentum=False"),
        ("cosine", "no scheduler of torch.optim"),
        (lr_scheduler.StepLR(optim.SGD(module.parameters(), lr=1.0), 2), "another optimizer"),
        (lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step), "rates below 0"),
    ]
    for scheduler, reason in cases:
        call = functools.partial(read_optimizer, module, optimizer, scheduler, 9)
        assert reason in find_reasons(call)


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([], "steps must increase from 0"),
        ([[1, 1]], "steps must increase from 0"),
        ([[0, 1], [0, 0]], "steps must increase from 0"),
        ([[0, 2]], r"factors must lie in \[0, 1\]"),
        ([[0, 1, 2]], "must be a list of"),
        ([["0", 1]], "must be a list of"),
        (3, "must be a list of"),
        ([[step, 1] for step in range(513)], "are 513, more than 512"),
    ],
)
def test_points_that_are_none_are_refused(points: Any, reason: str) -> None:
    top = Table({"schedule": {"kind": "points", "points": points}}, ("schedule",), "")
    with pytest.raises(TaskError, match=reason):
        parse_schedule(top, Fraction(1), 10)


# --- losses


class Tempered(nn.CrossEntropyLoss):
    """A loss of the user's own, under a name that is known."""

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().forward(logits / 10, labels)


def test_losses_and_what_their_gradients_are_of_the_tasks() -> None:
    hooked = nn.MSELoss()
    hooked.register_forward_hook(lambda module, inputs, output: output / 10)
    cases: list[tuple[Any, Loss, Fraction]] = [
        ("mse", Loss("mse"), Fraction(1)),
        (nn.MSELoss(), Loss("mse", None, "mean"), Fraction(2, 6)),
        (
            functools.partial(functional.mse_loss, reduction="sum"),
            Loss("mse", None, "sum"),
            Fraction(10),
        ),
        (functional.cross_entropy, Loss("cross_entropy", -100, "mean"), Fraction(6, 4)),
        (
            nn.CrossEntropyLoss(ignore_index=7, reduction="sum"),
            Loss("cross_entropy", 7, "sum"),
            Fraction(30),
        ),
    ]
    for given, loss, factor in cases:
        assert read_loss(given) == loss
        assert loss.compute_factor(batch=5, places=6, counted=4) == factor
    for refused, reason in (
        (nn.L1Loss(), "Instead: nn.MSELoss()"),
        (nn.CrossEntropyLoss(reduction="none"), "no number to train by"),
        (functools.partial(functional.cross_entropy, label_smoothing=0.1), "label_smoothing"),
        (functools.partial(functional.mse_loss, weight=torch.ones(3)), "mse_loss, weight"),
        (functools.partial(functional.mse_loss, torch.ones(3)), "is no loss that can be had"),
        (Tempered(), "is no loss that can be had"),
        (hooked, "has hooks"),
        (lambda logits, y: logits.sum(), "is no loss that can be had"),
    ):
        assert reason in find_reasons(functools.partial(read_loss, refused))


# --- data


PLAIN = Wanted((3,), takes_ids=False, has_classes=True, ignored=-100)
LANGUAGE = Wanted((3,), takes_ids=True, has_classes=True, ignored=-100)


class Listed(Dataset[Any]):
    """Samples of a list; ``noise`` is added to each, and the length grows by ``growth``."""

    def __init__(self, items: list[Any], *, noise: bool = False, growth: int = 0) -> None:
        self.items, self.noise, self.growth = items, noise, growth
        self.asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return len(self.items) + self.growth * (self.asked - 1)

    def __getitem__(self, index: int) -> Any:
        x, y = self.items[index]
        return (x + np.random.default_rng().normal(), y) if self.noise else (x, y)


def test_all_forms_of_one_dataset_have_one_root() -> None:
    pairs = [(row, int(label)) for row, label in zip(ROWS, LABELS, strict=True)]
    forms: list[Any] = [
        (ROWS, LABELS),
        [torch.tensor(ROWS), torch.tensor(LABELS)],
        TensorDataset(torch.tensor(ROWS), torch.tensor(LABELS)),
        Listed(pairs),
        {"x": ROWS, "label": LABELS},
        Listed([(torch.tensor(row), torch.tensor(label)) for row, label in pairs]),
    ]
    found = [load(form, None, PLAIN).samples for form in forms]
    assert len({samples.spec for samples in found}) == 1
    spec = found[0].spec
    assert (spec.x_dtype, spec.x_shape, spec.y_dtype, spec.y_shape) == ("i16", (3,), "i32", ())
    # The finest exponent at which the largest, 15/14, fits.
    assert spec.x_exponent == 14
    values = np.ldexp(found[0].part("x").astype(np.float64), -14)
    assert np.abs(values - ROWS).max() <= 2.0**-15


def test_whole_numbers_stay_and_a_named_column_is_taken() -> None:
    pixels = (np.arange(12) * 20).astype(np.int64).reshape(4, 3)
    loaded = load((pixels, LABELS), (pixels * 2, LABELS), PLAIN)
    assert (loaded.samples.spec.x_dtype, loaded.samples.spec.x_exponent) == ("u8", 0)
    assert loaded.test is not None
    assert loaded.test.part("x").max() == 255
    assert loaded.notes == ("5 inputs of test are beyond those of data, and held to them",)
    named = Wanted((3,), False, True, None, columns=("a", "b"))
    columns = {"a": pixels, "b": LABELS, "x": pixels + 1}
    assert load(columns, None, named).samples.spec == loaded.samples.spec


NUMBERS = Wanted((3,), takes_ids=False, has_classes=False, ignored=None)


def make_normal(samples: int = 64, columns: int = 12) -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).normal(size=(samples, columns)).astype(np.float32)


def test_one_value_that_leaves_the_others_no_bits_is_refused_by_its_place() -> None:
    x, y = make_normal(), make_normal(64, 1)
    x[63, 5] = 1e7
    reasons = find_reasons(functools.partial(load, (x, y), None, NUMBERS))
    assert "data: inputs: have 767 non-zero values of 768 that would become 0" in reasons
    assert "1e+07 in sample 63, column 5 of data" in reasons
    assert "Instead: scale each column, or clip it" in reasons
    y[9] = -1e9
    both = find_reasons(functools.partial(load, (x, y), None, NUMBERS))
    assert "targets: have 63 non-zero values of 64" in both
    assert "-1e+09 in sample 9, column 0" in both
    # What is measured on is held to the scale of data.
    tiny = (make_normal() * 1e-6, make_normal(64, 1))
    of_test = find_reasons(
        functools.partial(load, (make_normal(), make_normal(64, 1)), tiny, NUMBERS)
    )
    assert "test: inputs: have 768 non-zero values of 768" in of_test
    images = np.zeros((4, 2, 3, 3), np.float32) + 1
    images[2, 1, 0, 2] = 1e6
    assert "sample 2, column [1, 0, 2]" in find_reasons(
        functools.partial(load, (images, LABELS), None, PLAIN)
    )


def test_few_bits_are_noted_by_their_column() -> None:
    y = make_normal(64, 1)
    x = make_normal()
    x[:, 5] *= 1000
    x[:, 7] *= 0.01
    typical, note = load((x, y), None, NUMBERS).notes
    assert "half of the non-zero values keep" in typical
    assert "inputs of data: the largest values of the column 7 (no bits) keep few bits" in note
    assert "column 5 of data sets the scale of all" in note
    x = make_normal()
    x[3, 2] = 1000
    (note,) = load((x, y), None, NUMBERS).notes
    assert note.startswith("inputs of data: half of the non-zero values keep 5 bits: 1000 in")
    # A scale of its own is no matter, as long as all have it; nor are zeros.
    x = make_normal() * 1e-5
    x[:, 3] = 0
    assert load((x, y), None, NUMBERS).notes == ()


def test_ordinary_data_are_not_noted() -> None:
    rng = np.random.default_rng(2)
    image = rng.integers(0, 256, (16, 1, 6, 6))
    image[:, :, 0, 0] = 1
    uniform = rng.random((64, 12), np.float32)
    one_hot = np.eye(64, dtype=np.float32)
    for x in (make_normal(), uniform, image / 255, image, one_hot, image * 10**6):
        for y in (make_normal(len(x), 1), np.arange(len(x)) / len(x)):
            assert load((x, y), (x[:4], y[:4]), NUMBERS).notes == ()


def test_labels_that_are_the_ids_are_moved_by_one_place() -> None:
    ids = np.array([[1, 2, 3], [4, 5, 6]])
    given = load({"input_ids": ids, "labels": ids}, None, LANGUAGE)
    alone = load({"input_ids": ids}, None, LANGUAGE)
    assert given.samples.spec == alone.samples.spec
    assert given.samples.part("y").tolist() == [[2, 3, -100], [5, 6, -100]]
    assert (given.places, given.counted, given.has_ignored) == (3, 2, True)
    assert "next one as its label" in given.notes[0]
    masked = np.where(ids == 2, 2, -100)  # of a model that fills gaps
    kept = load({"input_ids": ids, "labels": masked * (ids != 0)}, None, LANGUAGE)
    assert kept.counted is None or kept.places != kept.counted


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "u4", "i8", ">i4"])
def test_tokens_are_windows_of_one_array(dtype: str) -> None:
    tokens = (np.arange(20) % 7).astype(dtype)
    loaded = load(tokens, None, LANGUAGE, validation=0.25)
    assert loaded.samples.gather("x", np.array([1])).tolist() == [[1, 2, 3]]
    assert loaded.samples.gather("y", np.array([1])).tolist() == [[2, 3, 4]]
    assert loaded.samples.spec.samples == 12  # of 15 tokens
    assert loaded.test is not None
    assert loaded.test.gather("x", np.array([0])).tolist() == [[1, 2, 3]]
    assert loaded.test.spec.samples == 1


class Doubled(TensorDataset):
    """A transform of the user's own over tensors."""

    def __getitem__(self, index: int) -> Any:
        x, y = (tensor[index] for tensor in self.tensors)
        return 2 * x, y


class Reused(Listed):
    """Samples that are all given in one array."""

    def __getitem__(self, index: int) -> Any:
        self.row = getattr(self, "row", np.zeros(3))
        self.row[:] = self.items[index][0]
        return self.row, 0


class Flipped(Listed):
    """Each sample but the first as it is or backwards."""

    def __getitem__(self, index: int) -> Any:
        x, y = self.items[index]
        return (x[::-1] if index and np.random.default_rng().random() < 0.5 else x), y


def test_a_set_of_tensors_with_a_transform_is_read_through_it() -> None:
    rows = torch.tensor(ROWS)
    found = load(Doubled(rows, torch.tensor(LABELS)), None, PLAIN)
    assert found.samples.spec.root == load((2 * rows, LABELS), None, PLAIN).samples.spec.root


def test_samples_that_are_no_numbers_twice_are_said_to_be_so() -> None:
    rows = [torch.tensor(ROWS[0]), torch.full((3,), math.nan)]
    data = Listed([(row.bfloat16(), 0) for row in rows])
    assert "NaN or infinite in sample 1" in find_reasons(lambda: load(data, None, PLAIN))


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(ROWS[0], 0)])


REFUSED_DATA: dict[str, tuple[Any, str]] = {
    "a loader": (DataLoader(TensorDataset(torch.tensor(ROWS))), "chooses the order of samples"),
    "a stream": (Streamed(), "has no number of samples"),
    "a number": (3, "nothing that samples can be read from"),
    "random": (Listed([(ROWS[0], 0)], noise=True), "another sample 0 each time"),
    "flipped at random": (
        Flipped([(np.arange(3.0), 0)] * 99),
        "each time it is asked",
    ),
    "one array for all": (Reused([(row, 0) for row in ROWS]), "changes sample 0 while it gives"),
    "sparse": ((torch.eye(3).to_sparse(), LABELS[:3]), "cannot be read: "),
    "without values": ((torch.zeros(2, 3, device="meta"), LABELS[:2]), "cannot be read: "),
    "masked": ((np.ma.masked_array(ROWS, ROWS > 0), LABELS), "has masked elements"),
    "samples of three": ([(ROWS[0], 0, 1)], "of type tuple of 3"),
    "growing": (Listed([(ROWS[0], 0)] * 9, growth=-1), "had 9 samples and then"),
    "ragged": (Listed([(ROWS[0], 0), (ROWS[0][:2], 0)]), "has samples of 2 shapes"),
    "text": ((np.array(["a", "b"]), LABELS[:2]), "which is no number"),
    "columns": ({"p": ROWS, "q": LABELS}, "is not clear"),
    "labels with a half": ((ROWS, LABELS + 0.5), "labels are whole numbers"),
    "tokens for a model of floats": (np.arange(9), "is tokens, of which a model that takes ids"),
    "three tensors": (TensorDataset(*[torch.tensor(LABELS)] * 3), "inputs and targets"),
    "one array more": ((ROWS, LABELS[:3]), "samples: are 4 inputs and 3 targets"),
    "beyond int32": ((ROWS, LABELS + 2**40), "targets: are beyond int32 in 4 places"),
    "empty": (Listed([]), "Listed: has no samples"),
    "empty arrays": ((ROWS[:0], LABELS[:0]), "samples: are none"),
}


@pytest.mark.parametrize("case", REFUSED_DATA)
def test_data_that_no_task_can_have_is_refused(case: str) -> None:
    data, reason = REFUSED_DATA[case]
    assert reason in find_reasons(lambda: load(data, None, PLAIN))


def test_all_values_that_cannot_be_taken_are_named_with_their_sample() -> None:
    wrong = ROWS.copy()
    wrong[2, 1] = np.nan
    found = find_reasons(lambda: load((wrong, LABELS + 0.5), (wrong[1:], LABELS[1:] / 2), PLAIN))
    assert [line.partition(". Instead")[0] for line in found.splitlines()] == [
        "data: inputs: are NaN or infinite in sample 2",
        "data: targets: are floats, and labels are whole numbers",
        "test: inputs: are NaN or infinite in sample 1",
        "test: targets: are floats, and labels are whole numbers",
    ]
    found = find_reasons(lambda: load(np.arange(3), np.arange(2), LANGUAGE))
    assert found.count("tokens: are too few for one window of 3") == 2


def test_validation_is_a_share_of_tokens() -> None:
    for data, test, share in (
        ((ROWS, LABELS), None, 0.1),
        (np.arange(20), np.arange(20), 0.1),
        (np.arange(20), None, 1.5),
    ):
        wanted = LANGUAGE if isinstance(data, np.ndarray) else PLAIN
        assert "validation" in find_reasons(functools.partial(load, data, test, wanted, share))
