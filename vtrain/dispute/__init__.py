"""Disputes: two claims about one run, narrowed to one block of one operator and judged.

What a program needs that has a game played (docs/dispute.md) is importable from here; each name is
loaded when it is first asked for.  The client of a service is ``vtrain.dispute.client``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vtrain.dispute.arbiter import Arbiter
    from vtrain.dispute.background import Background
    from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
    from vtrain.dispute.genesis import make_bonds, make_clocks, make_genesis
    from vtrain.dispute.money import Settled, list_outcomes
    from vtrain.dispute.players import Player
    from vtrain.dispute.run_provider import defend, load_run, redo
    from vtrain.dispute.state import Game, Verdict, compute_game_id
    from vtrain.dispute.transcript import TimedMove, find_statements, replay
    from vtrain.wire.dispute import Bonds, Clocks, Genesis, SignedMove

__all__ = [
    "Arbiter",
    "Background",
    "Bonds",
    "Clocks",
    "Game",
    "Genesis",
    "Player",
    "Settled",
    "SignedMove",
    "TimedMove",
    "Verdict",
    "advance",
    "apply",
    "compute_game_id",
    "defend",
    "find_deadline",
    "find_statements",
    "find_verdict",
    "list_outcomes",
    "load_run",
    "make_bonds",
    "make_clocks",
    "make_genesis",
    "redo",
    "replay",
    "start",
]

_HOMES = {
    "vtrain.dispute.arbiter": {"Arbiter"},
    "vtrain.dispute.background": {"Background"},
    "vtrain.dispute.game": {"advance", "apply", "find_deadline", "find_verdict", "start"},
    "vtrain.dispute.genesis": {"make_bonds", "make_clocks", "make_genesis"},
    "vtrain.dispute.money": {"Settled", "list_outcomes"},
    "vtrain.dispute.players": {"Player"},
    "vtrain.dispute.run_provider": {"defend", "load_run", "redo"},
    "vtrain.dispute.state": {"Game", "Verdict", "compute_game_id"},
    "vtrain.dispute.transcript": {"TimedMove", "find_statements", "replay"},
    "vtrain.wire.dispute": {"Bonds", "Clocks", "Genesis", "SignedMove"},
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
