//! Pooling over windows of whole NHWC images: twin of `vtrain/ops/pool.py`.

use super::layout::{Window, add_to};
use super::simd::{vectorised, zip_eights};
use crate::number::Element;

/// What padding counts as in a maximum: below every saturated operand.
const BELOW: i16 = i16::MIN;

/// Visits every window of some images: image, row, column, first element of its output.
#[inline(always)]
fn for_windows(window: &Window, images: usize, mut visit: impl FnMut(usize, usize, usize, usize)) {
    let mut at = 0;
    for image in 0..images {
        for row in 0..window.rows {
            for column in 0..window.columns {
                visit(image, row, column, at);
                at += window.channels;
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
                        let x = &x[from..from + channels];
                        zip_eights(out, x, |out, x| *out = x.max(*out));
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
    // For each channel: the maximum, and what is still to go to the first element that has it.
    let mut best = vec![BELOW; channels];
    let mut left = vec![0i16; channels];
    vectorised(
        #[inline(always)]
        || {
            for_windows(window, images, |i, row, column, at| {
                let (downs, acrosses) = (window.inside_down(row), window.inside_across(column));
                let pixels = || {
                    downs.clone().flat_map(|down| {
                        acrosses.clone().map(move |across| {
                            i * image + window.pixel(row, column, down, across)
                        })
                    })
                };
                best.fill(BELOW);
                for from in pixels() {
                    zip_eights(&mut best, &x[from..from + channels], |best, x| *best = x.max(*best));
                }
                left.copy_from_slice(&grad[at..at + channels]);
                if downs.start > 0 || acrosses.start > 0 {
                    zip_eights(&mut left, &best, |left, best| {
                        *left = if best == BELOW { 0 } else { *left };
                    });
                }
                for from in pixels() {
                    let here = from..from + channels;
                    give_to_first(&mut out[here.clone()], &x[here], &best, &mut left);
                }
            });
        },
    );
}

/// Adds what is left to go to a maximum, where `x` is the maximum.
#[inline(always)]
fn give_to_first(out: &mut [i64], x: &[i16], best: &[i16], left: &mut [i16]) {
    for (((out, &x), &best), left) in out.iter_mut().zip(x).zip(best).zip(left) {
        let given = if x == best { *left } else { 0 };
        *left = if x == best { 0 } else { *left };
        *out = out.wrapping_add(given.into());
    }
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
