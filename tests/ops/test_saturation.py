"""Whoever saturates says what it clamps: counts against the second definition of each operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.exhaustive import draw
from tests.ops import reference
from tests.ops.cases import CASES, Array, Draw
from vtrain import ops
from vtrain.errors import RangeError
from vtrain.ops import TABLE
from vtrain.ops.base import Operator, Saturating
from vtrain.spec.number import count_saturated
from vtrain.wire.graph import Attrs

SATURATING = {"normalize", "rescale", "momentum", "sgd_update", "adam_mean", "adam_direction"}
FEW = 20
PROPERTY = settings(
    max_examples=FEW,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def define_counts(op: str, attrs: Attrs, arrays: Sequence[Array]) -> tuple[int, int]:
    """Elements that the second definition clamps to a dtype's bounds, and those that it changes."""
    clamped = reference.clamped
    seen: list[bool] = []

    def counting(x: int, dtype: str) -> int:
        held = clamped(x, dtype)
        seen.append(held != x)
        return held

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "clamped", counting)
        reference.define(op, attrs, arrays)
    return len(seen), sum(seen)


def check_drawn(operator: Operator, data: st.DataObject) -> None:
    case = CASES[operator.name](Draw(data))
    try:
        claim = operator.infer(case.attrs, case.types)
    except RangeError:
        assume(False)
    elements, changed = define_counts(operator.name, case.attrs, case.arrays)
    assert (operator.unclamped is not None) == (elements > 0)
    if operator.unclamped is not None:
        exact = operator.unclamped(case.attrs, case.arrays)
        assert exact.dtype == "int64"
        assert exact.shape == claim.shape
        assert count_saturated(exact, claim.dtype) == changed


@pytest.mark.parametrize("op", sorted(set(TABLE) - {"tensor_digest"}))
@draw(FEW, 60)
def test_what_saturates_says_what_it_clamps(op: str, examples: int) -> None:
    @settings(PROPERTY, max_examples=examples)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        check_drawn(TABLE[op], data)

    check()


def test_these_saturate() -> None:
    assert {name for name, row in TABLE.items() if row.unclamped is not None} == SATURATING


def test_saturation_has_one_place() -> None:
    """No law saturates by itself: it would not be counted."""
    families = [family for name, family in vars(ops).items() if hasattr(family, "OPERATORS")]
    assert len(families) > 5
    assert not [family.__name__ for family in families if hasattr(family, "saturate")]


def assert_fault_is_seen(operator: Operator) -> None:
    @settings(PROPERTY, phases=[Phase.generate], report_multiple_bugs=False)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        check_drawn(operator, data)

    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("op", sorted(SATURATING))
def test_an_operator_that_does_not_say_so_is_seen(op: str) -> None:
    """The same law, as a function of which nobody knows that it ends in saturation."""
    law = TABLE[op].law

    def same(attrs: Attrs, inputs: Sequence[Array]) -> Array:
        return law(attrs, inputs)

    assert_fault_is_seen(replace(TABLE[op], law=same))


@pytest.mark.parametrize("op", sorted(SATURATING))
def test_a_count_of_what_is_clamped_already_is_seen(op: str) -> None:
    law = TABLE[op].law
    assert isinstance(law, Saturating)
    late = replace(law, unclamped=lambda attrs, inputs: law(attrs, inputs).astype("int64"))
    assert_fault_is_seen(replace(TABLE[op], law=late))
