"""Which kernels serve on a device: the fast ones that agree with their readable twins there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from vtrain._core import __version__
from vtrain.engines.cuda import sources
from vtrain.engines.cuda.dense import (
    Form,
    PlanProduct,
    as_node,
    describe,
    find_absorbed,
    find_products,
    finish_cases,
    long_case,
    small_case,
    whole_case,
)
from vtrain.engines.cuda.device import Device
from vtrain.engines.cuda.fuse import (
    Chain,
    name_source,
    render_source,
)
from vtrain.engines.cuda.gemm import FINISH, LEAST_PRODUCTS, plan_matmul
from vtrain.engines.cuda.launch import Launch
from vtrain.engines.cuda.lower_rows import FAST
from vtrain.engines.cuda.lowering import lower
from vtrain.engines.cuda.plan import Job, Plan, find_groups, plan_fused, plan_unfused
from vtrain.engines.cuda.program import HASHES, Program
from vtrain.engines.cuda.selfcheck import (
    Case,
    Checker,
    Subject,
    chain_cases,
    digests_case,
    make_kind,
    node_case,
)
from vtrain.wire.graph import Attrs, Node, TensorType

_Case = tuple[Attrs, tuple[TensorType, ...], TensorType]


def _type(dtype: str, *shape: int) -> TensorType:
    return TensorType(dtype, shape, 0, 0, 0)


def _row_cases(dtype: str) -> list[_Case]:
    sizes = [(5, 9), (37, 33), (3, 1000), (2, 4096), (3, 5001)]
    return [({}, (_type("i32", *size),), _type(dtype, size[0])) for size in sizes]


def _sum_cases() -> list[_Case]:
    return [
        ({}, (_type(dtype, size),), _type("i64"))
        for dtype in ("i16", "i32", "i64")
        for size in (1, 255, 4097, 70_001)
    ]


CASES: dict[str, list[_Case]] = {
    "row_max": _row_cases("i32"),
    "row_sum": _row_cases("i64"),
    "sum": _sum_cases(),
    "largest": _sum_cases(),
    "column_sum": [
        ({}, (_type(dtype, *size),), _type("i64", size[1]))
        for dtype in ("i16", "i64")
        for size in ((1, 1), (33, 31), (511, 5), (1000, 40), (17_000, 2))
    ],
    "square_sum": [
        ({"shift": shift}, (_type("i16", size),), _type("i64"))
        for size, shift in ((1, 0), (300, 14), (4097, -2), (70_001, 40))
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

DIGEST_KERNELS = frozenset({"digest_chunks", "digest_trees", "state_leaves", "state_root_levels"})
"""Kernels that digest several tensors at once, and make a state's root of their digests."""
SHARED_SIZES = (300, 1, 12_345)
"""Elements of the tensors that are tried in launches that they share."""

MULTIPLYING = ("matmul_mma", "matmul_wgmma")
"""How the names of kernels that multiply begin."""
MANY_PROCESSORS = 1 << 20
"""On a device of so many, every sum that is long enough is one of several blocks."""


class Kernels:
    """The choice of kernels for sessions on ``device``; ``fast`` = False takes readable ones alone.

    Verdicts of the self-check are kept in ``folder`` (None: not kept).  Each failure is a
    :class:`vtrain.engines.cuda.selfcheck.KernelWarning`.
    """

    def __init__(
        self,
        device: Device,
        *,
        fast: bool = True,
        folder: Path | None = None,
        least_products: int = LEAST_PRODUCTS,
    ) -> None:
        self._device, self._fast = device, fast
        self._least_products = least_products
        self._checker = Checker(
            device, key=f"{sources.compute_hash()} {__version__}", folder=folder
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

    def check_again(self, program: Program, *, split: bool = False) -> bool:
        """Try all fast kernels anew; whether one failed that served until now."""
        return self._fast and bool(self._checker.check(self._subjects(program, split), again=True))

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
        if node.op == "matmul":
            a, b = inputs
            form = Form(node, (a, b), (None, None), ())
            while self._checker.check(self._product_subjects([form])):
                continue
            launches = form.plan(self._plan_product())
            return lower(node, inputs) if launches is None else as_node(launches)
        if node.op in FAST:
            self._checker.check(_node_subjects(node.op))
        return self.serve(node, inputs)

    def _plan_product(
        self, *, least_products: int | None = None, processors: int | None = None
    ) -> PlanProduct:
        info = self._device.info
        return partial(
            plan_matmul,
            architecture=info.architecture,
            processors=info.processors if processors is None else processors,
            disabled=self.disabled,
            least_products=self._least_products if least_products is None else least_products,
        )

    def _plan_dense(self, program: Program) -> list[Job]:
        plan = self._plan_product()
        jobs = [product.make_job(plan) for product in find_products(program)]
        return [job for job in jobs if job is not None]

    def _subjects(self, program: Program, split: bool) -> Iterator[Subject]:
        ops = sorted({node.op for node in program.graph.nodes} & FAST.keys())
        for op in ops:
            yield from _node_subjects(op)
        yield from self._product_subjects(product.form for product in find_products(program))
        taken = {node for job in self._plan_dense(program) for node in job.nodes}
        chains = {chain.name: chain for chain in find_groups(program, taken, split=split)}
        text = render_source(list(chains.values()))
        for name in sorted(chains):
            yield _chain_subject(program, chains[name], text)

    def _product_subjects(self, forms: Iterable[Form]) -> Iterator[Subject]:
        """The kernels that multiply, once for every kind of product that they do."""
        found: dict[tuple[str, str], Form] = {}
        finishes = False
        for form in forms:
            launches = form.plan(self._plan_product()) or ()
            for launch in launches:
                finishes |= launch.kernel == FINISH
                if launch.kernel.startswith(MULTIPLYING):
                    kind = make_kind(describe(form, launches))
                    found.setdefault((launch.kernel, kind), form)
        if finishes:
            yield Subject(FINISH, finish_cases, {})
        plan = self._plan_product(least_products=0)
        whole_plan = self._plan_product(least_products=0, processors=1)
        long_plan = self._plan_product(least_products=0, processors=MANY_PROCESSORS)
        for (kernel, kind), form in found.items():
            cases = partial(_product_cases, form, plan, whole_plan, long_plan)
            yield Subject(kernel, cases, {}, kind)


def _product_cases(
    form: Form, plan: PlanProduct, whole_plan: PlanProduct, long_plan: PlanProduct
) -> Iterator[Case]:
    """A form in tiles of which none is whole, in whole ones, and with sums that several blocks add
    up."""
    cases = small_case(form, plan), whole_case(form, whole_plan), long_case(form, long_plan)
    yield from (case for case in cases if case is not None)


def _node_subjects(op: str) -> Iterator[Subject]:
    """The fast kernels of an operator, each with the cases that launch it."""
    by_kernel: dict[str, list[tuple[int, _Case]]] = {}
    for seed, (attrs, inputs, output) in enumerate(CASES[op]):
        node = Node("case", op, attrs, (), (output,))
        readable = {launch.kernel for launch in lower(node, inputs)}
        for launch in FAST[op](node, inputs):
            if launch.kernel not in readable:
                by_kernel.setdefault(launch.kernel, []).append((seed, (attrs, inputs, output)))
    for kernel, cases in by_kernel.items():
        # Several operators have kernels in common.
        yield Subject(kernel, partial(_node_cases, op, dict(cases)), {}, op)


def _node_cases(op: str, cases: Mapping[int, _Case]) -> Iterator[Case]:
    for seed, (attrs, inputs, output) in cases.items():
        yield node_case(op, attrs, inputs, output, FAST[op], seed)
    if op == "tensor_digest":
        yield digests_case(SHARED_SIZES)


def _chain_subject(program: Program, chain: Chain, text: str) -> Subject:
    file = name_source(text)
    return Subject(chain.name, lambda: chain_cases(program, chain, file), {file: text})
