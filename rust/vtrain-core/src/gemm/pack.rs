//! Operands in the order in which a tile reads them.
//!
//! A *lane* is a row of A or a column of B; 16 lanes form a *group*, or 8 of A where a tile has no
//! more rows. It is packed over a stretch of K:
//!
//! * `words`: for every pair of k, two int16 of each lane: a cache line, or half of one;
//! * `highs`: the high limbs; by instruction set, four of A's `u8` (limb + 128) or B's `i8` a
//!   lane, or two `i16`;
//! * `fixes`: where high limbs are bytes, for each half block, 16 lanes of `-128 * sum of high
//!   limbs`, what `u8` limbs add;
//! * `bounds`: for each block, a bound on its lanes' norms and whether it is wide.
//!
//! K is filled up to a multiple of 4, and the lanes to those of the group, with zeros.

use std::ops::Range;

use super::{BLOCK, MatRef};
#[cfg(any(test, target_arch = "aarch64"))]
use super::{NARROW_MAX, WIDE_BLOCK};

/// Most lanes of a group, those of B.
pub(super) const LANES: usize = 16;

/// A cache line, the unit in which packed operands are stored.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u32; LANES]);

impl Line {
    pub const ZERO: Self = Self([0; LANES]);
}

/// What is known of the lanes of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Bound {
    /// At least the Euclidean norm of each lane.
    pub norm: u32,
    /// Not 0 when a value is beyond +-32639.
    pub wide: u32,
}

/// How high limbs are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Highs {
    /// Bytes, four k a line, for `vpdpbusd`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    Bytes,
    /// int16, two k a line, for `vpmaddwd` and NEON.
    Words,
}

impl Highs {
    /// Terms of a line.
    pub const fn step(self) -> usize {
        match self {
            Self::Bytes => 4,
            Self::Words => 2,
        }
    }
}

/// Which operand a group belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

/// Where the parts of a group lie, in lines from its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Lanes of the group.
    pub lanes: usize,
    /// Terms, filled up to a multiple of 4.
    pub k: usize,
    pub highs: usize,
    /// Of bytes alone.
    pub fixes: usize,
    pub bounds: usize,
    /// Lines of a group.
    pub lines: usize,
}

impl Layout {
    pub fn new(k: usize, format: Highs, lanes: usize) -> Self {
        let k = k.next_multiple_of(4);
        let highs = (k / 2 * lanes).div_ceil(LANES);
        let fixes = highs + (k / format.step() * lanes).div_ceil(LANES);
        let bounds = match format {
            Highs::Bytes => fixes + 2 * k.div_ceil(BLOCK),
            Highs::Words => fixes,
        };
        let lines = bounds + (k.div_ceil(BLOCK) * size_of::<Bound>()).div_ceil(size_of::<Line>());
        Self {
            lanes,
            k,
            highs,
            fixes,
            bounds,
            lines,
        }
    }

    pub fn blocks(&self) -> usize {
        self.k.div_ceil(BLOCK)
    }

    /// Stores the lanes' words `i` of the part that begins at line `part`.
    #[cfg(any(test, target_arch = "aarch64"))]
    #[inline(always)]
    fn put(&self, group: &mut [Line], part: usize, i: usize, words: &Line) {
        let at = i * self.lanes;
        let to = &mut group[part + at / LANES].0[at % LANES..][..self.lanes];
        to.copy_from_slice(&words.0[..self.lanes]);
    }
}

/// Up to 16 lanes of an operand over a stretch of K.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes<'a> {
    /// From the first lane's first term on.
    pub data: &'a [i16],
    pub lanes: usize,
    pub lane_stride: usize,
    pub k: usize,
    pub k_stride: usize,
}

impl<'a> Lanes<'a> {
    /// Some rows of `mat` (of `b.t()` for the columns of B) and some of its columns; neither empty.
    pub fn new(mat: MatRef<'a>, lanes: Range<usize>, terms: Range<usize>) -> Self {
        Self {
            data: &mat.data[lanes.start * mat.row_stride + terms.start * mat.col_stride..],
            lanes: lanes.len(),
            lane_stride: mat.row_stride,
            k: terms.len(),
            k_stride: mat.col_stride,
        }
    }

    /// The values of term `k` of each lane, 0 outside.
    #[inline(always)]
    fn term(&self, k: usize) -> [i16; LANES] {
        let mut term = [0; LANES];
        if k < self.k {
            let from = &self.data[k * self.k_stride..];
            if self.lane_stride == 1 {
                term[..self.lanes].copy_from_slice(&from[..self.lanes]);
            } else {
                for (lane, to) in term.iter_mut().enumerate().take(self.lanes) {
                    *to = from[lane * self.lane_stride];
                }
            }
        }
        term
    }

    /// The values of terms `k` and `k + 1` of each lane.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    #[inline(always)]
    pub fn pair(&self, k: usize) -> Line {
        pair_words(&self.term(k), &self.term(k + 1))
    }
}

/// Two terms of each lane, the first in the low half of its word.
#[inline(always)]
fn pair_words(x: &[i16; LANES], y: &[i16; LANES]) -> Line {
    let word = |lane: usize| u32::from(x[lane] as u16) | u32::from(y[lane] as u16) << 16;
    Line(std::array::from_fn(word))
}

/// The rounded high limb.
#[cfg(any(test, target_arch = "aarch64"))]
#[inline(always)]
fn high(q: i16) -> i16 {
    q.saturating_add(128) >> 8
}

/// A bound on the norm from `sum floor(squares of a pair / 256)` over a block.
pub(super) fn norm_bound(sum: u32) -> u32 {
    // Each pair's floor lost less than 1, and a block has BLOCK / 2 pairs.
    let squares = (u64::from(sum) + BLOCK as u64 / 2) * 256;
    squares.isqrt() as u32 + 1
}

/// Packs a block of a group's terms; portable.
///
/// `group` has `layout.lines` lines.
#[cfg(any(test, target_arch = "aarch64"))]
#[inline(always)]
pub(super) fn pack_block(
    src: &Lanes<'_>,
    side: Side,
    format: Highs,
    layout: &Layout,
    block: usize,
    group: &mut [Line],
) {
    let end = layout.k.min((block + 1) * BLOCK);
    let mut squares = [0u32; LANES];
    let mut largest = [0u16; LANES];
    for (half, start) in (block * BLOCK..end).step_by(WIDE_BLOCK).enumerate() {
        let mut sums = [0i32; LANES];
        for k in (start..end.min(start + WIDE_BLOCK)).step_by(4) {
            let q = [0, 1, 2, 3].map(|i| src.term(k + i));
            let h = q.map(|term| term.map(high));
            layout.put(group, 0, k / 2, &pair_words(&q[0], &q[1]));
            layout.put(group, 0, k / 2 + 1, &pair_words(&q[2], &q[3]));
            match format {
                Highs::Bytes => {
                    let flip = if side == Side::A { 0x80 } else { 0 };
                    let bytes = |lane: usize| h.map(|h| h[lane] as u8 ^ flip);
                    let words = std::array::from_fn(|lane| u32::from_le_bytes(bytes(lane)));
                    layout.put(group, layout.highs, k / 4, &Line(words));
                }
                Highs::Words => {
                    layout.put(group, layout.highs, k / 2, &pair_words(&h[0], &h[1]));
                    layout.put(group, layout.highs, k / 2 + 1, &pair_words(&h[2], &h[3]));
                }
            }
            for lane in 0..LANES {
                let square = |i: usize| i32::from(q[i][lane]).pow(2) as u32;
                squares[lane] += ((square(0) + square(1)) >> 8) + ((square(2) + square(3)) >> 8);
                sums[lane] += h.iter().map(|h| i32::from(h[lane])).sum::<i32>();
                largest[lane] = q
                    .iter()
                    .fold(largest[lane], |x, q| x.max(q[lane].unsigned_abs()));
            }
        }
        if let Highs::Bytes = format {
            group[layout.fixes + 2 * block + half] = Line(sums.map(|sum| (-128 * sum) as u32));
        }
    }
    let squares = squares.into_iter().fold(0, u32::max);
    let bound = Bound {
        norm: norm_bound(squares),
        wide: u32::from(largest.iter().any(|&x| x > NARROW_MAX)),
    };
    set_bound(layout, group, block, bound);
}

/// Stores what is known of a block.
pub(super) fn set_bound(layout: &Layout, group: &mut [Line], block: usize, bound: Bound) {
    let line = &mut group[layout.bounds + block / 8].0;
    line[block % 8 * 2] = bound.norm;
    line[block % 8 * 2 + 1] = bound.wide;
}

#[cfg(all(test, target_arch = "x86_64"))]
pub(super) mod tests {
    use super::*;

    /// Holds a way to pack groups of `all` lanes against [`pack_block`], lanes and terms in every
    /// arrangement.
    pub fn compare(
        format: Highs,
        all: usize,
        pack: impl Fn(&Lanes<'_>, Side, &Layout, usize, &mut [Line]),
    ) {
        let mut state = 1u64;
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 48) as i16
        };
        let data: Vec<i16> = (0..30_000).map(|_| draw()).collect();
        for k in [1, 3, 4, 15, 16, 17, 31, 32, 33, 127, 129, 256, 300, 513] {
            for (lane_stride, k_stride) in [(1, 17), (k, 1), (3, 50)] {
                for (lanes, shift) in [(1, 0), (5, 1), (8, 0), (13, 5), (16, 0)] {
                    if lanes > all {
                        continue;
                    }
                    let data: Vec<i16> = data.iter().map(|q| q >> shift).collect();
                    let data = &data[..=(lanes - 1) * lane_stride + (k - 1) * k_stride];
                    let src = Lanes {
                        data,
                        lanes,
                        lane_stride,
                        k,
                        k_stride,
                    };
                    let layout = Layout::new(k, format, all);
                    for side in [Side::A, Side::B] {
                        // Not zeros: what is left as it was would not be seen among them.
                        let mut expected = vec![Line([7; LANES]); layout.lines];
                        let mut packed = expected.clone();
                        for block in 0..layout.blocks() {
                            pack_block(&src, side, format, &layout, block, &mut expected);
                            pack(&src, side, &layout, block, &mut packed);
                        }
                        let equal = expected.iter().zip(&packed).all(|(x, y)| x.0 == y.0);
                        assert!(
                            equal,
                            "{lanes} lanes of {k}, strides {lane_stride}, {k_stride}"
                        );
                    }
                }
            }
        }
    }
}
