//! Tensor digests (plain BLAKE3) and openings of their 1 KiB chunks in BLAKE3's own tree.
//!
//! Twin of `vtrain/spec/blake3_tree.py`. An opening proves a chunk's bytes and place; the length of
//! the tensor follows from its agreed shape and is never taken from whoever opens it.

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{CHUNK_LEN, Hasher};
use rayon::prelude::*;

use crate::domains::Hash;
use crate::merkle::{
    NoSuchFrontier, NoSuchRange, check_range, fold_range, frontier_ranges, sides, split,
};

/// Below this many bytes a second thread costs more than it brings.
const PARALLEL_LEN: usize = 128 << 10;

/// The last chunk of the longest tensor that there can be: BLAKE3 hashes up to 2^64 - 1 bytes.
const MAX_CHUNK: u64 = (1 << 54) - 1;

/// A chunk that a tensor does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no chunk {index} among {chunks}")]
pub struct NoSuchChunk {
    /// Chunk asked for.
    pub index: u64,
    /// Chunks that there are.
    pub chunks: u64,
}

/// Whether threads pay for so many bytes: to wake one takes longer than to hash a few.
pub fn pays(length: usize) -> bool {
    length >= PARALLEL_LEN
}

/// Digest of a tensor's bytes, on this thread alone.
pub fn digest(data: &[u8]) -> Hash {
    blake3::hash(data).into()
}

/// Digest of a tensor's bytes, spread over the current rayon pool where that pays.
pub fn digest_parallel(data: &[u8]) -> Hash {
    if !pays(data.len()) {
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

/// The chaining values of all chunks of one tensor and of the subtrees over them.
///
/// It keeps no bytes of the tensor: 64 bytes a KiB.
#[derive(Clone, Debug)]
pub struct ChunkTree {
    chunks: u64,
    digest: Hash,
    /// `levels[k][j]` is the value of the complete subtree over chunks j * 2^k .. (j + 1) * 2^k.
    levels: Vec<Vec<Hash>>,
}

impl ChunkTree {
    /// Hashes a tensor's bytes, in the current rayon pool where that pays.
    pub fn new(data: &[u8]) -> Self {
        let value = |(index, chunk)| chaining_value(chunk, index as u64);
        let values: Vec<Hash> = if data.is_empty() {
            vec![digest(data)] // the empty chunk is in no larger tensor
        } else if pays(data.len()) {
            let chunks = data.par_chunks(CHUNK_LEN).with_min_len(64);
            chunks.enumerate().map(value).collect()
        } else {
            data.chunks(CHUNK_LEN).enumerate().map(value).collect()
        };
        let chunks = values.len() as u64;
        let mut levels = vec![values];
        let join = |pair: &[Hash]| merge_subtrees_non_root(&pair[0], &pair[1], Mode::Hash);
        while let Some(below) = levels.last().filter(|level| level.len() > 1) {
            let above = if pays(data.len()) {
                let pairs = below.par_chunks_exact(2).with_min_len(512);
                pairs.map(join).collect()
            } else {
                below.chunks_exact(2).map(join).collect()
            };
            levels.push(above);
        }
        let mut tree = Self {
            chunks,
            digest: [0; 32],
            levels,
        };
        tree.digest = match chunks {
            1 => digest(data),
            _ => {
                let middle = split(chunks);
                let (left, right) = (tree.value(0, middle), tree.value(middle, chunks));
                merge_subtrees_root(&left, &right, Mode::Hash).into()
            }
        };
        tree
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Digest of the tensor.
    pub fn digest(&self) -> Hash {
        self.digest
    }

    /// Values of the frontier of chunks [start, end): chaining values, but the digest where a part
    /// is the whole tensor.
    pub fn frontier(&self, start: u64, end: u64, depth: u32) -> Result<Vec<Hash>, NoSuchRange> {
        check_range(start, end, self.chunks)?;
        Ok(frontier_ranges(start, end, depth)
            .into_iter()
            .map(|(start, end)| match (start, end == self.chunks) {
                (0, true) => self.digest,
                _ => self.value(start, end),
            })
            .collect())
    }

    /// Path of chunk `index`: sibling chaining values from the chunk upwards.
    pub fn path(&self, index: u64) -> Result<Vec<Hash>, NoSuchChunk> {
        let chunks = self.chunks;
        if index >= chunks {
            return Err(NoSuchChunk { index, chunks });
        }
        let (mut start, mut end) = (0, chunks);
        let mut path = Vec::new();
        while end - start > 1 {
            let middle = start + split(end - start);
            if index < middle {
                path.push(self.value(middle, end));
                end = middle;
            } else {
                path.push(self.value(start, middle));
                start = middle;
            }
        }
        path.reverse();
        Ok(path)
    }

    /// Chaining value of a non-empty subtree.
    fn value(&self, start: u64, end: u64) -> Hash {
        let size = end - start;
        if size.is_power_of_two() {
            let level = size.trailing_zeros();
            return self.levels[level as usize][(start >> level) as usize];
        }
        let middle = start + split(size);
        merge_subtrees_non_root(
            &self.value(start, middle),
            &self.value(middle, end),
            Mode::Hash,
        )
    }
}

/// Value of chunks [start, end) of a tensor from its frontier at `depth`: a chaining value, or the
/// digest where `is_root` says that these are all chunks.
///
/// An item is the chaining value of its part; of a range that is itself one chunk, its bytes.
pub fn fold_chunk_frontier(
    start: u64,
    end: u64,
    depth: u32,
    items: &[&[u8]],
    is_root: bool,
) -> Result<Hash, NoSuchFrontier> {
    let refusal = NoSuchFrontier { start, end, depth };
    let size = end.checked_sub(start).filter(|&size| size > 0);
    let size = size.ok_or(refusal)?;
    if size == 1 {
        return match items {
            [chunk] if chunk.len() > CHUNK_LEN || start > MAX_CHUNK => Err(refusal),
            [chunk] if is_root => Ok(digest(chunk)),
            [chunk] if !chunk.is_empty() => Ok(chaining_value(chunk, start)),
            _ => Err(refusal),
        };
    }
    let values: Option<Vec<Hash>> = items.iter().map(|&item| item.try_into().ok()).collect();
    let join = |left: &Hash, right: &Hash, whole| match whole && is_root {
        true => merge_subtrees_root(left, right, Mode::Hash).into(),
        false => merge_subtrees_non_root(left, right, Mode::Hash),
    };
    values
        .and_then(|values| fold_range(size, depth, &mut values.into_iter(), &join))
        .ok_or(refusal)
}

/// Value of the part of a tensor that is `data` and begins with chunk `first`: the chaining value of
/// its subtree, or the digest where `is_root` says that it is all of the tensor.
///
/// `None` where no tensor has such a subtree: an empty part that is not the whole, a whole that does
/// not begin at 0, and a part whose chunks are more than the largest power of two that divides
/// `first`.
pub fn part_value(data: &[u8], first: u64, is_root: bool) -> Option<Hash> {
    if is_root {
        return (first == 0).then(|| digest_parallel(data));
    }
    let chunks = chunk_count(data.len() as u64);
    let fits = first == 0 || chunks <= 1 << first.trailing_zeros();
    let is_there = first.checked_add(chunks - 1)? <= MAX_CHUNK;
    (fits && is_there && !data.is_empty()).then(|| chaining_value(data, first))
}

/// Value over parts that lie side by side, each of which but the last has the same power of two of
/// chunks, and the last no more: a chaining value, or the digest where `is_root` says that they are
/// the whole tensor. `None` for fewer than two parts.
pub fn join_values(values: &[Hash], is_root: bool) -> Option<Hash> {
    if values.len() < 2 {
        return None;
    }
    let (left, right) = values.split_at(split(values.len() as u64) as usize);
    let side = |part: &[Hash]| match part {
        [value] => Some(*value),
        _ => join_values(part, false),
    };
    let (left, right) = (side(left)?, side(right)?);
    Some(match is_root {
        true => merge_subtrees_root(&left, &right, Mode::Hash).into(),
        false => merge_subtrees_non_root(&left, &right, Mode::Hash),
    })
}

/// Chaining value of the subtree over the non-empty `data`, whose first chunk is number `first`.
fn chaining_value(data: &[u8], first: u64) -> Hash {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(first * CHUNK_LEN as u64);
    if pays(data.len()) {
        hasher.update_rayon(data);
    } else {
        hasher.update(data);
    }
    hasher.finalize_non_root()
}
