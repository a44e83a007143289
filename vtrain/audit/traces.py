"""Checking the values of a step that its solver signed, without doing its products again.

A trace has the output of every node.  Products of matrices, nearly all of a step's work, are
checked by Freivalds' check with vectors that were drawn after the trace was signed
(``vtrain.spec.algebraic`` has the argument), every other node is done again.  Nodes are looked at
in their order, so that whatever a node reads was found right before it: the first wrong value is
the place at which the solver and the law part.

Of a node that is done again nothing but the digest is needed; the bytes of products, and of the
state before, are read from the solver's folder, one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from vtrain import _core
from vtrain.commit.digest import compute_tensor_digest
from vtrain.commit.state import compute_state_root
from vtrain.engines import cpu
from vtrain.errors import NotProducedError, ResourcesError, StorageError
from vtrain.graph import evaluate
from vtrain.graph.values import PRODUCTS, VIEWS, list_last_uses
from vtrain.ops.base import attr_int
from vtrain.spec.algebraic import find_wrong_row
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Node, StepGraph, TensorType
from vtrain.wire.opening import CHUNK_LENGTH, StateLeaf
from vtrain.wire.traces import SignedTensorTraces, TensorTrace

Array = npt.NDArray[Any]
State = Mapping[str, Array]
Vectors = Sequence[npt.NDArray[np.uint64]]


class Store(Protocol):
    """Where the bytes of a trace come from (``vtrain.commit.traces.TraceFolder`` is one)."""

    def read_chunk(self, digest: bytes, kind: TensorType) -> Array:
        """The tensor with this digest, which was compared; NotProducedError."""
        ...

    def holds(self, digest: bytes) -> bool:
        """Whether it can be read, as far as one can tell without."""
        ...


class PartStore(Store, Protocol):
    """Where parts of tensors can be read without the rest, too."""

    def read_parts(
        self, digest: bytes, kind: TensorType, wanted: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, bytes]]:
        """(first byte, bytes) of parts that have the chunks wanted of it, given as rising (first,
        end) that do not overlap, each compared; NotProducedError."""
        ...


class Traces(PartStore, Protocol):
    """Traces that a stranger made (``vtrain.commit.traces.TraceFolder`` is such a one)."""

    def is_there(self) -> bool:
        """Whether something is signed."""
        ...

    def locate_claim(self) -> str:
        """Where what is signed is, for messages."""
        ...

    def locate_leaves(self, step: int) -> str:
        """Where the digests of a trace are, for messages."""
        ...

    def read_claim(self) -> SignedTensorTraces:
        """What is signed, its signature unchecked; NotProducedError, EncodingError."""
        ...

    def read_leaves(self, trace: TensorTrace) -> list[bytes]:
        """The digests of a trace, as many as it says; NotProducedError."""
        ...


@dataclass(frozen=True)
class Arithmetic:
    """What does nodes again, and what checks products: the engine or the law.

    ``open_session`` gives what does both for a whole step, None where that is node by node.
    """

    apply: evaluate.Apply
    find_wrong: Callable[[Node, Sequence[Array], Array, Vectors], int | None]
    open_session: Callable[[StepGraph, Samples], cpu.CpuSession] | None = None


def find_wrong_by_law(
    node: Node, inputs: Sequence[Array], out: Array, vectors: Vectors
) -> int | None:
    """The first wrong element, flat, of the claimed output of a product; None where there is none.

    By the law in numpy, matrix by matrix.
    """
    a, b = _turn(node, inputs)
    kind = node.outputs[0]
    for index in np.ndindex(out.shape[:-2]):
        row = find_wrong_row(a[index], b[index], out[index], (kind.lo, kind.hi), vectors)
        if row is not None:
            exact = a[index][row].astype(object) @ b[index].astype(object)
            column = int(np.flatnonzero(exact != out[index][row])[0])
            return int(np.ravel_multi_index((*index, row, column), out.shape))
    return None


def _turn(node: Node, inputs: Sequence[Array]) -> list[Array]:
    """The operands as the matrices that are multiplied."""
    return [
        value.swapaxes(-1, -2) if attr_int(node.attrs, f"transpose_{side}", 0, 1) else value
        for value, side in zip(inputs, "ab", strict=True)
    ]


def _find_wrong(
    node: Node, inputs: Sequence[Array], out: Array, vectors: Vectors, *, threads: int
) -> int | None:
    """:func:`find_wrong_by_law` in Rust."""
    a, b = inputs
    kind = node.outputs[0]
    turned = [bool(attr_int(node.attrs, f"transpose_{side}", 0, 1)) for side in "ab"]
    return _core.find_wrong_product(
        a, b, out, turned[0], turned[1], kind.lo, kind.hi, list(vectors), threads
    )


def choose_arithmetic(engine: str, threads: int = 0) -> Arithmetic:
    """The law for ``numpy``, the cpu engine otherwise."""
    if engine == "numpy":
        return Arithmetic(evaluate.apply_node, find_wrong_by_law)
    return Arithmetic(
        partial(cpu.apply_node, threads=threads),
        partial(_find_wrong, threads=threads),
        partial(cpu.CpuSession, threads=threads),
    )


@dataclass(frozen=True)
class WrongValue:
    """The first value of a trace that is not what the law gives, and what it is made from.

    ``offset`` counts steps of the trace from 0, ``step`` those of the run from 1; ``index`` is the
    node's.  ``element`` is flat, None where the solver keeps the bytes back: its digest is wrong
    all the same.  ``inputs`` are what the node reads, each right; of a ``state`` its right value,
    where that is at hand.  ``computed`` is None too for a state that the log commits to and no
    step leads to.
    """

    trace: TensorTrace
    leaves: Sequence[bytes]
    step: int
    offset: int
    index: int
    node: Node
    inputs: tuple[Array, ...]
    element: int | None = None
    claimed: int | None = None
    computed: int | None = None

    @property
    def chunk(self) -> int | None:
        """The chunk of 1 KiB that the element is in."""
        if self.element is None:
            return None
        kind = self.node.outputs[0]
        return self.element * (kind.byte_length // kind.size) // CHUNK_LENGTH

    @property
    def fault(self) -> Literal["solver", "task"]:
        """Who vouches for it: the solver, but for the state that the task itself begins with."""
        own = self.node.op == "state" and self.element is not None and self.computed is None
        return "task" if own and self.step == 1 else "solver"

    @property
    def where(self) -> str:
        """The place for a report."""
        place = f"step {self.step}, node {self.index}"
        if self.element is None:
            return place
        return f"{place}, chunk {self.chunk}, element {self.element}"

    def describe(self) -> str:
        """One sentence for a report."""
        kind = self.node.outputs[0]
        text = f"{self.node.name} ({self.node.op}) has a value that the law does not give"
        if self.element is None:
            return f"{text}: its digest is another, and the solver did not produce its bytes"
        if self.computed is None:
            return f"{text}: {self.claimed}, outside [{kind.lo}, {kind.hi}]"
        return f"{text}: {self.claimed}, where {self.computed} comes out"


@dataclass(frozen=True)
class TraceChecker:
    """Checks traces of one run.

    ``vectors`` are as long as the widest product is wide.  At most ``held_bytes`` of values are
    held beyond those that one node takes, as far as the store can give them again.  ``progress``
    is told the nodes done.
    """

    graph: StepGraph
    samples: Samples
    store: Store
    vectors: Vectors
    arithmetic: Arithmetic
    held_bytes: int
    threads: int = 0
    progress: Callable[[int], None] = lambda done: None

    @cached_property
    def unused(self) -> list[list[int]]:
        """For each node, the values that are not read after it."""
        return list_last_uses(self.graph)

    @cached_property
    def states(self) -> dict[str, int]:
        """The nodes of the states, by name."""
        return {name: ref.node for name, ref in self.graph.states().items()}

    def is_base(self, leaves: Sequence[bytes], root: bytes) -> bool:
        """Whether the states that a trace begins with are those under the state root ``root``."""
        found = []
        for name, node in self.states.items():
            kind = self.graph.nodes[node].outputs[0]
            found.append(StateLeaf(name, kind.dtype, kind.shape, kind.exponent, leaves[node]))
        return compute_state_root(found) == root

    def find_wrong_state(
        self, trace: TensorTrace, leaves: Sequence[bytes], state: State
    ) -> WrongValue | None:
        """The first state that a trace begins with and that is not the one of ``state``."""
        walk = Walk(self, trace, leaves, 0, {})
        for node in sorted(self.states.values()):
            value = state[str(self.graph.nodes[node].attrs["name"])]
            if compute_tensor_digest(value, self.threads) != leaves[node]:
                return walk.compare(node, value, (value,))
        return None

    def check(self, trace: TensorTrace, leaves: Sequence[bytes]) -> WrongValue | None:
        """The first wrong value of a trace that begins with the right states; None where there is
        none, but for a chance below 2^-60.

        ``leaves`` are under the root of the trace.  NotProducedError names what is missing.

        Where the values of a step fit ``held_bytes`` it is checked as a whole, and node by node
        only if something is not as it should be, to find what.
        """
        if self.find_stop(trace, leaves) is None:
            return None
        nodes = len(self.graph.nodes)
        before: dict[int, tuple[Array, bytes]] = {}
        for offset in range(trace.size // nodes):
            walk = Walk(self, trace, leaves, offset, before)
            for index in range(nodes):
                wrong = walk.visit(index)
                if wrong is not None:
                    return wrong
                self.progress(offset * nodes + index + 1)
            before = {
                self.states[name]: (walk.value(ref.node), walk.digest(ref.node))
                for name, ref in self.graph.next_states().items()
            }
        return None

    @cached_property
    def _session(self) -> cpu.CpuSession | None:
        """What checks whole steps, where their values are not too many."""
        if self.arithmetic.open_session is None:
            return None
        try:
            session = self.arithmetic.open_session(self.graph, self.samples)
        except ResourcesError:  # node by node it takes less
            return None
        return session if session.check_memory <= self.held_bytes else None

    def find_stop(self, trace: TensorTrace, leaves: Sequence[bytes]) -> tuple[int, int] | None:
        """The step of a trace, from 0, and the node, at which a check of whole steps stops; None
        where all values are right.

        ``leaves`` are as many as the trace has.  Where whole steps are not checked that is at once.
        """
        session, nodes = self._session, len(self.graph.nodes)
        if session is None:
            return 0, 0
        state: dict[str, Array] = {}
        walk = Walk(self, trace, leaves, 0, {})
        for name, node in self.states.items():
            value, kind = walk.try_read(node), self.graph.nodes[node].outputs[0]
            if value is None or ((value < kind.lo) | (value > kind.hi)).any():
                return 0, node
            state[name] = value
        session.load_state(state)
        del state
        following = self.graph.next_states()
        for offset in range(trace.size // nodes):
            walk = Walk(self, trace, leaves, offset, {})
            before = leaves[max(offset - 1, 0) * nodes :]
            for name, node in self.states.items() if offset else ():
                if walk.digest(node) != before[following[name].node]:
                    return offset, node

            def read(index: int, walk: Walk = walk, done: int = offset * nodes) -> Array | None:
                self.progress(done + index)
                return walk.try_read(index)

            digests = b"".join(leaves[offset * nodes : (offset + 1) * nodes])
            stopped = session.check(digests, self.vectors, read)
            if stopped is not None:
                return offset, stopped
            self.progress((offset + 1) * nodes)
        return None


class Walk:
    """One step of a trace: the values that are held, and what is under its root.

    ``before`` has of each ``state`` node the value and the digest that the step before ended with.
    """

    def __init__(
        self,
        checker: TraceChecker,
        trace: TensorTrace,
        leaves: Sequence[bytes],
        offset: int,
        before: Mapping[int, tuple[Array, bytes]],
    ) -> None:
        self._checker, self._trace, self._leaves = checker, trace, leaves
        self._nodes = checker.graph.nodes
        self._offset, self._before = offset, before
        self._step = trace.step - trace.size // len(self._nodes) + 1 + offset
        self._values: dict[int, Array] = {}
        self._held = 0
        self._aside: set[int] = set()
        """Values that are needed again, and have to be read again."""

    def digest(self, node: int) -> bytes:
        """What the solver signed for the output of a node."""
        return self._leaves[self._offset * len(self._nodes) + node]

    def value(self, node: int) -> Array:
        """The output of a node that was found right."""
        if node in self._aside:
            self._aside.remove(node)
            self._hold(node, self._read(node))
        value = self._values.pop(node)
        self._values[node] = value  # the last of them was used last
        return value

    def visit(self, index: int) -> WrongValue | None:
        """Check the output of a node, and hold it; what is wrong with it."""
        node = self._nodes[index]
        inputs = [self.value(ref.node) for ref in node.inputs]
        if node.op == "state":
            wrong = self._visit_state(index)
        elif node.op in VIEWS:
            wrong = self._visit_view(index, inputs[0])
        elif node.op in PRODUCTS:
            wrong = self._visit_product(index, inputs)
        elif node.op == "tensor_digest":  # that of the input was compared with the one signed for
            value = np.frombuffer(self.digest(node.inputs[0].node), np.uint8)
            wrong = self._settle(index, value, inputs)
        else:
            value = self._checker.arithmetic.apply(node, inputs, {}, self._checker.samples)
            # By the law the output may be a view of an input, turned round.
            wrong = self._settle(index, np.asarray(value, order="C"), inputs)
        for unused in self._checker.unused[index]:
            self._drop(unused)
        return wrong

    def _visit_state(self, index: int) -> WrongValue | None:
        if self._offset:
            value, digest = self._before[index]
            if digest != self.digest(index):
                return self.compare(index, value, (value,))
            self._hold(index, value)
            return None
        value = self._read(index)
        kind = self._nodes[index].outputs[0]
        outside = np.flatnonzero((value < kind.lo) | (value > kind.hi))
        if len(outside):
            return self._wrong(index, (), int(outside[0]), value, None)
        self._hold(index, value)
        return None

    def _visit_view(self, index: int, source: Array) -> WrongValue | None:
        node = self._nodes[index]
        value = source.reshape(node.outputs[0].shape)
        if self.digest(index) != self.digest(node.inputs[0].node):
            return self.compare(index, value, (source,))
        self._hold(index, value)
        return None

    def _visit_product(self, index: int, inputs: Sequence[Array]) -> WrongValue | None:
        node, claimed = self._nodes[index], self._read(index)
        element = self._checker.arithmetic.find_wrong(node, inputs, claimed, self._checker.vectors)
        if element is None:
            self._hold(index, claimed)
            return None
        *stack, row, column = map(int, np.unravel_index(element, claimed.shape))
        a, b = (value[tuple(stack)] for value in _turn(node, inputs))
        terms = zip(a[row], b[:, column], strict=True)
        computed = sum(int(x) * int(y) for x, y in terms)
        return self._wrong(index, tuple(inputs), element, claimed, computed)

    def _settle(self, index: int, value: Array, inputs: Sequence[Array]) -> WrongValue | None:
        """Hold a value that was computed, if it is the one signed for."""
        if compute_tensor_digest(value, self._checker.threads) != self.digest(index):
            return self.compare(index, value, tuple(inputs))
        self._hold(index, value)
        return None

    def compare(self, index: int, value: Array, inputs: tuple[Array, ...]) -> WrongValue:
        """Where the output of a node, of which another digest was signed, differs from
        ``value``."""
        try:
            claimed = self._read(index)
        except (NotProducedError, StorageError):  # the digest is signed, and wrong without them
            return self._wrong(index, inputs, None, value, None)
        element = int(np.flatnonzero(claimed.reshape(-1) != value.reshape(-1))[0])
        return self._wrong(index, inputs, element, claimed, int(value.reshape(-1)[element]))

    def _wrong(
        self,
        index: int,
        inputs: tuple[Array, ...],
        element: int | None,
        claimed: Array,
        computed: int | None,
    ) -> WrongValue:
        node = self._nodes[index]
        return WrongValue(
            self._trace,
            self._leaves,
            self._step,
            self._offset,
            index,
            node,
            inputs,
            element,
            None if element is None else int(claimed.reshape(-1)[element]),
            computed,
        )

    def _read(self, index: int) -> Array:
        """What the solver gives as the output of a node, which has the digest signed for."""
        node = self._nodes[index]
        try:
            return self._checker.store.read_chunk(self.digest(index), node.outputs[0])
        except NotProducedError as error:
            raise self._owe(index, error) from None

    def _owe(self, index: int, error: NotProducedError) -> NotProducedError:
        """What the solver owes of the output of a node."""
        node = self._nodes[index]
        # A store's own message says whose debt it is: the solver's, or the store's keeper's.
        owed = "" if "owes" in error.message else ", and the solver owes it"
        return NotProducedError(
            f"the output of node {index}, {node.name} ({node.op}), in step {self._step} cannot be "
            f"had{owed}: {error.message}",
            where=error.where,
        )

    def try_read(self, index: int) -> Array | None:
        """:meth:`_read`, None where the solver owes it."""
        try:
            return self._read(index)
        except NotProducedError:
            return None

    def _hold(self, index: int, value: Array) -> None:
        """Hold a value; what was used longest ago is let go where that is too much, and it can be
        read again."""
        self._values[index] = value
        self._held += value.nbytes
        reads = {index, *(ref.node for ref in self._nodes[index].inputs)}
        for other in list(self._values):
            if self._held <= self._checker.held_bytes:
                return
            if other not in reads and self._checker.store.holds(self.digest(other)):
                self._drop(other)
                self._aside.add(other)

    def _drop(self, node: int) -> None:
        self._aside.discard(node)
        value = self._values.pop(node, None)
        if value is not None:
            self._held -= value.nbytes
