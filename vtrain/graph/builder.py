"""Building a step graph: emit nodes with inferred types, and fix exponents at named sites.

A *site* is a rescale to int16 whose exponent is calibrated; its name is the node's name.  Where the
exponent comes from is a policy: read from the task (:class:`FixedExponents`), or measured while the
graph is being evaluated (``vtrain.graph.calibration``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

from vtrain.errors import GraphError, TaskError
from vtrain.ops import TABLE
from vtrain.ops.base import Builder
from vtrain.spec.number import ACCUMULATOR_LIMIT
from vtrain.wire.graph import AttrValue, Node, Ref, StepGraph, TensorType

SYMMETRIC: Final = 32769
"""A multiplier by which a half is more than that, of either sign."""
SYMMETRIC_EXPONENT: Final = 15
_SUM_BITS: Final = 23
"""Bits of a sum that stays in int32: as many as float32 has."""
DEEP_BITS: Final = 40
"""Bits of a gradient that stays in int64: symmetric rounding takes 16 more, sums over rows 19."""
_PART_BITS: Final = 15
_ROOM_BITS: Final = 3
"""Bits kept free where a gradient has a second part, which makes up for them."""


class ExponentPolicy(Protocol):
    """Says which exponent a site gets."""

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        """Exponent for ``site``, whose value before the shift is at most |source| * 2^-exponent."""
        ...


class FixedExponents:
    """The exponents of a task: TaskError names a site that the task does not list, and ``mend``,
    what writes them."""

    def __init__(self, exponents: Mapping[str, int], mend: str = "`vtrain profile`") -> None:
        self._exponents = exponents
        self._mend = mend
        self.used: set[str] = set()

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        if site not in self._exponents:
            raise TaskError(
                f"the task has no exponent for this site: {self._mend} writes it",
                where=f"exponents.{site}",
            )
        self.used.add(site)
        return self._exponents[site]


@dataclass(frozen=True)
class Block:
    """A group of nodes with one gradient: what is known of the whole is not left to its parts.

    ``backward(builder, output, gradient of that output)`` gives a gradient, or None, for each of
    ``inputs``.  Differentiation does not look at the nodes between: nothing outside the block may
    read them, but for what has no gradient.  ``deep`` as in :class:`GraphBuilder`.
    """

    inputs: tuple[Ref, ...]
    backward: Callable[[Builder, Ref, Ref], Sequence[Ref | None]]
    deep: bool = False


class GraphBuilder:
    """Collects nodes.  ``policy`` decides the exponents of sites.

    ``blocks`` are by their output.  With ``symmetric_gradients``, what is rescaled to int16 after
    :meth:`differentiate` is multiplied by 1 + 2^-15 before it is rounded: halves then go away from
    zero, and not all of them up.  With ``fine_gradients``, set before anything is emitted, a
    gradient is rounded to int16 as seldom as may be, and what may differ in size has its own
    exponent (docs/adr/0027-drift.md).  Gradients that are ``deep``, of attention's scores and of
    queries and keys, grow by a factor of a hundred while a model is trained: they stay in int64,
    of 40 bits, and are multiplied in two parts of int16.  With ``wide_sums``, set as early, a sum
    of which nothing is read but sums and root mean square norms stays in int32.
    """

    def __init__(self, policy: ExponentPolicy) -> None:
        self._policy = policy
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        # For a name that was taken, how many of its kind are: "x", "x#2", ...
        self._counts: dict[str, int] = {}
        self._operands: dict[Ref, Ref] = {}
        self._differentiable: Set[Ref] = frozenset()
        self.blocks: dict[Ref, Block] = {}
        self.symmetric_gradients = False
        self.fine_gradients = False
        self.wide_sums = False
        self.deep: set[Ref] = set()

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes so far."""
        return self._nodes

    def graph(self) -> StepGraph:
        """The finished graph."""
        return StepGraph(tuple(self._nodes))

    def type_of(self, ref: Ref) -> TensorType:
        """Type of an emitted value."""
        return self._nodes[ref.node].outputs[ref.output]

    def emit(self, op: str, name: str, inputs: Sequence[Ref], /, **attrs: AttrValue) -> Ref:
        """Append a node; its type and range are inferred.  GraphError/RangeError name the node."""
        name = self._unique(name)
        try:
            output = TABLE[op].infer(attrs, [self.type_of(ref) for ref in inputs])
        except GraphError as error:
            raise type(error)(error.message, where=f"node {name} ({op})") from None
        self._nodes.append(Node(name, op, dict(attrs), tuple(inputs), (output,)))
        return Ref(len(self._nodes) - 1)

    def rescale(
        self,
        name: str,
        source: Ref,
        exponent: int,
        *,
        dtype: str = "i16",
        multiplier: int = 1,
        multiplier_exponent: int = 0,
    ) -> Ref:
        """``source`` times multiplier * 2^-multiplier_exponent, at a given exponent and dtype."""
        if dtype == "i16" and multiplier == 1 and self._rounds_symmetrically(source, exponent):
            multiplier, multiplier_exponent = SYMMETRIC, SYMMETRIC_EXPONENT
        return self.emit(
            "rescale",
            name,
            (source,),
            dtype=dtype,
            multiplier=multiplier,
            multiplier_exponent=multiplier_exponent,
            shift=self.type_of(source).exponent + multiplier_exponent - exponent,
        )

    def _rounds_symmetrically(self, source: Ref, exponent: int) -> bool:
        """Whether this is a rounding of a gradient that is to be symmetric, and can be."""
        tensor = self.type_of(source)
        largest = max(-tensor.lo, tensor.hi) * SYMMETRIC
        is_gradient = self.symmetric_gradients and bool(self._differentiable)
        return is_gradient and tensor.exponent > exponent and largest < ACCUMULATOR_LIMIT

    def rescale_at_site(
        self,
        name: str,
        source: Ref,
        *,
        multiplier: int = 1,
        multiplier_exponent: int = 0,
        room: int = 0,
    ) -> Ref:
        """Rescale to int16 at the calibrated exponent of the site ``name``, with ``room`` more bits
        kept free."""
        name = self._unique(name, reserve=False)
        # The multiplier has its bits too: |source * multiplier| <= |source| * 2^bits.
        bits = (multiplier - 1).bit_length()
        before = self.type_of(source).exponent + multiplier_exponent - bits
        exponent = self._policy.choose(name, source, before - room)
        return self.rescale(
            name,
            source,
            exponent,
            multiplier=multiplier,
            multiplier_exponent=multiplier_exponent,
        )

    def narrow(self, name: str, ref: Ref) -> Ref:
        """``ref``, in int64 and without bits below its upper 40 if it may have more."""
        if self._count_bits(ref) <= DEEP_BITS:
            return ref
        return self.rescale(name, ref, self._cut_exponent(ref, DEEP_BITS), dtype="i64")

    def as_terms(self, ref: Ref, name: str, count: int) -> Ref:
        """``ref`` itself if ``count`` of its elements add up to less than 2^60; else as int16 at
        site ``name``, or with ``fine_gradients`` in int64, without bits below its upper 40."""
        kind = self.type_of(ref)
        if max(-kind.lo, kind.hi) * count < ACCUMULATOR_LIMIT:
            return ref
        return self.narrow(name, ref) if self.fine_gradients else self.as_operand(ref, name)

    def narrow_sum(self, name: str, ref: Ref) -> Ref:
        """``ref`` in int32, without bits below its upper 23 if it may have more, or below those of
        which squares over a row add up to less than 2^60."""
        width = self.type_of(ref).shape[-1]
        most = ACCUMULATOR_LIMIT.bit_length() - 1
        bits = min(_SUM_BITS, (most - width.bit_length()) // 2)
        return self.rescale(name, ref, self._cut_exponent(ref, bits), dtype="i32")

    def _count_bits(self, ref: Ref) -> int:
        kind = self.type_of(ref)
        return max(-kind.lo, kind.hi).bit_length()

    def _cut_exponent(self, ref: Ref, bits: int) -> int:
        """The exponent at which ``ref`` has so many bits at most: its own if it has no more."""
        return self.type_of(ref).exponent - max(self._count_bits(ref) - bits, 0)

    def add_aligned(self, name: str, a: Ref, b: Ref) -> Ref:
        """a + b in int64, exact but for bits below what 39 bits of either hold."""
        kinds = [self.type_of(ref) for ref in (a, b)]
        most = [max(-kind.lo, kind.hi).bit_length() for kind in kinds]
        room = [
            kind.exponent + DEEP_BITS - 1 - bits for kind, bits in zip(kinds, most, strict=True)
        ]
        exponent = min(max(kind.exponent for kind in kinds), *room)
        aligned = [
            ref
            if kind.exponent <= exponent
            else self.rescale(f"{name}_aligned", ref, exponent, dtype="i64")
            for ref, kind in zip((a, b), kinds, strict=True)
        ]
        shift_a, shift_b = (exponent - self.type_of(ref).exponent for ref in aligned)
        return self.emit("add", name, aligned, shift_a=shift_a, shift_b=shift_b)

    def needs_gradient(self, ref: Ref) -> bool:
        """Whether the differentiation under way wants the gradient of ``ref``."""
        return ref in self._differentiable

    def differentiate(self, refs: Set[Ref]) -> None:
        """Say whose gradients are wanted, before the backward rules are asked."""
        self._differentiable = refs

    def as_operand(self, ref: Ref, name: str) -> Ref:
        """``ref`` itself if int16, else rescaled at site ``name`` (once: later calls share it)."""
        if self.type_of(ref).dtype == "i16":
            return ref
        if self.is_fine(ref):
            raise GraphError(
                "would round the gradient of many classes to 16 bits, in which most are 0: logits "
                "of so many classes must be the output of a linear layer",
                where=name,
            )
        if ref not in self._operands:
            room = _ROOM_BITS if ref in self.deep else 0
            self._operands[ref] = self.rescale_at_site(name, ref, room=room)
        return self._operands[ref]

    def as_parts(self, ref: Ref, name: str) -> Sequence[Ref]:
        """Operands that add up to ``ref``: :meth:`as_operand`, and of what is deep a second one, of
        what rounding left, with 15 bits more."""
        first = self.as_operand(ref, name)
        if ref not in self.deep:
            return (first,)
        exponent, coarse = self.type_of(ref).exponent, self.type_of(first).exponent
        finest = max(exponent, coarse)
        left = self.emit(
            "sub",
            f"{name}_left",
            (ref, first),
            shift_a=finest - exponent,
            shift_b=finest - coarse,
        )
        return first, self.rescale(f"{name}_second", left, min(coarse + _PART_BITS, finest))

    def is_deep(self, ref: Ref) -> bool:
        """Whether ``ref`` is a gradient that stays in int64 but for products."""
        return ref in self.deep

    def is_fine(self, ref: Ref) -> bool:
        """Whether ``ref`` is the gradient of many classes, in whatever shape, some rows 0."""
        node = self._nodes[ref.node]
        while node.op in ("reshape", "row_scale") or (
            node.op == "rescale" and node.attrs["dtype"] == "i32"
        ):
            node = self._nodes[node.inputs[0].node]
        return node.op == "logit_grad"

    def _unique(self, name: str, *, reserve: bool = True) -> str:
        candidate = name
        if name in self._names:
            count = self._counts.get(name, 1)
            while candidate in self._names:
                count += 1
                candidate = f"{name}#{count}"
            # Those before it stay taken.
            self._counts[name] = count - 1
        if reserve:
            self._names.add(candidate)
        return candidate
