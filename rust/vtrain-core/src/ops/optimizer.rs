//! SGD with momentum on int32 masters: twin of `vtrain/ops/optimizer.py`.

use super::simd::vectorised;
use crate::number::{Rounding, saturate};

/// Fraction bits of `decay` = 1 - mu.
const DECAY_EXPONENT: i64 = 16;

/// Scalars of a momentum update.
#[derive(Clone, Copy, Debug)]
pub struct MomentumRule {
    decay: i64,
    decay_shift: Rounding,
    shift: Rounding,
}

impl MomentumRule {
    /// `decay` = round(2^16 (1 - mu)); `shift` = exponent of the gradient - 16.
    pub fn new(decay: i64, shift: i64) -> Self {
        Self { decay, decay_shift: Rounding::new(DECAY_EXPONENT), shift: Rounding::new(shift) }
    }

    /// sat32(v + rs(g, shift) - rs(v * decay, 16)).
    #[inline(always)]
    pub fn apply(&self, velocity: i32, grad: i64) -> i32 {
        let wide = i64::from(velocity);
        let decayed = self.decay_shift.apply(wide.wrapping_mul(self.decay));
        saturate(wide.wrapping_add(self.shift.apply(grad)).wrapping_sub(decayed))
    }
}

/// Updates the velocity by the gradient, element by element.
pub fn momentum(velocity: &mut [i32], grad: &[i64], rule: MomentumRule) {
    vectorised(
        #[inline(always)]
        || {
            for (velocity, &grad) in velocity.iter_mut().zip(grad) {
                *velocity = rule.apply(*velocity, grad);
            }
        },
    );
}

/// sat32(w - rs(v * rate, shift)).
#[inline(always)]
pub fn updated_weight(weight: i32, velocity: i32, rate: i64, shift: Rounding) -> i32 {
    let step = shift.apply(i64::from(velocity).wrapping_mul(rate));
    saturate(i64::from(weight).wrapping_sub(step))
}

/// Updates the weights by the velocity, element by element.
pub fn sgd_update(weight: &mut [i32], velocity: &[i32], rate: i64, shift: Rounding) {
    vectorised(
        #[inline(always)]
        || {
            for (weight, &velocity) in weight.iter_mut().zip(velocity) {
                *weight = updated_weight(*weight, velocity, rate, shift);
            }
        },
    );
}

/// The rate of step `now`: that of the last start not after it.
pub fn schedule(now: i64, starts: &[i64], rates: &[i64]) -> i64 {
    let mut current = rates.first().copied().unwrap_or(0);
    for (&start, &rate) in starts.iter().zip(rates) {
        if start <= now {
            current = rate;
        }
    }
    current
}
