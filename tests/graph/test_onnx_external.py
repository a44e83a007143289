"""Models that keep tensors in files beside them: the same as in one file, or refused by name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.test_onnx_import import FC, constant, make, node
from vtrain.errors import ModelError, TaskError
from vtrain.graph import onnx_file
from vtrain.graph.onnx_file import read_onnx
from vtrain.graph.onnx_import import import_onnx
from vtrain.limits import Limits

NODES = [node("Gemm", "x w b", "h"), constant("c", np.ones((1, 4), np.float32)), node("Add", "h c")]
W = FC["w"].tobytes()
SECRET = b"what is none of the model's business".ljust(len(W))


def make_proto() -> onnx.ModelProto:
    return make(NODES, ["n", 5], FC)


def save(folder: Path, *, name: str = "data/w.bin", data: bytes = W, **entries: str) -> Path:
    """A model whose tensor ``w`` says where its data are, and the file with ``data``."""
    proto = make_proto()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in ({"location": name} | entries).items():
        tensor.external_data.add(key=key, value=value)
    (folder / "model" / "data").mkdir(parents=True)
    (folder / "model" / "data" / "w.bin").write_bytes(data)
    path = folder / "model" / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("attributes", [True, False])
def test_a_model_is_the_same_in_one_file_and_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool, attributes: bool
) -> None:
    one, several = tmp_path / "one.onnx", tmp_path / "several.onnx"
    onnx.save(make_proto(), one)
    onnx.save(
        make_proto(), several, save_as_external_data=True, all_tensors_to_one_file=whole,
        location="weights" if whole else None, size_threshold=0, convert_attribute=attributes,
    )  # fmt: skip
    assert len(list(tmp_path.iterdir())) > 2
    assert read_onnx(several) == one.read_bytes() == read_onnx(one)
    first, second = import_onnx(several).params, import_onnx(one).params
    assert list(first) == list(second)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    monkeypatch.chdir(tmp_path)
    assert read_onnx(Path("several.onnx")) == one.read_bytes()


def test_a_model_of_torch_is_the_same_in_one_file_and_in_several(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(torch.nn.Linear(5, 80), torch.nn.ReLU(), torch.nn.Linear(80, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        program: Any = torch.onnx.export(network, (torch.rand(2, 5),), dynamo=True, verbose=False)
        for external in (False, True):
            program.save(tmp_path / f"{external}.onnx", external_data=external)
    one, several = (tmp_path / f"{external}.onnx" for external in (False, True))
    assert b"location" in several.read_bytes()
    assert read_onnx(several) == one.read_bytes()
    assert len(import_onnx(several).params) == 4


def test_parts_may_overlap_and_lie_anywhere(tmp_path: Path) -> None:
    path = save(tmp_path, data=bytes(7) + W, offset="7", length=str(len(W)))
    proto = onnx.load_from_string(path.read_bytes())
    bias = proto.graph.initializer[1]
    bias.ClearField("raw_data")
    bias.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "./data/w.bin", "offset": "7", "length": "16"}.items():
        bias.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    expected = make(NODES, ["n", 5], {"w": FC["w"], "b": FC["w"].reshape(-1)[:4]})
    assert read_onnx(path) == expected.SerializeToString()
    to_the_end = save(tmp_path / "b", data=bytes(7) + W, offset="7")
    assert read_onnx(to_the_end) == make_proto().SerializeToString()


def link_file(path: Path) -> None:
    (path.parent / "data" / "link").symlink_to("w.bin")


def link_folder(path: Path) -> None:
    (path.parent / "folder").symlink_to("data")


def make_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")


def give_data_too(path: Path) -> None:
    proto = onnx.load_from_string(path.read_bytes())
    proto.graph.initializer[0].raw_data = W
    path.write_bytes(proto.SerializeToString())


def repeat_location(path: Path) -> None:
    proto = onnx.load_from_string(path.read_bytes())
    proto.graph.initializer[0].external_data.add(key="location", value="data/w.bin")
    path.write_bytes(proto.SerializeToString())


def spoil_text(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"data/w.bin", b"data/\xff.bin"))


def do_nothing(path: Path) -> None:
    pass


Spoil = Callable[[Path], None]
HOSTILE: dict[str, tuple[dict[str, Any], Spoil, str, str]] = {
    "missing": ({"name": "data/v.bin"}, do_nothing, "data/v.bin", "the file is missing (tensor w"),
    "short": ({"data": W[:-1], "length": "80"}, do_nothing, "tensor w", "and that file has 79"),
    "beyond its end": ({"offset": "81"}, do_nothing, "tensor w", "from byte 81 on, and that file"),
    "not enough of it": (
        {"offset": "1", "length": "80"},
        do_nothing,
        "tensor w",
        "from byte 1 on, 80 of them, and that file has 80",
    ),
    "too little for the shape": (
        {"length": "76"},
        do_nothing,
        "initialiser w",
        "shape [5, 4] needs 80 bytes of data, has 76",
    ),
    "too much for the shape": ({"data": W + W}, do_nothing, "initialiser w", "has 160"),
    "2^60 bytes": ({"length": str(2**60)}, do_nothing, "tensor w", "is no number of bytes"),
    "10^17 bytes": ({"length": str(10**17)}, do_nothing, "tensor w", "and that file has 80"),
    "a folder above": ({"name": "../secret"}, do_nothing, "tensor w", "names no file in the"),
    "a folder above, below": ({"name": "data/../../secret"}, do_nothing, "tensor w", "no file in"),
    "a folder above, in place": ({"name": "data/../model.onnx"}, do_nothing, "tensor w", "no file"),
    "a device": ({"name": "/dev/zero"}, do_nothing, "tensor w", "names no file in the folder"),
    "a path of the system": ({"name": "//etc/passwd"}, do_nothing, "tensor w", "names no file in"),
    "the folder": ({"name": "."}, do_nothing, "tensor w", "names no file in the folder"),
    "nothing": ({"name": ""}, do_nothing, "tensor w", "names no file in the folder"),
    "a NUL": ({"name": "data/w.bin\0"}, do_nothing, "tensor w", "names no file in the folder"),
    "a long name": ({"name": "d" * 2000}, do_nothing, "tensor w", "a name of more than 1024"),
    "a long part of a name": ({"name": "d" * 999}, do_nothing, "d" * 999, "File name too long"),
    "a folder below": ({"name": "data"}, do_nothing, "model/data", "not a regular file but a fold"),
    "a file as a folder": ({"name": "data/w.bin/v"}, do_nothing, "data/w.bin/v", "is missing"),
    "a link": ({"name": "data/link"}, link_file, "data/link", "so is what a model names beside it"),
    "a link to a folder": ({"name": "folder/w.bin"}, link_folder, "model/folder", "but a link"),
    "a pipe": ({"name": "pipe"}, make_pipe, "model/pipe", "not a regular file but a pipe"),
    "an offset below 0": ({"offset": "-1"}, do_nothing, "tensor w", "the offset '-1' of its data"),
    "a length in words": ({"length": "1e2"}, do_nothing, "tensor w", "the length '1e2' of its"),
    "digits of another script": ({"offset": "\u0663"}, do_nothing, "tensor w", "no number of"),
    "an unknown key": ({"checksum": "0"}, do_nothing, "tensor w", "'checksum', which is none of"),
    "two locations": ({}, repeat_location, "tensor w", "'location' twice"),
    "data in both places": ({}, give_data_too, "tensor w", "both in the file and outside it"),
    "no text": ({}, spoil_text, "tensor w", "are not UTF-8"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_places_are_refused_by_name(tmp_path: Path, name: str) -> None:
    options, spoil, where, complaint = HOSTILE[name]
    (tmp_path / "secret").write_bytes(SECRET)
    path = save(tmp_path, **options)
    spoil(path)
    with pytest.raises(ModelError) as caught:
        import_onnx(path)
    assert where in caught.value.where
    assert complaint in caught.value.message


def test_all_of_a_model_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tensors of 80 bytes of one file of 80."""
    path = save(tmp_path)
    proto = onnx.load_from_string(path.read_bytes())
    proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
    proto.graph.initializer[-1].name = "v"
    path.write_bytes(proto.SerializeToString())
    size = path.stat().st_size
    for more, complaint in ((160, ""), (159, "tensor v: keeps 80 bytes"), (79, "it has 80 bytes")):
        monkeypatch.setattr(onnx_file, "limits_here", lambda: Limits(onnx_bytes=size + more))  # noqa: B023
        if complaint:
            with pytest.raises(ModelError, match=complaint):
                read_onnx(path)
        else:
            assert onnx.load_from_string(read_onnx(path)).graph.initializer[-1].raw_data == W


def test_bytes_and_messages_name_nothing(tmp_path: Path) -> None:
    path = save(tmp_path)
    for source in (path.read_bytes(), onnx.load_from_string(path.read_bytes())):
        with pytest.raises(ModelError, match="initialiser w: keeps its data outside the file"):
            import_onnx(source)


def test_what_is_no_model_is_refused_whatever_it_says(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\xfflocation")
    with pytest.raises(ModelError, match="is not an ONNX file"):
        read_onnx(path)
    with pytest.raises(TaskError, match="is missing"):
        read_onnx(tmp_path / "none.onnx", error=TaskError)


PARTS = st.sampled_from(["data", "w.bin", "..", ".", "", "link", "secret", "model.onnx", "\0"])
NUMBERS = st.one_of(st.integers(-2, 120).map(str), st.text(max_size=3), st.just("9" * 25))


@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(PARTS, max_size=5),
    entries=st.dictionaries(st.sampled_from(["offset", "length", "basepath"]), NUMBERS),
)
def test_nothing_outside_the_folder_is_read(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], entries: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_bytes(SECRET)
    path = save(folder, name="/".join(parts), data=W, **entries)
    (path.parent / "link").symlink_to("../secret")
    (path.parent / "data" / "link").symlink_to(folder)
    refusal: ModelError | None = None
    try:
        data = read_onnx(path)
    except ModelError as error:
        refusal = error
    if refusal is not None:
        assert refusal.where
        return
    stored = onnx.load_from_string(data).graph.initializer[0].raw_data
    assert stored in W or stored in path.read_bytes()
    assert b"business" not in data
