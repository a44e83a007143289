"""Pins that are the same everywhere, settings that hide nothing, keys that are made once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from tests.prove.circuits import LIMITS
from tests.prove.mock import mock_many
from tests.prove.toy import K, Toy, make_circuit, make_long_circuit
from vtrain.errors import CircuitError, ProverError, SrsError, StorageError
from vtrain.prove.backend import keys as module
from vtrain.prove.backend import settings as settings_module
from vtrain.prove.backend.cost import estimate, require_fits
from vtrain.prove.backend.ezkl import Call, run_ezkl
from vtrain.prove.backend.keys import Keys, cut_srs, default_cache, load_keys, load_verifying_key
from vtrain.prove.backend.settings import (
    check_measured,
    check_settings,
    count_blocks,
    count_usable,
    encode_settings,
    make_settings,
    pin,
)
from vtrain.prove.backend.srs import identify_srs
from vtrain.wire import cbor

# --- the pin


def test_pin_is_the_same_for_the_same_circuit(toy: Toy) -> None:
    assert pin(make_circuit(), K) == toy.pinned


def test_pin_is_the_same_in_another_process_without_ezkl(toy: Toy, repository: Path) -> None:
    script = "import sys; sys.modules['ezkl'] = None; import runpy; " + (
        "runpy.run_module('tests.prove.toy', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=repository, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == toy.pinned.digest.hex()


def test_pin_tells_circuits_apart(toy: Toy) -> None:
    digests = {
        toy.pinned.digest,
        pin(make_circuit(), K + 1).digest,
        pin(make_circuit(3), K).digest,
        pin(make_circuit(span=200), K).digest,
        pin(make_long_circuit(4), K).digest,
    }
    assert len(digests) == 5


def test_digest_is_that_of_the_spec(toy: Toy) -> None:
    """Recomputed from its description."""
    body = cbor.encode(
        {
            "columns": blake3(toy.pinned.columns).digest(),
            "ezkl": "23.0.5",
            "onnx": blake3(toy.pinned.onnx).digest(),
            "settings": blake3(toy.pinned.settings).digest(),
        }
    )
    assert toy.pinned.digest == blake3(body, derive_key_context="vtrain 2026 circuit v2").digest()


def test_pin_follows_ezkls_version(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "EZKL_VERSION", "23.0.6")
    assert pin(make_circuit(), K).digest != toy.pinned.digest


def test_table_of_two_columns_is_refused() -> None:
    make = make_circuit
    pin(make(span=(1 << K) - 8), K)
    with pytest.raises(CircuitError, match="more than one column of 504"):
        pin(make(span=(1 << K) - 7), K)


def test_vector_of_two_columns_is_refused() -> None:
    longest = count_usable(K)
    pin(make_long_circuit(longest, 5), K)
    with pytest.raises(CircuitError, match=f"^a: has {longest + 1} values"):
        pin(make_long_circuit(longest + 1, 5), K)


def test_cells_of_too_many_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = make_long_circuit(190, 1)
    assert count_blocks(circuit, K) == 2
    pin(circuit, K)
    monkeypatch.setattr(settings_module, "MAX_BLOCKS", 1)
    with pytest.raises(CircuitError, match="cells take 2 blocks of 1 columns, more than 1"):
        pin(circuit, K)


@pytest.mark.parametrize(("inner_columns", "blocks"), [(2, 1), (1, 1), (1, 2)])
def test_most_cells_that_are_let_in_fit(inner_columns: int, blocks: int) -> None:
    """Of what fits so many blocks by our own count, ezkl finds a place for the largest."""
    fitting = [
        circuit
        for length in range(50, count_usable(K) + 1)
        if count_blocks(circuit := make_long_circuit(length, inner_columns), K) == blocks
    ]
    circuit = fitting[-1]
    assert circuit.cells > blocks * inner_columns * ((1 << K) - 14) - 6
    assert mock_many(circuit, pin(circuit, K), [assign_long(circuit)], LIMITS)[0].holds


def test_settings_with_too_few_cells_have_no_mock_and_no_keys(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings with fewer cells than the layout has are no way to a cheaper circuit."""
    monkeypatch.setattr(settings_module, "_check_size", lambda circuit, k: None)
    circuit = make_long_circuit(260)
    pinned = pin(circuit, K)
    settings = json.loads(pinned.settings) | {"total_assignments": 500, "num_rows": 251}
    cut = replace(pinned, settings=json.dumps(settings).encode())
    with pytest.raises(ProverError, match="mock: the process died"):
        mock_many(circuit, cut, [assign_long(circuit)], LIMITS)
    with pytest.raises(ProverError, match="setup: the process died"):
        load_keys(cut, toy.srs, tmp_path, LIMITS)


def assign_long(circuit: Any) -> Any:
    values = np.arange(circuit.length("a")) % 255
    return circuit.assign({"a": values}, {}, lambda before: [5])


# --- the settings


def measure(toy: Toy, folder: Path) -> dict[str, Any]:
    """What ``gen_settings`` itself writes for the same arguments."""
    model, out = folder / "model.onnx", folder / "settings.json"
    model.write_bytes(toy.pinned.onnx)
    arguments = {
        "input_scale": 0,
        "param_scale": 0,
        "scale_rebase_multiplier": 1,
        "lookup_range": [1, toy.circuit.span],
        "logrows": K,
        "num_inner_cols": 2,
        "input_visibility": "polycommit",
        "output_visibility": "polycommit",
        "param_visibility": "fixed",
        "disable_freivalds": True,
        "decomp_base": 256,
        "decomp_legs": 2,
        "ignore_range_check_inputs_outputs": True,
    }
    run_ezkl(
        [
            Call(
                "gen_settings",
                {"model": str(model), "output": str(out), "py_run_args": arguments},
            )
        ],
        LIMITS,
    )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_settings_are_those_that_ezkl_measures(toy: Toy, tmp_path: Path) -> None:
    measured = measure(toy, tmp_path)
    check_measured(measured, toy.pinned.settings)
    ours = make_settings(toy.circuit, K)
    differing = {name for name in {*measured, *ours} if measured.get(name) != ours.get(name)}
    assert differing <= settings_module._MEASURED
    # Why ours are used: a count of cells beyond those of the layout.
    assert measured["total_assignments"] > ours["total_assignments"]
    changes: list[dict[str, Any]] = [
        {"required_lookups": []},
        {"required_lookups": measured["required_lookups"] * 2},
        {"required_range_checks": [[0, 1]]},
        {"total_const_size": 1 << K},
        {"einsum_params": {"equations": [], "total_einsum_col_size": 1}},
        {"num_dynamic_lookups": 1},
        {"model_output_scales": [0, 1]},
        {"new": 0},
    ]
    for change in changes:
        with pytest.raises(CircuitError, match=f"gen_settings.{next(iter(change))}"):
            check_measured(measured | change, toy.pinned.settings)


def test_constants_have_a_column_only_where_rows_are_filled_up(toy: Toy, tmp_path: Path) -> None:
    """A row of one cell has nothing to fill up.  What ezkl counts must have a place."""
    for columns, pads in ((1, False), (2, True)):
        circuit = make_circuit(columns)
        assert circuit.pads == pads
        assert make_settings(circuit, K)["total_const_size"] == pads
    measured = measure(toy, tmp_path)
    assert measured["total_const_size"] == 1
    without = json.loads(toy.pinned.settings) | {"total_const_size": 0}
    with pytest.raises(CircuitError, match="1 constants have columns for 0"):
        check_measured(measured, json.dumps(without).encode())


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("run_args", "disable_freivalds"), False),
        (("run_args", "input_visibility"), "Private"),
        (("run_args", "output_visibility"), "Public"),
        (("run_args", "param_visibility"), "Private"),
        (("run_args", "lookup_range"), [0, 255]),
        (("run_args", "lookup_range"), [1, 256]),
        (("run_args", "logrows"), 10),
        (("run_args", "input_scale"), 1),
        (("run_args", "ignore_range_check_inputs_outputs"), False),
        (("required_lookups",), []),
        (("required_lookups",), [{"Pow": {"scale": 1.0, "a": 0.05}}]),
        (("required_range_checks",), [[0, 255]]),
        (("model_input_scales",), [1]),
        (("module_sizes", "polycommit"), [4]),
        (("model_instance_shapes",), [[1]]),
        (("version",), "23.0.4"),
        (("total_assignments",), 1),
        (("num_rows",), True),
        (("timestamp",), 1),
    ],
)
def test_no_other_settings_are_taken(toy: Toy, where: tuple[str, ...], value: Any) -> None:
    settings = make_settings(toy.circuit, K)
    inner = settings
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    with pytest.raises(CircuitError, match="^settings." + ".".join(where)):
        check_settings(json.dumps(settings).encode(), toy.circuit, K)


def test_settings_have_one_text(toy: Toy) -> None:
    check_settings(toy.pinned.settings, toy.circuit, K)
    for text, message in (
        (toy.pinned.settings + b"\n", "canonical"),
        (b"{}", "missing"),
        (b"[]", "object"),
        (b"\xff", "JSON"),
        (b"[" * 100000, "JSON"),
    ):
        with pytest.raises(CircuitError, match=message):
            check_settings(text, toy.circuit, K)
    assert toy.pinned.settings == encode_settings(toy.circuit, K)


# --- the estimate


@pytest.mark.parametrize("inner_columns", [2, 3, 4])
def test_estimate_is_near_the_key_that_is_made(
    toy: Toy, tmp_path: Path, inner_columns: int
) -> None:
    circuit, keys = make_circuit(inner_columns), toy.keys
    if inner_columns != toy.circuit.inner_columns:
        keys = load_keys(pin(circuit, K), toy.srs, tmp_path, LIMITS)
    size = keys.pk.stat().st_size
    assert abs(estimate(circuit, K).proving_key - size) < 0.05 * size


def test_circuit_too_large_for_the_memory_is_refused_with_the_estimate(toy: Toy) -> None:
    estimated = estimate(toy.circuit, 17)
    assert estimated.columns == len(toy.circuit.columns)
    require_fits(estimated, estimated.memory)
    with pytest.raises(CircuitError, match=r"115 cells in 58 rows.*GiB of memory"):
        require_fits(estimated, estimated.memory - 1)


# --- the keys


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("ezkl was called")

    monkeypatch.setattr(module, "run_ezkl", refuse)


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    runs: list[int] = []

    def run(*arguments: Any, **named: Any) -> Any:
        runs.append(1)
        return run_ezkl(*arguments, **named)

    monkeypatch.setattr(module, "run_ezkl", run)
    return runs


def test_keys_are_a_function_of_circuit_and_srs(toy: Toy, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    again = load_keys(
        pin(make_circuit(), K),
        toy.srs,
        tmp_path,
        LIMITS,
        progress=lambda *news: seen.append(news),
    )
    assert (seen[0], seen[-1]) == (("keys", 0, 4), ("keys", 4, 4))
    assert seen == sorted(seen)
    assert again.folder != toy.keys.folder
    assert replace(again, folder=toy.keys.folder) == toy.keys
    assert again.vk.read_bytes() == toy.keys.vk.read_bytes()


def test_length_of_proofs_is_found_beforehand(toy: Toy) -> None:
    assert toy.keys.proof_length == len(toy.proof)


def test_keys_are_made_once(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch)
    cache = toy.keys.folder.parent
    assert load_keys(toy.pinned, toy.srs, cache, LIMITS) == toy.keys
    assert load_verifying_key(toy.pinned, toy.srs, cache, LIMITS) == toy.keys


def copy_keys(toy: Toy, cache: Path) -> Path:
    folder = cache / toy.keys.folder.name
    folder.mkdir()
    for path in toy.keys.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lengthen(path: Path) -> None:
    """Another length of proofs in the manifest, which nothing else would contradict."""
    data = path.read_bytes()
    at = data.index(b"proof_length") + len(b"proof_length") + 2
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("vk", flip),
        ("circuit", flip),
        ("settings.json", flip),
        ("srs", flip),
        ("keys", flip),
        ("keys", lengthen),
        ("pk", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("pk", Path.unlink),
        ("keys", Path.unlink),
        ("keys", lambda path: path.write_bytes(b"")),
    ],
)
def test_broken_cache_is_noticed(
    toy: Toy, tmp_path: Path, name: str, harm: Callable[[Path], Any], monkeypatch: Any
) -> None:
    folder = copy_keys(toy, tmp_path)
    harm(folder / name)
    forbid(monkeypatch)
    with pytest.raises(AssertionError, match="ezkl was called"):
        load_keys(toy.pinned, toy.srs, tmp_path, LIMITS)


def test_broken_cache_is_made_anew(toy: Toy, tmp_path: Path) -> None:
    folder = copy_keys(toy, tmp_path)
    flip(folder / "vk")
    leftover = tmp_path / f".{folder.name}.tmp"
    leftover.mkdir()
    (leftover / "vk").write_bytes(b"half")
    found = load_keys(toy.pinned, toy.srs, tmp_path, LIMITS)
    assert found == replace(toy.keys, folder=folder)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [folder.name]


def test_verifying_key_alone(toy: Toy, tmp_path: Path) -> None:
    found = load_verifying_key(toy.pinned, toy.srs, tmp_path, LIMITS)
    assert replace(found, folder=toy.keys.folder) == toy.keys
    assert not found.pk.exists()
    assert sum(path.stat().st_size for path in found.folder.iterdir()) < 1 << 14
    assert load_verifying_key(toy.pinned, toy.srs, tmp_path, LIMITS) == found


def test_one_of_two_at_once_makes_the_keys(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, found = count_runs(monkeypatch), list[Keys]()

    def load() -> None:
        found.append(load_keys(toy.pinned, toy.srs, tmp_path, LIMITS))

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1
    assert len(found) == 2
    assert found[0] == found[1]


def test_waiting_for_another_can_be_cancelled(toy: Toy, tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    lock = tmp_path / f".{toy.keys.folder.name}.lock"
    with (
        module._hold(lock, None),
        pytest.raises(ProverError, match="cancelled"),
    ):
        load_keys(toy.pinned, toy.srs, tmp_path, LIMITS, cancelled=cancelled)


def test_failure_leaves_nothing_in_the_cache(toy: Toy, tmp_path: Path) -> None:
    """A graph without the look-up that the settings pin: ezkl sees none."""
    other = toy.pinned.onnx.replace(b"Pow", b"Add")
    assert other != toy.pinned.onnx
    with pytest.raises(CircuitError, match=r"gen_settings.required_lookups: is \[\]"):
        load_keys(replace(toy.pinned, onnx=other), toy.srs, tmp_path, LIMITS)
    assert [path.name for path in tmp_path.iterdir()] == [f".{toy.keys.folder.name}.lock"]


def test_folder_that_cannot_be_made_is_a_typed_error(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        load_keys(toy.pinned, toy.srs, tmp_path / "file", LIMITS)


def test_srs_too_small_or_none_is_refused(toy: Toy, tmp_path: Path, srs: Path) -> None:
    with pytest.raises(SrsError, match="for k up to 8, not 9"):
        load_keys(toy.pinned, srs, tmp_path / "cache", LIMITS)
    (tmp_path / "none").write_bytes(b"none")
    with pytest.raises(SrsError):
        load_keys(toy.pinned, tmp_path / "none", tmp_path / "cache", LIMITS)
    assert not (tmp_path / "cache").exists()


def test_cut_srs_is_a_small_one(toy: Toy, tmp_path: Path) -> None:
    data, identity = cut_srs(toy.srs)
    assert identity == identify_srs(toy.srs)
    small = tmp_path / "small.srs"
    small.write_bytes(data)
    assert identify_srs(small).k == 1


def test_default_cache_is_the_users() -> None:
    assert default_cache() == Path.home() / ".cache" / "vtrain" / "keys"
