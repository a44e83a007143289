//! SGD with momentum on int32 masters: twin of `vtrain/ops/optimizer.py`.

use super::simd::vectorised;
use crate::number::{Rounding, SmallRounding, saturate_counted};

/// Fraction bits of `decay` = 1 - mu.
const DECAY_EXPONENT: u32 = 16;

/// Scalars of a momentum update.
#[derive(Clone, Copy, Debug)]
pub struct MomentumRule {
    /// round(2^16 (1 - mu)), in [0, 2^16].
    decay: i32,
    shift: i64,
}

impl MomentumRule {
    /// `decay` = round(2^16 (1 - mu)), held to [0, 2^16]; `shift` = exponent of the gradient - 16.
    pub fn new(decay: i64, shift: i64) -> Self {
        Self {
            decay: decay.clamp(0, 1 << DECAY_EXPONENT) as i32,
            shift,
        }
    }

    /// The decay, in [0, 2^16].
    pub fn decay(&self) -> i32 {
        self.decay
    }

    /// By how much gradients are shifted.
    pub fn shift(&self) -> i64 {
        self.shift
    }

    /// v + rs(g, shift) - rs(v * decay, 16), given rs(g, shift); still to be saturated.
    #[inline(always)]
    pub fn apply(&self, velocity: i32, aligned: i64) -> i64 {
        let wide = i64::from(velocity);
        // At most 2^47 + 2^15: no need for a careful rounding.
        let decayed =
            (wide * i64::from(self.decay) + (1 << (DECAY_EXPONENT - 1))) >> DECAY_EXPONENT;
        wide.wrapping_add(aligned).wrapping_sub(decayed)
    }

    /// How gradients are aligned.
    pub fn rounding(&self) -> Rounding {
        Rounding::new(self.shift)
    }

    /// The same for gradients within +-2^62, if that is simpler.
    pub fn small_rounding(&self) -> Option<SmallRounding> {
        SmallRounding::new(self.shift)
    }
}

/// Updates the velocity by the gradient; returns how many elements saturation changed.
pub fn momentum(velocity: &mut [i32], grad: &[i64], rule: MomentumRule) -> u64 {
    let rounding = rule.rounding();
    vectorised(
        #[inline(always)]
        || {
            let mut clamped = 0;
            for (velocity, &grad) in velocity.iter_mut().zip(grad) {
                let moved = rule.apply(*velocity, rounding.apply(grad));
                *velocity = saturate_counted(moved, &mut clamped);
            }
            clamped
        },
    )
}

/// Rate and shift of a weight update.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Any int64.
    pub rate: i64,
    /// exponent(v) + exponent(rate) - 24.
    pub shift: i64,
}

impl Rate {
    /// w - rs(v * rate, shift); still to be saturated.
    #[inline(always)]
    pub fn apply(weight: i32, velocity: i32, rate: i64, shift: Rounding) -> i64 {
        let step = shift.apply(i64::from(velocity).wrapping_mul(rate));
        i64::from(weight).wrapping_sub(step)
    }

    /// The same for a rate of 31 bits: the product stays within 2^62.
    #[inline(always)]
    pub fn apply_small(weight: i32, velocity: i32, rate: i32, shift: SmallRounding) -> i64 {
        let step = shift.apply(i64::from(velocity) * i64::from(rate));
        i64::from(weight).wrapping_sub(step)
    }

    /// Rate and rounding for [`Self::apply_small`], if it may be used.
    pub fn small(&self) -> Option<(i32, SmallRounding)> {
        let rate = i32::try_from(self.rate)
            .ok()
            .filter(|&rate| rate != i32::MIN)?;
        Some((rate, SmallRounding::new(self.shift)?))
    }
}

/// Updates the weights by the velocity; returns how many elements saturation changed.
pub fn sgd_update(weight: &mut [i32], velocity: &[i32], rate: Rate) -> u64 {
    let shift = Rounding::new(rate.shift);
    vectorised(
        #[inline(always)]
        || {
            let mut clamped = 0;
            for (weight, &velocity) in weight.iter_mut().zip(velocity) {
                let moved = Rate::apply(*weight, velocity, rate.rate, shift);
                *weight = saturate_counted(moved, &mut clamped);
            }
            clamped
        },
    )
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
