"""Random graphs on a GPU: a part of ``test_gpu.py`` that takes its time by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.cuda.test_gpu import open_cuda
from tests.engines.compare import assert_same_state, open_law
from tests.engines.random_graphs import make_random_step

if TYPE_CHECKING:
    from vtrain.engines.cuda.gpu import CudaDevice

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_follow_the_law(seed: int, gpu: CudaDevice) -> None:
    step = make_random_step(seed)
    cuda, law = open_cuda(step, gpu), open_law(step)
    with np.errstate(over="ignore"):
        for _ in range(4):
            assert cuda.step() == law.step()
    assert_same_state(cuda, law)
