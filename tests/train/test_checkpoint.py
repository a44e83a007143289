"""Checkpoints have one form for each graph: any other file is refused before it is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from tests.tasks import make_tiny_task
from vtrain.commit.checkpoint import (
    compute_checkpoint_size,
    encode_header,
    read_checkpoint,
    write_checkpoint,
)
from vtrain.commit.files import (
    FileEntry,
    compute_entry,
    open_file,
    read_entry,
    read_file,
    remove_temporaries,
    write_atomic,
)
from vtrain.commit.state import compute_root_of_state
from vtrain.errors import EncodingError, NotProducedError, RunError, StorageError
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.graph import Node, StepGraph, TensorType

TASK = make_tiny_task()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "c.safetensors"
    write_checkpoint(path, TASK.graph, TASK.initial_state)
    return path


def test_a_state_comes_back(path: Path) -> None:
    state = read_checkpoint(path, TASK.graph)
    assert compute_root_of_state(TASK.graph, state) == TASK.spec.initial_state_root
    assert state.keys() == TASK.initial_state.keys()
    state["step"] += 1  # a state read is one's own, to be trained on


def test_the_bytes_are_those_of_the_library(path: Path) -> None:
    content = path.read_bytes()
    assert content == save(dict(TASK.initial_state))
    assert len(content) == compute_checkpoint_size(TASK.graph)
    loaded = load_file(path)
    assert all(np.array_equal(loaded[name], TASK.initial_state[name]) for name in loaded)


def test_names_are_written_as_the_library_writes_them() -> None:
    names = ["step", "é", 'quote"', "back\\slash", "tab\t", "bell\x07", "\x7f", "中", "\U0001f600"]
    types = [TensorType("i64" if i % 4 == 0 else "i32", (i,), 0, 0, 0) for i in range(len(names))]
    graph = StepGraph(
        tuple(
            Node(str(i), "state", {"name": name}, (), (tensor,))
            for i, (name, tensor) in enumerate(zip(names, types, strict=True))
        )
    )
    state = {
        name: np.zeros(tensor.shape, NUMPY_DTYPES[tensor.dtype])
        for name, tensor in zip(names, types, strict=True)
    }
    assert save(state).startswith(encode_header(graph))


def test_every_header_byte_is_checked(path: Path) -> None:
    content = path.read_bytes()
    for byte in range(len(encode_header(TASK.graph))):
        flipped = bytearray(content)
        flipped[byte] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(EncodingError) as caught:
            read_checkpoint(path, TASK.graph)
        assert caught.value.where == f"{path}: byte {byte}"


def with_header(content: bytes, header: dict[str, object]) -> bytes:
    length = int.from_bytes(content[:8], "little")
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def test_other_files_are_refused(path: Path) -> None:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    state = dict(TASK.initial_state)
    renamed = {f"{name}x": value for name, value in state.items()}
    bad = {
        "empty": b"",
        "cut": content[:-1],
        "trailing": content + b"\0",
        "hostile length": b"\xff" * 8 + content[8:],
        "metadata": save(state, {"a": "b"}),
        "other names": save(renamed),
        "other dtype": save({name: value.astype(np.int64) for name, value in state.items()}),
        "missing": save({name: value for name, value in state.items() if name != "step"}),
        "spaces": with_header(content, header),
        "other order": with_header(content, dict(reversed(header.items()))),
    }
    for name, data in bad.items():
        path.write_bytes(data)
        with pytest.raises(EncodingError) as caught:
            read_checkpoint(path, TASK.graph)
        assert str(path) in caught.value.where, name


def test_missing_and_irregular_files(tmp_path: Path) -> None:
    with pytest.raises(NotProducedError, match="missing"):
        read_checkpoint(tmp_path / "none", TASK.graph)
    with pytest.raises(NotProducedError, match="not a regular"):
        read_checkpoint(tmp_path, TASK.graph)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotProducedError, match="not a regular"):
        read_checkpoint(tmp_path / "pipe", TASK.graph)
    with pytest.raises(NotProducedError, match="not a regular"), open_file(Path("/dev/zero"), 1):
        pass


def test_a_state_of_another_form_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    state = dict(TASK.initial_state)
    del state["step"]
    with pytest.raises(RunError, match="missing"):
        write_checkpoint(path, TASK.graph, state)
    state["step"] = np.zeros((), np.int32)
    with pytest.raises(RunError, match="needs i64"):
        write_checkpoint(path, TASK.graph, state)
    assert not path.exists()


def test_a_name_has_all_of_its_bytes_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, [b"old"])

    def fail(handle: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(StorageError, match="No space left") as caught:
            write_atomic(path, [b"new"])
    assert caught.value.where == str(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: write(handle, data[:3]))
        write_atomic(tmp_path / "file", [b"0123456789", np.arange(3, dtype=np.int32)])
    expected = b"0123456789" + np.arange(3, dtype=np.int32).tobytes()
    assert read_file(tmp_path / "file", 22) == expected
    assert read_entry(tmp_path / "file") == compute_entry([expected])
    with pytest.raises(NotProducedError, match="more than the 21 "):
        read_file(tmp_path / "file", 21)


def test_leftovers_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".file.tmp").touch()
    (tmp_path / "file.tmp").touch()
    remove_temporaries(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.tmp"]


def test_the_entry_of_nothing() -> None:
    empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert compute_entry([b"", np.zeros((0, 3), np.int32)]) == FileEntry(0, bytes.fromhex(empty))
