"""Disputes about a small GPT on windows of tokens: cheats are found at their leaf."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.dispute.arena import Play, make_game, make_key, play
from tests.dispute.claims import Patched, Run, bump, make_run
from tests.tasks import CONTEXT, make_tokens
from vtrain import _core
from vtrain.demo.lies import Lie, Lies, LyingSession, add_one
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import apply, start
from vtrain.dispute.genesis import measure_openings
from vtrain.dispute.players import Player
from vtrain.dispute.provider import TraceProvider
from vtrain.dispute.state import Fall, compute_game_id
from vtrain.dispute.statement import compose, decode_ruling
from vtrain.dispute.transcript import find_statements
from vtrain.engines.registry import open_session
from vtrain.errors import EncodingError, MoveRefusedError, RefusalError
from vtrain.spec.blake3_tree import compute_chunk_opening
from vtrain.spec.commitment import compute_tensor_digest
from vtrain.spec.samples import Samples
from vtrain.wire import cbor, structs
from vtrain.wire.dispute import Chunk, Genesis, Open, decode_move
from vtrain.wire.graph import encode_graph
from vtrain.wire.task import Windows, describe_windows

Array = npt.NDArray[Any]
SOLVER, CHALLENGER = make_key(1), make_key(2)
STEPS = 4


@pytest.fixture(scope="module")
def run() -> Run:
    return make_run("gpt", steps=STEPS, commit_every=2, optimizer="adamw")


def get_windows(run: Run) -> Windows:
    windows = run.task.samples.spec.windows
    assert windows is not None
    return windows


def play_against(run: Run, liar: TraceProvider, *, honest_solves: bool) -> tuple[Fall, Play]:
    claims = (run.truth, liar) if honest_solves else (liar, run.truth)
    genesis = make_game(run.task, claims[0], SOLVER)
    actors = [Player(claim, key) for claim, key in zip(claims, (SOLVER, CHALLENGER), strict=True)]
    played = play(genesis, run.graph, actors, limit=200)
    assert played.verdict.standing == run.truth.log().root
    (fall,) = (claim.fall for claim in played.game.logs.values() if claim.fall is not None)
    return fall, played


def find_openings(played: Play) -> list[tuple[Open, int]]:
    """The openings of a game with the bytes that their moves take."""
    moves = [entry.move for entry in played.transcript if entry.move is not None]
    decoded = [(decode_move(signed.move), len(structs.encode(signed))) for signed in moves]
    return [(move, size) for move, size in decoded if isinstance(move, Open)]


# --- whole runs that are false from some place on


def of_other_windows(run: Run, part: str) -> Lie:
    """What the samples after those of the batch have."""

    def lie(value: Array, before: Mapping[int, Array]) -> Array:
        index = before[run.find("sample_index")]
        return run.task.samples.gather(part, (index + 1) % run.task.samples.spec.samples)

    return lie


def one_token(value: Array, before: Mapping[int, Array]) -> Array:
    """The last token of the last window is another."""
    return bump(value, value.size - 1)


def halve(value: Array, before: Mapping[int, Array]) -> Array:
    return value // 2


CHEATS: dict[str, tuple[int, Callable[[Run], dict[str, Lie]]]] = {
    "x of other windows": (3, lambda run: {"x": of_other_windows(run, "x")}),
    "y of other windows": (2, lambda run: {"y": of_other_windows(run, "y")}),
    "other windows": (4, lambda run: {part: of_other_windows(run, part) for part in "xy"}),
    "one token": (1, lambda run: {"y": one_token}),
    "embedding": (3, lambda run: {"gather_rows": halve}),
    "norm": (2, lambda run: {"inverse_root": halve}),
    "product of heads": (3, lambda run: {"batched_matmul": halve}),
    "causal mask": (2, lambda run: {"keep_span": lambda value, before: value * 0 + 1}),
    "gradient of the table": (4, lambda run: {"scatter_add": halve}),
    "optimizer": (3, lambda run: {"adam_square": add_one(1)}),
    "weights": (4, lambda run: {"sgd_update": add_one(0)}),
}
"""The step, and what nodes put out then: by name, or the first of an operator."""


def find(run: Run, name: str) -> int:
    nodes = run.task.graph.nodes
    known = [node.name for node in nodes]
    if name in known:
        return known.index(name)
    return next(index for index, node in enumerate(nodes) if node.op == name)


def make_cheat(run: Run, name: str) -> tuple[TraceProvider, int, int]:
    step, make = CHEATS[name]
    lies = {(step, find(run, node)): lie for node, lie in make(run).items()}
    session = LyingSession(run.task, Lies(lies))
    return EngineProvider(run.task, session), step, min(node for _, node in lies)


@pytest.mark.parametrize("honest_solves", [False, True])
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_found_where_it_begins(run: Run, name: str, honest_solves: bool) -> None:
    liar, step, node = make_cheat(run, name)
    fall, played = play_against(run, liar, honest_solves=honest_solves)
    assert (fall.reason, fall.place.step, fall.place.node) == ("refuted", step, node)
    value, false = run.tensor(step, node), liar.tensor(step, node)  # type: ignore[attr-defined]
    assert value.flat[fall.place.element] != false.flat[fall.place.element]
    ((opened, size),) = find_openings(played)
    gathers = run.task.graph.nodes[node].op == "gather_samples"
    assert (len(opened.tokens), opened.rows) == (int(gathers), ())
    assert size <= played.game.genesis.leaf_bytes == measure_openings(run.task.spec, run.task.graph)


def cross(value: Array, before: Mapping[int, Array]) -> Array:
    """Spans that begin where the row does, as if no document ended in it."""
    false = value.copy()
    false[..., 0] = 0
    return false


def end_early(value: Array, before: Mapping[int, Array]) -> Array:
    """The last place does not attend to itself."""
    return bump(value, value.size - 1, -1)


@pytest.mark.parametrize("honest_solves", [False, True])
@pytest.mark.parametrize("lie", [cross, end_early])
def test_attention_that_crosses_a_document_is_found_at_its_span(
    lie: Lie, honest_solves: bool
) -> None:
    run = make_run("packed gpt", steps=STEPS, commit_every=2, optimizer="adamw")
    node = find(run, "token_spans")
    liar = EngineProvider(run.task, LyingSession(run.task, Lies({(3, node): lie})))
    fall, played = play_against(run, liar, honest_solves=honest_solves)
    assert (fall.reason, fall.place.step, fall.place.node) == ("refuted", 3, node)
    value, false = run.tensor(3, node), liar.tensor(3, node)
    first = int(np.flatnonzero(value.flat != false.flat)[0])
    assert fall.place.element == first, "the first that differs in its chunk"
    (statement,) = find_statements(played.game.genesis, run.graph, played.transcript)
    found, plain = decode_ruling(_core.referee_judge(statement)), load_plain_verifier()
    assert plain.judge(statement).after == found.after
    assert int.from_bytes(found.after[:8], "little", signed=True) == int(value.flat[first])


def test_a_run_on_other_tokens_is_found_at_the_batch(run: Run) -> None:
    """The liar has another file of as many tokens."""
    other = make_tokens(get_windows(run).tokens, seed=99)
    liar = EngineProvider(
        replace(run.task, samples=other), open_session("cpu", run.task.graph, other)
    )
    fall, _ = play_against(run, liar, honest_solves=False)
    assert (fall.reason, fall.place.step, fall.place.node) == ("refuted", 1, run.find("x"))


# --- elements in any chunk


@pytest.mark.parametrize("part", ["x", "y"])
def test_tokens_of_any_chunk_are_opened(run: Run, part: str) -> None:
    windows, node = get_windows(run), run.find(part)
    seen = set()
    for step in (3, 4):
        index = run.tensor(step, run.find("sample_index"))
        for element in range(len(index) * CONTEXT):
            place = windows.find_token(part, int(index[element // CONTEXT]), element % CONTEXT)
            assert place is not None
            chunk = place * windows.width // 1024
            if (step, chunk) in seen:
                continue
            seen.add((step, chunk))
            records = {STEPS: replace(run.record(STEPS), loss=run.record(STEPS).loss + 1)}
            outputs = {(step, node): bump(run.tensor(step, node), element)}
            liar = Patched(run.truth, run.task, outputs, records)
            fall, played = play_against(run, liar, honest_solves=element % 2 == 0)
            assert (fall.place.step, fall.place.node, fall.place.element) == (step, node, element)
            assert [found.index for found in find_openings(played)[0][0].tokens] == [chunk]
    assert {chunk for _, chunk in seen} == {0, 1, 2}, "the last of which ends early"


# --- the defences, and what happens without them


def get_statement(run: Run) -> tuple[Genesis, bytes, Open]:
    """Of a game about a batch of other windows."""
    liar, _, _ = make_cheat(run, "x of other windows")
    _, played = play_against(run, liar, honest_solves=True)
    (statement,) = find_statements(played.game.genesis, run.graph, played.transcript)
    return played.game.genesis, statement, find_openings(played)[0][0]


def load_plain_verifier() -> Any:
    path = Path(__file__).resolve().parents[2] / "examples/plain_verifier.py"
    spec = importlib.util.spec_from_file_location("plain_verifier_of_tokens", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def test_false_tokens_win_only_where_nobody_opens_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that make the liar's element are no chunk of the file.  A referee who would not look
    rules for the liar."""
    _, data, _ = get_statement(run)
    statement: Any = cbor.decode(data)
    truth = decode_ruling(_core.referee_judge(data))
    (chunk,) = statement["tokens"]
    liars = next(claim for claim, right in zip(statement["claims"], truth.right) if not right)  # noqa: B905 - two of each
    assert sorted(statement["claims"]) == sorted([truth.after, liars])
    # Every token of the chunk is what the liar says that one is.
    false = liars[:2] * (len(chunk["chunk"]) // 2)
    forged = cbor.encode({**statement, "tokens": [{**chunk, "chunk": false}]})
    with pytest.raises(RefusalError) as caught:
        _core.referee_judge(forged)
    assert caught.value.where == "tokens[0]"
    plain = load_plain_verifier()
    with pytest.raises(plain.Refused, match="tokens"):
        plain.judge(forged)
    checked = plain.chunk_opens
    monkeypatch.setattr(
        plain,
        "chunk_opens",
        lambda digest, *rest: digest == statement["samples"]["root"] or checked(digest, *rest),
    )
    assert plain.judge(forged).after == liars


def test_a_verifier_of_its_own_plays_the_same_game(run: Run) -> None:
    liar, step, node = make_cheat(run, "other windows")
    fall, played = play_against(run, liar, honest_solves=False)
    plain = load_plain_verifier()
    genesis = plain.read(plain.GENESIS, structs.encode(played.game.genesis), "genesis")
    game = plain.Game(genesis, plain.decode(encode_graph(run.task.graph)))
    game.advance(game.now)
    for entry in played.transcript:
        assert entry.move is not None
        game.apply(structs.encode(entry.move), entry.at)
    game.advance(played.game.now)
    assert game.over
    assert plain.encode(game.verdict()) == structs.encode(played.verdict)
    assert (fall.place.step, fall.place.node) == (step, node)


def test_another_form_of_windows_wins_only_where_nobody_compares(run: Run) -> None:
    """Whoever trains on labels two tokens on is right about windows of that form alone, which are
    in the genesis.  Whoever joins makes it anew from the task, and it is another game."""
    windows = replace(get_windows(run), shift=2)
    spec = describe_windows(windows, run.task.samples.spec.root)
    assert spec.samples == run.task.samples.spec.samples
    other = Samples(spec, run.task.samples.table)
    liar = EngineProvider(
        replace(run.task, samples=other), open_session("cpu", run.task.graph, other)
    )
    fall, _ = play_against(run, liar, honest_solves=False)
    assert (fall.reason, fall.place.node) == ("refuted", run.find("y"))
    genesis = make_game(run.task, liar, SOLVER)
    false = replace(genesis, windows=windows)
    assert compute_game_id(false) != compute_game_id(genesis)
    played = play(false, run.graph, [Player(liar, SOLVER), Player(run.truth, CHALLENGER)])
    assert played.verdict.standing == liar.log().root, "without the defence the truth loses"


def test_an_honest_party_needs_the_chunk(run: Run) -> None:
    """Without its tokens an opening is refused, and nobody has fallen."""
    genesis, data, opened = get_statement(run)
    statement: Any = cbor.decode(data)
    for tokens, where in (([], "tokens"), (statement["tokens"] * 2, "tokens")):
        with pytest.raises(RefusalError) as caught:
            _core.referee_judge(cbor.encode({**statement, "tokens": tokens}))
        assert caught.value.where == where
    assert opened.tokens == (Chunk(**_as_chunk(statement["tokens"][0])),)
    assert genesis.windows == get_windows(run)


def _as_chunk(value: Any) -> dict[str, Any]:
    return {**value, "path": tuple(value["path"])}


def test_tokens_have_no_place_in_a_game_about_rows() -> None:
    rows = make_run("mlp", commit_every=2)
    x = rows.find("x")
    records = {4: replace(rows.record(4), loss=rows.record(4).loss + 1)}
    liar = Patched(rows.truth, rows.task, {(4, x): bump(rows.tensor(4, x), 1)}, records)
    genesis = make_game(rows.task, liar, SOLVER)
    assert genesis.windows is None
    assert b"windows" not in structs.encode(genesis)
    players = [Player(liar, SOLVER), Player(rows.truth, CHALLENGER)]
    played = play(genesis, rows.graph, players)
    game = start(genesis, rows.graph)
    for entry in played.transcript:
        assert entry.move is not None
        move = decode_move(entry.move.move)
        if isinstance(move, Open):
            found = compute_chunk_opening(rows.task.samples.table.tobytes(), 0)
            tokens = (Chunk(found.index, found.chunk, found.path),)
            contest, dispute = next(
                (contest.id, dispute.id)
                for contest in game.contests.values()
                for dispute in contest.disputes.values()
                if dispute.place.node == x and dispute.place.element >= 0
            )
            assert compose(game, contest, dispute, move)
            with pytest.raises(MoveRefusedError) as caught:
                compose(game, contest, dispute, replace(move, tokens=tokens))
            assert caught.value.where == "tokens"
            return
        game = apply(game, entry.move, entry.at)
    raise AssertionError("nothing was opened")


# --- the form of a genesis


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"dtype": "u8"}, "genesis.windows.dtype"),
        ({"tokens": 0}, "genesis.windows.tokens"),
        ({"tokens": 2**44 + 1}, "genesis.windows.tokens"),
        ({"context": 2**32 + 1}, "genesis.windows.context"),
        ({"stride": 0}, "genesis.windows.stride"),
        ({"shift": -1}, "genesis.windows.shift"),
        ({"more": 1}, "genesis.windows.more"),
    ],
)
def test_windows_of_a_genesis_are_bounded(run: Run, change: dict[str, Any], where: str) -> None:
    value: Any = structs.to_value(make_game(run.task, run.truth, SOLVER))
    assert structs.from_value(Genesis, value, "genesis").windows == get_windows(run)
    value["windows"] = {**value["windows"], **change}
    with pytest.raises(EncodingError) as caught:
        structs.from_value(Genesis, value, "genesis")
    assert caught.value.where == where


@pytest.mark.parametrize("wrong", [[], [{}], 0])
def test_windows_of_a_genesis_are_a_map(run: Run, wrong: Any) -> None:
    value: Any = structs.to_value(make_game(run.task, run.truth, SOLVER))
    with pytest.raises(EncodingError) as caught:
        structs.from_value(Genesis, {**value, "windows": wrong}, "genesis")
    assert caught.value.where == "genesis.windows"


@pytest.mark.parametrize(("dtype", "tokens"), [("u16", 2**44), ("u64", 2**44), ("u32", 8)])
def test_an_opening_stays_short_however_long_the_file_is(run: Run, dtype: str, tokens: int) -> None:
    windows = Windows(dtype, tokens, CONTEXT, 5, 1)
    data = replace(run.task.spec.data, windows=windows)
    size = measure_openings(replace(run.task.spec, data=data), run.task.graph)
    own = measure_openings(run.task.spec, run.task.graph)
    assert abs(size - own) < 2 * 1024 + 64 * 40


def test_the_root_is_of_the_bytes_alone(run: Run) -> None:
    """What a chunk is opened against is the BLAKE3 that anyone can compute of the file."""
    assert run.task.samples.spec.root == compute_tensor_digest(run.task.samples.table)
    index = run.tensor(1, run.find("sample_index"))
    expected = run.task.samples.gather("x", index)
    assert np.array_equal(run.tensor(1, run.find("x")), expected)
