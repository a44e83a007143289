"""Every kernel compiles for the GPUs that we mean; no GPU needed.

By the NVRTC that is installed: with the development lock the one that torch asks for, which is
that of ``requirements-cuda.lock`` too.  A wheel's extra takes the newest 13, which may be later.
"""

from __future__ import annotations

import re

import pytest

from tests.cuda.host_device import KERNELS
from vtrain.engines.cuda.compile import Compiler, list_architectures
from vtrain.ops import TABLE

pytest.importorskip("cuda.bindings", reason="the cuda extra is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", list_architectures())
def test_every_kernel_compiles(architecture: str) -> None:
    """All in one program: names do not clash either, as generated files need."""
    names = [path.name for path in sorted(KERNELS.glob("*.cu"))]
    text = "".join(f'#include "{name}"\n' for name in names)
    code = Compiler(architecture, folder=None).compile("everything.cu", text)
    kernels = {name.decode() for name in re.findall(rb"\.text\.(\w+)", code)}
    assert {*TABLE, "largest"} <= kernels
    # Without asynchronous copies there is no way to the tensor cores.
    assert any("_mma_" in kernel for kernel in kernels) == (architecture != "sm_75")
