"""Single nodes by the cpu engine: what calibrates and evaluates, beside the law."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtrain.engines import cpu
from vtrain.engines.registry import choose_apply, choose_evaluator
from vtrain.errors import RunError
from vtrain.graph import evaluate as law
from vtrain.train.data import load_samples
from vtrain.train.deliver import evaluate
from vtrain.train.task import compile_task, load_task, profile_task

TASKS = ("mnist/tiny.toml", "mnist/mlp.toml", "mnist/cnn.toml")


def test_the_law_is_chosen_by_name() -> None:
    assert choose_apply("numpy") is law.apply_node
    assert choose_apply("cpu") is choose_apply("auto") is cpu.apply_node
    with pytest.raises(RunError):
        choose_apply("abacus")


@pytest.mark.parametrize("name", TASKS)
def test_calibration_finds_the_exponents_of_the_law(repository: Path, name: str) -> None:
    file = load_task(repository / "examples" / name)
    found = [
        profile_task(file, open_evaluator=choose_evaluator(engine)) for engine in ("cpu", "numpy")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", TASKS)
def test_evaluation_is_that_of_the_law(repository: Path, name: str) -> None:
    file = load_task(repository / "examples" / name)
    task = compile_task(file)
    samples = task.samples if file.test is None else load_samples(file.test)
    found = [
        evaluate(task.graph, task.initial_state, samples, engine=engine)
        for engine in ("auto", "numpy")
    ]
    assert found[0] == found[1]


def test_a_wrong_node_is_seen(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = compile_task(load_task(repository / "examples/mnist/tiny.toml"))
    right = evaluate(task.graph, task.initial_state, task.samples)
    honest = cpu.apply_node

    def lie(node, inputs, state, samples, /):  # type: ignore[no-untyped-def]
        out = honest(node, inputs, state, samples)
        return out + 1 if node.op == "matmul" else out

    monkeypatch.setattr(cpu, "apply_node", lie)
    assert evaluate(task.graph, task.initial_state, task.samples) != right
