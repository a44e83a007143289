"""What operators with a backward rule mean in real numbers: torch differentiates it.

A definition takes the attributes and the real values of the inputs, and knows nothing of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import functional as F  # noqa: N812 - as torch's own documentation calls it

from vtrain.ops.base import attr_int, attr_ints
from vtrain.ops.layout import Window
from vtrain.wire.graph import Attrs

Tensor = torch.Tensor


def _matmul(attrs: Attrs, x: Sequence[Tensor]) -> Tensor:
    a, b = (
        value.T if attrs[f"transpose_{side}"] else value
        for side, value in zip("ab", x, strict=True)
    )
    return a @ b


def _batched_matmul(attrs: Attrs, x: Sequence[Tensor]) -> Tensor:
    a, b = (
        value.transpose(-1, -2) if attrs[f"transpose_{side}"] else value
        for side, value in zip("ab", x, strict=True)
    )
    return a @ b


def _slice(attrs: Attrs, x: Sequence[Tensor]) -> Tensor:
    axis, start, stop = (attr_int(attrs, name) for name in ("axis", "start", "stop"))
    return x[0].narrow(axis, start, stop - start)


def _pad(attrs: Attrs, x: Sequence[Tensor]) -> Tensor:
    """``F.pad`` counts axes from the last."""
    after = x[0].ndim - 1 - attr_int(attrs, "axis")
    return F.pad(x[0], (*(0, 0) * after, *(attr_int(attrs, name) for name in ("before", "after"))))


def _rescale(attrs: Attrs, x: Sequence[Tensor]) -> Tensor:
    exponent = attr_int(attrs, "multiplier_exponent")
    return x[0] * (attr_int(attrs, "multiplier") * 2.0**-exponent)


def _windows(attrs: Attrs, x: Tensor, padding: float) -> Tensor:
    """[n, h, w, c] -> [n, rows, columns, kernel height, kernel width, c]"""
    window = Window.from_attrs(attrs)
    top, left, bottom, right = window.pads
    padded = F.pad(x, (0, 0, left, right, top, bottom), value=padding)
    down = padded.unfold(1, window.kernel[0], window.strides[0])
    both = down.unfold(2, window.kernel[1], window.strides[1])
    return both.permute(0, 1, 2, 4, 5, 3)


def _im2col(attrs: Attrs, x: Sequence[Tensor]) -> Tensor:
    patches = _windows(attrs, x[0], 0.0)
    return patches.reshape(patches[..., 0, 0, 0].numel(), -1)


def _max_pool(attrs: Attrs, x: Sequence[Tensor]) -> Tensor:
    """The gradient goes to the first of equals: ``max`` along one axis has it so."""
    patches = _windows(attrs, x[0], -torch.inf)
    flat = patches.flatten(3, 4)
    first = flat.detach().argmax(dim=3, keepdim=True)
    return flat.gather(3, first).squeeze(3)


def _sum_pool(attrs: Attrs, x: Sequence[Tensor]) -> Tensor:
    return _windows(attrs, x[0], 0.0).sum(dim=(3, 4))


FLOATS: Mapping[str, Callable[[Attrs, Sequence[Tensor]], Tensor]] = {
    "matmul": _matmul,
    "batched_matmul": _batched_matmul,
    "slice": _slice,
    "pad": _pad,
    "gather_rows": lambda attrs, x: x[0][x[1].long().clamp(0, len(x[0]) - 1)],
    "concat": lambda attrs, x: torch.cat(tuple(x), attr_int(attrs, "axis")),
    "add_bias": lambda attrs, x: x[0] + x[1],
    "rescale": _rescale,
    "add": lambda attrs, x: x[0] + x[1],
    "mul": lambda attrs, x: x[0] * x[1],
    "relu": lambda attrs, x: torch.relu(x[0]),
    "center": lambda attrs, x: x[0] * x[0].shape[-1] - x[0].sum(dim=-1, keepdim=True),
    "column_scale": lambda attrs, x: x[0] * x[1],
    "im2col": _im2col,
    "max_pool": _max_pool,
    "sum_pool": _sum_pool,
    "reshape": lambda attrs, x: x[0].reshape(attr_ints(attrs, "shape")),
    "transpose": lambda attrs, x: x[0].permute(attr_ints(attrs, "perm")),
}
"""By operator."""
