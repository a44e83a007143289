//! Changing exponents: twin of `vtrain/ops/rescale.py`.

use super::simd::vectorised;
use crate::number::{Element, Narrow, Rounding, saturate};

/// `out = sat(rs(x * multiplier, shift))`; returns how many elements saturation changed.
pub fn rescale<T: Element, O: Narrow>(
    x: &[T],
    multiplier: i64,
    shift: Rounding,
    out: &mut [O],
) -> u64 {
    vectorised(
        #[inline(always)]
        || {
            let mut beyond = 0u64;
            for (out, &x) in out.iter_mut().zip(x) {
                let y = shift.apply(x.wide().wrapping_mul(multiplier));
                beyond += u64::from(y < O::BOUNDS.0) + u64::from(y > O::BOUNDS.1);
                *out = saturate(y);
            }
            beyond
        },
    )
}

/// `out = a * 2^shift_a + b * 2^shift_b`, in int64.
pub fn add<A: Element, B: Element>(a: &[A], b: &[B], shifts: (u32, u32), out: &mut [i64]) {
    vectorised(
        #[inline(always)]
        || {
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *out = (a.wide() << shifts.0).wrapping_add(b.wide() << shifts.1);
            }
        },
    );
}

/// `out = a * 2^shift_a - b * 2^shift_b`, in int64.
pub fn sub<A: Element, B: Element>(a: &[A], b: &[B], shifts: (u32, u32), out: &mut [i64]) {
    vectorised(
        #[inline(always)]
        || {
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *out = (a.wide() << shifts.0).wrapping_sub(b.wide() << shifts.1);
            }
        },
    );
}
