//! AVX-512 with VNNI: `vpdpwssd` for W (32 products), `vpdpbusd` for H (64 products).

// Nearly every function is one instruction: what it needs is what `Isa` needs.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::pack::{Highs, Lanes, Layout, Line, Side};
use super::tile::{self, Isa, LooseJob, NarrowSums, TileJob, TileSums, To};
use super::{Epilogue, avx512_pack};

pub(super) struct Avx512;

// SAFETY: every function needs AVX-512 F, BW, VL and VNNI, and nothing else.
unsafe impl Isa for Avx512 {
    type Vector = __m512i;
    const WIDTH: usize = 16;
    const ROWS: usize = 14;
    const GROUPS: usize = 2;
    const HIGHS: Highs = Highs::Bytes;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        _mm512_setzero_si512()
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }

    #[inline(always)]
    unsafe fn store(to: *mut i32, x: __m512i) {
        _mm512_storeu_si512(to.cast(), x);
    }

    #[inline(always)]
    unsafe fn splat(from: *const u32) -> __m512i {
        _mm512_set1_epi32(from.read_unaligned() as i32)
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u32) {
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }

    #[inline(always)]
    unsafe fn prefetch_far(at: *const Line) {
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }

    #[inline(always)]
    unsafe fn add(x: __m512i, y: __m512i) -> __m512i {
        _mm512_add_epi32(x, y)
    }

    #[inline(always)]
    unsafe fn negate_shift16(x: __m512i) -> __m512i {
        _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<16>(x))
    }

    #[inline(always)]
    unsafe fn dot_words(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        _mm512_dpwssd_epi32(acc, a, b)
    }

    #[inline(always)]
    unsafe fn dot_highs(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        _mm512_dpbusd_epi32(acc, a, b)
    }

    #[inline(always)]
    unsafe fn widen(to: *mut i64, high: __m512i, low: __m512i, add: bool) {
        let ((h0, h1), (l0, l1)) = (halves(high), halves(low));
        put(to, h0, l0, add);
        put(to.add(8), h1, l1, add);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn pack(src: &Lanes<'_>, side: Side, layout: &Layout, block: usize, group: &mut [Line]) {
        avx512_pack::pack_block(src, side, layout, block, group);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn tile(job: &TileJob<'_>, out: &mut TileSums, add: bool) {
        type Tile = unsafe fn(&TileJob<'_>, &mut TileSums, bool);
        macro_rules! tiles {
            ($n:literal: $($r:literal)*) => { [$(tile::<$r, $n> as Tile),*] };
        }
        const ONE: [Tile; 14] = tiles!(1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        const TWO: [Tile; 14] = tiles!(2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        let is_narrow = job.b.lines.len() == job.b.layout.lines;
        let tiles = if is_narrow { &ONE } else { &TWO };
        tiles[job.rows - 1](job, out, add);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn finish<E: Epilogue>(
        epilogue: &E,
        sums: &TileSums,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        tile::finish(epilogue, sums, rows, cols);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn loose(job: &LooseJob<'_>, lines: Range<usize>, out: To<'_>) {
        type Tile = unsafe fn(&LooseJob<'_>, Range<usize>, To<'_>);
        macro_rules! tiles {
            ($n:literal: $($r:literal)*) => { [$(loose::<$r, $n> as Tile),*] };
        }
        const ONE: [Tile; 14] = tiles!(1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        const TWO: [Tile; 14] = tiles!(2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        let tiles = if job.cols <= Self::WIDTH { &ONE } else { &TWO };
        tiles[job.rows - 1](job, lines, out);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn finish_narrow<E: Epilogue>(
        epilogue: &E,
        sums: &NarrowSums,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        tile::finish_narrow(epilogue, sums, rows, cols);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn loose<const R: usize, const N: usize>(
    job: &LooseJob<'_>,
    lines: Range<usize>,
    out: To<'_>,
) {
    tile::loose::<Avx512, R, N>(job, lines, out);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile<const R: usize, const N: usize>(job: &TileJob<'_>, out: &mut TileSums, add: bool) {
    tile::tile::<Avx512, R, N>(job, out, add);
}

/// 16 int32 as int64.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(x: __m512i) -> (__m512i, __m512i) {
    let (low, high) = (_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
    (_mm512_cvtepi32_epi64(low), _mm512_cvtepi32_epi64(high))
}

/// Stores `high * 2^16 + low`, 8 int64, on top of what is there if `add`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn put(to: *mut i64, high: __m512i, low: __m512i, add: bool) {
    let sum = _mm512_add_epi64(_mm512_slli_epi64::<16>(high), low);
    let before = _mm512_maskz_loadu_epi64(if add { u8::MAX } else { 0 }, to);
    _mm512_storeu_si512(to.cast(), _mm512_add_epi64(before, sum));
}
