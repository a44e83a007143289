//! Rows of a table by their numbers, and sums that go back there: twin of `vtrain/ops/gather.py`.

use crate::number::Element;

/// A row's number in [0, rows): one outside counts as the nearest.
pub fn number_of(id: i64, rows: u64) -> u64 {
    u64::try_from(id).unwrap_or(0).min(rows.saturating_sub(1))
}

/// Row i of `out` is row `ids[i]` of `x`; rows have `columns` elements.
pub fn gather_rows<T: Element, I: Element>(x: &[T], ids: &[I], columns: usize, out: &mut [T]) {
    let rows = (x.len() / columns) as u64;
    for (&id, out) in ids.iter().zip(out.chunks_exact_mut(columns)) {
        let row = number_of(id.wide(), rows) as usize;
        out.copy_from_slice(&x[row * columns..][..columns]);
    }
}

/// Rows `first ..` of the sums, as many as `out` holds, of a whole of `rows`: each row of `x` is
/// added to that of its id.  Sums are modulo 2^64.
pub fn scatter_add<T: Element, I: Element>(
    x: &[T],
    ids: &[I],
    (rows, columns): (usize, usize),
    first: usize,
    out: &mut [i64],
) {
    out.fill(0);
    let here = first..first + out.len() / columns;
    for (&id, x) in ids.iter().zip(x.chunks_exact(columns)) {
        let row = number_of(id.wide(), rows as u64) as usize;
        if !here.contains(&row) {
            continue;
        }
        let out = &mut out[(row - first) * columns..][..columns];
        for (out, x) in out.iter_mut().zip(x) {
            *out = out.wrapping_add(x.wide());
        }
    }
}
