"""Write docs/operators.md from the operators' own declarations: ``python docs/make_operators.py``.

The text of an operator is the docstring of its ``infer``, and the dtypes and the names of the
attributes are what ``infer`` itself asks for.  A test compares, and holds exponents, ranges and
bounds against what ``infer`` derives.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import vtrain.ops
from vtrain.errors import GraphError
from vtrain.ops import TABLE
from vtrain.ops.base import Operator

INTRODUCTION: Final = """# Operators

Written by `python docs/make_operators.py` from the operators' own declarations and docstrings in
`vtrain/ops`. This page is normative, with [format.md](format.md), whose section 1 has `rs`, `sat`
and the tables. Applications of each operator are in `tests/vectors/ops/NAME.json`, nodes that are
not legal in `tests/vectors/refused.json`.

## What holds for all

- An operator has one output. A node claims its output's type: dtype, shape, exponent, least
  (`lo`) and greatest (`hi`) mantissa. It is legal only if this is *exactly* the type derived here
  from the types that its inputs claim; a wider range is refused as a narrower one is. `x.lo`,
  `x.hi` and `x.exponent` below are those of the input x.
- A node has just the attributes listed, in its encoding in the order listed (that of canonical
  maps: shorter names first). An integer, text, bytes, or a list of integers, in the encoding an
  array; a switch is the integer 0 or 1. What is not of the type or within the bounds given makes
  the node illegal, and so does a number or dtype of inputs other than listed. *any* stands for
  each of u8, i8, i16, i32, i64. A u8 holds 0 to 255, an iN holds -2^(N-1) to 2^(N-1) - 1.
- "Output" names shape and exponent, "Range" the derived `lo` to `hi`. The output is illegal where
  `lo` or `hi` is beyond what its dtype holds, an i64 output also where -lo or hi is 2^60 or more;
  where its exponent is beyond +-512; where an extent is below 1; with more than 8 axes or 2^32
  elements. A shape [] is that of a scalar.
- In one operator a letter stands for one extent, and `[...]` for one list of them, wherever it
  occurs; inputs of other shapes make the node illegal.
- Arithmetic is exact: "fits int64" means within -2^63 to 2^63 - 1, and what must fit is listed.
  Where that and the rest of "Requires" hold for the ranges of the inputs, no element can
  overflow.
- "Outside" says what an element is at the edge of what the definition covers, or beyond it. A
  disputed input ([leaf-rules.md](leaf-rules.md)) may hold any value of its dtype, also one that no
  step of a legal graph has.

## Windows

`kernel` = (kh, kw), `strides` = (sh, sw) and `pads` = (top, left, bottom, right) slide a window
over an image [n, h, w, channels].

- There are `oh = floor((h + top + bottom - kh) / sh) + 1` windows down and
  `ow = floor((w + left + right - kw) / sw) + 1` across. What is left over at the lower and the
  right edge is in no window.
- Offset `o = dy * kw + dx` of window (r, c) is the pixel `(r * sh + dy - top, c * sw + dx - left)`.
  It is padding where that lies outside of the image.
- Kernel and strides are at least 1, strides at most 2^32, pads at least 0. So that no window is
  all padding, top and bottom are below kh, and left and right below kw.
- `h + top + bottom >= kh` and `w + left + right >= kw`; `kh * kw <= 2^16`.
- The padded image has `n * (h + top + bottom) * (w + left + right) * channels` elements, all
  patches together `n * oh * ow * kh * kw * channels`: each is at most 2^32.

In the operators of section "commitment", H_D(data) is BLAKE3 in derive_key mode under the domain
D ([format.md](format.md), section 4).
"""
LABELS: Final = ("Attributes", "Inputs", "Output", "Range", "Requires", "Outside")
_NEEDED: Final = ("Inputs", "Output", "Range")
_FAMILIES: Final = (
    *("source", "linear", "arithmetic", "rescale", "activation", "lookup"),
    *("layout", "parts", "gather", "pool", "norm"),
    *("softmax", "attention", "dropout", "optimizer", "commitment"),
)
"""In the order in which a step has them; any other family follows."""


@dataclass(frozen=True)
class Description:
    """What the docstring of an operator's ``infer`` says; absent parts are empty."""

    definition: str
    attributes: Mapping[str, str]
    parts: Mapping[str, str]


def describe(operator: Operator) -> Description:
    """The parts of a docstring; ValueError, naming the operator, for one that is not in form."""
    text = inspect.getdoc(operator.infer) or ""
    head = re.split(rf"(?m)^(?:{'|'.join(LABELS)}):", text, maxsplit=1)[0]
    parts: dict[str, str] = {}
    attributes: dict[str, str] = {}
    pattern = rf"(?m)^({'|'.join(LABELS)}):((?:.*\n?)(?: +.*\n?)*)"
    for label, body in re.findall(pattern, text[len(head) :]):
        if label == "Attributes":
            found = re.findall(r"(?m)^    (\w+): (.*(?:\n        .*)*)", body)
            attributes = {name: _join(words) for name, words in found}
        else:
            parts[label] = _join(body)
    missing = [label for label in _NEEDED if label not in parts]
    if not head.strip() or missing:
        raise ValueError(f"{operator.name}: the docstring of its infer says nothing of {missing}")
    definition = "\n\n".join(_join(part) for part in head.strip().split("\n\n"))
    return Description(definition, attributes, parts)


def _join(text: str) -> str:
    return " ".join(text.split())


def find_attributes(operator: Operator) -> tuple[str, ...]:
    """The attributes that ``infer`` asks for, in the order of a canonical map."""
    names = re.findall(r"'(\w+)'", _refusal(operator, {"no such attribute": 0}).split(", are ")[0])
    return tuple(sorted(names, key=lambda name: (len(name), name)))


def find_dtypes(operator: Operator) -> tuple[str, ...] | None:
    """The dtypes of the inputs that ``infer`` asks for; None where it says them otherwise."""
    message = _refusal(operator, dict.fromkeys(find_attributes(operator), 0), no_inputs=True)
    found = re.match(r"inputs must be \[(.*)\], are", message)
    return None if found is None else tuple(re.findall(r"'(\w+)'", found[1]))


def _refusal(operator: Operator, attrs: dict[str, int], *, no_inputs: bool = False) -> str:
    try:
        operator.infer(attrs, [])
    except GraphError as error:
        return error.message
    return ""


def iterate_families() -> Iterator[tuple[str, str, list[Operator]]]:
    """(name, docstring, operators) of each file of the law."""
    names = [item.name for item in pkgutil.iter_modules(vtrain.ops.__path__)]
    known = [name for name in _FAMILIES if name in names]
    for name in known + [name for name in names if name not in known]:
        module = importlib.import_module(f"vtrain.ops.{name}")
        rows = [TABLE[key] for key in getattr(module, "OPERATORS", {})]
        if rows:
            yield name, inspect.getdoc(module) or "", rows


def _code(text: str) -> str:
    """Docstrings have literals in double quotes of code; Markdown in single ones."""
    return text.replace("``", "`")


def render_operator(operator: Operator) -> str:
    """One section."""
    described = describe(operator)
    lines = [f"### {operator.name}", "", _code(described.definition), ""]
    if described.attributes:
        lines += ["| attribute | what |", "|---|---|"]
        order = sorted(described.attributes, key=lambda name: (len(name), name))
        lines += [f"| `{name}` | {_code(described.attributes[name])} |" for name in order]
        lines.append("")
    else:
        lines.append("- **Attributes**: none.")
    lines += [
        f"- **{label}**: {_code(described.parts[label])}"
        for label in LABELS
        if label in described.parts
    ]
    return "\n".join(lines) + "\n"


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, text, rows in iterate_families():
        parts.append(f"## {name}\n\n{_code(_join(text.split(chr(10) * 2)[0]))}\n")
        parts += [render_operator(operator) for operator in rows]
    return "\n".join(parts)


if __name__ == "__main__":
    (Path(__file__).parent / "operators.md").write_text(render())
