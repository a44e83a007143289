"""Functions by table: an operand becomes the entry at the nearest point of a grid.

The non-linearities that are made of it (GELU, SiLU, sigmoid, tanh) are blocks with one gradient, by
a table of the slope: ``vtrain.graph.model`` has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Operator,
    Site,
    attr_int,
    attr_text,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.spec.curves import (
    CURVE_EXPONENT,
    CURVE_NAMES,
    CURVES,
    look_up,
    look_up_int,
    whole_curve,
)
from vtrain.spec.number import rs_int
from vtrain.wire.graph import Attrs, TensorType


def _look_up_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    name, shift = attr_text(attrs, "table"), attr_int(attrs, "shift")
    return np.asarray(look_up(name, inputs[0].astype(np.int64), shift).astype(np.int16))


def _look_up_leaf(site: Site, e: int) -> int:
    name, shift = attr_text(site.attrs, "table"), attr_int(site.attrs, "shift")
    return look_up_int(name, site.read(0, e), shift)


def _look_up_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The function ``table`` at the point of its grid that is nearest to x: T[j], j = rs(x, shift).

    T is the function's table of section 1 of the format, and last its last point: a j above last
    counts as last, one below -last as -last.  Beyond them the function, as it is rounded, is its
    limit, 0 or 1 (of tanh, -1 or 1), so that the table has the whole of it.

    Attributes:
        shift: integer, -40 to 64; it is x.exponent - 8; of the table tanh, x.exponent - 10.
        table: text, one of sigmoid, sigmoid_slope, tanh, tanh_slope, gelu_gate, gelu_slope,
            gelu_tanh_gate, gelu_tanh_slope, silu_slope.
    Inputs: x i16 [...].
    Output: i16 [...], exponent 14.
    Range: the least to the greatest of the entries from that of x.lo to that of x.hi.
    """
    require_keys(attrs, "shift", "table")
    require_inputs(inputs, "i16")
    x = inputs[0]
    name, shift = attr_text(attrs, "table", CURVE_NAMES), attr_int(attrs, "shift", -40, 64)
    curve = CURVES[name]
    require(
        x.exponent - shift == curve.grid,
        f"shift does not give the table's {curve.grid} fraction bits",
    )
    last = curve.last
    first, end = (min(max(rs_int(value, shift), -last), last) + last for value in (x.lo, x.hi))
    entries = whole_curve(name)[first : end + 1]
    lo, hi = int(entries.min()), int(entries.max())
    return integer_type("i16", x.shape, CURVE_EXPONENT, lo, hi)


OPERATORS = table(
    Operator("look_up", _look_up_law, _look_up_infer, leaf=pointwise(_look_up_leaf)),
)
