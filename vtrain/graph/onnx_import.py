"""Any framework's forward pass, as an ONNX file -> :class:`vtrain.graph.model.Model`.

Nothing of the file is executed, and nothing outside it is read.  The import knows the shape of
every value, and refuses by name and place whatever it does not know: a model that is accepted is a
model that the step graph computes.

Master weights: mantissa = floor(w * 2^24 + 1/2), int32; a weight that is not finite or does not fit
is refused (:func:`vtrain.spec.number.round_to_mantissa`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import onnx

from vtrain.errors import GraphError, ModelError
from vtrain.graph import onnx_fold, onnx_masks, onnx_rotary
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
    find_sources,
)
from vtrain.graph.onnx_file import (
    ROW_KEY,
    count_elements,
    is_named_exactly,
    load_model,
    read_dims,
    read_floats,
    read_ints,
    separate_vectors,
)
from vtrain.limits import LIMITS
from vtrain.ops.layout import MAX_WINDOW, Window
from vtrain.spec.dropout import DRAW_BITS
from vtrain.spec.number import MASTER_EXPONENT, SATURATION, round_to_mantissa
from vtrain.wire.graph import MAX_RANK

_TORCH_CONSTANT = re.compile(r"val_\d+")
"""So torch's exporter names constants of its own, as the ones of a norm without a scale."""
OLDEST_OPSET = 7
"""From opset 7 on Add and Gemm broadcast as they do today."""
NEWEST_OPSET = onnx.defs.onnx_opset_version()

_DEFAULT_DOMAINS = ("", "ai.onnx")
_FLOAT_TYPES = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)
_HIGHEST: Final = 3e38
"""Bounds beyond it are none: exporters write the largest float for infinity."""
_MOST_INTS: Final = 2 * MAX_RANK
"""Of a list: pads have two for each axis."""
_MOST_ADDED_AXES: Final = 3
"""Of a trained tensor that is added."""
_LINE_RANK: Final = 3
"""Of the filters of a convolution over one axis."""
_IMAGE_RANK: Final = 4
"""[batch, channels, height, width]."""
_MOST_COPIES: Final = 64
"""Of a value along one axis."""
_OF_PARAMETERS: Final = ("Expand", "Gather", "Slice", "Unsqueeze")
"""Operators that leave a parameter one."""
_HIDDEN: Final = onnx_masks.HIDDEN
_ID_TYPES = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)

Extents = tuple[int | None, ...]


def import_onnx(source: bytes | Path | onnx.ModelProto) -> Model:
    """Import a forward pass: one float input [batch, ...], one output, opset 7 or later.

    ``params`` come in the order of their first use, under the names of their initialisers: linear
    weights as stored, convolution weights [O, I, kh, kw] as [O, kh, kw, I], biases as vectors.
    ModelError names the node or initialiser; StorageError when a path cannot be read.
    """
    return _open(source).run()


def find_problems(source: bytes | Path | onnx.ModelProto) -> list[ModelError]:
    """All that :func:`import_onnx` would refuse of the nodes and weights of a file, in order.

    What a refused node would have made is taken to be a value of the shape that the file's
    ``value_info`` has for it, and what only fails because of that is left out.
    ModelError for what leaves nothing to look at: the header, the input.
    """
    return _open(source).find_problems()


def _open(source: bytes | Path | onnx.ModelProto) -> _Importer:
    model = load_model(source)
    opset = _check_header(model)
    graph = model.graph if is_named_exactly(model) else separate_vectors(model.graph)
    return _Importer(
        graph,
        opset,
        by_torch=model.producer_name == "pytorch",
        ties=not is_named_exactly(model),
    )


def _check_header(model: onnx.ModelProto) -> int:
    """The opset."""
    where = "ONNX file"
    if not model.HasField("graph"):
        raise ModelError("has no graph", where=where)
    if len(model.functions) > 0:
        raise ModelError("has functions of its own: export the model inlined", where=where)
    versions = [entry.version for entry in model.opset_import if entry.domain in _DEFAULT_DOMAINS]
    if len(versions) != 1:
        raise ModelError("must import the standard operators once", where=where)
    if not OLDEST_OPSET <= versions[0] <= NEWEST_OPSET:
        raise ModelError(
            f"uses opset {versions[0]}; known are {OLDEST_OPSET} to {NEWEST_OPSET}", where=where
        )
    if len(model.graph.sparse_initializer) > 0:
        raise ModelError("has sparse initialisers", where=where)
    if len(model.graph.node) > LIMITS.onnx_nodes:
        raise ModelError(f"has more than {LIMITS.onnx_nodes} nodes", where=where)
    return int(versions[0])


def _require_text(value: str | bytes, what: str) -> str:
    """A name as text: protobuf hands over as bytes what is not UTF-8."""
    if isinstance(value, bytes):
        raise ModelError(f"{what} {value[:40]!r} is not UTF-8", where="ONNX file")
    if len(value.encode()) > LIMITS.onnx_name_bytes:
        raise ModelError(
            f"{what} {value[:40]!r}... is longer than {LIMITS.onnx_name_bytes} bytes",
            where="ONNX file",
        )
    return value


class _Node:
    """One node, with its attributes read strictly: each is known, of its type, and there once."""

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.op = _require_text(proto.op_type, "operator")
        self.inputs = [_require_text(name, "value name") for name in proto.input]
        self.outputs = [_require_text(name, "value name") for name in proto.output]
        label = _require_text(proto.name, "node name") or next(filter(None, self.outputs), "?")
        self.where = f"node {label} ({self.op})"
        for names in (self.inputs, self.outputs):  # optional trailing ones may be given as ""
            while names and not names[-1]:
                names.pop()
        if _require_text(proto.domain, "domain") not in _DEFAULT_DOMAINS:
            self.refuse(f"operators of domain {proto.domain!r} are not supported")
        self.metadata = {entry.key: entry.value for entry in proto.metadata_props}
        self._attributes: dict[str, onnx.AttributeProto] = {}
        for attribute in proto.attribute:
            name = _require_text(attribute.name, "attribute")
            if name in self._attributes:
                self.refuse(f"has attribute {name} twice")
            self._attributes[name] = attribute

    def refuse(self, message: str) -> NoReturn:
        raise ModelError(message, where=self.where)

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            self.refuse(message)

    def require_arity(self, least: int, most: int) -> None:
        """``least`` to ``most`` inputs, all given, and one output."""
        self.require(
            least <= len(self.inputs) <= most and all(self.inputs),
            f"needs {least} to {most} inputs, has {len(self.inputs)}",
        )
        self.require(len(self.outputs) == 1, f"must have one output, has {len(self.outputs)}")

    def require_inputs(self, least: int, most: int) -> None:
        """``least`` to ``most`` inputs, those after the first ``least`` may be left out."""
        self.require(
            least <= len(self.inputs) <= most and all(self.inputs[:least]),
            f"needs {least} to {most} inputs, has {len(self.inputs)}",
        )

    def has(self, name: str) -> bool:
        return name in self._attributes

    def take(self, name: str, kind: int) -> onnx.AttributeProto | None:
        attribute = self._attributes.pop(name, None)
        if attribute is not None and (attribute.type != kind or attribute.ref_attr_name):
            self.refuse(f"attribute {name} is of another type")
        return attribute

    def take_int(self, name: str, default: int) -> int:
        attribute = self.take(name, onnx.AttributeProto.INT)
        return default if attribute is None else attribute.i

    def take_float(self, name: str, default: float) -> float:
        attribute = self.take(name, onnx.AttributeProto.FLOAT)
        return default if attribute is None else attribute.f

    def take_text(self, name: str, default: str) -> str:
        attribute = self.take(name, onnx.AttributeProto.STRING)
        return default if attribute is None else attribute.s.decode(errors="replace")

    def take_ints(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        attribute = self.take(name, onnx.AttributeProto.INTS)
        if attribute is None:
            return default
        self.require(len(attribute.ints) <= MAX_RANK, f"attribute {name} is too long")
        return tuple(attribute.ints)

    def take_all(self) -> dict[str, Any]:
        """All attributes left, as constants have them."""
        found: dict[str, Any] = {}
        for name, attribute in self._attributes.items():
            where = f"{self.where} {name}"
            match attribute.type:
                case onnx.AttributeProto.INT:
                    found[name] = attribute.i
                case onnx.AttributeProto.FLOAT:
                    found[name] = attribute.f
                case onnx.AttributeProto.STRING:
                    found[name] = attribute.s.decode(errors="replace")
                case onnx.AttributeProto.INTS:
                    found[name] = tuple(attribute.ints)
                case onnx.AttributeProto.TENSOR:
                    found[name] = _read_constant(attribute.t, where)
                case _:
                    self.refuse(f"attribute {name} is of another type")
        self._attributes.clear()
        return found

    def require_no_more_attributes(self) -> None:
        self.require(not self._attributes, f"has unknown attributes {sorted(self._attributes)}")


def _read_constant(tensor: onnx.TensorProto, where: str) -> onnx_fold.Constant:
    if tensor.data_type in _FLOAT_TYPES:
        return onnx_fold.as_constant(read_floats(tensor, where))
    values = read_ints(tensor, where)
    is_bool = tensor.data_type == onnx.TensorProto.BOOL
    return onnx_fold.as_constant(values.astype(np.bool_) if is_bool else values)


@dataclass(frozen=True)
class _Weight:
    """A stored tensor under a name of its own; ``transposed``: read with its two axes swapped;
    ``rows``: the first so many alone, of which ``dims`` are."""

    name: str
    dims: tuple[int, ...]
    transposed: bool = False
    rows: int | None = None


@dataclass(frozen=True)
class _Spread:
    """Part of a norm that an exporter writes node by node: of the mean of the squares of ``value``
    with ``epsilon``, itself (power 0), its root (1) or the root's inverse (-1)."""

    value: str
    epsilon: float = 0.0
    power: int = 0


@dataclass(frozen=True)
class _Scores:
    """What a softmax takes: a value, with the window of places that a mask leaves and the id of
    padding that it hides."""

    value: str
    window: int | None = None
    padding: int | None = None


class _Importer:
    """Walks the nodes in order.

    A name stands for one of: a value (``_values``: the layer that makes it; ``_shapes``: without
    the batch), a stored tensor (``_weights``), or a constant that the file computes
    (``_computed``).  A value may be one that only some operators can read: with places hidden,
    which a softmax takes (``_masked``), or with its first axes made one with the batch
    (``_merged``: the value and how many those are).  A name may also be part of a norm, which the
    rest of it alone reads (``_spreads``), a mask of the ids (``_masks``), or say where a softmax is
    no number (``_nans``: the softmax).
    """

    def __init__(
        self, graph: onnx.GraphProto, opset: int, *, by_torch: bool = False, ties: bool = True
    ) -> None:
        self._graph, self._opset, self._by_torch, self._ties = graph, opset, by_torch, ties
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._constants = {
            tensor.name
            for tensor in graph.initializer
            if by_torch and _TORCH_CONSTANT.fullmatch(tensor.name)
        }
        self._names: set[str] = set()
        self._values: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._weights: dict[str, _Weight] = {}
        self._computed: dict[str, onnx_fold.Constant] = {}
        self._literals: set[str] = set()
        self._columns: dict[str, _Weight] = {}
        self._roots: dict[str, frozenset[str]] = {}
        self._tables: dict[str, npt.NDArray[np.int32]] = {}
        self._masked: dict[str, _Scores] = {}
        self._masks: dict[str, onnx_masks.IdsMask] = {}
        self._nans: dict[str, str] = {}
        self._merged: dict[str, tuple[str, int]] = {}
        self._spreads: dict[str, _Spread] = {}
        self._factors: dict[str, Fraction] = {}
        self._places: dict[str, str] = {}
        self._layers: dict[str, Layer] = {}
        self._idle: list[str] = []
        self._made_later: set[str] = set()
        self._batch: int | None = onnx_fold.BATCH
        self._input = ""
        self._takes_ids = False

    def run(self) -> Model:
        name, shape, nodes = self._begin()
        for node in nodes:
            self._lower(node)
        output = self._read_output()
        layers, copies = self._tie(self._prune(output)) if self._ties else (self._prune(output), {})
        return Model(
            input=name,
            input_shape=shape,
            layers=layers,
            output=output,
            params=self._read_params(layers),
            takes_ids=self._takes_ids,
            copies=copies,
            constants=frozenset(_find_constants(layers)),
            lost_dropout=self._find_lost_dropout(),
            statistics=frozenset(_find_statistics(layers)),
        )

    def _find_lost_dropout(self) -> str:
        """Where the file tells of dropout that it drops nothing by: at its nodes at inference or,
        where it has no Dropout at all, in what its exporter wrote of the module's source."""
        if self._idle:
            more = f" and {len(self._idle) - 1} more" if len(self._idle) > 1 else ""
            return f"{self._idle[0]}{more}, not in training"
        if any(proto.op_type == "Dropout" for proto in self._graph.node):
            return ""
        for proto in self._graph.node:
            for entry in proto.metadata_props:
                # Bytes are what is not UTF-8.
                if "dropout" in str(entry.value).lower():
                    return f"the metadata {str(entry.key)!r} of {_Node(proto).where}"
        return ""

    def _begin(self) -> tuple[str, tuple[int, ...], list[_Node]]:
        """The input's name and shape, and the nodes."""
        for tensor in self._graph.initializer:
            self._store(_require_text(tensor.name, "initialiser"), tensor)
        name, shape = self._read_input()
        nodes = [_Node(proto) for proto in self._graph.node]
        self._made_later = {output for node in nodes for output in node.outputs}
        return name, shape, nodes

    def _lower(self, node: _Node) -> None:
        handler = self._find_handler(node)
        if handler is None:
            node.refuse(_UNSUPPORTED.get(node.op, "operator is not supported"))
        handler(self, node)
        node.require_no_more_attributes()
        self._made_later.difference_update(node.outputs)

    def find_problems(self) -> list[ModelError]:
        *_, nodes = self._begin()
        found: list[ModelError] = []
        guessed: set[str] = set()
        for node in nodes:
            known = self._find_handler(node) is not None
            try:
                self._lower(node)
            except ModelError as error:
                if not known or guessed.isdisjoint(node.inputs):
                    found.append(error)
                self._guess(node)
                guessed.update(node.outputs)
        try:
            self._read_output()
        except ModelError as error:
            if not found:
                found.append(error)
        try:
            roles = self._find_roles(tuple(self._layers.values()))
        except ModelError as error:
            return [*found, error]
        for name, role in roles.items():
            try:
                self._read_master(name, role)
            except ModelError as error:
                found.append(error)
        return found

    def _guess(self, node: _Node) -> None:
        """Declare what a refused node would have made, where the file says of which shape."""
        shapes = {value.name: value for value in self._graph.value_info}
        for name in node.outputs:
            if not name or name in self._names or name not in shapes:
                continue
            try:
                _, *shape = self._read_declared_shape(shapes[name], node.where)
            except ModelError:
                continue
            known = tuple(extent for extent in shape if extent is not None)
            if known and len(known) == len(shape):
                self._declare(name, node.where)
                self._values[name], self._shapes[name] = name, known

    def _find_handler(self, node: _Node) -> Callable[[_Importer, _Node], None] | None:
        if self._is_folded(node):
            return _Importer.fold
        if any(name in self._masks for name in node.inputs) and node.op in onnx_masks.OF_MASKS:
            return onnx_masks.OF_MASKS[node.op]
        return _HANDLERS.get(node.op)

    # --- the ends of the graph

    def _read_input(self) -> tuple[str, tuple[int, ...]]:
        # Up to IR version 3 the initialisers were listed among the inputs too.
        inputs = [value for value in self._graph.input if value.name not in self._tensors]
        if len(inputs) != 1:
            raise ModelError(f"a model has one input, this has {len(inputs)}", where="graph")
        name = _require_text(inputs[0].name, "input")
        where = f"input {name}"
        self._takes_ids = inputs[0].type.tensor_type.elem_type in _ID_TYPES
        batch, *shape = self._read_declared_shape(inputs[0], where, _FLOAT_TYPES + _ID_TYPES)
        if not shape:
            raise ModelError("needs a batch axis and at least one more", where=where)
        known = tuple(extent for extent in shape if extent is not None)
        if len(known) != len(shape):
            raise ModelError(f"only the batch may be symbolic, shape is {shape}", where=where)
        count_elements(known, where)
        self._batch = batch
        self._input = name
        self._declare(name, where)
        self._values[name] = name
        self._shapes[name] = known
        return name, known

    def _read_declared_shape(
        self, value: onnx.ValueInfoProto, where: str, types: Sequence[int] = _FLOAT_TYPES
    ) -> Extents:
        """Extents of a graph input or output, None where symbolic; there is at least the batch."""
        kind = value.type.tensor_type
        if kind.elem_type not in types:
            whole = " or of int32 or int64" if types != _FLOAT_TYPES else ""
            raise ModelError(f"is not a tensor of floats{whole}", where=where)
        if not kind.HasField("shape"):
            raise ModelError("has no shape", where=where)
        if not 1 <= len(kind.shape.dim) <= MAX_RANK:
            raise ModelError(f"has {len(kind.shape.dim)} axes", where=where)
        extents = tuple(
            axis.dim_value if axis.HasField("dim_value") else None for axis in kind.shape.dim
        )
        if any(extent is not None and extent < 1 for extent in extents):
            raise ModelError(f"has an extent below 1: {list(extents)}", where=where)
        return extents

    def _read_output(self) -> str:
        if len(self._graph.output) != 1:
            raise ModelError(
                f"a model has one output, this has {len(self._graph.output)}", where="graph"
            )
        name = _require_text(self._graph.output[0].name, "output")
        where = f"output {name}"
        if name not in self._values:
            raise ModelError("is not a value that the model computes", where=where)
        value = self._values[name]
        if value in self._masked or value in self._merged:
            raise ModelError("is not a value that the model computes", where=where)
        if isinstance(self._layers.get(value), Softmax):
            raise ModelError(_LOSS_HINT, where=self._places[value])
        if self._graph.output[0].type.tensor_type.HasField("shape"):
            declared = self._read_declared_shape(self._graph.output[0], where)
            found: Extents = (self._batch, *self._shapes[value])
            agree = len(declared) == len(found) and all(
                a is None or b is None or a == b for a, b in zip(declared, found, strict=True)
            )
            if not agree:
                raise ModelError(f"declares shape {declared}, the model gives {found}", where=where)
        return value

    def _prune(self, output: str) -> tuple[Layer, ...]:
        """The layers that the output depends on, in order."""
        needed, kept = {output}, []
        for layer in reversed(self._layers.values()):
            if layer.name in needed:
                needed.update(find_sources(layer))
                kept.append(layer)
        return tuple(reversed(kept))

    def _tie(self, layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], dict[str, str]]:
        """Linear layers whose weight is the transpose of an embedding's table, in every bit, read
        the table: exporters store what was one tensor in torch as two."""
        tables = {layer.weight for layer in layers if isinstance(layer, Embedding)}
        tied: list[Layer] = []
        copies: dict[str, str] = {}
        for layer in layers:
            if isinstance(layer, Linear) and layer.weight not in tables:
                table = next((t for t in sorted(tables) if self._turns(t, layer.weight)), None)
                if table is not None:
                    copies[layer.weight] = table
                    tied.append(replace(layer, weight=table, transposed=not layer.transposed))
                    continue
            tied.append(layer)
        return tuple(tied), copies

    def _turns(self, table: str, weight: str) -> bool:
        """Whether ``weight`` is the transpose of ``table``."""
        if self._tensors[table].dims[::-1] != list(self._tensors[weight].dims):
            return False
        a, b = (read_floats(self._tensors[name], f"initialiser {name}") for name in (table, weight))
        return np.array_equal(a.T, b)

    def _find_roles(self, layers: Sequence[Layer]) -> dict[str, str]:
        """What each parameter is to the layers that have it, in the order of first use."""
        roles: dict[str, str] = {}
        for layer in layers:
            for name, use in _find_uses(layer):
                alone = use == "AddWeight" and len(_strip(tuple(self._tensors[name].dims))) == 1
                role = "bias" if alone else use
                if roles.setdefault(name, role) != role:
                    raise ModelError("is used in two ways", where=f"initialiser {name}")
        if not roles:
            raise ModelError("has no weights to train", where="graph")
        return roles

    def _read_params(self, layers: Sequence[Layer]) -> dict[str, npt.NDArray[np.int32]]:
        roles = self._find_roles(layers)
        params = {name: self._read_master(name, role) for name, role in roles.items()}
        for name in _find_constants(layers):
            if name in params:
                raise ModelError("is both trained and constant", where=f"initialiser {name}")
            params[name] = self._tables[name]
        return params

    def _read_master(self, name: str, role: str) -> npt.NDArray[np.int32]:
        where = f"initialiser {name}"
        values = read_floats(self._tensors[name], where)
        finite = np.isfinite(values)
        # No more than 2^8 can fit, and that much is scaled exactly.
        small = np.abs(np.where(finite, values, 0).astype(np.float64)) < 2.0**8
        mantissas = round_to_mantissa(np.where(finite & small, values, 0), MASTER_EXPONENT)
        lo, hi = SATURATION["i32"]
        for fits, complaint in (
            (finite, "is not finite"),
            (small & (lo <= mantissas) & (mantissas <= hi), "does not fit int32 at exponent 24"),
        ):
            if not fits.all():
                index = tuple(int(i) for i in np.argwhere(~fits)[0])
                found = float(values[index])
                raise ModelError(f"element {list(index)} {complaint}: {found}", where=where)
        master = mantissas.astype(np.int32)
        if role == "Conv":
            *filters, width = master.shape
            images = master if master.ndim > _LINE_RANK else master.reshape(*filters, 1, width)
            master = images.transpose(0, 2, 3, 1)
        if role in ("bias", "scale", "statistic"):
            master = master.reshape(-1)
        if role == "AddWeight":
            master = master.reshape(_strip(master.shape))
        return np.ascontiguousarray(master)

    # --- names

    def _declare(self, name: str, where: str) -> None:
        if not name:
            raise ModelError("has no name", where=where)
        if name in self._names:
            raise ModelError(f"the name {name!r} is taken", where=where)
        self._names.add(name)

    def _store(self, name: str, tensor: onnx.TensorProto) -> None:
        where = f"initialiser {name}"
        self._declare(name, where)
        self._tensors[name] = tensor
        self._weights[name] = _Weight(name, read_dims(tensor, where))

    def _fail_unknown(self, node: _Node, name: str, wanted: str) -> NoReturn:
        if name in self._spreads:
            node.refuse(f"input {name!r} is a mean of squares: only a norm of rows may have one")
        if name in self._masks:
            node.refuse(f"input {name!r} is a mask of ids. {onnx_masks.HINT}")
        if name in self._names:
            node.refuse(f"input {name!r} must be {wanted}")
        if name in self._made_later:
            node.refuse(f"reads {name!r} before it is made: a cycle, or nodes out of order")
        node.refuse(f"reads {name!r}, which nothing makes")

    def _value(self, node: _Node, name: str) -> str:
        """The layer (or the graph's input) that makes the value ``name``, of floats."""
        value = self._any_value(node, name)
        if self._takes_ids and value == self._input:
            node.refuse(f"input {name!r} is whole numbers: only a Gather of a table reads them")
        return value

    def _any_value(self, node: _Node, name: str) -> str:
        if name not in self._values:
            self._fail_unknown(node, name, "a value computed from the model's input")
        value = self._values[name]
        node.require(
            value not in self._masked, f"only a Softmax can read {name!r}, whose places are masked"
        )
        node.require(
            value not in self._merged, f"input {name!r} has its batch merged with another axis"
        )
        return value

    def _weight(self, node: _Node, name: str) -> _Weight:
        if name not in self._weights:
            self._fail_unknown(node, name, "a constant")
        weight = self._weights[name]
        node.require(
            weight.rows is None, f"reads the first rows of {weight.name!r}: they can only be added"
        )
        return weight

    def _ints(self, node: _Node, name: str) -> Extents:
        """A list of integers known now; a scalar counts as a list of one."""
        if name in self._computed:
            found = self._computed[name]
            node.require(
                found.dtype in (object, np.bool_) and found.ndim <= 1 and found.size <= _MOST_INTS,
                f"input {name!r} must be a short list of integers, has shape {list(found.shape)}",
            )
            return tuple(None if i is None else int(i) for i in found.reshape(-1).tolist())
        weight = self._weight(node, name)
        where = f"initialiser {weight.name}"
        node.require(
            len(weight.dims) <= 1 and count_elements(weight.dims, where) <= _MOST_INTS,
            f"input {name!r} must be a short list, has shape {list(weight.dims)}",
        )
        return tuple(int(i) for i in read_ints(self._tensors[weight.name], where).reshape(-1))

    def _known_ints(self, node: _Node, name: str) -> tuple[int, ...]:
        found = self._ints(node, name)
        known = tuple(extent for extent in found if extent is not None)
        node.require(len(known) == len(found), f"input {name!r} must be constant")
        return known

    def _shape_of(self, node: _Node, value: str, rank: int | None = None) -> tuple[int, ...]:
        shape = self._shapes[value]
        if rank is not None and len(shape) != rank:
            expected = {
                1: "[batch, features]",
                2: "[batch, places, features]",
                3: "[batch, channels, height, width]",
            }[rank]
            node.refuse(f"needs {expected}, has [batch, {', '.join(map(str, shape))}]")
        return shape

    def _emit(self, node: _Node, layer: Layer, shape: tuple[int, ...]) -> None:
        count_elements(shape, node.where)
        self._declare(layer.name, node.where)
        self._layers[layer.name] = layer
        self._places[layer.name] = node.where
        self._values[layer.name] = layer.name
        self._shapes[layer.name] = shape

    # --- operators

    def gemm(self, node: _Node) -> None:
        node.require_arity(2, 3)
        node.require(node.take_float("alpha", 1.0) == 1.0, "alpha must be 1")
        node.require(node.take_float("beta", 1.0) == 1.0, "beta must be 1")
        node.require(node.take_int("transA", 0) == 0, "transA must be 0")
        if self._values.get(node.inputs[0]) not in self._merged:
            self._shape_of(node, self._value(node, node.inputs[0]), 1)
        bias = self._weight(node, node.inputs[2]) if len(node.inputs) == 3 else None
        self._linear(node, bool(node.take_int("transB", 0)), bias)

    def matmul(self, node: _Node) -> None:
        node.require_arity(2, 2)
        if all(name in self._values for name in node.inputs):
            self._matmul_values(node)
        else:
            self._linear(node, False, None)

    def _matmul_values(self, node: _Node) -> None:
        """Products of the matrices of two values, with no extent of 1 that stands for many."""
        names, merged = list(node.inputs), [self._merged.get(self._values[n]) for n in node.inputs]
        counts = {0 if item is None else item[1] for item in merged}
        node.require(len(counts) == 1, "only one operand has its batch merged with another axis")
        values = [
            self._value(node, name) if item is None else item[0]
            for name, item in zip(names, merged, strict=True)
        ]
        shapes = [self._shape_of(node, value) for value in values]
        node.require(
            min(map(len, shapes)) >= 2,
            f"needs matrices at each of the batch, the shapes are {shapes[0]} and {shapes[1]}",
        )
        (*stack, m, k), (*other, inner, n) = shapes
        node.require(stack == other, f"leading extents differ: {stack} and {other}")
        node.require(k == inner, f"inner extents differ: {k} and {inner}")
        (left, rows, one), (right, columns, two) = (self._turn_back(node, v) for v in values)
        name, shape = node.outputs[0], (*stack, m, n)
        (count,) = counts
        made = f"{name}/apart" if count else name
        scaled = f"{made}/unscaled" if one * two != 1 else made
        self._emit(node, MatMul(scaled, left, right, rows, columns), shape)
        if scaled != made:
            self._scale_value(node, scaled, one * two, made)
        if count:
            self._declare_merged(node, name, self._values[made], count)

    def _declare_merged(self, node: _Node, name: str, value: str, count: int) -> None:
        """``name`` is the value with ``count`` axes made one with the batch."""
        self._declare(name, node.where)
        self._values[name], self._shapes[name] = name, self._shapes[value][count:]
        self._merged[name] = value, count

    def _turn_back(self, node: _Node, value: str) -> tuple[str, bool, Fraction]:
        """A matrix operand, whether it is to be read transposed, and a factor of the product: where
        a layer has moved the last axis away, it is left where it is."""
        value, factor = self._take_factor(value)
        layer = self._layers.get(value)
        if not isinstance(layer, Transpose) or layer.perm[-1] == len(layer.perm) - 1:
            return value, False, factor
        perm = (*layer.perm[:-2], layer.perm[-1], layer.perm[-2])
        source, before = self._take_factor(layer.input)
        factor *= before
        inner = self._layers.get(source)
        if isinstance(inner, Transpose):  # of a transpose: one does both
            source, perm = inner.input, tuple(inner.perm[axis] for axis in perm)
        if perm == tuple(range(len(perm))):
            return source, True, factor
        turned = f"{value}/turned_back"
        if turned not in self._layers:
            *stack, rows, columns = self._shapes[value]
            self._emit(node, Transpose(turned, source, perm), (*stack, columns, rows))
        return turned, True, factor

    def _linear(self, node: _Node, swap: bool, bias: _Weight | None) -> None:
        """Rows that a reshape has made of several axes are done in those axes."""
        x, count = self._merged.get(self._values.get(node.inputs[0], ""), ("", 0))
        if not count:
            x = self._value(node, node.inputs[0])
        weight = self._weight(node, node.inputs[1])
        *leading, features = self._shape_of(node, x)
        node.require(len(weight.dims) == 2, f"weight has shape {list(weight.dims)}")
        transposed = weight.transposed != swap
        inner, outer = weight.dims[::-1] if transposed else weight.dims
        node.require(inner == features, f"weight is for {inner} features, input has {features}")
        node.require(min(weight.dims) > 0, "weight is empty")
        name = node.outputs[0]
        made = f"{name}/apart" if count else name
        layer = Linear(made, x, weight.name, self._bias(node, bias, outer), transposed)
        self._emit(node, layer, (*leading, outer))
        if count:
            self._declare_merged(node, name, made, count)

    def _bias(self, node: _Node, bias: _Weight | None, features: int) -> str | None:
        """Name of a bias [features] or [1, features]."""
        if bias is None:
            return None
        fits = bias.dims in ((features,), (1, features)) and not bias.transposed
        fits = fits and bias.rows is None
        node.require(fits, f"bias must have shape [{features}], has {list(bias.dims)}")
        return bias.name

    def add(self, node: _Node) -> None:
        node.require_arity(2, 2)
        for name, other in (node.inputs, node.inputs[::-1]):
            if name in self._spreads:
                self._add_epsilon(node, self._spreads[name], other)
                return
        for name, other in (node.inputs, node.inputs[::-1]):
            if name in self._values and other not in self._values and self._hides(node, other):
                self._mask(node, name, self._constant_of(node, other) == 0)
                return
            if self._is_of_channels(name, other, scale=False):
                self._finish_group_norm(node, name, other, scale=False)
                return
        constants = [name for name in node.inputs if name in self._weights]
        if not constants:
            left, right, shape = self._pair(node)
            self._emit(node, Add(node.outputs[0], left, right), shape)
            return
        others = [name for name in node.inputs if name not in self._weights]
        node.require(len(others) == 1, "adds two constants")
        value = self._value(node, others[0])
        layer, weight = self._layers.get(value), self._weights[constants[0]]
        # One of the shape of a place is a tensor that is added: so such models were lowered before.
        if self._is_number(constants[0]) and weight.dims != self._shape_of(node, value)[-1:]:
            self._shift(node, value, self._scalar(node, constants[0]))
            return
        fits = isinstance(layer, Linear) and layer.bias is None
        if not isinstance(layer, Linear) or not fits or len(_strip(weight.dims)) > 1:
            self._add_weight(node, value, weight)
            return
        # A Linear of its own: the one without the bias is pruned unless something else reads it.
        shape = self._shapes[layer.name]
        bias = self._bias(node, self._weights[constants[0]], shape[-1])
        self._emit(node, replace(layer, name=node.outputs[0], bias=bias), shape)

    def _hides(self, node: _Node, name: str) -> bool:
        """Whether a constant is added to hide places: it is 0 here and minus infinity there."""
        stored = self._weights.get(name)
        if name not in self._computed and (stored is None or len(stored.dims) < 2):
            return False
        if self._is_parameter(name):
            return False
        found = self._constant_of(node, name)
        hidden = found < _HIDDEN if found.dtype == np.float64 else np.zeros(1, np.bool_)
        if not hidden.any():
            if name not in self._computed:
                return False
            hides_none = found.dtype == np.float64 and not found.any()  # of one place
            node.require(hides_none, f"{name!r} is computed, and no mask")
        node.require(bool((found[~hidden] == 0).all()), "a mask that is added is 0 elsewhere")
        return True

    def _add_weight(self, node: _Node, value: str, weight: _Weight) -> None:
        """A trained tensor of the shape of the value's last axes."""
        shape, dims = self._shape_of(node, value), _strip(weight.dims)
        node.require(
            1 <= len(dims) <= min(len(shape), _MOST_ADDED_AXES)
            and shape[-len(dims) :] == dims
            and not weight.transposed,
            f"a constant that is added has the shape of the last axes of [batch, "
            f"{', '.join(map(str, shape))}], not {list(weight.dims)}",
        )
        self._emit(node, AddWeight(node.outputs[0], value, weight.name, weight.rows), shape)

    def _is_number(self, name: str) -> bool:
        """Whether a stored tensor is a constant, and no parameter, of one element."""
        is_constant = name in self._literals and not self._is_parameter(name)
        return is_constant and math.prod(self._weights[name].dims) == 1

    def _shift(self, node: _Node, value: str, offset: Fraction) -> None:
        self._emit(node, Shift(node.outputs[0], value, float(offset)), self._shapes[value])

    def _pair(self, node: _Node) -> tuple[str, str, tuple[int, ...]]:
        """Two values of one shape: where one has an extent of 1, it is copied along that axis."""
        left, right = (self._value(node, name) for name in node.inputs)
        shape, other = self._shape_of(node, left), self._shape_of(node, right)
        fits = len(shape) == len(other) and all(
            a == b or 1 in (a, b) for a, b in zip(shape, other, strict=True)
        )
        node.require(fits, f"shapes differ without the batch: {shape} and {other}")
        whole = tuple(map(max, shape, other))
        sides = [
            self._spread_value(node, f"{node.outputs[0]}/{side}", value, whole)
            for side, value in (("left", left), ("right", right))
        ]
        return sides[0], sides[1], whole

    def _spread_value(self, node: _Node, name: str, value: str, whole: tuple[int, ...]) -> str:
        """A value with copies along the axes in which it has an extent of 1 and ``whole`` more."""
        for axis, extent in enumerate(whole, start=1):
            if self._shapes[value][axis - 1] != extent:
                made = f"{name}_axis_{axis}"
                self._emit_copies(node, made, value, axis, extent)
                value = made
        return value

    def mul(self, node: _Node) -> None:
        node.require_arity(2, 2)
        for name, other in (node.inputs, node.inputs[::-1]):
            if other in self._spreads:
                self._normalize(node, name, self._spreads[other], -1)
                return
            norm = self._layers.get(self._values.get(name, ""))
            if isinstance(norm, RMSNorm) and self._is_scale(norm, other):
                self._scale_norm(node, norm, other)
                return
            if self._is_of_channels(name, other, scale=True):
                self._finish_group_norm(node, name, other, scale=True)
                return
            if name in self._values and (other in self._weights or other in self._computed):
                if self._is_parameter(other):
                    self._mul_weight(node, name, self._weight(node, other))
                elif onnx_rotary.is_table(self, other):
                    onnx_rotary.multiply(self, node, name, other)
                else:
                    self._scale(node, name, self._scalar(node, other))
                return
        left, right, shape = self._pair(node)
        for x, gate in ((left, right), (right, left)):
            layer = self._layers.get(gate)
            if isinstance(layer, Activation) and (layer.kind, layer.input) == ("sigmoid", x):
                # The sigmoid is pruned unless something else reads it.
                self._emit(node, Activation(node.outputs[0], x, "silu"), shape)
                return
        self._emit(node, Mul(node.outputs[0], left, right), shape)

    def _mul_weight(self, node: _Node, name: str, weight: _Weight) -> None:
        """A trained tensor of the shape of the value's last axes or its channels, or a number."""
        value = self._value(node, name)
        shape, dims = self._shape_of(node, value), _strip(weight.dims) or (1,)
        by_channels = len(dims) > 1 and dims == (shape[0], *(1,) * (len(shape) - 1))
        node.require(
            (by_channels or dims == (1,) or shape[-len(dims) :] == dims)
            and len(weight.dims) <= 1 + len(shape)
            and not weight.transposed,
            f"a parameter that multiplies has the shape of the last axes of [batch, "
            f"{', '.join(map(str, shape))}], or that of its channels, not {list(weight.dims)}",
        )
        layer = MulWeight(node.outputs[0], value, weight.name, by_channels)
        self._emit(node, layer, shape)

    def div(self, node: _Node) -> None:
        node.require_arity(2, 2)
        dividend, root = node.inputs
        if root in self._spreads and dividend in self._values:
            self._normalize(node, dividend, self._spreads[root], 1)
            return
        if root in self._spreads:
            node.require(self._scalar(node, dividend) == 1, f"{dividend!r} must be 1")
            self._invert(node, root)
            return
        divisor = self._scalar(node, node.inputs[1])
        node.require(divisor != 0, "divides by 0")
        self._scale(node, node.inputs[0], 1 / divisor)

    def _scalar(self, node: _Node, name: str) -> Fraction:
        """A constant of one element."""
        if name in self._values or not (name in self._weights or name in self._computed):
            self._weight(node, name)
        weight = self._weights.get(name)
        if weight is not None and count_elements(weight.dims, node.where) != 1:
            node.refuse(f"input {name!r} must be a value, or a constant of one element")
        found = self._constant_of(node, name)
        if found.size != 1 or found.ndim > 1 or found.dtype != np.float64:
            node.refuse(f"input {name!r} must be a value, or a constant of one element")
        factor = float(found.reshape(-1)[0])
        node.require(bool(np.isfinite(factor)), f"input {name!r} is not finite")
        return Fraction(factor)

    def _number(self, node: _Node, name: str) -> float:
        """A constant of one element, which need not be finite."""
        found = self._constant_of(node, name)
        if found.size != 1 or found.dtype != np.float64:
            node.refuse(f"input {name!r} must be one number")
        return float(found.reshape(-1)[0])

    def _round_factor(self, node: _Node, factor: Fraction) -> tuple[int, int]:
        """The nearest multiplier * 2^-exponent with a mantissa of 16 bits."""
        node.require(factor > 0, f"the factor must be above 0, is {float(factor)}")
        exponent = max((e for e in range(33) if factor * 2**e < 2**16 - 0.5), default=-1)
        multiplier = int(factor * 2 ** max(exponent, 0) + Fraction(1, 2))
        node.require(
            exponent >= 0 and multiplier > 0, f"the factor {float(factor)} is beyond 2^-33 to 65535"
        )
        while multiplier % 2 == 0 and exponent > 0:
            multiplier, exponent = multiplier // 2, exponent - 1
        return multiplier, exponent

    def _scale(self, node: _Node, name: str, factor: Fraction) -> None:
        value = self._value(node, name)
        self._scale_value(node, value, factor, node.outputs[0])

    def _scale_value(self, node: _Node, value: str, factor: Fraction, name: str) -> None:
        """``name`` is the value times the nearest factor with a mantissa of 16 bits."""
        if factor < 0:
            negative = f"{name}/negative"
            onnx_rotary.negate_value(self, node, negative, value)
            value, factor = negative, -factor
        multiplier, exponent = self._round_factor(node, factor)
        if (multiplier, exponent) == (1, 0):
            self._declare(name, node.where)
            self._values[name] = value
            return
        layer = Scale(name, value, multiplier, exponent)
        self._emit(node, layer, self._shape_of(node, value))
        self._factors[name] = factor

    def _open_conv(self, node: _Node) -> tuple[str, tuple[int, ...], _Weight]:
        """The image of a convolution, its shape, and a weight of four axes."""
        node.require_arity(2, 3)
        x = self._value(node, node.inputs[0])
        weight = self._weight(node, node.inputs[1])
        shape = self._shape_of(node, x, 3)
        node.require(len(weight.dims) == 4, f"weight has shape {list(weight.dims)}")
        node.require(min(weight.dims) > 0, "weight is empty")
        return x, shape, weight

    def conv(self, node: _Node) -> None:
        x, (channels, height, width), weight = self._open_conv(node)
        outer, inner, *kernel = weight.dims
        groups = node.take_int("group", 1)
        node.require(
            groups >= 1 and outer % groups == channels % groups == 0,
            f"{groups} groups of {channels} channels to {outer}",
        )
        node.require(
            inner == channels // groups,
            f"weight is for {inner} channels, input has {channels // groups}"
            + (f" in each of {groups} groups" if groups > 1 else ""),
        )
        dilations = node.take_ints("dilations", (1, 1))
        node.require(
            len(dilations) == 2 and min(dilations) >= 1 and max(dilations) <= MAX_WINDOW,
            f"dilations are {list(dilations)}",
        )
        given = node.take_ints("kernel_shape", tuple(kernel))
        node.require(len(given) == 2, f"needs a kernel of height and width, has {list(given)}")
        node.require(given == tuple(kernel), "kernel_shape is not that of the weight")
        # Of one element there are no neighbours.
        dilations = tuple(d if k > 1 else 1 for k, d in zip(kernel, dilations, strict=True))
        # The window has the zeros of a dilated kernel too.
        whole = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
        window = self._window(node, (channels, height, width), whole)
        bias = self._weight(node, node.inputs[2]) if len(node.inputs) == 3 else None
        layer = Conv(
            node.outputs[0],
            x,
            weight.name,
            self._bias(node, bias, outer),
            window,
            groups,
            (dilations[0], dilations[1]),
        )
        self._emit(node, layer, (outer, *window.output_extent(height, width)))

    def conv_transpose(self, node: _Node) -> None:
        """With one group and no dilation; ``output_padding`` makes an image of it larger."""
        x, (channels, height, width), weight = self._open_conv(node)
        inner, outer, *kernel = weight.dims
        node.require(node.take_int("group", 1) == 1, "groups are not supported here")
        dilations = node.take_ints("dilations", (1, 1))
        node.require(dilations == (1, 1), f"dilations must be 1, are {list(dilations)}")
        node.require(inner == channels, f"weight is for {inner} channels, input has {channels}")
        given = node.take_ints("kernel_shape", tuple(kernel))
        node.require(given == tuple(kernel), "kernel_shape is not that of the weight")
        node.require(
            node.take_text("auto_pad", "NOTSET") == "NOTSET" and not node.has("output_shape"),
            "must have pads, and neither auto_pad nor output_shape",
        )
        strides, pads = node.take_ints("strides", (1, 1)), node.take_ints("pads", (0, 0, 0, 0))
        more = node.take_ints("output_padding", (0, 0))
        node.require(
            len(strides) == len(more) == 2 and len(pads) == 4 and min(more) >= 0,
            f"strides are {list(strides)}, pads {list(pads)}, output_padding {list(more)}",
        )
        try:
            window = Window.from_attrs({"kernel": given, "strides": strides, "pads": pads})
            cut = (pads[0] + pads[2] - more[0], pads[1] + pads[3] - more[1])
            extent = tuple(
                (count - 1) * stride + size - less
                for count, stride, size, less in zip(
                    (height, width), strides, kernel, cut, strict=True
                )
            )
            node.require(min(extent) >= 1, f"leaves an image of {list(extent)}")
            fits = window.output_extent(*extent) == (height, width)
        except GraphError as error:
            raise ModelError(error.message, where=node.where) from error
        node.require(fits, f"output_padding {list(more)} must be below the strides")
        bias = self._weight(node, node.inputs[2]) if len(node.inputs) == 3 else None
        layer = ConvTranspose(
            node.outputs[0],
            x,
            weight.name,
            self._bias(node, bias, outer),
            window,
            (extent[0], extent[1]),
        )
        count_elements((height, width, *window.kernel, outer), node.where)
        self._emit(node, layer, (outer, *extent))

    def _window(self, node: _Node, image: tuple[int, ...], kernel: tuple[int, ...] = ()) -> Window:
        """Read strides, pads and auto_pad over ``image``, and where no ``kernel`` is given
        kernel_shape and dilations, which must be 1."""
        channels, height, width = image
        if not kernel:
            kernel = node.take_ints("kernel_shape", ())
            node.require(
                len(kernel) == 2, f"needs a kernel of height and width, has {list(kernel)}"
            )
            node.require(node.take_ints("dilations", (1, 1)) == (1, 1), "dilations must be 1")
        strides = node.take_ints("strides", (1, 1))
        node.require(len(strides) == 2 and min(strides) >= 1, f"strides are {list(strides)}")
        pads = node.take_ints("pads", (0, 0, 0, 0))
        mode = node.take_text("auto_pad", "NOTSET")
        if mode != "NOTSET":
            node.require(not any(pads), "has both pads and auto_pad")
            pads = _resolve_auto_pad(node, mode, (height, width), kernel, strides)
        try:
            window = Window.from_attrs({"kernel": kernel, "strides": strides, "pads": pads})
            extent = window.output_extent(height, width)
        except GraphError as error:
            raise ModelError(error.message, where=node.where) from error
        count_elements((*extent, *window.kernel, channels), node.where)
        return window

    def relu(self, node: _Node) -> None:
        node.require_arity(1, 1)
        x = self._value(node, node.inputs[0])
        self._emit(node, Relu(node.outputs[0], x), self._shape_of(node, x))

    def leaky_relu(self, node: _Node) -> None:
        node.require_arity(1, 1)
        x = self._value(node, node.inputs[0])
        alpha = node.take_float("alpha", 0.01)
        node.require(math.isfinite(alpha), f"alpha is {alpha}")
        slope = Fraction(alpha)
        if slope == 0:
            self._emit(node, Relu(node.outputs[0], x), self._shape_of(node, x))
            return
        node.require(slope > 0, f"alpha must be at least 0, is {float(slope)}")
        multiplier, exponent = self._round_factor(node, slope)
        layer = LeakyRelu(node.outputs[0], x, multiplier, exponent)
        self._emit(node, layer, self._shape_of(node, x))

    def elu(self, node: _Node) -> None:
        node.require_arity(1, 1)
        x = self._value(node, node.inputs[0])
        alpha = node.take_float("alpha", 1.0)
        node.require(math.isfinite(alpha) and alpha > 0, f"alpha must be above 0, is {alpha}")
        multiplier, exponent = self._round_factor(node, Fraction(alpha))
        layer = Elu(node.outputs[0], x, multiplier, exponent)
        self._emit(node, layer, self._shape_of(node, x))

    def clip(self, node: _Node) -> None:
        """Bounds are attributes up to opset 10, inputs from 11 on."""
        node.require_inputs(1, 3)
        node.require(len(node.outputs) == 1, "must have one output")
        x = self._value(node, node.inputs[0])
        bounds = [node.take_float("min", -math.inf), node.take_float("max", math.inf)]
        for number, name in enumerate(node.inputs[1:]):
            if name:
                bounds[number] = self._number(node, name)
        low, high = (None if abs(bound) > _HIGHEST else bound for bound in (bounds[0], bounds[1]))
        node.require(
            bounds[0] < bounds[1] and bounds[0] <= 0 <= bounds[1],
            f"the bounds {bounds[0]} and {bounds[1]} must be below and above 0, or one of them 0",
        )
        if (low, high) == (0, None):
            self._emit(node, Relu(node.outputs[0], x), self._shape_of(node, x))
            return
        self._emit(node, Clip(node.outputs[0], x, low, high), self._shape_of(node, x))

    def gelu(self, node: _Node) -> None:
        kinds = {"none": "gelu", "tanh": "gelu_tanh"}
        form = node.take_text("approximate", "none")
        node.require(form in kinds, f"approximate must be none or tanh, is {form!r}")
        self._activation(node, kinds[form])

    def sigmoid(self, node: _Node) -> None:
        self._activation(node, "sigmoid")

    def swish(self, node: _Node) -> None:
        alpha = node.take_float("alpha", 1.0)
        node.require(alpha == 1.0, f"alpha must be 1, is {alpha}")
        self._activation(node, "silu")

    def tanh(self, node: _Node) -> None:
        self._activation(node, "tanh")

    def _activation(self, node: _Node, kind: str) -> None:
        node.require_arity(1, 1)
        x = self._value(node, node.inputs[0])
        self._emit(node, Activation(node.outputs[0], x, kind), self._shape_of(node, x))

    def layer_normalization(self, node: _Node) -> None:
        node.require(
            2 <= len(node.inputs) <= 3 and bool(node.inputs[0]),
            f"needs 2 or 3 inputs, has {len(node.inputs)}",
        )
        node.require(len(node.outputs) == 1, "mean and deviation are not supported as outputs")
        x, epsilon = self._norm_input(node)
        scale, bias = (*node.inputs[1:], "")[:2]
        scale_name = self._norm_vector(node, x, scale, 1.0)
        bias_name = self._norm_vector(node, x, bias, 0.0)
        self._emit(
            node, LayerNorm(node.outputs[0], x, scale_name, bias_name, epsilon), self._shapes[x]
        )

    def rms_normalization(self, node: _Node) -> None:
        node.require(
            1 <= len(node.inputs) <= 2 and bool(node.inputs[0]),
            f"needs 1 or 2 inputs, has {len(node.inputs)}",
        )
        node.require(len(node.outputs) == 1, f"must have one output, has {len(node.outputs)}")
        x, epsilon = self._norm_input(node)
        scale = self._norm_vector(node, x, (*node.inputs[1:], "")[0], 1.0)
        self._emit(node, RMSNorm(node.outputs[0], x, scale, epsilon), self._shapes[x])

    # --- RMSNorm node by node, x / sqrt(mean of x^2 + epsilon), as written below opset 23

    def pow(self, node: _Node) -> None:
        node.require_arity(2, 2)
        x = self._value(node, node.inputs[0])
        node.require(self._scalar(node, node.inputs[1]) == 2, "is only supported with exponent 2")
        self._emit(node, Mul(node.outputs[0], x, x), self._shape_of(node, x))

    def _mean_squares(self, node: _Node, axes: tuple[int, ...], keep: bool) -> bool:
        """Take the mean of the squares of rows; False where the node is something else."""
        x = self._value(node, node.inputs[0])
        layer = self._layers.get(x)
        squares = isinstance(layer, Mul) and layer.left == layer.right
        if not squares or not keep or axes not in ((-1,), (len(self._shape_of(node, x)),)):
            return False
        self._spread(node, _Spread(find_sources(self._layers[x])[0]))
        return True

    def _spread(self, node: _Node, found: _Spread) -> None:
        self._declare(node.outputs[0], node.where)
        self._spreads[node.outputs[0]] = found

    def _add_epsilon(self, node: _Node, found: _Spread, other: str) -> None:
        epsilon = float(self._scalar(node, other))
        node.require(found.power == 0 and epsilon >= 0, "must add an epsilon of at least 0")
        self._spread(node, replace(found, epsilon=found.epsilon + epsilon))

    def sqrt(self, node: _Node) -> None:
        node.require_arity(1, 1)
        found = self._spreads.get(node.inputs[0])
        if found is None or found.power != 0:
            node.refuse("is only supported of the mean of the squares of rows")
        self._spread(node, replace(found, power=1))

    def reciprocal(self, node: _Node) -> None:
        node.require_arity(1, 1)
        self._invert(node, node.inputs[0])

    def _invert(self, node: _Node, name: str) -> None:
        found = self._spreads.get(name)
        if found is None or found.power != 1:
            node.refuse("is only supported of the root of the mean of the squares of rows")
        self._spread(node, replace(found, power=-1))

    def _normalize(self, node: _Node, name: str, found: _Spread, power: int) -> None:
        x = self._value(node, name)
        node.require(
            found.power == power and x == found.value,
            f"only {found.value!r} itself can be divided by the root of its mean square",
        )
        self._emit(node, RMSNorm(node.outputs[0], x, None, found.epsilon), self._shapes[x])

    def _is_scale(self, norm: RMSNorm, name: str) -> bool:
        """Whether a constant can be the scale that a norm lacks, and is no number for all of it,
        nor cosines or sines."""
        if norm.weight is not None or name not in self._weights:
            return False
        stored = self._weights[name]
        return stored.dims != () and not onnx_rotary.is_rotation(self, stored.name)

    def _scale_norm(self, node: _Node, norm: RMSNorm, scale: str) -> None:
        """A norm of its own: the one without the scale is pruned unless something else reads it."""
        weight = self._norm_vector(node, norm.name, scale, 1.0)
        shape = self._shapes[norm.name]
        self._emit(node, replace(norm, name=node.outputs[0], weight=weight), shape)

    def _norm_input(self, node: _Node) -> tuple[str, float]:
        """The value that is normalised over its last axis, and epsilon."""
        x = self._value(node, node.inputs[0])
        rank = 1 + len(self._shape_of(node, x))
        axis = node.take_int("axis", -1)
        node.require(
            axis in (-1, rank - 1), f"axis must be the last of {rank}, is {axis}: it may be alone"
        )
        node.take_int("stash_type", 1)  # how wide floats are inside: here they are integers
        return x, self._take_epsilon(node)

    def batch_normalization(self, node: _Node) -> None:
        node.require(
            len(node.inputs) == 5 and all(node.inputs), f"needs 5 inputs, has {len(node.inputs)}"
        )
        node.require(
            self._opset >= 14 and node.take_int("training_mode", 0) == 1,
            "is not in training mode, in which its statistics are those of the batch. "
            + _TRAINING_HINT,
        )
        x, channels, epsilon = self._channel_norm_input(node)
        momentum = node.take_float("momentum", 0.9)
        node.require(0 <= momentum < 1 - 2**-17, "momentum must be at least 0, and below 1 - 2^-17")
        share = int((1 - Fraction(momentum)) * 2**16 + Fraction(1, 2))
        scale, bias = (
            self._norm_vector(node, x, name, neutral, channels)
            for name, neutral in zip(node.inputs[1:3], (1.0, 0.0), strict=True)
        )
        mean, variance = (self._weight(node, name) for name in node.inputs[3:])
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
            self._by_torch or not self._ties,
        )
        self._emit(node, layer, self._shapes[x])
        for name in filter(None, node.outputs[1:]):
            self._declare(name, node.where)

    def group_normalization(self, node: _Node) -> None:
        node.require_arity(3, 3)
        groups = node.take_int("num_groups", 0)
        node.take_int("stash_type", 1)
        self._group_norm(node, groups)

    def instance_normalization(self, node: _Node) -> None:
        node.require_arity(3, 3)
        self._group_norm(node, None)

    def _group_norm(self, node: _Node, groups: int | None) -> None:
        """``groups`` of the channels, or each by itself."""
        x, channels, epsilon = self._channel_norm_input(node)
        count = channels if groups is None else groups
        node.require(count >= 1 and channels % count == 0, f"{count} groups of {channels} channels")
        # Below opset 21 scale and bias were of the groups.
        vectors = count if node.op == "GroupNormalization" and self._opset < 21 else channels
        node.require(
            vectors == channels, "has a scale for each group: export with opset 21 or later"
        )
        scale, bias = (
            self._norm_vector(node, x, name, neutral, channels)
            for name, neutral in zip(node.inputs[1:], (1.0, 0.0), strict=True)
        )
        self._emit(
            node, GroupNorm(node.outputs[0], x, scale, bias, epsilon, count), self._shapes[x]
        )

    # --- GroupNorm as torch's exporters write it: rows of groups, their norm, then scale and bias

    def _find_group_norm(self, value: str) -> GroupNorm | None:
        """The norm of groups that ``value`` is, if it has no bias."""
        layer = self._layers.get(value)
        if isinstance(layer, GroupNorm):
            return layer if layer.bias is None else None
        inner = self._layers.get(layer.input) if isinstance(layer, Reshape) else None
        if not isinstance(inner, GroupNorm) or (inner.weight, inner.bias) != (None, None):
            return None
        outer, shape, rows = self._layers.get(inner.input), self._shapes[value], self._shapes
        by_groups = len(rows[inner.input]) == 2 and rows[inner.input][0] == inner.groups
        if not isinstance(outer, Reshape) or not by_groups:
            return None
        same = rows[outer.input] == shape and shape[0] % inner.groups == 0
        return replace(inner, input=outer.input) if same else None

    def _column(self, name: str) -> _Weight | None:
        """A stored tensor that is read as the constant ``name``, of its shape there."""
        return self._columns.get(name) or self._weights.get(name)

    def _is_of_channels(self, name: str, other: str, *, scale: bool) -> bool:
        """Whether a constant can be the scale or the bias that a norm of groups lacks."""
        value, column = self._values.get(name, ""), self._column(other)
        norm = self._find_group_norm(value)
        if norm is None or column is None or column.transposed or (scale and norm.weight):
            return False
        shape = self._shapes[value]
        return _strip(column.dims) == (shape[0], *(1,) * (len(shape) - 1)) and shape[0] > 1

    def _finish_group_norm(self, node: _Node, name: str, other: str, *, scale: bool) -> None:
        """A norm of its own: the one without is pruned unless something else reads it."""
        value, column = self._values[name], self._column(other)
        norm = self._find_group_norm(value)
        if norm is None or column is None:
            raise AssertionError("_is_of_channels() has looked")
        vector: str | None = column.name
        if column.name in self._constants:
            values = read_floats(self._tensors[column.name], f"constant {column.name}")
            vector = None if bool(np.all(values == float(scale))) else column.name
        made = replace(norm, name=node.outputs[0])
        made = replace(made, weight=vector) if scale else replace(made, bias=vector)
        self._emit(node, made, self._shapes[value])

    def _channel_norm_input(self, node: _Node) -> tuple[str, int, float]:
        """The value that is normalised, its channels, and epsilon."""
        x = self._value(node, node.inputs[0])
        shape = self._shape_of(node, x)
        node.require(
            1 <= len(shape) <= 3, f"needs [batch, channels] and at most two axes more, has {shape}"
        )
        return x, shape[0], self._take_epsilon(node)

    def _take_epsilon(self, node: _Node) -> float:
        epsilon = node.take_float("epsilon", 1e-5)
        node.require(
            math.isfinite(epsilon) and epsilon >= 0, f"epsilon must be at least 0, is {epsilon}"
        )
        return epsilon

    def _norm_vector(
        self, node: _Node, x: str, name: str, neutral: float, features: int | None = None
    ) -> str | None:
        """Name of the scale or bias [d] or [1, ..., d]; None where there is none, or where it is a
        ``Constant`` that changes nothing: so exporters write a norm without parameters.

        d is ``features``, or the last extent of ``x``."""
        if not name:
            return None
        weight = self._weight(node, name)
        features = self._shapes[x][-1] if features is None else features
        fits = weight.dims[-1:] == (features,) and math.prod(weight.dims) == features
        node.require(
            fits and not weight.transposed,
            f"scale and bias must have shape [{features}], one has {list(weight.dims)}",
        )
        if weight.name in self._constants:
            values = read_floats(self._tensors[weight.name], f"constant {weight.name}")
            if bool(np.all(values == neutral)):
                return None
        return weight.name

    def max_pool(self, node: _Node) -> None:
        node.require(len(node.outputs) <= 1, "the indices of the maxima are not supported")
        node.require_arity(1, 1)
        x = self._value(node, node.inputs[0])
        channels, height, width = image = self._shape_of(node, x, 3)
        node.require(node.take_int("ceil_mode", 0) == 0, "ceil_mode must be 0")
        node.take_int("storage_order", 0)  # of the indices alone
        window = self._window(node, image)
        shape = (channels, *window.output_extent(height, width))
        self._emit(node, MaxPool(node.outputs[0], x, window), shape)

    def average_pool(self, node: _Node) -> None:
        node.require_arity(1, 1)
        x = self._value(node, node.inputs[0])
        channels, height, width = image = self._shape_of(node, x, 3)
        node.require(node.take_int("ceil_mode", 0) == 0, "ceil_mode must be 0")
        counts_padding = node.take_int("count_include_pad", 0) == 1
        window = self._window(node, image)
        node.require(
            counts_padding or not any(window.pads), "with padding, count_include_pad must be 1"
        )
        shape = (channels, *window.output_extent(height, width))
        self._emit(node, AveragePool(node.outputs[0], x, window), shape)

    def global_max_pool(self, node: _Node) -> None:
        node.require_arity(1, 1)
        x = self._value(node, node.inputs[0])
        channels, height, width = self._shape_of(node, x, 3)
        window = Window((height, width), (1, 1), (0, 0, 0, 0))
        self._emit(node, MaxPool(node.outputs[0], x, window), (channels, 1, 1))

    def global_average_pool(self, node: _Node) -> None:
        node.require_arity(1, 1)
        self._pool_all(node, node.outputs[0], self._value(node, node.inputs[0]))

    def _pool_all(self, node: _Node, name: str, x: str) -> None:
        channels, height, width = self._shape_of(node, x, 3)
        window = Window((height, width), (1, 1), (0, 0, 0, 0))
        self._emit(node, AveragePool(name, x, window), (channels, 1, 1))

    def reduce_mean(self, node: _Node) -> None:
        """The mean over axes of each sample, as over the places of a sequence, or over height and
        width; or of the squares of rows."""
        node.require_arity(1, 2)
        axes = node.take_ints("axes", ())
        if len(node.inputs) == 2:
            axes = self._known_ints(node, node.inputs[1])
        node.take_int("noop_with_empty_axes", 0)
        keep = node.take_int("keepdims", 1) == 1
        if self._mean_squares(node, axes, keep):
            return
        shape = self._shape_of(node, self._value(node, node.inputs[0]))
        rank = 1 + len(shape)
        node.require(
            0 < len(axes) < rank - (not keep)
            and all(-rank <= axis < rank for axis in axes)
            and len({axis % rank for axis in axes} | {0}) == 1 + len(axes),
            f"takes the mean over the axes {list(axes)} of [batch, {', '.join(map(str, shape))}]: "
            "they must be named, without the batch, and leave one axis more",
        )
        over = sorted(axis % rank for axis in axes)
        name = node.outputs[0]
        mean = name if keep and rank == _IMAGE_RANK and over == [2, 3] else f"{name}/mean"
        self._mean_over(node, mean, over)
        if mean != name:
            left = tuple(
                1 if axis in over else extent
                for axis, extent in enumerate(shape, start=1)
                if keep or axis not in over
            )
            self._emit(node, Reshape(name, mean, left), left)

    def _mean_over(self, node: _Node, name: str, over: list[int]) -> None:
        """Emit the mean [all that is kept, 1, 1]: a pool of places, to which other axes are
        brought first."""
        x = self._value(node, node.inputs[0])
        shape = self._shape_of(node, x)
        if len(shape) == _IMAGE_RANK - 1 and over == [2, 3]:
            self._pool_all(node, name, x)
            return
        kept = [axis for axis in range(1, 1 + len(shape)) if axis not in over]
        perm = (0, *kept, *over)
        if perm != tuple(range(1 + len(shape))):
            moved = tuple(shape[axis - 1] for axis in perm[1:])
            self._emit(node, Transpose(f"{name}/places_last", x, perm), moved)
            x = f"{name}/places_last"
        image = (
            math.prod(shape[axis - 1] for axis in kept),
            math.prod(shape[axis - 1] for axis in over),
            1,
        )
        self._emit(node, Reshape(f"{name}/places", x, image), image)
        self._pool_all(node, name, f"{name}/places")

    def flatten(self, node: _Node) -> None:
        node.require_arity(1, 1)
        x = self._value(node, node.inputs[0])
        shape = self._shape_of(node, x)
        axis = node.take_int("axis", 1)
        node.require(axis in (1, -len(shape)), "axis must be 1, to keep the batch")
        flat = (count_elements(shape, node.where),)
        self._emit(node, Reshape(node.outputs[0], x, flat), flat)

    def reshape(self, node: _Node) -> None:
        node.require_arity(2, 2)
        merged = self._merged.get(self._values.get(node.inputs[0], ""))
        x = self._value(node, node.inputs[0]) if merged is None else merged[0]
        before = self._shape_of(node, x)
        keeps_zero = node.take_int("allowzero", 0) == 0
        asked = self._ints(node, node.inputs[1])
        if keeps_zero and merged is None:
            whole: Extents = (self._batch, *before)
            asked = tuple(
                whole[i] if extent == 0 and i < len(whole) else extent
                for i, extent in enumerate(asked)
            )
        node.require(len(asked) >= 2, f"shape {list(asked)} does not keep the batch")
        count = self._count_merged(before, asked)
        if count:
            self._declare_merged(node, node.outputs[0], x, count)
            return
        batch, *rest = asked
        known = [extent for extent in rest if extent is not None and extent > 0]
        free = rest.count(-1)
        node.require(
            len(known) + free == len(rest) and free <= 1, f"cannot read the shape {list(asked)}"
        )
        is_batch = batch is onnx_fold.BATCH or batch == self._batch
        keeps_batch = is_batch or (batch == -1 and free == 0)
        node.require(keeps_batch, f"shape {list(asked)} does not keep the batch")
        size, filled = count_elements(before, node.where), count_elements(tuple(known), node.where)
        shape = tuple(size // filled if extent == -1 else extent for extent in rest if extent)
        node.require(
            count_elements(shape, node.where) == size, f"cannot reshape {before} to {list(asked)}"
        )
        if merged is not None and shape == before:
            self._declare(node.outputs[0], node.where)
            self._values[node.outputs[0]] = x
            return
        self._emit(node, Reshape(node.outputs[0], x, shape), shape)

    def _count_merged(self, before: tuple[int, ...], asked: Extents) -> int:
        """How many axes a reshape makes one with the batch, leaving the others; 0 for any other."""
        batch, *rest = asked
        count = len(before) - len(rest)
        if count < 1 or before[count:] != tuple(rest):
            return 0
        stacked = count_elements(before[:count], "reshape")
        known = self._batch is not None and batch == self._batch * stacked
        return count if stacked > 1 and (batch == -1 or known) else 0

    def identity(self, node: _Node) -> None:
        node.require_arity(1, 1)
        self._alias(node, node.inputs[0])

    def dropout(self, node: _Node) -> None:
        """A layer where the file is of a model in training, else the value itself."""
        node.require(1 <= len(node.inputs) <= 3 and bool(node.inputs[0]), "needs 1 to 3 inputs")
        node.require(1 <= len(node.outputs) <= 2, "must have one output, or two with the mask")
        node.take_float("ratio", 0.5)
        node.take_int("seed", 0)  # the task has one
        x = self._value(node, node.inputs[0])
        ratio = self._find_ratio(node)
        if ratio is None:
            self._idle.append(node.where)
        if not ratio:
            self._alias(node, node.inputs[0])
        else:
            least, most = Fraction(1, 2**DRAW_BITS), 1 - Fraction(1, 2**14)
            node.require(
                least <= ratio <= most,
                f"ratio must be 0, or from 2^-16 to 1 - 2^-14, is {float(ratio)}",
            )
            dropped = int(ratio * 2**DRAW_BITS + Fraction(1, 2))
            layer = Dropout(node.outputs[0], x, 2**DRAW_BITS - dropped)
            self._emit(node, layer, self._shape_of(node, x))
        for mask in node.outputs[1:]:
            self._declare(mask, node.where)

    def _find_ratio(self, node: _Node) -> Fraction | None:
        """The share that a node drops: None at inference, and where nothing says that this is
        training.  torch's older exporter leaves that out of the node that it writes for
        ``scaled_dot_product_attention``, but writes none where its dropout_p is 0."""
        _, ratio, training = (*node.inputs, "", "")[:3]
        if training:
            mode = self._known_ints(node, training)
            node.require(len(mode) == 1, f"input {training!r} must be one boolean")
            if mode == (0,):
                return None
        elif not (ratio and self._by_torch):
            return None
        return self._scalar(node, ratio) if ratio else Fraction(1, 2)

    def _alias(self, node: _Node, source: str) -> None:
        """Another name for a value or a constant."""
        name = node.outputs[0]
        if source in self._weights:
            # torch's exporter writes equal parameters once, and the others as its Identity: they
            # are parameters of their own.
            self._declare(name, node.where)
            weight = self._weights[source]
            self._tensors[name] = self._tensors[weight.name]
            self._weights[name] = replace(weight, name=name)
            if weight.name in self._constants:
                self._constants.add(name)
        else:
            value = self._any_value(node, source)
            self._declare(name, node.where)
            self._values[name] = value

    def transpose(self, node: _Node) -> None:
        node.require_arity(1, 1)
        if node.inputs[0] in self._values:
            self._transpose_value(node)
            return
        perm = node.take_ints("perm", (1, 0))
        weight = self._weights.get(node.inputs[0])
        if weight is None or len(weight.dims) != 2 or perm != (1, 0):
            node.refuse("only a constant matrix can be transposed")
        self._declare(node.outputs[0], node.where)
        self._weights[node.outputs[0]] = replace(weight, transposed=not weight.transposed)

    def _transpose_merged(self, node: _Node) -> None:
        """Of a value with ``count`` axes in the batch, which stay there."""
        value, count = self._merged[self._values[node.inputs[0]]]
        shape = self._shapes[value]
        rank = 1 + len(shape) - count
        perm = node.take_ints("perm", tuple(reversed(range(rank))))
        node.require(sorted(perm) == list(range(rank)), f"perm {list(perm)} is no permutation")
        node.require(perm[0] == 0, "the batch must stay the first axis")
        whole = (*range(count + 1), *(axis + count for axis in perm[1:]))
        moved = tuple(shape[axis - 1] for axis in whole[1:])
        name = node.outputs[0]
        self._emit(node, Transpose(f"{name}/apart", value, whole), moved)
        self._declare_merged(node, name, f"{name}/apart", count)

    def _transpose_value(self, node: _Node) -> None:
        if self._values[node.inputs[0]] in self._merged:
            self._transpose_merged(node)
            return
        value = self._value(node, node.inputs[0])
        shape = self._shape_of(node, value)
        rank = 1 + len(shape)
        perm = node.take_ints("perm", tuple(reversed(range(rank))))
        node.require(sorted(perm) == list(range(rank)), f"perm {list(perm)} is no permutation")
        node.require(perm[0] == 0, "the batch must stay the first axis")
        moved = tuple(shape[axis - 1] for axis in perm[1:])
        self._emit(node, Transpose(node.outputs[0], value, perm), moved)

    def _axis(self, node: _Node, axis: int, rank: int) -> int:
        """An axis counted from the front: none but the batch's, which is number 0."""
        node.require(-rank <= axis < rank, f"there is no axis {axis} among {rank}")
        node.require(axis % rank != 0, "the batch must stay as it is")
        return axis % rank

    def slice(self, node: _Node) -> None:
        """Parts along axes other than the batch's; every one of them in order."""
        node.require_inputs(1, 5)
        node.require(len(node.outputs) == 1, "must have one output")
        if self._is_parameter(node.inputs[0]):
            self._slice_parameter(node)
            return
        given: dict[str, tuple[int, ...]] = {}
        for number, what in enumerate(("starts", "ends", "axes", "steps"), start=1):
            if node.has(what):
                given[what] = node.take_ints(what, ())
            elif number < len(node.inputs) and node.inputs[number]:
                given[what] = self._known_ints(node, node.inputs[number])
        node.require("starts" in given and "ends" in given, "needs starts and ends")
        starts, ends = given["starts"], given["ends"]
        axes = given.get("axes", tuple(range(len(starts))))
        steps = given.get("steps", (1,) * len(starts))
        node.require(
            len(starts) == len(ends) == len(axes) == len(steps), "its lists differ in length"
        )
        if any(step != 1 for step in steps):
            onnx_rotary.slice_with_steps(self, node, starts, ends, axes, steps)
            return
        value, rank = (
            node.inputs[0],
            1 + len(self._shape_of(node, self._value(node, node.inputs[0]))),
        )
        parts = []
        for place, start, end in zip(axes, starts, ends, strict=True):
            if place in (0, -rank) and start == 0 and end >= 2**31 - 1:
                continue  # the whole batch
            axis = self._axis(node, place, rank)
            extent = self._shapes[self._values[value]][axis - 1]
            begin, stop = (
                min(max(place + extent if place < 0 else place, 0), extent)
                for place in (start, end)
            )
            node.require(begin < stop, f"the part {start} to {end} of {extent} is empty")
            if (begin, stop) != (0, extent):
                parts.append((axis, begin, stop))
        self._cut(node, value, parts, node.outputs[0])

    def _is_parameter(self, name: str) -> bool:
        """Whether a file that tells its parameters from its constants has a parameter there."""
        weight = self._weights.get(name)
        return not self._ties and weight is not None and weight.name not in self._constants

    def _slice_parameter(self, node: _Node) -> None:
        """The first rows of a parameter, as of a table with more positions than a sample has."""
        weight = self._weights[node.inputs[0]]
        node.require(len(node.inputs) >= 3 and all(node.inputs), "needs starts and ends")
        lists = [self._known_ints(node, name) for name in node.inputs[1:]]
        starts, ends, axes, steps = (*lists, *((0,), (1,))[len(lists) - 4 :])[:4]
        axis = len(weight.dims) - len(_strip(weight.dims))
        node.require(
            starts == (0,) and steps == (1,) and axes == (axis,) and not weight.transposed,
            f"takes a part of the parameter {weight.name!r} other than its first rows",
        )
        self._take_rows(node, weight, min(ends[0], weight.dims[axis]))

    def _take_rows(self, node: _Node, weight: _Weight, count: int) -> None:
        """The first ``count`` rows of a parameter, under the name of the node's output."""
        dims = _strip(weight.dims)
        node.require(count > 0 and weight.rows is None, f"takes {count} rows")
        self._declare(node.outputs[0], node.where)
        rows = None if count == dims[0] else count
        self._weights[node.outputs[0]] = replace(weight, dims=(count, *dims[1:]), rows=rows)

    def _cut(
        self, node: _Node, value: str, parts: Sequence[tuple[int, int, int]], name: str
    ) -> None:
        """One layer for each axis; the last is called ``name``."""
        source = self._value(node, value)
        if not parts:
            self._declare(name, node.where)
            self._values[name] = source
        for count, (axis, start, stop) in enumerate(parts, start=1):
            made = name if count == len(parts) else f"{name}/axis_{count}"
            shape = list(self._shapes[source])
            shape[axis - 1] = stop - start
            self._emit(node, Slice(made, source, axis, start, stop), tuple(shape))
            source = made

    def split(self, node: _Node) -> None:
        node.require_inputs(1, 2)
        node.require(bool(node.outputs) and all(node.outputs), "needs outputs")
        shape = self._shape_of(node, self._value(node, node.inputs[0]))
        axis = self._axis(node, node.take_int("axis", 0), 1 + len(shape))
        extent, count = shape[axis - 1], len(node.outputs)
        sizes = node.take_ints("split", ())
        node.require(node.take_int("num_outputs", count) == count, "num_outputs is not as many")
        if len(node.inputs) == 2:
            sizes = self._known_ints(node, node.inputs[1])
        if not sizes:
            whole = -(-extent // count)
            sizes = (*(whole,) * (count - 1), extent - whole * (count - 1))
        node.require(
            len(sizes) == count and min(sizes) > 0 and sum(sizes) == extent,
            f"cannot split {extent} into {list(sizes)}",
        )
        start = 0
        for name, size in zip(node.outputs, sizes, strict=True):
            part = (axis, start, start + size)
            self._cut(node, node.inputs[0], [] if size == extent else [part], name)
            start += size

    def pad(self, node: _Node) -> None:
        """Zeros before and after, along axes other than the batch's."""
        node.require_inputs(1, 4)
        node.require(len(node.outputs) == 1, "must have one output")
        node.require(node.take_text("mode", "constant") == "constant", "mode must be constant")
        value = self._value(node, node.inputs[0])
        rank = 1 + len(self._shape_of(node, value))
        pads = node.take_ints("pads", ())
        if len(node.inputs) > 1 and node.inputs[1]:
            pads = self._known_ints(node, node.inputs[1])
        filled: float | Fraction = node.take_float("value", 0.0)
        if len(node.inputs) > 2 and node.inputs[2]:
            filled = self._scalar(node, node.inputs[2])
        node.require(filled == 0, "pads with other values than 0")
        axes = tuple(range(rank))
        if len(node.inputs) > 3 and node.inputs[3]:
            axes = self._known_ints(node, node.inputs[3])
        node.require(len(pads) == 2 * len(axes), f"has {len(pads)} pads for {len(axes)} axes")
        widths = zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True)
        wanted = [(axis, *around) for axis, *around in widths if any(around)]
        if not wanted:
            self._alias(node, node.inputs[0])
        for count, (axis, before, after) in enumerate(wanted, start=1):
            name = node.outputs[0] if count == len(wanted) else f"{node.outputs[0]}/axis_{count}"
            node.require(min(before, after) >= 0, "negative pads are not supported")
            number = self._axis(node, axis, rank)
            shape = list(self._shapes[value])
            shape[number - 1] += before + after
            self._emit(node, Pad(name, value, number, before, after), tuple(shape))
            value = name

    # --- constants, and the arithmetic of shapes that exporters write for x.view(x.size(0), -1)

    def constant(self, node: _Node) -> None:
        node.require_arity(0, 0)
        name = node.outputs[0]
        if node.has("value"):
            attribute = node.take("value", onnx.AttributeProto.TENSOR)
            if attribute is not None:
                self._store(name, attribute.t)
                self._constants.add(name)
                self._literals.add(name)
            return
        node.require(
            node.has("value_int") != node.has("value_ints"), "must be a tensor or integers"
        )
        ints = node.take_ints("value_ints", (node.take_int("value_int", 0),))
        self._declare(name, node.where)
        self._computed[name] = onnx_fold.as_constant(np.array(ints, dtype=object))

    def cast(self, node: _Node) -> None:
        """Of a value to another float: how it is stored is no matter here."""
        node.require_arity(1, 1)
        node.require(node.take_int("to", 0) in _FLOAT_TYPES, "casts a value to no float")
        node.take_int("saturate", 1)
        self._value(node, node.inputs[0])
        self._alias(node, node.inputs[0])

    def shape(self, node: _Node) -> None:
        node.require_arity(1, 1)
        name = node.inputs[0]
        if name in self._computed or name in self._weights:
            whole: Extents = self._constant_of(node, name).shape
        elif name in self._masks:
            whole = (self._batch, *self._masks[name].shape)
        else:
            whole = (self._batch, *self._shapes[self._any_value(node, name)])
        start, end = node.take_int("start", 0), node.take_int("end", len(whole))
        self._declare(node.outputs[0], node.where)
        self._computed[node.outputs[0]] = np.array(whole[start:end], dtype=object)

    def _is_folded(self, node: _Node) -> bool:
        """Whether a node computes with constants alone.  What only gives a trained tensor another
        name, takes rows of it, or adds two of them, is not meant."""
        known = [name in self._computed for name in node.inputs if name]
        stored = [name in self._weights for name in node.inputs if name]
        both = [a or b for a, b in zip(known, stored, strict=True)]
        if node.op not in onnx_fold.OPERATORS or not both or not all(both):
            return False
        if node.op in _OF_PARAMETERS and self._is_parameter(node.inputs[0]):
            return False
        if node.op == "Gather" and self._is_table(node.inputs[0]):
            return onnx_rotary.is_rotation(self, self._weights[node.inputs[0]].name)
        return any(known) or node.op not in ("Add", "Identity", "MatMul", "Transpose")

    def _is_table(self, name: str) -> bool:
        """A stored matrix of floats, whose rows are trained."""
        weight = self._weights.get(name)
        if weight is None or len(weight.dims) != 2:
            return False
        return self._tensors[weight.name].data_type in _FLOAT_TYPES

    def fold(self, node: _Node) -> None:
        node.require(len(node.outputs) == 1, f"must have one output, has {len(node.outputs)}")
        inputs = [self._constant_of(node, name) for name in node.inputs]
        found = onnx_fold.fold(node.op, node.take_all(), inputs, node.where)
        self._declare(node.outputs[0], node.where)
        stored = self._weights.get(node.inputs[0])
        if node.op == "Unsqueeze" and stored is not None and len(stored.dims) == 1:
            self._columns[node.outputs[0]] = replace(stored, dims=found.shape)
        self._computed[node.outputs[0]] = found
        self._roots[node.outputs[0]] = onnx_rotary.find_roots(self, node)

    def _constant_of(self, node: _Node, name: str) -> onnx_fold.Constant:
        """A constant, stored or computed."""
        if name in self._computed:
            return self._computed[name]
        weight = self._weight(node, name)
        node.require(
            not self._is_parameter(name),
            f"computes with the parameter {weight.name!r}, which would not be trained: make it a "
            "buffer, or set requires_grad_(False)",
        )
        found = _read_constant(self._tensors[weight.name], f"initialiser {weight.name}")
        return found.T if weight.transposed else found

    def gather(self, node: _Node) -> None:
        node.require_arity(2, 2)
        if self._values.get(node.inputs[0], self._input) != self._input and node.has("axis"):
            onnx_rotary.pick(self, node)
            return
        if node.inputs[0] not in self._weights:
            node.refuse("is only supported on a table, and on the shape of a value")
        self._gather_rows(node)

    def _gather_rows(self, node: _Node) -> None:
        """Rows of a trained table: by the model's input, or all of them in order."""
        table = self._weights[node.inputs[0]]
        node.require(len(table.dims) == 2 and not table.transposed, "needs a table as it is stored")
        node.require(min(table.dims) > 0, "the table is empty")
        node.require(node.take_int("axis", 0) in (0, -2), "axis must be 0")
        if self._values.get(node.inputs[1]) != self._input or not self._takes_ids:
            self._gather_constant_rows(node, table)
            return
        shape = (*self._shapes[self._input], table.dims[1])
        row = self._read_row(node, table)
        self._emit(node, Embedding(node.outputs[0], self._input, table.name, row), shape)

    def _read_row(self, node: _Node, table: _Weight) -> int | None:
        """The row that is not trained, which a file of ours has in the node's metadata."""
        if self._ties or ROW_KEY not in node.metadata:
            return None
        text = node.metadata[ROW_KEY]
        count = table.dims[0]
        known = isinstance(text, str) and text.isascii() and text.isdecimal()
        node.require(
            known and len(text) <= len(str(count)) and int(text) < count > 1,
            f"{ROW_KEY} is {text!r}, no row of {count}, or the only one",
        )
        return int(text)

    def _gather_constant_rows(self, node: _Node, table: _Weight) -> None:
        """Positions: numbers that are known now must be all of the table's, in order."""
        found = self._constant_of(node, node.inputs[1])
        if self._is_parameter(node.inputs[0]) and [*found.flat] == [*range(found.size)]:
            self._take_rows(node, table, min(found.size, table.dims[0]))
            return
        node.require(
            [*found.flat] == [*range(table.dims[0])],
            f"numbers that are constant must be 0 to {table.dims[0] - 1}, all rows of the table: "
            "give the table as many rows as there are places",
        )
        self._alias(node, node.inputs[0])

    def unsqueeze(self, node: _Node) -> None:
        node.require_arity(1, 2)
        if self._is_parameter(node.inputs[0]):
            self._unsqueeze_filters(node)
            return
        if node.inputs[0] not in self._values:
            node.refuse("is only supported on values and on the shape of a value")
        self._unsqueeze_value(node)

    def _unsqueeze_filters(self, node: _Node) -> None:
        """Of a convolution over one axis, as those of images with a height of 1; or one number for
        each channel, the same for all places."""
        weight, axes = self._weight(node, node.inputs[0]), self._take_axes(node)
        of_channels = len(weight.dims) == 1 and axes == tuple(range(1, 1 + len(axes)))
        node.require(
            of_channels or (len(weight.dims) == _LINE_RANK and axes == (2,)),
            f"adds an axis to the parameter {weight.name!r}, which is no filters of a line",
        )
        self._declare(node.outputs[0], node.where)
        dims = (*weight.dims[:2], 1, weight.dims[-1])
        if of_channels:
            dims = (*weight.dims, *(1,) * len(axes))
        self._weights[node.outputs[0]] = replace(weight, dims=dims)

    def _unsqueeze_value(self, node: _Node) -> None:
        shape = self._shape_of(node, self._value(node, node.inputs[0]))
        axes = self._take_axes(node)
        rank = 1 + len(shape) + len(axes)
        node.require(bool(axes) and rank <= MAX_RANK, f"axes are {list(axes)}")
        found = {self._axis(node, axis, rank) for axis in axes}
        node.require(len(found) == len(axes), f"axes are {list(axes)}")
        extents = iter(shape)
        whole = tuple(1 if axis in found else next(extents) for axis in range(1, rank))
        self._reshape_value(node, whole)

    def squeeze(self, node: _Node) -> None:
        node.require_arity(1, 2)
        shape = self._shape_of(node, self._value(node, node.inputs[0]))
        rank = 1 + len(shape)
        axes = self._take_axes(node)
        node.require(bool(axes), "must name its axes")
        found = {self._axis(node, axis, rank) for axis in axes}
        node.require(
            all(shape[axis - 1] == 1 for axis in found),
            f"axes {list(axes)} are not all of extent 1",
        )
        self._reshape_value(node, tuple(x for axis, x in enumerate(shape, 1) if axis not in found))

    def _take_axes(self, node: _Node) -> tuple[int, ...]:
        """An attribute up to opset 12, an input from 13 on."""
        if len(node.inputs) == 2:
            return self._known_ints(node, node.inputs[1])
        return node.take_ints("axes", ())

    def _reshape_value(self, node: _Node, shape: tuple[int, ...]) -> None:
        node.require(bool(shape), "leaves the batch alone")
        layer = Reshape(node.outputs[0], self._value(node, node.inputs[0]), shape)
        self._emit(node, layer, shape)

    def _concat_values(self, node: _Node) -> None:
        node.require(node.has("axis"), "must name its axis")
        given = node.take_int("axis", 0)
        values = self._place_parameters(node, given)
        shapes = [self._shape_of(node, value) for value in values]
        rank = 1 + len(shapes[0])
        axis = self._axis(node, given, rank)
        beside = {(*shape[: axis - 1], *shape[axis:]) for shape in shapes}
        node.require(
            len(beside) == 1 and len({len(shape) for shape in shapes}) == 1,
            f"shapes differ beside axis {axis}: {shapes}",
        )
        if len(values) == 1:
            self._declare(node.outputs[0], node.where)
            self._values[node.outputs[0]] = values[0]
            return
        whole = list(shapes[0])
        whole[axis - 1] = sum(shape[axis - 1] for shape in shapes)
        self._emit(node, Concat(node.outputs[0], tuple(values), axis), tuple(whole))

    def _place_parameters(self, node: _Node, given: int) -> list[str]:
        """The values to join along the axis ``given``.  A parameter between them is added to the
        zeros that the value before it, or else after it, is padded with."""
        values: list[str] = []
        waiting: list[_Weight] = []
        for number, name in enumerate(node.inputs):
            if not self._is_parameter(name):
                value = self._value(node, name)
                for weight in reversed(waiting):
                    value = self._join_parameter(node, value, weight, given, number, first=True)
                values.append(value)
                waiting = []
            elif values:
                weight = self._weight(node, name)
                values[-1] = self._join_parameter(
                    node, values[-1], weight, given, number, first=False
                )
            else:
                waiting.append(self._weight(node, name))
        node.require(not waiting, "joins parameters alone")
        return values

    def _join_parameter(
        self, node: _Node, value: str, weight: _Weight, given: int, number: int, *, first: bool
    ) -> str:
        """``value`` with a parameter [1, ...] before or after it along an axis."""
        shape = self._shape_of(node, value)
        axis = self._axis(node, given, 1 + len(shape))
        batch, *part = weight.dims or (0,)
        node.require(
            batch == 1
            and len(part) == len(shape)
            and (*part[: axis - 1], *part[axis:]) == (*shape[: axis - 1], *shape[axis:])
            and len(_strip(weight.dims)) <= _MOST_ADDED_AXES,
            f"joins a parameter of shape {list(weight.dims)} to [batch, "
            f"{', '.join(map(str, shape))}] along axis {axis}",
        )
        added, own = part[axis - 1], shape[axis - 1]
        whole = (*shape[: axis - 1], own + added, *shape[axis:])
        before, after = (added, 0) if first else (0, added)
        name = f"{node.outputs[0]}/part_{number}_with_{weight.name}"
        self._emit(node, Pad(f"{name}/padded", value, axis, before, after), whole)
        along = (axis, 0, added) if first else (axis, own, own + added)
        self._emit(node, AddWeight(name, f"{name}/padded", weight.name, along=along), whole)
        return name

    def concat(self, node: _Node) -> None:
        node.require_arity(1, LIMITS.onnx_nodes)
        self._concat_values(node)

    # --- attention

    def where(self, node: _Node) -> None:
        """A choice by a constant between a value and minus infinity: a mask."""
        node.require_arity(3, 3)
        if node.inputs[0] in self._nans:
            onnx_masks.replace_nan(self, node)
            return
        choice, kept, hidden = node.inputs
        swapped = hidden in self._values and kept not in self._values
        value, fill = (hidden, kept) if swapped else (kept, hidden)
        if choice in self._values or fill in self._values or value not in self._values:
            node.refuse("is only supported as a mask: a value, or minus infinity, by a constant")
        chosen, other = self._constant_of(node, choice), self._constant_of(node, fill)
        node.require(
            chosen.dtype == np.bool_ and other.dtype != object and bool((other < _HIDDEN).all()),
            "is only supported as a mask: what is not kept must be minus infinity",
        )
        self._mask(node, value, ~chosen if swapped else chosen)

    def _scores(self, node: _Node, name: str) -> _Scores:
        """A value, masked or not."""
        masked = self._masked.get(self._values.get(name, ""))
        return _Scores(self._value(node, name)) if masked is None else masked

    def _mask(
        self,
        node: _Node,
        name: str,
        kept: npt.NDArray[np.bool_],
        made: str | None = None,
        padding: int | None = None,
    ) -> None:
        """A value whose places beside ``kept``, and those of padding, are minus infinity, under the
        name ``made``."""
        found = self._scores(node, name)
        shape = self._shape_of(node, found.value)
        node.require(len(shape) >= 2, f"a mask needs rows and columns, shape is {shape}")
        square = kept.reshape(_strip(kept.shape))
        node.require(
            kept.ndim <= 1 + len(shape) and square.ndim <= 2,
            f"a mask of shape {list(kept.shape)} is not one of queries and keys alone",
        )
        try:
            square = np.broadcast_to(square, shape[-2:])
        except ValueError:
            node.refuse(f"a mask of shape {list(kept.shape)} does not fit {shape}")
        node.require(
            None in (padding, found.padding) or padding == found.padding,
            f"hides padding of id {padding} where {found.padding} is hidden already",
        )
        window = found.window
        if not bool(square.all()):
            window = onnx_fold.find_window(square)
            if window is None:
                node.refuse(
                    "a mask must let each place attend to itself and to so many before it: "
                    "no other is supported"
                )
            window = window if found.window is None else min(window, found.window)
        made = node.outputs[0] if made is None else made
        self._declare(made, node.where)
        padding = found.padding if padding is None else padding
        if window is None and padding is None:
            self._values[made] = found.value
            return
        self._values[made], self._shapes[made] = made, shape
        self._masked[made] = _Scores(found.value, window, padding)

    def softmax(self, node: _Node) -> None:
        """Over the last axis; factors and a mask before it become part of it."""
        node.require_arity(1, 1)
        name = node.inputs[0]
        if name not in self._values:
            self._fail_unknown(node, name, "a value computed from the model's input")
        found = self._scores(node, name)
        shape = self._shape_of(node, found.value)
        # Up to opset 12 all axes from the given one on are one.
        axis = node.take_int("axis", -1 if self._opset >= 13 else 1)
        node.require(axis in (-1, len(shape)), f"axis must be the last, is {axis}")
        value, factor = self._take_factor(found.value)
        factors = self._round_factor(node, factor)
        layer = Softmax(node.outputs[0], value, *factors, found.window, padding=found.padding)
        self._emit(node, layer, shape)

    def expand(self, node: _Node) -> None:
        """Copies along axes of extent 1, as where several heads share a key."""
        node.require_arity(2, 2)
        if self._is_parameter(node.inputs[0]):
            self._expand_parameter(node)
            return
        shape = self._shape_of(node, self._value(node, node.inputs[0]))
        asked = self._ints(node, node.inputs[1])
        rank = 1 + len(shape)
        node.require(len(asked) <= rank, f"shape {list(asked)} adds axes to [batch, {shape}]")
        batch, *extents = ((1,) * (rank - len(asked))) + asked
        keeps_batch = batch in (onnx_fold.BATCH, 1, -1) or batch == self._batch
        node.require(keeps_batch, f"shape {list(asked)} does not keep the batch")
        repeats = []
        for axis, (extent, wanted) in enumerate(zip(shape, extents, strict=True), start=1):
            node.require(
                wanted is not None and (wanted in (1, -1, extent) or extent == 1),
                f"cannot expand [batch, {shape}] to {list(asked)}",
            )
            if extent == 1 and wanted is not None and wanted > 1:
                repeats.append((axis, wanted))
        self._repeat(node, repeats)

    def _expand_parameter(self, node: _Node) -> None:
        """A parameter [1, ...], the same for each sample: it stays as it is."""
        weight = self._weight(node, node.inputs[0])
        batch, *extents = self._ints(node, node.inputs[1]) or (1,)
        dims = (*(1,) * (1 + len(extents) - len(weight.dims)), *weight.dims)
        node.require(
            (batch in (onnx_fold.BATCH, 1, -1) or batch == self._batch)
            and dims == (1, *extents)
            and not weight.transposed,
            f"spreads the parameter {weight.name!r} of shape {list(weight.dims)} along other than "
            "the batch",
        )
        self._declare(node.outputs[0], node.where)
        self._weights[node.outputs[0]] = replace(weight, dims=dims)

    def tile(self, node: _Node) -> None:
        node.require_arity(2, 2)
        shape = self._shape_of(node, self._value(node, node.inputs[0]))
        counts = self._known_ints(node, node.inputs[1])
        node.require(len(counts) == 1 + len(shape), f"has {len(counts)} counts")
        node.require(counts[0] == 1, "the batch must stay as it is")
        node.require(min(counts) >= 1, f"counts are {list(counts)}")
        repeats = [(axis, count) for axis, count in enumerate(counts) if count > 1]
        self._repeat(node, repeats)

    def _repeat(self, node: _Node, repeats: Sequence[tuple[int, int]]) -> None:
        """So many copies along each of these axes."""
        value = self._value(node, node.inputs[0])
        if not repeats:
            self._alias(node, node.inputs[0])
        for number, (axis, count) in enumerate(repeats, start=1):
            name = node.outputs[0] if number == len(repeats) else f"{node.outputs[0]}/axis_{axis}"
            self._emit_copies(node, name, value, axis, count)
            value = name

    def _emit_copies(self, node: _Node, name: str, value: str, axis: int, count: int) -> None:
        node.require(count <= _MOST_COPIES, f"{count} copies, more than {_MOST_COPIES}")
        shape = list(self._shapes[value])
        shape[axis - 1] *= count
        count_elements(tuple(shape), node.where)
        self._emit(node, Concat(name, (value,) * count, axis), tuple(shape))

    def attention(self, node: _Node) -> None:
        """The operator of opset 23: heads, factor, mask and softmax in one."""
        node.require_inputs(3, 4)
        node.require(all(node.inputs[:3]), "needs queries, keys and values")
        node.require(len(node.outputs) == 1, "must have one output: past keys are not supported")
        counts = node.take_int("q_num_heads", 0), node.take_int("kv_num_heads", 0)
        factor, is_causal = node.take_float("scale", 0.0), node.take_int("is_causal", 0)
        node.require(node.take_float("softcap", 0.0) == 0, "softcap must be 0")
        node.take_int("qk_matmul_output_mode", 0)
        node.take_int("softmax_precision", 1)
        name = node.outputs[0]
        parts = [self._value(node, item) for item in node.inputs[:3]]
        flat = len(self._shape_of(node, parts[0])) == 2
        if flat:
            node.require(min(counts) > 0, "needs q_num_heads and kv_num_heads")
            heads = (counts[0], counts[1], counts[1])
            parts = [
                self._split_heads(node, f"{name}/{what}", part, count)
                for what, part, count in zip("qkv", parts, heads, strict=True)
            ]
        shapes = [self._shape_of(node, part) for part in parts]
        node.require(
            all(len(shape) == 3 for shape in shapes)
            and shapes[1][:2] == shapes[2][:2]
            and shapes[0][2] == shapes[1][2]
            and shapes[0][0] % shapes[1][0] == 0,
            f"queries, keys and values do not fit each other: {shapes}",
        )
        (groups, queries, size), keys = shapes[0], shapes[1][1]
        copies = groups // shapes[1][0]
        if copies > 1:
            parts[1:] = [
                self._share_heads(node, f"{name}/{what}_shared", part, copies)
                for what, part in zip("kv", parts[1:], strict=True)
            ]
        q, k, v = parts
        self._emit(node, MatMul(f"{name}/scores", q, k, False, True), (groups, queries, keys))
        if is_causal:
            node.require(queries == keys, "is_causal needs as many keys as queries")
        kept = np.tri(queries, dtype=np.bool_) if is_causal else np.ones((queries, keys), np.bool_)
        found = self._hide_scores(node, name, kept)
        exact = Fraction(factor) if factor else Fraction(1 / float(np.sqrt(np.float32(size))))
        factors = self._round_factor(node, exact)
        probabilities = f"{name}/probabilities"
        layer = Softmax(probabilities, found.value, *factors, found.window, padding=found.padding)
        self._emit(node, layer, (groups, queries, keys))
        mixed = f"{name}/mixed" if flat else name
        shape = (groups, queries, shapes[2][2])
        self._emit(node, MatMul(mixed, layer.name, v), shape)
        if flat:
            turned = (queries, groups, shape[2])
            self._emit(node, Transpose(f"{name}/turned", mixed, (0, 2, 1, 3)), turned)
            whole = (queries, groups * shape[2])
            self._emit(node, Reshape(name, f"{name}/turned", whole), whole)

    def _hide_scores(self, node: _Node, name: str, kept: npt.NDArray[np.bool_]) -> _Scores:
        """The scores of the operator Attention, with what its mask leaves of ``kept``."""
        scores, hidden = f"{name}/scores", f"{name}/masked"
        given = node.inputs[3] if len(node.inputs) == 4 else None
        by_ids = None if given is None else self._masks.get(given)
        if by_ids is None:
            if given is not None:
                kept = kept & self._read_mask(node, given)
            self._mask(node, scores, kept, made=hidden)
        else:
            node.require(
                by_ids.added or not by_ids.hides, "a mask of booleans must be of what is kept"
            )
            allowed = kept if by_ids.allowed is None else kept & by_ids.allowed
            onnx_masks.hide(self, node, scores, replace(by_ids, allowed=allowed), made=hidden)
        return self._scores(node, hidden)

    def _split_heads(self, node: _Node, name: str, value: str, count: int) -> str:
        """[batch, places, features] -> [batch, heads, places, features of a head]."""
        places, features = self._shape_of(node, value, 2)
        node.require(features % count == 0, f"{features} features for {count} heads")
        split = (places, count, features // count)
        self._emit(node, Reshape(f"{name}_heads", value, split), split)
        turned = (count, places, features // count)
        self._emit(node, Transpose(f"{name}_turned", f"{name}_heads", (0, 2, 1, 3)), turned)
        return f"{name}_turned"

    def _share_heads(self, node: _Node, name: str, value: str, copies: int) -> str:
        """Each head so many times, one after the other."""
        heads, places, features = self._shapes[value]
        apart = (heads, 1, places, features)
        self._emit(node, Reshape(f"{name}_apart", value, apart), apart)
        self._emit_copies(node, f"{name}_copies", f"{name}_apart", 2, copies)
        whole = (heads * copies, places, features)
        self._emit(node, Reshape(name, f"{name}_copies", whole), whole)
        return name

    def _read_mask(self, node: _Node, name: str) -> npt.NDArray[np.bool_]:
        """Which places a mask of the Attention operator leaves: of rows and columns alone."""
        node.require(name not in self._values, "the mask must be a constant")
        found = self._constant_of(node, name)
        if found.dtype != np.bool_:
            node.require(self._hides(node, name), "a mask that is added is 0 and minus infinity")
            found = found == 0
        return found.reshape(_strip(found.shape))

    def _take_factor(self, value: str) -> tuple[str, Fraction]:
        """What a value is a constant multiple of, and the factor."""
        factor = Fraction(1)
        while isinstance(layer := self._layers.get(value), Scale):
            factor *= self._factors[value]
            value = layer.input
        return value, factor


def _strip(dims: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without the leading extents of 1, of which one is left if it has no other."""
    while len(dims) > 1 and dims[0] == 1:
        dims = dims[1:]
    return dims


_BIASED = (Linear, Conv, ConvTranspose, LayerNorm, GroupNorm, BatchNorm)


def _find_uses(layer: Layer) -> list[tuple[str, str]]:
    """The parameters of a layer, in order, and what each is to it."""
    uses: list[tuple[str, str]] = []
    match layer:
        case Linear() | Conv():
            uses.append((layer.weight, type(layer).__name__))
        case ConvTranspose():
            uses.append((layer.weight, "Conv"))  # stored alike
        case Embedding():
            uses.append((layer.weight, "Linear"))  # stored alike: one table may be both
        case LayerNorm() | RMSNorm() | GroupNorm() | BatchNorm() if layer.weight is not None:
            uses.append((layer.weight, "scale"))
        case AddWeight():
            uses.append((layer.weight, "AddWeight"))
        case MulWeight():
            uses.append((layer.weight, "scale"))
    if isinstance(layer, _BIASED) and layer.bias is not None:
        if uses and layer.bias == uses[0][0]:
            raise ModelError("is both weight and bias", where=layer.name)
        uses.append((layer.bias, "bias"))
    if isinstance(layer, BatchNorm):
        uses += [(layer.mean, "statistic"), (layer.variance, "statistic")]
    return uses


def _find_constants(layers: Sequence[Layer]) -> list[str]:
    """Names of the constants that layers multiply by, in the order of first use."""
    return list(dict.fromkeys(item.constant for item in layers if isinstance(item, Modulate)))


def _find_statistics(layers: Sequence[Layer]) -> list[str]:
    """Names of the running statistics, each of one norm alone."""
    found: list[str] = []
    for layer in layers:
        if isinstance(layer, BatchNorm):
            for name in (layer.mean, layer.variance):
                if name in found:
                    raise ModelError(
                        "is a running statistic twice: give each use of the norm its own",
                        where=f"initialiser {name}",
                    )
                found.append(name)
    return found


def _resolve_auto_pad(
    node: _Node,
    mode: str,
    image: tuple[int, int],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
) -> tuple[int, ...]:
    """Pads (top, left, bottom, right) of VALID, SAME_UPPER or SAME_LOWER, as ONNX defines them."""
    if mode == "VALID":
        return (0, 0, 0, 0)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        node.refuse(f"auto_pad is {mode!r}")
    begins, ends = [], []
    for extent, size, stride in zip(image, kernel, strides, strict=True):
        windows = -(-extent // stride)
        total = max((windows - 1) * stride + size - extent, 0)
        less, more = total // 2, total - total // 2
        begins.append(less if mode == "SAME_UPPER" else more)
        ends.append(more if mode == "SAME_UPPER" else less)
    return (*begins, *ends)


_LOSS_HINT = "is part of the loss: end the model at its logits, the task's loss brings this"
_PARTS_HINT = "is a part of GELU in older opsets: export with opset 20 or later, which has Gelu"
_TRAINING_HINT = (
    "Export the model in training mode: model.train(), and torch.onnx.export with dynamo=False and "
    "training=torch.onnx.TrainingMode.TRAINING"
)
_MASK_HINT = f"operator is not supported. {onnx_masks.HINT}"
_UNSUPPORTED = {
    "LogSoftmax": _LOSS_HINT,
    "Erf": _PARTS_HINT,
    **dict.fromkeys(
        ("CumSum", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or"),
        _MASK_HINT,
    ),
}

_HANDLERS: dict[str, Callable[[_Importer, _Node], None]] = {
    "Add": _Importer.add,
    "Attention": _Importer.attention,
    "AveragePool": _Importer.average_pool,
    "BatchNormalization": _Importer.batch_normalization,
    "Cast": _Importer.cast,
    "Clip": _Importer.clip,
    "Concat": _Importer.concat,
    "Constant": _Importer.constant,
    "Conv": _Importer.conv,
    "ConvTranspose": _Importer.conv_transpose,
    "Div": _Importer.div,
    "Equal": onnx_masks.compare,
    "Dropout": _Importer.dropout,
    "Elu": _Importer.elu,
    "Expand": _Importer.expand,
    "Flatten": _Importer.flatten,
    "Gather": _Importer.gather,
    "Gelu": _Importer.gelu,
    "Gemm": _Importer.gemm,
    "GlobalAveragePool": _Importer.global_average_pool,
    "GlobalMaxPool": _Importer.global_max_pool,
    "GroupNormalization": _Importer.group_normalization,
    "Identity": _Importer.identity,
    "InstanceNormalization": _Importer.instance_normalization,
    "IsNaN": onnx_masks.find_nan,
    "LayerNormalization": _Importer.layer_normalization,
    "LeakyRelu": _Importer.leaky_relu,
    "MatMul": _Importer.matmul,
    "MaxPool": _Importer.max_pool,
    "Mul": _Importer.mul,
    "Neg": onnx_rotary.negate,
    "Pad": _Importer.pad,
    "Pow": _Importer.pow,
    "RMSNormalization": _Importer.rms_normalization,
    "Reciprocal": _Importer.reciprocal,
    "ReduceMean": _Importer.reduce_mean,
    "Relu": _Importer.relu,
    "Reshape": _Importer.reshape,
    "RotaryEmbedding": onnx_rotary.rotary_embedding,
    "Shape": _Importer.shape,
    "Sigmoid": _Importer.sigmoid,
    "Slice": _Importer.slice,
    "Sqrt": _Importer.sqrt,
    "Softmax": _Importer.softmax,
    "Split": _Importer.split,
    "Squeeze": _Importer.squeeze,
    "Sub": onnx_rotary.subtract,
    "Swish": _Importer.swish,
    "Tanh": _Importer.tanh,
    "Tile": _Importer.tile,
    "Transpose": _Importer.transpose,
    "Unsqueeze": _Importer.unsqueeze,
    "Where": _Importer.where,
}
OPERATORS = tuple(sorted({*_HANDLERS, *onnx_masks.OF_MASKS}))
"""Names of the ONNX operators that an imported model may have."""
