//! Products one of whose operands is made of patches of images, which are stored nowhere.
//!
//! Patches of a convolution are many times the image, and a product with few columns reads each of
//! them once or twice: to write and to pack them takes longer than to multiply. Here a band of an
//! image (see [`crate::window`]) is made in a core's first cache, and is an operand as it lies
//! there: the terms of a window are pairs of int16, which a tile reads word by word.
//!
//! * [`run_on`], `C = patches * b`: a tile reads the words of its windows from the band; `W` alone
//!   must be enough (see the proof in `super`). By Cauchy and Schwarz it is where
//!   `largest * sqrt(terms) * |b|` is small, `largest` being that of the band. Where it is not, the
//!   windows of a tile are packed as rows of A are.
//! * [`run_over`], `C = a * patches`, with a few sums of very many terms: threads do not share C
//!   but the terms, band by band, each with sums of its own, added up at the end.

use super::driver::{Pieces, Scratch, Split, grow, run_tasks};
use super::pack::{LANES, Lanes, Layout, Line, Side};
use super::tile::{Isa, NarrowSums, TileJob, TileSums, WindowsJob, bound};
use super::{BLOCK, Epilogue, MatRef, Patches};
use crate::ops::simd::vectorised;
use crate::window::Bands;

/// Sums below this in magnitude are handed over as int32.
const NARROW: u64 = 1 << 30;

/// What one thread works in.
#[derive(Default)]
pub(super) struct Local {
    band: Vec<i16>,
    rows: Vec<i16>,
    a: Vec<Line>,
    b: Vec<Line>,
    sums: Vec<TileSums>,
}

/// Columns of a tile, and what the largest element of A is multiplied by to bound its sums: over
/// all terms, and over any block.
struct Strip {
    first: usize,
    cols: usize,
    whole: u64,
    block: u64,
}

/// Hands every accumulator of `a * b` to the epilogue, whose shape is that of the product.
///
/// # Safety
/// The machine has the instructions of `I`.
pub(super) unsafe fn run_on<I: Isa, E: Epilogue>(
    a: Patches<'_>,
    b: MatRef<'_>,
    epilogue: &E,
    scratch: &mut Scratch,
) {
    let window = a.window;
    let run = window.kernel[1] * window.channels;
    // A run is filled up to whole pairs: what the image has there is multiplied by 0.
    let pairs = run.div_ceil(2);
    let k = window.kernel[0] * 2 * pairs;
    let filled = fill_runs(b, run);
    let b = match &filled {
        Some(filled) => MatRef {
            data: filled,
            rows: b.cols,
            cols: k,
            row_stride: k,
            col_stride: 1,
        },
        None => b.t(),
    };
    let layout = Layout::new(k, I::HIGHS);
    let (n, lines) = (b.rows, layout.lines);
    let groups = n.div_ceil(LANES);
    let threads = scratch.threads();
    grow(&mut scratch.b, groups * lines);
    let packed = Pieces::new(&mut scratch.b);
    run_tasks(threads, groups, |_, group| {
        let lanes = group * LANES..n.min((group + 1) * LANES);
        // SAFETY: each group is one task's; the rest is passed on from the caller.
        unsafe {
            let to = packed.get(group * lines, lines);
            pack::<I>(&Lanes::new(b, lanes, 0..k), Side::B, &layout, to);
        }
    });
    let packed = &scratch.b[..groups * lines];
    let wide = I::GROUPS * LANES;
    let strips: Vec<Strip> = packed
        .chunks(I::GROUPS * lines)
        .enumerate()
        .map(|(i, groups)| {
            let mut strip = Strip {
                first: i * wide,
                cols: wide.min(n - i * wide),
                whole: 0,
                block: 0,
            };
            for block in 0..layout.blocks() {
                let norms = groups.chunks_exact(lines);
                let norm = norms.map(|group| bound(&layout, group, block).norm);
                let terms = BLOCK.min(k - block * BLOCK);
                let root = (terms - 1).isqrt() as u64 + 1;
                let most = root * u64::from(norm.max().unwrap_or(0));
                strip.whole += most;
                strip.block = strip.block.max(most);
            }
            strip
        })
        .collect();
    let bands = Bands::new(window, a.images, usize::MAX);
    scratch
        .locals
        .resize_with(threads.max(scratch.locals.len()), Local::default);
    let locals = Pieces::new(&mut scratch.locals);
    let across = Split::at_most(window.columns, I::ROWS);
    let step = window.strides[1] * window.channels;
    run_tasks(threads, bands.count(), |thread, task| {
        // SAFETY: the thread's own.
        let local = unsafe { &mut locals.get(thread, 1)[0] };
        let (image, rows) = bands.get(task);
        window.fill_band(a.image(image), rows.clone(), &mut local.band);
        let largest = u64::from(largest(&local.band));
        for (strip, b) in strips.iter().zip(packed.chunks(I::GROUPS * lines)) {
            for row in rows.clone() {
                for part in 0..across.count {
                    let columns = across.range(part);
                    let at = (row - rows.start) * window.band_step() + columns.start * step;
                    let to = (image * window.rows + row) * window.columns + columns.start;
                    let job = WindowsJob {
                        rows: columns.len(),
                        cols: strip.cols,
                        pixels: &local.band[at..],
                        step,
                        pairs,
                        run_step: window.band_row(),
                        layout: &layout,
                        b,
                    };
                    let tile = Tile {
                        job,
                        epilogue,
                        row: to,
                        col: strip.first,
                        lines: window.kernel[0] * pairs,
                    };
                    // SAFETY: each tile is one task's; windows lie in the band, and a word more
                    // does; the rest is passed on from the caller.
                    unsafe {
                        if largest * strip.whole < NARROW {
                            tile.whole::<I>();
                        } else if largest * strip.block < 1 << 31 {
                            tile.by_blocks::<I>();
                        } else {
                            tile.packed::<I>(&mut local.rows, &mut local.a);
                        }
                    }
                }
            }
        }
    });
}

/// Columns of `b` as rows, with a zero after each run; None if runs are whole pairs already.
fn fill_runs(b: MatRef<'_>, run: usize) -> Option<Vec<i16>> {
    if run.is_multiple_of(2) {
        return None;
    }
    let mut filled = Vec::with_capacity(b.cols * b.rows / run * (run + 1));
    for col in 0..b.cols {
        for first in (0..b.rows).step_by(run) {
            filled.extend((first..first + run).map(|row| b.at(row, col) as i16));
            filled.push(0);
        }
    }
    Some(filled)
}

/// The largest magnitude.
fn largest(band: &[i16]) -> u16 {
    vectorised(
        #[inline(always)]
        move || band.iter().fold(0, |most, q| most.max(q.unsigned_abs())),
    )
}

/// # Safety
/// The machine has the instructions of `I`; `to` has the lines of the layout.
unsafe fn pack<I: Isa>(src: &Lanes<'_>, side: Side, layout: &Layout, to: &mut [Line]) {
    for block in 0..layout.blocks() {
        // SAFETY: passed on from the caller.
        unsafe { I::pack(src, side, layout, block, to) };
    }
}

/// A tile of windows, and where it lies in C.
struct Tile<'a, E> {
    job: WindowsJob<'a>,
    epilogue: &'a E,
    row: usize,
    col: usize,
    /// Words of a window.
    lines: usize,
}

impl<E: Epilogue> Tile<'_, E> {
    /// # Safety
    /// All sums are below [`NARROW`]; no other call is for this piece of C; as [`Isa::windows`].
    unsafe fn whole<I: Isa>(&self) {
        let mut sums = NarrowSums::new();
        let (rows, cols) = (
            self.row..self.row + self.job.rows,
            self.col..self.col + self.job.cols,
        );
        // SAFETY: passed on from the caller.
        unsafe {
            I::windows(&self.job, 0..self.lines, &mut sums);
            I::finish_narrow(self.epilogue, &sums, rows, cols);
        }
    }

    /// # Safety
    /// The sums over any block are below 2^31; the rest as [`Self::whole`].
    unsafe fn by_blocks<I: Isa>(&self) {
        let mut sums = TileSums::ZERO;
        for first in (0..self.lines).step_by(BLOCK / 2) {
            let mut part = NarrowSums::new();
            let lines = first..self.lines.min(first + BLOCK / 2);
            // SAFETY: passed on from the caller.
            unsafe { I::windows(&self.job, lines, &mut part) };
            let cols = self.job.cols;
            for (sums, part) in sums.0.iter_mut().zip(&part.0).take(self.job.rows) {
                for (sum, &part) in sums[..cols].iter_mut().zip(part) {
                    *sum += i64::from(part);
                }
            }
        }
        // SAFETY: passed on from the caller.
        unsafe { self.finish::<I>(&sums) };
    }

    /// # Safety
    /// As [`Self::whole`], of sums of any size.
    unsafe fn packed<I: Isa>(&self, rows: &mut Vec<i16>, a: &mut Vec<Line>) {
        let (job, layout) = (&self.job, self.job.layout);
        let (run, k) = (2 * job.pairs, 2 * self.lines);
        rows.clear();
        for window in 0..job.rows {
            for down in 0..self.lines / job.pairs {
                let from = window * job.step + down * job.run_step;
                rows.extend_from_slice(&job.pixels[from..from + run]);
            }
        }
        let src = Lanes {
            data: rows,
            lanes: job.rows,
            lane_stride: k,
            k,
            k_stride: 1,
        };
        grow(a, layout.lines);
        let mut sums = TileSums::ZERO;
        // SAFETY: passed on from the caller.
        unsafe {
            pack::<I>(&src, Side::A, layout, a);
            let job = TileJob {
                layout,
                rows: job.rows,
                a,
                b: job.b,
                next: &[],
            };
            I::tile(&job, &mut sums, false);
            self.finish::<I>(&sums);
        }
    }

    /// # Safety
    /// As [`Self::whole`].
    unsafe fn finish<I: Isa>(&self, sums: &TileSums) {
        let (rows, cols) = (
            self.row..self.row + self.job.rows,
            self.col..self.col + self.job.cols,
        );
        // SAFETY: passed on from the caller.
        unsafe { I::finish(self.epilogue, sums, rows, cols) };
    }
}

/// As [`run_on`], for `a * b`.
///
/// # Safety
/// The machine has the instructions of `I`.
pub(super) unsafe fn run_over<I: Isa, E: Epilogue>(
    a: MatRef<'_>,
    b: Patches<'_>,
    epilogue: &E,
    scratch: &mut Scratch,
) {
    let (m, n) = (a.rows, b.cols());
    let panels = Split::at_most(m, I::ROWS);
    let groups = n.div_ceil(LANES);
    let tiles = groups.div_ceil(I::GROUPS);
    let bands = Bands::new(b.window, b.images, BLOCK);
    let threads = scratch.threads().min(bands.count()).max(1);
    let locals = &mut scratch.locals;
    locals.resize_with(threads.max(locals.len()), Local::default);
    for local in &mut locals[..threads] {
        local.sums.clear();
        local
            .sums
            .resize_with(panels.count * tiles, || TileSums::ZERO);
    }
    let places = Pieces::new(locals);
    run_tasks(threads, bands.count(), |thread, task| {
        // SAFETY: the thread's own.
        let local = unsafe { &mut places.get(thread, 1)[0] };
        let first = b.make(&bands, task, &mut local.band, &mut local.rows);
        let terms = local.rows.len() / n;
        let patches = MatRef {
            data: &local.rows,
            rows: n,
            cols: terms,
            row_stride: 1,
            col_stride: n,
        };
        let layout = Layout::new(terms, I::HIGHS);
        let lines = layout.lines;
        grow(&mut local.a, panels.count * lines);
        grow(&mut local.b, groups * lines);
        // SAFETY: passed on from the caller.
        unsafe {
            for (panel, to) in (0..panels.count).zip(local.a.chunks_exact_mut(lines)) {
                let src = Lanes::new(a, panels.range(panel), first..first + terms);
                pack::<I>(&src, Side::A, &layout, to);
            }
            for (group, to) in (0..groups).zip(local.b.chunks_exact_mut(lines)) {
                let lanes = group * LANES..n.min((group + 1) * LANES);
                let src = Lanes::new(patches, lanes, 0..terms);
                pack::<I>(&src, Side::B, &layout, to);
            }
            for (panel, a) in (0..panels.count).zip(local.a.chunks_exact(lines)) {
                let b = local.b[..groups * lines].chunks(I::GROUPS * lines);
                for (b, sums) in b.zip(&mut local.sums[panel * tiles..]) {
                    let job = TileJob {
                        layout: &layout,
                        rows: panels.range(panel).len(),
                        a,
                        b,
                        next: &[],
                    };
                    I::tile(&job, sums, true);
                }
            }
        }
    });
    let Some((total, others)) = locals[..threads].split_first_mut() else {
        return;
    };
    for other in others {
        for (total, other) in total.sums.iter_mut().zip(&other.sums) {
            let other = other.0.as_flattened();
            for (total, other) in total.0.as_flattened_mut().iter_mut().zip(other) {
                *total += other;
            }
        }
    }
    for panel in 0..panels.count {
        for tile in 0..tiles {
            let first = tile * I::GROUPS * LANES;
            let cols = first..n.min(first + I::GROUPS * LANES);
            let sums = &total.sums[panel * tiles + tile];
            // SAFETY: one after the other; the rest is passed on from the caller.
            unsafe { I::finish(epilogue, sums, panels.range(panel), cols) };
        }
    }
}
