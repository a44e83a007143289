"""Datasets: IDX, NumPy and text files become the one canonical sample table, and its root; files
of tokens stay as they are, and samples are windows of them.

Files are hostile until shown otherwise: sizes are checked against headers before anything is
allocated, archives are unpacked only as far as their headers promise, nothing is unpickled.
"""

from __future__ import annotations

import gzip
import io
import math
import mmap
import re
import shutil
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vtrain import _core
from vtrain.commit.digest import compute_tensor_digest
from vtrain.commit.files import BoundedFile, open_file, read_file, refuse_holes, storing
from vtrain.commit.openings import compute_root_fixed
from vtrain.errors import DataError, StorageError, TaskError
from vtrain.limits import LIMITS, Limits, limits_here
from vtrain.spec import domains
from vtrain.spec.number import NUMPY_DTYPES, SATURATION, STORAGE, round_to_mantissa
from vtrain.spec.samples import Samples, compute_row_length, compute_samples_length
from vtrain.train.names import refuse_choice, refuse_unknown_keys
from vtrain.wire.graph import MAX_RANK
from vtrain.wire.task import TOKEN_WIDTHS, DataSpec, Windows, describe_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = npt.NDArray[Any]

DEFLATE_RATIO = 1032
"""Bytes that one byte of deflate can stand for, at most (zlib's technical notes): what a header
promises beyond that is not there, and nothing is unpacked to find out."""
MAX_COUNT = 2**40
MAX_CONTEXT = 2**20
"""Tokens of a window.  Law takes more, as any shape; no model does."""
MAX_VOCABULARY = 2**31
"""Ids are elements of int32."""
_TOKEN_FILES = ("u16", "u32")
"""What a file of nothing but tokens may be of."""
TOKEN_ARRAYS = {"u2": "u16", "u4": "u32", "i4": "u32", "i8": "u64", "u8": "u64"}
"""Token types of arrays: ids are not negative, so that signed ones have the same bytes."""
_MOST_EXPONENT = 64
_COPY_BLOCK = 2**24
_BLOCK = 4096
"""Samples converted at a time: bounds the float64 temporaries."""
_LAW_DTYPES = {NUMPY_DTYPES[name]: name for name in ("u8", "i8", "i16", "i32")}
_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4"}
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER = re.compile(
    rb"\{\s*'descr'\s*:\s*'([<>|=][a-z][0-9]{1,2})'\s*,\s*'fortran_order'\s*:\s*(True|False)\s*,"
    rb"\s*'shape'\s*:\s*\(((?:\s*[0-9]{1,18}\s*,)*(?:\s*[0-9]{1,18}\s*)?)\)\s*,?\s*\}\s*"
)
_ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    RuntimeError,
    EOFError,
    ValueError,
    struct.error,
    zlib.error,
)
"""What zipfile and gzip are documented or seen to raise for damaged input."""


@dataclass(frozen=True)
class Part:
    """Which samples to take: ``count`` (None: all that are left) from ``start`` on."""

    start: int = 0
    count: int | None = None


@dataclass(frozen=True)
class IdxSource:
    """Two IDX files, plain or gzip: x (any rank) and y (labels)."""

    x: Path
    y: Path
    part: Part = Part()


@dataclass(frozen=True)
class NpySource:
    """Two ``.npy`` files.  A float array needs an exponent; so may an array of mantissas."""

    x: Path
    y: Path
    x_exponent: int | None = None
    y_exponent: int | None = None
    part: Part = Part()


@dataclass(frozen=True)
class NpzSource:
    """Two arrays of one ``.npz`` archive, by their names in it."""

    path: Path
    x_key: str = "x"
    y_key: str = "y"
    x_exponent: int | None = None
    y_exponent: int | None = None
    part: Part = Part()


@dataclass(frozen=True)
class TextSource:
    """Bytes of a file: sample i is the ``context`` bytes at i * stride, its label the next byte."""

    path: Path
    context: int
    stride: int = 1
    part: Part = Part()


@dataclass(frozen=True)
class Split:
    """Of n tokens the last n * share, rounded up, are held out: these, or else those before."""

    share: Fraction
    held_out: bool

    def choose(self, chosen: slice) -> slice:
        """Those of the tokens ``chosen``, from start to stop, that are meant."""
        cut = chosen.stop - math.ceil((chosen.stop - chosen.start) * self.share)
        return slice(cut, chosen.stop) if self.held_out else slice(chosen.start, cut)


@dataclass(frozen=True)
class TokenSource:
    """Token ids, a ``.npy`` of integers or a file of nothing else (``dtype``: u16 or u32,
    little-endian): sample i is the ``context`` tokens at i * stride, and its labels the tokens
    ``shift`` further.  ``part`` counts tokens, and ``split`` takes its share of that part, so that
    no window has tokens of both sides.  Every id is below ``vocabulary``."""

    path: Path
    context: int
    vocabulary: int
    dtype: str | None = None
    stride: int = 1
    shift: int = 1
    part: Part = Part()
    split: Split | None = None

    def hold_out(self, share: Fraction) -> tuple[TokenSource, TokenSource]:
        """What to train on, and the ``share`` at its end to measure on, there in windows that do
        not overlap."""
        return (
            replace(self, split=Split(share, held_out=False)),
            replace(self, split=Split(share, held_out=True), stride=self.context),
        )


DataSource = IdxSource | NpySource | NpzSource | TextSource | TokenSource


def parse_source(
    table: Mapping[str, object], base: Path, name: str = "data", beside: Sequence[str] = ()
) -> DataSource:
    """A data table of a task file -> its source; paths are relative to ``base``, and errors call
    the table ``name``.  Keys ``beside`` its own are somebody else's.

    Keys: ``kind`` = "idx" (x, y), "npy" (x, y, x_exponent, y_exponent), "npz" (path, x_key, y_key,
    x_exponent, y_exponent), "text" (path, context, stride) or "tokens" (path, dtype, context,
    stride, shift, vocabulary); ``start`` and ``count`` for all.
    TaskError names the key at fault, an unknown one too.
    """
    keys = _Keys(table, base, name)
    kind = keys.text("kind", None)
    if kind not in _KEYS:
        refuse_choice(kind, _KEYS, f"{name}.kind")
    refuse_unknown_keys(table, ("kind", "start", "count", *_KEYS[kind], *beside), name)
    part = Part(keys.integer("start", 0, default=0), keys.optional_integer("count", 1))
    if kind == "idx":
        return IdxSource(keys.path("x"), keys.path("y"), part)
    if kind == "npy":
        return NpySource(keys.path("x"), keys.path("y"), *keys.exponents(), part)
    if kind == "npz":
        names = keys.text("x_key", "x"), keys.text("y_key", "y")
        return NpzSource(keys.path("path"), *names, *keys.exponents(), part)
    if kind == "tokens":
        dtype = keys.optional_text("dtype")
        if dtype not in (None, *_TOKEN_FILES):
            refuse_choice(dtype, _TOKEN_FILES, f"{name}.dtype")
        return TokenSource(
            path=keys.path("path"),
            context=keys.integer("context", 1, hi=MAX_CONTEXT),
            vocabulary=keys.integer("vocabulary", 1, hi=MAX_VOCABULARY),
            dtype=dtype,
            stride=keys.integer("stride", 1, default=1),
            shift=keys.integer("shift", 0, default=1),
            part=part,
        )
    context, stride = keys.integer("context", 1), keys.integer("stride", 1, default=1)
    return TextSource(keys.path("path"), context, stride, part)


_KEYS = {
    "idx": ("x", "y"),
    "npy": ("x", "y", "x_exponent", "y_exponent"),
    "npz": ("path", "x_key", "y_key", "x_exponent", "y_exponent"),
    "text": ("path", "context", "stride"),
    "tokens": ("path", "dtype", "context", "stride", "shift", "vocabulary"),
}
"""Keys of a data table by its kind, but for those that all have."""


class _Keys:
    """Typed reads of a data table."""

    def __init__(self, table: Mapping[str, object], base: Path, name: str) -> None:
        self._table = table
        self._base = base
        self._name = name

    def text(self, key: str, default: str | None) -> str:
        value = self._table.get(key, default)
        if value is None:
            raise TaskError("is missing", where=f"{self._name}.{key}")
        if not isinstance(value, str) or value == "":
            raise TaskError("must be text", where=f"{self._name}.{key}")
        return str(value)

    def path(self, key: str) -> Path:
        return self._base / self.text(key, None)

    def optional_text(self, key: str) -> str | None:
        return self.text(key, None) if key in self._table else None

    def optional_integer(self, key: str, lo: int, hi: int = MAX_COUNT) -> int | None:
        value = self._table.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not lo <= value <= hi:
            raise TaskError(f"must be an integer in [{lo}, {hi}]", where=f"{self._name}.{key}")
        return int(value)

    def integer(self, key: str, lo: int, *, default: int | None = None, hi: int = MAX_COUNT) -> int:
        value = self.optional_integer(key, lo, hi)
        if value is None:
            value = default
        if value is None:
            raise TaskError("is missing", where=f"{self._name}.{key}")
        return value

    def exponents(self) -> tuple[int | None, int | None]:
        return (
            self.optional_integer("x_exponent", -_MOST_EXPONENT, _MOST_EXPONENT),
            self.optional_integer("y_exponent", -_MOST_EXPONENT, _MOST_EXPONENT),
        )


def load_samples(source: DataSource) -> Samples:
    """Read a dataset into its canonical table and compute its root (``Samples.spec.root``).

    u8, i8, i16 and i32 stay as they are; wider integers become i32 where they fit.  Floats become
    int16 mantissas q with value = q * 2^-exponent, rounded half up.  DataError names the file and
    the sample: unreadable, malformed, NaN, infinite, beyond the range of its type, or more than
    this machine holds (``vtrain.limits``).
    """
    exponents: tuple[int | None, int | None] = (None, None)
    match source:
        case TextSource():
            return with_root(_load_text(source))
        case TokenSource():
            samples, first = _open_tokens(source, limits_here())
            _check_tokens(samples, source.vocabulary, str(source.path), first)
            return with_root(samples)
        case IdxSource():
            names = (str(source.x), str(source.y))
        case NpySource():
            names = (str(source.x), str(source.y))
            exponents = (source.x_exponent, source.y_exponent)
        case NpzSource():
            names = (f"{source.path}:{source.x_key}", f"{source.path}:{source.y_key}")
            exponents = (source.x_exponent, source.y_exponent)
    x, y = read_arrays(source)
    if len(x) != len(y):
        raise DataError(f"has {len(y)} samples, {names[0]} has {len(x)}", where=names[1])
    chosen = _choose(source.part, len(x), names[0])
    x, y = (
        _as_mantissas(array[chosen], exponent, name, chosen.start)
        for array, exponent, name in zip((x, y), exponents, names, strict=True)
    )
    return build_samples(x, y, exponents[0] or 0, exponents[1] or 0)


def read_arrays(source: IdxSource | NpySource | NpzSource) -> tuple[Array, Array]:
    """x and y as the files have them; DataError as of :func:`load_samples`."""
    match source:
        case IdxSource():
            x, y = (_read_idx(path) for path in (source.x, source.y))
        case NpySource():
            x, y = (_read_npy_file(path) for path in (source.x, source.y))
        case NpzSource():
            x, y = _read_npz(source.path, (source.x_key, source.y_key))
    return x, y


def build_samples(x: Array, y: Array, x_exponent: int = 0, y_exponent: int = 0) -> Samples:
    """Samples from integer arrays [samples, ...] of u8, i8, i16 or i32, with their root.

    DataError when they do not pair up, are empty, or are of another dtype.
    """
    if len(x) != len(y) or x.size == 0 or y.size == 0:
        raise DataError(
            f"x has the shape {x.shape} and y {y.shape}: "
            "both must have the same number of samples, at least one, and elements in each",
            where="samples",
        )
    spec = DataSpec(
        root=bytes(32),
        samples=len(x),
        x_dtype=_dtype_name(x, "x"),
        x_shape=x.shape[1:],
        x_exponent=x_exponent,
        y_dtype=_dtype_name(y, "y"),
        y_shape=y.shape[1:],
        y_exponent=y_exponent,
    )
    _require_size(compute_row_length(spec) * spec.samples, LIMITS.samples_bytes, "samples")
    rows = (
        np.ascontiguousarray(part, NUMPY_DTYPES[dtype]).reshape(spec.samples, -1).view(np.uint8)
        for part, dtype in ((x, spec.x_dtype), (y, spec.y_dtype))
    )
    return with_root(Samples(spec, np.concatenate(list(rows), axis=1)))


def compute_samples_root(samples: Samples) -> bytes:
    """RFC 9162 root over the rows of the table, 32 bytes, by the Rust core; for windows the plain
    BLAKE3 of the token bytes."""
    if samples.spec.windows is None:
        return compute_root_fixed(domains.SAMPLES, np.ascontiguousarray(samples.table))
    if not isinstance(samples.table, np.memmap):
        return compute_tensor_digest(samples.table)
    hasher = blake3(max_threads=blake3.AUTO)
    for block in Blocks(samples.table):
        hasher.update(block.data)
    return hasher.digest()


class Blocks:
    """The bytes of a table in turn, in blocks of 16 MiB; may be gone through again.

    Of a mapped file, what was read goes back to the system with each block, and is read again where
    it is needed: whoever goes through 10 GB holds one block of them.
    """

    def __init__(self, table: npt.NDArray[np.uint8]) -> None:
        self._table = table

    def __iter__(self) -> Iterator[npt.NDArray[np.uint8]]:
        flat = np.asarray(self._table).reshape(-1)
        mapped = getattr(self._table, "_mmap", None)
        for start in range(0, flat.size, _COPY_BLOCK):
            yield flat[start : start + _COPY_BLOCK]
            if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


def with_root(samples: Samples) -> Samples:
    """The same samples with ``spec.root`` computed from them."""
    return Samples(replace(samples.spec, root=compute_samples_root(samples)), samples.table)


def read_samples(
    path: Path, spec: DataSpec, limits: Limits | None = None, *, root: Path | None = None
) -> Samples:
    """The canonical table (or the tokens) in a file, ``data/samples.bin``, in a copy of our own:
    nobody can change or cut it under its reader, who would die of SIGBUS.

    The copy is in memory up to ``limits.held_samples_bytes`` (``limits`` are those of this machine
    unless given), in an unnamed temporary file mapped read-only above.  Only the size is checked:
    compare :func:`compute_samples_root` with ``spec.root``.  ``root`` is the run folder that it
    lies in.  NotProducedError when the file is missing, a link below ``root`` or no regular file,
    DataError when it is of another size or of more than ``limits.samples_bytes``, StorageError when
    there is no room for the copy.
    """
    limits = limits_here() if limits is None else limits
    length = compute_samples_length(spec)
    shape = (spec.samples, compute_row_length(spec)) if spec.windows is None else (length,)
    where = str(path)
    with open_file(path, sys.maxsize, root=root) as file, storing(path):
        size = file.size
        if size != length:
            raise DataError(f"has {size} bytes instead of {length}", where=where)
        _require_size(size, limits.samples_bytes, where)
        refuse_holes(file, path)
        if size <= limits.held_samples_bytes:
            data = _read_exactly(file, size, where)
            return Samples(spec, np.frombuffer(data, np.uint8).reshape(shape))
        _require_room(size)
        with tempfile.TemporaryFile() as copy:
            left = size
            while left:
                left -= copy.write(_read_exactly(file, min(left, _COPY_BLOCK), where))
            copy.flush()
            return Samples(spec, np.memmap(copy, dtype=np.uint8, mode="r", shape=shape))


class PartialSamples:
    """Samples of which only those are here that were put: the others read as zeros.

    They are in memory up to ``limits.held_samples_bytes``, above in an unnamed temporary file that
    has room for what is put alone.  DataError for more than ``limits.samples_bytes``, StorageError.
    """

    def __init__(self, spec: DataSpec, limits: Limits) -> None:
        length = compute_samples_length(spec)
        _require_size(length, limits.samples_bytes, "samples")
        shape = (spec.samples, compute_row_length(spec)) if spec.windows is None else (length,)
        self._file: IO[bytes] | None = None
        if length <= limits.held_samples_bytes:
            self._flat = np.zeros(length, np.uint8)
            self.samples = Samples(spec, self._flat.reshape(shape))
            return
        with storing(Path(tempfile.gettempdir())):
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the map outlives it
            self._file.truncate(length)
            table = np.memmap(self._file, dtype=np.uint8, mode="r", shape=shape)
        self.samples = Samples(spec, table)

    def put(self, start: int, data: bytes) -> None:
        """Fill the bytes from ``start`` on, within the table; StorageError."""
        if self._file is None:
            self._flat[start : start + len(data)] = np.frombuffer(data, np.uint8)
            return
        with storing(Path(tempfile.gettempdir())):
            # Not through the map: on a full disk that would be a signal, and not an error.
            self._file.seek(start)
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) or 0 :]


def _require_room(size: int) -> None:
    """StorageError, before anything is written, unless there is room for a copy."""
    folder = Path(tempfile.gettempdir())
    with storing(folder):
        free = shutil.disk_usage(folder).free
    if size > free:
        raise StorageError(
            f"has {free} bytes free, a copy of the samples needs {size}: set TMPDIR to a larger "
            "folder",
            where=str(folder),
        )


def gather_batch(samples: Samples, seed: int, batch: int, step: int) -> tuple[Array, Array]:
    """x and y of the batch of ``step`` (from 1), as they are committed to: [batch, ...shape]."""
    index = _core.batch_indices(seed, samples.spec.samples, batch, step - 1)
    return samples.gather("x", index), samples.gather("y", index)


def check_labels(samples: Samples, classes: int, ignored: int | None = None) -> None:
    """DataError, naming the first sample and place, unless each y is a label in [0, classes), or
    the one that the loss ignores."""
    _check_numbers(samples, "y", "label", classes, ignored)


def check_ids(samples: Samples, rows: int) -> None:
    """DataError, naming the first sample and place, unless each x is an id in [0, rows)."""
    _check_numbers(samples, "x", "id", rows)


def check_padding(samples: Samples, padding: int) -> None:
    """DataError, naming the first sample and place, unless each x has this id before its first
    token and after its last alone: a mask hides spans at the ends, and no place between tokens."""
    found = (
        _find_padding_of_rows(samples.part("x"), padding)
        if samples.spec.windows is None
        else _find_padding_of_windows(samples, samples.spec.windows, padding)
    )
    if found is not None:
        sample, place = found
        raise DataError(
            f"padding {padding} has tokens before it and after it: move it to an end of the "
            "sample, or name the id that ends a text as model.end_of_text",
            where=f"sample {sample}, id {place}",
        )


def _find_padding_of_rows(x: Array, padding: int) -> tuple[int, int] | None:
    """(sample, place) of the first padding with tokens around it."""
    for start in range(0, len(x), _BLOCK):
        is_token = x[start : start + _BLOCK] != padding
        before = np.logical_or.accumulate(is_token, axis=1)
        after = np.logical_or.accumulate(is_token[:, ::-1], axis=1)[:, ::-1]
        inner = np.argwhere(~is_token & before & after)
        if len(inner):
            return start + int(inner[0, 0]), int(inner[0, 1])
    return None


def _find_padding_of_windows(
    samples: Samples, windows: Windows, padding: int
) -> tuple[int, int] | None:
    """The same of windows, of which only each run of padding is looked at."""
    tokens = samples.table.view(f"<u{windows.width}")
    last = (windows.count - 1) * windows.stride
    begun = np.zeros(0, np.int64)
    padded = False
    for start in range(0, windows.tokens, _COPY_BLOCK):
        is_padding = tokens[start : start + _COPY_BLOCK] == padding
        change = np.diff(is_padding.astype(np.int8), prepend=np.int8(padded))
        padded = bool(is_padding[-1])
        begun = np.concatenate([begun, start + np.flatnonzero(change == 1)])
        ended = start + np.flatnonzero(change == -1)
        begins, begun = begun[: len(ended)], begun[len(ended) :]
        # The first window that has the token after the run; it has one before it if it begins so.
        first = -(-np.maximum(ended + 1 - windows.context, 0) // windows.stride) * windows.stride
        inner = np.flatnonzero((first < begins) & (first <= last))
        if len(inner):
            run = int(inner[0])
            return int(first[run]) // windows.stride, int(begins[run] - first[run])
    return None


def _check_numbers(
    samples: Samples, part: str, what: str, count: int, ignored: int | None = None
) -> None:
    spec = samples.spec
    if (spec.x_exponent if part == "x" else spec.y_exponent) != 0:
        raise DataError(f"{what}s are whole numbers, of exponent 0", where=f"samples.{part}")
    if spec.windows is not None:
        _check_tokens(samples, count, "samples", 0)
        return
    numbers = samples.part(part)
    outside = (numbers < 0) | (numbers >= count)
    if ignored is not None:
        outside &= numbers.astype(np.int64) != ignored
    wrong = np.flatnonzero(outside)
    if wrong.size:
        sample, *place = (int(along) for along in np.unravel_index(wrong[0], numbers.shape))
        number = int(numbers[(sample, *place)])
        where = f"sample {sample}" + (f", {what} {place}" if place else "")
        hint = (
            f": if the loss is to ignore such targets, set ignore = {number} in the table model"
            if what == "label" and number < 0
            else ""
        )
        raise DataError(f"{what} {number} is not in [0, {count}){hint}", where=where)


def _choose(part: Part, available: int, where: str, what: str = "samples") -> slice:
    stop = available if part.count is None else part.start + part.count
    if not 0 <= part.start < stop <= available:
        raise DataError(
            f"{what} {part.start} to {stop} were asked for, there are {available}", where=where
        )
    return slice(part.start, stop)


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Errors of the file system and of the unpackers -> DataError."""
    try:
        yield
    except _ARCHIVE_ERRORS as error:
        raise DataError(f"is damaged: {error}", where=where) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=where) from None


def _require_size(size: int, limit: int, where: str) -> None:
    if size > limit:
        raise DataError(f"needs {size} bytes, more than the {limit} taken here", where=where)


def _dtype_name(array: Array, where: str) -> str:
    name = _LAW_DTYPES.get(array.dtype.newbyteorder("<"))
    if name is None:
        raise DataError(
            f"elements of type {array.dtype} are not supported: convert them to u8, i8, i16 or i32",
            where=where,
        )
    return name


def _as_mantissas(array: Array, exponent: int | None, where: str, first: int) -> Array:
    """Elements as u8, i8, i16 or i32; ``first`` is the index of the first sample in its file."""
    if array.dtype.kind == "f":
        return _quantize(array, exponent, where, first)
    if array.dtype.newbyteorder("<") in _LAW_DTYPES:
        return array
    if array.dtype.kind not in "iu":
        raise DataError(
            f"elements of type {array.dtype} are not supported: convert them to integers or floats",
            where=where,
        )
    lo, hi = STORAGE["i32"]
    _refuse_samples((array < lo) | (array > hi), "does not fit int32", where, first)
    return array.astype(np.int32)


def find_exponent(values: Array) -> int | None:
    """The finest exponent at which an int16 mantissa holds each of some floats; None where there is
    none: a value is NaN or infinite, or all are so large or so small."""
    largest = 0.0
    for start in range(0, len(values), _BLOCK):
        with np.errstate(invalid="ignore"):
            block = values[start : start + _BLOCK].astype(np.float64)
        found = float(np.max(np.abs(block))) if block.size else 0.0
        if not math.isfinite(found):
            return None
        largest = max(largest, found)
    if largest == 0:
        return 0
    # The power of two before it is exact: the mantissa of the largest lies in (limit / 2, limit].
    exponent = math.frexp(SATURATION["i16"][1] / largest)[1] - 1
    return exponent if -_MOST_EXPONENT <= exponent <= _MOST_EXPONENT else None


def _suggest(values: Array) -> str:
    fits = find_exponent(values)
    return "" if fits is None else f": {fits} fits"


def _quantize(array: Array, exponent: int | None, where: str, first: int) -> Array:
    if exponent is None:
        raise DataError(
            "holds floats, and the task file does not say their exponent (fraction bits), as "
            f"x_exponent or y_exponent{_suggest(array)}",
            where=where,
        )
    if array.dtype.itemsize > 8:
        raise DataError(
            f"elements of type {array.dtype} are not supported: convert them to float64 or shorter",
            where=where,
        )
    lo, hi = SATURATION["i16"]
    out = np.empty(array.shape, np.int16)
    for start in range(0, len(array), _BLOCK):
        with np.errstate(invalid="ignore"):  # a signalling NaN, refused below as any NaN is
            block = array[start : start + _BLOCK].astype(np.float64)
        _refuse_samples(~np.isfinite(block), "is NaN or infinite", where, first + start)
        # Half-up rounding leaves the range only at lo - 1/2 (exclusive) and hi + 1/2.
        with np.errstate(over="ignore"):  # to infinity, which is beyond any range
            scaled = np.ldexp(block, exponent)
        beyond = (scaled < lo - 0.5) | (scaled >= hi + 0.5)
        if beyond.any():
            why = f"saturates at exponent {exponent}{_suggest(array)}"
            _refuse_samples(beyond, why, where, first + start)
        out[start : start + _BLOCK] = round_to_mantissa(block, exponent)
    return out


def _refuse_samples(wrong: npt.NDArray[np.bool_], why: str, where: str, first: int) -> None:
    if wrong.any():
        sample = int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1)))
        raise DataError(f"sample {first + sample} has an element that {why}", where=where)


def _load_text(source: TextSource) -> Samples:
    where = str(source.path)
    limit = limits_here().data_bytes
    text = np.frombuffer(read_file(source.path, limit, error=DataError), dtype=np.uint8)
    row = source.context + 1
    available = (len(text) - row) // source.stride + 1 if len(text) >= row else 0
    chosen = _choose(source.part, available, where)
    _require_size((chosen.stop - chosen.start) * row, limit, where)
    windows = np.lib.stride_tricks.sliding_window_view(text, row)[:: source.stride][chosen]
    spec = DataSpec(bytes(32), len(windows), "u8", (source.context,), 0, "u8", (), 0)
    return Samples(spec, np.ascontiguousarray(windows))


def open_tokens(source: TokenSource, limits: Limits | None = None) -> Samples:
    """The windows of a file of tokens; ``spec.root`` is zeros and no id has been looked at.

    The file is held in memory up to ``limits.held_samples_bytes`` (of this machine unless given).
    A larger one is mapped, and read where a step needs it: whoever cuts it off meanwhile ends the
    process.  DataError names the file: unreadable, empty, no whole number of tokens, cut short, or
    too short for one window.
    """
    return _open_tokens(source, limits_here() if limits is None else limits)[0]


def _open_tokens(source: TokenSource, limits: Limits) -> tuple[Samples, int]:
    """:func:`open_tokens`, and the position of the first token in the file."""
    where = str(source.path)
    with _reading(where), open_file(source.path, sys.maxsize, error=DataError) as file:
        dtype, first, found = _find_tokens(file, source.dtype, where)
        width = TOKEN_WIDTHS[dtype]
        if found == 0:
            raise DataError("is empty", where=where)
        chosen = _choose(source.part, found, where, "tokens")
        if source.split is not None:
            chosen = source.split.choose(chosen)
        windows = Windows(
            dtype, chosen.stop - chosen.start, source.context, source.stride, source.shift
        )
        if windows.count < 1:
            raise DataError(
                f"{windows.tokens} tokens are too few: a window of {source.context} whose labels "
                f"are {source.shift} further takes {source.context + source.shift}",
                where=where,
            )
        start, size = first + chosen.start * width, windows.tokens * width
        _require_size(size, limits.samples_bytes, where)
        table: npt.NDArray[np.uint8]
        if size <= limits.held_samples_bytes:
            file.seek(start)
            table = np.frombuffer(_read_exactly(file, size, where), np.uint8)
        else:
            table = np.memmap(file, dtype=np.uint8, mode="r", offset=start, shape=(size,))
    return Samples(describe_windows(windows), table), chosen.start


def _find_tokens(file: BoundedFile, dtype: str | None, where: str) -> tuple[str, int, int]:
    """(token type, byte of the first token, number of tokens) of a file; ``dtype`` as asked for."""
    is_array = file.read(len(_NPY_MAGIC)) == _NPY_MAGIC
    file.seek(0)
    if not is_array:
        if dtype is None:
            raise DataError(
                f"is no .npy: name data.dtype, one of {', '.join(_TOKEN_FILES)}", where=where
            )
        tokens, rest = divmod(file.size, TOKEN_WIDTHS[dtype])
        if rest:
            raise DataError(
                f"has {file.size} bytes, which is no whole number of {dtype} tokens", where=where
            )
        return dtype, 0, tokens
    array, _, shape = _read_npy_header(file, where)
    kind = TOKEN_ARRAYS.get(f"{array.kind}{array.itemsize}")
    if kind is None or array.byteorder == ">":
        raise DataError(
            f"has elements of type {array}: tokens are little-endian uint16, uint32, int32 or "
            "int64",
            where=where,
        )
    if dtype not in (None, kind):
        raise DataError(f"has tokens of {kind}, the task file says {dtype}", where=where)
    if len(shape) != 1:
        raise DataError(f"has the shape {shape}, tokens have one axis", where=where)
    first = file.tell()
    missing = first + shape[0] * array.itemsize - file.size
    if missing > 0:
        raise DataError(f"ends {missing} bytes early", where=where)
    if missing < 0:
        raise DataError("has bytes after its last element", where=where)
    return kind, first, shape[0]


def _check_tokens(samples: Samples, vocabulary: int, where: str, first: int) -> None:
    """DataError, naming the first at fault, unless all ids are below ``vocabulary``; ``first`` is
    the position of the first token in its file."""
    windows = samples.spec.windows
    if windows is None or vocabulary >= 1 << (8 * windows.width):
        return
    for number, data in enumerate(Blocks(samples.table)):
        block = data.view(f"<u{windows.width}")
        start = number * (_COPY_BLOCK // windows.width)
        if int(block.max()) >= vocabulary:
            at = int(np.argmax(block >= vocabulary))
            found = int(block[at])
            sign = found >> (8 * windows.width - 1) and windows.width > 2
            signed = f" ({found - (1 << (8 * windows.width))} if it is signed)" if sign else ""
            raise DataError(
                f"token {first + start + at} is {found}{signed}, not in [0, {vocabulary}): raise "
                "data.vocabulary, or correct the file or its data.dtype",
                where=where,
            )


def _read_exactly(stream: IO[bytes], size: int, where: str) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise DataError(f"ends {size - len(data)} bytes early", where=where)
    return data


def _require_end(stream: IO[bytes], where: str) -> None:
    if stream.read(1):
        raise DataError("has bytes after its last element", where=where)


def _read_array(
    stream: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...], limit: int, where: str
) -> Array:
    """All that is left of ``stream`` as an array; never asks for more memory than it delivers."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    _require_size(size, limit, where)
    if size == 0:
        raise DataError("is empty", where=where)
    data = bytearray()
    while len(data) < size:
        data += _read_exactly(stream, min(size - len(data), 2**24), where)
    _require_end(stream, where)
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def _read_idx(path: Path) -> Array:
    """IDX (LeCun, MNIST page): 0, 0, type, rank, big-endian extents, elements."""
    where = str(path)
    limits = limits_here()
    with _reading(where), open_file(path, limits.data_bytes, error=DataError) as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            return _read_idx_stream(raw, limits.data_bytes, where)
        limit = _limit_unpacked(raw.size)
        with gzip.GzipFile(fileobj=raw) as stream:
            # GzipFile is a readable stream in all but its declared base class.
            return _read_idx_stream(io.BufferedReader(stream), limit, where)


def _limit_unpacked(packed: int) -> int:
    """Largest array that ``packed`` bytes may be unpacked to."""
    limits = limits_here()
    freely = max(limits.unpacked_freely_bytes, packed * limits.unpacked_ratio)
    return min(limits.unpacked_bytes, packed * DEFLATE_RATIO, freely)


def _read_idx_stream(stream: IO[bytes], limit: int, where: str) -> Array:
    zero, kind, rank = struct.unpack(">HBB", _read_exactly(stream, 4, where))
    if zero != 0 or kind not in _IDX_DTYPES or rank == 0:
        raise DataError("is not an IDX file of u8, i8, i16 or i32", where=where)
    if rank > MAX_RANK:
        raise DataError(f"has {rank} axes, more than {MAX_RANK}", where=where)
    shape = struct.unpack(f">{rank}I", _read_exactly(stream, 4 * rank, where))
    return _read_array(stream, np.dtype(_IDX_DTYPES[kind]), shape, limit, where)


def _read_npy_file(path: Path) -> Array:
    limit = limits_here().data_bytes
    with _reading(str(path)), open_file(path, limit, error=DataError) as stream:
        return _read_npy(stream, limit, str(path))


def _read_npy(stream: IO[bytes], limit: int, where: str) -> Array:
    dtype, fortran, shape = _read_npy_header(stream, where)
    if fortran:
        return _read_array(stream, dtype, shape[::-1], limit, where).T
    return _read_array(stream, dtype, shape, limit, where)


def _read_npy_header(stream: IO[bytes], where: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    """Element type, whether in Fortran's order, and shape, of NPY format 1.0 to 3.0 (NEP 1).

    The header is a Python literal; here only the form that a plain array of numbers has is
    accepted, and nothing is evaluated."""
    if _read_exactly(stream, 6, where) != _NPY_MAGIC:
        raise DataError("is not a .npy file", where=where)
    major, minor = _read_exactly(stream, 2, where)
    if (major, minor) not in ((1, 0), (2, 0), (3, 0)):
        raise DataError(f"has the unknown format version {major}.{minor}", where=where)
    prefix = "<H" if major == 1 else "<I"
    (length,) = struct.unpack(prefix, _read_exactly(stream, struct.calcsize(prefix), where))
    _require_size(length, LIMITS.npy_header_bytes, where)
    found = _NPY_HEADER.fullmatch(_read_exactly(stream, length, where))
    if found is None:
        raise DataError("has no header of a plain array of numbers", where=where)
    descr, fortran, extents = found.groups()
    try:
        dtype = np.dtype(descr.decode())
    except TypeError:
        raise DataError(f"has elements of unknown type {descr.decode()}", where=where) from None
    if dtype.kind not in "iuf":
        raise DataError(f"has elements of type {dtype}, which is no number", where=where)
    shape = tuple(int(extent) for extent in extents.split(b",") if extent.strip())
    if not shape:
        raise DataError("has no axis of samples", where=where)
    if len(shape) > MAX_RANK:
        raise DataError(f"has {len(shape)} axes, more than {MAX_RANK}", where=where)
    return dtype, fortran == b"True", shape


def list_arrays(path: Path) -> list[str]:
    """The names of the arrays in an archive of numpy; DataError for what is none."""
    where = str(path)
    with (
        _reading(where),
        open_file(path, limits_here().data_bytes, error=DataError) as file,
        zipfile.ZipFile(_ShortReads(file, where)) as archive,
    ):
        return [name.removesuffix(".npy") for name in archive.namelist()]


def _read_npz(path: Path, names: tuple[str, str]) -> tuple[Array, Array]:
    limit, where = limits_here().data_bytes, str(path)
    with (
        _reading(where),
        open_file(path, limit, error=DataError) as file,
        zipfile.ZipFile(_ShortReads(file, where)) as archive,
    ):
        x, y = (_read_member(archive, name, f"{path}:{name}") for name in names)
    return x, y


class _ShortReads:
    """A file of which no one read takes much: zipfile reads an archive's directory in one, and
    makes ten times its size of it."""

    def __init__(self, file: BoundedFile, where: str) -> None:
        self._file, self._where = file, where
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = self._file.size - self._file.tell()
        if size > _COPY_BLOCK:
            message = f"the archive's directory has {size} bytes, more than {_COPY_BLOCK}"
            raise DataError(message, where=self._where)
        return self._file.read(size)


def _read_member(archive: zipfile.ZipFile, name: str, where: str) -> Array:
    found = [info for info in archive.infolist() if info.filename == f"{name}.npy"]
    if len(found) != 1:
        raise DataError(f"the archive has {len(found)} arrays of this name", where=where)
    if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError("is compressed by other than deflate", where=where)
    # The archive's directory has the size too, and no more than that is unpacked.
    limit = min(_limit_unpacked(found[0].compress_size), found[0].file_size)
    with archive.open(found[0]) as stream:
        return _read_npy(stream, limit, where)
