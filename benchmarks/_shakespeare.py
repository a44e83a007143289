"""The language models of examples/shakespeare on both sides: as tasks, and trained by torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tomlkit
import torch
from _harness import ROOT
from blake3 import blake3

from vtrain.engines.registry import choose_apply, choose_evaluator
from vtrain.graph.model import Dropout, find_mask_factor
from vtrain.graph.onnx_import import import_onnx
from vtrain.ops import TABLE
from vtrain.spec.order import compute_batch_indices
from vtrain.spec.samples import Samples
from vtrain.train.data import load_samples
from vtrain.train.schedule import Curve
from vtrain.train.task import (
    CompiledTask,
    TaskFile,
    compile_task,
    load_task,
    profile_task,
)
from vtrain.wire.graph import Attrs, Node, Ref, TensorType
from vtrain.wire.record import MAX_STEPS

EXAMPLES = ROOT / "examples" / "shakespeare"
F = torch.nn.functional
CHUNK = 64
"""Windows that torch evaluates at once."""


def load_example(name: str) -> Any:
    """A module of the examples, which are no package: "gpt" or "llama"."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


@dataclass(frozen=True)
class Variant:
    """An example with fields of its own: ``layers`` of the model, ``steps`` of the run, the share
    that is dropped (of the GPT alone), the seed of weights, order and masks, and what else the
    task's tables have (``settings``, by table and key)."""

    model: str = "gpt"
    seed: int = 0
    steps: int = 1000
    layers: int = 4
    dropout: float = 0.0
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def make_network(self) -> torch.nn.Module:
        """The module with the initial weights of this seed."""
        module, gpt = load_example(self.model), load_example("gpt")
        kept = module.LAYERS
        module.LAYERS = self.layers
        try:
            torch.manual_seed(self.seed)
            characters, _ = gpt.read_ids()
            kind = module.GPT if self.model == "gpt" else module.Llama
            more = {"dropout": self.dropout} if self.dropout else {}
            network: torch.nn.Module = kind(len(characters), **more).eval()
            return network
        finally:
            module.LAYERS = kept

    def open(self, folder: Path) -> Both:
        """The task in ``folder``, a file and its model."""
        gpt = load_example("gpt")
        _, ids = gpt.read_ids()
        ids.tofile(folder / "tokens.bin")
        network = self.make_network().train(self.dropout > 0)
        gpt.export(network, folder / f"{self.model}.onnx")
        path = folder / f"{self.model}.toml"
        document = tomlkit.parse((EXAMPLES / path.name).read_text()).unwrap()
        document["task"] |= {"seed": self.seed, "steps": self.steps}
        for table, values in self.settings.items():
            document[table] |= values
        path.write_text(tomlkit.dumps(document))
        return Both(self, load_task(path))


@dataclass(frozen=True)
class Both:
    """A variant as its task, and what torch needs to train on the same windows."""

    variant: Variant
    file: TaskFile

    @cached_property
    def train(self) -> Samples:
        """The windows to train on."""
        return load_samples(self.file.data)

    @cached_property
    def test(self) -> Samples:
        """The windows to measure on."""
        assert self.file.test is not None  # the examples have one
        return load_samples(self.file.test)

    def gather_step(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The windows of a step, those that the task's order draws, and what follows each place."""
        file, count = self.file, self.train.spec.samples
        return gather(self.train, compute_batch_indices(file.seed, count, file.batch, step))

    def compile(self) -> CompiledTask:
        """The task, calibrated anew where the file's exponents are of another model."""
        file = self.file
        if self.variant.layers != 4 or self.variant.dropout or self.variant.settings:
            file = replace(
                file, exponents=profile_task(file, open_evaluator=choose_evaluator("cpu")).exponents
            )
        return compile_task(file)

    def digest_fp32(self) -> str:
        """A digest of what determines a run of torch: initial weights by name, and the task's part
        in it. Versions of torch round differently, which is no other run."""
        file, weights = self.file, self.variant.make_network().state_dict()
        digest = blake3()
        for name in sorted(weights):
            digest.update(f"{name} {tuple(weights[name].shape)}\n".encode())
            digest.update(weights[name].numpy().tobytes())
        settings = (file.seed, file.steps, file.batch, file.optimizer, self.variant.dropout)
        digest.update(repr(settings).encode())
        return digest.hexdigest()

    def make_optimizer(self, network: torch.nn.Module) -> torch.optim.Optimizer:
        """AdamW as the task has it, its rate to be set for each step."""
        table = self.file.optimizer
        decayed = [p for p in network.parameters() if p.dim() == 2]
        others = [p for p in network.parameters() if p.dim() != 2]
        groups = [
            {"params": decayed, "weight_decay": float(table.weight_decay)},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            groups,
            lr=0.0,
            betas=(float(table.betas[0]), float(table.betas[1])),
            eps=float(table.eps),
        )

    def measure_torch(self, network: torch.nn.Module) -> float:
        """Nats a place over the windows to measure on."""
        total = 0.0
        count = self.test.spec.samples
        with torch.no_grad():
            for first in range(0, count, CHUNK):
                index = np.arange(first, min(first + CHUNK, count))
                ids, labels = gather(self.test, index)
                logits = network(ids).flatten(0, 1)
                total += float(F.cross_entropy(logits, labels.flatten(), reduction="sum"))
        places: int = load_example("gpt").CONTEXT
        return total / (count * places)

    def make_torch_step(self, network: torch.nn.Module, *, fixed: bool = False) -> Any:
        """A function of the step that trains ``network`` on its windows (``fixed``: on those of
        step 0, drawn beforehand) and returns the loss before it."""
        optimizer = self.make_optimizer(network)
        clip = float(self.file.optimizer.clip_norm or 0)
        curve = self.file.optimizer.curve
        masks = Masks(self, network)
        first = self.gather_step(0)

        def step(index: int = 0) -> torch.Tensor:
            ids, labels = first if fixed else self.gather_step(index)
            for group in optimizer.param_groups:
                group["lr"] = read_rate(curve, index)
            optimizer.zero_grad()
            with masks.of_step(index):
                loss = F.cross_entropy(network(ids).flatten(0, 1), labels.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            if clip:
                torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
            optimizer.step()
            return loss

        return step


class Masks:
    """Gives torch the masks of the task: layers of dropout do nothing by themselves, as in use, and
    what they put out is multiplied by the law's mask of the layer's number and the step."""

    def __init__(self, both: Both, network: torch.nn.Module) -> None:
        file, self._samples = both.file, both.train
        layers = import_onnx(file.model).layers
        self._keeps = [layer.keep for layer in layers if isinstance(layer, Dropout)]
        self._seed = file.seed.to_bytes(8, "little")
        self._apply = choose_apply("cpu")  # the bits of the law, sooner
        self._step: int | None = None
        self._site = 0
        for module in network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.register_forward_hook(self._mask)

    @contextmanager
    def of_step(self, step: int) -> Iterator[None]:
        """Forward passes inside are of this step; outside nothing is dropped."""
        self._step, self._site = step, 0
        yield
        self._step = None
        assert self._site == len(self._keeps), "torch has other layers of dropout than the task"

    def _mask(
        self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], x: torch.Tensor
    ) -> torch.Tensor | None:
        assert not module.training, "torch would draw masks of its own"
        if self._step is None:
            return None
        mask = self.compute(self._step, self._site, tuple(x.shape))
        self._site += 1
        return x * mask

    def compute(self, step: int, site: int, shape: tuple[int, ...]) -> torch.Tensor:
        """The mask of a layer in a step (from 0), as the factors that the law has."""
        keep = self._keeps[site]
        value, exponent = find_mask_factor(keep)
        attrs: Attrs = {
            "seed": self._seed,
            "site": site,
            "keep": keep,
            "value": value,
            "exponent": exponent,
            "shape": shape,
        }
        counter = TensorType("i64", (), 0, 0, MAX_STEPS)
        out = TABLE["dropout_mask"].infer(attrs, [counter])
        node = Node("mask", "dropout_mask", attrs, (Ref(0),), (out,))
        mask = self._apply(node, [np.asarray(step, np.int64)], {}, self._samples)
        return torch.from_numpy(mask).float() * 2.0**-exponent


def gather(samples: Samples, index: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of the windows and, for each place, the id that follows."""
    ids, labels = (torch.from_numpy(samples.gather(part, index)).long() for part in ("x", "y"))
    return ids, labels


def read_rate(curve: Curve, step: int) -> float:
    """The rate of a step, before the law rounds it."""
    knots = [knot for knot in curve.knots if knot[0] <= step]
    start, rate = knots[-1]
    if not curve.linear or len(knots) == len(curve.knots):
        return float(rate)
    end, then = curve.knots[len(knots)]
    return float(rate + (then - rate) * (step - start) / (end - start))


def perturb(network: torch.nn.Module, seed: int, share: float) -> None:
    """Multiply each weight by 1 + ``share`` times a normal number."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1 + share * torch.randn(weight.shape, generator=generator))
