"""The loaders of datasets, manifests and checkpoints: any bytes give a result or a typed error.

``corpus/data`` holds one file of each kind; mutants of them are tried besides invented bytes.
Longer: ``pytest tests/fuzz/test_fuzz_data.py --hypothesis-profile=fuzz``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tasks import make_tiny_task
from vtrain.commit.checkpoint import checkpoint_chunks, read_checkpoint
from vtrain.errors import DataError, EncodingError
from vtrain.train.data import IdxSource, NpySource, NpzSource, load_samples
from vtrain.train.layout import decode_manifest, encode_manifest

CORPUS = Path(__file__).with_name("corpus") / "data"
TASK = make_tiny_task()
quick = settings(
    max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@st.composite
def mutants(draw: st.DrawFn, names: list[str]) -> bytes:
    """A corpus file with a few bytes changed, cut out or put in; or any bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    content = bytearray((CORPUS / draw(st.sampled_from(names))).read_bytes())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        cut = draw(st.sampled_from([0, 1, 1, 1, 4, len(content)]))
        content[at : at + cut] = draw(st.binary(max_size=4))
    return bytes(content)


def load(source: Any) -> None:
    try:
        samples = load_samples(source)
    except DataError as error:
        assert error.where
        return
    assert samples.table.size > 0
    assert samples.part("x").shape[0] == samples.part("y").shape[0]


@quick
@given(content=mutants(["images.idx", "labels.idx", "images.idx.gz"]))
def test_idx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    load(IdxSource(path, CORPUS / "labels.idx"))
    load(IdxSource(path, path))


@quick
@given(content=mutants(["floats.npy", "labels.npy", "fortran.npy"]), exponent=st.integers(-64, 64))
def test_npy(tmp_path: Path, content: bytes, exponent: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    load(NpySource(path, CORPUS / "labels.npy", exponent))
    load(NpySource(path, path, exponent, exponent))


@quick
@given(content=mutants(["stored.npz", "deflated.npz"]))
def test_npz(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    load(NpzSource(path, x_exponent=3))


@quick
@given(content=mutants(["manifest.json"]))
def test_manifest(content: bytes) -> None:
    try:
        manifest = decode_manifest(content)
    except EncodingError as error:
        assert error.where
    else:
        assert encode_manifest(manifest) == content


@quick
@given(content=mutants(["tiny.safetensors"]))
def test_checkpoint(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    try:
        state = read_checkpoint(path, TASK.graph)
    except EncodingError as error:
        assert error.where
    else:
        chunks = checkpoint_chunks(TASK.graph, state)
        assert b"".join(bytes(np.asarray(c).tobytes()) for c in chunks) == content


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("images.idx", lambda path: load_samples(IdxSource(path, CORPUS / "labels.idx"))),
        ("images.idx.gz", lambda path: load_samples(IdxSource(path, CORPUS / "labels.idx"))),
        ("floats.npy", lambda path: load_samples(NpySource(path, CORPUS / "labels.npy", 3))),
        ("fortran.npy", lambda path: load_samples(NpySource(path, CORPUS / "labels.npy", 3))),
        ("stored.npz", lambda path: load_samples(NpzSource(path, x_exponent=3))),
        ("deflated.npz", lambda path: load_samples(NpzSource(path, x_exponent=3))),
        ("manifest.json", lambda path: decode_manifest(path.read_bytes())),
        ("tiny.safetensors", lambda path: read_checkpoint(path, TASK.graph)),
    ],
)
def test_the_corpus_is_valid(name: str, check: Callable[[Path], object]) -> None:
    assert check(CORPUS / name)
