//! NEON: both sums by widening products, 8 of them in two instructions; high limbs as int16.

// Nearly every function is one instruction: what it needs is what `Isa` needs.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::Epilogue;
use super::pack::{Highs, Lanes, Layout, Line, Side, pack_block};
use super::tile::{self, Isa, TileJob, TileSums};

pub(super) struct Neon;

// SAFETY: every function needs NEON and nothing else.
unsafe impl Isa for Neon {
    type Vector = int32x4_t;
    const WIDTH: usize = 4;
    // 20 sums, 4 vectors of B and the products on their way fill the 32 registers.
    const ROWS: usize = 5;
    const GROUPS: usize = 1;
    const HIGHS: Highs = Highs::Words;

    #[inline(always)]
    unsafe fn zero() -> int32x4_t {
        vdupq_n_s32(0)
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> int32x4_t {
        vld1q_s32(from.cast())
    }

    #[inline(always)]
    unsafe fn splat(from: *const u32) -> int32x4_t {
        vld1q_dup_s32(from.cast())
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u32) {
        asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }

    #[inline(always)]
    unsafe fn prefetch_far(at: *const Line) {
        asm!("prfm pldl2keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }

    #[inline(always)]
    unsafe fn add(x: int32x4_t, y: int32x4_t) -> int32x4_t {
        vaddq_s32(x, y)
    }

    #[inline(always)]
    unsafe fn negate_shift16(x: int32x4_t) -> int32x4_t {
        vnegq_s32(vshlq_n_s32::<16>(x))
    }

    #[inline(always)]
    unsafe fn dot_words(acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
        let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
        vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(a, b)))
    }

    #[inline(always)]
    unsafe fn dot_highs(acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        Self::dot_words(acc, a, b)
    }

    #[inline(always)]
    unsafe fn widen(to: *mut i64, high: int32x4_t, low: int32x4_t, add: bool) {
        put(to, vget_low_s32(high), vget_low_s32(low), add);
        put(to.add(2), vget_high_s32(high), vget_high_s32(low), add);
    }

    #[target_feature(enable = "neon")]
    unsafe fn pack(src: &Lanes<'_>, side: Side, layout: &Layout, block: usize, group: &mut [Line]) {
        pack_block(src, side, Self::HIGHS, layout, block, group);
    }

    #[target_feature(enable = "neon")]
    unsafe fn tile(job: &TileJob<'_>, out: &mut TileSums, add: bool) {
        match job.rows {
            1 => rows::<1>(job, out, add),
            2 => rows::<2>(job, out, add),
            3 => rows::<3>(job, out, add),
            4 => rows::<4>(job, out, add),
            _ => rows::<5>(job, out, add),
        }
    }

    #[target_feature(enable = "neon")]
    unsafe fn finish<E: Epilogue>(
        epilogue: &E,
        sums: &TileSums,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        tile::finish(epilogue, sums, rows, cols);
    }
}

#[target_feature(enable = "neon")]
unsafe fn rows<const R: usize>(job: &TileJob<'_>, out: &mut TileSums, add: bool) {
    tile::tile::<Neon, R, 4>(job, out, add);
}

/// Stores `high * 2^16 + low`, 2 int64, on top of what is there if `add`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn put(to: *mut i64, high: int32x2_t, low: int32x2_t, add: bool) {
    let sum = vaddq_s64(vshll_n_s32::<16>(high), vmovl_s32(low));
    let before = vandq_s64(vld1q_s64(to), vdupq_n_s64(-i64::from(add)));
    vst1q_s64(to, vaddq_s64(before, sum));
}
