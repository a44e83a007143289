"""Tensor digests, computed in Rust at the speed of memory, without a copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from vtrain import _core
from vtrain.errors import EncodingError
from vtrain.threads import check_threads

Tensor = npt.NDArray[Any]

DTYPE_NAMES = {"|u1": "u8", "|i1": "i8", "<i2": "i16", "<i4": "i32", "<i8": "i64"}
"""numpy's name of an element type -> the law's, for every type that the law has."""


def compute_tensor_digest(tensor: Tensor, threads: int = 0) -> bytes:
    """BLAKE3 (32 bytes) of the tensor's little-endian row-major bytes: what ``b3sum`` prints.

    ``threads`` is how many to use, 0 for all cores.  The GIL is released meanwhile: the tensor must
    not be written to.  EncodingError for a dtype that the law lacks and for a strided tensor,
    RunError for too many threads.
    """
    check_threads(threads)
    return _core.tensor_digest(as_buffer(tensor), threads)


def compute_tensor_digests(tensors: Iterable[Tensor], threads: int = 0) -> list[bytes]:
    """:func:`compute_tensor_digest` of each, side by side."""
    check_threads(threads)
    return _core.tensor_digests([as_buffer(tensor) for tensor in tensors], threads)


def as_buffer(tensor: Tensor) -> Tensor:
    """The elements of ``tensor`` in one dimension, uncopied; EncodingError for what has no digest.

    A scalar's buffer has no shape, which the core could not read.
    """
    if tensor.dtype.str not in DTYPE_NAMES:
        raise EncodingError(f"a tensor of {tensor.dtype} has no digest", where="tensor digest")
    if not tensor.flags.c_contiguous:
        raise EncodingError("a strided tensor has no digest: copy it first", where="tensor digest")
    return tensor.reshape(-1)
