//! Softmax and the losses: twin of `vtrain/ops/softmax.py`. Rows of `classes` > 0 elements.

use super::simd::vectorised;
use crate::number::{
    EXP2_EXPONENT, Element, LOG2_EXPONENT, LOSS_EXPONENT, PROBABILITY_ONE, Rounding, exp2_q16,
    log2_q16,
};

/// Differences from the maximum are cut here: 2^-31 is 0 in 16 fraction bits.
const DEEPEST: i64 = 31 << LOG2_EXPONENT;

/// The largest element of each row.
pub fn row_max(z: &[i32], classes: usize, out: &mut [i32]) {
    for (out, row) in out.iter_mut().zip(z.chunks_exact(classes)) {
        *out = row.iter().copied().fold(i32::MIN, i32::max);
    }
}

/// 2^(z - max) in 16 fraction bits; 0 for a z above the given maximum by a unit or more.
pub fn exp2_diff(z: &[i32], maximum: &[i32], classes: usize, out: &mut [i32]) {
    for ((out, z), &maximum) in out
        .chunks_exact_mut(classes)
        .zip(z.chunks_exact(classes))
        .zip(maximum)
    {
        for (out, &z) in out.iter_mut().zip(z) {
            let below = (i64::from(maximum) - i64::from(z)).min(DEEPEST);
            *out = if below < 0 { 0 } else { exp2_q16(below) };
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
    for ((out, e), &total) in out
        .chunks_exact_mut(classes)
        .zip(e.chunks_exact(classes))
        .zip(total)
    {
        let divisor = total.max(1);
        for (out, &e) in out.iter_mut().zip(e) {
            *out = (i64::from(e) * PROBABILITY_ONE + divisor / 2).div_euclid(divisor) as i16;
        }
    }
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
        for (out, &e) in out.iter_mut().zip(e) {
            *out = fine_share(i64::from(e), divisor) as i32;
        }
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
        || {
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
        || x.iter().fold(0i64, |sum, &x| sum.wrapping_add(x.wide())),
    )
}
