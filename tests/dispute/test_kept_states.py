"""States that a player keeps: which, how far apart, and what becomes of damaged ones."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks import make_tiny_task
from vtrain.commit.checkpoint import compute_checkpoint_size
from vtrain.commit.state import compute_root_of_state
from vtrain.dispute.kept_states import (
    KeptStates,
    compute_keep_bytes,
    compute_replay_steps,
    compute_stride,
    count_states,
)
from vtrain.errors import RunError, StorageError

EVERY, STEPS = 5, 203
TASK = make_tiny_task(commit_every=EVERY)
FILE = 4096  # what a state of the task takes on disk
ROOT = compute_root_of_state(TASK.graph, TASK.initial_state)


def make_kept(limit: int = 100 * FILE, folder: Path | None = None, **more: Any) -> KeptStates:
    return KeptStates(TASK.graph, every=EVERY, steps=STEPS, limit=limit, folder=folder, **more)


def keep_all(kept: KeptStates) -> None:
    for step in range(1, STEPS + 1):
        kept.keep(step, TASK.initial_state)


def same(found: Any) -> bool:
    state = TASK.initial_state
    return set(found) == set(state) and all(np.array_equal(found[n], state[n]) for n in state)


# --- the plan


@given(
    steps=st.integers(1, 400),
    every=st.integers(1, 30),
    most=st.integers(0, 50),
    at=st.sets(st.integers(0, 400), max_size=5),
)
def test_the_stride_is_the_least_that_there_is_room_for(
    steps: int, every: int, most: int, at: set[int]
) -> None:
    def count_worst(stride: int) -> tuple[int, int]:
        """Straight from the words: states kept, and steps of the worst trace."""
        sources = {0} | {step for step in at if not step % every and step < steps}
        kept = set()
        for base in range(every, steps, every):
            source = max(step for step in sources if step <= base)
            if base not in sources and (base - source) // every % stride == 0:
                kept.add(base)
        known = sources | kept
        costs = []
        for step in range(1, steps + 1):
            base = (step - 1) // every * every
            costs.append(step - max(held for held in known if held <= base))
        return len(kept), max(costs)

    stride = compute_stride(steps, every, most, at)
    kept, worst = count_worst(stride)
    assert kept <= most
    assert stride == 1 or count_worst(stride - 1)[0] > most
    assert worst <= stride * every


@given(
    steps=st.integers(1, 10_000),
    every=st.integers(1, 500),
    size=st.integers(1, 100_000),
    wish=st.integers(1, 10_000),
)
def test_bytes_that_are_asked_for_are_enough(steps: int, every: int, size: int, wish: int) -> None:
    keep = compute_keep_bytes(steps, every, size, wish)
    if keep is None:
        assert wish < min(steps, every)
    else:
        assert compute_replay_steps(steps, every, size, keep) <= max(wish, every)
        if keep:
            assert compute_replay_steps(steps, every, size, keep - 1) > wish - every


def test_the_figures_of_a_run() -> None:
    assert compute_replay_steps(600, 20, 2_000) == 20
    assert compute_replay_steps(600, 20, 1 << 30, 4 << 30) == 160  # three states: 160, 320, 480
    assert compute_replay_steps(600, 20, 1 << 30, 0) == 600
    assert compute_replay_steps(3, 20, 1 << 30, 0) == 3
    assert count_states(1, 1 << 40) == 1 << 16


# --- what is kept


@pytest.mark.parametrize("room", [0, 1, 2, 3, 7, 39, 40, 41])
def test_states_are_spread_evenly_within_the_limit(room: int) -> None:
    kept = make_kept(room * FILE + FILE - 1)
    keep_all(kept)
    steps = [0, *kept.steps, STEPS]
    assert kept.held == len(kept.steps) * FILE <= room * FILE
    assert len({b - a for a, b in pairwise(steps[:-1])}) <= 1
    assert kept.worst_replay == max(b - a for a, b in pairwise(steps)) <= kept.stride * EVERY
    assert kept.worst_replay >= STEPS / (room + 1) - EVERY
    assert all(same(kept.find(step, ROOT)) for step in kept.steps)
    assert kept.find(3, ROOT) is None


def test_nothing_is_kept_beside_what_is_there_anyway() -> None:
    kept = make_kept(given=range(0, STEPS, 10))
    keep_all(kept)
    assert kept.steps == list(range(5, STEPS, 10))
    assert kept.worst_replay == EVERY
    crowded = make_kept(limit=4 * FILE, given=[150, 3])
    keep_all(crowded)
    assert len(crowded.steps) <= 4
    assert crowded.worst_replay == crowded.stride * EVERY == 40


def test_a_temporary_folder_goes_with_its_owner() -> None:
    kept = make_kept()
    keep_all(kept)
    folder = kept.make_folder()
    assert len(list(folder.iterdir())) == 40
    kept.close()
    assert not folder.exists()
    forgotten = make_kept()
    folder = forgotten.make_folder()
    del forgotten
    assert not folder.exists()


# --- damage


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "flipped":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "longer":
            path.write_bytes(data + b"\0")
        case "empty":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
        case "link":
            path.rename(path.with_name("elsewhere"))
            path.symlink_to("elsewhere")


@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "empty", "missing", "link"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, how: str) -> None:
    kept = make_kept(folder=tmp_path)
    keep_all(kept)
    assert kept.worst_replay == EVERY
    spoil(tmp_path / "state-000000000100.safetensors", how)
    assert kept.find(100, ROOT) is None
    assert kept.damaged == 1
    assert kept.worst_replay == 2 * EVERY
    assert kept.is_due(100)
    kept.keep(100, TASK.initial_state)
    assert same(kept.find(100, ROOT))
    assert kept.worst_replay == EVERY


def test_a_state_of_another_root_is_not_given(tmp_path: Path) -> None:
    kept = make_kept(folder=tmp_path)
    keep_all(kept)
    assert kept.find(100, bytes(32)) is None
    assert not (tmp_path / "state-000000000100.safetensors").exists()


def test_a_folder_is_taken_up_again_after_a_crash(tmp_path: Path) -> None:
    before = make_kept(folder=tmp_path)
    keep_all(before)
    before.close()
    names = sorted(path.name for path in tmp_path.glob("state-*"))
    assert len(names) == 40
    spoil(tmp_path / names[3], "cut")
    (tmp_path / f".{names[5]}.tmp").write_bytes(b"half")
    (tmp_path / ".tensors-000000000000.tmp").write_bytes(b"of a game before")
    after = make_kept(folder=tmp_path)
    assert not list(tmp_path.glob(".*.tmp"))
    assert after.steps == []  # nothing is believed before it is checked
    taken = [step for step in range(1, STEPS) if after.adopt(step, ROOT)]
    assert taken == [step for step in range(EVERY, STEPS, EVERY) if step != 20]
    assert after.worst_replay == 2 * EVERY


def test_what_a_smaller_limit_has_no_room_for_is_removed(tmp_path: Path) -> None:
    before = make_kept(folder=tmp_path)
    keep_all(before)
    before.close()
    after = make_kept(folder=tmp_path, limit=10 * FILE)
    assert len(list(tmp_path.glob("state-*"))) <= 10
    assert [step for step in range(1, STEPS) if after.adopt(step, ROOT)] == list(
        range(20, STEPS, 20)
    )


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    first = make_kept(folder=tmp_path)
    with pytest.raises(RunError, match="another player") as caught:
        make_kept(folder=tmp_path)
    assert caught.value.where == str(tmp_path)
    first.close()
    make_kept(folder=tmp_path).close()


# --- the disk


class Disk:
    """A disk with room for so many states: every write beyond that fails, having written a part."""

    def __init__(self, folder: Path, room: int, fault: int) -> None:
        self.folder, self.room, self.fault, self.write = folder, room, fault, os.write

    def __call__(self, handle: int, data: memoryview) -> int:
        if len(list(self.folder.glob("state-*"))) < self.room:
            return self.write(handle, data)
        self.write(handle, data[: len(data) // 2])
        raise OSError(self.fault, os.strerror(self.fault))


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("room", [0, 1, 6, 39])
def test_a_full_disk_thins_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, fault: int
) -> None:
    kept = make_kept(folder=tmp_path)
    monkeypatch.setattr(os, "write", Disk(tmp_path, room, fault))
    keep_all(kept)
    assert len(kept.steps) <= room
    assert kept.steps == list(range(kept.stride * EVERY, STEPS, kept.stride * EVERY))
    # At worst twice as far apart as there would have been room for.
    assert kept.worst_replay <= 2 * EVERY * -(-41 // (room + 1))
    assert not list(tmp_path.glob(".*.tmp"))
    assert all(same(kept.find(step, ROOT)) for step in kept.steps)


def test_a_disk_that_fails_otherwise_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = make_kept(folder=tmp_path)
    monkeypatch.setattr(os, "write", Disk(tmp_path, 2, errno.EIO))
    with pytest.raises(StorageError, match=os.strerror(errno.EIO)):
        keep_all(kept)
    assert kept.steps == [5, 10]
    assert all(same(kept.find(step, ROOT)) for step in kept.steps)


def test_the_size_that_is_counted_is_the_one_on_disk() -> None:
    assert compute_checkpoint_size(TASK.graph) <= FILE
