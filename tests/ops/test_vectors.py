"""Conformance vectors: drift of the files, and every engine held to them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.ops.cases import BOUND
from tests.ops.reference import define
from vtrain import _core
from vtrain.engines.base import Session
from vtrain.engines.cpu import CpuSession
from vtrain.engines.numpy_engine import NumpySession
from vtrain.graph.legality import check_graph
from vtrain.ops import TABLE
from vtrain.spec.commitment import compute_graph_root, compute_trace_root
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.spec.samples import Samples
from vtrain.wire import cbor
from vtrain.wire.graph import AttrValue, TensorType, decode_graph
from vtrain.wire.record import StepRecord, encode_record
from vtrain.wire.task import DataSpec

Array = npt.NDArray[Any]
Json = Any
FOLDER = Path(__file__).parent.parent / "vectors"


def test_files_are_what_the_law_gives() -> None:
    command = [sys.executable, str(FOLDER / "generate_ops.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_operator_has_vectors() -> None:
    assert {path.stem for path in (FOLDER / "ops").glob("*.json")} == set(TABLE)


def test_an_operator_without_cases_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); sys.argv = ['generate_ops.py']\n"
        "import pathlib, generate_ops\n"
        f"generate_ops.FOLDER = pathlib.Path({str(tmp_path)!r})\n"
        "del generate_ops.OPERATORS['relu']\n"
        "sys.exit(generate_ops.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    where = FOLDER / "generate_ops.py"
    said = f"relu has no cases: define relu_cases() in {where}\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert list(tmp_path.iterdir()) == []


# --- operators


def read_array(content: Json) -> Array:
    values = [int(value) for value in content["values"]]
    return np.array(values, NUMPY_DTYPES[content["dtype"]]).reshape(content["shape"])


def read_type(content: Json) -> TensorType:
    return TensorType(
        content["dtype"],
        tuple(content["shape"]),
        content["exponent"],
        int(content["lo"]),
        int(content["hi"]),
    )


def read_attr(tagged: Json) -> AttrValue:
    match tagged:
        case {"int": value}:
            return int(value)
        case {"bytes": value}:
            return bytes.fromhex(value)
        case {"list": items}:
            return tuple(int(item["int"]) for item in items)
        case _:
            return str(tagged["text"])


@cache
def read_cases(op: str) -> list[Json]:
    content = json.loads((FOLDER / "ops" / f"{op}.json").read_text())
    assert content["op"] == op
    assert content["cases"], "a file without cases says nothing"
    return list(content["cases"])


def read_inputs(case: Json) -> list[Array]:
    """Arrays of the inputs, and what is bound after them."""
    bound = [case["bound"]] if "bound" in case else []
    return [read_array(content) for content in [*case["inputs"], *bound]]


def assert_output(found: Array, case: Json) -> None:
    expected = read_array(case["output"])
    assert found.dtype == expected.dtype, case["name"]
    np.testing.assert_array_equal(found, expected, err_msg=case["name"], strict=True)


@pytest.mark.parametrize("op", TABLE)
def test_the_law_follows_the_vectors(op: str) -> None:
    for case in read_cases(op):
        attrs = {key: read_attr(value) for key, value in case["attrs"].items()}
        types = [read_type(content) for content in case["inputs"]]
        assert TABLE[op].infer(attrs, types) == read_type(case["output"])
        inputs = read_inputs(case)
        assert_output(TABLE[op].law(attrs, inputs), case)
        assert define(op, attrs, inputs).tolist() == read_array(case["output"]).tolist()
        assert ("bound" in case) == (op in BOUND)
        node = cbor.decode(bytes.fromhex(case["node"]))
        assert isinstance(node, dict)
        assert node["op"] == op
        assert isinstance(node["attrs"], dict)
        assert set(node["attrs"]) == set(attrs)


@pytest.mark.parametrize("op", TABLE)
def test_rust_follows_the_vectors(op: str) -> None:
    for case in read_cases(op):
        node, inputs = bytes.fromhex(case["node"]), read_inputs(case)
        for path in _core.gemm_paths() if op == "matmul" else ["auto"]:
            for threads in (1, 2):
                assert_output(_core.apply_node(node, inputs, threads, path), case)


def test_a_wrong_vector_is_seen() -> None:
    case = json.loads(json.dumps(read_cases("matmul")[0]))
    case["output"]["values"][0] = str(int(case["output"]["values"][0]) + 1)
    inputs = read_inputs(case)
    with pytest.raises(AssertionError):
        assert_output(_core.apply_node(bytes.fromhex(case["node"]), inputs, 1, "auto"), case)


# --- the step


@cache
def read_step() -> Json:
    return json.loads((FOLDER / "step.json").read_text())


def read_samples() -> Samples:
    content = read_step()["samples"]
    table = np.array([list(bytes.fromhex(row)) for row in content["rows"]], np.uint8)
    x, y = content["x"], content["y"]
    root = bytes.fromhex(content["root"])
    spec = DataSpec(
        root, len(table), x["dtype"], tuple(x["shape"]), 0, y["dtype"], tuple(y["shape"]), 0
    )
    return Samples(spec, table)


def read_state(name: str) -> dict[str, Array]:
    return {tensor["name"]: read_array(tensor) for tensor in read_step()[name]["tensors"]}


def make_sessions() -> Iterator[tuple[str, Callable[[], Session]]]:
    graph, samples = decode_graph(bytes.fromhex(read_step()["graph"])), read_samples()
    yield "numpy", lambda: NumpySession(graph, samples)
    for path in _core.gemm_paths():
        for threads in (1, 2):
            yield (
                f"cpu, {path}, {threads} threads",
                lambda path=path, threads=threads: CpuSession(  # type: ignore[misc]
                    graph, samples, threads=threads, path=path
                ),
            )


SESSIONS = dict(make_sessions())


def open_session(name: str) -> Session:
    session = SESSIONS[name]()
    session.load_state(read_state("initial_state"))
    return session


def read_records() -> list[StepRecord]:
    return [
        StepRecord(
            step=content["step"],
            batch_digest=bytes.fromhex(content["batch_digest"]),
            loss=int(content["loss"]),
            state_root=bytes.fromhex(content["state_root"]),
        )
        for content in read_step()["records"]
    ]


def test_the_step_is_a_legal_graph() -> None:
    step = read_step()
    graph = decode_graph(bytes.fromhex(step["graph"]))
    check_graph(graph)
    assert compute_graph_root(graph).hex() == step["graph_root"]
    ops = {node.op for node in graph.nodes}
    assert ops >= {"im2col", "relu_grad", "max_pool_grad", "momentum", "record"}
    for record, content in zip(read_records(), step["records"], strict=True):
        assert encode_record(record).hex() == content["encoding"]
    assert [record.state_root != b"" for record in read_records()] == [False, True] * 2 + [False]


@pytest.mark.parametrize("name", SESSIONS)
def test_steps_follow_the_vectors(name: str) -> None:
    session = open_session(name)
    assert [session.step() for _ in read_step()["records"]] == read_records()
    final, expected = session.read_state(), read_state("final_state")
    assert final.keys() == expected.keys()
    for tensor, value in expected.items():
        np.testing.assert_array_equal(final[tensor], value, err_msg=tensor, strict=True)


@pytest.mark.parametrize("name", SESSIONS)
def test_traces_follow_the_vectors(name: str) -> None:
    session = open_session(name)
    graph = decode_graph(bytes.fromhex(read_step()["graph"]))
    for record, content in zip(read_records(), read_step()["traces"], strict=True):
        trace = session.trace()
        digests = [digest.hex() for digest in trace.digests]
        pairs = zip(graph.nodes, digests, content["digests"], strict=True)
        assert [node.name for node, found, expected in pairs if found != expected] == []
        assert compute_trace_root(trace.digests).hex() == content["root"]
        assert trace.record == record
