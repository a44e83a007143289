"""A compiled task as files: its TOML, its model and its data, of which the same id comes.

The samples are written in their canonical form: rows as two ``.npy`` arrays, windows as the tokens
that they are of.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tomlkit

from vtrain.commit.files import storing, write_atomic
from vtrain.errors import RunError, TaskError
from vtrain.spec.samples import Samples
from vtrain.train.data import Blocks, TokenSource, load_samples
from vtrain.train.task import CompiledTask, TaskFile

TASK_NAME: Final = "task.toml"
MODEL_NAME: Final = "model.onnx"
_TOKEN_FILES: Final = {"u16": "u16", "u32": "u32"}
"""Token types that a plain file may have; others are arrays."""


def write_task(task: CompiledTask, folder: Path) -> Path:
    """Write a task into ``folder``, its TOML last; the path of that.

    RunError where there is one already, TaskError for a task of which no file is known.
    """
    file = task.file
    if file is None:
        raise TaskError("was not compiled from a task file, nor from a module", where=task.name)
    path = folder / TASK_NAME
    if os.path.lexists(path):
        raise RunError("exists already, and is not replaced: name a new folder", where=str(path))
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    document: Any = tomlkit.parse(file.text)
    document["model"]["onnx"] = MODEL_NAME
    write_atomic(folder / MODEL_NAME, [task.model])
    prepare = document["data"].get("prepare")
    vocabulary = file.data.vocabulary if isinstance(file.data, TokenSource) else 0
    data = _write_samples(task.samples, folder, "", vocabulary)
    if prepare is not None:
        data["prepare"] = prepare
    document["data"] = data
    test = load_test(file)
    if test is not None:
        document["test"] = _write_samples(test, folder, "test-", vocabulary)
    if file.proof is not None:
        document["proof"]["srs"] = str(file.proof.srs.resolve())
    table = tomlkit.table()
    for site in sorted(task.spec.exponents):
        table[site] = task.spec.exponents[site]
    document["exponents"] = table
    write_atomic(path, [tomlkit.dumps(document).encode()])
    return path


def load_test(file: TaskFile) -> Samples | None:
    """What a task is measured on, None where it says nothing of that."""
    if file.held is not None:
        return file.held.test
    return None if file.test is None else load_samples(file.test)


def _write_samples(samples: Samples, folder: Path, prefix: str, vocabulary: int) -> Any:
    """The files of some samples, and the table that names them."""
    table, spec = tomlkit.table(), samples.spec
    if spec.windows is not None:
        windows = spec.windows
        table["kind"] = "tokens"
        chunks: Any = Blocks(samples.table)
        if windows.dtype in _TOKEN_FILES:
            name = f"{prefix}tokens.bin"
            table["path"], table["dtype"] = name, windows.dtype
        else:
            name = f"{prefix}tokens.npy"
            table["path"] = name
            chunks = [_make_header(np.dtype("<i8"), (windows.tokens,)), *chunks]
        table["context"], table["stride"] = windows.context, windows.stride
        table["shift"], table["vocabulary"] = windows.shift, vocabulary
        write_atomic(folder / name, chunks)
        return table
    table["kind"] = "npy"
    for part, exponent in (("x", spec.x_exponent), ("y", spec.y_exponent)):
        table[part] = f"{prefix}{part}.npy"
        values = np.ascontiguousarray(samples.part(part))
        write_atomic(folder / table[part], [_make_header(values.dtype, values.shape), values])
        if exponent:
            table[f"{part}_exponent"] = exponent
    return table


def _make_header(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """What stands before the elements of an array of NPY format 1.0."""
    buffer = io.BytesIO()
    description = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()
