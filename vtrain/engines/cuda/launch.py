"""What a kernel is launched with: the words between lowering, planning and devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

DTYPE_CODES: Final = {"u8": 0, "i8": 1, "i16": 2, "i32": 3, "i64": 4}
"""Codes of dtypes in kernels (reference_kernels/law.cuh)."""

THREADS: Final = 256
"""Threads in a block of a readable kernel."""
WARP: Final = 32
"""Threads that go in step."""


@dataclass(frozen=True)
class Operand:
    """Pointer to an input of the node, by position."""

    index: int


@dataclass(frozen=True)
class Output:
    """Pointer to the output of the node."""


@dataclass(frozen=True)
class Saturated:
    """Pointer to the node's counter of saturated elements, an unsigned integer of 64 bits."""


@dataclass(frozen=True)
class SamplePart:
    """Pointer to what the part "x" or "y" of samples is read from: its rows one after the other, or
    the tokens of a file."""

    part: str


@dataclass(frozen=True)
class SampleForm:
    """An integer that says how a part of the samples lies there: "dtype", the code of an element;
    "stride", elements from one sample to the next; "start", those before the first."""

    part: str
    what: Literal["dtype", "stride", "start"]


@dataclass(frozen=True)
class Constant:
    """Pointer to bytes that never change."""

    data: bytes


@dataclass(frozen=True)
class Scratch:
    """Pointer to memory that only this node's launches use; the same object is the same memory."""

    nbytes: int
    name: str = ""


Arg = int | Operand | Output | Saturated | SamplePart | SampleForm | Constant | Scratch
"""An argument: an integer of 64 bits, or something that becomes one or a pointer."""


@dataclass(frozen=True)
class Launch:
    """One launch of the kernel ``kernel`` of ``reference_kernels/FILE``.

    ``grid`` and ``block`` are (x, y, z), ``shared`` bytes of dynamic shared memory; every argument
    takes 8 bytes.
    """

    file: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Arg, ...]
    shared: int = 0


def one_thread_each(file: str, kernel: str, count: int, *args: Arg) -> Launch:
    """A launch of one thread an output; ``count`` is the first argument."""
    blocks = max(1, -(-count // THREADS))
    return Launch(file, kernel, (blocks, 1, 1), (THREADS, 1, 1), (count, *args))
