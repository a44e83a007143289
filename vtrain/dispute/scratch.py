"""Arrays that may be asked for again: in memory as far as a bound goes, then on disk, then nowhere.

Everything here can be computed again, so that nothing here is ever waited for, missed or trusted:
what is read back is held against the digest of what was written.  All of it may be used by several
threads at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from vtrain.commit.digest import compute_tensor_digests
from vtrain.commit.files import open_file, write_atomic
from vtrain.errors import StorageError, VtrainError

Array = npt.NDArray[Any]
V = TypeVar("V")


class Recent(Generic[V]):
    """The values used last, of at most ``limit`` bytes together.

    ``drop`` is told of each value that has to go.  With ``always`` the last one stays, whatever its
    size.
    """

    def __init__(
        self,
        limit: int,
        drop: Callable[[Hashable, V], None] = lambda key, value: None,
        *,
        always: bool = False,
    ) -> None:
        self._limit, self._drop, self._always = limit, drop, always
        self._lock = threading.RLock()
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self.held = 0
        """Bytes of all values."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable) -> V | None:
        """The value, if it is there."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def peek(self, key: Hashable) -> V | None:
        """The value, if it is there; that does not count as using it."""
        with self._lock:
            return self._values[key][0] if key in self._values else None

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Hold a value of ``size`` bytes; one of more than the limit is dropped at once."""
        with self._lock:
            self.remove(key)
            if size > self._limit and not self._always:
                self._drop(key, value)
                return
            self.make_room(size)
            self._values[key] = value, size
            self.held += size

    def make_room(self, size: int) -> None:
        """Drop the values used longest ago until ``size`` bytes more are within the limit."""
        with self._lock:
            while self._values and self.held + size > self._limit:
                oldest = next(iter(self._values))
                self._drop(oldest, self.remove(oldest))

    def remove(self, key: Hashable) -> Any:
        """Hold a value no more; it, or None."""
        with self._lock:
            value, size = self._values.pop(key, (None, 0))
            self.held -= size
            return value


@dataclass(frozen=True)
class _Spilled:
    """Arrays in a file: types and shapes, digests (32 bytes each) and bytes."""

    path: Path
    types: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    digests: tuple[bytes, ...]
    size: int


class Scratch:
    """Lists of arrays by key: ``memory_bytes`` of them in memory, and ``disk_bytes`` of those that
    there was no room for in files of the folder that ``make_folder`` gives.

    Arrays put in are not copied: they must not be written to.
    """

    def __init__(self, make_folder: Callable[[], Path], memory_bytes: int, disk_bytes: int) -> None:
        self._make_folder = make_folder
        self._disk_bytes = disk_bytes
        self._memory: Recent[list[Array]] = Recent(memory_bytes, self._spill)
        self._disk: Recent[_Spilled] = Recent(disk_bytes, self._unlink)
        self._count = 0
        self._lock = threading.RLock()
        self.capacity = max(memory_bytes, disk_bytes)
        """Bytes that are surely all there after they were put in one after the other."""

    @property
    def memory_held(self) -> int:
        """Bytes in memory."""
        return self._memory.held

    @property
    def disk_held(self) -> int:
        """Bytes on disk."""
        return self._disk.held

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._memory or key in self._disk

    def put(self, key: Hashable, arrays: Sequence[Array]) -> None:
        """Hold ``arrays`` under ``key``, as long as there is room, instead of what was there."""
        with self._lock:
            spilled = self._disk.remove(key)
            if spilled is not None:
                self._unlink(key, spilled)
            self._memory.put(key, list(arrays), sum(array.nbytes for array in arrays))

    def get(self, key: Hashable) -> list[Array] | None:
        """The arrays under ``key``; None when there are none, or the disk did not keep them."""
        with self._lock:
            arrays = self._memory.get(key)
            if arrays is not None:
                return arrays
            # What was asked for is no more likely to be asked for again than what was not yet: what
            # was written first goes first.
            spilled = self._disk.peek(key)
            if spilled is None:
                return None
            try:
                arrays = _read(spilled)
            except VtrainError:
                self._unlink(key, self._disk.remove(key))
                return None
            self._memory.put(key, arrays, spilled.size)
            return arrays

    def _spill(self, key: Hashable, arrays: list[Array]) -> None:
        size = sum(array.nbytes for array in arrays)
        if key in self._disk or size > self._disk_bytes:
            return
        self._disk.make_room(size)
        contents = [np.ascontiguousarray(array) for array in arrays]
        try:
            # Named as what is left of an interrupted write: the folder's next owner removes it.
            path = self._make_folder() / f".tensors-{self._count:012d}.tmp"
            self._count += 1
            write_atomic(path, contents, durable=False)
        except StorageError:
            return  # a full disk, perhaps: it is computed again
        types = tuple((array.dtype, array.shape) for array in arrays)
        spilled = _Spilled(path, types, tuple(compute_tensor_digests(contents)), size)
        self._disk.put(key, spilled, size)

    def _unlink(self, _key: Hashable, spilled: _Spilled) -> None:
        with suppress(OSError):
            spilled.path.unlink(missing_ok=True)


def _read(spilled: _Spilled) -> list[Array]:
    arrays = []
    with open_file(spilled.path, spilled.size, error=StorageError) as file:
        for dtype, shape in spilled.types:
            array = np.empty(shape, dtype)
            file.readinto(array.reshape(-1).view(np.uint8).data)
            arrays.append(array)
    if tuple(compute_tensor_digests(arrays)) != spilled.digests:
        raise StorageError("is not what was written", where=str(spilled.path))
    return arrays
