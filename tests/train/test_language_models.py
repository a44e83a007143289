"""Language models at the ends of what they may be: exact results, or a refusal that names why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

import vtrain
from tests.tasks import CONTEXT, VOCABULARY, make_gpt_onnx, make_tokens
from vtrain.audit.verify import verify
from vtrain.errors import (
    DataError,
    GraphError,
    ModelError,
    RangeError,
    TaskError,
    VtrainError,
)
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train

TASK = """
[task]
name = "ends"
seed = 1
steps = 5
batch = {batch}
commit_every = 1
checkpoint_every = 5
[model]
onnx = "gpt.onnx"
loss = "cross_entropy"
[data]
kind = "tokens"
path = "tokens.bin"
dtype = "u16"
context = {context}
vocabulary = {vocabulary}
[data.prepare]
kind = "ids"
[optimizer]
kind = "adamw"
learning_rate = 0.01
clip_norm = 1.0
"""


class Ends:
    """A folder with a model, its tokens and its task, each changed as a test likes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.task = folder, folder / "task.toml"
        self.tokens = make_tokens(400, 2).table.view("<u2").copy()
        self.write()

    def write(
        self,
        *,
        batch: int = 4,
        context: int = CONTEXT,
        vocabulary: int = VOCABULARY,
        change: Callable[[str, npt.NDArray[np.float32]], Any] = lambda name, value: value,
    ) -> None:
        model = onnx.load_from_string(make_gpt_onnx(places=context))
        for tensor in model.graph.initializer:
            value = change(tensor.name, numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(value, np.float32), tensor.name))
        onnx.save(model, self.folder / "gpt.onnx")
        self.tokens.tofile(self.folder / "tokens.bin")
        text = TASK.format(batch=batch, context=context, vocabulary=vocabulary)
        self.task.write_text(text)

    def train_by_both(self, key: Any) -> Path:
        """The run of the cpu engine; that of the law has the same log, and it is verified."""
        vtrain.profile(self.task)
        task, runs = vtrain.compile(self.task), []
        for engine in ("cpu", "numpy"):
            runs.append(self.folder / engine)
            train(task, runs[-1], key=key, engine=engine, threads=1)
        logs = [RunPaths(run).log.read_bytes() for run in runs]
        assert logs[0] == logs[1]
        report = verify(runs[0], all_=True, task_id=task.task_id)
        assert report.verdict == "verified"
        return runs[0]

    def refusal(self) -> VtrainError:
        with pytest.raises(VtrainError) as caught:
            vtrain.profile(self.task)
        return caught.value


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    return Ends(tmp_path)


def test_a_token_beyond_the_vocabulary_is_named_by_its_position(ends: Ends) -> None:
    ends.tokens[[123, 321]] = VOCABULARY
    ends.write()
    error = ends.refusal()
    assert isinstance(error, DataError)
    assert f"token 123 is {VOCABULARY}" in str(error)


def test_a_vocabulary_beyond_the_table_is_refused(ends: Ends) -> None:
    """Whether or not a token is there that the table has no row for."""
    ends.write(vocabulary=VOCABULARY + 1)
    error = ends.refusal()
    assert isinstance(error, TaskError)
    assert f"data.vocabulary: is 13, of a model with {VOCABULARY} rows of the table" in str(error)


@pytest.mark.parametrize("vocabulary", [0, -1, 2**16 + 1, 2**31, 2**63, 2**70])
def test_a_vocabulary_that_no_dtype_or_label_has_is_refused(ends: Ends, vocabulary: int) -> None:
    ends.write(vocabulary=vocabulary)
    assert "vocabulary" in str(ends.refusal())


@pytest.mark.parametrize("batch", [0, -1])
def test_an_empty_batch_is_refused(ends: Ends, batch: int) -> None:
    ends.write(batch=batch)
    error = ends.refusal()
    assert isinstance(error, TaskError)
    assert "task.batch" in str(error)


def test_too_few_tokens_for_a_window_are_refused(ends: Ends) -> None:
    for count in (0, 1, CONTEXT):
        ends.tokens = ends.tokens[:count]
        ends.write()
        assert isinstance(ends.refusal(), DataError)


def test_sequences_of_one_token(ends: Ends, key: Any) -> None:
    ends.write(context=1)
    ends.train_by_both(key)


LARGEST, LEAST = 127.99, 2.0**-24


def fill(part: str, value: float) -> Callable[[str, npt.NDArray[np.float32]], Any]:
    """Weights of a name, or of all, that are +-``value``."""

    def change(name: str, tensor: npt.NDArray[np.float32]) -> Any:
        signs = np.where(np.arange(tensor.size).reshape(tensor.shape) % 3 == 0, -1, 1)
        return signs * value if part in ("all", name) else tensor

    return change


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("table", LARGEST),
        ("w_q", LARGEST),
        ("gain", LARGEST),
        ("w_out", LARGEST),
        ("w_q", LEAST),
        ("table", LEAST),
        ("gain", 0.0),
        ("all", 0.0),
    ],
)
def test_extreme_weights_are_trained_exactly(ends: Ends, key: Any, part: str, value: float) -> None:
    """At the ends of their range, and at the last place: both engines have the same bits."""
    ends.write(change=fill(part, value))
    ends.train_by_both(key)


@pytest.mark.parametrize(
    ("part", "value", "node"),
    [
        ("gain", LEAST, "n/grad_sum (add)"),
        ("all", LARGEST, "h/grad_sum (add)"),
        ("all", LEAST, "n/root (inverse_root)"),
    ],
)
def test_weights_of_which_a_sum_has_no_range_are_refused_by_node(
    ends: Ends, part: str, value: float, node: str
) -> None:
    """Two gradients that are too far apart to be added, an epsilon beyond the unit of its sum."""
    ends.write(change=fill(part, value))
    error = ends.refusal()
    assert isinstance(error, RangeError | GraphError)
    assert f"node {node}" in str(error)


@pytest.mark.parametrize("value", [128.0, -129.0, 1e30, np.inf, np.nan])
def test_weights_beyond_the_range_are_refused_by_name(ends: Ends, value: float) -> None:
    def change(name: str, tensor: npt.NDArray[np.float32]) -> Any:
        if name == "w_k":
            tensor = tensor.copy()
            tensor[3, 2] = value
        return tensor

    ends.write(change=change)
    error = ends.refusal()
    assert isinstance(error, ModelError)
    assert "w_k" in str(error)
