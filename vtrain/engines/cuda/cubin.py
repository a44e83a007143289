"""What a compiled kernel takes of a multiprocessor, read from the machine code itself.

NVRTC's code is an ELF file ("cubin") whose attributes ``cuobjdump --dump-resource-usage`` prints;
reading them here needs no toolkit.  Formats: the ELF-64 layout, and of NVIDIA's attributes those
below, whose numbers are the same in every toolkit since CUDA 11 (cuobjdump names them).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vtrain.errors import KernelError

_FRAME_SIZE, _REGCOUNT = 0x11, 0x2F
"""Attributes of .nv.info: bytes of a stack frame, registers; each (symbol, number)."""
_SIZED: Final = 0x04
"""The format of an attribute that has a length and as many bytes."""
_HEADER: Final = struct.Struct("<16s2HI3QI6H")
_SECTION: Final = struct.Struct("<2I4Q2I2Q")
_SYMBOL: Final = struct.Struct("<IBBH2Q")
_NO_BITS: Final = 8


@dataclass(frozen=True)
class Resources:
    """Of a kernel: registers a thread at its entry; bytes of its stack frame, which is where what
    does not fit them is spilled to; bytes of shared memory a block that it always takes; and the
    bytes of its instructions."""

    registers: int
    stack: int
    shared: int
    code: int


def read_resources(cubin: bytes) -> dict[str, Resources]:
    """What each kernel of NVRTC's machine code takes; KernelError for what is no such file."""
    try:
        return _read(cubin)
    except (struct.error, ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise KernelError(f"is no machine code of NVRTC ({error})", where="cubin") from None


def _read(cubin: bytes) -> dict[str, Resources]:
    magic, *_, at, _, _, _, _, size, count, names = _HEADER.unpack_from(cubin)
    if not magic.startswith(b"\x7fELF\x02\x01") or size != _SECTION.size:
        raise ValueError("no ELF file of 64 bits")
    sections = [_SECTION.unpack_from(cubin, at + size * i) for i in range(count)]
    texts = _content(cubin, sections[names])
    found = {_name(texts, section[0]): section for section in sections}
    strings = _content(cubin, found[".strtab"])
    symbols = [
        _name(strings, symbol[0])
        for symbol in _SYMBOL.iter_unpack(_content(cubin, found[".symtab"]))
    ]
    frames, registers = dict[str, int](), dict[str, int]()
    for attribute, symbol, number in _attributes(_content(cubin, found[".nv.info"])):
        if attribute == _FRAME_SIZE:
            frames[symbols[symbol]] = number
        elif attribute == _REGCOUNT:
            registers[symbols[symbol]] = number
    resources = {}
    for name, section in found.items():
        _, mark, kernel = name.partition(".text.")
        if mark and kernel in registers:
            shared = found.get(f".nv.shared.{kernel}")
            resources[kernel] = Resources(
                registers[kernel], frames[kernel], 0 if shared is None else shared[5], section[5]
            )
    return resources


def _content(cubin: bytes, section: tuple[int, ...]) -> bytes:
    kind, offset, size = section[1], section[4], section[5]
    content = b"" if kind == _NO_BITS else cubin[offset : offset + size]
    if kind != _NO_BITS and len(content) != size:
        raise ValueError("cut off")
    return content


def _name(texts: bytes, at: int) -> str:
    return texts[at : texts.index(b"\0", at)].decode()


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    """(attribute, symbol, number) of those that consist of two words."""
    at = 0
    while at < len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind == _SIZED:
            if size == 8:
                symbol, number = struct.unpack_from("<2I", info, at)
                yield attribute, symbol, number
            at += size
