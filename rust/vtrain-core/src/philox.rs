//! Philox4x32-10: twin of `vtrain/spec/philox.py`.
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

const ROUNDS: usize = 10;
const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for one counter and key.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..ROUNDS {
        let product0 = MULTIPLIERS[0] * u64::from(c0);
        let product1 = MULTIPLIERS[1] * u64::from(c2);
        (c0, c1, c2, c3) = (
            (product1 >> 32) as u32 ^ c1 ^ k0,
            product1 as u32,
            (product0 >> 32) as u32 ^ c3 ^ k1,
            product0 as u32,
        );
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    [c0, c1, c2, c3]
}

/// [`philox`] of many counters under one key, word by word: loops over lanes become vectors.
#[inline(always)]
pub(crate) fn philox_lanes<const N: usize>(
    counters: [[u32; N]; 4],
    key: [u32; 2],
) -> [[u32; N]; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counters, key);
    for _ in 0..ROUNDS {
        for lane in 0..N {
            let product0 = MULTIPLIERS[0] * u64::from(c0[lane]);
            let product1 = MULTIPLIERS[1] * u64::from(c2[lane]);
            c0[lane] = (product1 >> 32) as u32 ^ c1[lane] ^ k0;
            c1[lane] = product1 as u32;
            c2[lane] = (product0 >> 32) as u32 ^ c3[lane] ^ k1;
            c3[lane] = product0 as u32;
        }
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    [c0, c1, c2, c3]
}
