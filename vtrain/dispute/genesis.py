"""How a game begins: the genesis that follows from a task, its graph and a signed claim."""

from __future__ import annotations

import secrets

from vtrain.errors import RunError
from vtrain.graph.legality import check_graph
from vtrain.spec.commitment import compute_graph_root, compute_task_id
from vtrain.wire.claim import SignedClaim
from vtrain.wire.dispute import Clocks, Genesis
from vtrain.wire.graph import StepGraph
from vtrain.wire.task import TaskSpec

ARITY = 16

MINUTE = 60_000
DEFAULT_CLOCKS = Clocks(
    join=60 * MINUTE, trace=60 * MINUTE, terms=10 * MINUTE, match=60 * MINUTE, grace=5 * MINUTE
)
"""For runs whose commitment interval replays in a few minutes; see ``make_clocks``."""


def make_clocks(replay_ms: int, *, margin: int = 4, least: int = MINUTE) -> Clocks:
    """Clocks for a commitment interval that takes ``replay_ms`` to trace on declared hardware.

    A trace window and a match budget are ``margin`` times that, and no less than ``least``.
    """
    window = max(margin * replay_ms, least)
    return Clocks(
        join=window,
        trace=window,
        terms=max(window // 4, least),
        match=window,
        grace=max(window // 16, least // 4),
    )


def make_genesis(
    task: TaskSpec,
    graph: StepGraph,
    signed: SignedClaim,
    *,
    opened: int,
    clocks: Clocks = DEFAULT_CLOCKS,
    arity: int = ARITY,
    nonce: bytes | None = None,
) -> Genesis:
    """The genesis of a game about ``signed``, which says what a run of ``task`` came to.

    Whoever joins a game makes it anew from the task and the graph that they hold, and compares.
    RunError when claim, task and graph are not of one another, GraphError for an illegal graph.
    ``opened`` is the game clock's milliseconds.
    """
    claim = signed.claim
    check_graph(graph)
    if compute_graph_root(graph) != task.graph_root:
        raise RunError("the graph is not the task's", where="graph")
    if claim.task_id != compute_task_id(task):
        raise RunError("the claim is about another task", where="claim.task_id")
    if not 1 <= claim.log_size <= task.steps:
        raise RunError(f"claims {claim.log_size} of {task.steps} steps", where="claim.log_size")
    return Genesis(
        run_id=claim.run_id,
        solver=claim.solver,
        task_id=claim.task_id,
        log_size=claim.log_size,
        log_root=claim.log_root,
        signature=signed.signature,
        graph_root=task.graph_root,
        nodes=len(graph.nodes),
        record_node=graph.find("record"),
        initial_state_root=task.initial_state_root,
        samples_root=task.data.root,
        samples=task.data.samples,
        commit_every=task.commit_every,
        arity=arity,
        clocks=clocks,
        opened=opened,
        nonce=secrets.token_bytes(32) if nonce is None else nonce,
    )
