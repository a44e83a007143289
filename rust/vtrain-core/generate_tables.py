"""Writes ``src/tables.rs`` from the law: run it after any change of ``vtrain.spec.number``.

    python rust/vtrain-core/generate_tables.py > rust/vtrain-core/src/tables.rs

A test (``tests/engines/test_cpu_tables.py``) holds the file to what this writes.
"""

from __future__ import annotations

import sys

from vtrain.spec.number import I64Array, exp2_table, log2_table

PER_LINE = 12

_HEADER = """\
//! Tables of the number format, written by `generate_tables.py` from the law: do not edit.
"""


def _render_table(name: str, says: str, values: I64Array) -> str:
    entries = [str(value) for value in values.tolist()]
    lines = (entries[i : i + PER_LINE] for i in range(0, len(entries), PER_LINE))
    body = "\n".join(f"    {', '.join(line)}," for line in lines)
    return (
        f"/// {says}\n#[rustfmt::skip]\npub const {name}: [u32; {len(entries)}] = [\n{body}\n];\n"
    )


def render() -> str:
    """The whole Rust file."""
    return "\n".join(
        (
            _HEADER,
            _render_table("EXP2", "round(2^16 * 2^(-i/1024)).", exp2_table()),
            _render_table("LOG2", "round(2^16 * log2(1 + (2i + 1)/2048)).", log2_table()),
        )
    )


if __name__ == "__main__":
    sys.stdout.write(render())
