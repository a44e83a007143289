"""Language models for the cuda engine's scripts: made without torch, trained as tasks are.

The same parts as in examples/shakespeare: a GPT (LayerNorm, learned positions, GELU, tied tables)
and a Llama (RMSNorm, rotary positions, grouped queries, SwiGLU), with random weights and tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vtrain.engines.registry import choose_evaluator
from vtrain.graph.calibration import OpenEvaluator
from vtrain.train.task import CompiledTask, compile_task, load_task, profile_task

SHARING = 2
"""Heads of a Llama that share a key and a value."""
BASE = 10000.0
"""Of the angles of rotary positions."""

TASK = """
[task]
name = "{kind}"
seed = 1
steps = 1000
batch = {batch}
commit_every = 10
checkpoint_every = 100

[model]
onnx = "model.onnx"
loss = "cross_entropy"

[data]
kind = "tokens"
path = "tokens.bin"
dtype = "u16"
context = {context}
vocabulary = {vocabulary}

[data.prepare]
kind = "ids"

[optimizer]
kind = "adamw"
learning_rate = 1e-3
weight_decay = 0.1
clip_norm = 1.0

[schedule]
kind = "cosine"
warmup = 2

[format]
symmetric_gradients = true
calibration_steps = 3
wide_sums = true
"""


@dataclass(frozen=True)
class Sizes:
    """Of a model and its task; ``tokens`` are those to train on."""

    layers: int
    features: int
    heads: int
    context: int
    batch: int
    vocabulary: int = 65
    tokens: int = 100_000


class _Network:
    """An ONNX graph being written, node by node."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._rng = np.random.default_rng(1)
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []

    def draw(self, name: str, *shape: int) -> str:
        """A weight."""
        return self.put(name, self._rng.normal(0, 0.05, shape))

    def put(self, name: str, values: npt.ArrayLike) -> str:
        """A weight, or constants."""
        self._tensors.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def add(self, op: str, name: str, inputs: Sequence[str], **attrs: Any) -> str:
        """A node, which is named as its output."""
        self._nodes.append(helper.make_node(op, inputs, [name], name, **attrs))
        return name

    def multiply(self, name: str, value: str, inputs: int, outputs: int) -> str:
        """A linear layer without a bias."""
        return self.add("MatMul", name, [value, self.draw(f"{name}.weight", inputs, outputs)])

    def bias(self, name: str, value: str, count: int) -> str:
        """What comes after one that has a bias."""
        return self.add("Add", name, [value, self.put(f"{name}.bias", np.zeros(count))])

    def norm(self, name: str, value: str, *, centred: bool) -> str:
        """LayerNorm or RMSNorm of the features."""
        count = self.sizes.features
        weights = [self.put(f"{name}.norm_weight", np.ones(count))]
        if centred:
            weights.append(self.put(f"{name}.norm_bias", np.zeros(count)))
        op = "LayerNormalization" if centred else "RMSNormalization"
        return self.add(op, name, [value, *weights], axis=-1)

    def finish(self, logits: str) -> bytes:
        """The file: ids [n, context] -> ``logits`` [n, context, vocabulary]."""
        places, count = self.sizes.context, self.sizes.vocabulary
        graph = helper.make_graph(
            self._nodes,
            "language model",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", places])],
            [helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["n", places, count])],
            self._tensors,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString(deterministic=True))


def make_gpt(sizes: Sizes) -> bytes:
    """A GPT as an ONNX file."""
    net, width, wide = _Network(sizes), sizes.features, 4 * sizes.features
    table = net.draw("table", sizes.vocabulary, width)
    x = net.add("Gather", "embedded", [table, "ids"])
    x = net.add("Add", "placed", [x, net.draw("places", sizes.context, width)])
    for at in range(sizes.layers):
        y = net.norm(f"{at}/norm_1", x, centred=True)
        q, k, v = (
            net.bias(f"{at}/{part}", net.multiply(f"{at}/to_{part}", y, width, width), width)
            for part in "qkv"
        )
        heads = {"q_num_heads": sizes.heads, "kv_num_heads": sizes.heads}
        y = net.add("Attention", f"{at}/attended", [q, k, v], is_causal=1, **heads)
        y = net.bias(f"{at}/mixed", net.multiply(f"{at}/mix", y, width, width), width)
        x = net.add("Add", f"{at}/sum_1", [x, y])
        y = net.norm(f"{at}/norm_2", x, centred=True)
        y = net.bias(f"{at}/wide", net.multiply(f"{at}/widen", y, width, wide), wide)
        y = net.add("Gelu", f"{at}/gelu", [y])
        y = net.bias(f"{at}/narrowed", net.multiply(f"{at}/narrow", y, wide, width), width)
        x = net.add("Add", f"{at}/sum_2", [x, y])
    turned = net.add("Transpose", "turned", [table], perm=[1, 0])
    return net.finish(net.add("MatMul", "logits", [net.norm("last", x, centred=True), turned]))


def make_llama(sizes: Sizes) -> bytes:
    """A Llama as an ONNX file."""
    net, width, wide = _Network(sizes), sizes.features, 11 * sizes.features // 4
    size, shared = width // sizes.heads, sizes.heads // SHARING
    rates = BASE ** (-np.arange(0, size, 2) / size)
    angles = np.outer(np.arange(sizes.context), rates)
    tables = [net.put("cosines", np.cos(angles)), net.put("sines", np.sin(angles))]
    counts = {"q": sizes.heads, "k": shared, "v": shared}
    x = net.add("Gather", "embedded", [net.draw("table", sizes.vocabulary, width), "ids"])
    for at in range(sizes.layers):
        y = net.norm(f"{at}/norm_1", x, centred=False)
        parts = {
            part: net.multiply(f"{at}/{part}", y, width, count * size)
            for part, count in counts.items()
        }
        for part in "qk":
            parts[part] = net.add(
                "RotaryEmbedding",
                f"{at}/{part}_turned",
                [parts[part], *tables],
                num_heads=counts[part],
            )
        heads = {"q_num_heads": counts["q"], "kv_num_heads": shared}
        y = net.add("Attention", f"{at}/attended", list(parts.values()), is_causal=1, **heads)
        x = net.add("Add", f"{at}/sum_1", [x, net.multiply(f"{at}/mix", y, width, width)])
        y = net.norm(f"{at}/norm_2", x, centred=False)
        gate, up = (net.multiply(f"{at}/{part}", y, width, wide) for part in ("gate", "up"))
        silu = net.add("Mul", f"{at}/silu", [gate, net.add("Sigmoid", f"{at}/sigmoid", [gate])])
        y = net.add("Mul", f"{at}/gated", [silu, up])
        x = net.add("Add", f"{at}/sum_2", [x, net.multiply(f"{at}/down", y, wide, width)])
    last = net.norm("last", x, centred=False)
    return net.finish(net.multiply("head", last, width, sizes.vocabulary))


MODELS = {"gpt": make_gpt, "llama": make_llama}


def make_task(
    kind: str,
    sizes: Sizes,
    folder: Path,
    open_evaluator: OpenEvaluator | None = None,
    calibrated: int | None = None,
) -> CompiledTask:
    """A task of a model of :data:`MODELS`, by its files in ``folder``.

    It is calibrated on batches of ``calibrated`` windows (None: the task's), on the CPU where
    ``open_evaluator`` says nothing else."""
    rng = np.random.default_rng(2)
    (folder / "model.onnx").write_bytes(MODELS[kind](sizes))
    # The next token is mostly the one after it in a circle: there is something to learn.
    steps = np.where(rng.random(sizes.tokens) < 0.8, 1, rng.integers(0, 9, sizes.tokens))
    (np.cumsum(steps) % sizes.vocabulary).astype("<u2").tofile(folder / "tokens.bin")
    path = folder / "task.toml"
    path.write_text(
        TASK.format(
            kind=kind, batch=sizes.batch, context=sizes.context, vocabulary=sizes.vocabulary
        )
    )
    file = load_task(path)
    found = profile_task(
        replace(file, batch=calibrated or file.batch),
        open_evaluator=open_evaluator or choose_evaluator("cpu"),
    )
    return compile_task(replace(file, exponents=found.exponents))
