"""KZG commitments to tensors, bit for bit those in ezkl's proofs and those of ``ezkl.kzg_commit``.

A tensor that a circuit commits to stands in an advice column that halo2 leaves unblinded
(ezkl: visibility ``polycommit``, src/circuit/modules/polycommit.rs; halo2: src/plonk/prover.rs).
The column has n = 2^k rows.  Its values v_0 ... v_(m-1), in row-major order, come first; of the
rest, the last ``blinding`` + 1 rows are unusable and hold 1 (halo2's ``Blind::default()``), the
others 0.  ``blinding`` is halo2's ``ConstraintSystem::blinding_factors``: 5 unless an advice column
is queried at more than three places.  ezkl leaves it out of its settings files
(``num_blinding_factors`` is null), but :func:`find_blinding` tells it from a commitment of
``kzg_commit``.  With the Lagrange points L_i of the SRS for k::

    commitment = sum over i < m of v_i L_i  +  F      F = sum over i >= n - blinding - 1 of L_i

as x and y, big-endian, 64 bytes.  It is deterministic: it binds, and hides as far as the last of
the values are secret and random (``vtrain.commit.hiding``).  It depends on the SRS, k and
``blinding``, and on nothing else of a circuit.  Negative values are r - |v|.

Three traps, each with a test:

- ``ezkl.kzg_commit`` cuts a tensor of m values into floor(m / rows) + 1 columns, rows = n -
  blinding - 1: where m is a multiple of rows, the last of them is empty
  (:meth:`CommitKey.commit_columns` does likewise).  A *circuit* makes room for
  floor((m + floor(m / rows) + 1) / rows) + 1 columns, one more already at m = rows - 1, and a proof
  then begins with one commitment more.  So a circuit's tensors best have at most rows - 2 values.
- ``ezkl.kzg_commit`` takes the SRS as it comes: with a file for a larger k it commits over the
  file's own domain, and the result is not the one in a proof.  ``gen_witness``, ``prove`` and
  ``verify`` downsize it first, and so does this module: the first 2^k powers serve the smaller k,
  but their Lagrange basis has to be made anew, by a Fourier transform over points (seconds to
  minutes, for ezkl as well; use a file of the right k).
- Commitments add up, but F adds up with them: :meth:`CommitKey.combine` puts that right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain._core import KzgKey
from vtrain.commit.digest import DTYPE_NAMES
from vtrain.errors import EncodingError, SrsError
from vtrain.limits import limits_here
from vtrain.prove.backend.srs import MIN_K, SRS_POINT, Srs, open_srs, subtract_points
from vtrain.spec.field import SCALAR_FIELD
from vtrain.threads import check_threads

Array = npt.NDArray[Any]

_MOST_BLINDING: Final = 64


class CommitKey:
    """Commits to columns of 2^k rows over the SRS in a file.

    ``blinding`` is the circuit's number of blinding factors (see above).  SrsError for a file that
    is none, that holds fewer than 2^k powers, or whose points that are used here are not finite
    points of the curve; that they are powers is for ``vtrain.prove.backend.srs.check_srs`` to say,
    and which file it was for ``srs``, hashed as it was read; SrsError, too, for a k that takes more
    memory than ``vtrain.limits`` gives it.  EncodingError for a ``blinding`` that
    leaves no row.

    Memory: 72 bytes a row, twice that while it is read.  ``threads``, here and below: 0 takes every
    core.
    """

    def __init__(self, path: Path, k: int, blinding: int, *, threads: int = 0) -> None:
        check_threads(threads)
        size = SRS_POINT << max(k, 0)
        with open_srs(path) as reader:
            if not MIN_K <= k <= reader.k:
                raise SrsError(
                    f"is for k up to {reader.k}, not {k}: take a file for that k", where=str(path)
                )
            held, most = 144 << k, limits_here().srs_held_bytes
            if held > most:
                raise SrsError(
                    f"commitments with k = {k} need {held} bytes of memory, this machine gives "
                    f"{most}: name a smaller k",
                    where=str(path),
                )
            if k == reader.k:
                reader.skip(size)
            points = reader.read(size)
            self.srs: Final[Srs] = reader.finish()
        if not 0 <= blinding < 1 << k:
            raise EncodingError(f"{blinding} blinding factors leave no row of {1 << k}")
        try:
            self._key = KzgKey(points, blinding, k == self.srs.k, threads)
        except EncodingError as error:
            if error.message.startswith("point"):
                what = "Lagrange points" if k == self.srs.k else "powers"
                raise SrsError(error.message, where=f"{path}: {what}") from None
            raise
        self.k: Final = k
        self.blinding: Final = blinding
        self._ones: dict[int, bytes] = {}

    @property
    def rows(self) -> int:
        """How many values a column holds."""
        return self._key.rows

    @property
    def zero(self) -> bytes:
        """The commitment to a tensor of zeros, whatever its size: F."""
        return self._key.commit_scalars(b"")

    def commit(self, array: Array, *, threads: int = 0) -> bytes:
        """The commitment to a tensor of u8, i8, i16, i32 or i64 and any shape, in one column.

        EncodingError for another dtype and for more than ``rows`` values.
        """
        (commitment,) = self.commit_many([array], [b""], threads=threads)
        return commitment

    def commit_many(
        self, arrays: Iterable[Array], hiding: Iterable[bytes], *, threads: int = 0
    ) -> list[bytes]:
        """The commitments to several tensors, each with the field elements in the rows after it
        (32 bytes each, little-endian, reduced; none for b""); EncodingError as of :meth:`commit`
        and :meth:`commit_scalars`."""
        check_threads(threads)
        columns = [(*_read(array), after) for array, after in zip(arrays, hiding, strict=True)]
        return self._key.commit(columns, threads)

    def commit_columns(self, array: Array, *, threads: int = 0) -> list[bytes]:
        """The commitments to a tensor of any size in as many columns as ``kzg_commit`` takes."""
        flat = np.ravel(array)
        starts = range(0, flat.size + 1, self.rows)
        columns = [flat[at : at + self.rows] for at in starts]
        return self.commit_many(columns, [b""] * len(columns), threads=threads)

    def commit_ones(self, count: int, *, threads: int = 0) -> bytes:
        """The commitment to so many ones, kept: it is the same in every proof of a circuit."""
        if count not in self._ones:
            self._ones[count] = self.commit(np.ones(count, dtype=np.int8), threads=threads)
        return self._ones[count]

    def commit_scalars(self, scalars: bytes, *, threads: int = 0) -> bytes:
        """The commitment to field elements, 32 bytes each, little-endian, reduced, in one column.

        EncodingError names the one that is not reduced.
        """
        check_threads(threads)
        return self._key.commit_scalars(scalars, threads)

    def find_point(self, row: int) -> bytes:
        """The point that a value in ``row`` (from 0) multiplies, 64 bytes as a commitment has."""
        alone = self.commit_scalars(bytes(32 * row) + (1).to_bytes(32, "little"))
        return subtract_points(alone, self.zero)

    def combine(self, terms: Sequence[tuple[int, bytes]]) -> bytes:
        """The commitment to sum c_i x_i of commitments to x_i with integers c_i, of any size::

            sum c_i C_i + (1 - sum c_i) F

        EncodingError names the commitment that is not 64 bytes of a point, counting from 0.
        """
        for index, (_, commitment) in enumerate(terms):
            if len(commitment) != SRS_POINT:
                raise EncodingError(f"commitment {index} has {len(commitment)} bytes")
        coefficients = b"".join((c % SCALAR_FIELD).to_bytes(32, "little") for c, _ in terms)
        # More than a thread is not worth it for the few terms that there are.
        return self._key.combine(b"".join(point for _, point in terms), coefficients, 1)


def find_blinding(path: Path, k: int, zero: bytes, *, threads: int = 0) -> int:
    """The number of blinding factors for which ``zero`` commits to zeros.

    ``zero`` is what ``ezkl.kzg_commit`` makes of one 0 with a circuit's verifying key, over a file
    of that k.  EncodingError when no number up to 64 fits; SrsError as of :class:`CommitKey`.
    """
    key = CommitKey(path, k, 0, threads=threads)
    for blinding in range(min(key.rows, _MOST_BLINDING + 1)):
        filling = np.arange(key.rows) >= key.rows - blinding
        if key.commit(filling.astype(np.int8), threads=threads) == zero:
            return blinding
    raise EncodingError("commits to zeros with no number of blinding factors", where="zero")


def _read(array: Array) -> tuple[Array, str]:
    """The array as the core takes it, and its dtype's name."""
    name = DTYPE_NAMES.get(array.dtype.str)
    if name is None:
        raise EncodingError(f"a tensor of {array.dtype} cannot be committed to")
    return np.ascontiguousarray(array), name
