"""What pins a circuit: its ONNX graph, its settings and what stands in its columns, as bytes.

The settings are not those that
``gen_settings`` writes, which differ from run to run and count cells that the layout does not
have (an input is already assigned in the column that commits to it): :func:`make_settings` writes
them, as a function of the circuit, and whoever makes keys compares them with what ezkl sees in
the graph.  Everything that soundness rests on stands in them (docs/proofs.md): no Freivalds of
ezkl's, no range check of ezkl's, the one look-up table with its exponent and range (none without
limbs), scales zero, every input and output committed to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from blake3 import blake3

from vtrain.errors import CircuitError, EncodingError
from vtrain.prove.backend.columns import describe_columns, encode_json
from vtrain.prove.backend.ezkl import EZKL_VERSION
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import find_step_exponent
from vtrain.spec.domains import CIRCUIT, compute_domain_hash
from vtrain.wire import cbor
from vtrain.wire.json_text import decode_json
from vtrain.wire.proof import HIDING

BLINDING: Final = 5
"""halo2's blinding factors of these circuits: no column is read at more than three places."""
_TABLE_PAD: Final = 3
"""Rows that ezkl keeps free below a look-up table, beside the blinding factors."""
MAX_BLOCKS: Final = 9
"""Of columns, as many as the largest tile fills; more make proofs longer than a larger k does."""
_FREE_ROWS: Final = 8
"""Rows that stay free: ezkl begins some operations in a row of their own, which no count of cells
sees, and makes a second block of columns just before the first is full."""


def count_usable(k: int) -> int:
    """The most values of one committed vector: see ``ProofSpec.usable``."""
    return (1 << k) - BLINDING - 3 - HIDING


@dataclass(frozen=True)
class PinnedCircuit:
    """What a circuit is to everyone: ONNX graph, settings and columns as bytes, k, a digest (32
    bytes)."""

    onnx: bytes
    settings: bytes
    columns: bytes
    k: int
    digest: bytes


def pin(circuit: Circuit, k: int) -> PinnedCircuit:
    """Pin a circuit for 2^k rows; the same for the same circuit, everywhere and without ezkl.

    CircuitError for what does not fit: a table or a vector of more than one column, more than
    ``MAX_BLOCKS`` blocks of cells.
    """
    _check_size(circuit, k)
    onnx, settings = circuit.to_onnx(), encode_settings(circuit, k)
    columns = encode_json(describe_columns(circuit, k, BLINDING))
    digest = compute_domain_hash(
        CIRCUIT,
        cbor.encode(
            {
                "columns": blake3(columns).digest(),
                "ezkl": EZKL_VERSION,
                "onnx": blake3(onnx).digest(),
                "settings": blake3(settings).digest(),
            }
        ),
    )
    return PinnedCircuit(onnx, settings, columns, k, digest)


def _check_size(circuit: Circuit, k: int) -> None:
    most = (1 << k) - BLINDING - _TABLE_PAD
    if circuit.span > most:
        raise CircuitError(
            f"a table of {circuit.span} entries needs more than one column of {most}", where="k"
        )
    for name in circuit.columns:
        if not 1 <= circuit.length(name) <= count_usable(k):
            raise CircuitError(
                f"has {circuit.length(name)} values; a column takes 1 to {count_usable(k)}",
                where=name,
            )
    if count_blocks(circuit, k) > MAX_BLOCKS:
        raise CircuitError(
            f"{circuit.cells} cells take {count_blocks(circuit, k)} blocks of "
            f"{circuit.inner_columns} columns, more than {MAX_BLOCKS}; a larger k takes fewer",
            where="k",
        )


def count_blocks(circuit: Circuit, k: int) -> int:
    """Blocks of ``inner_columns`` columns that the cells of a circuit fill at 2^k rows."""
    return -(-circuit.cells // _count_cells(circuit, k))


def _count_cells(circuit: Circuit, k: int) -> int:
    return circuit.inner_columns * ((1 << k) - BLINDING - 1 - _FREE_ROWS)


_VISIBILITY: Final = {"Fixed": "fixed", "KZGCommit": "polycommit"}
_MEASURED: Final = frozenset(
    {"einsum_params", "num_rows", "timestamp", "total_assignments", "total_const_size"}
)
"""Settings in which ours differ from what ``gen_settings`` measures, on purpose."""


def make_settings(circuit: Circuit, k: int) -> dict[str, Any]:
    """The settings of a circuit, as ezkl reads them.

    ``total_assignments`` decides nothing but the number of blocks of columns: it is the circuit's
    own count of cells, or just under what its blocks hold.  A layout that needs more has no place
    for it, in ``setup`` already.
    ``einsum_params`` serve only the Freivalds that is off.  One column takes all constants, which
    are there where rows are filled up with them.
    """
    inputs, outputs = circuit.inputs, circuit.outputs
    lookups = []
    if circuit.span:
        # As serde writes a binary32: the shortest decimal that gives it back.
        exponent = float(str(np.float32(find_step_exponent(circuit.span))))
        lookups.append({"Pow": {"scale": 1.0, "a": exponent}})
    blocks = count_blocks(circuit, k)
    assigned = circuit.cells if blocks == 1 else blocks * _count_cells(circuit, k)
    return {
        "run_args": {
            "input_scale": 0,
            "param_scale": 0,
            "rebase_scale": None,
            "scale_rebase_multiplier": 1,
            "lookup_range": [1, max(1, circuit.span)],
            "logrows": k,
            "num_inner_cols": circuit.inner_columns,
            "variables": [["batch_size", 1]],
            "input_visibility": "KZGCommit",
            "output_visibility": "KZGCommit",
            "param_visibility": "Fixed",
            "rebase_frac_zero_constants": False,
            "check_mode": "UNSAFE",
            "decomp_base": 256,
            "decomp_legs": 2,
            "bounded_log_lookup": False,
            "ignore_range_check_inputs_outputs": True,
            "epsilon": 2.220446049250313e-16,
            "disable_freivalds": True,
        },
        "num_rows": assigned // circuit.inner_columns + 1,
        "total_assignments": assigned,
        "total_const_size": int(circuit.pads),
        "total_dynamic_col_size": 0,
        "max_dynamic_input_len": 0,
        "num_dynamic_lookups": 0,
        "num_shuffles": 0,
        "total_shuffle_col_size": 0,
        "einsum_params": {"equations": [], "total_einsum_col_size": 0},
        "model_instance_shapes": [],
        "model_output_scales": [0] * len(outputs),
        "model_input_scales": [0] * len(inputs),
        "module_sizes": {
            "polycommit": [circuit.size(name) for name in circuit.columns],
            "poseidon": [0, [0]],
        },
        "required_lookups": lookups,
        "required_range_checks": [],
        "check_mode": "UNSAFE",
        "version": EZKL_VERSION,
        "num_blinding_factors": None,
        "timestamp": 0,
        "input_types": ["F64"] * len(inputs),
        "output_types": ["F64"] * len(outputs),
    }


def encode_settings(circuit: Circuit, k: int) -> bytes:
    """The one text of :func:`make_settings`."""
    return _encode_json(make_settings(circuit, k))


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def check_settings(settings: bytes, circuit: Circuit, k: int) -> None:
    """CircuitError, naming the field, for settings that are not those of the circuit."""
    if settings == encode_settings(circuit, k):
        return
    try:
        found = decode_json(settings, "settings")
    except EncodingError:
        raise CircuitError("are not JSON", where="settings") from None
    if not isinstance(found, dict):
        raise CircuitError("are not an object", where="settings")
    _compare(found, make_settings(circuit, k), "settings")
    raise CircuitError("are not in the canonical form", where="settings")


def make_run_arguments(settings: bytes) -> dict[str, Any]:
    """What ``gen_settings`` is asked, so that it finds these settings."""
    arguments = dict(json.loads(settings)["run_args"])
    for name in ("check_mode", "epsilon", "rebase_scale", "variables"):
        del arguments[name]  # as they are by default, which the comparison sees
    for name in ("input_visibility", "output_visibility", "param_visibility"):
        arguments[name] = _VISIBILITY[arguments[name]]
    return arguments


def check_measured(measured: Mapping[str, Any], settings: bytes) -> None:
    """CircuitError, naming the field, unless ezkl sees in the graph what the settings pin.

    ``measured`` is what ``gen_settings`` writes.  That the one look-up of a circuit with limbs is
    still in the graph, and that nothing else needs a table, is seen here.
    """
    pinned = json.loads(settings)
    _compare(
        {name: value for name, value in measured.items() if name not in _MEASURED},
        {name: value for name, value in pinned.items() if name not in _MEASURED},
        "gen_settings",
    )
    rows = count_usable(pinned["run_args"]["logrows"]) + HIDING
    most = rows if pinned["total_const_size"] else 0
    if measured["total_const_size"] > most:
        raise CircuitError(
            f"{measured['total_const_size']} constants have columns for {most}",
            where="gen_settings.total_const_size",
        )
    if measured["einsum_params"]["total_einsum_col_size"]:
        raise CircuitError("there are columns of Freivalds", where="gen_settings.einsum_params")


def _compare(found: Any, expected: Any, where: str) -> None:
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted({*found, *expected}):
            if name not in found or name not in expected:
                word = "missing" if name in expected else "unknown"
                raise CircuitError(f"the field is {word}", where=f"{where}.{name}")
            _compare(found[name], expected[name], f"{where}.{name}")
    elif type(found) is not type(expected) or found != expected:
        raise CircuitError(f"is {found!r}, not {expected!r}", where=where)
