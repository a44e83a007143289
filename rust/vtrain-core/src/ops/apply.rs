//! One node by itself: what a referee runs, without an engine and without a state.

use super::buffer::{Buffer, OutOfMemory};
use super::kernel::{Kernel, RunError, Samples, copy};
use super::signature::{Form, OpError, Part};
use super::view::Slice;
use crate::gemm::Gemm;
use crate::graph::Node;

/// Why a node could not be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The node does not fit its inputs.
    #[error(transparent)]
    Node(#[from] OpError),
    /// The values do not allow it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Its output is too large.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

/// A tensor handed in: its form and its elements.
pub type Input<'a> = (Form, Slice<'a>);

/// Output of one node by its law.
///
/// As in the law, the bound tensor of a `state` (its value) or a `gather_samples` (all samples of
/// its part) comes as the last input.
pub fn apply_node(
    node: &Node,
    inputs: &[Input<'_>],
    gemm: &mut Gemm,
) -> Result<(Form, Buffer), ApplyError> {
    if inputs
        .iter()
        .any(|(form, x)| form.size() != x.len() || form.dtype != x.dtype())
    {
        return Err(RunError::Inputs.into());
    }
    let binds = matches!(node.op.as_str(), "state" | "gather_samples");
    let (inputs, bound) = match inputs.split_last() {
        Some((bound, inputs)) if binds => (inputs, Some(bound)),
        _ => (inputs, None),
    };
    let forms: Vec<Form> = inputs.iter().map(|(form, _)| form.clone()).collect();
    let (kernel, form) = Kernel::new(node, &forms)?;
    let mut slices: Vec<Slice<'_>> = inputs.iter().map(|&(_, x)| x).collect();
    let mut samples = Samples {
        table: &[],
        row: 0,
        split: 0,
        windows: None,
    };
    match (&kernel, bound) {
        (Kernel::State { .. }, Some((bound, x))) => {
            if *bound != form {
                return Err(RunError::Inputs.into());
            }
            slices.push(*x);
        }
        (Kernel::GatherSamples { part }, Some((bound, x))) => {
            if bound.dtype != form.dtype || bound.shape.get(1..) != Some(&form.shape[1..]) {
                return Err(RunError::Inputs.into());
            }
            let row = form.byte_len() / form.shape[0];
            let split = if *part == Part::X { row } else { 0 };
            samples = Samples {
                table: x.bytes(),
                row,
                split,
                windows: None,
            };
        }
        _ if binds => return Err(RunError::Inputs.into()),
        _ => {}
    }
    let mut out = Buffer::new(form.byte_len())?;
    if kernel.is_in_place() {
        let first = slices.first().ok_or(RunError::Inputs)?;
        copy(*first, out.slice_mut(form.dtype, form.size()))?;
    }
    kernel.run(
        &slices,
        out.slice_mut(form.dtype, form.size()),
        &samples,
        gemm,
    )?;
    Ok((form, out))
}
