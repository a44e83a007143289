//! The NEON instructions that `neon` uses, in plain Rust after the Arm reference: the tests of other
//! machines run that file on them, and compare products with the definition.

use super::neon::Neon;
use super::{Epilogue, MatRef, Patches, RescaleI16, StoreI64, convolve, driver, scalar};
use crate::window::Window;

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

/// Multiplies on the emulated path.
fn run<E: Epilogue>(a: MatRef<'_>, b: MatRef<'_>, epilogue: &E, scratch: &mut driver::Scratch) {
    // SAFETY: emulated instructions run on every machine.
    unsafe { driver::run::<Neon, E>(a, b, epilogue, scratch) };
}

/// Draws values, the same for the same seed.
fn fill(length: usize, seed: &mut u64, draw: Draw) -> Vec<i16> {
    let mut next = || {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        draw((*seed >> 33) as i64) as i16
    };
    (0..length).map(|_| next()).collect()
}

type Draw = fn(i64) -> i64;

/// What to multiply, made of 31 random bits each.
const DRAWS: [(&str, Draw); 5] = [
    ("small: W alone", |r| r % 200 - 100),
    ("narrow", |r| r % 65_279 - 32_639),
    ("any int16", |r| r % 65_536 - 32_768),
    ("the least and the greatest", |r| {
        [-32_768, 32_767][(r % 2) as usize]
    }),
    ("the least", |_| -32_768),
];

#[test]
fn products_are_those_of_the_definition() {
    let mut scratch = driver::Scratch::default();
    let mut seed = 1;
    for (what, draw) in DRAWS {
        for (m, k, n) in [
            (1, 1, 1),
            (5, 4, 16),
            (6, 7, 17),
            (4, 127, 3),
            (3, 128, 33),
            (11, 129, 15),
            (2, 255, 16),
            (9, 256, 31),
            (16, 257, 18),
            (7, 511, 20),
            (10, 1030, 35),
            (33, 5000, 40),
            (13, 0, 5),
            (0, 3, 4),
            (4, 3, 0),
        ] {
            let (a, b) = (fill(m * k, &mut seed, draw), fill(k * n, &mut seed, draw));
            let plain = |x, rows, cols| MatRef::row_major(x, rows, cols).unwrap();
            for (a, b) in [
                (plain(&a, m, k), plain(&b, k, n)),
                (plain(&a, k, m).t(), plain(&b, n, k).t()),
            ] {
                let (mut found, mut expected) = (vec![7; m * n], vec![0; m * n]);
                run(
                    a,
                    b,
                    &StoreI64::new(&mut found, m, n).unwrap(),
                    &mut scratch,
                );
                scalar::run(a, b, &StoreI64::new(&mut expected, m, n).unwrap());
                assert!(found == expected, "{what}: {m} x {k} x {n}");
            }
        }
    }
}

#[test]
fn rescaled_products_and_counts_are_those_of_the_definition() {
    let (m, k, n) = (23, 300, 37);
    let mut seed = 2;
    let draw = DRAWS[1].1;
    let (a, b) = (fill(m * k, &mut seed, draw), fill(k * n, &mut seed, draw));
    let a = MatRef::row_major(&a, m, k).unwrap();
    let b = MatRef::row_major(&b, k, n).unwrap();
    let rescaled = |by: &dyn Fn(&RescaleI16<'_>)| {
        let mut out = vec![0; m * n];
        let epilogue = RescaleI16::new(&mut out, m, n, 19, None, true).unwrap();
        by(&epilogue);
        let saturated = epilogue.saturated();
        (out, saturated)
    };
    let expected = rescaled(&|epilogue| scalar::run(a, b, epilogue));
    assert!(expected.1 > 0);
    let found = rescaled(&|epilogue| run(a, b, epilogue, &mut driver::Scratch::default()));
    assert_eq!(found, expected);
}

#[test]
fn products_of_patches_are_those_of_the_definition() {
    let mut scratch = driver::Scratch::default();
    let mut seed = 3;
    for (what, draw) in DRAWS {
        for (channels, columns, n) in [(1, 5, 3), (2, 6, 8), (3, 7, 17), (40, 4, 5)] {
            let window = Window {
                height: 3,
                width: columns,
                channels,
                rows: 3,
                columns,
                kernel: [3, 3],
                strides: [1, 1],
                pads: [1, 1],
            };
            let images = fill(2 * window.image(), &mut seed, draw);
            let view = Patches::new(&images, &window).unwrap();
            let (rows, cols) = (view.rows(), view.cols());
            let matrix = view.store();
            let matrix = MatRef::row_major(&matrix, rows, cols).unwrap();
            let b = fill(cols * n, &mut seed, draw);
            let b = MatRef::row_major(&b, cols, n).unwrap();
            let (mut found, mut expected) = (vec![7; rows * n], vec![0; rows * n]);
            let epilogue = StoreI64::new(&mut found, rows, n).unwrap();
            // SAFETY: nothing is needed for what is emulated.
            unsafe { convolve::run_on::<Neon, _>(view, b, &epilogue, &mut scratch) };
            scalar::run(matrix, b, &StoreI64::new(&mut expected, rows, n).unwrap());
            assert!(found == expected, "{what}: {window:?}");
            let a = fill(n * rows, &mut seed, draw);
            let a = MatRef::row_major(&a, rows, n).unwrap().t();
            let (mut found, mut expected) = (vec![7; n * cols], vec![0; n * cols]);
            let epilogue = StoreI64::new(&mut found, n, cols).unwrap();
            // SAFETY: as above.
            unsafe { convolve::run_over::<Neon, _>(a, view, &epilogue, &mut scratch) };
            scalar::run(a, matrix, &StoreI64::new(&mut expected, n, cols).unwrap());
            assert!(found == expected, "over, {what}: {window:?}");
        }
    }
}
