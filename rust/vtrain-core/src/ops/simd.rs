//! Compiling a plain loop for the widest vectors of the machine it runs on.

#[cfg(target_arch = "x86_64")]
use crate::cpu::{self, Level};

/// Runs `work`, a closure marked `#[inline(always)]`, compiled for the best instruction set here.
///
/// The closure owns what it reads (`move`): a store could change what it only borrows, and a loop that
/// may is not vectorised.
///
/// The loop is ordinary integer Rust, so every instruction set gives the same bits.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    match cpu::level() {
        // SAFETY: the machine has the features.
        Level::Avx512 => return unsafe { with_avx512(work) },
        // SAFETY: as above.
        Level::AvxVnni | Level::Avx2 => return unsafe { with_avx2(work) },
        Level::Plain => {}
    }
    work()
}

/// `apply` on each pair of elements, by eights: for short runs such as the channels of a pixel, which
/// a loop vectorised for long ones would do one by one.
#[inline(always)]
pub(crate) fn zip_eights<A, B: Copy>(out: &mut [A], x: &[B], apply: impl Fn(&mut A, B)) {
    let (out_eights, out_rest) = out.as_chunks_mut::<8>();
    let (eights, rest) = x.as_chunks::<8>();
    for (out, x) in out_eights.iter_mut().zip(eights) {
        for (out, &x) in out.iter_mut().zip(x) {
            apply(out, x);
        }
    }
    for (out, &x) in out_rest.iter_mut().zip(rest) {
        apply(out, x);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn with_avx512<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
    work()
}
