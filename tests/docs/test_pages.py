"""The pages say what the code does: generated ones are up to date, links lead somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", ["cli", "benchmarks", "operators", "auditing"])
def test_written_page_is_up_to_date(page: str) -> None:
    script = ROOT / "docs" / f"make_{page}.py"
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / f"{page}.md").read_text() == module.render(), f"run {script.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_imported_is_there(page: Path) -> None:
    for room, names in re.findall(
        r"(?m)^ *from (vtrain[\w.]*) import ([\w, ]+)$", page.read_text()
    ):
        module = importlib.import_module(room)
        missing = [name for name in names.split(", ") if not hasattr(module, name)]
        assert missing == [], f"{page.name} imports from {room}"


def test_the_front_page_shows_what_the_page_of_the_example_does() -> None:
    front, page = ROOT / "README.md", ROOT / "examples" / "dispute" / "README.md"
    outputs = re.findall(r"(?ms)^```\n(.*?)^```$", front.read_text())
    (shown,) = [output for output in outputs if "they differ first" in output]
    lines = iter(page.read_text().splitlines())
    assert all(line in lines for line in shown.splitlines()), "the same run, some lines left out"


def test_every_operator_is_in_the_leaf_rules_page() -> None:
    from vtrain.ops import TABLE

    rows = re.findall(r"(?m)^\| ([a-z0-9_, ]+) \|", (ROOT / "docs" / "leaf-rules.md").read_text())
    named = [name for row in rows for name in row.split(", ") if name != "op"]
    assert sorted(named) == sorted(TABLE)
