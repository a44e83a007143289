"""The vector files are what the spec gives, and each is documented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VECTORS = Path(__file__).parent.parent / "vectors"


def test_files_are_what_the_spec_gives() -> None:
    command = [sys.executable, str(VECTORS / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_file_is_documented() -> None:
    readme = (VECTORS / "README.md").read_text()
    for path in VECTORS.glob("*.json"):
        assert f"`{path.name}`" in readme
