"""The files in circuits/ are those of the circuits that the code makes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from vtrain.prove.backend.ezkl import Limits
from vtrain.prove.backend.keys import load_verifying_key
from vtrain.prove.backend.settings import pin
from vtrain.prove.backend.srs import generate_srs

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


def test_each_circuit_has_a_verifying_key(maker: ModuleType) -> None:
    for entry in maker.find_entries():
        facts = json.loads((CIRCUITS / entry.name / "circuit.json").read_text())
        assert maker.LABEL in facts["keys"], f"{entry.name} has changed: run make.py --keys"


@pytest.mark.slow
def test_anyone_makes_the_same_verifying_key(maker: ModuleType, tmp_path: Path) -> None:
    """A key anew, over the SRS that its label says how to make."""
    srs = tmp_path / "k15.srs"
    generate_srs(srs, 15, seed=b"\0")
    entry = next(entry for entry in maker.find_entries() if entry.name == "square")
    limits = Limits(memory=24 << 30, seconds=600)
    made = load_verifying_key(pin(entry.circuit, entry.k), srs, tmp_path / "keys", limits)
    facts = json.loads((CIRCUITS / "square" / "circuit.json").read_text())
    assert made.vk_digest.hex() == facts["keys"][maker.LABEL]
