"""Command lines that are run in this process."""

from tests.cli.calls import call

__all__ = ["call"]
