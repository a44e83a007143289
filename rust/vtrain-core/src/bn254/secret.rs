//! A structured reference string from its secret, for trials: whoever made one can forge proofs.

use ark_bn254::{Fq, Fq2, Fr, G1Affine, G1Projective, G2Affine};
use ark_ec::{AffineRepr, CurveGroup, PrimeGroup, scalar_mul::BatchMulPreprocessing};
use ark_ff::{AdditiveGroup, BigInteger, Field, PrimeField, batch_inversion_and_mul};
use rayon::prelude::*;

use super::{Bn254Error, MAX_K, POINT, SCALAR, limbs, root_of_unity};

/// Bytes of the two points of the second group.
pub const SECOND_GROUP: usize = 256;

/// tau, with what makes multiples of the generator quickly.
pub struct Secret {
    tau: Fr,
    k: u32,
    multiples: BatchMulPreprocessing<G1Projective>,
}

impl Secret {
    /// For 2^k points of either kind; tau has 32 bytes, little-endian.
    ///
    /// Refused is a tau of 0 or a 2^k-th root of unity, for which some of them would be infinite.
    pub fn new(tau: &[u8], k: u32) -> Result<Self, Bn254Error> {
        if tau.len() != SCALAR {
            return Err(Bn254Error::Length(tau.len()));
        }
        if !(1..=MAX_K).contains(&k) {
            return Err(Bn254Error::Size(1usize.checked_shl(k).unwrap_or(0)));
        }
        let tau = Fr::from_bigint(limbs(tau)).ok_or(Bn254Error::Secret)?;
        if tau == Fr::ZERO || tau.pow([1 << k]) == Fr::ONE {
            return Err(Bn254Error::Secret);
        }
        let multiples = BatchMulPreprocessing::new(G1Projective::generator(), 2 << k);
        Ok(Secret { tau, k, multiples })
    }

    /// tau^j G for `count` numbers j from `start` on, as files have them.
    pub fn powers(&self, start: usize, count: usize) -> Vec<u8> {
        let first = self.tau.pow([start as u64]);
        self.multiples_of(&progression(first, self.tau, count))
    }

    /// l_i(tau) G = w^i (tau^n - 1) / (n (tau - w^i)) G for `count` numbers i from `start` on.
    pub fn lagrange(&self, start: usize, count: usize) -> Vec<u8> {
        let n = 1 << self.k;
        let w = root_of_unity(self.k);
        let roots = progression(w.pow([start as u64]), w, count);
        let mut values: Vec<_> = roots.iter().map(|root| self.tau - root).collect();
        let factor = (self.tau.pow([n]) - Fr::ONE) / Fr::from(n);
        batch_inversion_and_mul(&mut values, &factor);
        for (value, root) in values.iter_mut().zip(&roots) {
            *value *= root;
        }
        self.multiples_of(&values)
    }

    /// H and tau H.
    pub fn second_group(&self) -> [u8; SECOND_GROUP] {
        let first = G2Affine::generator();
        let second = (first * self.tau).into_affine();
        let mut bytes = [0; SECOND_GROUP];
        let coordinates = [first.x, first.y, second.x, second.y];
        let parts = coordinates.iter().flat_map(|&Fq2 { c0, c1, .. }| [c0, c1]);
        for (target, part) in bytes.chunks_exact_mut(POINT / 2).zip(parts) {
            write_coordinate(target, part);
        }
        bytes
    }

    fn multiples_of(&self, scalars: &[Fr]) -> Vec<u8> {
        let points: Vec<G1Affine> = self.multiples.batch_mul(scalars);
        let mut bytes = vec![0; points.len() * POINT];
        bytes
            .par_chunks_exact_mut(POINT)
            .zip(&points)
            .for_each(|(target, point)| {
                let (x, y) = target.split_at_mut(POINT / 2);
                write_coordinate(x, point.x);
                write_coordinate(y, point.y);
            });
        bytes
    }
}

fn progression(first: Fr, factor: Fr, count: usize) -> Vec<Fr> {
    std::iter::successors(Some(first), |value| Some(*value * factor))
        .take(count)
        .collect()
}

/// In Montgomery form.
fn write_coordinate(target: &mut [u8], value: Fq) {
    target.copy_from_slice(&value.0.to_bytes_le());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bn254::G1Points;

    fn tau(value: Fr) -> Vec<u8> {
        value.into_bigint().to_bytes_le()
    }

    #[test]
    fn both_halves_agree_and_blocks_join() -> Result<(), Bn254Error> {
        for k in [1, 2, 3, 4, 5, 6, 11] {
            let n = 1 << k;
            let secret = Secret::new(&tau(Fr::from(123_456_789)), k)?;
            let powers = G1Points::read(&secret.powers(0, n), 0)?;
            let mut power = G1Projective::generator();
            for point in &powers.0 {
                assert_eq!(*point, power);
                power *= secret.tau;
            }
            let basis = secret.lagrange(0, n);
            let expected = powers.into_lagrange()?;
            assert_eq!(G1Points::read(&basis, 0)?.0, expected.0);
            let cut = n / 2 + 1;
            let parts = [secret.lagrange(0, cut), secret.lagrange(cut, n - cut)];
            assert_eq!(parts.concat(), basis);
            let parts = [secret.powers(0, cut), secret.powers(cut, n - cut)];
            assert_eq!(parts.concat(), secret.powers(0, n));
        }
        Ok(())
    }

    #[test]
    fn secrets_that_hide_nothing_are_refused() {
        let fault = |bytes: &[u8], k| Secret::new(bytes, k).err();
        let root = tau(root_of_unity(3));
        assert_eq!(fault(&[0; SCALAR], 3), Some(Bn254Error::Secret));
        assert_eq!(fault(&tau(Fr::ONE), 3), Some(Bn254Error::Secret));
        assert_eq!(fault(&root, 3), Some(Bn254Error::Secret));
        assert_eq!(fault(&root, 2), None);
        assert_eq!(fault(&[0xff; SCALAR], 3), Some(Bn254Error::Secret));
        assert_eq!(fault(&[1], 3), Some(Bn254Error::Length(1)));
        assert_eq!(fault(&[2; SCALAR], 0), Some(Bn254Error::Size(1)));
        assert_eq!(fault(&[2; SCALAR], 29), Some(Bn254Error::Size(1 << 29)));
    }
}
