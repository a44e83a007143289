"""The files in circuits/ are those of the circuits that the code makes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

CIRCUITS = Path(__file__).resolve().parents[2] / "circuits"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """circuits/make.py as a module."""
    spec = importlib.util.spec_from_file_location("make_circuits", CIRCUITS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_circuit_is_described_as_it_is(maker: ModuleType) -> None:
    keys = maker.read_keys()
    names = set()
    for entry in maker.find_entries():
        names.add(entry.name)
        for name, text in maker.render(entry, keys).items():
            found = (CIRCUITS / entry.name / name).read_text()
            assert found == text, f"{entry.name}/{name}: run circuits/make.py"
    assert names == {path.name for path in CIRCUITS.iterdir() if path.is_dir()} - {"__pycache__"}
