"""``vtrain prove``: ZK proofs of a run's steps, and what goes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vtrain.cli.common import (
    HexBytes,
    VtrainCommand,
    engine_option,
    existing_file,
    existing_folder,
    json_option,
    make_console,
    print_json,
    print_pairs,
    show_progress,
    threads_option,
)
from vtrain.cli.proofs import StepsType, keys_options, make_setup, srs_option
from vtrain.wire.report import EXIT_CODES

steps_option = click.option("--steps", type=StepsType(), help="These steps, such as 3,7,20-24.")


class _ProveGroup(click.Group):
    """``vtrain prove RUN`` is ``vtrain prove run RUN``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group("prove", cls=_ProveGroup)
def command() -> None:
    """Prove steps of a run: `vtrain prove RUN --steps 3,7` (docs/proofs.md).

    Needs the extra zk.
    """


@command.command("run", cls=VtrainCommand)
@existing_folder("run")
@steps_option
@click.option(
    "--sample", type=click.IntRange(min=1), help="So many steps, drawn from the signed claim."
)
@click.option(
    "--seed",
    type=HexBytes(1, 64),
    metavar="HEX",
    help="Draw the steps with this: the auditor's randomness, drawn after the claim.",
)
@srs_option
@keys_options
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The canonical sample table, for a run without it.",
)
@engine_option
@threads_option
@json_option
def run_command(
    run: Path,
    steps: tuple[int, ...] | None,
    sample: int | None,
    seed: bytes | None,
    data: Path | None,
    engine: str,
    as_json: bool,
    **given: Any,
) -> int:
    """Prove steps of RUN, each whole, into RUN/proofs/.

    The steps are named, or drawn with the auditor's --seed just as `vtrain verify --mode proof`
    draws them.  Proofs that are there already are not made again.  Exit code 0 when all are there.
    """
    if steps is None and (sample is None or seed is None):
        raise click.UsageError("name --steps, or draw them with --sample and --seed")
    if steps is not None and (sample is not None or seed is not None):
        raise click.UsageError("--steps names them: --sample and --seed have no meaning")
    from vtrain.prove.audit import choose_steps
    from vtrain.prove.proof_files import Statement, find_missing, proof_path, write_proof_file
    from vtrain.prove.runs import StepProver, read_run

    signed = read_run(run)
    setup = make_setup(signed, **given)
    every = setup.proof.every if "kzg" in signed.task.commitments else 1
    chosen, _ = choose_steps(signed, every=every, steps=steps, sample=sample, seed=seed)
    wanted = [Statement("step", step) for step in chosen]
    missing = find_missing(run, wanted)
    with show_progress() as progress:
        prover = None
        for done, statement in enumerate(missing):
            progress("steps", done, len(missing))
            if prover is None:
                prover = StepProver(run, setup, data=data, engine=engine, progress=progress)
            write_proof_file(run, statement, prover.prove(statement.step))
        progress("steps", len(missing), max(len(missing), 1))
    files = [str(proof_path(run, statement)) for statement in wanted]
    if as_json:
        print_json({"proofs": files, "made": len(missing), "srs": setup.proof.srs.hex()})
        return 0
    console = make_console()
    for path in files:
        console.print(path, soft_wrap=True)
    console.print(f"{len(missing)} made, {len(files) - len(missing)} were there")
    return 0


@command.command("setup", cls=VtrainCommand)
@existing_folder("run")
@srs_option
@keys_options
@threads_option
@json_option
def setup_command(run: Path, as_json: bool, **given: Any) -> int:
    """Make the keys of the step circuits of RUN's task, and show the digests for a task to pin."""
    from vtrain.prove.keys import estimate
    from vtrain.prove.runs import prepare_circuit, read_run
    from vtrain.prove.step import STEP_CIRCUITS

    signed = read_run(run)
    setup = make_setup(signed, **given)
    names = list(setup.proof.circuits) or list(STEP_CIRCUITS)[:1]
    found = {}
    with show_progress() as progress:
        for name in names:
            ready = prepare_circuit(signed.graph, setup, name, proving=True, progress=progress)
            found[name] = {
                "circuit": ready.pinned.digest.hex(),
                "key": ready.keys.vk_digest.hex(),
                "size": str(estimate(ready.circuit, setup.proof.k)),
            }
    if as_json:
        print_json({"circuits": found, "srs": setup.proof.srs.hex(), "k": setup.proof.k})
        return 0
    for name, pins in found.items():
        click.echo(f"[proof.circuits.{name}]")
        print_pairs(pins)
    return 0


@command.command("batches", cls=VtrainCommand)
@existing_file("task")
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The new file."
)
@click.option(
    "--key",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The data owner's key file (vtrain key).",
)
@click.option(
    "--srs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The SRS file.  [default: the one that TASK names]",
)
@threads_option
@json_option
def batches_command(
    task: Path, out: Path, key: Path, srs: Path | None, threads: int, as_json: bool
) -> int:
    """As the owner of the data, sign what every batch of TASK is, for private audits of runs."""
    from vtrain.attest.keys import load_key
    from vtrain.commit.files import write_atomic
    from vtrain.prove.batches import sign_batches
    from vtrain.prove.kzg import CommitKey
    from vtrain.train.task import compile_task, load_task
    from vtrain.wire.batches import encode_batches

    file = load_task(task, srs=srs)
    with show_progress() as progress:
        compiled = compile_task(file, CommitKey)
        proof = compiled.spec.kzg
        if proof is None or file.proof is None:
            raise click.UsageError("TASK asks for no KZG commitments")
        committer = CommitKey(file.proof.srs, proof.k, proof.blinding, threads=threads)
        signed = sign_batches(
            compiled.spec,
            compiled.graph,
            compiled.samples,
            committer,
            load_key(key),
            threads=threads,
            progress=progress,
        )
    write_atomic(out, [encode_batches(signed)])
    shown = {"file": str(out), "owner": signed.owner.hex(), "batches": len(signed.commitments)}
    if as_json:
        print_json(shown)
    else:
        print_pairs(shown)
    return 0


@command.command("export-evm", cls=VtrainCommand)
@click.option("--settings", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--vk", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--srs", required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="A new folder for the contracts.",
)
@click.option(
    "--solc",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The compiler.  [default: solc or solcjs on the PATH]",
)
@click.option("--allow-insecure-srs", is_flag=True, help="Exit with 0 for an insecure SRS too.")
@json_option
def export_command(
    settings: Path,
    vk: Path,
    srs: Path,
    out: Path,
    solc: Path | None,
    allow_insecure_srs: bool,
    as_json: bool,
) -> int:
    """Write the Solidity verifier of a circuit, and a contract that binds it to commitments.

    Settings and key are those in the folder of keys that `vtrain prove setup` made.  Exit code 3
    for an insecure SRS, or for code that is too large to deploy.
    """
    from vtrain.prove.evm import export_evm
    from vtrain.prove.ezkl_adapter import Limits

    made = export_evm(
        settings=settings,
        vk=vk,
        srs=srs,
        out=out,
        limits=Limits(memory=16 << 30, seconds=600),
        solc=solc,
    )
    shown = {
        "folder": str(made.folder),
        "code": len(made.verifier.creation),
        "fits": made.verifier.fits,
        "proof_bytes": made.length,
        "commitments": made.tensors,
        "insecure": made.insecure,
    }
    if as_json:
        print_json(shown)
    else:
        print_pairs(shown)
    good = made.verifier.fits and (not made.insecure or allow_insecure_srs)
    return EXIT_CODES["verified" if good else "inconclusive"]
