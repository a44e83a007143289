"""Writes ``tables.cuh`` from the law: run it after any change of ``vtrain.spec.number``.

    python reference_kernels/generate_tables.py > reference_kernels/tables.cuh

A test (``tests/cuda/test_rows.py``) holds the file to what this writes.
"""

from __future__ import annotations

import sys

from vtrain.spec.number import I64Array, exp2_table, log2_table

PER_LINE = 12

_HEADER = """\
// Tables of the number format, written by generate_tables.py from the law: do not edit.
#pragma once

#include "law.cuh"
"""


def _render_table(name: str, says: str, values: I64Array) -> str:
    entries = [str(value) for value in values.tolist()]
    lines = (entries[i : i + PER_LINE] for i in range(0, len(entries), PER_LINE))
    body = "\n".join(f"    {', '.join(line)}," for line in lines)
    return f"// {says}\n__device__ const u32 {name}[{len(entries)}] = {{\n{body}\n}};\n"


def render() -> str:
    """The whole header."""
    return "\n".join(
        (
            _HEADER,
            _render_table("EXP2_TABLE", "round(2^16 * 2^(-i/1024)).", exp2_table()),
            _render_table("LOG2_TABLE", "round(2^16 * log2(1 + (2i + 1)/2048)).", log2_table()),
        )
    )


if __name__ == "__main__":
    sys.stdout.write(render())
