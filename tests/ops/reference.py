"""Every operator defined a second time: loops over Python integers, nothing shared with the law.

Arrays are numpy arrays of dtype object, that is, of Python integers without bounds; numpy only
holds them.  Shapes are small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from tests.ops.curve_reference import GRIDS, entry
from vtrain.wire import cbor

Ints = npt.NDArray[Any]
Attrs = Mapping[str, Any]
Definition = Callable[[Attrs, Sequence[Ints]], Ints]

BOUNDS = {"i16": 32639, "i32": 2**31 - 1}


def make(shape: Sequence[int], entry: Callable[..., int]) -> Ints:
    """The array of ``entry(*index)``."""
    out = np.empty(tuple(shape), dtype=object)
    for index in product(*map(range, shape)):
        out[index] = entry(*index)
    return out


def rounded(x: int, shift: int) -> int:
    """floor(x / 2^shift + 1/2); the exact product for shift <= 0."""
    if shift <= 0:
        return int(x * 2**-shift)
    return math.floor(Fraction(int(x), 2**shift) + Fraction(1, 2))


def clamped(x: int, dtype: str) -> int:
    bound = BOUNDS.get(dtype)
    return x if bound is None else max(-bound, min(bound, x))


def _same(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return inputs[0]


def _increment(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return make((), lambda: min(int(inputs[0]) + 1, 2**40))


# --- source


def _philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    """The words of Philox4x32-10, from the paper's figure."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q % 2**32, (p >> 32) ^ d ^ k1, p % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [a, b, c, d]


def _sample(seed: int, samples: int, position: int) -> int:
    epoch, value = divmod(position, samples)
    half: int = 1
    while 1 << 2 * half < samples:
        half += 1
    key = (seed % 2**32, seed // 2**32)
    while True:
        left, right = divmod(value, 1 << half)
        for r in range(8):
            word = _philox((right, r, epoch % 2**32, epoch // 2**32), key)[0]
            left, right = right, left ^ (word % (1 << half))
        value = (left << half) + right
        if value < samples:
            return value


def _sample_index(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    seed, batch = int.from_bytes(attrs["seed"], "little"), attrs["batch"]
    return make(
        (batch,),
        lambda slot: _sample(seed, attrs["samples"], inputs[0][()] * batch + slot),
    )


def _dropout_mask(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    """All blocks as one row of bytes, which is then read by twos."""
    seed, step = int.from_bytes(attrs["seed"], "little"), int(inputs[0][()])
    size = math.prod(attrs["shape"])
    draws = b""
    for block in range(-(-size // 8)):
        above = step // 2**32 + 2**16 * (block // 2**32)
        counter = (block % 2**32, 2**31 + attrs["site"], step % 2**32, above)
        words = _philox(counter, (seed % 2**32, seed // 2**32))
        draws += b"".join(word.to_bytes(4, "little") for word in words)
    below = [draws[2 * e] + 256 * draws[2 * e + 1] < attrs["keep"] for e in range(size)]
    flat = iter([attrs["value"] * kept for kept in below])
    return make(tuple(attrs["shape"]), lambda *place: next(flat))


def _gather_samples(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    index, samples = inputs
    shape = (len(index), *samples.shape[1:])
    return make(shape, lambda i, *rest: samples[(index[i], *rest)])


def _normalize(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    def entry(*at: int) -> int:
        scaled = inputs[0][at] * attrs["multiplier"] + attrs["offset"]
        return clamped(rounded(scaled, attrs["shift"]), "i16")

    return make(inputs[0].shape, entry)


def _one_hot(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    rows, depth = inputs[0].reshape(len(inputs[0]), -1), attrs["depth"]
    shape = (rows.shape[0], rows.shape[1] * depth)
    return make(shape, lambda n, i: 2**14 if rows[n, i // depth] == i % depth else 0)


# --- layout and pooling


class _Windows:
    """Pixels of each window, as (row offset, column offset, y, x); None for padding."""

    def __init__(self, attrs: Attrs, height: int, width: int) -> None:
        self.kernel, self.strides, self.pads = attrs["kernel"], attrs["strides"], attrs["pads"]
        self.height, self.width = height, width
        top, left, bottom, right = self.pads
        self.rows = (height + top + bottom - self.kernel[0]) // self.strides[0] + 1
        self.columns = (width + left + right - self.kernel[1]) // self.strides[1] + 1

    def pixel(self, row: int, column: int, dy: int, dx: int) -> tuple[int, int] | None:
        y = row * self.strides[0] + dy - self.pads[0]
        x = column * self.strides[1] + dx - self.pads[1]
        return (y, x) if 0 <= y < self.height and 0 <= x < self.width else None

    def offsets(self) -> Iterator[tuple[int, int]]:
        return product(range(self.kernel[0]), range(self.kernel[1]))

    def all(self) -> Iterator[tuple[int, int]]:
        return product(range(self.rows), range(self.columns))


def _im2col(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x = inputs[0]
    batch, height, width, channels = x.shape
    windows = _Windows(attrs, height, width)
    rows = []
    for n in range(batch):
        for row, column in windows.all():
            patch = []
            for dy, dx in windows.offsets():
                at = windows.pixel(row, column, dy, dx)
                patch += [0 if at is None else x[(n, *at, c)] for c in range(channels)]
            rows.append(patch)
    return np.array(rows, dtype=object)


def _col2im(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    batch, height, width, channels = attrs["shape"]
    windows = _Windows(attrs, height, width)
    out = make(attrs["shape"], lambda *at: 0)
    row_index = 0
    for n in range(batch):
        for row, column in windows.all():
            for i, (dy, dx) in enumerate(windows.offsets()):
                at = windows.pixel(row, column, dy, dx)
                if at is not None:
                    for c in range(channels):
                        out[(n, *at, c)] += inputs[0][row_index, i * channels + c]
            row_index += 1
    return out


def _reshape(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    flat = list(inputs[0].flat)
    return make(attrs["shape"], lambda *at: flat[_flat_index(at, attrs["shape"])])


def _flat_index(at: Sequence[int], shape: Sequence[int]) -> int:
    index = 0
    for i, extent in zip(at, shape, strict=True):
        index = index * extent + i
    return index


def _transpose(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x, perm = inputs[0], attrs["perm"]
    shape = [x.shape[axis] for axis in perm]
    return make(shape, lambda *at: x[tuple(at[perm.index(axis)] for axis in range(x.ndim))])


def _slice(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    axis, kept = attrs["axis"], range(attrs["start"], attrs["stop"])
    shape = list(inputs[0].shape)
    shape[axis] = len(kept)
    return make(shape, lambda *at: inputs[0][(*at[:axis], kept[at[axis]], *at[axis + 1 :])])


def _pad(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x, axis = inputs[0], attrs["axis"]
    shape = list(x.shape)
    places = [None] * attrs["before"] + [*range(shape[axis])] + [None] * attrs["after"]
    shape[axis] = len(places)

    def entry(*at: int) -> int:
        place = places[at[axis]]
        return 0 if place is None else int(x[(*at[:axis], place, *at[axis + 1 :])])

    return make(shape, entry)


def _concat(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    axis = attrs["axis"]
    places = [(x, i) for x in inputs for i in range(x.shape[axis])]
    shape = list(inputs[0].shape)
    shape[axis] = len(places)

    def entry(*at: int) -> int:
        x, place = places[at[axis]]
        return int(x[(*at[:axis], place, *at[axis + 1 :])])

    return make(shape, entry)


def _gather_rows(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x, ids = inputs
    last = x.shape[0] - 1
    return make((len(ids), x.shape[1]), lambda i, j: x[min(max(ids[i], 0), last), j])


def _scatter_add(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    """By the transpose: what of x goes to a place."""
    x, ids = inputs
    rows = attrs["rows"]
    places = [sorted((0, number, rows - 1))[1] for number in ids]
    return make(
        (rows, x.shape[1]),
        lambda r, j: sum(x[i, j] for i, place in enumerate(places) if place == r),
    )


def _pool(
    attrs: Attrs, x: Ints, reduce: Callable[[list[tuple[int, tuple[int, int]]]], int]
) -> Ints:
    batch, height, width, channels = x.shape
    windows = _Windows(attrs, height, width)

    def entry(n: int, row: int, column: int, c: int) -> int:
        pixels = [windows.pixel(row, column, dy, dx) for dy, dx in windows.offsets()]
        return reduce([(x[(n, *at, c)], at) for at in pixels if at is not None])

    return make((batch, windows.rows, windows.columns, channels), entry)


def _max_pool(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return _pool(attrs, inputs[0], lambda pixels: max(value for value, _ in pixels))


def _sum_pool(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return _pool(attrs, inputs[0], lambda pixels: sum(value for value, _ in pixels))


def _max_pool_grad(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    grad, x = inputs
    _, height, width, _ = x.shape
    windows = _Windows(attrs, height, width)
    out = make(x.shape, lambda *at: 0)
    for n, row, column, c in product(*map(range, grad.shape)):
        pixels = [windows.pixel(row, column, dy, dx) for dy, dx in windows.offsets()]
        inside = [at for at in pixels if at is not None]
        first = max(range(len(inside)), key=lambda i: (x[(n, *inside[i], c)], -i))
        out[(n, *inside[first], c)] += grad[n, row, column, c]
    return out


def _sum_pool_grad(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    grad = inputs[0]
    _, height, width, _ = attrs["shape"]
    windows = _Windows(attrs, height, width)
    out = make(attrs["shape"], lambda *at: 0)
    for n, row, column, c in product(*map(range, grad.shape)):
        for dy, dx in windows.offsets():
            at = windows.pixel(row, column, dy, dx)
            if at is not None:
                out[(n, *at, c)] += grad[n, row, column, c]
    return out


# --- linear algebra and exponents


def _matmul(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    a = inputs[0].T if attrs["transpose_a"] else inputs[0]
    b = inputs[1].T if attrs["transpose_b"] else inputs[1]
    inner = range(a.shape[1])
    return make((len(a), b.shape[1]), lambda i, j: sum(a[i, k] * b[k, j] for k in inner))


def _batched_matmul(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    a, b = inputs
    products = {at: _matmul(attrs, (a[at], b[at])) for at in product(*map(range, a.shape[:-2]))}
    shape = (*a.shape[:-2], *next(iter(products.values())).shape)
    return make(shape, lambda *at: products[at[:-2]][at[-2:]])


def _add_bias(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    acc, bias = inputs
    return make(acc.shape, lambda *at: acc[at] + rounded(bias[at[-1]], attrs["shift"]))


def _column_sum(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x = inputs[0]
    rows = list(product(*map(range, x.shape[:-1])))
    return make(x.shape[-1:], lambda j: sum(x[(*row, j)] for row in rows))


def _rescale(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x = inputs[0]
    factor, shift, dtype = attrs["multiplier"], attrs["shift"], attrs["dtype"]
    return make(x.shape, lambda *at: clamped(rounded(x[at] * factor, shift), dtype))


def _add(attrs: Attrs, inputs: Sequence[Ints], sign: int = 1) -> Ints:
    a, b = inputs
    scale_a, scale_b = 2 ** attrs["shift_a"], sign * 2 ** attrs["shift_b"]
    return make(a.shape, lambda *at: a[at] * scale_a + b[at] * scale_b)


def _sub(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return _add(attrs, inputs, -1)


def _mul(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    a, b = inputs
    return make(a.shape, lambda *at: a[at] * b[at])


def _relu(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return make(inputs[0].shape, lambda *at: inputs[0][at] if inputs[0][at] > 0 else 0)


def _relu_grad(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    grad, output = inputs
    return make(grad.shape, lambda *at: grad[at] if output[at] > 0 else 0)


def _look_up(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    """By the function itself, of the point: no table, and so no end of one."""
    name, x = attrs["table"], inputs[0]
    far = 64 * 2 ** GRIDS[name]

    def value(*at: int) -> int:
        return entry(name, max(-far, min(rounded(x[at], attrs["shift"]), far)))

    return make(x.shape, value)


# --- softmax and losses


@cache
def _power(fraction: int) -> int:
    """round(2^16 * 2^(-fraction / 1024))."""
    with localcontext() as context:
        context.prec = 40
        exact = Decimal(2) ** (16 - Decimal(fraction) / 1024)
        return math.floor(exact + Decimal("0.5"))


@cache
def _log2_entry(index: int) -> int:
    with localcontext() as context:
        context.prec = 40
        exact = (Decimal(2 * index + 2049) / 2048).ln() / Decimal(2).ln() * 65536
        return math.floor(exact + Decimal("0.5"))


def _log2(x: int) -> int:
    """x > 0: the exponent, and the table at the ten bits after the leading one."""
    exponent = 0
    while 2 ** (exponent + 1) <= x:
        exponent += 1
    ten_bits = math.floor((Fraction(x, 2**exponent) - 1) * 1024)
    return exponent * 65536 + _log2_entry(ten_bits)


def _causal_spans(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    def entry(place: int, side: int) -> int:
        kept = [i for i in range(place + 1) if place - i < attrs["window"]]
        return kept[-1] + 1 if side else kept[0]

    return make((attrs["queries"], 2), entry)


def _token_spans(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    """By every pair of places: which is near, in one document and within the tokens of its row."""
    (ids,) = inputs
    places = ids.shape[1]

    def entry(row: int, place: int, side: int) -> int:
        tokens = [i for i in range(places) if ids[row, i] != attrs["padding"]]
        documents = [0]
        for i in range(places):
            documents.append(documents[-1] + (ids[row, i] == attrs["end_of_text"]))
        own = [i for i in range(places) if documents[i] == documents[place]]
        begin = max(own[0], tokens[0] if tokens else places, place + 1 - attrs["before"])
        end = min(own[-1] + 1, tokens[-1] + 1 if tokens else 0, place + attrs["after"])
        return int(end if side else begin)

    return make((*ids.shape, 2), entry)


def _keep_span(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x, spans = inputs

    def entry(row: int, column: int) -> int:
        begin, end = spans[row % len(spans)]
        return int(x[row, column]) if column in range(begin, end) else int(attrs["fill"])

    return make(x.shape, entry)


def _softmax_grad(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    """By the matrix of derivatives, whose row j is p_j times what is 1 at j, less p."""
    p, grad = inputs

    def entry(row: int, j: int) -> int:
        parts = ((2**14 if i == j else 0) - p[row, i] for i in range(p.shape[1]))
        return int(sum(p[row, j] * part * grad[row, i] for i, part in enumerate(parts)))

    return make(p.shape, entry)


def _row_max(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return make(inputs[0].shape[:1], lambda n: max(inputs[0][n]))


def _row_sum(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return make(inputs[0].shape[:1], lambda n: sum(inputs[0][n]))


def _exp2_diff(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    z, maximum = inputs

    def entry(n: int, i: int) -> int:
        below = maximum[n] - z[n, i]
        if below < 0:
            return 0
        whole, fraction = divmod(min(below, 31 * 1024), 1024)
        return rounded(_power(fraction), whole)

    return make(z.shape, entry)


def _divide(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    e, total = inputs

    def entry(n: int, i: int) -> int:
        divisor = max(total[n], 1)
        return math.floor(Fraction(e[n, i] * 2**14 + divisor // 2, divisor))

    return make(e.shape, entry)


def _nearest_class(label: Any, classes: int) -> int:
    return min(range(classes), key=lambda c: abs(int(label) - c))


def _sub_one_hot(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    p, labels = inputs
    classes = p.shape[1]
    return make(p.shape, lambda n, i: p[n, i] - 2**14 * (i == _nearest_class(labels[n], classes)))


def _logit_grad(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    e, total, labels = inputs
    classes = e.shape[1]

    def entry(n: int, i: int) -> int:
        divisor = max(total[n], 1)
        share = math.floor(Fraction(int(e[n, i]) * 2**29 + int(divisor) // 2, int(divisor)))
        whole = share - 2**29 * (i == _nearest_class(labels[n], classes))
        return (whole + 2**31) % 2**32 - 2**31

    return make(e.shape, entry)


def _cross_entropy(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    z, maximum, total, labels = inputs

    def entry(n: int) -> int:
        chosen = int(z[n, _nearest_class(labels[n], z.shape[1])])
        return (int(maximum[n]) - chosen) * 2**6 + _log2(max(int(total[n]), 1)) - 16 * 2**16

    return make(maximum.shape, entry)


def _square_sum(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return make((), lambda: rounded(sum(x * x for x in inputs[0].flat), attrs["shift"]))


def _sum(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    return make((), lambda: sum(inputs[0].flat))


# --- norms


def _center(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x = inputs[0]

    def entry(*at: int) -> int:
        row = x[at[:-1]]
        low = rounded(sum(x[at] - other for other in row), attrs["shift"]) % 2**32
        return low if low < 2**31 else low - 2**32

    return make(x.shape, entry)


def _row_dot(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    a, b = inputs
    return make(a.shape[:-1], lambda *at: sum(p * q for p, q in zip(a[at], b[at], strict=True)))


def _inverse_root(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    lifting = 4 ** attrs["lift"]

    def entry(*at: int) -> int:
        v = min(max(int(inputs[0][at]), 0) + attrs["epsilon"], (2**62 - 1) // lifting)
        return math.floor(Fraction(attrs["numerator"], _root(v * lifting)))

    return make(inputs[0].shape, entry)


def _row_scale(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x, factor = inputs
    return make(x.shape, lambda *at: x[at] * factor[at[:-1]])


def _column_scale(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x, w = inputs
    return make(x.shape, lambda *at: x[at] * w[at[-1]])


# --- optimizer


def _momentum(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    velocity, grad = inputs

    def entry(*at: int) -> int:
        decayed = rounded(velocity[at] * attrs["decay"], 16)
        return clamped(velocity[at] + rounded(grad[at], attrs["shift"]) - decayed, "i32")

    return make(velocity.shape, entry)


def _sgd_update(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    weight, velocity, rate = inputs

    def entry(*at: int) -> int:
        step = rounded(velocity[at] * rate[()], attrs["shift"])
        return clamped(weight[at] - step, "i32")

    return make(weight.shape, entry)


def _schedule(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    now, pairs = inputs[0][()], list(zip(attrs["starts"], attrs["rates"], strict=True))
    begun = [rate for start, rate in pairs if start <= now]
    return make((), lambda: begun[-1] if begun else attrs["rates"][0])


def _schedule_linear(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    """Both rates weighted by the distance of the other's start."""
    pairs = list(zip(attrs["starts"], attrs["rates"], strict=True))
    now = max(0, min(int(inputs[0][()]), pairs[-1][0]))
    line = Fraction(pairs[-1][1])
    for (start, rate), (end, other) in pairwise(pairs):
        if start <= now < end:
            line = Fraction(rate * (end - now) + other * (now - start), end - start)
    return make((), lambda: math.floor(line + Fraction(1, 2)))


def _sign(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x = inputs[0]
    return make(x.shape, lambda *at: 0 if x[at] == 0 else x[at] // abs(x[at]))


def _capped_square(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x = inputs[0]
    most = 2 ** attrs["bits"]
    return make(x.shape, lambda *at: min(rounded(x[at], attrs["shift"]) ** 2, most))


def _clip_factor(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    norm = _root(max(int(inputs[0][()]), 1))
    return make((), lambda: math.floor(min(Fraction(attrs["limit"], norm), Fraction(1)) * 2**15))


def _scale_by(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    x, factor = inputs
    return make(x.shape, lambda *at: rounded(x[at] * factor[()], attrs["shift"]))


def _average(old: int, new: int, attrs: Attrs) -> int:
    """The two weighted by whole numbers, then rounded once: the law rounds the change alone."""
    whole = 2 ** attrs["shift"]
    mixed = old * (whole - attrs["rate"]) + new * attrs["rate"]
    return rounded(mixed, attrs["shift"])


def _adam_mean(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    mean, grad = inputs

    def entry(*at: int) -> int:
        return clamped(_average(mean[at], grad[at] * 2 ** attrs["lift"], attrs), "i32")

    return make(mean.shape, entry)


def _adam_square(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    square, grad = inputs

    def entry(*at: int) -> int:
        old = sorted((0, square[at], 2**46))[1]
        return _average(old, (256 * grad[at]) ** 2, attrs)

    return make(square.shape, entry)


def _root(x: int) -> int:
    """Floor of the square root, by halving an interval."""
    low, high = 0, x + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle * middle <= x else (low, middle)
    return low


def _adam_direction(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    mean, square = inputs

    def entry(*at: int) -> int:
        divisor = _root(max(square[at], 0)) + attrs["epsilon"]
        return clamped(math.floor(Fraction(mean[at] * 2 ** attrs["shift"], divisor)), "i32")

    return make(mean.shape, entry)


def _power31(base: int, exponent: int) -> int:
    """base^exponent of 31 fraction bits: of half the exponent, squared, and once more if odd."""
    if exponent == 0:
        return 2**31
    half = _power31(base, exponent // 2)
    square = rounded(half * half, 31)
    return rounded(square * base, 31) if exponent % 2 else square


def _adam_correction(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    count = max(0, min(int(inputs[0][()]), 2**40)) + 1
    rest1, rest2 = (2**31 - _power31(attrs[beta], count) for beta in ("beta1", "beta2"))
    return make((), lambda: min(math.floor(Fraction(_root(rest2 * 2**31) * 2**24, rest1)), 2**32))


# --- commitments: the formulas of docs/format.md, by blake3 and cbor alone


def _keyed(context: str, data: bytes) -> bytes:
    return blake3(data, derive_key_context=context).digest()


def _digest_array(digest: bytes) -> Ints:
    return np.array(list(digest), dtype=object)


def _bytes(x: Ints) -> bytes:
    return bytes(x.tolist())


def tensor_digest(x: Ints, itemsize: int) -> bytes:
    """BLAKE3 of the little-endian two's complement of every element in row-major order."""
    signed = b"".join((int(v) % 2 ** (8 * itemsize)).to_bytes(itemsize, "little") for v in x.flat)
    return blake3(signed).digest()


def _batch_digest(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    both = _bytes(inputs[0]) + _bytes(inputs[1])
    return _digest_array(_keyed("vtrain 2026 batch v1", both))


def _state_leaf(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    leaf: cbor.Value = {
        "name": attrs["name"],
        "dtype": attrs["dtype"],
        "shape": list(attrs["shape"]),
        "exponent": attrs["exponent"],
        "digest": _bytes(inputs[0]),
    }
    return _digest_array(_keyed("vtrain 2026 state tree v1", b"\0" + cbor.encode(leaf)))


def _state_root(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    context = "vtrain 2026 state tree v1"

    def root(leaves: list[bytes]) -> bytes:
        if len(leaves) <= 1:
            return leaves[0] if leaves else _keyed(context, b"")
        split = 1
        while split * 2 < len(leaves):
            split *= 2
        return _keyed(context, b"\1" + root(leaves[:split]) + root(leaves[split:]))

    return _digest_array(root([_bytes(leaf) for leaf in inputs]))


def _record(attrs: Attrs, inputs: Sequence[Ints]) -> Ints:
    step, batch_digest, loss, state_root = inputs
    commits = step[()] % attrs["commit_every"] == 0
    record: cbor.Value = {
        "step": int(step[()]),
        "batch_digest": _bytes(batch_digest),
        "loss": int(loss[()]),
        "state_root": _bytes(state_root) if commits else b"",
    }
    return _digest_array(_keyed("vtrain 2026 run log v1", b"\0" + cbor.encode(record)))


DEFINITIONS: dict[str, Definition] = {
    "state": _same,
    "next_state": _same,
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
    "row_sum": _row_sum,
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
    "schedule_linear": _schedule_linear,
    "sign": _sign,
    "capped_square": _capped_square,
    "clip_factor": _clip_factor,
    "scale_by": _scale_by,
    "adam_mean": _adam_mean,
    "adam_square": _adam_square,
    "adam_direction": _adam_direction,
    "adam_correction": _adam_correction,
    "batch_digest": _batch_digest,
    "state_leaf": _state_leaf,
    "state_root": _state_root,
    "record": _record,
}
"""All but ``tensor_digest``, whose definition needs the size of an element as well."""


def define(op: str, attrs: Attrs, inputs: Sequence[npt.NDArray[Any]]) -> Ints:
    """Output of ``op`` by its second definition."""
    # Python integers, not numpy's.
    exact = [np.array(x.tolist(), dtype=object).reshape(x.shape) for x in inputs]
    if op == "tensor_digest":
        return _digest_array(tensor_digest(exact[0], inputs[0].dtype.itemsize))
    return DEFINITIONS[op](attrs, exact)
