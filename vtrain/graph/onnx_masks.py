"""Masks that an ONNX file computes of the ids: ``ids != padding``, and what exporters write around.

Such a mask is compared, negated, joined with a constant one, given axes, and added to scores as 0
and minus infinity, or chosen by.  Which places it keeps is known all the while: those that are no
padding and that the constant mask allows.  A softmax takes both; nothing else may read a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import onnx

from vtrain.graph import onnx_fold
from vtrain.graph.model import Softmax
from vtrain.ops.attention import NO_ID

if TYPE_CHECKING:
    from vtrain.graph.onnx_import import _Importer, _Node

HINT: Final = (
    "A mask of padding compares the model's input, whole numbers, with one number. Attention "
    "within documents is asked for in the task file: leave its mask out of the model, and set "
    "end_of_text in the table model"
)
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


@dataclass(frozen=True)
class IdsMask:
    """Which places are kept: those whose id is not ``padding`` and that ``allowed`` has.

    ``shape`` is without the batch, the places last.  It is 1 where a place is kept, or else, with
    ``hides``, where it is not; with ``added`` it is minus infinity there and 0 elsewhere.
    """

    padding: int
    shape: tuple[int, ...]
    hides: bool
    allowed: Bools | None = None
    added: bool = False


def compare(importer: _Importer, node: _Node) -> None:
    """Equal, of the model's input and one number."""
    node.require_arity(2, 2)
    for ids, number in (node.inputs, node.inputs[::-1]):
        is_input = importer._takes_ids and importer._values.get(ids) == importer._input
        if is_input and number not in importer._values:
            found = importer._constant_of(node, number)
            one = found.dtype == object and found.size == 1 and found.ndim <= 1
            node.require(one, f"compares ids with {number!r}, which is no one number. {HINT}")
            padding = int(found.reshape(-1)[0])
            node.require(0 <= padding < NO_ID, f"compares ids with {padding}, which is none")
            _declare(importer, node, IdsMask(padding, importer._shapes[importer._input], True))
            return
    node.refuse(f"is only supported of ids and a number. {HINT}")


def _declare(importer: _Importer, node: _Node, mask: IdsMask) -> None:
    importer._declare(node.outputs[0], node.where)
    importer._masks[node.outputs[0]] = mask


def _take(importer: _Importer, node: _Node) -> tuple[IdsMask, str]:
    """The mask that a node of two inputs reads, and the name of the other input."""
    node.require_arity(2, 2)
    masks = [name for name in node.inputs if name in importer._masks]
    node.require(len(masks) == 1, f"joins two masks of ids. {HINT}")
    (other,) = (name for name in node.inputs if name != masks[0])
    return importer._masks[masks[0]], other


def _negate(importer: _Importer, node: _Node) -> None:
    node.require_arity(1, 1)
    mask = importer._masks[node.inputs[0]]
    node.require(not mask.added, "negates what is added to scores")
    _declare(importer, node, replace(mask, hides=not mask.hides))


def _cast(importer: _Importer, node: _Node) -> None:
    node.require_arity(1, 1)
    node.require(node.take_int("to", 0) in _CASTS, "casts a mask to another type than it may have")
    node.take_int("saturate", 1)
    _declare(importer, node, importer._masks[node.inputs[0]])


def _join(importer: _Importer, node: _Node) -> None:
    """And of what is kept, Or of what is hidden: with a constant mask of rows and columns."""
    mask, other = _take(importer, node)
    node.require(
        mask.hides == (node.op == "Or") and not mask.added,
        f"joins a mask of ids by {node.op}, where it is of what is "
        f"{'hidden' if mask.hides else 'kept'}. {HINT}",
    )
    node.require(other not in importer._values, f"input {other!r} must be a constant. {HINT}")
    found = importer._constant_of(node, other)
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


def _subtract(importer: _Importer, node: _Node) -> None:
    """1 - mask."""
    mask, other = _take(importer, node)
    node.require(
        other == node.inputs[0] and not mask.added and importer._scalar(node, other) == 1,
        f"is only supported of a mask of ids where it is taken from 1. {HINT}",
    )
    _declare(importer, node, replace(mask, hides=not mask.hides))


def _multiply(importer: _Importer, node: _Node) -> None:
    """What is hidden, times a number that stands for minus infinity."""
    mask, other = _take(importer, node)
    node.require(
        mask.hides
        and not mask.added
        and other not in importer._values
        and importer._scalar(node, other) < HIDDEN,
        f"must multiply what is hidden by a number below {HIDDEN:g}. {HINT}",
    )
    _declare(importer, node, replace(mask, added=True))


def _add(importer: _Importer, node: _Node) -> None:
    mask, scores = _take(importer, node)
    node.require(mask.added, "adds a mask that is 0 or 1")
    hide(importer, node, scores, mask)


def _choose(importer: _Importer, node: _Node) -> None:
    """Scores, or minus infinity; or 0, or minus infinity, to be added to scores."""
    node.require_arity(3, 3)
    choice, *ends = node.inputs
    mask = importer._masks.get(choice)
    if mask is None or mask.added or any(end in importer._masks for end in ends):
        node.refuse(f"does not choose by a mask of ids. {HINT}")
    kept, hidden = ends[::-1] if mask.hides else ends
    node.require(
        hidden not in importer._values and importer._number(node, hidden) < HIDDEN,
        f"must put minus infinity where a mask of ids hides. {HINT}",
    )
    if kept in importer._values:
        hide(importer, node, kept, mask)
        return
    node.require(importer._number(node, kept) == 0, "must be 0 where a mask of ids keeps")
    _declare(importer, node, replace(mask, hides=True, added=True))


def _unsqueeze(importer: _Importer, node: _Node) -> None:
    node.require_arity(1, 2)
    mask = importer._masks[node.inputs[0]]
    axes = importer._take_axes(node)
    rank = 1 + len(mask.shape) + len(axes)
    found = {importer._axis(node, axis, rank) for axis in axes}
    node.require(
        len(found) == len(axes) > 0 and rank - 1 not in found,
        f"axes are {list(axes)}: the places must stay the last",
    )
    extents = iter(mask.shape)
    shape = tuple(1 if axis in found else next(extents) for axis in range(1, rank))
    _declare(importer, node, replace(mask, shape=shape))


def _reshape(importer: _Importer, node: _Node) -> None:
    """Other axes of extent 1."""
    node.require_arity(2, 2)
    node.take_int("allowzero", 0)
    mask = importer._masks[node.inputs[0]]
    batch, *shape = importer._ints(node, node.inputs[1])
    is_batch = batch is onnx_fold.BATCH or batch in (-1, importer._batch)
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


def _expand(importer: _Importer, node: _Node) -> None:
    node.require_arity(2, 2)
    mask = importer._masks[node.inputs[0]]
    asked = importer._ints(node, node.inputs[1])
    batch, *shape = asked
    fits = len(shape) == len(mask.shape) and all(
        wanted is not None and (wanted in (1, -1, extent) or extent == 1)
        for extent, wanted in zip(mask.shape, shape, strict=True)
    )
    is_batch = batch in (onnx_fold.BATCH, 1, -1) or batch == importer._batch
    node.require(fits and is_batch, f"cannot expand a mask of ids to {list(asked)}")
    whole = (max(extent, wanted or 0) for extent, wanted in zip(mask.shape, shape, strict=True))
    _declare(importer, node, replace(mask, shape=tuple(whole)))


def _alias(importer: _Importer, node: _Node) -> None:
    node.require_arity(1, 1)
    _declare(importer, node, importer._masks[node.inputs[0]])


def hide(
    importer: _Importer, node: _Node, scores: str, mask: IdsMask, made: str | None = None
) -> None:
    """Scores of which the places beside those that the mask keeps are minus infinity."""
    shape = importer._shape_of(node, importer._scores(node, scores).value)
    node.require(
        len(mask.shape) == len(shape)
        and all(m in (1, s) for m, s in zip(mask.shape, shape, strict=True))
        and shape[-2:] == (mask.shape[-1],) * 2,
        f"a mask of ids, [batch, {', '.join(map(str, mask.shape))}], must have the axes of the "
        f"scores, [batch, {', '.join(map(str, shape))}], in which each place attends to each",
    )
    allowed = np.ones((1, 1), np.bool_) if mask.allowed is None else mask.allowed
    importer._mask(node, scores, allowed, made, mask.padding)


def find_nan(importer: _Importer, node: _Node) -> None:
    """IsNaN of a softmax: rows that a mask hides in whole, which are zeros here."""
    node.require_arity(1, 1)
    value = importer._value(node, node.inputs[0])
    node.require(
        isinstance(importer._layers.get(value), Softmax),
        "is only supported of a softmax, whose rows without any place it finds",
    )
    importer._declare(node.outputs[0], node.where)
    importer._nans[node.outputs[0]] = value


def replace_nan(importer: _Importer, node: _Node) -> None:
    """0 where a softmax is no number: the softmax itself, which always is one here."""
    node.require_arity(3, 3)
    choice, zero, value = node.inputs
    node.require(
        importer._values.get(value) == importer._nans[choice]
        and zero not in importer._values
        and importer._number(node, zero) == 0,
        "must be the softmax, or 0 where it is no number",
    )
    importer._alias(node, value)


OF_MASKS: Final[Mapping[str, Callable[[_Importer, _Node], None]]] = {
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
