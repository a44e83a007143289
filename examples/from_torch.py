"""A PyTorch module from its own training script to a verified run, and back.

Run it from the project's root:  .venv/bin/python examples/from_torch.py
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import vtrain
from vtrain.attest.keys import generate_key

DATA = Path(__file__).parent / "mnist" / "data"


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """MNIST, as a dataset of one's own would have it."""

    def __init__(self, part: str, count: int) -> None:
        images = gzip.decompress((DATA / f"{part}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((DATA / f"{part}-labels-idx1-ubyte.gz").read_bytes())
        pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)[:count]
        self.images = torch.tensor(pixels).float().div(255).sub(0.1307).div(0.3081)
        self.labels = np.frombuffer(labels, np.uint8, offset=8)[:count].tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], self.labels[index]


class Net(nn.Module):
    """A small CNN with dropout."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), activation(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(256, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).flatten(1))  # type: ignore[no-any-return]


def make_task(module: nn.Module) -> vtrain.CompiledTask:
    """What a training script has, handed over."""
    weights = [p for p in module.parameters() if p.ndim > 1]
    biases = [p for p in module.parameters() if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    return vtrain.from_torch(
        module,
        torch.zeros(1, 1, 28, 28),
        data=Digits("train", 2000),
        test=Digits("test", 500),
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60),
        batch=50,
        steps=60,
    )


@torch.no_grad()
def count_right(module: nn.Module, digits: Digits) -> float:
    """Share of right answers, by torch."""
    guesses = module.eval()(digits.images).argmax(1)
    return float((guesses == torch.tensor(digits.labels)).float().mean())


def main() -> None:
    """Everything in a temporary folder; takes some seconds."""
    torch.manual_seed(0)
    try:
        make_task(Net(nn.Softplus))
    except vtrain.UnsupportedError as error:
        print(error)

    module = Net()
    task = make_task(module)
    print(task)
    with tempfile.TemporaryDirectory() as folder:
        # The same task as files, with the same id: for whoever has no torch.
        path = task.write(Path(folder) / "task")
        print(f"{path.name} has the same id: {vtrain.compile(path).task_id == task.task_id}")

        generate_key(Path(folder) / "solver.pem")
        run = vtrain.train(task, Path(folder) / "run", key=Path(folder) / "solver.pem")
        report = vtrain.verify(run.path, samples=1, task_id=task.task_id)
        print(f"{run.steps} steps, one stretch replayed: {report.verdict}")

        module.load_state_dict(run.state_dict())
        print(f"in torch again: {100 * count_right(module, Digits('test', 500)):.0f} % right")


if __name__ == "__main__":
    main()
