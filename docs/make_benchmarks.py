"""Write docs/benchmarks.md, and growth.svg beside it, from benchmarks/results:
``python docs/make_benchmarks.py``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results"
ABOUT = {
    "accuracy": "Test accuracy on 1,000 MNIST images, same initial weights, order and schedule: "
    "the MLP and the CNN of examples/mnist; ResNet-18 of torchvision, with a stem for such images, "
    "from the PyTorch module.",
    "gemm": "The exact int16 product over torch fp32 matmul, two threads.",
    "step": "A whole training step, MLP 784-512-512-10 at batch 128, over torch fp32 eager, which "
    "gets a fixed ready batch; ours draws, prepares and digests its batch. State commitments are "
    "not in it: see commit. Also the small CNN at batch 128, and an MLP of 10M weights at batch "
    "16, where memory is the limit; ResNet-18 of torchvision at batch 32 (images of 28 x 28).",
    "transformer": "The GPT and the Llama of examples/shakespeare. A whole step, batch 16 and 128 "
    "places, over torch fp32 eager, which gets a fixed ready batch; peak memory of a process that "
    "does nothing but load and step, beyond what it imports; replay of an interval over training "
    "it. Losses over the last tenth of the text, in nats a character, beside fp32 runs with the "
    "same initial weights and windows, and beside fp32 runs whose initial weights are 0.01 % off, "
    "which say what a difference means.",
    "imports": "What `vtrain.from_torch` takes (pytorch.md). Models that people have, in small "
    "random configurations: one works if it trains 20 steps, an audit replays all of them, and its "
    "weights give the module, and the exported ONNX file in onnxruntime, the loss that the run "
    "has, within 0.01 nats. convnext_tiny has stochastic_depth_prob=0.0: torchvision's stochastic "
    "depth draws once for each sample, which is refused, as all random draws are but dropout's of "
    "each element. Layers of torch.nn, each between two linear layers: the same after two steps. "
    "Of all others every reason is listed, as the error has it.",
    "growth": "The GPT in seven sizes, with a context of 64 and batches of 4: a step, hashing the "
    "whole state into its root, a replayed step (with reading and hashing the "
    "checkpoint), and peak memory beyond the imports. Torch's step is measured right "
    "after, in a process of its own.",
    "commit": "Hashing the whole state of that MLP (5.4 MB), as a share of torch's step.",
    "algebraic": "Checking steps by values that their solver signed: of one linear layer with as "
    "many samples as features (forward and both gradients, values in memory) over hashing them "
    "once and over doing the products again; of the GPT of examples/shakespeare over replaying the "
    "step; alarms in honest steps and misses among wrong elements.",
    "estimate": "What `vtrain estimate` says of five tasks, two of which had no part in fitting "
    "its model, beside what `vtrain bench` then measures, and beside the run itself, trained to "
    "its end, and an interval of each of its audits (measuring.md says what each figure is of). "
    "The GPT has 200 steps in batches of 4, with a state root in every fourth. Each task was "
    "estimated and measured in turn, 3 to 9 times (`rounds`): the ratio is the median, and its "
    "least and most stand beside it; files were in memory. Proofs are of a tile (mlp) and of a "
    "whole step at batch 8 (784-16-10), to which the model was fitted, and of a whole "
    "step (784-32-10) whose times had no part in that.",
    "verify": "Replaying an interval over training it; start-up of the auditor's command.",
    "dispute": "A dispute at scale (2^20 steps with a state root every 16, 2^12 nodes a step, "
    "tensors of 2^20 chunks, products of 4096 terms) on a toy run with real openings. A round is "
    "an exchange in which all that is asked for at one time is answered. What many false claims "
    "take an honest party; disputes about an element of the largest gradient of the MNIST run, of "
    "the GPT and of the Llama of examples/shakespeare.",
    "beacon": "A round of drand from its bytes: points decoded and looked at, the message hashed "
    "to the curve, two pairings. Several auditors' one signature under a report, with their proofs "
    "of possession.",
    "remote": "An audit over HTTP of one segment of a run of 10 GB: MLP 784-512-512-10, 1,870 "
    "steps at batch 16, a checkpoint of 5.4 MB after each. All steps are done and signed for; of "
    "the checkpoints the store has only that which the draw asks for, made again after it, so that "
    "10 GB need not lie anywhere. Bytes are those of bodies; what they are held against is the "
    "claim, the log, that checkpoint, the samples of the segment and their paths in their tree. "
    "The report of a run of 100,000 steps, as JSON and as a page, from its records.",
    "service": "200 games at once through `vtrain serve` over HTTP, two players each, who follow "
    "every game by its receipts and share the machine with the server and its database. Rate, "
    "waits and the server's work are of the first half of the moves; in the second half the "
    "server is killed (SIGKILL) and started again, and once more before every answer is compared "
    "with the transcripts. `fsync` tells whether commits are synced to disk: the tests' "
    "PostgreSQL does not.",
    "gpu": "The cuda engine on one GPU against torch on the same card, in one run: exact int16 and "
    "int8 products over torch's, whole training steps over compiled bf16 and plain fp32 steps (no "
    "TF32), BLAKE3 on the device, and the same roots as the cpu engine's.",
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
do not depend on it. A quick run is marked so. Below each table stand the machine, the instruction
set of our products and the version that it is of.

Machines with AVX512-VNNI differ too. Zen 4 does one such instruction of 512 bits a cycle, as many
as fp32 multiply-adds, so that an exact int16 product, with three of them for each 64 terms (two
where 12 bits suffice), cannot take less than 0.75 (0.5) of a perfect fp32 product there. The limits
are those of Zen 5.

Published figures for scale: for equal bits on a CPU of this kind RepDL takes about 50 times
torch's time for such a step, and FP64 with rounding logs about 5 times.
"""


def _format(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _render_result(name: str, result: dict[str, Any], kind: str = "") -> str:
    machine = result["machine"]
    lines = [
        f"## {name}{kind and f', {KINDS[kind]}'}",
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
    singles = [f"| {figure} | {value} |" for figure, value in _list_singles(result["figures"])]
    if singles:
        lines += ["", "| figure | value |", "|---|---|", *singles]
    if FAULTS in result["figures"]:
        lines += ["", f"{FAULTS}:", "", *_render_faults(result["figures"][FAULTS])]
    if name == "growth":
        lines += ["", "![the figures against the parameters, both axes logarithmic](growth.svg)"]
    for figure, rows in result["figures"].items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            lines += ["", f"{figure}:", "", *_render_rows(rows)]
    device = result["figures"].get("device")
    card = f"{device['name']}, driver {device['driver']}; " if device else ""
    lines += [
        "",
        f"{card}{_describe_cpu(machine)}, {machine['system']}, "
        f"torch {machine['versions'].get('torch', '-')}, {machine['date'][:10]}, "
        f"commit {machine['commit']}{_describe_version(machine['versions'])}"
        f"{', quick run' if result['quick'] else ''}"
        f"{_describe_load(result.get('others_cpu_share', 0.0))}.",
    ]
    return "\n".join(lines)


def _describe_cpu(machine: dict[str, Any]) -> str:
    """The processor, its generation where its flags tell, and the instruction set of our products:
    in files that do not say, the machine's best, which is what they were taken with."""
    flags = set(machine["flags"])
    generation = ""
    if machine["cpu"].startswith("AMD") and "avx512_vnni" in flags:
        generation = " (Zen 5)" if "avx_vnni" in flags else " (Zen 4)"
    best = next((name for name in ("avx512_vnni", "avx2") if name in flags), "no vectors")
    instructions = machine.get("instructions") or best.replace("_", "-")
    return f"{machine['cpu']}{generation}, {machine['cores']} cores, {instructions}"


def _describe_version(versions: dict[str, str]) -> str:
    return f" (vtrain {versions['vtrain']})" if "vtrain" in versions else ""


def _describe_load(others: float) -> str:
    return f", other processes took {others:.0%} of the machine" if others > QUIET else ""


KINDS = {
    "look-up": "functions by table alone",
    "models": "the models alone",
    "zen5": "on Zen 5, of version 0.1.0",
    "zen4": "on Zen 4",
    "avx2": "held to AVX2",
    "errors": "errors alone",
    "losses": "losses alone, which do not depend on the machine's load",
    "gpt": "the GPT alone",
    "square": "square products alone",
    "proofs": "proofs alone",
    "resnet": "ResNet-18 alone",
    "resnet-avx2": "ResNet-18 alone, held to AVX2",
}
"""Results of a benchmark in files of their own, NAME-KIND.json: of another machine, of fewer
instructions, or of one part."""
MOST_COLUMNS = 20
"""A wider table stands on its side."""


def _render_rows(rows: list[dict[str, Any]]) -> list[str]:
    """A table of rows that have the same columns."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    if len(rows[0]) > MOST_COLUMNS:
        lines = [list(column) for column in zip(*lines, strict=True)]
    table = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return [f"| {' | '.join(map(_format_cell, row))} |" for row in table]


def _flatten(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, dict[str, float]]]:
    """Every figure that has a spread, under its whole name."""
    found = []
    for name, value in figures.items():
        if isinstance(value, dict):
            whole = f"{prefix}{name}"
            found += [(whole, value)] if "median" in value else _flatten(value, f"{whole}: ")
    return found


FAULTS = "faults of each operator, dtype and kind"
"""Numbers by "OPERATOR DTYPE KIND", which have a table of their own."""
APART = ("device", FAULTS)
"""Figures that are shown elsewhere."""


def _list_singles(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Every figure without a spread, under its whole name; what has nothing but a few numbers (a
    step's phases) is one line."""
    found = []
    for name, value in figures.items():
        whole = f"{prefix}{name}"
        if isinstance(value, dict) and "median" not in value and whole not in APART:
            numbers = [item for item in value.values() if isinstance(item, int | float)]
            if len(numbers) == len(value) > 3:
                parts = (f"{key} {_format_single(item)}" for key, item in value.items())
                found.append((whole, ", ".join(parts)))
            else:
                found += _list_singles(value, f"{whole}: ")
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            found.append((whole, _format_single(value)))
    return found


def _format_cell(cell: object) -> str:
    """Without the digits that binary fractions add to a mean."""
    return str(float(f"{cell:.6g}") if isinstance(cell, float) else cell)


def _format_single(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else _format(value)


def _render_faults(faults: dict[str, int]) -> list[str]:
    """A line for each operator and dtype, a column for each kind of fault."""
    kinds = list(dict.fromkeys(name.split()[2] for name in faults))
    lines: dict[tuple[str, ...], dict[str, int]] = {}
    for name, count in faults.items():
        *stratum, kind = name.split()
        lines.setdefault(tuple(stratum), {})[kind] = count
    return [
        f"| operator | dtype | {' | '.join(kinds)} |",
        "|---|---|" + "---|" * len(kinds),
        *(
            f"| {' | '.join(stratum)} | {' | '.join(str(found.get(kind, '-')) for kind in kinds)} |"
            for stratum, found in lines.items()
        ),
    ]


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name in ABOUT:
        for kind in ("", *KINDS):
            path = RESULTS / f"{name}{kind and f'-{kind}'}.json"
            if path.exists():
                parts.append(_render_result(name, json.loads(path.read_text()), kind) + "\n")
    return "\n".join(parts)


PANELS = (
    ("seconds a step", {"step, s": "vtrain", "torch step, s": "torch fp32"}),
    ("seconds a replayed step", {"replayed step, s": "replayed", "step, s": "trained"}),
    ("seconds a commitment", {"commitment, s": "the whole state hashed"}),
    (
        "peak memory beyond the imports, MB",
        {"peak beyond the imports, MB": "vtrain", "torch peak, MB": "torch fp32"},
    ),
)
"""Title of a panel -> the columns of growth.json that it shows, and what they are called."""
COLOURS = ("#0b5394", "#b45f06")
PANEL, MARGIN, GAP = (380, 240), (56, 34), 46
"""Width and height of a panel, space left of and above it, and space between two."""


def draw_growth(rows: list[dict[str, Any]]) -> str:
    """An SVG of the figures of all sizes against their parameters: both axes are logarithmic."""
    (width, height), (left, top) = PANEL, MARGIN
    whole = (2 * (width + left + GAP // 2), 2 * (height + top + GAP))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole[0]} {whole[1]}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{whole[0]}" height="{whole[1]}" fill="white"/>',
    ]
    for i, (title, series) in enumerate(PANELS):
        x = left + (i % 2) * (width + left + GAP // 2)
        y = top + (i // 2) * (height + top + GAP)
        parts += [f'<g transform="translate({x} {y})">', *_draw_panel(title, series, rows), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_panel(title: str, series: dict[str, str], rows: list[dict[str, Any]]) -> list[str]:
    width, height = PANEL
    values = [row[column] for row in rows for column in series]
    across, up = (
        _Axis.around([row["parameters"] for row in rows], width),
        _Axis.around(values, -height),
    )
    parts = [f'<text x="0" y="-12" font-weight="bold">{title}</text>']
    for axis, vertical in ((across, False), (up, True)):
        for tick in axis.ticks():
            at = axis.place(tick) + (height if vertical else 0)
            start = (0, at, width, at) if vertical else (at, 0, at, height)
            line = " ".join(
                f'{key}="{_round(v)}"'
                for key, v in zip(("x1", "y1", "x2", "y2"), start, strict=True)
            )
            parts.append(f'<line {line} stroke="#dddddd"/>')
            label = (-6, at + 4, "end") if vertical else (at, height + 16, "middle")
            parts.append(
                f'<text x="{_round(label[0])}" y="{_round(label[1])}" text-anchor="{label[2]}">'
                f"{_name_tick(tick)}</text>"
            )
    parts.append(f'<text x="{width // 2}" y="{height + 34}" text-anchor="middle">parameters</text>')
    for i, ((column, name), colour) in enumerate(zip(series.items(), COLOURS, strict=False)):
        points = [
            (_round(across.place(row["parameters"])), _round(up.place(row[column]) + height))
            for row in rows
        ]
        path = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(f'<text x="10" y="{18 + 16 * i}" fill="{colour}">{name}</text>')
    return parts


@dataclass(frozen=True)
class _Axis:
    """Whole decades from 10^``first`` to 10^``last`` over ``length`` of the picture."""

    first: int
    last: int
    length: float

    @classmethod
    def around(cls, values: list[float], length: float) -> _Axis:
        """The decades that hold all of ``values``, which are above 0."""
        first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(first, max(last, first + 1), length)

    def place(self, value: float) -> float:
        """Where ``value`` lies."""
        return (math.log10(value) - self.first) / (self.last - self.first) * self.length

    def ticks(self) -> list[float]:
        """The powers of ten."""
        return [10.0**n for n in range(self.first, self.last + 1)]


def _round(value: float) -> str:
    return f"{value:.1f}"


def _name_tick(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def render_picture() -> str | None:
    """growth.svg; None where nothing was measured."""
    path = RESULTS / "growth.json"
    return draw_growth(json.loads(path.read_text())["figures"]["sizes"]) if path.exists() else None


if __name__ == "__main__":
    (DOCS / "benchmarks.md").write_text(render())
    if (picture := render_picture()) is not None:
        (DOCS / "growth.svg").write_text(picture)
