"""The table of operators says the truth about circuits."""

from __future__ import annotations

from vtrain.ops import TABLE
from vtrain.prove import step, tiling


def test_each_operator_of_the_table_is_in_statements_about_tiles_as_it_says() -> None:
    said = {name for name, operator in TABLE.items() if operator.circuit is True}
    assert set(tiling.OPERATORS) == said


def test_what_whole_steps_have_tiles_have_too() -> None:
    assert tiling.OPERATORS | {"schedule"} >= step.OPERATORS
