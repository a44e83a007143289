"""What reads datasets, manifests and checkpoints, under hostile bytes.

Whatever the bytes, a reader returns something whole or raises its own error; never another.
``corpus/NAME`` holds seeds for the reader NAME, one a file; the checkpoint's is made here.

``python -m tests.fuzz.test_fuzz_data SECONDS`` fuzzes for that long, prints how many inputs were
tried, and adds to the corpus each input that was refused with a new message.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tasks import make_tiny_task
from vtrain.commit.checkpoint import checkpoint_chunks, read_checkpoint
from vtrain.errors import DataError, EncodingError
from vtrain.train.data import DataSource, IdxSource, NpySource, NpzSource, load_samples
from vtrain.train.layout import decode_manifest, encode_manifest

CORPUS = Path(__file__).resolve().parent / "corpus"
TASK = make_tiny_task()


def check_samples(source: DataSource) -> None:
    samples = load_samples(source)
    assert samples.table.size > 0
    assert len(samples.part("x")) == len(samples.part("y")) == samples.spec.samples


def check_manifest(path: Path) -> None:
    data = path.read_bytes()
    assert encode_manifest(decode_manifest(data)) == data


def check_checkpoint(path: Path) -> None:
    chunks = checkpoint_chunks(TASK.graph, read_checkpoint(path, TASK.graph))
    assert b"".join(c if isinstance(c, bytes) else c.tobytes() for c in chunks) == path.read_bytes()


READERS: dict[str, Callable[[Path], None]] = {
    "idx": lambda path: check_samples(IdxSource(path, path)),
    "npy": lambda path: check_samples(NpySource(path, path, 3, 3)),
    "npz": lambda path: check_samples(NpzSource(path, x_exponent=3)),
    "manifest": check_manifest,
    "checkpoint": check_checkpoint,
}


@cache
def load_corpus(name: str) -> list[bytes]:
    if name == "checkpoint":
        chunks = checkpoint_chunks(TASK.graph, TASK.initial_state)
        return [b"".join(c if isinstance(c, bytes) else c.tobytes() for c in chunks)]
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def check(name: str, path: Path, data: bytes) -> str:
    """How ``data`` is refused, in a few words without values; empty when it is accepted."""
    path.write_bytes(data)
    try:
        READERS[name](path)
    except (DataError, EncodingError) as error:
        refusal = error
    else:
        return ""
    assert refusal.where
    return " ".join(re.findall("[A-Za-z]{2,}", refusal.message.partition("'")[0])[:4])


def mutate(generator: random.Random, data: bytes) -> bytes:
    """A few bytes changed, put in or cut out."""
    out = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 4))):
        at = generator.randrange(len(out) + 1)
        match generator.randrange(4):
            case 0 if at < len(out):
                out[at] ^= 1 << generator.randrange(8)
            case 1:
                out[at : at + 1] = generator.choice((b"\0", b"\xff", b"9", b"(", b"-"))
            case 2:
                out[at:at] = generator.randbytes(generator.choice((1, 2, 8)))
            case _:
                del out[at : at + generator.choice((1, 2, 8, len(out)))]
    return bytes(out)


@pytest.mark.parametrize("name", READERS)
def test_corpus(name: str, tmp_path: Path) -> None:
    refusals = [check(name, tmp_path / "file", data) for data in load_corpus(name)]
    assert "" in refusals, "a valid file is among them"


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes(name: str, tmp_path: Path, data: bytes) -> None:
    check(name, tmp_path / "file", data)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_mutated_corpus(name: str, tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)  # noqa: S311
    check(name, tmp_path / "file", mutate(generator, generator.choice(load_corpus(name))))


def fuzz(seconds: float) -> None:
    """Mutate the corpus for ``seconds``; keep what was refused with a new message."""
    generator = random.Random(time.time_ns())  # noqa: S311
    tried, accepted, kept = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        inputs = {name: [*load_corpus(name)] for name in READERS}
        seen = {name: {check(name, path, data) for data in inputs[name]} for name in READERS}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name, corpus in inputs.items():
                data = mutate(generator, generator.choice(corpus))
                refusal = check(name, path, data)
                tried += 1
                accepted += refusal == ""
                if refusal not in seen[name]:
                    seen[name].add(refusal)
                    corpus.append(data)
                    if name != "checkpoint":
                        (CORPUS / name / sha256(data).hexdigest()[:16]).write_bytes(data)
                        kept += 1
    sys.stdout.write(f"{seconds:g} s, {tried} inputs, {accepted} accepted, {kept} new kept\n")


if __name__ == "__main__":
    fuzz(float(sys.argv[1]))
