//! Momentum and weights updated straight from the gradient's accumulators.

use std::marker::PhantomData;

use crate::gemm::{Epilogue, Gemm, GemmError, MatRef};
use crate::number::Rounding;
use crate::ops::optimizer::{MomentumRule, Rate};

/// Computes the gradient `a * b` of a weight matrix and updates velocity and weight, which have its
/// shape, without storing it.
pub(super) fn update_in_place(
    gemm: &mut Gemm,
    (a, b): (MatRef<'_>, MatRef<'_>),
    velocity: &mut [i32],
    weight: &mut [i32],
    rule: MomentumRule,
    rate: Rate,
) -> Result<(), GemmError> {
    let (rows, columns) = (a.rows(), b.cols());
    let fits = Some(velocity.len()) == rows.checked_mul(columns) && weight.len() == velocity.len();
    if !fits {
        let (m, n) = (weight.len(), velocity.len());
        return Err(GemmError::Output {
            rows,
            cols: columns,
            m,
            n,
        });
    }
    let tensors = Tensors {
        velocity: velocity.as_mut_ptr(),
        weight: weight.as_mut_ptr(),
        rows,
        columns,
        owner: PhantomData,
    };
    // Accumulators stay below 2^53 (see `gemm::MAX_K`), so that the simple rounding serves for all
    // shifts in [0, 62], and for all rates that a task can have.
    match (rule.small_rounding(), rate.small()) {
        (Some(align), Some((rate, shift))) => {
            let update = |velocity: i32, weight: i32, grad: i64| {
                let velocity = rule.apply(velocity, align.apply(grad));
                (velocity, Rate::apply_small(weight, velocity, rate, shift))
            };
            gemm.run(a, b, &InPlace { tensors, update })
        }
        _ => {
            let (align, shift) = (rule.rounding(), Rounding::new(rate.shift));
            let update = |velocity: i32, weight: i32, grad: i64| {
                let velocity = rule.apply(velocity, align.apply(grad));
                (velocity, Rate::apply(weight, velocity, rate.rate, shift))
            };
            gemm.run(a, b, &InPlace { tensors, update })
        }
    }
}

/// Two row-major matrices of one shape, written in disjoint pieces by many threads.
struct Tensors<'a> {
    velocity: *mut i32,
    weight: *mut i32,
    rows: usize,
    columns: usize,
    owner: PhantomData<&'a mut [i32]>,
}

// SAFETY: it stands for two `&mut [i32]`, of which pieces stored at the same time do not overlap,
// by the contract of `Epilogue::store`.
unsafe impl Sync for Tensors<'_> {}

struct InPlace<'a, F> {
    tensors: Tensors<'a>,
    /// (velocity, weight, gradient) -> the new velocity and weight.
    update: F,
}

impl<F: Fn(i32, i32, i64) -> (i32, i32) + Sync> Epilogue for InPlace<'_, F> {
    fn shape(&self) -> (usize, usize) {
        (self.tensors.rows, self.tensors.columns)
    }

    #[inline(always)]
    unsafe fn store(&self, row: usize, col0: usize, acc: &[i64]) {
        let start = row * self.tensors.columns + col0;
        // SAFETY: the piece lies within the matrices, whose lengths were compared with the shape
        // and whose borrows outlive `self`; no other thread has an overlapping one, by contract.
        let (velocity, weight) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.tensors.velocity.add(start), acc.len()),
                std::slice::from_raw_parts_mut(self.tensors.weight.add(start), acc.len()),
            )
        };
        for ((velocity, weight), &grad) in velocity.iter_mut().zip(weight).zip(acc) {
            (*velocity, *weight) = (self.update)(*velocity, *weight, grad);
        }
    }
}
