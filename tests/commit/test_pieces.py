"""Pieces: their names are hashes in the tree of the whole, and nothing passes that is not it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from vtrain import _core
from vtrain.commit.openings import compute_root_fixed
from vtrain.commit.pieces import (
    GRAIN_BYTES,
    PIECE_BYTES,
    Form,
    RowsForm,
    TensorForm,
    name_chunk,
    name_list,
    prefetch,
    read_units,
    read_whole,
    write_whole,
)
from vtrain.commit.store import FolderStore
from vtrain.errors import EncodingError, NotProducedError, StoreError
from vtrain.spec import blake3_tree
from vtrain.spec.domains import SAMPLES

LENGTHS = [
    0,
    1,
    1023,
    1024,
    1025,
    PIECE_BYTES - 1,
    PIECE_BYTES,
    PIECE_BYTES + 1,
    3 * PIECE_BYTES + 5,
]


def make_bytes(length: int) -> bytes:
    return np.random.default_rng(length).bytes(length)


def write(folder: Path, form: Form, data: bytes, *, grains: bool = False) -> bytes:
    return write_whole(
        FolderStore(folder), form, lambda part: data[part.start : part.stop], grains=grains
    )


@pytest.mark.parametrize("length", LENGTHS)
def test_a_tensor_is_written_under_its_digest_and_read_back(tmp_path: Path, length: int) -> None:
    data, form = make_bytes(length), TensorForm(length)
    root = write(tmp_path, form, data)
    assert root == blake3(data).digest()
    assert b"".join(read_whole(FolderStore(tmp_path), root, form)) == data
    assert max(path.stat().st_size for path in tmp_path.rglob("chunks/*")) <= PIECE_BYTES


@pytest.mark.parametrize(("rows", "row"), [(1, 1), (5, 7), (3, PIECE_BYTES + 1), (2500, 1000)])
def test_a_table_is_written_under_its_root_and_read_back(
    tmp_path: Path, rows: int, row: int
) -> None:
    data, form = make_bytes(rows * row), RowsForm(rows, row)
    root = write(tmp_path, form, data, grains=True)
    assert root == compute_root_fixed(SAMPLES, np.frombuffer(data, np.uint8).reshape(rows, row))
    assert b"".join(read_whole(FolderStore(tmp_path), root, form)) == data


@pytest.mark.parametrize("form", [TensorForm(2 * PIECE_BYTES + 5000), RowsForm(3000, 1000)])
@pytest.mark.parametrize("ranges", [True, False])
def test_parts_are_read_without_the_rest(tmp_path: Path, form: Form, ranges: bool) -> None:
    data = make_bytes(form.length)
    root = write(tmp_path, form, data, grains=True)
    store = FolderStore(tmp_path)
    store.ranges = ranges
    wanted = [(0, 1), (1030, 1032), (form.units - 1, form.units)]
    found = dict(read_units(store, root, form, wanted))
    for first, end in wanted:
        part = form.part(first, end)
        assert any(
            start <= part.start and part.stop <= start + len(have) for start, have in found.items()
        ), part
    assert all(data[start : start + len(have)] == have for start, have in found.items())
    # Three grains and the lists that show them, or the pieces that have them.
    assert (store.traffic.bytes < 8 * GRAIN_BYTES) == ranges


@settings(max_examples=30)
@given(st.data())
def test_any_byte_that_is_changed_is_refused(data: st.DataObject) -> None:
    """In the bytes of a piece, and in the list of a whole; that of a piece decides nothing."""
    import tempfile

    form = RowsForm(3000, 500) if data.draw(st.booleans()) else TensorForm(1_500_000)
    content = make_bytes(form.length)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = write(folder, form, content, grains=True)
        path = data.draw(
            st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file()))
        )
        spoiled = bytearray(path.read_bytes())
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(spoiled)
        store = FolderStore(folder)

        def read_all() -> None:
            # Each of the parts alone, so that every list is read; then all.
            for first in range(0, form.units, form.cut(GRAIN_BYTES)):
                for start, have in read_units(store, root, form, [(first, first + 1)]):
                    assert content[start : start + len(have)] == have
            list(read_whole(store, root, form))

        hashes = {
            form.compute_hash(content[p.start : p.stop], p.first, whole=False) for p in form.pieces
        }
        if path.parent.name == "lists" and bytes.fromhex(path.name) in hashes:
            read_all()  # of grains: the piece itself decides
            return
        with pytest.raises(NotProducedError, match="other bytes"):
            read_all()


@pytest.mark.parametrize("served", [b"", b"another", StoreError("is refused", where="lists")])
def test_a_list_of_grains_decides_nothing(tmp_path: Path, served: bytes | StoreError) -> None:
    """Whatever a store gives for it, the piece is read whole, and is right or is not."""
    form = RowsForm(3000, 500)
    data = make_bytes(form.length)
    root = write(tmp_path, form, data, grains=True)

    class Odd(FolderStore):
        def stream(self, name: str, most: int, **more: Any) -> Iterator[bytes]:
            if name.startswith("lists/") and name != name_list(root):
                if isinstance(served, StoreError):
                    raise served
                return iter([served])
            return super().stream(name, most, **more)

    ((start, found),) = read_units(Odd(tmp_path), root, form, [(0, 1)])
    assert found == data[start : start + len(found)]
    assert len(found) == form.pieces[0].size
    (first,) = [path for path in tmp_path.glob("chunks/*") if path.read_bytes() == found]
    first.write_bytes(bytes([found[0] ^ 1]) + found[1:])
    with pytest.raises(NotProducedError, match="other bytes"):
        list(read_units(Odd(tmp_path), root, form, [(0, 1)]))


def test_what_is_missing_or_of_another_length_is_named(tmp_path: Path) -> None:
    data, form = make_bytes(PIECE_BYTES + 1), TensorForm(PIECE_BYTES + 1)
    root = write(tmp_path, form, data)
    (last,) = [path for path in tmp_path.glob("chunks/*") if path.stat().st_size == 1]
    last.write_bytes(b"")
    with pytest.raises(NotProducedError, match="0 bytes, not 1") as error:
        list(read_whole(FolderStore(tmp_path), root, form))
    assert last.name in error.value.where
    last.unlink()
    with pytest.raises(NotProducedError, match="missing"):
        list(read_whole(FolderStore(tmp_path), root, form))
    (tmp_path / name_list(root)).write_bytes(bytes(32))
    with pytest.raises(NotProducedError, match="32 bytes, not 64"):
        list(read_whole(FolderStore(tmp_path), root, form))


def test_a_piece_at_another_place_has_another_name(tmp_path: Path) -> None:
    """So that nobody can show a piece of a tensor as another of its pieces."""
    form = TensorForm(2 * PIECE_BYTES)
    write(tmp_path, form, bytes(form.length))
    assert len(list(tmp_path.glob("chunks/*"))) == 2


def test_a_folder_is_taken_as_it_lies(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    folder = tmp_path / "store"
    write(folder, TensorForm(1), b"x")
    name = name_chunk(blake3(b"x").digest())
    (folder / name).unlink()
    (folder / name).symlink_to(secret)
    with pytest.raises(NotProducedError, match="link"):
        list(read_whole(FolderStore(folder), blake3(b"x").digest(), TensorForm(1)))


@pytest.mark.parametrize("name", ["../secret", "chunks/../../secret", "/etc/passwd", "a/b/c", ""])
def test_no_name_leads_out_of_a_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(Exception, match="is no name") as error:
        FolderStore(tmp_path).read(name, 10)
    assert error.value.code == "run"  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="is no name"):
        FolderStore(tmp_path).put(name, b"")


def test_no_more_is_asked_for_at_once_than_is_held() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item

    results = prefetch(work, range(100), ahead=3)
    assert next(results) == 0
    assert len(begun) <= 3
    assert list(results) == list(range(1, 100))


def test_vectors(tmp_path: Path) -> None:
    found = json.loads((Path(__file__).parents[1] / "vectors" / "pieces.json").read_text())
    wholes: list[tuple[Form, dict[str, Any], str]] = [
        *((TensorForm(case["length"]), case, case["digest"]) for case in found["tensors"]),
        *((RowsForm(case["rows"], case["row"]), case, case["root"]) for case in found["tables"]),
    ]
    for form, case, root in wholes:
        data = (bytes(range(251)) * (form.length // 251 + 1))[: form.length]
        assert write(tmp_path, form, data, grains=True).hex() == root
        assert all((tmp_path / "chunks" / name).is_file() for name in case["pieces"])
        assert len(form.pieces) == len(case["pieces"])
        if len(case["pieces"]) > 1:
            assert (tmp_path / "lists" / root).read_bytes().hex() == "".join(case["pieces"])
        (grains,) = case["grains"]
        assert len(form.list_grains(form.pieces[-1])) == len(grains)
        if len(grains) > 1:
            kept = tmp_path / "lists" / case["pieces"][-1]
            assert kept.read_bytes().hex() == "".join(grains)


# --- the core's twins of the law


@given(st.integers(0, 9), st.integers(0, 5000))
def test_the_value_of_a_part_is_that_of_the_law(first: int, length: int) -> None:
    data = make_bytes(length)
    for whole in (False, True):
        try:
            due = blake3_tree.compute_part_value(data, first, whole)
        except EncodingError:
            with pytest.raises(EncodingError):
                _core.chunk_part_value(data, first, whole)
        else:
            assert _core.chunk_part_value(data, first, whole) == due


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9])
def test_values_are_joined_as_the_law_has_it(count: int) -> None:
    data = make_bytes(2048 * count - 1000)
    values = [
        _core.chunk_part_value(data[at : at + 2048], at // 1024, False)
        for at in range(0, len(data), 2048)
    ]
    if count == 1:
        with pytest.raises(EncodingError):
            _core.join_chunk_values(values, True)
        with pytest.raises(EncodingError):
            blake3_tree.join_values(values, True)
        return
    assert _core.join_chunk_values(values, True) == blake3(data).digest()
    assert blake3_tree.join_values(values, True) == blake3(data).digest()
    inner = _core.join_chunk_values(values, False)
    assert inner == blake3_tree.join_values(values)
    assert inner == blake3_tree.compute_part_value(data, 0)
    with pytest.raises(EncodingError):
        _core.join_chunk_values([*values[:-1], b"short"], True)


def test_a_store_that_dawdles_over_many_small_things_is_asked_no_more(tmp_path: Path) -> None:
    now = 0.0

    class Slow(FolderStore):
        def stream(self, *args: object, **words: object):  # type: ignore[no-untyped-def]
            nonlocal now
            now += 29.0  # each within its own time
            yield from super().stream(*args, **words)  # type: ignore[arg-type]

    (tmp_path / "log.bin").write_bytes(b"x")
    store = Slow(tmp_path)
    store._clock = lambda: now
    with pytest.raises(StoreError, match="has taken") as error:
        assert [store.read("log.bin", 1) for _ in range(1000)]
    assert "log.bin" in error.value.where
    assert now < 700
