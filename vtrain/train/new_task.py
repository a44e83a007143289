"""A task file for a model and data that are there: what can be read off them, with comments.

What is a matter of taste (rate, batch, number of steps) gets a value that trains most models of
their kind, and a comment that says what it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from vtrain.commit.files import write_atomic
from vtrain.errors import DataError, ModelError, TaskError
from vtrain.graph.model import Embedding, Model, Softmax
from vtrain.graph.onnx_file import read_onnx
from vtrain.graph.onnx_import import import_onnx, require_unfolded
from vtrain.train.data import (
    Array,
    IdxSource,
    NpySource,
    NpzSource,
    TextSource,
    TokenSource,
    find_exponent,
    list_arrays,
    load_samples,
    open_tokens,
    read_arrays,
)

_EPOCHS: Final = 3
_MOST_STEPS: Final = 2000
_BATCH: Final = 32
_WARMUP: Final = 10
"""Of how many steps one is warm-up."""
_HELD_OUT: Final = 10
"""Of how many samples one is held out, where there are no test data."""
_KINDS: Final = (
    "two .npy files (x, y), two IDX files (images, labels), one .npz, tokens in a .npy or .bin, or "
    "a text"
)


@dataclass(frozen=True)
class _Data:
    """Lines of the table, and what follows for the rest of the file."""

    lines: tuple[str, ...]
    samples: int
    ids: bool
    targets_are_floats: bool = False
    images: bool = False
    test: tuple[str, ...] = ()
    validation: bool = False


def write_new_task(model: Path, data: Sequence[Path], out: Path) -> str:
    """Write a task for the ONNX file ``model`` and one or two files of ``data`` to the new file
    ``out``; its text.

    ModelError for a model that cannot be trained, DataError or TaskError for data that are none of
    the kinds of a task.
    """
    imported = _read_model(model)
    found = _look_at(data, imported, out.parent)
    text = "\n".join(_write(model, imported, found, out)) + "\n"
    write_atomic(out, [text.encode()])
    return text


def _read_model(path: Path) -> Model:
    try:
        model = import_onnx(read_onnx(path, error=TaskError))
    except ModelError as error:
        if error.where != "ONNX file":
            raise
        hint = ": the model comes first, then the data" if path.suffix != ".onnx" else ""
        raise ModelError(f"{error.message}{hint}", where=str(path)) from None
    require_unfolded(model)
    return model


def _relative(path: Path, base: Path) -> str:
    name = os.path.relpath(path, base)
    return '"' + name.replace("\\", "/").replace('"', '\\"') + '"'


# --- the data


def _look_at(data: Sequence[Path], model: Model, base: Path) -> _Data:
    first = data[0]
    if len(data) == 2:
        is_npy = all(path.suffix == ".npy" for path in data)
        x, y = data
        source = NpySource(x, y) if is_npy else IdxSource(x, y)
        kind = "npy" if is_npy else "idx"
        lines = [
            f'kind = "{kind}"',
            *(f"{n} = {_relative(p, base)}" for n, p in zip("xy", data, strict=True)),
        ]
        return _describe_arrays(lines, *read_arrays(source), model, is_npy=is_npy)
    if first.is_dir():
        raise DataError(f"is a folder: name the files in it, {_KINDS}", where=str(first))
    if first.suffix == ".npz":
        keys = _choose_keys(first)
        lines = ['kind = "npz"', f"path = {_relative(first, base)}"]
        lines += [
            f'{name}_key = "{key}"' for name, key in zip("xy", keys, strict=True) if key != name
        ]
        return _describe_arrays(lines, *read_arrays(NpzSource(first, *keys)), model, is_npy=True)
    if not model.takes_ids:
        return _describe_text(first, model, base)
    return _describe_tokens(first, model, base)


def _choose_keys(path: Path) -> tuple[str, str]:
    """The names of inputs and targets in an archive."""
    names = list_arrays(path)
    for pair in (("x", "y"), ("X", "Y"), ("x_train", "y_train"), ("inputs", "targets")):
        if set(pair) <= set(names):
            return pair
    if len(names) != 2:
        raise DataError(
            f"has the arrays {', '.join(names[:9])}: which are inputs and targets? Save a file "
            "with x and y",
            where=str(path),
        )
    return names[0], names[1]


def _describe_arrays(lines: list[str], x: Array, y: Array, model: Model, *, is_npy: bool) -> _Data:
    for name, values in (("x", x), ("y", y)):
        if values.dtype.kind == "f" and is_npy:
            exponent = find_exponent(values)
            if exponent is None:
                raise DataError("has values that are NaN, infinite or too large", where=name)
            note = "fraction bits: the largest value just fits int16"
            lines.append(f"{name}_exponent = {exponent}".ljust(25) + f"# {note}")
    count = len(x)
    held = max(1, count // _HELD_OUT)
    cut = count - held
    test: tuple[str, ...] = ()
    if cut > 0:
        test = (*lines, f"start = {cut}".ljust(25) + "# the last tenth, which is not trained on")
        lines = [*lines, f"count = {cut}".ljust(25) + f"# of {count} samples"]
    return _Data(
        lines=tuple(lines),
        samples=max(cut, 1),
        ids=model.takes_ids,
        targets_are_floats=y.dtype.kind == "f",
        images=x.dtype == np.uint8,
        test=test,
    )


def _count_places(model: Model) -> int:
    return int(np.prod(model.input_shape))


def _describe_tokens(path: Path, model: Model, base: Path) -> _Data:
    rows = min(
        int(model.params[layer.weight].shape[0])
        for layer in model.layers
        if isinstance(layer, Embedding) and layer.input == model.input
    )
    places = _count_places(model)
    dtype = None if path.suffix == ".npy" else "u16"
    if path.suffix not in (".npy", ".bin"):
        raise DataError(
            "is no file of tokens, which the model takes: write their ids as .npy, or as "
            'uint16 (np.array(ids, "<u2").tofile("tokens.bin"))',
            where=str(path),
        )
    source = TokenSource(path, places, rows, dtype)
    samples = open_tokens(source).spec.samples
    return _Data(
        lines=(
            'kind = "tokens"',
            f"path = {_relative(path, base)}",
            *([f'dtype = "{dtype}"'.ljust(25) + "# or u32"] if dtype else []),
            f"context = {places}".ljust(25) + "# places of the model",
            f"vocabulary = {rows}".ljust(25) + "# every id is below it",
            "validation = 0.1".ljust(25) + "# the last tenth is held out",
        ),
        samples=samples,
        ids=True,
        validation=True,
    )


def _describe_text(path: Path, model: Model, base: Path) -> _Data:
    """Bytes, as one-hot vectors of 128 or 256."""
    for depth in (128, 256):
        context, rest = divmod(_count_places(model), depth)
        if context and not rest:
            samples = load_samples(TextSource(path, context, context)).spec.samples
            lines = ['kind = "text"', f"path = {_relative(path, base)}", f"context = {context}"]
            lines += ["", "[data.prepare]", 'kind = "one_hot"', f"depth = {depth}"]
            return _Data(tuple(lines), samples, ids=True)
    raise DataError(
        f"is one file, and the model takes {_count_places(model)} numbers a sample: give {_KINDS}",
        where=str(path),
    )


# --- the text


def _write(model: Path, imported: Model, data: _Data, out: Path) -> Iterator[str]:
    attention = any(isinstance(layer, Softmax) for layer in imported.layers)
    batch = min(_BATCH, data.samples)
    steps = min(_MOST_STEPS, max(10, _EPOCHS * data.samples // batch))
    every = max(1, steps // 10)
    steps -= steps % every
    loss = "mse" if data.targets_are_floats else "cross_entropy"
    yield f"# vtrain task check --lint {out.name}   what is wrong with this file, if anything"
    yield f"# vtrain profile {out.name}             once, before training: writes [exponents]"
    yield f"# vtrain train {out.name} --out RUN     then: vtrain verify RUN"
    yield "# All keys: docs/tasks.md."
    yield from ("", "[task]")
    yield _line(f'name = "{_make_name(model)}"', "for people")
    yield _line("seed = 1", "keys the order of the samples")
    yield _line(f"steps = {steps}", f"an epoch is {data.samples} / {batch} steps")
    yield _line(f"batch = {batch}", "")
    yield _line("commit_every = 1", "steps between state roots in the log")
    yield _line(f"checkpoint_every = {every}", "what an audit replays at a time")
    yield from ("", "[model]")
    yield f"onnx = {_relative(model, out.parent)}"
    other = "cross_entropy" if loss == "mse" else "mse"
    yield _line(f'loss = "{loss}"', f"or {other}")
    yield from ("", "[data]", *data.lines)
    if data.ids and not any("data.prepare" in line for line in data.lines):
        yield from ("", "[data.prepare]", _line('kind = "ids"', "the model takes whole numbers"))
    elif data.images:
        yield from ("", "[data.prepare]", _line("# value = (x * scale - mean) / std", ""))
        yield _line('scale = "1/255"', "bytes to [0, 1]")
        yield _line("mean = 0", "")
        yield _line("std = 1", "")
    if data.test:
        yield from ("", "[test]", *data.test)
    yield from _write_optimizer(imported, attention=attention)
    warmup = steps // _WARMUP
    yield from ("", "[schedule]", _line('kind = "cosine"', "or constant, linear, step, wsd"))
    yield _line(f"warmup = {warmup}", "")
    yield from ("", "[format]", _line("margin = 3", "bits kept free above what calibration saw"))
    if attention:
        yield _line("gradient_margin = 1", "these three for every transformer")
        yield "symmetric_gradients = true"
        yield "fine_gradients = true"
    yield _line(f"calibration_steps = {max(20, 2 * warmup)}", "beyond the warm-up")


def _write_optimizer(model: Model, *, attention: bool) -> Iterator[str]:
    yield from ("", "[optimizer]")
    if attention:
        yield _line('kind = "adamw"', "or sgd, lion")
        yield _line("learning_rate = 0.001", "")
        yield _line("clip_norm = 1", "longer gradients are shortened to this")
        if any(name.endswith(".bias") for name in model.trained):
            yield 'no_decay = ["*.bias"]'
    else:
        yield _line('kind = "sgd"', "or adamw, lion")
        yield _line("momentum = 0.9", "")
        yield _line("learning_rate = 0.01", "")


def _line(text: str, comment: str) -> str:
    return f"{text:<25}# {comment}" if comment else text


def _make_name(model: Path) -> str:
    kept = "".join(char if char.isalnum() or char in "-_." else "-" for char in model.stem)
    return kept or "model"
