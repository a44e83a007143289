"""Modules of PyTorch: imported under their own names, or refused by path, all at once."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torchvision.ops import FrozenBatchNorm2d, StochasticDepth

from tests.graph.test_onnx_import import run_integers
from tests.modules import (
    IMAGE,
    PLACES,
    Cnn,
    Gpt,
    Mixer,
    make_gpt2,
    make_ids,
    make_llama,
    make_mlp,
)
from vtrain.errors import Problem, UnsupportedError
from vtrain.graph import model
from vtrain.graph.from_torch import hold, translate
from vtrain.graph.from_torch.module import Imported, import_module
from vtrain.graph.model import Activation, Dropout, FixedNorm, Linear
from vtrain.graph.onnx_import import import_onnx
from vtrain.graph.weights import compute_state_dict, export_onnx


def import_seeded(make: Callable[[], nn.Module], example: torch.Tensor) -> tuple[Imported, Any]:
    torch.manual_seed(5)
    module = make()
    return import_module(module, example), module


def assert_same_values(
    found: Imported, module: nn.Module, x: torch.Tensor, *, training: bool = False
) -> None:
    """The integers agree with the module in use, or in training, to a hundredth of the largest
    output."""
    with torch.no_grad():
        given = module.train(training)(x)
    expected = getattr(given, "logits", given).detach().numpy()
    numbers = run_integers(found.model, x.numpy())
    assert numbers.shape == expected.shape
    assert np.abs(numbers - expected).max() < 1e-2 * np.abs(expected).max()


CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "mlp": (make_mlp, torch.linspace(-1, 1, 20).view(4, 5)),
    "cnn": (Cnn, torch.sin(torch.arange(4 * 36.0)).view(4, *IMAGE)),
    "mixer": (Mixer, torch.sin(torch.arange(4 * 36.0)).view(4, *IMAGE)),
    "gpt": (lambda: Gpt(0.1), make_ids()),
    "gpt2": (make_gpt2, make_ids()),
    "llama": (make_llama, make_ids()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_module_is_imported_under_its_names_and_computes_the_same(case: str) -> None:
    make, x = CASES[case]
    found, module = import_seeded(make, x)
    names = [name for name, _ in module.named_parameters()]
    assert sorted(found.model.trained) == sorted(names)
    assert found.trainable == set(names)
    assert_same_values(found, module, x)
    # The file alone gives the same.
    again = import_onnx(found.data)
    assert again.layers == found.model.layers
    assert list(again.params) == list(found.model.params)


class Computed(nn.Module):
    """A linear layer under a name, and a function after it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 4))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.part(x))


class Over(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Scaled(nn.Module):
    """Layers beside each other, with scales of channels, of features, of all, and a token of its
    own before and after the others."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.by_channels = nn.Parameter(torch.linspace(-1, 1, 6).view(6, 1, 1))
        self.to_channels = nn.Parameter(torch.linspace(1, -1, 6).view(1, 6, 1, 1))
        self.by_features = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.by_all = nn.Parameter(torch.tensor(0.75))
        self.first = nn.Parameter(torch.sin(torch.arange(6.0)).view(1, 1, 6))
        self.last = nn.Parameter(torch.cos(torch.arange(12.0)).view(1, 2, 6))
        self.places = nn.Parameter(torch.sin(torch.arange(114.0) ** 2).view(1, 19, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.wide(x), functional.silu(self.deep(x))], dim=1)
        x = self.by_channels * x + self.to_channels
        x = x.flatten(2).transpose(1, 2) * self.by_features * self.by_all
        batch = x.shape[0]
        tokens = self.first.expand(batch, -1, -1), x, self.last.repeat(batch, 1, 1)
        return torch.cat(tokens, dim=1) + self.places


class Passed(nn.Module):
    """A layer in a module that hands on whatever it is given, and switches gradients on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return self.inner(*args, **kwargs)  # type: ignore[no-any-return]


class Gated(nn.Module):
    """Channels times what a small net makes of their means, and numbers beside values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.gate = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images."""
        x = self.conv(x)
        gate = 1 - torch.sigmoid(self.gate(x.sum((2, 3)) / 20) + 0.5)
        return -0.5 * x * gate[:, :, None, None] + (x - 1).abs()


class Twice(nn.Module):
    """A layer of two values, of one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(8, 8), layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Places that attend to what came before."""
        return self.layer(self.first(x), x)  # type: ignore[no-any-return]


class Across(nn.Module):
    """Three places attend to five of other widths."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, bias=False, kdim=6, vdim=4, batch_first=True)
        self.keys, self.values = nn.Linear(8, 6), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, 3, 8]."""
        mixed, _ = self.attend(x[:, :3], self.keys(x), self.values(x))
        return mixed  # type: ignore[no-any-return]


class Numbers(nn.Module):
    """Each number of a sample is a place of features, as tables become tokens; the largest of all
    places, and of all features."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.sin(torch.arange(20.0)).view(5, 4))
        self.shift = nn.Parameter(torch.cos(torch.arange(20.0)).view(1, 5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[..., None] * self.scale + self.shift
        along, across = x.max(dim=1).values, x.max(-1, keepdim=True)[0]
        return torch.cat([along, across.flatten(1), x[:, -1]], dim=1)


class More(nn.Module):
    """A norm and a product by a parameter plus a number, as Gemma's norms have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.linspace(-1, 1, 6))
        self.gain = nn.Parameter(torch.linspace(0, 1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (0.5 + self.gain) * (x * (1.0 + self.scale.float()))


class Pair(nn.Module):
    """One layer of both halves of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[:, 0]) - self.layer(x[:, 1])  # type: ignore[no-any-return]


def make_detector() -> nn.Module:
    """With norms as detection has them: buffers that nothing changes."""
    norm = FrozenBatchNorm2d(4)
    with torch.no_grad():
        for number, buffer in enumerate(norm.buffers()):
            buffer.copy_(torch.linspace(0.5, 2, 4) + number)
    return nn.Sequential(nn.Conv2d(2, 4, 1), norm, nn.ReLU())


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "scales and tokens": (Scaled, (3, 4, 4)),
    "batch norm": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU6()),
            *(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5, affine=False)),
        ),
        (3, 4, 4),
    ),
    "norms of groups and of channels, and a gate": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, 1), nn.GroupNorm(3, 6), nn.GLU(dim=1)),
            *(nn.InstanceNorm2d(3), nn.InstanceNorm2d(3, affine=True)),
        ),
        (3, 4, 4),
    ),
    "a linear layer over the width of an image": (
        lambda: nn.Sequential(
            nn.Linear(5, 6), nn.MaxPool2d(2), nn.Linear(3, 4), nn.Conv2d(2, 3, 2)
        ),
        (2, 4, 5),
    ),
    "groups and dilation": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 8, 3, groups=8, stride=2),
        ),
        (4, 6, 6),
    ),
    "adaptive pools": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 3, 1), nn.AdaptiveAvgPool2d((7, 4)), nn.AdaptiveMaxPool2d((3, 4))),
            nn.AdaptiveAvgPool2d((5, 2)),
        ),
        (3, 1, 7),
    ),
    "lines": (
        lambda: nn.Sequential(
            *(nn.Conv1d(3, 4, 3, padding=1, groups=1), nn.MaxPool1d(2), nn.BatchNorm1d(4)),
            *(nn.Conv1d(4, 4, 2, dilation=2, groups=2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(3)),
        ),
        (3, 12),
    ),
    "parts of nets that draw": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=1), nn.PReLU(4), nn.ConvTranspose2d(4, 4, 2, stride=2)),
            *(nn.ELU(0.5), nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1), nn.SELU()),
            *(nn.Upsample(scale_factor=(2, 1)), nn.CELU(2.0), nn.PixelUnshuffle(4), nn.PReLU()),
            *(nn.ChannelShuffle(4), nn.Conv2d(64, 8, 1), nn.Hardswish(), nn.PixelShuffle(2)),
        ),
        (2, 2, 4),
    ),
    "lines that grow": (
        lambda: nn.Sequential(
            *(nn.ConvTranspose1d(3, 4, 3, stride=2), nn.Hardsigmoid(), nn.Upsample(scale_factor=3)),
        ),
        (3, 4),
    ),
    "a gate of channels": (Gated, (3, 4, 5)),
    "functions that no layer has": (
        lambda: Computed(
            lambda x: torch.rsub(functional.relu6(6 * x), functional.relu6(3 - x), alpha=2)
        ),
        (4,),
    ),
    "functions by their other names": (
        lambda: Computed(
            lambda x: torch.hstack(
                [
                    torch.clip(torch.multiply(x, x), -1, 1) + x.square(),
                    torch.concatenate([torch.absolute(x[:, :1]), torch.negative(x[:, 1:])], dim=1),
                    torch.divide(torch.subtract(x, 0.5, alpha=2), 2).clamp_max(0.25),
                    torch.true_divide(x, 4).clamp_min(0.0),
                ]
            )
        ),
        (4,),
    ),
    "numbers as tokens, and the largest": (Numbers, (5,)),
    "two parts of the input": (Pair, (2, 4)),
    "the largest of an image's rows": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), Over(lambda x: x.max(2).values)),
        (2, 5, 4),
    ),
    "pools that end outside": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 3, 1), nn.MaxPool2d(3, stride=2, ceil_mode=True)),
            *(nn.Conv2d(3, 3, 1), nn.MaxPool2d((2, 3), stride=3, padding=(0, 1), ceil_mode=True)),
        ),
        (2, 8, 9),
    ),
    "a scale that is one more": (More, (4, 6)),
    "a part of no elements": (
        lambda: Computed(lambda x: torch.cat([x[:, 4:].contiguous(), torch.relu(x)], dim=1)),
        (4,),
    ),
    "arguments in a tuple": (Passed, (4,)),
    "parts before the batch": (
        lambda: Computed(
            lambda x: (
                sum(
                    one * (number + 1)
                    for number, one in enumerate(x.view(-1, 3, 2, 2).permute(1, 0, 3, 2).unbind(0))
                )
                + x.view(-1, 3, 2, 2).permute(1, 0, 2, 3)[-1]
            )
        ),
        (3, 4),
    ),
    "torch's own decoder": (
        lambda: Twice(nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True)),
        (5, 8),
    ),
    "attention between widths": (Across, (5, 8)),
    "torch's own transformer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True),
            nn.TransformerEncoderLayer(
                8, 2, 12, 0.0, functional.gelu, batch_first=True, norm_first=True
            ),
        ),
        (5, 8),
    ),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers_are_made_of_operators_that_are_there(case: str) -> None:
    make, shape = LAYERS[case]
    x = torch.sin(torch.arange(4.0 * np.prod(shape)) ** 1.3).view(4, *shape)
    found, module = import_seeded(make, x)
    names = [name for name, _ in module.named_parameters()]
    assert sorted(found.model.trained) == sorted(names)
    assert_same_values(found, module, x, training=True)


def test_norms_of_detection_are_constants() -> None:
    x = torch.linspace(-1, 2, 72).view(4, 2, 3, 3)
    found, module = import_seeded(make_detector, x)
    assert found.trainable == {"0.weight", "0.bias"}
    assert_same_values(found, module, x)


def test_a_kind_of_tokens_that_all_places_have_is_one_row() -> None:
    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.kinds = nn.Embedding(9, 4), nn.Embedding(2, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.words(ids) + self.kinds(torch.zeros_like(ids))  # type: ignore[no-any-return]

    ids = torch.arange(12).view(3, 4) % 9
    found, module = import_seeded(Kinds, ids)
    assert found.model.params["kinds.weight"].shape == (2, 4)
    assert_same_values(found, module, ids)
    # The row has no batch, which the exported file may not say either.
    exported = onnx.load_from_string(export_onnx(found.data, found.model, found.model.params))
    onnx.shape_inference.infer_shapes(exported, strict_mode=True)


def test_rows_are_looked_up_along_the_places_alone() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.rows = nn.Linear(4, 4), nn.Embedding(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x) + self.rows(torch.arange(4)[:, None])  # type: ignore[no-any-return]

    (problem,) = find_problems(Rows(), torch.ones(2, 4, 4, 4))
    assert "along another axis" in problem.reason


def test_the_same_module_is_the_same_file() -> None:
    one, two = (import_seeded(make_mlp, torch.zeros(2, 5))[0] for _ in range(2))
    assert one.data == two.data


def test_the_example_batch_is_no_part_of_the_file() -> None:
    one, two = (import_seeded(lambda: Gpt(0.1), make_ids(batch))[0] for batch in (1, 5))
    assert one.data == two.data


def test_a_shared_layer_is_one_parameter_and_two_values() -> None:
    module = make_mlp()
    before = [*module.parameters()]
    found = import_module(module, torch.zeros(2, 5))
    assert all(one is other for one, other in zip(module.parameters(), before, strict=True))
    shared = [layer for layer in found.model.layers if isinstance(layer, Linear)]
    assert [layer.weight for layer in shared].count("2.weight") == 2
    assert len({layer.name for layer in found.model.layers}) == len(found.model.layers)


def test_a_shared_norm_of_ones_is_one_parameter() -> None:
    norm = nn.LayerNorm(4)
    module = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4), norm, nn.LayerNorm(4))
    model = import_module(module, torch.zeros(2, 4)).model
    assert [name for name in model.trained if name.startswith(("1.", "3.", "4."))] == [
        *("1.weight", "1.bias", "4.weight", "4.bias")
    ]


def test_dropout_is_that_of_training_whatever_the_mode_and_modes_are_put_back() -> None:
    module = Gpt(0.25)
    module.eval()
    module.norm.train()
    found = import_module(module, make_ids())
    kept = [layer.keep for layer in found.model.layers if isinstance(layer, Dropout)]
    assert kept == [3 * 2**14] * 4  # of attention's weights and of its output, in two blocks
    assert any("the module was in eval mode" in note for note in found.notes)
    assert not module.training
    assert not module.blocks[0].training
    assert module.norm.training


def test_dropout_in_place_is_dropout() -> None:
    dropout = nn.Dropout(0.25, inplace=True)
    module = nn.Sequential(nn.Linear(4, 4), dropout, nn.Linear(4, 4))
    found = import_module(module, torch.linspace(-1, 1, 8).view(2, 4))
    assert [one.keep for one in found.model.layers if isinstance(one, Dropout)] == [3 << 14]
    assert dropout.inplace


def test_parts_in_eval_mode_are_left_so_and_named() -> None:
    module = Gpt(0.25)
    module.blocks[1].eval()
    found = import_module(module, make_ids())
    assert sum(isinstance(layer, Dropout) for layer in found.model.layers) == 2
    (note,) = [note for note in found.notes if "eval mode" in note]
    assert note == "in eval mode, and left so, so that nothing is dropped: blocks.1"


def test_parts_in_eval_mode_of_a_module_in_training_stay_so() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.5))
    module[1].eval()
    found = import_module(module, torch.zeros(2, 4))
    assert [layer.name for layer in found.model.layers if isinstance(layer, Dropout)] == ["2"]


class Written(nn.Module):
    """GELU in parts."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.fc = form, nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        if self.form == "erf":
            return x * 0.5 * (1.0 + torch.erf(x / 1.4142135623730951))
        if self.form == "product":
            return 0.5 * (x * (1 + torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x))))
        cubic = x + 0.044715 * torch.pow(x, 3.0)
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * cubic))


@pytest.mark.parametrize(
    ("form", "kind"), [("erf", "gelu"), ("product", "gelu_tanh"), ("power", "gelu_tanh")]
)
def test_gelu_in_parts(form: str, kind: str) -> None:
    x = torch.linspace(-3, 3, 20).view(4, 5)
    found, module = import_seeded(lambda: Written(form), x)
    assert [layer.kind for layer in found.model.layers if isinstance(layer, Activation)] == [kind]
    assert_same_values(found, module, x)


def test_buffers_are_constants_and_frozen_parameters_no_trainable_ones() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 4)
            self.fc1.weight.requires_grad_(False)
            self.register_buffer("shift", torch.tensor([0.25, 0.5, 1.0, 2.0]))
            self.unused = nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(self.fc1(x) + self.shift)  # type: ignore[no-any-return]

    x = torch.linspace(-1, 1, 12).view(3, 4)
    found, module = import_seeded(Shifted, x)
    assert found.trainable == {"fc1.bias", "fc2.weight", "fc2.bias"}
    assert "shift" in found.model.params
    assert any("unused" in note for note in found.notes)
    assert_same_values(found, module, x)


def test_more_positions_than_places_are_trained_as_far_as_they_are_read() -> None:
    found, module = import_seeded(lambda: Gpt(positions=PLACES + 3), make_ids())
    assert found.model.params["wpe.weight"].shape[0] == PLACES + 3
    assert_same_values(found, module, make_ids())


# --- refusals


def find_problems(module: nn.Module, *example: Any) -> list[Problem]:
    with pytest.raises(UnsupportedError) as caught:
        import_module(module, example)
    assert str(len(caught.value.problems)) in str(caught.value) or len(caught.value.problems) == 1
    assert all(problem.instead for problem in caught.value.problems)
    return list(caught.value.problems)


class Odd(nn.Module):
    """Several things that cannot be had, in several places."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(4, 4), nn.Softplus()),
                nn.Sequential(nn.Linear(4, 4), nn.Softplus()),
                nn.Linear(4, 4),
            ]
        )
        self.gamma = nn.Parameter(torch.ones(4))
        with torch.no_grad():
            dict(self.named_parameters())["layers.2.weight"][1, 2] = 128.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.cumsum(x * (self.gamma * 2), dim=1)


def test_all_problems_are_named_at_once_by_path() -> None:
    problems = find_problems(Odd(), torch.zeros(2, 4))
    assert [(problem.path, problem.what) for problem in problems] == [
        ("", "aten.cumsum of Odd"),
        ("", "aten.mul of Odd"),
        ("layers.0.1", "aten.softplus of Softplus"),
        ("layers.1.1", "aten.softplus of Softplus"),
        ("layers.2.weight", "parameter"),
    ]
    assert "'gamma'" in problems[1].reason
    assert problems[2].instead == "nn.SiLU or nn.ELU"
    assert "element [1, 2]" in problems[4].reason


def overwrite(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x[:, 1:] *= 2
    return x


REFUSALS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "loop": (lambda x: x / 2 if float(x.max()) > 1 else x, "decides by the values of its input"),
    "data": (lambda x: x + x.data, "behind the back of autograd"),
    "control flow": (lambda x: x if x.sum() > 0 else -x, "decides by the values of its input"),
    "detach": (lambda x: x + x.detach(), "stops the gradient"),
    "random": (lambda x: x + torch.rand_like(x), "draws random numbers"),
    "one batch": (lambda x: x.view(2, 4), "works for one size of the batch alone"),
    "place in the batch": (
        lambda x: x + torch.arange(x.shape[0], dtype=torch.float32)[:, None],
        "a sample's place in it",
    ),
    "across the batch": (lambda x: x - x.mean(dim=0, keepdim=True), "without the batch"),
    "transposed batch": (lambda x: x.t() @ x, "must stay the first axis"),
    "bounds of its own": (
        lambda x: torch.clamp(x, x.new_zeros(4), x + 1),
        "bounds that are computed",
    ),
    "largest of the batch": (lambda x: x - x.max(0, keepdim=True).values, "over the batch"),
    "largest of all": (lambda x: x - x.max(), "the largest of all values"),
    "largest of two": (lambda x: torch.maximum(x, -x), "is not supported"),
    "largest of each sample": (lambda x: x.max(1).values, "one number for each sample"),
    "a part of no elements": (lambda x: x * x[:, 4:].sum(1, keepdim=True), "of no elements"),
    "a power of 2": (lambda x: 2**x, "an exponent that is computed"),
    "pools over the batch": (
        lambda x: functional.max_pool2d(x[..., None].expand(-1, -1, 4), 2).flatten(1),
        "takes the batch for the channels",
    ),
    "more places than a factor says": (
        lambda x: functional.interpolate(x.view(-1, 2, 2), scale_factor=3.4).flatten(1),
        "makes 6 places of 2",
    ),
    "softmax at the end": (lambda x: functional.softmax(x, dim=-1), "is part of the loss"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_would_change_meaning_is_refused(case: str) -> None:
    function, reason = REFUSALS[case]
    (problem,) = find_problems(Computed(function), torch.ones(2, 4))
    assert reason in problem.reason


def test_dropout_of_whole_channels_is_not_taken_for_that_of_elements() -> None:
    problems = find_problems(nn.Sequential(nn.Conv1d(4, 4, 1), nn.Dropout1d()), torch.ones(2, 4, 3))
    assert {problem.path for problem in problems} == {"1"}
    assert "draws random numbers" in problems[0].reason


def test_a_part_that_is_overwritten_is_named() -> None:
    problems = find_problems(Computed(overwrite), torch.ones(2, 4))
    assert {problem.what for problem in problems} >= {"aten.slice_scatter of Computed"}
    assert all("in place" in problem.reason for problem in problems)


class Reversed(torch.autograd.Function):
    """Values as they are, gradients negated."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


def tripled(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda gradient: 3 * gradient)  # type: ignore[no-untyped-call]
    return y


def reused(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x * 0.5
    return x + scale


@pytest.mark.parametrize("function", [Reversed.apply, tripled, reused])
def test_a_gradient_that_is_not_that_of_the_values_is_refused_where_it_begins(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """None of these is in what torch captures."""
    module = nn.Sequential(nn.Linear(4, 4), Computed(function), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    (problem,) = find_problems(module, torch.zeros(2, 4))
    assert (problem.path, problem.what) == ("1.part.0", "Linear, gradient of bias")
    assert "in 4 of 6 parameters" in problem.reason
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class Hidden(nn.Module):
    """A function behind a layer that begins as zeros, or as a scale of 10^-6."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], *, scaled: bool) -> None:
        super().__init__()
        self.body, self.head, self.function = nn.Linear(4, 4), nn.Linear(4, 2), function
        self.scale = nn.Parameter(torch.full((4,), 1e-6)) if scaled else None
        if not scaled:
            nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is not None:
            return self.head(x + self.scale * self.function(self.body(x)))  # type: ignore[no-any-return]
        return self.head(self.function(self.body(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("function", [Reversed.apply, tripled])
def test_a_gradient_is_not_hidden_by_small_parameters(
    function: Callable[[torch.Tensor], torch.Tensor], scaled: bool
) -> None:
    module = Hidden(function, scaled=scaled)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    problems = find_problems(module, torch.zeros(2, 4))
    assert [(one.path, one.what) for one in problems] == [("body", "Linear, gradient of bias")]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_values_that_differ_from_call_to_call_are_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.calls = nn.Linear(4, 4), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.fc(x) * self.calls  # type: ignore[no-any-return]

    module = Counting()
    (problem,) = find_problems(module, torch.zeros(2, 4))
    assert "other values the second time" in problem.reason
    assert module.calls == 0


class Annealed(nn.Module):
    """A factor that each call makes smaller, by ``rate``."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.fc, self.calls, self.rate = nn.Linear(4, 4), 0, rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.fc(x) * (1 - self.rate * self.calls)  # type: ignore[no-any-return]


def test_a_number_that_each_call_changes_is_named_if_it_counts() -> None:
    x = torch.linspace(-1, 1, 8).view(2, 4)
    module = nn.Sequential(nn.Linear(4, 4), Annealed(1e-5))
    (problem,) = find_problems(module, x)
    assert (problem.path, problem.what) == ("1", "attribute 1.calls")
    assert "is changed by each call" in problem.reason
    idle = Annealed(0.0)
    assert_same_values(import_module(idle, x), idle, x)
    assert idle.calls == 1


@pytest.mark.parametrize("draw", [random.random, np.random.random])
def test_draws_of_other_generators_are_refused(draw: Callable[[], float]) -> None:
    """As of layers that are left out at random: one call would stand for all."""
    module = Computed(lambda x: x if draw() < 0 else 2 * x)
    (problem,) = find_problems(module, torch.ones(2, 4))
    assert "random numbers of Python or numpy" in problem.reason


def make_weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4))


def make_pruned() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    prune.random_unstructured(module[0], "weight", 0.5)  # type: ignore[no-untyped-call]
    return module


def make_scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 4))


def make_complex() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_buffer("turns", torch.ones(2, dtype=torch.complex64))
    return module


REMEDIES: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "weight norm": (make_weight_norm, "by WeightNorm", "parametrize.remove_parametrizations"),
    "pruned": (make_pruned, "is computed by pruning", 'prune.remove(layer, "weight")'),
    "scripted": (make_scripted, "compiled by torch.jit", "the nn.Module that it was made of"),
    "complex": (make_complex, "of complex numbers", "as floats"),
    "no axis left": (
        lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
        "one number for each sample",
        "no squeeze(-1)",
    ),
    "rows that are rescaled": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Embedding(5, 4, max_norm=1.0)),
        "scales rows in the forward pass",
        "max_norm=None",
    ),
    "dropped wholly": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0)),
        "ratio must be",
        "a p of 0",
    ),
    "statistics that stay": (
        lambda: nn.BatchNorm1d(4, momentum=0.0),
        "momentum must be",
        "a momentum above 0",
    ),
    "logits of all places in one axis": (
        lambda: Computed(lambda x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, 2)),
        "",
        "no view(-1, classes)",
    ),
}


@pytest.mark.parametrize("case", REMEDIES)
def test_what_is_refused_has_a_remedy_of_its_own(case: str) -> None:
    make, reason, instead = REMEDIES[case]
    problem = find_problems(make(), torch.ones(2, 4))[0]
    assert reason in problem.reason
    assert instead in problem.instead


def test_columns_of_ids_are_told_what_reads_ids() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x[:, 0])  # type: ignore[no-any-return]

    problem = find_problems(Tables(), torch.ones(2, 4, dtype=torch.int64))[0]
    assert problem.instead == "one nn.Embedding of the whole input, whose columns share it"


def test_half_precision_that_is_lost_is_noted() -> None:
    x = torch.linspace(-1, 1, 8).view(2, 4)
    notes = import_module(Computed(lambda x: x.bfloat16().float()), x).notes
    assert notes == ("the module itself computes in bfloat16, whose rounding a task does not have",)
    module = Computed(torch.relu)
    module.register_buffer("unused", torch.zeros(2, dtype=torch.bfloat16))
    assert not import_module(module, x).notes


def test_gradients_of_a_small_gpt_are_held_against_torchs() -> None:
    found, _ = import_seeded(lambda: Gpt(0.1), make_ids())
    assert not [note for note in found.notes if "gradients" in note]


def test_small_whole_numbers_are_buffers_too() -> None:
    module = nn.Linear(4, 4)
    for dtype in (torch.uint8, torch.int8, torch.int16):
        module.register_buffer(str(dtype)[6:], torch.arange(3, dtype=dtype))
    found = import_module(module, torch.zeros(2, 4))
    back = compute_state_dict(found.data, found.model, found.model.params)
    assert back["int8"].dtype == np.int8
    assert back["uint8"].tolist() == back["int16"].tolist() == [0, 1, 2]


def test_frozen_parameters_that_are_folded_are_no_part_of_a_note() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).requires_grad_(False))
    x = torch.linspace(-1, 1, 12).view(3, 4) ** 2
    assert not [note for note in import_module(module, x).notes if "never trained" in note]


def test_hooks_on_gradients_are_named_and_those_of_the_forward_pass_are_taken() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    first.register_full_backward_hook(lambda *_: None)
    second.weight.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    problems = find_problems(nn.Sequential(first, second), torch.zeros(2, 4))
    assert [problem.path for problem in problems] == ["0", "1.weight"]
    first = nn.Linear(4, 4)
    first.register_forward_hook(lambda part, inputs, output: output * 2)
    module = nn.Sequential(first, nn.Linear(4, 4))
    x = torch.linspace(-1, 1, 8).view(2, 4)
    assert_same_values(import_module(module, x), module, x)


class Beside(nn.Module):
    """Ids go through a table and a part, then through layers one of which cannot be had."""

    def __init__(self, part: nn.Module, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, **options)
        self.part, self.odd = part, nn.Softplus()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.odd(self.part(self.table(x)))  # type: ignore[no-any-return]


def make_old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return nn.utils.weight_norm(nn.Linear(4, 3))


def make_hooked() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.register_full_backward_hook(lambda *_: None)
    return layer


BESIDE: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "lazy": (lambda: nn.LazyLinear(3), "LazyLinear", "call the module on an example once"),
    "parametrized": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        "Linear, weight",
        'parametrize.remove_parametrizations(layer, "weight")',
    ),
    "spectral": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
        "Linear, weight",
        'parametrize.remove_parametrizations(layer, "weight")',
    ),
    "old weight norm": (make_old_weight_norm, "Linear, weight", "remove_weight_norm(layer"),
    "pruned": (
        lambda: prune.random_unstructured(nn.Linear(4, 3), "bias", 0.5),  # type: ignore[no-untyped-call]
        "Linear, bias",
        'prune.remove(layer, "bias")',
    ),
    "samples that are dropped": (
        lambda: nn.Sequential(nn.Linear(4, 3), StochasticDepth(0.5, "row")),
        "StochasticDepth",
        "stochastic_depth_prob=0.0",
    ),
    "hook": (make_hooked, "Linear", "leave it out"),
    "norm": (
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(20, momentum=None)),
        "BatchNorm1d",
        "momentum=0.1",
    ),
}
"""Parts that are refused by what they are, and hide nothing."""


@pytest.mark.parametrize("case", BESIDE)
def test_what_is_refused_as_a_part_hides_nothing_that_comes_after(case: str) -> None:
    make, what, instead = BESIDE[case]
    part = make()
    module = Beside(part, sparse=True)
    kept = dict(module.named_parameters())
    problems = find_problems(module, torch.zeros(2, 5, dtype=torch.int64))
    assert [problem.path.partition(".")[0] for problem in problems] == ["table", "part", "odd"]
    assert problems[0].instead == "sparse=False"
    assert problems[1].what == what
    assert instead in problems[1].instead
    # The module is as it was given.
    assert all(one is kept[name] for name, one in module.named_parameters())
    assert all(norm.momentum is None for norm in part.modules() if isinstance(norm, nn.BatchNorm1d))
    assert bool(part._backward_hooks) == (case == "hook")


def make_quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated
        return torch.ao.nn.quantized.dynamic.Linear(4, 3)  # type: ignore[no-untyped-call]


BLOCKING: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "scripted": (make_scripted, "RecursiveScriptModule", "the nn.Module that it was made of"),
    "quantized": (make_quantized, "Linear", "the module of floats"),
    "lazy, of another shape": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.LazyLinear(3)),
        "LazyLinear",
        "call the module on an example once",
    ),
    "elsewhere": (lambda: nn.Linear(4, 3, device="meta"), "tensor", "initialise its values"),
}
"""Parts with which nothing can be captured."""


@pytest.mark.parametrize("case", BLOCKING)
def test_what_nothing_can_be_captured_with_is_said_with_all_that_is_known(case: str) -> None:
    make, what, instead = BLOCKING[case]
    module = Beside(make(), sparse=True)
    problems = find_problems(module, torch.zeros(2, 5, dtype=torch.int64))
    (named, *_) = [problem for problem in problems if problem.path.startswith("part")]
    assert named.what == what
    assert instead in named.instead
    assert "table" in [problem.path for problem in problems]
    assert problems[-1].path == ""
    assert "other problems may follow" in problems[-1].reason


def test_what_ends_a_capture_is_said_with_all_that_is_known() -> None:
    def choose(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    module = Beside(Computed(choose), sparse=True)
    problems = find_problems(module, torch.zeros(2, 5, dtype=torch.int64))
    assert [problem.path for problem in problems] == ["table", "part"]
    assert "decides by the values of its input" in problems[1].reason
    assert "others may follow" in problems[1].reason


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (torch.zeros(2, 5), "mat1 and mat2 shapes cannot be multiplied"),
        (torch.zeros(2, 4, dtype=torch.float64), "must have the same dtype"),
    ],
)
def test_an_example_that_the_module_does_not_take_is_named(
    example: torch.Tensor, reason: str
) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    (problem,) = find_problems(module, example)
    assert problem.path == "0"
    assert problem.reason.startswith("raises RuntimeError for the example: ")
    assert reason in problem.reason


def test_a_module_without_a_forward_pass_is_named() -> None:
    (problem,) = find_problems(nn.ModuleList([nn.Linear(4, 3)]), torch.zeros(2, 4))
    assert 'missing the required "forward"' in problem.reason
    assert problem.instead == "an example that the module takes: module(example)"


def test_the_module_inside_a_wrapper_is_looked_at() -> None:
    problems = find_problems(nn.DataParallel(Odd()), torch.zeros(2, 4))
    assert problems[0].instead == "the module inside: model.module"
    assert [problem.path for problem in problems[2:]] == [
        *("", "layers.0.1", "layers.1.1", "layers.2.weight")
    ]


def test_a_part_of_a_users_own_is_named_beside_what_makes_its_weight() -> None:
    """What its forward pass does is said too."""

    class Own(Odd):
        def __init__(self) -> None:
            super().__init__()
            nn.utils.parametrize.register_parametrization(self, "gamma", nn.Tanh())

    paths = [problem.path for problem in find_problems(Own(), torch.zeros(2, 4))]
    assert paths == ["", "", "layers.0.1", "layers.1.1", "layers.2.weight"]


def test_gradients_that_torch_cannot_compare_are_noted() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.embedding(x, self.table.weight, sparse=True)

    found = import_module(Sparse(), torch.zeros(2, 5, dtype=torch.int64))
    assert "not held against the module's own: NotImplementedError" in "".join(found.notes)


def test_half_precision_in_a_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a fault of the import."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.fc(x).float()  # type: ignore[no-any-return]

    monkeypatch.setattr(hold, "CLOSE", -1e9)  # Any distance is too far.
    (problem,) = find_problems(Half(), torch.ones(2, 4))
    assert "computes in bfloat16" in problem.instead
    assert "leave out torch.autocast" in problem.instead


def test_a_weight_before_the_root_of_a_norm_has_a_remedy() -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.w = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.fc(x)
            return self.w * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)

    (problem,) = find_problems(Early(), torch.ones(2, 4))
    assert problem.instead == "w * (x * torch.rsqrt(...)), or nn.RMSNorm"


def test_parameters_that_the_forward_pass_changes_are_named_and_stay() -> None:
    class Shrinking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.fc.weight.mul_(0.5)
            return self.fc(x)  # type: ignore[no-any-return]

    part = Shrinking()
    before = part.fc.weight.clone()
    problems = find_problems(nn.Sequential(part), torch.ones(2, 4))
    assert ("0.fc", "Linear, parameter weight") in [(one.path, one.what) for one in problems]
    assert torch.equal(part.fc.weight, before)


class Shared(nn.Module):
    """Two layers with a tensor each, which have memory in common."""

    def __init__(self, share: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        shared = share(self.a.weight)
        if isinstance(shared, nn.Parameter):
            self.b.weight = shared
        else:
            del self.b.weight
            self.b.register_buffer("weight", shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "share",
    [
        nn.Parameter,
        lambda weight: nn.Parameter(weight.detach().t()),
        lambda weight: nn.Parameter(weight.data),
        lambda weight: weight.detach(),
    ],
)
def test_tensors_that_share_memory_are_named(share: Callable[[torch.Tensor], Any]) -> None:
    (problem,) = find_problems(Shared(share), torch.zeros(2, 4))
    assert problem.path == "b.weight"
    assert "the memory of a.weight" in problem.reason
    assert "b.weight = a.weight" in problem.instead


def test_an_attribute_with_the_memory_of_a_parameter_is_named() -> None:
    module = Shared(lambda weight: nn.Parameter(weight.detach().clone()))
    del module.b
    module.kept = module.a.weight.detach()
    module.b = lambda x: functional.linear(x, module.kept)  # type: ignore[assignment]
    (problem,) = find_problems(module, torch.zeros(2, 4))
    assert problem.path == "a.weight"
    assert "an attribute with the same memory" in problem.reason


def test_columns_of_one_matrix_and_one_parameter_of_two_names_are_taken() -> None:
    whole = torch.sin(torch.arange(32.0)).view(4, 8)
    module = Shared(lambda weight: nn.Parameter(whole[:, 4:]))
    module.a.weight = nn.Parameter(whole[:, :4])
    assert import_module(module, torch.zeros(2, 4)).trainable == {"a.weight", "b.weight"}
    module.b.weight = module.a.weight
    assert import_module(module, torch.zeros(2, 4)).trainable == {"a.weight"}


@pytest.mark.parametrize("form", ["weight", "scale", "count"])
def test_running_statistics_are_no_constants(form: str) -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.BatchNorm1d(4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if form == "weight":
                weight = torch.diag(self.norm.running_mean)  # type: ignore[arg-type]
                return functional.linear(self.norm(self.fc(x)), weight + torch.eye(4))
            y = self.norm(self.fc(x))
            if form == "count":
                return y * (1 + self.norm.num_batches_tracked)  # type: ignore[operator,no-any-return]
            return y * self.norm.running_var  # type: ignore[no-any-return]

    problems = find_problems(Reading(), torch.zeros(2, 4))
    assert problems
    if form != "scale":
        name = "running_mean" if form == "weight" else "num_batches_tracked"
        assert f"reads norm.{name}, which each step changes" in problems[0].reason


# --- the model that is trained against the module


def forget_bounds(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """In the translation."""
    monkeypatch.setitem(
        translate._HANDLERS, "aten.hardtanh", lambda self, a: self._alias(self._node, a["self"])
    )
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU6(), nn.Linear(4, 2))


def transpose_weights(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """In the lowering to operators, of a head that begins as zeros."""
    emit = model._Emitter._emit_linear

    def turned(self: Any, layer: Linear) -> Any:
        return emit(self, replace(layer, transposed=not layer.transposed))

    monkeypatch.setattr(model._Emitter, "_emit_linear", turned)
    head = nn.Linear(4, 4)
    nn.init.zeros_(head.weight)
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh(), head)


def leave_out_norms(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """In the lowering."""
    emit = model._Emitter._emit_by_channels

    def plain(self: Any, layer: Any, compute: Any) -> Any:
        return emit(self, layer, lambda rows: rows)

    monkeypatch.setattr(model._Emitter, "_emit_by_channels", plain)
    return nn.Sequential(nn.Conv1d(4, 3, 1), nn.BatchNorm1d(3), nn.ReLU())


@pytest.mark.parametrize("spoil", [forget_bounds, transpose_weights, leave_out_norms])
def test_a_fault_of_the_import_is_found_by_values(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], nn.Module]
) -> None:
    with monkeypatch.context() as patched:
        module = spoil(patched)
        shape = (4, 5) if isinstance(module[0], nn.Conv1d) else (4,)  # type: ignore[index]
        (problem,) = find_problems(module, torch.zeros(2, *shape))
        assert "gives other values than the module" in problem.reason
        assert problem.what == "Sequential"
    import_module(module, torch.zeros(2, *shape))


def make_deep(layers: int) -> nn.Module:
    """Norms over four values, one after the other, each of which makes more of what rounding is."""
    torch.manual_seed(8)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(4, 3))


def test_norms_over_few_values_are_held_against_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four samples of noise show nothing but rounding there, which is no fault of the import."""
    measured: list[tuple[int, float, float]] = []
    measure = hold._measure_model

    def watch(*args: Any) -> tuple[float, float]:
        apart, allowed = measure(*args)
        measured.append((len(args[4]), apart, allowed))
        return apart, allowed

    monkeypatch.setattr(hold, "_measure_model", watch)
    import_module(make_deep(24), torch.zeros(2, 4))
    assert measured[0][1] > measured[0][2]
    assert [count for count, *_ in measured][:2] == [4, 16]
    measured.clear()
    import_module(make_deep(2), torch.zeros(2, 4))
    assert [count for count, *_ in measured] == [4]
    # Where all differ it is refused.
    monkeypatch.setattr(hold, "_measure_model", lambda *_: (0.9, 0.5))
    (problem,) = find_problems(make_deep(1), torch.zeros(2, 4))
    assert "gives other values than the module" in problem.reason
    assert "nn.GroupNorm" in problem.instead


BATCH_NORMS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "mean of all batches": (lambda: nn.BatchNorm1d(4, momentum=None), "the mean of all batches"),
    "no statistics": (
        lambda: nn.BatchNorm1d(4, track_running_stats=False),
        "has no running statistics",
    ),
}


@pytest.mark.parametrize("case", BATCH_NORMS)
def test_norms_of_another_meaning_are_refused(case: str) -> None:
    make, reason = BATCH_NORMS[case]
    module = nn.Sequential(nn.Linear(4, 4), make())
    (problem,) = find_problems(module, torch.zeros(2, 4))
    assert problem.path == "1"
    assert reason in problem.reason


def make_used_norm(channels: int = 4, **options: Any) -> nn.BatchNorm1d:
    """In eval mode, with statistics of channels that have little in common."""
    norm = nn.BatchNorm1d(channels, **options).eval()
    with torch.no_grad():
        norm.running_mean.copy_(torch.linspace(-1, 2, channels))  # type: ignore[union-attr]
        norm.running_var.copy_(torch.logspace(-3, 2, channels))  # type: ignore[union-attr]
    return norm


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"eps": 0.1, "momentum": None}])
def test_a_norm_in_eval_mode_keeps_its_statistics(options: dict[str, Any]) -> None:
    x = torch.linspace(-3, 5, 48).sin().view(3, 4, 4)
    module = nn.Sequential(nn.Conv1d(4, 4, 1), make_used_norm(**options), nn.ReLU())
    found = import_module(module, x)
    assert_same_values(found, module, x)
    assert any("of BatchNorm in eval mode: 1" in note for note in found.notes)
    assert found.model.statistics == frozenset()
    assert [*found.trainable] == [name for name in found.trainable if "running" not in name]
    back = compute_state_dict(found.data, found.model, found.model.params)
    for name, value in module.state_dict().items():
        if "running" in name or "tracked" in name:
            assert np.array_equal(back[name], value.numpy()), name


def test_statistics_of_a_norm_may_have_means_of_many_deviations() -> None:
    norm = nn.BatchNorm1d(4, affine=False).eval()
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([10, -10, 0, 1]))  # type: ignore[union-attr]
        norm.running_var.copy_(torch.tensor([1e-3, 1, 1, 4]))  # type: ignore[union-attr]
    module, x = nn.Sequential(nn.Linear(4, 4), norm), torch.zeros(2, 4)
    model = import_module(module, x).model
    layer = model.layers[-1]
    assert isinstance(layer, FixedNorm)
    power, offset, rest = (
        np.ldexp(model.params[name].astype(np.float64), -24)
        for name in (layer.power, layer.offset, layer.rest)
    )
    given = torch.tensor([[10.1, -9, 0.5, 3]], dtype=torch.float64)
    found = (given.numpy() * power + offset) * 2.0**layer.lift * rest
    assert np.allclose(found, norm.double()(given).numpy(), rtol=1e-5, atol=1e-5)

    norm.float().eps = 1e-9
    with torch.no_grad():
        norm.running_mean.fill_(100)  # type: ignore[union-attr]
        norm.running_var.fill_(0)  # type: ignore[union-attr]
    (problem,) = find_problems(module, x)
    assert problem.reason.startswith("running statistics must have means below 32768 deviations")
    assert "running_var" in problem.instead


def test_a_norm_in_training_in_several_places_is_refused_as_that() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(torch.tanh(self.norm(self.first(x))))  # type: ignore[no-any-return]

    (problem,) = find_problems(Shared(), torch.linspace(-3, 5, 12).sin().view(3, 4))
    assert problem.path == "norm"
    assert problem.reason.startswith("is used in training mode in several places")


def test_constants_of_a_norm_keep_their_bits_whatever_the_variances() -> None:
    norm = nn.BatchNorm1d(6, affine=False).eval()
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([0, 0.1, -3, 2, 0.5, 60]))  # type: ignore[union-attr]
        norm.running_var.copy_(torch.tensor([0, 1e-4, 0.3, 1, 700, 1e4]))  # type: ignore[union-attr]
    model = import_module(nn.Sequential(nn.Linear(6, 6), norm), torch.zeros(2, 6)).model
    layer = model.layers[-1]
    assert isinstance(layer, FixedNorm)
    power, offset, rest = (
        np.ldexp(model.params[name].astype(np.float64), -24)
        for name in (layer.power, layer.offset, layer.rest)
    )
    assert np.array_equal(np.log2(power), np.round(np.log2(power)))
    # As operands of int16: of powers no bit is lost, of the rest one in 2^14.
    exact = np.round(np.ldexp(power, 14 - int(np.log2(power.max())))) > 0
    assert exact.all()
    assert rest.min() > rest.max() / 4
    x = torch.linspace(-2, 7, 24, dtype=torch.float64).view(4, 6)
    found = (x.numpy() * power + offset) * 2.0**layer.lift * rest
    assert np.allclose(found, norm.double()(x).numpy(), rtol=1e-5, atol=1e-5)


class Twofold(nn.Module):
    """A norm in eval mode, and the same in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.eval()
        x = self.norm(x)
        self.norm.train()
        return self.norm(x)  # type: ignore[no-any-return]


def test_a_norm_in_both_modes_is_refused() -> None:
    problems = find_problems(Twofold(), torch.linspace(-1, 1, 12).view(3, 4))
    assert problems[0].path.partition("@")[0] == "norm"
    assert "norm.running_mean changes where it is used in training mode" in problems[0].reason


@pytest.mark.parametrize(
    ("variance", "reason"),
    [(-1.0, "variances plus epsilon above 0"), (math.nan, "must be finite")],
)
def test_statistics_that_are_none_are_refused(variance: float, reason: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), make_used_norm())
    with torch.no_grad():
        dict(module.named_buffers())["1.running_var"][2] = variance
    problem = find_problems(module, torch.zeros(2, 4))[0]
    assert problem.path == "1"
    assert reason in problem.reason


def test_buffers_that_change_and_inputs_that_are_overwritten_are_named() -> None:
    class Counting(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.detach().mean(0)
            return self.fc(x)  # type: ignore[no-any-return]

    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(Counting())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return self.inner(x)  # type: ignore[no-any-return]

    problems = find_problems(Overwriting(), torch.ones(2, 4))
    assert [(problem.path, problem.what) for problem in problems] == [
        ("", "input x"),
        ("inner.0", "Counting, buffer seen"),
    ]


def test_inputs_and_outputs_that_are_not_one() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            return {"logits": self.fc(a), "other": self.fc(b)}

    problems = find_problems(Two(), torch.ones(2, 4), torch.ones(2, 4))
    assert [problem.what for problem in problems] == ["2 inputs"]
    assert find_problems(nn.Linear(4, 4), 3)[0].reason == "has no tensor"


def test_one_of_several_outputs_is_chosen() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.one(x), self.two(x)

    module, x = Several(), torch.ones(2, 4)
    found = import_module(module, x, output=1)
    assert found.model.output == "two"
    assert "one.weight" not in found.model.params
    problems = find_problems(module, x)
    assert problems[0].what == "2 outputs"
    assert problems[0].instead == "name it: output=0"

    class Named(Several):
        def forward(self, x: torch.Tensor) -> Any:
            return {"first": self.one(x), "second": self.two(x)}

    problems = find_problems(Named(), x)
    assert problems[0].instead == 'name it: output="first" or output="second"'


def test_a_parameter_plus_a_number_is_a_factor_alone() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.shift = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) - (self.shift + 1)  # type: ignore[no-any-return]

    (problem,) = find_problems(Added(), torch.ones(2, 4))
    assert "computes with the parameter 'shift'" in problem.reason


class Shifted(nn.Module):
    """What layers of torch call a rate of dropout is a parameter here."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer, self.name = nn.Linear(4, 3), name
        self.register_parameter(name, nn.Parameter(torch.linspace(-1, 1, 3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.get_parameter(self.name)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["p", "drop_prob"])
def test_a_parameter_may_have_the_name_of_a_rate(name: str) -> None:
    x = torch.linspace(-3, 5, 12).sin().view(3, 4)
    module = Shifted(name)
    found = import_module(module, x)
    assert name in found.trainable
    assert_same_values(found, module, x)


def test_what_is_computed_of_a_parameter_is_told_its_shape_in_use() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Conv2d(2, 4, 1), nn.Parameter(torch.ones(4))
            self.both = nn.Parameter(torch.ones(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x) * self.scale.view(4, 1, 1)
            return y * self.both + self.both  # type: ignore[no-any-return]

    viewed, both = find_problems(Viewed(), torch.ones(2, 2, 3, 5))
    assert "[channels, 1, 1]" in viewed.instead
    assert (both.path, both.instead) == ("both", "a parameter of its own for each use")


def test_modules_without_values_or_on_a_device() -> None:
    with torch.device("meta"):
        module = nn.Linear(4, 4)
    problems = find_problems(module, torch.zeros(2, 4))
    assert [problem.path for problem in problems] == ["weight", "bias", ""]
    assert "other problems may follow" in problems[-1].reason
