//! Which instruction sets are used: what the machine has, less what `VTRAIN_CPU` forbids.

use std::sync::OnceLock;

/// The instruction sets that the engine's loops are compiled for, from the least on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// What every machine of the architecture has.
    Plain,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX2; AVX-VNNI, where there is that, may be used for products.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

/// The best that may be used here.  `VTRAIN_CPU=avx-vnni`, `avx2` or `plain` sets a limit: with it one measures
/// what another machine has, on one that has more.  No bit depends on it.
pub(crate) fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let most = match std::env::var("VTRAIN_CPU").as_deref() {
            Ok("plain") => Level::Plain,
            Ok("avx2") => Level::Avx2,
            Ok("avx-vnni") => Level::AvxVnni,
            _ => Level::Avx512,
        };
        detect().min(most)
    })
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    let has_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (has_avx512, is_x86_feature_detected!("avx2")) {
        (true, _) => Level::Avx512,
        (_, true) => Level::AvxVnni,
        _ => Level::Plain,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Plain
}
