"""The example notebook runs, and shows what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import nbformat
import pytest

pytestmark = pytest.mark.slow


def list_outputs(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    return [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]


def test_the_notebook_runs_and_is_kept_as_executed(repository: Path) -> None:
    path = repository / "examples" / "run_notebook.py"
    spec = importlib.util.spec_from_file_location("run_notebook", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept = nbformat.read(module.NOTEBOOK, as_version=4)
    nbformat.validate(kept)
    done = module.execute()
    assert [cell.source for cell in done.cells] == [cell.source for cell in kept.cells]
    for notebook in (kept, done):
        outputs = list_outputs(notebook)
        assert all(output["output_type"] != "error" for output in outputs)
        texts = "".join(str(output.get("data", output)) for output in outputs)
        for wanted in (
            "verdict: VERIFIED", "140 of 140 by replay", "verdict: INCONCLUSIVE", "image/png",
            "README.md", "made a solver key",
        ):  # fmt: skip
            assert wanted in texts, wanted
        sizes = [len(str(output.get("data", {}).get("text/plain", ""))) for output in outputs]
        assert max(sizes) < 250, "what a cell ends with is short"
