//! Freivalds' check of exact products: twin of `vtrain/spec/algebraic.py`.
//!
//! C = A B is checked as C r = A (B r) modulo 2^61 - 1, with a random vector r: a row of C that differs
//! from that of A B, modulo the prime, passes with a probability of 1 / (2^61 - 1). Two numbers in
//! the proven range of an accumulator, which is within 2^60 of zero, do not differ by a multiple of the
//! prime: so each element of C is held to its range as well.

mod field;

use rayon::prelude::*;

use crate::ops::linear::Product;
use crate::ops::simd::vectorised;
pub use field::PRIME;
use field::{Halves, Thirds};

/// Elements of a matrix below which one thread reads it.
const GRAIN: usize = 1 << 15;
/// Columns whose sums stay in the first cache while rows are added to them.
const STRIP: usize = 1 << 10;
/// Rows that are read side by side.
const ROWS: usize = 4;

/// Why no product could be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AlgebraicError {
    /// The operands or the result are not of the extents named.
    #[error("the matrices do not have the extents of the product")]
    Extents,
    /// A vector is too short, or has an element that is no residue.
    #[error("the random vector needs {0} residues modulo 2^61 - 1")]
    Vector(usize),
}

/// A stack of products whose result is claimed: every element of it lies in `range`.
#[derive(Clone, Copy, Debug)]
pub struct Claimed<'a> {
    /// Extents of each product.
    pub product: Product,
    /// How many there are.
    pub stack: usize,
    /// The left operands, one after the other.
    pub a: &'a [i16],
    /// The right operands.
    pub b: &'a [i16],
    /// What the products are said to be.
    pub c: &'a [i64],
    /// The least and the greatest element that is proven to be possible.
    pub range: (i64, i64),
}

/// The first wrong element, by its index in the result, that the random `vectors` show; each is used
/// for a check of its own. An element that is right is never named.
pub fn find_wrong(
    claimed: &Claimed<'_>,
    vectors: &[&[u64]],
) -> Result<Option<usize>, AlgebraicError> {
    let Product { m, k, n, .. } = claimed.product;
    let fits = |len: usize, rows: usize, columns: usize| {
        let size = rows.checked_mul(columns);
        size.and_then(|size| size.checked_mul(claimed.stack)) == Some(len)
    };
    if !(fits(claimed.a.len(), m, k) && fits(claimed.b.len(), k, n) && fits(claimed.c.len(), m, n))
    {
        return Err(AlgebraicError::Extents);
    }
    for vector in vectors {
        if vector.len() < n || vector[..n].iter().any(|&x| x >= PRIME) {
            return Err(AlgebraicError::Vector(n));
        }
    }
    let vectors: Vec<_> = vectors.iter().map(|vector| &vector[..n]).collect();
    let right: Vec<_> = vectors
        .iter()
        .map(|r| (Halves::new(r), Thirds::new(r)))
        .collect();
    let small = m * k.max(n) < GRAIN;
    let one = |i: usize| {
        let part = Claimed {
            stack: 1,
            a: &claimed.a[i * m * k..][..m * k],
            b: &claimed.b[i * k * n..][..k * n],
            c: &claimed.c[i * m * n..][..m * n],
            ..*claimed
        };
        let row = right
            .iter()
            .filter_map(|(halves, thirds)| part.find_row(halves, thirds))
            .min()?;
        Some(i * m * n + row * n + part.find_column(row))
    };
    let indices = (0..claimed.stack).into_par_iter();
    let indices = indices.with_min_len(if small {
        GRAIN / (m * k.max(n)).max(1)
    } else {
        1
    });
    Ok(indices.filter_map(one).min())
}

impl Claimed<'_> {
    /// The first row that does not hold for one vector, of a stack of one.
    fn find_row(&self, right: &Halves, wide: &Thirds) -> Option<usize> {
        let Product {
            m,
            k,
            n,
            transpose_a,
            transpose_b,
        } = self.product;
        if m == 0 || n == 0 {
            return None;
        }
        // B r, then A (B r).
        let by_b = if transpose_b {
            sum_rows(self.b, k, right)
        } else {
            multiply(self.b, n, right)
        };
        let by_b = Halves::new(&by_b);
        let expected = if transpose_a {
            sum_rows(self.a, m, &by_b)
        } else {
            multiply(self.a, k, &by_b)
        };
        let per = rows_at_once(m, n);
        let pieces = expected
            .par_chunks(per)
            .zip(self.c.par_chunks(per * n))
            .enumerate();
        pieces
            .filter_map(|(i, (expected, c))| Some(i * per + self.find_in(expected, c, wide)?))
            .min()
    }

    /// The first row of `c` that is outside its range or has another product than expected.
    fn find_in(&self, expected: &[u64], c: &[i64], wide: &Thirds) -> Option<usize> {
        let mut rows = expected.iter().zip(c.chunks_exact(self.product.n));
        rows.position(|(&expected, row)| {
            let (found, inside) = multiply_wide(row, wide, self.range);
            !inside || found != expected
        })
    }

    /// The first wrong element of a row that is known to be wrong, of a stack of one.
    fn find_column(&self, row: usize) -> usize {
        let Product {
            m,
            k,
            n,
            transpose_a,
            transpose_b,
        } = self.product;
        let left = |p: usize| {
            i64::from(
                self.a[if transpose_a {
                    p * m + row
                } else {
                    row * k + p
                }],
            )
        };
        let right =
            |p: usize, j: usize| i64::from(self.b[if transpose_b { j * k + p } else { p * n + j }]);
        let exact = |j: usize| {
            (0..k)
                .map(|p| left(p) * right(p, j))
                .fold(0i64, i64::wrapping_add)
        };
        (0..n)
            .find(|&j| exact(j) != self.c[row * n + j])
            .unwrap_or(0)
    }
}

/// How many rows one thread takes.
fn rows_at_once(rows: usize, columns: usize) -> usize {
    let pieces = (rows.saturating_mul(columns) / GRAIN).clamp(1, rayon::current_num_threads() * 4);
    rows.div_ceil(pieces).next_multiple_of(ROWS)
}

/// The products of the rows of a matrix, each of `columns` elements, and a vector.
fn multiply(matrix: &[i16], columns: usize, by: &Halves) -> Vec<u64> {
    if columns == 0 {
        return Vec::new();
    }
    let rows = matrix.len() / columns;
    let mut out = vec![0; rows];
    let per = rows_at_once(rows, columns);
    out.par_chunks_mut(per)
        .zip(matrix.par_chunks(per * columns))
        .for_each(|(out, matrix)| {
            for (out, rows) in out.chunks_mut(ROWS).zip(matrix.chunks(ROWS * columns)) {
                if let [a, b, c, d] = out {
                    let (first, rest) = rows.split_at(columns);
                    let (second, rest) = rest.split_at(columns);
                    let (third, fourth) = rest.split_at(columns);
                    [*a, *b, *c, *d] = dots([first, second, third, fourth], by);
                } else {
                    for (out, row) in out.iter_mut().zip(rows.chunks(columns)) {
                        [*out] = dots([row], by);
                    }
                }
            }
        });
    out
}

/// The product of each of the rows and a vector.
fn dots<const N: usize>(rows: [&[i16]; N], by: &Halves) -> [u64; N] {
    let mut sums = [(0i128, 0i128); N];
    let columns = by.low.len();
    for start in (0..columns).step_by(Halves::TERMS) {
        let end = (start + Halves::TERMS).min(columns);
        let (low, high) = (&by.low[start..end], &by.high[start..end]);
        let rows = rows.map(|row| &row[start..end]);
        let parts = vectorised(
            #[inline(always)]
            move || {
                let mut sums = [(0i64, 0i64); N];
                for i in 0..low.len() {
                    let (low, high) = (i64::from(low[i]), i64::from(high[i]));
                    for (sum, row) in sums.iter_mut().zip(&rows) {
                        let x = i64::from(row[i]);
                        sum.0 += x * low;
                        sum.1 += x * high;
                    }
                }
                sums
            },
        );
        for (sum, part) in sums.iter_mut().zip(parts) {
            sum.0 += i128::from(part.0);
            sum.1 += i128::from(part.1);
        }
    }
    sums.map(|(low, high)| Halves::join(low, high))
}

/// The sum of the rows of a matrix, each of `columns` elements, row i times element i of a vector.
fn sum_rows(matrix: &[i16], columns: usize, by: &Halves) -> Vec<u64> {
    if columns == 0 {
        return Vec::new();
    }
    let mut out = vec![0; columns];
    let pieces = (matrix.len() / GRAIN).clamp(1, rayon::current_num_threads() * 2);
    let strip = columns
        .div_ceil(pieces)
        .next_multiple_of(64)
        .clamp(1, STRIP);
    out.par_chunks_mut(strip).enumerate().for_each(|(i, out)| {
        let mut sums = vec![(0i128, 0i128); out.len()];
        let rows = by.low.len();
        for start in (0..rows).step_by(Halves::TERMS) {
            let end = (start + Halves::TERMS).min(rows);
            let (mut low, mut high) = (vec![0i64; out.len()], vec![0i64; out.len()]);
            let row = |at: usize| &matrix[at * columns + i * strip..][..out.len()];
            let mut at = start;
            while at + ROWS <= end {
                let rows = [row(at), row(at + 1), row(at + 2), row(at + 3)];
                let of = |parts: &[i32]| [parts[at], parts[at + 1], parts[at + 2], parts[at + 3]];
                add_rows(rows, of(&by.low), of(&by.high), &mut low, &mut high);
                at += ROWS;
            }
            for at in at..end {
                add_rows([row(at)], [by.low[at]], [by.high[at]], &mut low, &mut high);
            }
            for (sum, (low, high)) in sums.iter_mut().zip(low.into_iter().zip(high)) {
                sum.0 += i128::from(low);
                sum.1 += i128::from(high);
            }
        }
        for (out, (low, high)) in out.iter_mut().zip(sums) {
            *out = Halves::join(low, high);
        }
    });
    out
}

/// Adds rows, each times its factors, to the sums by parts.
fn add_rows<const N: usize>(
    rows: [&[i16]; N],
    by_low: [i32; N],
    by_high: [i32; N],
    low: &mut [i64],
    high: &mut [i64],
) {
    vectorised(
        #[inline(always)]
        move || {
            let columns = low.len();
            let (low, high) = (&mut low[..columns], &mut high[..columns]);
            let rows = rows.map(|row| &row[..columns]);
            for j in 0..columns {
                for i in 0..N {
                    let x = i64::from(rows[i][j]);
                    low[j] += x * i64::from(by_low[i]);
                    high[j] += x * i64::from(by_high[i]);
                }
            }
        },
    );
}

/// The product of a row and a vector, and whether every element lies in the range.
fn multiply_wide(row: &[i64], by: &Thirds, (lo, hi): (i64, i64)) -> (u64, bool) {
    let (mut low, mut high) = ([0i128; 3], [0i128; 3]);
    let mut farthest = 0;
    for start in (0..row.len()).step_by(Thirds::TERMS) {
        let end = (start + Thirds::TERMS).min(row.len());
        let x = &row[start..end];
        let [r0, r1, r2] = [0, 1, 2].map(|i| &by.0[i][start..end]);
        let (sums, far) = vectorised(
            #[inline(always)]
            move || {
                let (mut l0, mut l1, mut l2) = (0u64, 0u64, 0u64);
                let (mut h0, mut h1, mut h2) = (0i64, 0i64, 0i64);
                let mut far = 0u64;
                for i in 0..x.len() {
                    let below = x[i] as u64 & 0xffff_ffff;
                    let above = x[i] >> 32;
                    let (r0, r1, r2) = (r0[i], r1[i], r2[i]);
                    l0 += below * u64::from(r0);
                    l1 += below * u64::from(r1);
                    l2 += below * u64::from(r2);
                    h0 += above * i64::from(r0 as i32);
                    h1 += above * i64::from(r1 as i32);
                    h2 += above * i64::from(r2 as i32);
                    far = far.max(x[i].wrapping_sub(lo) as u64);
                }
                (([l0, l1, l2], [h0, h1, h2]), far)
            },
        );
        for i in 0..3 {
            low[i] += i128::from(sums.0[i]);
            high[i] += i128::from(sums.1[i]);
        }
        farthest = farthest.max(far);
    }
    (
        Thirds::join(low, high),
        farthest <= hi.wrapping_sub(lo) as u64,
    )
}
