"""A run of any size that nobody trained: a trace provider with real, checkable openings.

A step is a chain of small nodes with one real matrix product in its midst.  Lists are the same leaf
over and over but for a few, so that the tree over 2^20 of them has some dozens of distinct hashes.
The operands are zero but for one row and one column: the product is zero but for one element, and
is right.  The hashes of chunks depend on where a chunk is; the tree over an operand or over the
zero product is a real one, and a changed chunk changes the 20 hashes above it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from mmap import mmap
from typing import Literal

import numpy as np
import numpy.typing as npt

from vtrain import _core
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.game import compute_record_digest
from vtrain.dispute.provider import ChunkTree, ClaimTree, LeafOpening, MerkleTree
from vtrain.dispute.state import DisputedGraph
from vtrain.errors import RunError
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.step import STEP_STATE, emit_state_root
from vtrain.spec import domains
from vtrain.spec.frontier import compute_ranges
from vtrain.spec.merkle import compute_leaf_hash, compute_node_hash, compute_split
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import Bonds, Chunk, Clocks, Genesis
from vtrain.wire.graph import Node, StepGraph, encode_node
from vtrain.wire.opening import CHUNK_LENGTH
from vtrain.wire.record import StepRecord, encode_record

Kind = Literal["forward", "input gradient", "weight gradient"]
"""How the product reads its operands: both along rows, one across them, both across."""
TRANSPOSED: Mapping[Kind, tuple[int, int]] = {
    "forward": (0, 1),
    "input gradient": (0, 0),
    "weight gradient": (1, 0),
}
CLOCKS = Clocks(
    join=1000, trace=1000, terms=1000, budget=2000, grace=100, answer=1, opening=1, replay=50
)
BONDS = Bonds(log=1000, trace=100, terms=10)
Operand = npt.NDArray[np.int16]
OUTPUT_WIDTH = 8
"""Bytes of an element of the product: int64."""


# --- trees


class RunsOfLeaves:
    """A ``ClaimTree`` of RFC 9162's shape over runs of equal leaves, with exceptions.

    ``runs`` are (first leaf, data), ascending, the first at 0; ``exceptions`` data by leaf.
    """

    def __init__(
        self,
        domain: str,
        size: int,
        runs: Sequence[tuple[int, bytes]],
        exceptions: Mapping[int, bytes],
    ) -> None:
        self._domain, self._size, self._runs = domain, size, runs
        self._exceptions = exceptions
        self._breaks = sorted({start for start, _ in runs if start} | set(exceptions))
        self._hashes: dict[tuple[int, int], bytes] = {}

    @property
    def size(self) -> int:
        return self._size

    @property
    def root(self) -> bytes:
        return self._hash(0, self._size)

    def frontier(self, start: int, end: int, depth: int) -> tuple[bytes, ...]:
        return tuple(
            self.leaf(first) if last - first == 1 else self._hash(first, last)
            for first, last in compute_ranges(start, end, depth)
        )

    def leaf(self, index: int) -> bytes:
        run = next(data for start, data in reversed(self._runs) if start <= index)
        return self._exceptions.get(index, run)

    def path(self, index: int) -> tuple[bytes, ...]:
        return tuple(self._hash(*span) for span in _beside(index, self._size))

    def _hash(self, start: int, end: int) -> bytes:
        if not any(start <= at < end for at in self._breaks):
            return _hash_equal(self._domain, self.leaf(start), end - start)
        if (start, end) not in self._hashes:
            if end - start == 1:
                value = compute_leaf_hash(self._domain, self.leaf(start))
            else:
                middle = start + compute_split(end - start)
                left, right = self._hash(start, middle), self._hash(middle, end)
                value = compute_node_hash(self._domain, left, right)
            self._hashes[start, end] = value
        return self._hashes[start, end]


@lru_cache(4096)
def _hash_equal(domain: str, leaf: bytes, count: int) -> bytes:
    """Root of the tree over ``count`` equal leaves."""
    if count == 1:
        return compute_leaf_hash(domain, leaf)
    split = compute_split(count)
    left, right = (_hash_equal(domain, leaf, size) for size in (split, count - split))
    return compute_node_hash(domain, left, right)


class PatchedChunks:
    """A ``ClaimTree`` over the chunks of a tensor that is ``base`` but for some chunks."""

    def __init__(self, base: ChunkTree, patches: Mapping[int, bytes]) -> None:
        self._base, self._patches = base, patches
        self._indices = sorted(patches)
        self._values: dict[tuple[int, int], bytes] = {}

    @property
    def size(self) -> int:
        return self._base.size

    @property
    def root(self) -> bytes:
        return self._value(0, self.size)

    def frontier(self, start: int, end: int, depth: int) -> tuple[bytes, ...]:
        if end - start == 1:
            return (self.leaf(start),)
        return tuple(self._value(*span) for span in compute_ranges(start, end, depth))

    def leaf(self, index: int) -> bytes:
        return self._patches[index] if index in self._patches else self._base.leaf(index)

    def path(self, index: int) -> tuple[bytes, ...]:
        return tuple(self._value(*span) for span in _beside(index, self.size))

    def open(self, index: int) -> Chunk:
        """The chunk with its path."""
        return Chunk(index, self.leaf(index), self.path(index))

    def _value(self, start: int, end: int) -> bytes:
        """Chaining value of a range of chunks, the digest of all of them."""
        if (start, end) not in self._values:
            first = bisect_left(self._indices, start)
            patched = first < len(self._indices) and self._indices[first] < end
            depth = 0 if end - start == 1 else 1
            if depth == 0:
                items = [self.leaf(start)]
            elif patched:
                items = [self._value(*span) for span in compute_ranges(start, end, depth)]
            else:
                items = list(self._base.frontier(start, end, depth))
            whole = (start, end) == (0, self.size)
            self._values[start, end] = _core.fold_chunk_frontier(
                self.size, start, end, depth, items, whole
            )
        return self._values[start, end]


def _beside(index: int, size: int) -> list[tuple[int, int]]:
    """The ranges beside the way from leaf ``index`` of ``size`` up to the root."""
    found, start, end = [], 0, size
    while end - start > 1:
        middle = start + compute_split(end - start)
        if index < middle:
            found.append((middle, end))
            end = middle
        else:
            found.append((start, middle))
            start = middle
    return found[::-1]


# --- the run


@dataclass(frozen=True)
class ToyRun:
    """What all claims about a run share.

    ``steps`` steps of ``nodes`` nodes, a state root every ``commit_every``; the product is
    [rows, terms] x [terms, columns].  Records of steps in ``real`` are records, all others are not.
    """

    steps: int = 1 << 20
    nodes: int = 1 << 12
    commit_every: int = 16
    rows: int = 1 << 10
    columns: int = 1 << 17
    terms: int = 1 << 12
    kind: Kind = "weight gradient"
    real: tuple[int, ...] = (654_320,)

    @property
    def product(self) -> int:
        """The node that is a matrix product."""
        return self.nodes // 2 + 7

    @property
    def element(self) -> int:
        """The element of the product that is not zero."""
        return (self.rows // 3) * self.columns + self.columns // 3

    @property
    def block(self) -> int:
        """A block in the midst of the element's fold."""
        return self.blocks // 3

    @cached_property
    def graph(self) -> tuple[Node, ...]:
        """The nodes, types inferred by the law."""
        builder = GraphBuilder(FixedExponents({}))
        t = builder.emit(
            "state", STEP_STATE, (), name=STEP_STATE, dtype="i64", shape=(), exponent=0
        )
        flips = TRANSPOSED[self.kind]
        shapes = ((self.rows, self.terms), (self.terms, self.columns))
        states, operands = {}, []
        for name, shape, flip in zip("ab", shapes, flips, strict=True):
            stored = shape[::-1] if flip else shape
            states[name] = builder.emit(
                "state", name, (), name=name, dtype="i32", shape=stored, exponent=16
            )
            operands.append(builder.rescale(f"{name}/operand", states[name], 8))
        digests = [
            builder.emit("tensor_digest", f"{i}/digest", (x,)) for i, x in enumerate(operands)
        ]
        batch = builder.emit("batch_digest", "batch", digests)
        root = emit_state_root(builder, states)
        loss = builder.emit("sum", "loss", (t,))
        last = operands[0]
        while len(builder.nodes) < self.product:
            last = builder.emit("relu", f"layer {len(builder.nodes)}", (last,))
        builder.emit("matmul", "product", operands, transpose_a=flips[0], transpose_b=flips[1])
        while len(builder.nodes) < self.nodes - 1:
            last = builder.emit("relu", f"layer {len(builder.nodes)}", (last,))
        inputs = (t, batch, loss, root)
        builder.emit("record", "record", inputs, commit_every=self.commit_every)
        return tuple(builder.nodes)

    @cached_property
    def disputed(self) -> DisputedGraph:
        """The graph as a game takes it."""
        return DisputedGraph(StepGraph(self.graph), self.graph_tree.root)

    @cached_property
    def graph_tree(self) -> MerkleTree:
        """The tree under the graph root."""
        return MerkleTree(domains.GRAPH, [encode_node(node) for node in self.graph])

    @cached_property
    def lines(self) -> tuple[range, range]:
        """What the element is made of: the flat indices of a row of a, and of a column of b."""
        row, column = divmod(self.element, self.columns)
        flip_a, flip_b = TRANSPOSED[self.kind]
        across_a = range(row, self.terms * self.rows, self.rows)
        across_b = range(column, self.terms * self.columns, self.columns)
        along_a = range(row * self.terms, (row + 1) * self.terms)
        along_b = range(column * self.terms, (column + 1) * self.terms)
        return across_a if flip_a else along_a, along_b if flip_b else across_b

    @cached_property
    def operands(self) -> tuple[Operand, Operand]:
        """a and b as stored: zero but for the lines of the element."""
        rng = np.random.default_rng(0)
        made = []
        for ref, line in zip(self.node.inputs, self.lines, strict=True):
            # Not numpy's own zeros: they come in huge pages, of which a column touches every one.
            stored = self.graph[ref.node].outputs[0]
            array = np.frombuffer(mmap(-1, 2 * stored.size), np.int16)
            array[line.start : line.stop : line.step] = rng.integers(-32639, 32640, self.terms)
            made.append(array.reshape(stored.shape))
        return made[0], made[1]

    @cached_property
    def operand_trees(self) -> tuple[PatchedChunks, PatchedChunks]:
        """The chunks of both operands."""
        a, b = map(_patch_zeros, self.operands, self.lines)
        return a, b

    @property
    def node(self) -> Node:
        """The product."""
        return self.graph[self.product]

    @cached_property
    def encoded(self) -> tuple[bytes, list[bytes]]:
        """The product and what puts out its operands, as the leaf rules take them."""
        return encode_node(self.node), [encode_node(self.graph[i.node]) for i in self.node.inputs]

    @cached_property
    def blocks(self) -> int:
        """Blocks of an element's fold."""
        terms, length, _ = _core.leaf_fold(*self.encoded)
        return -(-terms // length)

    @cached_property
    def states(self) -> tuple[int, ...]:
        """The true states of the element's fold after each block."""
        digests = [tree.root for tree in self.operand_trees]
        states = _core.leaf_states(*self.encoded, list(self.operands), digests, self.element)
        return tuple(int(state) for state in np.frombuffer(states, "<i8"))


@lru_cache(4)
def _make_zero_tree(length: int) -> ChunkTree:
    """The chunks of so many zero bytes."""
    return ChunkTree(np.zeros(length, np.uint8))


def _patch_zeros(array: Operand, nonzero: range) -> PatchedChunks:
    """The chunks of an array that is zero but for these flat indices."""
    data = array.reshape(-1).view(np.uint8)
    patches = {}
    for chunk in {index * array.itemsize // CHUNK_LENGTH for index in nonzero}:
        start = chunk * CHUNK_LENGTH
        patches[chunk] = data[start : start + CHUNK_LENGTH].tobytes()
    return PatchedChunks(_make_zero_tree(array.nbytes), patches)


@dataclass(frozen=True)
class Lie:
    """What a claim has other than the truth.

    ``loss`` of the record at step ``step``, which tells logs apart; 0: the true log.  The product's
    element in that step is ``product`` too great, which tells traces apart, and its fold from block
    ``block`` on, or the run's own block; until the last block by ``detour`` more, which tells folds
    apart.
    """

    step: int
    loss: int = 0
    product: int = 0
    block: int = -1
    detour: int = 0


TRUTH = Lie(step=0)


@dataclass
class ToyProvider:
    """The claim that ``run`` is true but for ``lie``: a ``TraceProvider``."""

    run: ToyRun
    lie: Lie = TRUTH
    _traces: dict[int, ClaimTree] = field(default_factory=dict)
    _chunks: dict[bool, ClaimTree] = field(default_factory=dict)

    def log(self) -> ClaimTree:
        return self._log

    @cached_property
    def _log(self) -> ClaimTree:
        lie = self.lie
        runs = [(0, b"before")]
        if lie.loss:
            runs.append((lie.step, b"after %d" % lie.loss))
        exceptions = {step - 1: encode_record(self._record(step)) for step in self.run.real}
        return RunsOfLeaves(domains.RUN_LOG, self.run.steps, runs, exceptions)

    def trace(self, step: int) -> ClaimTree:
        if step not in self._traces:
            self._traces[step] = self._compute_trace(step)
        return self._traces[step]

    def _compute_trace(self, step: int) -> ClaimTree:
        run = self.run
        last = (step - 1) % run.commit_every * run.nodes
        exceptions = {
            last + run.nodes - 1: compute_record_digest(self._record(step)),
            last + run.product: self.chunks(step, run.product).root,
        }
        for ref, tree in zip(run.node.inputs, run.operand_trees, strict=True):
            exceptions[last + ref.node] = tree.root
        runs = [(0, bytes(32))]
        if self._lies_at(step):
            # All that comes after a false product is false.
            runs.append((last + run.product, self.lie.product.to_bytes(32, "little", signed=True)))
        return RunsOfLeaves(domains.TRACE, last + run.nodes, runs, exceptions)

    def chunks(self, step: int, node: int) -> ClaimTree:
        if node != self.run.product:
            raise RunError("only the product is ever disputed", where=f"node {node}")
        lies = self._lies_at(step)
        if lies not in self._chunks:
            run = self.run
            value = run.states[-1] + (self.lie.product if lies else 0)
            at = run.element * OUTPUT_WIDTH
            chunk = bytearray(CHUNK_LENGTH)
            chunk[at % CHUNK_LENGTH : at % CHUNK_LENGTH + OUTPUT_WIDTH] = _encode(value)
            zeros = _make_zero_tree(run.rows * run.columns * OUTPUT_WIDTH)
            self._chunks[lies] = PatchedChunks(zeros, {at // CHUNK_LENGTH: bytes(chunk)})
        return self._chunks[lies]

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        if (node, element) != (self.run.product, self.run.element):
            raise RunError("is not disputed", where=f"node {node} element {element}")
        return self._false_terms if self._lies_at(step) else self._true_terms

    @cached_property
    def _true_terms(self) -> MerkleTree:
        return MerkleTree(domains.TERMS, [_encode(state) for state in self.run.states])

    @cached_property
    def _false_terms(self) -> MerkleTree:
        states, lie = self.run.states, self.lie
        block = self.run.block if lie.block < 0 else lie.block
        last = len(states) - 1
        false = [
            state + (lie.product + (lie.detour if at < last else 0) if at >= block else 0)
            for at, state in enumerate(states)
        ]
        return MerkleTree(domains.TERMS, [_encode(state) for state in false])

    def want(self, *, traces: Sequence[int], tensors: Sequence[tuple[int, int]]) -> None:
        """Nothing here takes long."""

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        run = self.run
        trees = run.operand_trees
        digests = [tree.root for tree in trees]
        reads, *_ = _core.leaf_reads(*run.encoded, list(run.operands), digests, element, block)
        chunks: list[tuple[Chunk, ...]] = [
            tuple(tree.open(index) for index in indices)
            for tree, indices in zip(trees, reads, strict=True)
        ]
        return LeafOpening(tuple(chunks), (), None)

    def _lies_at(self, step: int) -> bool:
        return step == self.lie.step

    def _record(self, step: int) -> StepRecord:
        false = self.lie.loss if self.lie.loss and step >= self.lie.step else 0
        root = bytes(32) if step % self.run.commit_every == 0 else b""
        return StepRecord(step, bytes(32), false, root)


def _encode(value: int) -> bytes:
    return value.to_bytes(OUTPUT_WIDTH, "little", signed=True)


def make_toy_genesis(
    provider: ToyProvider,
    key: PrivateKey,
    *,
    arity: int = 16,
    group: int = 16,
    clocks: Clocks = CLOCKS,
) -> Genesis:
    """A game about the claim of ``provider``, signed by ``key``."""
    run, log = provider.run, provider.log()
    claim = Claim(bytes(32), public_key(key), bytes(32), log.size, log.root)
    signed = sign_claim(claim, key)
    return Genesis(
        host=bytes(32),
        run_id=claim.run_id,
        solver=claim.solver,
        task_id=claim.task_id,
        log_size=claim.log_size,
        log_root=claim.log_root,
        signature=signed.signature,
        graph_root=run.graph_tree.root,
        nodes=run.nodes,
        record_node=run.nodes - 1,
        leaf_bytes=1 << 18,
        initial_state_root=bytes(32),
        samples_root=bytes(32),
        samples=1,
        commit_every=run.commit_every,
        arity=arity,
        group=group,
        clocks=clocks,
        bonds=BONDS,
        opened=0,
        nonce=bytes(32),
    )
