"""Tensors of an ONNX file that keep their data in files beside it.

ONNX lets a tensor name a file, an offset and a length.  A model may be a stranger's, and must not
make its reader read what is none of the model's business: such a file lies in the folder of the
model or below it, is a regular one, and is no link nor reached by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]

from vtrain.commit.files import BoundedFile, open_file
from vtrain.errors import ModelError
from vtrain.limits import LIMITS

_KEYS: Final = ("location", "offset", "length")
_NUMBER: Final = re.compile("[0-9]{1,18}")
_DATA: Final = frozenset(
    [
        *("raw_data", "float_data", "double_data", "string_data"),
        *("int32_data", "int64_data", "uint64_data"),
    ]
)
"""Fields that hold a tensor's data in the file itself."""
_MEND: Final = "export the model again, or save it in one file"


@dataclass(frozen=True)
class _Part:
    """Where the data of ``tensor`` are; without a ``length`` they go on to the end of the file."""

    tensor: onnx.TensorProto
    location: str
    offset: int
    length: int | None

    @property
    def where(self) -> str:
        return _name(self.tensor)


def inline_data(model: onnx.ModelProto, folder: Path, limit: int) -> bool:
    """Put what tensors of ``model`` keep in files of ``folder`` into them; whether there are any.

    The message is then that of the same model in one file.  ``limit``: bytes that a file, and all
    of these data together, may have.  ModelError names the file or the tensor; a part of the
    message may have been changed by then.
    """
    parts: dict[str, list[_Part]] = {}
    for tensor in _find_tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            part = _read_part(tensor)
            parts.setdefault(part.location, []).append(part)
    left = limit
    for location, group in parts.items():
        path = folder / location
        try:
            with open_file(path, limit, root=folder, error=ModelError) as file:
                for part in group:
                    left -= _fill(part, file, left)
        except ModelError as error:
            if error.where != str(path):
                raise
            raise ModelError(
                f"{error.message} ({group[0].where} keeps its data there)", where=error.where
            ) from None
    return bool(parts)


def _fill(part: _Part, file: BoundedFile, limit: int) -> int:
    """Read one tensor's data; how many bytes they are."""
    length = file.size - part.offset if part.length is None else part.length
    if length < 0 or part.offset + length > file.size:
        _refuse(
            part.tensor,
            f"keeps its data in {part.location!r} from byte {part.offset} on"
            + ("" if part.length is None else f", {length} of them")
            + f", and that file has {file.size}: {_MEND}",
        )
    if length > limit:
        _refuse(
            part.tensor,
            f"keeps {length} bytes in {part.location!r}, with which the model has more than this "
            "machine takes",
        )
    file.seek(part.offset)
    part.tensor.raw_data = file.read(length)
    # Cleared, not set to its default: a file that was saved as one does not have the field.
    part.tensor.ClearField("data_location")
    del part.tensor.external_data[:]
    return length


def _find_tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Every tensor of a message: the stored ones, those of attributes, subgraphs, functions."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                yield from _find_tensors(inner)


def _read_part(tensor: onnx.TensorProto) -> _Part:
    found: dict[str, str] = {}
    for entry in tensor.external_data:
        key, value = (_require_text(tensor, text) for text in (entry.key, entry.value))
        if key not in _KEYS or key in found:
            how = " twice" if key in found else f", which is none of {', '.join(_KEYS)}"
            _refuse(tensor, f"says of its data outside the file {key[:40]!r}{how}: {_MEND}")
        found[key] = value
    if any(len(value) for field, value in tensor.ListFields() if field.name in _DATA):
        _refuse(tensor, f"has data both in the file and outside it: {_MEND}")
    location = found.get("location", "")
    _check_location(tensor, location)
    offset, length = (_read_number(tensor, found, key) for key in _KEYS[1:])
    return _Part(tensor, location, offset or 0, length)


def _require_text(tensor: onnx.TensorProto, text: str | bytes) -> str:
    if isinstance(text, bytes):  # what protobuf hands over where it is not UTF-8
        _refuse(tensor, "says where its data are in bytes that are not UTF-8")
    return text


def _check_location(tensor: onnx.TensorProto, location: str) -> None:
    if len(location.encode()) > LIMITS.onnx_name_bytes:
        _refuse(
            tensor,
            f"keeps its data in {location[:40]!r}..., a name of more than "
            f"{LIMITS.onnx_name_bytes} bytes",
        )
    path = PurePosixPath(location)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in location:
        _refuse(
            tensor,
            f"keeps its data in {location!r}, which names no file in the folder of the model or "
            f"below it: {_MEND}",
        )


def _read_number(tensor: onnx.TensorProto, found: dict[str, str], key: str) -> int | None:
    text = found.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        _refuse(tensor, f"says the {key} {text[:40]!r} of its data, which is no number of bytes")
    return int(text)


def _name(tensor: onnx.TensorProto) -> str:
    # Bytes are what is not UTF-8; constants in nodes need no name.
    return f"tensor {str(tensor.name)[: LIMITS.onnx_name_bytes]}".rstrip()


def _refuse(tensor: onnx.TensorProto, message: str) -> NoReturn:
    raise ModelError(message, where=_name(tensor))
