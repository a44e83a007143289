"""``vtrain prove``: ZK proofs of a run's steps, and what goes with them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import (
    CleanCommand,
    HexBytes,
    Progress,
    VtrainCommand,
    count,
    engine_option,
    existing_file,
    existing_folder,
    json_option,
    print_pairs,
    require_new,
    show_progress,
    threads_option,
)
from vtrain.cli.proofs import (
    StepsType,
    keys_options,
    make_setup,
    open_run,
    prover_options,
    srs_option,
    tell_capped,
)
from vtrain.wire.proof import CIRCUIT_NAMES
from vtrain.wire.report import EXIT_CODES

steps_option = click.option("--steps", type=StepsType(), help="These steps, such as 3,7,20-24.")

_CIRCUIT = click.Choice([name for names in CIRCUIT_NAMES.values() for name in names])

if TYPE_CHECKING:
    from vtrain.prove.circuit.circuit import Circuit
    from vtrain.prove.jobs import Handler, Job, JobQueue, JobView
    from vtrain.prove.proof_files import Item
    from vtrain.prove.runs import SignedRun
    from vtrain.prove.setup import ProofSetup, ReadyCircuit
    from vtrain.prove.steps.prover import StepProver
    from vtrain.prove.tiles.prover import TileProver
    from vtrain.wire.bundle import Kind


class _ProveGroup(click.Group):
    """``vtrain prove RUN`` is ``vtrain prove run RUN``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.MissingParameter as error:
            name = error.ctx.info_name if error.ctx else None
            if (
                error.param is None
                or error.param.name != "run"
                or not name
                or not Path(name).is_dir()
            ):
                raise
            message = f"{name!r} is a command here: for the run of this name write ./{name}"
            raise click.UsageError(message, error.ctx) from None


@click.group("prove", cls=_ProveGroup)
def command() -> None:
    """Prove steps of a run: `vtrain prove RUN --steps 3,7` (docs/proofs.md).

    Needs the extra zk.
    """


@command.command("run", cls=CleanCommand)
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
@click.option(
    "--circuit",
    type=click.Choice(["step", "tiles"]),
    help="What is proven: steps as wholes, or tiles of them.  [default: the task's]",
)
@click.option("--queue", help="Queue of jobs to put them into.  [default: RUN/proofs/jobs.db]")
@prover_options
def run_command(
    run: Path,
    steps: tuple[int, ...] | None,
    sample: int | None,
    seed: bytes | None,
    circuit: str | None,
    queue: str | None,
    data: Path | None,
    engine: str,
    as_json: bool,
    **given: Any,
) -> int:
    """Prove steps of RUN into RUN/proofs/, each whole, or tiles of them.

    The steps are named, or drawn with the auditor's --seed just as `vtrain verify --mode proof`
    draws them.  They go through a queue, from which `vtrain prove work` on other machines takes
    too.  What is there already is not made again.

    Exit code 0 when all are there.  2: an error, as when one was not proven; the others stay.
    3: the extra zk is not installed.  130, 143: interrupted by Ctrl-C, by SIGTERM.
    """
    if steps is None and (sample is None or seed is None):
        raise click.UsageError("name --steps, or draw them with --sample and --seed")
    if steps is not None and (sample is not None or seed is not None):
        raise click.UsageError("--steps names them: --sample and --seed have no meaning")
    from vtrain.errors import ProverError

    _require_queue()
    from vtrain.prove.jobs import JobQueue, collect, work
    from vtrain.prove.proof_files import find_missing, proof_path

    signed = open_run(run)
    setup = make_setup(signed.task, **given)
    # Before anything waits in a queue: what cannot be proven here is refused.
    prover = _open_prover(signed, setup, circuit, data, engine)
    wanted = _choose(signed, setup, prover, steps, sample, seed)
    _require_labels(signed, data, _list_labelled(signed, prover, wanted))
    missing, made = find_missing(run, wanted), 0
    if missing:
        run_id = signed.signed.claim.run_id
        echo(
            f"proving {len(missing)}, which may take minutes each: "
            f"{', '.join(map(_name, missing[:5]))}{' ...' if len(missing) > 5 else ''}",
            err=True,
        )
        with show_progress(lines=True) as progress, JobQueue(_locate(run, queue)) as jobs:
            asked = jobs.add(run_id, missing)
            jobs.retry(asked)
            made = work(
                jobs,
                _make_handler(prover, jobs, progress),
                run_id=run_id,
                only=asked,
                once=True,
                idle=_tell_taken(jobs, run_id, asked),
            )
            collect(jobs, run_id, run)
            troubled = jobs.status(run_id).troubled
            others = len(jobs.find_waiting(run_id) - {*asked})
        if others:
            echo(
                f"{others} more, asked for before, {'waits' if others == 1 else 'wait'}: "
                f"`vtrain prove jobs {run} --cancel` drops what is not done",
                err=True,
            )
        left = find_missing(run, wanted)
        if left:
            name = _name(left[0])
            why = next((job.error for job in troubled if job.statement in left), "was cancelled")
            reason = _shorten(why, name)
            raise ProverError(f"{len(left)} of {len(wanted)} not proven: {reason}", where=name)
    files = [str(proof_path(run, statement)) for statement in wanted]
    if as_json:
        shown = {"proofs": files, "made": made, "srs": setup.proof.srs.hex()}
        print_json(shown if sample is None else shown | {"asked": sample, "drawn": len(wanted)})
        return 0
    for path in files:
        echo(path)
    queued = f"{len(missing) - made} found in the queue, " if made < len(missing) else ""
    echo(f"{made} made, {queued}{len(files) - len(missing)} there before")
    return 0


def _choose(
    signed: SignedRun,
    setup: ProofSetup,
    prover: StepProver | TileProver,
    steps: tuple[int, ...] | None,
    sample: int | None,
    seed: bytes | None,
) -> list[Item]:
    """What is asked for: steps named or drawn, or statements about tiles that are drawn."""
    from vtrain.errors import RunError
    from vtrain.prove.audit import choose_steps, count_provable
    from vtrain.prove.proof_files import Item
    from vtrain.prove.tiles.prover import TileProver
    from vtrain.prove.tiles.verifier import read_traces, traces_path

    if isinstance(prover, TileProver):
        if steps is not None or sample is None or seed is None:
            raise click.UsageError("tiles are drawn: --sample and --seed of the second draw")
        run = signed.paths.root
        if not traces_path(run).exists():
            raise RunError(
                "no steps are traced yet: the auditor's first draw is answered before, by "
                f"vtrain prove traces {run} --sample N --seed HEX --key KEY --srs {setup.srs}",
                where=str(traces_path(run)),
            )
        traces = read_traces(run)
        there = len(prover.tiling) * len(traces.trace_claim.traces)
        tell_capped(sample, there, "statement", "about the steps traced")
        return prover.statements(traces, seed, sample)
    every = setup.proof.every if "kzg" in signed.task.commitments else 1
    if sample is not None:
        tell_capped(sample, count_provable(signed, every), "step", "that can be proven")
    chosen, _ = choose_steps(signed, every=every, steps=steps, sample=sample, seed=seed)
    return [Item("step", step) for step in chosen]


def _list_labelled(
    signed: SignedRun, prover: StepProver | TileProver, wanted: list[Item]
) -> list[int]:
    """The steps of statements that are about labels."""
    from vtrain.prove.tiles.prover import TileProver
    from vtrain.prove.tiles.statements import StepFacts

    def is_labelled(item: Item) -> bool:
        if not isinstance(prover, TileProver):
            return True
        facts = StepFacts(item.step, signed.records[item.step - 1].loss)
        return "labels" in prover.tiling.statement(item.index, facts).given

    return list(dict.fromkeys(item.step for item in wanted if is_labelled(item)))


def _require_labels(signed: SignedRun, data: Path | None, steps: Iterable[int]) -> None:
    """CircuitError for a step whose batch has a label that is no class."""
    from vtrain.prove.batches import require_classes
    from vtrain.train.data import read_samples

    samples = read_samples(data or signed.paths.samples, signed.task.data)
    require_classes(signed.task, signed.graph, samples, steps)


def _name(statement: Item) -> str:
    tile = f", statement {statement.index}" if statement.kind == "tile" else ""
    return f"step {statement.step}{tile}"


def _shorten(error: str, name: str) -> str:
    """The text of an error without its code, and without the place ``name``, which is said."""
    return re.sub(r" \[[a-z-]+\]$", "", error).removeprefix(f"{name}: ")


def _open_prover(
    signed: SignedRun, setup: ProofSetup, circuit: str | None, data: Path | None, engine: str
) -> StepProver | TileProver:
    """The prover for the kind of circuits that the task's commitments are for."""
    from vtrain.errors import RunError
    from vtrain.prove.steps.prover import StepProver
    from vtrain.prove.tiles.prover import TileProver

    if circuit is not None and circuit != setup.proof.circuit:
        raise click.UsageError(
            f"the task of RUN is for --circuit {setup.proof.circuit}: it would need "
            f'circuit = "{circuit}" under [proof], and commitments = ["blake3", "kzg"]'
        )
    if data is None and not signed.paths.samples.exists():
        raise RunError(
            "is not there: a run without its samples needs --data FILE",
            where=str(signed.paths.samples),
        )
    kind = TileProver if setup.proof.circuit == "tiles" else StepProver
    return kind(signed, setup, data=data, engine=engine)


def _require_queue() -> None:
    """MissingExtraError where the queue cannot be imported."""
    from vtrain.prove.backend.ezkl import require_extra

    require_extra("ezkl", "sqlalchemy")


def _locate(run: Path, queue: str | None) -> str:
    """URL of the queue: that of the run itself unless another is given."""
    if queue is not None:
        return queue
    from vtrain.commit.files import refuse_link, require_file, storing

    folder = run / "proofs"
    refuse_link(folder)
    with storing(folder):
        folder.mkdir(exist_ok=True)
    if (folder / "jobs.db").exists():
        require_file(folder / "jobs.db", root=run)
    return f"sqlite:///{folder.resolve() / 'jobs.db'}"


def _make_handler(prover: StepProver | TileProver, queue: JobQueue, progress: Progress) -> Handler:
    from vtrain.errors import VtrainError

    def handle(job: Job, tell: Progress, cancelled: threading.Event) -> bytes:
        name = _name(job.statement)

        def show(what: str, done: int, total: int) -> None:
            tell(what, done, total)
            progress(f"{name}: {what}", done, total)

        again = f" (attempt {job.attempt} of {job.most})" if job.attempt > 1 else ""
        show(f"begin{again}", 0, 1)
        try:
            proof = prover.prove(job.statement, queue.count_openings, show, cancelled)
        except VtrainError as error:
            echo(f"{name}: {_shorten(str(error), name)}", err=True)
            raise
        show("proven", 1, 1)
        return proof

    return handle


def _tell_taken(
    queue: JobQueue, run_id: bytes, only: Collection[int] | None = None
) -> Callable[[], None]:
    """What says, once for each, which jobs others hold that a worker waits for."""
    from vtrain.errors import EncodingError, StorageError

    told = set()

    def tell() -> None:
        with suppress(StorageError, EncodingError):  # whoever waits asks the queue again
            status = queue.status(run_id)
            for job in status.taken:
                holding = job.number, job.worker
                if holding in told or (only is not None and job.number not in only):
                    continue
                told.add(holding)
                message = (
                    f"{_name(job.statement)}: waiting for {job.worker}, whose lease "
                    f"{_tell_lease(**_measure(job, status.now))['lease']}"
                )
                echo(message, err=True)

    return tell


@command.command("traces", cls=CleanCommand)
@existing_folder("run")
@click.option(
    "--sample", required=True, type=click.IntRange(min=1), help="So many steps are drawn."
)
@click.option(
    "--seed",
    required=True,
    type=HexBytes(1, 64),
    metavar="HEX",
    help="The auditor's randomness of the first draw.",
)
@click.option(
    "--key",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The solver's key file, with which the run was signed.",
)
@prover_options
def traces_command(
    run: Path,
    sample: int,
    seed: bytes,
    key: Path,
    data: Path | None,
    engine: str,
    as_json: bool,
    **given: Any,
) -> int:
    """Commit to every tile of steps that an auditor's seed draws, and sign: RUN/proofs/traces.cbor.

    Then the auditor draws statements about these tiles, and `vtrain prove RUN` proves them.
    """
    from vtrain.attest.keys import load_key
    from vtrain.errors import CircuitError
    from vtrain.prove.audit import count_provable
    from vtrain.prove.tiles.protocol import compute_trace_claim_digest, draw_steps
    from vtrain.prove.tiles.prover import TileProver
    from vtrain.prove.tiles.verifier import traces_path

    signed = open_run(run)
    setup = make_setup(signed.task, **given)
    prover = TileProver(signed, setup, data=data, engine=engine)
    tell_capped(sample, count_provable(signed, setup.proof.every), "step", "that can be proven")
    try:
        drawn = draw_steps(seed, signed.signed.claim, setup.proof.every, sample)
        _require_labels(signed, data, drawn)
    except CircuitError as error:
        echo(f"warning: some statements cannot be proven: {error}", err=True)
    with show_progress(lines=True) as progress:
        claimed = prover.claim_traces(seed, sample, load_key(key), progress)
    traces = claimed.trace_claim.traces
    shown = {
        "file": str(traces_path(run)),
        "trace_claim": compute_trace_claim_digest(claimed.trace_claim).hex(),
        "asked": sample,
        "steps": [trace.step for trace in traces],
        "tiles": sum(trace.count for trace in traces),
        "statements": len(prover.tiling) * len(traces),
    }
    if as_json:
        print_json(shown)
    else:
        print_pairs(shown)
    return 0


@command.command("work", cls=CleanCommand)
@existing_folder("run")
@click.option("--queue", required=True, help="The queue, postgresql://... or sqlite:///...")
@click.option("--once", is_flag=True, help="End when no job of RUN is left.")
@prover_options
def work_command(
    run: Path,
    queue: str,
    once: bool,
    data: Path | None,
    engine: str,
    as_json: bool,
    **given: Any,
) -> int:
    """Take jobs of RUN from a queue, on this or another machine, until interrupted.

    Exit code 0 when it ends by itself (--once), also where jobs failed: `vtrain prove jobs` shows
    them.  2: an error.  3: the extra zk is not installed.  130, 143: interrupted by Ctrl-C, by
    SIGTERM.
    """
    _require_queue()
    from vtrain.prove.jobs import JobQueue, work

    signed = open_run(run)
    setup = make_setup(signed.task, **given)
    prover = _open_prover(signed, setup, None, data, engine)
    with show_progress(lines=True) as progress, JobQueue(queue, make=False) as jobs:
        run_id = signed.signed.claim.run_id
        kinds: tuple[Kind, ...] = ("tile",) if setup.proof.circuit == "tiles" else ("step",)
        handler = _make_handler(prover, jobs, progress)
        idle = _tell_taken(jobs, run_id)
        done = work(jobs, handler, run_id=run_id, kinds=kinds, once=once, idle=idle)
    if as_json:
        print_json({"done": done})
    else:
        echo(f"{count(done, 'proof')} made")
    return 0


@command.command("jobs", cls=VtrainCommand)
@existing_folder("run")
@click.option("--queue", help="The queue.  [default: the run's own]")
@click.option("--cancel", is_flag=True, help="Cancel all jobs of RUN that are not done.")
@json_option
def jobs_command(run: Path, queue: str | None, cancel: bool, as_json: bool) -> int:
    """Show the proof jobs of RUN: how many are in which state, who works on what, errors."""
    from vtrain.errors import RunError

    _require_queue()
    from vtrain.prove.jobs import JobQueue

    run_id = open_run(run).signed.claim.run_id
    own = run / "proofs" / "jobs.db"
    if queue is None and not own.exists():
        raise RunError("there is no queue: nothing was asked to be proven here", where=str(own))
    with JobQueue(_locate(run, queue), make=False) as jobs:
        if cancel:
            jobs.cancel(run_id)
        status = jobs.status(run_id)
    if as_json:
        print_json(
            {
                "counts": dict(status.counts),
                "taken": [_describe(job) | _measure(job, status.now) for job in status.taken],
                "troubled": [_describe(job) for job in status.troubled],
            }
        )
        return 0
    print_pairs({str(state): count for state, count in status.counts.items()} or {"jobs": 0})
    for job in status.taken:
        print_pairs(_describe(job) | _tell_lease(**_measure(job, status.now)))
    for job in status.troubled:
        print_pairs(_describe(job))
    return 0


def _measure(job: JobView, now: int) -> dict[str, float]:
    """Seconds since a worker was heard of, and until its lease runs out (below 0: it has)."""
    return {"heard_s": (now - job.updated) / 1000, "lease_s": (job.due - now) / 1000}


def _tell_lease(heard_s: float, lease_s: float) -> dict[str, str]:
    lease = (
        f"runs out in {lease_s:.0f} s"
        if lease_s > 0
        else f"ran out {-lease_s:.0f} s ago: the next worker that asks takes the job"
    )
    return {"heard of": f"{heard_s:.0f} s ago", "lease": lease}


def _describe(job: JobView) -> dict[str, Any]:
    return {
        "statement": _name(job.statement),
        "state": job.state,
        "worker": job.worker,
        "stage": job.progress.stage,
        "done": job.progress.done,
        "total": job.progress.total,
        "error": job.error,
    }


@command.command("setup", cls=VtrainCommand)
@existing_folder("run")
@click.option(
    "--circuit",
    "circuits",
    type=_CIRCUIT,
    metavar="NAME",
    multiple=True,
    help="Of this circuit; may be given again.  [default: those that the task pins, else step, or "
    "of tiles all that a step of RUN needs]",
)
@click.option(
    "--export",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write ONNX file, settings, columns and verifying key of each into the new folder DIR.",
)
@srs_option
@keys_options
@threads_option
@json_option
def setup_command(
    run: Path, circuits: tuple[str, ...], export: Path | None, as_json: bool, **given: Any
) -> int:
    """Make the keys of the circuits of RUN's task, and show the digests for a task to pin.

    With --export, DIR has all that verifying takes without vtrain (docs/format.md, 4b).

    A task that pins `step` alone rules out proofs of steps in which parameters saturate: these need
    --circuit step-clamps pinned as well.  One that pins some tile circuits rules out proofs of all
    tiles that need another.

    Exit code 0 when the keys are there.  2: an error, such as a task that pins other circuits.
    3: the extra zk is not installed.
    """
    from vtrain.prove.backend.cost import estimate
    from vtrain.prove.chain.size import tell_contract
    from vtrain.prove.export import export_circuits
    from vtrain.prove.tiles.tiling import Tiling

    signed = open_run(run)
    setup = make_setup(signed.task, **given)
    _require_circuits(setup, circuits)
    names = list(dict.fromkeys(circuits)) or list(setup.proof.circuits)
    if not names:
        whole = setup.proof.circuit == "step"
        names = ["step"] if whole else sorted(Tiling(signed.graph).circuits)
    found, made = {}, []
    with show_progress(lines=True) as progress:
        for name in names:
            ready = _make_ready(
                signed, setup, name, proving=True, progress=partial(_tell_of, progress, name)
            )
            found[name] = {
                "circuit": ready.pinned.digest.hex(),
                "key": ready.keys.vk_digest.hex(),
                "size": str(estimate(ready.circuit, setup.proof.k)),
                "on_chain": tell_contract(ready.circuit, setup.proof.k, setup.proof.hash),
                "folder": str(ready.keys.folder),
            }
            made.append(ready)
    shown = {"circuits": found, "srs": setup.proof.srs.hex(), "k": setup.proof.k}
    if export is not None:
        export_circuits(export, made)
        shown["export"] = str(export)
    if as_json:
        print_json(shown)
        return 0
    for name, pins in found.items():
        echo(f"[proof.circuits.{name}]  # {pins['size']}")
        echo(f"# on chain: {pins['on_chain']}")
        echo(f"# keys in {pins['folder']}")
        echo(f'circuit = "{pins["circuit"]}"')
        echo(f'key = "{pins["key"]}"')
    if export is not None:
        echo(f"# exported to {export}")
    return 0


def _require_circuits(setup: ProofSetup, names: Iterable[str]) -> None:
    """UsageError for a circuit of another layout than the task's."""
    kind = setup.proof.circuit
    wrong = sorted({*names} - {*CIRCUIT_NAMES[kind]})
    if wrong:
        raise click.UsageError(f'the task has circuit = "{kind}", of which {wrong[0]} is none')


def _build_circuit(signed: SignedRun, setup: ProofSetup, name: str) -> Circuit:
    from vtrain.prove.steps.circuits import build_step_circuit
    from vtrain.prove.tiles.circuits import build_tile_circuit

    if setup.proof.circuit == "step":
        return build_step_circuit(signed.graph, setup.proof.k, name)
    return build_tile_circuit(name)


def _make_ready(
    signed: SignedRun, setup: ProofSetup, name: str, *, proving: bool, progress: Progress
) -> ReadyCircuit:
    """A circuit with its keys, made where they are not there."""
    from vtrain.prove.setup import make_ready
    from vtrain.prove.steps.prepare import prepare_circuit
    from vtrain.prove.tiles.circuits import build_tile_circuit

    if setup.proof.circuit == "step":
        return prepare_circuit(signed.graph, setup, name, proving=proving, progress=progress)
    circuit = build_tile_circuit(name)
    return make_ready(name, circuit, setup, proving=proving, progress=progress)


def _tell_of(progress: Progress, thing: str, stage: str, done: int, total: int) -> None:
    progress(f"{thing}: {stage}", done, total)


@command.command("batches", cls=CleanCommand)
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
    "--hiding",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The secret that hides the batches, which the solver needs to log them (train "
    "--batch-hiding), and nobody else: a file for each solver.  [made if it is not there]",
)
@click.option(
    "--srs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The SRS file.  [default: the one that TASK names]",
)
@threads_option
@json_option
def batches_command(
    task: Path,
    out: Path,
    key: Path,
    hiding: Path,
    srs: Path | None,
    threads: int,
    as_json: bool,
) -> int:
    """As the owner of the data, sign what every batch of TASK is, for private audits of runs."""
    from vtrain.attest.keys import load_key
    from vtrain.commit.files import write_atomic
    from vtrain.commit.hiding import make_batch_secret
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.prove.batches import sign_batches
    from vtrain.train.task import compile_task, load_task
    from vtrain.wire.batches import encode_batches

    require_new(out)
    file = load_task(task, srs=srs)
    with show_progress(lines=True) as progress:
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
            make_batch_secret(hiding),
            threads=threads,
            progress=progress,
        )
    write_atomic(out, [encode_batches(signed)])
    shown = {
        "file": str(out),
        "secret": str(hiding),
        "owner": signed.owner.hex(),
        "batches": len(signed.commitments),
    }
    if as_json:
        print_json(shown)
    else:
        print_pairs(shown)
    return 0


@command.command("disclose", cls=CleanCommand)
@existing_folder("run")
@click.option("--steps", required=True, type=StepsType(), help="These steps, such as 3,7,20-24.")
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The new file."
)
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The canonical sample table, for a run without it.",
)
@engine_option
@threads_option
@json_option
def disclose_command(
    run: Path,
    steps: tuple[int, ...],
    out: Path,
    data: Path | None,
    engine: str,
    threads: int,
    as_json: bool,
) -> int:
    """Write the keys of some steps of RUN, with which an auditor who has its tensors compares
    their commitments: `vtrain verify --srs FILE --hiding OUT`.

    Disclosing a step opens the state before it, the state after it, its batch and its trace.
    Whoever has the keys and the public files can test guesses of these tensors, and proofs about
    them, those made before included, hide nothing from it any more.  All other steps stay hidden,
    but for a state that they share.

    Needs RUN/hiding.key, and the run's checkpoints and samples.
    """
    from vtrain.commit.files import write_atomic
    from vtrain.errors import NotProducedError, RunError
    from vtrain.prove.disclose import disclose_steps
    from vtrain.prove.runs import StepSource
    from vtrain.train.signed import read_hiding_of
    from vtrain.wire import structs

    require_new(out)
    signed = open_run(run)
    proof = signed.task.kzg
    if proof is None:
        raise RunError("logs no KZG commitments: nothing is hidden", where=str(run))
    secrets = read_hiding_of(signed.paths, None)
    if not (secrets.states and secrets.batches):
        raise NotProducedError(
            "is missing: the keys follow from the solver's secrets", where=str(signed.paths.hiding)
        )
    source = StepSource(signed, proof, secrets, data=data, engine=engine, threads=threads)
    hiding = disclose_steps(signed, source, steps)
    write_atomic(out, [structs.encode(hiding)], secret=True)
    shown = {"file": str(out), "steps": len(set(steps)), "keys": len(hiding.keys)}
    if as_json:
        print_json(shown)
    else:
        print_pairs(shown)
    return 0


@command.command("export-evm", cls=VtrainCommand)
@existing_folder("run")
@click.option(
    "--circuit",
    "name",
    required=True,
    type=_CIRCUIT,
    metavar="NAME",
    help="The circuit, of those that RUN's task is for.",
)
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
@click.option(
    "--max-code",
    type=click.IntRange(min=1),
    help="Bytes of code that the chain deploys at most.  [default: Ethereum's 24576]",
)
@click.option("--allow-insecure-srs", is_flag=True, help="Exit with 0 for an insecure SRS too.")
@srs_option
@keys_options
@threads_option
@json_option
def export_command(
    run: Path,
    name: str,
    out: Path,
    solc: Path | None,
    max_code: int | None,
    allow_insecure_srs: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Write the Solidity contracts that verify proofs of a circuit of RUN's task.

    The task must have hash = "keccak256" under [proof], by which the contract draws challenges.
    Before keys are made, a circuit is refused of which no contract does so (exit code 2), and one
    whose code is too large to deploy (exit code 3).  Exit code 4 for an insecure SRS.
    """
    from vtrain.errors import StorageError
    from vtrain.prove.chain.evm import export_evm, find_compiler
    from vtrain.prove.chain.size import MAX_CODE, estimate_code
    from vtrain.prove.chain.statement import bind_circuit, require_drawable

    if out.exists():
        raise StorageError("the folder exists: name a new one", where=str(out))
    signed = open_run(run)
    setup = make_setup(signed.task, **given)
    _require_circuits(setup, [name])
    require_drawable(setup.proof.hash)
    circuit = _build_circuit(signed, setup, name)
    require_drawable(setup.proof.hash, circuit)
    most = max_code or MAX_CODE
    about = estimate_code(circuit, setup.proof.k)
    if not about.may_fit(most):
        echo(
            f"{name} would have about {about.size} bytes of code, the most is {most}: {_SMALLER}",
            err=True,
        )
        if as_json:
            print_json({"code": about.size, "most_code": most, "fits": False})
        return EXIT_CODES["inconclusive"]
    compiler = find_compiler(solc)
    with show_progress(lines=True) as progress:
        ready = _make_ready(signed, setup, name, proving=False, progress=progress)
    key = setup.open_key()
    binding = bind_circuit(ready.circuit, ready.pinned, key, threads=setup.limits.threads)
    made = export_evm(
        settings=ready.keys.settings,
        vk=ready.keys.vk,
        srs=setup.srs,
        out=out,
        limits=setup.limits,
        binding=binding,
        solc=compiler,
    )
    fits = made.verifier.size <= most
    shown = {
        "folder": str(made.folder),
        "code": made.verifier.size,
        "most_code": most,
        "fits": fits,
        "proof_bytes": made.length,
        "commitments": made.tensors,
        "insecure": made.insecure,
    }
    if as_json:
        print_json(shown)
    else:
        print_pairs(shown)
    if not fits:
        echo(
            f"{made.verifier.name} has {made.verifier.size} bytes of code, the most is {most}: "
            f"{_SMALLER}",
            err=True,
        )
    if made.insecure and not allow_insecure_srs:
        echo(
            "the SRS is of no ceremony: whoever made it can forge (--allow-insecure-srs)", err=True
        )
    if not fits:
        return EXIT_CODES["inconclusive"]
    trusted = not made.insecure or allow_insecure_srs
    return EXIT_CODES["verified" if trusted else "conditional"]


_SMALLER = "the same circuit at a larger k has fewer blocks, and less code"
