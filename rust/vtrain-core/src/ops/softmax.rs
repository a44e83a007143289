//! Softmax and the losses: twin of `vtrain/ops/softmax.py`. Rows of `classes` > 0 elements.

use super::simd::vectorised;
use crate::number::{
    EXP2_EXPONENT, Element, LOG2_EXPONENT, LOSS_EXPONENT, PROBABILITY_ONE, Rounding, log2_q16,
};
use crate::tables::EXP2;

/// Differences from the maximum are cut here: 2^-31 is 0 in 16 fraction bits.
const DEEPEST: u32 = 31 << LOG2_EXPONENT;
const FRACTION: u32 = (1 << LOG2_EXPONENT) - 1;
/// Elements of a row that are worked on at a time.
const CHUNK: usize = 256;

/// The largest element of each row.
pub fn row_max(z: &[i32], classes: usize, out: &mut [i32]) {
    for (out, row) in out.iter_mut().zip(z.chunks_exact(classes)) {
        *out = row.iter().copied().fold(i32::MIN, i32::max);
    }
}

/// 2^(z - max) in 16 fraction bits; 0 for a z above the given maximum by a unit or more.
pub fn exp2_diff(z: &[i32], maximum: &[i32], classes: usize, out: &mut [i32]) {
    let rows = out.chunks_exact_mut(classes).zip(z.chunks_exact(classes));
    for ((out, z), &maximum) in rows.zip(maximum) {
        // As in `exp2_q16`, with the loads from the table apart: the rest is vectorised.
        let mut depths = [0u32; CHUNK];
        for (out, z) in out.chunks_mut(CHUNK).zip(z.chunks(CHUNK)) {
            let depths = &mut depths[..z.len()];
            let found = &mut *depths;
            vectorised(
                #[inline(always)]
                move || {
                    for (depth, &z) in found.iter_mut().zip(z) {
                        *depth = (maximum.wrapping_sub(z) as u32).min(DEEPEST);
                    }
                },
            );
            for (out, &depth) in out.iter_mut().zip(&*depths) {
                *out = EXP2[(depth & FRACTION) as usize] as i32;
            }
            let depths = &*depths;
            vectorised(
                #[inline(always)]
                move || {
                    for ((out, &depth), &z) in out.iter_mut().zip(depths).zip(z) {
                        let power = ((*out << 1 >> (depth >> LOG2_EXPONENT)) + 1) >> 1;
                        *out = if z > maximum { 0 } else { power };
                    }
                },
            );
        }
    }
}

/// The int64 sum of each row.
pub fn row_sum(x: &[i32], classes: usize, out: &mut [i64]) {
    for (out, row) in out.iter_mut().zip(x.chunks_exact(classes)) {
        *out = row.iter().map(|&x| i64::from(x)).sum();
    }
}

/// floor((e * 2^14 + floor(S / 2)) / S), S = max(total, 1), low 16 bits.
pub fn divide(e: &[i32], total: &[i64], classes: usize, out: &mut [i16]) {
    let rows = out.chunks_exact_mut(classes).zip(e.chunks_exact(classes));
    for ((out, e), &total) in rows.zip(total) {
        shares(e, total.max(1), PROBABILITY_ONE, out, |share| share as i16);
    }
}

/// floor((e * one + floor(S / 2)) / S) of each element, for a divisor S > 0 and `one` at most 2^29.
///
/// Where every e is within [0, S] and at most 2^22, and S is below 2^51, a dividend n is below 2^52:
/// f64 has all of these integers. A quotient that is none is 1 / S from one at least, and off by
/// n / S 2^-53, which is less.
fn shares<O: Copy>(e: &[i32], divisor: i64, one: i64, out: &mut [O], low: impl Fn(i64) -> O) {
    vectorised(
        #[inline(always)]
        move || {
            let most = divisor.min(1 << 22) as i32;
            let within = |all: bool, &e: &i32| all & (e >= 0) & (e <= most);
            if divisor < 1 << 51 && e.iter().fold(true, within) {
                let (one, half, divisor) = (one as f64, (divisor / 2) as f64, divisor as f64);
                for (out, &e) in out.iter_mut().zip(e) {
                    let share = (f64::from(e) * one + half) / divisor;
                    // SAFETY: it is within [0, 2^29 + 1].
                    *out = low(unsafe { share.to_int_unchecked::<i32>() }.into());
                }
                return;
            }
            for (out, &e) in out.iter_mut().zip(e) {
                *out = low((i64::from(e) * one + divisor / 2).div_euclid(divisor));
            }
        },
    );
}

/// A label outside [0, classes) counts as the nearest class.
fn class_of<T: Element>(label: T, classes: usize) -> usize {
    label.wide().clamp(0, classes as i64 - 1) as usize
}

/// Takes 1.0 off each row at its label.
pub fn sub_one_hot<T: Element>(p: &mut [i16], labels: &[T], classes: usize) {
    for (row, &label) in p.chunks_exact_mut(classes).zip(labels) {
        let p = &mut row[class_of(label, classes)];
        *p = p.wrapping_sub(PROBABILITY_ONE as i16);
    }
}

/// floor((e * 2^29 + floor(S / 2)) / S), S = max(total, 1), less 2^29 at each row's label, low 32
/// bits.
pub fn logit_grad<T: Element>(
    e: &[i32],
    total: &[i64],
    labels: &[T],
    classes: usize,
    out: &mut [i32],
) {
    for (((out, e), &total), &label) in out
        .chunks_exact_mut(classes)
        .zip(e.chunks_exact(classes))
        .zip(total)
        .zip(labels)
    {
        let divisor = total.max(1);
        shares(e, divisor, FINE_ONE, out, |share| share as i32);
        let out = &mut out[class_of(label, classes)];
        *out = out.wrapping_sub(FINE_ONE as i32);
    }
}

/// 1 in the 29 fraction bits of the gradient of many classes.
pub const FINE_ONE: i64 = 1 << 29;

/// The share of `e`, of int32, in a positive sum, in 29 fraction bits, rounded.
pub fn fine_share(e: i64, divisor: i64) -> i64 {
    (e * FINE_ONE + divisor / 2).div_euclid(divisor)
}

/// Loss of each row in bits: (max - z\[label\]) + log2(S) - 16, 16 fraction bits.
pub fn cross_entropy<T: Element>(
    z: &[i32],
    maximum: &[i32],
    total: &[i64],
    labels: &[T],
    classes: usize,
    out: &mut [i64],
) {
    let rows = z.chunks_exact(classes).zip(maximum).zip(total).zip(labels);
    for (out, (((z, &maximum), &total), &label)) in out.iter_mut().zip(rows) {
        let gap = i64::from(maximum) - i64::from(z[class_of(label, classes)]);
        let scaled = gap << (LOSS_EXPONENT - LOG2_EXPONENT);
        *out = scaled + log2_q16(total.max(1)) - (i64::from(EXP2_EXPONENT) << LOSS_EXPONENT);
    }
}

/// Sum of the squares of all elements, modulo 2^64.
pub fn sum_of_squares(x: &[i16]) -> i64 {
    vectorised(
        #[inline(always)]
        move || {
            x.iter().fold(0i64, |sum, &x| {
                sum.wrapping_add(i64::from(i32::from(x) * i32::from(x)))
            })
        },
    )
}

/// rs(sum of squares, shift).
pub fn square_sum(x: &[i16], shift: Rounding) -> i64 {
    shift.apply(sum_of_squares(x))
}

/// Sum of all elements, modulo 2^64.
pub fn sum<T: Element>(x: &[T]) -> i64 {
    vectorised(
        #[inline(always)]
        move || x.iter().fold(0i64, |sum, &x| sum.wrapping_add(x.wide())),
    )
}
