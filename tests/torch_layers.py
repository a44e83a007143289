"""Every layer of ``torch.nn``, each in a small module of its own, for ``benchmarks/imports.py``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from tests.zoo import CLASSES, SAMPLES, Case

Make = Callable[[], nn.Module]

_SHAPES: Final = {
    "rows": (4,),
    "places": (6, 4),
    "line": (4, 8),
    "image": (4, 8, 8),
    "volume": (2, 4, 4, 4),
}
"""Of one sample: features; places and features; channels and one to three axes."""
_IDS: Final = 9


class Among(nn.Module):
    """A layer between others that are trained, so that it has a gradient."""

    def __init__(self, layer: nn.Module, example: torch.Tensor, *, twice: bool = False) -> None:
        super().__init__()
        self.twice = twice
        self.before: nn.Module = nn.Identity()
        if example.dtype.is_floating_point:
            self.before = nn.Linear(example.shape[-1], example.shape[-1])
        self.layer = layer
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self.run(example)
        self.after = nn.Linear(made[0].numel(), CLASSES)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """What the layer makes, of which the first part counts."""
        x = self.before(x)
        made = self.layer(x, x) if self.twice else self.layer(x)
        while not isinstance(made, torch.Tensor):
            made = made[0]
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of classes."""
        return self.after(self.run(x).flatten(1))  # type: ignore[no-any-return]


_OF_ROWS: Final[dict[str, Make]] = {
    **{
        name: getattr(nn, name)
        for name in (
            *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh"),
            *("LeakyReLU", "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "RReLU", "SELU"),
            *("SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink"),
            *("AlphaDropout", "Dropout", "Identity"),
        )
    },
    "BatchNorm1d": lambda: nn.BatchNorm1d(4),
    "GLU": nn.GLU,
    "GRUCell": lambda: nn.GRUCell(4, 4),
    "LSTMCell": lambda: nn.LSTMCell(4, 4),
    "LayerNorm": lambda: nn.LayerNorm(4),
    "Linear": lambda: nn.Linear(4, 4),
    "LogSoftmax": lambda: nn.LogSoftmax(-1),
    "RMSNorm": lambda: nn.RMSNorm(4),
    "RNNCell": lambda: nn.RNNCell(4, 4),
    "Softmax": lambda: nn.Softmax(-1),
    "Softmin": lambda: nn.Softmin(-1),
    "Threshold": lambda: nn.Threshold(0.1, 0.0),
}
_OF_PLACES: Final[dict[str, Make]] = {
    "Flatten": nn.Flatten,
    "GRU": lambda: nn.GRU(4, 4, batch_first=True),
    "LSTM": lambda: nn.LSTM(4, 4, batch_first=True),
    "RNN": lambda: nn.RNN(4, 4, batch_first=True),
    "TransformerEncoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1, enable_nested_tensor=False
    ),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "Unflatten": lambda: nn.Unflatten(2, (2, 2)),
}
_OF_TWO: Final[dict[str, tuple[str, Make]]] = {
    "Bilinear": ("rows", lambda: nn.Bilinear(4, 4, 4)),
    "CosineSimilarity": ("places", lambda: nn.CosineSimilarity(dim=2)),
    "PairwiseDistance": ("places", nn.PairwiseDistance),
    "Transformer": ("places", lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True)),
    "TransformerDecoder": (
        "places",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), 1),
    ),
    "TransformerDecoderLayer": (
        "places",
        lambda: nn.TransformerDecoderLayer(4, 2, 8, batch_first=True),
    ),
}


class _Attending(nn.Module):
    """Attention of a value to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


class _Unpooled(nn.Module):
    """Maxima put back where they were."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{axes}d")(2, return_indices=True)
        self.back = getattr(nn, f"MaxUnpool{axes}d")(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(*self.pool(x))  # type: ignore[no-any-return]


_AXES: Final = {1: "line", 2: "image", 3: "volume"}


def _by_axes() -> dict[str, tuple[str, Make]]:
    """Layers that exist over one, two and three axes."""
    found: dict[str, tuple[str, Make]] = {}
    for axes, kind in _AXES.items():
        channels = _SHAPES[kind][0]
        made: dict[str, Callable[[Any, int], nn.Module]] = {
            "AdaptiveAvgPool": lambda of, _: of(2),
            "AdaptiveMaxPool": lambda of, _: of(2),
            "AvgPool": lambda of, _: of(2),
            "BatchNorm": lambda of, c: of(c),
            "CircularPad": lambda of, _: of(1),
            "ConstantPad": lambda of, _: of(1, 0.0),
            "Conv": lambda of, c: of(c, c, 3),
            "ConvTranspose": lambda of, c: of(c, c, 2),
            "Dropout": lambda of, _: of(0.25),
            "FractionalMaxPool": lambda of, _: of(2, output_size=2),
            "InstanceNorm": lambda of, c: of(c, affine=True),
            "LPPool": lambda of, _: of(2, 2),
            "MaxPool": lambda of, _: of(2),
            "ReflectionPad": lambda of, _: of(1),
            "ReplicationPad": lambda of, _: of(1),
            "ZeroPad": lambda of, _: of(1),
        }
        for stem, make in made.items():
            name = f"{stem}{axes}d"
            if hasattr(nn, name):
                of = getattr(nn, name)
                found.setdefault(
                    name,
                    (kind, lambda make=make, of=of, c=channels: make(of, c)),  # type: ignore[misc]
                )
        found[f"MaxUnpool{axes}d"] = kind, lambda axes=axes: _Unpooled(axes)  # type: ignore[misc]
    return found


LAYERS: Final[dict[str, tuple[str, Make]]] = {
    **{name: ("rows", make) for name, make in _OF_ROWS.items()},
    **{name: ("places", make) for name, make in _OF_PLACES.items()},
    **_OF_TWO,
    **{name: pair for name, pair in _by_axes().items() if name not in _OF_ROWS},
    "ChannelShuffle": ("image", lambda: nn.ChannelShuffle(2)),
    "CrossMapLRN2d": ("image", lambda: nn.CrossMapLRN2d(3)),
    "Embedding": ("ids", lambda: nn.Embedding(_IDS, 4)),
    "EmbeddingBag": ("ids", lambda: nn.EmbeddingBag(_IDS, 4)),
    "FeatureAlphaDropout": ("image", nn.FeatureAlphaDropout),
    "Fold": ("line", lambda: nn.Fold((3, 5), (2, 2))),
    "GroupNorm": ("image", lambda: nn.GroupNorm(2, 4)),
    "LocalResponseNorm": ("image", lambda: nn.LocalResponseNorm(2)),
    "MultiheadAttention": ("places", _Attending),
    "PixelShuffle": ("image", lambda: nn.PixelShuffle(2)),
    "PixelUnshuffle": ("image", lambda: nn.PixelUnshuffle(2)),
    "Softmax2d": ("image", nn.Softmax2d),
    "SyncBatchNorm": ("image", lambda: nn.SyncBatchNorm(4)),
    "Unfold": ("image", lambda: nn.Unfold(2)),
    "Upsample": ("image", lambda: nn.Upsample(scale_factor=2)),
    "UpsamplingBilinear2d": ("image", lambda: nn.UpsamplingBilinear2d(scale_factor=2)),
    "UpsamplingNearest2d": ("image", lambda: nn.UpsamplingNearest2d(scale_factor=2)),
}
"""Kind of the input, and the layer."""

NO_LAYERS: Final = frozenset(
    (
        *("Container", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList"),
        *("RNNBase", "RNNCellBase", "Sequential", "AdaptiveLogSoftmaxWithLoss"),
    )
)
"""Of ``torch.nn``: they hold others, or are bases of them, or have a loss of their own."""


def _list_modules() -> list[str]:
    names = sorted(nn.modules.__all__)
    return [name for name in names if issubclass(getattr(nn, name, object), nn.Module)]


def list_layers() -> list[str]:
    """Names of all layers that ``torch.nn`` has: no losses, and none that wait for a shape."""
    return [
        name
        for name in _list_modules()
        if name not in NO_LAYERS and not name.startswith("Lazy") and "Loss" not in name
    ]


def list_losses() -> list[str]:
    """Names of all losses that ``torch.nn`` has."""
    return [name for name in _list_modules() if "Loss" in name]


def make_layer_case(name: str) -> Case:
    """A module with the layer, and samples."""
    torch.manual_seed(3)
    kind, make = LAYERS[name]
    rng = np.random.default_rng(7)
    labels = np.arange(SAMPLES) * 7 % CLASSES
    if kind == "ids":
        data = rng.integers(0, _IDS, (SAMPLES, 6)).astype(np.int64)
    else:
        data = rng.normal(0, 1, (SAMPLES, *_SHAPES[kind])).astype(np.float32)
    example = torch.from_numpy(data[:2])
    module = Among(make(), example, twice=name in _OF_TWO)
    return Case(module, example, (data, labels))
