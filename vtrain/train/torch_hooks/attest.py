"""A callback of Hugging Face's ``Trainer`` that attests an ordinary run in floats.

What the model is given in each step is hashed as it goes in, by a hook on its forward pass: the
order of the data as it was, whatever the loader, collator or seed said it would be.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from vtrain import _core
from vtrain.attest.attested import Described, compute_batch_digest, compute_weights_digest
from vtrain.attest.keys import PrivateKey
from vtrain.errors import RunError
from vtrain.train.attested import AttestedRun


class AttestCallback(TrainerCallback):
    """Writes an attested run into ``out``, by default ``attested`` in the trainer's output folder.

    It is signed with ``key`` when training ends; until then, and where it is interrupted, nothing
    is signed, and resuming from a checkpoint goes on.  RunError for several processes, each of
    which sees a part of the data, for a folder with another run, and where no step was seen.
    """

    def __init__(self, key: PrivateKey, out: Path | None = None) -> None:
        self._key, self._out = key, out
        self._run: AttestedRun | None = None
        self._hook: Any = None
        self._calls: list[Mapping[str, Described]] = []
        self.folder: Path | None = out

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **more: Any,
    ) -> None:
        """Commit to configuration and weights, and watch what goes into the model."""
        if args.world_size != 1:
            raise RunError(
                f"are {args.world_size}, each of which sees a part of the data: attest runs of one",
                where="processes",
            )
        self.folder = self._out or Path(str(args.output_dir)) / "attested"
        config = _describe_run(args, model, more)
        initial = _digest_weights(model)
        self._run = AttestedRun(self.folder, config, initial, state.global_step)
        self._hook = model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if module.training:
            values = dict(enumerate(given)) | named
            self._calls.append(_collect(_describe_all(None, values)))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Commit to what the model was given since the last step."""
        if self._run is None:
            return
        if not self._calls:
            raise RunError(
                "was not given anything that could be seen: its forward pass is called around the "
                "hooks of torch",
                where=f"the model in step {state.global_step}",
            )
        self._run.append(compute_batch_digest(self._calls))
        self._calls.clear()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Commit to the checkpoint."""
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if self._run is not None and folder.is_dir():
            self._run.add_checkpoint(folder)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **more: Any,
    ) -> None:
        """Commit to the weights, and sign."""
        if self._hook is not None:
            self._hook.remove()
        if self._run is not None:
            self._run.sign(_digest_weights(model), self._key)
            self._run = None


def _describe_run(arguments: Any, model: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    """What can be said of a loop in JSON."""
    optimizer: Any = more.get("optimizer")
    config: Any = getattr(model, "config", None)
    groups = [] if optimizer is None else optimizer.param_groups
    return {
        "arguments": arguments.to_dict(),
        "model": config.to_dict() if hasattr(config, "to_dict") else type(model).__qualname__,
        "module": type(model).__qualname__,
        "optimizer": {
            "class": type(getattr(optimizer, "optimizer", optimizer)).__qualname__,
            "groups": [
                {key: value for key, value in group.items() if key != "params"} for group in groups
            ],
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "vtrain": _core.__version__,
        },
    }


def _digest_weights(model: Any) -> bytes:
    named = model.state_dict().items()
    return compute_weights_digest(
        _collect(pair for name, value in named for pair in _describe_all(name, value))
    )


def _collect(described: Iterable[tuple[str, Described]]) -> dict[str, Described]:
    """Tensors by their names; RunError where two have one name, since one would not be signed."""
    found: dict[str, Described] = {}
    for name, tensor in described:
        if name in found:
            raise RunError(
                "is the way to two tensors: give the keys of what the model is given other names",
                where=name,
            )
        found[name] = tensor
    return found


def _describe_all(prefix: str | None, value: Any) -> Iterator[tuple[str, Described]]:
    """The tensors in what a model is given, by the way to each: keys with dots between them.  In a
    key that is text dots and backslashes follow a backslash, and so does a first digit, so that it
    is no number of a place."""
    if isinstance(value, torch.Tensor):
        yield prefix or "", _describe(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            name = str(key)
            if isinstance(key, str):
                name = name.replace("\\", "\\\\").replace(".", "\\.")
                name = f"\\{name}" if name[:1].isdigit() else name
            yield from _describe_all(name if prefix is None else f"{prefix}.{name}", item)
    elif isinstance(value, tuple | list):
        yield from _describe_all(prefix, dict(enumerate(value)))


def _describe(tensor: torch.Tensor) -> Described:
    plain = tensor.detach().to("cpu").contiguous().reshape(-1)
    data = plain.view(torch.uint8).numpy() if plain.numel() else np.empty(0, np.uint8)
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data
