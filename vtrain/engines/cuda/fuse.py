"""Which pointwise nodes are done together, and the text of the kernel that does them.

A chain is a set of pointwise nodes of one size.  Its kernel keeps what lies between them in
registers: each node's ``NAME_value`` function from ``reference_kernels/NAME.cu``, the same that the
readable kernel calls, so that there is one place for the arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final, Literal

from vtrain.engines.cuda.launch import THREADS
from vtrain.engines.cuda.lower.lookup import number_of
from vtrain.engines.cuda.program import Program
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int

WIDTH: Final = 4
"""Neighbouring elements that a thread does."""
MOST_OPERANDS: Final = 24
"""Most pointers of a chain: more would not fit the registers."""

_TYPES: Final = {"u8": "u8", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64"}

_SHIFTS: Final = ((-63, -1), (1, 63))
_RANGES: Final[Mapping[str, tuple[tuple[int, int], ...]]] = {
    **dict.fromkeys(("shift", "shift_a", "shift_b"), _SHIFTS),
    "multiplier": ((1, 2**31 - 1),),
}
"""Ranges of attributes that make a difference to the instructions which they need."""

COLUMN: Final = "column"
COLUMNS: Final = "columns"
"""In a function's parameters: the place in the row, and the length of a row."""
TOTAL: Final = "total"
"""In a function's parameters: a sum over the row, which a launch before the chain's leaves."""

Reach = Literal["same", "column", "row", "span", "one"]
"""Which element of an operand goes with element i of rows of n: i, i % n, i / n, 0.  Of a list of m
spans it is span i / n % m, the begin and the end."""
_OF_ROW: Final = frozenset({"row", "span"})


@dataclass(frozen=True)
class Pointwise:
    """How a node becomes a call of ``NAME_value``: its operands' reach and its integers.

    The function's parameters are ``order``: an operand by its position, an attribute by its name.
    With ``quick`` it is ``NAME_quick`` that is called, which gives the same in fewer instructions;
    operands of a row in ``divisors`` are given to it as a Divisor (``division.cuh``).
    """

    order: tuple[int | str, ...]
    reach: tuple[Reach, ...] = ("same",)
    quick: bool = False
    divisors: tuple[int, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Does it tell rows, or places in a row, apart?"""
        return TOTAL in self.order or bool({"column", *_OF_ROW} & {*self.reach})


POINTWISE: Final[Mapping[str, Pointwise]] = {
    "normalize": Pointwise((0, "multiplier", "offset", "shift")),
    "rescale": Pointwise((0, "multiplier", "shift")),
    "add": Pointwise((0, "shift_a", 1, "shift_b"), ("same", "same")),
    "sub": Pointwise((0, "shift_a", 1, "shift_b"), ("same", "same")),
    "mul": Pointwise((0, 1), ("same", "same")),
    "add_bias": Pointwise((0, 1, "shift"), ("same", "column")),
    "relu": Pointwise((0,)),
    "look_up": Pointwise((0, "table", "shift")),
    "relu_grad": Pointwise((0, 1), ("same", "same")),
    "inverse_root": Pointwise((0, "epsilon", "lift", "numerator")),
    "row_scale": Pointwise((0, 1), ("same", "row")),
    "column_scale": Pointwise((0, 1), ("same", "column")),
    "momentum": Pointwise((0, 1, "decay", "shift"), ("same", "same")),
    "sgd_update": Pointwise((0, 1, 2, "shift"), ("same", "same", "one")),
    "sign": Pointwise((0,)),
    "capped_square": Pointwise((0, "shift", "bits")),
    "scale_by": Pointwise((0, 1, "shift"), ("same", "one")),
    "adam_mean": Pointwise((0, 1, "lift", "rate", "shift"), ("same", "same")),
    "adam_square": Pointwise((0, 1, "rate", "shift"), ("same", "same")),
    "adam_direction": Pointwise((0, 1, "shift", "epsilon"), ("same", "same"), quick=True),
    "increment": Pointwise((0,)),
    "exp2_diff": Pointwise((0, 1), ("same", "row")),
    "keep_span": Pointwise((0, 1, COLUMN, "fill"), ("same", "span")),
    "divide": Pointwise((0, 1), ("same", "row"), quick=True, divisors=(1,)),
    "softmax_grad": Pointwise((0, 1, TOTAL), ("same", "same")),
    "sub_one_hot": Pointwise((0, 1, COLUMN, COLUMNS), ("same", "row")),
    "logit_grad": Pointwise(
        (0, 1, 2, COLUMN, COLUMNS), ("same", "row", "row"), quick=True, divisors=(1,)
    ),
}
"""Operators that a chain may hold."""


@dataclass(frozen=True)
class Chain:
    """A kernel for ``nodes`` (ascending) and what it is launched with.

    ``text`` defines the kernel ``name``, which is a digest of it: nodes of like structure share a
    kernel, since attributes and sizes are arguments, but for what :func:`_put_number` says of them.
    Arguments: the number of elements, the length of a row (1 where nobody asks), the operands, the
    totals of rows, the numbers (how many spans each list of them has, then attributes), the
    results, the counters.  ``totals`` are the nodes that have a total.
    """

    nodes: tuple[int, ...]
    name: str
    text: str
    includes: tuple[str, ...]
    count: int
    columns: int
    operands: tuple[tuple[int, Reach], ...]
    totals: tuple[int, ...]
    numbers: tuple[int, ...]
    results: tuple[int, ...]
    counters: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return -(-self.count // (WIDTH * THREADS))

    def resize(self, rows: int, columns: int, spans: int) -> Chain:
        """The same kernel on as many elements, and spans where it reads some."""
        lists = sum(reach == "span" for _, reach in self.operands)
        numbers = (*(spans,) * lists, *self.numbers[lists:])
        return replace(self, count=rows * columns, columns=columns, numbers=numbers)


def find_chains(
    program: Program, taken: Set[int], *, barrier: Set[int] = frozenset()
) -> list[tuple[int, ...]]:
    """Groups of pointwise nodes that may be done in the place of the last of each, in order.

    Nodes in ``taken`` stay out.  A node in ``barrier`` begins a chain: it joins nobody before it.
    """
    groups: dict[int, list[int]] = {}
    group_of: dict[int, int] = {}
    for index, node in enumerate(program.graph.nodes):
        if node.op not in POINTWISE or index in taken or not _has_short_rows(program, index):
            continue
        found: list[int] = []
        if index not in barrier:
            near = _same_operands(program, index)
            found = sorted({group_of[value] for value in near if value in group_of})
        joined = next(
            (
                chosen
                for chosen in (found, *([group] for group in reversed(found)))
                if chosen and _may_join(program, [groups[g] for g in chosen], index)
            ),
            [],
        )
        members = sorted({index, *(node for group in joined for node in groups.pop(group))})
        groups[index] = members
        for member in members:
            group_of[member] = index
    return [tuple(members) for _, members in sorted(groups.items())]


def _same_operands(program: Program, index: int) -> list[int]:
    """Values that the node reads at its own index."""
    reach = POINTWISE[program.node(index).op].reach
    inputs = program.inputs[index]
    return [value for value, how in zip(inputs, reach, strict=True) if how == "same"]


def _may_join(program: Program, groups: Sequence[Sequence[int]], index: int) -> bool:
    members = {index, *(node for group in groups for node in group)}
    size, commits = program.type_of(index).size, index in program.commit_only
    columns = {_columns(program, member) for member in members} - {None}
    pointers = sum(len(program.inputs[member]) + 2 for member in members)
    return (
        len(columns) <= 1
        and pointers <= MOST_OPERANDS
        and all(
            program.type_of(member).size == size and (member in program.commit_only) == commits
            for member in members
        )
        # All are done in the place of the last: nobody else may need a result before that, nor may
        # one of them be read inside the chain at another element than its own, or before it.
        and all(
            reader in members or reader > index
            for member in members
            for reader in program.readers[member]
        )
        and all(
            value not in members
            for member in members
            for value, reach in _operands(program, member)
            if reach != "same" or TOTAL in POINTWISE[program.node(member).op].order
        )
    )


def _operands(program: Program, index: int) -> list[tuple[int, Reach]]:
    reach = POINTWISE[program.node(index).op].reach
    return list(zip(program.inputs[index], reach, strict=True))


def _columns(program: Program, index: int) -> int | None:
    """Length of the rows that the node tells apart, if it does."""
    has_rows = POINTWISE[program.node(index).op].has_rows
    return program.type_of(index).shape[-1] if has_rows else None


def _has_short_rows(program: Program, index: int) -> bool:
    """Chains divide by the length of a row in 32 bits; readable kernels have 64."""
    return (_columns(program, index) or 0) < 1 << 32


def make_chain(program: Program, nodes: Sequence[int]) -> Chain:
    """The kernel of ``nodes``, a group of :func:`find_chains`."""
    members = set(nodes)
    operands = tuple(
        dict.fromkeys(
            (value, reach)
            for node in nodes
            for value, reach in _operands(program, node)
            if value not in members
        )
    )
    results = tuple(
        node
        for node in nodes
        if node in program.kept or any(user not in members for user in program.readers[node])
    )
    counters = tuple(n for n in nodes if TABLE[program.node(n).op].unclamped is not None)
    rules = {node: POINTWISE[program.node(node).op] for node in nodes}
    totals = tuple(node for node, rule in rules.items() if TOTAL in rule.order)
    divisors = {
        operands.index((program.inputs[node][position], "row"))
        for node, rule in rules.items()
        for position in rule.divisors
    }
    columns = {_columns(program, node) for node in nodes} - {None}
    # A list of spans may have been made in another shape.
    numbers = [program.type_of(value).size // 2 for value, reach in operands if reach == "span"]
    known: list[str] = []
    lines: list[str] = []
    for at in range(len(nodes)):
        lines += _compute(program, nodes, at, operands, totals, counters, numbers, known)
    body = _Text(
        *(program, operands, len(totals), divisors, len(numbers), known, results, counters),
        *(tuple(nodes), lines),
    )
    text = body.render("CHAIN")
    name = f"chain_{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    return Chain(
        nodes=tuple(nodes),
        name=name,
        text=text.replace("CHAIN", name),
        includes=tuple(sorted({f"{program.node(node).op}.cu" for node in nodes})),
        count=program.type_of(nodes[0]).size,
        columns=next((c for c in columns if c is not None), 1),
        operands=operands,
        totals=totals,
        numbers=tuple(numbers),
        results=results,
        counters=counters,
    )


def _compute(
    program: Program,
    nodes: Sequence[int],
    at: int,
    operands: Sequence[tuple[int, Reach]],
    totals: Sequence[int],
    counters: Sequence[int],
    numbers: list[int],
    known: list[str],
) -> list[str]:
    """Lines that compute member ``at`` of a chain for one element; appends its ``numbers``, and
    what is ``known`` of them."""
    index = nodes[at]
    node = program.node(index)
    rule, names = POINTWISE[node.op], _operands(program, index)
    arguments = []
    for item in rule.order:
        if item in (COLUMN, COLUMNS):
            arguments.append(f"(i64){item}")
        elif item == TOTAL:
            arguments.append(f"y{totals.index(index)}")
        elif isinstance(item, str):
            is_table = item == "table"
            number = number_of(node.attrs) if is_table else attr_int(node.attrs, item)
            arguments.append(_put_number(item, number, numbers, known))
        elif names[item][0] in nodes:
            arguments.append(f"v{nodes.index(names[item][0])}")
        else:
            kind = "d" if item in rule.divisors else "x"
            arguments.append(f"{kind}{operands.index(names[item])}")
    dtype = node.outputs[0].dtype
    value = f"{node.op}_{'quick' if rule.quick else 'value'}({', '.join(arguments)})"
    if index in counters:
        value = f"saturate_counted({value}, {dtype.upper()}, c{counters.index(index)})"
    return [f"const i64 v{at} = (i64)({_TYPES[dtype]}){value};"]


def _put_number(name: str, number: int, numbers: list[int], known: list[str]) -> str:
    """How an attribute stands in the text: as the next of the ``numbers``, an argument.

    Most of a rounding shift is what it does where others are; so the text says of shifts and
    multipliers in which of few ranges they are, and has those that are 0 or 1 for themselves.
    """
    ranges = _RANGES.get(name, ())
    if ranges and number in (0, 1):
        return f"(i64){number}"
    argument = f"k{len(numbers)}"
    numbers.append(number)
    for least, most in ranges:
        if least <= number <= most:
            known += [f"{argument} >= {least}", f"{argument} <= {most}"]
            break
    return argument


@dataclass(frozen=True)
class _Text:
    """The source of a chain's kernel.

    In it r are operands, t totals of rows, k numbers, w results, s counters; x, y and v are the
    values of one element, d the divisors among x, by which ``divisors`` are divided.
    """

    program: Program
    operands: tuple[tuple[int, Reach], ...]
    totals: int
    divisors: Set[int]
    numbers: int
    known: list[str]
    results: tuple[int, ...]
    counters: tuple[int, ...]
    nodes: tuple[int, ...]
    lines: list[str]

    def _type(self, value: int) -> str:
        return _TYPES[self.program.type_of(value).dtype]

    def _parameters(self) -> list[tuple[str, str]]:
        """(type, name) of all but the position."""
        return [
            ("i64", "columns"),
            *((f"const {self._type(v)}*", f"r{i}") for i, (v, _) in enumerate(self.operands)),
            *(("const i64*", f"t{i}") for i in range(self.totals)),
            *(("i64", f"k{i}") for i in range(self.numbers)),
            *((f"{self._type(value)}*", f"w{i}") for i, value in enumerate(self.results)),
            *(("u64*", f"s{i}") for i in range(len(self.counters))),
        ]

    def _load(self, at: int) -> str:
        """Of an operand that has another value for each element, or one for all."""
        _, reach = self.operands[at]
        element = {"same": f"p{at}.v[j]", "column": f"r{at}[column]", "one": f"r{at}[0]"}[reach]
        return f"const i64 x{at} = {element};"

    def _of_row(self) -> list[tuple[str, str, str]]:
        """(type, name, value) of what is the same along a row."""
        found: list[tuple[str, str, str]] = []
        lists = 0
        for at, (_, reach) in enumerate(self.operands):
            if reach == "row":
                found.append(("i64", f"x{at}", f"r{at}[row]"))
            if at in self.divisors:
                found.append(("Divisor", f"d{at}", f"make_divisor(x{at})"))
            if reach == "span":
                found.append(("Span", f"x{at}", f"load_span(r{at}, row % (u32)k{lists})"))
                lists += 1
        return [*found, *(("i64", f"y{i}", f"t{i}[row]") for i in range(self.totals))]

    def render(self, name: str) -> str:
        """The text, with ``name`` for the kernel."""
        reaches = {reach for _, reach in self.operands}
        of_row = self._of_row()
        parameters = ", ".join(f"{kind} {of}" for kind, of in self._parameters())
        arguments = ", ".join(of for _, of in self._parameters())
        same = [i for i, (_, reach) in enumerate(self.operands) if reach == "same"]
        results = range(len(self.results))
        counters = range(len(self.counters))
        inner = [
            *(self._load(at) for at, (_, of) in enumerate(self.operands) if of not in _OF_ROW),
            *self.lines,
            *(
                f"q{i}.v[j] = ({self._type(value)})v{self.nodes.index(value)};"
                for i, value in enumerate(self.results)
            ),
        ]
        places: list[str] = []
        if of_row or "column" in reaches:
            # Places are below 2^32, and so are rows: one short division for all of a pack.
            places = ["u32 row = (u32)at / (u32)columns, column = (u32)at % (u32)columns;"]
            inner += [
                "column++;",
                "if (!WHOLE && column == (u32)columns) {",
                "    column = 0; row++;",
                # After the last row there is none.
                *(["    if (j + 1 < N) {"] if of_row else []),
                *(f"        {of} = {value};" for _, of, value in of_row),
                *(["    }"] if of_row else []),
                "}",
            ]
        body = [
            *(f"__builtin_assume({fact});" for fact in self.known),
            *(f"const auto p{at} = load_pack<N>(r{at}, at);" for at in same),
            *(f"Pack<{self._type(self.results[i])}, N> q{i};" for i in results),
            *(f"u32 c{i} = 0;" for i in counters),
            *places,
            *(f"{kind} {of} = {value};" for kind, of, value in of_row),
            "for (int j = 0; j < N; j++) {",
            *(f"    {line}" for line in inner),
            "}",
            *(f"store_pack<N>(w{i}, at, q{i});" for i in results),
            *(f"if (c{i} != 0) atomicAdd(s{i}, (u64)c{i});" for i in counters),
        ]
        whole = f"{name}_at<{WIDTH}, true>(at, {arguments});"
        packs = f"{name}_at<{WIDTH}, false>(at, {arguments});"
        if places:
            packs = f"{{ if (columns % {WIDTH} == 0) {whole} else {packs} }}"
        lines = [
            # WHOLE: no pack has elements of two rows.
            "template <int N, bool WHOLE>",
            f"__device__ inline void {name}_at(i64 at, {parameters}) {{",
            *(f"    {line}" for line in body),
            "}",
            f'extern "C" __global__ void {name}(i64 count, {parameters}) {{',
            f"    const i64 at = INDEX() * {WIDTH};",
            f"    if (at + {WIDTH} <= count) {packs}",
            f"    else for (i64 i = at; i < count; i++) {name}_at<1, false>(i, {arguments});",
            "}",
        ]
        return "\n".join(lines) + "\n"


def render_source(chains: Sequence[Chain]) -> str:
    """One file with the kernels of all ``chains``."""
    includes = sorted({include for chain in chains for include in chain.includes})
    texts = {chain.name: chain.text for chain in chains}
    head = ['#include "chain.cuh"', *(f'#include "{include}"' for include in includes)]
    return "\n".join(head) + "\n\n" + "\n".join(texts[name] for name in sorted(texts))


def name_source(text: str) -> str:
    """File name of a generated source: a digest of it."""
    return f"generated_{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.cu"
