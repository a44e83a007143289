"""A task with its model wider or deeper, or its batch larger, to see how costs grow.

*Width* multiplies every axis of features that is neither an input's nor an output's: hidden units,
channels, features of a transformer, whose heads keep their number and have more features each.
Weights are repeated and divided by how often, so that values keep their size.  *Depth* does the
stretch of layers between the first and the last value of one shape that all later layers see the
earlier ones through (blocks of a transformer, hidden layers of an MLP) several times, with weights
of its own each.  What such a model would learn is of no interest: what it costs is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from vtrain.errors import ModelError
from vtrain.graph.model import (
    Add,
    AddWeight,
    AveragePool,
    BatchNorm,
    Concat,
    Conv,
    Embedding,
    FixedNorm,
    GroupNorm,
    Layer,
    LayerNorm,
    Linear,
    MatMul,
    MaxPool,
    Model,
    Modulate,
    Mul,
    Pad,
    Reshape,
    RMSNorm,
    Slice,
    Transpose,
    find_sources,
)
from vtrain.train.task import TaskFile

Sweep = Literal["width", "depth", "batch"]
SWEEPS: Final[tuple[Sweep, ...]] = ("width", "depth", "batch")
Array = npt.NDArray[np.int32]


def scale_batch(file: TaskFile, factor: Fraction) -> TaskFile:
    """The task with ``factor`` times as many samples in a batch; ModelError for part of one."""
    return replace(file, batch=_times(file.batch, factor, "batch"))


def _times(extent: int, factor: Fraction, where: str) -> int:
    found = extent * factor
    if found.denominator != 1 or found < 1:
        raise ModelError(
            f"{extent} times {factor} is no whole number: give another factor", where=where
        )
    return int(found)


# --- width


class _Axis:
    """An axis of a value or weight; axes that must have one extent are one."""

    def __init__(self, *, fixed: bool = False) -> None:
        self._above: _Axis | None = None
        self._fixed = fixed

    def root(self) -> _Axis:
        at = self
        while at._above is not None:
            at = at._above
        return at

    def join(self, other: _Axis) -> None:
        mine, theirs = self.root(), other.root()
        if mine is not theirs:
            theirs._above = mine
            mine._fixed |= theirs._fixed

    def fix(self) -> None:
        self.root()._fixed = True

    @property
    def is_fixed(self) -> bool:
        return self.root()._fixed


Axes = list[_Axis]
Shape = tuple[int, ...]


def scale_width(model: Model, factor: Fraction) -> Model:
    """The model with hidden features ``factor`` times as many.

    ModelError names a layer that cannot be scaled, or says that there is nothing to scale.
    """
    plan = _Widths(model)
    if not plan.grows:
        raise ModelError("has no hidden features that could be more or fewer", where="model")
    return plan.scale(factor)


class _Widths:
    """Which axes of a model's values and weights are hidden features."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.shapes: dict[str, Shape] = {model.input: model.input_shape}
        """Of all values, without the batch."""
        self._axes: dict[str, Axes] = {model.input: [_Axis(fixed=True) for _ in model.input_shape]}
        self._params: dict[str, Axes] = {
            name: [_Axis() for _ in value.shape] for name, value in model.params.items()
        }
        self._split: dict[str, tuple[_Axis, ...]] = {}
        """For each reshape, the axes of what it makes."""
        for layer in model.layers:
            axes, shape = self._visit(layer)
            self._axes[layer.name], self.shapes[layer.name] = axes, shape
        for axis in self._axes[model.output]:
            axis.fix()

    @property
    def grows(self) -> bool:
        """Whether anything is left to scale."""
        return any(not axis.is_fixed for axes in self._params.values() for axis in axes)

    # --- what belongs together.  Axes are without the batch; shapes too.

    def _visit(self, layer: Layer) -> tuple[Axes, Shape]:
        """The axes and the shape of what a layer makes."""
        source = find_sources(layer)[0]
        axes, shape = list(self._axes[source]), tuple(self.shapes[source])
        match layer:
            case Linear() | Conv() | Embedding() | MatMul():
                return self._visit_weight(layer, axes, shape)
            case Transpose() | Slice() | Pad() | Concat() | Reshape() | MaxPool() | AveragePool():
                return self._visit_order(layer, axes, shape)
            case _:
                self._visit_elements(layer, axes)
                return axes, shape

    def _visit_weight(
        self, layer: Linear | Conv | Embedding | MatMul, axes: Axes, shape: Shape
    ) -> tuple[Axes, Shape]:
        """Layers that multiply matrices, and look-ups."""
        params = self._model.params
        match layer:
            case Linear():
                weight = self._params[layer.weight]
                inner, outer = (1, 0) if layer.transposed else (0, 1)
                weight[inner].join(axes[-1])
                self._join_last(layer.bias, [weight[outer]])
                made = params[layer.weight].shape[outer]
                return [*axes[:-1], weight[outer]], (*shape[:-1], made)
            case Conv():
                return self._visit_conv(layer, axes, shape)
            case Embedding():
                table = self._params[layer.weight]
                table[0].fix()
                return [*axes, table[1]], (*shape, params[layer.weight].shape[1])
            case MatMul():
                return self._visit_product(layer)

    def _visit_order(
        self,
        layer: Transpose | Slice | Pad | Concat | Reshape | MaxPool | AveragePool,
        axes: Axes,
        shape: Shape,
    ) -> tuple[Axes, Shape]:
        """Layers that reorder, and pools."""
        extents = list(shape)
        match layer:
            case Transpose():
                order = [place - 1 for place in layer.perm[1:]]
                return [axes[i] for i in order], tuple(shape[i] for i in order)
            case Slice():
                extents[layer.axis - 1] = layer.stop - layer.start
            case Pad():
                axes[layer.axis - 1].fix()
                extents[layer.axis - 1] += layer.before + layer.after
            case Concat():
                for name in layer.inputs[1:]:
                    for mine, theirs in zip(axes, self._axes[name], strict=True):
                        mine.join(theirs)
                    extents[layer.axis - 1] += self.shapes[name][layer.axis - 1]
            case Reshape():
                return self._visit_reshape(layer, axes, shape)
            case MaxPool() | AveragePool():
                extents[1:] = layer.window.output_extent(*shape[1:])
        return axes, tuple(extents)

    def _visit_elements(self, layer: Layer, axes: Axes) -> None:
        """Layers whose output has the shape of their first input."""
        match layer:
            case Add() | Mul():
                for mine, other in zip(axes, self._axes[layer.right], strict=True):
                    mine.join(other)
            case AddWeight():
                weight = self._params[layer.weight]
                if layer.rows is not None:
                    weight[0].fix()
                    axes[-len(weight)].fix()
                self._join_last(layer.weight, axes[:1] if layer.by_channels else axes)
            case Modulate():
                self._join_last(layer.constant, axes)
            case LayerNorm() | RMSNorm():
                self._join_last(layer.weight, axes[-1:])
                self._join_last(getattr(layer, "bias", None), axes[-1:])
            case GroupNorm() | BatchNorm() | FixedNorm():
                for field in ("weight", "bias", "mean", "variance", "power", "offset", "rest"):
                    self._join_last(getattr(layer, field, None), axes[:1])
            case _:
                pass

    def _join_last(self, param: str | None, axes: Sequence[_Axis]) -> None:
        """The axes of a parameter are the last of these."""
        if param is not None:
            mine = self._params[param]
            for own, other in zip(mine, axes[len(axes) - len(mine) :], strict=True):
                own.join(other)

    def _visit_conv(self, layer: Conv, axes: Axes, shape: Shape) -> tuple[Axes, Shape]:
        out, down, across, inner = self._params[layer.weight]
        made, _, _, size = self._model.params[layer.weight].shape
        down.fix()
        across.fix()
        if layer.groups == 1:
            inner.join(axes[0])
        elif size == 1 and layer.groups == made:  # a channel of its own for each
            inner.fix()
            out.join(axes[0])
        else:
            for axis in (inner, out, axes[0]):
                axis.fix()
        self._join_last(layer.bias, [out])
        height, width = layer.window.output_extent(shape[1], shape[2])
        return [out, *axes[1:]], (made, height, width)

    def _visit_product(self, layer: MatMul) -> tuple[Axes, Shape]:
        left, right = list(self._axes[layer.left]), list(self._axes[layer.right])
        a, b = list(self.shapes[layer.left]), list(self.shapes[layer.right])
        if layer.transpose_left:
            left[-2:], a[-2:] = left[:-3:-1], a[:-3:-1]
        if layer.transpose_right:
            right[-2:], b[-2:] = right[:-3:-1], b[:-3:-1]
        left[-1].join(right[-2])
        for mine, other in zip(left[:-2], right[:-2], strict=True):
            mine.join(other)
        return [*left[:-1], right[-1]], (*a[:-1], b[-1])

    def _visit_reshape(self, layer: Reshape, axes: Axes, shape: Shape) -> tuple[Axes, Shape]:
        """Axes that only change places with axes of extent 1 stay; of several that become one, or
        one that becomes several, one alone may be hidden features: the last."""
        made: Axes = []
        for olds, news in _match(shape, layer.shape):
            hidden = [axes[i] for i in olds if shape[i] > 1 and not axes[i].is_fixed]
            for axis in hidden[:-1]:
                axis.fix()
            wide = [i for i in news if layer.shape[i] > 1]
            for i in news:
                is_last = bool(hidden and wide) and i == wide[-1]
                made.append(hidden[-1] if is_last else _Axis(fixed=True))
        self._split[layer.name] = tuple(made)
        return made, tuple(layer.shape)

    # --- the model with more of them

    def scale(self, factor: Fraction) -> Model:
        """All axes that may grow do."""
        model = self._model
        fan_in = {layer.weight: layer for layer in model.layers if isinstance(layer, Linear | Conv)}
        params: dict[str, Array] = {}
        for name, value in model.params.items():
            shape = [
                extent if axis.is_fixed else _times(extent, factor, name)
                for extent, axis in zip(value.shape, self._params[name], strict=True)
            ]
            grown = _fill(value, shape)
            layer = fan_in.get(name)
            if layer is not None and self._grows_inside(layer):
                grown = (grown // math.ceil(factor)).astype(np.int32)
            params[name] = grown
        layers = tuple(self._scale_layer(layer, factor) for layer in model.layers)
        return replace(model, layers=layers, params=params)

    def _grows_inside(self, layer: Linear | Conv) -> bool:
        """Whether sums of a layer have more terms."""
        axes = self._params[layer.weight]
        if isinstance(layer, Conv):
            return not axes[3].is_fixed
        return not axes[1 if layer.transposed else 0].is_fixed

    def _scale_layer(self, layer: Layer, factor: Fraction) -> Layer:
        match layer:
            case Reshape():
                made = zip(layer.shape, self._split[layer.name], strict=True)
                shape = (e if a.is_fixed else _times(e, factor, layer.name) for e, a in made)
                return replace(layer, shape=tuple(shape))
            case Slice() if not self._axes[layer.input][layer.axis - 1].is_fixed:
                start, stop = layer.start * factor, layer.stop * factor
                if start.denominator != 1 or stop.denominator != 1:
                    raise ModelError(
                        "has bounds between features: give another factor", where=layer.name
                    )
                return replace(layer, start=int(start), stop=int(stop))
            case Conv() if layer.groups > 1 and not self._params[layer.weight][0].is_fixed:
                return replace(layer, groups=_times(layer.groups, factor, layer.name))
            case _:
                return layer


def _match(olds: Sequence[int], news: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The axes of two shapes of one size in groups that have the same product, in order."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(olds) or j < len(news):
        left, right = [], []
        a = b = 1
        if i < len(olds):
            left.append(i)
            a, i = olds[i], i + 1
        if j < len(news):
            right.append(j)
            b, j = news[j], j + 1
        while a != b:
            if (a < b and i < len(olds)) or j >= len(news):
                left.append(i)
                a, i = a * olds[i], i + 1
            else:
                right.append(j)
                b, j = b * news[j], j + 1
        groups.append((left, right))
    return groups


def _fill(value: Array, shape: Sequence[int]) -> Array:
    """The value repeated along its axes, or the beginning of it, up to ``shape``."""
    for axis, extent in enumerate(shape):
        value = np.take(value, np.arange(extent) % value.shape[axis], axis=axis)
    return value


# --- depth


def scale_depth(model: Model, factor: Fraction) -> Model:
    """The model with its repeated stretch ``factor`` times; ModelError for part of one, or where
    there is no such stretch."""
    times = _times(1, factor, "depth")
    first, last = _find_stretch(model)
    begin = next(i for i, layer in enumerate(model.layers) if layer.name == first) + 1
    end = next(i for i, layer in enumerate(model.layers) if layer.name == last) + 1
    stretch = model.layers[begin:end]
    own = {name for layer in stretch for name in _list_params(layer)} - model.constants
    shared = {name for layer in model.layers[:begin] for name in _list_params(layer)}
    shared |= {name for layer in model.layers[end:] for name in _list_params(layer)}
    layers, params = list(model.layers[:end]), dict(model.params)
    statistics = set(model.statistics)
    reached = last
    for number in range(1, times):
        names = {first: reached}
        for layer in stretch:
            names[layer.name] = f"{layer.name}/again{number}"
        renamed = {name: f"{name}/again{number}" for name in own - shared}
        for old, new in renamed.items():
            params[new] = model.params[old]
            if old in statistics:
                statistics.add(new)
        layers += [_rename(layer, names, renamed) for layer in stretch]
        reached = names[last]
    names = {last: reached}
    layers += [_rename(layer, names, {}, keep=True) for layer in model.layers[end:]]
    output = reached if model.output == last else model.output
    return replace(
        model,
        layers=tuple(layers),
        params=_in_order(layers, params),
        output=output,
        statistics=frozenset(statistics),
    )


def _find_stretch(model: Model) -> tuple[str, str]:
    """The first and the last of the values of one shape that all later layers see the earlier ones
    through, with the most layers that have parameters between them."""
    shapes = _Widths(model).shapes
    places = {layer.name: i for i, layer in enumerate(model.layers)}
    last_read = dict.fromkeys(places, -1)
    for i, layer in enumerate(model.layers):
        for source in find_sources(layer):
            if source in last_read:
                last_read[source] = i
    by_shape: dict[Shape, list[str]] = {}
    for i, layer in enumerate(model.layers):
        if all(read <= i for name, read in last_read.items() if places[name] < i):
            by_shape.setdefault(tuple(shapes[layer.name]), []).append(layer.name)

    def count(first: str, last: str) -> int:
        between = model.layers[places[first] + 1 : places[last] + 1]
        return sum(isinstance(layer, Linear | Conv) for layer in between)

    stretches = [(count(names[0], names[-1]), names) for names in by_shape.values()]
    most, names = max(stretches, key=lambda item: item[0], default=(0, [""]))
    if most == 0:
        raise ModelError(
            "has no layers with weights between two values of one shape: nothing can be repeated",
            where="model",
        )
    # Not what comes before its first layer with weights: positions are added once.
    first = [name for name in names if count(name, names[-1]) == most][-1]
    return first, names[-1]


_PARAMS: Final = ("weight", "bias", "constant", "mean", "variance")


def _list_params(layer: Layer) -> list[str]:
    found = (getattr(layer, field, None) for field in _PARAMS)
    return [name for name in found if name is not None]


def _rename(
    layer: Layer, values: Mapping[str, str], params: Mapping[str, str], *, keep: bool = False
) -> Layer:
    """The layer with other names of values and parameters; ``keep``: its own name stays."""
    changed: dict[str, Any] = {}
    for field in fields(layer):
        old = getattr(layer, field.name)
        if field.name in _PARAMS and old is not None:
            changed[field.name] = params.get(old, old)
        elif field.name == "inputs":
            changed["inputs"] = tuple(values.get(name, name) for name in old)
        elif field.name in ("input", "left", "right"):
            changed[field.name] = values.get(old, old)
        elif field.name == "name" and not keep:
            changed["name"] = values.get(old, old)
    return replace(layer, **changed)


def _in_order(layers: Sequence[Layer], params: Mapping[str, Array]) -> dict[str, Array]:
    """Parameters in the order of their first use."""
    used = Counter(name for layer in layers for name in _list_params(layer))
    return {name: params[name] for name in used}


@dataclass(frozen=True)
class Point:
    """One size of a sweep: the task file, and the model that is taken in place of the file's."""

    sweep: str
    factor: Fraction
    file: TaskFile
    model: Model | None = None


def make_points(
    file: TaskFile, model: Model, sweep: Sweep | None, factors: Sequence[Fraction]
) -> list[Point]:
    """The sizes that are to be measured, rising; the task as it is, where nothing is swept.

    ModelError for a factor that this model cannot be scaled by.
    """
    if sweep is None:
        return [Point("", Fraction(1), file)]
    points = []
    for factor in sorted(set(factors)):
        if sweep == "batch":
            points.append(Point(sweep, factor, scale_batch(file, factor)))
        else:
            scale = scale_width if sweep == "width" else scale_depth
            points.append(Point(sweep, factor, file, scale(model, factor)))
    return points
