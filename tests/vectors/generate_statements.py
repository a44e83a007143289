"""Writes ``statements.json``: what a referee is asked in disputes, with rulings and refusals.

``python -m tests.vectors.generate_statements`` plays games about the tiny runs of the tests, by the
law alone (vtrain/ops), and writes it; ``--check`` compares and exits 1 when it differs.  Rulings
are computed from the rules in vtrain/ops, places of refusals are stated here: nothing is asked of
the referee itself.  README.md documents the format.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.tasks import make_tiny_task
from tests.vectors.files import write_or_compare
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import public_key
from vtrain.demo.lies import Lies, LyingSession
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import advance, apply, find_deadline, start
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.players import Player
from vtrain.dispute.provider import ClaimTree, MerkleTree
from vtrain.dispute.state import Place
from vtrain.dispute.transcript import TimedMove, find_statements
from vtrain.errors import MoveRefusedError
from vtrain.ops.leaf import (
    ArrayReader,
    encode_element,
    encode_state,
    finish,
    plan_fold,
    run_block,
)
from vtrain.spec import merkle
from vtrain.spec.blake3_tree import compute_chunk_count, compute_chunk_opening
from vtrain.spec.commitment import compute_tensor_digest
from vtrain.spec.domains import GRAPH, SAMPLES, STATE_TREE, TERMS, TRACE
from vtrain.train.task import CompiledTask
from vtrain.wire import cbor, structs
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import Clocks
from vtrain.wire.graph import Attrs, Node, Ref, TensorType, encode_node
from vtrain.wire.record import StepRecord
from vtrain.wire.task import Windows

PATH = Path(__file__).with_name("statements.json")
CLOCKS = Clocks(
    join=1000, trace=1000, terms=1000, budget=1000, grace=100, answer=1, opening=1, replay=10
)
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in (1, 2)]
Array = npt.NDArray[Any]
Json = dict[str, Any]
Map = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """``element`` of the output of the node ``name`` is ``by`` too much in ``step``."""

    name: str
    step: int
    element: int = 0
    by: int = 1
    task: str = "mlp"
    batch: int = 8


CASES = {
    "matmul of one block": Case("logits/acc", 2, 11, by=2**20),
    "second block of a matmul": Case("h/acc/grad_b", 1, 700, by=2**20, task="wide", batch=40),
    "state in the first step": Case("param/w1", 3, 17),
    "state in a later step": Case("param/w1", 4, 17),
    "gather of samples": Case("x", 1, 21),
    "gather of tokens": Case("x", 1, 21, task="gpt"),
    "sum": Case("loss", 2),
    "momentum": Case("momentum/w1/next", 1, 3),
    "gradient of a maximum": Case("p/grad_in", 1, 30, by=2**14, task="cnn"),
    "digest of a tensor": Case("digest/param/w1", 2, 5),
    "state root": Case("state_root", 2, 31),
    "record": Case("record", 1),
}


MORE = {
    "state in the first step",
    "state in a later step",
    "gather of samples",
    "gradient of a maximum",
    "digest of a tensor",
}
"""Statements that are also refused for two faults, and for what a referee has no use for."""


class Liar(EngineProvider):
    """Defends a lie to the end: the last term of a sum takes the blame."""

    def __init__(self, task: CompiledTask, lies: Lies, by: int) -> None:
        super().__init__(task, LyingSession(task, lies))
        self._lies, self._by = lies, by

    def terms(self, step: int, node: int, element: int) -> ClaimTree:
        tree = super().terms(step, node, element)
        if (step, node) not in self._lies.nodes:
            return tree
        *states, last = (tree.leaf(index) for index in range(tree.size))
        total = int.from_bytes(last, "little", signed=True) + self._by
        return MerkleTree(TERMS, [*states, total.to_bytes(8, "little", signed=True)])


def play(task: CompiledTask, case: Case) -> tuple[bytes, Place]:
    """The one statement of a game between the law and a liar, and where the liar falls."""
    liar = Liar(task, make_lies(task, case), case.by)
    truth = EngineProvider(task, LyingSession(task, Lies()))
    log = liar.log()
    claim = Claim(bytes(32), public_key(KEYS[0]), task.task_id, log.size, log.root)
    genesis = make_genesis(
        task.spec,
        task.graph,
        sign_claim(claim, KEYS[0]),
        host=bytes(32),
        opened=0,
        clocks=CLOCKS,
        arity=4,
        nonce=bytes(32),
    )
    players, entries = [Player(liar, KEYS[0]), Player(truth, KEYS[1])], list[TimedMove]()
    game = start(genesis, task.graph)
    while not game.over:
        before = game
        for player in players:
            for signed in player.moves(game):
                try:
                    game = apply(game, signed, game.now)
                except MoveRefusedError:
                    continue  # the liar cannot open what is not so
                entries.append(TimedMove(game.now, signed))
        due = find_deadline(game)
        if game is before and due is not None:
            game = advance(game, due)
    (statement,) = find_statements(genesis, task.graph, entries)
    fall = game.logs[genesis.log_root].fall
    return statement, Place() if fall is None else fall.place


def compute_inputs(task: CompiledTask, place: Place) -> tuple[list[int], list[Array]]:
    """What the node of a place reads: nodes (of a state itself) and their true values."""
    session = LyingSession(task, Lies())
    session.load_state(task.initial_state)
    for _ in range(place.step - 1):
        session.step()
    node = task.graph.nodes[place.node]
    reads = [place.node] if node.op == "state" else [ref.node for ref in node.inputs]
    return reads, [session.evaluate(index) for index in reads]


def compute_ruling(task: CompiledTask, place: Place, statement: Map) -> Json:
    """What the law says, from the rules of vtrain/ops on the true values."""
    node, block = task.graph.nodes[place.node], statement["block"]
    reads, arrays = compute_inputs(task, place)
    types = tuple(task.graph.nodes[index].outputs[0] for index in reads)
    digests = [compute_tensor_digest(array) for array in arrays]
    samples = task.samples
    reader = ArrayReader(arrays, digests, samples.table, samples.spec.windows)
    fold = plan_fold(node, types)
    state = fold.init
    for done in range(block + 1):
        state = run_block(node, types, place.element, done, state, reader)
    after = (
        encode_state(state) if fold.blocks > 1 else encode_element(node, finish(node, types, state))
    )
    step = statement["position"] // len(task.graph.nodes)
    return {
        "after": after.hex(),
        "blocks": fold.blocks,
        "right": [int(claim == after) for claim in statement["claims"]],
        "what": f"node {node.name} ({node.op}) element {place.element} block {block} of "
        f"{fold.blocks} step {step}",
    }


def make_lies(task: CompiledTask, case: Case) -> Lies:
    """The lie of a case; that of a record is about its loss."""

    def false_loss(record: StepRecord) -> StepRecord:
        return replace(record, loss=record.loss + 1)

    if case.name == "record":
        return Lies(records={case.step: false_loss})
    node = next(i for i, node in enumerate(task.graph.nodes) if node.name == case.name)

    def lie(value: Array, before: Mapping[int, Array]) -> Array:
        false = value.copy()
        false.flat[case.element] += case.by
        return false

    return Lies({(case.step, node): lie})


def make_entry(name: str) -> Json:
    case = CASES[name]
    task = make_tiny_task(case.task, steps=5, commit_every=2, checkpoint_every=2, batch=case.batch)
    data, place = play(task, case)
    statement: Any = cbor.decode(data)
    ruling = compute_ruling(task, place, statement)
    swapped = {**statement, "claims": statement["claims"][::-1]}
    neither = {**statement, "claims": [b"", b""]}
    spare = find_spare(task, place, statement)
    faults = find_faults(statement)
    if name in ("state root", "record"):
        faults += find_unopened_pairs(statement)
    if name in MORE:
        faults += find_malformed(statement) + find_pairs(statement) + find_misplaced(statement)
    if name in MORE or name == "second block of a matmul":
        faults += find_spoiled_openings(statement, spare)
    refused = [(place, cbor.encode(changed)) for place, changed in faults]
    refused += [("byte 0", b""), (f"byte {len(data)}", data + b"\x00")]
    return {
        "name": name,
        "statement": data.hex(),
        "ruling": ruling,
        "also": [
            {**splice(data, cbor.encode(swapped)), "right": ruling["right"][::-1]},
            {**splice(data, cbor.encode(neither)), "right": [0, 0]},
        ],
        "refused": [{**splice(data, changed), "where": place} for place, changed in refused],
    }


def flip(data: bytes) -> bytes:
    """The lowest bit of the last byte changed."""
    return data[:-1] + bytes([data[-1] ^ 1])


def find_faults(good: Map) -> list[tuple[str, Map]]:
    """Statements with one fault each, and the part that a referee must name."""
    state = good["state_leaf"]
    faults = [
        ("node", {**good, "graph": {**good["graph"], "root": flip(good["graph"]["root"])}}),
        ("node", {**good, "position": good["position"] ^ 1}),
        ("position", {**good, "position": good["trace"]["size"]}),
        ("node", {**good, "node": {**good["node"], "data": flip(good["node"]["data"])}}),
        ("element", {**good, "element": 2**40}),
        ("block", {**good, "block": 2**20}),
        ("claims", {**good, "claims": [good["claims"][0], good["claims"][1] + b"\x00"]}),
        ("statement.more", {**good, "more": 0}),
        ("statement.element", {key: value for key, value in good.items() if key != "element"}),
        ("before", {**good, "before": b"" if good["block"] else bytes(8)}),
    ]
    if state:
        faults += [
            ("state_leaf", {**good, "base": flip(good["base"])}),
            ("base", {**good, "base": b""}),
            ("state_leaf", {**good, "state_leaf": {}}),
        ]
    else:
        faults.append(
            ("inputs[0]", {**good, "trace": {**good["trace"], "root": flip(good["trace"]["root"])}})
        )
    for i, opened in enumerate(good["inputs"]):
        # The digest of a state is bound by its leaf.
        place = "state_leaf" if state else f"inputs[{i}]"
        faults.append((place, put(good, "inputs", i, digest=flip(opened["digest"]))))
        for j, chunk in enumerate(opened["chunks"][:1]):
            false = [{**chunk, "chunk": flip(chunk["chunk"])}, *opened["chunks"][1:]]
            faults.append((f"inputs[{i}].chunks[{j}]", put(good, "inputs", i, chunks=false)))
            left = opened["chunks"][1:]
            faults.append((f"inputs[{i}]", put(good, "inputs", i, chunks=left)))
    for i, row in enumerate(good["rows"]):
        faults.append((f"rows[{i}]", put(good, "rows", i, row=flip(row["row"]))))
        faults.append(("rows", {**good, "rows": good["rows"][:i] + good["rows"][i + 1 :]}))
    return faults


@dataclass(frozen=True)
class Spare:
    """Openings that verify and that a block does not read: a chunk for each input that has one, and
    a sample where samples are rows."""

    chunks: dict[int, Map]
    row: Map


def find_spare(task: CompiledTask, place: Place, good: Map) -> Spare:
    """What else could be opened."""
    chunks: dict[int, Map] = {}
    for i, (opened, array) in enumerate(
        zip(good["inputs"], compute_inputs(task, place)[1], strict=True)
    ):
        data, there = array.tobytes(), {chunk["index"] for chunk in opened["chunks"]}
        free = [index for index in range(compute_chunk_count(len(data))) if index not in there]
        # In the middle of what is read, if that can be.
        between = [index for index in free if there and min(there) < index < max(there)]
        if free:
            found = compute_chunk_opening(data, (between or free)[0])
            chunks[i] = {"index": found.index, "chunk": found.chunk, "path": list(found.path)}
    table = task.samples.table
    if task.samples.spec.windows is not None:
        return Spare(chunks, {})
    rows = [row.tobytes() for row in table]
    there = {row["index"] for row in good["rows"]}
    index = next(index for index in reversed(range(len(rows))) if index not in there)
    proof = merkle.compute_inclusion_proof(SAMPLES, rows, index)
    return Spare(chunks, {"index": index, "row": rows[index], "path": list(proof.path)})


def find_malformed(good: Map) -> list[tuple[str, Map]]:
    """What is no statement: fields in the order in which a reader takes them, then unknown ones."""
    short = {**good["node"], "path": [bytes(31)]}
    full = [{"chunk": b"", "index": i, "path": []} for i in range(33)]

    def leave_out(*names: str, **more: object) -> Map:
        return {key: value for key, value in good.items() if key not in names} | more

    return [
        ("statement.graph", leave_out("graph", "element")),
        ("statement.element", leave_out("block", "element")),
        ("statement.trace", leave_out("trace", more=0)),
        ("statement.less", {**good, "more": 0, "less": 0}),
        ("statement.graph.root", {**good, "graph": {"root": bytes(31), "size": -1}}),
        ("statement.graph.size", {**good, "graph": {**good["graph"], "size": -1, "a": 0}}),
        ("statement.position", {**good, "position": -1}),
        ("statement.base", {**good, "base": bytes(31)}),
        ("statement.node.path", {**good, "node": short}),
        ("statement.inputs[0].more", put(good, "inputs", 0, more=0)),
        ("statement.inputs[0].chunks", put(good, "inputs", 0, chunks=full)),
        ("statement.state_leaf.leaf", {**good, "state_leaf": {"more": 0}}),
        ("statement.claims", {**good, "claims": [*good["claims"], b""]}),
        ("statement.claims", {**good, "claims": [good["claims"][0], 0]}),
        ("statement.node.path", {**good, "node": {**good["node"], "path": [0]}}),
    ]


def find_pairs(good: Map) -> list[tuple[str, Map]]:
    """Statements with two faults: the first in the order of a referee's checks is named."""
    bad_node = {**good["node"], "data": flip(good["node"]["data"])}
    bad_graph = {**good["graph"], "size": 0}
    fewer, more = good["inputs"][:-1], [*good["inputs"], good["inputs"][0]]
    first = good["inputs"][0]
    out = [
        ("graph", {**good, "graph": bad_graph, "position": good["trace"]["size"]}),
        ("position", {**good, "position": good["trace"]["size"], "node": bad_node}),
        ("node", {**good, "node": bad_node, "element": 2**40}),
        ("inputs", {**good, "inputs": fewer, "element": 2**40}),
        ("inputs", {**good, "inputs": more, "block": 2**20}),
        ("element", {**good, "element": 2**40, "block": 2**20}),
        ("block", {**good, "block": 2**20, "before": bytes(7)}),
        ("before", {**good, "before": bytes(7), "claims": [bytes(3), bytes(3)]}),
    ]
    if first["chunks"]:
        wrong = [{**first["chunks"][0], "chunk": b""}]
        spoiled = put(good, "inputs", 0, chunks=wrong)
        out.append(("claims", {**spoiled, "claims": [bytes(3), b""]}))
    if good["sources"]:
        sources = good["sources"]
        false = [{**sources[0], "data": flip(sources[0]["data"])}, *sources[1:]]
        out += [
            ("sources", {**good, "sources": sources[:-1], "inputs": []}),
            ("sources", {**good, "sources": [*false, sources[0]]}),
            ("sources[0]", {**good, "sources": false, "inputs": []}),
        ]
    return out


def find_unopened_pairs(good: Map) -> list[tuple[str, Map]]:
    """Two inputs after one another of which no chunk is opened: the first is named."""
    return [
        (f"inputs[{i}]", put(put(good, "inputs", i, chunks=[]), "inputs", i + 1, chunks=[]))
        for i in range(len(good["inputs"]) - 1)
    ]


def find_misplaced(good: Map) -> list[tuple[str, Map]]:
    """What a node like this one has no use for."""
    leaf = good["state_leaf"] or {"index": 0, "leaf": b"", "path": [], "size": 1}
    opened = good["inputs"][0]
    if good["state_leaf"]:
        return [
            ("sources", {**good, "sources": [good["node"]], "base": b""}),
            ("inputs", {**good, "inputs": [opened, opened], "base": b""}),
            ("inputs[0]", {**put(good, "inputs", 0, path=[bytes(32)]), "base": b""}),
            ("base", {**good, "base": b"", "state_leaf": {}}),
            ("source_index", {**good, "source_index": 1, "element": 2**40}),
        ]
    out = [("state_leaf", {**good, "state_leaf": leaf, "element": 2**40})]
    if good["source_index"]:
        out.append(("sources[0]", {**good, "source_index": good["source_index"] - 1}))
    else:
        both = {**good, "state_leaf": leaf, "source_index": 1}
        out += [("source_index", {**good, "source_index": 1, "element": 2**40})]
        out += [("state_leaf", both)]
    return out


def find_spoiled_openings(good: Map, spare: Spare) -> list[tuple[str, Map]]:
    """Openings out of order, false, missing and not read: in this order they are found."""
    out: list[tuple[str, Map]] = []
    rows = good["rows"]
    for i, opened in enumerate(good["inputs"][:2]):
        chunks = opened["chunks"]
        twice = [chunk for chunk in chunks[:1] for _ in range(2)]
        if twice:
            out.append((f"inputs[{i}].chunks", put(good, "inputs", i, chunks=twice)))
        if len(chunks) > 1:
            falling = [*chunks[::-1][:-1], {**chunks[0], "chunk": b""}]
            out.append((f"inputs[{i}].chunks", put(good, "inputs", i, chunks=falling)))
        if i in spare.chunks:
            found = sorted([*chunks, spare.chunks[i]], key=lambda chunk: int(chunk["index"]))
            at = found.index(spare.chunks[i])
            out.append((f"inputs[{i}].chunks[{at}]", put(good, "inputs", i, chunks=found)))
            alone = put(good, "inputs", i, chunks=[spare.chunks[i]])
            if chunks:
                out.append((f"inputs[{i}]", alone))
    if len(good["inputs"]) > 1:
        # The maximum of a window is looked for before its gradient is read.
        first = 1 if b"max_pool_grad" in good["node"]["data"] else 0
        none = put(put(good, "inputs", 0, chunks=[]), "inputs", 1, chunks=[])
        out.append((f"inputs[{first}]", none))
        chunk = good["inputs"][1]["chunks"][0]
        false = put(none, "inputs", 1, chunks=[{**chunk, "chunk": flip(chunk["chunk"])}])
        out.append(("inputs[1].chunks[0]", false))
    more = sorted([*rows, spare.row], key=lambda row: int(row["index"]))
    out.append((f"rows[{more.index(spare.row)}]", {**good, "rows": more}))
    out.append(("rows", {**good, "rows": [spare.row, spare.row]}))
    without = put(good, "inputs", 0, chunks=[])
    if good["inputs"][0]["chunks"]:
        out.append(("rows", {**without, "rows": [spare.row, spare.row]}))
        false = {**spare.row, "row": flip(spare.row["row"])}
        out.append(("rows[0]", {**without, "rows": [false]}))
        if len(good["inputs"]) == 1:
            out.append(("inputs[0]", {**without, "rows": [spare.row]}))
    if rows:
        out.append(("rows", {**good, "rows": [spare.row]}))
        out.append(("rows", {**good, "rows": more[::-1]}))
    return out


# --- graphs of three nodes: of which nodes have a rule, and what a referee does not look at

SMALL = TensorType("i32", (2,), 24, -(2**31) + 1, 2**31 - 1)
STATE, RESHAPE, NEXT_STATE = NODES = (
    Node(
        "state",
        "state",
        {"name": "w", "dtype": "i32", "shape": (2,), "exponent": 24},
        (),
        (SMALL,),
    ),
    Node("reshape", "reshape", {"shape": (2,)}, (Ref(0),), (SMALL,)),
    Node("next_state", "next_state", {"name": "w"}, (Ref(1),), (SMALL,)),
)
VALUES = np.array([3, 5], np.int32)
SAME = replace(SMALL, exponent=3, lo=0)
"""A type that a referee takes for the same: exponent and range are not looked at."""
OTHERS = {
    "shape": replace(SMALL, shape=(3,)),
    "axes": replace(SMALL, shape=(1, 2)),
    "dtype": replace(SMALL, dtype="i64"),
}


def claim(node: Node, *outputs: TensorType) -> Node:
    """The node with other types of its outputs."""
    return replace(node, outputs=outputs)


def state_about(position: int, changed: Mapping[int, Node | bytes] | None = None) -> Map:
    """A statement about element 1 of a node of the graph ``NODES``, some of them other ones, in a
    trace of two steps in which every node puts out ``VALUES``."""
    nodes = [(changed or {}).get(index, node) for index, node in enumerate(NODES)]
    leaves = [node if isinstance(node, bytes) else encode_node(node) for node in nodes]
    digest = compute_tensor_digest(VALUES)
    trace = [digest] * (2 * len(nodes))
    index, begin = position % len(nodes), position - position % len(nodes)
    given = nodes[index]
    node = NODES[index] if isinstance(given, bytes) else given
    first, later = (node.op == "state" and bool(begin) == is_later for is_later in (False, True))
    attrs: Map = {k: list(x) if isinstance(x, tuple) else x for k, x in node.attrs.items()}
    leaf = cbor.encode({**attrs, "digest": digest})
    sources = [] if first else [2] if later else [ref.node for ref in node.inputs]
    at = [begin - len(nodes) + 2] if later else [begin + source for source in sources]

    def open_leaf(domain: str, data: list[bytes], at: int) -> list[bytes]:
        return list(merkle.compute_inclusion_proof(domain, data, at).path)

    def open_node(index: int) -> Map:
        return {"data": leaves[index], "path": open_leaf(GRAPH, leaves, index)}

    chunks = [{"chunk": VALUES.tobytes(), "index": 0, "path": []}]
    return {
        "graph": {"root": merkle.compute_root(GRAPH, leaves), "size": len(leaves)},
        "trace": {"root": merkle.compute_root(TRACE, trace), "size": len(trace)},
        "samples": {"root": bytes(32), "size": 0},
        "position": position,
        "base": merkle.compute_root(STATE_TREE, [leaf]) if first else b"",
        "node": open_node(index),
        "sources": [open_node(source) for source in sources],
        "source_index": 2 if later else 0,
        "inputs": [
            {"digest": digest, "path": path, "chunks": chunks}
            for path in ([[]] if first else [open_leaf(TRACE, trace, place) for place in at])
        ],
        "state_leaf": {"index": 0, "size": 1, "leaf": leaf, "path": []} if first else {},
        "rows": [],
        "element": 1,
        "block": 0,
        "before": b"",
        "claims": [VALUES[1:].tobytes(), b""],
    }


def without(node: Node, name: str) -> Node:
    """The node without an attribute."""
    return replace(node, attrs={key: item for key, item in node.attrs.items() if key != name})


def with_attrs(node: Node, **attrs: Any) -> Node:
    """The node with other attributes."""
    return replace(node, attrs={**node.attrs, **attrs})


def find_first_state() -> tuple[list[Map], list[tuple[str, Map]]]:
    """A state in the first step: what is taken, and what is refused."""
    opened = state_about(0)["node"]
    wrong = [claim(STATE, kind) for kind in OTHERS.values()]
    wrong += [claim(STATE), claim(STATE, SMALL, SMALL), replace(STATE, inputs=(Ref(0),))]
    wrong.append(claim(with_attrs(STATE, shape=(0,)), replace(SMALL, shape=(0,))))
    refused = [("node", state_about(0, {0: node})) for node in wrong]
    refused.append(("node", state_about(0, {0: b"\xa0"})))
    large = state_about(0, {0: with_attrs(STATE, exponent=513)})
    bare = [state_about(0, {0: without(STATE, name)}) for name in STATE.attrs]
    refused += [("node", {**item, "sources": [opened]}) for item in (*bare, large)]
    three = state_about(0, {0: claim(STATE, OTHERS["shape"])})
    refused += [
        ("sources", {**three, "sources": [opened]}),
        ("state_leaf", {**three, "base": flip(three["base"])}),
        ("node", {**three, "source_index": 1, "element": 2}),
    ]
    return [state_about(0, {0: claim(STATE, SAME)})], refused


def find_reshape() -> tuple[list[Map], list[tuple[str, Map]]]:
    """A node that reads another in its step."""
    reads_later = replace(RESHAPE, inputs=(Ref(2),))
    empty = replace(SMALL, shape=(0,))
    wrong: list[dict[int, Node | bytes]] = [{1: claim(RESHAPE, kind)} for kind in OTHERS.values()]
    wrong += [
        {1: claim(RESHAPE)},
        {1: claim(RESHAPE, SMALL, SMALL)},
        {1: without(RESHAPE, "shape")},
        {1: replace(RESHAPE, op="nothing")},
        {1: replace(RESHAPE, inputs=(Ref(0, 1),))},
        {1: replace(RESHAPE, inputs=(Ref(1),))},
        {1: reads_later},
        {1: claim(with_attrs(RESHAPE, shape=(3,)), OTHERS["shape"])},
        {0: claim(STATE)},
        {0: claim(STATE, SMALL, SMALL)},
        {0: claim(STATE, OTHERS["shape"])},
        {0: claim(STATE, empty), 1: claim(with_attrs(RESHAPE, shape=(0,)), empty)},
        {1: b"\xa0"},
    ]
    refused = [("node", state_about(1, changed)) for changed in wrong]
    nothing = state_about(1, {1: replace(RESHAPE, op="nothing")})
    later = state_about(1, {1: reads_later})

    def spoil(good: Map) -> Map:
        return {**good, "sources": [{**good["sources"][0], "data": b""}]}

    refused += [
        ("sources[0]", state_about(1, {0: b"\xa0"})),
        ("sources", {**later, "sources": []}),
        ("node", spoil(later)),
        ("sources[0]", spoil(nothing)),
        ("node", {**nothing, "inputs": []}),
    ]
    also = [
        state_about(1, {0: claim(STATE, SAME)}),
        state_about(1, {1: claim(RESHAPE, SAME)}),
        state_about(1, {0: replace(STATE, attrs={}, inputs=(Ref(9), Ref(0, 7)))}),
    ]
    return also, refused


def find_next_state() -> tuple[list[Map], list[tuple[str, Map]]]:
    """What a state will be."""
    wrong = [claim(NEXT_STATE, kind) for kind in OTHERS.values()]
    wrong += [
        without(NEXT_STATE, "name"),
        with_attrs(NEXT_STATE, name=1),
        replace(NEXT_STATE, inputs=(Ref(1), Ref(0))),
        replace(NEXT_STATE, inputs=()),
    ]
    also = [state_about(2, {2: claim(NEXT_STATE, SAME)})]
    return also, [("node", state_about(2, {2: node})) for node in wrong]


def find_later_state() -> tuple[list[Map], list[tuple[str, Map]]]:
    """A state in the second step."""
    good = state_about(3)
    wrong: list[Node | bytes] = [claim(NEXT_STATE, kind) for kind in OTHERS.values()]
    wrong += [
        claim(NEXT_STATE),
        claim(NEXT_STATE, SMALL, SMALL),
        with_attrs(NEXT_STATE, name="v"),
        without(NEXT_STATE, "name"),
        replace(NEXT_STATE, op="reshape"),
        b"\xa0",
    ]
    refused = [("sources[0]", state_about(3, {2: node})) for node in wrong]
    three = state_about(3, {0: claim(STATE, OTHERS["shape"])})
    bare = [state_about(3, {0: without(STATE, name)}) for name in STATE.attrs]
    other = state_about(3, {2: with_attrs(NEXT_STATE, name="v")})
    refused += [("node", {**item, "sources": []}) for item in (three, *bare)]
    refused += [
        ("node", state_about(3, {0: replace(STATE, inputs=(Ref(0),))})),
        ("sources", {**good, "sources": []}),
        ("sources", {**good, "sources": good["sources"] * 2}),
        ("sources[0]", {**other, "inputs": []}),
        ("inputs", {**good, "inputs": []}),
        ("inputs", {**good, "inputs": good["inputs"] * 2}),
        ("sources[0]", {**good, "source_index": 0, "sources": [good["node"]]}),
    ]
    also = [
        state_about(3, {0: claim(STATE, SAME)}),
        state_about(3, {2: claim(NEXT_STATE, SAME)}),
        state_about(3, {2: with_attrs(NEXT_STATE, more=1)}),
        state_about(3, {2: replace(NEXT_STATE, inputs=(Ref(9), Ref(0, 7)))}),
    ]
    return also, refused


SMALL_CASES = {
    "first state of three nodes": (0, find_first_state),
    "reshape of three nodes": (1, find_reshape),
    "next state of three nodes": (2, find_next_state),
    "later state of three nodes": (3, find_later_state),
}


def make_small_entry(name: str) -> Json:
    """Every node puts its element out as it is."""
    position, find = SMALL_CASES[name]
    good = state_about(position)
    also, refused = find()
    data, node = cbor.encode(good), NODES[position % len(NODES)]
    ruling = {
        "after": good["claims"][0].hex(),
        "blocks": 1,
        "right": [1, 0],
        "what": f"node {node.name} ({node.op}) element 1 block 0 of 1 step {position // 3}",
    }
    return {
        "name": name,
        "statement": data.hex(),
        "ruling": ruling,
        "also": [{**splice(data, cbor.encode(item)), "right": [1, 0]} for item in also],
        "refused": [
            {**splice(data, cbor.encode(item)), "where": place}
            for place, item in [*find_faults(good), *refused]
        ],
    }


# --- graphs of two nodes: indices, and what is gathered by them from windows of tokens


@dataclass(frozen=True)
class Gather:
    """Element ``within`` of part ``part`` of the sample ``index``, gathered with others."""

    windows: Windows
    part: str
    index: int
    within: int


TOKENS = {
    "first token": Gather(Windows("u16", 1200, 6, 5, 1), "x", 0, 0),
    "last token before a chunk ends": Gather(Windows("u16", 1200, 6, 5, 1), "x", 102, 1),
    "first token of a chunk": Gather(Windows("u16", 1200, 6, 5, 1), "y", 102, 1),
    # 1196 + 4 tokens: the last label is the last token, in a chunk that ends early.
    "last token of the file": Gather(Windows("u16", 1200, 4, 1, 1), "y", 1195, 3),
    "token of four bytes": Gather(Windows("u32", 700, 6, 6, 2), "y", 80, 5),
    "token of eight bytes": Gather(Windows("u64", 400, 6, 6, 0), "x", 31, 3),
    "token of the only chunk": Gather(Windows("u16", 9, 4, 1, 0), "y", 2, 1),
    "token of no sample": Gather(Windows("u16", 1200, 6, 5, 1), "x", 239, 0),
    "token of a sample below zero": Gather(Windows("u16", 1200, 6, 5, 1), "y", -1, 5),
    "token beyond its window": Gather(Windows("u16", 1200, 6, 5, 1), "x", 3, 6),
    "token of a file without a window": Gather(Windows("u16", 3, 6, 1, 1), "x", 0, 0),
}
BEFORE_IT = 2
"""Samples that are gathered before the one in question."""


def make_token_file(windows: Windows) -> bytes:
    """Tokens of which all bytes count: ids such as no model has."""
    values = np.arange(1, windows.tokens + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (values >> np.uint64(64 - 8 * windows.width)).astype(f"<u{windows.width}").tobytes()


def open_tokens(data: bytes, index: int) -> Map:
    found = compute_chunk_opening(data, index)
    return {"index": found.index, "chunk": found.chunk, "path": list(found.path)}


def gather_about(gather: Gather) -> Map:
    """A statement about an element of gathered tokens; the first claim is what the law says."""
    windows, data = gather.windows, make_token_file(gather.windows)
    indices = np.array([0] * BEFORE_IT + [gather.index], np.int64)
    context = max(windows.context, gather.within + 1)  # a graph may say more than its task has
    kind = TensorType("i64", indices.shape, 0, 0, 2**40)
    out = TensorType("i32", (*indices.shape, context), 0, -(2**31), 2**31 - 1)
    attrs: Attrs = {"part": gather.part, "dtype": "i32", "shape": (context,), "exponent": 0}
    nodes = [
        Node("sample_index", "sample_index", {}, (), (kind,)),
        Node("part", "gather_samples", attrs, (Ref(0),), (out,)),
    ]
    graph = [encode_node(node) for node in nodes]
    trace = [compute_tensor_digest(indices), bytes(32)]
    at = gather.index * windows.stride + windows.shift * (gather.part == "y") + gather.within
    there = 0 <= gather.index < windows.count and gather.within < windows.context
    token = data[at * windows.width :][: windows.width] if there else bytes(4)
    value = int.from_bytes(token[:4].ljust(4, b"\0"), "little", signed=True)

    def open_node(index: int) -> Map:
        path = merkle.compute_inclusion_proof(GRAPH, graph, index).path
        return {"data": graph[index], "path": list(path)}

    path = list(merkle.compute_inclusion_proof(TRACE, trace, 0).path)
    chunk = {"chunk": indices.tobytes(), "index": 0, "path": []}
    return {
        "graph": {"root": merkle.compute_root(GRAPH, graph), "size": len(graph)},
        "trace": {"root": merkle.compute_root(TRACE, trace), "size": len(trace)},
        "samples": {"root": blake3(data).digest(), "size": windows.count},
        "windows": structs.to_value(windows),
        "position": 1,
        "base": b"",
        "node": open_node(1),
        "sources": [open_node(0)],
        "source_index": 0,
        "inputs": [{"digest": trace[0], "path": path, "chunks": [chunk]}],
        "state_leaf": {},
        "rows": [],
        "tokens": [open_tokens(data, at * windows.width // 1024)] if there else [],
        "element": BEFORE_IT * context + gather.within,
        "block": 0,
        "before": b"",
        "claims": [value.to_bytes(4, "little", signed=True), b"none"],
    }


def find_token_faults(gather: Gather, good: Map) -> list[tuple[str, Map]]:
    """What is opened of the tokens, and what is said of them, in other ways."""
    data = make_token_file(gather.windows)
    form, samples, opened = good["windows"], good["samples"], good["tokens"]
    if not samples["size"]:
        return [("windows", {**good, "samples": {**samples, "size": 1}})]
    chunks = compute_chunk_count(len(data))

    def said(**changed: object) -> Map:
        return {**good, "windows": {**form, **changed}}

    def leave_out(source: Map, name: str) -> Map:
        return {key: value for key, value in source.items() if key != name}

    row = {"index": 0, "row": b"", "path": []}
    fewer = {**good, "samples": {**samples, "size": samples["size"] - 1}}
    out = [
        ("windows", fewer),
        ("windows", said(stride=form["stride"] + 1)),
        ("windows", said(context=form["tokens"] + 1)),
        ("windows", {**fewer, "rows": [row]}),
        ("rows", {**good, "rows": [row]}),
        ("rows", {**good, "rows": [row], "tokens": opened * 2}),
        ("inputs[0].chunks", put(fewer, "inputs", 0, chunks=good["inputs"][0]["chunks"] * 2)),
        ("element", {**fewer, "element": 2**40}),
        ("statement.windows", {**good, "windows": []}),
        ("statement.windows.dtype", said(dtype="u8", tokens=0)),
        ("statement.windows.tokens", said(tokens=2**44 + 1, context=0)),
        ("statement.windows.tokens", said(tokens=0)),
        ("statement.windows.context", said(context=0, stride=0)),
        ("statement.windows.context", said(context=2**32 + 1)),
        ("statement.windows.stride", said(stride=0, shift=-1)),
        ("statement.windows.shift", said(shift=2**44 + 1)),
        ("statement.windows.shift", {**good, "windows": leave_out(form, "shift")}),
        ("statement.windows.more", said(more=0)),
        ("statement.samples.root", {**said(stride=0), "samples": {**samples, "root": b""}}),
        ("statement.windows.stride", {**said(stride=0), "node": {}}),
        ("statement.tokens", leave_out(good, "tokens")),
        ("statement.tokens", leave_out(good, "windows")),
        ("statement.element", {**leave_out(good, "windows"), "element": -1}),
        ("statement.tokens", {**good, "tokens": [row] * 33}),
        ("statement.rows", {**leave_out(good, "tokens"), "rows": 0}),
        ("statement.tokens", {**leave_out(good, "tokens"), "element": -1}),
    ]
    if not opened:
        spare = open_tokens(data, chunks - 1)
        return [*out, ("tokens[0]", {**good, "tokens": [spare]})]
    (one,) = opened
    wrong = [
        {**one, "chunk": flip(one["chunk"])},
        {**one, "chunk": one["chunk"][:-1]},
        {**one, "chunk": one["chunk"] + b"\0"},
        {**one, "chunk": b""},
        {**one, "path": [*one["path"], bytes(32)]},
        {**one, "index": one["index"] + 1},
        {**one, "index": chunks},
        {**one, "index": 2**64 - 1},
    ]
    for at, item in enumerate(one["path"]):
        wrong.append({**one, "path": [*one["path"][:at], flip(item), *one["path"][at + 1 :]]})
    if one["path"]:
        wrong += [
            {**one, "path": one["path"][:-1]},
            {**one, "path": [*one["path"][::-1], b"x" * 32]},
        ]
    out += [("tokens[0]", {**good, "tokens": [item]}) for item in wrong]
    root = flip(samples["root"])
    out += [
        ("tokens", {**good, "tokens": []}),
        ("tokens", {**good, "tokens": [one, one]}),
        ("tokens", {**good, "tokens": [wrong[0], wrong[0]]}),
        ("tokens[0]", {**good, "samples": {**samples, "root": root}}),
    ]
    others = [open_tokens(data, index) for index in range(chunks) if index != one["index"]][-1:]
    for spare in others:
        pair = sorted([one, spare], key=lambda item: int(item["index"]))
        out += [
            ("tokens", {**good, "tokens": [spare]}),
            ("tokens", {**good, "tokens": pair[::-1]}),
            (f"tokens[{pair.index(spare)}]", {**good, "tokens": pair}),
            ("tokens[0]", {**good, "tokens": [{**spare, "index": one["index"]}]}),
        ]
    return out


def make_token_entry(name: str) -> Json:
    gather = TOKENS[name]
    good = gather_about(gather)
    data, element = cbor.encode(good), good["element"]
    swapped = {**good, "claims": good["claims"][::-1]}
    ruling = {
        "after": good["claims"][0].hex(),
        "blocks": 1,
        "right": [1, 0],
        "what": f"node part (gather_samples) element {element} block 0 of 1 step 0",
    }
    refused = [*find_faults(good), *find_token_faults(gather, good)]
    return {
        "name": name,
        "statement": data.hex(),
        "ruling": ruling,
        "also": [{**splice(data, cbor.encode(swapped)), "right": [0, 1]}],
        "refused": [{**splice(data, cbor.encode(item)), "where": place} for place, item in refused],
    }


def put(good: Map, key: str, index: int, **changed: object) -> Map:
    """The map with fields of one item of a list changed."""
    items = [*good[key]]
    items[index] = {**items[index], **changed}
    return {**good, key: items}


def splice(data: bytes, changed: bytes) -> Json:
    """``changed`` as so many bytes of ``data``, other bytes, and so many from the end of it."""
    head = count_common(data, changed)
    rest, other = data[head:], changed[head:]
    tail = count_common(rest[::-1], other[::-1])
    return {"head": head, "middle": other[: len(other) - tail].hex(), "tail": tail}


def count_common(first: bytes, second: bytes) -> int:
    """Bytes that two strings begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(first), len(second)))


def format_file() -> str:
    """The file."""
    entries = [make_entry(name) for name in CASES]
    entries += [make_small_entry(name) for name in SMALL_CASES]
    entries += [make_token_entry(name) for name in TOKENS]
    return json.dumps(entries, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_compare(PATH, format_file(), __doc__))
