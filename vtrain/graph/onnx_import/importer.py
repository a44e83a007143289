"""What the import knows so far: names, shapes, and the layers made."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
import onnx

from vtrain.errors import ModelError
from vtrain.graph.model import Layer, Scale
from vtrain.graph.onnx_file import count_elements, read_dims, read_ints
from vtrain.graph.onnx_import import fold
from vtrain.graph.onnx_import.node import Node, read_constant
from vtrain.wire.graph import MAX_RANK

_TORCH_CONSTANT = re.compile(r"val_\d+")
"""So torch's exporter names constants of its own, as the ones of a norm without a scale."""
_MOST_INTS: Final = 2 * MAX_RANK
"""Of a list: pads have two for each axis."""
Extents = tuple[int | None, ...]

MASK_HINT: Final = (
    "A mask of padding compares the model's input, whole numbers, with one number. Attention "
    "within documents is asked for in the task file: leave its mask out of the model, and set "
    "end_of_text in the table model"
)


@dataclass(frozen=True)
class Weight:
    """A stored tensor under a name of its own; ``transposed``: read with its two axes swapped;
    ``rows``: the first so many alone, of which ``dims`` are."""

    name: str
    dims: tuple[int, ...]
    transposed: bool = False
    rows: int | None = None


@dataclass(frozen=True)
class Spread:
    """Part of a norm that an exporter writes node by node: of the mean of the squares of ``value``
    with ``epsilon``, itself (power 0), its root (1) or the root's inverse (-1)."""

    value: str
    epsilon: float = 0.0
    power: int = 0


@dataclass(frozen=True)
class Scores:
    """What a softmax takes: a value, with the window of places that a mask leaves and the id of
    padding that it hides."""

    value: str
    window: int | None = None
    padding: int | None = None


@dataclass(frozen=True)
class IdsMask:
    """Which places are kept: those whose id is not ``padding`` and that ``allowed`` has.

    ``shape`` is without the batch, the places last.  It is 1 where a place is kept, or else, with
    ``hides``, where it is not; with ``added`` it is minus infinity there and 0 elsewhere.
    """

    padding: int
    shape: tuple[int, ...]
    hides: bool
    allowed: npt.NDArray[np.bool_] | None = None
    added: bool = False


class Importer:
    """The names of the file, and the layers that its nodes have become so far.

    A name stands for one of: a value (``values``: the layer that makes it; ``shapes``: without the
    batch), a stored tensor (``weights``), or a constant that the file computes (``computed``).  A
    value may be one that only some operators can read: with places hidden, which a softmax takes
    (``masked``), or with its first axes made one with the batch (``merged``: the value and how many
    those are).  A name may also be part of a norm, which the rest of it alone reads (``spreads``),
    a mask of the ids (``masks``), or say where a softmax is no number (``nans``: the softmax).
    """

    def __init__(
        self, graph: onnx.GraphProto, opset: int, *, by_torch: bool = False, ties: bool = True
    ) -> None:
        self.graph, self.opset, self.by_torch, self.ties = graph, opset, by_torch, ties
        self.tensors: dict[str, onnx.TensorProto] = {}
        self.constants = {
            tensor.name
            for tensor in graph.initializer
            if by_torch and _TORCH_CONSTANT.fullmatch(tensor.name)
        }
        self.names: set[str] = set()
        self.values: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.weights: dict[str, Weight] = {}
        self.computed: dict[str, fold.Constant] = {}
        self.literals: set[str] = set()
        self.columns: dict[str, Weight] = {}
        self.roots: dict[str, frozenset[str]] = {}
        self.tables: dict[str, npt.NDArray[np.int32]] = {}
        self.masked: dict[str, Scores] = {}
        self.masks: dict[str, IdsMask] = {}
        self.nans: dict[str, str] = {}
        self.merged: dict[str, tuple[str, int]] = {}
        self.spreads: dict[str, Spread] = {}
        self.factors: dict[str, Fraction] = {}
        self.places: dict[str, str] = {}
        self.layers: dict[str, Layer] = {}
        self.idle: list[str] = []
        self.made_later: set[str] = set()
        self.batch: int | None = fold.BATCH
        self.input = ""
        self.takes_ids = False

    def declare(self, name: str, where: str) -> None:
        """Take a name, which only one thing may have."""
        if not name:
            raise ModelError("has no name", where=where)
        if name in self.names:
            raise ModelError(f"the name {name!r} is taken", where=where)
        self.names.add(name)

    def store(self, name: str, tensor: onnx.TensorProto) -> None:
        """A tensor of the file."""
        where = f"initialiser {name}"
        self.declare(name, where)
        self.tensors[name] = tensor
        self.weights[name] = Weight(name, read_dims(tensor, where))

    def fail_unknown(self, node: Node, name: str, wanted: str) -> NoReturn:
        """Say why a name is not what a node wants of it."""
        if name in self.spreads:
            node.refuse(f"input {name!r} is a mean of squares: only a norm of rows may have one")
        if name in self.masks:
            node.refuse(f"input {name!r} is a mask of ids. {MASK_HINT}")
        if name in self.names:
            node.refuse(f"input {name!r} must be {wanted}")
        if name in self.made_later:
            node.refuse(f"reads {name!r} before it is made: a cycle, or nodes out of order")
        node.refuse(f"reads {name!r}, which nothing makes")

    def value(self, node: Node, name: str) -> str:
        """The layer (or the graph's input) that makes the value ``name``, of floats."""
        value = self.any_value(node, name)
        if self.takes_ids and value == self.input:
            node.refuse(f"input {name!r} is whole numbers: only a Gather of a table reads them")
        return value

    def any_value(self, node: Node, name: str) -> str:
        """As :meth:`value`, of ids too."""
        if name not in self.values:
            self.fail_unknown(node, name, "a value computed from the model's input")
        value = self.values[name]
        node.require(
            value not in self.masked, f"only a Softmax can read {name!r}, whose places are masked"
        )
        node.require(
            value not in self.merged, f"input {name!r} has its batch merged with another axis"
        )
        return value

    def weight(self, node: Node, name: str) -> Weight:
        """A stored tensor, whole."""
        if name not in self.weights:
            self.fail_unknown(node, name, "a constant")
        weight = self.weights[name]
        node.require(
            weight.rows is None, f"reads the first rows of {weight.name!r}: they can only be added"
        )
        return weight

    def ints(self, node: Node, name: str) -> Extents:
        """A list of integers known now; a scalar counts as a list of one."""
        if name in self.computed:
            found = self.computed[name]
            node.require(
                found.dtype in (object, np.bool_) and found.ndim <= 1 and found.size <= _MOST_INTS,
                f"input {name!r} must be a short list of integers, has shape {list(found.shape)}",
            )
            return tuple(None if i is None else int(i) for i in found.reshape(-1).tolist())
        weight = self.weight(node, name)
        where = f"initialiser {weight.name}"
        node.require(
            len(weight.dims) <= 1 and count_elements(weight.dims, where) <= _MOST_INTS,
            f"input {name!r} must be a short list, has shape {list(weight.dims)}",
        )
        return tuple(int(i) for i in read_ints(self.tensors[weight.name], where).reshape(-1))

    def known_ints(self, node: Node, name: str) -> tuple[int, ...]:
        """As :meth:`ints`, without the batch among them."""
        found = self.ints(node, name)
        known = tuple(extent for extent in found if extent is not None)
        node.require(len(known) == len(found), f"input {name!r} must be constant")
        return known

    def shape_of(self, node: Node, value: str, rank: int | None = None) -> tuple[int, ...]:
        """The shape of a value without the batch, refused if it has not ``rank`` axes."""
        shape = self.shapes[value]
        if rank is not None and len(shape) != rank:
            expected = {
                1: "[batch, features]",
                2: "[batch, places, features]",
                3: "[batch, channels, height, width]",
            }[rank]
            node.refuse(f"needs {expected}, has [batch, {', '.join(map(str, shape))}]")
        return shape

    def emit(self, node: Node, layer: Layer, shape: tuple[int, ...]) -> None:
        """A layer, and the value of that name and of this ``shape`` that it makes."""
        count_elements(shape, node.where)
        self.declare(layer.name, node.where)
        self.layers[layer.name] = layer
        self.places[layer.name] = node.where
        self.values[layer.name] = layer.name
        self.shapes[layer.name] = shape

    def declare_merged(self, node: Node, name: str, value: str, count: int) -> None:
        """``name`` is the value with ``count`` axes made one with the batch."""
        self.declare(name, node.where)
        self.values[name], self.shapes[name] = name, self.shapes[value][count:]
        self.merged[name] = value, count

    def is_number(self, name: str) -> bool:
        """Whether a stored tensor is a constant, and no parameter, of one element."""
        is_constant = name in self.literals and not self.is_parameter(name)
        return is_constant and math.prod(self.weights[name].dims) == 1

    def scalar(self, node: Node, name: str) -> Fraction:
        """A constant of one element."""
        if name in self.values or not (name in self.weights or name in self.computed):
            self.weight(node, name)
        weight = self.weights.get(name)
        if weight is not None and count_elements(weight.dims, node.where) != 1:
            node.refuse(f"input {name!r} must be a value, or a constant of one element")
        found = self.constant_of(node, name)
        if found.size != 1 or found.ndim > 1 or found.dtype != np.float64:
            node.refuse(f"input {name!r} must be a value, or a constant of one element")
        factor = float(found.reshape(-1)[0])
        node.require(bool(np.isfinite(factor)), f"input {name!r} is not finite")
        return Fraction(factor)

    def number(self, node: Node, name: str) -> float:
        """A constant of one element, which need not be finite."""
        found = self.constant_of(node, name)
        if found.size != 1 or found.dtype != np.float64:
            node.refuse(f"input {name!r} must be one number")
        return float(found.reshape(-1)[0])

    def alias(self, node: Node, source: str) -> None:
        """Another name for a value or a constant."""
        name = node.outputs[0]
        if source in self.weights:
            # torch's exporter writes equal parameters once, and the others as its Identity: they
            # are parameters of their own.
            self.declare(name, node.where)
            weight = self.weights[source]
            self.tensors[name] = self.tensors[weight.name]
            self.weights[name] = replace(weight, name=name)
            if weight.name in self.constants:
                self.constants.add(name)
        else:
            value = self.any_value(node, source)
            self.declare(name, node.where)
            self.values[name] = value

    def is_parameter(self, name: str) -> bool:
        """Whether a file that tells its parameters from its constants has a parameter there."""
        weight = self.weights.get(name)
        return not self.ties and weight is not None and weight.name not in self.constants

    def take_rows(self, node: Node, weight: Weight, count: int) -> None:
        """The first ``count`` rows of a parameter, under the name of the node's output."""
        dims = strip(weight.dims)
        node.require(count > 0 and weight.rows is None, f"takes {count} rows")
        self.declare(node.outputs[0], node.where)
        rows = None if count == dims[0] else count
        self.weights[node.outputs[0]] = replace(weight, dims=(count, *dims[1:]), rows=rows)

    def constant_of(self, node: Node, name: str) -> fold.Constant:
        """A constant, stored or computed."""
        if name in self.computed:
            return self.computed[name]
        weight = self.weight(node, name)
        node.require(
            not self.is_parameter(name),
            f"computes with the parameter {weight.name!r}, which would not be trained: make it a "
            "buffer, or set requires_grad_(False)",
        )
        found = read_constant(self.tensors[weight.name], f"initialiser {weight.name}")
        return found.T if weight.transposed else found

    def take_factor(self, value: str) -> tuple[str, Fraction]:
        """What a value is a constant multiple of, and the factor."""
        factor = Fraction(1)
        while isinstance(layer := self.layers.get(value), Scale):
            factor *= self.factors[value]
            value = layer.input
        return value, factor


def strip(dims: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without the leading extents of 1, of which one is left if it has no other."""
    while len(dims) > 1 and dims[0] == 1:
        dims = dims[1:]
    return dims


Handler = Callable[[Importer, Node], None]
"""Makes layers, names or constants of a node, or refuses it."""
Handlers = Mapping[str, Handler]
"""By operator of ONNX."""
