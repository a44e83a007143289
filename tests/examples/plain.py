"""The plain verifier of the examples, as a module: it imports nothing of vtrain."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent.parent / "examples"


def load_plain_verifier() -> Any:
    """The module."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module("plain_verifier")
    finally:
        sys.path.remove(str(FOLDER))


def audit_plainly(run: Path | str, *arguments: str) -> Any:
    """Its report on a run: a folder, or the URL of a store."""
    return load_plain_verifier().run_audit([str(run), *arguments])
