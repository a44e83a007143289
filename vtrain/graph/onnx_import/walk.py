"""The walk over the nodes, and both ends of the graph."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import onnx

from vtrain.errors import ModelError
from vtrain.graph.model import Layer, Model, Softmax, find_sources
from vtrain.graph.onnx_file import count_elements
from vtrain.graph.onnx_import import (
    activation,
    arithmetic,
    attention,
    constants,
    convolution,
    dropout,
    gather,
    linear,
    masks,
    norm,
    parameters,
    pool,
    rotary,
    shapes,
)
from vtrain.graph.onnx_import.importer import MASK_HINT, Extents, Handler, Handlers, Importer
from vtrain.graph.onnx_import.node import FLOAT_TYPES, Node, require_text
from vtrain.wire.graph import MAX_RANK

_ID_TYPES = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)

_LOSS_HINT = "is part of the loss: end the model at its logits, the task's loss brings this"
_PARTS_HINT = "is a part of GELU in older opsets: export with opset 20 or later, which has Gelu"
_UNSUPPORTED = {
    "LogSoftmax": _LOSS_HINT,
    "Erf": _PARTS_HINT,
    **dict.fromkeys(
        ("CumSum", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or"),
        f"operator is not supported. {MASK_HINT}",
    ),
}
_RULES_KEY: Final = "pkg.onnxscript.rewriter.rule_name"
"""Of a node's metadata: the rules by which torch's newer exporter made it of others."""
_FOLDED_KEY: Final = "pkg.onnxscript.optimizer.folded_from"
"""Of a value's metadata: the names of all that torch's newer exporter computed it of."""
_QUOTED: Final = re.compile("'([^']*)'")
_MADE: Final = re.compile(r"onnx::Conv_[0-9]+")
"""What torch's older exporter calls a weight of a convolution that it computed."""
_FAMILIES = (
    activation,
    arithmetic,
    attention,
    constants,
    convolution,
    dropout,
    gather,
    linear,
    masks,
    norm,
    pool,
    rotary,
    shapes,
)
HANDLERS: Handlers = {
    name: handler for family in _FAMILIES for name, handler in family.HANDLERS.items()
}
"""What becomes of nodes whose inputs are values; of constants see :mod:`.constants`, of masks of
ids :mod:`.masks`."""


def run(importer: Importer) -> Model:
    """The model: see :func:`vtrain.graph.onnx_import.import_onnx`."""
    name, shape, nodes = _begin(importer)
    for node in nodes:
        _lower(importer, node)
    output = _read_output(importer)
    layers, copies = (
        parameters.tie(importer, _prune(importer, output))
        if importer.ties
        else (_prune(importer, output), {})
    )
    model = Model(
        input=name,
        input_shape=shape,
        layers=layers,
        output=output,
        params=parameters.read_params(importer, layers),
        takes_ids=importer.takes_ids,
        copies=copies,
        constants=frozenset(parameters.find_constants(layers)),
        lost_dropout=_find_lost_dropout(importer),
        folded_norms=_find_folded_norms(importer),
        statistics=frozenset(parameters.find_statistics(layers)),
    )
    return replace(model, merged=_find_merged(importer, model.trained))


def _find_lost_dropout(importer: Importer) -> str:
    """Where the file tells of dropout that it drops nothing by: at its nodes at inference or,
    where it has no Dropout at all, in what its exporter wrote of the module's source."""
    if importer.idle:
        more = f" and {len(importer.idle) - 1} more" if len(importer.idle) > 1 else ""
        return f"{importer.idle[0]}{more}, not in training"
    if any(proto.op_type == "Dropout" for proto in importer.graph.node):
        return ""
    for proto in importer.graph.node:
        for entry in proto.metadata_props:
            # Bytes are what is not UTF-8.
            if "dropout" in str(entry.value).lower():
                return f"the metadata {str(entry.key)!r} of {Node(proto).where}"
    return ""


def _find_folded_norms(importer: Importer) -> str:
    """The nodes of which the file tells that their weights are not the module's: by the rule that
    made the node of others (torch's newer exporter), or by a name that no parameter has (the older
    one, which also gives each such convolution a bias)."""
    found = [node.where for node in map(Node, importer.graph.node) if _is_folded(importer, node)]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else ""


def _is_folded(importer: Importer, node: Node) -> bool:
    if "batchnorm" in str(node.metadata.get(_RULES_KEY, "")).lower():
        return True
    made = node.op == "Conv" and len(node.inputs) == 3 and _MADE.fullmatch(node.inputs[1])
    return importer.by_torch and bool(made)


def _find_merged(importer: Importer, trained: Collection[str]) -> str:
    """The first of the parameters that torch's newer exporter computed of several of the module's,
    and those.  Names of a module's tensors have dots, but for its own; those of values have none.
    """
    for value in importer.graph.value_info:
        texts = [str(entry.value) for entry in value.metadata_props if entry.key == _FOLDED_KEY]
        parts = [part for text in texts for part in _QUOTED.findall(text) if "." in part]
        if value.name in trained and len(parts) > 1:
            return f"{value.name!r} is computed of {' and '.join(parts)}"
    return ""


def refuse_folding(nodes: str) -> ModelError:
    """The error of a model that is to be trained, and into some ``nodes`` of which a norm is
    folded."""
    return ModelError(
        "torch's exporter computed these weights, as it does where it folds a BatchNorm into them: "
        "the model would be trained without the norm, and its weights are none of the module's. "
        f"{norm.TRAINING_HINT}. If it is to be trained without the norm, fold that in the module "
        "first (torch.nn.utils.fusion.fuse_conv_bn_eval)",
        where=nodes,
    )


def _begin(importer: Importer) -> tuple[str, tuple[int, ...], list[Node]]:
    """The input's name and shape, and the nodes."""
    for tensor in importer.graph.initializer:
        importer.store(require_text(tensor.name, "initialiser"), tensor)
    name, shape = _read_input(importer)
    nodes = [Node(proto) for proto in importer.graph.node]
    importer.made_later = {output for node in nodes for output in node.outputs}
    return name, shape, nodes


def _lower(importer: Importer, node: Node) -> None:
    handler = _find_handler(importer, node)
    if handler is None:
        node.refuse(_UNSUPPORTED.get(node.op, "operator is not supported"))
    handler(importer, node)
    node.require_no_more_attributes()
    importer.made_later.difference_update(node.outputs)


def find_problems(importer: Importer) -> list[ModelError]:
    """See :func:`vtrain.graph.onnx_import.find_problems`."""
    *_, nodes = _begin(importer)
    found: list[ModelError] = []
    guessed: set[str] = set()
    for node in nodes:
        known = _find_handler(importer, node) is not None
        try:
            _lower(importer, node)
        except ModelError as error:
            if not known or guessed.isdisjoint(node.inputs):
                found.append(error)
            _guess(importer, node)
            guessed.update(node.outputs)
    try:
        _read_output(importer)
    except ModelError as error:
        if not found:
            found.append(error)
    try:
        roles = parameters.find_roles(importer, tuple(importer.layers.values()))
    except ModelError as error:
        return [*found, error]
    for name, role in roles.items():
        try:
            parameters.read_master(importer, name, role)
        except ModelError as error:
            found.append(error)
    folded = _find_folded_norms(importer)
    return [*found, refuse_folding(folded)] if folded else found


def _guess(importer: Importer, node: Node) -> None:
    """Declare what a refused node would have made, where the file says of which shape."""
    shapes = {value.name: value for value in importer.graph.value_info}
    for name in node.outputs:
        if not name or name in importer.names or name not in shapes:
            continue
        try:
            _, *shape = _read_declared_shape(shapes[name], node.where)
        except ModelError:
            continue
        known = tuple(extent for extent in shape if extent is not None)
        if known and len(known) == len(shape):
            importer.declare(name, node.where)
            importer.values[name], importer.shapes[name] = name, known


def _find_handler(importer: Importer, node: Node) -> Handler | None:
    if constants.is_folded(importer, node):
        return constants.fold_node
    if any(name in importer.masks for name in node.inputs) and node.op in masks.OF_MASKS:
        return masks.OF_MASKS[node.op]
    return HANDLERS.get(node.op)


def _read_input(importer: Importer) -> tuple[str, tuple[int, ...]]:
    # Up to IR version 3 the initialisers were listed among the inputs too.
    inputs = [value for value in importer.graph.input if value.name not in importer.tensors]
    if len(inputs) != 1:
        raise ModelError(f"a model has one input, this has {len(inputs)}", where="graph")
    name = require_text(inputs[0].name, "input")
    where = f"input {name}"
    importer.takes_ids = inputs[0].type.tensor_type.elem_type in _ID_TYPES
    batch, *shape = _read_declared_shape(inputs[0], where, FLOAT_TYPES + _ID_TYPES)
    if not shape:
        raise ModelError("needs a batch axis and at least one more", where=where)
    known = tuple(extent for extent in shape if extent is not None)
    if len(known) != len(shape):
        raise ModelError(f"only the batch may be symbolic, shape is {shape}", where=where)
    count_elements(known, where)
    importer.batch = batch
    importer.input = name
    importer.declare(name, where)
    importer.values[name] = name
    importer.shapes[name] = known
    return name, known


def _read_declared_shape(
    value: onnx.ValueInfoProto, where: str, types: Sequence[int] = FLOAT_TYPES
) -> Extents:
    """Extents of a graph input or output, None where symbolic; there is at least the batch."""
    kind = value.type.tensor_type
    if kind.elem_type not in types:
        whole = " or of int32 or int64" if types != FLOAT_TYPES else ""
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


def _read_output(importer: Importer) -> str:
    if len(importer.graph.output) != 1:
        raise ModelError(
            f"a model has one output, this has {len(importer.graph.output)}", where="graph"
        )
    name = require_text(importer.graph.output[0].name, "output")
    where = f"output {name}"
    if name not in importer.values:
        raise ModelError("is not a value that the model computes", where=where)
    value = importer.values[name]
    if value in importer.masked or value in importer.merged:
        raise ModelError("is not a value that the model computes", where=where)
    if isinstance(importer.layers.get(value), Softmax):
        raise ModelError(_LOSS_HINT, where=importer.places[value])
    if importer.graph.output[0].type.tensor_type.HasField("shape"):
        declared = _read_declared_shape(importer.graph.output[0], where)
        found: Extents = (importer.batch, *importer.shapes[value])
        agree = len(declared) == len(found) and all(
            a is None or b is None or a == b for a, b in zip(declared, found, strict=True)
        )
        if not agree:
            raise ModelError(f"declares shape {declared}, the model gives {found}", where=where)
    return value


def _prune(importer: Importer, output: str) -> tuple[Layer, ...]:
    """The layers that the output depends on, in order."""
    needed, kept = {output}, []
    for layer in reversed(importer.layers.values()):
        if layer.name in needed:
            needed.update(find_sources(layer))
            kept.append(layer)
    return tuple(reversed(kept))
