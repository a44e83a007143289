"""What people have their samples in, as the samples of a task: arrays, tokens, datasets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from vtrain.errors import DataError, Problem, UnsupportedError, gather
from vtrain.graph.update import floor_log2
from vtrain.spec.number import NUMPY_DTYPES, SATURATION, STORAGE, round_to_mantissa
from vtrain.spec.samples import Samples
from vtrain.train.data import TOKEN_ARRAYS, Split, build_samples, with_root
from vtrain.wire.task import Windows, describe_windows

Array = npt.NDArray[Any]
_INPUTS: Final = ("input_ids", "pixel_values", "x", "input", "image", "inputs", "features")
_TARGETS: Final = ("labels", "label", "y", "target", "targets")
"""Names of columns, by which those of a dataset are chosen."""
_MOST_EXPONENT: Final = 64
_LEAST_MEDIAN_BITS: Final = 6
_LEAST_COLUMN_BITS: Final = 4
"""Below which a note says how many a typical value, or the largest of a column, keeps."""
_MOST_COLUMNS: Final = 4096
_MOST_LISTED: Final = 3
_ASKED_AGAIN: Final = 32
"""Samples of a dataset that are asked for twice: a random flip shows in half of them."""
_FEWER: Final = "fewer samples, or a folder of files and a task file: docs/tasks.md"


@dataclass(frozen=True)
class Wanted:
    """What samples must be: ``shape`` of one input, whole numbers where the model ``takes_ids``,
    labels where the loss ``has_classes``, of which one may be ``ignored``; ``stride`` is that of
    windows of tokens."""

    shape: tuple[int, ...]
    takes_ids: bool
    has_classes: bool
    ignored: int | None
    stride: int = 1
    columns: tuple[str, str] | None = None


@dataclass(frozen=True)
class Pair:
    """Inputs and targets of all samples."""

    x: Array
    y: Array


@dataclass(frozen=True)
class Loaded:
    """Samples in their canonical form, with how many labels (or elements of a target) each has, and
    how many of them count, if that is the same of all."""

    samples: Samples
    test: Samples | None
    places: int
    counted: int | None
    has_ignored: bool
    notes: tuple[str, ...] = ()


def load(
    data: object, test: object | None, wanted: Wanted, validation: float | None = None
) -> Loaded:
    """Samples to train on, and to measure on.

    ``data`` and ``test`` are a pair of arrays, tokens as one array, a dict of arrays, a Dataset of
    torch, or a Dataset of Hugging Face.  UnsupportedError, with all reasons, where it is none of
    these, or has values that cannot be taken.
    """
    if _is_tokens(data):
        return _load_tokens(data, test, wanted, validation)
    problems: list[Problem] = []
    if validation is not None:
        fix = "samples to measure on: test=(x, y)"
        problems.append(Problem("validation", repr(validation), "is a share of tokens", fix))
    notes: list[str] = []
    pair = gather(problems, lambda: _take_pair(data, "data", wanted, notes))
    held = None
    if test is not None:
        held = gather(problems, lambda: _take_pair(test, "test", wanted, notes))
    for given, where in ((pair, "data"), (held, "test")):
        if given is not None:
            problems += _check_values(given, where, wanted)
    if pair is None or problems:
        raise UnsupportedError(problems, where="from_torch")
    wholes = (wanted.takes_ids, wanted.has_classes)
    forms = [
        _choose_form(values, is_whole=is_whole)
        for values, is_whole in zip((pair.x, pair.y), wholes, strict=True)
    ]
    for given, where in ((pair, "data"), (held, "test")):
        if given is not None:
            problems += _check_scale(given, pair, forms, where, notes)
    if problems:
        raise UnsupportedError(problems, where="from_torch")
    if wanted.has_classes and pair.y.dtype.kind == "f":
        notes.append("the targets of data are floats, all of them whole: they are taken as labels")
    samples = _build(pair, forms, "data", notes)
    others = None if held is None else _build(held, forms, "test", notes)
    places = math.prod(pair.y.shape[1:])
    counts, has_ignored = {places}, False
    if wanted.has_classes and wanted.ignored is not None:
        is_counted = pair.y.reshape(len(pair.y), -1) != wanted.ignored
        counts = {int(count) for count in is_counted.sum(axis=1)}
        has_ignored = not bool(is_counted.all())
        if others is not None:
            has_ignored = has_ignored or bool((others.part("y") == wanted.ignored).any())
    counted = counts.pop() if len(counts) == 1 else None
    return Loaded(samples, others, places, counted, has_ignored, tuple(notes))


def _refuse(path: str, what: str, reason: str, instead: str) -> NoReturn:
    raise UnsupportedError([Problem(path, what, reason, instead)], where="from_torch")


@contextmanager
def _refusing(where: str, instead: str) -> Iterator[None]:
    """What a table of samples cannot have is refused as all else is."""
    try:
        yield
    except DataError as error:
        _refuse(where, error.where or "samples", error.message, instead)


# --- tokens


def _is_tokens(data: object) -> bool:
    return isinstance(data, np.ndarray | torch.Tensor) and data.ndim == 1


def _load_tokens(
    data: object, test: object | None, wanted: Wanted, validation: float | None
) -> Loaded:
    if not wanted.takes_ids or not wanted.has_classes or len(wanted.shape) != 1:
        _refuse(
            "data",
            "an array of one axis",
            "is tokens, of which a model that takes ids [batch, places] is trained, with "
            "cross-entropy",
            "give inputs and targets: data=(x, y)",
        )
    problems: list[Problem] = []
    found = gather(problems, lambda: _as_tokens(data, "data"))
    held = None if test is None else gather(problems, lambda: _as_tokens(test, "test"))
    share = None if validation is None else gather(problems, lambda: _read_share(validation))
    if validation is not None and test is not None:
        reason = "say what to measure on"
        problems.append(Problem("validation, test", "both are given", reason, "one of them"))
    if found is None or problems:
        raise UnsupportedError(problems, where="from_torch")
    tokens = found
    if share is not None:
        whole = slice(0, len(tokens))
        held = tokens[Split(share, held_out=True).choose(whole)]
        tokens = tokens[Split(share, held_out=False).choose(whole)]
    if held is not None and held.dtype != tokens.dtype:
        held = _retype(held, tokens.dtype)
    places = wanted.shape[0]
    samples = gather(problems, lambda: _open_windows(tokens, places, wanted.stride, "data"))
    others = None
    if held is not None:
        others = gather(problems, partial(_open_windows, held, places, places, "test"))
    if samples is None or problems:
        raise UnsupportedError(problems, where="from_torch")
    return Loaded(samples, others, places, places, has_ignored=False)


def _read_share(validation: object) -> Fraction:
    try:
        share = Fraction(str(validation))
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share < 1:
        _refuse("validation", repr(validation), "is no number between 0 and 1", "0.1")
    return share


def _refuse_name(data: object, where: str) -> None:
    if isinstance(data, str | Path):
        reason = "is the name of a file, and what is in it was expected"
        fix = "np.load of a .npy, or np.frombuffer(Path(...).read_bytes(), np.uint8) of a text"
        _refuse(where, repr(str(data)), reason, fix)


def _as_tokens(data: object, where: str) -> Array:
    _refuse_name(data, where)
    array = data.detach().cpu().numpy() if isinstance(data, torch.Tensor) else np.asanyarray(data)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        reason = f"has the shape {array.shape} and elements of type {array.dtype}"
        _refuse(where, "tokens", reason, "one axis of integers")
    if array.dtype.itemsize == 1 or f"{array.dtype.kind}{array.dtype.itemsize}" == "i2":
        array = array.astype(np.int32)
    return array if array.dtype.byteorder != ">" else array.astype(array.dtype.newbyteorder("<"))


def _retype(held: Array, dtype: np.dtype[Any]) -> Array:
    """Tokens to measure on, of the type of those to train on: both are of one task."""
    if len(held) and not np.array_equal(held.astype(dtype), held):
        _refuse("test", "tokens", f"do not fit {dtype}, which those of data are of", "one type")
    return held.astype(dtype)


def _open_windows(tokens: Array, context: int, stride: int, where: str) -> Samples:
    kind = TOKEN_ARRAYS[f"{tokens.dtype.kind}{tokens.dtype.itemsize}"]
    windows = Windows(kind, len(tokens), context, stride, 1)
    if windows.count < 1:
        _refuse(
            where,
            f"{len(tokens)} tokens",
            f"are too few for one window of {context} and its labels",
            f"{context + 1} tokens or more, or an example of fewer places",
        )
    table = np.ascontiguousarray(tokens) if not tokens.flags.c_contiguous else tokens
    with _refusing(where, _FEWER):
        return with_root(Samples(describe_windows(windows), table.view(np.uint8)))


# --- inputs and targets


def _take_pair(data: object, where: str, wanted: Wanted, notes: list[str]) -> Pair:
    _refuse_name(data, where)
    if isinstance(data, DataLoader):
        reason = "chooses the order of samples, and the task does that by its seed"
        size = data.batch_size
        more = f", batch={size}" if where == "data" and size else ""
        _refuse(where, "DataLoader", reason, f"its dataset: {where}=loader.dataset{more}")
    of_hub = hasattr(data, "column_names") and hasattr(data, "with_format")
    _refuse_stream(data, where, of_hub=of_hub)
    if isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__:
        if len(data.tensors) != 2:
            what = f"TensorDataset of {len(data.tensors)}"
            fix = "TensorDataset(inputs, targets), or a dict of arrays and columns="
            _refuse(where, what, "must be of inputs and targets", fix)
        x, y = data.tensors
    elif isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    elif isinstance(data, Mapping):
        _refuse_splits(data, where)
        x, y = _pick_columns({str(key): data[key] for key in data}, where, wanted, notes)
    elif of_hub and getattr(data, "format", {}).get("type") != "custom":
        x, y = _read_columns(data, where, wanted, notes)
    elif isinstance(data, Dataset) or (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        x, y = _read_dataset(data, where, wanted, notes)
    else:
        _refuse(
            where,
            type(data).__name__,
            "is nothing that samples can be read from",
            "data=(x, y), one array of tokens, a Dataset of torch or of Hugging Face",
        )
    pair = Pair(_as_array(x, where, "inputs"), _as_array(y, where, "targets"))
    if len(pair.x) != len(pair.y):
        reason = f"are {len(pair.x)} inputs and {len(pair.y)} targets"
        _refuse(where, "samples", reason, "a target for each input")
    if not pair.x.size or not pair.y.size:
        reason = f"are none: the inputs are {pair.x.shape}, the targets {pair.y.shape}"
        _refuse(where, "samples", reason, "one sample at least, of one element at least")
    return pair


def _refuse_stream(data: object, where: str, *, of_hub: bool) -> None:
    if isinstance(data, IterableDataset) or (of_hub and not hasattr(data, "__getitem__")):
        reason = "has no number of samples, and a task commits to all of them"
        fix = "a Dataset with a length, or arrays"
        if of_hub:
            fix = "load_dataset without streaming=True, or Dataset.from_list([*stream.take(1000)])"
        _refuse(where, type(data).__name__, reason, fix)


def _refuse_splits(data: Mapping[Any, Any], where: str) -> None:
    """Of a dict of datasets nobody knows which is to be trained on."""
    splits = [str(name) for name in data if hasattr(data[name], "column_names")]
    if splits:
        reason = f"has several datasets: {', '.join(splits)}"
        _refuse(where, type(data).__name__, reason, f'one of them: data["{splits[0]}"]')


def _read_columns(data: Any, where: str, wanted: Wanted, notes: list[str]) -> tuple[Any, Any]:
    """Of a Dataset of Hugging Face, whatever format it gives its rows in; one with a transform of
    its user's own is read row by row instead, as the transform makes them."""
    names = [str(name) for name in data.column_names]
    chosen = [name for name in _choose_columns(names, where, wanted) if name]
    try:
        rows = data.select_columns(chosen).with_format("numpy")[:]
    except Exception as error:  # noqa: BLE001 - decoding is anybody's code
        reason = f"raised {type(error).__name__} when its rows were asked for: {error}"
        _refuse(where, type(data).__name__, reason, "rows that can all be read: for row in data")
    columns = {name: _stack(rows[name], where, name) for name in chosen}
    return _pick_columns(columns, where, wanted, notes)


def _choose_columns(names: Sequence[str], where: str, wanted: Wanted) -> tuple[str, str]:
    """The names of inputs and targets; "" for targets that are the inputs' next tokens."""
    if wanted.columns is not None:
        missing = [name for name in wanted.columns if name not in names]
        if missing:
            _refuse(where, f"columns {missing}", f"are none of {list(names)}", "columns=(x, y)")
        return wanted.columns
    x = next((name for name in _INPUTS if name in names), None)
    y = next((name for name in _TARGETS if name in names), None)
    if x is not None and y is None and wanted.takes_ids and wanted.has_classes:
        return x, ""
    if x is None or y is None:
        reason = f"has the columns {list(names)}, and which are inputs and targets is not clear"
        _refuse(where, "dataset", reason, 'name them: columns=("input_ids", "labels")')
    return x, y


def _pick_columns(
    columns: Mapping[str, Any], where: str, wanted: Wanted, notes: list[str]
) -> tuple[Any, Any]:
    """Inputs and targets.  Labels that are the ids themselves are those of a causal language model
    as transformers has them, which compares each with the place before it."""
    name, other = _choose_columns([*columns], where, wanted)
    x = _as_array(columns[name], where, name)
    y = x if not other else _as_array(columns[other], where, other)
    if not wanted.takes_ids or not wanted.has_classes or x.shape != y.shape or x.ndim != 2:
        return x, y
    ignored = -100 if wanted.ignored is None else wanted.ignored
    if not bool(((y == x) | (y == ignored)).all()) or not bool((y == x).any()):
        return x, y
    shifted = np.full(y.shape, ignored, np.int64)
    shifted[:, :-1] = y[:, 1:]
    notes.append(
        f"labels of {where} are its ids: each place has the next one as its label, and the last "
        f"place none ({ignored})"
    )
    return x, shifted


def _read_dataset(data: Any, where: str, wanted: Wanted, notes: list[str]) -> tuple[Any, Any]:
    """All samples of a dataset with a length, which must not change, nor its samples."""
    count = len(data)
    if count == 0:
        _refuse(where, type(data).__name__, "has no samples", "one sample at least")
    # Copies of some, as they were: a dataset may give the same memory again.
    asked = {number * count // _ASKED_AGAIN for number in range(_ASKED_AGAIN)}
    items, first = [], {}
    for number in range(count):
        items.append(_read_item(data, number, where))
        if number in asked:
            first[number] = _copy(items[-1])
    if len(data) != count:
        reason = f"had {count} samples and then {len(data)}"
        _refuse(where, type(data).__name__, reason, "a dataset whose length stays")
    for number, item in first.items():
        if not _are_equal(item, items[number]):
            reason = f"changes sample {number} while it gives others, which have its memory"
            _refuse(where, type(data).__name__, reason, "samples of their own: return x.copy()")
        if not _are_equal(item, _read_item(data, number, where)):
            _refuse(
                where,
                type(data).__name__,
                f"gives another sample {number} each time it is asked: a task commits to its "
                "samples",
                "leave random transforms out, or write down some of what they give",
            )
    if isinstance(items[0], Mapping):
        names = [str(key) for key in items[0]]
        chosen = [name for name in _choose_columns(names, where, wanted) if name]
        columns = {name: _stack([item[name] for item in items], where, name) for name in chosen}
        return _pick_columns(columns, where, wanted, notes)
    if not isinstance(items[0], tuple | list) or len(items[0]) != 2:
        parts = f" of {len(items[0])}" if isinstance(items[0], tuple | list) else ""
        reason = f"gives samples of type {type(items[0]).__name__}{parts}"
        _refuse(where, type(data).__name__, reason, "samples that are (input, target), or dicts")
    x, y = (_stack([item[part] for item in items], where, str(part)) for part in (0, 1))
    return x, y


def _read_item(data: Any, number: int, where: str) -> Any:
    try:
        return data[number]
    except Exception as error:  # noqa: BLE001 - a dataset is anybody's code
        _refuse(
            where,
            f"sample {number} of {type(data).__name__}",
            f"raised {type(error).__name__} when it was asked for: {error}",
            f"samples from 0 to len - 1 that can all be read: for i in range(len({where}))",
        )


def _copy(item: Any) -> Any:
    """An item with memory of its own, as far as it is numbers."""
    if isinstance(item, Mapping):
        return {key: _copy(value) for key, value in item.items()}
    if isinstance(item, tuple | list):
        return [*map(_copy, item)]
    if isinstance(item, torch.Tensor):
        return item.detach().clone()
    return item.copy() if isinstance(item, np.ndarray) else item


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and bool(torch.isclose(one, other, 0, 0, equal_nan=True).all())
    try:
        first, again = np.asarray(one), np.asarray(other)
        return bool(np.array_equal(first, again, equal_nan=first.dtype.kind == "f"))
    except (TypeError, ValueError):
        return one is other


def _stack(items: Any, where: str, name: str) -> Array:
    arrays = [_as_array(item, where, name) for item in items]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        longest = sorted(shapes)[-1]
        _refuse(
            where,
            f"column {name}",
            f"has samples of {len(shapes)} shapes, as {sorted(shapes)[0]} and {longest}",
            "pad or cut them to one, and let the loss ignore padding",
        )
    if not arrays:
        _refuse(where, f"column {name}", "has no samples", "one sample at least")
    return np.stack(arrays)


def _as_array(values: Any, where: str, name: str) -> Array:
    if isinstance(values, torch.Tensor):
        try:
            values = values.detach().cpu().resolve_conj().resolve_neg()
            values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            text = str(error).partition(". ")[0]
            _refuse(where, name, f"cannot be read: {text}", "dense arrays: x.to_dense()")
    if np.ma.is_masked(values):
        _refuse(where, name, "has masked elements", "arrays without a mask: x.filled(0)")
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "iufb":
        _refuse(where, name, f"is of type {array.dtype}, which is no number", "arrays of numbers")
    return array.astype(np.uint8) if array.dtype.kind == "b" else array


def _build(pair: Pair, forms: Sequence[_Form], where: str, notes: list[str]) -> Samples:
    parts = []
    for values, form, what in zip((pair.x, pair.y), forms, ("inputs", "targets"), strict=True):
        array, beyond = _convert(values, form)
        if beyond and where == "data":
            fix = "whole numbers from -2^31 to 2^31 - 1"
            _refuse(where, what, f"are beyond int32 in {beyond} places", fix)
        if beyond:
            notes.append(f"{beyond} {what} of test are beyond those of data, and held to them")
        parts.append(array)
    with _refusing(where, _FEWER):
        return build_samples(parts[0], parts[1], *(form.exponent for form in forms))


# --- whole numbers and mantissas


@dataclass(frozen=True)
class _Form:
    """An element type of the law, and fraction bits."""

    dtype: str
    exponent: int = 0


def _choose_form(values: Array, *, is_whole: bool) -> _Form:
    """Ids and labels are i32, whichever there are; other whole numbers have the least type that
    holds them, floats are mantissas of 16 bits at the finest exponent."""
    if is_whole:
        return _Form("i32")
    least, largest = values.min(initial=0), values.max(initial=0)
    if values.dtype.kind in "iu":
        for dtype in ("u8", "i8", "i16"):
            lo, hi = STORAGE[dtype]
            if lo <= int(least) and int(largest) <= hi:
                return _Form(dtype)
    most = max(abs(Fraction(float(least))), abs(Fraction(float(largest))))
    if most == 0:
        return _Form("i16")
    exponent = floor_log2(Fraction(SATURATION["i16"][1]) / most)
    return _Form("i16", max(-_MOST_EXPONENT, min(_MOST_EXPONENT, exponent)))


def _check_values(pair: Pair, where: str, wanted: Wanted) -> list[Problem]:
    """Elements that no number stands for, and ids and labels that are no whole numbers."""
    problems = []
    for values, what, noun, is_whole in (
        (pair.x, "inputs", "ids", wanted.takes_ids),
        (pair.y, "targets", "labels", wanted.has_classes),
    ):
        finite = np.isfinite(values)
        if not finite.all():
            sample = int(np.argwhere(~finite)[0][0])
            reason = f"are NaN or infinite in sample {sample}"
            problems.append(Problem(where, what, reason, "finite numbers, or fewer samples"))
        elif is_whole and values.dtype.kind == "f" and bool((values != np.trunc(values)).any()):
            reason = f"are floats, and {noun} are whole numbers"
            problems.append(Problem(where, what, reason, "integers"))
    return problems


def _check_scale(
    given: Pair, pair: Pair, forms: Sequence[_Form], where: str, notes: list[str]
) -> list[Problem]:
    """What becomes of elements beside the largest of ``pair``, which chose their forms: a Problem
    where most would be 0, a note where a typical one, or a whole column, keeps few bits."""
    problems = []
    for values, first, form, what in (
        (given.x, pair.x, forms[0], "inputs"),
        (given.y, pair.y, forms[1], "targets"),
    ):
        if form.dtype != "i16" or not (form.exponent or first.dtype.kind == "f"):
            continue  # whole numbers, as they are
        sizes = np.abs(values.astype(np.float64))
        sizes *= math.ldexp(1.0, form.exponent)
        present = sizes[sizes > 0]
        lost = int(np.count_nonzero(present < 0.5))
        if 2 * lost > present.size:
            fix = f"scale each column, or clip it: np.clip({what}, -5 * std, 5 * std)"
            reason = (
                f"have {lost:,} non-zero values of {present.size:,} that would become 0: their 16 "
                f"bits are at one scale, which {_name_largest(first)} of data sets"
            )
            problems.append(Problem(where, what, reason, fix))
        elif present.size:
            _note_bits(sizes, float(np.median(present)), first, f"{what} of {where}", notes)
    return problems


def _name_largest(values: Array) -> str:
    at = np.unravel_index(int(np.abs(values.astype(np.float64)).argmax()), values.shape)
    column = _name_column(tuple(int(index) for index in at[1:]))
    return f"{float(values[at]):.6g} in sample {int(at[0])}{column and f', column {column}'}"


def _name_column(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(list(index)) if index else ""


def _note_bits(sizes: Array, median: float, first: Array, what: str, notes: list[str]) -> None:
    """``sizes`` and their ``median`` are in units of the last bit."""
    cause = f"{_name_largest(first)} of data sets the scale of all"
    if _count_bits(median) < _LEAST_MEDIAN_BITS:
        notes.append(f"{what}: half of the non-zero values keep {_show_bits(median)}: {cause}")
    shape = sizes.shape[1:]
    while math.prod(shape) > _MOST_COLUMNS:
        shape = shape[1:]
    columns = sizes.reshape(-1, math.prod(shape)).max(axis=0)
    few = [
        int(number)
        for number in np.flatnonzero(columns > 0)
        if _count_bits(float(columns[number])) < _LEAST_COLUMN_BITS
    ]
    listed = [
        f"{_name_column(tuple(int(i) for i in np.unravel_index(number, shape)))} "
        f"({_show_bits(float(columns[number]))})"
        for number in few[:_MOST_LISTED]
    ]
    if shape and few:
        more = f" and {len(few) - len(listed):,} more" if len(few) > len(listed) else ""
        noun = "the column" if len(few) == 1 else "the columns"
        notes.append(
            f"{what}: the largest values of {noun} {', '.join(listed)}{more} keep few bits: "
            f"{cause}; scale each column"
        )


def _count_bits(size: float) -> int:
    """Of the whole number that a magnitude, in units of the last bit, is rounded to."""
    return math.floor(size + 0.5).bit_length()


def _show_bits(size: float) -> str:
    bits = _count_bits(size)
    return "no bits" if bits == 0 else "1 bit" if bits == 1 else f"{bits} bits"


def _convert(values: Array, form: _Form) -> tuple[Array, int]:
    """Elements in a form, and how many are beyond it and held to it."""
    lo, hi = (SATURATION if form.exponent else STORAGE)[form.dtype]
    if form.dtype == "i16" and (form.exponent or values.dtype.kind == "f"):
        lo, hi = SATURATION["i16"]
        wide = values.astype(np.float64)
        held = np.clip(wide, math.ldexp(lo, -form.exponent), math.ldexp(hi, -form.exponent))
        beyond = int(np.count_nonzero(held != wide))
        return round_to_mantissa(held, form.exponent).astype(np.int16), beyond
    held = np.clip(values, lo, hi)
    beyond = int(np.count_nonzero(held != values))
    return held.astype(NUMPY_DTYPES[form.dtype]), beyond
