//! One register tile of C over all of a packed stretch of K (see the proof in `super`).

#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;
use std::ops::Range;

use super::pack::{Bound, Highs, LANES, Lanes, Layout, Line, Side};
use super::{BLOCK, Epilogue, WIDE_BLOCK};

/// Most rows and columns of any instruction set's tile.
pub(super) const MAX_ROWS: usize = 14;
pub(super) const MAX_COLS: usize = 32;

/// Lines between what is read and what is asked for.
const AHEAD: usize = 6;

/// The accumulators of a tile, row by row.
#[repr(C, align(64))]
pub(super) struct TileSums(pub [[i64; MAX_COLS]; MAX_ROWS]);

impl TileSums {
    pub const ZERO: Self = Self([[0; MAX_COLS]; MAX_ROWS]);
}

/// The accumulators of a tile whose sums fit 32 bits.
#[repr(C, align(64))]
pub(super) struct NarrowSums(pub [[i32; MAX_COLS]; MAX_ROWS]);

impl NarrowSums {
    pub const ZERO: Self = Self([[0; MAX_COLS]; MAX_ROWS]);
}

/// A tile whose rows lie in memory as they are: a fixed step apart, each made of runs of pairs.
#[derive(Clone, Copy)]
pub(super) struct LooseJob<'a> {
    /// Rows and columns of C, the first lanes of `b`.
    pub rows: usize,
    pub cols: usize,
    /// From the first row's first element on.
    pub data: &'a [i16],
    /// Elements from a row to the next.
    pub step: usize,
    /// Pairs of a run; elements from a pair to the next, and from a run to the next.
    pub pairs: usize,
    pub pair_step: usize,
    pub run_step: usize,
    pub layout: &'a Layout,
    /// Packed, its terms those runs.
    pub b: &'a [Line],
}

/// Where the sums of a loose tile go.
pub(super) enum To<'a> {
    /// There, modulo 2^32.
    Narrow(&'a mut NarrowSums),
    /// To what is there.
    Add(&'a mut TileSums),
}

/// Groups of an operand, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub layout: &'a Layout,
    pub lines: &'a [Line],
}

impl Packed<'_> {
    /// What is known of a block of all groups.
    fn bound(&self, block: usize) -> Bound {
        let groups = self.lines.chunks_exact(self.layout.lines);
        let bounds = groups.map(|group| bound(self.layout, group, block));
        bounds.fold(Bound { norm: 0, wide: 0 }, |all, more| Bound {
            norm: all.norm.max(more.norm),
            wide: all.wide | more.wide,
        })
    }
}

/// The packed operands of a tile.
#[derive(Clone, Copy)]
pub(super) struct TileJob<'a> {
    /// Rows of C, the first lanes of `a`.
    pub rows: usize,
    /// One group.
    pub a: Packed<'a>,
    /// As many groups as the tile is wide.
    pub b: Packed<'a>,
    /// What a later tile reads: asked for meanwhile.
    pub next: &'a [Line],
}

/// An instruction set: a few int32 vector operations, and entry points compiled with its features.
///
/// # Safety
/// All functions need a machine that has the instructions.
pub(super) unsafe trait Isa {
    /// A vector of int32.
    type Vector: Copy;
    /// int32 of a vector; divides 16.
    const WIDTH: usize;
    /// Rows and groups of columns of its largest tile.
    const ROWS: usize;
    const GROUPS: usize;
    /// Lanes of a group of A; the other half of a line would be read for nothing.
    const A_LANES: usize = if Self::ROWS <= LANES / 2 {
        LANES / 2
    } else {
        LANES
    };
    const HIGHS: Highs;

    unsafe fn zero() -> Self::Vector;
    unsafe fn load(from: *const u32) -> Self::Vector;
    unsafe fn store(to: *mut i32, x: Self::Vector);
    /// The word at `from`, which need not be aligned, in every lane.
    unsafe fn splat(from: *const u32) -> Self::Vector;
    /// Asks for a line that is read soon; it may lie anywhere.
    unsafe fn prefetch(at: *const u32);
    /// Asks for a line that is read later, into a larger cache.
    unsafe fn prefetch_far(at: *const Line);
    unsafe fn add(x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// `-(x << 16)`, modulo 2^32.
    unsafe fn negate_shift16(x: Self::Vector) -> Self::Vector;
    /// `acc` plus two int16 products a lane, modulo 2^32.
    unsafe fn dot_words(acc: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `acc` plus the products of a lane's high limbs, A's as [`Highs`] and [`Side`] say.
    unsafe fn dot_highs(acc: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Two sums of `dot`, one of the functions above, in the order that suits the instruction set.
    #[inline(always)]
    unsafe fn dot_two(
        dot: impl Fn(Self::Vector, Self::Vector, Self::Vector) -> Self::Vector,
        acc: [Self::Vector; 2],
        a: Self::Vector,
        b: [Self::Vector; 2],
    ) -> [Self::Vector; 2] {
        [dot(acc[0], a, b[0]), dot(acc[1], a, b[1])]
    }
    /// `to = high * 2^16 + low`, or `to +=` that if `add`, in int64.
    unsafe fn widen(to: *mut i64, high: Self::Vector, low: Self::Vector, add: bool);

    /// Packs a block of a group's terms, as [`super::pack::pack_block`] does.
    unsafe fn pack(src: &Lanes<'_>, side: Side, layout: &Layout, block: usize, group: &mut [Line]);
    /// [`tile`] for the job's rows and groups.
    unsafe fn tile(job: &TileJob<'_>, out: &mut TileSums, add: bool);
    /// [`finish`].
    unsafe fn finish<E: Epilogue>(
        epilogue: &E,
        sums: &TileSums,
        rows: Range<usize>,
        cols: Range<usize>,
    );
    /// [`loose`] for the job's rows and columns.
    unsafe fn loose(job: &LooseJob<'_>, lines: Range<usize>, out: To<'_>);
    /// [`finish_narrow`].
    unsafe fn finish_narrow<E: Epilogue>(
        epilogue: &E,
        sums: &NarrowSums,
        rows: Range<usize>,
        cols: Range<usize>,
    );
}

/// The entry points of an [`Isa`] whose tiles are a group wide and at most six rows high; all get
/// the attributes, which turn its instructions on.
macro_rules! one_group_entries {
    ($(#[$attribute:meta])*) => {
        $(#[$attribute])*
        unsafe fn tile(
            job: &$crate::gemm::tile::TileJob<'_>,
            out: &mut $crate::gemm::tile::TileSums,
            add: bool,
        ) {
            $(#[$attribute])*
            unsafe fn rows<I: Isa, const R: usize, const N: usize>(
                job: &$crate::gemm::tile::TileJob<'_>,
                out: &mut $crate::gemm::tile::TileSums,
                add: bool,
            ) {
                $crate::gemm::tile::tile::<I, R, N>(job, out, add);
            }
            const { assert!(Self::GROUPS == 1 && Self::ROWS <= 6) };
            match job.rows {
                1 => rows::<Self, 1, { $crate::gemm::pack::LANES / Self::WIDTH }>(job, out, add),
                2 => rows::<Self, 2, { $crate::gemm::pack::LANES / Self::WIDTH }>(job, out, add),
                3 => rows::<Self, 3, { $crate::gemm::pack::LANES / Self::WIDTH }>(job, out, add),
                4 => rows::<Self, 4, { $crate::gemm::pack::LANES / Self::WIDTH }>(job, out, add),
                5 => rows::<Self, 5, { $crate::gemm::pack::LANES / Self::WIDTH }>(job, out, add),
                _ => rows::<Self, 6, { $crate::gemm::pack::LANES / Self::WIDTH }>(job, out, add),
            }
        }

        $(#[$attribute])*
        unsafe fn finish<E: $crate::gemm::Epilogue>(
            epilogue: &E,
            sums: &$crate::gemm::tile::TileSums,
            rows: std::ops::Range<usize>,
            cols: std::ops::Range<usize>,
        ) {
            $crate::gemm::tile::finish(epilogue, sums, rows, cols);
        }

        $(#[$attribute])*
        unsafe fn loose(
            job: &$crate::gemm::tile::LooseJob<'_>,
            lines: std::ops::Range<usize>,
            out: $crate::gemm::tile::To<'_>,
        ) {
            $(#[$attribute])*
            unsafe fn rows<I: Isa, const R: usize, const HALF: usize, const ALL: usize>(
                job: &$crate::gemm::tile::LooseJob<'_>,
                lines: std::ops::Range<usize>,
                out: $crate::gemm::tile::To<'_>,
            ) {
                if job.cols <= HALF * I::WIDTH {
                    $crate::gemm::tile::loose::<I, R, HALF>(job, lines, out);
                } else {
                    $crate::gemm::tile::loose::<I, R, ALL>(job, lines, out);
                }
            }
            macro_rules! rows {
                ($r:literal) => {
                    rows::<
                        Self,
                        $r,
                        { $crate::gemm::pack::LANES / Self::WIDTH / 2 },
                        { $crate::gemm::pack::LANES / Self::WIDTH },
                    >(job, lines, out)
                };
            }
            match job.rows {
                1 => rows!(1),
                2 => rows!(2),
                3 => rows!(3),
                4 => rows!(4),
                5 => rows!(5),
                _ => rows!(6),
            }
        }

        $(#[$attribute])*
        unsafe fn finish_narrow<E: $crate::gemm::Epilogue>(
            epilogue: &E,
            sums: &$crate::gemm::tile::NarrowSums,
            rows: std::ops::Range<usize>,
            cols: std::ops::Range<usize>,
        ) {
            $crate::gemm::tile::finish_narrow(epilogue, sums, rows, cols);
        }
    };
}
pub(super) use one_group_entries;

/// Hands a tile to the epilogue; it covers these rows and columns of C.
///
/// # Safety
/// As [`Epilogue::store`].
#[inline(always)]
pub(super) unsafe fn finish<E: Epilogue>(
    epilogue: &E,
    sums: &TileSums,
    rows: Range<usize>,
    cols: Range<usize>,
) {
    for i in 0..rows.len() {
        // SAFETY: passed on from the caller.
        unsafe { epilogue.store(rows.start + i, cols.start, &sums.0[i][..cols.len()]) };
    }
}

/// As [`finish`], of sums below 2^30.
///
/// # Safety
/// As [`Epilogue::store`].
#[inline(always)]
pub(super) unsafe fn finish_narrow<E: Epilogue>(
    epilogue: &E,
    sums: &NarrowSums,
    rows: Range<usize>,
    cols: Range<usize>,
) {
    for i in 0..rows.len() {
        // SAFETY: passed on from the caller.
        unsafe { epilogue.store_narrow(rows.start + i, cols.start, &sums.0[i][..cols.len()]) };
    }
}

pub(super) fn bound(layout: &Layout, group: &[Line], block: usize) -> Bound {
    let line = &group[layout.bounds + block / 8].0;
    Bound {
        norm: line[block % 8 * 2],
        wide: line[block % 8 * 2 + 1],
    }
}

/// Computes a tile of `R` rows and `N` vectors: `out = sums`, or `out += sums` if `add`.
///
/// # Safety
/// The machine has the instructions of `I`; `R` is `job.rows`, at most [`MAX_ROWS`]; `N` vectors
/// are all the groups of `job.b`, at most [`MAX_COLS`] columns; the groups were packed for their
/// layouts, of the same terms, and the instruction set.
#[inline(always)]
pub(super) unsafe fn tile<I: Isa, const R: usize, const N: usize>(
    job: &TileJob<'_>,
    out: &mut TileSums,
    mut add: bool,
) {
    let Layout { k, .. } = *job.a.layout;
    let blocks = job.a.layout.blocks();
    // A bound on a block's |S|, and whether the block is wide.
    let bounds = |block| {
        let (a, b) = (job.a.bound(block), job.b.bound(block));
        (u64::from(a.norm) * u64::from(b.norm), a.wide | b.wide != 0)
    };
    let mut next = job.next.as_ptr_range();
    let mut block = 0;
    while block < blocks {
        // The longest run of blocks over which |S| < 2^31, by Cauchy and Schwarz.
        let start = block;
        let mut norm = 0;
        let mut wide = false;
        while block < blocks {
            let (more, is_wide) = bounds(block);
            if norm + more >= 1 << 31 {
                wide = is_wide;
                break;
            }
            norm += more;
            block += 1;
        }
        let exact = block > start;
        let step = match (exact, wide) {
            (true, _) => k,
            (false, false) => BLOCK,
            (false, true) => WIDE_BLOCK,
        };
        block = block.max(start + 1);
        let end = k.min(block * BLOCK);
        for first in (start * BLOCK..end).step_by(step) {
            let terms = first..end.min(first + step);
            // SAFETY: the terms lie within K; the rest is passed on.
            unsafe {
                if exact {
                    words::<I, R, N>(job, terms, out, add, &mut next);
                } else {
                    both::<I, R, N>(job, terms, out, add, &mut next);
                }
            }
            add = true;
        }
    }
}

/// Line `line` of the groups of B, from the part on that vector `v` of a tile takes.
#[inline(always)]
unsafe fn b_at<I: Isa>(job: &TileJob<'_>, line: usize, v: usize) -> *const u32 {
    let (group, offset) = (v * I::WIDTH / LANES, v * I::WIDTH % LANES);
    // SAFETY: the line lies within the group by the caller's contract.
    unsafe {
        let line = job.b.lines.as_ptr().add(group * job.b.layout.lines + line);
        line.cast::<u32>().add(offset)
    }
}

// The loops over rows and vectors below are by index: so they are unrolled wherever they are
// compiled, and what they work on stays in registers.

/// Adds to `sums` what `dot` makes of `x` and each of `row`.
#[inline(always)]
unsafe fn dot_row<I: Isa, const N: usize>(
    dot: impl Fn(I::Vector, I::Vector, I::Vector) -> I::Vector,
    sums: &mut [I::Vector; N],
    x: I::Vector,
    row: &[I::Vector; N],
) {
    if N == 2 {
        // SAFETY: passed on from the caller.
        [sums[0], sums[N - 1]] =
            unsafe { I::dot_two(dot, [sums[0], sums[N - 1]], x, [row[0], row[N - 1]]) };
    } else {
        for v in 0..N {
            sums[v] = dot(sums[v], x, row[v]);
        }
    }
}

/// Adds to `sums` what `dot` makes of `lines` of a part, counted from where it begins in A's and in
/// B's groups.
#[inline(always)]
unsafe fn dot_lines<I: Isa, const R: usize, const N: usize>(
    job: &TileJob<'_>,
    (part_of_a, part_of_b): (usize, usize),
    lines: Range<usize>,
    sums: &mut [[I::Vector; N]; R],
    next: &mut Range<*const Line>,
    dot: impl Fn(I::Vector, I::Vector, I::Vector) -> I::Vector,
) {
    // SAFETY: the lines lie within the groups by the caller's contract, and so does what is next.
    unsafe {
        let mut a = job.a.lines.as_ptr().add(part_of_a).cast::<u32>();
        a = a.add(lines.start * I::A_LANES);
        // Where a group of the tile begins; a tile of one group has one.
        let first = part_of_b + lines.start;
        let mut b = [b_at::<I>(job, first, 0); MAX_COLS / LANES];
        for (group, b) in b.iter_mut().enumerate().take(N * I::WIDTH / LANES) {
            *b = b_at::<I>(job, first, group * LANES / I::WIDTH);
        }
        let fetched = lines.len().min(next.end.offset_from_unsigned(next.start));
        // A macro: a closure would not have the instructions turned on.
        macro_rules! line {
            () => {
                let mut row = [I::zero(); N];
                for v in 0..N {
                    let (group, offset) = (v * I::WIDTH / LANES, v * I::WIDTH % LANES);
                    row[v] = I::load(b[group].add(offset));
                    if offset == 0 {
                        I::prefetch(b[group].wrapping_add(AHEAD * LANES));
                    }
                }
                for group in 0..N * I::WIDTH / LANES {
                    b[group] = b[group].add(LANES);
                }
                I::prefetch(a.wrapping_add(AHEAD * I::A_LANES));
                for r in 0..R {
                    let x = I::splat(a.add(r));
                    dot_row::<I, N>(&dot, &mut sums[r], x, &row);
                }
                a = a.add(I::A_LANES);
            };
        }
        for _ in 0..fetched {
            I::prefetch_far(next.start);
            next.start = next.start.add(1);
            line!();
        }
        for _ in fetched..lines.len() {
            line!();
        }
    }
}

/// Terms over which W alone is the sum.
#[inline(always)]
unsafe fn words<I: Isa, const R: usize, const N: usize>(
    job: &TileJob<'_>,
    terms: Range<usize>,
    out: &mut TileSums,
    add: bool,
    next: &mut Range<*const Line>,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let lines = terms.start / 2..terms.end / 2;
        let mut sums = [[I::zero(); N]; R];
        dot_lines::<I, R, N>(job, (0, 0), lines, &mut sums, next, |s, x, y| {
            I::dot_words(s, x, y)
        });
        for r in 0..R {
            for v in 0..N {
                let to = out.0[r].as_mut_ptr().add(v * I::WIDTH);
                I::widen(to, I::zero(), sums[r][v], add);
            }
        }
    }
}

/// Terms of at most a block, by H and W.
#[inline(always)]
unsafe fn both<I: Isa, const R: usize, const N: usize>(
    job: &TileJob<'_>,
    terms: Range<usize>,
    out: &mut TileSums,
    add: bool,
    next: &mut Range<*const Line>,
) {
    let (a, b) = (job.a.layout, job.b.layout);
    // SAFETY: passed on from the caller; the terms start at a half block.
    unsafe {
        let lines = terms.start / I::HIGHS.step()..terms.end / I::HIGHS.step();
        let mut sums = [[I::zero(); N]; R];
        dot_lines::<I, R, N>(
            job,
            (a.highs, b.highs),
            lines,
            &mut sums,
            next,
            |s, x, y| I::dot_highs(s, x, y),
        );
        let mut fixes = [I::zero(); N];
        if let Highs::Bytes = I::HIGHS {
            for half in terms.start / WIDE_BLOCK..terms.end.div_ceil(WIDE_BLOCK) {
                for v in 0..N {
                    fixes[v] = I::add(fixes[v], I::load(b_at::<I>(job, b.fixes + half, v)));
                }
            }
        }
        // From here on `highs` is H, and `sums` goes from -2^16 H to W - 2^16 H, which is E.
        let mut highs = [[MaybeUninit::uninit(); N]; R];
        for r in 0..R {
            for v in 0..N {
                let high = highs[r][v].write(I::add(sums[r][v], fixes[v]));
                sums[r][v] = I::negate_shift16(*high);
            }
        }
        let lines = terms.start / 2..terms.end / 2;
        dot_lines::<I, R, N>(job, (0, 0), lines, &mut sums, next, |s, x, y| {
            I::dot_words(s, x, y)
        });
        for r in 0..R {
            for v in 0..N {
                let to = out.0[r].as_mut_ptr().add(v * I::WIDTH);
                I::widen(to, highs[r][v].assume_init(), sums[r][v], add);
            }
        }
    }
}

/// Computes a tile of `R` rows and `N` vectors over the pairs `lines` of each row, modulo 2^32.
///
/// # Safety
/// The machine has the instructions of `I`; `R` is `job.rows`; `N` vectors lie in the groups of
/// `job.b`, which were packed for the layout; the pairs of all rows lie in `job.data`.
#[inline(always)]
pub(super) unsafe fn loose<I: Isa, const R: usize, const N: usize>(
    job: &LooseJob<'_>,
    lines: Range<usize>,
    mut out: To<'_>,
) {
    // SAFETY: the machine has the instructions.
    let mut sums = [[unsafe { I::zero() }; N]; R];
    let step = job.step;
    let mut line = lines.start;
    while line < lines.end {
        let (run, pair) = (line / job.pairs, line % job.pairs);
        let count = (job.pairs - pair).min(lines.end - line);
        // SAFETY: by the caller's contract.
        unsafe {
            let first = job
                .data
                .as_ptr()
                .add(run * job.run_step + pair * job.pair_step);
            // A place for every fourth row: from there the others are one address away.
            let mut a = [first; MAX_ROWS.div_ceil(4)];
            for i in 0..R.div_ceil(4) {
                a[i] = first.wrapping_add(4 * i * step);
            }
            let mut b = [job.b.as_ptr().add(line).cast::<u32>(); MAX_COLS / LANES];
            for (group, b) in b
                .iter_mut()
                .enumerate()
                .take((N * I::WIDTH).div_ceil(LANES))
            {
                *b = b.add(group * job.layout.lines * LANES);
            }
            for _ in 0..count {
                let mut row = [I::zero(); N];
                for v in 0..N {
                    let (group, offset) = (v * I::WIDTH / LANES, v * I::WIDTH % LANES);
                    row[v] = I::load(b[group].add(offset));
                }
                for group in 0..(N * I::WIDTH).div_ceil(LANES) {
                    b[group] = b[group].add(LANES);
                }
                for r in 0..R {
                    let x = I::splat(a[r / 4].add(r % 4 * step).cast());
                    let dot = |s, x, y| I::dot_words(s, x, y);
                    dot_row::<I, N>(dot, &mut sums[r], x, &row);
                }
                for i in 0..R.div_ceil(4) {
                    a[i] = a[i].wrapping_add(job.pair_step);
                }
            }
        }
        line += count;
    }
    for r in 0..R {
        for v in 0..N {
            // SAFETY: a tile's sums have that place.
            unsafe {
                match &mut out {
                    To::Narrow(out) => {
                        I::store(out.0[r].as_mut_ptr().add(v * I::WIDTH), sums[r][v]);
                    }
                    To::Add(out) => {
                        let to = out.0[r].as_mut_ptr().add(v * I::WIDTH);
                        I::widen(to, I::zero(), sums[r][v], true);
                    }
                }
            }
        }
    }
}
