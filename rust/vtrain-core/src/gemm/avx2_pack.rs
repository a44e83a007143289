//! Packing with AVX2: what [`super::pack::pack_block`] does, 16 terms of 16 lanes at a time.

// By index, so that they are unrolled and what they work on stays in registers.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::pack::{Bound, LANES, Lanes, Layout, Line, norm_bound, set_bound};
use super::{BLOCK, NARROW_MAX};

/// Terms that `fetch` takes at a time: a full vector of a lane.
const FETCH: usize = 16;
/// Terms between what is fetched and what is asked for.
const AHEAD: usize = 4 * FETCH;

/// From element `16 - n` on, a mask of the first `n` lanes.
const FIRST: [i16; 2 * LANES] = {
    let mut mask = [0; 2 * LANES];
    let mut i = 0;
    while i < LANES {
        mask[i] = -1;
        i += 1;
    }
    mask
};

/// A pair of terms of each lane, the first in the low half of its word: lanes 0 to 7, and 8 to 15.
type Pair = [__m256i; 2];

/// Packs a block of a group's terms, with high limbs as words; both sides alike.
///
/// # Safety
/// The machine has the instructions.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn pack_block(
    src: &Lanes<'_>,
    layout: &Layout,
    block: usize,
    group: &mut [Line],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        if layout.lanes == LANES {
            pack_halves::<2>(src, layout, block, group);
        } else {
            pack_halves::<1>(src, layout, block, group);
        }
    }
}

/// [`pack_block`] of a group of so many times 8 lanes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pack_halves<const HALVES: usize>(
    src: &Lanes<'_>,
    layout: &Layout,
    block: usize,
    group: &mut [Line],
) {
    let round = _mm256_set1_epi16(128);
    let start = block * BLOCK;
    let end = layout.k.min(start + BLOCK);
    let mut squares = [_mm256_setzero_si256(); 2];
    let mut largest = _mm256_setzero_si256();
    let (words, highs) = group.split_at_mut(layout.highs);
    for first in (start..end).step_by(FETCH) {
        let last = end.min(first + FETCH);
        // SAFETY: passed on from the caller.
        let pairs = unsafe { fetch(src, first) };
        for i in 0..(last - first) / 2 {
            for half in 0..HALVES {
                let pair = pairs[i][half];
                largest = _mm256_max_epu16(largest, _mm256_abs_epi16(pair));
                let square = _mm256_srli_epi32::<8>(_mm256_madd_epi16(pair, pair));
                squares[half] = _mm256_add_epi32(squares[half], square);
                let high = _mm256_srai_epi16::<8>(_mm256_adds_epi16(pair, round));
                let at = (first / 2 + i) * HALVES + half;
                store(&mut words[at / 2], at % 2, pair);
                store(&mut highs[at / 2], at % 2, high);
            }
        }
    }
    let mut found = [Line::ZERO; 2];
    store(&mut found[0], 0, squares[0]);
    store(&mut found[0], 1, squares[1]);
    store(&mut found[1], 0, largest);
    let squares = found[0].0.into_iter().fold(0, u32::max);
    let largest = found[1]
        .0
        .into_iter()
        .fold(0, |x, pair| x.max(pair & 0xffff).max(pair >> 16));
    let bound = Bound {
        norm: norm_bound(squares),
        wide: u32::from(largest > u32::from(NARROW_MAX)),
    };
    set_bound(layout, group, block, bound);
}

/// `x` as the words `8 * half ..` of a line.
#[inline]
#[target_feature(enable = "avx2")]
fn store(line: &mut Line, half: usize, x: __m256i) {
    let to = &mut line.0[half * LANES / 2..][..LANES / 2];
    // SAFETY: that is as long as the vector.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), x) };
}

/// Terms `first .. first + 16` of 16 lanes, as 8 pairs; zero outside.
///
/// # Safety
/// The machine has the instructions.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn fetch(src: &Lanes<'_>, first: usize) -> [Pair; FETCH / 2] {
    let zero = _mm256_setzero_si256();
    let mut pairs = [[zero; 2]; FETCH / 2];
    let terms = src.k.saturating_sub(first).min(FETCH);
    if terms == 0 {
        return pairs;
    }
    let from = &src.data[first * src.k_stride..];
    if src.k_stride == 1 && terms == FETCH {
        assert!((src.lanes - 1) * src.lane_stride + FETCH <= from.len());
        for half in 0..src.lanes.div_ceil(LANES / 2) {
            let mut rows = [zero; LANES / 2];
            let lanes = (src.lanes - half * LANES / 2).min(LANES / 2);
            for lane in 0..lanes {
                // SAFETY: the lane's 16 values lie inside `from`.
                rows[lane] = unsafe {
                    let at = from
                        .as_ptr()
                        .add((half * LANES / 2 + lane) * src.lane_stride);
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                    _mm256_loadu_si256(at.cast())
                };
            }
            let columns = transpose(rows);
            for i in 0..FETCH / 2 {
                pairs[i][half] = columns[i];
            }
        }
        return pairs;
    }
    if src.lane_stride == 1 {
        assert!((terms - 1) * src.k_stride + src.lanes <= from.len());
        // SAFETY: as long as the vector from any of its first 17 on.
        let mask = unsafe { _mm256_loadu_si256(FIRST.as_ptr().add(LANES - src.lanes).cast()) };
        let load = |k: usize| {
            let from = &from[k * src.k_stride..];
            let term = match from.first_chunk::<LANES>() {
                Some(term) => *term,
                None => {
                    let mut term = [0; LANES];
                    term[..src.lanes].copy_from_slice(&from[..src.lanes]);
                    term
                }
            };
            // SAFETY: a term is as long as the vector; a prefetch may be of any address.
            unsafe {
                let ahead = from.as_ptr().wrapping_add(AHEAD * src.k_stride);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                _mm256_and_si256(_mm256_loadu_si256(term.as_ptr().cast()), mask)
            }
        };
        for i in 0..terms.div_ceil(2) {
            let x = load(2 * i);
            let y = if 2 * i + 1 < terms {
                load(2 * i + 1)
            } else {
                zero
            };
            let (low, high) = (_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y));
            pairs[i] = [
                _mm256_permute2x128_si256::<0x20>(low, high),
                _mm256_permute2x128_si256::<0x31>(low, high),
            ];
        }
        return pairs;
    }
    for (i, pair) in pairs.iter_mut().enumerate() {
        let line = src.pair(first + 2 * i);
        for half in 0..2 {
            let from = &line.0[half * LANES / 2..][..LANES / 2];
            // SAFETY: that is as long as the vector.
            pair[half] = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
        }
    }
    pairs
}

/// The transpose of 8 x 8 words.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
    let mut a = r;
    for i in 0..4 {
        a[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    // b[4 i + c] holds, in its 128-bit half h, rows 4 i .. 4 i + 4 of column 4 h + c.
    let mut b = a;
    for i in 0..2 {
        b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    let mut out = b;
    for c in 0..4 {
        out[c] = _mm256_permute2x128_si256::<0x20>(b[c], b[4 + c]);
        out[4 + c] = _mm256_permute2x128_si256::<0x31>(b[c], b[4 + c]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::Path;
    use super::super::pack::{self, Highs, Side};
    use super::*;

    #[test]
    fn packs_as_the_portable_code_does() {
        if !Path::Avx2.is_available() {
            return;
        }
        for lanes in [LANES / 2, LANES] {
            pack::tests::compare(Highs::Words, lanes, |src, _: Side, layout, block, group| {
                // SAFETY: the path is available.
                unsafe { pack_block(src, layout, block, group) };
            });
        }
    }
}
