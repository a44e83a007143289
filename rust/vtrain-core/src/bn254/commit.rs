//! KZG commitments to columns of integers, as halo2 makes them of unblinded columns.

use ark_bn254::{Fq, Fr, G1Affine, G1Projective};
use ark_ec::CurveGroup;
use ark_ff::{BigInt, Field, PrimeField};
use rayon::prelude::*;

use super::lagrange::logarithm;
use super::{Bn254Error, G1Points, POINT, encode, items, msm, read_scalars};

/// A type of integers, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integers {
    /// Signed, of that many bytes.
    Signed(usize),
    /// Unsigned, of that many bytes.
    Unsigned(usize),
}

impl Integers {
    /// By the name that number formats have.
    pub fn named(name: &str) -> Result<Self, Bn254Error> {
        match name {
            "i8" => Ok(Integers::Signed(1)),
            "i16" => Ok(Integers::Signed(2)),
            "i32" => Ok(Integers::Signed(4)),
            "i64" => Ok(Integers::Signed(8)),
            "u8" => Ok(Integers::Unsigned(1)),
            _ => Err(Bn254Error::Integers),
        }
    }

    fn read(self, bytes: &[u8]) -> Result<Vec<msm::Signed>, Bn254Error> {
        let (Integers::Signed(size) | Integers::Unsigned(size)) = self;
        let unused = i64::BITS - 8 * size as u32;
        let read = |item: &[u8]| {
            let value = item
                .iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | i64::from(byte));
            match self {
                Integers::Signed(_) => value << unused >> unused,
                Integers::Unsigned(_) => value,
            }
        };
        Ok(items(bytes, size)?.map(|item| read(item).into()).collect())
    }
}

/// What commits to columns of n = 2^k rows, of which the last ones hold 1 instead of values.
pub struct CommitKey {
    /// The Lagrange basis, as far as rows hold values.
    points: Vec<G1Affine>,
    /// The sum of the others.
    filling: G1Affine,
}

impl CommitKey {
    /// By the whole Lagrange basis; `blinding` + 1 rows hold no values.
    pub fn new(lagrange: G1Points, blinding: usize) -> Result<Self, Bn254Error> {
        let mut points = lagrange.0;
        let count = points.len();
        logarithm(count)?;
        let rows = blinding
            .checked_add(1)
            .and_then(|unusable| count.checked_sub(unusable))
            .filter(|&rows| rows > 0)
            .ok_or(Bn254Error::Blinding {
                blinding,
                points: count,
            })?;
        let filling = points[rows..].iter().copied().map(G1Projective::from);
        let filling = filling.sum::<G1Projective>().into_affine();
        points.truncate(rows);
        points.shrink_to_fit();
        Ok(CommitKey { points, filling })
    }

    /// How many values a column holds.
    pub fn rows(&self) -> usize {
        self.points.len()
    }

    /// The commitment to a column of integers, zeros after them.
    pub fn commit(&self, bytes: &[u8], kind: Integers) -> Result<[u8; POINT], Bn254Error> {
        self.sum(&kind.read(bytes)?)
    }

    /// The commitments to columns, several at a time: of each its integers, their type, and the
    /// scalars (32 bytes each, little-endian) that stand in the rows after them.
    pub fn commit_many(
        &self,
        columns: &[(&[u8], Integers, &[u8])],
    ) -> Result<Vec<[u8; POINT]>, Bn254Error> {
        columns
            .par_iter()
            .map(|&(bytes, kind, hiding)| self.commit_hidden(&kind.read(bytes)?, hiding))
            .collect()
    }

    /// The commitment to a column of scalars (32 bytes each, little-endian).
    pub fn commit_scalars(&self, bytes: &[u8]) -> Result<[u8; POINT], Bn254Error> {
        self.sum(&msm::signed_scalars(&read_scalars(bytes)?))
    }

    /// The commitment to the sum of the columns behind `commitments`, each times its coefficient.
    ///
    /// Commitments have 64 bytes, as they are made here, and coefficients those of scalars. The
    /// rows without values hold 1 in the sum too, whatever the coefficients sum up to.
    pub fn combine(
        &self,
        commitments: &[u8],
        coefficients: &[u8],
    ) -> Result<[u8; POINT], Bn254Error> {
        let mut points = items(commitments, POINT)?
            .enumerate()
            .map(|(index, item)| decode(index, item))
            .collect::<Result<Vec<_>, _>>()?;
        let mut scalars = read_scalars(coefficients)?;
        if points.len() != scalars.len() {
            return Err(Bn254Error::Pairs {
                coefficients: scalars.len(),
                commitments: points.len(),
            });
        }
        let total: Fr = scalars.iter().map(|&scalar| Fr::from(scalar)).sum();
        points.push(self.filling);
        scalars.push((Fr::ONE - total).into_bigint());
        Ok(encode(
            msm::sum(&points, &msm::signed_scalars(&scalars)).into_affine(),
        ))
    }

    fn sum(&self, values: &[msm::Signed]) -> Result<[u8; POINT], Bn254Error> {
        self.commit_hidden(values, &[])
    }

    /// Two sums, since scalars of the field's size would make all windows of one as long.
    fn commit_hidden(
        &self,
        values: &[msm::Signed],
        hiding: &[u8],
    ) -> Result<[u8; POINT], Bn254Error> {
        let hiding = msm::signed_scalars(&read_scalars(hiding)?);
        let used = values.len() + hiding.len();
        let points = self.points.get(..used).ok_or(Bn254Error::Rows {
            values: used,
            rows: self.rows(),
        })?;
        let (points, behind) = points.split_at(values.len());
        Ok(encode(
            (msm::sum(points, values) + msm::sum(behind, &hiding) + self.filling).into_affine(),
        ))
    }
}

/// The inverse of [`encode`]; the error counts points from 0.
fn decode(index: usize, bytes: &[u8]) -> Result<G1Affine, Bn254Error> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(G1Affine::identity());
    }
    let coordinate = |bytes: &[u8]| {
        let mut limbs = [0; 4];
        for (limb, word) in limbs.iter_mut().zip(bytes.rchunks_exact(8)) {
            *limb = word.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        }
        Fq::from_bigint(BigInt(limbs)).ok_or(Bn254Error::NotReduced(index))
    };
    let (x, y) = bytes.split_at(POINT / 2);
    let point = G1Affine::new_unchecked(coordinate(x)?, coordinate(y)?);
    if point.is_on_curve() {
        Ok(point)
    } else {
        Err(Bn254Error::NotOnCurve(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ark_ff::BigInteger;

    const ROWS: usize = 10;

    fn key() -> Result<CommitKey, Bn254Error> {
        let powers = (1..17u64).map(|i| (G1Affine::from(generator()) * Fr::from(i * i)).into());
        CommitKey::new(G1Points(powers.collect()).into_lagrange()?, 16 - ROWS - 1)
    }

    fn generator() -> G1Affine {
        ark_ec::AffineRepr::generator()
    }

    fn naive(key: &CommitKey, values: &[Fr]) -> [u8; POINT] {
        let terms = key.points.iter().zip(values).map(|(&p, &v)| p * v);
        encode((terms.sum::<G1Projective>() + key.filling).into_affine())
    }

    fn scalars(values: &[Fr]) -> Vec<u8> {
        let bytes = |value: &Fr| value.into_bigint().to_bytes_le();
        values.iter().flat_map(bytes).collect()
    }

    #[test]
    fn every_type_is_read_as_it_is_written() -> Result<(), Bn254Error> {
        let key = key()?;
        let bytes: Vec<u8> = (0..ROWS as u8 * 8).map(|i| i.wrapping_mul(201)).collect();
        let column = |size: usize| &bytes[..ROWS * size];
        let expect =
            |values: Vec<i64>| naive(&key, &values.into_iter().map(Fr::from).collect::<Vec<_>>());
        let wide = |size: usize| {
            column(size).chunks_exact(size).map(move |item| {
                let mut bytes = [if item[size - 1] < 128 { 0 } else { 255 }; 8];
                bytes[..size].copy_from_slice(item);
                i64::from_le_bytes(bytes)
            })
        };
        for (name, size) in [("i8", 1), ("i16", 2), ("i32", 4), ("i64", 8)] {
            let found = key.commit(column(size), Integers::named(name)?)?;
            assert_eq!(found, expect(wide(size).collect()), "{name}");
        }
        let unsigned = bytes[..ROWS].iter().map(|&byte| i64::from(byte)).collect();
        assert_eq!(
            key.commit(column(1), Integers::named("u8")?)?,
            expect(unsigned)
        );
        let extreme = [i64::MIN, i64::MAX, -1];
        let extremes: Vec<_> = extreme
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let columns = [
            (&extremes[..], Integers::Signed(8), &[][..]),
            (&[][..], Integers::Unsigned(1), &[][..]),
        ];
        assert_eq!(
            key.commit_many(&columns)?,
            [expect(extreme.to_vec()), encode(key.filling)]
        );
        Ok(())
    }

    #[test]
    fn what_hides_stands_in_the_rows_after_the_values() -> Result<(), Bn254Error> {
        let key = key()?;
        let hiding = [-Fr::from(5), Fr::from(1u64 << 60).square(), Fr::from(0)];
        let both: Vec<_> = [7, -1].map(Fr::from).into_iter().chain(hiding).collect();
        let hiding = scalars(&hiding);
        let column = (&[7, 255][..], Integers::Signed(1), &hiding[..]);
        assert_eq!(key.commit_many(&[column])?, [naive(&key, &both)]);
        let long = (&[0; ROWS - 2][..], Integers::Signed(1), &hiding[..]);
        let rows = Bn254Error::Rows {
            values: ROWS + 1,
            rows: ROWS,
        };
        assert_eq!(key.commit_many(&[long]).err(), Some(rows));
        let cut = (&[][..], Integers::Signed(1), &hiding[1..]);
        assert_eq!(key.commit_many(&[cut]).err(), Some(Bn254Error::Length(95)));
        Ok(())
    }

    #[test]
    fn commitments_add_up() -> Result<(), Bn254Error> {
        let key = key()?;
        let (a, b) = ([Fr::from(3), Fr::from(-4)], [Fr::from(5), -Fr::ONE]);
        let (x, y) = (Fr::from(-7), Fr::from(1u64 << 60).square());
        let both = [
            key.commit_scalars(&scalars(&a))?,
            key.commit_scalars(&scalars(&b))?,
        ]
        .concat();
        let sum = [a[0] * x + b[0] * y, a[1] * x + b[1] * y];
        assert_eq!(key.combine(&both, &scalars(&[x, y]))?, naive(&key, &sum));
        assert_eq!(key.combine(&[], &[])?, encode(key.filling));
        assert_eq!(key.combine(&[0; POINT], &scalars(&[Fr::ONE]))?, [0; POINT]);
        Ok(())
    }

    #[test]
    fn each_fault_is_named() -> Result<(), Bn254Error> {
        let key = key()?;
        let long = key.commit(&[0; ROWS + 1], Integers::Signed(1)).err();
        let rows = Bn254Error::Rows {
            values: ROWS + 1,
            rows: ROWS,
        };
        assert_eq!(long, Some(rows));
        assert_eq!(key.commit_scalars(&[0; 32 * (ROWS + 1)]).err(), Some(rows));
        let cut = key.commit(&[0; 3], Integers::Signed(2)).err();
        assert_eq!(cut, Some(Bn254Error::Length(3)));
        assert_eq!(Integers::named("f32").err(), Some(Bn254Error::Integers));
        let refused =
            |bytes: &[u8], count| key.combine(bytes, &scalars(&vec![Fr::ONE; count])).err();
        let good = encode(generator());
        assert_eq!(refused(&good, 1), None);
        assert_eq!(
            refused(&good, 2),
            Some(Bn254Error::Pairs {
                coefficients: 2,
                commitments: 1
            })
        );
        let second = |bytes: [u8; POINT]| refused(&[good, bytes].concat(), 2);
        assert_eq!(second([0xff; POINT]), Some(Bn254Error::NotReduced(1)));
        assert_eq!(second([1; POINT]), Some(Bn254Error::NotOnCurve(1)));
        let points = || G1Points(vec![generator(); 4]);
        for blinding in [3, 4, usize::MAX] {
            let fault = Bn254Error::Blinding {
                blinding,
                points: 4,
            };
            assert_eq!(CommitKey::new(points(), blinding).err(), Some(fault));
        }
        assert_eq!(CommitKey::new(points(), 2)?.rows(), 1);
        let three = CommitKey::new(G1Points(vec![generator(); 3]), 0).err();
        assert_eq!(three, Some(Bn254Error::Size(3)));
        Ok(())
    }
}
