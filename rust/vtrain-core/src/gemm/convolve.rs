//! Products one of whose operands is made of patches of images, which are stored nowhere.
//!
//! Patches of a convolution are many times the image, and a product with few columns reads each of
//! them once or twice: to write and to pack them takes longer than to multiply. Here a band of an
//! image (see [`crate::window`]) is made in a core's first cache, and a tile reads the terms of its
//! rows from there as they lie, pair by pair.
//!
//! * [`run_on`], `C = patches * b`: rows are windows; a pair is two elements of one.
//! * [`run_over`], `C = a * patches`, with a few sums of very many terms: rows are elements of a
//!   patch, so that it is the transpose of C that is computed; a pair is an element of two windows
//!   that lie beside each other. Threads do not share C but the terms, band by band, each with sums
//!   of its own, added up at the end.
//!
//! `W` alone must be enough there (see the proof in `super`). By Cauchy and Schwarz it is where
//! `largest * sqrt(terms) * |b|` is small, `largest` being that of the band. Where it is not, the
//! rows of a tile are packed as those of any matrix.

use super::driver::{Pieces, Scratch, Split, grow, run_tasks};
use super::pack::{LANES, Lanes, Layout, Line, Side};
use super::tile::{Isa, LooseJob, NarrowSums, Packed, TileJob, TileSums, To, bound};
use super::{BLOCK, Epilogue, MatRef, Patches};
use crate::ops::simd::vectorised;
use crate::window::Bands;

/// Sums below this in magnitude are handed over as int32.
const NARROW: u64 = 1 << 30;

/// What one thread works in.
#[derive(Default)]
pub(super) struct Local {
    band: Vec<i16>,
    /// Each element of the band with that of the next window.
    pairs: Vec<i16>,
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

impl Strip {
    /// Those of `n` columns that are packed for `k` terms.
    fn all<I: Isa>(packed: &[Line], layout: &Layout, k: usize, n: usize) -> Vec<Self> {
        let wide = I::GROUPS * LANES;
        let strip = |(i, groups): (usize, &[Line])| {
            let mut strip = Self {
                first: i * wide,
                cols: wide.min(n - i * wide),
                whole: 0,
                block: 0,
            };
            for block in 0..layout.blocks() {
                let norms = groups.chunks_exact(layout.lines);
                let norm = norms.map(|group| bound(layout, group, block).norm);
                let terms = BLOCK.min(k - block * BLOCK);
                let root = (terms - 1).isqrt() as u64 + 1;
                let most = root * u64::from(norm.max().unwrap_or(0));
                strip.whole += most;
                strip.block = strip.block.max(most);
            }
            strip
        };
        let groups = packed.chunks(I::GROUPS * layout.lines);
        groups.enumerate().map(strip).collect()
    }
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
    let layout = Layout::new(k, I::HIGHS, LANES);
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
    let strips = Strip::all::<I>(packed, &layout, k, n);
    let bands = Bands::new(window, a.images, usize::MAX);
    let locals = &mut scratch.locals;
    locals.resize_with(threads.max(locals.len()), Local::default);
    let locals = Pieces::new(locals);
    let across = Split::at_most(window.columns, I::ROWS);
    let step = window.strides[1] * window.channels;
    run_tasks(threads, bands.count(), |thread, task| {
        // SAFETY: the thread's own.
        let local = unsafe { &mut locals.get(thread, 1)[0] };
        let (image, rows) = bands.get(task);
        window.fill_band(a.image(image), rows.clone(), &mut local.band);
        let largest = u64::from(largest(&local.band));
        let mut narrow = NarrowSums::ZERO;
        for (strip, b) in strips.iter().zip(packed.chunks(I::GROUPS * lines)) {
            for row in rows.clone() {
                for part in 0..across.count {
                    let columns = across.range(part);
                    let at = (row - rows.start) * window.band_step() + columns.start * step;
                    let to = (image * window.rows + row) * window.columns + columns.start;
                    let tile = LooseJob {
                        rows: columns.len(),
                        cols: strip.cols,
                        data: &local.band[at..],
                        step,
                        pairs,
                        pair_step: 2,
                        run_step: window.band_row(),
                        layout: &layout,
                        b,
                    };
                    let to = to..to + columns.len();
                    let cols = strip.first..strip.first + strip.cols;
                    // SAFETY: each tile is one task's; windows lie in the band, and an element
                    // more does; the rest is passed on from the caller.
                    unsafe {
                        if largest * strip.whole < NARROW {
                            I::loose(&tile, 0..k / 2, To::Narrow(&mut narrow));
                            I::finish_narrow(epilogue, &narrow, to, cols);
                            continue;
                        }
                        let mut sums = TileSums::ZERO;
                        if largest * strip.block < 1 << 31 {
                            by_blocks::<I>(&tile, k / 2, &mut sums);
                        } else {
                            // Windows are rows of their own, run by run.
                            local.rows.clear();
                            for window_at in (0..columns.len()).map(|i| i * step) {
                                for down in 0..window.kernel[0] {
                                    let from = window_at + down * tile.run_step;
                                    let run = &tile.data[from..from + 2 * pairs];
                                    local.rows.extend_from_slice(run);
                                }
                            }
                            let src = Lanes {
                                data: &local.rows,
                                lanes: tile.rows,
                                lane_stride: k,
                                k,
                                k_stride: 1,
                            };
                            packed_tile::<I>(&src, &tile, &mut local.a, &mut sums);
                        }
                        I::finish(epilogue, &sums, to, cols);
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

/// Adds a tile's sums over so many pairs, block by block.
///
/// # Safety
/// The sums over any block are below 2^31; as [`Isa::loose`].
unsafe fn by_blocks<I: Isa>(tile: &LooseJob<'_>, pairs: usize, sums: &mut TileSums) {
    for first in (0..pairs).step_by(BLOCK / 2) {
        let lines = first..pairs.min(first + BLOCK / 2);
        // SAFETY: passed on from the caller.
        unsafe { I::loose(tile, lines, To::Add(sums)) };
    }
}

/// Adds a tile's sums, whatever they are; its rows are `src`, to be packed in `a`.
///
/// # Safety
/// As [`Isa::tile`].
unsafe fn packed_tile<I: Isa>(
    src: &Lanes<'_>,
    tile: &LooseJob<'_>,
    a: &mut Vec<Line>,
    sums: &mut TileSums,
) {
    let layout = Layout::new(src.k, I::HIGHS, I::A_LANES);
    grow(a, layout.lines);
    let a = &mut a[..layout.lines];
    // SAFETY: passed on from the caller.
    unsafe {
        pack::<I>(src, Side::A, &layout, a);
        let job = TileJob {
            rows: tile.rows,
            a: Packed {
                layout: &layout,
                lines: a,
            },
            b: Packed {
                layout: tile.layout,
                lines: tile.b,
            },
            next: &[],
        };
        I::tile(&job, sums, true);
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
    let (m, window) = (a.rows, b.window);
    let (row, run) = (window.band_row(), window.kernel[1] * window.channels);
    let step = window.strides[1] * window.channels;
    // A row of windows is filled up to whole pairs, with gradients of 0.
    let pairs = window.columns.div_ceil(2);
    let groups = m.div_ceil(LANES);
    let strips = groups.div_ceil(I::GROUPS);
    // Elements of a patch in tiles, each of one run.
    let parts = Split::at_most(run, I::ROWS);
    let panels = window.kernel[0] * parts.count;
    let bands = Bands::new(window, b.images, BLOCK);
    let threads = scratch.threads().min(bands.count()).max(1);
    let locals = &mut scratch.locals;
    locals.resize_with(threads.max(locals.len()), Local::default);
    for local in &mut locals[..threads] {
        local.sums.clear();
        local.sums.resize_with(panels * strips, || TileSums::ZERO);
    }
    let places = Pieces::new(locals);
    run_tasks(threads, bands.count(), |thread, task| {
        // SAFETY: the thread's own.
        let local = unsafe { &mut places.get(thread, 1)[0] };
        let (image, rows) = bands.get(task);
        window.fill_band(b.image(image), rows.clone(), &mut local.band);
        let largest = u64::from(largest(&local.band));
        pair_up(&local.band, step, &mut local.pairs);
        let first = (image * window.rows + rows.start) * window.columns;
        let k = rows.len() * 2 * pairs;
        let filled = fill_terms(a, first, rows.len(), window.columns);
        let gradients = match &filled {
            Some(filled) => MatRef {
                data: filled,
                rows: m,
                cols: k,
                row_stride: 1,
                col_stride: m,
            },
            None => MatRef {
                data: &a.data[first * a.col_stride..],
                cols: k,
                ..a
            },
        };
        let layout = Layout::new(k, I::HIGHS, LANES);
        let lines = layout.lines;
        grow(&mut local.b, groups * lines);
        for (group, to) in (0..groups).zip(local.b.chunks_exact_mut(lines)) {
            let lanes = group * LANES..m.min((group + 1) * LANES);
            // SAFETY: passed on from the caller.
            unsafe { pack::<I>(&Lanes::new(gradients, lanes, 0..k), Side::B, &layout, to) };
        }
        let packed = &local.b[..groups * lines];
        let found = Strip::all::<I>(packed, &layout, k, m);
        for (panel, sums) in local.sums.chunks_exact_mut(strips.max(1)).enumerate() {
            let (down, part) = (panel / parts.count, parts.range(panel % parts.count));
            let at = down * row + part.start;
            let packed = packed.chunks(I::GROUPS * lines);
            for ((strip, b), sums) in found.iter().zip(packed).zip(sums) {
                let tile = LooseJob {
                    rows: part.len(),
                    cols: strip.cols,
                    data: &local.pairs[2 * at..],
                    step: 2,
                    pairs,
                    pair_step: 4 * step,
                    run_step: 2 * window.band_step(),
                    layout: &layout,
                    b,
                };
                // SAFETY: the windows' elements lie in the band, with those of the next; the rest
                // is passed on from the caller.
                unsafe {
                    if largest * strip.block < 1 << 31 {
                        by_blocks::<I>(&tile, k / 2, sums);
                        continue;
                    }
                    // Both elements of each pair, term by term.
                    local.rows.clear();
                    for pair in 0..k / 2 {
                        let from = pair / pairs * tile.run_step + pair % pairs * tile.pair_step;
                        let words = &tile.data[from..from + 2 * part.len()];
                        for element in 0..2 {
                            local.rows.extend(words.iter().skip(element).step_by(2));
                        }
                    }
                    let src = Lanes {
                        data: &local.rows,
                        lanes: tile.rows,
                        lane_stride: 1,
                        k,
                        k_stride: part.len(),
                    };
                    packed_tile::<I>(&src, &tile, &mut local.a, sums);
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
    let mut acc = Vec::with_capacity(window.patch());
    for output in 0..m {
        let (strip, col) = (output / (I::GROUPS * LANES), output % (I::GROUPS * LANES));
        acc.clear();
        for panel in 0..panels {
            let rows = parts.range(panel % parts.count).len();
            let sums = &total.sums[panel * strips + strip].0[..rows];
            acc.extend(sums.iter().map(|row| row[col]));
        }
        // SAFETY: row by row, on one thread.
        unsafe { epilogue.store(output, 0, &acc) };
    }
}

/// Each element of the band, and the one a window further; 0 behind the last.
fn pair_up(band: &[i16], step: usize, pairs: &mut Vec<i16>) {
    pairs.clear();
    pairs.resize(2 * band.len(), 0);
    let next = band.get(step..).unwrap_or_default();
    vectorised(
        #[inline(always)]
        move || {
            let (apart, _) = pairs.as_chunks_mut::<2>();
            for ((pair, &element), &next) in apart.iter_mut().zip(band).zip(next) {
                *pair = [element, next];
            }
            for (pair, &element) in apart.iter_mut().zip(band).skip(next.len()) {
                *pair = [element, 0];
            }
        },
    );
}

/// The terms of some rows of windows from term `first` on, [terms, lanes], with zeros after each row;
/// None if rows are whole pairs already.
fn fill_terms(a: MatRef<'_>, first: usize, rows: usize, columns: usize) -> Option<Vec<i16>> {
    if columns.is_multiple_of(2) {
        return None;
    }
    let mut filled = Vec::with_capacity(rows * (columns + 1) * a.rows);
    for row in 0..rows {
        for term in (0..columns).map(|column| first + row * columns + column) {
            filled.extend((0..a.rows).map(|lane| a.at(lane, term) as i16));
        }
        filled.resize(filled.len() + a.rows, 0);
    }
    Some(filled)
}
