"""The files in circuits/ are those of the circuits that the code makes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.srs import place_srs

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
        made = maker.render(entry, keys)
        assert set(made) == {path.name for path in (CIRCUITS / entry.name).iterdir()}
        for name, data in made.items():
            found = (CIRCUITS / entry.name / name).read_bytes()
            assert found == data, f"{entry.name}/{name}: run circuits/make.py"
    assert names == {path.name for path in CIRCUITS.iterdir() if path.is_dir()} - {"__pycache__"}


def test_each_circuit_has_a_verifying_key(maker: ModuleType) -> None:
    for entry in maker.find_entries():
        facts = json.loads((CIRCUITS / entry.name / "circuit.json").read_text())
        assert maker.LABEL in facts["keys"], f"{entry.name} has changed: run make.py --keys"


_OUTSIDER = """
import json, sys
sys.modules["vtrain"] = None
import blake3, ezkl
circuit, key, proof, folder, srs = sys.argv[1:]
at = lambda name: f"{folder}/{name}"
ezkl.compile_circuit(f"{circuit}/circuit.onnx", at("compiled"), f"{circuit}/settings.json")
ezkl.setup(at("compiled"), at("vk"), at("pk"), srs)
with open(at("vk"), "rb") as file:
    assert blake3.blake3(file.read()).hexdigest() == key
words = {"instances": [[]], "proof": list(bytes.fromhex(proof)), "protocol": None}
with open(at("proof"), "w") as file:
    json.dump(words, file)
assert ezkl.verify(at("proof"), f"{circuit}/settings.json", at("vk"), srs) is True
"""


@pytest.mark.slow
def test_anyone_makes_the_same_verifying_key(maker: ModuleType, tmp_path: Path) -> None:
    """A key anew, over the SRS that its label says how to make, and a proof of another's held
    against it, with nothing but ezkl and the files of circuits/."""
    srs = tmp_path / "k15.srs"
    place_srs(srs, 15, b"\0")
    folder = CIRCUITS / "matmul-nn"
    key = json.loads((folder / "circuit.json").read_text())["keys"][maker.LABEL]
    cases = json.loads((CIRCUITS.parent / "tests/vectors/proofs.json").read_text())["cases"]
    proof = next(case["proof"] for case in cases if case["circuit_name"] == folder.name)
    command = [sys.executable, "-P", "-c", _OUTSIDER, folder, key, proof, tmp_path, srs]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
