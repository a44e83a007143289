"""What a process does that trains, for tests that kill it.

It tells: "ready", then the number of each step done, at last "done ROOT" (that of the KZG log
where there is one) or "error CODE".
"""

from __future__ import annotations

import resource
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.kzg import add_kzg, make_key
from tests.tasks import make_tiny_task
from vtrain.errors import VtrainError
from vtrain.train.runner import train


def work(orders: dict[str, Any], told: Connection) -> None:
    """Train, and hold after each step until told to go on if the orders say so."""

    def say(*words: object) -> None:
        told.send(" ".join(map(str, words)))

    task = make_tiny_task(**orders["task"])
    if "srs" in orders:
        task = add_kzg(task, make_key(Path(orders["srs"])))

    def report(done: int, steps: int, loss: float, rate: float) -> None:
        say(done)
        if orders.get("hold"):  # until whoever started this process has seen enough
            told.recv()

    if "file_limit" in orders:
        resource.setrlimit(resource.RLIMIT_FSIZE, (orders["file_limit"],) * 2)
    say("ready")
    try:
        summary = train(
            task,
            Path(orders["out"]),
            key=Ed25519PrivateKey.from_private_bytes(bytes(range(32))),
            engine=orders["engine"],
            threads=1,
            progress=report,
        )
    except VtrainError as error:
        say("error", error.code, error)
        raise SystemExit(1) from None
    say("done", (summary.kzg_root or summary.root).hex())
