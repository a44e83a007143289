"""One way to read a stranger's file, one way to print a stranger's text: nothing in ``vtrain`` may
use another, but for the few places named here with their reasons.

What is found is found by its spelling in the syntax tree: the checker is there for the next person
in a hurry, not against one who hides a call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

FORBIDDEN = frozenset(
    [
        # reading
        *("open", "io.open", "io.open_code", "io.FileIO", "codecs.open", "mmap.mmap"),
        *("os.open", "os.fdopen", "os.read", "os.pread", "os.readv", "os.preadv", "os.popen"),
        *("numpy.load", "numpy.fromfile", "numpy.memmap", "numpy.loadtxt", "numpy.genfromtxt"),
        *("zipfile.ZipFile", "zipfile.PyZipFile", "tarfile.open", "tarfile.TarFile"),
        *("gzip.open", "bz2.open", "lzma.open", "bz2.BZ2File", "lzma.LZMAFile", "shelve.open"),
        *("json.load", "json.loads", "tomllib.load", "tomlkit.load", "pickle.load", "marshal.load"),
        *("onnx.load", "onnx.load_model", "onnx.load_tensor", "sqlite3.connect"),
        *("onnx.load_external_data_for_model", "onnx.external_data_helper"),
        *("safetensors.safe_open", "safetensors.numpy.load_file", "fileinput.input"),
        *("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.move"),
        *("shutil.unpack_archive", "linecache.getlines", "runpy.run_path"),
        # printing
        *("print", "click.echo", "click.secho", "click.echo_via_pager", "rich.print"),
        *("sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines"),
        *("sys.__stdout__", "sys.__stderr__", "sys.stdout.buffer", "sys.stderr.buffer"),
        *("traceback.print_exc", "traceback.print_exception", "traceback.print_stack"),
        *("logging.getLogger", "logging.warning", "logging.error", "pprint.pprint"),
    ]
)
"""Names that are not used, called or not."""

_MODES = frozenset("rwaxbt+")

ALLOWED: Mapping[str, Mapping[str, str]] = {
    "commit/files.py": {
        "os.open": "the one way to read, and writing",
        "os.readv": "the one way to read",
        "os.pread": "the one way to read",
    },
    "cli/__init__.py": {
        "sys.stdout.write": "the one way to print, which needs Python alone",
    },
    "cli/common.py": {
        "console.print": "the one way to print in a style, of what was made printable",
        "console.rule": "as before",
    },
    "report/terminal.py": {
        "console.print": "lays out tables; each cell is made printable where it enters one"
    },
    "train/data.py": {
        "zipfile.ZipFile": "over a file that was opened the one way",
        "numpy.memmap": "over a temporary copy of our own",
    },
    "cli/completion.py": {"sys.stdout.write": "a script of click's, whose lines may be long"},
    "bench/alone.py": {
        "json.loads": "arguments that the process that started this one gave",
        "sys.stdout.write": "the answer to that process",
        ".read_text()": "/proc/self/status",
        ".read_bytes()": "the log of a run and a game just made, in a temporary folder of ours",
    },
    "bench/estimate.py": {".read_bytes()": "the log of a run just made, as before"},
    "bench/proofs.py": {
        "json.loads": "what a process and the one that it started say to each other",
        "sys.stdout.write": "the answer to that process",
    },
    "bench/stages.py": {".read_bytes()": "the log of a run just made, as before"},
    "graph/from_torch/capture.py": {"logging.getLogger": "to quiet torch's"},
    "train/attested.py": {".open()": "appends to a log that was just written whole"},
    "train/history.py": {".open()": "appends to a file that was read the one way"},
    "train/store.py": {"os.open": "appends to a log that was read the one way; follows no link"},
    "train/lock.py": {"os.open": "a lock, of which nothing is read; follows no link"},
    "prove/proof_files.py": {"os.open": "a lock, of which nothing is read; follows no link"},
    "prove/backend/settings.py": {"json.loads": "settings of our own making"},
    "prove/backend/keys.py": {
        "os.open": "a lock, of which nothing is read; follows no link",
        ".open()": "syncs keys just made, in our own cache",
        ".read_bytes()": "what ezkl just wrote into a folder of ours",
        "json.loads": "as before, and settings of our own making",
    },
    "prove/backend/srs.py": {".open()": "writes a new file"},
    "prove/prover.py": {".read_bytes()": "a proof just made, in a temporary folder of ours"},
    "prove/backend/ezkl.py": {
        "json.loads": "the answers of a process of ours",
        ".open()": "the answers of a process of ours, in a temporary folder",
        ".read_bytes()": "the answers of a process of ours, in a temporary folder",
    },
    "prove/backend/worker.py": {
        ".open()": "that process, which imports nothing of vtrain, writes its answers",
        ".read_bytes()": "and reads its request",
        "json.loads": "as before",
    },
    "prove/chain/evm.py": {"json.loads": "the answer of the compiler that the user named"},
    "prove/chain/statement.py": {".read_text()": "a contract of the package"},
    "wire/json_text.py": {"json.loads": "the one way to read JSON"},
    "dispute/arbiter.py": {"logging.getLogger": "an arbiter's log for its operator"},
    "dispute/service/app.py": {
        ".open()": "a bell, which is no file",
        "logging.getLogger": "a service's log for its operator; what clients say is made printable",
    },
    "dispute/service/rounds.py": {"logging.getLogger": "as before"},
    "dispute/service/settler.py": {"logging.getLogger": "as before"},
    "dispute/service/webhooks.py": {"logging.getLogger": "as before"},
    "attest/keys.py": {"os.open": "writes a new key", "os.fdopen": "writes a new key"},
    "engines/cuda/gpu.py": {".read_text()": "/proc/meminfo"},
    "engines/cuda/sources.py": {".read_bytes()": "kernels of the package"},
    "engines/cuda/compile.py": {
        ".read_text()": "kernels of the package",
        ".read_bytes()": "compiled kernels, in our own cache",
    },
    "engines/cuda/selfcheck.py": {
        "os.open": "verdicts on kernels, in our own cache: regular and small, or nothing",
        "os.fdopen": "as before",
        "sys.stderr.write": "names of our own kernels, on a line that is written over",
    },
}
"""File of ``vtrain`` -> what it may use all the same, and why."""


def _find_aliases(tree: ast.AST) -> dict[str, str]:
    """Local name -> the dotted name that it was imported from."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.asname:
                    aliases[name.asname] = name.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
    return aliases


def _resolve(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """Dotted name of an expression, "" for what has none."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = _resolve(node.value, aliases)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_mode(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and {*node.value} <= _MODES
    )


def _judge_method(call: ast.Call, attribute: ast.Attribute) -> str:
    """What a call of a method is, if that is not allowed: a path's or a console's."""
    arguments, keywords = call.args, {word.arg for word in call.keywords}
    match attribute.attr:
        case "open" if "mode" in keywords or not arguments or _is_mode(arguments[0]):
            return ".open()"
        case "read_bytes" if not arguments:
            return ".read_bytes()"
        case "read_text" if not arguments or (len(arguments) == 1 and _is_text(arguments[0])):
            return ".read_text()"
        case "show" if not arguments and not keywords:
            return ".show()"  # of an exception of click's, which prints it as it is
        case "add_task" if not arguments or not _is_text(arguments[0]):
            return ".add_task()"  # a bar's description
        case "print" | "rule" | "log" | "status" | "out" | "print_json":
            owner = ast.unparse(attribute.value).rpartition(".")[2]
            plain = all(_is_text(argument) for argument in arguments)
            if "console" in owner.lower() and not plain:
                return f"console.{attribute.attr}"
    return ""


def find_offences(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of each use that is not the one way."""
    tree = ast.parse(source)
    aliases = _find_aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = _resolve(node, aliases)
            if name in FORBIDDEN:
                yield node.lineno, name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            what = _judge_method(node, node.func)
            if what and _resolve(node.func, aliases) not in FORBIDDEN:
                yield node.lineno, what


def test_strangers_files_and_texts_have_one_way_in_and_one_way_out(repository: Path) -> None:
    package, used, wrong = repository / "vtrain", set(), []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        for line, what in find_offences(path.read_text()):
            if what in ALLOWED.get(name, {}):
                used.add((name, what))
            else:
                wrong.append(f"vtrain/{name}:{line}: {what}")
    assert not wrong, (
        "read with vtrain.commit.files.open_file, print with vtrain.cli.echo:\n" + "\n".join(wrong)
    )
    listed = {(name, what) for name, entries in ALLOWED.items() for what in entries}
    assert used == listed, f"allowed and not needed: {sorted(listed - used)}"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("open(p)", "open"),
        ("with open(p, 'rb') as f: pass", "open"),
        ("list(map(open, paths))", "open"),
        ("p.open()", ".open()"),
        ("p.open('rb')", ".open()"),
        ("p.open(mode='r')", ".open()"),
        ("(a / b).read_bytes()", ".read_bytes()"),
        ("p.read_text()", ".read_text()"),
        ("p.read_text('utf-8')", ".read_text()"),
        ("p.read_text(encoding='utf-8')", ".read_text()"),
        ("import os\nos.open(p, os.O_RDONLY)", "os.open"),
        ("from os import open as o\no(p, 0)", "os.open"),
        ("import os as system\nsystem.read(h, 5)", "os.read"),
        ("import numpy as np\nnp.fromfile(p)", "numpy.fromfile"),
        ("import numpy as np\nnp.load(p)", "numpy.load"),
        ("import numpy as np\nnp.memmap(p)", "numpy.memmap"),
        ("from numpy import fromfile\nfromfile(p)", "numpy.fromfile"),
        ("import zipfile\nzipfile.ZipFile(p)", "zipfile.ZipFile"),
        ("from zipfile import ZipFile\nZipFile(p)", "zipfile.ZipFile"),
        ("import shutil\nshutil.copyfile(a, b)", "shutil.copyfile"),
        ("import json\njson.load(f)", "json.load"),
        ("import tomllib\ntomllib.load(f)", "tomllib.load"),
        ("import onnx\nonnx.load(p)", "onnx.load"),
        ("import io\nio.open(p)", "io.open"),
        ("import gzip\ngzip.open(p)", "gzip.open"),
        ("from safetensors.numpy import load_file\nload_file(p)", "safetensors.numpy.load_file"),
        ("print(text)", "print"),
        ("import click\nclick.echo(text)", "click.echo"),
        ("import click\nclick.secho('a')", "click.secho"),
        ("from click import echo\necho(text)", "click.echo"),
        ("import click\nsay = click.echo", "click.echo"),
        ("error.show()", ".show()"),
        ("import sys\nsys.stdout.write(text)", "sys.stdout.write"),
        ("import sys\nsys.stderr.write(text)", "sys.stderr.write"),
        ("from sys import stderr\nstderr.write(text)", "sys.stderr.write"),
        ("import traceback\ntraceback.print_exc()", "traceback.print_exc"),
        ("console.print(text)", "console.print"),
        ("console.print(f'{text}')", "console.print"),
        ("self._console.print('a', text)", "console.print"),
        ("console.rule(text)", "console.rule"),
        ("bars.add_task(text)", ".add_task()"),
    ],
)
def test_the_checker_finds_each_other_way(source: str, what: str) -> None:
    assert [found for _, found in find_offences(source)] == [what]


@pytest.mark.parametrize(
    "source",
    [
        "from vtrain.commit.files import open_file\nwith open_file(p, 5) as f: f.read()",
        "from vtrain.cli import echo\necho(text)",
        "console.print()",
        "console.print('[bold]done[/]')",
        "import math\nmath.log(x)",
        "client.open(genesis, task)",
        "site.read_bytes(0)",
        "self.read_text(argument, start)",
        "import json\njson.dumps(text)",
        "import shutil\nshutil.rmtree(p)",
        "bars.add_task('training')",
        "tree.open(index)",
    ],
)
def test_the_checker_passes_what_is_harmless(source: str) -> None:
    assert list(find_offences(source)) == []
