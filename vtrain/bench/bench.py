"""Measuring a task over seeds and sizes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

from vtrain.bench.figures import STAGES, Figure, Row, summarize
from vtrain.bench.stages import Prove, Setting, Subject, shorten
from vtrain.bench.sweep import Point, Sweep, make_points
from vtrain.engines.registry import choose_evaluator
from vtrain.errors import RunError
from vtrain.graph.onnx_import import import_onnx
from vtrain.train.task import CompiledTask, TaskFile, compile_task, profile_task
from vtrain.wire.graph import StepGraph

FACTORS: Final[dict[Sweep, tuple[Fraction, ...]]] = {
    "width": (Fraction(1, 2), Fraction(1), Fraction(2)),
    "depth": (Fraction(1), Fraction(2), Fraction(3)),
    "batch": (Fraction(1, 2), Fraction(1), Fraction(2)),
}
SEEDS: Final = 3


@dataclass(frozen=True)
class Measurements:
    """The rows of a bench, and the stages that were left out, by size, with the reason."""

    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...]


def measure_task(
    file: TaskFile,
    *,
    sweep: Sweep | None = None,
    factors: Sequence[Fraction] = (),
    seeds: int = SEEDS,
    stages: Sequence[str] = STAGES,
    setting: Setting | None = None,
    open_prover: Callable[[Path], Prove] | None = None,
) -> Measurements:
    """Measure the ``stages`` of a task, with so many seeds, at each size of the ``sweep``.

    ``open_prover`` gives what measures proofs, of a folder in which SRS and keys may be kept: they
    are made once for all seeds of a size, so that figures of them are of the first seed alone.

    ModelError for sizes that the model cannot have; errors of :func:`compile_task`.  A stage that
    is refused is left out of all seeds of a size.
    """
    if seeds < 1:
        raise RunError("is under 1", where=f"seeds {seeds}")
    setting = setting or Setting()
    held = None if file.held is None else file.held.model
    model = import_onnx(held or file.model)
    points = make_points(file, model, sweep, factors or (FACTORS[sweep] if sweep else ()))
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="vtrain-bench-") as name:
        folder = Path(name)
        if open_prover is not None:
            setting = replace(setting, prove=open_prover(folder))
        for point in points:
            place = f"{point.sweep} x {point.factor}" if point.sweep else ""
            found, left = _measure_point(point, seeds, stages, setting, folder)
            rows += found
            skipped |= {": ".join(filter(None, (place, k))): v for k, v in left.items()}
    return Measurements(tuple(rows), tuple(skipped.items()))


def _measure_point(
    point: Point, seeds: int, stages: Sequence[str], setting: Setting, folder: Path
) -> tuple[list[Row], dict[str, str]]:
    file = point.file
    place = f"{point.sweep} x {point.factor}, " if point.sweep else ""
    if point.sweep:
        setting.tell(f"{place}calibration")
        evaluator = choose_evaluator("cpu")
        calibration = profile_task(file, open_evaluator=evaluator, model=point.model)
        file = replace(file, exponents=calibration.exponents)
    runs: list[Sequence[Figure]] = []
    skipped: dict[str, str] = {}
    parameters = 0
    for seed in range(seeds):

        def compile_(every: int, seed: int = seed) -> CompiledTask:
            return compile_task(shorten(file, every, seed), model=point.model)

        def tell(what: str, seed: int = seed) -> None:
            setting.tell(f"{place}seed {seed + 1} of {seeds}: {what}")

        here = replace(setting, tell=tell)
        wanted = [stage for stage in stages if stage not in skipped]
        with tempfile.TemporaryDirectory(dir=folder) as name:
            measured = Subject(compile_, Path(name), here).measure(wanted)
        runs.append(measured.figures)
        skipped |= measured.skipped
        parameters = parameters or count_parameters(compile_(setting.every).graph)
    kept = [[figure for figure in figures if figure.stage not in skipped] for figures in runs]
    rows = summarize(
        kept,
        sweep=point.sweep,
        factor=float(point.factor),
        parameters=parameters,
        batch=file.batch,
    )
    return rows, skipped


def count_parameters(graph: StepGraph) -> int:
    """Numbers that are trained or frozen, without what optimizers keep beside them."""
    states = graph.states().items()
    return sum(graph.type_of(ref).size for name, ref in states if name.startswith("param/"))
