"""How samples lie in the memory that kernels gather batches from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.engines.cuda.launch import DTYPE_CODES, SampleForm
from vtrain.spec.samples import Samples

Array = npt.NDArray[Any]

TOKEN_CODES: Final = {"u16": 5, "u32": DTYPE_CODES["i32"], "u64": DTYPE_CODES["i64"]}
"""Codes of tokens (reference_kernels/gather_samples.cu), whose low 32 bits are elements."""


@dataclass(frozen=True)
class StoredPart:
    """Sample s has the elements of code ``dtype`` from ``start`` + s * ``stride`` on, in block
    ``block`` of :class:`StoredSamples`."""

    block: int
    dtype: int
    stride: int
    start: int

    def read(self, form: SampleForm) -> int:
        """The integer that a kernel asks for."""
        return {"dtype": self.dtype, "stride": self.stride, "start": self.start}[form.what]


@dataclass(frozen=True)
class StoredSamples:
    """``blocks`` of bytes, each [rows, bytes of one], and by its name how a part lies in them.

    Blocks are views, which may be of a memory map.
    """

    blocks: tuple[Array, ...]
    parts: Mapping[str, StoredPart]

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self.blocks)


def find_stored(samples: Samples) -> StoredSamples:
    """A block of all x and one of all y; of windows the tokens, once and as they are."""
    spec, windows = samples.spec, samples.spec.windows
    if windows is not None:
        code, stride = TOKEN_CODES[windows.dtype], windows.stride
        starts = {"x": 0, "y": windows.shift}
        return StoredSamples(
            (samples.table.reshape(-1, windows.width),),
            {name: StoredPart(0, code, stride, start) for name, start in starts.items()},
        )
    blocks: list[Array] = []
    parts: dict[str, StoredPart] = {}
    for name, dtype in (("x", spec.x_dtype), ("y", spec.y_dtype)):
        rows = samples.part(name).reshape(spec.samples, -1)
        parts[name] = StoredPart(len(blocks), DTYPE_CODES[dtype], rows.shape[1], 0)
        blocks.append(rows.view(np.uint8))
    return StoredSamples(tuple(blocks), parts)
