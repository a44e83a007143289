//! The append-only Merkle tree of RFC 9162 section 2.1: twin of `vtrain/spec/merkle.py`.

use rayon::prelude::*;

use crate::domains::{Domain, Hash};

/// A question about leaves that a tree does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tree of {size} leaves has no {asked}")]
pub struct NoSuchLeaf {
    /// Leaf or size asked for.
    pub asked: u64,
    /// Size of the tree asked about.
    pub size: u64,
}

/// Hash of one leaf.
pub fn leaf_hash(domain: Domain, data: &[u8]) -> Hash {
    domain.hash(&[&[0], data])
}

/// Hash of an inner node from the hashes of its two subtrees.
pub fn node_hash(domain: Domain, left: &Hash, right: &Hash) -> Hash {
    domain.hash(&[&[1], left, right])
}

/// Leaves in the left subtree of a tree of `size` > 1: the largest power of two below it.
pub fn split(size: u64) -> u64 {
    1 << (u64::BITS - 1 - (size - 1).leading_zeros())
}

/// For each level from leaf `index` up: is the way's own subtree the left one?
///
/// The shape of both the tree of RFC 9162 and that of BLAKE3. `index` is below `size`.
pub fn sides(mut size: u64, mut index: u64) -> Vec<bool> {
    let mut out = Vec::new();
    while size > 1 {
        let left = split(size);
        out.push(index < left);
        if index < left {
            size = left;
        } else {
            (size, index) = (size - left, index - left);
        }
    }
    out.reverse();
    out
}

/// A range of leaves that no tree has as a subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leaves {start} to {end} are no subtree of {size} leaves")]
pub struct NoSuchRange {
    /// First leaf asked for.
    pub start: u64,
    /// The leaf after the last asked for.
    pub end: u64,
    /// Leaves that there are.
    pub size: u64,
}

/// The frontier of a range and the items given for it differ in number, or there is no such range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the items are not those of the frontier of leaves {start} to {end} at depth {depth}")]
pub struct NoSuchFrontier {
    /// First leaf of the range.
    pub start: u64,
    /// The leaf after its last.
    pub end: u64,
    /// How often the range is split.
    pub depth: u32,
}

/// Refuses what is no subtree: a subtree begins at a multiple of a power of two not below its size.
pub(crate) fn check_range(start: u64, end: u64, size: u64) -> Result<(), NoSuchRange> {
    let aligned = end
        .checked_sub(start)
        .filter(|&length| length > 0 && end <= size)
        .and_then(u64::checked_next_power_of_two)
        .is_some_and(|power| start.is_multiple_of(power));
    match aligned {
        true => Ok(()),
        false => Err(NoSuchRange { start, end, size }),
    }
}

/// The ranges that `depth` splits leave of the non-empty [start, end), from left to right: single
/// leaves are not split again. The same in this tree and in BLAKE3's.
pub(crate) fn frontier_ranges(start: u64, end: u64, depth: u32) -> Vec<(u64, u64)> {
    fn visit(start: u64, end: u64, depth: u32, out: &mut Vec<(u64, u64)>) {
        if depth == 0 || end - start <= 1 {
            out.push((start, end));
            return;
        }
        let middle = start + split(end - start);
        visit(start, middle, depth - 1, out);
        visit(middle, end, depth - 1, out);
    }
    let mut out = Vec::new();
    visit(start, end, depth, &mut out);
    out
}

/// Value of a range of `size` > 0 leaves from its frontier at `depth`; None if `items` ends early.
///
/// `join` gets the two halves and whether they make up the whole range. Work is bounded by `items`.
pub(crate) fn fold_range(
    size: u64,
    depth: u32,
    items: &mut impl Iterator<Item = Hash>,
    join: &impl Fn(&Hash, &Hash, bool) -> Hash,
) -> Option<Hash> {
    fn visit(
        size: u64,
        depth: u32,
        whole: bool,
        items: &mut impl Iterator<Item = Hash>,
        join: &impl Fn(&Hash, &Hash, bool) -> Hash,
    ) -> Option<Hash> {
        if depth == 0 || size == 1 {
            return items.next();
        }
        let left = visit(split(size), depth - 1, false, items, join)?;
        let right = visit(size - split(size), depth - 1, false, items, join)?;
        Some(join(&left, &right, whole))
    }
    let value = visit(size, depth, true, items, join)?;
    items.next().is_none().then_some(value)
}

/// Hash of the leaves [start, end) of a tree from the hashes of their frontier at `depth`.
pub fn fold_frontier(
    domain: Domain,
    start: u64,
    end: u64,
    depth: u32,
    items: &[Hash],
) -> Result<Hash, NoSuchFrontier> {
    let join = |left: &Hash, right: &Hash, _| node_hash(domain, left, right);
    end.checked_sub(start)
        .filter(|&size| size > 0)
        .and_then(|size| fold_range(size, depth, &mut items.iter().copied(), &join))
        .ok_or(NoSuchFrontier { start, end, depth })
}

/// A growing list of leaves with the roots and proofs of all its prefixes in O(log^2 size).
#[derive(Clone, Debug)]
pub struct MerkleTree {
    domain: Domain,
    /// `levels[k][j]` is the root of the complete subtree over leaves j * 2^k .. (j + 1) * 2^k.
    levels: Vec<Vec<Hash>>,
}

impl MerkleTree {
    /// The tree of no leaves.
    pub fn new(domain: Domain) -> Self {
        MerkleTree {
            domain,
            levels: vec![Vec::new()],
        }
    }

    /// Number of leaves.
    pub fn size(&self) -> u64 {
        self.levels[0].len() as u64
    }

    /// Appends a leaf.
    pub fn append(&mut self, data: &[u8]) {
        self.append_hash(leaf_hash(self.domain, data));
    }

    /// Appends the rows of `data`, each `leaf_len` > 0 bytes, hashed in the current rayon pool.
    pub fn extend_fixed(&mut self, data: &[u8], leaf_len: usize) {
        let domain = self.domain;
        let hashes: Vec<Hash> = data
            .par_chunks_exact(leaf_len)
            .with_min_len(64)
            .map(|leaf| leaf_hash(domain, leaf))
            .collect();
        for hash in hashes {
            self.append_hash(hash);
        }
    }

    fn append_hash(&mut self, mut hash: Hash) {
        let mut level = 0;
        loop {
            if level == self.levels.len() {
                self.levels.push(Vec::new());
            }
            self.levels[level].push(hash);
            let [.., left, right] = self.levels[level].as_slice() else {
                return;
            };
            if self.levels[level].len() % 2 == 1 {
                return;
            }
            hash = node_hash(self.domain, left, right);
            level += 1;
        }
    }

    /// Root of the first `size` leaves.
    pub fn root(&self, size: u64) -> Result<Hash, NoSuchLeaf> {
        self.check_size(size)?;
        if size == 0 {
            return Ok(self.domain.hash(&[]));
        }
        Ok(self.range_root(0, size))
    }

    /// PATH of RFC 9162 section 2.1.3.1 for leaf `index` in the tree of the first `size` leaves.
    pub fn inclusion_path(&self, index: u64, size: u64) -> Result<Vec<Hash>, NoSuchLeaf> {
        self.check_size(size)?;
        if index >= size {
            return Err(NoSuchLeaf { asked: index, size });
        }
        let (mut start, mut end) = (0, size);
        let mut path = Vec::new();
        while end - start > 1 {
            let middle = start + split(end - start);
            if index < middle {
                path.push(self.range_root(middle, end));
                end = middle;
            } else {
                path.push(self.range_root(start, middle));
                start = middle;
            }
        }
        path.reverse();
        Ok(path)
    }

    /// PROOF of RFC 9162 section 2.1.4.1: the first `old` leaves are a prefix of the first `new`.
    pub fn consistency_path(&self, old: u64, new: u64) -> Result<Vec<Hash>, NoSuchLeaf> {
        self.check_size(new)?;
        if old > new {
            return Err(NoSuchLeaf {
                asked: old,
                size: new,
            });
        }
        let mut path = Vec::new();
        if old == 0 {
            return Ok(path);
        }
        let (mut start, mut end) = (0, new);
        // Down to the subtree that ends where the old tree does.
        while end != old {
            let middle = start + split(end - start);
            if old <= middle {
                path.push(self.range_root(middle, end));
                end = middle;
            } else {
                path.push(self.range_root(start, middle));
                start = middle;
            }
        }
        // When that is the whole old tree, the verifier has its root already.
        if start != 0 {
            path.push(self.range_root(start, end));
        }
        path.reverse();
        Ok(path)
    }

    /// Hashes of the frontier of leaves [start, end), a subtree of the tree of some prefix.
    pub fn frontier(&self, start: u64, end: u64, depth: u32) -> Result<Vec<Hash>, NoSuchRange> {
        check_range(start, end, self.size())?;
        Ok(frontier_ranges(start, end, depth)
            .into_iter()
            .map(|(start, end)| self.range_root(start, end))
            .collect())
    }

    fn check_size(&self, size: u64) -> Result<(), NoSuchLeaf> {
        if size > self.size() {
            return Err(NoSuchLeaf {
                asked: size,
                size: self.size(),
            });
        }
        Ok(())
    }

    /// Root of a non-empty subtree that the tree of some prefix has.
    fn range_root(&self, start: u64, end: u64) -> Hash {
        let size = end - start;
        if size.is_power_of_two() {
            let level = size.trailing_zeros();
            return self.levels[level as usize][(start >> level) as usize];
        }
        let middle = start + split(size);
        node_hash(
            self.domain,
            &self.range_root(start, middle),
            &self.range_root(middle, end),
        )
    }
}

/// Whether `leaf` is leaf `index` of the tree of `size` leaves under `root`: hostile input allowed.
pub fn verify_inclusion(
    domain: Domain,
    root: &Hash,
    leaf: &[u8],
    index: u64,
    size: u64,
    path: &[Hash],
) -> bool {
    if index >= size {
        return false;
    }
    let sides = sides(size, index);
    if path.len() != sides.len() {
        return false;
    }
    let mut value = leaf_hash(domain, leaf);
    for (is_left, sibling) in sides.into_iter().zip(path) {
        value = if is_left {
            node_hash(domain, &value, sibling)
        } else {
            node_hash(domain, sibling, &value)
        };
    }
    value == *root
}

/// Whether the tree of `old_size` leaves under `old_root` is a prefix of the one of `new_size`
/// leaves under `new_root`: RFC 9162 section 2.1.4.2, hostile input allowed.
pub fn verify_consistency(
    domain: Domain,
    old_root: &Hash,
    new_root: &Hash,
    old_size: u64,
    new_size: u64,
    path: &[Hash],
) -> bool {
    if old_size > new_size || (old_size == new_size && old_root != new_root) {
        return false;
    }
    if old_size == 0 {
        return path.is_empty() && *old_root == domain.hash(&[]);
    }
    if old_size == new_size {
        return path.is_empty();
    }
    // When the old tree is itself a complete subtree of the new one, its root is left out.
    let known = if old_size.is_power_of_two() {
        Some(old_root)
    } else {
        None
    };
    let mut steps = known.into_iter().chain(path);
    let Some(first) = steps.next() else {
        return false;
    };
    let (mut node, mut last) = (old_size - 1, new_size - 1);
    while node & 1 == 1 {
        (node, last) = (node >> 1, last >> 1);
    }
    let (mut old, mut new) = (*first, *first);
    for sibling in steps {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            old = node_hash(domain, sibling, &old);
            new = node_hash(domain, sibling, &new);
            while node != 0 && node & 1 == 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        } else {
            new = node_hash(domain, &new, sibling);
        }
        (node, last) = (node >> 1, last >> 1);
    }
    last == 0 && old == *old_root && new == *new_root
}
