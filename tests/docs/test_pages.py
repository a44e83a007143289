"""The pages say what the code does: generated ones are up to date, links lead somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def load_script(page: str) -> Any:
    """The script that writes a page."""
    script = ROOT / "docs" / f"make_{page}.py"
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["cli", "benchmarks", "operators", "auditing", "reports"])
def test_written_page_is_up_to_date(page: str) -> None:
    module = load_script(page)
    assert (ROOT / "docs" / f"{page}.md").read_text() == module.render(), f"run make_{page}.py"


def list_numbers(figures: dict[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """(whole name of what it is in, last part of its name) of each number in a result."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from list_numbers(value, f"{where}: {name}" if where else name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield where, name


def test_every_number_is_on_the_page_and_every_table_has_its_machine() -> None:
    """Alone or with its quartiles; below each table the instruction set that it is of."""
    script = load_script("benchmarks")
    _, *parts = re.split(r"(?m)^## ", script.render())
    titles = [part.partition("\n")[0] for part in parts]
    count = 0
    for name in script.ABOUT:
        for kind in ("", *script.KINDS):
            path = script.RESULTS / f"{name}{kind and f'-{kind}'}.json"
            if not path.exists():
                continue
            part = parts[titles.index(f"{name}, {script.KINDS[kind]}" if kind else name)]
            machine = part.strip().splitlines()[-1]
            assert re.search(r", \d+ cores, (avx512-vnni|avx2), .*, 2\d\d\d-\d\d-\d\d, ", machine)
            figures = json.loads(path.read_text())["figures"]
            faults = figures.pop(script.FAULTS, {})
            figures.pop("device", None)
            for where, number in list_numbers(figures):
                shown = where if number in ("median", "low", "high", "n") else number
                assert shown in part, f"{path.name}: {where}: {number}"
                count += 1
            for fault, tried in faults.items():
                operator, dtype, _ = fault.split()
                row = re.search(rf"(?m)^\| {operator} \| {dtype} \|.*\b{tried}\b", part)
                assert row, f"{path.name}: {fault}"
    assert count > 500


def test_the_picture_is_that_of_the_figures() -> None:
    picture = ROOT / "docs" / "growth.svg"
    found = picture.read_text() if picture.exists() else None
    assert found == load_script("benchmarks").render_picture(), "run make_benchmarks.py"


def test_the_picture_has_every_figure_where_its_logarithm_lies() -> None:
    script = load_script("benchmarks")
    columns = [column for _, series in script.PANELS for column in series]
    sizes = (100_000, 10**6, 20 * 10**6)
    rows = [
        {"parameters": size} | {column: 3e-9 * (i + 1) * size for i, column in enumerate(columns)}
        for size in sizes
    ]
    tree = ElementTree.fromstring(script.draw_growth(rows))  # noqa: S314 - it is our own
    lines = [line.attrib["points"] for line in tree.findall(".//{*}polyline")]
    assert len(lines) == len(columns)
    width, height = script.PANEL
    for column, line in zip(columns, lines, strict=True):
        points = [tuple(map(float, point.split(","))) for point in line.split()]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points), column
        # 0.1M and 1M lie a decade apart across, of three, and as far as the values are apart up.
        assert points[0][0] == 0
        assert points[1][0] == pytest.approx(width / 3, abs=0.1)
        rise = [points[0][1] - points[i][1] for i in (1, 2)]
        assert rise[1] / rise[0] == pytest.approx(math.log10(200), abs=0.01)
    labels = {text.text for text in tree.findall(".//{*}text")}
    assert {"100k", "1M", "10M", "100M", "torch fp32", "parameters"} <= labels


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        if "://" in target:
            continue
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name} links to {target}"
        if anchor and there.suffix == ".md":
            assert anchor in find_anchors(there), f"{page.name} links to {target}#{anchor}"


def find_anchors(page: Path) -> set[str]:
    """Those of a page's headings, as GitHub makes them: of two that are one the later has -1."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    found: Counter[str] = Counter()
    for heading in re.findall(r"(?m)^#{1,6} +(.+?) *$", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found[re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")] += 1
    more = {f"{name}-{i}" for name, count in found.items() for i in range(1, count)}
    return {*found, *more}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_imported_is_there(page: Path) -> None:
    for room, names in re.findall(
        r"(?m)^ *from (vtrain[\w.]*) import ([\w, ]+)$", page.read_text()
    ):
        module = importlib.import_module(room)
        missing = [name for name in names.split(", ") if not hasattr(module, name)]
        assert missing == [], f"{page.name} imports from {room}"


EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").rglob("*"))
    if path.suffix in {".md", ".yml", ".py", ".ipynb"}
]


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: str(page.relative_to(ROOT)))
def test_nobody_is_told_to_install_what_an_index_has_under_the_name(page: Path) -> None:
    """vtrain is on no package index: whoever registers the name there would run on every machine
    of a reader's.  Extras are added in a checkout, where vtrain is, or come with a wheel."""
    for line in re.split(r"[`\n]", page.read_text()):
        if "pip install" not in line:
            continue
        given = re.split("[(#]", line.split("pip install")[1])[0]
        names = re.findall(r"(?<![\w./-])vtrain(?![\w/.-])[^\s\"']*", given)
        if names:
            assert re.search(r"\.venv/bin/(python -m )?pip install", line), line
            assert all(name.startswith("vtrain[") for name in names), line


def test_the_front_page_shows_what_the_page_of_the_example_does() -> None:
    front, page = ROOT / "README.md", ROOT / "examples" / "dispute" / "README.md"
    outputs = re.findall(r"(?ms)^```\w*\n(.*?)^```$", front.read_text())
    (shown,) = [output for output in outputs if "they differ first" in output]
    lines = iter(page.read_text().splitlines())
    assert all(line in lines for line in shown.splitlines()), "the same run, some lines left out"


def test_every_operator_is_in_the_leaf_rules_page() -> None:
    from vtrain.ops import TABLE

    rows = re.findall(r"(?m)^\| ([a-z0-9_, ]+) \|", (ROOT / "docs" / "leaf-rules.md").read_text())
    named = [name for row in rows for name in row.split(", ") if name != "op"]
    assert sorted(named) == sorted(TABLE)
