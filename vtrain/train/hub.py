"""A folder for a hub of models: weights under the module's names, ONNX, the claim, a model card.

The card says what was trained, under which task id, to which root, and how whoever has the run
checks that these are its weights.  Reading it shows nothing: that is what verifying is for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from vtrain.attest.claims import compute_claim_digest
from vtrain.commit.files import compute_entry, making_folder, write_atomic
from vtrain.errors import RunError
from vtrain.graph.weights import export_onnx, export_safetensors
from vtrain.train.deliver import (
    EXPORT_ONNX,
    EXPORT_SAFETENSORS,
    compute_mean_loss,
    has_classes,
    read_model,
)
from vtrain.train.layout import RunPaths
from vtrain.train.signed import read_claim, read_claimed_state, read_leaves
from vtrain.wire.claim import encode_signed_claim
from vtrain.wire.json_text import decode_json
from vtrain.wire.record import decode_record

CARD: Final = "README.md"
CLAIM: Final = "claim.cbor"
INSTALL: Final = (
    "vtrain is on no package index yet: install it from a checkout of its repository (`make`), or "
    "from a wheel of it (`pip install vtrain-*.whl`)."
)
"""How whoever reads a card comes to have vtrain."""
_TAGS: Final = ("vtrain", "verifiable-training")


def export_hub(
    run: Path, out: Path, step: int | None = None, *, module: Any = None, name: str = ""
) -> tuple[Path, Path]:
    """Write a checkpoint of ``run`` into the new folder ``out``, all of it or nothing; the paths of
    the ONNX model and the safetensors.

    ``module`` is that of torch which the task was made of: its ``config``, where it has one as
    those of transformers do, is written beside its weights, so that ``from_pretrained`` reads them.
    ``name`` is the card's title, which is the folder's name unless it is given.
    RunError where ``out`` exists, or for a module whose names are others; else as of
    :func:`vtrain.train.deliver.export_run`.
    """
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise RunError("exists already, and is not replaced: name a new folder", where=str(out))
    paths = RunPaths(run)
    signed = read_claim(paths)
    original, model, params = read_model(run, step)
    weights = export_safetensors(original, model, params, kind="pt")
    if module is not None:
        _check_names(module, weights)
    with making_folder(out) as making:
        write_atomic(making / EXPORT_ONNX, [export_onnx(original, model, params)])
        write_atomic(making / EXPORT_SAFETENSORS, [weights])
        write_atomic(making / CLAIM, [encode_signed_claim(signed)])
        library = _write_config(module, making)
        digest = compute_entry([weights]).digest.hex()
        card = _write_card(paths, step, digest, library, name or out.resolve().name)
        write_atomic(making / CARD, [card.encode()])
    return out / EXPORT_ONNX, out / EXPORT_SAFETENSORS


def _check_names(module: Any, weights: bytes) -> None:
    length = int.from_bytes(weights[:8], "little")
    found = set(decode_json(weights[8 : 8 + length], "weights")) - {"__metadata__"}
    wanted = set(module.state_dict())
    if found != wanted:
        other = sorted(found ^ wanted)[0]
        raise RunError(
            f"is another module than the task was made of: {other} is not in both", where="module"
        )


def _write_config(module: Any, folder: Path) -> str:
    """Write the configuration of a module of transformers; the library that reads the folder."""
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "save_pretrained"):
        return ""
    config = deepcopy(config)
    config.architectures = [type(module).__name__]
    config.save_pretrained(folder)
    return "transformers"


def _write_card(paths: RunPaths, step: int | None, digest: str, library: str, name: str) -> str:
    claim = read_claim(paths).claim
    task, graph, _ = read_claimed_state(paths, step)
    step = claim.log_size if step is None else step
    leaves = read_leaves(paths, claim)
    record = decode_record(leaves[step - 1]) if step else None
    root = task.initial_state_root if record is None else record.state_root
    unit = "nats a label" if has_classes(graph) else "squared error a sample"
    rows: Mapping[str, str] = {
        "task id": f"`{claim.task_id.hex()}`",
        "steps": f"{step:,} of {task.steps:,}, of {task.batch} samples each",
        "state root after them": f"`{root.hex()}`",
        "log root": f"`{claim.log_root.hex()}` (of {claim.log_size:,} steps)",
        "run id": f"`{claim.run_id.hex()}`",
        "solver's key": f"`{claim.solver.hex()}`",
        "digest of the claim": f"`{compute_claim_digest(claim).hex()}`",
        f"BLAKE3 of {EXPORT_SAFETENSORS}": f"`{digest}`",
    }
    if record is not None:
        loss = compute_mean_loss(graph, record.loss, task.batch)
        rows = {**rows, "training loss of the last step": f"{loss:.4f} {unit}"}
    again = f" --step {step}" if step != claim.log_size else ""
    title = name.replace("\n", " ").replace("`", "'")
    lines = [
        "---",
        *([f"library_name: {library}"] if library else []),
        "tags:",
        *(f"- {tag}" for tag in _TAGS),
        "---",
        "",
        f"# {title}",
        "",
        "Trained in exact integers with vtrain: every device "
        "gives the same bits, and the solver has signed a commitment to each step. This card shows "
        "nothing by itself; whoever has the run directory can check what follows.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {label} | {value} |" for label, value in rows.items()),
        "",
        "## How to verify",
        "",
        "`RUN` is the run directory, which whoever trained the model hands over; no GPU and no "
        f"torch are needed. {INSTALL}",
        "",
        f"    vtrain verify RUN --task-id {claim.task_id.hex()} --solver {claim.solver.hex()} "
        f"--claim {CLAIM}",
        "",
        "It ends with 0 and `VERIFIED`, and says how much of the run it did again (`--all`: every "
        "step). That the weights here are those of the run:",
        "",
        f"    vtrain export RUN --out again --hub{again}",
        f"    cmp again/{EXPORT_SAFETENSORS} {EXPORT_SAFETENSORS}",
        "",
        "That the task is what it should be (model, data, optimizer) is for `vtrain task check` to "
        "show of the task file that parties agreed on: its id must be the one above.",
        "",
        "## Files",
        "",
        f"- `{EXPORT_SAFETENSORS}`: the weights as float32, under the module's names, whatever "
        "type the module had; they differ from the integers by nothing below 1 and by 2^-18 at "
        "most.",
        f"- `{EXPORT_ONNX}`: the forward pass with these weights, for any size of the batch that "
        "its file allows.",
        f"- `{CLAIM}`: what the solver signed.",
    ]
    return "\n".join(lines) + "\n"
