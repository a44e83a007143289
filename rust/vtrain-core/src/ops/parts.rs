//! Parts of a tensor along one axis: twin of `vtrain/ops/parts.py`.

use crate::number::Element;

/// One axis of a tensor: what lies before it counts rows, and what lies after it is one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Extent of the input along the axis.
    pub input: usize,
    /// Extent of the output along the axis.
    pub output: usize,
    /// Elements of one place along the axis.
    pub inner: usize,
}

impl Axis {
    /// Elements of a row of the output: all along the axis, and all after it.
    pub fn unit(&self) -> usize {
        self.output * self.inner
    }

    /// Where an element of the output stands: row, place along the axis, and within that.
    pub fn split(&self, e: u64) -> (u64, u64, u64) {
        let [output, inner] = [self.output, self.inner].map(|extent| extent as u64);
        (e / inner / output, e / inner % output, e % inner)
    }

    /// The element of an input with `extent` places along the axis.
    pub fn join(&self, extent: usize, (row, along, within): (u64, u64, u64)) -> u64 {
        (row * extent as u64 + along) * self.inner as u64 + within
    }
}

/// From place `start` of each row of `x`.
pub fn slice<T: Element>(axis: Axis, start: usize, x: &[T], out: &mut [T]) {
    let (unit, width) = (axis.unit(), axis.input * axis.inner);
    for (row, out) in out.chunks_exact_mut(unit.max(1)).enumerate() {
        out.copy_from_slice(&x[row * width + start * axis.inner..][..unit]);
    }
}

/// Each row of `x` behind `before` places of zeros.
pub fn pad<T: Element>(axis: Axis, before: usize, x: &[T], out: &mut [T]) {
    let (width, start) = (axis.input * axis.inner, before * axis.inner);
    for (row, out) in out.chunks_exact_mut(axis.unit().max(1)).enumerate() {
        out[..start].fill(T::default());
        out[start..start + width].copy_from_slice(&x[row * width..][..width]);
        out[start + width..].fill(T::default());
    }
}

/// Each row of the output is the same row of each of `parts`, whose rows have `widths`.
pub fn concat<T: Element>(parts: &[&[T]], widths: &[usize], out: &mut [T]) {
    let unit: usize = widths.iter().sum();
    for (row, mut out) in out.chunks_exact_mut(unit.max(1)).enumerate() {
        for (part, &width) in parts.iter().zip(widths) {
            let (piece, rest) = out.split_at_mut(width);
            piece.copy_from_slice(&part[row * width..][..width]);
            out = rest;
        }
    }
}
