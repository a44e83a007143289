"""What committing costs: hashing the whole state every step, every tenth, and BLAKE3's own speed.

Predicted before measuring: the state of the MLP is 5.4 MB; at 10 GB/s on two cores that is 0.5 ms,
some 10 % of torch's step when every step is committed and 1 % when every tenth is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _harness as harness
import numpy as np
import torch
from _models import EXAMPLES, compile_variant, load_make_models, make_torch_model

from vtrain import _core
from vtrain.engines.base import Session
from vtrain.engines.registry import open_session
from vtrain.train.task import load_task

THREADS = 2
BATCH = 128
STEPS = 1_000_000
EVERY = {1: 0.20, 10: 0.02}
"""Steps between commitments -> largest share of torch's step that they may cost."""
BUFFER_BYTES = 1 << 28


def open_wide(commit_every: int) -> Session:
    """A session on the MLP 784-512-512-10 at batch 128 that commits so often (0: never)."""
    model = load_make_models().make_model("wide", 0)
    every = commit_every or STEPS
    changes = {"batch": BATCH, "steps": STEPS, "commit_every": every, "checkpoint_every": every}
    file = load_task(EXAMPLES / "mlp.toml")
    _, task = compile_variant(file, model, calibration_steps=5, **changes)
    session = open_session("cpu", task.graph, task.samples, threads=THREADS)
    session.load_state(task.initial_state)
    return session


class TorchStep:
    """One eager fp32 SGD step of the same network on a fixed batch."""

    def __init__(self) -> None:
        self._network = make_torch_model(load_make_models().make_model("wide", 0))
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01, momentum=0.9)
        self._x = torch.rand(BATCH, 784)
        self._y = torch.randint(0, 10, (BATCH,))

    def __call__(self) -> None:
        self._optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self._network(self._x), self._y)
        loss.backward()
        self._optimizer.step()


def measure_commitments(rounds: int) -> dict[str, Any]:
    """Seconds a step, round by round in turn: torch, exact without and with commitments.

    Each round times ten steps of each side, so that every tenth commitment counts once, after ten
    that are not timed: torch's threads spin for a while after its step and would slow whoever is
    next.
    """
    torch_step = TorchStep()
    plain = open_wide(0)
    committing = {every: open_wide(every) for every in EVERY}
    sides: dict[str, Callable[[], object]] = {"torch": torch_step, "plain": plain.step}
    sides |= {f"every {every}": session.step for every, session in committing.items()}
    for work in sides.values():
        harness.time_once(work, 10)
    times: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for _ in range(rounds):
        names.append(names.pop(0))
        for name in names:
            harness.time_once(sides[name], 10)
            times[name].append(harness.time_once(sides[name], 10))
    figures: dict[str, Any] = {
        f"{name}, seconds a step": harness.spread(values) for name, values in times.items()
    }
    for every in EVERY:
        shares = [
            (with_commitments - without) / theirs
            for with_commitments, without, theirs in zip(
                times[f"every {every}"], times["plain"], times["torch"], strict=True
            )
        ]
        figures[f"every {every}, share of torch's step"] = harness.spread(shares)
    return figures


def measure_hashing(seconds: float) -> dict[str, Any]:
    """BLAKE3 of 256 MiB against reading the same memory once (the sum of its 64-bit words) and
    against copying it."""
    buffer = np.random.default_rng(0).integers(0, 256, BUFFER_BYTES, dtype=np.uint8)
    words = torch.from_numpy(buffer.view(np.int64))
    torch.set_num_threads(THREADS)
    target = torch.empty_like(words)
    figures: dict[str, Any] = {}
    for name, theirs in (("reading", words.sum), ("copying", lambda: target.copy_(words))):
        result = harness.compare(
            lambda: _core.tensor_digest(buffer, THREADS), theirs, seconds=seconds
        )
        figures["blake3, GB/s"] = BUFFER_BYTES / result["ours"]["median"] / 1e9
        figures[f"{name} memory, GB/s"] = BUFFER_BYTES / result["theirs"]["median"] / 1e9
        figures[f"blake3 time over {name} time"] = result["ratio"]
    return figures


def measure(quick: bool) -> harness.Result:
    """Both; ``quick`` takes fewer rounds."""
    torch.set_num_threads(THREADS)
    figures = measure_commitments(20 if quick else 100)
    figures |= measure_hashing(2.0 if quick else 6.0)
    targets = {
        f"committing every {every} steps, share of torch's step": harness.at_most(
            figures[f"every {every}, share of torch's step"]["median"], limit
        )
        for every, limit in EVERY.items()
    }
    return harness.Result(figures, targets)


if __name__ == "__main__":
    harness.main("commit", measure)
