//! Every hash domain of vtrain, in one place: twin of `vtrain/spec/domains.py`.

use std::sync::LazyLock;

use blake3::Hasher;
use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};

/// A digest or a hash in a tree.
pub type Hash = [u8; 32];

/// A purpose that bytes are hashed for: BLAKE3 derive_key with a context string of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Tree over the tensors of a state.
    StateTree,
    /// Tree over the step records of a run.
    RunLog,
    /// Tree over the nodes of a step graph.
    Graph,
    /// Tree over the samples of a dataset.
    Samples,
    /// Tree over the outputs of every node of one step, or of several.
    Trace,
    /// Tree over the states of one fold, in a dispute.
    Terms,
    /// Tree over the KZG commitments of a run.
    KzgLog,
    /// Tree over the KZG commitments to the tiles of one step.
    Tiles,
    /// Digest of a task.
    TaskId,
    /// Digest of a batch.
    Batch,
    /// Digest of a claim, which is what gets signed.
    Claim,
    /// Digest that names a run.
    RunId,
    /// Randomness that picks what an audit checks.
    Sampling,
    /// Digest that names what a move in a dispute answers.
    Position,
    /// Digest of a move, which is what gets signed.
    Move,
    /// Digest that names a game.
    Game,
    /// Digest of a receipt, which is what gets signed.
    Receipt,
    /// Randomness that a list of powers for trials is made of.
    SrsTau,
    /// Digest that pins a circuit and its settings.
    Circuit,
    /// Randomness of a proof, drawn from what it commits to.
    ProofChallenge,
    /// Digest of a claim on traces, which is what gets signed.
    TraceClaim,
    /// Digest of the commitments to a task's batches, which is what their owner signs.
    Batches,
    /// Key of the field elements that hide one state, batch or trace behind its commitments.
    HidingKey,
    /// These elements.
    Hiding,
    /// What a log says of such a key.
    HidingId,
    /// Secret of a key that whoever holds what it hides has.
    HidingOwn,
    /// Digest of a claim on the values of steps, which is what gets signed.
    TensorTraces,
    /// Randomness of the algebraic check.
    Algebraic,
}

const CONTEXTS: [(Domain, &str); 28] = [
    (Domain::StateTree, "vtrain 2026 state tree v1"),
    (Domain::RunLog, "vtrain 2026 run log v1"),
    (Domain::Graph, "vtrain 2026 graph v1"),
    (Domain::Samples, "vtrain 2026 samples v1"),
    (Domain::Trace, "vtrain 2026 trace v1"),
    (Domain::Terms, "vtrain 2026 terms v1"),
    (Domain::KzgLog, "vtrain 2026 kzg log v2"),
    (Domain::Tiles, "vtrain 2026 tiles v1"),
    (Domain::TaskId, "vtrain 2026 task id v1"),
    (Domain::Batch, "vtrain 2026 batch v1"),
    (Domain::Claim, "vtrain 2026 claim v1"),
    (Domain::RunId, "vtrain 2026 run id v1"),
    (Domain::Sampling, "vtrain 2026 sampling v2"),
    (Domain::Position, "vtrain 2026 dispute position v1"),
    (Domain::Move, "vtrain 2026 dispute move v1"),
    (Domain::Game, "vtrain 2026 dispute game v1"),
    (Domain::Receipt, "vtrain 2026 dispute receipt v1"),
    (Domain::SrsTau, "vtrain 2026 srs tau v1"),
    (Domain::Circuit, "vtrain 2026 circuit v2"),
    (Domain::ProofChallenge, "vtrain 2026 proof challenge v2"),
    (Domain::TraceClaim, "vtrain 2026 trace claim v1"),
    (Domain::Batches, "vtrain 2026 batch commitments v2"),
    (Domain::HidingKey, "vtrain 2026 hiding key v1"),
    (Domain::Hiding, "vtrain 2026 hiding v1"),
    (Domain::HidingId, "vtrain 2026 hiding key id v1"),
    (Domain::HidingOwn, "vtrain 2026 hiding own v1"),
    (Domain::TensorTraces, "vtrain 2026 tensor traces v1"),
    (Domain::Algebraic, "vtrain 2026 algebraic v1"),
];

static CONTEXT_KEYS: LazyLock<[ContextKey; 28]> =
    LazyLock::new(|| CONTEXTS.map(|(_, context)| hash_derive_key_context(context)));

impl Domain {
    /// Every domain, in the order of its discriminant.
    pub fn all() -> impl Iterator<Item = Domain> {
        CONTEXTS.into_iter().map(|(domain, _)| domain)
    }

    /// The context string.
    pub fn context(self) -> &'static str {
        CONTEXTS[self as usize].1
    }

    /// The domain with this context string.
    pub fn from_context(context: &str) -> Option<Domain> {
        CONTEXTS
            .into_iter()
            .find(|entry| entry.1 == context)
            .map(|(domain, _)| domain)
    }

    /// H_domain of the concatenated `parts`.
    pub fn hash(self, parts: &[&[u8]]) -> Hash {
        let mut hasher = Hasher::new_from_context_key(&CONTEXT_KEYS[self as usize]);
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_discriminant_order_and_contexts_are_unique() {
        for (index, domain) in Domain::all().enumerate() {
            assert_eq!(domain as usize, index);
            assert_eq!(Domain::from_context(domain.context()), Some(domain));
        }
        assert_eq!(Domain::from_context("vtrain 2026 unknown v1"), None);
    }

    #[test]
    fn hash_is_derive_key_mode() {
        for domain in Domain::all() {
            let expected = blake3::derive_key(domain.context(), b"left right");
            assert_eq!(domain.hash(&[b"left ", b"right"]), expected);
        }
    }
}
