"""Tasks over packed documents and padded samples: their keys, from the file to a verified run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vtrain
from tests.tasks import CONTEXT, VOCABULARY, make_gpt_onnx, make_mlp_onnx
from vtrain.attest.keys import generate_key
from vtrain.errors import DataError, ModelError, TaskError
from vtrain.graph.model import Softmax, confine_attention
from vtrain.graph.onnx_import import import_onnx
from vtrain.ops.attention import NO_ID
from vtrain.spec.samples import Samples
from vtrain.train import data
from vtrain.train.data import build_samples, check_padding, load_samples
from vtrain.train.deliver import evaluate_run
from vtrain.train.task import CompiledTask, load_task
from vtrain.wire.task import Windows, describe_windows

Array = npt.NDArray[Any]
END, PAD = 0, 11
TASK = """
[task]
name = "documents"
seed = 5
steps = 6
batch = 8
checkpoint_every = 3
[model]
onnx = "gpt.onnx"
loss = "cross_entropy"
{keys}
[data]
{source}
[data.prepare]
kind = "ids"
[optimizer]
kind = "adamw"
learning_rate = 0.01
[format]
calibration_steps = 3
"""
TOKENS = f"""kind = "tokens"
path = "train.bin"
dtype = "u16"
context = {CONTEXT}
stride = 4
vocabulary = {VOCABULARY}
"""
ROWS = 'kind = "npz"\npath = "rows.npz"'


def write(folder: Path, keys: str, source: str = TOKENS) -> Path:
    """Tokens with an end every few, and rows with padding before or after."""
    rng = np.random.default_rng(6)
    tokens = np.where(rng.random(300) < 0.2, END, rng.integers(1, PAD, 300))
    tokens.astype("<u2").tofile(folder / "train.bin")
    x = rng.integers(1, PAD, (40, CONTEXT)).astype(np.int32)
    for row, lengths in enumerate(rng.integers(0, CONTEXT + 1, 40)):
        if row % 2:
            x[row, lengths:] = PAD
        else:
            x[row, : CONTEXT - lengths] = PAD
    np.savez(folder / "rows.npz", x=x, y=np.roll(x, -1, axis=1))
    (folder / "gpt.onnx").write_bytes(make_gpt_onnx())
    path = folder / "task.toml"
    path.write_text(TASK.format(keys=keys, source=source))
    return path


def compile_task(path: Path) -> CompiledTask:
    vtrain.profile(path)
    return vtrain.compile(path)


def find_spans(task: CompiledTask) -> list[dict[str, Any]]:
    return [dict(node.attrs) for node in task.graph.nodes if node.op == "token_spans"]


CAUSAL = {"before": CONTEXT, "after": 1}


@pytest.mark.parametrize(
    ("keys", "source", "spans"),
    [
        (f"end_of_text = {END}", TOKENS, {"end_of_text": END, "padding": NO_ID}),
        (f"padding = {PAD}\nignore = {PAD}", ROWS, {"end_of_text": NO_ID, "padding": PAD}),
        (f"padding = {PAD}\nend_of_text = 3", ROWS, {"end_of_text": 3, "padding": PAD}),
    ],
)
def test_a_task_is_trained_evaluated_and_verified(
    tmp_path: Path, keys: str, source: str, spans: dict[str, int]
) -> None:
    task = compile_task(write(tmp_path, keys, source))
    assert find_spans(task) == [{**CAUSAL, **spans}]
    generate_key(tmp_path / "key.pem")
    key = vtrain.load_key(tmp_path / "key.pem")
    run = vtrain.train(task, tmp_path / "run", key=key)
    report = vtrain.verify(run.path, samples=2, task_id=task.task_id)
    assert report.verdict == "verified"
    again = vtrain.train(task, tmp_path / "again", key=key, engine="numpy")
    assert again.root == run.root
    samples = load_samples(load_task(tmp_path / "task.toml").data)
    found = [evaluate_run(run.path, samples, step).loss for step in (0, 6)]
    assert found[1] < found[0]
    assert task.task_id != compile_task(write(tmp_path, "", source)).task_id


def test_attention_that_crosses_is_the_model_as_it_is(tmp_path: Path) -> None:
    plain = compile_task(write(tmp_path, ""))
    crossing = compile_task(write(tmp_path, f"end_of_text = {END}\nattention_crosses = true"))
    assert find_spans(crossing) == []
    assert crossing.task_id == plain.task_id
    within = compile_task(write(tmp_path, f"end_of_text = {END}\nattention_crosses = false"))
    assert len(find_spans(within)) == 1


@pytest.mark.parametrize(
    ("keys", "where", "message"),
    [
        ("end_of_text = 12", "model.end_of_text", r"12 is no id: .* \[0, 12\)"),
        ("padding = 50256", "model.padding", r"50256 is no id: .* \[0, 12\)"),
        ("padding = -1", "model.padding", "must be an integer in"),
        ("end_of_text = 2147483648", "model.end_of_text", "must be an integer in"),
        ("attention_crosses = true", "model.attention_crosses", "needs end_of_text"),
        ("end_of_text = 1\nattention_crosses = 1", "model.attention_crosses", "true or false"),
        ("end_of_text = 1\npadding = 1", "model.padding", "is end_of_text too"),
        ("eos_token_id = 1", "model.eos_token_id", "it is called end_of_text here"),
        ("pad_token_id = 1", "model.pad_token_id", "it is called padding here"),
        ("ignore_index = 1", "model.ignore_index", "it is called ignore here"),
    ],
)
def test_other_keys_are_refused_by_name(
    tmp_path: Path, keys: str, where: str, message: str
) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        vtrain.profile(write(tmp_path, keys))
    assert caught.value.where == where


def test_an_id_beyond_the_vocabulary_of_the_file_is_refused(tmp_path: Path) -> None:
    """Which may be less than that of the model."""
    small = TOKENS.replace(f"vocabulary = {VOCABULARY}", "vocabulary = 11")
    vtrain.profile(write(tmp_path, "end_of_text = 10", small))
    with pytest.raises(TaskError, match=r"11 is no id: those of the samples are in \[0, 11\)"):
        vtrain.profile(write(tmp_path, "end_of_text = 11", small))


def test_samples_that_are_no_ids_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "end_of_text = 1", ROWS)
    path.write_text(path.read_text().replace('kind = "ids"', 'scale = "1/255"'))
    (tmp_path / "gpt.onnx").write_bytes(make_mlp_onnx())
    with pytest.raises(TaskError, match="is an id, and samples are none") as caught:
        vtrain.profile(path)
    assert caught.value.where == "model.end_of_text"


def test_ids_out_of_range_are_named_by_position(tmp_path: Path) -> None:
    path = write(tmp_path, f"end_of_text = {END}")
    tokens = np.fromfile(tmp_path / "train.bin", "<u2")
    tokens[77] = VOCABULARY
    tokens.tofile(tmp_path / "train.bin")
    with pytest.raises(DataError, match="token 77 is 12, not in"):
        vtrain.profile(path)


def test_longer_sequences_than_the_table_of_positions_are_refused_by_name(tmp_path: Path) -> None:
    longer = TOKENS.replace(f"context = {CONTEXT}", f"context = {CONTEXT + 1}")
    with pytest.raises(TaskError, match="7 elements, and the model takes 6: set context") as caught:
        vtrain.profile(write(tmp_path, f"end_of_text = {END}", longer))
    assert caught.value.where == "data.context"


def test_empty_batches_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, f"end_of_text = {END}")
    path.write_text(path.read_text().replace("batch = 8", "batch = 0"))
    with pytest.raises(TaskError) as caught:
        vtrain.profile(path)
    assert caught.value.where == "task.batch"


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    model = import_onnx(make_gpt_onnx())
    layers = tuple(layer for layer in model.layers if not isinstance(layer, Softmax))
    with pytest.raises(ModelError, match="has no attention"):
        confine_attention(replace(model, layers=layers), padding=1)


# --- padding between tokens


def test_padding_between_tokens_is_refused_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, f"padding = {PAD}\nignore = {PAD}", ROWS)
    found = np.load(tmp_path / "rows.npz")
    x = found["x"].copy()
    x[17] = [1, 2, PAD, 4, PAD, PAD]
    np.savez(tmp_path / "rows.npz", x=x, y=found["y"])
    with pytest.raises(DataError, match="move it to an end of the sample") as caught:
        vtrain.profile(path)
    assert caught.value.where == "sample 17, id 2"
    task = compile_task(write(tmp_path, f"padding = {PAD}\nignore = {PAD}", ROWS))
    generate_key(tmp_path / "key.pem")
    run = vtrain.train(task, tmp_path / "run", key=vtrain.load_key(tmp_path / "key.pem"))
    with pytest.raises(DataError, match="move it to an end of the sample"):
        evaluate_run(run.path, build_samples(x, found["y"]))


def find_by_hand(windows: Array) -> tuple[int, int] | None:
    """(sample, place) of the first padding with a token before it and one after it."""
    for sample, row in enumerate(windows.tolist()):
        for place, number in enumerate(row):
            around = (row[:place], row[place + 1 :])
            if number == PAD and all(any(i != PAD for i in side) for side in around):
                return sample, place
    return None


@pytest.mark.parametrize("block", [1, 7, 2**24])
def test_windows_are_searched_run_by_run(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By windows of any context and stride, in blocks that cut runs of padding anywhere; the first
    sample is that of the first run that has one."""
    monkeypatch.setattr(data, "_COPY_BLOCK", block)
    rng = np.random.default_rng(block)
    refused = 0
    for _ in range(150):
        count, context = int(rng.integers(4, 30)), int(rng.integers(1, 7))
        stride, shift = int(rng.integers(1, 9)), int(rng.integers(0, 3))
        tokens = np.where(rng.random(count) < rng.random(), PAD, 1).astype("<u2")
        form = Windows("u16", count, context, stride, shift)
        if form.count < 1:
            continue
        table = np.frombuffer(tokens.tobytes(), np.uint8)
        samples = Samples(describe_windows(form), table)
        windows = samples.gather("x", np.arange(form.count))
        expected = find_by_hand(windows)
        if expected is None:
            check_padding(samples, PAD)
            continue
        refused += 1
        with pytest.raises(DataError) as caught:
            check_padding(samples, PAD)
        sample, place = (int(text.split()[-1]) for text in caught.value.where.split(","))
        assert (sample, place) == expected
    assert 20 < refused < 130


def test_rows_are_searched_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_BLOCK", 3)
    rng = np.random.default_rng(1)
    for _ in range(60):
        x = np.where(rng.random((8, 4)) < 0.25, PAD, 2).astype(np.int32)
        expected = find_by_hand(x)
        if expected is None:
            check_padding(build_samples(x, x), PAD)
        else:
            with pytest.raises(DataError) as caught:
                check_padding(build_samples(x, x), PAD)
            assert caught.value.where == f"sample {expected[0]}, id {expected[1]}"
