"""Claims that cost no training: logs made by hand, one of which has a leaf that is no record.

So the false one falls as "malformed" when that leaf is reached: no engine is needed, and every move
is real.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tests.dispute.arena import make_key
from tests.tasks import make_tiny_task
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.consequences import get_depth
from vtrain.dispute.game import sign
from vtrain.dispute.provider import MerkleTree
from vtrain.dispute.state import Game, compute_fact_id
from vtrain.spec.domains import RUN_LOG
from vtrain.train.task import CompiledTask
from vtrain.wire.claim import Claim, SignedClaim
from vtrain.wire.dispute import Bond, Reveal, SignedMove
from vtrain.wire.record import StepRecord, encode_record

STEPS, EVERY, BROKEN = 40, 5, 23
LIAR, HONEST = map(make_key, (1, 2))


class Hands:
    """A clock that goes when it is told to, in milliseconds."""

    def __init__(self) -> None:
        self.at = 1_000_000

    def __call__(self) -> int:
        return self.at

    def sleep(self, seconds: float) -> None:
        """Nobody has to wait."""
        self.at += round(1000 * seconds)


def get_task() -> CompiledTask:
    """The task that all these claims are about."""
    return make_tiny_task("mlp", steps=STEPS, commit_every=EVERY)


@cache
def make_log(broken: int = -1, loss: int = 0, steps: int = STEPS) -> MerkleTree:
    """Records of so many steps; the one of index ``broken`` is none."""
    leaves = [
        encode_record(StepRecord(at, bytes(32), loss, b"" if at % EVERY else bytes(32)))
        for at in range(1, steps + 1)
    ]
    if broken >= 0:
        leaves[broken] = b"no record"
    return MerkleTree(RUN_LOG, leaves)


def make_claim(tree: MerkleTree, key: PrivateKey = LIAR, run: bytes = b"r" * 32) -> SignedClaim:
    """What a solver signs about a log."""
    return sign_claim(Claim(run, public_key(key), get_task().task_id, tree.size, tree.root), key)


class LogPlayer:
    """Plays a log's claim as far as the log goes."""

    def __init__(self, key: PrivateKey, tree: MerkleTree) -> None:
        self.key, self.tree = key, tree

    def moves(self, game: Game) -> Iterator[SignedMove]:
        party, root = public_key(self.key), self.tree.root
        if game.over:
            return
        if (game.id, party) not in game.stands:
            if game.round == 0:
                yield bond(game, self.key, root)
            return
        for contest in map(game.contests.__getitem__, game.groups):
            own = game.find_own(contest, party)
            for dispute in map(contest.disputes.__getitem__, contest.asking):
                for value, found in dispute.classes.items():
                    if found.owing & own and not dispute.leaf:
                        depth = get_depth(game.genesis)
                        items = self.tree.frontier(dispute.start, dispute.end, depth)
                        about = compute_fact_id(dispute, value)
                        yield sign(game.id, about, Reveal(items), self.key)


def bond(game: Game, key: PrivateKey, root: bytes) -> SignedMove:
    """Stand behind a claim of the log."""
    return sign(game.id, game.id, Bond(root, b"", ()), key)
