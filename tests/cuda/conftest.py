"""One device for all tests of kernels: it keeps the libraries that it has loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cuda.host_device import HostDevice
from vtrain.engines.cuda.device import Device


@pytest.fixture(scope="session")
def host_device() -> Iterator[HostDevice]:
    """The kernels on the CPU."""
    device = HostDevice()
    yield device
    device.close()


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """The first GPU of this machine; for tests that are marked with ``gpu``."""
    from vtrain.engines.cuda.gpu import CudaDevice

    device = CudaDevice(folder=tmp_path_factory.mktemp("kernels"))
    yield device
    device.close()
