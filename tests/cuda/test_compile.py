"""NVRTC and its cache, without a GPU: what is kept, what is compiled anew, what errors say."""

from __future__ import annotations

import builtins
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.steps import make_step
from tests.exhaustive import spare
from vtrain.engines.cuda import lowering, sources
from vtrain.engines.cuda.fuse import POINTWISE, render_source
from vtrain.engines.cuda.plan import find_groups
from vtrain.engines.cuda.program import Program
from vtrain.errors import KernelError, MissingExtraError, RunError

pytest.importorskip("cuda.bindings", reason="the cuda extra is not installed")

from vtrain.engines.cuda import compile as compiling
from vtrain.engines.cuda.compile import (
    Compiler,
    choose_architecture,
    list_architectures,
    prune,
)

FILE = "relu.cu"


def test_the_architectures_are_those_that_are_meant() -> None:
    *wanted, newest = list_architectures()
    assert wanted == ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
    assert int(newest[3:].rstrip("a")) >= 120


@pytest.mark.parametrize(
    "architecture", spare(list_architectures(), {"sm_75", "sm_90a"}.__contains__)
)
def test_generated_kernels_compile(architecture: str, tmp_path: Path) -> None:
    program = Program(make_step("cnn").graph)
    chains = find_groups(program)
    code = Compiler(architecture, folder=tmp_path).compile("generated.cu", render_source(chains))
    assert code.startswith(b"\x7fELF")
    for chain in chains:
        assert chain.name.encode() in code


def test_what_was_compiled_is_kept(tmp_path: Path) -> None:
    first = Compiler("sm_80", folder=tmp_path)
    code = first.compile(FILE)
    second = Compiler("sm_80", folder=tmp_path)
    assert second.compile(FILE) == code
    assert (first.compiled, second.compiled) == (1, 0)
    assert [path.suffix for path in tmp_path.iterdir()] == [".kernel"]


def test_another_architecture_file_or_text_is_another_entry(tmp_path: Path) -> None:
    compilers = [Compiler(name, folder=tmp_path) for name in ("sm_80", "sm_90a")]
    codes = {compiler.compile(FILE) for compiler in compilers}
    codes.add(compilers[0].compile("relu_grad.cu"))
    assert len(codes) == 3
    compilers[0].compile("relu_grad.cu", '#include "relu.cu"\n')
    assert [compiler.compiled for compiler in compilers] == [3, 1]
    assert len(list(tmp_path.iterdir())) == 4


def test_headers_in_the_working_directory_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a file nor of a generated text, whose first kernel would be another law's."""
    for header in ("law.cuh", "chain.cuh"):
        (tmp_path / header).write_text("#error taken from the working directory\n")
    generated = '#include "chain.cuh"\n#include "relu.cu"\n'
    expected = [Compiler("sm_80", folder=None).compile("relu.cu")]
    expected.append(Compiler("sm_80", folder=None).compile("generated.cu", generated))
    monkeypatch.chdir(tmp_path)
    assert Compiler("sm_80", folder=None).compile("relu.cu") == expected[0]
    assert Compiler("sm_80", folder=None).compile("generated.cu", generated) == expected[1]


@pytest.mark.parametrize("changed", ["law.cuh", FILE])
def test_a_changed_source_is_compiled_anew(changed: str, tmp_path: Path) -> None:
    """A changed header too, whoever includes it."""
    kernels = tmp_path / "kernels"
    shutil.copytree(sources.find_folder(), kernels)
    cache = tmp_path / "cache"
    Compiler("sm_80", folder=cache, kernels=kernels).compile(FILE)
    with (kernels / changed).open("a") as file:
        file.write("// changed\n")
    again = Compiler("sm_80", folder=cache, kernels=kernels)
    again.compile(FILE)
    assert again.compiled == 1


def test_another_compiler_version_is_another_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Compiler("sm_80", folder=tmp_path).compile(FILE)
    nvrtc = compiling.load_nvrtc()
    success = nvrtc.nvrtcResult.NVRTC_SUCCESS
    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (success, 99, 1))
    newer = Compiler("sm_80", folder=tmp_path)
    newer.compile(FILE)
    assert (newer.version, newer.compiled) == ("99.1", 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b""),
    ],
    ids=["flipped bit", "cut off", "empty"],
)
def test_a_damaged_entry_is_compiled_anew(damage: Callable[[Path], object], tmp_path: Path) -> None:
    code = Compiler("sm_80", folder=tmp_path).compile(FILE)
    [entry] = tmp_path.iterdir()
    damage(entry)
    again = Compiler("sm_80", folder=tmp_path)
    assert again.compile(FILE) == code
    assert again.compiled == 1
    third = Compiler("sm_80", folder=tmp_path)
    assert third.compile(FILE) == code
    assert third.compiled == 0


def test_an_entry_under_another_name_is_not_taken(tmp_path: Path) -> None:
    """A whole entry, but of another file: the digest covers the key."""
    Compiler("sm_80", folder=tmp_path).compile(FILE)
    [relu] = tmp_path.iterdir()
    Compiler("sm_80", folder=tmp_path).compile("relu_grad.cu")
    [other] = [path for path in tmp_path.iterdir() if path != relu]
    shutil.copy(relu, other)
    again = Compiler("sm_80", folder=tmp_path)
    again.compile("relu_grad.cu")
    assert again.compiled == 1


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    compiler = Compiler("sm_80", folder=blocked)
    assert compiler.compile(FILE) == compiler.compile(FILE)
    assert compiler.compiled == 2
    assert blocked.read_text() == "no folder"


def test_many_at_once_leave_whole_entries(tmp_path: Path) -> None:
    results: list[bytes] = []

    def work() -> None:
        results.append(Compiler("sm_80", folder=tmp_path).compile(FILE))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_the_cache_is_bounded_and_drops_the_longest_unused(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"{number}.kernel"
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))
    os.utime(tmp_path / "0.kernel", (2000, 2000))
    prune(tmp_path, most=300)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["0", "3", "4"]


def test_an_error_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match='identifier "y" is undefined') as caught:
        Compiler("sm_80", folder=tmp_path).compile("bad.cu", '#include "law.cuh"\ni64 x = y;\n')
    assert caught.value.where == "bad.cu:2"
    assert list(tmp_path.iterdir()) == []
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / "head.cuh").write_text("__device__ int a;\n\n__device__ int a;\n")
    with pytest.raises(KernelError) as caught:
        Compiler("sm_80", folder=None, kernels=kernels).compile("x.cu", '#include "head.cuh"\n')
    assert caught.value.where == "head.cuh:3"
    with pytest.raises(KernelError, match="cannot be read") as caught:
        Compiler("sm_80", folder=None, kernels=kernels).compile("none.cu")
    assert caught.value.where == "none.cu"


WITH_FAST = sorted(
    path.name for path in sources.find_folder().glob("*.cu") if "\n// --- fast" in path.read_text()
)


def copy_broken(file: str, before: str, folder: Path) -> Path:
    """The kernels, with an error in ``file`` before, or else after, its fast kernels begin."""
    kernels = folder / "kernels"
    shutil.copytree(sources.find_folder(), kernels)
    text = (kernels / file).read_text()
    (kernels / file).write_text(text.replace("\n// --- fast", f"{before}\n// --- fast", 1) + "?\n")
    return kernels


@pytest.mark.parametrize("file", WITH_FAST)
def test_fast_kernels_that_do_not_compile_leave_the_readable_ones(
    file: str, tmp_path: Path
) -> None:
    compiler = Compiler("sm_80", folder=None, kernels=copy_broken(file, "", tmp_path))
    code = compiler.compile(file)
    assert f".text.{Path(file).stem}\0".encode() in code
    assert compiler.failures[file].where.startswith(f"{file}:")
    assert "does not compile" in compiler.failures[file].message


def test_every_fast_kernel_can_be_left_out() -> None:
    others = {"matmul.cu", "col2im.cu", "keep_span.cu"}
    quick = {op for op, rule in POINTWISE.items() if rule.quick}
    assert {f"{op}.cu" for op in lowering.FAST.keys() | quick} | others == {*WITH_FAST}


def test_readable_kernels_that_do_not_compile_are_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC is asked once for the whole and once for the readable part, however often we are."""
    compiler = Compiler("sm_80", folder=None, kernels=copy_broken("sum.cu", "?", tmp_path))
    with pytest.raises(KernelError, match="does not compile"):
        compiler.compile("sum.cu")
    assert compiler.failures == {}
    nvrtc = compiling.load_nvrtc()
    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", None)
    with pytest.raises(KernelError, match="does not compile"):
        compiler.compile("sum.cu")


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((8, 0), "sm_80"),
        ((9, 0), "sm_90a"),
        ((12, 0), "sm_120a"),
        ((8, 9), "sm_89"),
        # Newer than NVRTC, in a generation that it knows: machine code, which no driver refuses.
        ((12, 9), "sm_121"),
        ((9, 9), "sm_90"),
    ],
)
def test_a_device_gets_machine_code_of_its_own_or_of_its_generation(
    capability: tuple[int, int], expected: str
) -> None:
    assert choose_architecture(*capability) == expected


def test_a_device_newer_than_the_compiler_gets_ptx(tmp_path: Path) -> None:
    architecture = choose_architecture(99, 0)
    assert architecture.startswith("compute_")
    assert b".visible .entry relu" in Compiler(architecture, folder=tmp_path).compile(FILE)
    with pytest.raises(KernelError, match="as old as this one"):
        choose_architecture(3, 5)


def test_without_the_extra_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cuda"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"pip install 'vtrain\[cuda\]'"):
        compiling.load_nvrtc()


def test_a_checkout_has_its_kernels_and_a_wheel_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = sources.find_folder.__wrapped__
    assert find() == sources.CHECKOUT / "reference_kernels"
    monkeypatch.setattr(sources, "CHECKOUT", tmp_path)
    monkeypatch.setattr(sources, "PACKAGE", tmp_path / "package")
    with pytest.raises(RunError, match="install vtrain anew") as caught:
        find()
    assert caught.value.where == str(tmp_path / "package" / "reference_kernels")
    # A wheel's folder of packages, where some package left a file that is none of its business.
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(RunError, match="install vtrain anew"):
        find()
    kernels = tmp_path / "package" / "reference_kernels"
    kernels.mkdir(parents=True)
    (kernels / "law.cuh").touch()
    assert find() == kernels
    # What an editable install left in the package is old when a kernel was changed since.
    (tmp_path / "reference_kernels").mkdir()
    (tmp_path / "reference_kernels" / "law.cuh").touch()
    assert find() == tmp_path / "reference_kernels"
    (tmp_path / "pyproject.toml").unlink()
    assert find() == kernels


def test_the_copy_of_an_editable_install_goes_into_no_wheel() -> None:
    """The build takes the kernels from elsewhere and refuses a second copy, with git or without."""
    copy = sources.PACKAGE / "reference_kernels"
    line = f"/{copy.relative_to(sources.CHECKOUT).as_posix()}/"
    for name in (".gitignore", ".ignore"):
        assert line in (sources.CHECKOUT / name).read_text().splitlines()


def test_the_base_engine_imports_no_cuda() -> None:
    program = (
        "import sys\nfrom vtrain.engines.registry import resolve_engine\n"
        "import vtrain.engines.cuda.session, vtrain.engines.cuda.gpu\n"
        "resolve_engine('cpu')\nsys.exit('cuda' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
