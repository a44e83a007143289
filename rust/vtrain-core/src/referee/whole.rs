//! Folds over tensors in memory: what a party to a dispute computes.

use std::collections::BTreeSet;

use blake3::CHUNK_LEN;
use rayon::prelude::*;

use super::fold::{Leaf, Reader, Stop, Tokens, element_of};
use crate::domains::Hash;
use crate::number::Dtype;
use crate::ops::Slice;

/// The inputs of one node, and the samples.
#[derive(Clone, Copy, Debug)]
pub struct Whole<'a> {
    /// One tensor for each input; the value of the state, for a `state`.
    pub inputs: &'a [Slice<'a>],
    /// Their digests, where a rule asks for them.
    pub digests: &'a [Hash],
    /// The committed table of samples, row by row, or the file of tokens.
    pub table: &'a [u8],
    /// Bytes of a row; 0 for no table.
    pub row: usize,
    /// How samples are windows of tokens, where they are.
    pub tokens: Option<Tokens>,
}

impl Reader for Whole<'_> {
    fn element(&mut self, input: usize, index: u64) -> Result<i64, Stop> {
        let element = || {
            let tensor = self.inputs.get(input)?;
            let size = tensor.dtype().size();
            let start = usize::try_from(index).ok()?.checked_mul(size)?;
            let bytes = tensor.bytes().get(start..)?.get(..size)?;
            element_of(tensor.dtype(), bytes)
        };
        element().ok_or(Stop::Element { input, index })
    }

    fn digest(&mut self, input: usize) -> Result<Hash, Stop> {
        self.digests.get(input).copied().ok_or(Stop::Digest(input))
    }

    fn sample(&mut self, index: i64) -> Result<&[u8], Stop> {
        let row = || {
            let start = usize::try_from(index).ok()?.checked_mul(self.row)?;
            self.table.get(start..)?.get(..self.row)
        };
        Ok(row().unwrap_or(&[]))
    }

    fn tokens(&self) -> Option<Tokens> {
        self.tokens
    }

    fn token(&mut self, at: u64) -> Result<i64, Stop> {
        let element = || {
            let windows = self.tokens?.windows;
            windows.element(self.table, usize::try_from(at).ok()?)
        };
        element().map(i64::from).ok_or(Stop::Token(at))
    }
}

/// Chunks and rows that a block reads, each list ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reads {
    /// For each input.
    pub chunks: Vec<Vec<u64>>,
    /// Of the samples.
    pub rows: Vec<u64>,
    /// Chunks of the file of tokens.
    pub tokens: Vec<u64>,
}

/// A reader that notes what is read through it.
struct Recorder<'r, R> {
    inner: &'r mut R,
    dtypes: Vec<Dtype>,
    chunks: Vec<BTreeSet<u64>>,
    rows: BTreeSet<u64>,
    tokens: BTreeSet<u64>,
}

impl<R: Reader> Reader for Recorder<'_, R> {
    fn element(&mut self, input: usize, index: u64) -> Result<i64, Stop> {
        let value = self.inner.element(input, index)?;
        if let (Some(dtype), Some(chunks)) = (self.dtypes.get(input), self.chunks.get_mut(input)) {
            chunks.insert(chunk_of(*dtype, index));
        }
        Ok(value)
    }

    fn digest(&mut self, input: usize) -> Result<Hash, Stop> {
        self.inner.digest(input)
    }

    fn sample(&mut self, index: i64) -> Result<&[u8], Stop> {
        let row = self.inner.sample(index)?;
        if let (false, Ok(index)) = (row.is_empty(), u64::try_from(index)) {
            self.rows.insert(index);
        }
        Ok(row)
    }

    fn tokens(&self) -> Option<Tokens> {
        self.inner.tokens()
    }

    fn token(&mut self, at: u64) -> Result<i64, Stop> {
        let value = self.inner.token(at)?;
        self.tokens
            .extend(self.tokens().map(|tokens| tokens.chunk_of(at)));
        Ok(value)
    }
}

/// The chunk that an element lies in: no element lies in two.
pub(crate) fn chunk_of(dtype: Dtype, index: u64) -> u64 {
    index / (CHUNK_LEN / dtype.size()) as u64
}

/// The states of `element` after each of its blocks, one after the other.
///
/// It ends before the first block that has no state.
pub fn states(leaf: &Leaf, element: u64, reader: &mut impl Reader) -> Result<Vec<u8>, Stop> {
    let (mut out, mut state) = (Vec::new(), leaf.init());
    for block in 0..leaf.blocks() {
        state = match leaf.run_block(state, element, block, reader) {
            Ok(state) => state,
            Err(Stop::NoValue) => break,
            Err(stop) => return Err(stop),
        };
        match leaf.encode_state(&state) {
            Some(bytes) => out.extend_from_slice(&bytes),
            None => break,
        }
    }
    Ok(out)
}

/// What one block of `element` reads.
pub fn reads(
    leaf: &Leaf,
    element: u64,
    block: u64,
    reader: &mut impl Reader,
) -> Result<Reads, Stop> {
    let mut state = leaf.init();
    if leaf.reads_by_state() {
        for earlier in 0..block.min(leaf.blocks()) {
            state = leaf.run_block(state, element, earlier, reader)?;
        }
    }
    let dtypes: Vec<Dtype> = leaf.inputs().iter().map(|form| form.dtype).collect();
    let mut recorder = Recorder {
        inner: reader,
        chunks: vec![BTreeSet::new(); dtypes.len()],
        dtypes,
        rows: BTreeSet::new(),
        tokens: BTreeSet::new(),
    };
    match leaf.run_block(state, element, block, &mut recorder) {
        Ok(_) | Err(Stop::NoValue) => Ok(Reads {
            chunks: recorder
                .chunks
                .into_iter()
                .map(|chunks| chunks.into_iter().collect())
                .collect(),
            rows: recorder.rows.into_iter().collect(),
            tokens: recorder.tokens.into_iter().collect(),
        }),
        Err(stop) => Err(stop),
    }
}

/// Elements that one thread folds, one after the other.
const GRAIN: usize = 64;

/// What folding some elements of an output came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Their bytes, one after the other.
    Values(Vec<u8>),
    /// For each input the chunks that were read and are not there, ascending. What is read may
    /// depend on them: there may be more once they are there.
    Missing(Vec<Vec<u64>>),
}

/// A reader of tensors of which some chunks are there, that notes which others are read.
struct Partial<'r, 'a> {
    inner: Whole<'a>,
    dtypes: &'r [Dtype],
    there: &'r [&'r [u8]],
    missing: Vec<BTreeSet<u64>>,
}

impl Reader for Partial<'_, '_> {
    fn element(&mut self, input: usize, index: u64) -> Result<i64, Stop> {
        let value = self.inner.element(input, index)?;
        if let (Some(dtype), Some(there)) = (self.dtypes.get(input), self.there.get(input)) {
            let chunk = chunk_of(*dtype, index);
            let is_there = usize::try_from(chunk)
                .ok()
                .and_then(|chunk| there.get(chunk));
            if is_there == Some(&0) {
                self.missing[input].insert(chunk);
            }
        }
        Ok(value)
    }

    fn digest(&mut self, input: usize) -> Result<Hash, Stop> {
        self.inner.digest(input)
    }

    fn sample(&mut self, index: i64) -> Result<&[u8], Stop> {
        self.inner.sample(index)
    }

    fn tokens(&self) -> Option<Tokens> {
        self.inner.tokens()
    }

    fn token(&mut self, at: u64) -> Result<i64, Stop> {
        self.inner.token(at)
    }
}

/// The elements `first` to before `first + count` of the output, where all that they read is there.
///
/// `there` has for each input a byte for each of its chunks, which is 0 where the chunk is not there,
/// or no bytes where all of it is.
pub fn values(
    leaf: &Leaf,
    first: u64,
    count: usize,
    inputs: &Whole<'_>,
    there: &[&[u8]],
) -> Result<Parts, Stop> {
    let dtypes: Vec<Dtype> = leaf.inputs().iter().map(|form| form.dtype).collect();
    let fold = |grain: usize| {
        let mut reader = Partial {
            inner: *inputs,
            dtypes: &dtypes,
            there,
            missing: vec![BTreeSet::new(); dtypes.len()],
        };
        let (mut out, mut stopped) = (Vec::new(), None);
        for at in grain * GRAIN..((grain + 1) * GRAIN).min(count) {
            match fold_element(leaf, first + at as u64, &mut reader) {
                Ok(bytes) => out.extend_from_slice(&bytes),
                // Of what is not there zeros were read: what comes of these says nothing.
                Err(stop) => stopped = stopped.or(Some(stop)),
            }
        }
        (out, stopped, reader.missing)
    };
    let folded: Vec<_> = (0..count.div_ceil(GRAIN))
        .into_par_iter()
        .map(fold)
        .collect();
    let mut missing = vec![BTreeSet::new(); dtypes.len()];
    let (mut out, mut stopped) = (Vec::new(), None);
    for (bytes, stop, read) in folded {
        out.extend_from_slice(&bytes);
        stopped = stopped.or(stop);
        for (all, some) in missing.iter_mut().zip(read) {
            all.extend(some);
        }
    }
    if missing.iter().any(|chunks| !chunks.is_empty()) {
        let missing = missing.into_iter();
        return Ok(Parts::Missing(
            missing.map(|chunks| chunks.into_iter().collect()).collect(),
        ));
    }
    match stopped {
        Some(stop) => Err(stop),
        None => Ok(Parts::Values(out)),
    }
}

/// One element of the output.
fn fold_element(leaf: &Leaf, element: u64, reader: &mut impl Reader) -> Result<Vec<u8>, Stop> {
    let mut state = leaf.init();
    for block in 0..leaf.blocks() {
        state = leaf.run_block(state, element, block, reader)?;
    }
    leaf.finish(&state).ok_or(Stop::NoValue)
}
