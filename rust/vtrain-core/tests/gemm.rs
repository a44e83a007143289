//! Every path of the exact product against its definition, bit for bit.
#![allow(clippy::unwrap_used)] // a failure is a failure

use std::ops::Range;
use std::sync::LazyLock;

use rayon::ThreadPool;
use vtrain_core::gemm::{Gemm, GemmError, MAX_K, MatRef, Patches, Path, RescaleI16, StoreI64};
use vtrain_core::window::Window;

static POOLS: LazyLock<[ThreadPool; 2]> = LazyLock::new(|| {
    [1, 2].map(|n| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(n)
            .build()
            .unwrap()
    })
});

/// A small deterministic generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, range: Range<usize>) -> usize {
        range.start + (self.next() % range.len() as u64) as usize
    }

    /// Any int16 of so many bits.
    fn value(&mut self, bits: usize) -> i16 {
        ((self.next() >> 48) as i16) >> (16 - bits)
    }
}

/// A matrix in a slice, and how a product sees it.
struct Mat {
    data: Vec<i16>,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    Rows,
    Cols,
    /// Neither stride is 1.
    Sparse,
}

const ORDERS: [Order; 3] = [Order::Rows, Order::Cols, Order::Sparse];

impl Mat {
    fn new(
        rows: usize,
        cols: usize,
        order: Order,
        mut at: impl FnMut(usize, usize) -> i16,
    ) -> Self {
        let (row_stride, col_stride) = match order {
            Order::Rows => (cols, 1),
            Order::Cols => (1, rows),
            Order::Sparse => (3 * cols + 2, 3),
        };
        let len = rows.saturating_sub(1) * row_stride + cols.saturating_sub(1) * col_stride + 1;
        let mut data = vec![i16::MIN; len];
        for i in 0..rows {
            for j in 0..cols {
                data[i * row_stride + j * col_stride] = at(i, j);
            }
        }
        Self {
            data,
            rows,
            cols,
            row_stride,
            col_stride,
        }
    }

    fn random(rows: usize, cols: usize, order: Order, bits: usize, random: &mut Random) -> Self {
        Self::new(rows, cols, order, |_, _| random.value(bits))
    }

    fn view(&self) -> MatRef<'_> {
        let Self {
            data,
            rows,
            cols,
            row_stride,
            col_stride,
        } = self;
        MatRef::new(data, *rows, *cols, *row_stride, *col_stride).unwrap()
    }

    fn at(&self, i: usize, j: usize) -> i64 {
        i64::from(self.data[i * self.row_stride + j * self.col_stride])
    }
}

fn definition(a: &Mat, b: &Mat) -> Vec<i64> {
    let mut c = vec![0i64; a.rows * b.cols];
    for i in 0..a.rows {
        for k in 0..a.cols {
            for j in 0..b.cols {
                c[i * b.cols + j] += a.at(i, k) * b.at(k, j);
            }
        }
    }
    c
}

fn product(path: Path, pool: &ThreadPool, a: &Mat, b: &Mat) -> Vec<i64> {
    // A value that no sum here takes: an element that is not stored shows.
    let mut c = vec![i64::MIN; a.rows * b.cols];
    let epilogue = StoreI64::new(&mut c, a.rows, b.cols).unwrap();
    let mut gemm = Gemm::new(path).unwrap();
    pool.install(|| gemm.run(a.view(), b.view(), &epilogue))
        .unwrap();
    c
}

fn check(what: &str, a: &Mat, b: &Mat) {
    let expected = definition(a, b);
    for path in Path::available() {
        for pool in &*POOLS {
            let threads = pool.current_num_threads();
            let (m, n, k) = (a.rows, b.cols, a.cols);
            let equal = product(path, pool, a, b) == expected;
            assert!(
                equal,
                "{what}: {m} x {n} x {k} on {path} with {threads} threads"
            );
        }
    }
}

#[test]
fn sizes_around_every_boundary() {
    let mut random = Random(1);
    // Tiles are 14 x 32, 14 x 16 and 5 x 16; K is filled to 4 and cut at 128, 256 and 4096.
    let ms = [0, 1, 2, 4, 5, 6, 7, 13, 14, 15, 17, 28, 29, 43];
    let ns = [0, 1, 10, 15, 16, 17, 31, 32, 33, 47, 48, 49, 65];
    let ks = [
        0, 1, 2, 3, 4, 5, 7, 31, 32, 33, 127, 128, 129, 255, 256, 257, 384, 511, 513,
    ];
    for (i, &k) in ks.iter().enumerate() {
        for (j, &m) in ms.iter().enumerate() {
            // Every m meets every k; n and the orders take turns.
            let n = ns[(i + j) % ns.len()];
            let a = Mat::random(m, k, ORDERS[(i + j) % 3], 16, &mut random);
            let b = Mat::random(k, n, ORDERS[(i + j / 3) % 3], 16, &mut random);
            check("sizes", &a, &b);
        }
    }
    for m in ms {
        for n in ns {
            let a = Mat::random(m, 37, Order::Rows, 16, &mut random);
            let b = Mat::random(37, n, Order::Cols, 16, &mut random);
            check("edges", &a, &b);
        }
    }
}

#[test]
fn all_orders_of_both_operands() {
    let mut random = Random(2);
    for bits in [16, 12, 1] {
        for a_order in ORDERS {
            for b_order in ORDERS {
                let a = Mat::random(45, 301, a_order, bits, &mut random);
                let b = Mat::random(301, 83, b_order, bits, &mut random);
                check(&format!("{a_order:?} x {b_order:?}, {bits} bits"), &a, &b);
            }
        }
    }
}

#[test]
fn long_sums() {
    let mut random = Random(3);
    for k in [4095, 4096, 4097, 8191, 8193, 70001] {
        for (bits, order) in [(16, Order::Rows), (8, Order::Cols)] {
            let a = Mat::random(3, k, order, bits, &mut random);
            let b = Mat::random(k, 18, order, bits, &mut random);
            check("long", &a, &b);
        }
    }
}

#[test]
fn operands_packed_in_parts() {
    let mut random = Random(4);
    // Packed B in several parts, packed A in several parts, both with sums in stretches.
    for (m, n, k) in [(30, 30_000, 300), (30_000, 20, 300), (700, 1500, 4100)] {
        let a = Mat::random(m, k, Order::Rows, 16, &mut random);
        let b = Mat::random(k, n, Order::Rows, 16, &mut random);
        let expected = product(Path::Scalar, &POOLS[1], &a, &b);
        for path in Path::available() {
            assert!(
                product(path, &POOLS[1], &a, &b) == expected,
                "{m} x {n} x {k} on {path}"
            );
        }
    }
}

#[test]
fn extremes() {
    type Fill = fn(usize, usize) -> i16;
    let fills: [(&str, Fill); 6] = [
        ("lowest", |_, _| i16::MIN),
        ("highest", |_, _| i16::MAX),
        ("saturated", |_, _| 32639),
        (
            "alternating",
            |i, j| if (i + j) % 2 == 0 { 32639 } else { -32639 },
        ),
        ("lowest and highest", |i, j| {
            if (i + j) % 2 == 0 { i16::MIN } else { i16::MAX }
        }),
        ("zero", |_, _| 0),
    ];
    for k in [2, 128, 256, 1000] {
        for (a_name, a_fill) in fills {
            for (b_name, b_fill) in fills {
                let a = Mat::new(15, k, Order::Rows, a_fill);
                let b = Mat::new(k, 33, Order::Rows, b_fill);
                check(&format!("{a_name} x {b_name}"), &a, &b);
            }
        }
    }
}

/// E = S - 2^16 H comes within 1 % of 2^31 over one block, with either sign: with blocks twice as
/// long, or wide ones not cut, E wraps and this test fails.
#[test]
fn the_bound_of_the_error_is_reached() {
    // Term by term, |E| is largest at 32384 = 256 * 127 - 128 within +-32639 (8_306_688 of the
    // proven 8_339_456), and at 32767 = 256 * 127 + 255 in all of int16 (16_646_145 of 16_776_705).
    for value in [32384, 32383, 32385, 32639, 32640, 32766, 32767] {
        for sign in [1, -1] {
            for k in [127, 128, 129, 255, 256, 257, 512, 1024] {
                let a = Mat::new(14, k, Order::Rows, |_, _| value);
                let b = Mat::new(k, 32, Order::Cols, |_, _| sign * value);
                check(&format!("{value} x {}", sign * value), &a, &b);
            }
        }
    }
    // A single value beyond +-32639 makes its block wide, wherever it stands.
    for at in [0, 1, 127, 128, 255, 300] {
        for odd in [i16::MIN, 32640, i16::MAX] {
            let plain_a = Mat::new(3, 512, Order::Rows, |_, _| 32384);
            let plain_b = Mat::new(512, 33, Order::Rows, |_, _| 32384);
            let put = |here| if here { odd } else { 32384 };
            let a = Mat::new(3, 512, Order::Rows, |i, k| put((i, k) == (2, at)));
            let b = Mat::new(512, 33, Order::Rows, |k, j| put((k, j) == (at, 32)));
            check("one wide value in A", &a, &plain_b);
            check("one wide value in B", &plain_a, &b);
        }
    }
}

/// Sums just below and just above 2^31, where W alone may or may not be used.
#[test]
fn the_bound_of_the_norms_is_reached() {
    for k in [2, 8, 32, 64, 256, 512, 1024, 2048] {
        // For constant lanes Cauchy and Schwarz is an equality: k * v * w is about 2^31.
        let v = ((2f64.powi(31) / k as f64).sqrt() as i32).min(32639);
        for (dv, dw) in [(0, 0), (-1, 0), (-1, -1), (1, 0), (1, 1), (2, 2), (9, 9)] {
            for sign in [1, -1] {
                let (v, w) = (
                    (v + dv).min(32767) as i16,
                    (sign * (v + dw).min(32767)) as i16,
                );
                let a = Mat::new(15, k, Order::Rows, |_, _| v);
                let b = Mat::new(k, 33, Order::Rows, |_, _| w);
                check(&format!("{v} x {w}"), &a, &b);
            }
        }
    }
    // Blocks of different magnitude: the runs end elsewhere in every tile.
    let mut random = Random(5);
    let bits = [3, 16, 12, 13, 14, 5, 15, 11];
    let a = Mat::new(30, 2000, Order::Rows, |_, k| {
        random.value(bits[k / 128 % 8])
    });
    let b = Mat::new(2000, 70, Order::Cols, |k, j| {
        random.value(16 - (k / 300 + j / 16) % 9)
    });
    check("mixed", &a, &b);
}

#[test]
fn random_shapes_and_values() {
    let mut random = Random(6);
    for _ in 0..150 {
        let (m, n, k) = (
            random.below(0..70),
            random.below(0..90),
            random.below(0..700),
        );
        let (a_order, b_order) = (ORDERS[random.below(0..3)], ORDERS[random.below(0..3)]);
        let (a_bits, b_bits) = (random.below(1..17), random.below(1..17));
        let a = Mat::random(m, k, a_order, a_bits, &mut random);
        let b = Mat::random(k, n, b_order, b_bits, &mut random);
        check(
            &format!("{a_order:?} {a_bits} x {b_order:?} {b_bits}"),
            &a,
            &b,
        );
    }
}

#[test]
fn a_context_serves_products_of_any_size_in_turn() {
    let mut random = Random(7);
    for path in Path::available() {
        let mut gemm = Gemm::new(path).unwrap();
        for (m, n, k) in [
            (60, 70, 600),
            (3, 2, 1),
            (60, 70, 5000),
            (1, 100, 300),
            (60, 70, 600),
        ] {
            let a = Mat::random(m, k, Order::Rows, 16, &mut random);
            let b = Mat::random(k, n, Order::Rows, 16, &mut random);
            let mut c = vec![0i64; m * n];
            let epilogue = StoreI64::new(&mut c, m, n).unwrap();
            gemm.run(a.view(), b.view(), &epilogue).unwrap();
            assert!(c == definition(&a, &b), "{path} at {m} x {n} x {k}");
        }
    }
}

/// `floor((x + 2^(s-1)) / 2^s)` or `x * 2^-s`, in wide integers.
fn rescale(x: i64, shift: i32) -> i128 {
    let x = i128::from(x);
    match shift {
        1..=100 => (x + (1 << (shift - 1))) >> shift,
        101.. => 0,
        // x * 2^40 is already beyond any limit.
        _ => x << shift.saturating_neg().min(40),
    }
}

/// The int16 elements of sums in rows of `n`, and how many of them were clamped.
fn narrow(sums: &[i64], n: usize, bias: Option<&[i64]>, shift: i32, relu: bool) -> (Vec<i16>, u64) {
    let exact: Vec<i128> = (sums.iter().enumerate())
        .map(|(i, &x)| rescale(x + bias.map_or(0, |bias| bias[i % n]), shift))
        .collect();
    let floor = if relu { 0 } else { -32639 };
    let narrowed = exact.iter().map(|y| (*y).clamp(floor, 32639) as i16);
    let clamped = exact.iter().filter(|y| y.abs() > 32639).count();
    (narrowed.collect(), clamped as u64)
}

#[test]
fn rescaling_matches_its_definition() {
    let mut random = Random(8);
    let (m, n, k) = (29, 67, 130);
    let mut bias = |bits: usize| {
        Some(
            (0..n)
                .map(|_| (random.next() as i64) >> (63 - bits))
                .collect(),
        )
    };
    let biases: [Option<Vec<i64>>; 4] = [None, bias(10), bias(40), bias(62)];
    let a = Mat::random(m, k, Order::Rows, 14, &mut random);
    let b = Mat::random(k, n, Order::Rows, 15, &mut random);
    let acc = definition(&a, &b);
    let shifts = [
        i32::MIN,
        -70,
        -41,
        -3,
        -1,
        0,
        1,
        2,
        15,
        23,
        24,
        30,
        31,
        32,
        47,
        62,
        63,
        64,
        65,
    ];
    for shift in shifts.into_iter().chain([i32::MAX]) {
        for (relu, bias) in [false, true]
            .iter()
            .flat_map(|r| biases.iter().map(move |b| (*r, b)))
        {
            let bias = bias.as_deref();
            let (expected, beyond) = narrow(&acc, n, bias, shift, relu);
            for path in Path::available() {
                let mut out = vec![i16::MIN; m * n];
                let epilogue = RescaleI16::new(&mut out, m, n, shift, bias, relu).unwrap();
                Gemm::new(path)
                    .unwrap()
                    .run(a.view(), b.view(), &epilogue)
                    .unwrap();
                assert_eq!(epilogue.saturated(), beyond, "{path}, shift {shift}");
                assert!(out == expected, "{path}, shift {shift}, relu {relu}");
            }
        }
    }
}

#[test]
fn refusals_name_their_reason() {
    let data = vec![0i16; 12];
    let view = |rows, cols| MatRef::row_major(&data, rows, cols);
    assert!(matches!(view(3, 5), Err(GemmError::View { .. })));
    assert!(matches!(
        MatRef::new(&data, 2, 2, usize::MAX, 2),
        Err(GemmError::View { .. })
    ));
    assert!(MatRef::new(&data, 0, usize::MAX, usize::MAX, 2).is_ok());

    let mut out = vec![0i64; 9];
    assert!(matches!(
        StoreI64::new(&mut out, 2, 4),
        Err(GemmError::View { .. })
    ));
    let mut small = vec![0i16; 9];
    let bias = [0i64; 2];
    let short = RescaleI16::new(&mut small, 3, 3, 1, Some(&bias), false);
    assert!(matches!(short, Err(GemmError::Bias { len: 2, cols: 3 })));

    let mut gemm = Gemm::new(Path::best()).unwrap();
    let epilogue = StoreI64::new(&mut out, 3, 3).unwrap();
    let (a, b) = (view(3, 4).unwrap(), view(4, 3).unwrap());
    assert_eq!(gemm.run(a, b, &epilogue), Ok(()));
    let inner = GemmError::Inner {
        a_cols: 4,
        b_rows: 3,
    };
    assert_eq!(gemm.run(a, b.t(), &epilogue), Err(inner));
    assert!(matches!(
        gemm.run(b, a, &epilogue),
        Err(GemmError::Output { .. })
    ));
    let long = MatRef::new(&data, 3, MAX_K + 1, 0, 0).unwrap();
    let too_long = gemm.run(long, long.t(), &epilogue);
    assert_eq!(too_long, Err(GemmError::TooLong { k: MAX_K + 1 }));

    for path in Path::ALL {
        assert_eq!(path.name().parse(), Ok(path));
        let made = Gemm::new(path).map(|gemm| gemm.path());
        let available = Path::available().any(|available| available == path);
        assert_eq!(
            made,
            if available {
                Ok(path)
            } else {
                Err(GemmError::Unavailable { path })
            }
        );
    }
    assert_eq!(
        "fast".parse::<Path>(),
        Err(GemmError::UnknownPath {
            name: "fast".into()
        })
    );
}

/// Images of so many channels, and a window with as much padding on both sides.
fn window(image: [usize; 3], kernel: [usize; 2], strides: [usize; 2], pads: [usize; 2]) -> Window {
    let windows = |axis: usize| (image[axis] + 2 * pads[axis] - kernel[axis]) / strides[axis] + 1;
    Window {
        height: image[0],
        width: image[1],
        channels: image[2],
        rows: windows(0),
        columns: windows(1),
        kernel,
        strides,
        pads,
    }
}

/// Windows with runs of odd and even length, rows of odd and even length, more rows than a band has,
/// sums of more than a block, and some that leave pixels out.
fn windows() -> Vec<Window> {
    vec![
        window([1, 1, 1], [1, 1], [1, 1], [0, 0]),
        window([5, 7, 3], [1, 1], [1, 1], [0, 0]),
        window([28, 28, 1], [3, 3], [1, 1], [1, 1]),
        window([14, 14, 8], [3, 3], [1, 1], [1, 1]),
        window([6, 9, 2], [3, 2], [2, 3], [1, 0]),
        window([9, 8, 5], [5, 4], [1, 2], [4, 3]),
        window([7, 30, 16], [3, 3], [1, 1], [1, 1]),
        window([4, 5, 67], [3, 3], [1, 1], [1, 1]),
        window([1, 301, 3], [1, 7], [1, 1], [0, 3]),
        window([70, 40, 9], [2, 2], [1, 1], [0, 1]),
    ]
}

/// The matrix of patches, by its definition.
fn patches(window: &Window, images: &[i16]) -> Mat {
    let rows = images.len() / window.image() * window.windows();
    Mat::new(rows, window.patch(), Order::Rows, |row, place| {
        let (image, at) = (row / window.windows(), row % window.windows());
        let (pixel, channel) = (place / window.channels, place % window.channels);
        let y = at / window.columns * window.strides[0] + pixel / window.kernel[1];
        let x = at % window.columns * window.strides[1] + pixel % window.kernel[1];
        let inside =
            |at: usize, pad: usize, extent: usize| at.checked_sub(pad).filter(|&at| at < extent);
        let y = inside(y, window.pads[0], window.height);
        let x = inside(x, window.pads[1], window.width);
        match y.zip(x) {
            Some((y, x)) => {
                let pixel = (image * window.height + y) * window.width + x;
                images[pixel * window.channels + channel]
            }
            None => 0,
        }
    })
}

#[test]
fn products_of_patches_are_those_of_the_matrix_that_they_are() {
    let mut random = Random(9);
    let values: [fn(&mut Random) -> i16; 5] = [
        |random| random.value(8),
        |random| random.value(13),
        |random| random.value(16),
        |random| [i16::MIN, i16::MAX, -32639][random.below(0..3)],
        |_| i16::MIN,
    ];
    let mut gemms: Vec<Gemm> = Path::available().map(|p| Gemm::new(p).unwrap()).collect();
    for (i, window) in windows().into_iter().enumerate() {
        for (kind, value) in values.iter().enumerate() {
            let n = [1, 8, 9, 16, 17, 33, 64][(i + 2 * kind) % 7];
            let count = 1 + (i + kind) % 3;
            let images: Vec<i16> = (0..count * window.image())
                .map(|_| value(&mut random))
                .collect();
            let rows = patches(&window, &images);
            let kernel = Mat::new(rows.cols, n, ORDERS[i % 3], |_, _| value(&mut random));
            let grads = Mat::new(n, rows.rows, ORDERS[kind % 3], |_, _| value(&mut random));
            let on = definition(&rows, &kernel);
            let over = definition(&grads, &rows);
            let view = Patches::new(&images, &window).unwrap();
            assert_eq!((view.rows(), view.cols()), (rows.rows, rows.cols));
            for gemm in &mut gemms {
                for pool in &*POOLS {
                    let path = gemm.path();
                    let mut found = vec![i64::MIN; on.len()];
                    let epilogue = StoreI64::new(&mut found, rows.rows, n).unwrap();
                    pool.install(|| gemm.run_on_patches(view, kernel.view(), &epilogue))
                        .unwrap();
                    assert!(found == on, "{path}: {window:?}, {n}, values {kind}");
                    let mut found = vec![i64::MIN; over.len()];
                    let epilogue = StoreI64::new(&mut found, n, rows.cols).unwrap();
                    pool.install(|| gemm.run_over_patches(grads.view(), view, &epilogue))
                        .unwrap();
                    assert!(
                        found == over,
                        "over, {path}: {window:?}, {n}, values {kind}"
                    );
                }
            }
        }
    }
}

#[test]
fn rescaled_products_of_patches_match_their_definition() {
    let mut random = Random(10);
    let window = window([14, 13, 4], [3, 3], [1, 1], [1, 1]);
    let images: Vec<i16> = (0..3 * window.image()).map(|_| random.value(12)).collect();
    let rows = patches(&window, &images);
    for n in [1, 7, 8, 13, 16, 24, 33] {
        let kernel = Mat::random(rows.cols, n, Order::Rows, 12, &mut random);
        let acc = definition(&rows, &kernel);
        for bits in [0, 20, 29, 30, 40] {
            let bias: Vec<i64> = (0..n)
                .map(|_| random.next() as i64 >> (63 - bits))
                .collect();
            let bias = (bits > 0).then_some(bias.as_slice());
            for (shift, relu) in [
                (0, false),
                (1, true),
                (9, false),
                (13, true),
                (31, false),
                (32, true),
            ] {
                let (expected, beyond) = narrow(&acc, n, bias, shift, relu);
                for path in Path::available() {
                    let mut out = vec![i16::MIN; acc.len()];
                    let epilogue =
                        RescaleI16::new(&mut out, rows.rows, n, shift, bias, relu).unwrap();
                    let view = Patches::new(&images, &window).unwrap();
                    let mut gemm = Gemm::new(path).unwrap();
                    gemm.run_on_patches(view, kernel.view(), &epilogue).unwrap();
                    assert_eq!(epilogue.saturated(), beyond, "{path}, shift {shift}, {n}");
                    assert!(out == expected, "{path}, shift {shift}, relu {relu}, {n}");
                }
            }
        }
    }
}

#[test]
fn patches_of_parts_of_images_are_refused() {
    let window = window([3, 3, 2], [2, 2], [1, 1], [0, 0]);
    let view = Patches::new(&[0; 19], &window);
    assert!(matches!(view, Err(GemmError::View { .. })));
    let none = Window {
        channels: 0,
        ..window
    };
    assert!(matches!(
        Patches::new(&[], &none),
        Err(GemmError::View { .. })
    ));
}
