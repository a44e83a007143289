"""What holds for every test: settings of hypothesis, and GPU tests skipped aloud without a GPU."""

from __future__ import annotations

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
    for_gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    if not for_gpu:
        return
    from vtrain.engines.cuda.gpu import find_obstacle

    obstacle = find_obstacle()
    for item in for_gpu if obstacle is not None else ():
        item.add_marker(pytest.mark.skip(reason=f"no GPU that can be used: {obstacle}"))
