"""Step graphs rewritten to need less memory: other nodes between, the same records and states.

Integer sums do not depend on their order, so that the gradients of a batch are the sums of those of
its parts (:func:`split_batch`), and a value computed twice is the same value twice
(:func:`recompute`).  Both are therefore graphs like any other, which every engine runs as it is;
what is committed to is the graph of the task, never the rewritten one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from typing import Final

from vtrain.errors import GraphError
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.legality import MAX_NODES
from vtrain.graph.norms import find_batch_norms
from vtrain.ops.base import attr_int, attr_ints
from vtrain.wire.graph import Attrs, AttrValue, Node, Ref, StepGraph


@dataclass(frozen=True)
class Rewritten:
    """A graph and, by the name of each node whose saturated elements count, the name of the node of
    the graph before that it does the work of."""

    graph: StepGraph
    sources: Mapping[str, str]


def leave(graph: StepGraph) -> Rewritten:
    """The graph as it is."""
    return Rewritten(graph, {node.name: node.name for node in graph.nodes})


_BY_ROWS: Final = {
    **dict.fromkeys(("relu", "look_up", "rescale", "normalize", "one_hot", "reshape"), "r"),
    **dict.fromkeys(("im2col", "col2im", "max_pool", "sum_pool", "sum_pool_grad"), "r"),
    **dict.fromkeys(("transpose", "slice", "pad", "sign", "center", "row_max", "row_sum"), "r"),
    **dict.fromkeys(("inverse_root", "capped_square", "token_spans"), "r"),
    **dict.fromkeys(("add", "sub", "mul", "relu_grad", "max_pool_grad", "row_scale"), "rr"),
    **dict.fromkeys(("row_dot", "exp2_diff", "divide", "softmax_grad", "sub_one_hot"), "rr"),
    **dict.fromkeys(("add_bias", "column_scale", "scale_by"), "rw"),
    "batched_matmul": "rr",
    "cross_entropy": "rrrr",
    "gather_rows": "wr",
    "logit_grad": "rrr",
}
"""Operators that make rows of each sample from rows of that sample alone.  By input: r is rows,
w is a value that all samples share."""

_SUMS: Final = frozenset({"matmul", "column_sum", "sum", "square_sum", "scatter_add"})
"""Operators that may add over the samples, to int64."""

_AXES_OF_ROW: Final = {
    **dict.fromkeys(("row_max", "row_sum", "row_dot", "row_scale", "center", "softmax_grad"), 1),
    **dict.fromkeys(("exp2_diff", "divide", "sub_one_hot", "logit_grad", "cross_entropy"), 1),
    **dict.fromkeys(("add_bias", "column_scale", "column_sum", "matmul", "keep_span"), 1),
    **dict.fromkeys(("scatter_add", "token_spans"), 1),
    "batched_matmul": 2,
    **dict.fromkeys(("im2col", "col2im", "max_pool", "max_pool_grad"), 3),
    **dict.fromkeys(("sum_pool", "sum_pool_grad"), 3),
}
"""The last axes of a tensor that these operators take as one row, matrix or image: samples must not
follow each other along them, as they do in a batch that was turned into one image."""


def split_batch(graph: StepGraph, parts: int) -> Rewritten:
    """The step with its batch done in ``parts`` equal parts, one after the other.

    Values with rows of each sample are made part by part; sums over the samples are added up in
    int64, exactly.  GraphError: the parts are not equal, or a node needs all samples at once.
    """
    if parts == 1:
        return leave(graph)
    return _Splitting(graph, parts).run()


def check_parts(batch: int, parts: int) -> None:
    """GraphError unless a batch has so many equal parts."""
    if not 1 <= parts <= batch or batch % parts:
        raise GraphError(
            f"a batch of {batch} has no {parts} equal parts: take a number that divides it",
            where="parts of the batch",
        )


def _lead(shape: Sequence[int]) -> int:
    """The first axis that is longer than 1: along it samples follow each other, if anywhere."""
    return next((axis for axis, extent in enumerate(shape) if extent != 1), 0)


class _Splitting:
    def __init__(self, graph: StepGraph, parts: int) -> None:
        (batch,) = graph.type_of(Ref(graph.find("sample_index"))).shape
        check_parts(batch, parts)
        for norm in find_batch_norms(graph):
            raise GraphError(
                f"takes its statistics of the whole batch, which cannot be done in {parts} parts: "
                "do it whole, or use GroupNorm",
                where=f"node {graph.nodes[norm.squares].name} (BatchNorm)",
            )
        self._graph = graph
        self._batch = batch
        self._parts = parts
        self._builder = GraphBuilder(FixedExponents({}))
        self._sources: dict[str, str] = {}
        self._whole: dict[int, Ref] = {}
        self._sliced: dict[tuple[int, int], Ref] = {}
        # Of nodes: rows of each sample, and the part that is being made of them.
        self._rows: dict[int, Ref | None] = {}
        # Sums over the samples, and whatever follows from them.
        self._late: set[int] = set()
        self._sums: set[int] = set()

    def run(self) -> Rewritten:
        nodes = self._graph.nodes
        for index in range(len(nodes)):
            self._classify(index)
        by_parts = [i for i in range(len(nodes)) if i in self._rows or i in self._sums]
        if len(nodes) + len(by_parts) * self._parts > MAX_NODES:
            raise GraphError(
                f"{self._parts} parts of {len(by_parts)} nodes would be more than {MAX_NODES} "
                "nodes: take fewer parts",
                where="parts of the batch",
            )
        for index in range(len(nodes)):
            if index not in self._late and index not in self._rows:
                self._emit_whole(index)
        for part in range(self._parts):
            for index in by_parts:
                self._emit_part(index, part)
        for index in range(len(nodes)):
            if index in self._late and index not in self._sums:
                self._emit_whole(index)
        return Rewritten(self._builder.graph(), self._sources)

    def _has_lead(self, shape: Sequence[int]) -> bool:
        """Whether rows of each sample can follow each other in a tensor of this shape."""
        return any(extent != 1 for extent in shape) and shape[_lead(shape)] % self._batch == 0

    def _classify(self, index: int) -> None:
        node = self._graph.nodes[index]
        sources = [ref.node for ref in node.inputs]
        is_batch = [self._graph.nodes[i].op == "gather_samples" for i in sources]
        has_rows = any(i in self._rows for i in sources)
        if not has_rows and (node.op == "tensor_digest" or not any(is_batch)):
            if any(i in self._late for i in sources):
                self._late.add(index)
            return
        if any(i in self._late for i in sources):
            self._refuse(node, "reads what follows from a sum over all samples")
        if self._is_by_rows(node):
            self._rows[index] = None
        elif self._is_sum(node):
            self._sums.add(index)
            self._late.add(index)
        else:
            self._refuse(node, "is no operator on single samples, and no sum over them")

    def _refuse(self, node: Node, reason: str) -> None:
        raise GraphError(
            f"{reason}: the batch cannot be done in parts", where=f"node {node.name} ({node.op})"
        )

    def _shape(self, ref: Ref) -> tuple[int, ...]:
        return self._graph.type_of(ref).shape

    def _is_rows(self, ref: Ref) -> bool:
        """Whether the value has rows of each sample: it must be taken apart."""
        return ref.node in self._rows or self._graph.nodes[ref.node].op == "gather_samples"

    def _kinds(self, node: Node) -> str | None:
        """By input, whether a node by rows reads rows or a whole."""
        if node.op == "matmul":
            return "rw" if not node.attrs["transpose_a"] else None
        if node.op == "keep_span":
            spans = node.inputs[1]
            (count, _), (rows, _) = self._shape(spans), self._shape(node.inputs[0])
            # Fewer spans than rows are those of every so many rows, and belong to no sample.
            return "rr" if count == rows else "rw"
        if node.op == "concat":
            return "r" * len(node.inputs)
        return _BY_ROWS.get(node.op)

    def _is_by_rows(self, node: Node) -> bool:
        kinds = self._kinds(node)
        if kinds is None or not self._has_lead(node.outputs[0].shape):
            return False
        for kind, ref in zip(kinds, node.inputs, strict=True):
            if not self._has_lead(self._shape(ref)) if kind == "r" else self._is_rows(ref):
                return False
        return self._keeps_order(node)

    def _keeps_order(self, node: Node) -> bool:
        """Whether the samples follow each other in the output as they do in the input."""
        shape = self._shape(node.inputs[0])
        if not self._has_rows(node):
            return False
        if node.op == "transpose":
            perm = attr_ints(node.attrs, "perm")
            return next(axis for axis in perm if shape[axis] != 1) == _lead(shape)
        if node.op in ("slice", "pad", "concat"):
            return attr_int(node.attrs, "axis") > _lead(shape)
        if node.op == "keep_span" and self._kinds(node) == "rw":
            (count, _) = self._shape(node.inputs[1])
            return (shape[0] // self._parts) % count == 0
        return True

    def _has_rows(self, node: Node) -> bool:
        """Whether what the operator takes as one lies in one sample."""
        shape = node.outputs[0].shape if node.op == "col2im" else self._shape(node.inputs[0])
        return _lead(shape) + _AXES_OF_ROW.get(node.op, 0) < len(shape)

    def _is_sum(self, node: Node) -> bool:
        if node.op not in _SUMS or not all(self._has_lead(self._shape(x)) for x in node.inputs):
            return False
        if not self._has_rows(node):
            return False
        flags = (node.attrs.get("transpose_a"), node.attrs.get("transpose_b"))
        return node.op != "matmul" or flags == (1, 0)

    def _emit(self, node: Node, name: str, inputs: Sequence[Ref], attrs: Attrs) -> Ref:
        made = self._builder.emit(node.op, name, inputs, **attrs)
        # The builder gives another name where a node of the graph has this one.
        self._sources[self._builder.nodes[made.node].name] = node.name
        return made

    def _emit_whole(self, index: int) -> None:
        node = self._graph.nodes[index]
        inputs = [self._whole[ref.node] for ref in node.inputs]
        self._whole[index] = self._emit(node, node.name, inputs, node.attrs)

    def _take(self, ref: Ref, part: int) -> Ref:
        """The rows of ``part`` of a value."""
        made = self._rows.get(ref.node)
        if made is not None:
            return made
        key = (ref.node, part)
        if key not in self._sliced:
            shape = self._shape(ref)
            lead = _lead(shape)
            rows = shape[lead] // self._parts
            name = f"{self._graph.nodes[ref.node].name}/part_{part}"
            self._sliced[key] = self._builder.emit(
                *("slice", name, (self._whole[ref.node],)),
                axis=lead,
                start=part * rows,
                stop=(part + 1) * rows,
            )
        return self._sliced[key]

    def _emit_part(self, index: int, part: int) -> None:
        node = self._graph.nodes[index]
        name = f"{node.name}/part_{part}"
        if index in self._sums:
            inputs = [self._take(ref, part) for ref in node.inputs]
            self._add_up(index, name, inputs, part)
            return
        kinds = self._kinds(node) or ""
        inputs = [
            self._take(ref, part) if kind == "r" else self._whole[ref.node]
            for kind, ref in zip(kinds, node.inputs, strict=True)
        ]
        attrs: dict[str, AttrValue] = dict(node.attrs)
        if isinstance(shape := attrs.get("shape"), tuple):
            lead = _lead(shape)
            attrs["shape"] = (*shape[:lead], shape[lead] // self._parts, *shape[lead + 1 :])
        self._rows[index] = self._emit(node, name, inputs, attrs)

    def _add_up(self, index: int, name: str, inputs: Sequence[Ref], part: int) -> None:
        node = self._graph.nodes[index]
        b = self._builder
        if node.op == "square_sum":
            # Its sum is rounded once, after all of it.
            squares = b.emit("mul", f"{name}/squares", (inputs[0], inputs[0]))
            found = b.emit("sum", name, (squares,))
        else:
            found = self._emit(node, name, inputs, node.attrs)
        before = self._whole.get(index)
        if before is not None:
            found = b.emit("add", f"{name}/so_far", (before, found), shift_a=0, shift_b=0)
        if node.op == "square_sum" and part == self._parts - 1:
            found = b.rescale(node.name, found, node.outputs[0].exponent, dtype="i64")
        self._whole[index] = found


def recompute(graph: StepGraph) -> Rewritten:
    """The step with the values of its forward pass computed again for the backward pass.

    The forward pass is cut where little of it is needed later: what crosses a cut is kept, all else
    is forgotten, and made again from what was kept before the first node of the backward pass that
    reads it.  The cuts are those with the least sum of what is kept and what the largest piece
    makes again.
    """
    return _Recomputing(graph).run()


_UPDATES: Final = frozenset({"momentum", "sgd_update"})
"""What ends the life of a gradient: done as soon as it can be."""
_MOST_CUTS: Final = 100
"""Places that are looked at for a cut: as many layers are cut apart, and the search is short."""
_MOST_SIZES: Final = 32
"""Sizes of the largest piece that are tried."""


class _Recomputing:
    def __init__(self, graph: StepGraph) -> None:
        nodes = graph.nodes
        before_loss = _find_ancestors(graph, nodes[graph.find("record")].inputs[2].node)
        of_batch: set[int] = set()
        for index, node in enumerate(nodes):
            if node.op == "gather_samples" or any(ref.node in of_batch for ref in node.inputs):
                of_batch.add(index)
        self._graph = graph
        self._of_batch = of_batch
        self._forward = [
            i for i in sorted(before_loss & of_batch) if nodes[i].op != "gather_samples"
        ]
        self._at = {index: at for at, index in enumerate(self._forward)}
        # A view has the elements of another node.
        self._roots: dict[int, int] = {}
        for index in self._forward:
            source = nodes[index].inputs[0].node
            is_view = nodes[index].op == "reshape" and source in self._at
            self._roots[index] = self._roots[source] if is_view else index
        # Of the forward pass: what the backward pass reads, and where each value is read last.
        self._read_back: set[int] = set()
        self._last_use = dict.fromkeys(self._forward, -1)
        for index, node in enumerate(nodes):
            for source in (ref.node for ref in node.inputs if ref.node in self._at):
                if index in self._at:
                    root = self._roots[source]
                    self._last_use[root] = max(self._last_use[root], self._at[index])
                else:
                    self._read_back.add(source)
        self._updates_by: dict[int, list[int]] = {}
        for index in sorted(of_batch):
            if nodes[index].op in _UPDATES:
                for source in {ref.node for ref in nodes[index].inputs}:
                    self._updates_by.setdefault(source, []).append(index)
        self._kept: set[int] = set()
        self._pieces: list[list[int]] = []
        self._piece_of: dict[int, int] = {}
        self._builder = GraphBuilder(FixedExponents({}))
        self._sources: dict[str, str] = {}
        self._made: dict[int, Ref] = {}
        self._again: dict[int, Ref] = {}

    def run(self) -> Rewritten:
        self._divide(self._choose_cuts())
        nodes = self._graph.nodes
        # Rates first, for which updates would have to wait.
        early = [i for i in range(len(nodes)) if i not in self._of_batch]
        late = [i for i in sorted(self._of_batch) if nodes[i].op not in _UPDATES]
        for index in (*early, *late):
            self._copy(index)
            self._update(index)
        return Rewritten(self._builder.graph(), self._sources)

    def _update(self, index: int) -> None:
        """Emit the updates for which ``index`` was the last thing missing, and what they were that
        for: without recursion, since updates may follow from each other without end."""
        waiting = list(reversed(self._updates_by.get(index, ())))
        while waiting:
            update = waiting.pop()
            sources = self._graph.nodes[update].inputs
            if update in self._made or any(ref.node not in self._made for ref in sources):
                continue
            self._copy(update)
            waiting.extend(reversed(self._updates_by.get(update, ())))

    def _bytes(self, index: int) -> int:
        return self._graph.type_of(Ref(index)).byte_length

    def _cross(self, at: int) -> set[int]:
        """The values of which the forward pass needs elements after place ``at`` of it."""
        return {
            root
            for root in self._forward[: at + 1]
            if self._roots[root] == root and self._last_use[root] > at
        }

    def _choose_cuts(self) -> list[int]:
        """Places of the forward pass after which it is cut, in order."""
        count = len(self._forward)
        change = [0] * (count + 1)
        for root in self._forward:
            if self._roots[root] == root and self._last_use[root] > self._at[root]:
                change[self._at[root]] += self._bytes(root)
                change[self._last_use[root]] -= self._bytes(root)
        crossing = list(accumulate(change))
        minima = [
            at for at in range(1, count - 1) if crossing[at - 1] >= crossing[at] < crossing[at + 1]
        ]
        minima = minima[:: max(1, -(-len(minima) // _MOST_CUTS))]
        made = [0] * count
        for root in {self._roots[source] for source in self._read_back}:
            made[self._at[root]] = self._bytes(root)
        total = [0, *accumulate(made)]
        places = [-1, *minima, count - 1]
        size = [[total[b + 1] - total[a + 1] for b in places] for a in places]
        return self._search(places, size, [0, *(crossing[at] for at in minima), 0])

    @staticmethod
    def _search(places: list[int], size: list[list[int]], crossing: list[int]) -> list[int]:
        """The cuts with the least sum of what crosses them and the largest piece."""
        ends = range(len(places))
        sizes = sorted({size[a][b] for a, b in combinations(ends, 2)})
        best: tuple[int, list[int]] | None = None
        for largest in sizes[:: max(1, len(sizes) // _MOST_SIZES)] + sizes[-1:]:
            least: list[tuple[int, int] | None] = [(0, 0)]
            for b in ends[1:]:
                ways = [
                    (way[0] + crossing[b], a)
                    for a in range(b)
                    if (way := least[a]) is not None and size[a][b] <= largest
                ]
                least.append(min(ways, default=None))
            last = least[-1]
            if last is not None and (best is None or last[0] + largest < best[0]):
                cuts, at = [], last[1]
                while at > 0:
                    cuts.append(places[at])
                    way = least[at]
                    at = 0 if way is None else way[1]
                best = (last[0] + largest, cuts[::-1])
        return [] if best is None else best[1]

    def _divide(self, cuts: list[int]) -> None:
        """Fix what is kept, and the nodes of each piece that are done again."""
        for cut in cuts:
            self._kept |= self._cross(cut)
        ends = [-1, *cuts, len(self._forward) - 1]
        for number, (start, end) in enumerate(pairwise(ends)):
            nodes = self._forward[start + 1 : end + 1]
            self._piece_of |= dict.fromkeys(nodes, number)
            if number == len(cuts):
                # The last piece has just been done when the backward pass begins.
                self._pieces.append([])
                break
            needed: set[int] = set()
            for index in reversed(nodes):
                if self._is_kept(index):
                    continue
                if index in self._read_back or index in needed:
                    needed.add(index)
                    needed |= {ref.node for ref in self._graph.nodes[index].inputs}
            self._pieces.append([i for i in nodes if i in needed and not self._is_kept(i)])

    def _is_kept(self, index: int) -> bool:
        return self._roots[index] in self._kept

    def _copy(self, index: int) -> None:
        """Emit a node; one of the backward pass reads values that were made again."""
        node = self._graph.nodes[index]
        if index in self._at:
            inputs = [self._made[ref.node] for ref in node.inputs]
        else:
            for ref in node.inputs:
                self._make_again(ref.node)
            inputs = [self._again.get(ref.node, self._made[ref.node]) for ref in node.inputs]
        made = self._builder.emit(node.op, node.name, inputs, **node.attrs)
        # The builder gives another name where a value that was made again has this one.
        self._sources[self._builder.nodes[made.node].name] = node.name
        self._made[index] = made

    def _make_again(self, source: int) -> None:
        """Emit the piece that makes ``source``, unless its elements are there."""
        if source not in self._at or source in self._again or self._is_kept(source):
            return
        piece = self._pieces[self._piece_of[source]]
        if piece and piece[-1] not in self._made:
            # It is read while the piece is being made for the first time.
            return
        for index in piece:
            node = self._graph.nodes[index]
            inputs = [self._again.get(ref.node, self._made[ref.node]) for ref in node.inputs]
            name = f"{node.name}/again"
            self._again[index] = self._builder.emit(node.op, name, inputs, **node.attrs)


def _find_ancestors(graph: StepGraph, index: int) -> set[int]:
    """A node and all that it follows from."""
    found = {index}
    for at in range(index, -1, -1):
        if at in found:
            found |= {ref.node for ref in graph.nodes[at].inputs}
    return found
