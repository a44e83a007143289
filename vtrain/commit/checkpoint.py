"""Checkpoints: safetensors files with exactly one form for each state.

The graph says which tensors a state has, hence every byte of the header: it is written as the
safetensors library writes it (tensors by descending element size, then name; no metadata), and a
reader compares it instead of parsing it.  Nothing in a hostile header is ever interpreted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.commit.files import open_file, write_atomic
from vtrain.errors import EncodingError, RunError
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.graph import StepGraph, TensorType

State = Mapping[str, npt.NDArray[Any]]

_SAFETENSORS_NAMES: Final = {"u8": "U8", "i8": "I8", "i16": "I16", "i32": "I32", "i64": "I64"}


def lay_out(graph: StepGraph) -> list[tuple[str, TensorType, int]]:
    """(name, type, bytes) of each state tensor, in the order of the file."""
    tensors = [(name, graph.type_of(ref)) for name, ref in graph.states().items()]
    tensors.sort(key=lambda item: (-NUMPY_DTYPES[item[1].dtype].itemsize, item[0].encode()))
    return [
        (name, tensor, tensor.size * NUMPY_DTYPES[tensor.dtype].itemsize)
        for name, tensor in tensors
    ]


def encode_header(graph: StepGraph) -> bytes:
    """The one header of every checkpoint of ``graph``, its 8 bytes of length included."""
    entries, offset = {}, 0
    for name, tensor, size in lay_out(graph):
        entries[name] = {
            "dtype": _SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def compute_checkpoint_size(graph: StepGraph) -> int:
    """Bytes of every checkpoint of ``graph``."""
    return len(encode_header(graph)) + sum(size for _, _, size in lay_out(graph))


def checkpoint_chunks(graph: StepGraph, state: State) -> list[bytes | npt.NDArray[Any]]:
    """The content of a checkpoint file, without a copy of the tensors.

    RunError names a tensor that is not as the graph has it.
    """
    chunks: list[bytes | npt.NDArray[Any]] = [encode_header(graph)]
    for name, tensor, _ in lay_out(graph):
        if name not in state:
            raise RunError("the tensor is missing", where=f"state.{name}")
        value = state[name]
        if (value.dtype, value.shape) != (NUMPY_DTYPES[tensor.dtype], tensor.shape):
            raise RunError(
                f"needs {tensor.dtype} {tensor.shape}, has {value.dtype} {value.shape}",
                where=f"state.{name}",
            )
        chunks.append(np.ascontiguousarray(value))
    return chunks


def write_checkpoint(path: Path, graph: StepGraph, state: State) -> None:
    """Write a checkpoint, atomically and durably; StorageError names the path."""
    write_atomic(path, checkpoint_chunks(graph, state))


def read_checkpoint(
    path: Path, graph: StepGraph, *, root: Path | None = None
) -> dict[str, npt.NDArray[Any]]:
    """The state in a checkpoint of ``graph``; its root is for the caller to check.

    ``root`` is the run folder that it lies in: see :func:`vtrain.commit.files.open_file`, whose
    NotProducedError comes when the file is missing; EncodingError, naming the byte, when it is not
    of the graph's one form: size and header are compared before anything is allocated.
    """
    layout, header = lay_out(graph), encode_header(graph)
    size = sum(length for _, _, length in layout)
    with open_file(path, sys.maxsize, root=root) as file:
        if file.size != len(header) + size:
            raise EncodingError(f"has {file.size} bytes, not {len(header) + size}", where=str(path))
        start = file.read(len(header))
        if start != header:
            pairs = enumerate(zip(start, header, strict=False))
            byte = next((i for i, (a, b) in pairs if a != b), len(start))
            raise EncodingError(
                "is not the header of this graph's state", where=f"{path}: byte {byte}"
            )
        data = bytearray(size)
        file.readinto(data)
    state, offset = {}, 0
    for name, tensor, length in layout:
        flat = np.frombuffer(data, NUMPY_DTYPES[tensor.dtype], tensor.size, offset)
        state[name] = flat.reshape(tensor.shape)
        offset += length
    return state
