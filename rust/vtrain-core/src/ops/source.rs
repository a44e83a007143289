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

/// How samples lie in a file of tokens, as little-endian integers: twin of `Windows` in
/// `vtrain/wire/task.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Bytes of a token: 2, 4 or 8.
    pub width: usize,
    /// Tokens of the file.
    pub tokens: usize,
    /// Tokens from the start of a window to that of the next.
    pub stride: usize,
    /// Tokens from an element of x to its label.
    pub shift: usize,
}

impl Windows {
    /// Windows of `context` tokens that lie in the file, labels too.
    pub fn count(&self, context: usize) -> usize {
        let last = self
            .tokens
            .checked_sub(context)
            .and_then(|n| n.checked_sub(self.shift));
        last.map_or(0, |last| last / self.stride.max(1) + 1)
    }

    /// Token `at` as an element: its low 32 bits. None where the bytes are not there.
    pub fn element(&self, bytes: &[u8], at: usize) -> Option<i32> {
        let start = at.checked_mul(self.width)?;
        let token = bytes.get(start..)?.get(..self.width)?;
        Some(match *token {
            [a, b] => i32::from(u16::from_le_bytes([a, b])),
            [a, b, c, d, ..] => i32::from_le_bytes([a, b, c, d]),
            _ => return None,
        })
    }

    /// The `context` tokens from `first` on in each window that `index` names. None: no such one.
    pub fn gather(
        &self,
        index: &[i64],
        bytes: &[u8],
        first: usize,
        context: usize,
        out: &mut [i32],
    ) -> Option<()> {
        for (&index, out) in index.iter().zip(out.chunks_exact_mut(context)) {
            let index = usize::try_from(index).ok()?;
            if index >= self.count(context) {
                return None;
            }
            let start = index.checked_mul(self.stride)?.checked_add(first)?;
            for (at, out) in (start..).zip(out) {
                *out = self.element(bytes, at)?;
            }
        }
        Some(())
    }
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
        move || {
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
