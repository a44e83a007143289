//! The step counter, the batch and its preparation: twin of `vtrain/ops/source.py`.

use super::simd::vectorised;
use crate::number::{Element, MAX_STEPS, PROBABILITY_ONE, Rounding, saturate_counted};
use crate::order::{OrderError, batch_indices};

/// min(t + 1, 2^40).
pub fn increment(t: i64) -> i64 {
    t.wrapping_add(1).min(MAX_STEPS)
}

/// The samples of step `t`.
pub fn sample_index(
    seed: u64,
    samples: u64,
    batch: u64,
    t: i64,
    out: &mut [i64],
) -> Result<(), OrderError> {
    let t = u64::try_from(t).map_err(|_| OrderError::Position)?;
    out.copy_from_slice(&batch_indices(seed, samples, batch, t)?);
    Ok(())
}

/// Copies `columns` of the rows that `index` names; `row` bytes a row. None: no such row.
pub fn gather_samples(
    index: &[i64],
    table: &[u8],
    row: usize,
    columns: std::ops::Range<usize>,
    out: &mut [u8],
) -> Option<()> {
    for (&index, out) in index.iter().zip(out.chunks_exact_mut(columns.len())) {
        let start = usize::try_from(index).ok()?.checked_mul(row)?;
        let end = start.checked_add(row)?;
        out.copy_from_slice(table.get(start..end)?.get(columns.clone())?);
    }
    Some(())
}

/// sat16(rs(x * multiplier + offset, shift)); returns how many elements saturation changed.
pub fn normalize<T: Element>(
    x: &[T],
    multiplier: i64,
    offset: i64,
    shift: Rounding,
    out: &mut [i16],
) -> u64 {
    vectorised(
        #[inline(always)]
        || {
            let mut clamped = 0;
            for (out, &x) in out.iter_mut().zip(x) {
                let scaled = x.wide().wrapping_mul(multiplier).wrapping_add(offset);
                *out = saturate_counted(shift.apply(scaled), &mut clamped);
            }
            clamped
        },
    )
}

/// `depth` elements for each of `x`: 1.0 at its place, if it has one, else 0.
pub fn one_hot<T: Element>(x: &[T], depth: usize, out: &mut [i16]) {
    out.fill(0);
    for (&x, out) in x.iter().zip(out.chunks_exact_mut(depth)) {
        if let Some(hot) = usize::try_from(x.wide())
            .ok()
            .and_then(|place| out.get_mut(place))
        {
            *hot = PROBABILITY_ONE as i16;
        }
    }
}
