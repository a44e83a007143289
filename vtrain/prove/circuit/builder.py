"""The language of circuits: integer tensors, what must hold of them, and the ONNX graph for that.

A circuit is a set of committed vectors and conditions on their elements.  What costs rows in ezkl
is cells: one for each product, each look-up and each term of a sum; slices, reshapes, transposes
and concatenations are free.  Three devices keep the cells few:

*Limbs.*  A value that must lie in [0, span) is stored plus one in the vector ``limbs``, which
passes through one look-up table: v -> 1 for v <= span, 2 above (ezkl's table ends where its column
ends, not at span: docs/proofs.md, trap 6).  What comes out must be all ones.

*Masks.*  A proof tells how often each value is looked up in a column of cells: by a commitment and
an evaluation without any blinding, and by three more values of a sum whose blinding is the same for
all columns.  So random limbs, drawn anew for each proof, are looked up among the others, ``MASKS``
at least in each column of cells that any other is in: :meth:`CircuitBuilder._look_up`.

*Random combination.*  A linear relation sum c_j x_j = 0 between tensors of one shape is not
written out element by element.  With vectors a, b that follow from a challenge drawn after
everything was committed to, s(x) = a^T x b is computed once for each tensor, and sum c_j s(x_j) = 0
is one equation.  A product C = A B costs as little: (a^T A)(B b) = a^T C b, Freivalds' check from
both sides.

*Look-ups of our own.*  ``member`` proves that tuples occur in a table by sums of inverses (logUp).

*One challenge.*  The challenge c is one element of the field.  A vector of n is (g, g^2, ..., g^n)
with g = c^e, made in the circuit by doubling; e is the product of the lengths of the vectors made
before it.  So the products of elements of different vectors are different powers of c (digits of a
mixed radix), and a condition is a polynomial in c that vanishes only if all its coefficients do,
which are what the relation claims to be zeros.  A false one of degree d passes with a chance of d/r
at most (Schwartz and Zippel); ``Circuit.degree`` is the sum of all these d.

A circuit's values are the vectors given from outside and five groups: ``limbs``, ``hints``,
``public``, ``challenge`` (the element, and what a verifier computes from it), ``late``; what comes
out are two more, ``ones`` and ``zeros``.  The proof
commits to columns, each of which costs time, so that groups share them: the given vectors, one
each; then ``private`` (limbs, hints), ``computed`` (public, challenge), ``late``, ``answers``
(ones, zeros).  One that is too long for a column goes on in another; one without elements is left
out.  Behind the values of a given, ``private`` or ``late`` column stand ``HIDING`` more elements
that no condition reads.  The verifier compares the given ones with those in the run log, computes
``public``, ``ones`` and ``zeros`` itself, and ``challenge`` from the commitments to what precedes
it.  ``late`` holds inverses: they depend on the challenge, so no random combination speaks of them.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.errors import CircuitError
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import (
    ANSWERS,
    COLUMNS,
    GROUPS,
    HIDDEN,
    HIDING_ELEMENTS,
    MASKS_PART,
    OPS,
    Compute,
    Ints,
    Lin,
    Node,
    Part,
    Tensor,
    Values,
    as_matrix,
    cut_vector,
    invert,
)
from vtrain.spec.field import SCALAR_FIELD
from vtrain.wire.proof import HIDING

_RESERVED: Final = frozenset({*GROUPS, *COLUMNS, ANSWERS, HIDING_ELEMENTS, "ones", "zeros"})
MASKS: Final = 192
"""Random limbs in a column of cells, at least: 192 draws of some 15 bits, in no order, have 1,693
bits (1,885 where limbs have 16), more than the five elements of the field and 2^-128 that are told
of them, 1,526."""
MAX_DEGREE: Final = SCALAR_FIELD >> 200
"""Of all conditions together: beyond it a false statement could pass with a chance of 2^-200."""


class CircuitBuilder:
    """Collects vectors, hints and conditions; :meth:`build` makes the circuit of them."""

    def __init__(
        self,
        inner_columns: int = 4,
        span: int = 1 << 16,
        rows: int = 2**30,
        masks: int | None = None,
    ) -> None:
        """``inner_columns``: cells in a row; ``span``: values of a limb, at most 2^16.

        ``rows``: most values of a column, at most the rows of cells of a block.  ``masks`` is
        ``MASKS`` but in tests.
        """
        self.masks = MASKS if masks is None else masks
        self.inner_columns = inner_columns
        self.span = span
        self.rows = rows
        self.nodes: list[Node] = []
        self.pads = False
        self._given: dict[str, Tensor] = {}
        self._inputs: dict[str, int] = {}
        self._parts: dict[str, list[Part]] = {name: [] for name in GROUPS}
        self._lengths: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self._names: set[tuple[str, str]] = set()
        self._order: list[tuple[str, Part]] = []
        self._roots: dict[str, Tensor] = {}
        self._ones: list[Tensor] = []
        self._zeros: list[Tensor] = []
        self._zero_names: list[str] = []
        self._contracted: dict[tuple[int, int, int], Tensor] = {}
        self._combined: dict[int, Tensor] = {}
        self._element: Tensor | None = None
        self._squares: list[Tensor] = []
        self._products: dict[tuple[int, int], Tensor] = {}
        self._vectors: dict[tuple[str, int], Tensor] = {}
        self._degrees: dict[int, int] = {}
        self._next: tuple[Tensor, int] | None = None
        self._degree = 0
        self._constants: dict[int, Tensor] = {}
        self._scalar_hint: dict[tuple[int, ...], Tensor] = {}

    # --- nodes

    def _emit(
        self, op: str, inputs: Sequence[Tensor], shape: Sequence[int], cells: int = 0, **attrs: Any
    ) -> Tensor:
        self.nodes.append(
            Node(op, tuple(tensor.index for tensor in inputs), tuple(shape), attrs, cells)
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
        """Element by element, shapes equal; one cell each.  Of one element done once for the same
        arguments, as the compiler does."""
        if x.shape != y.shape:
            raise CircuitError(f"shapes differ: {x.shape} and {y.shape}")
        if x.size > 1:
            return self._emit("mul", (x, y), x.shape, x.size)
        key = (x.index, y.index)
        if key not in self._products:
            self._products[key] = self._emit("mul", (x, y), x.shape, 1)
        return self._products[key]

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
        self._given[name] = self._input(name, length, HIDING)
        return self._given[name]

    def _input(self, name: str, length: int, hiding: int) -> Tensor:
        """The values of a column; elements behind them are looked at by nothing."""
        whole = self._emit("input", (), (length + hiding,), group=name)
        self._inputs[name] = whole.index
        return self.slice(whole, 0, length)

    def _root(self, group: str) -> Tensor:
        """The vector of a group; its length is known at the end only."""
        if group not in self._roots:
            self._roots[group] = self._emit("input", (), (0,), group=group)
        return self._roots[group]

    def _part(
        self,
        group: str,
        name: str,
        shape: Sequence[int],
        compute: Compute | None,
        constant: Ints | None = None,
    ) -> Tensor:
        if (group, name) in self._names:
            # Names come from graphs, and whoever looks for a part finds it by its name.
            raise CircuitError(f"names two parts of {group}", where=name)
        self._names.add((group, name))
        size = int(np.prod(shape, dtype=np.int64))
        start = self._lengths[group]
        self._lengths[group] += size
        flat = self._emit("slice", (self._root(group),), (size,), start=start, stop=start + size)
        tensor = self.reshape(flat, shape)
        part = Part(name, start, tensor, compute, constant)
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
        return self._part("public", name, kept.shape, lambda values: kept, kept)

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

    # --- the challenge

    @property
    def element(self) -> Tensor:
        """The challenge: one element of the field, of shape [1], drawn after all else was committed
        to."""
        if self._element is None:
            self._element = self._part("challenge", "element", (1,), None)
            self._squares.append(self._element)
        return self._element

    def expanded(self, name: str, length: int) -> Tensor:
        """What the verifier computes from the challenge, behind it in its group."""
        _ = self.element
        return self._part("challenge", name, (length,), None)

    def power(self, exponent: int) -> Tensor:
        """A power of the challenge, by squares and products; each square is made once."""
        found: Tensor | None = None
        base = self.element
        for position in range(exponent.bit_length()):
            if position:
                if position == len(self._squares):
                    self._squares.append(self.mul(base, base))
                base = self._squares[position]
            if exponent >> position & 1:
                found = base if found is None else self.mul(found, base)
        if found is None:
            raise CircuitError(f"is no power: {exponent}", where="challenge")
        return found

    def powers(self, name: str, length: int) -> Tensor:
        """(g, g^2, ..., g^length), g the power of the challenge that follows all vectors made
        before; the same for one name.

        Made by doubling, (v, g^m v) from v of m elements, by whole rows of cells: what began in the
        middle of one would need a column of constants, which a tile's product has not.  All is
        taken by indices: the compiler would take slices and concatenations apart, with every
        contraction by them.
        """
        key = (name, length)
        if key not in self._vectors:
            vector, exponent = self._next or (self.element, 1)
            while (size := vector.size) < length:
                rows = -(-min(size, length - size) // self.inner_columns)
                more = self._pick(vector, np.arange(rows * self.inner_columns) % size)
                last = self._pick(vector, np.asarray([size - 1]))
                product = self.scale(more, last) if more.size > 1 else self.mul(more, last)
                both = self.concat([vector, product])
                vector = self.take(both, np.arange(min(2 * size, length)))
            self._vectors[key] = vector
            self._degrees[vector.index] = exponent * length
            self._next = self._pick(vector, np.asarray([length - 1])), exponent * length
        return self._vectors[key]

    def _pick(self, x: Tensor, indices: npt.NDArray[np.int64]) -> Tensor:
        """Elements at indices; of one element itself, as the compiler has it."""
        return x if x.size == indices.size == 1 else self.take(x, indices)

    def degree_of(self, *vectors: Tensor) -> int:
        """The degree in the challenge of a product of elements of these vectors."""
        return sum(self._degrees.get(vector.index, 0) for vector in vectors)

    # --- conditions

    def require_ones(self, x: Tensor) -> None:
        """Every element is 1; one of the column ``answers``, no cells."""
        self._ones.append(self.reshape(x, (x.size,)))

    def require_zero(self, name: str, x: Tensor, degree: int = 0) -> None:
        """Every element is 0; meant for few elements.

        ``degree`` is that of a random combination in the challenge: it may be 0 of a false relation
        with a chance of degree / r.
        """
        self._zeros.append(self.reshape(x, (x.size,)))
        self._zero_names.extend([name] * x.size)
        self._degree += degree

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
        right = self.powers("vector", columns)
        if rows == 1:
            return self.constant(1), right
        return self.powers("vector" if rows != columns else "second vector", rows), right

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
        degree = self.degree_of(*self.weights(lin.shape))
        self.require_zero(name, self.weigh(parts, factors), degree)

    def zero_sum(
        self, name: str, terms: Sequence[tuple[Tensor, Tensor | None, int]], degree: int = 0
    ) -> None:
        """sum of factor x <x, y> is zero (y None: the sum of x); the caller sees to soundness.

        ``degree`` as of :meth:`require_zero`.
        """
        parts, factors = [], []
        for x, y, factor in terms:
            flat = self.reshape(x, (x.size,))
            parts.append(
                self._emit("sum", (flat,), (1,), self._padded(x.size))
                if y is None
                else self.dot(flat, self.reshape(y, (y.size,)))
            )
            factors.append(self.constant(factor))
        self.require_zero(name, self.weigh(parts, factors), degree)

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
            difference = self.sub(self.combine(c.terms[0][0]), product)
            self.require_zero(name, difference, self.degree_of(left, right))
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
        self,
        name: str,
        columns: Sequence[Tensor],
        table: Sequence[npt.NDArray[Any]] | Sequence[Tensor],
    ) -> None:
        """Each tuple (columns[0][i], columns[1][i], ...) is a row of the table, which is constant
        or of parameters.

        LogUp (Haboeck, ePrint 2022/1530): sum over i of 1 / (X - t_i) = sum over rows j of
        m_j / (X - T_j), with tuples folded by powers of c and m_j counted beforehand.  Multiplied
        by all denominators, that is a polynomial in X and c, of degree at most (number of columns -
        1)(values + rows) in c.  With X = c^E for an E above that, the powers of both are different
        powers of c.
        """
        count, rows = columns[0].size, int(table[0].size)
        exponent = (len(columns) - 1) * (count + rows) + 1
        x = self.power(exponent)
        flat = [self.reshape(column, (count,)) for column in columns]

        def counts(values: Values) -> Ints:
            listed = [values[item] if isinstance(item, Tensor) else item for item in table]
            index = {tuple(int(column[j]) for column in listed): j for j in range(rows)}
            found: Ints = np.zeros(rows, dtype=object)
            for item in zip(*(values[column] for column in flat), strict=True):
                place = index.get(tuple(int(part) for part in item))
                if place is not None:
                    found[place] += 1
            return found

        multiplicity = self.hint(f"{name}/multiplicities", (rows,), counts)

        def take(position: int) -> Tensor:
            item = table[position]
            if isinstance(item, Tensor):
                return item
            return self.fixed(f"{name}/table {position}", item)

        folded, listed = flat[0], take(0)
        for position in range(1, len(flat)):
            power = self.power(position)
            folded = self.add(folded, self.scale(flat[position], power))
            listed = self.add(listed, self.scale(take(position), power))
        sums = []
        for what, value, weight in (("values", folded, None), ("table", listed, multiplicity)):
            gap = self.sub(x, value)
            inverse = self.late(
                f"{name}/inverses of {what}",
                gap.shape,
                lambda values, gap=gap: invert(values[gap]),  # type: ignore[misc]
            )
            self.require_ones(self.mul(inverse, gap))
            sums.append((inverse, weight))
        terms = [(sums[0][0], None, 1), (sums[1][0], sums[1][1], -1)]
        self.zero_sum(name, terms, exponent * (count + rows))

    # --- the circuit

    def build(self) -> Circuit:
        """The finished circuit; the builder is not to be used after."""
        if not self._zeros:
            raise CircuitError("has no equation", where="zeros")
        if self._degree > MAX_DEGREE:
            raise CircuitError(
                f"has conditions of degree {self._degree}; {MAX_DEGREE} is the most that a "
                "challenge of one element is sound for",
                where="challenge",
            )
        answers, looked_up = list(self._ones), np.zeros(0, dtype=np.int64)
        if self._lengths["limbs"]:
            limbs = self._look_up()
            count = self._lengths["limbs"]
            answers.insert(0, self._emit("limb", (limbs,), (count,), count, span=self.span))
            places = {self._root("limbs").index: np.arange(count)}
            looked_up = self.evaluate_node(limbs.index, places)
        ones = sum(tensor.size for tensor in answers)
        for column in COLUMNS:
            self._share(column)
        whole = self.concat([*answers, *self._zeros])
        outputs = {
            name: self.slice(whole, start, stop).index
            for name, start, stop in cut_vector(ANSWERS, whole.size, self.rows)
        }
        return Circuit(self, self._inputs, outputs, ones, looked_up)

    def _look_up(self) -> Tensor:
        """The limbs in the order in which they are looked up, with masks among them.

        Cells follow each other row by row, wherever the first one is, so that a run of as many
        masks as there are inner columns has one in each of these.  ``MASKS`` such runs come first,
        so many last, and of the rows between one in ``rows // MASKS`` is a run.  So a block has
        ``MASKS`` runs: those at one end, or those in between if it is full; or it holds a part of
        the runs at one end alone.
        """
        whole, count, run = self._root("limbs"), self._lengths["limbs"], self.inner_columns
        if not self.masks:
            return whole
        between = max(self.rows // self.masks - 1, 1) * run
        rows, ends = count // between, self.masks * run
        total = 2 * ends + rows * run
        masks = self._part(
            "limbs", MASKS_PART, (total,), lambda values: values.draw(total, self.span) + 1
        )
        pieces = [self.slice(masks, 0, ends)]
        if rows:
            mixed = (
                self.reshape(self.slice(whole, 0, rows * between), (rows, between)),
                self.reshape(self.slice(masks, 2 * ends, total), (rows, run)),
            )
            pieces.append(self._emit("beside", mixed, (rows, between + run)))
        if rest := count - rows * between:
            pieces.append(self.slice(whole, count - rest, count))
        return self.concat([*pieces, self.slice(masks, ends, 2 * ends)])

    def cut(self, column: str) -> list[tuple[str, int, int]]:
        """(name, start, stop) of the columns that the groups of ``column`` fill, none or more."""
        total = sum(self._lengths[group] for group in COLUMNS[column])
        return cut_vector(column, total, self.rows) if total else []

    def _share(self, column: str) -> None:
        """The input nodes of columns; the groups become slices of them."""
        hiding = HIDING if column in HIDDEN else 0
        found = [self._input(name, stop - start, hiding) for name, start, stop in self.cut(column)]
        if not found:
            return
        whole, start = self.concat(found), 0
        for group in COLUMNS[column]:
            stop = start + self._lengths[group]
            if group in self._roots:
                bounds = {"start": start, "stop": stop}
                node = Node("slice", (whole.index,), (stop - start,), bounds)
                self.nodes[self._roots[group].index] = node
            start = stop

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
                known[current] = OPS[node.op](node, [known[item] for item in node.inputs])
                pending.pop()
        return known[index]
