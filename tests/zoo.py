"""Models and layers that people have, small and random: which of them ``vtrain.from_torch`` takes.

``walk`` takes one all the way: 20 steps, an audit of all of them, and the weights back in the
module, and in an ONNX file, with the same loss.  Tests walk with a few; ``benchmarks/imports.py``
with all, for the table in docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn, optim
from torch.nn import functional

import vtrain
from tests.modules import (
    PLACES,
    VOCABULARY,
    Gpt,
    make_gpt2,
    make_ids,
    make_llama,
    make_mlp,
)
from vtrain.attest.keys import PrivateKey
from vtrain.train.deliver import evaluate
from vtrain.train.layout import RunPaths
from vtrain.train.runner import RunSummary
from vtrain.train.signed import read_claimed_state
from vtrain.train.task import CompiledTask

STEPS: Final = 20
BATCH: Final = 4
SAMPLES: Final = 12
CLASSES: Final = 3
CLOSE: Final = 1e-2
"""How far the loss of the module with the weights that came back, and that of the ONNX file, may be
from the run's, in nats."""


@dataclass(frozen=True)
class Case:
    """What ``from_torch`` is given of one module."""

    module: nn.Module
    example: Any
    data: Any
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Walked:
    """A run that was verified, and losses over all samples: of the run's weights, of the module's,
    and of the exported ONNX file's."""

    task: CompiledTask
    run: RunSummary
    loss: float
    module_loss: float
    onnx_loss: float


def make_task(case: Case, **more: Any) -> CompiledTask:
    """The task of a case, by AdamW."""
    given: dict[str, Any] = {
        "optimizer": optim.AdamW(case.module.parameters(), lr=0.003),
        "loss": nn.CrossEntropyLoss(),
        "batch": BATCH,
        "steps": STEPS,
        "calibration_steps": STEPS,
    }
    options = given | dict(case.options) | more
    return vtrain.from_torch(case.module, case.example, data=case.data, **options)


def walk(case: Case, folder: Path, key: PrivateKey, **more: Any) -> Walked:
    """Train, verify every step, load the weights into the module, and export them beside the run's
    folder as ONNX."""
    task = make_task(case, **more)
    run = vtrain.train(task, folder, key=key, threads=1)
    report = vtrain.verify(folder, all=True, task_id=task.task_id, threads=1)
    assert report.verdict == "verified", report
    case.module.load_state_dict(run.state_dict())
    _, graph, state = read_claimed_state(RunPaths(run.path), None)
    ours = evaluate(graph, state, task.samples).loss
    file, _ = vtrain.export(run, folder.with_name(f"{folder.name}-exported"))
    return Walked(task, run, ours, measure(case.module, task), measure_onnx(file, task))


def measure(module: nn.Module, task: CompiledTask) -> float:
    """The module's own loss over all samples, in use."""
    x, y = read_all(task)
    with torch.no_grad():
        given = module.eval()(x)
    return compute_loss(getattr(given, "logits", given), y)


def measure_onnx(file: Path, task: CompiledTask) -> float:
    """The loss of an exported file over all samples, by onnxruntime: the first half at once and
    each of the others alone, so that no batch is of the extent of the example or of the task.  The
    shapes that the file declares are those that it has."""
    x, y = read_all(task)
    onnx.shape_inference.infer_shapes(onnx.load(file), strict_mode=True)
    half = len(x) // 2
    assert half > BATCH
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    inputs = x.numpy().astype(_INPUT_TYPES[given.type])
    batches = np.split(inputs, range(half, len(inputs)))
    logits = [session.run(None, {given.name: batch})[0] for batch in batches]
    return compute_loss(torch.from_numpy(np.concatenate(logits)), y)


_INPUT_TYPES: Final = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


def read_all(task: CompiledTask) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples of a task, inputs as the module takes them."""
    samples = task.samples
    index = np.arange(samples.spec.samples)
    x, y = (torch.from_numpy(samples.gather(part, index)) for part in ("x", "y"))
    if samples.spec.x_exponent or x.dtype not in (torch.int32, torch.int64):
        x = x.float() * 2.0**-samples.spec.x_exponent
    return x, y


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The mean cross-entropy of all labels that count, in nats."""
    return float(functional.cross_entropy(logits.flatten(0, -2), labels.flatten().long()))


# --- whole models


def make_tokens(count: int = 120) -> np.ndarray[Any, Any]:
    """Each depends on the one before."""
    return (np.arange(count) ** 2 // 3 % VOCABULARY).astype(np.uint16)


def make_images(extent: int, channels: int = 3) -> tuple[np.ndarray[Any, Any], ...]:
    """Stripes of a frequency that is the label, in noise."""
    rng = np.random.default_rng(4)
    labels = np.arange(SAMPLES) * 7 % CLASSES
    along = np.arange(extent) / extent
    stripes = np.cos(2 * np.pi * (1 + labels[:, None]) * along)[:, None, None, :]
    noise = rng.normal(0, 0.3, (SAMPLES, channels, extent, extent))
    return (stripes + noise).astype(np.float32), labels


def of_language(module: nn.Module) -> Case:
    """A causal model of tokens."""
    return Case(module, {"input_ids": make_ids(2)}, make_tokens(), {"clip_norm": 1.0})


def of_images(module: nn.Module, extent: int) -> Case:
    """A classifier of images with three channels."""
    images, labels = make_images(extent)
    return Case(module, torch.from_numpy(images[:2]), (images, labels))


_SMALL: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": PLACES,
}
"""Of a configuration of ``transformers``."""


def make_qwen2() -> nn.Module:
    """Heads share keys; queries, keys and values have biases."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**_SMALL, num_key_value_heads=2, bos_token_id=0, eos_token_id=0)
    model: nn.Module = Qwen2ForCausalLM(config)
    return model


def make_mistral() -> nn.Module:
    """A place attends to the three before it."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        **_SMALL, num_key_value_heads=2, sliding_window=4, bos_token_id=0, eos_token_id=0
    )
    model: nn.Module = MistralForCausalLM(config)
    return model


def make_gpt_neox() -> nn.Module:
    """A quarter of each head has positions; attention and MLP read the same."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(**_SMALL | {"hidden_size": 32}, bos_token_id=0, eos_token_id=0)
    model: nn.Module = GPTNeoXForCausalLM(config)
    return model


def make_bert() -> Case:
    """Its own dropout, and row 0 of the table, of padding, not trained: as the configuration has
    it.  Two places of each sample are hidden."""
    from transformers import BertConfig, BertForMaskedLM

    module: nn.Module = BertForMaskedLM(BertConfig(**_SMALL))
    rng = np.random.default_rng(6)
    ids = make_ids(SAMPLES).numpy() % (VOCABULARY - 1)
    labels = np.full_like(ids, -100)
    for row, (hidden, label) in enumerate(zip(ids, labels, strict=True)):
        places = rng.permutation(PLACES)[:2]
        label[places] = ids[row, places]
        hidden[places] = VOCABULARY - 1
    data = {"input_ids": ids, "labels": labels}
    return Case(module, {"input_ids": torch.from_numpy(ids[:2])}, data)


def make_vit() -> Case:
    """Patches and a token of the model's own."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {key: value for key, value in _SMALL.items() if key.startswith(("h", "i", "num"))}
    sizes |= {"image_size": 8, "patch_size": 4, "num_labels": CLASSES}
    config = ViTConfig(**sizes)
    module: nn.Module = ViTForImageClassification(config)
    case = of_images(module, 8)
    return Case(module, {"pixel_values": case.example}, case.data)


def make_resnet18() -> Case:
    """As torchvision has it, for images of 32 x 32."""
    from torchvision.models import resnet18

    return of_images(resnet18(num_classes=CLASSES), 32)


def make_mobilenet_v2() -> Case:
    """A quarter as wide, with three of seven kinds of blocks."""
    from torchvision.models import MobileNetV2

    blocks = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2]]
    module = MobileNetV2(CLASSES, width_mult=0.25, inverted_residual_setting=blocks)
    return of_images(module, 32)


def make_convnext() -> Case:
    """Two stages of one block each.  No block is left out by chance: torchvision draws of whole
    samples, and what is drawn by rows cannot be had."""
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)]
    module = ConvNeXt(blocks, stochastic_depth_prob=0.0, layer_scale=0.5, num_classes=CLASSES)
    return of_images(module, 32)


def make_vgg11_bn() -> Case:
    """An eighth as wide; one place is pooled to 7 x 7."""
    from torchvision.models.vgg import VGG, make_layers

    widths: list[str | int] = [8, "M", 16, "M", 32, 32, "M", 64, 64, "M", 64, 64, "M"]
    module = VGG(make_layers(widths, batch_norm=True), num_classes=CLASSES)
    module.classifier[0] = nn.Linear(64 * 7 * 7, 32)
    module.classifier[3] = nn.Linear(32, 32)
    module.classifier[6] = nn.Linear(32, CLASSES)
    return of_images(module, 32)


def make_nanogpt() -> Case:
    """Tied, with dropout, and more positions than places."""
    return Case(Gpt(0.1, positions=PLACES + 2), make_ids(2), make_tokens())


def make_shared() -> Case:
    """An MLP with one layer in two places."""
    rows = np.random.default_rng(8).normal(0, 1, (SAMPLES, 5)).astype(np.float32)
    return Case(make_mlp(5, CLASSES), torch.from_numpy(rows[:2]), (rows, rows.argmax(1) % CLASSES))


MODELS: Final[Mapping[str, Callable[[], Case]]] = {
    "nanoGPT": make_nanogpt,
    "GPT2LMHeadModel": lambda: of_language(make_gpt2(resid_pdrop=0.1)),
    "LlamaForCausalLM": lambda: of_language(make_llama()),
    "Qwen2ForCausalLM": lambda: of_language(make_qwen2()),
    "MistralForCausalLM": lambda: of_language(make_mistral()),
    "GPTNeoXForCausalLM": lambda: of_language(make_gpt_neox()),
    "BertForMaskedLM": make_bert,
    "ViTForImageClassification": make_vit,
    "resnet18": make_resnet18,
    "mobilenet_v2": make_mobilenet_v2,
    "convnext_tiny": make_convnext,
    "vgg11_bn": make_vgg11_bn,
}


def make_model(name: str) -> Case:
    """One of :data:`MODELS`, the same each time."""
    torch.manual_seed(3)
    return MODELS[name]()
