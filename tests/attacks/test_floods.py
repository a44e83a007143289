"""Small hostile inputs that ask for a lot: time, memory, stack."""

from __future__ import annotations

import os
import time
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.audit.runs import KEY, failed
from tests.dispute.service.hostile import KINDS, Kind, Target, flooding
from tests.dispute.service.live import Skipping, serving
from tests.dispute.service.logs import (
    HONEST,
    LEAST,
    SERVICE_KEY,
    get_documents,
    get_graph,
    make_bond,
    make_log,
    make_log_genesis,
    make_players,
)
from vtrain.attest.claims import sign_claim
from vtrain.audit.verify import verify
from vtrain.commit.files import FileEntry
from vtrain.commit.log import LOG_HEADER
from vtrain.commit.openings import compute_root
from vtrain.dispute.client import Follower, connect
from vtrain.dispute.problems import BusyError
from vtrain.dispute.service.limits import LIMITS as SERVICE_LIMITS
from vtrain.dispute.state import compute_game_id
from vtrain.errors import RunError, TaskError
from vtrain.limits import LIMITS
from vtrain.spec.domains import RUN_LOG
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.train.table import parse_number
from vtrain.train.task import load_task
from vtrain.wire.claim import decode_signed_claim, encode_signed_claim

TASK = """
test = {test}
[task]
name = "attack"
seed = 1
steps = 4
batch = 2
checkpoint_every = 2
[model]
onnx = "{onnx}"
loss = "cross_entropy"
[data]
kind = "idx"
x = "x"
y = "y"
prepare = {prepare}
[optimizer]
learning_rate = {rate}
[exponents]
site = {site}
"""
PLAIN = {"test": "{}", "onnx": "m.onnx", "prepare": "{}", "rate": "0.1", "site": "3"}


@pytest.mark.parametrize(
    "changed",
    [
        {"prepare": "3"},
        {"prepare": "[1]"},
        {"prepare": "{scale = nan}"},
        {"prepare": '{scale = "1e999999999"}'},
        {"rate": "[[0, [1]]]"},
        {"rate": "inf"},
        {"rate": "1e999999999"},
        {"rate": '"1e-9_999_999"'},
        {"rate": "1979-05-27"},
        {"site": "9" * 5000},
        {"site": "[" * 5000 + "]" * 5000},
        {"site": "{a.b = 1}"},
        {"onnx": "a\\u0000b"},
        {"test": "3"},
    ],
    ids=lambda changed: next(iter(changed.values()))[:20],
)
def test_a_hostile_task_file_is_a_task_error(tmp_path: Path, changed: dict[str, str]) -> None:
    path = tmp_path / "task.toml"
    path.write_text(TASK.format(**PLAIN))
    load_task(path)
    path.write_text(TASK.format(**{**PLAIN, **changed}))
    with pytest.raises(TaskError) as caught:
        load_task(path)
    assert caught.value.where


@pytest.mark.parametrize(
    "text", ["1e1000", "1E+999999999", "1/" + "9" * 200, "1e1_000", "1e٩٩٩٩٩٩"]
)
def test_a_number_of_many_digits_is_refused_before_they_are_made(text: str) -> None:
    with pytest.raises(TaskError):
        parse_number(text, "here")


def test_folders_in_folders_do_not_exhaust_the_stack(run: Path) -> None:
    here = Path.cwd()
    os.chdir(run)
    try:
        for _ in range(1300):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(here)
    assert verify(run, samples=1).verdict == "verified"
    # Beyond this, removing the folder would exhaust the stack of the test's own clean-up.
    deep = [run / "/".join(["d"] * depth) for depth in range(1300, 0, -1)]
    for folder in deep:
        folder.rmdir()


def test_a_log_is_not_read_beyond_its_claim(run: Path) -> None:
    """A sparse gigabyte of empty frames: 2^28 leaves for a claim about 12."""
    path = run / "log.bin"
    path.write_bytes(LOG_HEADER)
    os.truncate(path, 1 << 30)
    begin = time.monotonic()
    report = verify(run)
    assert time.monotonic() - begin < 5
    assert report.verdict == "inconclusive"
    assert "log" in [check.name for check in failed(report)]


def test_a_log_of_records_that_are_none_is_not_held(run: Path) -> None:
    """Their solver signed for them, and a file of holes is full of them."""
    path, count = RunPaths(run).log, LIMITS.short_records + 1
    path.write_bytes(LOG_HEADER)
    os.truncate(path, len(LOG_HEADER) + 4 * count)
    claim = decode_signed_claim(RunPaths(run).claim.read_bytes()).claim
    claim = replace(claim, log_size=count, log_root=compute_root(RUN_LOG, [b""] * count))
    RunPaths(run).claim.write_bytes(encode_signed_claim(sign_claim(claim, KEY)))
    [found] = [check for check in verify(run).checks if check.name == "log"]
    assert (found.status, found.fault) == ("failed", "nobody")
    assert found.where.startswith("log.bin: record ")
    assert "are more than a log has" in found.detail


def test_a_sparse_model_is_not_held_in_memory(run: Path) -> None:
    path = run / "model.onnx"
    path.write_bytes(b"")
    os.truncate(path, 1 << 28)
    tracemalloc.start()
    try:
        report = verify(run, samples=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "model" in [check.name for check in failed(report)]
    assert peak < 1 << 27


def test_a_file_beyond_its_limit_is_not_hashed(run: Path) -> None:
    """A sparse file of 64 GiB, listed by the manifest with its size: half a minute of hashing."""
    paths, size = RunPaths(run), 1 << 36
    os.truncate(paths.graph, size)
    manifest = read_manifest(paths)
    listed = {**manifest.files, "graph.cbor": FileEntry(size, bytes(32))}
    paths.manifest.write_bytes(encode_manifest(replace(manifest, files=listed)))
    begin = time.monotonic()
    report = verify(run, samples=0)
    assert time.monotonic() - begin < 5
    assert report.verdict == "inconclusive"
    found = {check.name: check.detail for check in failed(report)}
    assert f"has {size} bytes, this auditor takes" in found["files"]


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' + b"9" * 100_000 + b"}",
        b'{"software": "\\ud800"}\n',
        b"NaN\n",
        b"1e999\n",
        b"[" + b"[]," * 100_000 + b"[]]",
    ],
)
def test_a_hostile_manifest_is_inconclusive(run: Path, content: bytes) -> None:
    (run / "manifest.json").write_bytes(content)
    report = verify(run, samples=1)
    assert report.verdict == "inconclusive"
    assert failed(report)[0].name == "manifest"


def test_a_manifest_beyond_its_limit_is_not_read(run: Path) -> None:
    os.truncate(run / "manifest.json", LIMITS.manifest_bytes + 1)
    begin = time.monotonic()
    assert failed(verify(run, samples=0))[0].name == "manifest"
    assert time.monotonic() - begin < 5
    assert LIMITS.manifest_bytes <= 1 << 24


@pytest.mark.parametrize("threads", [-5, 100_000])
def test_threads_beyond_reason_are_refused(run: Path, threads: int) -> None:
    with pytest.raises(RunError):
        verify(run, threads=threads)


def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """tomllib takes time with the square of the parts: 100,000 of them took over ten seconds."""
    path = tmp_path / "task.toml"
    for text, line in (
        ("[task]\n" + ".".join("a" * 100_000) + " = 1\n", 2),
        ("[" + " . ".join(["'a'"] * 1000) + "]\n", 1),
        ('x = {"b".' + ".".join(["c-d"] * 100) + " = 1}\n", 1),
        (".".join(['"\\""'] * 1000) + " = 1\n", 1),
    ):
        path.write_text(text)
        with pytest.raises(TaskError, match=f"line {line} has a key of more than 64 parts"):
            load_task(path)
    path.write_text(
        "[task]\nname = '" + ".".join("a" * 1000) + "'\nrates = [" + "0.1, " * 999 + "]\n"
    )
    with pytest.raises(TaskError, match="rates"):
        load_task(path)


CONNECTIONS = 64
UNANSWERED = ("idle", "slow heads", "slow bodies", "garbage")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_connections_keep_nobody_from_moving(tmp_path: Path, kind: Kind) -> None:
    """All from the address of the honest parties: these move, and the claim stands.

    The game's rounds begin once the flood is under way: until then nobody is kept from much.
    benchmarks/service.py has the figures; here a server shares its process with
    all clients.
    """
    clocks = replace(LEAST, join=SERVICE_LIMITS.gap, trace=100, terms=100)
    clocks = replace(clocks, budget=60_000, grace=60_000)
    # Slow bodies hold their address's share for so long: the honest wait for its end.
    limits = replace(SERVICE_LIMITS, least=LEAST, beat=20, body_seconds=1)
    clock = Skipping()
    with (
        serving(f"sqlite:///{tmp_path}/games.db", SERVICE_KEY, limits=limits, ticks=clock) as url,
        connect(url) as client,
    ):
        aim = make_log_genesis(1, clocks=replace(clocks, join=3_600_000))
        genesis, game = make_log_genesis(clocks=clocks), compute_game_id(aim)
        for each in (genesis, aim):
            client.open(each, *get_documents())
            client.move(make_bond(compute_game_id(each), make_log().root, HONEST))
        with flooding(Target(url, aim, game), kind, CONNECTIONS) as target:
            follower = Follower(client, compute_game_id(genesis), graph=get_graph())
            waits = True
            while follower.verdict is None:
                follower.poll(0.2)
                if waits and (kind in UNANSWERED or target.requests >= CONNECTIONS):
                    waits = False
                    clock.skip(clocks.join)
                for signed in (m for p in make_players() for m in p.moves(follower.game)):
                    with suppress(BusyError):  # owed still, as `vtrain dispute play` has it
                        client.move(signed)
        assert follower.verdict.standing == make_log().root
