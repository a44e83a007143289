"""What becomes of bonds: work is paid, waiting is not, and nobody gains by lies of her own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import pytest

from tests.dispute.actors import (
    ACCOMPLICE,
    CHALLENGER,
    HONEST,
    SOLVER,
    Hijacker,
    Late,
    Only,
    Quiet,
    make_traitor,
)
from tests.dispute.arena import BONDS, Actor, Play, make_game, make_key, play
from tests.dispute.claims import Patched, Run, bump, make_run
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute import game as rules
from vtrain.dispute import money
from vtrain.dispute.game import apply, sign, start
from vtrain.dispute.money import Settled, compute_outcomes_digest, count_work, list_outcomes
from vtrain.dispute.players import Player
from vtrain.dispute.provider import TraceProvider
from vtrain.dispute.state import Game, compute_side_id
from vtrain.errors import EncodingError, MoveRefusedError
from vtrain.wire import structs
from vtrain.wire.dispute import (
    MAX_BONDS,
    Bond,
    Bonds,
    Move,
    Open,
    Reveal,
    SignedMove,
    decode_move,
)

HOSTILE = tuple(make_key(number) for number in range(600, 700))


@pytest.fixture(scope="module")
def run() -> Run:
    return make_run("mlp", commit_every=2)


def make_liar(run: Run, step: int, by: int = 1) -> Patched:
    """Who lies about the loss of a step."""
    record = run.record(step)
    return Patched(run.truth, run.task, records={step: replace(record, loss=record.loss + by)})


def settle(result: Play) -> Settled:
    """What became of the bonds, held to what always holds."""
    game, settled = result.game, list_outcomes(result.game)
    assert settled.pot == sum(bond.amount for bond in settled.outcomes if not bond.returned)
    assert settled.burnt + sum(share.amount for share in settled.shares) == settled.pot
    assert settled.burnt >= 0
    if settled.shares and b"" not in count_work(game):
        assert settled.burnt < len(settled.shares), "what rounding leaves, and no more"
    losers = {bond.party for bond in settled.outcomes if not bond.returned}
    assert not losers & {share.party for share in settled.shares}
    assert result.verdict.bonds == len(settled.outcomes)
    assert result.verdict.outcomes == compute_outcomes_digest(settled)
    work = count_work(game)
    if settled.pot:
        assert {share.party for share in settled.shares} == set(work) - {b""}
    for share in settled.shares:
        assert share.amount == settled.pot * work[share.party] // sum(work.values())
    return settled


def list_shares(settled: Settled) -> dict[bytes, int]:
    return {share.party: share.amount for share in settled.shares}


def find_bonds(settled: Settled, key: PrivateKey) -> list[tuple[str, int, int]]:
    """(level, amount, returned) of a party's bonds."""
    found = (bond for bond in settled.outcomes if bond.party == public_key(key))
    return [(bond.level, bond.amount, bond.returned) for bond in found]


@dataclass
class Helper:
    """Backs no log: posts one sub-claim, for the side of a claim of which it has the record."""

    claim: TraceProvider
    step: int
    key: PrivateKey

    def moves(self, game: Game) -> Iterator[SignedMove]:
        for scope in set(game.sides.values()):
            contest = game.contests[scope]
            if contest.level != "trace" or contest.place.step != self.step:
                continue
            record = self.claim.log().leaf(self.step - 1)
            about = compute_side_id(scope, record)
            if about not in contest.sides or (scope, public_key(self.key)) in game.stands:
                continue
            tree = self.claim.trace(self.step)
            at = contest.size - game.genesis.nodes + game.genesis.record_node
            yield sign(game.id, about, Bond(tree.root, tree.leaf(at), tree.path(at)), self.key)


def is_about_the_log(move: Move) -> bool:
    """A bond behind a log, or an answer: who makes only these has no sub-claims."""
    return isinstance(move, Reveal) or (isinstance(move, Bond) and not move.leaf)


# --- who is paid


def test_sixty_riders_get_their_bonds_back_and_nothing_more(run: Run) -> None:
    """They back the winning claim, the last of them at the last moment, and each of its sub-claims;
    what they did is nothing, and what they get is nothing."""
    riders = [Hijacker(run.truth.log().root, key, answers=False) for key in HOSTILE[:60]]
    actors: list[Actor] = [
        Player(make_liar(run, 4), SOLVER),
        Player(make_liar(run, 2), CHALLENGER),
        *riders[:30],
        Player(run.truth, HONEST),
        *riders[30:],
    ]
    settled = settle(play(make_game(run.task, make_liar(run, 4), SOLVER), run.graph, actors))
    assert list_shares(settled) == {public_key(HONEST): BONDS.log}
    for key in (*HOSTILE[:60], HONEST):
        bonds = find_bonds(settled, key)
        assert bonds[0] == ("log", BONDS.log, 1)
        assert all(returned for _, _, returned in bonds)
    assert any(len(find_bonds(settled, key)) > 1 for key in HOSTILE[:60])
    assert find_bonds(settled, CHALLENGER)[0] == ("log", BONDS.log, 0)


def test_work_is_paid_by_what_its_clocks_allow(run: Run) -> None:
    """Two that share the work share the pot, as it is counted from the moves."""

    def is_log_work(game: Game, signed: SignedMove) -> bool:
        question = game.asked.get(signed.about)
        return question is not None and game.contests[question.where[0][0]].level == "log"

    @dataclass
    class Half:
        player: Player
        log: bool

        def moves(self, game: Game) -> Iterator[SignedMove]:
            for signed in self.player.moves(game):
                if signed.about == game.id or is_log_work(game, signed) == self.log:
                    yield signed

    liar = make_liar(run, 4)
    genesis = make_game(run.task, liar, SOLVER)
    clocks = replace(genesis.clocks, answer=3, opening=7, replay=50)
    genesis = replace(genesis, clocks=clocks, bonds=replace(BONDS, log=1009))
    actors: list[Actor] = [
        Half(Player(run.truth, HONEST), log=True),
        Half(Player(run.truth, ACCOMPLICE), log=False),
        Player(liar, SOLVER),
        Player(make_liar(run, 2), CHALLENGER),
    ]
    result = play(genesis, run.graph, actors)
    settled = settle(result)
    worth: dict[type[Move], int] = {Reveal: 3, Open: 7, Bond: 50}
    work = {public_key(HONEST): 0, public_key(ACCOMPLICE): 0}
    for entry in result.transcript:
        assert entry.move is not None
        if entry.move.party in work and entry.move.about != genesis_id(result):
            work[entry.move.party] += worth[type(decode_move(entry.move.move))]
    assert 0 < work[public_key(HONEST)] < work[public_key(ACCOMPLICE)]
    total = sum(work.values())
    assert list_shares(settled) == {party: 1009 * done // total for party, done in work.items()}
    assert settled.burnt == 1
    assert count_work(result.game) == work


def genesis_id(result: Play) -> bytes:
    return result.game.id


def test_the_same_trace_by_two_is_paid_once(run: Run) -> None:
    """And so is every answer: who is the second is refused, or adds nothing."""
    liar = make_liar(run, 4)
    genesis = make_game(run.task, liar, SOLVER)
    rivals: list[Actor] = [Player(make_liar(run, 2), CHALLENGER), Player(liar, SOLVER)]
    alone = play(genesis, run.graph, [Player(run.truth, HONEST), *rivals])
    keys = (HONEST, ACCOMPLICE, HOSTILE[0])
    together = play(genesis, run.graph, [*(Player(run.truth, key) for key in keys), *rivals])
    assert sum(count_work(together.game).values()) == sum(count_work(alone.game).values())
    settled = settle(together)
    assert set(list_shares(settled)) <= {public_key(key) for key in keys}
    for key in keys:
        assert all(returned for _, _, returned in find_bonds(settled, key))


# --- who is not


def test_a_refuted_friend_loses_the_bond_of_its_log(run: Run) -> None:
    """Its log claim stands; the sub-claim that it made free under that was false."""
    traitor = make_traitor(run, run.truth, 3)
    liar = make_liar(run, 4)
    place = (3, run.find("loss/grad"))
    # All three differ in one output, of which one ruling says who is right.
    outputs: dict[tuple[int, int], npt.NDArray[Any] | bytes] = {
        place: bump(run.tensor(*place), 0, 2)
    }
    liar = replace(liar, outputs=outputs, _traces={}, _trees={})
    actors: list[Actor] = [
        Player(traitor, CHALLENGER),
        Player(liar, SOLVER),
        Player(run.truth, HONEST),
    ]
    settled = settle(play(make_game(run.task, liar, SOLVER), run.graph, actors))
    assert find_bonds(settled, CHALLENGER) == [("log", BONDS.log, 0), ("trace", 0, 0)]
    assert list_shares(settled) == {public_key(HONEST): BONDS.log}


@pytest.mark.parametrize("count", [1, 5])
def test_friends_that_nobody_refuted_earn_nothing(
    run: Run, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rival concedes before their false traces are looked at: with a replay's worth for each,
    they would take the honest party's pay."""

    def play_it() -> Settled:
        liar = make_liar(run, 4)
        friends: list[Actor] = [
            Only(Player(make_false_friend(run, number), key), lambda move: isinstance(move, Bond))
            for number, key in enumerate(HOSTILE[:count])
        ]
        actors: list[Actor] = [
            *friends,
            Hijacker(make_liar(run, 2).log().root, CHALLENGER, answers=False),
            Hijacker(liar.log().root, ACCOMPLICE, answers=False),
            Only(Player(liar, SOLVER), lambda move: isinstance(move, Reveal)),
            Player(run.truth, HONEST),
        ]
        return settle(play(make_game(run.task, liar, SOLVER), run.graph, actors))

    settled = play_it()
    for key in HOSTILE[:count]:
        assert find_bonds(settled, key) == [("log", BONDS.log, 1), ("trace", 0, 1)]
    assert list(list_shares(settled)) == [public_key(HONEST)]
    monkeypatch.setattr(money._Standing, "find_only", money._Standing.find)
    assert set(list_shares(play_it())) > {public_key(HONEST)}


def make_false_friend(run: Run, number: int) -> Patched:
    """The true log, and traces of which each is false in one output of every step."""
    outputs: dict[tuple[int, int], npt.NDArray[Any] | bytes] = {
        (step, 10 + number): bytes([number]) * 32 for step in range(1, 6)
    }
    return Patched(run.truth, run.task, outputs)


def test_what_won_in_a_group_and_fell_later_is_not_paid(run: Run) -> None:
    """Two lies of one party meet in a group, and her helpers do all the work of the one that stands
    there; it falls in the next round, so that it was work for a false claim."""
    claims = {
        make_liar(run, step, by).log().root: (step, by) for step in (2, 4) for by in range(1, 9)
    }
    truth = run.truth.log().root
    # Of three in groups of two, by the order of their roots, the second is alone.
    low = sorted(root for root in claims if root < truth)
    high = sorted(root for root in claims if root > truth)
    first, last = make_liar(run, *claims[low[0]]), make_liar(run, *claims[high[-1]])
    early, late = sorted((first, last), key=lambda claim: min(claim.records))
    genesis = replace(make_game(run.task, run.truth, SOLVER), group=2)
    step = min(early.records)
    actors: list[Actor] = [
        Player(early, CHALLENGER),
        Only(Player(late, ACCOMPLICE), is_about_the_log),
        Player(run.truth, SOLVER),
        Helper(early, step, HOSTILE[0]),
        Helper(early, max(late.records), HOSTILE[1]),
    ]
    result = play(genesis, run.graph, actors)
    assert result.verdict.standing == truth
    assert result.game.round == 3
    settled = settle(result)
    assert find_bonds(settled, HOSTILE[0])[0] == ("trace", BONDS.trace, 0)
    assert list_shares(settled) == {public_key(SOLVER): settled.pot}
    for bond in settled.outcomes:
        assert not bond.returned or bond.party == public_key(SOLVER)


def test_a_claim_that_nobody_worked_for_burns_the_pot(run: Run) -> None:
    """It is alone in its group, and the two of the other group never say a word."""
    genesis = replace(make_game(run.task, run.truth, SOLVER), group=2)
    rivals = [b"\0" * 32, b"\xff" * 32]
    actors: list[Actor] = [
        Hijacker(root, key, answers=False) for root, key in zip(rivals, HOSTILE, strict=False)
    ]
    result = play(genesis, run.graph, actors)
    assert result.verdict.standing == run.truth.log().root
    settled = settle(result)
    assert (settled.pot, settled.burnt, settled.shares) == (2 * BONDS.log, 2 * BONDS.log, ())


def test_when_nothing_stands_the_pot_is_nobodys(run: Run) -> None:
    actors: list[Actor] = [Quiet(), Hijacker(b"j" * 32, CHALLENGER, answers=True)]
    result = play(make_game(run.task, run.truth, SOLVER), run.graph, actors)
    assert result.verdict.standing == b""
    settled = settle(result)
    assert (settled.pot, settled.burnt) == (BONDS.log, BONDS.log)
    assert find_bonds(settled, CHALLENGER) == [("log", BONDS.log, 0)]


def test_there_are_no_outcomes_before_the_verdict(run: Run) -> None:
    game = start(make_game(run.task, run.truth, SOLVER), run.graph)
    for ask in (list_outcomes, count_work):
        with pytest.raises(MoveRefusedError, match="no verdict"):
            ask(game)


# --- coalitions


def make_coalition(run: Run, chance: random.Random) -> tuple[list[Actor], list[PrivateKey]]:
    """Hostile parties of all kinds that do no work for the true claim, and their keys."""
    keys = list(HOSTILE[: chance.randrange(2, 9)])
    actors = []
    for number, key in enumerate(keys):
        liar = make_liar(run, chance.randrange(1, 6), chance.randrange(1, 4))
        friend = make_false_friend(run, chance.randrange(20))
        kinds: list[Actor] = [
            Player(liar, key),
            Late(Player(liar, key), budget=chance.random() < 0.5),
            Hijacker(liar.log().root, key, answers=chance.random() < 0.5),
            Hijacker(bytes([number]) * 32, key, answers=True),
            Hijacker(run.truth.log().root, key, answers=chance.random() < 0.5),
            Only(Player(friend, key), lambda move: isinstance(move, Bond)),
            Only(Player(liar, key), is_about_the_log),
            Only(Player(liar, key), lambda move: not isinstance(move, Open)),
            Helper(liar, min(liar.records), key),
            Helper(friend, chance.randrange(1, 6), key),
        ]
        actors.append(chance.choice(kinds))
    return actors, keys


@pytest.mark.parametrize("seed", range(60))
def test_no_coalition_ends_with_more_than_it_began_with(run: Run, seed: int) -> None:
    """Nor does any party of it, whosever bonds the others of the pot are; what is not burnt goes
    to the honest, and they lose nothing."""
    chance = random.Random(seed)  # noqa: S311
    coalition, keys = make_coalition(run, chance)
    liar = make_liar(run, chance.randrange(1, 6))
    honest_solves = chance.random() < 0.3
    solver: TraceProvider = run.truth if honest_solves else liar
    honest = SOLVER if honest_solves else HONEST
    actors: list[Actor] = [*coalition, Player(run.truth, honest)]
    if not honest_solves:
        actors.append(Player(liar, SOLVER))
    chance.shuffle(actors)
    genesis = make_game(run.task, solver, SOLVER)
    genesis = replace(genesis, group=chance.choice((2, 3, 16)), arity=chance.choice((2, 4, 16)))
    result = play(genesis, run.graph, actors)
    assert result.verdict.standing == run.truth.log().root
    settled = settle(result)
    assert_no_gain(settled, keys)
    shares = list_shares(settled)
    assert set(shares) <= {public_key(honest)}
    for bond in settled.outcomes:
        assert bond.party != public_key(honest) or bond.returned
    unsure = b"" in count_work(result.game)
    if settled.pot and not unsure and result.moves.get(public_key(honest), 0) > 1:
        assert settled.burnt in (0, settled.pot)


def assert_no_gain(settled: Settled, keys: Sequence[PrivateKey]) -> None:
    shares = list_shares(settled)
    for key in keys:
        bonds = find_bonds(settled, key)
        paid = sum(amount for _, amount, _ in bonds)
        back = sum(amount for _, amount, returned in bonds if returned)
        assert back + shares.get(public_key(key), 0) <= paid


def test_a_false_friend_whom_nobody_refutes_takes_no_pay(run: Run) -> None:
    """Its rival makes no sub-claim, so that two traces are left for what stands.

    Nobody can tell whose is true: what it is worth is nobody's, and not the friend's who answered
    about the log first.
    """
    liar, friend = make_liar(run, 4), make_traitor(run, run.truth, 3)
    genesis = make_game(run.task, run.truth, SOLVER)
    actors: list[Actor] = [
        Player(friend, ACCOMPLICE),
        Player(run.truth, HONEST),
        Only(Player(liar, CHALLENGER), lambda move: not isinstance(move, Bond) or not move.leaf),
    ]
    result = play(genesis, run.graph, actors)
    settled, pot = settle(result), BONDS.log
    assert settled.pot == pot
    shares, work = list_shares(settled), count_work(result.game)
    assert work[b""] >= genesis.clocks.replay
    assert shares.get(public_key(ACCOMPLICE), 0) < pot // 4
    assert settled.burnt > pot // 2


def test_no_sum_of_bonds_is_beyond_what_a_verdict_can_say(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A game whose pot had no encoding could never end: bonds and their number are bounded."""
    most = 2**40
    bonds = Bonds(most, most, most)
    assert most * MAX_BONDS <= 2**62
    with pytest.raises(EncodingError, match=r"bonds\.trace"):
        structs.decode(Bonds, structs.encode(replace(bonds, trace=most + 1)), "bonds")
    genesis = replace(make_game(run.task, run.truth, SOLVER), bonds=bonds)
    liars = [Player(make_liar(run, 4 + i), key) for i, key in enumerate((CHALLENGER, ACCOMPLICE))]
    game = start(genesis, run.graph)
    monkeypatch.setattr(rules, "MAX_BONDS", 1)
    (first,) = liars[0].moves(game)
    (second,) = liars[1].moves(game)
    game = apply(game, first, game.now)
    with pytest.raises(MoveRefusedError, match="has 1 bonds") as caught:
        apply(game, second, game.now)
    assert caught.value.where == "game"
    monkeypatch.undo()
    result = play(genesis, run.graph, [*liars, Player(run.truth, HONEST)])
    settled = settle(result)
    assert settled.pot >= 2 * most
    assert structs.decode(Settled, structs.encode(settled), "settled") == settled
