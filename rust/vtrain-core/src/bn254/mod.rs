//! Sums over the curve BN254 (alt_bn128), in whose first group ezkl commits to polynomials.
//!
//! Points come as halo2 writes them into its parameter files: x then y, each 32 bytes, little-endian,
//! in Montgomery form to the base 2^256. The group has prime order, so that a point on the curve is
//! in the group.

use ark_bn254::{Fq, Fr, G1Affine};
use ark_ec::{AffineRepr, CurveGroup};
use ark_ff::{BigInt, BigInteger, Field, PrimeField};
use rayon::prelude::*;
use thiserror::Error;

mod affine;
mod commit;
mod lagrange;
mod msm;
mod secret;

pub use commit::{CommitKey, Integers};
pub use secret::{SECOND_GROUP, Secret};

/// The scalars have 2^28-th roots of unity and no larger ones.
pub const MAX_K: u32 = 28;

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
    /// The number of points is no power of two, or no scalar's order.
    #[error("{0} points are no power of two of at most 2^{MAX_K}")]
    Size(usize),
    /// So many rows hold the filling that none is left for values.
    #[error("{blinding} blinding factors leave no row of {points}")]
    Blinding {
        /// How many blinding factors were asked for.
        blinding: usize,
        /// How many points there are.
        points: usize,
    },
    /// A tensor does not fit into one column.
    #[error("{values} values for {rows} rows")]
    Rows {
        /// How many values were given.
        values: usize,
        /// How many rows hold values.
        rows: usize,
    },
    /// No type of integers has this name.
    #[error("no type of integers to commit to")]
    Integers,
    /// Coefficients and commitments do not pair up.
    #[error("{coefficients} coefficients for {commitments} commitments")]
    Pairs {
        /// How many coefficients were given.
        coefficients: usize,
        /// How many commitments were given.
        commitments: usize,
    },
    /// A number that makes no list of powers worth the name.
    #[error("the secret is 0, a root of unity or not reduced")]
    Secret,
}

/// Finite points of the first group, each found to be on the curve.
pub struct G1Points(Vec<G1Affine>);

/// The primitive 2^k-th root of unity of halo2, made of 7, a generator; arkworks' is of another.
fn root_of_unity(k: u32) -> Fr {
    let mut odd_part = Fr::MODULUS;
    odd_part.sub_with_borrow(&BigInt::one());
    odd_part >>= MAX_K;
    (k..MAX_K).fold(Fr::from(7).pow(odd_part), |root, _| root.square())
}

/// Whole items of that many bytes.
fn items(bytes: &[u8], size: usize) -> Result<std::slice::ChunksExact<'_, u8>, Bn254Error> {
    let items = bytes.chunks_exact(size);
    if items.remainder().is_empty() {
        Ok(items)
    } else {
        Err(Bn254Error::Length(bytes.len()))
    }
}

/// Scalars of 32 bytes each, little-endian.
fn read_scalars(bytes: &[u8]) -> Result<Vec<BigInt<4>>, Bn254Error> {
    let read = |(index, item)| match limbs(item) {
        scalar if scalar < Fr::MODULUS => Ok(scalar),
        _ => Err(Bn254Error::Scalar(index)),
    };
    items(bytes, SCALAR)?.enumerate().map(read).collect()
}

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
        if !bytes.len().is_multiple_of(POINT) {
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
        let scalars = read_scalars(scalars)?;
        let bases = self.0.get(..scalars.len()).ok_or(Bn254Error::TooMany {
            scalars: scalars.len(),
            points: self.0.len(),
        })?;
        Ok(encode(
            msm::sum(bases, &msm::signed_scalars(&scalars)).into_affine(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ark_bn254::G1Projective;

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
