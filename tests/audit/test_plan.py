"""The sampler against its vectors, and chances of detection against plain enumeration."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtrain.audit.plan import (
    FRACTIONS,
    REPLAY_DOMAIN,
    Segments,
    compute_detections,
    compute_fewest_segments,
    draw,
    draw_randomness,
    given_randomness,
)
from vtrain.errors import RunError

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "plan.json").read_text())
CLAIM = bytes.fromhex(VECTORS["claim"])


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: str(case["population"]))
def test_draws_are_those_of_the_vectors(case: dict[str, object]) -> None:
    randomness = bytes.fromhex(str(case["randomness"]))
    population, count = int(str(case["population"])), int(str(case["count"]))
    drawn = draw(randomness, CLAIM, str(case["domain"]), population, count)
    assert list(drawn) == case["indices"]


@given(st.integers(0, 300), st.integers(0, 320), st.binary(min_size=1, max_size=64))
def test_a_draw_is_distinct_in_range_and_a_prefix_of_longer_ones(
    population: int, count: int, randomness: bytes
) -> None:
    drawn = draw(randomness, CLAIM, REPLAY_DOMAIN, population, count)
    assert len(set(drawn)) == len(drawn) == min(count, population)
    assert all(0 <= index < population for index in drawn)
    whole = draw(randomness, CLAIM, REPLAY_DOMAIN, population, population)
    assert whole[: len(drawn)] == drawn
    assert sorted(whole) == list(range(population))


def test_a_draw_of_a_few_from_very_many_costs_little() -> None:
    drawn = draw(b"x", CLAIM, REPLAY_DOMAIN, 2**48, 5)
    assert len(set(drawn)) == 5
    assert max(drawn) > 2**40


def test_every_pair_comes_up_about_as_often() -> None:
    """Chi-squared over the 20 ordered pairs of 5: 19 degrees of freedom, p = 0.001 at 43.8."""
    draws = 4000
    counts = Counter(draw(i.to_bytes(4), CLAIM, "even", 5, 2) for i in range(draws))
    expected = draws / 20
    assert len(counts) == 20
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 43.8


def test_every_input_of_the_draw_counts() -> None:
    base = draw(b"r", CLAIM, "d", 1000, 20)
    assert base != draw(b"s", CLAIM, "d", 1000, 20)
    assert base != draw(b"r", bytes(32), "d", 1000, 20)
    assert base != draw(b"r", CLAIM, "e", 1000, 20)
    assert base != draw(b"r", CLAIM, "d", 1001, 20)


@pytest.mark.parametrize(
    ("randomness", "population", "count", "where"),
    [
        (b"", 3, 1, "seed"),
        (bytes(65), 3, 1, "seed"),
        (b"x", -1, 1, "sampling plan"),
        (b"x", 3, -1, "sampling plan"),
        (b"x", 2**48 + 1, 1, "sampling plan"),
    ],
)
def test_bad_arguments_are_refused(
    randomness: bytes, population: int, count: int, where: str
) -> None:
    with pytest.raises(RunError) as caught:
        draw(randomness, CLAIM, "d", population, count)
    assert caught.value.where == where


def test_a_digest_has_its_length() -> None:
    with pytest.raises(RunError, match="needs 32 bytes, has 31"):
        draw(b"r", CLAIM[1:], "d", 10, 1)


def test_own_randomness_is_fresh_and_a_seed_is_predictable_unless_a_claim_was_pinned() -> None:
    own = draw_randomness()
    assert len(own.value) == 32
    assert own != draw_randomness()
    assert own.fresh
    assert not own.predictable
    assert draw_randomness(bytes).value == bytes(32)
    assert given_randomness(b"seed", pinned=False).predictable
    pinned = given_randomness(b"seed", pinned=True)
    assert not pinned.predictable
    assert not pinned.fresh


@pytest.mark.parametrize(("steps", "every"), [(12, 4), (13, 4), (7, 7), (5, 9), (9, 1), (11, 5)])
def test_segments_partition_the_steps(steps: int, every: int) -> None:
    segments = Segments(steps, every)
    bounds = [segments.bounds(index) for index in range(segments.count)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == steps
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    assert all(end - start == every for start, end in bounds[:-1])


@pytest.mark.parametrize(("steps", "every"), [(6, 2), (7, 3), (5, 4), (8, 5), (4, 1)])
def test_fewest_segments_is_the_least_over_all_placements(steps: int, every: int) -> None:
    segments = Segments(steps, every)
    for bad in range(1, steps + 1):
        least = min(
            len({step // every for step in placed}) for placed in combinations(range(steps), bad)
        )
        assert compute_fewest_segments(segments, bad) == least


@pytest.mark.parametrize(("steps", "every"), [(6, 2), (7, 3), (8, 5), (9, 1), (40, 4)])
def test_detection_is_that_of_counting_every_draw(steps: int, every: int) -> None:
    segments = Segments(steps, every)
    for drawn in range(1, segments.count + 1):
        for detection in compute_detections(segments, drawn):
            draws = list(combinations(range(segments.count), drawn))
            hits = sum(any(i < detection.bad_segments for i in chosen) for chosen in draws)
            assert detection.probability == Fraction(hits, len(draws))


def test_detections_speak_of_one_step_and_of_each_fraction() -> None:
    single, *shares = compute_detections(Segments(1400, 100), 3)
    assert (single.fraction, single.bad_steps, single.bad_segments) == (None, 1, 1)
    assert single.probability == Fraction(3, 14)
    assert single.formula == "1 - C(13,3)/C(14,3)"
    assert [share.fraction for share in shares] == list(FRACTIONS)
    assert [share.bad_steps for share in shares] == [14, 70, 140, 350]
    assert [share.bad_segments for share in shares] == [1, 1, 2, 4]


def test_drawing_everything_misses_nothing() -> None:
    assert all(case.probability == 1 for case in compute_detections(Segments(50, 10), 9))
