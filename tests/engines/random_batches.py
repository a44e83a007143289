"""Random legal training steps on batches: any operators on samples, in any shape, to be rewritten.

No model has them.  What they find reaches the record, a state or a count of saturated elements, so
that a rewriting which makes other values is seen.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np

from tests.engines.steps import Step
from vtrain.errors import GraphError
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.legality import check_graph
from vtrain.graph.rewrite import split_batch
from vtrain.ops.base import attr_ints
from vtrain.spec.curves import CURVE_NAMES
from vtrain.train.data import build_samples
from vtrain.wire.graph import AttrValue, Ref

_SEED = bytes(8)
_SAMPLES = 24
_MOST = 1 << 12
"""Elements of a value."""

_NONE = GraphError("there is none such", where="random graph")
_Shape = tuple[int, ...]


class _Maker:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = GraphBuilder(FixedExponents({}))
        self.batch = self.number(2, 4) * self.number(1, 2)
        self.states: dict[str, Ref] = {}
        self.after: dict[str, Ref] = {}
        self.values: list[Ref] = []
        self.sums: list[Ref] = []
        self.step = self.rate = Ref(0)

    def number(self, lo: int, hi: int) -> int:
        return int(self.rng.integers(lo, hi, endpoint=True))

    def choose(self, *things: object) -> object:
        return things[self.number(0, len(things) - 1)]

    def emit(self, op: str, *inputs: Ref, **attrs: AttrValue) -> Ref:
        count = len(self.b.nodes)
        name = f"n{count}"
        if self.number(0, 19) == 0:
            # What a rewriting would call another node.
            name = f"n{self.number(0, count)}/{self.choose('again', 'part_0', 'part_1')}"
        ref = self.b.emit(op, name, inputs, **attrs)
        if math.prod(self.shape(ref)) > _MOST:
            raise _NONE
        return ref

    def shape(self, ref: Ref) -> _Shape:
        return self.b.type_of(ref).shape

    def dtype(self, ref: Ref) -> str:
        return self.b.type_of(ref).dtype

    def pick(self, *dtypes: str, rank: int | None = None, shape: _Shape | None = None) -> Ref:
        """A value, recent ones more often; GraphError: there is none."""
        fits = [
            ref
            for ref in self.values
            if (not dtypes or self.dtype(ref) in dtypes)
            and (rank is None or len(self.shape(ref)) == rank)
            and (shape is None or self.shape(ref) == shape)
        ]
        if not fits:
            raise _NONE
        return fits[-self.number(1, min(3, len(fits)))] if self.number(0, 1) else self.among(fits)

    def among(self, refs: list[Ref]) -> Ref:
        return refs[self.number(0, len(refs) - 1)]

    def narrow(self, ref: Ref, dtype: str = "i16") -> Ref:
        """``ref`` in fewer bits, some elements clamped."""
        claim = self.b.type_of(ref)
        over = max(abs(claim.lo), abs(claim.hi)).bit_length() - (15 if dtype == "i16" else 31)
        shift = max(min(over - self.number(0, max(over // 2, 1)), 64), -3)
        return self.emit(
            "rescale", ref, dtype=dtype, multiplier=1, multiplier_exponent=0, shift=shift
        )

    def operand(self, **how: object) -> Ref:
        """An int16 value of that form."""
        ref = self.pick(**how)  # type: ignore[arg-type]
        return ref if self.dtype(ref) == "i16" else self.narrow(ref)

    def name_state(self) -> str:
        """What the next state is called."""
        return f"s{len(self.states)}"

    def state(self, shape: _Shape, exponent: int = 16) -> Ref:
        name = self.name_state()
        ref = self.b.emit("state", name, (), name=name, dtype="i32", exponent=exponent, shape=shape)
        self.states[name] = ref
        return ref

    def weight(self, shape: _Shape) -> Ref:
        """A value that all samples share: a state, a mask, or numbers counted in it."""
        if self.number(0, 3) == 0:
            return self.emit(
                "dropout_mask", self.step, exponent=14, keep=40000, seed=_SEED,
                shape=shape, site=len(self.b.nodes), value=20000,
            )  # fmt: skip
        return self.narrow(self.state(shape))

    def cut_back(self, count: int, states: dict[str, Ref]) -> None:
        """Forget all nodes but the first ``count``."""
        for node in self.b.nodes[count:]:
            self.b._names.discard(node.name)
        del self.b._nodes[count:]
        self.states = states

    def partner_i16(self, ref: Ref) -> Ref:
        """An int16 value of the same shape."""
        found = self.partner(ref)
        return found if self.dtype(found) == "i16" else self.narrow(found)

    def partner(self, ref: Ref) -> Ref:
        """A value of the same shape."""
        shape = self.shape(ref)
        return self.pick(shape=shape) if self.number(0, 2) else self.weight(shape)

    def extent(self) -> int:
        return int(str(self.choose(1, 2, 3, self.batch, 2 * self.batch)))

    def other_shape(self, shape: _Shape) -> _Shape:
        """The same elements in other axes, ones among them; often with the batch first."""
        left, found = math.prod(shape), []
        if self.number(0, 2) and left % self.batch == 0:
            found, left = [self.batch], left // self.batch
        while left > 1 and len(found) < 4:
            divisors = [d for d in range(2, left + 1) if left % d == 0]
            found.append(divisors[self.number(0, len(divisors) - 1)])
            left //= found[-1]
        found.append(left)
        for _ in range(self.number(0, 2)):
            found.insert(self.number(0, len(found)), 1)
        return tuple(found)


def _window(m: _Maker, shape: _Shape) -> dict[str, AttrValue]:
    _, h, w, _ = shape
    kernel = (m.number(1, min(3, h)), m.number(1, min(3, w)))
    pads = tuple(m.number(0, k - 1) for k in (*kernel, *kernel))
    return {"kernel": kernel, "strides": (m.number(1, 2), m.number(1, 2)), "pads": pads}


def _pointwise(m: _Maker) -> Ref:
    op = str(m.choose("relu", "look_up", "add", "sub", "mul", "relu_grad", "sign", "scale_by"))
    if op in ("relu", "look_up"):
        x = m.operand()
        if op == "relu":
            return m.emit(op, x)
        table = CURVE_NAMES[m.number(0, len(CURVE_NAMES) - 1)]
        points = 10 if table.startswith("tanh") else 8
        return m.emit(op, x, table=table, shift=m.b.type_of(x).exponent - points)
    if op == "sign":
        return m.emit(op, m.pick())
    if op == "scale_by":
        return m.narrow(m.emit(op, m.operand(), m.rate, shift=m.number(0, 9)))
    a = m.operand()
    b = m.partner(a)
    b = b if m.dtype(b) == "i16" else m.narrow(b)
    if op == "relu_grad":
        return m.emit(op, a, b)
    if op == "mul":
        return m.emit(op, a, b)
    shifts = m.b.type_of(b).exponent - m.b.type_of(a).exponent
    return m.emit(op, a, b, shift_a=max(shifts, 0), shift_b=max(-shifts, 0))


def _layout(m: _Maker) -> Ref:
    op = str(m.choose("reshape", "reshape", "reshape", "transpose", "slice", "pad", "concat"))
    x = m.pick()
    shape = m.shape(x)
    if op == "reshape":
        return m.emit(op, x, shape=m.other_shape(shape))
    if not shape:
        raise _NONE
    if op == "transpose":
        perm = tuple(int(i) for i in m.rng.permutation(len(shape)))
        return m.emit(op, x, perm=perm)
    axis = m.number(0, len(shape) - 1)
    if op == "slice":
        start = m.number(0, shape[axis] - 1)
        return m.emit(op, x, axis=axis, start=start, stop=m.number(start + 1, shape[axis]))
    if op == "pad":
        return m.emit(op, x, axis=axis, before=m.number(0, 2), after=m.number(0, 2))
    return m.emit(op, x, m.pick(shape=shape), axis=axis)


def _linear(m: _Maker) -> Ref:
    kind = m.number(0, 4)
    if kind == 0:
        x = m.pick(rank=m.number(1, 3))
        x = x if m.dtype(x) == "i64" else m.emit("scale_by", x, m.rate, shift=3)
        shift = m.number(-2, 6)
        bias = m.state(m.shape(x)[-1:], m.b.type_of(x).exponent + shift)
        return m.emit("add_bias", x, bias, shift=shift)
    if kind == 1:
        x = m.operand()
        if len(m.shape(x)) < 3:
            x = m.emit("reshape", x, shape=m.other_shape(m.shape(x)))
        if len(m.shape(x)) < 3:
            raise _NONE
        *stack, _, inner = m.shape(x)
        if m.number(0, 1):
            return m.emit("batched_matmul", x, m.partner_i16(x), transpose_a=0, transpose_b=1)
        w = m.weight((*stack, inner, m.extent()))
        return m.emit("batched_matmul", x, w, transpose_a=0, transpose_b=0)
    a = m.operand(rank=2)
    if kind == 2:
        b = m.partner_i16(a)
        return m.emit("matmul", a, b, transpose_a=m.number(0, 1), transpose_b=m.number(0, 1))
    flags = m.number(0, 1), m.number(0, 1)
    inner, out = m.shape(a)[0 if flags[0] else 1], m.extent()
    w = m.weight((out, inner) if flags[1] else (inner, out))
    return m.emit("matmul", a, w, transpose_a=flags[0], transpose_b=flags[1])


def _image(m: _Maker) -> Ref:
    x = m.operand()
    if len(m.shape(x)) != 4:
        x = m.emit("reshape", x, shape=m.other_shape(m.shape(x)))
    shape = m.shape(x)
    if len(shape) != 4:
        raise _NONE
    how = _window(m, shape)
    op = str(m.choose("im2col", "max_pool", "sum_pool"))
    out = m.emit(op, x, **how)
    if m.number(0, 1):
        return out
    grad = out if m.dtype(out) == "i16" else m.narrow(out)
    if op == "max_pool":
        return m.emit("max_pool_grad", grad, x, **how)
    back = "col2im" if op == "im2col" else "sum_pool_grad"
    return m.emit(back, grad, shape=shape, **how)


def _by_rows(m: _Maker) -> Ref:
    x = m.operand()
    shape = m.shape(x)
    if not shape:
        raise _NONE
    op = str(m.choose("center", "row_dot", "row_scale", "column_scale"))
    if op == "center":
        return m.emit(op, x, shift=m.number(0, 4))
    if op == "column_scale":
        return m.emit(op, x, m.weight(shape[-1:]))
    squares = m.emit("row_dot", x, m.partner_i16(x))
    if op == "row_dot":
        return squares
    return m.emit(op, x, m.narrow(squares) if m.number(0, 1) else m.weight(shape[:-1]))


def _attention(m: _Maker) -> Ref:
    kind = m.number(0, 4)
    if kind == 4:
        ids = m.pick(rank=2)
        near, end = {"after": m.number(1, 3), "before": m.number(1, 9)}, m.number(0, 9)
        return m.emit("token_spans", ids, **near, end_of_text=end, padding=m.number(0, 9))
    x = m.operand(rank=2)
    rows = m.shape(x)[0]
    if kind == 0:
        return m.emit("softmax_grad", m.emit("normalize", x, multiplier=1, offset=0, shift=0,
                      exponent=14), m.partner_i16(x))  # fmt: skip
    if kind == 1:
        counts = [count for count in range(1, rows + 1) if rows % count == 0]
        count = counts[m.number(0, len(counts) - 1)]
        if m.number(0, 1):
            spans = m.emit("causal_spans", window=m.number(1, count), queries=count)
        else:
            spans = m.emit("sign", m.pick(shape=(count, 2)))
        return m.emit("keep_span", x, spans, fill=m.number(-5, 5))
    z = m.emit("sign", x)
    if kind == 2:
        return m.emit("row_max", z)
    return m.emit("row_sum", z)


def _softmax(m: _Maker) -> Ref:
    x = m.operand(rank=2)
    rows, _ = m.shape(x)
    scale = m.b.type_of(x).exponent - 10
    z = m.emit(
        "rescale", x, dtype="i32", multiplier=1, multiplier_exponent=0, shift=max(scale, -15)
    )
    most = m.emit("row_max", z)
    e = m.emit("exp2_diff", z, most)
    total = m.emit("row_sum", e)
    labels = m.pick("u8", "i32", "i16", shape=(rows,)) if m.number(0, 1) else m.weight((rows,))
    kind = m.number(0, 2)
    if kind == 0:
        p = m.emit("divide", e, total)
        return m.emit("sub_one_hot", p, labels) if m.number(0, 1) else p
    if kind == 1:
        return m.emit("logit_grad", e, total, labels)
    return m.emit("cross_entropy", z, most, total, labels)


def _ids(m: _Maker) -> Ref:
    kind = m.number(0, 2)
    if kind == 0:
        x = m.pick()
        return m.emit("one_hot", x, depth=m.extent())
    n = m.pick(rank=1)
    if kind == 1:
        table = m.weight((m.number(1, 9), m.extent()))
        return m.emit("gather_rows", table, n)
    x = m.pick(rank=2)
    return m.emit("scatter_add", x, m.pick(shape=m.shape(x)[:1]), rows=m.extent())


def _contract(m: _Maker) -> Ref:
    kind = m.number(0, 4)
    if kind == 0:
        return m.emit("sum", m.pick())
    if kind == 1:
        x = m.operand()
        return m.emit("square_sum", x, shift=2 * m.b.type_of(x).exponent - 16)
    if kind == 2:
        return m.emit("column_sum", m.pick())
    if kind == 3:
        x = m.pick(rank=2)
        return m.emit("scatter_add", x, m.pick(shape=m.shape(x)[:1]), rows=m.extent())
    a = m.operand(rank=2)
    fits = [ref for ref in m.values if len(m.shape(ref)) == 2 and m.shape(ref)[0] == m.shape(a)[0]]
    b = m.among(fits)
    b = b if m.dtype(b) == "i16" else m.narrow(b)
    return m.emit("matmul", a, b, transpose_a=1, transpose_b=0)


_KINDS = (
    *(_pointwise, _pointwise, _layout, _layout, _linear, _linear, _image),
    *(_by_rows, _attention, _softmax, _ids, _contract, _contract),
)


def _begin(m: _Maker, shape: _Shape, labels: _Shape) -> list[Ref]:
    b = m.b
    m.step = b.emit("state", "step", (), name="step", dtype="i64", exponent=0, shape=())
    index = b.emit("sample_index", "index", (m.step,), seed=_SEED, samples=_SAMPLES, batch=m.batch)
    raw = [
        b.emit("gather_samples", part, (index,), part=part, dtype="u8", exponent=0, shape=form)
        for part, form in (("x", shape), ("y", labels))
    ]
    kind = ("schedule", "schedule_linear")[m.number(0, 1)]
    m.rate = b.emit(kind, "rate", (m.step,), starts=(0, 2), rates=(40000, 9), exponent=15)
    x = b.emit(
        "normalize", "x/normal", raw[:1], multiplier=257, offset=-(2**15), shift=1, exponent=14
    )
    m.values += [*raw, x]
    return raw


def _grow(m: _Maker, parts: int, count: int) -> None:
    """Random nodes, of which few are such that the batch cannot be done in parts."""
    for _ in range(count):
        kept = len(m.b.nodes), dict(m.states)
        make = _KINDS[m.number(0, len(_KINDS) - 1)]
        try:
            found = make(m)
            if m.number(0, 199):
                split_batch(m.b.graph(), parts)
        except GraphError:
            m.cut_back(*kept)
            continue
        (m.sums if make is _contract else m.values).append(found)


def _keep(m: _Maker, ref: Ref) -> None:
    """Give ``ref`` to the next step: in an update of a weight, or as a state of its own."""
    kept = len(m.b.nodes), dict(m.states)
    try:
        m.after |= _update(m, ref)
    except GraphError:
        m.cut_back(*kept)
        value = m.narrow(ref, "i32")
        claim = m.b.type_of(value)
        m.after[m.name_state()] = value
        m.state(claim.shape, claim.exponent)


def _update(m: _Maker, grad: Ref) -> dict[str, Ref]:
    """Momentum and weight, the gradient now and then held to a norm, the step now and then done
    twice."""
    b, shape = m.b, m.shape(grad)
    if m.number(0, 2) == 0:
        flat = m.emit("reshape", m.narrow(grad), shape=(1, math.prod(shape)))
        square = m.emit("sum", m.emit("row_dot", flat, flat))
        grad = m.emit("scale_by", grad, m.emit("clip_factor", square, limit=2**20), shift=15)
    names = [m.name_state()]
    velocity = m.state(shape)
    names.append(m.name_state())
    weight = m.state(shape, 24)
    moved = m.emit("momentum", velocity, grad, decay=6000, shift=b.type_of(grad).exponent - 16)
    for _ in range(m.number(1, 2)):
        weight = m.emit("sgd_update", weight, moved, m.rate, shift=16 + 15 - 24)
    return dict(zip(names, (moved, weight), strict=True))


def _weigh(m: _Maker, ref: Ref) -> Ref:
    """A sum over the samples to which every place adds with a weight of its own."""
    size = math.prod(m.shape(ref))
    rows = m.shape(ref)[0] if len(m.shape(ref)) == 2 and m.number(0, 1) else m.batch
    if m.dtype(ref) != "i16":
        ref = m.narrow(ref)
    x = m.emit("reshape", ref, shape=(rows, size // rows))
    mask = m.emit(
        "dropout_mask", m.step, exponent=14, keep=30000, seed=_SEED, shape=(rows, 3),
        site=len(m.b.nodes), value=3,
    )  # fmt: skip
    return m.emit("matmul", x, mask, transpose_a=1, transpose_b=0)


def _end(m: _Maker, raw: list[Ref], commit_every: int) -> None:
    b = m.b
    read = {ref for node in b.nodes for ref in node.inputs}
    for ref in m.values:
        if ref not in read and math.prod(m.shape(ref)) % m.batch == 0:
            with contextlib.suppress(GraphError):
                m.sums.append(_weigh(m, ref))
    loss = b.emit("sum", "loss", (m.values[-1],))
    for ref in m.sums:
        if ref not in {r for node in b.nodes for r in node.inputs}:
            _keep(m, ref)
    digests = [b.emit("tensor_digest", f"digest/{i}", (ref,)) for i, ref in enumerate(raw)]
    batch = b.emit("batch_digest", "batch", digests)
    after = {**m.states, **m.after, "step": b.emit("increment", "counted", (m.step,))}
    for name, ref in after.items():
        b.emit("next_state", f"{name}/next", (ref,), name=name)
    leaves = []
    for name in sorted(after):
        claim = b.type_of(after[name])
        digest = b.emit("tensor_digest", f"{name}/digest", (after[name],))
        leaves.append(
            b.emit(
                "state_leaf",
                f"{name}/leaf",
                (digest,),
                name=name,
                dtype=claim.dtype,
                shape=claim.shape,
                exponent=claim.exponent,
            )
        )
    root = b.emit("state_root", "root", leaves)
    b.emit("record", "record", (after["step"], batch, loss, root), commit_every=commit_every)


def make_random_batch(seed: int) -> tuple[Step, int]:
    """A legal step, and a number of parts in which its batch can mostly be done."""
    m = _Maker(seed)
    divisors = [d for d in range(2, m.batch + 1) if m.batch % d == 0]
    parts = divisors[m.number(0, len(divisors) - 1)]
    side = m.number(1, 4)
    shapes: tuple[_Shape, ...] = ((m.batch,), (side, side, 2), (m.batch, 3), (5,), (1, m.batch))
    shape = shapes[m.number(0, len(shapes) - 1)]
    labels: _Shape = () if m.number(0, 1) else (m.number(1, 4),)
    raw = _begin(m, shape, labels)
    _grow(m, parts, m.number(10, 40))
    _end(m, raw, 1 + seed % 3)
    graph = m.b.graph()
    check_graph(graph)
    x = m.rng.integers(0, 256, (_SAMPLES, *shape), dtype=np.uint8)
    y = m.rng.integers(0, 9, (_SAMPLES, *labels), dtype=np.uint8)
    state = {
        name: np.zeros((), np.int64)
        if name == "step"
        else m.rng.integers(
            -(2**31) + 1, 2**31, attr_ints(graph.nodes[ref.node].attrs, "shape")
        ).astype(np.int32)
        for name, ref in {**m.states, "step": m.step}.items()
    }
    return Step(graph, build_samples(x, y), state), parts
