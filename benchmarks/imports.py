"""What ``vtrain.from_torch`` takes: models that people have, and the layers of ``torch.nn``.

A model works if it trains 20 steps, if an audit replays all of them to the same bits, and if its
weights give the module, and the exported ONNX file in onnxruntime, the loss that the run has.  A
layer works if the same is so of a module that has it between two others, after two steps.  Of all
others every reason is listed.  convnext_tiny has stochastic_depth_prob=0.0: torchvision's
stochastic depth draws once for each sample, which is refused, as all random draws are but dropout's
of each element.

Predicted before measuring: eleven of the twelve models, and half of the layers.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _harness as harness
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from tests.torch_layers import LAYERS, list_layers, list_losses, make_layer_case
from tests.zoo import CLOSE, MODELS, Case, make_model, walk
from vtrain.errors import UnsupportedError, VtrainError
from vtrain.train.torch_hooks.losses import read_loss

LEAST_MODELS = 9
LAYER_STEPS = 2
LOSS_ARGUMENTS = {"AdaptiveLogSoftmaxWithLoss": (10, 20, [5]), "LinearCrossEntropyLoss": (4, 3)}
LOSSES = ("loss", "module's loss", "ONNX file's loss")
GLANCE = ("nanoGPT", "ViTForImageClassification", "mobilenet_v2")


def try_case(make: Callable[[], Case], **options: Any) -> dict[str, Any]:
    """How far a case gets: its losses, or each reason why not."""
    begin = time.perf_counter()
    key = Ed25519PrivateKey.generate()
    row: dict[str, Any] = {"works": "no"} | dict.fromkeys((*LOSSES, "why not"), "")
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            walked = walk(make(), Path(folder) / "run", key, **options)
    except UnsupportedError as error:
        row["why not"] = "; ".join(map(str, error.problems))
    except VtrainError as error:
        row["why not"] = str(error)
    else:
        found = (walked.loss, walked.module_loss, walked.onnx_loss)
        others = [
            name
            for name, loss in zip(LOSSES, found, strict=True)
            if not abs(loss - walked.loss) <= CLOSE
        ]
        row |= {name: f"{loss:.4f}" for name, loss in zip(LOSSES, found, strict=True)}
        row |= {"works": "no" if others else "yes"}
        row |= {"why not": f"the {' and the '.join(others)} is another" if others else ""}
    row["why not"] = row["why not"].replace("|", "or").replace("\n", " ")
    row["s"] = f"{time.perf_counter() - begin:.1f}"
    return row


def count(rows: list[dict[str, Any]]) -> int:
    """How many work."""
    return sum(row["works"] == "yes" for row in rows)


def measure_models(quick: bool) -> Iterator[harness.Result]:
    """The models, one after the other."""
    rows: list[dict[str, Any]] = []
    names = GLANCE if quick else tuple(MODELS)
    for name in names:
        rows.append({"model": name} | try_case(lambda name=name: make_model(name)))  # type: ignore[misc]
        done = len(rows) == len(names) and not quick
        target = harness.at_least(count(rows), LEAST_MODELS) if done else None
        targets = {f"models that work, of {len(names)}": target} if target else {}
        yield harness.Result({"models": rows}, targets)


def measure_layers(quick: bool) -> Iterator[harness.Result]:
    """The layers of torch.nn, and its losses."""
    rows: list[dict[str, Any]] = []
    names = list_layers()[:: 16 if quick else 1]
    options = {"steps": LAYER_STEPS, "calibration_steps": LAYER_STEPS}
    for name in names:
        if name not in LAYERS:
            rows.append({"layer": name} | dict.fromkeys(("works", "why not"), "not tried"))
            continue
        row = try_case(lambda name=name: make_layer_case(name), **options)  # type: ignore[misc]
        rows.append({"layer": name, "works": row["works"], "why not": row["why not"]})
    figures: dict[str, Any] = {
        "layers that work": count(rows),
        "layers": len(rows),
        "layers of torch.nn": rows,
    }
    yield harness.Result(figures)
    yield harness.Result(figures | {"losses of torch.nn": list_loss_rows()})


def list_loss_rows() -> list[dict[str, Any]]:
    """Which losses can be had, with their defaults."""
    rows = []
    for name in list_losses():
        try:
            read_loss(getattr(nn, name)(*LOSS_ARGUMENTS.get(name, ())))
        except UnsupportedError as error:
            (problem,) = error.problems
            rows.append({"loss": name, "works": "no", "instead": problem.instead})
        else:
            rows.append({"loss": name, "works": "yes", "instead": ""})
    return rows


if __name__ == "__main__":
    harness.main("imports", {"models": measure_models, "layers": measure_layers})
