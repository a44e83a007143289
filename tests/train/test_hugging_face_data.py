"""Datasets of Hugging Face as the samples of a task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from datasets import Array2D, Dataset, DatasetDict, Features, Image, List, Value

from vtrain.errors import UnsupportedError
from vtrain.train.torch_hooks.data import Loaded, Wanted, load

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3) / 8 - 0.5
LABELS = np.array([0, 2, 1, 2])
IDS = np.array([[1, 2, 3], [4, 5, 6]])
PIXELS = (np.arange(4 * 6) * 10).astype(np.uint8).reshape(4, 2, 3)
PLAIN = Wanted((3,), takes_ids=False, has_classes=True, ignored=-100)
IMAGES = Wanted((2, 3), takes_ids=False, has_classes=True, ignored=-100)
LANGUAGE = Wanted((3,), takes_ids=True, has_classes=True, ignored=-100)


def make_rows(**more: Any) -> Dataset:
    """Rows of floats, with a text beside them that nothing is made of."""
    columns = {"text": ["a", "b", "c", "d"], "x": ROWS.tolist(), "label": LABELS.tolist()}
    return Dataset.from_dict(columns | more)


def refuse(data: Any, wanted: Wanted = PLAIN) -> str:
    with pytest.raises(UnsupportedError) as caught:
        load(data, None, wanted)
    (problem,) = caught.value.problems
    return str(problem)


def shift(batch: dict[str, Any]) -> dict[str, Any]:
    """A transform of a user's own: each row with 1 added."""
    return batch | {"x": [np.asarray(row, np.float32) + 1 for row in batch["x"]]}


FORMATS: dict[str, Callable[[], Any]] = {
    "plain": make_rows,
    "numpy": lambda: make_rows().with_format("numpy"),
    "torch": lambda: make_rows().with_format("torch"),
    "some columns": lambda: make_rows().with_format("torch", columns=["x"]),
    "of one length": lambda: make_rows().cast_column("x", List(Value("float32"), length=3)),
    "chosen": lambda: make_rows(row=list(range(4))).filter(lambda row: row["row"] >= 0),
    "backwards twice": lambda: make_rows().select([3, 2, 1, 0]).select([3, 2, 1, 0]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_dataset_is_the_arrays_of_its_columns(name: str) -> None:
    data = FORMATS[name]()
    format_before = data.format
    found = load(data, data, PLAIN)
    assert found.samples.spec == load((ROWS, LABELS), None, PLAIN).samples.spec
    assert found.test is not None
    assert found.test.spec == found.samples.spec
    assert data.format == format_before


def test_a_format_that_is_set_in_place_changes_nothing() -> None:
    data = make_rows()
    data.set_format("torch", columns=["label"])
    assert load(data, None, PLAIN).samples.spec == load((ROWS, LABELS), None, PLAIN).samples.spec


def test_what_a_transform_gives_is_what_is_trained_on() -> None:
    data = make_rows().with_transform(shift)
    assert (
        load(data, None, PLAIN).samples.spec == load((ROWS + 1, LABELS), None, PLAIN).samples.spec
    )
    drawn = make_rows().with_transform(
        lambda batch: batch | {"x": np.random.default_rng().normal(size=(len(batch["x"]), 3))}
    )
    assert "another sample 0 each time" in refuse(drawn)


def read_pixels(found: Loaded) -> Any:
    return found.samples.part("x").reshape(PIXELS.shape)


def test_images_and_arrays_of_two_axes_are_their_pixels() -> None:
    features = Features({"image": Image(), "label": Value("int64")})
    images = Dataset.from_dict({"image": [*PIXELS], "label": LABELS}, features=features)
    arrays = Dataset.from_dict(
        {"pixel_values": PIXELS, "label": LABELS},
        features=Features({"pixel_values": Array2D((2, 3), "uint8"), "label": Value("int64")}),
    )
    for data in (images, arrays):
        found = load(data, None, IMAGES)
        assert (found.samples.spec.x_dtype, found.samples.spec.x_exponent) == ("u8", 0)
        assert np.array_equal(read_pixels(found), PIXELS)


def test_labels_that_are_the_ids_are_moved_by_one_place() -> None:
    expected = load({"input_ids": IDS, "labels": IDS}, None, LANGUAGE)
    assert expected.samples.part("y").tolist() == [[2, 3, -100], [5, 6, -100]]
    columns = {"input_ids": IDS.tolist(), "attention_mask": np.ones((2, 3), int).tolist()}
    for more in ({}, {"labels": IDS.tolist()}):
        found = load(Dataset.from_dict(columns | more), None, LANGUAGE)
        assert found.samples.spec == expected.samples.spec
        assert "next one as its label" in found.notes[0]


def fail(_batch: object) -> Any:
    raise KeyError("four")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "ragged": (
        lambda: make_rows(x=[[1.0], [1.0, 2.0], [3.0], [4.0]]),
        "column x: has samples of 2 shapes, as (1,) and (2,)",
    ),
    "text": (lambda: make_rows(x=["a", "b", "c", "d"]), "which is no number"),
    "streamed": (
        lambda: make_rows().to_iterable_dataset(),
        "data: IterableDataset: has no number of samples",
    ),
    "streamed as torch": (
        lambda: make_rows().to_iterable_dataset().with_format("torch"),
        "Instead: load_dataset without streaming=True",
    ),
    "splits": (
        lambda: DatasetDict({"train": make_rows(), "test": make_rows()}),
        'several datasets: train, test. Instead: one of them: data["train"]',
    ),
    "columns": (lambda: make_rows().rename_column("x", "p"), "is not clear. Instead: name them"),
    "no rows": (lambda: make_rows().select([]), "has no samples"),
    "failing": (lambda: make_rows().with_transform(fail), "sample 0 of Dataset: raised KeyError"),
    "no images": (
        lambda: make_rows(x=[{"bytes": b"\x89PNG", "path": None}] * 4).cast_column("x", Image()),
        "Dataset: raised UnidentifiedImageError when its rows were asked for",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_datasets_that_no_task_can_have_are_refused(case: str) -> None:
    make, reason = REFUSED[case]
    found = partial(refuse, make())()
    assert reason in found
    assert ". Instead: " in found
