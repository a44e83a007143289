"""One device for all tests of kernels: it keeps the libraries that it has loaded.

Tests on a GPU are the exception: each is a process (``tests.cuda.alone``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cuda import alone
from tests.cuda.alone import pytest_runtest_protocol
from tests.cuda.host_device import HostDevice
from tests.engines.steps import make_step
from vtrain.engines import registry
from vtrain.engines.cuda.device import Device
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.program import Program

__all__ = ["pytest_runtest_protocol"]


@pytest.fixture(autouse=True)
def no_verdict_kept() -> Iterator[None]:
    """``auto`` looks once a process at what there is: no pretended GPU may outlive its test."""
    registry._has_gpu.cache_clear()
    yield
    registry._has_gpu.cache_clear()


@pytest.fixture(scope="session")
def host_device() -> Iterator[HostDevice]:
    """The kernels on the CPU."""
    device = HostDevice()
    yield device
    device.close()


@pytest.fixture(scope="session")
def passed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """A file of verdicts, its name and content: all kernels of a small step passed."""
    folder = tmp_path_factory.mktemp("passed")
    Kernels(HostDevice(), folder=folder).plan_step(Program(make_step("mlp").graph))
    [path] = folder.iterdir()
    return path.name, path.read_bytes()


@pytest.fixture
def verdicts(passed: tuple[str, bytes], tmp_path: Path) -> Path:
    """The same file, as in the folder of a session before: ``tmp_path``."""
    name, content = passed
    (tmp_path / name).write_bytes(content)
    return tmp_path / name


@pytest.fixture(scope="session")
def gpu() -> Iterator[Device]:
    """The first GPU of this machine; for tests that are marked with ``gpu``."""
    from vtrain.engines.cuda.gpu import CudaDevice

    device = CudaDevice(folder=alone.FOLDER)
    yield device
    device.close()
