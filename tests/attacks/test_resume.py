"""An honest solver's directory is damaged before it goes on: what it then signs must be true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.audit.runs import KEY, read_leaves
from vtrain.audit.verify import verify
from vtrain.commit.log import LOG_HEADER
from vtrain.errors import VtrainError
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
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
