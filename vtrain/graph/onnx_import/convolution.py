"""Conv, ConvTranspose, and the windows of pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vtrain.errors import GraphError, ModelError
from vtrain.graph.model import Conv, ConvTranspose, Reshape
from vtrain.graph.onnx_file import count_elements
from vtrain.graph.onnx_import import pieces
from vtrain.graph.onnx_import.importer import Handler, Handlers, Importer, Weight
from vtrain.graph.onnx_import.node import Node
from vtrain.ops.layout import MAX_WINDOW, Window

_OF_LINES: Final = {
    "kernel_shape": (1,),
    "strides": (1,),
    "dilations": (1,),
    "pads": (0, 0),
    "output_padding": (0,),
}
"""Attributes of windows, and what an image of height 1 has before each number of a line's."""


def take_lines(handler: Handler) -> Handler:
    """A handler of images, for lines [batch, channels, length] too: as images of height 1."""

    def handle(importer: Importer, node: Node) -> None:
        is_value = bool(node.inputs) and node.inputs[0] in importer.values
        x = importer.value(node, node.inputs[0]) if is_value else ""
        if not is_value or len(importer.shapes[x]) != 2 or len(node.outputs) != 1:
            handler(importer, node)
            return
        (channels, length), (name,), inputs = importer.shapes[x], node.outputs, [*node.inputs]
        image, line = (channels, 1, length), f"{name}/line"
        importer.emit(node, Reshape(f"{name}/image", x, image), image)
        node.inputs[0], node.outputs[0] = f"{name}/image", line
        if len(inputs) > 1:
            _take_filters(importer, node, f"{name}/filters")
        for attribute, beside in _OF_LINES.items():
            node.widen(attribute, beside)
        try:
            handler(importer, node)
        finally:
            node.inputs[:], node.outputs[:] = inputs, [name]
        made = importer.shapes[line]
        importer.emit(node, Reshape(name, line, (made[0], made[2])), (made[0], made[2]))

    return handle


def _take_filters(importer: Importer, node: Node, name: str) -> None:
    """The filters of a line, under another name, with the axis that those of an image have."""
    weight = importer.weight(node, node.inputs[1])
    node.require(len(weight.dims) == 3, f"weight has shape {list(weight.dims)}")
    importer.declare(name, node.where)
    importer.weights[name] = replace(weight, dims=(*weight.dims[:2], 1, weight.dims[2]))
    node.inputs[1] = name


def _open_conv(importer: Importer, node: Node) -> tuple[str, tuple[int, ...], Weight]:
    """The image of a convolution, its shape, and a weight of four axes."""
    node.require_arity(2, 3)
    x = importer.value(node, node.inputs[0])
    weight = importer.weight(node, node.inputs[1])
    shape = importer.shape_of(node, x, 3)
    node.require(len(weight.dims) == 4, f"weight has shape {list(weight.dims)}")
    node.require(min(weight.dims) > 0, "weight is empty")
    return x, shape, weight


def _conv(importer: Importer, node: Node) -> None:
    x, (channels, height, width), weight = _open_conv(importer, node)
    outer, inner, *kernel = weight.dims
    groups = node.take_int("group", 1)
    node.require(
        groups >= 1 and outer % groups == channels % groups == 0,
        f"{groups} groups of {channels} channels to {outer}",
    )
    node.require(
        inner == channels // groups,
        f"weight is for {inner} channels, input has {channels // groups}"
        + (f" in each of {groups} groups" if groups > 1 else ""),
    )
    dilations = node.take_ints("dilations", (1, 1))
    node.require(
        len(dilations) == 2 and min(dilations) >= 1 and max(dilations) <= MAX_WINDOW,
        f"dilations are {list(dilations)}",
    )
    given = node.take_ints("kernel_shape", tuple(kernel))
    node.require(len(given) == 2, f"needs a kernel of height and width, has {list(given)}")
    node.require(given == tuple(kernel), "kernel_shape is not that of the weight")
    # Of one element there are no neighbours.
    dilations = tuple(d if k > 1 else 1 for k, d in zip(kernel, dilations, strict=True))
    # The window has the zeros of a dilated kernel too.
    whole = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    window = read_window(node, (channels, height, width), whole)
    bias = importer.weight(node, node.inputs[2]) if len(node.inputs) == 3 else None
    layer = Conv(
        node.outputs[0],
        x,
        weight.name,
        pieces.read_bias(node, bias, outer),
        window,
        groups,
        (dilations[0], dilations[1]),
    )
    importer.emit(node, layer, (outer, *window.output_extent(height, width)))


def _conv_transpose(importer: Importer, node: Node) -> None:
    """With one group and no dilation; ``output_padding`` makes an image of it larger."""
    x, (channels, height, width), weight = _open_conv(importer, node)
    inner, outer, *kernel = weight.dims
    node.require(node.take_int("group", 1) == 1, "groups are not supported here")
    dilations = node.take_ints("dilations", (1, 1))
    node.require(dilations == (1, 1), f"dilations must be 1, are {list(dilations)}")
    node.require(inner == channels, f"weight is for {inner} channels, input has {channels}")
    given = node.take_ints("kernel_shape", tuple(kernel))
    node.require(given == tuple(kernel), "kernel_shape is not that of the weight")
    node.require(
        node.take_text("auto_pad", "NOTSET") == "NOTSET" and not node.has("output_shape"),
        "must have pads, and neither auto_pad nor output_shape",
    )
    strides, pads = node.take_ints("strides", (1, 1)), node.take_ints("pads", (0, 0, 0, 0))
    more = node.take_ints("output_padding", (0, 0))
    node.require(
        len(strides) == len(more) == 2 and len(pads) == 4 and min(more) >= 0,
        f"strides are {list(strides)}, pads {list(pads)}, output_padding {list(more)}",
    )
    try:
        window = Window.from_attrs({"kernel": given, "strides": strides, "pads": pads})
        cut = (pads[0] + pads[2] - more[0], pads[1] + pads[3] - more[1])
        extent = tuple(
            (count - 1) * stride + size - less
            for count, stride, size, less in zip((height, width), strides, kernel, cut, strict=True)
        )
        node.require(min(extent) >= 1, f"leaves an image of {list(extent)}")
        fits = window.output_extent(*extent) == (height, width)
    except GraphError as error:
        raise ModelError(error.message, where=node.where) from error
    node.require(fits, f"output_padding {list(more)} must be below the strides")
    bias = importer.weight(node, node.inputs[2]) if len(node.inputs) == 3 else None
    layer = ConvTranspose(
        node.outputs[0],
        x,
        weight.name,
        pieces.read_bias(node, bias, outer),
        window,
        (extent[0], extent[1]),
    )
    count_elements((height, width, *window.kernel, outer), node.where)
    importer.emit(node, layer, (outer, *extent))


def read_window(node: Node, image: tuple[int, ...], kernel: tuple[int, ...] = ()) -> Window:
    """Read strides, pads and auto_pad over ``image``, and where no ``kernel`` is given
    kernel_shape and dilations, which must be 1."""
    channels, height, width = image
    if not kernel:
        kernel = node.take_ints("kernel_shape", ())
        node.require(len(kernel) == 2, f"needs a kernel of height and width, has {list(kernel)}")
        node.require(node.take_ints("dilations", (1, 1)) == (1, 1), "dilations must be 1")
    strides = node.take_ints("strides", (1, 1))
    node.require(len(strides) == 2 and min(strides) >= 1, f"strides are {list(strides)}")
    pads = node.take_ints("pads", (0, 0, 0, 0))
    mode = node.take_text("auto_pad", "NOTSET")
    if mode != "NOTSET":
        node.require(not any(pads), "has both pads and auto_pad")
        pads = _resolve_auto_pad(node, mode, (height, width), kernel, strides)
    try:
        window = Window.from_attrs({"kernel": kernel, "strides": strides, "pads": pads})
        extent = window.output_extent(height, width)
    except GraphError as error:
        raise ModelError(error.message, where=node.where) from error
    count_elements((*extent, *window.kernel, channels), node.where)
    return window


def _resolve_auto_pad(
    node: Node,
    mode: str,
    image: tuple[int, int],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
) -> tuple[int, ...]:
    """Pads (top, left, bottom, right) of VALID, SAME_UPPER or SAME_LOWER, as ONNX defines them."""
    if mode == "VALID":
        return (0, 0, 0, 0)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        node.refuse(f"auto_pad is {mode!r}")
    begins, ends = [], []
    for extent, size, stride in zip(image, kernel, strides, strict=True):
        windows = -(-extent // stride)
        total = max((windows - 1) * stride + size - extent, 0)
        less, more = total // 2, total - total // 2
        begins.append(less if mode == "SAME_UPPER" else more)
        ends.append(more if mode == "SAME_UPPER" else less)
    return (*begins, *ends)


HANDLERS: Handlers = {
    "Conv": take_lines(_conv),
    "ConvTranspose": take_lines(_conv_transpose),
}
