"""Exact matrix products on int8 tensor cores: which kernels, and how.

A product is three launches or four: both operands are packed into tiles of bytes, one or two planes
of them, and multiplied; where several blocks share an output, their sums are cleared before and
narrowed after.  The kernels are in ``reference_kernels/matmul.cu``; ``gemm.cuh`` beside it has the
arithmetic and why no sum overflows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final, Literal

from vtrain.engines.cuda.launch import (
    DTYPE_CODES,
    Arg,
    Constant,
    Launch,
    Scratch,
    one_thread_each,
)
from vtrain.errors import GraphError
from vtrain.spec.number import STORAGE

TILE: Final = 128
"""Rows of a packed tile, and its inner places."""
LONGEST_SUM: Final = 32768
"""Terms that a block may add: its int32 sums of byte products stay below 2^31."""

GATHERED: Final = 16
"""Channels that a product gathers windows by at a time; a multiple of it needs no packing."""
LEAST_PRODUCTS: Final = 2**17
"""Multiplications below which three launches are not worth it."""

LEAST_SHARE: Final = 16
"""Of the products of padded tiles, one in so many must be a product of the operands where matrices
are multiplied in stacks: each has tiles, and packed planes, of its own."""

MULTIPLYING: Final = ("matmul_mma", "matmul_wgmma")
"""How the names of kernels that multiply begin."""
MOST_MATRICES: Final = 65_535
"""Matrices of a batch: a grid has no more in its third direction."""

FINISH: Final = "matmul_finish"
"""The kernel that narrows what several blocks have added up."""

CLEAR: Final = "matmul_clear"
"""The kernel that zeroes what they add to."""
SUMS: Final = "sums"
"""Name of the workspace of what they add up."""

_FILE: Final = "matmul.cu"
_STAGES_BYTES: Final = 226 * 1024
"""Shared memory for the stages of Hopper's kernel, of which there are as many as fit."""
_PACK_THREADS: Final = 256
_LEAST_SPLIT: Final = 4
"""Inner tiles that a block should have, so that filling its pipeline pays."""
_LEAST_BLOCKS: Final = 8
"""Blocks that share tiles, however few processors there are: in the self-check, where one stands
for sums that are not split, several blocks take several tiles each."""
_EPILOGUE_ARGUMENTS: Final = 9
"""The last arguments of a product, of which the flags are the first."""
_STORES_SUMS, _ADDS_SUMS, _NARROWS, _HAS_BIAS, _IS_RELU, _TURNS = 1, 2, 4, 8, 16, 32

Bytes = Literal["i16", "i8", "u8"]
"""How an operand is taken apart: two planes of bytes, or one, signed or unsigned."""


@dataclass(frozen=True)
class Factor:
    """An operand: ``extent`` rows of A, or columns of B, each of ``inner`` terms.

    Element (row, term) is ``data[row * inner + term]`` if ``inner_last``, else
    ``data[term * extent + row]``.  Every element must be proven to lie in [``lo``, ``hi``]: a
    narrow range saves half of the work, and an element outside it gives wrong sums.  With
    ``windows`` (the struct Window of reference_kernels/window.cuh) ``data`` is an NHWC image
    instead, and the matrix is that of its patches, stored in packed tiles at most.  GraphError for
    another dtype than i16, i8 and u8, and for a range that the dtype cannot hold.
    """

    data: Arg
    dtype: str
    extent: int
    inner: int
    inner_last: bool
    lo: int
    hi: int
    windows: Constant | None = None
    shared: bool = False
    """All matrices of a batch take this one."""

    def __post_init__(self) -> None:
        if self.dtype not in ("i16", "i8", "u8"):
            raise GraphError(f"operands are i16, i8 or u8, not {self.dtype}", where="matmul")
        lo, hi = STORAGE[self.dtype]
        if not lo <= self.lo <= self.hi <= hi:
            raise GraphError(f"{self.dtype} cannot hold [{self.lo}, {self.hi}]", where="matmul")
        if min(self.extent, self.inner) < 1:
            raise GraphError(f"is empty: {self.extent} x {self.inner}", where="matmul")

    @property
    def bytes(self) -> Bytes:
        """The least planes that hold the range."""
        if self.lo >= -128 and self.hi <= 127:
            return "i8"
        return "u8" if self.lo >= 0 and self.hi <= 255 else "i16"


@dataclass(frozen=True)
class Narrow:
    """add_bias, rescale and relu on the way out: ``out`` of ``dtype`` (i16, i32 or i64).

    ``saturated`` counts what the rescaling clamps.  ``bias`` is int32, one a column.
    """

    out: Arg
    dtype: str
    multiplier: int
    shift: int
    saturated: Arg
    bias: Arg | None = None
    bias_shift: int = 0
    relu: bool = False


@dataclass(frozen=True)
class Epilogue:
    """Where results go: the exact int64 ``sums``, or what they are narrowed to, or both."""

    sums: Arg | None
    narrow: Narrow | None = None

    def __post_init__(self) -> None:
        if self.sums is None and self.narrow is None:
            raise GraphError("nothing takes the sums", where="matmul")


@dataclass(frozen=True)
class Cost:
    """Operations of the tensor cores (two a byte product) and bytes that have to move."""

    operations: int
    nbytes: int


@dataclass(frozen=True)
class Choice:
    """What a plan has chosen: the kernel that multiplies, and whether it does the transpose."""

    kernel: str
    is_turned: bool


def find_choice(launches: Sequence[Launch]) -> Choice:
    """What was chosen for ``launches`` of :func:`plan_matmul`."""
    product = next(one for one in launches if one.kernel.startswith(MULTIPLYING))
    flags = product.args[-_EPILOGUE_ARGUMENTS]
    return Choice(product.kernel, isinstance(flags, int) and flags & _TURNS != 0)


@dataclass(frozen=True)
class _Variant:
    """A kernel: block of TILE x ``columns`` outputs."""

    kernel: str
    threads: int
    columns: int
    shared: int

    @property
    def column_tiles_per_block(self) -> int:
        """Packed tiles of B that a block takes, at least in part."""
        return max(1, self.columns // TILE)

    @property
    def takes_many(self) -> bool:
        """Its blocks, of which a processor has one, go from tile to tile."""
        return "wgmma_" in self.kernel

    @property
    def gathering(self) -> str:
        """The kernel that does the same but gathers windows by itself."""
        return self.kernel.replace("wgmma_", "wgmma_windows_")

    def count_padded(self, a: Factor, b: Factor) -> int:
        """Outputs that the blocks of a product compute, those beyond its edges too."""
        return -(-a.extent // TILE) * TILE * -(-b.extent // self.columns) * self.columns


def choose_bytes(a: Factor, b: Factor) -> tuple[Bytes, Bytes]:
    """How both are taken apart; of two single planes none may be unsigned."""
    left, right = a.bytes, b.bytes
    if "i16" not in (left, right):
        left = "i16" if left == "u8" else left
        right = "i16" if right == "u8" else right
    return left, right


def count_cost(a: Factor, b: Factor, batch: int = 1) -> Cost:
    """What the product of two factors costs, padding not counted; sums taken for int16."""
    planes = [_count_planes(part) for part in choose_bytes(a, b)]
    outputs = batch * a.extent * b.extent
    packed = [
        factor.extent * factor.inner * (_size(factor.dtype) + 2 * plane)
        for factor, plane in zip((a, b), planes, strict=True)
    ]
    return Cost(2 * outputs * a.inner * planes[0] * planes[1], batch * sum(packed) + 2 * outputs)


def plan_matmul(
    a: Factor,
    b: Factor,
    epilogue: Epilogue,
    architecture: str,
    *,
    processors: int = 1,
    batch: int = 1,
    disabled: Set[str] = frozenset(),
    least_products: int = LEAST_PRODUCTS,
    choice: Choice | None = None,
) -> tuple[Launch, ...] | None:
    """The launches of A times B on ``architecture`` ("sm_90a"), a GPU of ``processors``.

    ``batch`` matrices lie one after the other in every operand that is not ``shared``, and in the
    results.  None where the readable kernels serve better (a small product, a stack of matrices
    that are much smaller than tiles) or alone (no tensor cores, or those in ``disabled``).  Kernels
    may need more shared memory than 48 KiB: whoever launches them has to ask for it.  With
    ``choice`` it is done as another product was, even if this one would be done otherwise; None
    where it cannot be.  GraphError for factors that do not fit each other, and for a batch of more
    than :data:`MOST_MATRICES`.
    """
    _require_fitting(a, b, batch)
    worth = batch * a.extent * b.extent * a.inner >= least_products
    a, b, variant, flags = _orient(a, b, epilogue, architecture, disabled, choice)
    if variant is None or not (worth or a.windows or b.windows):
        return None
    if batch > 1 and least_products > 0 and not _fills_tiles(variant, a, b):
        return None
    parts = choose_bytes(a, b)
    row_tiles, inner_tiles = -(-a.extent // TILE), -(-a.inner // TILE)
    column_blocks = -(-b.extent // variant.columns)
    # Only sums of one block each are narrowed without it.
    alone = epilogue.narrow is not None and FINISH in disabled
    split = _split_inner(row_tiles * column_blocks * batch, inner_tiles, 1 if alone else processors)
    splits = -(-inner_tiles // split)
    if splits > 1 and alone:
        return None

    gathered = _choose_windows(variant, a, parts, disabled)
    kernel = variant.kernel if gathered is None else gathered.kernel
    if choice is not None and kernel != choice.kernel:
        return None
    packs, packed = [], []
    column_tiles = -(-b.extent // (variant.column_tiles_per_block * TILE))
    column_tiles *= variant.column_tiles_per_block
    for name, factor, part, tiles in (
        ("a", a, parts[0], row_tiles),
        ("b", b, parts[1], column_tiles),
    ):
        if gathered is not None and name == "a":
            packed.append(gathered.planes)
            packs.append(gathered.split)
            continue
        matrices = 1 if factor.shared else batch
        planes = _count_planes(part)
        nbytes = matrices * tiles * inner_tiles * planes * TILE * TILE
        packed.append(Scratch(nbytes, f"packed_{name}"))
        grid = (tiles * inner_tiles, 1, matrices)
        packs.append(_pack(factor, planes, inner_tiles, grid, packed[-1]))

    outputs = batch * a.extent * b.extent
    before: list[Launch] = []
    after: list[Launch] = []
    direct = epilogue
    if splits > 1:
        sums = Scratch(8 * outputs, SUMS) if epilogue.sums is None else epilogue.sums
        before.append(one_thread_each(_FILE, CLEAR, outputs, sums))
        direct, flags = Epilogue(sums), flags | _ADDS_SUMS
        if epilogue.narrow is not None:
            after.append(plan_finish(outputs, b.extent, sums, epilogue.narrow))
    elif epilogue.sums is not None:
        flags |= _STORES_SUMS
    product = Launch(
        _FILE,
        kernel,
        _make_grid(variant, row_tiles * column_blocks, splits, batch, processors),
        (variant.threads, 1, 1),
        (
            *(() if gathered is None else gathered.arguments),
            *packed,
            a.extent,
            b.extent,
            a.inner,
            split,
            batch,
            int(not a.shared),
            int(not b.shared),
            *_epilogue_arguments(direct, flags),
        ),
        variant.shared,
    )
    return (*packs, *before, product, *after)


def _require_fitting(a: Factor, b: Factor, batch: int) -> None:
    if a.inner != b.inner:
        raise GraphError(f"inner extents differ: {a.inner} and {b.inner}", where="matmul")
    if batch > 1 and (a.windows or b.windows):
        raise GraphError("windows are not batched: their images are", where="matmul")
    if batch > MOST_MATRICES:
        raise GraphError(f"a batch has {MOST_MATRICES} matrices at most", where="matmul")


def _fills_tiles(variant: _Variant, a: Factor, b: Factor) -> bool:
    inner = -(-a.inner // TILE) * TILE
    return LEAST_SHARE * a.extent * b.extent * a.inner >= variant.count_padded(a, b) * inner


def _orient(
    a: Factor,
    b: Factor,
    epilogue: Epilogue,
    architecture: str,
    disabled: Set[str],
    choice: Choice | None,
) -> tuple[Factor, Factor, _Variant | None, int]:
    """The factors in the order in which they are multiplied, by which kernel, and its flags."""
    variant = _choose_variant(a, b, architecture, disabled, choice)
    turned = _choose_variant(b, a, architecture, disabled, choice)
    if choice is not None:
        turns = choice.is_turned
    else:
        # Few rows would leave tiles of 128 rows empty: their product is done as its transpose.
        turns = (
            epilogue.narrow is None
            and variant is not None
            and turned is not None
            and 4 * turned.count_padded(b, a) <= 3 * variant.count_padded(a, b)
        )
    return (b, a, turned, _TURNS) if turns else (a, b, variant, 0)


def _size(dtype: str) -> int:
    return 2 if dtype == "i16" else 1


def _count_planes(part: Bytes) -> int:
    return 2 if part == "i16" else 1


def _choose_variant(
    a: Factor, b: Factor, architecture: str, disabled: Set[str], choice: Choice | None
) -> _Variant | None:
    parts = choose_bytes(a, b)
    planes = [_count_planes(part) for part in parts]
    name = "_".join(parts)
    found: list[_Variant] = []
    if architecture == "sm_90a":
        widths = [256 if planes == [1, 1] else TILE]
        if planes == [2, 2]:
            few = 64
            fits = b.extent <= few
            widths = [*widths, few] if choice is not None else [few] if fits else widths
        for width in widths:
            stage = TILE * (planes[0] * TILE + planes[1] * width)
            stages = _STAGES_BYTES // stage
            # The stages are aligned to 1024; two barriers a stage, and one more, follow them.
            shared = stages * stage + 1024 + 16 * stages + 16
            narrow = "_narrow" if width < TILE else ""
            found.append(_Variant(f"matmul_wgmma_{name}{narrow}", 384, width, shared))
    digits = architecture.partition("_")[2].rstrip("af")
    if digits.isdecimal() and int(digits) >= 80:
        found.append(_Variant(f"matmul_mma_{name}", 256, TILE, 3 * sum(planes) * TILE * 64))
    return next(
        (
            variant
            for variant in found
            if variant.kernel not in disabled
            and (choice is None or choice.kernel in (variant.kernel, variant.gathering))
        ),
        None,
    )


@dataclass(frozen=True)
class _Windows:
    """How a product gathers windows by itself: its kernel, from which planes, made how."""

    kernel: str
    planes: Scratch
    split: Launch
    arguments: tuple[Arg, ...]


def _choose_windows(
    variant: _Variant, a: Factor, parts: tuple[Bytes, Bytes], disabled: Set[str]
) -> _Windows | None:
    """For windows of int16 as rows of A, 16 channels at a time; None where they must be packed."""
    kernel = variant.gathering
    eligible = a.windows is not None and a.inner_last and parts == ("i16", "i16")
    if not eligible or kernel == variant.kernel or kernel in disabled or a.windows is None:
        return None
    height, width, channels, rows, columns = struct.unpack_from("<5q", a.windows.data)
    elements = a.extent // (rows * columns) * height * width * channels
    if channels % GATHERED:
        return None
    planes = Scratch(2 * elements, "planes_a")
    split = one_thread_each(
        _FILE,
        "matmul_split_image",
        elements // GATHERED,
        a.data,
        elements,
        planes,
    )
    return _Windows(kernel, planes, split, (a.windows, elements))


def _split_inner(blocks: int, inner_tiles: int, processors: int) -> int:
    """Inner tiles of a block: all, unless the device would be idle or a sum too long."""
    wanted = min(processors // blocks, inner_tiles // _LEAST_SPLIT)
    needed = -(-inner_tiles * TILE // LONGEST_SUM)
    return -(-inner_tiles // max(1, wanted, needed))


def _make_grid(
    variant: _Variant, tiles: int, splits: int, batch: int, processors: int
) -> tuple[int, int, int]:
    """A block a tile, unless blocks take one tile after the other: as many as run at one time."""
    if not variant.takes_many:
        return (tiles, splits, batch)
    return (min(tiles * batch, max(processors, _LEAST_BLOCKS)), splits, 1)


def _pack(
    factor: Factor, planes: int, inner_tiles: int, grid: tuple[int, int, int], out: Arg
) -> Launch:
    name = "along" if factor.inner_last else "across"
    source: tuple[Arg, ...]
    if factor.windows is None:
        stride = factor.inner if factor.inner_last else factor.extent
        source = (stride, factor.extent * factor.inner)
    else:
        name, source = f"patches_{name}", (factor.windows,)
    return Launch(
        _FILE,
        f"matmul_pack_{name}",
        grid,
        (_PACK_THREADS, 1, 1),
        (
            factor.data,
            DTYPE_CODES[factor.dtype],
            *source,
            factor.extent,
            factor.inner,
            planes,
            inner_tiles,
            out,
        ),
    )


def _narrow_arguments(narrow: Narrow) -> tuple[Arg, ...]:
    return (
        narrow.out,
        DTYPE_CODES[narrow.dtype],
        narrow.out if narrow.bias is None else narrow.bias,
        narrow.bias_shift,
        narrow.multiplier,
        narrow.shift,
        narrow.saturated,
    )


def _narrow_flags(narrow: Narrow) -> int:
    return (_HAS_BIAS if narrow.bias is not None else 0) | (_IS_RELU if narrow.relu else 0)


def _epilogue_arguments(epilogue: Epilogue, flags: int) -> tuple[Arg, ...]:
    """Arguments from ``flags`` on; a pointer that is not asked for is any other."""
    narrow = epilogue.narrow
    if narrow is not None:
        flags |= _NARROWS | _narrow_flags(narrow)
        sums = narrow.out if epilogue.sums is None else epilogue.sums
        return (flags, sums, *_narrow_arguments(narrow))
    sums = 0 if epilogue.sums is None else epilogue.sums
    return (flags, sums, sums, DTYPE_CODES["i64"], sums, 0, 0, 0, sums)


def plan_finish(outputs: int, columns: int, sums: Arg, narrow: Narrow) -> Launch:
    """The launch that narrows ``outputs`` int64 ``sums`` in rows of ``columns``."""
    arguments = (sums, columns, _narrow_flags(narrow), *_narrow_arguments(narrow))
    return one_thread_each(_FILE, FINISH, outputs, *arguments)
