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

/// What spans follow from besides the ids: how far a place attends, and which ids end a document
/// or are padding.
#[derive(Clone, Copy, Debug)]
pub struct TokenRule {
    /// Places from its own on.
    pub after: i64,
    /// Places up to its own.
    pub before: i64,
    /// The last id of a document.
    pub end_of_text: i64,
    /// The id of no token.
    pub padding: i64,
}

/// Spans of the places of each row of `ids`, `places` > 0 long, as many rows as `out` holds.
pub fn token_spans<T: Element>(ids: &[T], places: usize, rule: &TokenRule, out: &mut [i32]) {
    let rows = ids.chunks_exact(places);
    for (out, ids) in out.chunks_exact_mut(2 * places).zip(rows) {
        let is = |id: &T, wanted: i64| id.wide() == wanted;
        let token = |id: &T| !is(id, rule.padding);
        let first = ids.iter().position(token).unwrap_or(places) as i64;
        let last = ids.iter().rposition(token).map_or(0, |at| at + 1) as i64;
        let (out, _) = out.as_chunks_mut::<2>();
        let mut start = 0;
        for (place, (out, id)) in (0..).zip(out.iter_mut().zip(ids)) {
            // All are at most the number of places, which is an int32.
            out[0] = first.max(start).max(place + 1 - rule.before) as i32;
            if is(id, rule.end_of_text) {
                start = place + 1;
            }
        }
        let mut stop = places as i64;
        for (place, (out, id)) in out.iter_mut().zip(ids).enumerate().rev() {
            let place = place as i64;
            if is(id, rule.end_of_text) {
                stop = place + 1;
            }
            out[1] = last.min(stop).min(place + rule.after) as i32;
        }
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
