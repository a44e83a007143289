"""The Rust core: exact kernels and hashing."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__version__: str

Buffer = npt.NDArray[Any] | bytes

# Commitments (rust/vtrain-py/src/commit.rs).  Buffers are C-contiguous and little-endian and are
# read without a copy and without the GIL; threads=0 means all cores.  Faults are EncodingError or,
# of the order of samples, TaskError.

def tensor_digest(data: Buffer, threads: int = 0) -> bytes: ...
def tensor_digests(tensors: Sequence[Buffer], threads: int = 0) -> list[bytes]: ...
def chunk_opening(data: Buffer, index: int) -> tuple[bytes, list[bytes]]: ...
def verify_chunk_opening(
    digest: bytes, length: int, index: int, chunk: bytes, path: list[bytes]
) -> bool: ...
def chunk_part_value(data: Buffer, first: int, is_root: bool) -> bytes: ...
def join_chunk_values(values: list[bytes], is_root: bool) -> bytes: ...
def verify_inclusion(
    domain: str, root: bytes, leaf: bytes, index: int, size: int, path: list[bytes]
) -> bool: ...
def verify_consistency(
    domain: str,
    old_root: bytes,
    new_root: bytes,
    old_size: int,
    new_size: int,
    path: list[bytes],
) -> bool: ...
def batch_indices(seed: int, n: int, batch: int, step: int) -> npt.NDArray[np.int64]: ...

class MerkleTree:
    def __init__(self, domain: str) -> None: ...
    @property
    def size(self) -> int: ...
    def append(self, leaf: bytes) -> None: ...
    def extend_fixed(self, data: Buffer, leaf_len: int, threads: int = 0) -> None: ...
    def root(self, size: int) -> bytes: ...
    def inclusion_path(self, index: int, size: int) -> list[bytes]: ...
    def frontier(self, start: int, end: int, depth: int) -> list[bytes]: ...
    def consistency_path(self, old_size: int, new_size: int) -> list[bytes]: ...

# The cpu engine (rust/vtrain-py/src/engine.rs).  Arrays are C-contiguous.  A record is (step, batch
# digest, loss, state root or b"").  GraphError names a node, EncodingError a byte or field,
# RunError a state, a path or threads, DataError the samples.  `check` is of the next step:
# `digests` are those of all outputs, one after the other, `read` gives what is claimed to be the
# output of a product, None where nothing with its digest is there; it returns the node at which it
# stopped, and a state must be loaded anew then.

Record = tuple[int, bytes, int, bytes]

class Engine:
    def __init__(
        self,
        graph: bytes,
        table: npt.NDArray[np.uint8],
        x_form: tuple[str, Sequence[int]],
        y_form: tuple[str, Sequence[int]],
        threads: int = 0,
        path: str = "auto",
        windows: tuple[int, int, int, int] | None = None,
    ) -> None: ...
    def load_state(self, name: str, value: npt.NDArray[Any]) -> None: ...
    def read_state(self) -> list[tuple[str, npt.NDArray[Any]]]: ...
    def step(self) -> Record: ...
    def trace(self) -> tuple[Record, list[bytes]]: ...
    def evaluate(self, nodes: Sequence[int]) -> list[npt.NDArray[Any]]: ...
    def check(
        self,
        digests: bytes,
        vectors: Sequence[npt.NDArray[np.uint64]],
        read: Callable[[int], npt.NDArray[np.int64] | None],
    ) -> int | None: ...
    def saturation(self) -> list[tuple[str, int]]: ...
    def start_profile(self) -> None: ...
    def profile(self) -> list[tuple[str, float]]: ...
    @property
    def check_memory(self) -> int: ...
    @property
    def memory(self) -> int: ...

def apply_node(
    node: bytes, inputs: Sequence[npt.NDArray[Any]], threads: int = 0, path: str = "auto"
) -> npt.NDArray[Any]: ...

# The exact int16 product (rust/vtrain-py/src/gemm.rs).  Arrays are C-contiguous; `transpose_a`
# says that A is stored as [k, m], `transpose_b` that B is stored as [n, k]; `out` is filled and
# returned; `path` is "auto" or one of `gemm_paths()`, slowest first.  GraphError for shapes that
# do not fit.

Int16Matrix = npt.NDArray[np.int16]

def find_wrong_product(
    a: npt.NDArray[np.int16],
    b: npt.NDArray[np.int16],
    c: npt.NDArray[np.int64],
    transpose_a: bool,
    transpose_b: bool,
    lo: int,
    hi: int,
    vectors: Sequence[npt.NDArray[np.uint64]],
    threads: int = 0,
) -> int | None: ...
def gemm_paths() -> list[str]: ...
def gemm_i64(
    a: Int16Matrix,
    b: Int16Matrix,
    transpose_a: bool = False,
    transpose_b: bool = False,
    path: str = "auto",
    threads: int = 0,
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]: ...
def gemm_rescale_i16(
    a: Int16Matrix,
    b: Int16Matrix,
    shift: int,
    bias: npt.NDArray[np.int64] | None = None,
    relu: bool = False,
    transpose_a: bool = False,
    transpose_b: bool = False,
    path: str = "auto",
    threads: int = 0,
    out: Int16Matrix | None = None,
) -> tuple[Int16Matrix, int]: ...

# The curve BN254 (rust/vtrain-py/src/bn254.rs).  `raw` has 64 bytes a point: x and y,
# little-endian, in Montgomery form to the base 2^256; each point is found to be finite and on the
# curve.  `combine` gives the sum of the first points times their scalars (32 bytes each,
# little-endian, reduced) as big-endian x and y, zeros for infinity.  EncodingError names the
# scalar, or the point, counted from `first`.
#
# `KzgKey` commits to columns of 2^k rows by that many points of a Lagrange basis, or by powers of
# which it makes one (`is_lagrange=False`: an inverse Fourier transform over points); all but the
# last `blinding` + 1 rows, which hold 1, are for values.  Columns are little-endian integers with
# their dtype, and scalars that follow them; commitments are big-endian x and y.  `combine` commits
# to the sum of the columns behind commitments, one after the other, times their coefficients
# (scalars).
#
# `SrsSecret` makes the points of an SRS of a known tau (32 bytes, little-endian), as `raw` above:
# so many from `start` on; `second_group` those of the second group, 256 bytes.

class G1Points:
    def __init__(self, raw: Buffer, first: int = 0, threads: int = 0) -> None: ...
    def __len__(self) -> int: ...
    def combine(self, scalars: Buffer, threads: int = 0) -> bytes: ...

class KzgKey:
    def __init__(
        self, points: Buffer, blinding: int, is_lagrange: bool = True, threads: int = 0
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    def commit(
        self, columns: Sequence[tuple[Buffer, str, Buffer]], threads: int = 0
    ) -> list[bytes]: ...
    def commit_scalars(self, scalars: Buffer, threads: int = 0) -> bytes: ...
    def combine(self, commitments: Buffer, coefficients: Buffer, threads: int = 0) -> bytes: ...

class SrsSecret:
    def __init__(self, tau: Buffer, k: int, threads: int = 0) -> None: ...
    def powers(self, start: int, count: int, threads: int = 0) -> bytes: ...
    def lagrange(self, start: int, count: int, threads: int = 0) -> bytes: ...
    def second_group(self) -> bytes: ...

# Disputes (rust/vtrain-py/src/referee.rs).  A frontier is that of `vtrain.spec.frontier`; that of a
# single chunk is its bytes.  A leaf rule is of the canonical bytes of a node and of those that put
# out its inputs (none for a `state`, whose one array is its value): `leaf_fold` gives the terms of
# an element, those of a block, and the integers of a state; `leaf_finish` the bytes of an element,
# b"" if the state makes none; `leaf_states` the states after each block, one after the other, up to
# the first that does not fit int64; `leaf_reads` the chunks of each input, the sample rows and the
# chunks of tokens that a block reads.  `rows` is the committed table of samples, or with `windows`
# (bytes of a token, tokens of the file and of a window, stride and shift) the tokens as one row.
# EncodingError for bytes, GraphError for a node that its inputs do not fit.  `referee_judge` gives
# the canonical ruling {"after", "blocks", "right", "what"} on a canonical statement; RefusalError
# names the part of it that is at fault.

class ChunkTree:
    def __init__(self, data: Buffer, threads: int = 0) -> None: ...
    @property
    def chunks(self) -> int: ...
    @property
    def digest(self) -> bytes: ...
    def frontier(self, start: int, end: int, depth: int) -> list[bytes]: ...
    def opening(self, index: int) -> tuple[bytes, list[bytes]]: ...

def fold_frontier(domain: str, start: int, end: int, depth: int, items: list[bytes]) -> bytes: ...
def fold_chunk_frontier(
    chunks: int, start: int, end: int, depth: int, items: list[bytes], is_root: bool
) -> bytes: ...
def leaf_fold(node: bytes, sources: list[bytes]) -> tuple[int, int, int]: ...
def leaf_finish(node: bytes, sources: list[bytes], state: bytes) -> bytes: ...
def leaf_states(
    node: bytes,
    sources: list[bytes],
    arrays: Sequence[npt.NDArray[Any]],
    digests: list[bytes],
    element: int,
    rows: npt.NDArray[np.uint8] | None = None,
    windows: tuple[int, int, int, int, int] | None = None,
) -> bytes: ...
def leaf_reads(
    node: bytes,
    sources: list[bytes],
    arrays: Sequence[npt.NDArray[Any]],
    digests: list[bytes],
    element: int,
    block: int,
    rows: npt.NDArray[np.uint8] | None = None,
    windows: tuple[int, int, int, int, int] | None = None,
) -> tuple[list[list[int]], list[int], list[int]]: ...
def leaf_values(
    node: bytes,
    sources: list[bytes],
    arrays: Sequence[npt.NDArray[Any]],
    there: Sequence[npt.NDArray[np.uint8]],
    digests: list[bytes],
    first: int,
    count: int,
    rows: npt.NDArray[np.uint8] | None = None,
    windows: tuple[int, int, int, int, int] | None = None,
    threads: int = 0,
) -> tuple[bytes, list[list[int]]]: ...
def referee_judge(statement: bytes) -> bytes: ...
