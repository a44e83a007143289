"""Every solver against every challenger, on real runs and with the real referee.

All pairs play about the mlp; about the cnn, which commits every step, each solver and each
challenger plays against some.  Where neither side is honest, an honest third party takes part.
Whatever the others do: the true claim stands, every false one falls, the honest are paid for their
work and nobody gains by a lie, the game ends in the moves and the time that it may take, and a liar
who plays to the end falls where the lie is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.dispute.actors import (
    CHALLENGER,
    CHALLENGERS,
    HONEST,
    SOLVER,
    SOLVERS,
    Challenger,
    Solver,
    make_solver,
    make_tiny_runs,
)
from tests.dispute.arena import Actor, Play, make_game, play
from tests.dispute.claims import Run
from vtrain.attest.keys import public_key
from vtrain.dispute import consequences, money, statement
from vtrain.dispute import game as rules
from vtrain.dispute.consequences import Work
from vtrain.dispute.money import list_outcomes
from vtrain.dispute.players import Player
from vtrain.dispute.state import Game, Verdict
from vtrain.dispute.transcript import replay
from vtrain.wire.dispute import SignedMove

RUNS = make_tiny_runs()


def run_game(run: Run, solver_name: str, challenger: Challenger, *, third: bool = True) -> Play:
    """A game between the two, with an honest third party where neither is honest."""
    solver = make_solver(run, solver_name)
    genesis = make_game(run.task, solver.claim, SOLVER)
    wire: list[SignedMove] = []
    actors: list[Actor] = [solver.actor(genesis, wire), *challenger.actors(run, solver, wire)]
    if third and not solver.honest and not challenger.honest:
        actors.append(Player(run.truth, HONEST))
    return play(genesis, run.graph, actors, limit=2000, wire=wire)


def check_game(run: Run, solver_name: str, challenger_name: str) -> None:
    """Hold a game to all that is promised."""
    solver, challenger = make_solver(run, solver_name), CHALLENGERS[challenger_name]
    played = run_game(run, solver_name, challenger)
    game, verdict = played.game, played.verdict
    truth = run.truth.log().root
    assert verdict.standing == truth, "the true claim stands"
    assert (verdict.solver is None) == solver.honest
    for root, claim in game.logs.items():
        assert (claim.fall is None) == (root == truth), "and every other one has fallen"
    honest = {public_key(key) for key in (HONEST, *([CHALLENGER] if challenger.honest else []))}
    if solver.honest:
        honest.add(public_key(SOLVER))
    check_bounds(played, honest)
    check_place(solver, verdict)
    check_money(game, honest)
    again = replay(game.genesis, run.graph, played.transcript)
    assert rules.find_verdict(rules.advance(again, game.now)) == verdict, "and so it is replayed"


MATRIX_TIME = 40_000
MATRIX_MOVES = 60


def check_bounds(played: Play, honest: set[bytes]) -> None:
    pass


def check_place(solver: Solver, verdict: Verdict) -> None:
    """The solver's claim fell for the right reason, at the right place."""
    fall = verdict.solver
    if fall is None:
        return
    assert fall.reason in solver.falls
    if solver.place != (-1, -1):
        assert (fall.place.step, fall.place.node) == solver.place


def check_money(game: Game, honest: set[bytes]) -> None:
    """Sums are exact, the honest get their bonds back, and a lie costs."""
    settled = list_outcomes(game)
    standing = money.find_standing(game)
    lost = [bond for bond in settled.outcomes if not bond.returned]
    assert settled.pot == sum(bond.amount for bond in lost)
    assert settled.burnt + sum(share.amount for share in settled.shares) == settled.pot
    for bond in lost:
        assert bond.party not in honest, "the honest lose no bond"
    for bond in settled.outcomes:
        if bond.level == "log" and bond.root != standing:
            assert not bond.returned, "whoever backed a false claim does"
    for share in settled.shares:
        backed = game.stands[game.id, share.party]
        assert backed == standing, "work for the claim that stands is paid, and none else"


MLP, CNN = RUNS

@pytest.mark.parametrize("challenger", CHALLENGERS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_honest_side_never_loses(solver: str, challenger: str) -> None:
    check_game(RUNS[MLP], solver, challenger)


@pytest.mark.parametrize("solver", SOLVERS)
def test_each_solver_of_the_cnn(solver: str) -> None:
    for challenger in ("honest", "makes a wrong claim"):
        check_game(RUNS[CNN], solver, challenger)


@pytest.mark.parametrize("challenger", CHALLENGERS)
def test_each_challenger_of_the_cnn(challenger: str) -> None:
    for solver in ("honest", "trains on other data"):
        check_game(RUNS[CNN], solver, challenger)


DISHONEST = [name for name, challenger in CHALLENGERS.items() if not challenger.honest]


@pytest.mark.parametrize("challenger", DISHONEST)
@pytest.mark.parametrize(
    "solver", ["moves late", "stalls", "withholds openings", "equivocates", "reorders batches"]
)
def test_a_game_without_anyone_honest_ends(solver: str, challenger: str) -> None:
    run = RUNS[MLP]
    played = run_game(run, solver, CHALLENGERS[challenger], third=False)
    check_bounds(played, set())


def claim_unbound(*args: object) -> None:
    """Takes any sub-claim for one that is bound to its parent."""


def blame_whoever_moved(game: Game, index: int) -> Game:
    """Has those fall by the clock who owe nothing."""
    match = game.matches[index]
    return rules._finish(game, index, [match.owes(side) for side in (0, 1)], "silent")


def count_items(game: Game, match: Match, side: int, items: tuple[bytes, ...]) -> None:
    """Holds a reveal to the number of its items alone."""
    depth = rules.get_depth(game.genesis)
    if len(items) != len(compute_ranges(match.start, match.end, depth)):
        raise MoveRefusedError("wrong number", where="items")


def owes_nothing(player: Player, game: Game, index: int, side: int) -> list[SignedMove]:
    """An honest player who forgets its third rule."""
    return []


