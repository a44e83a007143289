"""What an operator is: the law, the types, the backward rule and where each engine stands.

One file a family; each ends in its ``Operator`` rows, and ``vtrain.ops.TABLE`` collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from vtrain.errors import GraphError, RangeError
from vtrain.spec.number import ACCUMULATOR_LIMIT, SATURATION, STORAGE, saturate
from vtrain.wire.graph import (
    MAX_ELEMENTS,
    MAX_RANK,
    Attrs,
    AttrValue,
    Node,
    Ref,
    TensorType,
)
from vtrain.wire.task import Windows

MAX_EXPONENT = 512
"""Exponents stay within +-512."""

Array = npt.NDArray[Any]
Law = Callable[[Attrs, Sequence[Array]], Array]
"""(attributes, input arrays) -> output array, bit for bit; the definition of the operator."""
Infer = Callable[[Attrs, Sequence[TensorType]], TensorType]
"""(attributes, input types) -> output type with proven range; GraphError, RangeError if illegal."""


class Builder(Protocol):
    """What a backward rule may do: emit nodes (``vtrain.graph.builder.GraphBuilder`` is one)."""

    def emit(self, op: str, name: str, inputs: Sequence[Ref], /, **attrs: AttrValue) -> Ref: ...

    def type_of(self, ref: Ref) -> TensorType: ...

    def needs_gradient(self, ref: Ref) -> bool:
        """Whether the gradient of ``ref`` is wanted: what nobody reads is not emitted."""
        ...

    def as_operand(self, ref: Ref, name: str) -> Ref:
        """The value as int16: itself, or rescaled at a calibrated site called ``name``."""
        ...

    def as_parts(self, ref: Ref, name: str) -> Sequence[Ref]:
        """The value as one int16 operand, or as two that add up to it, the second finer."""
        ...

    def add_aligned(self, name: str, a: Ref, b: Ref) -> Ref:
        """The sum in int64, rounded only below what 39 bits of either hold."""
        ...

    def as_terms(self, ref: Ref, name: str, count: int) -> Ref:
        """The value itself, or with fewer bits where ``count`` elements have no sum in range."""
        ...

    def is_deep(self, ref: Ref) -> bool:
        """Whether it is a gradient that stays in int64 but for products."""
        ...

    def is_fine(self, ref: Ref) -> bool:
        """Whether it is the gradient of many classes, of 29 fraction bits."""
        ...


Backward = Callable[[Builder, Node, Ref, Ref], Sequence[Ref | None]]
"""(builder, forward node, its output, gradient of that output) -> gradient per input, None where
no gradient flows.  A gradient has the shape of its tensor and any exponent of its own."""


State = tuple[int, ...]
"""Running values of a fold: what it has made of the terms so far."""
Types = Sequence[TensorType]


class Reader(Protocol):
    """The agreed inputs of one node, one element at a time; what is not there is a VtrainError."""

    def read(self, input: int, index: int) -> int:
        """Element ``index`` (flat, row-major) of the input at position ``input``."""
        ...

    def digest(self, input: int) -> bytes:
        """Tensor digest of the input at position ``input``."""
        ...

    def sample(self, index: int) -> bytes:
        """Row ``index`` of the committed samples; no bytes when there is no such row."""
        ...

    @property
    def windows(self) -> Windows | None:
        """How the samples are windows of tokens; None where they are rows."""
        ...

    def token(self, at: int) -> int:
        """Token ``at`` of the file, as an element; asked for only where there are windows."""
        ...


@dataclass(frozen=True)
class Site:
    """Where a leaf rule works: attributes and types of a legal node, and its agreed inputs.

    The types are proven of honest values only: agreed values may be garbage.
    """

    attrs: Attrs
    types: Types
    out: TensorType
    reader: Reader

    def read(self, input: int, index: int = 0) -> int:
        """Element ``index`` of the input at position ``input``."""
        return self.reader.read(input, index)

    def read_bytes(self, input: int) -> bytes:
        """The whole of a digest that is an input."""
        return bytes(self.reader.read(input, i) for i in range(self.types[input].size))


class Stream(NamedTuple):
    """One of the elements that a term reads, followed from term to term.

    ``stride`` is the distance in elements between the reads of successive terms: 0 where all
    terms read the same element, None (scattered) where it varies.
    """

    input: int
    stride: int | None


@dataclass(frozen=True)
class LeafRule:
    """One output element by itself: a fold over terms, exact and total on every integer.

    state = ``init``; state = ``step(site, element, i, state)`` for i in 0 .. terms - 1; value =
    ``finish(attrs, state)``.  How many terms make a block follows from ``streams`` and ``whole``
    (``vtrain.ops.leaf``).
    """

    step: Callable[[Site, int, int, State], State]
    terms: Callable[[Attrs, Types], int] = lambda attrs, types: 1
    streams: Callable[[Attrs, Types], Sequence[Stream]] = lambda attrs, types: ()
    init: State = (0,)
    finish: Callable[[Attrs, State], int] = lambda attrs, state: state[0]
    whole: Callable[[Attrs, Types], int] | None = None
    """Bound on the distinct chunks of all terms together, where streams count too many."""


def pointwise(value: Callable[[Site, int], int]) -> LeafRule:
    """The rule of an operator whose every element takes few reads: one term, its value."""
    return LeafRule(lambda site, element, term, state: (value(site, element),))


def adding(
    value: Callable[[Site, int, int], int],
) -> Callable[[Site, int, int, State], State]:
    """The step that adds ``value(site, element, term)``."""
    return lambda site, element, term, state: (state[0] + value(site, element, term),)


def taking_maximum(
    value: Callable[[Site, int, int], int],
) -> Callable[[Site, int, int, State], State]:
    """The step that keeps the larger of the state and ``value(site, element, term)``."""
    return lambda site, element, term, state: (max(state[0], value(site, element, term)),)


LEAST = (-(2**63),)
"""Initial state of a maximum."""


def to_place(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Indices along each axis of the element with this flat row-major index."""
    place = []
    for extent in reversed(shape):
        index, along = divmod(index, extent)
        place.append(along)
    return tuple(reversed(place))


def to_index(place: Sequence[int], shape: Sequence[int]) -> int:
    """Inverse of :func:`to_place`."""
    index = 0
    for along, extent in zip(place, shape, strict=True):
        index = index * extent + along
    return index


@dataclass(frozen=True)
class Saturating:
    """A law that ends in saturation: ``unclamped`` in int64, held to what ``dtype`` says of it.

    Engines count the elements that this changes.
    """

    unclamped: Law
    dtype: Callable[[Attrs], str]

    def __call__(self, attrs: Attrs, inputs: Sequence[Array]) -> Array:
        return saturate(self.unclamped(attrs, inputs), self.dtype(attrs))


@dataclass(frozen=True)
class Operator:
    """A row of the table: the operator's law and what exists for it elsewhere.

    ``leaf`` recomputes single elements in a dispute.  What exists of it in other rooms is named in
    ``vtrain.ops.facets``, with the reason where something does not.
    """

    name: str
    law: Law
    infer: Infer
    backward: Backward | None = None
    leaf: LeafRule = field(kw_only=True)

    @property
    def unclamped(self) -> Law | None:
        """The output in int64 before it is saturated; None for a law that never saturates."""
        return self.law.unclamped if isinstance(self.law, Saturating) else None


def require(condition: bool, message: str) -> None:
    """Raise GraphError unless ``condition``; the builder adds the node's name."""
    if not condition:
        raise GraphError(message)


def require_keys(attrs: Attrs, *names: str) -> None:
    """Refuse a node whose attribute names are not just ``names``."""
    require(set(attrs) == set(names), f"attributes must be {sorted(names)}, are {sorted(attrs)}")


def attr_int(attrs: Attrs, name: str, lo: int = -(2**63), hi: int = 2**63 - 1) -> int:
    """An integer attribute within [lo, hi]."""
    value = attrs.get(name)
    if not isinstance(value, int) or not lo <= value <= hi:
        raise GraphError(f"attribute {name} must be an integer in [{lo}, {hi}], is {value!r}")
    return value


def attr_ints(attrs: Attrs, name: str, count: int | None = None) -> tuple[int, ...]:
    """A list-of-integers attribute, of length ``count`` if given."""
    value = attrs.get(name)
    if not isinstance(value, tuple) or (count is not None and len(value) != count):
        raise GraphError(f"attribute {name} must be {count or 'some'} integers, is {value!r}")
    return value


def attr_text(attrs: Attrs, name: str, allowed: Sequence[str] | None = None) -> str:
    """A text attribute, one of ``allowed`` if given."""
    value = attrs.get(name)
    if not isinstance(value, str) or (allowed is not None and value not in allowed):
        raise GraphError(f"attribute {name} must be text {allowed or ''}, is {value!r}")
    return value


def require_inputs(inputs: Sequence[TensorType], *dtypes: str) -> None:
    """Refuse other than ``len(dtypes)`` inputs of these dtypes; "int" stands for any."""
    found = [tensor.dtype for tensor in inputs]
    fits = len(found) == len(dtypes) and all(
        want in ("int", got) for want, got in zip(dtypes, found, strict=True)
    )
    require(fits, f"inputs must be {list(dtypes)}, are {found}")


def integer_type(
    dtype: str, shape: Sequence[int], exponent: int, lo: int, hi: int, what: str = "value"
) -> TensorType:
    """A type that is checked: its range within the dtype (|accumulator| < 2^60 for int64), its
    shape of at most 8 positive extents and 2^32 elements, its exponent within +-512."""
    tensor = TensorType(dtype, tuple(int(extent) for extent in shape), exponent, lo, hi)
    require(all(extent > 0 for extent in tensor.shape), f"has an empty axis: {tensor.shape}")
    require(len(tensor.shape) <= MAX_RANK, f"has {len(tensor.shape)} axes, more than {MAX_RANK}")
    require(tensor.size <= MAX_ELEMENTS, f"has {tensor.size} elements, more than {MAX_ELEMENTS}")
    require(abs(exponent) <= MAX_EXPONENT, f"exponent {exponent} is beyond +-{MAX_EXPONENT}")
    least, most = STORAGE[dtype]
    if lo < least or hi > most:
        raise RangeError(f"{what} may reach [{lo}, {hi}], more than {dtype} holds")
    if dtype == "i64" and max(-lo, hi) >= ACCUMULATOR_LIMIT:
        raise RangeError(f"{what} may reach [{lo}, {hi}]; accumulators must stay below 2^60")
    return tensor


def check_fits_int64(lo: int, hi: int, what: str) -> None:
    """RangeError unless the intermediate value ``what`` stays within int64."""
    if lo < -(2**63) or hi > 2**63 - 1:
        raise RangeError(f"{what} may reach [{lo}, {hi}], beyond int64")


def product_range(a: TensorType, b: TensorType) -> tuple[int, int]:
    """Interval of a product of one element of each."""
    corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return min(corners), max(corners)


def product_type(a: TensorType, b: TensorType) -> TensorType:
    """The type of the exact products of each element of ``a`` with some element of ``b``."""
    lo, hi = product_range(a, b)
    return integer_type("i64", a.shape, a.exponent + b.exponent, lo, hi, "the product")


def clamp_range(lo: int, hi: int, dtype: str) -> tuple[int, int]:
    """Interval after saturation to ``dtype``."""
    if dtype == "i64":
        return lo, hi
    least, most = SATURATION[dtype]
    return min(max(lo, least), most), min(max(hi, least), most)


def table(*operators: Operator) -> Mapping[str, Operator]:
    """Operators by name."""
    return {operator.name: operator for operator in operators}
