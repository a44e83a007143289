"""Every solver against every challenger, on real runs and with the real referee.

All pairs play about the mlp; about the cnn, which commits every step, each solver and each
challenger plays against some.  Where neither side is honest, an honest third party takes part.
Whatever the others do: the true claim stands, every false one falls, the honest are paid for their
work and nobody gains by a lie, the game ends in the moves and the time that it may take, and a liar
who plays to the end falls where the lie is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
from vtrain.dispute.consequences import Work, get_depth
from vtrain.dispute.money import list_outcomes
from vtrain.dispute.players import Player
from vtrain.dispute.state import Answer, BondRecord, Contest, Game, Verdict, list_chain
from vtrain.dispute.transcript import replay
from vtrain.errors import MoveRefusedError
from vtrain.wire.dispute import Bond, Move, Open, Reveal, SignedMove, decode_move

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
    check_tree(game)
    again = replay(game.genesis, run.graph, played.transcript)
    assert rules.find_verdict(rules.advance(again, game.now)) == verdict, "and so it is replayed"


def count_rounds(leaves: int, depth: int) -> int:
    """Answers that a way down a tree takes."""
    return max(1, -(-(leaves - 1).bit_length() // depth))


def check_bounds(played: Play, honest: set[bytes]) -> None:
    """In docs/dispute.md: one round, each level's budget once, and no fold of several blocks."""
    game, clocks = played.game, played.game.genesis.clocks
    depth, rivals = get_depth(game.genesis), len(game.logs) - 1
    alive = sum(len(contest.claims) for contest in game.contests.values())
    answers = count_rounds(game.genesis.log_size, depth)
    answers += count_rounds(game.genesis.nodes * game.genesis.commit_every, depth)
    answers += count_rounds(CHUNKS, depth) + 1
    time = clocks.join + clocks.trace + 2 * clocks.budget + clocks.replay * 3 * rivals
    time += answers * (clocks.grace + alive * clocks.answer) + clocks.grace + alive * clocks.opening
    assert game.round <= 2
    assert game.ends <= time
    rival_claims = max(1, alive - 1)
    for party in honest:
        bonds = 1 + len(game.contests)
        assert played.moves.get(party, 0) <= bonds + rival_claims * (answers + 1)
    assert sum(played.moves.values()) == len(played.transcript) == game.moves


def check_tree(game: Game) -> None:
    """What stands stands for something that does; a party has one claim in each contest."""
    for contest in game.contests.values():
        if contest.level == "log":
            continue
        above = game.contests[contest.above]
        for side in contest.sides.values():
            if side.members & contest.live:
                assert above.disputes[contest.id].classes[side.value].mask & above.live
    bonds = [item for item in list_chain(game.bonds) if isinstance(item, BondRecord)]
    assert len({(bond.party, bond.scope) for bond in bonds}) == len(bonds)
    for answer in list_chain(game.answers):
        if isinstance(answer, Answer):
            own = [game.find_own(game.contests[at], answer.party) for at, _, _ in answer.where]
            assert any(own), "nobody answers for a claim that he does not back"
    assert not game.asked, "nothing is asked when it is over"


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
        backed = game.stands.get((game.id, share.party))
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
    "solver",
    ["spends its whole budget", "stalls", "withholds openings", "concedes", "reorders batches"],
)
def test_a_game_without_anyone_honest_ends(solver: str, challenger: str) -> None:
    run = RUNS[MLP]
    played = run_game(run, solver, CHALLENGERS[challenger], third=False)
    check_bounds(played, set())


def do_nothing(*args: object, **kwargs: object) -> None:
    """In place of a check: all is well."""


def always(*args: object, **kwargs: object) -> bool:
    """In place of a question: yes."""
    return True


def forgive(check: Callable[..., None], reason: str) -> Callable[..., None]:
    """A check that takes what it used to refuse for that reason."""

    def broken(*args: object) -> None:
        try:
            check(*args)
        except MoveRefusedError as error:
            if reason not in str(error):
                raise

    return broken


def forget(kind: type[Move]) -> Callable[[Player, Game], Iterator[SignedMove]]:
    """An honest player who never makes moves of one kind, but to stand behind its claim."""
    moves = Player.moves

    def broken(player: Player, game: Game) -> Iterator[SignedMove]:
        for signed in moves(player, game):
            if signed.about == game.id or not isinstance(decode_move(signed.move), kind):
                yield signed

    return broken


def find_later(check: Callable[[Contest, int, int], dict[int, int]]) -> Callable[..., object]:
    """Takes the last thing that a claim owes for the first."""

    def broken(contest: Contest, claims: int, before: int) -> dict[int, int]:
        return dict.fromkeys(check(contest, claims, before), before)

    return broken


BROKEN: dict[str, tuple[object, str, Callable[..., object], str, str]] = {
    "sub-claims are not bound": (
        rules, "_check_bound", do_nothing, "steals the true sub-claim", "honest",
    ),
    "answers are not checked": (
        rules, "_check_items", do_nothing,
        "alters a gradient", "joins the true claim and answers garbage",
    ),
    "anybody answers for a claim": (
        rules, "_find_own", always, "alters a gradient", "answers for others",
    ),
    "a party bonds twice in a contest": (
        rules, "check_offer", forgive(rules.check_offer, "stands behind a claim"),
        "alters a gradient", "replays old signatures",
    ),
    "signatures are not checked": (
        rules, "verify_signature", do_nothing, "alters a gradient", "signs for others",
    ),
    "budgets are not spent": (
        Work, "_charge", do_nothing, "spends its whole budget", "honest",
    ),
    "nobody is ever late": (
        Work, "_check_due", do_nothing, "stalls", "honest",
    ),
    "clocks count what was not owed yet": (
        Contest, "find_due", find_later(Contest.find_due), "spends its whole budget", "honest",
    ),
    "sides without sub-claims stand": (
        Work, "_check_side", do_nothing, "withholds sub-claims", "honest",
    ),
    "nobody needs sub-claims": (
        Work, "_need_sides", do_nothing, "lies about the loss", "honest",
    ),
    "no record is one": (
        consequences, "_is_record", lambda genesis, data, step: False,
        "lies about the loss", "honest",
    ),
    "whatever is committed to is sound": (
        Work, "_is_sound", always, "concedes", "honest",
    ),
    "a leaf is opened against any claim": (
        statement, "_check_meets", do_nothing,
        "opens against another log", "honest, answers when it is due",
    ),
    "rulings are not heard": (
        Work, "rule", do_nothing, "alters a gradient", "honest",
    ),
    "liars are paid": (
        money._Standing, "backs", always,
        "steals the true sub-claim", "makes a wrong claim",
    ),
    "the player answers nothing": (
        Player, "moves", forget(Reveal), "lies about the loss", "honest",
    ),
    "the player bonds no sub-claims": (
        Player, "moves", forget(Bond), "lies about the loss", "honest",
    ),
    "the player opens nothing": (
        Player, "moves", forget(Open), "withholds openings", "honest",
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
