//! Cuts a product into packing and tile tasks and runs them on the current rayon pool.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pack::{LANES, Lanes, Layout, Line, Side};
use super::tile::{Isa, TileJob, TileSums};
use super::{BLOCK, Epilogue, MatRef};

/// Terms packed at a time: longer sums are taken in stretches.
const MAX_STRETCH: usize = 16 * BLOCK;
/// Lines of packed A and B at a time (8 MiB, 16 MiB): B's are read by all threads.
const MAX_A_LINES: usize = 8 << 14;
const MAX_B_LINES: usize = 16 << 14;
/// Lines of packed A that stay in a core's second-level cache while B streams past (512 KiB).
const HOT_A_LINES: usize = 8 << 10;
/// Groups that a task packs together, block by block: they share cache lines when the lanes are
/// contiguous in memory.
const PACK_RUN: usize = 4;
/// Tasks for each thread, so that the last ones end at about the same time.
const TASKS_PER_THREAD: usize = 8;

/// Packed operands and unfinished sums, kept from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    a: Vec<Line>,
    b: Vec<Line>,
    sums: Vec<TileSums>,
    /// Only the calling thread works.
    alone: bool,
}

impl Scratch {
    /// From now on only the calling thread works.
    pub(super) fn work_alone(&mut self) {
        self.alone = true;
    }

    fn threads(&self) -> usize {
        if self.alone {
            1
        } else {
            rayon::current_num_threads()
        }
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// `total` things cut into `count` runs that differ by at most one.
#[derive(Debug, Clone, Copy)]
struct Split {
    total: usize,
    count: usize,
}

impl Split {
    /// The fewest runs of at most `most` things.
    fn at_most(total: usize, most: usize) -> Self {
        Self {
            total,
            count: total.div_ceil(most.max(1)),
        }
    }

    fn start(&self, i: usize) -> usize {
        // total * count stays far below 2^64: both count elements of a slice or its blocks.
        self.total * i / self.count
    }

    fn range(&self, i: usize) -> Range<usize> {
        self.start(i)..self.start(i + 1)
    }
}

/// A slice of which tasks write disjoint pieces.
struct Pieces<T>(*mut T);

// SAFETY: pieces handed out are disjoint, by the contract of `get`.
unsafe impl<T: Send> Sync for Pieces<T> {}

impl<T> Pieces<T> {
    /// # Safety
    /// `start .. start + len` is within the slice, and overlaps no other piece in use.
    #[allow(clippy::mut_from_ref)] // the contract stands in for the borrow checker
    unsafe fn get(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Runs tasks `0 .. count` on so many threads of the current pool.
fn run_tasks(threads: usize, count: usize, task: impl Fn(usize) + Sync) {
    let threads = threads.min(count);
    if threads <= 1 {
        return (0..count).for_each(task);
    }
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                break;
            }
            task(i);
        }
    };
    rayon::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| work());
        }
        work();
    });
}

fn grow(buffer: &mut Vec<Line>, len: usize) {
    buffer.resize(len.max(buffer.len()), Line::ZERO);
}

/// The rows, columns and terms of a product that are packed at one time.
struct Part<'a> {
    a: MatRef<'a>,
    /// B transposed: a column of the product is a row of it.
    b: MatRef<'a>,
    /// Rows of A in panels, a group each, and which of them are in this part.
    all_panels: Split,
    panels: Range<usize>,
    /// Groups of columns in this part.
    groups: Range<usize>,
    terms: Range<usize>,
    layout: Layout,
}

/// What one stretch of K contributes.
#[derive(Clone, Copy)]
struct Stretch {
    is_first: bool,
    is_last: bool,
}

impl Part<'_> {
    fn rows(&self, panel: usize) -> Range<usize> {
        self.all_panels.range(self.panels.start + panel)
    }

    fn cols(&self, group: usize, groups: usize) -> Range<usize> {
        let first = (self.groups.start + group) * LANES;
        first..self.b.rows.min(first + groups * LANES)
    }

    /// Packs the part of A, and that of B unless it still is.
    ///
    /// # Safety
    /// The machine has the instructions of `I`.
    unsafe fn pack<I: Isa>(&self, scratch: &mut Scratch, packs_b: bool) {
        let lines = self.layout.lines;
        grow(&mut scratch.a, self.panels.len() * lines);
        grow(&mut scratch.b, self.groups.len() * lines);
        let packed_a = Pieces(scratch.a.as_mut_ptr());
        let packed_b = Pieces(scratch.b.as_mut_ptr());
        let a_runs = Split::at_most(self.panels.len(), PACK_RUN);
        let b_groups = if packs_b { self.groups.len() } else { 0 };
        let b_runs = Split::at_most(b_groups, PACK_RUN);
        run_tasks(scratch.threads(), a_runs.count + b_runs.count, |task| {
            let (side, run) = match task.checked_sub(a_runs.count) {
                None => (Side::A, a_runs.range(task)),
                Some(task) => (Side::B, b_runs.range(task)),
            };
            for block in 0..self.layout.blocks() {
                for i in run.clone() {
                    let (mat, lanes, packed) = match side {
                        Side::A => (self.a, self.rows(i), &packed_a),
                        Side::B => (self.b, self.cols(i, 1), &packed_b),
                    };
                    let src = Lanes::new(mat, lanes, self.terms.clone());
                    // SAFETY: each group is one task's and inside the buffer.
                    unsafe {
                        let group = packed.get(i * lines, lines);
                        I::pack(&src, side, &self.layout, block, group);
                    }
                }
            }
        });
    }

    /// Computes all tiles of the part and hands the finished ones to the epilogue.
    ///
    /// # Safety
    /// The machine has the instructions of `I`, for which the part is packed; the epilogue is for
    /// the whole product; `scratch.sums` has a place for each tile unless the stretch is the only
    /// one.
    unsafe fn multiply<I: Isa, E: Epilogue>(
        &self,
        scratch: &mut Scratch,
        epilogue: &E,
        stretch: Stretch,
    ) {
        let lines = self.layout.lines;
        let packed_a = &scratch.a[..self.panels.len() * lines];
        let packed_b = &scratch.b[..self.groups.len() * lines];
        let unfinished = Pieces(scratch.sums.as_mut_ptr());
        let tiles = self.groups.len().div_ceil(I::GROUPS);
        let hot = Split::at_most(self.panels.len(), HOT_A_LINES / lines);
        let threads = scratch.threads();
        let wanted = (threads * TASKS_PER_THREAD).div_ceil(hot.count);
        let strips = Split {
            total: tiles,
            count: wanted.clamp(1, tiles),
        };
        run_tasks(threads, hot.count * strips.count, |task| {
            let panels = hot.range(task / strips.count);
            let mut local = TileSums::ZERO;
            for tile in strips.range(task % strips.count) {
                let group = tile * I::GROUPS;
                let here = &packed_b[group * lines..];
                let (b, rest) = here.split_at(here.len().min(I::GROUPS * lines));
                // While a panel's tile is computed, its share of the B that comes next is fetched.
                let next = &rest[..rest.len().min(I::GROUPS * lines)];
                let shares = next.chunks(next.len().div_ceil(panels.len()).max(1));
                let shares = shares.chain(std::iter::repeat(&[][..]));
                for (panel, next) in panels.clone().zip(shares) {
                    let rows = self.rows(panel);
                    let job = TileJob {
                        layout: &self.layout,
                        rows: rows.len(),
                        a: &packed_a[panel * lines..][..lines],
                        b,
                        next,
                    };
                    // SAFETY: each tile, with its sums and its piece of C, is one task's; the rest
                    // is passed on from the caller.
                    unsafe {
                        let sums = if stretch.is_first && stretch.is_last {
                            &mut local
                        } else {
                            &mut unfinished.get(panel * tiles + tile, 1)[0]
                        };
                        I::tile(&job, sums, !stretch.is_first);
                        if stretch.is_last {
                            let cols = self.cols(group, b.len() / lines);
                            I::finish(epilogue, sums, rows, cols);
                        }
                    }
                }
            }
        });
    }
}

/// Hands every accumulator of `a * b` to the epilogue, whose shape is that of the product.
///
/// # Safety
/// The machine has the instructions of `I`.
pub(super) unsafe fn run<I: Isa, E: Epilogue>(
    a: MatRef<'_>,
    b: MatRef<'_>,
    epilogue: &E,
    scratch: &mut Scratch,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        let zeros = vec![0i64; n];
        for row in 0..m {
            // SAFETY: row by row, on one thread.
            unsafe { epilogue.store(row, 0, &zeros) };
        }
        return;
    }
    let all_panels = Split::at_most(m, I::ROWS);
    let groups = n.div_ceil(LANES);
    let blocks = k.div_ceil(BLOCK);
    let stretches = Split::at_most(blocks, MAX_STRETCH / BLOCK);
    let longest = Layout::new(k.min(blocks.div_ceil(stretches.count) * BLOCK), I::HIGHS);
    let a_parts = Split::at_most(all_panels.count, MAX_A_LINES / longest.lines);
    // In tiles, so that only the last may be narrow.
    let all_tiles = groups.div_ceil(I::GROUPS);
    let b_parts = Split::at_most(all_tiles, MAX_B_LINES / longest.lines / I::GROUPS);
    for b_part in 0..b_parts.count {
        let tiles = b_parts.range(b_part);
        for a_part in 0..a_parts.count {
            let panels = a_parts.range(a_part);
            if stretches.count > 1 {
                let count = panels.len() * tiles.len();
                scratch
                    .sums
                    .resize_with(count.max(scratch.sums.len()), || TileSums::ZERO);
            }
            for i in 0..stretches.count {
                let terms = stretches.start(i) * BLOCK..k.min(stretches.start(i + 1) * BLOCK);
                let part = Part {
                    a,
                    b: b.t(),
                    all_panels,
                    panels: panels.clone(),
                    groups: tiles.start * I::GROUPS..groups.min(tiles.end * I::GROUPS),
                    layout: Layout::new(terms.len(), I::HIGHS),
                    terms,
                };
                let stretch = Stretch {
                    is_first: i == 0,
                    is_last: i + 1 == stretches.count,
                };
                // SAFETY: passed on from the caller; B stays packed from one part of A to the next
                // if all its terms are.
                unsafe {
                    part.pack::<I>(scratch, a_part == 0 || stretches.count > 1);
                    part.multiply::<I, E>(scratch, epilogue, stretch);
                }
            }
        }
    }
}
