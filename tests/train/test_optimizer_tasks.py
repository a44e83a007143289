"""Tasks with each optimizer: what their files say, and their steps beside those of torch.

The twin has torch's own optimizer in float64 and the very gradients of the integer run, so that
what differs is the update alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import vtrain
from tests.tasks import make_mlp_onnx, make_samples
from vtrain.engines.registry import open_session
from vtrain.errors import CircuitError, TaskError
from vtrain.graph.legality import check_graph
from vtrain.graph.step import param_state
from vtrain.graph.update import round_half_up
from vtrain.ops import TABLE
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.prove.tiles.tiling import Tiling
from vtrain.spec.number import MASTER_EXPONENT
from vtrain.train.optimizers import compute_share
from vtrain.train.task import (
    CompiledTask,
    compile_task,
    load_task,
    profile_task,
    write_exponents,
)
from vtrain.wire.graph import StepGraph

TASK = """
[task]
name = "tiny"
seed = 3
steps = 400
batch = 8
checkpoint_every = 10

[model]
onnx = "mlp.onnx"
loss = "{loss}"

[data]
kind = "npz"
path = "data.npz"
{y_exponent}

[data.prepare]
scale = "1/255"

{optimizer}

[format]
calibration_steps = 8
"""
BATCH, STEPS = 8, 220
Floats = npt.NDArray[np.float64]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a task file names: a small model, and data of which something can be learnt."""
    (tmp_path / "mlp.onnx").write_bytes(make_mlp_onnx())
    return tmp_path


def write_task(folder: Path, optimizer: str, loss: str = "cross_entropy") -> Path:
    """A task of the MLP: classes, or the regression of a vector."""
    samples = make_samples((16,), 60, 7, mse=loss == "mse")
    np.savez(folder / "data.npz", x=samples.part("x"), y=samples.part("y"))
    path = folder / "task.toml"
    y_exponent = "y_exponent = 14" if loss == "mse" else ""
    path.write_text(TASK.format(loss=loss, optimizer=optimizer, y_exponent=y_exponent))
    return path


def make_task(folder: Path, optimizer: str, loss: str = "cross_entropy") -> CompiledTask:
    path = write_task(folder, optimizer, loss)
    write_exponents(path, profile_task(load_task(path)).exponents)
    return compile_task(load_task(path))


def find(graph: StepGraph, name: str) -> int:
    return next(index for index, node in enumerate(graph.nodes) if node.name == name)


def find_gradients(graph: StepGraph, names: list[str]) -> dict[str, int]:
    """The node of each parameter's gradient as its optimizer reads it."""
    found = {}
    for name in names:
        node = next(
            node
            for node in graph.nodes
            if node.name in (f"momentum/{name}/next", f"mean/{name}/next")
        )
        gradient = node.inputs[1].node
        clipped = [node for node in graph.nodes if node.name == f"{name}/clipped"]
        if clipped:
            gradient = clipped[0].inputs[0].node
        if graph.nodes[gradient].name == f"{name}/grad_decayed":
            gradient = graph.nodes[gradient].inputs[0].node
        found[name] = gradient
    return found


class Steps(Protocol):
    """Of an optimizer, what is asked here."""

    def step(self) -> object: ...


Make = Callable[[list[torch.Tensor]], Steps]


def measure_distance(
    task: CompiledTask, make_twin: Make, terms: int = BATCH
) -> tuple[float, float]:
    """How far masters and twin are apart at most, and how far the masters have come at most."""
    graph = task.graph
    check_graph(graph)
    first = {
        name.removeprefix("param/"): w
        for name, w in task.initial_state.items()
        if name.startswith("param/")
    }
    gradients = find_gradients(graph, list(first))
    twin = {
        name: torch.tensor(to_float(w, MASTER_EXPONENT), requires_grad=True)
        for name, w in first.items()
    }
    optimizer = make_twin(list(twin.values()))
    session = open_session("cpu", task.graph, task.samples)
    session.load_state(task.initial_state)
    apart = 0.0
    for _ in range(STEPS):
        values = session.evaluate_all(list(gradients.values()))
        for (name, node), value in zip(gradients.items(), values, strict=True):
            exponent = graph.nodes[node].outputs[0].exponent
            twin[name].grad = torch.tensor(to_float(value, exponent) / terms)
        optimizer.step()
        session.step()
        state = session.read_state()
        apart = max(apart, *(distance(state[param_state(name)], w) for name, w in twin.items()))
    state = session.read_state()
    moved = max(
        float(np.abs(to_float(state[param_state(name)], 24) - to_float(w, 24)).max())
        for name, w in first.items()
    )
    return apart, moved


def to_float(values: npt.NDArray[Any], exponent: int) -> Floats:
    return np.ldexp(values.astype(np.float64), -exponent)


def distance(weight: npt.NDArray[Any], twin: torch.Tensor) -> float:
    return float(np.abs(to_float(weight, MASTER_EXPONENT) - twin.detach().numpy()).max())


class PaperAdamW:
    """Epsilon as at the end of section 2 of Kingma and Ba, which is the law's: it is added to the
    root before the bias is taken out of it, not after as torch does."""

    def __init__(self, params: list[torch.Tensor], rate: float, eps: float) -> None:
        self._params = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in params]
        self._rate, self._eps, self._steps = rate, eps, 0

    @torch.no_grad()
    def step(self) -> None:
        self._steps += 1
        rate = self._rate * (1 - 0.999**self._steps) ** 0.5 / (1 - 0.9**self._steps)
        for param, mean, square in self._params:
            assert param.grad is not None
            mean.mul_(0.9).add_(param.grad, alpha=0.1)
            square.mul_(0.999).addcmul_(param.grad, param.grad, value=0.001)
            param.mul_(1 - 0.01 * self._rate)
            param.sub_(rate * mean / (square.sqrt() + self._eps))


class FloatLion:
    """Lion as its authors write it (Chen et al. 2023, algorithm 2)."""

    def __init__(self, params: list[torch.Tensor], rate: float, decay: float) -> None:
        self._params = [(p, torch.zeros_like(p)) for p in params]
        self._rate, self._decay = rate, decay

    @torch.no_grad()
    def step(self) -> None:
        for param, mean in self._params:
            assert param.grad is not None
            direction = torch.sign(0.9 * mean + 0.1 * param.grad)
            param.sub_(self._rate * (direction + self._decay * param))
            mean.mul_(0.99).add_(param.grad, alpha=0.01)


class Clipped:
    """torch's SGD with its clipping by the norm of all gradients."""

    def __init__(self, params: list[torch.Tensor], norm: float) -> None:
        self._params, self._norm = params, norm
        self._inner = torch.optim.SGD(params, lr=0.05, momentum=0.9)
        self.clipped = 0

    def step(self) -> None:
        norm = torch.nn.utils.clip_grad_norm_(self._params, self._norm)
        self.clipped += int(norm > self._norm)
        self._inner.step()


ADAMW = """[optimizer]
kind = "adamw"
learning_rate = 0.002
"""
TWINS: dict[str, tuple[str, Make, float]] = {
    "sgd": (
        '[optimizer]\nkind = "sgd"\nlearning_rate = 0.02\nmomentum = 0.9\n',
        lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9),
        2e-4,
    ),
    "sgd, nesterov, weight decay": (
        "[optimizer]\nlearning_rate = 0.02\nmomentum = 0.9\nnesterov = true\nweight_decay = 0.01\n",
        lambda params: torch.optim.SGD(
            params, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
        2e-4,
    ),
    "adamw": (ADAMW, lambda params: torch.optim.AdamW(params, lr=0.002), 1e-4),
    "adamw, other constants": (
        ADAMW + "betas = [0.8, 0.95]\nweight_decay = 0.1\n",
        lambda params: torch.optim.AdamW(params, lr=0.002, betas=(0.8, 0.95), weight_decay=0.1),
        2e-4,
    ),
    # A sign that differs moves a weight by twice the rate: of 220 it happens to few.
    "lion": (
        '[optimizer]\nkind = "lion"\nlearning_rate = 0.001\nweight_decay = 0.1\n',
        lambda params: FloatLion(params, 0.001, 0.1),
        5e-3,
    ),
    "sgd, clipped": (
        "[optimizer]\nlearning_rate = 0.05\nmomentum = 0.9\nclip_norm = 0.3\n",
        lambda params: Clipped(params, 0.3),
        5e-4,
    ),
    "adamw, a large eps": (
        ADAMW + "eps = 1e-3\n",
        lambda params: PaperAdamW(params, 0.002, 1e-3),
        1e-4,
    ),
}
"""By name: the table, torch's optimizer, and how far apart weights may be after 220 steps, in which
some come as far as 0.2 to 1."""


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("name", TWINS)
def test_trajectories_are_those_of_torch(folder: Path, name: str, loss: str) -> None:
    table, make_twin, tolerance = TWINS[name]
    apart, moved = measure_distance(make_task(folder, table, loss), make_twin)
    assert moved > 0.15
    assert apart < tolerance


def test_the_clipped_trajectory_is_clipped(folder: Path) -> None:
    """In some steps, and not in all."""
    twins: list[Clipped] = []

    def make_twin(params: list[torch.Tensor]) -> Clipped:
        twins.append(Clipped(params, 0.3))
        return twins[0]

    measure_distance(make_task(folder, TWINS["sgd, clipped"][0]), make_twin)
    assert 10 < twins[0].clipped < STEPS - 10


def test_another_decay_is_seen(folder: Path) -> None:
    """The distance above is that of rounding: a twin of slightly other constants is far away."""
    task = make_task(folder, ADAMW)
    apart, _ = measure_distance(
        task, lambda params: torch.optim.AdamW(params, lr=0.002, betas=(0.9, 0.998))
    )
    assert apart > 5e-4


# --- groups


@pytest.mark.parametrize("kind", ["sgd", "adamw", "lion"])
def test_frozen_parameters_stay_and_keep_nothing(folder: Path, kind: str) -> None:
    """Neither decay nor clipping reaches them, on either engine."""
    table = f'[optimizer]\nkind = "{kind}"\nlearning_rate = 0.002\nweight_decay = 0.1\n'
    table += "momentum = 0.9\n" if kind == "sgd" else ""
    task = make_task(folder, table + 'clip_norm = 0.5\nfrozen = ["?1"]\n')
    kept = {"sgd": {"momentum"}, "adamw": {"mean", "square"}, "lion": {"mean"}}[kind]
    expected = {f"param/{name}" for name in ("w1", "b1", "w2", "b2")}
    expected |= {f"{state}/{name}" for state in kept for name in ("w2", "b2")}
    assert set(task.initial_state) == expected | {"step"}
    # Nobody goes back beyond the second layer, and the norm is of what is trained.
    assert not any("/grad_a" in node.name for node in task.graph.nodes)
    assert not any(node.name.startswith(("w1/grad", "b1/grad")) for node in task.graph.nodes)
    squared = [node for node in task.graph.nodes if node.op == "capped_square"]
    assert len(squared) == 2
    for engine in ("cpu", "numpy"):
        session = open_session(engine, task.graph, task.samples)
        session.load_state(task.initial_state)
        for _ in range(3):
            session.step()
        state = session.read_state()
        for name in ("param/w1", "param/b1"):
            assert np.array_equal(state[name], task.initial_state[name])
        for name in ("param/w2", "param/b2"):
            assert not np.array_equal(state[name], task.initial_state[name])


@pytest.mark.parametrize("kind", ["sgd", "adamw", "lion"])
def test_no_decay_leaves_the_bits_of_a_step_without(folder: Path, kind: str) -> None:
    """Biases move as without a decay, bit for bit; weights are shrunk by rate times decay."""
    rate, decay = 0.01, 0.5
    table = f'[optimizer]\nkind = "{kind}"\nlearning_rate = {rate}\nweight_decay = '
    plain = make_task(folder, f"{table}0\n")
    path = folder / "task.toml"
    text = path.read_text()
    path.write_text(text.replace("decay = 0\n", f'decay = {decay}\nno_decay = ["b*"]\n'))
    calibrated = dict(plain.spec.exponents)
    sites = profile_task(load_task(path)).exponents
    write_exponents(path, {site: calibrated.get(site, sites[site]) for site in sites})
    states = []
    # Biases begin at zero, where a decay would not be seen.
    begin = {name: value.copy() for name, value in plain.initial_state.items()}
    for name in ("param/b1", "param/b2"):
        begin[name] = np.full_like(begin[name], 1 << MASTER_EXPONENT)
    for task in (plain, compile_task(load_task(path))):
        session = open_session("cpu", task.graph, task.samples)
        session.load_state(begin)
        session.step()
        states.append(session.read_state())
    without, some = states
    for name in ("param/b1", "param/b2"):
        assert np.array_equal(without[name], some[name])
    for name in ("param/w1", "param/w2"):
        shrunk = (without[name] - some[name]).astype(np.float64)
        expected = rate * decay * begin[name]
        # One unit of g for SGD, whose decay is added to the gradient.
        assert np.abs(shrunk - expected).max() < 1e-3 * np.abs(expected).max() + 2


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_no_decay_leaves_parameters_alone(folder: Path, kind: str) -> None:
    """With a rate of 0 for gradients a decay would be seen; with the pattern none is emitted."""
    table = f'[optimizer]\nkind = "{kind}"\nlearning_rate = 0.01\nweight_decay = 0.5\n'
    every = make_task(folder, table)
    some = make_task(folder, table + 'no_decay = ["b*"]\n')

    def decayed(task: CompiledTask) -> set[str]:
        names = {node.name for node in task.graph.nodes}
        forms = {"sgd": "{}/grad_decayed", "adamw": "param/{}/decayed"}
        return {name for name in ("w1", "b1", "w2", "b2") if forms[kind].format(name) in names}

    assert decayed(every) == {"w1", "b1", "w2", "b2"}
    assert decayed(some) == {"w1", "w2"}


# --- engines and runs


SCHEDULE = '[schedule]\nkind = "cosine"\nwarmup = 2\nuntil = 40\n'


def test_engines_agree_on_steps_of_adam(folder: Path) -> None:
    table = ADAMW + "weight_decay = 0.1\nbetas = [0.9, 0.5]\nclip_norm = 0.2\n" + SCHEDULE
    task = make_task(folder, table)
    sessions = [open_session(name, task.graph, task.samples) for name in ("numpy", "cpu")]
    for session in sessions:
        session.load_state(task.initial_state)
    for _ in range(4):
        law, cpu = (session.step() for session in sessions)
        assert law == cpu
        assert sessions[0].saturation() == sessions[1].saturation()
    law_state, cpu_state = (session.read_state() for session in sessions)
    assert law_state["square/w1"].dtype == np.int64
    assert int(law_state["square/w1"].max()) > 2**31
    for name, values in law_state.items():
        assert np.array_equal(values, cpu_state[name]), name


@pytest.mark.parametrize("kind", ["sgd", "lion"])
def test_engines_agree_on_other_steps(folder: Path, kind: str) -> None:
    table = (
        f'[optimizer]\nkind = "{kind}"\nlearning_rate = 0.01\nweight_decay = 0.1\nclip_norm = 0.2\n'
    )
    task = make_task(folder, table + SCHEDULE)
    sessions = [open_session(name, task.graph, task.samples) for name in ("numpy", "cpu")]
    for session in sessions:
        session.load_state(task.initial_state)
    for _ in range(4):
        law, cpu = (session.step() for session in sessions)
        assert law == cpu
    assert sessions[0].trace() == sessions[1].trace()


def test_what_saturates_in_steps_of_adam_is_counted(folder: Path) -> None:
    """Full means over roots of nothing are beyond int32, and so are weights that they move."""
    task = make_task(folder, ADAMW)
    full = {
        name: np.full_like(values, 2**31 - 1)
        for name, values in task.initial_state.items()
        if name.startswith("mean/")
    }
    counts = []
    for engine in ("numpy", "cpu"):
        session = open_session(engine, task.graph, task.samples)
        session.load_state({**task.initial_state, **full})
        session.step()
        counts.append(session.saturation())
    assert counts[0] == counts[1]
    assert {"w1/direction", "b2/direction"} <= set(counts[0])


def test_a_run_of_adam_is_audited(folder: Path, key: Ed25519PrivateKey) -> None:
    """Checkpoints, state roots and replays take the int64 state."""
    path = write_task(folder, ADAMW)
    path.write_text(path.read_text().replace("steps = 400", "steps = 20"))
    write_exponents(path, profile_task(load_task(path)).exponents)
    vtrain.train(path, folder / "run", key=key)
    assert vtrain.verify(folder / "run")


PLAIN = "[optimizer]\nlearning_rate = 0.1\nmomentum = 0.9\n"


@pytest.mark.parametrize(
    ("table", "whole", "tiled"),
    [
        (ADAMW, "no circuit for the operator adam_", ""),
        (ADAMW.replace("adamw", "lion"), "no circuit for the operator adam_mean", ""),
        (PLAIN + "clip_norm = 1\n", "no circuit for the operator capped_square", ""),
        (PLAIN + SCHEDULE, "no circuit for the operator schedule_linear", ""),
        (PLAIN + "nesterov = true\n", "does not make a state of what it was before", ""),
        (PLAIN + 'weight_decay = 0.01\nfrozen = ["b1"]\n', "", ""),
    ],
)
def test_whoever_asks_for_a_proof_is_told_by_name_what_no_circuit_has(
    folder: Path, table: str, whole: str, tiled: str
) -> None:
    graph = make_task(folder, table).graph
    builders = (
        (whole, lambda: build_step_circuit(graph, 17, "step")),
        (tiled, lambda: Tiling(graph)),
    )
    for message, build in builders:
        if message:
            with pytest.raises(CircuitError, match=message):
                build()
        else:
            build()


@pytest.mark.parametrize("beta2", ["0.95", "0.99", "0.999"])
@pytest.mark.parametrize("beta1", ["0", "0.9", "0.95"])
def test_the_correction_is_that_of_real_numbers(beta1: str, beta2: str) -> None:
    attrs = {
        name: round_half_up(Fraction(beta) * 2**31)
        for name, beta in (("beta1", beta1), ("beta2", beta2))
    }
    for t in [*range(12), 99, 999, 12_345, 10**6, 10**9]:
        found = int(TABLE["adam_correction"].law(attrs, [np.asarray(t, np.int64)])) / 2**24
        rests = [
            -math.expm1((t + 1) * math.log(float(b))) if float(b) else 1 for b in (beta1, beta2)
        ]
        assert found == pytest.approx(math.sqrt(rests[1]) / rests[0], rel=1e-6)


# --- what is refused


@pytest.mark.parametrize(
    ("table", "where", "message"),
    [
        ('kind = "adam"', "optimizer.kind", "must be one of sgd, adamw, lion.*weight_decay = 0"),
        ('kind = "Momentum"', "optimizer.kind", "momentum = 0.9"),
        ("kind = 3", "optimizer.kind", "must be one of"),
        ("lr = 0.1", "optimizer.lr", "learning_rate"),
        ('kind = "adamw"\nmomentum = 0.9', "optimizer.momentum", "is a key of sgd; kind is adamw"),
        ("betas = [0.9, 0.99]", "optimizer.betas", "is a key of adamw and lion; kind is sgd"),
        ("momentum = 1", "optimizer.momentum", "must lie in"),
        ("nesterov = true", "optimizer.nesterov", "needs a momentum"),
        ("momentum = 0.5\nnesterov = 1", "optimizer.nesterov", "true or false"),
        ("weight_decay = -0.1", "optimizer.weight_decay", "must lie in"),
        ("weight_decay = 1e-12", "optimizer.weight_decay", "too small"),
        ('kind = "adamw"\nbetas = [0.9]', "optimizer.betas", "two numbers"),
        ('kind = "adamw"\nbetas = [0.9, 1]', "optimizer.betas", "must lie in"),
        ('kind = "adamw"\neps = -1', "optimizer.eps", "must lie in"),
        ('frozen = "w1"', "optimizer.frozen", "must be a list of names"),
        ('frozen = ["w9"]', "optimizer.frozen", "no parameter is called 'w9'; there are w1, b1"),
        ('frozen = ["*"]', "optimizer.frozen", "leaves no parameter to train"),
        ('no_decay = ["*.bias"]', "optimizer.no_decay", "no parameter is called"),
        ("clip_norm = 0", "optimizer.clip_norm", "must be above 0"),
        ("max_grad_norm = 1", "optimizer.max_grad_norm", "it is called clip_norm here"),
        ('kind = "lion"\neps = 1', "optimizer.eps", "is a key of adamw; kind is lion"),
        ("learning_rate = 1e-30", "optimizer.learning_rate", "too small"),
        ('kind = "adamw"\nlearning_rate = -1', "optimizer.learning_rate", "not be negative"),
    ],
)
def test_impossible_tables_are_refused(folder: Path, table: str, where: str, message: str) -> None:
    rate = "" if "learning_rate" in table else "learning_rate = 0.1\n"
    path = write_task(folder, f"[optimizer]\n{rate}{table}\n")
    with pytest.raises(TaskError, match=message) as caught:
        profile_task(load_task(path))
    assert caught.value.where == where


@pytest.mark.parametrize("beta", ["0", "1/2", "0.9", "0.99", "0.999", "0.999999"])
def test_shares_are_near_what_they_stand_for(beta: str) -> None:
    part = 1 - Fraction(beta)
    share = compute_share(part)
    assert share.rate <= min(2**16, 2**share.shift)
    assert abs(Fraction(share.rate, 2**share.shift) / part - 1) <= Fraction(1, 2**16)
