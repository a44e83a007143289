"""Writes ``refused.json``: nodes that are not legal, each beside a legal one.

``python -m tests.vectors.generate_refused`` writes it from the operators' own rules (vtrain/ops) on
the table in tests/ops/refusals.py; ``--check`` compares and exits 1 when it differs.  README.md
documents the format.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import vtrain.ops
from tests.ops.refusals import BASE, LEGAL_DTYPES, REFUSALS, Applied
from tests.vectors.files import write_or_compare
from tests.vectors.generate_statements import splice
from vtrain.errors import VtrainError
from vtrain.ops import TABLE
from vtrain.wire.graph import Node, Ref, TensorType, decode_node, encode_node

PATH = Path(__file__).with_name("refused.json")
Json = dict[str, Any]
CLAIM = "the type claimed is not the one derived"


def make_node(op: str, applied: Applied, *outputs: TensorType) -> Node:
    attrs, types = applied
    return Node("n", op, attrs, tuple(Ref(i) for i in range(len(types))), outputs)


@contextmanager
def nothing_refused() -> Iterator[None]:
    """Inside, operators derive types and refuse nothing."""

    def allow(*arguments: object) -> None:
        pass

    def as_given(attrs: Any, name: str, *bounds: object) -> Any:
        return attrs[name]

    def unchecked(
        dtype: str, shape: Sequence[int], exponent: int, lo: int, hi: int, what: str = ""
    ) -> TensorType:
        return TensorType(dtype, tuple(shape), exponent, lo, hi)

    instead: dict[str, Any] = {
        "require": allow,
        "require_keys": allow,
        "require_inputs": allow,
        "check_fits_int64": allow,
        "attr_int": as_given,
        "attr_ints": as_given,
        "attr_text": as_given,
        "integer_type": unchecked,
    }
    with ExitStack() as stack:
        for info in pkgutil.iter_modules(vtrain.ops.__path__):
            module = importlib.import_module(f"vtrain.ops.{info.name}")
            found = {name: item for name, item in instead.items() if hasattr(module, name)}
            if info.name != "base" and found:
                stack.enter_context(mock.patch.multiple(module, **found))
        yield


def claim_falsely(op: str, refused: Applied, legal: TensorType) -> Node:
    """The node with the output that it had if nothing were refused; where it has none, or one that
    cannot be written down, that of the legal one."""
    try:
        with nothing_refused():
            node = make_node(op, refused, TABLE[op].infer(*refused))
        if decode_node(encode_node(node), len(node.inputs)) == node:
            return node
    except (VtrainError, ArithmeticError, LookupError, TypeError, ValueError):
        pass
    return make_node(op, refused, legal)


@dataclass
class Neighbourhood:
    """A legal node, and nodes near it that are not."""

    op: str
    applied: Applied
    refused: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.output = TABLE[self.op].infer(*self.applied)
        self.node = encode_node(make_node(self.op, self.applied, self.output))

    def refuse(self, why: str, node: Node, types: tuple[TensorType, ...]) -> None:
        entry = {"why": why, **splice(self.node, encode_node(node))}
        if types != self.applied[1]:
            entry["inputs"] = list(map(type_to_json, types))
        if entry not in self.refused:
            self.refused.append(entry)

    def refuse_claims(self) -> None:
        """Each field of the type claimed, wider and narrower; no type, and two."""
        true = self.output
        for changes in (
            {"dtype": "i32" if true.dtype == "i64" else "i64"},
            {"shape": (*true.shape, 1)},
            {"exponent": true.exponent + 1},
            {"lo": true.lo - 1},
            {"lo": true.lo + 1},
            {"hi": true.hi - 1},
            {"hi": true.hi + 1},
        ):
            claim = replace(true, **changes)
            self.refuse(CLAIM, make_node(self.op, self.applied, claim), self.applied[1])
        for outputs in ((), (true, true)):
            self.refuse(CLAIM, make_node(self.op, self.applied, *outputs), self.applied[1])

    def to_json(self) -> Json:
        return {
            "inputs": list(map(type_to_json, self.applied[1])),
            "node": self.node.hex(),
            "refused": self.refused,
        }


def type_to_json(tensor: TensorType) -> Json:
    return {
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "exponent": tensor.exponent,
        "lo": str(tensor.lo),
        "hi": str(tensor.hi),
    }


def make_operator(op: str) -> list[Json]:
    found = [Neighbourhood(op, BASE[op])]

    def find(legal: Applied) -> Neighbourhood:
        for other in found:
            if other.applied == legal:
                return other
        found.append(Neighbourhood(op, legal))
        return found[-1]

    found[0].refuse_claims()
    for case in REFUSALS:
        if case.op == op:
            near = find(case.legal)
            try:
                TABLE[op].infer(*case.refused)
            except VtrainError as error:
                node = claim_falsely(op, case.refused, near.output)
                if case.claim is not None:
                    node = make_node(op, case.refused, case.claim)
                near.refuse(error.message, node, case.refused[1])
    for other, applied in LEGAL_DTYPES:
        if other == op:
            find(applied)
    return [item.to_json() for item in found]


def format_file() -> str:
    """Nodes that are refused on a line each."""
    operators = []
    for op in BASE:
        nodes = []
        for item in make_operator(op):
            refused = ",\n".join(f"   {json.dumps(entry)}" for entry in item["refused"])
            inputs = json.dumps(item["inputs"])
            lines = f'  "node": "{item["node"]}",\n  "refused": [\n{refused}\n  ]'
            if not item["refused"]:
                lines = f'  "node": "{item["node"]}",\n  "refused": []'
            nodes.append(f' {{"inputs": {inputs},\n{lines}}}')
        operators.append(f'"{op}": [\n' + ",\n".join(nodes) + "\n]")
    return "{\n" + ",\n".join(operators) + "\n}\n"


if __name__ == "__main__":
    sys.exit(write_or_compare(PATH, format_file(), __doc__))
