//! What becomes of a finished accumulator.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::GemmError;

/// Operands and saved tensors saturate to +-32639, so that both int8 limbs exist.
const I16_LIMIT: i64 = 32639;
/// Elements that are worked on at a time: those of the narrowest tile.
const PIECE: usize = 16;
/// The same in 32 bits, of which half of such a tile may be of use.
const NARROW_PIECE: usize = 8;

/// Receives the exact accumulators of a product, a piece of a row at a time, from many threads.
pub trait Epilogue: Sync {
    /// (rows, columns) of the product that this epilogue is for.
    fn shape(&self) -> (usize, usize);

    /// Takes the accumulators of row `row`, columns `col0 .. col0 + acc.len()`.
    ///
    /// # Safety
    /// The piece lies within [`Self::shape`], and no two calls on overlapping pieces run at the
    /// same time.
    unsafe fn store(&self, row: usize, col0: usize, acc: &[i64]);

    /// As [`Self::store`], of at most 32 accumulators below 2^30 in magnitude.
    ///
    /// # Safety
    /// As [`Self::store`].
    #[inline(always)]
    unsafe fn store_narrow(&self, row: usize, col0: usize, acc: &[i32]) {
        // SAFETY: passed on from the caller.
        unsafe { self.store(row, col0, &widen(acc)[..acc.len()]) };
    }

    /// Says that `store` comes soon for these columns of `row`, all within [`Self::shape`]: one that
    /// reads memory may ask for it now.
    #[inline(always)]
    fn ask_for(&self, _row: usize, _cols: Range<usize>) {}
}

/// Of at most a tile's width.
#[inline(always)]
fn widen(acc: &[i32]) -> [i64; 32] {
    let mut wide = [0; 32];
    for (wide, &acc) in wide.iter_mut().zip(acc) {
        *wide = i64::from(acc);
    }
    wide
}

/// A row-major matrix written in disjoint pieces by many threads.
#[derive(Debug)]
struct SharedMat<'a, T> {
    data: *mut T,
    rows: usize,
    cols: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: the pieces that `piece` hands out at one time are disjoint, by its contract.
unsafe impl<T: Send> Sync for SharedMat<'_, T> {}
// SAFETY: it stands for a `&mut [T]`, which is Send when T is.
unsafe impl<T: Send> Send for SharedMat<'_, T> {}

impl<'a, T> SharedMat<'a, T> {
    fn new(data: &'a mut [T], rows: usize, cols: usize) -> Result<Self, GemmError> {
        if rows.checked_mul(cols) != Some(data.len()) {
            let len = data.len();
            return Err(GemmError::View {
                rows,
                cols,
                row_stride: cols,
                col_stride: 1,
                len,
            });
        }
        Ok(Self {
            data: data.as_mut_ptr(),
            rows,
            cols,
            owner: PhantomData,
        })
    }

    /// # Safety
    /// The piece lies inside the matrix, and no other piece that overlaps it is alive.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // the contract stands in for the borrow checker
    unsafe fn piece(&self, row: usize, col0: usize, len: usize) -> &mut [T] {
        // SAFETY: in bounds and not aliased, by contract.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.cols + col0), len) }
    }
}

/// Stores the accumulators themselves, row-major.
#[derive(Debug)]
pub struct StoreI64<'a>(SharedMat<'a, i64>);

impl<'a> StoreI64<'a> {
    /// `out` is `rows * cols` long. Errors: [`GemmError::View`].
    pub fn new(out: &'a mut [i64], rows: usize, cols: usize) -> Result<Self, GemmError> {
        SharedMat::new(out, rows, cols).map(Self)
    }
}

impl Epilogue for StoreI64<'_> {
    fn shape(&self) -> (usize, usize) {
        (self.0.rows, self.0.cols)
    }

    #[inline(always)]
    unsafe fn store(&self, row: usize, col0: usize, acc: &[i64]) {
        // SAFETY: passed on from the caller.
        unsafe { self.0.piece(row, col0, acc.len()) }.copy_from_slice(acc);
    }
}

/// `out = relu(sat(rs(acc + bias, shift)))` as int16, row-major; counts what saturates.
///
/// `rs(x, s) = floor((x + 2^(s-1)) / 2^s)` for s > 0 and `x * 2^-s` otherwise, for every s;
/// `sat` holds to +-32639. The ReLU is optional and comes after the saturation.
#[derive(Debug)]
pub struct RescaleI16<'a> {
    out: SharedMat<'a, i16>,
    shift: i32,
    bias: Option<&'a [i64]>,
    /// The same in 32 bits, or nothing without it; None where int32 is too narrow for what becomes
    /// of sums below 2^30.
    narrow_bias: Option<Vec<i32>>,
    relu: bool,
    saturated: AtomicU64,
}

impl<'a> RescaleI16<'a> {
    /// `out` is `rows * cols` long; `bias` has an entry a column, already aligned to the
    /// accumulator's exponent, and `acc + bias` must stay below 2^62 in magnitude.
    /// Errors: [`GemmError::View`], [`GemmError::Bias`].
    pub fn new(
        out: &'a mut [i16],
        rows: usize,
        cols: usize,
        shift: i32,
        bias: Option<&'a [i64]>,
        relu: bool,
    ) -> Result<Self, GemmError> {
        if let Some(bias) = bias.filter(|bias| bias.len() != cols) {
            return Err(GemmError::Bias {
                len: bias.len(),
                cols,
            });
        }
        let out = SharedMat::new(out, rows, cols)?;
        let narrow = |&b: &i64| i32::try_from(b).ok().filter(|b| b.unsigned_abs() < 1 << 30);
        let narrow_bias = bias.unwrap_or_default().iter().map(narrow).collect();
        Ok(Self {
            out,
            shift,
            bias,
            narrow_bias: if (1..=31).contains(&shift) {
                narrow_bias
            } else {
                None
            },
            relu,
            saturated: AtomicU64::new(0),
        })
    }

    /// How many rescaled elements lay beyond +-32639, before the ReLU.
    pub fn saturated(&self) -> u64 {
        self.saturated.load(Ordering::Relaxed)
    }

    /// A piece, by index: iterators over several slices are put together in memory for every piece.
    #[inline(always)]
    fn finish(
        &self,
        acc: &[i64; PIECE],
        out: &mut [i16; PIECE],
        rescale: impl Fn(i64) -> i64 + Copy,
    ) {
        let floor = if self.relu { 0 } else { -I16_LIMIT };
        let mut changed = 0;
        for i in 0..PIECE {
            let y = rescale(acc[i]);
            let held = y.clamp(-I16_LIMIT, I16_LIMIT);
            changed |= y ^ held;
            out[i] = held.max(floor) as i16;
        }
        if changed != 0 {
            let beyond = |x: &&i64| rescale(**x).unsigned_abs() > I16_LIMIT as u64;
            let beyond = acc.iter().filter(beyond).count() as u64;
            self.saturated.fetch_add(beyond, Ordering::Relaxed);
        }
    }

    /// As [`Self::finish`], in 32 bits, for a shift in [1, 31].
    #[inline(always)]
    fn finish_narrow(&self, sums: &[i32; NARROW_PIECE], out: &mut [i16; NARROW_PIECE]) {
        let (before, limit) = (self.shift - 1, I16_LIMIT as i32);
        let floor = if self.relu { 0 } else { -limit };
        let mut changed = 0;
        for i in 0..NARROW_PIECE {
            let y = ((sums[i] >> before) + 1) >> 1;
            let held = y.clamp(-limit, limit);
            changed |= y ^ held;
            out[i] = held.max(floor) as i16;
        }
        if changed != 0 {
            let beyond = |&&x: &&i32| (((x >> before) + 1) >> 1).abs() > limit;
            let beyond = sums.iter().filter(beyond).count() as u64;
            self.saturated.fetch_add(beyond, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn finish_shifted(&self, acc: &[i64; PIECE], out: &mut [i16; PIECE]) {
        match self.shift {
            // floor((floor(x / 2^(s-1)) + 1) / 2): no carry is lost, whatever s.
            shift @ 1..=63 => self.finish(acc, out, move |x| ((x >> (shift - 1)) + 1) >> 1),
            // An int64 is within half a unit of zero, and -2^63 / 2^64 rounds up to it.
            64.. => self.finish(acc, out, |_| 0),
            // Anything beyond 2^16 saturates whatever the shift, so it may be held there first.
            _ => {
                let left = self.shift.unsigned_abs().min(40);
                self.finish(acc, out, move |x| x.clamp(-(1 << 16), 1 << 16) << left);
            }
        }
    }
}

impl Epilogue for RescaleI16<'_> {
    fn shape(&self) -> (usize, usize) {
        (self.out.rows, self.out.cols)
    }

    #[inline(always)]
    unsafe fn store(&self, row: usize, col0: usize, acc: &[i64]) {
        // SAFETY: passed on from the caller.
        let out = unsafe { self.out.piece(row, col0, acc.len()) };
        let bias = self.bias.map(|bias| &bias[col0..col0 + acc.len()]);
        let mut done = 0;
        while let (Some(piece), Some(out)) = (
            acc[done..].first_chunk::<PIECE>(),
            out[done..].first_chunk_mut::<PIECE>(),
        ) {
            let mut sums = *piece;
            if let Some(bias) = bias.and_then(|bias| bias[done..].first_chunk::<PIECE>()) {
                for i in 0..PIECE {
                    sums[i] = sums[i].wrapping_add(bias[i]);
                }
            }
            self.finish_shifted(&sums, out);
            done += PIECE;
        }
        let count = acc.len() - done;
        if count > 0 {
            // The rest of a piece is zeros, which never saturate.
            let (mut sums, mut piece) = ([0; PIECE], [0; PIECE]);
            for i in 0..count {
                sums[i] = acc[done + i].wrapping_add(bias.map_or(0, |bias| bias[done + i]));
            }
            self.finish_shifted(&sums, &mut piece);
            out[done..].copy_from_slice(&piece[..count]);
        }
    }

    #[inline(always)]
    unsafe fn store_narrow(&self, row: usize, col0: usize, acc: &[i32]) {
        let Some(bias) = &self.narrow_bias else {
            // SAFETY: passed on from the caller.
            return unsafe { self.store(row, col0, &widen(acc)[..acc.len()]) };
        };
        // SAFETY: passed on from the caller.
        let out = unsafe { self.out.piece(row, col0, acc.len()) };
        let bias = bias.get(col0..col0 + acc.len()).unwrap_or_default();
        for first in (0..acc.len()).step_by(NARROW_PIECE) {
            // The rest of a piece is zeros, which never saturate.
            let mut sums: [i32; NARROW_PIECE] = load(&acc[first..]);
            if !bias.is_empty() {
                let bias: [i32; NARROW_PIECE] = load(&bias[first..]);
                for i in 0..NARROW_PIECE {
                    sums[i] = sums[i].wrapping_add(bias[i]);
                }
            }
            match out[first..].first_chunk_mut() {
                Some(out) => self.finish_narrow(&sums, out),
                None => {
                    let mut piece = [0; NARROW_PIECE];
                    self.finish_narrow(&sums, &mut piece);
                    let rest = &mut out[first..];
                    rest.copy_from_slice(&piece[..rest.len()]);
                }
            }
        }
    }
}

/// The first elements, or as many as there are and zeros.
#[inline(always)]
fn load<const N: usize>(from: &[i32]) -> [i32; N] {
    match from.first_chunk() {
        Some(from) => *from,
        None => {
            let mut all = [0; N];
            all[..from.len()].copy_from_slice(from);
            all
        }
    }
}
