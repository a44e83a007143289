"""Where values come from and go to: state, the step counter, the batch and its preparation.

The laws of ``state`` and ``gather_samples`` need more than their inputs (the state itself, the
committed samples); an engine binds those, so their law here takes the bound array as last input.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Operator,
    Saturating,
    Site,
    attr_int,
    attr_ints,
    attr_text,
    check_fits_int64,
    clamp_range,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.spec.number import (
    NUMPY_DTYPES,
    PROBABILITY_EXPONENT,
    SATURATION,
    STORAGE,
    rs,
    rs_int,
    saturate_int,
)
from vtrain.spec.order import compute_batch_indices, compute_sample_index
from vtrain.wire.graph import Attrs, TensorType
from vtrain.wire.record import MAX_STEPS
from vtrain.wire.task import MAX_SAMPLES

WIDE_STATE_BITS = 46
"""An int64 state of squares is within [0, 2^46]: 16 fraction bits under the square of an int16."""
SQUARES = "square/"
"""How names of such states begin."""


def _state_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return inputs[0]


def _state_leaf(site: Site, e: int) -> int:
    return site.read(0, e)


def _state_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """A recurrent tensor as it is before the step.

    Attributes:
        name: text, not empty; the name of the state.
        dtype: text, one of i32, i64.
        shape: integers, the extents.
        exponent: integer, -512 to 512.
    Inputs: none.
    Output: ``dtype`` and ``shape``, exponent ``exponent``.
    Range: -2^31 + 1 to 2^31 - 1 for i32, 0 to 2^46 for i64 if its name begins with ``square/``, 0
        to 2^40 for other i64.
    """
    require_keys(attrs, "dtype", "exponent", "name", "shape")
    require_inputs(inputs)
    name = attr_text(attrs, "name")
    require(name != "", "a state needs a name")
    dtype = attr_text(attrs, "dtype", ("i32", "i64"))
    exponent = attr_int(attrs, "exponent", -512, 512)
    shape = attr_ints(attrs, "shape")
    lo, hi = SATURATION["i32"]
    if dtype == "i64":
        lo, hi = 0, 1 << WIDE_STATE_BITS if name.startswith(SQUARES) else MAX_STEPS
    return integer_type(dtype, shape, exponent, lo, hi)


def _next_state_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """A recurrent tensor as it is after the step: x itself.

    Attributes:
        name: text, not empty; the name of the state.
    Inputs: x any [...].
    Output: the type of x.
    Range: that of x.
    """
    require_keys(attrs, "name")
    require_inputs(inputs, "int")
    require(attr_text(attrs, "name") != "", "a state needs a name")
    return inputs[0]


def _increment_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return np.asarray(np.minimum(inputs[0] + np.int64(1), np.int64(MAX_STEPS)))


def _increment_leaf(site: Site, e: int) -> int:
    return min(site.read(0) + 1, MAX_STEPS)


def require_counter(t: TensorType) -> None:
    """Refuse other than the number of steps done, a scalar in [0, 2^40]."""
    require(t.shape == () and t.exponent == 0, "the step counter is an integer scalar")
    require(t.lo >= 0 and t.hi <= MAX_STEPS, "the step counter stays within [0, 2^40]")


def _increment_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The step counter: min(t + 1, 2^40).

    Inputs: t i64 [].
    Output: i64 [], exponent 0.
    Range: 0 to 2^40.
    Requires: t has exponent 0 and a range within 0 to 2^40.
    """
    require_keys(attrs)
    require_inputs(inputs, "i64")
    require_counter(inputs[0])
    return integer_type("i64", (), 0, 0, MAX_STEPS)


def _sample_index_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    seed = int.from_bytes(bytes(attrs["seed"]), "little")  # type: ignore[arg-type]
    return compute_batch_indices(
        seed, attr_int(attrs, "samples"), attr_int(attrs, "batch"), int(inputs[0])
    )


def _sample_index_leaf(site: Site, e: int) -> int:
    seed = int.from_bytes(bytes(site.attrs["seed"]), "little")  # type: ignore[arg-type]
    step = min(max(site.read(0), 0), MAX_STEPS)
    position = step * site.out.size + e
    return compute_sample_index(seed, attr_int(site.attrs, "samples"), position)


def _sample_index_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Which samples step t (from 0) takes: section 3 of the format.

    Attributes:
        seed: eight bytes, the seed as a little-endian integer.
        batch: integer, 1 to 2^20.
        samples: integer, 1 to 2^40; the samples of the dataset.
    Inputs: t i64 [].
    Output: i64 [batch], exponent 0.
    Range: 0 to samples - 1.
    Requires: t has exponent 0 and a range within 0 to 2^40.
    Outside: a disputed t below 0 counts as 0, one above 2^40 as 2^40.
    """
    require_keys(attrs, "batch", "samples", "seed")
    require_inputs(inputs, "i64")
    require_counter(inputs[0])
    seed = attrs["seed"]
    require(isinstance(seed, bytes) and len(seed) == 8, "seed is 8 bytes, little-endian")
    batch = attr_int(attrs, "batch", 1, 2**20)
    samples = attr_int(attrs, "samples", 1, MAX_SAMPLES)
    return integer_type("i64", (batch,), 0, 0, samples - 1)


def _gather_samples_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    index, samples = inputs
    return samples[index]


def _gather_samples_leaf(site: Site, e: int) -> int:
    """Of a row x bytes || y bytes; 0 where there is no such row, or it is too short.  Of windows,
    a token of the file; 0 where there is no such window, or it is too short."""
    width = NUMPY_DTYPES[site.out.dtype].itemsize
    per_sample = site.out.size // site.out.shape[0]
    slot, within = divmod(e, per_sample)
    index, part = site.read(0, slot), attr_text(site.attrs, "part")
    windows = site.reader.windows
    if windows is not None:
        place = windows.find_token(part, index, within)
        return 0 if place is None else site.reader.token(place)
    row = site.reader.sample(index)
    start = 0 if part == "x" else len(row) - per_sample * width
    at = start + within * width
    if at < 0 or at + width > len(row):
        return 0
    return int.from_bytes(row[at : at + width], "little", signed=site.out.dtype != "u8")


def _gather_samples_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Rows of the committed samples: out[s] is part x or y of sample index[s].

    A sample is its x bytes and then its y bytes, little-endian.

    Attributes:
        part: text, one of x, y.
        dtype: text, one of u8, i8, i16, i32.
        shape: integers, the extents of the part in one sample.
        exponent: integer, -64 to 64.
    Inputs: index i64 [n].
    Output: ``dtype`` [n, ...shape], exponent ``exponent``.
    Range: all that ``dtype`` holds, -2^15 to 2^15 - 1 for i16.
    Outside: in a dispute, 0 where there is no such sample, or where an element does not lie within
        it. Of x, the elements begin with the sample's first byte; those of y are its last bytes.
        Of a window of tokens, the elements are those that it has.
    """
    require_keys(attrs, "dtype", "exponent", "part", "shape")
    require_inputs(inputs, "i64")
    require(len(inputs[0].shape) == 1, "indices are a vector")
    attr_text(attrs, "part", ("x", "y"))
    dtype = attr_text(attrs, "dtype", ("u8", "i8", "i16", "i32"))
    lo, hi = STORAGE[dtype]
    shape = inputs[0].shape + attr_ints(attrs, "shape")
    return integer_type(dtype, shape, attr_int(attrs, "exponent", -64, 64), lo, hi)


def _normalize_unclamped(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    wide = inputs[0].astype(np.int64) * attr_int(attrs, "multiplier") + attr_int(attrs, "offset")
    return rs(wide, attr_int(attrs, "shift"))


def _normalize_leaf(site: Site, e: int) -> int:
    multiplier, offset = attr_int(site.attrs, "multiplier"), attr_int(site.attrs, "offset")
    scaled = site.read(0, e) * multiplier + offset
    return saturate_int(rs_int(scaled, attr_int(site.attrs, "shift")), "i16")


def _normalize_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """sat(rs(x * multiplier + offset, shift)): raw samples become int16 operands.

    Attributes:
        shift: integer, 0 to 64.
        offset: integer, -2^60 to 2^60.
        exponent: integer, -64 to 64.
        multiplier: integer, 1 to 2^31.
    Inputs: x any [...].
    Output: i16 [...], exponent ``exponent``, whatever that of x is.
    Range: rs(x.lo * multiplier + offset, shift) to rs(x.hi * multiplier + offset, shift), both
        saturated as the elements are.
    Requires: x.lo * multiplier and x.hi * multiplier fit int64, and so do both with offset added.
    """
    require_keys(attrs, "exponent", "multiplier", "offset", "shift")
    require_inputs(inputs, "int")
    x = inputs[0]
    multiplier = attr_int(attrs, "multiplier", 1, 2**31)
    offset = attr_int(attrs, "offset", -(2**60), 2**60)
    shift = attr_int(attrs, "shift", 0, 64)
    lo, hi = x.lo * multiplier, x.hi * multiplier
    check_fits_int64(lo, hi, "the product")
    lo, hi = lo + offset, hi + offset
    check_fits_int64(lo, hi, "the scaled sample")
    lo, hi = clamp_range(rs_int(lo, shift), rs_int(hi, shift), "i16")
    return integer_type("i16", x.shape, attr_int(attrs, "exponent", -64, 64), lo, hi)


_ONE = 1 << PROBABILITY_EXPONENT


def _one_hot_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x = inputs[0].astype(np.int64)
    hot = x[..., None] == np.arange(attr_int(attrs, "depth"))
    return np.where(hot, np.int16(_ONE), np.int16(0)).reshape(x.shape[0], -1)


def _one_hot_leaf(site: Site, e: int) -> int:
    token, place = divmod(e, attr_int(site.attrs, "depth"))
    return _ONE if site.read(0, token) == place else 0


def _one_hot_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """2^14, the mantissa of 1, at the place of each token, 0 elsewhere.

    out[s, j * depth + i] is 2^14 where element j of sample s is i.

    Attributes:
        depth: integer, 1 to 2^20.
    Inputs: x any [n, ...], at least two axes.
    Output: i16 [n, c * depth], exponent 14, with c the elements of one sample.
    Range: 0 to 2^14.
    Outside: a token outside 0 .. depth - 1 has no place: its depth elements are all 0.
    """
    require_keys(attrs, "depth")
    require_inputs(inputs, "int")
    x = inputs[0]
    require(len(x.shape) >= 2, "needs [batch, ...] tokens")
    width = x.size // x.shape[0] * attr_int(attrs, "depth", 1, 2**20)
    return integer_type("i16", (x.shape[0], width), PROBABILITY_EXPONENT, 0, _ONE)


OPERATORS = table(
    Operator("state", _state_law, _state_infer, leaf=pointwise(_state_leaf)),
    Operator("next_state", _state_law, _next_state_infer, leaf=pointwise(_state_leaf)),
    Operator(
        "increment",
        _increment_law,
        _increment_infer,
        leaf=pointwise(_increment_leaf),
    ),
    Operator(
        "sample_index",
        _sample_index_law,
        _sample_index_infer,
        leaf=pointwise(_sample_index_leaf),
    ),
    Operator(
        "gather_samples",
        _gather_samples_law,
        _gather_samples_infer,
        leaf=pointwise(_gather_samples_leaf),
    ),
    Operator(
        "normalize",
        Saturating(_normalize_unclamped, lambda attrs: "i16"),
        _normalize_infer,
        leaf=pointwise(_normalize_leaf),
    ),
    Operator("one_hot", _one_hot_law, _one_hot_infer, leaf=pointwise(_one_hot_leaf)),
)
