"""Rotary positions in ONNX files: products with constant tensors, and what exporters write around.

A position is turned by x * cos + rotate(x) * sin: rotate swaps the halves of a row, or the two of
each pair, and negates one of them.  Cosines and sines are constants.  Whether a tensor that a file
stores is one, or trained, the file does not say.  So what a file *computes* of no stored tensor, or
by Cos and Sin, is a constant; a tensor that is *stored* is one if it and another of its shape are
cosines and sines of the same angles.  Any other is refused: it would not be trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from vtrain.graph.model import Add, Concat, Modulate, Reshape, Slice, Transpose
from vtrain.graph.onnx_file import count_elements, read_floats
from vtrain.spec.number import MASTER_EXPONENT, SATURATION, round_to_mantissa
from vtrain.wire.graph import MAX_RANK

if TYPE_CHECKING:
    from vtrain.graph.onnx_import import _Importer, _Node

MOST_ELEMENTS: Final = 1 << 24
"""Of one constant: the state has 4 bytes for each."""
_CLOSE: Final = 0.02
"""How far squares of a cosine and its sine may be from their sum, relatively: bfloat16 stores
either to 2^-9."""
_FLOATS = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)
_MATRIX: Final = 2
_HEADS_AXES: Final = 3
_FEWEST_CACHES: Final = 3

Floats = npt.NDArray[np.float64]


# --- which tensors are constants


def is_table(importer: _Importer, name: str) -> bool:
    """Whether a constant has more than one element."""
    if name in importer._computed:
        return importer._computed[name].size != 1
    return count_elements(importer._weights[name].dims, f"initialiser {name}") != 1


def find_roots(importer: _Importer, node: _Node) -> frozenset[str]:
    """Stored tensors, of floats and more than one element, that a computed constant is made of.

    Cosines and sines count as made of none: nobody trains the frequency of a position.
    """
    if node.op in ("Cos", "Sin"):
        return frozenset()
    return frozenset().union(*(_roots_of(importer, name) for name in node.inputs if name))


def _roots_of(importer: _Importer, name: str) -> frozenset[str]:
    if name in importer._computed:
        return importer._roots.get(name, frozenset())
    stored = importer._weights[name].name
    tensor = importer._tensors[stored]
    if tensor.data_type not in _FLOATS or stored in importer._literals:
        return frozenset()
    return frozenset([stored]) if is_table(importer, name) else frozenset()


def is_rotation(importer: _Importer, name: str) -> bool:
    """Whether a stored tensor has cosines or sines of angles, of which another of its shape has the
    others: all squares of the two add up to one number.  A tensor may hold both, along its last
    axis."""
    found = _read(importer, name)
    if found is None or not np.any((np.abs(found) > _CLOSE) & (np.abs(found) < 1 - _CLOSE)):
        return False
    width = found.shape[-1]
    if width % 2 == 0:
        pairs = found.reshape(-1, width // 2, 2)
        if _are_one(pairs[..., 0], pairs[..., 1]):
            return True
        if _are_one(found[..., : width // 2], found[..., width // 2 :]):
            return True
    dims = importer._tensors[name].dims
    others = [key for key, tensor in importer._tensors.items() if tensor.dims == dims]
    return any(
        other is not None and _are_one(found, other)
        for other in (_read(importer, key) for key in others if key != name)
    )


def _read(importer: _Importer, name: str) -> Floats | None:
    tensor = importer._tensors[name]
    if tensor.data_type not in _FLOATS or not tensor.dims:
        return None
    values = read_floats(tensor, f"initialiser {name}").astype(np.float64)
    return values if values.size and bool(np.isfinite(values).all()) else None


def _are_one(a: Floats, b: Floats) -> bool:
    with np.errstate(over="ignore"):
        squares = a * a + b * b
    first = squares.reshape(-1)[0]
    return bool(first > 0 and np.all(np.abs(squares - first) <= _CLOSE * first))


def _table_of(importer: _Importer, node: _Node, name: str) -> Floats:
    """A constant tensor of floats; refused where it may be trained."""
    if name in importer._values or not (name in importer._weights or name in importer._computed):
        importer._fail_unknown(node, name, "a constant")
    for root in sorted(_roots_of(importer, name)):
        node.require(
            is_rotation(importer, root),
            f"multiplies by {root!r}, which is stored and may be trained: input {name!r} must be a "
            "value, a constant of one element, cosines and sines, or what the file computes",
        )
    found = importer._constant_of(node, name)
    node.require(
        found.dtype == np.float64,
        f"input {name!r} must be a value, a constant of one element, or one of floats",
    )
    return np.asarray(found, np.float64)


def _make_constant(importer: _Importer, node: _Node, name: str, values: Floats) -> str:
    """The name of a constant with these values; equal ones share it."""
    node.require(values.size <= MOST_ELEMENTS, f"a constant of over {MOST_ELEMENTS} elements")
    mantissas = np.zeros(values.shape, np.int64)
    fits = np.isfinite(values) & (np.abs(values) < 2.0**7)
    node.require(bool(fits.all()), "a constant has an element that is not finite, or 128 or more")
    mantissas = round_to_mantissa(values, MASTER_EXPONENT)
    master = np.clip(mantissas, *SATURATION["i32"]).astype(np.int32)
    for made, known in importer._tables.items():
        if known.shape == master.shape and np.array_equal(known, master):
            return made
    if name in importer._tables or name in importer._values:
        name = f"{node.outputs[0]}/constant"
    importer._tables[name] = master
    return name


# --- products with constants


def multiply(importer: _Importer, node: _Node, value: str, constant: str) -> None:
    """A value times a constant tensor."""
    source = importer._value(node, value)
    found = _table_of(importer, node, constant)
    _modulate(importer, node, node.outputs[0], source, found, constant)


def _modulate(
    importer: _Importer, node: _Node, name: str, source: str, table: Floats, wanted: str
) -> None:
    """The layer ``name``: ``source`` times the table, which is spread over its last axes."""
    shape = importer._shape_of(node, source)
    lead = table.shape[: max(table.ndim - len(shape), 0)]
    node.require(
        table.ndim <= 1 + len(shape) and all(extent == 1 for extent in lead),
        f"a constant of shape {list(table.shape)} is not the same for all of the batch",
    )
    dims = table.shape[len(lead) :]
    while len(dims) > 1 and dims[0] == 1:
        dims = dims[1:]
    suffix = shape[len(shape) - len(dims) :]
    fits = all(have in (1, want) for have, want in zip(dims, suffix, strict=True))
    node.require(
        fits, f"a constant of shape {list(table.shape)} does not fit [batch, {list(shape)}]"
    )
    node.require(
        count_elements(suffix, node.where) <= MOST_ELEMENTS,
        f"a constant of over {MOST_ELEMENTS} elements",
    )
    values = np.broadcast_to(table.reshape(dims), suffix)
    joined, values = _take_signs(importer, node, source, values)
    constant = _make_constant(importer, node, wanted, values)
    importer._emit(node, Modulate(name, joined, constant), shape)


def _take_signs(
    importer: _Importer, node: _Node, source: str, values: Floats
) -> tuple[str, Floats]:
    """What is joined of parts of which some are negated: the parts themselves, and the constant
    with those signs.  The negated ones are pruned unless something else reads them."""
    layer = importer._layers.get(source)
    rank = 1 + len(importer._shapes[source])
    if not isinstance(layer, Concat) or layer.axis < rank - values.ndim:
        return source, values
    bare, signs = [], []
    for part in layer.inputs:
        kept, sign = _take_sign(importer, part)
        bare.append(kept)
        signs += [sign] * importer._shapes[part][layer.axis - 1]
    if min(signs) > 0:
        return source, values
    name = f"{node.outputs[0]}/joined"
    importer._emit(node, Concat(name, tuple(bare), layer.axis), importer._shapes[source])
    along = [1] * values.ndim
    along[layer.axis - rank] = len(signs)
    return name, values * np.asarray(signs, np.float64).reshape(along)


def _take_sign(importer: _Importer, value: str) -> tuple[str, int]:
    """What a value is the negative of, and -1; else itself, and 1.  It may have been reshaped."""
    layer = importer._layers.get(value)
    if isinstance(layer, Modulate):
        table = importer._tables[layer.constant]
        if bool((table == -(1 << MASTER_EXPONENT)).all()):
            return layer.input, -1
    return value, 1


def negate(importer: _Importer, node: _Node) -> None:
    """-x: x times -1."""
    node.require_arity(1, 1)
    negate_value(importer, node, node.outputs[0], importer._value(node, node.inputs[0]))


def negate_value(importer: _Importer, node: _Node, name: str, value: str) -> None:
    """-x, as the value ``name``."""
    layer, shape = importer._layers.get(value), importer._shape_of(node, value)
    if isinstance(layer, Modulate):
        table = -np.ldexp(importer._tables[layer.constant].astype(np.float64), -MASTER_EXPONENT)
        _modulate(importer, node, name, layer.input, table, f"{name}/constant")
        return
    _modulate(importer, node, name, value, np.full(shape[-1:], -1.0), f"minus/{shape[-1]}")


def subtract(importer: _Importer, node: _Node) -> None:
    """a - b of two values of one shape: a + (-b); one of them may be a number."""
    node.require_arity(2, 2)
    negative = f"{node.outputs[0]}/negative"
    first, second = node.inputs
    if second in importer._weights and importer._is_number(second):
        offset = -importer._scalar(node, second)
        importer._shift(node, importer._value(node, first), offset)
        return
    if first in importer._weights and importer._is_number(first):
        negate_value(importer, node, negative, importer._value(node, second))
        importer._shift(node, negative, importer._scalar(node, first))
        return
    left, right, shape = importer._pair(node)
    negate_value(importer, node, negative, right)
    importer._emit(node, Add(node.outputs[0], left, negative), shape)


# --- pairs of neighbours


def slice_with_steps(
    importer: _Importer,
    node: _Node,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> None:
    """Each so many of a row: the row becomes runs, of which one place is taken."""
    node.require(
        len(starts) == 1 and steps[0] >= 1,
        f"steps must be 1, or one step along one axis: are {list(steps)}",
    )
    source = importer._value(node, node.inputs[0])
    shape = importer._shape_of(node, source)
    axis, step = importer._axis(node, axes[0], 1 + len(shape)), steps[0]
    extent = shape[axis - 1]
    whole = extent % step == 0 and 0 <= starts[0] < step and ends[0] >= extent
    node.require(
        whole,
        f"steps of {step} must take one of each {step} of {extent}, from one of the first to the "
        f"end: not {starts[0]} to {ends[0]}",
    )
    _pick_of_runs(importer, node, node.outputs[0], source, axis, step, starts[0])


def _pick_of_runs(
    importer: _Importer, node: _Node, name: str, source: str, axis: int, step: int, place: int
) -> None:
    shape = importer._shapes[source]
    runs = f"{source}/runs_{axis}_{step}"
    split = (*shape[: axis - 1], shape[axis - 1] // step, step, *shape[axis:])
    node.require(len(split) < MAX_RANK, f"has {len(shape)} axes")
    if runs not in importer._layers:
        importer._emit(node, Reshape(runs, source, split), split)
    _pick_place(importer, node, name, runs, axis + 1, place)


def pick(importer: _Importer, node: _Node) -> None:
    """A place along an axis, by a number that is constant: x[..., 0]."""
    node.require_arity(2, 2)
    source = importer._value(node, node.inputs[0])
    shape = importer._shape_of(node, source)
    axis = importer._axis(node, node.take_int("axis", 0), 1 + len(shape))
    numbers = importer._known_ints(node, node.inputs[1])
    scalar = importer._constant_of(node, node.inputs[1]).ndim == 0
    node.require(
        len(numbers) == 1, f"takes one place of a value, by a constant: has {len(numbers)}"
    )
    extent = shape[axis - 1]
    node.require(-extent <= numbers[0] < extent, f"there is no place {numbers[0]} among {extent}")
    place = numbers[0] % extent
    if scalar:
        _pick_place(importer, node, node.outputs[0], source, axis, place)
    else:
        importer._cut(node, node.inputs[0], [(axis, place, place + 1)], node.outputs[0])


def _pick_place(
    importer: _Importer, node: _Node, name: str, source: str, axis: int, place: int
) -> None:
    shape = importer._shapes[source]
    cut = (*shape[: axis - 1], 1, *shape[axis:])
    left = (*shape[: axis - 1], *shape[axis:])
    node.require(bool(left), "leaves the batch alone")
    importer._emit(node, Slice(f"{name}/part", source, axis, place, place + 1), cut)
    importer._emit(node, Reshape(name, f"{name}/part", left), left)


# --- the operator of opset 23


def rotary_embedding(importer: _Importer, node: _Node) -> None:
    """The operator of opset 23: x [batch, heads, places, features], or [batch, places, features] of
    several heads; the tables [places, features / 2] are constants."""
    node.require(
        _FEWEST_CACHES <= len(node.inputs) <= _FEWEST_CACHES + 1 and all(node.inputs),
        "needs x and both tables",
    )
    node.require(len(node.outputs) == 1, "must have one output")
    paired = node.take_int("interleaved", 0) == 1
    heads, turned = node.take_int("num_heads", 0), node.take_int("rotary_embedding_dim", 0)
    source, name = importer._value(node, node.inputs[0]), node.outputs[0]
    shape = importer._shape_of(node, source)
    flat = len(shape) == _MATRIX
    if flat:
        node.require(heads > 0, "needs num_heads")
        source = importer._split_heads(node, f"{name}/x", source, heads)
    node.require(len(importer._shapes[source]) == _HEADS_AXES, "needs heads, places and features")
    _, places, features = importer._shapes[source]
    turned = turned or features
    node.require(turned <= features and turned % 2 == 0, f"turns {turned} of {features} features")
    tables = [_read_cache(importer, node, item, places, turned // 2) for item in node.inputs[1:3]]
    made = name if not flat else f"{name}/heads"
    if turned == features:
        _rotate(importer, node, made, source, tables, paired=paired)
    else:
        whole = importer._shapes[source]
        for part, start, stop in (("first", 0, turned), ("rest", turned, features)):
            cut = (*whole[:2], stop - start)
            importer._emit(node, Slice(f"{name}/{part}", source, 3, start, stop), cut)
        _rotate(importer, node, f"{name}/turned", f"{name}/first", tables, paired=paired)
        importer._emit(node, Concat(made, (f"{name}/turned", f"{name}/rest"), 3), whole)
    if flat:
        moved = (places, heads, features)
        importer._emit(node, Transpose(f"{name}/places", made, (0, 2, 1, 3)), moved)
        importer._emit(node, Reshape(name, f"{name}/places", shape), shape)


def _read_cache(importer: _Importer, node: _Node, name: str, places: int, half: int) -> Floats:
    """Cosines or sines [places, half], by the position of each place."""
    found = _table_of(importer, node, name)
    if len(node.inputs) > _FEWEST_CACHES:
        order: Any = importer._constant_of(node, node.inputs[3])
        node.require(
            order.dtype == object and order.ndim == _MATRIX and bool((order == order[:1]).all()),
            "position_ids must be constant, and the same for all of the batch",
        )
        numbers = [-1 if item is None else int(item) for item in order[0].tolist()]
        node.require(
            found.ndim == _MATRIX and 0 <= min(numbers) <= max(numbers) < found.shape[0],
            f"position_ids are beyond the {found.shape[0]} rows of {name!r}",
        )
        found = found[numbers]
    while found.ndim > _MATRIX and found.shape[0] == 1:
        found = found[0]
    node.require(
        found.shape == (places, half),
        f"{name!r} must give [{places}, {half}], gives {list(found.shape)}",
    )
    return found


def _rotate(
    importer: _Importer,
    node: _Node,
    name: str,
    source: str,
    tables: Sequence[Floats],
    *,
    paired: bool,
) -> None:
    """x * cos + rotate(x) * sin, of the halves of a row or of its pairs."""
    heads, places, features = shape = importer._shapes[source]
    half, axis = features // 2, 4 if paired else 3
    value = source
    if paired:
        value = f"{name}/pairs"
        apart = (heads, places, half, 2)
        importer._emit(node, Reshape(value, source, apart), apart)
    middle = importer._shapes[value][-1] // 2
    cut = (*importer._shapes[value][:-1], middle)
    for part, start in (("a", 0), ("b", middle)):
        importer._emit(node, Slice(f"{name}/{part}", value, axis, start, start + middle), cut)
    swapped = f"{name}/swapped"
    importer._emit(node, Concat(swapped, (f"{name}/b", f"{name}/a"), axis), importer._shapes[value])
    if paired:
        importer._emit(node, Reshape(f"{name}/row", swapped, shape), shape)
        swapped = f"{name}/row"
    cosines, sines = tables
    for of, row, (left, right) in (
        ("cosine", source, (cosines, cosines)),
        ("sine", swapped, (-sines, sines)),
    ):
        # One beside the other in each pair, or half a row beside half a row.
        table = np.stack((left, right), -1 if paired else 1).reshape(places, features)
        _modulate(importer, node, f"{name}/by_{of}", row, table, f"{name}/{of}")
    importer._emit(node, Add(name, f"{name}/by_cosine", f"{name}/by_sine"), shape)
