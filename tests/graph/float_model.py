"""A model in torch float64, with torch's own autodiff: what the integer backward rules approximate.

Values are in ONNX order (NCHW), parameters in the step graph's layout.  ``absolute`` computes, with
the same forward values, how far rounding can move a gradient: every backward product is taken of
absolute values, and at each layer the rounding error of that gradient is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F  # noqa: N812 - as torch's own documentation calls it

from vtrain.graph.model import (
    Activation,
    Add,
    AddWeight,
    AveragePool,
    BatchNorm,
    Clip,
    Concat,
    Conv,
    ConvTranspose,
    Dropout,
    Elu,
    Embedding,
    FixedNorm,
    GroupNorm,
    Layer,
    LayerNorm,
    LeakyRelu,
    Linear,
    MatMul,
    MaxPool,
    Model,
    Modulate,
    Mul,
    MulWeight,
    Pad,
    Relu,
    Reshape,
    RMSNorm,
    Scale,
    Shift,
    Slice,
    Softmax,
    Transpose,
)
from vtrain.ops.layout import Window

Tensor = torch.Tensor
Floats = npt.NDArray[np.float64]


class _AbsoluteLinear(torch.autograd.Function):
    """x W^T forward, |W| and |x| backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        rows = grads[0].reshape(-1, w.shape[0])
        return grads[0] @ w.abs(), rows.T @ x.abs().reshape(-1, w.shape[1])


class _AbsoluteProduct(torch.autograd.Function):
    """a b forward, |a| and |b| backward: of stacks of matrices."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return grads[0] @ b.abs().transpose(-1, -2), a.abs().transpose(-1, -2) @ grads[0]


class _AbsoluteMul(torch.autograd.Function):
    """a b forward, |a| and |b| backward: element by element."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return grads[0] * b.abs(), grads[0] * a.abs()


class _AbsoluteSlope(torch.autograd.Function):
    """y forward; backward |slope|, and ``error`` more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, slope: Tensor, error: float) -> Tensor:
        ctx.save_for_backward(slope.abs() + error)
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None, None, None


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
"""torch's own, by kind."""


def _pad(x: Tensor, window: Window, value: float = 0.0) -> Tensor:
    top, left, bottom, right = window.pads
    return F.pad(x, (left, right, top, bottom), value=value)


def _pad_axis(layer: Any, x: Tensor) -> Tensor:
    """``F.pad`` counts axes from the last."""
    behind = x.ndim - 1 - layer.axis
    return F.pad(x, (*(0, 0) * behind, layer.before, layer.after))


def _softmax(layer: Softmax, x: Tensor) -> Tensor:
    assert not layer.reads_ids, "tests/graph/test_documents.py has those"
    scaled = x * (layer.multiplier * 2.0**-layer.exponent)
    if layer.window is not None:
        place = torch.arange(x.shape[-2])[:, None] - torch.arange(x.shape[-1])
        scaled = scaled.masked_fill((place < 0) | (place >= layer.window), -torch.inf)
    return torch.softmax(scaled, dim=-1)


def _leaky_relu(layer: LeakyRelu, x: Tensor) -> Tensor:
    return F.leaky_relu(x, layer.multiplier * 2.0**-layer.exponent)


def _elu(layer: Elu, x: Tensor) -> Tensor:
    return F.elu(x, layer.multiplier * 2.0**-layer.exponent)


def _clip(layer: Clip, x: Tensor) -> Tensor:
    """As ``nn.Hardtanh``, of which a bound has no gradient."""
    low = -1e9 if layer.low is None else layer.low
    return F.hardtanh(x, low, 1e9 if layer.high is None else layer.high)


_OF_ONE: Mapping[type[Layer], Callable[[Any, Tensor], Tensor]] = {
    Relu: lambda layer, x: torch.relu(x),
    LeakyRelu: _leaky_relu,
    Elu: _elu,
    Shift: lambda layer, x: x + layer.offset,
    Clip: _clip,
    MaxPool: lambda layer, x: F.max_pool2d(
        _pad(x, layer.window, -torch.inf), layer.window.kernel, layer.window.strides
    ),
    AveragePool: lambda layer, x: F.avg_pool2d(
        _pad(x, layer.window), layer.window.kernel, layer.window.strides
    ),
    Reshape: lambda layer, x: x.reshape(x.shape[0], *layer.shape),
    Scale: lambda layer, x: x * (layer.multiplier * 2.0**-layer.exponent),
    Transpose: lambda layer, x: x.permute(layer.perm),
    Slice: lambda layer, x: x.narrow(layer.axis, layer.start, layer.stop - layer.start),
    Pad: _pad_axis,
    Softmax: _softmax,
}
"""Layers of one value and no parameter."""


class FloatModel:
    """``params`` are the real values of the int16 operands; ``values`` those of each layer.

    ``pinned`` are the values that a layer really had (rounded): the forward pass goes on with them,
    the backward pass takes the rounding for the identity, as the integer rules do.
    """

    def __init__(
        self,
        model: Model,
        params: Mapping[str, Floats],
        pinned: Mapping[str, Floats],
        *,
        absolute: bool = False,
        errors: Mapping[str, float] | None = None,
        slope_error: float = 0.0,
        masks: Mapping[str, Floats] | None = None,
    ) -> None:
        self._model, self._pinned = model, pinned
        self._slope_error, self._masks = slope_error, masks or {}
        self._absolute, self._errors = absolute, errors or {}
        self.params = {
            name: torch.tensor(value, requires_grad=True) for name, value in params.items()
        }
        self.values: dict[str, Tensor] = {}
        self.rounding: dict[str, float] = {}
        """Largest distance of each layer's value from the pinned one."""

    def forward(self, x: Floats) -> Tensor:
        self.values[self._model.input] = torch.tensor(x)
        for layer in self._model.layers:
            value = self._apply(layer)
            if layer.name in self._pinned:
                pinned = torch.tensor(self._pinned[layer.name])
                self.rounding[layer.name] = float((value - pinned).abs().max().detach())
                value = value + (pinned - value).detach()
            if self._errors.get(layer.name):
                error = self._errors[layer.name]
                value.register_hook(  # type: ignore[no-untyped-call]
                    lambda grad, error=error: grad + error
                )
            self.values[layer.name] = value
        return self.values[self._model.output]

    def _product(self, x: Tensor, w: Tensor) -> Tensor:
        if self._absolute:
            return torch.as_tensor(_AbsoluteLinear.apply(x, w))
        return x @ w.T

    def _apply(self, layer: Layer) -> Tensor:
        match layer:
            case Linear():
                w = self.params[layer.weight]
                out = self._product(self.values[layer.input], w if layer.transposed else w.T)
                return out if layer.bias is None else out + self.params[layer.bias]
            case AddWeight() | MulWeight():
                return self._take_weight(layer, self.values[layer.input])
            case Modulate():
                return self.values[layer.input] * self.params[layer.constant]
            case Embedding():
                ids = self.values[layer.input].long()
                return F.embedding(ids, self.params[layer.weight], layer.without_gradient)
            case Conv() | ConvTranspose():
                return self._convolve(layer)
            case LayerNorm() | RMSNorm():
                return self._normalize(layer)
            case GroupNorm() | BatchNorm() | FixedNorm():
                return self._normalize_channels(layer)
            case Add() | Mul() | MatMul():
                return self._combine(layer, self.values[layer.left], self.values[layer.right])
            case Dropout():
                return self.values[layer.input] * torch.tensor(self._masks[layer.name])
            case Activation():
                return self._activate(layer, self.values[layer.input])
            case Concat():
                return torch.cat([self.values[name] for name in layer.inputs], layer.axis)
            case _:
                return _OF_ONE[type(layer)](layer, self.values[layer.input])

    def _spread_patches(self, layer: ConvTranspose) -> Tensor:
        """Padding on both sides is cut off what torch makes without any."""
        top, left, *_ = layer.window.pads
        height, width = layer.extent
        whole = F.conv_transpose2d(
            self.values[layer.input],
            self.params[layer.weight].permute(0, 3, 1, 2),
            None if layer.bias is None else self.params[layer.bias],
            layer.window.strides,
        )
        behind = [
            max(a + b - c, 0)
            for a, b, c in ((left, width, whole.shape[3]), (top, height, whole.shape[2]))
        ]
        # Places that no patch reaches have the bias alone.
        bias = 0 if layer.bias is None else self.params[layer.bias][:, None, None]
        wide = F.pad(whole - bias, (0, behind[0], 0, behind[1])) + bias
        return wide[:, :, top : top + height, left : left + width]

    def _take_weight(self, layer: AddWeight | MulWeight, x: Tensor) -> Tensor:
        if isinstance(layer, MulWeight):
            return self._mul_weight(layer, x)
        weight = self.params[layer.weight][: layer.rows]
        if layer.by_channels:
            return x + weight.view(-1, *(1,) * (x.ndim - 2))
        if layer.along is None:
            return x + weight
        axis, start, stop = layer.along
        parts = list(torch.split(x, [start, stop - start, x.shape[axis] - stop], axis))
        parts[1] = parts[1] + weight.reshape(parts[1].shape[1:])
        return torch.cat(parts, axis)

    def _mul_weight(self, layer: MulWeight, x: Tensor) -> Tensor:
        weight = self.params[layer.weight]
        if layer.by_channels:
            return x * weight.view(-1, *(1,) * (x.ndim - 2))
        count = weight.numel()
        return (x.reshape(-1, count) * weight.reshape(-1)).view_as(x)

    def _combine(self, layer: Add | Mul | MatMul, a: Tensor, b: Tensor) -> Tensor:
        if isinstance(layer, Add):
            return a + b
        if isinstance(layer, Mul):
            return torch.as_tensor(_AbsoluteMul.apply(a, b)) if self._absolute else a * b
        a = a.transpose(-1, -2) if layer.transpose_left else a
        b = b.transpose(-1, -2) if layer.transpose_right else b
        return torch.as_tensor(_AbsoluteProduct.apply(a, b)) if self._absolute else a @ b

    def _activate(self, layer: Activation, x: Tensor) -> Tensor:
        """``slope_error`` is how far a slope may be off: it counts where values are absolute."""
        function = ACTIVATIONS[layer.kind]
        if not self._absolute:
            return function(x)
        at = x.detach().requires_grad_()
        y = function(at)
        (slope,) = torch.autograd.grad(y.sum(), at)
        return torch.as_tensor(_AbsoluteSlope.apply(x, y.detach(), slope, self._slope_error))

    def _normalize(self, layer: LayerNorm | RMSNorm) -> Tensor:
        x = self.values[layer.input]
        bias = None
        if isinstance(layer, LayerNorm):
            x = x - x.mean(dim=-1, keepdim=True)
            bias = layer.bias
        y = x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + layer.epsilon)
        if layer.weight is not None:
            y = y * self.params[layer.weight]
        return y if bias is None else y + self.params[bias]

    def _normalize_channels(self, layer: GroupNorm | BatchNorm | FixedNorm) -> Tensor:
        if isinstance(layer, FixedNorm):
            return self._normalize_fixed(layer)
        x = self.values[layer.input]
        weight, bias = (
            None if name is None else self.params[name] for name in (layer.weight, layer.bias)
        )
        if isinstance(layer, GroupNorm):
            return F.group_norm(x, layer.groups, weight, bias, layer.epsilon)
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=layer.epsilon)

    def _normalize_fixed(self, layer: FixedNorm) -> Tensor:
        """The constants are few, and are rounded to 2^-24 and to 2^-15 of the largest."""
        x = self.values[layer.input]

        def spread(name: str) -> Tensor:
            return self.params[name].view(-1, *(1,) * (x.ndim - 2))

        y = (x * spread(layer.power) + spread(layer.offset)) * 2.0**layer.lift * spread(layer.rest)
        y = y if layer.weight is None else y * spread(layer.weight)
        return y if layer.bias is None else y + spread(layer.bias)

    def _convolve(self, layer: Conv | ConvTranspose) -> Tensor:
        """By patches, so that the products are those of :meth:`_product`."""
        if isinstance(layer, ConvTranspose):
            return self._spread_patches(layer)
        w = self.params[layer.weight].permute(0, 3, 1, 2)  # [out, in, kh, kw]
        if layer.groups > 1 or layer.dilations != (1, 1):
            bias = None if layer.bias is None else self.params[layer.bias]
            x = _pad(self.values[layer.input], layer.window)
            window, groups = layer.window, layer.groups
            return F.conv2d(x, w, bias, window.strides, 0, layer.dilations, groups)
        x = _pad(self.values[layer.input], layer.window)
        rows, columns = (
            (x.shape[2 + axis] - layer.window.kernel[axis]) // layer.window.strides[axis] + 1
            for axis in (0, 1)
        )
        patches = F.unfold(x, layer.window.kernel, stride=layer.window.strides)
        flat = patches.transpose(1, 2).reshape(-1, patches.shape[1])
        out = self._product(flat, w.reshape(w.shape[0], -1))
        if layer.bias is not None:
            out = out + self.params[layer.bias]
        return out.reshape(x.shape[0], rows, columns, -1).permute(0, 3, 1, 2)

    def gradients(self, x: Floats, seed: Floats) -> dict[str, Floats]:
        """Gradient of sum(seed * output) by each parameter."""
        self.forward(x).backward(torch.tensor(seed))  # type: ignore[no-untyped-call]
        grads = {name: param.grad for name, param in self.params.items()}
        return {name: grad.numpy() for name, grad in grads.items() if grad is not None}
