"""``vtrain export``: hand over the trained model as floats."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    VtrainCommand,
    existing_folder,
    json_option,
    print_pairs,
)


@click.command("export", cls=VtrainCommand)
@existing_folder("run")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where to write; a model.onnx and a model.safetensors that are there are replaced, but "
    "with --hub.",
)
@click.option(
    "--hub",
    is_flag=True,
    help="Make DIR a folder for a hub of models, with a model card: task id, root, how to verify.",
)
@click.option("--name", help="With --hub: the title of the card.  [default: that of DIR]")
@click.option("--step", type=click.IntRange(min=0), help="Which checkpoint.  [default: the last]")
@click.option(
    "--sign",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="KEY",
    help="Sign DIR in the way of OpenSSF's model signing (extra signing) with this private key of "
    "an elliptic curve (PEM): DIR/model.sig, which `model_signing verify key` checks.  What run "
    "the weights are of is in DIR/vtrain.json, and signed with them.",
)
@json_option
def command(
    run: Path,
    out: Path,
    hub: bool,
    name: str | None,
    step: int | None,
    sign: Path | None,
    as_json: bool,
) -> None:
    """Write the weights of RUN as floats into DIR: the task's ONNX model, and safetensors.

    The checkpoint is held against the run's signed claim first.  With --hub DIR is new, and has
    README.md (a model card) and the claim too.
    """
    if sign is not None:
        from vtrain.attest.models import check_model_key, require_model_signing

        require_model_signing()  # before anything is written
        check_model_key(sign)
    from vtrain.train.deliver import export_run
    from vtrain.train.hub import export_hub
    from vtrain.train.layout import RunPaths
    from vtrain.train.signed import read_claim

    if name is not None and not hub:
        raise click.UsageError("--name is of a card, which --hub writes")
    if hub:
        onnx, safetensors = export_hub(run, out, step, name=name or "")
    else:
        onnx, safetensors = export_run(run, out, step)
    claimed = read_claim(RunPaths(run)).claim.log_size
    written = claimed if step is None else step
    pairs = {
        "step": written,
        "onnx": str(onnx),
        "safetensors": str(safetensors),
        **({"card": str(out / "README.md")} if hub else {}),
    }
    if sign is not None:
        pairs["signature"] = str(_sign(run, out, written, sign))
    if as_json:
        print_json(pairs)
    else:
        print_pairs(pairs)


def _sign(run: Path, out: Path, step: int, key: Path) -> Path:
    """Write what the weights are of, and sign all of the folder; the bundle."""
    import json

    from vtrain.attest.models import sign_model
    from vtrain.commit.files import write_atomic
    from vtrain.train.deliver import describe_weights

    text = json.dumps(describe_weights(run, step), indent=2, sort_keys=True) + "\n"
    write_atomic(out / "vtrain.json", [text.encode()])
    bundle = out / "model.sig"
    bundle.unlink(missing_ok=True)
    sign_model(out, key, bundle)
    return bundle
