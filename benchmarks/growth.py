"""How a step, a commitment, a replay and memory grow with the model, from 0.1M to 20M parameters.

The GPT of examples/shakespeare with other layers and widths, 64 places of context and batches of 4:
small, so that what grows with the parameters is seen.  Each size is a run of 10 steps with a
checkpoint in the middle, made by one process; a second one that has never trained, exported or
compiled anything reads that run, as an auditor does, and is measured.  Torch's step in fp32 eager
is beside it, in a process of its own, right after.

Expected before measuring: all grow as the parameters do, but the smallest sizes less, where calls
and activations weigh more.  A step is below torch's at every size where there is VNNI, a commitment
a fiftieth of a step, a replayed step what a trained one takes.  Memory follows the state, which has
16 bytes a parameter (a weight and both moments of AdamW), and its copy for the step under way.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import _harness as harness
import numpy as np
from step import finish_imports, read_peak
from verify import measure_replay

from vtrain.audit.structure import read_state
from vtrain.commit.log import decode_log
from vtrain.commit.state import compute_root_of_state
from vtrain.engines.registry import choose_evaluator, open_session
from vtrain.train.data import read_samples
from vtrain.train.layout import RunPaths
from vtrain.train.signed import read_graph, read_task
from vtrain.train.task import CompiledTask, compile_task, load_task, profile_task

THREADS = 2
CONTEXT, BATCH = 64, 4
INTERVAL = 5
"""Steps between two checkpoints: what is replayed."""
SECONDS = 1.5
"""For a figure of a size, each time it is taken."""
WINDOW = 20_000
"""Tokens that a run of so few steps keeps."""
REPLAY_LIMIT = 1.05
GROWTH_LIMIT = 1.2
"""Of the exponent by which a figure may grow with the parameters: 1 is as they do."""


@dataclass(frozen=True)
class Size:
    """Of a GPT."""

    layers: int
    features: int
    heads: int


SIZES = (
    Size(2, 64, 2),
    Size(3, 96, 3),
    Size(4, 128, 4),
    Size(5, 192, 4),
    Size(6, 288, 6),
    Size(7, 384, 8),
    Size(8, 456, 8),
)
"""0.11M, 0.34M, 0.80M, 2.2M, 6.0M, 12M and 20M parameters."""


def make_network(size: Size) -> Any:
    """The example's module in another size; its constants are those of this process."""
    import torch
    from _shakespeare import load_example

    gpt = load_example("gpt")
    gpt.LAYERS, gpt.FEATURES, gpt.HEADS = size.layers, size.features, size.heads
    gpt.CONTEXT = CONTEXT
    torch.manual_seed(0)
    return gpt.GPT(len(gpt.read_ids()[0])).eval()


def make_run(folder: Path, size: Size) -> None:
    """A calibrated task of this size and a run of it, in ``folder``."""
    import tomlkit
    from _shakespeare import EXAMPLES, load_example
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from vtrain.train.runner import train

    network, gpt = make_network(size), load_example("gpt")
    gpt.read_ids()[1][:WINDOW].tofile(folder / "tokens.bin")
    gpt.export(network, folder / "gpt.onnx")
    document = tomlkit.parse((EXAMPLES / "gpt.toml").read_text()).unwrap()
    document["task"] |= {"steps": 2 * INTERVAL, "batch": BATCH}
    document["task"] |= {"commit_every": INTERVAL, "checkpoint_every": INTERVAL}
    document["data"] |= {"context": CONTEXT, "count": WINDOW}
    document["format"] = {"calibration_steps": 3}
    # So small a rate that no size leaves the ranges of a calibration of three steps.
    document["optimizer"]["learning_rate"] = 1e-6
    document["schedule"]["warmup"] = INTERVAL
    del document["test"], document["exponents"]
    path = folder / "gpt.toml"
    path.write_text(tomlkit.dumps(document))
    file = load_task(path)
    file = replace(
        file, exponents=profile_task(file, open_evaluator=choose_evaluator("cpu")).exponents
    )
    train(compile_task(file), folder / "run", key=Ed25519PrivateKey.generate(), threads=THREADS)


def repeat(work: Any) -> list[float]:
    """Seconds of calls for about ``SECONDS``, from the second on, three at least."""
    work()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        times.append(harness.time_once(work))
    return times


def measure_run(folder: Path) -> dict[str, Any]:
    """What a process that has only read the run sees: seconds, and MB beyond its imports."""
    before = read_peak()
    paths = RunPaths(folder / "run")
    task = read_task(paths)
    graph = read_graph(paths, task)
    samples = read_samples(paths.samples, task.data)
    records = decode_log(paths.log.read_bytes())
    session = open_session("cpu", graph, samples, threads=THREADS)

    session.load_state(read_state(paths, task, graph, records, INTERVAL, THREADS))
    for _ in range(INTERVAL):
        session.step()
    peak = read_peak() - before
    stepped = repeat(session.step)
    compiled = CompiledTask(task, graph, samples, {}, b"")
    replay = measure_replay(compiled, folder / "run", 2 * SECONDS, INTERVAL, least_rounds=3)
    state = session.read_state()
    commitment = repeat(lambda: compute_root_of_state(graph, state, THREADS))
    weights = sum(value.size for name, value in state.items() if name.startswith("param/"))
    return {
        "parameters": weights,
        "step, s": statistics.median(stepped),
        "commitment, s": statistics.median(commitment),
        "replayed step, s": replay["ours"]["median"] / INTERVAL,
        "replay over training": replay["ratio"]["median"],
        "peak beyond the imports, MB": peak,
        "state, MB": sum(value.nbytes for value in state.values()) / 1e6,
    }


def measure_torch(size: Size) -> dict[str, Any]:
    """Torch's step on fixed windows, and its memory beyond the imports."""
    import torch
    from _shakespeare import load_example

    load_example("gpt")
    finish_imports()
    torch.set_num_threads(THREADS)
    before = read_peak()
    network = make_network(size)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, betas=(0.9, 0.99))
    ids, labels = (torch.randint(0, 65, (BATCH, CONTEXT)) for _ in range(2))
    places = BATCH * CONTEXT

    def step() -> None:
        optimizer.zero_grad()
        logits = network(ids).view(places, -1)
        loss = torch.nn.functional.cross_entropy(logits, labels.view(places))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    seconds = statistics.median(repeat(step))
    return {"torch step, s": seconds, "torch peak, MB": read_peak() - before}


def call(what: str, folder: Path, size: Size) -> dict[str, Any]:
    """One of the functions above in a process of its own."""
    code = f"import growth; growth.answer({what!r}, {str(folder)!r}, **{asdict(size)!r})"
    return harness.ask_process(code)


def answer(what: str, folder: str, **size: int) -> None:
    """What such a process does: print what it found."""
    found: dict[str, Any] = {}
    if what == "make":
        make_run(Path(folder), Size(**size))
    elif what == "run":
        found = measure_run(Path(folder))
    else:
        found = measure_torch(Size(**size))
    print(json.dumps(found))


def measure_size(size: Size) -> dict[str, Any]:
    """A row of figures."""
    with tempfile.TemporaryDirectory() as folder:
        call("make", Path(folder), size)
        found = call("run", Path(folder), size) | call("torch", Path(folder), size)
    row = {"parameters": found.pop("parameters"), "layers": size.layers, "features": size.features}
    return row | {name: float(f"{value:.4g}") for name, value in found.items()}


def fit_growth(rows: list[dict[str, Any]], name: str) -> float:
    """The exponent of the parameters by which a figure grows, fitted over all sizes."""
    sizes, values = (np.log([row[key] for row in rows]) for key in ("parameters", name))
    return float(np.polyfit(sizes, values, 1)[0])


def judge(rows: list[dict[str, Any]]) -> dict[str, harness.Target]:
    """No figure grows faster than the model; a replayed step costs what a trained one does."""
    targets = {
        f"{name.split(',')[0]}: exponent of its growth": harness.at_most(
            fit_growth(rows, name), GROWTH_LIMIT
        )
        for name in ("step, s", "commitment, s", "replayed step, s", "peak beyond the imports, MB")
    }
    replays = [row["replay over training"] for row in rows]
    targets["replay over training, median of the sizes"] = harness.at_most(
        statistics.median(replays), REPLAY_LIMIT
    )
    return targets


def measure(quick: bool) -> Iterator[harness.Result]:
    """Row by row; ``quick``: the two smallest."""
    rows: list[dict[str, Any]] = []
    for size in SIZES[:2] if quick else SIZES:
        rows.append(measure_size(size))
        yield harness.Result({"sizes": list(rows)}, judge(rows) if len(rows) > 1 else {})


if __name__ == "__main__":
    harness.main("growth", measure)
