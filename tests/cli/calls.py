"""A small task, and what a command line came to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

TASK = """
[task]
name = "tiny"
seed = 3
steps = 12
batch = 4
commit_every = 2
checkpoint_every = 4

[model]
onnx = "model.onnx"
loss = "cross_entropy"

[data]
kind = "npy"
x = "x.npy"
y = "y.npy"
count = 30

[data.prepare]
scale = "1/255"

[test]
kind = "npy"
x = "x.npy"
y = "y.npy"
start = 30

[optimizer]
kind = "sgd"
momentum = 0.9
learning_rate = 0.5

[format]
calibration_steps = 4
"""

Call = Callable[..., tuple[int, str, str]]
"""Runs a command line: exit code, stdout, stderr."""


def parse(text: str) -> dict[str, Any]:
    value = json.loads(text)
    assert isinstance(value, dict)
    return value
