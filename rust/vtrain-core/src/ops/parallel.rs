//! Spreading an operator over the threads of the current rayon pool.

use rayon::prelude::*;

/// Elements that make a second thread worth its wake-up, where each is a few instructions.
const GRAIN: usize = 64 << 10;
/// The same for rows: windows and the like take longer.
const ROW_GRAIN: usize = 16 << 10;

/// Into how many pieces to cut `rows` rows, of which the largest tensor has so many elements.
pub(crate) fn piece_count(elements: usize, rows: usize) -> usize {
    let grain = if rows == elements { GRAIN } else { ROW_GRAIN };
    (elements / grain)
        .clamp(1, rayon::current_num_threads() * 2)
        .min(rows.max(1))
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
    let pieces = piece_count(out.len(), rows);
    if pieces == 1 {
        return work(0, out);
    }
    let per = rows.div_ceil(pieces);
    out.par_chunks_mut(per * unit)
        .enumerate()
        .map(|(i, piece)| work(i * per, piece))
        .sum()
}
