"""``python -m tests.attacks.campaign``: all parts, and a table; exit 1 on a violation."""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy: its threads would not survive a fork

from tests.attacks.campaign.bases import build, in_a_fork
from tests.attacks.campaign.bench import Bench, Part
from tests.attacks.campaign.fakes import FAKES
from tests.attacks.campaign.judge import Fault, Result
from tests.attacks.campaign.parts import PARTS

SHOWN: Final = 3
"""Violations of one kind that are listed."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.campaign", description=__doc__)
    for name, (_, default) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="attempts of this part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(PARTS), action="append", help="this part alone")
    parser.add_argument("--number", type=int, help="one attempt of the part, and what it said")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the attempts")
    parser.add_argument("--share", default="0/1", help=argparse.SUPPRESS)
    parser.add_argument("--fake", choices=list(FAKES), help="a bad auditor in place of the real")
    parser.add_argument("--seconds", type=float, default=10.0, help="what counts as a hang")
    parser.add_argument("--results", type=Path, help="write every result into this file, as JSON")
    parser.add_argument("--folder", type=Path, help="work here, and leave it behind")
    parser.add_argument("--list", type=int, default=SHOWN, help="violations shown of each kind")
    return parser.parse_args(arguments)


def attack(given: argparse.Namespace) -> dict[str, list[tuple[int, Result]]]:
    """Do the attempts of this share, part by part."""
    share, shares = map(int, given.share.split("/"))
    found: dict[str, list[tuple[int, Result]]] = {}
    with ExitStack() as stack:
        folder = given.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="campaign-")))
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o755)  # noqa: PTH101,S103 - the unprivileged attempts look into it
        if not (folder / "bases.json").exists():
            in_a_fork(lambda: build(folder))
        bench = Bench(folder, given.seed, FAKES[given.fake] if given.fake else None, given.seconds)
        for name in given.only or PARTS:
            part, _ = PARTS[name]
            results = found[name] = []
            total = part.count(getattr(given, name))
            numbers = range(share, total, shares) if given.number is None else [given.number]
            began = time.monotonic()
            for done, number in enumerate(numbers):
                results.append((number, attempt(part, bench, number, given.number is not None)))
                if (done + 1) % 50 == 0 or done + 1 == len(numbers):
                    bad = sum(bool(result.faults) for _, result in results)
                    say(
                        f"{name}: {done + 1} of {len(numbers)} done, {bad} with violations, "
                        f"{time.monotonic() - began:.0f} s"
                    )
    return found


def attempt(part: Part, bench: Bench, number: int, loud: bool) -> Result:
    """One attempt; a hang counts where it comes again: the machine may have been busy."""
    result = attempt_once(part, bench, number, loud)
    if bench.fake is None and any(fault.kind.endswith("hang") for fault in result.faults):
        result = attempt_once(part, bench, number, loud)
    return result


def attempt_once(part: Part, bench: Bench, number: int, loud: bool) -> Result:
    work = bench.folder / f"work-{os.getpid()}"
    remove(work)
    work.mkdir()
    try:
        result = part.attempt(bench, number, work, say if loud else lambda _: None)
    except Exception as error:  # one attempt that fails must not end the others
        if loud:
            raise
        result = Result("?", faults=[Fault("the campaign itself failed", repr(error))])
    if not (loud and bench.kept):
        remove(work)
    return result


def remove(folder: Path) -> None:
    """Remove a folder however deep it is: by the system's own tool, which does not recurse."""
    if folder.exists():
        subprocess.run([shutil.which("rm") or "/bin/rm", "-rf", str(folder)], check=False)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def share_out(given: argparse.Namespace) -> dict[str, list[tuple[int, Result]]]:
    """The same in so many processes."""
    arguments = [f"--{name}={getattr(given, name)}" for name in PARTS]
    arguments += [f"--only={name}" for name in given.only or ()]
    arguments += [f"--seed={given.seed}", f"--seconds={given.seconds}"]
    found: dict[str, list[tuple[int, Result]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        workers = []
        for share in range(given.jobs):
            own = [f"--share={share}/{given.jobs}", f"--results={folder}/{share}.json"]
            command = [sys.executable, "-m", "tests.attacks.campaign", *arguments, *own]
            workers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for share, worker in enumerate(workers):
            worker.wait()
            for name, results in json.loads(Path(folder, f"{share}.json").read_text()).items():
                found[name] += [(number, decode(result)) for number, result in results]
    return found


def decode(value: dict[str, Any]) -> Result:
    return Result(**{**value, "faults": [Fault(**fault) for fault in value["faults"]]})


def summarize(given: argparse.Namespace, found: dict[str, list[tuple[int, Result]]]) -> int:
    """Print the table and the violations; how many there are."""
    say("")
    say(f"{'part':<10}{'attempts':>9}{'audits':>8}{'violations':>12}  ends")
    violations: dict[tuple[str, str], list[tuple[int, Result, Fault]]] = defaultdict(list)
    for name, results in found.items():
        ends = Counter(result.verdict for _, result in results)
        bad = sum(bool(result.faults) for _, result in results)
        said = ", ".join(f"{end} {count}" for end, count in ends.most_common())
        audits = sum(result.audits for _, result in results)
        say(f"{name:<10}{len(results):>9}{audits:>8}{bad:>12}  {said}")
        for number, result in results:
            for fault in result.faults:
                violations[name, fault.kind].append((number, result, fault))
    for (part, kind), cases in sorted(violations.items(), key=lambda item: -len(item[1])):
        say(f"\nVIOLATION in {part}: {kind} ({len(cases)} times)")
        for number, result, fault in cases[: given.list]:
            say(f"  --seed {given.seed} --only {part} --number {number}: {result.name}")
            say(f"      {fault.detail[:400]!r}")
    total = sum(map(len, violations.values()))
    say(f"\n{total} violations of {len(violations)} kinds" if total else "\nNo violation.")
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    found = attack(given) if given.jobs == 1 else share_out(given)
    if given.results is not None:
        plain = {
            name: [(number, asdict(result)) for number, result in results]
            for name, results in found.items()
        }
        given.results.write_text(json.dumps(plain))
    return 1 if summarize(given, found) else 0


if __name__ == "__main__":
    sys.exit(main())
