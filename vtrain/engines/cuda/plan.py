"""From a step graph to launches: their order, what is done together, and the place of every value.

An *unfused* plan runs the readable kernel of every node, each output in a place of its own while
anyone reads it: traces and single values.  A *fused* plan is what a step runs: chains of pointwise
nodes, products with what follows them, new state in the place of the old where nobody reads that
any more.  Both are fixed before the first launch.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from vtrain.engines.cuda import arena
from vtrain.engines.cuda.arena import ALIGNMENT, Lifetime
from vtrain.engines.cuda.digest import plan_digests, plan_state_root
from vtrain.engines.cuda.fuse import (
    Chain,
    find_chains,
    make_chain,
    name_source,
    render_source,
)
from vtrain.engines.cuda.launch import (
    THREADS,
    Constant,
    Launch,
    Operand,
    Output,
    SampleForm,
    SamplePart,
    Saturated,
    Scratch,
)
from vtrain.engines.cuda.lower.attention import sum_rows
from vtrain.engines.cuda.program import RECORD_PARTS, Program
from vtrain.errors import GraphError
from vtrain.graph.step import STEP_STATE
from vtrain.graph.values import VIEWS
from vtrain.ops.commitment import DIGEST
from vtrain.wire.graph import Node, Ref, TensorType


@dataclass(frozen=True)
class Value:
    """Pointer to a value, by its node."""

    node: int


@dataclass(frozen=True)
class Counter:
    """Pointer to a node's count of saturated elements."""

    node: int


@dataclass(frozen=True)
class Digest:
    """Pointer to the digest of a node's output, in a trace."""

    node: int


@dataclass(frozen=True)
class Places:
    """Pointer to a table of places (``vtrain.engines.cuda.digest``): (value, its digest) pairs."""

    pairs: tuple[tuple[int, int], ...]


PlannedArg = int | Value | Counter | Digest | Places | SamplePart | SampleForm | Constant | Scratch


@dataclass(frozen=True)
class Planned:
    """A launch whose arguments are named in the graph, not relative to a node."""

    file: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[PlannedArg, ...]
    shared: int = 0


@dataclass(frozen=True)
class Job:
    """Nodes that are done together."""

    nodes: tuple[int, ...]
    launches: tuple[Planned, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    replaces: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Result -> values read, in whose place it may be written."""
    commit_only: bool = False
    at: int | None = None
    """The node in whose place it is done, if that is not the last of them."""

    @property
    def node(self) -> int:
        """The last of its nodes."""
        return self.nodes[-1]

    @property
    def place(self) -> int:
        """The node in whose place it is done."""
        return self.node if self.at is None else self.at


class Lower(Protocol):
    """Node -> launches (``vtrain.engines.cuda.lowering``)."""

    def __call__(self, node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]: ...


Region = Literal["arena", "state", "record"]


@dataclass(frozen=True)
class Place:
    """Where a value lies: ``offset`` bytes into a region of memory."""

    region: Region
    offset: int


@dataclass(frozen=True)
class Copy:
    """Bytes to move when all jobs are done."""

    target: Place
    source: Place
    nbytes: int


@dataclass(frozen=True)
class Plan:
    """Jobs in order, places of values, and what a step does at its end.

    ``records`` are the copies that bring the parts of the record together, ``advance`` those that
    make the new state the state.  ``sources`` are generated files by name.
    """

    jobs: tuple[Job, ...]
    places: Mapping[int, Place]
    scratch: Mapping[tuple[int, Scratch], Place]
    """By position of the job."""
    records: tuple[Copy, ...]
    advance: tuple[Copy, ...]
    arena: int
    states: int
    state_places: Mapping[str, Place]
    sources: Mapping[str, str]

    def kernels(self) -> list[tuple[str, str]]:
        """Every kernel that the plan launches."""
        launches = (launch for job in self.jobs for launch in job.launches)
        return list(dict.fromkeys((launch.file, launch.kernel) for launch in launches))


RECORD_OFFSETS: Mapping[str, int] = {"step": 0, "loss": 8, "batch_digest": 16, "root": 48}
"""Where the parts of a record lie in its region."""
RECORD_BYTES = 80


def bind(
    launch: Launch, node: int, inputs: Sequence[int], output: PlannedArg | None = None
) -> Planned:
    """A lowered launch of ``node`` that reads the values ``inputs`` and writes ``output``, which
    is its own value if not given."""
    args: list[PlannedArg] = []
    for arg in launch.args:
        match arg:
            case Operand(index):
                args.append(Value(inputs[index]))
            case Output():
                args.append(Value(node) if output is None else output)
            case Saturated():
                args.append(Counter(node))
            case _:
                args.append(arg)
    return Planned(
        launch.file, launch.kernel, launch.grid, launch.block, tuple(args), launch.shared
    )


def lower_node(program: Program, index: int, lower: Lower) -> Job:
    """The job of one node by itself; GraphError names a node that has no kernel."""
    node, inputs = program.node(index), program.inputs[index]
    try:
        launches = lower(node, program.types(index))
    except GraphError as error:
        raise type(error)(error.message, where=f"node {node.name} ({node.op})") from None
    return Job(
        nodes=(index,),
        launches=tuple(bind(launch, index, inputs) for launch in launches),
        reads=tuple(dict.fromkeys(inputs)),
        writes=(index,),
        commit_only=index in program.commit_only,
    )


"""Type of a tensor digest."""


def plan_unfused(program: Program, lower: Lower, digest: Lower) -> Plan:
    """Node by node, each value digested by ``digest`` when it is done (jobs that write nothing);
    the state stays as it is until the copies of ``advance``."""
    jobs = []
    for index, node in enumerate(program.graph.nodes):
        if node.op in VIEWS:
            continue
        if node.op != "state":
            jobs.append(lower_node(program, index, lower))
        jobs.append(_digest_job(program, index, digest))
    return _finish(program, jobs, {}, in_place=False)


def _digest_job(program: Program, index: int, digest: Lower) -> Job:
    node = Node("digest", "tensor_digest", {}, (Ref(index),), (DIGEST,))
    launches = digest(node, [program.type_of(index)])
    planned = tuple(bind(launch, index, (index,), Digest(index)) for launch in launches)
    return Job((index,), planned, reads=(index,), writes=())


def plan_fused(
    program: Program,
    lower: Lower,
    *,
    dense: Iterable[Job] = (),
    absorbed: Set[int] = frozenset(),
    disabled: Set[str] = frozenset(),
    fuse: bool = True,
    merge_digests: bool = False,
    split: bool = False,
) -> Plan:
    """What a step runs.  ``dense`` are jobs of products with their followers, which need the nodes
    ``absorbed`` no more; ``disabled`` names chains' kernels that must not serve: their nodes are
    done one by one, as all are without ``fuse``.  With ``merge_digests``, tensors that are hashed
    one after another share launches (``vtrain.engines.cuda.digest``).  With ``split``, gradients
    are complete before the first update (:func:`find_split`).
    """
    idle = program.find_idle() | absorbed
    jobs = [job for job in dense if not idle.issuperset(job.nodes)]
    taken = {node for job in jobs for node in job.nodes}
    chains = find_groups(program, taken, split=split) if fuse else []
    text = render_source(chains)
    file = name_source(text)
    fused = [chain_job(program, chain, file) for chain in chains]
    serving = [
        job for job in fused if disabled.isdisjoint(launch.kernel for launch in job.launches)
    ]
    jobs += serving
    taken |= {node for job in serving for node in job.nodes}
    jobs += [
        lower_node(program, index, lower)
        for index, node in enumerate(program.graph.nodes)
        if index not in taken and index not in idle and node.op != "state" and node.op not in VIEWS
    ]
    jobs.sort(key=lambda job: job.place)
    if merge_digests:
        jobs = _merge_leaves(program, _merge_digests(program, jobs))
    return _finish(program, jobs, {file: text} if serving else {}, in_place=True)


def _merge_digests(program: Program, jobs: Sequence[Job]) -> list[Job]:
    """Digests whose tensors are all there when the first of them is due become one job."""
    done_at: dict[int, int] = dict.fromkeys(program.states.values(), -1)
    """Of each value that is there, the job that made it."""
    open_groups: dict[bool, list[int]] = {}
    groups: list[list[int]] = []
    for at, job in enumerate(jobs):
        commits = job.commit_only
        if program.node(job.node).op == "tensor_digest" and len(job.nodes) == 1:
            group = open_groups.get(commits)
            if group is None or done_at.get(job.reads[0], at) >= group[0]:
                open_groups[commits] = group = []
                groups.append(group)
            group.append(at)
        for value in job.writes:
            done_at.setdefault(value, at)
    merged = {group[0]: group for group in groups if len(group) > 1}
    gone = {at for group in merged.values() for at in group[1:]}
    return [
        _digest_group(program, [jobs[i] for i in merged[at]]) if at in merged else job
        for at, job in enumerate(jobs)
        if at not in gone
    ]


def _merge_leaves(program: Program, jobs: Sequence[Job]) -> list[Job]:
    """The root of the state and its leaves, which nobody else reads, become one job."""
    root = program.record["root"]
    leaves = program.inputs[root]
    fits = program.node(root).op == "state_root" and all(
        program.node(leaf).op == "state_leaf" and program.readers[leaf] == [root] for leaf in leaves
    )
    if not fits or len(set(leaves)) != len(leaves):
        return list(jobs)
    digests = [program.inputs[leaf][0] for leaf in leaves]
    launches = plan_state_root([program.node(leaf) for leaf in leaves], _TABLE)
    merged = Job(
        nodes=(*leaves, root),
        launches=_bind_places(launches, root, Places(tuple((d, d) for d in digests))),
        reads=tuple(dict.fromkeys(digests)),
        writes=(root,),
        commit_only=root in program.commit_only,
    )
    gone = {*leaves}
    rest = (job for job in jobs if job.nodes != (root,) and not gone.issuperset(job.nodes))
    return sorted((*rest, merged), key=lambda job: job.place)


_TABLE = Scratch(0, "places")
"""Stands for a table of places until its launches are bound."""


def _bind_places(launches: Iterable[Launch], node: int, pairs: Places) -> tuple[Planned, ...]:
    bound = (bind(launch, node, ()) for launch in launches)
    return tuple(
        replace(launch, args=tuple(pairs if arg == _TABLE else arg for arg in launch.args))
        for launch in bound
    )


def _digest_group(program: Program, jobs: Sequence[Job]) -> Job:
    nodes = tuple(job.node for job in jobs)
    pairs = Places(tuple((job.reads[0], job.node) for job in jobs))
    lengths = [program.nbytes(value) for value, _ in pairs.pairs]
    return Job(
        nodes=nodes,
        launches=_bind_places(plan_digests(lengths, _TABLE), nodes[0], pairs),
        reads=tuple(dict.fromkeys(job.reads[0] for job in jobs)),
        writes=nodes,
        commit_only=jobs[0].commit_only,
        at=nodes[0],
    )


GATHER = "gather_samples"
"""The operator that reads the samples."""


def plan_prefetch(program: Program, plan: Plan, lower: Lower) -> Plan:
    """The batch of the step after that of ``plan``, while the state is still the one before it.

    The first job is the next step's number, which is all that is read of the state; the others are
    those of ``plan`` that draw and gather a batch.  No two values share a place of the arena: the
    batch stays there until the next step takes it.
    """
    now, number = program.states[STEP_STATE], program.next_states[STEP_STATE]
    jobs = [lower_node(program, number, lower)]
    jobs += [
        _rename(job, now, number)
        for job in plan.jobs
        if program.node(job.node).op in ("sample_index", GATHER)
    ]
    places, size = {now: plan.places[now]}, 0
    for job in jobs:
        for value in job.writes:
            places[value] = Place("arena", size)
            size += -(-program.nbytes(value) // ALIGNMENT) * ALIGNMENT
    return replace(
        plan, jobs=tuple(jobs), places=places, scratch={}, records=(), advance=(), arena=size
    )


def _rename(job: Job, old: int, new: int) -> Job:
    """``job`` on the value ``new`` in place of ``old``."""
    launches = tuple(
        replace(launch, args=tuple(Value(new) if arg == Value(old) else arg for arg in launch.args))
        for launch in job.launches
    )
    reads = tuple(new if value == old else value for value in job.reads)
    return replace(job, launches=launches, reads=reads)


def find_groups(
    program: Program, taken: Set[int] = frozenset(), *, split: bool = False
) -> list[Chain]:
    """The chains of a fused plan whose nodes are not ``taken`` by other jobs."""
    momenta = {i for i, node in enumerate(program.graph.nodes) if node.op == "momentum"}
    barrier = momenta if split else frozenset()
    groups = find_chains(program, taken | program.find_idle(), barrier=barrier)
    return [make_chain(program, group) for group in groups]


def chain_job(program: Program, chain: Chain, file: str) -> Job:
    """The job of a chain whose kernel is in ``file``."""
    reads = tuple(dict.fromkeys(value for value, _ in chain.operands))
    alone = {
        value
        for value in reads
        if [reach for other, reach in chain.operands if other == value] == ["same"]
    }
    width = {value: program.nbytes(value) for value in (*reads, *chain.results)}
    args: tuple[PlannedArg, ...] = (
        chain.count,
        chain.columns,
        *(Value(value) for value, _ in chain.operands),
        *(_total(chain, node) for node in chain.totals),
        *chain.numbers,
        *(Value(value) for value in chain.results),
        *(Counter(node) for node in chain.counters),
    )
    totals = [
        bind(launch, node, program.inputs[node], _total(chain, node))
        for node in chain.totals
        for launch in sum_rows(chain.count // chain.columns, chain.columns)
    ]
    return Job(
        nodes=chain.nodes,
        launches=(
            *totals,
            Planned(file, chain.name, (chain.blocks, 1, 1), (THREADS, 1, 1), args),
        ),
        reads=reads,
        writes=chain.results,
        # A thread loads all its elements before it stores any, and touches no other thread's.
        replaces={
            result: tuple(
                value for value in reads if value in alone and width[value] == width[result]
            )
            for result in chain.results
        },
        commit_only=chain.nodes[-1] in program.commit_only,
    )


def _total(chain: Chain, node: int) -> Scratch:
    """Where the totals of the rows of ``node``, one of ``chain.totals``, lie."""
    return Scratch(8 * (chain.count // chain.columns), f"totals {node}")


def find_split(program: Program, plan: Plan) -> int | None:
    """The first job that updates: all gradient accumulators are complete before it.

    None where that is not so, because a gradient comes after an update.
    """
    momenta = {i for i, node in enumerate(program.graph.nodes) if node.op == "momentum"}
    accumulators = {program.inputs[index][1] for index in momenta}
    first = next(
        (at for at, job in enumerate(plan.jobs) if not momenta.isdisjoint(job.nodes)), None
    )
    if first is None:
        return None
    late = any(not accumulators.isdisjoint(job.writes) for job in plan.jobs[first:])
    return None if late else first


def _finish(
    program: Program, jobs: Sequence[Job], sources: Mapping[str, str], *, in_place: bool
) -> Plan:
    return _Placing(program, jobs, in_place).finish(sources)


class _Placing:
    """Gives every value and every scratch a place."""

    def __init__(self, program: Program, jobs: Sequence[Job], in_place: bool) -> None:
        self._program = program
        self._jobs = jobs
        self._end = len(jobs)
        self._in_place = in_place
        self._last_use: dict[int, int] = {}
        for at, job in enumerate(jobs):
            for value in job.reads:
                self._last_use[value] = at
        for value in program.kept:
            self._last_use[value] = self._end
        self._places: dict[int, Place] = {}
        self._in_states: set[Place] = set()
        """Where a next value of a state lies in the place of one."""
        self._targets: dict[int, list[str]] = {}
        """The states that a value is the next of."""
        for name, value in program.next_states.items():
            self._targets.setdefault(value, []).append(name)
        self._blocks: list[list[int]] = []
        """[bytes, first job, last job] of every piece of the arena."""
        self._block_of: dict[int, int] = {}
        self._state_places: dict[str, Place] = {}
        self._states = 0
        for name, node in program.states.items():
            place = Place("state", self._states)
            self._state_places[name] = self._places[node] = place
            self._states += -(-program.nbytes(node) // ALIGNMENT) * ALIGNMENT
        # Of states without bytes, several lie in one place: none is to be replaced.
        shared = collections.Counter(self._state_places.values())
        self._in_states.update(place for place, count in shared.items() if count > 1)

    def finish(self, sources: Mapping[str, str]) -> Plan:
        for at, job in enumerate(self._jobs):
            for value in job.writes:
                self._place(at, job, value)
        scratch: dict[tuple[int, Scratch], int] = {}
        for at, job in enumerate(self._jobs):
            for launch in job.launches:
                for arg in launch.args:
                    if isinstance(arg, Scratch) and (at, arg) not in scratch:
                        scratch[at, arg] = self._take(arg.nbytes, at, at)
        records = self._record_copies()
        advance, staged = self._state_copies()
        offsets, size = arena.place(Lifetime(*block) for block in self._blocks)
        for value, block in self._block_of.items():
            self._places[value] = Place("arena", offsets[block])
        return Plan(
            jobs=tuple(self._jobs),
            places=self._places,
            scratch={key: Place("arena", offsets[block]) for key, block in scratch.items()},
            records=tuple(self._locate(copy, offsets, staged) for copy in records),
            advance=tuple(self._locate(copy, offsets, staged) for copy in advance),
            arena=size,
            states=self._states,
            state_places=self._state_places,
            sources=sources,
        )

    def _take(self, nbytes: int, first: int, last: int) -> int:
        self._blocks.append([nbytes, first, last])
        return len(self._blocks) - 1

    def _place(self, at: int, job: Job, value: int) -> None:
        last = self._last_use.get(value, at)
        free = [read for read in job.replaces.get(value, ()) if self._is_free(read, at, job)]
        if self._in_place:
            if self._place_over_state(at, value, free) or self._place_in_record(value):
                return
            for read in free:
                block = self._block_of.get(read)
                if block is not None:
                    self._blocks[block][2] = last
                    self._block_of[value] = block
                    return
        self._block_of[value] = self._take(self._program.nbytes(value), at, last)

    def _is_free(self, read: int, at: int, job: Job) -> bool:
        """May a result of this job take the place of ``read``?"""
        place = self._block_of.get(read, self._places.get(read))
        others = (
            self._block_of.get(other, self._places.get(other))
            for other in job.writes
            if other in self._block_of or other in self._places
        )
        return self._last_use.get(read, at) == at and place is not None and place not in others

    def _place_over_state(self, at: int, value: int, free: Sequence[int]) -> bool:
        """Puts the next value of a state where the state is, if nobody reads the old one then."""
        for name in self._targets.get(value, ()):
            state = self._program.states[name]
            over = state in free or self._last_use.get(state, -1) < at
            place = self._state_places[name]
            if over and place not in self._in_states:
                self._places[value] = place
                self._in_states.add(place)
                return True
        return False

    def _place_in_record(self, value: int) -> bool:
        for part in RECORD_PARTS:
            place = Place("record", RECORD_OFFSETS[part])
            if self._program.record[part] == value and place not in self._places.values():
                self._places[value] = place
                return True
        return False

    def _record_copies(self) -> list[tuple[Place, int, int]]:
        """(target, value, bytes) for the parts of the record that do not lie in it."""
        copies = []
        for part in RECORD_PARTS:
            value, target = self._program.record[part], Place("record", RECORD_OFFSETS[part])
            if self._places.get(value) != target:
                copies.append((target, value, self._program.nbytes(value)))
        return copies

    def _state_copies(self) -> tuple[list[tuple[Place | int, int, int]], dict[int, int]]:
        """Copies to the states, and blocks in which states that move wait meanwhile."""
        moves = [
            (self._state_places[name], value)
            for name, value in self._program.next_states.items()
            if self._places.get(value) != self._state_places[name]
        ]
        staged: dict[int, int] = {}
        copies: list[tuple[Place | int, int, int]] = []
        for _, value in moves:
            place = self._places.get(value)
            if place is not None and place.region == "state" and value not in staged:
                nbytes = self._program.nbytes(value)
                staged[value] = self._take(nbytes, self._end, self._end)
                copies.append((staged[value], value, nbytes))
        for target, value in moves:
            source = -1 - staged[value] if value in staged else value
            copies.append((target, source, self._program.nbytes(value)))
        return copies, staged

    def _locate(
        self, copy: tuple[Place | int, int, int], offsets: Sequence[int], staged: Mapping[int, int]
    ) -> Copy:
        target, source, nbytes = copy
        to = target if isinstance(target, Place) else Place("arena", offsets[target])
        return Copy(
            to,
            self._places[source] if source >= 0 else Place("arena", offsets[-1 - source]),
            nbytes,
        )
