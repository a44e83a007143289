"""An honest run to attack: the one that the audit tests spoil."""

from __future__ import annotations

from tests.audit.conftest import honest, run, task

__all__ = ["honest", "run", "task"]
