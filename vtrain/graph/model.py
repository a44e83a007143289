"""The forward model: layers with named values, and their lowering to operators.

Shapes here are as in ONNX, without the batch: an image is (channels, height, width).  In the step
graph images are NHWC and convolution weights are (out, kernel height, kernel width, in); `import`
and `export` translate, so that a user meets ONNX's order alone.  A value of four axes that is no
image (:func:`find_images`) has ONNX's order in the step graph too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.errors import ModelError
from vtrain.graph.activation import (
    LOG2_E,
    LOG2_E_EXPONENT,
    emit_activation,
    emit_clip,
    emit_elu,
    emit_leaky_relu,
    emit_shift,
)
from vtrain.graph.builder import DEEP_BITS, Block, GraphBuilder
from vtrain.graph.norms import emit_normalized, emit_statistics, emit_with_squares
from vtrain.ops.attention import MAX_PLACES, NO_ID
from vtrain.ops.base import Builder
from vtrain.ops.gather import add_rows
from vtrain.ops.layout import Window
from vtrain.spec.dropout import DRAW_BITS
from vtrain.spec.number import (
    ACCUMULATOR_LIMIT,
    LOG2_EXPONENT,
    MASTER_EXPONENT,
    SATURATION,
    rs_int,
)
from vtrain.wire.graph import AttrValue, Ref


@dataclass(frozen=True)
class Linear:
    """y = x W (+ b) over the last axis; all before it, the batch included, are rows.

    ``transposed``: the weight is stored [out, in] (transB), else [in, out].
    """

    name: str
    input: str
    weight: str
    bias: str | None
    transposed: bool


@dataclass(frozen=True)
class Conv:
    """2-D convolution; the weight is stored [out, kh, kw, in], with ``in`` the channels of a group.

    The channels of input and output are in so many ``groups``, of which each reads its own alone.
    ``window`` is as large as the kernel with ``dilations`` - 1 places between its neighbours.
    """

    name: str
    input: str
    weight: str
    bias: str | None
    window: Window
    groups: int = 1
    dilations: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class ConvTranspose:
    """Transposed 2-D convolution: each pixel adds its patch to an image of ``extent``, of which
    ``window`` takes these patches.  The weight is stored [in, kh, kw, out]."""

    name: str
    input: str
    weight: str
    bias: str | None
    window: Window
    extent: tuple[int, int]


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""

    name: str
    input: str


@dataclass(frozen=True)
class LeakyRelu:
    """x where it is above 0, else x times multiplier * 2^-exponent, a multiplier of 1 to 65535."""

    name: str
    input: str
    multiplier: int
    exponent: int


@dataclass(frozen=True)
class Elu:
    """x where it is above 0, else e^x - 1 times multiplier * 2^-exponent, a multiplier of 1 to
    65535."""

    name: str
    input: str
    multiplier: int
    exponent: int


@dataclass(frozen=True)
class Clip:
    """min(max(x, low), high), with ``low`` at most 0 and ``high`` at least 0; None is no bound."""

    name: str
    input: str
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Activation:
    """A non-linearity by table, ``kind`` one of :data:`vtrain.graph.activation.ACTIVATIONS`."""

    name: str
    input: str
    kind: str


@dataclass(frozen=True)
class MaxPool:
    """Maximum over each window."""

    name: str
    input: str
    window: Window


@dataclass(frozen=True)
class AveragePool:
    """Mean over each window, padding counted."""

    name: str
    input: str
    window: Window


@dataclass(frozen=True)
class Reshape:
    """The same elements in ONNX's row-major order under another shape (Flatten is one)."""

    name: str
    input: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Add:
    """Sum of two values of the same shape."""

    name: str
    left: str
    right: str


@dataclass(frozen=True)
class Mul:
    """Product, element by element, of two values of the same shape."""

    name: str
    left: str
    right: str


@dataclass(frozen=True)
class Scale:
    """x times multiplier * 2^-exponent, with a multiplier of 1 to 65535."""

    name: str
    input: str
    multiplier: int
    exponent: int


@dataclass(frozen=True)
class Shift:
    """x plus a number, which is rounded to 15 bits."""

    name: str
    input: str
    offset: float


@dataclass(frozen=True)
class Dropout:
    """While a model is trained, x with elements set to 0 by chance, the others times their inverse
    share: ``keep`` of 2^16 stay.  Otherwise x itself."""

    name: str
    input: str
    keep: int


@dataclass(frozen=True)
class Modulate:
    """x times a constant of the shape of its last axes, the same for each entry of the others.

    A rotary position's cosines [places, features] multiply [batch, heads, places, features] so.
    """

    name: str
    input: str
    constant: str


@dataclass(frozen=True)
class AddWeight:
    """A trained tensor, of the shape of the last axes of x, is added to each entry of the others.

    A position's embedding [places, features] is added to [batch, places, features] so; of a table
    with more rows the first ``rows`` are.  With ``along`` = (axis, start, stop) it is added there
    alone along that axis, of which the batch is number 0, and has the shape of that part of x.
    With ``by_channels`` it has a number for each channel of x, all places alike.
    """

    name: str
    input: str
    weight: str
    rows: int | None = None
    along: tuple[int, int, int] | None = None
    by_channels: bool = False


@dataclass(frozen=True)
class MulWeight:
    """x times a trained tensor of the shape of its last axes, the same for each entry of the
    others; with ``by_channels``, times a trained number for each of its channels, all places alike.
    """

    name: str
    input: str
    weight: str
    by_channels: bool = False


@dataclass(frozen=True)
class Embedding:
    """Rows of a trained table [numbers, features] by the numbers that the model's input is.

    The row ``without_gradient``, as of padding, is not trained by what is read here.
    """

    name: str
    input: str
    weight: str
    without_gradient: int | None = None


@dataclass(frozen=True)
class Transpose:
    """Axis i is axis perm[i] of x; the first is the batch and stays."""

    name: str
    input: str
    perm: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """Elements start to stop - 1 along an axis, of which the batch is number 0."""

    name: str
    input: str
    axis: int
    start: int
    stop: int


@dataclass(frozen=True)
class Pad:
    """Zeros before and after x along an axis, of which the batch is number 0."""

    name: str
    input: str
    axis: int
    before: int
    after: int


@dataclass(frozen=True)
class Concat:
    """Values one after the other along an axis, of which the batch is number 0.

    They come to one exponent, the least of theirs.
    """

    name: str
    inputs: tuple[str, ...]
    axis: int


@dataclass(frozen=True)
class MatMul:
    """Products of the matrices, of the last two axes, of two values with the same other axes.

    A side that is transposed is read with its last two axes swapped.
    """

    name: str
    left: str
    right: str
    transpose_left: bool = False
    transpose_right: bool = False


@dataclass(frozen=True)
class Softmax:
    """The softmax over the last axis of x times multiplier * 2^-exponent.

    With a ``window``, x has as many rows as columns in its last two axes, and row i has columns
    i + 1 - window to i alone: a place attends to itself and to what comes before it.  With
    ``end_of_text``, the last id of each document, a place attends to its own document alone; with
    ``padding``, the id that fills a sample up before its first token and after its last, to no
    padding.  Rows of which nothing is left are zeros.
    """

    name: str
    input: str
    multiplier: int = 1
    exponent: int = 0
    window: int | None = None
    end_of_text: int | None = None
    padding: int | None = None

    @property
    def reads_ids(self) -> bool:
        """Whether the ids of a sample say which places attend to which."""
        return self.end_of_text is not None or self.padding is not None


@dataclass(frozen=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + epsilon) over the last axis, times ``weight``, plus ``bias``.

    The variance is the biased one: the mean of the squared deviations.
    """

    name: str
    input: str
    weight: str | None
    bias: str | None
    epsilon: float


@dataclass(frozen=True)
class RMSNorm:
    """x / sqrt(mean of x^2 + epsilon) over the last axis, times ``weight``."""

    name: str
    input: str
    weight: str | None
    epsilon: float


@dataclass(frozen=True)
class GroupNorm:
    """(x - mean) / sqrt(variance + epsilon) of each sample's channels in ``groups``, over all their
    places, times ``weight`` and plus ``bias`` of each channel.  The variance is the biased one."""

    name: str
    input: str
    weight: str | None
    bias: str | None
    epsilon: float
    groups: int


@dataclass(frozen=True)
class BatchNorm:
    """(x - mean) / sqrt(variance + epsilon) of each channel, over all samples of the batch and all
    places, times ``weight`` and plus ``bias`` of each channel.  The variance is the biased one.

    A step leaves in ``mean`` and ``variance`` what they were times 1 - share / 2^16, plus the
    batch's times share / 2^16, with the ``unbiased`` variance or the biased one.  A model in use
    takes these instead of the batch's.
    """

    name: str
    input: str
    weight: str | None
    bias: str | None
    mean: str
    variance: str
    epsilon: float
    share: int
    unbiased: bool


@dataclass(frozen=True)
class FixedNorm:
    """A BatchNorm in use: (x - mean) / sqrt(variance + epsilon) of each channel by statistics that
    stay, times ``weight`` and plus ``bias`` of each channel.

    Constants of the channels have the statistics: x times ``power``, plus ``offset``, all times
    2^``lift``, and times ``rest``.  The power is one of two, so that channels keep as many bits
    each, by whatever factor their variances differ.
    """

    name: str
    input: str
    weight: str | None
    bias: str | None
    power: str
    offset: str
    rest: str
    lift: int


Layer = (
    Linear
    | Conv
    | ConvTranspose
    | Relu
    | LeakyRelu
    | Elu
    | Clip
    | Activation
    | MaxPool
    | AveragePool
    | Reshape
    | Add
    | Mul
    | Scale
    | Shift
    | Dropout
    | Modulate
    | AddWeight
    | MulWeight
    | Embedding
    | Transpose
    | Slice
    | Pad
    | Concat
    | MatMul
    | Softmax
    | LayerNorm
    | RMSNorm
    | GroupNorm
    | BatchNorm
    | FixedNorm
)

_InOrder = Transpose | MatMul | Softmax | LayerNorm | RMSNorm | Modulate | AddWeight | MulWeight
"""Layers that read and make values in ONNX's order alone."""
_OfChannels = GroupNorm | BatchNorm | FixedNorm | MulWeight | AddWeight
"""Layers that have numbers of channels; of the last two those ``by_channels``."""

_SUM_BITS = 4
"""Fraction bits that a value takes on while a weight is added to it, which is rounded to these."""
_OF_IMAGES = (Conv, ConvTranspose, MaxPool, AveragePool, GroupNorm, BatchNorm, FixedNorm)
_IN_ORDER = (
    *(Relu, LeakyRelu, Elu, Clip, Activation, Add, Mul, Scale, Shift, Dropout, Slice, Pad, Concat),
    MulWeight,
)
"""Layers whose output has its axes in the order of what they read, whatever that is."""
_IN_NHWC = {0: 0, 1: 3, 2: 1, 3: 2}
"""Where the axes of an ONNX image are in the step graph."""


def find_sources(layer: Layer) -> tuple[str, ...]:
    """Names of the values that a layer reads."""
    match layer:
        case Add() | Mul() | MatMul():
            return layer.left, layer.right
        case Concat():
            return layer.inputs
        case _:
            return (layer.input,)


@dataclass(frozen=True)
class Model:
    """A forward pass.  ``name`` of a layer is the name of its output value.

    ``params`` are int32 master weights with 24 fraction bits, in step-graph layout, by the names of
    their ONNX initialisers in the order of first use.  ``takes_ids``: the input is whole numbers,
    which embeddings alone read.  ``copies``: initialisers of the file that are a parameter's
    transpose, by name, with the name of that parameter.  ``constants``: those of ``params`` that no
    step may change, as tables of cosines and sines, which a plan must have among its frozen ones.
    ``lost_dropout``: where the file tells of dropout that it does not have; else empty.
    ``folded_norms``: the nodes into which its exporter folded a BatchNorm; else empty.
    ``merged``: what it computed of several of the module's parameters; else empty.
    ``statistics``: those that have no gradient and that the forward pass changes.
    """

    input: str
    input_shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    output: str
    params: Mapping[str, npt.NDArray[np.int32]]
    takes_ids: bool = False
    copies: Mapping[str, str] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()
    lost_dropout: str = ""
    folded_norms: str = ""
    merged: str = ""
    statistics: frozenset[str] = frozenset()

    @property
    def untrained(self) -> frozenset[str]:
        """Names of the parameters that have no gradient."""
        return self.constants | self.statistics

    @property
    def trained(self) -> list[str]:
        """Names of the parameters that have a gradient, in order."""
        return [name for name in self.params if name not in self.untrained]


def confine_attention(
    model: Model, *, end_of_text: int | None = None, padding: int | None = None
) -> Model:
    """The model with attention that does not cross an end of text, and sees no padding.

    Attention is each softmax, whatever comes between it and the values: one that is not of each
    place to each is refused where it is emitted, as what it lets through nobody can say.
    ModelError where there is none, or where the model's file has another padding.
    """
    layers: list[Layer] = []
    for layer in model.layers:
        if not isinstance(layer, Softmax):
            layers.append(layer)
            continue
        if padding is not None and layer.padding not in (None, padding):
            raise ModelError(
                f"hides padding of id {layer.padding} in the ONNX file, the task file says "
                f"model.padding = {padding}: leave the key out, or give that id",
                where=layer.name,
            )
        padded = layer.padding if padding is None else padding
        layers.append(replace(layer, end_of_text=end_of_text, padding=padded))
    if not any(isinstance(layer, Softmax) and layer.reads_ids for layer in layers):
        raise ModelError(
            "has no attention, no Softmax: leave model.end_of_text and model.padding out of the "
            "task file",
            where="model",
        )
    return replace(model, layers=tuple(layers))


def find_images(model: Model) -> frozenset[str]:
    """Names of the values that are NHWC in the step graph if they have four axes.

    Values that one layer reads and makes without a look at the order of their axes share it.  They
    are images where a convolution or a pool reads or makes one.  Where nothing but a reshape
    does, they are images too: so every such model was lowered before there were other values of
    four axes.
    """
    groups: dict[str, set[str]] = {}
    touched: dict[str, set[type]] = {}
    for name in (model.input, *(layer.name for layer in model.layers)):
        groups[name] = {name}
        touched[name] = set()
    for layer in model.layers:
        values = (*find_sources(layer), layer.name)
        if isinstance(layer, _IN_ORDER) or (isinstance(layer, AddWeight) and layer.by_channels):
            whole = set().union(*(groups[value] for value in values))
            groups.update(dict.fromkeys(whole, whole))
        else:
            for value in values:
                touched[value].add(type(layer))
    images: set[str] = set()
    for group in {id(group): group for group in groups.values()}.values():
        kinds = set().union(*(touched[value] for value in group)) - {Reshape}
        if not kinds or kinds & set(_OF_IMAGES):
            images |= group
    return frozenset(images)


def find_constant_exponent(master: npt.NDArray[np.int32]) -> int:
    """The exponent at which a constant is an int16 operand: the finest that holds its largest.

    It is off by at most 2^-(exponent + 1), but for the 2^-25 of the master: of cosines and sines,
    whose largest is 1, the exponent is 14 and the error 2^-15.
    """
    largest = int(np.abs(master.astype(np.int64)).max(initial=0))
    return next(
        exponent
        for exponent in range(MASTER_EXPONENT, -1, -1)
        if rs_int(largest, MASTER_EXPONENT - exponent) <= SATURATION["i16"][1]
    )


def find_mask_factor(keep: int) -> tuple[int, int]:
    """The mantissa of 2^16 / keep in 15 bits, and its exponent, 0 to 14, for ``keep`` of at least 4
    and below 2^16.  It is off by at most 2^-15 of itself."""
    exponent = (keep - 1).bit_length() - 2
    return ((1 << (DRAW_BITS + exponent + 1)) // keep + 1) >> 1, exponent


def _window_attrs(window: Window) -> dict[str, AttrValue]:
    return {"kernel": window.kernel, "pads": window.pads, "strides": window.strides}


def _to_log2(multiplier: int, exponent: int) -> tuple[int, int]:
    """A factor of exponents of e as one of exponents of 2, with a mantissa of 16 bits."""
    product, exponent = multiplier * LOG2_E, exponent + LOG2_E_EXPONENT
    over = max(product.bit_length() - 16, exponent - 32, 0)
    rounded = (product + (1 << over >> 1)) >> over
    if rounded == 1 << 16:
        rounded, over = rounded >> 1, over + 1
    return rounded, exponent - over


@dataclass(frozen=True)
class Masks:
    """What the masks of dropout are drawn by: the counter of steps, and the seed in eight bytes."""

    step: Ref
    seed: bytes


class _Emitter:
    """Emits the layers of one model; ``values`` maps a value's name to its node."""

    def __init__(
        self,
        builder: GraphBuilder,
        model: Model,
        params: Mapping[str, Ref],
        masks: Masks | None,
        ids: Ref | None,
    ) -> None:
        self._b = builder
        self._ids = ids
        self.statistics: dict[str, Ref] = {}
        self._params = params
        self._masks = masks
        self._sites = 0
        self._model = model
        self._images = find_images(model)
        self._weights: dict[str, Ref] = {}
        self._cut: dict[str, Linear] = {}
        self._spans: dict[tuple[int | None, ...], Ref] = {}
        self.values: dict[str, Ref] = {}

    def take(self, value: str, name: str) -> Ref:
        """A value in ONNX's order; ``name`` is for the node that moves an image there."""
        x = self.values[value]
        b, shape = self._b, self._b.type_of(x).shape
        if value not in self._images or len(shape) != 4:
            return x
        batch, height, width, channels = shape
        if channels == 1 or height * width == 1:  # one channel or pixel needs no move
            return b.emit("reshape", name, (x,), shape=(batch, channels, height, width))
        return b.emit("transpose", name, (x,), perm=(0, 3, 1, 2))

    def give(self, value: str, x: Ref, shape: tuple[int, ...]) -> None:
        """``x``, in ONNX's order, becomes ``value`` under the ONNX shape ``shape``."""
        b = self._b
        if value not in self._images or len(shape) != 4:
            self.values[value] = b.emit("reshape", value, (x,), shape=shape)
            return
        batch, channels, height, width = shape
        if channels == 1 or height * width == 1:
            nhwc = (batch, height, width, channels)
            self.values[value] = b.emit("reshape", value, (x,), shape=nhwc)
            return
        nchw = b.emit("reshape", f"{value}/nchw", (x,), shape=shape)
        self.values[value] = b.emit("transpose", value, (nchw,), perm=(0, 2, 3, 1))

    def _enter(self, value: str, x: Ref) -> None:
        """``x``, in ONNX's order, is ``value``; an image is moved."""
        is_image = value in self._images and len(self._b.type_of(x).shape) == 4
        moved = {"perm": (0, 2, 3, 1)}
        self.values[value] = (
            self._b.emit("transpose", f"{value}/nhwc", (x,), **moved) if is_image else x
        )

    def operand_of(self, param: str) -> Ref:
        """A master weight as int16 operand; shared by all its uses."""
        if param not in self._weights:
            self._weights[param] = self._b.rescale_at_site(param, self._params[param])
        return self._weights[param]

    def emit(self, layer: Layer) -> None:
        """Emit ``layer`` and enter its value."""
        match layer:
            case Reshape():
                x = self.take(layer.input, f"{layer.name}/nchw")
                self.give(layer.name, x, (self._b.type_of(x).shape[0], *layer.shape))
            case (
                Transpose()
                | MatMul()
                | Softmax()
                | LayerNorm()
                | RMSNorm()
                | Modulate()
                | AddWeight(by_channels=False)
                | MulWeight(by_channels=False)
            ):
                y = self._emit_in_order(layer)
                self.give(layer.name, y, self._b.type_of(y).shape)
            case Embedding():
                self._enter(layer.name, self._emit_embedding(layer))
            case Dropout():
                self.values[layer.name] = self._emit_dropout(layer)
            case Linear() if self._is_cut_up(layer):
                self._cut[layer.name] = layer
            case Slice() if layer.input in self._cut:
                self.values[layer.name] = self._emit_linear(self._cut[layer.input], layer)
            case Linear():
                self._enter(layer.name, self._emit_linear(layer))
            case _:
                self.values[layer.name] = self._emit_value(layer)

    def _emit_in_order(self, layer: _InOrder) -> Ref:
        """The value in ONNX's order."""
        match layer:
            case Transpose():
                x = self.take(layer.input, f"{layer.name}/nchw")
                return self._b.emit("transpose", f"{layer.name}/turned", (x,), perm=layer.perm)
            case MatMul():
                return self._emit_matmul(layer)
            case Softmax():
                return self._emit_softmax(layer)
            case LayerNorm() | RMSNorm():
                return self._emit_norm(layer)
            case Modulate():
                return self._emit_modulate(layer)
            case AddWeight():
                return self._emit_add_weight(layer)
            case MulWeight():
                return self._emit_mul_weight(layer)

    def _emit_value(self, layer: Layer) -> Ref:
        match layer:
            case Conv():
                return self._emit_conv(layer)
            case ConvTranspose():
                return self._emit_conv_transpose(layer)
            case Relu() | LeakyRelu() | Elu() | Clip() | Activation() | Shift():
                return self._emit_nonlinear(layer)
            case GroupNorm() | BatchNorm() | FixedNorm() | MulWeight() | AddWeight():
                return self._emit_of_channels(layer)
            case MaxPool() | AveragePool():
                return self._emit_pool(layer)
            case Add():
                return self._emit_add(layer)
            case Mul():
                operands = (self.values[layer.left], self.values[layer.right])
                product = self._b.emit("mul", f"{layer.name}/product", operands)
                return self._b.rescale_at_site(layer.name, product)
            case Scale():
                return self._b.rescale_at_site(
                    layer.name,
                    self.values[layer.input],
                    multiplier=layer.multiplier,
                    multiplier_exponent=layer.exponent,
                )
            case Slice():
                x, axis = self.values[layer.input], self._axis(layer.input, layer.axis)
                return self._b.emit(
                    "slice", layer.name, (x,), axis=axis, start=layer.start, stop=layer.stop
                )
            case Pad():
                x, axis = self.values[layer.input], self._axis(layer.input, layer.axis)
                return self._b.emit(
                    "pad", layer.name, (x,), axis=axis, before=layer.before, after=layer.after
                )
            case Concat():
                return self._emit_concat(layer)
            case (
                Linear()
                | Reshape()
                | Transpose()
                | MatMul()
                | Embedding()
                | Dropout()
                | Modulate()
                | Softmax()
                | LayerNorm()
                | RMSNorm()
            ):
                raise AssertionError("emit() has dealt with these")

    def _emit_nonlinear(self, layer: Relu | LeakyRelu | Elu | Clip | Activation | Shift) -> Ref:
        b, x = self._b, self.values[layer.input]
        match layer:
            case Relu():
                return b.emit("relu", layer.name, (x,))
            case LeakyRelu():
                return emit_leaky_relu(b, layer.name, x, layer.multiplier, layer.exponent)
            case Elu():
                return emit_elu(b, layer.name, x, layer.multiplier, layer.exponent)
            case Shift():
                return emit_shift(b, layer.name, x, layer.offset)
            case Clip():
                return emit_clip(b, layer.name, x, layer.low, layer.high)
            case Activation():
                return emit_activation(b, layer.name, x, layer.kind)

    def _emit_dropout(self, layer: Dropout) -> Ref:
        """x times a mask of its shape.  Layers are numbered in order, whatever their names."""
        b, x = self._b, self.values[layer.input]
        if self._masks is None:
            return x
        value, exponent = find_mask_factor(layer.keep)
        mask = b.emit(
            "dropout_mask",
            f"{layer.name}/mask",
            (self._masks.step,),
            seed=self._masks.seed,
            site=self._sites,
            keep=layer.keep,
            value=value,
            exponent=exponent,
            shape=b.type_of(x).shape,
        )
        self._sites += 1
        product = b.emit("mul", f"{layer.name}/product", (x, mask))
        return b.rescale_at_site(layer.name, product)

    def _axis(self, value: str, axis: int) -> int:
        """An axis of ONNX's order where the step graph has it."""
        rank = len(self._b.type_of(self.values[value]).shape)
        return _IN_NHWC[axis] if value in self._images and rank == 4 else axis

    def _emit_concat(self, layer: Concat) -> Ref:
        b, parts = self._b, [self.values[name] for name in layer.inputs]
        exponent = min(b.type_of(part).exponent for part in parts)
        aligned = [
            part
            if b.type_of(part).exponent == exponent
            else b.rescale(f"{layer.name}/part_{number}", part, exponent)
            for number, part in enumerate(parts)
        ]
        axis = self._axis(layer.inputs[0], layer.axis)
        return b.emit("concat", layer.name, aligned, axis=axis)

    def _emit_matmul(self, layer: MatMul) -> Ref:
        b = self._b
        sides = (layer.left, layer.right)
        left, right = (self.take(side, f"{layer.name}/nchw_{i}") for i, side in enumerate(sides))
        acc = b.emit(
            "batched_matmul",
            f"{layer.name}/acc",
            (left, right),
            transpose_a=int(layer.transpose_left),
            transpose_b=int(layer.transpose_right),
        )
        return b.rescale_at_site(f"{layer.name}/product", acc)

    def _emit_softmax(self, layer: Softmax) -> Ref:
        """Rows, with a gradient as one: that of the probabilities goes to no part of it alone."""
        b, name = self._b, layer.name
        x = self.take(layer.input, f"{name}/nchw")
        shape = b.type_of(x).shape
        rows = b.emit("reshape", f"{name}/rows", (x,), shape=(math.prod(shape[:-1]), shape[-1]))
        multiplier, exponent = _to_log2(layer.multiplier, layer.exponent)
        z = b.rescale(
            f"{name}/log2",
            rows,
            LOG2_EXPONENT,
            dtype="i32",
            multiplier=multiplier,
            multiplier_exponent=exponent,
        )
        spans = None
        if layer.window is not None or layer.reads_ids:
            spans = self._take_spans(layer, shape)
            z = b.emit("keep_span", f"{name}/kept", (z, spans), fill=b.type_of(z).lo)
        maximum = b.emit("row_max", f"{name}/max", (z,))
        e = b.emit("exp2_diff", f"{name}/exp", (z, maximum))
        if spans is not None:
            e = b.emit("keep_span", f"{name}/kept_exp", (e, spans), fill=0)
        total = b.emit("row_sum", f"{name}/sum", (e,))
        p = b.emit("divide", f"{name}/probabilities", (e, total))

        def differentiate(builder: Builder, out: Ref, grad: Ref) -> tuple[Ref]:
            """Of the exponents exactly, then times the factor."""
            g = builder.as_operand(grad, f"{name}/grad_out")
            exact = builder.emit("softmax_grad", f"{name}/grad_exact", (out, g))
            if b.fine_gradients:
                return (self._scale_deep(layer, exact),)
            operand = builder.as_operand(exact, f"{name}/grad")
            attrs = {"multiplier": layer.multiplier, "multiplier_exponent": layer.exponent}
            dtype = "i16" if layer.multiplier == 1 else "i64"
            scaled = builder.emit(
                "rescale", f"{name}/grad_scaled", (operand,), dtype=dtype, shift=0, **attrs
            )
            return (scaled,)

        b.blocks[p] = Block((rows,), differentiate, deep=b.fine_gradients)
        return b.emit("reshape", f"{name}/out", (p,), shape=shape)

    def _scale_deep(self, layer: Softmax, exact: Ref) -> Ref:
        """The gradient of scores times the factor, as a deep one; rounded before that only where
        the product would pass 2^60."""
        b, name, kind = self._b, layer.name, self._b.type_of(exact)
        bits = max(-kind.lo, kind.hi).bit_length() + layer.multiplier.bit_length()
        over = max(bits - (ACCUMULATOR_LIMIT.bit_length() - 1), 0)
        if over:
            exact = b.rescale(f"{name}/grad_cut", exact, kind.exponent - over, dtype="i64")
        return b.rescale(
            f"{name}/grad",
            exact,
            kind.exponent - max(bits - DEEP_BITS, 0) + layer.exponent,
            dtype="i64",
            multiplier=layer.multiplier,
            multiplier_exponent=layer.exponent,
        )

    def _take_spans(self, layer: Softmax, shape: tuple[int, ...]) -> Ref:
        """The spans of rows [batch, ..., places, columns]; equal ones are made once."""
        b, places, window = self._b, shape[-2], layer.window
        if not layer.reads_ids and window is not None:
            key: tuple[int | None, ...] = (places, window)
            if key not in self._spans:
                name = f"spans/{places}_{window}"
                self._spans[key] = b.emit("causal_spans", name, (), queries=places, window=window)
            return self._spans[key]
        ids = self._take_ids(layer, shape)
        key = (places, window, layer.end_of_text, layer.padding)
        if key not in self._spans:
            self._spans[key] = b.emit(
                "token_spans",
                f"spans/{places}_by_ids",
                (ids,),
                before=MAX_PLACES if window is None else window,
                after=MAX_PLACES if window is None else 1,
                end_of_text=NO_ID if layer.end_of_text is None else layer.end_of_text,
                padding=NO_ID if layer.padding is None else layer.padding,
            )
        return self._copy_spans(self._spans[key], key, shape)

    def _take_ids(self, layer: Softmax, shape: tuple[int, ...]) -> Ref:
        """The ids of the batch, one for each place of these rows."""
        b, ids = self._b, self._ids
        wanted = (shape[0], shape[-1])
        if ids is None or b.type_of(ids).shape != wanted or shape[-2] != shape[-1]:
            raise ModelError(
                f"attends by the ids of a sample, and has {shape[-2]} rows of {shape[-1]} columns: "
                "each place of a sample must attend to each, and samples must be rows of ids "
                '(data.prepare of kind "ids" or "one_hot")',
                where=layer.name,
            )
        return ids

    def _copy_spans(self, spans: Ref, key: tuple[int | None, ...], shape: tuple[int, ...]) -> Ref:
        """The spans of each sample once for each of its heads."""
        b, heads = self._b, math.prod(shape[1:-2])
        key = (*key, heads)
        if key not in self._spans:
            name = b.nodes[spans.node].name
            if heads > 1:
                spans = b.emit("concat", f"{name}/heads", (spans,) * heads, axis=1)
            rows = (math.prod(shape[:-1]), 2)
            self._spans[key] = b.emit("reshape", f"{name}/rows", (spans,), shape=rows)
        return self._spans[key]

    def _emit_modulate(self, layer: Modulate) -> Ref:
        """The constant scales the columns of rows that are as long as all of it."""
        b = self._b
        flat = self._constant_of(layer.constant)
        x = self.take(layer.input, f"{layer.name}/nchw")
        size, shape = b.type_of(flat).size, b.type_of(x).shape
        rows = b.emit("reshape", f"{layer.name}/rows", (x,), shape=(math.prod(shape) // size, size))
        acc = b.emit("column_scale", f"{layer.name}/acc", (rows, flat))
        y = b.rescale_at_site(f"{layer.name}/out_rows", acc)
        return b.emit("reshape", f"{layer.name}/out", (y,), shape=shape)

    def _constant_of(self, name: str) -> Ref:
        """A constant as one row of int16 at :func:`find_constant_exponent`; shared by all its
        uses."""
        b = self._b
        if name not in self._weights:
            exponent = find_constant_exponent(self._model.params[name])
            operand = b.rescale(f"{name}/operand", self._params[name], exponent)
            size = b.type_of(operand).size
            self._weights[name] = b.emit("reshape", f"{name}/flat", (operand,), shape=(size,))
        return self._weights[name]

    def _emit_add_weight(self, layer: AddWeight) -> Ref:
        """The weight is added as a bias is: to rows as long as all of it."""
        b, weight = self._b, self._params[layer.weight]
        if layer.rows is not None:
            name = f"{layer.name}/rows_read"
            weight = b.emit("slice", name, (weight,), axis=0, start=0, stop=layer.rows)
        x = self.take(layer.input, f"{layer.name}/nchw")
        shape = b.type_of(x).shape
        if layer.along is not None:
            weight = self._surround(layer.name, weight, shape, layer.along)
        size = b.type_of(weight).size
        rows = b.emit("reshape", f"{layer.name}/rows", (x,), shape=(math.prod(shape) // size, size))
        flat = b.emit("reshape", f"{layer.name}/weight", (weight,), shape=(size,))
        y = self._add_to_rows(layer.name, flat, rows)
        return b.emit("reshape", f"{layer.name}/out", (y,), shape=shape)

    def _add_to_rows(self, name: str, weight: Ref, rows: Ref) -> Ref:
        b, before = self._b, self._b.type_of(rows).exponent
        exponent = min(before + _SUM_BITS, max(before, MASTER_EXPONENT))
        wide = b.rescale(f"{name}/wide", rows, exponent, dtype="i64")
        shift = MASTER_EXPONENT - exponent
        total = b.emit("add_bias", f"{name}/sum", (wide, weight), shift=shift)
        return b.rescale_at_site(f"{name}/out_rows", total)

    def _surround(
        self, name: str, weight: Ref, shape: tuple[int, ...], along: tuple[int, int, int]
    ) -> Ref:
        """The weight of a part of x with zeros around it, as large as a sample."""
        b, (axis, start, stop) = self._b, along
        part = (*shape[1:axis], stop - start, *shape[axis + 1 :])
        apart = b.emit("reshape", f"{name}/weight_apart", (weight,), shape=part)
        around = {"before": start, "after": shape[axis] - stop}
        return b.emit("pad", f"{name}/weight_placed", (apart,), axis=axis - 1, **around)

    def _emit_mul_weight(self, layer: MulWeight) -> Ref:
        """The weight scales the columns of rows that are as long as all of it."""
        b, name = self._b, layer.name
        x = self.take(layer.input, f"{name}/nchw")
        size, shape = b.type_of(self._params[layer.weight]).size, b.type_of(x).shape
        rows = b.emit("reshape", f"{name}/rows", (x,), shape=(math.prod(shape) // size, size))
        return b.emit("reshape", f"{name}/out", (self._scale_columns(layer, rows),), shape=shape)

    def _scale_columns(self, layer: MulWeight, rows: Ref) -> Ref:
        operands = (rows, self.operand_of(layer.weight))
        acc = self._b.emit("column_scale", f"{layer.name}/acc", operands)
        return self._b.rescale_at_site(f"{layer.name}/out_rows", acc)

    def _emit_embedding(self, layer: Embedding) -> Ref:
        b, ids = self._b, self.values[layer.input]
        shape = b.type_of(ids).shape
        flat = b.emit("reshape", f"{layer.name}/ids", (ids,), shape=(math.prod(shape),))
        table = self.operand_of(layer.weight)
        rows = b.emit("gather_rows", f"{layer.name}/rows", (table, flat))
        if layer.without_gradient is not None:
            b.blocks[rows] = self._leave_row(layer.name, table, flat, layer.without_gradient)
        return b.emit("reshape", layer.name, (rows,), shape=(*shape, b.type_of(rows).shape[1]))

    def _leave_row(self, name: str, table: Ref, ids: Ref, row: int) -> Block:
        """The gradient of rows of a table, in which one row has zeros."""
        count = self._b.type_of(table).shape[0]

        def differentiate(builder: Builder, out: Ref, grad: Ref) -> tuple[Ref, None]:
            whole = add_rows(builder, f"{name}/grad_table", grad, ids, count)
            after = {"axis": 0, "start": row + 1, "stop": count}
            if row == 0:
                rest = builder.emit("slice", f"{name}/grad_after", (whole,), **after)
                return (_pad_row(builder, f"{name}/grad_kept", rest, 1, 0), None)
            before = builder.emit(
                "slice", f"{name}/grad_before", (whole,), axis=0, start=0, stop=row
            )
            padded = _pad_row(builder, f"{name}/grad_row", before, 0, 1)
            if row == count - 1:
                return (padded, None)
            rest = builder.emit("slice", f"{name}/grad_after", (whole,), **after)
            return (builder.emit("concat", f"{name}/grad_kept", (padded, rest), axis=0), None)

        return Block((table, ids), differentiate)

    def _is_cut_up(self, layer: Linear) -> bool:
        """Whether nothing of the output is read but parts of its last axis, as of queries, keys and
        values in one: with ``fine_gradients`` each part is a layer then, at exponents of its own.
        """
        readers = [each for each in self._model.layers if layer.name in find_sources(each)]
        if not self._b.fine_gradients or not readers or layer.name == self._model.output:
            return False
        rank = len(self._b.type_of(self.values[layer.input]).shape)
        if layer.name in self._images and rank == 4:
            return False
        return all(isinstance(each, Slice) and each.axis == rank - 1 for each in readers)

    def _emit_linear(self, layer: Linear, part: Slice | None = None) -> Ref:
        """The layer, or the part of its outputs that a slice reads."""
        name = layer.name if part is None else part.name
        b, x = self._b, self.take(layer.input, f"{name}/nchw")
        *leading, features = b.type_of(x).shape
        flat = len(leading) == 1
        if not flat:
            rows = (math.prod(leading), features)
            x = b.emit("reshape", f"{name}/rows", (x,), shape=rows)
        weight = self.operand_of(layer.weight)
        if part is not None:
            ends = {"start": part.start, "stop": part.stop}
            axis = 0 if layer.transposed else 1
            weight = b.emit("slice", f"{name}/weight", (weight,), axis=axis, **ends)
        acc = b.emit(
            "matmul",
            f"{name}/acc",
            (x, weight),
            transpose_a=0,
            transpose_b=int(layer.transposed),
        )
        biased = self._with_bias(acc, name, layer.bias, part)
        if flat:
            return b.rescale_at_site(name, biased)
        y = b.rescale_at_site(f"{name}/out_rows", biased)
        return b.emit("reshape", name, (y,), shape=(*leading, b.type_of(y).shape[1]))

    def _emit_norm(self, layer: LayerNorm | RMSNorm) -> Ref:
        b, name = self._b, layer.name
        y = emit_normalized(
            b,
            name,
            self.take(layer.input, f"{name}/nchw"),
            layer.epsilon,
            centred=isinstance(layer, LayerNorm),
            site=f"{name}/normalized",
        )
        return self._emit_affine(layer, y)

    def _emit_affine(
        self, layer: LayerNorm | RMSNorm | GroupNorm | BatchNorm | FixedNorm, y: Ref
    ) -> Ref:
        """Rows times the scale of a norm, plus its bias."""
        b, name = self._b, layer.name
        bias = None if isinstance(layer, RMSNorm) else layer.bias
        if layer.weight is None and bias is None:
            return y
        if layer.weight is None:
            acc = b.rescale(f"{name}/acc", y, b.type_of(y).exponent, dtype="i64")
        else:
            operands = (y, self.operand_of(layer.weight))
            acc = b.emit("column_scale", f"{name}/acc", operands)
        return b.rescale_at_site(f"{name}/out", self._with_bias(acc, name, bias))

    def _with_bias(self, acc: Ref, name: str, bias: str | None, part: Slice | None = None) -> Ref:
        b = self._b
        if bias is None:
            return acc
        shift, values = MASTER_EXPONENT - b.type_of(acc).exponent, self._params[bias]
        if part is not None:
            ends = {"start": part.start, "stop": part.stop}
            values = b.emit("slice", f"{name}/bias", (values,), axis=0, **ends)
        return b.emit("add_bias", f"{name}/biased", (acc, values), shift=shift)

    def _emit_of_channels(self, layer: _OfChannels) -> Ref:
        """Rows of groups or of channels are normalised; scale and bias are of the channels."""
        if isinstance(layer, MulWeight):
            return self._emit_by_channels(layer, partial(self._scale_columns, layer))
        if isinstance(layer, AddWeight):
            weight = self._params[layer.weight]
            return self._emit_by_channels(layer, partial(self._add_to_rows, layer.name, weight))
        if isinstance(layer, FixedNorm):
            return self._emit_by_channels(
                layer, lambda rows: self._emit_affine(layer, self._normalize_fixed(layer, rows))
            )
        batch = self._b.type_of(self.values[layer.input]).shape[0]
        return self._emit_by_channels(
            layer, lambda rows: self._emit_affine(layer, self._normalize(layer, rows, batch))
        )

    def _emit_by_channels(self, layer: _OfChannels, compute: Callable[[Ref], Ref]) -> Ref:
        """What ``compute`` makes of rows [samples and places, channels], in the order of x."""
        b, name, images = self._b, layer.name, layer.input in self._images
        x = self.values[layer.input]
        shape = b.type_of(x).shape
        moved = len(shape) > 2 and not (images and len(shape) == 4)
        if moved:
            last = (0, *range(2, len(shape)), 1)
            x = b.emit("transpose", f"{name}/channels_last", (x,), perm=last)
        whole = b.type_of(x).shape
        rows = b.emit("reshape", f"{name}/rows", (x,), shape=(math.prod(whole[:-1]), whole[-1]))
        out = compute(rows)
        if not moved:
            return b.emit("reshape", name, (out,), shape=shape)
        apart = b.emit("reshape", f"{name}/places", (out,), shape=whole)
        first = (0, len(shape) - 1, *range(1, len(shape) - 1))
        return b.emit("transpose", name, (apart,), perm=first)

    def _normalize(self, layer: GroupNorm | BatchNorm, rows: Ref, batch: int) -> Ref:
        """Rows [samples and places, channels] with groups or channels of mean square 1."""
        b, name = self._b, layer.name
        count, channels = b.type_of(rows).shape
        site = f"{name}/normalized"
        if isinstance(layer, BatchNorm):
            if count < 2:
                raise ModelError(
                    "has one value a channel in a batch of one sample, and a variance needs two: "
                    "take a larger batch",
                    where=layer.name,
                )
            turned = b.emit("transpose", f"{name}/channels", (rows,), perm=(1, 0))
            y, squares = emit_with_squares(b, name, turned, layer.epsilon, site=site)
            self._update_statistics(layer, rows, squares)
            return b.emit("transpose", f"{name}/rows_back", (y,), perm=(1, 0))
        places, size = count // batch, channels // layer.groups
        split = (batch, places, layer.groups, size)
        apart = b.emit("reshape", f"{name}/apart", (rows,), shape=split)
        turned = b.emit("transpose", f"{name}/groups", (apart,), perm=(0, 2, 1, 3))
        flat = (batch * layer.groups, places * size)
        long = b.emit("reshape", f"{name}/group_rows", (turned,), shape=flat)
        y = emit_normalized(b, name, long, layer.epsilon, centred=True, site=site)
        split = (batch, layer.groups, places, size)
        apart = b.emit("reshape", f"{name}/normalized_groups", (y,), shape=split)
        back = b.emit("transpose", f"{name}/groups_back", (apart,), perm=(0, 2, 1, 3))
        return b.emit("reshape", f"{name}/rows_back", (back,), shape=(count, channels))

    def _normalize_fixed(self, layer: FixedNorm, rows: Ref) -> Ref:
        """Rows [samples and places, channels] by the statistics of the channels."""
        b, name = self._b, layer.name
        raised = b.emit("column_scale", f"{name}/raised", (rows, self._constant_of(layer.power)))
        shift = MASTER_EXPONENT - b.type_of(raised).exponent
        offset = self._params[layer.offset]
        moved = b.emit("add_bias", f"{name}/moved", (raised, offset), shift=shift)
        centred = b.rescale_at_site(f"{name}/centred", moved, multiplier=1 << layer.lift)
        acc = b.emit("column_scale", f"{name}/scaled", (centred, self._constant_of(layer.rest)))
        return b.rescale_at_site(f"{name}/normalized", acc)

    def _update_statistics(self, layer: BatchNorm, rows: Ref, squares: Ref) -> None:
        old = self._params[layer.mean], self._params[layer.variance]
        mean, variance = emit_statistics(
            self._b, layer.name, rows, squares, old, layer.share, unbiased=layer.unbiased
        )
        self.statistics |= {layer.mean: mean, layer.variance: variance}

    def _emit_conv(self, layer: Conv) -> Ref:
        b, x = self._b, self.values[layer.input]
        batch, height, width, _ = b.type_of(x).shape
        multiply = self._multiply_patches if layer.groups == 1 else self._multiply_groups
        acc = multiply(layer, x)
        channels = b.type_of(acc).shape[1]
        rows = b.rescale_at_site(f"{layer.name}/rows", self._with_bias(acc, layer.name, layer.bias))
        shape = (batch, *layer.window.output_extent(height, width), channels)
        return b.emit("reshape", layer.name, (rows,), shape=shape)

    def _emit_conv_transpose(self, layer: ConvTranspose) -> Ref:
        """The adjoint of a convolution: what is there its gradient is here the value."""
        b, name, x = self._b, layer.name, self.values[layer.input]
        batch, height, width, channels = b.type_of(x).shape
        weight = self.operand_of(layer.weight)
        _, down, across, made = b.type_of(weight).shape
        rows = b.emit("reshape", f"{name}/pixels", (x,), shape=(batch * height * width, channels))
        flat = b.emit(
            "reshape", f"{name}/weight", (weight,), shape=(channels, down * across * made)
        )
        patches = b.emit("matmul", f"{name}/patches", (rows, flat), transpose_a=0, transpose_b=0)
        attrs, shape = _window_attrs(layer.window), (batch, *layer.extent, made)
        image = b.emit("col2im", f"{name}/image", (patches,), shape=shape, **attrs)

        def differentiate(builder: Builder, out: Ref, grad: Ref) -> tuple[Ref]:
            g = builder.as_operand(grad, f"{name}/grad_image")
            return (builder.emit("im2col", f"{name}/grad_patches", (g,), **attrs),)

        b.blocks[image] = Block((patches,), differentiate)
        acc = b.emit("reshape", f"{name}/acc", (image,), shape=(math.prod(shape[:-1]), made))
        out = b.rescale_at_site(f"{name}/rows", self._with_bias(acc, name, layer.bias))
        return b.emit("reshape", name, (out,), shape=shape)

    def _multiply_patches(self, layer: Conv, x: Ref) -> Ref:
        b = self._b
        patches = b.emit("im2col", f"{layer.name}/patches", (x,), **_window_attrs(layer.window))
        weight = self._kernel_of(layer)
        flat_shape = (b.type_of(weight).shape[0], b.type_of(patches).shape[1])
        flat = b.emit("reshape", f"{layer.name}/weight", (weight,), shape=flat_shape)
        return b.emit("matmul", f"{layer.name}/acc", (patches, flat), transpose_a=0, transpose_b=1)

    def _multiply_groups(self, layer: Conv, x: Ref) -> Ref:
        """Groups as samples of their own, before the others: a stack of products, one of each."""
        b, name, groups = self._b, layer.name, layer.groups
        weight = self._kernel_of(layer)
        batch, height, width, channels = b.type_of(x).shape
        size, made = channels // groups, b.type_of(weight).shape[0]
        split = (batch, height, width, groups, size)
        apart = b.emit("reshape", f"{name}/apart", (x,), shape=split)
        turned = b.emit("transpose", f"{name}/groups", (apart,), perm=(3, 0, 1, 2, 4))
        images = (groups * batch, height, width, size)
        stacked = b.emit("reshape", f"{name}/images", (turned,), shape=images)
        attrs = _window_attrs(layer.window)
        patches = b.emit("im2col", f"{name}/patches", (stacked,), **attrs)
        count, terms = b.type_of(patches).shape
        matrices = (groups, count // groups, terms)
        left = b.emit("reshape", f"{name}/stack", (patches,), shape=matrices)
        right = b.emit(
            "reshape", f"{name}/weight", (weight,), shape=(groups, made // groups, terms)
        )
        acc = b.emit(
            "batched_matmul", f"{name}/group_acc", (left, right), transpose_a=0, transpose_b=1
        )
        back = b.emit("transpose", f"{name}/groups_back", (acc,), perm=(1, 0, 2))
        return b.emit("reshape", f"{name}/acc", (back,), shape=(count // groups, made))

    def _kernel_of(self, layer: Conv) -> Ref:
        """The weight, as large as the window: a kernel with zeros between its elements makes a
        convolution a dilated one."""
        b, name, weight = self._b, layer.name, self.operand_of(layer.weight)
        if layer.dilations == (1, 1):
            return weight
        out, height, width, size = b.type_of(weight).shape
        (down, across), (rows, columns) = layer.dilations, layer.window.kernel
        apart = (out, height, 1, width, 1, size)
        kernel = b.emit("reshape", f"{name}/kernel_apart", (weight,), shape=apart)
        for axis, step in ((2, down), (4, across)):
            spread_axis = f"{name}/kernel_spread_{axis}"
            kernel = b.emit("pad", spread_axis, (kernel,), axis=axis, before=0, after=step - 1)
        spread = (out, height * down, width * across, size)
        kernel = b.emit("reshape", f"{name}/kernel_spread", (kernel,), shape=spread)
        for axis, extent in ((1, rows), (2, columns)):
            kernel = b.emit(
                "slice", f"{name}/kernel_cut_{axis}", (kernel,), axis=axis, start=0, stop=extent
            )
        return kernel

    def _emit_pool(self, layer: MaxPool | AveragePool) -> Ref:
        b = self._b
        attrs = _window_attrs(layer.window)
        if isinstance(layer, MaxPool):
            return b.emit("max_pool", layer.name, (self.values[layer.input],), **attrs)
        total = b.emit("sum_pool", f"{layer.name}/sum", (self.values[layer.input],), **attrs)
        area = layer.window.area
        if area & (area - 1) == 0:
            multiplier, exponent = 1, area.bit_length() - 1
        else:
            exponent = 15 + area.bit_length() - 1
            multiplier = (2 * (1 << exponent) + area) // (2 * area)  # round half up, 16 bits
        return b.rescale_at_site(
            layer.name, total, multiplier=multiplier, multiplier_exponent=exponent
        )

    def _emit_add(self, layer: Add) -> Ref:
        b = self._b
        left, right = self.values[layer.left], self.values[layer.right]
        f_left, f_right = b.type_of(left).exponent, b.type_of(right).exponent
        finest = max(f_left, f_right)
        total = b.emit(
            "add",
            f"{layer.name}/sum",
            (left, right),
            shift_a=finest - f_left,
            shift_b=finest - f_right,
        )
        if self._stays_wide(layer):
            return b.narrow_sum(layer.name, total)
        return b.rescale_at_site(layer.name, total)

    def _stays_wide(self, layer: Add) -> bool:
        """Whether nothing is read of a sum but further sums and root mean squares, as of a residual
        stream: with ``wide_sums`` it is not rounded to int16."""
        if not self._b.wide_sums or layer.name == self._model.output:
            return False
        readers = [each for each in self._model.layers if layer.name in find_sources(each)]
        return bool(readers) and all(isinstance(each, Add | RMSNorm) for each in readers)


def _pad_row(builder: Builder, name: str, rows: Ref, before: int, after: int) -> Ref:
    return builder.emit("pad", name, (rows,), axis=0, before=before, after=after)


def emit_forward(
    builder: GraphBuilder,
    model: Model,
    x: Ref,
    params: Mapping[str, Ref],
    masks: Masks | None = None,
    ids: Ref | None = None,
    statistics: dict[str, Ref] | None = None,
) -> Ref:
    """Emit the layers of ``model``: ``x`` [batch, ...] -> its output, int16; both in ONNX order.

    ``x`` is int16, or whole numbers where the model takes such.  Without ``masks`` nothing is
    dropped, as where a model is used.  ``ids`` [batch, places] are what x was prepared from, where
    attention looks at them; they are x itself if it is whole numbers.  ``statistics`` is given the
    new values of the parameters that the pass changes, by their names.

    GraphError names a node that is refused, ModelError a layer.
    """
    if ids is None and model.takes_ids:
        ids = x
    emitter = _Emitter(builder, model, params, masks, ids)
    batch = builder.type_of(x).shape[0]
    emitter.give(model.input, x, (batch, *model.input_shape))
    for layer in model.layers:
        emitter.emit(layer)
    if statistics is not None:
        statistics |= emitter.statistics
    return emitter.take(model.output, f"{model.output}/nchw")


def describe(model: Model) -> list[tuple[str, str, Any]]:
    """(layer name, kind, parameter shape or None) for people."""
    rows: list[tuple[str, str, Any]] = []
    for layer in model.layers:
        weight = getattr(layer, "weight", None)
        rows.append(
            (layer.name, type(layer).__name__, model.params[weight].shape if weight else None)
        )
    return rows


def require_known_values(model: Model) -> None:
    """ModelError unless every layer reads a value made before it and names are unique."""
    known = {model.input}
    for layer in model.layers:
        for source in find_sources(layer):
            if source not in known:
                raise ModelError(
                    f"reads {source!r}, which no earlier layer makes", where=layer.name
                )
        if layer.name in known:
            raise ModelError("two layers put out a value of this name", where=layer.name)
        known.add(layer.name)
    if model.output not in known:
        raise ModelError("is not a value of the model", where=model.output)
