//! Matrix products and their companions: twin of `vtrain/ops/linear.py`.

use rayon::prelude::*;

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

/// Multiplications of a product below which one thread does it alone.
const SMALL: usize = 1 << 22;

/// The products of `stack` pairs of matrices, one after the other in `a`, `b` and `out`.
///
/// Small ones are spread over the threads, each done by one; a large one is spread by itself.
/// `multiply` makes the output of one product; what it returns is added up.
pub fn stacked<T: Send>(
    gemm: &mut Gemm,
    product: Product,
    stack: usize,
    (a, b): (&[i16], &[i16]),
    out: &mut [T],
    multiply: impl Fn(&mut Gemm, MatRef<'_>, MatRef<'_>, &mut [T]) -> Result<u64, GemmError> + Sync,
) -> Result<u64, GemmError> {
    let Product { m, k, n, .. } = product;
    if stack == 0 || m == 0 || n == 0 {
        return Ok(0);
    }
    let one = |gemm: &mut Gemm, i: usize, out: &mut [T]| {
        let (a, b) = (&a[i * m * k..][..m * k], &b[i * k * n..][..k * n]);
        let (a, b) = product.operands(a, b)?;
        multiply(gemm, a, b, out)
    };
    let threads = rayon::current_num_threads().min(stack);
    let multiplications = m.saturating_mul(k).saturating_mul(n);
    if threads > 1 && multiplications <= SMALL && multiplications * stack >= SMALL / 64 {
        let per = stack.div_ceil(threads * 4);
        return out
            .par_chunks_mut(per * m * n)
            .enumerate()
            .map(|(chunk, out)| {
                let mut gemm = Gemm::alone(gemm.path())?;
                let mut sum = 0;
                for (i, out) in (chunk * per..).zip(out.chunks_exact_mut(m * n)) {
                    sum += one(&mut gemm, i, out)?;
                }
                Ok(sum)
            })
            .try_reduce(|| 0, |a, b| Ok(a + b));
    }
    let mut sum = 0;
    for (i, out) in out.chunks_exact_mut(m * n).enumerate() {
        sum += one(gemm, i, out)?;
    }
    Ok(sum)
}

/// Exact int64 sums of the products of a stack of int16 matrices.
pub fn batched_matmul(
    gemm: &mut Gemm,
    product: Product,
    stack: usize,
    a: &[i16],
    b: &[i16],
    out: &mut [i64],
) -> Result<(), GemmError> {
    let (m, n) = (product.m, product.n);
    stacked(gemm, product, stack, (a, b), out, |gemm, a, b, out| {
        gemm.run(a, b, &StoreI64::new(out, m, n)?)?;
        Ok(0)
    })?;
    Ok(())
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
        move || {
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
        move || {
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
