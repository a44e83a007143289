//! Matrix products and their companions: twin of `vtrain/ops/linear.py`.

use super::layout::add_to;
use super::simd::vectorised;
use crate::gemm::{Gemm, GemmError, MatRef, StoreI64};
use crate::number::{Element, Rounding};

/// Extents of a product [m, k] x [k, n] and how its operands are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of the result.
    pub m: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
    /// A is stored as [k, m].
    pub transpose_a: bool,
    /// B is stored as [n, k].
    pub transpose_b: bool,
}

impl Product {
    /// The operands as the matrices that are multiplied.
    pub fn operands<'a>(
        &self,
        a: &'a [i16],
        b: &'a [i16],
    ) -> Result<(MatRef<'a>, MatRef<'a>), GemmError> {
        let a = if self.transpose_a {
            MatRef::row_major(a, self.k, self.m)?.t()
        } else {
            MatRef::row_major(a, self.m, self.k)?
        };
        let b = if self.transpose_b {
            MatRef::row_major(b, self.n, self.k)?.t()
        } else {
            MatRef::row_major(b, self.k, self.n)?
        };
        Ok((a, b))
    }
}

/// Exact int64 sums of the products of two int16 matrices.
pub fn matmul(
    gemm: &mut Gemm,
    product: Product,
    a: &[i16],
    b: &[i16],
    out: &mut [i64],
) -> Result<(), GemmError> {
    let (a, b) = product.operands(a, b)?;
    gemm.run(a, b, &StoreI64::new(out, product.m, product.n)?)
}

/// The bias at the exponent of the accumulator.
pub fn align_bias(bias: &[i32], shift: Rounding) -> Vec<i64> {
    bias.iter().map(|&b| shift.apply(b.into())).collect()
}

/// Adds the bias to each row of `acc`.
pub fn add_bias(acc: &mut [i64], bias: &[i32], shift: Rounding) {
    if bias.is_empty() {
        return;
    }
    let aligned = align_bias(bias, shift);
    vectorised(
        #[inline(always)]
        || {
            for row in acc.chunks_exact_mut(aligned.len()) {
                for (acc, &b) in row.iter_mut().zip(&aligned) {
                    *acc = acc.wrapping_add(b);
                }
            }
        },
    );
}

/// Adds the rows of `x`, each as long as `out`, to `out`. Rows may be long (features) or short
/// (channels), for which the better loops differ by a factor of six.
pub fn column_sum<T: Element>(x: &[T], out: &mut [i64]) {
    if out.is_empty() {
        return;
    }
    vectorised(
        #[inline(always)]
        || {
            for row in x.chunks_exact(out.len()) {
                if out.len() < 64 {
                    add_to(out, row);
                } else {
                    for (out, &x) in out.iter_mut().zip(row) {
                        *out = out.wrapping_add(x.wide());
                    }
                }
            }
        },
    );
}
