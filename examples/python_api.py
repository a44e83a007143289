"""The main job from Python: compile a task, train it, verify the run, catch a forgery.

Run it from the project's root:  .venv/bin/python examples/python_api.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import vtrain
from vtrain.attest.keys import generate_key

TASK = Path(__file__).parent / "mnist" / "tiny.toml"


def main() -> None:
    """Everything in a temporary folder; takes a few seconds."""
    task = vtrain.compile(TASK)
    print(f"task {task.task_id.hex()}: {len(task.graph.nodes)} nodes, {task.spec.steps} steps")
    with tempfile.TemporaryDirectory() as folder:
        generate_key(Path(folder) / "solver.pem")
        key = vtrain.load_key(Path(folder) / "solver.pem")
        run = vtrain.train(task, Path(folder) / "run", key=key)
        print(f"trained {run.steps} steps in {run.seconds:.1f} s, root {run.root.hex()}")

        report = vtrain.verify(run.path, samples=3, task_id=task.task_id)
        print(f"three stretches replayed: {report.verdict}")

        log = run.path / "log.bin"
        forged = bytearray(log.read_bytes())
        forged[-40] ^= 1
        log.write_bytes(forged)
        report = vtrain.verify(run.path, samples=3, task_id=task.task_id)
        reason = report.reason.detail if report.reason else ""
        print(f"one bit of the log flipped: {report.verdict}: {reason}")


if __name__ == "__main__":
    main()
