"""Write docs/benchmarks.md from benchmarks/results: ``python docs/make_benchmarks.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results"
ABOUT = {
    "accuracy": "Test accuracy on 1,000 MNIST images, same initial weights, order and schedule.",
    "gemm": "The exact int16 product over torch fp32 matmul, two threads.",
    "step": "A whole training step, MLP 784-512-512-10 at batch 128, over torch fp32 eager, which "
    "gets a fixed ready batch; ours draws, prepares and digests its batch. State commitments are "
    "not in it: see commit. Also the small CNN at batch 128, and an MLP of 10M weights at batch "
    "16, where memory is the limit.",
    "commit": "Hashing the whole state of that MLP (5.4 MB), as a share of torch's step.",
    "verify": "Replaying an interval over training it; start-up of the auditor's command.",
    "dispute": "A dispute at scale (2^20 steps with a state root every 16, 2^12 nodes a step, "
    "tensors of 2^20 chunks, products of 4096 terms) on a toy run with real openings. A round is "
    "an exchange in which all that is asked for at one time is answered. What many false claims "
    "take an honest party; a dispute about the MNIST run.",
    "service": "200 games at once through `vtrain serve` over HTTP, two players each, who follow "
    "every game by its receipts and share the machine with the server and its database. Rate, "
    "waits and the server's work are of the first half of the moves; in the second half the "
    "server is killed (SIGKILL) and started again, and once more before every answer is compared "
    "with the transcripts. `fsync` tells whether commits are synced to disk: the tests' "
    "PostgreSQL does not.",
    "gpu": "The cuda engine on one GPU against torch on the same card, in one run: exact int16 and "
    "int8 products over torch's, whole training steps over compiled bf16 and plain fp32 steps (no "
    "TF32), BLAKE3 on the device, and the same roots as the cpu engine's. What is marked as not "
    "yet run was written on a machine without a GPU: nothing of it is measured, only predicted.",
    "zk": "Proofs through ezkl: whole steps of MNIST runs at batch 8, tiles of 128 x 128, and the "
    "KZG commitments that a run logs for them. Setup is everything from a circuit to its keys; "
    "prove everything from integers to a proof that our own verifier took (one proof each, keys "
    "and SRS loaded); verify is all of our verifier, with the public vectors computed and "
    "committed to and ezkl in a fresh process, in an auditor's process that has circuit, keys and "
    "SRS. Memory is that of the process that ezkl runs in; the target is held against the larger "
    "of setup and prove. GB are 10^9 bytes. What all tiles of a step take is added up from one "
    "proof of each circuit. What was predicted was so before this run, on a slower machine. See "
    "proofs.md for where each way is practical.",
}
"""Benchmark -> what it measures, in the order of the page."""

QUIET = 0.03
"""A larger share of the machine taken by others is told."""

INTRODUCTION = """# Benchmarks

Written by `python docs/make_benchmarks.py` from `benchmarks/results`. Each script in
`benchmarks/` measures both sides in one run, in turn, and reports medians with quartiles; each
states the figure that was expected, and whether before or after first timings.
`make bench` runs all of them, `--quick` gives a glance; `--instructions avx2` holds both sides to
AVX2 (`VTRAIN_CPU=avx2` does so for the engine alone, and changes no bit).

Shared machines are noisy: torch's own threads suffer more from a busy neighbour than ours, so a
ratio taken under load flatters us. Other processes took less than three percent of the machine
(`others_cpu_share` in the files) unless a result says otherwise; accuracy, rounds, moves and bytes
do not depend on it. A quick run is marked so.

Published figures for scale: for equal bits on a CPU of this kind RepDL takes about 50 times
torch's time for such a step, and FP64 with rounding logs about 5 times.
"""


def _format(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _render_result(name: str, result: dict[str, Any]) -> str:
    machine = result["machine"]
    instructions = machine.get("instructions", "")
    held = "avx512_vnni" in machine.get("flags", ()) and instructions == "avx2"
    lines = [
        f"## {name}, held to AVX2" if held else f"## {name}",
        "",
        ABOUT[name],
        "",
        "| target | measured | limit | |",
        "|---|---|---|---|",
    ]
    for target, row in result["targets"].items():
        if row["value"] is None:
            lines.append(f"| {target} | - | {_format(row['limit'])} | not yet run |")
            continue
        if row["met"] is None:
            lines.append(f"| {target} | {_format(row['value'])} | - | no limit |")
            continue
        verdict = "met" if row["met"] else "**missed**"
        lines.append(
            f"| {target} | {_format(row['value'])} | {_format(row['limit'])} | {verdict} |"
        )
    spreads = []
    for figure, value in _flatten(result["figures"]):
        low, median, high = (_format(value[key]) for key in ("low", "median", "high"))
        spreads.append(f"| {figure} | {median} | {low} to {high} |")
    if spreads:
        lines += ["", "| figure | median | quartiles |", "|---|---|---|", *spreads]
    for figure, rows in result["figures"].items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            lines += ["", f"{figure}:", "", *_render_rows(rows)]
    lines += [
        "",
        f"{machine['cpu']}, {machine['cores']} cores{instructions and f', {instructions}'}, "
        f"{machine['system']}, "
        f"torch {machine['versions'].get('torch', '-')}, {machine['date'][:10]}, "
        f"commit {machine['commit']}{', quick run' if result['quick'] else ''}"
        f"{_describe_load(result.get('others_cpu_share', 0.0))}.",
    ]
    return "\n".join(lines)


def _describe_load(others: float) -> str:
    return f", other processes took {others:.0%} of the machine" if others > QUIET else ""


MOST_COLUMNS = 20
"""A wider table stands on its side."""


def _render_rows(rows: list[dict[str, Any]]) -> list[str]:
    """A table of rows that have the same columns."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    if len(rows[0]) > MOST_COLUMNS:
        lines = [list(column) for column in zip(*lines, strict=True)]
    table = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return [f"| {' | '.join(map(str, row))} |" for row in table]


def _flatten(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, dict[str, float]]]:
    """Every figure that has a spread, under its whole name."""
    found = []
    for name, value in figures.items():
        if isinstance(value, dict):
            whole = f"{prefix}{name}"
            found += [(whole, value)] if "median" in value else _flatten(value, f"{whole}: ")
    return found


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name in ABOUT:
        for path in (RESULTS / f"{name}.json", RESULTS / f"{name}-avx2.json"):
            if not path.exists():
                continue
            parts.append(_render_result(name, json.loads(path.read_text())) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (DOCS / "benchmarks.md").write_text(render())
