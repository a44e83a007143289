"""States that a player keeps, so that no trace starts far back: on disk, bounded, thinned evenly.

A trace of a step begins at the last commitment before it.  Whoever holds the state there does the
commitment interval again and no more; whoever holds none trains from wherever a state is left.  The
size of a state and the steps of the run are known before the first one is kept, so that the plan is
made at once: the states at every ``stride``-th commitment, counted from each state that is held
anyway, with the least stride whose states are within the limit.  Nothing is ever written that must
make room later, but on a disk that turns out full: the stride doubles then.

Files are checkpoints (``vtrain.commit.checkpoint``), named by their step.  None is trusted: its
root is the one that the log has at this step, or the file is as good as none.
"""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from vtrain.commit.checkpoint import (
    State,
    checkpoint_chunks,
    compute_checkpoint_size,
    read_checkpoint,
)
from vtrain.commit.files import refuse_link, remove_temporaries, storing, write_atomic
from vtrain.commit.state import compute_root_of_state
from vtrain.errors import StorageError, VtrainError
from vtrain.train.lock import hold_lock
from vtrain.wire.graph import StepGraph

DEFAULT_KEEP_BYTES: Final = 4 << 30
DEFAULT_MEMORY_BYTES: Final = 1 << 28
MOST_STATES: Final = 1 << 16
"""Files in one folder."""
_BLOCK: Final = 4096
"""Bytes that a file system takes at a time."""
_STATE: Final = re.compile(r"state-([0-9]{12})\.safetensors")


@dataclass(frozen=True)
class Keep:
    """What a player may keep: ``keep_bytes`` on disk, three quarters of them for states and one for
    tensors, and ``memory_bytes`` of tensors and their trees in memory, beside the inputs of the one
    node that is being opened.

    ``folder`` is made if need be and stays; by default it is a temporary one, removed at the end.
    """

    keep_bytes: int = DEFAULT_KEEP_BYTES
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    folder: Path | None = None

    @property
    def state_bytes(self) -> int:
        """Of states, on disk."""
        return self.keep_bytes - self.tensor_bytes

    @property
    def tensor_bytes(self) -> int:
        """Of tensors, on disk."""
        return self.keep_bytes // 4


DEFAULT_KEEP: Final = Keep()


# --- the plan: pure


def compute_replay_steps(
    steps: int, commit_every: int, state_bytes: int, keep_bytes: int = DEFAULT_KEEP_BYTES
) -> int:
    """Steps that a trace of any step of a run takes at most, for who keeps ``keep_bytes`` of it.

    The run has ``steps`` steps and commits to its state, ``state_bytes`` long as a checkpoint
    (``vtrain.commit.checkpoint.compute_checkpoint_size``), every ``commit_every`` steps.  Times
    the time of a traced step it is what clocks must allow for a replay.
    """
    most = count_states(state_bytes, Keep(keep_bytes).state_bytes)
    return min(steps, commit_every * compute_stride(steps, commit_every, most))


def compute_keep_bytes(
    steps: int, commit_every: int, state_bytes: int, replay_steps: int, given: Collection[int] = ()
) -> int | None:
    """Inverse of :func:`compute_replay_steps`: the least ``keep_bytes`` (in bytes, on disk) with
    which no trace takes more than ``replay_steps``; None when a commitment interval takes more, or
    more than MOST_STATES states would be needed.

    ``given`` are the steps of states that are held anyway.
    """
    if replay_steps < min(steps, commit_every):
        return None
    gaps = _list_gaps(steps, commit_every, given)
    states = _count_kept(gaps, max(1, replay_steps // commit_every))
    if states > MOST_STATES:
        return None
    needed = states * _round_up(state_bytes)
    return (needed - 1) * 4 // 3 + 1 if needed else 0  # the least with so much for states


def count_states(state_bytes: int, limit: int) -> int:
    """States of so many bytes each that take no more than ``limit`` bytes on disk."""
    return min(MOST_STATES, limit // _round_up(state_bytes))


def compute_stride(steps: int, commit_every: int, most: int, given: Collection[int] = ()) -> int:
    """The least n such that keeping every n-th commitment takes at most ``most`` states.

    Counted from each of the steps ``given``, whose states are held anyway, and step 0.  No trace
    takes more than n * ``commit_every`` steps then.
    """
    gaps = _list_gaps(steps, commit_every, given)
    low, high = 1, max(gaps)  # of the largest gap nothing would be kept
    while low < high:
        middle = (low + high) // 2
        if _count_kept(gaps, middle) <= most:
            high = middle
        else:
            low = middle + 1
    return low


def _round_up(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _find_sources(steps: int, commit_every: int, given: Collection[int]) -> list[int]:
    """Commitments, numbered from 0, whose states are held anyway; a trace may start there."""
    usable = {step // commit_every for step in given if not step % commit_every and step < steps}
    return sorted({0} | usable)


def _list_gaps(steps: int, commit_every: int, given: Collection[int]) -> list[int]:
    """From each source to the next one, and from the last one to the end, in intervals."""
    end = max(1, -(-steps // commit_every))
    return [b - a for a, b in pairwise([*_find_sources(steps, commit_every, given), end])]


def _count_kept(gaps: Collection[int], stride: int) -> int:
    return sum((gap - 1) // stride for gap in gaps)


# --- the files


class KeptStates:
    """States of one run of ``steps`` steps, by the number of steps done, within ``limit`` bytes.

    ``every`` is the task's ``commit_every``; ``given`` are the steps of states that the caller has
    elsewhere.  ``folder`` is held by a lock; None makes a temporary one when it is first needed.
    RunError when another player holds it, StorageError when it cannot be used.
    """

    def __init__(
        self,
        graph: StepGraph,
        *,
        every: int,
        steps: int,
        limit: int,
        folder: Path | None = None,
        given: Collection[int] = (),
    ) -> None:
        self._graph, self._every, self._steps = graph, every, steps
        self._sources = _find_sources(steps, every, given)
        self._size = compute_checkpoint_size(graph)
        self._given = given
        self._stride = compute_stride(steps, every, count_states(self._size, limit), given)
        self._kept: set[int] = set()
        self._found: set[int] = set()
        self._folder = folder
        self._stack = ExitStack()
        # Whoever forgets to close leaves nothing behind all the same.
        self._finalizer = weakref.finalize(self, self._stack.close)
        self.damaged = 0
        """Files that were not what was kept."""
        if folder is not None:
            self._take(folder)

    @property
    def stride(self) -> int:
        """Every so many-th commitment is kept."""
        return self._stride

    @property
    def steps(self) -> list[int]:
        """Steps whose states are kept, ascending."""
        return sorted(self._kept)

    @property
    def held(self) -> int:
        """Bytes of all files, as the disk has them."""
        return len(self._kept) * _round_up(self._size)

    @property
    def worst_replay(self) -> int:
        """Steps that a trace of any step takes at most, from what is kept now."""
        known = sorted({0, self._steps} | self._kept | {at * self._every for at in self._sources})
        return max((b - a for a, b in pairwise(known)), default=0)

    def compute_bytes_for(self, replay_steps: int) -> int | None:
        """``keep_bytes`` with which no trace takes more than so many steps, if any do."""
        return compute_keep_bytes(
            self._steps, self._every, self._size, replay_steps, given=self._given
        )

    def holds(self, step: int) -> bool:
        """Is the state after ``step`` steps kept?"""
        return step in self._kept

    def is_due(self, step: int) -> bool:
        """Is the state after ``step`` steps one that is to be kept, and not kept yet?"""
        return step not in self._kept and self._is_planned(step)

    def keep(self, step: int, state: State) -> None:
        """Keep the state after ``step`` steps, if it is due.

        A full disk halves what is kept; StorageError for what else fails in writing.
        """
        while self.is_due(step):
            try:
                # Not durable: what a crash damages is found by its root, and done again.
                chunks = checkpoint_chunks(self._graph, state)
                write_atomic(self._path(step), chunks, durable=False)
            except StorageError as error:
                if not is_full(error):
                    raise
                self._thin()
            else:
                self._kept.add(step)

    def find(self, step: int, root: bytes) -> dict[str, npt.NDArray[Any]] | None:
        """The state after ``step`` steps, which has this state root (32 bytes).

        None when it is not kept; a file that is not of that root is removed, and counted.
        """
        if step not in self._kept:
            return None
        state = self._read(step, root)
        if state is None:
            self.damaged += 1
            self._drop(step)
        return state

    def adopt(self, step: int, root: bytes) -> bool:
        """Keep what the folder had for ``step`` when it was opened, if it is due and of this root;
        is the state kept now?"""
        if step in self._found and self.is_due(step):
            self._found.discard(step)
            if self._read(step, root) is not None:
                self._kept.add(step)
        return step in self._kept

    def make_folder(self) -> Path:
        """The folder, made if it is not there yet; StorageError when it cannot be."""
        if self._folder is None:
            # To ask for the place of temporary folders fails where there is none to write in.
            with storing(Path("temporary folder")):
                self._folder = Path(tempfile.mkdtemp(prefix="vtrain-kept-"))
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def close(self) -> None:
        """Release the folder; a temporary one is removed."""
        self._kept.clear()
        self._finalizer()

    def _take(self, folder: Path) -> None:
        """Hold the folder, and see what is in it from before."""
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        refuse_link(folder)
        refusal = "another player keeps its states in this folder: name another one"
        self._stack.enter_context(hold_lock(folder / ".lock", refusal))
        remove_temporaries(folder)
        with storing(folder):
            names = [_STATE.fullmatch(path.name) for path in folder.iterdir()]
        for step in (int(name[1]) for name in names if name):
            if self._is_planned(step):
                self._found.add(step)
            else:
                self._drop(step)

    def _read(self, step: int, root: bytes) -> dict[str, npt.NDArray[Any]] | None:
        try:
            state = read_checkpoint(self._path(step), self._graph, root=self._folder)
        except VtrainError:
            return None
        return state if compute_root_of_state(self._graph, state) == root else None

    def _thin(self) -> None:
        """Keep every second one of what would be kept."""
        self._stride *= 2
        for step in [*self._kept, *self._found]:
            if not self._is_planned(step):
                self._drop(step)

    def _drop(self, step: int) -> None:
        self._kept.discard(step)
        self._found.discard(step)
        # What cannot be removed is in the way of nothing but the disk.
        with suppress(OSError):
            self._path(step).unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self.make_folder() / f"state-{step:012d}.safetensors"

    def _is_planned(self, step: int) -> bool:
        number, rest = divmod(step, self._every)
        if rest or not 0 < step < self._steps:
            return False
        source = self._sources[bisect_right(self._sources, number) - 1]
        return number > source and (number - source) % self._stride == 0


def is_full(error: StorageError) -> bool:
    """Did a write fail for want of room?"""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
    )
