"""vtrain: training runs in exact integers, committed to and checkable by anyone."""

from __future__ import annotations

from vtrain._core import __version__

__all__ = ["__version__"]
