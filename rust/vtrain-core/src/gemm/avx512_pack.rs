//! Packing with AVX-512: what [`super::pack::pack_block`] does, 32 terms of 16 lanes at a time.

use std::arch::x86_64::*;

use super::pack::{Bound, LANES, Lanes, Layout, Line, Side, norm_bound, set_bound};
use super::{BLOCK, NARROW_MAX, WIDE_BLOCK};

/// Terms that `fetch` takes at a time: a full vector of a lane.
const FETCH: usize = 32;
/// Terms between what is fetched and what is asked for.
const AHEAD: usize = 2 * FETCH;

/// Packs a block of a group's terms.
///
/// # Safety
/// The machine has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn pack_block(
    src: &Lanes<'_>,
    side: Side,
    layout: &Layout,
    block: usize,
    group: &mut [Line],
) {
    // Gathers byte 1 and 3 of each word (the high limbs of a pair) into its low or high half.
    let low_half = _mm512_set1_epi32(0x8080_0301_u32 as i32);
    let low_half = _mm512_add_epi8(low_half, word_starts());
    let high_half = _mm512_set1_epi32(0x0301_8080);
    let high_half = _mm512_add_epi8(high_half, word_starts());
    let flip = _mm512_set1_epi8(if side == Side::A { -128 } else { 0 });
    let (round, ones) = (_mm512_set1_epi16(128), _mm512_set1_epi8(1));
    let end = layout.k.min((block + 1) * BLOCK);
    let mut squares = _mm512_setzero_si512();
    let mut largest = _mm512_setzero_si512();
    for (half, start) in (block * BLOCK..end).step_by(WIDE_BLOCK).enumerate() {
        let end = end.min(start + WIDE_BLOCK);
        let mut sum = _mm512_setzero_si512();
        for first in (start..end).step_by(FETCH) {
            // SAFETY: passed on from the caller.
            let pairs = unsafe { fetch(src, first) };
            let last = end.min(first + FETCH);
            let (words, highs) = group.split_at_mut(layout.highs);
            let words = words[first / 2..last / 2].chunks_exact_mut(2);
            let highs = &mut highs[first / 4..last / 4];
            for ((pair, words), to) in pairs.chunks_exact(2).zip(words).zip(highs) {
                for (&pair, word) in pair.iter().zip(words) {
                    *word = line(pair);
                    largest = _mm512_max_epu16(largest, _mm512_abs_epi16(pair));
                    let square = _mm512_srli_epi32::<8>(_mm512_madd_epi16(pair, pair));
                    squares = _mm512_add_epi32(squares, square);
                }
                // The high byte of the saturated q + 128 is the rounded high limb.
                let high = _mm512_or_si512(
                    _mm512_shuffle_epi8(_mm512_adds_epi16(pair[0], round), low_half),
                    _mm512_shuffle_epi8(_mm512_adds_epi16(pair[1], round), high_half),
                );
                sum = _mm512_dpbusd_epi32(sum, ones, high);
                *to = line(_mm512_xor_si512(high, flip));
            }
        }
        let fix = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<7>(sum));
        group[layout.fixes + 2 * block + half] = line(fix);
    }
    let largest = line(largest)
        .0
        .into_iter()
        .fold(0, |x, pair| x.max(pair & 0xffff).max(pair >> 16));
    let norm = norm_bound(_mm512_reduce_max_epu32(squares));
    let wide = u32::from(largest > u32::from(NARROW_MAX));
    set_bound(layout, group, block, Bound { norm, wide });
}

#[inline]
#[target_feature(enable = "avx512f")]
fn line(x: __m512i) -> Line {
    let mut line = Line::ZERO;
    // SAFETY: a line is as long as the vector.
    unsafe { _mm512_storeu_si512(line.0.as_mut_ptr().cast(), x) };
    line
}

/// In every byte, where its word starts in its 128-bit lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn word_starts() -> __m512i {
    _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c))
}

/// Terms `first .. first + 32` of 16 lanes: 16 vectors of pairs, zero outside.
///
/// # Safety
/// The machine has the instructions; `first < src.k`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn fetch(src: &Lanes<'_>, first: usize) -> [__m512i; LANES] {
    let terms = (src.k - first).min(FETCH);
    let mut pairs = [_mm512_setzero_si512(); LANES];
    let from = &src.data[first * src.k_stride..];
    if src.k_stride == 1 {
        assert!((src.lanes - 1) * src.lane_stride + terms <= from.len());
        let mask = u32::MAX >> (FETCH - terms);
        for (lane, row) in pairs.iter_mut().enumerate().take(src.lanes) {
            // SAFETY: the mask keeps to the lane's `terms` values, inside `from`.
            *row = unsafe {
                let at = from.as_ptr().add(lane * src.lane_stride);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                _mm512_maskz_loadu_epi16(mask, at)
            };
        }
        return transpose(pairs);
    }
    if src.lane_stride == 1 {
        assert!((terms - 1) * src.k_stride + src.lanes <= from.len());
        let mask = u16::MAX >> (LANES - src.lanes);
        // SAFETY: the mask keeps to the term's lanes, inside `from`.
        let load = |k: usize| unsafe {
            let at = from.as_ptr().add(k * src.k_stride);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD * src.k_stride).cast());
            _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at))
        };
        for (i, pair) in pairs.iter_mut().enumerate().take(terms / 2) {
            *pair = _mm512_or_si512(load(2 * i), _mm512_slli_epi32::<16>(load(2 * i + 1)));
        }
        if terms % 2 == 1 {
            pairs[terms / 2] = load(terms - 1);
        }
        return pairs;
    }
    let mut words = [Line::ZERO; LANES];
    for (i, line) in words.iter_mut().enumerate() {
        *line = src.pair(first + 2 * i);
    }
    // SAFETY: a line is as long as a vector.
    words.map(|line| unsafe { _mm512_loadu_si512(line.0.as_ptr().cast()) })
}

/// The transpose of 16 x 16 words.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut a = r;
    for i in (0..16).step_by(2) {
        a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    // b[4 i + c] holds, in its 128-bit lane l, rows 4 i .. 4 i + 4 of column 4 l + c.
    let mut b = a;
    for i in (0..16).step_by(4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    let mut out = b;
    for c in 0..4 {
        let even = |x, y| _mm512_shuffle_i32x4::<0x88>(x, y);
        let odd = |x, y| _mm512_shuffle_i32x4::<0xdd>(x, y);
        let (x, y) = (even(b[c], b[4 + c]), odd(b[c], b[4 + c]));
        let (z, w) = (even(b[8 + c], b[12 + c]), odd(b[8 + c], b[12 + c]));
        out[c] = even(x, z);
        out[4 + c] = even(y, w);
        out[8 + c] = odd(x, z);
        out[12 + c] = odd(y, w);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::Path;
    use super::super::pack::{self, Highs};
    use super::*;

    #[test]
    fn packs_as_the_portable_code_does() {
        if !Path::Avx512Vnni.is_available() {
            return;
        }
        pack::tests::compare(Highs::Bytes, LANES, |src, side, layout, block, group| {
            // SAFETY: the path is available.
            unsafe { pack_block(src, side, layout, block, group) };
        });
    }
}
