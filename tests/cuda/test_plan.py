"""Plans: nothing that lives is overwritten, no node is left out, many are merged."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cuda.host_device import KERNELS, HostDevice
from tests.engines.random_graphs import make_random_step
from tests.engines.steps import make_step
from tests.vectors import generate_tiling as tiling
from tests.vectors.generate_graphs import Draft, rescale
from vtrain.engines.cuda import arena, fuse
from vtrain.engines.cuda import plan as plan_module
from vtrain.engines.cuda.arena import ALIGNMENT, Lifetime
from vtrain.engines.cuda.dense import find_products
from vtrain.engines.cuda.dense_cases import can_be_tried
from vtrain.engines.cuda.fuse import POINTWISE, find_chains
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.launch import Scratch
from vtrain.engines.cuda.lowering import lower
from vtrain.engines.cuda.plan import Place, Plan, find_split, plan_fused, plan_unfused
from vtrain.engines.cuda.program import Program
from vtrain.errors import GraphError
from vtrain.graph.values import VIEWS
from vtrain.ops import TABLE, layout
from vtrain.ops.base import attr_ints
from vtrain.ops.layout import Window
from vtrain.wire.graph import Node, StepGraph

SEEDS = range(60)
LIFETIMES = st.lists(
    st.builds(
        lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=60,
)


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Do half-open ranges meet?"""
    return a[0] < b[1] and b[0] < a[1]


@given(LIFETIMES)
def test_what_lives_at_one_time_never_overlaps(lifetimes: list[Lifetime]) -> None:
    offsets, size = arena.place(lifetimes)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    placed = list(zip(offsets, lifetimes, strict=True))
    for offset, life in placed:
        assert offset >= 0
        assert offset + life.nbytes <= size
    for (offset_a, a), (offset_b, b) in combinations(placed, 2):
        if a.first <= b.last and b.first <= a.last:
            room_a, room_b = (offset_a, offset_a + a.nbytes), (offset_b, offset_b + b.nbytes)
            assert not overlap(room_a, room_b)


def test_memory_is_used_again() -> None:
    """A chain of values, of which two live at a time, needs room for two."""
    _, size = arena.place(Lifetime(1000, at, at + 1) for at in range(50))
    assert size == 2 * 1024
    # The smaller gap that fits is taken, and the larger stays for what needs it.
    lives = [Lifetime(4096, 0, 0), Lifetime(256, 0, 9), Lifetime(512, 0, 0), Lifetime(256, 0, 9)]
    offsets, size = arena.place([*lives, Lifetime(512, 1, 1), Lifetime(4096, 1, 1)])
    assert size == 4096 + 512 + 2 * 256
    assert offsets[4] == offsets[2]


def count_lines(work: Callable[[], object]) -> int:
    """Lines of the planner's files that are executed: operations, whatever the machine."""
    files = tuple(str(Path(module.__file__ or "")) for module in (arena, fuse, plan_module))
    found = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal found
        if frame.f_code.co_filename not in files:
            return None
        found += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return found


def make_scattered(count: int) -> list[Lifetime]:
    """Lifetimes that leave very many gaps, each for another size, and then fill them."""
    sizes = [ALIGNMENT * (1 + at * 7 % 977) for at in range(count)]
    first = [Lifetime(size, 0, at % 2 * 2 * count + at) for at, size in enumerate(sizes)]
    return first + [Lifetime(size, at + 1, count + at) for at, size in enumerate(sizes)]


def make_wide_step(count: int) -> StepGraph:
    """So many states, their digests, and pointwise readers of one value."""
    names = [f"s{at}" for at in range(count)]
    body = [rescale(f"r{at}", "w", "i32", 0) for at in range(count)]
    body += [rescale(f"t{at}", f"r{at}", "i32", 0) for at in range(count)]
    body += [Draft(f"#{at}", "tensor_digest", (f"r{at}",)) for at in range(count)]
    body.append(Draft("loss", "sum", ("w",)))
    states = dict.fromkeys((*names, "w"), ("i32", (2,), 24))
    after = {name: f"t{at}" for at, name in enumerate(names)}
    return tiling.Plan(tuple(body), states, "loss", after).graph()


@pytest.mark.parametrize("part", ["arena", "plan"])
def test_planning_takes_time_in_proportion_to_the_graph(part: str) -> None:
    """Twice the graph takes about twice the operations, not four times."""
    counts = []
    for size in (400, 800) if part == "arena" else (150, 300):
        if part == "arena":
            lifetimes = make_scattered(size)
            counts.append(count_lines(lambda: arena.place(lifetimes)))  # noqa: B023
        else:
            program = Program(make_wide_step(size))
            counts.append(count_lines(lambda: plan_fused(program, lower)))  # noqa: B023
    assert counts[0] > 1000
    assert counts[1] < 2.4 * counts[0]


def find_clashes(program: Program, plan: Plan) -> list[str]:
    """Bytes that a job writes while somebody still needs what was there."""
    end = len(plan.jobs)
    needed = dict.fromkeys(program.kept, end)
    for at, job in enumerate(plan.jobs):
        for value in job.reads:
            needed[value] = max(needed.get(value, -1), at)
    rooms: list[tuple[Place, int, int, int, int]] = [
        (plan.places[node], program.nbytes(node), -1, needed.get(node, -1), node)
        for node in program.states.values()
    ]
    for at, job in enumerate(plan.jobs):
        for value in job.writes:
            last = max(needed.get(value, at), at)
            rooms.append((plan.places[value], program.nbytes(value), at, last, value))
        scratch = {
            arg for launch in job.launches for arg in launch.args if isinstance(arg, Scratch)
        }
        rooms += [(plan.scratch[at, arg], arg.nbytes, at, at, -1) for arg in scratch]
    clashes = []
    for a, b in combinations(rooms, 2):
        if a[0].region != b[0].region:
            continue
        (old, new) = (a, b) if a[2] <= b[2] else (b, a)
        same_bytes = overlap(
            (old[0].offset, old[0].offset + old[1]), (new[0].offset, new[0].offset + new[1])
        )
        if not same_bytes or old[3] < new[2]:
            continue
        writer = plan.jobs[new[2]] if new[2] >= 0 else None
        in_place = (
            writer is not None
            and old[3] == new[2]
            and old[0] == new[0]
            and old[4] in writer.replaces.get(new[4], ())
        )
        if not in_place:
            clashes.append(f"{old[4]} and {new[4]}")
    return clashes


def find_disorder(program: Program, plan: Plan) -> list[str]:
    """Values that a job reads before they are written."""
    done, wrong = set(program.states.values()), []
    for job in plan.jobs:
        wrong += [f"{job.node} reads {value}" for value in job.reads if value not in done]
        done.update(job.writes)
    return wrong


def plan_for(graph: StepGraph, device: HostDevice) -> Plan:
    """A fused plan, its kernels not tried."""
    return plan_fused(Program(graph), Kernels(device).serve, merge_digests=True)


GRAPHS: list[tuple[str, int]] = [("mlp", 0), ("cnn", 0), *(("random", seed) for seed in SEEDS)]


def make_graph(kind: str, seed: int) -> StepGraph:
    return make_random_step(seed).graph if kind == "random" else make_step(kind).graph


@pytest.mark.parametrize(("kind", "seed"), GRAPHS)
def test_plans_overwrite_nothing_that_is_needed(
    kind: str, seed: int, host_device: HostDevice
) -> None:
    graph = make_graph(kind, seed)
    program = Program(graph)
    for plan in (plan_for(graph, host_device), plan_unfused(program, lower, lower)):
        assert find_clashes(program, plan) == []
        assert find_disorder(program, plan) == []
        written = [value for job in plan.jobs for value in job.writes]
        assert len(written) == len(set(written))


def test_the_clash_finder_finds_clashes(host_device: HostDevice) -> None:
    graph = make_step("mlp").graph
    plan = plan_for(graph, host_device)
    first, second = (job.writes[0] for job in plan.jobs[:2])
    places = {**plan.places, second: plan.places[first]}
    spoiled = Plan(**{**vars(plan), "places": places})
    assert f"{first} and {second}" in find_clashes(Program(graph), spoiled)


def test_every_node_that_matters_is_done_once(host_device: HostDevice) -> None:
    for kind, seed in GRAPHS:
        graph = make_graph(kind, seed)
        program, plan = Program(graph), plan_for(graph, host_device)
        done = [node for job in plan.jobs for node in job.nodes]
        assert len(done) == len(set(done))
        views = {i for i, node in enumerate(graph.nodes) if node.op in {*VIEWS, "state"}}
        everything = set(range(len(graph.nodes)))
        assert set(done) == everything - views - program.find_idle()


def test_new_state_takes_the_place_of_the_old(host_device: HostDevice) -> None:
    graph = make_step("mlp").graph
    program, plan = Program(graph), plan_for(graph, host_device)
    for name, value in program.next_states.items():
        assert plan.places[value] == plan.state_places[name], name
    assert plan.advance == ()


def test_an_unfused_plan_leaves_the_state_alone() -> None:
    graph = make_step("mlp").graph
    program = Program(graph)
    plan = plan_unfused(program, lower, lower)
    regions = {plan.places[value].region for job in plan.jobs for value in job.writes}
    assert regions == {"arena"}
    assert {copy.target for copy in plan.advance} == set(plan.state_places.values())


def test_pointwise_chains_are_merged(host_device: HostDevice) -> None:
    graph = make_step("mlp").graph
    names = [[graph.nodes[n].name for n in job.nodes] for job in plan_for(graph, host_device).jobs]
    assert ["fc0/biased", "fc0", "relu0"] in names
    assert ["momentum/w0/next", "param/w0/next"] in names
    assert ["loss/probabilities", "loss/grad"] in names


def test_random_graphs_have_much_to_merge_and_much_to_refuse() -> None:
    sizes = []
    for seed in SEEDS:
        program = Program(make_random_step(seed).graph)
        sizes += [len(chain) for chain in find_chains(program, program.find_idle())]
    assert sizes.count(1) > 50
    assert sum(size > 2 for size in sizes) > 20


def test_hashes_of_the_state_are_for_commitment_steps_alone(host_device: HostDevice) -> None:
    graph = make_step("mlp").graph
    plan = plan_for(graph, host_device)
    late = {graph.nodes[n].op for job in plan.jobs if job.commit_only for n in job.nodes}
    assert late == {"tensor_digest", "state_leaf", "state_root"}
    soon = [graph.nodes[n].name for job in plan.jobs if not job.commit_only for n in job.nodes]
    assert {"batch_digest", "x/digest", "y/digest"} <= set(soon)
    assert not any(name.startswith("digest/") for name in soon)


def test_digests_of_the_state_share_launches(host_device: HostDevice) -> None:
    graph = make_step("mlp").graph
    jobs = plan_for(graph, host_device).jobs
    [merged] = [job for job in jobs if graph.nodes[job.node].name.startswith("digest/")]
    assert len(merged.nodes) == len(graph.states())


def test_gradients_come_before_updates_in_a_split_plan() -> None:
    program = Program(make_step("cnn").graph)
    plan = plan_fused(program, lower, split=True)
    split = find_split(program, plan)
    assert split is not None
    before = {value for job in plan.jobs[:split] for value in job.writes}
    momenta = [i for i, node in enumerate(program.graph.nodes) if node.op == "momentum"]
    assert {program.inputs[index][1] for index in momenta} <= before
    assert before.isdisjoint(momenta)


@pytest.mark.parametrize("op", sorted(POINTWISE))
def test_value_functions_take_what_chains_give_them(op: str) -> None:
    """Parameters of NAME_value, and NAME_quick, in the source: attributes by name, operands in
    order, divisors as such."""
    text, rule = (KERNELS / f"{op}.cu").read_text(), POINTWISE[op]
    operands = [item for item in rule.order if isinstance(item, int)]
    assert operands == sorted(operands) == list(range(len(rule.reach)))
    given_names = {"columns": "classes"}
    for kind in ("value", *(["quick"] if rule.quick else [])):
        found = re.search(rf"i64 {op}_{kind}\(([^)]*)\)", text)
        assert found is not None
        parameters = found[1].split(",")
        for parameter, item in zip(parameters, rule.order, strict=True):
            if isinstance(item, str):
                assert parameter.split()[-1] == given_names.get(item, item)
            is_divisor = kind == "quick" and item in rule.divisors
            assert ("Divisor" in parameter) is is_divisor


def test_gradients_of_images_are_convolutions_where_windows_move_by_one_pixel() -> None:
    graph = make_step("cnn").graph
    turned = [
        product
        for product in find_products(Program(graph), may_turn=can_be_tried)
        if product.turn is not None
    ]
    names = [[graph.nodes[node].name for node in product.nodes] for product in turned]
    assert names == [
        ["c3/acc/grad_a", "c3/patches/grad_in", "m1/grad"],
        ["c2/acc/grad_a", "c2/patches/grad_in", "r1/grad_part#2"],
    ]
    for at, node in enumerate(graph.nodes):
        if node.op == "col2im":
            attrs = {**node.attrs, "strides": (2, 2)}
            graph = replace_node(
                graph, at, Node(node.name, node.op, attrs, node.inputs, node.outputs)
            )
    assert not any(product.turn for product in find_products(Program(graph), may_turn=can_be_tried))


def test_a_turned_convolution_stays_within_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches of the gradients, of more channels than the image, may be too many for it."""
    graph = make_step("cnn").graph
    at, node = next((i, n) for i, n in enumerate(graph.nodes) if n.op == "col2im")
    window = Window.from_attrs(node.attrs)
    images, rows, columns, channels = window.pooled_shape(attr_ints(node.attrs, "shape", 4))
    most = images * rows * columns * window.area * channels
    others = [i for i, n in enumerate(graph.nodes) if n.op == "col2im" and i != at]
    for other in others:
        found = graph.nodes[other]
        attrs = {**found.attrs, "strides": (2, 2)}
        changed = Node(found.name, found.op, attrs, found.inputs, found.outputs)
        graph = replace_node(graph, other, changed)
    program = Program(graph)
    assert [
        product.turn is not None for product in find_products(program, may_turn=can_be_tried)
    ].count(True) == 1
    monkeypatch.setattr(layout, "MAX_ELEMENTS", 2 * most - 1)
    assert not any(product.turn for product in find_products(program, may_turn=can_be_tried))


def test_every_operator_has_a_readable_kernel() -> None:
    assert {name for name in TABLE if not (KERNELS / f"{name}.cu").is_file()} == set()


def replace_node(graph: StepGraph, at: int, node: Node) -> StepGraph:
    nodes: Sequence[Node] = graph.nodes
    return StepGraph((*nodes[:at], node, *nodes[at + 1 :]))


def test_unknown_operators_and_later_values_are_named() -> None:
    graph = make_step("mlp").graph
    at = next(i for i, node in enumerate(graph.nodes) if node.op == "relu")
    node = graph.nodes[at]
    with pytest.raises(GraphError, match="unknown operator") as caught:
        Program(replace_node(graph, at, Node(node.name, "sigmoid", {}, node.inputs, node.outputs)))
    assert caught.value.where == f"node {node.name} (sigmoid)"
    later = (graph.nodes[at + 1].inputs[0]._replace(node=at + 1),)
    with pytest.raises(GraphError, match="no earlier value"):
        Program(replace_node(graph, at, Node(node.name, "relu", {}, later, node.outputs)))
