//! Momentum and weights updated straight from the gradient's accumulators.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::narrow::Narrow;
use crate::gemm::{Epilogue, Gemm, GemmError};
use crate::number::{Rounding, saturate_counted};
use crate::ops::linear::{Factors, Product};
use crate::ops::optimizer::{MomentumRule, Rate};

/// How many elements saturation changed.
pub(super) struct Clamped {
    pub velocity: u64,
    pub weight: u64,
}

/// Computes the gradient of a weight matrix, a product, and updates velocity and weight, which have
/// its shape, without storing it.
pub(super) fn update_in_place(
    gemm: &mut Gemm,
    factors: &Factors,
    operands: (&[i16], &[i16]),
    velocity: &mut [i32],
    weight: &mut [i32],
    rule: MomentumRule,
    rate: Rate,
) -> Result<Clamped, GemmError> {
    let Product {
        m: rows,
        n: columns,
        ..
    } = factors.product();
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
        (Some(align), Some((small, shift))) => {
            let moved = move |velocity, grad| rule.apply(velocity, align.apply(grad));
            let stepped = move |weight, velocity| Rate::apply_small(weight, velocity, small, shift);
            let narrow = Narrow::new(rule, rate);
            InPlace::new(tensors, moved, stepped, narrow).run(gemm, factors, operands)
        }
        _ => {
            let (align, shift) = (rule.rounding(), Rounding::new(rate.shift));
            let moved = move |velocity, grad| rule.apply(velocity, align.apply(grad));
            let stepped = move |weight, velocity| Rate::apply(weight, velocity, rate.rate, shift);
            InPlace::new(tensors, moved, stepped, None).run(gemm, factors, operands)
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

/// Asks for the cache lines of `len` numbers from `at` on.
#[inline(always)]
fn prefetch(at: *const i32, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(16) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch may be of any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

struct InPlace<'a, M, S> {
    tensors: Tensors<'a>,
    /// (velocity, gradient) -> the new velocity, before saturation.
    moved: M,
    /// (weight, new velocity) -> the new weight, before saturation.
    stepped: S,
    /// Both in fewer bits, where that can be.
    narrow: Option<Narrow>,
    clamped_velocity: AtomicU64,
    clamped_weight: AtomicU64,
}

impl<'a, M, S> InPlace<'a, M, S>
where
    M: Fn(i32, i64) -> i64 + Copy + Sync,
    S: Fn(i32, i32) -> i64 + Copy + Sync,
{
    fn new(tensors: Tensors<'a>, moved: M, stepped: S, narrow: Option<Narrow>) -> Self {
        Self {
            tensors,
            moved,
            stepped,
            narrow,
            clamped_velocity: AtomicU64::new(0),
            clamped_weight: AtomicU64::new(0),
        }
    }

    fn run(
        self,
        gemm: &mut Gemm,
        factors: &Factors,
        operands: (&[i16], &[i16]),
    ) -> Result<Clamped, GemmError> {
        factors.multiply(gemm, operands, &self)?;
        Ok(Clamped {
            velocity: self.clamped_velocity.into_inner(),
            weight: self.clamped_weight.into_inner(),
        })
    }
}

impl<M, S> Epilogue for InPlace<'_, M, S>
where
    M: Fn(i32, i64) -> i64 + Copy + Sync,
    S: Fn(i32, i32) -> i64 + Copy + Sync,
{
    fn shape(&self) -> (usize, usize) {
        (self.tensors.rows, self.tensors.columns)
    }

    #[inline(always)]
    fn ask_for(&self, row: usize, cols: Range<usize>) {
        let start = row * self.tensors.columns + cols.start;
        prefetch(self.tensors.velocity.wrapping_add(start), cols.len());
        prefetch(self.tensors.weight.wrapping_add(start), cols.len());
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
        let Some(narrow) = self.narrow else {
            return self.apply(velocity, weight, acc);
        };
        // By index: iterators over three slices are put together in memory for every piece.
        let mut done = 0;
        while let (Some(velocity), Some(weight), Some(grad)) = (
            velocity[done..].first_chunk_mut(),
            weight[done..].first_chunk_mut(),
            acc[done..].first_chunk(),
        ) {
            if !narrow.apply(velocity, weight, grad) {
                self.apply(velocity, weight, grad);
            }
            done += grad.len();
        }
        self.apply(&mut velocity[done..], &mut weight[done..], &acc[done..]);
    }
}

impl<M, S> InPlace<'_, M, S>
where
    M: Fn(i32, i64) -> i64 + Copy + Sync,
    S: Fn(i32, i32) -> i64 + Copy + Sync,
{
    /// Updates elements in 64 bits.
    #[inline(always)]
    fn apply(&self, velocity: &mut [i32], weight: &mut [i32], grad: &[i64]) {
        // Copies of their own: vectorised only if the stores below can change nothing that is read.
        let (moved, stepped) = (self.moved, self.stepped);
        let (mut clamped_velocity, mut clamped_weight) = (0, 0);
        for ((velocity, weight), &grad) in velocity.iter_mut().zip(weight).zip(grad) {
            *velocity = saturate_counted(moved(*velocity, grad), &mut clamped_velocity);
            *weight = saturate_counted(stepped(*weight, *velocity), &mut clamped_weight);
        }
        if clamped_velocity | clamped_weight != 0 {
            self.clamped_velocity
                .fetch_add(clamped_velocity, Ordering::Relaxed);
            self.clamped_weight
                .fetch_add(clamped_weight, Ordering::Relaxed);
        }
    }
}
