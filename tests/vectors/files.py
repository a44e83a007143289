"""What the generators of vectors that are one file share: its form, and its comparison."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def format_cases(value: Mapping[str, Any]) -> str:
    """An object as JSON: each item of a list on a line of its own."""
    lines = []
    for key, item in value.items():
        if isinstance(item, list):
            cases = ",\n".join(f" {json.dumps(case)}" for case in item)
            lines.append(f"{json.dumps(key)}: [\n{cases}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(item)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_or_compare(path: Path, text: str, description: str | None) -> int:
    """The command of a generator: write the file, or with ``--check`` compare it; the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        path.write_text(text)
    elif not path.is_file() or path.read_text() != text:
        sys.stderr.write(f"{path.name} is not what the rules give\n")
        return 1
    return 0
