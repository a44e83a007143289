"""docs/operators.md says what the law does: names, dtypes and bounds of attributes.

The formulas of shapes, exponents and ranges are evaluated for every case of the vectors.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from itertools import product
from math import isqrt, prod
from pathlib import Path
from typing import Any

import pytest

from tests.ops.curve_reference import entry
from vtrain.errors import GraphError
from vtrain.ops import TABLE
from vtrain.spec.number import STORAGE, rs_int, saturate_int
from vtrain.wire.graph import AttrValue, TensorType

ROOT = Path(__file__).resolve().parents[2]
Json = Any


def load() -> Any:
    script = ROOT / "docs" / "make_operators.py"
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


PAGE = load()


@dataclass(frozen=True)
class Case:
    attrs: dict[str, AttrValue]
    inputs: list[TensorType]


def read_attr(value: Json) -> AttrValue:
    [(kind, content)] = value.items()
    if kind == "int":
        return int(content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "list":
        return tuple(int(item["int"]) for item in content)
    return str(content)


def read_cases(name: str) -> list[Case]:
    content = json.loads((ROOT / "tests" / "vectors" / "ops" / f"{name}.json").read_text())
    return [
        Case(
            {key: read_attr(value) for key, value in case["attrs"].items()},
            [
                TensorType(
                    tensor["dtype"],
                    tuple(tensor["shape"]),
                    tensor["exponent"],
                    int(tensor["lo"]),
                    int(tensor["hi"]),
                )
                for tensor in case["inputs"]
            ],
        )
        for case in content["cases"]
    ]


def infer(name: str, case: Case) -> TensorType:
    return TABLE[name].infer(case.attrs, case.inputs)


def names_of_inputs(name: str) -> list[str]:
    """Of "acc i64 [..., n]; bias i32 [n]" the names."""
    text = PAGE.describe(TABLE[name]).parts["Inputs"]
    return re.findall(r"(?:^|; )([\w ]+?) (?:any|u8|i8|i16|i32|i64) \[", text)


def ceil(x: float) -> int:
    return -int(-x // 1)


def evaluate(text: str, names: dict[str, Any]) -> int:
    """A formula of the page: ^ is the power, integers alone."""
    code = text.strip().strip("`").replace("^", "**")
    functions = {"rs": rs_int, "min": min, "max": max, "ceil": ceil, "isqrt": isqrt}
    return int(eval(code, {"__builtins__": {}}, functions | names))  # noqa: S307 - our own page


def bind(name: str, case: Case) -> dict[str, Any]:
    """What the names in formulas stand for."""
    names: dict[str, Any] = {
        key: value for key, value in case.attrs.items() if isinstance(value, int)
    }
    text = PAGE.describe(TABLE[name]).parts["Inputs"]
    for label, tensor in zip(names_of_inputs(name), case.inputs, strict=False):
        names[label] = tensor
        [dims] = re.findall(rf"(?:^|; ){label} \w+ \[([^\]]*)\]", text)
        plain = dims.split(", ") if dims else []
        if "..." in plain:
            plain = plain[plain.index("...") + 1 :] if plain[0] == "..." else plain[:1]
            pairs = zip(reversed(plain), reversed(tensor.shape), strict=False)
            names |= (
                dict(pairs) if dims.startswith("...") else {dims.split(", ")[0]: tensor.shape[0]}
            )
        elif len(plain) == len(tensor.shape):
            names |= dict(zip(plain, tensor.shape, strict=True))
    if "kernel" in case.attrs:
        window: Any = case.attrs
        (kh, kw), (sh, sw) = window["kernel"], window["strides"]
        top, left, bottom, right = window["pads"]
        if "shape" in case.attrs:
            image: Any = case.attrs["shape"]
        else:
            image = case.inputs[-1].shape
        names |= dict(zip(("n", "h", "w", "channels"), image, strict=True))
        names |= {"kh": kh, "kw": kw, "sh": sh, "sw": sw}
        names["oh"] = (names["h"] + top + bottom - kh) // sh + 1
        names["ow"] = (names["w"] + left + right - kw) // sw + 1
    if name in ("matmul", "batched_matmul"):
        a, b = (x.shape[-2:] for x in case.inputs)
        names["m"], names["k"] = a[::-1] if case.attrs["transpose_a"] else a
        names["n"] = b[0 if case.attrs["transpose_b"] else 1]
    if name == "concat":
        names |= {f"x_{number}": x for number, x in enumerate(case.inputs)}
    return names


# What the page says in words.
WORDS: dict[str, Any] = {
    "matmul": lambda n: corners(n["a"], n["b"]),
    "batched_matmul": lambda n: corners(n["a"], n["b"]),
    "sgd_update": lambda n: corners(n["V"], n["rate"]),
    "column_sum": lambda n: {"r": n["x"].size // n["n"]},
    "scale_by": lambda n: corners(n["x"], n["factor"]),
    "adam_direction": lambda n: {
        name: isqrt(end) + n["epsilon"] for name, end in (("a", n["v"].lo), ("b", n["v"].hi))
    },
    "sum": lambda n: {"c": n["x"].size},
    "one_hot": lambda n: {"c": prod(n["x"].shape[1:])},
    "center": lambda n: {"m": (n["d"] - 1) * (n["x"].hi - n["x"].lo)},
    "row_dot": lambda n: corners(n["a"], n["b"]),
    "inverse_root": lambda n: {"lo": inverse_root(n, n["s"].hi), "hi": inverse_root(n, n["s"].lo)},
}


def inverse_root(names: dict[str, Any], s: int) -> int:
    v = max(s, 0) + names["epsilon"]
    return int(names["numerator"] // isqrt(v * 4 ** names["lift"]))


def corners(a: TensorType, b: TensorType) -> dict[str, int]:
    products = [x * y for x, y in product((a.lo, a.hi), (b.lo, b.hi))]
    return {"lo": min(products), "hi": max(products)}


def range_of(name: str, case: Case, out: TensorType, text: str) -> tuple[int, int]:
    """The range that the page gives."""
    names = bind(name, case)
    if name in WORDS:
        names |= WORDS[name](names)
    if text.startswith("that of x"):
        return names["x"].lo, names["x"].hi
    if text.startswith("all that"):
        return STORAGE[out.dtype]
    if name == "state":
        squares = str(case.attrs["name"]).startswith("square/")
        place = 0 if out.dtype == "i32" else 1 if squares else 2
        text = text.split(", ")[place].split(" for ", maxsplit=1)[0]
    if name == "look_up":
        curve, shift = str(case.attrs["table"]), names["shift"]
        far = 6144  # beyond it every table is constant
        first, last = (
            max(-far, min(rs_int(end, shift), far)) for end in (names["x"].lo, names["x"].hi)
        )
        entries = [entry(curve, j) for j in range(first, last + 1)]
        return min(entries), max(entries)
    if name == "concat":
        return min(x.lo for x in case.inputs), max(x.hi for x in case.inputs)
    if name == "softmax_grad":
        p, grad = case.inputs
        ends = corners(p, grad)
        least = grad.lo * 2**14 - p.shape[1] * ends["hi"]
        found = [
            x * y for x in (p.lo, p.hi) for y in (least, grad.hi * 2**14 - p.shape[1] * ends["lo"])
        ]
        return min(found), max(found)
    if name in ("schedule", "schedule_linear"):
        rates: Any = case.attrs["rates"]
        return min(rates), max(rates)
    if name == "square_sum":
        m = names["x"].size * max(names["x"].lo ** 2, names["x"].hi ** 2)
        shift = names["shift"]
        return 0, m * 2**-shift if shift <= 0 else m // 2**shift + 1
    for label, formula in re.findall(r"with (\w+) = ([^.]*)", text):
        names[label] = evaluate(formula, names)
    plain = re.split(r", (?:where|both|with|wider)| \(0 is", text)[0].rstrip(".")
    lo, hi = (evaluate(part, names) for part in plain.split(" to "))
    if "both saturated" in text:
        return saturate_int(lo, out.dtype), saturate_int(hi, out.dtype)
    return lo, hi


def type_of(name: str, case: Case, text: str) -> tuple[str | None, Any, int]:
    """Dtype, shape (None where the page has it in words) and exponent that the page gives."""
    names = bind(name, case)
    if name in WORDS:
        names |= WORDS[name](names)
    of = re.search(r"exponent of (\w+)", text) or re.search(r"the type of (\w+)", text)
    given = re.search(r"exponent ([^.,]*(?:\.exponent[^.,]*)*)", text)
    if of:
        exponent = names[of[1]].exponent
    else:
        assert given is not None
        exponent = evaluate(given[1], names)
    form = re.match(r"(u8|i16|i32|i64|``dtype``) \[([^\]]*)\]", text)
    if form is None:
        return None, None, exponent
    dtype = str(case.attrs["dtype"]) if "dtype" in form[1] else form[1]
    shape: list[int] = []
    dims = form[2].split(", ") if form[2] else []
    for dim in dims:
        if dim == "...":
            whole = case.inputs[0].shape
            shape += whole[: len(whole) - len(dims) + 1]
        elif dim == "...shape":
            shape += case.attrs["shape"]  # type: ignore[arg-type]
        else:
            shape.append(evaluate(dim, names))
    return dtype, tuple(shape), exponent


@pytest.mark.parametrize("name", TABLE)
def test_attributes_are_those_that_infer_asks_for(name: str) -> None:
    assert tuple(PAGE.describe(TABLE[name]).attributes) == PAGE.find_attributes(TABLE[name])


@pytest.mark.parametrize("name", TABLE)
def test_dtypes_are_those_that_infer_asks_for(name: str) -> None:
    found = re.findall(r"\b(any|u8|i8|i16|i32|i64) \[", PAGE.describe(TABLE[name]).parts["Inputs"])
    declared = PAGE.find_dtypes(TABLE[name])
    if declared is not None:
        assert [item.replace("any", "int") for item in found] == list(declared)
    for case in read_cases(name):
        for dtype, tensor in zip(found, case.inputs, strict=False):
            assert dtype in ("any", tensor.dtype)


def probe(name: str, case: Case, attribute: str, value: AttrValue) -> str:
    """What ``infer`` says to another value of one attribute."""
    changed = Case({**case.attrs, attribute: value}, case.inputs)
    try:
        infer(name, changed)
    except GraphError as error:
        return error.message
    return ""


@pytest.mark.parametrize("name", TABLE)
def test_bounds_are_those_that_infer_asks_for(name: str) -> None:
    case = read_cases(name)[0]
    for attribute, text in PAGE.describe(TABLE[name]).attributes.items():
        value = case.attrs[attribute]
        if isinstance(value, int):
            said = probe(name, case, attribute, 2**62 + 1)
            bounds = re.search(r"must be an integer in \[(-?\d+), (-?\d+)\]", said)
            written = re.match(r"integer, (\S+) to ([^\s,;.]+)", text)
            if text.startswith("0 or 1"):
                assert bounds is not None
                assert bounds.groups() == ("0", "1")
            else:
                assert written is not None, f"{name}.{attribute}: {text}"
                low, high = (evaluate(item, {}) for item in written.groups())
                if bounds is None:  # state_leaf bounds its exponent as every type does
                    assert "beyond +-512" in said
                    assert (low, high) == (-512, 512)
                else:
                    assert [str(low), str(high)] == list(bounds.groups())
        elif isinstance(value, str) and "one of" in text:
            said = probe(name, case, attribute, "another")
            listed = re.search(r"one of ([\w, ]+)", text)
            assert listed is not None
            assert re.findall(r"'(\w+)'", said.split("is")[0]) == listed[1].split(", ")
        else:
            assert text.split(",")[0].split(";")[0] in (
                *("text", "integers", "two integers", "four integers", "eight bytes"),
            ), f"{name}.{attribute}: {text}"


@pytest.mark.parametrize("name", TABLE)
def test_types_are_those_that_infer_derives(name: str) -> None:
    parts = PAGE.describe(TABLE[name]).parts
    for case in read_cases(name):
        out = infer(name, case)
        assert range_of(name, case, out, parts["Range"]) == (out.lo, out.hi), case
        dtype, shape, exponent = type_of(name, case, parts["Output"])
        assert exponent == out.exponent
        assert dtype in (None, out.dtype)
        assert shape in (None, out.shape)
