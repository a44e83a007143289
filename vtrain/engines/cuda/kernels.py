"""Which kernels serve on a device: the fast ones that agree with their readable twins there."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from vtrain._core import __version__
from vtrain.engines.cuda import sources
from vtrain.engines.cuda.dense import (
    TURN,
    Form,
    PlanProduct,
    Product,
    as_node,
    find_absorbed,
    find_products,
)
from vtrain.engines.cuda.dense_cases import (
    can_be_tried,
    describe,
    describe_way,
    finish_cases,
    large_cases,
    long_case,
    small_case,
    turn_cases,
    whole_case,
)
from vtrain.engines.cuda.device import Device
from vtrain.engines.cuda.fuse import (
    Chain,
    name_source,
    render_source,
)
from vtrain.engines.cuda.gemm import FINISH, LEAST_PRODUCTS, Choice, find_choice, plan_matmul
from vtrain.engines.cuda.launch import Launch
from vtrain.engines.cuda.lowering import FAST, lower
from vtrain.engines.cuda.plan import Job, Plan, find_groups, plan_fused, plan_unfused
from vtrain.engines.cuda.program import Program
from vtrain.engines.cuda.selfcheck import (
    CHAIN_SHAPES,
    FULL_CHAIN_SHAPES,
    Case,
    Checker,
    Clock,
    KernelWarning,
    Progress,
    Subject,
    chain_cases,
    digests_case,
    make_kind,
    node_case,
    peaked_values,
)
from vtrain.graph.values import HASHES, PRODUCTS
from vtrain.wire.graph import Attrs, Node, TensorType

_Case = tuple[Attrs, tuple[TensorType, ...], TensorType]


def _type(dtype: str, *shape: int) -> TensorType:
    return TensorType(dtype, shape, 0, 0, 0)


def _row_cases(dtype: str) -> list[_Case]:
    return _row_cases_of(dtype, (5, 9), (37, 33), (3, 1000), (2, 4096), (3, 9001))


def _row_cases_of(dtype: str, *sizes: tuple[int, int]) -> list[_Case]:
    return [({}, (_type("i32", *size),), _type(dtype, size[0])) for size in sizes]


def _sum_cases() -> list[_Case]:
    return [
        ({}, (_type(dtype, size),), _type("i64"))
        for dtype in ("i16", "i32", "i64")
        for size in (1, 255, 4097, 70_001)
    ]


def _transpose_case(dtype: str, shape: tuple[int, ...], perm: tuple[int, ...]) -> _Case:
    turned = tuple(shape[axis] for axis in perm)
    return ({"perm": perm}, (_type(dtype, *shape),), _type(dtype, *turned))


def _grad_cases(*sizes: tuple[int, int]) -> list[_Case]:
    return [({}, (_type("i16", *size),) * 2, _type("i64", *size)) for size in sizes]


CASES: dict[str, list[_Case]] = {
    "row_max": _row_cases("i32"),
    "row_sum": _row_cases("i64"),
    "sum": _sum_cases(),
    "largest": _sum_cases(),
    "scatter_add": [
        ({}, (_type(dtype, ids, columns), _type(of_id, ids)), _type("i64", rows, columns))
        for dtype, of_id in (("i16", "i32"), ("i32", "u8"), ("i64", "i16"))
        for ids, rows, columns in ((1, 1, 1), (37, 5, 9), (1000, 200, 33))
    ],
    "transpose": [
        _transpose_case(*case)
        for case in (
            ("u8", (3, 5, 7), (2, 1, 0)),
            ("i16", (37, 33), (1, 0)),
            ("i16", (3, 7, 5, 2), (0, 2, 1, 3)),
            ("i16", (2, 9, 3, 4), (0, 2, 1, 3)),
            ("i16", (2, 70, 3, 8), (0, 2, 1, 3)),
            ("i32", (2, 3, 5, 6, 1), (4, 3, 0, 2, 1)),
            ("i64", (3, 65, 2, 8), (2, 0, 1, 3)),
            ("i64", (5, 3, 67), (1, 2, 0)),
            ("i8", (4, 1, 9), (0, 1, 2)),
        )
    ],
    "softmax_grad": _grad_cases((1, 1), (5, 9), (37, 33), (3, 1000), (9, 40)),
    "column_sum": [
        ({}, (_type(dtype, *size),), _type("i64", size[1]))
        for dtype in ("i16", "i64")
        for size in ((1, 1), (33, 31), (511, 5), (1000, 40), (17_000, 2), (600, 130))
    ],
    "square_sum": [
        ({"shift": shift}, (_type("i16", size),), _type("i64"))
        for size, shift in ((1, 0), (300, 14), (4097, -2), (70_001, 40))
    ],
    "center": [
        ({"shift": shift}, (_type("i16", *size),), _type("i32", *size))
        for size, shift in (((5, 9), 0), ((2, 3, 33), 2), ((7, 257), 9))
    ],
    "row_dot": [
        ({}, (_type(a, *size), _type(b, *size)), _type("i64", *size[:-1]))
        for a, b in (("i16", "i16"), ("i32", "u8"))
        for size in ((5, 9), (2, 3, 33), (37, 1000))
    ],
    "tensor_digest": [
        ({}, (_type("i32", size),), _type("u8", 32))
        for size in (1, 255, 256, 257, 512, 769, 12_345, 256 * 1024, 256 * 1024 + 1, 300_000)
    ],
    "state_leaf": [
        (
            {"name": name, "dtype": "i32", "shape": (3, 70_000), "exponent": exponent},
            (_type("u8", 32),),
            _type("u8", 32),
        )
        for name, exponent in (("w", 24), ("x" * 300, -7), ("y" * 1200, 500))
    ],
    "state_root": [
        ({}, (_type("u8", 32),) * count, _type("u8", 32)) for count in (1, 2, 3, 8, 9, 17, 300)
    ],
}
"""Attributes, inputs and output of the nodes that fast kernels of single nodes are tried on."""

_PARTS = 4_200_001
"""Elements of which 1024 blocks, the most there are, leave parts."""
LARGE_CASES: dict[str, list[_Case]] = {
    "row_max": _row_cases_of("i32", (3, 200_003), (40_001, 33), (40_001, 36)),
    "row_sum": _row_cases_of("i64", (3, 200_003), (40_001, 33), (40_001, 36)),
    "sum": [({}, (_type("i32", _PARTS),), _type("i64"))],
    "largest": [({}, (_type("i32", _PARTS),), _type("i64"))],
    "square_sum": [({"shift": 20}, (_type("i16", _PARTS),), _type("i64"))],
    "scatter_add": [({}, (_type("i16", 40_001, 70), _type("u8", 40_001)), _type("i64", 300, 70))],
    "softmax_grad": _grad_cases((40_001, 33), (300, 4001), (40_001, 72)),
    "transpose": [
        _transpose_case("i16", (3, 1031, 5, 64), (0, 2, 1, 3)),
        _transpose_case("i32", (70_001, 33), (1, 0)),
    ],
    "column_sum": [
        ({}, (_type(dtype, *size),), _type("i64", size[1]))
        for dtype, size in (("i64", (16_500, 200)), ("i16", (40, 70_001)))
    ],
}
"""More of them where kernels are fast."""

DIGEST_KERNELS = frozenset({"digest_chunks", "digest_trees", "state_leaves", "state_root_levels"})
"""Kernels that digest several tensors at once, and make a state's root of their digests."""
SHARED_SIZES = (300, 1, 12_345)
"""Elements of the tensors that are tried in launches that they share."""

MANY_PROCESSORS = 1 << 20
"""On a device of so many, every sum that is long enough is one of several blocks."""


class Kernels:
    """The choice of kernels for sessions on ``device``; ``fast`` = False takes readable ones alone.

    ``large``: the self-check has its large cases too; None: unless the device is emulated.
    Verdicts of the self-check are kept in ``folder`` (None: not kept).  Each failure is a
    :class:`vtrain.engines.cuda.selfcheck.KernelWarning`; KernelError where a kernel fails that
    nothing can replace, or that leaves the device unusable to this process.
    """

    def __init__(
        self,
        device: Device,
        *,
        fast: bool = True,
        large: bool | None = None,
        folder: Path | None = None,
        least_products: int = LEAST_PRODUCTS,
        clock: Clock | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._device, self._fast = device, fast
        self._least_products = least_products
        self._large = not device.info.emulated if large is None else large
        self._untried: set[str] = set()
        sizes = "large" if self._large else "small"
        self._checker = Checker(
            device,
            key=" ".join(
                (sources.compute_hash(), sources.compute_launch_hash(), __version__, sizes)
            ),
            folder=folder,
            clock=clock,
            progress=progress,
        )

    @property
    def disabled(self) -> frozenset[str]:
        """Fast kernels that failed the self-check."""
        return self._checker.disabled

    def plan_step(self, program: Program, *, split: bool = False) -> Plan:
        """What a step runs, of kernels that passed."""
        if not self._fast:
            return plan_fused(program, lower, fuse=False, split=split)
        # A kernel that fails has another in its place, which has to pass as well.
        while self._checker.check(self._subjects(program, split)):
            continue
        dense = self._plan_dense(program)
        return plan_fused(
            program,
            self.serve,
            dense=dense,
            absorbed=find_absorbed(program, dense),
            disabled=self.disabled,
            merge_digests=self.disabled.isdisjoint(DIGEST_KERNELS),
            split=split,
        )

    def plan_trace(self, program: Program) -> Plan:
        """What a trace runs: readable kernels, but for hashes: those are one thread's work."""
        return plan_unfused(program, self._lower_trace, self._lower_trace)

    def _lower_trace(self, node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
        fast = self._fast and node.op in HASHES
        return self.serve(node, inputs) if fast else lower(node, inputs)

    def check_again(self, program: Program, *, split: bool = False, seed: int = 0) -> bool:
        """Try all fast kernels anew, on inputs drawn with ``seed``; whether one failed that served
        until now."""
        if not self._fast:
            return False
        subjects = self._subjects(program, split)
        return bool(self._checker.check(subjects, again=True, seed=seed))

    def serve(self, node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
        """Launches of one node by itself: fast ones if there are and none of them failed."""
        if node.op in FAST:
            launches = FAST[node.op](node, inputs)
            if self.disabled.isdisjoint(launch.kernel for launch in launches):
                return launches
        return lower(node, inputs)

    def serve_checked(self, node: Node, inputs: Sequence[TensorType]) -> tuple[Launch, ...]:
        """What :meth:`serve` gives, and products too, for a node of no program: its fast kernels
        are tried first."""
        if not self._fast:
            return lower(node, inputs)
        if node.op in PRODUCTS:
            a, b = inputs
            form = Form(node, (a, b), (None, None), ())
            while self._checker.check(self.product_subjects([form])):
                continue
            launches = form.plan(self._plan_product())
            return lower(node, inputs) if launches is None else as_node(launches)
        if node.op in FAST:
            self._checker.check(_node_subjects(node.op, self._large))
        return self.serve(node, inputs)

    def _plan_product(
        self,
        *,
        least_products: int | None = None,
        processors: int | None = None,
        choice: Choice | None = None,
    ) -> PlanProduct:
        info = self._device.info
        return partial(
            plan_matmul,
            architecture=info.architecture,
            processors=info.processors if processors is None else processors,
            disabled=self.disabled,
            least_products=self._least_products if least_products is None else least_products,
            choice=choice,
        )

    def _plan_dense(self, program: Program) -> list[Job]:
        plan = self._plan_product()
        jobs = [product.make_job(plan) for product in self._find_products(program)]
        return [job for job in jobs if job is not None]

    def _find_products(self, program: Program) -> list[Product]:
        """Those that small products can show to be right; readable kernels do others."""
        turns = TURN not in self.disabled
        found = find_products(
            program,
            may_turn=lambda found: turns and can_be_tried(found),
            may_reorder="transpose_units" not in self.disabled,
        )
        for product in found:
            name = product.form.matmul.name
            if not can_be_tried(product) and name not in self._untried:
                self._untried.add(name)
                warnings.warn(
                    f"product {name} has windows too large for the self-check: "
                    "readable kernels do it",
                    KernelWarning,
                    stacklevel=2,
                )
        return [product for product in found if can_be_tried(product)]

    def _subjects(self, program: Program, split: bool) -> Iterator[Subject]:
        ops = sorted({node.op for node in program.graph.nodes} & FAST.keys())
        for op in ops:
            yield from _node_subjects(op, self._large)
        products = self._find_products(program)
        yield from self.product_subjects(product.form for product in products)
        plan = self._plan_product()
        yield from _turn_subjects(p for p in products if p.form.plan(plan) is not None)
        taken = {node for job in self._plan_dense(program) for node in job.nodes}
        chains = find_groups(program, taken, split=split)
        text = render_source(chains)
        # Numbers are arguments of a kernel, and some of them its branches: shifts, for one.
        uses = {(chain.name, chain.numbers): chain for chain in chains}
        for use in sorted(uses):
            yield _chain_subject(program, uses[use], text, self._large)

    def product_subjects(self, forms: Iterable[Form]) -> Iterator[Subject]:
        """The kernels that multiply, once for every kind of product that they do."""
        found: dict[tuple[str, str], tuple[Form, Choice]] = {}
        ways: dict[tuple[str, str], tuple[Form, Choice]] = {}
        finishes = False
        for form in forms:
            launches = form.plan(self._plan_product())
            if launches is None:
                continue
            finishes |= any(launch.kernel == FINISH for launch in launches)
            choice = find_choice(launches)
            kind = make_kind((describe(form, launches), choice.is_turned))
            found.setdefault((choice.kernel, kind), (form, choice))
            way = make_kind(("large", describe_way(form, launches), choice.is_turned))
            ways.setdefault((choice.kernel, way), (form, choice))
        if finishes:
            yield Subject(FINISH, partial(finish_cases, self._large), {})
        for (kernel, kind), (form, choice) in found.items():
            yield Subject(kernel, partial(self._product_cases, form, choice), {}, kind)
        for (kernel, kind), (form, choice) in ways.items() if self._large else ():
            yield Subject(kernel, partial(self._large_cases, form, choice), {}, kind)

    def _large_cases(self, form: Form, choice: Choice, seed: int) -> Iterator[Case]:
        """A product of the form's way in sizes that its own kind leaves out."""
        plan = partial(self._plan_product, least_products=0, choice=choice)
        yield from large_cases(form, plan(processors=1), plan(processors=MANY_PROCESSORS), seed)

    def _product_cases(self, form: Form, choice: Choice, seed: int) -> Iterator[Case]:
        """A form in tiles of which none is whole, in whole ones, and with sums that several blocks
        add up: all as the product itself is done, which may not be how small ones are."""
        cases = (
            small_case(form, self._plan_product(least_products=0, choice=choice), seed),
            whole_case(
                form, self._plan_product(least_products=0, processors=1, choice=choice), seed
            ),
            long_case(
                form,
                self._plan_product(least_products=0, processors=MANY_PROCESSORS, choice=choice),
                seed,
            ),
        )
        yield from (case for case in cases if case is not None)


def _turn_subjects(products: Iterable[Product]) -> Iterator[Subject]:
    """What turns the kernels of convolutions, for every dtype and window."""
    turned = {
        make_kind((product.turn.dtype, product.form.windows[0].attrs)): product
        for product in products
        if product.turn is not None and product.form.windows[0] is not None
    }
    for kind, product in turned.items():
        yield Subject(TURN, partial(turn_cases, product), {}, kind)


def _node_subjects(op: str, large: bool) -> Iterator[Subject]:
    """The fast kernels of an operator, each with the cases that launch it."""
    by_kernel: dict[str, list[tuple[int, _Case]]] = {}
    tried = [*CASES[op], *(LARGE_CASES.get(op, ()) if large else ())]
    for seed, (attrs, inputs, output) in enumerate(tried):
        node = Node("case", op, attrs, (), (output,))
        readable = {launch.kernel for launch in lower(node, inputs)}
        for launch in FAST[op](node, inputs):
            if launch.kernel not in readable:
                by_kernel.setdefault(launch.kernel, []).append((seed, (attrs, inputs, output)))
    for kernel, cases in by_kernel.items():
        # Several operators have kernels in common.
        yield Subject(kernel, partial(_node_cases, op, dict(cases)), {}, op)


def _node_cases(op: str, cases: Mapping[int, _Case], seed: int) -> Iterator[Case]:
    for own_seed, (attrs, inputs, output) in cases.items():
        yield node_case(op, attrs, inputs, output, FAST[op], seed + own_seed)
        if op in ("row_max", "largest"):
            yield node_case(op, attrs, inputs, output, FAST[op], seed + own_seed, peaked_values)
    if op == "tensor_digest":
        yield digests_case(SHARED_SIZES, seed)


def _chain_subject(program: Program, chain: Chain, text: str, large: bool) -> Subject:
    file, shapes = name_source(text), FULL_CHAIN_SHAPES if large else CHAIN_SHAPES
    cases = partial(chain_cases, program, chain, file, shapes)
    return Subject(chain.name, cases, {file: text}, make_kind(chain.numbers))
