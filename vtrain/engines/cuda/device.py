"""What an engine asks of a device; the NVIDIA GPU is ``vtrain.engines.cuda.gpu.CudaDevice``.

Addresses are plain integers.  Work goes to one queue in order, but for what is forked off; what
reads back waits for the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DeviceInfo:
    """Which device this is.

    ``architecture`` is what kernels are compiled for ("sm_90a"); ``uuid`` and ``driver`` say which
    silicon and which driver a self-check held for, ``compiler`` what made the machine code;
    ``processors`` is the number of multiprocessors.  ``emulated`` ones take seconds for what takes
    a GPU milliseconds: their self-check leaves out the large cases.
    """

    name: str
    uuid: str
    driver: str
    architecture: str
    processors: int = 1
    compiler: str = ""
    emulated: bool = False


class Memory(NamedTuple):
    """Bytes of device memory: free now, and in all."""

    free: int
    total: int


class Pointer(NamedTuple):
    """An argument that is an address, as against an integer."""

    address: int


Slot = int | Pointer
"""An argument of a kernel: 8 bytes, an int64 or an address."""


@dataclass(frozen=True)
class Call:
    """A launch (``vtrain.engines.cuda.launch.Launch``) whose arguments have addresses."""

    file: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    slots: tuple[Slot, ...]
    shared: int = 0


class Device(Protocol):
    """A device that runs kernels of ``reference_kernels``.  Not thread-safe, but for what
    :meth:`read_later` gives and for :meth:`free`, which garbage collection calls.

    DeviceError when memory is short (need and supply in the message), KernelError when the device
    fails.
    """

    @property
    def info(self) -> DeviceInfo:
        """Which device this is."""
        ...

    def memory(self) -> Memory:
        """What is free and what there is."""
        ...

    def add_source(self, file: str, text: str) -> None:
        """Make ``file``, which is generated and not in the kernels' folder, launchable."""
        ...

    def prepare(self, kernels: Sequence[tuple[str, str]]) -> None:
        """Compile these (file, kernel) pairs now, so that no launch has to wait for it."""
        ...

    def allocate(self, nbytes: int) -> int:
        """Address of ``nbytes`` bytes, aligned to 256; their content is undefined."""
        ...

    def free(self, address: int) -> None:
        """Give back what :meth:`allocate` or :meth:`share` gave."""
        ...

    def share(self, data: npt.NDArray[np.uint8]) -> int:
        """Address under which kernels read a copy in host memory: for samples too large for the
        device."""
        ...

    def write(self, address: int, data: bytes | npt.NDArray[np.uint8]) -> None:
        """Copy bytes to the device."""
        ...

    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes of the device, after all work queued before."""
        ...

    def read_later(self, address: int, nbytes: int) -> Callable[[], bytearray]:
        """Bytes of the device after all work queued before, by a call of the result: once, from any
        thread, while this one goes on.  Until it returns nobody may write there."""
        ...

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy within the device, in the order of the queue."""
        ...

    def zero(self, address: int, nbytes: int) -> None:
        """Set bytes to zero, in the order of the queue."""
        ...

    def launch(self, call: Call) -> None:
        """Queue a kernel."""
        ...

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """What ``work`` queues (launches, copies, zeros), to be queued again by each call of the
        result; nothing runs now.  A CUDA graph, or ``work`` itself."""
        ...

    def fork(self, work: Callable[[], None]) -> Callable[[], None]:
        """What ``work`` queues (launches, copies, zeros) comes after all that is queued now, runs
        beside what is queued from here to a call of the result, and is done before what follows.

        One fork at a time; what is recorded calls the result before it ends.
        """
        ...

    def time(self, work: Callable[[], None]) -> float:
        """Seconds that the device takes for what ``work`` queues."""
        ...

    def synchronize(self) -> None:
        """Wait for all work queued; KernelError if any of it failed."""
        ...

    def is_done(self) -> bool:
        """Whether all work queued until now is done; KernelError if any of it failed."""
        ...

    def abandon(self) -> None:
        """A kernel hangs or has destroyed the context: wait for nothing and give nothing back from
        now on.  Whatever needs the device is a KernelError then."""
        ...

    def close(self) -> None:
        """Give everything back; the device is not usable afterwards."""
        ...
