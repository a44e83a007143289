//! The leaf rule of every operator: twin of the leaf rules in `vtrain/ops`.
//!
//! One output element is a fold over terms: a state goes through `step` once a term, and `finish`
//! makes it the element. Terms are cut into blocks of one length, which follows from the types
//! alone. Inside a block arithmetic is exact; the state after it must fit int64. Inputs may hold any
//! values of their dtypes, as parties can agree on garbage, and everything here is total for them.

use blake3::CHUNK_LEN;

use crate::domains::Hash;
use crate::graph::{Attr, Node};
use crate::number::{
    Dtype, EXP2_EXPONENT, LOG2_EXPONENT, LOSS_EXPONENT, MAX_STEPS, PROBABILITY_EXPONENT,
    PROBABILITY_ONE, exp2_q16, log2_q16, saturate,
};
use crate::ops::attention::TokenRule;
use crate::ops::gather::number_of;
use crate::ops::linear::Product;
use crate::ops::softmax::{FINE_ONE, fine_share};
use crate::ops::{Form, Kernel, OpError, Part, Windows, attention, commitment, lookup, optimizer};
use crate::order;
use crate::window::Window;

/// Most distinct chunks that a block of a fold touches, where it has more than one term.
pub const MAX_CHUNKS: u64 = 32;
/// What padding counts as in a maximum.
const BELOW: i128 = i16::MIN as i128;
/// Differences from the maximum are cut here, as in `ops::softmax`.
const DEEPEST: i64 = 31 << LOG2_EXPONENT;

/// Why a fold did not come to a state or an element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// The law gives no value: it would not fit.
    #[error("has no value that fits")]
    NoValue,
    /// An element that the reader does not have.
    #[error("input {input}: element {index} is not there")]
    Element {
        /// Which input of the node.
        input: usize,
        /// Flat index.
        index: u64,
    },
    /// A sample that the reader does not have.
    #[error("sample {0} is not there")]
    Sample(u64),
    /// A token that the reader does not have.
    #[error("token {0} is not there")]
    Token(u64),
    /// A digest that the reader does not have.
    #[error("the digest of input {0} is not there")]
    Digest(usize),
}

/// Samples that are windows of a file of tokens: twin of `Windows` in `vtrain/wire/task.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// How windows lie in the file.
    pub windows: Windows,
    /// Tokens of a window.
    pub context: usize,
}

impl Tokens {
    /// Windows that lie in the file, labels too.
    pub fn samples(&self) -> u64 {
        self.windows.count(self.context) as u64
    }

    /// Bytes of the file.
    pub fn byte_len(&self) -> u64 {
        (self.windows.tokens as u64).saturating_mul(self.windows.width as u64)
    }

    /// The chunk of the file that token `at` lies in: no token lies in two.
    pub fn chunk_of(&self, at: u64) -> u64 {
        at / (CHUNK_LEN / self.windows.width) as u64
    }

    /// Which token is element `within` of a part of sample `index`; None where the sample or its
    /// element is not there.
    pub fn place(&self, part: Part, index: i64, within: u64) -> Option<u64> {
        let index = u64::try_from(index).ok().filter(|&i| i < self.samples())?;
        let first = match part {
            Part::X => 0,
            Part::Y => self.windows.shift as u64,
        };
        // In the file, so that nothing wraps: the last token of the last window is.
        (within < self.context as u64).then(|| index * self.windows.stride as u64 + first + within)
    }
}

/// Where a fold reads from; what it reads is what it depends on.
pub trait Reader {
    /// Element `index` (flat, row-major) of an input of the node.
    fn element(&mut self, input: usize, index: u64) -> Result<i64, Stop>;

    /// Digest of an input.
    fn digest(&mut self, input: usize) -> Result<Hash, Stop>;

    /// Row `index` of the samples; empty if there are not that many.
    fn sample(&mut self, index: i64) -> Result<&[u8], Stop>;

    /// How the samples are windows of tokens; None where they are rows.
    fn tokens(&self) -> Option<Tokens>;

    /// Token `at` of the file, as an element; asked for only where [`Self::tokens`] has it.
    fn token(&mut self, at: u64) -> Result<i64, Stop>;
}

/// State of a fold between terms; its second entry counts only where the width is 2.
pub type State = [i128; 2];

/// How far apart successive terms read.
#[derive(Clone, Copy, Debug)]
enum Stride {
    Every(u64),
    Scattered,
}

/// Step and size of an element of one stream of reads.
type Stream = (Stride, Dtype);

/// Operators whose elements have one term. No match here has a default arm: a new operator is
/// in this list, or has its own arms, or nothing compiles.
macro_rules! one_term {
    () => {
        Kernel::State { .. }
            | Kernel::NextState { .. }
            | Kernel::Reshape
            | Kernel::Increment
            | Kernel::SampleIndex { .. }
            | Kernel::DropoutMask(_)
            | Kernel::GatherSamples { .. }
            | Kernel::Normalize { .. }
            | Kernel::OneHot { .. }
            | Kernel::Im2col(_)
            | Kernel::Transpose(_)
            | Kernel::Slice { .. }
            | Kernel::Pad { .. }
            | Kernel::Concat { .. }
            | Kernel::GatherRows { .. }
            | Kernel::AddBias { .. }
            | Kernel::Rescale { .. }
            | Kernel::Add { .. }
            | Kernel::Sub { .. }
            | Kernel::Mul
            | Kernel::Relu
            | Kernel::ReluGrad
            | Kernel::LookUp { .. }
            | Kernel::Exp2Diff { .. }
            | Kernel::Divide { .. }
            | Kernel::CausalSpans { .. }
            | Kernel::KeepSpan { .. }
            | Kernel::SubOneHot { .. }
            | Kernel::LogitGrad { .. }
            | Kernel::CrossEntropy { .. }
            | Kernel::InverseRoot(_)
            | Kernel::RowScale { .. }
            | Kernel::ColumnScale
            | Kernel::Momentum(_)
            | Kernel::SgdUpdate { .. }
            | Kernel::Schedule { .. }
            | Kernel::ScheduleLinear { .. }
            | Kernel::Sign
            | Kernel::CappedSquare { .. }
            | Kernel::ClipFactor { .. }
            | Kernel::ScaleBy { .. }
            | Kernel::AdamMean { .. }
            | Kernel::AdamSquare(_)
            | Kernel::AdamDirection(_)
            | Kernel::AdamCorrection { .. }
            | Kernel::TensorDigest
            | Kernel::BatchDigest
            | Kernel::StateLeaf(_)
            | Kernel::StateRoot
            | Kernel::Record { .. }
    };
}

/// The rule of one node: how an element of its output is folded, with the node's checked kernel.
#[derive(Clone, Debug)]
pub struct Leaf {
    kernel: Kernel,
    inputs: Vec<Form>,
    output: Form,
    /// Attribute `shift` as an integer; 0 if there is none.
    shift: i64,
    terms: u64,
    block: u64,
    width: usize,
    init: State,
}

impl Leaf {
    /// The rule of a node whose inputs have these forms; refuses what a legal graph does not have.
    pub fn new(node: &Node, inputs: &[Form]) -> Result<Self, OpError> {
        let empty = |shape: &[usize]| shape.contains(&0);
        if inputs.iter().any(|form| empty(&form.shape))
            || node.outputs.iter().any(|output| empty(&output.shape))
        {
            return Err(refuse("has an empty axis"));
        }
        let (kernel, output) = Kernel::new(node, inputs)?;
        let (terms, streams, whole) = plan(&kernel, inputs)?;
        if terms == 0 {
            return Err(refuse("folds nothing"));
        }
        let block = match whole {
            Some(chunks) if chunks <= MAX_CHUNKS => terms,
            _ => block_length(terms, &streams),
        };
        let (width, init) = match kernel {
            Kernel::RowMax { .. } | Kernel::MaxPool(_) => (1, [i64::MIN.into(), 0]),
            Kernel::MaxPoolGrad(_) => (2, [0, 1]),
            Kernel::TokenSpans { .. } => (2, [0, 0]),
            one_term!()
            | Kernel::Matmul(_)
            | Kernel::BatchedMatmul { .. }
            | Kernel::ScatterAdd { .. }
            | Kernel::ColumnSum
            | Kernel::RowSum { .. }
            | Kernel::SoftmaxGrad { .. }
            | Kernel::Sum
            | Kernel::SquareSum { .. }
            | Kernel::Center { .. }
            | Kernel::RowDot { .. }
            | Kernel::SumPool(_)
            | Kernel::Col2im(_)
            | Kernel::SumPoolGrad(_) => (1, [0, 0]),
        };
        let shift = match node.attrs.get("shift") {
            Some(&Attr::Int(shift)) => shift as i64, // in bounds: the kernel took it
            _ => 0,
        };
        let inputs = match kernel {
            Kernel::State { .. } => vec![output.clone()],
            _ => inputs.to_vec(),
        };
        Ok(Self {
            kernel,
            inputs,
            output,
            shift,
            terms,
            block,
            width,
            init,
        })
    }

    /// Forms of what it reads: of a `state`, the tensor that the run has for it.
    pub fn inputs(&self) -> &[Form] {
        &self.inputs
    }

    /// Form of the output.
    pub fn output(&self) -> &Form {
        &self.output
    }

    /// Is it of a `state`, whose value comes from outside the step?
    pub fn is_state(&self) -> bool {
        matches!(self.kernel, Kernel::State { .. })
    }

    /// Can what a block reads depend on the state before it?
    pub fn reads_by_state(&self) -> bool {
        matches!(self.kernel, Kernel::MaxPoolGrad(_))
    }

    /// Terms of each element.
    pub fn terms(&self) -> u64 {
        self.terms
    }

    /// Terms of a block; the last may have fewer.
    pub fn block_length(&self) -> u64 {
        self.block
    }

    /// Blocks of each element.
    pub fn blocks(&self) -> u64 {
        self.terms.div_ceil(self.block)
    }

    /// Integers of a state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The state before the first term.
    pub fn init(&self) -> State {
        self.init
    }

    /// Bytes of a state: its integers, int64 little-endian. None if one does not fit.
    pub fn encode_state(&self, state: &State) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(16);
        for &entry in &state[..self.width] {
            out.extend_from_slice(&i64::try_from(entry).ok()?.to_le_bytes());
        }
        Some(out)
    }

    /// Inverse of [`Self::encode_state`]; None for another length.
    pub fn decode_state(&self, data: &[u8]) -> Option<State> {
        let (entries, rest) = data.as_chunks::<8>();
        if !rest.is_empty() || entries.len() != self.width {
            return None;
        }
        let mut state = [0, 0];
        for (to, from) in state.iter_mut().zip(entries) {
            *to = i64::from_le_bytes(*from).into();
        }
        Some(state)
    }

    /// State after block `block` < [`Self::blocks`] of element `element` of the output, from that
    /// before it.
    pub fn run_block(
        &self,
        mut state: State,
        element: u64,
        block: u64,
        reader: &mut impl Reader,
    ) -> Result<State, Stop> {
        let first = block.saturating_mul(self.block).min(self.terms);
        let end = first.saturating_add(self.block).min(self.terms);
        for term in first..end {
            self.step(&mut state, element, term, reader)?;
        }
        let fits = state[..self.width]
            .iter()
            .all(|&entry| i64::try_from(entry).is_ok());
        if fits { Ok(state) } else { Err(Stop::NoValue) }
    }

    /// Bytes of the element that a last state makes; None if its value does not fit the dtype.
    pub fn finish(&self, state: &State) -> Option<Vec<u8>> {
        let value = match self.kernel {
            Kernel::SquareSum { .. } => rs(state[0], self.shift),
            Kernel::Center { .. } => (rs(state[0], self.shift) as i32).into(),
            one_term!()
            | Kernel::RowDot { .. }
            | Kernel::Matmul(_)
            | Kernel::BatchedMatmul { .. }
            | Kernel::ScatterAdd { .. }
            | Kernel::ColumnSum
            | Kernel::RowSum { .. }
            | Kernel::SoftmaxGrad { .. }
            | Kernel::Sum
            | Kernel::RowMax { .. }
            | Kernel::TokenSpans { .. }
            | Kernel::SumPool(_)
            | Kernel::MaxPool(_)
            | Kernel::Col2im(_)
            | Kernel::SumPoolGrad(_)
            | Kernel::MaxPoolGrad(_) => state[0],
        };
        let value = i64::try_from(value).ok()?;
        let bytes = value.to_le_bytes()[..self.output.dtype.size()].to_vec();
        (element_of(self.output.dtype, &bytes) == Some(value)).then_some(bytes)
    }

    /// Goes on by one term.
    fn step(&self, state: &mut State, e: u64, term: u64, r: &mut impl Reader) -> Result<(), Stop> {
        let value = match &self.kernel {
            Kernel::Matmul(product) => {
                let (a, b) = operands(product, e, term);
                let product = r.element(0, a)? * r.element(1, b)?; // of int16
                state[0] += i128::from(product);
                return Ok(());
            }
            Kernel::BatchedMatmul { product, .. } => {
                let [m, k, n] = [product.m, product.k, product.n].map(|extent| extent as u64);
                let (matrix, within) = (e / (m * n), e % (m * n));
                let (a, b) = operands(product, within, term);
                let left = r.element(0, matrix * m * k + a)?;
                let product = left * r.element(1, matrix * k * n + b)?; // of int16
                state[0] += i128::from(product);
                return Ok(());
            }
            Kernel::ScatterAdd { rows, columns } => {
                let (rows, columns) = (*rows as u64, *columns as u64);
                if number_of(r.element(1, term)?, rows) != e / columns {
                    return Ok(());
                }
                state[0] + i128::from(r.element(0, term * columns + e % columns)?)
            }
            Kernel::ColumnSum => {
                let columns = self.output.size() as u64;
                state[0] + i128::from(r.element(0, term * columns + e)?)
            }
            Kernel::SoftmaxGrad { classes } => {
                let classes = *classes as u64;
                let at = e / classes * classes + term;
                let (p, grad) = (r.element(0, at)?, r.element(1, at)?);
                let own = i128::from(r.element(0, e)?);
                let grad_once = if at == e {
                    grad << PROBABILITY_EXPONENT
                } else {
                    0
                }; // of int16
                state[0] + own * i128::from(grad_once - p * grad)
            }
            Kernel::RowSum { classes } => {
                state[0] + i128::from(r.element(0, e * *classes as u64 + term)?)
            }
            Kernel::Sum => state[0] + i128::from(r.element(0, term)?),
            Kernel::SquareSum { .. } => {
                let x = i128::from(r.element(0, term)?);
                state[0] + x * x
            }
            Kernel::Center { width, .. } => {
                let (own, width) = (r.element(0, e)?, *width as u64);
                state[0] + i128::from(own - r.element(0, e / width * width + term)?) // of int16
            }
            Kernel::RowDot { width } => {
                let at = e * *width as u64 + term;
                let product = r.element(0, at)? * r.element(1, at)?; // of int32 at most
                state[0] + i128::from(product)
            }
            Kernel::RowMax { classes } => {
                state[0].max(r.element(0, e * *classes as u64 + term)?.into())
            }
            Kernel::SumPool(window) => match Spot::of_output(window, e).pixel(window, term) {
                Some(at) => state[0] + i128::from(r.element(0, at)?),
                None => state[0],
            },
            Kernel::MaxPool(window) => {
                let pixel = Spot::of_output(window, e).pixel(window, term);
                state[0].max(pixel.map_or(Ok(BELOW), |at| r.element(0, at).map(i128::from))?)
            }
            Kernel::Col2im(window) => match Spot::over(window, e, term) {
                Some(spot) => state[0] + i128::from(r.element(0, spot.patch(window, term))?),
                None => state[0],
            },
            Kernel::SumPoolGrad(window) => match Spot::over(window, e, term) {
                Some(spot) => state[0] + i128::from(r.element(0, spot.pooled(window))?),
                None => state[0],
            },
            Kernel::MaxPoolGrad(window) => return route(window, state, e, term, r),
            Kernel::TokenSpans { places, rule } => {
                return pass_token(*places as i64, rule, state, e, term, r);
            }
            one_term!() => self.value(e, r)?,
        };
        state[0] = value;
        Ok(())
    }

    /// Element `e` of an operator whose elements have one term.
    fn value(&self, e: u64, r: &mut impl Reader) -> Result<i128, Stop> {
        let shift = self.shift;
        let exact: i128 = match &self.kernel {
            Kernel::State { .. } | Kernel::NextState { .. } | Kernel::Reshape => {
                r.element(0, e)?.into()
            }
            Kernel::Increment => (i128::from(r.element(0, 0)?) + 1).min(MAX_STEPS.into()),
            Kernel::SampleIndex {
                seed,
                samples,
                batch,
            } => {
                let t = r.element(0, 0)?.clamp(0, MAX_STEPS) as u64;
                // In bounds: at most 2^40 samples, batches of at most 2^20.
                let index = order::sample_index(*seed, *samples, t * batch + e);
                index.map_err(|_| Stop::NoValue)?.into()
            }
            Kernel::DropoutMask(mask) => mask.at(r.element(0, 0)?, e).into(),
            Kernel::GatherSamples { part } => self.gathered(*part, e, r)?.into(),
            Kernel::Normalize {
                multiplier, offset, ..
            } => {
                let scaled = i128::from(r.element(0, e)?) * i128::from(*multiplier);
                narrow(Dtype::I16, rs(scaled + i128::from(*offset), shift))
            }
            Kernel::OneHot { depth } => {
                let depth = *depth as u64;
                let hot = r.element(0, e / depth)? == (e % depth) as i64;
                if hot { PROBABILITY_ONE.into() } else { 0 }
            }
            Kernel::Im2col(window) => {
                let patch = window.patch() as u64;
                let (spot, offset) = Spot::of_patch(window, e / patch, e % patch);
                match spot.pixel(window, offset) {
                    Some(at) => r.element(0, at)?.into(),
                    None => 0,
                }
            }
            Kernel::Transpose(walk) => {
                let (mut rest, mut at) = (e, 0);
                for (&extent, &step) in walk.extents.iter().zip(&walk.steps).rev() {
                    at += rest % extent as u64 * step as u64;
                    rest /= extent as u64;
                }
                r.element(0, at)?.into()
            }
            Kernel::Slice { axis, start } => {
                let (row, along, within) = axis.split(e);
                let place = (row, along + *start as u64, within);
                r.element(0, axis.join(axis.input, place))?.into()
            }
            Kernel::Pad { axis, before } => {
                let (row, along, within) = axis.split(e);
                match along.checked_sub(*before as u64) {
                    Some(along) if along < axis.input as u64 => r
                        .element(0, axis.join(axis.input, (row, along, within)))?
                        .into(),
                    _ => 0,
                }
            }
            Kernel::Concat { axis, extents } => {
                let (row, mut along, within) = axis.split(e);
                let mut input = 0;
                for &extent in extents {
                    if along < extent as u64 {
                        break;
                    }
                    along -= extent as u64;
                    input += 1;
                }
                let extent = *extents.get(input).ok_or(Stop::NoValue)?;
                r.element(input, axis.join(extent, (row, along, within)))?
                    .into()
            }
            Kernel::GatherRows { rows, columns } => {
                let (rows, columns) = (*rows as u64, *columns as u64);
                let row = number_of(r.element(1, e / columns)?, rows);
                r.element(0, row * columns + e % columns)?.into()
            }
            Kernel::AddBias { .. } => {
                let column = e % self.inputs[1].size() as u64;
                let acc = i128::from(r.element(0, e)?);
                acc + rs(r.element(1, column)?.into(), shift)
            }
            Kernel::Rescale { multiplier, .. } => {
                let product = i128::from(r.element(0, e)?) * i128::from(*multiplier);
                narrow(self.output.dtype, rs(product, shift))
            }
            Kernel::Add { shifts } => {
                let a = i128::from(r.element(0, e)?) << shifts.0;
                a + (i128::from(r.element(1, e)?) << shifts.1)
            }
            Kernel::Sub { shifts } => {
                let a = i128::from(r.element(0, e)?) << shifts.0;
                a - (i128::from(r.element(1, e)?) << shifts.1)
            }
            Kernel::Mul => i128::from(r.element(0, e)?) * i128::from(r.element(1, e)?),
            Kernel::Relu => r.element(0, e)?.max(0).into(),
            Kernel::ReluGrad => {
                let (grad, output) = (r.element(0, e)?, r.element(1, e)?);
                if output > 0 { grad.into() } else { 0 }
            }
            Kernel::LookUp { curve, .. } => {
                // Of int16, to the left by 40 at most.
                let j = rs(r.element(0, e)?.into(), shift) as i64;
                lookup::entry(curve, j).into()
            }
            Kernel::Exp2Diff { classes } => {
                let z = r.element(0, e)?;
                let below = r.element(1, e / *classes as u64)? - z; // of int32
                let power = if below < 0 {
                    0
                } else {
                    exp2_q16(below.min(DEEPEST))
                };
                power.into()
            }
            Kernel::Divide { classes } => {
                let x = r.element(0, e)?; // int32
                let divisor = r.element(1, e / *classes as u64)?.max(1);
                let quotient = (x * PROBABILITY_ONE + divisor / 2).div_euclid(divisor);
                (quotient as i16).into() // the law's low 16 bits
            }
            Kernel::CausalSpans { window } => {
                let (begin, end) = attention::causal_span((e / 2) as i64, *window);
                if e.is_multiple_of(2) { begin } else { end }.into()
            }
            Kernel::KeepSpan { columns, fill } => {
                let count = (self.inputs[1].size() / 2) as u64;
                let (row, column) = (e / *columns as u64, (e % *columns as u64) as i64);
                let span = row % count;
                let x = r.element(0, e)?;
                let (begin, end) = (r.element(1, 2 * span)?, r.element(1, 2 * span + 1)?);
                let kept = begin <= column && column < end;
                if kept { x } else { *fill }.into()
            }
            Kernel::SubOneHot { classes } => {
                let classes = *classes as u64;
                let p = i128::from(r.element(0, e)?);
                let hot = class_of(r.element(1, e / classes)?, classes) == e % classes;
                if hot {
                    p - i128::from(PROBABILITY_ONE)
                } else {
                    p
                }
            }
            Kernel::LogitGrad { classes } => {
                let classes = *classes as u64;
                let divisor = r.element(1, e / classes)?.max(1);
                let share = fine_share(r.element(0, e)?, divisor) as i32;
                let hot = class_of(r.element(2, e / classes)?, classes) == e % classes;
                let one = if hot { FINE_ONE as i32 } else { 0 };
                share.wrapping_sub(one).into() // the law's low 32 bits
            }
            Kernel::CrossEntropy { classes } => {
                let classes = *classes as u64;
                let label = class_of(r.element(3, e)?, classes);
                let gap = -r.element(0, e * classes + label)? + r.element(1, e)?; // of int32
                let total = log2_q16(r.element(2, e)?.max(1));
                let scaled = gap << (LOSS_EXPONENT - LOG2_EXPONENT);
                (scaled + total - (i64::from(EXP2_EXPONENT) << LOSS_EXPONENT)).into()
            }
            Kernel::Momentum(rule) => {
                let velocity = r.element(0, e)? as i32; // of int32
                // Beyond 2^40 a gradient saturates the sum whatever the velocity.
                let aligned = rs(r.element(1, e)?.into(), shift).clamp(-1 << 40, 1 << 40);
                narrow(Dtype::I32, rule.apply(velocity, aligned as i64).into())
            }
            Kernel::SgdUpdate { .. } => {
                let (weight, velocity) = (r.element(0, e)?, r.element(1, e)?);
                let step = rs(i128::from(velocity) * i128::from(r.element(2, 0)?), shift);
                narrow(Dtype::I32, i128::from(weight).saturating_sub(step))
            }
            Kernel::InverseRoot(root) => root.apply(r.element(0, e)?).into(),
            Kernel::RowScale { width } => {
                let width = *width as u64;
                i128::from(r.element(0, e)?) * i128::from(r.element(1, e / width)?)
            }
            Kernel::ColumnScale => {
                let width = self.inputs[1].size() as u64;
                i128::from(r.element(0, e)?) * i128::from(r.element(1, e % width)?)
            }
            Kernel::Schedule { starts, rates } => {
                optimizer::schedule(r.element(0, 0)?, starts, rates).into()
            }
            Kernel::ScheduleLinear { starts, rates } => {
                optimizer::schedule_linear(r.element(0, 0)?, starts, rates).into()
            }
            Kernel::Sign => r.element(0, e)?.signum().into(),
            Kernel::CappedSquare { bits, .. } => {
                // What int64 does not hold has a square beyond every cap.
                let aligned = narrow_to_i64(rs(r.element(0, e)?.into(), shift));
                optimizer::cap_square(aligned, *bits).into()
            }
            Kernel::ClipFactor { limit } => optimizer::clip_factor(r.element(0, 0)?, *limit).into(),
            Kernel::ScaleBy { .. } => {
                let product = i128::from(r.element(0, e)?) * i128::from(r.element(1, 0)?);
                rs(product, shift)
            }
            Kernel::AdamMean { lift, blend } => {
                let (mean, grad) = (r.element(0, e)? as i32, r.element(1, e)? as i16);
                narrow(Dtype::I32, blend.mean(mean, grad, *lift).into())
            }
            Kernel::AdamSquare(blend) => {
                let (square, grad) = (r.element(0, e)?, r.element(1, e)? as i16);
                blend.square(square, grad).into()
            }
            Kernel::AdamDirection(rule) => {
                let (mean, square) = (r.element(0, e)? as i32, r.element(1, e)?);
                narrow(Dtype::I32, rule.apply(mean, square).into())
            }
            Kernel::AdamCorrection { beta1, beta2 } => {
                optimizer::adam_correction(r.element(0, 0)?, *beta1, *beta2).into()
            }
            Kernel::TensorDigest => byte(&r.digest(0)?, e),
            Kernel::BatchDigest => byte(&commitment::batch_digest(&hash(r, 0)?, &hash(r, 1)?), e),
            Kernel::StateLeaf(leaf) => {
                let hash = commitment::state_leaf(leaf, &hash(r, 0)?);
                byte(&hash.map_err(|_| Stop::NoValue)?, e)
            }
            Kernel::StateRoot => {
                let leaves: Result<Vec<Hash>, Stop> =
                    (0..self.inputs.len()).map(|input| hash(r, input)).collect();
                byte(&commitment::state_root(&leaves?), e)
            }
            Kernel::Record { commit_every } => {
                let (step, batch) = (r.element(0, 0)?, hash(r, 1)?);
                let (loss, root) = (r.element(2, 0)?, hash(r, 3)?);
                let root = (step % commit_every == 0).then_some(&root);
                let hash = commitment::record(step, &batch, loss, root);
                byte(&hash.map_err(|_| Stop::NoValue)?, e)
            }
            Kernel::Matmul(_)
            | Kernel::BatchedMatmul { .. }
            | Kernel::ScatterAdd { .. }
            | Kernel::ColumnSum
            | Kernel::RowSum { .. }
            | Kernel::SoftmaxGrad { .. }
            | Kernel::Sum
            | Kernel::SquareSum { .. }
            | Kernel::Center { .. }
            | Kernel::RowDot { .. }
            | Kernel::RowMax { .. }
            | Kernel::TokenSpans { .. }
            | Kernel::SumPool(_)
            | Kernel::MaxPool(_)
            | Kernel::Col2im(_)
            | Kernel::SumPoolGrad(_)
            | Kernel::MaxPoolGrad(_) => return Err(Stop::NoValue), // `step` has these
        };
        Ok(exact)
    }

    /// Element `e` of gathered samples: 0 where its sample has no such bytes.
    fn gathered(&self, part: Part, e: u64, r: &mut impl Reader) -> Result<i64, Stop> {
        let batch = self.inputs[0].size();
        let per = self.output.size() / batch;
        let (sample, within) = (e / per as u64, (e % per as u64) as usize);
        let index = r.element(0, sample)?;
        if let Some(tokens) = r.tokens() {
            let place = tokens.place(part, index, within as u64);
            return place.map_or(Ok(0), |at| r.token(at));
        }
        let (row, size) = (r.sample(index)?, self.output.dtype.size());
        let start = match part {
            Part::X => Some(within * size),
            Part::Y => (row.len() + within * size).checked_sub(per * size),
        };
        let bytes = start.and_then(|start| row.get(start..)?.get(..size));
        Ok(bytes
            .and_then(|bytes| element_of(self.output.dtype, bytes))
            .unwrap_or(0))
    }
}

/// Forms of a node's inputs, each the one output of the node that puts it out.
pub fn input_forms(node: &Node, sources: &[Node]) -> Result<Vec<Form>, OpError> {
    if sources.len() != node.inputs.len() {
        return Err(OpError(format!(
            "has {} inputs and {} sources",
            node.inputs.len(),
            sources.len()
        )));
    }
    let inputs = node.inputs.iter().zip(sources);
    inputs
        .map(|(input, source)| match source.outputs.as_slice() {
            [output] if input.output == 0 => Form::of(output),
            _ => Err(refuse("an input is not the one output of its source")),
        })
        .collect()
}

fn refuse(reason: &str) -> OpError {
    OpError(reason.to_owned())
}

/// Terms, streams of reads, and a bound on the chunks of all terms where one is known.
fn plan(kernel: &Kernel, inputs: &[Form]) -> Result<(u64, Vec<Stream>, Option<u64>), OpError> {
    use Stride::{Every, Scattered};
    let form = |input: usize| inputs.get(input).ok_or_else(|| refuse("lacks an input"));
    let stream = |input: usize, stride: Stride| Ok((stride, form(input)?.dtype));
    let area = |window: &Window| {
        let [height, width] = window.kernel.map(|extent| extent as u64);
        let area = height.checked_mul(width);
        area.ok_or_else(|| refuse("the window is too large"))
    };
    let (terms, streams) = match kernel {
        Kernel::Matmul(product) | Kernel::BatchedMatmul { product, .. } => {
            let a = if product.transpose_a { product.m } else { 1 };
            let b = if product.transpose_b { 1 } else { product.n };
            let streams = vec![stream(0, Every(a as u64))?, stream(1, Every(b as u64))?];
            (product.k as u64, streams)
        }
        Kernel::ScatterAdd { columns, .. } => {
            let terms = form(1)?.size() as u64;
            let streams = vec![stream(0, Every(*columns as u64))?, stream(1, Every(1))?];
            (terms, streams)
        }
        Kernel::ColumnSum => {
            let columns = form(0)?.shape.last().copied().unwrap_or(1).max(1);
            let rows = form(0)?.size() / columns;
            (rows as u64, vec![stream(0, Every(columns as u64))?])
        }
        Kernel::RowSum { classes } | Kernel::RowMax { classes } => {
            (*classes as u64, vec![stream(0, Every(1))?])
        }
        Kernel::TokenSpans { places, .. } => (*places as u64, vec![stream(0, Every(1))?]),
        Kernel::SoftmaxGrad { classes } => {
            let streams = vec![
                stream(0, Every(1))?,
                stream(1, Every(1))?,
                stream(0, Every(0))?,
            ];
            (*classes as u64, streams)
        }
        Kernel::Sum | Kernel::SquareSum { .. } => {
            (form(0)?.size() as u64, vec![stream(0, Every(1))?])
        }
        Kernel::Center { width, .. } => {
            let streams = vec![stream(0, Every(0))?, stream(0, Every(1))?];
            (*width as u64, streams)
        }
        Kernel::RowDot { width } => {
            let streams = vec![stream(0, Every(1))?, stream(1, Every(1))?];
            (*width as u64, streams)
        }
        Kernel::SumPool(window)
        | Kernel::MaxPool(window)
        | Kernel::Col2im(window)
        | Kernel::SumPoolGrad(window) => (area(window)?, vec![stream(0, Scattered)?]),
        Kernel::MaxPoolGrad(window) => {
            let area = area(window)?;
            let square = area.checked_mul(area);
            let terms = square.ok_or_else(|| refuse("the window is too large"))?;
            let streams = vec![
                stream(0, Scattered)?,
                stream(1, Scattered)?,
                stream(1, Every(0))?,
            ];
            // All windows over a pixel lie within (2 kh - 1) x (2 kw - 1) pixels, and are `area`.
            let [height, width] = window.kernel.map(|extent| 2 * extent as u64 - 1);
            let whole = height.saturating_mul(width).saturating_add(area);
            return Ok((terms, streams, Some(whole)));
        }
        one_term!() => (1, vec![]),
    };
    Ok((terms, streams, None))
}

/// Most distinct chunks that `terms` >= 1 successive terms of a stream touch.
fn chunk_bound(terms: u64, (stride, dtype): Stream) -> u64 {
    match stride {
        Stride::Every(0) => 1,
        Stride::Scattered => terms,
        Stride::Every(step) => {
            let span = (terms - 1)
                .saturating_mul(step)
                .saturating_mul(dtype.size() as u64);
            terms.min(span / CHUNK_LEN as u64 + 2)
        }
    }
}

/// The most terms whose bounds stay within [`MAX_CHUNKS`] in sum; at least 1.
fn block_length(terms: u64, streams: &[Stream]) -> u64 {
    let fits = |count: u64| {
        let bounds = streams.iter().map(|&stream| chunk_bound(count, stream));
        bounds.fold(0, u64::saturating_add) <= MAX_CHUNKS
    };
    let (mut low, mut high) = (1, terms);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// `rs(x, shift)` without a wrap: what lies beyond int128 stays at its end, beyond every dtype.
fn rs(x: i128, shift: i64) -> i128 {
    if shift > 0 {
        let shift = shift.min(126) as u32;
        // floor(x / 2^s) plus bit s - 1: the sum x + 2^(s-1) is never formed.
        return (x >> shift) + (x >> (shift - 1) & 1);
    }
    let left = shift.unsigned_abs().min(126) as u32;
    match x.checked_mul(1 << left) {
        Some(shifted) => shifted,
        None if x < 0 => i128::MIN / 2,
        None => i128::MAX / 2,
    }
}

/// The nearest int64.
fn narrow_to_i64(x: i128) -> i64 {
    x.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Saturates to `dtype`; int64 passes through, and may not fit.
fn narrow(dtype: Dtype, x: i128) -> i128 {
    let near = x.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    match dtype {
        Dtype::I16 => saturate::<i16>(near).into(),
        Dtype::I32 => saturate::<i32>(near).into(),
        _ => x,
    }
}

fn class_of(label: i64, classes: u64) -> u64 {
    label.clamp(0, classes as i64 - 1) as u64
}

fn byte(hash: &Hash, e: u64) -> i128 {
    hash[(e % 32) as usize].into()
}

/// The 32 bytes of an input.
fn hash(r: &mut impl Reader, input: usize) -> Result<Hash, Stop> {
    let mut out = [0; 32];
    for (index, byte) in (0..).zip(&mut out) {
        *byte = r.element(input, index)? as u8;
    }
    Ok(out)
}

/// The element that little-endian bytes are; None for another length.
pub(crate) fn element_of(dtype: Dtype, bytes: &[u8]) -> Option<i64> {
    Some(match dtype {
        Dtype::U8 => u8::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::I8 => i8::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::I16 => i16::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::I64 => i64::from_le_bytes(bytes.try_into().ok()?),
    })
}

/// Elements of the operands that term `p` of element `e` multiplies.
fn operands(product: &Product, e: u64, p: u64) -> (u64, u64) {
    let [m, k, n] = [product.m, product.k, product.n].map(|extent| extent as u64);
    let (i, j) = (e / n, e % n);
    let a = if product.transpose_a {
        p * m + i
    } else {
        i * k + p
    };
    let b = if product.transpose_b {
        j * k + p
    } else {
        p * n + j
    };
    (a, b)
}

/// One channel of one window on one image.
struct Spot {
    image: u64,
    row: u64,
    column: u64,
    channel: u64,
}

impl Spot {
    /// The window that pooled element `e` is of.
    fn of_output(window: &Window, e: u64) -> Self {
        let [rows, columns, channels] =
            [window.rows, window.columns, window.channels].map(|extent| extent as u64);
        let (at, channel) = (e / channels, e % channels);
        Self {
            image: at / columns / rows,
            row: at / columns % rows,
            column: at % columns,
            channel,
        }
    }

    /// The window of row `patch` of the patches, and the offset of that row's element `within`.
    fn of_patch(window: &Window, patch: u64, within: u64) -> (Self, u64) {
        let channels = window.channels as u64;
        let spot = Self::of_output(window, patch * channels + within % channels);
        (spot, within / channels)
    }

    /// The window, if any, whose offset `offset` (row-major) lies on element `e` of the images.
    fn over(window: &Window, e: u64, offset: u64) -> Option<Self> {
        let [height, width, channels] =
            [window.height, window.width, window.channels].map(|extent| extent as u64);
        let (at, channel) = (e / channels, e % channels);
        let [y, x] = [at / width % height, at % width];
        let across = window.kernel[1] as u64;
        let begin = |pixel: u64, offset: u64, axis: usize, count: usize| {
            let start = (pixel + window.pads[axis] as u64).checked_sub(offset)?;
            let stride = window.strides[axis] as u64;
            let index = start / stride;
            (start.is_multiple_of(stride) && index < count as u64).then_some(index)
        };
        Some(Self {
            image: at / width / height,
            row: begin(y, offset / across, 0, window.rows)?,
            column: begin(x, offset % across, 1, window.columns)?,
            channel,
        })
    }

    /// Element of the images at an offset (row-major) of the window; None for padding.
    fn pixel(&self, window: &Window, offset: u64) -> Option<u64> {
        let across = window.kernel[1] as u64;
        let place = |index: u64, offset: u64, axis: usize, extent: usize| {
            let padded = index * window.strides[axis] as u64 + offset;
            let at = padded.checked_sub(window.pads[axis] as u64)?;
            (at < extent as u64).then_some(at)
        };
        let y = place(self.row, offset / across, 0, window.height)?;
        let x = place(self.column, offset % across, 1, window.width)?;
        let [height, width, channels] =
            [window.height, window.width, window.channels].map(|extent| extent as u64);
        Some(((self.image * height + y) * width + x) * channels + self.channel)
    }

    /// Its element in the pooled tensor.
    fn pooled(&self, window: &Window) -> u64 {
        let [rows, columns, channels] =
            [window.rows, window.columns, window.channels].map(|extent| extent as u64);
        ((self.image * rows + self.row) * columns + self.column) * channels + self.channel
    }

    /// Element at an offset (row-major) of its patch.
    fn patch(&self, window: &Window, offset: u64) -> u64 {
        let [rows, columns, channels] =
            [window.rows, window.columns, window.channels].map(|extent| extent as u64);
        let patch = (self.image * rows + self.row) * columns + self.column;
        patch * window.patch() as u64 + offset * channels + self.channel
    }
}

/// A term of the gradient of max pooling: does pixel `e` have the maximum of a window over it?
///
/// Term o * area + q compares pixel `e`, at offset o of a window, with that at offset q: of equal
/// ones the first in row-major order has the window's gradient.
fn route(
    window: &Window,
    state: &mut State,
    e: u64,
    term: u64,
    r: &mut impl Reader,
) -> Result<(), Stop> {
    let area = window
        .kernel
        .map(|extent| extent as u64)
        .iter()
        .product::<u64>();
    let (own, other) = (term / area, term % area);
    let Some(spot) = Spot::over(window, e, own) else {
        return Ok(());
    };
    if other == 0 {
        state[1] = 1;
    }
    if other != own {
        let ours = i128::from(r.element(1, e)?);
        let theirs = match spot.pixel(window, other) {
            Some(at) => r.element(1, at)?.into(),
            None => BELOW,
        };
        if theirs > ours || (theirs == ours && other < own) {
            state[1] = 0;
        }
    }
    if other == area - 1 && state[1] != 0 {
        state[0] += i128::from(r.element(0, spot.pooled(window))?);
    }
    Ok(())
}

/// A term of an end of a span: the token at place `term` of its row.
///
/// Of a begin the state is the start of its document, and the paddings before the first token; of
/// an end, the end of its document, 0 before that is passed, and the end of the last token. The
/// last term makes the first of the two the element.
fn pass_token(
    places: i64,
    rule: &TokenRule,
    state: &mut State,
    e: u64,
    term: u64,
    r: &mut impl Reader,
) -> Result<(), Stop> {
    // At most 2^32 elements, and 2^31 places.
    let (row, place, term) = (
        (e / 2) as i64 / places,
        (e / 2) as i64 % places,
        term as i64,
    );
    let token = r.element(0, (row * places + term) as u64)?;
    let (ends, pads) = (token == rule.end_of_text, token == rule.padding);
    let (last, next) = (term == places - 1, i128::from(term + 1));
    if e.is_multiple_of(2) {
        if ends && term < place {
            state[0] = next;
        }
        if pads && state[1] == term.into() {
            state[1] = next;
        }
        if last {
            let near = i128::from(place + 1 - rule.before);
            state[0] = state[0].max(state[1]).max(near);
        }
    } else {
        if ends && term >= place && state[0] == 0 {
            state[0] = next;
        }
        if !pads {
            state[1] = next;
        }
        if last {
            let stop = if state[0] == 0 {
                places.into()
            } else {
                state[0]
            };
            state[0] = stop.min(state[1]).min((place + rule.after).into());
        }
    }
    Ok(())
}
