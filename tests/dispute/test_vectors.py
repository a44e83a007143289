"""The vectors of disputes: what the spec gives, and what the Rust core makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vtrain import _core
from vtrain.attest.keys import verify_signature
from vtrain.dispute.game import compute_move_digest
from vtrain.dispute.money import Settled, compute_outcomes_digest
from vtrain.dispute.state import (
    Dispute,
    Place,
    Verdict,
    compute_dispute_id,
    compute_fact_id,
    compute_game_id,
    compute_group_id,
    compute_side_id,
)
from vtrain.spec import frontier
from vtrain.wire import structs
from vtrain.wire.dispute import Genesis, SignedMove, decode_move, encode_move
from vtrain.wire.task import Windows

FOLDER = Path(__file__).parent.parent / "vectors"
VECTORS: dict[str, Any] = json.loads((FOLDER / "dispute.json").read_text())


def test_the_file_is_what_the_spec_gives() -> None:
    command = [sys.executable, str(FOLDER / "generate_dispute.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def to_bytes(items: list[str]) -> list[bytes]:
    return [bytes.fromhex(item) for item in items]


def test_the_genesis() -> None:
    genesis = structs.decode(Genesis, bytes.fromhex(VECTORS["genesis"]), "genesis")
    assert compute_game_id(genesis).hex() == VECTORS["game_id"]
    assert structs.encode(genesis).hex() == VECTORS["genesis"]
    other_host = replace(genesis, host=b"H" * 32)
    assert compute_game_id(other_host).hex() != VECTORS["game_id"]


def test_the_genesis_of_windows() -> None:
    case = VECTORS["windowed"]
    genesis = structs.decode(Genesis, bytes.fromhex(case["genesis"]), "genesis")
    assert genesis.windows == Windows(dtype="u16", tokens=304, context=4, stride=5, shift=1)
    assert genesis.windows.count == genesis.samples
    assert compute_game_id(genesis).hex() == case["game_id"]
    assert structs.encode(genesis).hex() == case["genesis"]
    assert structs.encode(replace(genesis, windows=None)).hex() == VECTORS["genesis"]


def test_the_outcomes_and_the_verdict() -> None:
    settled = structs.decode(Settled, bytes.fromhex(VECTORS["settled"]), "settled")
    verdict = structs.decode(Verdict, bytes.fromhex(VECTORS["verdict"]), "verdict")
    assert structs.encode(settled).hex() == VECTORS["settled"]
    assert structs.encode(verdict).hex() == VECTORS["verdict"]
    assert verdict.outcomes == compute_outcomes_digest(settled)
    assert verdict.bonds == len(settled.outcomes)
    assert verdict.game.hex() == VECTORS["game_id"]


def test_ids_name_the_content() -> None:
    game = bytes.fromhex(VECTORS["game_id"])
    for case in VECTORS["groups"]:
        assert compute_group_id(game, case["round"], to_bytes(case["roots"])).hex() == case["id"]
    for case in VECTORS["disputes"]:
        above, agreed = bytes.fromhex(case["above"]), to_bytes(case["agreed"])
        found = compute_dispute_id(above, case["tree"], case["start"], case["end"], agreed)
        assert found.hex() == case["id"]
    for case in VECTORS["sides"]:
        assert compute_side_id(*to_bytes([case["dispute"], case["value"]])).hex() == case["id"]
    for case in VECTORS["facts"]:
        dispute = Dispute(
            id=b"",
            contest=b"",
            tree=case["tree"],
            size=case["size"],
            length=case["length"],
            start=case["start"],
            end=case["end"],
            leaf="",
            place=Place(),
        )
        assert compute_fact_id(dispute, bytes.fromhex(case["hash"])).hex() == case["id"]
    kinds = ("groups", "disputes", "sides", "facts")
    ids = [case["id"] for kind in kinds for case in VECTORS[kind]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("case", VECTORS["moves"], ids=lambda case: case["name"])
def test_a_move(case: dict[str, str]) -> None:
    signed = structs.decode(SignedMove, bytes.fromhex(case["encoding"]), "move")
    assert structs.encode(signed).hex() == case["encoding"]
    assert signed.game.hex() == VECTORS["game_id"]
    assert signed.move.hex() == case["move"]
    assert signed.about.hex() == case["about"]
    assert encode_move(decode_move(signed.move)) == signed.move
    assert compute_move_digest(signed).hex() == case["digest"]
    verify_signature(signed.party, bytes.fromhex(case["digest"]), signed.signature)


@pytest.mark.parametrize("case", VECTORS["frontiers"])
def test_a_frontier(case: dict[str, Any]) -> None:
    items = [bytes.fromhex(item) for item in case["items"]]
    span = (case["start"], case["end"], case["depth"])
    assert [list(pair) for pair in frontier.compute_ranges(*span)] == case["ranges"]
    assert frontier.fold_frontier(case["domain"], *span, items).hex() == case["hash"]
    assert _core.fold_frontier(case["domain"], *span, items).hex() == case["hash"]


@pytest.mark.parametrize("case", VECTORS["chunk_frontiers"])
def test_a_frontier_of_chunks(case: dict[str, Any]) -> None:
    content = bytes(i % 251 for i in range(case["length"]))
    tree = _core.ChunkTree(content)
    items = [bytes.fromhex(item) for item in case["items"]]
    span = (case["start"], case["end"], case["depth"])
    whole = span[:2] == (0, tree.chunks)
    assert tree.frontier(*span) == items
    assert frontier.fold_chunk_frontier(*span, items, whole).hex() == case["hash"]
    assert _core.fold_chunk_frontier(tree.chunks, *span, items, whole).hex() == case["hash"]
    if whole:
        assert tree.digest.hex() == case["hash"]
