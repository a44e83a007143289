"""A lie in each node of each tiny graph, and lies of other forms: the place found is the lie's.

The liar's trace is the true one but for the lie, and a record that tells the logs apart: what is
right of the leftmost difference is never looked at.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.dispute.arena import Play, make_game, make_key, play
from tests.dispute.claims import Patched, Run, bump, make_run
from tests.exhaustive import spare
from vtrain import _core
from vtrain.attest.keys import public_key
from vtrain.dispute.game import apply, sign, start
from vtrain.dispute.players import Player
from vtrain.dispute.provider import TraceProvider
from vtrain.dispute.state import Fall, Game
from vtrain.errors import VtrainError
from vtrain.ops import TABLE
from vtrain.wire.dispute import Chunk, Member, Open, Reveal, Row, SignedMove, decode_move
from vtrain.wire.opening import CHUNK_LENGTH
from vtrain.wire.record import StepRecord

Array = npt.NDArray[Any]
SOLVER, CHALLENGER = make_key(1), make_key(2)
STEP = 4

GRAPHS = {
    "mlp": ("mlp", "cross_entropy", "sgd"),
    "cnn": ("cnn", "cross_entropy", "sgd"),
    "mse": ("mlp", "mse", "sgd"),
    "adamw": ("mlp", "cross_entropy", "adamw"),
    "lion": ("mlp", "cross_entropy", "lion"),
    "gpt": ("dropout", "cross_entropy", "adamw"),
    "llama": ("llama", "cross_entropy", "sgd"),
    "convnet": ("convnet", "cross_entropy", "sgd"),
}
LARGE = ("llama", "convnet")
"""Graphs of many nodes that are the same but for their names."""
ELSEWHERE = {"one_hot", "token_spans"}
"""Operators that no graph here has: tests/ops/test_leaves.py judges their leaves, and
test_tokens.py plays about spans."""


def get_run(graph: str) -> Run:
    kind, loss, optimizer = GRAPHS[graph]
    return make_run(kind, loss=loss, steps=STEP, commit_every=2, optimizer=optimizer)


def get_wide() -> Run:
    """A weight gradient of three blocks."""
    return make_run("wide", steps=2, commit_every=2, batch=80, samples=100)


def false_record(run: Run, step: int) -> StepRecord:
    record = run.record(step)
    return replace(record, loss=record.loss + 1)


def find_fall(run: Run, liar: TraceProvider, *, honest_solves: bool) -> tuple[Fall, Play]:
    """Play honest against liar; how the liar's claim fell."""
    claims = (run.truth, liar) if honest_solves else (liar, run.truth)
    genesis = make_game(run.task, claims[0], SOLVER)
    actors = [Player(claim, key) for claim, key in zip(claims, (SOLVER, CHALLENGER), strict=True)]
    played = play(genesis, run.graph, actors, limit=100)
    assert played.verdict.standing == run.truth.log().root
    (fall,) = (claim.fall for claim in played.game.logs.values() if claim.fall is not None)
    return fall, played


def bump_in_last_block(run: Run, step: int, node: int, element: int) -> tuple[Array, int]:
    """A false tensor, and how much more its fold ends in: the least that is not rounded away."""
    tree, tensor = run.truth.terms(step, node, element), run.tensor(step, node)
    end = tree.leaf(tree.size - 1)
    for more in (1 << shift for shift in range(48)):
        state = int.from_bytes(end[:8], "little", signed=True) + more
        false_end = state.to_bytes(8, "little", signed=True) + end[8:]
        made = _core.leaf_finish(*run.graph.encode_site(node), false_end)
        value = np.frombuffer(made, tensor.dtype)[0]
        if value != tensor.flat[element]:
            false = tensor.copy()
            false.flat[element] = value
            return false, more
    raise AssertionError("no end of the fold makes another element")


def check_lie(run: Run, step: int, node: int, element: int, *, honest_solves: bool) -> None:
    tensor = run.tensor(step, node)
    records = {STEP: false_record(run, STEP)}
    # The false record is the lie of the record's node; its first false byte is anywhere.
    is_record = node == run.task.graph.find("record")
    blocks, _ = run.graph.measure_fold(node)
    outputs = {} if is_record else {(step, node): bump(tensor, element)}
    detours = {}
    if blocks > 1:
        outputs[step, node], last = bump_in_last_block(run, step, node, element)
        detours[step, node] = [0] * (blocks - 1) + [last]
    liar = Patched(run.truth, run.task, outputs, records, detours=detours)
    fall, _ = find_fall(run, liar, honest_solves=honest_solves)
    assert fall.reason == "refuted"
    assert (fall.place.step, fall.place.node) == (step, node)
    assert blocks == 1 or fall.place.block == blocks - 1
    if outputs:
        assert fall.place.element == element
        assert fall.place.chunk == element * tensor.itemsize // CHUNK_LENGTH


def describe_kind(run: Run, index: int) -> tuple[Any, ...]:
    """What two nodes of which leaves are alike have in common."""
    graph = run.task.graph
    node = graph.nodes[index]
    attrs = {name: value for name, value in node.attrs.items() if name != "name"}
    return node.op, repr(attrs), tuple(graph.type_of(ref).shape for ref in node.inputs)


def test_every_operator_is_lied_about() -> None:
    """An operator that is added to the table is added to a graph here."""
    there = {node.op for graph in GRAPHS for node in get_run(graph).task.graph.nodes}
    assert set(TABLE) - there == ELSEWHERE


def list_kinds(graph: str) -> dict[tuple[Any, ...], int]:
    """A node of each kind in a graph."""
    run = get_run(graph)
    return {describe_kind(run, node): node for node in range(len(run.task.graph.nodes))}


def list_earlier_kinds(graph: str) -> set[tuple[Any, ...]]:
    """Of nodes in the graphs before this one."""
    before = list(GRAPHS)[: list(GRAPHS).index(graph)]
    return {kind for other in before for kind in list_kinds(other)}


# Of the language models, every operator is lied about below.
@pytest.mark.parametrize(
    ("graph", "anew"),
    spare(
        product(GRAPHS, [False, True]),
        lambda case: case[0] not in ("gpt", "llama") and not case[1],
    ),
)
def test_a_lie_in_any_node(graph: str, anew: bool) -> None:
    """First, middle and last element; in both steps of a trace; the liar solves or challenges.

    Of large graphs one element of each kind of nodes; and nodes of kinds that a graph before had
    only if ``anew``.
    """
    run, kinds = get_run(graph), list_kinds(graph)
    chosen = set(kinds.values() if graph in LARGE else range(len(run.task.graph.nodes)))
    if not anew:
        known = list_earlier_kinds(graph)
        chosen = {node for node in chosen if describe_kind(run, node) not in known}
    for node in sorted(chosen):
        last = run.tensor(STEP, node).size - 1
        elements = [last // 2] if graph in LARGE else sorted({0, last // 2, last})
        for turn, element in enumerate(elements, node):
            step = STEP if run.task.graph.nodes[node].op == "record" else STEP - turn % 2
            check_lie(run, step, node, element, honest_solves=turn // 2 % 2 == 0)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("honest_solves", [False, True])
def test_a_lie_in_any_operator_by_either_side(graph: str, honest_solves: bool) -> None:
    run = get_run(graph)
    by_operator = {node.op: index for index, node in enumerate(run.task.graph.nodes)}
    for node in by_operator.values():
        for step in (STEP - 1, STEP):
            if step == STEP or run.task.graph.nodes[node].op != "record":
                check_lie(run, step, node, 0, honest_solves=honest_solves)


@pytest.mark.parametrize("honest_solves", [False, True])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_lie_in_a_block_of_terms(block: int, step: int, honest_solves: bool) -> None:
    run = get_wide()
    node = run.find("h/acc/grad_b")
    element = 1234
    tree = run.truth.terms(step, node, element)
    assert tree.size == 3
    liar = Patched(
        run.truth,
        run.task,
        {(step, node): bump(run.tensor(step, node), element, 5)},
        {step: false_record(run, step)} if step == 2 else {1: false_record(run, 1)},
        detours={(step, node): [0] * block + [5] * (3 - block)},
    )
    fall, played = find_fall(run, liar, honest_solves=honest_solves)
    place = fall.place
    assert fall.reason == "refuted"
    assert (place.step, place.node, place.element, place.block) == (step, node, element, block)
    levels = sorted(contest.level for contest in played.game.contests.values())
    assert levels == ["log", "terms", "trace"]


def test_fold_states_that_do_not_end_in_the_element_are_not_bonded() -> None:
    run = get_wide()
    node = run.find("h/acc/grad_b")
    outputs = {(2, node): bump(run.tensor(2, node), 7, 5)}
    detours = {(2, node): [1, 1, 0]}
    records = {2: false_record(run, 2)}
    liar = Patched(run.truth, run.task, outputs, records, detours=detours)
    fall, played = find_fall(run, liar, honest_solves=True)
    assert fall.reason == "undefended"
    assert (fall.place.node, fall.place.element) == (node, 7)
    assert "does not end in the element of its side" in {e.message for _, e in played.errors}


# --- lies of another form


NODE = "loss/grad"


@pytest.mark.parametrize("honest_solves", [False, True])
def test_a_digest_of_which_nobody_has_the_preimage(honest_solves: bool) -> None:
    run = get_run("mlp")
    outputs: dict[tuple[int, int], np.ndarray | bytes] = {(STEP, run.find(NODE)): b"g" * 32}
    liar = Patched(run.truth, run.task, outputs, {STEP: false_record(run, STEP)})
    fall, _ = find_fall(run, liar, honest_solves=honest_solves)
    assert (fall.reason, fall.place.step, fall.place.node) == ("silent", STEP, run.find(NODE))


@pytest.mark.parametrize("dtype", ["i1", "<i8"])
def test_a_tensor_of_another_length(dtype: str) -> None:
    """The length follows from the graph: nobody can reveal the chunks of another one."""
    run = get_run("cnn")
    node = run.find("m/acc")
    false = run.tensor(STEP, node)[:-1]
    liar = Patched(run.truth, run.task, {(STEP, node): false}, {STEP: false_record(run, STEP)})
    fall, _ = find_fall(run, liar, honest_solves=dtype == "i1")
    assert (fall.reason, fall.place.node) == ("silent", node)


@pytest.mark.parametrize("length", [0, 1, 31, 33, 1000])
def test_a_leaf_that_is_no_digest(length: int) -> None:
    run = get_run("mlp")
    leaves = {(STEP, run.find(NODE)): b"x" * length}
    records = {STEP: false_record(run, STEP)}
    liar = Patched(run.truth, run.task, records=records, leaves=leaves)
    fall, _ = find_fall(run, liar, honest_solves=length % 2 == 0)
    assert (fall.reason, fall.place.step, fall.place.node) == ("malformed", STEP, run.find(NODE))


def make_false_records(run: Run) -> dict[str, bytes | StepRecord]:
    record = run.record(STEP)
    return {
        "no record": b"no record",
        "empty": b"",
        "another step": replace(record, step=record.step + 1),
        "no state root where one is due": replace(record, state_root=b""),
    }


@pytest.mark.parametrize("name", make_false_records(get_run("mlp")))
@pytest.mark.parametrize("honest_solves", [False, True])
def test_a_malformed_record(name: str, honest_solves: bool) -> None:
    run = get_run("mlp")
    liar = Patched(run.truth, run.task, records={STEP: make_false_records(run)[name]})
    fall, _ = find_fall(run, liar, honest_solves=honest_solves)
    assert (fall.reason, fall.place.step) == ("malformed", STEP)


def test_a_state_root_where_none_is_due() -> None:
    run = get_run("mlp")
    liar = Patched(run.truth, run.task, records={3: replace(run.record(3), state_root=b"r" * 32)})
    fall, _ = find_fall(run, liar, honest_solves=True)
    assert (fall.reason, fall.place.step) == ("malformed", 3)


# --- forged openings


def collect(run: Run, liar: TraceProvider) -> list[tuple[Game, SignedMove, int]]:
    """Every move of a game with the state that it was made in and its time."""
    genesis = make_game(run.task, liar, SOLVER)
    played = play(genesis, run.graph, [Player(liar, SOLVER), Player(run.truth, CHALLENGER)])
    game, made = start(genesis, run.graph), []
    for entry in played.transcript:
        assert entry.move is not None
        made.append((game, entry.move, entry.at))
        game = apply(game, entry.move, entry.at)
    return made


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        ("mlp", "x"),
        ("mlp", "param/w1"),
        ("mlp", "h/acc"),
        ("mlp", NODE),
        ("gpt", "x"),
        ("gpt", "e"),
    ],
)
def test_no_opening_or_reveal_can_be_forged(graph: str, name: str) -> None:
    """Any change of any byte string of a reveal or an opening has it refused."""
    run = get_run(graph)
    node = run.find(name)
    for step in (STEP - 1, STEP):
        outputs = {(step, node): bump(run.tensor(step, node), 1)}
        liar = Patched(run.truth, run.task, outputs, {STEP: false_record(run, STEP)})
        for game, signed, at in collect(run, liar):
            move = decode_move(signed.move)
            if not isinstance(move, Open | Reveal):
                continue
            key = next(key for key in (SOLVER, CHALLENGER) if public_key(key) == signed.party)
            for forged in forge(move):
                with pytest.raises(VtrainError):
                    apply(game, sign(game.id, signed.about, forged, key), at)


def forge(move: Open | Reveal) -> list[Open | Reveal]:
    """The move with one of its byte strings changed."""
    if isinstance(move, Reveal):
        forged: list[Open | Reveal] = []
        for at, item in enumerate(move.items):
            for false in (item[:-1], item + b"\0", bytes([item[0] ^ 1]) + item[1:]):
                items = (*move.items[:at], false, *move.items[at + 1 :])
                forged.append(replace(move, items=items))
        forged += [replace(move, items=move.items[:-1]), replace(move, items=(*move.items, b""))]
        return forged
    return [
        *forge_inputs(move),
        *(
            replace(move, rows=(*move.rows[:at], false, *move.rows[at + 1 :]))
            for at, row in enumerate(move.rows)
            for false in (
                replace(row, row=row.row[::-1] + b"."),
                replace(row, index=row.index + 1),
                replace(row, path=row.path[:-1]),
            )
        ),
        replace(move, inputs=()),
        replace(move, inputs=(*move.inputs, *move.inputs[:1], *move.inputs[:1])),
        *([replace(move, rows=())] if move.rows else []),
        *([replace(move, tokens=())] if move.tokens else []),
        *(
            replace(move, tokens=(*move.tokens[:at], false, *move.tokens[at + 1 :]))
            for at, chunk in enumerate(move.tokens)
            for false in (*forge_chunk(chunk), replace(chunk, path=chunk.path[:-1]))
        ),
        replace(move, tokens=(*move.tokens, Chunk(0, b"", ()))),
        replace(move, rows=(*move.rows, Row(0, b"", ()))),
        *(
            replace(move, **{name: replace(member, data=member.data[:-1] + b"!")})
            for name in ("state_leaf", "base", "before")
            if (member := getattr(move, name)) is not None
        ),
        replace(move, log=move.log[::-1]),
        replace(move, trace=move.trace[::-1]),
        replace(move, terms=move.log),
        replace(move, before=Member(b"", 0, 1, ())),
        *([replace(move, base=Member(b"", 0, 1, ()))] if move.base is None else []),
    ]


def forge_chunk(chunk: Chunk) -> list[Chunk]:
    return [
        replace(chunk, chunk=chunk.chunk[:-1]),
        replace(chunk, chunk=bytes([chunk.chunk[0] ^ 1]) + chunk.chunk[1:]),
        replace(chunk, index=chunk.index + 1),
        replace(chunk, path=(*chunk.path, bytes(32))),
    ]


def forge_inputs(move: Open) -> list[Open | Reveal]:
    forged: list[Open | Reveal] = []
    for at, opened in enumerate(move.inputs):
        false = [replace(opened, digest=opened.digest[::-1])]
        false += [replace(opened, path=opened.path[:-1])] if opened.path else []
        for number, chunk in enumerate(opened.chunks):
            for other in forge_chunk(chunk):
                chunks = (*opened.chunks[:number], other, *opened.chunks[number + 1 :])
                false.append(replace(opened, chunks=chunks))
        for item in false:
            inputs = (*move.inputs[:at], item, *move.inputs[at + 1 :])
            forged.append(replace(move, inputs=inputs))
    return forged
