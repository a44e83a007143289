"""The import contracts of pyproject.toml can fail: each is broken in a copy, and named."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DIRECTION = "Imports run one way"
PLAIN = "The law needs neither the Rust core nor the facade"


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """A copy of the Python sources and the contracts, to be spoiled, with every room in place."""
    shutil.copy(repository / "pyproject.toml", tmp_path)
    shutil.copytree(
        repository / "vtrain", tmp_path / "vtrain", ignore=shutil.ignore_patterns("*.so", "*.pyc")
    )
    settings = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["importlinter"]
    for room in re.findall(r"\w+", " ".join(settings["contracts"][0]["layers"])):
        if not (tmp_path / "vtrain" / f"{room}.py").exists():
            (tmp_path / "vtrain" / room).mkdir(exist_ok=True)
            (tmp_path / "vtrain" / room / "__init__.py").touch()
    return tmp_path


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    # The command line puts its working directory first on the path, before the installed package.
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_sources_keep_every_contract(copy: Path) -> None:
    result = check(copy)
    assert result.returncode == 0, result.stdout
    assert " 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("package", "source", "contract"),
    [
        ("vtrain.wire", "import vtrain.spec", DIRECTION),
        ("vtrain.spec", "from vtrain import ops", DIRECTION),
        ("vtrain.ops", "from vtrain import graph", DIRECTION),
        ("vtrain.graph", "def late():\n    import vtrain.engines", DIRECTION),
        ("vtrain.engines", "import vtrain.train", DIRECTION),
        ("vtrain.commit", "import vtrain.ops", DIRECTION),
        ("vtrain.commit", "import vtrain.attest", DIRECTION),
        ("vtrain.train", "import vtrain.audit", DIRECTION),
        ("vtrain.audit", "import vtrain.cli", DIRECTION),
        ("vtrain.report", "import vtrain.spec", DIRECTION),
        ("vtrain.helpers", "import math", DIRECTION),
        ("vtrain.spec", "from vtrain._core import __version__", PLAIN),
        ("vtrain.ops", "import vtrain", PLAIN),
        ("vtrain.audit", "import ezkl", "Only prove imports ezkl"),
        ("vtrain.engines", "import cuda.bindings.driver", "Only engines.cuda imports CUDA"),
        ("vtrain.graph", "import torch", "Only the torch import and hooks import torch"),
        ("vtrain.audit", "import fastapi", "Web servers and databases stay in their rooms"),
        ("vtrain.audit", "import obstore", "What speaks to stores stays in its files"),
        ("vtrain.graph", "import onnxruntime", "The tests' tools stay in the tests"),
    ],
)
def test_a_bad_import_breaks_its_contract(
    copy: Path, package: str, source: str, contract: str
) -> None:
    folder = copy.joinpath(*package.split("."))
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / "bad.py").write_text(source)
    result = check(copy)
    assert result.returncode == 1, result.stdout
    assert f"{contract} BROKEN" in result.stdout
