//! Additions in affine coordinates, many with one inversion (Montgomery's trick).

use ark_bn254::{Fq, Fr, G1Affine, g1};
use ark_ec::AffineRepr;
use ark_ec::scalar_mul::glv::GLVConfig;
use ark_ff::{AdditiveGroup, Field, PrimeField, Zero, serial_batch_inversion_and_mul};

use super::msm::{Signed, write_digits};

/// What the slope of the line through two points is divided by; 0 where there is no such line.
pub(super) fn denominator(a: G1Affine, b: G1Affine) -> Fq {
    if a.is_zero() || b.is_zero() {
        Fq::ZERO
    } else if a.x != b.x {
        b.x - a.x
    } else if a.y == b.y {
        a.y.double()
    } else {
        Fq::ZERO
    }
}

/// The sum of two points, by the inverse of their [`denominator`] (0 for 0).
pub(super) fn add(a: G1Affine, b: G1Affine, inverse: Fq) -> G1Affine {
    if inverse.is_zero() {
        return match (a.is_zero(), b.is_zero()) {
            (true, _) => b,
            (_, true) => a,
            _ => G1Affine::identity(), // they are opposite
        };
    }
    let rise = if a.x == b.x {
        let square = a.x.square();
        square.double() + square
    } else {
        b.y - a.y
    };
    let slope = rise * inverse;
    let x = slope.square() - a.x - b.x;
    G1Affine::new_unchecked(x, slope * (a.x - x) - a.y)
}

/// Adds to each point its other.
fn add_each(points: &mut [G1Affine], others: &[G1Affine]) {
    let pairs = points.iter().zip(others);
    let mut inverses: Vec<_> = pairs.map(|(&a, &b)| denominator(a, b)).collect();
    serial_batch_inversion_and_mul(&mut inverses, &Fq::ONE);
    for ((point, &other), &inverse) in points.iter_mut().zip(others).zip(&inverses) {
        *point = add(*point, other, inverse);
    }
}

/// a + b and a - b of each pair.
pub(super) fn sums_and_differences(a: &[G1Affine], b: &[G1Affine]) -> Vec<(G1Affine, G1Affine)> {
    let (mut sums, mut differences) = (a.to_vec(), a.to_vec());
    add_each(&mut sums, b);
    let opposite: Vec<_> = b.iter().map(|&point| -point).collect();
    add_each(&mut differences, &opposite);
    sums.into_iter().zip(differences).collect()
}

/// Bits of a digit of a factor, and how many of its digits a half takes: of 128 bits and a carry.
const BITS: usize = 4;
const WINDOWS: usize = 33;

/// Scalars to multiply points by, each as a half of 128 bits and another times the endomorphism's
/// eigenvalue (Gallant, Lambert, Vanstone, CRYPTO 2001), in signed digits.
pub(super) struct Factors {
    halves: [Vec<i16>; 2],
    count: usize,
}

impl Factors {
    pub(super) fn new(scalars: &[Fr]) -> Self {
        let signed = |(positive, value): (bool, Fr)| Signed {
            negative: !positive,
            magnitude: value.into_bigint(),
        };
        let (first, second): (Vec<_>, Vec<_>) = scalars
            .iter()
            .map(|&scalar| {
                let (a, b) = g1::Config::scalar_decomposition(scalar);
                (signed(a), signed(b))
            })
            .unzip();
        Factors {
            halves: [first, second].map(|half| write_digits(&half, BITS, WINDOWS)),
            count: scalars.len(),
        }
    }

    /// Each point times the factor of that index: all of them digit by digit, side by side.
    pub(super) fn multiply(&self, points: &[G1Affine], indices: &[usize]) -> Vec<G1Affine> {
        let mut multiples = vec![points.to_vec()];
        for i in 0..(1 << (BITS - 1)) - 1 {
            let mut next = multiples[i].clone();
            add_each(&mut next, points);
            multiples.push(next);
        }
        let moved = multiples
            .iter()
            .map(|row| row.iter().map(g1::Config::endomorphism_affine).collect())
            .collect();
        let tables: [Vec<Vec<G1Affine>>; 2] = [multiples, moved];
        let mut sums = vec![G1Affine::identity(); points.len()];
        let mut others = sums.clone();
        for window in (0..WINDOWS).rev() {
            for _ in 0..BITS {
                others.copy_from_slice(&sums);
                add_each(&mut sums, &others);
            }
            for (digits, table) in self.halves.iter().zip(&tables) {
                for (at, (other, &index)) in others.iter_mut().zip(indices).enumerate() {
                    let digit = digits[window * self.count + index];
                    *other = match usize::from(digit.unsigned_abs()) {
                        0 => G1Affine::identity(),
                        size if digit < 0 => -table[size - 1][at],
                        size => table[size - 1][at],
                    };
                }
                add_each(&mut sums, &others);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ark_ec::CurveGroup;

    #[test]
    fn products_agree_with_the_definition() {
        let g = G1Affine::generator();
        let wide = Fr::from(3).pow([200]);
        let scalars = [
            Fr::ZERO,
            Fr::ONE,
            -Fr::ONE,
            g1::Config::LAMBDA,
            -g1::Config::LAMBDA,
            Fr::from(u64::MAX),
            wide,
            -wide,
            wide.square(),
            Fr::from(2).inverse().unwrap_or_default(),
        ];
        let factors = Factors::new(&scalars);
        let points = [g, -g, (g * wide).into_affine(), G1Affine::identity()];
        for point in points {
            let indices: Vec<_> = (0..scalars.len()).rev().collect();
            let found = factors.multiply(&vec![point; scalars.len()], &indices);
            for (found, index) in found.into_iter().zip(indices) {
                assert_eq!(found, point * scalars[index]);
            }
        }
        assert!(factors.multiply(&[], &[]).is_empty());
        let both = sums_and_differences(&[g, g, points[2]], &[g, points[2], points[3]]);
        assert_eq!(both[0].0, g + g);
        assert_eq!(both[0].1, points[3]);
        assert_eq!(both[1].0, g + points[2]);
        assert_eq!(both[1].1, g - points[2]);
        assert_eq!(both[2], (points[2], points[2]));
    }
}
