"""Legality held to the vectors: what is refused, of nodes and of graphs, and where."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vtrain import _core
from vtrain.audit.structure import FindingError, _check_fields
from vtrain.errors import VtrainError
from vtrain.graph import legality
from vtrain.graph.legality import check_graph, check_node
from vtrain.ops import TABLE
from vtrain.ops.leaf import plan_fold
from vtrain.spec.commitment import compute_graph_root
from vtrain.wire.graph import Node, StepGraph, TensorType, decode_graph, decode_node, encode_node
from vtrain.wire.task import decode_task

Json = Any
FOLDER = Path(__file__).parent.parent / "vectors"


@cache
def read(name: str) -> Json:
    return json.loads((FOLDER / name).read_text())


@pytest.mark.parametrize("name", ["refused", "graphs"])
def test_files_are_what_the_rules_give(name: str) -> None:
    command = [sys.executable, "-m", f"tests.vectors.generate_{name}", "--check"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=FOLDER.parent.parent
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- nodes


def read_types(content: Json) -> list[TensorType]:
    return [
        TensorType(x["dtype"], tuple(x["shape"]), x["exponent"], int(x["lo"]), int(x["hi"]))
        for x in content
    ]


def splice(data: bytes, change: Json) -> bytes:
    middle = bytes.fromhex(change["middle"])
    return data[: change["head"]] + middle + data[len(data) - change["tail"] :]


Applied = tuple[Node, list[TensorType]]


def list_nodes(op: str) -> Iterator[tuple[Applied, list[tuple[str, Applied]]]]:
    """Legal nodes, and near each those that are not, with the reason."""
    for item in read("refused.json")[op]:
        data, types = bytes.fromhex(item["node"]), read_types(item["inputs"])
        refused = []
        for change in item["refused"]:
            others = read_types(change["inputs"]) if "inputs" in change else types
            node = decode_node(splice(data, change), len(others))
            refused.append((change["why"], (node, others)))
        yield (decode_node(data, len(types)), types), refused


def test_every_operator_refuses_something() -> None:
    assert set(read("refused.json")) == set(TABLE)


@pytest.mark.parametrize("op", TABLE)
def test_nodes_that_are_not_legal(op: str) -> None:
    for legal, others in list_nodes(op):
        check_node(*legal)
        for why, refused in others:
            with pytest.raises(VtrainError) as caught:
                check_node(*refused)
            assert caught.value.where == f"node n ({op})"
            assert why in caught.value.message or "derived is" in caught.value.message


@pytest.mark.parametrize("op", TABLE)
def test_rust_plans_what_is_legal_and_fails_cleanly_else(op: str) -> None:
    """Its engines and its referee ask for attributes, dtypes and shapes; ranges are the auditor's.

    They refuse each node that lacks an attribute, and each of an exponent that is none.
    """
    for (node, types), others in list_nodes(op):
        if 0 < len(types) < 5:
            fold = plan_fold(node, types)
            found = _core.leaf_fold(encode_node(node), list_sources(types))
            assert found == (fold.terms, fold.block_length, fold.width)
        for why, (false, false_types) in others:
            try:
                _core.leaf_fold(encode_node(false), list_sources(false_types))
            except (VtrainError, ValueError):
                continue
            assert node.attrs.keys() <= false.attrs.keys(), why
            assert not re.match(r"attribute (multiplier_)?exponent must be", why), why


def list_sources(types: Sequence[TensorType]) -> list[bytes]:
    return [encode_node(Node("input", "input", {}, (), (tensor,))) for tensor in types]


# --- graphs and tasks


def edit(data: bytes, edits: Json) -> bytes:
    out, at = b"", 0
    for start, cut, other in edits:
        out += data[at:start] + bytes.fromhex(other)
        at = start + cut
    return out + data[at:]


def find_place(graph: StepGraph) -> str | None:
    try:
        check_graph(graph)
    except VtrainError as error:
        return error.where
    return None


def read_graph(case: Json) -> StepGraph:
    return decode_graph(edit(bytes.fromhex(read("graphs.json")["graph"]), case["edits"]))


@pytest.mark.parametrize("case", read("graphs.json")["cases"], ids=lambda case: case["about"])
def test_graphs(case: Json) -> None:
    assert find_place(read_graph(case)) == case["place"]


def test_the_legal_graph_has_this_root() -> None:
    content = read("graphs.json")
    assert compute_graph_root(read_graph({"edits": []})).hex() == content["root"]


@pytest.mark.parametrize("case", read("graphs.json")["tasks"], ids=lambda case: case["about"])
def test_tasks(case: Json) -> None:
    task = decode_task(edit(bytes.fromhex(read("graphs.json")["task"]), case["edits"]))
    place = None
    try:
        _check_fields(task, read_graph({"edits": []}))
    except FindingError as error:
        place = error.where
    assert place == case["place"]


def test_the_number_of_nodes() -> None:
    for case in read("graphs.json")["repeated"]:
        node = decode_node(bytes.fromhex(case["node"]), 0)
        assert find_place(StepGraph((node,) * case["times"])) == case["place"]


RULES = ["_check_states", "_check_counter", "_check_batch", "_check_state_root", "_check_softmax"]


@pytest.mark.parametrize("rule", [*RULES, "_check_node", "check_node"])
def test_a_rule_left_out_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legality, rule, lambda *arguments: None)
    seen = 0
    for case in read("graphs.json")["cases"]:
        try:
            seen += find_place(read_graph(case)) != case["place"]
        except (LookupError, TypeError, ValueError):  # a later rule relies on this one
            seen += 1
    assert seen >= 3


def test_a_claim_that_nobody_compares_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    require = legality._require

    def lax(condition: bool, message: str, node: Node) -> None:
        require(condition or "derived is" in message, message, node)

    monkeypatch.setattr(legality, "_require", lax)
    for op in TABLE:
        passed = 0
        for _, others in list_nodes(op):
            for _, refused in others:
                try:
                    check_node(*refused)
                    passed += 1
                except VtrainError:
                    continue
        assert passed >= 7
