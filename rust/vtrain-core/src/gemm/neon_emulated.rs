//! The NEON instructions that `neon` uses, in plain Rust after the Arm reference: the tests of other
//! machines run that file on them, and compare products with the definition.

use super::neon::Neon;

macro_rules! vectors {
    ($($(#[$doc:meta])* $name:ident = [$t:ty; $n:literal];)*) => {
        $(#[allow(non_camel_case_types)] pub(super) type $name = [$t; $n];)*
    };
}

vectors! {
    int16x4_t = [i16; 4];
    int16x8_t = [i16; 8];
    int32x2_t = [i32; 2];
    int32x4_t = [i32; 4];
    int64x2_t = [i64; 2];
}

pub(super) fn vdupq_n_s32(x: i32) -> int32x4_t {
    [x; 4]
}

pub(super) fn vdupq_n_s64(x: i64) -> int64x2_t {
    [x; 2]
}

pub(super) unsafe fn vld1q_s32(from: *const i32) -> int32x4_t {
    // SAFETY: 4 readable int32, by the caller's contract.
    unsafe { from.cast::<int32x4_t>().read_unaligned() }
}

pub(super) unsafe fn vst1q_s32(to: *mut i32, x: int32x4_t) {
    // SAFETY: 4 writable int32, by the caller's contract.
    unsafe { to.cast::<int32x4_t>().write_unaligned(x) }
}

pub(super) unsafe fn vld1q_dup_s32(from: *const i32) -> int32x4_t {
    // SAFETY: a readable int32, by the caller's contract.
    [unsafe { from.read_unaligned() }; 4]
}

pub(super) unsafe fn vld1q_s64(from: *const i64) -> int64x2_t {
    // SAFETY: 2 readable int64, by the caller's contract.
    unsafe { from.cast::<int64x2_t>().read_unaligned() }
}

pub(super) unsafe fn vst1q_s64(to: *mut i64, x: int64x2_t) {
    // SAFETY: 2 writable int64, by the caller's contract.
    unsafe { to.cast::<int64x2_t>().write_unaligned(x) }
}

pub(super) fn vaddq_s32(x: int32x4_t, y: int32x4_t) -> int32x4_t {
    std::array::from_fn(|i| x[i].wrapping_add(y[i]))
}

pub(super) fn vaddq_s64(x: int64x2_t, y: int64x2_t) -> int64x2_t {
    std::array::from_fn(|i| x[i].wrapping_add(y[i]))
}

pub(super) fn vandq_s64(x: int64x2_t, y: int64x2_t) -> int64x2_t {
    std::array::from_fn(|i| x[i] & y[i])
}

pub(super) fn vnegq_s32(x: int32x4_t) -> int32x4_t {
    x.map(i32::wrapping_neg)
}

pub(super) fn vshlq_n_s32<const N: i32>(x: int32x4_t) -> int32x4_t {
    x.map(|x| x << N)
}

/// Lane 0 is the low half of the register, byte 0 the low byte of a lane.
pub(super) fn vreinterpretq_s16_s32(x: int32x4_t) -> int16x8_t {
    std::array::from_fn(|i| (x[i / 2] >> (16 * (i % 2))) as i16)
}

pub(super) fn vget_low_s16(x: int16x8_t) -> int16x4_t {
    [x[0], x[1], x[2], x[3]]
}

pub(super) fn vget_low_s32(x: int32x4_t) -> int32x2_t {
    [x[0], x[1]]
}

pub(super) fn vget_high_s32(x: int32x4_t) -> int32x2_t {
    [x[2], x[3]]
}

/// SMULL: products of the low halves.
pub(super) fn vmull_s16(x: int16x4_t, y: int16x4_t) -> int32x4_t {
    std::array::from_fn(|i| i32::from(x[i]) * i32::from(y[i]))
}

/// SMULL2: products of the high halves.
pub(super) fn vmull_high_s16(x: int16x8_t, y: int16x8_t) -> int32x4_t {
    std::array::from_fn(|i| i32::from(x[i + 4]) * i32::from(y[i + 4]))
}

/// ADDP: sums of neighbours, those of `x` first.
pub(super) fn vpaddq_s32(x: int32x4_t, y: int32x4_t) -> int32x4_t {
    let all = [x, y].concat();
    std::array::from_fn(|i| all[2 * i].wrapping_add(all[2 * i + 1]))
}

/// SSHLL: widened, then shifted.
pub(super) fn vshll_n_s32<const N: i32>(x: int32x2_t) -> int64x2_t {
    x.map(|x| i64::from(x) << N)
}

/// SXTL.
pub(super) fn vmovl_s32(x: int32x2_t) -> int64x2_t {
    x.map(i64::from)
}

#[test]
fn products_are_those_of_the_definition() {
    // SAFETY: emulated instructions run on every machine.
    unsafe { super::conformance::check::<Neon>() };
}
