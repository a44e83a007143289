"""A dishonest solver who defends its false run in a dispute: solver.py RUN KEY URL STEP.

In that step it altered one element of a gradient by one unit in the last place.  It holds
everything that an honest solver would hold, consistent with the lie, and answers whatever it is
asked.

Prints "ready", and then reads from its input the id of the game that it is asked to answer in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vtrain.attest.keys import load_key
from vtrain.audit.structure import read_state
from vtrain.demo.cheats import find_felt_element, list_gradient_readers
from vtrain.demo.lies import Lies, LyingProvider, LyingSession, add_one
from vtrain.dispute.client import Follower, connect, play
from vtrain.dispute.engine_provider import State
from vtrain.dispute.players import Player
from vtrain.dispute.run_provider import DisputedRun, load_run
from vtrain.engines.registry import open_session

FALSE_STEP = 87
Array = np.ndarray[Any, Any]


class FalseProvider(LyingProvider):
    """The claim of the false run, with all that must be said for it.

    The lie is that of ``vtrain.demo.cheats.alter_gradient``, told again whenever the step is done.
    """

    def __init__(self, run: DisputedRun, step: int = FALSE_STEP) -> None:
        task, evidence = run.task, run.evidence
        reader = list_gradient_readers(task)[0]
        average, gradient = (ref.node for ref in reader.inputs)

        def lie(value: Array, before: Mapping[int, Array]) -> Array:
            element = find_felt_element(task, reader, before[average], value)
            return value if element is None else add_one(element)(value, before)

        def find_state(step: int) -> State | None:
            if step not in evidence.checkpoints:
                return None
            return read_state(run.paths, task.spec, task.graph, evidence.records, step)

        honest = open_session("auto", task.graph, task.samples)
        session = LyingSession(task, Lies({(step, gradient): lie}), honest)
        super().__init__(task, session, records=evidence.records, states=find_state)


def main() -> None:
    """Play to the end."""
    path, key, url, step = sys.argv[1:]
    run = load_run(Path(path))
    provider = FalseProvider(run, int(step))
    provider.trace(int(step))  # it knows where it will have to answer
    print("ready", flush=True)
    game = bytes.fromhex(sys.stdin.readline())
    with connect(url) as client:
        follower = Follower(client, game, graph=run.task.graph)
        play(follower, client, Player(provider, load_key(Path(key))), wait=0.25)


if __name__ == "__main__":
    main()
