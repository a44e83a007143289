"""A wheel, built from the checkout and installed elsewhere, works there without the checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import vtrain

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    maturin = Path(sys.executable).with_name("maturin")
    run(maturin, "build", "--release", "--compatibility", "off", "--out", out, cwd=repository)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' folder of a fresh environment that holds the wheel.

    Dependencies come from the environment that runs the tests: a folder named in a .pth file has
    its own .pth files ignored, so the checkout installed there stays out of reach.
    """
    home = tmp_path_factory.mktemp("elsewhere") / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin/python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet"),
        *("--disable-pip-version-check", "--no-deps", "--no-index", wheel),
        cwd=home,
    )
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home)
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"vtrain"}
    assert {"vtrain/__init__.py", "vtrain/_core.abi3.so", "vtrain/py.typed"} <= set(names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert "-cp311-abi3-" in wheel.name


def test_wheel_holds_every_kernel(repository: Path, wheel: Path) -> None:
    sources = {path.name for path in (repository / "reference_kernels").glob("*.cu*")}
    folder = "vtrain/engines/cuda/reference_kernels/"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.removeprefix(folder) for name in names if name.startswith(folder)} == sources


def test_installed_wheel_finds_its_own_kernels(elsewhere: Path) -> None:
    program = (
        "from vtrain.engines.cuda import sources as s; print(s.find_folder(), s.compute_hash())"
    )
    folder, digest = run(elsewhere / "python", "-c", program, cwd=elsewhere).split()
    assert folder.startswith(str(elsewhere.parent))
    mine = run(sys.executable, "-c", program, cwd=elsewhere).split()
    assert mine[0] != folder
    assert mine[1] == digest


def test_installed_wheel_imports_its_own_core(elsewhere: Path) -> None:
    program = "import vtrain._core as c; print(c.__version__, c.__file__)"
    version, path = run(elsewhere / "python", "-c", program, cwd=elsewhere).split()
    assert path.startswith(str(elsewhere.parent))
    assert version == run(
        sys.executable, "-c", "import vtrain; print(vtrain.__version__)", cwd=elsewhere
    )


def test_installed_wheel_trains_and_verifies(
    repository: Path, elsewhere: Path, tmp_path: Path
) -> None:
    """With no path to the checkout, to Rust, or to a key that is there already."""
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    program = "import sys, vtrain; print(vtrain.__file__, *sys.path, sep='\\n')"
    package, *paths = run(elsewhere / "python", "-c", program, cwd=tmp_path, env=home).split("\n")
    assert Path(package).is_relative_to(elsewhere.parent / "lib")
    assert Path(package).parent.parent.name == "site-packages"
    assert not {repository, repository / "tests", repository / "vtrain"} & set(map(Path, paths))
    for name in ("tiny.toml", "tiny.onnx"):
        shutil.copy(repository / "examples" / "mnist" / name, tmp_path)
    shutil.copytree(repository / "examples" / "mnist" / "data", tmp_path / "data")
    command = elsewhere / "vtrain"
    run(command, "train", "tiny.toml", "--out", "run", cwd=tmp_path, env=home)
    # The checkout has the same task of the same files.
    task_id = vtrain.compile(repository / "examples" / "mnist" / "tiny.toml").task_id.hex()
    verify = (command, "verify", "run", "--all", "--json", "--task-id", task_id)
    assert json.loads(run(*verify, cwd=tmp_path, env=home))["verdict"] == "verified"


def test_installed_commands_run(repository: Path, elsewhere: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    for command in project.get("scripts", {}):
        assert project["version"] in run(elsewhere / command, "--version", cwd=elsewhere)
