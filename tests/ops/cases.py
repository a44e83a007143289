"""Typed cases of every operator: attributes, input types with ranges, and values within them.

``CASES[op](draw)`` draws what the operator's ``infer`` accepts, up to ranges that it may refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tests.ops.windows import draw_window
from vtrain.ops import TABLE
from vtrain.ops.layout import Window
from vtrain.spec.curves import CURVES
from vtrain.spec.number import NUMPY_DTYPES, SATURATION, STORAGE
from vtrain.wire.graph import AttrValue, TensorType

Array = npt.NDArray[Any]
Attrs = dict[str, AttrValue]
DIGEST = TensorType("u8", (32,), 0, 0, 255)
BOUND = ("state", "gather_samples")
"""Operators whose law takes one array more than the node has inputs: what an engine binds."""


@dataclass(frozen=True)
class Case:
    """``arrays`` are values of ``types``, and after them the array that an engine binds."""

    attrs: Attrs
    types: tuple[TensorType, ...]
    arrays: tuple[Array, ...]


class Draw:
    """Numbers from hypothesis; arrays from a generator that it seeds."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self._rng = np.random.default_rng(self.integer(0, 2**32))

    def integer(self, lo: int, hi: int) -> int:
        return self._data.draw(st.integers(lo, hi))

    def one_of(self, *choices: Any) -> Any:
        return self._data.draw(st.sampled_from(choices))

    def shape(self, rank: int | None = None, most: int = 4) -> tuple[int, ...]:
        rank = self.integer(0, 3) if rank is None else rank
        return tuple(self.integer(1, most) for _ in range(rank))

    def interval(self, lo: int, hi: int) -> tuple[int, int]:
        """The whole of [lo, hi], a part of it, or a single value."""
        if self.integer(0, 2) == 0:
            return lo, hi
        low, high = sorted((self.integer(lo, hi), self.integer(lo, hi)))
        return low, high

    def tensor(
        self,
        dtype: str,
        shape: Sequence[int],
        *,
        exponent: int = 0,
        lo: int | None = None,
        hi: int | None = None,
    ) -> TensorType:
        """A type with a random range inside [lo, hi], by default all that a node can put out."""
        least, most = (1 - 2**60, 2**60 - 1) if dtype == "i64" else STORAGE[dtype]
        low, high = self.interval(least if lo is None else lo, most if hi is None else hi)
        return TensorType(dtype, tuple(shape), exponent, low, high)

    def any_type(self, shape: Sequence[int], *, exponent: int = 0, bits: int = 60) -> TensorType:
        """Of any dtype, int64 of at most so many bits."""
        dtype = self.one_of(*NUMPY_DTYPES)
        if dtype == "i64":
            return self.tensor(dtype, shape, exponent=exponent, lo=1 - 2**bits, hi=2**bits - 1)
        return self.tensor(dtype, shape, exponent=exponent)

    def values(self, tensor: TensorType) -> Array:
        """Random elements in the range of ``tensor``, its ends and its middle among them."""
        lo, hi = tensor.lo, tensor.hi
        values = self._rng.integers(lo, hi, tensor.shape, np.int64, endpoint=True)
        style = self.integer(0, 3)
        if style == 0:
            values = self._rng.choice(np.array([lo, hi]), tensor.shape)
        elif style == 1:
            middle = [v for v in (-1, 0, 1, lo, hi, lo + 1, hi - 1) if lo <= v <= hi]
            values = self._rng.choice(np.array(middle), tensor.shape)
        elif style == 2:
            values = np.clip(values >> self._rng.integers(0, 60, tensor.shape), lo, hi)
        return np.asarray(values, dtype=NUMPY_DTYPES[tensor.dtype])

    def case(self, attrs: Attrs, *types: TensorType) -> Case:
        return Case(attrs, types, tuple(self.values(tensor) for tensor in types))

    def window(self) -> tuple[tuple[int, int, int, int], Attrs, tuple[int, int, int, int]]:
        """The shape of an image, attributes of a window on it, and the pooled shape."""
        window, (height, width) = draw_window(self.integer, most=3, least=1, slack=3)
        image = (self.integer(1, 2), height, width, self.integer(1, 2))
        return image, asdict(window), window.pooled_shape(image)


# --- source


def _state(d: Draw) -> Case:
    dtype, shape = d.one_of("i32", "i64"), d.shape()
    name = d.one_of("w", "square/w", "squares")
    attrs: Attrs = {"name": name, "dtype": dtype, "exponent": d.integer(-512, 512), "shape": shape}
    lo, hi = SATURATION["i32"] if dtype == "i32" else (0, 2**46 if name == "square/w" else 2**40)
    return Case(attrs, (), (d.values(TensorType(dtype, shape, 0, lo, hi)),))


def _next_state(d: Draw) -> Case:
    return d.case({"name": "w"}, d.any_type(d.shape()))


def _counter(d: Draw) -> TensorType:
    return d.tensor("i64", (), lo=0, hi=2**40)


def _increment(d: Draw) -> Case:
    return d.case({}, _counter(d))


def _sample_index(d: Draw) -> Case:
    attrs: Attrs = {
        "batch": d.integer(1, 6),
        "samples": d.one_of(1, 2, d.integer(1, 100), d.integer(1, 2**40)),
        "seed": d.integer(0, 2**64 - 1).to_bytes(8, "little"),
    }
    return d.case(attrs, _counter(d))


def _dropout_mask(d: Draw) -> Case:
    attrs: Attrs = {
        "exponent": d.integer(0, 14),
        "keep": d.one_of(1, 2**15, 2**16 - 1, d.integer(1, 2**16 - 1)),
        "seed": d.integer(0, 2**64 - 1).to_bytes(8, "little"),
        "shape": d.shape(d.integer(0, 3), 9),
        "site": d.one_of(0, 1, 2**31 - 1, d.integer(0, 2**31 - 1)),
        "value": d.one_of(1, 2**15 - 1, d.integer(1, 2**15 - 1)),
    }
    return d.case(attrs, _counter(d))


def _gather_samples(d: Draw) -> Case:
    dtype, shape, count = (
        d.one_of("u8", "i8", "i16", "i32"),
        d.shape(d.integer(0, 2)),
        d.integer(1, 5),
    )
    index = TensorType("i64", (d.integer(1, 4),), 0, 0, count - 1)
    samples = TensorType(dtype, (count, *shape), 0, *STORAGE[dtype])
    attrs: Attrs = {
        "part": d.one_of("x", "y"),
        "dtype": dtype,
        "exponent": d.integer(-64, 64),
        "shape": shape,
    }
    return Case(attrs, (index,), (d.values(index), d.values(samples)))


def _normalize(d: Draw) -> Case:
    attrs: Attrs = {
        "multiplier": d.one_of(1, 2**31, d.integer(1, 2**31)),
        "offset": d.one_of(0, d.integer(-(2**60), 2**60)),
        "shift": d.integer(0, 64),
        "exponent": d.integer(-64, 64),
    }
    return d.case(attrs, d.any_type(d.shape(), bits=31))


def _one_hot(d: Draw) -> Case:
    shape = (d.integer(1, 3), *d.shape(d.integer(1, 2), 3))
    depth = d.integer(1, 9)
    lo = d.one_of(0, 0, -3)
    x = d.tensor(d.one_of("i16", "i32", "i64"), shape, lo=lo, hi=depth + 2)
    return d.case({"depth": depth}, x)


# --- layout and pooling


def _im2col(d: Draw, op_dtype: str = "i16") -> Case:
    image, attrs, _ = d.window()
    return d.case(attrs, d.tensor(op_dtype, image, exponent=d.integer(-9, 9)))


def _col2im(d: Draw) -> Case:
    image, attrs, (batch, rows, columns, channels) = d.window()
    area = Window.from_attrs(attrs).area
    patches = d.any_type((batch * rows * columns, area * channels), bits=56)
    return d.case({**attrs, "shape": image}, patches)


def _reshape(d: Draw) -> Case:
    shape = d.shape()
    size = int(np.prod(shape))
    return d.case({"shape": d.one_of((size,), (1, *shape), shape[::-1])}, d.any_type(shape))


def _transpose(d: Draw) -> Case:
    shape = d.shape()
    perm = d.one_of(tuple(range(len(shape))), tuple(reversed(range(len(shape)))))
    return d.case({"perm": perm[1:] + perm[:1]}, d.any_type(shape))


def _slice(d: Draw) -> Case:
    shape = d.shape(d.integer(1, 4))
    axis = d.integer(0, len(shape) - 1)
    start = d.integer(0, shape[axis] - 1)
    attrs: Attrs = {"axis": axis, "start": start, "stop": d.integer(start + 1, shape[axis])}
    return d.case(attrs, d.any_type(shape))


def _pad(d: Draw) -> Case:
    shape = d.shape(d.integer(1, 4))
    attrs: Attrs = {
        "axis": d.integer(0, len(shape) - 1),
        "before": d.integer(0, 3),
        "after": d.integer(0, 3),
    }
    return d.case(attrs, d.any_type(shape))


def _concat(d: Draw) -> Case:
    shape = d.shape(d.integer(1, 4))
    axis = d.integer(0, len(shape) - 1)
    first = d.any_type(shape, exponent=d.integer(-9, 9))
    parts = [first]
    for _ in range(d.integer(1, 3)):
        extents = (*shape[:axis], d.integer(1, 3), *shape[axis + 1 :])
        parts.append(d.tensor(first.dtype, extents, exponent=first.exponent))
    return d.case({"axis": axis}, *parts)


def _gather_rows(d: Draw) -> Case:
    return d.case({}, d.any_type(d.shape(2)), d.any_type(d.shape(1), bits=d.one_of(2, 60)))


def _scatter_add(d: Draw) -> Case:
    x = d.any_type(d.shape(2), bits=d.one_of(2, 50))
    ids = d.any_type(x.shape[:1], bits=d.one_of(2, 60))
    return d.case({"rows": d.integer(1, 5)}, x, ids)


def _max_pool_grad(d: Draw) -> Case:
    image, attrs, pooled = d.window()
    # Operands are saturated: -32768 is what padding counts as.
    x = d.tensor("i16", image, lo=d.one_of(-32767, -1), hi=d.one_of(32767, 0))
    return d.case(attrs, d.tensor("i16", pooled), x)


def _max_pool(d: Draw) -> Case:
    image, attrs, _ = d.window()
    return d.case(attrs, d.tensor("i16", image, lo=-32767))


def _sum_pool_grad(d: Draw) -> Case:
    image, attrs, pooled = d.window()
    return d.case({**attrs, "shape": image}, d.any_type(pooled, bits=56))


# --- linear algebra and exponents


def _matmul(d: Draw) -> Case:
    m, k, n = d.shape(3, 5)
    transpose_a, transpose_b = d.integer(0, 1), d.integer(0, 1)
    a = d.tensor("i16", (k, m) if transpose_a else (m, k), exponent=d.integer(-9, 9))
    b = d.tensor("i16", (n, k) if transpose_b else (k, n), exponent=d.integer(-9, 9))
    return d.case({"transpose_a": transpose_a, "transpose_b": transpose_b}, a, b)


def _batched_matmul(d: Draw) -> Case:
    stack, (m, k, n) = d.shape(d.integer(1, 2), 3), d.shape(3, 4)
    transpose_a, transpose_b = d.integer(0, 1), d.integer(0, 1)
    form_a, form_b = (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)
    a = d.tensor("i16", (*stack, *form_a), exponent=d.integer(-9, 9))
    b = d.tensor("i16", (*stack, *form_b), exponent=d.integer(-9, 9))
    return d.case({"transpose_a": transpose_a, "transpose_b": transpose_b}, a, b)


def _add_bias(d: Draw) -> Case:
    shift, shape = d.integer(-28, 64), d.shape(d.integer(1, 3))
    acc = d.tensor("i64", shape, exponent=-shift, lo=-(2**59), hi=2**59 - 1)
    return d.case({"shift": shift}, acc, d.tensor("i32", shape[-1:]))


def _column_sum(d: Draw) -> Case:
    return d.case({}, d.any_type(d.shape(d.integer(1, 3)), bits=55))


def _rescale(d: Draw) -> Case:
    attrs: Attrs = {
        "dtype": d.one_of("i16", "i32", "i64"),
        "multiplier": d.one_of(1, 1, 65535, d.integer(1, 65535)),
        "multiplier_exponent": d.integer(0, 32),
        "shift": d.one_of(d.integer(-20, 20), d.integer(0, 64)),
    }
    return d.case(attrs, d.any_type(d.shape(), exponent=d.integer(-9, 9), bits=d.one_of(40, 60)))


def _add(d: Draw) -> Case:
    shape, shift_a, shift_b = d.shape(), d.integer(0, 24), d.integer(0, 24)
    a = d.any_type(shape, exponent=shift_b, bits=34)
    b = d.any_type(shape, exponent=shift_a, bits=34)
    return d.case({"shift_a": shift_a, "shift_b": shift_b}, a, b)


def _mul(d: Draw) -> Case:
    shape = d.shape()
    a = d.any_type(shape, exponent=d.integer(-9, 9), bits=32)
    return d.case({}, a, d.any_type(shape, exponent=d.integer(-9, 9), bits=28))


def _relu(d: Draw) -> Case:
    return d.case({}, d.tensor("i16", d.shape()))


def _relu_grad(d: Draw) -> Case:
    shape = d.shape()
    return d.case({}, d.tensor("i16", shape), d.tensor("i16", shape, lo=-2, hi=d.one_of(2, 32767)))


def _look_up(d: Draw) -> Case:
    name, shift = d.one_of(*CURVES), d.integer(-40, 64)
    x = d.tensor("i16", d.shape(), exponent=shift + CURVES[name].grid)
    return d.case({"table": name, "shift": shift}, x)


# --- softmax and losses


def _logits(d: Draw) -> TensorType:
    spread = d.one_of(2**11, 2**15, 2**31 - 1)
    return d.tensor("i32", d.shape(2, 5), exponent=10, lo=-spread, hi=spread)


def _row_max(d: Draw) -> Case:
    return d.case({}, _logits(d))


def _exp2_diff(d: Draw) -> Case:
    z = _logits(d)
    values = d.values(z)
    if d.integer(0, 3) == 0:
        maximum = d.tensor("i32", z.shape[:1], exponent=10)
        return Case({}, (z, maximum), (values, d.values(maximum)))
    maximum = TABLE["row_max"].infer({}, [z])
    return Case({}, (z, maximum), (values, values.max(axis=1)))


def _exponentials(d: Draw) -> tuple[tuple[TensorType, TensorType], tuple[Array, Array]]:
    e = d.tensor("i32", d.shape(2, 5), exponent=16, lo=0, hi=d.one_of(2, 2**16, 2**31 - 1))
    values = d.values(e)
    return (e, TABLE["row_sum"].infer({}, [e])), (values, values.sum(axis=1, dtype=np.int64))


def _divide(d: Draw) -> Case:
    return Case({}, *_exponentials(d))


def _sub_one_hot(d: Draw) -> Case:
    p = d.tensor("i16", d.shape(2), exponent=14, lo=-(2**14), hi=d.one_of(2**14, 32767))
    return d.case({}, p, d.any_type(p.shape[:1], bits=d.one_of(2, 60)))


def _logit_grad(d: Draw) -> Case:
    types, values = _exponentials(d)
    labels = d.any_type(types[0].shape[:1], bits=d.one_of(2, 60))
    return Case({}, (*types, labels), (*values, d.values(labels)))


def _cross_entropy(d: Draw) -> Case:
    z = _logits(d)
    total = d.tensor("i64", z.shape[:1], exponent=16, lo=-5)
    labels = d.any_type(z.shape[:1], bits=d.one_of(2, 60))
    values = d.values(z)
    types = (z, TABLE["row_max"].infer({}, [z]), total, labels)
    return Case({}, types, (values, values.max(axis=1), d.values(total), d.values(labels)))


def _square_sum(d: Draw) -> Case:
    exponent = d.integer(-3, 40)
    x = d.tensor("i16", d.shape(), exponent=exponent)
    return d.case({"shift": 2 * exponent - 16}, x)


def _sum(d: Draw) -> Case:
    return d.case({}, d.any_type(d.shape(), bits=54))


# --- norms


def _center(d: Draw) -> Case:
    shape = d.shape(d.integer(1, 3), 5)
    x = d.tensor("i16", shape, exponent=d.integer(-9, 9))
    return d.case({"shift": d.one_of(0, d.integer(0, 32))}, x)


def _row_dot(d: Draw) -> Case:
    shape = d.shape(d.integer(1, 3), 5)
    a, b = (
        d.tensor(d.one_of("u8", "i8", "i16", "i32"), shape, exponent=d.integer(-9, 9))
        for _ in range(2)
    )
    return d.case({}, a, b)


def _inverse_root(d: Draw) -> Case:
    lift = d.integer(0, 30)
    attrs: Attrs = {
        "epsilon": d.one_of(1, d.integer(1, 2**10)),
        "lift": lift,
        "numerator": d.one_of(1, d.integer(1, 2**60 - 1), 2 ** d.integer(20, 58)),
        "numerator_exponent": d.integer(-64, 64),
    }
    hi = (2**62 - 1 >> 2 * lift) - 2**10
    exponent = 2 * d.integer(-9, 9)
    return d.case(attrs, d.tensor("i64", d.shape(), exponent=exponent, lo=-5, hi=max(hi, 0)))


def _row_scale(d: Draw) -> Case:
    shape = d.shape(d.integer(1, 3))
    x = d.any_type(shape, exponent=d.integer(-9, 9), bits=28)
    return d.case({}, x, d.any_type(shape[:-1], exponent=d.integer(-9, 9), bits=28))


def _column_scale(d: Draw) -> Case:
    shape = d.shape(d.integer(1, 3))
    x = d.any_type(shape, exponent=d.integer(-9, 9), bits=28)
    return d.case({}, x, d.any_type(shape[-1:], exponent=d.integer(-9, 9), bits=28))


# --- optimizer


def _momentum(d: Draw) -> Case:
    shape, shift = d.shape(), d.integer(-20, 64)
    bits = min(59, 60 + min(0, shift))
    grad = d.tensor("i64", shape, exponent=16 + shift, lo=-(2**bits), hi=2**bits)
    velocity = d.tensor("i32", shape, exponent=16, lo=1 - 2**31)
    attrs: Attrs = {"decay": d.one_of(0, 65536, d.integer(0, 65536)), "shift": shift}
    return d.case(attrs, velocity, grad)


def _sgd_update(d: Draw) -> Case:
    shape, shift = d.shape(), d.integer(-8, 64)
    weight = d.tensor("i32", shape, exponent=24, lo=1 - 2**31)
    velocity = d.tensor("i32", shape, exponent=16, lo=1 - 2**31)
    rate = d.tensor("i64", (), exponent=8 + shift, lo=0, hi=65535)
    return d.case({"shift": shift}, weight, velocity, rate)


def _schedule(d: Draw) -> Case:
    starts = (0, *sorted({d.integer(1, 40) for _ in range(d.integer(0, 4))}))
    attrs: Attrs = {
        "starts": starts,
        "rates": tuple(d.integer(0, 65535) for _ in starts),
        "exponent": d.integer(-64, 128),
    }
    return d.case(attrs, d.tensor("i64", (), lo=d.one_of(0, -(2**59)), hi=d.one_of(50, 2**59)))


def _sign(d: Draw) -> Case:
    return d.case({}, d.any_type(d.shape()))


def _capped_square(d: Draw) -> Case:
    shift = d.integer(-20, 64)
    x = d.any_type(d.shape(), exponent=d.integer(-30, 60), bits=60 + min(shift, 0))
    return d.case({"bits": d.one_of(0, 59, d.integer(0, 59)), "shift": shift}, x)


def _clip_factor(d: Draw) -> Case:
    total = d.tensor("i64", (), exponent=2 * d.integer(-9, 30), lo=0)
    return d.case({"limit": d.one_of(1, 2**31, d.integer(1, 2**31))}, total)


def _scale_by(d: Draw) -> Case:
    x, shift = d.any_type(d.shape(), bits=44), d.integer(-2, 64)
    return d.case({"shift": shift}, x, d.tensor("i64", (), exponent=15, lo=0, hi=2**15))


def _share(d: Draw) -> Attrs:
    """How much of the new a moving average takes."""
    shift = d.integer(0, 46)
    return {
        "rate": d.one_of(0, min(65536, 2**shift), d.integer(0, min(65536, 2**shift))),
        "shift": shift,
    }


def _adam_mean(d: Draw) -> Case:
    shape, lift, exponent = d.shape(), d.integer(0, 15), d.integer(-20, 40)
    mean = d.tensor("i32", shape, exponent=exponent + lift)
    return d.case({**_share(d), "lift": lift}, mean, d.tensor("i16", shape, exponent=exponent))


def _adam_square(d: Draw) -> Case:
    shape, exponent = d.shape(), d.integer(-20, 40)
    square = d.tensor("i64", shape, exponent=2 * exponent + 16, lo=0, hi=2**46)
    return d.case(_share(d), square, d.tensor("i16", shape, exponent=exponent))


def _adam_direction(d: Draw) -> Case:
    shape = d.shape()
    attrs: Attrs = {"epsilon": d.one_of(1, d.integer(1, 2**31)), "shift": d.integer(0, 31)}
    mean = d.tensor("i32", shape, exponent=d.integer(-20, 40))
    return d.case(attrs, mean, d.tensor("i64", shape, exponent=2 * d.integer(-9, 30), lo=0))


def _adam_correction(d: Draw) -> Case:
    attrs: Attrs = {"beta1": d.integer(0, 2**31 - 1), "beta2": d.integer(0, 2**31 - 1)}
    return d.case(attrs, d.tensor("i64", (), lo=0, hi=d.one_of(50, 2**40)))


# --- commitments


def _tensor_digest(d: Draw) -> Case:
    return d.case({}, d.any_type(d.one_of(d.shape(), (d.integer(1, 700), 5))))


def _batch_digest(d: Draw) -> Case:
    return d.case({}, DIGEST, DIGEST)


def _state_leaf(d: Draw) -> Case:
    attrs: Attrs = {
        "name": d.one_of("w", "größe/β", "x" * 300),
        "dtype": d.one_of("i32", "i64"),
        "shape": d.shape(),
        "exponent": d.integer(-512, 512),
    }
    return d.case(attrs, DIGEST)


def _state_root(d: Draw) -> Case:
    return d.case({}, *[DIGEST] * d.integer(0, 9))


def _record(d: Draw) -> Case:
    step = d.tensor("i64", (), lo=1, hi=d.one_of(12, 2**40))
    loss = d.tensor("i64", ())
    return d.case({"commit_every": d.integer(1, 4)}, step, DIGEST, loss, DIGEST)


# --- attention


def _causal_spans(d: Draw) -> Case:
    return d.case({"queries": d.integer(1, 9), "window": d.one_of(2**31 - 1, d.integer(1, 9))})


def _token_spans(d: Draw) -> Case:
    shape = d.integer(1, 3), d.integer(1, 7)
    dtype = d.one_of(*NUMPY_DTYPES)
    attrs: Attrs = {
        "before": d.one_of(2**31 - 1, d.integer(1, 4)),
        "after": d.one_of(2**31 - 1, d.integer(1, 4)),
        "end_of_text": d.one_of(2**31, d.integer(0, 3)),
        "padding": d.one_of(2**31, d.integer(0, 3)),
    }
    return d.case(attrs, d.tensor(dtype, shape, lo=0, hi=d.integer(1, 4)))


def _keep_span(d: Draw) -> Case:
    count, columns = d.integer(1, 3), d.integer(1, 6)
    x = d.any_type((count * d.integer(1, 3), columns), exponent=d.integer(-9, 9))
    least, most = (1 - 2**60, 2**60 - 1) if x.dtype == "i64" else STORAGE[x.dtype]
    fill = d.one_of(x.lo, 0, least, most, d.integer(least, most))
    spans = d.tensor("i32", (count, 2), lo=d.one_of(-1, 0), hi=columns + 1)
    return d.case({"fill": fill}, x, spans)


def _softmax_grad(d: Draw) -> Case:
    shape = d.shape(2, 6)
    p = d.tensor("i16", shape, exponent=14, lo=d.one_of(0, 0, -(2**15)), hi=2**14)
    return d.case({}, p, d.tensor("i16", shape, exponent=d.integer(-9, 9)))


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
    "sub": _add,
    "mul": _mul,
    "relu": _relu,
    "relu_grad": _relu_grad,
    "look_up": _look_up,
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool_grad,
    "sum_pool": _im2col,
    "sum_pool_grad": _sum_pool_grad,
    "row_max": _row_max,
    "row_sum": _row_max,
    "exp2_diff": _exp2_diff,
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
    "schedule_linear": _schedule,
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
