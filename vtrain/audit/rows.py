"""Checking steps whose tensors are too large to be read whole: rows of them, drawn.

Of a node with a large tensor some rows of the output are drawn, after the trace was signed, and
computed exactly from the signed inputs, of which only the chunks that these rows depend on are
read.  What a row depends on is what its leaf rule reads (``vtrain.ops.leaf``); a product's rows are
multiplied.  All other nodes are checked whole (``vtrain.audit.traces``), from the signed inputs
too, and so is a node whose rows depend on most of what it reads: sums over columns, gradients of
weights.

Why that finds what it says (docs/algebraic.md): call a row false where it is not what the law gives
for the *signed* inputs of its node.  If no node has a false row, then all of a step follows by the
law from the state that the log has before it.  So a false step has a false row, and whoever signed
it did not know which rows would be drawn.  Other rows may follow from it by the law: those are not
false.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain import _core
from vtrain.audit.plan import draw
from vtrain.audit.traces import Array, PartStore, TraceChecker, Walk, WrongValue
from vtrain.commit.digest import compute_tensor_digest
from vtrain.errors import (
    NotProducedError,
    ResourcesError,
    RunError,
    StorageError,
    VtrainError,
)
from vtrain.graph.values import PRODUCTS, VIEWS
from vtrain.ops import leaf as law
from vtrain.ops.base import attr_int
from vtrain.ops.linear import compute_matmul
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Node, StepGraph, TensorType, encode_node
from vtrain.wire.opening import CHUNK_LENGTH
from vtrain.wire.report import SampledNode, SampledRows
from vtrain.wire.task import Windows
from vtrain.wire.traces import TensorTrace

DEFAULT_ABOVE: Final = 64 << 20
"""Bytes of a tensor above which rows of it are drawn."""
LONGEST_ROW: Final = 1 << 20
"""Bytes of a row of a product that is read whole: of longer ones chunks are drawn."""
MOST_FOLDED: Final = 1 << 27
"""Terms that are folded for the rows of one node: what takes more is quicker whole."""
_STRIP: Final = 1 << 11
"""Columns of a product that are multiplied at once."""

_VIEWED: Final = VIEWS | {"tensor_digest"}
"""Nodes of whose output the digest follows from digests."""


@dataclass(frozen=True)
class RowDraw:
    """How rows are drawn: ``rows`` of each output of a node with a tensor of more than ``above``
    bytes, by ``randomness`` that came after what was signed, whose digest is ``traces``."""

    rows: int
    above: int
    randomness: bytes
    traces: bytes

    def draw(self, step: int, node: int, plan: NodePlan) -> list[int]:
        """The rows of one node in one step, rising."""
        domain = f"algebraic rows of step {step}, node {node}"
        return sorted(draw(self.randomness, self.traces, domain, plan.units, plan.drawn))


@dataclass(frozen=True)
class NodePlan:
    """A node whose output is cut into ``units`` of ``length`` elements (the last may be shorter),
    of which ``drawn`` are checked.  A unit is a row of a product, or else a chunk of 1 KiB."""

    unit: str
    length: int
    units: int
    drawn: int

    def bounds(self, unit: int, size: int) -> tuple[int, int]:
        """The first element, and that after the last."""
        return unit * self.length, min((unit + 1) * self.length, size)


def check_rows(rows: int, above: int) -> None:
    """RunError for numbers that draw nothing."""
    if rows < 1:
        raise RunError("draws no row: draw one at least", where=f"rows {rows}")
    if above < 1:
        raise RunError("is no number of bytes", where=f"rows above {above}")


@dataclass(frozen=True)
class RowPlan:
    """What of a graph is checked by rows: ``nodes`` by their index; ``whole`` are nodes that have a
    large tensor and are checked whole, since rows would take most of it."""

    nodes: Mapping[int, NodePlan]
    whole: tuple[int, ...]

    def describe(self, graph: StepGraph, rows: int, above: int) -> SampledRows | None:
        """What a report says of it; None where nothing is checked by rows."""
        nodes = tuple(
            SampledNode(
                index,
                graph.nodes[index].name,
                graph.nodes[index].op,
                "row" if plan.unit == "row" else "chunk",
                plan.drawn,
                plan.units,
            )
            for index, plan in self.nodes.items()
        )
        names = tuple(graph.nodes[index].name for index in self.whole)
        return SampledRows(rows, above, nodes, names) if nodes else None


def plan_rows(graph: StepGraph, samples: Samples, rows: int, above: int) -> RowPlan:
    """Which nodes are checked by rows.  It follows from graph and numbers alone, not from what is
    drawn or served: nobody but the auditor has a say in it."""
    nodes: dict[int, NodePlan] = {}
    whole: list[int] = []
    for index, node in enumerate(graph.nodes):
        if node.op in _VIEWED:
            continue
        kinds = [node.outputs[0], *(graph.type_of(ref) for ref in node.inputs)]
        large = sum(kind.byte_length for kind in kinds if kind.byte_length > above)
        if not large:
            continue
        plan = _cut(node, rows)
        # Whoever gathers by false indices would need samples that are none of the step's.
        by_rows = node.op != "sample_index"
        if by_rows and _count_read(graph, node, plan, samples, above) * 2 <= large:
            nodes[index] = plan
        else:
            whole.append(index)
    return RowPlan(nodes, tuple(whole))


def _cut(node: Node, rows: int) -> NodePlan:
    kind = node.outputs[0]
    width = kind.byte_length // kind.size
    unit, length = "chunk", CHUNK_LENGTH // width
    if node.op in PRODUCTS and CHUNK_LENGTH <= kind.shape[-1] * width <= LONGEST_ROW:
        unit, length = "row", kind.shape[-1]
    units = -(-kind.size // length)
    return NodePlan(unit, length, units, min(rows, units))


def _count_read(
    graph: StepGraph, node: Node, plan: NodePlan, samples: Samples, above: int
) -> float:
    """Bytes of large tensors that so many rows take, for rows that lie evenly; infinity for what
    takes long to fold.

    Of reads that depend on values those are counted that zeros lead to.
    """
    kind, kinds = node.outputs[0], [graph.type_of(ref) for ref in node.inputs]
    size = kind.size
    spread = max(1, plan.drawn - 1)
    units = sorted({i * (plan.units - 1) // spread for i in range(plan.drawn)})
    spans = [plan.bounds(unit, size) for unit in units]
    own = sum(stop - start for start, stop in spans) * (kind.byte_length // size)
    read = float(own if kind.byte_length > above else 0)
    if node.op == "state":
        return read
    if node.op in PRODUCTS:
        wanted = [_Chunks(kind) for kind in kinds]
        for block in _list_blocks(node, kinds, spans):
            for side, chunks in enumerate(wanted):
                block.mark(side, chunks)
        counted = [len(chunks.list()) for chunks in wanted]
    else:
        rule = _Rule(graph, node, samples)
        if rule.terms * sum(stop - start for start, stop in spans) > MOST_FOLDED:
            return float("inf")
        empty = [_Part.make_empty(kind) for kind in kinds]
        counted = [0 for _ in kinds]
        found: list[set[int]] = [set() for _ in kinds]
        for start, stop in spans:
            for chunks_found, missing in zip(
                found, rule.find_missing(empty, start, stop), strict=True
            ):
                chunks_found.update(missing)
        counted = [len(chunks_found) for chunks_found in found]
    for kind, count in zip(kinds, counted, strict=True):
        if kind.byte_length > above:
            read += count * CHUNK_LENGTH
    return read


# --- products


@dataclass(frozen=True)
class _Block:
    """A part of a stack of products: ``rows`` of matrix number ``stack``, rising, and ``columns``
    as (first, end): all of them, or no more than a chunk."""

    node: Node
    kinds: tuple[TensorType, ...]
    stack: int
    rows: tuple[int, ...]
    columns: tuple[int, int]

    def _stored(self, side: int) -> tuple[bool, int, int]:
        """Whether an operand is stored the other way round, and its stored extents."""
        turned = bool(attr_int(self.node.attrs, f"transpose_{'ab'[side]}", 0, 1))
        height, width = self.kinds[side].shape[-2:]
        return turned, height, width

    def mark(self, side: int, chunks: _Chunks) -> None:
        """Mark the chunks of an operand that it takes."""
        turned, height, width = self._stored(side)
        base = self.stack * height * width
        if side == 0 and not turned:
            chunks.add((base + row * width, base + (row + 1) * width) for row in self.rows)
            return
        first, end = self.columns
        if side == 1 and turned:
            chunks.add([(base + first * width, base + end * width)])
        elif side == 1 and (first, end) == (0, width):
            chunks.add([(base, base + height * width)])
        else:  # a column of each stored row, or a few that lie in two chunks at most
            starts = base + np.arange(height, dtype=np.int64) * width
            for column in self.rows if side == 0 else (first, end - 1):
                chunks.add_places(starts + column)

    def multiply(self, a: Array, b: Array) -> npt.NDArray[np.int64]:
        """The products, for which the operands have what :meth:`mark` marks."""
        first, end = self.columns
        left, right = self._matrix(0, a), self._matrix(1, b)
        rows = left[list(self.rows)]
        strips = [
            compute_matmul(rows, right[:, at : min(at + _STRIP, end)])
            for at in range(first, end, _STRIP)
        ]
        return np.concatenate(strips, axis=1)

    def _matrix(self, side: int, value: Array) -> Array:
        turned, height, width = self._stored(side)
        matrix: Array = value.reshape(-1, height, width)[self.stack]
        return matrix.T if turned else matrix


def _list_blocks(
    node: Node, kinds: Sequence[TensorType], spans: Sequence[tuple[int, int]]
) -> Iterator[_Block]:
    """What has to be multiplied for these elements: whole rows of each matrix together, parts of a
    row each by itself."""
    height, width = node.outputs[0].shape[-2:]
    whole: dict[int, set[int]] = {}
    for start, stop in spans:
        first, last = start // width, (stop - 1) // width
        if first == last and stop - start < width:
            at = start % width
            yield _Block(
                node, tuple(kinds), first // height, (first % height,), (at, at + stop - start)
            )
            continue
        for row in range(first, last + 1):
            whole.setdefault(row // height, set()).add(row % height)
    for stack, rows in sorted(whole.items()):
        yield _Block(node, tuple(kinds), stack, tuple(sorted(rows)), (0, width))


class _Chunks:
    """Chunks of a tensor that some elements lie in."""

    def __init__(self, kind: TensorType) -> None:
        self._per = CHUNK_LENGTH // (kind.byte_length // kind.size)
        self._marks = np.zeros(-(-kind.size // self._per), bool)

    def add(self, spans: Iterable[tuple[int, int]]) -> None:
        """Those of elements ``first`` to before ``end``."""
        for first, end in spans:
            self._marks[first // self._per : -(-end // self._per)] = True

    def add_places(self, places: npt.NDArray[np.int64]) -> None:
        """Those of these elements."""
        self._marks[places // self._per] = True

    def list(self) -> npt.NDArray[np.int64]:
        """All of them, rising."""
        return np.flatnonzero(self._marks)


# --- parts of tensors


class _OutsideError(Exception):
    """An element that was read is outside the proven range of the node that puts it out."""

    def __init__(self, node: int, element: int, value: Array) -> None:
        super().__init__(node, element)
        self.node, self.element, self.value = node, element, value


def _make_zeros(kind: TensorType) -> tuple[Array, npt.NDArray[np.uint8]]:
    """A tensor of zeros, which take no memory, and a 0 for each of its chunks; ResourcesError."""
    chunks = -(-kind.byte_length // CHUNK_LENGTH)
    try:
        return np.zeros(kind.shape, NUMPY_DTYPES[kind.dtype]), np.zeros(chunks, np.uint8)
    except MemoryError:
        raise ResourcesError(
            f"a tensor of {kind.byte_length} bytes has no room", where="memory"
        ) from None


@dataclass
class _Brought:
    """What was brought of a tensor, for whichever node and with whatever it came: what a node reads
    counts neither how a store cuts what it serves, nor what other nodes have read."""

    value: Array
    there: npt.NDArray[np.uint8]
    """For each chunk whether it is here."""

    def list_missing(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those chunks of the spans that are not here, as rising (first, end)."""
        wanted = np.concatenate([np.arange(first, end) for first, end in spans])
        return _join_runs(wanted[self.there[wanted] == 0])


@dataclass
class _Part:
    """What one node has read of a tensor: zeros elsewhere."""

    value: Array
    there: npt.NDArray[np.uint8]
    """For each chunk whether it was asked for, is here, and within its range; nothing where all of
    them are."""

    @classmethod
    def make_empty(cls, kind: TensorType) -> _Part:
        """A tensor of which nothing is here; ResourcesError."""
        return cls(*_make_zeros(kind))

    def list_missing(self, chunks: Iterable[int]) -> list[tuple[int, int]]:
        """Those of the chunks that are not here, as rising (first, end)."""
        if not len(self.there):
            return []
        wanted = np.unique(np.fromiter(chunks, np.int64))
        return _join_runs(wanted[self.there[wanted] == 0])


def _join_runs(chunks: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Rising chunks as (first, end)."""
    cuts = np.flatnonzero(np.diff(chunks) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(chunks, cuts) if len(run)]


# --- what an element is made from


class _PartReader(law.ArrayReader):
    """Reads parts by the law, and notes what is missing; of that it reads zeros."""

    def __init__(self, parts: Sequence[_Part], *given: Any) -> None:
        super().__init__([part.value for part in parts], *given)
        self._parts = parts
        self.missing: list[set[int]] = [set() for _ in parts]

    def read(self, input: int, index: int) -> int:
        value = super().read(input, index)
        part = self._parts[input]
        chunk = index * part.value.itemsize // CHUNK_LENGTH
        if len(part.there) and not part.there[chunk]:
            self.missing[input].add(chunk)
        return value


class _Rule:
    """The leaf rule of one node, by the cpu engine or ``by_law``."""

    def __init__(
        self,
        graph: StepGraph,
        node: Node,
        samples: Samples,
        threads: int = 0,
        *,
        by_law: bool = False,
    ) -> None:
        self._node, self._threads, self._by_law = node, threads, by_law
        self._kinds = [graph.type_of(ref) for ref in node.inputs]
        sources = [graph.nodes[ref.node] for ref in node.inputs]
        self._encoded = encode_node(node), [encode_node(source) for source in sources]
        self._windows: Windows | None = samples.spec.windows
        table = samples.table
        self._table = table if self._windows is None else table.reshape(1, -1)
        self.terms = law.plan_fold(node, self._kinds).terms

    def find_missing(self, parts: Sequence[_Part], start: int, stop: int) -> list[list[int]]:
        """For each input the chunks that these elements read and that are not here, as far as it
        can be told without them."""
        return self._fold(parts, [bytes(32) for _ in parts], start, stop)[1]

    def compute(
        self, parts: Sequence[_Part], digests: list[bytes], start: int, stop: int
    ) -> tuple[Array | None, list[list[int]]]:
        """The elements, None where something is missing; and what is."""
        found, missing = self._fold(parts, digests, start, stop)
        if any(missing):
            return None, missing
        return np.frombuffer(found, NUMPY_DTYPES[self._node.outputs[0].dtype]), missing

    def _fold(
        self, parts: Sequence[_Part], digests: list[bytes], start: int, stop: int
    ) -> tuple[bytes, list[list[int]]]:
        if self._by_law:
            return self._fold_by_law(parts, digests, start, stop)
        form, windows = None, self._windows
        if windows is not None:
            form = windows.width, windows.tokens, windows.context, windows.stride, windows.shift
        return _core.leaf_values(
            *self._encoded,
            [np.asarray(part.value, order="C") for part in parts],
            [part.there for part in parts],
            digests,
            start,
            stop - start,
            self._table,
            form,
            self._threads,
        )

    def _fold_by_law(
        self, parts: Sequence[_Part], digests: list[bytes], start: int, stop: int
    ) -> tuple[bytes, list[list[int]]]:
        table = self._table.reshape(-1) if self._windows else self._table
        reader = _PartReader(parts, digests, table, self._windows)
        fold, out = law.plan_fold(self._node, self._kinds), []
        for element in range(start, stop):
            state = fold.init
            for block in range(fold.blocks):
                state = law.run_block(self._node, self._kinds, element, block, state, reader)
            value = law.finish(self._node, self._kinds, state)
            out.append(law.encode_element(self._node, value))
        return b"".join(out), [sorted(missing) for missing in reader.missing]


# --- the check


@dataclass(frozen=True)
class RowChecker:
    """Checks traces as ``checker`` does, but for the nodes of ``plan``, of which rows are drawn,
    and read from ``store``.

    ``by_law``: elements are computed by the law in numpy.
    """

    checker: TraceChecker
    store: PartStore
    plan: RowPlan
    rows: RowDraw
    by_law: bool = False

    def check(self, trace: TensorTrace, leaves: Sequence[bytes]) -> WrongValue | None:
        """The first wrong value of a trace that begins with the right states, among the values that
        were looked at; None where there is none.  NotProducedError names what is missing."""
        graph = self.checker.graph
        nodes, following = len(graph.nodes), graph.next_states()
        states = self.checker.states
        before: dict[int, bytes] = {}
        for offset in range(trace.size // nodes):
            walk = _RowWalk(self, trace, leaves, offset, before)
            for index in range(nodes):
                wrong = walk.visit(index)
                if wrong is not None:
                    return wrong
                self.checker.progress(offset * nodes + index + 1)
            before = {states[name]: walk.digest(ref.node) for name, ref in following.items()}
        return None


class _RowWalk(Walk):
    """One step of a trace of which rows are looked at.

    Values that are checked by rows are not held; whoever needs one reads what was signed for it,
    and holds each element that is read to its proven range, so that the law and the leaf rules,
    which agree on those, have nothing else to work on.
    """

    def __init__(
        self,
        rows: RowChecker,
        trace: TensorTrace,
        leaves: Sequence[bytes],
        offset: int,
        before: Mapping[int, bytes],
    ) -> None:
        super().__init__(rows.checker, trace, leaves, offset, {})
        self._rows, self._digests_before = rows, before
        self._brought: dict[int, _Brought] = {}

    def visit(self, index: int) -> WrongValue | None:
        node = self._nodes[index]
        try:
            if node.op in _VIEWED or (node.op == "state" and self._offset):
                wrong = self._visit_digest(index)
            elif index in self._rows.plan.nodes:
                wrong = self._visit_rows(index, self._rows.plan.nodes[index])
            else:
                return super().visit(index)
        except _OutsideError as outside:
            return self._wrong(outside.node, (), outside.element, outside.value, None)
        for unused in self._checker.unused[index]:
            self._drop(unused)
        return wrong

    def value(self, node: int) -> Array:
        """What was signed for the output of a node, whole and within its range."""
        if node not in self._values and node not in self._aside:
            value, kind = self._read(node), self._nodes[node].outputs[0]
            self._check_range(node, value, 0, kind.size, value)
            self._hold(node, value)
        return super().value(node)

    def _drop(self, node: int) -> None:
        super()._drop(node)
        self._brought.pop(node, None)

    def _check_range(self, node: int, value: Array, start: int, stop: int, whole: Array) -> None:
        """Elements ``start`` to before ``stop`` of the output of a node, ``value``."""
        kind, flat = self._nodes[node].outputs[0], value.reshape(-1)
        outside = np.flatnonzero((flat < kind.lo) | (flat > kind.hi))
        if len(outside):
            raise _OutsideError(node, start + int(outside[0]), whole)

    def _visit_digest(self, index: int) -> WrongValue | None:
        """A node of whose output the digest follows from digests."""
        node = self._nodes[index]
        if node.op == "state":
            due = self._digests_before[index]
        else:
            due = self.digest(node.inputs[0].node)
        if node.op == "tensor_digest":
            value = np.frombuffer(due, np.uint8)
            due = compute_tensor_digest(value)
            if self.digest(index) != due:
                return self.compare(index, value, self._read_inputs(index))
        elif self.digest(index) != due:
            return self._compare_views(index, due)
        return None

    def _compare_views(self, index: int, due: bytes) -> WrongValue:
        """Where the output of a node differs from the tensor with the digest ``due``, which is what
        it ought to be."""
        node, kind = self._nodes[index], self._nodes[index].outputs[0]
        try:
            value = self._checker.store.read_chunk(due, kind)
        except (NotProducedError, StorageError):  # the digest is signed, and wrong without bytes
            return self._wrong(index, (), None, np.empty(0), None)
        source = value
        if node.inputs:
            source = value.reshape(self._nodes[node.inputs[0].node].outputs[0].shape)
        return self.compare(index, value, (source,))

    def _visit_rows(self, index: int, plan: NodePlan) -> WrongValue | None:
        """Rows of a node's output, each element of which is computed."""
        node, kind = self._nodes[index], self._nodes[index].outputs[0]
        drawn = self._rows.rows.draw(self._step, index, plan)
        spans = [plan.bounds(unit, kind.size) for unit in drawn]
        claimed = self._part(index)
        self._bring(index, claimed, _list_chunks(kind, spans))
        if node.op == "state":
            return None
        compute = self._multiply if node.op in PRODUCTS else self._fold
        flat = claimed.value.reshape(-1)
        for (start, stop), computed in zip(spans, compute(index, spans), strict=True):
            wrong = np.flatnonzero(flat[start:stop] != computed)
            if len(wrong):
                element, right = start + int(wrong[0]), int(computed[wrong[0]])
                return self._wrong(index, self._read_inputs(index), element, flat, right)
        return None

    def _multiply(self, index: int, spans: Sequence[tuple[int, int]]) -> list[Array]:
        """These elements of a product, span by span."""
        node = self._nodes[index]
        kinds = [self._nodes[ref.node].outputs[0] for ref in node.inputs]
        parts = [self._part(ref.node) for ref in node.inputs]
        blocks = list(_list_blocks(node, kinds, spans))
        for side, ref in enumerate(node.inputs):
            wanted = _Chunks(kinds[side])
            for block in blocks:
                block.mark(side, wanted)
            self._bring(ref.node, parts[side], wanted.list())
        height, width = node.outputs[0].shape[-2:]
        values: dict[int, Array] = {}
        """By the first element of a row, or of a part of one."""
        for block in blocks:
            product = block.multiply(parts[0].value, parts[1].value)
            for row, found in zip(block.rows, product, strict=True):
                at = (block.stack * height + row) * width + block.columns[0]
                values[at] = found
        out = []
        for start, stop in spans:
            if start in values and len(values[start]) == stop - start:
                out.append(values[start])
                continue
            first = start // width * width
            rows = [values[at] for at in range(first, stop, width)]
            out.append(np.concatenate(rows)[start - first : stop - first])
        return out

    def _fold(self, index: int, spans: Sequence[tuple[int, int]]) -> list[Array]:
        """These elements by the node's leaf rule, span by span."""
        node, checker = self._nodes[index], self._checker
        rule = _Rule(
            checker.graph, node, checker.samples, checker.threads, by_law=self._rows.by_law
        )
        parts = [self._part(ref.node) for ref in node.inputs]
        digests = [self.digest(ref.node) for ref in node.inputs]
        found: dict[int, Array] = {}
        while len(found) < len(spans):
            wanted: list[set[int]] = [set() for _ in parts]
            for at, (start, stop) in enumerate(spans):
                if at in found:
                    continue
                values, missing = rule.compute(parts, digests, start, stop)
                if values is not None:
                    found[at] = values
                for chunks, more in zip(wanted, missing, strict=True):
                    chunks.update(more)
            for ref, part, chunks in zip(node.inputs, parts, wanted, strict=True):
                self._bring(ref.node, part, chunks)
        return [found[at] for at in range(len(spans))]

    def _part(self, node: int) -> _Part:
        """What whoever begins to read the output of a node knows: all where it is small, or is
        held, else nothing."""
        kind = self._nodes[node].outputs[0]
        if node in self._values or kind.byte_length <= self._rows.rows.above:
            return _Part(self.value(node), np.empty(0, np.uint8))
        return _Part.make_empty(kind)

    def _bring(self, node: int, part: _Part, chunks: Iterable[int]) -> None:
        """Read the chunks that are missing; each element of them is to be in its range."""
        wanted = part.list_missing(chunks)
        if not wanted:
            return
        kind, digest = self._nodes[node].outputs[0], self.digest(node)
        if node not in self._brought:
            self._brought[node] = _Brought(*_make_zeros(kind))
        brought = self._brought[node]
        flat, source = part.value.reshape(-1), brought.value.reshape(-1)
        width = flat.itemsize
        unread = brought.list_missing(wanted)
        try:
            for start, data in self._rows.store.read_parts(digest, kind, unread) if unread else ():
                first, stop = start // width, (start + len(data)) // width
                source[first:stop] = np.frombuffer(data, flat.dtype)
                brought.there[start // CHUNK_LENGTH : -(-(start + len(data)) // CHUNK_LENGTH)] = 1
        except NotProducedError as error:
            raise self._owe(node, error) from None
        per = CHUNK_LENGTH // width
        for begin, end in wanted:
            first, stop = begin * per, min(end * per, kind.size)
            flat[first:stop] = source[first:stop]
            part.there[begin:end] = 1
            self._check_range(node, flat[first:stop], first, stop, flat)

    def _read_inputs(self, index: int) -> tuple[Array, ...]:
        """The inputs of a node that was found wrong, whole, for a statement about it; none where
        they are too large to be held, or the solver keeps them back."""
        refs = self._nodes[index].inputs
        total = sum(self._nodes[ref.node].outputs[0].byte_length for ref in refs)
        if total > self._checker.held_bytes:
            return ()
        try:
            return tuple(self._read(ref.node) for ref in refs)
        except (VtrainError, MemoryError):  # which takes nothing from what was found
            return ()


def _list_chunks(kind: TensorType, spans: Iterable[tuple[int, int]]) -> npt.NDArray[np.int64]:
    chunks = _Chunks(kind)
    chunks.add(spans)
    return chunks.list()
