"""A dataset in its one canonical form: a table of fixed-length rows, x bytes then y bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.errors import DataError
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.task import DataSpec


def _bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    count = NUMPY_DTYPES[dtype].itemsize
    for extent in shape:
        count *= extent
    return count


def compute_row_length(data: DataSpec) -> int:
    """Bytes of one sample."""
    return _bytes_of(data.x_dtype, data.x_shape) + _bytes_of(data.y_dtype, data.y_shape)


@dataclass(frozen=True)
class Samples:
    """``table`` is uint8 [samples, row length] and may be a memory map; ``spec`` names its form."""

    spec: DataSpec
    table: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        expected = (self.spec.samples, compute_row_length(self.spec))
        if self.table.shape != expected or self.table.dtype != np.uint8:
            raise DataError(
                f"needs {expected[0]} rows of {expected[1]} bytes, has {self.table.shape} "
                f"of {self.table.dtype}",
                where="samples",
            )
        if not self.table.flags.c_contiguous:
            raise DataError("the table is not row-major", where="samples")

    def part(self, name: str) -> npt.NDArray[Any]:
        """All x or all y: a view [samples, ...shape] of the table."""
        spec = self.spec
        split = _bytes_of(spec.x_dtype, spec.x_shape)
        columns, dtype, shape = (
            (slice(0, split), spec.x_dtype, spec.x_shape)
            if name == "x"
            else (slice(split, None), spec.y_dtype, spec.y_shape)
        )
        view = self.table[:, columns].view(NUMPY_DTYPES[dtype])
        return view.reshape((spec.samples, *shape))
