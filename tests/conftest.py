"""What holds for every test: settings of hypothesis, the order, and GPU tests skipped aloud without
a GPU."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path

import hypothesis
import pytest

from tests.srs import share_srs

# The machines that run the tests are slow and shared: time limits of single examples only flicker.
hypothesis.settings.register_profile("vtrain", deadline=None, print_blob=True)
hypothesis.settings.load_profile("vtrain")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def _share_srs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With the other workers, if there are any: their folders are in one."""
    own = tmp_path_factory.getbasetemp()
    share_srs(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


def put_slow_first(items: list[pytest.Item], processes: int) -> None:
    """Sort modules so that each process begins with some of those that have slow tests.

    Each begins with one of equal stretches of the list, and takes over from others when it is done:
    then short tests should be left, as a long one is done by one alone.
    """
    modules = [list(module) for _, module in groupby(items, key=lambda item: item.path)]
    slow = [any(item.get_closest_marker("slow") for item in module) for module in modules]
    stretches: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for wanted in (True, False):
        for module in (
            one for one, is_slow in zip(modules, slow, strict=True) if is_slow == wanted
        ):
            min(stretches, key=len).extend(module)
    items[:] = [item for stretch in stretches for item in stretch]


@pytest.hookimpl(trylast=True)  # of what is not deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    put_slow_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    for_gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    if not for_gpu:
        return
    from vtrain.engines.cuda.gpu import find_obstacle

    obstacle = find_obstacle()
    for item in for_gpu if obstacle is not None else ():
        item.add_marker(pytest.mark.skip(reason=f"no GPU that can be used: {obstacle}"))
