"""``vtrain claim``: what an auditor pins of a run before anything is drawn."""

from __future__ import annotations

from pathlib import Path

import click

from vtrain.cli import print_json
from vtrain.cli.common import VtrainCommand, existing_folder, json_option, print_pairs, require_new


@click.command("claim", cls=VtrainCommand)
@existing_folder("run")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the signed claim in the new FILE: with it `vtrain verify --claim FILE` also "
    "convicts a solver who signs a contradicting one for the same run.",
)
@json_option
def command(run: Path, out: Path | None, as_json: bool) -> None:
    """Show the digest of RUN's claim, which an auditor pins before randomness is drawn.

    A solver could make claim after claim until a sample that it foresees misses what is false.  So
    the order is: it publishes its claim; you note the digest, or keep the claim (--out); then the
    seed comes into being; then `vtrain verify --claim` takes that claim and no other.

    The claim's signature is checked here, and nothing else.  Of tiles, the trace claim of
    RUN/proofs is shown too, where there is one.
    """
    import os

    from vtrain.attest.claims import compute_claim_digest
    from vtrain.commit.files import write_atomic
    from vtrain.train.layout import RunPaths
    from vtrain.train.signed import read_claim
    from vtrain.wire.claim import encode_signed_claim

    signed = read_claim(RunPaths(run))
    claim = signed.claim
    pairs: dict[str, str | int] = {
        "claim": compute_claim_digest(claim).hex(),
        "solver": claim.solver.hex(),
        "task_id": claim.task_id.hex(),
        "run_id": claim.run_id.hex(),
        "steps": claim.log_size,
        "log_root": claim.log_root.hex(),
        **({"kzg_root": claim.kzg_root.hex()} if claim.kzg_root else {}),
    }
    if os.path.lexists(run / "proofs" / "traces.cbor"):
        from vtrain.prove.tiles.protocol import compute_trace_claim_digest, verify_trace_claim
        from vtrain.prove.tiles.verifier import read_traces

        traces = read_traces(run)
        verify_trace_claim(traces, claim)
        pairs["trace_claim"] = compute_trace_claim_digest(traces.trace_claim).hex()
    if out is not None:
        require_new(out)
        write_atomic(out, [encode_signed_claim(signed)])
        pairs["kept"] = str(out)
    if as_json:
        print_json(pairs)
    else:
        print_pairs(pairs)
