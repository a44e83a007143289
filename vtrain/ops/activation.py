"""Pointwise non-linearities on int16 operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Builder,
    Operator,
    Site,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.wire.graph import Attrs, Node, Ref, TensorType


def _relu_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(np.maximum(inputs[0], 0))


def _relu_leaf(site: Site, e: int) -> int:
    return max(site.read(0, e), 0)


def _relu_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """max(x, 0), element by element.

    Inputs: x i16 [...].
    Output: i16 [...], the exponent of x.
    Range: max(x.lo, 0) to max(x.hi, 0).
    """
    require_keys(attrs)
    require_inputs(inputs, "i16")
    x = inputs[0]
    return integer_type("i16", x.shape, x.exponent, max(x.lo, 0), max(x.hi, 0))


def _relu_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    g = b.as_operand(grad, f"{node.name}/grad")
    return (b.emit("relu_grad", f"{node.name}/grad_in", (g, out)),)


def _relu_grad_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    grad, output = inputs
    return np.where(output > 0, grad, grad.dtype.type(0))


def _relu_grad_leaf(site: Site, e: int) -> int:
    grad, output = site.read(0, e), site.read(1, e)
    return grad if output > 0 else 0


def _relu_grad_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The gradient where the forward output is positive, else 0: the derivative at 0 is 0.

    Inputs: grad i16 [...]; output i16 [...], the output of the ``relu``.
    Output: i16 [...], the exponent of grad.
    Range: min(grad.lo, 0) to max(grad.hi, 0).
    """
    require_keys(attrs)
    require_inputs(inputs, "i16", "i16")
    grad, output = inputs
    require(grad.shape == output.shape, f"shapes differ: {grad.shape} and {output.shape}")
    return integer_type("i16", grad.shape, grad.exponent, min(grad.lo, 0), max(grad.hi, 0))


OPERATORS = table(
    Operator("relu", _relu_law, _relu_infer, _relu_backward, leaf=pointwise(_relu_leaf)),
    Operator("relu_grad", _relu_grad_law, _relu_grad_infer, leaf=pointwise(_relu_grad_leaf)),
)
