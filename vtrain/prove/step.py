"""The circuit of a whole gradient step: one statement for all arithmetic nodes of a step graph.

Given vectors are ``before``, ``batch`` and ``after`` (``vtrain.commit.kzg_layout``, kind "step");
parameters are ``rate``, the mantissa of the learning rate, and ``loss``, both of the step record's
own step.  What it says: the law (``vtrain.ops``) maps state and batch to the state after and to the
loss.  Nodes that choose samples or hash are not in it: sample order and rates are public, and
hashes are compared outside.  A graph may be any legal one, not only such as vtrain makes: what
would leave a value tied to nothing is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from vtrain.commit.kzg_layout import state_names
from vtrain.errors import CircuitError, GraphError
from vtrain.graph.step import STEP_STATE
from vtrain.ops import TABLE
from vtrain.ops.optimizer import DECAY_EXPONENT
from vtrain.prove import gadgets
from vtrain.prove.circuit import (
    Circuit,
    CircuitBuilder,
    Ints,
    Lin,
    Tensor,
    Values,
    cut_vector,
)
from vtrain.prove.keys import MAX_BLOCKS, count_blocks, count_usable, estimate
from vtrain.prove.tiling import OUTSIDE
from vtrain.spec.number import NUMPY_DTYPES, PROBABILITY_EXPONENT, SATURATION, STORAGE, rs_int
from vtrain.wire.graph import Attrs, Node, Ref, StepGraph, TensorType
from vtrain.wire.proof import LEAST_STEP_K

BEFORE, BATCH, AFTER = "before", "batch", "after"
RATE, LOSS = "rate", "loss"

_OUTSIDE: Final = OUTSIDE - {"schedule"}
"""Operators that choose samples, count or hash: no arithmetic of the step."""

STEP_CIRCUITS: Final[Mapping[str, bool]] = {"step": False, "step-clamps": True}
"""Circuits of whole steps by name, and whether parameters and momenta may saturate in them.

Without clamps a circuit holds of no step in which a parameter, a momentum or a parameter's operand
saturates, or comes close to it, within 2^15 units of the former two, 2^13 of the last: smaller by
half, and enough for nearly every step.  What saturates elsewhere is proven by both.
"""
MAX_INNER_COLUMNS: Final = 3
"""More make the gates' degree larger and everything twice as dear: rather another block."""


def build_step_circuit(graph: StepGraph, k: int, name: str = "step") -> Circuit:
    """The circuit ``name`` of ``graph``'s step, in the blocks of columns that take least memory.

    CircuitError names a node that no circuit exists for, or says that k is too small.
    """
    if name not in STEP_CIRCUITS:
        raise CircuitError(f"is none of {', '.join(STEP_CIRCUITS)}", where=name)
    rows = count_usable(k)
    if k < LEAST_STEP_K:
        raise CircuitError(f"whole steps need k of {LEAST_STEP_K} at least, not {k}", where="k")
    _refuse_giants(graph, MAX_BLOCKS * MAX_INNER_COLUMNS * rows, name)
    best: Circuit | None = None
    for columns in range(1, MAX_INNER_COLUMNS + 1):
        circuit = build_with(graph, Size(columns, rows), clamps=STEP_CIRCUITS[name])
        blocks = count_blocks(circuit, k)
        if blocks <= MAX_BLOCKS and (
            best is None or estimate(circuit, k).memory < estimate(best, k).memory
        ):
            best = circuit
        if blocks == 1:  # wider ones are one block, too, and take more
            break
    if best is None:
        raise CircuitError(
            f"has {circuit.cells} cells: too many for {MAX_BLOCKS} blocks of "
            f"{MAX_INNER_COLUMNS} columns of 2^{k} rows",
            where=f"circuit {name}",
        )
    return best


def _refuse_giants(graph: StepGraph, cells: int, name: str) -> None:
    """CircuitError, before anything of the size of a tensor is made, for what never fits.

    Steps as vtrain makes them take four cells an element and more.
    """
    elements = sum(
        output.size for node in graph.nodes if node.op not in _OUTSIDE for output in node.outputs
    )
    if elements > cells:
        raise CircuitError(
            f"a step of {elements} elements is too large for {cells} cells",
            where=f"circuit {name}",
        )


@dataclass(frozen=True)
class Size:
    """Columns of cells, values of a vector, values of a limb."""

    inner_columns: int
    rows: int
    span: int = 1 << 16


def build_with(graph: StepGraph, size: Size, *, clamps: bool) -> Circuit:
    """The circuit of ``graph``'s step in columns given; ``span`` below 2^16 is for trials."""
    return _StepBuilder(graph, size, clamps=clamps).build()


def _derive_types(graph: StepGraph) -> list[TensorType]:
    """The type of each node where states are int32, which is all that the circuit shows of them.

    Their own types claim less: that the law left them, which no step says of the state before it.
    """
    types: list[TensorType] = []
    for index, node in enumerate(graph.nodes):
        if node.op in _OUTSIDE:
            types.append(node.outputs[0])
            continue
        if any(ref.node >= index for ref in node.inputs):
            raise CircuitError("reads what comes after it", where=node.name)
        try:
            kind = TABLE[node.op].infer(node.attrs, [types[ref.node] for ref in node.inputs])
        except GraphError as error:
            raise CircuitError(f"has no circuit: {error.message}", where=node.name) from None
        if node.op == "state" and node.attrs["name"] != STEP_STATE:
            lo, hi = STORAGE["i32"]
            kind = replace(kind, lo=lo, hi=hi)
        types.append(kind)
    return types


class _StepBuilder:
    def __init__(self, graph: StepGraph, size: Size, *, clamps: bool) -> None:
        if size.span != 1 << 16:
            raise CircuitError("whole steps need limbs of 16 bits", where="span")
        self.graph = graph
        self.types = _derive_types(graph)
        self.clamps = clamps
        self.b = CircuitBuilder(size.inner_columns, size.span, size.rows)
        self.values: dict[Ref, Tensor | Lin] = {}
        self.before: dict[str, Tensor] = {}
        self.after: dict[str, Tensor] = {}
        self.state_of: dict[Ref, str] = {ref: name for name, ref in graph.states().items()}
        self.next_of: dict[str, Ref] = {
            name: graph.nodes[ref.node].inputs[0] for name, ref in graph.next_states().items()
        }
        self.logged_loss = graph.nodes[graph.find("record")].inputs[2]
        self.held: frozenset[Ref] = frozenset(
            node.inputs[0]
            for node in graph.nodes
            if _splits_operand(node) or (not clamps and _holds_operand(node))
        )
        self.softmaxes: set[Ref] = set()

    def build(self) -> Circuit:
        graph, b = self.graph, self.b
        self._take_vectors()
        self.rate = b.parameter(RATE, (1,))
        self.loss = b.parameter(LOSS, (1,))
        for index, node in enumerate(graph.nodes):
            if node.op in _OUTSIDE:
                continue
            emit = _EMITTERS.get(node.op)
            if emit is None:
                raise CircuitError(f"no circuit for the operator {node.op}", where=node.name)
            emit(self, Ref(index), node)
        self._refuse_loose_ends()
        return b.build()

    def _refuse_loose_ends(self) -> None:
        """CircuitError where a hint or the loss is tied to nothing: legal graphs need not be those
        that vtrain makes."""
        for index, node in enumerate(self.graph.nodes):
            if node.op in ("exp2_diff", "row_max", "row_sum") and Ref(index) not in self.softmaxes:
                raise CircuitError("is part of no softmax", where=node.name)
        if self.graph.nodes[self.logged_loss.node].op not in ("square_sum", "sum"):
            raise CircuitError("the loss logged is no sum", where="record")

    def _take_vectors(self) -> None:
        """The given vectors, cut into the tensors of state and batch."""
        graph, b = self.graph, self.b
        names = state_names(graph)
        for vector, refs, found in (
            (BEFORE, graph.states(), self.before),
            (AFTER, graph.next_states(), self.after),
        ):
            found.update(self._cut(vector, [(name, graph.type_of(refs[name])) for name in names]))
        refs = {
            str(node.attrs["part"]): Ref(i)
            for i, node in enumerate(graph.nodes)
            if node.op == "gather_samples"
        }
        parts = self._cut(BATCH, [(part, graph.type_of(refs[part])) for part in ("x", "y")])
        for part, tensor in parts.items():
            kind = graph.type_of(refs[part])
            self.values[refs[part]] = tensor
            readers = [
                node
                for node in graph.nodes
                if refs[part] in node.inputs and node.op not in _OUTSIDE
            ]
            if not readers or not all(_is_table(graph, node) for node in readers):
                gadgets.hold_dtype(b, f"batch/{part}", tensor, kind.dtype)

    def _cut(self, vector: str, types: Sequence[tuple[str, TensorType]]) -> dict[str, Tensor]:
        b = self.b
        length = sum(kind.size for _, kind in types)
        pieces = [
            b.vector(name, stop - start) for name, start, stop in cut_vector(vector, length, b.rows)
        ]
        whole = b.concat(pieces)
        found = {}
        start = 0
        for name, kind in types:
            part = b.slice(whole, start, start + kind.size)
            found[name] = b.reshape(part, kind.shape)
            start += kind.size
        return found

    # --- values

    def type_of(self, ref: Ref) -> TensorType:
        """A node's type, its range being what the circuit shows of it: :func:`_derive_types`."""
        return self.types[ref.node]

    def value(self, ref: Ref) -> Tensor | Lin:
        """A node's value; CircuitError for one that is not computed here, such as the counter."""
        if ref not in self.values:
            raise CircuitError("is no value of the circuit", where=self.graph.nodes[ref.node].name)
        return self.values[ref]

    def lin(self, ref: Ref) -> Lin:
        """A node's value as a linear form of integers."""
        value = self.value(ref)
        return value.lin() if isinstance(value, Tensor) else value

    def tensor(self, ref: Ref) -> Tensor:
        """A node's value as a committed tensor, made one if it is a form."""
        value = self.value(ref)
        if isinstance(value, Tensor):
            return value
        name = self.graph.nodes[ref.node].name
        made = self.b.hint(name, value.shape, lambda values: values[value])
        self.b.zero(name, made.lin() - value)
        self.values[ref] = made
        return made

    def hint_output(self, ref: Ref, node: Node) -> Tensor:
        """The node's output as a hint, computed by the law."""
        kind = self.type_of(ref)
        return self.b.hint(node.name, kind.shape, self.law(node))

    def law(self, node: Node) -> Callable[[Values], Ints]:
        """Computes the node's output from its inputs' values, by the law."""
        forms = [self.value(ref) for ref in node.inputs]
        types = [self.type_of(ref) for ref in node.inputs]

        def compute(values: Values) -> Ints:
            arrays = [
                np.asarray(values[form], dtype=object)
                .astype(NUMPY_DTYPES[kind.dtype])
                .reshape(kind.shape)
                for form, kind in zip(forms, types, strict=True)
            ]
            return np.asarray(TABLE[node.op].law(node.attrs, arrays)).astype(object)

        return compute

    def is_of_parameter_size(self, ref: Ref) -> bool:
        """Whether a value is a function of one state tensor alone."""
        return ref in self.state_of

    def take_next(self, ref: Ref, node: Node) -> Tensor:
        """The state after the step that ``node`` (``ref``) makes of its first input, a state."""
        name = self.state_of.get(node.inputs[0])
        if name is None or self.next_of[name] != ref:
            raise CircuitError("does not make a state of what it was before", where=node.name)
        return self.after[name]


def _attr(attrs: Attrs, name: str) -> int:
    value = attrs[name]
    if not isinstance(value, int):
        raise CircuitError(f"attribute {name} is no integer")
    return value


def _reach(lo: int, hi: int, shift: int) -> int:
    """Bound on |rs(x, shift)| for lo <= x <= hi."""
    most = max(abs(lo), abs(hi))
    return (most >> shift) + 1 if shift > 0 else most << -shift


def _emit_state(s: _StepBuilder, ref: Ref, node: Node) -> None:
    name = str(node.attrs["name"])
    if name == STEP_STATE:
        return
    tensor = s.before[name]
    s.values[ref] = tensor
    if ref not in s.held:
        gadgets.hold_dtype(s.b, f"before/{name}", tensor, "i32")


def _holds_operand(node: Node) -> bool:
    """Whether an operand that does not clamp can show that its state is int32."""
    return (
        node.op == "rescale"
        and node.attrs["dtype"] == "i16"
        and _attr(node.attrs, "multiplier") == 1
        and gadgets.can_hold(_attr(node.attrs, "shift"))
    )


def _splits_operand(node: Node) -> bool:
    """Whether a node takes a state apart into limbs, which shows that it is int32."""
    return node.op == "momentum" and 0 < _attr(node.attrs, "decay") < 1 << DECAY_EXPONENT


def _emit_next_state(s: _StepBuilder, ref: Ref, node: Node) -> None:
    """Linked already where the new value was made as such."""
    name = str(node.attrs["name"])
    if name == STEP_STATE:
        return
    value = s.value(node.inputs[0])
    if value is not s.after[name]:
        form = value.lin() if isinstance(value, Tensor) else value
        s.b.zero(node.name, s.after[name].lin() - form)


def _emit_gather(s: _StepBuilder, ref: Ref, node: Node) -> None:
    """Given."""


def _emit_schedule(s: _StepBuilder, ref: Ref, node: Node) -> None:
    """The rate that the verifier computes: that of the step's own number."""
    if s.graph.find("schedule") != ref.node or s.state_of.get(node.inputs[0]) != STEP_STATE:
        raise CircuitError("is no rate of the step's own number", where=node.name)
    s.values[ref] = s.rate


def _emit_shift(s: _StepBuilder, ref: Ref, node: Node, x: Lin, lo: int, hi: int) -> None:
    """A node that ends in sat(rs(x, shift))."""
    kind = s.type_of(ref)
    shift = _attr(node.attrs, "shift")
    if kind.dtype == "i64":
        reach = _reach(lo, hi, shift)
        s.values[ref] = gadgets.rounding_shift(s.b, node.name, x, shift, reach=reach)
        return
    y = s.hint_output(ref, node)
    if s.is_of_parameter_size(node.inputs[0]) and len(y.shape) == 2:
        # The forward product contracts a weight along this axis too: made first, it is made once.
        s.b.contract(y, 0, s.b.weights(y.shape)[0])
    if not s.clamps and s.is_of_parameter_size(node.inputs[0]) and _holds_operand(node):
        gadgets.shift_and_hold(s.b, node.name, s.tensor(node.inputs[0]), shift, y)
        s.values[ref] = y
        return
    clamps = s.clamps or not s.is_of_parameter_size(node.inputs[0])
    reach = _reach(lo, hi, shift)
    gadgets.saturating_shift(s.b, node.name, x, shift, kind.dtype, y, reach, clamps=clamps)
    s.values[ref] = y


def _emit_rescale(s: _StepBuilder, ref: Ref, node: Node) -> None:
    multiplier = _attr(node.attrs, "multiplier")
    kind = s.type_of(node.inputs[0])
    x = s.lin(node.inputs[0]) * multiplier
    _emit_shift(s, ref, node, x, kind.lo * multiplier, kind.hi * multiplier)


def _is_table(graph: StepGraph, node: Node) -> bool:
    """Whether a node is the preparation of bytes: a function of 256 values."""
    return node.op == "normalize" and graph.type_of(node.inputs[0]).dtype in ("u8", "i8")


def _emit_normalize(s: _StepBuilder, ref: Ref, node: Node) -> None:
    """For bytes, (x, y) is a row of the table of the law, which shows the range of x as well."""
    if _is_table(s.graph, node):
        lo, hi = STORAGE[s.type_of(node.inputs[0]).dtype]
        domain = np.arange(lo, hi + 1)
        image = TABLE["normalize"].law(node.attrs, [domain])
        y = s.hint_output(ref, node)
        s.b.member(node.name, (s.tensor(node.inputs[0]), y), (domain, image))
        s.values[ref] = y
        return
    multiplier, offset = _attr(node.attrs, "multiplier"), _attr(node.attrs, "offset")
    kind = s.type_of(node.inputs[0])
    x = s.lin(node.inputs[0]) * multiplier + offset
    _emit_shift(s, ref, node, x, kind.lo * multiplier + offset, kind.hi * multiplier + offset)


def _emit_matmul(s: _StepBuilder, ref: Ref, node: Node) -> None:
    a, c = (s.tensor(item) for item in node.inputs)
    product = s.hint_output(ref, node)
    s.b.matmul(
        node.name,
        a,
        c,
        product.lin(),
        ta=bool(node.attrs["transpose_a"]),
        tb=bool(node.attrs["transpose_b"]),
    )
    s.values[ref] = product


def _emit_add_bias(s: _StepBuilder, ref: Ref, node: Node) -> None:
    acc, bias = node.inputs
    kind = s.type_of(bias)
    shift = _attr(node.attrs, "shift")
    reach = _reach(kind.lo, kind.hi, shift)
    aligned = gadgets.rounding_shift(s.b, node.name, s.lin(bias), shift, reach=reach)
    shape = s.type_of(acc).shape
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    indices = np.tile(np.arange(kind.size), rows).reshape(shape)
    spread = tuple(
        (s.b.take(tensor, indices), weight, scalar) for tensor, weight, scalar in aligned.terms
    )
    s.values[ref] = s.lin(acc) + Lin(shape, spread, aligned.const)


def _emit_column_sum(s: _StepBuilder, ref: Ref, node: Node) -> None:
    x = s.tensor(node.inputs[0])
    columns = x.shape[-1]
    total = s.hint_output(ref, node)
    matrix = s.b.reshape(x, (x.size // columns, columns))
    ones = np.ones(matrix.shape[0], dtype=np.int64)
    gadgets.weigh_rows(s.b, node.name, s.b.transpose(matrix), ones, 0, total)
    s.values[ref] = total


def _emit_add(s: _StepBuilder, ref: Ref, node: Node) -> None:
    a, c = (s.lin(item) for item in node.inputs)
    sign = 1 if node.op == "add" else -1
    a_part = a * (1 << _attr(node.attrs, "shift_a"))
    s.values[ref] = a_part + c * (sign << _attr(node.attrs, "shift_b"))


def _emit_mul(s: _StepBuilder, ref: Ref, node: Node) -> None:
    a, c = (s.tensor(item) for item in node.inputs)
    s.values[ref] = s.b.mul(a, c)


def _emit_reshape(s: _StepBuilder, ref: Ref, node: Node) -> None:
    s.values[ref] = s.b.reshape(s.tensor(node.inputs[0]), s.type_of(ref).shape)


def _emit_transpose(s: _StepBuilder, ref: Ref, node: Node) -> None:
    x = s.tensor(node.inputs[0])
    order = np.arange(x.size).reshape(x.shape)
    perm = node.attrs["perm"]
    if not isinstance(perm, tuple):
        raise CircuitError("attribute perm is no list", where=node.name)
    s.values[ref] = s.b.take(x, order.transpose(perm))


def _emit_relu(s: _StepBuilder, ref: Ref, node: Node) -> None:
    x = s.tensor(node.inputs[0])
    most = SATURATION["i16"][1]
    _, s.values[ref] = gadgets.positive_mask(s.b, node.name, x, most)


def _emit_relu_grad(s: _StepBuilder, ref: Ref, node: Node) -> None:
    g, out = (s.tensor(item) for item in node.inputs)
    mask, _ = gadgets.positive_mask(s.b, node.name, out, SATURATION["i16"][1])
    s.values[ref] = s.b.mul(mask, g)


def _emit_softmax(s: _StepBuilder, ref: Ref, node: Node) -> None:
    """The outputs of the row nodes are hints; ``divide``, the last of them, ties them together."""
    output = s.hint_output(ref, node)
    s.values[ref] = output
    if node.op != "divide":
        return
    e, total = node.inputs
    if s.graph.nodes[e.node].op != "exp2_diff":
        raise CircuitError("is no softmax", where=node.name)
    z, maximum = s.graph.nodes[e.node].inputs
    s.softmaxes.update((maximum, e, total))
    kind = s.type_of(z)
    gadgets.softmax(
        s.b,
        "loss/softmax",
        s.tensor(z),
        s.tensor(maximum),
        s.tensor(e),
        s.tensor(total),
        output,
        kind.hi - kind.lo,
    )


def _hot(s: _StepBuilder, labels: Ref, classes: int) -> Tensor:
    """One-hot rows of the labels, made once."""
    key = Ref(labels.node, -1 - labels.output)
    if key not in s.values:
        label = s.tensor(labels)
        s.values[key] = gadgets.one_hot(s.b, "labels", label, classes)
    return s.tensor(key)


def _emit_sub_one_hot(s: _StepBuilder, ref: Ref, node: Node) -> None:
    p, labels = node.inputs
    hot = _hot(s, labels, s.type_of(p).shape[1])
    s.values[ref] = s.lin(p) - hot.lin() * (1 << PROBABILITY_EXPONENT)


def _emit_cross_entropy(s: _StepBuilder, ref: Ref, node: Node) -> None:
    z, maximum, total, labels = node.inputs
    summed = s.graph.nodes[total.node]
    if summed.op != "row_sum" or s.graph.nodes[summed.inputs[0].node].inputs != (z, maximum):
        raise CircuitError("is not of the sum of its rows' powers", where=node.name)
    rows = s.hint_output(ref, node)
    hot = _hot(s, labels, s.type_of(z).shape[1])
    gadgets.cross_entropy(
        s.b, node.name, s.tensor(z), s.tensor(maximum), s.tensor(total), hot, rows
    )
    s.values[ref] = rows


def _emit_sum(s: _StepBuilder, ref: Ref, node: Node) -> None:
    """The loss of a batch: what the record says is the sum of the rows."""
    _refuse_other_loss(s, ref, node)
    x = s.tensor(node.inputs[0])
    s.b.zero_sum(node.name, [(x, None, 1), (s.loss, None, -1)])


def _refuse_other_loss(s: _StepBuilder, ref: Ref, node: Node) -> None:
    if s.logged_loss != ref:
        raise CircuitError("is not the loss logged", where=node.name)


def _emit_square_sum(s: _StepBuilder, ref: Ref, node: Node) -> None:
    _refuse_other_loss(s, ref, node)
    x = s.tensor(node.inputs[0])
    flat = s.b.reshape(x, (x.size,))
    total = s.b.dot(flat, flat)
    shift = _attr(node.attrs, "shift")
    gadgets.rounding_shift(s.b, node.name, total.lin(), shift, s.loss.lin()) if shift > 0 else (
        s.b.zero(node.name, total.lin() * (1 << -shift) - s.loss.lin())
    )


def _emit_momentum(s: _StepBuilder, ref: Ref, node: Node) -> None:
    """V' = sat32(V + rs(g, s) - rs(V decay, 16)) = sat32(rs(g + 2^s (V - rs(V decay, 16)), s))."""
    b = s.b
    velocity, grad = node.inputs
    out = s.take_next(ref, node)
    name = s.state_of[velocity]
    decay, shift = _attr(node.attrs, "decay"), _attr(node.attrs, "shift")
    v, g = s.lin(velocity), s.lin(grad)
    grad_kind = s.type_of(grad)
    decayed = _decay(b, node.name, s.before[name], decay)
    whole = g * (1 << max(-shift, 0)) + (v - decayed) * (1 << max(shift, 0))
    reach = _reach(grad_kind.lo, grad_kind.hi, shift) + bound_kept_momentum(decay)
    _finish_state(s, node, whole, max(shift, 0), out, reach)
    s.values[ref] = out


def bound_kept_momentum(decay: int) -> int:
    """The largest |V - rs(V decay, 16)| of an int32 V, which has it at one of its ends.

    It never falls while V grows.  A momentum that loses enough has room for any gradient: no clamp.
    """
    return max(abs(v - rs_int(v * decay, DECAY_EXPONENT)) for v in STORAGE["i32"])


def _decay(b: CircuitBuilder, name: str, v: Tensor, decay: int) -> Lin:
    """rs(v decay, 16): with v = 2^16 hi + lo - 2^31, hi decay - 2^15 decay + rs(lo decay, 16).

    Where the decay is neither 0 nor 1, this shows that v is an integer of 32 bits.
    """
    if decay == 1 << DECAY_EXPONENT:
        return v.lin()
    if decay == 0:
        return v.lin() * 0
    offset = 1 << 31
    high = b.limb(f"{name}/high", v.shape, lambda values: values[v] + offset >> 16)
    low = b.limb(f"{name}/low", v.shape, lambda values: values[v] + offset & 0xFFFF)
    b.zero(f"{name}/parts", high * (1 << 16) + low - offset - v.lin())
    # lo decay + 2^15 < 2^32: the quotient is a limb.
    half = 1 << 15
    quotient = b.limb(f"{name}/decayed", v.shape, lambda values: values[low] * decay + half >> 16)
    rest = b.limb(
        f"{name}/decayed rest", v.shape, lambda values: values[low] * decay + half & 0xFFFF
    )
    b.zero(f"{name}/decayed", low * decay + half - quotient * (1 << 16) - rest)
    return high * decay - (decay << 15) + quotient


def _emit_sgd_update(s: _StepBuilder, ref: Ref, node: Node) -> None:
    """w' = sat32(w - rs(V rate, s)) = sat32(rs(2^s w - V rate - 1, s)) for s > 0.

    For rs(-a - 1, s) = -rs(a, s): with a + h = 2^s q + r, -a - 1 + h = -2^s q + (2^s - 1 - r).
    """
    weight, velocity, _ = node.inputs
    out = s.take_next(ref, node)
    if s.value(node.inputs[2]) is not s.rate:
        raise CircuitError("is by another rate than the schedule's", where=node.name)
    shift = _attr(node.attrs, "shift")
    v = s.tensor(velocity)
    step = v.times(s.rate)
    if shift > 0:
        whole = s.lin(weight) * (1 << shift) - step - 1
    else:
        whole = s.lin(weight) - step * (1 << -shift)
    kind, rate = s.type_of(velocity), s.type_of(node.inputs[2])
    most = max(-kind.lo, kind.hi) * max(abs(rate.lo), abs(rate.hi))
    reach = _reach(-most, most, shift) + (1 << 31)
    _finish_state(s, node, whole, max(shift, 0), out, reach)
    s.values[ref] = out


def _finish_state(
    s: _StepBuilder, node: Node, whole: Lin, shift: int, out: Tensor, reach: int
) -> None:
    gadgets.saturating_shift(s.b, node.name, whole, shift, "i32", out, reach, clamps=s.clamps)


_EMITTERS: Final[Mapping[str, Callable[[_StepBuilder, Ref, Node], None]]] = {
    "add": _emit_add,
    "add_bias": _emit_add_bias,
    "column_sum": _emit_column_sum,
    "cross_entropy": _emit_cross_entropy,
    "divide": _emit_softmax,
    "exp2_diff": _emit_softmax,
    "gather_samples": _emit_gather,
    "matmul": _emit_matmul,
    "momentum": _emit_momentum,
    "mul": _emit_mul,
    "next_state": _emit_next_state,
    "normalize": _emit_normalize,
    "relu": _emit_relu,
    "relu_grad": _emit_relu_grad,
    "rescale": _emit_rescale,
    "reshape": _emit_reshape,
    "row_max": _emit_softmax,
    "row_sum": _emit_softmax,
    "schedule": _emit_schedule,
    "sgd_update": _emit_sgd_update,
    "square_sum": _emit_square_sum,
    "state": _emit_state,
    "sub": _emit_add,
    "sub_one_hot": _emit_sub_one_hot,
    "sum": _emit_sum,
    "transpose": _emit_transpose,
}

OPERATORS: Final = frozenset(_EMITTERS)
"""Operators that circuits of whole steps have."""
