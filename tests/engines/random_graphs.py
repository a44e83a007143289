"""Random step graphs that no model has: any wiring of values and states, to try the planner.

They are no legal training steps (ranges are not proven), but both engines define what they do:
all shifts are such that fused and unfused arithmetic agree for every int64.
"""

from __future__ import annotations

import numpy as np

from tests.engines.steps import Step
from vtrain.ops import TABLE
from vtrain.spec.curves import CURVE_NAMES
from vtrain.spec.number import STORAGE
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.wire.graph import AttrValue, Node, Ref, StepGraph, TensorType

SIDE = 6
SQUARE = (SIDE, SIDE)
FLAT = (SIDE * SIDE,)


class _Graph:
    def __init__(self, rng: np.random.Generator) -> None:
        self.nodes: list[Node] = []
        self.rng = rng

    def emit(
        self, op: str, dtype: str, shape: tuple[int, ...], inputs: list[Ref], /, **attrs: AttrValue
    ) -> Ref:
        assert op in TABLE
        claim = TensorType(dtype, shape, 0, *STORAGE[dtype])
        self.nodes.append(Node(f"n{len(self.nodes)}", op, attrs, tuple(inputs), (claim,)))
        return Ref(len(self.nodes) - 1)

    def pick(self, dtype: str, shape: tuple[int, ...]) -> Ref | None:
        """A random value of that type, recent ones more often."""
        claims = [node.outputs[0] for node in self.nodes]
        fits = [i for i, claim in enumerate(claims) if (claim.dtype, claim.shape) == (dtype, shape)]
        if not fits:
            return None
        if self.rng.random() < 0.6:
            fits = fits[-3:]
        return Ref(int(self.rng.choice(fits)))

    def pick_any(self, shape: tuple[int, ...]) -> Ref | None:
        return self.pick(str(self.rng.choice(["i16", "i32", "i64"])), shape)

    def number(self, lo: int, hi: int) -> int:
        return int(self.rng.integers(lo, hi, endpoint=True))


_OPERATORS = (
    ("matmul", "i64", ("i16", "i16")),
    ("matmul", "i64", ("i16", "i16")),
    ("rescale", "i16", ("int",)),
    ("rescale", "i16", ("i64",)),
    ("rescale", "i32", ("int",)),
    ("normalize", "i16", ("int",)),
    ("relu", "i16", ("i16",)),
    ("relu_grad", "i16", ("i16", "i16")),
    ("look_up", "i16", ("i16",)),
    ("add", "i64", ("int", "int")),
    ("sub", "i64", ("int", "int")),
    ("mul", "i64", ("int", "int")),
    ("momentum", "i32", ("i32", "i64")),
    ("momentum", "i32", ("i32", "i64")),
    ("sgd_update", "i32", ("i32", "i32")),
    ("sgd_update", "i32", ("i32", "i32")),
    ("sign", "i32", ("int",)),
    ("capped_square", "i64", ("int",)),
    ("scale_by", "i64", ("int",)),
    ("adam_mean", "i32", ("i32", "i16")),
    ("adam_square", "i64", ("i64", "i16")),
    ("adam_direction", "i32", ("i32", "i64")),
    ("add_bias", "i64", ("i64",)),
    ("center", "i32", ("i16",)),
    ("row_scale", "i64", ("int",)),
    ("column_scale", "i64", ("int",)),
    ("keep_span", "", ("int",)),
    ("softmax_grad", "i64", ("i16", "i16")),
    ("transpose", "", ("int",)),
    ("reshape", "", ("int",)),
    ("dropout_mask", "i16", ()),
    ("pad", "i16", ("i64",)),
)


def _draw_more(g: _Graph, op: str, shape: tuple[int, ...]) -> dict[str, AttrValue]:
    if op == "look_up":
        name = CURVE_NAMES[g.number(0, len(CURVE_NAMES) - 1)]
        return {"table": name, "shift": g.number(-2, 8)}
    if op == "normalize":
        return {
            "multiplier": g.number(1, 2**31),
            "offset": g.number(-(2**60), 2**60),
            "shift": g.number(0, 64),
            "exponent": 0,
        }
    if op == "scale_by":
        return {"shift": g.number(0, 20)}
    if op == "dropout_mask":
        return {
            "exponent": 14,
            "keep": g.number(1, 2**16 - 1),
            "seed": bytes(8),
            "shape": shape,
            "site": g.number(0, 9),
            "value": g.number(1, 2**15 - 1),
        }
    if op == "keep_span":
        return {"fill": g.number(-9, 9)}
    if op in ("capped_square", "momentum"):
        name, most = ("bits", 59) if op == "capped_square" else ("decay", 65536)
        return {name: g.number(0, most), "shift": g.number(0, 20)}
    if op == "adam_direction":
        return {"epsilon": g.number(1, 99), "shift": g.number(0, 31)}
    attrs: dict[str, AttrValue] = {"rate": g.number(0, 256), "shift": g.number(8, 46)}
    return attrs | ({"lift": g.number(0, 15)} if op == "adam_mean" else {})


_WITH_MORE = (
    *("normalize", "look_up", "capped_square", "scale_by", "dropout_mask", "momentum"),
    *("adam_mean", "adam_square", "adam_direction", "keep_span"),
)
_BY_LINES = ("add_bias", "center", "row_scale", "column_scale")
_LINE_SHIFTS = {"add_bias": (-4, 4), "center": (0, 9)}
_OF_SQUARES = ("matmul", "transpose", "pad", "keep_span", "softmax_grad", *_BY_LINES)


def _draw_factors(g: _Graph, op: str, bias: Ref) -> list[Ref]:
    """A number for each column, or for each row: an inverse root of the squares of some rows."""
    if op == "column_scale" and g.number(0, 1):
        wide = g.pick_any(SQUARE)
        return [bias if wide is None else g.emit("column_sum", "i64", (SIDE,), [wide])]
    if op != "row_scale":
        return [bias] * (op != "center")
    rows = g.pick("i16", SQUARE) or g.pick("i32", SQUARE)
    assert rows is not None
    squares = g.emit("row_dot", "i64", (SIDE,), [rows, rows])
    attrs: dict[str, AttrValue] = {
        "epsilon": g.number(1, 2**20),
        "lift": g.number(0, 12),
        "numerator": g.number(1, 2**40),
        "numerator_exponent": 20,
    }
    return [g.emit("inverse_root", "i64", (SIDE,), [squares], **attrs)]


def _emit_spans(g: _Graph) -> Ref:
    """So many that the rows of a square take them in turns."""
    queries = (1, 2, 3, SIDE)[g.number(0, 3)]
    attrs: dict[str, AttrValue] = {"queries": queries, "window": g.number(1, queries)}
    return g.emit("causal_spans", "i32", (queries, 2), [], **attrs)


def _emit_wide(g: _Graph, value: Ref) -> Ref:
    """Zeros beside a square, turned or not, and then a rescale, which an engine may do before."""
    before, after = (1, 2) if g.number(0, 1) else (2, 1)
    if g.number(0, 1):
        value = g.emit("transpose", "i64", SQUARE, [value], perm=(1, 0))
    wide = g.emit("pad", "i64", (SIDE, SIDE + 3), [value], axis=1, before=before, after=after)
    attrs: dict[str, AttrValue] = {"dtype": "i16", "multiplier": 1, "multiplier_exponent": 0}
    return g.emit("rescale", "i16", (SIDE, SIDE + 3), [wide], **attrs, shift=g.number(0, 40))


def _emit_random(g: _Graph, scalar: Ref, bias: Ref) -> None:
    op, dtype, wanted = _OPERATORS[g.number(0, len(_OPERATORS) - 1)]
    shape = SQUARE if op in _OF_SQUARES or g.number(0, 3) else FLAT
    picks = [g.pick_any(shape) if want == "int" else g.pick(want, shape) for want in wanted]
    inputs = [ref for ref in picks if ref is not None]
    if len(inputs) < len(wanted):
        return
    attrs: dict[str, AttrValue] = {}
    if op == "matmul":
        attrs = {"transpose_a": g.number(0, 1), "transpose_b": g.number(0, 1)}
    elif op == "rescale":
        multiplier = 1 if g.number(0, 3) else 3
        attrs = {
            "dtype": dtype,
            "multiplier": multiplier,
            "multiplier_exponent": 0,
            "shift": g.number(0, 40),
        }
    elif op in ("add", "sub"):
        attrs = {"shift_a": g.number(0, 3), "shift_b": g.number(0, 3)}
    elif op == "sgd_update":
        attrs = {"shift": g.number(0, 20)}
        inputs.append(scalar)
    elif op in _WITH_MORE:
        dtype = dtype or g.nodes[inputs[0].node].outputs[0].dtype
        attrs = _draw_more(g, op, shape)
        inputs += [scalar] * (op in ("scale_by", "dropout_mask"))
        inputs += [_emit_spans(g)] if op == "keep_span" else []
    elif op in _BY_LINES:
        if op in _LINE_SHIFTS:
            attrs = {"shift": g.number(*_LINE_SHIFTS[op])}
        inputs += _draw_factors(g, op, bias)
    elif op == "pad":
        dtype, inputs, attrs = "i16", [_emit_wide(g, inputs[0])], {"axis": 1, "start": 2, "stop": 8}
        op = "slice"
    elif op in ("transpose", "reshape"):
        dtype = g.nodes[inputs[0].node].outputs[0].dtype
        if op == "transpose":
            attrs = {"perm": (1, 0)}
        else:
            shape = FLAT if shape == SQUARE else SQUARE
            attrs = {"shape": shape}
    g.emit(op, dtype, shape, inputs, **attrs)


def _emit_update(g: _Graph, before: dict[str, Ref], rate: Ref) -> dict[str, Ref]:
    """matmul, momentum, sgd_update on random states, with random nodes in between: often, but not
    always, to be merged.  Returns the new values of the two states."""
    a, b = g.pick("i16", SQUARE), g.pick("i16", SQUARE)
    assert a is not None
    assert b is not None
    turned = {"transpose_a": g.number(0, 1), "transpose_b": g.number(0, 1)}
    grad = g.emit("matmul", "i64", SQUARE, [a, b], **turned)
    velocity, weight = (f"s{g.number(0, 4)}" for _ in range(2))
    if g.number(0, 3) == 0:
        flat = g.emit("reshape", "i64", FLAT, [grad], shape=FLAT)
        grad = g.emit("reshape", "i64", SQUARE, [flat], shape=SQUARE)
    for _ in range(g.number(0, 2)):
        _emit_random(g, rate, before["bias"])
    shift = g.number(0, 20)
    moved = g.emit(
        "momentum", "i32", SQUARE, [before[velocity], grad], decay=g.number(0, 65536), shift=shift
    )
    for _ in range(g.number(0, 2)):
        _emit_random(g, rate, before["bias"])
    stepped = g.emit("sgd_update", "i32", SQUARE, [before[weight], moved, rate], shift=shift)
    return {velocity: moved, weight: stepped}


def _emit_batch(g: _Graph, t: Ref) -> Ref:
    index = g.emit("sample_index", "i64", (3,), [t], seed=bytes(8), samples=9, batch=3)
    digests = []
    for part, shape in (("x", (2,)), ("y", ())):
        raw = g.emit(
            "gather_samples",
            "u8",
            (3, *shape),
            [index],
            part=part,
            dtype="u8",
            exponent=0,
            shape=shape,
        )
        digests.append(g.emit("tensor_digest", "u8", (32,), [raw]))
    return g.emit("batch_digest", "u8", (32,), digests)


_RATES: tuple[tuple[str, dict[str, AttrValue]], ...] = (
    ("schedule", {"starts": (0, 2), "rates": (40000, 9), "exponent": 0}),
    ("schedule_linear", {"starts": (0, 3), "rates": (40000, 9), "exponent": 0}),
    ("adam_correction", {"beta1": 1932735283, "beta2": 2145336164}),
)


def make_random_step(seed: int) -> Step:
    """States s0..s4 of one form, a bias, random operators, and any of the values as next state."""
    g = _Graph(np.random.default_rng(seed))
    declared: dict[str, tuple[str, tuple[int, ...]]] = {
        "step": ("i64", ()),
        "bias": ("i32", (SIDE,)),
        **{f"s{i}": ("i32", SQUARE) for i in range(5)},
    }
    before = {
        name: g.emit("state", dtype, shape, [], name=name, dtype=dtype, exponent=0, shape=shape)
        for name, (dtype, shape) in declared.items()
    }
    t = before["step"]
    batch_digest = _emit_batch(g, t)
    op, attrs = _RATES[seed % 3]
    rate = g.emit(op, "i64", (), [t], **attrs)
    for _ in range(3):
        source = before[f"s{g.number(0, 4)}"]
        g.emit(
            "rescale", "i16", SQUARE, [source], dtype="i16", multiplier=1, multiplier_exponent=0,
            shift=g.number(8, 24),
        )  # fmt: skip
    for _ in range(g.number(5, 40)):
        _emit_random(g, rate, before["bias"])
    after = {"step": g.emit("increment", "i64", (), [t]), "bias": before["bias"]}
    for _ in range(g.number(0, 4)):
        after |= _emit_update(g, before, rate)
    for name in ("s0", "s1", "s2", "s3", "s4"):
        value = g.pick("i32", SQUARE)
        assert value is not None
        if name not in after or g.number(0, 3) == 0:
            after[name] = value
    wide = g.pick("i64", SQUARE) or after["s0"]
    loss = g.emit("sum", "i64", (), [wide])
    for name, value in after.items():
        g.emit("next_state", *declared[name], [value], name=name)
    leaves = []
    for name in sorted(after):
        digest = g.emit("tensor_digest", "u8", (32,), [after[name]])
        dtype, shape = declared[name]
        leaves.append(
            g.emit(
                "state_leaf", "u8", (32,), [digest], name=name, dtype=dtype, shape=shape, exponent=0
            )
        )
    root = g.emit("state_root", "u8", (32,), leaves)
    g.emit("record", "u8", (32,), [after["step"], batch_digest, loss, root], commit_every=2)
    state = {
        name: np.zeros(shape, np.int64)
        if dtype == "i64"
        else g.rng.integers(-(2**31), 2**31, shape, dtype=np.int64).astype(np.int32)
        for name, (dtype, shape) in declared.items()
    }
    return Step(StepGraph(tuple(g.nodes)), _samples(), state)


def _samples() -> Samples:
    x = np.arange(18, dtype=np.uint8).reshape(9, 2)
    return build_samples(x, np.arange(9, dtype=np.uint8))
