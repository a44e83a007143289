"""Running an example as its page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(repository: Path, script: str, *arguments: object) -> str:
    """What an example prints; it must end by itself and well."""
    command = [sys.executable, repository / "examples" / script, *arguments]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
