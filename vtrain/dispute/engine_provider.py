"""A trace provider over any engine: whatever a position asks for is computed by doing steps again.

Whoever holds a run's data and a state before the disputed step can claim and open everything in it.
Steps are deterministic, so that nothing needs to be stored but checkpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from vtrain import _core
from vtrain.commit.digest import compute_tensor_digests
from vtrain.commit.state import compute_state_leaves, open_state_leaf
from vtrain.dispute.provider import ChunkTree, ClaimTree, LeafOpening, MerkleTree
from vtrain.dispute.state import get_base_step
from vtrain.engines.base import Session
from vtrain.errors import RunError
from vtrain.spec.domains import RUN_LOG, SAMPLES, TERMS, TRACE
from vtrain.wire.dispute import Member, Row
from vtrain.wire.graph import encode_node
from vtrain.wire.opening import encode_state_leaf
from vtrain.wire.record import StepRecord, encode_record

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask

State = Mapping[str, npt.NDArray[Any]]
Array = npt.NDArray[Any]
K = TypeVar("K")
V = TypeVar("V")

CACHED_BYTES = 1 << 28
"""Of tensors that are kept for the next question about their step."""
CACHED_TREES = 64


class EngineProvider:
    """The claim of whoever runs ``session`` on ``task``: a ``TraceProvider``.

    ``records`` are the step records of the run.  Without them ``steps`` of the run, by default all,
    are done first, which takes as long as training did.  ``states`` gives states by the number of
    steps done (step 0, the initial state, is known): the more of them, the less is done again.
    RunError when a step does not come out as the records say.
    """

    def __init__(
        self,
        task: CompiledTask,
        session: Session,
        *,
        records: Sequence[StepRecord] | None = None,
        states: Callable[[int], State | None] = lambda step: None,
        steps: int | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._task, self._session, self._states = task, session, states
        self._at = -1
        self._held: tuple[int, State] = (0, task.initial_state)
        self._records: list[StepRecord] = []
        if records is None:
            self._go_to(0)
            for step in range(1, (task.spec.steps if steps is None else steps) + 1):
                self._records.append(session.step())
                self._at = step
                progress(step)
        else:
            self._records += records
        self._log = MerkleTree(RUN_LOG, [encode_record(record) for record in self._records])
        self._rows: _core.MerkleTree | None = None
        self._traces: OrderedDict[int, MerkleTree] = OrderedDict()
        self._tensors: OrderedDict[tuple[int, int], Array] = OrderedDict()
        self._trees: OrderedDict[tuple[int, int], ChunkTree] = OrderedDict()
        self._terms: OrderedDict[tuple[int, int, int], MerkleTree] = OrderedDict()

    def log(self) -> ClaimTree:
        return self._log

    def trace(self, step: int) -> ClaimTree:
        return _cached(self._traces, step, CACHED_TREES, lambda: self._compute_trace(step))

    def chunks(self, step: int, node: int) -> ClaimTree:
        return self._chunk_tree(step, node)

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        def compute() -> MerkleTree:
            encoded, sources, arrays, digests = self._site_values(step, node)
            _, _, width = _core.leaf_fold(encoded, sources)
            states = _core.leaf_states(encoded, sources, arrays, digests, element, self._table())
            cut = range(0, len(states), 8 * width)
            return MerkleTree(TERMS, [states[at : at + 8 * width] for at in cut])

        return _cached(self._terms, (step, node, element), CACHED_TREES, compute)

    def want(self, *, traces: Sequence[int], tensors: Sequence[tuple[int, int]]) -> None:
        pass

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        encoded, sources, arrays, digests = self._site_values(step, node)
        table = self._table()
        reads, rows = _core.leaf_reads(encoded, sources, arrays, digests, element, block, table)
        chunks = []
        for source, indices in zip(self._inputs(node), reads, strict=True):
            tree = self._chunk_tree(step, source) if indices else None
            chunks.append(tuple(tree.open(index) for index in indices) if tree else ())
        op, attrs = self._task.graph.nodes[node].op, self._task.graph.nodes[node].attrs
        leaf = self._open_state(step - 1, str(attrs["name"])) if op == "state" and first else None
        return LeafOpening(tuple(chunks), tuple(self._open_row(row) for row in rows), leaf)

    def _inputs(self, node: int) -> list[int]:
        """The nodes whose outputs a node reads; a ``state`` reads what it puts out itself."""
        found = self._task.graph.nodes[node]
        return [node] if found.op == "state" else [ref.node for ref in found.inputs]

    def _site_values(
        self, step: int, node: int
    ) -> tuple[bytes, list[bytes], list[Array], list[bytes]]:
        """A node, its sources, and its inputs' values and digests in ``step``."""
        nodes = self._task.graph.nodes
        sources = [encode_node(nodes[ref.node]) for ref in nodes[node].inputs]
        arrays = self._tensors_of(step, self._inputs(node))
        digests = compute_tensor_digests(arrays)
        return encode_node(nodes[node]), sources, arrays, digests

    def _table(self) -> npt.NDArray[np.uint8]:
        return self._task.samples.table

    def _open_row(self, index: int) -> Row:
        table = self._table()
        if self._rows is None:
            self._rows = _core.MerkleTree(SAMPLES)
            self._rows.extend_fixed(np.ascontiguousarray(table), table.shape[1])
        path = self._rows.inclusion_path(index, len(table))
        return Row(index, table[index].tobytes(), tuple(path))

    def _open_state(self, done: int, name: str) -> Member:
        """A tensor's leaf in the state after ``done`` steps."""
        self._go_to(done)
        exponents = {
            state: self._task.graph.type_of(ref).exponent
            for state, ref in self._task.graph.states().items()
        }
        opening = open_state_leaf(compute_state_leaves(self._session.read_state(), exponents), name)
        proof = opening.proof
        return Member(encode_state_leaf(opening.leaf), proof.index, proof.size, proof.path)

    def _compute_trace(self, step: int) -> MerkleTree:
        base = get_base_step(self._task.spec.commit_every, step)
        self._go_to(base)
        # Whatever is asked next is in these steps: hold the state before them.
        self._held = (base, self._session.read_state())
        digests: list[bytes] = []
        for done in range(base + 1, step + 1):
            trace = self._session.trace()
            self._at = done
            self._compare(done, trace.record)
            digests += trace.digests
        return MerkleTree(TRACE, digests)

    def tensor(self, step: int, node: int) -> Array:
        """The output of ``node`` in ``step``."""
        return self._tensors_of(step, [node])[0]

    def _tensors_of(self, step: int, nodes: Sequence[int]) -> list[Array]:
        """Outputs of several nodes, doing the step at most once."""
        missing = sorted({node for node in nodes if (step, node) not in self._tensors})
        if missing:
            self._go_to(step - 1)
            found = self._session.evaluate_all(missing)
            for node, value in zip(missing, found, strict=True):
                self._tensors[step, node] = value
        result = [self._tensors[step, node] for node in nodes]
        for node in nodes:
            self._tensors.move_to_end((step, node))
        while self._held_bytes() > CACHED_BYTES and len(self._tensors) > 1:
            self._tensors.popitem(last=False)
        return result

    def _held_bytes(self) -> int:
        return sum(value.nbytes for value in self._tensors.values())

    def _chunk_tree(self, step: int, node: int) -> ChunkTree:
        return _cached(
            self._trees, (step, node), CACHED_TREES, lambda: ChunkTree(self.tensor(step, node))
        )

    def _go_to(self, done: int) -> None:
        """Have the session hold the state after ``done`` steps."""
        if self._at == done:
            return
        for start in range(done, -1, -1):
            if start == self._at:
                break
            state = self._find_state(start)
            if state is not None:
                self._session.load_state(state)
                self._at = start
                break
        for step in range(self._at + 1, done + 1):
            record = self._session.step()
            self._at = step
            self._compare(step, record)

    def _find_state(self, done: int) -> State | None:
        if done == self._held[0]:
            return self._held[1]
        return self._task.initial_state if done == 0 else self._states(done)

    def _compare(self, step: int, record: StepRecord) -> None:
        if record != self._records[step - 1]:
            raise RunError("does not come out as the log says", where=f"step {step}")


def _cached(cache: OrderedDict[K, V], key: K, limit: int, compute: Callable[[], V]) -> V:
    """The value for ``key``, computed unless it is among the ``limit`` used last."""
    if key not in cache:
        cache[key] = compute()
        if len(cache) > limit:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]
