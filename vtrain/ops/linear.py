"""Matrix products and their companions: exact int16 x int16 -> int64, never rounded in mid-sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from vtrain.ops.base import (
    Array,
    Builder,
    LeafRule,
    Operator,
    Site,
    Stream,
    Types,
    adding,
    attr_int,
    check_fits_int64,
    integer_type,
    pointwise,
    product_range,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.spec.number import I64Array, rs, rs_int
from vtrain.wire.graph import Attrs, Node, Ref, TensorType

MAX_TERMS = 2**23
"""Longest inner extent of a product."""
_FLOAT64_EXACT_TERMS = 2**22
"""Products of int16 are at most 2^30: sums of 2^22 of them fit the 53 bits of binary64."""


def compute_matmul(a: Array, b: Array) -> I64Array:
    """Exact products of int16 matrices [..., m, k] and [..., k, n] -> int64 [..., m, n].

    Through float64 BLAS, chunk by chunk of k: every partial sum is an integer below 2^53, hence
    exact in any order of summation.  (numpy's own int64 product gives the same, 100 times slower.)
    """
    total = np.zeros((*a.shape[:-1], b.shape[-1]), dtype=np.int64)
    for start in range(0, a.shape[-1], _FLOAT64_EXACT_TERMS):
        stop = start + _FLOAT64_EXACT_TERMS
        part = a[..., start:stop].astype(np.float64) @ b[..., start:stop, :].astype(np.float64)
        total += part.astype(np.int64)
    return total


def _matmul_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    a, b = inputs
    return compute_matmul(
        a.T if attrs["transpose_a"] else a,
        b.T if attrs["transpose_b"] else b,
    )


def _matmul_terms(attrs: Attrs, types: Types) -> int:
    return types[0].shape[0 if attrs["transpose_a"] else 1]


def _matmul_streams(attrs: Attrs, types: Types) -> Sequence[Stream]:
    a, b = types
    return [
        Stream(0, a.shape[1] if attrs["transpose_a"] else 1),
        Stream(1, 1 if attrs["transpose_b"] else b.shape[1]),
    ]


def _matmul_term(site: Site, e: int, term: int) -> int:
    row, column = divmod(e, site.out.shape[1])
    (_, width_a), (_, width_b) = (tensor.shape for tensor in site.types)
    at_a = term * width_a + row if site.attrs["transpose_a"] else row * width_a + term
    at_b = column * width_b + term if site.attrs["transpose_b"] else term * width_b + column
    return site.read(0, at_a) * site.read(1, at_b)


_MATMUL_LEAF = LeafRule(adding(_matmul_term), _matmul_terms, _matmul_streams)


_PART: Final = 15
"""Bits of the second part of a gradient of many classes..."""
_ROUNDED: Final = 7
"""... and how many of them its products lose, so that sums of 2^22 terms stay below 2^60."""


def _matmul_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Exact sums of products: out[i, j] = sum of a(i, p) * b(p, j) over p = 0 .. k - 1.

    a(i, p) is a[i, p], and a[p, i] where transpose_a is 1; b(p, j) is b[p, j], and b[j, p] where
    transpose_b is 1.  Nothing is rounded or clamped.

    Attributes:
        transpose_a: 0 or 1; 1 where a is stored [k, m].
        transpose_b: 0 or 1; 1 where b is stored [n, k].
    Inputs: a i16 [m, k]; b i16 [k, n]; each with its axes the other way round where its attribute
        is 1.
    Output: i64 [m, n], exponent a.exponent + b.exponent.
    Range: min(k * lo, 0) to max(k * hi, 0), where lo and hi are the least and the greatest of a.lo
        * b.lo, a.lo * b.hi, a.hi * b.lo and a.hi * b.hi.
    Requires: k is the same in both, and at most 2^23.
    """
    require_keys(attrs, "transpose_a", "transpose_b")
    require_inputs(inputs, "i16", "i16")
    a, b = inputs
    require(len(a.shape) == 2 and len(b.shape) == 2, f"needs matrices, has {a.shape}, {b.shape}")
    return _infer_products(attrs, a, b)


def _infer_products(attrs: Attrs, a: TensorType, b: TensorType) -> TensorType:
    """The type of the products of matrices, the last two axes, one of ``a`` with one of ``b``."""
    m, k = a.shape[:-3:-1] if attr_int(attrs, "transpose_a", 0, 1) else a.shape[-2:]
    k_b, n = b.shape[:-3:-1] if attr_int(attrs, "transpose_b", 0, 1) else b.shape[-2:]
    require(k == k_b, f"inner extents differ: {k} and {k_b}")
    require(k <= MAX_TERMS, f"sums of {k} terms are longer than {MAX_TERMS}")
    lo, hi = product_range(a, b)
    shape = (*a.shape[:-2], m, n)
    return integer_type(
        "i64", shape, a.exponent + b.exponent, min(k * lo, 0), max(k * hi, 0), "the accumulator"
    )


def _matmul_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    """y = x W^T: dx = g W and dW = g^T x; y = x W: dx = g W^T and dW = x^T g."""
    require(not node.attrs["transpose_a"], "backward of a transposed left operand is not defined")
    if b.is_fine(grad):
        return _matmul_backward_in_parts(b, node, grad)
    return add_products(b, node, b.as_parts(grad, f"{node.name}/grad"), _matmul_products)


Products = Callable[[Builder, Node, Ref, str], Sequence[Ref | None]]
"""(builder, node, a part of the gradient, what names end in) -> its products with the operands."""


def add_products(
    b: Builder, node: Node, parts: Sequence[Ref], products: Products
) -> Sequence[Ref | None]:
    """The gradients of both operands, of a gradient in one part or in two."""
    first = products(b, node, parts[0], "")
    if len(parts) == 1:
        return first
    return [
        None if one is None or two is None else b.add_aligned(f"{node.name}/grad_{side}s", one, two)
        for side, one, two in zip("ab", first, products(b, node, parts[1], "_second"), strict=True)
    ]


def _matmul_backward_in_parts(b: Builder, node: Node, grad: Ref) -> Sequence[Ref | None]:
    """A gradient of 29 fraction bits is the sum of two int16 ones, of 14 bits and of what is left:
    the products of either are exact, and only those of the second are rounded, by 7 bits."""
    coarse = b.emit("rescale", f"{node.name}/grad_coarse", (grad,), dtype="i16", shift=_PART,
                    multiplier=1, multiplier_exponent=0)  # fmt: skip
    left = b.emit("sub", f"{node.name}/grad_left", (grad, coarse), shift_a=0, shift_b=_PART)
    fine = b.emit("rescale", f"{node.name}/grad_fine", (left,), dtype="i16", shift=0,
                  multiplier=1, multiplier_exponent=0)  # fmt: skip
    first = _matmul_products(b, node, coarse, "_coarse")
    second = _matmul_products(b, node, fine, "_fine")
    return [_add_parts(b, f"{node.name}/grad_{side}", one, two)
            for side, one, two in zip("ab", first, second, strict=True)]  # fmt: skip


def _add_parts(b: Builder, name: str, coarse: Ref | None, fine: Ref | None) -> Ref | None:
    if coarse is None or fine is None:
        return None
    rounded = b.emit("rescale", f"{name}_rounded", (fine,), dtype="i64", shift=_ROUNDED,
                     multiplier=1, multiplier_exponent=0)  # fmt: skip
    return b.emit("add", name, (coarse, rounded), shift_a=_PART - _ROUNDED, shift_b=0)


def _matmul_products(b: Builder, node: Node, g: Ref, part: str) -> Sequence[Ref | None]:
    x, w = node.inputs
    transposed = attr_int(node.attrs, "transpose_b", 0, 1)
    dx = dw = None
    if b.needs_gradient(x):
        name = f"{node.name}/grad_a{part}"
        dx = b.emit("matmul", name, (g, w), transpose_a=0, transpose_b=1 - transposed)
    if b.needs_gradient(w):
        pair = (g, x) if transposed else (x, g)
        dw = b.emit("matmul", f"{node.name}/grad_b{part}", pair, transpose_a=1, transpose_b=0)
    return dx, dw


def _batched_matmul_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    a, b = inputs
    return compute_matmul(
        a.swapaxes(-1, -2) if attrs["transpose_a"] else a,
        b.swapaxes(-1, -2) if attrs["transpose_b"] else b,
    )


def _batched_matmul_terms(attrs: Attrs, types: Types) -> int:
    return types[0].shape[-2 if attrs["transpose_a"] else -1]


def _batched_matmul_streams(attrs: Attrs, types: Types) -> Sequence[Stream]:
    a, b = types
    return [
        Stream(0, a.shape[-1] if attrs["transpose_a"] else 1),
        Stream(1, 1 if attrs["transpose_b"] else b.shape[-1]),
    ]


def _batched_matmul_term(site: Site, e: int, term: int) -> int:
    rows, columns = site.out.shape[-2:]
    matrix, within = divmod(e, rows * columns)
    row, column = divmod(within, columns)
    (height_a, width_a), (height_b, width_b) = (tensor.shape[-2:] for tensor in site.types)
    at_a = term * width_a + row if site.attrs["transpose_a"] else row * width_a + term
    at_b = column * width_b + term if site.attrs["transpose_b"] else term * width_b + column
    left = site.read(0, matrix * height_a * width_a + at_a)
    return left * site.read(1, matrix * height_b * width_b + at_b)


_BATCHED_MATMUL_LEAF = LeafRule(
    adding(_batched_matmul_term), _batched_matmul_terms, _batched_matmul_streams
)


def _batched_matmul_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The products of two stacks of matrices, one of the one with one of the other, each as by
    ``matmul``: the last two axes are those of a matrix, and the others say which of the stack.

    a(i, p) of a matrix is a[i, p], and a[p, i] where transpose_a is 1; b(p, j) is b[p, j], and
    b[j, p] where transpose_b is 1.  Nothing is rounded or clamped.

    Attributes:
        transpose_a: 0 or 1; 1 where the matrices of a are stored [k, m].
        transpose_b: 0 or 1; 1 where the matrices of b are stored [n, k].
    Inputs: a i16 [..., m, k]; b i16 [..., k, n]; each with its last two axes the other way round
        where its attribute is 1.
    Output: i64 [..., m, n], exponent a.exponent + b.exponent.
    Range: min(k * lo, 0) to max(k * hi, 0), where lo and hi are the least and the greatest of a.lo
        * b.lo, a.lo * b.hi, a.hi * b.lo and a.hi * b.hi.
    Requires: k is the same in both, and at most 2^23; both have at least three axes, as many of
        them, and the same extents along all but the last two.
    """
    require_keys(attrs, "transpose_a", "transpose_b")
    require_inputs(inputs, "i16", "i16")
    a, b = inputs
    require(len(a.shape) >= 3, f"needs stacks of matrices, has {a.shape}, {b.shape}")
    same = len(a.shape) == len(b.shape) and a.shape[:-2] == b.shape[:-2]
    require(same, f"the stacks differ: {a.shape} and {b.shape}")
    return _infer_products(attrs, a, b)


def _batched_matmul_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    """y = x w: dx = g w^T and dw = x^T g, each transposed if its operand is stored so."""
    return add_products(b, node, b.as_parts(grad, f"{node.name}/grad"), _batched_products)


def _batched_products(b: Builder, node: Node, g: Ref, part: str) -> Sequence[Ref | None]:
    x, w = node.inputs
    ta, tb = (attr_int(node.attrs, f"transpose_{side}", 0, 1) for side in "ab")
    dx = dw = None
    if b.needs_gradient(x):
        pair, turned = ((w, g), (tb, 1)) if ta else ((g, w), (0, 1 - tb))
        dx = b.emit(
            "batched_matmul",
            f"{node.name}/grad_a{part}",
            pair,
            transpose_a=turned[0],
            transpose_b=turned[1],
        )
    if b.needs_gradient(w):
        pair, turned = ((g, x), (1, ta)) if tb else ((x, g), (1 - ta, 0))
        dw = b.emit(
            "batched_matmul",
            f"{node.name}/grad_b{part}",
            pair,
            transpose_a=turned[0],
            transpose_b=turned[1],
        )
    return dx, dw


def _add_bias_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    acc, bias = inputs
    return acc.astype(np.int64) + rs(bias, attr_int(attrs, "shift"))


def _add_bias_leaf(site: Site, e: int) -> int:
    bias = site.read(1, e % site.types[1].size)
    return site.read(0, e) + rs_int(bias, attr_int(site.attrs, "shift"))


def _add_bias_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """acc + rs(bias, shift): the bias of the last axis is added everywhere.

    Attributes:
        shift: integer, -62 to 64; it is bias.exponent - acc.exponent.
    Inputs: acc i64 [..., n]; bias i32 [n].
    Output: i64 [..., n], the exponent of acc.
    Range: acc.lo + rs(bias.lo, shift) to acc.hi + rs(bias.hi, shift).
    Requires: rs(bias.lo, shift) and rs(bias.hi, shift) fit int64; acc has at least one axis.
    """
    require_keys(attrs, "shift")
    require_inputs(inputs, "i64", "i32")
    acc, bias = inputs
    shift = attr_int(attrs, "shift", -62, 64)
    require(len(acc.shape) >= 1 and bias.shape == acc.shape[-1:], "bias must have the last extent")
    require(bias.exponent - shift == acc.exponent, "shift does not align the bias")
    lo, hi = rs_int(bias.lo, shift), rs_int(bias.hi, shift)
    check_fits_int64(lo, hi, "the aligned bias")
    return integer_type("i64", acc.shape, acc.exponent, acc.lo + lo, acc.hi + hi, "the sum")


def _add_bias_backward(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
    whole = b.is_fine(grad) or b.is_deep(grad)
    g = grad if whole else b.as_operand(grad, f"{node.name}/grad")
    return g, b.emit("column_sum", f"{node.name}/grad_bias", (g,))


def _column_sum_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x = inputs[0]
    return np.asarray(x.reshape(-1, x.shape[-1]).sum(axis=0, dtype=np.int64))


def _column_sum_term(site: Site, e: int, row: int) -> int:
    return site.read(0, row * site.out.size + e)


_COLUMN_SUM_LEAF = LeafRule(
    adding(_column_sum_term),
    terms=lambda attrs, types: types[0].size // types[0].shape[-1],
    streams=lambda attrs, types: [Stream(0, types[0].shape[-1])],
)


def _column_sum_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Sums over all axes but the last.

    Inputs: x any [..., n].
    Output: i64 [n], the exponent of x.
    Range: min(r * x.lo, 0) to max(r * x.hi, 0), where r is the number of elements of x divided by
        n.
    Requires: x has at least one axis.
    """
    require_keys(attrs)
    require_inputs(inputs, "int")
    x = inputs[0]
    require(len(x.shape) >= 1 and x.shape[-1] > 0, "needs a non-empty last axis")
    rows = x.size // x.shape[-1]
    return integer_type(
        "i64", x.shape[-1:], x.exponent, min(rows * x.lo, 0), max(rows * x.hi, 0), "the sum"
    )


OPERATORS = table(
    Operator("matmul", _matmul_law, _matmul_infer, _matmul_backward, leaf=_MATMUL_LEAF),
    Operator(
        "batched_matmul",
        _batched_matmul_law,
        _batched_matmul_infer,
        _batched_matmul_backward,
        leaf=_BATCHED_MATMUL_LEAF,
    ),
    Operator(
        "add_bias",
        _add_bias_law,
        _add_bias_infer,
        _add_bias_backward,
        leaf=pointwise(_add_bias_leaf),
    ),
    Operator("column_sum", _column_sum_law, _column_sum_infer, leaf=_COLUMN_SUM_LEAF),
)
