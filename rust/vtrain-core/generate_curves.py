"""Writes ``src/curves.rs`` from the law: run it after any change of ``vtrain.spec.curves``.

    python rust/vtrain-core/generate_curves.py > rust/vtrain-core/src/curves.rs

A test (``tests/engines/test_cpu_tables.py``) holds the file to what this writes.
"""

from __future__ import annotations

import sys

from vtrain.spec.curves import CURVE_EXPONENT, CURVES, curve_table

PER_LINE = 12

_HEADER = f"""\
//! Functions by table, written by `generate_curves.py` from the law: do not edit.

/// 1.0 as an entry.
pub const CURVE_ONE: i16 = 1 << {CURVE_EXPONENT};

/// What f(-x) is: 1 - f(x), -f(x), f(x).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Symmetry {{
    Complement,
    Odd,
    Even,
}}

/// A function by table: its name, round(2^14 f(j / 2^grid)) for j = 0 .. last, and its symmetry.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Curve {{
    pub name: &'static str,
    pub entries: &'static [i16],
    pub symmetry: Symmetry,
}}
"""


def _render_table(name: str) -> str:
    entries = [str(value) for value in curve_table(name).tolist()]
    lines = (entries[i : i + PER_LINE] for i in range(0, len(entries), PER_LINE))
    body = "\n".join(f"    {', '.join(line)}," for line in lines)
    return f"#[rustfmt::skip]\nstatic {name.upper()}: [i16; {len(entries)}] = [\n{body}\n];\n"


def _render_rows() -> str:
    rows = "\n".join(
        f"    Curve {{\n"
        f'        name: "{name}",\n'
        f"        entries: &{name.upper()},\n"
        f"        symmetry: Symmetry::{curve.symmetry.capitalize()},\n"
        f"    }},"
        for name, curve in CURVES.items()
    )
    return f"/// All of them.\npub static CURVES: [Curve; {len(CURVES)}] = [\n{rows}\n];\n"


def render() -> str:
    """The whole Rust file."""
    return "\n".join((_HEADER, _render_rows(), *(_render_table(name) for name in CURVES)))


if __name__ == "__main__":
    sys.stdout.write(render())
