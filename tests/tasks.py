"""Tiny tasks for tests: real ONNX models, random data, calibrated exponents; made in a moment."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.engines.steps import UPDATES, make_step
from vtrain.commit.state import compute_root_of_state
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.model import confine_attention
from vtrain.graph.onnx_import import import_onnx
from vtrain.graph.step import Affine, Ids, Momentum, StepPlan, compute_initial_state, emit_step
from vtrain.graph.update import Clip
from vtrain.spec.commitment import compute_graph_root, compute_tensor_digest
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.train.task import CompiledTask
from vtrain.wire.task import LAW_VERSION, TOKEN_WIDTHS, TaskSpec, Windows, describe_windows

INPUTS, WIDE_INPUTS, HIDDEN, CLASSES = 16, 640, 8, 4
IMAGE = (1, 8, 8)
VOCABULARY, CONTEXT, FEATURES, HEADS = 12, 6, 8, 2
MANY = 1030
"""Classes of which the gradient has the bits that few do not need."""


def _weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    fan_in = int(np.prod(shape[1:]))
    values = rng.uniform(-1, 1, shape) * np.sqrt(6 / fan_in)
    return numpy_helper.from_array(values.astype(np.float32), name)


def _zeros(name: str, count: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(count, np.float32), name)


def _model(
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    initializers: list[onnx.TensorProto],
) -> bytes:
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", float32, ["batch", *shape])],
        [helper.make_tensor_value_info("logits", float32, ["batch", CLASSES])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


@cache
def make_mlp_onnx(seed: int = 0, inputs: int = INPUTS, hidden: int = 1) -> bytes:
    """16-8-4 with ReLU, or with so many ``inputs`` and so many ``hidden`` layers of 8."""
    rng = np.random.default_rng(seed)
    nodes, weights, source, width = [], [], "x", inputs
    for layer in range(1, hidden + 1):
        h, a = ("h", "a") if layer == 1 else (f"h{layer}", f"a{layer}")
        given = [source, f"w{layer}", f"b{layer}"]
        nodes += [
            helper.make_node("Gemm", given, [h], f"fc{layer}", transB=1),
            helper.make_node("Relu", [h], [a], f"relu{layer}"),
        ]
        weights += [_weight(rng, f"w{layer}", (HIDDEN, width)), _zeros(f"b{layer}", HIDDEN)]
        source, width = a, HIDDEN
    last = hidden + 1
    given = [source, f"w{last}", f"b{last}"]
    nodes.append(helper.make_node("Gemm", given, ["logits"], f"fc{last}", transB=1))
    weights += [_weight(rng, f"w{last}", (CLASSES, width)), _zeros(f"b{last}", CLASSES)]
    return _model(nodes, (inputs,), weights)


@cache
def make_cnn_onnx(seed: int = 0, pool: str = "MaxPool") -> bytes:
    """8x8 image, 3x3 convolution to 3 channels, ReLU, 2x2 max-pool (or another), linear."""
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Conv", ["x", "k1", "c1"], ["m"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["m"], ["a"], "relu1"),
        helper.make_node(pool, ["a"], ["p"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w1", "b1"], ["logits"], "fc1", transB=1),
    ]
    weights = [
        _weight(rng, "k1", (3, 1, 3, 3)),
        _zeros("c1", 3),
        _weight(rng, "w1", (CLASSES, 3 * 4 * 4)),
        _zeros("b1", CLASSES),
    ]
    return _model(nodes, IMAGE, weights)


def _named(value: str, ratio: float | None) -> str:
    """The name of a value before something of it is dropped."""
    return value if ratio is None else f"{value}_whole"


def _drop(value: str, ratio: float | None) -> list[onnx.NodeProto]:
    inputs = [_named(value, ratio), "ratio", "training"]
    node = helper.make_node("Dropout", inputs, [value], f"drop_{value}")
    return [] if ratio is None else [node]


@cache
def make_gpt_onnx(seed: int = 0, *, places: int = CONTEXT, ratio: float | None = None) -> bytes:
    """A decoder of one block: numbers [batch, places] -> logits [batch, places, VOCABULARY].

    With a ``ratio`` it is one in training, which drops of the embeddings and of the mixture.
    """
    rng = np.random.default_rng(seed)
    scales = {
        "table": (VOCABULARY, FEATURES),
        "places": (places, FEATURES),
        **{f"w_{name}": (FEATURES, FEATURES) for name in ("q", "k", "v", "out")},
    }
    tensors = {name: rng.uniform(-0.5, 0.5, shape) for name, shape in scales.items()}
    tensors |= {"gain": np.ones(FEATURES), "offset": np.zeros(FEATURES)}
    if ratio is not None:
        tensors |= {"ratio": np.array(ratio), "training": np.array(True)}
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"], "read"),
        helper.make_node("Add", ["e", "places"], [_named("h", ratio)], "place"),
        *_drop("h", ratio),
        helper.make_node("LayerNormalization", ["h", "gain", "offset"], ["n"], "norm", axis=-1),
        *[helper.make_node("MatMul", ["n", f"w_{name}"], [name], f"to_{name}") for name in "qkv"],
        helper.make_node(
            "Attention", ["q", "k", "v"], ["mixed"], "attend",
            is_causal=1, q_num_heads=HEADS, kv_num_heads=HEADS,
        ),
        helper.make_node("MatMul", ["mixed", "w_out"], [_named("m", ratio)], "mix"),
        *_drop("m", ratio),
        helper.make_node("Add", ["h", "m"], ["r"], "residual"),
        helper.make_node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["r", "turned"], ["logits"], "name"),
    ]  # fmt: skip
    return _language_model(nodes, tensors, (places, VOCABULARY))


@cache
def make_bigram_onnx(seed: int = 0) -> bytes:
    """A table and a layer on it: numbers [batch, CONTEXT] -> logits [batch, CONTEXT, VOCABULARY],
    of each place from its own number alone."""
    rng = np.random.default_rng(seed)
    shapes = {"table": (VOCABULARY, FEATURES), "head": (FEATURES, VOCABULARY)}
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"], "read"),
        helper.make_node("MatMul", ["e", "head"], ["logits"], "name"),
    ]
    tensors = {name: rng.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
    return _language_model(nodes, tensors, (CONTEXT, VOCABULARY))


def _language_model(
    nodes: list[onnx.NodeProto], tensors: dict[str, np.ndarray], shape: tuple[int, int]
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "tiny language model",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n", shape[0]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", *shape])],
        [
            numpy_helper.from_array(v if v.dtype == np.bool_ else v.astype(np.float32), name)
            for name, v in tensors.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


@cache
def make_llama_onnx(seed: int = 0) -> bytes:
    """A decoder of one block: RMSNorm, rotary positions, two heads of queries that share one of
    keys and values, SwiGLU; numbers [batch, CONTEXT] -> logits [batch, CONTEXT, MANY]."""
    rng = np.random.default_rng(seed)
    half, hidden = FEATURES // HEADS, 10
    shapes = {
        "table": (VOCABULARY, FEATURES),
        "w_q": (FEATURES, FEATURES),
        **{f"w_{name}": (FEATURES, half) for name in "kv"},
        "w_out": (FEATURES, FEATURES),
        **{f"w_{name}": (FEATURES, hidden) for name in ("gate", "up")},
        "w_down": (hidden, FEATURES),
        "head": (FEATURES, MANY),
    }
    tensors = {name: rng.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
    angles = np.outer(np.arange(CONTEXT), 100.0 ** (-np.arange(0, half, 2) / half))
    tensors |= {"gain": np.ones(FEATURES), "cosines": np.cos(angles), "sines": np.sin(angles)}

    def product(left: str, weight: str, name: str) -> onnx.NodeProto:
        return helper.make_node("MatMul", [left, weight], [name], f"to_{name}")

    def turn(name: str, heads: int) -> onnx.NodeProto:
        inputs, made = [name, "cosines", "sines"], f"{name}_turned"
        return helper.make_node("RotaryEmbedding", inputs, [made], f"turn_{name}", num_heads=heads)

    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"], "read"),
        helper.make_node("RMSNormalization", ["e", "gain"], ["n"], "norm", axis=-1),
        *[product("n", f"w_{name}", name) for name in "qkv"],
        turn("q", HEADS),
        turn("k", 1),
        helper.make_node(
            "Attention", ["q_turned", "k_turned", "v"], ["mixed"], "attend",
            is_causal=1, q_num_heads=HEADS, kv_num_heads=1,
        ),
        product("mixed", "w_out", "m"),
        helper.make_node("Add", ["e", "m"], ["r"], "residual"),
        product("r", "w_gate", "g"),
        product("r", "w_up", "u"),
        helper.make_node("Sigmoid", ["g"], ["s"], "sigmoid"),
        helper.make_node("Mul", ["g", "s"], ["silu"], "silu"),
        helper.make_node("Mul", ["silu", "u"], ["gated"], "gated"),
        product("gated", "w_down", "d"),
        helper.make_node("Add", ["r", "d"], ["out"], "residual_2"),
        product("out", "head", "logits"),
    ]  # fmt: skip
    return _language_model(nodes, tensors, (CONTEXT, MANY))


LANGUAGE_MODELS: dict[str, Callable[[int], bytes]] = {
    "gpt": make_gpt_onnx,
    "packed gpt": make_gpt_onnx,
    "dropout": partial(make_gpt_onnx, ratio=0.1),
    "llama": make_llama_onnx,
}
"""Kinds of tasks about tokens, and their models."""


def make_tokens(
    count: int, seed: int, *, dtype: str = "u16", stride: int = 5, shift: int = 1
) -> Samples:
    """Windows of ``count`` random tokens, of which many are their neighbours plus one."""
    rng = np.random.default_rng(seed)
    steps = np.where(rng.random(count) < 0.8, 1, rng.integers(0, VOCABULARY, count))
    tokens = (np.cumsum(steps) % VOCABULARY).astype(f"<u{TOKEN_WIDTHS[dtype]}")
    table = np.frombuffer(tokens.tobytes(), np.uint8)
    windows = Windows(dtype, count, CONTEXT, stride, shift)
    return Samples(describe_windows(windows, compute_tensor_digest(table)), table)


def make_samples(shape: tuple[int, ...], count: int, seed: int, *, mse: bool = False) -> Samples:
    """Random bytes x, brighter in the quarter that y names, so that there is something to learn.

    For MSE, y is that class one-hot, int16 with 14 fraction bits.
    """
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 180, (count, *shape), dtype=np.uint8)
    y = rng.integers(0, CLASSES, count, dtype=np.uint8)
    x.reshape(count, CLASSES, -1)[np.arange(count), y] += 75
    if not mse:
        return build_samples(x, y)
    return build_samples(x, (np.eye(CLASSES, dtype=np.int16) * 2**14)[y], y_exponent=14)


@cache
def make_tiny_task(
    kind: str = "mlp",
    *,
    steps: int = 40,
    batch: int = 8,
    commit_every: int = 5,
    checkpoint_every: int = 10,
    samples: int = 60,
    seed: int = 7,
    loss: str = "cross_entropy",
    margin: int = 3,
    optimizer: str = "sgd",
) -> CompiledTask:
    """A compiled task: ``kind`` is "mlp", "wide", "cnn", "averages" or one of those about tokens,
    ``loss`` cross_entropy or mse.

    "wide" is the mlp with so many inputs that a weight gradient over a batch of 40 has two blocks;
    "averages" the cnn with an average-pool;
    "gpt", "dropout" (the same, in training) and "llama" have windows over the three chunks of 1200
    tokens, whatever ``samples``; of "packed gpt" documents end with token 0, and none is padding.

    ``optimizer`` is "sgd", or one of ``UPDATES`` with gradients clipped.

    The result is shared between tests: do not change it in place.
    """
    if kind in ("cnn", "averages"):
        model_bytes = make_cnn_onnx(seed, "MaxPool" if kind == "cnn" else "AveragePool")
    elif kind in LANGUAGE_MODELS:
        model_bytes = LANGUAGE_MODELS[kind](seed)
    else:
        model_bytes = make_mlp_onnx(seed, WIDE_INPUTS if kind == "wide" else INPUTS)
    model = import_onnx(model_bytes)
    if kind == "packed gpt":
        model = confine_attention(model, end_of_text=0, padding=VOCABULARY)
    if kind in LANGUAGE_MODELS:
        data = make_tokens(1200, seed)
    else:
        data = make_samples(model.input_shape, samples, seed, mse=loss == "mse")
    affine = Affine(multiplier=257, offset=0, shift=1, exponent=15)
    plan = StepPlan(
        data=data.spec,
        prepare=Ids() if kind in LANGUAGE_MODELS else affine,
        loss=loss,
        # 40960 * 2^-22 for a sample is 0.08 for the mean of a batch of eight.
        optimizer=UPDATES.get(optimizer, Momentum(round(2**16 * 0.1), (0,), (40960,), 22)),
        seed=seed,
        batch=batch,
        commit_every=commit_every,
        clip=Clip(Fraction(batch, 2)) if optimizer in UPDATES else None,
    )
    state = compute_initial_state(model.params, plan.optimizer)

    def emit(builder: GraphBuilder) -> None:
        emit_step(builder, plan, model)

    exponents = calibrate(emit, state, data, steps=4, margin=margin).exponents
    builder = GraphBuilder(FixedExponents(exponents))
    emit(builder)
    graph = builder.graph()
    spec = TaskSpec(
        law=LAW_VERSION,
        graph_root=compute_graph_root(graph),
        initial_state_root=compute_root_of_state(graph, state),
        model_digest=compute_tensor_digest(np.frombuffer(model_bytes, np.uint8)),
        data=data.spec,
        exponents=exponents,
        seed=seed,
        steps=steps,
        batch=batch,
        commit_every=commit_every,
        checkpoint_every=checkpoint_every,
        commitments=("blake3",),
    )
    return CompiledTask(spec, graph, data, state, model_bytes, f"tiny {kind}")


@cache
def make_convnet_task(*, steps: int, commit_every: int, batch: int = 2) -> CompiledTask:
    """The step "convnet" of ``tests.engines.steps``, as a task that no model stands behind."""
    step = make_step("convnet", batch=batch, commit_every=commit_every)
    spec = TaskSpec(
        law=LAW_VERSION,
        graph_root=compute_graph_root(step.graph),
        initial_state_root=compute_root_of_state(step.graph, step.state),
        model_digest=compute_tensor_digest(np.zeros(0, np.uint8)),
        data=step.samples.spec,
        exponents={},
        seed=11,
        steps=steps,
        batch=batch,
        commit_every=commit_every,
        checkpoint_every=commit_every,
        commitments=("blake3",),
    )
    return CompiledTask(spec, step.graph, step.samples, step.state, b"", "tiny convnet")
