//! Pooling over windows of whole NHWC images: twin of `vtrain/ops/pool.py`.

use super::layout::{Window, add_to};
use super::simd::vectorised;
use crate::number::Element;

/// What padding counts as in a maximum: below every saturated operand.
const BELOW: i16 = i16::MIN;

fn for_windows(window: &Window, images: usize, mut visit: impl FnMut(usize, usize, usize, usize)) {
    for image in 0..images {
        for row in 0..window.rows {
            for column in 0..window.columns {
                let at = (image * window.rows + row) * window.columns + column;
                visit(image, row, column, at * window.channels);
            }
        }
    }
}

/// The maximum over each window; padding never wins.
pub fn max_pool(window: &Window, x: &[i16], out: &mut [i16]) {
    let (image, channels) = (window.image(), window.channels);
    out.fill(BELOW);
    if channels == 0 {
        return;
    }
    let images = out.len() / (window.windows() * channels);
    vectorised(
        #[inline(always)]
        || {
            for_windows(window, images, |i, row, column, at| {
                let out = &mut out[at..at + channels];
                for down in window.inside_down(row) {
                    for across in window.inside_across(column) {
                        let from = i * image + window.pixel(row, column, down, across);
                        for (out, &x) in out.iter_mut().zip(&x[from..from + channels]) {
                            *out = x.max(*out);
                        }
                    }
                }
            });
        },
    );
}

/// Each window's gradient goes to its first maximum in row-major order; overlaps add.
///
/// Where a window's maximum is no more than the padding's value, the first element has it, and a
/// gradient that goes to padding is lost.
pub fn max_pool_grad(window: &Window, grad: &[i16], x: &[i16], out: &mut [i64]) {
    out.fill(0);
    let (image, channels) = (window.image(), window.channels);
    if image == 0 {
        return;
    }
    let images = out.len() / image;
    // For each channel: the maximum so far, and the pixel that has it (none: it is padding).
    let mut best = vec![(BELOW, usize::MAX); channels];
    for_windows(window, images, |i, row, column, at| {
        let (downs, acrosses) = (window.inside_down(row), window.inside_across(column));
        let first_inside = downs.start == 0 && acrosses.start == 0;
        let none = if first_inside && !downs.is_empty() && !acrosses.is_empty() {
            i * image + window.pixel(row, column, 0, 0)
        } else {
            usize::MAX
        };
        best.fill((BELOW, none));
        for down in downs {
            for across in acrosses.clone() {
                let from = i * image + window.pixel(row, column, down, across);
                for (best, &x) in best.iter_mut().zip(&x[from..from + channels]) {
                    if x > best.0 {
                        *best = (x, from);
                    }
                }
            }
        }
        for (channel, (&(_, pixel), &grad)) in
            best.iter().zip(&grad[at..at + channels]).enumerate()
        {
            if pixel != usize::MAX {
                let out = &mut out[pixel + channel];
                *out = out.wrapping_add(grad.into());
            }
        }
    });
}

/// The int64 sum over each window; padding counts as zero.
pub fn sum_pool(window: &Window, x: &[i16], out: &mut [i64]) {
    let (image, channels) = (window.image(), window.channels);
    out.fill(0);
    if channels == 0 {
        return;
    }
    let images = out.len() / (window.windows() * channels);
    vectorised(
        #[inline(always)]
        || {
            for_windows(window, images, |i, row, column, at| {
                for down in window.inside_down(row) {
                    for across in window.inside_across(column) {
                        let from = i * image + window.pixel(row, column, down, across);
                        add_to(&mut out[at..at + channels], &x[from..from + channels]);
                    }
                }
            });
        },
    );
}

/// Adjoint of `sum_pool`: each pixel gets the int64 sum of its windows' gradients.
pub fn sum_pool_grad<T: Element>(window: &Window, grad: &[T], out: &mut [i64]) {
    out.fill(0);
    let (image, channels) = (window.image(), window.channels);
    if image == 0 {
        return;
    }
    let images = out.len() / image;
    vectorised(
        #[inline(always)]
        || {
            for_windows(window, images, |i, row, column, at| {
                for down in window.inside_down(row) {
                    for across in window.inside_across(column) {
                        let to = i * image + window.pixel(row, column, down, across);
                        add_to(&mut out[to..to + channels], &grad[at..at + channels]);
                    }
                }
            });
        },
    );
}
