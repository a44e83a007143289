//! Times the exact int16 product: `gemm_speed [PATH] [THREADS] [BITS]`, products a second by shape.

use std::time::{Duration, Instant};

use vtrain_core::gemm::{Gemm, MatRef, Path, RescaleI16, StoreI64};

/// (m, n, k), A transposed, B transposed: cubes, the products of a training step, thin ones.
const SHAPES: [(usize, usize, usize, bool, bool); 12] = [
    (512, 512, 512, false, false),
    (1024, 1024, 1024, false, false),
    (2048, 2048, 2048, false, false),
    (128, 512, 784, false, true),
    (128, 512, 512, false, true),
    (128, 512, 512, false, false),
    (512, 784, 128, true, false),
    (128, 10, 512, false, true),
    (10, 512, 128, true, false),
    (16, 2048, 2048, false, true),
    (16, 2048, 2048, false, false),
    (2048, 2048, 16, true, false),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().map_or(Ok(Path::best()), |name| name.parse())?;
    let threads = args.next().map_or(Ok(2), |n| n.parse())?;
    let bits: u32 = args.next().map_or(Ok(16), |n| n.parse())?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()?;
    println!("{path}, {threads} threads, {bits}-bit values");
    for (m, n, k, a_t, b_t) in SHAPES {
        let a = values(m * k, bits, 1);
        let b = values(k * n, bits, 2);
        let a = if a_t {
            MatRef::row_major(&a, k, m)?.t()
        } else {
            MatRef::row_major(&a, m, k)?
        };
        let b = if b_t {
            MatRef::row_major(&b, n, k)?.t()
        } else {
            MatRef::row_major(&b, k, n)?
        };
        let mut gemm = Gemm::new(path)?;
        let mut wide = vec![0i64; m * n];
        let mut small = vec![0i16; m * n];
        let stored = median(|| {
            let epilogue = StoreI64::new(&mut wide, m, n)?;
            pool.install(|| gemm.run(a, b, &epilogue))
        })?;
        let rescaled = median(|| {
            let epilogue = RescaleI16::new(&mut small, m, n, 24, None, true)?;
            pool.install(|| gemm.run(a, b, &epilogue))
        })?;
        let rate = |t: Duration| (m * n * k) as f64 / t.as_secs_f64() / 1e9;
        println!(
            "{m:5} x {n:4} x {k:4}  i64 {:8.3} ms {:6.1} G/s   i16 {:8.3} ms {:6.1} G/s",
            stored.as_secs_f64() * 1e3,
            rate(stored),
            rescaled.as_secs_f64() * 1e3,
            rate(rescaled),
        );
    }
    Ok(())
}

/// Values of `bits` bits, within +-32639, from a small linear congruential generator.
fn values(len: usize, bits: u32, seed: u64) -> Vec<i16> {
    let mut state = seed;
    let draw = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (((state >> 48) as i16) >> (16 - bits)).clamp(-32639, 32639)
    };
    std::iter::repeat_with(draw).take(len).collect()
}

fn median<E>(mut work: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || begin.elapsed() < Duration::from_millis(400) {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}
