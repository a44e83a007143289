"""What each operator refuses, and why, before any step runs: one case a reason."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from vtrain.errors import GraphError, RangeError
from vtrain.ops import TABLE
from vtrain.wire.graph import Attrs, TensorType


def T(  # noqa: N802 - a type, as it is written in the tables below
    dtype: str, *shape: int, f: int = 0, lo: int = 0, hi: int = 1
) -> TensorType:
    return TensorType(dtype, shape, f, lo, hi)


@dataclass(frozen=True)
class Refusal:
    op: str
    attrs: Attrs
    types: tuple[TensorType, ...]
    message: str
    error: type[GraphError] = GraphError


WINDOW: Attrs = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0)}
IMAGE = T("i16", 1, 4, 4, 1)
T0, BATCH = T("i64", hi=9), T("i64", 3, hi=9)
SEED = {"seed": bytes(8)}
GATHER: Attrs = {"part": "x", "dtype": "u8", "exponent": 0, "shape": (4,)}
STATE: Attrs = {"name": "w", "dtype": "i32", "shape": (2,), "exponent": 24}
RESCALE: Attrs = {"dtype": "i16", "multiplier": 1, "multiplier_exponent": 0, "shift": 0}
NORMALIZE: Attrs = {"multiplier": 1, "offset": 0, "shift": 0, "exponent": 0}
PLAIN: Attrs = {"transpose_a": 0, "transpose_b": 0}
ALIGNED: Attrs = {"shift_a": 0, "shift_b": 0}
SCHEDULE: Attrs = {"starts": (0, 5), "rates": (1, 2), "exponent": 0}
DIGEST = T("u8", 32, hi=255)
BIG = 2**59
I32, Z = 2**31 - 1, T("i32", 2, 3, f=10)

REFUSALS = [
    # --- shapes, exponents and ranges of any node
    Refusal("state", {**STATE, "shape": (2, 0)}, (), "empty axis"),
    Refusal("state", {**STATE, "shape": (-1,)}, (), "empty axis"),
    Refusal("state", {**STATE, "shape": (1,) * 9}, (), "axes"),
    Refusal("state", {**STATE, "shape": (2**16, 2**17)}, (), "elements"),
    Refusal("state", {**STATE, "shape": (2**63, 2**63)}, (), "elements"),
    Refusal("state", {**STATE, "name": ""}, (), "needs a name"),
    Refusal("state", {**STATE, "dtype": "i16"}, (), "attribute dtype"),
    Refusal("state", {**STATE, "exponent": 513}, (), "attribute exponent"),
    Refusal("next_state", {"name": ""}, (T0,), "needs a name"),
    Refusal("reshape", {"shape": (2, 4)}, (T("i16", 6),), "cannot reshape"),
    Refusal("reshape", {"shape": (-2, -3)}, (T("i16", 6),), "empty axis"),
    Refusal("reshape", {"shape": (1,) * 9}, (T("i16"),), "axes"),
    Refusal("transpose", {"perm": (0, 0)}, (T("i16", 2, 3),), "not a permutation"),
    Refusal("transpose", {"perm": (0,)}, (T("i16", 2, 3),), "2 integers"),
    # --- source
    Refusal("increment", {}, (T("i64", 1),), "integer scalar"),
    Refusal("increment", {}, (T("i64", f=1),), "integer scalar"),
    Refusal("increment", {}, (T("i64", lo=-1),), "stays within"),
    Refusal("increment", {}, (T("i64", hi=2**40 + 1),), "stays within"),
    Refusal("sample_index", {**SEED, "batch": 1, "samples": 9}, (BATCH,), "scalar"),
    Refusal("sample_index", {**SEED, "batch": 1, "samples": 9}, (T("i64", lo=-1),), "within"),
    Refusal("sample_index", {**SEED, "batch": 0, "samples": 9}, (T0,), "attribute batch"),
    Refusal("sample_index", {**SEED, "batch": 1, "samples": 0}, (T0,), "attribute samples"),
    Refusal("sample_index", {"seed": bytes(7), "batch": 1, "samples": 9}, (T0,), "8 bytes"),
    Refusal("gather_samples", {**GATHER, "part": "z"}, (BATCH,), "attribute part"),
    Refusal("gather_samples", {**GATHER, "dtype": "i64"}, (BATCH,), "attribute dtype"),
    Refusal("gather_samples", {**GATHER, "shape": (0,)}, (BATCH,), "empty axis"),
    Refusal("gather_samples", GATHER, (T("i64", 3, 1),), "vector"),
    Refusal("normalize", {**NORMALIZE, "multiplier": 0}, (T("u8", 2),), "attribute multiplier"),
    Refusal("normalize", {**NORMALIZE, "shift": -1}, (T("u8", 2),), "attribute shift"),
    Refusal(
        "normalize", {**NORMALIZE, "multiplier": 2**31}, (T("i64", hi=2**33),), "product",
        RangeError,
    ),
    Refusal(
        "normalize",
        {**NORMALIZE, "multiplier": 2**31, "offset": 2**60},
        (T("i64", hi=2**32 - 1),),
        "scaled sample",
        RangeError,
    ),
    Refusal(
        # The sum fits, but only after the product has gone beyond int64.
        "normalize",
        {**NORMALIZE, "multiplier": 2**31, "offset": -(2**60)},
        (T("i64", lo=2**32, hi=2**32),),
        "product",
        RangeError,
    ),
    Refusal("one_hot", {"depth": 4}, (T("u8", 3),), "tokens"),
    Refusal("one_hot", {"depth": 0}, (T("u8", 3, 1),), "attribute depth"),
    Refusal("one_hot", {"depth": 2**20}, (T("u8", 1, 2**13),), "elements"),
    # --- windows
    Refusal("im2col", WINDOW, (T("i16", 4, 4),), "NHWC"),
    Refusal("im2col", {**WINDOW, "kernel": (0, 2)}, (IMAGE,), "positive"),
    Refusal("im2col", {**WINDOW, "kernel": (2,)}, (IMAGE,), "2 integers"),
    Refusal("im2col", {**WINDOW, "strides": (1, 0)}, (IMAGE,), "positive"),
    Refusal("im2col", {**WINDOW, "pads": (-1, 0, 0, 0)}, (IMAGE,), "negative"),
    Refusal("im2col", {**WINDOW, "pads": (0, 0, 0, 2)}, (IMAGE,), "smaller than the kernel"),
    Refusal("im2col", {**WINDOW, "kernel": (5, 1)}, (IMAGE,), "larger than the padded"),
    Refusal("im2col", WINDOW, (T("i16", 1, 2**13, 2**14, 16),), "patches"),
    Refusal(
        "sum_pool",
        {"kernel": (2**17, 1), "strides": (1, 1), "pads": (2**17 - 1, 0, 0, 0)},
        (T("i16", 1, 1, 1, 1),),
        "a window has at most",
    ),
    Refusal(
        "max_pool",
        {"kernel": (2**16, 1), "strides": (2**16, 1), "pads": (2**16 - 1, 0, 0, 0)},
        (T("i16", 1, 1, 2**17, 1),),
        "padded image",
    ),
    Refusal("max_pool", WINDOW, (T("i16", 16),), "NHWC"),
    Refusal("max_pool_grad", WINDOW, (IMAGE, IMAGE), "gradient has shape"),
    Refusal("sum_pool_grad", {**WINDOW, "shape": (1, 4, 4, 1)}, (IMAGE,), "gradient has shape"),
    Refusal("sum_pool_grad", {**WINDOW, "shape": (1, 4, 4)}, (IMAGE,), "4 integers"),
    Refusal("sum_pool_grad", {**WINDOW, "shape": (1, -1, 4, 1)}, (IMAGE,), "empty axis"),
    Refusal("col2im", {**WINDOW, "shape": (1, 4, 4, 1)}, (T("i64", 9, 5),), "needs shape"),
    Refusal("col2im", {**WINDOW, "shape": (-1, 4, 4, -1)}, (T("i64", 9, 4),), "empty axis"),
    Refusal(
        "col2im", {**WINDOW, "shape": (1, 4, 4, 1)}, (T("i64", 9, 4, hi=2**58),), "2^60", RangeError
    ),
    # --- linear algebra
    Refusal("matmul", PLAIN, (T("i16", 2), T("i16", 2, 2)), "matrices"),
    Refusal("matmul", PLAIN, (T("i16", 2, 3), T("i16", 2, 3)), "inner extents"),
    Refusal("matmul", {**PLAIN, "transpose_b": 2}, (T("i16", 2, 3), T("i16", 2, 3)), "transpose_b"),
    Refusal("matmul", PLAIN, (T("i16", 1, 2**23 + 1), T("i16", 2**23 + 1, 1)), "longer"),
    Refusal("add_bias", {"shift": 65}, (T("i64", 2), T("i32", 2)), "attribute shift"),
    Refusal("add_bias", {"shift": 0}, (T("i64"), T("i32")), "last extent"),
    Refusal("add_bias", {"shift": 0}, (T("i64", 2, 3), T("i32", 2)), "last extent"),
    Refusal("add_bias", {"shift": 1}, (T("i64", 2), T("i32", 2)), "align"),
    Refusal(
        "add_bias",
        {"shift": -33},
        (T("i64", 2, f=33), T("i32", 2, hi=I32)),
        "aligned bias",
        RangeError,
    ),
    Refusal(
        "add_bias",
        {"shift": 0},
        (T("i64", 2, hi=2**60 - 1), T("i32", 2, hi=1)),
        "2^60",
        RangeError,
    ),
    Refusal("column_sum", {}, (T("i64"),), "last axis"),
    Refusal("column_sum", {}, (T("i64", 2, 1, hi=BIG),), "2^60", RangeError),
    Refusal("sum", {}, (T("i64", 2, lo=-BIG),), "2^60", RangeError),
    # --- exponents
    Refusal("rescale", {**RESCALE, "dtype": "u8"}, (T0,), "attribute dtype"),
    Refusal("rescale", {**RESCALE, "multiplier": 65536}, (T0,), "attribute multiplier"),
    Refusal("rescale", {**RESCALE, "shift": -63}, (T0,), "attribute shift"),
    Refusal("rescale", {**RESCALE, "multiplier": 16}, (T("i64", hi=BIG),), "product", RangeError),
    Refusal("rescale", {**RESCALE, "shift": -4}, (T("i64", hi=BIG),), "shifted", RangeError),
    Refusal("rescale", {**RESCALE, "dtype": "i64", "shift": -1}, (T("i64", hi=BIG),), "2^60",
            RangeError),
    Refusal("rescale", {**RESCALE, "shift": -10}, (T("i64", f=510),), "exponent"),
    Refusal("add", ALIGNED, (T("i16", 2), T("i16", 3)), "shapes differ"),
    Refusal("add", ALIGNED, (T("i16", f=1), T("i16")), "align"),
    Refusal("sub", {**ALIGNED, "shift_a": -1}, (T("i16"), T("i16")), "attribute shift_a"),
    Refusal("add", {"shift_a": 62, "shift_b": 0}, (T("i16", hi=2), T("i16", f=62)), "left operand",
            RangeError),
    Refusal("sub", {"shift_a": 0, "shift_b": 62}, (T("i16", f=62), T("i16", hi=2)), "right operand",
            RangeError),
    Refusal("add", ALIGNED, (T("i64", hi=BIG), T("i64", hi=BIG)), "2^60", RangeError),
    Refusal("sub", ALIGNED, (T("i64", hi=BIG), T("i64", lo=-BIG)), "2^60", RangeError),
    Refusal("relu_grad", {}, (T("i16", 2), T("i16", 3)), "shapes differ"),
    # --- softmax and losses
    Refusal("row_max", {}, (T("i32", 2),), "rows"),
    Refusal("row_sum", {}, (T("i32", 2),), "rows"),
    Refusal("row_sum", {}, (T("i32", 1, 2**30, hi=I32),), "2^60", RangeError),
    Refusal("exp2_diff", {}, (Z, T("i32", 3, f=10)), "maxima"),
    Refusal("exp2_diff", {}, (Z, T("i32", 2, f=9)), "10 fraction bits"),
    Refusal("divide", {}, (T("i32", 2, 3), T("i64", 3)), "sums"),
    Refusal("divide", {}, (T("i32", 2, 3), T("i64", 2, f=1)), "exponent"),
    Refusal("divide", {}, (T("i32", 2, 3, lo=-1), T("i64", 2)), "negative"),
    Refusal("sub_one_hot", {}, (T("i16", 2, 3, f=14), T("u8", 3)), "label"),
    Refusal("sub_one_hot", {}, (T("i16", 2, 3, f=13), T("u8", 2)), "14 fraction bits"),
    Refusal("sub_one_hot", {}, (T("i16", 2, 3, f=14, lo=-(2**14) - 1), T("u8", 2)), "i16",
            RangeError),
    Refusal("cross_entropy", {}, (T("i32", 2), T("i32", 2), T("i64", 2), T("u8", 2)), "rows"),
    Refusal("cross_entropy", {}, (Z, T("i32", 2), T("i64", 3), T("u8", 2)), "each row"),
    Refusal("cross_entropy", {}, (Z, T("i32", 2), T("i64", 2), T("u8", 2)), "exponents"),
    Refusal("square_sum", {"shift": 0}, (T("i16", 2),), "16 fraction bits"),
    Refusal("square_sum", {"shift": -16}, (T("i16", 2**32, lo=-(2**15)),), "squares", RangeError),
    Refusal("square_sum", {"shift": -62}, (T("i16", f=-23, hi=1),), "2^60", RangeError),
    # --- optimizer
    Refusal("momentum", {"decay": 65537, "shift": 0}, (T("i32", f=16), T("i64", f=16)), "decay"),
    Refusal("momentum", {"decay": 1, "shift": 0}, (T("i32", 2, f=16), T("i64", f=16)), "shapes"),
    Refusal("momentum", {"decay": 1, "shift": 0}, (T("i32"), T("i64", f=16)), "16 fraction bits"),
    Refusal("momentum", {"decay": 1, "shift": 1}, (T("i32", f=16), T("i64", f=16)), "align"),
    Refusal("momentum", {"decay": 1, "shift": -4},
            (T("i32", f=16), T("i64", f=12, hi=BIG)), "aligned gradient", RangeError),
    Refusal("momentum", {"decay": 0, "shift": -4},
            (T("i32", f=16, hi=I32), T("i64", f=12, hi=BIG - 1)), "momentum and", RangeError),
    Refusal("momentum", {"decay": 65536, "shift": -4},
            (T("i32", f=16, lo=-I32, hi=15), T("i64", f=12, hi=BIG - 1)), "the momentum",
            RangeError),
    Refusal("sgd_update", {"shift": 0}, (T("i32", 2, f=24), T("i32", 2), T("i64", 1)), "shapes"),
    Refusal("sgd_update", {"shift": 0}, (T("i32", f=23), T("i32"), T("i64")), "24 fraction bits"),
    Refusal("sgd_update", {"shift": 0}, (T("i32", f=24), T("i32", f=16), T("i64")), "align"),
    Refusal("sgd_update", {"shift": 0},
            (T("i32", f=24), T("i32", f=16, hi=I32), T("i64", f=8, hi=2**33)), "momentum times",
            RangeError),
    Refusal("sgd_update", {"shift": -2},
            (T("i32", f=24), T("i32", f=16, hi=I32), T("i64", f=6, hi=2**31)), "the step",
            RangeError),
    Refusal("sgd_update", {"shift": 0},
            (T("i32", f=24, hi=I32), T("i32", f=16, lo=-(2**31)), T("i64", f=8, hi=2**32)),
            "updated weight", RangeError),
    Refusal("schedule", SCHEDULE, (T("i64", 1),), "scalar"),
    Refusal("schedule", {**SCHEDULE, "starts": (0,)}, (T0,), "from step 0"),
    Refusal("schedule", {**SCHEDULE, "starts": (), "rates": ()}, (T0,), "from step 0"),
    Refusal("schedule", {**SCHEDULE, "starts": (1, 5)}, (T0,), "from step 0"),
    Refusal("schedule", {**SCHEDULE, "starts": (0, 0)}, (T0,), "increase"),
    Refusal("schedule", {**SCHEDULE, "starts": (0, 2**40 + 1)}, (T0,), "starts after"),
    Refusal("schedule", {**SCHEDULE, "rates": (1, 65536)}, (T0,), "16-bit"),
    Refusal("schedule", {**SCHEDULE, "rates": (-1, 2)}, (T0,), "16-bit"),
    # --- commitments
    Refusal("batch_digest", {}, (DIGEST, T("u8", 31)), "digests"),
    Refusal("state_leaf", {**STATE, "dtype": "i16"}, (DIGEST,), "attribute dtype"),
    Refusal("state_leaf", {**STATE, "shape": (-1,)}, (DIGEST,), "empty axis"),
    Refusal("state_leaf", {**STATE, "exponent": -513}, (DIGEST,), "exponent"),
    Refusal("state_root", {}, (T("i8", 32),), "leaf hashes"),
    Refusal("record", {"commit_every": 0}, (T0, DIGEST, T0, DIGEST), "commit_every"),
    Refusal("record", {"commit_every": 1}, (T0, T0, T0, DIGEST), "digests"),
    Refusal("record", {"commit_every": 1}, (BATCH, DIGEST, T0, DIGEST), "scalars"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS, ids=lambda r: f"{r.op}-{r.message}")
def test_refused(case: Refusal) -> None:
    with pytest.raises(GraphError) as caught:
        TABLE[case.op].infer(case.attrs, case.types)
    assert type(caught.value) is case.error
    assert case.message in caught.value.message


def test_the_largest_product_that_is_allowed() -> None:
    """Full int16 operands stay below 2^60 up to the longest sum there is."""
    k = 2**23
    wide = T("i16", 1, k, lo=-(2**15), hi=2**15 - 1)
    out = TABLE["matmul"].infer({**PLAIN, "transpose_b": 1}, (wide, wide))
    assert (out.lo, out.hi) == (-k * 2**15 * (2**15 - 1), k * 2**30)
    assert out.hi < 2**60


def test_every_kind_of_window_is_bounded_by_its_patches() -> None:
    """The largest window that is allowed costs no more memory than the largest tensor."""
    attrs: Attrs = {"kernel": (2**8, 2**8), "strides": (1, 1), "pads": (0, 0, 0, 0)}
    assert TABLE["sum_pool"].infer(attrs, (T("i16", 1, 2**8, 2**8, 2**16),)).size == 2**16
    with pytest.raises(GraphError, match="patches"):
        TABLE["sum_pool"].infer(attrs, (T("i16", 1, 2**9, 2**9, 2**9),))
