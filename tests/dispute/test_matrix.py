"""Every solver against every challenger, on real runs and with the real referee.

All pairs play about the mlp; about the cnn, which commits every step, each solver and each
challenger plays against some.  Where neither side is honest, an honest third party takes part.
Whatever the others do: the true claim stands, every false one falls, the game ends within the
bounds of moves and time that ``tests/dispute/bounds.py`` states, and a liar who plays to the end
falls where the lie is.
"""

from __future__ import annotations

import pytest

from tests.dispute.actors import (
    CHALLENGER,
    CHALLENGERS,
    HONEST,
    SOLVER,
    SOLVERS,
    STRANGER,
    Accuser,
    Challenger,
    Solver,
    make_solver,
    make_tiny_runs,
)
from tests.dispute.arena import Actor, Play, make_game, play
from tests.dispute.bounds import make_bounds
from tests.dispute.claims import Run
from vtrain.attest.keys import public_key
from vtrain.dispute import game as rules
from vtrain.dispute.players import Player
from vtrain.dispute.state import Game, Match, Verdict
from vtrain.errors import MoveRefusedError
from vtrain.spec.frontier import compute_ranges
from vtrain.wire.dispute import SignedMove

CHUNKS = 4
"""The most chunks that a tensor of the tiny runs has."""

RUNS = make_tiny_runs()


def run_game(run: Run, solver_name: str, challenger: Challenger, *, third: bool = True) -> Play:
    """A game between the two, with an honest third party where neither is honest."""
    solver = make_solver(run, solver_name)
    genesis = make_game(run.task, solver.claim, SOLVER)
    wire: list[SignedMove] = []
    actors: list[Actor] = [solver.actor(genesis, wire), *challenger.actors(run, solver, wire)]
    if third and not solver.honest and not challenger.honest:
        actors.append(Player(run.truth, HONEST))
    actors.append(Accuser(wire, STRANGER))
    return play(genesis, actors, limit=500, wire=wire)


def check_game(run: Run, solver_name: str, challenger_name: str) -> None:
    """Hold a game to all that is promised."""
    solver, challenger = make_solver(run, solver_name), CHALLENGERS[challenger_name]
    played = run_game(run, solver_name, challenger)
    verdict = played.verdict
    truth = run.truth.log().root
    assert verdict.standing == truth, "the true claim stands"
    assert (verdict.solver is None) == solver.honest
    for entry in verdict.entries:
        assert (entry.fall is None) == (entry.root == truth), "and every other one has fallen"
    honest = [public_key(key) for key in (HONEST, *([CHALLENGER] if challenger.honest else []))]
    if solver.honest:
        honest.append(public_key(SOLVER))
    assert not set(honest) & set(verdict.barred)
    check_bounds(played, honest)
    check_place(solver, verdict)


def check_bounds(played: Play, honest: list[bytes]) -> None:
    bounds = make_bounds(played.game, chunks=CHUNKS, blocks=1)
    assert played.game.now <= bounds.time
    for party in honest:
        assert played.moves.get(party, 0) <= bounds.moves
    assert played.game.moves <= bounds.count_all_moves(played.game)


def check_place(solver: Solver, verdict: Verdict) -> None:
    """The solver's claim fell for the right reason, at the right place."""
    fall = verdict.solver
    if fall is None:
        return
    assert fall.reason in solver.falls
    if solver.place != (-1, -1):
        assert (fall.place.step, fall.place.node) == solver.place


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
    check_bounds(played, [])


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


BROKEN: dict[str, tuple[object, str, object, str, str]] = {
    "sub-claims are not bound": (
        rules, "_check_bound", claim_unbound, "steals the true sub-claim", "honest",
    ),
    "anything is a contradiction": (
        rules, "_contradict", lambda first, second: True,
        "alters a gradient", "replays old signatures",
    ),
    "signatures are not checked": (
        rules, "_check_signed", lambda game, signed: None, "honest", "signs for others",
    ),
    "the wrong side falls": (
        rules, "_time_out", blame_whoever_moved, "stalls", "honest",
    ),
    "nobody falls for a wrong record": (
        rules, "_is_record", lambda genesis, data, step: False, "lies about the loss", "honest",
    ),
    "the player defends nothing": (
        Player, "_defend", owes_nothing, "lies about the loss", "honest",
    ),
    "the player opens nothing": (
        Player, "_open", lambda player, game, index: player._reveal(game, index),
        "withholds openings", "honest",
    ),
    "reveals prove nothing": (
        rules, "_check_items", count_items,
        "alters a gradient", "joins the true claim and reveals garbage",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_rule_or_player_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of the matrix can fail: each of these faults makes a game of it fail."""
    where, name, broken, solver, challenger = BROKEN[fault]
    check_game(RUNS[MLP], solver, challenger)
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError):
        check_game(RUNS[MLP], solver, challenger)
