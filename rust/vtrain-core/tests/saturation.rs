//! Kernels count just the elements that saturation changes, at every length and thread count.

#![allow(clippy::unwrap_used, missing_docs)]

use vtrain_core::gemm::{Gemm, Path};
use vtrain_core::number::Rounding;
use vtrain_core::ops::optimizer::MomentumRule;
use vtrain_core::ops::{Kernel, Samples, Slice, SliceMut};

const NOTHING: Samples<'static> = Samples {
    table: &[],
    row: 0,
    split: 0,
    windows: None,
};
/// The last is cut into pieces for two threads.
const LENGTHS: [usize; 5] = [0, 1, 7, 100, 200_003];
const I16: i128 = 32639;
const I32: i128 = i32::MAX as i128;

/// How many values lie outside +-`bound`.
fn count(exact: impl Iterator<Item = i128>, bound: i128) -> u64 {
    exact.filter(|x| x.abs() > bound).count() as u64
}

fn rounded(x: i128, shift: u32) -> i128 {
    (x + (1 << shift >> 1)) >> shift
}

/// Values of up to 2^`bits`, of all magnitudes and both signs, the same each time.
fn values(length: usize, bits: u32, seed: u64) -> Vec<i64> {
    let mut state = seed;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state as i64) >> (63 - bits + (state >> 7) as u32 % bits)
        })
        .collect()
}

fn narrow(values: &[i64]) -> Vec<i32> {
    values
        .iter()
        .map(|&x| x.clamp(-(I32 as i64), I32 as i64) as i32)
        .collect()
}

/// Runs `kernel` with 1, 2 and 3 threads; `out` is copied for each.
fn assert_counts(kernel: &Kernel, inputs: &[Slice<'_>], out: &Out, expected: u64) {
    assert!(kernel.saturates());
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let mut gemm = Gemm::new(Path::Scalar).unwrap();
        let mut out = out.clone();
        let counted = pool
            .build()
            .unwrap()
            .install(|| kernel.run(inputs, out.slice(), &NOTHING, &mut gemm));
        assert_eq!(counted, Ok(expected), "{kernel:?}, {threads} threads");
    }
}

#[derive(Clone)]
enum Out {
    I16(Vec<i16>),
    I32(Vec<i32>),
}

impl Out {
    fn slice(&mut self) -> SliceMut<'_> {
        match self {
            Self::I16(x) => SliceMut::I16(x),
            Self::I32(x) => SliceMut::I32(x),
        }
    }
}

#[test]
fn normalize_and_rescale() {
    for length in LENGTHS {
        let x = values(length, 40, 1);
        let scaled = || x.iter().map(|&x| i128::from(x) * 5);
        let normalize = Kernel::Normalize {
            multiplier: 5,
            offset: -3,
            shift: Rounding::new(17),
        };
        let rescale = Kernel::Rescale {
            multiplier: 5,
            shift: 9,
        };
        let (narrow, wide) = (Out::I16(vec![0; length]), Out::I32(vec![0; length]));
        let expected = count(scaled().map(|x| rounded(x - 3, 17)), I16);
        assert_counts(&normalize, &[Slice::I64(&x)], &narrow, expected);
        let expected = count(scaled().map(|x| rounded(x, 9)), I16);
        assert_counts(&rescale, &[Slice::I64(&x)], &narrow, expected);
        let expected = count(scaled().map(|x| rounded(x, 9)), I32);
        assert_counts(&rescale, &[Slice::I64(&x)], &wide, expected);
        assert!(length < 100 || (0 < expected && expected < length as u64));
    }
}

#[test]
fn momentum_and_sgd_update() {
    for length in LENGTHS {
        let (old, grad) = (narrow(&values(length, 31, 2)), values(length, 40, 3));
        let decay = 6554;
        let moved = old.iter().zip(&grad).map(|(&v, &g)| {
            let v = i128::from(v);
            v + rounded(g.into(), 7) - rounded(v * decay, 16)
        });
        let expected = count(moved, I32);
        assert!(length < 100 || (0 < expected && expected < length as u64));
        let kernel = Kernel::Momentum(MomentumRule::new(decay as i64, 7));
        // In place: what comes first is already in the output, and is not read.
        let inputs = [Slice::I32(&[]), Slice::I64(&grad)];
        assert_counts(&kernel, &inputs, &Out::I32(old.clone()), expected);

        let (velocity, rate) = (narrow(&values(length, 34, 4)), 40_960i64);
        let stepped = old
            .iter()
            .zip(&velocity)
            .map(|(&w, &v)| i128::from(w) - rounded(i128::from(v) * i128::from(rate), 15));
        let expected = count(stepped, I32);
        assert!(length < 100 || (0 < expected && expected < length as u64));
        let kernel = Kernel::SgdUpdate { shift: 15 };
        let rate = [rate];
        let inputs = [Slice::I32(&[]), Slice::I32(&velocity), Slice::I64(&rate)];
        assert_counts(&kernel, &inputs, &Out::I32(old), expected);
    }
}

#[test]
fn the_ends_of_the_range_are_not_clamped() {
    let at = |x: &[i64], out: Out, expected| {
        let kernel = Kernel::Rescale {
            multiplier: 1,
            shift: 0,
        };
        assert_counts(&kernel, &[Slice::I64(x)], &out, expected);
    };
    let (narrow, wide) = (I16 as i64, I32 as i64);
    at(&[narrow, -narrow], Out::I16(vec![0; 2]), 0);
    at(&[narrow + 1, -narrow], Out::I16(vec![0; 2]), 1);
    at(&[narrow, -narrow - 1], Out::I16(vec![0; 2]), 1);
    at(&[wide, -wide], Out::I32(vec![0; 2]), 0);
    at(&[wide + 1, -wide - 1], Out::I32(vec![0; 2]), 2);
}
