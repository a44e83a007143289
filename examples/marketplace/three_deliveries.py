"""Three deliveries on a small market: believed, wrongly challenged, and false.

Run it from the project's root:  .venv/bin/python examples/marketplace/three_deliveries.py
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from market import Escrow

import vtrain
from vtrain.attest.claims import generate_run_id, sign_claim
from vtrain.attest.keys import public_key
from vtrain.demo.lies import Lies, LyingSession, add_one
from vtrain.dispute import Arbiter, Game, Player
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.problems import BondRefusedError
from vtrain.engines.registry import open_session
from vtrain.errors import MoveRefusedError
from vtrain.train.task import CompiledTask
from vtrain.wire.claim import Claim, SignedClaim

TASK = Path(__file__).parents[1] / "mnist" / "tiny.toml"
STEPS = (10, 11, 12)


class SimulatedClock:
    """The time of this example, in milliseconds; a real market leaves the clock to the arbiter."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def play(arbiter: Arbiter, clock: SimulatedClock, game: bytes, players: Sequence[Player]) -> Game:
    """A game to its settlement, in a simulation of time: each move takes a millisecond.

    A real market calls ``submit`` when a move arrives, and ``tick`` again after as long as it says.
    """
    while (wait := arbiter.tick()) is not None:
        before = arbiter.game(game)
        for signed in [signed for player in players for signed in player.moves(before)]:
            clock.now += 1
            with suppress(MoveRefusedError, BondRefusedError):  # too late, or without money
                arbiter.submit(signed)
        if arbiter.game(game).moves == before.moves:
            clock.now += wait  # nobody moves: time goes on
    return arbiter.game(game)


def make_provider(task: CompiledTask, false_step: int = 0) -> EngineProvider:
    """The true claim about a task, or one with a weight altered by one unit in some step."""
    if not false_step:
        return EngineProvider(task, open_session("auto", task.graph, task.samples))
    update = next(i for i, node in enumerate(task.graph.nodes) if node.op == "sgd_update")
    return EngineProvider(task, LyingSession(task, Lies({(false_step, update): add_one(5)})))


def sign(task: CompiledTask, provider: EngineProvider, key: Ed25519PrivateKey) -> SignedClaim:
    """What a solver signs when its run is done."""
    log = provider.log()
    claim = Claim(generate_run_id(), public_key(key), task.task_id, log.size, log.root)
    return sign_claim(claim, key)


KEYS = {
    name: Ed25519PrivateKey.generate()
    for name in ("client", "solver", "alice", "mallory", "trudy", "host")
}


class Story:
    """A market with its arbiter, and what happens on it."""

    def __init__(self) -> None:
        self.escrow = Escrow({public_key(KEYS[name]): 500 for name in KEYS if name != "host"})
        self.clock = SimulatedClock()
        self.arbiter = Arbiter(KEYS["host"], self.escrow, self.clock)

    def deliver(
        self, task: CompiledTask, provider: EngineProvider, others: dict[str, EngineProvider]
    ) -> None:
        """The solver delivers the claim of ``provider``; ``others`` bond theirs; money moves."""
        key = KEYS["solver"]
        self.escrow.post(task.task_id, public_key(KEYS["client"]), public_key(key))
        game = self.escrow.deliver(self.arbiter, task, sign(task, provider, key))
        players = [Player(provider, key)]
        players += [Player(other, KEYS[name]) for name, other in others.items()]
        end = play(self.arbiter, self.clock, game, players)
        fall = end.logs[end.genesis.log_root].fall
        outcome = "stands" if fall is None else f"fell: {fall.reason} at {fall.place.describe()}"
        print(f"   the solver's claim {outcome} ({end.moves} moves, {len(end.logs)} claims)")
        self.show()

    def show(self) -> None:
        """The ledger; money is neither made nor lost."""
        accounts = {
            name: self.escrow.accounts[public_key(key)]
            for name, key in KEYS.items()
            if name != "host"
        }
        accounts |= {"escrow": self.escrow.held, "burned": self.escrow.burned}
        print("   " + "  ".join(f"{name} {amount}" for name, amount in accounts.items()))
        print(f"   in all {sum(accounts.values())}")


def main() -> None:
    """Three deliveries: believed, wrongly challenged, and false."""
    compiled = vtrain.compile(TASK)
    believed, attacked, false = (
        replace(compiled, spec=replace(compiled.spec, steps=steps)) for steps in STEPS
    )
    story = Story()
    print("Everybody begins with 500.")
    story.show()
    print("1. An honest run that nobody challenges: the solver is paid.")
    story.deliver(believed, make_provider(believed), {})
    print("2. An honest run that two attack, with a false claim each: they pay for it.")
    liars = {"mallory": make_provider(attacked, 3), "trudy": make_provider(attacked, 8)}
    story.deliver(attacked, make_provider(attacked), liars)
    print(
        "3. A false run, backed by trudy and challenged by alice: the client gets its money back."
    )
    cheat = make_provider(false, 7)
    story.deliver(false, cheat, {"alice": make_provider(false), "trudy": cheat})


if __name__ == "__main__":
    main()
