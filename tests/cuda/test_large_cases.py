"""The self-check of a device finds what only large inputs show.

Its large cases are run by a device alone, which takes milliseconds for each.  Here all of them are
planned and what they launch is looked at; kernels that are wrong at some size are made from the
sources, and the smallest of the large cases that shows it is run on the CPU.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.cuda.host_device import KERNELS, MOST_THREADS, HostDevice, HostDeviceError
from tests.cuda.single import count_matrices
from tests.cuda.test_odd_graphs import make_step_of
from tests.cuda.test_selfcheck import list_forms, make_form, make_gradient
from tests.engines.compare import open_law
from tests.engines.steps import Step, make_step
from tests.exhaustive import spare, spare_mutants
from vtrain.engines.cuda import dense, dense_cases, fuse, gemm, sources
from vtrain.engines.cuda.compile import prune, write_whole
from vtrain.engines.cuda.device import Call
from vtrain.engines.cuda.kernels import CASES, LARGE_CASES, Kernels, _chain_subject, _node_subjects
from vtrain.engines.cuda.launch import THREADS, Constant
from vtrain.engines.cuda.lowering import FAST, lower
from vtrain.engines.cuda.plan import Planned, find_groups
from vtrain.engines.cuda.program import Program
from vtrain.engines.cuda.selfcheck import (
    CHAIN_SHAPES,
    FULL_CHAIN_SHAPES,
    Case,
    Checker,
    Drawn,
    KernelWarning,
    Subject,
    agrees,
    chain_cases,
    node_case,
)
from vtrain.engines.cuda.session import CudaSession
from vtrain.errors import GraphError
from vtrain.graph.builder import GraphBuilder
from vtrain.spec.number import STORAGE
from vtrain.wire.graph import Attrs, Node, Ref, TensorType

AREA, EXTREME, EXTREME_ODD, SPLIT, DEEP = range(5)
"""The large cases of a product, in their order."""
RESCALE = Node(
    "out",
    "rescale",
    {"dtype": "i16", "multiplier": 1, "shift": 21},
    (),
    (TensorType("i16", (), 0, 0, 0),),
)


def make_wide(*shape: int) -> TensorType:
    return TensorType("i16", shape, 0, *STORAGE["i16"])


def make_plain() -> dense.Form:
    """A product whose sums are stored."""
    return make_form(make_wide(4096, 4096), make_wide(4096, 4096), (0, 0), (None, None), ())


def make_narrowed() -> dense.Form:
    a, b = make_wide(4096, 4096), make_wide(4096, 4096)
    return make_form(a, b, (0, 1), (None, None), (RESCALE,))


def make_windows(channels: int, columns: int = 128) -> dense.Form:
    window: Attrs = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
    image, kernel = make_wide(256, 32, 32, channels), make_wide(columns, 9 * channels)
    patches = Node("patches", "im2col", window, (), ())
    return make_form(image, kernel, (0, 1), (patches, None), (RESCALE,))


def choose(form: dense.Form, architecture: str) -> gemm.Choice | None:
    """How a step would do the product."""
    plan = partial(gemm.plan_matmul, architecture=architecture, processors=1)
    launches = form.plan(plan)
    return None if launches is None else gemm.find_choice(launches)


def list_large(form: dense.Form, architecture: str, choice: gemm.Choice | None) -> list[Case]:
    plan = partial(gemm.plan_matmul, architecture=architecture, least_products=0, choice=choice)
    one, many = partial(plan, processors=1), partial(plan, processors=1 << 20)
    return list(dense_cases.large_cases(form, one, many))


# --- all of them are planned, and go where small ones do not


def find_product(case: Case) -> Planned:
    return next(launch for launch in case.fast if launch.kernel.startswith(gemm.MULTIPLYING))


def find_extents(launch: Planned) -> tuple[int, int, int]:
    """m, n, inner of a product."""
    m, n, inner = launch.args[-16], launch.args[-15], launch.args[-14]
    assert isinstance(m, int)
    assert isinstance(n, int)
    assert isinstance(inner, int)
    return m, n, inner


def require_launchable(device: HostDevice, launches: Sequence[Planned]) -> None:
    """All that a launch may be refused for."""
    for launch in launches:
        kinds = "".join("i" if isinstance(arg, int) else "p" for arg in launch.args)
        assert device.library(launch.file).kinds(launch.kernel) == kinds, launch
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        assert 1 <= blocks < 2**31, launch
        assert launch.block[0] * launch.block[1] * launch.block[2] <= MOST_THREADS, launch
        assert launch.shared <= 227 * 1024, launch


def list_ways(architecture: str) -> Iterator[tuple[dense.Form, gemm.Choice]]:
    """A form of every way that the self-check tells apart."""
    seen = set()
    for form in list_forms():
        launches = form.plan(partial(gemm.plan_matmul, architecture=architecture, processors=1))
        if launches is not None:
            choice = gemm.find_choice(launches)
            way = dense_cases.describe_way(form, launches), choice
            if way not in seen:
                seen.add(way)
                yield form, choice


@pytest.mark.parametrize("architecture", spare(["sm_80", "sm_90a"], "sm_90a".__eq__))
def test_products_are_tried_beyond_every_size_that_kernels_tell_apart(
    architecture: str, host_device: HostDevice
) -> None:
    kernels = set()
    for form, choice in list_ways(architecture):
        cases = list_large(form, architecture, choice)
        assert len(cases) == 5, form
        for case in cases:
            require_launchable(host_device, [*case.fast, *case.readable])
            nbytes = sum(given.nbytes for given in case.inputs.values())
            assert nbytes + sum(case.sizes.values()) < 2**28, form
        products = [find_product(case) for case in cases]
        assert {product.kernel for product in products} == {choice.kernel}
        stack = dense_cases.LARGE_STACK[0] if form.batch > 1 else 1
        assert {count_matrices(product) for product in products} == {stack}
        kernels.add(choice.kernel)
        extents = [find_extents(product) for product in products]
        for m, n, inner in (extents[AREA], extents[DEEP]):
            assert inner % gemm.TILE > gemm.TILE * 3 // 4
            rows, columns = (n, m) if choice.is_turned else (m, n)
            assert form.rows <= gemm.TILE or rows > 7 * gemm.TILE
            assert form.columns <= gemm.TILE or columns > 3 * gemm.TILE
        m, n, _ = extents[AREA]
        if min(form.rows, form.columns) > gemm.TILE and form.windows == (None, None):
            assert m * n > 2**20
            columns = 256 if choice.kernel.endswith("i8_i8") and "wgmma" in choice.kernel else 128
            columns = 64 if choice.kernel.endswith("_narrow") else columns
            rows, others = (n, m) if choice.is_turned else (m, n)
            tiles = -(-rows // gemm.TILE) * -(-others // columns)
            # Several blocks that take several tiles each, of all matrices, or a block a tile.
            blocks = 8 if "wgmma" in choice.kernel else tiles
            assert tiles > 8 * 4
            assert products[AREA].grid[0] == blocks
        assert extents[DEEP][2] > 4096
        assert gemm.LONGEST_SUM - 64 <= extents[EXTREME][2] <= gemm.LONGEST_SUM
        assert products[EXTREME].grid[1] == 1
        assert products[SPLIT].grid[1] > 4
        for case in (cases[AREA], cases[DEEP]):
            for images, image in find_images(case):
                assert images > 64
                assert image or form.columns < gemm.TILE or form.rows < gemm.TILE
    assert len(kernels) >= (5 if architecture == "sm_80" else 8)


def find_images(case: Case) -> Iterator[tuple[int, bool]]:
    """Images that windows are taken from, and are they larger than a short index."""
    for launch in case.readable:
        if launch.kernel == "im2col":
            [window] = [arg for arg in launch.args if isinstance(arg, Constant)]
            height, width, channels, rows, columns = (
                int.from_bytes(window.data[at : at + 8], "little") for at in range(0, 40, 8)
            )
            count = launch.args[0]
            assert isinstance(count, int)
            area = count // (rows * columns * channels)
            given = case.inputs[0], case.inputs[1]
            images = [
                one.nbytes // (2 * height * width * channels)
                for one in given
                if one.nbytes % (2 * height * width * channels) == 0
                and area % (one.nbytes // (2 * height * width * channels)) == 0
            ]
            yield max(images), True


@pytest.mark.parametrize("op", sorted(FAST))
def test_large_cases_of_nodes_can_be_launched(op: str, host_device: HostDevice) -> None:
    for attrs, inputs, output in [*CASES[op], *LARGE_CASES.get(op, [])]:
        case = node_case(op, attrs, inputs, output, FAST[op])
        require_launchable(host_device, [*case.fast, *case.readable])


def test_reductions_are_tried_with_all_their_parts() -> None:
    for op in ("sum", "largest", "square_sum"):
        [(attrs, inputs, output)] = LARGE_CASES[op]
        first, last = FAST[op](Node("n", op, attrs, (), (output,)), inputs)
        assert (first.grid, last.grid) == ((1024, 1, 1), (1, 1, 1))


def test_a_device_has_large_cases_and_an_emulated_one_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is run: what is there to be tried, by either."""
    found: dict[bool, int] = {}
    products: dict[bool, int] = {}
    program = Program(make_step("mlp", batch=8).graph)
    for large in (False, True):
        device = HostDevice()
        chosen = Kernels(device, large=large, least_products=0)
        subjects = list(chosen._subjects(program, split=False))
        found[large] = sum(len(list(subject.cases(0))) for subject in subjects)
        products[large] = sum(one.kernel.startswith(gemm.MULTIPLYING) for one in subjects)
        assert chosen._large is large
        assert Kernels(device)._large is False
        device.close()
    assert found[True] > found[False] + 10
    assert products[True] > products[False] > 0


# --- wrong kernels, made from the sources


def mutate(folder: Path, file: str, old: str, new: str, kernel: str = "") -> HostDevice:
    """A device of kernels in which ``old`` reads ``new``; of those that multiply, ``kernel`` alone:
    they take long to compile."""
    place = folder / "kernels"
    shutil.copytree(KERNELS, place)
    text = (place / file).read_text()
    assert old in text
    (place / file).write_text(text.replace(old, new))
    for header in ("gemm_mma.cuh", "gemm_wgmma.cuh"):
        path = place / header
        names = r"^(?:MMA|WGMMA)_(?:PRODUCT|WINDOWS)\((?!%s,)\w+,.*\n" % (kernel or "x")
        path.write_text(re.sub(names, "", path.read_text(), flags=re.MULTILINE))
    architecture = "sm_90a" if "wgmma" in kernel else "sm_80"
    return HostDevice(architecture=architecture, folder=place, cache_folder=folder / "cache")


MMA, WGMMA = "matmul_mma_i16_i16", "matmul_wgmma_i16_i16"
GATHERING = "matmul_wgmma_windows_i16_i16"
SLOW = pytest.mark.slow

MUTANTS = [
    (
        "only two parts of a last tile",
        WGMMA,
        "gemm_wgmma.cuh",
        "const i32 last_parts = (i32)(work.terms % TILE + 31) / 32;",
        "const i32 full_parts = (i32)(work.terms % TILE + 31) / 32, "
        "last_parts = full_parts > 2 ? 2 : full_parts;",
        make_plain,
        AREA,
    ),
    (
        "no second half of a last tile",
        MMA,
        "gemm_mma.cuh",
        "const i32 steps = (i32)((work.terms + STEP_BYTES - 1) / STEP_BYTES);",
        "const i32 steps = (i32)((work.terms + STEP_BYTES - 1) / STEP_BYTES)"
        " - (work.terms % TILE > 64);",
        make_narrowed,
        AREA,
    ),
    (
        "one group of tiles of rows",
        MMA,
        "gemm.cuh",
        "return {group * 8 + within % height, within / height};",
        "return {within % height, within / height};",
        make_plain,
        AREA,
    ),
    (
        "two tiles of columns",
        MMA,
        "gemm.cuh",
        "place.column_tile,\n",
        "place.column_tile % 2,\n",
        make_narrowed,
        AREA,
    ),
    (
        "2^20 sums",
        MMA,
        "gemm_mma.cuh",
        "i64* const at = epilogue.sums + row * epilogue.n + column + 2 * (lane % 4);",
        "i64* const at = epilogue.sums + row * epilogue.n % (1 << 20) + column + 2 * (lane % 4);",
        make_plain,
        AREA,
    ),
    (
        "a carry of 32 bits",
        MMA,
        "gemm.cuh",
        "sum += (i64)parts[weight] * (1ll << 8 * weight);",
        "sum += weight == 1 ? (i64)(i32)((u32)parts[weight] << 8)"
        " : (i64)parts[weight] * (1ll << 8 * weight);",
        make_narrowed,
        EXTREME,
    ),
    (
        "a carry of 32 bits, one by one",
        MMA,
        "gemm.cuh",
        "sum += (i64)slab[slab_place<COLUMNS>(weight, r, own_column<COLUMNS>() + c)] *\n"
        "                           (1ll << 8 * weight);",
        "sum += weight == 1 ? (i64)(i32)((u32)slab[slab_place<COLUMNS>(weight, r, "
        "own_column<COLUMNS>() + c)] << 8) : (i64)slab[slab_place<COLUMNS>(weight, r, "
        "own_column<COLUMNS>() + c)] * (1ll << 8 * weight);",
        make_plain,
        EXTREME_ODD,
    ),
    (
        "sums of 2^27",
        MMA,
        "gemm.cuh",
        "i64 sum = parts[0];",
        "i64 sum = parts[0] > 1 << 27 ? 1 << 27 : parts[0];",
        make_narrowed,
        EXTREME,
    ),
    (
        "sums of 2^28",
        MMA,
        "gemm.cuh",
        "sum += (i64)parts[weight] * (1ll << 8 * weight);",
        "sum += (weight == 2 ? (i64)((i32)((u32)parts[weight] << 3) / 8) : (i64)parts[weight])"
        " * (1ll << 8 * weight);",
        make_narrowed,
        EXTREME,
    ),
    (
        "sums of 32 bits",
        MMA,
        "gemm.cuh",
        "const i32 value = (i32)((sum * (u32)multiplier + half) >> shift);",
        "const i32 value = (i32)(((i64)(i32)sum * (u32)multiplier + half) >> shift);",
        make_narrowed,
        EXTREME,
    ),
    (
        "no wait after 24 steps",
        WGMMA,
        "gemm_wgmma.cuh",
        "        mbarrier_wait(full + 8 * s, at / STAGES & 1);\n"
        "        wgmma_fence();\n#pragma unroll\n",
        "        if (step < 24) mbarrier_wait(full + 8 * s, at / STAGES & 1);\n"
        "        wgmma_fence();\n#pragma unroll\n",
        make_plain,
        EXTREME,
    ),
    (
        "64 images, packed",
        MMA,
        "gemm_pack.cuh",
        "return ((batch * window.height + y)",
        "return ((batch % 64 * window.height + y)",
        partial(make_windows, 3),
        AREA,
    ),
    (
        "64 images, gathered",
        GATHERING,
        "gemm_wgmma.cuh",
        "start[i] = (((i64)batch * height",
        "start[i] = (((i64)(batch & 63) * height",
        partial(make_windows, 128),
        AREA,
    ),
    (
        "65,536 elements of an image",
        GATHERING,
        "gemm_pack.cuh",
        "second = load_whole<i16>(x, 16 * i + 8);",
        "second = load_whole<i16>(x, 16 * i + (i >= 4096 ? 0 : 8));",
        partial(make_windows, 128),
        AREA,
    ),
    (
        "three blocks a sum",
        MMA,
        "gemm.cuh",
        "first = blockIdx.y * split;",
        "first = (blockIdx.y > 2 ? 2 : blockIdx.y) * split;",
        make_plain,
        SPLIT,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernel", "file", "old", "new", "make", "which"),
    spare_mutants(MUTANTS),
    ids=[mutant[0] for mutant in MUTANTS],
)
def test_products_that_are_right_up_to_a_size_do_not_pass(
    name: str,
    kernel: str,
    file: str,
    old: str,
    new: str,
    make: Callable[[], dense.Form],
    which: int,
    tmp_path: Path,
) -> None:
    """The small cases do not show it, which is why there are large ones."""
    device = mutate(tmp_path, file, old, new, kernel)
    architecture, form = device.info.architecture, make()
    choice = choose(form, architecture)
    assert choice is not None
    assert choice.kernel == kernel
    plan = partial(gemm.plan_matmul, architecture=architecture, least_products=0, choice=choice)
    small = dense_cases.small_case(form, partial(plan, processors=1))
    assert small is not None
    assert agrees(device, small)
    # That consumers come first is another legal schedule; threads that wait for ever are seen too.
    device.library("matmul.cu").run_backwards(last_first=kernel == WGMMA)
    try:
        is_found = not agrees(device, list_large(form, architecture, choice)[which])
    except HostDeviceError as error:
        is_found = "wait at barriers" in str(error)
    assert is_found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "architecture"),
    [
        pytest.param(make_plain, "sm_80", marks=pytest.mark.exhaustive),
        (make_narrowed, "sm_90a"),
        pytest.param(partial(make_windows, 64), "sm_90a", marks=pytest.mark.exhaustive),
    ],
)
def test_right_products_pass(architecture: str, make: Callable[[], dense.Form]) -> None:
    device, form = HostDevice(architecture=architecture), make()
    for case in list_large(form, architecture, choose(form, architecture))[:DEEP]:
        assert agrees(device, case)
    device.close()


@pytest.mark.parametrize(
    ("op", "file", "old", "new"),
    [
        (
            "square_sum",
            "square_sum.cu",
            "for (i64 i = threadIdx.x; i < elements; i += blockDim.x) "
            "total = wrap_add(total, parts[i]);",
            "if (threadIdx.x < elements) total = parts[threadIdx.x];",
        ),
        (
            "sum",
            "sum.cu",
            "i += (i64)gridDim.x * blockDim.x)",
            "i += (i64)(gridDim.x < 1000 ? gridDim.x : gridDim.x + 1) * blockDim.x)",
        ),
        (
            "largest",
            "largest.cu",
            "i < elements; i += (i64)gridDim.x * blockDim.x)",
            "i < elements - elements / 4000000; i += (i64)gridDim.x * blockDim.x)",
        ),
        (
            "column_sum",
            "column_sum.cu",
            "if (threadIdx.x == 0 && summed < columns) parts",
            "if (threadIdx.x == 0 && summed < columns && summed < 64) parts",
        ),
        (
            "row_max",
            "rows.cuh",
            "reduce_packs<Reduction>(x + row * classes, classes, lane, 32)",
            "reduce_packs<Reduction>(x + row % 1024 * classes, classes, lane, 32)",
        ),
    ],
)
def test_reductions_that_are_right_up_to_a_size_do_not_pass(
    op: str, file: str, old: str, new: str, tmp_path: Path
) -> None:
    device = mutate(tmp_path, file, old, new)
    subjects = _node_subjects(op, large=True)
    cases = (case for subject in subjects for case in reversed(list(subject.cases(0))))
    assert not all(agrees(device, case) for case in cases)
    device.close()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const i64 at = INDEX() * 4;", "const i64 at = (i64)threadIdx.x * 4;"),
        (
            "const i64 at = INDEX() * 4;",
            "const i64 at = INDEX() * 4; if (blockIdx.x > 3) return;",
        ),
        ("column = 0; row++;", "column = 0; row++; row &= 255;"),
    ],
    ids=["block 0 alone", "four blocks", "256 rows"],
)
def test_chains_that_are_right_up_to_a_size_do_not_pass(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = fuse._Text.render

    def render_wrong(self: fuse._Text, name: str) -> str:
        return render(self, name).replace(old, new)

    program, device = Program(make_step("wide", batch=8).graph), HostDevice()
    chains = find_groups(program)
    chain = next(c for c in chains if {reach for _, reach in c.operands} & {"row"})
    for wrong in (False, True):
        if wrong:
            monkeypatch.setattr(fuse._Text, "render", render_wrong)
            chain = fuse.make_chain(program, chain.nodes)
        text = fuse.render_source([chain])
        device.add_source(fuse.name_source(text), text)
        cases = chain_cases(program, chain, fuse.name_source(text), FULL_CHAIN_SHAPES)
        assert all(agrees(device, case) for case in cases) is not wrong
    device.close()


def test_chains_are_tried_on_nine_blocks() -> None:
    for rows, columns in CHAIN_SHAPES[1:]:
        assert rows * columns > 8 * fuse.WIDTH * THREADS
    assert rows > 1024
    assert {columns % fuse.WIDTH == 0 for _, columns in CHAIN_SHAPES} == {True, False}


@pytest.mark.parametrize("kernel", [(3, 3), (2, 3)])
def test_a_kernel_that_is_not_turned_does_not_pass(kernel: tuple[int, int], tmp_path: Path) -> None:
    device = mutate(
        tmp_path,
        "col2im.cu",
        "const i64 offset = area - 1 - i / channels / outputs;",
        "const i64 offset = i / channels / outputs;",
    )
    [case] = dense_cases.turn_cases(make_gradient(kernel, (0, 0, 0, 0)))
    assert not agrees(device, case)
    device.close()


# --- inputs


def draw_all(case: Case) -> list[bytes]:
    return [
        given.tobytes() for given in case.draw().inputs.values() if not isinstance(given, Drawn)
    ]


def test_every_check_draws_other_inputs() -> None:
    """And the same ones for the same seed, so that a failure can be had again."""
    program = Program(make_step("mlp", batch=4).graph)
    chosen = Kernels(HostDevice(), least_products=0)
    for subject in chosen._subjects(program, split=False):
        for first, same, other in zip(
            subject.cases(0), subject.cases(0), subject.cases(1), strict=True
        ):
            assert draw_all(first) == draw_all(same)
            assert draw_all(first) != draw_all(other) or all(
                given.nbytes < 64 for given in first.inputs.values()
            )
            assert (first.fast, first.readable) == (other.fast, other.readable)


def test_a_check_draws_by_its_seed(host_device: HostDevice) -> None:
    drawn: list[list[bytes]] = []
    whole = TensorType("i32", (64,), 0, 0, 0)

    def list_cases(seed: int) -> Iterator[Case]:
        case = node_case("relu", {}, [whole], whole, lower, seed)
        drawn.append(draw_all(case))
        yield case

    checker = Checker(host_device, key="", folder=None)
    for seed in (0, 7, 8, 7):
        assert not checker.check([Subject("relu", list_cases, {})], again=True, seed=seed)
    assert drawn[1] == drawn[3]
    assert len({values for [values] in drawn}) == 3


class Late(HostDevice):
    """Its row sums become wrong."""

    broken = False

    def launch(self, call: Call) -> None:
        super().launch(call)
        if self.broken and call.kernel == "sum_parts":
            slot = call.slots[3]
            assert not isinstance(slot, int)
            self.zero(slot.address, 1)


def test_a_warning_names_the_seed() -> None:
    program, device = Program(make_step("mlp").graph), Late()
    chosen = Kernels(device)
    chosen.plan_step(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not chosen.check_again(program, seed=40)
    device.broken = True
    with pytest.warns(KernelWarning, match=r"kernel sum_parts gives .*\(on inputs of seed 50\)"):
        assert chosen.check_again(program, seed=50)
    device.close()


@pytest.mark.parametrize("turned", [(0, 0), (1, 1)])
@pytest.mark.parametrize("position", [None, 0, 1])
def test_extreme_operands_fill_rows_and_columns(
    position: int | None, turned: tuple[int, int]
) -> None:
    """Rows of A and columns of B are constant, so that sums are as large as they can be."""
    window: Attrs = {"kernel": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0)}
    patches, image = Node("patches", "im2col", window, (), ()), make_wide(40, 12, 12, 256)
    operands: list[TensorType] = [make_wide(4096, 4096)] * 2
    windows: list[Node | None] = [None, None]
    if position is not None:
        operands[position], windows[position] = image, patches
    form = make_form(operands[0], operands[1], turned, (windows[0], windows[1]), ())
    large = dense_cases._enlarge(form, dense_cases.EXTREME)
    for at in (0, 1):
        drawn = dense_cases._draw_edges(large, at)
        matrix = drawn.reshape(large.matrix(at).shape)
        along = matrix if large.is_turned(at) == (at == 1) else matrix.T
        assert (along == along[:, :1]).all()
        assert set(along[:, 0].tolist()) == set(dense_cases.EDGES)
    assert large.terms(0) == large.terms(1)
    assert gemm.LONGEST_SUM - 64 <= large.terms(0) <= gemm.LONGEST_SUM


# --- what is too large


def make_convolution(side: int, image: int = 1, outputs: int = 2, channels: int = 1) -> Step:
    """Windows as large as they come: the image is in all of them."""

    def emit(b: GraphBuilder, x: Ref, w: Ref) -> tuple[Ref, Mapping[str, Ref]]:
        pixels = b.emit("normalize", "n", (x,), multiplier=1, offset=-128, shift=0, exponent=0)
        attrs: Attrs = {"kernel": (side, side), "strides": (1, 1), "pads": (side - 1,) * 4}
        patches = b.emit("im2col", "patches", (pixels,), **attrs)
        product = b.emit(
            "matmul", "m", (patches, b.rescale("w16", w, 8)), transpose_a=0, transpose_b=1
        )
        return b.rescale("r", product, 0), {}

    return make_step_of((image, image, channels), (outputs, side * side * channels), 24, emit)


@pytest.mark.parametrize("side", [8, 32, 64, 100, 180])
def test_windows_of_any_size_have_small_cases_or_none(side: int) -> None:
    """And no case has more memory than a device can spare, nor is an error."""
    program = Program(make_convolution(side).graph)
    [found] = dense.find_products(program, may_turn=dense_cases.can_be_tried)
    chosen = Kernels(HostDevice(), large=True, least_products=0)
    if side > 64:
        assert not dense_cases.can_be_tried(found)
        with pytest.warns(KernelWarning, match="product m has windows too large for the self-che"):
            assert chosen._find_products(program) == []
        assert chosen._find_products(program) == []
        return
    assert chosen._find_products(program) == [found]
    for subject in chosen.product_subjects([found.form]):
        for case in subject.cases(0):
            nbytes = sum(given.nbytes for given in case.inputs.values())
            assert nbytes + sum(case.sizes.values()) < 2**28


def test_products_that_cannot_be_tried_are_done_by_readable_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dense_cases, "MOST_PATCHES", 100)
    step, device = make_convolution(3, image=4), HostDevice()
    chosen = Kernels(device, least_products=0)
    with pytest.warns(KernelWarning) as caught:
        session = CudaSession(step.graph, step.samples, device=device, kernels=chosen)
    assert len(caught) == 1
    used = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    assert {"im2col", "matmul"} <= used
    assert not any(name.startswith(gemm.MULTIPLYING) for name in used)
    law = open_law(step)
    session.load_state(step.state)
    for _ in range(2):
        assert session.step() == law.step()
    session.close()
    device.close()


def test_gradients_that_cannot_be_tried_are_scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(make_step("cnn", batch=4).graph)
    assert any(
        found.turn is not None
        for found in dense.find_products(program, may_turn=dense_cases.can_be_tried)
    )
    monkeypatch.setattr(
        dense_cases, "turn_cases", lambda found: dense_cases._shrink_image(found.form, 0, 1, 1)
    )
    monkeypatch.setattr(dense_cases, "MOST_PATCHES", 1)
    assert all(
        found.turn is None
        for found in dense.find_products(program, may_turn=dense_cases.can_be_tried)
    )


@pytest.mark.parametrize("kernel", [(3, 3), (48, 48), (120, 120)])
@pytest.mark.parametrize("is_padded", [False, True])
def test_kernels_of_any_size_are_turned_in_small_cases_or_none(
    kernel: tuple[int, int], is_padded: bool
) -> None:
    """Without padding of the image, that of its gradient is the widest."""
    pads = tuple(extent - 1 for extent in kernel) * 2 if is_padded else (0, 0, 0, 0)
    try:
        cases = list(dense_cases.turn_cases(make_gradient(kernel, pads)))
    except GraphError:
        assert kernel == (120, 120)
        return
    for case in cases:
        nbytes = sum(given.nbytes for given in case.inputs.values())
        assert nbytes + sum(case.sizes.values()) < 2**30


def test_a_case_that_cannot_be_made_is_no_crash(host_device: HostDevice) -> None:
    def refuse(seed: int) -> Iterator[Case]:
        raise GraphError("has too many patches")

    checker = Checker(host_device, key="", folder=None)
    with pytest.warns(KernelWarning, match="kernel matmul_x is not tried"):
        assert checker.check([Subject("matmul_x", refuse, {})]) == {"matmul_x"}


@pytest.mark.parametrize(("columns", "is_chained"), [(2**32 - 1, True), (2**32, False)])
def test_rows_that_32_bits_cannot_count_are_in_no_chain(columns: int, is_chained: bool) -> None:
    wide = TensorType("i16", (1, columns), 0, 0, 0)
    program = Program(make_step("mlp").graph)
    index = next(i for i, node in enumerate(program.graph.nodes) if node.op == "sub_one_hot")
    node = replace(program.graph.nodes[index], outputs=(wide,))
    nodes = (*program.graph.nodes[:index], node, *program.graph.nodes[index + 1 :])
    large = Program(replace(program.graph, nodes=nodes))
    chained = {node for chain in fuse.find_chains(large, frozenset()) for node in chain}
    assert (index in chained) is is_chained


# --- verdicts


class Counting(HostDevice):
    launches = 0

    def launch(self, call: Call) -> None:
        self.launches += 1
        super().launch(call)


def nest(path: Path) -> None:
    path.write_text("[" * 200_000)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def bloat(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" " * 2**22)


@pytest.mark.parametrize("spoil", [nest, replace_by_pipe, replace_by_folder, bloat])
def test_what_is_no_file_of_verdicts_is_none(
    spoil: Callable[[Path], None], verdicts: Path, tmp_path: Path
) -> None:
    device, program = Counting(), Program(make_step("mlp").graph)
    Kernels(device, folder=tmp_path).plan_step(program)
    assert device.launches == 0
    spoil(verdicts)
    Kernels(device, folder=tmp_path).plan_step(program)
    assert device.launches > 0
    assert [other.name for other in tmp_path.iterdir()] == [verdicts.name]


@pytest.mark.parametrize("module", ["gemm.py", "lower/softmax.py"])
def test_other_launch_code_is_tried_anew(
    module: str, verdicts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, copy = sources.compute_launch_hash(), tmp_path / "copy"
    shutil.copytree(sources.PACKAGE, copy, ignore=shutil.ignore_patterns("reference_kernels"))
    monkeypatch.setattr(sources, "PACKAGE", copy)
    assert sources.compute_launch_hash() == before
    program, device = Program(make_step("mlp").graph), Counting()
    Kernels(device, folder=tmp_path).plan_step(program)
    assert device.launches == 0
    with (copy / module).open("a") as file:
        file.write("# another way\n")
    Kernels(device, folder=tmp_path).plan_step(program)
    assert device.launches > 0


def test_small_cases_are_no_verdict_on_large_ones(verdicts: Path, tmp_path: Path) -> None:
    assert Kernels(HostDevice(), folder=tmp_path)._checker._passed != set()
    chosen = Kernels(HostDevice(), folder=tmp_path, large=True)
    assert chosen._checker._passed == set()


def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fill)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "x", b"bytes")
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_half_written_is_deleted(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in (".part-a", ".part-b", ".other"))
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other", ".part-b"]


def test_a_run_checks_with_its_step_for_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def note(self: Kernels, program: Program, *, split: bool, seed: int) -> bool:
        seeds.append(seed)
        return False

    monkeypatch.setattr(Kernels, "check_again", note)
    step, device = make_step("mlp"), HostDevice()
    session = CudaSession(step.graph, step.samples, device=device, check_every=2)
    session.load_state(step.state)
    for _ in range(7):
        session.step()
    assert seeds == [2, 4, 6]
    session.close()
    device.close()


def test_a_chain_that_passed_has_not_with_other_numbers() -> None:
    program = Program(make_step("mlp").graph)
    chain = next(chain for chain in find_groups(program) if chain.numbers)
    other = replace(chain, numbers=(*chain.numbers[:-1], chain.numbers[-1] + 60))
    names = {_chain_subject(program, one, "", False).name for one in (chain, chain, other)}
    assert len(names) == 2


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.filterwarnings("error::vtrain.engines.cuda.selfcheck.KernelWarning")
def test_a_session_passes_all_large_cases(tmp_path: Path) -> None:
    """Of products of few rows, which are those that a CPU does in seconds."""
    device, program = HostDevice(architecture="sm_90a"), Program(make_step("mlp", batch=4).graph)
    chosen = Kernels(device, large=True, least_products=0, folder=tmp_path)
    plan = chosen.plan_step(program)
    used = {launch.kernel for job in plan.jobs for launch in job.launches}
    assert any(name.startswith("matmul_wgmma") for name in used)
    assert chosen.disabled == frozenset()
    device.close()
