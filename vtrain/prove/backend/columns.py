"""What stands in the columns of a circuit: with it, anybody compares a proof's commitments."""

from __future__ import annotations

import json
from typing import Any

from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import ANSWERS
from vtrain.wire.proof import HIDING


def describe_columns(circuit: Circuit, k: int, blinding: int) -> dict[str, Any]:
    """What stands in ``columns.json`` of a circuit; integers of constants as text."""
    computed = [
        entry | {"values": " ".join(map(str, entry["values"]))} if "values" in entry else entry
        for entry in circuit.describe_computed()
    ]
    answers = sum(circuit.length(output) for output in circuit.outputs)
    return {
        "k": k,
        "blinding": blinding,
        "hiding": HIDING,
        "columns": [
            {
                "name": column,
                "length": circuit.length(column),
                "origin": _find_origin(column, circuit),
            }
            for column in circuit.columns
        ],
        "computed": computed,
        "settled": list(circuit.settled),
        "answers": {"ones": circuit.ones, "zeros": answers - circuit.ones},
    }


def _find_origin(column: str, circuit: Circuit) -> str:
    """Who knows a column: one of "given", "private", "computed", "answers"."""
    if column in circuit.given:
        return "given"
    kind = column.partition(" ")[0]
    return kind if kind in ("computed", ANSWERS) else "private"


def encode_json(value: Any) -> bytes:
    """As in all files here: keys in the order given, an item of a list a line."""
    return (json.dumps(value, indent=1) + "\n").encode()
