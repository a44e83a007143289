//! Hashing as nodes of the graph: twin of `vtrain/ops/commitment.py`.

use crate::cbor::{self, EncodeError, Value};
use crate::domains::{Domain, Hash};
use crate::merkle::{leaf_hash, node_hash, split};

/// What a state leaf says of a tensor besides its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLeaf {
    /// Name of the state.
    pub name: String,
    /// Name of its dtype.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<i128>,
    /// Its exponent.
    pub exponent: i64,
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(
        entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    )
}

/// H_batch(digest of x || digest of y).
pub fn batch_digest(x: &Hash, y: &Hash) -> Hash {
    Domain::Batch.hash(&[x, y])
}

/// Leaf hash of one state tensor.
pub fn state_leaf(leaf: &StateLeaf, digest: &Hash) -> Result<Hash, EncodeError> {
    let shape = leaf
        .shape
        .iter()
        .map(|&extent| Value::Int(extent))
        .collect();
    let data = cbor::encode(&map([
        ("digest", Value::Bytes(digest.to_vec())),
        ("dtype", Value::Text(leaf.dtype.clone())),
        ("exponent", Value::Int(leaf.exponent.into())),
        ("name", Value::Text(leaf.name.clone())),
        ("shape", Value::Array(shape)),
    ]))?;
    Ok(leaf_hash(Domain::StateTree, &data))
}

/// Root over leaf hashes.
pub fn state_root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => Domain::StateTree.hash(&[]),
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(split(leaves.len() as u64) as usize);
            node_hash(Domain::StateTree, &state_root(left), &state_root(right))
        }
    }
}

/// Leaf hash of a step record; `root` is left out between commitments.
pub fn record(
    step: i64,
    batch_digest: &Hash,
    loss: i64,
    root: Option<&Hash>,
) -> Result<Hash, EncodeError> {
    let data = cbor::encode(&map([
        ("batch_digest", Value::Bytes(batch_digest.to_vec())),
        ("loss", Value::Int(loss.into())),
        (
            "state_root",
            Value::Bytes(root.map_or_else(Vec::new, |root| root.to_vec())),
        ),
        ("step", Value::Int(step.into())),
    ]))?;
    Ok(leaf_hash(Domain::RunLog, &data))
}
