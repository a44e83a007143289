"""The settler: verdicts to the market, until they are settled; notices to it on the way.

A thread of its own: no webhook holds up a settlement.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from vtrain.dispute.clock import Ticks, count_monotonic
from vtrain.dispute.market import Notice
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.rounds import Rounds
from vtrain.printable import make_printable

FIRST_PAUSE: Final = 1_000
LONGEST_PAUSE: Final = 60_000
_LOG: Final = logging.getLogger("vtrain.dispute")


class Settler:
    """Settles the games of ``service``, once started; ``ticks`` times the pauses after failures."""

    def __init__(self, service: GameService, *, ticks: Ticks = count_monotonic) -> None:
        self._service, self._ticks = service, ticks
        self._due, self._failures = ticks(), 0
        self._rounds = Rounds(self.settle, "vtrain-settler")
        service.listen(self._heard)

    def start(self) -> None:
        """Begin to settle."""
        self._rounds.start()

    def close(self) -> None:
        """Stop; what is not settled waits for the next start."""
        self._rounds.close()

    def _heard(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            self._service.market.notify(notice)
        if any(notice.kind == "verdict" for notice in notices):
            self._rounds.wake()

    def settle(self) -> None:
        """One round: settle what is owed, unless the last failure is too recent."""
        if self._ticks() < self._due:
            return
        troubles = self._service.settle_games()
        self._failures = self._failures + 1 if troubles else 0
        if troubles:
            pause = min(FIRST_PAUSE << min(self._failures - 1, 20), LONGEST_PAUSE)
            self._due = self._ticks() + pause
            said = make_printable(str(troubles[0]))
            _LOG.warning("settlement failed, to be repeated: %s", said)
