//! Changing exponents: twin of `vtrain/ops/rescale.py`.

use super::simd::vectorised;
use crate::number::{Element, Narrow, Rounding, saturate_counted};

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
            let mut clamped = 0;
            for (out, &x) in out.iter_mut().zip(x) {
                let scaled = x.wide().wrapping_mul(multiplier);
                *out = saturate_counted(shift.apply(scaled), &mut clamped);
            }
            clamped
        },
    )
}
