"""Masks that an ONNX file computes of the ids: ``ids != padding``, and what exporters write around.

Such a mask is compared, negated, joined with a constant one, given axes, and added to scores as 0
and minus infinity, or chosen by.  Which places it keeps is known all the while: those that are no
padding and that the constant mask allows.  A softmax takes both; nothing else may read a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

from vtrain.graph.model import Softmax
from vtrain.graph.onnx_import import fold, pieces
from vtrain.graph.onnx_import.importer import MASK_HINT, Handlers, IdsMask, Importer, Scores, strip
from vtrain.graph.onnx_import.node import Node
from vtrain.ops.attention import NO_ID

HIDDEN: Final = -1e30
"""What is added to an exponent to hide it: minus infinity, or what stands for it."""
_CASTS = (
    onnx.TensorProto.BOOL,
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.INT32,
    onnx.TensorProto.INT64,
)

Bools = npt.NDArray[np.bool_]


def _compare(importer: Importer, node: Node) -> None:
    """Equal, of the model's input and one number."""
    node.require_arity(2, 2)
    for ids, number in (node.inputs, node.inputs[::-1]):
        is_input = importer.takes_ids and importer.values.get(ids) == importer.input
        if is_input and number not in importer.values:
            found = importer.constant_of(node, number)
            one = found.dtype == object and found.size == 1 and found.ndim <= 1
            node.require(one, f"compares ids with {number!r}, which is no one number. {MASK_HINT}")
            padding = int(found.reshape(-1)[0])
            node.require(0 <= padding < NO_ID, f"compares ids with {padding}, which is none")
            _declare(importer, node, IdsMask(padding, importer.shapes[importer.input], True))
            return
    node.refuse(f"is only supported of ids and a number. {MASK_HINT}")


def _declare(importer: Importer, node: Node, mask: IdsMask) -> None:
    importer.declare(node.outputs[0], node.where)
    importer.masks[node.outputs[0]] = mask


def _take(importer: Importer, node: Node) -> tuple[IdsMask, str]:
    """The mask that a node of two inputs reads, and the name of the other input."""
    node.require_arity(2, 2)
    masks = [name for name in node.inputs if name in importer.masks]
    node.require(len(masks) == 1, f"joins two masks of ids. {MASK_HINT}")
    (other,) = (name for name in node.inputs if name != masks[0])
    return importer.masks[masks[0]], other


def _negate(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    mask = importer.masks[node.inputs[0]]
    node.require(not mask.added, "negates what is added to scores")
    _declare(importer, node, replace(mask, hides=not mask.hides))


def _cast(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    node.require(node.take_int("to", 0) in _CASTS, "casts a mask to another type than it may have")
    node.take_int("saturate", 1)
    _declare(importer, node, importer.masks[node.inputs[0]])


def _join(importer: Importer, node: Node) -> None:
    """And of what is kept, Or of what is hidden: with a constant mask of rows and columns."""
    mask, other = _take(importer, node)
    node.require(
        mask.hides == (node.op == "Or") and not mask.added,
        f"joins a mask of ids by {node.op}, where it is of what is "
        f"{'hidden' if mask.hides else 'kept'}. {MASK_HINT}",
    )
    node.require(other not in importer.values, f"input {other!r} must be a constant. {MASK_HINT}")
    found = importer.constant_of(node, other)
    node.require(found.dtype == np.bool_, f"input {other!r} must be of booleans")
    square = found.reshape(_without_ones(found.shape))
    places = mask.shape[-1]
    rows = (1, *square.shape)[-2]
    node.require(
        square.ndim <= 2
        and len(mask.shape) >= square.ndim
        and (square.ndim == 0 or square.shape[-1] in (1, places))
        and (rows == 1 or mask.shape[-2] in (1, rows)),
        f"a mask of shape {list(found.shape)} does not fit one of ids, [batch, "
        f"{', '.join(map(str, mask.shape))}]",
    )
    allowed = ~square if mask.hides else square
    allowed = np.broadcast_to(allowed, (rows, places))
    if mask.allowed is not None:
        allowed = allowed & mask.allowed
    shape = mask.shape
    if rows > 1:
        shape = (*shape[:-2], rows, places)
    _declare(importer, node, replace(mask, allowed=allowed, shape=shape))


def _without_ones(dims: tuple[int, ...]) -> tuple[int, ...]:
    while dims and dims[0] == 1:
        dims = dims[1:]
    return dims


def _subtract(importer: Importer, node: Node) -> None:
    """1 - mask."""
    mask, other = _take(importer, node)
    node.require(
        other == node.inputs[0] and not mask.added and importer.scalar(node, other) == 1,
        f"is only supported of a mask of ids where it is taken from 1. {MASK_HINT}",
    )
    _declare(importer, node, replace(mask, hides=not mask.hides))


def _multiply(importer: Importer, node: Node) -> None:
    """What is hidden, times a number that stands for minus infinity."""
    mask, other = _take(importer, node)
    node.require(
        mask.hides
        and not mask.added
        and other not in importer.values
        and importer.scalar(node, other) < HIDDEN,
        f"must multiply what is hidden by a number below {HIDDEN:g}. {MASK_HINT}",
    )
    _declare(importer, node, replace(mask, added=True))


def _add(importer: Importer, node: Node) -> None:
    mask, scores = _take(importer, node)
    node.require(mask.added, "adds a mask that is 0 or 1")
    hide(importer, node, scores, mask)


def _choose(importer: Importer, node: Node) -> None:
    """Scores, or minus infinity; or 0, or minus infinity, to be added to scores."""
    node.require_arity(3, 3)
    choice, *ends = node.inputs
    mask = importer.masks.get(choice)
    if mask is None or mask.added or any(end in importer.masks for end in ends):
        node.refuse(f"does not choose by a mask of ids. {MASK_HINT}")
    kept, hidden = ends[::-1] if mask.hides else ends
    node.require(
        hidden not in importer.values and importer.number(node, hidden) < HIDDEN,
        f"must put minus infinity where a mask of ids hides. {MASK_HINT}",
    )
    if kept in importer.values:
        hide(importer, node, kept, mask)
        return
    node.require(importer.number(node, kept) == 0, "must be 0 where a mask of ids keeps")
    _declare(importer, node, replace(mask, hides=True, added=True))


def _unsqueeze(importer: Importer, node: Node) -> None:
    node.require_arity(1, 2)
    mask = importer.masks[node.inputs[0]]
    axes = pieces.take_axes(importer, node)
    rank = 1 + len(mask.shape) + len(axes)
    found = {pieces.read_axis(node, axis, rank) for axis in axes}
    node.require(
        len(found) == len(axes) > 0 and rank - 1 not in found,
        f"axes are {list(axes)}: the places must stay the last",
    )
    extents = iter(mask.shape)
    shape = tuple(1 if axis in found else next(extents) for axis in range(1, rank))
    _declare(importer, node, replace(mask, shape=shape))


def _reshape(importer: Importer, node: Node) -> None:
    """Other axes of extent 1."""
    node.require_arity(2, 2)
    node.take_int("allowzero", 0)
    mask = importer.masks[node.inputs[0]]
    batch, *shape = importer.ints(node, node.inputs[1])
    is_batch = batch is fold.BATCH or batch in (-1, importer.batch)
    extents = tuple(extent for extent in shape if extent is not None)
    only = [extent for extent in mask.shape if extent != 1]
    node.require(
        is_batch
        and len(extents) == len(shape)
        and extents[-1:] in (mask.shape[-1:], (-1,))
        and [extent for extent in extents[:-1] if extent != 1] == only[:-1],
        f"cannot give a mask of ids the shape {list(shape)}",
    )
    _declare(importer, node, replace(mask, shape=(*extents[:-1], mask.shape[-1])))


def _expand(importer: Importer, node: Node) -> None:
    node.require_arity(2, 2)
    mask = importer.masks[node.inputs[0]]
    asked = importer.ints(node, node.inputs[1])
    batch, *shape = asked
    fits = len(shape) == len(mask.shape) and all(
        wanted is not None and (wanted in (1, -1, extent) or extent == 1)
        for extent, wanted in zip(mask.shape, shape, strict=True)
    )
    is_batch = batch in (fold.BATCH, 1, -1) or batch == importer.batch
    node.require(fits and is_batch, f"cannot expand a mask of ids to {list(asked)}")
    whole = (max(extent, wanted or 0) for extent, wanted in zip(mask.shape, shape, strict=True))
    _declare(importer, node, replace(mask, shape=tuple(whole)))


def _alias(importer: Importer, node: Node) -> None:
    node.require_arity(1, 1)
    _declare(importer, node, importer.masks[node.inputs[0]])


def hide(
    importer: Importer, node: Node, scores: str, mask: IdsMask, made: str | None = None
) -> None:
    """Scores of which the places beside those that the mask keeps are minus infinity."""
    shape = importer.shape_of(node, scores_of(importer, node, scores).value)
    node.require(
        len(mask.shape) == len(shape)
        and all(m in (1, s) for m, s in zip(mask.shape, shape, strict=True))
        and shape[-2:] == (mask.shape[-1],) * 2,
        f"a mask of ids, [batch, {', '.join(map(str, mask.shape))}], must have the axes of the "
        f"scores, [batch, {', '.join(map(str, shape))}], in which each place attends to each",
    )
    allowed = np.ones((1, 1), np.bool_) if mask.allowed is None else mask.allowed
    mask_value(importer, node, scores, allowed, made, mask.padding)


def _find_nan(importer: Importer, node: Node) -> None:
    """IsNaN of a softmax: rows that a mask hides in whole, which are zeros here."""
    node.require_arity(1, 1)
    value = importer.value(node, node.inputs[0])
    node.require(
        isinstance(importer.layers.get(value), Softmax),
        "is only supported of a softmax, whose rows without any place it finds",
    )
    importer.declare(node.outputs[0], node.where)
    importer.nans[node.outputs[0]] = value


def replace_nan(importer: Importer, node: Node) -> None:
    """0 where a softmax is no number: the softmax itself, which always is one here."""
    node.require_arity(3, 3)
    choice, zero, value = node.inputs
    node.require(
        importer.values.get(value) == importer.nans[choice]
        and zero not in importer.values
        and importer.number(node, zero) == 0,
        "must be the softmax, or 0 where it is no number",
    )
    importer.alias(node, value)


def hides_places(importer: Importer, node: Node, name: str) -> bool:
    """Whether a constant is added to hide places: it is 0 here and minus infinity there."""
    stored = importer.weights.get(name)
    if name not in importer.computed and (stored is None or len(stored.dims) < 2):
        return False
    if importer.is_parameter(name):
        return False
    found = importer.constant_of(node, name)
    hidden = found < HIDDEN if found.dtype == np.float64 else np.zeros(1, np.bool_)
    if not hidden.any():
        if name not in importer.computed:
            return False
        hides_none = found.dtype == np.float64 and not found.any()  # of one place
        node.require(hides_none, f"{name!r} is computed, and no mask")
    node.require(bool((found[~hidden] == 0).all()), "a mask that is added is 0 elsewhere")
    return True


def scores_of(importer: Importer, node: Node, name: str) -> Scores:
    """A value, masked or not."""
    masked = importer.masked.get(importer.values.get(name, ""))
    return Scores(importer.value(node, name)) if masked is None else masked


def mask_value(
    importer: Importer,
    node: Node,
    name: str,
    kept: npt.NDArray[np.bool_],
    made: str | None = None,
    padding: int | None = None,
) -> None:
    """A value whose places beside ``kept``, and those of padding, are minus infinity, under the
    name ``made``."""
    found = scores_of(importer, node, name)
    shape = importer.shape_of(node, found.value)
    node.require(len(shape) >= 2, f"a mask needs rows and columns, shape is {shape}")
    square = kept.reshape(strip(kept.shape))
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
        window = fold.find_window(square)
        if window is None:
            node.refuse(
                "a mask must let each place attend to itself and to so many before it: "
                "no other is supported"
            )
        window = window if found.window is None else min(window, found.window)
    made = node.outputs[0] if made is None else made
    importer.declare(made, node.where)
    padding = found.padding if padding is None else padding
    if window is None and padding is None:
        importer.values[made] = found.value
        return
    importer.values[made], importer.shapes[made] = made, shape
    importer.masked[made] = Scores(found.value, window, padding)


OF_MASKS: Final[Mapping[str, Callable[[Importer, Node], None]]] = {
    "Add": _add,
    "And": _join,
    "Cast": _cast,
    "Expand": _expand,
    "Identity": _alias,
    "Mul": _multiply,
    "Not": _negate,
    "Or": _join,
    "Reshape": _reshape,
    "Sub": _subtract,
    "Unsqueeze": _unsqueeze,
    "Where": _choose,
}
"""What nodes do with masks of ids."""

HANDLERS: Handlers = {"Equal": _compare, "IsNaN": _find_nan}
