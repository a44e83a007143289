"""Norms, whole or node by node."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from vtrain.graph.model import (
    BatchNorm,
    FixedNorm,
    GroupNorm,
    LayerNorm,
    Mul,
    Reshape,
    RMSNorm,
    find_sources,
)
from vtrain.graph.onnx_file import read_floats
from vtrain.graph.onnx_import import tables
from vtrain.graph.onnx_import.importer import Handlers, Importer, Spread, Weight, strip
from vtrain.graph.onnx_import.node import Node

TRAINING_HINT = (
    "Export the model in training mode: model.train(), and torch.onnx.export with dynamo=False and "
    "training=torch.onnx.TrainingMode.TRAINING"
)

_POWERS: Final = 14
"""Doublings between the least power of two of a norm and the largest, which int16 has both of."""
_MOST_POWER: Final = 7
"""Constants are below 2^7."""
_MOST_LIFT: Final = 8


def _layer_normalization(importer: Importer, node: Node) -> None:
    node.require(
        2 <= len(node.inputs) <= 3 and bool(node.inputs[0]),
        f"needs 2 or 3 inputs, has {len(node.inputs)}",
    )
    node.require(len(node.outputs) == 1, "mean and deviation are not supported as outputs")
    x, epsilon = _norm_input(importer, node)
    scale, bias = (*node.inputs[1:], "")[:2]
    scale_name = _norm_vector(importer, node, x, scale, 1.0)
    bias_name = _norm_vector(importer, node, x, bias, 0.0)
    importer.emit(
        node, LayerNorm(node.outputs[0], x, scale_name, bias_name, epsilon), importer.shapes[x]
    )


def _rms_normalization(importer: Importer, node: Node) -> None:
    node.require(
        1 <= len(node.inputs) <= 2 and bool(node.inputs[0]),
        f"needs 1 or 2 inputs, has {len(node.inputs)}",
    )
    node.require(len(node.outputs) == 1, f"must have one output, has {len(node.outputs)}")
    x, epsilon = _norm_input(importer, node)
    scale = _norm_vector(importer, node, x, (*node.inputs[1:], "")[0], 1.0)
    importer.emit(node, RMSNorm(node.outputs[0], x, scale, epsilon), importer.shapes[x])


def _pow(importer: Importer, node: Node) -> None:
    node.require_arity(2, 2)
    x = importer.value(node, node.inputs[0])
    node.require(importer.scalar(node, node.inputs[1]) == 2, "is only supported with exponent 2")
    importer.emit(node, Mul(node.outputs[0], x, x), importer.shape_of(node, x))


def mean_squares(importer: Importer, node: Node, axes: tuple[int, ...], keep: bool) -> bool:
    """Take the mean of the squares of rows; False where the node is something else."""
    x = importer.value(node, node.inputs[0])
    layer = importer.layers.get(x)
    squares = isinstance(layer, Mul) and layer.left == layer.right
    if not squares or not keep or axes not in ((-1,), (len(importer.shape_of(node, x)),)):
        return False
    _spread(importer, node, Spread(find_sources(importer.layers[x])[0]))
    return True


def _spread(importer: Importer, node: Node, found: Spread) -> None:
    importer.declare(node.outputs[0], node.where)
    importer.spreads[node.outputs[0]] = found


def add_epsilon(importer: Importer, node: Node, found: Spread, other: str) -> None:
    """Add, of a mean of squares and a number."""
    epsilon = float(importer.scalar(node, other))
    node.require(found.power == 0 and epsilon >= 0, "must add an epsilon of at least 0")
    _spread(importer, node, replace(found, epsilon=found.epsilon + epsilon))


def _sqrt(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    found = importer.spreads.get(node.inputs[0])
    if found is None or found.power != 0:
        node.refuse("is only supported of the mean of the squares of rows")
    _spread(importer, node, replace(found, power=1))


def _reciprocal(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    invert(importer, node, node.inputs[0])


def invert(importer: Importer, node: Node, name: str) -> None:
    """The inverse of the root of a mean of squares."""
    found = importer.spreads.get(name)
    if found is None or found.power != 1:
        node.refuse("is only supported of the root of the mean of the squares of rows")
    _spread(importer, node, replace(found, power=-1))


def normalize(importer: Importer, node: Node, name: str, found: Spread, power: int) -> None:
    """The norm that a value times or over such a root is."""
    x = importer.value(node, name)
    node.require(
        found.power == power and x == found.value,
        f"only {found.value!r} itself can be divided by the root of its mean square: "
        "a weight multiplies after that, as in w * (x * rsqrt(...))",
    )
    importer.emit(node, RMSNorm(node.outputs[0], x, None, found.epsilon), importer.shapes[x])


def is_scale(importer: Importer, norm: RMSNorm, name: str) -> bool:
    """Whether a constant can be the scale that a norm lacks, and is no number for all of it,
    nor cosines or sines."""
    if norm.weight is not None or name not in importer.weights:
        return False
    stored = importer.weights[name]
    return stored.dims != () and not tables.is_rotation(importer, stored.name)


def scale_norm(importer: Importer, node: Node, norm: RMSNorm, scale: str) -> None:
    """A norm of its own: the one without the scale is pruned unless something else reads it."""
    weight = _norm_vector(importer, node, norm.name, scale, 1.0)
    shape = importer.shapes[norm.name]
    importer.emit(node, replace(norm, name=node.outputs[0], weight=weight), shape)


def _norm_input(importer: Importer, node: Node) -> tuple[str, float]:
    """The value that is normalised over its last axis, and epsilon."""
    x = importer.value(node, node.inputs[0])
    rank = 1 + len(importer.shape_of(node, x))
    axis = node.take_int("axis", -1)
    node.require(
        axis in (-1, rank - 1), f"axis must be the last of {rank}, is {axis}: it may be alone"
    )
    node.take_int("stash_type", 1)  # how wide floats are inside: here they are integers
    return x, _take_epsilon(node)


def _batch_normalization(importer: Importer, node: Node) -> None:
    node.require(
        len(node.inputs) == 5 and all(node.inputs), f"needs 5 inputs, has {len(node.inputs)}"
    )
    training = node.take_int("training_mode", 0) == 1
    if not training and not importer.ties:
        _fixed_normalization(importer, node)
        return
    node.require(
        importer.opset >= 14 and training,
        "is not in training mode, in which its statistics are those of the batch. " + TRAINING_HINT,
    )
    x, channels, epsilon = _channel_norm_input(importer, node)
    momentum = node.take_float("momentum", 0.9)
    node.require(0 <= momentum < 1 - 2**-17, "momentum must be at least 0, and below 1 - 2^-17")
    share = int((1 - Fraction(momentum)) * 2**16 + Fraction(1, 2))
    scale, bias = (
        _norm_vector(importer, node, x, name, neutral, channels)
        for name, neutral in zip(node.inputs[1:3], (1.0, 0.0), strict=True)
    )
    mean, variance = (importer.weight(node, name) for name in node.inputs[3:])
    for statistic in (mean, variance):
        node.require(
            statistic.dims == (channels,) and not statistic.transposed,
            f"running statistics must have shape [{channels}], {statistic.name!r} has "
            f"{list(statistic.dims)}",
        )
    # ONNX has the biased variance; torch, whose exporter does not say so, the unbiased one.
    layer = BatchNorm(
        node.outputs[0],
        x,
        scale,
        bias,
        mean.name,
        variance.name,
        epsilon,
        share,
        importer.by_torch or not importer.ties,
    )
    importer.emit(node, layer, importer.shapes[x])
    for name in filter(None, node.outputs[1:]):
        importer.declare(name, node.where)


def _fixed_normalization(importer: Importer, node: Node) -> None:
    """In a file that tells what is trained: a norm that is meant to keep its statistics."""
    node.require(len(node.outputs) == 1, f"must have one output, has {len(node.outputs)}")
    node.take_float("momentum", 0.9)  # of training alone
    x, channels, epsilon = _channel_norm_input(importer, node)
    weight, bias = (
        _norm_vector(importer, node, x, name, neutral, channels)
        for name, neutral in zip(node.inputs[1:3], (1.0, 0.0), strict=True)
    )
    mean, variance = (importer.constant_of(node, name) for name in node.inputs[3:])
    node.require(
        mean.shape == variance.shape == (channels,),
        f"running statistics must have shape [{channels}], have {list(mean.shape)} and "
        f"{list(variance.shape)}",
    )
    node.require(
        bool((np.isfinite(mean) & np.isfinite(variance) & (variance + epsilon > 0)).all()),
        "running statistics must be finite, and variances plus epsilon above 0",
    )
    factor = 1 / np.sqrt(variance + epsilon)
    power = np.ldexp(1.0, np.frexp(factor)[1] - 1)
    power = np.maximum(power, power.max() * 2.0**-_POWERS)
    most = float(np.maximum(power, np.abs(mean * power)).max())
    lift = max(int(np.frexp(most)[1]) - _MOST_POWER, 0)
    node.require(
        lift <= _MOST_LIFT,
        f"running statistics must have means below {1 << _MOST_POWER + _MOST_LIFT} deviations, "
        f"and deviations above 1 / {1 << _MOST_POWER + _MOST_LIFT}: one is {most:.3g}",
    )
    power, made = np.ldexp(power, -lift), node.outputs[0]
    names = [
        tables.make_constant(importer, node, f"{made}/{what}", values)
        for what, values in (
            ("power", power),
            ("offset", -mean * power),
            ("rest", factor / np.ldexp(power, lift)),
        )
    ]
    power_name, offset_name, rest_name = names
    layer = FixedNorm(made, x, weight, bias, power_name, offset_name, rest_name, lift)
    importer.emit(node, layer, importer.shapes[x])


def _group_normalization(importer: Importer, node: Node) -> None:
    node.require_arity(3, 3)
    groups = node.take_int("num_groups", 0)
    node.take_int("stash_type", 1)
    _group_norm(importer, node, groups)


def _instance_normalization(importer: Importer, node: Node) -> None:
    node.require_arity(3, 3)
    _group_norm(importer, node, None)


def _group_norm(importer: Importer, node: Node, groups: int | None) -> None:
    """``groups`` of the channels, or each by itself."""
    x, channels, epsilon = _channel_norm_input(importer, node)
    count = channels if groups is None else groups
    node.require(count >= 1 and channels % count == 0, f"{count} groups of {channels} channels")
    # Below opset 21 scale and bias were of the groups.
    vectors = count if node.op == "GroupNormalization" and importer.opset < 21 else channels
    node.require(vectors == channels, "has a scale for each group: export with opset 21 or later")
    scale, bias = (
        _norm_vector(importer, node, x, name, neutral, channels)
        for name, neutral in zip(node.inputs[1:], (1.0, 0.0), strict=True)
    )
    importer.emit(
        node, GroupNorm(node.outputs[0], x, scale, bias, epsilon, count), importer.shapes[x]
    )


def _find_group_norm(importer: Importer, value: str) -> GroupNorm | None:
    """The norm of groups that ``value`` is, if it has no bias."""
    layer = importer.layers.get(value)
    if isinstance(layer, GroupNorm):
        return layer if layer.bias is None else None
    inner = importer.layers.get(layer.input) if isinstance(layer, Reshape) else None
    if not isinstance(inner, GroupNorm) or (inner.weight, inner.bias) != (None, None):
        return None
    outer, shape, rows = importer.layers.get(inner.input), importer.shapes[value], importer.shapes
    by_groups = len(rows[inner.input]) == 2 and rows[inner.input][0] == inner.groups
    if not isinstance(outer, Reshape) or not by_groups:
        return None
    same = rows[outer.input] == shape and shape[0] % inner.groups == 0
    return replace(inner, input=outer.input) if same else None


def _column(importer: Importer, name: str) -> Weight | None:
    """A stored tensor that is read as the constant ``name``, of its shape there."""
    return importer.columns.get(name) or importer.weights.get(name)


def is_of_channels(importer: Importer, name: str, other: str, *, scale: bool) -> bool:
    """Whether a constant can be the scale or the bias that a norm of groups lacks."""
    value, column = importer.values.get(name, ""), _column(importer, other)
    norm = _find_group_norm(importer, value)
    if norm is None or column is None or column.transposed or (scale and norm.weight):
        return False
    shape = importer.shapes[value]
    return strip(column.dims) == (shape[0], *(1,) * (len(shape) - 1)) and shape[0] > 1


def finish_group_norm(
    importer: Importer, node: Node, name: str, other: str, *, scale: bool
) -> None:
    """A norm of its own: the one without is pruned unless something else reads it."""
    value, column = importer.values[name], _column(importer, other)
    norm = _find_group_norm(importer, value)
    if norm is None or column is None:
        raise AssertionError("_is_of_channels() has looked")
    vector: str | None = column.name
    if column.name in importer.constants:
        values = read_floats(importer.tensors[column.name], f"constant {column.name}")
        vector = None if bool(np.all(values == float(scale))) else column.name
    made = replace(norm, name=node.outputs[0])
    made = replace(made, weight=vector) if scale else replace(made, bias=vector)
    importer.emit(node, made, importer.shapes[value])


def _channel_norm_input(importer: Importer, node: Node) -> tuple[str, int, float]:
    """The value that is normalised, its channels, and epsilon."""
    x = importer.value(node, node.inputs[0])
    shape = importer.shape_of(node, x)
    node.require(
        1 <= len(shape) <= 3, f"needs [batch, channels] and at most two axes more, has {shape}"
    )
    return x, shape[0], _take_epsilon(node)


def _take_epsilon(node: Node) -> float:
    epsilon = node.take_float("epsilon", 1e-5)
    node.require(
        math.isfinite(epsilon) and epsilon >= 0, f"epsilon must be at least 0, is {epsilon}"
    )
    return epsilon


def _norm_vector(
    importer: Importer, node: Node, x: str, name: str, neutral: float, features: int | None = None
) -> str | None:
    """Name of the scale or bias [d] or [1, ..., d]; None where there is none, or where it is a
    ``Constant`` that changes nothing: so exporters write a norm without parameters.

    d is ``features``, or the last extent of ``x``."""
    if not name:
        return None
    weight = importer.weight(node, name)
    features = importer.shapes[x][-1] if features is None else features
    fits = weight.dims[-1:] == (features,) and math.prod(weight.dims) == features
    node.require(
        fits and not weight.transposed,
        f"scale and bias must have shape [{features}], one has {list(weight.dims)}",
    )
    if weight.name in importer.constants:
        values = read_floats(importer.tensors[weight.name], f"constant {weight.name}")
        if bool(np.all(values == neutral)):
            return None
    return weight.name


HANDLERS: Handlers = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "Pow": _pow,
    "RMSNormalization": _rms_normalization,
    "Reciprocal": _reciprocal,
    "Sqrt": _sqrt,
}
