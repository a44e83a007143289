//! Momentum and weights in lanes of 32 bits, of which a vector has twice as many as of 64.
//!
//! With `v = 2^16 h + l`, `l` in [0, 2^16): `rs(v d, 16) = h d + floor((l d + 2^15) / 2^16)` for a
//! decay `d` in [0, 2^16].  For a rate `r` in [0, 2^16) and a shift `s` in [2, 16], likewise
//! `rs(v r, s) = 2^(16-s) h r + floor((l r + 2^(s-1)) / 2^s)`, where the first term may not fit.
//! For `s` in [17, 31] it is `floor((h r + floor(l r / 2^16) + 2^(s-17)) / 2^(s-16))`.  The products
//! of `l` stay within unsigned, all else within signed 32 bits: `h r + ...` is below
//! `(2^15 - 1) (2^16 - 1) + 2^16 + 2^14 < 2^31`.

use crate::cpu;
use crate::ops::optimizer::{MomentumRule, Rate};

/// Elements that are updated at a time.
pub(super) const PIECE: usize = 8;

/// The update of a piece, by AVX2.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct Narrow {
    decay: i32,
    /// Of gradients.
    align: u32,
    rate: i32,
    /// Of weights.
    shift: u32,
}

impl Narrow {
    /// None where the bounds above do not hold, or the machine lacks the instructions.
    pub fn new(rule: MomentumRule, rate: Rate) -> Option<Self> {
        let in_bounds = (0..1 << 16).contains(&rate.rate)
            && (2..=31).contains(&rate.shift)
            && (0..=60).contains(&rule.shift());
        let can = cfg!(target_arch = "x86_64") && cpu::level() >= cpu::Level::Avx2;
        (in_bounds && can).then_some(Self {
            decay: rule.decay(),
            align: rule.shift() as u32,
            rate: rate.rate as i32,
            shift: rate.shift as u32,
        })
    }

    /// Updates a piece, given gradients within +-2^53; false, and nothing is changed, where an
    /// aligned gradient, a product or a sum does not fit into 32 bits, or saturates.
    #[inline(always)]
    pub fn apply(
        self,
        velocity: &mut [i32; PIECE],
        weight: &mut [i32; PIECE],
        grad: &[i64; PIECE],
    ) -> bool {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `new` made sure of the instructions.
        unsafe {
            self.apply_avx2(velocity, weight, grad)
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("new() gives none on this machine: {velocity:?} {weight:?} {grad:?}")
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    fn apply_avx2(
        self,
        velocity: &mut [i32; PIECE],
        weight: &mut [i32; PIECE],
        grad: &[i64; PIECE],
    ) -> bool {
        use std::arch::x86_64::*;
        // SAFETY: each array is read and written as a whole, by vectors that need no alignment.
        unsafe {
            let v = _mm256_loadu_si256(velocity.as_ptr().cast());
            let w = _mm256_loadu_si256(weight.as_ptr().cast());
            let grads: *const __m256i = grad.as_ptr().cast();
            // The rounding shift: 2^62 makes all positive, for there is no arithmetic shift.
            let half = if self.align == 0 {
                0
            } else {
                1 << (self.align - 1)
            };
            let before = _mm256_set1_epi64x((1 << 62) + half);
            let after = _mm256_set1_epi64x((1 << 62) >> self.align);
            let by = _mm_cvtsi32_si128(self.align as i32);
            let low = _mm256_add_epi64(_mm256_loadu_si256(grads), before);
            let low = _mm256_sub_epi64(_mm256_srl_epi64(low, by), after);
            let high = _mm256_add_epi64(_mm256_loadu_si256(grads.add(1)), before);
            let high = _mm256_sub_epi64(_mm256_srl_epi64(high, by), after);
            // The lower halves of the eight, and the upper, which must be all sign.
            let (low, high) = (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
            let lower = _mm256_castps_si256(_mm256_shuffle_ps::<0x88>(low, high));
            let upper = _mm256_castps_si256(_mm256_shuffle_ps::<0xdd>(low, high));
            let cut = _mm256_xor_si256(upper, _mm256_srai_epi32::<31>(lower));
            let aligned = _mm256_permute4x64_epi64::<0xd8>(lower);

            let low_bits = _mm256_set1_epi32(0xffff);
            let lowest = _mm256_set1_epi32(i32::MIN);
            let decay = _mm256_set1_epi32(self.decay);
            let decayed = _mm256_mullo_epi32(_mm256_and_si256(v, low_bits), decay);
            let decayed = _mm256_add_epi32(decayed, _mm256_set1_epi32(1 << 15));
            let decayed = _mm256_add_epi32(
                _mm256_mullo_epi32(_mm256_srai_epi32::<16>(v), decay),
                _mm256_srli_epi32::<16>(decayed),
            );
            let kept = _mm256_sub_epi32(v, decayed);
            let moved = _mm256_add_epi32(kept, aligned);
            // From here on the sign bit of `beyond` says that something does not fit.
            let mut beyond = _mm256_and_si256(
                _mm256_xor_si256(kept, moved),
                _mm256_xor_si256(aligned, moved),
            );
            beyond = _mm256_or_si256(beyond, _mm256_cmpeq_epi32(moved, lowest));

            let rate = _mm256_set1_epi32(self.rate);
            let product = _mm256_mullo_epi32(_mm256_srai_epi32::<16>(moved), rate);
            let low = _mm256_mullo_epi32(_mm256_and_si256(moved, low_bits), rate);
            let step = if self.shift > 16 {
                let half = _mm256_set1_epi32(1 << (self.shift - 17));
                let sum = _mm256_add_epi32(product, _mm256_srli_epi32::<16>(low));
                let by = _mm_cvtsi32_si128(self.shift as i32 - 16);
                _mm256_sra_epi32(_mm256_add_epi32(sum, half), by)
            } else {
                let half = _mm256_set1_epi32(1 << (self.shift - 1));
                let by = _mm_cvtsi32_si128(self.shift as i32);
                let low = _mm256_srl_epi32(_mm256_add_epi32(low, half), by);
                let by = _mm_cvtsi32_si128(16 - self.shift as i32);
                let high = _mm256_sll_epi32(product, by);
                let step = _mm256_add_epi32(high, low);
                let fits = _mm256_cmpeq_epi32(_mm256_sra_epi32(high, by), product);
                // Adding what is not negative overflows where it makes a negative of none.
                beyond = _mm256_or_si256(beyond, _mm256_andnot_si256(high, step));
                beyond = _mm256_or_si256(beyond, _mm256_xor_si256(fits, _mm256_set1_epi32(-1)));
                step
            };
            let stepped = _mm256_sub_epi32(w, step);
            let overflows =
                _mm256_and_si256(_mm256_xor_si256(w, step), _mm256_xor_si256(w, stepped));
            beyond = _mm256_or_si256(beyond, overflows);
            beyond = _mm256_or_si256(beyond, _mm256_cmpeq_epi32(stepped, lowest));
            let fits = _mm256_movemask_ps(_mm256_castsi256_ps(beyond)) == 0
                && _mm256_testz_si256(cut, cut) == 1;
            if fits {
                _mm256_storeu_si256(velocity.as_mut_ptr().cast(), moved);
                _mm256_storeu_si256(weight.as_mut_ptr().cast(), stepped);
            }
            fits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{Rounding, saturate_counted};

    /// Velocities, weights and gradients at the ends of their ranges and between, at each end of
    /// what [`Narrow`] takes: it gives what the law gives, or says that it does not.
    #[test]
    fn narrow_lanes_give_the_same_bits() {
        if cpu::level() < cpu::Level::Avx2 {
            return;
        }
        let mut state = 7u64;
        let mut draw = |bits: u32| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state as i64 >> (64 - bits)
        };
        let ends = [
            i64::from(i32::MIN),
            -i64::from(i32::MAX),
            -65536,
            -1,
            0,
            1,
            65535,
            i64::from(i32::MAX),
        ];
        let (mut done, mut left) = (0, 0);
        for decay in [0, 1, 6554, 65535, 65536] {
            for align in [0, 1, 13, 40] {
                for rate in [0, 1, 40000, 65535] {
                    for shift in [2, 9, 15, 16, 17, 18, 26, 31] {
                        let rule = MomentumRule::new(decay, align);
                        let rate = Rate { rate, shift };
                        let narrow = Narrow::new(rule, rate).unwrap();
                        for round in 0..8 {
                            let mut pick = |bits| match draw(4) {
                                end @ 0.. if round < 4 => ends[end as usize] as i32,
                                _ => draw(bits) as i32,
                            };
                            let before: Vec<(i32, i32)> =
                                (0..PIECE).map(|_| (pick(30), pick(31))).collect();
                            let grads: [i64; PIECE] =
                                std::array::from_fn(|_| draw((28 + align as u32).min(53)));
                            let mut velocity = std::array::from_fn(|i| before[i].0);
                            let mut weight = std::array::from_fn(|i| before[i].1);
                            let fits = narrow.apply(&mut velocity, &mut weight, &grads);
                            let mut clamped = 0;
                            let expected = before.iter().zip(&grads).map(|(&(v, w), &g)| {
                                let v = rule.apply(v, rule.rounding().apply(g));
                                let v: i32 = saturate_counted(v, &mut clamped);
                                let w = Rate::apply(w, v, rate.rate, Rounding::new(shift));
                                (v, saturate_counted(w, &mut clamped))
                            });
                            let expected: Vec<(i32, i32)> = expected.collect();
                            let found: Vec<(i32, i32)> = velocity.into_iter().zip(weight).collect();
                            if fits {
                                assert_eq!((found, clamped), (expected, 0));
                                done += 1;
                            } else {
                                assert_eq!(found, before);
                                left += 1;
                            }
                        }
                    }
                }
            }
        }
        assert!(done > 200 && left > 200, "{done} {left}");
        assert!(Narrow::new(MomentumRule::new(1, 1), Rate { rate: 1, shift: 1 }).is_none());
        assert!(Narrow::new(MomentumRule::new(1, 1), Rate { rate: 1, shift: 32 }).is_none());
        assert!(
            Narrow::new(
                MomentumRule::new(1, 1),
                Rate {
                    rate: 1 << 16,
                    shift: 20
                }
            )
            .is_none()
        );
        assert!(Narrow::new(MomentumRule::new(1, -1), Rate { rate: 1, shift: 20 }).is_none());
    }
}
