"""Files and texts that a stranger chose: what they cost, where they lead, what a terminal sees."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.runs import KEY, failed, refit_manifest
from tests.cli.calls import Call
from tests.cli.conftest import call, folder
from vtrain.attest.keys import load_key
from vtrain.audit.verify import verify
from vtrain.commit.files import open_file, read_entry, read_file, write_atomic
from vtrain.errors import (
    DataError,
    EncodingError,
    GraphError,
    NotProducedError,
    RunError,
    StorageError,
    TaskError,
    VtrainError,
)
from vtrain.limits import LIMITS, Limits, limits_here, most_threads
from vtrain.printable import cut, make_printable
from vtrain.spec.commitment import compute_graph_root
from vtrain.train import signed
from vtrain.train.data import IdxSource, NpySource, NpzSource, TextSource, load_samples
from vtrain.train.layout import RunPaths, decode_manifest, encode_manifest, read_manifest
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask, load_task
from vtrain.wire import cbor
from vtrain.wire.fields import MAX_TEXT
from vtrain.wire.graph import decode_graph, encode_graph
from vtrain.wire.task import decode_task, encode_task

__all__ = ["call", "folder"]

ENDLESS = Path("/proc/self/pagemap")
"""A regular file that says it has no bytes, and gives out some 10^11."""
ESCAPE = "\x1b[2J\x1b[31mVERIFIED\u202e"


def make_bad(folder: Path) -> dict[str, Path]:
    """What a name may stand for besides a file of the right size."""
    bad = folder / "bad"
    bad.mkdir()
    os.mkfifo(bad / "pipe")
    with socket.socket(socket.AF_UNIX) as end:
        here = Path.cwd()
        os.chdir(bad)  # a socket's path may have some 100 bytes
        end.bind("socket")
        os.chdir(here)
    (bad / "folder").mkdir()
    (bad / "dangling").symlink_to("nowhere")
    (bad / "loop").symlink_to("loop")
    (bad / "device").symlink_to("/dev/zero")
    if ENDLESS.exists():
        (bad / "endless").symlink_to(ENDLESS)
    (bad / "sparse").touch()
    os.truncate(bad / "sparse", 40 << 30)
    return {path.name: path for path in bad.iterdir()} | {"missing": bad / "missing"}


def at_once(work: Callable[..., Any], *arguments: object, **options: object) -> Any:
    """What ``work`` makes of the arguments, or raises, within ten seconds."""
    begin = time.monotonic()
    try:
        return work(*arguments, **options)
    finally:
        assert time.monotonic() - begin < 10


# --- the one way to read


def test_every_bad_file_is_refused_by_its_name(tmp_path: Path) -> None:
    for path in make_bad(tmp_path).values():
        for error in (None, TaskError):
            with pytest.raises(VtrainError) as caught:
                at_once(read_file, path, 1 << 30, error=error)
            assert str(path) in caught.value.where
            assert error is None or isinstance(caught.value, error)


def read_while_cut(path: Path, size: int) -> None:
    with open_file(path, 1 << 20) as file:
        os.truncate(path, size)
        file.read()


def test_a_file_is_exactly_as_large_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    with open_file(path, 100_000) as file:
        assert (file.size, len(file.read()), file.read(1)) == (100_000, 100_000, b"")
        assert file.seek(-3, os.SEEK_END) == 99_997
        assert file.read() == bytes(3)
    with pytest.raises(NotProducedError, match="more than the 99999 "):
        read_file(path, 99_999)
    with pytest.raises(NotProducedError, match="it ends at byte 7, it said 100000"):
        read_while_cut(path, 7)
    with pytest.raises(NotProducedError, match="more than the 7 bytes that it said"):
        read_while_cut(path, 8)
    with open_file(path, 100_000, growing=True) as file:
        os.truncate(path, 9)
        assert file.read() == bytes(8)


@pytest.mark.skipif(not ENDLESS.exists(), reason="this system has no such file")
def test_a_file_without_size_and_end_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ENDLESS)
    for path in (ENDLESS, tmp_path / "link"):
        with pytest.raises(NotProducedError, match="more than the 0 bytes that it said"):
            at_once(read_entry, path)


def test_what_is_below_a_run_folder_is_taken_as_it_lies(tmp_path: Path) -> None:
    root, secret = tmp_path / "run", tmp_path / "secret"
    (root / "data").mkdir(parents=True)
    secret.mkdir()
    (secret / "file").write_bytes(b"private")
    (root / "data" / "file").write_bytes(b"public")
    (tmp_path / "link").symlink_to(root)
    for way in (root, tmp_path / "link"):
        assert read_file(way / "data" / "file", 9, root=way) == b"public"
    (root / "file").symlink_to(secret / "file")
    (root / "folder").symlink_to(secret)
    (root / "inner").symlink_to("data")
    for name in ("file", "folder/file", "inner/file"):
        assert read_file(root / name, 9) in (b"private", b"public")
        with pytest.raises(NotProducedError, match="a link: a run folder is taken as it lies"):
            read_file(root / name, 9, root=root)
    for name in ("../secret/file", "data/../../secret/file", str(secret / "file")):
        with pytest.raises(NotProducedError, match="not below the run folder"):
            read_file(root / name, 9, root=root)


def test_a_device_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> int:
        raise AssertionError("opened")

    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "open", refuse)
    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(NotProducedError, match="not a regular file"):
            read_file(path, 5)


# --- a run folder


@pytest.mark.skipif(not ENDLESS.exists(), reason="this system has no such file")
@pytest.mark.parametrize("name", ["data/samples.bin", "model.onnx", "log.bin", "graph.cbor"])
def test_verify_does_not_follow_a_link_to_an_endless_file(run: Path, name: str) -> None:
    (run / name).unlink()
    (run / name).symlink_to(ENDLESS)
    paths = RunPaths(run)
    manifest = read_manifest(paths)
    entry = replace(manifest.files[name], size=0)
    listed = replace(manifest, files={**manifest.files, name: entry})
    paths.manifest.write_bytes(encode_manifest(listed))
    report = at_once(verify, run, samples=1)
    assert report.verdict == "inconclusive"
    assert any("is taken as it lies" in check.detail for check in failed(report))


@pytest.mark.parametrize(
    "name",
    [
        "claim.cbor",
        "task.cbor",
        "graph.cbor",
        "manifest.json",
        "model.onnx",
        "log.bin",
        "data",
        "checkpoints",
    ],
)
def test_a_run_that_is_links_is_inconclusive(run: Path, tmp_path: Path, name: str) -> None:
    """It would have the auditor read files of its own, and say what is in them."""
    shutil.move(run / name, tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    report = verify(run, samples=1)
    assert report.verdict == "inconclusive"
    assert any("is taken as it lies" in check.detail for check in failed(report))
    paths = RunPaths(run)
    readers: list[Callable[[], object]] = [
        lambda: signed.read_claimed_state(paths),
        lambda: read_manifest(paths),
        lambda: read_file(paths.model, 1 << 20, root=run),
        lambda: read_file(paths.samples, 1 << 20, root=run),
    ]
    with pytest.raises(NotProducedError, match="is taken as it lies"):
        _ = [read() for read in readers]


def test_the_run_folder_itself_may_be_reached_by_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    assert verify(tmp_path / "link", samples=1).verdict == "verified"


@pytest.mark.parametrize("name", ["claim.cbor", "log.bin", "manifest.json", "data/samples.bin"])
def test_a_pipe_or_a_sparse_file_in_a_run_does_not_stop_an_audit(run: Path, name: str) -> None:
    def make_sparse(path: Path) -> None:
        path.touch()
        os.truncate(path, 40 << 30)

    for make in (os.mkfifo, make_sparse):
        (run / name).unlink()
        make(run / name)
        assert at_once(verify, run, samples=1).verdict == "inconclusive"


@pytest.mark.parametrize("name", ["checkpoints/000000000004.safetensors", "data/samples.bin"])
def test_files_of_holes_are_not_hashed_however_many_are_listed(run: Path, name: str) -> None:
    """Each is as large as the manifest lists, and within the limits."""
    size = 1 << 32
    (run / name).unlink()
    (run / name).touch()
    os.truncate(run / name, size)
    paths = RunPaths(run)
    manifest = read_manifest(paths)
    entry = replace(manifest.files[name], size=size)
    more = {f"checkpoints/{step:012d}.safetensors": entry for step in range(100, 200)}
    for other in more:
        (run / other).hardlink_to(run / name)
    listed = replace(manifest, files={**manifest.files, **more, name: entry})
    paths.manifest.write_bytes(encode_manifest(listed))
    report = at_once(verify, run, samples=1)
    assert report.verdict == "inconclusive"
    assert any(f"is listed with {size} bytes" in check.detail for check in failed(report))


def test_a_run_folder_with_too_many_names_is_not_listed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vtrain.train import layout

    assert RunPaths(run).list_checkpoints() == [0, 4, 8, 12]
    monkeypatch.setattr(layout, "LIMITS", Limits(entries=3))
    with pytest.raises(NotProducedError, match="more than 3 files"):
        RunPaths(run).list_checkpoints()


def test_training_into_a_folder_of_links_is_refused(
    run: Path, task: CompiledTask, tmp_path: Path
) -> None:
    shutil.move(run / "task.cbor", tmp_path / "task.cbor")
    (run / "task.cbor").symlink_to(tmp_path / "task.cbor")
    with pytest.raises(NotProducedError, match="is taken as it lies"):
        train(task, run, key=KEY)


def test_nothing_is_removed_where_a_link_of_a_run_leads(
    run: Path, task: CompiledTask, tmp_path: Path
) -> None:
    for name in ("checkpoints", "data"):
        copy = Path(shutil.copytree(run, tmp_path / f"copy {name}"))
        shutil.move(copy / name, tmp_path / name)
        (copy / name).symlink_to(tmp_path / name)
        mine = tmp_path / name / ".mine.tmp"
        mine.write_text("")
        with pytest.raises(NotProducedError, match="is taken as it lies"):
            train(task, copy, key=KEY)
        assert mine.exists()


def test_inspect_streams_a_log_under_the_limit_of_verify(
    run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vtrain import limits

    code, before, _ = call("inspect", run, "--json")
    with (run / "log.bin").open("ab") as file:
        file.truncate(30 << 30)
    code, out, err = at_once(call, "inspect", run, "--json")
    assert code == 2
    assert f"more than the {limits_here().log_bytes} " in err
    os.truncate(run / "log.bin", 50 << 20)
    monkeypatch.setattr(limits, "measure_memory", lambda: 1 << 40)
    code, out, err = at_once(call, "inspect", run, "--json")
    assert code == 0
    assert json.loads(out) == json.loads(before)
    assert "the log ends early" in err


# --- names and numbers


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads((run / "manifest.json").read_bytes())
    change(value)
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n"
    (run / "manifest.json").write_text(text)


@pytest.mark.parametrize("field", ["files", "saturation", None])
@pytest.mark.parametrize("letter", ["n", "\x1b", "\u202e"])
def test_a_long_name_in_a_manifest_costs_nothing(
    run: Path, call: Call, field: str | None, letter: str
) -> None:
    def change(value: dict[str, Any]) -> None:
        (value if field is None else value[field])[letter * (1 << 20)] = 1

    rewrite(run, change)
    code, out, err = at_once(call, "verify", run, "--samples", "0")
    assert code == 3
    assert letter == "n" or letter not in out + err
    assert len(out) < 20_000
    assert len(at_once(call, "verify", run, "--samples", "0", "--json")[1]) < 40_000
    code, out, err = at_once(call, "inspect", run)
    assert code == 2
    assert len(err) < 20_000
    with pytest.raises(EncodingError, match=f"more than {MAX_TEXT} bytes"):
        decode_manifest((run / "manifest.json").read_bytes())


def test_a_long_key_in_a_graph_or_a_task_is_refused(run: Path) -> None:
    graph = cbor.decode((run / "graph.cbor").read_bytes())
    assert isinstance(graph, list)
    node = graph[0]
    assert isinstance(node, dict)
    attrs = node["attrs"]
    assert isinstance(attrs, dict)
    node["attrs"] = {**attrs, "a" * (1 << 20): 1}
    with pytest.raises(EncodingError, match=f"more than {MAX_TEXT} bytes") as caught:
        decode_graph(cbor.encode(graph))
    assert len(str(caught.value)) < 200
    node["attrs"] = {**attrs, "name": "a" * (1 << 20)}
    with pytest.raises(EncodingError, match=f"more than {MAX_TEXT} bytes"):
        decode_graph(cbor.encode(graph))
    task = cbor.decode((run / "task.cbor").read_bytes())
    assert isinstance(task, dict)
    long: cbor.Value = {"a" * (1 << 19): 1}
    for value in ({**task, "a" * (1 << 19): 1}, {**task, "exponents": long}):
        with pytest.raises(EncodingError, match=f"more than {MAX_TEXT} bytes"):
            decode_task(cbor.encode(value))


def test_a_shape_of_many_extents_is_refused_where_it_is_decoded(run: Path, call: Call) -> None:
    """500 extents of 2^32: their product has more digits than Python writes."""
    task = cbor.decode((run / "task.cbor").read_bytes())
    assert isinstance(task, dict)
    data = task["data"]
    assert isinstance(data, dict)
    for shape in ([2**32] * 500, [2**32] * 7, [1] * 8):
        encoded = cbor.encode({**task, "data": {**data, "x_shape": list(shape)}})
        with pytest.raises(EncodingError, match="x_shape"):
            decode_task(encoded)
        (run / "task.cbor").write_bytes(encoded)
        for command in ("verify", "inspect", "eval"):
            code, out, err = at_once(call, command, run, "--json")
            assert code in (2, 3)
            assert json.loads(out)
            assert "Traceback" not in err
    graph = cbor.decode((run / "graph.cbor").read_bytes())
    assert isinstance(graph, list)
    for shape in ([2**32] * 500, [2**32, 2], [1] * 9):
        outputs = next(node["outputs"] for node in graph if isinstance(node, dict))
        assert isinstance(outputs, list)
        assert isinstance(outputs[0], dict)
        outputs[0]["shape"] = list(shape)
        with pytest.raises(EncodingError, match=r"shape|elements"):
            decode_graph(cbor.encode(graph))


def test_a_data_file_of_many_axes_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\0\0\x08\xff" + b"\xff" * 4 * 255)
    with pytest.raises(DataError, match="255 axes"):
        load_samples(IdxSource(path, path))
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (" + b"99," * 9 + b"), }\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(DataError, match="9 axes"):
        load_samples(NpySource(path, path))


def test_no_error_is_longer_than_a_screen_takes() -> None:
    error = RunError("m" * 10**6, where="w" * 10**6)
    assert len(str(error)) < 3 * LIMITS.text_characters
    assert error.message.endswith("... (1000000 characters)")
    assert RunError("short", where="here").message == "short"


def test_text_is_cut_and_written_out() -> None:
    assert make_printable("a\x1b[31m\u202eb\nc") == "a\\x1b[31m\\u202eb\\nc"
    for letter in ("a", "\x1b", "\U000e0001", "\ud800"):
        shown = make_printable(letter * 10**6, 100)
        assert len(shown) <= 100
        assert shown.isprintable()
        assert make_printable(shown, 100) == shown
    assert cut("abc", 100) == "abc"
    assert cut(cut("a" * 1000, 100), 100) == cut("a" * 1000, 100)


# --- terminals


def test_no_command_lets_an_escape_through(folder: Path, tmp_path: Path, call: Call) -> None:
    """Names of nodes, sites, tensors, files and folders, in a run, a task, a model, an error."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    run, task = copy / "run", copy / "task.toml"
    manifest = read_manifest(RunPaths(run))
    spoiled = replace(
        manifest,
        software=ESCAPE,
        engine=ESCAPE,
        saturation={ESCAPE: 5},
        files={**manifest.files, ESCAPE: manifest.files["log.bin"]},
    )
    (run / "manifest.json").write_bytes(encode_manifest(spoiled))
    (run / ESCAPE).write_text("")
    strange = Path(shutil.copytree(copy, tmp_path / ESCAPE))
    text = task.read_text()
    for number, bad in enumerate(
        (
            text.replace("[data]", f'[data]\n"{ESCAPE}" = 1'.encode("unicode_escape").decode()),
            text.replace("tiny", "\\u001b[31m"),
            text.replace("model.onnx", "\\u001b[31m"),
            text.replace('"npy"', '"\\u001b[31m"'),
            text + '\n[proof]\n"\\u001b[31m" = 1\n',
            re_exponents(text),
        )
    ):
        (copy / f"bad{number}.toml").write_text(bad.replace("\\x1b", "\\u001b"))
    lines: list[tuple[object, ...]] = [
        ("inspect", run),
        ("verify", run, "--samples", "0"),
        ("eval", run),
        ("export", run, "--out", strange / "out"),
        ("inspect", strange / "run"),
        ("verify", strange / "run", "--samples", "0"),
        ("verify", tmp_path / f"no{ESCAPE}"),
        ("task", "check", strange / "task.toml"),
        ("train", strange / "task.toml", "--out", strange / "r", "--key", strange / "none"),
        ("train", strange / "task.toml", "--out", strange / "r", "--key", strange / "solver.pem"),
        ("key", "show", strange / "none"),
        ("key", "new", strange / "solver.pem"),
        ("referee", strange / "task.toml"),
        ("srs", "check", strange / "task.toml"),
        ("graph", "export-onnx", strange / "task.toml", "--out", strange / "g.onnx"),
        (ESCAPE,),
        ("inspect", f"--{ESCAPE}"),
    ]
    for path in sorted(copy.glob("bad*.toml")):
        lines += [
            ("task", "check", path),
            ("profile", path),
            ("train", path, "--out", copy / "o", "--key", copy / "solver.pem"),
            ("eval", run, "--task", path),
        ]
    for line in lines:
        _, out, err = call(*line)
        for char in ("\x1b", "\u202e", "\x07"):
            assert char not in out + err, line


def re_exponents(text: str) -> str:
    """A task file with a site of a hostile name."""
    head, _, tail = text.partition("[exponents]")
    return f'{head}[exponents]\n"\\u001b[31m" = 3\n{tail.partition(chr(10))[2]}'


# --- graphs


def test_no_command_runs_an_illegal_graph(run: Path, call: Call, tmp_path: Path) -> None:
    """One that claims a range which its operators do not keep, pinned and signed for all the same:
    eval and export ran it."""
    from vtrain.attest.claims import sign_claim
    from vtrain.spec.commitment import compute_task_id
    from vtrain.wire.claim import decode_signed_claim, encode_signed_claim

    paths = RunPaths(run)
    graph = decode_graph(paths.graph.read_bytes())
    at = next(i for i, node in enumerate(graph.nodes) if node.op == "matmul")
    wrong = replace(graph.nodes[at].outputs[0], hi=1, lo=-1)
    bad = replace(graph.nodes[at], outputs=(wrong,))
    graph = replace(graph, nodes=(*graph.nodes[:at], bad, *graph.nodes[at + 1 :]))
    spec = replace(decode_task(paths.task.read_bytes()), graph_root=compute_graph_root(graph))
    claim = decode_signed_claim(paths.claim.read_bytes()).claim
    again = sign_claim(replace(claim, task_id=compute_task_id(spec)), KEY)
    paths.graph.write_bytes(encode_graph(graph))
    paths.task.write_bytes(encode_task(spec))
    paths.claim.write_bytes(encode_signed_claim(again))
    refit_manifest(run)
    with pytest.raises(GraphError, match="derived is"):
        signed.read_claimed_state(paths)
    with pytest.raises(GraphError, match="derived is"):
        signed.read_legal_graph(paths, spec)
    for line in (
        ("eval", run),
        ("export", run, "--out", tmp_path / "out"),
        ("graph", "export-onnx", run, "--out", tmp_path / "out.onnx"),
        ("prove", run, "--steps", "1", "--srs", run / "log.bin"),
    ):
        code, _, err = call(*line)
        assert code == 2, line
        assert "derived is" in err or "[missing-extra]" in err, line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("limits", [Limits(step_bytes=10), Limits(state_bytes=10)])
def test_a_graph_too_large_for_this_machine_is_not_run(run: Path, limits: Limits) -> None:
    paths = RunPaths(run)
    task = decode_task(paths.task.read_bytes())
    with pytest.raises(RunError, match="the limit of this machine is 10"):
        signed.read_legal_graph(paths, task, limits)


# --- what a task names


def test_what_a_task_names_is_a_regular_file(folder: Path, tmp_path: Path, call: Call) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("run")))
    text = (copy / "task.toml").read_text()
    for name, path in make_bad(tmp_path).items():
        for place in ("model.onnx", "x.npy"):
            (copy / "bad.toml").write_text(text.replace(f'"{place}"', f'"{path}"'))
            for command in (
                ("task", "check", copy / "bad.toml"),
                ("profile", copy / "bad.toml", "--check"),
            ):
                code, _, err = at_once(call, *command)
                assert code == 2, (name, command)
                assert str(path) in err
                assert "cannot be read" in err or name == "endless"
        code, _, err = at_once(call, "task", "check", path)
        assert code == 2


def test_links_are_fine_in_what_a_task_names(folder: Path, tmp_path: Path, call: Call) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("model.onnx", "x.npy", "y.npy", "task.toml"):
        (copy / name).symlink_to(folder / name)
    assert call("task", "check", copy / "task.toml")[0] == 0


def test_every_kind_of_data_is_bounded_by_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vtrain import limits

    monkeypatch.setattr(limits, "measure_memory", lambda: 4000)
    path = tmp_path / "data"
    path.write_bytes(bytes(1001))
    for source in (
        IdxSource(path, path),
        NpySource(path, path),
        NpzSource(path),
        TextSource(path, 3),
    ):
        with pytest.raises(DataError, match="more than the 1000 "):
            load_samples(source)
    # A small file of text makes a large table.
    path.write_bytes(bytes(500))
    with pytest.raises(DataError, match="more than the 1000 "):
        load_samples(TextSource(path, 250))


def test_an_srs_of_holes_is_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vtrain import limits
    from vtrain.errors import SrsError
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.prove.backend.srs import generate_srs, identify_srs

    path = tmp_path / "srs"
    path.write_bytes((28).to_bytes(4, "little") + bytes(64))
    os.truncate(path, 4 + (128 << 28) + 256)
    with pytest.raises(SrsError, match="mostly holes"):
        at_once(identify_srs, path)
    path.unlink()
    generate_srs(path, 4)
    monkeypatch.setattr(limits, "measure_memory", lambda: 4000)
    with pytest.raises(SrsError, match="this machine gives 2000: name a smaller k"):
        CommitKey(path, 4, 0)
    CommitKey(path, 3, 0)


def test_a_large_directory_of_an_archive_is_not_read(tmp_path: Path) -> None:
    """Each entry would take some 600 bytes of memory for its 46."""
    path, size = tmp_path / "x.npz", 1 << 30
    path.touch()
    os.truncate(path, size)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, size, 0, 0)
    with path.open("ab") as file:
        file.write(end)
    with pytest.raises(DataError, match=f"directory has {size} bytes"):
        at_once(load_samples, NpzSource(path))


def test_a_task_file_that_is_none(tmp_path: Path) -> None:
    for path in make_bad(tmp_path).values():
        with pytest.raises(TaskError, match="cannot be read"):
            at_once(load_task, path)
        with pytest.raises(StorageError, match="cannot be read"):
            at_once(load_key, path)


# --- threads


def test_threads_are_bounded_everywhere(run: Path, task: CompiledTask, tmp_path: Path) -> None:
    from vtrain.commit.digest import compute_tensor_digest, compute_tensor_digests
    from vtrain.commit.openings import compute_root_fixed
    from vtrain.engines.registry import open_session
    from vtrain.prove.backend.ezkl import Limits as Process
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.prove.backend.srs import check_srs, generate_srs
    from vtrain.spec.domains import SAMPLES

    most, one = most_threads(), np.zeros((1, 1), np.uint8)
    assert most == max(64, 4 * (os.cpu_count() or 1))
    srs = tmp_path / "srs"
    for threads in (-1, most + 1, 999_999):
        for work in (
            lambda n: train(task, tmp_path / "out", key=KEY, threads=n),
            lambda n: verify(run, samples=0, threads=n),
            lambda n: open_session("cpu", task.graph, task.samples, threads=n),
            lambda n: compute_tensor_digest(one, n),
            lambda n: compute_tensor_digests([one], n),
            lambda n: compute_root_fixed(SAMPLES, one, n),
            lambda n: generate_srs(srs, 1, threads=n),
            lambda n: check_srs(srs, threads=n),
            lambda n: CommitKey(srs, 1, 0, threads=n),
            lambda n: Process(memory=1, seconds=1, threads=n),
        ):
            with pytest.raises(RunError, match=f"name 1 to {most}, or 0") as caught:
                at_once(work, threads)
            assert caught.value.where == f"threads {threads}"
    assert verify(run, samples=1, threads=most).verdict == "verified"


@pytest.mark.parametrize("trap", ["pipe", "hard link", "link"])
def test_what_waits_under_a_temporary_name_is_not_written_to(tmp_path: Path, trap: str) -> None:
    """A pipe there hung whoever wrote, a hard link had another file written over."""
    victim, place = tmp_path / "victim", tmp_path / ".note.tmp"
    victim.write_text("mine")
    if trap == "pipe":
        os.mkfifo(place)
    elif trap == "hard link":
        place.hardlink_to(victim)
    else:
        place.symlink_to(victim)
    write_atomic(tmp_path / "note", [b"hello"])
    assert (tmp_path / "note").read_bytes() == b"hello"
    assert victim.read_text() == "mine"
    assert not os.path.lexists(place)
