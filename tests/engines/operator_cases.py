"""Random nodes of every operator, with inputs of any value their dtypes hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tests.ops.windows import draw_window
from vtrain.ops import TABLE
from vtrain.spec.curves import CURVES
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.wire.graph import AttrValue, Node, Ref, TensorType, encode_node

Array = npt.NDArray[Any]
Attrs = dict[str, AttrValue]
DTYPES = tuple(NUMPY_DTYPES)
DTYPE_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
LARGE = 140_000
"""Elements that are enough for two threads: more take longer and show no more."""


@dataclass(frozen=True)
class Case:
    """A node by itself: operator, attributes, input arrays (bound ones last)."""

    op: str
    attrs: Attrs
    inputs: tuple[Array, ...]

    def expected(self) -> Array:
        """Output by the law, int64 arithmetic modulo 2^64."""
        with np.errstate(over="ignore"):
            return np.asarray(TABLE[self.op].law(self.attrs, list(self.inputs)))

    def encode(self, output: Array) -> bytes:
        """Canonical bytes of the node, claiming the type of ``output``."""
        dtype = DTYPE_NAMES[output.dtype.newbyteorder("<")]
        claim = TensorType(dtype, output.shape, 0, *STORAGE[dtype])
        bound = self.op in ("state", "gather_samples")
        refs = tuple(Ref(i) for i in range(len(self.inputs) - bound))
        return encode_node(Node("case", self.op, self.attrs, refs, (claim,)))


class Draw:
    """Draws numbers from hypothesis and fills arrays from a seed drawn from it."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self._rng = np.random.default_rng(self.number(0, 2**32))

    def number(self, lo: int, hi: int) -> int:
        return self._data.draw(st.integers(lo, hi))

    def one_of(self, *choices: Any) -> Any:
        return self._data.draw(st.sampled_from(choices))

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Small extents, or one large enough for two threads."""
        if rank is None:
            rank = self.number(0, 3)
        shape = [self.number(0, 5) for _ in range(rank)]
        if rank and self.number(0, 4) == 0:
            shape[0] = LARGE // max(1, int(np.prod(shape[1:])))
        return tuple(shape)

    def array(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """Uniform values, small ones, or the extremes with their neighbours."""
        lo, hi = STORAGE[dtype]
        style = self.number(0, 3)
        if style == 0:
            edges = [lo, lo + 1, max(lo, -1), 0, 1, hi - 1, hi]
            edges += [edge for edge in (-32768, -32640, -32639, 32639, 32640) if lo <= edge <= hi]
            values = self._rng.choice(np.array(edges, dtype=NUMPY_DTYPES[dtype]), shape)
            return np.asarray(values)
        if style == 1:
            lo, hi = max(lo, -9), min(hi, 9)
        if style == 2:
            # Magnitudes spread over all bit lengths.
            shift = self._rng.integers(0, NUMPY_DTYPES[dtype].itemsize * 8, shape)
            wide = self._rng.integers(lo, hi, shape, dtype=NUMPY_DTYPES[dtype], endpoint=True)
            return np.asarray(wide >> shift.astype(NUMPY_DTYPES[dtype]))
        values = self._rng.integers(lo, hi, shape, dtype=NUMPY_DTYPES[dtype], endpoint=True)
        return np.asarray(values)

    def any_array(self, shape: tuple[int, ...]) -> Array:
        return self.array(self.one_of(*DTYPES), shape)

    def window(self) -> tuple[tuple[int, int, int, int], Attrs, tuple[int, int]]:
        """An NHWC shape, window attributes that fit it, and the windows down and across."""
        window, (height, width) = draw_window(self.number, most=4, least=0, slack=6)
        batch = self.number(0, 4) if self.number(0, 4) else 300
        shape = (batch, height, width, self.number(0, 5))
        return shape, asdict(window), window.output_extent(height, width)


def _state(d: Draw) -> Case:
    value = d.array(d.one_of("i32", "i64"), d.shape())
    dtype = DTYPE_NAMES[value.dtype]
    attrs: Attrs = {"name": "w", "dtype": dtype, "exponent": 24, "shape": value.shape}
    return Case("state", attrs, (value,))


def _next_state(d: Draw) -> Case:
    return Case("next_state", {"name": "w"}, (d.any_array(d.shape()),))


def _increment(d: Draw) -> Case:
    t = d.one_of(0, 1, d.number(0, 2**40), 2**40, 2**40 + 5, -3)
    return Case("increment", {}, (np.asarray(t, np.int64),))


def _sample_index(d: Draw) -> Case:
    attrs: Attrs = {
        "batch": d.number(1, 40),
        "samples": d.one_of(1, 2, d.number(1, 100), d.number(1, 2**40)),
        "seed": d.number(0, 2**64 - 1).to_bytes(8, "little"),
    }
    return Case("sample_index", attrs, (np.asarray(d.number(0, 2**40), np.int64),))


def _dropout_mask(d: Draw) -> Case:
    attrs: Attrs = {
        "exponent": 14,
        "keep": d.one_of(1, 2**15, 2**16 - 1, d.number(1, 2**16 - 1)),
        "seed": d.number(0, 2**64 - 1).to_bytes(8, "little"),
        "shape": tuple(max(extent, 1) for extent in d.shape()),
        "site": d.one_of(0, 2**31 - 1, d.number(0, 2**31 - 1)),
        "value": d.number(1, 2**15 - 1),
    }
    t = d.one_of(0, d.number(0, 2**40), 2**32, 2**40, 2**40 + 5, -3, 2**63 - 1, -(2**63))
    return Case("dropout_mask", attrs, (np.asarray(t, np.int64),))


def _gather_samples(d: Draw) -> Case:
    shape = tuple(d.number(1, 4) for _ in range(d.number(0, 3)))
    samples = d.array(d.one_of("u8", "i8", "i16", "i32"), (d.number(1, 9), *shape))
    index = np.array([d.number(0, samples.shape[0] - 1) for _ in range(d.number(1, 6))], np.int64)
    dtype = DTYPE_NAMES[samples.dtype]
    attrs: Attrs = {"part": d.one_of("x", "y"), "dtype": dtype, "exponent": 0, "shape": shape}
    return Case("gather_samples", attrs, (index, samples))


def _normalize(d: Draw) -> Case:
    attrs: Attrs = {
        "multiplier": d.number(1, 2**31),
        "offset": d.number(-(2**60), 2**60),
        "shift": d.number(0, 64),
        "exponent": 3,
    }
    return Case("normalize", attrs, (d.any_array(d.shape()),))


def _one_hot(d: Draw) -> Case:
    depth = d.number(1, 300)
    shape = (d.number(1, 5), *(min(n, LARGE // depth) for n in d.shape(d.number(1, 2))))
    return Case("one_hot", {"depth": depth}, (d.any_array(shape),))


def _im2col(d: Draw) -> Case:
    shape, attrs, _ = d.window()
    return Case("im2col", attrs, (d.array("i16", shape),))


def _col2im(d: Draw) -> Case:
    shape, attrs, (rows, columns) = d.window()
    kernel = attrs["kernel"]
    assert isinstance(kernel, tuple)
    patches = (shape[0] * rows * columns, kernel[0] * kernel[1] * shape[3])
    return Case("col2im", {**attrs, "shape": shape}, (d.any_array(patches),))


def _reshape(d: Draw) -> Case:
    shape = d.shape()
    flat = (int(np.prod(shape)),)
    return Case("reshape", {"shape": d.one_of(flat, shape, (1, *shape))}, (d.any_array(shape),))


def _transpose(d: Draw) -> Case:
    x = d.any_array(d.shape(d.number(1, 4)))
    perm = tuple(d.one_of(*_permutations(x.ndim)))
    return Case("transpose", {"perm": perm}, (x,))


def _permutations(count: int) -> list[list[int]]:
    if count == 0:
        return [[]]
    return [
        [*rest[:at], count - 1, *rest[at:]]
        for rest in _permutations(count - 1)
        for at in range(count)
    ]


def _slice(d: Draw) -> Case:
    shape = list(d.shape(d.number(1, 4)))
    axis = d.number(0, len(shape) - 1)
    shape[axis] += 1
    start = d.number(0, shape[axis] - 1)
    attrs: Attrs = {"axis": axis, "start": start, "stop": d.number(start + 1, shape[axis])}
    return Case("slice", attrs, (d.any_array(tuple(shape)),))


def _pad(d: Draw) -> Case:
    shape = d.shape(d.number(1, 4))
    attrs: Attrs = {
        "axis": d.number(0, len(shape) - 1),
        "before": d.number(0, 4),
        "after": d.number(0, 4),
    }
    return Case("pad", attrs, (d.any_array(shape),))


def _concat(d: Draw) -> Case:
    shape = d.shape(d.number(1, 4))
    axis, dtype = d.number(0, len(shape) - 1), d.one_of(*DTYPES)
    parts = [
        d.array(dtype, (*shape[:axis], d.number(0, 5), *shape[axis + 1 :]))
        for _ in range(d.number(1, 4))
    ]
    return Case("concat", {"axis": axis}, (d.array(dtype, shape), *parts))


def _ids(d: Draw, count: int, rows: int) -> Array:
    """Numbers of rows, mostly of some that are there."""
    if d.number(0, 1):
        return d.any_array((count,))
    return np.array([d.number(-1, rows) for _ in range(count)], np.int32)


def _gather_rows(d: Draw) -> Case:
    rows, columns = d.number(1, 40), d.one_of(0, 1, d.number(1, 300))
    count = d.one_of(0, d.number(1, 20), 300)
    return Case("gather_rows", {}, (d.any_array((rows, columns)), _ids(d, count, rows)))


def _scatter_add(d: Draw) -> Case:
    rows, columns = d.one_of(1, d.number(1, 40), 500), d.one_of(0, 1, d.number(1, 300))
    x = d.any_array((d.one_of(0, d.number(1, 20), 300), columns))
    return Case("scatter_add", {"rows": rows}, (x, _ids(d, len(x), rows)))


def _matmul(d: Draw) -> Case:
    m, k, n = d.number(0, 40), d.one_of(0, 1, d.number(1, 40), d.number(1, 700)), d.number(0, 40)
    transpose_a, transpose_b = d.number(0, 1), d.number(0, 1)
    a = d.array("i16", (k, m) if transpose_a else (m, k))
    b = d.array("i16", (n, k) if transpose_b else (k, n))
    return Case("matmul", {"transpose_a": transpose_a, "transpose_b": transpose_b}, (a, b))


def _batched_matmul(d: Draw) -> Case:
    stack = d.one_of((d.number(0, 3),), (2, d.number(1, 3)), (d.number(1, 40),), (2, 1, 2))
    m, k, n = d.number(0, 24), d.one_of(0, 1, d.number(1, 40), d.number(1, 300)), d.number(0, 24)
    attrs: Attrs = {"transpose_a": d.number(0, 1), "transpose_b": d.number(0, 1)}
    a = d.array("i16", (*stack, *((k, m) if attrs["transpose_a"] else (m, k))))
    b = d.array("i16", (*stack, *((n, k) if attrs["transpose_b"] else (k, n))))
    return Case("batched_matmul", attrs, (a, b))


def _add_bias(d: Draw) -> Case:
    shape = d.shape(d.number(1, 3))
    inputs = (d.array("i64", shape), d.array("i32", shape[-1:]))
    return Case("add_bias", {"shift": d.number(-62, 64)}, inputs)


def _column_sum(d: Draw) -> Case:
    shape = (*d.shape(d.number(0, 2)), d.number(1, 5))
    return Case("column_sum", {}, (d.any_array(shape),))


def _rescale(d: Draw) -> Case:
    attrs: Attrs = {
        "dtype": d.one_of("i16", "i32", "i64"),
        "multiplier": d.one_of(1, d.number(1, 65535)),
        "multiplier_exponent": 0,
        "shift": d.number(-62, 64),
    }
    return Case("rescale", attrs, (d.any_array(d.shape()),))


def _add(d: Draw, op: str = "add") -> Case:
    shape = d.shape()
    attrs: Attrs = {"shift_a": d.number(0, 62), "shift_b": d.number(0, 62)}
    return Case(op, attrs, (d.any_array(shape), d.any_array(shape)))


def _sub(d: Draw) -> Case:
    return _add(d, "sub")


def _mul(d: Draw) -> Case:
    shape = d.shape()
    return Case("mul", {}, (d.any_array(shape), d.any_array(shape)))


def _relu(d: Draw) -> Case:
    return Case("relu", {}, (d.array("i16", d.shape()),))


def _relu_grad(d: Draw) -> Case:
    shape = d.shape()
    return Case("relu_grad", {}, (d.array("i16", shape), d.array("i16", shape)))


def _look_up(d: Draw) -> Case:
    attrs: Attrs = {"table": d.one_of(*CURVES), "shift": d.one_of(d.number(-2, 8), -40, 64)}
    return Case("look_up", attrs, (d.array("i16", d.shape()),))


def _max_pool(d: Draw, op: str = "max_pool") -> Case:
    shape, attrs, _ = d.window()
    return Case(op, attrs, (d.array("i16", shape),))


def _sum_pool(d: Draw) -> Case:
    return _max_pool(d, "sum_pool")


def _max_pool_grad(d: Draw) -> Case:
    shape, attrs, out = d.window()
    grad = d.array("i16", (shape[0], *out, shape[3]))
    return Case("max_pool_grad", attrs, (grad, d.array("i16", shape)))


def _sum_pool_grad(d: Draw) -> Case:
    shape, attrs, out = d.window()
    grad = d.any_array((shape[0], *out, shape[3]))
    return Case("sum_pool_grad", {**attrs, "shape": shape}, (grad,))


def _rows(d: Draw) -> tuple[int, int]:
    return d.one_of(d.number(0, 6), 5000), d.number(1, 12)


def _row_max(d: Draw, op: str = "row_max") -> Case:
    return Case(op, {}, (d.array("i32", _rows(d)),))


def _row_sum(d: Draw) -> Case:
    return _row_max(d, "row_sum")


def _exp2_diff(d: Draw) -> Case:
    z = d.array("i32", _rows(d))
    maximum = d.one_of(z.max(axis=1), d.array("i32", z.shape[:1]))
    return Case("exp2_diff", {}, (z, maximum))


def _divide(d: Draw) -> Case:
    e = d.array("i32", _rows(d))
    total = d.one_of(e.sum(axis=1, dtype=np.int64), d.array("i64", e.shape[:1]))
    return Case("divide", {}, (e, total))


def _sub_one_hot(d: Draw) -> Case:
    p = d.array("i16", _rows(d))
    return Case("sub_one_hot", {}, (p, d.any_array(p.shape[:1])))


def _logit_grad(d: Draw) -> Case:
    e = d.array("i32", _rows(d))
    total = d.one_of(e.sum(axis=1, dtype=np.int64), d.array("i64", e.shape[:1]))
    return Case("logit_grad", {}, (e, total, d.any_array(e.shape[:1])))


def _cross_entropy(d: Draw) -> Case:
    z = d.array("i32", _rows(d))
    rows = z.shape[:1]
    inputs = (z, d.array("i32", rows), d.array("i64", rows), d.any_array(rows))
    return Case("cross_entropy", {}, inputs)


def _square_sum(d: Draw) -> Case:
    return Case("square_sum", {"shift": d.number(-62, 64)}, (d.array("i16", d.shape()),))


def _sum(d: Draw) -> Case:
    return Case("sum", {}, (d.any_array(d.shape()),))


def _row_shape(d: Draw) -> tuple[int, ...]:
    columns = d.one_of(1, d.number(1, 12), 300)
    return (*(min(extent, LARGE // columns) for extent in d.shape(d.number(0, 2))), columns)


def _center(d: Draw) -> Case:
    return Case("center", {"shift": d.number(0, 32)}, (d.array("i16", _row_shape(d)),))


def _row_dot(d: Draw) -> Case:
    shape = _row_shape(d)
    narrow = ("u8", "i8", "i16", "i32")
    return Case("row_dot", {}, tuple(d.array(d.one_of(*narrow), shape) for _ in range(2)))


def _inverse_root(d: Draw) -> Case:
    attrs: Attrs = {
        "epsilon": d.one_of(1, d.number(1, 2**60)),
        "lift": d.number(0, 30),
        "numerator": d.one_of(1, 2**62, d.number(1, 2**62)),
        "numerator_exponent": 7,
    }
    return Case("inverse_root", attrs, (d.array("i64", d.shape()),))


def _row_scale(d: Draw) -> Case:
    shape = _row_shape(d)
    return Case("row_scale", {}, (d.any_array(shape), d.any_array(shape[:-1])))


def _column_scale(d: Draw) -> Case:
    shape = _row_shape(d)
    return Case("column_scale", {}, (d.any_array(shape), d.any_array(shape[-1:])))


def _momentum(d: Draw) -> Case:
    shape = d.shape()
    attrs: Attrs = {"decay": d.one_of(0, 65536, d.number(0, 65536)), "shift": d.number(-62, 64)}
    return Case("momentum", attrs, (d.array("i32", shape), d.array("i64", shape)))


def _sgd_update(d: Draw) -> Case:
    shape = d.shape()
    inputs = (d.array("i32", shape), d.array("i32", shape), d.array("i64", ()))
    return Case("sgd_update", {"shift": d.number(-62, 64)}, inputs)


def _schedule(d: Draw) -> Case:
    count = d.number(1, 5)
    starts = (0, *sorted(d.number(1, 100) for _ in range(count - 1)))
    rates = tuple(d.number(0, 65535) for _ in starts)
    attrs: Attrs = {"starts": starts, "rates": rates, "exponent": 20}
    return Case("schedule", attrs, (np.asarray(d.number(0, 120), np.int64),))


def _schedule_linear(d: Draw) -> Case:
    starts = (0, *sorted({d.number(1, 100) for _ in range(d.number(0, 4))}))
    rates = tuple(d.number(0, 65535) for _ in starts)
    attrs: Attrs = {"starts": starts, "rates": rates, "exponent": 20}
    t = d.one_of(d.number(-9, 120), d.number(-(2**63), 2**63 - 1))
    return Case("schedule_linear", attrs, (np.asarray(t, np.int64),))


def _sign(d: Draw) -> Case:
    return Case("sign", {}, (d.any_array(d.shape()),))


def _capped_square(d: Draw) -> Case:
    attrs: Attrs = {"bits": d.number(0, 59), "shift": d.number(-62, 64)}
    return Case("capped_square", attrs, (d.any_array(d.shape()),))


def _clip_factor(d: Draw) -> Case:
    total = np.asarray(d.number(-(2**63), 2**63 - 1) >> d.number(0, 62), np.int64)
    return Case("clip_factor", {"limit": d.one_of(1, d.number(1, 2**31))}, (total,))


def _scale_by(d: Draw) -> Case:
    return Case(
        "scale_by", {"shift": d.number(-62, 64)}, (d.any_array(d.shape()), d.array("i64", ()))
    )


def _share(d: Draw) -> Attrs:
    shift = d.number(0, 46)
    return {"rate": d.number(0, min(65536, 2**shift)), "shift": shift}


def _adam_mean(d: Draw) -> Case:
    shape = d.shape()
    attrs: Attrs = {**_share(d), "lift": d.number(0, 15)}
    return Case("adam_mean", attrs, (d.array("i32", shape), d.array("i16", shape)))


def _squares(d: Draw, shape: tuple[int, ...]) -> Array:
    """Second moments, of any size: where they are large alone, roots differ little."""
    values = d.array("i64", shape)
    return np.asarray(values >> np.int64(d.number(0, 60)))


def _adam_square(d: Draw) -> Case:
    shape = d.shape()
    return Case("adam_square", _share(d), (_squares(d, shape), d.array("i16", shape)))


def _adam_direction(d: Draw) -> Case:
    shape = d.shape()
    attrs: Attrs = {"epsilon": d.one_of(1, d.number(1, 2**31)), "shift": d.number(0, 31)}
    return Case("adam_direction", attrs, (d.array("i32", shape), _squares(d, shape)))


def _adam_correction(d: Draw) -> Case:
    attrs: Attrs = {"beta1": d.number(0, 2**31 - 1), "beta2": d.number(0, 2**31 - 1)}
    t = d.one_of(d.number(0, 300), d.number(-(2**63), 2**63 - 1))
    return Case("adam_correction", attrs, (np.asarray(t, np.int64),))


def _digest(d: Draw) -> Array:
    return d.array("u8", (32,))


def _tensor_digest(d: Draw) -> Case:
    return Case("tensor_digest", {}, (d.any_array(d.shape()),))


def _batch_digest(d: Draw) -> Case:
    return Case("batch_digest", {}, (_digest(d), _digest(d)))


def _state_leaf(d: Draw) -> Case:
    attrs: Attrs = {
        "name": d.one_of("w", "", "größe/β", "x" * 300),
        "dtype": d.one_of("i32", "i64"),
        "shape": d.shape(),
        "exponent": d.number(-512, 512),
    }
    return Case("state_leaf", attrs, (_digest(d),))


def _state_root(d: Draw) -> Case:
    return Case("state_root", {}, tuple(_digest(d) for _ in range(d.number(0, 9))))


def _record(d: Draw) -> Case:
    step, loss = np.asarray(d.number(1, 40), np.int64), d.array("i64", ())
    inputs = (step, _digest(d), loss, _digest(d))
    return Case("record", {"commit_every": d.number(1, 4)}, inputs)


def _causal_spans(d: Draw) -> Case:
    attrs: Attrs = {
        "queries": d.one_of(d.number(1, 40), 70_000),
        "window": d.one_of(2**31 - 1, d.number(1, 50)),
    }
    return Case("causal_spans", attrs, ())


def _token_spans(d: Draw) -> Case:
    shape = d.one_of(d.number(0, 5), 900), d.one_of(d.number(1, 9), 150)
    near = np.array([d.number(0, 3) for _ in range(8)], np.int32)
    ids = np.resize(near, shape).astype(NUMPY_DTYPES[d.one_of(*DTYPES)])
    attrs: Attrs = {
        "before": d.one_of(2**31 - 1, d.number(1, 9)),
        "after": d.one_of(1, 2**31 - 1, d.number(1, 9)),
        "end_of_text": d.one_of(2**31, d.number(0, 3)),
        "padding": d.one_of(2**31, d.number(0, 3)),
    }
    return Case("token_spans", attrs, (d.one_of(ids, ids, d.any_array(shape)),))


def _keep_span(d: Draw) -> Case:
    count, columns = d.number(1, 7), d.number(1, 9)
    x = d.any_array((count * d.one_of(d.number(0, 5), 4000), columns))
    lo, hi = (1 - 2**60, 2**60 - 1) if x.dtype == np.int64 else STORAGE[DTYPE_NAMES[x.dtype]]
    spans = np.stack([d.array("i32", (count,)), d.array("i32", (count,))], axis=1)
    near = np.array([[d.number(-1, 9), d.number(-1, 10)] for _ in range(count)], np.int32)
    attrs: Attrs = {"fill": d.one_of(lo, hi, 0, d.number(lo, hi))}
    return Case("keep_span", attrs, (x, d.one_of(spans, near)))


def _softmax_grad(d: Draw) -> Case:
    shape = (d.one_of(d.number(0, 6), 3000), d.number(1, 40))
    return Case("softmax_grad", {}, (d.array("i16", shape), d.array("i16", shape)))


CASES: dict[str, Callable[[Draw], Case]] = {
    "state": _state,
    "next_state": _next_state,
    "increment": _increment,
    "sample_index": _sample_index,
    "dropout_mask": _dropout_mask,
    "gather_samples": _gather_samples,
    "normalize": _normalize,
    "one_hot": _one_hot,
    "im2col": _im2col,
    "col2im": _col2im,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "gather_rows": _gather_rows,
    "scatter_add": _scatter_add,
    "matmul": _matmul,
    "batched_matmul": _batched_matmul,
    "add_bias": _add_bias,
    "column_sum": _column_sum,
    "rescale": _rescale,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "relu": _relu,
    "relu_grad": _relu_grad,
    "look_up": _look_up,
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool_grad,
    "sum_pool": _sum_pool,
    "sum_pool_grad": _sum_pool_grad,
    "row_max": _row_max,
    "exp2_diff": _exp2_diff,
    "row_sum": _row_sum,
    "divide": _divide,
    "causal_spans": _causal_spans,
    "token_spans": _token_spans,
    "keep_span": _keep_span,
    "softmax_grad": _softmax_grad,
    "sub_one_hot": _sub_one_hot,
    "logit_grad": _logit_grad,
    "cross_entropy": _cross_entropy,
    "square_sum": _square_sum,
    "sum": _sum,
    "center": _center,
    "row_dot": _row_dot,
    "inverse_root": _inverse_root,
    "row_scale": _row_scale,
    "column_scale": _column_scale,
    "momentum": _momentum,
    "sgd_update": _sgd_update,
    "schedule": _schedule,
    "schedule_linear": _schedule_linear,
    "sign": _sign,
    "capped_square": _capped_square,
    "clip_factor": _clip_factor,
    "scale_by": _scale_by,
    "adam_mean": _adam_mean,
    "adam_square": _adam_square,
    "adam_direction": _adam_direction,
    "adam_correction": _adam_correction,
    "tensor_digest": _tensor_digest,
    "batch_digest": _batch_digest,
    "state_leaf": _state_leaf,
    "state_root": _state_root,
    "record": _record,
}
"""How to draw a case of each operator."""
