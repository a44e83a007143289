//! Exact int16 matrix product, `C[i, j] = sum_k A[i, k] * B[k, j]`, with int64 accumulators.
//!
//! Operands are any int16, accumulators are the exact sums, so every path, thread count and
//! schedule gives the same bits. What happens to a finished accumulator is up to an [`Epilogue`].
//!
//! # How the fast paths work
//!
//! Write `q = 256 * hi + lo` with the rounded high limb `hi = min(127, floor((q + 128) / 256))`.
//! Over a block of `n` terms of the sum, two cheap int32 sums are taken:
//!
//! * `W = sum a*b mod 2^32`, from products of whole int16 (`vpdpwssd`, `vpmaddwd`: sums wrap);
//! * `H = sum hi(a) * hi(b)`, from int8 products (`vpdpbusd`: half the instructions of `W`).
//!
//! With AVX512-VNNI that is 3 instructions for 64 products; four int8 limb products take 4.
//! AVX-VNNI has W's instruction in vectors half as long, and takes H by it too.
//! `2^16 * H` is close to the true sum `S`, and `W` knows `S` modulo `2^32`, so together they know
//! `S`: let `E = S - 2^16 * H`. Then `E = W - 2^16 * H (mod 2^32)`, and if `|E| < 2^31` the int32
//! with that residue *is* `E`, hence `S = 2^16 * H + E` exactly. It remains to bound `E`.
//!
//! **Bound of E.** One term contributes `a*b - 2^16*ah*bh = 256*(ah*bl + al*bh) + al*bl`.
//!
//! * *Narrow* blocks, `|q| <= 32639` throughout (all that the number format produces): then
//!   `|hi| <= 127` and `lo` in `[-128, 127]`, so a term is at most
//!   `256 * 2 * 127 * 128 + 128^2 = 8_339_456`, and 256 terms at most `2_134_900_736 < 2^31`.
//!   257 terms are proven too, 258 are not: [`BLOCK`] is 256.
//! * *Wide* blocks, any int16: `|hi| <= 128` and `lo` in `[-128, 255]` (255 is `32767`, whose high
//!   limb is held to 127), so a term is at most `256 * 2 * 128 * 255 + 255^2 = 16_776_705`, and
//!   128 terms ([`WIDE_BLOCK`]) at most `2_147_418_240 < 2^31`. So a wide block is cut in two.
//!
//! **When W alone is enough.** By Cauchy and Schwarz `|S| <= |a| * |b|` with Euclidean norms. If
//! the sum of these products over a run of blocks is below `2^31`, then `S` is the int32 with
//! residue `W`, and `H` need not be computed: 2 instructions for 64 products. Trained networks
//! rarely fill 16 bits, so this is their usual case. Packing takes an upper bound of the norm for
//! every block of every group of 16 lanes; the choice changes the speed, never a bit.
//!
//! `vpdpbusd` multiplies unsigned by signed bytes: A's limbs are stored as `hi + 128`, and `H`
//! starts from `-128 * sum hi(b)`, which packing has summed. `(-32768)^2 + (-32768)^2 = 2^31`
//! wraps inside the int16 instructions; `W` is taken modulo `2^32` anyway.
//!
//! # Structure
//!
//! `pack` copies operands into groups of 16 lanes (rows of A, columns of B) in the order in which
//! they are read, `tile` computes one register tile over all of K, `driver` cuts the work into
//! tasks, `convolve` those whose operands are patches of images. `avx512`, `avx2` and `neon` are the instruction sets, all of them behind `tile::Isa`;
//! `scalar` is the plain definition. Only AVX-512 has byte products worth using, the others take H
//! from int16 limbs. An int8 operand would be a group whose high limbs are 0: `W` alone is then
//! exact over 512 terms, at 2 instructions, and a packing of its own could halve that.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_pack;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_pack;
#[cfg(all(test, target_arch = "x86_64"))]
mod conformance;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod convolve;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod driver;
mod epilogue;
#[cfg(any(target_arch = "aarch64", all(test, target_arch = "x86_64")))]
mod neon;
#[cfg(all(test, target_arch = "x86_64"))]
mod neon_emulated;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod pack;
mod patches;
mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tile;

#[cfg(target_arch = "x86_64")]
use crate::cpu;

pub use epilogue::{Epilogue, RescaleI16, StoreI64};
pub use patches::Patches;

/// Terms of a block whose values all lie within +-32639 (see the module's proof).
const BLOCK: usize = 256;
/// Terms of a block of any int16.
const WIDE_BLOCK: usize = 128;
/// The largest magnitude of a narrow block: the format saturates to +-32639.
const NARROW_MAX: u16 = 32639;
/// Longest sum taken: with `|a*b| <= 2^30`, accumulators stay below `2^53`.
pub const MAX_K: usize = 1 << 23;

/// Why a product was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // each field is what the message says it is
pub enum GemmError {
    /// The inner dimensions of A and B differ.
    #[error("A has {a_cols} columns but B has {b_rows} rows")]
    Inner { a_cols: usize, b_rows: usize },
    /// A view reaches beyond its slice.
    #[error("a {rows} x {cols} view, strides {row_stride} and {col_stride}, of {len} elements")]
    View {
        rows: usize,
        cols: usize,
        row_stride: usize,
        col_stride: usize,
        len: usize,
    },
    /// K is above [`MAX_K`].
    #[error("K = {k} is above {MAX_K}")]
    TooLong { k: usize },
    /// The epilogue is for a product of another shape.
    #[error("the output is {rows} x {cols}, the product {m} x {n}")]
    Output {
        rows: usize,
        cols: usize,
        m: usize,
        n: usize,
    },
    /// A bias does not have an entry for each column.
    #[error("the bias has {len} entries for {cols} columns")]
    Bias { len: usize, cols: usize },
    /// This machine lacks the instructions of the path.
    #[error("this machine cannot run the {path} path")]
    Unavailable { path: Path },
    /// No path has this name.
    #[error("no path is named {name:?}")]
    UnknownPath { name: String },
}

/// A matrix of int16 inside a slice; element (i, j) is `data[i * row_stride + j * col_stride]`.
#[derive(Debug, Clone, Copy)]
pub struct MatRef<'a> {
    data: &'a [i16],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> MatRef<'a> {
    /// A view with the given strides in elements. Errors: [`GemmError::View`].
    pub fn new(
        data: &'a [i16],
        rows: usize,
        cols: usize,
        row_stride: usize,
        col_stride: usize,
    ) -> Result<Self, GemmError> {
        let error = GemmError::View {
            rows,
            cols,
            row_stride,
            col_stride,
            len: data.len(),
        };
        if rows > 0 && cols > 0 {
            let last = (rows - 1)
                .checked_mul(row_stride)
                .zip((cols - 1).checked_mul(col_stride))
                .and_then(|(r, c)| r.checked_add(c));
            if last.is_none_or(|last| last >= data.len()) {
                return Err(error);
            }
        }
        Ok(Self {
            data,
            rows,
            cols,
            row_stride,
            col_stride,
        })
    }

    /// A dense row-major view. Errors: [`GemmError::View`].
    pub fn row_major(data: &'a [i16], rows: usize, cols: usize) -> Result<Self, GemmError> {
        Self::new(data, rows, cols, cols, 1)
    }

    /// The transposed view.
    #[must_use]
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    fn at(&self, row: usize, col: usize) -> i64 {
        i64::from(self.data[row * self.row_stride + col * self.col_stride])
    }
}

/// The instruction set that computes a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// Portable; the definition in plain Rust.
    Scalar,
    /// AArch64 with NEON.
    Neon,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX2 and AVX-VNNI.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, VL and VNNI.
    Avx512Vnni,
}

impl Path {
    /// All paths, slowest first.
    pub const ALL: [Self; 5] = [
        Self::Scalar,
        Self::Neon,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512Vnni,
    ];

    /// The paths that this machine can run, slowest first; never empty.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|path| path.is_available())
    }

    /// The fastest path of this machine.
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::Scalar)
    }

    /// The stable name: `scalar`, `neon`, `avx2`, `avx-vnni` or `avx512-vnni`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512Vnni => "avx512-vnni",
        }
    }

    fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => cpu::level() >= cpu::Level::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => {
                cpu::level() >= cpu::Level::AvxVnni && is_x86_feature_detected!("avxvnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                cpu::level() >= cpu::Level::Avx512 && is_x86_feature_detected!("avx512vnni")
            }
            #[allow(unreachable_patterns)] // nothing is left on some architectures
            _ => false,
        }
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Path {
    type Err = GemmError;

    fn from_str(name: &str) -> Result<Self, GemmError> {
        let found = Self::ALL.into_iter().find(|path| path.name() == name);
        found.ok_or_else(|| GemmError::UnknownPath {
            name: name.to_owned(),
        })
    }
}

/// Computes products on one path, keeping its packing buffers from call to call.
///
/// Work is spread over the rayon pool that the call runs in: `pool.install(|| gemm.run(..))`.
#[derive(Debug)]
pub struct Gemm {
    path: Path,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    scratch: driver::Scratch,
}

impl Gemm {
    /// Errors: [`GemmError::Unavailable`].
    pub fn new(path: Path) -> Result<Self, GemmError> {
        if !path.is_available() {
            return Err(GemmError::Unavailable { path });
        }
        Ok(Self {
            path,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            scratch: driver::Scratch::default(),
        })
    }

    /// One that works on the calling thread alone, for products done on many threads at once.
    ///
    /// Errors: [`GemmError::Unavailable`].
    pub fn alone(path: Path) -> Result<Self, GemmError> {
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            allow(unused_mut)
        )]
        let mut gemm = Self::new(path)?;
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        gemm.scratch.work_alone();
        Ok(gemm)
    }

    /// The path that it was made for.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Hands every accumulator of `a * b` to `epilogue`, each element once. A sum of no terms is 0.
    ///
    /// Errors: [`GemmError::Inner`], [`GemmError::TooLong`], [`GemmError::Output`].
    pub fn run<E: Epilogue>(
        &mut self,
        a: MatRef<'_>,
        b: MatRef<'_>,
        epilogue: &E,
    ) -> Result<(), GemmError> {
        check((a.rows, a.cols), (b.rows, b.cols), epilogue)?;
        match self.path {
            #[cfg(target_arch = "aarch64")]
            // SAFETY: `new` made sure that this machine has the instructions.
            Path::Neon => unsafe {
                driver::run::<neon::Neon, E>(a, b, epilogue, &mut self.scratch)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Path::Avx2 => unsafe {
                driver::run::<avx2::Avx2, E>(a, b, epilogue, &mut self.scratch)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Path::AvxVnni => unsafe {
                driver::run::<avx2::AvxVnni, E>(a, b, epilogue, &mut self.scratch);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Path::Avx512Vnni => unsafe {
                driver::run::<avx512::Avx512, E>(a, b, epilogue, &mut self.scratch);
            },
            _ => scalar::run(a, b, epilogue),
        }
        Ok(())
    }

    /// [`Self::run`], where A is made of patches.
    pub fn run_on_patches<E: Epilogue>(
        &mut self,
        a: Patches<'_>,
        b: MatRef<'_>,
        epilogue: &E,
    ) -> Result<(), GemmError> {
        let (rows, cols) = (a.rows(), a.cols());
        check((rows, cols), (b.rows, b.cols), epilogue)?;
        match self.path {
            #[cfg(target_arch = "aarch64")]
            // SAFETY: `new` made sure that this machine has the instructions.
            Path::Neon => unsafe {
                convolve::run_on::<neon::Neon, E>(a, b, epilogue, &mut self.scratch)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Path::Avx2 => unsafe {
                convolve::run_on::<avx2::Avx2, E>(a, b, epilogue, &mut self.scratch)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Path::AvxVnni => unsafe {
                convolve::run_on::<avx2::AvxVnni, E>(a, b, epilogue, &mut self.scratch);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Path::Avx512Vnni => unsafe {
                convolve::run_on::<avx512::Avx512, E>(a, b, epilogue, &mut self.scratch);
            },
            _ => scalar::run(MatRef::row_major(&a.store(), rows, cols)?, b, epilogue),
        }
        Ok(())
    }

    /// [`Self::run`], where B is made of patches: for a few sums of very many terms. Each thread
    /// keeps all sums.
    pub fn run_over_patches<E: Epilogue>(
        &mut self,
        a: MatRef<'_>,
        b: Patches<'_>,
        epilogue: &E,
    ) -> Result<(), GemmError> {
        let (rows, cols) = (b.rows(), b.cols());
        check((a.rows, a.cols), (rows, cols), epilogue)?;
        match self.path {
            #[cfg(target_arch = "aarch64")]
            // SAFETY: `new` made sure that this machine has the instructions.
            Path::Neon => unsafe {
                convolve::run_over::<neon::Neon, E>(a, b, epilogue, &mut self.scratch)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Path::Avx2 => unsafe {
                convolve::run_over::<avx2::Avx2, E>(a, b, epilogue, &mut self.scratch)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Path::AvxVnni => unsafe {
                convolve::run_over::<avx2::AvxVnni, E>(a, b, epilogue, &mut self.scratch);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Path::Avx512Vnni => unsafe {
                convolve::run_over::<avx512::Avx512, E>(a, b, epilogue, &mut self.scratch);
            },
            _ => scalar::run(a, MatRef::row_major(&b.store(), rows, cols)?, epilogue),
        }
        Ok(())
    }
}

/// Are there matrices of these rows and columns to be multiplied, for this epilogue?
fn check<E: Epilogue>(
    (m, k): (usize, usize),
    (b_rows, n): (usize, usize),
    epilogue: &E,
) -> Result<(), GemmError> {
    if k != b_rows {
        return Err(GemmError::Inner { a_cols: k, b_rows });
    }
    if k > MAX_K {
        return Err(GemmError::TooLong { k });
    }
    let (rows, cols) = epilogue.shape();
    if (rows, cols) != (m, n) {
        return Err(GemmError::Output { rows, cols, m, n });
    }
    Ok(())
}
