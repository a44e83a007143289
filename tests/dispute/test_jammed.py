"""What has fallen at a leaf does not keep the others from being judged there."""

from __future__ import annotations

import pytest

from tests.dispute.arena import Actor, make_key
from tests.dispute.crowd import HONEST_KEY, Pace, Paced, play_together
from tests.dispute.toy import OUTPUT_WIDTH, Lie, ToyProvider, ToyRun, make_toy_genesis
from vtrain.dispute.players import Player
from vtrain.dispute.provider import MerkleTree
from vtrain.spec.domains import TERMS

STEP = 40_008
BLOCK = 50


class Folded(ToyProvider):
    """A false product, whose fold goes wrong at ``block``, with ``junk`` for the state there."""

    def __init__(self, run: ToyRun, block: int, junk: bytes | None = None) -> None:
        super().__init__(run, Lie(STEP, loss=1, product=1))
        states = [
            (state + (at >= block)).to_bytes(OUTPUT_WIDTH, "little", signed=True)
            for at, state in enumerate(run.states)
        ]
        if junk is not None:
            states[block] = junk
        self._folded = MerkleTree(TERMS, states)

    def terms(self, step: int, node: int, element: int) -> MerkleTree:
        return self._folded


@pytest.mark.parametrize("junk", [b"\0", bytes(9), b"\xff" * 100])
@pytest.mark.parametrize("pace", ["stalls", "late", "silent"])
def test_a_malformed_sub_claim_does_not_jam_the_opening(pace: Pace, junk: bytes) -> None:
    """It fell at once, and its content was put to the referee all the same, who refused it."""
    run = ToyRun(steps=1 << 16, nodes=64, real=(STEP,), rows=64, columns=1 << 8)
    truth = ToyProvider(run)
    actors: list[Actor] = [
        Player(truth, HONEST_KEY),
        Paced(Folded(run, BLOCK), make_key(2)),
        Paced(Folded(run, BLOCK, junk), make_key(3)),
        Paced(Folded(run, BLOCK + 20), make_key(4), pace),
    ]
    record = play_together(make_toy_genesis(truth, HONEST_KEY), run.disputed, actors)
    assert record.standing == truth.log().root
    assert not record.refused[Player(truth, HONEST_KEY).party]
