"""The glue between tiles: what all statements about a step say together.

A statement's meaning is in ``tests.prove.tile_law``, in plain integers; that the circuits say just
that is tested beside them, and for each circuit's parameters here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np
import pytest

from tests.exhaustive import spare
from tests.prove.tile_law import MADE, holds
from tests.prove.tile_steps import (
    LANGUAGE_STEPS,
    PLAIN_STEPS,
    STEPS,
    Altered,
    Refitted,
    choose_side,
    make_contents,
    with_node,
)
from tests.tasks import make_tiny_task
from vtrain.commit.kzg_layout import batch_vectors, state_vectors
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import CircuitError
from vtrain.graph.step import STEP_STATE
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.ops.layout import Window
from vtrain.prove.circuit.values import Ints
from vtrain.prove.tiles import builder
from vtrain.prove.tiles import statements as statements_module
from vtrain.prove.tiles.circuits import TILE_CIRCUITS, WIDE_REACH, linear_challenge
from vtrain.prove.tiles.emit import pool
from vtrain.prove.tiles.grid import Array, cut_block
from vtrain.prove.tiles.numbers import PublicNumbers
from vtrain.prove.tiles.statements import (
    LINEAR,
    OUTSIDE,
    ZERO,
    StepFacts,
    Tile,
    TileContents,
    TileStatement,
    round_exactly,
)
from vtrain.prove.tiles.tiling import Tiling
from vtrain.spec.number import SATURATION, STORAGE, rs_int
from vtrain.wire.graph import Node, Ref, StepGraph, TensorType

SIDES = (4, 8)
ROOTS = ("before", "batch", "public")
SOURCES = (*ROOTS, "after", "trace")
steps = pytest.mark.parametrize("kind", STEPS)
steps_and_sides = pytest.mark.parametrize(
    ("kind", "side"),
    spare(
        [
            *((kind, side) for kind in PLAIN_STEPS for side in SIDES),
            *((kind, 16) for kind in LANGUAGE_STEPS),
        ],
        lambda pair: pair != ("convnet", 4),
    ),
)
SUPPLIED = (
    *("/high", "/root", "/quotient", "/capped"),
    *("/lower", "/cut", "/empty", "/share", "/length", "/lead"),
)
"""How names of tensors end of which no statement makes the tiles: several leave them one value, as
``tests/facets`` shows.  So it is with the outputs of ``inverse_root`` and ``sign``, and of
``row_max`` and ``divide`` of rows by themselves."""


@cache
def list_statements(kind: str, side: int) -> tuple[TileStatement, ...]:
    contents = make_contents(kind, side)
    tiling = contents.tiling
    return tuple(tiling.statement(i, contents.facts) for i in range(len(tiling)))


def tiles_of(tiling: Tiling, *sources: str) -> Iterator[Tile]:
    for number, tensor in enumerate(tiling.tensors):
        if tensor.source in sources:
            yield from (Tile(number, block) for block in range(tensor.count))


@steps_and_sides
def test_every_statement_holds_of_the_law(kind: str, side: int) -> None:
    contents = make_contents(kind, side)
    false = [(s.node, s.circuit) for s in list_statements(kind, side) if not holds(s, contents)]
    assert not false


@steps_and_sides
def test_the_output_of_every_node_is_a_combination_of_tiles(kind: str, side: int) -> None:
    contents = make_contents(kind, side)
    tiling = contents.tiling
    for index, node in enumerate(tiling.graph.nodes):
        counts = node.name == STEP_STATE
        is_left_out = node.op in OUTSIDE or node.op == "next_state" or counts
        is_left_out |= Ref(index) in PublicNumbers(tiling.graph)
        if node.op == "exp2_diff":  # of masked rows: keep_span has what the circuit makes
            kept = tiling.graph.nodes[node.inputs[0].node]
            spans = tiling.graph.nodes[kept.inputs[-1].node].op
            is_left_out |= (kept.op, spans) == ("keep_span", "causal_spans")
        if is_left_out:
            assert index not in tiling.outputs
            continue
        value = tiling.outputs[index]
        for block in range(value.grid.count):
            expected = cut_block(contents.output(index), value.grid, block)
            assert np.array_equal(contents.combine(value.at(block)), expected), node.name


@steps_and_sides
def test_any_element_altered_makes_a_statement_false(kind: str, side: int) -> None:
    """Of every tensor that a step makes; whatever the state and the batch, they are in the log."""
    contents = make_contents(kind, side)
    users = defaultdict(list)
    for statement in list_statements(kind, side):
        for parts in statement.given.values():
            for _, tile in parts:
                users[tile].append(statement)
    random = np.random.default_rng(side)
    tiling = contents.tiling
    for number, tensor in enumerate(tiling.tensors):
        if tensor.source in ROOTS or not tensor.count:
            continue
        blocks = {0, tensor.count - 1, *random.integers(tensor.count, size=2).tolist()}
        for block in blocks:
            tile = Tile(number, block)
            corners = {0, side - 1, side**2 - 1, *random.integers(side**2, size=2).tolist()}
            for place in corners:
                delta = int(random.choice([-1, 1, 2**15, -(2**31)]))
                value = contents.tile(tile).copy()
                value[place] += delta
                altered = Altered(contents, tile, value)
                assert not all(holds(statement, altered) for statement in users[tile]), (
                    f"{tensor.name}, block {block}, place {place}: {delta} goes unseen"
                )


@steps
def test_every_tile_follows_from_those_of_state_and_batch(kind: str) -> None:
    """Each is made by one statement, of tiles that were made before: nothing is left open."""
    side = choose_side(kind)
    tiling = make_contents(kind, side).tiling
    supplied = set(list_supplied(tiling))
    known = set(tiles_of(tiling, *ROOTS)) | supplied
    waiting = list(list_statements(kind, side))
    while waiting:
        left = []
        for statement in waiting:
            made = MADE[statement.circuit.split("-")[0]]
            if not all(statement.given[name] for name in made):
                made = set[str]()  # nothing: a product that must vanish
            needs = {t for name in statement.given.keys() - made for _, t in statement.given[name]}
            outputs = [statement.given[name] for name in sorted(made)]
            if not needs <= known:
                left.append(statement)
                continue
            for parts in outputs:
                ((factor, tile),) = parts
                assert factor == 1
                assert tile not in known, "is made twice"
                known.add(tile)
        assert len(left) < len(waiting), f"{left[0].node} has inputs that nothing makes"
        waiting = left
    assert known == set(tiles_of(tiling, *ROOTS, "trace", "after"))


def list_supplied(tiling: Tiling) -> Iterator[Tile]:
    """The tiles that the solver supplies, and ranges and products fix."""
    nodes = {node.name for node in tiling.graph.nodes if node.op in ("inverse_root", "sign")}
    apart = {tensor.name for tensor in tiling.tensors}  # rows by themselves have such a tensor
    for node, of_rows in ((node, node.name) for node in tiling.graph.nodes):
        if {f"{of_rows}/lower", f"{of_rows}/product"} & apart and node.op in ("row_max", "divide"):
            nodes.add(of_rows)
    for number, tensor in enumerate(tiling.tensors):
        if tensor.name in nodes or tensor.name.endswith(SUPPLIED):
            yield from (Tile(number, block) for block in range(tensor.count))


@steps_and_sides
def test_roots_are_held_to_their_type_and_padding(kind: str, side: int) -> None:
    contents = make_contents(kind, side)
    graph = contents.tiling.graph
    roots = set(tiles_of(contents.tiling, "before", "batch"))
    makers = {node.name: node for node in graph.nodes if node.op in ("state", "gather_samples")}
    ranges = defaultdict(list)
    for statement in list_statements(kind, side):
        if statement.circuit.startswith("range") and statement.node in makers:
            for _, tile in statement.given["x"]:
                if tile in roots:
                    ranges[tile].append(statement)
    assert set(ranges) == roots
    for tile, (statement,) in ranges.items():
        kind_of = makers[statement.node].outputs[0]
        for place, value in ((0, kind_of.lo - 1), (0, kind_of.hi + 1), (side**2 - 1, 1)):
            tensor = contents.tile(tile).copy()
            rows, columns = (np.asarray(statement.parameters[x], int) for x in ("rows", "columns"))
            if place and rows[-1] and columns[-1]:
                continue
            tensor[place] = value
            false = Refitted(contents, tile, tensor)
            about = [s for s in list_statements(kind, side) if s.node == statement.node]
            assert not all(holds(s, false) for s in about)


@pytest.mark.parametrize("kind", ["cnn", "gpt", "packed"])
def test_tiles_are_cut_of_the_nodes_that_are_named(kind: str) -> None:
    """All tiles are made of these nodes' outputs, and none of these is left unread."""
    contents, asked = make_contents(kind, choose_side(kind)), set[int]()
    tiling = contents.tiling

    class Asked(TileContents):
        def output(self, node: int) -> Array:
            asked.add(node)
            return super().output(node)

    found = Asked(tiling, contents.facts, {i: contents.output(i) for i in tiling.cut_nodes})
    for tile in tiles_of(tiling, *SOURCES):
        assert np.array_equal(found.tile(tile), contents.tile(tile)), tiling.tensors[tile.tensor]
    assert asked == tiling.cut_nodes < {*range(len(tiling.graph.nodes))}


@steps
def test_leaves_and_places_are_each_others_inverse(kind: str) -> None:
    tiling = make_contents(kind, choose_side(kind)).tiling
    leaves = [tiling.find_leaf(i) for i in range(tiling.leaf_count)]
    assert leaves == list(tiles_of(tiling, "trace"))
    assert [tiling.place(leaf) for leaf in leaves] == [("trace", i) for i in range(len(leaves))]
    for source, count in tiling.pinned_counts.items():
        places = sorted(tiling.place(tile)[1] for tile in tiles_of(tiling, source))
        assert places == list(range(count))


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_state_and_batch_tiles_are_those_of_the_log(kind: str) -> None:
    contents = make_contents(kind, 128)
    graph, tiling = contents.tiling.graph, contents.tiling
    parts = {str(n.attrs["part"]): i for i, n in enumerate(graph.nodes) if n.op == "gather_samples"}
    states = [
        {name: contents.output(ref.node) for name, ref in refs.items()}
        for refs in (graph.states(), graph.next_states())
    ]
    usable = 1 << 15
    expected = {
        "before": state_vectors("tiles", graph, states[0], usable),
        "after": state_vectors("tiles", graph, states[1], usable),
        "batch": batch_vectors(
            "tiles", contents.output(parts["x"]), contents.output(parts["y"]), usable
        ),
    }
    for source, columns in expected.items():
        assert tiling.pinned_counts[source] == len(columns)
        for tile in tiles_of(tiling, source):
            _, number = tiling.place(tile)
            assert np.array_equal(contents.tile(tile), columns[number])


# --- statements and circuits


def draw_challenge(statement: TileStatement, name: str, side: int) -> list[int]:
    drawn = int.from_bytes(np.random.default_rng(1).bytes(31))
    if name != LINEAR:
        return [drawn][: TILE_CIRCUITS[name](side).length("challenge")]
    assert statement.linear is not None
    return linear_challenge(side, drawn, statement.linear)


def test_circuits_hold_of_the_statements() -> None:
    """One of every circuit and node that the steps have, with its parameters."""
    seen = set[tuple[str, str]]()
    for kind in STEPS:
        side = choose_side(kind)
        contents = make_contents(kind, side)
        for statement in list_statements(kind, side):
            name = statement.circuit
            operator = statement.node.split("/")[0] if kind == "pools" else ""
            if (name, operator) in seen:
                continue
            seen.add((name, operator))
            circuit = TILE_CIRCUITS[name](side)
            assert tuple(statement.given) == circuit.given
            given = {key: contents.combine(parts) for key, parts in statement.given.items()}
            challenge = draw_challenge(statement, name, side)

            def draw(before: Mapping[str, Ints], drawn: Sequence[int] = challenge) -> Sequence[int]:
                return drawn

            vectors = circuit.assign(given, statement.parameters, draw)
            assert not circuit.find_broken(vectors), f"{statement.node}: {name}"
            given[circuit.given[-1]] = given[circuit.given[-1]] + (1 << 50)
            broken = circuit.assign(given, statement.parameters, draw)
            assert circuit.find_broken(broken), f"{statement.node}: {name}"
    assert {name.split("-")[0] for name, _ in seen} == set(MADE)


# --- maxima


@pytest.mark.parametrize(
    "values", [[-32639], [-32639, -32638], [0, 5], [-32639, 32639], range(-9, 9)]
)
def test_maxima_and_their_gradient_are_the_laws(values: list[int]) -> None:
    """Ties, padding, overlapping windows and the ends of the range."""
    honest = make_contents("pools", 8)
    graph, random = honest.tiling.graph, np.random.default_rng(2)
    forward, backward = (
        next(i for i, node in enumerate(graph.nodes) if node.op == op)
        for op in ("max_pool", "max_pool_grad")
    )
    (image,), (grad, _) = graph.nodes[forward].inputs, graph.nodes[backward].inputs
    attrs = graph.nodes[forward].attrs
    assert Window.from_attrs(attrs).pads != (0, 0, 0, 0)
    x = random.choice(np.asarray(list(values), np.int16), graph.type_of(image).shape)
    g = random.integers(-32639, 32640, graph.type_of(grad).shape).astype(np.int16)
    outputs = {i: honest.output(i) for i in range(len(graph.nodes))}
    outputs[image.node], outputs[grad.node] = x, g
    for node in _find_uncommitted(honest.tiling, image.node):
        outputs[node] = x.reshape(graph.nodes[node].outputs[0].shape)
    contents = TileContents(honest.tiling, honest.facts, outputs)
    for index, inputs in ((forward, [x]), (backward, [g, x])):
        value, expected = (
            honest.tiling.outputs[index],
            TABLE[graph.nodes[index].op].law(attrs, inputs),
        )
        for block in range(value.grid.count):
            found = contents.combine(value.at(block))
            assert np.array_equal(found, cut_block(expected, value.grid, block))
    mine = {graph.nodes[index].name for index in (forward, backward)}
    for statement in list_statements("pools", 8):
        if statement.node in mine:
            assert holds(statement, contents)


def _find_uncommitted(tiling: Tiling, index: int) -> list[int]:
    """Nodes whose tiles stand for those of node ``index``, through reshapes."""
    found, node = [], tiling.graph.nodes[index]
    while node.op == "reshape":
        index = node.inputs[0].node
        node = tiling.graph.nodes[index]
        found.append(index)
    return found


def test_images_of_few_channels_are_packed() -> None:
    """[5, 8, 8, 2] in rows of 8 make 10 tiles of 8 x 8, not 40 slivers."""
    tiling = make_contents("pools", 8).tiling
    names = {node.name: i for i, node in enumerate(tiling.graph.nodes)}
    assert tiling.outputs[names["c1/acc"]].grid.count == 40
    assert tiling.outputs[names["c1"]].grid.count == 10


# --- spans that follow from hidden ids


HIDDEN_ROWS = ("token_spans", "keep_span", "row_max", "exp2_diff", "row_sum", "divide")


@pytest.mark.parametrize("seed", range(3))
def test_hidden_spans_and_their_rows_are_the_laws(seed: int) -> None:
    """Documents, paddings at both ends and within, rows of padding alone, which attend to
    nothing."""
    honest = make_contents("packed", 16)
    graph, random = honest.tiling.graph, np.random.default_rng(seed)
    index = find_node(graph, "token_spans")
    node = graph.nodes[index]
    end, padding = (attr_int(node.attrs, name) for name in ("end_of_text", "padding"))
    ids = random.choice([end, padding, 3], graph.type_of(node.inputs[0]).shape, p=[0.2, 0.3, 0.5])
    ids[0] = padding if seed else end
    outputs = {i: honest.output(i) for i in range(len(graph.nodes))}
    outputs[node.inputs[0].node] = ids.astype(np.int32)
    for source in _find_uncommitted(honest.tiling, node.inputs[0].node):
        outputs[source] = ids.reshape(graph.nodes[source].outputs[0].shape).astype(np.int32)
    follows = range(index, find_node(graph, "divide") + 1)
    for place in follows:
        other = graph.nodes[place]
        outputs[place] = TABLE[other.op].law(other.attrs, [outputs[r.node] for r in other.inputs])
    made = {graph.nodes[place].name for place in follows}
    contents = TileContents(honest.tiling, honest.facts, outputs)
    mine = [s for s in list_statements("packed", 16) if s.node in made]
    assert [(s.node, s.circuit) for s in mine if not holds(s, contents)] == []
    assert {graph.nodes[place].op for place in follows} >= {*HIDDEN_ROWS}
    for place in follows:
        value = honest.tiling.outputs[place]
        for block in range(value.grid.count):
            expected = cut_block(outputs[place], value.grid, block)
            assert np.array_equal(contents.combine(value.at(block)), expected)


# --- rates, and what is refused


def test_the_rate_is_that_of_the_step() -> None:
    """The schedule of this task changes after two steps; its weights are a combination with it."""
    tiling = make_contents("pools", 8).tiling
    index = next(
        i
        for i in range(len(tiling))
        if tiling.statement(i, StepFacts(1, 0)).node.startswith("param/")
        and tiling.statement(i, StepFacts(1, 0)).circuit.startswith("rescale-i32")
    )
    factors = [
        {factor for factor, _ in tiling.statement(index, StepFacts(step, 0)).given["x"]}
        for step in (1, 2, 3, 4)
    ]
    assert factors[0] == factors[1] != factors[2] == factors[3]
    assert -40960 in factors[0]
    assert -20480 in factors[2]


def find_node(graph: StepGraph, op: str) -> int:
    return next(i for i, node in enumerate(graph.nodes) if node.op == op)


def test_a_state_that_no_update_makes_is_a_copy() -> None:
    graph = make_tiny_task().graph
    before = graph.states()["param/w1"]
    index = graph.next_states()["param/w1"].node
    tiling = Tiling(with_node(graph, index, inputs=(before,)), 8)
    made = [
        statement
        for i in range(len(tiling))
        if (statement := tiling.statement(i, StepFacts(1, 0))).node == "next/param/w1"
    ]
    assert len(made) == 2
    assert {statement.circuit for statement in made} == {ZERO}
    sources = [
        sorted(tiling.place(tile)[0] for _, tile in statement.given["x"]) for statement in made
    ]
    assert sources == [["after", "before"]] * 2


def test_what_has_no_circuit_is_refused() -> None:
    graph = make_tiny_task().graph
    places = {node.op: Ref(index) for index, node in enumerate(graph.nodes)}
    both = {"transpose_a": 1, "transpose_b": 1}
    cases = (
        ("matmul", {"op": "conv"}, "no circuit for the operator conv"),
        ("matmul", {"attrs": both}, "two transposes"),
        ("row_sum", {"inputs": (places["relu"],)}, "has the output of an exp2_diff"),
        ("schedule", {"op": "increment"}, "a schedule"),
        ("schedule", {"inputs": (places["increment"],)}, "another counter than that of the steps"),
        ("momentum", {"attrs": {"decay": 6554, "shift": 60}}, "no circuit shifts by 60"),
        ("relu", {"inputs": (places["matmul"],)}, "the circuit takes those within"),
    )
    for op, changes, message in cases:
        altered = with_node(graph, find_node(graph, op), **changes)
        with pytest.raises(CircuitError, match=message) as caught:
            Tiling(altered, 8)
        assert caught.value.where in {node.name for node in graph.nodes}


def test_rows_that_no_circuit_takes_are_refused() -> None:
    """A maximum by itself, and a loss of rows within spans."""
    few = make_tiny_task().graph
    z = few.nodes[find_node(few, "relu")].inputs[0]
    batch = TensorType("i32", few.type_of(z).shape[:1], 0, -5, 5)
    wide = make_tiny_task("gpt").graph
    kept = Ref(find_node(wide, "row_max"))
    total = Ref(find_node(wide, "row_sum"))
    inputs = (*wide.nodes[kept.node].inputs, kept, total, kept)
    cases = (
        (few, Node("more", "row_max", {}, (z,), (batch,)), "a softmax without its exp"),
        (wide, Node("more", "cross_entropy", {}, inputs, (batch,)), "leaves out logits by spans"),
    )
    for graph, node, message in cases:
        with pytest.raises(CircuitError, match=message):
            Tiling(StepGraph((*graph.nodes, node)), 16)


def cut_one(op: str) -> tuple[StepGraph, Tiling, int]:
    """A node of a step of which other nodes may have no circuit, cut by itself."""
    graph = make_tiny_task("gpt", optimizer="adamw").graph
    node = find_node(graph, op)
    return graph, Tiling(graph, 4, only=node), node


@pytest.mark.parametrize(
    "op", ["matmul", "batched_matmul", "rescale", "add_bias", "mul", "center", "scatter_add"]
)
def test_a_node_by_itself_is_stated_of_any_step(op: str) -> None:
    """All statements hold of the step, and any element altered makes one false."""
    graph, tiling, node = cut_one(op)
    task = make_tiny_task("gpt", optimizer="adamw")
    session = NumpySession(graph, task.samples)
    session.load_state(task.initial_state)
    session.step()
    outputs = dict(enumerate(session.evaluate_all(range(node + 1))))
    contents = TileContents(tiling, StepFacts(2, 0), outputs)
    statements = [tiling.statement(i, contents.facts) for i in range(len(tiling))]
    assert all(holds(statement, contents) for statement in statements)
    assert {tiling.place(tile)[0] for tile in tiles_of(tiling, *SOURCES)} <= {"trace", "public"}
    value = tiling.outputs[node]
    for block in range(value.grid.count):
        expected = cut_block(contents.output(node), value.grid, block)
        assert np.array_equal(contents.combine(value.at(block)), expected)
    inputs = len(set(graph.nodes[node].inputs))  # the first tensors
    made = {tile for block in range(value.grid.count) for _, tile in value.at(block)}
    for tile in sorted(tile for tile in made if tile.tensor >= inputs)[:20]:
        altered = contents.tile(tile).copy()
        altered[0] += 1
        false = Altered(contents, tile, altered)
        assert not all(holds(statement, false) for statement in statements)


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("causal_spans", "nothing is stated by itself: cut the whole"),
        ("reshape", "nothing is stated by itself: cut the whole"),
        ("record", "nothing is stated by itself: cut the whole"),
        ("row_max", "nothing is stated by itself: cut the whole"),
    ],
)
def test_a_node_that_nothing_is_stated_about_is_refused(op: str, why: str) -> None:
    with pytest.raises(CircuitError, match=why):
        cut_one(op)


def test_tokens_further_apart_than_a_gate_takes_are_held_to_the_vocabulary() -> None:
    graph = make_contents("tokens", 8).tiling.graph
    node = graph.nodes[find_node(graph, "one_hot")]
    (ref,) = node.inputs
    kind = graph.type_of(ref)
    for dtype in ("i16", "i32"):
        wide = TensorType(dtype, kind.shape, kind.exponent, *STORAGE[dtype])
        tiling = Tiling(with_node(graph, ref.node, outputs=(wide,)), 8)
        assert tiling.circuits >= {"gate", "range-3"}
        made = (tiling.statement(i, StepFacts(1, 0)) for i in range(len(tiling)))
        held = [s for s in made if s.node == node.name and s.circuit.startswith("range")]
        # A gate does not take what int32 reaches: such tokens are held to the vocabulary.
        assert [int(s.parameters["hi"][0]) for s in held] == ([5] if dtype == "i32" else [])


@pytest.mark.parametrize("op", ["rescale", "square_sum"])
def test_results_wider_than_the_circuit_are_refused(op: str) -> None:
    """By their types; those at the very end are taken."""
    graph = make_tiny_task(loss="mse").graph
    index = find_node(graph, op)
    node, kind = graph.nodes[index], graph.nodes[index].outputs[0]
    attrs = {**node.attrs, "shift": 1, **({"dtype": "i64"} if op == "rescale" else {})}
    for most, where in ((WIDE_REACH, set()), (WIDE_REACH + 1, {node.name})):
        wide = TensorType("i64", kind.shape, kind.exponent, -most, most)
        found = set()
        try:
            Tiling(with_node(graph, index, attrs=attrs, outputs=(wide,)), 8)
        except CircuitError as error:
            # What reads the result may refuse it as well, but under its own name.
            found = {error.where} & {node.name}
        assert found == where


def test_an_index_out_of_range_is_refused() -> None:
    tiling = make_contents("mlp", 8).tiling
    facts = StepFacts(1, 0)
    for index in (-1, len(tiling)):
        with pytest.raises(CircuitError):
            tiling.statement(index, facts)
    for leaf in (-1, tiling.leaf_count):
        with pytest.raises(CircuitError):
            tiling.find_leaf(leaf)
    for tile in (Tile(-1, 0), Tile(len(tiling.tensors), 0), Tile(0, 10**6)):
        with pytest.raises(CircuitError):
            tiling.place(tile)


# --- beyond 64 bits


@pytest.mark.parametrize(("op", "shift"), [("momentum", 45), ("sgd_update", 45), ("sgd_update", 0)])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_states_are_exact(op: str, shift: int, sign: int) -> None:
    """2^45 times a momentum or a weight has 76 bits: tiles and statements are the law's still."""
    honest = make_contents("mlp", 8)
    index = find_node(honest.tiling.graph, op)
    node = honest.tiling.graph.nodes[index]
    graph = with_node(honest.tiling.graph, index, attrs={**node.attrs, "shift": shift})
    outputs = {i: honest.output(i) for i in range(len(graph.nodes))}
    most = SATURATION["i32"][1]
    for ref, value in zip(node.inputs, (most, -most), strict=False):
        if graph.type_of(ref).dtype == "i32":
            places = np.arange(graph.type_of(ref).size).reshape(graph.type_of(ref).shape)
            outputs[ref.node] = (sign * value + np.sign(-sign * value) * places).astype(np.int32)
    inputs = [outputs[ref.node] for ref in node.inputs]
    outputs[index] = TABLE[op].law(graph.nodes[index].attrs, inputs)
    contents = TileContents(Tiling(graph, 8), honest.facts, outputs)
    mine = [
        statement
        for i in range(len(contents.tiling))
        if (statement := contents.tiling.statement(i, contents.facts)).node == node.name
    ]
    assert mine
    assert all(holds(statement, contents) for statement in mine)
    wide = [contents.combine(statement.given["x"]) for statement in mine]
    assert any(values.dtype == object for values in wide) == (shift > 0)
    for statement in mine:
        if statement.circuit.startswith("rescale-i32"):
            circuit = TILE_CIRCUITS[statement.circuit](8)
            given = {key: contents.combine(parts) for key, parts in statement.given.items()}
            challenge = draw_challenge(statement, statement.circuit, 8)
            vectors = circuit.assign(given, statement.parameters, lambda _: challenge)  # noqa: B023
            assert not circuit.find_broken(vectors)


@pytest.mark.parametrize("bits", [20, 61, 62, 63, 64, 100])
@pytest.mark.parametrize("shift", [0, 1, 15, 47, 59])
def test_rounding_is_exact_at_any_size(bits: int, shift: int) -> None:
    ends = [-(1 << bits), 1 - (1 << bits), -1, 0, 1, (1 << bits) - 1, (1 << bits) >> 1, 12345]
    x = np.asarray([int(v) for v in ends], dtype=np.int64 if bits < 63 else object)
    offset = np.asarray([-1] * len(ends), dtype=np.int64)
    for multiplier in (1, -3, 65537):
        found = round_exactly(x, multiplier, offset, shift)
        assert found.tolist() == [rs_int(v * multiplier - 1, shift) for v in ends]


# --- limits


def test_a_sum_of_sums_is_one_sum() -> None:
    """x doubled 50 times is 2^50 x, and not 2^50 looks at x."""
    graph = make_tiny_task().graph
    nodes = list(graph.nodes)
    source = graph.states()["param/w1"]
    doubled = source
    for number in range(50):
        kind = graph.type_of(source)
        attrs = {"shift_a": 0, "shift_b": 0}
        nodes.append(Node(f"twice {number}", "add", attrs, (doubled, doubled), (kind,)))
        doubled = Ref(len(nodes) - 1)
    tiling = Tiling(StepGraph(tuple(nodes)), 8)
    ((_, tile),) = tiling.outputs[source.node].at(0)
    assert tiling.outputs[doubled.node].at(0) == ((1 << 50, tile),)


def _resized(graph: StepGraph, op: str, shape: tuple[int, ...]) -> tuple[StepGraph, str]:
    """The graph with an output so large; it need not be legal."""
    index = graph.states()["param/w1"].node if op == "state" else find_node(graph, op)
    kind = graph.nodes[index].outputs[0]
    large = TensorType(kind.dtype, shape, kind.exponent, kind.lo, kind.hi)
    return with_node(graph, index, outputs=(large,)), graph.nodes[index].name


@pytest.mark.parametrize(
    ("kind", "op", "shape", "message"),
    [
        ("mlp", "state", (1 << 40, 128), "tiles of the state: at most 8192"),
        ("mlp", "gather_samples", (1 << 40, 16), "tiles of the batch: at most 8192"),
        ("mlp", "matmul", (1 << 40, 64), "tiles of a trace: at most 1048576"),
        ("mlp", "relu", (1 << 40, 64), "elements looked at up to here"),
        ("cnn", "im2col", (1 << 40, 9), "elements looked at up to here: at most 268435456"),
        ("cnn", "max_pool", (1 << 40, 4, 4, 2), "elements looked at up to here"),
        ("tokens", "one_hot", (1 << 40, 18), "elements looked at up to here"),
    ],
)
def test_a_step_too_large_is_refused_before_it_is_cut(
    kind: str, op: str, shape: tuple[int, ...], message: str
) -> None:
    """By its shapes: no map is worked out on 2^40 rows, which would take a day."""
    graph = make_contents(kind, 8).tiling.graph
    altered, name = _resized(graph, op, shape)
    with pytest.raises(CircuitError, match=message) as caught:
        Tiling(altered)
    assert caught.value.where.split("/")[0] in {name.split("/")[0], "state"}


def test_labels_of_too_many_classes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted where rows with a one are made of them, once, and not by the shapes."""
    graph = make_contents("classes", 16).tiling.graph
    most, refused = builder.TileBuilder(graph, 16).places, list[tuple[str, int]]()
    while True:
        monkeypatch.setattr(builder, "MAX_PLACES", most)
        try:
            Tiling(graph, 16)
        except CircuitError as error:
            needed = int(error.message.split()[1])
            refused.append((error.where, needed - most))
            most = needed
        else:
            break
    names = {node.name for node in graph.nodes if node.op in ("sub_one_hot", "cross_entropy")}
    assert [count for where, count in refused if where in names] == [3 * 129]


def test_a_sum_over_too_much_for_one_tile_is_refused() -> None:
    graph = make_contents("mlp", 8).tiling.graph
    index = find_node(graph, "column_sum")
    (ref,) = graph.nodes[index].inputs
    kind = graph.type_of(ref)
    large = TensorType(kind.dtype, (1 << 24, kind.shape[-1]), kind.exponent, kind.lo, kind.hi)
    with pytest.raises(CircuitError, match="elements looked at for a tile: at most") as caught:
        Tiling(with_node(graph, ref.node, outputs=(large,)))
    assert caught.value.where == graph.nodes[index].name


def test_maxima_of_too_many_pixels_and_sums_of_too_many_tensors_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = make_contents("pools", 8).tiling.graph
    cases = ((pool, "MAX_WINDOW", "9 pixels"), (statements_module, "MAX_PARTS", "9 tensors"))
    for module, name, message in cases:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 8)
            with pytest.raises(CircuitError, match=f"{message}: at most 8") as caught:
                Tiling(graph, 8)
        assert caught.value.where in {node.name for node in graph.nodes}


def test_the_widest_maximum_is_not_too_deep() -> None:
    """Each of its tiles is worked out from those before it: all at once, for the last one."""
    honest = make_contents("largest", 8)
    outputs = {i: honest.output(i) for i in range(len(honest.tiling.graph.nodes))}
    tiling = honest.tiling
    (window,) = {
        Window.from_attrs(node.attrs) for node in tiling.graph.nodes if node.op == "max_pool"
    }
    assert window.area == pool.MAX_WINDOW
    last = {}
    for index in range(len(tiling)):
        statement = tiling.statement(index, honest.facts)
        if statement.node.startswith("largest"):
            last[statement.node, statement.circuit] = statement
    assert {circuit for _, circuit in last} >= {"gate", LINEAR}
    for statement in last.values():
        assert holds(statement, TileContents(tiling, honest.facts, outputs)), statement.node
