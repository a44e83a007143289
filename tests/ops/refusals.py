"""Nodes that are not legal, each beside a legal one: for each rule of each operator, and why.

``REFUSALS`` is the one table of them: the tests hold the law to it, and the vectors are written
from it (tests/vectors/generate_refused.py).  ``BASE`` has a legal node of each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from vtrain.errors import GraphError, RangeError
from vtrain.ops import TABLE
from vtrain.spec.number import STORAGE
from vtrain.wire.graph import DTYPES, Attrs, AttrValue, TensorType


def T(  # noqa: N802 - a type, as it is written in the tables below
    dtype: str, *shape: int, f: int = 0, lo: int = 0, hi: int = 1
) -> TensorType:
    return TensorType(dtype, shape, f, lo, hi)


def P(  # noqa: N802
    dtype: str, *shape: int, f: int = 0, at: int = 0
) -> TensorType:
    """A type of one value alone."""
    return TensorType(dtype, shape, f, at, at)


Types = tuple[TensorType, ...]
Applied = tuple[Attrs, Types]
"""Attributes and input types of a node."""


@dataclass(frozen=True)
class Refusal:
    """``message`` is part of why ``refused`` is not legal; ``legal`` is, and is as like as can be.

    ``claim`` is a type that one who left out the rule might derive; where it is None, that is the
    one that the operator's own derivation comes to.
    """

    op: str
    message: str
    refused: Applied
    legal: Applied
    error: type[GraphError]
    claim: TensorType | None = None


WINDOW: Attrs = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0)}
SHAPED: Attrs = {**WINDOW, "shape": (1, 4, 4, 1)}
IMAGE, POOLED = T("i16", 1, 4, 4, 1), T("i16", 1, 3, 3, 1)
T0, BATCH = T("i64", hi=9), T("i64", 3, hi=9)
SEED: Attrs = {"seed": bytes(8), "batch": 1, "samples": 9}
GATHER: Attrs = {"part": "x", "dtype": "u8", "exponent": 0, "shape": (4,)}
STATE: Attrs = {"name": "w", "dtype": "i32", "shape": (2,), "exponent": 24}
RESCALE: Attrs = {"dtype": "i16", "multiplier": 1, "multiplier_exponent": 0, "shift": 0}
WIDENED: Attrs = {**RESCALE, "dtype": "i64"}
MASK: Attrs = {
    "seed": bytes(8), "site": 0, "keep": 1, "value": 1, "exponent": 0, "shape": (2, 3)
}  # fmt: skip
NORMALIZE: Attrs = {"multiplier": 1, "offset": 0, "shift": 0, "exponent": 0}
LARGE: Attrs = {**NORMALIZE, "multiplier": 2**31}
PLAIN: Attrs = {"transpose_a": 0, "transpose_b": 0}
ALIGNED: Attrs = {"shift_a": 0, "shift_b": 0}
HIGH: Attrs = {"shift_a": 58, "shift_b": 58}
SCHEDULE: Attrs = {"starts": (0, 5), "rates": (1, 2), "exponent": 0}
SHARE: Attrs = {"rate": 1, "shift": 4}
MEAN: Attrs = {**SHARE, "lift": 8}
DIRECTION: Attrs = {"epsilon": 1, "shift": 0}
BETAS: Attrs = {"beta1": 0, "beta2": 0}
MOMENTUM: Attrs = {"decay": 1, "shift": 0}
LEFT: Attrs = {"decay": 0, "shift": -4}
ALL: Attrs = {"decay": 65536, "shift": -4}
UPDATE: Attrs = {"shift": 0}
TANH: Attrs = {"table": "tanh", "shift": 0}
ROOT: Attrs = {"epsilon": 1, "lift": 0, "numerator": 2**40, "numerator_exponent": 0}
DIGEST = T("u8", 32, hi=255)
BIG = 2**59
I32, Z = 2**31 - 1, T("i32", 2, 3, f=10)
ROWS, SUMS, LABELS = T("i32", 2, f=10), T("i64", 2, f=16), T("u8", 2)
P14 = T("i16", 2, 3, f=14)
MATRIX = T("i16", 2, 2)
SPANS = T("i32", 2, 2)
NEAR: Attrs = {"before": 2, "after": 1, "end_of_text": 0, "padding": 2**31}
STACK = T("i16", 2, 2, 2)
EIGHT = (T("i16", *(2,) * 8),)
PART: Attrs = {"axis": 1, "start": 1, "stop": 2}
PADDED: Attrs = {"axis": 1, "before": 0, "after": 0}
FACTOR = 649657 * 337
"""It divides 2^63 - 1."""
BASE: dict[str, Applied] = {
    "state": (STATE, ()),
    "next_state": ({"name": "w"}, (T("i32", 2, f=24),)),
    "increment": ({}, (T0,)),
    "sample_index": (SEED, (T0,)),
    "dropout_mask": (MASK, (T0,)),
    "gather_samples": (GATHER, (BATCH,)),
    "normalize": (NORMALIZE, (T("u8", 2),)),
    "one_hot": ({"depth": 4}, (T("u8", 3, 1),)),
    "slice": (PART, (T("i16", 2, 3),)),
    "pad": (PADDED, (T("i16", 2, 3),)),
    "concat": ({"axis": 1}, (T("i16", 2, 3), T("i16", 2, 4))),
    "gather_rows": ({}, (T("i16", 2, 3), T("u8", 4))),
    "scatter_add": ({"rows": 2}, (T("i64", 1, 3), T("u8", 1))),
    "batched_matmul": (PLAIN, (STACK, STACK)),
    "matmul": (PLAIN, (MATRIX, MATRIX)),
    "add_bias": ({"shift": 0}, (T("i64", 2, 3), T("i32", 3))),
    "column_sum": ({}, (T("i64", 2, 1),)),
    "add": (ALIGNED, (T("i16", 2), T("i16", 2))),
    "sub": (ALIGNED, (T("i16", 2), T("i16", 2))),
    "mul": ({}, (T("i16", 2), T("i16", 2))),
    "rescale": (RESCALE, (T0,)),
    "relu": ({}, (T("i16", 2),)),
    "relu_grad": ({}, (T("i16", 2), T("i16", 2))),
    "look_up": (TANH, (T("i16", 2, f=10),)),
    "im2col": (WINDOW, (IMAGE,)),
    "col2im": (SHAPED, (T("i64", 9, 4),)),
    "reshape": ({"shape": (2, 3)}, (T("i16", 6),)),
    "transpose": ({"perm": (1, 0)}, (T("i16", 2, 3),)),
    "max_pool": (WINDOW, (IMAGE,)),
    "max_pool_grad": (WINDOW, (POOLED, IMAGE)),
    "sum_pool": (WINDOW, (IMAGE,)),
    "sum_pool_grad": (SHAPED, (POOLED,)),
    "row_max": ({}, (Z,)),
    "exp2_diff": ({}, (Z, ROWS)),
    "row_sum": ({}, (Z,)),
    "divide": ({}, (T("i32", 2, 3, f=16), SUMS)),
    "causal_spans": ({"queries": 3, "window": 2}, ()),
    "token_spans": (NEAR, (T("u8", 2, 3),)),
    "keep_span": ({"fill": 0}, (T("i32", 4, 3), SPANS)),
    "softmax_grad": ({}, (P14, T("i16", 2, 3))),
    "sub_one_hot": ({}, (P14, LABELS)),
    "logit_grad": ({}, (T("i32", 2, 3, f=16), SUMS, LABELS)),
    "cross_entropy": ({}, (Z, ROWS, SUMS, LABELS)),
    "square_sum": ({"shift": 0}, (T("i16", 2, f=8),)),
    "sum": ({}, (T("i64", 2),)),
    "center": ({"shift": 0}, (T("i16", 2, 3),)),
    "row_dot": ({}, (T("i16", 2, 3), T("i32", 2, 3))),
    "inverse_root": (ROOT, (T("i64", 2, f=4, hi=9),)),
    "row_scale": ({}, (T("i16", 2, 3), T("i64", 2))),
    "column_scale": ({}, (T("i16", 2, 3), T("i16", 3))),
    "momentum": (MOMENTUM, (T("i32", 2, f=16), T("i64", 2, f=16))),
    "sgd_update": (UPDATE, (T("i32", 2, f=24), T("i32", 2, f=16), T("i64", f=8))),
    "schedule": (SCHEDULE, (T0,)),
    "schedule_linear": (SCHEDULE, (T0,)),
    "sign": ({}, (T("i32", 2),)),
    "capped_square": ({"bits": 40, "shift": 0}, (T("i64", 2),)),
    "clip_factor": ({"limit": 65536}, (T("i64", f=32),)),
    "scale_by": (UPDATE, (T("i64", 2), T("i64", f=15))),
    "adam_mean": (MEAN, (T("i32", 2, f=17), T("i16", 2, f=9))),
    "adam_square": (SHARE, (T("i64", 2, f=34), T("i16", 2, f=9))),
    "adam_direction": (DIRECTION, (T("i32", 2, f=17), T("i64", 2, f=34))),
    "adam_correction": (BETAS, (T0,)),
    "tensor_digest": ({}, (T("i16", 2),)),
    "batch_digest": ({}, (DIGEST, DIGEST)),
    "state_leaf": (STATE, (DIGEST,)),
    "state_root": ({}, (DIGEST, DIGEST)),
    "record": ({"commit_every": 1}, (T0, DIGEST, T0, DIGEST)),
}


# --- rules, one by one


def refuse(
    op: str,
    message: str,
    attrs: Attrs | None = None,
    types: Types | None = None,
    near: Attrs | None = None,
    near_types: Types | None = None,
    error: type[GraphError] = GraphError,
    claim: TensorType | None = None,
) -> Refusal:
    """Attributes are changes of the base's; types that are None are the legal node's."""
    base_attrs, base_types = BASE[op]
    legal_types = base_types if near_types is None else near_types
    return Refusal(
        op,
        message,
        ({**base_attrs, **(attrs or {})}, legal_types if types is None else types),
        ({**base_attrs, **(near or {})}, legal_types),
        error,
        claim,
    )


def exceed(
    op: str,
    message: str,
    types: Types,
    near_types: Types,
    attrs: Attrs | None = None,
    near: Attrs | None = None,
) -> Refusal:
    """A range that is too wide by one, of the inputs or, where ``near`` is given, by attributes."""
    return refuse(
        op, message, attrs, types, attrs if near is None else near, near_types, RangeError
    )


def V(lo: int, hi: int | None = None) -> TensorType:  # noqa: N802
    """A momentum."""
    return T("i32", 2, f=16, lo=lo, hi=lo if hi is None else hi)


def G(lo: int, hi: int | None = None) -> TensorType:  # noqa: N802
    """A gradient for a shift of -4."""
    return T("i64", 2, f=12, lo=lo, hi=lo if hi is None else hi)


def W(lo: int, hi: int | None = None) -> TensorType:  # noqa: N802
    """A master weight."""
    return T("i32", 2, f=24, lo=lo, hi=lo if hi is None else hi)


def rate(shift: int, at: int) -> TensorType:
    """A rate for a momentum of 16 fraction bits."""
    return P("i64", f=shift + 8, at=at)


def wide(kernel: tuple[int, int], strides: tuple[int, int], top: int) -> Attrs:
    return {"kernel": kernel, "strides": strides, "pads": (top, 0, 0, 0)}


SHAPES = [
    refuse("state", "empty axis", {"shape": (2, 0)}, near={"shape": (2, 1)}),
    refuse("state", "empty axis", {"shape": (-1,)}),
    refuse("state", "axes", {"shape": (1,) * 9}, near={"shape": (1,) * 8}),
    refuse("state", "elements", {"shape": (2**16, 2**16 + 1)}, near={"shape": (2**16, 2**16)}),
    refuse("state", "elements", {"shape": (2**63 - 1, 2**63 - 1)}),
    refuse("state", "needs a name", {"name": ""}),
    refuse("state", "attribute dtype", {"dtype": "i16"}, near={"dtype": "i64"}),
    refuse("state", "attribute dtype", {"dtype": "u8"}),
    refuse("next_state", "needs a name", {"name": ""}),
    refuse("reshape", "cannot reshape", {"shape": (2, 4)}),
    refuse("reshape", "empty axis", {"shape": (-2, -3)}),
    refuse("reshape", "axes", {"shape": (1,) * 9}, None, {"shape": (1,) * 8}, (T("i16"),)),
    refuse("transpose", "not a permutation", {"perm": (0, 0)}),
    refuse("transpose", "not a permutation", {"perm": (0, -1)}),
    refuse("transpose", "not a permutation", {"perm": (1, 2)}),
    refuse("transpose", "2 integers", {"perm": (0,)}),
    refuse("transpose", "2 integers", {"perm": (0, 1, 2)}),
    *[refuse(op, "no axis", {"axis": 2}, near={"axis": 1}) for op in ("slice", "pad", "concat")],
    *[refuse(op, "no axis", {"axis": 0}, (T("i16"),), {"axis": 0}, (T("i16", 4),))
      for op in ("slice", "pad")],
    refuse("concat", "no axis", {"axis": 0}, (T("i16"), T("i16")), {"axis": 0},
           (T("i16", 1), T("i16", 1))),
    refuse("slice", "is empty", {"start": 2}),
    refuse("slice", "is empty", {"start": 3}),
    refuse("slice", "fewer than", {"stop": 4}, near={"stop": 3}),
    refuse("slice", "fewer than", {"axis": 0, "start": 0, "stop": 3},
           near={"axis": 0, "start": 0, "stop": 2}),
    refuse("pad", "elements", {"after": 2**31 - 2}, near={"after": 2**31 - 3}),
    *[
        refuse(op, "attribute axis", {"axis": bad}, types, {"axis": near}, types)
        for op, types in (("slice", EIGHT), ("pad", EIGHT), ("concat", EIGHT * 2))
        for bad, near in ((-1, 0), (8, 7))
    ],
    refuse("slice", "attribute start", {"start": -1}, near={"start": 0}),
    refuse("slice", "attribute start", {"start": 2**32, "stop": 2**32}, (T("i16", 1, 2**32),),
           {"start": 2**32 - 1, "stop": 2**32}, (T("i16", 1, 2**32),)),
    refuse("slice", "attribute stop", {"start": 0, "stop": 0}, near={"start": 0, "stop": 1}),
    refuse("slice", "attribute stop", {"start": 0, "stop": 2**32 + 1}, (T("i16", 1, 2**32),),
           {"start": 0, "stop": 2**32}, (T("i16", 1, 2**32),)),
    refuse("gather_rows", "rows and columns", types=(T("i16", 2), T("u8", 4))),
    refuse("gather_rows", "rows and columns", types=(T("i16", 2, 3, 1), T("u8", 4))),
    refuse("gather_rows", "list of numbers", types=(T("i16", 2, 3), T("u8", 4, 1))),
    refuse("gather_rows", "list of numbers", types=(T("i16", 2, 3), T("u8"))),
    refuse("scatter_add", "rows and columns", types=(T("i64", 1), T("u8", 1))),
    refuse("scatter_add", "rows and columns", types=(T("i64", 1, 3, 1), T("u8", 1))),
    refuse("scatter_add", "number for each row", types=(T("i64", 1, 3), T("u8", 2))),
    refuse("scatter_add", "number for each row", types=(T("i64", 1, 3), T("u8", 1, 1))),
    refuse("concat", "joins two", types=(T("i16", 2, 3),)),
    refuse("concat", "joins two", types=()),
    refuse("concat", "dtypes differ", types=(T("i16", 2, 3), T("i32", 2, 4))),
    refuse("concat", "exponents differ", types=(T("i16", 2, 3), T("i16", 2, 4, f=1))),
    refuse("concat", "shapes differ", types=(T("i16", 2, 3), T("i16", 3, 3))),
    refuse("concat", "shapes differ", types=(T("i16", 2, 3), T("i16", 2, 3, 1))),
    refuse("concat", "shapes differ", types=(T("i16", 2, 3), T("i16", 2, 3), T("i16", 1, 3))),
    refuse("concat", "elements", {"axis": 0}, (T("i16", 2**31), T("i16", 2**31 + 1)), {"axis": 0},
           (T("i16", 2**31), T("i16", 2**31))),
]  # fmt: skip
SOURCES = [
    *[
        refuse(op, message, types=(bad,), near_types=(good,))
        for op in ("increment", "sample_index", "dropout_mask")
        for message, bad, good in (
            ("integer scalar", T("i64", 1, hi=9), T0),
            ("integer scalar", T("i64", f=1), T("i64")),
            ("integer scalar", T("i64", f=-1), T("i64")),
            ("within", T("i64", lo=-1), T("i64")),
            ("within", T("i64", hi=2**40 + 1), T("i64", hi=2**40)),
        )
    ],
    refuse("sample_index", "8 bytes", {"seed": bytes(7)}),
    refuse("sample_index", "8 bytes", {"seed": bytes(9)}),
    refuse("dropout_mask", "8 bytes", {"seed": bytes(7)}),
    refuse("dropout_mask", "8 bytes", {"seed": bytes(9)}),
    refuse("dropout_mask", "empty axis", {"shape": (2, 0)}, near={"shape": (2, 1)}),
    refuse("dropout_mask", "axes", {"shape": (1,) * 9}, near={"shape": (1,) * 8}),
    refuse("dropout_mask", "elements", {"shape": (2**31 + 1, 2)}, near={"shape": (2**31, 2)}),
    refuse("gather_samples", "attribute part", {"part": "z"}, near={"part": "y"}),
    refuse("gather_samples", "attribute dtype", {"dtype": "i64"}, near={"dtype": "i32"}),
    refuse("gather_samples", "empty axis", {"shape": (0,)}, near={"shape": ()}),
    refuse("gather_samples", "axes", {"shape": (1,) * 8}, near={"shape": (1,) * 7}),
    refuse("gather_samples", "elements", {"shape": (2**32 // 3 + 1,)},
           near={"shape": (2**32 // 3,)}),
    refuse("gather_samples", "vector", types=(T("i64", 3, 1, hi=9),)),
    refuse("gather_samples", "vector", types=(T("i64", hi=9),)),
    exceed("normalize", "product", (T("i64", 2, hi=2**32),), (T("i64", 2, hi=2**32 - 1),),
           {**LARGE, "offset": -(2**60)}),
    exceed("normalize", "product", (T("i64", 2, lo=-(2**32) - 1),), (T("i64", 2, lo=-(2**32)),),
           {**LARGE, "offset": 2**60}),
    exceed("normalize", "scaled sample", (T("i64", 2, hi=2**32 - 1),),
           (T("i64", 2, hi=2**32 - 1),), {**LARGE, "offset": 2**31},
           {**LARGE, "offset": 2**31 - 1}),
    exceed("normalize", "scaled sample", (T("i64", 2, lo=-(2**32)),), (T("i64", 2, lo=-(2**32)),),
           {**LARGE, "offset": -1}, LARGE),
    refuse("one_hot", "tokens", types=(T("u8", 3),)),
    refuse("one_hot", "tokens", types=(T("u8"),)),
    refuse("one_hot", "elements", {"depth": 2**20}, (T("u8", 1, 2**12 + 1),), {"depth": 2**20},
           (T("u8", 1, 2**12),)),
]  # fmt: skip
TALL = T("i16", 1, 2**16, 1, 1)
WINDOWS = [
    *[
        refuse(op, message, attrs, near=near)
        for op in ("im2col", "max_pool", "sum_pool")
        for message, attrs, near in (
            ("positive", {"kernel": (0, 2)}, {"kernel": (1, 2)}),
            ("positive", {"kernel": (2, 0)}, {"kernel": (2, 1)}),
            ("2 integers", {"kernel": (2,)}, None),
            ("2 integers", {"kernel": (2, 2, 1)}, None),
            ("positive", {"strides": (1, 0)}, None),
            ("positive", {"strides": (0, 1)}, None),
            ("stride", {"strides": (2**32 + 1, 1)}, {"strides": (2**32, 1)}),
            ("stride", {"strides": (1, 2**32 + 1)}, {"strides": (1, 2**32)}),
            ("2 integers", {"strides": (1,)}, None),
            ("4 integers", {"pads": (0, 0, 0)}, None),
            ("negative", {"pads": (-1, 0, 0, 0)}, None),
            ("negative", {"pads": (0, -1, 0, 0)}, None),
            ("negative", {"pads": (0, 0, -1, 0)}, None),
            ("negative", {"pads": (0, 0, 0, -1)}, None),
            ("smaller than the kernel", {"pads": (2, 0, 0, 0)}, {"pads": (1, 0, 0, 0)}),
            ("smaller than the kernel", {"pads": (0, 2, 0, 0)}, {"pads": (0, 1, 0, 0)}),
            ("smaller than the kernel", {"pads": (0, 0, 2, 0)}, {"pads": (0, 0, 1, 0)}),
            ("smaller than the kernel", {"pads": (0, 0, 0, 2)}, {"pads": (0, 0, 0, 1)}),
            ("smaller than the kernel", {"kernel": (3, 2), "pads": (0, 2, 0, 0)},
             {"kernel": (2, 3), "pads": (0, 2, 0, 0)}),
            ("larger than the padded", {"kernel": (5, 1)}, {"kernel": (4, 1)}),
            ("larger than the padded", {"kernel": (1, 5)}, {"kernel": (1, 4)}),
            ("larger than the padded", {"kernel": (6, 1), "pads": (1, 0, 0, 0)},
             {"kernel": (5, 1), "pads": (1, 0, 0, 0)}),
            ("larger than the padded", {"kernel": (6, 6)}, {"kernel": (4, 4)}),
            ("larger than the padded", {"kernel": (5, 5), "strides": (2, 2)},
             {"kernel": (4, 4), "strides": (2, 2)}),
        )
    ],
    *[
        refuse(op, "NHWC", types=(image,))
        for op in ("im2col", "max_pool", "sum_pool")
        for image in (T("i16", 4, 4), T("i16", 1, 4, 4, 1, 1))
    ],
    *[
        refuse(op, message, attrs, types, near, near_types)
        for op in ("im2col", "max_pool", "sum_pool")
        for message, attrs, types, near, near_types in (
            ("patches", WINDOW, (T("i16", 1, 2**13, 2**14, 16),), WINDOW,
             (T("i16", 1, 2**13, 2**14, 8),)),
            ("a window has at most", wide((2**16 + 1, 1), (1, 1), 0),
             (T("i16", 1, 2**16 + 1, 1, 1),), wide((2**16, 1), (1, 1), 0), (TALL,)),
            ("padded image", wide((2, 1), (2**16, 1), 1), (T("i16", 2**16, 2**16, 1, 1),),
             wide((2, 1), (2**16, 1), 0), (T("i16", 2**16, 2**16, 1, 1),)),
        )
    ],
    refuse("max_pool_grad", "smaller than the kernel", {"pads": (2, 0, 0, 0)},
           (T("i16", 1, 5, 3, 1), IMAGE)),
    refuse("max_pool_grad", "gradient has shape", types=(IMAGE, IMAGE)),
    refuse("max_pool_grad", "gradient has shape", types=(T("i16", 9), IMAGE)),
    refuse("max_pool_grad", "NHWC", types=(POOLED, T("i16", 16))),
    refuse("sum_pool_grad", "smaller than the kernel", {"pads": (2, 0, 0, 0)},
           (T("i16", 1, 5, 3, 1),)),
    refuse("sum_pool_grad", "gradient has shape", types=(IMAGE,)),
    refuse("sum_pool_grad", "4 integers", {"shape": (1, 4, 4)}),
    refuse("sum_pool_grad", "empty axis", {"shape": (-1, 4, 4, -1)}),
    exceed("sum_pool_grad", "2^60", (T("i64", 1, 3, 3, 1, hi=2**58),),
           (T("i64", 1, 3, 3, 1, hi=2**58 - 1),)),
    exceed("sum_pool_grad", "2^60", (T("i64", 1, 3, 3, 1, lo=-(2**58)),),
           (T("i64", 1, 3, 3, 1, lo=1 - 2**58),)),
    refuse("col2im", "smaller than the kernel", {"pads": (2, 0, 0, 0)}, (T("i64", 15, 4),)),
    refuse("col2im", "needs shape", types=(T("i64", 9, 5),)),
    refuse("col2im", "needs shape", types=(T("i64", 8, 4),)),
    refuse("col2im", "needs shape", types=(T("i64", 36),)),
    refuse("col2im", "4 integers", {"shape": (4, 4, 1)}),
    refuse("col2im", "empty axis", {"shape": (-1, 4, 4, -1)}),
    exceed("col2im", "2^60", (T("i64", 9, 4, hi=2**58),), (T("i64", 9, 4, hi=2**58 - 1),)),
    exceed("col2im", "2^60", (T("i64", 9, 4, lo=-(2**58)),), (T("i64", 9, 4, lo=1 - 2**58),)),
]  # fmt: skip
PRODUCTS = [
    refuse("batched_matmul", "needs stacks", types=(MATRIX, MATRIX)),
    refuse("batched_matmul", "stacks differ", types=(STACK, MATRIX)),
    refuse("batched_matmul", "stacks differ", types=(STACK, T("i16", 1, 2, 2))),
    refuse("batched_matmul", "stacks differ", types=(STACK, T("i16", 2, 1, 2, 2))),
    refuse("batched_matmul", "inner extents", types=(T("i16", 2, 2, 3), T("i16", 2, 2, 3)),
           near_types=(T("i16", 2, 2, 3), T("i16", 2, 3, 2))),
    refuse("batched_matmul", "inner extents", {"transpose_a": 1},
           (T("i16", 2, 2, 3), T("i16", 2, 3, 2)), {"transpose_a": 1},
           (T("i16", 2, 2, 3), T("i16", 2, 2, 3))),
    refuse("batched_matmul", "inner extents", {"transpose_b": 1},
           (T("i16", 2, 2, 3), T("i16", 2, 3, 2)), {"transpose_b": 1},
           (T("i16", 2, 2, 3), T("i16", 2, 2, 3))),
    refuse("batched_matmul", "longer", types=(T("i16", 1, 1, 2**23 + 1), T("i16", 1, 2**23 + 1, 1)),
           near_types=(T("i16", 1, 1, 2**23), T("i16", 1, 2**23, 1))),
    refuse("batched_matmul", "elements", types=(T("i16", 2, 2**16, 1), T("i16", 2, 1, 2**16)),
           near_types=(T("i16", 1, 2**16, 1), T("i16", 1, 1, 2**16))),
    refuse("matmul", "matrices", types=(T("i16", 2), MATRIX)),
    refuse("matmul", "matrices", types=(MATRIX, T("i16", 2))),
    refuse("matmul", "inner extents", types=(T("i16", 2, 3), T("i16", 2, 3)),
           near_types=(T("i16", 2, 3), T("i16", 3, 2))),
    refuse("matmul", "inner extents", {"transpose_a": 1}, (T("i16", 2, 3), T("i16", 3, 2)),
           {"transpose_a": 1}, (T("i16", 2, 3), T("i16", 2, 3))),
    refuse("matmul", "inner extents", {"transpose_b": 1}, (T("i16", 2, 3), T("i16", 3, 2)),
           {"transpose_b": 1}, (T("i16", 2, 3), T("i16", 2, 3))),
    refuse("matmul", "longer", types=(T("i16", 1, 2**23 + 1), T("i16", 2**23 + 1, 1)),
           near_types=(T("i16", 1, 2**23), T("i16", 2**23, 1))),
    refuse("matmul", "elements", types=(T("i16", 2**16 + 1, 1), T("i16", 1, 2**16)),
           near_types=(T("i16", 2**16, 1), T("i16", 1, 2**16))),
    *[
        refuse(op, "exponent", types=(T("i16", 2, 2, f=a), T("i16", 2, 2, f=b)),
               near_types=(T("i16", 2, 2, f=a), T("i16", 2, 2, f=b - (1 if b > 0 else -1))))
        for op in ("matmul", "mul") for a, b in ((500, 13), (-500, -13))
    ],
    refuse("add_bias", "last extent", types=(T("i64"), T("i32"))),
    refuse("add_bias", "last extent", types=(T("i64", 2, 3), T("i32", 2))),
    refuse("add_bias", "last extent", types=(T("i64", 2, 3), T("i32", 2, 3))),
    refuse("add_bias", "align", {"shift": 1}),
    refuse("add_bias", "align", types=(T("i64", 2, 3, f=1), T("i32", 3))),
    exceed("add_bias", "aligned bias", (T("i64", 2, f=62), T("i32", 2, hi=2)),
           (T("i64", 2, f=59, hi=0), T("i32", 2, hi=1)), {"shift": -62}, {"shift": -59}),
    exceed("add_bias", "2^60", (T("i64", 2, hi=2**60 - 1), T("i32", 2)),
           (T("i64", 2, hi=2**60 - 2), T("i32", 2))),
    exceed("add_bias", "2^60", (T("i64", 2, lo=1 - 2**60), T("i32", 2, lo=-1)),
           (T("i64", 2, lo=2 - 2**60), T("i32", 2, lo=-1))),
    refuse("column_sum", "last axis", types=(T("i64"),)),
    exceed("column_sum", "2^60", (T("i64", 2, 1, hi=BIG),), (T("i64", 2, 1, hi=BIG - 1),)),
    exceed("column_sum", "2^60", (T("i64", 2, 1, lo=-BIG),), (T("i64", 2, 1, lo=1 - BIG),)),
    exceed("scatter_add", "2^60", (T("i64", 2, 1, hi=BIG), T("u8", 2)),
           (T("i64", 2, 1, hi=BIG - 1), T("u8", 2))),
    exceed("scatter_add", "2^60", (T("i64", 2, 1, lo=-BIG), T("u8", 2)),
           (T("i64", 2, 1, lo=1 - BIG), T("u8", 2))),
    exceed("sum", "2^60", (T("i64", 2, hi=BIG),), (T("i64", 2, hi=BIG - 1),)),
    exceed("sum", "2^60", (T("i64", 2, lo=-BIG),), (T("i64", 2, lo=1 - BIG),)),
    refuse("mul", "shapes differ", types=(T("i16", 2), T("i16", 3))),
    exceed("mul", "2^60", (T("i64", 2, hi=2**30), T("i64", 2, hi=2**30)),
           (T("i64", 2, hi=2**30), T("i64", 2, hi=2**30 - 1))),
    exceed("mul", "2^60", (T("i64", 2, lo=-(2**30)), T("i64", 2, hi=2**30)),
           (T("i64", 2, lo=-(2**30)), T("i64", 2, hi=2**30 - 1))),
    exceed("mul", "2^60", (T("i64", 2, lo=-(2**30)), T("i64", 2, lo=-(2**30))),
           (T("i64", 2, lo=-(2**30)), T("i64", 2, lo=1 - 2**30))),
]  # fmt: skip


def shifted(a: tuple[int, int], b: tuple[int, int]) -> Types:
    return T("i16", 2, lo=a[0], hi=a[1]), T("i16", 2, lo=b[0], hi=b[1])


SHIFTS = [
    refuse("rescale", "attribute dtype", {"dtype": "u8"}),
    refuse("rescale", "attribute dtype", {"dtype": "i8"}),
    exceed("rescale", "product", (T("i64", hi=BIG),), (T("i64", hi=BIG),),
           {"multiplier": 16, "shift": 4}, {"multiplier": 15, "shift": 4}),
    exceed("rescale", "product", (T("i64", lo=-BIG - 1),), (T("i64", lo=-BIG),),
           {"multiplier": 16, "shift": 4}),
    exceed("rescale", "shifted", (T("i64", hi=BIG),), (T("i64", hi=BIG - 1),), {"shift": -4}),
    exceed("rescale", "shifted", (T("i64", lo=-BIG - 1),), (T("i64", lo=-BIG),), {"shift": -4}),
    exceed("rescale", "2^60", (T("i64", hi=BIG),), (T("i64", hi=BIG - 1),),
           {**WIDENED, "shift": -1}),
    exceed("rescale", "2^60", (T("i64", lo=-BIG),), (T("i64", lo=1 - BIG),),
           {**WIDENED, "shift": -1}),
    refuse("rescale", "exponent", {"shift": -1}, (T("i64", f=512),), {"shift": -1},
           (T("i64", f=511),)),
    refuse("rescale", "exponent", {"shift": 1}, (T("i64", f=-512),), {"shift": 1},
           (T("i64", f=-511),)),
    refuse("look_up", "attribute table", {"table": "erf"}),
    refuse("look_up", "fraction bits", {"shift": 2}),
    refuse("look_up", "fraction bits", types=(T("i16", 2, f=8),)),
    refuse("look_up", "fraction bits", {"table": "sigmoid"}, None,
           {"table": "sigmoid", "shift": 2}),
    *[refuse(op, "shapes differ", types=(T("i16", 2), T("i16", 3)))
      for op in ("add", "sub", "relu_grad")],
    *[refuse(op, "align", types=types) for op in ("add", "sub")
      for types in ((T("i16", 2, f=1), T("i16", 2)), (T("i16", 2), T("i16", 2, f=1)))],
    *[refuse(op, "align", attrs) for op in ("add", "sub")
      for attrs in ({"shift_a": 1}, {"shift_b": 1})],
    *[
        exceed(op, f"{side} operand", shifted(*bad), shifted(*good), HIGH)
        for op, side, bad, good in (
            ("add", "left", ((31, 32), (-32, -31)), ((31, 31), (-32, -31))),
            ("add", "left", ((-33, -32), (31, 31)), ((-32, -32), (31, 31))),
            ("add", "right", ((-32, -31), (31, 32)), ((-32, -31), (31, 31))),
            ("add", "right", ((31, 31), (-33, -32)), ((31, 31), (-32, -32))),
            ("sub", "left", ((31, 32), (31, 31)), ((31, 31), (31, 31))),
            ("sub", "left", ((-33, -32), (-32, -32)), ((-32, -32), (-32, -32))),
            ("sub", "right", ((31, 31), (31, 32)), ((31, 31), (31, 31))),
            ("sub", "right", ((-32, -32), (-33, -32)), ((-32, -32), (-32, -32))),
        )
    ],
    exceed("add", "2^60", (T("i64", 2, hi=BIG), T("i64", 2, hi=BIG)),
           (T("i64", 2, hi=BIG), T("i64", 2, hi=BIG - 1))),
    exceed("add", "2^60", (T("i64", 2, lo=-BIG), T("i64", 2, lo=-BIG)),
           (T("i64", 2, lo=-BIG), T("i64", 2, lo=1 - BIG))),
    exceed("sub", "2^60", (T("i64", 2, hi=BIG), T("i64", 2, lo=-BIG)),
           (T("i64", 2, hi=BIG), T("i64", 2, lo=1 - BIG))),
    exceed("sub", "2^60", (T("i64", 2, lo=-BIG), T("i64", 2, hi=BIG)),
           (T("i64", 2, lo=-BIG), T("i64", 2, hi=BIG - 1))),
    refuse("add", "exponent", {"shift_a": 1, "shift_b": 1}, (P("i16", f=512), P("i16", f=512)),
           {"shift_a": 1, "shift_b": 1}, (P("i16", f=511), P("i16", f=511))),
    refuse("sub", "exponent", {"shift_a": 1, "shift_b": 1}, (P("i16", f=512), P("i16", f=512)),
           {"shift_a": 1, "shift_b": 1}, (P("i16", f=511), P("i16", f=511))),
]  # fmt: skip
WIDE_GRADS = tuple(
    (P("i16", 1, columns, f=14, at=2**14), T("i16", 1, columns, lo=0, hi=2**14))
    for columns in (2**18, 2**18 - 1)
)
LOSSES = [
    *[refuse(op, "rows", types=types) for op in ("row_max", "row_sum")
      for types in ((T("i32", 2),), (T("i32", 2, 3, 1),))],
    exceed("row_sum", "2^60", (T("i32", 1, 2**29, lo=-(2**31)),),
           (T("i32", 1, 2**29, lo=1 - 2**31, hi=I32),)),
    exceed("row_sum", "2^60", (T("i32", 1, 2**29 + 1, hi=I32),), (T("i32", 1, 2**29, hi=I32),)),
    refuse("exp2_diff", "maxima", types=(Z, T("i32", 3, f=10))),
    refuse("exp2_diff", "maxima", types=(Z, T("i32", 2, 1, f=10))),
    refuse("exp2_diff", "maxima", types=(ROWS, T("i32", 2, f=10))),
    refuse("exp2_diff", "10 fraction bits", types=(Z, T("i32", 2, f=9))),
    refuse("exp2_diff", "10 fraction bits", types=(T("i32", 2, 3, f=9), ROWS)),
    refuse("exp2_diff", "10 fraction bits", types=(T("i32", 2, 3, f=9), T("i32", 2, f=9))),
    refuse("divide", "sums", types=(T("i32", 2, 3, f=16), T("i64", 3, f=16))),
    refuse("divide", "sums", types=(T("i32", 2, 3, f=16), T("i64", 2, 3, f=16))),
    refuse("divide", "sums", types=(T("i32", 2, f=16), SUMS)),
    refuse("divide", "exponent", types=(T("i32", 2, 3, f=16), T("i64", 2, f=17)),
           near_types=(T("i32", 2, 3, f=17), T("i64", 2, f=17))),
    refuse("divide", "negative", types=(T("i32", 2, 3, f=16, lo=-1), SUMS)),
    refuse("divide", "negative", types=(T("i32", 2, 3, f=16), T("i64", 2, f=16, lo=-1))),
    refuse("logit_grad", "each row", types=(T("i32", 2, 3, f=16), T("i64", 3, f=16), LABELS)),
    refuse("logit_grad", "each row", types=(T("i32", 2, 3, f=16), SUMS, T("u8", 3))),
    refuse("logit_grad", "each row", types=(T("i32", 2, f=16), SUMS, LABELS)),
    refuse("logit_grad", "exponent", types=(T("i32", 2, 3, f=16), T("i64", 2, f=17), LABELS),
           near_types=(T("i32", 2, 3, f=17), T("i64", 2, f=17), LABELS)),
    refuse("logit_grad", "negative", types=(T("i32", 2, 3, f=16, lo=-1), SUMS, LABELS)),
    refuse("logit_grad", "negative",
           types=(T("i32", 2, 3, f=16), T("i64", 2, f=16, lo=-1), LABELS)),
    refuse("sub_one_hot", "label", types=(P14, T("u8", 3))),
    refuse("sub_one_hot", "label", types=(P14, T("u8", 2, 1))),
    refuse("sub_one_hot", "label", types=(T("i16", 2, f=14), LABELS)),
    refuse("sub_one_hot", "14 fraction bits", types=(T("i16", 2, 3, f=13), LABELS)),
    refuse("token_spans", "rows of ids", types=(T("u8", 3),)),
    refuse("token_spans", "rows of ids", types=(T("u8", 2, 3, 1),)),
    refuse("token_spans", "too long", types=(T("u8", 1, 2**31),),
           near_types=(T("u8", 1, 2**31 - 1),)),
    refuse("keep_span", "needs rows", types=(T("i32", 4), SPANS)),
    refuse("keep_span", "needs rows", types=(T("i32", 4, 3, 1), SPANS)),
    refuse("keep_span", "a begin and an end", types=(T("i32", 4, 3), T("i32", 2, 3))),
    refuse("keep_span", "a begin and an end", types=(T("i32", 4, 3), T("i32", 2))),
    refuse("keep_span", "3 spans for 4 rows", types=(T("i32", 4, 3), T("i32", 3, 2))),
    refuse("keep_span", "8 spans for 4 rows", types=(T("i32", 4, 3), T("i32", 8, 2))),
    exceed("keep_span", "the fill", (T("u8", 4, 3), SPANS), (T("u8", 4, 3), SPANS), {"fill": 256},
           {"fill": 255}),
    exceed("keep_span", "the fill", (T("i16", 4, 3), SPANS), (T("i16", 4, 3), SPANS),
           {"fill": -(2**15) - 1}, {"fill": -(2**15)}),
    refuse("softmax_grad", "a gradient for each", types=(P14, T("i16", 3, 2))),
    refuse("softmax_grad", "a gradient for each", types=(P14, T("i16", 6))),
    refuse("softmax_grad", "a gradient for each",
           types=(T("i16", 6, f=14), T("i16", 6))),
    refuse("softmax_grad", "14 fraction bits", types=(T("i16", 2, 3, f=13), T("i16", 2, 3))),
    refuse("softmax_grad", "exponent", types=(P14, T("i16", 2, 3, f=485)),
           near_types=(P14, T("i16", 2, 3, f=484))),
    exceed("softmax_grad", "2^60", WIDE_GRADS[0], WIDE_GRADS[1]),
    exceed("sub_one_hot", "i16", (T("i16", 2, 3, f=14, lo=-(2**14) - 1), LABELS),
           (T("i16", 2, 3, f=14, lo=-(2**14)), LABELS)),
    refuse("cross_entropy", "rows", types=(T("i32", 2, f=10), ROWS, SUMS, LABELS)),
    refuse("cross_entropy", "each row", types=(Z, T("i32", 3, f=10), SUMS, LABELS)),
    refuse("cross_entropy", "each row", types=(Z, ROWS, T("i64", 3, f=16), LABELS)),
    refuse("cross_entropy", "each row", types=(Z, ROWS, SUMS, T("u8", 2, 1))),
    refuse("cross_entropy", "each row",
           types=(Z, T("i32", 3, f=10), T("i64", 3, f=16), LABELS)),
    refuse("cross_entropy", "each row",
           types=(Z, T("i32", 3, f=10), T("i64", 3, f=16), T("u8", 3))),
    refuse("cross_entropy", "exponents", types=(T("i32", 2, 3, f=9), ROWS, SUMS, LABELS)),
    refuse("cross_entropy", "exponents", types=(Z, ROWS, T("i64", 2, f=15), LABELS),
           near_types=(Z, T("i32", 2, f=9), SUMS, LABELS)),
    refuse("square_sum", "16 fraction bits", {"shift": 1}),
    refuse("square_sum", "16 fraction bits", types=(T("i16", 2, f=9),)),
    exceed("square_sum", "squares", (T("i16", 2**32, f=40, lo=-(2**15)),),
           (T("i16", 2**32, f=40, lo=1 - 2**15),), {"shift": 64}),
    exceed("square_sum", "2^60", (T("i16", f=-22),), (T("i16", f=-21),), {"shift": -60},
           {"shift": -58}),
    exceed("square_sum", "2^60", (T("i16", 2**30, f=8, lo=-(2**15)),),
           (T("i16", 2**30, f=8, lo=1 - 2**15),)),
]  # fmt: skip
LONG = 2**15
NORMS = [
    *[
        refuse(op, "non-empty rows", types=types)
        for op, types in (
            ("center", (T("i16"),)),
            ("row_dot", (T("i16"), T("i32"))),
            ("row_scale", (T("i16"), T("i64"))),
            ("column_scale", (T("i16"), T("i16"))),
        )
    ],
    exceed("center", "i32", (T("i16", 1, LONG + 2, lo=-LONG, hi=LONG - 1),),
           (T("i16", 1, LONG + 1, lo=-LONG, hi=LONG - 1),)),
    exceed("center", "i32", (T("i16", 1, 2 * LONG + 2, lo=-LONG, hi=LONG - 1),),
           (T("i16", 1, 2 * LONG + 1, lo=-LONG, hi=LONG - 1),), {"shift": 1}),
    refuse("center", "exponent", {"shift": 1}, (P("i16", 2, f=-512),), {"shift": 1},
           (P("i16", 2, f=-511),)),
    refuse("row_dot", "shapes differ", types=(T("i16", 2, 3), T("i32", 3))),
    refuse("row_dot", "shapes differ", types=(T("i16", 2, 3), T("i32", 2, 1))),
    refuse("row_dot", "narrower", types=(T("i16", 2, 3), T("i64", 2, 3))),
    exceed("row_dot", "2^60", (P("i32", 2, at=2**30), P("i32", 2, at=2**29)),
           (P("i32", 2, at=2**30), P("i32", 2, at=2**29 - 1))),
    exceed("row_dot", "2^60", (P("i32", 2, at=-(2**30)), P("i32", 2, at=2**29)),
           (P("i32", 2, at=-(2**30)), P("i32", 2, at=2**29 - 1))),
    exceed("row_dot", "2^60", (T("i16", 2**31, lo=-(2**15), hi=0),) * 2,
           (T("i16", 2**29, lo=-(2**15), hi=2**15 - 1),) * 2),
    refuse("inverse_root", "odd", types=(T("i64", 2, f=3, hi=9),)),
    exceed("inverse_root", "may reach", (T("i64", hi=2**58 - 1),), (T("i64", hi=2**58 - 2),),
           {"lift": 2}),
    exceed("inverse_root", "may reach", (T("i64", lo=-9, hi=0),), (T("i64", lo=-9, hi=0),),
           {"lift": 30, "epsilon": 4}, {"lift": 30, "epsilon": 3}),
    exceed("inverse_root", "2^60", (T("i64", hi=0),), (T("i64", hi=0),),
           {"numerator": 2**60}, {"numerator": 2**60 - 1}),
    refuse("row_scale", "each row", types=(T("i16", 2, 3), T("i64", 3))),
    refuse("row_scale", "each row", types=(T("i16", 2, 3), T("i64", 2, 1))),
    refuse("column_scale", "each column", types=(T("i16", 2, 3), T("i16", 2))),
    refuse("column_scale", "each column", types=(T("i16", 2, 3), T("i16", 1, 3))),
    *[
        refuse(op, "exponent", types=(T("i16", 2, 2, f=a), T("i16", 2, f=b)),
               near_types=(T("i16", 2, 2, f=a), T("i16", 2, f=b - (1 if b > 0 else -1))))
        for op in ("row_scale", "column_scale") for a, b in ((500, 13), (-500, -13))
    ],
    *[
        exceed(op, "2^60", (T("i64", 2, 2, **{end: 2**30 * sign}), T("i64", 2, hi=2**30)),
               (T("i64", 2, 2, **{end: 2**30 * sign}), T("i64", 2, hi=2**30 - 1)))
        for op in ("row_scale", "column_scale") for end, sign in (("hi", 1), ("lo", -1))
    ],
]  # fmt: skip
UPDATES = [
    refuse("momentum", "shapes", types=(T("i32", 2, f=16), T("i64", f=16))),
    refuse("momentum", "16 fraction bits", types=(T("i32", 2, f=15), T("i64", 2, f=16))),
    refuse("momentum", "align", {"shift": 1}),
    refuse("momentum", "align", types=(T("i32", 2, f=16), T("i64", 2, f=17))),
    exceed("momentum", "aligned gradient", (V(-1), G(0, BIG)), (V(-1), G(0, BIG - 1)), LEFT),
    exceed("momentum", "aligned gradient", (V(16), G(-BIG - 1, 0)), (V(16), G(-BIG, 0)), LEFT),
    exceed("momentum", "momentum and", (V(16), G(0, BIG - 1)), (V(15), G(0, BIG - 1)), ALL),
    exceed("momentum", "momentum and", (V(-1), G(-BIG, 0)), (V(0), G(-BIG, 0)), ALL),
    exceed("momentum", "the momentum", (V(-1, 15), G(BIG - 1)), (V(0, 15), G(BIG - 1)), ALL),
    exceed("momentum", "the momentum", (V(0, 1), G(-BIG)), (V(0), G(-BIG)), ALL),
    refuse("sgd_update", "shapes", types=(T("i32", 3, f=24), T("i32", 2, f=16), T("i64", f=8))),
    refuse("sgd_update", "shapes", types=(T("i32", 2, f=24), T("i32", 2, f=16), T("i64", 1, f=8))),
    refuse("sgd_update", "24 fraction bits",
           types=(T("i32", 2, f=23), T("i32", 2, f=16), T("i64", f=8))),
    refuse("sgd_update", "align", {"shift": 1}),
    refuse("sgd_update", "align", types=(T("i32", 2, f=24), T("i32", 2, f=17), T("i64", f=8)),
           near_types=(T("i32", 2, f=24), T("i32", 2, f=17), T("i64", f=7))),
    exceed("sgd_update", "momentum times", (W(0), V(0, I32), rate(64, 2**32 + 3)),
           (W(0), V(0, I32), rate(64, 2**32 + 2)), {"shift": 64}),
    exceed("sgd_update", "momentum times", (W(0), V(-(2**31), 0), rate(64, 2**32 + 1)),
           (W(0), V(-(2**31), 0), rate(64, 2**32)), {"shift": 64}),
    exceed("sgd_update", "the step", (W(0), V(0, 2**30), rate(-2, 2**31)),
           (W(0), V(0, 2**30), rate(-2, 2**31 - 1)), {"shift": -2}),
    exceed("sgd_update", "the step", (W(-5), V(-3, 0), rate(-2, (2**61 + 1) // 3)),
           (W(-5), V(-3, 0), rate(-2, 2**61 // 3)), {"shift": -2}),
    exceed("sgd_update", "updated weight", (W(0), V(-(2**31), 0), rate(0, 2**32)),
           (W(-1), V(-(2**31), 0), rate(0, 2**32)), {"shift": 0}),
    exceed("sgd_update", "updated weight", (W(-2), V(0, FACTOR), rate(0, (2**63 - 1) // FACTOR)),
           (W(-1), V(0, FACTOR), rate(0, (2**63 - 1) // FACTOR)), {"shift": 0}),
    refuse("schedule", "scalar", types=(T("i64", 1),)),
    refuse("schedule", "from step 0", {"starts": (0,)}),
    refuse("schedule", "from step 0", {"rates": (1,)}),
    refuse("schedule", "from step 0", {"starts": (), "rates": ()},
           near={"starts": (0,), "rates": (1,)}),
    refuse("schedule", "from step 0", {"starts": (1, 5)}),
    refuse("schedule", "from step 0", {"starts": (-1, 5)}),
    refuse("schedule", "increase", {"starts": (0, 0)}, near={"starts": (0, 1)}),
    refuse("schedule", "increase", {"starts": (0, 5, 4), "rates": (1, 2, 3)}),
    refuse("schedule", "starts after", {"starts": (0, 2**40 + 1)}, near={"starts": (0, 2**40)}),
    refuse("schedule", "16-bit", {"rates": (1, 65536)}, near={"rates": (1, 65535)}),
    refuse("schedule", "16-bit", {"rates": (65536, 1)}, near={"rates": (65535, 1)}),
    refuse("schedule", "16-bit", {"rates": (-1, 2)}, near={"rates": (0, 2)}),
    refuse("schedule_linear", "scalar", types=(T("i64", 1),)),
    refuse("schedule_linear", "from step 0", {"starts": (0,)}),
    refuse("schedule_linear", "from step 0", {"rates": (1,)}),
    refuse("schedule_linear", "from step 0", {"starts": (), "rates": ()},
           near={"starts": (0,), "rates": (1,)}),
    refuse("schedule_linear", "from step 0", {"starts": (1, 5)}),
    refuse("schedule_linear", "increase", {"starts": (0, 0)}, near={"starts": (0, 1)}),
    refuse("schedule_linear", "starts after", {"starts": (0, 2**40 + 1)},
           near={"starts": (0, 2**40)}),
    refuse("schedule_linear", "16-bit", {"rates": (1, 65536)}, near={"rates": (1, 65535)}),
    refuse("schedule_linear", "16-bit", {"rates": (-1, 2)}, near={"rates": (0, 2)}),
    exceed("capped_square", "aligned", (P("i64", 2, at=2**59),), (P("i64", 2, at=2**59 - 1),),
           {"shift": -4, "bits": 0}),
    exceed("capped_square", "aligned", (P("i64", 2, at=-(2**59) - 1),),
           (P("i64", 2, at=-(2**59)),), {"shift": -4, "bits": 0}),
    refuse("clip_factor", "scalar", types=(T("i64", 1, f=32),)),
    refuse("clip_factor", "even", types=(T("i64", f=31),)),
    refuse("scale_by", "scalar", types=(T("i64", 2), T("i64", 1, f=15))),
    exceed("scale_by", "product", (P("i64", 2, at=FACTOR), P("i64", at=(2**63 - 1) // FACTOR + 1)),
           (P("i64", 2, at=FACTOR), P("i64", at=(2**63 - 1) // FACTOR)), {"shift": 64}),
    exceed("scale_by", "product", (P("i64", 2, at=2**33), P("i64", at=-(2**30) - 1)),
           (P("i64", 2, at=2**33), P("i64", at=-(2**30))), {"shift": 64}),
    exceed("scale_by", "2^60", (P("i64", 2, at=2**50), P("i64", at=2**10)),
           (P("i64", 2, at=2**50), P("i64", at=2**10 - 1))),
    refuse("adam_mean", "shapes", types=(T("i32", 2, f=17), T("i16", 3, f=9))),
    refuse("adam_mean", "align", {"lift": 7}),
    refuse("adam_mean", "align", types=(T("i32", 2, f=17), T("i16", 2, f=10))),
    *[refuse(op, "more than 1", {"rate": 17}, near={"rate": 16})
      for op in ("adam_mean", "adam_square")],
    *[refuse(op, "more than 1", {"rate": 2, "shift": 0}, near={"rate": 1, "shift": 0})
      for op in ("adam_mean", "adam_square")],
    refuse("adam_square", "shapes", types=(T("i64", 2, f=34), T("i16", 3, f=9))),
    refuse("adam_square", "fraction bits", types=(T("i64", 2, f=33), T("i16", 2, f=9))),
    refuse("adam_square", "fraction bits", types=(T("i64", 2, f=34), T("i16", 2, f=8))),
    refuse("adam_square", "within", types=(T("i64", 2, f=34, lo=-1), T("i16", 2, f=9))),
    refuse("adam_square", "within", types=(T("i64", 2, f=34, hi=2**46 + 1), T("i16", 2, f=9)),
           near_types=(T("i64", 2, f=34, hi=2**46), T("i16", 2, f=9))),
    refuse("adam_direction", "shapes", types=(T("i32", 2, f=17), T("i64", f=34))),
    refuse("adam_direction", "negative", types=(T("i32", 2, f=17), T("i64", 2, f=34, lo=-1))),
    refuse("adam_direction", "even", types=(T("i32", 2, f=17), T("i64", 2, f=33))),
    refuse("adam_correction", "scalar", types=(T("i64", 1),)),
    refuse("adam_correction", "scalar", types=(T("i64", f=1),)),
    refuse("adam_correction", "within", types=(T("i64", lo=-1),)),
    refuse("adam_correction", "within", types=(T("i64", hi=2**40 + 1),),
           near_types=(T("i64", hi=2**40),)),
]  # fmt: skip
OTHERWISE = [
    refuse("matmul", "inner extents", types=(T("i16", 2, 3), T("i16", 2, 3)),
           near_types=(T("i16", 2, 3), T("i16", 3, 3)), claim=T("i64", 2, 3, hi=2)),
    refuse("column_sum", "last axis", types=(T("i64"),), claim=T("i64")),
    refuse("add_bias", "align", {"shift": 1}, claim=T("i64", 2, 3, f=-1)),
    refuse("add_bias", "last extent", types=(T("i64"), T("i32")), claim=T("i64", hi=2)),
    *[refuse(op, "align", {"shift_a": 1}, claim=T("i64", 2, lo=lo, hi=hi))
      for op, lo, hi in (("add", 0, 3), ("sub", -1, 2))],
    *[refuse(op, "align", {"shift_b": 1}, claim=T("i64", 2, f=1, lo=lo, hi=hi))
      for op, lo, hi in (("add", 0, 3), ("sub", -2, 1))],
    *[refuse(op, "shapes differ", types=(T("i16", 2), T("i16", 3)), claim=claim)
      for op, claim in (("add", T("i64", 3, hi=2)), ("sub", T("i64", 3, lo=-1)),
                        ("mul", T("i64", 3)), ("relu_grad", T("i16", 3)))],
    *[refuse(op, "shapes differ", types=(T("i16", 1), T("i16", 3)), claim=claim)
      for op, claim in (("add", T("i64", 3, hi=2)), ("sub", T("i64", 3, lo=-1)),
                        ("mul", T("i64", 3)), ("relu_grad", T("i16", 3)))],
    refuse("sub_one_hot", "14 fraction bits", types=(T("i16", 2, 3, f=13), LABELS),
           claim=T("i16", 2, 3, f=14, lo=-(2**14))),
    refuse("cross_entropy", "each row", types=(Z, T("i32", 3, f=10), SUMS, LABELS),
           claim=T("i64", 3, f=16, lo=-64 - 2**20, hi=64 + 2**22)),
    refuse("momentum", "16 fraction bits", types=(T("i32", 2, f=15), T("i64", 2, f=16)),
           claim=T("i32", 2, f=15, hi=2)),
    refuse("momentum", "shapes", types=(T("i32", f=16), T("i64", 2, f=16)),
           claim=T("i32", 2, f=16, hi=2)),
    refuse("sgd_update", "24 fraction bits",
           types=(T("i32", 2, f=23), T("i32", 2, f=16), T("i64", f=8)),
           claim=T("i32", 2, f=23, lo=-1)),
    refuse("sgd_update", "shapes", types=(T("i32", f=24), T("i32", 2, f=16), T("i64", f=8)),
           claim=T("i32", 2, f=24, lo=-1)),
]  # fmt: skip
"""Types that other derivations than the operators' own might come to."""
SHORT = T("u8", 31, hi=255)
HASHES = [
    refuse("batch_digest", "digests", types=(DIGEST, SHORT)),
    refuse("batch_digest", "digests", types=(SHORT, DIGEST)),
    refuse("batch_digest", "digests", types=(DIGEST, T("u8", 32, 1, hi=255))),
    refuse("state_leaf", "attribute dtype", {"dtype": "i16"}, near={"dtype": "i64"}),
    refuse("state_leaf", "empty axis", {"shape": (0,)}, near={"shape": ()}),
    refuse("state_leaf", "empty axis", {"shape": (-1,)}, near={"name": ""}),
    refuse("state_leaf", "axes", {"shape": (1,) * 9}, near={"shape": (1,) * 8}),
    refuse("state_leaf", "elements", {"shape": (2**16, 2**16 + 1)}, near={"shape": (2**16, 2**16)}),
    refuse("state_leaf", "needs a digest", types=(SHORT,)),
    refuse("state_leaf", "needs a digest", types=(T("u8", hi=255),)),
    refuse("state_root", "leaf hashes", types=(DIGEST, SHORT), near_types=()),
    refuse("state_root", "leaf hashes", types=(T("u8", 2, 16, hi=255),), near_types=(DIGEST,)),
    refuse("record", "digests", types=(T0, SHORT, T0, DIGEST)),
    refuse("record", "digests", types=(T0, DIGEST, T0, SHORT)),
    refuse("record", "scalars", types=(BATCH, DIGEST, T0, DIGEST)),
    refuse("record", "scalars", types=(T0, DIGEST, T("i64", 1), DIGEST)),
]


# --- bounds of attributes

Of = Callable[[int], tuple[AttrValue, Types]]
"""Of a number, the attribute's value and types of inputs that go with it."""


def alone(op: str) -> Of:
    return lambda value: (value, BASE[op][1])


def align(dtype: str, *others: TensorType, sign: int = 1, f: int = 0) -> Of:
    """Inputs of one value, 0: that of the exponent sign * value + f, then others."""
    return lambda value: (value, (P(dtype, 2, f=sign * value + f), *others))


BOUNDS: Sequence[tuple[str, str, int, int, Of]] = [
    ("state", "exponent", -512, 512, alone("state")),
    ("sample_index", "batch", 1, 2**20, alone("sample_index")),
    ("sample_index", "samples", 1, 2**40, alone("sample_index")),
    ("dropout_mask", "site", 0, 2**31 - 1, alone("dropout_mask")),
    ("dropout_mask", "keep", 1, 2**16 - 1, alone("dropout_mask")),
    ("dropout_mask", "value", 1, 2**15 - 1, alone("dropout_mask")),
    ("dropout_mask", "exponent", 0, 14, alone("dropout_mask")),
    ("gather_samples", "exponent", -64, 64, alone("gather_samples")),
    ("normalize", "shift", 0, 64, alone("normalize")),
    ("normalize", "offset", -(2**60), 2**60, alone("normalize")),
    ("normalize", "exponent", -64, 64, alone("normalize")),
    ("normalize", "multiplier", 1, 2**31, alone("normalize")),
    ("one_hot", "depth", 1, 2**20, alone("one_hot")),
    ("matmul", "transpose_a", 0, 1, alone("matmul")),
    ("scatter_add", "rows", 1, 2**32, lambda n: (n, (T("i64", 1, 1), T("u8", 1)))),
    ("batched_matmul", "transpose_a", 0, 1, alone("batched_matmul")),
    ("batched_matmul", "transpose_b", 0, 1, alone("batched_matmul")),
    ("causal_spans", "queries", 1, 2**31 - 1, alone("causal_spans")),
    ("causal_spans", "window", 1, 2**31 - 1, alone("causal_spans")),
    ("token_spans", "before", 1, 2**31 - 1, alone("token_spans")),
    ("token_spans", "after", 1, 2**31 - 1, alone("token_spans")),
    ("token_spans", "end_of_text", 0, 2**31, alone("token_spans")),
    ("token_spans", "padding", 0, 2**31, alone("token_spans")),
    ("keep_span", "fill", 1 - 2**60, 2**60 - 1, lambda n: (n, (T("i64", 4, 3), SPANS))),
    ("pad", "before", 0, 2**32 - 1, lambda n: (n, (T("i16", 1, 1),))),
    ("pad", "after", 0, 2**32 - 1, lambda n: (n, (T("i16", 1, 1),))),
    ("matmul", "transpose_b", 0, 1, alone("matmul")),
    ("add_bias", "shift", -62, 64, lambda s: (s, (P("i64", 2, f=-s), P("i32", 2)))),
    *[
        row
        for op in ("add", "sub")
        for row in (
            (op, "shift_a", 0, 62, align("i16", P("i16", 2), sign=-1)),
            (op, "shift_b", 0, 62, lambda s: (s, (P("i16", 2), P("i16", 2, f=-s)))),
        )
    ],
    ("rescale", "shift", -62, 64, align("i64")),
    ("rescale", "multiplier", 1, 65535, alone("rescale")),
    ("rescale", "multiplier_exponent", 0, 32, alone("rescale")),
    ("look_up", "shift", -40, 64, align("i16", f=10)),
    ("center", "shift", 0, 32, alone("center")),
    ("inverse_root", "epsilon", 1, 2**60, alone("inverse_root")),
    ("inverse_root", "lift", 0, 30, lambda lift: (lift, (P("i64", at=0),))),
    ("inverse_root", "numerator", 1, 2**62, lambda n: (n, (P("i64", at=99),))),
    ("inverse_root", "numerator_exponent", -64, 64, alone("inverse_root")),
    ("momentum", "decay", 0, 2**16, alone("momentum")),
    ("momentum", "shift", -62, 64, lambda s: (s, (V(0), P("i64", 2, f=16 + s)))),
    ("sgd_update", "shift", -62, 64, lambda s: (s, (W(0), V(0), rate(s, 0)))),
    ("schedule", "exponent", -64, 128, alone("schedule")),
    ("schedule_linear", "exponent", -64, 128, alone("schedule_linear")),
    ("capped_square", "bits", 0, 59, alone("capped_square")),
    ("capped_square", "shift", -62, 64, lambda s: (s, (P("i64", 2),))),
    ("clip_factor", "limit", 1, 2**31, alone("clip_factor")),
    ("scale_by", "shift", -62, 64, lambda s: (s, (P("i64", 2), P("i64", f=15)))),
    ("adam_mean", "lift", 0, 15, lambda s: (s, (P("i32", 2, f=9 + s), T("i16", 2, f=9)))),
    ("adam_mean", "shift", 0, 46, alone("adam_mean")),
    ("adam_square", "shift", 0, 46, alone("adam_square")),
    ("adam_direction", "epsilon", 1, 2**31, alone("adam_direction")),
    ("adam_direction", "shift", 0, 31, alone("adam_direction")),
    ("adam_correction", "beta1", 0, 2**31 - 1, alone("adam_correction")),
    ("adam_correction", "beta2", 0, 2**31 - 1, alone("adam_correction")),
    ("state_leaf", "exponent", -512, 512, alone("state_leaf")),
    ("record", "commit_every", 1, 2**40, alone("record")),
]  # fmt: skip


def refuse_beyond(op: str, name: str, least: int, most: int, of: Of) -> Iterator[Refusal]:
    for value, near in ((least - 1, least), (most + 1, most)):
        (bad, types), (good, near_types) = of(value), of(near)
        message = "exponent" if op == "state_leaf" else f"attribute {name}"
        yield refuse(op, message, {name: bad}, types, {name: good}, near_types)


def refuse_uneven(shift: int, near: int) -> Refusal:
    """Of a sum of squares, whose shifts are even."""
    types, near_types = (P("i16", f=8 + shift // 2),), (P("i16", f=8 + near // 2),)
    message = "attribute shift"
    return refuse("square_sum", message, {"shift": shift}, types, {"shift": near}, near_types)


def refuse_shares(op: str) -> Iterator[Refusal]:
    """Of a moving average: rates beyond their bounds, of a shift that allows the largest."""
    for value, near in ((-1, 0), (2**16 + 1, 2**16)):
        attrs, legal = ({"rate": rate, "shift": 46} for rate in (value, near))
        yield refuse(op, "attribute rate", attrs, None, legal)


# --- what every operator refuses


def refuse_attributes(op: str) -> Iterator[Refusal]:
    """None may be missing, none be more, and each is of its kind."""
    attrs, types = legal = BASE[op]

    def instead(changed: Attrs, message: str) -> Refusal:
        return Refusal(op, message, (changed, types), legal, GraphError)

    yield instead({**attrs, "more": 0}, "attributes must be")
    for name, value in attrs.items():
        left = {key: other for key, other in attrs.items() if key != name}
        yield instead(left, "attributes must be")
        other: AttrValue = b"w" if isinstance(value, str) else "x"
        if isinstance(value, bytes):
            other = (0,) * 8
        yield instead({**attrs, name: other}, "8 bytes" if name == "seed" else f"attribute {name}")
        if isinstance(value, int):
            yield instead({**attrs, name: (value,)}, f"attribute {name}")
        if isinstance(value, tuple):
            yield instead({**attrs, name: 1}, f"attribute {name}")


def find_message(op: str, attrs: Attrs, types: Types) -> str | None:
    try:
        TABLE[op].infer(attrs, types)
    except GraphError as error:
        return error.message
    return None


def find_dtypes() -> tuple[list[Refusal], list[tuple[str, Applied]]]:
    """Each operator with each input of each other dtype: what is refused, and what is legal."""
    refused, legal = [], []
    for op, (attrs, types) in BASE.items():
        for at, tensor in enumerate(types):
            for dtype in DTYPES:
                if dtype == tensor.dtype:
                    continue
                least, most = STORAGE[dtype]
                other = replace(tensor, dtype=dtype, lo=max(least, 0), hi=min(most, tensor.hi))
                changed = attrs, (*types[:at], other, *types[at + 1 :])
                message = find_message(op, *changed)
                if message is None:
                    legal.append((op, changed))
                else:
                    refused.append(Refusal(op, message, changed, BASE[op], GraphError))
    return refused, legal


def refuse_counts(op: str) -> Iterator[Refusal]:
    """One input too few, and one too many."""
    attrs, types = BASE[op]
    extra = types[-1] if types else T0
    for changed in (types[:-1], (*types, extra)):
        if op not in ("state_root", "concat") and changed != types:
            message = "needs" if extra == DIGEST and op != "next_state" else "inputs must be"
            yield Refusal(op, message, (attrs, changed), BASE[op], GraphError)


OF_DTYPES, LEGAL_DTYPES = find_dtypes()
REFUSALS = [
    *SHAPES,
    *SOURCES,
    *WINDOWS,
    *PRODUCTS,
    *SHIFTS,
    *LOSSES,
    *NORMS,
    *UPDATES,
    *OTHERWISE,
    *HASHES,
    *[refusal for row in BOUNDS for refusal in refuse_beyond(*row)],
    *[refusal for op in ("adam_mean", "adam_square") for refusal in refuse_shares(op)],
    refuse_uneven(-64, -62),
    refuse_uneven(66, 64),
    *[refusal for op in BASE for refusal in refuse_attributes(op)],
    *[refusal for op in BASE for refusal in refuse_counts(op)],
    *OF_DTYPES,
]
