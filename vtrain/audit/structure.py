"""The structure check: everything about a run that can be told at hashing speed, always done.

It holds every byte of the run against the solver's signature: claim -> task, log root; task ->
graph, samples, model, initial state; log -> each checkpoint and batch.  Bytes that are missing or
are not those signed for prove nothing against the solver (they may have been spoiled on the way),
so the check that finds them fails with the fault "nobody".  A signature under something false
proves fraud: such a check fails with the fault "solver".  Only what is held against an authentic
log of a coherent task can do so: nobody is convicted by a task that contradicts itself.

The run is hostile input.  Each size is checked before its bytes are read, and what costs time or
memory comes after what is cheap.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

from vtrain.audit.order import MISSING, PUBLISHED_NEEDS, REFUSED_FOR_PIN, STRUCTURE, Rule
from vtrain.audit.pin import Pin, compare_claims
from vtrain.audit.plan import Segments
from vtrain.commit.checkpoint import compute_checkpoint_size
from vtrain.commit.digest import compute_tensor_digest
from vtrain.commit.files import FileEntry, open_file, read_entry
from vtrain.commit.kzg_log import count_commitments, is_point
from vtrain.engines.base import State, check_state
from vtrain.errors import RunError, VtrainError
from vtrain.graph.legality import check_graph
from vtrain.graph.step import STEP_STATE
from vtrain.limits import Limits, limits_here
from vtrain.printable import cut
from vtrain.spec.commitment import compute_batch_digest, compute_task_id
from vtrain.spec.samples import Samples, compute_samples_length
from vtrain.threads import check_threads
from vtrain.train import signed as evidence
from vtrain.train.data import compute_samples_root, gather_batch, read_samples
from vtrain.train.layout import CHECKPOINT_NAME, Manifest, RunPaths, read_manifest
from vtrain.wire.claim import SignedClaim
from vtrain.wire.graph import StepGraph
from vtrain.wire.proof import KzgRecord, decode_kzg_record
from vtrain.wire.record import StepRecord, decode_record
from vtrain.wire.report import Blame, Check
from vtrain.wire.task import TaskSpec

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""(what is being checked, how much is done, of how much)"""


_CHECKPOINT = re.compile(rf"checkpoints/{CHECKPOINT_NAME}")
_BLOCK: Final = 64
"""Steps whose batches one thread hashes at a time."""
_SHOWN: Final = 5
"""Failures of one kind that a report lists one by one."""


class FindingError(Exception):
    """A check found something wrong.  Stays within the audit, where it becomes a failed check."""

    def __init__(self, detail: str, where: str = "", fault: Blame = "nobody") -> None:
        super().__init__(detail)
        # As errors do: both may quote what the solver wrote.
        self.detail, self.where, self.fault = cut(detail), cut(where), fault


class Bringer(Protocol):
    """What brings a run here as an audit goes on: ``vtrain.audit.published.Published``."""

    def makes(self, rule: str, *, data: bool) -> bool:
        """Whether the check ``rule`` is made; ``data``: the auditor has the samples."""
        ...

    def bring(self, rule: str, claim: SignedClaim | None, task: TaskSpec | None) -> None:
        """Bring what the check ``rule`` looks at; errors are those of the check."""
        ...

    def shorten(self, where: str) -> str:
        """A place in what the run is brought from, without the address of that."""
        ...

    def open_samples(self, evidence: Evidence) -> Evidence:
        """``evidence`` with samples that are brought when they are drawn."""
        ...


@dataclass
class Ledger:
    """The checks of one audit, in the order in which they were made."""

    root: Path
    checks: list[Check] = field(default_factory=list)
    bringer: Bringer | None = None

    def attempt(
        self, name: str, place: str, work: Callable[[], tuple[str, T]], *, unless: str = ""
    ) -> T | None:
        """Do a check and enter it; its value, or None when it failed or could not be done.

        ``unless``: why it cannot be done.  ``place`` is where it looks, for errors that name none.
        """
        if unless:
            self.checks.append(Check(name, "not_done", unless, place))
            return None
        try:
            detail, value = work()
        except FindingError as found:
            self.fail(name, found, place)
            return None
        except VtrainError as error:
            self.fail(name, FindingError(error.message, self._shorten(error.where)), place)
            return None
        self.checks.append(Check(name, "passed", detail, place))
        return value

    def fail(self, name: str, found: FindingError, place: str) -> None:
        """Enter a failed check."""
        where = found.where or place
        if place and place not in where and found.fault == "nobody":
            where = f"{place}: {where}"
        self.checks.append(Check(name, "failed", found.detail, where, found.fault))

    def _shorten(self, where: str) -> str:
        """Places inside the run are named from its root, and those in a store from its address."""
        where = where.removeprefix(f"{self.root}{os.sep}")
        return where if self.bringer is None else self.bringer.shorten(where)


@dataclass(frozen=True)
class Evidence:
    """What the structure check established; None or empty for what it could not.

    ``records`` are those of an authentic log alone, and so are the ``kzg`` records, None where the
    task asks for none or what is signed is none.  ``checkpoints`` are the steps whose checkpoint is
    there and has the root signed for.
    """

    task: TaskSpec | None
    task_id: bytes
    signed: SignedClaim | None
    graph: StepGraph | None
    samples: Samples | None
    records: tuple[StepRecord, ...]
    segments: Segments | None
    checkpoints: frozenset[int]
    checks: tuple[Check, ...]
    extra_files: tuple[str, ...]
    kzg: tuple[KzgRecord, ...] | None = None
    refused: SignedClaim | None = None
    """The claim that is there, where it is signed by who was asked for and yet not the one pinned:
    nothing was held against it."""
    manifest: Manifest | None = None
    """The index, which nobody signed: what it counts is for people."""
    partial: bool = False
    """Only what a draw asks for is here: samples, batches and checkpoints are checked after it, as
    far as it needs them."""


def check_structure(
    run: Path,
    *,
    pin: Pin | None = None,
    solver: bytes | None = None,
    task_id: bytes | None = None,
    data: Path | None = None,
    threads: int = 0,
    limits: Limits | None = None,
    progress: Progress = lambda what, done, total: None,
    bringer: Bringer | None = None,
) -> Evidence:
    """Check everything but the arithmetic of the steps; never raises for what is in ``run``.

    ``pin``: the claim that the auditor holds; another is as good as none.  ``solver``: the public
    key that must have signed.  ``task_id``: the task that was agreed on.  ``data``: the sample
    table, for a run without one.  ``limits``: those of this machine unless given.  ``bringer``
    fills ``run`` as it goes, and says which checks are made.  RunError for too many ``threads``,
    and for ``data`` that is no file.
    """
    check_threads(threads)
    if data is not None and not data.is_file():
        raise RunError(
            "is no file: name the sample table, as data/samples.bin of the run was made",
            where=str(data),
        )
    if limits is None:
        limits = limits_here()
    paths = RunPaths(run)
    if bringer is None and (unfinished := _find_unfinished(paths)):
        return _end_unfinished(unfinished)
    ledger = Ledger(run, bringer=bringer)
    audit = _Audit(paths, ledger, pin, solver, task_id, data, threads, limits, progress, bringer)
    for rule in STRUCTURE:
        if bringer is None or bringer.makes(rule.name, data=data is not None):
            _MAKE[rule.name](audit, rule)
    found = Evidence(
        task=audit.task,
        task_id=b"" if audit.task is None else compute_task_id(audit.task),
        signed=audit.claim,
        graph=audit.legal,
        samples=audit.samples,
        records=tuple(audit.records or ()),
        segments=audit.segments,
        checkpoints=audit.checkpoints,
        checks=tuple(audit.ledger.checks),
        extra_files=audit.extra_files,
        kzg=None if audit.kzg is None else tuple(audit.kzg),
        refused=audit.refused,
        manifest=audit.manifest,
        partial=bringer is not None,
    )
    return found if bringer is None else bringer.open_samples(found)


@dataclass
class _Audit:
    """One audit: what it was asked, and what its checks have established so far.

    A fact of ``vtrain.audit.order`` is the attribute of its name, None while it is missing.
    """

    paths: RunPaths
    ledger: Ledger
    pin: Pin | None
    solver: bytes | None
    task_id: bytes | None
    data: Path | None
    threads: int
    limits: Limits
    progress: Progress
    bringer: Bringer | None = None
    claim: SignedClaim | None = None
    refused: SignedClaim | None = None
    task: TaskSpec | None = None
    manifest: Manifest | None = None
    graph: StepGraph | None = None
    legal: StepGraph | None = None
    extra_files: tuple[str, ...] = ()
    samples: Samples | None = None
    leaves: list[bytes] | None = None
    records: list[StepRecord] | None = None
    kzg_leaves: list[bytes] | None = None
    kzg: list[KzgRecord] | None = None
    checkpoints: frozenset[int] = frozenset()

    @property
    def kzg_root(self) -> bytes | None:
        """The root of the KZG log that is signed for, if any is."""
        return (self.claim.claim.kzg_root or None) if self.claim else None

    @property
    def segments(self) -> Segments | None:
        """The segments between checkpoints, as far as the log commits to states."""
        return _cut_segments(self.task, self.records)

    def attempt(
        self, rule: Rule, work: Callable[[], tuple[str, T]], place: str | None = None
    ) -> T | None:
        """Make a check, unless something that it needs is missing; its value if it passes."""
        where = rule.place if place is None else place

        def bring_and_work() -> tuple[str, T]:
            if self.bringer is not None:
                self.bringer.bring(rule.name, self.claim, self.task)
            return work()

        return self.ledger.attempt(rule.name, where, bring_and_work, unless=self.miss(rule))

    def miss(self, rule: Rule) -> str:
        """Why a check cannot be made; empty where it can."""
        more = PUBLISHED_NEEDS.get(rule.name, ()) if self.bringer is not None else ()
        needs = (*rule.needs, *more)
        missing = next((fact for fact in needs if getattr(self, fact) is None), None)
        if missing is None:
            return ""
        return REFUSED_FOR_PIN if missing == "claim" and self.refused else MISSING[missing]

    @property
    def logs_kzg(self) -> bool:
        """Whether the task logs KZG commitments."""
        return self.task is not None and self.task.kzg is not None


def _make_claim(audit: _Audit, rule: Rule) -> None:
    audit.claim = audit.attempt(
        rule, lambda: _read_claim(audit.paths, audit.limits, audit.pin, audit.solver)
    )
    if audit.claim is None:
        audit.refused = _read_refused(audit.paths, audit.limits, audit.solver)


def _make_task(audit: _Audit, rule: Rule) -> None:
    audit.task = audit.attempt(
        rule, lambda: _read_task(audit.paths, audit.claim, audit.task_id, audit.limits)
    )


def _make_complete(audit: _Audit, rule: Rule) -> None:
    audit.attempt(rule, lambda: _check_complete(audit.task, audit.claim, audit.task_id))


def _make_manifest(audit: _Audit, rule: Rule) -> None:
    audit.manifest = audit.attempt(rule, lambda: ("is canonical", read_manifest(audit.paths)))


def _make_index(audit: _Audit, rule: Rule) -> None:
    audit.attempt(rule, lambda: _check_index(audit.manifest, audit.claim))


def _make_graph(audit: _Audit, rule: Rule) -> None:
    # Early, as it says how large a state is: no file of another size is read.
    audit.graph = audit.attempt(rule, lambda: _read_graph(audit.paths, audit.task, audit.limits))


def _make_legality(audit: _Audit, rule: Rule) -> None:
    audit.legal = audit.attempt(rule, lambda: _check_legal(audit.task, audit.graph, audit.limits))


def _make_files(audit: _Audit, rule: Rule) -> None:
    audit.extra_files = _check_files(audit, rule)


def _make_model(audit: _Audit, rule: Rule) -> None:
    audit.attempt(rule, lambda: _check_model(audit.paths, audit.task, audit.limits))


def _make_samples(audit: _Audit, rule: Rule) -> None:
    table, brought = audit.data or audit.paths.samples, audit.data is not None
    root = None if brought else audit.paths.root
    audit.samples = audit.attempt(
        rule,
        lambda: _read_samples(table, audit.task, audit.limits, root),
        str(table) if brought else None,
    )


def _make_log(audit: _Audit, rule: Rule) -> None:
    audit.leaves = audit.attempt(rule, lambda: _read_log(audit.paths, audit.claim, audit.limits))


def _make_records(audit: _Audit, rule: Rule) -> None:
    audit.records = audit.attempt(rule, lambda: _check_records(audit.task, audit.leaves))


def _make_batches(audit: _Audit, rule: Rule) -> None:
    audit.attempt(
        rule,
        lambda: _check_batches(
            audit.task, audit.samples, audit.records, audit.threads, audit.progress
        ),
    )


def _make_kzg_log(audit: _Audit, rule: Rule) -> None:
    def read() -> tuple[str, list[bytes]]:
        claim, proof = _known(audit.claim).claim, _known(_known(audit.task).kzg)
        leaves = evidence.read_kzg_leaves(audit.paths, claim, proof.every, audit.limits.log_bytes)
        return f"{len(leaves)} records under the signed root", leaves

    if audit.logs_kzg:
        audit.kzg_leaves = audit.attempt(rule, read)


def _make_kzg_records(audit: _Audit, rule: Rule) -> None:
    if audit.logs_kzg:
        audit.kzg = audit.attempt(
            rule,
            lambda: _check_kzg_records(
                _known(audit.task), _known(audit.legal), _known(audit.kzg_leaves)
            ),
        )


def _make_checkpoints(audit: _Audit, rule: Rule) -> None:
    audit.checkpoints = _check_checkpoints(audit, rule)


_MAKE: Final[Mapping[str, Callable[[_Audit, Rule], None]]] = {
    "claim": _make_claim,
    "task": _make_task,
    "complete": _make_complete,
    "manifest": _make_manifest,
    "index": _make_index,
    "graph": _make_graph,
    "legality": _make_legality,
    "files": _make_files,
    "model": _make_model,
    "samples": _make_samples,
    "log": _make_log,
    "records": _make_records,
    "batches": _make_batches,
    "kzg_log": _make_kzg_log,
    "kzg_records": _make_kzg_records,
    "checkpoints": _make_checkpoints,
}
"""How each check of ``STRUCTURE`` is made."""


def _read_refused(paths: RunPaths, limits: Limits, solver: bytes | None) -> SignedClaim | None:
    """The claim that was refused for its pin alone."""
    try:
        found = evidence.read_claim(paths, limits.claim_bytes)
    except VtrainError:
        return None
    return found if solver in (None, found.claim.solver) else None


def _known(value: T | None) -> T:
    """What an earlier check established: a check that needs it is not attempted without it."""
    if value is None:
        raise RunError("is not known", where="audit")
    return value


def _find_unfinished(paths: RunPaths) -> str:
    """Why a folder with the beginnings of a run has no claim yet; empty where it has one, or is no
    run at all.  Its files lie as an interrupted process left them: they are no evidence."""
    if os.path.lexists(paths.claim) or not os.path.lexists(paths.task):
        return ""
    try:
        task = evidence.read_task(paths)
        steps = read_manifest(paths).steps if os.path.lexists(paths.manifest) else 0
        reached = f"it stands at {steps} of {task.steps} steps"
    except VtrainError:
        reached = "how far it is cannot be told"
    return (
        f"the run is unfinished: nothing is claimed yet, and {reached}; `vtrain train` goes on and "
        "signs a claim at the end"
    )


def _end_unfinished(reason: str) -> Evidence:
    """The evidence of a run that claims nothing: none."""
    return Evidence(
        task=None,
        task_id=b"",
        signed=None,
        graph=None,
        samples=None,
        records=(),
        segments=None,
        checkpoints=frozenset(),
        checks=(Check("claim", "not_done", reason, "claim.cbor"),),
        extra_files=(),
    )


def _read_claim(
    paths: RunPaths, limits: Limits, pin: Pin | None, solver: bytes | None
) -> tuple[str, SignedClaim]:
    signed = evidence.read_claim(paths, limits.claim_bytes)
    claim, said = signed.claim, "the solver's signature holds"
    if solver is not None and claim.solver != solver:
        raise FindingError(f"is signed by {claim.solver.hex()}, not by {solver.hex()} as asked for")
    if pin is None:
        return said, signed
    other = compare_claims(pin, claim, paths, limits.log_bytes)
    if other is not None:
        raise FindingError(other.reason, fault="solver" if other.contradicts else "nobody")
    return f"{said}; it is the claim that was pinned", signed


def _read_task(
    paths: RunPaths, signed: SignedClaim | None, wanted: bytes | None, limits: Limits
) -> tuple[str, TaskSpec]:
    task = evidence.read_task(paths, limits.task_bytes)
    found = compute_task_id(task)
    if signed is not None and signed.claim.task_id != found:
        claimed = signed.claim.task_id.hex()
        raise FindingError(f"is task {found.hex()}, the signed claim is about {claimed}")
    if wanted is not None and found != wanted:
        raise FindingError(f"is task {found.hex()}, not {wanted.hex()} as asked for")
    return "is the task that the claim is about" if signed else "its id follows from it", task


def _check_complete(
    task: TaskSpec | None, signed: SignedClaim | None, wanted: bytes | None
) -> tuple[str, None]:
    """An unfinished run may be audited as far as it is claimed; who names the task that was agreed
    on wants all of it."""
    steps, claimed = _known(task).steps, _known(signed).claim.log_size
    every = _known(task).commit_every
    if bool(_known(signed).claim.kzg_root) != (_known(task).kzg is not None):
        found = "asks for one" if _known(task).kzg else "asks for none"
        raise FindingError(
            f"a root of KZG commitments: the task {found}, the claim has it otherwise",
            "claim.kzg_root",
            "solver",
        )
    if claimed > steps:
        raise FindingError(
            f"claims {claimed} steps of a task of {steps}", "claim.log_size", "solver"
        )
    if claimed % every:
        loose = claimed - claimed % every + 1
        raise FindingError(f"steps {loose} to {claimed} lead to no state root", "claim.log_size")
    if claimed < steps:
        unfinished = f"the run is not finished: {claimed} of {steps} steps"
        if wanted is not None:
            raise FindingError(unfinished, "claim.log_size")
        return unfinished, None
    return f"all {steps} steps of the task are claimed", None


def _check_index(manifest: Manifest | None, signed: SignedClaim | None) -> tuple[str, None]:
    index, claim = _known(manifest), _known(signed).claim
    for name, found, claimed in (
        ("run_id", index.run_id.hex(), claim.run_id.hex()),
        ("task_id", index.task_id.hex(), claim.task_id.hex()),
        ("steps", index.steps, claim.log_size),
    ):
        if found != claimed:
            raise FindingError(f"is {found}, the signed claim has {claimed}", f"manifest.{name}")
    return "the manifest is that of the run claimed", None


def _check_files(audit: _Audit, rule: Rule) -> tuple[str, ...]:
    """Hold each file against the manifest; return the files that belong to no run.

    Task and graph (None where they are not known) say how large the samples and a checkpoint are:
    a stranger's manifest may list any number of any size, of files that are mostly holes.
    """
    paths, limits, manifest, task = audit.paths, audit.limits, audit.manifest, audit.task
    if manifest is None:
        audit.attempt(rule, lambda: ("", None))
        return ()
    most = {
        paths.name_of(paths.task): limits.task_bytes,
        paths.name_of(paths.graph): limits.graph_bytes,
        paths.name_of(paths.model): limits.model_bytes,
        paths.name_of(paths.log): limits.log_bytes,
    }
    if audit.logs_kzg:
        most[paths.name_of(paths.kzg)] = limits.log_bytes
    table = paths.name_of(paths.samples)
    table_size = None if task is None else compute_samples_length(task.data)
    state_size = None if audit.legal is None else compute_checkpoint_size(audit.legal)
    bad = left = 0

    def check(name: str, entry: FileEntry) -> None:
        nonlocal left
        if name in most:
            _check_entry(paths, name, entry, most[name])
            return
        if name != table and not _CHECKPOINT.fullmatch(name):
            raise FindingError(f"lists {name!r}, which is no file of a run", "manifest.json")
        due, limit = state_size, limits.state_bytes
        if name == table:
            due, limit = table_size, limits.samples_bytes
        if due is None:
            left += 1
            return
        if entry.size != due:
            raise FindingError(f"is listed with {entry.size} bytes, the task has {due}")
        _check_entry(paths, name, entry, limit)

    def fail(found: FindingError) -> None:
        nonlocal bad
        bad += 1
        if bad <= _SHOWN:
            audit.ledger.fail(rule.name, found, "")

    for name in sorted(most.keys() - manifest.files.keys()):
        fail(FindingError("the manifest does not list it", name))
    for count, (name, entry) in enumerate(manifest.files.items()):
        audit.progress(rule.name, count, len(manifest.files))
        if name == table and audit.data is not None:
            continue
        try:
            check(name, entry)
        except FindingError as found:
            fail(FindingError(found.detail, found.where or name))
        except VtrainError as error:
            fail(FindingError(error.message, name))
    if bad > _SHOWN:
        audit.ledger.fail(rule.name, FindingError(f"and {bad - _SHOWN} more", "manifest.json"), "")
    if not bad:
        unknown = f", but for {left}, whose size is not known" if left else ""
        detail = f"{len(manifest.files)} files as listed{unknown}"
        audit.attempt(rule, lambda: (detail, None))
    unlisted = {paths.name_of(path) for path in paths.list_unlisted()}
    known = manifest.files.keys() | unlisted
    return tuple(name for name in _walk(paths.root, limits.entries) if name not in known)


def _check_entry(paths: RunPaths, name: str, listed: FileEntry, limit: int) -> None:
    """Size first: a file of another size, or of a size that no run has, is not read."""
    path = paths.root / name
    with open_file(path, sys.maxsize, root=paths.root) as file:
        if file.size != listed.size:
            raise FindingError(f"has {file.size} bytes, the manifest lists {listed.size}")
    if listed.size > limit:
        raise FindingError(f"has {listed.size} bytes, this auditor takes {limit}")
    if read_entry(path, limit, root=paths.root) != listed:
        raise FindingError("is not the file that the manifest lists: its BLAKE3 differs")


def _walk(root: Path, limit: int) -> Iterator[str]:
    """Names of what is in a folder and below, links not followed; ``limit`` entries are looked at.

    Without recursion: folders may lie in one another deeper than Python's stack.
    """
    seen, folders = 0, [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                found = sorted(
                    (entry.name, entry.is_dir(follow_symlinks=False))
                    for entry in itertools.islice(entries, limit - seen)
                )
        except OSError:
            continue
        seen += len(found)
        folders += [f"{folder}{name}/" for name, is_folder in reversed(found) if is_folder]
        yield from (f"{folder}{name}" for name, is_folder in found if not is_folder)


def _read_graph(paths: RunPaths, task: TaskSpec | None, limits: Limits) -> tuple[str, StepGraph]:
    graph = evidence.read_graph(paths, _known(task), limits.graph_bytes)
    return f"{len(graph.nodes)} nodes, as the task pins them", graph


def _check_legal(
    task: TaskSpec | None, graph: StepGraph | None, limits: Limits
) -> tuple[str, StepGraph]:
    spec, checked = _known(task), _known(graph)
    try:
        check_graph(checked)
    except VtrainError as error:
        raise FindingError(error.message, error.where, "task") from None
    _check_fields(spec, checked)
    evidence.check_size(checked, limits)
    return "types, ranges and commitments derived anew; the graph is that of the task", checked


def _check_fields(task: TaskSpec, graph: StepGraph) -> None:
    """FindingError, the task's fault, unless its fields say what its graph does.

    ``graph`` is legal: its batch follows from its counter, and the digest recorded is that of the
    batch.  What is left is whether these are the batches and the commitments of the task.
    """

    def agree(place: str, claimed: object, found: object) -> None:
        if claimed != found:
            raise FindingError(f"the task has {claimed}, the graph {found}", place, "task")

    index = graph.nodes[graph.find("sample_index")].attrs
    agree("task.seed", task.seed.to_bytes(8, "little"), index["seed"])
    agree("task.batch", task.batch, index["batch"])
    agree("task.data.samples", task.data.samples, index["samples"])
    record = graph.nodes[graph.find("record")].attrs
    agree("task.commit_every", task.commit_every, record["commit_every"])
    if task.kzg is not None:
        count, _ = count_commitments(task.kzg, graph, task.data, task.batch)
        if len(task.kzg.initial) != count:
            raise FindingError(
                f"has {len(task.kzg.initial)} commitments, the graph's state {count} columns",
                "task.proof.initial",
                "task",
            )
        if not all(map(is_point, task.kzg.initial)):
            raise FindingError("is not made of points of the curve", "task.proof.initial", "task")
    data = task.data
    forms = {
        "x": (data.x_dtype, data.x_shape, data.x_exponent),
        "y": (data.y_dtype, data.y_shape, data.y_exponent),
    }
    sites = {}
    for node in graph.nodes:
        if node.op == "gather_samples":
            part = str(node.attrs["part"])
            found = tuple(node.attrs[key] for key in ("dtype", "shape", "exponent"))
            agree(f"task.data.{part}", forms[part], found)
        elif node.op == "rescale":
            sites[node.name] = node.outputs[0].exponent
    for site, exponent in task.exponents.items():
        if site not in sites:
            raise FindingError(
                "is not a rescale node of the graph", f"task.exponents.{site}", "task"
            )
        agree(f"task.exponents.{site}", exponent, sites[site])


def _check_model(paths: RunPaths, task: TaskSpec | None, limits: Limits) -> tuple[str, None]:
    found = read_entry(paths.model, limits.model_bytes, root=paths.root)
    if found.digest != _known(task).model_digest:
        raise FindingError("is not the file that the task names")
    return "as the task names it", None


def _read_samples(
    table: Path, task: TaskSpec | None, limits: Limits, root: Path | None
) -> tuple[str, Samples]:
    """``root`` is the run that the table lies in, None for one that the auditor brought."""
    spec = _known(task).data
    samples = read_samples(table, spec, limits, root=root)
    if compute_samples_root(samples) != spec.root:
        raise FindingError("are not the samples that the task commits to")
    return f"{spec.samples} samples have the task's root", samples


def _read_log(
    paths: RunPaths, signed: SignedClaim | None, limits: Limits
) -> tuple[str, list[bytes]]:
    leaves = evidence.read_leaves(paths, _known(signed).claim, limits.log_bytes)
    return f"{len(leaves)} records under the signed root", leaves


def _check_records(
    task: TaskSpec | None, leaves: list[bytes] | None
) -> tuple[str, list[StepRecord]]:
    """Every leaf is a record, of the step it stands at, with a state root just where one is due."""
    every, records = _known(task).commit_every, []
    for step, leaf in enumerate(_known(leaves), start=1):
        try:
            record = decode_record(leaf)
        except VtrainError as error:
            raise FindingError(f"is no record: {error.message}", f"step {step}", "solver") from None
        if record.step != step:
            raise FindingError(f"is recorded as step {record.step}", f"step {step}", "solver")
        if bool(record.state_root) != (step % every == 0):
            has = "has a state root" if record.state_root else "has no state root"
            raise FindingError(f"{has}; one is due every {every} steps", f"step {step}", "solver")
        records.append(record)
    return f"{len(records)} steps in order, a state root every {every}", records


def _check_kzg_records(
    task: TaskSpec, graph: StepGraph, leaves: list[bytes]
) -> tuple[str, list[KzgRecord]]:
    """Every leaf is a record of the step it stands for, with as many commitments as that step has
    columns, all of them points, and goes on from where the one before it ended."""
    proof = _known(task.kzg)
    state, batch = count_commitments(proof, graph, task.data, task.batch)
    ended = 0, (proof.initial, proof.initial_key)
    records: list[KzgRecord] = []
    for index, leaf in enumerate(leaves):
        step = (index + 1) * proof.every
        try:
            record = decode_kzg_record(leaf)
        except VtrainError as error:
            raise FindingError(
                f"is no KZG record: {error.message}", f"step {step}", "solver"
            ) from None
        if record.step != step:
            raise FindingError(
                f"is recorded as step {record.step}; a KZG record is due every {proof.every} steps",
                f"step {step}",
                "solver",
            )
        parts = (("before", record.before, state), ("batch", record.batch, batch))
        for name, found, count in (*parts, ("after", record.after, state)):
            if len(found) != count:
                raise FindingError(
                    f"has {len(found)} commitments, {count} are due",
                    f"step {step}: {name}",
                    "solver",
                )
            wrong = next((i for i, item in enumerate(found) if not is_point(item)), None)
            if wrong is not None:
                raise FindingError(
                    f"commitment {wrong} is no point of the curve", f"step {step}: {name}", "solver"
                )
        if ended[0] == step - 1 and (record.before, record.before_key) != ended[1]:
            whose = f"after step {step - 1}" if step > 1 else "that the task begins with"
            raise FindingError(
                f"are not the commitments to the state {whose}", f"step {step}: before", "solver"
            )
        ended = step, (record.after, record.after_key)
        records.append(record)
    return f"{len(records)} records in order, each a step's commitments, all on the curve", records


def _cut_segments(task: TaskSpec | None, records: list[StepRecord] | None) -> Segments | None:
    """The segments between checkpoints, as far as the log commits to states."""
    if task is None or records is None or len(records) < task.commit_every:
        return None
    return Segments(len(records) - len(records) % task.commit_every, task.checkpoint_every)


def _check_batches(
    task: TaskSpec | None,
    samples: Samples | None,
    records: list[StepRecord] | None,
    threads: int,
    progress: Progress,
) -> tuple[str, None]:
    """Recompute every batch digest: which samples, gather, hash."""
    known = _known(records)
    starts = range(0, len(known), _BLOCK)
    wrong: list[int] = []
    digests: dict[bytes, int] = {}

    def work(start: int) -> list[bytes]:
        steps = range(start, min(start + _BLOCK, len(known)))
        return digest_batches(_known(task), _known(samples), steps)

    with _map_over_threads(work, starts, threads) as jobs:
        for start, block in zip(starts, jobs, strict=True):
            progress("batches", start, len(known))
            for step, digest in enumerate(block, start=start + 1):
                digests[digest] = step
                if known[step - 1].batch_digest != digest:
                    wrong.append(step)
    if wrong:
        step = wrong[0]
        other = digests.get(known[step - 1].batch_digest)
        what = f"the batch of step {other}" if other else "no batch of this run"
        more = f"; {len(wrong)} steps have a wrong batch" if len(wrong) > 1 else ""
        detail = f"the log commits to {what}, not to that of step {step}{more}"
        raise FindingError(detail, f"step {step}", "solver")
    return f"all {len(known)} batch digests recomputed", None


@contextmanager
def _map_over_threads(
    work: Callable[[int], T], items: Sequence[int], threads: int
) -> Iterator[Iterable[T]]:
    """``work`` of each item, in order; without a pool where that has nothing to do."""
    count = min(threads or os.cpu_count() or 1, len(items))
    if count <= 1:
        yield map(work, items)
        return
    pool = ThreadPoolExecutor(count)
    try:
        yield pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def digest_batches(task: TaskSpec, samples: Samples, steps: range) -> list[bytes]:
    """Batch digest of each step (from 0)."""
    out = []
    for step in steps:
        x, y = (
            compute_tensor_digest(part, 1)
            for part in gather_batch(samples, task.seed, task.batch, step + 1)
        )
        out.append(compute_batch_digest(x, y))
    return out


def _check_checkpoints(audit: _Audit, rule: Rule) -> frozenset[int]:
    """Hold every checkpoint against the record of its step, the first against the task."""
    paths, ledger = audit.paths, audit.ledger
    if audit.miss(rule):
        audit.attempt(rule, lambda: ("", None))
        return frozenset()
    task, graph = _known(audit.task), _known(audit.legal)
    records, segments = _known(audit.records), _known(audit.segments)
    steps = [0, *(segments.bounds(index)[1] for index in range(segments.count))]
    good: set[int] = set()
    failed = later = 0
    for count, step in enumerate(steps):
        audit.progress(rule.name, count, len(steps))
        place = paths.name_of(paths.checkpoint(step))
        try:
            read_state(paths, task, graph, records, step, audit.threads)
            good.add(step)
        except FindingError as found:
            failed += 1
            # What convicts is listed, however late; yet a run may have millions of it.
            later += failed > _SHOWN and found.fault != "nobody"
            if failed <= _SHOWN or (found.fault != "nobody" and later <= _SHOWN):
                ledger.fail(rule.name, found, place)
    if failed > _SHOWN:
        ledger.fail(rule.name, FindingError(f"{failed} of {len(steps)} fail", rule.place), "")
    if not failed:
        audit.attempt(rule, lambda: (f"all {len(steps)} have their roots", None))
    return frozenset(good)


def read_state(
    paths: RunPaths,
    task: TaskSpec,
    graph: StepGraph,
    records: list[StepRecord] | tuple[StepRecord, ...],
    step: int,
    threads: int = 0,
) -> State:
    """The state in the checkpoint of ``step``, with the root that the record of ``step`` names.

    FindingError otherwise: bytes that are missing or differ are nobody's fault; a state that has
    the right root and yet cannot be one is the fault of who vouches for that root.
    """
    root = records[step - 1].state_root if step else task.initial_state_root
    try:
        state = evidence.read_state(paths, graph, step, root, threads)
    except VtrainError as error:
        where = error.where.removeprefix(f"{paths.root}{os.sep}")
        raise FindingError(error.message, where) from None
    blame: Blame = "solver" if step else "task"
    name = paths.name_of(paths.checkpoint(step))
    try:
        check_state(graph, state)
    except RunError as error:
        raise FindingError(
            f"no step leads to this state: {error.message}", f"{name}: {error.where}", blame
        ) from None
    if int(state[STEP_STATE]) != step:
        counter = int(state[STEP_STATE])
        raise FindingError(
            f"counts {counter} steps after step {step}", f"{name}: state.{STEP_STATE}", blame
        )
    return state
