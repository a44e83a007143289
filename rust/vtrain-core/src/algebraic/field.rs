//! Integers modulo 2^61 - 1, and sums of products that are reduced once.

/// The prime 2^61 - 1.
pub const PRIME: u64 = (1 << 61) - 1;

/// The residue of any integer.
pub fn reduce(x: i128) -> u64 {
    let prime = i128::from(PRIME);
    // 2^61 is 1: the upper bits are added to the lower ones, until there are none but of 2^61 - 1.
    let fold = |x: i128| (x & prime) + (x >> 61);
    let folded = fold(fold(fold(x)));
    if folded == prime { 0 } else { folded as u64 }
}

/// The residue of a product of two residues.
pub fn mul(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    let folded = (product & u128::from(PRIME)) as u64 + (product >> 61) as u64;
    if folded >= PRIME {
        folded - PRIME
    } else {
        folded
    }
}

/// The residue of a sum of two residues.
pub fn add(a: u64, b: u64) -> u64 {
    let sum = a + b;
    if sum >= PRIME { sum - PRIME } else { sum }
}

/// Bits of the first and of the second part of a factor of int16 elements: 31 and 30.
const HALF: u32 = 31;
/// Bits of each part of a factor of int64 elements, the last of which is shorter.
const THIRD: u32 = 21;

/// A vector of residues in two parts each: the products of a part and an int16 element, up to
/// [`Halves::TERMS`] of them, sum up in int64.
#[derive(Clone, Debug)]
pub struct Halves {
    pub low: Vec<i32>,
    pub high: Vec<i32>,
}

impl Halves {
    /// 2^31 * 2^15 * 2^16 = 2^62.
    pub const TERMS: usize = 1 << 16;

    pub fn new(residues: &[u64]) -> Self {
        let part = |x: u64| (x & ((1 << HALF) - 1)) as i32;
        Self {
            low: residues.iter().map(|&x| part(x)).collect(),
            high: residues.iter().map(|&x| part(x >> HALF)).collect(),
        }
    }

    /// The sum of products whose sums by parts are these.
    pub fn join(low: i128, high: i128) -> u64 {
        reduce(low + (high << HALF))
    }
}

/// A vector of residues in three parts each: the products of a part and half of an int64 element, up
/// to [`Thirds::TERMS`] of them, sum up in 64 bits.
#[derive(Clone, Debug)]
pub struct Thirds(pub [Vec<u32>; 3]);

impl Thirds {
    /// 2^21 * 2^32 * 2^10 = 2^63.
    pub const TERMS: usize = 1 << 10;

    pub fn new(residues: &[u64]) -> Self {
        let part = |i: u32| {
            let cut = |&x: &u64| (x >> (i * THIRD) & ((1 << THIRD) - 1)) as u32;
            residues.iter().map(cut).collect()
        };
        Self([part(0), part(1), part(2)])
    }

    /// The sum of products of which those with the lower and those with the upper halves of the
    /// elements have these sums, by parts.
    pub fn join(low: [i128; 3], high: [i128; 3]) -> u64 {
        (0..3).fold(0, |sum, i| {
            let whole = reduce(low[i] + (high[i] << 32));
            add(sum, mul(whole, 1 << (i as u32 * THIRD)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residues_are_those_of_integers() {
        let edges = [
            0,
            1,
            2,
            PRIME - 1,
            PRIME - 2,
            1 << 60,
            (1 << 60) - 1,
            1 << 31,
        ];
        for a in edges {
            for b in edges {
                let exact = |x: u128| (x % u128::from(PRIME)) as u64;
                assert_eq!(mul(a, b), exact(u128::from(a) * u128::from(b)));
                assert_eq!(add(a, b), exact(u128::from(a) + u128::from(b)));
            }
        }
        assert_eq!(reduce(-1), PRIME - 1);
        assert_eq!(reduce(-i128::from(PRIME)), 0);
        let prime = i128::from(PRIME);
        for x in [
            i128::MIN,
            i128::MAX,
            prime,
            prime << 61,
            1 << 61,
            -(1 << 61),
            1 << 122,
        ] {
            for x in [x, x.saturating_sub(1), x.saturating_add(1)] {
                assert_eq!(i128::from(reduce(x)), x.rem_euclid(prime), "{x}");
            }
        }
    }

    #[test]
    fn parts_join_to_the_residue() {
        for x in [
            0,
            1,
            PRIME - 1,
            0x0123_4567_89ab_cdef,
            (1 << 31) - 1,
            1 << 42,
        ] {
            let halves = Halves::new(&[x]);
            let (low, high) = (halves.low[0].into(), halves.high[0].into());
            assert_eq!(Halves::join(low, high), x % PRIME);
            let Thirds(parts) = Thirds::new(&[x]);
            let sums = [0, 1, 2].map(|i| i128::from(parts[i][0]));
            assert_eq!(Thirds::join(sums, [0; 3]), x % PRIME);
            assert_eq!(Thirds::join([0; 3], sums), mul(x % PRIME, 1 << 32));
        }
    }
}
