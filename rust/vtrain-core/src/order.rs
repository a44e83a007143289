//! The order of samples: twin of `vtrain/spec/order.py`, which tells what is computed and why.

use crate::philox::philox;

const ROUNDS: u32 = 8;
/// Most samples that a dataset may have.
pub const MAX_SAMPLES: u64 = 1 << 48;
/// Most samples that a batch may have.
pub const MAX_BATCH: u64 = 1 << 24;
/// Positions of the endless sequence of epochs lie below this.
pub const MAX_POSITION: u64 = 1 << 63;

/// Arguments that no order is defined for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Number of samples outside [1, 2^48].
    #[error("cannot order {0} samples: not in [1, 2^48]")]
    Samples(u64),
    /// A batch size outside [1, 2^24].
    #[error("a batch has 1 to 2^24 samples, not {0}")]
    Batch(u64),
    /// A position at or over 2^63.
    #[error("position is not in [0, 2^63)")]
    Position,
}

/// The permutation of [0, n) that belongs to `seed` and an epoch, one index at a time.
#[derive(Clone, Copy, Debug)]
struct Permutation {
    seed: u64,
    n: u64,
    half: u32,
}

impl Permutation {
    fn new(seed: u64, n: u64) -> Result<Self, OrderError> {
        if !(1..=MAX_SAMPLES).contains(&n) {
            return Err(OrderError::Samples(n));
        }
        let bits = u64::BITS - (n - 1).leading_zeros();
        Ok(Permutation {
            seed,
            n,
            half: bits.div_ceil(2).max(1),
        })
    }

    fn at(&self, position: u64) -> u64 {
        let (epoch, mut value) = (position / self.n, position % self.n);
        loop {
            value = self.pass(epoch, value);
            if value < self.n {
                return value;
            }
        }
    }

    fn pass(&self, epoch: u64, value: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (value >> self.half, value & mask);
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        for round in 0..ROUNDS {
            let counter = [right as u32, round, epoch as u32, (epoch >> 32) as u32];
            let word = u64::from(philox(counter, key)[0]);
            (left, right) = (right, left ^ (word & mask));
        }
        left << self.half | right
    }
}

/// Sample at `position` (from 0) of the endless sequence of epochs.
pub fn sample_index(seed: u64, n: u64, position: u64) -> Result<u64, OrderError> {
    if position >= MAX_POSITION {
        return Err(OrderError::Position);
    }
    Ok(Permutation::new(seed, n)?.at(position))
}

/// Samples of the batch of `step` (from 0).
pub fn batch_indices(seed: u64, n: u64, batch: u64, step: u64) -> Result<Vec<i64>, OrderError> {
    let permutation = Permutation::new(seed, n)?;
    if !(1..=MAX_BATCH).contains(&batch) {
        return Err(OrderError::Batch(batch));
    }
    let end = step
        .checked_add(1)
        .and_then(|steps| steps.checked_mul(batch));
    match end {
        Some(end) if end <= MAX_POSITION => Ok((end - batch..end)
            .map(|position| permutation.at(position) as i64)
            .collect()),
        _ => Err(OrderError::Position),
    }
}
