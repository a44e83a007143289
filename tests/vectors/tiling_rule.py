"""How a step falls into statements about tiles, written from docs/tiling.md alone.

Of vtrain this takes the decoder of graphs, the encoder of what is hashed, and what
docs/operators.md says of numbers and masks that everybody computes; nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isqrt, prod
from typing import Any

import numpy as np
from blake3 import blake3

from vtrain.ops import TABLE
from vtrain.spec.curves import whole_curve
from vtrain.spec.number import exp2_table, log2_table, rs_int
from vtrain.wire import cbor
from vtrain.wire.graph import Node, StepGraph

Ints = Any
Combination = Mapping[tuple[int, int], int]
"""(tensor, block) -> factor."""
Map = Callable[[Ints], tuple[Ints, Ints]]
"""Flat places in the target -> (which of them, flat place in the source) of each term."""

NOTHING = {"sample_index", "batch_digest", "increment", "schedule", "tensor_digest", "state_leaf"}
NOTHING |= {"state_root", "record", "next_state", "causal_spans"}
CLOCKS = {"schedule", "schedule_linear", "adam_correction"}
NOTHING |= CLOCKS
BY_ROWS = {"add_bias", "matmul", "row_max"}
WINDOWED = {"col2im", "max_pool", "max_pool_grad", "sum_pool", "sum_pool_grad"}
ROLES = ("z", "labels", "maximum", "exp", "sum", "p", "grad", "loss")
M16, LIMB = 32639, 32640


class RefusedError(Exception):
    """The graph is refused; the word is that of section 6."""


def need(condition: bool, word: str) -> None:
    if not condition:
        raise RefusedError(word)


# --- 1. grids


@dataclass(frozen=True)
class Grid:
    rows: int
    columns: int
    size: int
    side: int

    @property
    def across(self) -> int:
        return -(-self.columns // self.side)

    @property
    def count(self) -> int:
        return self.across * -(-self.rows // self.side)

    def height(self, block: int) -> int:
        return min(self.side, self.rows - self.side * (block // self.across))

    def width(self, block: int) -> int:
        return min(self.side, self.columns - self.side * (block % self.across))

    def values(self, block: int) -> tuple[Ints, Ints]:
        """Places of the block with values, and which values."""
        place = np.arange(self.side**2)
        row, column = place // self.side, place % self.side
        inside = (row < self.height(block)) & (column < self.width(block))
        row, column = row[inside], column[inside]
        flat = (self.side * (block // self.across) + row) * self.columns
        flat += self.side * (block % self.across) + column
        return place[inside][flat < self.size], flat[flat < self.size]

    def find(self, flat: Ints) -> tuple[Ints, Ints]:
        """Block and place of values."""
        row, column = flat // self.columns, flat % self.columns
        block = (row // self.side) * self.across + column // self.side
        return block, self.side * (row % self.side) + column % self.side


class Stack(Grid):
    """Matrices one below the other, whose blocks are counted one matrix after the other."""

    def __init__(self, matrices: int, matrix: Grid) -> None:
        super().__init__(
            matrices * matrix.rows, matrix.columns, matrices * matrix.size, matrix.side
        )
        object.__setattr__(self, "matrix", matrix)

    matrix: Grid

    @property
    def count(self) -> int:
        return self.rows // self.matrix.rows * self.matrix.count

    def height(self, block: int) -> int:
        return self.matrix.height(block % self.matrix.count)

    def width(self, block: int) -> int:
        return self.matrix.width(block % self.matrix.count)

    def values(self, block: int) -> tuple[Ints, Ints]:
        place, flat = self.matrix.values(block % self.matrix.count)
        return place, flat + block // self.matrix.count * self.matrix.size

    def find(self, flat: Ints) -> tuple[Ints, Ints]:
        block, place = self.matrix.find(flat % self.matrix.size)
        return block + flat // self.matrix.size * self.matrix.count, place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stack) and (self.rows, self.matrix) == (other.rows, other.matrix)

    def __hash__(self) -> int:
        return hash((self.rows, self.matrix))


# --- 2. tensors, values, statements


@dataclass(frozen=True)
class Tensor:
    name: str
    source: str
    first: int
    count: int


@dataclass(eq=False)
class Value:
    grid: Grid
    blocks: Callable[[int], Combination]
    parts: dict[Value, int] = field(default_factory=dict)

    def __getitem__(self, block: int) -> Combination:
        return self.blocks(block)


def total(*terms: tuple[int, Value]) -> Value:
    """The sum of w v."""
    parts: dict[Value, int] = {}
    for weight, value in terms:
        for part, inner in (value.parts or {value: 1}).items():
            parts[part] = parts.get(part, 0) + weight * inner
    need(len(parts) <= 256, "sum")
    assert len({value.grid for _, value in terms}) == 1
    return Value(terms[0][1].grid, lambda b: merge((w, v[b]) for v, w in parts.items()), parts)


def merge(terms: Iterator[tuple[int, Combination]]) -> Combination:
    found: dict[tuple[int, int], int] = {}
    for weight, combination in terms:
        for tile, factor in combination.items():
            found[tile] = found.get(tile, 0) + weight * factor
    return {tile: factor for tile, factor in found.items() if factor}


@dataclass(frozen=True)
class Statement:
    """``pairs`` are the entries of G as two arrays, p and q."""

    node: str
    circuit: str
    given: Mapping[str, Combination]
    parameters: Mapping[str, Sequence[int]] = field(default_factory=dict)
    pairs: tuple[Ints, Ints] | None = None


# --- windows, as docs/operators.md has them


class Windows:
    """Over an image [n, h, w, channels]; arrays are indexed [n, oh, ow, offset, channels]."""

    def __init__(self, attrs: Mapping[str, Any], image: Sequence[int]) -> None:
        (kh, kw), (sh, sw), (top, left, bottom, right) = (
            attrs[name] for name in ("kernel", "strides", "pads")
        )
        n, h, w, channels = image
        self.area = kh * kw
        rows, columns = (h + top + bottom - kh) // sh + 1, (w + left + right - kw) // sw + 1
        self.shape = (n, rows, columns, channels)
        self._image, self._kw, self._strides, self._corner = image, kw, (sh, sw), (top, left)

    def pixel(self, channel_of_window: Ints, offset: Ints) -> tuple[Ints, Ints]:
        """(flat place of the pixel at an offset, whether it is no padding)."""
        _, h, w, channels = self._image
        s, r, c, i = np.unravel_index(channel_of_window, self.shape)
        y = r * self._strides[0] + offset // self._kw - self._corner[0]
        x = c * self._strides[1] + offset % self._kw - self._corner[1]
        inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
        return ((s * h + y) * w + x) * channels + i, inside

    def all_pixels(self) -> tuple[Ints, Ints, Ints]:
        """(channel of a window, offset, pixel) wherever that is no padding."""
        size = prod(self.shape)
        window = np.repeat(np.arange(size), self.area)
        offset = np.tile(np.arange(self.area), size)
        pixel, inside = self.pixel(window, offset)
        return window[inside], offset[inside], pixel[inside]

    def first(self) -> tuple[Ints, Ints]:
        """The least offset of each channel of a window that is no padding, and its pixel."""
        window = np.arange(prod(self.shape))
        least, found = np.full(window.size, -1), np.zeros(window.size, dtype=np.int64)
        for offset in range(self.area):
            if (least >= 0).all():
                break
            pixel, inside = self.pixel(window, offset)
            new = inside & (least < 0)
            least[new], found[new] = offset, pixel[new]
        return least, found

    def patch(self, window: Ints, offset: Ints) -> Ints:
        """Flat place in the matrix of patches."""
        channels = self.shape[3]
        row, i = window // channels, window % channels
        return (row * self.area + offset) * channels + i


def gather(targets: Ints, sources: Ints, size: int) -> Map:
    """The map whose value t is the sum of the sources beside each t in ``targets``."""
    order = np.argsort(targets, kind="stable")
    targets, sources = targets[order], sources[order]
    starts = np.searchsorted(targets, np.arange(size + 1))

    def terms(flat: Ints) -> tuple[Ints, Ints]:
        counts = starts[flat + 1] - starts[flat]
        number = np.repeat(np.arange(flat.size), counts)
        within = np.arange(number.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return number, sources[starts[flat][number] + within]

    return terms


def same(flat: Ints) -> tuple[Ints, Ints]:
    return np.arange(flat.size), flat


# --- the rules


class Rules:
    """All tensors and statements about step ``step`` with this loss."""

    def __init__(self, graph: StepGraph, side: int, step: int, loss: int) -> None:
        self.nodes, self.side, self.step, self.loss = graph.nodes, side, step, loss
        self.tensors: list[Tensor] = []
        self.statements: list[Statement] = []
        self.public: dict[int, Callable[[Ints], Ints]] = {}
        """Of a public tensor, its values by their flat places; and its grid."""
        self.public_grids: dict[int, Grid] = {}
        self.padding_of: dict[int, int] = {}
        self.values: dict[int, Value] = {}
        self.anew: dict[tuple[int, Grid], Value] = {}
        self.groups: dict[int, dict[str, int]] = {}
        self.steps: dict[Any, tuple[Windows, Grid, list[Value], list[Value]]] = {}
        self.numbers: dict[int, int] = {}
        self.hot: dict[tuple[int, int], Value] = {}
        self.across: dict[tuple[str, int, Grid], Value] = {}
        self.positives: dict[int, Value] = {}
        self.masked: dict[tuple[int, Grid], tuple[Value, Value]] = {}
        self.inside: dict[int, tuple[Value, int, int]] = {}
        """Of a ``keep_span``: what is within spans, the node of these, and the fill."""
        self.made_after: set[str] = set()
        self.counts = {"trace": 0, "public": 0}
        self.name = ""
        self.readers: dict[int, int] = {}
        for number, node in enumerate(self.nodes):
            for ref in node.inputs:
                self.readers.setdefault(ref.node, number)
        self.next = {
            str(node.attrs["name"]): node.inputs[0].node
            for node in self.nodes
            if node.op == "next_state" and node.attrs["name"] != "step"
        }
        states = {
            str(node.attrs["name"]): number
            for number, node in enumerate(self.nodes)
            if node.op == "state" and node.attrs["name"] != "step"
        }
        self.columns, self.column_count = {}, 0
        for name in sorted(states, key=lambda text: text.encode()):
            self.columns[name] = self.column_count
            self.column_count += self.own_grid(states[name]).count
        self._refuse_large()
        for number, node in enumerate(self.nodes):
            self.number, self.name = number, node.name
            self._number(number)
            if node.op in NOTHING or (node.op == "state" and node.attrs["name"] == "step"):
                continue
            if number in self.numbers:
                continue
            rule = getattr(self, f"do_{node.op}")
            found = rule(node, *(ref.node for ref in node.inputs))
            if found is not None:
                self.values[number] = found
        self._end()

    def _number(self, number: int) -> None:
        """Public numbers, by their value in the step."""
        node = self.nodes[number]
        if node.op in CLOCKS:
            clock = self.nodes[node.inputs[0].node]
            if clock.op == "state" and clock.attrs["name"] == "step":
                self.numbers[number] = self.law(node, np.asarray(self.step - 1))
        elif node.op in ("mul", "rescale") and all(r.node in self.numbers for r in node.inputs):
            values = [np.asarray(self.numbers[ref.node]) for ref in node.inputs]
            self.numbers[number] = self.law(node, *values)

    def law(self, node: Node, *inputs: Ints) -> int:
        return int(TABLE[node.op].law(node.attrs, [each.astype(np.int64) for each in inputs]))

    def _refuse_large(self) -> None:
        need(self.column_count <= 8192, "state")
        self.places = 0
        for number, node in enumerate(self.nodes):
            q = 0
            if node.op in ("sum", "column_sum"):
                q = -(-self.size(node.inputs[0].node) // self.size(number))
            elif node.op in WINDOWED:
                q = prod(node.attrs["kernel"])  # type: ignore[arg-type]
            elif node.op in ("im2col", "one_hot", "transpose", "slice", "pad", "concat"):
                q = 1
            elif node.op == "batched_matmul":
                q = -(-sum(self.size(ref.node) for ref in node.inputs) // self.size(number))
            elif node.op == "square_sum" and node.attrs["shift"] > 0:  # type: ignore[operator]
                self.within(number, LIMB**4 // 2 - 1)  # before there are statements by the million
            elif node.op in ("row_scale", "column_scale", "scale_by", "center", "softmax_grad"):
                q = 1
            elif node.op == "token_spans":
                q = 128
            elif node.op == "keep_span" and self.nodes[node.inputs[1].node].op != "causal_spans":
                q = 2
            looks = [(self.size(number), q)]
            if node.op in ("center", "softmax_grad", "row_dot"):
                width = self.kind(node.inputs[0].node).shape[-1]
                looks.append((self.size(node.inputs[0].node) // width, width))
            if node.op in ("gather_rows", "scatter_add"):
                table = number if node.op == "scatter_add" else node.inputs[0].node
                looks.append((self.size(node.inputs[1].node) * self.kind(table).shape[0], 1))
            for n, each in looks:
                self.places += n * each
                need(self.places <= 1 << 28, "places")
                need(min(n, self.side**2) * each <= 1 << 25, "places")

    # types

    def kind(self, number: int) -> Any:
        return self.nodes[number].outputs[0]

    def size(self, number: int) -> int:
        return prod(self.kind(number).shape)

    def own(self, shape: Sequence[int]) -> Grid:
        columns = shape[-1] if shape else 1
        return Grid(prod(shape) // columns, columns, prod(shape), self.side)

    def own_grid(self, number: int) -> Grid:
        return self.own(self.kind(number).shape)

    def thrifty(self, shape: Sequence[int]) -> Grid:
        own, size = self.own(shape), prod(shape)
        packed = Grid(-(-size // self.side), self.side, size, self.side)
        return packed if 4 * packed.count <= own.count else own

    def within(self, number: int, most: int) -> None:
        need(-most <= self.kind(number).lo and self.kind(number).hi <= most, "reach")

    # 3. shared rules

    def make(
        self,
        name: str,
        grid: Grid,
        source: str = "trace",
        first: int | None = None,
        count: int | None = None,
    ) -> Value:
        number, count = len(self.tensors), grid.count if count is None else count
        if source in self.counts:
            first = self.counts[source]
            self.counts[source] += count
            need(self.counts["trace"] <= 1 << 20, "leaves")
        assert first is not None
        self.tensors.append(Tensor(name, source, first, count))
        return Value(grid, lambda block: {(number, block): 1})

    def make_public(self, name: str, grid: Grid, values: Callable[[Ints], Ints]) -> Value:
        number = len(self.tensors)
        self.public[number], self.public_grids[number] = values, grid
        return self.make(name, grid, "public")

    def say(
        self,
        circuit: str,
        given: Mapping[str, Combination],
        parameters: Mapping[str, Sequence[int]] | None = None,
        pairs: tuple[Ints, Ints] | None = None,
        node: str | None = None,
    ) -> None:
        name = self.name if node is None else node
        self.statements.append(Statement(name, circuit, given, parameters or {}, pairs))

    def state_all(self, circuit: str, values: Mapping[str, Value]) -> None:
        (grid,) = {value.grid for value in values.values()}
        for block in range(grid.count):
            self.say(circuit, {name: value[block] for name, value in values.items()})

    def image(self, name: str, terms: Map, x: Value, grid: Grid, node: str | None = None) -> Value:
        found: list[tuple[int, int, Ints, Ints]] = []
        for block in range(grid.count):
            places, flat = grid.values(block)
            number, source = terms(flat)
            blocks, within = x.grid.find(source)
            for other in np.unique(blocks).tolist():
                is_of = blocks == other
                found.append((block, other, places[number[is_of]], within[is_of]))
        parts = self.make(name, grid, count=len(found))
        of_block: dict[int, list[int]] = {}
        for tile, (block, other, p, q) in enumerate(found):
            of_block.setdefault(block, []).append(tile)
            self.say("linear", {"x": x[other], "y": parts[tile]}, pairs=(p, q), node=node)
        return Value(grid, lambda b: merge((1, parts[tile]) for tile in of_block.get(b, ())))

    def value(self, number: int) -> Value:
        need(number in self.values, "value")
        return self.values[number]

    def in_(self, number: int, grid: Grid) -> Value:
        value = self.value(number)
        if value.grid == grid:
            return value
        if (number, grid) not in self.anew:
            self.places += grid.size
            need(self.places <= 1 << 28, "places")
            name = self.nodes[number].name
            self.anew[number, grid] = self.image(f"{name}/cut anew", same, value, grid, name)
        return self.anew[number, grid]

    def own_value(self, number: int) -> Value:
        return self.in_(number, self.own_grid(number))

    def out(self, grid: Grid) -> Value:
        readers = [name for name, source in self.next.items() if source == self.number]
        if readers and grid == self.own_grid(self.number):
            self.made_after.add(readers[0])
            return self.make(self.name, grid, "after", self.columns[readers[0]])
        return self.make(self.name, grid)

    def wanted(self, number: int) -> Grid:
        reader = self.readers.get(number)
        while reader is not None and self.nodes[reader].op == "reshape":
            number, reader = reader, self.readers.get(reader)
        if reader is None or self.nodes[reader].op in BY_ROWS:
            return self.own_grid(number)
        return self.thrifty(self.kind(number).shape)

    def gate(self, x: Value, g: Value, y: Value) -> None:
        self.state_all("gate", {"x": x, "g": g, "y": y})

    def mask(self, grid: Grid, block: int) -> dict[str, list[int]]:
        height, width, side = grid.height(block), grid.width(block), self.side
        rows, columns = ([1] * n + [0] * (side - n) for n in (height, width))
        return {"rows": rows, "columns": columns}

    def rescaling(self, x: Value, y: Value, dtype: str, m: int, o: int, s: int) -> None:
        need(s <= 59, "shift")
        grid = x.grid
        need(o == 0 or grid.rows * grid.columns == grid.size, "rows")
        limbs = next(n for n, most in enumerate((0, 14, 29, 43, 59)) if s <= most)
        shared = {"multiplier": [m], "offset": [o]}
        if limbs:
            left, rest = divmod(2**s - 1, 32639)
            shared |= {"unit": [2**s], "half": [2 ** (s - 1)], "rest": [rest]}
            reach = rest
            for i in range(limbs - 1):
                weight = min(left, reach + 1)
                left, reach = left - weight, reach + 32639 * weight
                shared[f"weight {i}"] = [weight]
        for block in range(grid.count):
            parameters = {**shared, **self.mask(grid, block)}
            self.say(f"rescale-{dtype}-{limbs}", {"x": x[block], "y": y[block]}, parameters)

    def held_range(self, x: Value) -> None:
        self.held(self.name, x, self.kind(self.number).lo, self.kind(self.number).hi)

    def held(self, name: str, x: Value, lo: int, hi: int) -> None:
        if hi - lo >= LIMB**3:
            k = (hi - 2**30 + 1) // 2**30
            high = self.make(f"{name}/high", x.grid)
            self.held(name, high, 0, k)
            self.held(name, total((1, x), (-(2**30), high)), 0, hi - 2**30 * k)
            return
        for block in range(x.grid.count):
            parameters = {"lo": [lo], "hi": [hi], **self.mask(x.grid, block)}
            self.say(f"range-{1 if hi - lo < LIMB else 3}", {"x": x[block]}, parameters)

    def equal(self, a: Value, b: Value, node: str) -> None:
        zero = total((1, a), (-1, b))
        for block in range(zero.grid.count):
            self.say("zero", {"x": zero[block]}, node=node)

    def times(self, a: Value, b: Value, y: Value | None) -> None:
        for block in range(a.grid.count):
            product = {} if y is None else y[block]
            self.say("mul", {"a": a[block], "b": b[block], "y": product})

    def product_of(self, name: str, a: Value, b: Value) -> Value:
        y = self.make(name, a.grid)
        self.times(a, b, y)
        return y

    def one(self, grid: Grid, name: str | None = None) -> Value:
        return self.make_public(f"{name or self.name}/one", grid, lambda f: f * 0 + 1)

    def masks(self, grid: Grid) -> tuple[Value, Value]:
        one = self.one(grid)
        outside = self.make_public(f"{self.name}/outside", grid, lambda f: f * 0)
        self.padding_of[len(self.tensors) - 1] = 1
        return one, outside

    def root(self, name: str, v: Value, most: int) -> Value:
        q, r = self.make(name, v.grid), isqrt(most)
        self.held(name, q, 0, r)
        s = self.product_of(f"{name}/square", q, q)
        self.held(f"{name}/rest", total((1, v), (-1, s)), 0, 2 * r)
        self.held(f"{name}/room", total((2, q), (1, s), (-1, v)), 0, 2 * r)
        return q

    def quotient(
        self, name: str, n: Value, d: Value, q: Value, masks: tuple[Value, Value], most: int
    ) -> None:
        one, outside = masks
        p = self.product_of(f"{name}/product", q, total((1, d), (1, outside)))
        self.held(f"{name}/rest", total((1, n), (-1, p)), 0, most)
        self.held(f"{name}/room", total((1, d), (-1, one), (-1, n), (1, p)), 0, most)

    def totals(self, name: str, x: Value, width: int, grid: Grid) -> Value:
        def terms(flat: Ints) -> tuple[Ints, Ints]:
            inner = np.arange(flat.size * width)
            return inner // width, flat[inner // width] * width + inner % width

        return self.image(name, terms, x, grid)

    def spread(self, x: Value, find: Callable[[Ints], Ints], grid: Grid) -> Value:
        name = f"{self.name}/spread"
        return self.image(name, lambda f: (np.arange(f.size), find(f)), x, grid)

    def compared(self, x: int, n: int, grid: Grid) -> tuple[Value, Value, Value]:
        token = self.image(
            f"{self.name}/token", lambda f: (np.arange(f.size), f // n), self.value(x), grid
        )
        place = self.make_public(f"{self.name}/place", grid, lambda f: f % n)
        one = self.one(grid)
        over = self.make(f"{self.name}/over", grid)
        self.gate(total((1, token), (-1, place)), one, over)
        under = self.make(f"{self.name}/under", grid)
        self.gate(total((1, place), (-1, token)), one, under)
        return one, over, under

    def chosen(self, x: int, n: int) -> Value:
        if (x, n) not in self.hot:
            if self.kind(x).lo < 0 or self.kind(x).hi >= n:
                self.held(f"{self.name}/tokens", self.value(x), 0, n - 1)
            grid = Grid(self.size(x), n, self.size(x) * n, self.side)
            one, over, under = self.compared(x, n, grid)
            self.hot[x, n] = total((1, one), (-1, over), (-1, under))
        return self.hot[x, n]

    # 4. operators

    def do_state(self, node: Node) -> Value:
        name, grid = str(node.attrs["name"]), self.own_grid(self.number)
        x = self.make(f"before/{name}", grid, "before", self.columns[name])
        self.held_range(x)
        return x

    def do_gather_samples(self, node: Node, _: int) -> Value:
        grids = {}
        for other in self.nodes:
            if other.op == "gather_samples":
                batch, *rest = other.outputs[0].shape
                values = prod(rest)
                shape = (batch, values) if values > 1 else (1, batch)
                grids[other.attrs["part"]] = self.own(shape)
        need(grids["x"].count + grids["y"].count <= 8192, "batch")
        part = str(node.attrs["part"])
        first = 0 if part == "x" else grids["x"].count
        x = self.make(f"batch/{part}", grids[part], "batch", first)
        self.held_range(x)
        return x

    def do_normalize(self, node: Node, x: int) -> Value:
        y = self.out(self.value(x).grid)
        m, o, s = (node.attrs[name] for name in ("multiplier", "offset", "shift"))
        self.rescaling(self.value(x), y, "i16", m, o, s)  # type: ignore[arg-type]
        return y

    def do_rescale(self, node: Node, x: int) -> Value:
        dtype = str(node.attrs["dtype"])
        m, s = int(node.attrs["multiplier"]), int(node.attrs["shift"])  # type: ignore[arg-type]
        wanted, value = self.wanted(self.number), self.value(x)
        if 4 * wanted.count <= value.grid.count:
            value = self.in_(x, wanted)
        if s <= 0:
            value, m, s = total((m << -s, value)), 1, 0
            if dtype == "i64":
                return value
        elif dtype == "i64":
            self.within(self.number, LIMB**4 // 2 - 1)
        y = self.out(value.grid)
        self.rescaling(value, y, dtype, m, 0, s)
        return y

    def do_one_hot(self, node: Node, x: int) -> Value:
        depth = int(node.attrs["depth"])  # type: ignore[arg-type]
        if max(self.kind(x).hi, depth - self.kind(x).lo) > LIMB**2 - 1:
            self.held(f"{self.name}/tokens", self.value(x), 0, depth - 1)
        one, over, under = self.compared(x, depth, self.own_grid(self.number))
        return total((2**14, one), (-(2**14), over), (-(2**14), under))

    def check_product(self, node: Node, a: int, b: int) -> None:
        self.within(a, M16)
        self.within(b, M16)
        need(not (node.attrs["transpose_a"] and node.attrs["transpose_b"]), "transposes")

    def do_matmul(self, node: Node, a: int, b: int) -> Value:
        self.check_product(node, a, b)
        left, right = self.own_value(a), self.own_value(b)
        return self.product(node.attrs, "parts", left, right, self.own_grid(self.number))

    def do_gather_rows(self, node: Node, x: int, ids: int) -> Value:
        hot = self.chosen(ids, self.kind(x).shape[0])
        form = {"transpose_a": 0, "transpose_b": 0}
        return self.product(form, "parts", hot, self.own_value(x), self.own_grid(self.number))

    def do_scatter_add(self, node: Node, x: int, ids: int) -> Value:
        hot = self.chosen(ids, int(node.attrs["rows"]))  # type: ignore[arg-type]
        form = {"transpose_a": 1, "transpose_b": 0}
        return self.product(form, "parts", hot, self.own_value(x), self.own_grid(self.number))

    def do_row_dot(self, node: Node, a: int, b: int) -> Value:
        left = self.value(a)
        right = self.in_(b, left.grid)
        products = self.product_of(f"{self.name}/products", left, right)
        grid = self.thrifty(self.kind(self.number).shape)
        return self.totals(f"{self.name}/parts", products, self.kind(a).shape[-1], grid)

    def do_center(self, node: Node, x: int) -> Value:
        value, shape = self.value(x), self.kind(x).shape
        d = shape[-1]
        totals = self.totals(f"{self.name}/totals", value, d, self.thrifty(shape[:-1]))
        spread = self.spread(totals, lambda f: f // d, value.grid)
        y = self.out(value.grid)
        self.rescaling(total((d, value), (-1, spread)), y, "i32", 1, 0, int(node.attrs["shift"]))  # type: ignore[arg-type]
        return y

    def require_root(self, s: int) -> None:
        source = self.nodes[s]
        squares = source.op == "row_dot" and source.inputs[0] == source.inputs[1]
        need(self.kind(s).lo >= 0 or squares, "root")

    def do_inverse_root(self, node: Node, s: int) -> Value:
        self.require_root(s)
        value, attrs = self.value(s), node.attrs
        lift, epsilon, numerator = (
            int(attrs[name])  # type: ignore[arg-type]
            for name in ("lift", "epsilon", "numerator")
        )
        masks = self.masks(value.grid)
        most = 4**lift * (max(self.kind(s).hi, 0) + epsilon)
        q = self.root(
            f"{self.name}/root", total((4**lift, value), (4**lift * epsilon, masks[0])), most
        )
        y = self.out(value.grid)
        self.held(self.name, y, 0, max(self.kind(self.number).hi, 0))
        self.quotient(self.name, total((numerator, masks[0])), q, y, masks, isqrt(most))
        return y

    def do_row_scale(self, node: Node, x: int, r: int) -> Value:
        value, d = self.value(x), self.kind(x).shape[-1]
        by_rows = node.op == "row_scale"
        spread = self.spread(self.value(r), lambda f: f // d if by_rows else f % d, value.grid)
        y = self.out(value.grid)
        self.times(value, spread, y)
        return y

    do_column_scale = do_row_scale

    def do_look_up(self, node: Node, x: int) -> Value:
        value, kind = self.value(x), self.kind(x)
        table, shift = str(node.attrs["table"]), int(node.attrs["shift"])  # type: ignore[arg-type]
        entries = [int(entry) for entry in whole_curve(table)]
        last = len(entries) // 2
        lo, hi = (rs_int(end, shift) for end in (kind.lo, kind.hi))
        need(max(-lo, hi) + last <= LIMB**2 - 1, "reach")
        if shift > 0:
            point = self.make(f"{self.name}/point", value.grid)
            self.rescaling(value, point, "i16", 1, 0, shift)
        else:
            point = total((2**-shift, value))
        one, outside = self.masks(value.grid)
        for name, sign, end in (("above", 1, hi), ("below", -1, -lo)):
            if end > last:
                beyond = total((sign, point), (-last, one))
                over = self.make(f"{self.name}/{name}", value.grid)
                self.gate(beyond, beyond, over)
                point = total((1, point), (-sign, over))
        y = self.out(value.grid)
        more = 11360 - len(entries)
        parameters = {
            "keys": [*range(-last, last + 1), *[2**15] * more],
            "entries": [*entries, *[0] * more],
        }
        self.look(point, y, outside, parameters)
        return y

    def look(
        self, point: Value, y: Value, outside: Value, parameters: Mapping[str, Sequence[int]]
    ) -> None:
        key = total((1, point), (2**15, outside))
        for block in range(key.grid.count):
            self.say("look-up", {"x": key[block], "y": y[block]}, parameters)

    def do_dropout_mask(self, node: Node, _: int) -> Value:
        mask = TABLE["dropout_mask"].law(node.attrs, [np.asarray(self.step - 1)]).reshape(-1)
        return self.make_public(self.name, self.own_grid(self.number), lambda f: mask[f])

    def do_keep_span(self, node: Node, x: int, spans: int) -> Value:
        inner, fill = self.nodes[x], int(node.attrs["fill"])  # type: ignore[arg-type]
        if self.nodes[spans].op != "causal_spans":
            value = self.own_value(x)
            mask, one = self.hidden_mask(spans, value.grid)
            return total(
                (1, self.product_of(f"{self.name}/inside", value, mask)), (fill, one), (-fill, mask)
            )
        if inner.op == "exp2_diff" and inner.inputs[0].node in self.inside:
            z, maximum = (ref.node for ref in inner.inputs)
            need(self.inside[z][1] == spans and node.attrs["fill"] == 0, "softmax")
            return self.softmax(z, exp=self.number, maximum=maximum)
        value, columns = self.own_value(x), self.kind(x).shape[1]
        begins, ends = self.find_spans(spans)

        def kept(flat: Ints) -> Ints:
            row, column = flat // columns % len(begins), flat % columns
            return (begins[row] <= column) & (column < ends[row])

        mask = self.make_public(f"{self.name}/kept", value.grid, kept)
        inside = self.product_of(f"{self.name}/inside", value, mask)
        if not self.apart(self.number):
            self.inside[self.number] = inside, spans, fill
        return total((1, inside), (fill, self.one(value.grid)), (-fill, mask))

    # spans that are hidden

    def hidden_mask(self, spans: int, grid: Grid) -> tuple[Value, Value]:
        if (spans, grid) not in self.masked:
            kind, c = self.kind(spans), grid.columns
            need(max(-kind.lo, kind.hi) + c <= LIMB**2 - 1, "reach")
            m, v = kind.shape[0], self.value(spans)

            def bound(name: str, side: int) -> Value:
                def terms(flat: Ints) -> tuple[Ints, Ints]:
                    return np.arange(flat.size), 2 * (flat // c % m) + side

                return self.image(f"{self.name}/{name}", terms, v, grid)

            begin, end = bound("begin", 0), bound("end", 1)
            place = self.make_public(f"{self.name}/place", grid, lambda f: f % c)
            one = self.one(grid)
            begun = self.gated("begun", total((1, place), (1, one), (-1, begin)), one)
            open_ = self.gated("open", total((1, end), (-1, place)), one)
            self.masked[spans, grid] = self.product_of(f"{self.name}/kept", begun, open_), one
        return self.masked[spans, grid]

    def gated(self, name: str, x: Value, g: Value) -> Value:
        y = self.make(f"{self.name}/{name}", x.grid)
        self.gate(x, g, y)
        return y

    def do_token_spans(self, node: Node, ids: int) -> Value:
        attrs: Any = node.attrs
        end, padding = attrs["end_of_text"], attrs["padding"]
        grid, kind = self.own_grid(ids), self.kind(ids)
        p, marks = grid.columns, [mark for mark in (end, padding) if mark != 2**31]
        need(max([p, *marks]) <= 2**29, "reach")
        need(bool(marks) or kind.hi < 2**31, "reach")
        x = self.own_value(ids)
        if marks and (kind.lo < 0 or kind.hi > 2**29):
            self.held(f"{self.name}/tokens", x, 0, 2**29)
        one = self.one(grid)

        def public(name: str, find: Callable[[Ints], Ints]) -> Value:
            return self.make_public(f"{self.name}/{name}", grid, lambda f: find(f % p))

        def other(name: str, mark: int, weight: Value) -> Value:
            over = self.gated(f"{name}/over", total((1, x), (-mark, one)), weight)
            under = self.gated(f"{name}/under", total((mark, one), (-1, x)), weight)
            return total((1, over), (1, under))

        def moved(name: str, v: Value, distance: int, ring: bool) -> Value:
            def terms(flat: Ints) -> tuple[Ints, Ints]:
                at = flat % p + distance
                there = np.full(flat.size, True) if ring else (at >= 0) & (at < p)
                return np.flatnonzero(there), (flat - flat % p + at % p)[there]

            return self.image(f"{self.name}/{name}", terms, v, grid)

        def larger(name: str, a: Value, b: Value) -> Value:
            return total(
                (1, a), (1, self.gated(name, total((1, b), (-1, a)), total((1, b), (-1, a))))
            )

        def smaller(name: str, a: Value, b: Value) -> Value:
            return total(
                (1, a), (-1, self.gated(name, total((1, a), (-1, b)), total((1, a), (-1, b))))
            )

        def greatest(name: str, v: Value, sign: int, ring: bool = False) -> Value:
            for step in range((p - 1).bit_length()):
                far = moved(f"{name} {2**step}", v, sign * 2**step, ring)
                v = larger(f"{name} {2**step}/more", v, far)
            return v

        begin = public("nearest", lambda i: np.maximum(i + 1 - attrs["before"], 0))
        stop = public("furthest", lambda i: np.minimum(i + attrs["after"], p))
        if marks:
            up, down = public("up", lambda i: i + 1), public("down", lambda i: p - 1 - i)
        if end != 2**31:
            ended = total((1, up), (-1, other("ended", end, up)))
            begin = larger(
                "begin/document", begin, greatest("start", moved("start", ended, -1, False), -1)
            )
            ending = total((1, down), (-1, other("ending", end, down)))
            left = greatest("left", ending, 1)
            stop = smaller("end/document", stop, total((p, one), (-1, left)))
        if padding != 2**31:
            first = greatest("first", other("first", padding, total((1, down), (1, one))), 1, True)
            begin = larger("begin/padding", begin, total((p, one), (-1, first)))
            last = greatest("last", other("last", padding, up), 1, True)
            stop = smaller("end/padding", stop, last)
        images = []
        for side, (name, v) in enumerate((("begin", begin), ("end", stop))):

            def terms(flat: Ints, side: int = side) -> tuple[Ints, Ints]:
                return np.flatnonzero(flat % 2 == side), flat[flat % 2 == side] // 2

            images.append(
                (1, self.image(f"{self.name}/{name}", terms, v, self.wanted(self.number)))
            )
        return total(*images)

    # rows by themselves

    def apart(self, number: int) -> bool:
        if self.kind(number).shape[-1] > 128:
            return True
        node = self.nodes[number]
        while node.op in ("exp2_diff", "divide"):
            node = self.nodes[node.inputs[0].node]
        return node.op == "keep_span" and self.nodes[node.inputs[1].node].op != "causal_spans"

    def columns_of(self, name: str, v: Value, grid: Grid) -> Value:
        row = self.one(self.own((1, grid.columns)), f"{self.name}/{name}/row")
        form = {"transpose_a": 1, "transpose_b": 0}
        return self.product(form, f"{name}/across", v, row, grid)

    def row_totals(self, name: str, x: Value) -> Value:
        row = self.one(self.own((1, x.grid.columns)), f"{name}/row")
        form, what = (
            {"transpose_a": 0, "transpose_b": 1},
            f"{name}/total".removeprefix(f"{self.name}/"),
        )
        return self.product(form, what, row, x, self.own((x.grid.rows,)))

    def all_columns(self, what: str, number: int, v: Callable[[], Value], grid: Grid) -> Value:
        if (what, number, grid) not in self.across:
            self.across[what, number, grid] = self.columns_of(what, v(), grid)
        return self.across[what, number, grid]

    def positive(self, number: int) -> Value:
        if number not in self.positives:
            s, kind, name = self.own_value(number), self.kind(number), f"{self.name}/sum"
            need(kind.lo >= 0, "softmax")
            one = self.one(s.grid, name)
            d = self.make(f"{name}/empty", s.grid)
            self.held(f"{name}/empty", d, 0, 1)
            self.times(d, s, None)
            self.held(name, total((1, s), (1, d), (-1, one)), 0, max(kind.hi - 1, 0))
            self.positives[number] = total((1, s), (1, d))
        return self.positives[number]

    def labelled(self, label: int, c: int) -> Value:
        if (label, c) not in self.hot:
            self.places += self.size(label) * c
            need(self.places <= 1 << 28, "places")
            need(min(self.size(label) * c, self.side**2) <= 1 << 25, "places")
        return self.chosen(label, c)

    def capped(self, name: str, x: Value, bound: int, most: int, one: Value) -> Value:
        y = self.make(name, x.grid)
        below, room = total((1, x), (-1, y)), total((bound, one), (-1, y))
        self.held(f"{name}/below", below, 0, most)
        self.held(f"{name}/room", room, 0, bound)
        self.times(below, room, None)
        return y

    def entry(self, name: str, x: Value, first: int, table: Sequence[int], outside: Value) -> Value:
        more, y = 11360 - len(table), self.make(f"{self.name}/{name}", x.grid)
        keys = [*range(first, first + len(table)), *[2**15] * more]
        self.look(x, y, outside, {"keys": keys, "entries": [*table, *[0] * more]})
        return y

    def lone_row_max(self, z: int) -> Value:
        v, kind = self.own_value(z), self.kind(z)
        y = self.out(self.own_grid(self.number))
        self.held(self.name, y, min(kind.lo, 0), max(kind.hi, 0))
        gap = total((1, self.all_columns("maximum", self.number, lambda: y, v.grid)), (-1, v))
        one = self.one(v.grid)
        lower = self.capped(f"{self.name}/lower", gap, 1, kind.hi - kind.lo, one)
        count = self.row_totals(f"{self.name}/highest", total((1, one), (-1, lower)))
        once = self.one(y.grid, f"{self.name}/highest")
        self.held(f"{self.name}/highest", total((1, count), (-1, once)), 0, kind.shape[1] - 1)
        return y

    def lone_exp2_diff(self, z: int, maximum: int) -> Value:
        v = self.own_value(z)
        top = self.all_columns("maximum", maximum, lambda: self.own_value(maximum), v.grid)
        most = max(self.kind(maximum).hi - self.kind(z).lo, 0)
        one, outside = self.masks(v.grid)
        end = 17 * 2**10 + 1
        cut = self.capped(f"{self.name}/cut", total((1, top), (-1, v)), end, most, one)
        far = self.gated("beyond", total((1, cut), (-10240, one)), total((1, cut), (-10240, one)))
        table = [rs_int(int(exp2_table()[d & 1023]), d >> 10) for d in range(end + 1)]
        near = self.entry("near", total((1, cut), (-1, far)), 0, table[:10241], outside)
        fall = [entry - table[10240] for entry in table[10240:]]
        return total((1, near), (1, self.entry("far", far, 0, fall, outside)))

    def share(self, e: int, sum_: int, y: Value, bits: int) -> None:
        v = self.own_value(e)
        s = self.all_columns("sum", sum_, lambda: self.positive(sum_), v.grid)
        self.held(f"{self.name}/share", y, 0, 2**bits)
        masks, most = self.masks(v.grid), 2 * max(self.kind(sum_).hi, 1)
        self.quotient(self.name, total((2 ** (bits + 1), v), (1, s)), total((2, s)), y, masks, most)

    def do_logit_grad(self, node: Node, e: int, sum_: int, label: int) -> Value:
        hot = self.labelled(label, self.kind(e).shape[1])
        v = self.own_value(e)
        self.all_columns("sum", sum_, lambda: self.positive(sum_), v.grid)
        y = self.make(f"{self.name}/share", v.grid)
        self.share(e, sum_, y, 29)
        return total((1, y), (-(2**29), hot))

    def lone_cross_entropy(self, z: int, maximum: int, sum_: int, label: int) -> Value:
        v, top = self.own_value(z), self.own_value(maximum)
        hot = self.labelled(label, self.kind(z).shape[1])
        name = f"{self.name}/chosen"
        at_label = self.row_totals(name, self.product_of(name, hot, v))
        s, most = self.positive(sum_), max(self.kind(sum_).hi, 1)
        one, outside = masks = self.masks(s.grid)
        n = self.make(f"{self.name}/length", s.grid)
        power = self.entry("power", n, 0, [2**i for i in range(62)], outside)
        self.held(f"{self.name}/least", total((1, s), (-1, power)), 0, most)
        self.held(f"{self.name}/room", total((2, power), (-1, one), (-1, s)), 0, most)
        lead = self.make(f"{self.name}/lead", s.grid)
        self.quotient(f"{self.name}/lead", total((2**10, s)), power, lead, masks, most)
        log = self.entry("log", lead, 2**10, [int(i) for i in log2_table()], outside)
        return total((64, top), (-64, at_label), (2**16, n), (1, log), (-(2**20), one))

    def find_spans(self, spans: int) -> tuple[Ints, Ints]:
        attrs: Any = self.nodes[spans].attrs
        place = np.arange(attrs["queries"])
        return np.maximum(place + 1 - attrs["window"], 0), place + 1

    def do_softmax_grad(self, node: Node, p: int, grad: int) -> Value:
        left = self.value(p)
        right = self.in_(grad, left.grid)
        rows, d = self.kind(p).shape
        products = self.product_of(f"{self.name}/products", left, right)
        totals = self.totals(f"{self.name}/totals", products, d, self.thrifty((rows,)))
        spread = self.spread(totals, lambda f: f // d, left.grid)
        y = self.out(left.grid)
        self.times(left, total((2**14, right), (-1, spread)), y)
        return y

    def do_adam_mean(self, node: Node, mean: int, grad: int) -> Value:
        m = self.value(mean)
        g = self.in_(grad, m.grid)
        lift, rate, shift = (int(node.attrs[name]) for name in ("lift", "rate", "shift"))  # type: ignore[arg-type]
        y = self.out(m.grid)
        x = total((2**shift - rate, m), (2**lift * rate, g))
        self.rescaling(x, y, "i32", 1, 0, shift)
        return y

    def do_adam_square(self, node: Node, square: int, grad: int) -> Value:
        v = self.value(square)
        g = self.in_(grad, v.grid)
        rate, shift = int(node.attrs["rate"]), int(node.attrs["shift"])  # type: ignore[arg-type]
        q = self.product_of(f"{self.name}/squares", g, g)
        x = total((2**shift - rate, v), (2**16 * rate, q))
        if shift == 0:
            return x
        y = self.out(v.grid)
        self.rescaling(x, y, "i64", 1, 0, shift)
        return y

    def do_adam_direction(self, node: Node, mean: int, square: int) -> Value:
        m = self.value(mean)
        v = self.in_(square, m.grid)
        epsilon, shift = int(node.attrs["epsilon"]), int(node.attrs["shift"])  # type: ignore[arg-type]
        most = self.kind(square).hi
        masks = self.masks(m.grid)
        d = total((1, self.root(f"{self.name}/root", v, most)), (epsilon, masks[0]))
        name = f"{self.name}/quotient"
        q = self.make(name, m.grid)
        self.quotient(name, total((2**shift, m)), d, q, masks, isqrt(most) + epsilon)
        y = self.out(m.grid)
        self.rescaling(q, y, "i32", 1, 0, 0)
        return y

    def do_sign(self, node: Node, x: int) -> Value:
        value, kind = self.value(x), self.kind(x)
        y = self.out(value.grid)
        self.held(self.name, y, -1, 1)
        size = self.product_of(f"{self.name}/size", value, y)
        square = self.product_of(f"{self.name}/square", y, y)
        more = total((1, size), (-1, square))
        self.held(f"{self.name}/more", more, 0, max(-kind.lo, kind.hi, 0))
        self.times(value, total((1, self.one(value.grid)), (-1, square)), None)
        return y

    def do_capped_square(self, node: Node, x: int) -> Value:
        value, kind = self.value(x), self.kind(x)
        bits, shift = int(node.attrs["bits"]), int(node.attrs["shift"])  # type: ignore[arg-type]
        aligned = self.make(f"{self.name}/aligned", value.grid)
        raised = total((2 ** max(-shift, 0), value))
        self.rescaling(raised, aligned, "i32", 1, 0, max(shift, 0))
        q = self.product_of(f"{self.name}/square", aligned, aligned)
        most = max(abs(rs_int(end, shift)) for end in (kind.lo, kind.hi))
        most = min(most, 2**31 - 1) ** 2
        if most <= 2**bits:
            return q
        name = f"{self.name}/capped"
        y, one = self.make(name, value.grid), self.one(value.grid)
        below, room = total((1, q), (-1, y)), total((2**bits, one), (-1, y))
        self.held(f"{name}/below", below, 0, most)
        self.held(f"{name}/room", room, 0, 2**bits)
        self.times(below, room, None)
        return y

    def do_clip_factor(self, node: Node, s: int) -> Value:
        self.require_root(s)
        value, limit = self.value(s), int(node.attrs["limit"])  # type: ignore[arg-type]
        most = max(self.kind(s).hi, 0)
        need(max(isqrt(most), limit) <= LIMB**2 - 1, "reach")
        masks = self.masks(value.grid)
        norm = self.root(f"{self.name}/root", value, most)
        beyond = total((1, norm), (-limit, masks[0]))
        above = self.make(f"{self.name}/above", value.grid)
        self.gate(beyond, beyond, above)
        name = f"{self.name}/quotient"
        q = self.make(name, value.grid)
        self.held(name, q, 0, 2**15)
        n, d = total((2**15 * limit, masks[0])), total((limit, masks[0]), (1, above))
        self.quotient(name, n, d, q, masks, max(isqrt(most), limit))
        return q

    def do_scale_by(self, node: Node, x: int, factor: int) -> Value:
        value, shift = self.value(x), int(node.attrs["shift"])  # type: ignore[arg-type]
        scale = self.value(factor)
        if shift > 0:
            self.within(self.number, LIMB**4 // 2 - 1)
        spread = self.spread(scale, lambda f: f * 0, value.grid)
        p = self.product_of(f"{self.name}/product", value, spread)
        if shift <= 0:
            return total((2**-shift, p))
        y = self.out(value.grid)
        self.rescaling(p, y, "i64", 1, 0, shift)
        return y

    def stack(self, shape: Sequence[int]) -> Grid:
        matrices = prod(shape[:-2])
        if shape[-2] % self.side == 0 or matrices == 1:
            return self.own(shape)
        return Stack(matrices, self.own(shape[-2:]))

    def do_batched_matmul(self, node: Node, a: int, b: int) -> Value:
        self.check_product(node, a, b)
        shapes = [self.kind(item).shape for item in (a, b, self.number)]
        left, right = (
            self.in_(item, self.stack(shape)) for item, shape in zip((a, b), shapes, strict=False)
        )

        def take(x: Value, shape: Sequence[int], matrix: int) -> Value:
            grid = self.own(shape[-2:])
            return Value(grid, lambda block: x[matrix * grid.count + block])

        grid = self.own(shapes[2][-2:])
        products = [
            self.product(
                node.attrs, f"parts {i}", take(left, shapes[0], i), take(right, shapes[1], i), grid
            )
            for i in range(prod(shapes[2][:-2]))
        ]
        return Value(
            self.stack(shapes[2]), lambda block: products[block // grid.count][block % grid.count]
        )

    def product(
        self, form: Mapping[str, Any], what: str, left: Value, right: Value, grid: Grid
    ) -> Value:
        ta, tb = form["transpose_a"], form["transpose_b"]
        la, lb = left.grid.across, right.grid.across
        inner = left.grid.count // la if ta else la
        parts = self.make(f"{self.name}/{what}", grid, count=grid.count * inner)
        circuit = "matmul-tn" if ta else "matmul-nt" if tb else "matmul-nn"
        for block in range(grid.count):
            i, j = divmod(block, grid.across)
            for k in range(inner):
                given = {
                    "a": left[k * la + i if ta else i * la + k],
                    "b": right[j * lb + k if tb else k * lb + j],
                    "c": parts[block * inner + k],
                }
                self.say(circuit, given)
        return Value(grid, lambda b: merge((1, parts[b * inner + k]) for k in range(inner)))

    def do_add_bias(self, node: Node, acc: int, bias: int) -> Value:
        shift = int(node.attrs["shift"])  # type: ignore[arg-type]
        a, b = self.own_value(acc), self.own_value(bias)
        if shift > 0:
            aligned = self.make(f"{self.name}/aligned", b.grid)
            self.rescaling(b, aligned, "i64", 1, 0, shift)
        else:
            aligned = total((2**-shift, b))
        grid = a.grid
        heights = sorted({grid.height(0), grid.height(grid.count - 1)}, reverse=True)
        across = grid.across
        rows = self.make(f"{self.name}/rows", grid, count=len(heights) * across)
        for i, height in enumerate(heights):
            for j in range(across):
                r, c = (x.reshape(-1) for x in np.indices((height, grid.width(j))))
                given = {"x": aligned[j], "y": rows[i * across + j]}
                self.say("linear", given, pairs=(self.side * r + c, c))

        def at(block: int) -> Combination:
            return rows[heights.index(grid.height(block)) * across + block % across]

        return total((1, a), (1, Value(grid, at)))

    def do_sum(self, node: Node, x: int) -> Value:
        value, own = self.value(x), self.own_grid(self.number)
        m = own.columns
        many = value.grid.rows * value.grid.columns // m

        def terms(flat: Ints) -> tuple[Ints, Ints]:
            number = np.repeat(np.arange(flat.size), many)
            return number, np.tile(np.arange(many) * m, flat.size) + flat[number]

        return self.image(f"{self.name}/parts", terms, value, own)

    do_column_sum = do_sum

    def do_add(self, node: Node, a: int, b: int) -> Value:
        left = self.value(a)
        right = self.in_(b, left.grid)
        sign = -1 if node.op == "sub" else 1
        up, down = 2 ** int(node.attrs["shift_a"]), 2 ** int(node.attrs["shift_b"])  # type: ignore[arg-type]
        return total((up, left), (sign * down, right))

    do_sub = do_add

    def do_mul(self, node: Node, a: int, b: int) -> Value:
        left = self.value(a)
        right = self.in_(b, left.grid)
        y = self.out(left.grid)
        self.state_all("mul", {"a": left, "b": right, "y": y})
        return y

    def do_relu(self, node: Node, x: int) -> Value:
        y = self.out(self.value(x).grid)
        self.gate(self.value(x), self.value(x), y)
        return y

    def do_relu_grad(self, node: Node, grad: int, output: int) -> Value:
        x = self.value(output)
        g = self.in_(grad, x.grid)
        y = self.out(x.grid)
        self.gate(x, g, y)
        return y

    def do_reshape(self, node: Node, x: int) -> Value:
        return self.value(x)

    def as_image(self, x: int, terms: Map) -> Value:
        value, grid = self.value(x), self.wanted(self.number)
        return self.image(f"{self.name}/parts", terms, value, grid)

    def do_transpose(self, node: Node, x: int) -> Value:
        shape = self.kind(x).shape
        places = np.arange(prod(shape)).reshape(shape)
        places = places.transpose(node.attrs["perm"]).reshape(-1)  # type: ignore[arg-type]
        return self.as_image(x, lambda f: (np.arange(f.size), places[f]))

    def moved(self, x: int, name: str, axis: int, distance: int) -> Value:
        """Each element from so many places further along an axis of x; 0 where x has none."""
        shape, source = self.kind(self.number).shape, self.kind(x).shape

        def terms(flat: Ints) -> tuple[Ints, Ints]:
            place = [*np.unravel_index(flat, shape)]
            place[axis] = place[axis] + distance
            inside = (place[axis] >= 0) & (place[axis] < source[axis])
            found: Ints = 0
            for along, extent in zip(place, source, strict=True):
                found = found * extent + along
            return np.flatnonzero(inside), found[inside]

        grid = self.wanted(self.number)
        return self.image(f"{self.name}/{name}", terms, self.value(x), grid)

    def do_slice(self, node: Node, x: int) -> Value:
        attrs: Any = node.attrs
        return self.moved(x, "parts", attrs["axis"], attrs["start"])

    def do_pad(self, node: Node, x: int) -> Value:
        attrs: Any = node.attrs
        return self.moved(x, "parts", attrs["axis"], -attrs["before"])

    def do_concat(self, node: Node, *inputs: int) -> Value:
        attrs: Any = node.attrs
        begin, images = 0, []
        for number, x in enumerate(inputs):
            images.append((1, self.moved(x, f"part {number}", attrs["axis"], -begin)))
            begin += self.kind(x).shape[attrs["axis"]]
        return total(*images)

    def do_im2col(self, node: Node, x: int) -> Value:
        windows = Windows(node.attrs, self.kind(x).shape)
        window, offset, pixel = windows.all_pixels()
        size = self.size(self.number)
        return self.as_image(x, gather(windows.patch(window, offset), pixel, size))

    def do_col2im(self, node: Node, x: int) -> Value:
        windows = Windows(node.attrs, node.attrs["shape"])  # type: ignore[arg-type]
        window, offset, pixel = windows.all_pixels()
        size = self.size(self.number)
        return self.as_image(x, gather(pixel, windows.patch(window, offset), size))

    def do_sum_pool(self, node: Node, x: int) -> Value:
        window, _, pixel = Windows(node.attrs, self.kind(x).shape).all_pixels()
        return self.as_image(x, gather(window, pixel, self.size(self.number)))

    def do_sum_pool_grad(self, node: Node, x: int) -> Value:
        window, _, pixel = Windows(node.attrs, node.attrs["shape"]).all_pixels()  # type: ignore[arg-type]
        return self.as_image(x, gather(pixel, window, self.size(self.number)))

    def steps_of(self, node: Node, x: int) -> tuple[Windows, Grid, list[Value], list[Value]]:
        key = (x, *(node.attrs[name] for name in ("kernel", "strides", "pads")))
        if key not in self.steps:
            self.within(x, M16)
            windows = Windows(node.attrs, self.kind(x).shape)
            need(windows.area <= 64, "window")
            grid, (_, first) = self.thrifty(windows.shape), windows.first()

            def pick(offset: int) -> Value:
                def terms(flat: Ints) -> tuple[Ints, Ints]:
                    pixel, inside = windows.pixel(flat, offset)
                    return np.arange(flat.size), np.where(inside, pixel, first[flat])

                return self.image(f"{self.name}/pixel {offset}", terms, self.value(x), grid)

            maxima, gains = [pick(0)], []
            for offset in range(1, windows.area):
                gains.append(total((1, pick(offset)), (-1, maxima[-1])))
                won = self.make(f"{self.name}/gain {offset}", grid)
                self.gate(gains[-1], gains[-1], won)
                maxima.append(total((1, maxima[-1]), (1, won)))
            self.steps[key] = windows, grid, gains, maxima
        return self.steps[key]

    def do_max_pool(self, node: Node, x: int) -> Value:
        return self.steps_of(node, x)[3][-1]

    def do_max_pool_grad(self, node: Node, grad: int, x: int) -> Value:
        windows, grid, gains, _ = self.steps_of(node, x)
        left, target, images = self.in_(grad, grid), self.value(x).grid, []
        window, offsets, pixel = windows.all_pixels()
        first, _ = windows.first()

        def scatter(offset: int, taken: Value) -> Value:
            chosen = offsets == (offset if offset else first[window])
            terms = gather(pixel[chosen], window[chosen], self.size(x))
            return self.image(f"{self.name}/to {offset}", terms, taken, target)

        for offset in range(windows.area - 1, 0, -1):
            taken = self.make(f"{self.name}/taken {offset}", grid)
            self.gate(gains[offset - 1], left, taken)
            images.append(scatter(offset, taken))
            left = total((1, left), (-1, taken))
        images.append(scatter(0, left))
        return total(*((1, image) for image in images))

    def find_logits(self, e: int) -> int:
        node = self.nodes[e]
        masked = node.op == "keep_span"
        if masked:
            node = self.nodes[node.inputs[0].node]
        need(node.op == "exp2_diff", "softmax")
        z = node.inputs[0].node
        need(masked == (z in self.inside), "softmax")
        return z

    def source(self, number: int, op: str) -> Node:
        need(self.nodes[number].op == op, "softmax")
        return self.nodes[number]

    def softmax(self, logits: int, **roles: int) -> Value:
        group = self.groups.setdefault(logits, {})
        for role, number in roles.items():
            need(group.setdefault(role, number) == number, "softmax")
        return self.out(self.own_grid(self.number))

    def do_row_max(self, node: Node, z: int) -> Value:
        if self.apart(z):
            return self.lone_row_max(z)
        return self.softmax(z, maximum=self.number)

    def do_exp2_diff(self, node: Node, z: int, maximum: int) -> Value | None:
        if self.apart(z):
            return self.lone_exp2_diff(z, maximum)
        if z in self.inside:
            _, spans, fill = self.inside[z]
            begins, ends = self.find_spans(spans)
            columns = self.kind(z).shape[1]
            there = (begins < ends) & (begins < columns)
            need(fill <= self.kind(self.nodes[z].inputs[0].node).lo and there.all(), "softmax")
            return None
        return self.softmax(z, exp=self.number, maximum=maximum)

    def do_row_sum(self, node: Node, x: int) -> Value:
        if self.apart(x):
            return self.row_totals(self.name, self.own_value(x))
        return self.softmax(self.find_logits(x), sum=self.number, exp=x)

    def do_divide(self, node: Node, e: int, sum_: int) -> Value:
        if self.apart(e):
            y = self.out(self.own_grid(self.number))
            self.share(e, sum_, y, 14)
            return y
        return self.softmax(self.find_logits(e), p=self.number, exp=e, sum=sum_)

    def do_sub_one_hot(self, node: Node, p: int, label: int) -> Value:
        if self.apart(p):
            hot = self.labelled(label, self.kind(p).shape[1])
            return total((1, self.own_value(p)), (-(2**14), hot))
        z = self.find_logits(self.source(p, "divide").inputs[0].node)
        return self.softmax(z, grad=self.number, p=p, labels=label)

    def do_cross_entropy(self, node: Node, z: int, maximum: int, sum_: int, label: int) -> Value:
        if self.apart(z):
            return self.lone_cross_entropy(z, maximum, sum_, label)
        return self.softmax(z, loss=self.number, maximum=maximum, sum=sum_, labels=label)

    def do_square_sum(self, node: Node, x: int) -> Value:
        self.within(x, M16)
        value, one = self.value(x), self.own(())
        count = value.grid.count
        parts = self.make(f"{self.name}/parts", one, count=count)
        for block in range(count):
            self.say("square", {"x": value[block], "s": parts[block]})
        whole = Value(one, lambda _: merge((1, parts[block]) for block in range(count)))
        shift = int(node.attrs["shift"])  # type: ignore[arg-type]
        if shift <= 0:
            return total((2**-shift, whole))
        y = self.make(self.name, one)
        self.rescaling(whole, y, "i64", 1, 0, shift)
        return y

    def do_momentum(self, node: Node, velocity: int, grad: int) -> Value:
        v = self.value(velocity)
        g = self.in_(grad, v.grid)
        decay, shift = int(node.attrs["decay"]), int(node.attrs["shift"])  # type: ignore[arg-type]
        up, down = max(-shift, 0), max(shift, 0)
        if decay == 1 << 16:
            x = total((2**up, g))
        elif decay == 0:
            x = total((2**up, g), (2**down, v))
        else:
            decayed = self.make(f"{self.name}/decayed", v.grid)
            self.rescaling(v, decayed, "i64", decay, 0, 16)
            x = total((2**up, g), (2**down, v), (-(2**down), decayed))
        y = self.out(x.grid)
        self.rescaling(x, y, "i32", 1, 0, down)
        return y

    def do_sgd_update(self, node: Node, weight: int, velocity: int, rate: int) -> Value:
        need(rate in self.numbers, "rate")
        w = self.value(weight)
        v = self.in_(velocity, w.grid)
        shift = int(node.attrs["shift"])  # type: ignore[arg-type]
        up, down = max(-shift, 0), max(shift, 0)
        found = self.numbers[rate]
        y = self.out(w.grid)
        x = total((2**down, w), (-found * 2**up, v))
        self.rescaling(x, y, "i32", 1, -1 if shift > 0 else 0, down)
        return y

    def _end(self) -> None:
        for logits, group in self.groups.items():
            self.name = self.nodes[logits].name
            group["z"] = logits
            need({"maximum", "exp", "sum"} <= set(group), "softmax")
            of_labels = {"labels", "grad", "loss"} & set(group)
            need(logits not in self.inside or not of_labels, "softmax")
            own = self.own_grid(logits)
            classes = own.columns
            values = {
                role: self.inside[logits][0]
                if role == "z" and logits in self.inside
                else self.own_value(group[role])
                for role in ROLES
                if role in group
            }
            row, begins, ends = self.own((own.rows,)), np.zeros(1, np.int64), np.full(1, classes)
            if logits in self.inside:
                begins, ends = self.find_spans(self.inside[logits][1])
            if "labels" not in group:
                labels = partial(np.take, begins, mode="wrap")
                values["labels"] = self.make_public(f"{self.name}/label", row, labels)
            for role, end in (("p", "probability"), ("grad", "gradient"), ("loss", "loss")):
                if role not in group:
                    values[role] = self.make(f"{self.name}/{end}", row if role == "loss" else own)
            values = {role: values[role] for role in ROLES}
            most = 16 if classes <= 16 else 128
            grid = values["z"].grid
            for block in range(grid.count):
                live = np.zeros((self.side, min(self.side, most)), dtype=bool)
                for r in range(grid.height(block)):
                    span = (self.side * block + r) % len(begins)
                    live[r, begins[span] : min(ends[span], classes)] = True
                away = np.where(live, 0, 2**32).reshape(-1).tolist()
                parameters = {"away": away, "rows": self.mask(grid, block)["rows"]}
                given = {role: value[block] for role, value in values.items()}
                self.say(f"softmax-{most}", given, parameters)
        for name, source in self.next.items():
            if name not in self.made_after:
                value = self.own_value(source)
                after = self.make(f"after/{name}", value.grid, "after", self.columns[name])
                self.equal(value, after, f"next/{name}")
        loss = self.make_public("record/loss", self.own(()), lambda f: f * 0 + self.loss)
        (record,) = (node for node in self.nodes if node.op == "record")
        self.equal(self.in_(record.inputs[2].node, loss.grid), loss, "record")

    # --- 7. and 8.

    def find_leaves(self, statement: Statement) -> list[int]:
        """The leaves that an answer to it opens."""
        tiles = {tile for given in statement.given.values() for tile in given}
        return sorted(
            self.tensors[tensor].first + block
            for tensor, block in tiles
            if self.tensors[tensor].source == "trace"
        )

    def encode(self, statement: Statement) -> bytes:
        return cbor.encode(self.describe(statement))

    def describe(self, statement: Statement) -> dict[str, Any]:
        p, q = statement.pairs or (np.zeros(0), np.zeros(0))
        return {
            "circuit": statement.circuit,
            "given": {
                name: [[str(factor), *tile] for tile, factor in sorted(combination.items())]
                for name, combination in statement.given.items()
            },
            "leaves": self.find_leaves(statement),
            "linear": sorted(map(list, zip(p.tolist(), q.tolist(), strict=True))),
            "node": statement.node,
            "parameters": {name: list(value) for name, value in statement.parameters.items()},
        }

    def digest(self, statement: Statement) -> str:
        return blake3(self.encode(statement)).digest()[:8].hex()

    def public_tile(self, tensor: int, block: int) -> list[int]:
        """What the verifier commits to."""
        places, flat = self.public_grids[tensor].values(block)
        tile = np.full(self.side**2, self.padding_of.get(tensor, 0), dtype=np.int64)
        tile[places] = self.public[tensor](flat)
        return [int(value) for value in tile]


def expand_challenge(side: int, drawn: int, statement: Statement, r: int) -> list[int]:
    """The parts of kind "challenge" of ``linear``."""
    w = [0] * (side * side)
    assert statement.pairs is not None
    for p, q in zip(*(part.tolist() for part in statement.pairs), strict=True):
        w[q] = (w[q] + pow(drawn, side + 1 + p, r)) % r
    return [drawn, *w]
