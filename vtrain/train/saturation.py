"""How often the sites of a run clamp, and what to do about one that clamps too often.

A count by itself says little: the rate of a site is its clamped elements over all that it put out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from vtrain.errors import warn
from vtrain.graph.step import APART
from vtrain.wire.graph import StepGraph

SATURATION_WARNING_PPM: Final = 100.0
"""A site that clamps more than this share of its elements, in millionths, costs more accuracy than
any last bit of its exponent would."""
_MOST_NAMED: Final = 5
_UPDATES: Final = frozenset({"sgd_update", "momentum", "adam_mean", "adam_direction"})
"""Operators whose exponents are fixed: only smaller numbers keep these from clamping."""


@dataclass(frozen=True)
class SiteSaturation:
    """How often a node clamped: ``count`` elements, ``ppm`` of all that it put out."""

    site: str
    count: int
    ppm: float

    @property
    def is_too_much(self) -> bool:
        """Whether the rate is above ``SATURATION_WARNING_PPM``.

        A site whose sign alone counts (that of ignored labels) never clamps too much.
        """
        return self.ppm > SATURATION_WARNING_PPM and self.site != APART


def select_possible(
    graph: StepGraph, counts: Mapping[str, int], steps: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Those of a manifest's ``counts``, over ``steps`` steps, that can be right, and the elements
    of each node: nobody signs a manifest, and it says whatever it likes."""
    elements = {node.name: steps * node.outputs[0].size for node in graph.nodes if node.outputs}
    possible = {
        site: count for site, count in counts.items() if 0 < count <= elements.get(site, 0) < 2**63
    }
    return possible, elements


def measure_saturation(
    graph: StepGraph, counts: Mapping[str, int], steps: int
) -> tuple[SiteSaturation, ...]:
    """The rate of each node of ``graph`` that clamped in ``steps`` steps, the worst first."""
    sizes = {node.name: node.outputs[0].size for node in graph.nodes}
    sites = [
        SiteSaturation(site, count, 1e6 * count / (steps * sizes[site]))
        for site, count in counts.items()
        if steps > 0 and count > 0 and sizes.get(site, 0) > 0
    ]
    return tuple(sorted(sites, key=lambda site: (-site.ppm, site.site)))


def warn_of_saturation(graph: StepGraph, sites: Iterable[SiteSaturation], when: str) -> None:
    """One VtrainWarning for ``sites``, the worst by name with its rate, and what helps; none for
    none.  ``when`` says which steps were counted."""
    found = list(sites)
    if not found:
        return
    named = ", ".join(f"{site.site} ({site.ppm:.0f})" for site in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    updates = {node.name for node in graph.nodes if node.op in _UPDATES}
    held = {site.site in updates for site in found}
    fixes = []
    if False in held:
        fixes.append(
            "give more calibration_steps or a larger margin (to vtrain.from_torch, or in [format], "
            "before `vtrain profile`) and train anew"
        )
    if True in held:
        fixes.append("give what updates weights a lower learning_rate, or a clip_norm")
    warn(
        f"{when}, more than {SATURATION_WARNING_PPM:.0f} of a million elements were clamped at "
        f"{named}{more}, which costs accuracy",
        "; and ".join(fixes),
    )
