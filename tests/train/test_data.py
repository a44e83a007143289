"""Datasets: every format becomes the same table; whatever is not as it claims is refused."""

from __future__ import annotations

import gzip
import io
import struct
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vtrain.errors import DataError, NotProducedError, StorageError, TaskError
from vtrain.limits import Limits
from vtrain.spec import domains, merkle
from vtrain.spec.samples import Samples
from vtrain.train import data
from vtrain.train.data import (
    DataSource,
    IdxSource,
    NpySource,
    NpzSource,
    Part,
    TextSource,
    build_samples,
    check_labels,
    compute_samples_root,
    load_samples,
    parse_source,
    read_samples,
)

Array = npt.NDArray[Any]
X = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
Y = np.array([0, 1, 2, 1, 0], dtype=np.uint8)


def idx(array: Array, kind: int = 0x08) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def npy(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def write(folder: Path, **files: bytes) -> list[Path]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def little(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("<"))


def check_table(samples: Samples, x: Array, y: Array) -> None:
    assert np.array_equal(samples.part("x"), x)
    assert np.array_equal(samples.part("y"), y)
    rows = [
        a.tobytes() + b.tobytes()
        for a, b in zip(little(samples.part("x")), little(samples.part("y")), strict=True)
    ]
    assert [row.tobytes() for row in samples.table] == rows
    assert samples.spec.root == merkle.compute_root(domains.SAMPLES, rows)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_idx(tmp_path: Path, pack: Any) -> None:
    x, y = write(tmp_path, x=pack(idx(X)), y=pack(idx(Y)))
    samples = load_samples(IdxSource(x, y))
    check_table(samples, X, Y)
    assert (samples.spec.x_dtype, samples.spec.x_shape, samples.spec.samples) == ("u8", (2, 3), 5)
    assert (samples.spec.y_dtype, samples.spec.y_shape) == ("u8", ())


@pytest.mark.parametrize(("kind", "dtype"), [(0x09, "i1"), (0x0B, "i2"), (0x0C, "i4")])
def test_idx_is_big_endian(tmp_path: Path, kind: int, dtype: str) -> None:
    values = np.array([[-3, 100], [5, -128]], dtype=dtype)
    x, y = write(tmp_path, x=idx(values, kind), y=idx(Y[:2]))
    samples = load_samples(IdxSource(x, y))
    check_table(samples, values, Y[:2])
    assert samples.spec.x_dtype == f"i{8 * values.dtype.itemsize}"


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i2", "<i4", ">i4"])
def test_npy(tmp_path: Path, dtype: str, order: Any) -> None:
    values = np.asarray(X, dtype=dtype, order=order)
    x, y = write(tmp_path, x=npy(values), y=npy(Y))
    check_table(load_samples(NpySource(x, y)), X, Y)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_npy_version(tmp_path: Path, version: tuple[int, int]) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, X, version=version)
    x, y = write(tmp_path, x=stream.getvalue(), y=npy(Y))
    check_table(load_samples(NpySource(x, y)), X, Y)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "d.npz", images=X, labels=Y)
    check_table(load_samples(NpzSource(tmp_path / "d.npz", "images", "labels")), X, Y)


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "u2", "u4", "u8"])
def test_wide_integers_are_narrowed_where_they_fit(tmp_path: Path, dtype: str) -> None:
    x, y = write(tmp_path, x=npy(X), y=npy(Y.astype(dtype)))
    samples = load_samples(NpySource(x, y))
    assert samples.spec.y_dtype == "i32"
    check_table(samples, X, Y)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, -(2**63)])
def test_wide_integers_that_do_not_fit_are_refused(tmp_path: Path, value: int) -> None:
    x, y = write(tmp_path, x=npy(X), y=npy(np.array([0, 1, 2, value, 4], np.int64)))
    with pytest.raises(DataError, match=r"sample 3 .* does not fit int32") as caught:
        load_samples(NpySource(x, y))
    assert caught.value.where == str(y)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
def test_floats_become_mantissas_rounded_half_up(tmp_path: Path, dtype: str) -> None:
    values = np.array([[0.5, -0.5], [0.125, -0.125], [1.375, -7.875]], dtype=dtype)
    x, y = write(tmp_path, x=npy(values), y=npy(Y[:3]))
    samples = load_samples(NpySource(x, y, x_exponent=2))
    check_table(samples, np.array([[2, -2], [1, 0], [6, -31]], np.int16), Y[:3])
    assert (samples.spec.x_dtype, samples.spec.x_exponent) == ("i16", 2)


def test_floats_at_the_end_of_the_range(tmp_path: Path) -> None:
    just = np.array([[32639.4999], [-32639.5]])
    x, y = write(tmp_path, x=npy(just), y=npy(Y[:2]))
    samples = load_samples(NpySource(x, y, x_exponent=0))
    assert samples.part("x").ravel().tolist() == [32639, -32639]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "NaN"),
        (np.inf, "NaN"),
        (-np.inf, "NaN"),
        (32639.5, "saturates"),
        (-32639.50001, "saturates"),
        (1e300, "saturates"),
    ],
)
def test_floats_that_have_no_mantissa_are_refused(
    tmp_path: Path, value: float, message: str
) -> None:
    values = np.zeros((data._BLOCK + 9, 2))
    values[data._BLOCK + 5, 1] = value
    x, y = write(tmp_path, x=npy(values), y=npy(np.zeros(len(values), np.uint8)))
    with pytest.raises(DataError, match=f"sample {data._BLOCK + 5} .*{message}"):
        load_samples(NpySource(x, y, x_exponent=0))
    chosen = load_samples(NpySource(x, y, x_exponent=0, part=Part(0, 7)))
    assert chosen.spec.samples == 7, "samples that are not taken do no harm"


def test_an_overflowing_scale_saturates(tmp_path: Path) -> None:
    x, y = write(tmp_path, x=npy(np.array([[1e300]])), y=npy(Y[:1]))
    with pytest.raises(DataError, match="saturates at exponent 64"):
        load_samples(NpySource(x, y, x_exponent=64))


def test_floats_need_an_exponent(tmp_path: Path) -> None:
    x, y = write(tmp_path, x=npy(X.astype(np.float32)), y=npy(Y))
    with pytest.raises(DataError, match="exponent"):
        load_samples(NpySource(x, y))


@pytest.mark.parametrize("dtype", ["c8", "?", "U3", "O", "M8[s]", "longdouble"])
def test_other_elements_are_refused(tmp_path: Path, dtype: str) -> None:
    x, y = write(tmp_path, x=npy(np.zeros((5, 2), dtype)), y=npy(Y))
    with pytest.raises(DataError):
        load_samples(NpySource(x, y, x_exponent=0))


@pytest.mark.parametrize(
    ("context", "stride", "part"),
    [(4, 1, Part()), (4, 3, Part()), (1, 1, Part(2, 5)), (10, 1, Part()), (3, 100, Part())],
)
def test_text(tmp_path: Path, context: int, stride: int, part: Part) -> None:
    text = b"hello world"
    (path,) = write(tmp_path, text=text)
    starts = range(0, len(text) - context, stride)
    windows = [text[i : i + context] for i in starts][part.start :][: part.count]
    following = [text[i + context] for i in starts][part.start :][: part.count]
    samples = load_samples(TextSource(path, context, stride, part))
    x = np.frombuffer(b"".join(windows), np.uint8).reshape(-1, context)
    check_table(samples, x, np.array(following, np.uint8))


def test_text_that_is_too_short(tmp_path: Path) -> None:
    (path,) = write(tmp_path, text=b"hello")
    with pytest.raises(DataError, match="there are 0"):
        load_samples(TextSource(path, 5))


def test_a_part_is_taken_from_the_first_axis(tmp_path: Path) -> None:
    x, y = write(tmp_path, x=idx(X), y=idx(Y))
    check_table(load_samples(IdxSource(x, y, Part(1, 3))), X[1:4], Y[1:4])
    check_table(load_samples(IdxSource(x, y, Part(2))), X[2:], Y[2:])


@pytest.mark.parametrize("part", [Part(5), Part(0, 6), Part(4, 2), Part(-1, 2), Part(0, 0)])
def test_a_part_that_is_not_there(tmp_path: Path, part: Part) -> None:
    x, y = write(tmp_path, x=idx(X), y=idx(Y))
    with pytest.raises(DataError, match="there are 5"):
        load_samples(IdxSource(x, y, part))


def test_x_and_y_must_pair_up(tmp_path: Path) -> None:
    x, y = write(tmp_path, x=idx(X), y=idx(Y[:4]))
    with pytest.raises(DataError, match="has 4 samples"):
        load_samples(IdxSource(x, y))


@pytest.mark.parametrize("shape", [(0, 3), (5, 0)])
def test_nothing_is_no_dataset(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError):
        build_samples(np.zeros(shape, np.uint8), np.zeros(shape[0], np.uint8))


HOSTILE_IDX = {
    "empty": b"",
    "cut in the header": idx(X)[:7],
    "cut in the data": idx(X)[:-1],
    "trailing byte": idx(X) + b"\0",
    "wrong magic": b"\1" + idx(X)[1:],
    "floats": idx(X, 0x0D),
    "unknown type": idx(X, 0x42),
    "no axes": struct.pack(">HBBI", 0, 8, 0, 1),
    "huge": struct.pack(">HBB4I", 0, 8, 4, *[2**32 - 1] * 4) + b"\0" * 64,
    "more than it has": struct.pack(">HBB2I", 0, 8, 2, 2**17, 2**17) + b"\0" * 64,
    "no samples": struct.pack(">HBB2I", 0, 8, 2, 0, 5),
    "255 axes": struct.pack(">HBB255I", 0, 8, 255, *[1] * 255) + b"\0",
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", HOSTILE_IDX)
def test_hostile_idx(tmp_path: Path, name: str, pack: Any) -> None:
    x, y = write(tmp_path, x=pack(HOSTILE_IDX[name]), y=idx(Y))
    with pytest.raises(DataError) as caught:
        load_samples(IdxSource(x, y))
    assert caught.value.where == str(x)


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(idx(X))[:-9],
        gzip.compress(idx(X))[:12],
        gzip.compress(idx(X)) + b"trailing",
        flip(gzip.compress(idx(X)), -6),
        flip(gzip.compress(idx(X)), 14),
        b"\x1f\x8b",
    ],
    ids=["cut tail", "cut early", "trailing", "wrong checksum", "wrong stream", "magic alone"],
)
def test_damaged_gzip(tmp_path: Path, content: bytes) -> None:
    x, y = write(tmp_path, x=content, y=idx(Y))
    with pytest.raises(DataError) as caught:
        load_samples(IdxSource(x, y))
    assert caught.value.where == str(x)


def test_gzip_bombs_are_unpacked_no_further_than_their_header(tmp_path: Path) -> None:
    bomb = gzip.compress(idx(X) + bytes(2**26))
    x, y = write(tmp_path, x=bomb, y=idx(Y))
    with pytest.raises(DataError, match="after its last element"):
        load_samples(IdxSource(x, y))
    # The last two are within what is ever unpacked, but not in so small a file.
    for extents in ((2**16, 2**16), (2**13, 2**13), (2**10, 2**11)):
        claimed = struct.pack(">HBB2I", 0, 8, 2, *extents)
        x, y = write(tmp_path, x=gzip.compress(claimed + bytes(2**20)), y=idx(Y))
        with pytest.raises(DataError, match="more than"):
            load_samples(IdxSource(x, y))


def header(text: str, version: tuple[int, int] = (1, 0)) -> bytes:
    encoded = text.encode()
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H", len(encoded)) + encoded


PLAIN = "{'descr': '|u1', 'fortran_order': False, 'shape': (5, 6), }\n"
HOSTILE_NPY = {
    "empty": b"",
    "cut in the header": npy(X)[:40],
    "cut in the data": npy(X)[:-1],
    "trailing byte": npy(X) + b"\0",
    "unknown version": header(PLAIN, (9, 0)) + bytes(30),
    "code": header(PLAIN.replace("(5, 6)", "__import__('os')")) + bytes(30),
    "deep nesting": header(PLAIN.replace("(5, 6)", "(" * 9000)) + bytes(30),
    "negative": header(PLAIN.replace("5", "-5")) + bytes(30),
    "scalar": header(PLAIN.replace("(5, 6)", "()")) + bytes(1),
    "huge": header(PLAIN.replace("5", str(10**17))) + bytes(30),
    "many digits": header(PLAIN.replace("5", "5" * 5000)) + bytes(30),
    "33 axes": header(PLAIN.replace("(5, 6)", "(" + "1," * 33 + ")")) + bytes(1),
    "structured": npy(np.zeros(5, [("a", "u1"), ("b", "i4")])),
    "three-byte integers": header(PLAIN.replace("|u1", "<i3")) + bytes(90),
    "pickle": npy(np.array([{}, []], dtype=object)),
    "long header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * 100,
}


@pytest.mark.parametrize("name", HOSTILE_NPY)
def test_hostile_npy(tmp_path: Path, name: str) -> None:
    x, y = write(tmp_path, x=HOSTILE_NPY[name], y=npy(Y))
    with pytest.raises(DataError) as caught:
        load_samples(NpySource(x, y))
    assert caught.value.where == str(x)
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("x.npy", HOSTILE_NPY[name])
        archive.writestr("y.npy", npy(Y))
    with pytest.raises(DataError) as caught:
        load_samples(NpzSource(tmp_path / "d.npz"))
    assert caught.value.where == f"{tmp_path / 'd.npz'}:x"


def test_the_accepted_header_is_numpys() -> None:
    content = header(PLAIN) + bytes(30)
    assert np.array_equal(np.load(io.BytesIO(content)), data._read_npy(io.BytesIO(content), 99, ""))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_npz_compressed_otherwise(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w", method) as archive:
        archive.writestr("x.npy", npy(X))
        archive.writestr("y.npy", npy(Y))
    with pytest.raises(DataError, match="deflate"):
        load_samples(NpzSource(tmp_path / "d.npz"))


def test_npz_without_or_with_two_arrays_of_a_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X)
    with pytest.raises(DataError, match="0 arrays"):
        load_samples(NpzSource(tmp_path / "d.npz"))
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(tmp_path / "d.npz", "a") as archive,
    ):
        archive.writestr("x.npy", npy(X))
    with pytest.raises(DataError, match="2 arrays"):
        load_samples(NpzSource(tmp_path / "d.npz"))


@pytest.mark.parametrize("extent", [str(2**20), str(2**13), str(2**12 + 1)])
def test_npz_bomb(tmp_path: Path, extent: str) -> None:
    """Far too large; more than the compressed bytes can hold; more than the archive says it has."""
    huge = header(PLAIN.replace("5", extent).replace("6", extent))
    with zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", huge + bytes(2**24))
        archive.writestr("y.npy", npy(Y))
    with pytest.raises(DataError, match="more than"):
        load_samples(NpzSource(tmp_path / "d.npz"))


def test_damaged_npz(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, x=X, y=Y)
    whole = stream.getvalue()
    for content in (b"", whole[:-30], whole[: len(whole) // 2], flip(whole, 90)):
        (path,) = write(tmp_path, d=content)
        with pytest.raises(DataError):
            load_samples(NpzSource(path))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    sources: list[DataSource] = [
        IdxSource(missing, missing),
        NpySource(missing, missing),
        NpzSource(missing),
        TextSource(missing, 3),
        IdxSource(tmp_path, tmp_path),
    ]
    for source in sources:
        with pytest.raises(DataError, match="cannot be read"):
            load_samples(source)


def test_labels_are_checked() -> None:
    check_labels(build_samples(X, Y), 3)
    with pytest.raises(DataError, match="label 2 is not in") as caught:
        check_labels(build_samples(X, Y), 2)
    assert caught.value.where == "sample 2"
    with pytest.raises(DataError, match="label -1"):
        check_labels(build_samples(X, np.array([0, -1, 0, 0, 0], np.int8)), 2)
    many = np.array([[0, 1], [2, 0], [1, 3], [0, 0], [4, 0]], np.int8)
    check_labels(build_samples(X, many), 5)
    with pytest.raises(DataError, match="label 3 is not in") as caught:
        check_labels(build_samples(X, many), 3)
    assert caught.value.where == "sample 2, label [1]"
    with pytest.raises(DataError, match="exponent 0"):
        check_labels(build_samples(X, Y, y_exponent=1), 3)


def test_every_byte_counts_in_the_root() -> None:
    samples = build_samples(X, Y)
    table = samples.table.copy()
    table[3, 6] ^= 1
    assert compute_samples_root(Samples(samples.spec, table)) != samples.spec.root


@pytest.mark.parametrize("hold", [0, 2**30])
def test_a_table_is_read_back_into_a_copy_of_our_own(tmp_path: Path, hold: int) -> None:
    """In memory or in a temporary file: cutting the original does no harm."""
    limits = Limits(held_samples_bytes=hold)
    samples = build_samples(X.astype(np.int32), Y)
    path = tmp_path / "samples.bin"
    path.write_bytes(samples.table.tobytes())
    again = read_samples(path, samples.spec, limits)
    path.write_bytes(b"")
    check_table(again, X, Y)
    assert compute_samples_root(again) == samples.spec.root
    path.write_bytes(samples.table.tobytes() + b"\0")
    with pytest.raises(DataError, match="instead of"):
        read_samples(path, samples.spec, limits)
    with pytest.raises(NotProducedError):
        read_samples(tmp_path / "missing", samples.spec, limits)
    path.write_bytes(samples.table.tobytes())
    with pytest.raises(DataError, match="more than the 10 "):
        read_samples(path, samples.spec, replace(limits, samples_bytes=10))


def test_no_room_for_the_copy_of_a_table_is_an_error_of_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = build_samples(X, Y)
    path = tmp_path / "samples.bin"
    path.write_bytes(samples.table.tobytes())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(StorageError):
        read_samples(path, samples.spec, Limits(held_samples_bytes=0))
    assert len(read_samples(path, samples.spec).table) == 5


def test_sources_are_parsed() -> None:
    base = Path("/base")
    x, y = base / "a", base / "b"
    part = Part(3, 9)
    slices = {"start": 3, "count": 9}
    assert parse_source({"kind": "idx", "x": "a", "y": "b"}, base) == IdxSource(x, y)
    assert parse_source({"kind": "idx", "x": "a", "y": "b", **slices}, base) == IdxSource(
        x, y, part
    )
    assert parse_source(
        {"kind": "npy", "x": "a", "y": "b", "x_exponent": -2, **slices}, base
    ) == NpySource(x, y, -2, None, part)
    assert parse_source({"kind": "npz", "path": "a", "y_key": "t"}, base) == NpzSource(x, y_key="t")
    assert parse_source({"kind": "text", "path": "a", "context": 8, "stride": 2}, base) == (
        TextSource(x, 8, 2)
    )
    assert parse_source({"kind": "text", "path": "/c", "context": 8}, base) == TextSource(
        Path("/c"), 8
    )


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "kind"),
        ({"kind": "csv"}, "kind"),
        ({"kind": 3}, "kind"),
        ({"kind": "idx", "x": "a"}, "y"),
        ({"kind": "idx", "x": "", "y": "b"}, "x"),
        ({"kind": "idx", "x": 5, "y": "b"}, "x"),
        ({"kind": "idx", "x": "a", "y": "b", "z": 1}, "z"),
        ({"kind": "idx", "x": "a", "y": "b", "x_exponent": 1}, "x_exponent"),
        ({"kind": "idx", "x": "a", "y": "b", "start": -1}, "start"),
        ({"kind": "idx", "x": "a", "y": "b", "start": True}, "start"),
        ({"kind": "idx", "x": "a", "y": "b", "count": 0}, "count"),
        ({"kind": "idx", "x": "a", "y": "b", "count": "3"}, "count"),
        ({"kind": "npy", "x": "a", "y": "b", "x_exponent": 65}, "x_exponent"),
        ({"kind": "npy", "x": "a", "y": "b", "y_exponent": 1.5}, "y_exponent"),
        ({"kind": "npz"}, "path"),
        ({"kind": "npz", "path": "a", "x_key": 1}, "x_key"),
        ({"kind": "text", "path": "a"}, "context"),
        ({"kind": "text", "path": "a", "context": 0}, "context"),
        ({"kind": "text", "path": "a", "context": 1, "stride": 0}, "stride"),
    ],
)
def test_keys_of_a_data_table_are_checked(table: dict[str, object], key: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse_source(table, Path())
    assert caught.value.where == f"data.{key}"


def test_a_mistyped_key_is_named_with_the_one_that_is_missing() -> None:
    with pytest.raises(TaskError, match="unknown key, and context is missing") as caught:
        parse_source({"kind": "text", "path": "a", "contxt": 8}, Path())
    assert caught.value.where == "data.contxt"
    with pytest.raises(TaskError, match="is missing"):
        parse_source({"kind": "text", "context": 8}, Path())
