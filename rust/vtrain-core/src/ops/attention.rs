//! Spans of attention and the gradient of a softmax: twin of `vtrain/ops/attention.py`.

use super::simd::vectorised;
use crate::number::{Element, PROBABILITY_EXPONENT};

/// Begin and end of the span of place `place`: itself and the places before it, at most `window`.
pub fn causal_span(place: i64, window: i64) -> (i64, i64) {
    ((place + 1 - window).max(0), place + 1)
}

/// Spans `first ..` of places, as many as `out` holds.
pub fn causal_spans(window: i64, first: usize, out: &mut [i32]) {
    for (place, out) in (first as i64..).zip(out.chunks_exact_mut(2)) {
        let (begin, end) = causal_span(place, window);
        // Both are at most the number of places, which is an int32.
        out.copy_from_slice(&[begin as i32, end as i32]);
    }
}

/// Rows of `x`, `columns` > 0 long, with `fill` outside of their spans; the first is row `first`.
pub fn keep_span<T: Element>(
    x: &[T],
    spans: &[i32],
    columns: usize,
    fill: T,
    first: usize,
    out: &mut [T],
) {
    let count = (spans.len() / 2).max(1);
    let rows = out.chunks_exact_mut(columns).zip(x.chunks_exact(columns));
    for (row, (out, x)) in (first..).zip(rows) {
        let span = &spans[2 * (row % count)..][..2];
        let place = |end: i32| usize::try_from(end).unwrap_or(0).min(columns);
        let (begin, end) = (place(span[0]), place(span[1]));
        let end = end.max(begin);
        out[..begin].fill(fill);
        out[begin..end].copy_from_slice(&x[begin..end]);
        out[end..].fill(fill);
    }
}

/// p_j * (grad_j * 2^14 - sum of p_i * grad_i), modulo 2^64, for rows of `columns` > 0.
pub fn softmax_grad(p: &[i16], grad: &[i16], columns: usize, out: &mut [i64]) {
    vectorised(
        #[inline(always)]
        move || {
            let rows = p.chunks_exact(columns).zip(grad.chunks_exact(columns));
            for (out, (p, grad)) in out.chunks_exact_mut(columns).zip(rows) {
                let total = p.iter().zip(grad).fold(0i64, |sum, (&p, &grad)| {
                    sum.wrapping_add(i64::from(i32::from(p) * i32::from(grad)))
                });
                for ((out, &p), &grad) in out.iter_mut().zip(p).zip(grad) {
                    let own = i64::from(grad) << PROBABILITY_EXPONENT;
                    *out = i64::from(p).wrapping_mul(own.wrapping_sub(total));
                }
            }
        },
    );
}
