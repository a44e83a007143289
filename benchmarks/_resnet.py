"""ResNet-18 of torchvision on the MNIST subset, on both sides.

All is as torchvision has it but the stem: a convolution of 3 x 3 at stride 1 over the one channel
of an image, in place of 7 x 7 at stride 2 over three.  Images of 28 x 28 leave the whole stem as
14 x 14 then, and the four stages make 14, 7, 4 and 2 of it; with the stem of ImageNet the last two
stages would see one place.  11.2 million parameters, of which a step does 6.6 times 10^8 products
an image.
"""

from __future__ import annotations

import copy
import gzip
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from _models import EXAMPLES
from torch import nn, optim
from torchvision.models import resnet18

import vtrain
from vtrain.spec.order import compute_batch_indices
from vtrain.spec.samples import Samples
from vtrain.train.task import CompiledTask
from vtrain.train.written import load_test

BATCH = 32
STEPS = 560
"""Two epochs of the 9,000 images, in batches of 32."""
RATE = 0.05
WARM_UP = 15
"""Steps in which the rate grows to its largest, before it falls to 0 as a cosine."""
MOMENTUM = 0.9
DECAY = 5e-4
CALIBRATION_STEPS = 20
MEAN, DEVIATION = 0.1307, 0.3081
"""Of MNIST's pixels, by which people normalise."""

Images = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


@cache
def load_images(part: str) -> Images:
    """Normalised images [samples, 1, 28, 28] and labels of "train" or "test"."""
    folder = EXAMPLES / "data"
    images, labels = (
        gzip.decompress((folder / f"{part}-{name}-ubyte.gz").read_bytes())
        for name in ("images-idx3", "labels-idx1")
    )
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    x = (pixels.astype(np.float32) / 255 - MEAN) / DEVIATION
    return x.astype(np.float32), np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)


def make_network(seed: int) -> nn.Module:
    """With the initial weights of this seed."""
    torch.manual_seed(seed)
    network: nn.Module = resnet18(num_classes=10)
    stem = nn.Conv2d(1, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    network.conv1 = stem
    return network


def make_optimizer(network: nn.Module, steps: int) -> tuple[optim.Optimizer, Any]:
    """SGD with momentum and weight decay, and its schedule."""
    optimizer = optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)

    def factor(step: int) -> float:
        if step < WARM_UP:
            return (step + 1) / WARM_UP
        return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(steps - WARM_UP, 1)))

    return optimizer, optim.lr_scheduler.LambdaLR(optimizer, factor)


@dataclass(frozen=True)
class Both:
    """One seed: the module with its initial weights, and the task that was made of it."""

    seed: int
    network: nn.Module
    task: CompiledTask

    def make_torch_step(self, network: nn.Module) -> Callable[[int], None]:
        """Step ``index`` of ``network`` on the task's own batch."""
        spec = self.task.spec
        optimizer, scheduler = make_optimizer(network, spec.steps)
        x, y = map(torch.from_numpy, load_images("train"))
        network.train()

        def step(index: int) -> None:
            chosen = compute_batch_indices(self.seed, len(x), spec.batch, index)
            batch = torch.from_numpy(chosen)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()

        return step

    @property
    def test(self) -> Samples:
        """The test images, in the form of the task's own."""
        assert self.task.file is not None  # from_torch leaves it
        test = load_test(self.task.file)
        assert test is not None
        return test

    def copy_network(self) -> nn.Module:
        """The module as it was at first."""
        return copy.deepcopy(self.network)


def make_both(seed: int, steps: int = STEPS, **options: Any) -> Both:
    """Weights and order of a seed; ``options`` go to ``vtrain.from_torch``."""
    network = make_network(seed)
    optimizer, scheduler = make_optimizer(network, steps)
    task = vtrain.from_torch(
        network,
        torch.zeros(2, 1, 28, 28),
        data=load_images("train"),
        test=load_images("test"),
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        scheduler=scheduler,
        batch=BATCH,
        steps=steps,
        seed=seed,
        commit_every=steps,
        checkpoint_every=steps,
        calibration_steps=CALIBRATION_STEPS,
        **options,
    )
    return Both(seed, network, task)


def measure_network(network: nn.Module) -> float:
    """Accuracy in percent on the test images, by running statistics."""
    x, y = map(torch.from_numpy, load_images("test"))
    network.eval()
    with torch.no_grad():
        logits = torch.cat([network(x[start : start + 100]) for start in range(0, len(x), 100)])
    return 100 * float((logits.argmax(1) == y).double().mean())
