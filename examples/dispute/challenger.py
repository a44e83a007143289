"""An honest challenger: does a run again and disputes its claim: challenger.py RUN KEY URL TRACE.

TRACE is how many milliseconds the clocks allow for a trace of a commitment interval.

Prints the game's id once it has opened one.  `vtrain dispute open` and `vtrain dispute play` do the
same, with clocks for runs that take longer than this one.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from vtrain.attest.keys import load_key
from vtrain.dispute.client import DisputeClient, Follower, connect, play
from vtrain.dispute.genesis import FREE, make_genesis
from vtrain.dispute.players import Player
from vtrain.dispute.run_provider import DisputedRun, load_run, redo
from vtrain.wire.dispute import Clocks
from vtrain.wire.graph import encode_graph
from vtrain.wire.task import encode_task

CLOCKS = Clocks(
    join=6_000,
    trace=4_000,
    terms=2_000,
    budget=60_000,
    grace=15_000,
    answer=40,
    opening=100,
    replay=1_000,
)
"""Milliseconds; an example must not take long.  Real runs need those of `make_clocks`."""


def stretch_clocks(trace: int) -> Clocks:
    """The clocks of intervals whose trace takes up to so many milliseconds; the time for joining
    stays, since nobody else wants to."""
    times = max(1, -(-trace // CLOCKS.trace))
    longer = {
        name: times * getattr(CLOCKS, name)
        for name in ("trace", "terms", "budget", "grace", "replay")
    }
    return replace(CLOCKS, **longer)


def open_game(client: DisputeClient, run: DisputedRun, trace: int) -> bytes:
    """Open a game about the claim of ``run``, at this service and no other: its id.

    It is played for nothing: nobody has money in this example.
    """
    task, graph = run.task.spec, run.task.graph
    clocks = stretch_clocks(trace)
    genesis = make_genesis(
        task, graph, run.signed, host=client.service, opened=0, clocks=clocks, bonds=FREE
    )
    return client.open(genesis, encode_task(task), encode_graph(graph)).receipt.game


def main() -> int:
    """Exit code 0 when there is nothing to dispute, or the dispute is won."""
    path, key, url, trace = sys.argv[1:]
    run = load_run(Path(path))
    truth = redo(run)
    if truth.log().root == run.signed.claim.log_root:
        return 0
    with connect(url) as client:
        game = open_game(client, run, int(trace))
        follower = Follower(client, game, graph=run.task.graph)
        print(game.hex(), flush=True)
        verdict = play(follower, client, Player(truth, load_key(Path(key))), wait=0.25)
    return 0 if verdict.standing == truth.log().root else 1


if __name__ == "__main__":
    sys.exit(main())
