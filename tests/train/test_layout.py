"""The manifest has one text for each content: every flipped bit is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtrain.commit.files import FileEntry
from vtrain.errors import EncodingError, NotProducedError
from vtrain.train.layout import (
    Manifest,
    RunPaths,
    decode_manifest,
    encode_manifest,
    read_manifest,
)

MANIFEST = Manifest(
    run_id=bytes(range(32)),
    task_id=bytes(32),
    software="vtrain 0",
    engine="numpy",
    steps=12,
    counted_steps=14,
    saturation={"fc1": 3, "a/é": 1},
    files={"log.bin": FileEntry(17, bytes(32)), "checkpoints/0": FileEntry(0, b"\xff" * 32)},
)
TEXT = encode_manifest(MANIFEST)


def test_a_manifest_comes_back() -> None:
    assert decode_manifest(TEXT) == MANIFEST
    assert TEXT.endswith(b"}\n")


def test_a_flipped_bit_is_caught_or_read_as_another_value() -> None:
    for at in range(8 * len(TEXT)):
        flipped = bytearray(TEXT)
        flipped[at // 8] ^= 1 << at % 8
        try:
            found = decode_manifest(bytes(flipped))
        except EncodingError:
            continue
        # Digits and letters of names may turn into others: the canonical text of another manifest.
        assert found != MANIFEST
        assert encode_manifest(found) == flipped


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"  ", b" "),
        (b'"steps": 12', b'"steps": 12.0'),
        (b'"steps": 12', b'"steps": 1e1'),
        (b'"steps": 12', b'"steps": -1'),
        (b'"steps": 12', b'"steps": true'),
        (b'"steps": 12', b'"steps": null'),
        (b'"steps": 12', b'"steps": NaN'),
        (b'"steps": 12', b'"steps": ' + b"9" * 5000),
        (b'"steps": 12', b'"steps": 12,\n  "steps": 12'),
        (b'"steps": 12', b'"stepz": 12'),
        (b'"size": 17', b'"size": 17, "more": 1'),
        (b'"fc1": 3', b'"fc1": true'),
        (b'"format": 1', b'"format": 2'),
        (b"00010203", b"0001020"),
        (b"ff", b"FF"),
        (TEXT, b""),
        (TEXT, b"[]\n"),
        (TEXT, b"[" * 100_000),
        (TEXT, b'"\\ud800"'),
        (TEXT, b"\xff\xfe"),
        (b"vtrain 0", b"\\ud800"),
    ],
)
def test_other_texts_are_refused(old: bytes, new: bytes) -> None:
    assert old in TEXT
    with pytest.raises(EncodingError):
        decode_manifest(TEXT.replace(old, new))


def test_reading_names_the_file(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    with pytest.raises(NotProducedError):
        read_manifest(paths)
    paths.manifest.write_bytes(TEXT)
    assert read_manifest(paths) == MANIFEST
    paths.manifest.write_bytes(TEXT[:-1])
    with pytest.raises(EncodingError) as caught:
        read_manifest(paths)
    assert str(paths.manifest) in caught.value.where


def test_checkpoints_are_listed_by_step(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.checkpoints.mkdir()
    for step in (100, 0, 2**40):
        paths.checkpoint(step).touch()
    for name in (
        ".000000000007.safetensors.tmp",
        "7.safetensors",
        "0000000000008.safetensors",
        "000000000009.txt",
    ):
        (paths.checkpoints / name).touch()
    assert paths.list_checkpoints() == [0, 100, 2**40]
    assert paths.name_of(paths.checkpoint(100)) == "checkpoints/000000000100.safetensors"
