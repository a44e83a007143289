"""Every kernel compiles for the GPUs that we mean, and takes no more of them than they have.

No GPU needed.  By the NVRTC that is installed: with the development lock the one that torch asks
for, which is that of ``requirements-cuda.lock`` too.  A wheel's extra takes the newest 13, which
may be later.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from tests.cuda.host_device import KERNELS
from tests.exhaustive import spare
from tests.tasks import make_tiny_task
from vtrain.engines.cuda.compile import Compiler, list_architectures
from vtrain.engines.cuda.cubin import Resources, read_resources
from vtrain.engines.cuda.fuse import name_source, render_source
from vtrain.engines.cuda.gemm import Choice, Epilogue, Factor, plan_matmul
from vtrain.engines.cuda.launch import Constant, Launch, Operand
from vtrain.engines.cuda.plan import find_groups
from vtrain.engines.cuda.program import Program
from vtrain.errors import KernelError
from vtrain.ops import TABLE
from vtrain.spec.number import STORAGE

pytest.importorskip("cuda.bindings", reason="the cuda extra is not installed")

REGISTERS = 65_536
"""Of a multiprocessor, all of which one block may take."""
SHARED = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99, 121: 99}
"""KiB of shared memory that a block may have (CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability")."""
STATIC = 48 * 1024
"""Bytes of it that need not be asked for."""
RESERVED = 1024
"""Bytes that the system takes of each block, which the files for sm_90 and later count."""
THREADS = {"matmul_wgmma_": 384, "matmul_mma_": 256, "matmul_pack_": 256}
"""In a block of the kernels that name their blocks' size."""
MOST_REGISTERS = {"matmul_wgmma_": 168, "matmul_mma_": 255, "matmul_pack_": 96, "": 96}
"""A thread: 168 is what 384 threads can have at the entry, and 255 what one can address."""
STACK = {"state_root_gather": 64}
"""Bytes of a stack frame: what does not fit the registers.  No fast kernel has one."""
HASHES = 1152
"""Of one thread that hashes all: the chaining values of BLAKE3 are an array by design."""
ONE_THREAD = frozenset(
    [
        *("tensor_digest", "state_leaf", "state_leaves", "state_root", "state_root_levels"),
        *("record", "batch_digest"),
    ]
)


def take(limits: dict[str, int], kernel: str) -> int:
    return next(limit for start, limit in limits.items() if kernel.startswith(start))


USUAL = "sm_90a"
"""Has every kernel; others differ in what SASS the compiler makes, and lack some kernels."""


@pytest.fixture(scope="module", params=spare(list_architectures(), USUAL.__eq__))
def compiled(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    """All in one program: names do not clash either, as generated files need."""
    names = [path.name for path in sorted(KERNELS.glob("*.cu"))]
    text = "".join(f'#include "{name}"\n' for name in names)
    return request.param, Compiler(request.param, folder=None).compile("everything.cu", text)


@pytest.mark.slow
def test_every_kernel_compiles(compiled: tuple[str, bytes]) -> None:
    architecture, code = compiled
    kernels = {name.decode() for name in re.findall(rb"\.text\.(\w+)", code)}
    assert {*TABLE, "largest"} <= kernels == read_resources(code).keys()
    # Without asynchronous copies there is no way to the tensor cores.
    assert any("_mma_" in kernel for kernel in kernels) == (architecture != "sm_75")
    assert any("_wgmma_" in kernel for kernel in kernels) == (architecture == "sm_90a")


@pytest.mark.slow
def test_kernels_take_no_more_than_there_is(compiled: tuple[str, bytes]) -> None:
    architecture, code = compiled
    number = int(architecture[3:].rstrip("a"))
    asked = find_shared(architecture)
    for kernel, found in read_resources(code).items():
        assert found.registers <= take(MOST_REGISTERS, kernel), kernel
        threads = next((n for start, n in THREADS.items() if kernel.startswith(start)), 256)
        assert round_up(found.registers, 8) * threads <= REGISTERS, kernel
        assert found.stack <= (HASHES if kernel in ONE_THREAD else STACK.get(kernel, 0)), kernel
        assert found.shared <= STATIC, kernel
        dynamic = asked.get(kernel, 0)
        # The limit is of what is asked for, beside what the system takes.
        assert found.shared + dynamic <= SHARED.get(number, 99) * 1024 + RESERVED, kernel
    multiply = {kernel for kernel in read_resources(code) if re.match(r"matmul_(wg)?mma_", kernel)}
    assert multiply == asked.keys() - ({*asked} if architecture == "sm_75" else set())


def test_what_is_for_later_devices_is_left_out() -> None:
    """Of the files, ``matmul.cu`` alone asks what it is compiled for."""
    asking = {path.name for path in KERNELS.glob("*.cu") if "__CUDA_ARCH__" in path.read_text()}
    assert asking == {"matmul.cu"}
    code = Compiler("sm_75", folder=None).compile("matmul.cu")
    kernels = {name.decode() for name in re.findall(rb"\.text\.(\w+)", code)}
    assert {"matmul", "matmul_pack_along", "matmul_clear", "matmul_finish"} <= kernels
    assert not any("mma_" in kernel for kernel in kernels)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", spare(["sm_75", "sm_90a"], USUAL.__eq__))
def test_chains_take_no_more_than_there_is(architecture: str) -> None:
    """Those of a language model of many tokens, with AdamW: nothing spills."""
    program = Program(make_tiny_task("llama", optimizer="adamw").graph)
    chains = find_groups(program)
    held = {program.node(node).op for chain in chains for node in chain.nodes}
    assert {"logit_grad", "divide", "keep_span", "softmax_grad", "adam_direction"} <= held
    text = render_source(chains)
    compiler = Compiler(architecture, folder=None)
    found = read_resources(compiler.compile(name_source(text), text))
    for chain in chains:
        assert found[chain.name].registers <= take(MOST_REGISTERS, chain.name), chain.name
        assert found[chain.name].stack == 0, chain.name


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def find_shared(architecture: str) -> dict[str, int]:
    """The most shared memory that each kernel which multiplies is launched with."""
    found: dict[str, int] = {}
    for launch in plan_every_product(architecture):
        if launch.kernel.startswith(("matmul_mma_", "matmul_wgmma_")):
            found[launch.kernel] = max(found.get(launch.kernel, 0), launch.shared)
    return found


def plan_every_product(architecture: str) -> Iterator[Launch]:
    """Each kernel: by its operands' ranges, few and many columns, and as on another device."""
    kinds = ("i16", "i8", "u8")
    window = Constant(struct.pack("<11q", 8, 8, 16, 8, 8, 3, 3, 1, 1, 1, 1))
    every = {
        f"matmul_wgmma_{a}_{b}{tail}" for a in kinds for b in kinds for tail in ("", "_narrow")
    }
    windows = {name.replace("wgmma", "wgmma_windows") for name in every}
    for left, right, columns, windowed in product(kinds, kinds, (40, 300), (False, True)):
        for disabled in (set[str](), windows, every | windows):
            a = Factor(
                *(Operand(0), "i16", 640, 144, True, *STORAGE["i16" if windowed else left]),
                windows=window if windowed else None,
            )
            b = Factor(Operand(1), "i16", columns, 144, False, *STORAGE[right])
            plan = plan_matmul(
                *(a, b, Epilogue(Operand(2)), architecture),
                disabled=disabled,
                least_products=0,
            )
            yield from plan or ()
    narrow = Choice("matmul_wgmma_i16_i16_narrow", False)
    wide = Choice("matmul_wgmma_i16_i16", False)
    for choice in (narrow, wide):
        a, b = (Factor(Operand(i), "i16", 40, 144, i == 0, *STORAGE["i16"]) for i in range(2))
        plan = plan_matmul(
            *(a, b, Epilogue(Operand(2)), architecture), least_products=0, choice=choice
        )
        yield from plan or ()


@pytest.mark.skipif(sys.platform != "linux", reason="triton's wheel, with cuobjdump, is for Linux")
def test_what_is_read_is_what_the_tool_says(tmp_path: Path) -> None:
    """cuobjdump, which comes with triton's wheel."""
    code = Compiler("sm_90a", folder=None).compile("tensor_digest.cu")
    found = read_resources(code)
    assert found["tensor_digest"].stack > 0 < found["digest_trees"].shared
    triton = find_spec("triton")
    assert triton is not None
    assert triton.origin is not None
    tool = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    file = tmp_path / "code.cubin"
    file.write_bytes(code)
    said = subprocess.run(
        [str(tool), "--dump-resource-usage", str(file)], capture_output=True, text=True, check=True
    ).stdout
    lines = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", said)
    assert {name: tuple(map(int, rest)) for name, *rest in lines} == {
        name: (it.registers, it.stack, it.shared) for name, it in found.items()
    }


def test_what_is_no_machine_code_is_refused() -> None:
    code = Compiler("sm_80", folder=None).compile("relu.cu")
    assert read_resources(code)["relu"] == Resources(
        registers=10, stack=0, shared=0, code=read_resources(code)["relu"].code
    )
    for broken in (b"", *(code[:keep] for keep in (10, 63, 64, len(code) // 2)), b"MZ" + code[2:]):
        with pytest.raises(KernelError, match="no machine code"):
            read_resources(broken)
