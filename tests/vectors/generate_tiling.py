"""Writes ``tiling.json``: how steps of small graphs fall into statements about tiles.

``python -m tests.vectors.generate_tiling`` writes it from vtrain/prove/tiles; which rule refuses a
graph is stated here.  ``--check`` compares and exits 1 when it differs.  README.md documents the
format, docs/tiling.md the rules; ``tiling_rule.py`` says the same independently.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from tests.vectors.files import format_cases, write_or_compare
from tests.vectors.generate_graphs import Draft, Drafts, build, find_edits, list_items, rescale
from vtrain.errors import CircuitError
from vtrain.graph.legality import check_graph
from vtrain.prove.tiles.protocol import find_leaves
from vtrain.prove.tiles.statements import StepFacts, Tile, TileContents, TileStatement
from vtrain.prove.tiles.tiling import Tiling
from vtrain.wire import cbor
from vtrain.wire.graph import Attrs, StepGraph, decode_graph, encode_graph

PATH = Path(__file__).with_name("tiling.json")
Json = dict[str, Any]
LOSS = 123456789012
"""In the step's record."""


# --- small graphs


@dataclass(frozen=True)
class Plan:
    """A step without what every step has: ``states`` by name, with dtype, shape, exponent;
    ``after`` are the nodes that go on as states, those of the others being the states
    themselves."""

    body: Drafts
    states: Mapping[str, tuple[str, tuple[int, ...], int]]
    loss: str
    after: Mapping[str, str]
    batch: int = 5
    x: tuple[str, tuple[int, ...], int] = ("u8", (3,), 8)
    y: tuple[str, tuple[int, ...], int] = ("u8", (), 0)

    def with_(self, *more: Draft, **changes: Any) -> Plan:
        """More nodes behind the others; other fields."""
        body = (*changes.pop("body", self.body), *more)
        return Plan(**{**vars(self), **changes, "body": body})

    def graph(self) -> StepGraph:
        """A legal graph."""
        states = {**self.states, "step": ("i64", (), 0)}
        after = {name: self.after.get(name, name) for name in states} | {"step": "next"}
        names = sorted(states, key=str.encode)
        attrs: dict[str, Attrs] = {
            name: {"name": name, "dtype": dtype, "shape": shape, "exponent": exponent}
            for name, (dtype, shape, exponent) in states.items()
        }
        parts = {"x": self.x, "y": self.y}
        drafts = (
            *(Draft(name, "state", (), attrs[name]) for name in states),
            Draft("i", "sample_index", ("step",),
                  {"seed": bytes(8), "batch": self.batch, "samples": 9}),
            *(
                Draft(part, "gather_samples", ("i",),
                      {"part": part, "dtype": dtype, "shape": shape, "exponent": exponent})
                for part, (dtype, shape, exponent) in parts.items()
            ),
            *self.body,
            Draft("next", "increment", ("step",)),
            *(Draft(f"+{name}", "next_state", (after[name],), {"name": name}) for name in states),
            *(Draft(f"#{name}", "tensor_digest", (name,)) for name in parts),
            Draft("batch", "batch_digest", ("#x", "#y")),
            *(Draft(f"#{name}", "tensor_digest", (after[name],)) for name in names),
            *(Draft(f"={name}", "state_leaf", (f"#{name}",), attrs[name]) for name in names),
            Draft("root", "state_root", tuple(f"={name}" for name in names)),
            Draft("record", "record", ("next", "batch", self.loss, "root"), {"commit_every": 1}),
        )  # fmt: skip
        graph = build(drafts)
        check_graph(graph)
        return graph


def weights(*shape: int) -> tuple[str, tuple[int, ...], int]:
    return "i32", shape, 24


def velocity(*shape: int) -> tuple[str, tuple[int, ...], int]:
    return "i32", shape, 16


def matmul(name: str, a: str, b: str, form: str = "nn") -> Draft:
    attrs: Attrs = {"transpose_a": int(form[0] == "t"), "transpose_b": int(form[1] == "t")}
    return Draft(name, "matmul", (a, b), attrs)


def normalize(name: str, source: str, shift: int = 1, offset: int = 0) -> Draft:
    attrs: Attrs = {"multiplier": 257, "offset": offset, "shift": shift, "exponent": 15}
    return Draft(name, "normalize", (source,), attrs)


def shifted(name: str, op: str, source: tuple[str, ...], *shift: int) -> Draft:
    """``add``, ``sub``, ``add_bias``, ``square_sum``."""
    keys = ("shift_a", "shift_b") if len(shift) > 1 else ("shift",)
    return Draft(name, op, source, dict(zip(keys, shift, strict=True)))


def schedule(name: str, exponent: int, source: str = "step") -> Draft:
    attrs: Attrs = {"starts": (0, 2), "rates": (40960, 0), "exponent": exponent}
    return Draft(name, "schedule", (source,), attrs)


def windows(
    name: str,
    op: str,
    source: tuple[str, ...],
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    shape: tuple[int, ...] | None = None,
) -> Draft:
    attrs: Attrs = {"kernel": kernel, "strides": strides, "pads": pads}
    return Draft(name, op, source, attrs if shape is None else {**attrs, "shape": shape})


def reshape(name: str, source: str, *shape: int) -> Draft:
    return Draft(name, "reshape", (source,), {"shape": shape})


PRODUCTS = Plan(
    (
        normalize("xi", "x"),
        rescale("ai", "a", "i16", 10),
        rescale("bi", "b", "i16", 10),
        rescale("low", "a", "i16", 21),
        matmul("acc", "xi", "ai"),
        shifted("biased", "add_bias", ("acc", "c"), -5),
        rescale("h", "biased", "i16", 15),
        rescale("short", "acc", "i64", 15),
        shifted("raised", "add_bias", ("short", "c"), 10),
        rescale("g", "raised", "i16", 3),
        matmul("nt", "h", "bi", "nt"),
        matmul("tn", "xi", "g", "tn"),
        rescale("u", "tn", "i16", 20),
        shifted("d", "sub", ("g", "h"), 3, 0),
        shifted("e", "add", ("d", "d"), 1, 1),
        Draft("m", "mul", ("h", "g")),
        Draft("columns", "column_sum", ("e",)),
        Draft("all", "sum", ("m",)),
        shifted("small", "square_sum", ("h",), 12),
        shifted("large", "square_sum", ("low",), -10),
        Draft("lines", "column_sum", ("nt",)),
    ),
    {"a": weights(9, 5), "b": weights(7, 5), "c": weights(5)},
    "small",
    {},
    batch=6,
    x=("u8", (9,), 8),
)
"""Products of every form, of several blocks each way; biases up and down; sums."""


def batched(name: str, a: str, b: str, form: str = "nn") -> Draft:
    attrs: Attrs = {"transpose_a": int(form[0] == "t"), "transpose_b": int(form[1] == "t")}
    return Draft(name, "batched_matmul", (a, b), attrs)


def part(name: str, source: str, axis: int, start: int, stop: int) -> Draft:
    return Draft(name, "slice", (source,), {"axis": axis, "start": start, "stop": stop})


def padded(name: str, source: str, axis: int, before: int, after: int) -> Draft:
    return Draft(name, "pad", (source,), {"axis": axis, "before": before, "after": after})


def joined(name: str, axis: int, *sources: str) -> Draft:
    return Draft(name, "concat", sources, {"axis": axis})


STACKS = Plan(
    (
        normalize("xi", "x"),
        batched("nt", "xi", "xi", "nt"),
        rescale("s", "nt", "i16", 18),
        batched("nn", "s", "xi"),
        batched("tn", "xi", "s", "tn"),
        rescale("t", "tn", "i16", 12),
        part("middle", "xi", 1, 1, 3),
        part("side", "t", 2, 0, 1),
        part("one", "xi", 0, 1, 2),
        padded("wide", "middle", 2, 2, 1),
        padded("tall", "wide", 1, 0, 3),
        reshape("turned", "t", 2, 3, 5),
        joined("all", 1, "xi", "turned", "xi"),
        joined("flat", 0, "all", "all"),
        rescale("ki", "k", "i16", 12),
        batched("whole", "ki", "ki", "nt"),
        batched("uneven", "ki", "ki", "tn"),
        rescale("u", "uneven", "i16", 12),
        batched("after", "ki", "u"),
        rescale("li", "l", "i16", 12),
        batched("single", "li", "li"),
        Draft("p", "mul", ("flat", "flat")),
        Draft("loss", "sum", ("p",)),
    ),
    {"k": weights(2, 4, 6), "l": weights(1, 3, 3)},
    "loss",
    {},
    batch=2,
    x=("u8", (3, 5), 8),
)
"""Stacks of matrices that fill blocks and that do not; parts of tensors and their joining."""

RESCALES = Plan(
    (
        *(
            rescale(f"{dtype} {shift}", "wide", dtype, shift, 3)
            for dtype in ("i16", "i32")
            for shift in (-1, 0, 14, 15, 30, 44, 59)
        ),
        *(rescale(f"i64 {shift}", "wide", "i64", shift, 3) for shift in (-2, 1, 29, 43, 44)),
        *(normalize(f"n {shift}", "x", shift, -9000) for shift in (0, 14, 15)),
        rescale("same", "n", "i64", 0),
        Draft("loss", "sum", ("i64 1",)),
        shifted("both", "sub", ("wide", "wide"), 0, 0),
        rescale("none", "both", "i32", 3),
    ),
    {
        "copy": weights(5, 6),
        "n": ("i64", (), 0),
        "one": weights(5, 6),
        "two": weights(5, 6),
        "wide": weights(5, 6),
    },
    "loss",
    {"copy": "wide", "n": "same", "one": "i32 0", "two": "i32 0"},
)
"""Every circuit of rescalings; states that are copies, sums, or two of one value."""


def list_updates() -> Iterator[Draft]:
    yield normalize("xi", "x")
    yield rescale("a", "w0", "i16", 10)
    yield matmul("acc", "xi", "a")
    yield rescale("p", "acc", "i16", 16)
    yield matmul("g", "xi", "p", "tn")
    for number, (decay, exponent, rate) in enumerate(
        [(0, 20, 22), (1 << 16, 16, 8), (6554, 12, 4), (6554, 20, 8), (1, 16, 22)]
    ):
        shift = 15 + 13 - exponent
        yield rescale(f"g{number}", "g", "i64", shift)
        attrs: Attrs = {"decay": decay, "shift": exponent - 16}
        yield Draft(f"m{number}", "momentum", (f"v{number}", f"g{number}"), attrs)
        yield schedule(f"r{number}", rate)
        yield shifted(f"u{number}", "sgd_update", (f"w{number}", f"m{number}", f"r{number}"),
                      rate - 8)  # fmt: skip
    yield Draft("loss", "sum", ("g",))


UPDATES = Plan(
    tuple(list_updates()),
    {f"v{n}": velocity(3, 5) for n in range(5)} | {f"w{n}": weights(3, 5) for n in range(5)},
    "loss",
    {f"v{n}": f"m{n}" for n in range(5)} | {f"w{n}": f"u{n}" for n in range(5)},
)
"""Momenta of every kind, and updates by rates of which one is 0 from the third step on."""

IMAGES = Plan(
    (
        normalize("xi", "x", 2, -9000),
        windows("patches", "im2col", ("xi",), (3, 2), (2, 1), (1, 0, 1, 1)),
        rescale("ki", "k", "i16", 12),
        matmul("conv", "patches", "ki", "nt"),
        shifted("biased", "add_bias", ("conv", "b"), -3),
        reshape("image", "biased", 3, 4, 6, 2),
        rescale("h", "image", "i16", 17),
        windows("max", "max_pool", ("h",), (3, 2), (2, 2), (1, 1, 1, 0)),
        windows("again", "max_pool", ("h",), (3, 2), (2, 2), (1, 1, 1, 0)),
        windows("one", "max_pool", ("h",), (1, 1)),
        Draft("r", "relu", ("max",)),
        windows("means", "sum_pool", ("r",), (2, 2), (1, 1), (0, 0, 1, 0)),
        rescale("mean", "means", "i16", 2),
        Draft("turned", "transpose", ("mean",), {"perm": (0, 3, 1, 2)}),
        reshape("flat", "turned", 3, 8),
        rescale("wi", "w", "i16", 12),
        matmul("z", "flat", "wi"),
        rescale("zi", "z", "i16", 14),
        matmul("gw", "flat", "zi", "tn"),
        matmul("gf", "zi", "wi", "nt"),
        reshape("gt", "gf", 3, 2, 2, 2),
        Draft("gm", "transpose", ("gt",), {"perm": (0, 2, 3, 1)}),
        windows("gs", "sum_pool_grad", ("gm",), (2, 2), (1, 1), (0, 0, 1, 0), (3, 2, 3, 2)),
        rescale("gsi", "gs", "i16", 20),
        Draft("gr", "relu_grad", ("gsi", "r")),
        windows("gx", "max_pool_grad", ("gr", "h"), (3, 2), (2, 2), (1, 1, 1, 0)),
        rescale("gxi", "gx", "i16", 1),
        windows("alone", "max_pool_grad", ("mean", "xi"), (5, 4), (2, 2), (0, 0, 0, 0)),
        reshape("rows", "gxi", 72, 2),
        Draft("gb", "column_sum", ("rows",)),
        matmul("gk", "rows", "patches", "tn"),
        matmul("gp", "rows", "ki"),
        windows("gi", "col2im", ("gp",), (3, 2), (2, 1), (1, 0, 1, 1), (3, 7, 6, 2)),
        Draft("loss", "sum", ("gi",)),
    ),
    {"b": ("i32", (2,), 24), "k": weights(2, 12), "w": weights(8, 5)},
    "loss",
    {},
    batch=3,
    x=("u8", (7, 6, 2), 8),
)
"""A convolution with its gradients, maxima with ties and padding, sums, transposes, packing."""

TOKENS = Plan(
    (
        Draft("hot", "one_hot", ("x",), {"depth": 5}),
        rescale("wi", "w", "i16", 10),
        matmul("z", "hot", "wi"),
        Draft("loss", "sum", ("z",)),
    ),
    {"w": weights(15, 3)},
    "loss",
    {},
)


def make_softmax(z: str, labels: str) -> Drafts:
    """All of a softmax; names end in that of the logits."""
    return (
        Draft(f"max {z}", "row_max", (z,)),
        Draft(f"exp {z}", "exp2_diff", (z, f"max {z}")),
        Draft(f"sum {z}", "row_sum", (f"exp {z}",)),
        Draft(f"p {z}", "divide", (f"exp {z}", f"sum {z}")),
        Draft(f"g {z}", "sub_one_hot", (f"p {z}", labels)),
        Draft(f"rows {z}", "cross_entropy", (z, f"max {z}", f"sum {z}", labels)),
    )


def make_classes(classes: int, batch: int = 130) -> Plan:
    """Cross-entropy over so many classes."""
    return Plan(
        (
            normalize("xi", "x"),
            rescale("wi", "w", "i16", 10),
            matmul("acc", "xi", "wi"),
            rescale("z", "acc", "i32", 19),
            *make_softmax("z", "y"),
            Draft("loss", "sum", ("rows z",)),
            matmul("gw", "xi", "g z", "tn"),
        ),
        {"w": weights(3, classes)},
        "loss",
        {},
        batch=batch,
    )


def make_shares(classes: int) -> Plan:
    """The fine gradient of so many classes, with labels that are held to them."""
    body = tuple(
        Draft(d.name, "logit_grad", ("exp z", "sum z", "y")) if d.name == "g z" else d
        for d in make_classes(classes, 5).body
        if d.name not in ("p z", "gw")
    )
    return Plan(
        (*body, rescale("gi", "g z", "i16", 15), matmul("gw", "xi", "gi", "tn")),
        {"w": weights(3, classes)},
        "loss",
        {},
        batch=5,
        y=("i32", (), 0),
    )


_ROWS_OF_SPANS = (
    Draft("kept", "keep_span", ("z", "spans"), {"fill": -(2**31) + 1}),
    Draft("max", "row_max", ("kept",)),
    Draft("e", "exp2_diff", ("kept", "max")),
    Draft("exp", "keep_span", ("e", "spans"), {"fill": 0}),
    Draft("total", "row_sum", ("exp",)),
    Draft("p", "divide", ("exp", "total")),
)
"""The softmax of rows z within spans."""

HIDDEN = Plan(
    (
        normalize("xi", "x"),
        rescale("wi", "w", "i16", 10),
        matmul("acc", "xi", "wi"),
        rescale("all", "acc", "i32", 19),
        reshape("z", "all", 36, 6),
        Draft("spans 3", "token_spans", ("x",),
              {"before": 4, "after": 2, "end_of_text": 1, "padding": 0}),
        reshape("spans", "spans 3", 18, 2),
        *_ROWS_OF_SPANS,
        Draft("whole rows", "token_spans", ("y",),
              {"before": 9, "after": 9, "end_of_text": 2**31, "padding": 2**31}),
        Draft("padded", "token_spans", ("y",),
              {"before": 1, "after": 1, "end_of_text": 2**31, "padding": 7}),
        shifted("both", "add", ("whole rows", "padded"), 0, 0),
        Draft("sum both", "sum", ("both",)),
        Draft("loss", "sum", ("p",)),
    ),
    {"w": weights(6, 72)},
    "loss",
    {},
    batch=3,
    x=("u8", (6,), 8),
    y=("i32", (2,), 0),
)  # fmt: skip
"""Spans of documents between paddings, rows of attention with them; spans of paddings alone, of ids
that are held to what gates take, and of neither."""

ERRORS = Plan(
    (
        normalize("xi", "x"),
        rescale("wi", "w", "i16", 10),
        matmul("acc", "xi", "wi"),
        rescale("h", "acc", "i16", 19),
        rescale("ui", "u", "i16", 10),
        matmul("acc2", "h", "ui", "nt"),
        rescale("z", "acc2", "i16", 10),
        shifted("d", "sub", ("z", "y"), 0, 0),
        rescale("di", "d", "i16", 0),
        shifted("loss", "square_sum", ("di",), 12),
        matmul("gu", "di", "h", "tn"),
        matmul("gh", "di", "ui"),
        Draft("m", "momentum", ("v", "gu"), {"decay": 1 << 16, "shift": 8}),
        schedule("r", 22),
        shifted("u+", "sgd_update", ("u", "m", "r"), 14),
    ),
    {"u": weights(3, 140), "v": velocity(3, 140), "w": weights(200, 140)},
    "loss",
    {"u": "u+", "v": "m"},
    x=("u8", (200,), 8),
    y=("i16", (3,), 14),
)
"""Squared errors and plain SGD, with tiles as wide as they are in use."""

PACKED = Plan(
    (
        normalize("xi", "x"),
        windows("patches", "im2col", ("xi",), (3, 3), (1, 1), (1, 1, 1, 1)),
        rescale("ki", "k", "i16", 12),
        matmul("conv", "patches", "ki", "nt"),
        reshape("image", "conv", 3, 15, 15, 2),
        rescale("h", "image", "i16", 17),
        Draft("r", "relu", ("h",)),
        windows("max", "max_pool", ("r",), (2, 2), (2, 2)),
        reshape("flat", "max", 3, 98),
        Draft("gr", "relu_grad", ("h", "r")),
        reshape("rows", "gr", 675, 2),
        Draft("gb", "column_sum", ("rows",)),
        rescale("wi", "w", "i16", 12),
        matmul("z", "flat", "wi"),
        Draft("loss", "sum", ("z",)),
    ),
    {"k": weights(2, 9), "w": weights(98, 3)},
    "loss",
    {},
    batch=3,
    x=("u8", (15, 15, 1), 8),
)
"""Images of few channels, packed into tiles whose last row is not full."""

THIN = Plan(
    (
        rescale("z", "w", "i32", 14),
        rescale("first", "z", "i16", 3),
        rescale("u", "w", "i32", 14, 3),
        reshape("labels", "y", 64),
        Draft("max u", "row_max", ("u",)),
        *make_softmax("z", "labels"),
        *make_softmax("u", "labels")[1:],
        Draft("loss", "sum", ("rows z",)),
        rescale("acc", "w", "i64", 1),
        shifted("biased", "add_bias", ("acc", "c"), 1),
        rescale("same", "w", "i32", 0),
    ),
    {"c": weights(1), "v": weights(64, 1), "w": weights(64, 1)},
    "loss",
    {"v": "same"},
    batch=32,
    y=("u8", (2,), 0),
)
"""Matrices of one column, packed where they are not read by rows, and cut anew where they are; rows
of two logits, of which the later ones begin first."""

ORDERS = Plan(
    (
        rescale("up", "w", "i64", -1),
        Draft("loss", "sum", ("up",)),
        rescale("wi", "w", "i16", 10),
        Draft("seen", "tensor_digest", ("wi",)),
        reshape("wr", "wi", 32, 1),
        matmul("mm", "wi", "wr", "tn"),
        rescale("down", "w", "i64", 1),
        reshape("acc", "down", 16, 2),
        reshape("bias", "\uff5a", 2),
        shifted("biased", "add_bias", ("acc", "bias"), 1),
        normalize("xi", "x"),
        reshape("xr", "xi", 32, 1),
        Draft("r", "relu", ("wi",)),
        Draft("rg", "relu_grad", ("xr", "r")),
        Draft("m", "momentum", ("v", "down"), {"decay": 6554, "shift": 7}),
        rescale("va", "v", "i32", 0),
        schedule("rate", 22),
        shifted("w+", "sgd_update", ("w", "va", "rate"), 14),
        shifted("squares", "square_sum", ("wi",), 12),
        reshape("image", "wi", 2, 16, 1, 1),
        reshape("gx", "xi", 2, 16, 1, 1),
        windows("back", "max_pool_grad", ("gx", "image"), (1, 2), (1, 1), (0, 0, 0, 1)),
        reshape("again", "image", 2, 16, 1, 1),
        windows("max", "max_pool", ("again",), (1, 2), (1, 1), (0, 0, 0, 1)),
        rescale("unread", "w", "i16", 12),
        rescale("tail", "w", "i16", 12),
        reshape("unread too", "tail", 4, 8),
        rescale("both", "\uff5a", "i32", 0),
    ),
    {
        "w": weights(32, 1),
        "sum": ("i64", (), 16),
        "\U00010000": weights(2, 1),
        "v": velocity(32, 1),
        "\uff5a": weights(2, 1),
    },
    "loss",
    {"w": "w+", "v": "m", "sum": "squares", "\U00010000": "both", "\uff5a": "both"},
    batch=2,
    x=("u8", (16,), 8),
)
"""What is cut anew, and when; whose grid is taken; maxima in packed grids, and an image without
pairs; nodes that nothing reads, or first a digest; states out of the order of names."""

CHOICES = Plan(
    (
        rescale("ti", "t", "i16", 10),
        reshape("ids", "x", 15),
        Draft("rows", "gather_rows", ("ti", "ids")),
        rescale("wide", "t", "i32", 3),
        Draft("more", "gather_rows", ("wide", "ids")),
        Draft("back", "scatter_add", ("rows", "ids"), {"rows": 7}),
        Draft("others", "gather_rows", ("ti", "y")),
        Draft("dropped", "dropout_mask", ("step",),
              {"keep": 40000, "seed": bytes(8), "site": 3, "shape": (15, 5), "value": 26844,
               "exponent": 14}),
        Draft("kept", "mul", ("rows", "dropped")),
        Draft("loss", "sum", ("kept",)),
    ),
    {"t": weights(7, 5)},
    "loss",
    {},
    x=("i32", (3,), 0),
)  # fmt: skip
"""Rows chosen by numbers that are held to how many there are, and by such as need not be; masks."""

NORMS = Plan(
    (
        normalize("xi", "x", 1, -9000),
        Draft("u", "center", ("xi",), {"shift": 2}),
        Draft("s", "row_dot", ("u", "u")),
        Draft("r", "inverse_root", ("s",),
              {"lift": 3, "epsilon": 77, "numerator": 1 << 47, "numerator_exponent": 40}),
        Draft("scaled", "row_scale", ("u", "r")),
        rescale("n", "scaled", "i16", 26),
        rescale("wi", "w", "i16", 12),
        Draft("acc", "column_scale", ("n", "wi")),
        Draft("d", "row_dot", ("n", "xi")),
        Draft("gate", "look_up", ("n",), {"table": "gelu_gate", "shift": 3}),
        rescale("low", "xi", "i16", 6),
        Draft("tall", "look_up", ("low",), {"table": "tanh", "shift": -1}),
        Draft("both", "mul", ("gate", "tall")),
        Draft("wideroot", "inverse_root", ("s",),
              {"lift": 0, "epsilon": 1, "numerator": 1 << 58, "numerator_exponent": 40}),
        Draft("loss", "sum", ("both",)),
    ),
    {"w": weights(9)},
    "loss",
    {},
    x=("u8", (9,), 6),
)  # fmt: skip
"""Norms, an inverse root beyond 45 bits, and functions by table held to their ends."""


ROOT: Attrs = {"lift": 1, "epsilon": 1, "numerator": 1 << 20, "numerator_exponent": 10}


def make_attention(rows: int, columns: int, window: int) -> Plan:
    """Rows of attention and their gradient; others that no span leaves anything out of."""
    spans = {"queries": rows, "window": window}
    return Plan(
        (
            normalize("xi", "x", 1, -9000),
            rescale("wi", "w", "i16", 10),
            matmul("acc", "xi", "wi"),
            rescale("z", "acc", "i32", 19),
            Draft("spans", "causal_spans", (), spans),
            *_ROWS_OF_SPANS,
            normalize("xj", "x"),
            Draft("g", "softmax_grad", ("p", "xj")),
            Draft("left", "keep_span", ("p", "spans"), {"fill": 77}),
            Draft("max z", "row_max", ("z",)),
            Draft("exp z", "exp2_diff", ("z", "max z")),
            Draft("sum z", "row_sum", ("exp z",)),
            Draft("p z", "divide", ("exp z", "sum z")),
            Draft("loss", "sum", ("g",)),
        ),
        {"w": weights(columns, columns)},
        "loss",
        {},
        batch=2 * rows,
        x=("u8", (columns,), 8),
    )


ATTENTION = make_attention(3, 4, 2)


def list_steps_of_adam() -> Iterator[Draft]:
    yield normalize("xi", "x")
    yield rescale("a", "w", "i16", 10)
    yield matmul("acc", "xi", "a")
    yield rescale("p", "acc", "i16", 16)
    yield matmul("whole", "xi", "p", "tn")
    yield Draft("capped", "capped_square", ("whole",), {"bits": 40, "shift": 3})
    yield Draft("raised", "capped_square", ("p",), {"bits": 40, "shift": -2})
    yield Draft("total", "sum", ("capped",))
    yield Draft("factor", "clip_factor", ("total",), {"limit": 70000})
    yield Draft("clipped", "scale_by", ("whole", "factor"), {"shift": 15})
    yield Draft("unclipped", "scale_by", ("p", "factor"), {"shift": 0})
    yield rescale("g", "clipped", "i16", 15)
    for number, (rate, shift) in enumerate([(6554, 16), (1, 0)]):
        names = f"m{number}", f"square/{number}"
        yield Draft(f"{names[0]}+", "adam_mean", (names[0], "g"),
                    {"lift": 15, "rate": rate, "shift": shift})  # fmt: skip
        yield Draft(f"{names[1]}+", "adam_square", (names[1], "g"), {"rate": rate, "shift": shift})
        yield Draft(f"u{number}", "adam_direction", (f"{names[0]}+", f"{names[1]}+"),
                    {"epsilon": 3 + number, "shift": 17 * number})  # fmt: skip
    yield Draft("side", "sign", ("m0+",))
    yield Draft("rate", "schedule_linear", ("step",),
                {"starts": (0, 4), "rates": (10, 30000), "exponent": 22})  # fmt: skip
    yield Draft("correction", "adam_correction", ("step",),
                {"beta1": 1932735283, "beta2": 2145336164})  # fmt: skip
    yield Draft("product", "mul", ("rate", "correction"))
    yield rescale("corrected", "product", "i64", 24)
    yield shifted("w+", "sgd_update", ("w", "u0", "corrected"), 5)
    yield Draft("loss", "sum", ("whole",))


ADAM = Plan(
    tuple(list_steps_of_adam()),
    {
        "m0": ("i32", (3, 5), 28),
        "m1": ("i32", (3, 5), 28),
        "square/0": ("i64", (3, 5), 42),
        "square/1": ("i64", (3, 5), 42),
        "w": weights(3, 5),
    },
    "loss",
    {"m0": "m0+", "m1": "m1+", "square/0": "square/0+", "square/1": "square/1+", "w": "w+"},
)
"""AdamW with clipped gradients, Lion's sign, rates that everybody computes."""


PLAIN = Plan((Draft("loss", "sum", ("w",)),), {"w": weights(3, 2)}, "loss", {})


# --- what is refused


def make_maxima(count: int) -> Plan:
    """A sum of so many maxima over 64 pixels each."""
    strides = [(8, 8), (7, 8), (8, 7), (7, 7), (6, 8)][:count]
    maxima = [windows(f"m{n}", "max_pool", ("xi",), (8, 8), s) for n, s in enumerate(strides)]
    sums = [
        shifted(f"s{n}", "add", ("m0" if n == 1 else f"s{n - 1}", f"m{n}"), 0, 0)
        for n in range(1, count)
    ]
    return PLAIN.with_(normalize("xi", "x"), *maxima, *sums, batch=1, x=("u8", (16, 16, 1), 8))


def list_looks() -> Iterator[Draft]:
    """2^11 elements summed, as many cut anew, and 2^16 maxima but one of 2^6 pixels, 2^6 times."""
    yield Draft("loss", "sum", ("t",))
    for n in range(2):
        yield rescale(f"s{n}", "t", "i32", 1)
        yield Draft(f"#s{n}", "tensor_digest", (f"s{n}",))
    yield normalize("xi", "x")
    for n in range(64):
        yield windows(f"m{n}", "max_pool", ("xi",), (8, 8))


LOOKS = Plan(
    tuple(list_looks()), {"t": weights(2048, 1)}, "loss", {}, batch=255, x=("u8", (8, 8, 257), 8)
)


def list_refused() -> Iterator[tuple[str, Plan, str | None]]:
    """(what is so, graph, the word of section 6; None where it is taken)."""
    yield "nothing is wrong", PLAIN, None
    yield from _list_sizes()
    yield from _list_operators()
    yield from _list_sums()
    yield from _list_softmaxes()
    yield from _list_rates()


def _list_sizes() -> Iterator[tuple[str, Plan, str | None]]:
    for blocks, word in ((8192, None), (8193, "state")):
        big = weights(128 * (blocks - 1), 1)
        yield f"{blocks} blocks of the state", PLAIN.with_(states={**PLAIN.states, "v": big}), word
    for blocks, word in ((8192, None), (8193, "batch")):
        big = ("u8", (128 * (blocks - 1),), 8)
        yield f"{blocks} blocks of the batch", PLAIN.with_(batch=2, x=big), word
    for blocks, word in ((15, None), (16, "leaves")):
        tiles = f"2^20 + {blocks - 15}" if word else "2^20"
        yield (
            f"a trace of {tiles} tiles: blocks of a product, of its factors, and {blocks} more",
            PLAIN.with_(
                rescale("more", "t", "i16", 10),
                normalize("xi", "x"),
                normalize("xj", "x"),
                matmul("s", "xi", "xj", "tn"),
                states={**PLAIN.states, "t": weights(128 * blocks, 1)},
                batch=128 * 16,
                x=("u8", (128 * 255,), 8),
            ),
            word,
        )
    turned = [Draft(f"t{n}", "transpose", ("v",), {"perm": (1, 0)}) for n in range(3)]
    large = {**PLAIN.states, "v": weights(128 * 8191, 128)}
    yield "transposes of 3 * 2^27 elements", PLAIN.with_(*turned, states=large), "places"
    large = {**PLAIN.states, "t": weights(129 * 128, 1), "v": weights(128 * 5461, 128)}
    anew = (rescale("s", "t", "i32", 1), Draft("seen", "tensor_digest", ("s",)))
    yield (
        "transposes of 2^28 - 2^14 elements, and 129 * 2^7 cut anew",
        PLAIN.with_(*anew, *turned, states=large),
        "places",
    )
    pools = [windows(f"m{n}", "max_pool", ("xi",), (8, 8)) for n in range(3)]
    yield (
        "the same maxima three times, 2^27 elements less 2 % each",
        PLAIN.with_(normalize("xi", "x"), *pools, batch=8000, x=("u8", (8, 8, 257), 8)),
        "places",
    )
    yield "2^28 elements looked at, of which some were cut anew once for two nodes", LOOKS, None
    yield (
        "sums over windows of 33 * 64, more than 2^25 elements for a tile",
        PLAIN.with_(
            normalize("xi", "x"),
            windows("s", "sum_pool", ("xi",), (33, 64)),
            batch=1,
            x=("u8", (32 + 128, 63 + 128, 1), 8),
        ),
        "places",
    )
    yield "a sum of the counter", PLAIN.with_(Draft("s", "sum", ("step",))), "value"
    yield "the loss is the counter", PLAIN.with_(loss="next"), "value"
    yield (
        "a state that counts",
        PLAIN.with_(Draft("c", "increment", ("n",)),
                    states={**PLAIN.states, "n": ("i64", (), 0)}, after={"n": "c"}),
        "value",
    )  # fmt: skip


def _list_operators() -> Iterator[tuple[str, Plan, str | None]]:
    raw = PLAIN.with_(x=("i16", (3,), 8))
    yield "a product of raw samples", raw.with_(matmul("s", "x", "x", "tn")), "reach"
    yield "squares of raw samples", raw.with_(shifted("s", "square_sum", ("x",), 0)), "reach"
    image = PLAIN.with_(x=("i16", (2, 2, 1), 8))
    yield "maxima of raw samples", image.with_(windows("s", "max_pool", ("x",), (2, 2))), "reach"
    for grad, source, word in (("x", "xi", None), ("xi", "x", "reach")):
        back = windows("s", "max_pool_grad", (grad, source), (1, 1))
        yield (
            f"the gradient of a maximum from {grad} over {source}, x being raw samples",
            image.with_(normalize("xi", "x"), back),
            word,
        )
    for dtype in ("i16", "i32"):
        tokens = PLAIN.with_(Draft("s", "one_hot", ("x",), {"depth": 3}), x=(dtype, (3,), 0))
        yield f"tokens of {dtype}", tokens, None
    numbers = PLAIN.with_(reshape("o", "x", 2, 1), x=("i32", (), 0), batch=2)
    back = Draft("s", "scatter_add", ("o", "x"), {"rows": 2**27 - 2})
    yield "two numbers of 2^27 - 2 rows", numbers.with_(back), "places"
    yield (
        "a root of what may be negative",
        PLAIN.with_(rescale("s", "w", "i64", 0), Draft("r", "inverse_root", ("s",), ROOT)),
        "root",
    )
    own = (rescale("v", "w", "i16", 16), Draft("s", "row_dot", ("v", "v")))
    root = Draft("r", "inverse_root", ("s",), ROOT)
    yield "a root of a sum of squares", PLAIN.with_(*own, root), None
    yield (
        "spans that follow from samples",
        PLAIN.with_(rescale("v", "x", "i32", 0), Draft("s", "keep_span", ("w", "v"), {"fill": 0}),
                    x=("u8", (2,), 8), batch=3),
        None,
    )  # fmt: skip
    yield (
        "spans that may end anywhere",
        PLAIN.with_(rescale("u", "w", "i32", 1), Draft("s", "keep_span", ("w", "u"), {"fill": 0}),
                    states={"w": weights(3, 2)}),
        "reach",
    )  # fmt: skip
    for mark, word in ((2**29, None), (2**29 + 1, "reach")):
        marks = {"before": 1, "after": 1, "end_of_text": 2**31, "padding": mark}
        yield f"padding of {mark}", PLAIN.with_(Draft("s", "token_spans", ("x",), marks)), word
    for shift, word in ((-23, None), (-24, "reach")):
        marks = {"before": 1, "after": 1, "end_of_text": 2**31, "padding": 2**31}
        ids = rescale("v", "x", "i64", shift)
        spans = Draft("s", "token_spans", ("v",), marks)
        yield f"ids up to 255 * 2^{-shift}, of which 2^31 is padding", PLAIN.with_(ids, spans), word
    for shift, word in ((-14, None), (-16, "reach")):
        attrs: Attrs = {"multiplier": 257, "offset": 0, "shift": 1, "exponent": 8 + shift}
        low = Draft("low", "normalize", ("x",), attrs)
        read = Draft("s", "look_up", ("low",), {"table": "sigmoid", "shift": shift})
        yield f"points of a table shifted by {shift}", PLAIN.with_(low, read), word
    for multiplier, word in ((1, None), (3, "reach")):
        yield (
            f"a rescaling to i64 of {multiplier} * 2^59 / 2",
            PLAIN.with_(
                rescale("v", "w", "i32", 3),
                Draft("m", "mul", ("w", "v")),
                rescale("s", "m", "i64", 1, multiplier),
            ),
            word,
        )
    yield "a factor of 2^28 to i64", PLAIN.with_(rescale("s", "w", "i64", -28)), None
    yield (
        "a quarter of the sum of 46162^2 squares of 32639",
        PLAIN.with_(
            normalize("xi", "x"),
            matmul("xx", "xi", "xi", "tn"),
            rescale("xxi", "xx", "i16", 21, 65535),
            shifted("s", "square_sum", ("xxi",), 2),
            batch=1,
            x=("u8", (46162,), 8),
        ),
        "reach",
    )
    square = PLAIN.with_(rescale("v", "w", "i16", 3), states={"w": weights(3, 3)})
    yield "a product of two transposes", square.with_(matmul("s", "v", "v", "tt")), "transposes"
    stack = (reshape("stack", "v", 1, 3, 3), batched("s", "stack", "stack", "tt"))
    yield "products of two transposes", square.with_(*stack), "transposes"
    for shift, word in ((59, None), (60, "shift")):
        yield f"a shift of {shift}", PLAIN.with_(rescale("s", "w", "i32", shift)), word
        yield f"samples shifted by {shift}", PLAIN.with_(normalize("s", "x", shift)), word
    for size, word in ((64 * 128, None), (64 * 128 - 1, "rows")):
        thin = PLAIN.with_(
            rescale("v", "w", "i16", 3), normalize("s", "v", 1, 5), states={"w": weights(size, 1)}
        )
        yield f"an offset for {size} packed values", thin, word
    for kernel, word in (((8, 8), None), ((13, 5), "window")):
        yield (
            f"a maximum over {kernel}",
            PLAIN.with_(normalize("xi", "x"), windows("s", "max_pool", ("xi",), kernel),
                        x=("u8", (13, 8, 1), 8)),
            word,
        )  # fmt: skip


def _list_sums() -> Iterator[tuple[str, Plan, str | None]]:
    yield "a sum of 256 tensors", make_maxima(4), None
    yield (
        "a sum of 257 tensors, of which one has the weight 0",
        make_maxima(4).with_(
            rescale("q", "m0", "i16", 0),
            shifted("none", "sub", ("q", "q"), 0, 0),
            shifted("all", "add", ("s3", "none"), 0, 0),
        ),
        "sum",
    )
    held = make_maxima(4)
    held = held.with_(states={**held.states, "n": ("i64", (1, 2, 2, 1), 15)}, after={"n": "s3"})
    yield "a state that is a sum of 256 tensors", held, "sum"


def _list_softmaxes() -> Iterator[tuple[str, Plan, str | None]]:
    for classes in (128, 129):
        yield f"{classes} classes", make_classes(classes, 2), None
    few = make_classes(4, 2)
    fine = Draft("fine", "logit_grad", ("exp z", "sum z", "y"))
    yield "the fine gradient of 4 classes", few.with_(fine), None
    ends = ("max z", "exp z", "sum z", "p z", "g z", "rows z")
    for name, word in (("exp z", "softmax"), ("sum z", "softmax"), ("g z", None), ("rows z", None)):
        left_out = (name,) if word is None else ends[ends.index(name) :]
        body = tuple(d for d in few.body if d.name not in (*left_out, "gw", "loss"))
        loss = Draft("loss", "sum", ("w",))
        yield f"a softmax without {name}", few.with_(loss, body=body), word
    more = Draft("exp 2", "exp2_diff", ("z", "max z"))
    yield "a softmax with two exponentials", few.with_(more), "softmax"
    at = next(n for n, draft in enumerate(few.body) if draft.name == "rows z")
    for about, drafts in (
        ("two labels", (Draft("y2", "rescale", ("y",), rescale("", "", "i32", 0).attrs),
                        Draft("rows z", "cross_entropy", ("z", "max z", "sum z", "y2")))),
        ("two sums", (rescale("sum 2", "sum z", "i64", 0),
                      Draft("rows z", "cross_entropy", ("z", "max z", "sum 2", "y")))),
    ):  # fmt: skip
        body = (*few.body[:at], *drafts, *few.body[at + 1 :])
        yield f"a softmax with {about}", few.with_(body=body), "softmax"
    quotients = (
        rescale("p2", "exp z", "i16", 2),
        Draft("g z", "sub_one_hot", ("p2", "y")),
    )
    body = (*(d for d in few.body[:at] if d.name not in ("p z", "g z")), *quotients)
    yield "a gradient of no quotients", few.with_(body=(*body, *few.body[at:])), "softmax"
    others: tuple[tuple[str, Drafts], ...] = (
        ("attention to a place that is not there", make_attention(5, 4, 1).body),
        ("attention whose fill is not the least", tuple(
            Draft(d.name, d.op, d.inputs, {"fill": 0}) if d.name == "kept" else d
            for d in ATTENTION.body
        )),
        ("attention with another fill of exponentials", tuple(
            Draft(d.name, d.op, d.inputs, {"fill": 1}) if d.name == "exp" else d
            for d in ATTENTION.body
        )),
        ("attention with all exponentials in the sum", tuple(
            Draft(d.name, d.op, ("e",), d.attrs) if d.name == "total" else d
            for d in ATTENTION.body
        )),
    )  # fmt: skip
    lost = Draft("lost", "cross_entropy", ("kept", "max", "total", "y"))
    yield "a loss of attention", ATTENTION.with_(lost), "softmax"
    for about, items in others:
        body = tuple(d for d in items if d.name not in ("g", "loss", "left", "p"))
        loss = Draft("loss", "sum", ("total",))
        rows = 10 if "there" in about else 6
        yield about, ATTENTION.with_(loss, body=body, batch=rows), "softmax"
    yield "a sum of rows of no exponentials", PLAIN.with_(Draft("s", "row_sum", ("w",))), "softmax"


def _list_rates() -> Iterator[tuple[str, Plan, str | None]]:
    for source, word in (("step", None), ("more", "rate"), ("n", "rate")):
        yield (
            f"a rate that follows {source}",
            PLAIN.with_(
                Draft("more", "increment", ("step",)),
                schedule("r", 22, source),
                shifted("s", "sgd_update", ("w", "v", "r"), 14),
                states={**PLAIN.states, "n": ("i64", (), 0), "v": velocity(3, 2)},
            ),
            word,
        )
    yield (
        "a rate of no schedule",
        PLAIN.with_(rescale("r", "n", "i64", 30), shifted("s", "sgd_update", ("w", "v", "r"), 22),
                    states={**PLAIN.states, "n": ("i64", (), 60), "v": velocity(3, 2)}),
        "rate",
    )  # fmt: skip


# --- the file


def describe(tiling: Tiling, statement: TileStatement) -> Json:
    """What is hashed."""
    pairs = []
    if statement.linear is not None:
        if not (np.asarray(statement.linear.factors) == 1).all():
            raise ValueError("a map with another factor than 1")
        outputs, inputs = statement.linear.outputs.tolist(), statement.linear.inputs.tolist()
        pairs = sorted([p, q] for p, q in zip(outputs, inputs, strict=True))
    given = {
        name: [[str(factor), *tile] for factor, tile in sorted(parts, key=lambda part: part[1])]
        for name, parts in statement.given.items()
    }
    return {
        "circuit": statement.circuit,
        "given": given,
        "leaves": find_leaves(tiling, statement),
        "linear": pairs,
        "node": statement.node,
        "parameters": {
            name: [int(item) for item in np.reshape(value, -1)]
            for name, value in statement.parameters.items()
        },
    }


def cut(value: Json) -> bytes:
    return blake3(cbor.encode(value)).digest()[:8]


def make_case(about: str, graph: StepGraph, given: Any, side: int, *steps: int) -> Json:
    """``given`` is the graph's encoding in hexadecimal, or the file that has it."""
    tiling, first = Tiling(graph, side), StepFacts(steps[0], LOSS)
    contents = TileContents(tiling, first, {})
    full: dict[str, Json] = {}
    found = []
    for step in steps:
        facts = StepFacts(step, LOSS)
        whole = [describe(tiling, tiling.statement(i, facts)) for i in range(len(tiling))]
        found.append({"step": step, "statements": b"".join(map(cut, whole)).hex()})
        if side <= 4:
            for index, statement in enumerate(whole):
                if all(item["circuit"] != statement["circuit"] for item in full.values()):
                    full[str(index)] = statement
    public = {
        str(number): [
            blake3(contents.tile(Tile(number, block)).astype("<i8").tobytes()).hexdigest()
            for block in range(tensor.count)
        ]
        for number, tensor in enumerate(tiling.tensors)
        if tensor.source == "public"
    }
    return {
        "about": about,
        "side": side,
        "graph": given,
        "loss": str(LOSS),
        "leaves": tiling.leaf_count,
        "count": len(tiling),
        "tensors": [[item.name, item.source, item.first, item.count] for item in tiling.tensors],
        "steps": found,
        "full": full,
        "public": public,
    }


@cache
def list_plans() -> tuple[tuple[str, Plan, int, tuple[int, ...]], ...]:
    return (
        ("products, biases and sums", PRODUCTS, 4, (1,)),
        ("stacks of products, parts and joints", STACKS, 4, (1,)),
        ("rescalings; states that are copies", RESCALES, 4, (1,)),
        ("momenta and updates", UPDATES, 4, (1, 3)),
        ("convolution, pools and their gradients", IMAGES, 8, (1,)),
        ("tokens", TOKENS, 4, (1,)),
        ("matrices of one column", THIN, 4, (1,)),
        ("orders", ORDERS, 4, (1,)),
        ("16 classes", make_classes(16, 2), 128, (1,)),
        ("129 classes, more than the circuit of rows takes", make_classes(129, 2), 128, (1,)),
        ("the fine gradient of 130 classes", make_shares(130), 128, (1,)),
        ("the fine gradient of 4 classes", make_shares(4), 4, (1,)),
        ("spans that follow from ids", HIDDEN, 8, (1,)),
        ("17 classes, more rows than a tile", make_classes(17), 128, (1,)),
        ("squared errors, plain SGD", ERRORS, 128, (1, 2)),
        ("images of few channels", PACKED, 128, (1,)),
        ("chosen rows and masks", CHOICES, 4, (2,)),
        ("norms and functions by table", NORMS, 4, (1,)),
        ("rows of attention", ATTENTION, 4, (1,)),
        ("rows of attention, a tile of them", make_attention(7, 7, 9), 128, (1,)),
        ("AdamW, clipped", ADAM, 4, (1, 3)),
    )


def make_cases() -> list[Json]:
    cases = []
    for about, plan, side, steps in list_plans():
        graph = plan.graph()
        cases.append(make_case(about, graph, encode_graph(graph).hex(), side, *steps))
    for name, sides in (("step.json", (4, 128)), ("games/graph.json", (8,))):
        data = bytes.fromhex(json.loads((PATH.parent / name).read_text())["graph"])
        for side in sides:
            about = f"the graph of {name}"
            cases.append(make_case(about, decode_graph(data), {"file": name}, side, 2))
    return cases


def make_refused() -> list[Json]:
    base = list_items(PLAIN.graph())
    found = []
    for about, plan, word in list_refused():
        graph = plan.graph()
        try:
            Tiling(graph)
        except CircuitError as error:
            if word is None:
                raise ValueError(f"{about}: {error}") from error
        else:
            if word is not None:
                raise ValueError(f"{about}: is taken")
        edits = list(find_edits(base, list_items(graph)))
        found.append({"about": about, "edits": edits, "refused": word})
    return found


def make_file() -> Json:
    return {
        "cases": make_cases(),
        "plain": encode_graph(PLAIN.graph()).hex(),
        "refused": make_refused(),
    }


def format_file() -> str:
    """Cases on a line each."""
    return format_cases(make_file())


if __name__ == "__main__":
    sys.exit(write_or_compare(PATH, format_file(), __doc__))
