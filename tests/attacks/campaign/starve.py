"""Audits and runs that lack memory, descriptors, disk, threads or time, or lose their files midway.

An honest run is never fraud, a false one never verified, whatever is missing; and a run that was
interrupted ends, when it is gone on with, in the root that it would have had.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from tests.attacks.campaign.bases import make_rng
from tests.attacks.campaign.bench import Bench, Say, show
from tests.attacks.campaign.judge import ANY, NOT_FRAUD, NOT_VERIFIED, Fault, Result, judge
from tests.attacks.campaign.privileges import become_nobody, is_root
from tests.attacks.campaign.watch import MARK_HANDLE, Child, Outcome
from vtrain.wire.report import EXIT_CODES

MIB: Final = 1 << 20
FULL: Final = 64 << 10
"""Bytes of the disk that is full."""


@dataclass
class Subject:
    """What is starved: a run, honest or false, or a task to train."""

    run: Path
    false: bool

    @property
    def verdicts(self) -> frozenset[str]:
        return NOT_VERIFIED if self.false else NOT_FRAUD


def pick_subject(bench: Bench, work: Path, number: int) -> Subject:
    """A copy of an honest run, or of a false one."""
    false = number % 3 == 2
    source = bench.folder / "false" / "run" if false else bench.bases["mlp"].run
    return Subject(Path(shutil.copytree(source, work / "run")), false)


def verify(subject: Subject, rng: Random) -> list[str]:
    threads = rng.choice(("0", "1", "2", "16"))
    return ["verify", str(subject.run), "--all", "--json", "--threads", threads]


def limit(what: int, value: int, *, nobody: bool = False) -> Callable[[], None]:
    """What a process does before it executes the command."""

    def prepare() -> None:
        if nobody:
            become_nobody()
        resource.setrlimit(what, (value, value))

    return prepare


def judge_starved(
    outcome: Outcome, subject: Subject, bench: Bench, *, signalled: bool = False
) -> list[Fault]:
    """What holds for every audit under want.

    Without its mark Python itself did not start: the loader or the interpreter found no memory or
    no descriptor before the first line of anybody's program, and only a code that is a verdict is
    held against it.
    """
    as_json = not signalled and outcome.code >= 0
    fraud = (10, EXIT_CODES["fraud"])
    faults = judge(
        outcome, as_json=as_json, starved=True, signalled=signalled, seconds=bench.seconds
    )
    code, verdict = outcome.code, outcome.verdict
    if code in fraud and not subject.false:
        faults.append(Fault("WRONG: fraud", f"{verdict}, exit code {code}, of an honest run"))
    if code == 0 and subject.false:
        faults.append(Fault("WRONG: verified", f"{verdict}, exit code 0, of a false run"))
    if verdict in ANY and verdict not in subject.verdicts:
        faults.append(Fault(f"WRONG: {verdict}", f"exit code {code}"))
    return faults


# --- limits


def starve_memory(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    size = (30 + 10 * (number % 60)) * MIB + rng.randrange(10 * MIB)
    subject = pick_subject(bench, work, number // 60 + number)
    return _limited(bench, subject, rng, "memory", size, limit(resource.RLIMIT_AS, size))


def starve_descriptors(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    count = MARK_HANDLE + 1 + number % 24
    subject = pick_subject(bench, work, number)
    prepare = limit(resource.RLIMIT_NOFILE, count)
    return _limited(bench, subject, rng, "descriptors", count, prepare)


def starve_threads(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    count = 1 + number % 8
    subject = pick_subject(bench, work, number)
    prepare = limit(resource.RLIMIT_NPROC, count, nobody=True)
    return _limited(bench, subject, rng, "threads", count, prepare)


def starve_file_size(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    size = (0, 1, 100, 4096)[number % 4]
    subject = pick_subject(bench, work, number)
    prepare = limit(resource.RLIMIT_FSIZE, size)
    return _limited(bench, subject, rng, "file size", size, prepare)


def starve_processor(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    """The kernel ends it after a second of work, which has no verdict, or it is done by then."""
    subject = pick_subject(bench, work, number)
    prepare = limit(resource.RLIMIT_CPU, 1)
    return _limited(bench, subject, rng, "processor", 1, prepare)


def starve_stack(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    size = (64 << 10) << number % 5
    subject = pick_subject(bench, work, number)
    prepare = limit(resource.RLIMIT_STACK, size)
    return _limited(bench, subject, rng, "stack", size, prepare)


def _limited(
    bench: Bench, subject: Subject, rng: Random, what: str, size: int, prepare: Callable[[], None]
) -> Result:
    arguments = verify(subject, rng)
    result = Result(f"verify, {'false' if subject.false else 'honest'}, {what} {size}")
    outcome = bench.start(arguments, prepare=prepare).wait(bench.seconds)
    result.add(outcome, judge_starved(outcome, subject, bench))
    return _keep(result, arguments, outcome)


def _keep(result: Result, arguments: list[str], outcome: Outcome) -> Result:
    result.last = (arguments, outcome)
    return result


@cache
def can_mount() -> bool:
    """Whether a file system of its own can be made: a disk that is really full."""
    tool = shutil.which("unshare")
    if tool is None or not is_root():
        return False
    script = "mount -t tmpfs -o size=64k tmpfs /tmp"
    done = subprocess.run([tool, "-m", "sh", "-c", script], check=False, capture_output=True)
    return done.returncode == 0


def full_disk(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    """Temporaries go to a disk without room (or, where none can be mounted, files may not grow)."""
    subject = pick_subject(bench, work, number)
    arguments = verify(subject, rng)
    place = work / "full"
    place.mkdir()
    result = Result(f"verify, {'false' if subject.false else 'honest'}, disk full")
    mounted = can_mount() and _mount(place)
    try:
        with suppress(OSError):
            (place / "filler").write_bytes(bytes(2 * FULL))
        prepare = (lambda: None) if mounted else limit(resource.RLIMIT_FSIZE, 0)
        environment = {"TMPDIR": str(place)}
        child = bench.start(arguments, prepare=prepare, environment=environment)
        outcome = child.wait(bench.seconds)
    finally:
        if mounted:
            _unmount(place)
    result.add(outcome, judge_starved(outcome, subject, bench))
    return _keep(result, arguments, outcome)


def _mount(place: Path) -> bool:
    tool = shutil.which("mount") or "/bin/mount"
    command = [tool, "-t", "tmpfs", "-o", f"size={FULL}", "tmpfs", str(place)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _unmount(place: Path) -> None:
    tool = shutil.which("umount") or "/bin/umount"
    subprocess.run([tool, "-l", str(place)], check=False, capture_output=True)


# --- training without room, and gone on with


def train_arguments(bench: Bench, out: Path) -> list[str]:
    task = bench.folder / "long" / "task.toml"
    key = bench.folder / "key.pem"
    return [
        *("train", str(task), "--out", str(out), "--key", str(key), "--steps", "200"),
        *("--threads", "1", "--json"),
    ]


def go_on(bench: Bench, out: Path, result: Result) -> None:
    """The same command again ends in the honest run, which an audit verifies."""
    again = bench.start(train_arguments(bench, out)).wait(30)
    report = again.report or {}
    root = find_root(bench)
    if again.code != 0 or report.get("root") != root:
        what = f"exit {again.code}: {report.get('root')} {again.err[-300:]!r}"
        result.faults.append(Fault("a run that is gone on with ends elsewhere", what))
        return
    audit = bench.call(["verify", str(out), "--all", "--json", "--threads", "1"])
    result.audits += 1
    if audit.verdict != "verified":
        what = f"{audit.verdict}, exit {audit.code}: {audit.err[-300:]!r}"
        result.faults.append(Fault("a run that is gone on with is not verified", what))


def find_root(bench: Bench) -> str:
    """The root of the run that nothing disturbed."""
    if "long" not in bench.roots:
        outcome = bench.start(train_arguments(bench, bench.folder / "undisturbed")).wait(60)
        bench.roots["long"] = str((outcome.report or {}).get("root"))
    return bench.roots["long"]


def train_without(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    """Training under a limit; then again without."""
    kind = ("file size", "memory", "descriptors")[number % 3]
    size = {
        "file size": (0, 500, 2000, 5000, 9000, 20000)[number // 3 % 6],
        "memory": (100 + 20 * (number // 3 % 20)) * MIB,
        "descriptors": MARK_HANDLE + 1 + number // 3 % 16,
    }[kind]
    what = {
        "file size": resource.RLIMIT_FSIZE,
        "memory": resource.RLIMIT_AS,
        "descriptors": resource.RLIMIT_NOFILE,
    }[kind]
    out = work / "out"
    arguments = train_arguments(bench, out)
    outcome = bench.start(arguments, prepare=limit(what, size)).wait(bench.seconds)
    result = Result(f"train, {kind} {size}")
    faults = judge(outcome, starved=True, as_json=outcome.code >= 0, seconds=bench.seconds)
    if outcome.code in (4, 10):
        faults.append(Fault("a verdict of train", str(outcome.code)))
    result.add(outcome, faults)
    _keep(result, arguments, outcome)
    go_on(bench, out, result)
    return result


def train_on_a_full_disk(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    """The disk has room for a part of the run; later there is more."""
    if not can_mount():
        return train_without(bench, 3 * number, work, rng)
    disk, size = work / "disk", (4 << 10) * rng.randrange(1, 30)
    disk.mkdir()
    out = disk / "out"
    arguments = train_arguments(bench, out)
    mount = [shutil.which("mount") or "/bin/mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, f"size={size}", "tmpfs", str(disk)], check=True)
    try:
        outcome = bench.start(arguments).wait(bench.seconds)
        result = Result(f"train, a disk of {size} bytes")
        faults = judge(outcome, seconds=bench.seconds)
        result.add(outcome, faults)
        _keep(result, arguments, outcome)
        subprocess.run([*mount, "remount,size=64m", "tmpfs", str(disk)], check=True)
        go_on(bench, out, result)
    finally:
        _unmount(disk)
    return result


# --- signals


def interrupted_train(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    number_of = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[number % 3]
    delay = rng.uniform(0.05, 1.2)
    out = work / "out"
    arguments = train_arguments(bench, out)
    outcome = _send(bench.start(arguments), number_of, delay, bench)
    result = Result(f"train, signal {number_of} after {delay:.2f} s")
    faults = judge(outcome, as_json=False, signalled=True, seconds=bench.seconds)
    faults += _judge_end(outcome, number_of)
    result.add(outcome, faults)
    _keep(result, arguments, outcome)
    if (out / "claim.cbor").exists() or (out / "log.bin").exists():
        half = bench.call(["verify", str(out), "--all", "--json", "--threads", "1"])
        result.audits += 1
        if half.verdict not in NOT_FRAUD:
            result.faults.append(Fault("WRONG: an unfinished run", f"{half.verdict} {half.code}"))
        result.faults += judge(half, seconds=bench.seconds)
    go_on(bench, out, result)
    return result


def interrupted_verify(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    number_of = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[number % 3]
    delay = rng.uniform(0.02, 0.7)
    subject = pick_subject(bench, work, number // 3)
    arguments = verify(subject, rng)
    outcome = _send(bench.start(arguments), number_of, delay, bench)
    result = Result(f"verify, signal {number_of} after {delay:.2f} s")
    faults = judge_starved(outcome, subject, bench, signalled=True)
    result.add(outcome, faults + _judge_end(outcome, number_of))
    return _keep(result, arguments, outcome)


def _send(child: Child, number: int, delay: float, bench: Bench) -> Outcome:
    sent = False

    def send(gone: float) -> bool:
        nonlocal sent
        if gone > delay and not sent:
            sent = True
            child.send(number)
        return sent

    return child.wait(bench.seconds, send)


def _judge_end(outcome: Outcome, number: int) -> list[Fault]:
    """Ctrl-C ends in 130 and SIGTERM in 143 or by the signal, or it was done already."""
    by = {signal.SIGINT: 130, signal.SIGTERM: 143}.get(signal.Signals(number))
    if outcome.code in (-number, by) or outcome.hung or not outcome.started:
        return []
    return (
        []
        if outcome.code >= 0 and outcome.report is not None
        else [
            Fault(
                "an interrupted command ends otherwise", f"{outcome.code}: {outcome.err[-300:]!r}"
            )
        ]
    )


# --- files that go away, or change, under the audit


def changed_underneath(bench: Bench, number: int, work: Path, rng: Random) -> Result:
    """Files vanish, are cut or are replaced while they are audited, once or again and again."""
    subject = pick_subject(bench, work, number)
    run = subject.run
    arguments = verify(subject, rng)
    other = bench.folder / "false" / "run" if not subject.false else bench.bases["mlp"].run
    names = sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file())
    name, delay = rng.choice(names), rng.uniform(0.1, 0.6)
    kind = rng.choice(("delete", "cut", "zero", "exchange", "flicker", "rename run", "grow"))
    honest, foreign = (run / name).read_bytes(), b""
    if (other / name).exists():
        foreign = (other / name).read_bytes()
    turns = 0

    def change(gone: float) -> bool:
        nonlocal turns
        if gone < delay and kind != "flicker":
            return False
        turns += 1
        if turns > 1 and kind not in ("flicker", "grow"):
            return False
        path = run / name
        with suppress(OSError):
            if kind == "delete":
                path.unlink(missing_ok=True)
            elif kind == "cut":
                os.truncate(path, len(honest) // 2)
            elif kind == "zero":
                path.write_bytes(bytes(len(honest)))
            elif kind == "rename run":
                run.rename(run.with_name("gone"))
            elif kind == "grow":
                with path.open("ab") as file:
                    file.write(bytes(MIB))
            else:
                path.write_bytes((foreign or bytes(9)) if turns % 2 else honest)
        return False

    outcome = bench.start(arguments).wait(bench.seconds, change)
    which = "false" if subject.false else "honest"
    result = Result(f"verify, {which}, {kind} {name} after {delay:.2f} s")
    result.add(outcome, judge_starved(outcome, subject, bench))
    return _keep(result, arguments, outcome)


Starve = Callable[[Bench, int, Path, Random], Result]
KINDS: Final[tuple[Starve, ...]] = (
    starve_memory,
    starve_memory,
    starve_memory,
    changed_underneath,
    starve_descriptors,
    interrupted_verify,
    interrupted_train,
    changed_underneath,
    train_without,
    train_on_a_full_disk,
    starve_threads,
    interrupted_verify,
    full_disk,
    starve_file_size,
    interrupted_train,
    starve_stack,
    changed_underneath,
    starve_processor,
)


class Starved:
    """Audits and runs under want, interrupted, or with their files taken away."""

    def count(self, asked: int) -> int:
        return asked

    def attempt(self, bench: Bench, number: int, work: Path, say: Say) -> Result:
        turn, place = divmod(number, len(KINDS))
        kind = KINDS[place]
        nth = turn * KINDS.count(kind) + KINDS[:place].count(kind)
        result = kind(bench, nth, work, make_rng(bench.seed, "starved", number))
        if result.last is not None:
            show(say, *result.last)
            result.last = None
        return result
