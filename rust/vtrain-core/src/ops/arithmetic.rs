//! Sums, differences and products element by element: twin of `vtrain/ops/arithmetic.py`.

use super::simd::vectorised;
use crate::number::Element;

/// `out = x * 2^shift`, in int64.
pub fn shift_left<T: Element>(x: &[T], shift: u32, out: &mut [i64]) {
    vectorised(
        #[inline(always)]
        || {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = x.wide() << shift;
            }
        },
    );
}

/// `out += x * 2^shift`: the second half of `add`.
pub fn add_shifted<T: Element>(out: &mut [i64], x: &[T], shift: u32) {
    vectorised(
        #[inline(always)]
        || {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = out.wrapping_add(x.wide() << shift);
            }
        },
    );
}

/// `out -= x * 2^shift`: the second half of `sub`.
pub fn sub_shifted<T: Element>(out: &mut [i64], x: &[T], shift: u32) {
    vectorised(
        #[inline(always)]
        || {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = out.wrapping_sub(x.wide() << shift);
            }
        },
    );
}

/// `out *= x`: the second half of `mul`.
pub fn mul<T: Element>(out: &mut [i64], x: &[T]) {
    vectorised(
        #[inline(always)]
        || {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = out.wrapping_mul(x.wide());
            }
        },
    );
}
