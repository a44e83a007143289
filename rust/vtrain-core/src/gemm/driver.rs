//! Cuts a product into packing and tile tasks and runs them on the current rayon pool.

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

    fn range(&self, i: usize) -> std::ops::Range<usize> {
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

/// Runs tasks `0 .. count` on the threads of the current pool.
fn run_tasks(count: usize, task: impl Fn(usize) + Sync) {
    let threads = rayon::current_num_threads().min(count);
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

fn grow<T: Copy>(buffer: &mut Vec<T>, len: usize, zero: T) {
    if buffer.len() < len {
        buffer.resize(len, zero);
    }
}

/// Hands every accumulator of `a * b` to the epilogue.
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
            // SAFETY: the shapes were compared; one thread.
            unsafe { epilogue.store(row, 0, &zeros) };
        }
        return;
    }
    let b = b.t();
    let panels = Split::at_most(m, I::ROWS);
    let groups = n.div_ceil(LANES);
    let blocks = Split::at_most(k.div_ceil(BLOCK), MAX_STRETCH / BLOCK);
    // All stretches but the last have whole blocks, and none is longer than this.
    let longest = Layout::new(
        k.min(k.div_ceil(BLOCK).div_ceil(blocks.count) * BLOCK),
        I::HIGHS,
    );
    let a_parts = Split::at_most(panels.count, MAX_A_LINES / longest.lines);
    let b_parts = Split::at_most(
        groups.div_ceil(I::GROUPS),
        MAX_B_LINES / longest.lines / I::GROUPS,
    );
    for b_part in 0..b_parts.count {
        let tiles = b_parts.range(b_part);
        let part_groups = tiles.start * I::GROUPS..groups.min(tiles.end * I::GROUPS);
        for a_part in 0..a_parts.count {
            let part_panels = a_parts.range(a_part);
            let tile_count = part_panels.len() * tiles.len();
            if blocks.count > 1 {
                scratch.sums.clear();
                scratch.sums.resize_with(tile_count, || TileSums::ZERO);
            }
            for stretch in 0..blocks.count {
                let terms = blocks.start(stretch) * BLOCK..k.min(blocks.start(stretch + 1) * BLOCK);
                let layout = Layout::new(terms.len(), I::HIGHS);
                grow(&mut scratch.a, part_panels.len() * layout.lines, Line::ZERO);
                grow(&mut scratch.b, part_groups.len() * layout.lines, Line::ZERO);
                let packed_a = Pieces(scratch.a.as_mut_ptr());
                let packed_b = Pieces(scratch.b.as_mut_ptr());
                // B stays packed from one part of A to the next if all of K is.
                let packs_b = blocks.count > 1 || a_part == 0;
                let b_runs = Split::at_most(if packs_b { part_groups.len() } else { 0 }, PACK_RUN);
                let a_runs = Split::at_most(part_panels.len(), PACK_RUN);
                run_tasks(b_runs.count + a_runs.count, |task| {
                    let (side, run) = if task < b_runs.count {
                        (Side::B, b_runs.range(task))
                    } else {
                        (Side::A, a_runs.range(task - b_runs.count))
                    };
                    for block in 0..layout.blocks() {
                        for i in run.clone() {
                            let (mat, lanes, packed) = match side {
                                Side::A => (a, panels.range(part_panels.start + i), &packed_a),
                                Side::B => {
                                    let lane0 = (part_groups.start + i) * LANES;
                                    (b, lane0..n.min(lane0 + LANES), &packed_b)
                                }
                            };
                            let src = Lanes::new(mat, lanes, terms.clone());
                            // SAFETY: each group is one task's and inside the buffer.
                            unsafe {
                                let group = packed.get(i * layout.lines, layout.lines);
                                I::pack(&src, side, &layout, block, group);
                            }
                        }
                    }
                });

                let (packed_a, packed_b) = (
                    &scratch.a[..],
                    &scratch.b[..part_groups.len() * layout.lines],
                );
                let hot = Split::at_most(part_panels.len(), HOT_A_LINES / layout.lines);
                let wanted = (rayon::current_num_threads() * TASKS_PER_THREAD).div_ceil(hot.count);
                let strips = Split {
                    total: tiles.len(),
                    count: wanted.clamp(1, tiles.len()),
                };
                let is_last = stretch + 1 == blocks.count;
                let partial = Pieces(scratch.sums.as_mut_ptr());
                run_tasks(hot.count * strips.count, |task| {
                    let hot = hot.range(task / strips.count);
                    let mut local = TileSums::ZERO;
                    for tile in strips.range(task % strips.count) {
                        let group0 = tile * I::GROUPS;
                        let width = I::GROUPS.min(part_groups.len() - group0);
                        // Each panel's tile asks for a share of the B that comes next.
                        let after =
                            &packed_b[packed_b.len().min((group0 + I::GROUPS) * layout.lines)..];
                        let after = &after[..after.len().min(I::GROUPS * layout.lines)];
                        let share = after.len().div_ceil(hot.len()).max(1);
                        let shares = after.chunks(share).chain(std::iter::repeat(&[][..]));
                        for (panel, next) in hot.clone().zip(shares) {
                            let rows = panels.range(part_panels.start + panel);
                            let job = TileJob {
                                layout: &layout,
                                rows: rows.len(),
                                a: &packed_a[panel * layout.lines..][..layout.lines],
                                b: &packed_b[group0 * layout.lines..][..width * layout.lines],
                                next,
                            };
                            // SAFETY: each tile, with its sums and its piece of C, is one task's;
                            // the operands are packed for `I`; shapes were compared.
                            unsafe {
                                let sums = if blocks.count > 1 {
                                    &mut partial.get(panel * tiles.len() + tile, 1)[0]
                                } else {
                                    &mut local
                                };
                                I::tile(&job, sums, stretch > 0);
                                if is_last {
                                    let col0 = (part_groups.start + group0) * LANES;
                                    let cols = col0..n.min(col0 + width * LANES);
                                    I::finish(epilogue, sums, rows, cols);
                                }
                            }
                        }
                    }
                });
            }
        }
    }
}
