"""The parts of the campaign, and how many attempts of each are the default."""

from __future__ import annotations

from typing import Final

from tests.attacks.campaign.bench import Part
from tests.attacks.campaign.grind import Grinding
from tests.attacks.campaign.hostile import Hostile
from tests.attacks.campaign.mutants import Mutants
from tests.attacks.campaign.starve import Starved

PARTS: Final[dict[str, tuple[Part, int]]] = {
    "mutants": (Mutants(), 1000),
    "hostile": (Hostile(), 300),
    "starved": (Starved(), 200),
    "grind": (Grinding(), 50),
}
