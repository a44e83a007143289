"""The tables compiled into the Rust core are those of the law."""

from __future__ import annotations

import runpy
from pathlib import Path

CRATE = Path(__file__).resolve().parents[2] / "rust" / "vtrain-core"


def test_tables_are_what_the_law_generates() -> None:
    for name in ("tables", "curves"):
        render = runpy.run_path(str(CRATE / f"generate_{name}.py"))["render"]
        assert (CRATE / "src" / f"{name}.rs").read_text() == render(), name
