"""An honest solver's directory is damaged before it goes on: what it then signs must be true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from tests.audit.runs import KEY, read_leaves, write_leaves
from vtrain.audit.pin import make_pin
from vtrain.audit.verify import verify
from vtrain.commit.checkpoint import checkpoint_chunks, read_checkpoint
from vtrain.commit.files import write_atomic
from vtrain.commit.log import LOG_HEADER
from vtrain.commit.state import compute_root_of_state
from vtrain.errors import EncodingError, VtrainError
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.signed import read_claim
from vtrain.train.task import CompiledTask
from vtrain.wire.record import decode_record, encode_record


def change_log(run: Path, drop: int) -> None:
    """Another loss in the record of step 2, and the last ``drop`` records lost."""
    leaves = read_leaves(run)
    record = decode_record(leaves[1])
    leaves[1] = encode_record(replace(record, loss=record.loss + 1))
    kept = leaves[: len(leaves) - drop]
    framed = b"".join(len(leaf).to_bytes(4, "little") + leaf for leaf in kept)
    RunPaths(run).log.write_bytes(LOG_HEADER + framed)


def change_record(run: Path) -> None:
    change_log(run, 0)


def change_record_and_cut(run: Path) -> None:
    change_log(run, 1)


def change_record_and_lose_manifest(run: Path) -> None:
    change_log(run, 0)
    RunPaths(run).manifest.unlink()


def lose_checkpoint(run: Path) -> None:
    RunPaths(run).checkpoint(4).unlink()


def cut_checkpoint(run: Path) -> None:
    RunPaths(run).checkpoint(4).write_bytes(b"")


def change_checkpoint(run: Path) -> None:
    """Of the same size, and not the newest: nothing but its bytes tells."""
    path = RunPaths(run).checkpoint(4)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        change_record,
        change_record_and_cut,
        change_record_and_lose_manifest,
        lose_checkpoint,
        cut_checkpoint,
        change_checkpoint,
    ],
)
def test_no_damage_makes_an_honest_solver_sign_what_is_false(
    tmp_path: Path, task: CompiledTask, damage: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    train(task, run, key=KEY, steps=8)
    damage(run)
    try:
        train(task, run, key=KEY)
    except VtrainError:
        return
    assert verify(run, all_=True, task_id=task.task_id).verdict == "verified"


def forge_last_state(run: Path, task: CompiledTask) -> None:
    """One element of the last checkpoint is another, and log and manifest are made to fit: by
    somebody who can write to the folder, and has no key."""
    paths = RunPaths(run)
    last = paths.checkpoint(paths.list_checkpoints()[-1])
    state = dict(read_checkpoint(last, task.graph))
    name = next(name for name in state if name.startswith("param/"))
    state[name] = state[name].copy()
    state[name].flat[0] += 1
    write_atomic(last, checkpoint_chunks(task.graph, state))
    leaves = read_leaves(run)
    root = compute_root_of_state(task.graph, state)
    leaves[-1] = encode_record(replace(decode_record(leaves[-1]), state_root=root))
    write_leaves(run, leaves)


@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_made_to_fit_does_not_make_its_solver_contradict_itself(
    tmp_path: Path, task: CompiledTask, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Its own claim tells, also where the process that went on was killed after it had put the
    claim aside.  Without that the solver signed, and both its claims together were fraud."""
    run = tmp_path / "run"
    train(task, run, key=KEY, steps=8)
    earlier = make_pin(read_claim(RunPaths(run)))
    if killed:
        with monkeypatch.context() as patched:
            patched.setattr(import_module("vtrain.train.runner"), "_advance", interrupt)
            with pytest.raises(KeyboardInterrupt):
                train(task, run, key=KEY)
        assert not RunPaths(run).claim.exists()
    forge_last_state(run, task)
    with pytest.raises(EncodingError, match="that you signed: it was altered since"):
        train(task, run, key=KEY)
    for path in (RunPaths(run).log, RunPaths(run).manifest, *(run / "checkpoints").iterdir()):
        path.unlink()
    train(task, run, key=KEY)
    assert verify(run, all_=True)
    reason = verify(run, pin=earlier).reason
    assert reason is not None
    assert (reason.fault, "went on from that one" in reason.detail) == ("nobody", True)
    assert not RunPaths(run).earlier_claim.exists()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
