"""Writes ``curves.cuh`` from the law: run it after any change of ``vtrain.spec.curves``.

    python reference_kernels/generate_curves.py > reference_kernels/curves.cuh

A test (``tests/cuda/test_rows.py``) holds the file to what this writes.
"""

from __future__ import annotations

import sys

from vtrain.spec.curves import CURVE_EXPONENT, CURVES, curve_table

PER_LINE = 12

_HEADER = f"""\
// Functions by table, written by generate_curves.py from the law: do not edit.
#pragma once

#include "law.cuh"

constexpr i64 CURVE_ONE = 1 << {CURVE_EXPONENT};

// What f(-x) is: 1 - f(x), -f(x), f(x).
constexpr i64 COMPLEMENT = 0, ODD = 1, EVEN = 2;
"""


def _render_table(name: str) -> str:
    entries = [str(value) for value in curve_table(name).tolist()]
    lines = (entries[i : i + PER_LINE] for i in range(0, len(entries), PER_LINE))
    body = "\n".join(f"    {', '.join(line)}," for line in lines)
    return (
        f"// {name}: round(2^14 f(j / {1 << CURVES[name].grid})), j = 0 .. {len(entries) - 1}.\n"
        f"__device__ const i16 {name.upper()}_CURVE[{len(entries)}] = {{\n{body}\n}};\n"
    )


def _render_choice(says: str, head: str, values: list[str]) -> str:
    *cases, last = (
        f"        {'default' if number == len(values) - 1 else f'case {number}'}: return {value};"
        for number, value in enumerate(values)
    )
    body = "\n".join((*cases, last))
    return (
        f"// {says}\n__device__ inline i64 {head} {{\n    switch (table) {{\n{body}\n    }}\n}}\n"
    )


def render() -> str:
    """The whole header."""
    return "\n".join(
        (
            _HEADER,
            *(_render_table(name) for name in CURVES),
            _render_choice(
                "The last point of a table.",
                "curve_last(i64 table)",
                [str(curve.last) for curve in CURVES.values()],
            ),
            _render_choice(
                "The symmetry of a function.",
                "curve_symmetry(i64 table)",
                [curve.symmetry.upper() for curve in CURVES.values()],
            ),
            _render_choice(
                "The entry of a point j of 0 to the last.",
                "curve_entry(i64 table, i64 j)",
                [f"{name.upper()}_CURVE[j]" for name in CURVES],
            ),
        )
    )


if __name__ == "__main__":
    sys.stdout.write(render())
