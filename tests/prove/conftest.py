"""An SRS, once a session, and a circuit with a proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prove.circuits import Circuit, node, write_model
from tests.prove.toy import Toy, make_toy
from vtrain.prove.backend.srs import generate_srs

K = 8


@pytest.fixture(scope="session")
def srs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local SRS of k = 8."""
    path = tmp_path_factory.mktemp("srs") / "k8.srs"
    generate_srs(path, K)
    return path


@pytest.fixture
def circuit(tmp_path: Path, srs: Path) -> Circuit:
    """A folder for a circuit, still without a model."""
    return Circuit(tmp_path, srs)


@pytest.fixture(scope="session")
def proven(tmp_path_factory: pytest.TempPathFactory, srs: Path) -> Circuit:
    """x and z = x + y, committed to, proven for x = 1..4, y = 10..40.  Tests only read it."""
    made = Circuit(tmp_path_factory.mktemp("proven"), srs)
    write_model(
        made.folder / "model.onnx",
        [node("Identity", ["x"], ["seen"]), node("Add", ["x", "y"], ["z"])],
        {"x": [4], "y": [4]},
        {"seen": [4], "z": [4]},
    )
    made.build(visibility="polycommit")
    made.witness([1, 2, 3, 4], [10, 20, 30, 40])
    made.prove()
    return made


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A circuit of ours with its keys and a proof.  Tests only read it."""
    return make_toy(tmp_path_factory.mktemp("toy"))
