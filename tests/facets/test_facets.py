"""Every operator has every facet, or a reason: the one place that says what is missing."""

from __future__ import annotations

import re

import pytest

from tests.facets import checks
from tests.facets.checks import find_complaints
from vtrain.ops import TABLE
from vtrain.ops.facets import GUIDE, LACKS, Facet
from vtrain.prove.steps import builder as steps
from vtrain.prove.tiles import statements as tiles


@pytest.mark.parametrize("facet", Facet, ids=lambda facet: facet.name.lower())
@pytest.mark.parametrize("op", TABLE)
def test_facet_is_there_and_right_or_has_a_reason(op: str, facet: Facet) -> None:
    complaints = find_complaints(op, facet)
    assert not complaints, "\n".join(complaints)


def test_reasons_are_of_operators_that_there_are_once() -> None:
    for facet, reasons in LACKS.items():
        listed = [op for ops in reasons.values() for op in ops]
        assert len(listed) == len(set(listed)), f"{facet} has two reasons for an operator"
        assert set(listed) <= set(TABLE), f"{facet} has a reason for what is no operator"
        assert all(reasons), f"{facet} has an empty reason"


def test_operators_that_no_statement_is_about_have_a_reason() -> None:
    """What the emitters pass over is public or a hash, as the table says: nothing else."""
    for outside, facet in ((tiles.OUTSIDE, Facet.TILES), (steps.OUTSIDE, Facet.STEPS)):
        reasons = LACKS[facet]
        (public,) = (ops for reason, ops in reasons.items() if reason.startswith("public"))
        assert outside == set(public)


def test_the_guide_has_a_step_for_every_facet() -> None:
    headings = re.findall(r"^## (.+)$", checks.GUIDE_PAGE.read_text(), re.MULTILINE)
    assert set(GUIDE) == set(Facet) == set(checks.IS_THERE) == set(checks.CHECKS)
    for facet, heading in GUIDE.items():
        assert heading in headings, f"{facet} has no step {heading!r} in the guide"
    numbers = [int(found.group(1)) for h in headings if (found := re.match(r"(\d+)\. ", h))]
    assert numbers == list(range(1, len(numbers) + 1))
