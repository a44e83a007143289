"""docs/security.md is about the code as it is: checks, assumptions, exit codes and files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from vtrain import cli
from vtrain.audit.order import STRUCTURE
from vtrain.cli import common
from vtrain.wire.report import EXIT_CODES, Assumption, Verdict

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
AUDITS = (
    "vtrain/audit/structure.py",
    "vtrain/audit/verify.py",
    "vtrain/audit/algebraic.py",
    "vtrain/audit/attested.py",
    "vtrain/audit/published.py",
    "vtrain/prove/audit.py",
)
"""What enters checks into a report."""
_ROOMS = "benchmarks|circuits|docs|examples|rust|tests|vtrain"
_PATH = re.compile(rf"`((?:{_ROOMS})/[\w./-]*)`")
_CELL = re.compile(r"`([^`]+)`")


def read_rows(text: str) -> list[list[str]]:
    """The cells of each row of each table, the rules below heads left out."""
    lines = (line.strip() for line in text.splitlines())
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if set(row[0]) - set("-: ")]


def read_subjects(text: str) -> set[str]:
    """What the tables have rows about: the code in first cells."""
    return {code for row in read_rows(text) for code in _CELL.findall(row[0])}


def find_missing(text: str, needed: set[str]) -> set[str]:
    return needed - read_subjects(text)


def _find_functions(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    """Calls of ``name``, plain or as an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == name:
                yield node
            if isinstance(function, ast.Attribute) and function.attr == name:
                yield node


def _read_text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def collect_checks(source: str) -> tuple[set[str], set[str]]:
    """Names of the checks that a module can enter, and the expressions that stand for others.

    A name is the first argument of Check, or of ``attempt`` and ``fail`` of a ledger, or the
    ``name`` that these hand on to each other.
    """
    tree = ast.parse(source)
    names, others = set(), set()
    calls = [
        *_find_functions(tree, "Check"),
        *_find_functions(tree, "attempt"),
        *(call for call in _find_functions(tree, "fail") if isinstance(call.func, ast.Attribute)),
    ]
    for call in calls:
        given = [item.value for item in call.keywords if item.arg == "name"]
        first = (*call.args, *given)[0]
        found = _read_text(first)
        if found is not None:
            names.add(found)
        else:
            others.add(ast.unparse(first))
    return names, others


def collect_differences(source: str) -> set[str]:
    """Checks that a difference of a replay names: the default, and what is given in its place."""
    tree = ast.parse(source)
    found: set[str | None] = set()
    place = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "Difference":
            fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            place = next(i for i, item in enumerate(fields) if ast.unparse(item.target) == "check")
            default = fields[place].value
            assert default is not None
            found.add(_read_text(default))
    for call in _find_functions(tree, "Difference"):
        found |= {_read_text(item.value) for item in call.keywords if item.arg == "check"}
        found |= {_read_text(item) for item in call.args[place : place + 1]}
    assert None not in found, "a difference has a check that is no plain text"
    return {name for name in found if name is not None}


def collect_all_checks() -> set[str]:
    names, others = set(), set()
    for path in AUDITS:
        found, rest = collect_checks((ROOT / path).read_text())
        if {"rule", "rule.name"} <= rest:  # it runs by the table
            found |= {rule.name for rule in STRUCTURE}
            rest -= {"rule", "rule.name"}
        assert found, path
        names |= found
        others |= rest
    assert others == {"name", "difference.check"}, "a check is named in a way that is not read here"
    return names | collect_differences((ROOT / "vtrain/audit/replay.py").read_text())


def collect_assumptions() -> set[str]:
    return set(get_args(get_type_hints(Assumption)["code"]))


def collect_exit_codes() -> set[str]:
    rooms = (cli, common)
    given = {vars(room)[name] for room in rooms for name in vars(room) if name.startswith("EXIT_")}
    return {"0", *(str(int(code)) for code in given | set(EXIT_CODES.values()))}


def collect_attacks() -> set[str]:
    """Each file of tests/attacks, and each folder below it."""
    folder = ROOT / "tests" / "attacks"
    files = {f"tests/attacks/{path.name}" for path in folder.glob("test_*.py")}
    return files | {f"tests/attacks/{path.parent.name}/" for path in folder.glob("*/test_*.py")}


NEEDED = {
    "checks": collect_all_checks(),
    "assumptions": collect_assumptions(),
    "exit codes": collect_exit_codes(),
    "verdicts": set(get_args(Verdict)),
}


def test_what_is_collected_is_what_there_is() -> None:
    """The collection is not empty where the code is written in another way."""
    assert {"claim", "files", "checkpoints", "replay", "kzg", "tiles", "sample"} <= NEEDED["checks"]
    assert len(NEEDED["checks"]) >= 23
    assert NEEDED["exit codes"] >= {"0", "1", "2", "3", "4", "10", "130", "143"}
    assert {"predictable-sample", "insecure-srs"} <= NEEDED["assumptions"]
    assert "tests/attacks/test_verdicts.py" in collect_attacks()
    source = 'Check("a", 1)\nx.attempt("b", 2)\nx.fail("c", 3)\nfail(d)\nCheck(name=e)\n'
    assert collect_checks(source) == ({"a", "b", "c"}, {"e"})
    source = 'class Difference:\n    step: int\n    check: str = "a"\n\nDifference(1, "b")\n'
    assert collect_differences(source) == {"a", "b"}


@pytest.mark.parametrize("kind", NEEDED)
def test_each_has_a_row(kind: str) -> None:
    assert find_missing(PAGE.read_text(), NEEDED[kind]) == set()


@pytest.mark.parametrize(("kind", "item"), [(k, i) for k in NEEDED for i in sorted(NEEDED[k])])
def test_one_left_out_is_missed(kind: str, item: str) -> None:
    """The test above can fail: of each name its rows alone are taken away."""
    text = PAGE.read_text()
    lines = text.splitlines()
    left = [line for line in lines if f"`{item}`" not in line.partition("|")[2].partition("|")[0]]
    missing = find_missing("\n".join(left), NEEDED[kind])
    assert missing - find_missing(text, NEEDED[kind]) == {item}


def test_files_named_are_there() -> None:
    named = set(_PATH.findall(PAGE.read_text()))
    assert len(named) > 50
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_every_attack_is_named() -> None:
    assert collect_attacks() - set(_PATH.findall(PAGE.read_text())) == set()


def test_every_check_names_what_attacks_it() -> None:
    """The last column of a table of checks; every cell before it says something."""
    rows = read_rows(PAGE.read_text())
    heads = [i for i, row in enumerate(rows) if row[-1] == "Attacked in"]
    assert len(heads) >= 7
    for head in heads:
        width = len(rows[head])
        for row in rows[head + 1 :]:
            if row[0] == "Check" or len(row) != width:
                break
            assert all(row), f"{row[0]} has an empty cell"
            tests = [path for path in _PATH.findall(row[-1]) if "test" in path]
            assert tests, f"{row[0]} names no test"
