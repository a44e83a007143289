"""What every benchmark shares: command line, both sides measured alternately, form of the result.

A benchmark defines ``measure(quick) -> Result`` and calls ``main(name, measure)``, or gives several
such functions by name, parts that ``--part`` measures alone.  It prints one
JSON object with ``figures``, ``targets``, ``met`` and the machine; a missed target is exit code 1,
and 3 says that this machine lacks what is measured.  A long one yields results instead, each with
all that is known by then: whatever ends it, the last of them is in the file.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import click

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("vtrain", "numpy", "torch", "onnx", "onnxruntime", "blake3")
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "sha_ni", "asimd")


# Above this share of the machine for other processes, figures say more about them than about us.
QUIET = 0.03


class Target(TypedDict):
    """A figure held against its limit; None where there was nothing to measure it on."""

    limit: float
    value: float | None
    met: bool | None


class Spread(TypedDict):
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Result:
    """Figures by name (numbers, or values with their spread) and targets by name; ``missing`` says
    what this machine lacks, if nothing could be measured."""

    figures: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    missing: str = ""

    @property
    def met(self) -> bool:
        """Whether no target was missed."""
        return all(target["met"] is not False for target in self.targets.values())

    def join(self, other: Result) -> Result:
        """What both found."""
        return Result(
            self.figures | other.figures,
            self.targets | other.targets,
            "; ".join(filter(None, (self.missing, other.missing))),
        )


AVX2_ALONE = {
    "VTRAIN_CPU": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
"""What keeps both sides from AVX-512: our engine, torch's own loops, and its libraries."""


def name_instructions() -> str:
    """The instruction set of our products in this process: "avx512-vnni", "avx-vnni", "avx2" or
    another."""
    from vtrain import _core

    return str(_core.gemm_paths()[-1])


def at_most_here(value: float, **limits: float) -> Target:
    """A target with a limit for each instruction set (``avx512_vnni``, ``avx_vnni``, ``avx2``); on
    others it is told, and not held against any.  A machine with AVX-VNNI has AVX2, and its limit
    where it has none of its own."""
    name = name_instructions().replace("-", "_")
    limit = limits.get(name, limits.get("avx2") if name == "avx_vnni" else None)
    return {"limit": 0.0, "value": value, "met": None} if limit is None else at_most(value, limit)


def at_most(value: float, limit: float) -> Target:
    """A target that larger values miss."""
    return {"limit": limit, "value": value, "met": value <= limit}


def at_least(value: float, limit: float) -> Target:
    """A target that smaller values miss."""
    return {"limit": limit, "value": value, "met": value >= limit}


def unfit(target: Target) -> Target:
    """A target whose value is of something else than what it is meant for."""
    return {**target, "met": False}


def not_run(limit: float) -> Target:
    """A target that this machine cannot be held to: it lacks what is measured."""
    return {"limit": limit, "value": None, "met": None}


def failed(limit: float) -> Target:
    """A target whose measurement ended in an error."""
    return {"limit": limit, "value": None, "met": False}


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; the extremes of fewer than four values."""
    low, high = min(values), max(values)
    if len(values) >= 4:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": statistics.median(values), "low": low, "high": high, "n": len(values)}


def time_once(work: Callable[[], object], calls: int = 1) -> float:
    """Seconds a call of ``work``, over so many calls."""
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - begin) / calls


class Comparison(TypedDict):
    """Seconds a call of both sides and, round by round, ours over theirs."""

    ours: Spread
    theirs: Spread
    ratio: Spread


def compare(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    seconds: float = 2.0,
    least_rounds: int = 5,
    sample: float = 0.06,
) -> Comparison:
    """Times both sides alternately for about ``seconds``, who goes first changing every round.

    In a round each side is called for about ``sample`` seconds (once, if a call takes longer), so
    that a disturbance of the machine falls on both.  Untimed calls for as long go first: neither
    pays for what the other left behind, in the caches, as threads that spin for a while, and in the
    scheduler's mind, which for tens of milliseconds keeps a pool's threads on one core.
    """
    sides = (ours, theirs)
    calls = []
    for work in sides:
        work()
        calls.append(max(1, round(sample / max(time_once(work), 1e-7))))
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(times[0]) < least_rounds or time.perf_counter() < end:
        order = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
        for side in order:
            settled = time.perf_counter() + sample
            while time.perf_counter() < settled:
                sides[side]()
            times[side].append(time_once(sides[side], calls[side]))
    ratio = [mine / other for mine, other in zip(*times, strict=True)]
    return {"ours": spread(times[0]), "theirs": spread(times[1]), "ratio": spread(ratio)}


def ask_process(code: str) -> dict[str, Any]:
    """The JSON object in the last line that a process of its own prints, which runs ``code`` in the
    folder of the benchmarks."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def read_cpu() -> tuple[str, list[str]]:
    """The processor's name and those of its instruction sets that matter here."""
    info = Path("/proc/cpuinfo")
    fields: dict[str, str] = {}
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return fields.get("model name", platform.processor()), [flag for flag in FLAGS if flag in flags]


def read_commit() -> str:
    """The commit of the checkout; "unknown" without a git binary, and outside of a repository."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],  # noqa: S607
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def read_date() -> str:
    """Now, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def describe_machine() -> dict[str, Any]:
    """Where and with what the figures were taken."""
    cpu, flags = read_cpu()
    versions = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "flags": flags,
        "instructions": name_instructions(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "commit": read_commit(),
        "date": read_date(),
        "load_before": load,
    }


def read_busy() -> tuple[float, float]:
    """Seconds that the cores have worked for anybody, and for this process and its children."""
    own = sum(os.times()[:4])
    stat = Path("/proc/stat")
    if not stat.exists():
        return own, own
    user, nice, system, _, _, irq, softirq, *_ = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"), own


def print_table(report: dict[str, Any]) -> None:
    """The targets, for people; all figures are in the JSON."""
    machine = report["machine"]
    click.echo(
        f"{report['benchmark']} on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['instructions']}"
    )
    if report["others_cpu_share"] > QUIET:
        click.echo(
            f"  others used {report['others_cpu_share']:.0%} of the machine: not to be trusted"
        )
    for name, target in report["targets"].items():
        if target["value"] is None:
            what = "FAILED" if target["met"] is False else "not yet run"
            click.echo(f"  {name}: {what} (limit {target['limit']:.4g})")
            continue
        if target["met"] is None:
            click.echo(f"  {name}: {target['value']:.4g} (no limit for these instructions)")
            continue
        verdict = "met" if target["met"] else "MISSED"
        click.echo(f"  {name}: {target['value']:.4g} (limit {target['limit']:.4g}) {verdict}")


NOTHING_MEASURED = 3
"""Exit code where the machine lacks what is measured."""


Measure = Callable[[bool], Result | Iterable[Result]]


def run_parts(parts: Iterable[Measure], quick: bool) -> Iterator[Result]:
    """The results of each part, with all that those before it found."""
    done = Result()
    for measure in parts:
        found, result = measure(quick), Result()
        for result in [found] if isinstance(found, Result) else found:
            yield done.join(result)
        done = done.join(result)


def main(
    name: str,
    measure: Measure | Mapping[str, Measure],
    *,
    about: str = "",
    quick_help: str = "A glance, in under 50 seconds.",
) -> None:
    """The command line of a benchmark; exits 1 when a target is missed.

    ``measure`` is one function, or one for each part of a benchmark, by name.
    """
    parts = measure if isinstance(measure, Mapping) else {"": measure}

    @click.command(name, help=about)
    @click.option("--quick", is_flag=True, help=quick_help)
    @click.option(
        "--instructions",
        type=click.Choice(["best", "avx2"]),
        default="best",
        help="Hold both sides to AVX2 on a machine that has more.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print the JSON object, not a table.")
    @click.option(
        "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write it here too."
    )
    def command(
        quick: bool, instructions: str, as_json: bool, out: Path | None, part: str | None = None
    ) -> None:
        if instructions == "avx2" and os.environ.get("VTRAIN_CPU") != "avx2":
            # Libraries look when they are loaded, and torch is by now.
            os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | AVX2_ALONE)  # noqa: S606
        machine = describe_machine()
        begin = time.perf_counter()
        busy, own = read_busy()

        def describe(result: Result) -> dict[str, Any]:
            seconds = time.perf_counter() - begin
            now = zip(read_busy(), (busy, own), strict=True)
            all_busy, own_busy = (after - before for after, before in now)
            others = max(0.0, all_busy - own_busy) / seconds / (os.cpu_count() or 1)
            return {
                "benchmark": name,
                "quick": quick,
                "machine": machine,
                "seconds": round(seconds, 1),
                "others_cpu_share": round(others, 3),
                "figures": result.figures,
                "targets": result.targets,
                "met": result.met,
            }

        chosen = parts.values() if part is None else [parts[part]]
        result = Result()
        for result in run_parts(chosen, quick):
            _write(describe(result), out)
        report = describe(result)
        if as_json:
            click.echo(json.dumps(report, indent=2))
        else:
            print_table(report)
        if result.missing:
            click.echo(f"{name}: {result.missing}", err=True)
            sys.exit(NOTHING_MEASURED)
        sys.exit(0 if result.met else 1)

    if len(parts) > 1:
        each = click.Choice(list(parts))
        command = click.option("--part", type=each, help="Measure this alone.")(command)
    command()


def _write(report: dict[str, Any], out: Path | None) -> None:
    """The report so far, whole or not at all."""
    values = [target["value"] for target in report["targets"].values()]
    measured = not values or any(value is not None for value in values)
    # What measured nothing, for lack of a device, must not replace what another machine found.
    if out is None or (not measured and out.exists()):
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    whole = out.with_name(f".{out.name}.part")
    whole.write_text(json.dumps(report, indent=2) + "\n")
    whole.replace(out)
