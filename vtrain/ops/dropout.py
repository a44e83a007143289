"""Masks of dropout: which elements of a tensor a step keeps, and what these are multiplied by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Operator,
    Site,
    attr_int,
    attr_ints,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.ops.source import require_counter
from vtrain.spec.dropout import DRAW_BITS, MAX_SITES, compute_draw, compute_draws
from vtrain.wire.graph import Attrs, TensorType
from vtrain.wire.record import MAX_STEPS


def _read_seed(attrs: Attrs) -> int:
    return int.from_bytes(bytes(attrs["seed"]), "little")  # type: ignore[arg-type]


def _hold_step(t: int) -> int:
    """The law is total: a step outside [0, 2^40] counts as the nearest."""
    return min(max(t, 0), MAX_STEPS)


def _mask_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    shape = attr_ints(attrs, "shape")
    count = int(np.prod(shape, dtype=np.int64))
    step, site = _hold_step(int(inputs[0])), attr_int(attrs, "site")
    kept = compute_draws(_read_seed(attrs), step, site, 0, count) < attr_int(attrs, "keep")
    return np.where(kept, np.int16(attr_int(attrs, "value")), np.int16(0)).reshape(shape)


def _mask_leaf(site: Site, e: int) -> int:
    step = _hold_step(site.read(0))
    draw = compute_draw(_read_seed(site.attrs), step, attr_int(site.attrs, "site"), e)
    return attr_int(site.attrs, "value") if draw < attr_int(site.attrs, "keep") else 0


def _mask_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """``value`` for elements that step t keeps, 0 for the others.

    Element e, in row-major order, is kept where the draw of (seed, t, site, e), as section 3 of the
    format has it, is below ``keep``.

    Attributes:
        keep: integer, 1 to 65535; how many of 2^16 draws keep an element.
        seed: eight bytes, the seed as a little-endian integer.
        site: integer, 0 to 2147483647; the number of the mask in the graph.
        shape: integers, the extents.
        value: integer, 1 to 32767; the mantissa of the factor for what is kept.
        exponent: integer, 0 to 14.
    Inputs: t i64 [].
    Output: i16 ``shape``, exponent ``exponent``.
    Range: 0 to value.
    Requires: t has exponent 0 and a range within 0 to 2^40.
    Outside: a t below 0 counts as 0, one above 2^40 as 2^40.
    """
    require_keys(attrs, "exponent", "keep", "seed", "shape", "site", "value")
    require_inputs(inputs, "i64")
    require_counter(inputs[0])
    seed = attrs["seed"]
    require(isinstance(seed, bytes) and len(seed) == 8, "seed is 8 bytes, little-endian")
    attr_int(attrs, "keep", 1, (1 << DRAW_BITS) - 1)
    attr_int(attrs, "site", 0, MAX_SITES - 1)
    value = attr_int(attrs, "value", 1, 2**15 - 1)
    exponent = attr_int(attrs, "exponent", 0, 14)
    return integer_type("i16", attr_ints(attrs, "shape"), exponent, 0, value)


OPERATORS = table(
    Operator("dropout_mask", _mask_law, _mask_infer, leaf=pointwise(_mask_leaf)),
)
