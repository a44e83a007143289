"""Proofs of training steps through ezkl: so far the SRS and the adapter (docs/proofs.md)."""
