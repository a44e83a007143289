"""Trained weights as torch has them."""

from __future__ import annotations

from pathlib import Path

import torch

from vtrain.train.deliver import read_weights

StateDict = dict[str, torch.Tensor]


def read_state_dict(run: Path, step: int | None = None) -> StateDict:
    """What a module's ``load_state_dict`` takes, from a checkpoint of a run directory: names, tied
    tensors and buffers are those of the module that the task was made of."""
    return {
        name: torch.from_numpy(values.copy()) for name, values in read_weights(run, step).items()
    }
