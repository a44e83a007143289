"""What a notebook meets: short reprs and their HTML, tasks as dicts, calls that take what is clear,
and a folder for a hub of models."""

from __future__ import annotations

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import GPT2LMHeadModel

import vtrain
from tests.modules import PLACES, make_gpt2, make_ids
from tests.tasks import make_mlp_onnx, make_samples
from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.errors import RunError, TaskError
from vtrain.train import summary
from vtrain.train.layout import RunPaths
from vtrain.train.runner import RunSummary
from vtrain.train.signed import read_claim


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A task as a dict, as one has it in a notebook."""
    folder = tmp_path_factory.mktemp("tables")
    samples = make_samples((16,), 40, seed=3)
    np.save(folder / "x.npy", samples.part("x"))
    np.save(folder / "y.npy", samples.part("y"))
    (folder / "model.onnx").write_bytes(make_mlp_onnx(3))
    data = {"kind": "npy", "x": folder / "x.npy", "y": folder / "y.npy"}
    return {
        "task": {"name": "<b>tiny", "seed": 3, "steps": 12, "batch": 4, "checkpoint_every": 4},
        "model": {"onnx": folder / "model.onnx", "loss": "cross_entropy", "ignore": None},
        "data": {**data, "count": np.int64(30), "prepare": {"scale": "1/255"}},
        "test": {**data, "start": 30},
        "optimizer": {"kind": "sgd", "momentum": 0.9, "learning_rate": 0.5},
        "format": {"calibration_steps": 4},
    }


@pytest.fixture(scope="module")
def task(tables: dict[str, Any]) -> vtrain.CompiledTask:
    return vtrain.compile(tables)


@pytest.fixture(scope="module")
def run(
    task: vtrain.CompiledTask, tmp_path_factory: pytest.TempPathFactory, key: PrivateKey
) -> RunSummary:
    return vtrain.train(task, tmp_path_factory.mktemp("run") / "run", key=key)


class _Tags(HTMLParser):
    """Every tag that opens, and which do not close."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read_html(value: Any) -> str:
    """The HTML form of something, which is well formed; its text."""
    page = value._repr_html_()
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    drawn = {"svg", "title", "polyline"}
    assert set(tags.seen) <= {"div", "strong", "table", "tr", "th", "td"} | drawn
    return re.sub("<[^>]*>", " ", page)


def test_what_is_shown_is_short_and_says_what_counts(
    task: vtrain.CompiledTask, run: RunSummary
) -> None:
    report = vtrain.verify(run, all=True, task_id=task.task_id.hex())
    info = vtrain.inspect(run)
    shown = [repr(value) for value in (task, run, report, info, task.graph, task.file)]
    assert max(map(len, shown)) < 250
    assert "VERIFIED" in shown[2]
    page = read_html(task)
    assert "&lt;b&gt;tiny" in page, "a name is text"
    for wanted in (task.task_id.hex(), "172 ", "matmul", "MiB", "a step", "12 of 4 samples"):
        assert wanted in page, wanted
    assert task.spec.steps * 2 < len(read_html(run))
    for value in (run, report, info):
        assert run.root.hex() in read_html(value)
    assert "replay" in read_html(report)


def test_a_summary_counts_what_is_there(task: vtrain.CompiledTask) -> None:
    found = task.summary()
    weights = 16 * 8 + 8 + 8 * 4 + 4
    assert (found.parameters, found.trained) == (weights, weights)
    assert found.nodes == len(task.graph.nodes) == sum(found.operators.values())
    # Forward, and for all weights and all values but the input backward.
    products = 4 * 16 * 8, 4 * 8 * 4
    assert found.multiplications == 2 * products[0] + 3 * products[1]
    assert found.step_memory > 0


def test_an_estimate_is_of_steps_that_were_done(
    task: vtrain.CompiledTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = task.estimate("cpu")
    assert (found.engine, found.steps) == ("cpu", 12)
    assert 0 < found.step_seconds < 5
    assert found.seconds == pytest.approx(12 * found.step_seconds)
    monkeypatch.setattr(summary, "MOST_MULTIPLICATIONS", 10)
    monkeypatch.setattr(summary, "estimate", None)  # a step that takes long is not done to be shown
    assert "task.estimate()" in read_html(task)


def test_a_task_as_a_dict_is_the_task_of_its_file(
    tables: dict[str, Any], task: vtrain.CompiledTask, tmp_path: Path
) -> None:
    assert vtrain.compile(task.write(tmp_path / "written")).task_id == task.task_id
    exponents = vtrain.profile(tables).exponents
    assert vtrain.compile({**tables, "exponents": exponents}).task_id == task.task_id
    with pytest.raises(TaskError, match="learning_rate"):
        vtrain.compile({**tables, "optimizer": {"lr": 0.1}})
    with pytest.raises(TaskError, match="no form in TOML"):
        vtrain.compile({**tables, "optimizer": {"learning_rate": object()}})


def test_calls_take_what_is_clear(
    task: vtrain.CompiledTask, run: RunSummary, key: PrivateKey, tmp_path: Path
) -> None:
    solver = public_key(key)
    assert vtrain.verify(str(run.path), samples=1, solver=solver.hex())
    assert vtrain.verify(run.path, samples=1, task_id="0x" + task.task_id.hex())
    assert vtrain.verify(run, samples=1, seed="c0ffee").verdict == "conditional"
    with pytest.raises(RunError, match="hexadecimal"):
        vtrain.verify(run, task_id="the one agreed on")
    on_test = vtrain.evaluate(run, task=task)
    assert (on_test.count, on_test.step) == (10, 12)
    assert vtrain.evaluate(run.path, step=4).count == 30
    with pytest.raises(RunError, match="give one"):
        vtrain.evaluate(run, task=task, data="x")
    onnx, tensors = vtrain.export(run, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {onnx.name, tensors.name}
    info = vtrain.inspect(run)
    assert (info.complete, info.root, info.checkpoints) == (True, run.root, (0, 4, 8, 12))
    with pytest.raises(RunError, match="not a run directory"):
        vtrain.inspect(tmp_path)


def test_the_page_takes_a_task_from_its_file_and_back(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repository / "docs" / "pytorch.md").read_text()
    (block,) = re.findall(r"```python\n(task = vtrain\.compile.*?)```", page, re.S)
    (tmp_path / "examples").symlink_to(repository / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"vtrain": vtrain}
    exec(block, names)  # noqa: S102 - it is our own
    assert (tmp_path / "mlp" / "task.toml").is_file()
    whole = tomllib.loads((tmp_path / "mlp" / "task.toml").read_text())
    monkeypatch.chdir(tmp_path / "mlp")  # paths of a dict are relative to it
    assert vtrain.compile(whole).task_id == names["task"].task_id


# --- a folder for a hub


@pytest.fixture(scope="module")
def language(
    tmp_path_factory: pytest.TempPathFactory, key: PrivateKey
) -> tuple[torch.nn.Module, RunSummary]:
    """A GPT-2 of transformers, and a run of it."""
    module = make_gpt2()
    made = vtrain.from_torch(
        module,
        make_ids(2),
        data=(np.arange(90) ** 2 // 3 % 11).astype(np.uint16),
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(module.parameters(), lr=0.01),
        batch=4,
        steps=4,
        checkpoint_every=2,
        calibration_steps=2,
    )
    return module, vtrain.train(made, tmp_path_factory.mktemp("hub") / "run", key=key)


def read_data(card: Any) -> Any:
    return card.data.to_dict()


def test_a_folder_for_a_hub_is_read_by_its_libraries(
    language: tuple[torch.nn.Module, RunSummary], tmp_path: Path
) -> None:
    module, run = language
    out = tmp_path / "my-model"
    vtrain.export(run, out, hub=True, module=module)
    names = {"README.md", "claim.cbor", "config.json", "model.onnx", "model.safetensors"}
    assert names <= {path.name for path in out.iterdir()}
    again = GPT2LMHeadModel.from_pretrained(out)
    expected = run.state_dict()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    card = ModelCard.load(out / "README.md")
    assert read_data(card) == {
        "library_name": "transformers", "tags": ["vtrain", "verifiable-training"],
    }  # fmt: skip
    claim = read_claim(RunPaths(run.path)).claim
    for value in (run.task_id, run.root, claim.solver, compute_claim_digest(claim)):
        assert value.hex() in card.text
    assert card.text.lstrip().startswith("# GPT2LMHeadModel"), "the task's name"
    vtrain.export(run, tmp_path / "named", hub=True, name="My model")
    vtrain.export(run.path, tmp_path / "plain", hub=True)  # a folder alone tells no name
    for folder, title in (("named", "My model"), ("plain", "plain")):
        assert f"\n# {title}\n" in (tmp_path / folder / "README.md").read_text()


def test_a_language_model_has_tokens_a_second(
    language: tuple[torch.nn.Module, RunSummary],
) -> None:
    for entry in language[1].history:
        assert entry.samples_per_second
        assert entry.tokens_per_second == pytest.approx(entry.samples_per_second * PLACES)


def test_the_commands_of_the_card_verify_the_run(
    language: tuple[torch.nn.Module, RunSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vtrain import cli

    run = language[1]
    out = tmp_path / "model"
    vtrain.export(run, out, hub=True, step=2)
    (tmp_path / "model" / "RUN").symlink_to(run.path)
    monkeypatch.chdir(out)
    text = (out / "README.md").read_text()
    commands = re.findall(r"(?m)^    (vtrain .*)$", text)
    assert [command.split()[1] for command in commands] == ["verify", "export"]
    for command in commands:
        assert cli.run(command.split()[1:]) == 0, command
    (compared,) = re.findall(r"(?m)^    cmp (.*)$", text)
    one, other = (Path(name).read_bytes() for name in compared.split())
    assert one == other
    assert read_data(ModelCard(text)) == {"tags": ["vtrain", "verifiable-training"]}


def test_a_folder_for_a_hub_is_new_and_whole(
    language: tuple[torch.nn.Module, RunSummary], tmp_path: Path
) -> None:
    run = language[1]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other").touch()
    with pytest.raises(RunError, match="not replaced"):
        vtrain.export(run, tmp_path / "out", hub=True)
    with pytest.raises(RunError, match="another module"):
        vtrain.export(run, tmp_path / "new", hub=True, module=torch.nn.Linear(2, 2))
    assert not (tmp_path / "new").exists()
