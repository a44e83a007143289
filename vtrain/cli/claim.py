"""``vtrain claim``: what an auditor pins of a run before anything is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    VtrainCommand,
    existing_folder,
    json_option,
    print_pairs,
    require_new,
    token_options,
)

if TYPE_CHECKING:
    from vtrain.wire.claim import Claim


@click.command("claim", cls=VtrainCommand)
@existing_folder("run")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the signed claim in the new FILE: with it `vtrain verify --claim FILE` also "
    "convicts a solver who signs a contradicting one for the same run.",
)
@click.option(
    "--request",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to the new FILE what to ask a time-stamping authority (RFC 3161): a token of the "
    "claim's digest.",
)
@token_options
@click.option(
    "--ordered",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write --token to the new FILE as audits take it: with certificates in order and without "
    "revocations and unsigned attributes, none of which anybody signs.",
)
@json_option
def command(
    run: Path,
    out: Path | None,
    request: Path | None,
    token: Path | None,
    authority: Path | None,
    chain: Path | None,
    ordered: Path | None,
    as_json: bool,
) -> None:
    """Show the digest of RUN's claim, which an auditor pins before randomness is drawn.

    A solver could make claim after claim until a sample that it foresees misses what is false.  So
    the order is: it publishes its claim; you note the digest, or keep the claim (--out); then the
    seed comes into being; then `vtrain verify --claim` takes that claim and no other.

    Where a beacon draws, a token shows to others too that the claim came first: send --request to a
    time-stamping authority (`curl -H "Content-Type: application/timestamp-query" --data-binary
    @FILE URL`) and keep the answer.  With --token and --authority, the round that the task's rule
    gives is named.  Answers of many authorities need --ordered first.

    The claim's signature is checked here, and nothing else.  What was signed of traces is shown
    too, where there is something: of tiles that in RUN/proofs, of values that in RUN/traces.
    """
    import os
    import warnings

    _check_token(token, authority, chain, ordered)
    from vtrain.attest.claims import compute_claim_digest
    from vtrain.commit.files import write_atomic
    from vtrain.errors import VtrainError, VtrainWarning
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
    for name, folder, read in (
        ("trace_claim", "proofs", _read_trace_claim),
        ("traces", "traces", _read_traces),
    ):
        if os.path.lexists(run / folder / "traces.cbor"):
            try:
                pairs[name] = read(run, claim).hex()
            except VtrainError as error:  # it must keep nobody from pinning the claim
                warnings.warn(f"{folder}/traces.cbor is not shown: {error}", VtrainWarning, 1)
    if token is not None:
        data = _take_token(token, ordered)
        if ordered is not None:
            pairs["ordered"] = str(ordered)
        if authority is not None:
            pairs.update(_find_round(run, compute_claim_digest(claim), data, authority, chain))
    if request is not None:
        from vtrain.attest.timestamp import make_request

        require_new(request)
        write_atomic(request, [make_request(compute_claim_digest(claim))])
        pairs["request"] = str(request)
    if out is not None:
        require_new(out)
        write_atomic(out, [encode_signed_claim(signed)])
        pairs["kept"] = str(out)
    if as_json:
        print_json(pairs)
    else:
        print_pairs(pairs)


def _read_trace_claim(run: Path, claim: Claim) -> bytes:
    """The digest of what was signed of tiles."""
    from vtrain.prove.tiles.protocol import compute_trace_claim_digest, verify_trace_claim
    from vtrain.prove.tiles.verifier import read_traces

    traces = read_traces(run)
    verify_trace_claim(traces, claim)
    return compute_trace_claim_digest(traces.trace_claim)


def _read_traces(run: Path, claim: Claim) -> bytes:
    """The digest of what was signed of values."""
    from vtrain.attest.traces import compute_traces_digest, verify_traces
    from vtrain.commit.traces import TraceFolder, read_claim

    found = read_claim(TraceFolder(run / "traces").claim, run)
    verify_traces(found, claim)
    return compute_traces_digest(found.traces)


def _check_token(
    token: Path | None, authority: Path | None, chain: Path | None, ordered: Path | None
) -> None:
    """UsageError for options about a token that do not go together."""
    if ordered is not None and token is None:
        raise click.UsageError("--ordered has a meaning with --token alone")
    if (token is None) != (authority is None) and ordered is None:
        raise click.UsageError("--token and --authority belong together: give both, or neither")
    if chain is not None and token is None:
        raise click.UsageError("--chain has a meaning with --token alone")


def _take_token(token: Path, ordered: Path | None) -> bytes:
    """The bytes of a token; put in order, and written so, where ``ordered`` names a file."""
    from vtrain.attest.timestamp import order_token, read_token
    from vtrain.commit.files import write_atomic

    data = read_token(token)
    if ordered is None:
        return data
    require_new(ordered)
    data = order_token(data, str(token))
    write_atomic(ordered, [data])
    return data


def _find_round(
    run: Path, digest: bytes, token: bytes, authority: Path, chain: Path | None
) -> dict[str, str | int]:
    """Until when the claim was made, by its token, and the round that then draws."""
    from vtrain.attest.timestamp import load_roots
    from vtrain.audit.beacon import (
        RULE,
        ceil_time,
        find_chain,
        find_due_round,
        format_time,
        prove_time,
        read_chain,
    )
    from vtrain.train.layout import RunPaths
    from vtrain.train.signed import read_task

    rule = read_task(RunPaths(run)).beacon or RULE
    drand = find_chain(rule, None if chain is None else read_chain(chain))
    proven = prove_time(rule, token, digest, load_roots(authority))
    due = find_due_round(rule, drand, proven)
    return {
        "claimed": format_time(ceil_time(proven.latest)),
        "authority": proven.authority,
        "beacon": f"drand:{due}",
        "beacon_time": format_time(drand.compute_time(due)),
        "beacon_url": f"https://api.drand.sh/{drand.hash.hex()}/public/{due}",
    }
