"""Which places attend to which, and the gradient of a softmax.

A *span* says which elements of a row take part: those from its begin to its end - 1.  The others
are left out by their index, never by a large negative number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    LeafRule,
    Operator,
    Site,
    State,
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
from vtrain.spec.number import ACCUMULATOR_LIMIT, PROBABILITY_EXPONENT
from vtrain.wire.graph import Attrs, TensorType

MAX_PLACES = 2**31 - 1
"""Most places of a sequence: their numbers are int32."""
NO_ID = 2**31
"""Stands for no end of text, or no padding: ids are int32 at most, and none of them is this."""


def _causal_spans_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    last = np.arange(attr_int(attrs, "queries"), dtype=np.int64) + 1
    begin = np.maximum(last - attr_int(attrs, "window"), 0)
    return np.stack([begin, last], axis=1).astype(np.int32)


def _causal_spans_leaf(site: Site, e: int) -> int:
    place, is_end = divmod(e, 2)
    return place + 1 if is_end else max(place + 1 - attr_int(site.attrs, "window"), 0)


def _causal_spans_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Each place attends to itself and to the places before it, ``window`` of them at most.

    Row i is the span of place i: its begin max(i + 1 - window, 0) and its end i + 1.

    Attributes:
        window: integer, 1 to 2^31-1.
        queries: integer, 1 to 2^31-1.
    Inputs: none.
    Output: i32 [queries, 2], exponent 0.
    Range: 0 to queries.
    """
    require_keys(attrs, "queries", "window")
    require_inputs(inputs)
    queries = attr_int(attrs, "queries", 1, MAX_PLACES)
    attr_int(attrs, "window", 1, MAX_PLACES)
    return integer_type("i32", (queries, 2), 0, 0, queries)


def _token_spans_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    ids = inputs[0].astype(np.int64)
    places = ids.shape[1]
    place = np.arange(places)
    is_end = ids == attr_int(attrs, "end_of_text")
    is_token = ids != attr_int(attrs, "padding")
    behind = np.maximum.accumulate(np.where(is_end, place + 1, 0), axis=1)
    start = np.pad(behind, ((0, 0), (1, 0)))[:, :places]
    stop = np.minimum.accumulate(np.where(is_end, place + 1, places)[:, ::-1], axis=1)[:, ::-1]
    first = np.where(is_token, place, places).min(axis=1, keepdims=True)
    last = np.where(is_token, place + 1, 0).max(axis=1, keepdims=True)
    nearest = np.maximum(place + 1 - attr_int(attrs, "before"), first)
    furthest = np.minimum(place + attr_int(attrs, "after"), last)
    spans = np.maximum(start, nearest), np.minimum(stop, furthest)
    return np.stack(spans, axis=2).astype(np.int32)


def _token_spans_step(site: Site, e: int, term: int, state: State) -> State:
    """The state of a begin: the start of its document, and the paddings before the first token; of
    an end: the end of its document if it was passed, and that of the last token."""
    places = site.types[0].shape[1]
    (row, place), is_end = divmod(e // 2, places), e % 2
    own, bound = state
    token = site.read(0, row * places + term)
    ends = token == attr_int(site.attrs, "end_of_text")
    pads = token == attr_int(site.attrs, "padding")
    if is_end:
        own = term + 1 if ends and term >= place and own == 0 else own
        bound = bound if pads else term + 1
        if term == places - 1:
            own = min(own or places, bound, place + attr_int(site.attrs, "after"))
    else:
        own = term + 1 if ends and term < place else own
        bound = term + 1 if pads and bound == term else bound
        if term == places - 1:
            own = max(own, bound, place + 1 - attr_int(site.attrs, "before"))
    return own, bound


def _token_spans_terms(attrs: Attrs, types: Types) -> int:
    return types[0].shape[1]


def _token_spans_streams(attrs: Attrs, types: Types) -> Sequence[Stream]:
    return [Stream(0, 1)]


_TOKEN_SPANS_LEAF = LeafRule(
    _token_spans_step, _token_spans_terms, _token_spans_streams, init=(0, 0)
)


def _token_spans_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Each place attends to places near it, of its own document, between the padding at the ends.

    A document ends with the id ``end_of_text``, which belongs to it.  Entry [b, i] is the span of
    place i of row b.  It begins at the greatest of i + 1 - before, the place after the last
    end_of_text before i (0 if there is none), and the number of ids equal to ``padding`` that the
    row begins with.  It ends at the least of i + after, the place after the first end_of_text from
    i on (places if there is none), and places less the number of ids equal to padding that the row
    ends with.  So ``after`` = 1 is causal, and a row of padding alone has no span with an element:
    all of them begin at places and end at 0.  Both ids are compared as they are: 2^31 too, which
    an id of i64 can be, and no other.

    Attributes:
        after: integer, 1 to 2^31-1.
        before: integer, 1 to 2^31-1.
        padding: integer, 0 to 2^31; 2^31 where nothing is padding.
        end_of_text: integer, 0 to 2^31; 2^31 where documents do not count.
    Inputs: id any [n, places].
    Output: i32 [n, places, 2], exponent 0.
    Range: 0 to places.
    Requires: places is at most 2^31-1.
    """
    require_keys(attrs, "after", "before", "end_of_text", "padding")
    require_inputs(inputs, "int")
    (ids,) = inputs
    for name in ("after", "before"):
        attr_int(attrs, name, 1, MAX_PLACES)
    for name in ("end_of_text", "padding"):
        attr_int(attrs, name, 0, NO_ID)
    require(len(ids.shape) == 2, f"needs rows of ids, has shape {ids.shape}")
    require(ids.shape[1] <= MAX_PLACES, f"a row of {ids.shape[1]} places is too long")
    return integer_type("i32", (*ids.shape, 2), 0, 0, ids.shape[1])


def _keep_span_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x, spans = inputs
    begin, end = (
        np.tile(spans[:, side], x.shape[0] // max(spans.shape[0], 1))[:, None] for side in (0, 1)
    )
    columns = np.arange(x.shape[1])
    fill = np.asarray(attr_int(attrs, "fill"), dtype=x.dtype)
    return np.where((begin <= columns) & (columns < end), x, fill)


def _keep_span_leaf(site: Site, e: int) -> int:
    row, column = divmod(e, site.out.shape[1])
    span = row % site.types[1].shape[0]
    x, begin, end = site.read(0, e), site.read(1, 2 * span), site.read(1, 2 * span + 1)
    return x if begin <= column < end else attr_int(site.attrs, "fill")


def _keep_span_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The elements of each row within its span, and ``fill`` elsewhere.

    Element j of row i is x[i, j] where spans[i mod m, 0] <= j < spans[i mod m, 1].

    Attributes:
        fill: integer, 1-2^60 to 2^60-1.
    Inputs: x any [n, columns]; spans i32 [m, 2].
    Output: the dtype and the exponent of x, [n, columns].
    Range: min(x.lo, fill) to max(x.hi, fill).
    Requires: n is a multiple of m.
    Outside: a span may begin below 0 and end beyond the columns, and has no element where its end
        is not above its begin.
    """
    require_keys(attrs, "fill")
    require_inputs(inputs, "int", "i32")
    x, spans = inputs
    fill = attr_int(attrs, "fill", 1 - ACCUMULATOR_LIMIT, ACCUMULATOR_LIMIT - 1)
    require(len(x.shape) == 2, f"needs rows, has shape {x.shape}")
    require(len(spans.shape) == 2 and spans.shape[1] == 2, "a span is a begin and an end")
    require(x.shape[0] % spans.shape[0] == 0, f"{spans.shape[0]} spans for {x.shape[0]} rows")
    lo, hi = min(x.lo, fill), max(x.hi, fill)
    return integer_type(x.dtype, x.shape, x.exponent, lo, hi, "the fill")


def _softmax_grad_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    p, grad = (x.astype(np.int64) for x in inputs)
    total = (p * grad).sum(axis=1, keepdims=True)
    return np.asarray(p * ((grad << PROBABILITY_EXPONENT) - total))


def _softmax_grad_term(site: Site, e: int, term: int) -> int:
    row, column = divmod(e, site.out.shape[1])
    at = row * site.out.shape[1] + term
    p, grad, own = site.read(0, at), site.read(1, at), site.read(0, e)
    return own * ((grad << PROBABILITY_EXPONENT if term == column else 0) - p * grad)


def _softmax_grad_streams(attrs: Attrs, types: Types) -> Sequence[Stream]:
    return [Stream(0, 1), Stream(1, 1), Stream(0, 0)]


_SOFTMAX_GRAD_LEAF = LeafRule(
    adding(_softmax_grad_term), lambda attrs, types: types[0].shape[1], _softmax_grad_streams
)


def _softmax_grad_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The gradient of the exponents of a softmax with the outputs p: p_j (grad_j - sum p_i grad_i).

    Element j of a row is p[j] * (grad[j] * 2^14 - sum of p[i] * grad[i] over the row): exact, and
    0 wherever p is.

    Inputs: p i16 [n, classes]; grad i16 [n, classes].
    Output: i64 [n, classes], exponent p.exponent + grad.exponent + 14.
    Range: the least to the greatest of p.lo and p.hi times each of grad.lo * 2^14 - classes * hi
        and grad.hi * 2^14 - classes * lo, where lo and hi are the least and the greatest of p.lo *
        grad.lo, p.lo * grad.hi, p.hi * grad.lo and p.hi * grad.hi.
    Requires: p has exponent 14; both differences fit int64.
    """
    require_keys(attrs)
    require_inputs(inputs, "i16", "i16")
    p, grad = inputs
    require(len(p.shape) == 2 and grad.shape == p.shape, "needs rows and a gradient for each")
    require(p.exponent == PROBABILITY_EXPONENT, "probabilities need 14 fraction bits")
    lo, hi = product_range(p, grad)
    least = (grad.lo << PROBABILITY_EXPONENT) - p.shape[1] * hi
    most = (grad.hi << PROBABILITY_EXPONENT) - p.shape[1] * lo
    check_fits_int64(least, most, "the difference")
    corners = [x * y for x in (p.lo, p.hi) for y in (least, most)]
    exponent = p.exponent + grad.exponent + PROBABILITY_EXPONENT
    return integer_type("i64", p.shape, exponent, min(corners), max(corners), "the gradient")


OPERATORS = table(
    Operator(
        "causal_spans",
        _causal_spans_law,
        _causal_spans_infer,
        leaf=pointwise(_causal_spans_leaf),
    ),
    Operator("token_spans", _token_spans_law, _token_spans_infer, leaf=_TOKEN_SPANS_LEAF),
    Operator("keep_span", _keep_span_law, _keep_span_infer, leaf=pointwise(_keep_span_leaf)),
    Operator("softmax_grad", _softmax_grad_law, _softmax_grad_infer, leaf=_SOFTMAX_GRAD_LEAF),
)
