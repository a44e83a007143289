"""The statements that show a referee what is wrong with a trace that a solver signed.

An algebraic check ends at the first wrong value of a trace: everything before it is as the law has
it, and the solver has signed it.  That is all that a referee needs to judge the element: no game
has to be played for it.  An element is a fold over blocks of terms (docs/leaf-rules.md), and a
referee judges one block: there is a statement for each, in which the state before is what came out
of the one before it.  The last one claims, in this order, what comes out and what the solver
signed: the element, or where there are several blocks the state that makes it.  (The second is
left out where other states make the same element.)  That the solver signed it, the folder of
traces shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vtrain import _core
from vtrain.audit.algebraic import AlgebraicSubject
from vtrain.audit.structure import FindingError, read_state
from vtrain.audit.traces import WrongValue
from vtrain.commit.digest import compute_tensor_digest
from vtrain.commit.state import compute_state_leaves, open_state_leaf
from vtrain.dispute.provider import ChunkTree, MerkleTree
from vtrain.spec.domains import GRAPH, SAMPLES, TRACE
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire import cbor, structs
from vtrain.wire.graph import encode_node
from vtrain.wire.opening import encode_state_leaf


def compose_refutation(wrong: WrongValue, subject: AlgebraicSubject) -> Iterator[bytes]:
    """The statements about the wrong element, block by block, as canonical CBOR.

    None where the solver keeps the element back, or what it is made from, and where it is of a
    state to which the log itself commits.
    """
    if wrong.element is None or wrong.computed is None or wrong.claimed is None:
        return
    if len(wrong.inputs) < len(wrong.node.inputs):
        return
    openings = _Openings(wrong, subject)
    states = openings.fold()
    before = b""
    for block, after in enumerate(states):
        signed = openings.signed(wrong.claimed) if block == len(states) - 1 else b""
        yield cbor.encode(openings.compose(block, before, (after, signed)))
        before = after


class _Openings:
    """What is opened of a trace, of the graph and of the samples for one element."""

    def __init__(self, wrong: WrongValue, subject: AlgebraicSubject) -> None:
        self._wrong, self._subject = wrong, subject
        nodes = subject.graph.nodes
        self._encoded = [encode_node(node) for node in nodes]
        self._graph = MerkleTree(GRAPH, self._encoded)
        self._trace = MerkleTree(TRACE, wrong.leaves)
        self._is_state = wrong.node.op == "state"
        self._first = wrong.offset == 0
        self._after = subject.graph.next_states()
        read = [ref.node for ref in wrong.node.inputs]
        self._reads = [wrong.index] if self._is_state else read
        sources = [] if self._is_state else read
        if self._is_state and not self._first:
            sources = [self._after[str(wrong.node.attrs["name"])].node]
        self._sources = sources
        rules = [] if self._is_state else [self._encoded[source] for source in read]
        self._site = (self._encoded[wrong.index], rules)
        arrays = [np.asarray(value, order="C") for value in wrong.inputs]
        self._values = (arrays, [compute_tensor_digest(value) for value in arrays])
        table = subject.samples.table
        windows = subject.samples.spec.windows
        self._table = table if windows is None else table.reshape(1, -1)
        self._windows = None
        if windows is not None:
            self._windows = (
                windows.width, windows.tokens, windows.context, windows.stride, windows.shift
            )  # fmt: skip
        self._chunks = [ChunkTree(value) for value in arrays]
        self._width = _core.leaf_fold(*self._site)[2]
        self._blocks = 1

    def fold(self) -> list[bytes]:
        """What comes out after each block: the element where there is one, else states."""
        element = self._wrong.element or 0
        states = _core.leaf_states(*self._site, *self._values, element, self._table, self._windows)
        width = 8 * self._width
        cut = [states[at : at + width] for at in range(0, len(states), width)]
        self._blocks = len(cut)
        return cut if len(cut) > 1 else [_core.leaf_finish(*self._site, cut[0])]

    def signed(self, value: int) -> bytes:
        """What the solver signed, in the form of what comes out after the last block."""
        size = NUMPY_DTYPES[self._wrong.node.outputs[0].dtype].itemsize
        element = value.to_bytes(size, "little", signed=value < 0)
        if self._blocks == 1:
            return element
        state = value.to_bytes(8, "little", signed=True)
        if self._width > 1 or _core.leaf_finish(*self._site, state) != element:
            return b""
        return state

    def compose(self, block: int, before: bytes, claims: Sequence[bytes]) -> dict[str, cbor.Value]:
        """The statement about a block, as docs/dispute.md has it."""
        wrong, task = self._wrong, self._subject.task
        first = wrong.step - wrong.offset
        reads, rows, tokens = _core.leaf_reads(
            *self._site, *self._values, wrong.element or 0, block, self._table, self._windows
        )
        windowed: dict[str, cbor.Value] = {}
        if task.data.windows is not None:
            tree = ChunkTree(self._subject.samples.table)
            windowed["windows"] = structs.to_value(task.data.windows)
            windowed["tokens"] = [structs.to_value(tree.open(index)) for index in tokens]
        return {
            **windowed,
            "graph": {"root": self._graph.root, "size": self._graph.size},
            "trace": {"root": self._trace.root, "size": self._trace.size},
            "position": wrong.offset * self._graph.size + wrong.index,
            "base": self._subject.root_before(first),
            "samples": {"root": task.data.root, "size": task.data.samples},
            "node": self._open_node(wrong.index),
            "sources": [self._open_node(source) for source in self._sources],
            "source_index": self._sources[0] if self._is_state and not self._first else 0,
            "inputs": [self._open_input(k, indices) for k, indices in enumerate(reads)],
            "state_leaf": self._open_state(),
            "rows": [self._open_row(index) for index in rows],
            "element": wrong.element or 0,
            "block": block,
            "before": before,
            "claims": list(claims),
        }

    def _open_node(self, index: int) -> dict[str, cbor.Value]:
        return {"data": self._encoded[index], "path": list(self._graph.path(index))}

    def _open_input(self, k: int, indices: Sequence[int]) -> dict[str, cbor.Value]:
        """The digest of an input, opened in the trace, and the chunks that the block reads."""
        wrong, nodes = self._wrong, self._graph.size
        path: tuple[bytes, ...] = ()
        if not self._is_state:
            path = self._trace.path(wrong.offset * nodes + self._reads[k])
        elif not self._first:
            path = self._trace.path((wrong.offset - 1) * nodes + self._sources[0])
        chunks = [structs.to_value(self._chunks[k].open(index)) for index in indices]
        return {"digest": self._values[1][k], "path": list(path), "chunks": chunks}

    def _open_row(self, index: int) -> dict[str, cbor.Value]:
        rows = _core.MerkleTree(SAMPLES)
        rows.extend_fixed(np.ascontiguousarray(self._table), self._table.shape[1])
        path = rows.inclusion_path(index, len(self._table))
        return {"index": index, "row": self._table[index].tobytes(), "path": list(path)}

    def _open_state(self) -> dict[str, cbor.Value]:
        """Of a state in the first step, its leaf in the state before."""
        if not (self._is_state and self._first):
            return {}
        subject, graph = self._subject, self._subject.graph
        done = self._wrong.step - 1
        exponents = {name: graph.type_of(ref).exponent for name, ref in graph.states().items()}
        try:
            state = read_state(subject.paths, subject.task, graph, subject.records, done)
        except FindingError:
            return {}
        leaves = compute_state_leaves(state, exponents)
        opening = open_state_leaf(leaves, str(self._wrong.node.attrs["name"]))
        return {
            "index": opening.proof.index,
            "leaf": encode_state_leaf(opening.leaf),
            "path": list(opening.proof.path),
            "size": opening.proof.size,
        }
