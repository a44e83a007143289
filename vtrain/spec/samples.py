"""A dataset in its one canonical form: a table of fixed-length rows, x bytes then y bytes; or the
bytes of a file of tokens, of which the samples are windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.errors import DataError
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.task import DataSpec, Windows, describe_windows


def _bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    count = NUMPY_DTYPES[dtype].itemsize
    for extent in shape:
        count *= extent
    return count


def compute_row_length(data: DataSpec) -> int:
    """Bytes of one sample."""
    return _bytes_of(data.x_dtype, data.x_shape) + _bytes_of(data.y_dtype, data.y_shape)


def compute_samples_length(data: DataSpec) -> int:
    """Bytes of all samples as they are stored: rows, or tokens of which they are windows."""
    if data.windows is not None:
        return data.windows.tokens * data.windows.width
    return data.samples * compute_row_length(data)


def count_in_file(data: DataSpec, length: int) -> DataSpec:
    """The same form for a file of ``length`` bytes: with as many samples as it has.

    DataError when that is none, or there are bytes beyond the last row or token.
    """
    windows = data.windows
    row = compute_row_length(data) if windows is None else windows.width
    whole, rest = divmod(length, row)
    if windows is None:
        found = replace(data, samples=whole)
    else:
        found = describe_windows(replace(windows, tokens=whole), data.root)
    if rest or found.samples < 1:
        what = "samples" if windows is None else "windows"
        raise DataError(f"{length} bytes are no whole number of {what}, from 1 on", where="samples")
    return found


@dataclass(frozen=True)
class Samples:
    """``table`` is uint8 [samples, row length], or for windows uint8 [bytes of all tokens]; it may
    be a memory map.  ``spec`` names its form."""

    spec: DataSpec
    table: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        expected: tuple[int, ...] = (self.spec.samples, compute_row_length(self.spec))
        if self.spec.windows is not None:
            expected = (compute_samples_length(self.spec),)
        if self.table.shape != expected or self.table.dtype != np.uint8:
            form = "rows of {1} bytes" if len(expected) == 2 else "bytes"
            raise DataError(
                f"needs {expected[0]} {form.format(*expected)}, has {self.table.shape} "
                f"of {self.table.dtype}",
                where="samples",
            )
        if not self.table.flags.c_contiguous:
            raise DataError("the table is not row-major", where="samples")

    def part(self, name: str) -> npt.NDArray[Any]:
        """All x or all y: a view [samples, ...shape] of the table.

        DataError for windows, of which there is no table: :meth:`gather` reads those asked for.
        """
        spec = self.spec
        if spec.windows is not None:
            raise DataError("are windows of tokens, and no table", where="samples")
        split = _bytes_of(spec.x_dtype, spec.x_shape)
        columns, dtype, shape = (
            (slice(0, split), spec.x_dtype, spec.x_shape)
            if name == "x"
            else (slice(split, None), spec.y_dtype, spec.y_shape)
        )
        view = self.table[:, columns].view(NUMPY_DTYPES[dtype])
        return view.reshape((spec.samples, *shape))

    def gather(self, name: str, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """x or y of the samples that ``index`` names: [len(index), ...shape], in memory.

        IndexError for one that is not there.
        """
        if self.spec.windows is None:
            return np.ascontiguousarray(self.part(name)[index])
        return self._view_windows(self.spec.windows, name)[index].astype(np.int32)

    def _view_windows(self, windows: Windows, name: str) -> npt.NDArray[Any]:
        """All windows as they lie in the file, one over the other: takes no memory."""
        first = windows.shift if name == "y" else 0
        tokens = self.table.view(f"<u{windows.width}")[first:]
        view = np.lib.stride_tricks.sliding_window_view(tokens, windows.context)
        return view[:: windows.stride][: windows.count]
