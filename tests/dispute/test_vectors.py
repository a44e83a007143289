"""The vectors of disputes: what the spec gives, and what the Rust core makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vtrain import _core
from vtrain.attest.keys import verify_signature
from vtrain.dispute.game import compute_move_digest
from vtrain.dispute.state import Game, compute_game_id, compute_position
from vtrain.spec import frontier
from vtrain.wire import structs
from vtrain.wire.dispute import Genesis, SignedMove, decode_move, encode_move

FOLDER = Path(__file__).parent.parent / "vectors"
VECTORS: dict[str, Any] = json.loads((FOLDER / "dispute.json").read_text())


def test_the_file_is_what_the_spec_gives() -> None:
    command = [sys.executable, str(FOLDER / "generate_dispute.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_genesis_and_the_state() -> None:
    genesis = structs.decode(Genesis, bytes.fromhex(VECTORS["genesis"]), "genesis")
    assert compute_game_id(genesis).hex() == VECTORS["game_id"]
    game = structs.decode(Game, bytes.fromhex(VECTORS["state"]), "game")
    assert game.genesis == genesis
    assert structs.encode(game).hex() == VECTORS["state"]


@pytest.mark.parametrize("case", VECTORS["moves"], ids=lambda case: case["name"])
def test_a_move(case: dict[str, str]) -> None:
    signed = structs.decode(SignedMove, bytes.fromhex(case["encoding"]), "move")
    assert signed.move.hex() == case["move"]
    assert signed.position.hex() == case["position"]
    move = decode_move(signed.move)
    assert encode_move(move) == signed.move
    assert compute_move_digest(signed).hex() == case["digest"]
    verify_signature(signed.party, bytes.fromhex(case["digest"]), signed.signature)
    if case["name"] in {"reveal", "opening"}:
        game = structs.decode(Game, bytes.fromhex(VECTORS["state"]), "game")
        assert compute_position(game, move) == signed.position


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
