"""Leaf rules: the fold of every element is the law's, from few chunks, whatever the values."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.ops.cases import Array, Attrs, Case, Draw
from tests.ops.leaf_cases import (
    FOLDER,
    Json,
    Leaf,
    draw_garbage,
    draw_leaf,
    make_leaf,
    make_node,
    read_gather,
    read_long_fold,
    read_operator_fold,
    read_vectors,
    read_windowed,
    run_fold,
)
from vtrain.errors import DataError, EncodingError, GraphError, VtrainError
from vtrain.ops import TABLE, leaf, linear, pool
from vtrain.ops.base import LeafRule, Operator, Site, State, Stream, adding, pointwise
from vtrain.ops.layout import Window
from vtrain.ops.leaf import (
    MAX_CHUNKS,
    ArrayReader,
    Fold,
    Reader,
    RecordingReader,
    decode_state,
    encode_element,
    encode_state,
    finish,
    plan_fold,
    run_block,
)
from vtrain.spec.commitment import compute_tensor_digest
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.graph import Node, TensorType

PROPERTY = settings(
    max_examples=25,
    deadline=None,
    report_multiple_bugs=False,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
REDUCTIONS = {
    "matmul", "column_sum", "row_sum", "row_max", "sum", "square_sum", "sum_pool", "max_pool",
    "batched_matmul", "softmax_grad", "scatter_add", "col2im", "sum_pool_grad", "max_pool_grad",
    "center", "row_dot", "token_spans",
}  # fmt: skip


def check_element(item: Leaf, element: int) -> int:
    """The fold of one element is the law's, reading no more than it may; its number of blocks."""
    state, blocks = run_checked(item, element, item.reader())
    value = finish(item.node, item.types, state)
    assert value == int(item.out.flat[element])
    assert encode_element(item.node, value) == item.out.flat[element].tobytes()
    return blocks


def run_checked(item: Leaf, element: int, inner: Reader) -> tuple[State, int]:
    """The last state and the number of blocks, none of which reads too much."""
    blocks = list(run_fold(item, element, inner))
    if item.node.op != "state_root":  # which reads the leaf of every state
        assert max(sum(map(len, reader.chunks)) for _, reader in blocks) <= MAX_CHUNKS
    return blocks[-1][0], len(blocks)


# --- every element is the law's


@pytest.mark.parametrize("op", TABLE)
@PROPERTY
@given(data=st.data())
def test_every_element_is_what_the_law_says(op: str, data: st.DataObject) -> None:
    item = draw_leaf(op, data)
    for element in range(item.out.size):
        check_element(item, element)


@pytest.mark.parametrize("op", sorted(REDUCTIONS))
@pytest.mark.parametrize("chunks", [1, 4])
@PROPERTY
@given(data=st.data())
def test_the_cut_into_blocks_changes_nothing(op: str, chunks: int, data: st.DataObject) -> None:
    item = draw_leaf(op, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf, "MAX_CHUNKS", chunks)
        fold = plan_fold(item.node, item.types)
        if chunks == 1:
            assert fold.block_length == 1
        for element in range(item.out.size):
            check_element(item, element)


def full_case(attrs: Attrs, *types: TensorType) -> Case:
    """Values of every bit pattern in the ranges, in an order that depends on nothing."""
    rng = np.random.default_rng(7)
    arrays = [
        rng.integers(t.lo, t.hi, t.shape, np.int64, endpoint=True).astype(NUMPY_DTYPES[t.dtype])
        for t in types
    ]
    return Case(attrs, types, tuple(arrays))


def tensor(dtype: str, *shape: int, bits: int = 15, exponent: int = 0) -> TensorType:
    return TensorType(dtype, shape, exponent, 1 - 2**bits, 2**bits - 1)


def window(kernel: int, stride: int, pad: int) -> Attrs:
    return {"kernel": (kernel,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4}


# --- the vectors


def check_vector(item: Leaf, content: Json) -> None:
    fold = plan_fold(item.node, item.types)
    assert [fold.terms, fold.block_length, fold.width] == [
        content["terms"],
        content["block_length"],
        content["width"],
    ]
    for entry in content["elements"]:
        blocks = list(run_fold(item, entry["element"], item.reader()))
        assert b"".join(encode_state(state) for state, _ in blocks).hex() == entry["states"]
        reads = [{"chunks": reader.chunks, "rows": reader.rows} for _, reader in blocks]
        assert reads == entry["reads"]
        check_element(item, entry["element"])


def test_the_file_is_what_the_rules_give() -> None:
    command = [sys.executable, str(FOLDER / "generate_leaf.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("op", TABLE)
def test_rules_follow_the_vectors(op: str) -> None:
    contents = [content for content in read_vectors()["operators"] if content["op"] == op]
    cases = json.loads((FOLDER / "ops" / f"{op}.json").read_text())["cases"]
    assert [content["case"] for content in contents] == [case["name"] for case in cases]
    for content in contents:
        check_vector(read_operator_fold(content), content)


BLOCKS = {
    "forward": 2, "gradient of an input": 5, "weight gradient": 11, "columns": 4, "rows": 3,
    "maxima": 3, "sum": 4, "squares": 3, "deviations": 3, "dot": 6, "sum pool": 2,
    "max pool": 2, "col2im": 2,
    "sum pool gradient": 2, "max pool gradient": 6, "scattered rows": 6, "stacks": 2,
    "softmax gradient": 3, "spans of tokens": 3,
}  # fmt: skip


def test_every_reduction_is_shown_with_many_blocks() -> None:
    assert [item["name"] for item in read_vectors()["folds"]] == list(BLOCKS)
    assert {item["op"] for item in read_vectors()["folds"]} == REDUCTIONS


@pytest.mark.parametrize("name", BLOCKS)
def test_folds_of_many_blocks(name: str) -> None:
    item = read_long_fold(name)
    content = next(other for other in read_vectors()["folds"] if other["name"] == name)
    check_vector(item, content)
    for element in range(7, item.out.size, item.out.size // 9 + 1):
        assert check_element(item, element) == BLOCKS[name]


@pytest.mark.parametrize("content", read_vectors()["gathers"], ids=str)
def test_rows_of_any_length(content: Json) -> None:
    item = read_gather(content)
    for element, value in enumerate(content["values"]):
        state, _ = run_checked(item, element, item.reader())
        assert finish(item.node, item.types, state) == value


@pytest.mark.parametrize("content", read_vectors()["windows"], ids=str)
def test_windows_of_tokens(content: Json) -> None:
    item = read_windowed(content)
    for element, value in enumerate(content["values"]):
        ((state, reader),) = run_fold(item, element, item.reader())
        assert finish(item.node, item.types, state) == value
        assert (reader.tokens, reader.rows) == (content["reads"][element], [])


@pytest.mark.parametrize("op", sorted(TABLE.keys() - REDUCTIONS))
@settings(PROPERTY, max_examples=5)
@given(data=st.data())
def test_all_else_is_one_term(op: str, data: st.DataObject) -> None:
    item = draw_leaf(op, data)
    assert plan_fold(item.node, item.types) == Fold(1, 1, 1, (0,))


# --- values that no honest run has


@pytest.mark.parametrize("op", TABLE)
@PROPERTY
@given(data=st.data())
def test_rules_are_total(op: str, data: st.DataObject) -> None:
    item = draw_garbage(draw_leaf(op, data), data)
    for element in range(item.out.size):
        state, _ = run_checked(item, element, item.reader())
        assert len(encode_state(state)) in (0, 8 * len(state))
        encode_element(item.node, finish(item.node, item.types, state))


def one_element(
    op: str, attrs: Attrs, arrays: Sequence[Array], claims: Sequence[TensorType]
) -> int:
    case = Case(attrs, tuple(claims), tuple(arrays))
    item = Leaf(make_node(op, case), case.types, case.arrays, None, np.zeros(1, np.int64))
    state, _ = run_checked(item, 0, item.reader())
    return finish(item.node, item.types, state)


def test_values_beyond_their_dtype_have_no_encoding() -> None:
    most = np.full((1,), 2**63 - 1, np.int64)
    claim = TensorType("i64", (1,), 0, 0, 0)
    attrs: Attrs = {"shift_a": 0, "shift_b": 0}
    value = one_element("add", attrs, [most, most], [claim, claim])
    assert value == 2**64 - 2
    assert encode_state((value,)) == b""
    node = Node("add", "add", attrs, (), (claim,))
    assert encode_element(node, value) == b""
    assert encode_element(node, 2**63 - 1) == b"\xff" * 7 + b"\x7f"


def test_excursions_inside_a_block_are_exact() -> None:
    claim = TensorType("i64", (4,), 0, 0, 0)
    values = np.array([2**63 - 1, 2**63 - 1, -(2**63), -(2**63)], np.int64)
    assert one_element("sum", {}, [values], [claim]) == -2


@pytest.mark.parametrize("part", ["x", "y"])
@pytest.mark.parametrize(
    ("index", "count", "length"), [(-1, 3, 9), (3, 3, 9), (2**62, 3, 9), (0, 3, 1)]
)
def test_a_sample_that_is_not_there_is_zero(part: str, index: int, count: int, length: int) -> None:
    attrs: Attrs = {"part": part, "dtype": "u8", "exponent": 0, "shape": (3,)}
    types = (TensorType("i64", (1,), 0, 0, 0),)
    node = make_node("gather_samples", Case(attrs, types, ()))
    rows = np.full((count, length), 7, np.uint8)
    reader = RecordingReader(ArrayReader([np.array([index])], (), rows), types)
    assert run_block(node, types, 1, 0, (0,), reader) == (0,)
    assert reader.rows == ([0] if index == 0 else [])


def test_a_step_beyond_the_longest_run_is_the_last() -> None:
    attrs: Attrs = {"batch": 2, "samples": 10**6, "seed": bytes(8)}
    claim = TensorType("i64", (), 0, 0, 0)

    def first(t: int) -> int:
        return one_element("sample_index", attrs, [np.array(t)], [claim])

    assert first(2**62) == first(2**40) != first(2**40 - 1)
    assert first(-(2**63)) == first(0) != first(1)


# --- how many terms make a block


@settings(PROPERTY, max_examples=200)
@given(
    st.sampled_from(["u8", "i8", "i16", "i32", "i64"]),
    st.one_of(st.integers(0, 40), st.integers(41, 3000)),
    st.integers(0, 5000),
    st.integers(1, 300),
)
def test_no_run_of_terms_touches_more_chunks_than_the_bound(
    dtype: str, stride: int, first: int, terms: int
) -> None:
    size = NUMPY_DTYPES[dtype].itemsize
    touched = {(first + i * stride) * size // 1024 for i in range(terms)}
    assert len(touched) <= leaf._bound_chunks(Stream(0, stride), dtype, terms)
    assert leaf._bound_chunks(Stream(0, None), dtype, terms) == terms


@settings(PROPERTY, max_examples=100)
@given(st.data())
def test_a_block_is_the_longest_that_is_sure_to_fit(data: st.DataObject) -> None:
    d = Draw(data)
    m, k, n = d.integer(1, 700), d.integer(1, 9000), d.integer(1, 700)
    ta, tb = d.integer(0, 1), d.integer(0, 1)
    a, b = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    case = Case({"transpose_a": ta, "transpose_b": tb}, (tensor("i16", *a), tensor("i16", *b)), ())
    fold = plan_fold(make_node("matmul", case), case.types)

    def bound(terms: int, stride: int) -> int:
        return min(terms, (terms - 1) * stride * 2 // 1024 + 2)

    fits = [
        terms
        for terms in range(1, k + 1)
        if bound(terms, m if ta else 1) + bound(terms, 1 if tb else n) <= 32
    ]
    assert (fold.terms, fold.block_length) == (k, max(fits))
    assert fold.blocks == -(-k // max(fits))


@pytest.mark.parametrize(
    ("kernel", "block_length", "blocks"), [(1, 1, 1), (2, 16, 1), (3, 15, 6), (5, 15, 42)]
)
def test_blocks_of_the_max_pool_gradient(kernel: int, block_length: int, blocks: int) -> None:
    x, grad = tensor("i16", 1, 9, 9, 2), tensor("i16", 1, 10 - kernel, 10 - kernel, 2)
    case = Case(window(kernel, 1, 0), (grad, x), ())
    fold = plan_fold(make_node("max_pool_grad", case), case.types)
    assert fold == Fold(kernel**4, block_length, 2, (0, 1))
    assert fold.blocks == blocks


# --- what a block reads


def test_reads_of_a_product() -> None:
    attrs: Attrs = {"transpose_a": 1, "transpose_b": 0}
    case = full_case(attrs, tensor("i16", 8, 300), tensor("i16", 8, 700))
    item = make_leaf("matmul", case)
    reader = RecordingReader(item.reader(), item.types)
    run_block(item.node, item.types, 700 * 299 + 5, 0, (0,), reader)
    assert reader.chunks == [
        sorted({(300 * p + 299) // 512 for p in range(8)}),
        sorted({(700 * p + 5) // 512 for p in range(8)}),
    ]
    assert reader.rows == []


def test_a_digest_needs_no_chunk() -> None:
    x = np.arange(9, dtype=np.int16)
    item = make_leaf("tensor_digest", full_case({}, tensor("i16", 9)))
    digest = compute_tensor_digest(x)
    reader = RecordingReader(ArrayReader([], [digest]), item.types)
    assert run_block(item.node, item.types, 31, 0, (0,), reader) == (digest[31],)
    assert reader.chunks == [[]]


def test_padding_is_not_read() -> None:
    image = tensor("i16", 1, 2, 2, 1)
    item = make_leaf("max_pool", full_case(window(2, 3, 1), image))
    assert item.out.shape == (1, 1, 1, 1)
    seen: list[int] = []

    class Spy(ArrayReader):
        def read(self, input: int, index: int) -> int:
            seen.append(index)
            return super().read(input, index)

    list(run_fold(item, 0, Spy(item.arrays)))
    assert seen == [0]


@pytest.mark.parametrize(("input", "index"), [(0, -1), (0, 6), (1, 0), (-1, 0)])
def test_a_reader_refuses_what_is_not_there(input: int, index: int) -> None:
    inner = ArrayReader([np.zeros((2, 3), np.int16)])
    for reader in (inner, RecordingReader(inner, [tensor("i16", 2, 3)])):
        with pytest.raises(DataError, match="no element"):
            reader.read(input, index)
    with pytest.raises(DataError, match="digest"):
        inner.digest(input)
    with pytest.raises(DataError, match="not given"):
        inner.sample(0)


# --- refusals


ROW = tensor("i32", 2, 9000)
ROW_SUM = make_node("row_sum", Case({}, (ROW,), ()))


@pytest.mark.parametrize(
    ("element", "block", "state", "message"),
    [
        (2, 0, (0,), "no element 2"),
        (-1, 0, (0,), "no element -1"),
        (0, 2, (0,), "no block 2 in 2"),
        (0, -1, (0,), "no block"),
        (0, 0, (), "1 entries"),
        (0, 0, (0, 1), "1 entries"),
    ],
)
def test_what_is_not_in_the_fold_is_refused(
    element: int, block: int, state: State, message: str
) -> None:
    assert plan_fold(ROW_SUM, [ROW]).blocks == 2
    reader = ArrayReader([np.zeros((2, 9000), np.int32)])
    with pytest.raises(GraphError, match=message):
        run_block(ROW_SUM, [ROW], element, block, state, reader)


@pytest.mark.parametrize(
    ("node", "types", "message"),
    [
        (replace(ROW_SUM, op="nonsense"), [ROW], "unknown operator"),
        (replace(ROW_SUM, outputs=()), [ROW], "not what its inputs give"),
        (replace(ROW_SUM, outputs=ROW_SUM.outputs * 2), [ROW], "not what its inputs give"),
        (ROW_SUM, [tensor("i32", 3, 9000)], "not what its inputs give"),
        (ROW_SUM, [tensor("i16", 2, 9000)], "inputs must be"),
        (ROW_SUM, [], "inputs must be"),
    ],
)
def test_nodes_that_are_not_legal_are_refused(
    node: Node, types: list[TensorType], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        plan_fold(node, types)
    with pytest.raises(GraphError, match=message):
        finish(node, types, (0,))


def test_a_state_is_of_its_own_type() -> None:
    attrs: Attrs = {"name": "w", "dtype": "i32", "exponent": 24, "shape": (2,)}
    node = make_node("state", Case(attrs, (), ()))
    assert plan_fold(node, node.outputs) == Fold(1, 1, 1, (0,))
    for types in ([], [tensor("i32", 2)]):
        with pytest.raises(GraphError, match="as it is"):
            plan_fold(node, types)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3), st.binary(max_size=24))
def test_states_are_entries_of_eight_bytes(entries: list[int], data: bytes) -> None:
    state = tuple(entries)
    encoded = encode_state(state)
    assert encoded == np.array(state, "<i8").tobytes()
    assert decode_state(encoded, len(state)) == state
    if len(data) % 8:
        with pytest.raises(EncodingError, match="fold state"):
            decode_state(data, 1)
    else:
        assert encode_state(decode_state(data, len(data) // 8)) == data
    for entry in (2**63, -(2**63) - 1):
        assert encode_state((*state, entry)) == b""


# --- faults


def assert_rule_fault_is_seen(op: str, rule: LeafRule) -> None:
    """The property fails, found without the time that shrinking takes."""

    @settings(PROPERTY, max_examples=200, phases=[Phase.generate])
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        item = draw_leaf(op, data)
        for element in range(item.out.size):
            check_element(item, element)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf, "TABLE", {**TABLE, op: replace(TABLE[op], leaf=rule)})
        with pytest.raises((AssertionError, VtrainError)):
            check()


@pytest.mark.parametrize("op", TABLE)
def test_one_unit_in_the_last_place_is_seen(op: str) -> None:
    rule = TABLE[op].leaf
    assert_rule_fault_is_seen(
        op, replace(rule, finish=lambda attrs, state: rule.finish(attrs, state) ^ 1)
    )


@pytest.mark.parametrize("op", sorted(REDUCTIONS))
def test_a_term_left_out_is_seen(op: str) -> None:
    rule = TABLE[op].leaf

    def step(site: Site, element: int, term: int, state: State) -> State:
        last = rule.terms(site.attrs, site.types) - 1
        return state if term == last and last else rule.step(site, element, term, state)

    assert_rule_fault_is_seen(op, replace(rule, step=step))


def untransposed(site: Site, e: int, term: int) -> int:
    plain = replace(site, attrs={**site.attrs, "transpose_b": 0})
    return linear._matmul_term(plain, e, term)


def last_of_equals(site: Site, e: int, term: int, state: State) -> State:
    class Reversed:
        """Images upside down: then the last of equal elements is the first."""

        def read(self, input: int, index: int) -> int:
            return site.reader.read(input, site.types[input].size - 1 - index)

        digest = site.reader.digest
        sample = site.reader.sample
        windows = site.reader.windows
        token = site.reader.token

    window = Window.from_attrs(site.attrs)
    top, left, bottom, right = window.pads
    attrs = {**site.attrs, "pads": (bottom, right, top, left)}
    turned = replace(site, attrs=attrs, reader=Reversed())
    return pool._max_pool_grad_step(turned, site.out.size - 1 - e, term, state)


FAULTS: dict[str, tuple[str, Callable[[LeafRule], LeafRule]]] = {
    "a transposition left out": ("matmul", lambda rule: replace(rule, step=adding(untransposed))),
    "ties to the last": ("max_pool_grad", lambda rule: replace(rule, step=last_of_equals)),
    "padding that wins": (
        "max_pool",
        lambda rule: replace(
            rule,
            step=lambda s, e, i, state: (max(state[0], pool._pool_term(s, e, i, 0)),),
        ),
    ),
    "no gradient at zero": (
        "relu_grad",
        lambda rule: pointwise(lambda s, e: s.read(0, e) if s.read(1, e) >= 0 else 0),
    ),
    "rounding down": (
        "rescale",
        lambda rule: pointwise(
            lambda s, e: (
                s.read(0, e) * int(str(s.attrs["multiplier"])) >> max(int(str(s.attrs["shift"])), 0)
            )
        ),
    ),
    "labels that are not clamped": (
        "sub_one_hot",
        lambda rule: pointwise(
            lambda s, e: (
                s.read(0, e) - 2**14 * (e % s.out.shape[1] == s.read(1, e // s.out.shape[1]))
            )
        ),
    ),
    "blocks that are too long": (
        "matmul",
        lambda rule: replace(rule, streams=lambda attrs, types: [Stream(0, 0)]),
    ),
}


@pytest.mark.parametrize("name", sorted(FAULTS.keys() - {"blocks that are too long"}))
def test_a_wrong_rule_is_seen(name: str) -> None:
    op, change = FAULTS[name]
    assert_rule_fault_is_seen(op, change(TABLE[op].leaf))


def test_a_stream_that_is_not_stated_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    op, change = FAULTS["blocks that are too long"]
    wrong: Operator = replace(TABLE[op], leaf=change(TABLE[op].leaf))
    monkeypatch.setattr(leaf, "TABLE", {**TABLE, op: wrong})
    with pytest.raises(AssertionError):
        check_element(read_long_fold("weight gradient"), 0)
