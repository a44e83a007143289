"""What stands in a circuit: tensors, linear forms, nodes, and their values in the field."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.errors import CircuitError
from vtrain.spec.field import SCALAR_FIELD

if TYPE_CHECKING:
    from vtrain.prove.circuit.builder import CircuitBuilder


Ints = npt.NDArray[Any]
"""Integers of any size: int64 or Python's own in an object array."""
Compute = Callable[["Values"], Ints]
Random = Callable[[int], bytes]
"""So many bytes that nobody can guess, such as ``secrets.token_bytes``."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the circuit: element ``index`` of the builder's nodes."""

    index: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def lin(self) -> Lin:
        """Itself as a linear form."""
        return Lin(self.shape, ((self, 1, None),), 0)

    def times(self, scalar: Tensor) -> Lin:
        """Itself times a tensor of one element, as a linear form."""
        return Lin(self.shape, ((self, 1, scalar),), 0)


@dataclass(frozen=True)
class Lin:
    """A linear form over tensors of one shape: a sum of terms plus a constant.

    A term is (tensor, integer factor, tensor of one element or None): their product.
    """

    shape: tuple[int, ...]
    terms: tuple[tuple[Tensor, int, Tensor | None], ...]
    const: int

    def times(self, scalar: Tensor, ones: Tensor | None) -> Lin:
        """Itself, with integer factors alone, times a tensor of one element.

        Its constant, if it has one, takes ``ones``, a tensor of ones.
        """
        terms = [(x, weight, scalar) for x, weight, _ in self.terms]
        if any(factor is not None for *_, factor in self.terms) or (self.const and ones is None):
            raise CircuitError("cannot be multiplied")
        if ones is not None and self.const:
            terms.append((ones, self.const, scalar))
        return Lin(self.shape, tuple(terms), 0)

    def __add__(self, other: Lin | int) -> Lin:
        if isinstance(other, int):
            return Lin(self.shape, self.terms, self.const + other)
        if other.shape != self.shape:
            raise CircuitError(f"shapes differ: {self.shape} and {other.shape}")
        return Lin(self.shape, self.terms + other.terms, self.const + other.const)

    def __sub__(self, other: Lin | int) -> Lin:
        return self + (-other if isinstance(other, int) else other * -1)

    def __mul__(self, factor: int) -> Lin:
        terms = tuple((tensor, weight * factor, scalar) for tensor, weight, scalar in self.terms)
        return Lin(self.shape, terms, self.const * factor)

    __rmul__ = __mul__


class Values:
    """What hints are computed from: integers of tensors already known."""

    def __init__(
        self,
        builder: CircuitBuilder,
        parameters: Mapping[str, Ints],
        known: MutableMapping[int, Ints] | None = None,
        random: Random = secrets.token_bytes,
    ) -> None:
        """``known`` are the integers of nodes known from the start; it is filled."""
        self._builder = builder
        self._random = random
        self._of: MutableMapping[int, Ints] = {} if known is None else known
        self.parameters = parameters
        """What the verifier knows of the one statement, by name."""
        self.read: set[int] = set()
        """Nodes of the tensors that were asked for."""

    def __getitem__(self, value: Tensor | Lin) -> Ints:
        """The integers of a tensor or of a linear form of tensors."""
        if isinstance(value, Tensor):
            self.read.add(value.index)
            return self._builder.evaluate_node(value.index, self._of)
        total: Ints = np.full(value.shape, value.const, dtype=object)
        for tensor, weight, scalar in value.terms:
            factor = weight if scalar is None else weight * self[scalar].reshape(())[()]
            total = total + self[tensor].astype(object) * factor
        return np.asarray(total, dtype=object)

    def draw(self, count: int, span: int) -> Ints:
        """Integers in [0, span), span at most 2^16, within 2^-48 of uniform."""
        words = np.frombuffer(self._random(8 * count), dtype="<u8")
        return (words % np.uint64(span)).astype(np.int64).astype(object)

    def put(self, tensor: Tensor, value: Ints) -> None:
        """Set the integers of an input."""
        self._of[tensor.index] = np.asarray(value, dtype=object).reshape(tensor.shape)


@dataclass
class Node:
    """A node of the graph: ``op`` over the nodes ``inputs`` with ``attrs``; ``cells`` it costs."""

    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    cells: int = 0


@dataclass
class Part:
    """A piece of a group: where it begins, its tensor, how a hint is computed; ``constant`` has the
    integers of one that is the same in every statement."""

    name: str
    start: int
    tensor: Tensor
    compute: Compute | None
    constant: Ints | None = None


GROUPS: Final = ("limbs", "hints", "public", "challenge", "late")
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "private": ("limbs", "hints"),
    "computed": ("public", "challenge"),
    "late": ("late",),
}
"""The groups that share columns, in their order."""
ANSWERS: Final = "answers"
MASKS_PART: Final = "masks"
"""The limbs that stand for nothing: any in range will do."""
HIDING_ELEMENTS: Final = "hiding"
"""What stands behind the values of hidden columns, in their order, ``HIDING`` a column."""
HIDDEN: Final = ("private", "late")
"""The shared columns that are hidden, as the given ones are; the verifier computes the others."""
_ELEMENT_BYTES: Final = 48


def draw_elements(random: Random, count: int) -> Ints:
    """Elements of the field, within 2^-130 of uniform."""
    drawn = random(_ELEMENT_BYTES * count)
    starts = range(0, len(drawn), _ELEMENT_BYTES)
    return np.asarray(
        [int.from_bytes(drawn[at : at + _ELEMENT_BYTES], "little") % SCALAR_FIELD for at in starts],
        dtype=object,
    )


def find_step_exponent(span: int) -> float:
    """The binary32 a with round(v^a) = 1 for 1 <= v <= span and 2 from there to far beyond."""
    step = float(np.float32(math.log(1.5) / math.log(span + 0.5)))
    if not span**step < 1.5 <= (span + 1) ** step:
        raise CircuitError(f"no exponent of 32 bits steps at {span}", where="limbs")
    return step


def cut_vector(name: str, length: int, rows: int) -> list[tuple[str, int, int]]:
    """(name, start, stop) of the vectors that make up a longer one: ``name``, or ``name 0`` ..."""
    if length <= rows:
        return [(name, 0, length)]
    starts = range(0, length, rows)
    return [(f"{name} {i}", start, min(start + rows, length)) for i, start in enumerate(starts)]


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """A shape as [rows, columns]: all extents but the last together."""
    columns = shape[-1] if shape else 1
    rows = int(np.prod(shape[:-1], dtype=np.int64)) if len(shape) > 1 else 1
    return rows, columns


_HALF: Final = SCALAR_FIELD // 2


def reduce(value: Any) -> Ints:
    """Modulo the prime, next to zero."""
    return (np.asarray(value, dtype=object) + _HALF) % SCALAR_FIELD - _HALF


def invert(values: Ints) -> Ints:
    """The inverse of each element, by one inversion for all; ValueError if one is zero."""
    products = [1]
    for item in values:
        products.append(products[-1] * int(item) % SCALAR_FIELD)
    inverse, found = pow(products.pop(), -1, SCALAR_FIELD), np.zeros(len(values), dtype=object)
    for i in reversed(range(len(values))):
        found[i] = inverse * products[i] % SCALAR_FIELD
        inverse = inverse * int(values[i]) % SCALAR_FIELD
    return found


def _evaluate_input(node: Node, inputs: list[Ints]) -> Ints:
    raise CircuitError("has no value yet", where=str(node.attrs["group"]))


def _evaluate_limb(node: Node, inputs: list[Ints]) -> Ints:
    """What the table answers; 0, which is never 1, where a value is in no table at all."""
    return look_up_limbs(inputs[0], node.attrs["span"])


def look_up_limbs(values: Ints, span: int) -> Ints:
    """What the table of limbs makes of each value; 0 where it is in no table."""
    x = values % SCALAR_FIELD
    inside = (x >= 1) & (x <= span)
    return np.asarray(np.where(inside, 1, np.where(x == 0, 0, 2)), dtype=object)


def _evaluate_prod(node: Node, inputs: list[Ints]) -> Ints:
    out = []
    for row in inputs[0]:
        product = 1
        for item in row:
            product = product * int(item) % SCALAR_FIELD
        out.append(product)
    return np.asarray(out, dtype=object)


OPS: dict[str, Callable[[Node, list[Ints]], Ints]] = {
    "input": _evaluate_input,
    "reshape": lambda node, x: x[0].reshape(node.shape),
    "transpose": lambda node, x: x[0].T,
    "slice": lambda node, x: x[0][node.attrs["start"] : node.attrs["stop"]],
    "take": lambda node, x: x[0][node.attrs["indices"]],
    "concat": lambda node, x: np.concatenate(x),
    "beside": lambda node, x: np.concatenate(x, axis=1),
    "add": lambda node, x: reduce(x[0] + x[1]).reshape(node.shape),
    "sub": lambda node, x: reduce(x[0] - x[1]).reshape(node.shape),
    "mul": lambda node, x: reduce(x[0] * x[1]).reshape(node.shape),
    "dot": lambda node, x: reduce([(x[0] * x[1]).sum()]),
    "sum": lambda node, x: reduce([x[0].sum()]),
    "contract": lambda node, x: reduce(x[0].T @ x[1] if node.attrs["axis"] == 0 else x[0] @ x[1]),
    "prod": _evaluate_prod,
    "limb": _evaluate_limb,
}


def compute_part(part: Part, values: Values) -> Ints:
    """The elements of a part, flat; CircuitError where it is not computed, or not all of it."""
    if part.compute is None:
        raise CircuitError("is not computed", where=part.name)
    computed = np.asarray(part.compute(values)).reshape(-1)
    # Python's own integers: numpy's, inside an object array, would overflow.
    value = np.asarray([int(item) for item in computed.tolist()], dtype=object)
    if value.size != part.tensor.size:
        raise CircuitError(f"has {value.size} values, not {part.tensor.size}", where=part.name)
    return value
