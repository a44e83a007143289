//! Operators that work by rows: any run of rows of the output, a band, comes from the same rows of
//! the inputs, so that a band can be computed by itself, by one thread, and right after another
//! operator has put out what it needs.

use std::ops::Range;

use rayon::prelude::*;

use super::kernel::{Kernel, RunError, scalar};
use super::optimizer::Rate;
use super::parallel::piece_count;
use super::view::{Slice, SliceMut, WrongDtype, each};
use super::{
    activation, arithmetic, attention, gather, layout, linear, lookup, norm, optimizer, parts,
    rescale, softmax, source,
};
use crate::number::{Element, Rounding};

/// How a kernel falls into rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bands {
    /// Rows that can be computed apart from each other; any divisor of it serves as well.
    pub rows: usize,
    /// The inputs, by bit, of which every row needs all.
    whole: u8,
    /// The output has no rows: each band adds to all of it, modulo 2^64.
    pub sums: bool,
}

impl Bands {
    fn new(rows: usize) -> Self {
        Self {
            rows,
            whole: 0,
            sums: false,
        }
    }

    fn whole(self, input: usize) -> Self {
        let whole = self.whole | 1 << input;
        Self { whole, ..self }
    }

    fn sums(self) -> Self {
        Self { sums: true, ..self }
    }

    /// Is the same share of input `i` read as of the output is written? Otherwise all of it is.
    pub fn is_banded(&self, i: usize) -> bool {
        i >= 8 || self.whole >> i & 1 == 0
    }
}

impl Kernel {
    /// How it falls into rows, for inputs and an output of so many elements. None: it does not.
    pub(crate) fn bands(&self, inputs: &[usize], out: usize) -> Option<Bands> {
        let input = |i: usize| inputs.get(i).copied().unwrap_or(0);
        let rows = |unit: usize| Some(Bands::new(out.checked_div(unit).unwrap_or(0)));
        match self {
            Self::Normalize { .. }
            | Self::Rescale { .. }
            | Self::Add { .. }
            | Self::Sub { .. }
            | Self::Mul
            | Self::Relu
            | Self::ReluGrad
            | Self::LookUp { .. }
            | Self::InverseRoot(_)
            | Self::Momentum(_)
            | Self::Sign
            | Self::CappedSquare { .. }
            | Self::AdamMean { .. }
            | Self::AdamSquare(_)
            | Self::AdamDirection(_)
            | Self::RowMax { .. }
            | Self::RowSum { .. }
            | Self::CrossEntropy { .. }
            | Self::RowDot { .. } => rows(1),
            Self::DropoutMask(_) => rows(1).map(|b| b.whole(0)),
            Self::ScaleBy { .. } => rows(1).map(|b| b.whole(1)),
            Self::SgdUpdate { .. } => rows(1).map(|b| b.whole(2)),
            Self::OneHot { depth: classes }
            | Self::Exp2Diff { classes }
            | Self::Divide { classes }
            | Self::SoftmaxGrad { classes }
            | Self::SubOneHot { classes }
            | Self::LogitGrad { classes } => rows(*classes),
            Self::CausalSpans { .. } => rows(2),
            Self::TokenSpans { places, .. } => rows(2 * places),
            Self::KeepSpan { columns, .. } => rows(*columns).map(|b| b.whole(1)),
            Self::Center { width, .. } | Self::RowScale { width } => rows(*width),
            Self::AddBias { .. } | Self::ColumnScale => rows(input(1)).map(|b| b.whole(1)),
            Self::Transpose(walk) => rows(walk.inner()).map(|b| b.whole(0)),
            Self::Slice { axis, .. } | Self::Pad { axis, .. } => rows(axis.unit()),
            Self::Concat { axis, .. } => rows(axis.unit()),
            Self::GatherRows { columns, .. } => rows(*columns).map(|b| b.whole(0)),
            Self::ColumnSum => Some(Bands::new(input(0).checked_div(out).unwrap_or(0)).sums()),
            Self::Sum => Some(Bands::new(input(0)).sums()),
            _ => None,
        }
    }

    /// [`Self::run`] of a kernel that works by rows.
    pub(super) fn run_by_rows(
        &self,
        inputs: &[Slice<'_>],
        mut out: SliceMut<'_>,
    ) -> Result<u64, RunError> {
        let sizes: Vec<usize> = inputs.iter().map(Slice::len).collect();
        let bands = self.bands(&sizes, out.len()).ok_or(RunError::Inputs)?;
        if bands.sums {
            SliceMut::try_into(out.reborrow()).map(|out: &mut [i64]| out.fill(0))?;
        }
        if bands.rows == 0 {
            return Ok(0);
        }
        let largest = (0..inputs.len())
            .filter(|&i| bands.is_banded(i))
            .map(|i| sizes[i])
            .fold(out.len(), usize::max);
        let per = bands.rows.div_ceil(piece_count(largest, bands.rows));
        let share = |rows: Range<usize>| -> Vec<Slice<'_>> {
            let mut share = inputs.to_vec();
            for (i, x) in share.iter_mut().enumerate() {
                let unit = sizes[i] / bands.rows;
                if bands.is_banded(i) {
                    *x = x.part(rows.start * unit..rows.end * unit);
                }
            }
            share
        };
        if bands.sums {
            let width = out.len();
            let pieces = (0..bands.rows.div_ceil(per)).into_par_iter().map(|piece| {
                let rows = piece * per..bands.rows.min((piece + 1) * per);
                let mut part = vec![0i64; width];
                self.run_band(&share(rows), SliceMut::I64(&mut part), 0)?;
                Ok(part)
            });
            let parts: Result<Vec<Vec<i64>>, RunError> = pieces.collect();
            let out: &mut [i64] = out.try_into()?;
            for part in parts? {
                arithmetic::add_shifted(out, &part, 0);
            }
            return Ok(0);
        }
        let unit = out.len() / bands.rows;
        let pieces = out.chunks(per * unit);
        pieces
            .into_par_iter()
            .enumerate()
            .map(|(piece, out)| {
                let rows = piece * per..bands.rows.min((piece + 1) * per);
                let first = rows.start * unit;
                self.run_band(&share(rows), out, first)
            })
            .try_reduce(|| 0, |a, b| Ok(a + b))
    }

    /// Computes a band of the output, from element `first` on, on this thread; returns how many
    /// elements saturation changed.
    ///
    /// Inputs that are banded (see [`Self::bands`]) are the same share as `out` is of all. As in
    /// [`Self::run`], `out` holds the first input if the kernel is in place; a sum is added to it.
    pub(crate) fn run_band(
        &self,
        inputs: &[Slice<'_>],
        out: SliceMut<'_>,
        first: usize,
    ) -> Result<u64, RunError> {
        let input = |i: usize| inputs.get(i).copied().ok_or(RunError::Inputs);
        match self {
            Self::Normalize {
                multiplier,
                offset,
                shift,
            } => {
                let (multiplier, offset, shift) = (*multiplier, *offset, *shift);
                return Ok(each!(input(0)?, x => {
                    source::normalize(x, multiplier, offset, shift, out.try_into()?)
                }));
            }
            Self::DropoutMask(mask) => {
                mask.fill(scalar(input(0)?)?, first as u64, out.try_into()?);
            }
            Self::OneHot { depth } => {
                each!(input(0)?, x => source::one_hot(x, *depth, out.try_into()?));
            }
            Self::Transpose(walk) => {
                each!(input(0)?, x => layout::transpose(walk, x, first, out.try_into()?));
            }
            Self::Slice { axis, start } => {
                each!(input(0)?, x => parts::slice(*axis, *start, x, out.try_into()?));
            }
            Self::Pad { axis, before } => {
                each!(input(0)?, x => parts::pad(*axis, *before, x, out.try_into()?));
            }
            Self::Concat { axis, extents } => {
                let widths: Vec<usize> = extents.iter().map(|extent| extent * axis.inner).collect();
                match out {
                    SliceMut::U8(out) => concat(&widths, inputs, out)?,
                    SliceMut::I8(out) => concat(&widths, inputs, out)?,
                    SliceMut::I16(out) => concat(&widths, inputs, out)?,
                    SliceMut::I32(out) => concat(&widths, inputs, out)?,
                    SliceMut::I64(out) => concat(&widths, inputs, out)?,
                }
            }
            Self::GatherRows { columns, .. } => {
                let (x, ids) = (input(0)?, input(1)?);
                each!(x, x => {
                    let out = out.try_into()?;
                    each!(ids, ids => gather::gather_rows(x, ids, *columns, out));
                });
            }
            Self::AddBias { shift } => {
                let shift = Rounding::new(*shift);
                linear::add_bias(out.try_into()?, input(1)?.try_into()?, shift);
            }
            Self::ColumnSum => {
                let out: &mut [i64] = out.try_into()?;
                each!(input(0)?, x => linear::column_sum(x, out));
            }
            Self::Sum => {
                let out: &mut [i64] = out.try_into()?;
                let out = out.first_mut().ok_or(RunError::Inputs)?;
                *out = out.wrapping_add(each!(input(0)?, x => softmax::sum(x)));
            }
            Self::Rescale { multiplier, shift } => {
                return scale(input(0)?, *multiplier, *shift, out);
            }
            Self::Add { shifts } => {
                arithmetic::add(input(0)?, input(1)?, *shifts, out.try_into()?);
            }
            Self::Sub { shifts } => {
                arithmetic::sub(input(0)?, input(1)?, *shifts, out.try_into()?);
            }
            Self::Mul => arithmetic::mul(input(0)?, input(1)?, out.try_into()?),
            Self::Relu => activation::relu(input(0)?.try_into()?, out.try_into()?),
            Self::ReluGrad => activation::relu_grad(out.try_into()?, input(1)?.try_into()?),
            Self::LookUp { curve, shift } => {
                lookup::look_up(curve, *shift, input(0)?.try_into()?, out.try_into()?);
            }
            Self::RowMax { classes } => {
                softmax::row_max(input(0)?.try_into()?, *classes, out.try_into()?);
            }
            Self::Exp2Diff { classes } => {
                let (z, maximum) = (input(0)?.try_into()?, input(1)?.try_into()?);
                softmax::exp2_diff(z, maximum, *classes, out.try_into()?);
            }
            Self::RowSum { classes } => {
                softmax::row_sum(input(0)?.try_into()?, *classes, out.try_into()?);
            }
            Self::Divide { classes } => {
                let (e, total) = (input(0)?.try_into()?, input(1)?.try_into()?);
                softmax::divide(e, total, *classes, out.try_into()?);
            }
            Self::CausalSpans { window } => {
                attention::causal_spans(*window, first / 2, out.try_into()?);
            }
            Self::TokenSpans { places, rule } => {
                let out: &mut [i32] = out.try_into()?;
                each!(input(0)?, ids => attention::token_spans(ids, *places, rule, out));
            }
            Self::KeepSpan { columns, fill } => {
                let (columns, fill, spans) = (*columns, *fill, input(1)?.try_into()?);
                let row = first.checked_div(columns).unwrap_or(0);
                each!(input(0)?, x => {
                    // It was made sure that the dtype holds the fill.
                    #[allow(clippy::useless_conversion)] // i64 to i64
                    let fill = fill.try_into().unwrap_or_default();
                    attention::keep_span(x, spans, columns, fill, row, out.try_into()?);
                });
            }
            Self::SoftmaxGrad { classes } => {
                let (p, grad) = (input(0)?.try_into()?, input(1)?.try_into()?);
                attention::softmax_grad(p, grad, *classes, out.try_into()?);
            }
            Self::SubOneHot { classes } => {
                let out: &mut [i16] = out.try_into()?;
                each!(input(1)?, labels => softmax::sub_one_hot(out, labels, *classes));
            }
            Self::LogitGrad { classes } => {
                let (e, total): (&[i32], &[i64]) = (input(0)?.try_into()?, input(1)?.try_into()?);
                let out: &mut [i32] = out.try_into()?;
                each!(input(2)?, labels => softmax::logit_grad(e, total, labels, *classes, out));
            }
            Self::CrossEntropy { classes } => {
                let (z, maximum) = (input(0)?.try_into()?, input(1)?.try_into()?);
                let (total, out) = (input(2)?.try_into()?, out.try_into()?);
                each!(input(3)?, labels => {
                    softmax::cross_entropy(z, maximum, total, labels, *classes, out);
                });
            }
            Self::Center { width, shift } => {
                let (x, shift) = (input(0)?.try_into()?, Rounding::new(*shift));
                norm::center(x, *width, shift, out.try_into()?);
            }
            Self::RowDot { width } => {
                let out: &mut [i64] = out.try_into()?;
                each!(input(0)?, a => each!(input(1)?, b => norm::row_dot(a, b, *width, out)));
            }
            Self::InverseRoot(root) => {
                let (s, out): (&[i64], &mut [i64]) = (input(0)?.try_into()?, out.try_into()?);
                for (out, &s) in out.iter_mut().zip(s) {
                    *out = root.apply(s);
                }
            }
            Self::RowScale { width } => {
                norm::row_scale(input(0)?, input(1)?, *width, out.try_into()?);
            }
            Self::ColumnScale => norm::column_scale(input(0)?, input(1)?, out.try_into()?),
            Self::Momentum(rule) => {
                let grad = input(1)?.try_into()?;
                return Ok(optimizer::momentum(out.try_into()?, grad, *rule));
            }
            Self::SgdUpdate { shift } => {
                let rate = Rate {
                    rate: scalar(input(2)?)?,
                    shift: *shift,
                };
                let velocity = input(1)?.try_into()?;
                return Ok(optimizer::sgd_update(out.try_into()?, velocity, rate));
            }
            Self::Sign => each!(input(0)?, x => optimizer::sign(x, out.try_into()?)),
            Self::CappedSquare { shift, bits } => each!(input(0)?, x => {
                optimizer::capped_square(x, *shift, *bits, out.try_into()?);
            }),
            Self::ScaleBy { shift } => {
                let (factor, shift) = (scalar(input(1)?)?, Rounding::new(*shift));
                each!(input(0)?, x => optimizer::scale_by(x, factor, shift, out.try_into()?));
            }
            Self::AdamMean { lift, blend } => {
                let grad = input(1)?.try_into()?;
                return Ok(optimizer::adam_mean(out.try_into()?, grad, *lift, *blend));
            }
            Self::AdamSquare(blend) => {
                optimizer::adam_square(out.try_into()?, input(1)?.try_into()?, *blend);
            }
            Self::AdamDirection(rule) => {
                let (mean, square) = (input(0)?.try_into()?, input(1)?.try_into()?);
                return Ok(optimizer::adam_direction(
                    mean,
                    square,
                    *rule,
                    out.try_into()?,
                ));
            }
            _ => return Err(RunError::Inputs),
        }
        Ok(0)
    }
}

fn concat<'a, T: Element>(
    widths: &[usize],
    inputs: &[Slice<'a>],
    out: &mut [T],
) -> Result<(), RunError>
where
    &'a [T]: TryFrom<Slice<'a>, Error = WrongDtype>,
{
    let found: Result<Vec<&[T]>, WrongDtype> = inputs.iter().map(|&x| x.try_into()).collect();
    parts::concat(&found?, widths, out);
    Ok(())
}

fn scale(x: Slice<'_>, multiplier: i64, shift: i64, out: SliceMut<'_>) -> Result<u64, RunError> {
    match out {
        SliceMut::I16(out) => Ok(each!(x, x => rescale::rescale(x, multiplier, shift, out))),
        SliceMut::I32(out) => Ok(each!(x, x => rescale::rescale(x, multiplier, shift, out))),
        SliceMut::I64(out) => Ok(each!(x, x => rescale::rescale(x, multiplier, shift, out))),
        SliceMut::U8(_) | SliceMut::I8(_) => Err(RunError::Inputs),
    }
}
