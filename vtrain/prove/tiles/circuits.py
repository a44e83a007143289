"""Circuits over tiles: blocks of 128 x 128 of a step's tensors, few circuits for every model.

A tile is a vector of side^2 integers, row by row, zeros where the matrix ends
(``vtrain.commit.kzg_layout``, kind "tiles"); ``side`` is 128 but in tests.  Whatever differs
between models is a parameter, so that keys are made once.  A tile fills half a column at k = 15
(32768 rows), and the table of limbs, of ``TILE_SPAN`` entries, nearly all of one.

=================== ================================== ==============================
circuit             given tiles, in order              parameters
=================== ================================== ==============================
matmul-nn, -nt, -tn a, b, c                            none
rescale-<dtype>-<n> x, y                               :func:`rescale_parameters`
gate                x, g, y                            none
mul                 a, b, y                            none
softmax-<c>         z, labels, maximum, exp, sum, p,   :func:`softmax_parameters`
                    grad, loss
square              x, s                               none
linear              x, y                               none; :func:`linear_challenge`
zero                x                                  none
range-<n>           x                                  :func:`range_parameters`
look-up             x, y                               :func:`look_up_parameters`
=================== ================================== ==============================

What each says is in the text of its builder, with the reason why its outputs are the only ones.
A given tile may be a linear combination of tiles in the trace, as commitments add up: so sums of
partial products, ``add``, ``sub`` need no circuit, and neither do the optimizer's operators:

- ``sgd_update``, sat32(w - rs(V rate, s)), is rescale-i32 of x = 2^s w - rate V with offset -1
  (since rs(-a - 1, s) = -rs(a, s) for s > 0; for s <= 0, x = w - 2^-s rate V without offset);
- ``momentum``, sat32(V + rs(g, s) - D) with D = rs(V decay, 16), a rescale-i64, is rescale-i32 of
  x = g + 2^s (V - D) for s > 0, else of x = 2^-s g + V - D without shift;
- the maximum of m and x is m + gate(x - m, x - m).

*Integers.*  An input is whatever field elements the commitment holds.  Each circuit shows that its
outputs are the law's of these inputs, padding included, if the inputs are what tiles are: integers
within the bounds of their type, zeros in the padding.  (Where a text says "of any x", not even that
is needed.)  For tiles that a step makes, the circuit that made them says so; for its roots, batch
and state before, ``range-<n>`` does.  So a trace with anything false in it has a false statement.

*Cost.*  Cells for side 128 in units of 128^2; each look-up is two, one for the table and one for
the equation that the limb is in.  More inner columns make the gates' degree larger: up to 3 the
columns are kept on 4 times as many points, up to 7 on 8.  So no circuit has more than 3, but
several blocks of them, each nearly two units a column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.errors import CircuitError
from vtrain.prove.circuit import gadgets
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints, Lin, Tensor
from vtrain.spec.field import SCALAR_FIELD
from vtrain.spec.number import (
    EXP2_EXPONENT,
    LOSS_EXPONENT,
    PROBABILITY_EXPONENT,
    SATURATION,
    log2_q16,
)
from vtrain.wire.proof import HIDING, TILE

TILE_K: Final = 15
"""Logarithm of the rows of circuits over tiles: the least whose columns hold a tile.  A task may
ask for more: the same circuits then fill fewer blocks."""
TILE_BLINDING: Final = 5
"""Number of blinding factors of every circuit over tiles."""
TILE_ROWS: Final = (1 << TILE_K) - TILE_BLINDING - 3 - HIDING
"""Most values of one committed vector (``ProofSpec.usable`` at this k)."""

TILE_SPAN: Final = SATURATION["i16"][1] + 1
"""Values of a limb.  M + 1 for int16, so that the sums of two limbs are 0 ... 2 M: y + M for a
saturated y, and nothing else."""

MAX_SHIFTS: Final = (0, 14, 29, 43, 59)
"""The largest shift that rescale-<dtype>-<n> takes, by n."""
_WIDE_DIGITS: Final = 4
_GAP_DIGITS: Final = 3
GATE_REACH: Final = TILE_SPAN**2 - 1
"""Largest absolute value that the circuit ``gate`` takes."""
WIDE_REACH: Final = (TILE_SPAN**_WIDE_DIGITS >> 1) - 1
"""Largest absolute value of what rescale-i64-<n> makes, some 2^58.97."""
RANGES: Final = (1, 3)
"""The numbers of limbs n of the circuits range-<n>."""
_AWAY: Final = 1 << 32
"""Puts a masked logit below every other: 2^32 - 2^31 is beyond where 2^-gap ends."""

_INNER_COLUMNS: Final = {"linear": 2, "matmul": 2, "mul": 2, "range-1": 2, "square": 2, "zero": 1}
"""Cells beside each other where one or two blocks hold all; elsewhere 3."""


class _TileBuilder(CircuitBuilder):
    """A builder of circuits over tiles; ``name`` says how many columns."""

    def __init__(self, name: str, side: int) -> None:
        super().__init__(_INNER_COLUMNS.get(name, 3), TILE_SPAN, TILE_ROWS)
        self.side = side

    @cached_property
    def ones(self) -> Tensor:
        """A tile of ones, as an outer product."""
        one = self.fixed("ones", np.ones(self.side, dtype=np.int64))
        return self.outer(one, one)

    def tile(self, name: str) -> Tensor:
        """A given tile, as a matrix."""
        return self.reshape(self.vector(name, self.side**2), (self.side, self.side))

    def scalar(self, name: str) -> Tensor:
        """A parameter of one element."""
        return self.parameter(name, (1,))

    def outer(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The matrix rows_i columns_j: a^T (rows columns^T) b = <a, rows> <b, columns>.

        As a term of a linear form it so costs 2 side cells; used otherwise, one each element.
        """
        extent = (rows.size, columns.size)
        i, j = np.indices(extent)
        matrix = self.mul(self.take(rows, i), self.take(columns, j))
        left, right = self.weights(extent)
        self._combined[matrix.index] = self.mul(self.dot(left, rows), self.dot(right, columns))
        return matrix

    def live_mask(self) -> Tensor:
        """The public mask of the matrix's own elements: parameters ``rows`` and ``columns``."""
        rows, columns = (self.parameter(name, (self.side,)) for name in ("rows", "columns"))
        return self.outer(rows, columns)


def _mask(side: int, count: int) -> Ints:
    if not 0 <= count <= side:
        raise CircuitError(f"a tile of {side} has no {count} rows or columns")
    return np.asarray(np.arange(side) < count, dtype=np.int64).astype(object)


def _one(value: int) -> Ints:
    return np.asarray([value], dtype=object)


def _nonnegative(b: CircuitBuilder, name: str, form: Lin, count: int) -> None:
    """A form of a tile's shape is an integer in [0, span^count)."""
    gadgets.nonnegative(b, name, form, b.span**count - 1)


# --- matmul


def _build_matmul(ta: bool, tb: bool, side: int) -> Circuit:
    """c = op(a) op(b).

    Unique: c is a function of a and b in the field.  What made a and b says that they are int16, so
    their products add up to less than 2^38 and c is the law's; the circuit has no limb and no
    table, which would be half of its cost.
    """
    b = _TileBuilder("matmul", side)
    left, right, product = (b.tile(name) for name in ("a", "b", "c"))
    b.matmul("product", left, right, product.lin(), ta=ta, tb=tb)
    return b.build()


# --- rescale


def rescale_limbs(shift: int) -> int:
    """The least n whose rescale-<dtype>-<n> takes this shift; CircuitError above the last one's."""
    for n, largest in enumerate(MAX_SHIFTS):
        if shift <= largest:
            return n
    raise CircuitError(f"no circuit shifts by {shift}", where="shift")


def _count_excess_digits(dtype: str, n: int) -> int:
    """Three say 2^44.  An update moves a parameter by up to 2^47, a rate below 2^16 of a momentum,
    before it is shifted: there four are needed where the shift takes little."""
    return 4 if dtype == "i32" and n < 2 else 3


def rescale_parameters(
    side: int, n: int, *, multiplier: int, shift: int, rows: int, columns: int, offset: int = 0
) -> dict[str, Ints]:
    """Parameters of rescale-<dtype>-<n> for a tile with this many rows and columns of its own.

    CircuitError if ``shift`` is more than n stands for.
    """
    if shift > MAX_SHIFTS[n]:
        raise CircuitError(f"a shift of {shift} is above {MAX_SHIFTS[n]}", where="shift")
    raised = 1 << max(-shift, 0)
    unit = 1 << max(shift, 0)
    parameters = {
        "multiplier": _one(multiplier * raised),
        "offset": _one(offset * raised),
        "rows": _mask(side, rows),
        "columns": _mask(side, columns),
    }
    if n:
        weights, rest = gadgets.split_interval(unit - 1, TILE_SPAN, n - 1)
        parameters |= {"unit": _one(unit), "half": _one(unit >> 1), "rest": _one(rest)}
        parameters |= {f"weight {i}": _one(weight) for i, weight in enumerate(weights)}
    return parameters


def _build_rescale(dtype: str, n: int, side: int) -> Circuit:
    """y = sat(rs(x multiplier + offset mask, shift)): ``rescale``, ``normalize``, the optimizer.

    Let W = x multiplier + offset mask + half.  The circuit shows W = unit (y + d) + r with
    0 <= r < unit = 2^shift (n - 1 weighted limbs and a rest, whose weights are parameters), where
    y + d is an integer:

    - i64: d = 0, and y is of four limbs: |y| < 32640^4 / 2, some 2^58.97.
    - i16, i32: y is an integer in [-M, M], and t >= 0 is one of three limbs or four.  With u = t y,
      the equation is M W = M unit y + unit u + M r, so that d = t y / M.  The sum of M^2 t - u y =
      t (M^2 - y^2) over all elements, none of which is negative, is 0.  So t = 0 and d = 0, or
      y = M and d = t, or y = -M and d = -t: d is an integer, and y is the clamped y + d.

    Unique, of any x: of two witnesses with the same x, the two unit (y + d) + r are equal modulo
    the prime, and as both are smaller than 2^120 they are equal; r and y + d are remainder and
    quotient of that; y follows from y + d.  Padding: x = 0 there gives W = half, y = 0.

    Complete for |d| < 2^44 (2^59 of i32 with n < 2); what saturates is proven like everything else.
    """
    b = _TileBuilder(f"rescale-{dtype}-{n}", side)
    x, y = b.tile("x"), b.tile("y")
    multiplier, offset = b.scalar("multiplier"), b.scalar("offset")
    whole = x.times(multiplier) + b.live_mask().times(offset)
    if n:
        unit, half, rest = b.scalar("unit"), b.scalar("half"), b.scalar("rest")
        weights = [b.scalar(f"weight {i}") for i in range(n - 1)]
        whole = whole + b.ones.times(half)
        wide = whole
        low = gadgets.interval(
            b,
            "remainder",
            weights,
            b.ones.times(rest),
            lambda values: values[wide] % int(values[unit][0]),
            b.ones,
        )
        whole = whole - low
    else:
        unit = b.constant(1)
    if dtype == "i64":
        _nonnegative(b, "y", y.lin() + (WIDE_REACH + 1), _WIDE_DIGITS)
        b.zero("rescale", whole - y.times(unit))
        return b.build()
    most = SATURATION[dtype][1]
    gadgets.hold_range(b, "y", y, -most, most)
    reach = b.span ** _count_excess_digits(dtype, n) - 1
    gadgets.clamp(b, "rescale", whole, y, unit, most, reach)
    return b.build()


# --- gate, mul, square, linear, range


def _build_gate(side: int) -> Circuit:
    """y = g where x > 0, else 0, for |x| < span^2: ``relu`` (g = x), ``relu_grad``, maxima.

    A mask m with m^2 = m, and (2 m - 1) x - m in [0, span^2), of two limbs: with m = 1 that is x in
    [1, span^2], with m = 0 it is x in [1 - span^2, 0].  So m is unique, of any x for which there is
    one, and with it y = m g.
    """
    b = _TileBuilder("gate", side)
    x, g, y = (b.tile(name) for name in ("x", "g", "y"))
    gadgets.gate(b, "gate", x, g, y, GATE_REACH)
    return b.build()


def _build_mul(side: int) -> Circuit:
    """y = a b, element by element.

    Unique: y is a function of a and b in the field, of any a and b.  It is the law's, for the graph
    is legal only where the products of what made a and b stay below 2^60.  Padding: 0 = 0 * 0.
    """
    b = _TileBuilder("mul", side)
    left, right, y = (b.tile(name) for name in ("a", "b", "y"))
    b.zero("mul", b.mul(left, right).lin() - y.lin())
    return b.build()


def _hold_empty(b: _TileBuilder, name: str, x: Tensor) -> None:
    """All elements of a matrix are zero; nothing for one without elements."""
    if x.size:
        b.zero(name, x.lin())


def _block(b: _TileBuilder, x: Tensor, rows: slice, columns: slice) -> Tensor:
    """Part of a tile.  Free."""
    return b.take(x, np.arange(x.size).reshape(x.shape)[rows, columns])


def _hold_row(b: _TileBuilder, name: str, x: Tensor) -> Tensor:
    """The first row of a tile, all the others being zero."""
    _hold_empty(b, f"{name}/other rows", _block(b, x, slice(1, None), slice(None)))
    return b.slice(b.reshape(x, (x.size,)), 0, b.side)


def _build_square(side: int) -> Circuit:
    """s = [sum of x^2, 0, 0, ...], a tile of one element.  Unique: s is a function of x."""
    b = _TileBuilder("square", side)
    x, s = b.tile("x"), b.tile("s")
    row = _hold_row(b, "s", s)
    _hold_empty(b, "s/other columns", b.slice(row, 1, side))
    flat = b.reshape(x, (x.size,))
    b.require_zero("square", b.sub(b.dot(flat, flat), b.slice(row, 0, 1)))
    return b.build()


@dataclass(frozen=True)
class LinearMap:
    """y = G x of flat tiles: y[outputs[i]] is the sum over i of factors[i] x[inputs[i]]."""

    outputs: npt.NDArray[np.int64]
    inputs: npt.NDArray[np.int64]
    factors: npt.NDArray[np.int64]


def linear_challenge(side: int, drawn: int, image: LinearMap) -> list[int]:
    """The elements of linear's ``challenge``: c, the one ``drawn``, and w = G^T u.

    u is the outer product of the circuit's vectors: its element k is c^(side + 1 + k).
    CircuitError if G is of no tile.
    """
    size = side * side
    parts = (image.outputs, image.inputs, image.factors)
    if len({part.shape for part in parts}) != 1 or image.outputs.ndim != 1:
        raise CircuitError("needs three lists of one length", where="linear map")
    indices = np.concatenate([image.outputs, image.inputs])
    if ((indices < 0) | (indices >= size)).any():
        raise CircuitError("names an element beyond the tile", where="linear map")
    u = [pow(drawn, side + 1, SCALAR_FIELD)]
    while len(u) < size:
        u.append(u[-1] * drawn % SCALAR_FIELD)
    w = [0] * size
    for out, source, factor in zip(*(part.tolist() for part in parts), strict=True):
        w[source] += factor * u[out]
    return [drawn, *(item % SCALAR_FIELD for item in w)]


def _build_linear(side: int) -> Circuit:
    """y = G x for a public matrix G of integers: <w, x> = a^T y b with w = G^T (a b^T).

    ``im2col`` and its adjoint, ``transpose``, ``reshape``, sums over rows, columns and windows,
    broadcasts.  The verifier computes w from the challenge.  a^T (y - G x) b = 0 is a polynomial in
    the challenge, drawn after x and y were committed to, whose coefficients are the elements of
    y - G x: so y is unique in the field, of any x.  Rows of G that are zero make y zero: padding
    included.
    """
    b = _TileBuilder("linear", side)
    x, y = b.tile("x"), b.tile("y")
    combined, vectors = b.combine(y), b.weights(y.shape)
    image = b.dot(b.reshape(x, (side * side,)), b.expanded("image", side * side))
    b.require_zero("linear", b.sub(image, combined), b.degree_of(*vectors))
    return b.build()


def _build_zero(side: int) -> Circuit:
    """x = 0 everywhere: a^T x b = 0.

    For combinations of tiles, such as the difference of two that must be the same: columns are
    hidden, so that no commitment shows it.
    """
    b = _TileBuilder("zero", side)
    x = b.tile("x")
    b.require_zero("zero", b.combine(x), b.degree_of(*b.weights(x.shape)))
    return b.build()


def range_limbs(lo: int, hi: int) -> int:
    """The least n whose range-<n> takes [lo, hi]; CircuitError for one too long for the last."""
    for n in RANGES:
        if hi - lo < TILE_SPAN**n:
            return n
    raise CircuitError(f"no circuit for the range [{lo}, {hi}]", where="range")


def range_parameters(side: int, *, lo: int, hi: int, rows: int, columns: int) -> dict[str, Ints]:
    """Parameters of range-<n>; CircuitError unless lo <= 0 <= hi, as padding is zero."""
    if not lo <= 0 <= hi:
        raise CircuitError(f"zero is not in [{lo}, {hi}]", where="range")
    return {
        "lo": _one(lo),
        "hi": _one(hi),
        "rows": _mask(side, rows),
        "columns": _mask(side, columns),
    }


def _build_range(n: int, side: int) -> Circuit:
    """x is an integer in [lo, hi] everywhere and zero in the padding: for tiles that no node makes.

    x - lo and hi - x are both of n limbs, in [0, span^n): complete for hi - lo < span^n.  Padding:
    a'^T x b = 0 where a' is a outside the tile's own rows and else 0, and a^T x b' = 0 likewise for
    the columns.
    """
    b = _TileBuilder(f"range-{n}", side)
    x = b.tile("x")
    lo, hi = b.scalar("lo"), b.scalar("hi")
    _nonnegative(b, "above lo", x.lin() - b.ones.times(lo), n)
    _nonnegative(b, "below hi", b.ones.times(hi) - x.lin(), n)
    left, right = b.weights(x.shape)
    for axis, name, own, other in ((1, "rows", left, right), (0, "columns", right, left)):
        idle = b.sub(b.constant(1), b.parameter(name, (side,)))
        weighed = b.dot(b.contract(x, axis, other), b.mul(own, idle))
        b.require_zero(f"padding of {name}", weighed, b.degree_of(left, right))
    return b.build()


# --- softmax

SOFTMAX_TILES: Final = ("z", "labels", "maximum", "exp", "sum", "p", "grad", "loss")
"""The given tiles of softmax-<c>, in order."""


def softmax_parameters(
    side: int, most: int, *, rows: int, classes: int, counts: Ints | None = None
) -> dict[str, Ints]:
    """Parameters of softmax-<most> for logits of so many rows and classes; of these, those count
    alone where ``counts`` (flat, of a tile) is 1."""
    width = min(side, most)
    live = _mask(side, rows)[:, None] * _mask(width, classes)[None, :]
    if counts is not None:
        live = live * np.asarray(counts, dtype=object).reshape(side, side)[:, :width]
    return {"away": (1 - live) * _AWAY, "rows": _mask(side, rows)}


def _build_softmax(most: int, side: int) -> Circuit:
    """Rows of logits z [side, classes <= most] and what ``row_max``, ``exp2_diff``, ``row_sum``,
    ``divide``, ``sub_one_hot`` and ``cross_entropy`` make of them and of labels in [0, classes).

    With gap = maximum - z, and 2^32 more where z is masked:

    - maximum: every gap is >= 0 (see exp), and the product of a row's gaps is 0; outside the batch
      it is 0 itself.
    - exp: gap = cut + over with over >= 0, (cut, exp) is a row of the table of 2^-gap, which ends
      with its first 0, and the sum of over (end - cut), of which no term is negative, is 0:
      cut = min(gap, end).
    - sum: of each row of exp.  S is that sum, and 2^16 outside the batch.
    - p: floor((e 2^14 + floor(S / 2)) / S) = floor((e 2^15 + S) / 2 S), since half an odd S is an
      integer and 1/2.  So e 2^15 + S = 2 S p + r with r >= 0, 2 S - 1 - r >= 0 and p one limb.
    - grad = p - 2^14 hot: the one-hot row of a label is the only row of zeros and ones that adds up
      to 1 and, weighed with 0, 1, 2, ..., to the label.  hot is 0 at masked classes, and taken off
      outside the batch, where labels are 0.
    - loss: ``gadgets.cross_entropy``, less what S = 2^16 and a gap of 0 make of it outside the
      batch.

    So each output is a function of z and the labels, if these are integers of their type and zero
    in the padding, and 0 outside batch and classes.  What lies outside the first ``most`` columns,
    or outside the first row of the tiles of vectors, is shown to be zero.
    """
    b = _TileBuilder(f"softmax-{most}", side)
    width = min(side, most)
    shape = (side, width)
    tiles = {name: b.tile(name) for name in SOFTMAX_TILES}
    z, exp, p, grad = (
        _block(b, tiles[name], slice(None), slice(0, width)) for name in ("z", "exp", "p", "grad")
    )
    for name in ("exp", "p", "grad"):
        outside = _block(b, tiles[name], slice(None), slice(width, None))
        _hold_empty(b, f"{name}/other columns", outside)
    maximum, row_sum, loss = (
        _hold_row(b, name, tiles[name]) for name in ("maximum", "sum", "loss")
    )
    labels = b.slice(b.reshape(tiles["labels"], (side * side,)), 0, side)
    away, live = b.parameter("away", shape), b.parameter("rows", (side,))
    idle = b.sub(b.constant(1), live)
    # The maximum.
    gap = b.sub(gadgets.spread(b, maximum, width), b.sub(z, away))
    outside_batch = b.add(b.mul(b.product_of_all(gap), live), b.mul(maximum, idle))
    b.zero("maximum", outside_batch.lin())
    gadgets.exponential(b, "exp", gap, exp, b.span**_GAP_DIGITS - 1, one_table=True)
    # Its sum, and the quotient.
    gadgets.weigh_rows(b, "sum", exp, np.ones(width, dtype=np.int64), 0, row_sum)
    total = b.add(row_sum, b.scale(idle, 1 << EXP2_EXPONENT))
    divisor = b.outer(total, b.fixed("columns of ones", np.ones(width, dtype=np.int64)))
    gadgets.divide(b, "p", exp, total, divisor, p, b.span**2 - 1)
    # Labels, gradient and loss.
    hot = gadgets.one_hot(b, "one-hot", labels, width)
    b.zero_sum("one-hot/masked", [(hot, away, 1), (idle, None, -_AWAY)])
    first = b.outer(idle, b.fixed("first column", np.asarray(np.arange(width) == 0, dtype=object)))
    b.zero("grad", p.lin() - (hot.lin() - first.lin()) * (1 << PROBABILITY_EXPONENT) - grad.lin())
    alone = int(log2_q16(np.asarray(1 << EXP2_EXPONENT))) - (EXP2_EXPONENT << LOSS_EXPONENT)
    raised = b.add(loss, b.scale(idle, alone))
    gadgets.cross_entropy(b, "cross entropy", z, maximum, total, hot, raised)
    return b.build()


# --- look-ups

LOOK_UP: Final = "look-up"
LOOK_UP_ROWS: Final = 11360
"""Rows of its table: one for each of the 11,359 points of the longest function, and one more."""
LOOK_UP_PADDING: Final = 1 << 15
"""What x is where a block has no value: a key beyond all points, whose entry is 0."""


def look_up_parameters(entries: npt.NDArray[np.integer[Any]]) -> dict[str, Ints]:
    """Parameters of look-up for a function whose entries are of the points -last .. last."""
    last, more = len(entries) // 2, LOOK_UP_ROWS - len(entries)
    if len(entries) % 2 == 0 or more < 1:
        raise CircuitError(f"no circuit for {len(entries)} entries", where="table")
    keys = [*range(-last, last + 1), *[LOOK_UP_PADDING] * more]
    return {
        "keys": np.asarray(keys, dtype=object),
        "entries": np.asarray([*entries.tolist(), *[0] * more], dtype=object),
    }


def table_parameters(first: int, entries: npt.NDArray[Any]) -> dict[str, Ints]:
    """Parameters of look-up for entries whose keys are ``first`` and on; CircuitError where there
    is no room for them."""
    more = LOOK_UP_ROWS - len(entries)
    if more < 1 or not 0 <= first <= LOOK_UP_PADDING - len(entries):
        raise CircuitError(f"no circuit for {len(entries)} entries from {first}", where="table")
    keys = [*range(first, first + len(entries)), *[LOOK_UP_PADDING] * more]
    return {
        "keys": np.asarray(keys, dtype=object),
        "entries": np.asarray([*entries.tolist(), *[0] * more], dtype=object),
    }


def _build_look_up(side: int) -> Circuit:
    """y is the entry of a public table whose key is x: each (x, y) is one of its rows.

    Unique, of any x: keys that are the same have one entry, so that x has one or none.  Rows that
    stand in the table more than once count once: the multiplicities are the prover's.
    """
    b = _TileBuilder(LOOK_UP, side)
    x, y = b.tile("x"), b.tile("y")
    table = [b.parameter(name, (LOOK_UP_ROWS,)) for name in ("keys", "entries")]
    b.member("row", (x, y), table)
    return b.build()


_BUILDERS: Final[dict[str, Callable[[int], Circuit]]] = {
    "matmul-nn": partial(_build_matmul, False, False),
    "matmul-nt": partial(_build_matmul, False, True),
    "matmul-tn": partial(_build_matmul, True, False),
    **{
        f"rescale-{dtype}-{n}": partial(_build_rescale, dtype, n)
        for dtype in ("i16", "i32", "i64")
        for n in range(1 if dtype == "i64" else 0, len(MAX_SHIFTS))
    },
    "gate": _build_gate,
    "mul": _build_mul,
    "softmax-16": partial(_build_softmax, 16),
    "softmax-128": partial(_build_softmax, 128),
    "square": _build_square,
    "linear": _build_linear,
    LOOK_UP: _build_look_up,
    "zero": _build_zero,
    **{f"range-{n}": partial(_build_range, n) for n in RANGES},
}

TILE_CIRCUITS: Final[Mapping[str, Callable[[int], Circuit]]] = MappingProxyType(_BUILDERS)
"""By name: makes the circuit for tiles of a side, ``TILE`` in every use but tests."""


def build_tile_circuit(name: str, side: int = TILE) -> Circuit:
    """The circuit ``name`` of ``TILE_CIRCUITS``; CircuitError if there is none."""
    build = TILE_CIRCUITS.get(name)
    if build is None:
        raise CircuitError("no such circuit", where=name)
    return build(side)
