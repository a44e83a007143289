//! The update of int32 masters, momentum and Adam: twin of `vtrain/ops/optimizer.py`.

use super::simd::vectorised;
use crate::number::{Element, MAX_STEPS, Rounding, SmallRounding, saturate_counted};

/// Fraction bits of `decay` = 1 - mu.
const DECAY_EXPONENT: u32 = 16;
/// Fraction bits of a second moment beyond those of the squared gradient.
const SQUARE_LIFT: u32 = 16;
/// Second moments are within [0, 2^46].
const SQUARE_MOST: i64 = 1 << 46;
/// Fraction bits of beta1 and beta2 where they are raised to the number of the step.
const BETA_EXPONENT: u32 = 31;
/// Below this, integers and the floors of their roots and quotients are exact in f64.
const EXACT: i64 = 1 << 52;
/// Fraction bits of the factor that clips gradients.
const FACTOR_EXPONENT: u32 = 15;
/// Fraction bits of the correction, and what it is held to.
const CORRECTION_EXPONENT: u32 = 24;
const CORRECTION_MOST: i64 = 1 << 32;

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
        move || {
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
        move || {
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

/// The rate of step `now` on straight lines between starts, rounded half up.
pub fn schedule_linear(now: i64, starts: &[i64], rates: &[i64]) -> i64 {
    let after = starts.partition_point(|&start| start <= now);
    let (Some(&rate), Some(&start)) = (
        rates.get(after.saturating_sub(1)),
        starts.get(after.saturating_sub(1)),
    ) else {
        return 0;
    };
    let (Some(&next), Some(&end)) = (rates.get(after), starts.get(after)) else {
        return rate;
    };
    if after == 0 {
        return rate;
    }
    // Of a legal node at most 2^58; of another the end of its range.
    let length = i128::from(end) - i128::from(start);
    let rise = (i128::from(next) - i128::from(rate)) * (i128::from(now) - i128::from(start));
    rate.wrapping_add((2 * rise + length).div_euclid(2 * length) as i64)
}

/// The sign of each element.
pub fn sign<T: Element>(x: &[T], out: &mut [i32]) {
    vectorised(
        #[inline(always)]
        move || {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = x.wide().signum() as i32;
            }
        },
    );
}

/// min(x^2, 2^bits) of an aligned `x`, bits at most 59.
#[inline(always)]
pub fn cap_square(x: i64, bits: u32) -> i64 {
    let held = x.clamp(-(1 << 30), 1 << 30);
    (held * held).min(1 << bits)
}

/// min(rs(x, shift)^2, 2^bits) of each element.
pub fn capped_square<T: Element>(x: &[T], shift: Rounding, bits: u32, out: &mut [i64]) {
    vectorised(
        #[inline(always)]
        move || {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = cap_square(shift.apply(x.wide()), bits);
            }
        },
    );
}

/// What gradients with the sum `total` of squares are multiplied by; `limit` in [1, 2^31].
pub fn clip_factor(total: i64, limit: i64) -> i64 {
    ((limit << FACTOR_EXPONENT) / total.max(1).isqrt()).min(1 << FACTOR_EXPONENT)
}

/// rs(x * factor, shift) of each element.
pub fn scale_by<T: Element>(x: &[T], factor: i64, shift: Rounding, out: &mut [i64]) {
    vectorised(
        #[inline(always)]
        move || {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = shift.apply(x.wide().wrapping_mul(factor));
            }
        },
    );
}

/// A moving average: the share of the new is `rate` / 2^`shift`.
#[derive(Clone, Copy, Debug)]
pub struct Blend {
    rate: i64,
    shift: Rounding,
}

impl Blend {
    /// `rate` in [0, 2^16], `shift` in [0, 46].
    pub fn new(rate: i64, shift: i64) -> Self {
        Self {
            rate: rate.clamp(0, 1 << 16),
            shift: Rounding::new(shift),
        }
    }

    /// old + rs((new - old) * rate, shift), for values whose difference is within 2^46.
    #[inline(always)]
    fn apply(self, old: i64, new: i64) -> i64 {
        old + self.shift.apply((new - old) * self.rate)
    }

    /// The new average of gradients of `lift` fraction bits fewer; still to be saturated.
    #[inline(always)]
    pub fn mean(self, mean: i32, grad: i16, lift: u32) -> i64 {
        self.apply(i64::from(mean), i64::from(grad) << lift)
    }

    /// The new average of squared gradients, of any `square`.
    #[inline(always)]
    pub fn square(self, square: i64, grad: i16) -> i64 {
        let wide = i64::from(grad);
        self.apply(square.clamp(0, SQUARE_MOST), (wide * wide) << SQUARE_LIFT)
    }
}

/// Updates the averages by the gradient; returns how many elements saturation changed.
pub fn adam_mean(mean: &mut [i32], grad: &[i16], lift: u32, blend: Blend) -> u64 {
    vectorised(
        #[inline(always)]
        move || {
            let mut clamped = 0;
            for (mean, &grad) in mean.iter_mut().zip(grad) {
                *mean = saturate_counted(blend.mean(*mean, grad, lift), &mut clamped);
            }
            clamped
        },
    )
}

/// Updates the averages of squares by the gradient.
pub fn adam_square(square: &mut [i64], grad: &[i16], blend: Blend) {
    vectorised(
        #[inline(always)]
        move || {
            for (square, &grad) in square.iter_mut().zip(grad) {
                *square = blend.square(*square, grad);
            }
        },
    );
}

/// What the mean is divided by, and shifted before.
#[derive(Clone, Copy, Debug)]
pub struct Direction {
    /// At least 1.
    pub epsilon: i64,
    /// In [0, 31].
    pub shift: u32,
}

impl Direction {
    /// floor(m * 2^shift / (isqrt(max(v, 0)) + epsilon)); still to be saturated.
    #[inline(always)]
    pub fn apply(self, mean: i32, square: i64) -> i64 {
        // Positive: a Euclidean quotient is the floor.
        let divisor = square.max(0).isqrt() + self.epsilon.max(1);
        (i64::from(mean) << self.shift).div_euclid(divisor)
    }

    /// May [`Self::apply_small`] be used?
    #[inline(always)]
    fn is_small(self, mean: i32, square: i64) -> bool {
        square < EXACT && (i64::from(mean) << self.shift).abs() < EXACT
    }

    /// The same in f64, which has all of these integers, and of roots and quotients the nearest.
    ///
    /// Roots below 2^26 that are no integers are 2^-27 from one at least, and off by 2^-28. A
    /// quotient x / d that is none is 1 / d from one, and off by |x / d| 2^-53, which is less.
    #[inline(always)]
    fn apply_small(self, mean: i32, square: i64) -> i64 {
        let divisor = (square.max(0) as f64).sqrt().floor() + self.epsilon as f64;
        ((i64::from(mean) << self.shift) as f64 / divisor).floor() as i64
    }
}

/// The direction of each element; returns how many elements saturation changed.
pub fn adam_direction(mean: &[i32], square: &[i64], rule: Direction, out: &mut [i32]) -> u64 {
    const CHUNK: usize = 256;
    let rule = Direction {
        epsilon: rule.epsilon.max(1),
        ..rule
    };
    vectorised(
        #[inline(always)]
        move || {
            let mut clamped = 0;
            let parts = mean.chunks(CHUNK).zip(square.chunks(CHUNK));
            for ((mean, square), out) in parts.zip(out.chunks_mut(CHUNK)) {
                let pairs = || mean.iter().zip(square);
                // Without a way out, so that it vectorises.
                let small = pairs().fold(true, |all, (&m, &v)| all & rule.is_small(m, v));
                if small {
                    for (out, (&mean, &square)) in out.iter_mut().zip(pairs()) {
                        *out = saturate_counted(rule.apply_small(mean, square), &mut clamped);
                    }
                } else {
                    for (out, (&mean, &square)) in out.iter_mut().zip(pairs()) {
                        *out = saturate_counted(rule.apply(mean, square), &mut clamped);
                    }
                }
            }
            clamped
        },
    )
}

/// base^exponent of 31 fraction bits, rounded after each product of square and multiply.
fn power(base: i64, exponent: i64) -> i64 {
    let rounding = Rounding::new(i64::from(BETA_EXPONENT));
    let mut power = 1 << BETA_EXPONENT;
    for bit in (0..64 - exponent.leading_zeros()).rev() {
        power = rounding.apply(power * power);
        if exponent >> bit & 1 != 0 {
            power = rounding.apply(power * base);
        }
    }
    power
}

/// The correction of both moments' bias at step `now`; betas are in [0, 2^31 - 1].
pub fn adam_correction(now: i64, beta1: i64, beta2: i64) -> i64 {
    let count = now.clamp(0, MAX_STEPS) + 1;
    let rest = |beta: i64| (1 << BETA_EXPONENT) - power(beta, count);
    let root = (rest(beta2) << BETA_EXPONENT).isqrt();
    ((root << CORRECTION_EXPONENT) / rest(beta1).max(1)).min(CORRECTION_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Around squares, whose roots jump, and around multiples of the divisor, whose quotients do.
    #[test]
    fn directions_in_floating_point_are_exact() {
        let mut tried = 0;
        for bit in 1..=26 {
            for root in [1i64 << (bit - 1), (1 << bit) - 1, (1 << bit) / 3 + 1] {
                for square in [root * root - 1, root * root, root * root + 1] {
                    for epsilon in [1, 2, 1000, 1 << 31] {
                        let rule = Direction { epsilon, shift: 20 };
                        let divisor = square.isqrt() + epsilon;
                        for times in [1, 2, 1000, (1 << 51) / divisor] {
                            let near = (divisor * times) >> 20;
                            for mean in [near - 1, near, near + 1, i64::from(i32::MAX)] {
                                for mean in [mean, -mean] {
                                    let Ok(mean) = i32::try_from(mean) else {
                                        continue;
                                    };
                                    if rule.is_small(mean, square) {
                                        tried += 1;
                                        let exact = rule.apply(mean, square);
                                        assert_eq!(rule.apply_small(mean, square), exact);
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        assert!(tried > 10_000);
    }
}
