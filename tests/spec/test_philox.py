"""Philox4x32-10 against Random123's known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtrain.spec.philox import compute_philox, compute_philox_array

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "philox.json").read_text())
word = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("case", VECTORS["random123"] + VECTORS["more"])
def test_vectors(case: Any) -> None:
    counter, key = tuple(case["counter"]), tuple(case["key"])
    assert [*compute_philox(counter, key)] == case["output"]
    array = compute_philox_array(np.array(counter, np.uint32), key)
    assert array.dtype == np.uint32
    assert array.tolist() == case["output"]


@given(st.lists(st.tuples(word, word, word, word), min_size=1, max_size=20), word, word)
def test_rows_are_independent(counters: list[tuple[int, int, int, int]], k0: int, k1: int) -> None:
    rows = compute_philox_array(np.array(counters, np.uint32), (k0, k1))
    assert rows.tolist() == [[*compute_philox(counter, (k0, k1))] for counter in counters]
