"""What holds for every test: settings of hypothesis, and GPU tests skipped aloud without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import hypothesis
import pytest

# The machines that run the tests are slow and shared: time limits of single examples only flicker.
hypothesis.settings.register_profile("vtrain", deadline=None, print_blob=True)
hypothesis.settings.load_profile("vtrain")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("nvidia-smi") is not None:
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU on this machine")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)
