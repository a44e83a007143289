"""One device for all tests of kernels: it keeps the libraries that it has loaded.

Tests on a GPU are the exception: each is a process (``tests.cuda.alone``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cuda import alone
from tests.cuda.alone import pytest_runtest_protocol
from tests.cuda.host_device import HostDevice
from vtrain.engines import registry
from vtrain.engines.cuda.device import Device

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
def gpu() -> Iterator[Device]:
    """The first GPU of this machine; for tests that are marked with ``gpu``."""
    from vtrain.engines.cuda.gpu import CudaDevice

    device = CudaDevice(folder=alone.FOLDER)
    yield device
    device.close()
