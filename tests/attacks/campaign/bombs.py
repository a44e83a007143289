"""What no honest hand made: nodes that are no files, and content that explodes."""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Final

import onnx
from onnx import TensorProto, helper

from tests.tasks import make_mlp_onnx
from vtrain.wire import cbor

ESCAPES: Final = "\x1b[2J\x1b]0;mine\x07\x9b31mVERIFIED\r\x08\x7f\u202e"
MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass
class Trap:
    """What a kind leaves behind: ``during`` is called while the command runs, ``undo`` after it."""

    during: Callable[[float], bool] = lambda _: False
    undo: Callable[[], None] = lambda: None
    harmless: bool = False
    unprivileged: bool = False


Kind = Callable[[Path, Random], Trap | None]
"""Put something in the place of a file, which may be there already."""


def clear(path: Path) -> bytes:
    """Remove what is there; its content, if it was a file."""
    content = b""
    with suppress(OSError):
        if path.is_file():
            content = path.read_bytes()
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.was"))
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return content


def fifo(path: Path, _: Random) -> None:
    clear(path)
    os.mkfifo(path)


def fifo_with_a_silent_writer(path: Path, _: Random) -> Trap:
    clear(path)
    os.mkfifo(path)
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    return Trap(undo=lambda: os.close(handle))


def fifo_with_a_busy_writer(path: Path, _: Random) -> Trap:
    clear(path)
    os.mkfifo(path)
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def write(_: float) -> bool:
        with suppress(BlockingIOError):
            os.write(handle, bytes(4096))
        return False

    return Trap(write, lambda: os.close(handle))


def unix_socket(path: Path, _: Random) -> Trap:
    clear(path)
    here = Path.cwd()
    server = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(path.parent)  # the whole path may be too long for a socket
        server.bind(path.name)
    finally:
        os.chdir(here)
    server.listen()
    return Trap(undo=server.close)


def folder(path: Path, _: Random) -> None:
    clear(path)
    path.mkdir()


def link_to(target: str) -> Kind:
    def link(path: Path, _: Random) -> None:
        clear(path)
        path.symlink_to(target)

    link.__name__ = f"link_to_{target}"
    return link


def link_to_itself(path: Path, _: Random) -> None:
    clear(path)
    path.symlink_to(path.name)


def link_to_nothing(path: Path, _: Random) -> None:
    clear(path)
    path.symlink_to("/nowhere/at/all")


def link_outside(path: Path, _: Random) -> Trap:
    content = clear(path)
    other = path.parent.parent / f"outside-{path.name}"
    other.write_bytes(content)
    path.symlink_to(other)
    return Trap(harmless=True)


def link_to_a_fifo(path: Path, _: Random) -> None:
    clear(path)
    other = path.with_name(f".{path.name}.fifo")
    os.mkfifo(other)
    path.symlink_to(other.name)


def sparse(size: int) -> Kind:
    def make(path: Path, _: Random) -> None:
        clear(path)
        path.write_bytes(b"")
        os.truncate(path, size)

    make.__name__ = f"sparse_{size >> 20}_MiB"
    return make


def sparse_after_the_truth(path: Path, _: Random) -> None:
    content = clear(path)
    path.write_bytes(content)
    os.truncate(path, 40 * GIB)


def unreadable(path: Path, _: Random) -> Trap:
    if not path.exists():
        path.write_bytes(b"x")
    path.chmod(0)
    return Trap(unprivileged=True)


def empty(path: Path, _: Random) -> None:
    clear(path)
    path.write_bytes(b"")


def truncated(path: Path, rng: Random) -> None:
    content = clear(path)
    path.write_bytes(content[: rng.randrange(len(content) or 1)])


def noise(path: Path, rng: Random) -> None:
    size = len(clear(path)) or 1000
    path.write_bytes(rng.randbytes(size))


def escapes(path: Path, _: Random) -> None:
    clear(path)
    path.write_bytes((ESCAPES * 20).encode() + b"\xff\x1b[31m\n")


def growing(path: Path, _: Random) -> Trap:
    path.write_bytes(clear(path) or bytes(4096))

    def grow(_: float) -> bool:
        if path.stat().st_size < GIB // 4:
            with path.open("ab") as file:
                file.write(bytes(MIB))
        return False

    return Trap(grow)


def shrinking(path: Path, _: Random) -> Trap:
    """As large as it says, until it is read."""
    path.write_bytes(clear(path) or bytes(4096))

    def shrink(gone: float) -> bool:
        if gone > 0.3:
            os.truncate(path, path.stat().st_size // 2)
        return False

    return Trap(shrink)


NODES: Final[tuple[Kind, ...]] = (
    fifo,
    fifo_with_a_silent_writer,
    fifo_with_a_busy_writer,
    unix_socket,
    folder,
    *map(
        link_to,
        (
            "/dev/zero",
            "/dev/urandom",
            "/dev/full",
            "/dev/null",
            "/dev/tty",
            "/dev/stdin",
            "/proc/self/mem",
            "/proc/self/pagemap",
            "/proc/self/environ",
            "/proc/self/maps",
            "/proc/self/exe",
            "/proc/self/fd",
            "/proc/sys/kernel/random/uuid",
            "/etc/passwd",
            "/",
        ),
    ),
    link_to_itself,
    link_to_nothing,
    link_outside,
    link_to_a_fifo,
    sparse(64),
    sparse(5 * MIB),
    sparse(300 * MIB),
    sparse(40 * GIB),
    sparse_after_the_truth,
    unreadable,
    empty,
    truncated,
    noise,
    escapes,
    growing,
    shrinking,
)


# --- content, by the form that a file should have


def repeat(pattern: bytes, count: int) -> Callable[[], bytes]:
    return lambda: pattern * count


CBOR: Final[Mapping[str, Callable[[], bytes]]] = {
    "arrays in arrays": repeat(b"\x81", 900_000),
    "maps in maps": repeat(b"\xa1\x61a", 300_000),
    "an array of 2^32": lambda: b"\x9a\xff\xff\xff\xff",
    "an array of 2^63": lambda: b"\x9b\x7f" + b"\xff" * 7,
    "bytes of 2^63": lambda: b"\x5b\x7f" + b"\xff" * 7,
    "a map of 2^63": lambda: b"\xbb\x7f" + b"\xff" * 7,
    "duplicate keys": lambda: b"\xa2\x61a\x01\x61a\x02",
    "a big number": lambda: b"\xc2\x58\xff" + b"\xff" * 255,
    "no end": lambda: b"\x9f" + b"\x01" * 1000,
    "floats": lambda: b"\xfb" + bytes(8),
    "a million empty arrays": lambda: (
        b"\x9a" + struct.pack(">I", 1_000_000 - 5) + b"\x80" * 999_995
    ),
    "60 million empty arrays": lambda: (
        b"\x9a" + struct.pack(">I", 60_000_000) + b"\x80" * 60_000_000
    ),
    "60 million numbers": lambda: b"\x9a" + struct.pack(">I", 60_000_000) + b"\0" * 60_000_000,
    "60 million empty maps": lambda: b"\x9a" + struct.pack(">I", 60_000_000) + b"\xa0" * 60_000_000,
    "a text of 1 MiB": lambda: b"\x7a" + struct.pack(">I", MIB - 5) + b"x" * (MIB - 5),
    "a key of escapes": lambda: b"\xa1" + _text(ESCAPES) + b"\x01",
    "no UTF-8": lambda: b"\xa1\x62\xff\xfe\x01",
}


def _text(value: str) -> bytes:
    data = value.encode()
    return b"\x79" + struct.pack(">H", len(data)) + data


JSON: Final[Mapping[str, Callable[[], bytes]]] = {
    "arrays in arrays": repeat(b"[", 1_000_000),
    "a huge integer": lambda: b'{"steps": ' + b"9" * 1_000_000 + b"}",
    "a huge exponent": lambda: b"1e999999999",
    "duplicate keys": lambda: b'{"a": 1, "a": 2}',
    "a lone surrogate": lambda: b'{"software": "\\ud800"}\n',
    "16 MiB of arrays": lambda: b"[" + b"[]," * (5 * MIB) + b"[]]",
    "16 MiB of numbers": lambda: b"[" + b"1," * (8 * MIB - 2) + b"1]",
    "escapes": lambda: json.dumps({ESCAPES: ESCAPES}).encode(),
    "escapes as they are": lambda: json.dumps({ESCAPES: ESCAPES}, ensure_ascii=False).encode(),
    "NaN": lambda: b"NaN\n",
}


def _frame(value: dict[str, cbor.Value]) -> bytes:
    data = cbor.encode(value)
    return struct.pack("<I", len(data)) + data


LOG_HEADER: Final = b"vtrain run log\0\1"
LOG: Final[Mapping[str, Callable[[], bytes]]] = {
    "a frame of 2^32": lambda: LOG_HEADER + b"\xff" * 4 + b"x" * 100,
    "16 million empty frames": lambda: LOG_HEADER + bytes(64 * MIB),
    "frames of one byte": lambda: LOG_HEADER + b"\1\0\0\0\xff" * 1_000_000,
    "frames of arrays": lambda: LOG_HEADER + struct.pack("<I", 900_000) + b"\x81" * 900_000,
    "a record with a key of escapes": lambda: LOG_HEADER + _frame({ESCAPES: 1}),
    "a record and a key of escapes": lambda: (
        LOG_HEADER
        + _frame({"batch_digest": bytes(32), "loss": 1, "state_root": b"", "step": 1, ESCAPES: 1})
    ),
    "a record with a text of escapes": lambda: (
        LOG_HEADER + _frame({"batch_digest": b"", "loss": ESCAPES, "state_root": b"", "step": 1})
    ),
    "a header alone": lambda: LOG_HEADER,
    "half a header": lambda: LOG_HEADER[:7],
}

TENSORS: Final[Mapping[str, Callable[[], bytes]]] = {
    "a header of 2^63": lambda: struct.pack("<Q", 2**63) + b"{}",
    "a header of 100 MB": lambda: struct.pack("<Q", 100_000_000) + b"{" * 1000,
    "a header of brackets": lambda: struct.pack("<Q", MIB) + b"[" * MIB,
    "huge shapes": lambda: _safetensors({"shape": [2**62] * 500, "data_offsets": [0, 2**63]}),
    "escapes": lambda: _safetensors({"shape": [1], "data_offsets": [0, 4], ESCAPES: ESCAPES}),
}


def _safetensors(entry: dict[str, object]) -> bytes:
    text = json.dumps({"param/w1": {"dtype": "I32", **entry}}).encode()
    return struct.pack("<Q", len(text)) + text


def _model(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], name: str = "g") -> bytes:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        name,
        [value("x", TensorProto.FLOAT, ["batch", 16])],
        [value("y", TensorProto.FLOAT, ["batch", 4])],
        weights,
    )
    return bytes(helper.make_model(graph).SerializeToString())


def _gemm(*, op: str = "Gemm", name: str = "fc1", output: str = "y") -> onnx.NodeProto:
    return helper.make_node(op, ["x", "w"], [output], name, transB=1)


def _weight(**fields: object) -> onnx.TensorProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 16])
    for key, value in fields.items():
        if key == "dims":
            del weight.dims[:]
            weight.dims.extend(value)
        else:
            setattr(weight, key, value)
    return weight


def _external(location: str, offset: str = "0", length: str = "256") -> bytes:
    weight = _weight(data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        weight.external_data.add(key=key, value=value)
    return _model([_gemm()], [weight])


def _nested(depth: int) -> bytes:
    """A graph in an attribute of a node of a graph, and so on."""
    data = b""
    for _ in range(depth):
        attribute = b"\x0a\x01a" + b"\x32" + _varint(len(data)) + data
        node = b"\x2a" + _varint(len(attribute)) + attribute
        data = b"\x0a" + _varint(len(node)) + node
    return b"\x08\x08" + b"\x3a" + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def name_by_escapes(*, zeros: bool = False) -> bytes:
    """A model that is legal in all but the taste of its names, with weights or without."""
    model = onnx.load_model_from_string(make_mlp_onnx(3))
    for node in model.graph.node:
        node.name = f"{node.name}{ESCAPES}"
        node.input[:] = [_rename(name) for name in node.input]
    for weight in model.graph.initializer:
        weight.name = _rename(weight.name)
        if zeros:
            weight.raw_data = bytes(len(weight.raw_data))
    return bytes(model.SerializeToString())


def _rename(name: str) -> str:
    return f"{name}{ESCAPES}" if name in ("w1", "b1", "w2", "b2") else name


ONNX: Final[Mapping[str, Callable[[], bytes]]] = {
    "external /dev/zero": lambda: _external("/dev/zero"),
    "external /etc/passwd": lambda: _external("../../../../../../etc/passwd"),
    "external escapes": lambda: _external(ESCAPES),
    "external 2^60": lambda: _external("x.npy", "0", str(2**60)),
    "dims of 2^62": lambda: _model([_gemm()], [_weight(dims=[2**62, 16], raw_data=b"x" * 256)]),
    "500 dims": lambda: _model([_gemm()], [_weight(dims=[2**31] * 500, raw_data=b"")]),
    "negative dims": lambda: _model([_gemm()], [_weight(dims=[-4, -16], raw_data=b"x" * 256)]),
    "no data": lambda: _model([_gemm()], [_weight(dims=[2**20, 2**20])]),
    "half the data": lambda: _model([_gemm()], [_weight(raw_data=b"x" * 128)]),
    "graphs in graphs": lambda: _nested(3000),
    "an operator of escapes": lambda: _model([_gemm(op=ESCAPES)], [_weight(raw_data=bytes(256))]),
    "a node of escapes": lambda: _model(
        [_gemm(name=ESCAPES), _gemm(op="Loop", name=ESCAPES)], [_weight(raw_data=bytes(256))]
    ),
    "an output of escapes": lambda: _model([_gemm(output=ESCAPES)], [_weight(raw_data=bytes(256))]),
    "a name of 1 MiB": lambda: _model([_gemm(name="n" * MIB)], [_weight(raw_data=bytes(256))]),
    "100,000 nodes": lambda: _model(
        [helper.make_node("Relu", [f"{i or 'x'}"], [f"{i + 1}"]) for i in range(100_000)], []
    ),
    "legal names of escapes": name_by_escapes,
    "legal names and no weights, of escapes": partial(name_by_escapes, zeros=True),
    "a cycle": lambda: _model([helper.make_node("Relu", ["y"], ["y"])], []),
    "nothing": lambda: b"",
    "one field without an end": lambda: b"\x3a\xff\xff\xff\xff\x0f",
}


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


NPY: Final[Mapping[str, Callable[[], bytes]]] = {
    "a shape of 2^60": lambda: _npy(
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1152921504606846976, 16), }\n"
    ),
    "a shape of 2^35": lambda: _npy(
        "{'descr': '|u1', 'fortran_order': False, 'shape': (34359738368, 16), }\n"
    ),
    "objects": lambda: _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"\x80"),
    "code": lambda: _npy("{'descr': __import__('os').system('true')}\n"),
    "a header of 64 KiB": lambda: _npy("(" * 65535),
    "30 extents": lambda: _npy(
        "{'descr': '|u1', 'fortran_order': False, 'shape': (" + "1, " * 30 + "), }\n", b"x"
    ),
    "no samples": lambda: _npy("{'descr': '|u1', 'fortran_order': False, 'shape': (0, 16), }\n"),
    "escapes": lambda: _npy(f"{{'descr': '{ESCAPES}'}}\n"),
}


@cache
def make_zeros(size: int) -> bytes:
    """So many zeros, deflated (with a zlib header)."""
    packer = zlib.compressobj(9)
    block = bytes(16 * MIB)
    parts = [packer.compress(block) for _ in range(size // len(block))]
    return b"".join([*parts, packer.flush()])


def npz_bomb(path: Path, size: int) -> None:
    """An archive of some MB whose arrays have ``size`` bytes each."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size // 16}, 16), }}\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x.npy", "y.npy"):
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(_npy(header))
                for _ in range(size // (16 * MIB)):
                    member.write(bytes(16 * MIB))


def npz_of_lies(path: Path) -> None:
    """An archive whose directory says that its member is small."""
    npz_bomb(path, 64 * MIB)
    data = path.read_bytes()
    at = data.index(b"PK\1\2")
    path.write_bytes(data[: at + 24] + struct.pack("<I", 100) + data[at + 28 :])


def idx_bomb(path: Path, size: int) -> None:
    """IDX images, gzip."""
    with gzip.open(path, "wb", compresslevel=6) as file:
        file.write(b"\0\0\x08\2" + struct.pack(">2I", size // 16, 16))
        for _ in range(size // (16 * MIB)):
            file.write(bytes(16 * MIB))


IDX: Final[Mapping[str, Callable[[], bytes]]] = {
    "dims of 2^32": lambda: b"\0\0\x08\4" + b"\xff" * 16,
    "255 dims": lambda: b"\0\0\x08\xff" + b"\xff" * 1020,
    "a type that is none": lambda: b"\0\0\x77\1\0\0\0\1x",
    "nothing behind the header": lambda: b"\0\0\x08\2" + struct.pack(">2I", 1000, 16),
    "broken gzip": lambda: b"\x1f\x8b\x08\0" + b"\xff" * 100,
}

TOML: Final[Mapping[str, Callable[[], bytes]]] = {
    "arrays in arrays": lambda: b"a = " + b"[" * 100_000 + b"]" * 100_000,
    "tables in tables": lambda: b"a = " + b"{a = " * 50_000,
    "a key of many dots": lambda: b".".join([b"a"] * 100_000) + b" = 1",
    "900 KB of digits": lambda: b"a = " + b"9" * 900_000,
    "no UTF-8": lambda: b"name = '\xff\xfe'",
    "a key of escapes": lambda: json.dumps({"x": ESCAPES})[6:-1].encode() + b" = 1",
    "control characters": ESCAPES.encode,
    "a key of 900 KB": lambda: b"k" * 900_000 + b" = 1",
    "100,000 keys": lambda: b"".join(b"k%d = 1\n" % i for i in range(60_000)),
    "a date": lambda: b"[task]\nname = 1979-05-27\n",
}
