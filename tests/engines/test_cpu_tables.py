"""The tables compiled into the Rust core are those of the law."""

from __future__ import annotations

import runpy
from pathlib import Path

CRATE = Path(__file__).resolve().parents[2] / "rust" / "vtrain-core"


def test_tables_are_what_the_law_generates() -> None:
    render = runpy.run_path(str(CRATE / "generate_tables.py"))["render"]
    assert (CRATE / "src" / "tables.rs").read_text() == render()
