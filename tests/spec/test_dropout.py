"""Draws of dropout: each by itself, apart from the order of samples, as even as chance has them."""

from __future__ import annotations

import numpy as np
import pytest

from vtrain.errors import TaskError
from vtrain.spec import order, philox
from vtrain.spec.dropout import MAX_ELEMENT, MAX_STEP, compute_draw, compute_draws

MILLION = 1_000_000
SEED = 0x0123456789ABCDEF


@pytest.mark.parametrize("first", [0, 1, 7, 8, 2**32 - 3, 2**35 - 5, MAX_ELEMENT - 19])
def test_draws_are_those_of_single_elements(first: int) -> None:
    """Beyond 2^35 elements the number of the block has more than 32 bits."""
    for step, site in ((0, 0), (2**32 + 1, 5), (MAX_STEP, 2**31 - 1)):
        draws = compute_draws(SEED, step, site, first, 20)
        assert draws.tolist() == [compute_draw(SEED, step, site, first + i) for i in range(20)]


def test_a_tensor_cut_in_two_has_the_same_draws() -> None:
    whole = compute_draws(SEED, 3, 1, 0, 1003)
    parts = [compute_draws(SEED, 3, 1, first, 1003 - first)[: end - first]
             for first, end in ((0, 501), (501, 1003))]  # fmt: skip
    assert np.array_equal(whole, np.concatenate(parts))
    assert compute_draws(SEED, 3, 1, 5, 0).shape == (0,)


def test_places_differ_where_any_number_does() -> None:
    """Each part of the counter and of the key changes the draws of a block."""
    base = (SEED, 1, 1, 0)
    others = [
        *((SEED ^ 1, 1, 1, 0), (SEED ^ 2**63, 1, 1, 0), (SEED, 2, 1, 0), (SEED, 1 + 2**32, 1, 0)),
        *((SEED, 1, 2, 0), (SEED, 1, 1 + 2**30, 0), (SEED, 1, 1, 8), (SEED, 1, 1, 2**35)),
    ]
    found = {tuple(compute_draws(*place, 8).tolist()) for place in (base, *others)}
    assert len(found) == 1 + len(others)


def test_no_block_serves_the_order_of_samples_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second word of a counter tells the two apart, whatever the numbers."""
    seen: list[int] = []

    def watch(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
        seen.append(counter[1])
        return philox.compute_philox(counter, key)

    for module in ("order", "dropout"):
        monkeypatch.setattr(f"vtrain.spec.{module}.compute_philox", watch)
    for position in (0, 9999, 2**62):
        order.compute_sample_index(SEED, 9000, position)
    assert max(seen) < order.ROUNDS
    seen.clear()
    for step, site, element in ((0, 0, 0), (MAX_STEP, 2**31 - 1, MAX_ELEMENT)):
        compute_draw(SEED, step, site, element)
    assert min(seen) >= 2**31


def test_share_of_a_million_elements() -> None:
    """Within five standard deviations, at several shares, of bits, and of neighbours."""
    draws = compute_draws(SEED, 7, 2, 0, MILLION).astype(np.int64)
    for keep in (1, 6554, 32768, 58982, 65535):
        share = keep / 65536
        deviation = 5 * (share * (1 - share) * MILLION) ** 0.5
        assert abs(np.count_nonzero(draws < keep) - share * MILLION) < deviation
    for bit in range(16):
        assert abs(np.count_nonzero(draws >> bit & 1) - MILLION / 2) < 2500
    counts = np.bincount(draws >> 8, minlength=256)
    squares = float(((counts - MILLION / 256) ** 2).sum() / (MILLION / 256))
    assert abs(squares - 255) < 5 * (2 * 255) ** 0.5
    kept = draws < 58982
    for apart in (1, 2, 8, 128, 1024):
        assert_independent(kept[:-apart], kept[apart:])


def assert_independent(a: np.ndarray, b: np.ndarray) -> None:
    share = 58982 / 65536
    both, count = np.count_nonzero(a & b), len(a)
    joint = share * share
    assert abs(both - joint * count) < 5 * (joint * (1 - joint) * count * 3) ** 0.5


def test_steps_sites_and_seeds_are_independent() -> None:
    base = compute_draws(SEED, 7, 2, 0, MILLION) < 58982
    for seed, step, site in ((SEED, 8, 2), (SEED, 7, 3), (SEED + 1, 7, 2), (SEED, 7 + 2**32, 2)):
        assert_independent(base, compute_draws(seed, step, site, 0, MILLION) < 58982)


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ((2**64, 0, 0, 0), "seed"), ((-1, 0, 0, 0), "seed"),
        ((0, MAX_STEP + 1, 0, 0), "step"), ((0, -1, 0, 0), "step"),
        ((0, 0, 2**31, 0), "site"), ((0, 0, -1, 0), "site"),
        ((0, 0, 0, MAX_ELEMENT + 1), "element"), ((0, 0, 0, -1), "element"),
    ],
)  # fmt: skip
def test_what_has_no_draw_is_refused(place: tuple[int, int, int, int], what: str) -> None:
    for draw in (lambda: compute_draw(*place), lambda: compute_draws(*place, 1)):
        with pytest.raises(TaskError, match=what):
            draw()
