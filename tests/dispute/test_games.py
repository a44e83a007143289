"""The state machine held to ``tests/vectors/games``, and the games to the rules: for each of many
rules there is a game that comes out otherwise without it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from blake3 import blake3

from tests.vectors.generate_games import find_next, list_falls, list_question, list_sides
from vtrain import _core
from vtrain.dispute import game as rules
from vtrain.dispute import money
from vtrain.dispute.consequences import Falling, Work
from vtrain.dispute.money import Settled, count_work, list_outcomes
from vtrain.dispute.receipts import compute_body_digest
from vtrain.dispute.state import Claim, Contest, DisputedGraph, Fall, Game, Verdict
from vtrain.dispute.statement import decode_ruling
from vtrain.errors import VtrainError
from vtrain.wire import structs
from vtrain.wire.dispute import MAX_BOND, Genesis, SignedMove
from vtrain.wire.graph import decode_graph

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "vectors" / "games"
NAMES = sorted(path.stem.removeprefix("game-") for path in FOLDER.glob("game-*.json"))
Json = dict[str, Any]


def test_files_are_what_the_rules_give() -> None:
    command = [sys.executable, "-m", "tests.vectors.generate_games", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def load(name: str, folder: Path = FOLDER) -> Json:
    content: Json = json.loads((folder / f"game-{name}.json").read_text())
    return content


def list_moves(entries: list[Json]) -> Iterator[bytes | None]:
    """The encoded move of each entry, None where time alone passes."""
    known: list[bytes] = []
    for entry in entries:
        move = entry.get("move")
        if isinstance(move, dict):
            base = known[move["of"]][:-64]
            tail = base[len(base) - move["tail"] :]
            middle = bytes.fromhex(move["middle"])
            data = base[: move["head"]] + middle + tail + bytes.fromhex(move["signature"])
        else:
            data = bytes.fromhex(move or "")
        known.append(data)
        yield data or None


def load_graph(file: Path) -> DisputedGraph:
    """A graph that games are about."""
    content = json.loads(file.read_text())
    return DisputedGraph(
        decode_graph(bytes.fromhex(content["graph"])), bytes.fromhex(content["root"])
    )


def find_fault(name: str, folder: Path = FOLDER) -> str:
    """Where the machine first comes to something else than a file says; "" where nowhere."""
    content = load(name, folder)
    genesis = structs.decode(Genesis, bytes.fromhex(content["genesis"]), "genesis")
    game = rules.start(genesis, load_graph(folder / content.get("graph", "graph.json")))
    if game.id.hex() != content["game"]:
        return "game"
    last: Json = {"asked": [], "sides": []}
    fallen: list[Json] = []
    entries = content["entries"]
    states = [content["start"], *entries]
    moves = [None, *list_moves(entries)]
    for number, (state, data) in enumerate(zip(states, moves, strict=True)):
        if number > 0:
            game, refused = make(game, data, state["at"])
            if refused != state.get("refused"):
                return f"entry {number - 1}: refused: {refused}"
        fallen += state["falls"]
        last |= {key: state[key] for key in last.keys() & state.keys()}
        found: Json = {
            "round": game.round,
            "falls": sorted(list_falls(game), key=json.dumps),
            "next": find_next(game),
            "asked": [list_question(game, about) for about in sorted(game.asked)],
            "sides": list_sides(game),
        }
        wanted = {**last, "round": state["round"], "next": state["next"]}
        wanted["falls"] = sorted(fallen, key=json.dumps)
        for key, value in wanted.items():
            if found[key] != value:
                return f"entry {number - 1}: {key}: {found[key]}, not {value}"
    return find_false_end(game, content)


def make(game: Game, data: bytes | None, at: int) -> tuple[Game, Json | None]:
    """The game after an entry, and how it is refused."""
    try:
        if data is None:
            return rules.advance(game, at), None
        return rules.apply(game, structs.decode(SignedMove, data, "move"), at), None
    except VtrainError as error:
        place = {"place": error.where} if error.code == "move-refused" else {}
        after = game if at < game.now else rules.advance(game, at)
        return after, {"code": error.code, **place}


def find_false_end(game: Game, content: Json) -> str:
    verdict = rules.find_verdict(game)
    if verdict is None:
        return "it is not over"
    work = [[party.hex(), done] for party, done in count_work(game).items()]
    found = {
        "settled": structs.encode(list_outcomes(game)).hex(),
        "work": work,
        "verdict": structs.encode(verdict).hex(),
        "digest": compute_body_digest(structs.encode(verdict)).hex(),
    }
    return ", ".join(key for key, value in found.items() if content[key] != value)


@pytest.mark.parametrize("name", NAMES)
def test_a_game(name: str) -> None:
    assert find_fault(name) == ""
    content = load(name)
    verdict = structs.decode(Verdict, bytes.fromhex(content["verdict"]), "verdict")
    settled = structs.decode(Settled, bytes.fromhex(content["settled"]), "settled")
    assert verdict.outcomes == money.compute_outcomes_digest(settled)


def test_statements_have_the_digests_that_are_given_and_the_rulings() -> None:
    seen = 0
    for name in NAMES:
        for entry in load(name)["entries"]:
            judged = entry.get("judged", {})
            if "statement" in judged:
                statement = bytes.fromhex(judged["statement"])
                assert blake3(statement).hexdigest() == judged["digest"]
                ruling = decode_ruling(_core.referee_judge(statement))
                assert ruling.after.hex() == judged["after"]
                seen += 1
    assert seen > 5


def test_the_games_have_what_there_is_to_have() -> None:
    """Every reason at every level that it can be at, and refusals for every place."""
    games = [load(name) for name in NAMES]
    entries = [entry for content in games for entry in content["entries"]]
    falls = {(fall["level"], fall["reason"]) for entry in entries for fall in entry["falls"]}
    levels = ("log", "trace", "terms")
    for reason in ("silent", "malformed", "refuted"):
        assert {(level, reason) for level in levels} <= falls
    assert {("log", "undefended"), ("trace", "undefended")} <= falls
    assert {("trace", "moot"), ("terms", "moot")} <= falls
    refusals = [entry["refused"] for entry in entries if "refused" in entry]
    assert {found["code"] for found in refusals} == {"move-refused", "signature", "encoding"}
    places = {found.get("place") for found in refusals}
    assert places >= {"now", "game", "party", "about", "move", "bond", "root", "leaf", "items"}
    assert places >= {"before", "terms", "trace", "log", "base", "inputs", "inputs[0]"}
    assert places >= {"tokens", "tokens[0]", "tokens[1]", "rows", "statement.tokens"}
    assert max(state["round"] for state in entries) > 3


# --- a rule that is left out or other is found

_grace, _begin, _window = Work._compute_grace, Work._start_round, Work._compute_window
_limit, _renew, _count = Work._compute_limit, Work._renew, money._count_work
_check = Work._check_side


def _compute_less(work: Work, contest: bytes) -> int:
    rivals = work._count_rivals(work.contests[contest].group)
    return work.genesis.clocks.replay * max(1, rivals)


def _open_one_window(work: Work, contest: Contest) -> int:
    return work.genesis.clocks.trace if contest.level == "trace" else _window(work, contest)


def _fall_for_itself(work: Work, contest: Contest, index: int, fall: Falling) -> Fall:
    return Fall(fall.reason, fall.place, work.now)


def _start_in_slices(work: Work, roots: Sequence[bytes]) -> None:
    count = max(1, -(-len(roots) // work.genesis.group))
    share = max(1, -(-len(roots) // count))
    _begin(work, [root for i in range(share) for root in roots[i::share]])


def _start_with_all_asked(work: Work, roots: Sequence[bytes]) -> None:
    asked = work.asked
    _begin(work, roots)
    if work.ends < 0:
        work.asked = asked


def _end_early(work: Work, contest: Contest, side: bytes) -> None:
    final, work.final = work.final, True
    _check(work, contest, side)
    work.final = final


def _give_time(work: Work, contest: Contest, claims: int) -> Contest:
    renewed = _renew(work, contest, claims)
    pairs = zip(contest.claims, renewed.claims, strict=True)
    return replace(renewed, claims=tuple(replace(new, left=old.left) for old, new in pairs))


class Mutation(NamedTuple):
    """A rule of the machine is another, by which a game comes out otherwise."""

    owner: object
    name: str
    other: object
    game: str


MUTATIONS = {
    "the time for an answer grows with the claims": Mutation(
        Work, "_compute_grace", lambda work, dispute: work.genesis.clocks.grace, "four"
    ),
    "openings have another time than answers": Mutation(
        Work,
        "_compute_grace",
        lambda work, dispute: _grace(work, replace(dispute, leaf="")),
        "terms",
    ),
    "a tensor takes a replay more": Mutation(Work, "_compute_replays", _compute_less, "replays"),
    "a window grows with the rivals": Mutation(Work, "_compute_window", _open_one_window, "four"),
    "what was overdue is charged": Mutation(Work, "_charge", lambda *_: None, "budget"),
    "sub-claims have whole budgets in a new window": Mutation(
        Work, "_renew", lambda work, contest, claims: contest, "whole-budgets"
    ),
    "sub-claims fall with what they stand for": Mutation(
        Work, "_drop_moot", lambda *_: None, "claimed-anew"
    ),
    "a claim falls as its sub-claims did": Mutation(
        Work, "_find_fall", _fall_for_itself, "silent-trace"
    ),
    "claims are dealt to groups": Mutation(Work, "_start_round", _start_in_slices, "groups-of-two"),
    "what fell with others may be claimed anew": Mutation(
        Claim, "is_open", property(lambda claim: claim.fall is None), "claimed-anew"
    ),
    "an answer is no longer than it may be": Mutation(
        Work,
        "_compute_limit",
        lambda work, dispute: _limit(work, dispute) + 1,
        "answers-and-sub-claims",
    ),
    "a bond is no longer than it may be": Mutation(rules, "MAX_BOND", MAX_BOND + 1, "bonds"),
    "what is asked for is looked at before the signature": Mutation(
        rules, "check_offer", lambda *_: None, "bonds"
    ),
    "work that may be false is nobody's": Mutation(
        money._Standing, "find_only", money._Standing.find, "two-left"
    ),
    "who lied loses the bond above": Mutation(
        money._Standing, "has_lied", lambda *_: False, "refuted-friend"
    ),
    "a new window gives whole budgets, not only time": Mutation(
        Work, "_renew", _give_time, "spent-budgets"
    ),
    "who backs another root is paid nothing": Mutation(
        money._Standing, "backs", lambda *_: True, "solver-helps"
    ),
    "nothing is asked in a round that is over": Mutation(
        Work, "_start_round", _start_with_all_asked, "past-round"
    ),
    "a window is over for no move at its end": Mutation(
        Work, "_check_side", _end_early, "end-of-a-window"
    ),
    "what was silent may be claimed anew": Mutation(
        Claim,
        "is_open",
        property(lambda claim: claim.fall is None or claim.fall.reason in {"undefended", "moot"}),
        "silent-anew",
    ),
    "losers are paid nothing": Mutation(
        money,
        "_count_work",
        lambda game, standing, losers: _count(game, standing, set()),
        "refuted-friend",
    ),
}


@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_rule_that_is_broken_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, other, game = MUTATIONS[rule]
    monkeypatch.setattr(owner, name, other)
    assert find_fault(game) != ""
