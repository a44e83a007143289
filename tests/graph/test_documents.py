"""Attention within documents and without padding: beside torch, bit by bit, and from ONNX files."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's own documentation calls it

from tests.exhaustive import spare
from tests.graph.test_autodiff import Run, make_plan, make_run
from tests.graph.test_onnx_export import run_onnx
from tests.graph.test_onnx_import import (
    TABLE,
    Tensors,
    assert_same_function,
    fix_integers,
    make,
    node,
)
from tests.tasks import CONTEXT, FEATURES, HEADS, VOCABULARY, make_gpt_onnx, make_mlp_onnx
from vtrain.engines.registry import open_session
from vtrain.errors import ModelError
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.model import Model, Softmax, confine_attention
from vtrain.graph.onnx_import import import_onnx
from vtrain.graph.step import Ids, compute_initial_state, emit_step
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples

Array = npt.NDArray[Any]
Tensor = torch.Tensor
END, PAD = 0, 11
PACKED = np.array(
    [
        [5, 3, END, 4, 9, 7],
        [END, 2, 8, END, END, 6],
        [END] * CONTEXT,
        [1, 2, 3, 4, 5, END],
        [7, END, 1, 2, 3, 4],
    ],
    np.int32,
)
"""Documents within rows, whole rows of one, and of nothing but ends."""
PADDED = np.array(
    [
        [5, 3, 1, 4, 9, 7],
        [1, 2, 8, PAD, PAD, PAD],
        [PAD, PAD, PAD, PAD, 3, 8],
        [PAD, 4, PAD, PAD, PAD, PAD],
        [PAD, PAD, 2, 6, 1, PAD],
    ],
    np.int32,
)


def make_step(model: Model, x: Array, margin: int = 1) -> Run:
    """A step over the rows of x, each place's label the id before it, less one."""
    samples = build_samples(x, np.roll(x, 1, axis=1) % (VOCABULARY - 1))
    plan = replace(make_plan(samples, "cross_entropy"), prepare=Ids(), batch=len(x))
    found = calibrate(
        lambda b: emit_step(b, plan, model),
        compute_initial_state(model.params),
        samples,
        steps=1,
        margin=margin,
    )
    return make_run(model, samples, plan, FixedExponents(found.exponents))


def find_documents(ids: Tensor) -> Tensor:
    """[batch, queries, keys]: whether both are in one document."""
    number = torch.cumsum((ids == END).long(), 1) - (ids == END).long()
    return number[:, :, None] == number[:, None, :]


def differentiate(model: Model, ids: Array, labels: Array, kept: Tensor) -> dict[str, Array]:
    """Gradients in torch's float32 of the GPT of tests/tasks.py; ``kept`` [batch, queries, keys] is
    the mask, in place of the causal one."""
    t = {
        name: torch.tensor(
            np.ldexp(value.astype(np.float64), -24), dtype=torch.float32, requires_grad=True
        )
        for name, value in model.params.items()
    }
    x = torch.tensor(ids).long()
    h = t["table"][x] + t["places"]
    n = F.layer_norm(h, (FEATURES,), t["gain"], t["offset"])
    q, k, v = (
        (n @ t[f"w_{name}"]).view(*x.shape, HEADS, FEATURES // HEADS).transpose(1, 2)
        for name in "qkv"
    )
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=kept[:, None])
    r = h + mixed.transpose(1, 2).reshape(h.shape) @ t["w_out"]
    logits = r @ t["table"].T
    loss = F.cross_entropy(
        logits.flatten(0, 1), torch.tensor(labels).long().flatten(), reduction="sum"
    )
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: tensor.grad.numpy() for name, tensor in t.items() if tensor.grad is not None}


def find_distance(run: Run, gradients: dict[str, Array]) -> dict[str, float]:
    return {
        name: float(np.linalg.norm(run.gradient(name) - value) / np.linalg.norm(value))
        for name, value in gradients.items()
    }


# --- beside torch's float32


def test_a_packed_gpt_has_the_gradient_of_a_block_diagonal_mask() -> None:
    model = confine_attention(import_onnx(make_gpt_onnx()), end_of_text=END)
    run = make_step(model, PACKED)
    ids, labels = run.named("x").astype(int), run.named("y").astype(int)
    causal = torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool))
    within = find_documents(torch.tensor(ids)) & causal
    found = find_distance(run, differentiate(model, ids, labels, within))
    assert set(found) == set(model.params)
    assert max(found.values()) < 0.01, found
    crossing = find_distance(run, differentiate(model, ids, labels, causal.expand(within.shape)))
    assert max(crossing.values()) > 0.1, "the mask makes the difference"
    open_run = make_step(import_onnx(make_gpt_onnx()), PACKED)
    crossing = find_distance(
        open_run, differentiate(model, ids, labels, causal.expand(within.shape))
    )
    assert max(crossing.values()) < 0.01, "where attention may cross, it is torch's causal one"


def without_window(model: Model) -> Model:
    """Attention both ways, as a BERT has it."""
    layers = [
        replace(layer, window=None) if isinstance(layer, Softmax) else layer
        for layer in model.layers
    ]
    return replace(model, layers=tuple(layers))


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_padded_model_has_the_gradient_of_masked_keys(both_ways: bool) -> None:
    """Rows with nothing to attend to are zeros, here and in torch: padding before the first token
    where attention is causal."""
    model = import_onnx(make_gpt_onnx())
    model = confine_attention(without_window(model) if both_ways else model, padding=PAD)
    run = make_step(model, PADDED)
    ids, labels = run.named("x").astype(int), run.named("y").astype(int)
    kept = torch.tensor(ids != PAD)[:, None, :].expand(-1, CONTEXT, -1)
    # Between tokens nothing is padding in torch's mask either: row 3 has one token alone.
    if not both_ways:
        kept = kept & torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool))
    found = find_distance(run, differentiate(model, ids, labels, kept))
    assert max(found.values()) < 0.01, found


# --- bit by bit


@pytest.mark.parametrize("crosses", [False, True])
def test_a_token_of_another_document_changes_no_bit(crosses: bool) -> None:
    """Also where the document that it is in comes later and attention goes both ways."""
    causal = import_onnx(make_gpt_onnx())
    cases = (
        (causal, {(0, 0): [3, 4, 5], (4, 0): [2, 3, 4, 5]}),
        (without_window(causal), {(0, 4): [0, 1, 2], (1, 1): [0, 4, 5], (4, 5): [0, 1]}),
    )
    for model, others in cases:
        confined = model if crosses else confine_attention(model, end_of_text=END)
        run = fix_integers(confined, PACKED.astype(np.float32))
        before = run(PACKED.astype(np.float32))
        for (row, place), beside in others.items():
            changed = PACKED.copy()
            changed[row, place] = 10
            after = run(changed.astype(np.float32))
            assert np.array_equal(before[row, beside], after[row, beside]) != crosses
            assert not np.array_equal(before[row, place], after[row, place])
            unchanged = np.arange(len(PACKED)) != row
            assert np.array_equal(before[unchanged], after[unchanged])


def test_what_is_padding_has_no_weight_at_all() -> None:
    model = without_window(import_onnx(make_gpt_onnx()))
    run = make_step(confine_attention(model, padding=PAD), PADDED)
    (softmax,) = (layer for layer in model.layers if isinstance(layer, Softmax))
    ids, p = run.named("x"), run.named(softmax.name)
    assert not p.transpose(0, 3, 1, 2)[ids == PAD].any()
    assert np.abs(p.sum(axis=-1) - 1).max() < 6 * 2.0**-14


@pytest.mark.parametrize("margin", [1, 3])
def test_rows_of_padding_alone_are_zeros_and_go_on(margin: int) -> None:
    """Nothing is divided by zero, nothing wraps around, and other rows have the bits they had."""
    alone = np.full((2, CONTEXT), PAD, np.int32)
    for model in (import_onnx(make_gpt_onnx()), without_window(import_onnx(make_gpt_onnx()))):
        confined = confine_attention(model, padding=PAD)
        run = make_step(confined, alone, margin)
        (softmax,) = (layer for layer in model.layers if isinstance(layer, Softmax))
        assert not run.named(softmax.name).any()
        assert not run.gradient("w_q").any(), "scores of nothing have no gradient"
        assert not run.gradient("w_v").any()
        run.session.step()
        assert run.session.saturation() == {}
        mixed = np.concatenate([PADDED, alone])
        fixed = fix_integers(confined, mixed.astype(np.float32))
        assert np.array_equal(
            fixed(mixed.astype(np.float32))[:5],
            fixed(np.concatenate([PADDED, PADDED[:2]]).astype(np.float32))[:5],
        )


def make_one_place(padding: int | None, end_of_text: int | None) -> Model:
    nodes = [
        node("Gather", "t x", "h"),
        node("Transpose", "h", "k", perm=[0, 2, 1]),
        node("MatMul", "h k", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p h"),
    ]
    proto = make(nodes, ["n", 1], {"t": TABLE}, kind=onnx.TensorProto.INT64)
    return confine_attention(import_onnx(proto), padding=padding, end_of_text=end_of_text)


def test_sequences_of_one_token() -> None:
    x = np.array([[3], [6], [0]], np.float32)
    for model in (make_one_place(None, 3), make_one_place(1, 6)):
        found = fix_integers(model, x)(x)
        assert np.abs(found - TABLE[x.astype(int)]).max() < 2.0**-10, "each attends to itself"
    found = fix_integers(make_one_place(6, None), x)(x)
    assert not found[1].any(), "padding attends to nothing"
    assert np.abs(found - TABLE[x.astype(int)])[[0, 2]].max() < 2.0**-10


def make_both() -> tuple[Run, Samples]:
    """Documents and padding, of heads."""
    model = confine_attention(import_onnx(make_gpt_onnx()), end_of_text=END, padding=PAD)
    x = np.concatenate([PACKED, PADDED])
    samples = build_samples(x, np.roll(x, 1, axis=1) % (VOCABULARY - 1))
    return make_step(model, x), samples


def test_engines_and_onnxruntime_have_the_same_bits() -> None:
    run, samples = make_both()
    session = open_session("cpu", run.graph, samples)
    state = compute_initial_state(run.model.params)
    session.load_state(state)
    spans = [i for i, n in enumerate(run.graph.nodes) if n.op == "token_spans"]
    assert len(spans) == 1, "one for all heads and layers"
    feeds: dict[str, Array] = {f"state/{name}": values for name, values in state.items()}
    for part in "xy":
        feeds[f"batch/{part}"] = run.session.evaluate(run.node(part))
    exposed = [run.graph.nodes[index].name for index in (*spans, run.node("loss/grad"))]
    lowered = run_onnx(run.graph, feeds, exposed)
    for name in exposed:
        found = lowered[f"node/{name}"]
        assert found.tobytes() == run.session.evaluate(run.node(name)).tobytes()
    assert [run.session.step(), run.session.step()] == [session.step(), session.step()]
    after, law = session.read_state(), run.session.read_state()
    assert all(np.array_equal(law[name], after[name]) for name in law)
    assert run.session.saturation() == session.saturation() == {}


# --- refusals


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(ModelError, match="has no attention"):
        confine_attention(import_onnx(make_mlp_onnx()), end_of_text=1)


def test_attention_over_other_places_is_refused_by_name() -> None:
    """A place more, that all may look at: nothing says what document it is in."""
    nodes = [
        node("Gather", "t x", "e"),
        node("Slice", "e zero one one", "first"),
        node("Concat", "first e", "h", axis=1),
        node("Transpose", "h", "k", perm=[0, 2, 1]),
        node("MatMul", "h k", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p h"),
    ]
    tensors = {"t": TABLE, "zero": np.array([0]), "one": np.array([1])}
    proto = make(nodes, ["n", 3], tensors, kind=onnx.TensorProto.INT64)
    model = confine_attention(import_onnx(proto), end_of_text=1)
    with pytest.raises(ModelError, match="4 rows of 4 columns") as caught:
        fix_integers(model, np.zeros((2, 3), np.float32))
    assert caught.value.where == "p"


def test_another_padding_than_the_file_has_is_refused() -> None:
    model = import_onnx(export("sdpa", dynamo=False, fixed=False))
    assert confine_attention(model, padding=PAD).layers == model.layers
    with pytest.raises(ModelError, match="hides padding of id 11 in the ONNX file"):
        confine_attention(model, padding=3)


# --- masks that torch computes of the ids


class Encoder(nn.Module):
    """One layer of attention over ids; ``how`` says how its mask is written."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.table = nn.Embedding(VOCABULARY, FEATURES)
        self.qkv, self.out = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, VOCABULARY)
        mask = torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool))
        self.register_buffer("causal", mask)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        batch, places, features = x.shape
        q, k, v = (
            part.view(batch, places, HEADS, features // HEADS).transpose(1, 2)
            for part in self.qkv(x).split(features, dim=2)
        )
        y = self.attend(ids, q, k, v).transpose(1, 2).reshape(batch, places, features)
        return torch.as_tensor(self.out(y))

    def attend(self, ids: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keep, sdpa = (ids != PAD)[:, None, None, :], F.scaled_dot_product_attention
        causal: Tensor = self.causal  # type: ignore[assignment]
        match self.how:
            case "sdpa":
                return sdpa(q, k, v, attn_mask=keep)
            case "sdpa, causal":
                return sdpa(q, k, v, attn_mask=keep & causal)
            case "sdpa, expanded":
                whole = keep.expand(ids.shape[0], 1, CONTEXT, CONTEXT)
                return sdpa(q, k, v, attn_mask=whole)
            case "sdpa, documents":
                return sdpa(q, k, v, attn_mask=(find_documents(ids) & causal)[:, None])
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        match self.how:
            case "filled":
                scores = scores.masked_fill(~keep, -torch.inf)
            case "filled twice":
                scores = scores.masked_fill(~causal, -torch.inf)
                scores = scores.masked_fill((ids == PAD)[:, None, None, :], -torch.inf)
            case "hidden, or":
                scores = scores.masked_fill(~keep | ~causal, -torch.inf)
            case "added":
                scores = scores + (1.0 - keep.float()) * torch.finfo(torch.float32).min
        return torch.softmax(scores, dim=-1) @ v


def export(how: str, *, dynamo: bool, fixed: bool, opset: int | None = None) -> onnx.ModelProto:
    torch.manual_seed(4)
    ids = torch.randint(0, VOCABULARY, (5, CONTEXT))
    options: dict[str, Any] = {"dynamo": dynamo, "opset_version": opset}
    if not fixed and dynamo:
        options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
    if not fixed and not dynamo:
        options |= {"input_names": ["ids"], "dynamic_axes": {"ids": {0: "batch"}}}
    data: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Encoder(how).eval(), (ids,), data, **options)
    return onnx.load_from_string(data.getvalue())


EXPORTERS = [(False, False, None), (True, False, None), (True, True, None)]
WINDOWS = {"sdpa, causal": CONTEXT, "filled twice": CONTEXT, "hidden, or": CONTEXT}
HOWS = ("sdpa", "sdpa, causal", "sdpa, expanded", "filled", "filled twice", "hidden, or", "added")
KEPT = {
    *((how, False, False, None) for how in HOWS),
    ("sdpa, causal", True, False, None),
    ("added", True, False, None),
    ("hidden, or", True, True, None),
    ("sdpa, causal", True, True, 23),
}


@pytest.mark.parametrize(
    ("how", "dynamo", "fixed", "opset"),
    spare(
        [
            *((how, *exporter) for how in HOWS for exporter in EXPORTERS),
            *((how, True, True, 23) for how in ("sdpa, causal", "sdpa, expanded")),
        ],
        KEPT.__contains__,
    ),
)
def test_masks_of_torch_are_imported(
    how: str, dynamo: bool, fixed: bool, opset: int | None
) -> None:
    """With padding before and after the tokens.  Where attention is causal, a place may have
    nothing but padding before it: torch's own attention has zeros there, as here, and writes so
    with its first exporter; other files have no number, or the mean of all places."""
    proto = export(how, dynamo=dynamo, fixed=fixed, opset=opset)
    has_zeros = how not in WINDOWS or (how == "sdpa, causal" and not dynamo)
    x = PADDED if has_zeros else PADDED[[0, 1, 0, 1, 0]]
    if opset == 23:
        assert "Attention" in {item.op_type for item in proto.graph.node}
    model = assert_same_function(proto, x.astype(np.int64))
    (softmax,) = (layer for layer in model.layers if isinstance(layer, Softmax))
    assert (softmax.padding, softmax.window) == (PAD, WINDOWS.get(how))


def test_a_mask_of_one_row_is_one_of_the_operator_attention() -> None:
    """As ONNX broadcasts it, which onnxruntime does not."""
    model = import_onnx(export("sdpa", dynamo=True, fixed=True, opset=23))
    (softmax,) = (layer for layer in model.layers if isinstance(layer, Softmax))
    assert (softmax.padding, softmax.window) == (PAD, None)


@pytest.mark.parametrize("dynamo", [False, True])
def test_masks_of_documents_are_refused_with_the_key_to_use(dynamo: bool) -> None:
    with pytest.raises(ModelError, match="set end_of_text in the table model") as caught:
        import_onnx(export("sdpa, documents", dynamo=dynamo, fixed=True))
    assert "CumSum" in caught.value.where


I64 = np.int64
MASKED: Tensors = {
    "t": TABLE,
    "two": np.array(2, I64),
    "three": np.array([1, 2, 3], I64),
    "minus": np.array(-1, I64),
    "ones": np.array([1], I64),
    "last": np.array([2], I64),
    "hide": np.array(-np.inf, np.float32),
    "some": np.array(-5, np.float32),
    "zero": np.array(0, np.float32),
    "one": np.array(1, np.float32),
    "causal": np.tri(3, dtype=np.bool_),
    "long": np.ones((4, 4), np.bool_),
}
SCORES = [
    node("Gather", "t x", "h"),
    node("Transpose", "h", "k", perm=[0, 2, 1]),
    node("MatMul", "h k", "s"),
    node("Equal", "x two", "pads"),
    node("Not", "pads", "kept"),
    node("Unsqueeze", "kept ones", "rows"),
    node("Unsqueeze", "pads ones", "hidden"),
    node("Cast", "rows", "as_floats", to=onnx.TensorProto.FLOAT),
]
END_NODES = [node("Softmax", "m", "p"), node("MatMul", "p h")]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Equal", "x three", "m")], "no one number"),
        ([node("Equal", "x minus", "m")], "compares ids with -1, which is none"),
        ([node("Equal", "h two", "m")], "only supported of ids and a number"),
        ([node("Less", "x two", "m")], "compares the model's input"),
        ([node("And", "rows hidden", "m")], "joins two masks"),
        ([node("Or", "rows causal", "m")], "joins a mask of ids by Or, where it is of what is kep"),
        ([node("And", "hidden causal", "m")], "by And, where it is of what is hidden"),
        ([node("And", "rows long", "m")], r"\[4, 4\] does not fit"),
        ([node("And", "kept causal", "m")], r"\[3, 3\] does not fit"),
        ([node("Sub", "as_floats one", "m")], "taken from 1"),
        ([node("Mul", "as_floats hide", "m")], "what is hidden"),
        ([node("Add", "s as_floats", "m")], "adds a mask that is 0 or 1"),
        ([node("Where", "rows s some", "m")], "must put minus infinity"),
        ([node("Where", "rows hide s", "m")], "must put minus infinity"),
        ([node("Where", "rows one hide", "m")], "must be 0 where"),
        ([node("Where", "causal rows hide", "m")], "does not choose by a mask of ids"),
        ([node("Unsqueeze", "kept last", "m")], "the places must stay the last"),
        ([node("Where", "kept s hide", "m")], "must have the axes of the scores"),
        ([node("Relu", "rows", "m")], "is a mask of ids"),
        ([node("Softmax", "rows", "m")], "is a mask of ids"),
        ([node("IsNaN", "s", "m")], "only supported of a softmax"),
        ([node("Softmax", "s", "q"), node("IsNaN", "q", "n"), node("Where", "n one q", "m")],
         "must be the softmax, or 0"),
        ([node("Where", "hidden hide s", "f"), node("Equal", "x one64", "other"),
          node("Unsqueeze", "other ones", "o"), node("Where", "o hide f", "m")],
         "hides padding of id 1 where 2 is hidden already"),
    ],
)  # fmt: skip
def test_other_masks_are_refused(nodes: Sequence[onnx.NodeProto], message: str) -> None:
    tensors = MASKED | {"one64": np.array(1, I64)}
    nodes = [*SCORES, *nodes, *END_NODES]
    with pytest.raises(ModelError, match=message):
        import_onnx(make(nodes, ["n", 3], tensors, kind=onnx.TensorProto.INT64))


def test_whole_numbers_are_needed_for_attention_by_ids() -> None:
    model = replace(confine_attention(import_onnx(make_gpt_onnx()), padding=1), takes_ids=False)
    builder = GraphBuilder(FixedExponents({}))
    assert builder.nodes == []
    with pytest.raises(ModelError, match="samples must be rows of ids"):
        fix_integers(model, PACKED.astype(np.float32))
