"""The language of circuits: integer tensors, what must hold of them, and the ONNX graph for that.

A circuit is a set of committed vectors and conditions on their elements.  What costs rows in ezkl
is cells: one for each product, each look-up and each term of a sum; slices, reshapes, transposes
and concatenations are free.  Three devices keep the cells few:

*Limbs.*  A value that must lie in [0, span) is stored plus one in the vector ``limbs``, which
passes through one look-up table: v -> 1 for v <= span, 2 above (ezkl's table ends where its column
ends, not at span: docs/proofs.md, trap 6).  What comes out must be all ones.

*Random combination.*  A linear relation sum c_j x_j = 0 between tensors of one shape is not
written out element by element.  With challenge vectors a, b drawn after everything was committed
to, s(x) = a^T x b is computed once for each tensor, and sum c_j s(x_j) = 0 is one equation.  A
relation that fails somewhere passes with a chance below 2^-250 (Schwartz and Zippel: degree 2 over
the field).
A product C = A B costs as little: (a^T A)(B b) = a^T C b, Freivalds' check from both sides.

*Look-ups of our own.*  ``member`` proves that tuples occur in a table by sums of inverses (logUp).

A circuit's values are the vectors given from outside and five groups: ``limbs``, ``hints``,
``public``, ``challenge``, ``late``; what comes out are two more, ``ones`` and ``zeros``.  The proof
commits to columns, each of which costs time, so that groups share them: the given vectors, one
each; then ``private`` (limbs, hints), ``computed`` (public, challenge), ``late``, ``answers``
(ones, zeros).  One that is too long for a column goes on in another; one without elements is left
out.  The verifier compares the given ones with those in the run log, computes ``public``, ``ones``
and ``zeros`` itself, and ``challenge`` from the commitments to what precedes it.  ``late`` holds
inverses: they depend on the challenge, so no random combination speaks of them.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import ChainMap, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vtrain.errors import CircuitError
from vtrain.prove.ezkl_adapter import SCALAR_FIELD, encode_element

Ints = npt.NDArray[Any]
"""Integers of any size: int64 or Python's own in an object array."""
Compute = Callable[["Values"], Ints]


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
    ) -> None:
        """``known`` are the integers of nodes known from the start; it is filled."""
        self._builder = builder
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

    def put(self, tensor: Tensor, value: Ints) -> None:
        """Set the integers of an input."""
        self._of[tensor.index] = np.asarray(value, dtype=object).reshape(tensor.shape)


@dataclass
class _Node:
    """A node of the graph: ``op`` over the nodes ``inputs`` with ``attrs``; ``cells`` it costs."""

    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    cells: int = 0


@dataclass
class _Part:
    """A piece of a group: where it begins, its tensor, how a hint is computed."""

    name: str
    start: int
    tensor: Tensor
    compute: Compute | None


GROUPS: Final = ("limbs", "hints", "public", "challenge", "late")
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "private": ("limbs", "hints"),
    "computed": ("public", "challenge"),
    "late": ("late",),
}
"""The groups that share columns, in their order."""
ANSWERS: Final = "answers"
_RESERVED: Final = frozenset({*GROUPS, *COLUMNS, ANSWERS, "ones", "zeros"})


class CircuitBuilder:
    """Collects vectors, hints and conditions; :meth:`build` makes the circuit of them."""

    def __init__(self, inner_columns: int = 4, span: int = 1 << 16, rows: int = 2**30) -> None:
        """``inner_columns``: cells in a row; ``span``: values of a limb, at most 2^16.

        ``rows``: most elements of a column.
        """
        self.inner_columns = inner_columns
        self.span = span
        self.rows = rows
        self.nodes: list[_Node] = []
        self.pads = False
        self._given: dict[str, Tensor] = {}
        self._parts: dict[str, list[_Part]] = {name: [] for name in GROUPS}
        self._lengths: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self._names: set[tuple[str, str]] = set()
        self._order: list[tuple[str, _Part]] = []
        self._roots: dict[str, Tensor] = {}
        self._ones: list[Tensor] = []
        self._zeros: list[Tensor] = []
        self._zero_names: list[str] = []
        self._contracted: dict[tuple[int, int, int], Tensor] = {}
        self._combined: dict[int, Tensor] = {}
        self._challenges: dict[tuple[str, int], Tensor] = {}
        self._constants: dict[int, Tensor] = {}
        self._scalar_hint: dict[tuple[int, ...], Tensor] = {}

    # --- nodes

    def _emit(
        self, op: str, inputs: Sequence[Tensor], shape: Sequence[int], cells: int = 0, **attrs: Any
    ) -> Tensor:
        self.nodes.append(
            _Node(op, tuple(tensor.index for tensor in inputs), tuple(shape), attrs, cells)
        )
        return Tensor(len(self.nodes) - 1, tuple(shape))

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements in row-major order.  Free."""
        return x if tuple(shape) == x.shape else self._emit("reshape", (x,), shape)

    def transpose(self, x: Tensor) -> Tensor:
        """Of a matrix.  Free."""
        return self._emit("transpose", (x,), x.shape[::-1])

    def slice(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Elements start to stop - 1 of a flat tensor.  Free."""
        if (start, stop) == (0, x.shape[0]):
            return x
        return self._emit("slice", (x,), (stop - start,), start=start, stop=stop)

    def take(self, x: Tensor, indices: npt.NDArray[np.int64]) -> Tensor:
        """Elements of the flat ``x`` at constant indices, in the shape of ``indices``.  Free."""
        flat = self.reshape(x, (x.size,))
        taken = self._emit("take", (flat,), (indices.size,), indices=indices.reshape(-1))
        return self.reshape(taken, indices.shape)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """Flat tensors one after the other.  Free."""
        flat = [self.reshape(part, (part.size,)) for part in parts]
        if len(flat) == 1:
            return flat[0]
        return self._emit("concat", flat, (sum(part.size for part in flat),))

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Element by element, shapes equal; one cell each."""
        if x.shape != y.shape:
            raise CircuitError(f"shapes differ: {x.shape} and {y.shape}")
        return self._emit("mul", (x, y), x.shape, x.size)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Element by element, shapes equal or one of one element; one cell each."""
        return self._pairwise("add", x, y)

    def sub(self, x: Tensor, y: Tensor) -> Tensor:
        """Element by element, shapes equal or one of one element; one cell each."""
        return self._pairwise("sub", x, y)

    def scale(self, x: Tensor, factor: int | Tensor) -> Tensor:
        """Times a constant or a tensor of one element; one cell each."""
        other = self.constant(factor) if isinstance(factor, int) else factor
        return self._pairwise("mul", x, other)

    def _pairwise(self, op: str, x: Tensor, y: Tensor) -> Tensor:
        if x.shape != y.shape and 1 not in (x.size, y.size):
            raise CircuitError(f"shapes differ: {x.shape} and {y.shape}")
        shape = x.shape if x.size >= y.size else y.shape
        return self._emit(op, (x, y), shape, max(x.size, y.size))

    def materialize(self, lin: Lin) -> Tensor:
        """A linear form as a tensor: one cell for each operation on each element."""
        total: Tensor | None = None
        for tensor, weight, scalar in lin.terms:
            part = (
                tensor
                if (weight, scalar) == (1, None)
                else self.scale(tensor, self._factor(weight, scalar))
            )
            total = part if total is None else self.add(total, part)
        if total is None:
            raise CircuitError("an empty linear form")
        return total if lin.const == 0 else self.add(total, self.constant(lin.const))

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """Sum of products of two flat tensors, of shape [1]."""
        if x.shape != y.shape or len(x.shape) != 1:
            raise CircuitError(f"needs two equal vectors: {x.shape} and {y.shape}")
        return self._emit("dot", (x, y), (1,), self._padded(x.size))

    def weigh(self, parts: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
        """Sum of factor x part, all of shape [1]; of shape [1].

        Not a dot of two concatenations, which the compiler takes apart at a higher cost.
        """
        products = self.mul(self.concat(parts), self.concat(factors))
        return self._emit("sum", (products,), (1,), self._padded(products.size))

    def product_of_all(self, x: Tensor) -> Tensor:
        """[n, m] -> [n], product of each row; about one cell an element."""
        rows, columns = x.shape
        return self._emit("prod", (x,), (rows,), rows * self._padded(columns))

    def _padded(self, length: int) -> int:
        padded = -(-length // self.inner_columns) * self.inner_columns
        self.pads |= padded != length
        return padded

    def contract(self, x: Tensor, axis: int, vector: Tensor) -> Tensor:
        """Matrix times vector along ``axis``; done once for the same arguments."""
        key = (x.index, axis, vector.index)
        if key not in self._contracted:
            if len(x.shape) != 2 or vector.shape != (x.shape[axis],):
                raise CircuitError(f"cannot contract {x.shape} with {vector.shape} along {axis}")
            kept = x.shape[1 - axis]
            self._contracted[key] = self._emit(
                "contract", (x, vector), (kept,), kept * self._padded(x.shape[axis]), axis=axis
            )
        return self._contracted[key]

    # --- vectors

    def vector(self, name: str, length: int) -> Tensor:
        """A vector given and committed to from outside."""
        if name in self._given or name.partition(" ")[0] in _RESERVED:
            raise CircuitError("is given twice or reserved", where=name)
        self._given[name] = self._emit("input", (), (length,), group=name)
        return self._given[name]

    def _root(self, group: str) -> Tensor:
        """The vector of a group; its length is known at the end only."""
        if group not in self._roots:
            self._roots[group] = self._emit("input", (), (0,), group=group)
        return self._roots[group]

    def _part(self, group: str, name: str, shape: Sequence[int], compute: Compute | None) -> Tensor:
        if (group, name) in self._names:
            # Names come from graphs, and whoever looks for a part finds it by its name.
            raise CircuitError(f"names two parts of {group}", where=name)
        self._names.add((group, name))
        size = int(np.prod(shape, dtype=np.int64))
        start = self._lengths[group]
        self._lengths[group] += size
        flat = self._emit("slice", (self._root(group),), (size,), start=start, stop=start + size)
        tensor = self.reshape(flat, shape)
        part = _Part(name, start, tensor, compute)
        self._parts[group].append(part)
        self._order.append((group, part))
        return tensor

    def hint(self, name: str, shape: Sequence[int], compute: Compute) -> Tensor:
        """A private value that conditions must pin down; committed to, not range-checked."""
        return self._part("hints", name, shape, compute)

    def limb(self, name: str, shape: Sequence[int], compute: Compute) -> Lin:
        """A private value in [0, span)."""
        stored = self._part("limbs", name, shape, lambda values: compute(values) + 1)
        return stored.lin() - 1

    def late(self, name: str, shape: Sequence[int], compute: Compute) -> Tensor:
        """A private value that may depend on the challenge.

        It is committed to after the challenge: only conditions element by element may pin it down.
        """
        return self._part("late", name, shape, compute)

    def fixed(self, name: str, value: Ints) -> Tensor:
        """Constants of the circuit, any integers; elements of ``public``."""
        kept = np.asarray(value, dtype=object)
        return self._part("public", name, kept.shape, lambda values: kept)

    def parameter(self, name: str, shape: Sequence[int]) -> Tensor:
        """What the verifier knows of the one statement; elements of ``public``."""

        def look_up(values: Values) -> Ints:
            given = values.parameters.get(name)
            if given is None or np.shape(given) != tuple(shape):
                raise CircuitError(f"needs a parameter of shape {tuple(shape)}", where=name)
            return np.asarray(given, dtype=object)

        return self._part("public", name, shape, look_up)

    def constant(self, value: int) -> Tensor:
        """A public constant of shape [1], kept once.

        It is an element of ``public``, as constants of a model are exact to 24 bits only.
        """
        if value not in self._constants:
            self._constants[value] = self.fixed(f"constant {value}", np.asarray([value], object))
        return self._constants[value]

    def challenge(self, name: str, length: int) -> Tensor:
        """Field elements drawn after all else was committed to; the same for one name."""
        key = (name, length)
        if key not in self._challenges:
            self._challenges[key] = self._part("challenge", name, (length,), None)
        return self._challenges[key]

    # --- conditions

    def require_ones(self, x: Tensor) -> None:
        """Every element is 1; one of the column ``answers``, no cells."""
        self._ones.append(self.reshape(x, (x.size,)))

    def require_zero(self, name: str, x: Tensor) -> None:
        """Every element is 0; meant for few elements."""
        self._zeros.append(self.reshape(x, (x.size,)))
        self._zero_names.extend([name] * x.size)

    def combine(self, x: Tensor) -> Tensor:
        """s(x) = a^T x b of shape [1], with the challenge vectors of the shape of ``x``."""
        if x.index not in self._combined:
            rows, columns = as_matrix(x.shape)
            left, right = self.weights(x.shape)
            matrix = self.reshape(x, (rows, columns))
            if rows == 1:
                self._combined[x.index] = self.dot(self.reshape(x, (columns,)), right)
            elif (matrix.index, 0, left.index) in self._contracted:
                self._combined[x.index] = self.dot(self.contract(matrix, 0, left), right)
            else:
                self._combined[x.index] = self.dot(self.contract(matrix, 1, right), left)
        return self._combined[x.index]

    def weights(self, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The challenge vectors (a, b) of a shape; a = [1] for a vector.

        One for each length, so that contractions are shared; of a square, whose antisymmetric part
        a^T x a would not see, a second one.
        """
        rows, columns = as_matrix(shape)
        right = self.challenge(f"vector of {columns}", columns)
        if rows == 1:
            return self.constant(1), right
        name = "vector" if rows != columns else "second vector"
        return self.challenge(f"{name} of {rows}", rows), right

    def _combine_one(self, shape: Sequence[int]) -> Tensor:
        """s of the tensor of ones."""
        rows, columns = as_matrix(shape)
        key = (rows, columns)
        if key not in self._scalar_hint:
            left, right = self.weights(shape)
            total = self._emit("sum", (right,), (1,), self._padded(columns))
            if rows > 1:
                total = self.mul(self._emit("sum", (left,), (1,), self._padded(rows)), total)
            self._scalar_hint[key] = total
        return self._scalar_hint[key]

    def zero(self, name: str, lin: Lin) -> None:
        """A linear form vanishes at every element: one equation by random combination."""
        self._require_zero_combination(name, lin, None)

    def _factor(self, weight: int, scalar: Tensor | None) -> Tensor:
        fixed = self.constant(weight)
        if scalar is None:
            return fixed
        return scalar if weight == 1 else self.mul(self.reshape(scalar, (1,)), fixed)

    def _require_zero_combination(self, name: str, lin: Lin, extra: Tensor | None) -> None:
        """s(lin) = extra, in one equation."""
        parts = [self.combine(tensor) for tensor, _, _ in lin.terms]
        factors = [
            self.reshape(self._factor(weight, scalar), (1,)) for _, weight, scalar in lin.terms
        ]
        if extra is not None:
            parts.append(extra)
            factors.append(self.constant(-1))
        if lin.const:
            parts.append(self._combine_one(lin.shape))
            factors.append(self.constant(lin.const))
        self.require_zero(name, self.weigh(parts, factors))

    def zero_sum(self, name: str, terms: Sequence[tuple[Tensor, Tensor | None, int]]) -> None:
        """sum of factor x <x, y> is zero (y None: the sum of x); the caller sees to soundness."""
        parts, factors = [], []
        for x, y, factor in terms:
            flat = self.reshape(x, (x.size,))
            parts.append(
                self._emit("sum", (flat,), (1,), self._padded(x.size))
                if y is None
                else self.dot(flat, self.reshape(y, (y.size,)))
            )
            factors.append(self.constant(factor))
        self.require_zero(name, self.weigh(parts, factors))

    def matmul(
        self, name: str, a: Tensor, b: Tensor, c: Lin, *, ta: bool = False, tb: bool = False
    ) -> None:
        """c = op(a) op(b), Freivalds' check from both sides; all three committed to."""
        left, right = self.weights(c.shape)
        if c.shape[0] == 1:
            x = self.reshape(a, (a.size,))
        else:
            x = self.contract(a, 1 if ta else 0, left)
        y = self.contract(b, 0 if tb else 1, right)
        product = self.dot(x, y)
        if c.const == 0 and [term[1:] for term in c.terms] == [(1, None)]:
            # No factor, so that a tile's product needs no vector of public values.
            self.require_zero(name, self.sub(self.combine(c.terms[0][0]), product))
        else:
            self._require_zero_combination(name, c, product)

    def nonzero(self, name: str, x: Tensor) -> None:
        """No element is zero in the field: their product has an inverse."""
        product = self.product_of_all(self.reshape(x, (1, x.size)))
        inverse = self.late(
            f"{name}/inverse",
            (1,),
            lambda values: np.asarray([pow(int(values[product][0]), -1, SCALAR_FIELD)], object),
        )
        self.require_ones(self.mul(product, inverse))

    def member(
        self, name: str, columns: Sequence[Tensor], table: Sequence[npt.NDArray[Any]]
    ) -> None:
        """Each tuple (columns[0][i], columns[1][i], ...) is a row of the constant table.

        LogUp (Haboeck, ePrint 2022/1530): sum over i of 1 / (X - t_i) = sum over rows j of
        m_j / (X - T_j), with tuples folded by powers of a challenge and m_j counted beforehand.
        """
        count, rows = columns[0].size, int(table[0].size)
        x = self.challenge(f"{name}/point", 1)
        flat = [self.reshape(column, (count,)) for column in columns]

        def counts(values: Values) -> Ints:
            index = {tuple(int(column[j]) for column in table): j for j in range(rows)}
            found: Ints = np.zeros(rows, dtype=object)
            for item in zip(*(values[column] for column in flat), strict=True):
                place = index.get(tuple(int(part) for part in item))
                if place is not None:
                    found[place] += 1
            return found

        multiplicity = self.hint(f"{name}/multiplicities", (rows,), counts)
        folded, listed = flat[0], self.fixed(f"{name}/table 0", table[0])
        for position in range(1, len(flat)):
            power = self.challenge(f"{name}/fold {position}", 1)
            folded = self.add(folded, self.scale(flat[position], power))
            column = self.fixed(f"{name}/table {position}", table[position])
            listed = self.add(listed, self.scale(column, power))
        sums = []
        for what, value, weight in (("values", folded, None), ("table", listed, multiplicity)):
            gap = self.sub(x, value)
            inverse = self.late(
                f"{name}/inverses of {what}",
                gap.shape,
                lambda values, gap=gap: _invert(values[gap]),  # type: ignore[misc]
            )
            self.require_ones(self.mul(inverse, gap))
            sums.append((inverse, weight))
        self.zero_sum(name, [(sums[0][0], None, 1), (sums[1][0], sums[1][1], -1)])

    # --- the circuit

    def build(self) -> Circuit:
        """The finished circuit; the builder is not to be used after."""
        if not self._zeros:
            raise CircuitError("has no equation", where="zeros")
        answers = list(self._ones)
        if count := self._lengths["limbs"]:
            limbs = self._root("limbs")
            answers.insert(0, self._emit("limb", (limbs,), (count,), count, span=self.span))
        ones = sum(tensor.size for tensor in answers)
        inputs = {name: tensor.index for name, tensor in self._given.items()}
        for column in COLUMNS:
            inputs.update(self._share(column))
        whole = self.concat([*answers, *self._zeros])
        outputs = {
            name: self.slice(whole, start, stop).index
            for name, start, stop in cut_vector(ANSWERS, whole.size, self.rows)
        }
        return Circuit(self, inputs, outputs, ones)

    def cut(self, column: str) -> list[tuple[str, int, int]]:
        """(name, start, stop) of the columns that the groups of ``column`` fill, none or more."""
        total = sum(self._lengths[group] for group in COLUMNS[column])
        return cut_vector(column, total, self.rows) if total else []

    def _share(self, column: str) -> dict[str, int]:
        """The input nodes of columns by name; the groups become slices of them."""
        found = {
            name: self._emit("input", (), (stop - start,), group=name)
            for name, start, stop in self.cut(column)
        }
        if not found:
            return {}
        whole, start = self.concat(list(found.values())), 0
        for group in COLUMNS[column]:
            stop = start + self._lengths[group]
            if group in self._roots:
                bounds = {"start": start, "stop": stop}
                node = _Node("slice", (whole.index,), (stop - start,), bounds)
                self.nodes[self._roots[group].index] = node
            start = stop
        return {name: tensor.index for name, tensor in found.items()}

    def evaluate_node(self, index: int, known: MutableMapping[int, Ints]) -> Ints:
        """Value of a node from those in ``known``, filling it.

        Modulo the prime, next to zero: integers that are small beside it are themselves.
        """
        pending = [index]
        while pending:
            current = pending[-1]
            node = self.nodes[current]
            missing = [item for item in node.inputs if item not in known]
            if current in known:
                pending.pop()
            elif missing:
                pending.extend(missing)
            else:
                known[current] = _OPS[node.op](node, [known[item] for item in node.inputs])
                pending.pop()
        return known[index]


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


def _reduce(value: Any) -> Ints:
    return (np.asarray(value, dtype=object) + _HALF) % SCALAR_FIELD - _HALF


def _invert(values: Ints) -> Ints:
    """The inverse of each element, by one inversion for all; ValueError if one is zero."""
    products = [1]
    for item in values:
        products.append(products[-1] * int(item) % SCALAR_FIELD)
    inverse, found = pow(products.pop(), -1, SCALAR_FIELD), np.zeros(len(values), dtype=object)
    for i in reversed(range(len(values))):
        found[i] = inverse * products[i] % SCALAR_FIELD
        inverse = inverse * int(values[i]) % SCALAR_FIELD
    return found


def _evaluate_input(node: _Node, inputs: list[Ints]) -> Ints:
    raise CircuitError("has no value yet", where=str(node.attrs["group"]))


def _evaluate_limb(node: _Node, inputs: list[Ints]) -> Ints:
    """What the table answers; 0, which is never 1, where a value is in no table at all."""
    return _look_up_limbs(inputs[0], node.attrs["span"])


def _look_up_limbs(values: Ints, span: int) -> Ints:
    x = values % SCALAR_FIELD
    inside = (x >= 1) & (x <= span)
    return np.asarray(np.where(inside, 1, np.where(x == 0, 0, 2)), dtype=object)


def _evaluate_prod(node: _Node, inputs: list[Ints]) -> Ints:
    out = []
    for row in inputs[0]:
        product = 1
        for item in row:
            product = product * int(item) % SCALAR_FIELD
        out.append(product)
    return np.asarray(out, dtype=object)


_OPS: dict[str, Callable[[_Node, list[Ints]], Ints]] = {
    "input": _evaluate_input,
    "reshape": lambda node, x: x[0].reshape(node.shape),
    "transpose": lambda node, x: x[0].T,
    "slice": lambda node, x: x[0][node.attrs["start"] : node.attrs["stop"]],
    "take": lambda node, x: x[0][node.attrs["indices"]],
    "concat": lambda node, x: np.concatenate(x),
    "add": lambda node, x: _reduce(x[0] + x[1]).reshape(node.shape),
    "sub": lambda node, x: _reduce(x[0] - x[1]).reshape(node.shape),
    "mul": lambda node, x: _reduce(x[0] * x[1]).reshape(node.shape),
    "dot": lambda node, x: _reduce([(x[0] * x[1]).sum()]),
    "sum": lambda node, x: _reduce([x[0].sum()]),
    "contract": lambda node, x: _reduce(x[0].T @ x[1] if node.attrs["axis"] == 0 else x[0] @ x[1]),
    "prod": _evaluate_prod,
    "limb": _evaluate_limb,
}


def _compute(part: _Part, values: Values) -> Ints:
    if part.compute is None:
        raise CircuitError("is not computed", where=part.name)
    computed = np.asarray(part.compute(values)).reshape(-1)
    # Python's own integers: numpy's, inside an object array, would overflow.
    value = np.asarray([int(item) for item in computed.tolist()], dtype=object)
    if value.size != part.tensor.size:
        raise CircuitError(f"has {value.size} values, not {part.tensor.size}", where=part.name)
    return value


class Circuit:
    """A finished circuit: witnesses of it, its ONNX graph, what its outputs must be."""

    def __init__(
        self,
        builder: CircuitBuilder,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
        ones: int,
    ) -> None:
        self._b = builder
        self._inputs = dict(inputs)
        self._outputs = dict(outputs)
        self._ones = ones

    @property
    def cells(self) -> int:
        """Cells of the main area: rows are about cells / inner columns."""
        return sum(self._b.nodes[index].cells for index in self._order())

    @property
    def inner_columns(self) -> int:
        """Cells beside each other in one row."""
        return self._b.inner_columns

    @property
    def pads(self) -> bool:
        """Whether ezkl fills rows up with constants, which then need a column."""
        return self._b.pads

    @property
    def span(self) -> int:
        """Values of a limb: entries of the look-up table; 0 for a circuit without limbs."""
        return self._b.span if self._b._lengths["limbs"] else 0

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the vectors given from outside, in order."""
        return tuple(self._b._given)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that are inputs of the ONNX graph, in its order."""
        return tuple(self._inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns that are its outputs."""
        return tuple(self._outputs)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, in the order of their commitments in a proof."""
        return (*self.inputs, *self.outputs)

    @property
    def settled(self) -> tuple[str, ...]:
        """Names of the columns that the challenge is drawn from; ``computed`` without itself."""
        before = {name for name in GROUPS if self._b._lengths[name]} - {"challenge", "late"}
        shared = [
            name
            for column, groups in COLUMNS.items()
            if before.intersection(groups)
            for name, _, _ in self._b.cut(column)
        ]
        return (*self.given, *shared)

    def length(self, name: str) -> int:
        """Elements of a column, or of one of ``GROUPS``."""
        index = (self._inputs | self._outputs).get(name)
        return self._b._lengths[name] if index is None else self._b.nodes[index].shape[0]

    @property
    def zero_names(self) -> tuple[str, ...]:
        """For each element of ``zeros``, the condition it belongs to."""
        return tuple(self._b._zero_names)

    def parts(self, group: str) -> Iterable[tuple[str, int, int]]:
        """(name, start, stop) of each part of a group: hints, limbs, public values, challenges."""
        for part in self._b._parts[group]:
            yield part.name, part.start, part.start + part.tensor.size

    def compute_public(self, parameters: Mapping[str, Ints]) -> Ints:
        """The group ``public``: all that the verifier needs to know of a statement."""
        values = Values(self._b, parameters)
        parts = [_compute(part, values) for part in self._b._parts["public"]]
        return np.concatenate([*parts, np.zeros(0, dtype=object)])

    def lay_out(self, vectors: Mapping[str, Ints]) -> dict[str, Ints]:
        """The columns of given vectors and groups, as far as any of theirs are in ``vectors``.

        Zeros stand for a group that is missing.  CircuitError for one of another length.
        """
        b = self._b
        for name in (*b._given, *GROUPS):
            if name in vectors and len(vectors[name]) != self.length(name):
                raise CircuitError(
                    f"has {len(vectors[name])} elements, not {self.length(name)}", where=name
                )
        found = {name: vectors[name] for name in b._given if name in vectors}
        for column, groups in COLUMNS.items():
            if any(name in vectors and b._lengths[name] for name in groups):
                missing = {name: np.zeros(b._lengths[name], dtype=object) for name in groups}
                whole = np.concatenate([(missing | dict(vectors))[name] for name in groups])
                found.update((name, whole[start:stop]) for name, start, stop in b.cut(column))
        return found

    def compute_answers(self) -> dict[str, Ints]:
        """What the outputs must be: ones, then zeros."""
        b = self._b
        wanted = np.zeros(self._ones + len(b._zero_names), dtype=np.int8)
        wanted[: self._ones] = 1
        return {
            name: wanted[start:stop]
            for name, start, stop in cut_vector(ANSWERS, wanted.size, b.rows)
        }

    def assign(
        self,
        given: Mapping[str, Ints],
        parameters: Mapping[str, Ints],
        challenge: Callable[[Mapping[str, Ints]], Sequence[int]],
    ) -> dict[str, Ints]:
        """A whole witness, given vectors and groups by name: hints, the challenge drawn from them,
        late hints.

        ``challenge`` gets all but ``challenge`` and ``late`` and gives as many field elements as
        :meth:`length` of ``challenge`` says.  CircuitError for inputs that do not fit.
        """
        b = self._b
        values = Values(b, parameters)
        vectors: dict[str, Ints] = {}
        for name, tensor in b._given.items():
            if name not in given or np.size(given[name]) != tensor.size:
                raise CircuitError(f"needs {tensor.size} integers", where=name)
            vectors[name] = np.asarray(given[name], dtype=object).reshape(-1)
            values.put(tensor, vectors[name])
        whole = {group: np.zeros(b._lengths[group], dtype=object) for group in GROUPS}

        def fill(groups: Sequence[str]) -> None:
            for group, part in b._order:
                if group in groups and part.compute is not None:
                    stop = part.start + part.tensor.size
                    whole[group][part.start : stop] = _compute(part, values)
                    values.put(part.tensor, whole[group][part.start : stop])
            vectors.update((group, whole[group]) for group in groups if b._lengths[group])

        fill(("limbs", "hints", "public"))
        if b._lengths["challenge"]:
            whole["challenge"][:] = list(challenge(dict(vectors)))
            for part in b._parts["challenge"]:
                stop = part.start + part.tensor.size
                values.put(part.tensor, whole["challenge"][part.start : stop])
            vectors["challenge"] = whole["challenge"]
        fill(("late",))
        return vectors

    def evaluate(self, vectors: Mapping[str, Ints]) -> dict[str, Ints]:
        """The outputs by name, computed from a witness in the field as ezkl would."""
        known = self._read(vectors)
        return {
            name: np.asarray(self._b.evaluate_node(index, known), dtype=object) % SCALAR_FIELD
            for name, index in self._outputs.items()
        }

    def _read(self, vectors: Mapping[str, Ints]) -> dict[int, Ints]:
        """The values of the nodes of given vectors and groups."""
        b = self._b
        roots = {name: root for name, root in b._roots.items() if b._lengths[name]}
        nodes = {**b._given, **roots}
        return {tensor.index: _reduce(vectors[name]) for name, tensor in nodes.items()}

    def open(self, vectors: Mapping[str, Ints], parameters: Mapping[str, Ints]) -> Values:
        """A witness as what hints are computed from."""
        return Values(self._b, parameters, self._read(vectors))

    def find_broken(self, vectors: Mapping[str, Ints]) -> list[str]:
        """Names of the conditions that do not hold; none for a sound witness."""
        ones, zeros = np.split(np.concatenate(list(self.evaluate(vectors).values())), [self._ones])
        broken = [name for name, item in zip(self.zero_names, zeros, strict=True) if item != 0]
        limbs = list(self.parts("limbs"))
        for i in np.flatnonzero(ones != 1)[:100]:
            place = next((name for name, start, stop in limbs if start <= i < stop), "an inverse")
            broken.append(f"ones: {place}")
        return broken

    def _order(self) -> list[int]:
        """The nodes that the outputs need, each after its inputs."""
        order: dict[int, None] = {}
        pending = [(index, False) for index in reversed(list(self._outputs.values()))]
        while pending:
            index, ready = pending.pop()
            if index in order:
                continue
            if ready:
                order[index] = None
            else:
                pending.append((index, True))
                pending.extend((item, False) for item in self._b.nodes[index].inputs)
        return list(order)

    def to_onnx(self) -> bytes:
        """The graph for ezkl: float64, opset 17, inputs and outputs flat vectors."""
        emitter = _Emitter()
        names = {index: name for name, index in self._inputs.items()}
        for index in self._order():
            if index not in names:
                emitter.emit(index, self._b.nodes[index], names)
        for name, index in self._outputs.items():
            emitter.node("Identity", [f"n{index}"], name)
        inputs, outputs = (
            [
                helper.make_tensor_value_info(name, TensorProto.DOUBLE, [self.length(name)])
                for name in side
            ]
            for side in (self.inputs, self.outputs)
        )
        graph = helper.make_graph(emitter.nodes, "circuit", inputs, outputs, emitter.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString(deterministic=True))

    def encode_inputs(self, vectors: Mapping[str, Ints]) -> str:
        """The input file of ezkl: every integer as a field element."""
        columns = self.lay_out(vectors)
        return json.dumps(
            {"input_data": [[encode_element(int(v)) for v in columns[n]] for n in self.inputs]}
        )


Change = Mapping[tuple[str, int], Sequence[int] | Ints]
"""(group or given vector, first index) -> what stands there instead, within one part."""


class Trial:
    """A witness that holds, of which elements are altered: what follows from them is evaluated
    anew, and nothing else.

    Says the same as :meth:`Circuit.find_broken` of the whole altered witness, in far less time.
    """

    def __init__(
        self, circuit: Circuit, vectors: Mapping[str, Ints], parameters: Mapping[str, Ints]
    ) -> None:
        """CircuitError names the conditions that do not hold."""
        b = self._b = circuit._b
        self._parameters = parameters
        values = circuit.open(vectors, parameters)
        self._known = values._of
        self._conditions = _list_conditions(b)
        for index in self._conditions:
            b.evaluate_node(index, self._known)
        self._parts: dict[int, tuple[str, _Part]] = {}
        self._starts: dict[str, tuple[list[int], list[int]]] = {
            name: ([0], [tensor.index]) for name, tensor in b._given.items()
        }
        for group, parts in b._parts.items():
            self._starts[group] = [part.start for part in parts], []
            for part in parts:
                b.evaluate_node(part.tensor.index, self._known)
                self._parts[part.tensor.index] = group, part
                self._starts[group][1].append(part.tensor.index)
        broken = self._list_broken(self._known, [*self._conditions, *self._parts])
        if broken:
            raise CircuitError(f"the conditions do not hold: {', '.join(broken[:3])}")
        self._followers = self._find_followers(values)

    def _find_followers(self, values: Values) -> dict[int, list[int]]:
        """Nodes that a node's value goes into, also by way of how hints are computed."""
        followers = defaultdict(list)
        for index, (group, part) in self._parts.items():
            if part.compute is not None and group not in ("public", "challenge"):
                values.read.clear()
                part.compute(values)
                for item in values.read:
                    followers[item].append(index)
        for index in self._known:
            for item in self._b.nodes[index].inputs:
                followers[item].append(index)
        return followers

    def value(self, group: str, index: int) -> int:
        """An element of a given vector or of a group."""
        node, place = self._locate(group, index)
        return int(self._known[node].reshape(-1)[place])

    def _locate(self, group: str, index: int) -> tuple[int, int]:
        """The node of the part that an element is in, and its place there."""
        starts, nodes = self._starts[group]
        found = bisect_right(starts, index) - 1
        return nodes[found], index - starts[found]

    def find_broken(self, change: Change, adapting: Collection[str] = ("late",)) -> list[str]:
        """Names of the conditions that notice a change.

        Parts of the groups ``adapting`` that are not altered themselves are computed anew where
        they follow from what is altered; where one cannot be, it stays what it was.
        """
        known = ChainMap(dict[int, Ints](), self._known)
        changed: set[int] = set()
        queue: list[int] = []
        queued: set[int] = set()

        def set_value(index: int, value: Ints) -> None:
            if np.array_equal(value, known[index]):
                return
            known[index] = value
            changed.add(index)
            for item in self._followers.get(index, ()):
                if item not in queued:
                    queued.add(item)
                    heappush(queue, item)

        altered: dict[int, Ints] = {}
        for (group, start), values in change.items():
            index, place = self._locate(group, start)
            value = altered.setdefault(index, known[index].copy())
            value.reshape(-1)[place : place + len(values)] = _reduce(values)
        for index, value in altered.items():
            set_value(index, value)
        while queue:
            index = heappop(queue)
            queued.discard(index)
            if index not in self._parts:
                node = self._b.nodes[index]
                set_value(index, _OPS[node.op](node, [known[item] for item in node.inputs]))
                continue
            group, part = self._parts[index]
            if group not in adapting or index in altered:
                continue
            try:
                made = _compute(part, Values(self._b, self._parameters, known))
            except (ValueError, IndexError, OverflowError, ZeroDivisionError):
                continue
            set_value(index, _reduce(made).reshape(part.tensor.shape))
        return self._list_broken(known, sorted(changed))

    def _list_broken(self, known: Mapping[int, Ints], indices: Iterable[int]) -> list[str]:
        """Names of the conditions of these nodes that do not hold; limbs have a range."""
        broken = []
        for index in indices:
            if index in self._conditions:
                wanted, name = self._conditions[index]
                if ((known[index] - wanted) % SCALAR_FIELD).any():
                    broken.append(name)
            group, part = self._parts.get(index, ("", None))
            if part is not None and group == "limbs" and not self._is_in_range(known[index]):
                broken.append(f"ones: {part.name}")
        return broken

    def _is_in_range(self, limbs: Ints) -> bool:
        return bool((_look_up_limbs(limbs, self._b.span) == 1).all())


def _list_conditions(b: CircuitBuilder) -> dict[int, tuple[int, str]]:
    """Node -> what each of its elements must be, name; all but the ranges of limbs."""
    found, place = {}, 0
    for tensor in b._zeros:
        found[tensor.index] = 0, b._zero_names[place]
        place += tensor.size
    for tensor in b._ones:
        found[tensor.index] = 1, "ones: an inverse"
    return found


class _Emitter:
    """Writes nodes of ONNX."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: Sequence[str], output: str, **attrs: Any) -> None:
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attrs))

    def constant(self, name: str, value: Any, dtype: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def emit(self, index: int, node: _Node, names: Mapping[int, str]) -> None:
        """One node of ours as one of ONNX's."""
        x = [names.get(item, f"n{item}") for item in node.inputs]
        out = f"n{index}"
        match node.op:
            case "reshape":
                self.node(
                    "Reshape", [x[0], self.constant(f"{out}/shape", node.shape, np.int64)], out
                )
            case "transpose":
                self.node("Transpose", x, out, perm=[1, 0])
            case "slice":
                bounds = [
                    self.constant(f"{out}/{what}", [value], np.int64)
                    for what, value in (
                        ("start", node.attrs["start"]),
                        ("stop", node.attrs["stop"]),
                        ("axis", 0),
                    )
                ]
                self.node("Slice", [x[0], *bounds], out)
            case "take":
                indices = self.constant(f"{out}/indices", node.attrs["indices"], np.int64)
                self.node("Gather", [x[0], indices], out, axis=0)
            case "concat":
                self.node("Concat", x, out, axis=0)
            case "add" | "sub" | "mul":
                self.node(node.op.capitalize(), x, out)
            case "dot":
                self.node("Einsum", x, f"{out}/scalar", equation="i,i->")
                shape = self.constant(f"{out}/shape", [1], np.int64)
                self.node("Reshape", [f"{out}/scalar", shape], out)
            case "sum":
                axes = self.constant(f"{out}/axes", [0], np.int64)
                self.node("ReduceSum", [x[0], axes], out, keepdims=1)
            case "contract":
                equation = "ij,i->j" if node.attrs["axis"] == 0 else "ij,j->i"
                self.node("Einsum", x, out, equation=equation)
            case "prod":
                self.node("ReduceProd", x, out, axes=[1], keepdims=0)
            case "limb":
                step = find_step_exponent(node.attrs["span"])
                exponent = self.constant(f"{out}/exponent", step, np.float64)
                self.node("Pow", [x[0], exponent], out)
            case _:
                raise CircuitError("no such node", where=node.op)
