"""The honest runs that are attacked, made once; and what a task file names."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives import serialization

import vtrain
from tests.audit.runs import KEY, make_smallest_task, read_kzg_leaves, read_leaves
from tests.cli.calls import write_task
from tests.kzg import add_kzg, make_key, make_kzg_task
from tests.tasks import make_tiny_task
from vtrain.commit.checkpoint import read_checkpoint
from vtrain.prove.backend.kzg import CommitKey
from vtrain.train.data import read_samples
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.signed import read_graph, read_task
from vtrain.train.task import CompiledTask


@dataclass(frozen=True)
class Base:
    """An honest run in ``run``; ``srs`` where it has KZG commitments, ``finished`` or not."""

    name: str
    run: Path
    srs: Path | None
    finished: bool

    @cached_property
    def leaves(self) -> list[bytes]:
        return read_leaves(self.run)

    @cached_property
    def kzg_leaves(self) -> list[bytes]:
        return read_kzg_leaves(self.run) if self.srs else []

    def load(self) -> CompiledTask:
        """The task of the run, put together from its files."""
        paths = RunPaths(self.run)
        spec = read_task(paths)
        graph = read_graph(paths, spec)
        samples = read_samples(paths.samples, spec.data)
        state = read_checkpoint(paths.checkpoint(0), graph)
        key = None
        if self.srs is not None and spec.proof is not None:
            key = CommitKey(self.srs, spec.proof.k, spec.proof.blinding)
        return CompiledTask(spec, graph, samples, state, paths.model.read_bytes(), "base", key)


def make_rng(*seed: object) -> random.Random:
    """One generator for each attempt: an attempt is repeated by its seed and number alone."""
    return random.Random(" ".join(map(str, seed)))  # noqa: S311 - attacks, not secrets


def write_key(path: Path) -> None:
    """The key that every base is signed with, as a file."""
    path.write_bytes(
        KEY.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def build(folder: Path) -> None:
    """Make all of it in ``folder``.  Uses engines: in a process that ends afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    write_key(folder / "key.pem")
    for name, length in (("task", 12), ("long", 4000)):
        (folder / name).mkdir()
        write_task(folder / name, length)
    srs = folder / "srs"
    make_key(srs)
    small = {"steps": 12, "checkpoint_every": 4, "samples": 10, "batch": 4}
    tasks: dict[str, tuple[CompiledTask, int | None]] = {
        "mlp": (make_tiny_task(commit_every=1, **small), None),
        "sparse": (make_tiny_task(commit_every=2, **small), None),
        "cnn": (make_tiny_task("cnn", commit_every=2, **small), None),
        "mse": (make_tiny_task(commit_every=4, loss="mse", **small), None),
        "smallest": (make_smallest_task(), None),
        "unfinished": (make_tiny_task(commit_every=1, **small), 8),
        "kzg": (make_kzg_task(srs), None),
        "kzg-seldom": (make_kzg_task(srs, every=3), None),
        "dense": (make_tiny_task(commit_every=1, **{**small, "checkpoint_every": 1}), None),
    }
    wide = make_tiny_task("wide", steps=2, commit_every=1, checkpoint_every=1)
    tasks["tiles"] = (add_kzg(wide, make_key(folder / "srs15", 15), circuit="tiles"), None)
    listed = {}
    for name, (task, steps) in tasks.items():
        train(task, folder / name / "run", key=KEY, steps=steps, threads=1)
        listed[name] = {"kzg": task.spec.kzg is not None, "finished": steps is None}
    cheat(folder / "false" / "run", tasks["mlp"][0])
    vtrain.train(folder / "task" / "task.toml", folder / "filed" / "run", key=KEY, steps=8)
    listed["filed"] = {"kzg": False, "finished": False}
    # The unfinished run, gone on with by the same solver.
    going = folder / "continued" / "run"
    shutil.copytree(folder / "unfinished" / "run", going)
    train(tasks["unfinished"][0], going, key=KEY, threads=1)
    (folder / "bases.json").write_text(json.dumps(listed))


def cheat(run: Path, task: CompiledTask) -> None:
    """A false run: one step was skipped."""
    from vtrain.demo.cheats import skip_step, train_falsely

    train_falsely(task, run, key=KEY, cheat=skip_step, step=7)


def list_bases(folder: Path) -> dict[str, Base]:
    """What :func:`build` has made."""
    listed = json.loads((folder / "bases.json").read_text())
    return {
        name: Base(name, folder / name / "run", find_srs(folder, name, it), it["finished"])
        for name, it in listed.items()
    }


def find_srs(folder: Path, name: str, listed: dict[str, bool]) -> Path | None:
    if not listed["kzg"]:
        return None
    return folder / ("srs15" if name == "tiles" else "srs")


def in_a_fork(work: Callable[[], None]) -> None:
    """Do ``work`` in a process that ends with it: no thread of an engine stays in this one."""
    from tests.attacks.campaign.watch import Child

    outcome = Child([], auditor=lambda _: work()).wait(limit=300)
    if outcome.code:
        raise RuntimeError(outcome.err.decode("utf-8", "replace"))
