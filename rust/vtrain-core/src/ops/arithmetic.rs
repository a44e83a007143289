//! Sums, differences and products element by element: twin of `vtrain/ops/arithmetic.py`.

use super::simd::vectorised;
use super::view::{Slice, each};
use crate::number::Element;

/// `out += x * 2^shift`, modulo 2^64.
pub fn add_shifted<T: Element>(out: &mut [i64], x: &[T], shift: u32) {
    vectorised(
        #[inline(always)]
        move || {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = out.wrapping_add(x.wide() << shift);
            }
        },
    );
}

/// `out = a * 2^shifts.0 + b * 2^shifts.1`, modulo 2^64.
pub fn add(a: Slice<'_>, b: Slice<'_>, shifts: (u32, u32), out: &mut [i64]) {
    combine(
        a,
        b,
        out,
        #[inline(always)]
        move |a, b| (a << shifts.0).wrapping_add(b << shifts.1),
    );
}

/// `out = a * 2^shifts.0 - b * 2^shifts.1`, modulo 2^64.
pub fn sub(a: Slice<'_>, b: Slice<'_>, shifts: (u32, u32), out: &mut [i64]) {
    combine(
        a,
        b,
        out,
        #[inline(always)]
        move |a, b| (a << shifts.0).wrapping_sub(b << shifts.1),
    );
}

/// `out = a * b`, modulo 2^64.
pub fn mul(a: Slice<'_>, b: Slice<'_>, out: &mut [i64]) {
    combine(a, b, out, i64::wrapping_mul);
}

fn combine(a: Slice<'_>, b: Slice<'_>, out: &mut [i64], apply: impl Fn(i64, i64) -> i64 + Copy) {
    #[inline(always)]
    fn zip<A: Element, B: Element>(
        a: &[A],
        b: &[B],
        out: &mut [i64],
        apply: impl Fn(i64, i64) -> i64,
    ) {
        vectorised(
            #[inline(always)]
            move || {
                for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                    *out = apply(a.wide(), b.wide());
                }
            },
        );
    }
    each!(a, a => each!(b, b => zip(a, b, out, apply)));
}
