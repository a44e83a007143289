//! Parts of normalisation over the last axis: twin of `vtrain/ops/norm.py`. Rows of `width` > 0.

use super::simd::vectorised;
use super::view::{Slice, each};
use crate::number::{Element, Rounding};

/// Nothing larger is under a root.
const RADICAND: i64 = (1 << 62) - 1;

/// rs(width x - sum of the row, shift), the low 32 bits.
pub fn center(x: &[i16], width: usize, shift: Rounding, out: &mut [i32]) {
    vectorised(
        #[inline(always)]
        move || {
            for (out, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                let sum: i64 = x.iter().map(|&x| i64::from(x)).sum();
                for (out, &x) in out.iter_mut().zip(x) {
                    let deviation = i64::from(x).wrapping_mul(width as i64).wrapping_sub(sum);
                    *out = shift.apply(deviation) as i32;
                }
            }
        },
    );
}

/// The sum of the products of each row of `a` with the row of `b`, modulo 2^64.
pub fn row_dot<A: Element, B: Element>(a: &[A], b: &[B], width: usize, out: &mut [i64]) {
    vectorised(
        #[inline(always)]
        move || {
            for ((out, a), b) in out
                .iter_mut()
                .zip(a.chunks_exact(width))
                .zip(b.chunks_exact(width))
            {
                *out = a.iter().zip(b).fold(0i64, |sum, (&a, &b)| {
                    sum.wrapping_add(a.wide().wrapping_mul(b.wide()))
                });
            }
        },
    );
}

/// An inverse root: floor(numerator / floor(sqrt((max(s, 0) + epsilon) 4^lift))).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InverseRoot {
    /// 1 to 2^60.
    pub epsilon: i64,
    /// 0 to 30.
    pub lift: u32,
    /// 1 to 2^62.
    pub numerator: i64,
}

impl InverseRoot {
    /// Of any s; what would be 2^62 or more under the root counts as the largest that is not.
    pub fn apply(&self, s: i64) -> i64 {
        let most = RADICAND >> (2 * self.lift);
        let v = (s.clamp(0, most) + self.epsilon).min(most); // at most 2^62 + 2^60
        self.numerator / (v << (2 * self.lift)).isqrt()
    }
}

/// Each row of `x` times its number, modulo 2^64.
pub fn row_scale(x: Slice<'_>, factors: Slice<'_>, width: usize, out: &mut [i64]) {
    fn rows<A: Element, B: Element>(x: &[A], factors: &[B], width: usize, out: &mut [i64]) {
        vectorised(
            #[inline(always)]
            move || {
                let rows = out.chunks_exact_mut(width).zip(x.chunks_exact(width));
                for ((out, x), &factor) in rows.zip(factors) {
                    let factor = factor.wide();
                    for (out, &x) in out.iter_mut().zip(x) {
                        *out = x.wide().wrapping_mul(factor);
                    }
                }
            },
        );
    }
    each!(x, x => each!(factors, factors => rows(x, factors, width, out)));
}

/// `x` times each column's number, modulo 2^64.
pub fn column_scale(x: Slice<'_>, factors: Slice<'_>, out: &mut [i64]) {
    fn rows<A: Element, B: Element>(x: &[A], factors: &[B], out: &mut [i64]) {
        let width = factors.len().max(1);
        vectorised(
            #[inline(always)]
            move || {
                for (out, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                    for ((out, &x), &factor) in out.iter_mut().zip(x).zip(factors) {
                        *out = x.wide().wrapping_mul(factor.wide());
                    }
                }
            },
        );
    }
    each!(x, x => each!(factors, factors => rows(x, factors, out)));
}
