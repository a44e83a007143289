"""Quotients and roots of ``division.cuh`` at their boundaries, on the CPU.

A GPU's approximate functions may be off by two units in the last place, either way: here they are
made to be, by more than that.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
import numpy.typing as npt
import pytest

from tests.cuda.host_device import HostDevice
from tests.cuda.single import claim, run_launches
from vtrain.engines.cuda.launch import Operand, Output, one_thread_each

PROBE = """
#include "law.cuh"

__device__ inline float bend(float x) { return x * (1.0f + BENT * 2.384185791015625e-7f); }
#define __fdividef(x, y) bend(__fdividef(x, y))
#define rsqrtf(x) bend(rsqrtf(x))
#include "division.cuh"

extern "C" __global__ void probe_quotient(i64 count, const i64* n, const i64* d, i64* out) {
    const i64 i = INDEX();
    if (i < count) out[i] = divide_floor(n[i], make_divisor(d[i]));
}

extern "C" __global__ void probe_root(i64 count, const i64* x, i64* out) {
    const i64 i = INDEX();
    if (i < count) out[i] = (i64)quick_root((u64)x[i]);
}
"""
MOST = 2**62 + 2**61
"""Numerators have no larger magnitude."""


def run(device: HostDevice, bent: int, kernel: str, *inputs: list[int]) -> list[int]:
    file = f"division_probe_{bent}.cu"
    device.add_source(file, PROBE.replace("BENT", f"({bent}.0f)"))
    arrays = [np.array(values, np.int64) for values in inputs]
    operands = (Operand(at) for at in range(len(arrays)))
    launch = one_thread_each(file, kernel, len(inputs[0]), *operands, Output())
    output: npt.NDArray[np.int64] = run_launches(device, [launch], arrays, claim(arrays[0])).output
    return [int(value) for value in output]


def near_powers(most: int) -> list[int]:
    """And random numbers of all magnitudes."""
    rng = np.random.default_rng(most % 1000)
    powers = [2**n + d for n in range(63) for d in (-2, -1, 0, 1, 2)]
    drawn = [int(x) >> int(by) for x, by in zip(*_draw(rng, 300), strict=True)]
    return [x for x in {*powers, *drawn, most, most - 1} if 0 <= x <= most]


def _draw(rng: np.random.Generator, count: int) -> tuple[list[int], list[int]]:
    return rng.integers(0, 2**63 - 1, count).tolist(), rng.integers(0, 62, count).tolist()


@pytest.mark.parametrize("bent", [-1, 0, 1])
def test_quotients_are_rounded_down(bent: int, host_device: HostDevice) -> None:
    """Of numerators on both sides of multiples of the divisor, and of the largest."""
    pairs: list[tuple[int, int]] = []
    quotients = [0, 1, 2, 3, 2**14, 2**16 + 1, 2**29 - 1, 2**29, 2**31, 2**45 - 1, 2**61, MOST]
    for d in [*near_powers(2**63 - 1), 3, 5, 10, 50_304 * 65_536, 65_536 * 1024 - 1]:
        if d == 0:
            continue
        multiples = [min(q, MOST // d) * d for q in quotients]
        near = [m + e for m in multiples for e in (-1, 0, 1, d // 2, d - 1)]
        pairs += [(n, d) for m in {*near, MOST} for n in (m, -m) if abs(n) <= MOST]
    numerators, divisors = [n for n, _ in pairs], [d for _, d in pairs]
    found = run(host_device, bent, "probe_quotient", numerators, divisors)
    assert found == [n // d for n, d in pairs]


def test_a_divisor_below_one_counts_as_one(host_device: HostDevice) -> None:
    divisors = [0, -1, -(2**63), 1]
    assert run(host_device, 0, "probe_quotient", [12345] * 4, divisors) == [12345] * 4


@pytest.mark.parametrize("bent", [-1, 0, 1])
def test_roots_are_rounded_down(bent: int, host_device: HostDevice) -> None:
    """Of numbers on both sides of squares, small ones all, and the largest."""
    roots = [*range(2000), *(r for r in near_powers(3_037_000_499) if r > 1999)]
    near = [r * r + e for r in roots for e in (-1, 0, 1, r, 2 * r)]
    given = [x for x in {*near, *near_powers(2**63 - 1)} if 0 <= x < 2**63]
    assert run(host_device, bent, "probe_root", given) == [isqrt(x) for x in given]
