//! NEON: both sums by widening products, 8 of them in two instructions; high limbs as int16.
//!
//! The tests of x86-64 machines run it too, on `neon_emulated`, and `make lint` compiles it where the
//! toolchain has the target. Real NEON code runs on them by hand, slowly, in qemu:
//!
//! ```sh
//! CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
//! CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu' \
//! cargo test --package vtrain-core --target aarch64-unknown-linux-gnu --features blake3/pure
//! ```

// Nearly every function is one instruction: what it needs is what `Isa` needs.
#![allow(unsafe_op_in_unsafe_fn)]
// Asking for a line ahead is not emulated.
#![cfg_attr(not(target_arch = "aarch64"), allow(unused_variables))]

#[cfg(target_arch = "aarch64")]
use std::arch::{aarch64::*, asm};

#[cfg(not(target_arch = "aarch64"))]
use super::neon_emulated::*;
use super::pack::{Highs, Lanes, Layout, Line, Side, pack_block};
use super::tile::{Isa, one_group_entries};

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
    unsafe fn store(to: *mut i32, x: int32x4_t) {
        vst1q_s32(to, x);
    }

    #[inline(always)]
    unsafe fn splat(from: *const u32) -> int32x4_t {
        vld1q_dup_s32(from.cast())
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u32) {
        #[cfg(target_arch = "aarch64")]
        asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }

    #[inline(always)]
    unsafe fn prefetch_far(at: *const Line) {
        #[cfg(target_arch = "aarch64")]
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

    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    unsafe fn pack(src: &Lanes<'_>, side: Side, layout: &Layout, block: usize, group: &mut [Line]) {
        pack_block(src, side, Self::HIGHS, layout, block, group);
    }

    one_group_entries!(#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]);
}

/// Stores `high * 2^16 + low`, 2 int64, on top of what is there if `add`.
#[inline]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn put(to: *mut i64, high: int32x2_t, low: int32x2_t, add: bool) {
    let sum = vaddq_s64(vshll_n_s32::<16>(high), vmovl_s32(low));
    let before = vandq_s64(vld1q_s64(to), vdupq_n_s64(-i64::from(add)));
    vst1q_s64(to, vaddq_s64(before, sum));
}
