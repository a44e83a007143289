//! Momentum and weights updated straight from the gradient's accumulators.

use crate::gemm::Epilogue;
use crate::number::Rounding;
use crate::ops::optimizer::{MomentumRule, updated_weight};

/// Takes the gradient of a weight matrix, piece by piece, and updates velocity and weight there.
pub(super) struct UpdateInPlace {
    velocity: *mut i32,
    weight: *mut i32,
    rows: usize,
    columns: usize,
    rule: MomentumRule,
    rate: i64,
    shift: Rounding,
}

// SAFETY: pieces stored at the same time do not overlap, by the contract of `Epilogue::store`.
unsafe impl Sync for UpdateInPlace {}

/// Rate and shift of a weight update.
#[derive(Clone, Copy)]
pub(super) struct Rate {
    pub rate: i64,
    pub shift: Rounding,
}

impl UpdateInPlace {
    /// `velocity` and `weight` are `rows * columns` long, row-major; None otherwise. The borrows
    /// must outlive what is made here: `apply` sees to that.
    fn new(
        velocity: &mut [i32],
        weight: &mut [i32],
        (rows, columns): (usize, usize),
        rule: MomentumRule,
        rate: Rate,
    ) -> Option<Self> {
        let size = rows.checked_mul(columns)?;
        (velocity.len() == size && weight.len() == size).then(|| Self {
            velocity: velocity.as_mut_ptr(),
            weight: weight.as_mut_ptr(),
            rows,
            columns,
            rule,
            rate: rate.rate,
            shift: rate.shift,
        })
    }

    /// Runs `product` with the epilogue that updates these tensors; None: they have other sizes.
    pub fn apply<R>(
        velocity: &mut [i32],
        weight: &mut [i32],
        extents: (usize, usize),
        rule: MomentumRule,
        rate: Rate,
        product: impl FnOnce(&Self) -> R,
    ) -> Option<R> {
        Some(product(&Self::new(velocity, weight, extents, rule, rate)?))
    }
}

impl Epilogue for UpdateInPlace {
    fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    #[inline(always)]
    unsafe fn store(&self, row: usize, col0: usize, acc: &[i64]) {
        let start = row * self.columns + col0;
        // SAFETY: the piece lies within the matrices, whose borrows outlive `self`, and no other
        // thread has an overlapping one, by contract.
        let (velocity, weight) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.velocity.add(start), acc.len()),
                std::slice::from_raw_parts_mut(self.weight.add(start), acc.len()),
            )
        };
        for ((velocity, weight), &grad) in velocity.iter_mut().zip(weight).zip(acc) {
            *velocity = self.rule.apply(*velocity, grad);
            *weight = updated_weight(*weight, *velocity, self.rate, self.shift);
        }
    }
}
