"""Products of values and constant tensors, such as the cosines and sines of rotary positions.

Whether a tensor that a file stores is a constant, or trained, the file does not say.  So what a
file *computes* of no stored tensor, or by Cos and Sin, is a constant; a tensor that is *stored* is
one if it and another of its shape are cosines and sines of the same angles.  Any other is refused:
it would not be trained.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from vtrain.graph.model import Concat, Modulate
from vtrain.graph.onnx_file import count_elements, read_floats
from vtrain.graph.onnx_import.importer import Importer
from vtrain.graph.onnx_import.node import FLOAT_TYPES, Node
from vtrain.spec.number import MASTER_EXPONENT, SATURATION, round_to_mantissa

MOST_ELEMENTS: Final = 1 << 24
"""Of one constant: the state has 4 bytes for each."""
_CLOSE: Final = 0.02
"""How far squares of a cosine and its sine may be from their sum, relatively: bfloat16 stores
either to 2^-9."""
Floats = npt.NDArray[np.float64]


def is_table(importer: Importer, name: str) -> bool:
    """Whether a constant has more than one element."""
    if name in importer.computed:
        return importer.computed[name].size != 1
    return count_elements(importer.weights[name].dims, f"initialiser {name}") != 1


def find_roots(importer: Importer, node: Node) -> frozenset[str]:
    """Stored tensors, of floats and more than one element, that a computed constant is made of.

    Cosines and sines count as made of none: nobody trains the frequency of a position.
    """
    if node.op in ("Cos", "Sin"):
        return frozenset()
    return frozenset().union(*(_roots_of(importer, name) for name in node.inputs if name))


def _roots_of(importer: Importer, name: str) -> frozenset[str]:
    if name in importer.computed:
        return importer.roots.get(name, frozenset())
    stored = importer.weights[name].name
    tensor = importer.tensors[stored]
    if tensor.data_type not in FLOAT_TYPES or stored in importer.literals:
        return frozenset()
    return frozenset([stored]) if is_table(importer, name) else frozenset()


def is_rotation(importer: Importer, name: str) -> bool:
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
    dims = importer.tensors[name].dims
    others = [key for key, tensor in importer.tensors.items() if tensor.dims == dims]
    return any(
        other is not None and _are_one(found, other)
        for other in (_read(importer, key) for key in others if key != name)
    )


def _read(importer: Importer, name: str) -> Floats | None:
    tensor = importer.tensors[name]
    if tensor.data_type not in FLOAT_TYPES or not tensor.dims:
        return None
    values = read_floats(tensor, f"initialiser {name}").astype(np.float64)
    return values if values.size and bool(np.isfinite(values).all()) else None


def _are_one(a: Floats, b: Floats) -> bool:
    with np.errstate(over="ignore"):
        squares = a * a + b * b
    first = squares.reshape(-1)[0]
    return bool(first > 0 and np.all(np.abs(squares - first) <= _CLOSE * first))


def read_table(importer: Importer, node: Node, name: str) -> Floats:
    """A constant tensor of floats; refused where it may be trained."""
    if name in importer.values or not (name in importer.weights or name in importer.computed):
        importer.fail_unknown(node, name, "a constant")
    for root in sorted(_roots_of(importer, name)):
        node.require(
            is_rotation(importer, root),
            f"multiplies by {root!r}, which is stored and may be trained: input {name!r} must be a "
            "value, a constant of one element, cosines and sines, or what the file computes",
        )
    found = importer.constant_of(node, name)
    node.require(
        found.dtype == np.float64,
        f"input {name!r} must be a value, a constant of one element, or one of floats",
    )
    return np.asarray(found, np.float64)


def make_constant(importer: Importer, node: Node, name: str, values: Floats) -> str:
    """The name of a constant with these values; equal ones share it."""
    node.require(values.size <= MOST_ELEMENTS, f"a constant of over {MOST_ELEMENTS} elements")
    mantissas = np.zeros(values.shape, np.int64)
    fits = np.isfinite(values) & (np.abs(values) < 2.0**7)
    node.require(bool(fits.all()), "a constant has an element that is not finite, or 128 or more")
    mantissas = round_to_mantissa(values, MASTER_EXPONENT)
    master = np.clip(mantissas, *SATURATION["i32"]).astype(np.int32)
    for made, known in importer.tables.items():
        if known.shape == master.shape and np.array_equal(known, master):
            return made
    if name in importer.tables or name in importer.values:
        name = f"{node.outputs[0]}/constant"
    importer.tables[name] = master
    return name


def multiply(importer: Importer, node: Node, value: str, constant: str) -> None:
    """A value times a constant tensor."""
    source = importer.value(node, value)
    found = read_table(importer, node, constant)
    modulate(importer, node, node.outputs[0], source, found, constant)


def modulate(
    importer: Importer, node: Node, name: str, source: str, table: Floats, wanted: str
) -> None:
    """The layer ``name``: ``source`` times the table, which is spread over its last axes."""
    shape = importer.shape_of(node, source)
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
    constant = make_constant(importer, node, wanted, values)
    importer.emit(node, Modulate(name, joined, constant), shape)


def _take_signs(importer: Importer, node: Node, source: str, values: Floats) -> tuple[str, Floats]:
    """What is joined of parts of which some are negated: the parts themselves, and the constant
    with those signs.  The negated ones are pruned unless something else reads them."""
    layer = importer.layers.get(source)
    rank = 1 + len(importer.shapes[source])
    if not isinstance(layer, Concat) or layer.axis < rank - values.ndim:
        return source, values
    bare, signs = [], []
    for part in layer.inputs:
        kept, sign = _take_sign(importer, part)
        bare.append(kept)
        signs += [sign] * importer.shapes[part][layer.axis - 1]
    if min(signs) > 0:
        return source, values
    name = f"{node.outputs[0]}/joined"
    importer.emit(node, Concat(name, tuple(bare), layer.axis), importer.shapes[source])
    along = [1] * values.ndim
    along[layer.axis - rank] = len(signs)
    return name, values * np.asarray(signs, np.float64).reshape(along)


def _take_sign(importer: Importer, value: str) -> tuple[str, int]:
    """What a value is the negative of, and -1; else itself, and 1.  It may have been reshaped."""
    layer = importer.layers.get(value)
    if isinstance(layer, Modulate):
        table = importer.tables[layer.constant]
        if bool((table == -(1 << MASTER_EXPONENT)).all()):
            return layer.input, -1
    return value, 1


def negate_value(importer: Importer, node: Node, name: str, value: str) -> None:
    """-x, as the value ``name``."""
    layer, shape = importer.layers.get(value), importer.shape_of(node, value)
    if isinstance(layer, Modulate):
        table = -np.ldexp(importer.tables[layer.constant].astype(np.float64), -MASTER_EXPONENT)
        modulate(importer, node, name, layer.input, table, f"{name}/constant")
        return
    modulate(importer, node, name, value, np.full(shape[-1:], -1.0), f"minus/{shape[-1]}")
