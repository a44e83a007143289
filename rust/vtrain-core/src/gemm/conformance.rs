//! Products of an instruction set, held to the definition: for tests alone.

#![allow(clippy::unwrap_used)]

use super::tile::Isa;
use super::{Epilogue, MatRef, Patches, RescaleI16, StoreI64, convolve, driver, scalar};
use crate::window::Window;

/// Panics where products, rescaled products or products of patches are others than the definition's.
///
/// # Safety
/// The machine has the instructions.
pub(super) unsafe fn check<I: Isa>() {
    check_products::<I>();
    check_rescaled::<I>();
    check_patches::<I>();
}

fn run<I: Isa, E: Epilogue>(
    a: MatRef<'_>,
    b: MatRef<'_>,
    epilogue: &E,
    scratch: &mut driver::Scratch,
) {
    // SAFETY: `check` asks for the instructions.
    unsafe { driver::run::<I, E>(a, b, epilogue, scratch) };
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

fn check_products<I: Isa>() {
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
                run::<I, _>(
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

fn check_rescaled<I: Isa>() {
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
    let found = rescaled(&|epilogue| run::<I, _>(a, b, epilogue, &mut driver::Scratch::default()));
    assert_eq!(found, expected);
}

fn check_patches<I: Isa>() {
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
            // SAFETY: `check` asks for the instructions.
            unsafe { convolve::run_on::<I, _>(view, b, &epilogue, &mut scratch) };
            scalar::run(matrix, b, &StoreI64::new(&mut expected, rows, n).unwrap());
            assert!(found == expected, "{what}: {window:?}");
            let a = fill(n * rows, &mut seed, draw);
            let a = MatRef::row_major(&a, rows, n).unwrap().t();
            let (mut found, mut expected) = (vec![7; n * cols], vec![0; n * cols]);
            let epilogue = StoreI64::new(&mut found, n, cols).unwrap();
            // SAFETY: as above.
            unsafe { convolve::run_over::<I, _>(a, view, &epilogue, &mut scratch) };
            scalar::run(a, matrix, &StoreI64::new(&mut expected, n, cols).unwrap());
            assert!(found == expected, "over, {what}: {window:?}");
        }
    }
}
