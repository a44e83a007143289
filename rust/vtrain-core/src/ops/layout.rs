//! Reordering without arithmetic, and its adjoints: twin of `vtrain/ops/layout.py`. Images are NHWC.

use super::simd::{vectorised, zip_eights};
use crate::number::Element;
use crate::window::Window;

/// Patches of whole images: for each window, its pixels row by row, zero outside the image.
pub fn im2col(window: &Window, x: &[i16], out: &mut [i16]) {
    let (image, patch) = (window.image(), window.patch());
    if patch == 0 {
        return;
    }
    let run = window.kernel[1] * window.channels;
    let mut patches = out.chunks_exact_mut(patch);
    for x in x.chunks_exact(image.max(1)) {
        for row in 0..window.rows {
            let downs = window.inside_down(row);
            for (column, out) in (0..window.columns).zip(&mut patches) {
                let across = window.inside_across(column);
                let length = across.len() * window.channels;
                if downs.len() < window.kernel[0] || length < run {
                    out.fill(0);
                }
                if length == 0 {
                    continue;
                }
                for down in downs.clone() {
                    let from = window.pixel(row, column, down, across.start);
                    let to = down * run + across.start * window.channels;
                    copy_short(&x[from..from + length], &mut out[to..to + length]);
                }
            }
        }
    }
}

/// Copies a few elements, by eights: a call of memcpy costs more than such a copy.
#[inline(always)]
fn copy_short(from: &[i16], to: &mut [i16]) {
    let (from_eights, from_rest) = from.as_chunks::<8>();
    let (to_eights, to_rest) = to.as_chunks_mut::<8>();
    for (to, from) in to_eights.iter_mut().zip(from_eights) {
        *to = *from;
    }
    for (to, &from) in to_rest.iter_mut().zip(from_rest) {
        *to = from;
    }
}

/// Adjoint of `im2col`: each pixel of whole images gets the int64 sum of its places in patches.
pub fn col2im<T: Element>(window: &Window, patches: &[T], out: &mut [i64]) {
    out.fill(0);
    let (image, patch) = (window.image(), window.patch());
    if image == 0 || patch == 0 {
        return;
    }
    let run = window.kernel[1] * window.channels;
    vectorised(
        #[inline(always)]
        move || {
            let mut patches = patches.chunks_exact(patch);
            for out in out.chunks_exact_mut(image) {
                for row in 0..window.rows {
                    let downs = window.inside_down(row);
                    for (column, patch) in (0..window.columns).zip(&mut patches) {
                        let across = window.inside_across(column);
                        let length = across.len() * window.channels;
                        if length == 0 {
                            continue;
                        }
                        for down in downs.clone() {
                            let to = window.pixel(row, column, down, across.start);
                            let from = down * run + across.start * window.channels;
                            add_to(&mut out[to..to + length], &patch[from..from + length]);
                        }
                    }
                }
            }
        },
    );
}

/// `out += x`, modulo 2^64.
#[inline(always)]
pub(super) fn add_to<T: Element>(out: &mut [i64], x: &[T]) {
    zip_eights(out, x, |out, x| *out = out.wrapping_add(x.wide()));
}

/// A permutation of axes, as a walk over the output in row-major order.
///
/// Axes of one element are left out, and neighbours that are neighbours in the input are one: so
/// the last axis is a run of the input's elements where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transpose {
    /// Extents of the output.
    pub extents: Vec<usize>,
    /// Step in the input for each output axis.
    pub steps: Vec<usize>,
}

impl Transpose {
    /// Axis i of the output is axis `perm[i]` of an input of shape `shape`.
    pub fn new(shape: &[usize], perm: &[usize]) -> Self {
        let mut strides = vec![1usize; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis].wrapping_mul(shape[axis]); // wraps only if empty
        }
        let mut walk = Self {
            extents: Vec::with_capacity(perm.len()),
            steps: Vec::with_capacity(perm.len()),
        };
        for &axis in perm.iter().filter(|&&axis| shape[axis] != 1) {
            let (extent, step) = (shape[axis], strides[axis]);
            match (walk.extents.last_mut(), walk.steps.last_mut()) {
                (Some(outer), Some(outer_step)) if *outer_step == step.wrapping_mul(extent) => {
                    *outer *= extent;
                    *outer_step = step;
                }
                _ => {
                    walk.extents.push(extent);
                    walk.steps.push(step);
                }
            }
        }
        walk
    }

    /// Elements of a run along the output's last axis.
    pub fn inner(&self) -> usize {
        self.extents.last().copied().unwrap_or(1)
    }
}

/// Elements `first ..` of the output, the first of a run along its last axis, as many whole runs as
/// `out` holds.
pub fn transpose<T: Element>(walk: &Transpose, x: &[T], first: usize, out: &mut [T]) {
    if out.is_empty() {
        return;
    }
    let Some((&inner, outer)) = walk.extents.split_last() else {
        out.copy_from_slice(&x[..1]);
        return;
    };
    let inner_step = walk.steps[outer.len()];
    let mut place = vec![0usize; outer.len()];
    let mut from = 0;
    let mut row = first / inner;
    for axis in (0..outer.len()).rev() {
        place[axis] = row % outer[axis];
        row /= outer[axis];
        from += place[axis] * walk.steps[axis];
    }
    for row in out.chunks_exact_mut(inner) {
        if inner_step == 1 {
            row.copy_from_slice(&x[from..from + inner]);
        } else {
            for (out, x) in row.iter_mut().zip(x[from..].iter().step_by(inner_step)) {
                *out = *x;
            }
        }
        for axis in (0..outer.len()).rev() {
            place[axis] += 1;
            from += walk.steps[axis];
            if axis == 0 || place[axis] < outer[axis] {
                break;
            }
            from -= place[axis] * walk.steps[axis];
            place[axis] = 0;
        }
    }
}
