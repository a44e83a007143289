"""The package as a whole: its version, its files, its lock files, its data."""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import vtrain

LOCKS = sorted(Path(__file__).resolve().parents[1].glob("requirements-*.lock"))
EXTRAS = [lock.stem.removeprefix("requirements-") for lock in LOCKS if "-dev" not in lock.stem]
"""Those with a lock, for `make cuda` and the like."""


def test_the_package_runs_as_a_module_as_the_command_does() -> None:
    for words in (("--version",), ("no-such-command", "--json")):
        command, module = (
            subprocess.run([*program, *words], capture_output=True, text=True, check=False)
            for program in (
                (Path(sys.executable).with_name("vtrain"),),
                (sys.executable, "-m", "vtrain"),
            )
        )
        assert (module.returncode, module.stdout) == (command.returncode, command.stdout)
        assert module.stdout


def test_version_is_the_same_everywhere(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((repository / "rust/Cargo.toml").read_text())["workspace"]
    assert vtrain.__version__ == project["version"] == workspace["package"]["version"]
    citation = (repository / "CITATION.cff").read_text()
    assert re.findall(r"(?m)^version: (.+)$", citation) == [vtrain.__version__]


def test_every_folder_of_the_package_is_a_package(repository: Path) -> None:
    # Without its __init__.py a folder would be invisible to the import check.
    folders = {source.parent for source in (repository / "vtrain").rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()


def test_importing_vtrain_loads_nothing_heavy() -> None:
    heavy = {"cuda", "ezkl", "fastapi", "onnxruntime", "sqlalchemy", "torch"}
    program = f"import sys, vtrain; print(sorted({heavy!r} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "name", ["requirements.lock", *(f"requirements-{name}.lock" for name in (*EXTRAS, "dev"))]
)
def test_lock_pins_every_package_with_hashes_and_names_no_registry(
    repository: Path, name: str
) -> None:
    text = (repository / name).read_text()
    assert not re.search(r"https?:|--(extra-)?index-url|--find-links", text)
    requirements = re.split(r"\n(?=\w)", "\n" + text.partition("make lock\n")[2])[1:]
    assert len(requirements) > 10
    for requirement in requirements:
        assert re.match(r"[\w.-]+==\S+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement


@pytest.mark.parametrize("extra", EXTRAS)
def test_locks_agree_with_each_other(repository: Path, extra: str) -> None:
    """What is installed for use is what the tests ran with."""

    def pins(name: str) -> set[str]:
        return set(re.findall(r"^\S+==\S+", (repository / name).read_text(), re.MULTILINE))

    assert pins("requirements.lock") <= pins(f"requirements-{extra}.lock")
    assert pins(f"requirements-{extra}.lock") <= pins("requirements-dev.lock")


def test_cargo_lock_names_the_canonical_registry_alone(repository: Path) -> None:
    lock = tomllib.loads((repository / "rust/Cargo.lock").read_text())
    sources = {package["source"] for package in lock["package"] if "source" in package}
    assert sources == {"registry+https://github.com/rust-lang/crates.io-index"}


@pytest.mark.parametrize("folder", ["mnist", "text"])
def test_shipped_data_is_what_its_source_page_says(repository: Path, folder: str) -> None:
    data = repository / "examples" / folder / "data"
    page = (data / "SOURCE.md").read_text()
    files = sorted(path for path in data.iterdir() if path.name != "SOURCE.md")
    assert files
    for path in files:
        assert path.name in page
        assert hashlib.sha256(path.read_bytes()).hexdigest() in page


@pytest.mark.parametrize(("split", "samples"), [("train", 9000), ("test", 1000)])
def test_mnist_files_are_idx_of_matching_length(repository: Path, split: str, samples: int) -> None:
    data = repository / "examples/mnist/data"
    images = gzip.decompress((data / f"{split}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((data / f"{split}-labels-idx1-ubyte.gz").read_bytes())
    count = samples.to_bytes(4)
    assert images[:16] == bytes.fromhex("00000803") + count + bytes.fromhex("0000001c") * 2
    assert labels[:8] == bytes.fromhex("00000801") + count
    assert len(images) == 16 + samples * 28 * 28
    assert len(labels) == 8 + samples
    assert set(labels[8:]) == set(range(10))
