//! Changing exponents: twin of `vtrain/ops/rescale.py`.

use super::simd::vectorised;
use crate::number::{Element, Narrow, Rounding};

/// Elements between two looks at whether any was clamped.
const CHUNK: usize = 256;

/// `out = sat(rs(x * multiplier, shift))`; returns how many elements saturation changed.
pub fn rescale<T: Element, O: Narrow>(x: &[T], multiplier: i64, shift: i64, out: &mut [O]) -> u64 {
    match (multiplier, shift) {
        // floor((floor(x / 2^(s-1)) + 1) / 2): no carry is lost, whatever s.
        (1, 1..=63) => narrow(x, out, move |x| ((x >> (shift - 1)) + 1) >> 1),
        (1, 0) => narrow(x, out, |x| x),
        _ => {
            let shift = Rounding::new(shift);
            narrow(x, out, move |x| shift.apply(x.wrapping_mul(multiplier)))
        }
    }
}

fn narrow<T: Element, O: Narrow>(x: &[T], out: &mut [O], scale: impl Fn(i64) -> i64 + Copy) -> u64 {
    vectorised(
        #[inline(always)]
        move || {
            let (least, most) = O::BOUNDS;
            let mut clamped = 0;
            for (x, out) in x.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
                let mut changed = 0;
                for (out, &x) in out.iter_mut().zip(x) {
                    let y = scale(x.wide());
                    let held = y.clamp(least, most);
                    changed |= y ^ held;
                    *out = O::truncate(held);
                }
                if changed != 0 {
                    let beyond = |&&x: &&T| !(least..=most).contains(&scale(x.wide()));
                    clamped += x.iter().filter(beyond).count() as u64;
                }
            }
            clamped
        },
    )
}
