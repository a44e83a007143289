//! Cuts a product into packing and tile tasks and runs them on the current rayon pool.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::convolve::Local;
use super::pack::{LANES, Lanes, Layout, Line, Side};
use super::tile::{Isa, Packed, TileJob, TileSums};
use super::{BLOCK, Epilogue, MatRef};

/// Terms packed at a time: longer sums are taken in stretches.
const MAX_STRETCH: usize = 16 * BLOCK;
/// Lines of packed A and B at a time (8 MiB, 16 MiB): B's are read by all threads.
const MAX_A_LINES: usize = 8 << 14;
const MAX_B_LINES: usize = 16 << 14;
/// Lines of one packed operand that stay in a core's second-level cache while the other streams
/// past (512 KiB).
const HOT_LINES: usize = 8 << 10;
/// Groups that a task packs together, block by block: they share cache lines when the lanes are
/// contiguous in memory.
const PACK_RUN: usize = 4;
/// Tasks for each thread, so that the last ones end at about the same time.
const TASKS_PER_THREAD: usize = 32;

/// Packed operands and unfinished sums, kept from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    /// Of each operand, all that is packed at a time, or what each thread packs in passing.
    a: Vec<Line>,
    pub b: Vec<Line>,
    sums: Vec<TileSums>,
    /// Of each thread that works on patches.
    pub locals: Vec<Local>,
    /// Only the calling thread works.
    alone: bool,
}

impl Scratch {
    /// From now on only the calling thread works.
    pub(super) fn work_alone(&mut self) {
        self.alone = true;
    }

    pub fn threads(&self) -> usize {
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
pub(super) struct Split {
    total: usize,
    pub count: usize,
}

impl Split {
    /// The fewest runs of at most `most` things.
    pub fn at_most(total: usize, most: usize) -> Self {
        Self {
            total,
            count: total.div_ceil(most.max(1)),
        }
    }

    /// `wanted` runs, or as many as there are things.
    fn in_about(total: usize, wanted: usize) -> Self {
        let count = wanted.clamp(1, total.max(1));
        Self { total, count }
    }

    fn start(&self, i: usize) -> usize {
        // total * count stays far below 2^64: both count elements of a slice or its blocks.
        self.total * i / self.count
    }

    pub fn range(&self, i: usize) -> Range<usize> {
        self.start(i)..self.start(i + 1)
    }
}

/// A slice of which tasks write disjoint pieces.
pub(super) struct Pieces<T>(*mut T);

// SAFETY: pieces handed out are disjoint, by the contract of `get`.
unsafe impl<T: Send> Sync for Pieces<T> {}

impl<T> Pieces<T> {
    pub fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// # Safety
    /// `start .. start + len` is within the slice, and overlaps no other piece in use.
    #[allow(clippy::mut_from_ref)] // the contract stands in for the borrow checker
    pub unsafe fn get(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }

    /// # Safety
    /// `start .. start + len` is within the slice, and nobody writes it meanwhile.
    unsafe fn read(&self, start: usize, len: usize) -> &[T] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(self.0.add(start), len) }
    }
}

/// Runs tasks `0 .. count` on so many threads of the current pool: `task(thread, i)`, where no two
/// that run at the same time have one `thread`, a number below `threads`.
pub(super) fn run_tasks(threads: usize, count: usize, task: impl Fn(usize, usize) + Sync) {
    let threads = threads.min(count);
    if threads <= 1 {
        return (0..count).for_each(|i| task(0, i));
    }
    let next = AtomicUsize::new(0);
    let work = |thread| {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                break;
            }
            task(thread, i);
        }
    };
    let work = &work;
    rayon::scope(|scope| {
        for thread in 1..threads {
            scope.spawn(move |_| work(thread));
        }
        work(0);
    });
}

pub(super) fn grow(buffer: &mut Vec<Line>, len: usize) {
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
    layouts: Layouts,
}

/// How the groups of A and B are packed.
#[derive(Debug, Clone, Copy)]
struct Layouts {
    a: Layout,
    b: Layout,
}

impl Layouts {
    /// For so many terms.
    fn new<I: Isa>(k: usize) -> Self {
        Self {
            a: Layout::new(k, I::HIGHS, I::A_LANES),
            b: Layout::new(k, I::HIGHS, LANES),
        }
    }
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

    fn order(&self) -> Order {
        if self.groups.len() * self.layouts.b.lines <= HOT_LINES {
            Order::ByRow
        } else if self.panels.len() * self.layouts.a.lines <= HOT_LINES {
            Order::ByColumn
        } else {
            Order::Blocked
        }
    }

    /// Packs what of A and B is not packed in passing; B's also not if it still is packed.
    ///
    /// # Safety
    /// The machine has the instructions of `I`.
    unsafe fn pack<I: Isa>(&self, scratch: &mut Scratch, packs_b: bool) {
        let (a, b) = (self.layouts.a.lines, self.layouts.b.lines);
        let threads = scratch.threads();
        let order = self.order();
        let (mut panels, mut groups) = (self.panels.len(), self.groups.len());
        match order {
            Order::ByRow => {
                grow(&mut scratch.a, threads * a);
                grow(&mut scratch.b, groups * b);
                panels = 0;
            }
            Order::ByColumn => {
                grow(&mut scratch.a, panels * a);
                grow(&mut scratch.b, threads * I::GROUPS * b);
                groups = 0;
            }
            Order::Blocked => {
                grow(&mut scratch.a, panels * a);
                grow(&mut scratch.b, groups * b);
            }
        }
        let packed_a = Pieces::new(&mut scratch.a);
        let packed_b = Pieces::new(&mut scratch.b);
        let a_runs = Split::at_most(panels, PACK_RUN);
        let b_runs = Split::at_most(if packs_b { groups } else { 0 }, PACK_RUN);
        run_tasks(threads, a_runs.count + b_runs.count, |_, task| {
            // SAFETY: each group is one task's and inside the buffer.
            unsafe {
                match task.checked_sub(a_runs.count) {
                    None => {
                        let run = a_runs.range(task);
                        let to = packed_a.get(run.start * a, run.len() * a);
                        self.pack_run::<I>(Side::A, run, to);
                    }
                    Some(task) => {
                        let run = b_runs.range(task);
                        let to = packed_b.get(run.start * b, run.len() * b);
                        self.pack_run::<I>(Side::B, run, to);
                    }
                }
            }
        });
    }

    /// Packs some panels of A or groups of B, block by block: they share cache lines.
    ///
    /// # Safety
    /// The machine has the instructions of `I`; `to` has the lines of the run.
    unsafe fn pack_run<I: Isa>(&self, side: Side, run: Range<usize>, to: &mut [Line]) {
        let layout = match side {
            Side::A => &self.layouts.a,
            Side::B => &self.layouts.b,
        };
        for block in 0..layout.blocks() {
            for (i, group) in run.clone().zip(to.chunks_exact_mut(layout.lines)) {
                let (mat, lanes) = match side {
                    Side::A => (self.a, self.rows(i)),
                    Side::B => (self.b, self.cols(i, 1)),
                };
                let src = Lanes::new(mat, lanes, self.terms.clone());
                // SAFETY: passed on from the caller.
                unsafe { I::pack(&src, side, layout, block, group) };
            }
        }
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
        let (a_lines, b_lines) = (self.layouts.a.lines, self.layouts.b.lines);
        let packed_a = Pieces::new(&mut scratch.a);
        let packed_b = Pieces::new(&mut scratch.b);
        let work = Work {
            part: self,
            tiles: self.groups.len().div_ceil(I::GROUPS),
            unfinished: Pieces::new(&mut scratch.sums),
            epilogue,
            stretch,
        };
        let threads = scratch.threads();
        let wanted = threads * TASKS_PER_THREAD;
        match self.order() {
            Order::ByRow => {
                let runs = Split::in_about(self.panels.len(), wanted);
                run_tasks(threads, runs.count, |thread, task| {
                    let mut local = TileSums::ZERO;
                    for panel in runs.range(task) {
                        // SAFETY: the thread's own place; B is only read by now.
                        unsafe {
                            let a = packed_a.get(thread * a_lines, a_lines);
                            self.pack_run::<I>(Side::A, panel..panel + 1, a);
                            let b = packed_b.read(0, self.groups.len() * b_lines);
                            for (tile, b) in b.chunks(I::GROUPS * b_lines).enumerate() {
                                work.ask_for::<I>(panel, tile + 1);
                                work.tile::<I>((panel, tile), (a, b), &[], &mut local);
                            }
                        }
                    }
                });
            }
            Order::ByColumn => {
                let strips = Split::in_about(work.tiles, wanted);
                run_tasks(threads, strips.count, |thread, task| {
                    let mut local = TileSums::ZERO;
                    for tile in strips.range(task) {
                        let first = tile * I::GROUPS;
                        let groups = first..self.groups.len().min(first + I::GROUPS);
                        // SAFETY: the thread's own place; A is only read by now.
                        unsafe {
                            let place = thread * I::GROUPS * b_lines;
                            let b = packed_b.get(place, groups.len() * b_lines);
                            self.pack_run::<I>(Side::B, groups, b);
                            let a = packed_a.read(0, self.panels.len() * a_lines);
                            for (panel, a) in a.chunks_exact(a_lines).enumerate() {
                                work.tile::<I>((panel, tile), (a, b), &[], &mut local);
                            }
                        }
                    }
                });
            }
            Order::Blocked => {
                let hot = Split::at_most(self.panels.len(), HOT_LINES / a_lines);
                let strips = Split::in_about(work.tiles, wanted.div_ceil(hot.count));
                run_tasks(threads, hot.count * strips.count, |_, task| {
                    let panels = hot.range(task / strips.count);
                    let mut local = TileSums::ZERO;
                    for tile in strips.range(task % strips.count) {
                        let first = tile * I::GROUPS * b_lines;
                        // SAFETY: A and B are only read by now.
                        let (a, b) = unsafe {
                            let a = packed_a.read(panels.start * a_lines, panels.len() * a_lines);
                            (a, packed_b.read(first, self.groups.len() * b_lines - first))
                        };
                        let (b, rest) = b.split_at(b.len().min(I::GROUPS * b_lines));
                        // While a panel's tile is computed, its share of the B that comes next is
                        // fetched.
                        let next = &rest[..rest.len().min(I::GROUPS * b_lines)];
                        let shares = next.chunks(next.len().div_ceil(panels.len()).max(1));
                        let shares = shares.chain(std::iter::repeat(&[][..]));
                        let a = a.chunks_exact(a_lines);
                        for ((panel, a), next) in panels.clone().zip(a).zip(shares) {
                            // SAFETY: passed on from the caller.
                            unsafe { work.tile::<I>((panel, tile), (a, b), next, &mut local) };
                        }
                    }
                });
            }
        }
    }
}

/// In which order the tiles of a part are computed.
enum Order {
    /// All of packed B stays in a core's second-level cache: A's panels come one after the other,
    /// each packed when its turn comes, and C is written row by row.
    ByRow,
    /// All of packed A does: the tiles of B come one after the other.
    ByColumn,
    /// Neither does: as many panels as stay there, with all of B.
    Blocked,
}

/// What all tiles of a part share.
struct Work<'a, E> {
    part: &'a Part<'a>,
    /// Tiles across.
    tiles: usize,
    unfinished: Pieces<TileSums>,
    epilogue: &'a E,
    stretch: Stretch,
}

impl<E: Epilogue> Work<'_, E> {
    /// Computes the tile at (panel, tile) from packed A and B, in `local` unless its sums go on.
    ///
    /// # Safety
    /// The machine has the instructions of `I`; no two calls for one tile run at a time.
    unsafe fn tile<I: Isa>(
        &self,
        (panel, tile): (usize, usize),
        (a, b): (&[Line], &[Line]),
        next: &[Line],
        local: &mut TileSums,
    ) {
        let part = self.part;
        let rows = part.rows(panel);
        let job = TileJob {
            rows: rows.len(),
            a: Packed {
                layout: &part.layouts.a,
                lines: a,
            },
            b: Packed {
                layout: &part.layouts.b,
                lines: b,
            },
            next,
        };
        // SAFETY: each tile, with its sums and its piece of C, is one call's; the rest is passed
        // on from the caller.
        unsafe {
            let sums = if self.stretch.is_first && self.stretch.is_last {
                local
            } else {
                &mut self.unfinished.get(panel * self.tiles + tile, 1)[0]
            };
            I::tile(&job, sums, !self.stretch.is_first);
            if self.stretch.is_last {
                let cols = part.cols(tile * I::GROUPS, b.len() / part.layouts.b.lines);
                I::finish(self.epilogue, sums, rows, cols);
            }
        }
    }

    /// Has the epilogue fetch what it needs for a tile, if there is one.
    fn ask_for<I: Isa>(&self, panel: usize, tile: usize) {
        if self.stretch.is_last && tile < self.tiles {
            let cols = self.part.cols(tile * I::GROUPS, I::GROUPS);
            for row in self.part.rows(panel) {
                self.epilogue.ask_for(row, cols.clone());
            }
        }
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
    let longest = Layouts::new::<I>(k.min(blocks.div_ceil(stretches.count) * BLOCK));
    let a_parts = Split::at_most(all_panels.count, MAX_A_LINES / longest.a.lines);
    // In tiles, so that only the last may be narrow.
    let all_tiles = groups.div_ceil(I::GROUPS);
    let b_parts = Split::at_most(all_tiles, MAX_B_LINES / longest.b.lines / I::GROUPS);
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
                    layouts: Layouts::new::<I>(terms.len()),
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
