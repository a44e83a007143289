"""Whether a pointwise operator, as a chain of its own, gives the bits of its law, on the CPU.

So a row of ``POINTWISE`` is tried with the operator's cases, whatever graphs other tests have:
``tests/facets`` does it for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.cuda.host_device import HostDevice
from tests.cuda.single import Result, claim
from tests.engines.operator_cases import CASES, Case, Draw
from vtrain.engines.cuda.device import Call, Pointer, Slot
from vtrain.engines.cuda.fuse import Chain, make_chain, name_source, render_source
from vtrain.engines.cuda.launch import Scratch
from vtrain.engines.cuda.plan import Counter, Value, chain_job
from vtrain.engines.cuda.program import Program
from vtrain.ops import TABLE
from vtrain.spec.number import NUMPY_DTYPES, count_saturated
from vtrain.wire.graph import Node, Ref, StepGraph

Array = npt.NDArray[Any]
EXAMPLES = 40


def draw_cases(op: str) -> list[Case]:
    found: list[Case] = []

    @settings(
        deadline=None,
        max_examples=EXAMPLES,
        derandomize=True,
        phases=[Phase.generate],
    )
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        found.append(CASES[op](Draw(data)))

    draw()
    return found


def make_program(case: Case, output: Array) -> Program:
    """The case's node, reading states, and a record of its output."""
    states = [
        Node(f"s{at}", "state", {"name": f"s{at}"}, (), (claim(value),))
        for at, value in enumerate(case.inputs)
    ]
    own = Ref(len(states))
    refs = tuple(Ref(at) for at in range(len(states)))
    node = Node("case", case.op, case.attrs, refs, (claim(output),))
    record = Node("record", "record", {"commit_every": 1}, (own,) * 4, (claim(np.zeros(32, "u1")),))
    return Program(StepGraph((*states, node, record)))


def run_chain(
    device: HostDevice, program: Program, chain: Chain, file: str, case: Case, output: Array
) -> Result:
    launches = chain_job(program, chain, file).launches
    out, counter = device.allocate(output.nbytes), device.allocate(8)
    device.zero(counter, 8)
    placed = {}
    for at, value in enumerate(case.inputs):
        placed[at] = device.allocate(value.nbytes)
        device.write(placed[at], np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    between: dict[Scratch, int] = {}
    for launch in launches:
        slots: list[Slot] = []
        for arg in launch.args:
            match arg:
                case int():
                    slots.append(arg)
                case Value(node):
                    slots.append(Pointer(placed.get(node, out)))
                case Counter():
                    slots.append(Pointer(counter))
                case Scratch():
                    if arg not in between:
                        between[arg] = device.allocate(arg.nbytes)
                    slots.append(Pointer(between[arg]))
                case _:
                    raise AssertionError(arg)
        shape = (launch.grid, launch.block, tuple(slots), launch.shared)
        device.launch(Call(launch.file, launch.kernel, *shape))
    device.synchronize()
    found = np.frombuffer(device.read(out, output.nbytes), NUMPY_DTYPES[claim(output).dtype])
    counted = int.from_bytes(device.read(counter, 8), "little")
    for address in (out, counter, *placed.values(), *between.values()):
        device.free(address)
    return Result(found.reshape(output.shape), counted)


def assert_chain_follows_law(op: str, device: HostDevice) -> None:
    """All chains in one file, which is compiled once."""
    cases = [(case, case.expected()) for case in draw_cases(op)]
    cases = [(case, output) for case, output in cases if output.size]
    assert len(cases) > EXAMPLES // 4  # the others are empty tensors
    programs = [make_program(case, output) for case, output in cases]
    chains = [
        make_chain(program, (len(case.inputs),))
        for program, (case, _) in zip(programs, cases, strict=True)
    ]
    text = render_source(chains)
    file = name_source(text)
    device.add_source(file, text)
    for program, chain, (case, expected) in zip(programs, chains, cases, strict=True):
        found = run_chain(device, program, chain, file, case, expected)
        where = f"{op} {case.attrs}"
        np.testing.assert_array_equal(found.output, expected, err_msg=where, strict=True)
        unclamped, clamped = TABLE[op].unclamped, 0
        if unclamped is not None:
            with np.errstate(over="ignore"):
                exact = unclamped(case.attrs, list(case.inputs))
            clamped = count_saturated(exact, claim(expected).dtype)
        assert found.saturated == clamped, where
