//! Sums over the curve BN254 (alt_bn128), in whose first group ezkl commits to polynomials.
//!
//! Points come as halo2 writes them into its parameter files: x then y, each 32 bytes, little-endian,
//! in Montgomery form to the base 2^256. The group has prime order, so that a point on the curve is
//! in the group.

use ark_bn254::{Fq, Fr, G1Affine, G1Projective};
use ark_ec::{AffineRepr, CurveGroup, VariableBaseMSM};
use ark_ff::{BigInt, BigInteger, PrimeField};
use rayon::prelude::*;
use thiserror::Error;

/// Bytes of a point, in files (Montgomery form) and in results (big-endian coordinates).
pub const POINT: usize = 64;
/// Bytes of a scalar.
pub const SCALAR: usize = 32;

/// Why bytes are no list of points, or no list of scalars for them.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Bn254Error {
    /// The bytes are no whole number of items.
    #[error("{0} bytes are no whole number of items")]
    Length(usize),
    /// A coordinate is not below the field's prime.
    #[error("point {0} has a coordinate that is not reduced")]
    NotReduced(usize),
    /// The point at infinity, which no honest parameters contain.
    #[error("point {0} is the point at infinity")]
    Infinity(usize),
    /// The coordinates satisfy another equation.
    #[error("point {0} is not on the curve")]
    NotOnCurve(usize),
    /// A scalar is not below the group's order.
    #[error("scalar {0} is not reduced")]
    Scalar(usize),
    /// There are more scalars than points.
    #[error("{scalars} scalars for {points} points")]
    TooMany {
        /// How many scalars were given.
        scalars: usize,
        /// How many points there are.
        points: usize,
    },
}

/// Finite points of the first group, each found to be on the curve.
pub struct G1Points(Vec<G1Affine>);

fn limbs(bytes: &[u8]) -> BigInt<4> {
    let mut value = [0; 4];
    for (limb, word) in value.iter_mut().zip(bytes.chunks_exact(8)) {
        *limb = word
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    }
    BigInt(value)
}

fn point(index: usize, bytes: &[u8]) -> Result<G1Affine, Bn254Error> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Err(Bn254Error::Infinity(index));
    }
    let (x, y) = (limbs(&bytes[..POINT / 2]), limbs(&bytes[POINT / 2..]));
    if x >= Fq::MODULUS || y >= Fq::MODULUS {
        return Err(Bn254Error::NotReduced(index));
    }
    let point = G1Affine::new_unchecked(Fq::new_unchecked(x), Fq::new_unchecked(y));
    if point.is_on_curve() {
        Ok(point)
    } else {
        Err(Bn254Error::NotOnCurve(index))
    }
}

/// Big-endian x then y; zeros for the point at infinity.
fn encode(point: G1Affine) -> [u8; POINT] {
    let mut bytes = [0; POINT];
    if let Some((x, y)) = point.xy() {
        bytes[..POINT / 2].copy_from_slice(&x.into_bigint().to_bytes_be());
        bytes[POINT / 2..].copy_from_slice(&y.into_bigint().to_bytes_be());
    }
    bytes
}

impl G1Points {
    /// Reads points of 64 bytes each; the error names one that is none, counting from `first`.
    pub fn read(bytes: &[u8], first: usize) -> Result<Self, Bn254Error> {
        let items = bytes.chunks_exact(POINT);
        if !items.remainder().is_empty() {
            return Err(Bn254Error::Length(bytes.len()));
        }
        let read: Vec<_> = bytes
            .par_chunks_exact(POINT)
            .enumerate()
            .map(|(index, bytes)| point(first + index, bytes))
            .collect();
        Ok(G1Points(read.into_iter().collect::<Result<_, _>>()?))
    }

    /// How many points there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no point.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sum of the first points, each times its scalar (32 bytes, little-endian).
    pub fn combine(&self, scalars: &[u8]) -> Result<[u8; POINT], Bn254Error> {
        let items = scalars.chunks_exact(SCALAR);
        if !items.remainder().is_empty() {
            return Err(Bn254Error::Length(scalars.len()));
        }
        let count = items.len();
        let bases = self.0.get(..count).ok_or(Bn254Error::TooMany {
            scalars: count,
            points: self.0.len(),
        })?;
        let mut reduced = Vec::with_capacity(count);
        for (index, item) in items.enumerate() {
            let scalar = limbs(item);
            if scalar >= Fr::MODULUS {
                return Err(Bn254Error::Scalar(index));
            }
            reduced.push(scalar);
        }
        Ok(encode(
            G1Projective::msm_bigint(bases, &reduced).into_affine(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (1, 2), the generator, in Montgomery form.
    fn generator() -> Vec<u8> {
        let g = G1Affine::generator();
        [g.x, g.y]
            .iter()
            .flat_map(|value| value.0.to_bytes_le())
            .collect()
    }

    fn scalars(values: &[u64]) -> Vec<u8> {
        let item = |value: &u64| [&value.to_le_bytes()[..], &[0; 24]].concat();
        values.iter().flat_map(item).collect()
    }

    #[test]
    fn sums_agree_with_repeated_addition() -> Result<(), Bn254Error> {
        let points = G1Points::read(&generator().repeat(3), 0)?;
        let expected = (0..12).fold(G1Projective::default(), |sum, _| {
            sum + G1Affine::generator()
        });
        assert_eq!(
            points.combine(&scalars(&[3, 4, 5]))?,
            encode(expected.into_affine())
        );
        assert_eq!(points.combine(&scalars(&[1]))?, {
            let mut bytes = [0; POINT];
            (bytes[31], bytes[63]) = (1, 2);
            bytes
        });
        assert_eq!(points.combine(&[])?, [0; POINT]);
        let minus_one = (-Fr::from(1)).into_bigint().to_bytes_le();
        let cancelling = [scalars(&[1]), minus_one].concat();
        assert_eq!(points.combine(&cancelling)?, [0; POINT]);
        assert_eq!((points.len(), points.is_empty()), (3, false));
        Ok(())
    }

    #[test]
    fn each_fault_is_named() -> Result<(), Bn254Error> {
        let good = generator();
        let fault = |bytes: Vec<u8>| G1Points::read(&[good.clone(), bytes].concat(), 7).err();
        assert_eq!(fault(vec![0; POINT]), Some(Bn254Error::Infinity(8)));
        assert_eq!(fault(vec![0xff; POINT]), Some(Bn254Error::NotReduced(8)));
        assert_eq!(fault(vec![1; POINT]), Some(Bn254Error::NotOnCurve(8)));
        assert_eq!(fault(vec![1]), Some(Bn254Error::Length(POINT + 1)));
        let points = G1Points::read(&good, 0)?;
        let refused = |bytes: &[u8]| points.combine(bytes).err();
        assert_eq!(refused(&[1]), Some(Bn254Error::Length(1)));
        assert_eq!(refused(&[0xff; SCALAR]), Some(Bn254Error::Scalar(0)));
        assert_eq!(
            refused(&scalars(&[1, 1])),
            Some(Bn254Error::TooMany {
                scalars: 2,
                points: 1
            })
        );
        Ok(())
    }
}
