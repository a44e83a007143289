"""A trace provider over any engine: whatever a position asks for is computed by doing steps again.

Whoever holds a run's data and a state before the disputed step can claim and open everything in it.
What is asked for must be answered in time.  So states are kept beforehand, as many as there is room
for (``vtrain.dispute.kept_states``), and how many steps an answer takes at most is known before a
game is joined.  What is asked for in one commitment interval is computed in one pass over it, a
*replay*.

Replays are for one thread at a time.  Others may ask meanwhile, :meth:`EngineProvider.at_hand`, for
what needs none.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vtrain import _core
from vtrain.commit.digest import compute_tensor_digests
from vtrain.commit.state import compute_state_leaves, open_state_leaf
from vtrain.dispute.kept_states import DEFAULT_KEEP, Keep, KeptStates
from vtrain.dispute.provider import (
    ChunkTree,
    ClaimTree,
    LeafOpening,
    MerkleTree,
    PendingError,
)
from vtrain.dispute.scratch import Recent, Scratch
from vtrain.dispute.state import get_base_step
from vtrain.engines.base import Session
from vtrain.errors import ClocksError, RunError, StorageError
from vtrain.spec.domains import RUN_LOG, SAMPLES, TERMS, TRACE
from vtrain.wire.dispute import Chunk, Member, Row
from vtrain.wire.graph import encode_node
from vtrain.wire.opening import StateLeaf, encode_state_leaf
from vtrain.wire.record import StepRecord, encode_record

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask

State = Mapping[str, npt.NDArray[Any]]
Array = npt.NDArray[Any]

HASH = 32
LEAF_BYTES = 160
"""Memory that a leaf of a Merkle tree takes, with its part of the tree."""
STATE_LEAVES_BYTES = 1 << 20
"""Memory for the leaves of states that disputed intervals begin with."""
MARGIN = 1.25
"""By which a machine may be slower in a game than it was when it was measured."""


@dataclass(frozen=True)
class Pace:
    """What a machine takes for a step of a run, in milliseconds: one that is merely done, and one
    that is traced; and for getting back a state to begin with."""

    step_ms: float
    traced_ms: float
    load_ms: float = 0.0


@dataclass
class _Wanted:
    """What is still to be asked for in one commitment interval: the last step to be traced (0:
    none), and nodes by step."""

    traced: int = 0
    nodes: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


@dataclass
class _Pass:
    """What came of one replay for who asked: digests of the trace, and tensors by node."""

    digests: Array
    tensors: dict[int, Array]


class EngineProvider:
    """The claim of whoever runs ``session`` on ``task``: a ``TraceProvider``.

    ``records`` are the step records of the run.  Without them ``steps`` of the run, by default all,
    are done first, which takes as long as training did, and states are kept meanwhile, as many as
    ``keep`` has room for.  With them :meth:`fill` does that.  ``states`` gives states by the number
    of steps done, or None (step 0, the initial state, is known); ``given`` are the steps that it is
    sure to have, where nothing need be kept.

    RunError when a step does not come out as the records say, StorageError when nothing can be
    written where states are kept (a full disk is no error: fewer are kept).  :meth:`close` removes
    what is temporary, as does the end of the provider's life.
    """

    def __init__(
        self,
        task: CompiledTask,
        session: Session,
        *,
        records: Sequence[StepRecord] | None = None,
        states: Callable[[int], State | None] = lambda step: None,
        given: Collection[int] = (),
        steps: int | None = None,
        progress: Callable[[int], None] = lambda done: None,
        keep: Keep = DEFAULT_KEEP,
    ) -> None:
        self._task, self._session, self._states = task, session, states
        self._at = -1
        self._records: list[StepRecord] = list(records or ())
        count = task.spec.steps if steps is None else steps
        self._kept = KeptStates(
            task.graph,
            every=task.spec.commit_every,
            steps=count if records is None else len(records),
            limit=keep.state_bytes,
            folder=keep.folder,
            given=given,
        )
        self._scratch = Scratch(self._kept.make_folder, keep.memory_bytes // 2, keep.tensor_bytes)
        self._trees: Recent[Any] = Recent(keep.memory_bytes // 4, always=True)
        self._leaves: Recent[list[StateLeaf]] = Recent(STATE_LEAVES_BYTES, always=True)
        self._batch_bytes = keep.memory_bytes // 4
        self._wanted: dict[int, _Wanted] = defaultdict(_Wanted)
        self._wanted_lock = threading.Lock()
        self._asking = threading.local()
        self._interrupted = threading.Event()
        self.replays = 0
        """Passes over a commitment interval so far."""
        self.replayed_steps = 0
        """Steps done for them, traced or not, and on the way to where they began."""
        if records is None:
            self._go_to(0)
            for step in range(1, count + 1):
                self._records.append(session.step())
                self._at = step
                self._keep()
                progress(step)
            self.replayed_steps = 0
        self._log = MerkleTree(RUN_LOG, [encode_record(record) for record in self._records])
        self._rows: _core.MerkleTree | None = None
        self._tokens: ChunkTree | None = None

    # --- being ready

    @property
    def worst_replay(self) -> int:
        """Steps that a replay for any trace takes at most, from the states that are there now."""
        return self._kept.worst_replay

    @property
    def kept(self) -> KeptStates:
        """The states kept."""
        return self._kept

    def fill(self, progress: Callable[[int], None] = lambda done: None) -> None:
        """Keep what there is room for, by doing the run again from the states that are there.

        Takes as long as training did where only the initial state is there, and nothing where all
        is kept.  ``progress`` is told the steps up to which all is.  Errors are those of the class.
        """
        every = self._task.spec.commit_every
        for step in range(every, len(self._records), every):
            if self._kept.is_due(step) and not self._kept.adopt(step, self._root_at(step)):
                self._go_to(step)
                self._keep()
            progress(step)

    def measure(self, clock: Callable[[], float] = time.perf_counter, *, most: int = 4) -> Pace:
        """Do the first steps of the run, at most so many, by ``clock`` (seconds)."""
        count = min(most, len(self._records))

        def take(start: int, do: Callable[[], object], times: int) -> float:
            self._go_to(start)
            since = clock()
            for _ in range(times):
                do()
            return (clock() - since) * 1000 / times

        def trace() -> MerkleTree:
            return MerkleTree(TRACE, self._trace_step())

        take(0, self._advance, count)  # an engine's first step may be compiled
        take(0, trace, count)
        step, traced = take(0, self._advance, count), take(0, trace, count)
        kept = self._kept.steps[:1] or [0]
        return Pace(step, traced, take(0, lambda: self._load(kept[0]), 1))

    def compute_replay_ms(self, pace: Pace, steps: int | None = None) -> int:
        """Milliseconds that a replay of ``steps`` takes, by default of :attr:`worst_replay`: as
        many steps as a commitment interval has are traced, the others are on the way to it."""
        steps = self.worst_replay if steps is None else steps
        traced = min(steps, self._task.spec.commit_every)
        return ceil(pace.load_ms + traced * pace.traced_ms + (steps - traced) * pace.step_ms)

    def check_clocks(
        self, *, trace: int, replay: int, pace: Pace | None = None, margin: float = MARGIN
    ) -> None:
        """See, before a game is joined, that its clocks can be kept.

        ``trace`` and ``replay`` are milliseconds: the window for the first trace, and what each
        further replay adds to it.  ``pace`` is measured unless it is declared, and may turn out
        ``margin`` times slower.  ClocksError names the clock, what is needed and what would help.
        """
        pace = pace or self.measure()
        pace = Pace(pace.step_ms * margin, pace.traced_ms * margin, pace.load_ms * margin)
        needed = self.compute_replay_ms(pace)
        for name, given in (("trace", trace), ("replay", replay)):
            if needed > given:
                message = (
                    f"allows {given} ms for the replay of {self.worst_replay} steps, which may take"
                    f" {needed} ms here: {self._find_remedy(pace, min(trace, replay))}"
                )
                raise ClocksError(message, where=f"clocks.{name}")

    def _find_remedy(self, pace: Pace, allowed: int) -> str:
        """What would have a replay take no more milliseconds than are allowed."""
        every = self._task.spec.commit_every
        traced = self.compute_replay_ms(pace, every)
        remedy = f"join a game whose clock is at least {self.compute_replay_ms(pace)} ms"
        if allowed < traced:
            return remedy
        steps = every + int((allowed - traced) / pace.step_ms) if pace.step_ms else every
        enough = self._kept.compute_bytes_for(steps)
        return remedy if enough is None else f"keep {enough} bytes (--keep-bytes), or {remedy}"

    def close(self) -> None:
        """Give up what is kept; a temporary folder is removed."""
        self._kept.close()

    # --- what will be asked

    def want(self, traces: Iterable[int] = (), tensors: Iterable[tuple[int, int]] = ()) -> None:
        """Say beforehand what will be asked for: traces by step, tensors by step and node.

        It takes the place of what was said before: nothing is computed for a dispute that is over.
        Nothing is done yet.  The first question about a commitment interval computes all that is
        wanted in it, in one replay: the tensors with the inputs of their nodes, which an opening
        needs, and as many as may be held.
        """
        with self._wanted_lock:
            self._wanted.clear()
            for step in traces:
                wanted = self._wanted[self._base_of(step)]
                wanted.traced = max(wanted.traced, step)
            for step, node in tensors:
                wanted = self._wanted[self._base_of(step)]
                wanted.nodes[step].update([node, *self._inputs(node)])

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """What this thread asks for within raises PendingError where it needs a replay."""
        self._asking.at_hand = True
        try:
            yield
        finally:
            self._asking.at_hand = False

    def interrupt(self) -> None:
        """A replay, be it of another thread, ends with PendingError within a step."""
        self._interrupted.set()

    def forget_interrupt(self) -> None:
        """Replays go on to their ends again."""
        self._interrupted.clear()

    @property
    def _may_replay(self) -> bool:
        return not getattr(self._asking, "at_hand", False)

    def _check_may_replay(self) -> None:
        if not self._may_replay:
            raise PendingError("needs a replay")

    # --- the trees

    def log(self) -> ClaimTree:
        return self._log

    def trace(self, step: int) -> ClaimTree:
        def compute() -> tuple[MerkleTree, int]:
            digests = self._digests_of(step)
            leaves = [row.tobytes() for row in digests]
            return MerkleTree(TRACE, leaves), LEAF_BYTES * len(leaves)

        tree: MerkleTree = self._find_tree(("trace", step), compute)
        return tree

    def chunks(self, step: int, node: int) -> ClaimTree:
        return self._chunk_tree(step, node)

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        def compute() -> tuple[MerkleTree, int]:
            encoded, sources, arrays, digests = self._site_values(step, node)
            _, _, width = _core.leaf_fold(encoded, sources)
            states = _core.leaf_states(
                encoded, sources, arrays, digests, element, self._table(), self._windows()
            )
            cut = range(0, len(states), 8 * width)
            leaves = [states[at : at + 8 * width] for at in cut]
            return MerkleTree(TERMS, leaves), LEAF_BYTES * len(leaves) + len(states)

        tree: MerkleTree = self._find_tree(("terms", step, node, element), compute)
        return tree

    def open(self, step: int, node: int, element: int, block: int, *, first: bool) -> LeafOpening:
        encoded, sources, arrays, digests = self._site_values(step, node)
        reads, rows, tokens = _core.leaf_reads(
            encoded, sources, arrays, digests, element, block, self._table(), self._windows()
        )
        chunks = []
        for source, indices in zip(self._inputs(node), reads, strict=True):
            tree = self._chunk_tree(step, source) if indices else None
            chunks.append(tuple(tree.open(index) for index in indices) if tree else ())
        leaf = None
        if first and self._is_state(node):
            leaf = self._open_state(step - 1, str(self._task.graph.nodes[node].attrs["name"]))
        return LeafOpening(
            tuple(chunks),
            tuple(self._open_row(row) for row in rows),
            leaf,
            tuple(self._open_tokens(index) for index in tokens),
        )

    def _inputs(self, node: int) -> list[int]:
        """The nodes whose outputs a node reads; a ``state`` reads what it puts out itself."""
        inputs = self._task.graph.nodes[node].inputs
        return [node] if self._is_state(node) else [ref.node for ref in inputs]

    def _is_state(self, node: int) -> bool:
        return self._task.graph.nodes[node].op == "state"

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
        """The samples row by row; of windows of tokens, all tokens as one."""
        table = self._task.samples.table
        return table if self._task.samples.spec.windows is None else table.reshape(1, -1)

    def _windows(self) -> tuple[int, int, int, int, int] | None:
        windows = self._task.samples.spec.windows
        if windows is None:
            return None
        width, tokens, context = windows.width, windows.tokens, windows.context
        return width, tokens, context, windows.stride, windows.shift

    def _open_row(self, index: int) -> Row:
        table = self._table()
        if self._rows is None:
            rows = _core.MerkleTree(SAMPLES)
            rows.extend_fixed(np.ascontiguousarray(table), table.shape[1])
            self._rows = rows  # whole, before another thread sees it
        path = self._rows.inclusion_path(index, len(table))
        return Row(index, table[index].tobytes(), tuple(path))

    def _open_tokens(self, index: int) -> Chunk:
        """A chunk of the tokens."""
        if self._tokens is None:
            self._tokens = ChunkTree(self._task.samples.table)
        return self._tokens.open(index)

    def _open_state(self, done: int, name: str) -> Member:
        """A tensor's leaf in the state after ``done`` steps."""
        opening = open_state_leaf(self._state_leaves(done), name)
        proof = opening.proof
        return Member(encode_state_leaf(opening.leaf), proof.index, proof.size, proof.path)

    def _state_leaves(self, done: int) -> list[StateLeaf]:
        leaves = self._leaves.get(done)
        if leaves is None:
            self._check_may_replay()
            exponents = {
                state: self._task.graph.type_of(ref).exponent
                for state, ref in self._task.graph.states().items()
            }
            self._go_to(done)
            leaves = compute_state_leaves(self._session.read_state(), exponents)
            self._leaves.put(done, leaves, LEAF_BYTES * len(leaves))
        return leaves

    def _chunk_tree(self, step: int, node: int) -> ChunkTree:
        def compute() -> tuple[ChunkTree, int]:
            tensor = self.tensor(step, node)
            tree = ChunkTree(tensor)
            return tree, tensor.nbytes + 2 * HASH * tree.size

        tree: ChunkTree = self._find_tree(("chunks", step, node), compute)
        return tree

    def _find_tree(self, key: tuple[Any, ...], compute: Callable[[], tuple[Any, int]]) -> Any:
        """What is under ``key``, computed with its bytes unless it is among what was used last."""
        found = self._trees.get(key)
        if found is None:
            found, size = compute()
            self._trees.put(key, found, size)
        return found

    # --- doing steps again

    def tensor(self, step: int, node: int) -> Array:
        """The output of ``node`` in ``step``."""
        return self._tensors_of(step, [node])[0]

    def _tensors_of(self, step: int, nodes: Sequence[int]) -> list[Array]:
        """Outputs of several nodes of one step, in one replay at most."""
        if any(("tensor", step, node) not in self._scratch for node in nodes):
            self._check_may_replay()  # before what is there is read from the disk
        found = {}
        for node in set(nodes):
            held = self._scratch.get(("tensor", step, node))
            if held is not None:
                found[node] = held[0]
        missing = [node for node in dict.fromkeys(nodes) if node not in found]
        if missing:
            self._check_may_replay()
        with self._wanted_lock:
            self._wanted[self._base_of(step)].nodes[step].difference_update(nodes)
        if missing:
            found |= self._replay(self._base_of(step), step, missing).tensors
        return [found[node] for node in nodes]

    def _digests_of(self, step: int) -> Array:
        """Digests of all outputs since the last commitment and up to ``step``: [leaves, 32]."""
        base = self._base_of(step)
        count = (step - base) * len(self._task.graph.nodes)
        held = self._scratch.get(("trace", base))
        if held is None or len(held[0]) < count:
            self._check_may_replay()
            return self._replay(base, step, None).digests[:count]
        return held[0][:count]

    def _replay(self, base: int, step: int, asked: Sequence[int] | None) -> _Pass:
        """Do the interval after ``base`` again, once, for all that is wanted in it.

        Asked for are the tensors ``asked`` of ``step``, or its trace where that is None.
        """
        with self._wanted_lock:
            wanted = self._wanted[base]
            traced = step if asked is None else 0
            if wanted.traced > traced and not self._is_traced(base, wanted.traced):
                traced = wanted.traced
            wanted.traced = 0
            todo = self._plan(wanted, {step: list(asked)} if asked else {})
        first = base + 1 if traced else min(todo)
        if not base <= self._at < first:
            self._go_to(base)
        self.replays += 1
        if self._at == base and base and not self._kept.holds(base):
            # Whatever is asked next may be in this interval, and no state is kept before it.
            self._hold_state(base)
        if self._at == base and any(map(self._is_state, todo.get(base + 1, ()))):
            self._state_leaves(base)  # an opening will need one
        found = _Pass(np.empty((0, HASH), np.uint8), {})
        digests: list[bytes] = []
        last = max(traced, *todo) if todo else traced
        for done in range(self._at + 1, last + 1):
            for node, value in self._evaluate(todo.get(done, ())):
                self._scratch.put(("tensor", done, node), [value])
                if done == step and node in (asked or ()):
                    found.tensors[node] = value
            if done <= traced:
                digests += self._trace_step()
            elif done < last:
                self._advance()
        if traced:
            found.digests = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, HASH)
            self._scratch.put(("trace", base), [found.digests])
        return found

    def _is_traced(self, base: int, step: int) -> bool:
        held = self._scratch.get(("trace", base))
        return held is not None and len(held[0]) >= (step - base) * len(self._task.graph.nodes)

    def _plan(self, wanted: _Wanted, todo: dict[int, list[int]]) -> dict[int, list[int]]:
        """Nodes to evaluate by step: those of ``todo``, which are asked for, and of those wanted
        as many as can be held until they are: the others are for another replay."""
        room = self._scratch.capacity
        room -= sum(self._measure_node(node) for nodes in todo.values() for node in nodes)
        for step, nodes in sorted(wanted.nodes.items()):
            for node in sorted(nodes):
                if node in todo.get(step, ()) or ("tensor", step, node) in self._scratch:
                    continue
                room -= self._measure_node(node)
                if room < 0:
                    return todo
                todo.setdefault(step, []).append(node)
        return todo

    def _evaluate(self, nodes: Iterable[int]) -> Iterator[tuple[int, Array]]:
        """Outputs of nodes in the next step, doing it once for as many as memory is given for."""
        batch: list[int] = []
        size = 0
        for node in nodes:
            more = self._measure_node(node)
            if batch and size + more > self._batch_bytes:
                yield from self._evaluate_batch(batch)
                batch, size = [], 0
            batch.append(node)
            size += more
        if batch:
            yield from self._evaluate_batch(batch)

    def _evaluate_batch(self, nodes: list[int]) -> Iterator[tuple[int, Array]]:
        yield from zip(nodes, self._session.evaluate_all(nodes), strict=True)

    def _measure_node(self, node: int) -> int:
        """Bytes of a node's output."""
        return sum(output.byte_length for output in self._task.graph.nodes[node].outputs)

    def _go_to(self, done: int) -> None:
        """Have the session hold the state after ``done`` steps."""
        if self._at == done:
            return
        for start in range(done, -1, -1):
            if start == self._at or self._load(start):
                break
        while self._at < done:
            self._advance()

    def _load(self, done: int) -> bool:
        """Have the session hold the state after ``done`` steps, if it is there."""
        state = self._find_state(done)
        if state is None:
            return False
        self._at = -1  # whatever a session that fails is left with is no state of the run
        self._session.load_state(state)
        self._at = done
        return True

    def _advance(self) -> None:
        """Do the next step."""
        at, self._at = self._at, -1
        record = self._session.step()
        self._at = at
        self._step_done(record)

    def _trace_step(self) -> tuple[bytes, ...]:
        """Do the next step; the digests of all outputs."""
        at, self._at = self._at, -1
        trace = self._session.trace()
        self._at = at
        self._step_done(trace.record)
        return trace.digests

    def _step_done(self, record: StepRecord) -> None:
        self._at += 1
        self.replayed_steps += 1
        if record != self._records[self._at - 1]:
            raise RunError("does not come out as the log says", where=f"step {self._at}")
        with suppress(StorageError):  # an answer is due, and needs no disk
            self._keep()
        if self._interrupted.is_set():
            raise PendingError("was interrupted")

    def _keep(self) -> None:
        """Keep the state that the session holds, if it is to be: also one that was damaged."""
        if self._kept.is_due(self._at):
            self._kept.keep(self._at, self._session.read_state())

    def _find_state(self, done: int) -> State | None:
        if done == 0:
            return self._task.initial_state
        held = self._scratch.get(("state", done))
        if held is not None:
            return dict(zip(self._task.graph.states(), held, strict=True))
        kept = self._kept.find(done, self._root_at(done)) if self._kept.holds(done) else None
        return self._states(done) if kept is None else kept

    def _hold_state(self, done: int) -> None:
        state = self._session.read_state()
        self._scratch.put(("state", done), [state[name] for name in self._task.graph.states()])

    def _root_at(self, step: int) -> bytes:
        return self._records[step - 1].state_root

    def _base_of(self, step: int) -> int:
        return get_base_step(self._task.spec.commit_every, step)
