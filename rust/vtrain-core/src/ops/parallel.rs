//! Spreading an operator over the threads of the current rayon pool.

use rayon::prelude::*;

/// Elements that make a second thread worth its wake-up, where each is a few instructions.
const GRAIN: usize = 64 << 10;
/// The same for rows: windows and the like take longer.
const ROW_GRAIN: usize = 16 << 10;

fn piece_count(elements: usize, grain: usize, units: usize) -> usize {
    (elements / grain)
        .clamp(1, rayon::current_num_threads() * 2)
        .min(units.max(1))
}

/// Cuts `out`, rows of `unit` elements, into runs of whole rows; `work(first row, its rows)`.
///
/// Adds up what `work` returns.
pub(crate) fn for_rows<T: Send>(
    out: &mut [T],
    unit: usize,
    work: impl Fn(usize, &mut [T]) -> u64 + Sync,
) -> u64 {
    if out.is_empty() || unit == 0 {
        return 0;
    }
    let rows = out.len() / unit;
    let grain = if unit == 1 { GRAIN } else { ROW_GRAIN };
    let pieces = piece_count(out.len(), grain, rows);
    if pieces == 1 {
        return work(0, out);
    }
    let per = rows.div_ceil(pieces);
    out.par_chunks_mut(per * unit)
        .enumerate()
        .map(|(i, piece)| work(i * per, piece))
        .sum()
}

/// Sums of int64 vectors of length `width`, one for each run of rows of `unit` elements of `x`.
pub(crate) fn sum_rows<T: Sync>(
    x: &[T],
    unit: usize,
    out: &mut [i64],
    work: impl Fn(&[T], &mut [i64]) + Sync,
) {
    out.fill(0);
    if x.is_empty() || unit == 0 {
        return;
    }
    let rows = x.len() / unit;
    let pieces = piece_count(x.len(), GRAIN, rows);
    if pieces == 1 {
        return work(x, out);
    }
    let width = out.len();
    let parts: Vec<Vec<i64>> = x
        .par_chunks(rows.div_ceil(pieces) * unit)
        .map(|piece| {
            let mut part = vec![0; width];
            work(piece, &mut part);
            part
        })
        .collect();
    for part in parts {
        for (out, x) in out.iter_mut().zip(part) {
            *out = out.wrapping_add(x);
        }
    }
}
