//! AVX-512 with VNNI: `vpdpwssd` for W (32 products), `vpdpbusd` for H (64 products).

use std::arch::x86_64::*;

use super::Epilogue;
use super::pack::{Highs, Lanes, Layout, Line, Side, pack_group};
use super::tile::{self, Isa, TileJob, TileSums};

pub(super) struct Avx512;

// SAFETY: every function needs AVX-512 F, BW and VNNI, and nothing else.
unsafe impl Isa for Avx512 {
    type Vector = __m512i;
    const WIDTH: usize = 16;
    const ROWS: usize = 14;
    const GROUPS: usize = 2;
    const HIGHS: Highs = Highs::Bytes;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u32, x: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), x) };
    }

    #[inline(always)]
    unsafe fn splat(from: *const u32) -> __m512i {
        unsafe { _mm512_set1_epi32(*from as i32) }
    }

    #[inline(always)]
    unsafe fn add(x: __m512i, y: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(x, y) }
    }

    #[inline(always)]
    unsafe fn negate_shift16(x: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<16>(x)) }
    }

    #[inline(always)]
    unsafe fn dot_words(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_dpwssd_epi32(acc, a, b) }
    }

    #[inline(always)]
    unsafe fn dot_highs(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, a, b) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn pack(src: &Lanes<'_>, side: Side, layout: &Layout, group: &mut [Line]) {
        pack_group(src, side, Self::HIGHS, layout, group);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn tile(job: &TileJob<'_>, out: &mut TileSums, add: bool) {
        type Tile = unsafe fn(&TileJob<'_>, &mut TileSums, bool);
        macro_rules! table {
            ($n:literal: $($r:literal)*) => { [$(tile::<$r, $n> as Tile),*] };
        }
        const ONE: [Tile; 14] = table!(1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        const TWO: [Tile; 14] = table!(2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        let narrow = job.b.len() == job.layout.lines;
        let table = if narrow { &ONE } else { &TWO };
        unsafe { table[job.rows - 1](job, out, add) };
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn finish<E: Epilogue>(
        epilogue: &E,
        sums: &TileSums,
        row0: usize,
        rows: usize,
        col0: usize,
        cols: usize,
    ) {
        unsafe { tile::finish(epilogue, sums, row0, rows, col0, cols) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn tile<const R: usize, const N: usize>(
    job: &TileJob<'_>,
    out: &mut TileSums,
    add: bool,
) {
    unsafe { tile::tile::<Avx512, R, N>(job, out, add) };
}
