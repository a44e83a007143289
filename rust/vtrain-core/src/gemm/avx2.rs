//! AVX2: both sums by `vpmaddwd`, 16 products an instruction; high limbs as int16.  With AVX-VNNI
//! `vpdpwssd` does that and the addition.

// Nearly every function is one instruction: what it needs is what `Isa` needs.
#![allow(unsafe_op_in_unsafe_fn)]

use super::avx2_pack;
use super::pack::{Highs, Lanes, Layout, Line, Side};
use super::tile::{Isa, one_group_entries};
use std::arch::{asm, x86_64::*};

/// An instruction set of vectors of 8 int32 with these features: all but how it multiplies.
macro_rules! isa {
    ($name:ident, $features:literal, { $($product:item)* }) => {
        // SAFETY: every function needs these features and nothing else.
        unsafe impl Isa for $name {
            type Vector = __m256i;
            const WIDTH: usize = 8;
            // A seventh row would leave no register for the products.
            const ROWS: usize = 6;
            const GROUPS: usize = 1;
            const HIGHS: Highs = Highs::Words;

            #[inline(always)]
            unsafe fn zero() -> __m256i {
                _mm256_setzero_si256()
            }

            #[inline(always)]
            unsafe fn load(from: *const u32) -> __m256i {
                _mm256_loadu_si256(from.cast())
            }

            #[inline(always)]
            unsafe fn store(to: *mut i32, x: __m256i) {
                _mm256_storeu_si256(to.cast(), x);
            }

            #[inline(always)]
            unsafe fn splat(from: *const u32) -> __m256i {
                _mm256_set1_epi32(from.read_unaligned() as i32)
            }

            #[inline(always)]
            unsafe fn prefetch(at: *const u32) {
                _mm_prefetch::<_MM_HINT_T0>(at.cast());
            }

            #[inline(always)]
            unsafe fn prefetch_far(at: *const Line) {
                _mm_prefetch::<_MM_HINT_T1>(at.cast());
            }

            #[inline(always)]
            unsafe fn add(x: __m256i, y: __m256i) -> __m256i {
                _mm256_add_epi32(x, y)
            }

            #[inline(always)]
            unsafe fn negate_shift16(x: __m256i) -> __m256i {
                _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32::<16>(x))
            }

            #[inline(always)]
            unsafe fn dot_highs(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
                Self::dot_words(acc, a, b)
            }

            #[inline(always)]
            unsafe fn widen(to: *mut i64, high: __m256i, low: __m256i, add: bool) {
                let ((h0, h1), (l0, l1)) = (halves(high), halves(low));
                put(to, h0, l0, add);
                put(to.add(4), h1, l1, add);
            }

            #[target_feature(enable = $features)]
            unsafe fn pack(
                src: &Lanes<'_>,
                _: Side,
                layout: &Layout,
                block: usize,
                group: &mut [Line],
            ) {
                avx2_pack::pack_block(src, layout, block, group);
            }

            one_group_entries!(#[target_feature(enable = $features)]);

            $($product)*
        }
    };
}

pub(super) struct Avx2;

isa!(Avx2, "avx2", {
    #[inline(always)]
    unsafe fn dot_words(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
    }

    #[inline(always)]
    unsafe fn dot_two(
        dot: impl Fn(__m256i, __m256i, __m256i) -> __m256i,
        acc: [__m256i; 2],
        a: __m256i,
        b: [__m256i; 2],
    ) -> [__m256i; 2] {
        let zero = _mm256_setzero_si256();
        let (x, y) = together(dot(zero, a, b[0]), dot(zero, a, b[1]));
        [_mm256_add_epi32(acc[0], x), _mm256_add_epi32(acc[1], y)]
    }
});

/// With `vpdpwssd`, whose sums wrap: it needs no registers for products.
pub(super) struct AvxVnni;

isa!(AvxVnni, "avx2,avxvnni", {
    #[inline(always)]
    unsafe fn dot_words(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        _mm256_dpwssd_avx_epi32(acc, a, b)
    }
});

/// Has both at hand before either is used: two products and then two additions, for six rows, keep
/// the ports of a Zen 4 busy for 7.4 cycles; one by one, as compilers put them, for 7.9.
#[inline]
#[target_feature(enable = "avx2")]
fn together(mut x: __m256i, mut y: __m256i) -> (__m256i, __m256i) {
    // SAFETY: nothing is done.
    unsafe {
        asm!("/* {x} {y} */", x = inout(ymm_reg) x, y = inout(ymm_reg) y,
            options(pure, nomem, nostack, preserves_flags));
    }
    (x, y)
}

/// 8 int32 as int64.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(x: __m256i) -> (__m256i, __m256i) {
    let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    (_mm256_cvtepi32_epi64(low), _mm256_cvtepi32_epi64(high))
}

/// Stores `high * 2^16 + low`, 4 int64, on top of what is there if `add`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn put(to: *mut i64, high: __m256i, low: __m256i, add: bool) {
    let sum = _mm256_add_epi64(_mm256_slli_epi64::<16>(high), low);
    let mask = _mm256_set1_epi64x(-i64::from(add));
    let before = _mm256_and_si256(_mm256_loadu_si256(to.cast()), mask);
    _mm256_storeu_si256(to.cast(), _mm256_add_epi64(before, sum));
}

#[cfg(test)]
mod tests {
    use super::super::conformance;
    use super::*;

    /// [`AvxVnni`] in the encoding of AVX-512, which more machines have.
    struct Evex;

    isa!(Evex, "avx2,avx512vnni,avx512vl", {
        #[inline(always)]
        unsafe fn dot_words(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
            _mm256_dpwssd_epi32(acc, a, b)
        }
    });

    #[test]
    fn vnni_gives_what_the_definition_gives() {
        if is_x86_feature_detected!("avxvnni") {
            // SAFETY: the machine has the features.
            unsafe { conformance::check::<AvxVnni>() };
        }
        if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: as above.
            unsafe { conformance::check::<Evex>() };
        }
    }
}
