"""What is measured of a task, how it is written, and what is estimated beforehand."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.cli.calls import Call, write_task
from tests.tasks import HEADS, make_cnn_onnx, make_gpt_onnx, make_mlp_onnx, make_tiny_task
from vtrain.bench import estimate, stages
from vtrain.bench.alone import CHECKPOINT, STATUS, measure_alone, prepare
from vtrain.bench.bench import measure_task
from vtrain.bench.estimate import PROOF, estimate_game, estimate_task
from vtrain.bench.figures import (
    STAGES,
    Figure,
    describe,
    make_table,
    render_latex,
    render_markdown,
    summarize,
    write_csv,
)
from vtrain.bench.plots import draw, draw_bars
from vtrain.bench.stages import measure_dispute, shorten
from vtrain.bench.sweep import scale_depth, scale_width
from vtrain.errors import ModelError, RunError
from vtrain.graph.model import Linear, Model, Reshape
from vtrain.graph.onnx_import import import_onnx
from vtrain.prove.backend.cost import estimate as estimate_circuit
from vtrain.prove.tiles.circuits import TILE_K, build_tile_circuit
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.signed import read_task
from vtrain.train.task import CompiledTask, compile_task, load_task
from vtrain.train.traces import write_traces
from vtrain.wire import structs
from vtrain.wire.graph import StepGraph

MEASURED = {
    ("training", "step", "s"),
    ("commitment", "state root", "s"),
    ("commitment", "checkpoint", "s"),
    ("commitment", "checkpoint", "bytes"),
    ("commitment", "record", "bytes"),
    ("replay", "step", "s"),
    ("replay", "read for an interval", "bytes"),
    ("algebraic", "trace of a step", "s"),
    ("algebraic", "trace of a step", "bytes"),
    ("algebraic", "check of a step", "s"),
    ("algebraic", "read for a step", "bytes"),
    ("dispute", "challenger", "s"),
    ("dispute", "rounds", "count"),
    ("dispute", "all moves", "bytes"),
    *((stage, "memory", "bytes") for stage in STAGES if stage != "proof" and STATUS.exists()),
}
"""What a bench measures and an estimate says."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated task file."""
    return write_task(tmp_path_factory.mktemp("bench"))


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of the command are medians of the fewest calls, not of a second of them."""
    monkeypatch.setattr(stages, "Setting", partial(stages.Setting, seconds=0.01))


# --- measuring


def count_parameters(width: int, layers: int) -> int:
    """Of an MLP with so many hidden layers of so many features, 16 inputs and 4 classes."""
    return 17 * width + (layers - 1) * (width + 1) * width + (width + 1) * 4


@pytest.mark.parametrize(
    ("sweep", "factors", "stages", "seeds", "sizes"),
    [
        ("width", "1,2", "", 1, {1: (8, 2, 4), 2: (16, 2, 4)}),
        ("depth", "1,3", "commitment", 2, {1: (8, 2, 4), 3: (8, 4, 4)}),
        ("batch", "1/2,2", "commitment", 2, {0.5: (8, 2, 2), 2: (8, 2, 8)}),
    ],
)
def test_a_sweep_is_measured_and_written(
    tmp_path: Path,
    call: Call,
    sweep: str,
    factors: str,
    stages: str,
    seeds: int,
    sizes: dict[float, tuple[int, int, int]],
) -> None:
    """``sizes``: width, hidden layers and batch by factor."""
    task, out = write_task(tmp_path, hidden=2), tmp_path / "out"
    chosen = ("--stages", stages) if stages else ()
    code, text, err = call(
        "bench", task, "--sweep", sweep, "--factors", factors, *chosen, "--seeds", seeds,
        "--out", out, "--json",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(text)
    assert found["skipped"] == {}
    rows = found["rows"]
    by_size: dict[float, dict[tuple[str, str, str], dict[str, Any]]] = {}
    for row in rows:
        by_size.setdefault(row["factor"], {})[row["stage"], row["what"], row["unit"]] = row
    assert set(by_size) == set(sizes)
    for factor, figures in by_size.items():
        width, layers, batch = sizes[factor]
        parameters = count_parameters(width, layers)
        assert set(figures) >= {key for key in MEASURED if not stages or key[0] == stages}
        for row in figures.values():
            assert (row["sweep"], row["parameters"], row["batch"]) == (sweep, parameters, batch)
            assert row["seeds"] == seeds
            assert (row["low"] is None) == (seeds == 1)
            assert seeds == 1 or row["low"] <= row["mean"] <= row["high"]
            assert row["mean"] > 0 or row["what"] == "memory", row
        # A weight and its momentum, 4 bytes each, the counter, and a head.
        length = figures["commitment", "checkpoint", "bytes"]["mean"]
        assert 8 * parameters + 8 < length < 8 * parameters + 2500
        if not stages:
            assert figures["replay", "read for an interval", "bytes"]["mean"] == length
            assert figures["dispute", "rounds", "count"]["mean"] >= 5
            statement = figures["dispute", "statement", "bytes"]["mean"]
            assert statement < figures["dispute", "all moves", "bytes"]["mean"]
    lines = csv.DictReader(io.StringIO((out / "figures.csv").read_text()))
    texts = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    assert list(lines) == texts
    assert json.loads((out / "figures.json").read_text()) == found
    head = (out / "table.md").read_text().splitlines()[0].split(" | ")[2:]
    for column, (factor, (width, layers, batch)) in zip(head, sizes.items(), strict=True):
        size = f"{count_parameters(width, layers)} parameters, batch {batch}"
        assert column.removesuffix(" |") == f"{sweep} x {factor:g}: {size}"
    # Each figure has a line of its own, also those of one name that are seconds and bytes.
    latex, markdown = ((out / f"table.{kind}").read_text() for kind in ("tex", "md"))
    assert r"\toprule" in latex
    each = len({(row["stage"], row["what"], row["unit"]) for row in rows})
    assert len(markdown.splitlines()) == 2 + each
    assert latex.count(r" \\") == 1 + each
    assert "checkpoint: time" in markdown
    assert "checkpoint: bytes" in markdown
    for name in ("time", "bytes"):
        ElementTree.parse(out / f"{name}.svg")  # noqa: S314 - it is our own


def test_stages_that_are_named_are_all_that_is_done(task: Path, call: Call) -> None:
    code, text, err = call("bench", task, "--stages", "commitment", "--seeds", 1, "--json")
    assert code == 0, err
    rows = json.loads(text)["rows"]
    assert {row["stage"] for row in rows} == {"commitment"}
    assert all(row["low"] is None and row["high"] is None for row in rows)
    code, text, _ = call("bench", task, "--stages", "commitment", "--seeds", 1)
    assert code == 0
    head, *lines = text.splitlines()
    assert head == "172 parameters, batches of 4"
    assert any("commitment: state root, s" in line for line in lines)
    assert all(line.endswith("(one seed)") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--factors", "1"), "--factors are of a --sweep"),
        (("--sweep", "width", "--factors", "0"), "above 0"),
        (("--sweep", "width", "--factors", "one"), "no list of factors"),
        (("--sweep", "width", "--factors", "1/3"), "no whole number"),
        (("--sweep", "batch", "--factors", "1/3"), "no whole number"),
        (("--sweep", "depth"), "nothing can be repeated"),
        (("--stages", "training,prayer"), "'prayer' is none of"),
        (("--stages", "proof"), "ask for it with --proof"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    task: Path, call: Call, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = call("bench", task, "--seeds", 1, "--stages", "commitment", *arguments)
    assert code == 2
    assert message in err


def test_an_estimate_names_what_a_bench_measures(
    task: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "_PROCESSES", 1)
    asked: list[Any] = []
    made = cache(lambda: estimate_task(load_task(task), engine="cpu", threads=1, seconds=0.01))

    def answer(file: Any, **given: Any) -> Any:
        asked.append(given)
        return made()

    monkeypatch.setattr(estimate, "estimate_task", answer)
    code, text, _ = call("estimate", task, "--json", "--engine", "cpu", "--threads", 1)
    assert asked == [{"engine": "cpu", "threads": 1}]
    assert code == 0
    found = json.loads(text)
    each = {(item["stage"], item["what"], item["unit"]): item for item in found["each"]}
    assert set(each) >= MEASURED
    assert all(item["value"] > 0 for item in each.values())
    modelled = {item["what"] for item in each.values() if item["how"] == "model"}
    assert {"rounds", "all moves"} == modelled - {item[1] for item in each if item[0] == "proof"}
    assert {item["what"]: item["how"] for item in found["all"]} == {
        "all 12 steps": "calibration",
        "run directory, without samples": "calibration",
        "a segment of 4 steps": "calibration",
        "an interval of 2 steps, traced": "calibration",
        "an interval of 2 steps, checked": "calibration",
        "challenger, an interval of 2 steps": "calibration",
        "rounds, an interval of 2 steps": "model",
        "all moves, an interval of 2 steps": "model",
    }
    assert all(item["value"] > 0 for item in found["all"])
    code, text, _ = call("estimate", task)
    assert code == 0
    assert "training: all 12 steps, s" in text
    assert "~" in text


def test_bytes_of_a_run_and_of_its_traces_are_said_before(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 steps with 6 state roots and 3 checkpoints, where the calibration has 10 with 2 and 2."""
    monkeypatch.setattr(estimate, "_PROCESSES", 1)
    file, key = load_task(task), Ed25519PrivateKey.generate()
    found = {(item.what, item.unit): item.value for item in estimate_task(file, seconds=0.01).all}
    run, traces = tmp_path / "run", tmp_path / "traces"
    train(compile_task(file), run, key=key)
    write_traces(run, (6,), key=key, out=traces)  # after the first checkpoint

    def measure(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    measured = measure(run) - RunPaths(run).samples.stat().st_size
    # The manifest names each checkpoint.
    assert 0 <= measured - found["run directory, without samples", "bytes"] < 300
    stored = found["an interval of 2 steps, traced", "bytes"]
    assert stored == pytest.approx(measure(traces), rel=0.1)


@pytest.mark.parametrize("every", [1, 2, 5, 12, 33])
def test_rounds_of_a_game_are_those_of_its_trees(task: Path, every: int) -> None:
    compiled = compile_task(shorten(load_task(task), every))
    played = measure_dispute(compiled, 2 * every, engine="cpu", threads=1, seconds=0)
    rounds, sent = (item.value for item in estimate_game(compiled.graph, every))
    assert played.rounds == rounds
    assert played.sent == pytest.approx(sent, rel=0.1)


def test_memory_is_that_of_a_commitment_and_of_a_game_to_its_end(
    task: Path, tmp_path: Path
) -> None:
    """What a process is measured at is all of the work: of the run's state, and of its claim."""
    every, run, game = 2, tmp_path / "run", tmp_path / "game"
    compiled = compile_task(shorten(load_task(task), every))
    train(compiled, run, key=Ed25519PrivateKey.generate(), steps=2 * every)
    prepare("commitment", run, every, "cpu", 1, None)()
    checkpoint = RunPaths(run).checkpoint(every).read_bytes()
    assert (tmp_path / CHECKPOINT).read_bytes() == checkpoint

    played = measure_dispute(compiled, 2 * every, engine="cpu", threads=1, seconds=0)
    game.write_bytes(structs.encode(played.script))
    prepare("dispute", run, every, "cpu", 1, game)()
    cut = replace(played.script, turns=played.script.turns[:2])
    game.write_bytes(structs.encode(cut))
    with pytest.raises(RunError, match="the game did not end in the referee's ruling"):
        prepare("dispute", run, every, "cpu", 1, game)()


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not tell memory")
def test_nothing_in_the_folder_of_a_user_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a stranger's, or a checkout of another version."""
    train(
        make_tiny_task(steps=2, commit_every=1, checkpoint_every=1),
        tmp_path / "run",
        key=Ed25519PrivateKey.generate(),
    )
    for name in ("json.py", "vtrain.py"):
        (tmp_path / name).write_text("raise SystemExit(f'{__file__} was run')")
    monkeypatch.chdir(tmp_path)
    taken = measure_alone("training", tmp_path / "run", every=1, engine="cpu", threads=1)
    assert taken is not None
    assert taken > 0


def test_no_process_takes_code_from_the_folder_of_a_user(repository: Path) -> None:
    started = [
        (path.name, option)
        for path in (repository / "vtrain").rglob("*.py")
        for option in re.findall(r"\[sys\.executable, ([^,\]]+)", path.read_text())
    ]
    assert {name for name, _ in started} == {"alone.py", "proofs.py", "ezkl.py"}
    assert {option for _, option in started} == {'"-P"'}


def test_proofs_are_made_with_each_seed_by_keys_of_the_first(task: Path) -> None:
    """What proves is told of a task and a run for each seed; what it says of the first alone is
    said to be of one seed in each form of the figures."""
    seeds: list[int] = []

    def prove(compiled: CompiledTask, run: Path) -> list[Figure]:
        assert read_task(RunPaths(run)) == compiled.spec
        seeds.append(compiled.spec.seed)
        figures = [Figure("proof", "proof of a step", "s", 1.0 + len(seeds))]
        return [*figures, Figure("proof", "keys for a step", "s", 9.0)][: 3 - len(seeds)]

    file = load_task(task)
    found = measure_task(file, seeds=2, stages=("proof",), open_prover=lambda folder: prove)
    assert found.skipped == ()
    assert seeds == [file.seed, file.seed + 1]
    proof, keys = found.rows
    assert (proof.mean, proof.seeds) == (2.5, 2)
    assert proof.low is not None
    assert proof.low < proof.mean
    assert (keys.mean, keys.seeds, keys.low, keys.high) == (9.0, 1, None, None)
    assert write_csv([keys]).splitlines()[1].endswith(",9.0,,,1")
    table = make_table(found.rows)
    for text in (render_markdown(table), render_latex(table, "")):
        lines = [line for line in text.splitlines() if "a step" in line]
        assert ["(one seed)" in line for line in lines] == [False, True]


def test_memory_of_a_tile_s_proof_is_what_was_measured(repository: Path) -> None:
    """By benchmarks/zk.py, which says nothing of this machine."""
    results = json.loads((repository / "benchmarks" / "results" / "zk.json").read_text())
    (row,) = (row for row in results["figures"]["tiles"] if row["circuit"] == "matmul-nn")
    measured = max(row["setup, GB"], row["prove, GB"]) * 1e9
    key = estimate_circuit(build_tile_circuit("matmul-nn"), TILE_K).proving_key / 1e9
    assert PROOF.estimate_memory(key) == pytest.approx(measured, rel=0.1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("whole", [True, False])
def test_a_proof_is_made_and_checked(
    task: Path, call: Call, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Of a whole step, and of a tile where its key would be too large."""
    from vtrain.bench import proofs

    if not whole:
        monkeypatch.setattr(proofs, "MOST_KEY", 0)
    code, text, err = call("bench", task, "--stages", "proof", "--proof", "--seeds", 2, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["skipped"] == {}
    for row in found["rows"]:
        first_alone = row["what"].startswith("keys") or row["what"] == "memory"
        assert row["seeds"] == (1 if first_alone else 2), row
    rows = {(row["what"], row["unit"]): row["mean"] for row in found["rows"]}
    what = "step" if whole else "tile of a product"
    for figure in ((f"keys for a {what}", "s"), (f"proof of a {what}", "s"), ("memory", "bytes")):
        assert rows[figure] > 0
    assert rows[f"proof of a {what}", "bytes"] > 1000
    assert rows[f"check of a {what}", "s"] < rows[f"proof of a {what}", "s"]
    assert (("statements that a step falls into", "count") in rows) != whole


def test_measuring_nothing_is_no_success(
    task: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(graph: StepGraph) -> int:
        raise RunError("has no product", where="graph")

    monkeypatch.setattr(stages, "find_gradient", refuse)
    code, _, err = call("bench", task, "--stages", "dispute", "--seeds", 1)
    assert (code, err.count("not measured: dispute: ")) == (3, 1)
    code, _, err = call("bench", task, "--stages", "commitment,dispute", "--seeds", 1)
    assert (code, err.count("not measured: dispute: ")) == (0, 1)


# --- other sizes


def forward_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in model.params.items()}


def test_hidden_features_grow_and_nothing_else() -> None:
    found = forward_shapes(scale_width(import_onnx(make_mlp_onnx()), Fraction(3)))
    assert found == {"w1": (24, 16), "b1": (24,), "w2": (4, 24), "b2": (4,)}
    found = forward_shapes(scale_width(import_onnx(make_cnn_onnx()), Fraction(2)))
    # Channels of the convolution, and what the last layer reads of them; classes and pixels stay.
    assert found["k1"] == (6, 3, 3, 1)
    assert found["w1"] == (4, 2 * 48)
    half = scale_width(import_onnx(make_mlp_onnx()), Fraction(1, 2))
    assert forward_shapes(half)["w1"] == (4, 16)


def test_heads_of_a_transformer_keep_their_number() -> None:
    model = import_onnx(make_gpt_onnx())
    wide = scale_width(model, Fraction(2))
    before, after = forward_shapes(model), forward_shapes(wide)
    assert after["table"] == (before["table"][0], 2 * before["table"][1])
    assert after["places"] == (before["places"][0], 2 * before["places"][1])
    assert after["w_q"] == (16, 16)
    splits = [layer.shape for layer in wide.layers if isinstance(layer, Reshape)]
    assert any(HEADS in shape and shape[-1] == 2 * 8 // HEADS for shape in splits), splits


def test_a_stretch_is_repeated_with_weights_of_its_own() -> None:
    model = import_onnx(make_gpt_onnx())
    deep = scale_depth(model, Fraction(3))
    count = sum(isinstance(layer, Linear) for layer in model.layers)
    # All linear layers but the one that makes logits.
    assert sum(isinstance(layer, Linear) for layer in deep.layers) == 3 * (count - 1) + 1
    assert len({*deep.params}) == len(model.params) + 2 * (len(model.params) - 2)
    assert deep.params["w_q/again2"].shape == (8, 8)
    assert scale_depth(model, Fraction(1)).layers == model.layers


def test_what_cannot_be_scaled_is_refused() -> None:
    with pytest.raises(ModelError, match="no whole number"):
        scale_depth(import_onnx(make_gpt_onnx()), Fraction(3, 2))
    with pytest.raises(ModelError, match="nothing can be repeated"):
        scale_depth(import_onnx(make_cnn_onnx()), Fraction(2))


# --- figures


def test_intervals_are_those_of_student() -> None:
    """Three values of mean 10 and deviation 1: 10 +- 4.303 / sqrt(3)."""
    runs = [[Figure("training", "step", "s", value)] for value in (9.0, 10.0, 11.0)]
    (row,) = summarize(runs, sweep="", factor=1.0, parameters=5, batch=2)
    assert (row.mean, row.seeds) == (10.0, 3)
    assert row.high == pytest.approx(10 + 4.303 / 3**0.5)
    assert row.low == pytest.approx(10 - 4.303 / 3**0.5)
    assert write_csv([row]).count("\n") == 2
    table = make_table([row])
    assert table.lines == (("training", "step", "10.0 +- 2.48 s"),)
    assert "| training | step | 10.0 +- 2.48 s |" in render_markdown(table)
    assert r"10.0 $\pm$ 2.48 s \\" in render_latex(table, "100 % of a_b & c")
    assert r"\caption{100 \% of a\_b \& c}" in render_latex(table, "100 % of a_b & c")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00123, "s", "1.23 ms"),
        (90.0, "s", "1.50 min"),
        (2.5e6, "bytes", "2.50 MB"),
        (13, "count", "13.0"),
    ],
)
def test_numbers_are_for_people(value: float, unit: Any, text: str) -> None:
    assert describe(value, unit) == text


def test_one_size_has_plots_too(task: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text, err = call(
        "bench", task, "--stages", "commitment", "--seeds", 2, "--out", out, "--json"
    )
    assert code == 0, err
    rows = [row for row in json.loads(text)["rows"] if row["unit"] == "s"]
    tree = ElementTree.parse(out / "time.svg")  # noqa: S314 - it is our own
    texts = [item.text for item in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {f"{row['stage']}: {row['what']}" for row in rows} <= set(texts)
    assert (out / "bytes.svg").is_file()
    assert not (out / "counts.svg").exists()  # nothing is counted


def test_a_bar_is_as_long_as_its_figure() -> None:
    sizes = {"a": 1.0, "b": 10.0, "c": 100.0}
    runs = [
        [Figure("replay", name, "s", size * value) for name, size in sizes.items()]
        for value in (1, 2)
    ]
    rows = summarize(runs, sweep="", factor=1.0, parameters=9, batch=1)
    picture = draw_bars(rows, "s")
    assert picture is not None
    tree = ElementTree.fromstring(picture)  # noqa: S314 - it is our own
    bars = [float(bar.attrib["width"]) for bar in tree.findall("{*}g/{*}rect")]
    assert 0 < bars[0] < bars[1] < bars[2]
    assert bars[1] - bars[0] == pytest.approx(bars[2] - bars[1], abs=0.2)  # by their logarithms
    assert draw_bars(rows, "bytes") is None
    assert "one seed" not in picture
    single = [replace(row, low=None, high=None, seeds=1) for row in rows]
    assert "(without intervals: one seed)" in (draw_bars(single, "s") or "")


def test_a_plot_has_a_line_for_each_figure_with_its_bars() -> None:
    rows = []
    for factor in (1.0, 2.0, 4.0):
        runs = [
            [Figure("replay", "step", "s", factor * value), Figure("dispute", "rounds", "count", 9)]
            for value in (1.0, 1.1, 1.2)
        ]
        rows += summarize(runs, sweep="width", factor=factor, parameters=9, batch=1)
    picture = draw(rows, "s")
    assert picture is not None
    tree = ElementTree.fromstring(picture)  # noqa: S314 - it is our own
    (line,) = tree.findall(".//{*}polyline")
    xs, ys = zip(*(map(float, p.split(",")) for p in line.attrib["points"].split()), strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)  # factors, by their logarithms
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    assert draw(rows, "bytes") is None
    assert "one seed" not in picture
    single = [replace(row, low=None, high=None, seeds=1) for row in rows]
    assert "(without bars: one seed)" in (draw(single, "s") or "")
