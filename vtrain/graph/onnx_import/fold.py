"""The arithmetic of constants that exporters write into an ONNX file: of shapes, and of masks.

A constant is an array.  Integers are Python's, in arrays of objects, so that the batch, whose
extent a model does not know, can be among them: it is :data:`BATCH`, which can be moved but not
computed with.  Floats are binary64.  Nothing of it is trained: what a layer trains is stored as it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from vtrain.errors import ModelError
from vtrain.graph.onnx_file import count_elements

Constant = npt.NDArray[Any]
BATCH: Final = None
"""Stands for the batch among the integers that a file computes."""

_OPERANDS: Final = 2

Attributes = Mapping[str, Any]
"""Of a node, by name: integers, floats, texts, lists of integers, and tensors as constants."""
Fold = Callable[[Attributes, Sequence[Constant]], Constant]


def as_constant(values: Constant) -> Constant:
    """An array in the form of this module."""
    if values.dtype == np.bool_:
        return values
    if np.issubdtype(values.dtype, np.integer) or values.dtype == object:
        whole = np.empty(values.shape, dtype=object)
        whole[...] = values.tolist() if values.dtype != object else values
        return whole
    return values.astype(np.float64)


def _axes(attrs: Attributes, x: Sequence[Constant]) -> tuple[int, ...]:
    found = x[1].reshape(-1).tolist() if len(x) > 1 else attrs.get("axes", ())
    return tuple(int(axis) for axis in found)


def _ints(x: Constant) -> list[int]:
    return [int(item) for item in x.reshape(-1).tolist()]


def _gather(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    index = np.asarray(x[1].tolist(), dtype=np.int64)
    return np.asarray(x[0].take(index, axis=attrs.get("axis", 0)), dtype=x[0].dtype)


def _slice(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    starts, ends = (
        _ints(x[number]) if len(x) > number else attrs[name]
        for number, name in ((1, "starts"), (2, "ends"))
    )
    axes = _ints(x[3]) if len(x) > 3 else list(attrs.get("axes", range(len(starts))))
    steps = _ints(x[4]) if len(x) > 4 else [1] * len(starts)
    index: list[slice] = [slice(None)] * x[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, None if step < 0 and end < -(2**31) else end, step)
    return x[0][tuple(index)]


def _unsqueeze(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    return np.expand_dims(x[0], _axes(attrs, x) or 0)


def _squeeze(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    return np.squeeze(x[0], _axes(attrs, x) or None)


def _reshape(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    shape = _ints(x[1])
    if not attrs.get("allowzero", 0):
        shape = [x[0].shape[i] if extent == 0 else extent for i, extent in enumerate(shape)]
    return x[0].reshape(shape)


def _expand(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    shape = np.broadcast_shapes(x[0].shape, tuple(_ints(x[1])))
    count_elements(shape, "constant")
    return np.broadcast_to(x[0], shape)


def _constant_of_shape(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    shape = tuple(_ints(x[0]))
    count_elements(shape, "constant")
    value = attrs.get("value", np.zeros(1))
    return np.full(shape, value.reshape(-1)[0], dtype=value.dtype)


def _range(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    start, limit, step = (item.reshape(-1)[0] for item in x)
    count = max(int(-((start - limit) // step)), 0)
    count_elements((count,), "constant")
    return as_constant(np.asarray([start + i * step for i in range(count)], dtype=x[0].dtype))


def _trilu(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    diagonal = _ints(x[1])[0] if len(x) > 1 else 0
    rows, columns = x[0].shape[-2:]
    place = np.arange(columns) - np.arange(rows)[:, None]
    kept = place >= diagonal if attrs.get("upper", 1) else place <= diagonal
    return np.where(kept, x[0], np.zeros((), x[0].dtype))


def _cast(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    to = attrs["to"]
    if to == onnx.TensorProto.BOOL:
        return np.asarray(x[0] != 0, dtype=np.bool_)
    if to in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
        if x[0].dtype == object:
            return x[0]
        return as_constant(np.trunc(x[0].astype(np.float64)).astype(np.int64))
    if to in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        return np.asarray(x[0], dtype=np.float64)
    raise ValueError("casts to another type than bool, int32, int64, float and double")


def _divide(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    """Of integers towards zero, as ONNX does."""
    a, b = np.broadcast_arrays(*x)
    if a.dtype != object:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(a / b)
    pairs = zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)
    found = [abs(p) // abs(q) * (1 if p * q >= 0 else -1) for p, q in pairs]
    return np.array(found, dtype=object).reshape(a.shape)


def _modulo(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    """Of integers, with the sign of the divisor, as ONNX has it."""
    if attrs.get("fmod", 0) or any(item.dtype != object for item in x):
        raise ValueError("is only supported of integers")
    return np.asarray(x[0] % x[1])


def _matmul(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    a, b = x
    if min(a.ndim, b.ndim) >= 1:
        rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
        count_elements(
            (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns), "constant"
        )
    return np.asarray(a @ b)


def _einsum(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    """An outer product, as exporters write one."""
    if "".join(attrs["equation"].split()) not in ("i,j->ij", "a,b->ab") or len(x) != _OPERANDS:
        raise ValueError(f"is only supported as i,j->ij, not {attrs['equation']!r}")
    a, b = x
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError("an outer product is of two vectors")
    count_elements((a.size, b.size), "constant")
    return np.asarray(a[:, None] * b)


def _power(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    """Of floats: powers of integers have no bound."""
    a, b = x
    if a.dtype != np.float64:
        raise ValueError("is only supported of floats")
    with np.errstate(all="ignore"):
        return np.asarray(a ** b.astype(np.float64))


def _where(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    return np.where(x[0], x[1], x[2])


def _concat(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    return np.concatenate(list(x), axis=attrs["axis"])


def _transpose(attrs: Attributes, x: Sequence[Constant]) -> Constant:
    return x[0].transpose(attrs.get("perm"))


def _compare(
    compare: Callable[[Constant, Constant], Any],
) -> Fold:
    return lambda attrs, x: np.asarray(compare(x[0], x[1]), dtype=np.bool_)


def _binary(compute: Callable[[Constant, Constant], Any]) -> Fold:
    return lambda attrs, x: np.asarray(compute(x[0], x[1]))


def _unary(compute: Callable[[Constant], Any]) -> Fold:
    return lambda attrs, x: np.asarray(compute(x[0]))


_FOLDS: Final[Mapping[str, Fold]] = {
    "Add": _binary(lambda a, b: a + b),
    "And": _binary(np.logical_and),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Cos": _unary(np.cos),
    "Div": _divide,
    "Einsum": _einsum,
    "Equal": _compare(lambda a, b: a == b),
    "Expand": _expand,
    "Gather": _gather,
    "Greater": _compare(lambda a, b: a > b),
    "GreaterOrEqual": _compare(lambda a, b: a >= b),
    "Identity": _unary(lambda a: a),
    "Less": _compare(lambda a, b: a < b),
    "LessOrEqual": _compare(lambda a, b: a <= b),
    "MatMul": _matmul,
    "Mod": _modulo,
    "Mul": _binary(lambda a, b: a * b),
    "Neg": _unary(lambda a: -a),
    "Not": _unary(np.logical_not),
    "Or": _binary(np.logical_or),
    "Pow": _power,
    "Range": _range,
    "Reciprocal": _unary(lambda a: 1 / a),
    "Reshape": _reshape,
    "Sin": _unary(np.sin),
    "Slice": _slice,
    "Sqrt": _unary(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(lambda a, b: a - b),
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
OPERATORS: Final = frozenset(_FOLDS)
"""Names of the ONNX operators of constants."""


def fold(op: str, attrs: Attributes, inputs: Sequence[Constant], where: str) -> Constant:
    """The output of an operator of constants; ModelError where it cannot be computed."""
    try:
        found = _FOLDS[op](attrs, inputs)
        count_elements(found.shape, where)
        return as_constant(found)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        of_batch = isinstance(error, TypeError) and any(map(_has_batch, inputs))
        what = "computes with the extent of the batch" if of_batch else error
        raise ModelError(f"cannot be computed of constants: {what}", where=where) from None


def _has_batch(x: Constant) -> bool:
    return x.dtype == object and any(item is BATCH for item in x.reshape(-1).tolist())


def find_window(kept: npt.NDArray[np.bool_]) -> int | None:
    """Of a mask [queries, keys]: how many places, itself included, each attends to at most, if it
    attends to those and to none after it; None for any other mask."""
    queries, keys = kept.shape
    if queries != keys:
        return None
    window = int(kept[-1].sum())
    place = np.arange(queries)[:, None] - np.arange(keys)
    return window if window and np.array_equal(kept, (place >= 0) & (place < window)) else None
