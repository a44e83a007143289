//! Tensor digests (plain BLAKE3) and openings of their 1 KiB chunks in BLAKE3's own tree.
//!
//! Twin of `vtrain/spec/blake3_tree.py`. An opening proves a chunk's bytes and place; the length of
//! the tensor follows from its agreed shape and is never taken from whoever opens it.

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{CHUNK_LEN, Hasher};
use rayon::prelude::*;

use crate::domains::Hash;
use crate::merkle::{sides, split};

/// Below this many bytes a second thread costs more than it brings.
const PARALLEL_LEN: usize = 128 << 10;

/// A chunk that a tensor does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no chunk {index} among {chunks}")]
pub struct NoSuchChunk {
    /// Chunk asked for.
    pub index: u64,
    /// Chunks that there are.
    pub chunks: u64,
}

/// Digest of a tensor's bytes, on this thread alone.
pub fn digest(data: &[u8]) -> Hash {
    blake3::hash(data).into()
}

/// Digest of a tensor's bytes, spread over the current rayon pool where that pays.
pub fn digest_parallel(data: &[u8]) -> Hash {
    if data.len() < PARALLEL_LEN {
        return digest(data);
    }
    Hasher::new().update_rayon(data).finalize().into()
}

/// Digests of many tensors, spread over the current rayon pool.
pub fn digests_parallel(tensors: &[&[u8]]) -> Vec<Hash> {
    tensors
        .par_iter()
        .map(|data| digest_parallel(data))
        .collect()
}

/// Chunks of a tensor of `length` bytes; an empty tensor is one empty chunk.
pub fn chunk_count(length: u64) -> u64 {
    length.div_ceil(CHUNK_LEN as u64).max(1)
}

/// Path of chunk `index` of `data`: sibling chaining values from the chunk upwards.
///
/// Siblings of one KiB and more are hashed in the current rayon pool.
pub fn chunk_path(data: &[u8], index: u64) -> Result<Vec<Hash>, NoSuchChunk> {
    let mut chunks = chunk_count(data.len() as u64);
    if index >= chunks {
        return Err(NoSuchChunk { index, chunks });
    }
    let (mut rest, mut first) = (data, 0);
    let mut path = Vec::new();
    while chunks > 1 {
        let left_chunks = split(chunks);
        let middle = first + left_chunks;
        let (left, right) = rest.split_at(left_chunks as usize * CHUNK_LEN);
        if index < middle {
            path.push(chaining_value(right, middle));
            (rest, chunks) = (left, left_chunks);
        } else {
            path.push(chaining_value(left, first));
            (rest, first, chunks) = (right, middle, chunks - left_chunks);
        }
    }
    path.reverse();
    Ok(path)
}

/// The bytes of chunk `index` of `data`.
pub fn chunk_bytes(data: &[u8], index: u64) -> Result<&[u8], NoSuchChunk> {
    let chunks = chunk_count(data.len() as u64);
    if index >= chunks {
        return Err(NoSuchChunk { index, chunks });
    }
    let start = index as usize * CHUNK_LEN;
    Ok(&data[start..data.len().min(start + CHUNK_LEN)])
}

/// Whether `chunk` is chunk `index` of the `length` bytes that `digest` is of.
///
/// Takes hostile input: a wrong index, chunk length or path length is false.
pub fn verify_chunk(digest: &Hash, length: u64, index: u64, chunk: &[u8], path: &[Hash]) -> bool {
    let chunks = chunk_count(length);
    if index >= chunks {
        return false;
    }
    let chunk_length = (length - index * CHUNK_LEN as u64).min(CHUNK_LEN as u64);
    let sides = sides(chunks, index);
    if chunk.len() as u64 != chunk_length || path.len() != sides.len() {
        return false;
    }
    let Some((top, lower)) = path.split_last() else {
        return blake3::hash(chunk) == *digest;
    };
    let mut value = chaining_value(chunk, index);
    for (is_left, sibling) in sides.iter().zip(lower) {
        let (left, right) = if *is_left {
            (&value, sibling)
        } else {
            (sibling, &value)
        };
        value = merge_subtrees_non_root(left, right, Mode::Hash);
    }
    let (left, right) = if sides[lower.len()] {
        (&value, top)
    } else {
        (top, &value)
    };
    merge_subtrees_root(left, right, Mode::Hash) == *digest
}

/// Chaining value of the subtree over the non-empty `data`, whose first chunk is number `first`.
fn chaining_value(data: &[u8], first: u64) -> Hash {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(first * CHUNK_LEN as u64);
    if data.len() < PARALLEL_LEN {
        hasher.update(data);
    } else {
        hasher.update_rayon(data);
    }
    hasher.finalize_non_root()
}
