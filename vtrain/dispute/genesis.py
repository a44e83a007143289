"""How a game begins: the genesis that follows from a task, its graph and a signed claim."""

from __future__ import annotations

import secrets

from vtrain.errors import RunError
from vtrain.graph.legality import check_graph
from vtrain.spec.blake3_tree import compute_chunk_count
from vtrain.spec.commitment import compute_graph_root, compute_task_id
from vtrain.spec.samples import compute_row_length
from vtrain.wire import structs
from vtrain.wire.claim import SignedClaim
from vtrain.wire.dispute import MAX_MOVE, MAX_NODE, MAX_ROW, Bonds, Clocks, Genesis
from vtrain.wire.graph import StepGraph, encode_node
from vtrain.wire.opening import CHUNK_LENGTH
from vtrain.wire.task import DataSpec, TaskSpec

ARITY = 16
GROUP = 17
"""Claims of the log that play at once, so that 289 are done in two rounds.  Where honest parties
have one machine, on which each rival may cost a replay, larger groups take longer (docs/dispute.md
has the bound by group)."""

HASH, HEADS, BLOCK = 34, 76, 32
"""Encoded bytes of a hash and of what surrounds a chunk, and chunks that a block reads at most."""
REST = 1 << 16
"""What an opening has besides: the record and the fold state before, names of fields."""

MINUTE = 60_000
RATE = 125
"""Bytes a millisecond that every party can be held to: 1 Mbit/s."""
ANSWERING = 20
"""Milliseconds that every party can be held to for an answer, its bytes apart."""

FREE = Bonds(log=0, trace=0, terms=0)
"""For games that are played for nothing: in one process, or among parties that know each other."""


def make_clocks(
    replay_ms: int = 15 * MINUTE,
    *,
    intervals: int = 1,
    margin: int = 4,
    least: int = MINUTE,
    leaf_bytes: int = 1 << 17,
) -> Clocks:
    """Clocks for a commitment interval that takes ``replay_ms`` to trace on declared hardware.

    ``replay_ms`` counts what a party has to do again to get to the interval, where it keeps fewer
    states than there are intervals.  The window for a trace and each claim's budget are ``margin``
    times that, and no less than ``least``.  The window for joining is as many times longer as the
    run has ``intervals``: an honest challenger does the whole run before it bonds.  Openings have
    ``leaf_bytes`` at most.
    """
    if replay_ms < 1 or intervals < 1 or margin < 1 or least < 1:
        raise RunError("times and counts are whole numbers from 1 on", where="clocks")
    window = max(margin * replay_ms, least)
    return Clocks(
        join=max(margin * replay_ms * intervals, least),
        trace=window,
        terms=max(window // 4, least),
        budget=window,
        grace=max(window // 16, least // 4, 1),
        answer=2 * ANSWERING,
        opening=2 * (ANSWERING + leaf_bytes // RATE),
        replay=replay_ms,
    )


DEFAULT_CLOCKS = Clocks(
    join=60 * MINUTE,
    trace=60 * MINUTE,
    terms=10 * MINUTE,
    budget=60 * MINUTE,
    grace=5 * MINUTE,
    answer=2 * ANSWERING,
    opening=2 * (ANSWERING + (1 << 17) // RATE),
    replay=5 * MINUTE,
)
"""For runs whose commitment interval replays in a few minutes; see ``make_clocks``."""


def make_bonds(clocks: Clocks, *, price: int) -> Bonds:
    """What the bonds of a game must be, at ``price`` units for a second of honest work.

    Twice what a rival claim can cost an honest party from its level on down: a trace and the first
    answer about a tensor, answers all the way, two openings.
    """
    if price < 1:
        raise RunError("is under 1; FREE bonds cost nothing", where="price")
    answers, openings = 64 * clocks.answer, 2 * clocks.opening
    terms = 2 * (answers + openings)
    trace = terms + 2 * (answers + 2 * clocks.replay)
    log = trace + 2 * (answers + clocks.replay)
    return Bonds(*(max(1, -(-cost * price // 1000)) for cost in (log, trace, terms)))


def make_genesis(
    task: TaskSpec,
    graph: StepGraph,
    signed: SignedClaim,
    *,
    host: bytes,
    opened: int,
    clocks: Clocks = DEFAULT_CLOCKS,
    bonds: Bonds = FREE,
    arity: int = ARITY,
    group: int = GROUP,
    nonce: bytes | None = None,
) -> Genesis:
    """The genesis of a game about ``signed``, which says what a run of ``task`` came to.

    ``host`` is the public key of who runs it: times, receipts and the verdict are by that key, and
    no bond that is signed for this game counts in one of another host.  Whoever joins a game makes
    it anew from the task and the graph that they hold, and compares.
    RunError when claim, task and graph are not of one another, GraphError for an illegal graph.
    ``opened`` is the game clock's milliseconds.
    """
    claim = signed.claim
    check_graph(graph)
    leaf_bytes = measure_openings(task, graph)
    if compute_graph_root(graph) != task.graph_root:
        raise RunError("the graph is not the task's", where="graph")
    if claim.task_id != compute_task_id(task):
        raise RunError("the claim is about another task", where="claim.task_id")
    if bool(claim.kzg_root) != (task.kzg is not None):
        raise RunError("is there just where the task logs KZG commitments", where="claim.kzg_root")
    if not 1 <= claim.log_size <= task.steps:
        raise RunError(f"claims {claim.log_size} of {task.steps} steps", where="claim.log_size")
    genesis = Genesis(
        host=host,
        run_id=claim.run_id,
        solver=claim.solver,
        task_id=claim.task_id,
        log_size=claim.log_size,
        log_root=claim.log_root,
        signature=signed.signature,
        graph_root=task.graph_root,
        nodes=len(graph.nodes),
        record_node=graph.find("record"),
        leaf_bytes=leaf_bytes,
        initial_state_root=task.initial_state_root,
        samples_root=task.data.root,
        samples=task.data.samples,
        commit_every=task.commit_every,
        arity=arity,
        group=group,
        clocks=clocks,
        bonds=bonds,
        opened=opened,
        nonce=secrets.token_bytes(32) if nonce is None else nonce,
        kzg_root=claim.kzg_root,
        windows=task.data.windows,
    )
    # What is beyond its bounds has no encoding, or another one: a game of it could have no id.
    return structs.decode(Genesis, structs.encode(genesis), "genesis")


def measure_openings(task: TaskSpec, graph: StepGraph) -> int:
    """Bytes that the opening of a leaf takes at most.

    RunError for a task of which some leaf could not be opened in one move: nobody could be held to
    answer for it, so that whoever has the better clock would win it.
    """
    sample = _measure_sample(task.data)
    path = HASH * (len(graph.nodes) * task.commit_every).bit_length()
    sizes = [len(encode_node(node)) for node in graph.nodes]
    greatest = 0
    for index, node in enumerate(graph.nodes):
        if sizes[index] > MAX_NODE:
            raise RunError(f"has {sizes[index]} bytes, over {MAX_NODE}", where=f"node {node.name}")
        sources = [sizes[ref.node] for ref in node.inputs]
        nodes = sum(sources) + sizes[index] + (len(sources) + 1) * path
        opened = len(sources) * path + sample
        # A block of a fold reads 32 chunks at most, the root of a state one of each of its leaves.
        chunks = [_measure_chunk(graph.type_of(ref).byte_length) for ref in node.inputs]
        opened += max(BLOCK * max(chunks, default=0), sum(chunks))
        if max(nodes, opened) > MAX_MOVE // 2:
            raise RunError(
                f"a leaf would take {max(nodes, opened)} bytes to open, over {MAX_MOVE // 2}",
                where=f"node {node.name}",
            )
        greatest = max(greatest, opened)
    return min(MAX_MOVE, 2 * greatest + REST)


def _measure_sample(data: DataSpec) -> int:
    """Bytes that what a leaf reads of the samples takes at most: a row, or a chunk of tokens."""
    if data.windows is not None:
        return _measure_chunk(data.windows.byte_length)
    row = compute_row_length(data)
    if row > MAX_ROW:
        raise RunError(f"a sample of {row} bytes is over {MAX_ROW}", where="task.data")
    return row


def _measure_chunk(length: int) -> int:
    """Encoded bytes of an opened chunk of a tensor of ``length`` bytes, at most."""
    return min(CHUNK_LENGTH, length) + HEADS + HASH * compute_chunk_count(length).bit_length()
