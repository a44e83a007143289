//! Lagrange's basis of a list of powers: the inverse Fourier transform over points.

use ark_bn254::{Fr, G1Affine};
use ark_ff::Field;
use rayon::prelude::*;

use super::affine::{Factors, sums_and_differences};
use super::{Bn254Error, G1Points, MAX_K, root_of_unity};

/// Points that share an inversion.
const BATCH: usize = 512;

/// k, for 2^k points.
pub(super) fn logarithm(count: usize) -> Result<u32, Bn254Error> {
    match count.checked_ilog2() {
        Some(k) if count.is_power_of_two() && k <= MAX_K => Ok(k),
        _ => Err(Bn254Error::Size(count)),
    }
}

impl G1Points {
    /// L_i = 1/n sum_j w^(-ij) P_j of n = 2^k points P_j, with w the n-th root of unity.
    ///
    /// Where P_j = tau^j G, L_i is l_i(tau) G, so that a longer list of powers serves a smaller n.
    pub fn into_lagrange(self) -> Result<Self, Bn254Error> {
        let n = self.0.len();
        let k = logarithm(n)?;
        let step = root_of_unity(k).inverse().unwrap_or_default();
        let powers = std::iter::successors(Some(Fr::ONE), |power| Some(*power * step));
        let mut factors: Vec<_> = powers.take(n / 2).collect();
        factors.push(Fr::from(n as u64).inverse().unwrap_or_default());
        let factors = Factors::new(&factors);
        let ordered: Vec<_> = (0..n).map(|i| self.0[reverse_bits(i, k)]).collect();
        let mut values: Vec<_> = ordered
            .par_chunks(BATCH)
            .flat_map_iter(|points| factors.multiply(points, &vec![n / 2; points.len()]))
            .collect();
        for half in (0..k).map(|stage| 1 << stage) {
            let places: Vec<_> = (0..n).filter(|place| place & half == 0).collect();
            let pairs: Vec<_> = places
                .par_chunks(BATCH)
                .flat_map_iter(|places| cross(&values, places, half, &factors))
                .collect();
            for (place, (sum, difference)) in places.into_iter().zip(pairs) {
                values[place] = sum;
                values[place + half] = difference;
            }
        }
        Ok(G1Points(values))
    }
}

/// a + f b and a - f b for a at each of the places, b `half` places on, and f its twiddle factor.
fn cross(
    values: &[G1Affine],
    places: &[usize],
    half: usize,
    factors: &Factors,
) -> Vec<(G1Affine, G1Affine)> {
    let a: Vec<_> = places.iter().map(|&place| values[place]).collect();
    let mut b: Vec<_> = places.iter().map(|&place| values[place + half]).collect();
    let stride = values.len() / (2 * half);
    let turned: Vec<_> = (0..b.len())
        .filter(|&i| !places[i].is_multiple_of(half))
        .collect();
    let points: Vec<_> = turned.iter().map(|&i| b[i]).collect();
    let indices: Vec<_> = turned.iter().map(|&i| places[i] % half * stride).collect();
    for (i, point) in turned.into_iter().zip(factors.multiply(&points, &indices)) {
        b[i] = point;
    }
    sums_and_differences(&a, &b)
}

fn reverse_bits(index: usize, count: u32) -> usize {
    match count {
        0 => index,
        _ => index.reverse_bits() >> (usize::BITS - count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ark_bn254::G1Projective;
    use ark_ec::{CurveGroup, PrimeGroup};
    use ark_ff::PrimeField;

    #[test]
    fn basis_is_that_of_the_definition() -> Result<(), Bn254Error> {
        for k in 0..5 {
            let n = 1 << k;
            let scalars: Vec<_> = (0..n).map(|i| Fr::from(i * i * 7 + 3)).collect();
            let times = |scalar: &Fr| (G1Projective::generator() * scalar).into_affine();
            let found = G1Points(scalars.iter().map(times).collect()).into_lagrange()?;
            let step = root_of_unity(k).inverse().unwrap_or_default();
            for i in 0..n {
                let terms = (0..n).map(|j| scalars[j as usize] * step.pow([i * j]));
                let value = terms.sum::<Fr>() / Fr::from(n);
                assert_eq!(found.0[i as usize], times(&value));
            }
        }
        let three = G1Points(vec![G1Affine::identity(); 3]).into_lagrange();
        assert_eq!(three.err(), Some(Bn254Error::Size(3)));
        let none = G1Points(Vec::new()).into_lagrange();
        assert_eq!(none.err(), Some(Bn254Error::Size(0)));
        Ok(())
    }

    #[test]
    fn roots_are_of_the_order_that_they_are_said_to_be() {
        assert_eq!(root_of_unity(0), Fr::ONE);
        assert_eq!(root_of_unity(1), -Fr::ONE);
        assert_eq!(root_of_unity(MAX_K).pow([1 << (MAX_K - 1)]), -Fr::ONE);
        let expected = Fr::from(7).pow((-Fr::ONE / Fr::from(4)).into_bigint());
        assert_eq!(root_of_unity(2), expected);
    }
}
