"""Windows of tokens: read by offset, never expanded; from the file to a verified run."""

from __future__ import annotations

import importlib
import io
import json
import math
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import TensorProto, helper, numpy_helper

from vtrain import _core, cli
from vtrain.audit.verify import verify
from vtrain.dispute.genesis import make_genesis
from vtrain.engines.cpu import CpuSession
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import DataError, EncodingError, GraphError, TaskError
from vtrain.limits import LIMITS
from vtrain.spec.samples import Samples, compute_samples_length
from vtrain.train.data import (
    Part,
    TokenSource,
    check_labels,
    gather_batch,
    load_samples,
    open_tokens,
    parse_source,
    read_samples,
)
from vtrain.train.deliver import evaluate_run
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.signed import read_task
from vtrain.train.task import CompiledTask, compile_task, load_task, profile_task, write_exponents
from vtrain.wire import cbor
from vtrain.wire.claim import Claim, SignedClaim
from vtrain.wire.task import Windows, decode_task, describe_windows, encode_task

Array = npt.NDArray[Any]
VOCABULARY, CONTEXT, HIDDEN = 11, 6, 5
RNG = np.random.default_rng(20)
IDS = RNG.integers(0, VOCABULARY, 203)


def save(folder: Path, ids: Array, dtype: str = "<u2", name: str = "train.bin") -> Path:
    """A file of these tokens: ``.npy`` by its name, else nothing but tokens."""
    path = folder / name
    if path.suffix == ".npy":
        np.save(path, ids.astype(dtype))
    else:
        path.write_bytes(ids.astype(dtype).tobytes())
    return path


def expand(ids: Array, context: int, stride: int, shift: int) -> tuple[Array, Array]:
    """All windows and their labels, as a table would have them."""
    starts = range(0, len(ids) - context - shift + 1, stride)
    x = np.array([ids[at : at + context] for at in starts], np.int32)
    y = np.array([ids[at + shift : at + shift + context] for at in starts], np.int32)
    return x, y


# --- files


@pytest.mark.parametrize("name", ["train.bin", "train.npy"])
@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i4", "<i8", "<u8"])
@pytest.mark.parametrize(
    ("context", "stride", "shift", "part"),
    [
        (1, 1, 1, Part()),
        (6, 1, 1, Part()),
        (6, 6, 1, Part(3, 100)),
        (7, 50, 0, Part(1)),
        (4, 3, 9, Part(count=13)),
        (202, 1, 1, Part()),
    ],
)
def test_windows_lie_where_context_stride_and_shift_say(
    tmp_path: Path, name: str, dtype: str, context: int, stride: int, shift: int, part: Part
) -> None:
    plain = name.endswith(".bin")
    if plain and dtype not in ("<u2", "<u4"):
        dtype = "<u4"
    path = save(tmp_path, IDS, dtype, name)
    kind = ("u" + dtype[2]).replace("u2", "u16").replace("u4", "u32") if plain else None
    samples = load_samples(TokenSource(path, context, VOCABULARY, kind, stride, shift, part))
    stop = None if part.count is None else part.start + part.count
    chosen = IDS[part.start : stop]
    x, y = expand(chosen, context, stride, shift)
    spec = samples.spec
    assert (spec.samples, spec.x_shape, spec.y_shape) == (len(x), (context,), (context,))
    assert (spec.x_dtype, spec.y_dtype) == ("i32", "i32")
    assert spec.root == blake3.blake3(chosen.astype(dtype).tobytes()).digest()
    every = np.arange(len(x))
    for part_name, expected in (("x", x), ("y", y)):
        found = samples.gather(part_name, every)
        assert found.dtype == np.int32
        assert np.array_equal(found, expected)
    assert samples.table.nbytes == compute_samples_length(spec) == len(chosen) * int(dtype[2])


def test_the_root_is_that_of_the_file(tmp_path: Path) -> None:
    path = save(tmp_path, IDS)
    samples = load_samples(TokenSource(path, CONTEXT, VOCABULARY, "u16"))
    assert samples.spec.root == blake3.blake3(path.read_bytes()).digest()
    read = read_samples(path, samples.spec)
    assert np.array_equal(read.table, samples.table)


def test_held_and_mapped_files_are_read_alike(tmp_path: Path) -> None:
    for name in ("train.bin", "train.npy"):
        source = TokenSource(
            save(tmp_path, IDS, "<u2", name), CONTEXT, VOCABULARY, "u16", 2, 1, Part(5, 90)
        )
        held = open_tokens(source)
        mapped = open_tokens(source, replace(LIMITS, held_samples_bytes=0))
        assert isinstance(mapped.table, np.memmap)
        assert not isinstance(held.table, np.memmap)
        assert np.array_equal(held.table, mapped.table)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(4 * 10**8, id="400 MB"),
        pytest.param(10**10, id="10 GB", marks=[pytest.mark.exhaustive, pytest.mark.slow]),
    ],
)
def test_a_large_file_is_trained_on_in_bounded_memory(
    folder: Path, tmp_path: Path, size: int
) -> None:
    """A file of holes with a few tokens at its end, in a process that may not hold a part of it:
    checked, hashed, compiled, trained on.  The smaller one is mapped as the larger is."""
    path = tmp_path / "huge.bin"
    count = size // 2
    tail = np.arange(1, 9, dtype="<u2")
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size - tail.nbytes)
        file.write(tail.tobytes())
    if path.stat().st_blocks * 512 > 2**24:
        pytest.fail("this file system stores holes: the test would write all of the file")
    shutil.copy(folder / "model.onnx", tmp_path)
    words = (folder / "task.toml").read_text().replace("train.bin", path.name)
    (tmp_path / "huge.toml").write_text(words)
    program = f"""
        import importlib
        from dataclasses import replace
        from pathlib import Path
        import numpy as np
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from vtrain.limits import limits_here
        from vtrain.train.runner import train
        from vtrain.train.task import compile_task, load_task

        def read_peak():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

        folder, key = Path({str(tmp_path)!r}), Ed25519PrivateKey.generate()
        small = load_task(Path({str(folder / "task.toml")!r}))
        train(compile_task(small), folder / "small", key=key)
        before = read_peak()
        mapping = replace(limits_here(), held_samples_bytes=0)
        importlib.import_module("vtrain.train.data").limits_here = lambda: mapping
        task = compile_task(load_task(folder / "huge.toml"))
        samples = task.samples
        assert samples.spec.samples == ({count} - 7) // 2 + 1, samples.spec.samples
        last = samples.spec.samples - 1
        x, y = (samples.gather(part, np.array([0, last])) for part in ("x", "y"))
        assert x.tolist() == [[0] * 6, [1, 2, 3, 4, 5, 6]], x
        assert y.tolist() == [[0] * 6, [2, 3, 4, 5, 6, 7]], y
        # Few steps: where the system caches files in huge pages, each window maps one.
        train(task, folder / "run", key=key, engine="cpu", threads=1, keep_data=False, steps=2)
        grown = read_peak() - before
        assert grown < 100_000, f"{{grown}} KiB"
        print(task.spec.data.root.hex())
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
    assert done.stdout.strip() == hasher.update_mmap(path).hexdigest()


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i8"])
@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_the_root_of_a_mapped_file_is_that_of_one_that_is_held(
    tmp_path: Path, dtype: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the borders of blocks, and an id that is wrong behind them."""
    data = importlib.import_module("vtrain.train.data")
    monkeypatch.setattr(data, "_COPY_BLOCK", 1024)
    monkeypatch.setattr(data, "limits_here", lambda: replace(LIMITS, held_samples_bytes=0))
    for off in (-1, 0, 1):
        count = max(blocks * 1024 // int(dtype[2]) + off, 8)
        ids = RNG.integers(0, VOCABULARY, count)
        source = TokenSource(save(tmp_path, ids, dtype, "a.npy"), CONTEXT, VOCABULARY)
        samples = load_samples(source)
        assert isinstance(samples.table, np.memmap)
        assert samples.spec.root == blake3.blake3(ids.astype(dtype).tobytes()).digest()
        ids[-1] = VOCABULARY
        save(tmp_path, ids, dtype, "a.npy")
        with pytest.raises(DataError, match=rf"token {count - 1} is {VOCABULARY}, not in"):
            load_samples(source)


# --- what is held out


@pytest.mark.parametrize(
    ("share", "tokens", "kept"),
    [
        (Fraction(1, 10), 1_115_394, 1_003_854),
        (Fraction(1, 10), 203, 182),
        (Fraction(1, 3), 99, 66),
        (Fraction(1, 3), 100, 66),
        (Fraction(999, 1000), 8000, 8),
    ],
)
def test_a_share_is_held_out_to_the_token(
    tmp_path: Path, share: Fraction, tokens: int, kept: int
) -> None:
    """As nanoGPT splits a text: the first floor(n (1 - share)) tokens are trained on."""
    assert kept == math.floor(tokens * (1 - share))
    ids = np.arange(tokens) % VOCABULARY
    path = save(tmp_path, ids)
    source = TokenSource(path, CONTEXT, VOCABULARY, "u16", 1, 1)
    train, test = (load_samples(each) for each in source.hold_out(share))
    assert train.table.tobytes() + test.table.tobytes() == path.read_bytes()
    assert train.spec.samples == kept - CONTEXT
    assert test.spec.windows == Windows("u16", tokens - kept, CONTEXT, CONTEXT, 1)
    assert train.spec.root == blake3.blake3(ids[:kept].astype("<u2").tobytes()).digest()


def test_a_share_is_of_the_part_that_is_taken(tmp_path: Path) -> None:
    path = save(tmp_path, IDS)
    source = TokenSource(path, CONTEXT, VOCABULARY, "u16", part=Part(3, 100))
    train, test = (load_samples(each) for each in source.hold_out(Fraction(1, 4)))
    expected = IDS.astype("<u2")
    assert np.array_equal(train.table.view("<u2"), expected[3:78])
    assert np.array_equal(test.table.view("<u2"), expected[78:103])
    with pytest.raises(DataError, match="1 tokens are too few"):
        load_samples(source.hold_out(Fraction(1, 100))[1])
    with pytest.raises(DataError, match="0 tokens are too few"):
        load_samples(source.hold_out(Fraction(999, 1000))[0])
    ids = IDS.copy()
    ids[90] = VOCABULARY
    save(tmp_path, ids)
    load_samples(source.hold_out(Fraction(1, 4))[0])
    with pytest.raises(DataError, match="token 90 is 11"):
        load_samples(source.hold_out(Fraction(1, 4))[1])


def without_test(text: str) -> str:
    start, end = text.index("[test]"), text.index("[optimizer]")
    return text[:start] + text[end:]


def test_the_task_says_what_is_held_out(folder: Path) -> None:
    path = folder / "held.toml"
    text = without_test((folder / "task.toml").read_text())
    for share in ("0.1", '"1/10"'):
        path.write_text(text.replace("stride = 2\n", f"stride = 2\nvalidation = {share}\n", 1))
        file = load_task(path)
        assert file.test is not None
        train, test = load_samples(file.data), load_samples(file.test)
        assert [each.table.nbytes // 2 for each in (train, test)] == [272, 31]
    assert compile_task(file).spec.data == train.spec


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ("0", "between 0 and 1"),
        ("1", "between 0 and 1"),
        ("-0.1", "between 0 and 1"),
        ("true", "must be a number"),
        ('"a tenth"', "must be a number"),
    ],
)
def test_shares_that_are_none(folder: Path, share: str, message: str) -> None:
    path = folder / "held.toml"
    text = without_test(TASK)
    path.write_text(text.replace("stride = 2\n", f"stride = 2\nvalidation = {share}\n", 1))
    with pytest.raises(TaskError, match=message) as caught:
        load_task(path)
    assert caught.value.where == "data.validation"


def test_what_is_measured_on_is_said_once_and_of_tokens(folder: Path) -> None:
    path = folder / "held.toml"
    for text, message in (
        (TASK, r"beside a table \[test\]"),
        (without_test(TASK).replace('"tokens"\npath', '"text"\npath'), "give a table .test."),
    ):
        words = text.replace("stride = 2\n", "stride = 2\nvalidation = 0.1\n", 1)
        if '"text"' in words:
            words = words.replace('dtype = "u16"\n', "").replace("vocabulary = 11\n", "")
        path.write_text(words)
        with pytest.raises(TaskError, match=message) as caught:
            load_task(path)
        assert caught.value.where == "data.validation"


def npy_bytes(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "a.bin", "is empty"),
        (b"\0" * 2001, "a.bin", "2001 bytes, which is no whole number of u16 tokens"),
        (b"\0" * 12, "a.bin", "6 tokens are too few: a window of 6 .* takes 7"),
        (npy_bytes(np.zeros(0, np.uint16)), "a.npy", "is empty"),
        (npy_bytes(np.zeros(50, np.uint16))[:-3], "a.npy", "ends 3 bytes early"),
        (npy_bytes(np.zeros(50, np.uint16)) + b"\0", "a.npy", "has bytes after its last element"),
        (npy_bytes(np.zeros((5, 10), np.uint16)), "a.npy", "has the shape .5, 10., tokens have"),
        (npy_bytes(np.zeros(50, ">u2")), "a.npy", "little-endian"),
        (npy_bytes(np.zeros(50, np.float32)), "a.npy", "elements of type float32"),
        (npy_bytes(np.zeros(50, np.uint8)), "a.npy", "elements of type uint8"),
        (npy_bytes(np.zeros(50, np.int64)), "a.npy", "has tokens of u64, the task file says u16"),
        (npy_bytes(np.zeros(50, np.uint16))[:20], "a.npy", "early"),
    ],
)
def test_files_that_are_not_as_they_claim(
    tmp_path: Path, content: bytes, name: str, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_samples(TokenSource(path, CONTEXT, VOCABULARY, "u16"))
    assert caught.value.where == str(path)


def test_a_plain_file_needs_its_type(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"name data\.dtype"):
        load_samples(TokenSource(save(tmp_path, IDS), CONTEXT, VOCABULARY))
    with pytest.raises(DataError, match=r"cannot be read|no such file|there is no"):
        load_samples(TokenSource(tmp_path / "none.bin", CONTEXT, VOCABULARY, "u16"))


@pytest.mark.parametrize(
    ("dtype", "value", "shown"),
    [
        ("<u2", 11, "11"),
        ("<u2", 65535, "65535"),
        ("<u4", 2**30, "1073741824"),
        ("<i4", -5, r"4294967291 \(-5 if it is signed\)"),
        ("<i8", -1, r"18446744073709551615 \(-1 if it is signed\)"),
        ("<i8", 2**40, "1099511627776"),
    ],
)
def test_an_id_beyond_the_vocabulary_is_named_by_its_position(
    tmp_path: Path, dtype: str, value: int, shown: str
) -> None:
    ids = IDS.astype(np.int64)
    ids[[150, 160]] = value
    path = save(tmp_path, ids, dtype, "train.npy")
    source = TokenSource(path, CONTEXT, VOCABULARY, part=Part(7))
    with pytest.raises(DataError, match=rf"^[^ ]*: token 150 is {shown}, not in \[0, 11\)"):
        load_samples(source)
    assert load_samples(replace(source, part=Part(161))).spec.samples > 0


def test_a_part_that_is_not_there(tmp_path: Path) -> None:
    path = save(tmp_path, IDS)
    with pytest.raises(DataError, match="tokens 0 to 204 were asked for, there are 203"):
        load_samples(TokenSource(path, CONTEXT, VOCABULARY, "u16", part=Part(0, 204)))


def test_labels_are_tokens(tmp_path: Path) -> None:
    samples = load_samples(TokenSource(save(tmp_path, IDS), CONTEXT, VOCABULARY, "u16"))
    check_labels(samples, VOCABULARY)
    largest = int(IDS.max())
    with pytest.raises(DataError, match=f"token {int(np.argmax(IDS))} is {largest}"):
        check_labels(samples, largest)
    with pytest.raises(DataError, match="windows of tokens"):
        samples.part("x")


def test_the_table_must_be_all_tokens() -> None:
    spec = describe_windows(windows_of(100))
    with pytest.raises(DataError, match="needs 200 bytes"):
        Samples(spec, np.zeros(199, np.uint8))
    with pytest.raises(IndexError):
        Samples(spec, np.zeros(200, np.uint8)).gather("x", np.array([spec.samples]))


def windows_of(tokens: int) -> Any:
    return Windows("u16", tokens, CONTEXT, 1, 1)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "data.path"),
        ({"path": "t"}, "data.context"),
        ({"path": "t", "context": 0}, "data.context"),
        ({"path": "t", "context": 2**20 + 1}, "data.context"),
        ({"path": "t", "context": 4}, "data.vocabulary"),
        ({"path": "t", "context": 4, "vocabulary": 2**31 + 1}, "data.vocabulary"),
        ({"path": "t", "context": 4, "vocabulary": 9, "dtype": "i32"}, "data.dtype"),
        ({"path": "t", "context": 4, "vocabulary": 9, "stride": 0}, "data.stride"),
        ({"path": "t", "context": 4, "vocabulary": 9, "shift": -1}, "data.shift"),
        ({"path": "t", "context": 4, "vocabulary": 9, "contxt": 1}, "data.contxt"),
    ],
)
def test_keys_are_checked(table: dict[str, object], key: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse_source({"kind": "tokens", **table}, Path())
    assert caught.value.where == key


def test_keys_and_their_defaults() -> None:
    table: dict[str, object] = {"kind": "tokens", "path": "t", "context": 4, "vocabulary": 9}
    assert parse_source(table, Path("f")) == TokenSource(Path("f/t"), 4, 9, None, 1, 1, Part())
    more = {"dtype": "u16", "stride": 3, "shift": 2, "start": 5, "count": 7}
    assert parse_source(table | more, Path("f")) == TokenSource(
        Path("f/t"), 4, 9, "u16", 3, 2, Part(5, 7)
    )


# --- a task and its run


def make_model(rng: np.random.Generator) -> bytes:
    """One-hot tokens -> hidden -> logits, at each place by itself."""
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.5, shape).astype(np.float32), name)
        for name, shape in (("embed", (VOCABULARY, HIDDEN)), ("head", (HIDDEN, VOCABULARY)))
    ]
    shape = numpy_helper.from_array(np.array([-1, CONTEXT, VOCABULARY], np.int64), "shape")
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["places"], "places"),
        helper.make_node("MatMul", ["places", "embed"], ["h"], "embed"),
        helper.make_node("Relu", ["h"], ["a"], "relu"),
        helper.make_node("MatMul", ["a", "head"], ["logits"], "head"),
    ]
    graph = helper.make_graph(
        nodes,
        "tokens",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", CONTEXT * VOCABULARY])],
        [
            helper.make_tensor_value_info(
                "logits", TensorProto.FLOAT, ["batch", CONTEXT, VOCABULARY]
            )
        ],
        [*weights, shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


TASK = f"""
[task]
name = "tokens"
seed = 7
steps = 12
batch = 8
commit_every = 2
checkpoint_every = 4

[model]
onnx = "model.onnx"
loss = "cross_entropy"

[data]
kind = "tokens"
path = "train.bin"
dtype = "u16"
context = {CONTEXT}
stride = 2
vocabulary = {VOCABULARY}

[data.prepare]
kind = "one_hot"
depth = {VOCABULARY}

[test]
kind = "tokens"
path = "test.npy"
context = {CONTEXT}
stride = {CONTEXT}
vocabulary = {VOCABULARY}

[optimizer]
kind = "sgd"
momentum = 0.9
learning_rate = 0.5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task file, calibrated: the next token is mostly the one after it in a circle."""
    path = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(5)
    ids = np.cumsum(np.where(rng.random(403) < 0.9, 1, 2)) % VOCABULARY
    save(path, ids[:303])
    save(path, ids[303:], "<i4", "test.npy")
    (path / "model.onnx").write_bytes(make_model(rng))
    task = path / "task.toml"
    task.write_text(TASK)
    write_exponents(task, profile_task(load_task(task)).exponents)
    return path


@pytest.fixture(scope="module")
def task(folder: Path) -> CompiledTask:
    return compile_task(load_task(folder / "task.toml"))


@pytest.fixture(scope="module")
def run(folder: Path, task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    train(task, out, key=key, engine="cpu", threads=1)
    return out


def test_a_run_keeps_the_tokens_once(folder: Path, task: CompiledTask, run: Path) -> None:
    paths = RunPaths(run)
    assert paths.samples.read_bytes() == (folder / "train.bin").read_bytes()
    kept = read_task(paths)
    assert kept == task.spec
    assert kept.data.windows is not None
    assert kept.data.root == blake3.blake3(paths.samples.read_bytes()).digest()


def test_the_numpy_engine_writes_the_same_log(
    task: CompiledTask, run: Path, tmp_path: Path, key: Ed25519PrivateKey
) -> None:
    train(task, tmp_path / "run", key=key, engine="numpy", threads=1)
    assert RunPaths(tmp_path / "run").log.read_bytes() == RunPaths(run).log.read_bytes()


def test_both_engines_gather_what_is_in_the_file(task: CompiledTask) -> None:
    samples = task.samples
    nodes = [index for index, node in enumerate(task.graph.nodes) if node.op == "gather_samples"]
    for session in (NumpySession(task.graph, samples), CpuSession(task.graph, samples, threads=1)):
        session.load_state(task.initial_state)
        for step in (1, 2):
            batch = gather_batch(samples, task.spec.seed, task.spec.batch, step)
            found = session.evaluate_all(nodes)
            assert all(np.array_equal(a, b) for a, b in zip(found, batch, strict=True))
            session.step()


@pytest.mark.parametrize("engine", ["cpu", "numpy"])
def test_an_honest_run_is_verified(task: CompiledTask, run: Path, engine: str) -> None:
    report = verify(run, all_=True, engine=engine, task_id=task.task_id, threads=1)
    assert report.verdict == "verified", report
    names = {check.name: check.status for check in report.checks}
    assert names["samples"] == names["batches"] == names["replay"] == "passed"


def test_a_stranger_verifies_it_too(run: Path, tmp_path: Path, repository: Path) -> None:
    """The verifier that imports nothing of vtrain: an honest run, and one with other tokens."""
    other = tmp_path / "run"
    shutil.copytree(run, other)
    flip(RunPaths(other))
    program = repository / "examples" / "plain_verifier.py"
    for folder, verdict, samples in (
        (run, "verified", "passed"),
        (other, "inconclusive", "failed"),
    ):
        words = [sys.executable, str(program), "audit", str(folder), "--all", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
        report = json.loads(done.stdout)
        found = {check["name"]: check["status"] for check in report["checks"]}
        assert (report["verdict"], found["samples"]) == (verdict, samples), done
        assert (found["replay"] == "passed") is (folder == run)


def flip(paths: RunPaths) -> None:
    data = bytearray(paths.samples.read_bytes())
    data[100] ^= 1
    paths.samples.write_bytes(data)


def cut(paths: RunPaths) -> None:
    paths.samples.write_bytes(paths.samples.read_bytes()[:-1])


def drop(paths: RunPaths) -> None:
    paths.samples.unlink()


@pytest.mark.parametrize("damage", [flip, cut, drop])
def test_other_tokens_are_not_those_of_the_task(
    run: Path, tmp_path: Path, damage: Callable[[RunPaths], None]
) -> None:
    other = tmp_path / "run"
    shutil.copytree(run, other)
    damage(RunPaths(other))
    report = verify(other, all_=True, engine="cpu", threads=1)
    assert report.verdict == "inconclusive"
    assert {c.name: c.status for c in report.checks}["samples"] != "passed"
    # With the tokens from elsewhere all is as it was, but for the file that the manifest lists.
    brought = verify(other, all_=True, engine="cpu", threads=1, data=RunPaths(run).samples)
    found = {c.name: c.status for c in brought.checks}
    assert found["samples"] == found["batches"] == found["replay"] == "passed"


def test_each_place_has_a_label(folder: Path, task: CompiledTask, run: Path) -> None:
    """Training helps, and validation is over the labels of all places."""
    test = load_task(folder / "task.toml").test
    assert test is not None
    samples = load_samples(test)
    begun, done = (evaluate_run(run, samples, step) for step in (0, None))
    assert begun.count == done.count == samples.spec.samples == 16
    assert done.loss < begun.loss
    assert begun.accuracy is not None
    assert done.accuracy is not None
    assert done.accuracy > begun.accuracy
    labels = samples.spec.samples * CONTEXT
    assert (done.accuracy * labels) == pytest.approx(round(done.accuracy * labels))
    assert begun.loss == pytest.approx(np.log(VOCABULARY), abs=1)


def test_eval_takes_the_runs_tokens_a_task_and_a_file(
    folder: Path, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: object) -> tuple[int, str]:
        capfd.readouterr()
        code = cli.run(["eval", str(run), *map(str, arguments)])
        captured = capfd.readouterr()
        return code, captured.out + captured.err

    for arguments in ((), ("--task", folder / "task.toml"), ("--data", folder / "train.bin")):
        code, shown = call(*arguments)
        assert (code, "right)" in shown) == (0, True), shown
    short = folder / "short.bin"
    short.write_bytes(bytes(2 * CONTEXT))
    code, shown = call("--data", short)
    assert code != 0
    assert "no whole number of windows" in shown
    wild = save(folder, np.full(40, VOCABULARY), name="wild.bin")
    code, shown = call("--data", wild)
    assert code != 0
    assert "token 0 is 11" in shown


# --- the task's document


def test_a_task_of_windows_is_read_back(task: CompiledTask) -> None:
    data = encode_task(task.spec)
    assert decode_task(data) == task.spec
    table = cbor.decode(data)["data"]  # type: ignore[index,call-overload]
    assert table["windows"] == {  # type: ignore[index,call-overload]
        "context": CONTEXT, "dtype": "u16", "shift": 1, "stride": 2, "tokens": 303,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"samples": 148}, "task.data.windows"),
        ({"x_dtype": "u8"}, "task.data.windows"),
        ({"y_shape": [CONTEXT + 1]}, "task.data.windows"),
        ({"windows": {"tokens": 3}}, "task.data.windows"),
        ({"windows": {"tokens": 0}}, "task.data.windows.tokens"),
        ({"windows": {"stride": 0}}, "task.data.windows.stride"),
        ({"windows": {"shift": -1}}, "task.data.windows.shift"),
        ({"windows": {"context": 0}}, "task.data.windows.context"),
        ({"windows": {"dtype": "i16"}}, "task.data.windows.dtype"),
        ({"windows": {"more": 1}}, "task.data.windows"),
    ],
)
def test_windows_that_do_not_fit_are_no_task(
    task: CompiledTask, change: dict[str, Any], where: str
) -> None:
    value: Any = cbor.decode(encode_task(task.spec))
    for key, item in change.items():
        value["data"][key] = {**value["data"][key], **item} if isinstance(item, dict) else item
    with pytest.raises(EncodingError) as caught:
        decode_task(cbor.encode(value))
    assert caught.value.where.startswith(where)


# --- what windows cannot have


def test_steps_over_windows_are_proven_by_tiles_alone(folder: Path, task: CompiledTask) -> None:
    path = folder / "proof.toml"
    table = '[proof]\ncircuit = "step"\nsrs = "none.srs"\nk = 17\n'
    path.write_text((folder / "task.toml").read_text() + table)
    with pytest.raises(TaskError, match="no circuit is of a whole step over windows") as caught:
        compile_task(load_task(path))
    assert caught.value.where == "proof.circuit"
    value: Any = cbor.decode(encode_task(task.spec))
    value["proof"] = {
        "blinding": 5, "circuit": "tiles", "circuits": {}, "every": 1, "hash": "blake3",
        "initial": [], "initial_key": bytes(32), "k": 17, "srs": bytes(32),
    }  # fmt: skip
    assert decode_task(cbor.encode(value)).data.windows == task.spec.data.windows
    value["proof"]["circuit"] = "step"
    with pytest.raises(EncodingError, match="proven by tiles alone") as refused:
        decode_task(cbor.encode(value))
    assert refused.value.where == "task.proof.circuit"


@pytest.mark.parametrize(
    ("prepare", "where"),
    [
        ('kind = "affine"', "data.prepare"),
        (f'kind = "one_hot"\ndepth = {VOCABULARY - 1}', "data.prepare.depth"),
    ],
)
def test_ids_need_a_place_each(folder: Path, prepare: str, where: str) -> None:
    path = folder / "prepare.toml"
    path.write_text(TASK.replace(f'kind = "one_hot"\ndepth = {VOCABULARY}', prepare))
    with pytest.raises(TaskError) as caught:
        profile_task(load_task(path))
    assert caught.value.where == where


def test_a_game_about_windows_has_their_form(task: CompiledTask) -> None:
    claim = Claim(
        run_id=bytes(32), task_id=task.task_id, log_size=12, log_root=bytes(32), solver=bytes(32)
    )
    signed = SignedClaim(claim, bytes(64))
    genesis = make_genesis(task.spec, task.graph, signed, host=bytes(32), opened=0)
    assert genesis.windows == task.spec.data.windows
    assert (genesis.samples_root, genesis.samples) == (task.spec.data.root, task.spec.data.samples)


def test_the_core_checks_its_windows(task: CompiledTask) -> None:
    from vtrain.wire.graph import encode_graph

    table = np.ascontiguousarray(task.samples.table).reshape(1, -1)
    forms = ("i32", [CONTEXT])
    graph = encode_graph(task.graph)
    for windows in ((3, 303, 2, 1), (2, 2**63, 2, 1)):
        with pytest.raises(DataError):
            _core.Engine(graph, table, forms, forms, 1, "auto", windows)
    for windows in ((2, 302, 2, 1), (2, 304, 2, 1), (2, 303, 2**40, 1)):
        engine = _core.Engine(graph, table, forms, forms, 1, "auto", windows)
        for name, value in task.initial_state.items():
            engine.load_state(name, np.asarray(value, order="C"))
        with pytest.raises((DataError, GraphError)):
            engine.step()
