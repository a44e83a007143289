"""Whoever backs the true log with a false trace does not make an honest party lose by it.

The false friend's sub-claims are of the honest party's side of the log, and rivals of hers lower
down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.dispute.actors import NoTerms
from tests.dispute.crowd import Paced
from tests.vectors.generate_games import (
    BONDS,
    CLOCKS,
    FOURTH,
    HOST,
    OPENED,
    OTHER,
    SOLVER,
    THIRD,
    Table,
    make_sum_lie,
    make_task,
    make_truth,
    play,
)
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import public_key
from vtrain.dispute.game import find_verdict
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.money import list_outcomes
from vtrain.dispute.players import Player
from vtrain.dispute.state import Contest, Dispute, Game
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import SignedMove


class Dogged(Player):
    """Answers whatever is asked of its claims, wherever in the group that is."""

    def _look(
        self,
        game: Game,
        contest: Contest,
        root: bytes,
        asked: list[tuple[int, Contest, Dispute]],
        sides: list[tuple[Contest, bytes]],
        tensors: dict[tuple[int, int], None],
    ) -> None:
        super()._look(game, contest, root, asked, sides, tensors)
        seen = {dispute.id for _, _, dispute in asked}
        for other in game.contests.values() if contest.level == "log" else ():
            own = game.find_own(other, self.party) & other.live
            for id_ in other.asking if other.group == contest.id else ():
                classes = other.disputes[id_].classes.values()
                due = [at for found in classes for owing, at in found.asked if owing & own]
                if due and id_ not in seen:
                    seen.add(id_)
                    asked.append((min(due), other, other.disputes[id_]))


@dataclass
class Delayed:
    """Answers nothing about terms until a claim of the log has fallen."""

    player: Player
    log: bytes

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for move in self.player.moves(game):
            asked = game.asked.get(move.about)
            is_terms = asked and game.contests[asked.where[0][0]].level == "terms"
            if not is_terms or game.logs[self.log].fall is not None:
                yield move


def test_an_honest_player_answers_where_its_side_has_no_rival_left() -> None:
    """A liar falls while sub-claims of terms are asked; another keeps the round going."""
    task, solver, liar = make_task(), make_sum_lie(8, 3, loss=3), make_sum_lie(4, 3)
    friend = make_sum_lie(4, 2, 7, loss=0)
    log = solver.log()
    claim = Claim(bytes(32), public_key(SOLVER), task.task_id, log.size, log.root)
    genesis = make_genesis(
        task.spec,
        task.graph,
        sign_claim(claim, SOLVER),
        host=public_key(HOST),
        opened=OPENED,
        nonce=bytes(32),
        clocks=CLOCKS,
        bonds=BONDS,
        arity=2,
        group=17,
    )
    table = Table("friend", "", genesis)
    play(
        table,
        Delayed(Dogged(friend, FOURTH), liar.log().root),
        Paced(solver, SOLVER, "stalls"),
        Player(make_truth(), OTHER),
        NoTerms(Player(liar, THIRD)),
    )
    game = table.game
    truth = make_truth().log().root
    verdict = find_verdict(game)
    assert verdict is not None
    assert verdict.standing == truth
    assert friend.log().root == truth
    settled = list_outcomes(game)
    honest = public_key(OTHER)
    assert all(one.returned for one in settled.outcomes if one.party == honest)
    assert [share.party for share in settled.shares] == [honest]
    bonds = {one.party: one.returned for one in settled.outcomes if one.level == "log"}
    assert not bonds[public_key(FOURTH)]
