"""``vtrain verify``: check a run and say how strong the check was."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtrain.cli import print_json
from vtrain.cli.common import (
    CleanCommand,
    HexBytes,
    Progress,
    RunPlace,
    Share,
    accumulate_option,
    engine_option,
    existing_path,
    json_option,
    make_console,
    recompute_option,
    require_new,
    show_progress,
    store_option,
    threads_option,
    token_options,
)
from vtrain.cli.proofs import StepsType, keys_options, make_setup
from vtrain.errors import VtrainWarning

if TYPE_CHECKING:
    from fractions import Fraction

    from vtrain.audit.beacon import BeaconDraw
    from vtrain.audit.plan import Wanted
    from vtrain.audit.published import Published
    from vtrain.report.document import Document
    from vtrain.wire.report import Report


@click.command("verify", cls=CleanCommand)
@click.argument("run", type=RunPlace())
@click.option(
    "--samples",
    type=click.IntRange(min=0),
    help="How many segments between checkpoints to replay; 0 checks the structure alone.  "
    "[default: 3]",
)
@click.option(
    "--probability",
    type=Share(),
    metavar="P",
    help="In place of --samples: as few segments as hit a cheat with this chance, as 99% or 0.99.",
)
@click.option(
    "--share",
    type=Share(),
    metavar="F",
    help="The cheat that --probability is of: this share of the steps is false, as 1%, packed "
    "where it hides best.  [default: a single step]",
)
@click.option("--all", "all_", is_flag=True, help="Replay every step.")
@click.option(
    "--seed",
    type=HexBytes(1, 64),
    metavar="HEX",
    help="Draw with this instead of fresh randomness; without --claim the verdict is conditional.",
)
@click.option(
    "--beacon",
    metavar="drand:ROUND",
    help="Draw with this round of drand: the one that the task's rule gives for the time in "
    "--token, else that of quicknet's first a minute later (`vtrain claim --token` names it).",
)
@existing_path("--beacon-file", "The round of --beacon as a relay serves it: /CHAIN/public/ROUND.")
@token_options
@click.option(
    "--claim",
    metavar="HEX|FILE",
    help="The claim that you held before the seed existed: its digest, as `vtrain claim` shows "
    "it, or the file in which you kept it.  Another claim is refused; one that contradicts a kept "
    "claim is fraud.",
)
@click.option(
    "--solver",
    type=HexBytes(32, 32),
    metavar="HEX",
    help="Public key of the solver that must have signed; otherwise the run's own is taken, and "
    "the report says so.",
)
@click.option(
    "--task-id",
    type=HexBytes(32, 32),
    metavar="HEX",
    help="The task that was agreed on, all of it; otherwise the run's own is taken as far as it is "
    "claimed, and the report says so.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The canonical sample table, for a run published without it.",
)
@click.option(
    "--srs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The SRS file of a task with KZG commitments: compare those of the steps replayed.",
)
@click.option(
    "--hiding",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Keys that the solver disclosed, of the commitments to compare.  [default: hiding.key, "
    "where RUN has it]",
)
@click.option(
    "--mode",
    type=click.Choice(["replay", "proof", "algebraic"]),
    default="replay",
    show_default=True,
    help="Do segments again, check ZK proofs of steps (docs/proofs.md), or check the values of "
    "steps that the solver signed (docs/algebraic.md).",
)
@click.option(
    "--private", is_flag=True, help="Mode proof: from public files alone, without tensors or data."
)
@click.option(
    "--steps",
    type=StepsType(),
    help="Modes proof and algebraic: look at these steps, such as 3,7,20-24.",
)
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Mode algebraic: where `vtrain trace` wrote.  [default: RUN/traces]",
)
@click.option(
    "--challenge",
    type=HexBytes(1, 64),
    metavar="HEX",
    help="Mode algebraic: draw the vectors of the check with this instead of fresh randomness; "
    "without --trace-claim the verdict is conditional.",
)
@click.option(
    "--derived",
    is_flag=True,
    help="Mode algebraic: let the vectors follow from what the solver signed, two of each, so that "
    "anyone has the same.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    metavar="N",
    help="Mode algebraic: of each node with a tensor of more than --rows-above bytes look at N "
    "rows of the output, drawn when the values are signed, and read no more of it than these take.",
)
@click.option(
    "--rows-above",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Mode algebraic: the size above which --rows draws.  [default: 64 MiB]",
)
@click.option(
    "--statements",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Mode algebraic: write what a referee judges of a wrong value into the new folder DIR.",
)
@click.option(
    "--batches",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Mode proof: commitments to the batches, signed by the data's owner.",
)
@click.option(
    "--owner",
    type=HexBytes(32, 32),
    metavar="HEX",
    help="Public key of the data's owner, for --batches.",
)
@click.option(
    "--trace-seed",
    type=HexBytes(1, 64),
    metavar="HEX",
    help="Mode proof, tiles: the seed that drew the steps; --seed then drew statements about them.",
)
@click.option(
    "--trace-samples",
    type=click.IntRange(min=1),
    help="Mode proof, tiles: how many steps it drew.",
)
@click.option(
    "--trace-claim",
    metavar="HEX|FILE",
    help="What was signed of traces, as you held it before the second randomness existed (of tiles "
    "--seed, in mode algebraic --challenge): its digest, as `vtrain claim` shows it, or your copy "
    "of proofs/traces.cbor or traces/traces.cbor.",
)
@click.option(
    "--allow-insecure-srs",
    is_flag=True,
    help="Mode proof: take an SRS that is of no ceremony, whose maker can forge proofs.",
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the report to the new FILE, with pictures: `vtrain report` signs and shows it.",
)
@store_option
@keys_options
@engine_option
@threads_option
@accumulate_option
@recompute_option
@json_option
def command(
    run: Path | str,
    samples: int | None,
    all_: bool,
    probability: Fraction | None,
    share: Fraction | None,
    seed: bytes | None,
    beacon: str | None,
    beacon_file: Path | None,
    token: Path | None,
    authority: Path | None,
    chain: Path | None,
    claim: str | None,
    solver: bytes | None,
    task_id: bytes | None,
    data: Path | None,
    srs: Path | None,
    hiding: Path | None,
    mode: str,
    report_file: Path | None,
    engine: str,
    threads: int,
    accumulate: int,
    recompute: bool,
    traces: Path | None,
    challenge: bytes | None,
    derived: bool,
    rows: int | None,
    rows_above: int | None,
    statements: Path | None,
    store_options: tuple[tuple[str, str], ...],
    as_json: bool,
    **proof: Any,
) -> int:
    """Check RUN: its structure always, then segments of it by doing them again.

    The structure check covers every file, the signature, the log, each batch digest and each
    checkpoint.  Then segments between checkpoints are drawn at random and replayed: the law is
    exact, so one different bit is proof of fraud.

    With --mode proof, steps that can be proven are drawn in place of segments, and their proofs in
    RUN/proofs/ are checked (`vtrain prove RUN --sample N --seed HEX` makes them); --samples and
    --seed then draw steps.

    With --mode algebraic, stretches between two state roots are drawn, and their values, which the
    solver signed (`vtrain trace RUN --sample N --seed HEX`), are checked: products by Freivalds'
    check with vectors that are drawn now, all else by doing it again.

    What is drawn must not be known to whoever can still change the run.  Fresh randomness, drawn of
    files that you hold already, is not.  A seed that others know needs --claim from before it
    existed, and so does every audit for which the solver makes something after the draw.  A round
    of a beacon (--beacon, --beacon-file) convinces others too: --token shows that the claim was
    there before it, --claim that this is the one, of however many, that was held against it.

    A RUN in floats that `vtrain.attest_callback` signed is attested, not replayable: its files are
    held against what was signed, and the verdict is conditional at best (docs/attested.md).

    RUN may be the URL of a store in which a run was published (`vtrain publish`): a folder
    (file://), a web server (https://, http://) or an object store (s3://, gs://, az://).  Then the
    claim and the log are fetched, and after the draw what it asks for, each held against the claim
    as it comes; samples, batches and checkpoints are checked as far as they were drawn.

    Exit code 0: verified.  10: fraud found.  2: bad usage.  3: inconclusive, or this machine lacks
    what it takes.  4: verified only if an assumption holds that you did not accept (a predictable
    sample, an insecure SRS).
    """
    from vtrain.audit.attested import is_attested
    from vtrain.audit.pin import make_pin
    from vtrain.commit.store import refuse_published

    if isinstance(run, Path) and is_attested(run):
        return _end(_verify_attested(run, solver, claim), report_file, as_json)
    if isinstance(run, Path):
        refuse_published(run)
    _check_draw(samples, probability, share, seed, beacon, all_=all_)
    if report_file is not None:
        require_new(report_file)
    if isinstance(run, str) and mode == "proof":
        raise click.UsageError("--mode proof needs RUN as a folder: a store has no proofs")
    if not isinstance(run, str) and store_options:
        raise click.UsageError("--store-option has a meaning with the URL of a store alone")
    wanted = _make_wanted(probability, share)
    if hiding is not None and srs is None:
        raise click.UsageError("--hiding has a meaning with --srs alone")
    pin = None if claim is None else make_pin(claim)
    algebraic: dict[str, Any] = {
        "traces": traces,
        "challenge": challenge,
        "derived": derived,
        "rows": rows,
        "rows_above": rows_above,
        "statements": statements,
    }
    replay = {"all": all_, "srs": srs, "recompute": recompute, "accumulate": accumulate > 1}
    _check_mode(mode, replay, proof, algebraic)
    with (
        show_progress(lines=mode == "proof") as progress,
        _open_run(run, store_options, progress) as (folder, published),
    ):
        place = folder if published is None else published.own
        draw = _read_beacon(place, beacon, beacon_file, token, authority, chain)
        common: dict[str, Any] = {
            "samples": samples,
            "seed": seed,
            "beacon": draw,
            "wanted": wanted,
            "pin": pin,
            "solver": solver,
            "task_id": task_id,
            "data": data,
            "engine": engine,
            "threads": threads,
        }
        if mode == "algebraic":
            report = _verify_algebraic(
                folder,
                progress,
                **common,
                published=published,
                steps=proof["steps"],
                trace_claim=proof["trace_claim"],
                **algebraic,
            )
        elif mode == "proof":
            report = _verify_proofs(
                folder,
                progress,
                **common,
                srs=srs,
                hiding=hiding,
                **proof,
            )
        else:
            from vtrain.audit.verify import verify
            from vtrain.engines.saving import Saving
            from vtrain.prove.backend.kzg import CommitKey

            report = verify(
                folder,
                samples=samples,
                all_=all_,
                seed=seed,
                pin=pin,
                solver=solver,
                task_id=task_id,
                data=data,
                srs=srs,
                open_key=CommitKey,
                hiding=hiding,
                engine=engine,
                threads=threads,
                saving=Saving(accumulate, recompute),
                progress=progress,
                beacon=draw,
                wanted=wanted,
                published=published,
            )
    return _end(report, report_file, as_json)


_OF_ATTESTED = frozenset({"run", "solver", "claim", "report_file", "as_json"})
"""What an audit of an attested run may be asked; all else draws, replays or says how."""


def _verify_attested(run: Path, solver: bytes | None, claim: str | None) -> Report:
    from vtrain.audit.attested import make_attested_pin, verify_attested

    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _OF_ATTESTED and source is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(
                f"{parameter.opts[0]} has no meaning: {run} holds an attested run, in floats, of "
                "which nothing can be done again"
            )
    return verify_attested(
        run, solver=solver, claim=None if claim is None else make_attested_pin(run, claim)
    )


def _end(report: Report, report_file: Path | None, as_json: bool) -> int:
    """Write and print a report; its exit code."""
    document = _date(report)
    if report_file is not None:
        require_new(report_file)
        from vtrain.commit.files import write_atomic
        from vtrain.report.document import encode_document

        write_atomic(report_file, [encode_document(document)])
    if as_json:
        from vtrain.report.document import document_to_dict

        print_json(document_to_dict(replace(document, report=replace(report, pictures=None))))
    else:
        from vtrain.report.terminal import print_report

        print_report(report, make_console())
    return report.exit_code


@contextmanager
def _open_run(
    run: Path | str, store_options: tuple[tuple[str, str], ...], progress: Any
) -> Iterator[tuple[Path, Published | None]]:
    """The folder of a run; of one in a store, that of what is brought of it."""
    if isinstance(run, Path):
        yield run, None
        return
    from vtrain.audit.published import open_published

    with open_published(run, dict(store_options), progress=progress) as published:
        yield published.root, published


def _check_mode(
    mode: str, replay: dict[str, Any], proof: dict[str, Any], algebraic: dict[str, Any]
) -> None:
    """UsageError for an option that has no meaning in a mode."""
    found = {
        "replay": proof | algebraic,
        "proof": algebraic | {"all": replay["all"]},
        "algebraic": replay | proof | {"steps": None, "trace_claim": None},
    }
    for name, value in sorted(found[mode].items()):
        if not value:
            continue
        option = name.replace("_", "-")
        if name == "all":
            raise click.UsageError(f"--all replays: name --steps in mode {mode}")
        if mode == "algebraic":
            raise click.UsageError(f"--{option} has no meaning in --mode algebraic")
        other = "algebraic" if name in algebraic else "proof"
        raise click.UsageError(f"--{option} has a meaning in --mode {other} alone")


def _check_draw(
    samples: int | None,
    probability: Fraction | None,
    share: Fraction | None,
    seed: bytes | None,
    beacon: str | None,
    *,
    all_: bool,
) -> None:
    """UsageError for options about the draw that exclude each other."""
    if all_ and (samples is not None or probability is not None):
        option = "--samples" if probability is None else "--probability"
        raise click.UsageError(f"--all replays everything: {option} has no meaning")
    if probability is not None and samples is not None:
        raise click.UsageError("--probability says how many: --samples has no meaning")
    if share is not None and probability is None:
        raise click.UsageError("--share has a meaning with --probability alone")
    if seed is not None and beacon is not None:
        raise click.UsageError("--seed and --beacon both draw: give one of them")


def _date(report: Report) -> Document:
    from datetime import UTC, datetime

    from vtrain import __version__
    from vtrain.report.document import make_document
    from vtrain.wire.task import LAW_VERSION

    return make_document(report, datetime.now(UTC), __version__, LAW_VERSION)


def _read_beacon(
    run: Path,
    name: str | None,
    file: Path | None,
    token: Path | None,
    authority: Path | None,
    chain: Path | None,
) -> BeaconDraw | None:
    given = {"--beacon-file": file, "--token": token, "--authority": authority, "--chain": chain}
    if name is None:
        for option, value in given.items():
            if value is not None:
                raise click.UsageError(f"{option} has a meaning with --beacon alone")
        return None
    if file is None:
        raise click.UsageError(
            "--beacon needs --beacon-file: what a relay of drand serves as /CHAIN/public/ROUND"
        )
    if (token is None) != (authority is None):
        raise click.UsageError("--token and --authority belong together: give both, or neither")
    from vtrain.audit.beacon import make_draw

    return make_draw(run, name, file, token=token, authority=authority, chain=chain)


def _make_wanted(probability: Fraction | None, share: Fraction | None) -> Wanted | None:
    if probability is None:
        return None
    from vtrain.audit.plan import Wanted

    return Wanted(probability, share)


def _verify_algebraic(
    run: Path,
    progress: Progress,
    *,
    samples: int | None,
    steps: tuple[int, ...] | None,
    trace_claim: str | None,
    traces: Path | None,
    statements: Path | None,
    rows: int | None,
    rows_above: int | None,
    **given: Any,
) -> Report:
    from vtrain.audit.algebraic import (
        AlgebraicAudit,
        AlgebraicSubject,
        make_traces_pin,
        verify_algebraic,
    )
    from vtrain.audit.pin import parse_pin
    from vtrain.audit.traces import WrongValue

    if samples == 0:
        raise click.UsageError("--samples 0 asks for no step: leave --mode algebraic out")
    if statements is not None:
        require_new(statements)
    if rows_above is not None and rows is None:
        raise click.UsageError("--rows-above has a meaning with --rows alone")
    if rows_above is not None:
        given["rows_above"] = rows_above

    def write_statements(wrong: WrongValue, subject: AlgebraicSubject) -> str:
        from vtrain.commit.files import making_folder, write_atomic
        from vtrain.dispute.refutation import compose_refutation

        if statements is None:
            return "--statements DIR writes what a referee judges"
        with making_folder(statements) as making:
            count = 0
            for block, statement in enumerate(compose_refutation(wrong, subject)):
                write_atomic(making / f"block-{block:06d}.cbor", [statement])
                count += 1
        if not count:
            return "there is no statement about it for a referee"
        return f"{statements} has {count} statements about it, for vtrain referee"

    audit = AlgebraicAudit(
        folder=traces,
        steps=steps,
        sample=samples,
        traces_pin=None if trace_claim is None else make_traces_pin(parse_pin(trace_claim)),
        on_wrong=write_statements,
        rows=rows,
        **given,
    )
    report = verify_algebraic(run, audit, progress=progress)
    if (
        rows is not None
        and report.sampled is None
        and report.verdict in ("verified", "conditional")
    ):
        message = (
            f"--rows drew nothing: no node has a tensor of more than {audit.rows_above} bytes that "
            "rows take less of, and all was looked at whole (--rows-above)"
        )
        warnings.warn(message, VtrainWarning, stacklevel=1)
    return report


def _verify_proofs(
    run: Path, progress: Progress, *, samples: int | None, srs: Path | None, **given: Any
) -> Report:
    from vtrain.audit.pin import parse_pin
    from vtrain.prove.audit import ProofAudit, verify_proofs
    from vtrain.prove.batches import read_batches
    from vtrain.prove.tiles.verifier import make_trace_pin

    if srs is None:
        raise click.UsageError("--mode proof needs --srs")
    if samples == 0:
        raise click.UsageError("--samples 0 asks for no proof: leave --mode proof out")
    steps, seed = given["steps"], given["seed"]
    drawn = (samples, seed, given["beacon"], given["wanted"])
    if steps is not None and any(value is not None for value in drawn):
        raise click.UsageError(
            "--steps names them: --samples, --probability, --seed and --beacon have no meaning"
        )
    if (given["batches"] is None) != (given["owner"] is None):
        raise click.UsageError("--batches and --owner belong together: give both, or neither")
    trace_seed, trace_samples = given["trace_seed"], given["trace_samples"]
    trace_claim = given["trace_claim"]
    if (trace_seed is None) != (trace_samples is None):
        raise click.UsageError(
            "--trace-seed and --trace-samples belong together: give both, or neither"
        )
    audit = ProofAudit(
        lambda task: make_setup(task, srs=srs, **given),
        steps=steps,
        sample=samples,
        seed=seed,
        beacon=given["beacon"],
        wanted=given["wanted"],
        private=given["private"],
        allow_insecure_srs=given["allow_insecure_srs"],
        batches=None if given["batches"] is None else read_batches(given["batches"]),
        owner=given["owner"] or b"",
        traces=None if trace_seed is None else (trace_seed, trace_samples),
        trace_pin=None if trace_claim is None else make_trace_pin(parse_pin(trace_claim)),
        pin=given["pin"],
        solver=given["solver"],
        task_id=given["task_id"],
        data=given["data"],
        hiding=given["hiding"],
        engine=given["engine"],
        threads=given["threads"],
    )
    return verify_proofs(run, audit, progress=progress)
