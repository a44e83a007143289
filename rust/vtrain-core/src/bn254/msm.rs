//! Sums of points times scalars by Pippenger's method (Bernstein, Doumen, Lange, Oosterwijk,
//! "Faster batch forgery identification", 2012, section 4), with signed digits.
//!
//! Points of a bucket are added in pairs, in affine coordinates, with one inversion for a whole
//! round of all buckets of a window (Montgomery's trick).

use ark_bn254::{Fq, Fr, G1Affine, G1Projective};
use ark_ff::{
    AdditiveGroup, BigInt, BigInteger, Field, PrimeField, Zero, serial_batch_inversion_and_mul,
};
use rayon::prelude::*;

use super::affine::{add, denominator};

/// Fewer points than this are not worth a thread.
const LEAST_CHUNK: usize = 512;
/// Digits fit an i16 with room for the carry.
const MOST_BITS: usize = 13;
/// Products of field elements that it takes to add a point into a bucket, and to add up a bucket.
const IN_BUCKET: usize = 6;
const OF_BUCKET: usize = 27;

/// A scalar by sign and magnitude.
#[derive(Clone, Copy)]
pub(super) struct Signed {
    pub negative: bool,
    pub magnitude: BigInt<4>,
}

impl From<i64> for Signed {
    fn from(value: i64) -> Self {
        Signed {
            negative: value < 0,
            magnitude: BigInt::from(value.unsigned_abs()),
        }
    }
}

/// Reduced scalars, those above half of the order as what they lack.
pub(super) fn signed_scalars(scalars: &[BigInt<4>]) -> Vec<Signed> {
    let sign = |&scalar: &BigInt<4>| {
        let mut rest = Fr::MODULUS;
        rest.sub_with_borrow(&scalar);
        let negative = rest < scalar;
        Signed {
            negative,
            magnitude: if negative { rest } else { scalar },
        }
    };
    scalars.iter().map(sign).collect()
}

/// The sum of the points, each times its scalar; as many of both.
pub(super) fn sum(points: &[G1Affine], scalars: &[Signed]) -> G1Projective {
    let chunk = points
        .len()
        .div_ceil(rayon::current_num_threads())
        .max(LEAST_CHUNK);
    points
        .par_chunks(chunk)
        .zip(scalars.par_chunks(chunk))
        .map(|(points, scalars)| sum_chunk(points, scalars))
        .sum()
}

fn sum_chunk(points: &[G1Affine], scalars: &[Signed]) -> G1Projective {
    let longest = scalars
        .iter()
        .map(|scalar| scalar.magnitude.num_bits())
        .max()
        .unwrap_or(0) as usize;
    let windows = |bits: usize| (longest + 1).div_ceil(bits); // one bit for the last carry
    let cost = |bits: &usize| {
        let buckets = 1 << (bits - 1);
        windows(*bits) * (points.len() * IN_BUCKET + buckets * OF_BUCKET)
    };
    let bits = (2..=MOST_BITS).min_by_key(cost).unwrap_or(MOST_BITS);
    let digits = write_digits(scalars, bits, windows(bits));
    let sums: Vec<_> = digits
        .par_chunks(points.len())
        .map(|digits| sum_window(points, digits, 1 << (bits - 1)))
        .collect();
    sums.into_iter()
        .rev()
        .fold(G1Projective::zero(), |mut total, sum| {
            for _ in 0..bits {
                total.double_in_place();
            }
            total + sum
        })
}

/// Digits to the base 2^bits from -2^(bits-1) + 1 to 2^(bits-1), window by window, the lowest first.
pub(super) fn write_digits(scalars: &[Signed], bits: usize, windows: usize) -> Vec<i16> {
    let mut digits = vec![0; windows * scalars.len()];
    let (base, mask) = (1 << bits, (1u64 << bits) - 1);
    for (index, scalar) in scalars.iter().enumerate() {
        let limbs = scalar.magnitude.0;
        let mut carry = 0;
        for window in 0..windows {
            let (limb, shift) = (window * bits / 64, window * bits % 64);
            let mut word = limbs.get(limb).map_or(0, |limb| limb >> shift);
            if shift + bits > 64 {
                word |= limbs.get(limb + 1).map_or(0, |limb| limb << (64 - shift));
            }
            let mut digit = (word & mask) as i32 + carry;
            carry = i32::from(digit > base / 2);
            digit -= carry * base;
            digits[window * scalars.len() + index] =
                if scalar.negative { -digit } else { digit } as i16;
        }
    }
    digits
}

/// The sum of the points times their digits, whose magnitudes are at most `buckets`.
fn sum_window(points: &[G1Affine], digits: &[i16], buckets: usize) -> G1Projective {
    let mut lengths = vec![0u32; buckets + 1];
    for digit in digits {
        lengths[usize::from(digit.unsigned_abs())] += 1;
    }
    lengths[0] = 0;
    let mut ends = Vec::with_capacity(buckets + 1);
    let mut total = 0;
    for &length in &lengths {
        ends.push(total);
        total += length as usize;
    }
    let mut sorted = vec![G1Affine::identity(); total];
    for (&digit, &point) in digits.iter().zip(points) {
        if digit != 0 {
            let end = &mut ends[usize::from(digit.unsigned_abs())];
            sorted[*end] = if digit < 0 { -point } else { point };
            *end += 1;
        }
    }
    add_up(&mut sorted, &mut lengths);
    // The point of bucket i is added to the running sum once, and that to the result i times.
    let filled: usize = lengths.iter().map(|&length| length as usize).sum();
    let mut sums = sorted[..filled].iter().rev();
    let (mut running, mut result) = (G1Projective::zero(), G1Projective::zero());
    for &length in lengths[1..].iter().rev() {
        if length > 0 {
            running += sums.next().unwrap_or(&G1Affine::identity());
        }
        result += running;
    }
    result
}

/// Adds up runs of points of these lengths; what is left of each comes one after the other.
fn add_up(points: &mut [G1Affine], lengths: &mut [u32]) {
    let mut inverses = Vec::with_capacity(points.len() / 2);
    while lengths.iter().any(|&length| length > 1) {
        inverses.clear();
        let mut rest = &*points;
        for &length in &*lengths {
            let (run, others) = rest.split_at(length as usize);
            inverses.extend(
                run.chunks_exact(2)
                    .map(|pair| denominator(pair[0], pair[1])),
            );
            rest = others;
        }
        serial_batch_inversion_and_mul(&mut inverses, &Fq::ONE);
        let (mut from, mut to) = (0, 0);
        let mut inverses = inverses.iter();
        for length in &mut *lengths {
            let end = from + *length as usize;
            while from + 1 < end {
                let inverse = *inverses.next().unwrap_or(&Fq::ZERO);
                points[to] = add(points[from], points[from + 1], inverse);
                (from, to) = (from + 2, to + 1);
            }
            if from < end {
                points[to] = points[from];
                (from, to) = (end, to + 1);
            }
            *length = length.div_ceil(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ark_ec::{AffineRepr, CurveGroup, PrimeGroup};

    /// Numbers that look drawn (xorshift), the same every time.
    struct Draw(u64);

    impl Draw {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn field(&mut self) -> Fr {
            let limbs = [self.next(), self.next(), self.next(), self.next()];
            Fr::from_le_bytes_mod_order(&limbs.map(u64::to_le_bytes).concat())
        }

        /// Few distinct points, some of them opposite, so that every case of an addition occurs.
        fn points(&mut self, count: usize) -> Vec<G1Affine> {
            let pool: Vec<_> = (0..5)
                .map(|_| (G1Projective::generator() * self.field()).into_affine())
                .flat_map(|point| [point, -point])
                .chain([G1Affine::identity()])
                .collect();
            (0..count)
                .map(|_| pool[self.next() as usize % pool.len()])
                .collect()
        }
    }

    fn naive(points: &[G1Affine], scalars: &[Fr]) -> G1Projective {
        points.iter().zip(scalars).map(|(&p, &s)| p * s).sum()
    }

    #[test]
    fn small_sums_agree_with_the_definition() {
        let mut draw = Draw(1);
        for count in [0, 1, 2, 3, 10, 100, 700] {
            for shift in [0, 1, 32, 48, 55, 62, 63] {
                let points = draw.points(count);
                let mut values: Vec<_> = (0..count)
                    .map(|_| draw.next().cast_signed() >> shift)
                    .collect();
                for (value, extreme) in values.iter_mut().zip([i64::MIN, i64::MAX, -1, 0]) {
                    if shift == 0 {
                        *value = extreme;
                    }
                }
                let scalars: Vec<_> = values.iter().map(|&value| Fr::from(value)).collect();
                let signed: Vec<_> = values.iter().map(|&value| value.into()).collect();
                assert_eq!(sum(&points, &signed), naive(&points, &scalars));
            }
        }
    }

    #[test]
    fn sums_over_the_field_agree_with_the_definition() {
        let mut draw = Draw(2);
        for count in [1, 2, 50, 1200] {
            let points = draw.points(count);
            let mut scalars: Vec<_> = (0..count).map(|_| draw.field()).collect();
            let half = Fr::from(2).inverse().unwrap_or_default();
            for (scalar, extreme) in scalars.iter_mut().zip([half, -half, -Fr::ONE, Fr::ZERO]) {
                *scalar = extreme;
            }
            let limbs: Vec<_> = scalars.iter().map(|scalar| scalar.into_bigint()).collect();
            assert_eq!(
                sum(&points, &signed_scalars(&limbs)),
                naive(&points, &scalars)
            );
        }
    }

    #[test]
    fn one_bucket_takes_them_all() {
        let point = G1Affine::generator();
        for count in [1, 2, 3, 1000] {
            let points = vec![point; count];
            let expected = point * Fr::from(7 * count as u64);
            assert_eq!(sum(&points, &vec![7.into(); count]), expected);
        }
    }
}
