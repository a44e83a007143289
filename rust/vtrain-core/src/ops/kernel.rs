//! A node made ready to run: the table of operators.

use std::ops::Range;

use super::attention::TokenRule;
use super::buffer::OutOfMemory;
use super::commitment::StateLeaf;
use super::layout::Transpose;
use super::linear::{Factors, Product};
use super::norm::InverseRoot;
use super::optimizer::{Blend, Direction, MomentumRule};
use super::parallel::for_rows;
use super::parts::Axis;
use super::signature::{Form, MAX_ELEMENTS, OpError, Part, Reader, checked_size, refuse};
use super::source::Windows;
use super::view::{Slice, SliceMut, WrongDtype, each};
use super::{
    commitment, dropout, gather, layout, linear, lookup, optimizer, pool, softmax, source,
};
use crate::cbor::EncodeError;
use crate::curves::Curve;
use crate::domains::Hash;
use crate::gemm::{Gemm, GemmError, MAX_K};
use crate::graph::{Attr, Node};
use crate::number::{Dtype, Element, MAX_STEPS, Rounding};
use crate::order::OrderError;
use crate::tensor_digest::digest_parallel;
use crate::window::Window;

use Dtype::{I8, I16, I32, I64, U8};

/// Why a node could not be run on the values it was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A sample index that the dataset does not have.
    #[error("an index names no sample")]
    Sample,
    /// A step for which no order is defined.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The product was refused.
    #[error(transparent)]
    Gemm(#[from] GemmError),
    /// A leaf has no canonical encoding.
    #[error(transparent)]
    Encoding(#[from] EncodeError),
    /// There is no memory for what lies in between.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// Inputs that are not those which the node was made ready for.
    #[error("the inputs are not of the node's types")]
    Inputs,
}

impl From<WrongDtype> for RunError {
    fn from(_: WrongDtype) -> Self {
        Self::Inputs
    }
}

/// The committed samples: rows of bytes, x then y; or tokens, of which they are windows.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// All rows, or all tokens.
    pub table: &'a [u8],
    /// Bytes of a row.
    pub row: usize,
    /// Bytes of x, the first part of a row.
    pub split: usize,
    /// How windows lie in the tokens, if samples are windows.
    pub windows: Option<Windows>,
}

impl Samples<'_> {
    fn columns(&self, part: Part) -> Range<usize> {
        match part {
            Part::X => 0..self.split,
            Part::Y => self.split..self.row,
        }
    }
}

/// An operator with its attributes, checked against the types of its inputs.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the operators and attributes of the law, by the same names
pub enum Kernel {
    State {
        name: String,
    },
    NextState {
        name: String,
    },
    Reshape,
    Increment,
    SampleIndex {
        seed: u64,
        samples: u64,
        batch: u64,
    },
    DropoutMask(dropout::Mask),
    GatherSamples {
        part: Part,
    },
    Normalize {
        multiplier: i64,
        offset: i64,
        shift: Rounding,
    },
    OneHot {
        depth: usize,
    },
    Im2col(Window),
    Col2im(Window),
    Transpose(Transpose),
    Slice {
        axis: Axis,
        start: usize,
    },
    Pad {
        axis: Axis,
        before: usize,
    },
    /// The extents of the inputs along the axis, of which the first is that of `axis`.
    Concat {
        axis: Axis,
        extents: Vec<usize>,
    },
    GatherRows {
        rows: usize,
        columns: usize,
    },
    ScatterAdd {
        rows: usize,
        columns: usize,
    },
    Matmul(Product),
    BatchedMatmul {
        stack: usize,
        product: Product,
    },
    AddBias {
        shift: i64,
    },
    ColumnSum,
    Rescale {
        multiplier: i64,
        shift: i64,
    },
    Add {
        shifts: (u32, u32),
    },
    Sub {
        shifts: (u32, u32),
    },
    Mul,
    Relu,
    ReluGrad,
    LookUp {
        curve: &'static Curve,
        shift: Rounding,
    },
    MaxPool(Window),
    MaxPoolGrad(Window),
    SumPool(Window),
    SumPoolGrad(Window),
    RowMax {
        classes: usize,
    },
    Exp2Diff {
        classes: usize,
    },
    RowSum {
        classes: usize,
    },
    Divide {
        classes: usize,
    },
    CausalSpans {
        window: i64,
    },
    TokenSpans {
        places: usize,
        rule: TokenRule,
    },
    KeepSpan {
        columns: usize,
        fill: i64,
    },
    SoftmaxGrad {
        classes: usize,
    },
    SubOneHot {
        classes: usize,
    },
    LogitGrad {
        classes: usize,
    },
    CrossEntropy {
        classes: usize,
    },
    SquareSum {
        shift: Rounding,
    },
    Sum,
    Center {
        width: usize,
        shift: i64,
    },
    RowDot {
        width: usize,
    },
    InverseRoot(InverseRoot),
    RowScale {
        width: usize,
    },
    ColumnScale,
    Momentum(MomentumRule),
    SgdUpdate {
        shift: i64,
    },
    Schedule {
        starts: Vec<i64>,
        rates: Vec<i64>,
    },
    ScheduleLinear {
        starts: Vec<i64>,
        rates: Vec<i64>,
    },
    Sign,
    CappedSquare {
        shift: Rounding,
        bits: u32,
    },
    ClipFactor {
        limit: i64,
    },
    ScaleBy {
        shift: i64,
    },
    AdamMean {
        lift: u32,
        blend: Blend,
    },
    AdamSquare(Blend),
    AdamDirection(Direction),
    AdamCorrection {
        beta1: i64,
        beta2: i64,
    },
    TensorDigest,
    BatchDigest,
    StateLeaf(StateLeaf),
    StateRoot,
    Record {
        commit_every: i64,
    },
}

impl Kernel {
    /// Reads a node whose inputs have these forms; also gives the form of its output, which must be
    /// the one it claims.
    pub fn new(node: &Node, inputs: &[Form]) -> Result<(Self, Form), OpError> {
        let reader = Reader { node, inputs };
        let (kernel, dtype, shape) = read(&reader)?;
        let derived = Form::new(dtype, shape)?;
        match node.outputs.as_slice() {
            [claim] if claim.dtype == derived.dtype && claim.shape == derived.shape => {
                Ok((kernel, derived))
            }
            _ => refuse!(
                "claims another output than {} {:?}",
                dtype.name(),
                derived.shape
            ),
        }
    }

    /// Is the output the first input (the bound value, for a state) under another name or shape?
    pub fn is_view(&self) -> bool {
        matches!(
            self,
            Self::State { .. } | Self::NextState { .. } | Self::Reshape
        )
    }

    /// Does it work in place, on an output that already has the elements of its first input?
    pub fn is_in_place(&self) -> bool {
        matches!(
            self,
            Self::AddBias { .. }
                | Self::ReluGrad
                | Self::SubOneHot { .. }
                | Self::Momentum(_)
                | Self::SgdUpdate { .. }
                | Self::AdamMean { .. }
                | Self::AdamSquare(_)
        )
    }

    /// Is it one of the hashes that only a commitment step may need?
    pub fn is_hash(&self) -> bool {
        matches!(
            self,
            Self::TensorDigest | Self::StateLeaf(_) | Self::StateRoot | Self::Record { .. }
        )
    }

    /// Does its law end in saturation, so that [`Self::run`] may count?
    pub fn saturates(&self) -> bool {
        matches!(
            self,
            Self::Normalize { .. }
                | Self::Rescale { .. }
                | Self::Momentum(_)
                | Self::SgdUpdate { .. }
                | Self::AdamMean { .. }
                | Self::AdamDirection(_)
        )
    }

    /// Writes the output; returns how many elements saturation changed.
    ///
    /// `inputs` and `out` have the forms that the kernel was made for. If it is in place, `out`
    /// holds the first input, and `inputs[0]` is not read. Work is spread over the current rayon
    /// pool. Errors come from values alone: an index without a sample, a step beyond the order.
    pub fn run(
        &self,
        inputs: &[Slice<'_>],
        out: SliceMut<'_>,
        samples: &Samples<'_>,
        gemm: &mut Gemm,
    ) -> Result<u64, RunError> {
        let input = |i: usize| inputs.get(i).copied().ok_or(RunError::Inputs);
        match self {
            Self::State { .. } | Self::NextState { .. } | Self::Reshape => copy(input(0)?, out)?,
            Self::Increment => put(out, source::increment(scalar(input(0)?)?))?,
            Self::SampleIndex {
                seed,
                samples,
                batch,
            } => {
                let t = scalar(input(0)?)?;
                source::sample_index(*seed, *samples, *batch, t, out.try_into()?)?;
            }
            Self::GatherSamples { part } => {
                let columns = samples.columns(*part);
                let index = input(0)?.try_into()?;
                if let Some(windows) = &samples.windows {
                    let context = columns.len() / size_of::<i32>();
                    let first = if *part == Part::X { 0 } else { windows.shift };
                    windows
                        .gather(index, samples.table, first, context, out.try_into()?)
                        .ok_or(RunError::Sample)?;
                    return Ok(0);
                }
                source::gather_samples(index, samples.table, samples.row, columns, bytes_mut(out))
                    .ok_or(RunError::Sample)?;
            }
            Self::Im2col(window) => {
                let x: &[i16] = input(0)?.try_into()?;
                let image = window.image();
                for_rows(
                    out.try_into()?,
                    window.windows() * window.patch(),
                    |at, out: &mut [i16]| {
                        layout::im2col(window, &x[at * image..], out);
                        0
                    },
                );
            }
            Self::Col2im(window) => {
                let unit = window.windows() * window.patch();
                each!(input(0)?, x => for_rows(out.try_into()?, window.image(), |at, out| {
                    layout::col2im(window, &x[at * unit..], out);
                    0
                }));
            }
            Self::ScatterAdd { rows, columns } => {
                let (extents, out) = ((*rows, *columns), out.try_into()?);
                each!(input(0)?, x => each!(input(1)?, ids => {
                    for_rows(out, *columns, |at, out| {
                        gather::scatter_add(x, ids, extents, at, out);
                        0
                    })
                }));
            }
            Self::Matmul(product) => {
                let (a, b) = (input(0)?.try_into()?, input(1)?.try_into()?);
                let factors = Factors::Matrices(*product);
                linear::matmul(gemm, &factors, a, b, out.try_into()?)?;
            }
            Self::BatchedMatmul { stack, product } => {
                let (a, b) = (input(0)?.try_into()?, input(1)?.try_into()?);
                linear::batched_matmul(gemm, *product, *stack, a, b, out.try_into()?)?;
            }
            Self::MaxPool(window) => {
                let x: &[i16] = input(0)?.try_into()?;
                let image = window.image();
                for_rows(
                    out.try_into()?,
                    window.windows() * window.channels,
                    |at, out| {
                        pool::max_pool(window, &x[at * image..], out);
                        0
                    },
                );
            }
            Self::MaxPoolGrad(window) => {
                let (grad, x): (&[i16], &[i16]) = (input(0)?.try_into()?, input(1)?.try_into()?);
                let (image, unit) = (window.image(), window.windows() * window.channels);
                for_rows(out.try_into()?, image, |at, out| {
                    pool::max_pool_grad(window, &grad[at * unit..], &x[at * image..], out);
                    0
                });
            }
            Self::SumPool(window) => {
                let x: &[i16] = input(0)?.try_into()?;
                let image = window.image();
                for_rows(
                    out.try_into()?,
                    window.windows() * window.channels,
                    |at, out| {
                        pool::sum_pool(window, &x[at * image..], out);
                        0
                    },
                );
            }
            Self::SumPoolGrad(window) => {
                let unit = window.windows() * window.channels;
                each!(input(0)?, x => for_rows(out.try_into()?, window.image(), |at, out| {
                    pool::sum_pool_grad(window, &x[at * unit..], out);
                    0
                }));
            }
            Self::SquareSum { shift } => {
                put(out, softmax::square_sum(input(0)?.try_into()?, *shift))?;
            }
            Self::ScheduleLinear { starts, rates } => {
                let now = scalar(input(0)?)?;
                put(out, optimizer::schedule_linear(now, starts, rates))?;
            }
            Self::ClipFactor { limit } => {
                put(out, optimizer::clip_factor(scalar(input(0)?)?, *limit))?;
            }
            Self::AdamCorrection { beta1, beta2 } => {
                let now = scalar(input(0)?)?;
                put(out, optimizer::adam_correction(now, *beta1, *beta2))?;
            }
            Self::Schedule { starts, rates } => {
                put(out, optimizer::schedule(scalar(input(0)?)?, starts, rates))?;
            }
            Self::TensorDigest => put_hash(out, digest_parallel(input(0)?.bytes()))?,
            Self::BatchDigest => {
                let value = commitment::batch_digest(hash(input(0)?)?, hash(input(1)?)?);
                put_hash(out, value)?;
            }
            Self::StateLeaf(leaf) => {
                put_hash(out, commitment::state_leaf(leaf, hash(input(0)?)?)?)?;
            }
            Self::StateRoot => {
                let leaves: Result<Vec<Hash>, RunError> =
                    inputs.iter().map(|&leaf| hash(leaf).copied()).collect();
                put_hash(out, commitment::state_root(&leaves?))?;
            }
            Self::Record { commit_every } => {
                let (step, loss) = (scalar(input(0)?)?, scalar(input(2)?)?);
                let commits = step % commit_every == 0;
                let root = hash(input(3)?)?;
                let root = commits.then_some(root);
                put_hash(out, commitment::record(step, hash(input(1)?)?, loss, root)?)?;
            }
            _ => return self.run_by_rows(inputs, out),
        }
        Ok(0)
    }
}

/// Operator, dtype and shape of a node.
///
/// Attributes that only say what a mantissa stands for are read too: a node that lacks one, or has
/// another kind of value there, is no node of the operator.
fn read(r: &Reader<'_>) -> Result<(Kernel, Dtype, Vec<usize>), OpError> {
    Ok(match r.node.op.as_str() {
        "state" => {
            let [] = r.dtypes([])?;
            let dtype = r.dtype("dtype")?;
            r.int("exponent", -512, 512)?;
            (
                Kernel::State {
                    name: r.text("name")?.to_owned(),
                },
                dtype,
                r.extents("shape")?,
            )
        }
        "next_state" => {
            let [x] = r.dtypes([None])?;
            let name = r.text("name")?.to_owned();
            (Kernel::NextState { name }, x.dtype, x.shape.clone())
        }
        "reshape" => {
            let [x] = r.dtypes([None])?;
            let shape = r.extents("shape")?;
            if checked_size(&shape) != Some(x.size()) {
                refuse!("cannot reshape {:?} to {shape:?}", x.shape);
            }
            (Kernel::Reshape, x.dtype, shape)
        }
        "increment" => {
            let [t] = r.dtypes([Some(I64)])?;
            require_scalar(t)?;
            (Kernel::Increment, I64, vec![])
        }
        "sample_index" => {
            let [t] = r.dtypes([Some(I64)])?;
            require_scalar(t)?;
            let batch = r.int("batch", 1, 1 << 20)?;
            let samples = r.int("samples", 1, MAX_STEPS)?;
            let kernel = Kernel::SampleIndex {
                seed: read_seed(r)?,
                samples: samples as u64,
                batch: batch as u64,
            };
            (kernel, I64, vec![batch as usize])
        }
        "dropout_mask" => {
            let [t] = r.dtypes([Some(I64)])?;
            require_scalar(t)?;
            let mask = dropout::Mask {
                seed: read_seed(r)?,
                site: r.int("site", 0, dropout::MAX_SITES as i64 - 1)? as u32,
                keep: r.int("keep", 1, u16::MAX.into())? as u16,
                value: r.int("value", 1, i16::MAX.into())? as i16,
                first: 0,
            };
            r.int("exponent", 0, 14)?;
            let shape = r.extents("shape")?;
            if shape.contains(&0) {
                refuse!("extents must be positive");
            }
            (Kernel::DropoutMask(mask), I16, shape)
        }
        "gather_samples" => {
            let [index] = r.dtypes([Some(I64)])?;
            let part = match r.text("part")? {
                "x" => Part::X,
                "y" => Part::Y,
                other => refuse!("no part {other:?}"),
            };
            if index.shape.len() != 1 {
                refuse!("indices are a vector");
            }
            let shape = [index.shape.clone(), r.extents("shape")?].concat();
            if shape.contains(&0) {
                refuse!("extents must be positive");
            }
            r.int("exponent", -64, 64)?;
            (Kernel::GatherSamples { part }, r.dtype("dtype")?, shape)
        }
        "normalize" => {
            let [x] = r.dtypes([None])?;
            r.int("exponent", -64, 64)?;
            let kernel = Kernel::Normalize {
                multiplier: r.int("multiplier", 1, 1 << 31)?,
                offset: r.int("offset", -(1 << 60), 1 << 60)?,
                shift: Rounding::new(r.int("shift", 0, 64)?),
            };
            (kernel, I16, x.shape.clone())
        }
        "one_hot" => {
            let [x] = r.dtypes([None])?;
            let depth = r.int("depth", 1, 1 << 20)? as usize;
            let &[batch, _, ..] = x.shape.as_slice() else {
                refuse!("needs [batch, ...] tokens")
            };
            if batch == 0 {
                refuse!("needs a sample");
            }
            let Some(width) = (x.size() / batch).checked_mul(depth) else {
                refuse!("the rows are too long")
            };
            (Kernel::OneHot { depth }, I16, vec![batch, width])
        }
        "im2col" => {
            let [x] = r.dtypes([Some(I16)])?;
            let (window, batch) = r.window(&x.shape)?;
            (Kernel::Im2col(window), I16, patches_shape(&window, batch)?)
        }
        "col2im" => {
            let [x] = r.dtypes([None])?;
            let shape = r.extents("shape")?;
            let (window, batch) = r.window(&shape)?;
            let expected = patches_shape(&window, batch)?;
            if x.shape != expected {
                refuse!("needs shape {expected:?}, has {:?}", x.shape);
            }
            (Kernel::Col2im(window), I64, shape)
        }
        "transpose" => {
            let [x] = r.dtypes([None])?;
            let perm = r.extents("perm")?;
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if !sorted.into_iter().eq(0..x.shape.len()) {
                refuse!("{perm:?} is not a permutation of the axes");
            }
            let shape = perm.iter().map(|&axis| x.shape[axis]).collect();
            (
                Kernel::Transpose(Transpose::new(&x.shape, &perm)),
                x.dtype,
                shape,
            )
        }
        "slice" => {
            let [x] = r.dtypes([None])?;
            let axis = r.axis(&x.shape)?;
            let start = r.int("start", 0, (MAX_ELEMENTS - 1) as i64)? as usize;
            let stop = r.int("stop", 1, MAX_ELEMENTS as i64)? as usize;
            if start >= stop || stop > x.shape[axis] {
                refuse!("the part {start} to {stop} is empty, or not there");
            }
            let (axis, shape) = along(&x.shape, axis, stop - start)?;
            (Kernel::Slice { axis, start }, x.dtype, shape)
        }
        "pad" => {
            let [x] = r.dtypes([None])?;
            let axis = r.axis(&x.shape)?;
            let before = r.int("before", 0, (MAX_ELEMENTS - 1) as i64)? as usize;
            let after = r.int("after", 0, (MAX_ELEMENTS - 1) as i64)? as usize;
            // Extents are at most 2^32 each: the sum fits.
            let (axis, shape) = along(&x.shape, axis, before + x.shape[axis] + after)?;
            (Kernel::Pad { axis, before }, x.dtype, shape)
        }
        "concat" => {
            let [first, _, ..] = r.inputs else {
                refuse!("joins two tensors or more, has {}", r.inputs.len())
            };
            let axis = r.axis(&first.shape)?;
            let mut extents = Vec::with_capacity(r.inputs.len());
            for x in r.inputs {
                let fits = x.shape.len() == first.shape.len()
                    && (0..x.shape.len()).all(|i| i == axis || x.shape[i] == first.shape[i]);
                if x.dtype != first.dtype || !fits {
                    refuse!("dtypes differ, or shapes beside axis {axis}");
                }
                extents.push(x.shape[axis]);
            }
            let whole = extents
                .iter()
                .try_fold(0usize, |sum, &extent| sum.checked_add(extent));
            let Some(whole) = whole else {
                refuse!("the whole is too large")
            };
            let (axis, shape) = along(&first.shape, axis, whole)?;
            (Kernel::Concat { axis, extents }, first.dtype, shape)
        }
        "gather_rows" => {
            let [x, ids] = r.dtypes([None, None])?;
            let &[rows, columns] = x.shape.as_slice() else {
                refuse!("needs rows and columns, has {:?}", x.shape)
            };
            let &[count] = ids.shape.as_slice() else {
                refuse!("needs a list of numbers, has {:?}", ids.shape)
            };
            if rows == 0 {
                refuse!("the table has no row");
            }
            let kernel = Kernel::GatherRows { rows, columns };
            (kernel, x.dtype, vec![count, columns])
        }
        "scatter_add" => {
            let [x, ids] = r.dtypes([None, None])?;
            let rows = r.int("rows", 1, MAX_ELEMENTS as i64)? as usize;
            let &[count, columns] = x.shape.as_slice() else {
                refuse!("needs rows and columns, has {:?}", x.shape)
            };
            require_shape(ids, &[count])?;
            (
                Kernel::ScatterAdd { rows, columns },
                I64,
                vec![rows, columns],
            )
        }
        "matmul" => {
            let [a, b] = r.dtypes([Some(I16), Some(I16)])?;
            let (&[a0, a1], &[b0, b1]) = (a.shape.as_slice(), b.shape.as_slice()) else {
                refuse!("needs matrices, has {:?}, {:?}", a.shape, b.shape)
            };
            let product = product_of(r, [a0, a1], [b0, b1])?;
            (Kernel::Matmul(product), I64, vec![product.m, product.n])
        }
        "batched_matmul" => {
            let [a, b] = r.dtypes([Some(I16), Some(I16)])?;
            let (&[ref stack @ .., a0, a1], &[ref other @ .., b0, b1]) =
                (a.shape.as_slice(), b.shape.as_slice())
            else {
                refuse!("needs stacks of matrices, has {:?}, {:?}", a.shape, b.shape)
            };
            if stack.is_empty() || stack != other {
                refuse!("the stacks differ: {:?} and {:?}", a.shape, b.shape);
            }
            let product = product_of(r, [a0, a1], [b0, b1])?;
            let shape = [stack, &[product.m, product.n]].concat();
            let Some(stack) = checked_size(stack) else {
                refuse!("the stack is too large")
            };
            (Kernel::BatchedMatmul { stack, product }, I64, shape)
        }
        "add_bias" => {
            let [acc, bias] = r.dtypes([Some(I64), Some(I32)])?;
            if acc.shape.is_empty() || bias.shape != acc.shape[acc.shape.len() - 1..] {
                refuse!("bias must have the last extent");
            }
            let shift = r.int("shift", -62, 64)?;
            (Kernel::AddBias { shift }, I64, acc.shape.clone())
        }
        "column_sum" => {
            let [x] = r.dtypes([None])?;
            match x.shape.last() {
                Some(&columns) if columns > 0 => (Kernel::ColumnSum, I64, vec![columns]),
                _ => refuse!("needs a non-empty last axis"),
            }
        }
        "rescale" => {
            let [x] = r.dtypes([None])?;
            let dtype = r.dtype("dtype")?;
            if matches!(dtype, U8 | I8) {
                refuse!("rescales to i16, i32 or i64");
            }
            r.int("multiplier_exponent", 0, 32)?;
            let kernel = Kernel::Rescale {
                multiplier: r.int("multiplier", 1, 65535)?,
                shift: r.int("shift", -62, 64)?,
            };
            (kernel, dtype, x.shape.clone())
        }
        op @ ("add" | "sub") => {
            let [a, b] = r.dtypes([None, None])?;
            require_same_shape(a, b)?;
            let shifts = (
                r.int("shift_a", 0, 62)? as u32,
                r.int("shift_b", 0, 62)? as u32,
            );
            let kernel = if op == "add" {
                Kernel::Add { shifts }
            } else {
                Kernel::Sub { shifts }
            };
            (kernel, I64, a.shape.clone())
        }
        "mul" => {
            let [a, b] = r.dtypes([None, None])?;
            require_same_shape(a, b)?;
            (Kernel::Mul, I64, a.shape.clone())
        }
        "relu" => {
            let [x] = r.dtypes([Some(I16)])?;
            (Kernel::Relu, I16, x.shape.clone())
        }
        "relu_grad" => {
            let [grad, output] = r.dtypes([Some(I16), Some(I16)])?;
            require_same_shape(grad, output)?;
            (Kernel::ReluGrad, I16, grad.shape.clone())
        }
        "look_up" => {
            let [x] = r.dtypes([Some(I16)])?;
            let name = r.text("table")?;
            let Some(curve) = lookup::find(name) else {
                refuse!("there is no table {name:?}")
            };
            let shift = Rounding::new(r.int("shift", -40, 64)?);
            (Kernel::LookUp { curve, shift }, I16, x.shape.clone())
        }
        "max_pool" => {
            let [x] = r.dtypes([Some(I16)])?;
            let (window, batch) = r.window(&x.shape)?;
            (Kernel::MaxPool(window), I16, pooled_shape(&window, batch))
        }
        "max_pool_grad" => {
            let [grad, x] = r.dtypes([Some(I16), Some(I16)])?;
            let (window, batch) = r.window(&x.shape)?;
            require_shape(grad, &pooled_shape(&window, batch))?;
            (Kernel::MaxPoolGrad(window), I64, x.shape.clone())
        }
        "sum_pool" => {
            let [x] = r.dtypes([Some(I16)])?;
            let (window, batch) = r.window(&x.shape)?;
            (Kernel::SumPool(window), I64, pooled_shape(&window, batch))
        }
        "sum_pool_grad" => {
            let [grad] = r.dtypes([None])?;
            let shape = r.extents("shape")?;
            let (window, batch) = r.window(&shape)?;
            require_shape(grad, &pooled_shape(&window, batch))?;
            (Kernel::SumPoolGrad(window), I64, shape)
        }
        "row_max" => {
            let [z] = r.dtypes([Some(I32)])?;
            let (rows, classes) = rows_of(z)?;
            (Kernel::RowMax { classes }, I32, vec![rows])
        }
        "exp2_diff" => {
            let [z, maximum] = r.dtypes([Some(I32), Some(I32)])?;
            let (rows, classes) = rows_of(z)?;
            require_shape(maximum, &[rows])?;
            (Kernel::Exp2Diff { classes }, I32, z.shape.clone())
        }
        "row_sum" => {
            let [x] = r.dtypes([Some(I32)])?;
            let (rows, classes) = rows_of(x)?;
            (Kernel::RowSum { classes }, I64, vec![rows])
        }
        "divide" => {
            let [e, total] = r.dtypes([Some(I32), Some(I64)])?;
            let (rows, classes) = rows_of(e)?;
            require_shape(total, &[rows])?;
            (Kernel::Divide { classes }, I16, e.shape.clone())
        }
        "causal_spans" => {
            let [] = r.dtypes([])?;
            let queries = r.int("queries", 1, i32::MAX.into())?;
            let window = r.int("window", 1, i32::MAX.into())?;
            (
                Kernel::CausalSpans { window },
                I32,
                vec![queries as usize, 2],
            )
        }
        "token_spans" => {
            let [ids] = r.dtypes([None])?;
            let rule = TokenRule {
                after: r.int("after", 1, i32::MAX.into())?,
                before: r.int("before", 1, i32::MAX.into())?,
                end_of_text: r.int("end_of_text", 0, 1 << 31)?,
                padding: r.int("padding", 0, 1 << 31)?,
            };
            let &[rows, places] = ids.shape.as_slice() else {
                refuse!("needs rows of ids, has {:?}", ids.shape)
            };
            if places == 0 || places > i32::MAX as usize {
                refuse!("has rows of {places} places");
            }
            (
                Kernel::TokenSpans { places, rule },
                I32,
                vec![rows, places, 2],
            )
        }
        "keep_span" => {
            let [x, spans] = r.dtypes([None, Some(I32)])?;
            let fill = r.int("fill", 1 - (1 << 60), (1 << 60) - 1)?;
            let (&[rows, columns], &[count, 2]) = (x.shape.as_slice(), spans.shape.as_slice())
            else {
                refuse!(
                    "needs rows and their spans, has {:?}, {:?}",
                    x.shape,
                    spans.shape
                )
            };
            if columns == 0 || count == 0 || !rows.is_multiple_of(count) {
                refuse!("{count} spans for {rows} rows of {columns}");
            }
            if !x.dtype.holds(fill) {
                refuse!("{} does not hold the fill {fill}", x.dtype.name());
            }
            (Kernel::KeepSpan { columns, fill }, x.dtype, x.shape.clone())
        }
        "softmax_grad" => {
            let [p, grad] = r.dtypes([Some(I16), Some(I16)])?;
            let (_, classes) = rows_of(p)?;
            require_same_shape(p, grad)?;
            (Kernel::SoftmaxGrad { classes }, I64, p.shape.clone())
        }
        "sub_one_hot" => {
            let [p, labels] = r.dtypes([Some(I16), None])?;
            let (rows, classes) = rows_of(p)?;
            require_shape(labels, &[rows])?;
            (Kernel::SubOneHot { classes }, I16, p.shape.clone())
        }
        "logit_grad" => {
            let [e, total, labels] = r.dtypes([Some(I32), Some(I64), None])?;
            let (rows, classes) = rows_of(e)?;
            for tensor in [total, labels] {
                require_shape(tensor, &[rows])?;
            }
            (Kernel::LogitGrad { classes }, I32, e.shape.clone())
        }
        "cross_entropy" => {
            let [z, maximum, total, labels] = r.dtypes([Some(I32), Some(I32), Some(I64), None])?;
            let (rows, classes) = rows_of(z)?;
            for tensor in [maximum, total, labels] {
                require_shape(tensor, &[rows])?;
            }
            (Kernel::CrossEntropy { classes }, I64, vec![rows])
        }
        "square_sum" => {
            let [_] = r.dtypes([Some(I16)])?;
            let shift = Rounding::new(r.int("shift", -62, 64)?);
            (Kernel::SquareSum { shift }, I64, vec![])
        }
        "sum" => {
            let [_] = r.dtypes([None])?;
            (Kernel::Sum, I64, vec![])
        }
        "center" => {
            let [x] = r.dtypes([Some(I16)])?;
            let (_, width) = last_axis(x)?;
            let shift = r.int("shift", 0, 32)?;
            (Kernel::Center { width, shift }, I32, x.shape.clone())
        }
        "row_dot" => {
            let [a, b] = r.dtypes([None, None])?;
            if [a, b].into_iter().any(|form| form.dtype == I64) {
                refuse!("inputs must be narrower than i64");
            }
            require_same_shape(a, b)?;
            let (rows, width) = last_axis(a)?;
            (Kernel::RowDot { width }, I64, rows.to_vec())
        }
        "inverse_root" => {
            let [s] = r.dtypes([Some(I64)])?;
            r.int("numerator_exponent", -64, 64)?;
            let root = InverseRoot {
                epsilon: r.int("epsilon", 1, 1 << 60)?,
                lift: r.int("lift", 0, 30)? as u32,
                numerator: r.int("numerator", 1, 1 << 62)?,
            };
            (Kernel::InverseRoot(root), I64, s.shape.clone())
        }
        "row_scale" => {
            let [x, factors] = r.dtypes([None, None])?;
            let (rows, width) = last_axis(x)?;
            require_shape(factors, rows)?;
            (Kernel::RowScale { width }, I64, x.shape.clone())
        }
        "column_scale" => {
            let [x, factors] = r.dtypes([None, None])?;
            let (_, width) = last_axis(x)?;
            require_shape(factors, &[width])?;
            (Kernel::ColumnScale, I64, x.shape.clone())
        }
        "momentum" => {
            let [velocity, grad] = r.dtypes([Some(I32), Some(I64)])?;
            require_same_shape(velocity, grad)?;
            let rule = MomentumRule::new(r.int("decay", 0, 1 << 16)?, r.int("shift", -62, 64)?);
            (Kernel::Momentum(rule), I32, velocity.shape.clone())
        }
        "sgd_update" => {
            let [weight, velocity, rate] = r.dtypes([Some(I32), Some(I32), Some(I64)])?;
            require_same_shape(weight, velocity)?;
            require_scalar(rate)?;
            let shift = r.int("shift", -62, 64)?;
            (Kernel::SgdUpdate { shift }, I32, weight.shape.clone())
        }
        op @ ("schedule" | "schedule_linear") => {
            let [t] = r.dtypes([Some(I64)])?;
            require_scalar(t)?;
            r.int("exponent", -64, 128)?;
            let (starts, rates) = (r.longs("starts")?, r.longs("rates")?);
            if starts.len() != rates.len() || rates.is_empty() {
                refuse!("needs a rate for each start");
            }
            if op == "schedule" {
                return Ok((Kernel::Schedule { starts, rates }, I64, vec![]));
            }
            if !starts.is_sorted_by(|a, b| a < b) {
                refuse!("starts must increase");
            }
            (Kernel::ScheduleLinear { starts, rates }, I64, vec![])
        }
        "sign" => {
            let [x] = r.dtypes([None])?;
            (Kernel::Sign, I32, x.shape.clone())
        }
        "capped_square" => {
            let [x] = r.dtypes([None])?;
            let kernel = Kernel::CappedSquare {
                shift: Rounding::new(r.int("shift", -62, 64)?),
                bits: r.int("bits", 0, 59)? as u32,
            };
            (kernel, I64, x.shape.clone())
        }
        "clip_factor" => {
            let [total] = r.dtypes([Some(I64)])?;
            require_scalar(total)?;
            let limit = r.int("limit", 1, 1 << 31)?;
            (Kernel::ClipFactor { limit }, I64, vec![])
        }
        "scale_by" => {
            let [x, factor] = r.dtypes([None, Some(I64)])?;
            require_scalar(factor)?;
            let shift = r.int("shift", -62, 64)?;
            (Kernel::ScaleBy { shift }, I64, x.shape.clone())
        }
        "adam_mean" => {
            let [mean, grad] = r.dtypes([Some(I32), Some(I16)])?;
            require_same_shape(mean, grad)?;
            let lift = r.int("lift", 0, 15)? as u32;
            let kernel = Kernel::AdamMean {
                lift,
                blend: blend(r)?,
            };
            (kernel, I32, mean.shape.clone())
        }
        "adam_square" => {
            let [square, grad] = r.dtypes([Some(I64), Some(I16)])?;
            require_same_shape(square, grad)?;
            (Kernel::AdamSquare(blend(r)?), I64, square.shape.clone())
        }
        "adam_direction" => {
            let [mean, square] = r.dtypes([Some(I32), Some(I64)])?;
            require_same_shape(mean, square)?;
            let rule = Direction {
                epsilon: r.int("epsilon", 1, 1 << 31)?,
                shift: r.int("shift", 0, 31)? as u32,
            };
            (Kernel::AdamDirection(rule), I32, mean.shape.clone())
        }
        "adam_correction" => {
            let [t] = r.dtypes([Some(I64)])?;
            require_scalar(t)?;
            let most = i64::from(i32::MAX);
            let kernel = Kernel::AdamCorrection {
                beta1: r.int("beta1", 0, most)?,
                beta2: r.int("beta2", 0, most)?,
            };
            (kernel, I64, vec![])
        }
        "tensor_digest" => {
            let [_] = r.dtypes([None])?;
            (Kernel::TensorDigest, U8, vec![32])
        }
        "batch_digest" => {
            let [x, y] = r.dtypes([None, None])?;
            require_digests(&[x, y])?;
            (Kernel::BatchDigest, U8, vec![32])
        }
        "state_leaf" => {
            let [x] = r.dtypes([None])?;
            require_digests(&[x])?;
            let leaf = StateLeaf {
                name: r.text("name")?.to_owned(),
                dtype: r.text("dtype")?.to_owned(),
                shape: r.ints("shape")?.to_vec(),
                exponent: r.int("exponent", -512, 512)?,
            };
            (Kernel::StateLeaf(leaf), U8, vec![32])
        }
        "state_root" => {
            require_digests(&r.inputs.iter().collect::<Vec<_>>())?;
            (Kernel::StateRoot, U8, vec![32])
        }
        "record" => {
            let [step, batch_digest, loss, root] = r.dtypes([None; 4])?;
            require_digests(&[batch_digest, root])?;
            require_scalar(step)?;
            require_scalar(loss)?;
            let commit_every = r.int("commit_every", 1, MAX_STEPS)?;
            (Kernel::Record { commit_every }, U8, vec![32])
        }
        other => refuse!("unknown operator {other:?}"),
    })
}

/// The share of the new in a moving average, at most 1.
fn blend(r: &Reader<'_>) -> Result<Blend, OpError> {
    let (rate, shift) = (r.int("rate", 0, 1 << 16)?, r.int("shift", 0, 46)?);
    if rate > 1 << shift {
        refuse!("the share of the new is more than 1");
    }
    Ok(Blend::new(rate, shift))
}

fn read_seed(r: &Reader<'_>) -> Result<u64, OpError> {
    let seed = match r.attr("seed")? {
        Attr::Bytes(bytes) => <[u8; 8]>::try_from(bytes.as_slice()).ok(),
        _ => None,
    };
    let Some(seed) = seed else {
        refuse!("seed is 8 bytes, little-endian")
    };
    Ok(u64::from_le_bytes(seed))
}

fn require_scalar(form: &Form) -> Result<(), OpError> {
    if !form.is_scalar() {
        refuse!(
            "needs an int64 scalar, has {} {:?}",
            form.dtype.name(),
            form.shape
        );
    }
    Ok(())
}

fn require_digests(forms: &[&Form]) -> Result<(), OpError> {
    if !forms.iter().all(|form| form.is_digest()) {
        refuse!("needs digests");
    }
    Ok(())
}

fn require_same_shape(a: &Form, b: &Form) -> Result<(), OpError> {
    if a.shape != b.shape {
        refuse!("shapes differ: {:?} and {:?}", a.shape, b.shape);
    }
    Ok(())
}

fn require_shape(form: &Form, shape: &[usize]) -> Result<(), OpError> {
    if form.shape != shape {
        refuse!("needs shape {shape:?}, has {:?}", form.shape);
    }
    Ok(())
}

/// Extents of the product of two matrices as they are stored, by the node's attributes.
fn product_of(r: &Reader<'_>, a: [usize; 2], b: [usize; 2]) -> Result<Product, OpError> {
    let (transpose_a, transpose_b) = (r.flag("transpose_a")?, r.flag("transpose_b")?);
    let (m, k) = if transpose_a {
        (a[1], a[0])
    } else {
        (a[0], a[1])
    };
    let (inner, n) = if transpose_b {
        (b[1], b[0])
    } else {
        (b[0], b[1])
    };
    if k != inner {
        refuse!("inner extents differ: {k} and {inner}");
    }
    if k > MAX_K {
        refuse!("sums of {k} terms are longer than {MAX_K}");
    }
    Ok(Product {
        m,
        k,
        n,
        transpose_a,
        transpose_b,
    })
}

/// An axis of a tensor of this shape that is `extent` long in the output, and the output's shape.
fn along(shape: &[usize], axis: usize, extent: usize) -> Result<(Axis, Vec<usize>), OpError> {
    let Some(inner) = checked_size(&shape[axis + 1..]) else {
        refuse!("{shape:?} is too large")
    };
    let mut whole = shape.to_vec();
    whole[axis] = extent;
    let axis = Axis {
        input: shape[axis],
        output: extent,
        inner,
    };
    Ok((axis, whole))
}

/// Rows and their length, which is not 0.
fn rows_of(form: &Form) -> Result<(usize, usize), OpError> {
    match form.shape.as_slice() {
        &[rows, classes] if classes > 0 => Ok((rows, classes)),
        shape => refuse!("needs non-empty rows, has shape {shape:?}"),
    }
}

/// Extents before the last, and the last, which is not 0.
fn last_axis(form: &Form) -> Result<(&[usize], usize), OpError> {
    match form.shape.split_last() {
        Some((&width, rows)) if width > 0 => Ok((rows, width)),
        _ => refuse!("needs non-empty rows, has shape {:?}", form.shape),
    }
}

fn patches_shape(window: &Window, batch: usize) -> Result<Vec<usize>, OpError> {
    let rows = checked_size(&[batch, window.rows, window.columns]);
    let columns = checked_size(&[window.kernel[0], window.kernel[1], window.channels]);
    match rows.zip(columns) {
        Some((rows, columns)) => Ok(vec![rows, columns]),
        None => refuse!("the patches are too large"),
    }
}

fn pooled_shape(window: &Window, batch: usize) -> Vec<usize> {
    vec![batch, window.rows, window.columns, window.channels]
}

pub(super) fn scalar(x: Slice<'_>) -> Result<i64, RunError> {
    let x: &[i64] = x.try_into()?;
    x.first().copied().ok_or(RunError::Inputs)
}

fn put(out: SliceMut<'_>, value: i64) -> Result<(), RunError> {
    let out: &mut [i64] = out.try_into()?;
    out.fill(value);
    Ok(())
}

fn hash(x: Slice<'_>) -> Result<&Hash, RunError> {
    let x: &[u8] = x.try_into()?;
    x.try_into().map_err(|_| RunError::Inputs)
}

fn put_hash(out: SliceMut<'_>, value: Hash) -> Result<(), RunError> {
    let out: &mut [u8] = out.try_into()?;
    if out.len() != value.len() {
        return Err(RunError::Inputs);
    }
    out.copy_from_slice(&value);
    Ok(())
}

fn bytes_mut(out: SliceMut<'_>) -> &mut [u8] {
    fn of<T: Element>(x: &mut [T]) -> &mut [u8] {
        // SAFETY: an `Element` is a plain integer, for which any bytes are a value.
        unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), size_of_val(x)) }
    }
    match out {
        SliceMut::U8(x) => of(x),
        SliceMut::I8(x) => of(x),
        SliceMut::I16(x) => of(x),
        SliceMut::I32(x) => of(x),
        SliceMut::I64(x) => of(x),
    }
}

pub(crate) fn copy(x: Slice<'_>, out: SliceMut<'_>) -> Result<(), RunError> {
    let (from, to) = (x.bytes(), bytes_mut(out));
    if from.len() != to.len() {
        return Err(RunError::Inputs);
    }
    to.copy_from_slice(from);
    Ok(())
}
