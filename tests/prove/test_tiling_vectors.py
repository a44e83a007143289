"""The rules of docs/tiling.md, as a program of their own: held to the vectors and to the code."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from tests.prove.tile_steps import make_graph
from tests.vectors import generate_tiling
from tests.vectors.tile_answer_rule import Auditor
from tests.vectors.tiling_rule import RefusedError, Rules, expand_challenge
from vtrain.errors import CircuitError
from vtrain.graph.legality import check_graph
from vtrain.ops import TABLE
from vtrain.ops.facets import Facet, find_reason
from vtrain.prove.tiles.circuits import linear_challenge
from vtrain.prove.tiles.emit import EMITTERS
from vtrain.prove.tiles.statements import LINEAR, OUTSIDE, StepFacts, Tile, TileContents
from vtrain.prove.tiles.tiling import Tiling
from vtrain.spec.field import SCALAR_FIELD
from vtrain.wire.graph import StepGraph, decode_graph
from vtrain.wire.proof import CIRCUIT_NAMES

FOLDER = Path(__file__).parent.parent / "vectors"
Json = Any


@cache
def read(name: str = "tiling.json") -> Json:
    return json.loads((FOLDER / name).read_text())


def read_graph(case: Json) -> StepGraph:
    data = case["graph"]
    if not isinstance(data, str):
        data = json.loads((FOLDER / data["file"]).read_text())["graph"]
    return decode_graph(bytes.fromhex(data))


def apply_edits(data: bytes, edits: Json) -> bytes:
    parts, start = [], 0
    for at, size, put in edits:
        parts += [data[start:at], bytes.fromhex(put)]
        start = at + size
    return b"".join([*parts, data[start:]])


CASES = {f"{case['about']}, {case['side']}": case for case in read()["cases"]}
REFUSED = {case["about"]: case for case in read()["refused"]}


@pytest.mark.parametrize("name", ["tiling", "tile_answers"])
def test_the_file_is_what_the_code_gives(name: str) -> None:
    command = [sys.executable, "-m", f"tests.vectors.generate_{name}", "--check"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=FOLDER.parent.parent
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", CASES)
def test_the_rules_give_the_vectors(name: str) -> None:
    case = CASES[name]
    graph = read_graph(case)
    for item in case["steps"]:
        rules = Rules(graph, case["side"], item["step"], int(case["loss"]))
        found = [[x.name, x.source, x.first, x.count] for x in rules.tensors]
        assert found == case["tensors"]
        assert rules.counts["trace"] == case["leaves"]
        assert len(rules.statements) == case["count"]
        digests = item["statements"]
        expected = [digests[at : at + 16] for at in range(0, len(digests), 16)]
        for statement, digest in zip(rules.statements, expected, strict=True):
            assert rules.digest(statement) == digest, statement.node
    for number, statement in case["full"].items():
        assert rules.describe(rules.statements[int(number)]) == statement
    assert {*map(str, rules.public)} == {*case["public"]}
    for number, digests in case["public"].items():
        for block, digest in enumerate(digests):
            tile = np.asarray(rules.public_tile(int(number), block), dtype="<i8")
            assert blake3(tile.tobytes()).hexdigest() == digest


@pytest.mark.parametrize("about", REFUSED)
def test_the_rules_refuse_what_the_code_refuses(about: str) -> None:
    case = REFUSED[about]
    graph = decode_graph(apply_edits(bytes.fromhex(read()["plain"]), case["edits"]))
    check_graph(graph)
    if case["refused"] is None:
        Tiling(graph)
        if "blocks of" not in about:  # far too many statements to make them all
            Rules(graph, 128, 1, 0)
        return
    with pytest.raises(CircuitError):
        Tiling(graph)
    with pytest.raises(RefusedError) as caught:
        Rules(graph, 128, 1, 0)
    assert str(caught.value) == case["refused"]


def test_vectors_have_every_operator_and_circuit() -> None:
    operators, circuits = set[str](), set[str]()
    for case in CASES.values():
        graph = read_graph(case)
        operators |= {node.op for node in graph.nodes}
        circuits |= Tiling(graph, case["side"]).circuits
    assert operators == {*EMITTERS} | OUTSIDE
    # Every other operator has a reason for having no statements.
    unproven = {op for op in TABLE if find_reason(op, Facet.TILES) is not None} - OUTSIDE
    assert operators == {*TABLE} - unproven
    assert circuits == {*CIRCUIT_NAMES["tiles"]}


def test_every_word_of_a_refusal_has_its_row_and_its_vector() -> None:
    page = (FOLDER.parent.parent / "docs" / "tiling.md").read_text()
    section = page.split("## 6.")[1].split("## 7.")[0]
    rows = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    assert rows == {case["refused"] for case in REFUSED.values()} - {None}


@pytest.mark.parametrize(
    ("kind", "side"),
    [
        *(("cnn", side) for side in (8, 128)),
        *(("pools", side) for side in (4, 8, 128)),
        ("tokens", 8),
        ("branches", 8),
        ("largest", 128),
        ("wide", 128),
        ("mnist", 128),
    ],
)
def test_the_rules_say_what_the_code_says(kind: str, side: int) -> None:
    """Of some statements; of all tensors."""
    graph, step, loss = make_graph(kind), 4, -5
    tiling, facts = Tiling(graph, side), StepFacts(step, loss)
    rules = Rules(graph, side, step, loss)
    assert [vars(tensor) for tensor in rules.tensors] == [
        {"name": x.name, "source": x.source, "first": x.first, "count": x.count}
        for x in tiling.tensors
    ]
    assert len(rules.statements) == len(tiling)
    random = np.random.default_rng(1)
    for index in random.permutation(len(tiling))[:200].tolist():
        expected = generate_tiling.describe(tiling, tiling.statement(index, facts))
        assert rules.describe(rules.statements[index]) == expected
    contents = TileContents(tiling, facts, {})
    for number in rules.public:
        for block in range(tiling.tensors[number].count):
            assert contents.tile(Tile(number, block)).tolist() == rules.public_tile(number, block)


def test_the_challenge_of_a_map_is_expanded_as_the_code_does() -> None:
    graph, side = make_graph("pools"), 8
    tiling, rules = Tiling(graph, side), Rules(graph, side, 1, 0)
    drawn = pow(7, 1234567, SCALAR_FIELD)
    seen = 0
    for index, statement in enumerate(rules.statements):
        if statement.circuit == LINEAR and index % 7 == 0:
            image = tiling.statement(index, StepFacts(1, 0)).linear
            assert image is not None
            expected = linear_challenge(side, drawn, image)
            assert expand_challenge(side, drawn, statement, SCALAR_FIELD) == expected
            seen += 1
    assert seen > 20


# --- answers

ANSWERS = {case["about"]: case for case in read("tile_answers.json")["cases"]}


@cache
def make_auditor() -> Auditor:
    return Auditor(read("tile_answers.json"))


@pytest.mark.parametrize("about", ANSWERS)
def test_the_rules_find_what_is_wrong_with_an_answer(about: str) -> None:
    honest, case = read("tile_answers.json")["honest"], ANSWERS[about]
    kept = [
        honest["proofs"][proof] if isinstance(proof, int) else proof
        for proof in case.get("proofs", honest["proofs"])
    ]
    found = make_auditor().find_fault({**honest, **case, "proofs": kept})
    assert found == (case["row"], case["statement"])


def test_every_row_about_an_answer_has_its_vector() -> None:
    assert {case["row"] for case in ANSWERS.values()} == {
        *("", "5", "9", "10", "11", "12"),
        *(f"13.{condition}" for condition in range(1, 6)),
    }
