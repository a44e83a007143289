"""Execute examples/notebook.ipynb in place, from its cells alone; it takes some seconds.

Run it from the project's root:  .venv/bin/python examples/run_notebook.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_suffix("").with_name("notebook.ipynb")


def execute() -> nbformat.NotebookNode:
    """The notebook with what its cells put out now; CellExecutionError for one that fails."""
    notebook: nbformat.NotebookNode = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    with tempfile.TemporaryDirectory() as home:  # where the key of its first use goes
        environment = os.environ | {"XDG_CONFIG_HOME": home}
        folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
        client = NotebookClient(
            notebook, timeout=120, resources=folder, record_timing=False, coalesce_streams=True
        )
        client.execute(env=environment)
    return notebook


if __name__ == "__main__":
    done = execute()
    done.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(done, NOTEBOOK)
