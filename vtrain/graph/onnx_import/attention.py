"""Softmax, masks by choice, and the operator Attention."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from vtrain.graph.model import MatMul, Reshape, Softmax, Transpose
from vtrain.graph.onnx_import import masks, pieces
from vtrain.graph.onnx_import.importer import Handlers, Importer, Scores, strip
from vtrain.graph.onnx_import.node import Node


def _where(importer: Importer, node: Node) -> None:
    """A choice by a constant between a value and minus infinity: a mask."""
    node.require_arity(3, 3)
    if node.inputs[0] in importer.nans:
        masks.replace_nan(importer, node)
        return
    choice, kept, hidden = node.inputs
    swapped = hidden in importer.values and kept not in importer.values
    value, fill = (hidden, kept) if swapped else (kept, hidden)
    if choice in importer.values or fill in importer.values or value not in importer.values:
        node.refuse("is only supported as a mask: a value, or minus infinity, by a constant")
    chosen, other = importer.constant_of(node, choice), importer.constant_of(node, fill)
    node.require(
        chosen.dtype == np.bool_ and other.dtype != object and bool((other < masks.HIDDEN).all()),
        "is only supported as a mask: what is not kept must be minus infinity",
    )
    masks.mask_value(importer, node, value, ~chosen if swapped else chosen)


def _softmax(importer: Importer, node: Node) -> None:
    """Over the last axis; factors and a mask before it become part of it."""
    node.require_arity(1, 1)
    name = node.inputs[0]
    if name not in importer.values:
        importer.fail_unknown(node, name, "a value computed from the model's input")
    found = masks.scores_of(importer, node, name)
    shape = importer.shape_of(node, found.value)
    # Up to opset 12 all axes from the given one on are one.
    axis = node.take_int("axis", -1 if importer.opset >= 13 else 1)
    node.require(axis in (-1, len(shape)), f"axis must be the last, is {axis}")
    value, factor = importer.take_factor(found.value)
    factors = pieces.round_factor(node, factor)
    layer = Softmax(node.outputs[0], value, *factors, found.window, padding=found.padding)
    importer.emit(node, layer, shape)


def _attention(importer: Importer, node: Node) -> None:
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
    parts = [importer.value(node, item) for item in node.inputs[:3]]
    flat = len(importer.shape_of(node, parts[0])) == 2
    if flat:
        node.require(min(counts) > 0, "needs q_num_heads and kv_num_heads")
        heads = (counts[0], counts[1], counts[1])
        parts = [
            pieces.split_heads(importer, node, f"{name}/{what}", part, count)
            for what, part, count in zip("qkv", parts, heads, strict=True)
        ]
    shapes = [importer.shape_of(node, part) for part in parts]
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
            _share_heads(importer, node, f"{name}/{what}_shared", part, copies)
            for what, part in zip("kv", parts[1:], strict=True)
        ]
    q, k, v = parts
    importer.emit(node, MatMul(f"{name}/scores", q, k, False, True), (groups, queries, keys))
    if is_causal:
        node.require(queries == keys, "is_causal needs as many keys as queries")
    kept = np.tri(queries, dtype=np.bool_) if is_causal else np.ones((queries, keys), np.bool_)
    found = _hide_scores(importer, node, name, kept)
    exact = Fraction(factor) if factor else Fraction(1 / float(np.sqrt(np.float32(size))))
    factors = pieces.round_factor(node, exact)
    probabilities = f"{name}/probabilities"
    layer = Softmax(probabilities, found.value, *factors, found.window, padding=found.padding)
    importer.emit(node, layer, (groups, queries, keys))
    mixed = f"{name}/mixed" if flat else name
    shape = (groups, queries, shapes[2][2])
    importer.emit(node, MatMul(mixed, layer.name, v), shape)
    if flat:
        turned = (queries, groups, shape[2])
        importer.emit(node, Transpose(f"{name}/turned", mixed, (0, 2, 1, 3)), turned)
        whole = (queries, groups * shape[2])
        importer.emit(node, Reshape(name, f"{name}/turned", whole), whole)


def _hide_scores(importer: Importer, node: Node, name: str, kept: npt.NDArray[np.bool_]) -> Scores:
    """The scores of the operator Attention, with what its mask leaves of ``kept``."""
    scores, hidden = f"{name}/scores", f"{name}/masked"
    given = node.inputs[3] if len(node.inputs) == 4 else None
    by_ids = None if given is None else importer.masks.get(given)
    if by_ids is None:
        if given is not None:
            kept = kept & _read_mask(importer, node, given)
        masks.mask_value(importer, node, scores, kept, made=hidden)
    else:
        node.require(by_ids.added or not by_ids.hides, "a mask of booleans must be of what is kept")
        allowed = kept if by_ids.allowed is None else kept & by_ids.allowed
        masks.hide(importer, node, scores, replace(by_ids, allowed=allowed), made=hidden)
    return masks.scores_of(importer, node, hidden)


def _share_heads(importer: Importer, node: Node, name: str, value: str, copies: int) -> str:
    """Each head so many times, one after the other."""
    heads, places, features = importer.shapes[value]
    apart = (heads, 1, places, features)
    importer.emit(node, Reshape(f"{name}_apart", value, apart), apart)
    pieces.emit_copies(importer, node, f"{name}_copies", f"{name}_apart", 2, copies)
    whole = (heads * copies, places, features)
    importer.emit(node, Reshape(name, f"{name}_copies", whole), whole)
    return name


def _read_mask(importer: Importer, node: Node, name: str) -> npt.NDArray[np.bool_]:
    """Which places a mask of the Attention operator leaves: of rows and columns alone."""
    node.require(name not in importer.values, "the mask must be a constant")
    found = importer.constant_of(node, name)
    if found.dtype != np.bool_:
        node.require(
            masks.hides_places(importer, node, name), "a mask that is added is 0 and minus infinity"
        )
        found = found == 0
    return found.reshape(strip(found.shape))


HANDLERS: Handlers = {
    "Attention": _attention,
    "Softmax": _softmax,
    "Where": _where,
}
