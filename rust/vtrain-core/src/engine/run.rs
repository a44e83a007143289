//! Runs: nodes that work by rows, done block of rows by block of rows.
//!
//! A block stays in a core's caches from the node that puts it out to those that read it. A value
//! that only nodes of the run read lives in a slot, one block long, and never as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::program::Program;
use crate::number::Dtype;
use crate::ops::{Buffer, OutOfMemory, RunError, Slice, SliceMut, copy};

/// Bytes that a block of rows should have, of all that a run reads and writes.
const BLOCK_BYTES: usize = 96 << 10;
/// Slots begin on a cache line.
const ALIGN: usize = 64;
/// Elements, over all nodes of a run, that make a second thread worth its wake-up.
const GRAIN: usize = 64 << 10;
/// Pieces for each thread, so that the last ones end at about the same time.
const PIECES_PER_THREAD: usize = 4;

/// Nodes that are done block by block.
#[derive(Debug)]
pub(super) struct Run {
    /// Rows that every value falls into, and those of a block.
    rows: usize,
    block: usize,
    /// The nodes, in their order.
    steps: Vec<Step>,
    /// Bytes before each slot, and of all slots.
    offsets: Vec<usize>,
    scratch: usize,
    /// Elements that all nodes read or put out.
    work: usize,
}

#[derive(Debug)]
struct Step {
    node: usize,
    inputs: Vec<Operand>,
    out: Operand,
    /// It works in place, and its first input lies elsewhere.
    copies: bool,
}

/// How a run reads a value in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    /// The last step that does.
    last: usize,
    /// A step reads all of it, and not the rows of a block.
    whole: bool,
}

/// What a step reads or writes.
#[derive(Clone, Copy, Debug)]
struct Operand {
    /// The node whose value it is.
    value: usize,
    dtype: Dtype,
    lies: Lies,
    /// Elements of a row, or of all if it has none.
    elements: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    /// A block at a time in a slot.
    InSlot(usize),
    /// In memory, of which a step takes the rows of the block.
    ByRows,
    /// In memory, of which a step takes all.
    Whole,
    /// A sum over rows: each piece of the work has one of its own, added to the whole at its end.
    Sum,
}

impl Run {
    /// The run of `members`, all of which fall into `rows` rows; of their values those that are
    /// `seen` from outside are left in memory.
    pub fn new(
        program: &Program,
        members: &[usize],
        rows: usize,
        seen: impl Fn(usize) -> bool,
    ) -> Self {
        let bytes = |node: usize| program.forms[node].byte_len() / rows;
        // The last step that reads each member's value.
        let mut last_read: Vec<usize> = (0..members.len()).collect();
        for (at, &node) in members.iter().enumerate() {
            for &input in &program.inputs[node] {
                if let Ok(read) = members.binary_search(&program.roots[input]) {
                    last_read[read] = at;
                }
            }
        }
        let mut steps: Vec<Step> = Vec::with_capacity(members.len());
        let (mut slots, mut free): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut outside = BTreeSet::new();
        for (at, &node) in members.iter().enumerate() {
            let bands = program.bands_of(node);
            let operand = |value: usize, lies: Lies| {
                let form = &program.forms[value];
                let by_rows = matches!(lies, Lies::InSlot(_) | Lies::ByRows);
                Operand {
                    value,
                    dtype: form.dtype,
                    lies,
                    elements: form.size() / if by_rows { rows } else { 1 },
                }
            };
            let read = |(i, &input): (usize, &usize)| {
                let value = program.roots[input];
                let member = members.binary_search(&value).ok();
                match member.map(|member| steps[member].out.lies) {
                    Some(lies @ Lies::InSlot(_)) => operand(value, lies),
                    _ if bands.is_some_and(|bands| bands.is_banded(i)) => {
                        operand(value, Lies::ByRows)
                    }
                    _ => operand(value, Lies::Whole),
                }
            };
            let inputs: Vec<Operand> = program.inputs[node].iter().enumerate().map(read).collect();
            let by_rows = inputs.iter().filter(|input| input.lies == Lies::ByRows);
            outside.extend(by_rows.map(|input| input.value));
            let is_in_place = program.kernels[node].is_in_place();
            // The slot of a first input that this step is the last to read, and reads once.
            let own = inputs.first().and_then(|first| match first.lies {
                Lies::InSlot(slot)
                    if members
                        .binary_search(&first.value)
                        .is_ok_and(|read| last_read[read] == at)
                        && inputs[1..].iter().all(|input| input.lies != first.lies)
                        && bytes(first.value) == bytes(node) =>
                {
                    Some(slot)
                }
                _ => None,
            });
            let own = own.filter(|_| is_in_place);
            let lies = if bands.is_some_and(|bands| bands.sums) {
                Lies::Sum
            } else if seen(node) {
                outside.insert(node);
                Lies::ByRows
            } else if let Some(slot) = own {
                Lies::InSlot(slot)
            } else {
                let fit = |&i: &usize| slots[free[i]].abs_diff(bytes(node));
                let slot = match (0..free.len()).min_by_key(fit) {
                    Some(i) => free.swap_remove(i),
                    None => {
                        slots.push(0);
                        slots.len() - 1
                    }
                };
                slots[slot] = slots[slot].max(bytes(node));
                Lies::InSlot(slot)
            };
            let out = operand(node, lies);
            steps.push(Step {
                node,
                inputs,
                out,
                copies: is_in_place && (own.is_none() || own.map(Lies::InSlot) != Some(lies)),
            });
            for read in (0..=at).filter(|&read| last_read[read] == at) {
                let lies = steps[read].out.lies;
                if let Lies::InSlot(slot) = lies
                    && (read == at || lies != out.lies)
                {
                    free.push(slot);
                }
            }
        }
        let row = slots.iter().sum::<usize>() + outside.into_iter().map(bytes).sum::<usize>();
        let block = (BLOCK_BYTES / row.max(1)).clamp(1, rows);
        let mut scratch = 0;
        let mut offset = |slot: usize| {
            let at = scratch;
            scratch += (slot * block).next_multiple_of(ALIGN);
            at
        };
        let offsets = slots.into_iter().map(&mut offset).collect();
        let work = |&node: &usize| {
            let sizes = program.sizes_of(node).into_iter();
            sizes.fold(program.forms[node].size(), usize::max)
        };
        Self {
            rows,
            block,
            steps,
            offsets,
            scratch,
            work: members.iter().map(work).sum(),
        }
    }

    /// The values that it leaves in memory.
    pub fn writes(&self) -> impl Iterator<Item = usize> {
        let outs = self.steps.iter().map(|step| step.out);
        outs.filter(|out| !matches!(out.lies, Lies::InSlot(_)))
            .map(|out| out.value)
    }

    /// The values in memory that it reads and does not write, and how it reads each.
    pub fn reads(&self) -> BTreeMap<usize, Read> {
        let written: BTreeSet<usize> = self.writes().collect();
        let mut found = BTreeMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            for input in &step.inputs {
                if matches!(input.lies, Lies::InSlot(_)) || written.contains(&input.value) {
                    continue;
                }
                let read: &mut Read = found.entry(input.value).or_default();
                read.last = at;
                read.whole |= input.lies != Lies::ByRows;
            }
        }
        found
    }

    /// May `new`, which it writes, lie where `old` does, which it reads so and nobody reads later?
    ///
    /// Their rows must lie in the same bytes; and when a row of the new one is written, the old one
    /// must have been read, save by the step itself as what it works on in place.
    pub fn may_overwrite(&self, program: &Program, (old, read): (usize, Read), new: usize) -> bool {
        let Ok(at) = self.steps.binary_search_by_key(&new, |step| step.node) else {
            return false;
        };
        let step = &self.steps[at];
        let late = &step.inputs[usize::from(step.copies)..];
        step.out.lies == Lies::ByRows
            && program.forms[old].byte_len() == program.forms[new].byte_len()
            && !read.whole
            && read.last <= at
            && !late.iter().any(|input| input.value == old)
    }

    /// Bytes of slots that each thread needs.
    pub fn scratch(&self) -> usize {
        self.scratch
    }

    /// Does the run; returns how many elements saturation changed, by node.
    ///
    /// # Safety
    /// `base` gives for each value that the run reads or writes in memory its first byte, good for
    /// all of its bytes until this returns. Nobody else writes those that are read, nor reads or
    /// writes those that are written, and no two overlap, unless they are one by
    /// [`Self::may_overwrite`].
    pub unsafe fn go(
        &self,
        program: &Program,
        base: impl Fn(usize) -> *mut u8,
        scratch: &Scratch,
    ) -> Result<Vec<(usize, u64)>, RunError> {
        let bases = |step: &Step| -> Bases {
            let inputs = step.inputs.iter().map(|input| match input.lies {
                Lies::InSlot(_) | Lies::Sum => std::ptr::null_mut(),
                Lies::ByRows | Lies::Whole => base(input.value),
            });
            let out = match step.out.lies {
                Lies::InSlot(_) => std::ptr::null_mut(),
                _ => base(step.out.value),
            };
            Bases {
                inputs: inputs.collect(),
                out,
            }
        };
        let bases: Vec<Bases> = self.steps.iter().map(bases).collect();
        let sums = || {
            self.steps
                .iter()
                .zip(&bases)
                .filter(|(step, _)| step.out.lies == Lies::Sum)
        };
        let total = |step: &Step, bases: &Bases| {
            // SAFETY: written here under the lock, and before the pieces begin.
            unsafe { std::slice::from_raw_parts_mut(bases.out.cast::<i64>(), step.out.elements) }
        };
        for (step, bases) in sums() {
            total(step, bases).fill(0);
        }
        let lock = Mutex::new(());
        let blocks = self.rows.div_ceil(self.block);
        let most = rayon::current_num_threads() * PIECES_PER_THREAD;
        let pieces = (self.work / GRAIN).clamp(1, most).min(blocks);
        let piece = |piece: usize| -> Result<Vec<u64>, RunError> {
            let range = blocks * piece / pieces..blocks * (piece + 1) / pieces;
            let slots = scratch.take(self.scratch)?;
            let own = |(step, _): (&Step, &Bases)| vec![0i64; step.out.elements];
            let mut own: Vec<Vec<i64>> = sums().map(own).collect();
            let mut clamped = vec![0; self.steps.len()];
            for block in range {
                let rows = block * self.block..self.rows.min((block + 1) * self.block);
                let mut own = own.iter_mut();
                for ((step, bases), clamped) in self.steps.iter().zip(&bases).zip(&mut clamped) {
                    let sum = match step.out.lies {
                        Lies::Sum => own.next().map(Vec::as_mut_slice),
                        _ => None,
                    };
                    // SAFETY: blocks of one value are apart, and each is one piece's; the slots are
                    // this piece's own. The rest is the caller's.
                    *clamped +=
                        unsafe { self.step(program, step, bases, &slots, sum, rows.clone())? };
                }
            }
            let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            for ((step, bases), own) in sums().zip(own) {
                for (out, own) in total(step, bases).iter_mut().zip(own) {
                    *out = out.wrapping_add(own);
                }
            }
            drop(guard);
            scratch.give_back(slots);
            Ok(clamped)
        };
        let none = || vec![0; self.steps.len()];
        let add = |mut a: Vec<u64>, b: Vec<u64>| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
            Ok(a)
        };
        let clamped = if pieces == 1 {
            piece(0)?
        } else {
            let pieces = (0..pieces).into_par_iter().map(piece);
            pieces.try_reduce(none, add)?
        };
        let nodes = self.steps.iter().map(|step| step.node);
        Ok(nodes.zip(clamped).filter(|&(_, count)| count > 0).collect())
    }

    /// # Safety
    /// As [`Self::go`] says; nobody else has these rows of what is written, or the slots.
    unsafe fn step(
        &self,
        program: &Program,
        step: &Step,
        bases: &Bases,
        slots: &Buffer,
        sum: Option<&mut [i64]>,
        rows: Range<usize>,
    ) -> Result<u64, RunError> {
        let place = |operand: &Operand, base: *mut u8| -> (*mut u8, usize) {
            let count = rows.len() * operand.elements;
            match operand.lies {
                Lies::InSlot(slot) => (slots.base().wrapping_add(self.offsets[slot]), count),
                Lies::ByRows => {
                    let skipped = rows.start * operand.elements * operand.dtype.size();
                    (base.wrapping_add(skipped), count)
                }
                Lies::Whole | Lies::Sum => (base, operand.elements),
            }
        };
        let kernel = &program.kernels[step.node];
        let mut inputs = [Slice::U8(&[]); MOST_INPUTS];
        let inputs = inputs
            .get_mut(..step.inputs.len())
            .ok_or(RunError::Inputs)?;
        for (i, (operand, &base)) in step.inputs.iter().zip(&bases.inputs).enumerate() {
            if i > 0 || !kernel.is_in_place() {
                let (data, len) = place(operand, base);
                // SAFETY: the caller's values and slots; what is written overlaps none of them.
                inputs[i] = unsafe { slice_at(data, operand.dtype, len) };
            }
        }
        if let Some(sum) = sum {
            return kernel.run_band(inputs, SliceMut::I64(sum), 0);
        }
        let (data, len) = place(&step.out, bases.out);
        if step.copies {
            let (from, from_len) = place(&step.inputs[0], bases.inputs[0]);
            if from != data {
                // SAFETY: as above; the two are apart, as they do not begin at one place.
                unsafe {
                    let from = slice_at(from, step.inputs[0].dtype, from_len);
                    copy(from, slice_mut_at(data, step.out.dtype, len))?;
                }
            }
        }
        // SAFETY: as above.
        let out = unsafe { slice_mut_at(data, step.out.dtype, len) };
        kernel.run_band(inputs, out, rows.start * step.out.elements)
    }
}

/// Most inputs of a node in a run.
pub(super) const MOST_INPUTS: usize = 8;

/// Where what a step reads and writes in memory begins.
struct Bases {
    inputs: Vec<*mut u8>,
    out: *mut u8,
}

// SAFETY: who reads and writes there is said in `Run::go`.
unsafe impl Sync for Bases {}

/// # Safety
/// `data` is good for reading `len` elements as long as the slice lives, and aligned for them.
unsafe fn slice_at<'a>(data: *const u8, dtype: Dtype, len: usize) -> Slice<'a> {
    macro_rules! of {
        () => {
            // SAFETY: by contract; any bytes are integers.
            unsafe { std::slice::from_raw_parts(data.cast(), len) }
        };
    }
    if len == 0 {
        return Slice::empty(dtype);
    }
    match dtype {
        Dtype::U8 => Slice::U8(of!()),
        Dtype::I8 => Slice::I8(of!()),
        Dtype::I16 => Slice::I16(of!()),
        Dtype::I32 => Slice::I32(of!()),
        Dtype::I64 => Slice::I64(of!()),
    }
}

/// # Safety
/// As [`slice_at`], for reading and writing, and by nobody else.
unsafe fn slice_mut_at<'a>(data: *mut u8, dtype: Dtype, len: usize) -> SliceMut<'a> {
    macro_rules! of {
        () => {
            // SAFETY: by contract; any bytes are integers.
            unsafe { std::slice::from_raw_parts_mut(data.cast(), len) }
        };
    }
    match dtype {
        Dtype::U8 => SliceMut::U8(of!()),
        Dtype::I8 => SliceMut::I8(of!()),
        Dtype::I16 => SliceMut::I16(of!()),
        Dtype::I32 => SliceMut::I32(of!()),
        Dtype::I64 => SliceMut::I64(of!()),
    }
}

/// Memory for slots, kept from run to run.
#[derive(Debug, Default)]
pub(super) struct Scratch(Mutex<Vec<Buffer>>);

impl Scratch {
    fn take(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match kept {
            Some(buffer) if buffer.capacity() >= bytes => Ok(buffer),
            _ => Buffer::new(bytes),
        }
    }

    fn give_back(&self, buffer: Buffer) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(buffer);
    }
}
