"""What a captured program computes of no input: shapes, masks, positions, cosines and sines.

The batch is symbolic in such a program, so a constant may have it among its extents or its numbers.
Each is computed by torch itself, for two sizes of the batch.  An axis whose extent differs is the
batch's, and must have the same elements all along it; it is kept with extent 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import fx

BATCHES: Final = (2, 3)
"""Sizes of the batch that constants are computed for.  0 and 1 are special to torch."""


@dataclass(frozen=True)
class Constant:
    """A number, a tensor, or a list of such, for each size of the batch in :data:`BATCHES`."""

    values: tuple[Any, Any]

    def reduce(self) -> torch.Tensor | None:
        """A tensor with extent 1 where the batch is; None where it depends on the place in it."""
        one, two = (torch.as_tensor(value) for value in self.values)
        axes = [axis for axis in range(one.ndim) if one.shape[axis] != two.shape[axis]]
        for axis in axes:
            one, two = one.narrow(axis, 0, 1), two.narrow(axis, 0, 1)
        spread = (torch.as_tensor(value) for value in self.values)
        same = all(torch.equal(*_comparable(whole, one.expand(whole.shape))) for whole in spread)
        return one.clone() if same else None


def _comparable(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors in which NaN equals NaN."""
    if a.dtype.is_floating_point and b.dtype.is_floating_point:
        return torch.nan_to_num(a, nan=123.5), torch.nan_to_num(b, nan=123.5)
    return a, b


def evaluate_extent(extent: object, batch: int) -> int:
    """An extent of a captured value, which the batch may be part of, for a size of the batch."""
    if isinstance(extent, int):
        return extent
    expression = getattr(getattr(extent, "node", None), "expr", None)
    if expression is None:
        raise TypeError(f"{extent!r} is no extent")
    return int(expression.subs(dict.fromkeys(expression.free_symbols, batch)))


def compute(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    find: Callable[[fx.Node], Constant],
) -> Constant:
    """``target`` of arguments of which each node is a constant that ``find`` knows."""
    found = []
    for number in range(len(BATCHES)):

        def pick(node: fx.Node, number: int = number) -> Any:
            return find(node).values[number]

        with torch.no_grad():
            found.append(target(*fx.map_arg(args, pick), **fx.map_arg(kwargs, pick)))
    return Constant((found[0], found[1]))


def store(tensor: torch.Tensor, name: str) -> onnx.TensorProto:
    """With the bits that it has: bfloat16, which numpy lacks, too."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        raw = tensor.view(torch.int16).numpy().astype("<i2").tobytes()
        return helper.make_tensor(name, onnx.TensorProto.BFLOAT16, tensor.shape, raw, raw=True)
    array = tensor.numpy()
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
