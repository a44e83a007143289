"""Three deliveries on a small market: believed, wrongly challenged, and false.

Run it from the project's root:  .venv/bin/python examples/marketplace/three_deliveries.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from market import Escrow, play

import vtrain
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import public_key
from vtrain.demo.lies import Lies, LyingSession, add_one
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.players import Player
from vtrain.engines.registry import open_session
from vtrain.train.task import CompiledTask
from vtrain.wire.claim import Claim

TASK = Path(__file__).parents[1] / "mnist" / "tiny.toml"
STEPS = (10, 11, 12)


def make_claim(task: CompiledTask, false_step: int = 0) -> EngineProvider:
    """The true claim about a task, or one with a weight altered by one unit in some step."""
    if not false_step:
        return EngineProvider(task, open_session("auto", task.graph, task.samples))
    update = next(i for i, node in enumerate(task.graph.nodes) if node.op == "sgd_update")
    return EngineProvider(task, LyingSession(task, Lies({(false_step, update): add_one(5)})))


KEYS = {
    name: Ed25519PrivateKey.generate() for name in ("client", "solver", "alice", "mallory", "trudy")
}


def deliver(
    escrow: Escrow, task: CompiledTask, provider: EngineProvider, others: dict[str, EngineProvider]
) -> None:
    """The solver delivers the claim of ``provider``; ``others`` bond theirs; the money moves."""
    key = KEYS["solver"]
    escrow.post(task.task_id, public_key(KEYS["client"]), public_key(key))
    log = provider.log()
    claim = Claim(task.task_id, public_key(key), task.task_id, log.size, log.root)
    genesis = make_genesis(task.spec, task.graph, sign_claim(claim, key), opened=0)
    players = [Player(provider, key)]
    players += [Player(other, KEYS[name]) for name, other in others.items()]
    game = play(escrow, genesis, players)
    fall = game.tournaments[0].entries[0].fall
    outcome = "stands" if fall is None else f"fell: {fall.reason} at {fall.place.describe()}"
    print(f"   the solver's claim {outcome} ({game.moves} moves, {len(game.matches)} matches)")
    show(escrow)


def show(escrow: Escrow) -> None:
    """The ledger; money is neither made nor lost."""
    accounts = {name: escrow.accounts[public_key(key)] for name, key in KEYS.items()}
    accounts |= {"escrow": escrow.held, "burned": escrow.burned}
    total = sum(accounts.values())
    print("   " + "  ".join(f"{name} {amount}" for name, amount in accounts.items()))
    print(f"   in all {total}")


def main() -> None:
    """Three deliveries: believed, wrongly challenged, and false."""
    compiled = vtrain.compile(TASK)
    believed, attacked, false = (
        replace(compiled, spec=replace(compiled.spec, steps=steps)) for steps in STEPS
    )
    escrow = Escrow({public_key(key): 500 for key in KEYS.values()})
    print("Everybody begins with 500.")
    show(escrow)
    print("1. An honest run that nobody challenges: the solver is paid.")
    deliver(escrow, believed, make_claim(believed), {})
    print("2. An honest run that two attack, with a false claim each: they pay for it.")
    liars = {"mallory": make_claim(attacked, 3), "trudy": make_claim(attacked, 8)}
    deliver(escrow, attacked, make_claim(attacked), liars)
    print(
        "3. A false run, backed by trudy and challenged by alice: the client gets its money back."
    )
    cheat = make_claim(false, 7)
    deliver(escrow, false, cheat, {"alice": make_claim(false), "trudy": cheat})


if __name__ == "__main__":
    main()
