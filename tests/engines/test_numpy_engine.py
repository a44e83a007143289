"""The reference session: records, roots, traces, counts, and the state it will not take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from tests.engines.steps import Step, make_step
from vtrain.engines.base import State, check_state
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import DataError, RunError
from vtrain.graph.evaluate import apply_node
from vtrain.ops import TABLE
from vtrain.spec.commitment import (
    compute_record_leaf,
    compute_state_leaf,
    compute_state_root,
    compute_tensor_digest,
)
from vtrain.spec.number import count_saturated
from vtrain.spec.order import compute_batch_indices
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Node, StepGraph
from vtrain.wire.opening import StateLeaf

COMMIT_EVERY = 3


def open_session(step: Step) -> NumpySession:
    session = NumpySession(step.graph, step.samples)
    session.load_state(step.state)
    return session


def index_of(graph: StepGraph, name: str) -> int:
    return next(i for i, node in enumerate(graph.nodes) if node.name == name)


def root_of(graph: StepGraph, state: State) -> bytes:
    """The state root by its formula, from the tensors alone."""
    leaves = []
    for name in sorted(state, key=str.encode):
        tensor = graph.type_of(graph.states()[name])
        digest = blake3(state[name].tobytes()).digest()
        leaf = StateLeaf(
            name=name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            exponent=tensor.exponent,
            digest=digest,
        )
        leaves.append(compute_state_leaf(leaf))
    return compute_state_root(leaves)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_records(kind: str, loss: str) -> None:
    """Steps count from one; the root is there at each commitment step and nowhere else."""
    step = make_step(kind, loss, commit_every=COMMIT_EVERY)
    session = open_session(step)
    for count in range(1, 2 * COMMIT_EVERY + 2):
        expected_loss = int(session.evaluate(index_of(step.graph, "loss")))
        record = session.step()
        assert record.step == count == int(session.read_state()["step"])
        assert record.loss == expected_loss
        if count % COMMIT_EVERY == 0:
            assert record.state_root == root_of(step.graph, session.read_state())
        else:
            assert record.state_root == b""


def test_samples_come_in_the_order_of_the_seed() -> None:
    step = make_step("mlp")
    session = open_session(step)
    index, x = index_of(step.graph, "sample_index"), index_of(step.graph, "x")
    seed = step.graph.nodes[index].attrs["seed"]
    assert isinstance(seed, bytes)
    for t in range(15):  # batches of 8 from 50 samples: the seventh straddles two epochs
        expected = compute_batch_indices(int.from_bytes(seed, "little"), 50, 8, t)
        assert np.array_equal(session.evaluate(index), expected)
        assert np.array_equal(session.evaluate(x), step.samples.part("x")[expected])
        session.step()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_trace_is_a_step_seen_from_inside(kind: str) -> None:
    step = make_step(kind)
    stepping, tracing = open_session(step), open_session(step)
    for _ in range(COMMIT_EVERY + 1):
        values = [tracing.evaluate(i) for i in range(len(step.graph.nodes))]
        trace = tracing.trace()
        assert trace.record == stepping.step()
        assert trace.digests == tuple(compute_tensor_digest(value) for value in values)
    assert tracing.saturation() == stepping.saturation()
    mine, theirs = tracing.read_state(), stepping.read_state()
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


def test_the_record_node_is_the_leaf_of_the_record() -> None:
    """Nothing in a record stands outside the graph, on commitment steps and between them."""
    step = make_step("mlp")
    session = open_session(step)
    for _ in range(COMMIT_EVERY):
        leaf = session.evaluate(index_of(step.graph, "record")).tobytes()
        record = session.step()
        assert leaf == compute_record_leaf(
            record.step, record.batch_digest, record.loss, record.state_root
        )


def test_hashes_of_the_state_are_skipped_between_commitments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = make_step("mlp", commit_every=COMMIT_EVERY)
    applied: list[str] = []

    def count(node: Node, *rest: Any) -> Any:
        applied.append(node.op)
        return apply_node(node, *rest)

    monkeypatch.setattr("vtrain.engines.numpy_engine.apply_node", count)
    session = open_session(step)
    hashes = []
    for _ in range(COMMIT_EVERY):
        applied.clear()
        session.step()
        hashes.append((applied.count("tensor_digest"), applied.count("state_root")))
    assert hashes == [(2, 0), (2, 0), (2 + len(step.state), 1)]


def test_skipping_hashes_makes_no_difference() -> None:
    sparse = open_session(make_step("mlp", commit_every=COMMIT_EVERY))
    dense = open_session(make_step("mlp", commit_every=1))
    for _ in range(COMMIT_EVERY * 2):
        few, every = sparse.step(), dense.step()
        assert replace(every, state_root=few.state_root) == few
        assert few.state_root in (b"", every.state_root)
    mine, theirs = sparse.read_state(), dense.read_state()
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


def test_saturation_is_counted_by_node() -> None:
    """With no margin and loud weights, every clamped element counts, once a step."""
    step = make_step("mlp", margin=0)
    loud = {n: v * 6 if n.startswith("param/w") else v for n, v in step.state.items()}
    session = open_session(step)
    assert session.saturation() == {}
    session.load_state(loud)
    expected: dict[str, int] = {}
    for _ in range(3):
        for node in step.graph.nodes:
            if node.op == "rescale":
                source = session.evaluate(node.inputs[0].node)
                lossless = {**node.attrs, "dtype": "i64"}
                wide = TABLE["rescale"].law(lossless, [source])
                clamped = count_saturated(wide, str(node.attrs["dtype"]))
                if clamped:
                    expected[node.name] = expected.get(node.name, 0) + clamped
        session.step()
    assert expected
    assert session.saturation() == expected
    before = session.saturation()
    session.evaluate(len(step.graph.nodes) - 1)
    assert session.saturation() == before, "looking at a node is no step"


# --- state


def test_state_goes_in_and_out_by_copy() -> None:
    step = make_step("mlp")
    mine = {name: value.copy() for name, value in step.state.items()}
    session = NumpySession(step.graph, step.samples)
    session.load_state(mine)
    for value in mine.values():
        value[...] = 1
    read = session.read_state()
    assert all(np.array_equal(read[name], value) for name, value in step.state.items())
    for value in read.values():
        value[...] = 1
    again = session.read_state()
    assert all(np.array_equal(again[name], value) for name, value in step.state.items())


def test_a_run_goes_on_from_any_state() -> None:
    step = make_step("cnn")
    whole, first = open_session(step), open_session(step)
    records = [whole.step() for _ in range(7)]
    for _ in range(4):
        first.step()
    second = NumpySession(step.graph, step.samples)
    second.load_state(first.read_state())
    assert [second.step() for _ in range(3)] == records[4:]


BAD: dict[str, tuple[str, object, str]] = {
    "missing": ("param/w0", None, "missing tensors"),
    "extra": ("param/other", np.zeros(3, np.int32), "unknown tensors"),
    "shape": ("param/b0", np.zeros(3, np.int32), "needs i32"),
    "dtype": ("param/b0", np.zeros(17, np.int64), "needs i32"),
    "byte order": ("param/b0", np.zeros(17, ">i4"), "needs i32"),
    "rank": ("step", np.zeros(1, np.int64), "needs i64"),
    "below its range": ("param/b0", np.full(17, -(2**31), np.int32), "outside"),
    "a negative counter": ("step", np.asarray(-1, np.int64), "outside"),
    "a counter too far": ("step", np.asarray(2**40 + 1, np.int64), "outside"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_state_that_does_not_fit_is_refused(name: str) -> None:
    step = make_step("mlp")
    tensor, value, message = BAD[name]
    state = {key: kept for key, kept in step.state.items() if key != tensor}
    if isinstance(value, np.ndarray):
        state[tensor] = value
    session = open_session(step)
    with pytest.raises(RunError, match=message) as caught:
        session.load_state(state)
    assert caught.value.where in ("state", f"state.{tensor}")
    with pytest.raises(RunError):
        check_state(step.graph, state)
    # The session is as it was.
    assert session.step() == open_session(step).step()


def test_runs_are_reproducible_and_depend_on_every_input() -> None:
    step = make_step("mlp", commit_every=1)
    records = [open_session(step).step() for _ in range(2)]
    assert records[0] == records[1]
    bent = {name: value.copy() for name, value in step.state.items()}
    bent["momentum/w2"].flat[0] += 64
    session = NumpySession(step.graph, step.samples)
    session.load_state(bent)
    other = session.step()
    assert other.state_root != records[0].state_root
    assert (other.loss, other.batch_digest) == (records[0].loss, records[0].batch_digest)


# --- misuse


def test_nothing_happens_without_a_state() -> None:
    step = make_step("mlp")
    session = NumpySession(step.graph, step.samples)
    for action in (session.step, session.trace, lambda: session.evaluate(0)):
        with pytest.raises(RunError, match="no state is loaded") as caught:
            action()
        assert caught.value.where == "state"


@pytest.mark.parametrize("node", [-1, 10**6])
def test_a_node_that_is_not_there(node: int) -> None:
    with pytest.raises(RunError) as caught:
        open_session(make_step("mlp")).evaluate(node)
    assert caught.value.where == f"node {node}"


def test_what_is_evaluated_is_a_copy() -> None:
    step = make_step("mlp")
    session = open_session(step)
    session.evaluate(index_of(step.graph, "param/w0"))[...] = 7
    assert np.array_equal(session.read_state()["param/w0"], step.state["param/w0"])


def test_samples_of_another_form_are_refused() -> None:
    mlp, cnn = make_step("mlp"), make_step("cnn")
    with pytest.raises(DataError, match="needs u8") as caught:
        NumpySession(mlp.graph, cnn.samples)
    assert caught.value.where == "samples"
    spec = replace(mlp.samples.spec, samples=49)
    with pytest.raises(DataError, match="50 samples, there are 49"):
        NumpySession(mlp.graph, Samples(spec, mlp.samples.table[:49]))
